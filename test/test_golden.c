/* Golden vectors: files made outside this project tie the oracle, and every device, to it. The
 * oracle must give the stored answers almost exactly, or it is worth nothing; the device within the
 * bounds of its types.
 *
 * SPDX-License-Identifier: MIT */
#include "harness.h"

#include "compare.h"
#include "job.h"
#include "numbers.h"
#include "oracle.h"

#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const char *folder;
static glob_t files;

/* Answers are stored as f32: one rounding. */
static const double oracle_bound = 1e-7;

static struct job job;
static double *answer[JOB_OUTPUTS];

static void open_job(const char *path)
{
    char error[ST_ERROR_SIZE];
    ck_assert_msg(job_open(&job, path, NULL, error), "%s", error);
    ck_assert_msg(job_references(&job, error), "%s", error);
    ck_assert_msg(job_allocate(&job, error), "%s", error);
}

/* What the call's words choose applies to files too. */
static void choose(kda_problem *p)
{
    const kda_problem *chosen = &make("%s", "")->problem;
    p->schedule = chosen->schedule;
    p->engine = chosen->engine;
    p->chunk = chosen->chunk;
    p->max_workspace = chosen->max_workspace;
}

static void close_job(void)
{
    for (int i = 0; i < JOB_OUTPUTS; i++) {
        free(answer[i]);
        answer[i] = NULL;
    }
    job_close(&job);
    harness_teardown();
}

/* Holds a result to the file's answer. */
static void check_output(const char *path, const char *who, int id, const void *got, int type,
                         double bound)
{
    const struct st_tensor *reference = job.output[id].reference;
    if (!reference)
        return;
    ck_assert_int_eq(reference->dtype, ST_F32);
    const void *want = st_data(job.file, reference);
    size_t rows = (size_t)reference->shape[0], size = (size_t)st_elements(reference) / rows;
    struct error e =
        error_measure(got, type, want, KDA_F32, rows, size, id == JOB_OUT ? ERROR_WINDOW : 1);
    ck_assert_msg(error_within(&e, bound),
                  "%s of %s: rms error %.3g, in a window %.3g, largest %.3g, %zu not finite; bound "
                  "%.3g\n    kdarun --check %s",
                  reference->name, who, e.rms, e.window, e.max, e.not_finite, bound, path);
}

static void check_oracle(const char *path)
{
    for (int i = 0; i < JOB_OUTPUTS; i++)
        answer[i] = calloc((size_t)st_elements(&job.output[i].tensor) + 1, sizeof(double));
    oracle_run(&job.problem, &job.args,
               &(struct oracle_outputs){answer[JOB_OUT], answer[JOB_STATE], NULL});
    check_output(path, "the oracle", JOB_OUT, answer[JOB_OUT], NUMBER_F64, oracle_bound);
    check_output(path, "the oracle", JOB_STATE, answer[JOB_STATE], NUMBER_F64, oracle_bound);
}

static void check_device(const char *path)
{
    kda_plan *plan;
    choose(&job.problem);
    kda_status status = kda_plan_create(&plan, device.ctx, &job.problem);
    if (status == KDA_OK)
        status = kda_execute(plan, &job.args);
    /* Arithmetic is f32 but on matrix units, which are as exact as the tensors' type. */
    const kda_dtype arithmetic = plan_has(plan, "engine=mma") ? job.problem.dtype : KDA_F32;
    kda_plan_destroy(&plan);
    if (status != KDA_OK) {
        char why[512];
        device_last_error(why, sizeof(why));
        ck_abort_msg("%s: %s: %s", path, kda_status_string(status), why);
    }
    for (int i = 0; i < JOB_OUTPUTS; i++) {
        const struct st_tensor *got = &job.output[i].tensor;
        kda_dtype type = (kda_dtype)job_number_type(got);
        if (got->data)
            check_output(path, device.name, i, got->data, (int)type,
                         i == JOB_OUT ? fmax(error_bound_out(type), error_bound_out(arithmetic))
                                      : error_bound_state(arithmetic, type));
    }
}

START_TEST(test_golden_files_present)
{
    ck_assert_msg(files.gl_pathc > 0, "no golden vectors in %s: see --golden", folder);
}
END_TEST

START_TEST(test_golden_file)
{
    const char *path = files.gl_pathv[_i];
    open_job(path);
    check_oracle(path);
    check_device(path);
}
END_TEST

Suite *suite_golden(const char *directory, enum level level)
{
    char pattern[4096];
    snprintf(pattern, sizeof(pattern), "%s/*.safetensors", directory);
    globfree(&files);
    folder = directory;
    glob(pattern, 0, NULL, &files);
    Suite *suite = suite_create("golden");
    TCase *tcase = tcase_create("golden");
    tcase_add_checked_fixture(tcase, harness_setup, close_job);
    tcase_add_test(tcase, test_golden_files_present);
    for (int i = 0; i < (int)files.gl_pathc; i += level == QUICK ? 4 : 1)
        tcase_add_loop_test(tcase, test_golden_file, i, i + 1);
    suite_add_tcase(suite, tcase);
    return suite;
}

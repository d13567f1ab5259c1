/* Fuzz target: a file as kdarun takes it. It is refused with a reason, or becomes a job, which the
 * library then refuses or runs if it is small.
 *
 * Bytes that begin with '{' are a header up to the first newline, then data: the length in front is
 * put there, which mutations would hardly ever get right. Others are the file.
 *
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE /* memfd_create */
#include "job.h"
#include "fuzz.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Floats that a job may write, and what it may compute: more takes time and shows nothing else. */
enum { MOST_FLOATS = 1 << 16, MOST_WORK = 1 << 20 };

static void put(int file, const void *bytes, size_t n)
{
    FUZZ_CHECK(write(file, bytes, n) == (ssize_t)n, "the file can't be written");
}

static int make_file(const uint8_t *data, size_t size)
{
    int file = memfd_create("fuzz", MFD_CLOEXEC);
    FUZZ_CHECK(file >= 0, "no memory file");
    const uint8_t *line = size && *data == '{' ? memchr(data, '\n', size) : NULL;
    if (line) {
        const uint64_t length = (uint64_t)(line - data);
        put(file, &length, sizeof length);
        put(file, data, length);
        put(file, line + 1, size - length - 1);
    } else {
        put(file, data, size);
    }
    return file;
}

static double states_of(const kda_args *a)
{
    return (double)(a->slots ? a->slots : a->sequences ? a->sequences : 1);
}

static bool is_small(const struct job *job)
{
    const kda_problem *p = &job->problem;
    const double cells = (double)p->value_heads * p->key_dim * p->value_dim;
    const double tokens = (double)job->args.tokens;
    const double checkpoints = p->checkpoint_every ? tokens / (double)p->checkpoint_every : 0;
    return (states_of(&job->args) + checkpoints) * cells < MOST_FLOATS &&
           tokens * p->value_heads * p->value_dim < MOST_FLOATS && tokens * cells < MOST_WORK;
}

static kda_context *context(void)
{
    static kda_context *ctx;
    if (!ctx)
        FUZZ_CHECK(!kda_context_create(&ctx, kda_context_params(.backend = KDA_CPU, .threads = 1)),
                   "no context");
    return ctx;
}

static void run(struct job *job, char *error)
{
    kda_plan *plan;
    if (kda_plan_create(&plan, context(), &job->problem))
        return;
    if (is_small(job) && job_allocate(job, error) && !kda_execute(plan, &job->args)) {
        job_collect(job);
        FUZZ_CHECK(job_write(job, "fuzz_file.safetensors", error), "%s", error);
    }
    kda_plan_destroy(&plan);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[32], error[ST_ERROR_SIZE] = "";
    struct job job;
    const int file = make_file(data, size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    if (job_open(&job, path, NULL, error)) {
        job_references(&job, error);
        run(&job, error);
    } else {
        FUZZ_CHECK(*error, "refused without a reason");
    }
    job_close(&job);
    close(file);
    return 0;
}

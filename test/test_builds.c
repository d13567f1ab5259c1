/* How a plan's programs are built: at once on a GPU, unless its driver is known not to bear that,
 * in turn on a CPU; and told of in one order whichever ends first. The device is PoCL, whose driver
 * says here that it is another's, or for a GPU.
 *
 * Linked with -Wl,--wrap for each function that is wrapped below.
 *
 * SPDX-License-Identifier: MIT */
#include <check.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kda.h"
#include "runner.h"
#include "spec.h"

cl_int __real_clGetDeviceInfo(cl_device_id id, cl_device_info what, size_t size, void *value,
                              size_t *answer);
cl_int __wrap_clGetDeviceInfo(cl_device_id id, cl_device_info what, size_t size, void *value,
                              size_t *answer);
cl_int __real_clBuildProgram(cl_program program, cl_uint count, const cl_device_id *ids,
                             const char *options,
                             void(CL_CALLBACK *done)(cl_program program, void *data), void *data);
cl_int __wrap_clBuildProgram(cl_program program, cl_uint count, const cl_device_id *ids,
                             const char *options,
                             void(CL_CALLBACK *done)(cl_program program, void *data), void *data);

static bool gpu, foreign; /* what it says: that it is a GPU, that it is not PoCL */

/* Builds that have begun. Each waits until `together` have, so many seconds at most; then those
 * whose options have `failing` in them fail, and the others go on one by one, as PoCL must have it.
 */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t another = PTHREAD_COND_INITIALIZER;
static int together, patience, begun, under_way, most;
static const char *failing;

cl_int __wrap_clGetDeviceInfo(cl_device_id id, cl_device_info what, size_t size, void *value,
                              size_t *answer)
{
    cl_int err = __real_clGetDeviceInfo(id, what, size, value, answer);
    if (gpu && what == CL_DEVICE_TYPE && value)
        *(cl_device_type *)value = CL_DEVICE_TYPE_GPU;
    if (foreign && what == CL_DEVICE_VERSION && value)
        memcpy(strstr(value, "PoCL"), "none", strlen("none"));
    return err;
}

cl_int __wrap_clBuildProgram(cl_program program, cl_uint count, const cl_device_id *ids,
                             const char *options,
                             void(CL_CALLBACK *done)(cl_program program, void *data), void *data)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += patience;
    pthread_mutex_lock(&lock);
    begun++;
    under_way++;
    most = under_way > most ? under_way : most;
    pthread_cond_broadcast(&another);
    while (begun < together && !pthread_cond_timedwait(&another, &lock, &until))
        ;
    cl_int err = failing && strstr(options, failing)
                     ? CL_BUILD_PROGRAM_FAILURE
                     : __real_clBuildProgram(program, count, ids, options, done, data);
    under_way--;
    pthread_mutex_unlock(&lock);
    return err;
}

/* Of each line that tells of a build the level and the program: "4kda_step " and so on. */
static char told[1024];

static void tell(void *data, kda_log_level level, const char *line)
{
    static const char start[] = "clBuildProgram of ";
    const size_t used = strlen(told);
    (void)data;
    if (!strncmp(line, start, strlen(start)))
        snprintf(told + used, sizeof told - used, "%d%.*s ", (int)level,
                 (int)strcspn(line + strlen(start), ":"), line + strlen(start));
}

static kda_context *context;

static void open_device(bool as_gpu, bool as_foreign)
{
    gpu = as_gpu;
    foreign = as_foreign;
    kda_context_params params = {.struct_size = sizeof params};
    ck_assert_int_eq(spec_resolve("Portable", &params), 0);
    params.log = tell;
    params.log_level = KDA_LOG_DEBUG;
    ck_assert_int_eq(kda_context_create(&context, &params), KDA_OK);
    begun = most = 0;
    told[0] = '\0';
}

static kda_status make_plan(kda_schedule schedule)
{
    kda_plan *plan;
    kda_status st = kda_plan_create(&plan, context,
                                    kda_problem(.heads = 1, .key_dim = 16, .value_dim = 16,
                                                .max_tokens = 64, .schedule = schedule));
    kda_plan_destroy(&plan);
    return st;
}

START_TEST(test_at_once)
{
    open_device(true, true);
    together = 3;
    patience = 20;
    ck_assert_int_eq(make_plan(KDA_SCHEDULE_RECURRENT), KDA_OK);
    ck_assert_int_eq(begun, 3);
    ck_assert_int_eq(most, 3);
    ck_assert_str_eq(told, "4kda_step (narrow) 4kda_step 4kda_step (one token) ");
    /* What the context has is not built again. */
    ck_assert_int_eq(make_plan(KDA_SCHEDULE_RECURRENT), KDA_OK);
    ck_assert_int_eq(begun, 3);
}
END_TEST

START_TEST(test_in_turn)
{
    open_device(_i == 0, _i == 1);
    together = 2; /* in vain */
    patience = 1;
    ck_assert_int_eq(make_plan(KDA_SCHEDULE_CHUNKWISE), KDA_OK);
    ck_assert_int_eq(most, 1);
    ck_assert_ptr_nonnull(strstr(told, "4kda_scan 4kda_prepare 4kda_step 4kda_table "));
}
END_TEST

/* One of three fails: all are told of, that one as a warning, and so it is where a thread's end
 * decides nothing. */
START_TEST(test_failure)
{
    open_device(true, true);
    together = 3;
    patience = 20;
    failing = "KDA_WIDE=0";
    ck_assert_int_eq(make_plan(KDA_SCHEDULE_RECURRENT), KDA_COMPILE);
    ck_assert_int_eq(most, 3);
    ck_assert_str_eq(told, "2kda_step (narrow) 4kda_step 4kda_step (one token) ");
    /* Those that were built are kept. */
    failing = NULL;
    ck_assert_int_eq(make_plan(KDA_SCHEDULE_RECURRENT), KDA_OK);
    ck_assert_int_eq(begun, 4);
}
END_TEST

static void close_device(void)
{
    kda_context_destroy(&context);
    together = 0;
    failing = NULL;
}

int main(void)
{
    Suite *suite = suite_create("builds");
    TCase *tc = tcase_create("builds");
    tcase_add_checked_fixture(tc, NULL, close_device);
    tcase_set_timeout(tc, 300);
    tcase_add_test(tc, test_at_once);
    tcase_add_loop_test(tc, test_in_turn, 0, 2);
    tcase_add_test(tc, test_failure);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    return runner_run(runner) ? EXIT_FAILURE : EXIT_SUCCESS;
}

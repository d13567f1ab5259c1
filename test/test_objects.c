/* Contexts and plans from cradle to grave: NULL wherever it can be passed, handles after failure,
 * descriptions and facts into memory that is too short, the log's level, the caller's own OpenCL
 * objects.
 *
 * SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "spec.h"
#include "test_api.h"

START_TEST(test_null_handles)
{
    kda_context *ctx = NULL;
    kda_plan *plan = NULL;
    kda_context_destroy(NULL);
    kda_context_destroy(&ctx);
    kda_plan_destroy(NULL);
    kda_plan_destroy(&plan);
    ck_assert_int_eq(kda_context_create(NULL, NULL), KDA_INVALID);
    ck_assert_int_eq(kda_plan_create(NULL, rig->ctx, kda_problem(.heads = 1)), KDA_INVALID);
    ck_assert_int_eq(kda_execute(NULL, kda_args(0)), KDA_INVALID);
    ck_assert_int_eq(kda_enqueue(NULL, rig->queue, kda_args(0), 0, NULL, NULL), KDA_INVALID);
}
END_TEST

START_TEST(test_null_parameters)
{
    struct trial t = trial_make(rig, LOG, false);
    kda_plan *plan = t.plan, *made = plan;
    ck_assert_int_eq(kda_plan_create(&made, NULL, &t.problem), KDA_INVALID);
    ck_assert_ptr_null(made);
    made = plan;
    log_clear(&rig->log);
    expect(kda_plan_create(&made, rig->ctx, NULL), KDA_INVALID, "problem NULL", "no problem");
    ck_assert_ptr_null(made);
    log_clear(&rig->log);
    expect(kda_execute(plan, NULL), KDA_INVALID, "args NULL", "no args");
    log_clear(&rig->log);
    expect(kda_enqueue(plan, rig->queue, NULL, 0, NULL, NULL), KDA_INVALID, "args NULL", "no args");
}
END_TEST

/* Questions about nothing have an empty answer. */
START_TEST(test_null_questions)
{
    char text[4] = "abc";
    kda_fact fact;
    ck_assert_int_eq(kda_context_backend(NULL), KDA_AUTO);
    ck_assert_ptr_null(kda_context_cl_context(NULL));
    ck_assert_ptr_null(kda_context_cl_device(NULL));
    ck_assert_uint_eq(kda_context_facts(NULL, &fact, 1), 0);
    ck_assert_uint_eq(kda_plan_workspace(NULL), 0);
    ck_assert_uint_eq(kda_plan_describe(NULL, text, sizeof text), 0);
}
END_TEST

START_TEST(test_destroy_stores_null)
{
    struct trial t = trial_make(rig, LOG, false);
    kda_context *ctx;
    kda_plan *plan;
    ck_assert_int_eq(kda_context_create(&ctx, &t.params), KDA_OK);
    ck_assert_int_eq(kda_plan_create(&plan, ctx, &t.problem), KDA_OK);
    kda_plan_destroy(&plan);
    ck_assert_ptr_null(plan);
    kda_context_destroy(&ctx);
    ck_assert_ptr_null(ctx);
}
END_TEST

START_TEST(test_enqueue_needs_opencl)
{
    struct trial t = trial_make(rig, LOG, false);
    trial_poison(&t);
    log_clear(&rig->log);
    expect(kda_enqueue(t.plan, NULL, &t.args, 0, NULL, NULL), KDA_INVALID, "CPU", "no queues");
    struct outputs outputs = trial_outputs(&t);
    ck_assert(outputs_untouched(&outputs));
}
END_TEST

START_TEST(test_backend_is_told)
{
    ck_assert_int_eq(kda_context_backend(rig->ctx), rig->device ? KDA_OPENCL : KDA_CPU);
    ck_assert_int_eq(!kda_context_cl_context(rig->ctx), !rig->device);
}
END_TEST

START_TEST(test_describe)
{
    const kda_plan *plan = rig_plan(rig, LOG);
    char whole[1024], part[1024];
    size_t n = kda_plan_describe(plan, whole, sizeof whole);
    ck_assert_uint_eq(n, strlen(whole));
    ck_assert_ptr_nonnull(strstr(whole, "recurrent"));
    ck_assert_ptr_null(strchr(whole, '\n'));
    ck_assert_uint_eq(kda_plan_describe(plan, NULL, 0), n);
    ck_assert_uint_eq(kda_plan_describe(plan, NULL, 10), n);
    for (size_t room = 0; room <= n + 1; room++) {
        memset(part, '#', sizeof part);
        ck_assert_uint_eq(kda_plan_describe(plan, part, room), n);
        size_t written = room ? room - 1 : 0;
        ck_assert(!memcmp(part, whole, written));
        ck_assert(!room || !part[written]);
        ck_assert(part[room] == '#');
    }
}
END_TEST

START_TEST(test_facts)
{
    enum { MOST = 64 };
    kda_fact facts[MOST];
    size_t n = kda_context_facts(rig->ctx, NULL, 0);
    ck_assert(n > 0 && n < MOST);
    ck_assert_uint_eq(kda_context_facts(rig->ctx, NULL, MOST), n);
    for (size_t max = 0; max <= n; max++) {
        memset(facts, 0, sizeof facts);
        ck_assert_uint_eq(kda_context_facts(rig->ctx, facts, max), n);
        for (size_t i = 0; i < max; i++)
            ck_assert(*facts[i].name && *facts[i].value && *facts[i].source);
        ck_assert(!facts[max].name);
    }
}
END_TEST

START_TEST(test_strings)
{
    static const char *const names[] = {"OK",     "INVALID", "UNSUPPORTED", "NO_DEVICE",
                                        "MEMORY", "COMPILE", "DRIVER"};
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++)
        ck_assert_str_eq(kda_status_string((kda_status)i), names[i]);
    ck_assert_ptr_nonnull(kda_status_string((kda_status)7));
    ck_assert_ptr_nonnull(kda_status_string((kda_status)-1));
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", KDA_VERSION_MAJOR, KDA_VERSION_MINOR,
             KDA_VERSION_PATCH);
    ck_assert_str_eq(kda_version(), version);
}
END_TEST

/* What a context at the given level says while a plan is made and another refused. */
static void lines_at(kda_log_level level, int lines[KDA_LOG_DEBUG + 1])
{
    struct trial t = trial_make(rig, LOG, false);
    kda_context *ctx;
    kda_plan *plan;
    t.params.log_level = level;
    log_clear(&rig->log);
    ck_assert_int_eq(kda_context_create(&ctx, &t.params), KDA_OK);
    ck_assert_int_eq(kda_plan_create(&plan, ctx, &t.problem), KDA_OK);
    kda_plan_destroy(&plan);
    t.problem.heads = 0;
    ck_assert_int_eq(kda_plan_create(&plan, ctx, &t.problem), KDA_INVALID);
    kda_context_destroy(&ctx);
    memcpy(lines, rig->log.lines, sizeof rig->log.lines);
}

START_TEST(test_log_level)
{
    int all[KDA_LOG_DEBUG + 1], some[KDA_LOG_DEBUG + 1];
    lines_at(KDA_LOG_DEBUG, all);
    ck_assert_int_eq(all[KDA_LOG_ERROR], 1);
    ck_assert_int_gt(all[KDA_LOG_INFO] + all[KDA_LOG_DEBUG], 0);
    for (int level = KDA_LOG_DEFAULT; level <= KDA_LOG_DEBUG; level++) {
        lines_at((kda_log_level)level, some);
        int least = level == KDA_LOG_DEFAULT ? KDA_LOG_WARN : level;
        ck_assert_int_eq(some[KDA_LOG_DEFAULT], 0);
        for (int i = KDA_LOG_ERROR; i <= KDA_LOG_DEBUG; i++)
            ck_assert_msg(i <= least ? some[i] == all[i] || i >= KDA_LOG_INFO : !some[i],
                          "level %d: %d lines of level %d", level, some[i], i);
    }
}
END_TEST

START_TEST(test_no_log)
{
    struct trial t = trial_make(rig, LOG, false);
    kda_context *ctx;
    kda_plan *plan;
    t.params.log = NULL;
    ck_assert_int_eq(kda_context_create(&ctx, &t.params), KDA_OK);
    t.problem.heads = 0;
    ck_assert_int_eq(kda_plan_create(&plan, ctx, &t.problem), KDA_INVALID);
    kda_context_destroy(&ctx);
}
END_TEST

/* The caller's context and device, each alone or both, are used and still there afterwards. */
START_TEST(test_callers_objects)
{
    for (int which = 1; which <= 3; which++) {
        struct trial t = trial_make(rig, LOG, false);
        cl_context callers = which & 1 ? rig->foreign : NULL;
        kda_context *ctx;
        cl_uint before, after;
        clGetContextInfo(rig->foreign, CL_CONTEXT_REFERENCE_COUNT, sizeof before, &before, NULL);
        t.params.context = callers;
        t.params.device = which & 2 ? rig->device : NULL;
        ck_assert_int_eq(kda_context_create(&ctx, &t.params), KDA_OK);
        ck_assert(kda_context_cl_device(ctx) == rig->device);
        ck_assert(!callers || kda_context_cl_context(ctx) == callers);
        kda_context_destroy(&ctx);
        clGetContextInfo(rig->foreign, CL_CONTEXT_REFERENCE_COUNT, sizeof after, &after, NULL);
        ck_assert_uint_eq(before, after);
    }
}
END_TEST

/* Some device that the context under test does not have; NULL: there is only one. */
static cl_device_id other_device(void)
{
    struct spec_device *list;
    cl_device_id other = NULL;
    size_t n = spec_devices(&list);
    for (size_t i = 0; i < n; i++)
        if (list[i].id != rig->device)
            other = list[i].id;
    free(list);
    return other;
}

START_TEST(test_device_outside_the_context)
{
    struct trial t = trial_make(rig, LOG, false);
    kda_context *ctx = rig->ctx;
    t.params.context = rig->foreign;
    t.params.device = other_device();
    log_clear(&rig->log);
    expect(kda_context_create(&ctx, &t.params), KDA_INVALID, "device", "another context's device");
    ck_assert_ptr_null(ctx);
}
END_TEST

/* A device within the device; NULL: it can't be parted. Drivers that can't crash when asked to. */
static cl_device_id device_part(void)
{
    const cl_device_partition_property ones[] = {CL_DEVICE_PARTITION_EQUALLY, 1, 0};
    cl_device_id parts[256];
    cl_uint count = 0, most = 0;
    clGetDeviceInfo(rig->device, CL_DEVICE_PARTITION_MAX_SUB_DEVICES, sizeof most, &most, NULL);
    if (most > 1)
        clCreateSubDevices(rig->device, ones, 256, parts, &count);
    for (cl_uint i = 1; i < count && i < 256; i++)
        clReleaseDevice(parts[i]);
    return count ? parts[0] : NULL;
}

START_TEST(test_queue_of_another_device)
{
    struct trial t = trial_make(rig, LOG, false);
    cl_device_id part = device_part(), both[] = {rig->device, part};
    cl_int code;
    kda_context *ctx;
    kda_plan *plan;
    t.params.context = clCreateContext(NULL, 2, both, NULL, NULL, &code);
    ck_assert_int_eq(code, CL_SUCCESS);
    cl_command_queue queue = clCreateCommandQueue(t.params.context, part, 0, &code);
    ck_assert_int_eq(code, CL_SUCCESS);
    ck_assert_int_eq(kda_context_create(&ctx, &t.params), KDA_OK);
    ck_assert_int_eq(kda_plan_create(&plan, ctx, &t.problem), KDA_OK);
    log_clear(&rig->log);
    expect(kda_enqueue(plan, queue, kda_args(.tokens = 0), 0, NULL, NULL), KDA_INVALID,
           "queue device", "a queue of another device of the context");
    kda_plan_destroy(&plan);
    kda_context_destroy(&ctx);
    clReleaseCommandQueue(queue);
    clReleaseContext(t.params.context);
    clReleaseDevice(part);
}
END_TEST

START_TEST(test_opencl_objects_on_cpu)
{
    struct trial t = trial_make(rig, LOG, false);
    kda_context *ctx = rig->ctx;
    t.params.backend = KDA_CPU;
    log_clear(&rig->log);
    expect(kda_context_create(&ctx, &t.params), KDA_INVALID, "device KDA_CPU", "device on the CPU");
    ck_assert_ptr_null(ctx);
}
END_TEST

void add_objects(Suite *suite)
{
    TCase *tc = tcase_create("objects");
    tcase_add_test(tc, test_null_handles);
    tcase_add_test(tc, test_null_parameters);
    tcase_add_test(tc, test_null_questions);
    tcase_add_test(tc, test_destroy_stores_null);
    tcase_add_test(tc, test_backend_is_told);
    tcase_add_test(tc, test_describe);
    tcase_add_test(tc, test_facts);
    tcase_add_test(tc, test_strings);
    tcase_add_test(tc, test_log_level);
    tcase_add_test(tc, test_no_log);
    if (!rig->device)
        tcase_add_test(tc, test_enqueue_needs_opencl);
    if (rig->device)
        tcase_add_test(tc, test_callers_objects);
    if (rig->device)
        tcase_add_test(tc, test_opencl_objects_on_cpu);
    cl_device_id part = rig->device ? device_part() : NULL;
    if (part) {
        clReleaseDevice(part);
        tcase_add_test(tc, test_queue_of_another_device);
    }
    if (rig->device && other_device())
        tcase_add_test(tc, test_device_outside_the_context);
    suite_add_tcase(suite, tc);
}

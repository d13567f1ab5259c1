/* Failures from below: each call of the C library, OpenCL and CLBlast that a public function makes
 * fails in turn, until the function gets through. Each time the function answers with the status
 * that the failure means, no handle and one ERROR line that names the call, holds nothing, and
 * leaves the context and its other plans as they were. What may fail without a loss is listed.
 *
 * SPDX-License-Identifier: MIT */
#include <check.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "fault.h"
#include "files.h"
#include "runner.h"
#include "trial.h"

#include <clblast_c.h>

static struct rig *rig;
static int faults; /* so far */

/* ---- What a failure may lead to --------------------------------------------------------- */

static bool is_one_of(const char *name, const char *const *names)
{
    while (*names && strcmp(*names, name))
        names++;
    return *names;
}
#define IS_ONE_OF(name, ...) is_one_of(name, (const char *const[]){__VA_ARGS__, NULL})

static bool is_memory(const char *call)
{
    return IS_ONE_OF(call, "malloc", "calloc", "aligned_alloc");
}

/* Calls that take nothing away when they fail, so that nothing is said: a build log, a limit that a
 * launch would meet anyway, a folder that is there, a look for old files, the end of a file that
 * has been read. */
static bool is_harmless(const char *call)
{
    return IS_ONE_OF(call, "clGetProgramBuildInfo", "clGetKernelWorkGroupInfo", "mkdir", "opendir",
                     "lstat64", "fclose");
}

static kda_status status_of(const char *call, cl_int code)
{
    if (IS_ONE_OF(call, "clGetPlatformIDs", "clGetDeviceIDs"))
        return KDA_NO_DEVICE;
    if (is_memory(call) || code == CL_OUT_OF_HOST_MEMORY)
        return KDA_MEMORY;
    if (!strcmp(call, "clBuildProgram"))
        return KDA_COMPILE;
    if (code == CL_MEM_OBJECT_ALLOCATION_FAILURE)
        return KDA_MEMORY;
    return code == CL_DEVICE_NOT_AVAILABLE ? KDA_NO_DEVICE : KDA_DRIVER;
}

/* Holds an outcome to what a failed call means. */
static void check_outcome_of(const char *call, cl_int code, kda_status st)
{
    const struct log *log = &rig->log;
    ck_assert_msg(log->lines[KDA_LOG_ERROR] == (st != KDA_OK), "%s (%d): %s and %d ERROR lines: %s",
                  call, (int)code, kda_status_string(st), log->lines[KDA_LOG_ERROR], log->error);
    if (!st) {
        ck_assert_msg(log->lines[KDA_LOG_WARN] || is_harmless(call),
                      "%s (%d) failed without a word", call, (int)code);
        return;
    }
    kda_status wanted = status_of(call, code);
    /* Where it looks at buffers, CLBlast answers a failure with a code of its own. */
    if (strstr(log->error, "CLBlastSgemmStridedBatched failed: invalid matrix"))
        wanted = KDA_DRIVER;
    ck_assert_msg(st == wanted, "%s (%d): %s instead of %s: %s", call, (int)code,
                  kda_status_string(st), kda_status_string(wanted), log->error);
    ck_assert_msg(strstr(log->error, is_memory(call) ? "out of host memory" : call),
                  "%s (%d): the log says '%s'", call, (int)code, log->error);
}

/* ---- Every call in turn ----------------------------------------------------------------- */

/* A public function, and what gives back all that it made. */
struct subject {
    kda_status (*call)(struct trial *t);
    void (*clean)(struct trial *t, kda_status st); /* also sees that there are no handles if st */
};

static struct outputs valid_outputs(enum base base)
{
    struct trial t = trial_make(rig, base, false);
    trial_poison(&t);
    ck_assert_int_eq(trial_run(&t), KDA_OK);
    return trial_outputs(&t);
}

/* The lowest number of a file that is free. */
static int free_file(void)
{
    int file = dup(0);
    close(file);
    return file;
}

static void fail_each(const struct subject *subject, struct trial *t, cl_int code)
{
    const struct outputs wanted = valid_outputs(LOG);
    const char *call = "";
    for (int n = 1; call; n++) {
        const int file = free_file();
        const long held = fault_held();
        log_clear(&rig->log);
        fault_start((struct fault){.first = n, .last = n, .code = code});
        kda_status st = subject->call(t);
        call = fault_stop();
        subject->clean(t, st);
        faults += call != NULL;
        if (call)
            check_outcome_of(call, code, st);
        else
            ck_assert_msg(!st, "without a fault: %s", rig->log.error);
        ck_assert_msg(fault_held() == held, "%s, call %d: %ld things were kept", call, n,
                      fault_held() - held);
        ck_assert_msg(free_file() == file, "%s, call %d: a file was left open", call, n);
        struct outputs now = valid_outputs(LOG);
        ck_assert_msg(outputs_equal(&now, &wanted), "%s, call %d: another plan changed", call, n);
    }
}

static const cl_int codes[] = {CL_OUT_OF_RESOURCES, CL_OUT_OF_HOST_MEMORY,
                               CL_MEM_OBJECT_ALLOCATION_FAILURE, CL_DEVICE_NOT_AVAILABLE};
enum { CODES = sizeof codes / sizeof *codes };

/* Bases that a device has. */
static int bases(void)
{
    return rig->device ? BASES : FUSED;
}

/* ---- Contexts and plans ----------------------------------------------------------------- */

static kda_context *context;
static kda_plan *plan;

static kda_status create_context(struct trial *t)
{
    context = (kda_context *)t;
    return kda_context_create(&context, &t->params);
}

static void destroy_context(struct trial *t, kda_status st)
{
    (void)t;
    ck_assert(!st == !!context);
    kda_context_destroy(&context);
}

static kda_status create_plan(struct trial *t)
{
    plan = (kda_plan *)t;
    return kda_plan_create(&plan, rig->ctx, &t->problem);
}

static void destroy_plan(struct trial *t, kda_status st)
{
    (void)t;
    ck_assert(!st == !!plan);
    kda_plan_destroy(&plan);
}

/* A plan in a context that has no programs yet. */
static kda_status create_both(struct trial *t)
{
    plan = NULL;
    kda_status st = create_context(t);
    return st ? st : kda_plan_create(&plan, context, &t->problem);
}

static void destroy_both(struct trial *t, kda_status st)
{
    destroy_plan(t, st);
    kda_context_destroy(&context);
}

static const struct subject contexts = {create_context, destroy_context},
                            both = {create_both, destroy_both}, plans = {create_plan, destroy_plan};

START_TEST(test_context)
{
    struct trial t = trial_make(rig, LOG, false);
    t.params.threads = 3;
    t.params.tuned = "device=d driver=1 key_dim=1 value_dim=1 dtype=f32 chunk=16";
    fail_each(&contexts, &t, codes[_i]);
    if (!rig->device)
        return;
    t.params.context = rig->foreign; /* the caller's */
    fail_each(&contexts, &t, codes[_i]);
    t.params.context = NULL; /* any */
    t.params.device = NULL;
    fail_each(&contexts, &t, codes[_i]);
}
END_TEST

START_TEST(test_plan)
{
    for (int base = LOG; base < bases(); base++) {
        struct trial t = trial_make(rig, (enum base)base, false);
        fail_each(&plans, &t, codes[_i]);
    }
}
END_TEST

START_TEST(test_first_plan)
{
    struct trial t = trial_make(rig, rig->device ? FUSED : LOG, false);
    fail_each(&both, &t, CL_OUT_OF_RESOURCES);
}
END_TEST

/* The same with a folder of programs, which is empty each time. */
static void destroy_and_empty(struct trial *t, kda_status st)
{
    destroy_both(t, st);
    folder_leave();
    folder_enter();
}

START_TEST(test_program_folder)
{
    static const struct subject storing = {create_both, destroy_and_empty};
    struct trial t = trial_make(rig, LOG, false);
    t.params.cache_dir = ".";
    folder_enter();
    fail_each(&storing, &t, codes[_i]);
    ck_assert_int_eq(create_both(&t), KDA_OK);
    destroy_both(&t, KDA_OK);
    fail_each(&both, &t, codes[_i]); /* reads */
    folder_leave();
}
END_TEST

/* ---- Calls ------------------------------------------------------------------------------ */

static kda_status execute(struct trial *t)
{
    return kda_execute(t->plan, &t->args);
}

static void stay(struct trial *t, kda_status st)
{
    (void)t, (void)st;
}

/* A call that fails half-way leaves no event; what it had enqueued ends by itself. */
static kda_status enqueue(struct trial *t)
{
    t->event = (cl_event)t;
    return kda_enqueue(t->plan, t->queue, &t->args, 0, NULL, &t->event);
}

static void finish(struct trial *t, kda_status st)
{
    ck_assert(!st == !!t->event);
    ck_assert_int_eq(clFinish(t->queue), CL_SUCCESS);
    if (t->event)
        clReleaseEvent(t->event);
}

static const struct subject executions = {execute, stay}, enqueuing = {enqueue, finish};

/* Afterwards the same call gives what it gave before. */
static void fail_each_call(enum base base, const struct subject *subject, struct trial *t,
                           cl_int code)
{
    const struct outputs wanted = valid_outputs(base);
    fail_each(subject, t, code);
    const struct outputs now = valid_outputs(base);
    ck_assert(outputs_equal(&now, &wanted));
}

START_TEST(test_execute)
{
    for (int base = LOG; base < bases(); base++) {
        struct trial t = trial_make(rig, (enum base)base, false);
        fail_each_call((enum base)base, &executions, &t, codes[_i]);
        if (base != LOG)
            continue;
        t.args.q.token_stride = HEADS * KEY_DIM - KEY_DIM; /* rows that are gathered first */
        t.args.out.token_stride = VALUE_DIM;               /* and those that are spread at last */
        t.args.out.head_stride = TOKENS * VALUE_DIM;
        fail_each_call(LOG, &executions, &t, codes[_i]);
    }
}
END_TEST

/* In debug what the call reads back may not arrive. */
START_TEST(test_debug)
{
    static const enum base reading[] = {LOG, FULL};
    for (int i = 0; i < 2; i++) {
        struct trial t = trial_make(rig, reading[i], true);
        t.plan = rig_debug_plan(rig, reading[i]);
        fail_each_call(reading[i], &enqueuing, &t, codes[_i]);
    }
}
END_TEST

START_TEST(test_enqueue)
{
    for (int base = LOG; base < BASES; base++) {
        struct trial t = trial_make(rig, (enum base)base, true);
        fail_each_call((enum base)base, &enqueuing, &t, codes[_i]);
        cl_int err;
        t.queue = clCreateCommandQueue(kda_context_cl_context(rig->ctx), rig->device,
                                       CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &err);
        if (err)
            continue;
        fail_each_call((enum base)base, &enqueuing, &t, codes[_i]);
        clReleaseCommandQueue(t.queue);
    }
}
END_TEST

/* ---- Kernels that don't build or compute wrongly ---------------------------------------- */

/* Chunks if they work, else token by token. */
static struct trial either_schedule(void)
{
    struct trial t = trial_make(rig, LOG, false);
    t.problem.max_tokens = 4096;
    t.problem.chunk = 16;
    return t;
}

/* CLBlast's own codes, each by name: the driver's fault. Kernels that don't build have a status. */
START_TEST(test_clblast_codes)
{
    static const struct {
        cl_int code;
        const char *says;
    } own[] = {{CLBlastNotImplemented, "not implemented"},
               {CLBlastInvalidMatrixC, "invalid matrix"},
               {CLBlastInsufficientMemoryA, "buffer too small"},
               {CLBlastInvalidLocalMemUsage, "not enough local memory"},
               {CLBlastDatabaseError, "no tuning parameters"},
               {CLBlastUnexpectedError, "unexpected"},
               {CL_BUILD_PROGRAM_FAILURE, "CL_BUILD_PROGRAM_FAILURE"}};
    struct trial t = trial_make(rig, CLBLAST, true);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        log_clear(&rig->log);
        fault_start((struct fault){"CLBlastSgemmStridedBatched", 1, 1, own[i].code});
        const kda_status st = enqueue(&t);
        ck_assert(fault_stop());
        finish(&t, st);
        ck_assert_int_eq(st, own[i].code == CL_BUILD_PROGRAM_FAILURE ? KDA_COMPILE : KDA_DRIVER);
        ck_assert_int_eq(rig->log.lines[KDA_LOG_ERROR], 1);
        ck_assert_msg(strstr(rig->log.error, own[i].says), "%s", rig->log.error);
    }
}
END_TEST

static kda_status create_faulty(struct trial *t, struct fault fault)
{
    log_clear(&rig->log);
    fault_start(fault);
    kda_status st = create_both(t);
    ck_assert(fault_stop());
    return st;
}

static void check_demoted(struct trial *t, struct fault fault)
{
    char text[256];
    ck_assert_int_eq(create_faulty(t, fault), KDA_OK);
    ck_assert_int_gt(rig->log.lines[KDA_LOG_WARN], 0);
    ck_assert_int_eq(rig->log.lines[KDA_LOG_ERROR], 0);
    kda_plan_describe(plan, text, sizeof text);
    ck_assert_ptr_nonnull(strstr(text, "schedule=recurrent"));
    const struct outputs wanted = valid_outputs(LOG);
    trial_poison(t);
    ck_assert_int_eq(kda_execute(plan, &t->args), KDA_OK);
    const struct outputs got = trial_outputs(t);
    ck_assert(outputs_equal(&got, &wanted));
    destroy_both(t, KDA_OK);
}

/* Results are not read back: what the known answer looks at is wrong. */
START_TEST(test_wrong_answer)
{
    struct trial t = either_schedule();
    check_demoted(&t, (struct fault){"clEnqueueReadBuffer", 1, 2, CL_SUCCESS});
    ck_assert_int_eq(create_faulty(&t, (struct fault){"clEnqueueReadBuffer", 1, 99, CL_SUCCESS}),
                     KDA_UNSUPPORTED);
    ck_assert_int_eq(rig->log.lines[KDA_LOG_ERROR], 1);
    destroy_both(&t, KDA_UNSUPPORTED);
}
END_TEST

START_TEST(test_build_failure)
{
    struct trial t = either_schedule();
    check_demoted(&t, (struct fault){"clBuildProgram", 3, 3, CL_BUILD_PROGRAM_FAILURE});
    ck_assert_int_eq(
        create_faulty(&t, (struct fault){"clBuildProgram", 1, 99, CL_BUILD_PROGRAM_FAILURE}),
        KDA_COMPILE);
    ck_assert_int_eq(rig->log.lines[KDA_LOG_ERROR], 1);
    destroy_both(&t, KDA_UNSUPPORTED);
}
END_TEST

/* ---- The suite -------------------------------------------------------------------------- */

static int test_rig(struct rig *opened)
{
    rig = opened;
    if (rig->device && !freopen("/dev/null", "w", stderr)) /* CLBlast tells of each failure */
        return 1;
    Suite *suite = suite_create(rig->name);
    TCase *tc = tcase_create("faults");
    tcase_add_loop_test(tc, test_context, 0, CODES);
    tcase_add_loop_test(tc, test_plan, 0, CODES);
    tcase_add_test(tc, test_first_plan);
    tcase_add_loop_test(tc, test_execute, 0, CODES);
    if (rig->device) {
        tcase_add_loop_test(tc, test_program_folder, 0, CODES);
        tcase_add_loop_test(tc, test_enqueue, 0, CODES);
        tcase_add_loop_test(tc, test_debug, 0, CODES);
        tcase_add_test(tc, test_clblast_codes);
        tcase_add_test(tc, test_wrong_answer);
        tcase_add_test(tc, test_build_failure);
    }
    suite_add_tcase(suite, tc);
    int failed = runner_run(srunner_create(suite));
    printf("%d faults\n", faults);
    return failed;
}

int main(void)
{
    return for_each_rig(test_rig) ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* kda_enqueue compiles nothing, allocates nothing, reads nothing back and waits for nothing; it
 * honours wait lists, events and every kind of queue. The first is proved by link-time wrapping:
 * this program is linked to the static library with -Wl,--wrap for each function in WRAPPED, so
 * that each call which the library makes is counted here, while the driver's own calls are not.
 *
 * SPDX-License-Identifier: MIT */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "count.h"
#include "runner.h"
#include "trial.h"

static struct rig *rig;

/* Launches are what it is for. CLBlast makes kernel objects, of programs that it has built before,
 * in each of its calls. */
static bool may_call(const struct trial *t, int function)
{
    if (function == CALLS_clEnqueueNDRangeKernel)
        return true;
    return t->problem.engine == KDA_ENGINE_CLBLAST && function == CALLS_clCreateKernel;
}

/* Enqueues the trial's call and expects that no counted function was called meanwhile. */
static void enqueue_watched(struct trial *t)
{
    count_start();
    kda_status st = kda_enqueue(t->plan, t->queue, &t->args, t->num_wait, t->wait, &t->event);
    struct counts seen = count_stop();
    ck_assert_msg(st == KDA_OK, "%s: %s", kda_status_string(st), rig->log.error);
    for (int i = 0; i < COUNTED; i++)
        ck_assert_msg(!seen.calls[i] || may_call(t, i), "kda_enqueue called %s %d times",
                      count_names[i], seen.calls[i]);
}

static void finish(struct trial *t)
{
    ck_assert_int_eq(clWaitForEvents(1, &t->event), CL_SUCCESS);
    clReleaseEvent(t->event);
    t->event = NULL;
}

/* The very first call of a plan and later ones, for every base. */
START_TEST(test_nothing_is_made)
{
    struct trial t = trial_make(rig, (enum base)_i, true);
    for (int call = 0; call < 3; call++) {
        enqueue_watched(&t);
        finish(&t);
    }
    t.args.tokens = t.args.sequences;
    t.args.out.token_stride = 24;
    enqueue_watched(&t);
    finish(&t);
}
END_TEST

/* The same counters see what the library does where it may. */
START_TEST(test_counters_count)
{
    struct trial t = trial_make(rig, LOG, false);
    kda_context *ctx; /* a new one, which has no programs yet */
    kda_plan *plan;
    ck_assert_int_eq(kda_context_create(&ctx, &t.params), KDA_OK);
    count_start();
    ck_assert_int_eq(kda_plan_create(&plan, ctx, &t.problem), KDA_OK);
    struct counts made = count_stop();
    ck_assert_int_gt(made.calls[CALLS_malloc] + made.calls[CALLS_calloc], 0);
    ck_assert_int_gt(made.calls[CALLS_clCreateProgramWithSource], 0);
    ck_assert_int_gt(made.calls[CALLS_clBuildProgram], 0);
    ck_assert_int_gt(made.calls[CALLS_clCreateKernel], 0);
    count_start();
    ck_assert_int_eq(kda_execute(plan, &t.args), KDA_OK);
    struct counts run = count_stop();
    ck_assert_int_gt(run.calls[CALLS_clCreateBuffer], 0);
    ck_assert_int_gt(run.calls[CALLS_clEnqueueReadBuffer] +
                         run.calls[CALLS_clEnqueueReadBufferRect] +
                         run.calls[CALLS_clEnqueueMapBuffer],
                     0);
    kda_plan_destroy(&plan);
    kda_context_destroy(&ctx);
}
END_TEST

static int launches_of(struct trial *t)
{
    count_start();
    kda_status st = kda_enqueue(t->plan, t->queue, &t->args, 0, NULL, &t->event);
    struct counts seen = count_stop();
    ck_assert_msg(st == KDA_OK, "%s: %s", kda_status_string(st), rig->log.error);
    finish(t);
    return seen.calls[CALLS_clEnqueueNDRangeKernel];
}

struct launches {
    int count, finished;
    char names[256];
};

static void note_launch(void *data, const char *kernel, cl_event event)
{
    struct launches *l = data;
    cl_int status = CL_COMPLETE - 1;
    clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL);
    l->count++;
    l->finished += status >= CL_COMPLETE; /* an event, and no error */
    if (!strstr(l->names, kernel))
        strncat(l->names, kernel, sizeof l->names - strlen(l->names) - 1);
}

/* Every launch is told of, with a name and an event. */
START_TEST(test_launches_are_told_of)
{
    struct trial t = trial_make(rig, LOG, false);
    struct launches told = {0};
    kda_context *ctx;
    kda_plan *plan;
    t.params.on_launch = note_launch;
    t.params.launch_data = &told;
    t.problem.schedule = KDA_SCHEDULE_CHUNKWISE;
    ck_assert_int_eq(kda_context_create(&ctx, &t.params), KDA_OK);
    ck_assert_int_eq(kda_plan_create(&plan, ctx, &t.problem), KDA_OK);
    told = (struct launches){0};
    count_start();
    ck_assert_int_eq(kda_execute(plan, &t.args), KDA_OK);
    struct counts seen = count_stop();
    ck_assert_int_eq(told.count, seen.calls[CALLS_clEnqueueNDRangeKernel]);
    ck_assert_int_eq(told.finished, told.count);
    ck_assert_str_eq(told.names, "kda_preparekda_scan");
    kda_plan_destroy(&plan);
    kda_context_destroy(&ctx);
}
END_TEST

/* Sequences that the host knows to be short never pay for a plan's chunks. */
START_TEST(test_short_sequences_take_one_launch)
{
    enum { MANY = 300, BYTES = MANY * VALUE_HEADS * KEY_DIM * sizeof(float) };
    struct trial t = trial_make(rig, LOG, true);
    t.problem.max_tokens = MANY;
    ck_assert_int_eq(kda_plan_create(&t.plan, rig->ctx, &t.problem), KDA_OK);
    const size_t bytes = kda_plan_workspace(t.plan);
    ck_assert_uint_gt(bytes, 0); /* it has chunks */
    cl_context context = kda_context_cl_context(rig->ctx);
    static const float zero[BYTES / sizeof(float)];
    cl_int code;
    cl_mem in =
        clCreateBuffer(context, CL_MEM_COPY_HOST_PTR, BYTES, (void *)(uintptr_t)zero, &code);
    cl_mem out = clCreateBuffer(context, CL_MEM_READ_WRITE, BYTES, NULL, &code);
    cl_mem workspace = clCreateBuffer(context, CL_MEM_READ_WRITE, bytes, NULL, &code);
    ck_assert(in && out && workspace);
    t.args.tokens = MANY;
    t.args.q.mem = t.args.k.mem = t.args.v.mem = t.args.g.mem = t.args.beta.mem = in;
    t.args.out.mem = out;
    t.args.workspace.mem = workspace;
    t.args.workspace.size = bytes;
    ck_assert_int_gt(launches_of(&t), 1);
    t.args.cu_seqlens = trial_tensor(&t, CU_SEQLENS);
    ck_assert_int_gt(launches_of(&t), 1);
    t.args.max_length = TOKENS / SEQUENCES;
    ck_assert_int_eq(launches_of(&t), 1);
    t.args.cu_seqlens = (kda_input){0};
    t.args.tokens = TOKENS;
    ck_assert_int_eq(launches_of(&t), 1);
    clReleaseMemObject(in);
    clReleaseMemObject(out);
    clReleaseMemObject(workspace);
    kda_plan_destroy(&t.plan);
}
END_TEST

static size_t width_of(struct trial *t, int64_t sequences)
{
    t->args.tokens = t->args.sequences = sequences;
    count_start();
    kda_status st = kda_enqueue(t->plan, t->queue, &t->args, 0, NULL, &t->event);
    struct counts seen = count_stop();
    ck_assert_msg(st == KDA_OK, "%s: %s", kda_status_string(st), rig->log.error);
    finish(t);
    return seen.width;
}

/* What PoCL compiles anew for, during the call: GROUP_DIM in cl/common.cl. */
START_TEST(test_larger_calls_are_not_wider)
{
    cl_device_type type = 0;
    struct trial t = trial_make(rig, (enum base)_i, true);
    clGetDeviceInfo(rig->device, CL_DEVICE_TYPE, sizeof type, &type, NULL);
    const size_t width = width_of(&t, 1);
    ck_assert_uint_gt(width, 0);
    if (type & CL_DEVICE_TYPE_CPU)
        ck_assert_uint_eq(width_of(&t, SEQUENCES), width);
}
END_TEST

/* Of a kernel that does, PoCL confuses a launch with its binary: WORK_GROUP in cl/tile.cl. Another
 * thread that stores programs would end the process. */
START_TEST(test_kernels_declare_no_size)
{
    char version[128] = "";
    struct trial t = trial_make(rig, (enum base)_i, true);
    clGetDeviceInfo(rig->device, CL_DEVICE_VERSION, sizeof version, version, NULL);
    count_start();
    ck_assert_int_eq(trial_run(&t), KDA_OK);
    struct counts seen = count_stop();
    ck_assert_int_gt(seen.calls[CALLS_clEnqueueNDRangeKernel], 0);
    if (strstr(version, "PoCL"))
        ck_assert_int_eq(seen.sized, 0);
}
END_TEST

static cl_int status_of(cl_event event)
{
    cl_int status = CL_COMPLETE;
    ck_assert_int_eq(
        clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL),
        CL_SUCCESS);
    return status;
}

/* Enqueues behind an event that nobody has set yet: the call returns, and nothing runs. */
static void check_wait_list(struct trial t)
{
    trial_poison(&t);
    ck_assert_int_eq(trial_run(&t), KDA_OK);
    struct outputs wanted = trial_outputs(&t);
    trial_poison(&t);
    cl_int code;
    cl_context context = kda_context_cl_context(rig->ctx);
    cl_event go = clCreateUserEvent(context, &code);
    ck_assert_int_eq(code, CL_SUCCESS);
    t.queue = clCreateCommandQueue(context, rig->device, 0, &code);
    ck_assert_int_eq(code, CL_SUCCESS);
    t.num_wait = 1;
    t.wait = &go;
    enqueue_watched(&t);
    clFlush(t.queue);
    struct outputs pending = trial_outputs(&t); /* through another queue */
    ck_assert(outputs_untouched(&pending));
    ck_assert_int_ne(status_of(t.event), CL_COMPLETE);
    clSetUserEventStatus(go, CL_COMPLETE);
    finish(&t);
    struct outputs got = trial_outputs(&t);
    ck_assert(outputs_equal(&got, &wanted));
    clReleaseEvent(go);
    clReleaseCommandQueue(t.queue);
}

START_TEST(test_wait_list)
{
    check_wait_list(trial_make(rig, (enum base)_i, true));
}
END_TEST

/* Nothing to compute is no reason to finish early: states are copied, or only the event waits. */
START_TEST(test_wait_list_without_tokens)
{
    struct trial t = trial_make(rig, LOG, true);
    t.args.tokens = 0;
    check_wait_list(t);
    t.args.final_state = (kda_output){0};
    check_wait_list(t);
}
END_TEST

/* A call that goes on where the one before stopped, in the same state buffer. */
static struct trial make_link(enum base base, cl_command_queue queue, const cl_event *wait)
{
    struct trial t = trial_make(rig, base, true);
    t.args.initial_state = trial_tensor(&t, FINAL_STATE);
    t.queue = queue;
    t.num_wait = wait ? 1 : 0;
    t.wait = wait;
    return t;
}

static void zero_states(void)
{
    unsigned char zero[sizeof(struct outputs)] = {0};
    ck_assert_int_eq(clEnqueueWriteBuffer(rig->queue, rig->mem[FINAL_STATE], CL_TRUE, 0,
                                          views[FINAL_STATE].bytes, zero, 0, NULL, NULL),
                     CL_SUCCESS);
}

enum { LINKS = 4 };

/* Without events an in-order queue keeps the order. */
static struct outputs chain_in_order(enum base base)
{
    zero_states();
    struct trial t = make_link(base, rig->queue, NULL);
    for (int i = 0; i < LINKS; i++)
        ck_assert_int_eq(kda_enqueue(t.plan, t.queue, &t.args, 0, NULL, NULL), KDA_OK);
    ck_assert_int_eq(clFinish(rig->queue), CL_SUCCESS);
    return trial_outputs(&t);
}

START_TEST(test_in_order)
{
    enum base base = (enum base)_i;
    struct outputs chained = chain_in_order(base);
    zero_states();
    struct trial t = make_link(base, rig->queue, NULL);
    for (int i = 0; i < LINKS; i++)
        ck_assert_int_eq(trial_run(&t), KDA_OK);
    struct outputs one_by_one = trial_outputs(&t);
    ck_assert(outputs_equal(&chained, &one_by_one));
}
END_TEST

/* On an out-of-order queue only events keep the order: each link waits for the one before, and the
 * first for a user event, so that all are in the queue before any runs. */
START_TEST(test_out_of_order)
{
    enum base base = (enum base)_i;
    struct outputs wanted = chain_in_order(base);
    zero_states();
    cl_int code;
    cl_context context = kda_context_cl_context(rig->ctx);
    cl_command_queue queue =
        clCreateCommandQueue(context, rig->device, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &code);
    ck_assert_int_eq(code, CL_SUCCESS);
    cl_event events[LINKS + 1] = {clCreateUserEvent(context, &code)};
    struct trial t;
    for (int i = 0; i < LINKS; i++) {
        t = make_link(base, queue, &events[i]);
        enqueue_watched(&t);
        events[i + 1] = t.event;
    }
    clSetUserEventStatus(events[0], CL_COMPLETE);
    ck_assert_int_eq(clWaitForEvents(1, &events[LINKS]), CL_SUCCESS);
    struct outputs got = trial_outputs(&t);
    ck_assert(outputs_equal(&got, &wanted));
    for (int i = 0; i <= LINKS; i++)
        clReleaseEvent(events[i]);
    clReleaseCommandQueue(queue);
}
END_TEST

/* One plan, several threads, each with its own queue, v, out and workspace. */
enum { WORKERS = 4, ROUNDS = 200, OUT_BYTES = TOKENS * VALUE_HEADS * VALUE_DIM * sizeof(float) };

struct worker {
    pthread_t thread;
    struct trial t;
    cl_mem v, out, workspace;
    unsigned char wanted[OUT_BYTES];
    int failures;
};

/* Runs the worker's call and fetches what it wrote. */
static bool worker_run(struct worker *w, unsigned char *got)
{
    cl_event done;
    if (kda_enqueue(w->t.plan, w->t.queue, &w->t.args, 0, NULL, &done))
        return false;
    cl_int code =
        clEnqueueReadBuffer(w->t.queue, w->out, CL_TRUE, 0, OUT_BYTES, got, 1, &done, NULL);
    clReleaseEvent(done);
    return code == CL_SUCCESS;
}

static void worker_open(struct worker *w, enum base base, int number)
{
    float v[OUT_BYTES / sizeof(float)];
    cl_int code;
    cl_context context = kda_context_cl_context(rig->ctx);
    for (size_t i = 0; i < OUT_BYTES / sizeof *v; i++)
        v[i] = (float)(number + 1);
    memset(w, 0, sizeof *w);
    w->t = trial_make(rig, base, true);
    w->t.queue = clCreateCommandQueue(context, rig->device, 0, &code);
    w->v = clCreateBuffer(context, CL_MEM_COPY_HOST_PTR, sizeof v, v, &code);
    w->out = clCreateBuffer(context, CL_MEM_READ_WRITE, OUT_BYTES, NULL, &code);
    if (w->t.args.workspace.mem)
        w->workspace =
            clCreateBuffer(context, CL_MEM_READ_WRITE, w->t.args.workspace.size, NULL, &code);
    ck_assert(w->t.queue && w->v && w->out && !w->workspace == !w->t.args.workspace.mem);
    w->t.args.v.mem = w->v;
    w->t.args.out.mem = w->out;
    w->t.args.workspace.mem = w->workspace;
    w->t.args.final_state = (kda_output){0};
    ck_assert(worker_run(w, w->wanted));
}

static void *work(void *arg)
{
    struct worker *w = arg;
    unsigned char got[OUT_BYTES];
    for (int i = 0; i < ROUNDS; i++)
        w->failures += !worker_run(w, got) || memcmp(got, w->wanted, OUT_BYTES);
    return NULL;
}

START_TEST(test_queues_of_threads)
{
    static struct worker workers[WORKERS];
    for (int i = 0; i < WORKERS; i++)
        worker_open(&workers[i], (enum base)_i, i);
    ck_assert(memcmp(workers[0].wanted, workers[1].wanted, OUT_BYTES));
    for (int i = 0; i < WORKERS; i++)
        ck_assert_int_eq(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    for (int i = 0; i < WORKERS; i++)
        pthread_join(workers[i].thread, NULL);
    for (int i = 0; i < WORKERS; i++) {
        ck_assert_int_eq(workers[i].failures, 0);
        clReleaseMemObject(workers[i].v);
        clReleaseMemObject(workers[i].out);
        if (workers[i].workspace)
            clReleaseMemObject(workers[i].workspace);
        clReleaseCommandQueue(workers[i].t.queue);
    }
}
END_TEST

static bool has_out_of_order_queues(void)
{
    cl_command_queue_properties can = 0;
    clGetDeviceInfo(rig->device, CL_DEVICE_QUEUE_PROPERTIES, sizeof can, &can, NULL);
    return can & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE;
}

static int opencl_devices;

static int test_device(struct rig *opened)
{
    rig = opened;
    if (!rig->device)
        return 0;
    opencl_devices++;
    Suite *suite = suite_create(rig->name);
    TCase *tc = tcase_create("enqueue");
    tcase_add_loop_test(tc, test_nothing_is_made, 0, BASES);
    tcase_add_test(tc, test_counters_count);
    tcase_add_test(tc, test_launches_are_told_of);
    tcase_add_test(tc, test_short_sequences_take_one_launch);
    tcase_add_loop_test(tc, test_larger_calls_are_not_wider, LOG, LOG + 1);
    tcase_add_loop_test(tc, test_larger_calls_are_not_wider, FUSED, FUSED + 1);
    tcase_add_loop_test(tc, test_kernels_declare_no_size, LOG, BASES);
    tcase_add_loop_test(tc, test_wait_list, 0, BASES);
    tcase_add_test(tc, test_wait_list_without_tokens);
    tcase_add_loop_test(tc, test_in_order, 0, BASES);
    tcase_add_loop_test(tc, test_queues_of_threads, LOG, LOG + 1);
    tcase_add_loop_test(tc, test_queues_of_threads, FUSED, FUSED + 1);
    if (has_out_of_order_queues())
        tcase_add_loop_test(tc, test_out_of_order, 0, BASES);
    suite_add_tcase(suite, tc);
    return runner_run(srunner_create(suite));
}

/* 77 is meson's "skipped": there was no device with queues. */
int main(void)
{
    int failed = for_each_rig(test_device);
    return failed ? EXIT_FAILURE : opencl_devices ? EXIT_SUCCESS : 77;
}

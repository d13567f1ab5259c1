/* One problem on one device. The result is checked before anything is timed, with the plan, the
 * memory and the call that are timed afterwards; only warm calls count.
 *
 * Times are of calls one after another on the same tensors, so a problem that fits a cache finds
 * its inputs there: for such problems GB/s may exceed what a copy reaches. On OpenCL a call's time
 * is the device's alone, by events. Sequences that go token by token take one kernel, whose event
 * kda_enqueue returns; a call that launches several, one with a longer sequence that is, is timed
 * from the end of an empty kernel ahead of it, which adds the gap to its first launch. Where a
 * driver's event times are useless, each call is waited for and the clock read. An event's time is
 * launch overhead too, which differs from run to run: of calls that are one launch, an empty
 * kernel's is taken in turns with theirs, as often.
 *
 * SPDX-License-Identifier: MIT */
#include "bench.h"
#include "machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A problem's call, ready to be made again and again. */
struct call {
    struct bench *b;
    struct workload w;
    kda_plan *plan;
    kda_args args;
    cl_mem mem[WORKLOAD_TENSORS];
    cl_mem workspace;
    bool several; /* launches */
};

static bool fail(struct bench *b, kda_status status, const char *why)
{
    b->failure.status = status;
    if (why)
        snprintf(b->failure.why, sizeof b->failure.why, "%s", why);
    return false;
}

static bool library(struct bench *b, kda_status status)
{
    return status == KDA_OK || fail(b, status, NULL);
}

static bool make_buffer(struct call *call, size_t bytes, void *contents, cl_mem *mem)
{
    cl_int code;
    *mem = clCreateBuffer(kda_context_cl_context(call->b->ctx),
                          CL_MEM_READ_WRITE | (contents ? CL_MEM_COPY_HOST_PTR : 0), bytes,
                          contents, &code);
    return bench_cl(call->b, code, "clCreateBuffer");
}

static bool call_upload(struct call *call)
{
    for (int t = 0; t < WORKLOAD_TENSORS; ++t)
        if (call->w.data[t] && !make_buffer(call, call->w.bytes[t], call->w.data[t], &call->mem[t]))
            return false;
    call->args = workload_args(&call->w, call->mem);
    size_t bytes = kda_plan_workspace(call->plan);
    if (bytes && !make_buffer(call, bytes, NULL, &call->workspace))
        return false;
    call->args.workspace.mem = call->workspace;
    call->args.workspace.size = bytes;
    return true;
}

static bool call_prepare(struct call *call, const struct problem *problem)
{
    if (!workload_create(&call->w, problem, BENCH_SEED))
        return fail(call->b, KDA_MEMORY, "the tensors do not fit the host's memory");
    call->args = workload_args(&call->w, NULL);
    return !call->b->queue || call_upload(call);
}

static void call_close(struct call *call)
{
    for (int t = 0; t < WORKLOAD_TENSORS; ++t)
        if (call->mem[t])
            clReleaseMemObject(call->mem[t]);
    if (call->workspace)
        clReleaseMemObject(call->workspace);
    workload_free(&call->w);
    kda_plan_destroy(&call->plan);
}

/* One call whose outputs are brought to the host and compared. */
static bool call_check(struct call *call, struct workload_check *check)
{
    struct bench *b = call->b;
    if (b->queue) {
        if (!library(b, kda_enqueue(call->plan, b->queue, &call->args, 0, NULL, NULL)))
            return false;
        for (int t = WORKLOAD_FINAL_STATE; t <= WORKLOAD_OUT; ++t)
            if (call->mem[t] &&
                !bench_cl(b,
                          clEnqueueReadBuffer(b->queue, call->mem[t], CL_TRUE, 0, call->w.bytes[t],
                                              call->w.data[t], 0, NULL, NULL),
                          "clEnqueueReadBuffer"))
                return false;
    } else if (!library(b, kda_execute(call->plan, &call->args))) {
        return false;
    }
    return workload_compare(&call->w, check) ||
           fail(b, KDA_MEMORY, "comparing with the oracle does not fit the host's memory");
}

static bool time_host(struct call *call, const struct bench_effort *effort,
                      struct bench_samples *calls)
{
    double since = machine_seconds();
    while (!bench_enough(calls, effort, since)) {
        double start = machine_seconds();
        if (!library(call->b, kda_execute(call->plan, &call->args)))
            return false;
        bench_sample(calls, machine_seconds() - start);
    }
    return true;
}

/* One call, with an event before it if it has several launches. */
static bool enqueue_timed(struct call *call, cl_event *before, cl_event *last, double *seconds)
{
    struct bench *b = call->b;
    size_t one = 1;
    *before = NULL;
    if (call->several && b->empty &&
        !bench_cl(b,
                  clEnqueueNDRangeKernel(b->queue, b->empty, 1, NULL, &one, NULL, 0, NULL, before),
                  "clEnqueueNDRangeKernel"))
        return false;
    double start = machine_seconds();
    bool fine = library(b, kda_enqueue(call->plan, b->queue, &call->args, 0, NULL, last));
    *seconds = machine_seconds() - start;
    if (!fine && *before)
        clReleaseEvent(*before);
    return fine;
}

/* The samples of each time. */
struct samples {
    struct bench_samples calls, enqueues, empties, empty_enqueues;
};

/* Calls enqueued one behind another, so that the device has no reason to rest between them. */
static bool time_batch(struct call *call, int batch, struct samples *samples)
{
    struct bench *b = call->b;
    cl_event before[BENCH_IN_FLIGHT], last[BENCH_IN_FLIGHT];
    int made = 0;
    bool fine = true;
    double since = machine_seconds(), host;
    for (; fine && made < batch; made += fine) {
        fine = enqueue_timed(call, &before[made], &last[made], &host);
        if (fine)
            bench_sample(&samples->enqueues, host);
    }
    fine = bench_cl(b, clFinish(b->queue), "clFinish") && fine;
    double clock = (machine_seconds() - since) / batch;
    for (int i = 0; i < made; ++i) {
        double device = bench_event_seconds(before[i], last[i]);
        bench_sample(&samples->calls, b->by_clock ? clock : device);
    }
    return fine;
}

/* Leaves none. */
static void summarise(struct samples *samples, struct bench_result *result)
{
    result->call = bench_summary(&samples->calls);
    result->enqueue = bench_summary(&samples->enqueues);
    result->empty = bench_summary(&samples->empties);
    bench_summary(&samples->empty_enqueues);
}

static bool time_device(struct call *call, const struct bench_effort *effort,
                        struct samples *samples)
{
    const bool empties = call->b->empty && !call->several;
    double since = machine_seconds();
    int batch = 1;
    while (!bench_enough(&samples->calls, effort, since)) {
        double start = machine_seconds();
        int64_t left =
            effort->repeat ? effort->repeat - (int64_t)samples->calls.count : BENCH_IN_FLIGHT;
        int count = left < batch ? (int)left : batch;
        if (!time_batch(call, count, samples))
            return false;
        if (machine_seconds() - start < 0.01 && batch < BENCH_IN_FLIGHT && !call->b->by_clock)
            batch *= 2;
        if (empties && !bench_empties(call->b, count, &samples->empties, &samples->empty_enqueues))
            return false;
    }
    return true;
}

static bool call_time(struct call *call, const struct bench_effort *effort,
                      struct bench_result *result)
{
    static const struct bench_effort once = {.repeat = 1};
    struct samples samples = {0};
    bool fine = true;
    for (int warm = 0; fine && warm < 2; ++warm) {
        summarise(&samples, result);
        fine = call->b->queue ? time_device(call, warm ? effort : &once, &samples)
                              : time_host(call, warm ? effort : &once, &samples.calls);
    }
    summarise(&samples, result);
    return fine;
}

/* All of bench_run that can fail. */
static bool measure(struct call *call, const struct problem *problem,
                    const struct bench_effort *effort, struct bench_result *result)
{
    char text[80];
    problem_print(problem, text, sizeof text);
    bench_progress(text, "making the plan");
    double start = machine_seconds();
    if (!library(call->b, kda_plan_create(&call->plan, call->b->ctx, &problem->shape)))
        return false;
    result->plan_s = machine_seconds() - start;
    kda_plan_describe(call->plan, result->plan, sizeof result->plan);
    call->several = bench_has_chunks(problem, result->plan);
    bench_progress(text, "making the tensors");
    if (!call_prepare(call, problem))
        return false;
    bench_progress(text, "checking");
    if (!call_check(call, &result->check))
        return false;
    bench_progress(text, "timing");
    return call_time(call, effort, result) &&
           (!call->b->kernels || !call->b->queue ||
            bench_kernels(call->b, problem, call->plan, &call->args, result));
}

void bench_run(struct bench *b, const struct problem *problem, const struct bench_effort *effort,
               struct bench_result *result)
{
    struct call call = {.b = b};
    *result = (struct bench_result){0};
    b->failure = (struct failure){0};
    if (!measure(&call, problem, effort, result))
        result->failure = b->failure;
    call_close(&call);
    bench_progress("", "");
}

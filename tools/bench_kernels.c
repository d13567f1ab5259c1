/* What each kernel of a call takes: the library tells of its launches, their events of their times,
 * bench_work.c of what it is for.
 *
 * SPDX-License-Identifier: MIT */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

/* Calls that are looked at, of which the median is taken. */
enum { CALLS = 9 };

/* The launches of one call. A long call in pieces has many; what does not fit is lost, and then no
 * kernel is told of. */
enum { MOST_LAUNCHES = 8192 };
struct kernel_log {
    size_t count;
    struct {
        char name[32];
        cl_event event;
    } launch[MOST_LAUNCHES];
};

void bench_on_launch(void *data, const char *kernel, cl_event event)
{
    struct kernel_log *log = ((struct bench *)data)->log;
    if (!log || log->count++ >= MOST_LAUNCHES)
        return;
    clRetainEvent(event);
    log->launch[log->count - 1].event = event;
    strncpy(log->launch[log->count - 1].name, kernel, sizeof log->launch->name - 1);
}

/* The kernel of a name, made if there is none yet; NULL: there are too many. */
static struct bench_kernel *kernel_of(struct bench_result *result, const char *name)
{
    for (size_t i = 0; i < result->kernels; ++i)
        if (!strcmp(result->kernel[i].name, name))
            return &result->kernel[i];
    if (result->kernels == BENCH_KERNELS)
        return NULL;
    struct bench_kernel *kernel = &result->kernel[result->kernels++];
    strncpy(kernel->name, name, sizeof kernel->name - 1);
    return kernel;
}

/* Adds up a call's launches by kernel. */
static void add_up(const struct kernel_log *log, struct bench_result *result, double *seconds)
{
    for (size_t i = 0; i < log->count && i < MOST_LAUNCHES; ++i) {
        struct bench_kernel *kernel = kernel_of(result, log->launch[i].name);
        double taken = bench_event_seconds(NULL, log->launch[i].event);
        if (!kernel)
            continue;
        ++kernel->launches;
        seconds[kernel - result->kernel] += taken;
    }
}

static void clear(struct kernel_log *log, struct bench_result *result)
{
    memset(log, 0, sizeof *log);
    for (size_t i = 0; i < result->kernels; ++i)
        result->kernel[i].launches = 0;
}

bool bench_kernels(struct bench *b, const struct problem *problem, kda_plan *plan,
                   const kda_args *args, struct bench_result *result)
{
    double seconds[CALLS][BENCH_KERNELS] = {{0}};
    struct kernel_log *log = malloc(sizeof *log);
    bool fine = log, whole = true;
    for (int call = 0; fine && call < CALLS; ++call) {
        clear(log, result);
        b->log = log;
        kda_status status = kda_enqueue(plan, b->queue, args, 0, NULL, NULL);
        b->log = NULL;
        fine = bench_cl(b, clFinish(b->queue), "clFinish") && !status;
        add_up(log, result, seconds[call]);
        whole = whole && log->count <= MOST_LAUNCHES;
    }
    free(log);
    for (size_t i = 0; i < result->kernels; ++i) {
        struct bench_samples samples = {0};
        for (int call = 0; call < CALLS; ++call)
            bench_sample(&samples, seconds[call][i]);
        result->kernel[i].seconds = bench_summary(&samples).median;
        result->kernel[i].work = bench_work(problem, result->plan, result->kernel[i].name);
    }
    result->kernels = whole ? result->kernels : 0;
    return fine;
}

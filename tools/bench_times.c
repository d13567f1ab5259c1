/* Samples of a time, and what is said of them: median and the tenths at both ends, which one slow
 * call in a hundred doesn't move.
 *
 * SPDX-License-Identifier: MIT */
#include "bench.h"
#include "machine.h"

#include <stdlib.h>

enum { LEAST_CALLS = 3, MOST_CALLS = 10000 };

/* A sample without memory to keep it is dropped. */
void bench_sample(struct bench_samples *samples, double seconds)
{
    if (samples->count == samples->room) {
        size_t room = samples->room ? 2 * samples->room : 64;
        double *grown = realloc(samples->seconds, room * sizeof *grown);
        if (!grown)
            return;
        samples->seconds = grown;
        samples->room = room;
    }
    samples->seconds[samples->count++] = seconds;
}

bool bench_enough(const struct bench_samples *samples, const struct bench_effort *effort,
                  double since)
{
    if (effort->repeat)
        return samples->count >= (size_t)effort->repeat;
    return samples->count >= MOST_CALLS ||
           (samples->count >= LEAST_CALLS && machine_seconds() - since >= effort->seconds);
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The sample with a part of all samples below it. */
static double quantile(const struct bench_samples *samples, double part)
{
    return samples->count ? samples->seconds[(size_t)(part * (double)(samples->count - 1) + 0.5)]
                          : 0;
}

struct bench_times bench_summary(struct bench_samples *samples)
{
    if (samples->count)
        qsort(samples->seconds, samples->count, sizeof *samples->seconds, compare_doubles);
    struct bench_times times = {quantile(samples, 0.5), quantile(samples, 0.1),
                                quantile(samples, 0.9), samples->count};
    free(samples->seconds);
    *samples = (struct bench_samples){0};
    return times;
}

static cl_ulong event_time(cl_event event, cl_profiling_info what)
{
    cl_ulong ns = 0;
    clGetEventProfilingInfo(event, what, sizeof ns, &ns, NULL);
    return ns;
}

double bench_event_seconds(cl_event before, cl_event last)
{
    cl_ulong start = before ? event_time(before, CL_PROFILING_COMMAND_END)
                            : event_time(last, CL_PROFILING_COMMAND_START);
    cl_ulong end = event_time(last, CL_PROFILING_COMMAND_END);
    if (before)
        clReleaseEvent(before);
    clReleaseEvent(last);
    return 1e-9 * (double)(end - start);
}

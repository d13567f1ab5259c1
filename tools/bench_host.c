/* The limits of the processor: all threads copy, or multiply and add, at once.
 *
 * SPDX-License-Identifier: MIT */
#include "bench_host.h"
#include "machine.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Beyond the caches; a few milliseconds of multiply-adds. */
enum { COPY_BYTES = 256 << 20, ROUNDS = 1 << 20 };
enum { RUNS = 9, MOST_THREADS = 256 };

/* One thread's part. */
struct part {
    pthread_t thread;
    bool started;
    void (*work)(struct part *part);
    char *to;
    const char *from;
    size_t bytes;
    double (*peak)(int64_t rounds, float x);
    double flops;
};

static void copy_part(struct part *part)
{
    memcpy(part->to, part->from, part->bytes);
}

static void multiply_part(struct part *part)
{
    part->flops = part->peak(ROUNDS, 0.5f);
}

static void *work(void *data)
{
    struct part *part = data;
    part->work(part);
    return NULL;
}

/* Seconds until all parts are done; one that does not start is left to this thread. */
static double run_parts(struct part *parts, int threads)
{
    double start = machine_seconds();
    for (int i = 1; i < threads; ++i)
        parts[i].started = !pthread_create(&parts[i].thread, NULL, work, &parts[i]);
    for (int i = 0; i < threads; ++i)
        if (!parts[i].started)
            work(&parts[i]);
    for (int i = 1; i < threads; ++i)
        if (parts[i].started)
            pthread_join(parts[i].thread, NULL);
    return machine_seconds() - start;
}

/* The best of warm runs: a limit is what the machine can do, whatever else it does meanwhile. */
static double time_parts(struct part *parts, int threads)
{
    double best = run_parts(parts, threads);
    for (int run = 0; run < RUNS; ++run) {
        const double seconds = run_parts(parts, threads);
        best = seconds < best ? seconds : best;
    }
    return best;
}

static int clamp(int threads)
{
    return threads < 1 ? 1 : threads > MOST_THREADS ? MOST_THREADS : threads;
}

double bench_host_copy(int threads)
{
    struct part parts[MOST_THREADS] = {0};
    threads = clamp(threads);
    char *from = malloc(COPY_BYTES), *to = malloc(COPY_BYTES);
    double rate = 0;
    if (from && to) {
        memset(from, 1, COPY_BYTES);
        const size_t share = (size_t)COPY_BYTES / (size_t)threads;
        for (int i = 0; i < threads; ++i)
            parts[i] = (struct part){.work = copy_part,
                                     .to = to + share * (size_t)i,
                                     .from = from + share * (size_t)i,
                                     .bytes = share};
        rate = 2 * (double)share * threads / time_parts(parts, threads);
    }
    free(from);
    free(to);
    return rate;
}

double bench_host_flops(int threads, int bits)
{
    struct part parts[MOST_THREADS] = {0};
    threads = clamp(threads);
    for (int i = 0; i < threads; ++i) {
        parts[i] = (struct part){.work = multiply_part, .peak = bench_peak_16};
#ifdef KDA_WIDE_LEVELS
        if (bits >= 256)
            parts[i].peak = bits >= 512 ? bench_peak_64 : bench_peak_32;
#endif
    }
    (void)bits;
    const double seconds = time_parts(parts, threads);
    return parts[0].flops * threads / seconds;
}

/* What the processor can do at best, on so many threads.
 *
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_HOST_H
#define BENCH_HOST_H

#include <stdint.h>

/* Bytes read plus bytes written each second by a large copy; 0: memory does not suffice. */
double bench_host_copy(int threads);

/* Operations each second of f32 multiply-adds, two each, in vectors of so many bits. */
double bench_host_flops(int threads, int bits);

/* bench_peak.c: so many rounds of multiply-adds with a factor near 0.5; returns the operations. */
double bench_peak_16(int64_t rounds, float x);
double bench_peak_32(int64_t rounds, float x);
double bench_peak_64(int64_t rounds, float x);

#endif

/* Multiply-adds at the processor's peak, in vectors of KDA_VECTOR_BYTES: the build compiles this
 * file once for each length that the library has, as bench_peak_16, bench_peak_32, bench_peak_64.
 *
 * SPDX-License-Identifier: MIT */
#include "bench_host.h"
#include "vector.h"

#define NAME_OF(bytes) bench_peak_##bytes
#define NAME(bytes) NAME_OF(bytes)

/* Sums that need not wait for each other, as many as 16 registers hold beside the factors. */
enum { SUMS = 12 };

double NAME(KDA_VECTOR_BYTES)(int64_t rounds, float x)
{
    vf sums[SUMS];
    for (int i = 0; i < SUMS; ++i)
        sums[i] = all(x * (float)i);
    for (int64_t round = 0; round < rounds; ++round)
        for (int i = 0; i < SUMS; ++i)
            sums[i] = madd(sums[i], all(x), all(x));
    for (int i = 1; i < SUMS; ++i)
        sums[0] += sums[i];
    return sum(sums[0]) > 1e30f ? 0 : (double)rounds * SUMS * W * 2;
}

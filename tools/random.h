/* Random numbers by counter: number i of a seed is a hash of both, so that tensors can be filled in
 * any order and a seed means the same data on every machine.
 *
 * SPDX-License-Identifier: MIT */
#ifndef RANDOM_H
#define RANDOM_H

#include <stdint.h>

/* 64 random bits: the output function of splitmix64, applied to its i-th state. */
static inline uint64_t random_bits(uint64_t seed, uint64_t i)
{
    uint64_t x = seed + (i + 1) * UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* In [0, 1). */
static inline float random_uniform(uint64_t seed, uint64_t i)
{
    return (float)(random_bits(seed, i) >> 40) * 0x1p-24f;
}

/* Mean 0, variance 1, near enough normal: the sum of four uniforms of 16 bits each, which have mean
 * (2^16 - 1) / 2 and variance 2^32 / 12 (less a part in 2^32), scaled by sqrt(3) / 2^16. Within
 * +-3.47. */
static inline float random_normal(uint64_t seed, uint64_t i)
{
    uint64_t x = random_bits(seed, i);
    int sum = (int)((x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48));
    return (float)(sum - 2 * 0xffff) * (1.7320508f / 65536);
}

#endif

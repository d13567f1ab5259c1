/* Numbers as they lie in memory, for programs around the library: each storage type widened to
 * double, and a float narrowed to it, to nearest even. The library's own conversions are not used,
 * so that what checks the library does not repeat its mistakes. A type is a kda_dtype or
 * NUMBER_F64.
 *
 * SPDX-License-Identifier: MIT */
#ifndef NUMBERS_H
#define NUMBERS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kda.h"

enum { NUMBER_F64 = 64 }; /* not a type of the library's */

static inline size_t number_size(int type)
{
    return type == NUMBER_F64 ? 8 : type == KDA_F32 ? 4 : 2;
}

/* Exponent and mantissa moved to where a float has them read as the value divided by 2^112, the
 * difference of the exponents' biases, subnormals included; only infinities and NaNs are lost. */
static inline float f16_to_f32(uint16_t h)
{
    uint32_t bits = (uint32_t)(h & 0x7fff) << 13;
    float f;
    if (bits >= 0x7c00u << 13)
        bits |= 0x7f800000;
    memcpy(&f, &bits, sizeof(f));
    if (bits < 0x7c00u << 13)
        f *= 0x1p112f;
    return h & 0x8000 ? -f : f;
}

static inline uint16_t f16_from_f32(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000)
        return sign | 0x7e00;
    if (bits >= 0x477ff000) /* 65520: half a step above the largest f16 is rounded away from it */
        return sign | 0x7c00;
    if (bits <
        0x38800000) /* 2^-14: subnormals count steps of 2^-24, and 1024 is the first normal */
        return sign | (uint16_t)rintf(fabsf(f) * 0x1p24f);
    bits += 0xfff + (bits >> 13 & 1);
    return sign | (uint16_t)((bits - (112u << 23)) >> 13);
}

static inline float bf16_to_f32(uint16_t b)
{
    uint32_t bits = (uint32_t)b << 16;
    float f;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

static inline uint16_t bf16_from_f32(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    if (isnan(f))
        return (uint16_t)(bits >> 16) | 0x40; /* a payload in the lower half must not become inf */
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Element i of an array, which may be unaligned. */
static inline double number_load(const void *data, int type, int64_t i)
{
    const char *at = (const char *)data + (size_t)i * number_size(type);
    double d;
    float f;
    uint16_t h;
    switch (type) {
    case NUMBER_F64:
        memcpy(&d, at, sizeof(d));
        return d;
    case KDA_F32:
        memcpy(&f, at, sizeof(f));
        return f;
    default:
        memcpy(&h, at, sizeof(h));
        return type == KDA_F16 ? f16_to_f32(h) : bf16_to_f32(h);
    }
}

static inline void number_store(void *data, int type, int64_t i, float x)
{
    char *at = (char *)data + (size_t)i * number_size(type);
    double d = x;
    uint16_t h;
    switch (type) {
    case NUMBER_F64:
        memcpy(at, &d, sizeof(d));
        return;
    case KDA_F32:
        memcpy(at, &x, sizeof(x));
        return;
    default:
        h = type == KDA_F16 ? f16_from_f32(x) : bf16_from_f32(x);
        memcpy(at, &h, sizeof(h));
    }
}

#endif

/* 16-bit storage types on the host. f32 -> 16 bits rounds to nearest even, as every kernel does.
 *
 * SPDX-License-Identifier: MIT */
#ifndef KDA_CONVERT_H
#define KDA_CONVERT_H

#include <stdint.h>
#include <string.h>

#include "kda.h"

static inline float kda_from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint32_t kda_to_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float kda_from_bf16(uint16_t h)
{
    return kda_from_bits((uint32_t)h << 16);
}

static inline uint16_t kda_to_bf16(float f)
{
    uint32_t u = kda_to_bits(f);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40); /* NaN stays NaN */
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline float kda_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
    if (rest >= 0x7c00) /* inf, NaN */
        return kda_from_bits(sign | 0x7f800000 | (rest & 0x3ff) << 13);
    if (rest < 0x400) /* subnormal: rest * 2^-24 */
        return kda_from_bits(sign | kda_to_bits((float)rest * 0x1p-24f));
    return kda_from_bits(sign | ((rest << 13) + ((127 - 15) << 23)));
}

static inline uint16_t kda_to_f16(float f)
{
    uint32_t u = kda_to_bits(f), sign = u >> 16 & 0x8000;
    u &= 0x7fffffff;
    if (u > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (u >= 0x477ff000) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00);
    if (u < 0x38800000) /* below 2^-14: adding 0.5 leaves the rounded subnormal in the low bits */
        return (uint16_t)(sign | (kda_to_bits(kda_from_bits(u) + 0.5f) - 0x3f000000));
    u += 0xfff + (u >> 13 & 1);
    return (uint16_t)(sign | ((u - ((127 - 15) << 23)) >> 13));
}

/* n elements of a row. */
static inline void kda_load(float *out, kda_dtype type, const char *row, int64_t n)
{
    if (type == KDA_F32)
        memcpy(out, row, (size_t)n * sizeof *out);
    else if (type == KDA_F16)
        for (int64_t i = 0; i < n; i++)
            out[i] = kda_from_f16(((const uint16_t *)row)[i]);
    else
        for (int64_t i = 0; i < n; i++)
            out[i] = kda_from_bf16(((const uint16_t *)row)[i]);
}

static inline void kda_store(char *row, kda_dtype type, const float *in, int64_t n)
{
    if (type == KDA_F32)
        memcpy(row, in, (size_t)n * sizeof *in);
    else if (type == KDA_F16)
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)row)[i] = kda_to_f16(in[i]);
    else
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)row)[i] = kda_to_bf16(in[i]);
}

#endif

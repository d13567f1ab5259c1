/* Vectors of floats for any processor: the compiler's vector types, KDA_VECTOR_BYTES long, and what
 * C has no operator for. Only fused multiply-add needs the processor's own name.
 *
 * SPDX-License-Identifier: MIT */
#ifndef KDA_VECTOR_H
#define KDA_VECTOR_H

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#elif defined(__ARM_FEATURE_SVE)
#include <arm_sve.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "kda.h"

typedef float vf __attribute__((vector_size(KDA_VECTOR_BYTES)));
typedef int32_t vi __attribute__((vector_size(KDA_VECTOR_BYTES)));
typedef uint32_t vu __attribute__((vector_size(KDA_VECTOR_BYTES)));
typedef uint16_t vh __attribute__((vector_size(KDA_VECTOR_BYTES / 2)));

enum { W = KDA_VECTOR_BYTES / 4 };

#define INLINE static inline __attribute__((always_inline))

INLINE vf get(const float *at)
{
    vf x;
    memcpy(&x, at, sizeof x);
    return x;
}

INLINE void put(float *at, vf x)
{
    memcpy(at, &x, sizeof x);
}

INLINE vf all(float x)
{
    return x - (vf){0};
}

/* a b + c, rounded once where the processor can. */
INLINE vf madd(vf a, vf b, vf c)
{
#ifdef __ARM_FEATURE_SVE
    return svmla_f32_x(svptrue_b32(), c, a, b);
#elif KDA_VECTOR_BYTES == 64
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif KDA_VECTOR_BYTES == 32
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

INLINE vf pick(vi mask, vf yes, vf no)
{
    return (vf)((mask & (vi)yes) | (~mask & (vi)no));
}

INLINE float sum(vf x)
{
    float total = 0.0f;
    for (int i = 0; i < W; i++)
        total += x[i];
    return total;
}

/* ---- Storage types, as in convert.h ------------------------------------------------------ */

INLINE vu widen(const char *at)
{
    vh x;
    memcpy(&x, at, sizeof x);
    return __builtin_convertvector(x, vu);
}

INLINE void narrow(char *at, vu x)
{
    vh h = __builtin_convertvector(x, vh);
    memcpy(at, &h, sizeof h);
}

INLINE vf get_f16(const char *at)
{
    const vu h = widen(at), sign = (h & 0x8000) << 16;
    /* as if the exponent had f32's bias, which the product makes good; subnormals too */
    const vf x = (vf)((h & 0x7fff) << 13) * 0x1p112f;
    const vu top = (vu)((h & 0x7c00) == 0x7c00) & 0x7f800000; /* inf, NaN */
    return (vf)((vu)x | sign | top);
}

INLINE void put_f16(char *at, vf x)
{
    const vu u = (vu)x & 0x7fffffff, sign = (vu)x >> 16 & 0x8000;
    const vu normal = (u + 0xfff + (u >> 13 & 1) - ((127 - 15) << 23)) >> 13;
    /* below 2^-14: adding 0.5 leaves the rounded subnormal in the low bits */
    const vu tiny = (vu)((vf)u + 0.5f) - 0x3f000000;
    vu h = (vu)pick((vi)(u < 0x38800000), (vf)tiny, (vf)normal);
    h = (vu)pick((vi)(u >= 0x477ff000), (vf)((vu){0} + 0x7c00), (vf)h); /* rounds to infinity */
    h = (vu)pick((vi)(u > 0x7f800000), (vf)((vu){0} + 0x7e00), (vf)h);  /* NaN */
    narrow(at, h | sign);
}

INLINE vf get_bf16(const char *at)
{
    return (vf)(widen(at) << 16);
}

INLINE void put_bf16(char *at, vf x)
{
    const vu u = (vu)x, rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;
    const vu nan = u >> 16 | 0x40;
    narrow(at, (vu)pick((vi)((u & 0x7fffffff) > 0x7f800000), (vf)nan, (vf)rounded));
}

INLINE vf get_as(kda_dtype type, const char *at)
{
    return type == KDA_F32    ? get((const float *)(const void *)at)
           : type == KDA_BF16 ? get_bf16(at)
                              : get_f16(at);
}

INLINE void put_as(kda_dtype type, char *at, vf x)
{
    if (type == KDA_F32)
        put((float *)(void *)at, x);
    else if (type == KDA_BF16)
        put_bf16(at, x);
    else
        put_f16(at, x);
}

/* n numbers of a row, and zeros up to a whole number of vectors. */
INLINE void load_row(float *out, kda_dtype type, const char *row, int32_t n)
{
    const int32_t size = type == KDA_F32 ? 4 : 2;
    int32_t i = 0;
    for (; i + W <= n; i += W)
        put(out + i, get_as(type, row + i * size));
    if (i < n) {
        char rest[KDA_VECTOR_BYTES] = {0};
        memcpy(rest, row + i * size, (size_t)((n - i) * size));
        put(out + i, get_as(type, rest));
    }
}

INLINE void store_row(char *row, kda_dtype type, const float *in, int32_t n)
{
    const int32_t size = type == KDA_F32 ? 4 : 2;
    int32_t i = 0;
    for (; i + W <= n; i += W)
        put_as(type, row + i * size, get(in + i));
    if (i < n) {
        char rest[KDA_VECTOR_BYTES];
        put_as(type, rest, get(in + i));
        memcpy(row + i * size, rest, (size_t)((n - i) * size));
    }
}

#endif

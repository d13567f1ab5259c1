/* How many numbers a work-item of kda_prepare takes at once: chunk.cl's arithmetic is written in
 * two vectors whose width suits the device.
 *
 *     lanes_t   neighbours in global memory, or the parts of a sum until total() adds them
 *     wide_t    neighbours in local memory
 *
 * A CPU whose driver says that it works in vectors (KDA_VECTORS) takes 16 of both. Elsewhere an
 * item takes one from global memory, so that neighbouring items read neighbouring words, and four
 * from local memory.
 *
 * SPDX-License-Identifier: MIT */

#if KDA_VECTORS
#define LANES 16
#define WIDE 16
typedef float16 lanes_t;
typedef float16 wide_t;
#define load_lanes(p) vload16(0, p)
#define store_lanes(p, x) vstore16(x, 0, p)
#define load_wide(p) vload16(0, p)
#define store_wide_local(p, x) vstore16(x, 0, p)
#define store_wide_global(p, x) vstore16(x, 0, p)
#else
#define LANES 1
#define WIDE 4
typedef float lanes_t;
typedef float4 wide_t;
#define load_lanes(p) (*(p))
#define store_lanes(p, x) (*(p) = (x))
#define load_wide(p) (*(__local const float4 *)(p))
#define store_wide_local(p, x) (*(__local float4 *)(p) = (x))
#define store_wide_global(p, x) (*(__global float4 *)(p) = (x))
#endif

/* sum + x . y, in order; of 16 lanes each its own part. */
static inline lanes_t dot_wide(lanes_t sum, wide_t x, wide_t y)
{
#if KDA_VECTORS
    return sum + x * y;
#else
    sum += x.s0 * y.s0;
    sum += x.s1 * y.s1;
    sum += x.s2 * y.s2;
    sum += x.s3 * y.s3;
    return sum;
#endif
}

static inline float total(lanes_t sum)
{
#if KDA_VECTORS
    const float8 a = sum.lo + sum.hi;
    const float4 b = a.lo + a.hi;
    const float2 c = b.lo + b.hi;
    return c.lo + c.hi;
#else
    return sum;
#endif
}

/* 1 in one lane, 0 in the others. */
static inline lanes_t unit(int lane)
{
#if KDA_VECTORS
    float x[LANES];
    for (int l = 0; l < LANES; l++)
        x[l] = l == lane ? 1.0f : 0.0f;
    return vload16(0, x);
#else
    return lane == 0 ? 1.0f : 0.0f;
#endif
}

/* Neighbours as floats, zero from the inside-th on. A single one is loaded in any case, so that
 * loads need no branch and several are under way at once. */
#if KDA_VECTORS
#define GATHER(value)                                                                              \
    float x[LANES];                                                                                \
    if (inside >= LANES)                                                                           \
        for (int l = 0; l < LANES; l++)                                                            \
            x[l] = value;                                                                          \
    else                                                                                           \
        for (int l = 0; l < LANES; l++)                                                            \
            x[l] = l < inside ? value : 0.0f;                                                      \
    return vload16(0, x);
#else
#define GATHER(value)                                                                              \
    const int l = 0;                                                                               \
    const float x = value;                                                                         \
    return inside > 0 ? x : 0.0f;
#endif
static inline lanes_t data_lanes(__global const data_t *p, long at, int inside)
{
    GATHER(load_data(p, at + l))
}
static inline lanes_t gate_lanes(__global const gate_t *p, long at, int inside)
{
    GATHER(load_gate(p, at + l))
}
static inline lanes_t bias_lanes(__global const float *p, long at, int inside)
{
    GATHER(p[at + l])
}

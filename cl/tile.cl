/* Tile algebra behind vendor-free names: the only file that knows vendors' instructions. One body
 * for each kind of device, chosen by KDA_PATH; each is tested by its known answer before use.
 *
 * SPDX-License-Identifier: MIT */

#define KDA_PATH_LOCAL 0      /* nothing but local memory */
#define KDA_PATH_SUB_GROUPS 1 /* cl_khr_subgroup_shuffle or cl_intel_subgroups */
#define KDA_PATH_PTX 2        /* inline assembly of NVIDIA's compiler */

#ifndef KDA_PATH
#define KDA_PATH KDA_PATH_LOCAL
#endif
#ifndef KDA_LANES
#define KDA_LANES 1 /* work-items that exchange registers: width of a sub-group or warp */
#endif

/* A kernel's work-groups have n items. PoCL compiles for the size of each launch, whatever is
 * declared; and where it is, versions up to 5.0 end the process when a program's binary is asked
 * for while the program runs elsewhere (docs/devices.md). */
#ifdef POCL_DEVICE_ADDRESS_BITS
#define WORK_GROUP(n)
#else
#define WORK_GROUP(n) __attribute__((reqd_work_group_size(n, 1, 1)))
#endif

/* The value of x in the lane whose number differs by the bits of mask. */
#if KDA_PATH == KDA_PATH_PTX
static inline float lane_xor(float x, uint mask)
{
    float y;
    __asm__ volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;"
                     : "=f"(y)
                     : "f"(x), "r"(mask));
    return y;
}
#elif KDA_PATH == KDA_PATH_SUB_GROUPS
#pragma OPENCL EXTENSION cl_khr_subgroups : enable
#ifdef cl_khr_subgroup_shuffle
#pragma OPENCL EXTENSION cl_khr_subgroup_shuffle : enable
#define lane_xor(x, mask) sub_group_shuffle_xor(x, mask)
#else
#pragma OPENCL EXTENSION cl_intel_subgroups : enable
#define lane_xor(x, mask) intel_sub_group_shuffle_xor(x, mask)
#endif
#endif

/* Four floats from global to local memory, both aligned to 16 bytes. A copy may go on while its
 * item does other work; fetch_wait waits for all that the item has begun. */
#if KDA_PATH == KDA_PATH_PTX
static inline void fetch(__local float *to, __global const float *from)
{
    __asm__ volatile("{ .reg .u64 at;\n"
                     "cvta.to.global.u64 at, %1;\n"
                     "cp.async.cg.shared.global [%0], [at], 16; }"
                     :
                     : "r"((uint)(ulong)to), "l"(from)
                     : "memory");
}
static inline void fetch_wait(void)
{
    __asm__ volatile("cp.async.wait_all;" : : : "memory");
}
#else
static inline void fetch(__local float *to, __global const float *from)
{
    *(__local float4 *)to = *(__global const float4 *)from;
}
static inline void fetch_wait(void)
{
}
#endif

/* Two floats as a pair of bf16, the first one low: to nearest even, and a NaN stays one. */
#if KDA_PATH == KDA_PATH_PTX
static inline uint pack_bf16(float low, float high)
{
    uint pair;
    __asm__("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
static inline ushort float_to_bf16(float x)
{
    return (ushort)pack_bf16(x, 0.0f);
}
#else
static inline ushort float_to_bf16(float x)
{
    const uint u = as_uint(x), rounded = u + 0x7fffu + ((u >> 16) & 1u);
    return (ushort)(((u & 0x7fffffffu) > 0x7f800000u ? (u | 0x400000u) : rounded) >> 16);
}
static inline uint pack_bf16(float low, float high)
{
    return float_to_bf16(low) | (uint)float_to_bf16(high) << 16;
}
#endif

/* x, for what may not be worked out earlier than here. */
static inline float not_before(float x)
{
#if KDA_PATH == KDA_PATH_PTX
    __asm__ volatile("" : "+f"(x) : : "memory");
#endif
    return x;
}

/* Works a pointer out no later than here, and asks for what has to be asked for before. */
#if KDA_PATH == KDA_PATH_PTX
#define WORK_OUT(p) __asm__ volatile("" : "+l"(p) : : "memory")
#else
#define WORK_OUT(p) (void)(p)
#endif

/* Back to floats. In assembly for NVIDIA's compiler, which moves a conversion to where the number
 * is asked for, if that is under a condition, and so has it waited for there. */
#if KDA_PATH == KDA_PATH_PTX
static inline float bf16_to_float(ushort h)
{
    float x;
    __asm__("mov.b32 %0, {%1, %2};" : "=f"(x) : "h"((ushort)0), "h"(h));
    return x;
}
#else
static inline float bf16_to_float(ushort h)
{
    return as_float((uint)h << 16);
}
#endif

/* The same for f16, and back: to nearest even. */
#if KDA_PATH == KDA_PATH_PTX
static inline float f16_to_float(ushort h)
{
    float x;
    __asm__("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
    return x;
}
static inline float2 f16x2_to_float2(uint x)
{
    return (float2)(f16_to_float((ushort)x), f16_to_float((ushort)(x >> 16)));
}
static inline float4 f16x4_to_float4(uint2 x)
{
    return (float4)(f16x2_to_float2(x.s0), f16x2_to_float2(x.s1));
}
static inline uint pack_f16(float low, float high)
{
    uint pair;
    __asm__("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
static inline void store_f16(__global ushort *p, long i, float x)
{
    p[i] = (ushort)pack_f16(x, 0.0f);
}
static inline void store_f16x2(__global ushort *p, float2 x)
{
    *(__global uint *)p = pack_f16(x.s0, x.s1);
}
static inline void store_f16x4(__global ushort *p, float4 x)
{
    *(__global uint2 *)p = (uint2)(pack_f16(x.s0, x.s1), pack_f16(x.s2, x.s3));
}
#else
static inline float f16_to_float(ushort h)
{
    return vload_half(0, (const half *)&h);
}
static inline float2 f16x2_to_float2(uint x)
{
    return vload_half2(0, (const half *)&x);
}
static inline float4 f16x4_to_float4(uint2 x)
{
    return vload_half4(0, (const half *)&x);
}
static inline uint pack_f16(float low, float high)
{
    uint pair;
    vstore_half2_rte((float2)(low, high), 0, (half *)&pair);
    return pair;
}
static inline void store_f16(__global ushort *p, long i, float x)
{
    vstore_half_rte(x, 0, (__global half *)(p + i));
}
static inline void store_f16x2(__global ushort *p, float2 x)
{
    vstore_half2_rte(x, 0, (__global half *)p);
}
static inline void store_f16x4(__global ushort *p, float4 x)
{
    vstore_half4_rte(x, 0, (__global half *)p);
}
#endif

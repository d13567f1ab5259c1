/* The instructions that cl/unit.cl is made of, said in OpenCL C by exchanging lanes of sub-groups,
 * for devices that have these. Each is written from the vendor's account of where a cell of A
 * (i, k), of B (k, j) and of the result (i, j) lies: AMD's matrix instruction calculator, and the
 * text of cl_intel_subgroup_matrix_multiply_accumulate. Nothing here looks at cl/unit.cl.
 *
 * SPDX-License-Identifier: MIT */
#include "pretend_unit.h"

#include <stdlib.h>
#include <string.h>

#define LANES                                                                                      \
    "#pragma OPENCL EXTENSION cl_khr_subgroups : enable\n"                                         \
    "#pragma OPENCL EXTENSION cl_khr_subgroup_shuffle : enable\n"                                  \
    "#define OF(x, lane) sub_group_shuffle(x, (uint)(lane))\n"                                     \
    "#define ME ((int)get_sub_group_local_id())\n"                                                 \
    "#define LOOP(i, n) _Pragma(\"unroll 1\") for (int i = 0; i < (n); i++)\n"                     \
    "#define ROW(x, lane) intel_sub_group_shuffle(x, (uint)(lane))\n"                              \
    "static inline float dot_bf16(uint8 x, uint8 y)\n"                                             \
    "{\n"                                                                                          \
    "    const float8 low = as_float8(x << 16) * as_float8(y << 16);\n"                            \
    "    const float8 high = as_float8(x & 0xffff0000) * as_float8(y & 0xffff0000);\n"             \
    "    const float8 sum = low + high;\n"                                                         \
    "    const float4 half_sum = sum.lo + sum.hi;\n"                                               \
    "    return half_sum.s0 + half_sum.s1 + half_sum.s2 + half_sum.s3;\n"                          \
    "}\n"                                                                                          \
    "static inline float from_bf16(ushort x) { return as_float((uint)x << 16); }\n"

/* A: lane 16 k + i. B: lane 16 k + j. Result: lane 16 (i / 4) + j, register i % 4. */
static const char mfma[] =
    LANES "static inline float4 __builtin_amdgcn_mfma_f32_16x16x4f32(\n"
          "    float a, float b, float4 c, int cbsz, int abid, int blgp)\n"
          "{\n"
          "    float *d = (float *)&c;\n"
          "    const int j = ME % 16;\n"
          "    LOOP(r, 4)\n"
          "        LOOP(k, 4)\n"
          "            d[r] += OF(a, 16 * k + 4 * (ME / 16) + r) * OF(b, 16 * k + j);\n"
          "    return c;\n"
          "}\n";

/* A: lanes i and i + 16, half k. B: lanes j and j + 16, half k. Result: lane 16 (i % 2) + j,
 * register i / 2. Each half of the wave is taken to read its own copies. */
static const char wmma11[] =
    LANES "#define __GFX11__ 1\n"
          "static inline float8 __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(\n"
          "    short16 a, short16 b, float8 c)\n"
          "{\n"
          "    float *d = (float *)&c;\n"
          "    LOOP(r, 8)\n"
          "    {\n"
          "        const int i = 2 * r + ME / 16;\n"
          "        d[r] += dot_bf16(ROW(as_uint8(a), i + ME / 16 * 16), as_uint8(b));\n"
          "    }\n"
          "    return c;\n"
          "}\n";

/* A: lane i + 16 (k / 4 % 2), half k % 4 + 4 (k / 8). B: the same with j. Result: lane j +
 * 16 (i / 8), register i % 8. */
static const char wmma12[] =
    LANES "#define __GFX12__ 1\n"
          "static inline float8 __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(\n"
          "    short8 a, short8 b, float8 c)\n"
          "{\n"
          "    float *d = (float *)&c;\n"
          "    const int j = ME % 16;\n"
          "    const uint4 b0 = ROW(as_uint4(b), j), b1 = ROW(as_uint4(b), j + 16);\n"
          "    LOOP(r, 8)\n"
          "    {\n"
          "        const int i = ME / 16 * 8 + r;\n"
          "        const uint4 a0 = ROW(as_uint4(a), i), a1 = ROW(as_uint4(a), i + 16);\n"
          "        d[r] += dot_bf16((uint8)(a0.lo, a1.lo, a0.hi, a1.hi),\n"
          "                         (uint8)(b0.lo, b1.lo, b0.hi, b1.hi));\n"
          "    }\n"
          "    return c;\n"
          "}\n";

/* Rows are registers. A: k of a row are packed side by side, two a lane of 8, one a lane of 16. B:
 * columns are lanes, register k / 2, half k % 2. Result: columns are lanes. */
#define DPAS(type, per_lane)                                                                       \
    LANES "float8 __attribute__((overloadable)) intel_sub_group_bf16_bf16_matrix_mad_k16(\n"       \
          "    " type " a, int8 b, float8 c)\n"                                                    \
          "{\n"                                                                                    \
          "    float *d = (float *)&c;\n"                                                          \
          "    LOOP(i, 8)\n"                                                                       \
          "        LOOP(k, 16) {\n"                                                                \
          "            const ushort x = ((ushort *)&a)[i * " per_lane " + k % " per_lane "];\n"    \
          "            d[i] += from_bf16(OF(x, k / " per_lane ")) * "                              \
          "from_bf16(((ushort *)&b)[k]);\n"                                                        \
          "        }\n"                                                                            \
          "    return c;\n"                                                                        \
          "}\n"

#define AMD " cl_amd_device_attribute_query"
#define INTEL " cl_intel_subgroup_matrix_multiply_accumulate"
static const struct pretend_unit units[] = {
    {"mfma", AMD, 64, mfma},
    {"wmma11", AMD, 32, wmma11},
    {"wmma12", AMD, 32, wmma12},
    {"dpas8", INTEL, 8, DPAS("int8", "2")},
    {"dpas16", INTEL, 16, DPAS("short8", "1")},
};

const struct pretend_unit *pretend_unit(void)
{
    const char *name = getenv("KDA_PRETEND_UNIT");
    for (size_t i = 0; name && i < sizeof units / sizeof units[0]; i++)
        if (!strcmp(name, units[i].name))
            return &units[i];
    return NULL;
}

/* Matrix units of AMD and Intel behind vendor-free names: products of tiles by the lanes of one
 * sub-group. One body for each kind of unit, chosen by KDA_UNIT. (NVIDIA's are in matrix.cl: teams
 * of four warps, and other kernels.)
 *
 * NEVER RUN ON HARDWARE. Which lane holds what follows AMD's matrix instruction calculator and the
 * text of cl_intel_subgroup_matrix_multiply_accumulate; test/pretend_unit.c multiplies by a second
 * reading of these, and a device must give a known answer before it is used.
 *
 * A product is d + a b, a of UNIT_ROWS x 16, b of 16 x UNIT_COLS. Lane l of the UNIT_LANES has
 *
 *     of d, UNIT_CELLS floats:  row UNIT_ROW(l, i), column UNIT_COL(l)
 *     of a, LEFT floats:        row LEFT_ROW(l, i), depth LEFT_DEPTH(l, i)
 *     of b, RIGHT floats:       depth RIGHT_DEPTH(l, i), column UNIT_COL(l)
 *
 * WHAT IS MULTIPLIED. AMD's MFMA takes floats. The others take bf16, of which a float x is two,
 * high + low, to 2^-18 x; a product is three of theirs, and leaves out low times low, which is as
 * small: f32 in all but the last bits. Floats from 2^128 - 2^119 on have no such high.
 *
 * b comes from an image of b's cells in local memory, four bytes each: floats in rows, or of each
 * pair of rows {high, high}, {low, low} column after column, since lanes take depths in pairs.
 *
 * SPDX-License-Identifier: MIT */

#define KDA_UNIT_NONE 0
#define KDA_UNIT_MFMA 1   /* AMD CDNA: gfx908, gfx90a, gfx942 */
#define KDA_UNIT_WMMA 2   /* AMD RDNA: gfx11, gfx12 */
#define KDA_UNIT_DPAS8 3  /* Intel, where the narrowest sub-groups have 8 items: Arc */
#define KDA_UNIT_DPAS16 4 /* and 16: Max */

#ifndef KDA_UNIT
#define KDA_UNIT KDA_UNIT_NONE
#endif

#if KDA_UNIT == KDA_UNIT_MFMA
#define UNIT_ROWS 16
#define UNIT_COLS 16
#define UNIT_LANES 64
#define UNIT_SPLIT 0
typedef float4 unit_t;
#define UNIT_ROW(l, i) ((l) / 16 * 4 + (i))
#define LEFT 4
#define LEFT_ROW(l, i) ((l) % 16)
#define LEFT_DEPTH(l, i) ((l) / 16 * 4 + (i))
#define RIGHT 4
#define RIGHT_DEPTH(l, i) LEFT_DEPTH(l, i)

#elif KDA_UNIT == KDA_UNIT_WMMA
#define UNIT_ROWS 16
#define UNIT_COLS 16
#define UNIT_LANES 32
#define UNIT_SPLIT 1
typedef float8 unit_t;
#define LEFT_ROW(l, i) ((l) % 16)
#define RIGHT_DEPTH(l, i) LEFT_DEPTH(l, i)
#if defined(__GFX11__)
#define UNIT_ROW(l, i) (2 * (i) + (l) / 16)
#define LEFT 16 /* lanes 16 apart hold the same */
#define LEFT_DEPTH(l, i) (i)
#define RIGHT 16
#define MULTIPLY(d, a, b)                                                                          \
    __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(as_short16(a), as_short16(b), d)
#elif defined(__GFX12__)
#define UNIT_ROW(l, i) ((l) / 16 * 8 + (i))
#define LEFT 8
#define LEFT_DEPTH(l, i) ((l) / 16 * 8 + (i))
#define RIGHT 8
#define MULTIPLY(d, a, b)                                                                          \
    __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(as_short8(a), as_short8(b), d)
#else
#error "no such unit" /* some of AMD's compilers would end the process rather than say so */
#endif

#elif KDA_UNIT == KDA_UNIT_DPAS8 || KDA_UNIT == KDA_UNIT_DPAS16
#define UNIT_ROWS 8
#define UNIT_SPLIT 1
typedef float8 unit_t;
#define UNIT_ROW(l, i) (i)
#define RIGHT 16
#define RIGHT_DEPTH(l, i) (i)
#if KDA_UNIT == KDA_UNIT_DPAS8
#define UNIT_COLS 8
#define LEFT 16
#define LEFT_ROW(l, i) ((i) / 2)
#define LEFT_DEPTH(l, i) (2 * (l) + (i) % 2)
#define AS_LEFT as_int8
#else
#define UNIT_COLS 16
#define LEFT 8
#define LEFT_ROW(l, i) (i)
#define LEFT_DEPTH(l, i) (l)
#define AS_LEFT as_short8
#endif
#define UNIT_LANES UNIT_COLS
#ifndef cl_intel_subgroup_matrix_multiply_accumulate
/* Compilers before the extension knew the instruction by its name only. */
float8 __attribute__((overloadable))
intel_sub_group_bf16_bf16_matrix_mad_k16(int8 a, int8 b, float8 d);
float8 __attribute__((overloadable))
intel_sub_group_bf16_bf16_matrix_mad_k16(short8 a, int8 b, float8 d);
#endif
#define MULTIPLY(d, a, b) intel_sub_group_bf16_bf16_matrix_mad_k16(AS_LEFT(a), as_int8(b), d)
#endif

#if KDA_UNIT == KDA_UNIT_NONE
#define UNIT_LANES 1
#else
#define UNIT_COL(l) ((l) % UNIT_COLS)
#define UNIT_CELLS ((int)(sizeof(unit_t) / sizeof(float)))
#endif

/* A kernel's work-groups have n items, in sub-groups of the width that products need. AMD's always
 * have it. */
#if KDA_UNIT != KDA_UNIT_NONE && defined(cl_intel_required_subgroup_size)
#define UNIT_GROUP(n) __attribute__((intel_reqd_sub_group_size(UNIT_LANES))) WORK_GROUP(n)
#else
#define UNIT_GROUP(n) WORK_GROUP(n)
#endif

#if KDA_UNIT != KDA_UNIT_NONE && UNIT_SPLIT

/* Pairs of bf16. Vectors have subscripts here, as clang allows: of pointers into them Intel's
 * compiler makes arrays in memory. */
#if LEFT == 16
typedef float16 left_floats;
typedef uint8 left_pairs;
#else
typedef float8 left_floats;
typedef uint4 left_pairs;
#endif
#if RIGHT == 16
typedef uint8 right_pairs;
#else
typedef uint4 right_pairs;
#endif
typedef struct {
    left_pairs high, low;
} left_t;
typedef struct {
    right_pairs high, low;
} right_t;

static inline left_t left_of(left_floats x)
{
    left_t a;
    PRAGMA(unroll)
    for (int i = 0; i < LEFT / 2; i++) {
        const uint high = pack_bf16(x[2 * i], x[2 * i + 1]);
        a.high[i] = high;
        a.low[i] =
            pack_bf16(x[2 * i] - as_float(high << 16), x[2 * i + 1] - as_float(high & 0xffff0000u));
    }
    return a;
}

static inline void unit_put(__local float *image, int columns, int row, int col, float x)
{
    __local ushort *pair = (__local ushort *)image + 4 * (row / 2 * columns + col) + row % 2;
    const ushort high = float_to_bf16(x);
    pair[0] = high;
    pair[2] = float_to_bf16(x - bf16_to_float(high));
}

static inline right_t unit_right(__local const float *image, int columns, int depth, int col,
                                 int lane)
{
    right_t b;
    PRAGMA(unroll)
    for (int i = 0; i < RIGHT / 2; i++) {
        const int row = depth + RIGHT_DEPTH(lane, 2 * i);
        const uint2 pair = ((__local const uint2 *)image)[row / 2 * columns + col + UNIT_COL(lane)];
        b.high[i] = pair.s0;
        b.low[i] = pair.s1;
    }
    return b;
}

static inline unit_t unit_product(unit_t d, left_t a, right_t b)
{
    d = MULTIPLY(d, a.low, b.high);
    d = MULTIPLY(d, a.high, b.low);
    return MULTIPLY(d, a.high, b.high);
}

#elif KDA_UNIT != KDA_UNIT_NONE

typedef float4 left_floats, left_t, right_t;

static inline left_t left_of(left_floats x)
{
    return x;
}

static inline void unit_put(__local float *image, int columns, int row, int col, float x)
{
    image[row * columns + col] = x;
}

static inline right_t unit_right(__local const float *image, int columns, int depth, int col,
                                 int lane)
{
    image += (depth + RIGHT_DEPTH(lane, 0)) * columns + col + UNIT_COL(lane);
    return (right_t)(image[0], image[columns], image[2 * columns], image[3 * columns]);
}

/* The instruction is four deep: lanes 0..15 have its first depth, which is 0, 1, 2, 3 in turn. */
static inline unit_t unit_product(unit_t d, left_t a, right_t b)
{
    d = __builtin_amdgcn_mfma_f32_16x16x4f32(a.s0, b.s0, d, 0, 0, 0);
    d = __builtin_amdgcn_mfma_f32_16x16x4f32(a.s1, b.s1, d, 0, 0, 0);
    d = __builtin_amdgcn_mfma_f32_16x16x4f32(a.s2, b.s2, d, 0, 0, 0);
    return __builtin_amdgcn_mfma_f32_16x16x4f32(a.s3, b.s3, d, 0, 0, 0);
}

#endif

#if KDA_UNIT != KDA_UNIT_NONE
/* The left operand whose cell is from[row * row_stride + depth * depth_stride]. */
static inline left_t unit_left(__global const float *from, int row_stride, int depth_stride,
                               int lane)
{
    left_floats x;
    PRAGMA(unroll)
    for (int i = 0; i < LEFT; i++)
        x[i] = from[LEFT_ROW(lane, i) * row_stride + LEFT_DEPTH(lane, i) * depth_stride];
    return left_of(x);
}

/* d + a b for an a that is `depth` deep, a multiple of 16, and read like a left operand; b is the
 * image's columns from col on. */
static inline unit_t unit_sum(unit_t d, __global const float *from, int row_stride,
                              int depth_stride, __local const float *image, int columns, int col,
                              int depth, int lane)
{
    ROLLED
    for (int k = 0; k < depth; k += 16)
        d = unit_product(d, unit_left(from + k * depth_stride, row_stride, depth_stride, lane),
                         unit_right(image, columns, k, col, lane));
    return d;
}
#endif

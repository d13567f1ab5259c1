/* Products and sums of one warp of 32 lanes on matrix units, and quick approximations, behind
 * vendor-free names: what mma_prepare.cl is made of. One body for NVIDIA, one that says the same in
 * plain OpenCL C, for tests.
 *
 * Of a 16 x 8 result d, lane l, g = l / 4, t = l % 4, holds row g, columns 2 t and 2 t + 1 in d[0]
 * and d[1], and the same of row g + 8 in d[2] and d[3].
 *
 * SPLIT matrices keep a number as the sum of two of bf16, so to about 2^-16: a plane of high parts,
 * and one of low parts behind it.
 *
 * SPDX-License-Identifier: MIT */

/* Elements from row to row of the operands of product_pairs and of split matrices: whole 16-byte
 * pieces, and eight rows lie in different banks. */
#define PAIR_ROW 136
#define SPLIT_ROW 72
#define SPLIT_PLANE (64 * SPLIT_ROW)

/* A pair of numbers into a split matrix. */
static inline void split_store(__local ushort *split, int row, int col, float x, float y)
{
    __local uint *const at = (__local uint *)(split + row * SPLIT_ROW + col);
    const uint high = pack_bf16(x, y);
    at[0] = high;
    at[SPLIT_PLANE / 2] = pack_bf16(x - BF16_LOW(high), y - BF16_HIGH(high));
}

/* Of which of its 16 numbers a lane has the sum after lanes_sum16. */
#define SUM_INDEX(lane) (((lane)&3) << 2 | ((lane) >> 1 & 2) | ((lane) >> 3 & 1))

#if KDA_PATH == KDA_PATH_PTX

#define MULTIPLY_16x8x16(d, a0, a1, a2, a3, b0, b1)                                                \
    __asm__("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "                  \
            "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                                               \
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                       \
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1))
#define LOAD_8x8x4(x, at, how)                                                                     \
    __asm__ volatile("ldmatrix.sync.aligned.m8n8.x4" how ".shared.b16 {%0,%1,%2,%3}, [%4];"        \
                     : "=r"((x)[0]), "=r"((x)[1]), "=r"((x)[2]), "=r"((x)[3])                      \
                     : "r"(at)                                                                     \
                     : "memory")

/* Eight row tokens by eight keys: d[0], d[1] of k, d[2], d[3] of q, KDA_K columns each. In one
 * block of assembly: its instructions one by one take NVIDIA's front end several times as long. */
#define PAIRS_OF_32_COLUMNS(at)                                                                    \
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {b0,b1,b2,b3}, [%5 + " #at "];\n"                    \
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {a0,a1,a2,a3}, [%4 + " #at "];\n"                    \
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {a4,a5,a6,a7}, [%4 + " #at " + 32];\n"               \
    "mma.sync.aligned.m16n8k16.row.col.f32." OPERAND "." OPERAND ".f32 "                           \
    "{d0,d1,d2,d3}, {a0,a1,a2,a3}, {b0,b1}, {d0,d1,d2,d3};\n"                                      \
    "mma.sync.aligned.m16n8k16.row.col.f32." OPERAND "." OPERAND ".f32 "                           \
    "{e0,e1,e2,e3}, {a4,a5,a6,a7}, {b2,b3}, {e0,e1,e2,e3};\n"
#if KDA_K == 64
#define PAIRS_OF_ALL_COLUMNS PAIRS_OF_32_COLUMNS(0) PAIRS_OF_32_COLUMNS(64)
#else
#define PAIRS_OF_ALL_COLUMNS                                                                       \
    PAIRS_OF_32_COLUMNS(0) PAIRS_OF_32_COLUMNS(64)                                                 \
    PAIRS_OF_32_COLUMNS(128) PAIRS_OF_32_COLUMNS(192)
#endif
static inline void product_pairs(float d[4], __local const ushort *k, __local const ushort *q,
                                 __local const ushort *key, int lane)
{
    const uint a_at = local_address((lane & 8 ? q : k) + (lane & 7) * PAIR_ROW + (lane >> 4) * 8);
    const uint b_at = local_address(key + (lane & 7) * PAIR_ROW + (lane >> 3) * 8);
    __asm__ volatile("{ .reg .b32 a<8>, b<4>; .reg .f32 d<4>, e<4>;\n"
                     "mov.f32 d0, 0f00000000; mov.f32 d1, d0; mov.f32 d2, d0; mov.f32 d3, d0;\n"
                     "mov.f32 e0, d0; mov.f32 e1, d0; mov.f32 e2, d0; mov.f32 e3, d0;\n"
                     PAIRS_OF_ALL_COLUMNS
                     "add.f32 %0, d0, e0; add.f32 %1, d1, e1;\n"
                     "add.f32 %2, d2, e2; add.f32 %3, d3, e3; }"
                     : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                     : "r"(a_at), "r"(b_at)
                     : "memory");
}

/* The sum of both halves of a pair over the warp, for 16 pairs in each lane: the one of
 * x[SUM_INDEX(lane)]. A product with ones sums over the four lanes of a row g, four pairs at once:
 * column 2 j of ones for pairs 4 j and 4 j + 1 (rows g and g + 8), 2 j + 1 for the next two. Pairs
 * of one or the other type. */
#define FOUR_PAIRS(type, x0, x1, x2, x3, even, odd)                                                \
    "mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0,%1,%2,%3}, {%" #x0 ",%" #x1   \
    ",%" #x2 ",%" #x3 "}, {%" #even ",%" #odd "}, {%0,%1,%2,%3};\n"
#define SUM16_ADD(name, type, both_one)                                                            \
    static inline void name(float d[4], const uint x[16], int lid)                                 \
    {                                                                                              \
        const int column = (lid & 31) >> 2;                                                        \
        uint ones[8];                                                                              \
        UNROLL                                                                                     \
        for (int j = 0; j < 8; j++)                                                                \
            ones[j] = column == j ? both_one : 0;                                                  \
        __asm__(FOUR_PAIRS(type, 4, 5, 6, 7, 20, 21) FOUR_PAIRS(type, 8, 9, 10, 11, 22, 23)        \
                    FOUR_PAIRS(type, 12, 13, 14, 15, 24, 25)                                       \
                        FOUR_PAIRS(type, 16, 17, 18, 19, 26, 27)                                   \
                : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                   \
                : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(x[4]), "r"(x[5]), "r"(x[6]),     \
                  "r"(x[7]), "r"(x[8]), "r"(x[9]), "r"(x[10]), "r"(x[11]), "r"(x[12]),             \
                  "r"(x[13]), "r"(x[14]), "r"(x[15]), "r"(ones[0]), "r"(ones[1]), "r"(ones[2]),    \
                  "r"(ones[3]), "r"(ones[4]), "r"(ones[5]), "r"(ones[6]), "r"(ones[7]));           \
    }
SUM16_ADD(sum16_add_bf16, "bf16", 0x3f803f80u)
SUM16_ADD(sum16_add, OPERAND, OPERAND_ONES)
static inline float sum16_total(const float d[4], int lid)
{
    const int upper = lid & 4, last = lid & 8;
    const float e0 = (upper ? d[1] : d[0]) + lane_xor(upper ? d[0] : d[1], 4);
    const float e1 = (upper ? d[3] : d[2]) + lane_xor(upper ? d[2] : d[3], 4);
    const float f = (last ? e1 : e0) + lane_xor(last ? e0 : e1, 8);
    return f + lane_xor(f, 16);
}
static inline float lanes_sum16(const uint x[16], __local float *scratch, int lid)
{
    float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    sum16_add(d, x, lid);
    return sum16_total(d, lid);
}

static inline float lanes_sum16_bf16(const uint x[16], __local float *scratch, int lid)
{
    float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    sum16_add_bf16(d, x, lid);
    return sum16_total(d, lid);
}

/* The same of products of halves, x y. What rounding takes from those of bf16, a multiply-add finds
 * exactly; of f16 it takes too little to matter. */
static inline float lanes_dot16(const uint x[16], const uint y[16], __local float *scratch, int lid)
{
    float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    uint product[16];
    UNROLL
    for (int i = 0; i < 16; i++)
        product[i] = multiply_operands(x[i], y[i]);
    sum16_add(d, product, lid);
#if !OPERANDS_F16
    UNROLL
    for (int i = 0; i < 16; i++)
        __asm__("{ .reg .b32 n; neg.bf16x2 n, %0; fma.rn.bf16x2 %0, %1, %2, n; }"
                : "+r"(product[i])
                : "r"(x[i]), "r"(y[i]));
    sum16_add(d, product, lid);
#endif
    return sum16_total(d, lid);
}

/* The product of the two low parts is left out. */
#define MULTIPLY_SPLIT(d, high, low, h0, h1, l0, l1)                                               \
    MULTIPLY_16x8x16(d, high[0], high[1], high[2], high[3], h0, h1);                               \
    MULTIPLY_16x8x16(d, high[0], high[1], high[2], high[3], l0, l1);                               \
    MULTIPLY_16x8x16(d, low[0], low[1], low[2], low[3], h0, h1)

/* This warp's 16 x 16 of -A R B, A, R and B split matrices of 16 or 32 rows and columns: rows from
 * `row`, columns from `col`; z[0] and z[1] have eight columns each. The lanes hold of (R B)^T what
 * a right operand R B wants, so the second product follows on the spot. */
static __attribute__((always_inline)) inline void merge(float z[2][4], __local const ushort *a,
                                                        __local const ushort *r,
                                                        __local const ushort *b, int row, int col,
                                                        int size, int lane)
{
    const int tile_row = ((lane & 7) + (lane >> 4) * 8) * SPLIT_ROW + (lane & 8);
    const uint a_at = local_address(a + (row + (lane & 15)) * SPLIT_ROW + (lane >> 4) * 8);
    const uint r_at = local_address(r + tile_row), b_at = local_address(b + tile_row + col);
    float y[4][4];
    UNROLL
    for (int i = 0; i < 4; i++)
        y[i][0] = y[i][1] = y[i][2] = y[i][3] = 0.0f;
    UNROLL
    for (int s = 0; s < 2; s++)
        if (16 * s < size) {
            uint high[4], low[4];
            LOAD_8x8x4(high, b_at + s * 16 * SPLIT_ROW * 2, ".trans");
            LOAD_8x8x4(low, b_at + (s * 16 * SPLIT_ROW + SPLIT_PLANE) * 2, ".trans");
            UNROLL
            for (int i = 0; i < 2; i++)
                if (16 * i < size) {
                    const uint at = r_at + (i * 16 * SPLIT_ROW + s * 16) * 2;
                    uint h[4], l[4];
                    LOAD_8x8x4(h, at, "");
                    LOAD_8x8x4(l, at + SPLIT_PLANE * 2, "");
                    MULTIPLY_SPLIT(y[2 * i], high, low, h[0], h[1], l[0], l[1]);
                    MULTIPLY_SPLIT(y[2 * i + 1], high, low, h[2], h[3], l[2], l[3]);
                }
        }
    UNROLL
    for (int n = 0; n < 2; n++)
        z[n][0] = z[n][1] = z[n][2] = z[n][3] = 0.0f;
    UNROLL
    for (int s = 0; s < 2; s++)
        if (16 * s < size) {
            uint high[4], low[4];
            LOAD_8x8x4(high, a_at + s * 32, "");
            LOAD_8x8x4(low, a_at + s * 32 + SPLIT_PLANE * 2, "");
            UNROLL
            for (int n = 0; n < 2; n++) {
                const float x0 = -y[2 * s][2 * n], x1 = -y[2 * s][2 * n + 1];
                const float x2 = -y[2 * s + 1][2 * n], x3 = -y[2 * s + 1][2 * n + 1];
                const uint h0 = pack_bf16(x0, x1), h1 = pack_bf16(x2, x3);
                const uint l0 = pack_bf16(x0 - BF16_LOW(h0), x1 - BF16_HIGH(h0));
                const uint l1 = pack_bf16(x2 - BF16_LOW(h1), x3 - BF16_HIGH(h1));
                MULTIPLY_SPLIT(z[n], high, low, h0, h1, l0, l1);
            }
        }
}

/* Approximations to about 22 bits; results below the smallest normal number are zero. */
static inline float fast_exp2(float x)
{
    float y;
    __asm__("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
static inline float fast_log2(float x)
{
    float y;
    __asm__("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
static inline float fast_recip(float x)
{
    float y;
    __asm__("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static inline float fast_rsqrt(float x)
{
    float y;
    __asm__("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#else

/* Inlined without fail: PoCL 3.1 gives a function of its own, called by two work-groups at once,
 * the work-items of either. */
static __attribute__((always_inline)) inline void product_pairs(float d[4], __local const ushort *k,
                                                                __local const ushort *q,
                                                                __local const ushort *key, int lane)
{
    const int g = lane >> 2, t = lane & 3;
    for (int i = 0; i < 4; i++) {
        __local const ushort *row = (i & 2 ? q : k) + g * PAIR_ROW,
                             *column = key + (2 * t + (i & 1)) * PAIR_ROW;
        float sum = 0.0f;
        for (int c = 0; c < KDA_K; c++)
            sum += operand_to_float(row[c]) * operand_to_float(column[c]);
        d[i] = sum;
    }
}

/* scratch: 16 numbers for each item. */
static __attribute__((always_inline)) inline float lanes_sum(const float x[16],
                                                             __local float *scratch, int lid)
{
    barrier(CLK_LOCAL_MEM_FENCE); /* scratch has been read, whatever was there */
    for (int i = 0; i < 16; i++)
        scratch[lid * 16 + i] = x[i];
    barrier(CLK_LOCAL_MEM_FENCE); /* all numbers are there */
    float sum = 0.0f;
    for (int i = 0; i < 32; i++)
        sum += scratch[((lid & ~31) + i) * 16 + SUM_INDEX(lid & 31)];
    return sum;
}
static __attribute__((always_inline)) inline float lanes_sum16(const uint x[16],
                                                               __local float *scratch, int lid)
{
    float sums[16];
    for (int i = 0; i < 16; i++)
        sums[i] = OPERAND_LOW(x[i]) + OPERAND_HIGH(x[i]);
    return lanes_sum(sums, scratch, lid);
}
static __attribute__((always_inline)) inline float lanes_sum16_bf16(const uint x[16],
                                                                    __local float *scratch, int lid)
{
    float sums[16];
    for (int i = 0; i < 16; i++)
        sums[i] = BF16_LOW(x[i]) + BF16_HIGH(x[i]);
    return lanes_sum(sums, scratch, lid);
}
static __attribute__((always_inline)) inline float lanes_dot16(const uint x[16], const uint y[16],
                                                               __local float *scratch, int lid)
{
    float sums[16];
    for (int i = 0; i < 16; i++)
        sums[i] = OPERAND_LOW(x[i]) * OPERAND_LOW(y[i]) + OPERAND_HIGH(x[i]) * OPERAND_HIGH(y[i]);
    return lanes_sum(sums, scratch, lid);
}

static __attribute__((always_inline)) inline float split_at(__local const ushort *split, int row,
                                                            int col)
{
    __local const ushort *const at = split + row * SPLIT_ROW + col;
    return bf16_to_float(at[0]) + bf16_to_float(at[SPLIT_PLANE]);
}
static __attribute__((always_inline)) inline void merge(float z[2][4], __local const ushort *a,
                                                        __local const ushort *r,
                                                        __local const ushort *b, int row, int col,
                                                        int size, int lane)
{
    for (int i = 0; i < 8; i++) {
        const int m = row + (lane >> 2) + (i & 2) * 4;
        const int n = col + (i >> 2) * 8 + 2 * (lane & 3) + (i & 1);
        float sum = 0.0f;
        for (int k = 0; k < size; k++) {
            float y = 0.0f;
            for (int j = 0; j < size; j++)
                y += split_at(r, k, j) * split_at(b, j, n);
            sum -= split_at(a, m, k) * y;
        }
        z[i >> 2][i & 3] = sum;
    }
}

#define fast_exp2 native_exp2
#define fast_log2 native_log2
#define fast_recip native_recip
#define fast_rsqrt native_rsqrt

#endif

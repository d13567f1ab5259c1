/* A work-item's part of a state, in registers and in memory: KDA_ROWS key channels by KDA_VEC
 * columns of a tile that a work-group of cl/step.cl shares out.
 *
 * SPDX-License-Identifier: MIT */

#ifndef KDA_ROWS
#define KDA_ROWS 16 /* key channels of a work-item */
#endif
#ifndef KDA_GROUPS
#define KDA_GROUPS 8 /* row groups, a power of two; ROWS * GROUPS >= K */
#endif
#ifndef KDA_COLS
#define KDA_COLS 16 /* work-items side by side, a power of two */
#endif
#ifndef KDA_VEC
#define KDA_VEC 4 /* columns of a work-item: 1, 2, or a multiple of 4 */
#endif
/* Whether state rows are aligned for the vector accesses: a program for each case, since both in
 * one keep the compiler from arranging loads. On a CPU the call says it. */
#ifdef KDA_WIDE
#define WIDE(a) KDA_WIDE
#else
#define WIDE(a) ((a).has & KDA_HAS_WIDE_STATES)
#endif

#define KDA_TILE_V (KDA_COLS * KDA_VEC)
#define KDA_WG (KDA_COLS * KDA_GROUPS)
#define PAD_K (KDA_ROWS * KDA_GROUPS)
#if PAD_K < KDA_K
#error "KDA_ROWS * KDA_GROUPS must cover KDA_K"
#endif

/* Of a tile's rows, those inside. */
#if PAD_K == KDA_K
#define ROWS_INSIDE(row) KDA_ROWS
#else
#define ROWS_INSIDE(row) (KDA_K - (row))
#endif

/* A work-item's part of a state: OUTER lines of INNER neighbours in memory, and in registers. */
#if KDA_STATE_LAYOUT == KDA_STATE_KV
#define OUTER KDA_ROWS
#define INNER KDA_VEC
#define OUTER_INSIDE ROWS_INSIDE(row)
#define INNER_INSIDE (value_dim - col)
#define CELL(s, o, i) s[o][i]
#define CELL_AT(o, i) STATE_AT(o, i, value_dim)
#else
#define OUTER KDA_VEC
#define INNER KDA_ROWS
#define OUTER_INSIDE (value_dim - col)
#define INNER_INSIDE ROWS_INSIDE(row)
#define CELL(s, o, i) s[i][o]
#define CELL_AT(o, i) STATE_AT(i, o, value_dim)
#endif

/* Neighbours of a vector access, in state rows that are aligned to four; 1: there is none. */
#if INNER % 4 == 0
#define PACK 4
#elif INNER % 2 == 0
#define PACK 2
#else
#define PACK 1
#endif

/* As many, as they lie in memory and as floats. */
#if PACK == 4
typedef float4 floats_t;
typedef uint2 words_t;
#define FLOATS(s, o, i)                                                                            \
    (float4)(CELL(s, o, i), CELL(s, o, (i) + 1), CELL(s, o, (i) + 2), CELL(s, o, (i) + 3))
#define f16_to_floats f16x4_to_float4
#define store_f16s store_f16x4
#define BF16_TO_FLOATS(x)                                                                          \
    as_float4((uint4)(x.s0 << 16, x.s0 & 0xffff0000u, x.s1 << 16, x.s1 & 0xffff0000u))
#define PACK_BF16(x) (uint2)(pack_bf16(x.s0, x.s1), pack_bf16(x.s2, x.s3))
#else
typedef float2 floats_t;
typedef uint words_t;
#define FLOATS(s, o, i) (float2)(CELL(s, o, i), CELL(s, o, (i) + 1))
#define f16_to_floats f16x2_to_float2
#define store_f16s store_f16x2
#define BF16_TO_FLOATS(x) as_float2((uint2)(x << 16, x & 0xffff0000u))
#define PACK_BF16(x) pack_bf16(x.s0, x.s1)
#endif
#if KDA_STATE_DTYPE == KDA_F32
typedef floats_t pack_t;
#else
typedef words_t pack_t;
#endif

static inline floats_t unpack(pack_t x)
{
#if KDA_STATE_DTYPE == KDA_F32
    return x;
#elif KDA_STATE_DTYPE == KDA_F16
    return f16_to_floats(x);
#else
    return BF16_TO_FLOATS(x);
#endif
}

static inline void store_pack(__global state_t *p, floats_t x)
{
#if KDA_STATE_DTYPE == KDA_F32
    *(__global floats_t *)p = x;
#elif KDA_STATE_DTYPE == KDA_F16
    store_f16s(p, x);
#else
    *(__global words_t *)p = PACK_BF16(x);
#endif
}

#if PACK > 1
#define PACKS (OUTER * INNER / PACK)
#define PACK_AT(o, i) (((o)*INNER + (i)) / PACK)

/* The first element lies at `in` or `out`: addresses that differ by multiples of the row's size
 * alone take few registers. Rows and columns past the end read as zero and are not written. */
static inline void fetch_tile(pack_t packs[PACKS], __global const state_t *in, int row, int col,
                              int value_dim)
{
UNROLL
    for (int o = 0; o < LOOP_BOUND(OUTER); o++)
UNROLL
        for (int i = 0; i < LOOP_BOUND(INNER); i += PACK) {
            packs[PACK_AT(o, i)] = (pack_t)(0);
            if (o < OUTER_INSIDE && i < INNER_INSIDE)
                packs[PACK_AT(o, i)] = *(__global const pack_t *)(in + CELL_AT(o, i));
        }
}

static inline void clear_packs(pack_t packs[PACKS])
{
UNROLL
    for (int i = 0; i < PACKS; i++)
        packs[i] = (pack_t)(0);
}

static inline void unpack_tile(float s[KDA_ROWS][KDA_VEC], const pack_t packs[PACKS])
{
UNROLL
    for (int o = 0; o < LOOP_BOUND(OUTER); o++)
UNROLL
        for (int i = 0; i < LOOP_BOUND(INNER); i += PACK) {
            const floats_t x = unpack(packs[PACK_AT(o, i)]);
            CELL(s, o, i) = x.s0;
            CELL(s, o, i + 1) = x.s1;
#if PACK == 4
            CELL(s, o, i + 2) = x.s2;
            CELL(s, o, i + 3) = x.s3;
#endif
        }
}
#endif

/* wide: in vectors. */
static inline void load_tile(float s[KDA_ROWS][KDA_VEC], __global const state_t *in, int wide,
                             int row, int col, int value_dim)
{
#if PACK > 1
    if (wide) {
        pack_t packs[PACKS];
        fetch_tile(packs, in, row, col, value_dim);
        unpack_tile(s, packs);
        return;
    }
#endif
UNROLL
    for (int i = 0; i < LOOP_BOUND(KDA_ROWS); i++)
UNROLL
        for (int j = 0; j < KDA_VEC; j++)
            s[i][j] = i < ROWS_INSIDE(row) && col + j < value_dim
                          ? load_state(in, STATE_AT(i, j, value_dim))
                          : 0.0f;
}

static inline void clear_tile(float s[KDA_ROWS][KDA_VEC])
{
UNROLL
    for (int i = 0; i < LOOP_BOUND(KDA_ROWS); i++)
UNROLL
        for (int j = 0; j < KDA_VEC; j++)
            s[i][j] = 0.0f;
}

static inline void store_tile(__global state_t *out, float s[KDA_ROWS][KDA_VEC], int wide, int row,
                              int col, int value_dim)
{
#if PACK > 1
    if (wide) {
        FOR_INSIDE(o, OUTER, OUTER_INSIDE)
            FOR_INSIDE(i, INNER / PACK, INNER_INSIDE / PACK)
                store_pack(out + CELL_AT(o, PACK * i), FLOATS(s, o, PACK * i));
        return;
    }
#endif
    FOR_INSIDE(i, KDA_ROWS, ROWS_INSIDE(row))
        FOR_INSIDE(j, KDA_VEC, value_dim - col)
            store_state(out, STATE_AT(i, j, value_dim), s[i][j]);
}

/* An empty sequence's state goes through bit for bit, whatever it holds; zero: it is none. Not
 * worth unrolling. */
static inline void copy_tile(__global state_t *out, __global const state_t *in, int zero, int row,
                             int col, int value_dim)
{
    const int rows = min(KDA_ROWS, ROWS_INSIDE(row)), cols = min(KDA_VEC, value_dim - col);
ROLLED
    for (int i = 0; i < rows; i++)
ROLLED
        for (int j = 0; j < cols; j++) {
            const long at = STATE_AT(i, j, value_dim);
            out[at] = zero ? 0 : in[at];
        }
}

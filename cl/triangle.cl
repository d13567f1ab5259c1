/* T = (I + R)^-1 and its products W and U. Names and formulas are those of chunk.cl.
 *
 * SPDX-License-Identifier: MIT */

/* The diagonal blocks of T by substitution, each item its columns. */
INLINE void invert_diagonal(__local float *memory, int lid)
{
    for (int x = lid * LANES; x < C; x += KDA_PREPARE_WG * LANES) {
        const int base = x & ~15;
        __local const float *r = ROWS_R(memory) + ROW_AT(base) + base;
        __local float *t = ROWS_T(memory) + ROW_AT(base) + x;
        lanes_t column[16];
        UNROLL
        for (int i = 0; i < LOOP_BOUND(16); i++) {
            column[i] = unit(base + i - x);
            UNROLL
            for (int m = 0; m < LOOP_BOUND(15); m++)
                if (m < i) /* a loop to i would not be unrolled */
                    column[i] -= r[i * ROW_LENGTH(base) + m] * column[m];
            store_lanes(t + i * ROW_LENGTH(base), column[i]);
        }
    }
}

/* A row of blocks of T below the diagonal, in two steps: R times the T above, and that times the
 * diagonal block. */
INLINE void multiply_r(__local float *memory, int block, int lid)
{
    const int width = block * 16;
    for (int x = lid; x < 16 * width / WIDE; x += KDA_PREPARE_WG) {
        const int i = x / (width / WIDE), j = x % (width / WIDE) * WIDE;
        __local const float *r = ROWS_R(memory) + ROW_AT(width + i);
        wide_t sum = 0.0f;
        UNROLL_BY(4)
        for (int m = j & ~15; m < width; m++)
            sum += r[m] * load_wide(ROWS_T(memory) + ROW_AT(m) + j);
        store_wide_local(PRODUCT(memory) + i * C + j, sum);
    }
}
INLINE void merge_diagonal(__local float *memory, int block, int lid)
{
    const int width = block * 16;
    for (int x = lid; x < 16 * width / WIDE; x += KDA_PREPARE_WG) {
        const int i = x / (width / WIDE), j = x % (width / WIDE) * WIDE;
        __local float *t = ROWS_T(memory) + ROW_AT(width + i);
        wide_t sum = 0.0f;
        UNROLL_BY(4)
        for (int m = 0; m <= i; m++)
            sum -= t[width + m] * load_wide(PRODUCT(memory) + m * C + j);
        store_wide_local(t + j, sum);
    }
}

/* What T is multiplied with: columns of what W is made of, or of beta v. */
INLINE void load_keys(const struct chunk *t, __local float *memory, int c0, int lid)
{
    UNROLL_LOADS
    for (int x = lid * LANES; x < C * COLUMNS; x += KDA_PREPARE_WG * LANES) {
        const int i = x / COLUMNS, c = min(c0 + x % COLUMNS, PADDED_K - LANES);
        store_lanes(SLAB_X(memory) + x, load_lanes(t->w + i * PADDED_K + c));
    }
}
INLINE void load_values(const struct kda_call_args *a, const struct chunk *t, __local float *memory,
                        __local const float *row_beta, int c0, int lid)
{
    UNROLL_LOADS
    for (int x = lid * LANES; x < C * COLUMNS; x += KDA_PREPARE_WG * LANES) {
        const int i = x / COLUMNS, c = c0 + x % COLUMNS;
        const long from = max(min(i, t->rows - 1), 0);
        store_lanes(SLAB_X(memory) + x,
                    data_lanes(t->v, from * a->v.token_stride + min(c, a->value_dim - 1),
                               i < t->rows ? a->value_dim - c : 0) *
                        row_beta[i]);
    }
}

/* Adds row m + n of what T is multiplied with to four rows of the product: factors f[].component.
 */
#define ADD_COLUMN(n, component)                                                                   \
    do {                                                                                           \
        const wide_t row_n = load_wide(y + (m + (n)) * COLUMNS);                                   \
        UNROLL                                                                                     \
        for (int i = 0; i < 4; i++)                                                                \
            sum[i] += f[i].component * row_n;                                                      \
    } while (0)

/* Four rows by WIDE columns an item. */
INLINE void multiply_t(__local const float *memory, __global float *to, int stride, int c0, int lid)
{
    for (int x = lid; x < C / 4 * (COLUMNS / WIDE); x += KDA_PREPARE_WG) {
        const int s = x % (COLUMNS / WIDE) * WIDE, row = x / (COLUMNS / WIDE) * 4;
        __local const float *y = SLAB_X(memory) + s;
        wide_t sum[4];
        UNROLL
        for (int i = 0; i < 4; i++)
            sum[i] = load_wide(y + (row + i) * COLUMNS);
#if KDA_RULE == KDA_RULE_DELTA
        __local const float *t = ROWS_T(memory) + ROW_AT(row);
        UNROLL_BY(1)
        for (int m = 0; m < row; m += 4) {
            float4 f[4];
            UNROLL
            for (int i = 0; i < 4; i++)
                f[i] = *(__local const float4 *)(t + i * ROW_LENGTH(row) + m);
            ADD_COLUMN(0, s0);
            ADD_COLUMN(1, s1);
            ADD_COLUMN(2, s2);
            ADD_COLUMN(3, s3);
        }
        /* T has ones on its diagonal; a later row is left out, not multiplied by zero. */
        UNROLL
        for (int m = 0; m < 3; m++) {
            const wide_t last = load_wide(y + (row + m) * COLUMNS);
            UNROLL
            for (int i = 1; i < 4; i++)
                if (i > m)
                    sum[i] += t[i * ROW_LENGTH(row) + row + m] * last;
        }
#endif
        if (c0 + s < stride)
            UNROLL
        for (int i = 0; i < 4; i++)
            store_wide_global(to + (row + i) * stride + c0 + s, sum[i]);
    }
}

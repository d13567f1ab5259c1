/* The chunkwise schedule, part two: the scan over chunks, and the outputs on the way. Names and
 * formulas are those of chunk.cl:
 *
 *     E = U - W S      O = Qd S + A_qk E      S = D S + Ke^T E
 *
 * One work-group walks the chunks of one sequence, value head and tile of KDA_SCAN_V columns; its
 * part of S stays in local memory, so no chunk's state ever goes through global memory.
 *
 * The factors. With KDA_SCAN_STAGED, for devices with local memory for all of a chunk's, they are
 * copied there while the part before is at work: W and Qd, which E and O begin with, during the
 * second part of the chunk before; A_qk, Ke and D during the first part of their own. Otherwise
 * each work-item reads them from the workspace where it needs them: neighbouring items read the
 * same rows, which caches serve.
 *
 * The tile. An item owns KDA_SCAN_ROWS tokens by KDA_SCAN_VEC columns of E and O, and four key
 * channels by as many columns of S:
 *
 *     item = row * COLS + cx      COLS = KDA_SCAN_V / KDA_SCAN_VEC      C / KDA_SCAN_ROWS rows
 *
 * For C = 32, K = 128 and tiles of 32 columns: S 16 KiB and E 4 KiB of local memory, 128 items of
 * 2 x 4; staged factors 59 KiB. A row's sums run over channels, then over tokens, in order:
 * columns never mix, so the result does not depend on the tile, and token i reads no later token's
 * error.
 *
 * On matrix units (KDA_UNIT, see unit.cl) a sub-group has the tiles instead of an item: UNIT_ROWS
 * tokens by UNIT_COLS columns of E and O, as many key channels by as many columns of S. E, and what
 * the units multiply of S, lie as images in local memory. There a tile's products take in whole 16
 * tokens, so an infinity or a NaN reaches earlier tokens of its chunk.
 *
 * Barriers, two a chunk: (1) S is complete before E is computed, and E of the chunk before has been
 * used; (2) E is complete before it is multiplied; and (3) S is complete at the end. Each also says
 * that the factors of the part to come are there and those of the part before have been used. None
 * stands in a branch: see step.cl.
 *
 * SPDX-License-Identifier: MIT */

#ifndef KDA_SCAN_V
#define KDA_SCAN_V 32 /* columns of V for each work-group */
#endif
#ifndef KDA_SCAN_VEC
#define KDA_SCAN_VEC 4 /* columns of an item: 4, 8 or 16; with KDA_UNIT UNIT_COLS */
#endif
#ifndef KDA_SCAN_ROWS
#define KDA_SCAN_ROWS 2 /* tokens of an item: 1, 2, 4, 8 or 16; with KDA_UNIT UNIT_ROWS */
#endif

#ifndef KDA_SCAN_STAGED
#define KDA_SCAN_STAGED 0
#endif

#define C KDA_CHUNK
#define COLS (KDA_SCAN_V / KDA_SCAN_VEC)
#define ITEM_ROWS (C / KDA_SCAN_ROWS)
#define SCAN_WG (ITEM_ROWS * COLS * UNIT_LANES)

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
typedef JOIN(float, KDA_SCAN_VEC) vec_t;

/* Where factors are read, and the length of their rows there: in local memory such that
 * neighbouring items' rows lie in different banks. */
#if KDA_SCAN_STAGED
#define FACTORS __local
#define K_ROW (PADDED_K + 4)
#define A_ROW (C + 4)
#define U_ROW KDA_SCAN_V
#else
#define FACTORS __global
#define K_ROW PADDED_K
#define A_ROW C
#define U_ROW padded_v
#endif

static inline float4 load4(FACTORS const float *p)
{
    return *(FACTORS const float4 *)p;
}

/* Begins to copy the rows of a factor. */
static inline void fetch_rows(__local float *to, int to_row, __global const float *from, int rows,
                              int width, int lid)
{
    for (int x = lid * 4; x < rows * width; x += SCAN_WG * 4)
        fetch(to + x / width * to_row + x % width, from + x);
}

/* What the two parts of a chunk read. */
#define FETCH_FIRST(from)                                                                          \
    do {                                                                                           \
        fetch_rows(rows_w, K_ROW, (from) + FACTOR_W, C, PADDED_K, lid);                            \
        fetch_rows(rows_qd, K_ROW, (from) + FACTOR_QD, C, PADDED_K, lid);                          \
        for (int x = lid * 4; x < C * KDA_SCAN_V; x += SCAN_WG * 4)                                \
            if (col0 + x % KDA_SCAN_V < padded_v)                                                  \
                fetch(rows_u + x,                                                                  \
                      (from) + FACTOR_U + x / KDA_SCAN_V * padded_v + col0 + x % KDA_SCAN_V);      \
    } while (0)
#define FETCH_SECOND(from)                                                                         \
    do {                                                                                           \
        fetch_rows(rows_a, A_ROW, (from) + FACTOR_A, C, C, lid);                                   \
        fetch_rows(rows_ke, K_ROW, (from) + FACTOR_KE, C, PADDED_K, lid);                          \
        fetch_rows(row_d, K_ROW, (from) + FACTOR_D, 1, PADDED_K, lid);                             \
    } while (0)

/* Sets a cell of S, which lies at x, and what is multiplied of it. */
#if KDA_UNIT && UNIT_SPLIT
#define PUT_STATE(x, value)                                                                        \
    do {                                                                                           \
        const float put = value;                                                                   \
        cells[x] = put;                                                                            \
        unit_put(image, KDA_SCAN_V, (x) / KDA_SCAN_V, (x) % KDA_SCAN_V, put);                      \
    } while (0)
#else
#define PUT_STATE(x, value) cells[x] = value
#endif

/* Fills S with a value at row and col, and zeros where there is nothing. Loads need no branch, so
 * that several are under way at once. */
#define FILL_STATE(value)                                                                          \
    UNROLL_BY(8)                                                                                   \
    for (int x = lid; x < PADDED_K * KDA_SCAN_V; x += SCAN_WG) {                                   \
        const int r = x / KDA_SCAN_V, c = col0 + x % KDA_SCAN_V;                                   \
        const int row = min(r, KDA_K - 1), col = min(c, value_dim - 1);                            \
        const float cell = value;                                                                  \
        PUT_STATE(x, row == r && col == c ? cell : 0.0f);                                          \
    }

/* Writes S, which all items see complete. Products of matrix units leave fewer registers. */
#if KDA_UNIT
#define UNROLL_STORES ROLLED
#else
#define UNROLL_STORES UNROLL_BY(4)
#endif
#define STORE_STATE(to)                                                                            \
    UNROLL_STORES                                                                                  \
    for (int x = lid; x < KDA_K * KDA_SCAN_V; x += SCAN_WG)                                        \
        if (col0 + x % KDA_SCAN_V < value_dim)                                                     \
    store_state(to, STATE_AT(x / KDA_SCAN_V, col0 + x % KDA_SCAN_V, value_dim), cells[x])

__kernel UNIT_GROUP(SCAN_WG) void kda_scan(
    const struct kda_call_args a, __global const int *cu_seqlens, __global const int *state_index,
    __global const int *write_index, __global const int *accepted, __global const uchar *fresh,
    __global const state_t *initial_state, __global state_t *final_state, __global out_t *out,
    __global state_t *checkpoints, __global float *workspace)
{
    __local vec_t state[PADDED_K][COLS], error[C][COLS];
#if KDA_UNIT && UNIT_SPLIT
    __local float image[PADDED_K * KDA_SCAN_V] __attribute__((aligned(16)));
#elif KDA_UNIT
    __local float *const image = (__local float *)state;
#endif
#if KDA_SCAN_STAGED
    __local float rows_w[C * K_ROW] __attribute__((aligned(16)));
    __local float rows_qd[C * K_ROW] __attribute__((aligned(16)));
    __local float rows_ke[C * K_ROW] __attribute__((aligned(16)));
    __local float rows_a[C * A_ROW] __attribute__((aligned(16)));
    __local float row_d[PADDED_K] __attribute__((aligned(16)));
    __local float rows_u[C * KDA_SCAN_V] __attribute__((aligned(16)));
#endif

    const int lid = (int)get_local_id(0), item = lid / UNIT_LANES; /* or sub-group */
    const int cx = item % COLS, ir = item / COLS;
    const int value_dim = a.value_dim, padded_v = a.padded_v;
    const uint tiles = (uint)(value_dim + KDA_SCAN_V - 1) / KDA_SCAN_V;
    const uint group = GROUP_ID, pair = group / tiles;
    const int head = (int)(pair % (uint)a.value_heads);
    const long n = pair / (uint)a.value_heads;
    const int col0 = (int)(group % tiles) * KDA_SCAN_V;

    /* This sequence's chunks within the piece. */
    const int begin = chunk_start(&a, workspace, n), end = chunk_start(&a, workspace, n + 1);
    const int first = max(begin, a.first_chunk);
    const long slot = sequence_slot(&a, state_index, accepted, n);
    const int restart = is_fresh(&a, fresh, n);
    const int last = /* first: none */
        slot < 0 ? first : max(first, min(end, a.first_chunk + a.chunk_count));
    const long start = sequence_start(&a, cu_seqlens, n);
    const long length = sequence_start(&a, cu_seqlens, n + 1) - start;

    out += a.out.offset + head * a.out.head_stride;
    initial_state += a.initial_state.offset + slot * a.initial_state.token_stride +
                     head * a.initial_state.head_stride;
    checkpoints += a.checkpoints.offset + head * a.checkpoints.head_stride;

    __local float *const cells = (__local float *)state;
#if KDA_UNIT
    __local float *const errors = (__local float *)error;
    const int lane = lid % UNIT_LANES, tile_col = cx * UNIT_COLS;
    const int col = col0 + tile_col + UNIT_COL(lane);
    /* A tile of columns that are not there takes U's first ones: nobody stores what comes of it. */
    const int u_col =
        col0 + tile_col < padded_v ? UNIT_COL(lane) : UNIT_COL(lane) - col0 - tile_col;
#endif
    const long carried = (long)head * PADDED_K * padded_v;
    if (first < last && first > begin)
        FILL_STATE(workspace[a.carry_in + carried + (long)row * padded_v + col])
    else if (first < last && !restart)
        FILL_STATE(load_state(initial_state, STATE_AT(row, col, value_dim)))
    else if (first < last)
        FILL_STATE(0.0f)

    __global const float *factors =
        workspace + a.factors +
        ((long)(first - a.first_chunk) * a.value_heads + head) * a.factor_stride;
    const long next =
        a.value_heads * a.factor_stride; /* from a chunk's factors to the next one's */
#if KDA_SCAN_STAGED
    if (first < last)
        FETCH_FIRST(factors);
#endif
    for (int chunk = first; chunk < last; chunk++, factors += next) {
#if !KDA_SCAN_STAGED
        __global const float
            *const rows_w = factors + FACTOR_W,
                   *const rows_qd = factors + FACTOR_QD, *const rows_ke = factors + FACTOR_KE,
                   *const rows_a = factors + FACTOR_A, *const row_d = factors + FACTOR_D,
                   *const rows_u = factors + FACTOR_U + col0;
#endif
        FACTORS const float *w = rows_w + ir * KDA_SCAN_ROWS * K_ROW;
        FACTORS const float *qd = rows_qd + ir * KDA_SCAN_ROWS * K_ROW;
        FACTORS const float *a_qk = rows_a + ir * KDA_SCAN_ROWS * A_ROW;
        FACTORS const float *u = rows_u + ir * KDA_SCAN_ROWS * U_ROW + cx * KDA_SCAN_VEC;
        const long chunk_row = (long)(chunk - begin) * C; /* counted in the sequence */

        fetch_wait();
        barrier(CLK_LOCAL_MEM_FENCE); /* (1) */
#if KDA_SCAN_STAGED
        FETCH_SECOND(factors);
#endif
        if (is_checkpoint(&a, chunk_row, length))
            STORE_STATE(checkpoints +
                        CHECKPOINT(&a, start, chunk_row) * a.checkpoints.token_stride);
#if KDA_UNIT
        unit_t we = 0.0f, o = 0.0f;
#if KDA_RULE == KDA_RULE_DELTA
        we = unit_sum(we, w, K_ROW, 1, image, KDA_SCAN_V, tile_col, PADDED_K, lane);
#endif
        PRAGMA(unroll)
        for (int i = 0; i < UNIT_CELLS; i++) {
            const int row = UNIT_ROW(lane, i);
            unit_put(errors, KDA_SCAN_V, ir * UNIT_ROWS + row, tile_col + UNIT_COL(lane),
                     u[row * U_ROW + u_col] - we[i]);
        }
        o = unit_sum(o, qd, K_ROW, 1, image, KDA_SCAN_V, tile_col, PADDED_K, lane);
#else
        vec_t e[KDA_SCAN_ROWS], o[KDA_SCAN_ROWS];
        PRAGMA(unroll)
        for (int i = 0; i < KDA_SCAN_ROWS; i++) {
            e[i] = o[i] = 0.0f;
            if (col0 + cx * KDA_SCAN_VEC < padded_v) /* U has this item's columns */
                e[i] = *(FACTORS const vec_t *)(u + i * U_ROW);
        }
        PRAGMA(unroll 2)
        for (int r = 0; r < PADDED_K; r += 4) {
            const vec_t s0 = state[r][cx], s1 = state[r + 1][cx], s2 = state[r + 2][cx],
                        s3 = state[r + 3][cx];
            PRAGMA(unroll)
            for (int i = 0; i < KDA_SCAN_ROWS; i++) {
                const float4 y = load4(qd + i * K_ROW + r);
                o[i] += y.s0 * s0;
                o[i] += y.s1 * s1;
                o[i] += y.s2 * s2;
                o[i] += y.s3 * s3;
#if KDA_RULE == KDA_RULE_DELTA
                const float4 x = load4(w + i * K_ROW + r);
                e[i] -= x.s0 * s0;
                e[i] -= x.s1 * s1;
                e[i] -= x.s2 * s2;
                e[i] -= x.s3 * s3;
#endif
            }
        }
        PRAGMA(unroll)
        for (int i = 0; i < KDA_SCAN_ROWS; i++)
            error[ir * KDA_SCAN_ROWS + i][cx] = e[i];
#endif
        fetch_wait();
        barrier(CLK_LOCAL_MEM_FENCE); /* (2) */
#if KDA_SCAN_STAGED
        if (chunk + 1 < last)
            FETCH_FIRST(factors + next);
#endif

#if KDA_UNIT
        o = unit_sum(o, a_qk, A_ROW, 1, errors, KDA_SCAN_V, tile_col,
                     (ir * UNIT_ROWS / 16 + 1) * 16, lane);
        /* Counted from this tile's row: ocloc spills where cells are from the sequence's. */
        const long tile_row = chunk_row + ir * UNIT_ROWS;
        const int left = (int)min(length - tile_row, (long)UNIT_ROWS);
        __global out_t *const tile_out = out + (start + tile_row) * a.out.token_stride + col;
        PRAGMA(unroll)
        for (int i = 0; i < UNIT_CELLS; i++) {
            const int row = UNIT_ROW(lane, i);
            if (row < left && col < value_dim)
                store_out(tile_out, row * a.out.token_stride, o[i]);
        }
        for (int r = ir * UNIT_ROWS; r < PADDED_K; r += ITEM_ROWS * UNIT_ROWS) {
            unit_t ke = 0.0f;
            ke = unit_sum(ke, rows_ke + r, 1, K_ROW, errors, KDA_SCAN_V, tile_col, C, lane);
            PRAGMA(unroll)
            for (int i = 0; i < UNIT_CELLS; i++) {
                const int row = r + UNIT_ROW(lane, i);
                const int x = row * KDA_SCAN_V + tile_col + UNIT_COL(lane);
                PUT_STATE(x, cells[x] * row_d[row] + ke[i]);
            }
        }
#else
        /* Four tokens at a time; the last four hold the row itself, and tokens behind it are left
         * out rather than multiplied by zero. */
        const int own = ir * KDA_SCAN_ROWS & ~3;
        for (int j = 0; j < own; j += 4) {
            const vec_t e0 = error[j][cx], e1 = error[j + 1][cx], e2 = error[j + 2][cx],
                        e3 = error[j + 3][cx];
            PRAGMA(unroll)
            for (int i = 0; i < KDA_SCAN_ROWS; i++) {
                const float4 x = load4(a_qk + i * A_ROW + j);
                o[i] += x.s0 * e0;
                o[i] += x.s1 * e1;
                o[i] += x.s2 * e2;
                o[i] += x.s3 * e3;
            }
        }
        FOR_INSIDE(i, KDA_SCAN_ROWS, length - chunk_row - ir * KDA_SCAN_ROWS)
        {
            const int row = ir * KDA_SCAN_ROWS + i;
            for (int j = own; j <= row; j++)
                o[i] += a_qk[i * A_ROW + j] * error[j][cx];
            const float *value = (const float *)&o[i];
            FOR_INSIDE(c, KDA_SCAN_VEC, value_dim - col0 - cx * KDA_SCAN_VEC)
            store_out(out,
                      (start + chunk_row + row) * a.out.token_stride + col0 + cx * KDA_SCAN_VEC + c,
                      value[c]);
        }

        for (int r = ir * 4; r < PADDED_K; r += ITEM_ROWS * 4) {
            const float4 d = load4(row_d + r);
            vec_t s0 = state[r][cx] * d.s0, s1 = state[r + 1][cx] * d.s1,
                  s2 = state[r + 2][cx] * d.s2, s3 = state[r + 3][cx] * d.s3;
            PRAGMA(unroll 4)
            for (int j = 0; j < C; j++) {
                const vec_t ej = error[j][cx];
                const float4 x = load4(rows_ke + j * K_ROW + r);
                s0 += x.s0 * ej;
                s1 += x.s1 * ej;
                s2 += x.s2 * ej;
                s3 += x.s3 * ej;
            }
            state[r][cx] = s0;
            state[r + 1][cx] = s1;
            state[r + 2][cx] = s2;
            state[r + 3][cx] = s3;
        }
#endif
    }

    barrier(CLK_LOCAL_MEM_FENCE);               /* (3) */
    const long done = (long)(last - begin) * C; /* tokens behind us, if the last chunk was full */
    if (first < last && is_checkpoint(&a, done, length))
        STORE_STATE(checkpoints + CHECKPOINT(&a, start, done) * a.checkpoints.token_stride);
    const long to = first < last && last == end ? write_slot(&a, write_index, n, 0) : -1;
    if (to >= 0)
        STORE_STATE(final_state + a.final_state.offset + to * a.final_state.token_stride +
                    head * a.final_state.head_stride);
    if (first < last && last < end)
        for (int x = lid; x < PADDED_K * KDA_SCAN_V; x += SCAN_WG)
            if (col0 + x % KDA_SCAN_V < padded_v)
                workspace[a.carry_out + carried + (long)(x / KDA_SCAN_V) * padded_v + col0 +
                          x % KDA_SCAN_V] = cells[x];
}

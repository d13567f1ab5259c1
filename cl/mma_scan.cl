/* The matrix-unit engine, part two: the scan over chunks of 64 tokens. What mma_prepare.cl leaves
 * of a chunk and head are Kd, Qd, Ke, A_qk and L as images for the matrix units, D and beta. With
 * the error of a token before the corrections of its own chunk,
 *
 *     X = V - Kd S      E = beta X + L X      O = Qd S + A_qk E      S = D S + Ke^T E
 *
 * where L = (T - 1) diag(beta) is strictly lower triangular: so the largest part of E, beta X, is
 * never rounded to 16 bits before it is used. Nor is what a token reads of its own write, the
 * diagonal of A_qk, which is most of O where decays are strong.
 *
 * A team of four warps owns 64 columns of V and keeps S^T, a warp 16 rows of it, in the registers
 * that results of products have; all products are of transposes, so a result packed to pairs is
 * the next product's left operand, and nothing crosses lanes (see matrix.cl). A work-group is
 * KDA_TEAMS teams that share the chunk's images.
 *
 *     registers of a lane     S^T 64, packed S^T 32, X -> E 32, O 32, packed X -> E 16, V 16
 *     local memory, a stage   65 KiB of images, a tile of 9 KiB for each team
 *
 * THE ORDER OF A CHUNK. S waits for three products in a row, and each of these for what lanes do in
 * between; all else runs while they do:
 *
 *     matrix units   | Kd S                       | L X | Ke^T E    Qd S    A_qk E |
 *     lanes          | O of the chunk before, D S |     | the next V               | pack S
 *
 * What comes from memory and goes there is the movers' work (copies.cl). Two rings turn together,
 * STAGES chunks ahead: of images, whose stage a warp releases when a chunk is through, and of
 * tiles, where a warp has taken V long before its chunk ends: it puts the O of the chunk before in
 * V's place and releases that, so that the next V for this place is not late.
 *
 * SPDX-License-Identifier: MIT */

#ifndef KDA_TEAMS
#define KDA_TEAMS 1 /* tiles of 64 columns in a work-group */
#endif
#ifndef KDA_V
#define KDA_V 128 /* value_dim, a multiple of 64 KDA_TEAMS */
#endif
#define STAGES (KDA_TEAMS == 1 ? 3 : 2) /* two teams take twice as long for a chunk */
#define SCAN_WG (128 * KDA_TEAMS + MOVERS)
#define WARPS (4 * KDA_TEAMS)

/* O of a chunk as it is stored: pairs of bf16, or the numbers themselves. */
#if KDA_OUT_DTYPE == KDA_BF16
#define RESULTS 16
#define RESULT(o, i) pack_bf16(o[2 * (i)], o[2 * (i) + 1])
typedef uint result_t;
#else
#define RESULTS 32
#define RESULT(o, i) o[i]
typedef float result_t;
#endif

/* Where V and O are in memory: the columns of this work-group, from the piece's first chunk on. */
struct traffic {
    __global const data_t *v;
    __global out_t *out;
    long v_stride, out_stride;
    int wide;
};

/* Sends off the O that a tile has, `done` rows of it, and for V of a chunk, zeros behind its `rows`
 * rows; either may be none. An item's own pieces of 8 elements, 16 rows apart: nothing else needs
 * to be waited for. */
static __attribute__((always_inline)) inline void exchange(struct traffic m, __local ushort *tile,
                                                           int chunk, int rows, int done, int mover)
{
    const int row0 = mover >> 3, inside = (mover & 7) * 8;
    tile += row0 * TILE_ROW + inside;
    __global const data_t *v = m.v + (chunk * 64l + row0) * m.v_stride + inside;
    __global out_t *out = m.out + ((chunk - STAGES - 1) * 64l + row0) * m.out_stride + inside;
    if (mover < 128)
        for (int team = 0; team < KDA_TEAMS; team++, tile += 64 * TILE_ROW, v += 64, out += 64) {
            uint4 held[4];
            UNROLL
            for (int p = 0; p < 4; p++)
                held[p] = *(__local const uint4 *)(tile + 16 * p * TILE_ROW);
            if (rows > 0)
                UNROLL
            for (int p = 0; p < 4; p++) {
                const int there = row0 + 16 * p < rows;
                __global const data_t *const from = v + p * 16 * m.v_stride;
                __local ushort *const to = tile + 16 * p * TILE_ROW;
                if (m.wide)
                    copy_16(to, from, there);
                else
                    for (int c = 0; c < 8; c++)
                        to[c] = there ? from[c] : 0;
            }
#if KDA_OUT_DTYPE == KDA_BF16
            UNROLL
            for (int p = 0; p < 4; p++) {
                __global out_t *const to = out + p * 16 * m.out_stride;
                const uint *const words = (const uint *)&held[p];
                if (row0 + 16 * p < done) {
                    if (m.wide)
                        *(__global uint4 *)to = held[p];
                    else
                        for (int c = 0; c < 8; c++)
                            to[c] = (ushort)(words[c >> 1] >> 16 * (c & 1));
                }
            }
#endif
        }
}

#if KDA_OUT_DTYPE == KDA_BF16
/* A chunk's O takes V's place in its stage. */
#define PUT_RESULT(chunk, rows) tile_store(TILE(stage), result, lane)
#else
/* Numbers that are not rounded go from where they are. */
#define PUT_RESULT(chunk, rows)                                                                    \
    UNROLL                                                                                         \
    for (int i = 0; i < 32; i++) {                                                                 \
        const int row = i / 4 * 8 + 2 * t + (i & 1);                                               \
        if (row < (rows))                                                                          \
            store_out(m.out, ((chunk)*64l + row) * m.out_stride + warp * 16 + g + (i & 2) * 4,     \
                      result[i]);                                                                  \
    }
#endif

/* S^T in its registers from and to a state in memory. */
#define FOR_CELLS(i, r, c)                                                                         \
    UNROLL for (int i = 0; i < 64; i++) for (int r = i / 4 * 8 + 2 * t + (i & 1),                  \
                                             c = col + g + (i & 2) * 4, once = 1;                  \
                                             once; once = 0)

/* This warp's columns of a tile. */
#define TILE(stage) (tiles[stage][warp >> 2] + (warp & 3) * 16)
/* Of a chunk of this piece: how many tokens it has. */
#define ROWS(chunk) ((int)min(length - chunk_row0 - (chunk)*64l, 64l))

/* The stage of the next chunk, and how often it was filled before, modulo 2. */
#define NEXT_STAGE                                                                                 \
    if (++stage == STAGES) {                                                                       \
        stage = 0;                                                                                 \
        turn ^= 1;                                                                                 \
    }

/* The movers' part of a chunk: its V comes when the O that was put in its tile goes, its images
 * when their stage is free, which is later. */
#define MOVE(chunk, mover)                                                                         \
    {                                                                                              \
        ring_reclaim(tile_counters + 2 * stage, (chunk) >= STAGES, turn ^ 1);                      \
        exchange(m, tiles[stage][0], chunk, (chunk) < chunks ? ROWS(chunk) : 0,                    \
                 (chunk) > STAGES ? ROWS((chunk)-STAGES - 1) : 0, mover);                          \
        ring_filled(tile_counters + 2 * stage);                                                    \
        ring_reclaim(counters + 2 * stage, (chunk) >= STAGES && (chunk) < chunks, turn ^ 1);       \
        if ((chunk) < chunks)                                                                      \
            ring_fill(ring[stage], images + (chunk)*block_bytes, IMAGE_BYTES,                      \
                      counters + 2 * stage, mover);                                                \
    }
/* V of a chunk to where its product will be subtracted from it. */
#define TAKE_VALUES                                                                                \
    {                                                                                              \
        uint pairs[16];                                                                            \
        ring_wait(tile_counters + 2 * stage, turn);                                                \
        lanes_sync();                                                                              \
        tile_load(pairs, TILE(stage), lane);                                                       \
        UNROLL                                                                                     \
        for (int i = 0; i < 16; i++) {                                                             \
            x[2 * i] = as_float(pairs[i] << 16);                                                   \
            x[2 * i + 1] = as_float(pairs[i] & 0xffff0000u);                                       \
        }                                                                                          \
    }
/* O of the chunk before this one to where this one's V was. */
#define PUT_OUTPUT(chunk, rows)                                                                    \
    {                                                                                              \
        PUT_RESULT((chunk)-1, rows);                                                               \
        lanes_sync();                                                                              \
        if (lane == 0)                                                                             \
            ring_release(tile_counters + 2 * stage);                                               \
    }

__kernel WORK_GROUP(SCAN_WG) void
kda_mma_scan(const struct kda_call_args a, __global const data_t *v, __global const int *cu_seqlens,
             __global const int *state_index, __global const int *write_index,
             __global const int *accepted, __global const uchar *fresh,
             __global const state_t *initial_state, __global state_t *final_state,
             __global out_t *out, __global state_t *checkpoints, __global float *workspace)
{
    __local uchar ring[STAGES][IMAGE_BYTES] __attribute__((aligned(1024)));
    __local ushort tiles[STAGES][KDA_TEAMS][64 * TILE_ROW] __attribute__((aligned(16)));
    __local ring_counter counters[2 * STAGES], tile_counters[2 * STAGES];
    TEAM_SCRATCH(KDA_TEAMS)

    const int lid = (int)get_local_id(0), lane = lid & 31, warp = lid >> 5;
    const int g = lane >> 2, t = lane & 3;
    const uint groups = KDA_V / (64 * KDA_TEAMS);
    const uint group = GROUP_ID, pair = group / groups;
    const int head = (int)(pair % (uint)a.value_heads);
    const long n = pair / (uint)a.value_heads;
    const int first_col = (int)(group % groups) * (64 * KDA_TEAMS), col = first_col + warp * 16;

    /* This sequence's chunks within the piece. */
    const int begin = lanes_uniform(chunk_start(&a, workspace, n));
    const int end = lanes_uniform(chunk_start(&a, workspace, n + 1));
    const int first = max(begin, a.first_chunk);
    const long slot = sequence_slot(&a, state_index, accepted, n);
    const int last = /* first: none */
        slot < 0 ? first : max(first, min(end, a.first_chunk + a.chunk_count));
    const long start = sequence_start(&a, cu_seqlens, n);
    const long length = sequence_start(&a, cu_seqlens, n + 1) - start;
#if !KDA_COMPACT
    if (first == last)
        return;
#endif
    const long chunk_row0 = (long)(first - begin) * 64;
    struct traffic m;
    m.v = v + a.v.offset + head * a.v.head_stride + (start + chunk_row0) * a.v.token_stride +
          first_col;
    m.out = out + a.out.offset + head * a.out.head_stride +
            (start + chunk_row0) * a.out.token_stride + first_col;
    m.v_stride = a.v.token_stride;
    m.out_stride = a.out.token_stride;
    m.wide = a.has & KDA_HAS_WIDE_ROWS;
    initial_state += a.initial_state.offset + slot * a.initial_state.token_stride +
                     head * a.initial_state.head_stride;
    checkpoints += a.checkpoints.offset + head * a.checkpoints.head_stride;
    const long block_bytes = a.factor_stride * 4 * a.value_heads;
    __global const uchar *images =
        (__global const uchar *)(workspace + a.factors) +
        ((long)(first - a.first_chunk) * a.value_heads + head) * a.factor_stride * 4;

    if (lid == 0) {
        ring_init(counters, STAGES, 1, WARPS);
        ring_init(tile_counters, STAGES, MOVERS, WARPS);
    }
    barrier(CLK_LOCAL_MEM_FENCE); /* counters are there */
    const int chunks = lanes_uniform(last - first);
    int stage = 0, turn = 0;
#if MOVERS
    if (warp >= WARPS) {
        MOVER_REGISTERS
        for (int chunk = 0; chunk <= chunks + STAGES; chunk++) {
            MOVE(chunk, lid - 32 * WARPS)
            NEXT_STAGE
        }
        return;
    }
    TEAM_REGISTERS
#else
    MOVE(0, lid)
#endif

    float s[64];
    const long carried = (long)head * KDA_K * KDA_V;
    if (first > begin) {
        FOR_CELLS(i, r, c)
        s[i] = workspace[a.carry_in + carried + (long)r * KDA_V + c];
    } else if (first < last && !is_fresh(&a, fresh, n)) {
        FOR_CELLS(i, r, c)
        s[i] = load_state(initial_state, STATE_AT(r, c, KDA_V));
    } else {
        UNROLL
        for (int i = 0; i < 64; i++)
            s[i] = 0.0f;
    }
    float x[32], o[32];
#if MOVERS
    if (chunks > 0)
#endif
        TAKE_VALUES
    for (int chunk = 0; chunk < chunks; chunk++) {
        const long chunk_row = chunk_row0 + (long)chunk * 64;
        __local const uchar *const image = ring[stage];
        __local const float2 *const decay = (__local const float2 *)(image + IMAGE_D);
        __local const float2 *const beta = (__local const float2 *)(image + IMAGE_BETA);
        __local const float2 *const diagonal = (__local const float2 *)(image + IMAGE_DIAGONAL);
        if (is_checkpoint(&a, chunk_row, length)) {
            __global state_t *to = checkpoints + CHECKPOINT(chunk_row) * a.checkpoints.token_stride;
            FOR_CELLS(i, r, c)
            store_state(to, STATE_AT(r, c, KDA_V), s[i]);
        }

        uint left[32], pairs[16];
        UNROLL
        for (int i = 0; i < 32; i++)
            left[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
        result_t result[RESULTS];
        UNROLL
        for (int i = 0; i < RESULTS; i++)
            result[i] = RESULT(o, i);
        ring_wait(counters + 2 * stage, turn);
        lanes_sync();
#if KDA_RULE == KDA_RULE_DELTA
        product_rows(x, left, image + IMAGE_KD);
#endif

        /* While they run: the output of the chunk before, and D S. */
        PUT_OUTPUT(chunk, chunk > 0 ? 64 : 0)
        UNROLL
        for (int i = 0; i < 64; i += 4) {
            const float2 d = decay[i + t];
            s[i] *= d.s0;
            s[i + 1] *= d.s1;
            s[i + 2] *= d.s0;
            s[i + 3] *= d.s1;
        }

        /* E: what needs no product, and the rest. */
#if KDA_RULE == KDA_RULE_DELTA
        product_wait32(0, x);
#endif
        UNROLL
        for (int i = 0; i < 32; i += 4) {
            const float2 b = beta[i + t];
            pairs[i / 2] = pack_bf16(x[i], x[i + 1]);
            pairs[i / 2 + 1] = pack_bf16(x[i + 2], x[i + 3]);
            x[i] *= b.s0;
            x[i + 1] *= b.s1;
            x[i + 2] *= b.s0;
            x[i + 3] *= b.s1;
        }
#if KDA_RULE == KDA_RULE_DELTA
        product_square(x, pairs, image + IMAGE_L);
#endif
#if KDA_RULE == KDA_RULE_DELTA
        product_wait32(0, x);
#endif
        UNROLL
        for (int i = 0; i < 32; i += 4) {
            const float2 a0 = diagonal[i + t];
            pairs[i / 2] = pack_bf16(x[i], x[i + 1]);
            pairs[i / 2 + 1] = pack_bf16(x[i + 2], x[i + 3]);
            o[i] = x[i] * a0.s0;
            o[i + 1] = x[i + 1] * a0.s1;
            o[i + 2] = x[i + 2] * a0.s0;
            o[i + 3] = x[i + 3] * a0.s1;
        }
        product_cols(s, pairs, image + IMAGE_KE);
        product_rows(o, left, image + IMAGE_QD);
        product_square(o, pairs, image + IMAGE_A);

        /* While these run: the next V. */
        __local ring_counter *const used = counters + 2 * stage;
        NEXT_STAGE
#if MOVERS
        if (chunk + 1 < chunks)
#else
        MOVE(chunk + 1, lid)
#endif
            TAKE_VALUES
        product_wait32(0, o);
        product_wait64(0, s);
        if (lane == 0)
            ring_release(used);
    }
    result_t result[RESULTS];
    UNROLL
    for (int i = 0; i < RESULTS; i++)
        result[i] = RESULT(o, i);
    PUT_OUTPUT(chunks, chunks > 0 ? ROWS(chunks - 1) : 0)
#if !MOVERS
    for (int chunk = chunks + 1; chunk <= chunks + STAGES; chunk++) {
        NEXT_STAGE
        MOVE(chunk, lid)
    }
#endif

    const long done = (long)(last - begin) * 64; /* tokens behind us, if the last chunk was full */
    if (first < last && is_checkpoint(&a, done, length)) {
        __global state_t *to = checkpoints + CHECKPOINT(done) * a.checkpoints.token_stride;
        FOR_CELLS(i, r, c)
        store_state(to, STATE_AT(r, c, KDA_V), s[i]);
    }
    const long final = first < last && last == end ? write_slot(&a, write_index, n, 0) : -1;
    if (final >= 0) {
        __global state_t *to = final_state + a.final_state.offset +
                               final * a.final_state.token_stride +
                               head * a.final_state.head_stride;
        FOR_CELLS(i, r, c)
        store_state(to, STATE_AT(r, c, KDA_V), s[i]);
    }
    if (first < last && last < end)
        FOR_CELLS(i, r, c)
    workspace[a.carry_out + carried + (long)r * KDA_V + c] = s[i];
}

/* The matrix-unit engine, part two: the scan over chunks of 64 tokens. What mma_prepare.cl leaves
 * of a chunk and head are Kd, Qd, Ke, A_qk and L as images for the matrix units, D and beta. With
 * the error of a token before the corrections of its own chunk,
 *
 *     X = V - Kd S      E = beta X + L X      O = Qd S + A_qk E      S = D S + Ke^T E
 *
 * where L = (T - 1) diag(beta) is strictly lower triangular: so the largest part of E, beta X, is
 * never rounded to 16 bits before it is used.
 *
 * A team of four warps owns 64 columns of V and keeps S^T, a warp 16 rows of it, in the registers
 * that results of products have; all products are of transposes, so a result packed to pairs is
 * the next product's left operand, and nothing crosses lanes (see matrix.cl). A work-group is
 * KDA_TEAMS teams that share the chunk's images.
 *
 *     registers of a lane     S^T 64, packed S^T 32, X -> E 32, O 32, packed X 16, packed E 16,
 *                             next chunk's V 16
 *     local memory            STAGES x 65 KiB of images, 3 KiB a warp for V in and O out
 *
 * Images arrive by asynchronous copies, STAGES - 1 chunks ahead. Ring protocol: item 0 fills a
 * stage once every warp has released it; a warp releases it after its last product has been waited
 * for.
 *
 * SPDX-License-Identifier: MIT */

#ifndef KDA_TEAMS
#define KDA_TEAMS 1 /* tiles of 64 columns in a work-group */
#endif
#ifndef KDA_V
#define KDA_V 128 /* value_dim, a multiple of 64 KDA_TEAMS */
#endif
#define STAGES 3
/* Waits for the output of the chunk before; the product for X may still run. */
#if KDA_RULE == KDA_RULE_DELTA
#define PRODUCT_WAIT_OUTPUT(o) product_wait32(1, o)
#else
#define PRODUCT_WAIT_OUTPUT(o) product_wait32(0, o)
#endif
#define SCAN_WG (128 * KDA_TEAMS)
#define WARPS (4 * KDA_TEAMS)

/* This warp's 16 columns of a chunk's V into its strip; rows past the end are zero. */
static inline void fetch_values(__local ushort *strip, __global const data_t *v, long stride,
                                int wide, int rows, int lane)
{
    UNROLL
    for (int i = 0; i < 4; i++) {
        const int row = (lane >> 1) + 16 * i, half_row = lane & 1, there = row < rows;
        __local ushort *const to = strip + row * STRIP_ROW + half_row * 8;
        __global const data_t *const from = v + (there ? row : 0) * stride + half_row * 8;
        if (wide)
            copy_16(to, from, there);
        else
            for (int c = 0; c < 8; c++)
                to[c] = there ? from[c] : 0;
    }
}

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

/* Stores `rows` rows of it, pairs by way of the strip. */
static __attribute__((always_inline)) inline void store_result(__global out_t *out, long stride,
                                                               int wide, int rows,
                                                               const result_t result[RESULTS],
                                                               __local ushort *strip, int lane)
{
#if KDA_OUT_DTYPE == KDA_BF16
    strip_store(strip, result, lane);
    lanes_sync();
    UNROLL
    for (int i = 0; i < 4; i++) {
        const int row = (lane >> 1) + 16 * i, half_row = lane & 1;
        __local const ushort *const from = strip + row * STRIP_ROW + half_row * 8;
        __global out_t *const to = out + row * stride + half_row * 8;
        if (row < rows) {
            if (wide)
                *(__global uint4 *)to = *(__local const uint4 *)from;
            else
                for (int c = 0; c < 8; c++)
                    to[c] = from[c];
        }
    }
    lanes_sync();
#else
    UNROLL
    for (int i = 0; i < 32; i++) {
        const int row = i / 4 * 8 + 2 * (lane & 3) + (i & 1);
        if (row < rows)
            store_out(out, row * stride + (lane >> 2) + (i & 2) * 4, result[i]);
    }
#endif
}

/* S^T in its registers from and to a state in memory. */
#define FOR_CELLS(i, r, c)                                                                         \
    UNROLL for (int i = 0; i < 64; i++) for (int r = i / 4 * 8 + 2 * t + (i & 1),                  \
                                             c = col + g + (i & 2) * 4, once = 1;                  \
                                             once; once = 0)

__kernel __attribute__((reqd_work_group_size(SCAN_WG, 1, 1))) void
kda_mma_scan(const struct kda_call_args a, __global const data_t *v, __global const int *cu_seqlens,
             __global const int *state_index, __global const int *write_index,
             __global const int *accepted, __global const uchar *fresh,
             __global const state_t *initial_state, __global state_t *final_state,
             __global out_t *out, __global state_t *checkpoints, __global float *workspace)
{
    __local uchar ring[STAGES][IMAGE_BYTES] __attribute__((aligned(1024)));
    __local ushort strips[WARPS][64 * STRIP_ROW] __attribute__((aligned(16)));
    __local ring_counter counters[2 * STAGES];
    TEAM_SCRATCH(KDA_TEAMS)

    const int lid = (int)get_local_id(0), lane = lid & 31, warp = lid >> 5;
    const int g = lane >> 2, t = lane & 3;
    const uint tiles = KDA_V / (64 * KDA_TEAMS);
    const uint group = (uint)get_group_id(0), pair = group / tiles;
    const int head = (int)(pair % (uint)a.value_heads);
    const long n = pair / (uint)a.value_heads;
    const int col = (int)(group % tiles) * (64 * KDA_TEAMS) + warp * 16;
    __local ushort *const strip = strips[warp];

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
    v += a.v.offset + head * a.v.head_stride + (start + chunk_row0) * a.v.token_stride + col;
    out +=
        a.out.offset + head * a.out.head_stride + (start + chunk_row0) * a.out.token_stride + col;
    initial_state += a.initial_state.offset + slot * a.initial_state.token_stride +
                     head * a.initial_state.head_stride;
    checkpoints += a.checkpoints.offset + head * a.checkpoints.head_stride;
    const int wide = a.has & KDA_HAS_WIDE_ROWS;
    const long block_bytes = a.factor_stride * 4 * a.value_heads;
    __global const uchar *images =
        (__global const uchar *)(workspace + a.factors) +
        ((long)(first - a.first_chunk) * a.value_heads + head) * a.factor_stride * 4;

    if (lid == 0)
        ring_init(counters, STAGES, WARPS);
    barrier(CLK_LOCAL_MEM_FENCE); /* counters are there */
    const int chunks = last - first;
    for (int i = 0; i < STAGES - 1 && i < chunks; i++)
        ring_fill(ring[i], images + i * block_bytes, IMAGE_BYTES, counters + 2 * i, 0, 0, lid);

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
    fetch_values(strip, v, a.v.token_stride, wide, (int)min(length - chunk_row0, 64l), lane);
    float o[32];
    int stage = 0, turn = 0; /* of the chunk at work */
    int ahead = STAGES - 1;  /* the stage before it in the ring */
    for (int chunk = 0; chunk < chunks; chunk++) {
        const long chunk_row = chunk_row0 + (long)chunk * 64;
        __local const uchar *const image = ring[stage];
        __local const float2 *const decay = (__local const float2 *)(image + IMAGE_D);
        __local const float2 *const beta = (__local const float2 *)(image + IMAGE_BETA);
        if (is_checkpoint(&a, chunk_row, length)) {
            __global state_t *to = checkpoints + CHECKPOINT(chunk_row) * a.checkpoints.token_stride;
            FOR_CELLS(i, r, c)
            store_state(to, STATE_AT(r, c, KDA_V), s[i]);
        }

        uint left[32], values[16];
        float x[32];
        UNROLL
        for (int i = 0; i < 32; i++)
            left[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
        ring_wait(counters + 2 * stage, turn);
        lanes_sync();
#if KDA_RULE == KDA_RULE_DELTA
        product_rows(x, left, image + IMAGE_KD);
#endif

        /* The output of the chunk before makes room for this one's. */
        result_t result[RESULTS];
        PRODUCT_WAIT_OUTPUT(o);
        UNROLL
        for (int i = 0; i < RESULTS; i++)
            result[i] = RESULT(o, i);
        if (chunk > 0 && lane == 0)
            ring_release(counters + 2 * ahead);
        product_rows(o, left, image + IMAGE_QD);

        /* While these run: V, that output, the next V. */
        fetch_wait();
        lanes_sync();
        strip_load(values, strip, lane);
        lanes_sync();
        if (KDA_COMPACT || chunk > 0) /* no branch around a barrier on a CPU: see step.cl */
            store_result(out, a.out.token_stride, wide, chunk > 0 ? 64 : 0, result, strip, lane);
        out += chunk > 0 ? 64 * a.out.token_stride : 0;
        v += 64 * a.v.token_stride;
        if (chunk + 1 < chunks)
            fetch_values(strip, v, a.v.token_stride, wide, (int)min(length - chunk_row - 64, 64l),
                         lane);

        /* X, and the part of E that needs no product. */
        UNROLL
        for (int i = 0; i < 64; i += 4) {
            const float2 d = decay[i + t];
            s[i] *= d.s0;
            s[i + 1] *= d.s1;
            s[i + 2] *= d.s0;
            s[i + 3] *= d.s1;
        }
#if KDA_RULE == KDA_RULE_DELTA
        product_wait32(1, x);
#endif
        UNROLL
        for (int i = 0; i < 32; i += 4) {
            const float2 b = beta[i + t];
            float y[4];
            UNROLL
            for (int e = 0; e < 4; e++) {
                const uint pair_of = values[i / 2 + e / 2];
                y[e] = as_float(e & 1 ? pair_of & 0xffff0000u : pair_of << 16);
#if KDA_RULE == KDA_RULE_DELTA
                y[e] -= x[i + e];
#endif
                x[i + e] = y[e] * (e & 1 ? b.s1 : b.s0);
            }
            values[i / 2] = pack_bf16(y[0], y[1]);
            values[i / 2 + 1] = pack_bf16(y[2], y[3]);
        }
#if KDA_RULE == KDA_RULE_DELTA
        product_square(x, values, image + IMAGE_L);
        product_wait32(0, x);
#endif
        if (chunk + STAGES - 1 < chunks)
            ring_fill(ring[ahead], images + (chunk + STAGES - 1) * block_bytes, IMAGE_BYTES,
                      counters + 2 * ahead, chunk > 0, stage == 0 ? turn ^ 1 : turn, lid);
        lanes_sync();
        UNROLL
        for (int i = 0; i < 16; i++)
            values[i] = pack_bf16(x[2 * i], x[2 * i + 1]);
        product_cols(s, values, image + IMAGE_KE);
        product_square(o, values, image + IMAGE_A);
        product_wait64(1, s);
        ahead = stage;
        if (++stage == STAGES) {
            stage = 0;
            turn ^= 1;
        }
    }
    result_t result[RESULTS];
    product_wait32(0, o);
    UNROLL
    for (int i = 0; i < RESULTS; i++)
        result[i] = RESULT(o, i);
    store_result(out, a.out.token_stride, wide,
                 chunks ? (int)min(length - chunk_row0 - (long)(chunks - 1) * 64, 64l) : 0, result,
                 strip, lane);

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

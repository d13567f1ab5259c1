/* The matrix-unit engine: what a part of mma_prepare.cl works on, where it lies, and how it comes
 * to local memory: rows by copies of their own, a turn ahead, while the last turn's blocks are
 * inverted.
 *
 * The warp w of the half that does not invert sends for k and q of block w in bulk copies, by one
 * lane: if several lanes send, each takes a turn of a loop. For all rows that would be more than
 * what makes these copies has time for, so warps of the other half send for g in pieces of 16
 * bytes, of 12 instructions each, which fill the queue to local memory. (8192 tokens, 96 heads, us,
 * H200, 2026-11-30: all rows in pieces 650; all in bulk copies by 16 lanes 579, by one lane 559; as
 * it is 561, and with the scan beside it 2 % less than that.)
 *
 * SPDX-License-Identifier: MIT */

#define HAS_GATE_ROWS (!KDA_GATE_PER_HEAD && KDA_GATE != KDA_GATE_NONE)
/* They come with k and q: there is no room for f32. */
#define GATES_ARRIVE (HAS_GATE_ROWS && KDA_G_DTYPE != KDA_F32)
#define ROW_BYTES (KDA_K * 2)
#define ROW_PIECES (ROW_BYTES / 16)

/* Where a chunk and head lies: its first token and how many it has; 0: there is none. And of the
 * sequence: its chunks and tokens, so that its next chunk is found without a look at memory. */
struct place {
    long start;
    int rows, head;
    uint image; /* where its images lie in the workspace, and the word that tells of them */
    int chunks_begin, chunks_end;
    long tokens_begin, tokens_end;
};
/* The place of a number in the order of work (mma_order.cl); p: any other place. */
static __attribute__((always_inline)) inline struct place locate(const struct kda_call_args *a,
                                                                 __global const int *cu_seqlens,
                                                                 __global const float *workspace,
                                                                 uint number, struct place p)
{
    const int all = chunk_start(a, workspace, a->sequences);
    const uint count = (uint)clamp(all - a->first_chunk, 0, a->chunk_count);
    p.rows = 0;
    if (number >= count * (uint)a->value_heads)
        return p;
    const uint2 at = order_of(a, number, count);
    const int chunk = a->first_chunk + (int)at.s0;
    p.head = (int)at.s1;
    p.image = at.s0 * (uint)a->value_heads + at.s1;
    if (chunk >= p.chunks_end || chunk < p.chunks_begin) {
        const long n = sequence_of(a, workspace, chunk);
        p.chunks_begin = chunk_start(a, workspace, n);
        p.chunks_end = chunk_start(a, workspace, n + 1);
        p.tokens_begin = sequence_start(a, cu_seqlens, n);
        p.tokens_end = sequence_start(a, cu_seqlens, n + 1);
    }
    p.start = p.tokens_begin + (long)(chunk - p.chunks_begin) * 64;
    p.rows = (int)min(p.tokens_end - p.start, 64l);
    return p;
}

/* Sends for the rows of k and q of a block's tokens, as far as they are there: all lanes of one
 * warp. `counter` is told what will arrive. */
static __attribute__((always_inline)) inline void
send_for_rows(const struct kda_call_args *a, __global const data_t *k, __global const data_t *q,
              struct place p, int token0, __local ushort *to, __local ring_counter *counter,
              int lane)
{
    const int kh = key_head(a, p.head);
    const int wide = a->has & KDA_HAS_WIDE_ROWS;
    k += a->k.offset + kh * a->k.head_stride + (p.start + token0) * a->k.token_stride;
    q += a->q.offset + kh * a->q.head_stride + (p.start + token0) * a->q.token_stride;
    to += token0 * KDA_K;
    if (!wide) {
        ROLLED
        for (int i = lane; i < TOKENS * KDA_K && token0 + i / KDA_K < p.rows; i += 32) {
            to[i] = k[i / KDA_K * a->k.token_stride + i % KDA_K];
            to[i + 8192] = q[i / KDA_K * a->q.token_stride + i % KDA_K];
        }
        lanes_stored();
    }
    if (one_lane(lane)) {
        const int there = wide ? clamp(p.rows - token0, 0, TOKENS) : 0;
        arrivals_expect(counter, there * (2 * ROW_BYTES));
        ROLLED
        for (int i = 0; i < there; i++) {
            bulk_copy(to, k, ROW_BYTES, counter);
            bulk_copy(to + 8192, q, ROW_BYTES, counter);
            to += KDA_K;
            k += a->k.token_stride;
            q += a->q.token_stride;
        }
    }
}

/* The same for those of g, all lanes of another warp, in pieces of 16 bytes: what makes bulk copies
 * has no time for more of them. */
static __attribute__((always_inline)) inline void
send_for_gates(const struct kda_call_args *a, __global const gate_t *g, struct place p, int token0,
               __local ushort *to, __local ring_counter *counter, int lane)
{
#if GATES_ARRIVE
    g += a->g.offset + p.head * a->g.head_stride + (p.start + token0) * a->g.token_stride;
    to += token0 * KDA_K;
    const int inside = min(p.rows - token0, TOKENS);
    if (a->has & KDA_HAS_WIDE_ROWS) {
        const int row = lane / ROW_PIECES, at = lane % ROW_PIECES * 8, rows = 32 / ROW_PIECES;
        g += row * a->g.token_stride + at;
        to += row * KDA_K + at;
        UNROLL
        for (int i = 0; i < TOKENS; i += rows) {
            copy_16(to + i * KDA_K, g, row + i < inside);
            g += rows * a->g.token_stride;
        }
    } else {
        ROLLED
        for (int i = lane; i < inside * KDA_K; i += 32)
            to[i] = g[i / KDA_K * a->g.token_stride + i % KDA_K];
    }
    ring_filled(counter);
#endif
}

/* What an item needs of a chunk and head besides its rows, as stored: nothing waits for it here. */
struct extras {
    float2 bias;
    float log_scale;
    beta_t write;
};
static __attribute__((always_inline)) inline struct extras
load_extras(const struct kda_call_args *a, __global const beta_t *beta, __global const float *a_log,
            __global const float *dt_bias, struct place p, int channel, int lid)
{
    struct extras e;
    e.bias = 0.0f;
    e.log_scale = 0.0f;
    e.write = 0;
#if KDA_GATE_PER_HEAD
    if (a->has & KDA_HAS_DT_BIAS)
        e.bias = dt_bias[a->dt_bias + p.head];
#else
    if ((a->has & KDA_HAS_DT_BIAS) && channel < KDA_K) {
        __global const float *const at = dt_bias + a->dt_bias + (long)p.head * KDA_K + channel;
        e.bias = (float2)(at[0], at[1]);
    }
#endif
    if (a->has & KDA_HAS_A_LOG)
        e.log_scale = a_log[a->a_log + p.head];
    if (lid < p.rows && (a->has & KDA_HAS_BETA))
        e.write = beta[a->beta.offset + p.head * a->beta.head_stride +
                       (p.start + lid) * a->beta.token_stride];
    return e;
}

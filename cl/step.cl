/* The recurrent schedule: one work-group walks the tokens of one sequence, value head and tile of V
 * columns, with its part of the state in registers.
 *
 * The tile. K rows (key channels) by KDA_TILE_V columns, shared out like this, K = 128, V tile 64,
 * GROUPS = 8, COLS = 16, VEC = 4:
 *
 *                   columns ->   cx=0   cx=1  ...  cx=15
 *     group 0:  rows   0.. 15   [16x4] [16x4]     [16x4]     a work-item keeps ROWS x VEC floats
 *     group 1:  rows  16.. 31   [16x4] [16x4]     [16x4]     local id = group * COLS + cx
 *     ...
 *
 * One reduction a token. The read follows the write, but it need not wait for it:
 *
 *     o = S_new^T q = (S + k u^T)^T q = S^T q + (k . q) u        S: the decayed state
 *
 * so S^T k (the prediction) and S^T q are reduced over the row groups together. The q/k norms ride
 * along: with raw k, S^T k_normed = (S^T k) / |k|, and |k|, |q|, k . q are three more sums.
 *
 * The order of a sum. Rows within a work-item in turn, then a binary tree over the groups, lowest
 * bit of the group's number first. The tree is the same whether lanes or local memory carry a
 * level of it, and columns never mix: so a result depends neither on TILE_V nor on the path.
 *
 * Barriers. All items of a work-group meet the same ones, and on a CPU none stands behind an early
 * return: PoCL 3.1 takes the branches after such a barrier to go the same way for all items, and
 * stored columns that are not there. rows[] and parts[] have two buffers, taken in turn, and one
 * barrier a token is enough:
 *     before it  all read rows[t%2] (k stays in registers), write parts[t%2], write rows[(t+1)%2]
 *     after it   all read parts[t%2]
 * The writes of token t+1 hit rows[t%2] and parts[(t+1)%2]; both were last read before barrier t
 * or, parts of t-1, before a work-item can have arrived at barrier t.
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

#define KDA_TILE_V (KDA_COLS * KDA_VEC)
#define KDA_WG (KDA_COLS * KDA_GROUPS)
#define PAD_K (KDA_ROWS * KDA_GROUPS)
/* Key channels that a work-item brings in for each token. */
#define STAGED ((PAD_K + KDA_WG - 1) / KDA_WG)
/* Row groups whose partial sums the lanes add up before local memory does the rest. */
#if KDA_LANES / KDA_COLS >= KDA_GROUPS
#define FOLD KDA_GROUPS
#elif KDA_LANES > KDA_COLS
#define FOLD (KDA_LANES / KDA_COLS)
#else
#define FOLD 1
#endif
#define PARTS (KDA_GROUPS / FOLD)

#if PAD_K < KDA_K
#error "KDA_ROWS * KDA_GROUPS must cover KDA_K"
#endif

/* A work-item's part of a state in memory, its first element at `in` or `out`: addresses that
 * differ by multiples of the row's size alone take few registers. Rows and columns past the end
 * read as zero and are not written. wide: four neighbours along the contiguous dimension at a
 * time. */
#if KDA_STATE_LAYOUT == KDA_STATE_KV
#define WIDE_POSSIBLE (KDA_VEC % 4 == 0)
#else
#define WIDE_POSSIBLE (KDA_ROWS % 4 == 0 && KDA_K % 4 == 0)
#endif
/* Of a tile's rows, those inside. */
#if PAD_K == KDA_K
#define ROWS_INSIDE(row) KDA_ROWS
#else
#define ROWS_INSIDE(row) (KDA_K - (row))
#endif

static inline void load_tile(float s[KDA_ROWS][KDA_VEC], __global const state_t *in, int wide,
                             int row, int col, int value_dim)
{
#if WIDE_POSSIBLE
    if (wide) {
#if KDA_STATE_LAYOUT == KDA_STATE_KV
UNROLL
        for (int i = 0; i < KDA_ROWS; i++)
UNROLL
            for (int j = 0; j < KDA_VEC; j += 4) {
                float4 x = 0.0f;
                if (i < ROWS_INSIDE(row) && col + j < value_dim)
                    x = load_state4(in + STATE_AT(i, j, value_dim));
                s[i][j] = x.s0;
                s[i][j + 1] = x.s1;
                s[i][j + 2] = x.s2;
                s[i][j + 3] = x.s3;
            }
#else
UNROLL
        for (int j = 0; j < KDA_VEC; j++)
UNROLL
            for (int i = 0; i < KDA_ROWS; i += 4) {
                float4 x = 0.0f;
                if (i < ROWS_INSIDE(row) && col + j < value_dim)
                    x = load_state4(in + STATE_AT(i, j, value_dim));
                s[i][j] = x.s0;
                s[i + 1][j] = x.s1;
                s[i + 2][j] = x.s2;
                s[i + 3][j] = x.s3;
            }
#endif
        return;
    }
#endif
UNROLL
    for (int i = 0; i < KDA_ROWS; i++)
UNROLL
        for (int j = 0; j < KDA_VEC; j++)
            s[i][j] = i < ROWS_INSIDE(row) && col + j < value_dim
                          ? load_state(in, STATE_AT(i, j, value_dim))
                          : 0.0f;
}

static inline void store_tile(__global state_t *out, float s[KDA_ROWS][KDA_VEC], int wide, int row,
                              int col, int value_dim)
{
#if WIDE_POSSIBLE
    if (wide) {
#if KDA_STATE_LAYOUT == KDA_STATE_KV
        FOR_INSIDE(i, KDA_ROWS, ROWS_INSIDE(row))
            FOR_INSIDE(j, KDA_VEC / 4, (value_dim - col) / 4)
                store_state4(out + STATE_AT(i, 4 * j, value_dim),
                             (float4)(s[i][4 * j], s[i][4 * j + 1], s[i][4 * j + 2],
                                      s[i][4 * j + 3]));
#else
        FOR_INSIDE(j, KDA_VEC, value_dim - col)
            FOR_INSIDE(i, KDA_ROWS / 4, ROWS_INSIDE(row) / 4)
                store_state4(out + STATE_AT(4 * i, j, value_dim),
                             (float4)(s[4 * i][j], s[4 * i + 1][j], s[4 * i + 2][j],
                                      s[4 * i + 3][j]));
#endif
        return;
    }
#endif
    FOR_INSIDE(i, KDA_ROWS, ROWS_INSIDE(row))
        FOR_INSIDE(j, KDA_VEC, value_dim - col)
            store_state(out, STATE_AT(i, j, value_dim), s[i][j]);
}

/* An empty sequence's state goes through bit for bit, whatever it holds; zero: it is none. */
static inline void copy_tile(__global state_t *out, __global const state_t *in, int zero, int row,
                             int col, int value_dim)
{
    FOR_INSIDE(i, KDA_ROWS, ROWS_INSIDE(row))
        FOR_INSIDE(j, KDA_VEC, value_dim - col)
        {
            const long at = STATE_AT(i, j, value_dim);
            out[at] = zero ? 0 : in[at];
        }
}

/* Sums x over the row groups that share a sub-group; every lane gets the sum. */
static inline float fold(float x)
{
#if FOLD > 1
UNROLL
    for (int d = 1; d < FOLD; d *= 2)
        x += lane_xor(x, (uint)(d * KDA_COLS));
#endif
    return x;
}

/* Sums one column of parts: the rest of the tree. */
static inline float tree(__local const float *parts, int stride)
{
    float x[PARTS];
UNROLL
    for (int p = 0; p < PARTS; p++)
        x[p] = parts[p * stride];
UNROLL
    for (int d = 1; d < PARTS; d *= 2)
UNROLL
        for (int p = 0; p + d < PARTS; p += 2 * d)
            x[p] += x[p + d];
    return x[0];
}

__kernel __attribute__((reqd_work_group_size(KDA_WG, 1, 1))) void
kda_step(const struct kda_call_args a, __global const data_t *q, __global const data_t *k,
         __global const data_t *v, __global const gate_t *g, __global const beta_t *beta,
         __global const float *a_log, __global const float *dt_bias,
         __global const int *cu_seqlens, __global const int *state_index,
         __global const int *write_index, __global const int *accepted,
         __global const uchar *fresh, __global const state_t *initial_state,
         __global state_t *final_state, __global out_t *out, __global state_t *checkpoints)
{
    /* Of a token: raw q and k, and the decay, zero-padded to PAD_K. */
    __local float row_q[2][PAD_K], row_k[2][PAD_K], row_d[2][PAD_K];
    /* Partial sums over row groups: S^T k and S^T q per column; |k|^2, |q|^2, k . q. */
    __local float part_k[2][PARTS][KDA_TILE_V], part_q[2][PARTS][KDA_TILE_V], part_s[2][3][PARTS];

    const int lid = (int)get_local_id(0), cx = lid % KDA_COLS, group = lid / KDA_COLS;
    const int value_dim = a.value_dim, wide = a.has & KDA_HAS_WIDE_STATES;
    const uint tiles = (uint)(value_dim + KDA_TILE_V - 1) / KDA_TILE_V;
    const uint item = (uint)get_group_id(0), pair = item / tiles;
    const int head = (int)(pair % (uint)a.value_heads);
    const long n = pair / (uint)a.value_heads;
    const int row = group * KDA_ROWS, col = (int)(item % tiles) * KDA_TILE_V + cx * KDA_VEC;

    const long begin = sequence_start(&a, cu_seqlens, n);
    const long end = max(sequence_start(&a, cu_seqlens, n + 1), begin);
    const long slot = sequence_slot(&a, state_index, accepted, n);

    out += a.out.offset + head * a.out.head_stride;
    const long tile = STATE_AT(row, col, value_dim); /* this work-item's part of a state */
    initial_state += a.initial_state.offset + slot * a.initial_state.token_stride +
                     head * a.initial_state.head_stride + tile;
    final_state += a.final_state.offset + head * a.final_state.head_stride + tile;
    checkpoints += a.checkpoints.offset + head * a.checkpoints.head_stride + tile;

    const int restart = is_fresh(&a, fresh, n);
    if (slot < 0) { /* a skipped sequence */
        for (long t = begin + group; t < end; t += KDA_GROUPS)
            FOR_INSIDE(j, KDA_VEC, value_dim - col)
                store_out(out, t * a.out.token_stride + col + j, 0.0f);
    } else if (begin == end) {
        const long to = write_slot(&a, write_index, n, 0);
        if (to >= 0)
            copy_tile(final_state + to * a.final_state.token_stride, initial_state, restart, row,
                      col, value_dim);
    }
    /* Nothing left to do, or the chunkwise schedule's to do: out of here, or, on a CPU, on with no
     * tokens to walk (see "Barriers"). */
    const int idle = slot < 0 || begin == end || end - begin > a.step_limit;
#if KDA_COMPACT
    const int works = !idle;
#else
    if (idle)
        return;
    const int works = 1;
#endif
    const long stop = works ? end : begin;
    const long first_stored = max(begin, end - a.index_columns);

    const int kh = key_head(head, a.heads, a.value_heads);
    q += a.q.offset + kh * a.q.head_stride;
    k += a.k.offset + kh * a.k.head_stride;
    v += a.v.offset + head * a.v.head_stride;
    g += a.g.offset + head * a.g.head_stride;
    beta += a.beta.offset + head * a.beta.head_stride;

    /* exp(a_log) and the biases of the channels that this work-item brings in. */
    float gate_scale = 1.0f, bias[STAGED];
    if (a.has & KDA_HAS_A_LOG)
        gate_scale = min(exp(a_log[a.a_log + head]), FLT_MAX);
UNROLL
    for (int i = 0; i < STAGED; i++) {
        int r = lid + i * KDA_WG;
        bias[i] = 0.0f;
        if ((a.has & KDA_HAS_DT_BIAS) && r < KDA_K)
            bias[i] = KDA_GATE_PER_HEAD ? dt_bias[a.dt_bias + head]
                                        : dt_bias[a.dt_bias + (long)head * KDA_K + r];
    }

    /* The token to come: raw values on their way from memory. */
    float next_q[STAGED], next_k[STAGED], next_g[STAGED], next_v[KDA_VEC], next_beta = 1.0f;
    long next_slot = -1; /* of the state after it */

#define FETCH(t)                                                                                   \
    do {                                                                                           \
        UNROLL for (int i = 0; i < STAGED; i++)                                         \
        {                                                                                          \
            int r = lid + i * KDA_WG;                                                              \
            next_q[i] = next_k[i] = next_g[i] = 0.0f;                                              \
            if (r < KDA_K) {                                                                       \
                next_q[i] = load_data(q, (t)*a.q.token_stride + r);                                \
                next_k[i] = load_data(k, (t)*a.k.token_stride + r);                                \
                if (KDA_GATE != KDA_GATE_NONE)                                                     \
                    next_g[i] =                                                                    \
                        load_gate(g, (t)*a.g.token_stride + (KDA_GATE_PER_HEAD ? 0 : r));          \
            }                                                                                      \
        }                                                                                          \
        UNROLL for (int j = 0; j < KDA_VEC; j++) next_v[j] =                            \
            col + j < value_dim ? load_data(v, (t)*a.v.token_stride + col + j) : 0.0f;             \
        if (a.has & KDA_HAS_BETA)                                                                  \
            next_beta = load_beta(beta, (t)*a.beta.token_stride);                                  \
        if ((t) >= first_stored)                                                                   \
            next_slot = write_slot(&a, write_index, n, (t)-first_stored);                          \
    } while (0)

#define PUT(buffer)                                                                                \
    do {                                                                                           \
        UNROLL for (int i = 0; i < STAGED; i++)                                         \
        {                                                                                          \
            int r = lid + i * KDA_WG;                                                              \
            if (r < PAD_K) {                                                                       \
                row_q[buffer][r] = next_q[i];                                                      \
                row_k[buffer][r] = next_k[i];                                                      \
                row_d[buffer][r] =                                                                 \
                    KDA_GATE == KDA_GATE_NONE                                                      \
                        ? 1.0f                                                                     \
                        : exp(log_decay(next_g[i], bias[i], gate_scale, a.gate_bound));            \
            }                                                                                      \
        }                                                                                          \
    } while (0)

    /* The first token is asked for before the state, so that its gates are worked out while that
     * is on its way. */
    if (begin < stop)
        FETCH(begin);
    float s[KDA_ROWS][KDA_VEC];
    if (restart | !works) {
UNROLL
        for (int i = 0; i < KDA_ROWS; i++)
UNROLL
            for (int j = 0; j < KDA_VEC; j++)
                s[i][j] = 0.0f;
    } else {
        load_tile(s, initial_state, wide, row, col, value_dim);
    }
    if (begin < stop)
        PUT(0);
    barrier(CLK_LOCAL_MEM_FENCE); /* row_*[0] is complete */

    int buffer = 0, until_checkpoint = a.checkpoint_every;
    for (long t = begin; t < stop; t++, buffer ^= 1) {
        const long this_slot = next_slot;
        float this_v[KDA_VEC], this_beta = activate_beta(next_beta);
UNROLL
        for (int j = 0; j < KDA_VEC; j++)
            this_v[j] = next_v[j];
        if (t + 1 < stop)
            FETCH(t + 1);

        /* Decay, and this work-item's share of the sums. */
        float sum_k[KDA_VEC], sum_q[KDA_VEC], keys[KDA_ROWS];
        float kk = 0.0f, qq = 0.0f, kq = 0.0f;
UNROLL
        for (int j = 0; j < KDA_VEC; j++)
            sum_k[j] = sum_q[j] = 0.0f;
UNROLL
        for (int i = 0; i < KDA_ROWS; i++) {
            const float ki = row_k[buffer][row + i], qi = row_q[buffer][row + i],
                        decay = row_d[buffer][row + i];
            keys[i] = ki;
            kk += ki * ki;
            qq += qi * qi;
            kq += ki * qi;
UNROLL
            for (int j = 0; j < KDA_VEC; j++) {
                s[i][j] *= decay;
                sum_k[j] += s[i][j] * ki;
                sum_q[j] += s[i][j] * qi;
            }
        }
UNROLL
        for (int j = 0; j < KDA_VEC; j++) {
            float x = fold(sum_k[j]), y = fold(sum_q[j]);
            if (group % FOLD == 0) {
                part_k[buffer][group / FOLD][cx * KDA_VEC + j] = x;
                part_q[buffer][group / FOLD][cx * KDA_VEC + j] = y;
            }
        }
        kk = fold(kk);
        qq = fold(qq);
        kq = fold(kq);
        if (group % FOLD == 0 && cx == 0) {
            part_s[buffer][0][group / FOLD] = kk;
            part_s[buffer][1][group / FOLD] = qq;
            part_s[buffer][2][group / FOLD] = kq;
        }
        if (t + 1 < stop)
            PUT(buffer ^ 1);
        barrier(CLK_LOCAL_MEM_FENCE); /* parts of t and rows of t + 1 are complete */

        float norm_k = 1.0f, norm_q = 1.0f;
        kq = tree(part_s[buffer][2], 1);
#if KDA_NORM_QK
        norm_k = 1.0f / sqrt(tree(part_s[buffer][0], 1) + 1e-6f);
        norm_q = 1.0f / sqrt(tree(part_s[buffer][1], 1) + 1e-6f);
#endif
        /* u, then what row i adds: keys[i] * |k|^-1 * u */
        float u[KDA_VEC];
UNROLL
        for (int j = 0; j < KDA_VEC; j++) {
            u[j] = this_v[j];
#if KDA_RULE == KDA_RULE_DELTA
            u[j] -= tree(&part_k[buffer][0][cx * KDA_VEC + j], KDA_TILE_V) * norm_k;
#endif
            u[j] *= this_beta * norm_k;
        }
UNROLL
        for (int i = 0; i < KDA_ROWS; i++)
UNROLL
            for (int j = 0; j < KDA_VEC; j++)
                s[i][j] += keys[i] * u[j];
        if (group == 0)
            FOR_INSIDE(j, KDA_VEC, value_dim - col)
            {
                const float o = tree(&part_q[buffer][0][cx * KDA_VEC + j], KDA_TILE_V) + kq * u[j];
                store_out(out, t * a.out.token_stride + col + j, o * (norm_q * a.scale));
            }
        if ((a.has & KDA_HAS_CHECKPOINTS) && --until_checkpoint == 0) {
            long number = begin / a.checkpoint_every + (t + 1 - begin) / a.checkpoint_every - 1;
            store_tile(checkpoints + number * a.checkpoints.token_stride, s, wide, row, col,
                       value_dim);
            until_checkpoint = a.checkpoint_every;
        }
        if (this_slot >= 0)
            store_tile(final_state + this_slot * a.final_state.token_stride, s, wide, row, col,
                       value_dim);
    }
}

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
 * along: with raw k, S^T k_normed = (S^T k) / |k|, and |k|, |q|, k . q are three more sums. In what
 * order things are added up stands in cl/sums.cl.
 *
 * Barriers. All items of a work-group meet the same ones, and on a CPU none stands behind an early
 * return: PoCL 3.1 takes the branches after such a barrier to go the same way for all items, and
 * stored columns that are not there. Tokens have a ring of LEAD + 2 rows in local memory, parts[]
 * two buffers, taken in turn, and one barrier a token is enough:
 *     before it  all read rows of t, write parts[t%2], write rows of t + LEAD
 *     after it   all read parts[t%2] and rows of t
 * The rows of t + LEAD take the place of t - 2, which nobody reads once all have met at barrier
 * t-1; parts[t%2] were last read before that too.
 *
 * Latency. Where states keep memory busy, whatever is asked for comes after all that was asked for
 * before: LEAD + 1 tokens are asked for before the state, and stay as they lie in memory until they
 * are used, since what is converted must have arrived. Nothing is waited for until all of that has
 * been asked for, which compilers must be told: by a barrier, and by assembly in cl/tile.cl.
 *
 * SPDX-License-Identifier: MIT */

/* Key channels and columns that a work-item brings in for each token. */
#define STAGED ((PAD_K + KDA_WG - 1) / KDA_WG)
#define STAGED_V ((KDA_TILE_V + KDA_WG - 1) / KDA_WG)
#ifndef KDA_ONE
#define KDA_ONE 0 /* 1: no sequence has more than one token */
#endif
/* Tokens in local memory: those to come, the one at work and the last one, see "Barriers". */
#if KDA_ONE || KDA_COMPACT
#define LEAD 1
#else
#define LEAD 3
#endif
#define RING (KDA_ONE ? 1 : LEAD + 2)
#define BUFFERS (KDA_ONE ? 1 : 2)
/* What a leaf sums: S^T k and S^T q of each column, |k|^2, |q|^2 and k . q. */
#define SUMS (2 * KDA_VEC + 3)

/* Whether the state is asked for before the first tokens are worked on: where that is known to take
 * registers only. */
#if !KDA_COMPACT && defined KDA_WIDE && KDA_WIDE && PACK > 1
#define EARLY 1
#else
#define EARLY 0
#endif

__kernel SIZED void
kda_step(const struct kda_call_args a, __global const data_t *q, __global const data_t *k,
         __global const data_t *v, __global const gate_t *g, __global const beta_t *beta,
         __global const float *a_log, __global const float *dt_bias,
         __global const int *cu_seqlens, __global const int *state_index,
         __global const int *write_index, __global const int *accepted,
         __global const uchar *fresh, __global const state_t *initial_state,
         __global state_t *final_state, __global out_t *out, __global state_t *checkpoints)
{
    /* Of a token: raw q and k, the decay, zero-padded to PAD_K; v and the write strength. */
    __local float row_q[RING][PAD_K], row_k[RING][PAD_K], row_d[RING][PAD_K];
    __local float values[RING][KDA_TILE_V], strengths[RING];
    /* Partial sums over row groups: S^T k and S^T q per column; |k|^2, |q|^2, k . q. */
    __local float part_k[BUFFERS][PARTS][KDA_TILE_V], part_q[BUFFERS][PARTS][KDA_TILE_V];
    __local float part_s[BUFFERS][3][PARTS];

    const int lid = (int)get_local_id(0), cx = lid % KDA_COLS, group = lid / KDA_COLS;
    const int value_dim = VALUE_DIM(a), wide = WIDE(a);
    const uint tiles = (uint)(value_dim + KDA_TILE_V - 1) / KDA_TILE_V;
    const uint item = GROUP_ID, pair = item / tiles;
    const uint sequence = heads_in(&a, pair);
    const int head = (int)(pair - sequence * (uint)a.value_heads);
    const long n = sequence;
    const int row = group * KDA_ROWS, left = (int)(item % tiles) * KDA_TILE_V,
              col = left + cx * KDA_VEC;

    long begin, end;
    sequence_bounds(&a, cu_seqlens, n, &begin, &end);
    const long slot = sequence_slot(&a, state_index, accepted, n);

    const long tile = STATE_AT(row, col, value_dim); /* this work-item's part of a state */
    initial_state += a.initial_state.offset + slot * a.initial_state.token_stride +
                     head * a.initial_state.head_stride + tile;
    final_state += a.final_state.offset + head * a.final_state.head_stride + tile;
    checkpoints += a.checkpoints.offset + head * a.checkpoints.head_stride + tile;
    out += a.out.offset + begin * a.out.token_stride + head * a.out.head_stride + col;

    const int restart = is_fresh(&a, fresh, n);
    if (slot < 0) { /* a skipped sequence */
ROLLED
        for (long t = group; t < end - begin; t += KDA_GROUPS)
            FOR_INSIDE(j, KDA_VEC, value_dim - col)
                store_out(out, t * a.out.token_stride + j, 0.0f);
    } else if (begin == end) {
        const long to = write_slot(&a, write_index, n, 0);
        if (to >= 0)
            copy_tile(final_state + to * a.final_state.token_stride, initial_state, restart, row,
                      col, value_dim);
    }
    /* Nothing left to do, or the chunkwise schedule's to do: out of here, or, on a CPU, on with no
     * tokens to walk (see "Barriers"). */
    const int idle = slot < 0 || begin == end || end - begin > a.step_limit;
#if !KDA_COMPACT
    if (idle)
        return;
#endif
#if KDA_ONE
    const int length = 1, first_stored = 0;
#else
    const int length = idle ? 0 : (int)(end - begin);
    const int first_stored = max(0, length - (int)a.index_columns);
#endif

    const int kh = key_head(&a, head);
    q += a.q.offset + begin * a.q.token_stride + kh * a.q.head_stride;
    k += a.k.offset + begin * a.k.token_stride + kh * a.k.head_stride;
    v += a.v.offset + begin * a.v.token_stride + head * a.v.head_stride + left;
    g += a.g.offset + begin * a.g.token_stride + head * a.g.head_stride;
    beta += a.beta.offset + begin * a.beta.token_stride + head * a.beta.head_stride;

    /* Of tokens asked for, as it lies in memory: this work-item's share, of v and beta counted from
     * the other end, where items may have no channels. The last column stands in for those that are
     * not there. */
    const int last = value_dim - 1 - left, back = KDA_WG - 1 - lid;
    data_t next_q[LEAD + 1][STAGED], next_k[LEAD + 1][STAGED], next_v[LEAD + 1][STAGED_V];
    gate_t next_g[LEAD + 1][STAGED];
    beta_t next_beta[LEAD + 1];

#define FETCH(p, t)                                                                                \
    do {                                                                                           \
        UNROLL for (int i = 0; i < LOOP_BOUND(STAGED); i++)                                        \
        {                                                                                          \
            const int r = lid + i * KDA_WG;                                                        \
            if (r < KDA_K) {                                                                       \
                next_q[p][i] = q[(t)*a.q.token_stride + r];                                        \
                next_k[p][i] = k[(t)*a.k.token_stride + r];                                        \
                if (KDA_GATE != KDA_GATE_NONE)                                                     \
                    next_g[p][i] = g[(t)*a.g.token_stride + (KDA_GATE_PER_HEAD ? 0 : r)];          \
            }                                                                                      \
        }                                                                                          \
        if (a.has & KDA_HAS_BETA)                                                                  \
            next_beta[p] = beta[(t)*a.beta.token_stride];                                          \
        UNROLL for (int i = 0; i < LOOP_BOUND(STAGED_V); i++) next_v[p][i] =                       \
            v[(t)*a.v.token_stride + min(back + i * KDA_WG, last)];                                \
    } while (0)

#define PUT(at, p)                                                                                 \
    do {                                                                                           \
        if (back == 0)                                                                             \
            strengths[at] =                                                                        \
                activate_beta(a.has & KDA_HAS_BETA ? beta_to_float(next_beta[p]) : 1.0f);          \
        UNROLL for (int i = 0; i < LOOP_BOUND(STAGED_V); i++)                                      \
        {                                                                                          \
            const int c = back + i * KDA_WG;                                                       \
            if (c < KDA_TILE_V)                                                                    \
                values[at][c] = data_to_float(next_v[p][i]);                                       \
        }                                                                                          \
        UNROLL for (int i = 0; i < LOOP_BOUND(STAGED); i++)                                        \
        {                                                                                          \
            const int r = lid + i * KDA_WG, inside = r < KDA_K;                                    \
            if (r < PAD_K) {                                                                       \
                row_q[at][r] = inside ? data_to_float(next_q[p][i]) : 0.0f;                        \
                row_k[at][r] = inside ? data_to_float(next_k[p][i]) : 0.0f;                        \
                row_d[at][r] = KDA_GATE != KDA_GATE_NONE && inside                                 \
                                   ? exp(log_decay(gate_to_float(next_g[p][i]), bias[i],           \
                                                   gate_scale, a.gate_bound))                      \
                                   : 1.0f;                                                         \
            }                                                                                      \
        }                                                                                          \
    } while (0)

    /* The first tokens are asked for before the state, so that their gates are worked out while
     * that is on its way; then exp(a_log) and the biases of the channels brought in. */
UNROLL
    for (int p = 0; p <= LEAD; p++)
        if (p < length)
            FETCH(p, (long)p);
    float gate_scale = 0.0f, bias[STAGED];
    if (a.has & KDA_HAS_A_LOG)
        gate_scale = a_log[a.a_log + head];
UNROLL
    for (int i = 0; i < LOOP_BOUND(STAGED); i++) {
        const int r = lid + i * KDA_WG;
        bias[i] = 0.0f;
        if ((a.has & KDA_HAS_DT_BIAS) && r < KDA_K)
            bias[i] = KDA_GATE_PER_HEAD ? dt_bias[a.dt_bias + head]
                                        : dt_bias[a.dt_bias + (long)head * KDA_K + r];
    }
#if EARLY
    pack_t packs[PACKS];
    if (restart | idle)
        clear_packs(packs);
    else
        fetch_tile(packs, initial_state, row, col, value_dim);
    barrier(CLK_LOCAL_MEM_FENCE); /* no compiler asks later than here */
#endif
    gate_scale = min(exp(not_before(gate_scale)), FLT_MAX);
UNROLL
    for (int p = 0; p < LEAD; p++)
        if (p < length)
            PUT(p, p);
    barrier(CLK_LOCAL_MEM_FENCE); /* the ring holds the first LEAD tokens */

    float s[KDA_ROWS][KDA_VEC];
#if EARLY
    unpack_tile(s, packs);
#else
    if (restart | idle)
        clear_tile(s);
    else
        load_tile(s, initial_state, wide, row, col, value_dim);
#endif

    for (int t = 0, at = 0; t < length; t++, at = at + 1 == RING ? 0 : at + 1) {
        const long to = t < first_stored ? -1 : write_slot(&a, write_index, n, t - first_stored);
        const int buffer = t & 1;

        /* Decay, and this work-item's share of the sums. */
        float sums[LEAVES][SUMS];
UNROLL
        for (int leaf = 0; leaf < LEAVES; leaf++) {
UNROLL
            for (int j = 0; j < SUMS; j++)
                sums[leaf][j] = 0.0f;
UNROLL
            for (int i = leaf * LEAF; i < LOOP_BOUND((leaf + 1) * LEAF); i++) {
                const float ki = row_k[at][row + i], qi = row_q[at][row + i],
                            decay = row_d[at][row + i];
                sums[leaf][2 * KDA_VEC] += ki * ki;
                sums[leaf][2 * KDA_VEC + 1] += qi * qi;
                sums[leaf][2 * KDA_VEC + 2] += ki * qi;
UNROLL
                for (int j = 0; j < KDA_VEC; j++) {
                    s[i][j] *= decay;
                    sums[leaf][j] += s[i][j] * ki;
                    sums[leaf][KDA_VEC + j] += s[i][j] * qi;
                }
            }
        }
        ADD_LEAVES(sums, SUMS)
UNROLL
        for (int j = 0; j < KDA_VEC; j++) {
            float x = fold(sums[0][j]), y = fold(sums[0][KDA_VEC + j]);
            if (group % FOLD == 0) {
                part_k[buffer][group / FOLD][cx * KDA_VEC + j] = x;
                part_q[buffer][group / FOLD][cx * KDA_VEC + j] = y;
            }
        }
UNROLL
        for (int j = 0; j < 3; j++) {
            float x = fold(sums[0][2 * KDA_VEC + j]);
            if (group % FOLD == 0 && cx == 0)
                part_s[buffer][j][group / FOLD] = x;
        }
        if (t + LEAD < length)
            PUT(at + LEAD < RING ? at + LEAD : at + LEAD - RING, LEAD);
        if (t + LEAD + 1 < length)
            FETCH(LEAD, (long)t + LEAD + 1);
        barrier(CLK_LOCAL_MEM_FENCE); /* parts of t and row t + LEAD are complete */

        float norm_k = 1.0f, norm_q = 1.0f;
        const float kq = tree(part_s[buffer][2], 1);
#if KDA_NORM_QK
        norm_k = 1.0f / sqrt(tree(part_s[buffer][0], 1) + 1e-6f);
        norm_q = 1.0f / sqrt(tree(part_s[buffer][1], 1) + 1e-6f);
#endif
        /* u, then what row i adds: k_i * |k|^-1 * u */
        const float strength = strengths[at] * norm_k;
        float u[KDA_VEC];
UNROLL
        for (int j = 0; j < KDA_VEC; j++) {
            u[j] = values[at][cx * KDA_VEC + j];
#if KDA_RULE == KDA_RULE_DELTA
            u[j] -= tree(&part_k[buffer][0][cx * KDA_VEC + j], KDA_TILE_V) * norm_k;
#endif
            u[j] *= strength;
        }
UNROLL
        for (int i = 0; i < LOOP_BOUND(KDA_ROWS); i++)
UNROLL
            for (int j = 0; j < KDA_VEC; j++)
                s[i][j] += row_k[at][row + i] * u[j];
        if (group == 0)
            FOR_INSIDE(j, KDA_VEC, value_dim - col)
            {
                const float o = tree(&part_q[buffer][0][cx * KDA_VEC + j], KDA_TILE_V) + kq * u[j];
                store_out(out, t * a.out.token_stride + j, o * (norm_q * a.scale));
            }
        /* In plans without checkpoints too: NVIDIA's compiler puts the rest in a slower order where
         * this is not there. */
        if ((a.has & KDA_HAS_CHECKPOINTS) && (t + 1) % a.checkpoint_every == 0) {
            const int number = (int)begin / a.checkpoint_every + (t + 1) / a.checkpoint_every - 1;
            store_tile(checkpoints + number * a.checkpoints.token_stride, s, wide, row, col,
                       value_dim);
        }
        if (to >= 0)
            store_tile(final_state + to * a.final_state.token_stride, s, wide, row, col, value_dim);
    }
}

/* The recurrent schedule where each sequence has one token and nothing but a slot (kda_few_args),
 * and there are so few work-groups that they do not keep memory busy: cl/step.cl's sums in the same
 * order, for the same bits, sooner (lib/config.c has the times).
 *
 * What takes the time is a chain of waits: for arguments, memory, the token's rows, sums. So no
 * step of it is one work-item's alone, and what others wait for hardly stands in branches, since
 * compilers do one thing while another is on its way only between those: the state does, which is
 * not a skipped sequence's to read, and what is done while it comes:
 *
 *     ask for a slot, the token and the state; work out where results go
 *     work out the decay
 *     ------------------------ barrier: rows of q, k and the decay ---------------------------
 *     |k|, |q|, k . q and beta, a sub-group each; decay the state, sum S^T k and S^T q
 *     ------------------------ barrier: parts of these sums, what columns have in common -----
 *     write, store the output and the state
 *
 * SPDX-License-Identifier: MIT */

/* Key channels that a work-item brings in. */
#define OWN ((PAD_K + KDA_WG - 1) / KDA_WG)
/* Leaves of all rows: a lane has one. */
#define ALL_LEAVES (PAD_K / LEAF)
#if ALL_LEAVES > KDA_LANES || KDA_WG % KDA_LANES != 0
#error "sub-groups are too narrow for all leaves, or not whole"
#endif

#if KDA_GATE == KDA_GATE_SOFTPLUS || KDA_GATE == KDA_GATE_BOUNDED
#define RAW_GATE 1
#else
#define RAW_GATE 0
#endif

/* Where the row of a token and head lies, and the state of a slot and head. */
#define ROW_AT(l, token, head) ((l).offset + (token) * (l).token_stride + (head) * (l).head_stride)
#define STATE_ROW(l, slot, head)                                                                   \
    ((l).offset + (slot) * (l).token_stride + (long)(head) * (l).head_stride)

/* n / d by multiplication: see heads_in. */
static inline uint divide(uint n, int factor, int shift)
{
    return (mul_hi(n, (uint)factor) + n) >> shift;
}

/* The key head that value head h reads. */
static inline int few_key_head(const struct kda_few_args *a, int h)
{
#if KDA_HEAD_MAP == KDA_HEADS_GROUPED
    return (int)divide((uint)h, a->by_keys, a->by_keys_shift);
#else
    return h % a->head_divisor;
#endif
}

/* What all columns of a token have in common; NORM_K and NORM_Q are factors. */
enum { NORM_K, NORM_Q, K_Q, STRENGTH, COMMON };
#define SUB_GROUPS (KDA_WG / KDA_LANES)

/* The product of two rows, of which a lane has this leaf, in every lane. */
static inline float product_of_rows(__local const float *x, __local const float *y)
{
    float sum = 0.0f;
UNROLL
    for (int i = 0; i < LEAF; i++)
        sum += x[i] * y[i];
UNROLL
    for (int d = 1; d < ALL_LEAVES; d *= 2)
        sum += lane_xor(sum, (uint)d);
    return sum;
}

__kernel SIZED void
kda_step(__global const state_t *initial_state, const struct kda_few_args args,
         __global const data_t *q, __global const data_t *k, __global const gate_t *g,
         __global const data_t *v, __global const beta_t *beta, __global const float *a_log,
         __global const float *dt_bias, __global state_t *final_state, __global out_t *out,
         __global const int *state_index, __global const int *write_index)
{
    /* Of the token: raw q and k, the decay, zero-padded to PAD_K. */
    __local float row_q[PAD_K], row_k[PAD_K], row_d[PAD_K];
    /* Partial sums over row groups, S^T k and S^T q per column. */
    __local float part_k[PARTS][KDA_TILE_V], part_q[PARTS][KDA_TILE_V];
    __local float common[COMMON]; /* of columns */

    /* Where compilers cannot tell that this adds nothing: arguments at an address that they do not
     * know are asked for like memory, together, and else waited for line after line. */
    const struct kda_few_args *const a = &args + get_local_id(0) / KDA_WG;
    /* The remainder tells compilers how many there are: conditions that always hold are none. */
    const int lid = (int)(get_local_id(0) % KDA_WG), cx = lid % KDA_COLS, group = lid / KDA_COLS;
    const int value_dim = VALUE_DIM(*a);
    const uint tiles = (uint)(value_dim + KDA_TILE_V - 1) / KDA_TILE_V;
    const uint item = GROUP_ID, pair = item / tiles;
    const uint n = divide(pair, a->by_heads, a->by_heads_shift);
    const int head = (int)(pair - n * (uint)a->value_heads), kh = few_key_head(a, head);
    const int row = group * KDA_ROWS, col = (int)(item % tiles) * KDA_TILE_V + cx * KDA_VEC;
    const long tile = STATE_AT(row, col, value_dim); /* this work-item's part of a state */

    long slot = n, to = n;
    if (a->has & KDA_HAS_STATE_INDEX) {
        const long at = (long)n * a->index_columns;
        const int is_i64 = a->has & KDA_HAS_STATE_INDEX_I64;
        slot = load_index(state_index, a->state_index + at, is_i64);
        to = load_index(write_index, a->write_index + at, is_i64);
    }

    /* The token as it lies in memory; the last channel and column stand in for those that are not
     * there. */
    q += ROW_AT(a->q, (int)n, kh);
    k += ROW_AT(a->k, (int)n, kh);
    g += ROW_AT(a->g, (int)n, head);
    v += ROW_AT(a->v, (int)n, head);
    out += ROW_AT(a->out, (int)n, head) + col;
    data_t own_q[OWN], own_k[OWN], own_v[KDA_VEC];
    gate_t own_g[OWN];
    float bias[OWN], gate_scale = RAW_GATE ? a_log[a->a_log + head] : 0.0f;
UNROLL
    for (int i = 0; i < OWN; i++) {
        const int r = min(lid + i * KDA_WG, KDA_K - 1);
        if (KDA_GATE != KDA_GATE_NONE)
            own_g[i] = g[KDA_GATE_PER_HEAD ? 0 : r];
        bias[i] = 0.0f;
        if (RAW_GATE)
            bias[i] = dt_bias[a->dt_bias + (KDA_GATE_PER_HEAD ? head : head * KDA_K + r)];
        own_k[i] = k[r];
        own_q[i] = q[r];
    }
    const beta_t own_beta = beta[ROW_AT(a->beta, (int)n, head)];
UNROLL
    for (int j = 0; j < KDA_VEC; j++)
        own_v[j] = v[min(col + j, value_dim - 1)];

    WORK_OUT(out);
    /* Where the state lies is worked out in front of the branch, else it is asked for later. */
    pack_t packs[PACKS];
    const int skipped = (ulong)slot >= (ulong)a->slots;
    initial_state += STATE_ROW(a->initial_state, slot, head) + tile;
    WORK_OUT(initial_state);
    if (!skipped)
        fetch_tile(packs, initial_state, row, col, value_dim);
    final_state += STATE_ROW(a->final_state, to, head) + tile;
    WORK_OUT(final_state);
    /* A skipped sequence. It leaves behind all that is asked for and before what waits for that: a
     * branch keeps compilers from waiting sooner. */
    if (skipped) {
        if (group == 0)
            FOR_INSIDE(j, KDA_VEC, value_dim - col)
                store_out(out, j, 0.0f);
        return;
    }

    gate_scale = min(exp(not_before(gate_scale)), FLT_MAX);
UNROLL
    for (int i = 0; i < OWN; i++) {
        const int r = lid + i * KDA_WG, inside = r < KDA_K;
        if (r < PAD_K) {
            row_q[r] = inside ? data_to_float(own_q[i]) : 0.0f;
            row_k[r] = inside ? data_to_float(own_k[i]) : 0.0f;
            row_d[r] = KDA_GATE != KDA_GATE_NONE && inside
                           ? exp(log_decay(gate_to_float(own_g[i]), bias[i], gate_scale,
                                           a->gate_bound))
                           : 1.0f;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE); /* the rows are there */

    /* While the state is on its way, what columns have in common, a sub-group each. */
    const int first = lid % ALL_LEAVES * LEAF;
UNROLL
    for (int i = 0; i < (COMMON + SUB_GROUPS - 1) / SUB_GROUPS; i++) {
        const int which = lid / KDA_LANES + i * SUB_GROUPS;
        if (which < COMMON) {
            float x = activate_beta(beta_to_float(own_beta));
            if (which != STRENGTH)
                x = product_of_rows((which == NORM_Q ? row_q : row_k) + first,
                                    (which == NORM_K ? row_k : row_q) + first);
            if (which == NORM_K || which == NORM_Q)
                x = KDA_NORM_QK ? 1.0f / sqrt(x + 1e-6f) : 1.0f;
            if (lid % KDA_LANES == 0)
                common[which] = x;
        }
    }

    float s[KDA_ROWS][KDA_VEC], key[KDA_ROWS], sums[LEAVES][2 * KDA_VEC];
    unpack_tile(s, packs);
UNROLL
    for (int leaf = 0; leaf < LEAVES; leaf++) {
UNROLL
        for (int j = 0; j < 2 * KDA_VEC; j++)
            sums[leaf][j] = 0.0f;
UNROLL
        for (int i = leaf * LEAF; i < (leaf + 1) * LEAF; i++) {
            const float qi = row_q[row + i], decay = row_d[row + i];
            key[i] = row_k[row + i];
UNROLL
            for (int j = 0; j < KDA_VEC; j++) {
                s[i][j] *= decay;
                sums[leaf][j] += s[i][j] * key[i];
                sums[leaf][KDA_VEC + j] += s[i][j] * qi;
            }
        }
    }
    ADD_LEAVES(sums, 2 * KDA_VEC)
UNROLL
    for (int j = 0; j < KDA_VEC; j++) {
        const float x = fold(sums[0][j]), y = fold(sums[0][KDA_VEC + j]);
        if (group % FOLD == 0) {
            part_k[group / FOLD][cx * KDA_VEC + j] = x;
            part_q[group / FOLD][cx * KDA_VEC + j] = y;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE); /* the parts are there, and what columns have in common */

    const float norm_k = common[NORM_K], norm_q = common[NORM_Q], kq = common[K_Q];
    const float strength = common[STRENGTH] * norm_k;
    float u[KDA_VEC];
UNROLL
    for (int j = 0; j < KDA_VEC; j++) {
        u[j] = data_to_float(own_v[j]);
#if KDA_RULE == KDA_RULE_DELTA
        u[j] -= tree(&part_k[0][cx * KDA_VEC + j], KDA_TILE_V) * norm_k;
#endif
        u[j] *= strength;
UNROLL
        for (int i = 0; i < KDA_ROWS; i++)
            s[i][j] += key[i] * u[j];
    }
    if (group == 0)
        FOR_INSIDE(j, KDA_VEC, value_dim - col)
        {
            const float o = tree(&part_q[0][cx * KDA_VEC + j], KDA_TILE_V) + kq * u[j];
            store_out(out, j, o * (norm_q * a->scale));
        }
    if ((ulong)to < (ulong)a->slots)
        store_tile(final_state, s, 1, row, col, value_dim);
}

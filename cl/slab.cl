/* Slabs of a chunk's key channels: loaded and activated, summed up in A_kk and A_qk, decayed, and
 * left in the workspace as what W is made of, Qd and Ke. Names and formulas are those of chunk.cl.
 *
 * SPDX-License-Identifier: MIT */

/* Partial sums of squares of a row, each over every so manieth channel. */
INLINE void sum_squares(const struct kda_call_args *a, const struct chunk *t, __local float *memory,
                        int lid)
{
    for (int x = lid; x < C * NORM_PARTS; x += KDA_PREPARE_WG) {
        const int i = x / NORM_PARTS;
        const long from = max(min(i, t->rows - 1), 0);
        lanes_t kk = 0.0f, qq = 0.0f;
        UNROLL_BY(8)
        for (int n = 0; n < KDA_K; n += NORM_PARTS * LANES) {
            const int d = n + x % NORM_PARTS * LANES, at = min(d, KDA_K - 1);
            const int inside = i < t->rows ? KDA_K - d : 0;
            const lanes_t y = data_lanes(t->k, from * a->k.token_stride + at, inside);
            const lanes_t z = data_lanes(t->q, from * a->q.token_stride + at, inside);
            kk += y * y;
            qq += z * z;
        }
        memory[x] = total(kk);
        memory[C * NORM_PARTS + x] = total(qq);
    }
}

INLINE void take_norms(const struct kda_call_args *a, __local const float *memory,
                       __local float *norm_k, __local float *norm_q, int lid)
{
    for (int x = lid; x < 2 * C; x += KDA_PREPARE_WG) {
        float sum = 0.0f;
        UNROLL
        for (int part = 0; part < LOOP_BOUND(NORM_PARTS); part++)
            sum += memory[x * NORM_PARTS + part];
        if (x < C)
            norm_k[x] = 1.0f / sqrt(sum + 1e-6f);
        else
            norm_q[x - C] = a->scale / sqrt(sum + 1e-6f);
    }
}

/* Keys, queries and raw gates of a slab. */
INLINE void load_slab(const struct kda_call_args *a, const struct chunk *t, __local float *memory,
                      __local const float *norm_k, __local const float *norm_q, int d0, int lid)
{
    UNROLL_LOADS
    for (int x = lid * LANES; x < C * SLAB; x += KDA_PREPARE_WG * LANES) {
        const int i = x / SLAB, d = d0 + x % SLAB, at = min(d, KDA_K - 1);
        const int to = i * ROW + x % SLAB, inside = i < t->rows ? KDA_K - d : 0;
        const long from = max(min(i, t->rows - 1), 0);
        lanes_t gate = 0.0f;
#if KDA_GATE != KDA_GATE_NONE && KDA_GATE_PER_HEAD
        if (i < t->rows)
            gate = load_gate(t->g, from * a->g.token_stride);
#elif KDA_GATE != KDA_GATE_NONE
        gate = gate_lanes(t->g, from * a->g.token_stride + at, inside);
#endif
        const lanes_t ki = data_lanes(t->k, from * a->k.token_stride + at, inside);
        const lanes_t qi = data_lanes(t->q, from * a->q.token_stride + at, inside);
        store_lanes(SLAB_K(memory) + to, ki * norm_k[i]);
        store_lanes(SLAB_Q(memory) + to, qi * norm_q[i]);
        store_lanes(SLAB_C(memory) + to, gate);
    }
}

/* Decays in place of the raw gates, each by the item that loaded it. Apart from the loads: on short
 * code, or on EAGER devices where they leave registers for it, several at once. bias: NULL if there
 * is none. */
INLINE void activate_slab(const struct kda_call_args *a, const struct chunk *t,
                          __local float *memory, __global const float *bias, float gate_scale,
                          int d0, int lid)
{
#if EAGER
    UNROLL_BY(4)
#else
    UNROLL_BY(1)
#endif
    for (int x = lid * LANES; x < C * SLAB; x += KDA_PREPARE_WG * LANES) {
        const int i = x / SLAB, d = d0 + x % SLAB, to = i * ROW + x % SLAB;
        lanes_t decay = 1.0f, shift = 0.0f;
        if (KDA_GATE != KDA_GATE_NONE && i < (EAGER ? C : t->rows)) {
            if (bias && KDA_GATE_PER_HEAD)
                shift = bias[0];
            else if (bias)
                shift = bias_lanes(bias, min(d, KDA_K - 1), KDA_K - d);
            decay =
                exp(log_decay(load_lanes(SLAB_C(memory) + to), shift, gate_scale, a->gate_bound));
        }
        store_lanes(SLAB_C(memory) + to, i < t->rows ? decay : 1.0f);
    }
}

/* Pairs of the same block: key j's share of channels is carried from token to token. On an
 * EAGER device tokens before the key are summed too, and left out by store_near. */
INLINE void sum_near(__local const float *memory, int role, lanes_t *sums)
{
    const int j = role % C, base = j & ~15, s0 = role / C % SHARES * SHARE;
    __local const float *row = memory + (role / (C * SHARES) * C + base) * ROW + s0;
    __local const float *decay = SLAB_C(memory) + base * ROW + s0;
    __local const float *key = SLAB_K(memory) + j * ROW + s0;
    UNROLL_BY(1)
    for (int s = 0; s < SHARE; s += 2 * WIDE) {
        wide_t x = load_wide(key + s), y = load_wide(key + s + WIDE);
        UNROLL
        for (int i = 0; i < LOOP_BOUND(16); i++) {
            const int at = i * ROW + s;
            if (EAGER || base + i >= j) {
                const wide_t dx = load_wide(decay + at), dy = load_wide(decay + at + WIDE);
                x = base + i > j ? x * dx : x;
                y = base + i > j ? y * dy : y;
                sums[i] = dot_wide(sums[i], load_wide(row + at), x);
                sums[i] = dot_wide(sums[i], load_wide(row + at + WIDE), y);
            }
        }
    }
}

/* Rows decayed from their block's start, keys decayed to their block's end. */
INLINE void decay_slab(__local float *memory, __local float *block_decay, int lid)
{
    for (int x = lid * LANES; x < BLOCKS * SLAB; x += KDA_PREPARE_WG * LANES) {
        const int at = x / SLAB * 16 * ROW + x % SLAB;
        lanes_t r[16], product = 1.0f, low = 0.0f;
        UNROLL
        for (int i = 0; i < LOOP_BOUND(16); i++) {
            const lanes_t decay = load_lanes(SLAB_C(memory) + at + i * ROW);
            r[i] = product * decay;
            low = low * decay + fma(product, decay, -r[i]);
            product = r[i];
        }
        /* A product of floats just below one loses what is below their last bit, nearly always
         * downwards, and a chunk's decay lives on in every later state: what was lost is kept
         * (without it, ten times the error after 16384 tokens of slow gates). */
        store_lanes(block_decay + x, product + low);
        product = 1.0f;
        UNROLL
        for (int i = LOOP_BOUND(16) - 1; i >= 0; i--) {
            __local float *k = SLAB_K(memory) + at + i * ROW, *q = SLAB_Q(memory) + at + i * ROW,
                          *c = SLAB_C(memory) + at + i * ROW;
            const lanes_t decay = load_lanes(c), ki = load_lanes(k);
            store_lanes(c, ki * product);
            product *= decay;
            store_lanes(k, ki * r[i]);
            store_lanes(q, load_lanes(q) * r[i]);
        }
    }
}

/* From the chunk's start, what W is made of, and Qd; to the chunk's end, Ke. */
INLINE void emit_slab(const struct chunk *t, __local const float *memory,
                      __local const float *block_decay, __local const float *row_beta, int d0,
                      int lid)
{
    UNROLL_BY(1)
    for (int x = lid * WIDE; x < C * SLAB; x += KDA_PREPARE_WG * WIDE) {
        const int i = x / SLAB, s = x % SLAB, at = i * ROW + s, to = i * PADDED_K + d0 + s;
        wide_t before = 1.0f, after = load_wide(SLAB_C(memory) + at);
        UNROLL_BY(1)
        for (int block = 0; block < i / 16; block++)
            before *= load_wide(block_decay + block * SLAB + s);
        UNROLL_BY(1)
        for (int block = i / 16 + 1; block < BLOCKS; block++)
            after *= load_wide(block_decay + block * SLAB + s);
        store_wide_global(t->w + to, load_wide(SLAB_K(memory) + at) * before * row_beta[i]);
        store_wide_global(t->qd + to, load_wide(SLAB_Q(memory) + at) * before);
        store_wide_global(t->ke + to, after);
        if (i == C - 1)
            store_wide_global(t->d + d0 + s,
                              before * load_wide(block_decay + (BLOCKS - 1) * SLAB + s));
    }
}

/* Pairs of different blocks: row role / 16 of block I, key role % 16 of block J. */
INLINE void sum_far(__local const float *memory, __local const float *block_decay, int role,
                    lanes_t *sums)
{
    __local const float *row = memory + (role / 256 * C + role / 16 % 16) * ROW;
    __local const float *key = SLAB_C(memory) + role % 16 * ROW;
#if EAGER && BLOCKS == 2
    UNROLL_BY(4)
#else
    UNROLL_BY(1)
#endif
    for (int s = 0; s < SLAB; s += WIDE) {
        wide_t keys[BLOCKS]; /* decayed to the start of the block at work */
        UNROLL
        for (int block = 1; block < BLOCKS; block++) {
            const wide_t x = load_wide(row + block * 16 * ROW + s);
            const wide_t decay = load_wide(block_decay + block * SLAB + s);
            keys[block - 1] = load_wide(key + (block - 1) * 16 * ROW + s);
            UNROLL
            for (int other = 0; other < block; other++) {
                sums[PAIR(block, other)] = dot_wide(sums[PAIR(block, other)], x, keys[other]);
                keys[other] *= decay;
            }
        }
    }
}

/* The sums of all shares but the first, for the items that have the first. */
#define SHARED(memory, share, i, role)                                                             \
    (memory)[(((share)-1) * 16 + (i)) * 2 * C + (role) / (C * SHARES) * C + (role) % C]
INLINE void give_shares(__local float *memory, int role, const lanes_t *sums)
{
    const int share = role / C % SHARES;
    if (share > 0)
        UNROLL
    for (int i = 0; i < LOOP_BOUND(16); i++)
        SHARED(memory, share, i, role) = total(sums[i]);
}
INLINE void take_shares(__local const float *memory, int role, lanes_t *sums)
{
    if (role / C % SHARES == 0)
        UNROLL
    for (int i = 0; i < LOOP_BOUND(16); i++)
        UNROLL
    for (int share = 1; share < SHARES; share++)
        sums[i] += SHARED(memory, share, i, role);
}

/* A_qk to the workspace, zero above the diagonal; R, which is A_kk times beta, to local memory. */
INLINE void store_near(const struct chunk *t, __local float *memory, __local const float *row_beta,
                       int role, const lanes_t *sums)
{
    const int j = role % C, base = j & ~15;
    if (role / C % SHARES == 0)
        UNROLL
    for (int i = 0; i < LOOP_BOUND(16); i++) {
        const float sum = total(sums[i]);
        if (role >= NEAR_ROLES / 2)
            t->a_qk[(base + i) * C + j] = base + i >= j ? sum : 0.0f;
        else
            ROWS_R(memory)[ROW_AT(base + i) + j] = sum * row_beta[base + i];
    }
}
INLINE void store_far(const struct chunk *t, __local float *memory, __local const float *row_beta,
                      int role, const lanes_t *sums)
{
    const int i = role / 16 % 16, j = role % 16;
    UNROLL
    for (int block = 1; block < BLOCKS; block++)
        UNROLL
    for (int other = 0; other < block; other++) {
        const float sum = total(sums[PAIR(block, other)]);
        const int row = block * 16 + i, key = other * 16 + j;
        if (role >= FAR_ROLES / 2) {
            t->a_qk[row * C + key] = sum;
            t->a_qk[(other * 16 + i) * C + block * 16 + j] = 0.0f;
        } else {
            ROWS_R(memory)[ROW_AT(row) + key] = sum * row_beta[row];
        }
    }
}

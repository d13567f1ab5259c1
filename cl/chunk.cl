/* The chunkwise schedule, part one: everything about a chunk that does not need the state.
 *
 * THE DERIVATION, once. Take C tokens of one head, S the state before them, a_t = exp(g_t) the
 * decay of token t (one number a key channel, all in [0, 1]), D(i..j) = a_i * ... * a_j. A token's
 * error is its provisional error against the decayed S, less what the errors of earlier tokens
 * wrote:
 *
 *     e_i = beta_i (v_i - S^T D(0..i) k_i) - sum over j < i of R_ij e_j
 *     R_ij = beta_i  k_j . D(j+1..i) k_i                       (A_kk, strictly lower triangular)
 *
 * so with T = (I + R)^-1, which is unit lower triangular, all errors of the chunk are
 *
 *     E = U - W S      W = T (beta_i D(0..i) k_i)_i     U = T (beta_i v_i)_i
 *
 * and output and next state are
 *
 *     O = Qd S + A_qk E                Qd_i = scale D(0..i) q_i
 *     S' = D(0..C-1) S + Ke^T E        Ke_j = D(j+1..C-1) k_j
 *     A_qk,ij = scale  k_j . D(j+1..i) q_i  for j <= i
 *
 * NO EXPONENT IS EVER POSITIVE. Nothing here exponentiates a sum or a difference of gates: every
 * factor is a product of decays, each exp(g) with g <= 0. So any gate is exact to rounding, -inf
 * and -1000 next to 0 included, and a factor that underflows belongs to a term that does. The
 * factor D(j+1..i) of a pair (i, j) is split at a boundary between the two:
 *
 *     different 16-token blocks I > J:  D(j+1..i) = c_j * m_J..I * r_i
 *         r_i = D(start of I..i)   m = blocks strictly between   c_j = D(j+1..end of J)
 *     the boundary is the start of I, which is no future of i: a later token cannot change the
 *     pair. c_j * m is kept up to date in place: when the walk passes block I, the keys before it
 *     are multiplied by I's total decay. After the last block they are Ke.
 *
 *     the same block: no boundary serves all pairs, so products are carried from j to i one token
 *     at a time, as the recurrence does: 120 pairs of K channels, a few per cent of the work.
 *
 * (I + R) is inverted by substitution within 16 x 16 blocks and merged block by block,
 *     T_IJ = -T_II sum over J <= M < I of R_IM T_MJ,
 * which for beta <= 1 and unit keys keeps every entry of order one, however alike the keys are; a
 * power series would not (its terms grow like binomials before they cancel).
 *
 * WORK SPLIT. One work-group for each chunk and value head. Key channels come in slabs of 32, of
 * which the work-items sum A_kk and A_qk in registers, each role a part of one of the two matrices:
 *     same block:        key j and a share of the slab's channels, 16 sums
 *     different blocks:  row i of a block and key j of another, one sum for each pair of blocks
 * A role is one work-item's where the work-group has 512; a smaller one takes them in passes. Then
 * the slabs' memory holds T, as rows of whole blocks up to the diagonal, and 64 columns at a time
 * of what T is multiplied with. At C = 64 that is
 *     three slabs of C x 32             27 KiB   or
 *     T of 10 KiB, and 64 x 64 floats   26 KiB
 *
 * VECTORS. On a CPU (KDA_COMPACT) a work-item takes 16 neighbouring channels or columns everywhere,
 * also those of a sum: its lanes are added once, at the end. Elsewhere it takes one from global
 * memory, so that neighbouring items read neighbouring words, and four from local memory.
 *
 * The token grid starts at each sequence's own start, so a sequence gives the same bits alone and
 * packed. Rows past a sequence's end have k = q = v = beta = 0 and decay 1: they change nothing.
 *
 * SPDX-License-Identifier: MIT */

#ifndef KDA_PREPARE_WG
#define KDA_PREPARE_WG 512 /* a power of two, 16..512 */
#endif

#define C KDA_CHUNK
#define BLOCKS (C / 16)
#define PAIRS (BLOCKS * (BLOCKS - 1) / 2)
#define PAIR(I, J) ((I) * ((I)-1) / 2 + (J))
#define SLAB 32  /* key channels at a time */
#define TO_MULTIPLY 64 /* columns of W and U at a time */
#define PASSES(roles) (((roles) + KDA_PREPARE_WG - 1) / KDA_PREPARE_WG)

#if KDA_COMPACT
#define LANES 16 /* of a lanes_t: neighbours in global memory, or parts of a sum */
#define WIDE 16  /* of a wide_t: neighbours in local memory */
#define SHARES 1 /* of a slab's channels, for pairs of the same block */
#define ROW SLAB
#define NORM_PARTS 1
typedef float16 lanes_t;
typedef float16 wide_t;
#define load_wide(p) vload16(0, p)
#define store_wide(p, x) vstore16(x, 0, p)
#define put_wide(p, x) vstore16(x, 0, p)
#define load_lanes(p) vload16(0, p)
#define store_lanes(p, x) vstore16(x, 0, p)
#else
#define LANES 1
#define WIDE 4
#define SHARES 4
#define ROW (SLAB + 4) /* eight neighbouring rows in different banks */
#define NORM_PARTS 8
typedef float lanes_t;
typedef float4 wide_t;
#define load_wide(p) (*(__local const float4 *)(p))
#define store_wide(p, x) (*(__global float4 *)(p) = (x))
#define put_wide(p, x) (*(__local float4 *)(p) = (x))
#define load_lanes(p) (*(p))
#define store_lanes(p, x) (*(p) = (x))
#endif

#define SHARE (SLAB / SHARES)
#define NEAR_ROLES (2 * SHARES * C)
#define FAR_ROLES (2 * 256)
/* Items left over repeat the last role. */
#define NEAR_ROLE(p) min(lid + (p)*KDA_PREPARE_WG, NEAR_ROLES - 1)
/* An item's words of a slab, and of what T is multiplied with. */
#define LOADED(p) (min(lid + (p)*KDA_PREPARE_WG, C * SLAB / LANES - 1) * LANES)
#define MULTIPLIED(p) (min(lid + (p)*KDA_PREPARE_WG, C * TO_MULTIPLY / LANES - 1) * LANES)
/* Row i of T, which ends with i's block. */
#define T_ROW(i) (memory + 16 * ((i) / 16 + 1) * ((i) / 16 * 8 + (i) % 16))
#define T_SIZE (128 * BLOCKS * (BLOCKS + 1))

/* sum + x . y, in order; on a CPU the lanes stay apart until total(). */
static inline lanes_t dot_wide(lanes_t sum, wide_t x, wide_t y)
{
#if KDA_COMPACT
    return sum + x * y;
#else
    sum += x.s0 * y.s0;
    sum += x.s1 * y.s1;
    sum += x.s2 * y.s2;
    sum += x.s3 * y.s3;
    return sum;
#endif
}

static inline float total(lanes_t sum)
{
#if KDA_COMPACT
    const float8 a = sum.lo + sum.hi;
    const float4 b = a.lo + a.hi;
    const float2 c = b.lo + b.hi;
    return c.lo + c.hi;
#else
    return sum;
#endif
}

/* Neighbours as floats, zero from the inside-th on. Elsewhere than on a CPU the first is loaded in
 * any case, so that loads need no branch and several are under way at once. */
#if KDA_COMPACT
#define GATHER(value)                                                                              \
    float x[LANES];                                                                                \
    if (inside >= LANES)                                                                           \
        for (int l = 0; l < LANES; l++)                                                            \
            x[l] = value;                                                                          \
    else                                                                                           \
        for (int l = 0; l < LANES; l++)                                                            \
            x[l] = l < inside ? value : 0.0f;                                                      \
    return vload16(0, x);
#else
#define GATHER(value)                                                                              \
    const int l = 0;                                                                               \
    const float x = value;                                                                         \
    return inside > 0 ? x : 0.0f;
#endif
static inline lanes_t data_lanes(__global const data_t *p, long at, int inside)
{
    GATHER(load_data(p, at + l))
}
static inline lanes_t gate_lanes(__global const gate_t *p, long at, int inside)
{
    GATHER(load_gate(p, at + l))
}
static inline lanes_t bias_lanes(__global const float *p, long at, int inside)
{
    GATHER(p[at + l])
}

/* 1 in one lane, 0 in the others. */
static inline lanes_t unit(int lane)
{
#if KDA_COMPACT
    float x[LANES];
    for (int l = 0; l < LANES; l++)
        x[l] = l == lane ? 1.0f : 0.0f;
    return vload16(0, x);
#else
    return lane == 0 ? 1.0f : 0.0f;
#endif
}

/* Chunks of a sequence that the chunkwise schedule handles; short ones belong to kda_step. */
static inline int chunks_of(const struct kda_call_args *a, __global const int *cu_seqlens,
                     __global const int *state_index, long n)
{
    const long begin = sequence_start(a, cu_seqlens, n);
    const long length = sequence_start(a, cu_seqlens, n + 1) - begin;
    if (length <= a->step_limit || sequence_slot(a, state_index, n) < 0)
        return 0;
    return (int)((length + C - 1) / C);
}

/* The chunk table of a call with cu_seqlens: first chunk of each sequence, counted over all
 * sequences, then the total. One work-group; each item sums a run of sequences, the runs' sums are
 * scanned, then written. */
__kernel __attribute__((reqd_work_group_size(KDA_PREPARE_WG, 1, 1))) void
kda_table(const struct kda_call_args a, __global const int *cu_seqlens,
          __global const int *state_index, __global float *workspace)
{
    __local int sums[KDA_PREPARE_WG];
    __global int *table = (__global int *)(workspace + a.table);
    const int lid = (int)get_local_id(0);
    const long run = (a.sequences + KDA_PREPARE_WG - 1) / KDA_PREPARE_WG;
    const long first = lid * run, last = min(first + run, (long)a.sequences);
    int sum = 0;
    for (long n = first; n < last; n++)
        sum += chunks_of(&a, cu_seqlens, state_index, n);
    sums[lid] = sum;
    barrier(CLK_LOCAL_MEM_FENCE); /* all sums are there */
    int at = 0;
    for (int i = 0; i < lid; i++)
        at += sums[i];
    for (long n = first; n < last; n++) {
        table[n] = at;
        at += chunks_of(&a, cu_seqlens, state_index, n);
    }
    if (lid == KDA_PREPARE_WG - 1)
        table[a.sequences] = at;
}

__kernel __attribute__((reqd_work_group_size(KDA_PREPARE_WG, 1, 1))) void
kda_prepare(const struct kda_call_args a, __global const data_t *q, __global const data_t *k,
            __global const data_t *v, __global const gate_t *g, __global const beta_t *beta,
            __global const float *a_log, __global const float *dt_bias,
            __global const int *cu_seqlens, __global float *workspace)
{
    /* Three slabs while the A matrices are summed; T and what it multiplies afterwards. */
    __local float memory[3 * C * ROW > T_SIZE + C * TO_MULTIPLY ? 3 * C * ROW
                                                                : T_SIZE + C * TO_MULTIPLY]
        __attribute__((aligned(64)));
    __local float *const slab_k = memory, *const slab_q = memory + C * ROW,
                         *const slab_c = memory + 2 * C * ROW;
    __local float *const slab_x = memory + T_SIZE;
    __local float block_decay[BLOCKS][SLAB] __attribute__((aligned(64)));
    __local float row_beta[C], norm_k[C], norm_q[C];

    const int lid = (int)get_local_id(0);
    const uint group = (uint)get_group_id(0);
    const int head = (int)(group % (uint)a.value_heads);
    const int chunk = a.first_chunk + (int)(group / (uint)a.value_heads);
    /* The launch has room for the most chunks there can be. On a CPU the work-groups left over
     * work on empty rows instead of returning early: see "Barriers" in step.cl. */
    const int exists = chunk < chunk_start(&a, workspace, a.sequences);
#if !KDA_COMPACT
    if (!exists)
        return;
#endif
    const long n = sequence_of(&a, workspace, chunk);
    const long start =
        sequence_start(&a, cu_seqlens, n) + (long)(chunk - chunk_start(&a, workspace, n)) * C;
    const int rows =
        exists ? (int)min(sequence_start(&a, cu_seqlens, n + 1) - start, (long)C) : 0;

    const int kh = key_head(head, a.heads, a.value_heads);
    q += a.q.offset + kh * a.q.head_stride + start * a.q.token_stride;
    k += a.k.offset + kh * a.k.head_stride + start * a.k.token_stride;
    v += a.v.offset + head * a.v.head_stride + start * a.v.token_stride;
    g += a.g.offset + head * a.g.head_stride + start * a.g.token_stride;
    beta += a.beta.offset + head * a.beta.head_stride + start * a.beta.token_stride;
    __global float *factors = workspace + a.factors + (long)group * a.factor_stride;
    __global float *out_w = factors + FACTOR_W, *out_qd = factors + FACTOR_QD,
                   *out_ke = factors + FACTOR_KE, *out_a = factors + FACTOR_A,
                   *out_d = factors + FACTOR_D, *out_u = factors + FACTOR_U;

    float gate_scale = 1.0f;
    if (a.has & KDA_HAS_A_LOG)
        gate_scale = min(exp(a_log[a.a_log + head]), FLT_MAX);

    /* Per row: beta, and the norms of q and k. */
    for (int i = lid; i < C; i += KDA_PREPARE_WG) {
        float b = 1.0f;
        if ((a.has & KDA_HAS_BETA) && i < rows)
            b = activate_beta(load_beta(beta, i * a.beta.token_stride));
        row_beta[i] = i < rows ? b : 0.0f;
        norm_k[i] = 1.0f;
        norm_q[i] = a.scale;
    }
#if KDA_NORM_QK
    /* Partial sums of a row, each over every so manieth channel, then their sum. */
    for (int x = lid; x < C * NORM_PARTS; x += KDA_PREPARE_WG) {
        const int i = x / NORM_PARTS, from = min(i, rows - 1);
        lanes_t kk = 0.0f, qq = 0.0f;
UNROLL_BY(8)
        for (int d = x % NORM_PARTS * LANES; d < KDA_K; d += NORM_PARTS * LANES) {
            const int inside = i < rows ? KDA_K - d : 0;
            const lanes_t y = data_lanes(k, from * a.k.token_stride + d, inside);
            const lanes_t z = data_lanes(q, from * a.q.token_stride + d, inside);
            kk += y * y;
            qq += z * z;
        }
        memory[x] = total(kk);
        memory[C * NORM_PARTS + x] = total(qq);
    }
    barrier(CLK_LOCAL_MEM_FENCE); /* partial sums are complete */
    for (int x = lid; x < 2 * C; x += KDA_PREPARE_WG) {
        float sum = 0.0f;
UNROLL
        for (int part = 0; part < NORM_PARTS; part++)
            sum += memory[x * NORM_PARTS + part];
        if (x < C)
            norm_k[x] = 1.0f / sqrt(sum + 1e-6f);
        else
            norm_q[x - C] = a.scale / sqrt(sum + 1e-6f);
    }
#endif

    /* Sums of a role: pairs of the same block, and of different blocks. */
    lanes_t near[PASSES(NEAR_ROLES)][16];
UNROLL
    for (int p = 0; p < PASSES(NEAR_ROLES); p++)
UNROLL
        for (int i = 0; i < 16; i++)
            near[p][i] = 0.0f;
#if PAIRS
    lanes_t far[PASSES(FAR_ROLES)][PAIRS];
UNROLL
    for (int p = 0; p < PASSES(FAR_ROLES); p++)
UNROLL
        for (int i = 0; i < PAIRS; i++)
            far[p][i] = 0.0f;
#endif

    for (int d0 = 0; d0 < PADDED_K; d0 += SLAB) {
        barrier(CLK_LOCAL_MEM_FENCE); /* norms are there; the last slab has been used */
        lanes_t raw_k[PASSES(C * SLAB / LANES)], raw_q[PASSES(C * SLAB / LANES)],
            raw_g[PASSES(C * SLAB / LANES)];
UNROLL
        for (int p = 0; p < PASSES(C * SLAB / LANES); p++) {
            const int x = LOADED(p), i = x / SLAB, d = d0 + x % SLAB;
            const int inside = i < rows ? KDA_K - d : 0;
            const long from = min(i, rows - 1);
            const int at = min(d, KDA_K - 1);
            raw_k[p] = data_lanes(k, from * a.k.token_stride + at, inside);
            raw_q[p] = data_lanes(q, from * a.q.token_stride + at, inside);
#if KDA_GATE_PER_HEAD && KDA_GATE != KDA_GATE_NONE
            raw_g[p] = i < rows ? load_gate(g, from * a.g.token_stride) : 0.0f;
#elif KDA_GATE != KDA_GATE_NONE
            raw_g[p] = gate_lanes(g, from * a.g.token_stride + at, inside);
#endif
        }
UNROLL
        for (int p = 0; p < PASSES(C * SLAB / LANES); p++) {
            const int x = LOADED(p), i = x / SLAB, s = x % SLAB;
            lanes_t decay = 1.0f;
#if KDA_GATE != KDA_GATE_NONE
            lanes_t bias = 0.0f;
            if (a.has & KDA_HAS_DT_BIAS) {
#if KDA_GATE_PER_HEAD
                bias = dt_bias[a.dt_bias + head];
#else
                bias = bias_lanes(dt_bias, a.dt_bias + (long)head * KDA_K + min(d0 + s, KDA_K - 1),
                                  KDA_K - d0 - s);
#endif
            }
            if (i < rows)
                decay = exp(log_decay(raw_g[p], bias, gate_scale, a.gate_bound));
#endif
            store_lanes(slab_k + i * ROW + s, raw_k[p] * norm_k[i]);
            store_lanes(slab_q + i * ROW + s, raw_q[p] * norm_q[i]);
            store_lanes(slab_c + i * ROW + s, decay);
        }
        barrier(CLK_LOCAL_MEM_FENCE); /* raw slabs are complete */

        /* Same block: carry key j of a share of channels from token to token. */
UNROLL
        for (int p = 0; p < PASSES(NEAR_ROLES); p++) {
            const int role = NEAR_ROLE(p), j = role % C, base = j & ~15;
            const int s0 = role / C % SHARES * SHARE;
            __local const float *row = memory + role / C / SHARES * C * ROW + base * ROW + s0;
            __local const float *decays = slab_c + base * ROW + s0;
            wide_t carried[SHARE / WIDE];
UNROLL
            for (int s = 0; s < SHARE / WIDE; s++)
                carried[s] = load_wide(slab_k + j * ROW + s0 + s * WIDE);
UNROLL
            for (int i = 0; i < 16; i++) {
                if (base + i < j)
                    continue;
UNROLL
                for (int s = 0; s < SHARE / WIDE; s++) {
                    if (base + i > j)
                        carried[s] *= load_wide(decays + i * ROW + s * WIDE);
                    near[p][i] =
                        dot_wide(near[p][i], load_wide(row + i * ROW + s * WIDE), carried[s]);
                }
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE); /* raw slabs have been used */

        /* Rows decayed from their block's start, keys decayed to their block's end. */
        for (int x = lid; x < BLOCKS * SLAB / LANES; x += KDA_PREPARE_WG) {
            const int s = x % (SLAB / LANES) * LANES, block = x / (SLAB / LANES);
            lanes_t r[16], product = 1.0f, lost = 0.0f;
UNROLL
            for (int i = 0; i < 16; i++) {
                const lanes_t decay = load_lanes(slab_c + (block * 16 + i) * ROW + s);
                r[i] = product * decay;
                lost = lost * decay + fma(product, decay, -r[i]);
                product = r[i];
            }
            /* A product of floats just below one loses what is below their last bit, nearly always
             * downwards, and a chunk's decay lives on in every later state: what was lost is kept
             * (without it, ten times the error after 16384 tokens of slow gates). */
            store_lanes(block_decay[block] + s, product + lost);
            product = 1.0f;
UNROLL
            for (int i = 15; i >= 0; i--) {
                const int at = (block * 16 + i) * ROW + s;
                const lanes_t decay = load_lanes(slab_c + at), ki = load_lanes(slab_k + at);
                store_lanes(slab_c + at, ki * product);
                product *= decay;
                store_lanes(slab_k + at, ki * r[i]);
                store_lanes(slab_q + at, load_lanes(slab_q + at) * r[i]);
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE); /* decayed slabs are complete */

        /* From the chunk's start, what W is made of, and Qd; to the chunk's end, Ke. */
        for (int x = lid; x < C * SLAB / WIDE; x += KDA_PREPARE_WG) {
            const int i = x / (SLAB / WIDE), s = x % (SLAB / WIDE) * WIDE;
            const int to = i * PADDED_K + d0 + s;
            wide_t before = 1.0f, after = load_wide(slab_c + i * ROW + s);
            for (int block = 0; block < i / 16; block++)
                before *= load_wide(block_decay[block] + s);
            for (int block = i / 16 + 1; block < BLOCKS; block++)
                after *= load_wide(block_decay[block] + s);
            store_wide(out_w + to, load_wide(slab_k + i * ROW + s) * before * row_beta[i]);
            store_wide(out_qd + to, load_wide(slab_q + i * ROW + s) * before);
            store_wide(out_ke + to, after);
            if (i == C - 1)
                store_wide(out_d + d0 + s, before * load_wide(block_decay[BLOCKS - 1] + s));
        }

        /* Different blocks. Role: row role / 16 of block I, key role % 16 of block J. */
#if PAIRS
UNROLL
        for (int p = 0; p < PASSES(FAR_ROLES); p++) {
            const int role = lid + p * KDA_PREPARE_WG;
            __local const float *row = memory + (role / 256 * C + role / 16 % 16) * ROW;
            __local const float *key = slab_c + role % 16 * ROW;
UNROLL_BY(2)
            for (int s = 0; s < SLAB; s += WIDE) {
                wide_t keys[BLOCKS - 1]; /* decayed to the start of the block at work */
UNROLL
                for (int block = 1; block < BLOCKS; block++) {
                    const wide_t x = load_wide(row + block * 16 * ROW + s);
                    keys[block - 1] = load_wide(key + (block - 1) * 16 * ROW + s);
UNROLL
                    for (int other = 0; other < block; other++) {
                        far[p][PAIR(block, other)] =
                            dot_wide(far[p][PAIR(block, other)], x, keys[other]);
                        keys[other] *= load_wide(block_decay[block] + s);
                    }
                }
            }
        }
#endif
    }

    /* Gather A_qk in the workspace, zero above the diagonal, and with the delta rule R in T's
     * place. Shares of a same-block pair are added in turn, so the order is fixed. */
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE); /* the last slab has been used */
#if SHARES > 1
UNROLL
    for (int p = 0; p < PASSES(NEAR_ROLES); p++) {
        const int role = NEAR_ROLE(p), share = role / C % SHARES;
        const int pair = role / C / SHARES * C + role % C;
        if (share > 0)
UNROLL
            for (int i = 0; i < 16; i++)
                memory[((share - 1) * 16 + i) * 2 * C + pair] = near[p][i];
    }
    barrier(CLK_LOCAL_MEM_FENCE); /* the other shares are there */
UNROLL
    for (int p = 0; p < PASSES(NEAR_ROLES); p++) {
        const int role = NEAR_ROLE(p);
        const int pair = role / C / SHARES * C + role % C;
        if (role / C % SHARES == 0)
UNROLL
            for (int i = 0; i < 16; i++)
UNROLL
                for (int share = 1; share < SHARES; share++)
                    near[p][i] += memory[((share - 1) * 16 + i) * 2 * C + pair];
    }
    barrier(CLK_LOCAL_MEM_FENCE); /* the other shares have been added */
#endif
UNROLL
    for (int p = 0; p < PASSES(NEAR_ROLES); p++) {
        const int role = NEAR_ROLE(p), j = role % C, base = j & ~15;
        if (role / C % SHARES == 0)
UNROLL
            for (int i = 0; i < 16; i++) {
                const float sum = total(near[p][i]);
                if (role >= NEAR_ROLES / 2)
                    out_a[(base + i) * C + j] = sum;
                else if (base + i > j)
                    T_ROW(base + i)[j] = sum * row_beta[base + i];
            }
    }
#if PAIRS
UNROLL
    for (int p = 0; p < PASSES(FAR_ROLES); p++) {
        const int role = lid + p * KDA_PREPARE_WG, i = role / 16 % 16, j = role % 16;
UNROLL
        for (int block = 1; block < BLOCKS; block++)
UNROLL
            for (int other = 0; other < block; other++) {
                const float sum = total(far[p][PAIR(block, other)]);
                if (role < FAR_ROLES / 2) {
                    T_ROW(block * 16 + i)[other * 16 + j] = sum * row_beta[block * 16 + i];
                } else {
                    out_a[(block * 16 + i) * C + other * 16 + j] = sum;
                    out_a[(other * 16 + i) * C + block * 16 + j] = 0.0f;
                }
            }
    }
#endif
#if KDA_RULE == KDA_RULE_DELTA
    barrier(CLK_LOCAL_MEM_FENCE); /* R is complete */

    /* T of the diagonal blocks: substitution, each item its columns. Items left over repeat the
     * last. */
    lanes_t column[PASSES(C / LANES)][16];
UNROLL
    for (int p = 0; p < PASSES(C / LANES); p++) {
        const int x = min(lid + p * KDA_PREPARE_WG, C / LANES - 1) * LANES, base = x & ~15;
UNROLL
        for (int i = 0; i < 16; i++) {
            lanes_t t = unit(base + i - x);
UNROLL
            for (int m = 0; m < 16; m++)
                if (m < i)
                    t -= T_ROW(base + i)[base + m] * column[p][m];
            column[p][i] = t;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE); /* the diagonal blocks of R have been read */
UNROLL
    for (int p = 0; p < PASSES(C / LANES); p++) {
        const int x = min(lid + p * KDA_PREPARE_WG, C / LANES - 1) * LANES, base = x & ~15;
UNROLL
        for (int i = 0; i < 16; i++)
            store_lanes(T_ROW(base + i) + x, column[p][i]);
    }

    /* T of the blocks below, a row of blocks after the other. */
    for (int block = 1; block < BLOCKS; block++) {
        const int width = block * 16;
        barrier(CLK_LOCAL_MEM_FENCE); /* T of the rows above is complete */
        for (int x = lid; x < 16 * width / WIDE; x += KDA_PREPARE_WG) {
            const int i = x / (width / WIDE), j = x % (width / WIDE) * WIDE;
            wide_t sum = 0.0f;
UNROLL_BY(8)
            for (int m = j & ~15; m < width; m++)
                sum += T_ROW(width + i)[m] * load_wide(T_ROW(m) + j);
            put_wide(slab_x + i * C + j, sum);
        }
        barrier(CLK_LOCAL_MEM_FENCE); /* R of this row has been read */
        for (int x = lid; x < 16 * width / WIDE; x += KDA_PREPARE_WG) {
            const int i = x / (width / WIDE), j = x % (width / WIDE) * WIDE;
            wide_t sum = 0.0f;
UNROLL_BY(4)
            for (int m = 0; m <= i; m++)
                sum -= T_ROW(width + i)[width + m] * load_wide(slab_x + m * C + j);
            put_wide(T_ROW(width + i) + j, sum);
        }
    }
#endif

    /* W and U: T times the keys, in place, and times the values. Each turn brings in one slab and
     * multiplies the one before. */
    const int padded_v = a.padded_v;
    const int slabs_w = (PADDED_K + TO_MULTIPLY - 1) / TO_MULTIPLY;
    const int first = KDA_RULE == KDA_RULE_DELTA ? 0 : slabs_w;
    const int slabs = slabs_w + (padded_v + TO_MULTIPLY - 1) / TO_MULTIPLY;
    for (int slab = first; slab <= slabs; slab++) {
        lanes_t next[PASSES(C * TO_MULTIPLY / LANES)];
UNROLL
        for (int p = 0; p < PASSES(C * TO_MULTIPLY / LANES); p++) {
            const int x = MULTIPLIED(p), i = x / TO_MULTIPLY;
            const int c = slab * TO_MULTIPLY + x % TO_MULTIPLY, cv = c - slabs_w * TO_MULTIPLY;
            if (slab < slabs_w)
                next[p] = load_lanes(out_w + i * PADDED_K + min(c, PADDED_K - LANES));
            else
                next[p] = data_lanes(v,
                                     (long)min(i, rows - 1) * a.v.token_stride +
                                         min(cv, a.value_dim - 1),
                                     i < rows ? a.value_dim - cv : 0) *
                          row_beta[i];
        }
        const int of_w = slab <= slabs_w;
        const int c0 = (of_w ? slab - 1 : slab - 1 - slabs_w) * TO_MULTIPLY;
        const int stride = of_w ? PADDED_K : padded_v;
        __global float *to = of_w ? out_w : out_u;
        for (int x = lid; slab > first && x < C / 2 * (TO_MULTIPLY / WIDE); x += KDA_PREPARE_WG) {
            const int s = x % (TO_MULTIPLY / WIDE) * WIDE, row = x / (TO_MULTIPLY / WIDE) * 2;
            __local const float *y = slab_x + s;
            wide_t sum0 = load_wide(y + row * TO_MULTIPLY);
            wide_t sum1 = load_wide(y + (row + 1) * TO_MULTIPLY);
#if KDA_RULE == KDA_RULE_DELTA
            /* T has ones on its diagonal. */
            __local const float *t0 = T_ROW(row), *t1 = T_ROW(row + 1);
            sum1 += t1[row] * sum0;
UNROLL_BY(4)
            for (int m = 0; m < row; m += 2) {
                const wide_t y0 = load_wide(y + m * TO_MULTIPLY);
                const wide_t y1 = load_wide(y + (m + 1) * TO_MULTIPLY);
                sum0 += t0[m] * y0;
                sum0 += t0[m + 1] * y1;
                sum1 += t1[m] * y0;
                sum1 += t1[m + 1] * y1;
            }
#endif
            if (c0 + s < stride) {
                store_wide(to + row * stride + c0 + s, sum0);
                store_wide(to + (row + 1) * stride + c0 + s, sum1);
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE); /* T is complete; the slab before has been used */
UNROLL
        for (int p = 0; p < PASSES(C * TO_MULTIPLY / LANES); p++)
            store_lanes(slab_x + MULTIPLIED(p), next[p]);
        /* The slab is complete, and its part of W may be overwritten. */
        barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    }
}

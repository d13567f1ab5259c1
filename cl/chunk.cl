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
 * WORK SPLIT. One work-group for each chunk and value head. 512 roles, 256 for A_kk and 256 for
 * A_qk, are shared out over the work-group's items, PASSES roles each; an item with one role keeps
 * 16 + 6 sums in registers, so that 512 items fit a multiprocessor's 65536. Key channels come in
 * slabs of 32, so local memory stays below 32 KiB at C = 64:
 *     three slabs of C x 32     27 KiB   while A_kk and A_qk are summed in registers, then
 *     T, C x C, and a slab      26 KiB   while W and U are formed
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
#define ROLES 256 /* for each of the two matrices */
#define PASSES (2 * ROLES / KDA_PREPARE_WG)
#define SLAB 32
#define ROW (SLAB + 4) /* rows of whole float4, eight neighbouring ones in different banks */
#define T_ROW (C + 1)
/* Columns of T that an item solves for. */
#define COLUMNS ((C + KDA_PREPARE_WG - 1) / KDA_PREPARE_WG)
/* The same-block pairs: C keys, their channels of a slab shared out over SHARES roles. */
#define SHARES (ROLES / C)
#define SHARE (SLAB / SHARES)

static inline float2 local2(__local const float *p)
{
    return *(__local const float2 *)p;
}
static inline float4 local4(__local const float *p)
{
    return *(__local const float4 *)p;
}

/* sum + x . y, in order. */
static inline float dot4(float sum, float4 x, float4 y)
{
    sum += x.s0 * y.s0;
    sum += x.s1 * y.s1;
    sum += x.s2 * y.s2;
    sum += x.s3 * y.s3;
    return sum;
}

/* Chunks of a sequence that the chunkwise schedule handles; short ones belong to kda_step. */
static inline int chunks_of(const struct kda_call_args *a, __global const int *cu_seqlens,
                     __global const int *state_index, __global const int *accepted, long n)
{
    const long begin = sequence_start(a, cu_seqlens, n);
    const long length = sequence_start(a, cu_seqlens, n + 1) - begin;
    if (length <= a->step_limit || sequence_slot(a, state_index, accepted, n) < 0)
        return 0;
    return (int)((length + C - 1) / C);
}

/* The chunk table of a call with cu_seqlens: first chunk of each sequence, counted over all
 * sequences, then the total. One work-group; each item sums a run of sequences, the runs' sums are
 * scanned, then written. */
__kernel __attribute__((reqd_work_group_size(KDA_PREPARE_WG, 1, 1))) void
kda_table(const struct kda_call_args a, __global const int *cu_seqlens,
          __global const int *state_index, __global const int *accepted,
          __global float *workspace)
{
    __local int sums[KDA_PREPARE_WG];
    __global int *table = (__global int *)(workspace + a.table);
    const int lid = (int)get_local_id(0);
    const long run = (a.sequences + KDA_PREPARE_WG - 1) / KDA_PREPARE_WG;
    const long first = lid * run, last = min(first + run, (long)a.sequences);
    int sum = 0;
    for (long n = first; n < last; n++)
        sum += chunks_of(&a, cu_seqlens, state_index, accepted, n);
    sums[lid] = sum;
    barrier(CLK_LOCAL_MEM_FENCE); /* all sums are there */
    int at = 0;
    for (int i = 0; i < lid; i++)
        at += sums[i];
    for (long n = first; n < last; n++) {
        table[n] = at;
        at += chunks_of(&a, cu_seqlens, state_index, accepted, n);
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
    /* Slabs x, y, z while the A matrices are summed; T and one slab afterwards. */
    __local float memory[3 * C * ROW > C * T_ROW + C * ROW ? 3 * C * ROW : C * T_ROW + C * ROW]
        __attribute__((aligned(16)));
    __local float *const slab_k = memory, *const slab_q = memory + C * ROW,
                         *const slab_c = memory + 2 * C * ROW;
    __local float *const tri = memory, *const slab_x = memory + C * T_ROW;
    __local float block_decay[BLOCKS][SLAB];
#if KDA_RULE == KDA_RULE_DELTA
    __local float merge[16][C];
#endif
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
    const long start = sequence_start(&a, cu_seqlens, n) +
                       (long)(chunk - chunk_start(&a, workspace, n)) * C;
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
    /* Eight partial sums a row, each over every eighth channel, then their tree. */
    for (int x = lid; x < C * 8; x += KDA_PREPARE_WG) {
        const int i = x / 8;
        float kk = 0.0f, qq = 0.0f;
        if (i < rows) {
UNROLL_BY(4)
            for (int d = x % 8; d < KDA_K; d += 8) {
                float y = load_data(k, i * a.k.token_stride + d);
                float z = load_data(q, i * a.q.token_stride + d);
                kk += y * y;
                qq += z * z;
            }
        }
        memory[x] = kk;
        memory[C * 8 + x] = qq;
    }
    barrier(CLK_LOCAL_MEM_FENCE); /* partial sums are complete */
    for (int x = lid; x < 2 * C; x += KDA_PREPARE_WG) {
        __local const float *s = memory + x * 8;
        const float sum = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
        if (x < C)
            norm_k[x] = 1.0f / sqrt(sum + 1e-6f);
        else
            norm_q[x - C] = a.scale / sqrt(sum + 1e-6f);
    }
#endif

    /* Sums of a role's matrix: pairs of different blocks, and of the same block. */
#if PAIRS
    float far[PASSES][PAIRS];
#endif
    float near[PASSES][16];
    for (int p = 0; p < PASSES; p++) {
#if PAIRS
UNROLL
        for (int i = 0; i < PAIRS; i++)
            far[p][i] = 0.0f;
#endif
UNROLL
        for (int i = 0; i < 16; i++)
            near[p][i] = 0.0f;
    }

    for (int d0 = 0; d0 < PADDED_K; d0 += SLAB) {
        barrier(CLK_LOCAL_MEM_FENCE); /* norms are there; the last slab has been used */
        for (int x = lid; x < C * SLAB; x += KDA_PREPARE_WG) {
            const int i = x / SLAB, s = x % SLAB, d = d0 + s;
            float ki = 0.0f, qi = 0.0f, decay = 1.0f;
            if (i < rows && d < KDA_K) {
                ki = load_data(k, i * a.k.token_stride + d) * norm_k[i];
                qi = load_data(q, i * a.q.token_stride + d) * norm_q[i];
#if KDA_GATE != KDA_GATE_NONE
                float bias = 0.0f;
                if (a.has & KDA_HAS_DT_BIAS)
                    bias = KDA_GATE_PER_HEAD ? dt_bias[a.dt_bias + head]
                                             : dt_bias[a.dt_bias + (long)head * KDA_K + d];
                decay = exp(log_decay(
                    load_gate(g, i * a.g.token_stride + (KDA_GATE_PER_HEAD ? 0 : d)), bias,
                    gate_scale, a.gate_bound));
#endif
            }
            slab_k[i * ROW + s] = ki;
            slab_q[i * ROW + s] = qi;
            slab_c[i * ROW + s] = decay;
        }
        barrier(CLK_LOCAL_MEM_FENCE); /* raw slabs are complete */

        /* Same block: carry key j of a share of channels from token to token. */
        for (int p = 0; p < PASSES; p++) {
            const int role = (lid + p * KDA_PREPARE_WG) % ROLES;
            const int matrix = (lid + p * KDA_PREPARE_WG) / ROLES;
            const int j = role % C, share = role / C, base = j & ~15;
            float carried[SHARE];
UNROLL
            for (int s = 0; s < SHARE; s++)
                carried[s] = slab_k[j * ROW + share * SHARE + s];
UNROLL
            for (int i = 0; i < 16; i++) {
                if (base + i < j)
                    continue;
                __local const float *decays = slab_c + (base + i) * ROW + share * SHARE;
                __local const float *row = decays - (2 - matrix) * C * ROW;
UNROLL
                for (int s = 0; s < SHARE; s += 2) {
                    const float2 x = local2(row + s), decay = local2(decays + s);
                    if (base + i > j) {
                        carried[s] *= decay.s0;
                        carried[s + 1] *= decay.s1;
                    }
                    near[p][i] += x.s0 * carried[s];
                    near[p][i] += x.s1 * carried[s + 1];
                }
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE); /* raw slabs have been used */

        /* Rows decayed from their block's start, keys decayed to their block's end. */
        for (int x = lid; x < BLOCKS * SLAB; x += KDA_PREPARE_WG) {
            const int s = x % SLAB, base = x / SLAB * 16;
            float r[16], product = 1.0f, low = 0.0f;
UNROLL
            for (int i = 0; i < 16; i++) {
                const float decay = slab_c[(base + i) * ROW + s];
                r[i] = product * decay;
                low = low * decay + fma(product, decay, -r[i]);
                product = r[i];
            }
            /* A product of floats just below one loses what is below their last bit, nearly always
             * downwards, and a chunk's decay lives on in every later state: what was lost is kept
             * (without it, ten times the error after 16384 tokens of slow gates). */
            block_decay[x / SLAB][s] = product + low;
            product = 1.0f;
UNROLL
            for (int i = 15; i >= 0; i--) {
                const int at = (base + i) * ROW + s;
                const float decay = slab_c[at], ki = slab_k[at];
                slab_c[at] = ki * product;
                product *= decay;
                slab_k[at] = ki * r[i];
                slab_q[at] *= r[i];
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE); /* decayed slabs are complete */

        /* From the chunk's start: what W is made of, and Qd. */
        for (int x = lid; x < C * SLAB; x += KDA_PREPARE_WG) {
            const int i = x / SLAB, s = x % SLAB, d = d0 + s;
            float before = 1.0f;
            for (int block = 0; block < i / 16; block++)
                before *= block_decay[block][s];
            if (d < PADDED_K) {
                out_w[i * PADDED_K + d] = slab_k[i * ROW + s] * before * row_beta[i];
                out_qd[i * PADDED_K + d] = slab_q[i * ROW + s] * before;
            }
            if (i == C - 1 && d < PADDED_K)
                out_d[d] = before * block_decay[BLOCKS - 1][s];
        }

        /* Different blocks. Role: row role / 16 of block I, key role % 16 of block J. */
#if PAIRS
UNROLL
        for (int block = 1; block < BLOCKS; block++) {
            for (int p = 0; p < PASSES; p++) {
                const int role = (lid + p * KDA_PREPARE_WG) % ROLES;
                const int matrix = (lid + p * KDA_PREPARE_WG) / ROLES;
                __local const float *row = memory + (matrix * C + block * 16 + role / 16) * ROW;
                __local const float *key = slab_c + role % 16 * ROW;
UNROLL_BY(2)
                for (int s = 0; s < SLAB; s += 4) {
                    const float4 x = local4(row + s);
UNROLL
                    for (int other = 0; other < block; other++)
                        far[p][PAIR(block, other)] =
                            dot4(far[p][PAIR(block, other)], x, local4(key + other * 16 * ROW + s));
                }
            }
            barrier(CLK_LOCAL_MEM_FENCE); /* keys as of this block have been used */
            for (int x = lid; x < block * 16 * SLAB; x += KDA_PREPARE_WG)
                slab_c[x / SLAB * ROW + x % SLAB] *= block_decay[block][x % SLAB];
            barrier(CLK_LOCAL_MEM_FENCE); /* keys have passed this block */
        }
#endif
        for (int x = lid; x < C * SLAB; x += KDA_PREPARE_WG)
            if (d0 + x % SLAB < PADDED_K)
                out_ke[x / SLAB * PADDED_K + d0 + x % SLAB] = slab_c[x / SLAB * ROW + x % SLAB];
    }

    /* Gather A_kk, times beta, in local memory and A_qk in the workspace; zero above the diagonal.
     * Shares of a same-block pair are added in turn, so the order is fixed. */
    barrier(CLK_LOCAL_MEM_FENCE); /* the last slab has been used */
    for (int x = lid; x < C * C; x += KDA_PREPARE_WG) {
        tri[x / C * T_ROW + x % C] = 0.0f;
        out_a[x] = 0.0f;
    }
    for (int share = 0; share < SHARES; share++) {
        barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE); /* the share before has been added */
        for (int p = 0; p < PASSES; p++) {
            const int role = (lid + p * KDA_PREPARE_WG) % ROLES;
            const int matrix = (lid + p * KDA_PREPARE_WG) / ROLES;
            const int j = role % C, base = j & ~15;
            if (role / C != share)
                continue;
UNROLL
            for (int i = 0; i < 16; i++) {
                if (matrix == 0 && base + i > j)
                    tri[(base + i) * T_ROW + j] += near[p][i];
                if (matrix == 1 && base + i >= j)
                    out_a[(base + i) * C + j] += near[p][i];
            }
        }
    }
#if PAIRS
    for (int p = 0; p < PASSES; p++) {
        const int role = (lid + p * KDA_PREPARE_WG) % ROLES;
        const int matrix = (lid + p * KDA_PREPARE_WG) / ROLES;
UNROLL
        for (int block = 1; block < BLOCKS; block++)
UNROLL
            for (int other = 0; other < block; other++) {
                const int i = block * 16 + role / 16, j = other * 16 + role % 16;
                if (matrix == 0)
                    tri[i * T_ROW + j] = far[p][PAIR(block, other)];
                else
                    out_a[i * C + j] = far[p][PAIR(block, other)];
            }
    }
#endif
#if KDA_RULE == KDA_RULE_DELTA
    barrier(CLK_LOCAL_MEM_FENCE); /* A_kk is complete */
    for (int x = lid; x < C * C; x += KDA_PREPARE_WG)
        tri[x / C * T_ROW + x % C] *= row_beta[x / C];
    barrier(CLK_LOCAL_MEM_FENCE); /* R is complete */

    /* T of the diagonal blocks: substitution, one column an item. */
    float column[COLUMNS][16];
UNROLL
    for (int p = 0; p < COLUMNS; p++) {
        const int x = min(lid + p * KDA_PREPARE_WG, C - 1); /* items left over repeat the last */
        const int base = x & ~15;
UNROLL
        for (int i = 0; i < 16; i++) {
            float t = base + i == x ? 1.0f : 0.0f;
UNROLL
            for (int m = 0; m < i; m++)
                t -= tri[(base + i) * T_ROW + base + m] * column[p][m];
            column[p][i] = t;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE); /* the diagonal blocks of R have been read */
UNROLL
    for (int p = 0; p < COLUMNS; p++) {
        const int x = min(lid + p * KDA_PREPARE_WG, C - 1);
UNROLL
        for (int i = 0; i < 16; i++)
            tri[((x & ~15) + i) * T_ROW + x] = column[p][i];
    }

    /* T of the blocks below, a row of blocks after the other. */
    for (int block = 1; block < BLOCKS; block++) {
        const int width = block * 16;
        barrier(CLK_LOCAL_MEM_FENCE); /* T of the rows above is complete */
        for (int x = lid; x < 16 * width; x += KDA_PREPARE_WG) {
            const int i = x / width, j = x % width;
            float sum = 0.0f;
UNROLL_BY(8)
            for (int m = j & ~15; m < width; m++)
                sum += tri[(width + i) * T_ROW + m] * tri[m * T_ROW + j];
            merge[i][j] = sum;
        }
        barrier(CLK_LOCAL_MEM_FENCE); /* R of this row has been read */
        for (int x = lid; x < 16 * width; x += KDA_PREPARE_WG) {
            const int i = x / width, j = x % width;
            float sum = 0.0f;
            for (int m = 0; m <= i; m++)
                sum -= tri[(width + i) * T_ROW + width + m] * merge[m][j];
            tri[(width + i) * T_ROW + j] = sum;
        }
    }
#endif

    /* W and U: T times the keys, in place, and times the values. */
    const int padded_v = a.padded_v;
#if KDA_RULE == KDA_RULE_DELTA
    for (int d0 = 0; d0 < PADDED_K + padded_v; d0 += SLAB) {
#else
    for (int d0 = PADDED_K; d0 < PADDED_K + padded_v; d0 += SLAB) {
#endif
        const int of_w = d0 < PADDED_K, c0 = of_w ? d0 : d0 - PADDED_K;
        const int width = min(SLAB, (of_w ? PADDED_K : padded_v) - c0);
        barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE); /* T, or the slab before, is done */
        for (int x = lid; x < C * SLAB; x += KDA_PREPARE_WG) {
            const int i = x / SLAB, c = c0 + x % SLAB;
            float value = 0.0f;
            if (of_w)
                value = c < PADDED_K ? out_w[i * PADDED_K + c] : 0.0f;
            else if (i < rows && c < a.value_dim)
                value = load_data(v, i * a.v.token_stride + c) * row_beta[i];
            slab_x[i * ROW + x % SLAB] = value;
        }
        barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE); /* the slab is complete, read from W */
        __global float *to = of_w ? out_w : out_u;
        const int stride = of_w ? PADDED_K : padded_v;
        for (int x = lid; x < C * (SLAB / 4); x += KDA_PREPARE_WG) {
            const int s = x % (SLAB / 4) * 4, row = x / (SLAB / 4);
            float4 sum = local4(slab_x + row * ROW + s);
#if KDA_RULE == KDA_RULE_DELTA
            /* T has ones on its diagonal. */
UNROLL_BY(8)
            for (int m = 0; m < row; m++)
                sum += tri[row * T_ROW + m] * local4(slab_x + m * ROW + s);
#endif
            if (s < width)
                *(__global float4 *)(to + row * stride + c0 + s) = sum;
        }
    }
}

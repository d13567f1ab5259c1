/* kda_prepare: a chunk and value head's factors, from its tokens. What happens is in slab.cl and
 * triangle.cl; here it is put in order.
 *
 * SPDX-License-Identifier: MIT */

/* Where the inputs and factors of a chunk and head are. On a CPU there may be none: exists is 0,
 * and no row is read. */
INLINE struct chunk locate(const struct kda_call_args *a, __global const data_t *q,
                           __global const data_t *k, __global const data_t *v,
                           __global const gate_t *g, __global const beta_t *beta,
                           __global const int *cu_seqlens, __global float *workspace, int chunk,
                           int head, int exists)
{
    const long n = sequence_of(a, workspace, chunk);
    const long before = (long)(chunk - chunk_start(a, workspace, n)) * C;
    const long start = exists ? sequence_start(a, cu_seqlens, n) + before : 0;
    const int kh = key_head(a, head);
    struct chunk t;
    t.rows = exists ? (int)min(sequence_start(a, cu_seqlens, n + 1) - start, (long)C) : 0;
    t.q = q + a->q.offset + kh * a->q.head_stride + start * a->q.token_stride;
    t.k = k + a->k.offset + kh * a->k.head_stride + start * a->k.token_stride;
    t.v = v + a->v.offset + head * a->v.head_stride + start * a->v.token_stride;
    t.g = g + a->g.offset + head * a->g.head_stride + start * a->g.token_stride;
    t.beta = beta + a->beta.offset + head * a->beta.head_stride + start * a->beta.token_stride;
    __global float *factors =
        workspace + a->factors +
        ((long)(chunk - a->first_chunk) * a->value_heads + head) * a->factor_stride;
    t.w = factors + FACTOR_W;
    t.qd = factors + FACTOR_QD;
    t.ke = factors + FACTOR_KE;
    t.a_qk = factors + FACTOR_A;
    t.d = factors + FACTOR_D;
    t.u = factors + FACTOR_U;
    return t;
}

/* Per row: beta, and what the norms of q and k come to without KDA_NORM_QK. */
INLINE void load_rows(const struct kda_call_args *a, const struct chunk *t, __local float *row_beta,
                      __local float *norm_k, __local float *norm_q, int lid)
{
    for (int i = lid; i < C; i += KDA_PREPARE_WG) {
        float b = 1.0f;
        if ((a->has & KDA_HAS_BETA) && i < t->rows)
            b = activate_beta(load_beta(t->beta, i * a->beta.token_stride));
        row_beta[i] = i < t->rows ? b : 0.0f;
        norm_k[i] = 1.0f;
        norm_q[i] = a->scale;
    }
}

#define ALL_ROLES(p, roles)                                                                        \
    UNROLL                                                                                         \
    for (int p = 0; p < PASSES(roles); p++)
#define ROLE(p) (lid + (p)*KDA_PREPARE_WG)
#define LOCAL_BARRIER barrier(CLK_LOCAL_MEM_FENCE)

/* NVIDIA's compiler heeds a bound on registers (lib/program.c) only where no size is declared. */
#if KDA_PATH != KDA_PATH_PTX
WORK_GROUP(KDA_PREPARE_WG)
#endif
__kernel void
kda_prepare(const struct kda_call_args a, __global const data_t *q, __global const data_t *k,
            __global const data_t *v, __global const gate_t *g, __global const beta_t *beta,
            __global const float *a_log, __global const float *dt_bias,
            __global const int *cu_seqlens, __global float *workspace)
{
    __local float memory[MEMORY] __attribute__((aligned(64)));
    __local float block_decay[BLOCKS * SLAB] __attribute__((aligned(64)));
    __local float row_beta[C], norm_k[C], norm_q[C];

    const int lid = (int)get_local_id(0);
    const uint group = GROUP_ID;
    const int head = (int)(group % (uint)a.value_heads);
    const int chunk = a.first_chunk + (int)(group / (uint)a.value_heads);
    /* The launch has room for the most chunks there can be. On a CPU the work-groups left over
     * work on empty rows instead of returning early: see "Barriers" in step.cl. */
    const int exists = chunk < chunk_start(&a, workspace, a.sequences);
#if !KDA_COMPACT
    if (!exists)
        return;
#endif
    const struct chunk t = locate(&a, q, k, v, g, beta, cu_seqlens, workspace, chunk, head, exists);
    const float gate_scale =
        a.has & KDA_HAS_A_LOG ? min(exp(a_log[a.a_log + head]), FLT_MAX) : 1.0f;
    const int has_bias = a.has & KDA_HAS_DT_BIAS;
    dt_bias += a.dt_bias + (long)head * (KDA_GATE_PER_HEAD ? 1 : KDA_K);

    load_rows(&a, &t, row_beta, norm_k, norm_q, lid);
#if KDA_NORM_QK
    sum_squares(&a, &t, memory, lid);
    LOCAL_BARRIER; /* partial sums are complete */
    take_norms(&a, memory, norm_k, norm_q, lid);
#endif

    lanes_t near[PASSES(NEAR_ROLES)][16];
    ALL_ROLES(p, NEAR_ROLES)
    UNROLL
    for (int i = 0; i < LOOP_BOUND(16); i++)
        near[p][i] = 0.0f;
#if PAIRS
    lanes_t far[PASSES(FAR_ROLES)][PAIRS];
    ALL_ROLES(p, FAR_ROLES)
    UNROLL
    for (int i = 0; i < PAIRS; i++)
        far[p][i] = 0.0f;
#endif
    LOCAL_BARRIER; /* norms are there */
    for (int d0 = 0; d0 < PADDED_K; d0 += SLAB) {
        load_slab(&a, &t, memory, norm_k, norm_q, d0, lid);
        activate_slab(&a, &t, memory, has_bias ? dt_bias : 0, gate_scale, d0, lid);
        LOCAL_BARRIER; /* the slab is complete */
        ALL_ROLES(p, NEAR_ROLES)
        sum_near(memory, ROLE(p), near[p]);
        LOCAL_BARRIER; /* the slab as it was has been used */
        decay_slab(memory, block_decay, lid);
        LOCAL_BARRIER; /* decayed slabs are complete */
        emit_slab(&t, memory, block_decay, row_beta, d0, lid);
#if PAIRS
        ALL_ROLES(p, FAR_ROLES)
        sum_far(memory, block_decay, ROLE(p), far[p]);
#endif
        LOCAL_BARRIER; /* the slab has been used */
    }
#if SHARES > 1
    ALL_ROLES(p, NEAR_ROLES)
    give_shares(memory, ROLE(p), near[p]);
    LOCAL_BARRIER; /* the other shares are there */
    ALL_ROLES(p, NEAR_ROLES)
    take_shares(memory, ROLE(p), near[p]);
    LOCAL_BARRIER; /* the other shares have been added */
#endif
    ALL_ROLES(p, NEAR_ROLES)
    store_near(&t, memory, row_beta, ROLE(p), near[p]);
#if PAIRS
    ALL_ROLES(p, FAR_ROLES)
    store_far(&t, memory, row_beta, ROLE(p), far[p]);
#endif
#if KDA_RULE == KDA_RULE_DELTA
    LOCAL_BARRIER; /* R is complete */
    invert_diagonal(memory, lid);
    for (int block = 1; block < BLOCKS; block++) {
        LOCAL_BARRIER; /* T of the rows above, and of this diagonal block, is complete */
        multiply_r(memory, block, lid);
        LOCAL_BARRIER; /* the product is complete */
        merge_diagonal(memory, block, lid);
    }
    for (int c0 = 0; c0 < PADDED_K; c0 += COLUMNS) {
        /* T is complete, and so is what W is made of; the columns before have been used. */
        barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
        load_keys(&t, memory, c0, lid);
        /* The columns are complete, and their part of W may be overwritten. */
        barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
        multiply_t(memory, t.w, PADDED_K, c0, lid);
    }
#endif
    for (int c0 = 0; c0 < a.padded_v; c0 += COLUMNS) {
        LOCAL_BARRIER; /* T is complete; the columns before have been used */
        load_values(&a, &t, memory, row_beta, c0, lid);
        LOCAL_BARRIER; /* the columns are complete */
        multiply_t(memory, t.u, a.padded_v, c0, lid);
    }
}

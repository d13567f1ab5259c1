/* What a token brings to a head, activated in vectors: the same as kda_cpu_load_* of the
 * definition. Rows of key channels are padded to whole vectors with zeros, decays with anything.
 *
 * SPDX-License-Identifier: MIT */
#ifndef KDA_VECTOR_TOKEN_H
#define KDA_VECTOR_TOKEN_H

#include <float.h>
#include <math.h>

#include "cpu.h"
#include "vector_math.h"

/* What is the same for all tokens of a head. */
struct head {
    const kda_problem *problem;
    const struct kda_run *run;
    int32_t value_head, key_head;
    int32_t padded_k;
    float a;           /* exp(a_log) */
    const float *bias; /* [padded_k], of one vector if gates are per head */
};

INLINE int32_t padded(int32_t n)
{
    return (n + W - 1) / W * W;
}

/* bias: [padded_k] of scratch. */
INLINE struct head head_of(const struct kda_cpu_work *w, float *bias)
{
    const kda_problem *p = w->problem;
    const struct kda_tensor *dt_bias = &w->run->tensor[KDA_TENSOR_DT_BIAS];
    const int32_t gates = (int32_t)w->run->tensor[KDA_TENSOR_G].inner;
    memset(bias, 0, (size_t)padded(p->key_dim) * sizeof *bias);
    if (kda_present(dt_bias))
        load_row(bias, KDA_F32, kda_row(dt_bias, (int64_t)w->head * gates, 0), gates);
    const float a_log = kda_cpu_optional(&w->run->tensor[KDA_TENSOR_A_LOG], w->head, 0.0f);
    return (struct head){.problem = p,
                         .run = w->run,
                         .value_head = w->head,
                         .key_head = kda_key_head(p, w->head),
                         .padded_k = padded(p->key_dim),
                         .a = fminf(expf(a_log), FLT_MAX),
                         .bias = bias};
}

/* Asks for a token's rows ahead of their use: those of one head lie far apart, which the processor
 * does not foresee. */
static void expect_token(const struct head *h, int64_t t)
{
    static const enum kda_tensor_id ids[] = {KDA_TENSOR_Q, KDA_TENSOR_K, KDA_TENSOR_V,
                                             KDA_TENSOR_G};
    for (size_t i = 0; t < h->run->tokens && i < KDA_COUNT_OF(ids); i++) {
        const struct kda_tensor *x = &h->run->tensor[ids[i]];
        if (!kda_present(x))
            continue; /* no gate */
        const char *row = kda_row(x, t, i < 2 ? h->key_head : h->value_head);
        for (size_t at = 0; at < (size_t)x->inner * x->element; at += 64)
            __builtin_prefetch(row + at);
    }
}

INLINE float dot(const float *x, const float *y, int32_t n)
{
    vf total = {0};
    for (int32_t i = 0; i < n; i += W)
        total = madd(get(x + i), get(y + i), total);
    return sum(total);
}

INLINE void load_key(const struct head *h, enum kda_tensor_id id, int64_t t, float *x)
{
    const kda_problem *p = h->problem;
    load_row(x, p->dtype, kda_row(&h->run->tensor[id], t, h->key_head), p->key_dim);
    if (!(p->flags & KDA_NORM_QK))
        return;
    const float norm = 1.0f / sqrtf(dot(x, x, h->padded_k) + 1e-6f);
    for (int32_t i = 0; i < h->padded_k; i += W)
        put(x + i, get(x + i) * norm);
}

/* exp(log decay) of raw gates. */
INLINE vf decay_of(const struct head *h, vf x, vf bias)
{
    const kda_problem *p = h->problem;
    if (p->gate == KDA_GATE_SOFTPLUS)
        x = -h->a * vsoftplus(x + bias);
    else if (p->gate == KDA_GATE_BOUNDED)
        x = p->gate_bound * vsigmoid(h->a * (x + bias));
    return vexp(x);
}

INLINE void load_decay(const struct head *h, int64_t t, float *decay)
{
    const kda_problem *p = h->problem;
    const struct kda_tensor *g = &h->run->tensor[KDA_TENSOR_G];
    const bool none = p->gate == KDA_GATE_NONE;
    const int32_t gates = none ? 0 : (int32_t)g->inner, K = h->padded_k;
    if (!none)
        load_row(decay, p->g_dtype, kda_row(g, t, h->value_head), gates);
    for (int32_t i = 0; i < gates; i += W)
        put(decay + i, decay_of(h, get(decay + i), get(h->bias + i)));
    if (gates <= 1)
        for (int32_t i = K - W; i >= 0; i -= W)
            put(decay + i, all(none ? 1.0f : decay[0]));
}

/* The work's columns of a token's v; of its out. */
INLINE void load_values(const struct kda_cpu_work *w, int64_t t, float *v)
{
    const kda_dtype type = w->problem->dtype;
    const char *row = kda_row(&w->run->tensor[KDA_TENSOR_V], t, w->head);
    load_row(v, type, row + (size_t)w->first * kda_dtype_size(type), w->columns);
}

INLINE void store_out(const struct kda_cpu_work *w, int64_t t, const float *o)
{
    const kda_dtype type = w->problem->out_dtype;
    char *row = kda_row(&w->run->tensor[KDA_TENSOR_OUT], t, w->head);
    store_row(row + (size_t)w->first * kda_dtype_size(type), type, o, w->columns);
}

INLINE float load_beta(const struct head *h, int64_t t)
{
    const kda_problem *p = h->problem;
    const struct kda_tensor *beta = &h->run->tensor[KDA_TENSOR_BETA];
    float x[W] = {1.0f};
    if (kda_present(beta))
        load_row(x, p->beta_dtype, kda_row(beta, t, h->value_head), 1);
    if (p->beta != KDA_BETA_GIVEN)
        put(x, vsigmoid(get(x)));
    return p->beta == KDA_BETA_SIGMOID2 ? 2.0f * x[0] : x[0];
}

#endif

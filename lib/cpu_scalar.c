/* The definition of the operation: the recurrence in plain C, token by token, head by head. Every
 * other schedule, level and engine is tested against it. Sums go term by term; std=c11 keeps the
 * compiler from fusing operations.
 *
 * SPDX-License-Identifier: MIT */
#include <float.h>
#include <math.h>
#include <string.h>

#include "convert.h"
#include "cpu.h"

static float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* log(1 + exp(x)); above 20 the difference to x is below half an ulp. */
static float softplus(float x)
{
    return x > 20.0f ? x : log1pf(expf(x));
}

void kda_cpu_load_decay(const kda_problem *p, const struct kda_run *run, int64_t t, int32_t head,
                        float *decay)
{
    const struct kda_tensor *g = &run->tensor[KDA_TENSOR_G];
    int32_t K = p->key_dim;
    if (p->gate == KDA_GATE_NONE) {
        for (int32_t i = 0; i < K; i++)
            decay[i] = 1.0f;
        return;
    }
    int32_t gates = (int32_t)g->inner;
    float a = fminf(expf(kda_cpu_optional(&run->tensor[KDA_TENSOR_A_LOG], head, 0.0f)), FLT_MAX);
    kda_load(decay, p->g_dtype, kda_row(g, t, head), gates);
    for (int32_t i = 0; i < gates; i++) {
        float x = decay[i];
        if (p->gate != KDA_GATE_LOG)
            x +=
                kda_cpu_optional(&run->tensor[KDA_TENSOR_DT_BIAS], (int64_t)head * gates + i, 0.0f);
        if (p->gate == KDA_GATE_SOFTPLUS)
            x = -a * softplus(x);
        else if (p->gate == KDA_GATE_BOUNDED)
            x = p->gate_bound * sigmoid(a * x);
        decay[i] = expf(x);
    }
    for (int32_t i = gates; i < K; i++)
        decay[i] = decay[0];
}

float kda_cpu_load_beta(const kda_problem *p, const struct kda_run *run, int64_t t, int32_t head)
{
    const struct kda_tensor *beta = &run->tensor[KDA_TENSOR_BETA];
    float x = 1.0f;
    if (kda_present(beta))
        kda_load(&x, p->beta_dtype, kda_row(beta, t, head), 1);
    return p->beta == KDA_BETA_SIGMOID    ? sigmoid(x)
           : p->beta == KDA_BETA_SIGMOID2 ? 2.0f * sigmoid(x)
                                          : x;
}

void kda_cpu_load_key(const kda_problem *p, const struct kda_run *run, enum kda_tensor_id id,
                      int64_t t, int32_t head, float *x)
{
    kda_load(x, p->dtype, kda_row(&run->tensor[id], t, kda_key_head(p, head)), p->key_dim);
    if (!(p->flags & KDA_NORM_QK))
        return;
    float sum = 0.0f;
    for (int32_t i = 0; i < p->key_dim; i++)
        sum += x[i] * x[i];
    float norm = 1.0f / sqrtf(sum + 1e-6f);
    for (int32_t i = 0; i < p->key_dim; i++)
        x[i] *= norm;
}

/* What a token needs. */
struct token {
    float *q, *k, *decay; /* [K] */
    float *v, *u, *o;     /* [V] */
    float beta;
};

static size_t token_floats(const kda_problem *p)
{
    return kda_lines(3 * (size_t)p->key_dim + 3 * (size_t)p->value_dim);
}

static size_t scratch_floats(const kda_problem *p, int32_t columns)
{
    const size_t state = kda_lines((size_t)p->key_dim * (size_t)columns);
    return token_floats(p) + state + (p->chunk ? kda_lines(kda_cpu_chunk_floats(p)) : 0);
}

static struct token load_token(const struct kda_cpu_work *w, int64_t t)
{
    const kda_problem *p = w->problem;
    struct token x = {.q = w->scratch};
    x.k = x.q + p->key_dim;
    x.decay = x.k + p->key_dim;
    x.v = x.decay + p->key_dim;
    x.u = x.v + p->value_dim;
    x.o = x.u + p->value_dim;
    kda_cpu_load_key(p, w->run, KDA_TENSOR_Q, t, w->head, x.q);
    kda_cpu_load_key(p, w->run, KDA_TENSOR_K, t, w->head, x.k);
    kda_cpu_load_decay(p, w->run, t, w->head, x.decay);
    kda_load(x.v, p->dtype, kda_row(&w->run->tensor[KDA_TENSOR_V], t, w->head), p->value_dim);
    x.beta = kda_cpu_load_beta(p, w->run, t, w->head);
    return x;
}

/* One token: the state goes from one place to another. */
static void step(const struct kda_cpu_work *w, int64_t t, struct kda_cpu_state from,
                 struct kda_cpu_state to)
{
    const kda_problem *p = w->problem;
    const int32_t K = p->key_dim, V = p->value_dim;
    const bool delta = p->rule == KDA_RULE_DELTA;
    const struct token x = load_token(w, t);

    /* u collects the prediction S^T k, then becomes the error */
    memset(x.u, 0, (size_t)V * sizeof *x.u);
    for (int32_t i = 0; i < K; i++) {
        const float *before = from.at + i * from.stride;
        float *row = to.at + i * to.stride;
        for (int32_t j = 0; j < V; j++) {
            row[j] = before[j] * x.decay[i];
            x.u[j] += row[j] * x.k[i];
        }
    }
    for (int32_t j = 0; j < V; j++)
        x.u[j] = x.beta * (delta ? x.v[j] - x.u[j] : x.v[j]);
    memset(x.o, 0, (size_t)V * sizeof *x.o);
    for (int32_t i = 0; i < K; i++) {
        float *row = to.at + i * to.stride;
        for (int32_t j = 0; j < V; j++) {
            row[j] += x.k[i] * x.u[j];
            x.o[j] += row[j] * x.q[i];
        }
    }
    for (int32_t j = 0; j < V; j++)
        x.o[j] *= p->scale;
    kda_store(kda_row(&w->run->tensor[KDA_TENSOR_OUT], t, w->head), p->out_dtype, x.o, V);
}

static void steps(const struct kda_cpu_work *w, int64_t t, int64_t n, struct kda_cpu_state from,
                  struct kda_cpu_state to)
{
    for (int64_t i = 0; i < n; i++)
        step(w, t + i, i ? to : from, to);
}

static void load_state(const struct kda_cpu_work *w, struct kda_cpu_state s, const char *row)
{
    const kda_problem *p = w->problem;
    const size_t size = kda_dtype_size(p->state_dtype);
    const bool kv = p->state_layout == KDA_STATE_KV;
    for (int32_t i = 0; i < p->key_dim; i++)
        for (int32_t j = 0; j < p->value_dim; j++)
            kda_load(s.at + i * s.stride + j, p->state_dtype,
                     row + size * (size_t)(kv ? i * p->value_dim + j : j * p->key_dim + i), 1);
}

static void store_state(const struct kda_cpu_work *w, struct kda_cpu_state s, char *row)
{
    const kda_problem *p = w->problem;
    const size_t size = kda_dtype_size(p->state_dtype);
    const bool kv = p->state_layout == KDA_STATE_KV;
    for (int32_t i = 0; i < p->key_dim; i++)
        for (int32_t j = 0; j < p->value_dim; j++)
            kda_store(row + size * (size_t)(kv ? i * p->value_dim + j : j * p->key_dim + i),
                      p->state_dtype, s.at + i * s.stride + j, 1);
}

/* In the twins' own form: packed. */
static void chunk(const struct kda_cpu_work *w, int64_t t, int32_t n, struct kda_cpu_state s)
{
    const kda_problem *p = w->problem;
    const int64_t K = p->key_dim, V = p->value_dim;
    float *packed = w->scratch + token_floats(p);
    for (int64_t i = 0; i < K; i++)
        memcpy(packed + i * V, s.at + i * s.stride, (size_t)V * sizeof *packed);
    kda_cpu_chunk(p, w->run, t, n, w->head, packed, packed + kda_lines((size_t)(K * V)));
    for (int64_t i = 0; i < K; i++)
        memcpy(s.at + i * s.stride, packed + i * V, (size_t)V * sizeof *packed);
}

const struct kda_cpu_level kda_cpu_scalar = {
    .vectors = KDA_VECTORS_NONE,
    .name = "none",
    .scratch_floats = scratch_floats,
    .load_state = load_state,
    .store_state = store_state,
    .steps = steps,
    .chunk = chunk,
};

/* The CPU backend. The recurrence in step() is the definition of the operation: every other
 * schedule and engine is tested against it. Work is shared over sequences and value heads.
 *
 * SPDX-License-Identifier: MIT */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "convert.h"
#include "internal.h"

/* One thread's memory. */
struct scratch {
    float *state;         /* [K][V] */
    float *q, *k, *decay; /* [K] */
    float *v, *u, *o;     /* [V] */
    float *transposed;    /* [V][K], for the vk layout */
};

struct call {
    const kda_plan *plan;
    const struct kda_run *run;
    float *memory; /* one scratch a lane */
    size_t lane_floats;
};

static size_t scratch_floats(const kda_problem *p)
{
    size_t K = (size_t)p->key_dim, V = (size_t)p->value_dim;
    return K * V * (p->state_layout == KDA_STATE_VK ? 2 : 1) + 3 * K + 3 * V;
}

static struct scratch scratch_of(const struct call *c, int32_t lane)
{
    const kda_problem *p = &c->plan->problem;
    size_t K = (size_t)p->key_dim, V = (size_t)p->value_dim;
    struct scratch s = {.state = c->memory + (size_t)lane * c->lane_floats};
    s.q = s.state + K * V;
    s.k = s.q + K;
    s.decay = s.k + K;
    s.v = s.decay + K;
    s.u = s.v + V;
    s.o = s.u + V;
    s.transposed = s.o + V;
    return s;
}

static float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* log(1 + exp(x)); above 20 the difference to x is below half an ulp. */
static float softplus(float x)
{
    return x > 20.0f ? x : log1pf(expf(x));
}

/* A value of a vector of floats, or fallback if the vector is absent. */
static float optional(const struct kda_tensor *t, int64_t i, float fallback)
{
    return kda_present(t) ? *(const float *)(const void *)kda_row(t, i, 0) : fallback;
}

/* exp(log decay) of token t for each key channel. */
static void load_decay(const struct call *c, int64_t t, int32_t head, float *decay)
{
    const kda_problem *p = &c->plan->problem;
    const struct kda_tensor *g = &c->run->tensor[KDA_TENSOR_G];
    int32_t K = p->key_dim;
    if (p->gate == KDA_GATE_NONE) {
        for (int32_t i = 0; i < K; i++)
            decay[i] = 1.0f;
        return;
    }
    int32_t gates = (int32_t)g->inner;
    float a = fminf(expf(optional(&c->run->tensor[KDA_TENSOR_A_LOG], head, 0.0f)), FLT_MAX);
    kda_load(decay, p->g_dtype, kda_row(g, t, head), gates);
    for (int32_t i = 0; i < gates; i++) {
        float x = decay[i];
        if (p->gate != KDA_GATE_LOG)
            x += optional(&c->run->tensor[KDA_TENSOR_DT_BIAS], (int64_t)head * gates + i, 0.0f);
        if (p->gate == KDA_GATE_SOFTPLUS)
            x = -a * softplus(x);
        else if (p->gate == KDA_GATE_BOUNDED)
            x = p->gate_bound * sigmoid(a * x);
        decay[i] = expf(x);
    }
    for (int32_t i = gates; i < K; i++)
        decay[i] = decay[0];
}

static float load_beta(const struct call *c, int64_t t, int32_t head)
{
    const kda_problem *p = &c->plan->problem;
    const struct kda_tensor *beta = &c->run->tensor[KDA_TENSOR_BETA];
    float x = 1.0f;
    if (kda_present(beta))
        kda_load(&x, p->beta_dtype, kda_row(beta, t, head), 1);
    return p->beta == KDA_BETA_SIGMOID    ? sigmoid(x)
           : p->beta == KDA_BETA_SIGMOID2 ? 2.0f * sigmoid(x)
                                          : x;
}

/* A row of q or k. */
static void load_key(const struct call *c, enum kda_tensor_id id, int64_t t, int32_t head, float *x)
{
    const kda_problem *p = &c->plan->problem;
    kda_load(x, p->dtype, kda_row(&c->run->tensor[id], t, kda_key_head(p, head)), p->key_dim);
    if (!(p->flags & KDA_NORM_QK))
        return;
    float sum = 0.0f;
    for (int32_t i = 0; i < p->key_dim; i++)
        sum += x[i] * x[i];
    float norm = 1.0f / sqrtf(sum + 1e-6f);
    for (int32_t i = 0; i < p->key_dim; i++)
        x[i] *= norm;
}

/* The definition: one token of one head. s->state is S. */
static void step(const struct call *c, int64_t t, int32_t head, const struct scratch *s)
{
    const kda_problem *p = &c->plan->problem;
    const struct kda_tensor *out = &c->run->tensor[KDA_TENSOR_OUT];
    const int32_t K = p->key_dim, V = p->value_dim;
    const bool delta = p->rule == KDA_RULE_DELTA;
    load_key(c, KDA_TENSOR_Q, t, head, s->q);
    load_key(c, KDA_TENSOR_K, t, head, s->k);
    load_decay(c, t, head, s->decay);
    kda_load(s->v, p->dtype, kda_row(&c->run->tensor[KDA_TENSOR_V], t, head), V);
    float beta = load_beta(c, t, head);

    /* u collects the prediction S^T k, then becomes the error */
    memset(s->u, 0, (size_t)V * sizeof *s->u);
    for (int32_t i = 0; i < K; i++) {
        float *restrict row = s->state + (size_t)i * (size_t)V, *restrict u = s->u;
        const float decay = s->decay[i], k = s->k[i];
        for (int32_t j = 0; j < V; j++) {
            row[j] *= decay;
            u[j] += row[j] * k;
        }
    }
    for (int32_t j = 0; j < V; j++)
        s->u[j] = beta * (delta ? s->v[j] - s->u[j] : s->v[j]);
    memset(s->o, 0, (size_t)V * sizeof *s->o);
    for (int32_t i = 0; i < K; i++) {
        float *restrict row = s->state + (size_t)i * (size_t)V, *restrict o = s->o;
        const float *restrict u = s->u;
        const float k = s->k[i], q = s->q[i];
        for (int32_t j = 0; j < V; j++) {
            row[j] += k * u[j];
            o[j] += row[j] * q;
        }
    }
    for (int32_t j = 0; j < V; j++)
        s->o[j] *= p->scale;
    kda_store(kda_row(out, t, head), p->out_dtype, s->o, V);
}

static void transpose(float *out, const float *in, int32_t rows, int32_t columns)
{
    for (int32_t i = 0; i < rows; i++)
        for (int32_t j = 0; j < columns; j++)
            out[(size_t)j * (size_t)rows + (size_t)i] = in[(size_t)i * (size_t)columns + (size_t)j];
}

static void load_state(const struct call *c, int64_t slot, int32_t head, const struct scratch *s)
{
    const kda_problem *p = &c->plan->problem;
    const struct kda_tensor *in = &c->run->tensor[KDA_TENSOR_INITIAL_STATE];
    int64_t n = (int64_t)p->key_dim * p->value_dim;
    if (!kda_present(in)) {
        memset(s->state, 0, (size_t)n * sizeof *s->state);
    } else if (p->state_layout == KDA_STATE_KV) {
        kda_load(s->state, p->state_dtype, kda_row(in, slot, head), n);
    } else {
        kda_load(s->transposed, p->state_dtype, kda_row(in, slot, head), n);
        transpose(s->state, s->transposed, p->value_dim, p->key_dim);
    }
}

static void store_state(const struct call *c, enum kda_tensor_id id, int64_t slot, int32_t head,
                        const struct scratch *s)
{
    const kda_problem *p = &c->plan->problem;
    const float *state = s->state;
    if (p->state_layout == KDA_STATE_VK) {
        transpose(s->transposed, s->state, p->key_dim, p->value_dim);
        state = s->transposed;
    }
    kda_store(kda_row(&c->run->tensor[id], slot, head), p->state_dtype, state,
              (int64_t)p->key_dim * p->value_dim);
}

/* A sequence without tokens: its state goes through untouched, bit for bit. */
static void copy_state(const struct call *c, int64_t slot, int32_t head)
{
    const kda_problem *p = &c->plan->problem;
    const struct kda_tensor *in = &c->run->tensor[KDA_TENSOR_INITIAL_STATE],
                            *out = &c->run->tensor[KDA_TENSOR_FINAL_STATE];
    size_t bytes = (size_t)p->key_dim * (size_t)p->value_dim * out->element;
    if (!kda_present(out))
        return;
    if (kda_present(in))
        memmove(kda_row(out, slot, head), kda_row(in, slot, head), bytes);
    else
        memset(kda_row(out, slot, head), 0, bytes);
}

/* A sequence whose slot is negative. */
static void skip(const struct call *c, const struct kda_sequence *seq, int32_t head)
{
    const struct kda_tensor *out = &c->run->tensor[KDA_TENSOR_OUT];
    for (int64_t t = 0; t < seq->length; t++)
        memset(kda_row(out, seq->begin + t, head), 0, (size_t)out->inner * out->element);
}

/* One sequence of one value head. */
static void run_item(void *arg, int64_t item, int32_t lane)
{
    const struct call *c = arg;
    const kda_problem *p = &c->plan->problem;
    struct kda_sequence seq = kda_run_sequence(c->run, item / p->value_heads);
    int32_t head = (int32_t)(item % p->value_heads);
    if (seq.slot < 0) {
        skip(c, &seq, head);
        return;
    }
    if (!seq.length) {
        copy_state(c, seq.slot, head);
        return;
    }
    struct scratch s = scratch_of(c, lane);
    bool checkpoints = kda_present(&c->run->tensor[KDA_TENSOR_CHECKPOINTS]);
    load_state(c, seq.slot, head, &s);
    for (int64_t t = 0; t < seq.length; t++) {
        step(c, seq.begin + t, head, &s);
        if (checkpoints && (t + 1) % p->checkpoint_every == 0)
            store_state(c, KDA_TENSOR_CHECKPOINTS,
                        seq.begin / p->checkpoint_every + (t + 1) / p->checkpoint_every - 1, head,
                        &s);
    }
    if (kda_present(&c->run->tensor[KDA_TENSOR_FINAL_STATE]))
        store_state(c, KDA_TENSOR_FINAL_STATE, seq.slot, head, &s);
}

static kda_status execute(kda_plan *plan, const struct kda_run *run)
{
    struct kda_pool *pool = plan->ctx->pool;
    struct call c = {.plan = plan, .run = run, .lane_floats = scratch_floats(&plan->problem)};
    int64_t items = run->sequences * plan->problem.value_heads, lanes = kda_pool_threads(pool);
    lanes = lanes < items ? lanes : items;
    size_t bytes = (size_t)lanes * c.lane_floats * sizeof(float);
    c.memory = malloc(bytes);
    if (!c.memory)
        return kda_no_memory(plan->ctx, "the states at work", bytes);
    kda_pool_run(pool, items, run_item, &c);
    free(c.memory);
    return KDA_OK;
}

static kda_status plan_create(kda_plan *plan)
{
    if (plan->problem.schedule != KDA_SCHEDULE_CHUNKWISE)
        return KDA_OK;
    kda_log(plan->ctx, KDA_LOG_ERROR,
            "kda_problem.schedule: the CPU backend has no chunkwise schedule yet");
    return KDA_UNSUPPORTED;
}

static void plan_destroy(kda_plan *plan)
{
    (void)plan;
}

static size_t describe(const kda_plan *plan, char *text, size_t n)
{
    return (size_t)snprintf(text, n, "schedule=recurrent device=cpu threads=%d",
                            (int)kda_pool_threads(plan->ctx->pool));
}

static size_t list_facts(const kda_context *ctx, kda_fact *out, size_t max)
{
    const kda_fact facts[] = {
        {"name", "CPU backend", "queried"},
        {"threads", ctx->cpu_threads, "queried"},
    };
    for (size_t i = 0; i < KDA_COUNT_OF(facts) && i < max; i++)
        out[i] = facts[i];
    return KDA_COUNT_OF(facts);
}

static void context_destroy(kda_context *ctx)
{
    kda_pool_destroy(ctx->pool);
}

kda_status kda_cpu_open(kda_context *ctx, const kda_context_params *params)
{
    static const struct kda_backend_ops ops = {
        .plan_create = plan_create,
        .plan_destroy = plan_destroy,
        .execute = execute,
        .describe = describe,
        .facts = list_facts,
        .context_destroy = context_destroy,
    };
    ctx->ops = &ops;
    ctx->backend = KDA_CPU;
    ctx->pool = kda_pool_create(params->threads);
    if (!ctx->pool)
        return kda_no_memory(ctx, "the CPU backend's threads", 0);
    snprintf(ctx->cpu_threads, sizeof ctx->cpu_threads, "%d", (int)kda_pool_threads(ctx->pool));
    return KDA_OK;
}

/* The CPU backend. The recurrence in step() is the definition of the operation: every other
 * schedule and engine is tested against it. A sequence goes token by token or in chunks (see
 * cpu_chunk.c), as its own length says. Work is shared over sequences and value heads; sharing V
 * too would repeat the preparation of chunks, half of their cost at V = 128.
 *
 * SPDX-License-Identifier: MIT */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "convert.h"
#include "internal.h"

#define LINE 16 /* floats in a cache line */

/* When chunks pay, and how long to make them. CPU time of kda_execute in us a token and head: f32,
 * H 8, K = V = 128, log gate, two threads (EPYC with AVX-512, two shared cores, gcc 12,
 * 2026-11-29):
 *
 *                AVX-512, chunks of              no vectors beyond SSE2, chunks of
 *     tokens     none   16     32     64         none   16     32     64
 *     1          5.1    5.2    5.1    5.3        5.4    7.7    7.4    7.5
 *     2          4.4    4.0    3.9    3.9        4.5    6.0    5.9    6.2
 *     4          4.0    2.0    2.0    2.1        4.1    3.4    3.4    3.5
 *     16         3.8    1.5    1.5    1.5        3.9    3.0    3.1    3.1
 *     128        4.2    1.5    1.5    1.6        4.2    3.2    3.5    4.0
 *     2048       4.2    2.1    2.0    2.2        4.9    4.0    4.1    4.6
 *
 * Narrow heads have too little to multiply: at K = V = 32 it is 0.53 against 0.32 and, with SSE2,
 * 0.43 against 0.43; at K = V = 16 it is 0.24 against 0.25 and 0.19 against 0.26. */
#define CHUNK 16
#define RECURRENT_UP_TO 3
#define LEAST_DIM 32
/* One thread's memory. */
struct scratch {
    float *state;         /* [K][V] */
    float *q, *k, *decay; /* [K] */
    float *v, *u, *o;     /* [V] */
    float *transposed;    /* [V][K], for the vk layout */
    float *chunk;         /* kda_cpu_chunk's own */
};

struct call {
    const kda_plan *plan;
    const struct kda_run *run;
    float *memory; /* one scratch a lane */
    size_t lane_floats;
};

/* Up to a whole number of cache lines, where wide vectors want to start. */
static size_t align(size_t floats)
{
    return (floats + LINE - 1) / LINE * LINE;
}

static size_t step_floats(const kda_problem *p)
{
    size_t K = (size_t)p->key_dim, V = (size_t)p->value_dim;
    return align(K * V * (p->state_layout == KDA_STATE_VK ? 2 : 1) + 3 * K + 3 * V);
}

static size_t scratch_floats(const kda_problem *p)
{
    return step_floats(p) + (p->chunk ? align(kda_cpu_chunk_floats(p)) : 0);
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
    s.chunk = s.state + step_floats(p);
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
    float a = fminf(expf(optional(&run->tensor[KDA_TENSOR_A_LOG], head, 0.0f)), FLT_MAX);
    kda_load(decay, p->g_dtype, kda_row(g, t, head), gates);
    for (int32_t i = 0; i < gates; i++) {
        float x = decay[i];
        if (p->gate != KDA_GATE_LOG)
            x += optional(&run->tensor[KDA_TENSOR_DT_BIAS], (int64_t)head * gates + i, 0.0f);
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

/* The definition: one token of one head. s->state is S. */
static void step(const struct call *c, int64_t t, int32_t head, const struct scratch *s)
{
    const kda_problem *p = &c->plan->problem;
    const struct kda_tensor *out = &c->run->tensor[KDA_TENSOR_OUT];
    const int32_t K = p->key_dim, V = p->value_dim;
    const bool delta = p->rule == KDA_RULE_DELTA;
    kda_cpu_load_key(p, c->run, KDA_TENSOR_Q, t, head, s->q);
    kda_cpu_load_key(p, c->run, KDA_TENSOR_K, t, head, s->k);
    kda_cpu_load_decay(p, c->run, t, head, s->decay);
    kda_load(s->v, p->dtype, kda_row(&c->run->tensor[KDA_TENSOR_V], t, head), V);
    float beta = kda_cpu_load_beta(p, c->run, t, head);

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

static void load_state(const struct call *c, const struct kda_sequence *seq, int32_t head,
                       const struct scratch *s)
{
    const kda_problem *p = &c->plan->problem;
    const struct kda_tensor *in = &c->run->tensor[KDA_TENSOR_INITIAL_STATE];
    int64_t n = (int64_t)p->key_dim * p->value_dim;
    if (seq->fresh) {
        memset(s->state, 0, (size_t)n * sizeof *s->state);
    } else if (p->state_layout == KDA_STATE_KV) {
        kda_load(s->state, p->state_dtype, kda_row(in, seq->slot, head), n);
    } else {
        kda_load(s->transposed, p->state_dtype, kda_row(in, seq->slot, head), n);
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
static void copy_state(const struct call *c, const struct kda_sequence *seq, int64_t to,
                       int32_t head)
{
    const kda_problem *p = &c->plan->problem;
    const struct kda_tensor *in = &c->run->tensor[KDA_TENSOR_INITIAL_STATE],
                            *out = &c->run->tensor[KDA_TENSOR_FINAL_STATE];
    size_t bytes = (size_t)p->key_dim * (size_t)p->value_dim * out->element;
    if (!kda_present(out) || to < 0)
        return;
    if (seq->fresh)
        memset(kda_row(out, to, head), 0, bytes);
    else
        memmove(kda_row(out, to, head), kda_row(in, seq->slot, head), bytes);
}

/* The state after `done` tokens, to where the call wants it. */
static void store_states(const struct call *c, int64_t n, const struct kda_sequence *seq,
                         int64_t done, int32_t head, const struct scratch *s)
{
    const kda_problem *p = &c->plan->problem;
    const int64_t stored = kda_run_stored(c->run, seq->length),
                  column = done - 1 - (seq->length - stored);
    if (kda_present(&c->run->tensor[KDA_TENSOR_CHECKPOINTS]) && done % p->checkpoint_every == 0)
        store_state(c, KDA_TENSOR_CHECKPOINTS,
                    seq->begin / p->checkpoint_every + done / p->checkpoint_every - 1, head, s);
    if (!kda_present(&c->run->tensor[KDA_TENSOR_FINAL_STATE]) || column < 0)
        return;
    const int64_t slot = kda_run_write_slot(c->run, n, column);
    if (slot >= 0)
        store_state(c, KDA_TENSOR_FINAL_STATE, slot, head, s);
}

/* A sequence whose slot is negative. */
static void skip(const struct call *c, const struct kda_sequence *seq, int32_t head)
{
    const struct kda_tensor *out = &c->run->tensor[KDA_TENSOR_OUT];
    for (int64_t t = 0; t < seq->length; t++)
        memset(kda_row(out, seq->begin + t, head), 0, (size_t)out->inner * out->element);
}

/* The longest sequence that goes token by token. */
static int64_t step_limit(const kda_problem *p)
{
    if (!p->chunk)
        return INT64_MAX;
    return p->schedule == KDA_SCHEDULE_CHUNKWISE ? 0 : RECURRENT_UP_TO;
}

/* One sequence of one value head. */
static void run_item(void *arg, int64_t item, int32_t lane)
{
    const struct call *c = arg;
    const kda_problem *p = &c->plan->problem;
    const int64_t n = item / p->value_heads;
    const int32_t head = (int32_t)(item % p->value_heads);
    const struct kda_sequence seq = kda_run_sequence(c->run, n);
    if (seq.slot < 0) {
        skip(c, &seq, head);
        return;
    }
    if (!seq.length) {
        copy_state(c, &seq, kda_run_write_slot(c->run, n, 0), head);
        return;
    }
    struct scratch s = scratch_of(c, lane);
    load_state(c, &seq, head, &s);
    const bool chunks = seq.length > step_limit(p) && c->run->columns == 1;
    const int32_t most = chunks ? p->chunk : 1; /* tokens at a time */
    for (int64_t t = 0, done; t < seq.length; t = done) {
        done = t + most < seq.length ? t + most : seq.length;
        if (chunks)
            kda_cpu_chunk(p, c->run, seq.begin + t, (int32_t)(done - t), head, s.state, s.chunk);
        else
            step(c, seq.begin + t, head, &s);
        store_states(c, n, &seq, done, head, &s);
    }
}

static kda_status execute(kda_plan *plan, const struct kda_run *run)
{
    struct kda_pool *pool = plan->ctx->pool;
    struct call c = {.plan = plan, .run = run, .lane_floats = scratch_floats(&plan->problem)};
    int64_t items = run->sequences * plan->problem.value_heads, lanes = kda_pool_threads(pool);
    lanes = lanes < items ? lanes : items;
    size_t bytes = (size_t)lanes * c.lane_floats * sizeof(float);
    c.memory = aligned_alloc(LINE * sizeof(float), bytes);
    if (!c.memory)
        return kda_no_memory(plan->ctx, "the states at work", bytes);
    kda_pool_run(pool, items, run_item, &c);
    free(c.memory);
    return KDA_OK;
}

/* Tokens in a chunk; 0: all sequences go token by token. */
static int32_t choose_chunk(const kda_problem *p)
{
    const int32_t chunk = p->chunk ? p->chunk : CHUNK;
    const bool pays = p->max_tokens > RECURRENT_UP_TO && p->key_dim >= LEAST_DIM &&
                      p->value_dim >= LEAST_DIM && p->checkpoint_every % chunk == 0;
    if (p->schedule == KDA_SCHEDULE_RECURRENT || (p->schedule == KDA_SCHEDULE_AUTO && !pays))
        return 0;
    return chunk;
}

static kda_status plan_create(kda_plan *plan)
{
    kda_problem *p = &plan->problem;
    if (p->engine == KDA_ENGINE_CLBLAST || p->engine == KDA_ENGINE_MMA) {
        kda_log(plan->ctx, KDA_LOG_ERROR,
                "kda_problem.engine: the CPU backend has KDA_ENGINE_FUSED only");
        return KDA_UNSUPPORTED;
    }
    p->chunk = choose_chunk(p);
    return KDA_OK;
}

static void plan_destroy(kda_plan *plan)
{
    (void)plan;
}

static size_t describe(const kda_plan *plan, char *text, size_t n)
{
    const kda_problem *p = &plan->problem;
    const int threads = kda_pool_threads(plan->ctx->pool);
    if (!p->chunk)
        return (size_t)snprintf(text, n, "schedule=recurrent device=cpu threads=%d", threads);
    return (size_t)snprintf(text, n,
                            "schedule=chunkwise engine=fused chunk=%d recurrent_up_to=%d "
                            "device=cpu threads=%d",
                            (int)p->chunk, (int)step_limit(p), threads);
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

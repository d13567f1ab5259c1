/* The CPU backend: cuts a call into pieces of work for the pool's threads. A piece is a sequence of
 * one value head, or some of its columns; it goes token by token or in chunks, as the sequence's
 * own length says. How columns are cut depends on the number of threads, and no result does:
 * columns share nothing (see cpu.h for who computes them).
 *
 * SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"

/* When chunks pay, and how long to make them. Time of kda_execute in us a token and head: f32, H 8,
 * K = V = 128, log gate, one thread (EPYC, family 26, gcc 12, 2026-11-29):
 *
 *                vectors of 512         256                    128 bits
 *     tokens     one by one  chunks     one by one  chunks     one by one  chunks
 *     1          1.56        4.66       2.27        5.31       3.17        10.3
 *     4          1.02        1.44       1.53        1.72       2.71        3.32
 *     8          0.89        0.90       1.40        1.41       2.90        2.97
 *     16         0.81        0.76       1.29        1.27       2.74        2.85
 *     32         0.75        0.71       1.22        1.21       2.70        2.77
 *     128        0.70        0.66       1.18        1.15       2.69        2.78
 *
 * At 128 tokens and K = V = 96 it is 0.41 against 0.43 with 512 bits, at 112 it is 0.60 against
 * 0.55, at 256 3.1 against 2.2. Chunks of 32 took 5 % longer than those of 16, of 64 20 %. Without
 * vectors nobody is in a hurry. */
#define CHUNK 16
#define RECURRENT_UP_TO 15
#define LEAST_DIM 112

/* Up to this many tokens, as many as are made ready at once, a state is not copied to be at work.
 */
#define DIRECT_UP_TO 4

/* Columns of a piece come in whole lines, and not fewer than these. What a token brings is made
 * ready once for each piece, which takes as long as so many columns, in chunks more: us a token on
 * one thread, K = 128, bf16, of 32, 64 and 128 columns one by one 0.34, 0.47, 0.80, in chunks 0.42,
 * 0.53, 0.75 (2026-11-30). */
#define LEAST_COLUMNS 32
#define READY_COLUMNS 40
#define READY_IN_CHUNKS 90

/* Numbers of a state that a thread takes a token past in a ns, in the table above; reading and
 * writing stored ones comes to a token more. */
#define NUMBERS_PER_NS 27

struct call {
    const kda_plan *plan;
    const struct kda_run *run;
    const struct kda_cpu_level *level;
    int32_t columns; /* of a piece */
    int64_t pieces;  /* of a head */
    float *memory;   /* for each lane a state and the level's scratch */
    size_t state_floats, lane_floats;
};

/* Rows of a state at work are an odd number of cache lines apart: a tile of columns spreads over
 * all of a cache. */
static int64_t state_stride(int32_t columns)
{
    const size_t floats = kda_lines((size_t)columns);
    return (int64_t)(floats / KDA_LINE % 2 ? floats : floats + KDA_LINE);
}

/* Columns of the largest piece. */
static int32_t most_columns(const kda_problem *p, const struct kda_cpu_level *level)
{
    return level->most_columns && p->value_dim > level->most_columns ? level->most_columns
                                                                     : p->value_dim;
}

/* The longest sequence that KDA_SCHEDULE_AUTO sends token by token. */
static int32_t recurrent_up_to(const kda_plan *plan)
{
    const kda_problem *p = &plan->problem;
    const bool pays = plan->ctx->cpu->vectors != KDA_VECTORS_NONE && p->key_dim >= LEAST_DIM &&
                      p->value_dim >= LEAST_DIM;
    if (plan->tuned && plan->tuned->recurrent_up_to >= 0)
        return plan->tuned->recurrent_up_to;
    return pays ? RECURRENT_UP_TO : INT32_MAX;
}

/* The longest sequence that goes token by token. */
static int64_t step_limit(const kda_plan *plan)
{
    if (!plan->problem.chunk)
        return INT64_MAX;
    return plan->problem.schedule == KDA_SCHEDULE_CHUNKWISE ? 0 : recurrent_up_to(plan);
}

static int64_t pieces_of(const kda_problem *p, int32_t columns)
{
    return (p->value_dim + columns - 1) / columns;
}

/* What the thread with the most pieces takes, in columns. */
static int64_t longest(const struct call *c, int32_t columns, int64_t threads)
{
    const kda_problem *p = &c->plan->problem;
    const int64_t pieces = c->run->sequences * p->value_heads * pieces_of(p, columns);
    const bool chunks = c->run->tokens / c->run->sequences > step_limit(c->plan);
    return (pieces + threads - 1) / threads *
           (columns + (chunks ? READY_IN_CHUNKS : READY_COLUMNS));
}

static void cut_columns(struct call *c, int64_t threads)
{
    const kda_problem *p = &c->plan->problem;
    int32_t columns = most_columns(p, c->level);
    c->columns = columns;
    while (c->level->most_columns && columns >= 2 * LEAST_COLUMNS) {
        columns = (int32_t)kda_lines((size_t)(columns + 1) / 2);
        if (longest(c, columns, threads) < longest(c, c->columns, threads))
            c->columns = columns;
    }
    c->pieces = pieces_of(p, c->columns);
}

static double estimate_ns(const kda_problem *p, const struct kda_run *run)
{
    return (double)(run->tokens + run->sequences) * p->value_heads * p->key_dim *
           (p->value_dim + READY_COLUMNS) / NUMBERS_PER_NS;
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

/* A sequence whose slot is negative. */
static void skip(const struct call *c, const struct kda_sequence *seq, int32_t head)
{
    const struct kda_tensor *out = &c->run->tensor[KDA_TENSOR_OUT];
    for (int64_t t = 0; t < seq->length; t++)
        memset(kda_row(out, seq->begin + t, head), 0, (size_t)out->inner * out->element);
}

/* A sequence at work. */
struct progress {
    const struct call *call;
    struct kda_cpu_work work;
    int64_t number; /* of the sequence in the call */
    struct kda_sequence seq;
    bool chunks;
    bool direct; /* stored states are worked on where they are, being laid out as those at work */
    struct kda_cpu_state memory, now; /* a state of the thread's own; where the state is */
};

/* Where a stored state begins, and its columns in place. */
static char *stored(const struct progress *g, enum kda_tensor_id id, int64_t slot)
{
    return kda_row(&g->call->run->tensor[id], slot, g->work.head);
}

static struct kda_cpu_state in_place(const struct progress *g, enum kda_tensor_id id, int64_t slot)
{
    float *row = (float *)(void *)stored(g, id, slot);
    return (struct kda_cpu_state){row + g->work.first, g->work.problem->value_dim};
}

/* Tokens from t to the next state that is stored, or to as many as a chunk takes. */
static int64_t tokens_at_once(const struct progress *g, int64_t t)
{
    const kda_problem *p = g->work.problem;
    const struct kda_run *run = g->call->run;
    const int64_t first = g->seq.length - kda_run_stored(run, g->seq.length);
    int64_t n = t < first ? first - t + 1 : 1;
    if (kda_present(&run->tensor[KDA_TENSOR_CHECKPOINTS]) &&
        n > p->checkpoint_every - t % p->checkpoint_every)
        n = p->checkpoint_every - t % p->checkpoint_every;
    return g->chunks && n > p->chunk ? p->chunk : n;
}

/* Where the call wants the state after so many tokens; negative: nowhere. */
static int64_t final_slot(const struct progress *g, int64_t done)
{
    const struct kda_run *run = g->call->run;
    const int64_t length = g->seq.length, column = done - 1 - length + kda_run_stored(run, length);
    return kda_present(&run->tensor[KDA_TENSOR_FINAL_STATE]) && column >= 0
               ? kda_run_write_slot(run, g->number, column)
               : -1;
}

/* n tokens from t, after which the state may have to be stored. */
static void advance(struct progress *g, int64_t t, int64_t n)
{
    const struct kda_cpu_level *level = g->call->level;
    const int64_t begin = g->seq.begin, every = g->work.problem->checkpoint_every, done = t + n;
    const int64_t slot = final_slot(g, done);
    const bool there = slot >= 0 && g->direct;
    const struct kda_cpu_state to = there ? in_place(g, KDA_TENSOR_FINAL_STATE, slot) : g->memory;
    if (g->chunks)
        level->chunk(&g->work, begin + t, (int32_t)n, to);
    else
        level->steps(&g->work, begin + t, n, g->now, to);
    g->now = to;
    if (kda_present(&g->call->run->tensor[KDA_TENSOR_CHECKPOINTS]) && done % every == 0)
        level->store_state(&g->work, to,
                           stored(g, KDA_TENSOR_CHECKPOINTS, begin / every + done / every - 1));
    if (slot >= 0 && !there)
        level->store_state(&g->work, to, stored(g, KDA_TENSOR_FINAL_STATE, slot));
}

/* A sequence that has tokens. */
static void run_sequence(struct progress *g)
{
    const kda_problem *p = g->work.problem;
    const int64_t length = g->seq.length;
    g->chunks = length > step_limit(g->call->plan) && g->call->run->columns == 1;
    g->direct = !g->chunks && length <= DIRECT_UP_TO && p->state_dtype == KDA_F32 &&
                p->state_layout == KDA_STATE_KV && g->work.columns % KDA_LINE == 0;
    g->now = g->memory;
    if (g->seq.fresh)
        memset(g->memory.at, 0, g->call->state_floats * sizeof(float));
    else if (g->direct)
        g->now = in_place(g, KDA_TENSOR_INITIAL_STATE, g->seq.slot);
    else
        g->call->level->load_state(&g->work, g->memory,
                                   stored(g, KDA_TENSOR_INITIAL_STATE, g->seq.slot));
    for (int64_t t = 0, n; t < length; t += n) {
        n = tokens_at_once(g, t);
        advance(g, t, n);
    }
}

/* One piece. */
static void run_item(void *arg, int64_t item, int32_t lane)
{
    const struct call *c = arg;
    const kda_problem *p = &c->plan->problem;
    const int64_t n = item / c->pieces / p->value_heads;
    const int32_t first = (int32_t)(item % c->pieces) * c->columns;
    float *memory = c->memory + (size_t)lane * c->lane_floats;
    struct progress g = {
        .call = c,
        .work = {.problem = p,
                 .run = c->run,
                 .head = (int32_t)(item / c->pieces % p->value_heads),
                 .first = first,
                 .columns = p->value_dim - first < c->columns ? p->value_dim - first : c->columns,
                 .scratch = memory + c->state_floats},
        .number = n,
        .seq = kda_run_sequence(c->run, n),
        .memory = {memory, state_stride(c->columns)},
    };
    if (g.seq.slot >= 0 && g.seq.length)
        run_sequence(&g);
    else if (first)
        return; /* the head's first piece sees to it */
    else if (g.seq.slot < 0)
        skip(c, &g.seq, g.work.head);
    else
        copy_state(c, &g.seq, kda_run_write_slot(c->run, n, 0), g.work.head);
}

static size_t state_floats(const kda_problem *p, int32_t columns)
{
    return (size_t)p->key_dim * (size_t)state_stride(columns);
}

static size_t lane_floats(const kda_problem *p, const struct kda_cpu_level *level, int32_t columns)
{
    return state_floats(p, columns) + kda_lines(level->scratch_floats(p, columns));
}

static kda_status execute(kda_plan *plan, const struct kda_run *run)
{
    struct kda_pool *pool = plan->ctx->pool;
    const kda_problem *p = &plan->problem;
    struct call c = {.plan = plan, .run = run, .level = plan->ctx->cpu};
    const int32_t lanes = kda_pool_lanes(pool, estimate_ns(p, run));
    cut_columns(&c, lanes);
    c.state_floats = state_floats(p, c.columns);
    c.lane_floats = lane_floats(p, c.level, c.columns);
    size_t bytes = (size_t)lanes * c.lane_floats * sizeof(float);
    c.memory = aligned_alloc(KDA_LINE * sizeof(float), bytes);
    if (!c.memory)
        return kda_no_memory(plan->ctx, "the states at work", bytes);
    kda_pool_run(pool, run->sequences * p->value_heads * c.pieces, lanes, run_item, &c);
    free(c.memory);
    return KDA_OK;
}

/* Tokens in a chunk; 0: all sequences go token by token. */
static int32_t choose_chunk(const kda_plan *plan)
{
    const kda_problem *p = &plan->problem;
    const int32_t chunk = p->chunk ? p->chunk : CHUNK;
    const bool pays = p->max_tokens > recurrent_up_to(plan) && p->checkpoint_every % chunk == 0;
    if (p->schedule == KDA_SCHEDULE_RECURRENT || (p->schedule == KDA_SCHEDULE_AUTO && !pays))
        return 0;
    return chunk;
}

static bool has_engine(kda_engine engine)
{
    return engine == KDA_ENGINE_AUTO || engine == KDA_ENGINE_FUSED;
}

static kda_status plan_create(kda_plan *plan)
{
    kda_problem *p = &plan->problem;
    if (plan->tuned && !has_engine(plan->tuned->engine)) {
        kda_log(plan->ctx, KDA_LOG_WARN,
                "kda_context_params.tuned: line %d: the CPU backend has engine fused only: going "
                "on without",
                plan->tuned->line);
        plan->tuned = NULL;
    }
    kda_tuned_apply(plan->tuned, p);
    if (!has_engine(p->engine)) {
        kda_log(plan->ctx, KDA_LOG_ERROR,
                "kda_problem.engine: the CPU backend has KDA_ENGINE_FUSED only");
        return KDA_UNSUPPORTED;
    }
    const struct kda_cpu_level *level = plan->ctx->cpu;
    p->chunk = choose_chunk(plan);
    plan->workspace = (size_t)kda_pool_threads(plan->ctx->pool) *
                      lane_floats(p, level, most_columns(p, level)) * sizeof(float);
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
    char tuned[32];
    kda_tuned_name(plan->tuned, tuned, sizeof tuned);
    if (!p->chunk)
        return (size_t)snprintf(text, n, "schedule=recurrent device=cpu threads=%d vectors=%s%s",
                                threads, plan->ctx->cpu->name, tuned);
    return (size_t)snprintf(text, n,
                            "schedule=chunkwise engine=fused chunk=%d recurrent_up_to=%d "
                            "device=cpu threads=%d vectors=%s%s",
                            (int)p->chunk, (int)step_limit(plan), threads, plan->ctx->cpu->name,
                            tuned);
}

static size_t list_facts(const kda_context *ctx, kda_fact *out, size_t max)
{
    const kda_fact facts[] = {
        {"name", ctx->cpu_name, "queried"},
        {"driver", kda_version(), "queried"},
        {"threads", ctx->cpu_threads, "queried"},
        {"vectors", ctx->cpu->name, "queried"},
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
    ctx->cpu = kda_cpu_level_choose(params->vectors);
    ctx->pool = kda_pool_create(ctx, params->threads);
    if (!ctx->pool)
        return kda_no_memory(ctx, "the CPU backend's threads", 0);
    snprintf(ctx->cpu_name, sizeof ctx->cpu_name, "CPU backend, vectors %s", ctx->cpu->name);
    snprintf(ctx->cpu_threads, sizeof ctx->cpu_threads, "%d", (int)kda_pool_threads(ctx->pool));
    return KDA_OK;
}

/* The known answer: a plan's kernels run a small problem of the plan's kind, and the CPU backend
 * says what must come out. It is also the first launch of every kernel, at which some drivers, and
 * CLBlast, compile: kda_enqueue must not.
 *
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "convert.h"
#include "internal.h"

/* Two sequences of one head: one that goes token by token, and one of two chunks and a bit, or as
 * short if the plan has no chunks (some drivers bear few loop iterations). */
enum { SHORT = 3 };

/* The inputs, in the plan's types, and room for both answers. */
struct exam {
    kda_problem problem;
    kda_args args;
    int32_t starts[3];
    char *memory;
};

/* Numbers between -1 and 1, the same every time. */
static float draw(uint32_t *seed)
{
    *seed = *seed * 1664525 + 1013904223;
    return (float)(int32_t)*seed * 0x1p-31f;
}

static char *fill(char **at, kda_dtype type, int64_t n, float scale, float shift, uint32_t *seed)
{
    char *start = *at;
    for (int64_t i = 0; i < n; i++) {
        float x = draw(seed) * scale + shift;
        kda_store(start + (size_t)i * kda_dtype_size(type), type, &x, 1);
    }
    *at += (size_t)n * 4; /* room for any type, and alignment */
    return start;
}

/* Unit-like keys, decays between 0.4 and 1, write strengths in (0, 1): a tame problem, so that any
 * schedule is close to any other. */
static kda_status set_exam(const kda_plan *plan, struct exam *e)
{
    const struct kda_launch *l = plan->backend;
    const int64_t tokens = SHORT + 2 * l->config.chunk + 3;
    kda_problem *p = &e->problem;
    *p = plan->problem;
    p->heads = p->value_heads = 1;
    p->value_dim = p->value_dim < KDA_KNOWN_COLUMNS ? p->value_dim : KDA_KNOWN_COLUMNS;
    p->max_tokens = tokens;
    p->max_sequences = 2;
    p->checkpoint_every = 0;
    p->segment = p->segment ? 64 : 0;
    p->max_workspace = 0;
    const int64_t K = p->key_dim, V = p->value_dim;
    size_t floats = (size_t)(3 * tokens * K + tokens * V + tokens + 1 + K + 2 * K * V);
    e->memory = malloc(floats * 4);
    if (!e->memory)
        return kda_no_memory(plan->ctx, "the known answer", floats * 4);
    char *at = e->memory;
    uint32_t seed = 1;
    const float key = sqrtf(3.0f / (float)K);
    const bool raw = p->gate == KDA_GATE_SOFTPLUS || p->gate == KDA_GATE_BOUNDED;
    e->starts[1] = SHORT;
    e->starts[2] = (int32_t)tokens;
    e->args = (kda_args){.struct_size = sizeof e->args, .tokens = tokens, .sequences = 2};
    e->args.cu_seqlens.host = e->starts;
    e->args.q.host = fill(&at, p->dtype, tokens * K, key, 0, &seed);
    e->args.k.host = fill(&at, p->dtype, tokens * K, key, 0, &seed);
    e->args.v.host = fill(&at, p->dtype, tokens * V, 1, 0, &seed);
    e->args.beta.host = fill(&at, p->beta_dtype, tokens, 0.4f, 0.5f, &seed);
    e->args.initial_state.host = fill(&at, p->state_dtype, 2 * K * V, 1, 0, &seed);
    if (p->gate != KDA_GATE_NONE)
        e->args.g.host = fill(&at, p->g_dtype, tokens * K, 0.4f, raw ? -1 : -0.5f, &seed);
    if (raw) {
        e->args.a_log.host = fill(&at, KDA_F32, 1, 0.5f, 0, &seed);
        e->args.dt_bias.host = fill(&at, KDA_F32, K, 0.5f, 0, &seed);
    }
    return KDA_OK;
}

/* What the CPU backend's recurrence answers. */
static kda_status answer_by_cpu(const kda_plan *plan, const struct exam *e, void *out, void *state)
{
    kda_context cpu = {
        .log = plan->ctx->log, .log_data = plan->ctx->log_data, .log_level = KDA_LOG_ERROR};
    kda_context *ctx = &cpu;
    kda_problem p = e->problem;
    kda_args args = e->args;
    kda_plan *reference = NULL;
    kda_status st = kda_cpu_open(ctx, &(kda_context_params){.threads = 1});
    p.schedule = KDA_SCHEDULE_RECURRENT;
    p.engine = KDA_ENGINE_AUTO;
    p.chunk = 0;
    if (!st)
        st = kda_plan_create(&reference, ctx, &p);
    args.out.host = out;
    args.final_state.host = state;
    if (!st)
        st = kda_execute(reference, &args);
    kda_plan_destroy(&reference);
    if (cpu.ops)
        cpu.ops->context_destroy(ctx);
    return st;
}

static void leave_out(struct kda_launch *l, enum kda_kernel_id id)
{
    if (l->kernel[id])
        clReleaseKernel(l->kernel[id]);
    l->kernel[id] = NULL;
}

/* By one of the kernels that go token by token. State rows are aligned, and the calls have no more
 * than they must: what is for other calls has to stand in. */
static kda_status answer_by_plan(const kda_plan *plan, const struct exam *e, enum kda_kernel_id id,
                                 void *out, void *state)
{
    kda_plan small = {.ctx = plan->ctx, .problem = e->problem};
    kda_args args = e->args;
    args.out.host = out;
    args.final_state.host = state;
    kda_status st = kda_launch_clone(plan->backend, &small);
    struct kda_launch *l = small.backend;
    if (!st && id == KDA_KERNEL_STEP_NARROW) {
        leave_out(l, KDA_KERNEL_STEP);
        l->kernel[KDA_KERNEL_STEP] = l->kernel[id];
        l->kernel[id] = NULL;
    }
    if (!st && id == KDA_KERNEL_STEP_ONE)
        leave_out(l, KDA_KERNEL_STEP_FEW);
    if (!st)
        st = kda_execute(&small, &args);
    kda_launch_destroy(small.backend);
    return st;
}

/* Whether two arrays agree to what the coarser of their type and the engine's operands allows. */
static bool agree(const char *got, const char *wanted, kda_dtype type, int64_t n, float bound)
{
    double error = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        float x, y;
        kda_load(&x, type, got + (size_t)i * kda_dtype_size(type), 1);
        kda_load(&y, type, wanted + (size_t)i * kda_dtype_size(type), 1);
        error += ((double)x - y) * ((double)x - y);
        size += (double)y * y;
    }
    return error <= (double)bound * bound * size; /* false for NaN */
}

/* Whether one of those kernels is right. got and wanted have room for all outputs, then states. */
static kda_status examine(const kda_plan *plan, struct exam *e, enum kda_kernel_id id, char *wanted,
                          char *got, bool *right)
{
    const kda_problem *p = &e->problem;
    if (id == KDA_KERNEL_STEP_ONE || id == KDA_KERNEL_STEP_FEW) {
        e->args.tokens = e->args.sequences;
        e->args.cu_seqlens.host = NULL;
    }
    const int64_t outs = e->args.tokens * p->value_dim,
                  cells = e->args.sequences * p->key_dim * p->value_dim;
    kda_status st = answer_by_cpu(plan, e, wanted, wanted + outs * 4);
    if (!st)
        st = answer_by_plan(plan, e, id, got, got + outs * 4);
    /* A hundredth: far above rounding in any type (bf16: 0.4 per cent), far below any mistake. */
    *right = !st && agree(got, wanted, p->out_dtype, outs, 0.01f) &&
             agree(got + outs * 4, wanted + outs * 4, p->state_dtype, cells, 0.01f);
    return st;
}

kda_status kda_known_answer(const kda_plan *plan, bool *right)
{
    const struct kda_launch *l = plan->backend;
    struct exam e = {.memory = NULL};
    kda_status st = set_exam(plan, &e);
    if (st)
        return st;
    const kda_problem *p = &e.problem;
    size_t bytes = (size_t)((p->max_tokens + 2 * p->key_dim) * p->value_dim) * 4;
    char *wanted = calloc(2, bytes);
    if (!wanted)
        st = kda_no_memory(plan->ctx, "the known answer", 2 * bytes);
    *right = !st;
    for (enum kda_kernel_id id = KDA_KERNEL_STEP; *right && kda_is_step(id); id++)
        if (l->kernel[id])
            st = examine(plan, &e, id, wanted, wanted + bytes, right);
    free(wanted);
    free(e.memory);
    return st;
}

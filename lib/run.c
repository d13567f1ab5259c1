/* From the arguments a caller wrote to a checked run: which tensors are there, their shapes and
 * strides, every rule of kda.h that the host can see.
 *
 * SPDX-License-Identifier: MIT */
#include <limits.h>
#include <stdatomic.h>
#include <string.h>

#include "convert.h"
#include "internal.h"

size_t kda_tensor_span(const struct kda_tensor *t)
{
    if (!t->rows || !t->heads || !t->inner)
        return 0;
    return (size_t)((t->rows - 1) * t->token_stride + (t->heads - 1) * t->head_stride + t->inner) *
           t->element;
}

bool kda_tensor_packed(const struct kda_tensor *t)
{
    return (t->heads <= 1 || t->head_stride == t->inner) &&
           (t->rows <= 1 || t->token_stride == t->heads * t->inner);
}

/* Largest element offset that is computed anywhere; leaves room for the sums in kda_tensor_span. */
#define MAX_OFFSET ((int64_t)1 << 56)

static kda_status check_strides(const kda_context *ctx, const struct kda_tensor *t)
{
    KDA_REQUIRE(ctx, t->token_stride >= 0 && t->head_stride >= 0,
                "kda_args.%s: strides must not be negative (are %lld and %lld)", t->name,
                (long long)t->token_stride, (long long)t->head_stride);
    KDA_REQUIRE(ctx,
                (t->rows <= 1 || t->token_stride <= MAX_OFFSET / t->rows) &&
                    (t->heads <= 1 || t->head_stride <= MAX_OFFSET / t->heads),
                "kda_args.%s: strides reach past 2^56 elements", t->name);
    if (!t->output)
        return KDA_OK;
    /* Two elements never coincide if one of the two orders of rows and heads nests. */
    int64_t ts = t->rows > 1 ? t->token_stride : MAX_OFFSET;
    int64_t hs = t->heads > 1 ? t->head_stride : MAX_OFFSET;
    bool rows_outside = hs >= t->inner && ts >= (t->heads > 1 ? (t->heads - 1) * hs : 0) + t->inner;
    bool heads_outside = ts >= t->inner && hs >= (t->rows > 1 ? (t->rows - 1) * ts : 0) + t->inner;
    KDA_REQUIRE(ctx, rows_outside || heads_outside,
                "kda_args.%s: strides %lld and %lld make rows of %lld elements overlap", t->name,
                (long long)t->token_stride, (long long)t->head_stride, (long long)t->inner);
    return KDA_OK;
}

/* Takes over a caller's view of a tensor whose shape is already set. */
static kda_status resolve_view(const kda_context *ctx, const kda_input *view, bool host,
                               struct kda_tensor *t)
{
    KDA_REQUIRE(ctx, !(host && view->mem), "kda_args.%s.mem: kda_execute takes host memory (.host)",
                t->name);
    KDA_REQUIRE(ctx, !(!host && view->host),
                "kda_args.%s.host: kda_enqueue takes OpenCL memory (.mem)", t->name);
    t->mem = view->mem;
    t->host = (char *)(uintptr_t)view->host;
    t->offset = view->offset;
    if (!kda_present(t))
        return KDA_OK;
    KDA_REQUIRE(ctx, view->offset <= (size_t)MAX_OFFSET, "kda_args.%s: offset passes 2^56 bytes",
                t->name);
    KDA_REQUIRE(ctx, (view->offset + (uintptr_t)view->host) % t->element == 0,
                "kda_args.%s: address and offset must be multiples of its element size (%zu)",
                t->name, t->element);
    t->head_stride = view->head_stride && !t->list ? view->head_stride : t->inner;
    t->token_stride = view->token_stride && !t->list ? view->token_stride : t->heads * t->inner;
    return check_strides(ctx, t);
}

static bool given(const kda_input *view)
{
    return view->mem || view->host;
}

static kda_status resolve_counts(const kda_plan *plan, const kda_args *a, struct kda_run *r)
{
    const kda_context *ctx = plan->ctx;
    const kda_problem *p = &plan->problem;
    KDA_REQUIRE(ctx, a->tokens >= 0 && a->tokens <= p->max_tokens,
                "kda_args.tokens must be in 0..max_tokens = %lld (is %lld)",
                (long long)p->max_tokens, (long long)a->tokens);
    r->tokens = a->tokens;
    r->sequences = a->sequences ? a->sequences : 1;
    KDA_REQUIRE(ctx, r->sequences >= 1 && r->sequences <= p->max_sequences,
                "kda_args.sequences must be in 1..max_sequences = %lld (is %lld)",
                (long long)p->max_sequences, (long long)r->sequences);
    KDA_REQUIRE(ctx, given(&a->cu_seqlens) || r->tokens % r->sequences == 0,
                "kda_args.tokens (%lld) must be a multiple of sequences (%lld) without cu_seqlens",
                (long long)r->tokens, (long long)r->sequences);
    KDA_REQUIRE(ctx, a->cu_seqlens_type == KDA_I32 || a->cu_seqlens_type == KDA_I64,
                "kda_args.cu_seqlens_type is not a kda_index_type (%d)", (int)a->cu_seqlens_type);
    r->cu_seqlens_i64 = a->cu_seqlens_type == KDA_I64;
    bool equal = !given(&a->cu_seqlens);
    int64_t length = r->tokens / r->sequences, max = a->max_length;
    KDA_REQUIRE(ctx, max >= 0, "kda_args.max_length must not be negative (is %lld)",
                (long long)max);
    KDA_REQUIRE(ctx, !equal || !max || max >= length,
                "kda_args.max_length = %lld, but each sequence has %lld tokens", (long long)max,
                (long long)length);
    r->max_length = equal ? length : max && max < r->tokens ? max : r->tokens;
    return KDA_OK;
}

static kda_status resolve_pool(const kda_plan *plan, const kda_args *a, struct kda_run *r)
{
    const kda_context *ctx = plan->ctx;
    const bool pool = given(&a->state_index);
    KDA_REQUIRE(ctx, a->state_index_type == KDA_I32 || a->state_index_type == KDA_I64,
                "kda_args.state_index_type is not a kda_index_type (%d)", (int)a->state_index_type);
    KDA_REQUIRE(ctx, pool ? a->slots >= 1 && a->slots <= INT32_MAX : a->slots == 0,
                pool ? "kda_args.slots must be in 1..2^31-1 with state_index (is %lld)"
                     : "kda_args.slots must be 0 without state_index (is %lld)",
                (long long)a->slots);
    KDA_REQUIRE(ctx, pool || !given(&a->write_index),
                "kda_args.write_index must be absent without state_index");
    KDA_REQUIRE(ctx, pool || !given(&a->accepted),
                "kda_args.accepted must be absent without state_index");
    KDA_REQUIRE(ctx, a->index_columns >= 0 && a->index_columns <= (pool ? 16 : 1),
                "kda_args.index_columns must be in 1..16, without state_index 1 (is %d)",
                (int)a->index_columns);
    KDA_REQUIRE(ctx, a->index_columns <= 1 || plan->problem.schedule != KDA_SCHEDULE_CHUNKWISE,
                "kda_args.index_columns must be 1 with KDA_SCHEDULE_CHUNKWISE (is %d)",
                (int)a->index_columns);
    r->slots = pool ? a->slots : r->sequences;
    r->columns = a->index_columns ? a->index_columns : 1;
    r->state_index_i64 = a->state_index_type == KDA_I64;
    return KDA_OK;
}

static void set_shape(struct kda_tensor *t, const char *name, size_t element, int64_t rows,
                      int64_t heads, int64_t inner)
{
    t->name = name;
    t->element = element;
    t->rows = rows;
    t->heads = heads;
    t->inner = inner;
}

/* Name, type and shape of every tensor: the table in kda.h. */
static void set_shapes(const kda_problem *p, struct kda_run *r)
{
    const int64_t T = r->tokens, H = p->heads, HV = p->value_heads, K = p->key_dim,
                  V = p->value_dim, gates = p->flags & KDA_GATE_PER_HEAD ? 1 : K;
    const size_t data = kda_dtype_size(p->dtype), state = kda_dtype_size(p->state_dtype),
                 index = r->state_index_i64 ? 8 : 4;
    struct kda_tensor *t = r->tensor;
    set_shape(t + KDA_TENSOR_Q, "q", data, T, H, K);
    set_shape(t + KDA_TENSOR_K, "k", data, T, H, K);
    set_shape(t + KDA_TENSOR_V, "v", data, T, HV, V);
    set_shape(t + KDA_TENSOR_G, "g", kda_dtype_size(p->g_dtype), T, HV, gates);
    set_shape(t + KDA_TENSOR_BETA, "beta", kda_dtype_size(p->beta_dtype), T, HV, 1);
    set_shape(t + KDA_TENSOR_A_LOG, "a_log", 4, HV, 1, 1);
    set_shape(t + KDA_TENSOR_DT_BIAS, "dt_bias", 4, HV * gates, 1, 1);
    set_shape(t + KDA_TENSOR_CU_SEQLENS, "cu_seqlens", r->cu_seqlens_i64 ? 8 : 4, r->sequences + 1,
              1, 1);
    set_shape(t + KDA_TENSOR_STATE_INDEX, "state_index", index, r->sequences * r->columns, 1, 1);
    set_shape(t + KDA_TENSOR_WRITE_INDEX, "write_index", index, r->sequences * r->columns, 1, 1);
    set_shape(t + KDA_TENSOR_ACCEPTED, "accepted", index, r->sequences, 1, 1);
    set_shape(t + KDA_TENSOR_FRESH, "fresh", 1, r->sequences, 1, 1);
    set_shape(t + KDA_TENSOR_INITIAL_STATE, "initial_state", state, r->slots, HV, K * V);
    set_shape(t + KDA_TENSOR_FINAL_STATE, "final_state", state, r->slots, HV, K * V);
    set_shape(t + KDA_TENSOR_OUT, "out", kda_dtype_size(p->out_dtype), T, HV, V);
    set_shape(t + KDA_TENSOR_CHECKPOINTS, "checkpoints", state,
              p->checkpoint_every ? T / p->checkpoint_every : 0, HV, K * V);
    t[KDA_TENSOR_A_LOG].list = t[KDA_TENSOR_DT_BIAS].list = true;
    t[KDA_TENSOR_CU_SEQLENS].list = t[KDA_TENSOR_STATE_INDEX].list = true;
    t[KDA_TENSOR_WRITE_INDEX].list = t[KDA_TENSOR_ACCEPTED].list = t[KDA_TENSOR_FRESH].list = true;
    t[KDA_TENSOR_FINAL_STATE].output = true;
    t[KDA_TENSOR_OUT].output = true;
    t[KDA_TENSOR_CHECKPOINTS].output = true;
}

static kda_status resolve_views(const kda_context *ctx, const kda_args *a, bool host,
                                struct kda_run *r)
{
#define OUTPUT(x)                                                                                  \
    {                                                                                              \
        (x).mem, (x).host, (x).offset, (x).token_stride, (x).head_stride                           \
    }
    const kda_input views[KDA_TENSORS] = {
        [KDA_TENSOR_Q] = a->q,
        [KDA_TENSOR_K] = a->k,
        [KDA_TENSOR_V] = a->v,
        [KDA_TENSOR_G] = a->g,
        [KDA_TENSOR_BETA] = a->beta,
        [KDA_TENSOR_A_LOG] = a->a_log,
        [KDA_TENSOR_DT_BIAS] = a->dt_bias,
        [KDA_TENSOR_CU_SEQLENS] = a->cu_seqlens,
        [KDA_TENSOR_STATE_INDEX] = a->state_index,
        [KDA_TENSOR_WRITE_INDEX] = a->write_index,
        [KDA_TENSOR_ACCEPTED] = a->accepted,
        [KDA_TENSOR_FRESH] = a->fresh,
        [KDA_TENSOR_INITIAL_STATE] = a->initial_state,
        [KDA_TENSOR_FINAL_STATE] = OUTPUT(a->final_state),
        [KDA_TENSOR_OUT] = OUTPUT(a->out),
        [KDA_TENSOR_CHECKPOINTS] = OUTPUT(a->checkpoints),
    };
#undef OUTPUT
    for (int i = 0; i < KDA_TENSORS; i++) {
        kda_status st = resolve_view(ctx, &views[i], host, &r->tensor[i]);
        if (st)
            return st;
    }
    if (!given(&a->write_index))
        r->tensor[KDA_TENSOR_WRITE_INDEX] = r->tensor[KDA_TENSOR_STATE_INDEX];
    return KDA_OK;
}

/* Which tensors the problem needs and which it has no use for. */
static kda_status check_presence(const kda_plan *plan, const struct kda_run *r)
{
    const kda_problem *p = &plan->problem;
    bool tokens = r->tokens > 0, raw = p->gate == KDA_GATE_SOFTPLUS || p->gate == KDA_GATE_BOUNDED;
    bool beta_optional = p->rule == KDA_RULE_ADDITIVE && p->beta == KDA_BETA_GIVEN;
    const struct {
        enum kda_tensor_id id;
        bool needed, useless;
        const char *why;
    } rules[] = {
        {KDA_TENSOR_Q, tokens, false, "tokens > 0"},
        {KDA_TENSOR_K, tokens, false, "tokens > 0"},
        {KDA_TENSOR_V, tokens, false, "tokens > 0"},
        {KDA_TENSOR_OUT, tokens, false, "tokens > 0"},
        {KDA_TENSOR_G, tokens && p->gate != KDA_GATE_NONE, p->gate == KDA_GATE_NONE, "this gate"},
        {KDA_TENSOR_BETA, tokens && !beta_optional, false, "this rule and form of beta"},
        {KDA_TENSOR_A_LOG, tokens && p->gate == KDA_GATE_SOFTPLUS, !raw, "this gate"},
        {KDA_TENSOR_DT_BIAS, false, !raw, "this gate"},
        {KDA_TENSOR_CHECKPOINTS, false, !p->checkpoint_every, "kda_problem.checkpoint_every = 0"},
    };
    for (size_t i = 0; i < KDA_COUNT_OF(rules); i++) {
        const struct kda_tensor *t = &r->tensor[rules[i].id];
        KDA_REQUIRE(plan->ctx, !rules[i].needed || kda_present(t),
                    "kda_args.%s is missing; %s needs it", t->name, rules[i].why);
        KDA_REQUIRE(plan->ctx, !rules[i].useless || !kda_present(t),
                    "kda_args.%s must be absent with %s", t->name, rules[i].why);
    }
    return KDA_OK;
}

static kda_status check_in_place(const kda_context *ctx, const struct kda_run *r)
{
    const struct kda_tensor *in = &r->tensor[KDA_TENSOR_INITIAL_STATE],
                            *out = &r->tensor[KDA_TENSOR_FINAL_STATE];
    KDA_REQUIRE(ctx,
                !kda_run_in_place(r) ||
                    (in->token_stride == out->token_stride && in->head_stride == out->head_stride),
                "kda_args.final_state in the initial state's memory must have its strides");
    return KDA_OK;
}

/* A log gate is the one whose values can break a rule. They may be most of what a call reads: the
 * CPU backend's threads share the reading. */
enum { GATE_TOKENS = 64 };
#define GATE_NS 0.25 /* for each number, on one thread */

struct gate_check {
    const struct kda_tensor *g;
    kda_dtype type;
    atomic_llong first; /* number of the first one that does */
};

/* The first one of a row that is not <= 0, or -1. */
static int64_t check_gate_row(const struct gate_check *c, int64_t t, int64_t h)
{
    float row[256];
    kda_load(row, c->type, kda_row(c->g, t, h), c->g->inner);
    bool legal = true;
    for (int64_t i = 0; i < c->g->inner; i++)
        legal &= row[i] <= 0.0f;
    int64_t i = 0;
    while (!legal && row[i] <= 0.0f)
        i++;
    return legal ? -1 : (t * c->g->heads + h) * c->g->inner + i;
}

static void check_gate_tokens(void *arg, int64_t item, int32_t lane)
{
    struct gate_check *c = arg;
    (void)lane;
    for (int64_t t = item * GATE_TOKENS; t < (item + 1) * GATE_TOKENS && t < c->g->rows; t++) {
        for (int64_t h = 0; h < c->g->heads; h++) {
            const long long bad = check_gate_row(c, t, h);
            long long first = atomic_load(&c->first);
            while (bad >= 0 && bad < first &&
                   !atomic_compare_exchange_weak(&c->first, &first, bad)) {
            }
        }
    }
}

static kda_status check_gates(const kda_plan *plan, const struct kda_run *r)
{
    const struct kda_tensor *g = &r->tensor[KDA_TENSOR_G];
    if (!g->host || plan->problem.gate != KDA_GATE_LOG)
        return KDA_OK;
    struct gate_check c = {.g = g, .type = plan->problem.g_dtype, .first = LLONG_MAX};
    const int64_t items = (g->rows + GATE_TOKENS - 1) / GATE_TOKENS;
    struct kda_pool *pool = items > 1 ? plan->ctx->pool : NULL;
    const double ns = (double)(g->rows * g->heads * g->inner) * GATE_NS;
    if (pool)
        kda_pool_run(pool, items, kda_pool_lanes(pool, ns), check_gate_tokens, &c);
    for (int64_t i = 0; !pool && i < items; i++)
        check_gate_tokens(&c, i, 0);
    const long long first = atomic_load(&c.first), row = first / g->inner;
    if (first == LLONG_MAX)
        return KDA_OK;
    float x[256];
    kda_load(x, c.type, kda_row(g, row / g->heads, row % g->heads), g->inner);
    kda_log(plan->ctx, KDA_LOG_ERROR,
            "kda_args.g must be <= 0 with KDA_GATE_LOG (token %lld, head %lld, channel %lld is %g)",
            row / g->heads, row % g->heads, first % g->inner, x[first % g->inner]);
    return KDA_INVALID;
}

kda_status kda_run_check_contents(const kda_plan *plan, struct kda_run *r)
{
    kda_status st = check_in_place(plan->ctx, r);
    if (!st)
        st = kda_run_check_sequences(plan->ctx, r);
    return st ? st : check_gates(plan, r);
}

kda_status kda_run_resolve(const kda_plan *plan, const kda_args *args, bool host, struct kda_run *r)
{
    kda_args a;
    kda_status st = kda_struct_copy(plan->ctx, "kda_args", &a, sizeof a, args, args->struct_size);
    if (st)
        return st;
    memset(r, 0, sizeof *r);
    if ((st = resolve_counts(plan, &a, r)) || (st = resolve_pool(plan, &a, r)))
        return st;
    set_shapes(&plan->problem, r);
    if ((st = resolve_views(plan->ctx, &a, host, r)) || (st = check_presence(plan, r)) ||
        (st = kda_run_check_contents(plan, r)))
        return st;
    KDA_REQUIRE(plan->ctx, !host || !a.workspace.mem,
                "kda_args.workspace: kda_execute brings its own");
    KDA_REQUIRE(plan->ctx, host || !plan->workspace || a.workspace.mem,
                "kda_args.workspace is missing; this plan needs %zu bytes", plan->workspace);
    KDA_REQUIRE(plan->ctx, host || a.workspace.size >= plan->workspace,
                "kda_args.workspace.size must be at least %zu (is %zu)", plan->workspace,
                a.workspace.size);
    KDA_REQUIRE(plan->ctx, a.workspace.offset % 128 == 0,
                "kda_args.workspace.offset must be a multiple of 128 (is %zu)", a.workspace.offset);
    r->workspace.mem = a.workspace.mem;
    r->workspace.offset = a.workspace.offset;
    r->workspace.size = a.workspace.size;
    return KDA_OK;
}

/* A call's scalar arguments, in the two forms that cl/args.h has.
 *
 * SPDX-License-Identifier: MIT */
#include <stddef.h>

#include "args.h"
#include "internal.h"

static struct kda_layout layout(const struct kda_tensor *t)
{
    return (struct kda_layout){(kda_i64)(t->offset / t->element), t->token_stride, t->head_stride};
}

static kda_i64 elements(const struct kda_tensor *t)
{
    return (kda_i64)(t->offset / t->element);
}

/* Whether every row of a state tensor starts on a multiple of four elements. Buffers themselves
 * are aligned to the largest type (OpenCL 1.2, 5.2.1), sub-buffers to the device's base address
 * alignment. */
static bool wide(const struct kda_problem *p, const struct kda_tensor *t)
{
    int32_t contiguous = p->state_layout == KDA_STATE_KV ? p->value_dim : p->key_dim;
    return !kda_present(t) || (contiguous % 4 == 0 && t->offset % (4 * t->element) == 0 &&
                               t->token_stride % 4 == 0 && t->head_stride % 4 == 0);
}

/* Whether every row of a tensor starts on a multiple of 16 bytes. */
static bool wide_rows(const struct kda_tensor *t)
{
    const int64_t size = (int64_t)t->element;
    return !kda_present(t) || (t->offset % 16 == 0 && t->token_stride * size % 16 == 0 &&
                               t->head_stride * size % 16 == 0);
}

static kda_i32 presence(const kda_problem *p, const struct kda_run *r)
{
    const struct kda_tensor *t = r->tensor;
    kda_i32 has = 0;
    has |= kda_present(t + KDA_TENSOR_BETA) ? KDA_HAS_BETA : 0;
    has |= kda_present(t + KDA_TENSOR_A_LOG) ? KDA_HAS_A_LOG : 0;
    has |= kda_present(t + KDA_TENSOR_DT_BIAS) ? KDA_HAS_DT_BIAS : 0;
    has |= kda_present(t + KDA_TENSOR_CU_SEQLENS) ? KDA_HAS_CU_SEQLENS : 0;
    has |= r->cu_seqlens_i64 ? KDA_HAS_CU_SEQLENS_I64 : 0;
    has |= kda_present(t + KDA_TENSOR_STATE_INDEX) ? KDA_HAS_STATE_INDEX : 0;
    has |= r->state_index_i64 ? KDA_HAS_STATE_INDEX_I64 : 0;
    has |= kda_present(t + KDA_TENSOR_ACCEPTED) ? KDA_HAS_ACCEPTED : 0;
    has |= kda_present(t + KDA_TENSOR_FRESH) ? KDA_HAS_FRESH : 0;
    has |= kda_present(t + KDA_TENSOR_INITIAL_STATE) ? KDA_HAS_INITIAL_STATE : 0;
    has |= kda_present(t + KDA_TENSOR_FINAL_STATE) ? KDA_HAS_FINAL_STATE : 0;
    has |= kda_present(t + KDA_TENSOR_CHECKPOINTS) ? KDA_HAS_CHECKPOINTS : 0;
    if (wide(p, t + KDA_TENSOR_INITIAL_STATE) && wide(p, t + KDA_TENSOR_FINAL_STATE) &&
        wide(p, t + KDA_TENSOR_CHECKPOINTS))
        has |= KDA_HAS_WIDE_STATES;
    if (wide_rows(t + KDA_TENSOR_Q) && wide_rows(t + KDA_TENSOR_K) && wide_rows(t + KDA_TENSOR_V) &&
        ((p->flags & KDA_GATE_PER_HEAD) || wide_rows(t + KDA_TENSOR_G)) &&
        wide_rows(t + KDA_TENSOR_OUT))
        has |= KDA_HAS_WIDE_ROWS;
    return has;
}

int32_t kda_step_limit(const struct kda_config *c, const struct kda_run *r)
{
    return r->max_length <= c->step_limit || r->columns > 1 ? INT32_MAX : c->step_limit;
}

/* What cl/common.cl's heads_in multiplies and shifts by. */
static void divide_by(int32_t divisor, kda_i32 *factor, kda_i32 *shift)
{
    *shift = 0;
    while (INT64_C(1) << *shift < divisor)
        ++*shift;
    const uint64_t excess = (UINT64_C(1) << *shift) - (uint64_t)divisor;
    *factor = (kda_i32)(uint32_t)((excess << 32) / (uint64_t)divisor + 1);
}

struct kda_call_args kda_call_args(const kda_problem *p, const struct kda_config *c,
                                   const struct kda_run *r)
{
    const struct kda_tensor *t = r->tensor;
    struct kda_call_args args = {
        .q = layout(t + KDA_TENSOR_Q),
        .k = layout(t + KDA_TENSOR_K),
        .v = layout(t + KDA_TENSOR_V),
        .g = layout(t + KDA_TENSOR_G),
        .beta = layout(t + KDA_TENSOR_BETA),
        .out = layout(t + KDA_TENSOR_OUT),
        .initial_state = layout(t + KDA_TENSOR_INITIAL_STATE),
        .final_state = layout(t + KDA_TENSOR_FINAL_STATE),
        .checkpoints = layout(t + KDA_TENSOR_CHECKPOINTS),
        .a_log = elements(t + KDA_TENSOR_A_LOG),
        .dt_bias = elements(t + KDA_TENSOR_DT_BIAS),
        .cu_seqlens = elements(t + KDA_TENSOR_CU_SEQLENS),
        .state_index = elements(t + KDA_TENSOR_STATE_INDEX),
        .write_index = elements(t + KDA_TENSOR_WRITE_INDEX),
        .accepted = elements(t + KDA_TENSOR_ACCEPTED),
        .fresh = elements(t + KDA_TENSOR_FRESH),
        .tokens = r->tokens,
        .sequences = r->sequences,
        .sequence_tokens = r->tokens / r->sequences,
        .slots = r->slots,
        .head_divisor = p->head_map == KDA_HEADS_MODULO ? p->heads : p->value_heads / p->heads,
        .value_heads = p->value_heads,
        .value_dim = p->value_dim,
        .checkpoint_every = (kda_i32)p->checkpoint_every,
        .index_columns = r->columns,
        .has = presence(p, r),
        .scale = p->scale,
        .gate_bound = p->gate_bound,
        .step_limit = kda_step_limit(c, r),
        .padded_v = c->padded_v,
    };
    divide_by(p->value_heads, &args.by_heads, &args.by_heads_shift);
    return args;
}

/* Of a tensor with so many elements in a row; false: 32 bits do not count them all. */
static bool few_layout(const struct kda_call_args *a, const struct kda_layout *l, int64_t row,
                       struct kda_few_layout *few)
{
    *few = (struct kda_few_layout){(kda_i32)l->offset, (kda_i32)l->token_stride,
                                   (kda_i32)l->head_stride};
    const int64_t most = INT32_MAX - row, tokens = a->tokens, heads = a->value_heads;
    return l->offset <= most && l->token_stride <= most / tokens &&
           l->head_stride <= most / heads &&
           l->offset + tokens * l->token_stride + heads * l->head_stride <= most;
}

static bool few_states(const struct kda_layout *l, struct kda_few_states *few)
{
    *few = (struct kda_few_states){l->offset, (kda_i32)l->token_stride, (kda_i32)l->head_stride};
    return few->token_stride == l->token_stride && few->head_stride == l->head_stride;
}

static bool few_numbers(const struct kda_call_args *a, struct kda_few_args *few)
{
    const bool indexed = a->has & KDA_HAS_STATE_INDEX;
    *few = (struct kda_few_args){.has = a->has,
                                 .value_heads = a->value_heads,
                                 .by_heads = a->by_heads,
                                 .by_heads_shift = a->by_heads_shift,
                                 .head_divisor = a->head_divisor,
                                 .scale = a->scale,
                                 .gate_bound = a->gate_bound,
                                 .a_log = (kda_i32)a->a_log,
                                 .dt_bias = (kda_i32)a->dt_bias,
                                 .value_dim = a->value_dim,
                                 .slots = indexed ? (kda_i32)a->slots : INT32_MAX,
                                 .index_columns = (kda_i32)a->index_columns,
                                 .state_index = (kda_i32)a->state_index,
                                 .write_index = (kda_i32)a->write_index};
    divide_by(a->head_divisor, &few->by_keys, &few->by_keys_shift);
    const int64_t most = INT32_MAX - (int64_t)a->value_heads * 256; /* K is 256 at most */
    return a->a_log <= most && a->dt_bias <= most && a->slots <= INT32_MAX &&
           few->index_columns == a->index_columns && few->state_index == a->state_index &&
           few->write_index == a->write_index;
}

bool kda_few_args(const kda_problem *p, const struct kda_call_args *a, struct kda_few_args *few)
{
    const bool raw = p->gate == KDA_GATE_SOFTPLUS || p->gate == KDA_GATE_BOUNDED;
    const kda_i32 sure = KDA_FEW_HAS | (raw ? KDA_FEW_HAS_RAW : 0);
    return a->sequence_tokens == 1 && a->step_limit >= 1 &&
           (a->has & (sure | KDA_FEW_HAS_NOT)) == sure && few_numbers(a, few) &&
           few_layout(a, &a->q, p->key_dim, &few->q) && few_layout(a, &a->k, p->key_dim, &few->k) &&
           few_layout(a, &a->g, p->key_dim, &few->g) &&
           few_layout(a, &a->v, p->value_dim, &few->v) && few_layout(a, &a->beta, 1, &few->beta) &&
           few_layout(a, &a->out, p->value_dim, &few->out) &&
           few_states(&a->initial_state, &few->initial_state) &&
           few_states(&a->final_state, &few->final_state);
}

/* The lines that cl/args.h speaks of, behind 16 bytes of another's and the first pointer. */
enum { BEFORE = 16 + sizeof(kda_i64) };
_Static_assert((BEFORE + offsetof(struct kda_few_args, q)) % 64 == 0 &&
                   (BEFORE + offsetof(struct kda_few_args, dt_bias)) % 64 == 0 &&
                   (BEFORE + sizeof(struct kda_few_args)) % 64 == 0,
               "kda_few_args takes more lines than it has to");

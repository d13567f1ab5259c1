/* From the problem a caller wrote to the one that plans are made of: every default filled in, every
 * rule of kda.h checked in the order of the struct.
 *
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "internal.h"

kda_status kda_struct_copy(const kda_context *ctx, const char *name, void *out, size_t out_size,
                           const void *in, size_t in_size)
{
    KDA_REQUIRE(ctx, in_size >= sizeof(size_t) && in_size <= 1 << 16,
                "%s.struct_size is %zu: fill the struct with the macro %s()", name, in_size, name);
    memset(out, 0, out_size);
    memcpy(out, in, in_size < out_size ? in_size : out_size);
    memcpy(out, &out_size, sizeof out_size); /* the copy's own struct_size, its first member */
    for (size_t i = out_size; i < in_size; i++) {
        if (((const char *)in)[i]) {
            kda_log(ctx, KDA_LOG_ERROR,
                    "%s has members that version %s does not know; they must be zero", name,
                    kda_version());
            return KDA_UNSUPPORTED;
        }
    }
    return KDA_OK;
}

/* A type member: in range, and dtype or f32 (any: no such rule). 0 becomes fallback. */
static kda_status resolve_type(const kda_context *ctx, const char *name, kda_dtype *type,
                               kda_dtype fallback, kda_dtype dtype, bool any)
{
    KDA_REQUIRE(ctx, *type >= KDA_DTYPE_DEFAULT && *type <= KDA_BF16,
                "kda_problem.%s is not a kda_dtype (%d)", name, (int)*type);
    if (*type == KDA_DTYPE_DEFAULT)
        *type = fallback;
    KDA_REQUIRE(ctx, any || *type == dtype || *type == KDA_F32,
                "kda_problem.%s must be dtype or f32 (is %s, dtype is %s)", name,
                kda_dtype_name(*type), kda_dtype_name(dtype));
    return KDA_OK;
}

static kda_status resolve_types(const kda_context *ctx, kda_problem *p)
{
    kda_status st = resolve_type(ctx, "dtype", &p->dtype, KDA_F32, KDA_F32, true);
    if (!st)
        st = resolve_type(ctx, "g_dtype", &p->g_dtype, p->dtype, p->dtype, false);
    if (!st)
        st = resolve_type(ctx, "beta_dtype", &p->beta_dtype, p->dtype, p->dtype, false);
    if (!st)
        st = resolve_type(ctx, "out_dtype", &p->out_dtype, p->dtype, p->dtype, false);
    if (!st)
        st = resolve_type(ctx, "state_dtype", &p->state_dtype, KDA_F32, KDA_F32, true);
    return st;
}

static kda_status resolve_sizes(const kda_context *ctx, kda_problem *p)
{
    const int64_t most = INT32_MAX;
    KDA_REQUIRE(ctx, p->heads >= 1, "kda_problem.heads must be at least 1 (is %d)", p->heads);
    if (p->value_heads == 0)
        p->value_heads = p->heads;
    KDA_REQUIRE(ctx, p->value_heads >= 1 && p->value_heads % p->heads == 0,
                "kda_problem.value_heads must be a multiple of heads (are %d and %d)",
                p->value_heads, p->heads);
    KDA_REQUIRE(ctx, p->key_dim >= 1 && p->key_dim <= 256,
                "kda_problem.key_dim must be in 1..256 (is %d)", p->key_dim);
    KDA_REQUIRE(ctx, p->value_dim >= 1 && p->value_dim <= 65536,
                "kda_problem.value_dim must be in 1..65536 (is %d)", p->value_dim);
    KDA_REQUIRE(ctx, p->max_tokens >= 1 && p->max_tokens <= most,
                "kda_problem.max_tokens must be in 1..2^31-1 (is %lld)", (long long)p->max_tokens);
    if (p->max_sequences == 0)
        p->max_sequences = 1;
    KDA_REQUIRE(ctx, p->max_sequences >= 1 && p->max_sequences <= most,
                "kda_problem.max_sequences must be in 1..2^31-1 (is %lld)",
                (long long)p->max_sequences);
    KDA_REQUIRE(ctx, p->checkpoint_every >= 0 && p->checkpoint_every <= most,
                "kda_problem.checkpoint_every must be in 0..2^31-1 (is %lld)",
                (long long)p->checkpoint_every);
    return KDA_OK;
}

static kda_status resolve_formula(const kda_context *ctx, kda_problem *p)
{
    KDA_REQUIRE(ctx, p->gate >= KDA_GATE_LOG && p->gate <= KDA_GATE_NONE,
                "kda_problem.gate is not a kda_gate (%d)", (int)p->gate);
    KDA_REQUIRE(ctx, p->gate == KDA_GATE_BOUNDED || p->gate_bound == 0.0f,
                "kda_problem.gate_bound is for KDA_GATE_BOUNDED only (is %g)", p->gate_bound);
    if (p->gate == KDA_GATE_BOUNDED && p->gate_bound == 0.0f)
        p->gate_bound = -5.0f;
    KDA_REQUIRE(ctx, p->gate != KDA_GATE_BOUNDED || (p->gate_bound >= -5.0f && p->gate_bound < 0),
                "kda_problem.gate_bound must be in [-5, 0) (is %g)", p->gate_bound);
    KDA_REQUIRE(ctx, p->beta >= KDA_BETA_GIVEN && p->beta <= KDA_BETA_SIGMOID2,
                "kda_problem.beta is not a kda_beta (%d)", (int)p->beta);
    KDA_REQUIRE(ctx, p->rule == KDA_RULE_DELTA || p->rule == KDA_RULE_ADDITIVE,
                "kda_problem.rule is not a kda_rule (%d)", (int)p->rule);
    KDA_REQUIRE(ctx, !(p->flags & ~(uint32_t)(KDA_NORM_QK | KDA_GATE_PER_HEAD)),
                "kda_problem.flags has unknown bits (0x%x)", p->flags);
    KDA_REQUIRE(ctx, isfinite(p->scale), "kda_problem.scale must be finite (is %g)", p->scale);
    if (p->scale == 0.0f)
        p->scale = 1.0f / sqrtf((float)p->key_dim);
    return KDA_OK;
}

static kda_status resolve_choices(const kda_context *ctx, kda_problem *p)
{
    KDA_REQUIRE(ctx, p->state_layout == KDA_STATE_KV || p->state_layout == KDA_STATE_VK,
                "kda_problem.state_layout is not a kda_state_layout (%d)", (int)p->state_layout);
    KDA_REQUIRE(ctx, p->head_map == KDA_HEADS_GROUPED || p->head_map == KDA_HEADS_MODULO,
                "kda_problem.head_map is not a kda_head_map (%d)", (int)p->head_map);
    KDA_REQUIRE(ctx, p->schedule >= KDA_SCHEDULE_AUTO && p->schedule <= KDA_SCHEDULE_CHUNKWISE,
                "kda_problem.schedule is not a kda_schedule (%d)", (int)p->schedule);
    KDA_REQUIRE(ctx, p->engine >= KDA_ENGINE_AUTO && p->engine <= KDA_ENGINE_MMA,
                "kda_problem.engine is not a kda_engine (%d)", (int)p->engine);
    KDA_REQUIRE(ctx, p->schedule != KDA_SCHEDULE_RECURRENT || p->engine == KDA_ENGINE_AUTO,
                "kda_problem.engine must be KDA_ENGINE_AUTO with KDA_SCHEDULE_RECURRENT: engines "
                "belong to the chunkwise schedule");
    if (p->engine != KDA_ENGINE_AUTO && p->schedule == KDA_SCHEDULE_AUTO)
        p->schedule = KDA_SCHEDULE_CHUNKWISE;
    KDA_REQUIRE(ctx, p->chunk == 0 || p->chunk == 16 || p->chunk == 32 || p->chunk == 64,
                "kda_problem.chunk must be 0, 16, 32 or 64 (is %d)", (int)p->chunk);
    KDA_REQUIRE(ctx, p->schedule != KDA_SCHEDULE_RECURRENT || !p->chunk,
                "kda_problem.chunk must be 0 with KDA_SCHEDULE_RECURRENT (is %d)", (int)p->chunk);
    KDA_REQUIRE(ctx, p->segment >= 0 && p->segment % 64 == 0,
                "kda_problem.segment must be a multiple of 64 (is %d)", (int)p->segment);
    KDA_REQUIRE(ctx,
                p->schedule != KDA_SCHEDULE_CHUNKWISE || !p->checkpoint_every ||
                    p->checkpoint_every % (p->chunk ? p->chunk : 16) == 0,
                "kda_problem.checkpoint_every must be a multiple of the chunk (%d) with "
                "KDA_SCHEDULE_CHUNKWISE (is %lld)",
                (int)(p->chunk ? p->chunk : 16), (long long)p->checkpoint_every);
    return KDA_OK;
}

kda_status kda_problem_resolve(const kda_context *ctx, const kda_problem *in, kda_problem *p)
{
    kda_status st = kda_struct_copy(ctx, "kda_problem", p, sizeof *p, in, in->struct_size);
    if (!st)
        st = resolve_sizes(ctx, p);
    if (!st)
        st = resolve_types(ctx, p);
    if (!st)
        st = resolve_formula(ctx, p);
    if (!st)
        st = resolve_choices(ctx, p);
    return st;
}

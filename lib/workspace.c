/* The workspace of the chunkwise schedule: a chunk table, the factors of as many chunks as fit, and
 * the state of the one sequence that a piece's end can cut, twice, since a piece reads one while
 * it writes the other. Where sequences are cut in segments, the states and maps of these.
 *
 * SPDX-License-Identifier: MIT */
#include "internal.h"

/* Offsets are multiples of this many floats, so that every vector access is aligned. */
#define ALIGNMENT 32

static int64_t align(int64_t floats)
{
    return (floats + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

int64_t kda_workspace_chunks(const struct kda_config *c, int64_t tokens, int64_t sequences)
{
    /* Each sequence rounds up once; one that goes in chunks has more than step_limit tokens. */
    int64_t most = tokens / ((int64_t)c->step_limit + 1);
    int64_t chunks = tokens / c->chunk + (sequences < most ? sequences : most);
    return chunks < tokens ? chunks : tokens; /* none is empty */
}

static int64_t factor_floats(const struct kda_config *c)
{
    int64_t C = c->chunk, K = c->padded_k, V = c->padded_v;
    if (c->teams)
        return align((3 * C * K + 2 * C * C) / 2 + 256); /* IMAGE_BYTES in cl/common.cl */
    return align(3 * C * K + C * C + K + C * V);         /* FACTOR_* in cl/common.cl */
}

int64_t kda_workspace_segments(const struct kda_config *c, int64_t chunks)
{
    return chunks / c->segment + 1;
}

static int64_t carry_floats(const kda_problem *p, const struct kda_config *c)
{
    return align((int64_t)p->value_heads * c->padded_k * c->padded_v);
}

struct kda_workspace kda_workspace_layout(const kda_problem *p, const struct kda_config *c)
{
    struct kda_workspace w = {.factor_stride = factor_floats(c)};
    w.carry[0] = align(2 * (p->max_sequences + 1));
    w.carry[1] = w.carry[0] + carry_floats(p, c);
    int64_t blocks = c->piece * p->value_heads;
    w.progress = w.carry[1] + carry_floats(p, c);
    w.factors = w.progress + (c->teams ? align(2 * blocks) : 0);
    int64_t end = w.factors + blocks * w.factor_stride;
    if (c->engine == KDA_ENGINE_CLBLAST) {
        w.states_in = end;
        w.states_out = w.states_in + blocks * c->padded_k * c->padded_v;
        w.products = w.states_out + blocks * c->padded_k * c->padded_v;
        end = w.products + blocks * c->chunk * c->padded_v;
    }
    if (c->segment) {
        int64_t chunks = kda_workspace_chunks(c, p->max_tokens, p->max_sequences);
        int64_t places = kda_workspace_segments(c, chunks) * p->value_heads;
        w.states_in = end;
        w.states_out = align(w.states_in + places * p->key_dim * p->value_dim);
        end = w.states_out + align(places * p->key_dim * (p->value_dim + p->key_dim));
    }
    w.bytes = (size_t)end * sizeof(float);
    return w;
}

size_t kda_workspace_least(const kda_problem *p, struct kda_config *c)
{
    c->piece = 1;
    return kda_workspace_layout(p, c).bytes;
}

/* 1 GiB: pieces of hundreds of chunks, whose extra launches cost nothing that can be seen. */
static uint64_t limit_of(const kda_context *ctx, const kda_problem *p)
{
    uint64_t limit = p->max_workspace ? p->max_workspace : (uint64_t)1 << 30;
    return limit < ctx->device->max_alloc_bytes ? limit : ctx->device->max_alloc_bytes;
}

bool kda_workspace_holds_all(const kda_context *ctx, const kda_problem *p, struct kda_config *c)
{
    c->piece = kda_workspace_chunks(c, p->max_tokens, p->max_sequences);
    return kda_workspace_layout(p, c).bytes <= limit_of(ctx, p);
}

kda_status kda_workspace_choose(const kda_context *ctx, const kda_problem *p, struct kda_config *c)
{
    const uint64_t limit = limit_of(ctx, p);
    const size_t least = kda_workspace_least(p, c);
    c->piece = 2;
    uint64_t chunk_bytes = kda_workspace_layout(p, c).bytes - least;
    c->piece = 1;
    if (least > limit) {
        kda_log(ctx, p->max_workspace ? KDA_LOG_ERROR : kda_no_chunks_level(p),
                p->max_workspace
                    ? "kda_problem.max_workspace must be at least %zu for this problem "
                      "(the limit is %llu)"
                    : "one chunk's workspace takes %zu bytes, the device's buffers at "
                      "most %llu",
                least, (unsigned long long)limit);
        return p->max_workspace ? KDA_INVALID : KDA_UNSUPPORTED;
    }
    c->piece += (int64_t)((limit - least) / chunk_bytes);
    int64_t most = kda_workspace_chunks(c, p->max_tokens, p->max_sequences);
    if (c->piece > most)
        c->piece = most;
    while (kda_workspace_layout(p, c).bytes > limit) /* chunks differ, by what alignment takes */
        c->piece--;
    return KDA_OK;
}

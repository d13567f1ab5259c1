/* The recurrence in vectors of value columns. With S' the decayed state, a token reads
 *
 *     a = S'^T k = S^T (decay k)    u = beta (v - a)
 *     b = S'^T q = S^T (decay q)    o = scale (b + (k . q) u)
 *
 * before it writes S = decay S + k u^T: two passes over the state, of which one only reads. Nothing
 * is shared between columns, so a column's bits do not depend on who computes its neighbours.
 *
 * A few tokens are made ready at a time, and a tile of columns takes them all before the next tile
 * does, so that the tile stays in the first cache.
 *
 * SPDX-License-Identifier: MIT */
#ifndef KDA_VECTOR_STEP_H
#define KDA_VECTOR_STEP_H

#include "vector_token.h"

enum { STEP_TOKENS = 4, STEP_VECTORS = 4, ROWS_AHEAD = 16 };

/* Tokens made ready. K and columns are padded. */
struct step_block {
    int32_t K, columns;
    bool delta;
    float scale;
    float *k, *decay, *kd, *qd; /* [STEP_TOKENS][K]: the latter two k and q, decayed */
    float *v;                   /* [STEP_TOKENS][columns]: v, then o */
    float beta[STEP_TOKENS], kq[STEP_TOKENS];
};

static size_t step_floats(const kda_problem *p, int32_t columns)
{
    const size_t K = kda_lines((size_t)p->key_dim), V = kda_lines((size_t)columns);
    return K + STEP_TOKENS * (4 * K + V); /* head_of takes K */
}

INLINE void step_block_at(struct step_block *b, const struct kda_cpu_work *w, float *scratch)
{
    const kda_problem *p = w->problem;
    b->K = padded(p->key_dim);
    b->columns = padded(w->columns);
    b->delta = p->rule == KDA_RULE_DELTA;
    b->scale = p->scale;
    b->k = scratch;
    b->decay = b->k + STEP_TOKENS * b->K;
    b->kd = b->decay + STEP_TOKENS * b->K;
    b->qd = b->kd + STEP_TOKENS * b->K;
    b->v = b->qd + STEP_TOKENS * b->K;
}

static void step_load(struct step_block *b, const struct kda_cpu_work *w, const struct head *h,
                      int64_t t, int32_t i)
{
    expect_token(h, t + STEP_TOKENS);
    float *k = b->k + i * b->K, *decay = b->decay + i * b->K;
    float *kd = b->kd + i * b->K, *qd = b->qd + i * b->K;
    load_key(h, KDA_TENSOR_K, t, k);
    load_key(h, KDA_TENSOR_Q, t, qd);
    load_decay(h, t, decay);
    b->beta[i] = load_beta(h, t);
    b->kq[i] = dot(k, qd, b->K);
    for (int32_t s = 0; s < b->K; s += W) {
        put(kd + s, get(k + s) * get(decay + s));
        put(qd + s, get(qd + s) * get(decay + s));
    }
    load_values(w, t, b->v + i * b->columns);
}

/* A tile's sums over the state: a and b above. */
struct step_sums {
    vf a[2 * STEP_VECTORS], b[2 * STEP_VECTORS];
};

/* The first pass of the first token. A tile of twice as many vectors belongs to a single token,
 * whose state comes from memory; the processor's own foresight ends with each page. */
INLINE void step_read(struct step_sums *sums, const struct step_block *b, int32_t rows,
                      struct kda_cpu_state s, const int vectors)
{
    const float *kd = b->kd, *qd = b->qd;
    *sums = (struct step_sums){0};
    for (int32_t r = 0; r < rows; r++, s.at += s.stride) {
        for (int n = 0; n < vectors && vectors > STEP_VECTORS; n += KDA_LINE / W)
            __builtin_prefetch(s.at + ROWS_AHEAD * s.stride + n * W);
        const vf key = all(kd[r]), query = all(qd[r]);
        for (int n = 0; n < vectors; n++) {
            const vf x = get(s.at + n * W);
            sums->a[n] = madd(x, key, sums->a[n]);
            sums->b[n] = madd(x, query, sums->b[n]);
        }
    }
}

/* The second pass of token i, and where there is a next one its first pass. */
INLINE void step_write(struct step_sums *sums, const struct step_block *b, int32_t rows, int32_t i,
                       const vf *u, struct kda_cpu_state from, struct kda_cpu_state to,
                       const int vectors, const bool next)
{
    const float *k = b->k + i * b->K, *decay = b->decay + i * b->K;
    const float *kd = b->kd + (i + 1) * b->K, *qd = b->qd + (i + 1) * b->K;
    *sums = (struct step_sums){0};
    for (int32_t r = 0; r < rows; r++, from.at += from.stride, to.at += to.stride) {
        const vf keep = all(decay[r]), write = all(k[r]);
        const vf key = all(next ? kd[r] : 0.0f), query = all(next ? qd[r] : 0.0f);
        for (int n = 0; n < vectors; n++) {
            const vf x = madd(get(from.at + n * W), keep, write * u[n]);
            put(to.at + n * W, x);
            if (next) {
                sums->a[n] = madd(x, key, sums->a[n]);
                sums->b[n] = madd(x, query, sums->b[n]);
            }
        }
    }
}

/* Some vectors of columns from c take all tokens of the block. */
INLINE void step_tile(const struct step_block *b, int32_t rows, int32_t tokens, int32_t c,
                      struct kda_cpu_state from, struct kda_cpu_state to, const int vectors)
{
    struct step_sums sums;
    from.at += c;
    to.at += c;
    step_read(&sums, b, rows, from, vectors);
    for (int32_t i = 0; i < tokens; i++, from = to) {
        float *v = b->v + i * b->columns + c;
        vf u[2 * STEP_VECTORS];
        for (int n = 0; n < vectors; n++) {
            const vf x = get(v + n * W);
            u[n] = b->beta[i] * (b->delta ? x - sums.a[n] : x);
            put(v + n * W, b->scale * madd(all(b->kq[i]), u[n], sums.b[n]));
        }
        if (i + 1 < tokens)
            step_write(&sums, b, rows, i, u, from, to, vectors, true);
        else
            step_write(&sums, b, rows, i, u, from, to, vectors, false);
    }
}

/* All columns, in as wide tiles as there are registers for: sums of several vectors need not wait
 * for each other. A single token leaves half of them free. */
static void step_tiles(const struct step_block *b, int32_t rows, int32_t tokens,
                       struct kda_cpu_state from, struct kda_cpu_state to)
{
    int32_t c = 0;
    for (; tokens == 1 && c + 2 * STEP_VECTORS * W <= b->columns; c += 2 * STEP_VECTORS * W)
        step_tile(b, rows, 1, c, from, to, 2 * STEP_VECTORS);
    for (; c + STEP_VECTORS * W <= b->columns; c += STEP_VECTORS * W)
        step_tile(b, rows, tokens, c, from, to, STEP_VECTORS);
    for (; c + 2 * W <= b->columns; c += 2 * W)
        step_tile(b, rows, tokens, c, from, to, 2);
    for (; c < b->columns; c += W)
        step_tile(b, rows, tokens, c, from, to, 1);
}

static void steps(const struct kda_cpu_work *w, int64_t t, int64_t n, struct kda_cpu_state from,
                  struct kda_cpu_state to)
{
    const kda_problem *p = w->problem;
    struct step_block b;
    const struct head h = head_of(w, w->scratch);
    step_block_at(&b, w, w->scratch + kda_lines((size_t)p->key_dim));
    for (const int64_t end = t + n; t < end; from = to) {
        const int32_t tokens = end - t < STEP_TOKENS ? (int32_t)(end - t) : STEP_TOKENS;
        for (int32_t i = 0; i < tokens; i++)
            step_load(&b, w, &h, t + i, i);
        step_tiles(&b, p->key_dim, tokens, from, to);
        for (int32_t i = 0; i < tokens; i++, t++)
            store_out(w, t, b.v + i * b.columns);
    }
}

#endif

/* The chunkwise schedule in vectors of value columns. Let D_i be the decay from the chunk's start
 * to token i, and D_ij that from token j to token i. Unrolling the recurrence over the chunk's
 * tokens, with S the state before it,
 *
 *     u_i = beta_i (v_i - S^T (D_i k_i) - sum over j < i of (k_i . D_ij k_j) u_j)
 *     o_i = scale (S^T (D_i q_i) + sum over j <= i of (q_i . D_ij k_j) u_j)
 *     S   = D_n S + sum over j of (D_nj k_j) u_j^T
 *
 * which is the recurrence again, but the state is read once and written once for n tokens. Keys are
 * carried from token to token, as in cpu_chunk.c: D_ij is never a quotient. Unlike there, u comes
 * by substitution after the product with the state, column by column, so W is not needed.
 *
 * Sums are made in one order whatever the tile, a row takes in no token after its own, and columns
 * share nothing: bits depend neither on later tokens nor on how columns are cut.
 *
 * SPDX-License-Identifier: MIT */
#ifndef KDA_VECTOR_CHUNK_H
#define KDA_VECTOR_CHUNK_H

#include "vector_token.h"

/* A product's tile stays in registers, of which there are 16 or 32: BAND rows of CHUNK_VECTORS. Its
 * operands are at hand in the first cache, and the products run at the core's f32 peak (EPYC family
 * 26, AVX-512, one thread: 274 GFLOP/s). A library packs operands on every call: OpenBLAS 0.3.21
 * makes 95 GFLOP/s of 16 x 128 x 128 there and 119 of 128 x 128 x 16 (2026-11-30).
 *
 * Instructions for products of bf16 are not used. AVX512-BF16 for the products with the state, of
 * bf16 tensors, takes 10 % off a call, but out comes to 3.7e-3 off f64 where it is 1.7e-3, and
 * large states to 3.7e-3, beyond the bound of 3e-3. For S^T qd alone, which no state takes in,
 * bounds hold and it is 1 to 3 %. AMX rounds operands in the same way. */
#if KDA_VECTOR_BYTES == 64 || defined(__aarch64__)
enum { BAND = 8 };
#else
enum { BAND = 4 };
#endif
enum { CHUNK_VECTORS = 2 };

enum { TOKENS_AHEAD = 4 }; /* asked for */

/* A chunk in preparation; K and columns are padded, C is its length. */
struct chunk_block {
    int32_t K, C, columns;
    double *d;            /* [K]: D_i of the token at work; see cpu_chunk.c for why in double */
    float *k, *q, *decay; /* [K] of the token at work */
    float *kd, *qd;       /* [C][K]: D_i k_i, D_i q_i */
    float *keys;          /* [K][C]: D_ij k_j, i the token at work */
    float *kk, *qk;       /* [C][C]: -beta_i (k_i . D_ij k_j), j < i; q_i . D_ij k_j, j <= i */
    float *beta, *end;    /* [C]; [K]: D_n */
    float *u, *o;         /* [C][columns]; u is v at first */
};

static size_t chunk_floats(const kda_problem *p, int32_t columns)
{
    const size_t K = kda_lines((size_t)p->key_dim), C = (size_t)p->chunk;
    return K * (7 + 3 * C) + 2 * C * C + C + 2 * C * kda_lines((size_t)columns);
}

static void chunk_block_at(struct chunk_block *b, const struct kda_cpu_work *w, float *scratch)
{
    const kda_problem *p = w->problem;
    const int32_t K = padded(p->key_dim), C = p->chunk, columns = padded(w->columns);
    *b = (struct chunk_block){.K = K, .C = C, .columns = columns};
    b->d = (double *)(void *)scratch;
    b->k = scratch + 2 * K;
    b->q = b->k + K;
    b->decay = b->q + K;
    b->end = b->decay + K;
    b->kd = b->end + K;
    b->qd = b->kd + C * K;
    b->keys = b->qd + C * K;
    b->kk = b->keys + K * C;
    b->qk = b->kk + C * C;
    b->beta = b->qk + C * C;
    b->u = b->beta + C;
    b->o = b->u + C * columns;
}

/* Takes the keys before token i past it, in four sums that need not wait for each other. Keys come
 * in whole vectors; what those of later tokens come to is not used. */
static void carry(const struct chunk_block *b, int32_t i)
{
    const float *decay = b->decay, *k = b->k, *q = b->q;
    const int32_t K = b->K, C = b->C;
    for (int32_t j = 0; j < i; j += W) {
        vf kk[4] = {0}, qk[4] = {0};
        float *keys = b->keys + j;
        for (int32_t s = 0; s < K; s += 4) {
            for (int n = 0; n < 4; n++, keys += C) {
                const vf x = get(keys) * decay[s + n];
                put(keys, x);
                kk[n] = madd(x, all(k[s + n]), kk[n]);
                qk[n] = madd(x, all(q[s + n]), qk[n]);
            }
        }
        put(b->kk + i * C + j, -b->beta[i] * ((kk[0] + kk[1]) + (kk[2] + kk[3])));
        put(b->qk + i * C + j, (qk[0] + qk[1]) + (qk[2] + qk[3]));
    }
}

/* d *= x for W doubles; returns them rounded. */
INLINE vf multiply_doubles(double *d, vf x)
{
    typedef double vd __attribute__((vector_size(2 * KDA_VECTOR_BYTES)));
    vd y;
    memcpy(&y, d, sizeof y);
    y *= __builtin_convertvector(x, vd);
    memcpy(d, &y, sizeof y);
    return __builtin_convertvector(y, vf);
}

/* Row i of everything; its key joins the others. */
static void chunk_load(const struct chunk_block *b, const struct kda_cpu_work *w,
                       const struct head *h, int64_t t, int32_t i)
{
    expect_token(h, t + TOKENS_AHEAD);
    load_key(h, KDA_TENSOR_K, t, b->k);
    load_key(h, KDA_TENSOR_Q, t, b->q);
    load_decay(h, t, b->decay);
    b->beta[i] = load_beta(h, t);
    carry(b, i);
    b->qk[i * b->C + i] = dot(b->q, b->k, b->K);
    for (int32_t s = 0; s < b->K; s++)
        b->keys[s * b->C + i] = b->k[s];
    for (int32_t s = 0; s < b->K; s += W) {
        const vf since_start = multiply_doubles(b->d + s, get(b->decay + s));
        put(b->end + s, since_start);
        put(b->kd + i * b->K + s, get(b->k + s) * since_start);
        put(b->qd + i * b->K + s, get(b->q + s) * since_start);
    }
    load_values(w, t, b->u + i * b->columns);
}

/* Adds `terms` terms of BAND rows of a product a b. */
INLINE void product(vf sum[BAND][CHUNK_VECTORS], const float *a, int32_t a_row, const float *b,
                    int64_t b_row, int32_t terms, const int vectors)
{
    for (int32_t s = 0; s < terms; s++, a++, b += b_row) {
        vf x[CHUNK_VECTORS];
        for (int n = 0; n < vectors; n++)
            x[n] = get(b + n * W);
        for (int r = 0; r < BAND; r++)
            for (int n = 0; n < vectors; n++)
                sum[r][n] = madd(all(a[r * a_row]), x[n], sum[r][n]);
    }
}

/* u = beta (v - S^T kd), o = S^T qd: rows i and on. */
INLINE void read_state(const struct chunk_block *b, bool delta, int32_t rows, int32_t i, int32_t c,
                       struct kda_cpu_state s, const int vectors)
{
    vf a[BAND][CHUNK_VECTORS] = {0}, o[BAND][CHUNK_VECTORS] = {0};
    if (delta)
        product(a, b->kd + i * b->K, b->K, s.at + c, s.stride, rows, vectors);
    for (int r = 0; r < BAND; r++) {
        for (int n = 0; n < vectors; n++) {
            float *u = b->u + (i + r) * b->columns + c + n * W;
            put(u, b->beta[i + r] * (get(u) - a[r][n]));
        }
    }
    product(o, b->qd + i * b->K, b->K, s.at + c, s.stride, rows, vectors);
    for (int r = 0; r < BAND; r++)
        for (int n = 0; n < vectors; n++)
            put(b->o + (i + r) * b->columns + c + n * W, o[r][n]);
}

/* Rows i to i + 3 of u or o: adds m u, of m what is below the diagonal, or on it too. */
INLINE void add_triangle(const struct chunk_block *b, float *rows, const float *m, int32_t i,
                         int32_t c, const int diagonal, const int vectors)
{
    vf x[4][CHUNK_VECTORS];
    float *at = rows + i * b->columns + c;
    const float *u = b->u + c;
    m += i * b->C;
    for (int r = 0; r < 4; r++)
        for (int n = 0; n < vectors; n++)
            x[r][n] = get(at + r * b->columns + n * W);
    for (int32_t j = 0; j < i; j++)
        for (int r = 0; r < 4; r++)
            for (int n = 0; n < vectors; n++)
                x[r][n] = madd(all(m[r * b->C + j]), get(u + j * b->columns + n * W), x[r][n]);
    for (int r = 0; r < 4; r++) {
        for (int j = 0; j < r + diagonal; j++)
            for (int n = 0; n < vectors; n++)
                x[r][n] = madd(all(m[r * b->C + i + j]),
                               diagonal ? get(u + (i + j) * b->columns + n * W) : x[j][n], x[r][n]);
        for (int n = 0; n < vectors; n++)
            put(at + r * b->columns + n * W, x[r][n]);
    }
}

/* S = D S + keys u: rows r and on. */
INLINE void write_state(const struct chunk_block *b, int32_t tokens, int32_t r, int32_t c,
                        struct kda_cpu_state s, const int vectors, const int band)
{
    vf x[BAND][CHUNK_VECTORS];
    float *at = s.at + r * s.stride + c;
    for (int k = 0; k < band; k++)
        for (int n = 0; n < vectors; n++)
            x[k][n] = b->end[r + k] * get(at + k * s.stride + n * W);
    const float *keys = b->keys + r * b->C, *u = b->u + c;
    for (int32_t j = 0; j < tokens; j++)
        for (int k = 0; k < band; k++)
            for (int n = 0; n < vectors; n++)
                x[k][n] = madd(all(keys[k * b->C + j]), get(u + j * b->columns + n * W), x[k][n]);
    for (int k = 0; k < band; k++)
        for (int n = 0; n < vectors; n++)
            put(at + k * s.stride + n * W, x[k][n]);
}

/* Everything that a tile of columns needs of a chunk. */
INLINE void chunk_tile(const struct chunk_block *b, const kda_problem *p, int32_t tokens, int32_t c,
                       struct kda_cpu_state s, const int vectors)
{
    const bool delta = p->rule == KDA_RULE_DELTA;
    for (int32_t i = 0; i < tokens; i += BAND)
        read_state(b, delta, p->key_dim, i, c, s, vectors);
    for (int32_t i = 0; delta && i < tokens; i += 4)
        add_triangle(b, b->u, b->kk, i, c, 0, vectors);
    for (int32_t i = 0; i < tokens; i += 4)
        add_triangle(b, b->o, b->qk, i, c, 1, vectors);
    int32_t r = 0;
    for (; r + BAND <= p->key_dim; r += BAND)
        write_state(b, tokens, r, c, s, vectors, BAND);
    for (; r < p->key_dim; r++)
        write_state(b, tokens, r, c, s, vectors, 1);
}

static void chunk(const struct kda_cpu_work *w, int64_t t, int32_t n, struct kda_cpu_state s)
{
    const kda_problem *p = w->problem;
    const size_t K = kda_lines((size_t)p->key_dim);
    struct chunk_block b;
    const struct head h = head_of(w, w->scratch);
    chunk_block_at(&b, w, w->scratch + K);
    if (n < b.C) /* rows come in bands */
        memset(w->scratch + K, 0, (chunk_floats(p, w->columns) - K) * sizeof(float));
    for (int32_t i = 0; i < b.K; i++)
        b.d[i] = 1.0;
    for (int32_t i = 0; i < n; i++)
        chunk_load(&b, w, &h, t + i, i);
    int32_t c = 0;
    for (; c + CHUNK_VECTORS * W <= b.columns; c += CHUNK_VECTORS * W)
        chunk_tile(&b, p, n, c, s, CHUNK_VECTORS);
    for (; c < b.columns; c += W)
        chunk_tile(&b, p, n, c, s, 1);
    for (int32_t i = 0; i < n; i++) {
        float *o = b.o + i * b.columns;
        for (int32_t j = 0; j < b.columns; j += W)
            put(o + j, p->scale * get(o + j));
        store_out(w, t + i, o);
    }
}

#endif

/* The chunkwise schedule on the CPU: C twins of the kernels in chunk.cl and scan.cl, under their
 * names. The derivation stands at the top of chunk.cl; what kda_cpu_prepare leaves lies as FACTOR_*
 * of common.cl say, so that each stage can be held to its kernel alone.
 *
 * A thread meets the tokens in order, which makes two things simpler than they are for a
 * work-group. Keys are carried from token to token through the whole chunk; boundaries between
 * blocks, where work-items start, are not needed. And T is never formed: W and U come from
 * substitution, row by row, which leaves smaller residuals than an inverse does.
 *
 * Nearly all time goes into carry() and multiply(), whose inner loops run over contiguous numbers
 * that do not depend on each other. Sums are made term by term in one order, and a row takes in no
 * token after its own, so its bits depend neither on later tokens nor on tiles and threads.
 *
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "convert.h"
#include "cpu.h"

#define TILE 128 /* columns, and */
#define DEPTH 32 /* terms of a product at a time: what rows are multiplied by stays in cache */

/* A chunk in preparation. K: the factors' padded_k, C: their chunk. */
struct chunk {
    const kda_problem *problem;
    const struct kda_run *run;
    struct kda_factors f;
    int64_t start; /* its first token */
    int32_t head, rows;
    /* [K]: decay from the chunk's start to the token at work. This product alone lives on, in every
     * later state, and a product of floats just below one loses what is below their last bit,
     * nearly always downwards: over 16384 tokens of slow gates that came to ten times the
     * recurrence's error. */
    double *d;
    float *k, *q, *decay; /* [K] of the token at work */
    float *keys;          /* [K][C]: those of earlier tokens, decayed up to the token at work */
    float *r;             /* [C][C]: R; meaningless on and above the diagonal */
    float *beta;          /* [C] */
};

static int32_t smaller(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static int32_t padded_key_dim(const kda_problem *p)
{
    return (p->key_dim + 31) / 32 * 32;
}

static size_t factor_floats(const kda_problem *p)
{
    size_t C = (size_t)p->chunk, K = (size_t)padded_key_dim(p), V = (size_t)p->value_dim;
    return 3 * C * K + C * C + K + C * V;
}

static size_t prepare_floats(const kda_problem *p)
{
    size_t C = (size_t)p->chunk, K = (size_t)padded_key_dim(p);
    return 5 * K + K * C + C * C + C;
}

struct kda_factors kda_factors_at(float *memory, int32_t chunk, int32_t padded_k, int32_t padded_v)
{
    struct kda_factors f = {.chunk = chunk, .padded_k = padded_k, .padded_v = padded_v};
    f.w = memory;
    f.qd = f.w + chunk * padded_k;
    f.ke = f.qd + chunk * padded_k;
    f.a_qk = f.ke + chunk * padded_k;
    f.d = f.a_qk + chunk * chunk;
    f.u = f.d + padded_k;
    return f;
}

/* ---- Products --------------------------------------------------------------------------- */

/* Element (i, j) is at[i * row + j * column]. */
struct matrix {
    float *at;
    int32_t row, column;
};

static struct matrix rows_of(float *at, int32_t row)
{
    return (struct matrix){at, row, 1};
}

static void clear(struct matrix m, int32_t rows, int32_t columns)
{
    for (int32_t i = 0; i < rows; i++)
        memset(m.at + i * m.row, 0, (size_t)columns * sizeof(float));
}

static inline void add_row(float *restrict c, float a, const float *restrict b, int32_t n)
{
    for (int32_t j = 0; j < n; j++)
        c[j] += a * b[j];
}

/* Four rows of c and four of b, so that each number loaded is used four times. a: row by row. */
static inline void add_square(float *restrict c0, float *restrict c1, float *restrict c2,
                              float *restrict c3, const float a[16], const float *restrict b0,
                              const float *restrict b1, const float *restrict b2,
                              const float *restrict b3, int32_t n)
{
    const float a00 = a[0], a01 = a[1], a02 = a[2], a03 = a[3];
    const float a10 = a[4], a11 = a[5], a12 = a[6], a13 = a[7];
    const float a20 = a[8], a21 = a[9], a22 = a[10], a23 = a[11];
    const float a30 = a[12], a31 = a[13], a32 = a[14], a33 = a[15];
    for (int32_t j = 0; j < n; j++) {
        c0[j] = c0[j] + a00 * b0[j] + a01 * b1[j] + a02 * b2[j] + a03 * b3[j];
        c1[j] = c1[j] + a10 * b0[j] + a11 * b1[j] + a12 * b2[j] + a13 * b3[j];
        c2[j] = c2[j] + a20 * b0[j] + a21 * b1[j] + a22 * b2[j] + a23 * b3[j];
        c3[j] = c3[j] + a30 * b0[j] + a31 * b1[j] + a32 * b2[j] + a33 * b3[j];
    }
}

/* What of a matrix counts. */
enum part { ALL, LOWER, BELOW /* the diagonal */ };

/* Four rows from i and as many terms from first as come in fours; returns where it stopped. */
static inline int32_t add_squares(struct matrix c, struct matrix a, struct matrix b, int32_t i,
                                  int32_t first, int32_t end, int32_t columns, float sign)
{
    float *row = c.at + i * c.row, x[16];
    int32_t r = first;
    for (; r + 4 <= end; r += 4) {
        const float *term = b.at + r * b.row;
        for (int32_t k = 0; k < 16; k++)
            x[k] = sign * a.at[(i + k / 4) * a.row + (r + k % 4) * a.column];
        add_square(row, row + c.row, row + 2 * c.row, row + 3 * c.row, x, term, term + b.row,
                   term + 2 * b.row, term + 3 * b.row, columns);
    }
    return r;
}

/* c += sign a b, where c and b have contiguous rows. With BELOW they may be the same: a row is
 * complete before others use it, which makes this a substitution. */
static void multiply(struct matrix c, struct matrix a, struct matrix b, int32_t rows,
                     int32_t columns, int32_t depth, float sign, enum part part)
{
    for (int32_t first = 0; first < depth; first += DEPTH) {
        const int32_t last = smaller(first + DEPTH, depth);
        for (int32_t i = part == ALL ? 0 : first; i < rows; i += 4) {
            int32_t done = first;
            if (i + 4 <= rows)
                done = add_squares(c, a, b, i, first, part == ALL ? last : smaller(last, i),
                                   columns, sign);
            for (int32_t k = i; k < smaller(i + 4, rows); k++) {
                const int32_t end = part == ALL ? last : smaller(last, k + (part == LOWER));
                for (int32_t r = done; r < end; r++)
                    add_row(c.at + k * c.row, sign * a.at[k * a.row + r * a.column],
                            b.at + r * b.row, columns);
            }
        }
    }
}

/* ---- Prepare ---------------------------------------------------------------------------- */

static void load_token(const struct chunk *c, int32_t i)
{
    const kda_problem *p = c->problem;
    const int64_t t = c->start + i;
    kda_cpu_load_key(p, c->run, KDA_TENSOR_K, t, c->head, c->k);
    kda_cpu_load_key(p, c->run, KDA_TENSOR_Q, t, c->head, c->q);
    for (int32_t s = 0; s < p->key_dim; s++)
        c->q[s] *= p->scale;
    kda_cpu_load_decay(p, c->run, t, c->head, c->decay);
    c->beta[i] = kda_cpu_load_beta(p, c->run, t, c->head);
}

/* Four channels of n keys: decayed, then multiplied by k and q. */
static inline void carry_channels(float *restrict c0, float *restrict c1, float *restrict c2,
                                  float *restrict c3, float *restrict kk, float *restrict qk,
                                  const float *decay, const float *k, const float *q, int32_t n)
{
    const float a0 = decay[0], a1 = decay[1], a2 = decay[2], a3 = decay[3];
    const float k0 = k[0], k1 = k[1], k2 = k[2], k3 = k[3];
    const float q0 = q[0], q1 = q[1], q2 = q[2], q3 = q[3];
    for (int32_t j = 0; j < n; j++) {
        const float x0 = c0[j] * a0, x1 = c1[j] * a1, x2 = c2[j] * a2, x3 = c3[j] * a3;
        c0[j] = x0;
        c1[j] = x1;
        c2[j] = x2;
        c3[j] = x3;
        kk[j] = kk[j] + x0 * k0 + x1 * k1 + x2 * k2 + x3 * k3;
        qk[j] = qk[j] + x0 * q0 + x1 * q1 + x2 * q2 + x3 * q3;
    }
}

/* Takes the keys before token i past it: row i of R and of A_qk, but for the diagonal. Keys come
 * in eights, zero where no token has been yet. */
static void carry(const struct chunk *c, int32_t i)
{
    const int32_t C = c->f.chunk, keys = (i + 7) / 8 * 8;
    const float beta = c->beta[i];
    float *kk = c->r + i * C, *qk = c->f.a_qk + i * C;
    memset(kk, 0, (size_t)keys * sizeof *kk);
    memset(qk, 0, (size_t)keys * sizeof *qk);
    for (int32_t s = 0; s < c->f.padded_k; s += 4) {
        float *channel = c->keys + s * C;
        carry_channels(channel, channel + C, channel + 2 * C, channel + 3 * C, kk, qk, c->decay + s,
                       c->k + s, c->q + s, keys);
    }
    for (int32_t j = 0; j < keys; j++)
        kk[j] *= beta;
}

/* In four sums, so that additions need not wait for each other. */
static float dot(const float *x, const float *y, int32_t n)
{
    float a = 0.0f, b = 0.0f, c = 0.0f, d = 0.0f;
    for (int32_t s = 0; s < n; s += 4) {
        a += x[s] * y[s];
        b += x[s + 1] * y[s + 1];
        c += x[s + 2] * y[s + 2];
        d += x[s + 3] * y[s + 3];
    }
    return (a + b) + (c + d);
}

/* Row i of everything; its key joins the others. */
static void prepare_token(const struct chunk *c, int32_t i)
{
    const int32_t K = c->f.padded_k, C = c->f.chunk;
    const float *restrict k = c->k, *restrict q = c->q, *restrict decay = c->decay;
    float *restrict w = c->f.w + i * K, *restrict qd = c->f.qd + i * K;
    float *qk = c->f.a_qk + i * C;
    double *restrict d = c->d;
    const float beta = c->beta[i];
    carry(c, i);
    qk[i] = dot(q, k, K);
    memset(qk + i + 1, 0, (size_t)(C - 1 - i) * sizeof *qk);
    for (int32_t s = 0; s < K; s++)
        c->keys[s * C + i] = k[s];
    for (int32_t s = 0; s < K; s++) {
        d[s] *= decay[s];
        const float since_start = (float)d[s];
        w[s] = k[s] * since_start * beta;
        qd[s] = q[s] * since_start;
    }
}

/* D, and the keys as they are at the chunk's end. */
static void store_end(const struct chunk *c)
{
    const int32_t K = c->f.padded_k;
    for (int32_t s = 0; s < K; s++)
        c->f.d[s] = (float)c->d[s];
    for (int32_t i = 0; i < c->rows; i++)
        for (int32_t s = 0; s < K; s++)
            c->f.ke[i * K + s] = c->keys[s * c->f.chunk + i];
}

/* x = T x. */
static void solve(const struct chunk *c, struct matrix x, int32_t columns)
{
    for (int32_t first = 0; first < columns; first += TILE) {
        const struct matrix tile = rows_of(x.at + first, x.row);
        multiply(tile, rows_of(c->r, c->f.chunk), tile, c->rows, smaller(TILE, columns - first),
                 c->rows, -1.0f, BELOW);
    }
}

static void load_values(const struct chunk *c)
{
    const kda_problem *p = c->problem;
    for (int32_t i = 0; i < c->rows; i++) {
        float *u = c->f.u + i * c->f.padded_v;
        kda_load(u, p->dtype, kda_row(&c->run->tensor[KDA_TENSOR_V], c->start + i, c->head),
                 p->value_dim);
        for (int32_t j = 0; j < p->value_dim; j++)
            u[j] *= c->beta[i];
    }
}

/* Lays out the scratch: no keys yet, and padding channels that change nothing. */
static void begin(struct chunk *c, float *scratch)
{
    const int32_t K = c->f.padded_k, C = c->f.chunk;
    c->d = (double *)(void *)scratch;
    c->k = scratch + 2 * K;
    c->q = c->k + K;
    c->decay = c->q + K;
    c->keys = c->decay + K;
    c->r = c->keys + K * C;
    c->beta = c->r + C * C;
    memset(scratch, 0, (size_t)(c->r - scratch) * sizeof *scratch);
    for (int32_t s = 0; s < K; s++) {
        c->d[s] = 1.0;
        c->decay[s] = 1.0f;
    }
}

void kda_cpu_prepare(const kda_problem *p, const struct kda_run *run, int64_t start, int32_t rows,
                     int32_t head, const struct kda_factors *f, float *scratch)
{
    struct chunk c = {
        .problem = p, .run = run, .f = *f, .start = start, .head = head, .rows = rows};
    begin(&c, scratch);
    for (int32_t i = 0; i < rows; i++) {
        load_token(&c, i);
        prepare_token(&c, i);
    }
    store_end(&c);
    load_values(&c);
    if (p->rule == KDA_RULE_DELTA) { /* else T = I, and W is of no use */
        solve(&c, rows_of(f->w, f->padded_k), p->key_dim);
        solve(&c, rows_of(f->u, f->padded_v), p->value_dim);
    }
}

/* ---- Scan ------------------------------------------------------------------------------- */

/* A tile of n columns, which is all that s, e and o are. */
static void scan_tile(const kda_problem *p, int32_t rows, const struct kda_factors *f, int32_t n,
                      struct matrix s, struct matrix e, struct matrix o)
{
    const int32_t K = p->key_dim;
    if (p->rule == KDA_RULE_DELTA) /* E = U - W S */
        multiply(e, rows_of(f->w, f->padded_k), s, rows, n, K, -1.0f, ALL);
    clear(o, rows, n); /* O = Qd S + A_qk E */
    multiply(o, rows_of(f->qd, f->padded_k), s, rows, n, K, 1.0f, ALL);
    multiply(o, rows_of(f->a_qk, f->chunk), e, rows, n, rows, 1.0f, LOWER);
    for (int32_t r = 0; r < K; r++) /* S = D S + Ke^T E */
        for (int32_t j = 0; j < n; j++)
            s.at[r * s.row + j] *= f->d[r];
    multiply(s, (struct matrix){f->ke, 1, f->padded_k}, e, K, n, rows, 1.0f, ALL);
}

void kda_cpu_scan(const kda_problem *p, int32_t rows, const struct kda_factors *f, float *state,
                  float *out)
{
    const int32_t V = p->value_dim;
    for (int32_t first = 0; first < V; first += TILE)
        scan_tile(p, rows, f, smaller(TILE, V - first), rows_of(state + first, V),
                  rows_of(f->u + first, f->padded_v), rows_of(out + first, V));
}

/* ---- Both ------------------------------------------------------------------------------- */

size_t kda_cpu_chunk_floats(const kda_problem *p)
{
    return factor_floats(p) + prepare_floats(p) + (size_t)p->chunk * (size_t)p->value_dim;
}

void kda_cpu_chunk(const kda_problem *p, const struct kda_run *run, int64_t start, int32_t rows,
                   int32_t head, float *state, float *scratch)
{
    const struct kda_factors f = kda_factors_at(scratch, p->chunk, padded_key_dim(p), p->value_dim);
    float *work = scratch + factor_floats(p), *out = work + prepare_floats(p);
    kda_cpu_prepare(p, run, start, rows, head, &f, work);
    kda_cpu_scan(p, rows, &f, state, out);
    for (int32_t i = 0; i < rows; i++)
        kda_store(kda_row(&run->tensor[KDA_TENSOR_OUT], start + i, head), p->out_dtype,
                  out + i * p->value_dim, p->value_dim);
}

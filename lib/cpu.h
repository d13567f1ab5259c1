/* Inside the CPU backend. Its idea: cpu.c cuts a call into pieces of work, one sequence's tokens
 * for some value columns of one head, and a level says how a piece is computed. Levels differ in
 * nothing but the processor that they need, their speed and their rounding. The one without vectors
 * is the definition of the operation in plain C (cpu_scalar.c, cpu_chunk.c); the others are one
 * source (cpu_vector.c) compiled for vectors of several lengths.
 *
 * SPDX-License-Identifier: MIT */
#ifndef KDA_CPU_H
#define KDA_CPU_H

#include "internal.h"

#define KDA_LINE 16 /* floats in a cache line */

/* Up to a whole number of cache lines, where wide vectors want to start. */
static inline size_t kda_lines(size_t floats)
{
    return (floats + KDA_LINE - 1) / KDA_LINE * KDA_LINE;
}

/* A state's columns in f32: [K] rows, `stride` floats apart. */
struct kda_cpu_state {
    float *at;
    int64_t stride;
};

/* A piece of work and the memory of the thread that does it. Tokens are numbered in the call. */
struct kda_cpu_work {
    const kda_problem *problem;
    const struct kda_run *run;
    int32_t head;
    int32_t first, columns; /* value columns */
    float *scratch;         /* the level's own */
};

struct kda_cpu_level {
    kda_vectors vectors;
    const char *name;
    int32_t most_columns; /* of a piece of work; 0: always those of a whole head */
    /* Floats of scratch for pieces of so many columns. */
    size_t (*scratch_floats)(const kda_problem *p, int32_t columns);
    /* A stored state's columns to f32 and back; `row` is the start of the state in its tensor. */
    void (*load_state)(const struct kda_cpu_work *w, struct kda_cpu_state state, const char *row);
    void (*store_state)(const struct kda_cpu_work *w, struct kda_cpu_state state, char *row);
    /* n >= 1 tokens from t, one by one. The state is read from one place and left at another, which
     * may be the same. */
    void (*steps)(const struct kda_cpu_work *w, int64_t t, int64_t n, struct kda_cpu_state from,
                  struct kda_cpu_state to);
    /* A chunk of at most p->chunk tokens. */
    void (*chunk)(const struct kda_cpu_work *w, int64_t t, int32_t n, struct kda_cpu_state state);
};

/* cpu_level.c: the best level that the processor has and that a caller's limit allows. */
const struct kda_cpu_level *kda_cpu_level_choose(kda_vectors most);

extern const struct kda_cpu_level kda_cpu_scalar, kda_cpu_128, kda_cpu_256, kda_cpu_512;

/* A number of a list of f32, or fallback if the list is absent. */
static inline float kda_cpu_optional(const struct kda_tensor *t, int64_t i, float fallback)
{
    return kda_present(t) ? *(const float *)(const void *)kda_row(t, i, 0) : fallback;
}

/* ---- The definition: cpu_scalar.c ------------------------------------------------------- */

/* What token t brings to a value head, activated: a row of q or k, exp(log decay) for each key
 * channel, beta. */
void kda_cpu_load_key(const kda_problem *p, const struct kda_run *run, enum kda_tensor_id id,
                      int64_t t, int32_t head, float *x);
void kda_cpu_load_decay(const kda_problem *p, const struct kda_run *run, int64_t t, int32_t head,
                        float *decay);
float kda_cpu_load_beta(const kda_problem *p, const struct kda_run *run, int64_t t, int32_t head);

/* ---- The same in chunks: cpu_chunk.c ---------------------------------------------------- */

/* The factors of one chunk and head as kda_prepare leaves them (FACTOR_* in cl/common.cl). */
struct kda_factors {
    int32_t chunk, padded_k, padded_v;
    float *w, *qd, *ke, *a_qk, *d, *u;
};
struct kda_factors kda_factors_at(float *memory, int32_t chunk, int32_t padded_k, int32_t padded_v);

/* The stages. Chunks of p->chunk tokens, the last one of a sequence may have fewer rows; rows and
 * columns beyond are not written. scratch: kda_cpu_chunk_floats(p). */
void kda_cpu_prepare(const kda_problem *p, const struct kda_run *run, int64_t start, int32_t rows,
                     int32_t head, const struct kda_factors *f, float *scratch);
/* Uses up U, which becomes E. state: [K][V], out: [rows][V]. */
void kda_cpu_scan(const kda_problem *p, int32_t rows, const struct kda_factors *f, float *state,
                  float *out);

/* A whole chunk of one value head: state is taken on, out stored. */
size_t kda_cpu_chunk_floats(const kda_problem *p);
void kda_cpu_chunk(const kda_problem *p, const struct kda_run *run, int64_t start, int32_t rows,
                   int32_t head, float *state, float *scratch);

#endif

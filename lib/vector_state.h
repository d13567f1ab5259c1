/* Stored states to f32 and back. One whose rows are value columns goes through squares of four by
 * four numbers: a state that is transposed number by number takes longer than a token.
 *
 * SPDX-License-Identifier: MIT */
#ifndef KDA_VECTOR_STATE_H
#define KDA_VECTOR_STATE_H

#include "cpu.h"
#include "vector.h"

typedef float quad __attribute__((vector_size(16)));

#ifdef __clang__
#define QUAD_OF(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
typedef int32_t quad_index __attribute__((vector_size(16)));
#define QUAD_OF(a, b, ...) __builtin_shuffle(a, b, (quad_index){__VA_ARGS__})
#endif

/* Four numbers from each of four rows become rows. */
INLINE void transpose_square(float *to, int64_t to_row, const float *from, int64_t from_row)
{
    quad x[4], y[4];
    for (int i = 0; i < 4; i++)
        memcpy(&x[i], from + i * from_row, sizeof x[i]);
    for (int i = 0; i < 2; i++) {
        y[i] = QUAD_OF(x[i], x[i + 2], 0, 4, 1, 5);
        y[i + 2] = QUAD_OF(x[i], x[i + 2], 2, 6, 3, 7);
    }
    for (int i = 0; i < 4; i += 2) {
        x[i] = QUAD_OF(y[i], y[i + 1], 0, 4, 1, 5);
        x[i + 1] = QUAD_OF(y[i], y[i + 1], 2, 6, 3, 7);
    }
    for (int i = 0; i < 4; i++)
        memcpy(to + i * to_row, &x[i], sizeof x[i]);
}

/* States that no cache holds: memory is asked for a row or column this far ahead of its turn (one
 * thread, 64 sequences of 32 heads: [V, K] 35 -> 20 ms, bf16 13 -> 9 ms; states in a cache take up
 * to 5 % longer; EPYC, 2026-11-30). Past the end it asks for nothing that matters. */
enum { ROWS_AHEAD_OF_LOAD = 16, COLUMNS_AHEAD_OF_LOAD = 8 };
#define ASK_AHEAD(at, bytes, writes)                                                               \
    for (size_t ahead = 0; ahead < (bytes); ahead += 64)                                           \
    __builtin_prefetch((at) + ahead, writes)

/* What four value columns take on their way: as rows of key channels, padded. */
enum { QUAD_ROW = 256 };

static void load_columns(const struct kda_cpu_work *w, struct kda_cpu_state s, const char *row)
{
    const kda_problem *p = w->problem;
    const int32_t K = p->key_dim;
    const size_t bytes = (size_t)K * kda_dtype_size(p->state_dtype);
    float rows[4][QUAD_ROW] = {0};
    if (w->columns % W)
        memset(s.at, 0, (size_t)(K * s.stride) * sizeof *s.at);
    for (int32_t j = 0; j < w->columns; j += 4) {
        ASK_AHEAD(row + COLUMNS_AHEAD_OF_LOAD * bytes, 4 * bytes, 0);
        for (int32_t c = 0; c < 4 && j + c < w->columns; c++, row += bytes)
            load_row(rows[c], p->state_dtype, row, K);
        int32_t i = 0;
        for (; i + 4 <= K; i += 4)
            transpose_square(s.at + i * s.stride + j, s.stride, rows[0] + i, QUAD_ROW);
        for (; i < K; i++)
            for (int32_t c = 0; c < 4; c++)
                s.at[i * s.stride + j + c] = rows[c][i];
    }
}

static void store_columns(const struct kda_cpu_work *w, struct kda_cpu_state s, char *row)
{
    const kda_problem *p = w->problem;
    const int32_t K = p->key_dim;
    const size_t bytes = (size_t)K * kda_dtype_size(p->state_dtype);
    float rows[4][QUAD_ROW] = {0};
    for (int32_t j = 0; j < w->columns; j += 4) {
        int32_t i = 0;
        ASK_AHEAD(row + COLUMNS_AHEAD_OF_LOAD * bytes, 4 * bytes, 1);
        for (; i + 4 <= K; i += 4)
            transpose_square(rows[0] + i, QUAD_ROW, s.at + i * s.stride + j, s.stride);
        for (; i < K; i++)
            for (int32_t c = 0; c < 4; c++)
                rows[c][i] = s.at[i * s.stride + j + c];
        for (int32_t c = 0; c < 4 && j + c < w->columns; c++, row += bytes)
            store_row(row, p->state_dtype, rows[c], K);
    }
}

static void load_state(const struct kda_cpu_work *w, struct kda_cpu_state s, const char *row)
{
    const kda_problem *p = w->problem;
    const size_t size = kda_dtype_size(p->state_dtype), V = (size_t)p->value_dim;
    if (p->state_layout == KDA_STATE_VK) {
        load_columns(w, s, row + (size_t)w->first * (size_t)p->key_dim * size);
        return;
    }
    row += (size_t)w->first * size;
    for (int32_t i = 0; i < p->key_dim; i++, row += V * size) {
        ASK_AHEAD(row + ROWS_AHEAD_OF_LOAD * V * size, (size_t)w->columns * size, 0);
        load_row(s.at + i * s.stride, p->state_dtype, row, w->columns);
    }
}

static void store_state(const struct kda_cpu_work *w, struct kda_cpu_state s, char *row)
{
    const kda_problem *p = w->problem;
    const size_t size = kda_dtype_size(p->state_dtype), V = (size_t)p->value_dim;
    if (p->state_layout == KDA_STATE_VK) {
        store_columns(w, s, row + (size_t)w->first * (size_t)p->key_dim * size);
        return;
    }
    row += (size_t)w->first * size;
    for (int32_t i = 0; i < p->key_dim; i++, row += V * size) {
        ASK_AHEAD(row + ROWS_AHEAD_OF_LOAD * V * size, (size_t)w->columns * size, 1);
        store_row(row, p->state_dtype, s.at + i * s.stride, w->columns);
    }
}

#endif

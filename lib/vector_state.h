/* Stored states to f32 and back, in vectors of value columns.
 *
 * SPDX-License-Identifier: MIT */
#ifndef KDA_VECTOR_STATE_H
#define KDA_VECTOR_STATE_H

#include "cpu.h"
#include "vector.h"

static void load_state(const struct kda_cpu_work *w, struct kda_cpu_state s, const char *row)
{
    const kda_problem *p = w->problem;
    const size_t size = kda_dtype_size(p->state_dtype);
    if (p->state_layout == KDA_STATE_KV) {
        row += (size_t)w->first * size;
        for (int32_t i = 0; i < p->key_dim; i++, row += (size_t)p->value_dim * size)
            load_row(s.at + i * s.stride, p->state_dtype, row, w->columns);
        return;
    }
    if (w->columns % W)
        memset(s.at, 0, (size_t)(p->key_dim * s.stride) * sizeof *s.at);
    float line[256];
    row += (size_t)w->first * (size_t)p->key_dim * size;
    for (int32_t j = 0; j < w->columns; j++, row += (size_t)p->key_dim * size) {
        load_row(line, p->state_dtype, row, p->key_dim);
        for (int32_t i = 0; i < p->key_dim; i++)
            s.at[i * s.stride + j] = line[i];
    }
}

static void store_state(const struct kda_cpu_work *w, struct kda_cpu_state s, char *row)
{
    const kda_problem *p = w->problem;
    const size_t size = kda_dtype_size(p->state_dtype);
    if (p->state_layout == KDA_STATE_KV) {
        row += (size_t)w->first * size;
        for (int32_t i = 0; i < p->key_dim; i++, row += (size_t)p->value_dim * size)
            store_row(row, p->state_dtype, s.at + i * s.stride, w->columns);
        return;
    }
    float line[256];
    row += (size_t)w->first * (size_t)p->key_dim * size;
    for (int32_t j = 0; j < w->columns; j++, row += (size_t)p->key_dim * size) {
        for (int32_t i = 0; i < p->key_dim; i++)
            line[i] = s.at[i * s.stride + j];
        store_row(row, p->state_dtype, line, p->key_dim);
    }
}

#endif

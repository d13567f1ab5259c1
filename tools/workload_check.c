/* Whether a workload's outputs are right. The oracle works head by head, so a sample of heads is
 * exact; what the library made of them is gathered beside it and measured as one tensor.
 *
 * SPDX-License-Identifier: MIT */
#include "workload.h"
#include "compare.h"
#include "numbers.h"
#include "oracle.h"

#include <stdio.h>
#include <stdlib.h>

/* Updates of one element of a state beyond which the oracle gets a sample only: 5 ns each. */
static const double whole_problem = 4e8;

struct gathered {
    char *got; /* as stored */
    int type;
    double *reference;
    size_t rows, row_size, room; /* room: rows that fit */
};

static bool gathered_create(struct gathered *g, int type, size_t row_size, size_t room)
{
    *g = (struct gathered){.type = type, .row_size = row_size, .room = room};
    g->got = malloc(room * row_size * number_size(type));
    g->reference = malloc(room * row_size * sizeof *g->reference);
    return g->got && g->reference;
}

static void gathered_free(struct gathered *g)
{
    free(g->got);
    free(g->reference);
}

/* Takes one row of a tensor, the element at `first` and what follows. */
static void gather_row(struct gathered *g, const void *tensor, size_t first)
{
    size_t element = number_size(g->type), bytes = g->row_size * element;
    memcpy(g->got + g->rows++ * bytes, (const char *)tensor + first * element, bytes);
}

/* The oracle's state [K, V] in the order in which the problem stores it. */
static void lay_out_state(const kda_problem *p, const double *state, double *stored)
{
    for (int32_t i = 0; i < p->key_dim; ++i)
        for (int32_t j = 0; j < p->value_dim; ++j) {
            size_t kv = (size_t)i * (size_t)p->value_dim + (size_t)j;
            size_t vk = (size_t)j * (size_t)p->key_dim + (size_t)i;
            stored[p->state_layout == KDA_STATE_VK ? vk : kv] = state[kv];
        }
}

static void gather_head(const struct workload *w, int64_t n, int32_t head, double *state,
                        struct gathered *out, struct gathered *states)
{
    const struct problem *p = w->problem;
    size_t heads = (size_t)p->shape.value_heads, h = (size_t)head;
    kda_args args = workload_args(w, NULL);
    double *stored = state + states->row_size;
    oracle_head(&p->shape, &args, n, head, state, out->reference + out->rows * out->row_size, NULL,
                stored);
    for (int64_t t = p->starts[n]; t < p->starts[n + 1]; ++t)
        gather_row(out, w->data[WORKLOAD_OUT], ((size_t)t * heads + h) * out->row_size);
    const int64_t count = p->states ? oracle_stored(&args, p->starts[n + 1] - p->starts[n]) : 0;
    for (int64_t i = 0; i < count; ++i) {
        const size_t slot = (size_t)oracle_slot(&args, n, i);
        lay_out_state(&p->shape, stored + (size_t)i * states->row_size,
                      states->reference + states->rows * states->row_size);
        gather_row(states, w->data[WORKLOAD_FINAL_STATE], (slot * heads + h) * states->row_size);
    }
}

static bool is_sampled(int64_t i, int64_t count, bool whole)
{
    return whole || i == 0 || i == count - 1;
}

/* Runs the oracle on the sample, or counts it if out is NULL. */
static void visit_sample(const struct workload *w, double *state, struct gathered *out,
                         struct gathered *states, int64_t *heads, int64_t *tokens)
{
    const struct problem *p = w->problem;
    const kda_problem *s = &p->shape;
    double updates = (double)p->tokens * s->value_heads * s->key_dim * s->value_dim;
    bool whole = updates <= whole_problem;
    *heads = *tokens = 0;
    for (int64_t n = 0; n < p->sequences; ++n)
        for (int32_t h = 0; h < s->value_heads && is_sampled(n, p->sequences, whole); ++h) {
            if (!is_sampled(h, s->value_heads, whole))
                continue;
            if (out)
                gather_head(w, n, h, state, out, states);
            ++*heads;
            *tokens += p->starts[n + 1] - p->starts[n];
        }
}

static void fail(struct workload_check *check, const char *tensor, const char *what, double value,
                 double bound)
{
    check->pass = false;
    snprintf(check->why, sizeof check->why, "%s: %s %.2e, at most %.2e allowed", tensor, what,
             value, bound);
}

static double judge(const struct gathered *g, const char *tensor, size_t window, double bound,
                    struct workload_check *check)
{
    struct error e =
        error_measure(g->got, g->type, g->reference, NUMBER_F64, g->rows, g->row_size, window);
    if (error_within(&e, bound))
        return e.rms;
    if (e.not_finite) {
        check->pass = false;
        snprintf(check->why, sizeof check->why, "%s: %zu elements are NaN or infinite", tensor,
                 e.not_finite);
        return INFINITY;
    }
    if (e.rms > bound)
        fail(check, tensor, "rms(err)/rms(ref)", e.rms, bound);
    else if (e.window > bound)
        fail(check, tensor, "rms(err)/rms(ref) over a window", e.window, bound);
    else
        fail(check, tensor, "largest error", e.max, ERROR_SINGLE * bound);
    return e.rms;
}

/* No input makes a NaN, so one is an element that nobody wrote, or worse. */
static void look_for_nan(const struct workload *w, enum workload_tensor tensor, int type,
                         size_t first, size_t count, const char *name, struct workload_check *check)
{
    for (size_t i = first; i < first + count; ++i)
        if (isnan(number_load(w->data[tensor], type, (int64_t)i))) {
            check->pass = false;
            snprintf(check->why, sizeof check->why, "%s: element %zu is NaN", name, i);
            return;
        }
}

bool workload_compare(const struct workload *w, struct workload_check *check)
{
    const kda_problem *p = &w->problem->shape;
    size_t state_size = (size_t)p->key_dim * (size_t)p->value_dim;
    struct gathered out = {0}, states = {0};
    int64_t tokens;
    *check =
        (struct workload_check){.pass = true, .all_heads = w->problem->sequences * p->value_heads};
    visit_sample(w, NULL, NULL, NULL, &check->heads, &tokens);
    const size_t columns = (size_t)w->problem->columns;
    double *state = malloc((1 + columns) * state_size * sizeof *state);
    bool fine = state &&
                gathered_create(&out, (int)p->out_dtype, (size_t)p->value_dim, (size_t)tokens) &&
                gathered_create(&states, (int)p->state_dtype, state_size,
                                w->problem->states ? (size_t)check->heads * columns : 0);
    if (fine) {
        visit_sample(w, state, &out, &states, &check->heads, &tokens);
        const size_t slot_size = (size_t)p->value_heads * state_size,
                     stored = (size_t)w->problem->sequences * columns;
        for (size_t i = 0; w->problem->states && i < stored; ++i)
            look_for_nan(w, WORKLOAD_FINAL_STATE, (int)p->state_dtype,
                         (size_t)workload_slot(w->problem, (int64_t)i) * slot_size, slot_size,
                         "final_state", check);
        look_for_nan(w, WORKLOAD_OUT, (int)p->out_dtype, 0,
                     w->bytes[WORKLOAD_OUT] / number_size((int)p->out_dtype), "out", check);
        check->state_error =
            judge(&states, "final_state", 1, error_bound_state(p->dtype, p->state_dtype), check);
        check->out_error = judge(&out, "out", ERROR_WINDOW, error_bound_out(p->dtype), check);
    }
    gathered_free(&out);
    gathered_free(&states);
    free(state);
    return fine;
}

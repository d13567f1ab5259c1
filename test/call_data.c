/* What the tensors of a call contain: lists of numbers, and distributions by name. A number depends
 * on the seed, the tensor and its place alone, so a tensor can be changed without moving the
 * others.
 *
 * SPDX-License-Identifier: MIT */
#include "call.h"

#include "numbers.h"
#include "random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A row is the elements of one row and head. */
struct row {
    uint64_t seed;
    int64_t row, rows; /* of the tensor */
    int64_t first;     /* the row's first element in it */
    int64_t width;
    double *x;
};

static double uniform(const struct row *r, int64_t i)
{
    return random_uniform(r->seed, (uint64_t)(r->first + i));
}

static double normal(const struct row *r, int64_t i)
{
    return random_normal(r->seed, (uint64_t)(r->first + i));
}

static double wide(const struct row *r, int64_t i)
{
    return 8 * normal(r, i);
}

static double huge(const struct row *r, int64_t i)
{
    return 3000 * normal(r, i);
}

static double tiny(const struct row *r, int64_t i)
{
    return 1e-12 * normal(r, i);
}

/* The row's number, from 1. */
static double count(const struct row *r, int64_t i)
{
    (void)i;
    return (double)r->row + 1;
}

/* One in the first row, else zero. */
static double first(const struct row *r, int64_t i)
{
    (void)i;
    return r->row == 0;
}

/* Zero in all rows but the last. */
static double last(const struct row *r, int64_t i)
{
    return r->row + 1 == r->rows ? normal(r, i) : 0;
}

/* log(sigmoid(normal)): the log decays of untrained models. */
static double decay(const struct row *r, int64_t i)
{
    return -log1p(exp(-normal(r, i)));
}

static double slow(const struct row *r, int64_t i)
{
    return -1e-3 * uniform(r, i);
}

/* Everything that a log decay may be, from none to a reset, side by side. */
static double strong(const struct row *r, int64_t i)
{
    static const double gates[] = {0, -1e-3, -0.5, -5, -20, -316, -1000, -1e30, -INFINITY};
    return gates[(int)(uniform(r, i) * (sizeof(gates) / sizeof(gates[0])))];
}

/* a_log: decay rates in [1, 16). */
static double rate(const struct row *r, int64_t i)
{
    return log(1 + 15 * uniform(r, i));
}

/* Random directions of length one. */
static double unit(const struct row *r, int64_t i)
{
    if (i == 0) {
        double sum = 0;
        for (int64_t j = 0; j < r->width; j++)
            sum += normal(r, j) * normal(r, j);
        for (int64_t j = 0; j < r->width; j++)
            r->x[j] = sum > 0 ? normal(r, j) / sqrt(sum) : 1 / sqrt((double)r->width);
    }
    return r->x[i];
}

/* The same direction in every row: repeated keys. */
static double same(const struct row *r, int64_t i)
{
    struct row top = *r;
    top.first = 0;
    return unit(&top, i);
}

static const struct distribution {
    const char *name;
    double (*element)(const struct row *row, int64_t i);
} distributions[] = {
    {"uniform", uniform}, {"normal", normal}, {"wide", wide}, {"huge", huge},   {"tiny", tiny},
    {"count", count},     {"first", first},   {"last", last}, {"decay", decay}, {"slow", slow},
    {"strong", strong},   {"rate", rate},     {"unit", unit}, {"same", same},
};

static bool fill_list(struct tensor *t, const char *text)
{
    double list[64];
    int n = 0;
    for (const char *at = text; n < 64; at++) {
        char *end;
        list[n++] = strtod(at, &end);
        if (end == at || (*end && *end != ','))
            return false;
        at = end;
        if (!*at)
            break;
    }
    for (int64_t i = 0; i < tensor_elements(t); i++)
        tensor_set(t, i, list[i % n]);
    return true;
}

static void fill_rows(struct tensor *t, const struct distribution *d, uint64_t seed)
{
    double *x = malloc(sizeof(*x) * (size_t)t->width);
    for (int64_t first = 0; first < tensor_elements(t); first += t->width) {
        struct row row = {seed, first / t->width / t->heads, t->rows, first, t->width, x};
        for (int64_t i = 0; i < t->width; i++)
            tensor_set(t, first + i, d->element(&row, i));
    }
    free(x);
}

bool call_fill(struct call *call, int id, const char *numbers)
{
    uint64_t seed = random_bits((uint64_t)call->seed, (uint64_t)id);
    for (size_t i = 0; i < sizeof(distributions) / sizeof(distributions[0]); i++) {
        if (!strcmp(distributions[i].name, numbers)) {
            fill_rows(&call->tensor[id], &distributions[i], seed);
            return true;
        }
    }
    return fill_list(&call->tensor[id], numbers);
}

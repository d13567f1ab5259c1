/* How wrong a result is, and how wrong it may be: the error measures and the one table of bounds,
 * for kdarun --check, kdabench and the tests alike.
 *
 * SPDX-License-Identifier: MIT */
#ifndef COMPARE_H
#define COMPARE_H

#include <stdbool.h>
#include <stddef.h>

#include "kda.h"

/* The error of an array against its reference. All are ratios, 0 when nothing differs. */
struct error {
    double rms;        /* rms(error) / rms(reference) */
    double window;     /* the largest such ratio over windows of rows */
    double max;        /* the largest single error / the largest reference value */
    size_t not_finite; /* elements that are NaN or infinite where the reference is not the same */
};

/* Tokens in a window of `out`, so that a drift late in a long sequence does not hide. States are
 * compared in windows of one row, a row being a sequence. */
enum { ERROR_WINDOW = 64 };

/* rows x row_size elements; types as in numbers.h. window: in rows, the last one takes in what is
 * left over. */
struct error error_measure(const void *got, int got_type, const void *reference, int reference_type,
                           size_t rows, size_t row_size, size_t window);

/* The bound of the ratios rms and window for `out`, and for states and checkpoints, of a problem
 * whose q, k and v have this dtype. */
double error_bound_out(kda_dtype dtype);
double error_bound_state(kda_dtype dtype, kda_dtype state_dtype);

/* A single error may be this many times the bound. One rounding never needs it: it costs at most
 * the bound of its type. Arithmetic whose error is normal with an rms at the bound does: the
 * largest of 2^32 such errors is 6.3 times their rms, and the largest reference value is no less
 * than the rms of the reference. */
#define ERROR_SINGLE 8

bool error_within(const struct error *error, double bound);

#endif

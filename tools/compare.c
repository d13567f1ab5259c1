/* Error measures and bounds.
 *
 * Why the measures are what they are. A ratio of rms values says how much of a result is error,
 * whatever its scale. Windows show what the mean over a long tensor hides; but a window whose
 * reference is small beside the rest (a gate has just reset the state, values cancel) still carries
 * rounding of what came before it, so no window counts as smaller than a part of the whole. The
 * largest single error finds one wrong element among millions, which no mean shows.
 *
 * SPDX-License-Identifier: MIT */
#include "compare.h"
#include "numbers.h"

/* A window's reference counts as at least this part of the tensor's. f32 arithmetic on values of
 * the tensor's size is good to some 2^-24 of them, 10 times that after a few dozen dependent steps:
 * 6e-7, which is the f32 bound over 16. */
static const double least_window = 1. / 16;

/* An error below this is none: half the distance of f16's subnormals, or what a device may flush to
 * zero. Nothing stored in the type can be told from it. */
static double smallest_error(int type)
{
    return type == NUMBER_F64 ? 0 : type == KDA_F16 ? 0x1p-25 : 0x1p-126;
}

/* f32 is what f32 arithmetic over thousands of steps is held to. The 16-bit ones are one rounding,
 * which costs at most 2^-11 = 4.9e-4 (f16) and 2^-8 = 3.9e-3 (bf16) of a value, 2^-11 / 2.3 and
 * 2^-8 / 2.3 in the mean. */
double error_bound_out(kda_dtype dtype)
{
    return dtype == KDA_BF16 ? 4e-3 : dtype == KDA_F16 ? 1e-3 : 1e-5;
}

/* A state is the result of arithmetic on tensors of dtype, then rounded once to its own type. */
double error_bound_state(kda_dtype dtype, kda_dtype state_dtype)
{
    double arithmetic = dtype == KDA_BF16 ? 3e-3 : error_bound_out(dtype);
    return fmax(arithmetic, error_bound_out(state_dtype));
}

/* Sums over some elements. */
struct sums {
    double error, reference; /* of squares */
    double max_error, max_reference;
    size_t count, not_finite;
};

static struct sums sums_of(const void *got, int got_type, const void *reference, int reference_type,
                           size_t begin, size_t end)
{
    struct sums s = {.count = end - begin};
    double smallest = smallest_error(got_type);
    for (size_t i = begin; i < end; ++i) {
        double a = number_load(got, got_type, (int64_t)i);
        double b = number_load(reference, reference_type, (int64_t)i);
        if (!isfinite(a) || !isfinite(b)) {
            s.not_finite += !(a == b || (isnan(a) && isnan(b)));
            continue;
        }
        double error = fmax(0, fabs(a - b) - smallest);
        s.error += error * error;
        s.reference += b * b;
        s.max_error = fmax(s.max_error, error);
        s.max_reference = fmax(s.max_reference, fabs(b));
    }
    return s;
}

/* No error is 0 against any reference, and an error is infinite against a reference of zeros. */
static double ratio(double error, double reference)
{
    return error == 0 ? 0 : error / reference;
}

struct error error_measure(const void *got, int got_type, const void *reference, int reference_type,
                           size_t rows, size_t row_size, size_t window)
{
    struct sums all = sums_of(got, got_type, reference, reference_type, 0, rows * row_size);
    double least = least_window * least_window * all.reference / (double)all.count;
    size_t windows = rows / window;
    struct error e = {
        .rms = sqrt(ratio(all.error, all.reference)),
        .max = ratio(all.max_error, all.max_reference),
        .not_finite = all.not_finite,
    };
    e.window = e.rms;
    for (size_t w = 0; w < windows; ++w) {
        size_t end = w + 1 < windows ? (w + 1) * window : rows;
        struct sums part = sums_of(got, got_type, reference, reference_type, w * window * row_size,
                                   end * row_size);
        double n = (double)part.count;
        e.window = fmax(e.window, sqrt(ratio(part.error / n, fmax(part.reference / n, least))));
    }
    return e;
}

bool error_within(const struct error *e, double bound)
{
    return !e->not_finite && e->rms <= bound && e->window <= bound &&
           e->max <= ERROR_SINGLE * bound;
}

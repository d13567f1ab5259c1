/* The measures and bounds that everything else is judged by, and the conversions below them, held
 * to answers worked out by hand.
 *
 * SPDX-License-Identifier: MIT */
#include "compare.h"
#include "files.h"
#include "numbers.h"

#include <float.h>
#include <stdlib.h>

/* Every f16 by its definition: sign, 5 bits of exponent, 10 of mantissa. */
static double f16_value(unsigned h)
{
    int exponent = (int)(h >> 10 & 31), mantissa = (int)(h & 1023);
    double x = exponent == 0    ? ldexp(mantissa, -24)
               : exponent == 31 ? (mantissa ? NAN : INFINITY)
                                : ldexp(1024 + mantissa, exponent - 25);
    return h & 0x8000 ? -x : x;
}

START_TEST(test_f16_every_value)
{
    for (unsigned h = 0; h < 0x10000; ++h) {
        uint16_t stored = (uint16_t)h, back;
        double want = f16_value(h), x = number_load(&stored, KDA_F16, 0);
        number_store(&back, KDA_F16, 0, (float)x);
        ck_assert_msg(isnan(want) ? isnan(x) : x == want, "f16 %04x is %g, not %g", h, x, want);
        ck_assert_msg(isnan(want) ? isnan(number_load(&back, KDA_F16, 0)) : back == stored,
                      "f16 %04x is stored as %04x", h, back);
    }
}
END_TEST

static unsigned narrow(int type, float x)
{
    return type == KDA_F16 ? f16_from_f32(x) : bf16_from_f32(x);
}

/* Between two neighbours: the half-way point goes to the even one, a float beside it to the nearer
 * one. lower: bits of a finite number of the type that is not negative. */
static void check_rounding(int type, unsigned lower)
{
    uint16_t pair[2] = {(uint16_t)lower, (uint16_t)(lower + 1)};
    double below = number_load(pair, type, 0), above = number_load(pair, type, 1);
    if (isinf(above))
        above = type == KDA_F16 ? 65536 : 0x1p128;
    float half = (float)(below + (above - below) / 2), x;
    for (int side = -1; side <= 1; ++side) {
        unsigned want = side < 0 ? lower : side > 0 ? lower + 1 : lower + (lower & 1);
        for (int sign = -1; sign <= 1; sign += 2) {
            x = (float)sign * (side ? nextafterf(half, side < 0 ? 0 : INFINITY) : half);
            unsigned got = narrow(type, x);
            ck_assert_msg(got == (want | (sign < 0 ? 0x8000u : 0)), "%a is stored as %04x", x, got);
        }
    }
}

START_TEST(test_rounding_to_nearest_even)
{
    for (unsigned h = 0; h < 0x7c00; ++h)
        check_rounding(KDA_F16, h);
    for (unsigned h = 0; h < 0x7f80; ++h)
        check_rounding(KDA_BF16, h);
}
END_TEST

START_TEST(test_bf16_keeps_what_is_not_finite)
{
    const uint32_t bits[] = {0x7f800000, 0xff800000, 0x7f800001, 0x7fffffff, 0xffc00000};
    for (size_t i = 0; i < sizeof(bits) / sizeof(bits[0]); ++i) {
        float x;
        uint16_t stored;
        memcpy(&x, &bits[i], sizeof(x));
        number_store(&stored, KDA_BF16, 0, x);
        double back = number_load(&stored, KDA_BF16, 0);
        ck_assert(isnan(x) ? isnan(back) : back == (double)x);
    }
}
END_TEST

enum { ROWS = 640, SIZE = 8 };

/* A reference that is 1 everywhere, and a result that is the same. */
static void fill(float *got, double *want)
{
    for (int i = 0; i < ROWS * SIZE; ++i) {
        got[i] = 1;
        want[i] = 1;
    }
}

static struct error measure(const float *got, const double *want)
{
    return error_measure(got, KDA_F32, want, NUMBER_F64, ROWS, SIZE, ERROR_WINDOW);
}

static float got[ROWS * SIZE];
static double want[ROWS * SIZE];

START_TEST(test_ratios_by_hand)
{
    fill(got, want);
    struct error e = measure(got, want);
    ck_assert(e.rms == 0 && e.window == 0 && e.max == 0 && e.not_finite == 0);
    ck_assert(error_within(&e, 0));
    /* One of 10 windows is off by 0.5: 0.5 in the window, 0.5 / sqrt(10) in the whole. */
    for (int i = 0; i < ERROR_WINDOW * SIZE; ++i)
        got[(ROWS - ERROR_WINDOW) * SIZE + i] = 1.5f;
    e = measure(got, want);
    ck_assert_double_eq_tol(e.rms, 0.5 / sqrt(10), 1e-12);
    ck_assert_double_eq_tol(e.window, 0.5, 1e-12);
    ck_assert_double_eq_tol(e.max, 0.5, 1e-12);
    ck_assert(error_within(&e, 0.51));
    ck_assert(!error_within(&e, 0.49));
}
END_TEST

START_TEST(test_one_wrong_element_fails)
{
    fill(got, want);
    got[1234] = 1.2f; /* rms 0.2 / sqrt(5120) = 0.0028 */
    struct error e = measure(got, want);
    ck_assert(e.rms < error_bound_out(KDA_BF16));
    ck_assert_double_eq_tol(e.max, 0.2, 1e-6);
    ck_assert(!error_within(&e, error_bound_out(KDA_BF16)));
}
END_TEST

/* 164 rows are windows of 64 and 100 rows, of which the last 36 are wrong; 192 are three windows.
 */
START_TEST(test_last_window_takes_the_rest)
{
    fill(got, want);
    for (int i = 128 * SIZE; i < 164 * SIZE; ++i)
        got[i] = 1.5f;
    struct error e = error_measure(got, KDA_F32, want, NUMBER_F64, 164, SIZE, ERROR_WINDOW);
    ck_assert_double_eq_tol(e.window, 0.5 * sqrt(36. / 100), 1e-12);
    e = error_measure(got, KDA_F32, want, NUMBER_F64, 192, SIZE, ERROR_WINDOW);
    ck_assert_double_eq_tol(e.window, 0.5 * sqrt(36. / 64), 1e-12);
}
END_TEST

/* Rounding of the rest is no fault of a window where next to nothing is left. */
START_TEST(test_small_window_counts_as_a_part_of_the_whole)
{
    fill(got, want);
    for (int i = 0; i < ERROR_WINDOW * SIZE; ++i) {
        want[i] = 1e-12;
        got[i] = 5e-7f;
    }
    struct error e = measure(got, want);
    ck_assert(error_within(&e, error_bound_out(KDA_F32)));
    got[0] = 1e-3f;
    e = measure(got, want);
    ck_assert(!error_within(&e, error_bound_out(KDA_F32)));
}
END_TEST

START_TEST(test_not_finite_fails)
{
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; ++i) {
        fill(got, want);
        got[7] = bad[i];
        struct error e = measure(got, want);
        ck_assert(e.not_finite == 1 && !error_within(&e, 1));
        want[7] = bad[i]; /* the same on both sides is no error */
        e = measure(got, want);
        ck_assert(e.not_finite == 0 && error_within(&e, 0));
        want[7] = bad[(i + 1) % 3];
        e = measure(got, want);
        ck_assert(e.not_finite == 1 && !error_within(&e, 1));
        got[7] = 1;
        e = measure(got, want);
        ck_assert(e.not_finite == 1 && !error_within(&e, 1));
    }
}
END_TEST

START_TEST(test_reference_of_zeros)
{
    fill(got, want);
    for (int i = 0; i < ROWS * SIZE; ++i)
        got[i] = (float)(want[i] = 0);
    struct error e = measure(got, want);
    ck_assert(error_within(&e, 0));
    got[5] = FLT_MIN; /* what a device may have flushed */
    e = measure(got, want);
    ck_assert(error_within(&e, 0));
    got[5] = 1e-30f;
    e = measure(got, want);
    ck_assert(!error_within(&e, 1e3));
}
END_TEST

START_TEST(test_no_elements)
{
    struct error e = error_measure(got, KDA_F32, want, NUMBER_F64, 0, SIZE, ERROR_WINDOW);
    ck_assert(error_within(&e, 0));
}
END_TEST

/* The correctly rounded result passes, whatever the numbers: the worst are just above a power of
 * two. Half a step more does not. */
START_TEST(test_bounds_admit_one_rounding)
{
    const struct {
        int type;
        double step; /* of the type, above 1 */
    } types[] = {{KDA_F16, 0x1p-10}, {KDA_BF16, 0x1p-7}};
    for (size_t i = 0; i < 2; ++i) {
        double x = 1 + types[i].step * 0.5;
        uint16_t stored = (uint16_t)narrow(types[i].type, (float)x);
        kda_dtype dtype = (kda_dtype)types[i].type;
        struct error e = error_measure(&stored, types[i].type, &x, NUMBER_F64, 1, 1, 1);
        ck_assert(e.rms > 0);
        ck_assert(error_within(&e, error_bound_out(dtype)));
        ck_assert(error_within(&e, error_bound_state(KDA_F32, dtype)));
        x += 1.6 * types[i].step;
        e = error_measure(&stored, types[i].type, &x, NUMBER_F64, 1, 1, 1);
        ck_assert(!error_within(&e, error_bound_out(dtype)));
    }
    ck_assert(error_bound_state(KDA_F32, KDA_F32) <= 1e-5);
    ck_assert(error_bound_state(KDA_BF16, KDA_F32) <= 3e-3);
}
END_TEST

Suite *suite_compare(void)
{
    Suite *suite = suite_create("compare");
    TCase *numbers = tcase_create("numbers"), *measures = tcase_create("measures");
    tcase_add_test(numbers, test_f16_every_value);
    tcase_add_test(numbers, test_rounding_to_nearest_even);
    tcase_add_test(numbers, test_bf16_keeps_what_is_not_finite);
    tcase_add_test(measures, test_ratios_by_hand);
    tcase_add_test(measures, test_one_wrong_element_fails);
    tcase_add_test(measures, test_last_window_takes_the_rest);
    tcase_add_test(measures, test_small_window_counts_as_a_part_of_the_whole);
    tcase_add_test(measures, test_not_finite_fails);
    tcase_add_test(measures, test_reference_of_zeros);
    tcase_add_test(measures, test_no_elements);
    tcase_add_test(measures, test_bounds_admit_one_rounding);
    suite_add_tcase(suite, numbers);
    suite_add_tcase(suite, measures);
    return suite;
}

/* The vector levels' own arithmetic, in the build's KDA_VECTOR_BYTES: exponentials against libm in
 * f64, over floats of all sizes, and conversions against those of convert.h, bit for bit.
 *
 * SPDX-License-Identifier: MIT */
#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "convert.h"
#include "cpu.h"
#include "vector_math.h"

enum { SKIPPED = 77 /* meson's exit code */, STRIDE = 1009 /* of the floats tried */ };

typedef vf (*vector_function)(vf);
typedef double (*reference)(double);

static vf vector_exp(vf x)
{
    return vexp(x);
}

static vf vector_softplus(vf x)
{
    return vsoftplus(x);
}

static vf vector_sigmoid(vf x)
{
    return vsigmoid(x);
}

static double softplus(double x)
{
    return x > 40 ? x : log1p(exp(x));
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* Units in the last place of a float near x; below the normal numbers they are all the same. */
static double ulp(double x)
{
    int exponent;
    frexp(x, &exponent);
    return ldexp(1, exponent - 24 > -149 ? exponent - 24 : -149);
}

static double error_at(vector_function f, reference wanted, float x)
{
    const double want = wanted((double)x);
    const float got = f(all(x))[W - 1];
    if (fabs(want) > 3.4028235e38)
        return isinf(got) ? 0 : INFINITY;
    return fabs((double)got - want) / ulp(want);
}

static void hold(const char *name, vector_function f, reference wanted, double bound)
{
    double worst = 0;
    float where = 0;
    for (uint32_t sign = 0; sign < 2; sign++) {
        for (uint32_t bits = 0; bits < 0x7f800000; bits += STRIDE) {
            const float x = kda_from_bits(sign << 31 | bits);
            const double error = error_at(f, wanted, x);
            if (!(error <= worst)) {
                worst = error;
                where = x;
            }
        }
    }
    ck_assert_msg(worst <= bound, "%s is off by %g ulp at %.9g", name, worst, where);
}

START_TEST(test_errors)
{
    hold("exp", vector_exp, exp, 1.1);
    hold("softplus", vector_softplus, softplus, 2.6);
    hold("sigmoid", vector_sigmoid, sigmoid, 2.2);
}
END_TEST

START_TEST(test_limits)
{
    static const struct {
        float x, exp, softplus, sigmoid;
    } rows[] = {{0, 1, 0.693147180559945f, 0.5f},
                {-0.0f, 1, 0.693147180559945f, 0.5f},
                {-1000, 0, 0, 0},
                {1000, INFINITY, 1000, 1},
                {-INFINITY, 0, 0, 0},
                {INFINITY, INFINITY, INFINITY, 1},
                {-104, 0, 0, 0},
                {89, INFINITY, 89, 1}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const vf x = all(rows[i].x);
        for (int lane = 0; lane < W; lane++) {
            ck_assert(vexp(x)[lane] == rows[i].exp);
            ck_assert(vsoftplus(x)[lane] == rows[i].softplus);
            ck_assert(vsigmoid(x)[lane] <= rows[i].sigmoid + 1e-38f &&
                      vsigmoid(x)[lane] >= rows[i].sigmoid);
        }
    }
    for (uint32_t sign = 0; sign < 2; sign++) {
        const vf nan = all(kda_from_bits(sign << 31 | 0x7fc00000));
        ck_assert(isnan(vexp(nan)[0]) && isnan(vsoftplus(nan)[0]) && isnan(vsigmoid(nan)[0]));
    }
}
END_TEST

/* Every 16-bit number. */
START_TEST(test_widening)
{
    for (uint32_t h = 0; h < 0x10000; h += (uint32_t)W) {
        uint16_t in[W];
        for (int i = 0; i < W; i++)
            in[i] = (uint16_t)(h + (uint32_t)i);
        const vf f16 = get_f16((const char *)in), bf16 = get_bf16((const char *)in);
        for (int i = 0; i < W; i++) {
            ck_assert_uint_eq(kda_to_bits(f16[i]), kda_to_bits(kda_from_f16(in[i])));
            ck_assert_uint_eq(kda_to_bits(bf16[i]), kda_to_bits(kda_from_bf16(in[i])));
        }
    }
}
END_TEST

static void hold_narrowing(uint32_t bits)
{
    const float x = kda_from_bits(bits);
    uint16_t f16[W], bf16[W];
    put_f16((char *)f16, all(x));
    put_bf16((char *)bf16, all(x));
    if (f16[0] != kda_to_f16(x) || bf16[W - 1] != kda_to_bf16(x))
        ck_abort_msg("%#x: f16 %#x, not %#x; bf16 %#x, not %#x", bits, f16[0], kda_to_f16(x),
                     bf16[W - 1], kda_to_bf16(x));
}

/* Floats of all sizes, NaN among them, and those around each f16 and bf16 and halfway between. */
START_TEST(test_narrowing)
{
    for (uint64_t bits = 0; bits < UINT64_C(1) << 32; bits += STRIDE)
        hold_narrowing((uint32_t)bits);
    for (uint32_t half = 0; half < 1u << 20; half++)
        for (uint32_t near = 0; near < 3; near++)
            hold_narrowing((half << 12) + near - 1);
}
END_TEST

/* Rows of any length: zeros up to a whole vector, nothing beyond. */
START_TEST(test_rows)
{
    for (int type = KDA_F32; type <= KDA_BF16; type++) {
        const size_t size = type == KDA_F32 ? 4 : 2;
        for (int32_t n = 1; n <= 2 * W + 1; n++) {
            const int32_t padded = (n + W - 1) / W * W;
            float in[3 * W], out[3 * W + 1];
            char *stored = malloc((size_t)n * size); /* for the address sanitizer */
            ck_assert(stored);
            for (int32_t i = 0; i < 3 * W; i++)
                in[i] = (float)(i + 1);
            out[padded] = -1;
            store_row(stored, (kda_dtype)type, in, n);
            load_row(out, (kda_dtype)type, stored, n);
            for (int32_t i = 0; i <= padded; i++)
                ck_assert(out[i] == (i < n ? in[i] : i < padded ? 0.0f : -1.0f));
            free(stored);
        }
    }
}
END_TEST

static bool processor_has_them(void)
{
    const kda_vectors vectors = W == 16  ? KDA_VECTORS_512
                                : W == 8 ? KDA_VECTORS_256
                                         : KDA_VECTORS_128;
    return kda_cpu_level_choose(vectors)->vectors == vectors;
}

int main(void)
{
    if (!processor_has_them())
        return SKIPPED;
    TCase *tcase = tcase_create("vector_math");
    tcase_add_test(tcase, test_errors);
    tcase_add_test(tcase, test_limits);
    tcase_add_test(tcase, test_widening);
    tcase_add_test(tcase, test_narrowing);
    tcase_add_test(tcase, test_rows);
    tcase_set_timeout(tcase, 60);
    Suite *suite = suite_create("vector_math");
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}

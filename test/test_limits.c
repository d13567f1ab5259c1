/* What a device can do at best, measured on PoCL: every rate is there, and the kernel of bf16
 * products runs in its plain form too.
 *
 * SPDX-License-Identifier: MIT */
#include "bench.h"
#include "spec.h"

#include <check.h>
#include <stdlib.h>

START_TEST(test_limits)
{
    kda_context_params params = *kda_context_params(.backend = KDA_AUTO);
    struct bench b;
    ck_assert_int_eq(spec_resolve("Portable", &params), 0);
    ck_assert_msg(bench_open(&b, &params, false), "%s", b.failure.why);
    bench_limits(&b);
    ck_assert_double_gt(b.copy_bytes_s, 1e8);
    ck_assert_double_gt(b.f32_flops_s, 1e8);
    ck_assert_double_gt(b.empty_s, 0);
    ck_assert_double_eq(b.matrix_flops_s, 0); /* it has no such units */
    ck_assert_double_gt(bench_matrix_flops(&b, false), 0);
    bench_close(&b);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("limits");
    TCase *tcase = tcase_create("limits");
    tcase_add_test(tcase, test_limits);
    tcase_set_timeout(tcase, 0);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* Inputs that have broken implementations of this operation, each the smallest that shows its kind
 * of fault, with the answer known beforehand.
 *
 * Not applicable yet: gradients; short convolution; several devices.
 *
 * SPDX-License-Identifier: MIT */
#include "harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* "4 f32 ulps" */
static const double ulps = 5e-7;

static double value(const struct call *call, int id, int64_t i)
{
    return tensor_get(&call->tensor[id], i);
}

static void probe_v(const char *text, double tolerance)
{
    struct call *call = run(PROBE_V "%s", text);
    check_numbers(call, OUT, "count", tolerance);
    check_near(call, FINAL_STATE, 0, (double)call->tokens, tolerance);
}

START_TEST(test_probe_v_any_decay)
{
    probe_v("lengths=64 g=0", 0);
    probe_v("lengths=64 g=-3", ulps);
    probe_v("lengths=64 g=-5", ulps);
    probe_v("lengths=60 g=-5 dtype=bf16", ulps);
    probe_v("lengths=64 g=strong", ulps);
    probe_v("lengths=64 g=-0.001,-5,0,-20", ulps);
}
END_TEST

START_TEST(test_probe_v_softplus_beyond_bound)
{
    probe_v("lengths=16 gate=softplus a_log=0 dt_bias=0 g=6", ulps);
}
END_TEST

START_TEST(test_probe_v_bounded_saturated)
{
    probe_v("lengths=60 gate=bounded bound=-5 a_log=0 g=20", ulps);
}
END_TEST

START_TEST(test_probe_d_strong)
{
    struct call *call = run(PROBE_D "lengths=64 g=-5");
    check_near(call, OUT, 0, 1, 0);
    check_near(call, OUT, 1, 6.737947e-3, ulps);
    check_near(call, OUT, 15, 2.678637e-33, 1e-5);
    check_near(call, OUT, 17, 1.2161e-37, 1e-4);
    for (int64_t t = 18; t < 64; t++)
        ck_assert(value(call, OUT, t) >= 0 && value(call, OUT, t) < 1e-38);
}
END_TEST

START_TEST(test_probe_d_slow)
{
    struct call *call = run(PROBE_D "lengths=65 max_tokens=129 g=-0.01");
    check_near(call, OUT, 63, 0.5325918, 5e-6);
    check_near(call, OUT, 64, 0.5272924, 5e-6);
}
END_TEST

START_TEST(test_final_state_any_length)
{
    static const int lengths[] = {1, 2, 31, 63, 64, 65, 127, 128, 129};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        struct call *call = run(PROBE_D "lengths=%d max_tokens=129 g=-0.01", lengths[i]);
        check_near(call, FINAL_STATE, 0, exp(-0.01 * (lengths[i] - 1)), 1e-5);
    }
}
END_TEST

START_TEST(test_channels_decay_apart)
{
    const double s = sqrt(0.5);
    struct call *call = make("K=2 lengths=16 scale=1 q=1 k=0 beta=1 v=1 g=0,-20");
    tensor_set(&call->tensor[K], 0, s);
    tensor_set(&call->tensor[K], 1, s);
    run_plan(plan_for(call), call);
    check_near(call, OUT, 0, 2 * s, ulps);
    for (int64_t t = 1; t < 16; t++)
        check_near(call, OUT, t, s, ulps);
    check_near(call, FINAL_STATE, 0, s, ulps);
    check_near(call, FINAL_STATE, 1, 0, ulps);
}
END_TEST

START_TEST(test_reset_forgets_everything)
{
    gives("lengths=3 q=1 k=1 beta=0.5 v=8,4,2 g=0,-inf,0", "4,2,2", "2", 0);
    gives("lengths=3 q=1 k=1 beta=0.5 v=8,4,2 g=0,-1e30,0", "4,2,2", "2", 0);
    gives("lengths=3 q=1 k=1 beta=0.5 v=8,4,2 g=0,-1000,0", "4,2,2", "2", 0);
    gives("lengths=3 q=1 k=1 beta=0.5 v=8,4,2 g=0,-inf,0 dtype=f16", "4,2,2", "2", 0);
    gives("lengths=2 q=1 k=0 beta=1 v=9 g=-inf state=1e30", "0", "0", 0);
}
END_TEST

/* Refused where the library sees it; elsewhere it multiplies, as the formula says. */
START_TEST(test_positive_log_gate)
{
    struct call *call = make("q=1 k=0 beta=0 v=0 g=5 state=1");
    struct call *before = copy(call);
    kda_plan *plan = plan_for(call);
    kda_args args = call_args(call);
    ck_assert_int_eq(kda_execute(plan, &args), KDA_INVALID);
    same_results(call, before);
    if (device.id) {
        run_device(plan, call);
        check_near(call, FINAL_STATE, 0, exp(5), ulps);
    }
}
END_TEST

/* exp(g) is right within 3 ulps of 2^-24 (OpenCL 1.2, 7.4), and the same factor comes 1500 times:
 * 3 * 2^-24 * 1500 = 2.7e-4. A decay in 16 bits would be 1. */
START_TEST(test_decay_near_one_keeps_its_type)
{
    struct call *call =
        run(RECURRENT "lengths=1500 dtype=bf16 g_dtype=f32 q=0 k=0 v=0 g=-5e-4 state=1 slack=27");
    check_near(call, FINAL_STATE, 0, exp(-0.75), 2.7e-4);
    call = run(RECURRENT "lengths=1500 dtype=f16 g_dtype=f32 q=0 k=0 v=0 g=-1e-4 state=1 slack=27");
    check_near(call, FINAL_STATE, 0, exp(-0.15), 2.7e-4);
}
END_TEST

START_TEST(test_neutral_tokens_change_nothing)
{
    struct call *call = make("lengths=7 q=1 k=1 v=1000,1000,1000,1,2,3,4 beta=1 g=-1");
    for (int64_t t = 0; t < 3; t++) {
        tensor_set(&call->tensor[G], t, 0);
        tensor_set(&call->tensor[BETA], t, 0);
    }
    run_plan(plan_for(call), call);
    struct call *alone = run(PROBE_V "lengths=4 g=-1");
    same_rows(OUT, call, 3, alone, 0, 4);
    same_rows(FINAL_STATE, call, 0, alone, 0, 1);
}
END_TEST

START_TEST(test_repeated_keys)
{
    gives("lengths=64 q=1 k=1 g=0 v=-1,1 beta=1", "-1,1", "1", 0);
    struct call *call = run("lengths=64 q=1 k=1 g=0 v=-1,1 beta=0.5");
    check_near(call, OUT, 0, -0.5, 0);
    check_near(call, OUT, 1, 0.25, 0);
    check_near(call, OUT, 2, -0.375, 0);
    check_near(call, OUT, 62, -1. / 3, 2e-6);
    check_near(call, OUT, 63, 1. / 3, 2e-6);
    call = run("lengths=64 q=1 k=1 g=-3.07e-5 v=-1,1 beta=0.99966465");
    check_near(call, OUT, 63, 0.99932953, 1e-5);
}
END_TEST

START_TEST(test_repeated_keys_fast_decay)
{
    struct call *call = run("lengths=64 q=1 k=1 g=-20 v=-1,1 beta=0.5");
    for (int64_t t = 1; t < 64; t++)
        check_near(call, OUT, t, 0.5 * value(call, V, t) + 0.5 * exp(-20) * value(call, OUT, t - 1),
                   ulps);
}
END_TEST

START_TEST(test_keys_longer_than_one_grow)
{
    gives("lengths=4 q=1 k=2 beta=1 g=0 v=0 state=1", "-3,9,-27,81", "81", 0);
}
END_TEST

START_TEST(test_error_is_against_decayed_state)
{
    gives("q=1 k=1 beta=1 v=0 g=-0.6931471805599453 state=1", "0", "0", 0);
}
END_TEST

START_TEST(test_later_values_leave_no_trace)
{
    struct call *call = run("K=16 V=4 lengths=16 v=last");
    for (int64_t i = 0; i < 15 * 4; i++)
        check_near(call, OUT, i, 0, 0);
    gives("lengths=2 q=1 k=1 g=0 beta=0.5 v=1,0", "0.5,0.25", "0.25", 0);
}
END_TEST

START_TEST(test_future_gate_changes_no_output)
{
    struct call *a = make("K=128 V=128 lengths=22 dtype=bf16 g=slow"), *b = copy(a);
    for (int64_t i = 21 * 128; i < 22 * 128; i++) {
        tensor_set(&a->tensor[G], i, -0.001);
        tensor_set(&b->tensor[G], i, -5);
    }
    kda_plan *plan = plan_for(a);
    run_plan(plan, a);
    run_plan(plan, b);
    same_rows(OUT, a, 0, b, 0, 21);
}
END_TEST

START_TEST(test_error_is_not_rounded_before_subtraction)
{
    gives("dtype=bf16 q=1 k=1 g=0 beta=1 v=4096 state=4098", "4096", "4096", 0);
    gives("dtype=f16 q=1 k=1 g=0 beta=1 v=4096 state=4098", "4096", "4096", 0);
}
END_TEST

static double after_calls(int times, const char *state_dtype)
{
    struct call *call = make("dtype=bf16 state_dtype=%s in_place=1 q=1 k=1 g=0 beta=0.001953125 "
                             "v=512 state=256",
                             state_dtype);
    for (int i = 0; i < times; i++)
        run_plan(plan_for(call), call);
    return value(call, FINAL_STATE, 0);
}

/* A step to 512 of 2^-9 of the distance, too small for a state of 16 bits. */
START_TEST(test_state_is_kept_in_its_own_type)
{
    ck_assert_double_eq_tol(after_calls(32, "f32"), 512 - 256 * pow(1 - 0x1p-9, 32), 1e-4);
    ck_assert_double_eq(after_calls(32, "bf16"), 256);
}
END_TEST

/* Values beside and on the middle between two stored ones, on to the ends of the range. */
static const float rounding[] = {1 + 0x1p-8f,  1 + 3 * 0x1p-8f,  1 + 0x1.02p-8f,   1 + 0x1.fep-9f,
                                 1 + 0x1p-11f, 1 + 3 * 0x1p-11f, -1 - 0x1.02p-11f, 1 + 0x1.fep-12f,
                                 65519,        -65519,           0x1p-24f,         0x1.8p-24f,
                                 0x1p-25f,     0x1.02p-25f,      -0x1.234568p-15f, 0x1.fffp-15f};

START_TEST(test_states_round_to_nearest_even)
{
    static const char *const types[] = {"f16", "bf16"};
    struct call *call = make("V=16 q=1 k=1 beta=1 v=0 g=0 state_dtype=%s", types[_i]);
    struct call *right = copy(call);
    for (int64_t i = 0; i < 16; i++) {
        tensor_set(&call->tensor[V], i, rounding[i]);
        tensor_set(&right->tensor[FINAL_STATE], i, rounding[i]);
    }
    run_plan(plan_for(call), call);
    same_rows(FINAL_STATE, call, 0, right, 0, 1);
}
END_TEST

/* Out is beta v, multiplied in f32. */
START_TEST(test_outputs_round_to_nearest_even)
{
    static const char *const types[] = {"f16", "bf16"};
    struct call *call = make("V=256 lengths=8 q=1 k=1 v=normal g=-inf beta=uniform dtype=%s "
                             "beta_dtype=f32",
                             types[_i]);
    struct call *right = copy(call);
    for (int64_t i = 0; i < 8 * 256; i++)
        tensor_set(&right->tensor[OUT], i,
                   (float)value(call, BETA, i / 256) * (float)value(call, V, i));
    run_plan(plan_for(call), call);
    same_rows(OUT, call, 0, right, 0, 8);
}
END_TEST

START_TEST(test_beta_is_not_rounded_after_sigmoid)
{
    struct call *call = run("dtype=bf16 activation=sigmoid beta=3 q=1 k=1 g=0 v=1000");
    check_near(call, FINAL_STATE, 0, 952.57413, ulps);
    call = run("dtype=bf16 activation=sigmoid beta=-5 q=1 k=1 g=0 v=1000");
    check_near(call, FINAL_STATE, 0, 6.692851, ulps);
}
END_TEST

START_TEST(test_beta_forms_differ)
{
    gives("q=1 k=1 g=0 v=1 beta=0", "0", "0", 0);
    gives("q=1 k=1 g=0 v=1 beta=0 activation=sigmoid", "0.5", "0.5", 0);
    gives("q=1 k=1 g=0 v=1 beta=0 activation=sigmoid2", "1", "1", 0);
    gives("q=1 k=1 g=0 v=3 beta=no rule=additive", "3", "3", 0);
    gives("q=1 k=1 g=0 v=3 beta=2 rule=additive", "6", "6", 0);
}
END_TEST

START_TEST(test_gates_differ)
{
    gives("gate=softplus a_log=0 dt_bias=0 g=0 q=1 k=0 state=1", "0.5", "0.5", ulps);
    gives("gate=bounded a_log=0 dt_bias=0 g=0 q=1 k=0 state=1", "0.0820850", "0.0820850", ulps);
    gives("gate=bounded bound=-2 g=0 q=1 k=0 state=1", "0.36787944", "0.36787944", ulps);
    gives("gate=log g=-1 q=1 k=0 state=1", "0.36787944", "0.36787944", ulps);
    gives("gate=none q=1 k=0 state=1", "1", "1", 0);
}
END_TEST

START_TEST(test_bias_is_per_channel)
{
    gives("H=2 K=2 gate=softplus a_log=0 g=0 dt_bias=0,10 k=0 q=1,0 scale=1 state=1", "0.5",
          "0.5,4.539787e-5", 2e-6);
}
END_TEST

START_TEST(test_bias_per_head_with_gate_per_head)
{
    gives("H=2 K=2 per_head=1 gate=softplus a_log=0 g=0 dt_bias=0,10 k=0 q=1,0 scale=1 state=1",
          "0.5,4.539787e-5", "0.5,0.5,4.539787e-5,4.539787e-5", 2e-6);
}
END_TEST

START_TEST(test_softplus_extremes)
{
    gives("gate=softplus a_log=100 g=-200 q=1 k=0 state=1", "1", "1", 0);
    gives("gate=softplus a_log=0 g=100 q=1 k=0 state=1", "0", "0", ulps);
    gives("gate=softplus a_log=0 g=1000 q=1 k=0 state=1", "0", "0", 0);
    gives("gate=softplus a_log=100 g=1000 q=1 k=0 state=1", "0", "0", 0);
    gives("gate=softplus a_log=0 g=30 q=1 k=0 state=1", "9.357623e-14", "9.357623e-14", 4e-6);
}
END_TEST

START_TEST(test_bounded_saturated)
{
    gives("gate=bounded a_log=100 g=1 q=1 k=0 state=1", "6.737947e-3", "6.737947e-3", ulps);
    gives("gate=bounded a_log=100 g=-1 q=1 k=0 state=1", "1", "1", 0);
    gives("gate=bounded a_log=100 g=0 q=1 k=0 state=1", "0.0820850", "0.0820850", ulps);
}
END_TEST

TCase *tcase_numbers(void)
{
    TCase *tcase = tcase_create("numbers");
    tcase_add_checked_fixture(tcase, harness_setup, harness_teardown);
    tcase_add_test(tcase, test_probe_v_any_decay);
    tcase_add_test(tcase, test_probe_v_softplus_beyond_bound);
    tcase_add_test(tcase, test_probe_v_bounded_saturated);
    tcase_add_test(tcase, test_probe_d_strong);
    tcase_add_test(tcase, test_probe_d_slow);
    tcase_add_test(tcase, test_final_state_any_length);
    tcase_add_test(tcase, test_channels_decay_apart);
    tcase_add_test(tcase, test_reset_forgets_everything);
    tcase_add_test(tcase, test_positive_log_gate);
    tcase_add_test(tcase, test_decay_near_one_keeps_its_type);
    tcase_add_test(tcase, test_neutral_tokens_change_nothing);
    tcase_add_test(tcase, test_repeated_keys);
    tcase_add_test(tcase, test_repeated_keys_fast_decay);
    tcase_add_test(tcase, test_keys_longer_than_one_grow);
    tcase_add_test(tcase, test_error_is_against_decayed_state);
    tcase_add_test(tcase, test_later_values_leave_no_trace);
    tcase_add_test(tcase, test_future_gate_changes_no_output);
    tcase_add_test(tcase, test_error_is_not_rounded_before_subtraction);
    tcase_add_test(tcase, test_state_is_kept_in_its_own_type);
    tcase_add_loop_test(tcase, test_states_round_to_nearest_even, 0, 2);
    tcase_add_loop_test(tcase, test_outputs_round_to_nearest_even, 0, 2);
    tcase_add_test(tcase, test_beta_is_not_rounded_after_sigmoid);
    tcase_add_test(tcase, test_beta_forms_differ);
    tcase_add_test(tcase, test_gates_differ);
    tcase_add_test(tcase, test_bias_is_per_channel);
    tcase_add_test(tcase, test_bias_per_head_with_gate_per_head);
    tcase_add_test(tcase, test_softplus_extremes);
    tcase_add_test(tcase, test_bounded_saturated);
    return tcase;
}

Suite *suite_cases(enum level level)
{
    Suite *suite = suite_create("cases");
    suite_add_tcase(suite, tcase_worked());
    if (level == QUICK)
        return suite;
    suite_add_tcase(suite, tcase_numbers());
    suite_add_tcase(suite, tcase_sequences());
    suite_add_tcase(suite, tcase_serving());
    suite_add_tcase(suite, tcase_sizes(level));
    suite_add_tcase(suite, tcase_soak(level));
    suite_add_tcase(suite, tcase_decode(level == FULL ? 100000 : 1000));
    if (level == FULL) {
        suite_add_tcase(suite, tcase_large());
        suite_add_tcase(suite, tcase_repeats());
    }
    return suite;
}

/* The same for where things lie: heads, layouts, strides, sequences, pools, checkpoints.
 *
 * SPDX-License-Identifier: MIT */
#include "harness.h"

#include <stdlib.h>
#include <string.h>

/* "4 f32 ulps" */
static const double ulps = 5e-7;

static double value(const struct call *call, int id, int64_t i)
{
    return tensor_get(&call->tensor[id], i);
}

START_TEST(test_value_heads_read_their_key_head)
{
    gives("H=2 HV=4 K=2 scale=1 q=1,0,0,1 k=0 g=0 state=1,2", "1,1,2,2", "1,2", 0);
    gives("H=2 HV=4 K=2 scale=1 q=1,0,0,1 k=0 g=0 state=1,2 map=modulo", "1,2,1,2", "1,2", 0);
}
END_TEST

START_TEST(test_gates_are_per_value_head)
{
    gives("HV=2 q=1 k=0 g=-1,-2 state=1", "0.36787944,0.13533528", "0.36787944,0.13533528", ulps);
}
END_TEST

START_TEST(test_state_layout_is_the_same_in_and_out)
{
    static const char *const layouts[] = {"kv", "vk"};
    static const int element[] = {1, 2}; /* of key channel 0, value channel 1 */
    for (int i = 0; i < 2; i++) {
        struct call *a =
            make("K=2 V=3 scale=1 q=1,0 k=1,0 v=0,1,0 g=0 beta=1 layout=%s state=0", layouts[i]);
        kda_plan *plan = plan_for(a);
        run_plan(plan, a);
        check_numbers(a, OUT, "0,1,0", 0);
        for (int j = 0; j < 6; j++)
            check_near(a, FINAL_STATE, j, j == element[i], 0);
        struct call *b = copy(a);
        for (int j = 0; j < 6; j++)
            tensor_set(&b->tensor[INITIAL_STATE], j, value(a, FINAL_STATE, j));
        call_fill(b, K, "0");
        run_plan(plan, b);
        check_numbers(b, OUT, "0,1,0", 0);
    }
}
END_TEST

START_TEST(test_columns_of_wider_rows)
{
    struct call *call = run("HV=2 pad=0,1,0 q=1 k=1 g=0 v=1 beta=5,6");
    check_numbers(call, OUT, "5,6", 0);
}
END_TEST

/* A gate row that is read past its end meets 1000, and NaN in every other call. */
START_TEST(test_gate_rows_end_at_key_dim)
{
    static const int dims[] = {60, 100, 96, 80, 33, 1};
    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++) {
        struct call *a = make("K=%d V=16", dims[i]), *b = copy(a);
        const float beyond = 1000;
        for (int j = 0; j < 256; j++)
            memcpy((char *)tensor_at(&b->tensor[G], dims[i] - 1) + sizeof(beyond) * (size_t)(j + 1),
                   &beyond, sizeof(beyond));
        kda_plan *plan = plan_for(a);
        run_plan(plan, a);
        run_plan(plan, b);
        same_results(a, b);
    }
}
END_TEST

START_TEST(test_odd_value_dims_are_written_whole)
{
    static const int dims[] = {96, 80, 48, 64, 200, 7};
    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++)
        run("K=64 V=%d lengths=3 state=normal", dims[i]);
}
END_TEST

START_TEST(test_short_prompt_then_decode)
{
    static const int lengths[] = {1, 2, 3, 5, 15, 17};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        struct call *prompt = run(PROBE_V "lengths=%d max_tokens=17 g=-2", lengths[i]);
        check_numbers(prompt, OUT, "count", ulps);
        struct call *next = make("max_tokens=17 q=1 k=1 beta=1 v=7 g=-2 state=0");
        tensor_set(&next->tensor[INITIAL_STATE], 0, value(prompt, FINAL_STATE, 0));
        run_plan(plan_for(next), next);
        check_near(next, OUT, 0, 7, ulps);
    }
}
END_TEST

START_TEST(test_length_one_over_a_power_of_two)
{
    run("K=64 V=32 lengths=33 state=normal");
    run("K=64 V=32 lengths=1 state=normal");
}
END_TEST

START_TEST(test_empty_sequences_pass_their_state)
{
    gives("lengths=0,3,0,2 q=1 k=0 g=0 state=1,2,3,4", "2,2,2,4,4", "1,2,3,4", 0);
    run("H=2 K=16 V=8 lengths=0,3,0,0,2,0 state=normal cu=i64");
    run("H=2 K=16 V=8 lengths=0,3,0,0,2,0 layout=vk");
    run("H=2 K=16 V=8 lengths=5,0 state=normal state_dtype=bf16 in_place=1");
    run("H=2 K=16 V=8 lengths=2,0,1,0 state=normal state_dtype=f16 index=3,0,-1,1 slots=4");
}
END_TEST

START_TEST(test_only_empty_sequences)
{
    gives("lengths=0,0 q=0 k=0 v=0 g=0 beta=0 state=5,6", "0", "5,6", 0);
    gives("lengths=0,0 cu=i32 q=0 k=0 v=0 g=0 beta=0", "0", "0", 0);
    struct call *call = make("K=16 V=8 lengths=0 state=normal");
    for (int id = 0; id < TENSORS; id++)
        call->tensor[id].present &= id == INITIAL_STATE || id == FINAL_STATE;
    run_plan(plan_for(call), call);
}
END_TEST

/* A NaN is a state like any other when a sequence is empty: signalling ones show a conversion. */
START_TEST(test_empty_sequence_copies_any_bits)
{
    static const char *const types[] = {"f32", "f16", "bf16"};
    static const uint32_t nans[] = {0x7f800001, 0x7c01, 0x7f81};
    struct call *call = make("K=4 V=4 lengths=0,1 q=0 k=0 state=normal state_dtype=%s", types[_i]);
    for (int64_t i = 0; i < 16; i += 3)
        memcpy(tensor_at(&call->tensor[INITIAL_STATE], i), &nans[_i],
               call->tensor[INITIAL_STATE].size);
    struct call *right = copy(call), *on_device = copy(call);
    for (int64_t i = 0; i < 16; i++)
        memcpy(tensor_at(&right->tensor[FINAL_STATE], i),
               tensor_at(&call->tensor[INITIAL_STATE], i), call->tensor[INITIAL_STATE].size);
    kda_plan *plan = plan_for(call);
    kda_args args = call_args(call);
    ck_assert_int_eq(kda_execute(plan, &args), KDA_OK);
    same_rows(FINAL_STATE, call, 0, right, 0, 1);
    if (!device.id)
        return;
    struct buffers *buffers = upload(on_device, plan, device.context);
    ck_assert_int_eq(kda_enqueue(plan, device.queue, &buffers->args, 0, NULL, NULL), KDA_OK);
    download(on_device, buffers, device.queue);
    same_rows(FINAL_STATE, on_device, 0, right, 0, 1);
}
END_TEST

START_TEST(test_sequences_end_before_tokens)
{
    struct call *call = make("K=8 V=4 lengths=5 cu=i32");
    tensor_set(&call->tensor[CU_SEQLENS], 1, 4);
    struct call *before = copy(call);
    kda_plan *plan = plan_for(call);
    kda_args args = call_args(call);
    ck_assert_int_eq(kda_execute(plan, &args), KDA_INVALID);
    same_results(call, before);
    if (device.id)
        run_device(plan, call);
}
END_TEST

START_TEST(test_many_sequences_of_one_token)
{
    run("H=2 K=32 V=16 lengths=1x1000 state=normal g=decay");
}
END_TEST

/* The last is -2^32 + 1: negative as a whole only. */
START_TEST(test_negative_index_skips)
{
    static const char *const indices[] = {"-1", "-2147483648", "-1 index_type=i64",
                                          "-4294967295 index_type=i64"};
    struct call *call =
        run("lengths=1x3 slots=3 state=10,20,30 k=0 q=1 g=0 in_place=1 index=2,0,%s", indices[_i]);
    check_numbers(call, OUT, "30,10,0", 0);
    check_numbers(call, FINAL_STATE, "10,20,30", 0);
    run("K=8 V=4 lengths=3,2,4 slots=1 state=normal index=-7,-2,%s", indices[_i]);
}
END_TEST

START_TEST(test_slot_zero_is_a_slot)
{
    gives("lengths=1x3 index=2,-1,0 slots=3 state=10,20,30 k=1 beta=1 v=5 q=1 g=0 in_place=1",
          "5,0,5", "5,20,5", 0);
    struct call *call = run("lengths=1x3 index=2,-1,0 slots=3 state=10,20,30 k=1 v=5 beta=1 g=0");
    check_near(call, FINAL_STATE, 0, 5, 0);
}
END_TEST

START_TEST(test_pool_without_initial_state)
{
    run("H=2 K=8 V=4 lengths=3,2 index=4,1 slots=6");
}
END_TEST

/* A plan remembers nothing of the call before. */
START_TEST(test_plan_is_used_for_another_slot)
{
    struct call *call = make("K=8 V=4 lengths=3 index=1 slots=4 state=normal in_place=1");
    kda_plan *plan = plan_for(call);
    run_plan(plan, call);
    tensor_set(&call->tensor[STATE_INDEX], 0, 2);
    run_plan(plan, call);
}
END_TEST

START_TEST(test_plan_keeps_nothing_of_the_last_call)
{
    struct call *secret = make("K=8 V=4 lengths=9 v=1000"), *a = make("K=8 V=4 lengths=9");
    struct call *b = copy(a);
    kda_plan *plan = plan_for(a);
    run_plan(plan, secret);
    run_plan(plan, a);
    run_plan(new_plan(b), b);
    same_results(a, b);
}
END_TEST

START_TEST(test_checkpoints_and_resumption)
{
    struct call *call = make(PROBE_D "lengths=130 g=-0.01 checkpoint=64 state=0");
    kda_plan *plan = plan_for(call);
    run_plan(plan, call);
    check_near(call, CHECKPOINTS, 0, 0.5325918, 1e-5);
    check_near(call, CHECKPOINTS, 1, 0.2808316, 1e-5);
    check_near(call, FINAL_STATE, 0, 0.2752708, 1e-5);
    struct call *rest = slice(call, 0, 128, 130);
    tensor_set(&rest->tensor[INITIAL_STATE], 0, value(call, CHECKPOINTS, 1));
    run_plan(plan, rest);
    same_rows(FINAL_STATE, rest, 0, call, 0, 1);
}
END_TEST

START_TEST(test_checkpoints_count_from_each_start)
{
    run(RECURRENT "H=2 K=8 V=4 lengths=3,10,0,5,4,16 checkpoint=4 state=normal");
    run(RECURRENT "H=2 K=8 V=4 lengths=7x4 checkpoint=1 state_dtype=bf16 layout=vk");
    run(RECURRENT "H=2 K=8 V=4 lengths=3,2 checkpoint=6");
    run(RECURRENT "K=8 V=4 lengths=9,9 checkpoint=3 index=-1,0 slots=2 state=normal");
    run("H=2 K=32 V=16 lengths=30,100,0,50,40,160 checkpoint=64 state=normal");
    run("H=2 K=8 V=4 lengths=30,100 chunk=64 checkpoint=16 state=normal"); /* no chunk fits */
    run("H=2 K=40 V=40 lengths=30,100 chunk=32 checkpoint=48 state=normal");
}
END_TEST

START_TEST(test_decode_of_models)
{
    for (int n = 1; n <= 4; n *= 2)
        run("H=16 HV=32 K=128 V=128 lengths=1x%d max_tokens=4 max_sequences=4 dtype=bf16 "
            "state=normal norm=1 gate=bounded "
            "a_log=rate dt_bias=normal activation=sigmoid",
            n);
}
END_TEST

START_TEST(test_plan_says_what_runs)
{
    char text[256], start[8];
    kda_plan *plan = plan_for(make(RECURRENT "K=64 V=64"));
    ck_assert(!kda_plan_workspace(plan) == !!device.id); /* none but the CPU backend's own */
    size_t length = kda_plan_describe(plan, text, sizeof(text));
    ck_assert_uint_eq(length, strlen(text));
    ck_assert_ptr_ne(strstr(text, "recurrent"), NULL);
    ck_assert_uint_eq(kda_plan_describe(plan, start, sizeof(start)), length);
    ck_assert(!strncmp(start, text, sizeof(start) - 1));
}
END_TEST

TCase *tcase_sequences(void)
{
    TCase *tcase = tcase_create("sequences");
    tcase_add_checked_fixture(tcase, harness_setup, harness_teardown);
    tcase_add_test(tcase, test_value_heads_read_their_key_head);
    tcase_add_test(tcase, test_gates_are_per_value_head);
    tcase_add_test(tcase, test_state_layout_is_the_same_in_and_out);
    tcase_add_test(tcase, test_columns_of_wider_rows);
    tcase_add_test(tcase, test_gate_rows_end_at_key_dim);
    tcase_add_test(tcase, test_odd_value_dims_are_written_whole);
    tcase_add_test(tcase, test_short_prompt_then_decode);
    tcase_add_test(tcase, test_length_one_over_a_power_of_two);
    tcase_add_test(tcase, test_empty_sequences_pass_their_state);
    tcase_add_test(tcase, test_only_empty_sequences);
    tcase_add_loop_test(tcase, test_empty_sequence_copies_any_bits, 0, 3);
    tcase_add_test(tcase, test_sequences_end_before_tokens);
    tcase_add_test(tcase, test_many_sequences_of_one_token);
    tcase_add_loop_test(tcase, test_negative_index_skips, 0, 4);
    tcase_add_test(tcase, test_slot_zero_is_a_slot);
    tcase_add_test(tcase, test_pool_without_initial_state);
    tcase_add_test(tcase, test_plan_is_used_for_another_slot);
    tcase_add_test(tcase, test_plan_keeps_nothing_of_the_last_call);
    tcase_add_test(tcase, test_checkpoints_and_resumption);
    tcase_add_test(tcase, test_checkpoints_count_from_each_start);
    tcase_add_test(tcase, test_decode_of_models);
    tcase_add_test(tcase, test_plan_says_what_runs);
    return tcase;
}

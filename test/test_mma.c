/* The matrix-unit engine: every option of a problem that it takes, beside most others, and the
 * relations between calls that hold to the bit. On a CPU its kernels are plain OpenCL C, which the
 * quick ones of their compilers build in seconds.
 *
 * SPDX-License-Identifier: MIT */
#include "harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MMA "engine=mma schedule=chunkwise K=128 dtype=bf16 " /* a K behind it counts instead */
#define SOFTPLUS "gate=softplus a_log=rate dt_bias=normal "
#define BOUNDED "gate=bounded a_log=rate dt_bias=normal "
#define MODEL "norm=1 activation=sigmoid state=normal "
#define FIFTEEN(x)                                                                                 \
    x "," x "," x "," x "," x "," x "," x "," x "," x "," x "," x "," x "," x "," x "," x
#define K64 "K=64 checkpoint=64 " MODEL BOUNDED
/* Cut, with gates so slow that every segment counts to the end. */
#define CUT "segment=64 gate=softplus a_log=-6 dt_bias=normal " MODEL

/* The value of a fact of the device's; "" if there is none of that name. */
static const char *fact(const char *name)
{
    kda_fact facts[64];
    size_t count = kda_context_facts(device.ctx, facts, 64);
    for (size_t i = 0; i < count && i < 64; i++)
        if (!strcmp(facts[i].name, name))
            return facts[i].value;
    return "";
}

static bool has_matrix_units(void)
{
    return !strncmp(fact("matrix_units"), "yes", 3);
}

/* AMD's or Intel's: a device that is to pretend must not get around them. */
static bool has_other_units(void)
{
    const char *units = fact("matrix_units");
    return strstr(units, "AMD") || strstr(units, "Intel") || getenv("KDA_PRETEND_UNIT");
}

/* Whether the device runs it: by matrix units, or by plain OpenCL C built by PoCL. */
static bool has_mma(void)
{
    return has_matrix_units() ||
           (strstr(device.driver, "Portable Computing Language") && !strcmp(fact("type"), "cpu") &&
            atoi(fact("max_work_group_size")) >= 512);
}
#define NEEDS_MMA                                                                                  \
    NEEDS(device.id, "the CPU backend has no matrix units");                                       \
    NEEDS(has_mma(), "no matrix units, and plain OpenCL C does not fit or would build for "        \
                     "minutes")

static const char *const calls[] = {
    "H=2 V=128 lengths=200 " MODEL BOUNDED,
    "H=1 HV=3 V=64 lengths=64,1,0,130,63,65 map=modulo layout=vk g_dtype=f32 " MODEL SOFTPLUS,
    "H=1 HV=2 V=128 lengths=100 pad=3,1,5 g=decay beta=uniform beta_dtype=f32 state=normal norm=1",
    "H=2 V=64 lengths=70,64 g=strong norm=1 activation=sigmoid2 out_dtype=f32 state=normal",
    "H=1 V=128 lengths=150 g=slow k=same norm=1 state=normal beta=1",
    "H=1 V=128 lengths=150 g=-20 k=same norm=1 state=normal beta=0.5",
    "H=2 V=128 lengths=80 per_head=1 state_dtype=bf16 " MODEL SOFTPLUS,
    "H=2 V=64 lengths=80 gate=none state_dtype=f16 order=heads scale=1 " MODEL,
    "H=2 V=64 lengths=70,80 state_dtype=bf16 pad=4,4,4 " MODEL BOUNDED, /* aligned to 8 bytes */
    "H=2 V=128 lengths=90,3 rule=additive g=decay activation=sigmoid norm=1 state=normal",
    "H=1 V=64 lengths=200,64,130 checkpoint=64 " MODEL BOUNDED,
    "H=2 V=128 lengths=70,5,66 index=4,-1,1 slots=5 in_place=1 cu=i64 " MODEL SOFTPLUS,
    "H=1 V=128 lengths=65 norm=1 q=0 k=0 gate=bounded g=wide state=normal",
    "H=1 V=128 lengths=65 norm=1 q=huge k=huge gate=bounded g=wide state=normal",
    /* Units of memory: from the first write, from the state, from values beyond it; resets. */
    "H=1 V=64 lengths=130 norm=1 g=decay beta=0.0001 v=tiny",
    "H=1 V=64 lengths=130 norm=1 g=slow beta=uniform v=huge state=tiny",
    "H=1 V=64 lengths=130 norm=1 g=strong beta=uniform v=tiny state=tiny scale=1e20",
    "H=1 V=64 lengths=200 norm=1 g=-30,0,-0.1 beta=0,0,0.001,2 v=huge state=huge",
    "H=1 V=64 lengths=65 norm=1 q=0.001,0.0005 k=0.001,-0.0005 g=decay beta=uniform", /* 1e-6 */
    /* By values, not writes, nothing would be left. Zeros chunk by chunk. One column's size. */
    "H=1 V=64 lengths=130 norm=1 g=decay beta=1e-5 v=900,-800,850",
    "H=1 V=64 lengths=260 norm=1 g=decay beta=uniform v=last",
    "H=1 V=64 lengths=70 norm=1 g=decay beta=0.5 v=1 state=" FIFTEEN("1e-4") ",5000",
    "H=1 V=64 lengths=70 norm=1 g=decay beta=1e-5 v=" FIFTEEN("1") ",3e8",
    "H=1 V=64 lengths=130 q=unit k=unit g=decay beta=uniform state=normal", /* in bf16 */
    /* Tensors of f16. */
    "dtype=f16 H=2 V=128 lengths=200,3 " MODEL BOUNDED,
    "dtype=f16 H=1 HV=3 V=64 lengths=64,1,0,65 map=modulo layout=vk g_dtype=f32 out_dtype=f32 "
    "state_dtype=f16 " MODEL SOFTPLUS,
    "dtype=f16 H=2 V=64 lengths=70,64 g=strong norm=1 activation=sigmoid2 beta_dtype=f32 pad=3,1,5 "
    "state=normal",
    "dtype=f16 H=2 V=64 lengths=80 gate=none order=heads rule=additive " MODEL,
    "dtype=f16 H=2 V=64 lengths=80 per_head=1 out_dtype=f32 " MODEL SOFTPLUS,
    "dtype=f16 H=1 V=64 lengths=130 norm=1 q=0,0.001 k=huge g=decay beta=uniform",
    "dtype=f16 H=1 V=64 lengths=65 norm=1 q=1.0015 k=1.0015 g=decay beta=uniform", /* squares */
    "dtype=f16 H=1 V=64 lengths=150 norm=1 g=slow k=same state=normal beta=1",
    "dtype=f16 H=1 V=64 lengths=130 norm=1 g=-30,0,-0.1 beta=0,0,0.001,2 v=huge state=huge",
    "dtype=f16 H=1 V=64 lengths=130 norm=1 g=slow beta=uniform v=65504,-6e-8,1 out_dtype=f32",
    "dtype=f16 H=1 V=64 lengths=130 norm=1 g=slow beta=uniform v=6e-8,-3e-7,1e-6 out_dtype=f32",
    "K=64 H=1 HV=3 V=64 lengths=64,1,0,130,63,65 map=modulo layout=vk g_dtype=f32 " MODEL SOFTPLUS,
    "K=64 H=2 V=128 lengths=90,3 rule=additive per_head=1 state_dtype=bf16 out_dtype=f32 " MODEL
        SOFTPLUS,
    "K=64 H=2 V=64 lengths=80 gate=none state_dtype=f16 order=heads scale=1 " MODEL,
    "K=64 H=1 V=128 lengths=130 q=unit k=unit g=decay beta=uniform state=normal",
    /* Of one program, with those below: each takes long to build. */
    K64 "H=2 V=128 lengths=70,5,66,200 index=4,-1,1,0 slots=5 in_place=1 cu=i64",
    K64 "H=3 V=128 lengths=100,64 pad=3,1,5",
    /* Slots, flags and skipped sequences by cu_seqlens' table, and where lengths are equal. */
    K64 "H=1 V=128 lengths=70,5,0,66,129 index=4,0,-1,2,5 write=1,0,3,-1,6 slots=8 fresh=0,0,1,1,0 "
        "accepted=1,1,1,1,0",
    K64 "H=1 V=128 lengths=66x5 index=4,0,2,-1,3 write=-1,1,2,0,5 slots=6 accepted=1,0,1,1,1 "
        "fresh=0,0,0,0,1 in_place=1",
    K64 "H=1 V=128 lengths=130 beta=uniform v=huge state=tiny",
    /* Sequences in segments; as long as one, and shorter; of maps whose columns don't fill teams.
     */
    CUT "H=1 HV=2 V=128 lengths=500 segment=128",
    CUT "H=1 HV=2 V=128 lengths=128,300,5,0,129 segment=128 max_tokens=2000",
    CUT "H=1 HV=2 V=64 lengths=300,5,64,0,129,190 index=4,-1,1,3,0,2 slots=6 in_place=1 cu=i64 "
        "checkpoint=64 layout=vk state_dtype=bf16 pad=3,1,5",
    CUT "H=1 HV=2 V=64 lengths=200,200 index=1,-1 slots=2 checkpoint=64 layout=vk state_dtype=bf16",
    CUT "dtype=f16 H=1 V=64 lengths=300 v=huge state=tiny",
    CUT "K=64 H=1 V=128 lengths=200 norm=0 q=unit k=unit out_dtype=f32 a_log=-2",
};

START_TEST(test_mma_call)
{
    NEEDS_MMA;
    run(MMA "%s", calls[_i]);
}
END_TEST

/* Without norms operands are of bf16, whose errors are more than tensors of f16 are allowed. */
START_TEST(test_mma_f16_needs_norms)
{
    NEEDS_MMA;
    NEEDS(!has_other_units(), "matrix units of AMD and Intel take f16 as it is");
    struct call *call = make(MMA "dtype=f16 V=64 lengths=64 q=unit k=unit g=decay");
    kda_plan *plan;
    char why[512];
    ck_assert_int_eq(kda_plan_create(&plan, device.ctx, &call->problem), KDA_UNSUPPORTED);
    device_last_error(why, sizeof why);
    ck_assert_msg(strstr(why, "KDA_F16 needs KDA_NORM_QK"), "%s", why);
}
END_TEST

#define RELATED MMA "%s H=2 V=128 max_tokens=256 max_sequences=5"
static const char *const related[] = {MODEL BOUNDED, K64, CUT}; /* cut ones are not carried on */

START_TEST(test_mma_same_call_again)
{
    NEEDS_MMA;
    struct call *first = run(RELATED " lengths=100,64,7", related[_i]), *again = copy(first);
    for (int i = 0; i < 5; i++) {
        run_plan(plan_for(again), again);
        same_results(again, first);
    }
}
END_TEST

/* Work-groups that scan wait for those that prepare, and use what they get the moment it is there:
 * a hand-over that is wrong now and then is seen in one of many large calls. */
START_TEST(test_mma_same_large_call_many_times)
{
    NEEDS_MMA;
    NEEDS(has_matrix_units(), "in plain OpenCL C no work-group waits for another");
    static const char *const words[] = {"H=32 lengths=4096 " MODEL BOUNDED,
                                        "H=4 lengths=16384 segment=1024 " MODEL BOUNDED};
    struct call *first = make(MMA "V=128 %s", words[_i]);
    const kda_args args = call_args(first);
    ck_assert_int_eq(kda_execute(plan_for(first), &args), KDA_OK);
    run_again(plan_for(first), first, 200);
}
END_TEST

START_TEST(test_mma_sequence_alone_and_packed)
{
    NEEDS_MMA;
    struct call *all = run(RELATED " lengths=5,0,133,64,17", related[_i]);
    int64_t start = 0;
    for (int64_t n = 0; n < all->sequences; n++) {
        struct call *alone = slice(all, n, 0, all->lengths[n]);
        run_plan(plan_for(all), alone);
        same_rows(OUT, all, start, alone, 0, all->lengths[n]);
        same_rows(FINAL_STATE, all, n, alone, 0, 1);
        start += all->lengths[n];
    }
}
END_TEST

/* What is no number in one sequence reaches no other: not through the memory of work-groups either,
 * which on matrix units prepare chunk after chunk, some of them with tokens that are not there. */
START_TEST(test_mma_no_number_reaches_another_sequence)
{
    NEEDS_MMA;
    static const int inputs[] = {Q, K, V, BETA};
    const int heads = has_matrix_units() ? 16 : 2, sequences = has_matrix_units() ? 40 : 3;
    struct call *clean = make(MMA MODEL BOUNDED "H=%d V=128 lengths=70x%d", heads, sequences);
    struct call *other = copy(clean);
    for (size_t n = 0; n < sizeof(inputs) / sizeof(inputs[0]); n++) {
        struct tensor *t = &other->tensor[inputs[n]];
        for (int64_t i = 0; i < tensor_elements(t); i++)
            if (i / (t->heads * t->width) / 70 % 2 == 0)
                tensor_set(t, i, NAN);
    }
    const kda_args clean_args = call_args(clean), other_args = call_args(other);
    ck_assert_int_eq(kda_execute(plan_for(clean), &clean_args), KDA_OK);
    ck_assert_int_eq(kda_execute(plan_for(clean), &other_args), KDA_OK);
    for (int64_t n = 1; n < sequences; n += 2) {
        same_rows(OUT, other, 70 * n, clean, 70 * n, 70);
        same_rows(FINAL_STATE, other, n, clean, n, 1);
    }
}
END_TEST

/* A call cut at any chunk edge, with its state carried, gives the same bits. */
static void carried_across_edges(struct call *whole)
{
    const int64_t length = whole->tokens;
    for (int64_t cut = 64; cut < length; cut += 64) {
        struct call *head = slice(whole, 0, 0, cut), *tail = slice(whole, 0, cut, length);
        run_plan(plan_for(whole), head);
        for (int64_t i = 0; i < tensor_elements(&head->tensor[FINAL_STATE]); i++)
            tensor_set(&tail->tensor[INITIAL_STATE], i, tensor_get(&head->tensor[FINAL_STATE], i));
        run_plan(plan_for(whole), tail);
        same_rows(OUT, tail, 0, whole, cut, length - cut);
        same_rows(FINAL_STATE, tail, 0, whole, 0, 1);
    }
}

START_TEST(test_mma_state_carried_across_chunk_edges)
{
    NEEDS_MMA;
    carried_across_edges(run(RELATED " lengths=256", related[_i]));
}
END_TEST

START_TEST(test_mma_later_tokens_change_nothing_earlier)
{
    NEEDS_MMA;
    static const int inputs[] = {Q, K, V, G, BETA};
    for (int64_t same = 3; same < 130; same += 9) {
        struct call *a = make(RELATED " lengths=130", related[_i]), *b = copy(a);
        for (size_t n = 0; n < sizeof(inputs) / sizeof(inputs[0]); n++) {
            struct tensor *t = &b->tensor[inputs[n]];
            for (int64_t i = same * t->heads * t->width; i < tensor_elements(t); i++)
                tensor_set(t, i, (double)(i * 7 % 13 - 6) * 4);
        }
        run_plan(plan_for(a), a);
        run_plan(plan_for(b), b);
        same_rows(OUT, a, 0, b, 0, same);
    }
}
END_TEST

/* Without a state the first write says what unit a warp takes its columns in, whichever of them it
 * is in: neither larger ones of later tokens, nor values. */
START_TEST(test_mma_later_values_change_no_unit)
{
    NEEDS_MMA;
    static const int64_t sames[] = {2, 3, 5, 9, 40};
    for (int i = 0; i < 2 * 5; i++) {
        const int64_t same = sames[i / 2];
        struct call *a = make(MMA "H=1 V=64 lengths=64 norm=1 g=decay beta=0.9 "
                                  "v=0.11,-0.12,1.3e-6,0,0.115,-1.1e-6,0");
        struct tensor *t = &a->tensor[V];
        for (int64_t j = 0; i % 2 && j < 64 * 64; j++) /* in one column of 16 alone, now and then */
            tensor_set(t, j, j % 32 == 15 && j / 64 % 2 == 0 ? 0.11 : 0);
        struct call *b = copy(a);
        for (int64_t j = same * 64; j < 64 * 64; j++)
            tensor_set(&b->tensor[V], j, (double)(j % 5) * 40);
        run_plan(plan_for(a), a);
        run_plan(plan_for(b), b);
        same_rows(OUT, a, 0, b, 0, same);
    }
}
END_TEST

/* What unit a warp takes its columns in follows from the state alone. */
START_TEST(test_mma_any_size_carried_across_chunk_edges)
{
    NEEDS_MMA;
    static const char *const words[] = {"v=tiny state=0", "v=huge beta=0.001 state=0",
                                        "v=wide state=tiny", "dtype=f16 v=huge beta=0.001 state=0"};
    carried_across_edges(run(MMA "H=1 V=64 lengths=192 norm=1 g=decay %s", words[_i]));
}
END_TEST

START_TEST(test_mma_workspace_size_does_not_matter)
{
    NEEDS_MMA;
    static const char *const words[] = {"V=64 " MODEL SOFTPLUS, "V=128 " K64};
    struct call *whole = run(MMA "%s H=2 lengths=250,3,100", words[_i]);
    size_t size = kda_plan_workspace(plan_for(make(MMA "%s H=2 lengths=70", words[_i])));
    struct call *pieces = run(MMA "%s H=2 lengths=250,3,100 workspace=%zu", words[_i], size);
    same_results(pieces, whole);
}
END_TEST

START_TEST(test_mma_resumption_from_checkpoints)
{
    NEEDS_MMA;
    struct call *whole = run(RELATED " lengths=200 checkpoint=64", related[_i]);
    const int64_t size = whole->tensor[CHECKPOINTS].heads * whole->tensor[CHECKPOINTS].width;
    for (int64_t c = 0; c < 3; c++) {
        struct call *rest = slice(whole, 0, 64 * (c + 1), 200);
        for (int64_t i = 0; i < size; i++)
            tensor_set(&rest->tensor[INITIAL_STATE], i,
                       tensor_get(&whole->tensor[CHECKPOINTS], c * size + i));
        run_plan(plan_for(rest), rest);
        same_rows(OUT, rest, 0, whole, 64 * (c + 1), rest->tokens);
        same_rows(FINAL_STATE, rest, 0, whole, 0, 1);
    }
}
END_TEST

/* What a segment begins with is the checkpoint there: until the next one, the rest of a sequence
 * has the same bits. */
START_TEST(test_mma_segments_resume_from_checkpoints)
{
    NEEDS_MMA;
    NEEDS(!has_other_units(), "matrix units of AMD and Intel don't cut");
    struct call *whole = run(RELATED " lengths=256 segment=128 checkpoint=64", CUT);
    const int64_t size = whole->tensor[CHECKPOINTS].heads * whole->tensor[CHECKPOINTS].width;
    struct call *rest = slice(whole, 0, 128, 256);
    for (int64_t i = 0; i < size; i++)
        tensor_set(&rest->tensor[INITIAL_STATE], i,
                   tensor_get(&whole->tensor[CHECKPOINTS], size + i));
    run_plan(plan_for(rest), rest);
    same_rows(OUT, rest, 0, whole, 128, 128);
    same_rows(FINAL_STATE, rest, 0, whole, 0, 1);
    run_again(plan_for(whole), whole, 20);
}
END_TEST

/* A plan says whether it cuts sequences. */
START_TEST(test_mma_segments_are_said)
{
    NEEDS_MMA;
    NEEDS(!has_other_units(), "matrix units of AMD and Intel don't cut");
    char plan[512];
    kda_plan_describe(plan_for(make(RELATED " lengths=100", CUT)), plan, sizeof plan);
    ck_assert_msg(strstr(plan, " segment=64 "), "%s", plan);
    kda_plan_describe(plan_for(make(RELATED " lengths=100 segment=256", CUT)), plan, sizeof plan);
    ck_assert_msg(!strstr(plan, "segment="), "%s", plan);
}
END_TEST

/* Where not all chunks fit, the workspace's size decides, once for all calls, whether any is cut.
 */
START_TEST(test_mma_segments_need_the_workspace)
{
    NEEDS_MMA;
    char plan[512];
    struct call *whole = run(RELATED " lengths=250,3 segment=0", CUT);
    const size_t size = kda_plan_workspace(plan_for(make(RELATED " lengths=70", CUT)));
    struct call *uncut = run(RELATED " lengths=250,3 workspace=%zu", CUT, size - 1);
    kda_plan_describe(plan_for(uncut), plan, sizeof plan);
    ck_assert_msg(!strstr(plan, "segment="), "%s", plan);
    same_results(uncut, whole);
}
END_TEST

/* Matrix units of AMD and Intel take what the engine fused does. */
static const char *const unit_calls[] = {
    "K=128 V=128 dtype=bf16 lengths=70,0,1,64 chunk=64 " MODEL BOUNDED,
    "K=60 V=21 HV=2 dtype=f16 lengths=50,17,0 chunk=16 checkpoint=16 g=slow k=same norm=1",
    "K=256 V=72 dtype=f16 lengths=75 layout=vk rule=additive g=decay state=normal",
    "K=1 V=1 dtype=bf16 lengths=40 gate=none norm=1 state=normal",
    "K=33 V=17 dtype=f32 lengths=40 gate=none norm=1 state=normal", /* not by units of bf16 */
};

START_TEST(test_unit_call)
{
    NEEDS(device.id, "the CPU backend has no matrix units");
    NEEDS(has_other_units(), "no matrix units of AMD or Intel");
    struct call *call = make("engine=mma schedule=chunkwise %s", unit_calls[_i]);
    if (call->problem.dtype == KDA_F32 && strstr(fact("matrix_units"), "bf16")) {
        kda_plan *plan;
        ck_assert_int_eq(kda_plan_create(&plan, device.ctx, &call->problem), KDA_UNSUPPORTED);
        return;
    }
    char plan[512];
    call = run("engine=mma schedule=chunkwise %s", unit_calls[_i]);
    kda_plan_describe(plan_for(call), plan, sizeof plan);
    ck_assert_msg(strstr(plan, " unit="), "%s", plan);
}
END_TEST

TCase *tcase_units(void)
{
    TCase *tcase = tcase_create("units");
    tcase_add_checked_fixture(tcase, harness_setup, harness_teardown);
    tcase_add_loop_test(tcase, test_unit_call, 0, sizeof(unit_calls) / sizeof(unit_calls[0]));
    return tcase;
}

TCase *tcase_mma(void)
{
    TCase *tcase = tcase_create("mma");
    tcase_add_checked_fixture(tcase, harness_setup, harness_teardown);
    tcase_add_loop_test(tcase, test_mma_call, 0, sizeof(calls) / sizeof(calls[0]));
    tcase_add_test(tcase, test_mma_f16_needs_norms);
    tcase_add_loop_test(tcase, test_mma_same_call_again, 0, 3);
    tcase_add_loop_test(tcase, test_mma_same_large_call_many_times, 0, 2);
    tcase_add_loop_test(tcase, test_mma_sequence_alone_and_packed, 0, 3);
    tcase_add_test(tcase, test_mma_no_number_reaches_another_sequence);
    tcase_add_loop_test(tcase, test_mma_state_carried_across_chunk_edges, 0, 2);
    tcase_add_loop_test(tcase, test_mma_later_tokens_change_nothing_earlier, 0, 3);
    tcase_add_test(tcase, test_mma_later_values_change_no_unit);
    tcase_add_loop_test(tcase, test_mma_any_size_carried_across_chunk_edges, 0, 4);
    tcase_add_loop_test(tcase, test_mma_workspace_size_does_not_matter, 0, 2);
    tcase_add_loop_test(tcase, test_mma_resumption_from_checkpoints, 0, 2);
    tcase_add_test(tcase, test_mma_segments_resume_from_checkpoints);
    tcase_add_test(tcase, test_mma_segments_are_said);
    tcase_add_test(tcase, test_mma_segments_need_the_workspace);
    return tcase;
}

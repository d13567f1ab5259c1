/* What the chunkwise schedule promises to the bit, for every engine and chunk that a device has:
 * kda.h's promises, and that nothing depends on tiles of V or on the workspace's size.
 *
 * SPDX-License-Identifier: MIT */
#include "harness.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *words;
    int chunk;
    bool everywhere; /* on the CPU backend too */
} engines[] = {
    {"engine=fused chunk=16", 16, true},
    {"engine=fused chunk=32", 32, true},
    {"engine=fused chunk=64", 64, true},
    {"engine=clblast chunk=32", 32, false},
};

#define NEEDS_ENGINE NEEDS(device.id || engines[_i].everywhere, "the CPU backend has no CLBlast")
#define C engines[_i].chunk
/* Nothing square, nothing a power of two, K no multiple of a vector; then the lengths. */
#define ODD "schedule=chunkwise %s H=2 HV=6 K=60 V=36 state=normal max_tokens=300 max_sequences=5 "

START_TEST(test_engine_repeats_itself)
{
    NEEDS_ENGINE;
    struct call *first = run(ODD "lengths=%d,3,%d", engines[_i].words, 2 * C + 1, C);
    for (int i = 0; i < 5; i++) {
        struct call *again = copy(first);
        run_host(plan_for(first), again);
        same_results(again, first);
    }
}
END_TEST

START_TEST(test_engine_packs_sequences)
{
    NEEDS_ENGINE;
    struct call *all = make(ODD "lengths=%d,%d,0,1,%d", engines[_i].words, C - 1, 2 * C + 1, C);
    kda_plan *plan = plan_for(all);
    run_plan(plan, all);
    int64_t start = 0;
    for (int64_t n = 0; n < all->sequences; n++) {
        struct call *alone = slice(all, n, 0, all->lengths[n]);
        run_plan(plan, alone);
        same_rows(OUT, all, start, alone, 0, all->lengths[n]);
        same_rows(FINAL_STATE, all, n, alone, 0, 1);
        start += all->lengths[n];
    }
}
END_TEST

/* The rest of a sequence from some token on, which starts from state number `row` of a tensor. */
static void check_rest(const struct call *whole, int64_t from, const struct tensor *states,
                       int64_t row)
{
    struct call *rest = slice(whole, 0, from, whole->tokens);
    struct tensor *initial = &rest->tensor[INITIAL_STATE];
    int64_t size = initial->heads * initial->width;
    for (int64_t i = 0; i < size; i++)
        tensor_set(initial, i, tensor_get(states, row * size + i));
    run_plan(plan_for(whole), rest);
    same_rows(OUT, rest, 0, whole, from, rest->tokens);
    same_rows(FINAL_STATE, rest, 0, whole, 0, 1);
}

START_TEST(test_engine_cut_at_chunk_edges)
{
    NEEDS_ENGINE;
    struct call *whole = run(ODD "lengths=%d", engines[_i].words, 3 * C + 5);
    for (int64_t cut = C; cut < whole->tokens; cut += C) {
        struct call *head = slice(whole, 0, 0, cut);
        run_plan(plan_for(whole), head);
        same_rows(OUT, head, 0, whole, 0, cut);
        check_rest(whole, cut, &head->tensor[FINAL_STATE], 0);
    }
}
END_TEST

START_TEST(test_engine_resumes_from_checkpoints)
{
    NEEDS_ENGINE;
    struct call *whole = run(ODD "lengths=%d checkpoint=%d", engines[_i].words, 3 * C + 5, C);
    for (int64_t i = 0; i < 3; i++)
        check_rest(whole, (i + 1) * C, &whole->tensor[CHECKPOINTS], i);
}
END_TEST

/* From a token in the middle of a chunk on, all inputs are other numbers. */
START_TEST(test_engine_knows_no_future)
{
    NEEDS_ENGINE;
    static const int inputs[] = {Q, K, V, G, BETA};
    const int64_t same = C + C / 2 + 3;
    struct call *a = run(ODD "lengths=%d", engines[_i].words, 2 * C + 9), *b = copy(a);
    for (size_t n = 0; n < sizeof(inputs) / sizeof(inputs[0]); n++) {
        struct tensor *t = &b->tensor[inputs[n]];
        for (int64_t i = same * t->heads * t->width; i < tensor_elements(t); i++)
            tensor_set(t, i, inputs[n] == G ? -3 : 0.75);
    }
    run_plan(plan_for(a), b);
    same_rows(OUT, a, 0, b, 0, same);
}
END_TEST

/* A call with fewer columns of v: what is left is the same, whatever tiles the columns fall in. */
START_TEST(test_engine_has_no_tiles)
{
    NEEDS_ENGINE;
    enum { FEW = 20, ALL = 36 };
    struct call *all = run(ODD "lengths=%d", engines[_i].words, 2 * C + 1);
    struct call *few = make(ODD "lengths=%d V=%d", engines[_i].words, 2 * C + 1, FEW);
    for (int64_t i = 0; i < tensor_elements(&few->tensor[V]); i++)
        tensor_set(&few->tensor[V], i, tensor_get(&all->tensor[V], i / FEW * ALL + i % FEW));
    for (int64_t i = 0; i < tensor_elements(&few->tensor[INITIAL_STATE]); i++)
        tensor_set(&few->tensor[INITIAL_STATE], i,
                   tensor_get(&all->tensor[INITIAL_STATE], i / FEW * ALL + i % FEW));
    run_plan(plan_for(few), few);
    for (int64_t i = 0; i < tensor_elements(&few->tensor[OUT]); i++)
        ck_assert(tensor_get(&few->tensor[OUT], i) ==
                  tensor_get(&all->tensor[OUT], i / FEW * ALL + i % FEW));
}
END_TEST

START_TEST(test_engine_in_pieces)
{
    NEEDS_ENGINE;
    NEEDS_QUEUES;
    struct call *whole = run(ODD "lengths=%d,3,%d", engines[_i].words, 2 * C + 1, C);
    struct call *chunk = make(ODD "lengths=%d max_tokens=%d", engines[_i].words, C, C);
    size_t size = kda_plan_workspace(plan_for(chunk));
    struct call *pieces =
        run(ODD "lengths=%d,3,%d workspace=%zu", engines[_i].words, 2 * C + 1, C, size);
    same_results(pieces, whole);
    ck_assert_uint_lt(kda_plan_workspace(plan_for(pieces)), kda_plan_workspace(plan_for(whole)));
}
END_TEST

/* No chunk is empty, so that the workspace holds no more of them than there are tokens. */
START_TEST(test_engine_counts_chunks)
{
    NEEDS_ENGINE;
    NEEDS_QUEUES;
    char text[256];
    struct call *call = run("schedule=chunkwise %s K=8 V=4 lengths=1x70", engines[_i].words);
    kda_plan_describe(plan_for(call), text, sizeof(text));
    ck_assert_msg(strstr(text, " piece=70 "), "%s", text);
}
END_TEST

TCase *tcase_engines(void)
{
    enum { COUNT = sizeof(engines) / sizeof(engines[0]) };
    TCase *tcase = tcase_create("engines");
    tcase_add_checked_fixture(tcase, harness_setup, harness_teardown);
    tcase_add_loop_test(tcase, test_engine_repeats_itself, 0, COUNT);
    tcase_add_loop_test(tcase, test_engine_packs_sequences, 0, COUNT);
    tcase_add_loop_test(tcase, test_engine_cut_at_chunk_edges, 0, COUNT);
    tcase_add_loop_test(tcase, test_engine_resumes_from_checkpoints, 0, COUNT);
    tcase_add_loop_test(tcase, test_engine_knows_no_future, 0, COUNT);
    tcase_add_loop_test(tcase, test_engine_has_no_tiles, 0, COUNT);
    tcase_add_loop_test(tcase, test_engine_in_pieces, 0, COUNT);
    tcase_add_loop_test(tcase, test_engine_counts_chunks, 0, COUNT);
    return tcase;
}

/* Relations between calls, to the bit: what must give the same result does, whatever the numbers.
 * No oracle is needed to see these fail, and no tolerance hides it.
 *
 * SPDX-License-Identifier: MIT */
#include "harness.h"

#include "oracle.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Sizes of plans, so that calls share them. */
#define PLAN "max_tokens=256 max_sequences=5 "
/* A problem with nothing square, nothing a power of two. */
#define ODD "H=2 HV=6 K=60 V=36 state=normal " PLAN
/* What the published models look like, with fewer heads. */
#define MODEL                                                                                      \
    "H=2 K=128 V=128 dtype=bf16 norm=1 gate=bounded a_log=rate dt_bias=normal activation=sigmoid " \
    "state=normal " PLAN

START_TEST(test_same_call_again)
{
    static const char *const texts[] = {ODD "lengths=20,3,41", MODEL "lengths=70"};
    struct call *first = run("%s", texts[_i]), *again = copy(first);
    kda_plan *plan = plan_for(first);
    kda_args args = call_args(again);
    for (int i = 0; i < 50; i++) {
        for (int id = 0; id < TENSORS; id++)
            if (call_writes(id) && again->tensor[id].present)
                tensor_poison(&again->tensor[id]);
        ck_assert_int_eq(kda_execute(plan, &args), KDA_OK);
        same_results(again, first);
    }
}
END_TEST

START_TEST(test_types_of_absent_tensors_do_not_matter)
{
    struct call *typed = run(ODD "lengths=4x3 cu=no"), *again = copy(typed);
    kda_args args = call_args(again);
    args.cu_seqlens_type = args.state_index_type = KDA_I64;
    tensor_poison(&again->tensor[OUT]);
    ck_assert_int_eq(kda_execute(plan_for(typed), &args), KDA_OK);
    same_results(again, typed);
}
END_TEST

START_TEST(test_sequence_alone_and_packed)
{
    static const char *const texts[] = {ODD "lengths=5,0,133,1,17", MODEL "lengths=5,0,133,1,17",
                                        ODD "lengths=9,2,30 index=3,0,2 slots=4 per_head=1"};
    struct call *all = make("%s", texts[_i]);
    kda_plan *plan = plan_for(all);
    run_plan(plan, all);
    int64_t start = 0;
    const kda_args args = call_args(all);
    for (int64_t n = 0; n < all->sequences; n++) {
        struct call *alone = slice(all, n, 0, all->lengths[n]);
        run_plan(plan, alone);
        same_rows(OUT, all, start, alone, 0, all->lengths[n]);
        same_rows(FINAL_STATE, all, oracle_slot(&args, n, 0), alone, 0, 1);
        start += all->lengths[n];
    }
}
END_TEST

/* Runs the second part of a sequence from the state after the first, and compares with the whole.
 */
static void check_cut(kda_plan *plan, const struct call *whole, int64_t cut)
{
    struct call *head = slice(whole, 0, 0, cut), *tail = slice(whole, 0, cut, whole->tokens);
    run_plan(plan, head);
    for (int64_t i = 0; i < tensor_elements(&head->tensor[FINAL_STATE]); i++)
        memcpy(tensor_at(&tail->tensor[INITIAL_STATE], i), tensor_at(&head->tensor[FINAL_STATE], i),
               head->tensor[FINAL_STATE].size);
    run_plan(plan, tail);
    same_rows(OUT, head, 0, whole, 0, cut);
    same_rows(OUT, tail, 0, whole, cut, whole->tokens - cut);
    same_rows(FINAL_STATE, tail, 0, whole, 0, 1);
}

START_TEST(test_state_carried_across_any_cut)
{
    static const char *const texts[] = {RECURRENT ODD "lengths=23", RECURRENT MODEL "lengths=17",
                                        RECURRENT ODD "lengths=13 layout=vk g=strong"};
    struct call *whole = make("%s", texts[_i]);
    kda_plan *plan = plan_for(whole);
    run_plan(plan, whole);
    for (int64_t cut = 0; cut <= whole->tokens; cut++)
        check_cut(plan, whole, cut);
}
END_TEST

/* Any schedule: no part is as short as what a device may run token by token. */
START_TEST(test_state_carried_across_chunk_edges)
{
    static const char *const texts[] = {ODD "lengths=256", MODEL "lengths=256"};
    struct call *whole = make("%s", texts[_i]);
    kda_plan *plan = plan_for(whole);
    run_plan(plan, whole);
    check_cut(plan, whole, 128);
}
END_TEST

START_TEST(test_resumption_from_any_checkpoint)
{
    struct call *whole = make(RECURRENT ODD "lengths=23 checkpoint=5");
    kda_plan *plan = plan_for(whole);
    run_plan(plan, whole);
    int64_t size = whole->tensor[CHECKPOINTS].heads * whole->tensor[CHECKPOINTS].width;
    for (int64_t c = 0; c < 4; c++) {
        struct call *rest = slice(whole, 0, 5 * (c + 1), 23);
        for (int64_t i = 0; i < size; i++)
            tensor_set(&rest->tensor[INITIAL_STATE], i,
                       tensor_get(&whole->tensor[CHECKPOINTS], c * size + i));
        run_plan(plan, rest);
        same_rows(OUT, rest, 0, whole, 5 * (c + 1), rest->tokens);
        same_rows(FINAL_STATE, rest, 0, whole, 0, 1);
    }
}
END_TEST

START_TEST(test_later_tokens_change_nothing_earlier)
{
    static const int inputs[] = {Q, K, V, G, BETA};
    const int64_t same = _i ? 83 : 13;
    struct call *a = make(ODD "lengths=%d", _i ? 100 : 20), *b = copy(a);
    kda_plan *plan = plan_for(a);
    for (size_t n = 0; n < sizeof(inputs) / sizeof(inputs[0]); n++) {
        struct tensor *t = &b->tensor[inputs[n]];
        for (int64_t i = same * t->heads * t->width; i < tensor_elements(t); i++)
            tensor_set(t, i, inputs[n] == G ? -3 : 0.75);
    }
    run_plan(plan, a);
    run_plan(plan, b);
    same_rows(OUT, a, 0, b, 0, same);
}
END_TEST

START_TEST(test_strides_and_offset_do_not_matter)
{
    static const char *const views[] = {"pad=0,0,0",
                                        "pad=0,0,1",
                                        "pad=3,1,5",
                                        "pad=1,0,0",
                                        "pad=64,4,16",
                                        "order=heads",
                                        "pad=2,7,3 order=heads"};
    static const char *const texts[] = {ODD "lengths=7,92 checkpoint=16",
                                        "K=128 V=128 lengths=5 dtype=bf16 state=normal",
                                        "K=1 V=1 lengths=9,2 state=normal checkpoint=16"};
    struct call *packed = make("%s", texts[_i]);
    kda_plan *plan = plan_for(packed);
    run_plan(plan, packed);
    for (size_t i = 0; i < sizeof(views) / sizeof(views[0]); i++) {
        struct call *strided = make("%s %s", texts[_i], views[i]);
        run_plan(plan, strided);
        same_results(strided, packed);
    }
}
END_TEST

/* q, k and v as parts of one row per token. */
START_TEST(test_tensors_share_rows)
{
    struct call *apart = run("H=2 K=32 V=32 lengths=9 dtype=bf16");
    const size_t row = 3 * 2 * 32, part = 2 * 32;
    uint16_t *rows = calloc(9 * row, sizeof(*rows));
    for (size_t t = 0; t < 9; t++)
        for (size_t i = 0; i < row; i++)
            memcpy(&rows[t * row + i],
                   tensor_at(&apart->tensor[Q + (int)(i / part)], (int64_t)(t * part + i % part)),
                   sizeof(*rows));
    struct call *together = copy(apart);
    tensor_poison(&together->tensor[OUT]);
    kda_args args = call_args(together);
    for (int id = Q; id <= V; id++)
        *call_view(&args, id) = (kda_input){.host = rows,
                                            .offset = (size_t)(id - Q) * part * sizeof(*rows),
                                            .token_stride = (int64_t)row};
    kda_status status = kda_execute(plan_for(apart), &args);
    free(rows);
    ck_assert_int_eq(status, KDA_OK);
    same_results(together, apart);
}
END_TEST

/* Rows 2^31 elements apart, in a file that is one large hole. */
static void *far_memory(size_t size)
{
    FILE *file = tmpfile();
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(ftruncate(fileno(file), (off_t)size), 0);
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
    fclose(file);
    ck_assert_ptr_ne(memory, MAP_FAILED);
    return memory;
}

START_TEST(test_strides_beyond_32_bits)
{
    const int64_t stride = ((int64_t)1 << 31) + 8;
    const size_t size = 2 * (size_t)stride + 64;
    struct call *near = run("V=8 lengths=2 dtype=bf16 state=normal");
    char *v = far_memory(size), *out = far_memory(size);
    for (size_t t = 0; t < 2; t++)
        memcpy(v + t * 2 * (size_t)stride, tensor_at(&near->tensor[V], (int64_t)t * 8), 16);
    struct call *far = copy(near);
    tensor_poison(&far->tensor[OUT]);
    kda_args args = call_args(far);
    args.v = (kda_input){.host = v, .token_stride = stride};
    args.out = (kda_output){.host = out, .token_stride = stride};
    kda_status status = kda_execute(plan_for(near), &args);
    for (size_t t = 0; t < 2; t++)
        memcpy(tensor_at(&far->tensor[OUT], (int64_t)t * 8), out + t * 2 * (size_t)stride, 16);
    munmap(v, size);
    munmap(out, size);
    ck_assert_int_eq(status, KDA_OK);
    same_results(far, near);
}
END_TEST

/* Moves a kv call's states to a vk call, or results back: rows and columns change places. */
static void transpose(struct tensor *to, const struct tensor *from, int64_t keys, int64_t values,
                      bool to_vk)
{
    for (int64_t i = 0; i < tensor_elements(from); i++) {
        int64_t state = i / (keys * values), key = i / values % keys, value = i % values;
        int64_t j = (state * values + value) * keys + key;
        memcpy(tensor_at(to, to_vk ? j : i), tensor_at(from, to_vk ? i : j), from->size);
    }
}

START_TEST(test_state_layouts_are_transposes)
{
    static const char *const texts[] = {
        "H=2 K=60 V=36 lengths=7,72 checkpoint=16 state=normal",
        "H=2 K=128 V=128 lengths=40 checkpoint=16 dtype=bf16 state_dtype=bf16 state=normal",
        "H=2 K=32 V=5 lengths=36 state_dtype=f16 state=normal checkpoint=16"};
    struct call *kv = run("%s", texts[_i]), *vk = make("%s layout=vk", texts[_i]);
    const int64_t keys = kv->problem.key_dim, values = kv->problem.value_dim;
    transpose(&vk->tensor[INITIAL_STATE], &kv->tensor[INITIAL_STATE], keys, values, true);
    run_plan(plan_for(vk), vk);
    struct call *back = copy(kv);
    same_rows(OUT, vk, 0, kv, 0, kv->tokens);
    for (int id = FINAL_STATE; id <= CHECKPOINTS; id += CHECKPOINTS - FINAL_STATE) {
        transpose(&back->tensor[id], &vk->tensor[id], keys, values, false);
        same_rows(id, back, 0, kv, 0, kv->tensor[id].rows);
    }
}
END_TEST

START_TEST(test_final_state_in_place)
{
    static const char *const texts[] = {ODD "lengths=7,0,12",
                                        "H=2 K=33 V=80 lengths=3,4 state=normal state_dtype=f16",
                                        ODD "lengths=7,3,12 index=4,-1,1 slots=5 pad=3,1,2"};
    struct call *apart = run("%s", texts[_i]), *in_place = run("%s in_place=1", texts[_i]);
    same_rows(OUT, apart, 0, in_place, 0, apart->tokens);
    const kda_args args = call_args(apart);
    for (int64_t n = 0; n < apart->sequences; n++) {
        int64_t slot = oracle_slot(&args, n, 0);
        if (slot >= 0)
            same_rows(FINAL_STATE, apart, slot, in_place, slot, 1);
    }
}
END_TEST

START_TEST(test_outputs_do_not_depend_on_each_other)
{
    struct call *all = make(ODD "lengths=79,4 checkpoint=16"), *out_only = copy(all);
    kda_plan *plan = plan_for(all);
    run_plan(plan, all);
    out_only->tensor[FINAL_STATE].present = out_only->tensor[CHECKPOINTS].present = false;
    run_plan(plan, out_only);
    same_rows(OUT, all, 0, out_only, 0, all->tokens);
}
END_TEST

/* Two threads with one plan. */
struct worker {
    kda_plan *plan;
    struct call *call;
    kda_status status;
};

static void *execute_often(void *arg)
{
    struct worker *worker = arg;
    kda_args args = call_args(worker->call);
    for (int i = 0; i < 20 && worker->status == KDA_OK; i++)
        worker->status = kda_execute(worker->plan, &args);
    return NULL;
}

START_TEST(test_threads_share_a_plan)
{
    struct call *right[2] = {make(ODD "lengths=80"), make(ODD "lengths=80 seed=77")};
    kda_plan *plan = plan_for(right[0]);
    struct worker workers[2];
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        run_plan(plan, right[i]);
        workers[i] = (struct worker){plan, copy(right[i]), KDA_OK};
        tensor_poison(&workers[i].call->tensor[OUT]);
    }
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, execute_often, &workers[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(workers[i].status, KDA_OK);
        same_results(workers[i].call, right[i]);
    }
}
END_TEST

Suite *suite_relations(void)
{
    Suite *suite = suite_create("relations");
    TCase *tcase = tcase_create("relations");
    tcase_add_checked_fixture(tcase, harness_setup, harness_teardown);
    tcase_add_loop_test(tcase, test_same_call_again, 0, 2);
    tcase_add_test(tcase, test_types_of_absent_tensors_do_not_matter);
    tcase_add_loop_test(tcase, test_sequence_alone_and_packed, 0, 3);
    tcase_add_loop_test(tcase, test_state_carried_across_any_cut, 0, 3);
    tcase_add_loop_test(tcase, test_state_carried_across_chunk_edges, 0, 2);
    tcase_add_test(tcase, test_resumption_from_any_checkpoint);
    tcase_add_loop_test(tcase, test_later_tokens_change_nothing_earlier, 0, 2);
    tcase_add_loop_test(tcase, test_strides_and_offset_do_not_matter, 0, 3);
    tcase_add_test(tcase, test_tensors_share_rows);
    tcase_add_test(tcase, test_strides_beyond_32_bits);
    tcase_add_loop_test(tcase, test_state_layouts_are_transposes, 0, 3);
    tcase_add_loop_test(tcase, test_final_state_in_place, 0, 3);
    tcase_add_test(tcase, test_outputs_do_not_depend_on_each_other);
    tcase_add_test(tcase, test_threads_share_a_plan);
    suite_add_tcase(suite, tcase);
    suite_add_tcase(suite, tcase_engines());
    suite_add_tcase(suite, tcase_queues());
    suite_add_tcase(suite, tcase_mma());
    suite_add_tcase(suite, tcase_units());
    return suite;
}

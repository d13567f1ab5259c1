/* The conformance suite's cases for what servers do with pools of states: separate write slots,
 * fresh sequences, speculation, rollback. PROBE_V makes the state after token t of a sequence its
 * value, the number of the token in the call from 1 on, so that expected pools can be written down.
 *
 * SPDX-License-Identifier: MIT */
#include "harness.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* More than one column is no business of the chunkwise schedule. */
#define TABLES "schedule=auto engine=auto "

/* "4 f32 ulps" */
static const double ulps = 5e-7;

START_TEST(test_write_slot_apart_from_read_slot)
{
    gives("lengths=1x3 index=2,-1,0 write=1,4,3 slots=5 state=10,20,30,40,50 k=0 q=1 g=0 "
          "in_place=1",
          "30,0,10", "10,30,30,10,50", 0);
    gives("lengths=1x3 index=2,1,0 write=-1,1,-5 slots=3 state=10,20,30 k=1 beta=1 v=7 q=1 g=0 "
          "in_place=1 index_type=i64",
          "7", "10,7,30", 0);
    run("H=2 K=16 V=8 lengths=3,0,2 index=1,2,1 write=3,0,4 slots=6 state=normal");
    run("H=2 K=16 V=8 lengths=0,5 index=0,2 write=-1,1 slots=3 state=normal layout=vk");
}
END_TEST

/* The pool that prompts in chunks write is the one that decoding reads. */
START_TEST(test_chunks_write_where_they_are_told)
{
    run("H=2 K=32 V=40 lengths=90,1,0,20,17 index=4,0,-1,2,5 write=1,0,3,-1,6 slots=8 "
        "state=normal fresh=0,0,1,1,0");
    run("schedule=chunkwise H=2 K=32 V=40 lengths=90,1,0,20,17 index=4,0,-1,2,5 "
        "write=1,0,3,-1,6 slots=8 state=normal fresh=0,0,1,1,0 accepted=1,1,1,1,0");
    run("schedule=chunkwise H=1 K=32 V=40 lengths=33x3 index=4,0,2 write=-1,1,2 slots=5 "
        "state=normal accepted=1,0,1 in_place=1");
}
END_TEST

/* The flag selects zero, it does not multiply. */
START_TEST(test_fresh_ignores_what_the_slot_holds)
{
    static const char *const nans[] = {"", RECURRENT, "schedule=chunkwise "};
    gives(PROBE_V "lengths=3 g=-2 state=nan index=0 slots=1 fresh=1 in_place=1", "1,2,3", "3",
          ulps);
    gives(PROBE_V "lengths=1,1,1 g=0 state=nan,inf,5 k=0 fresh=1,7,0", "0,0,5", "0,0,5", 0);
    gives("lengths=0,0 q=0 k=0 v=0 g=0 beta=0 state=nan,6 fresh=255,0", "0", "0,6", 0);
    for (int i = 0; i < 3; i++) {
        struct call *call = make("%sH=2 K=32 V=32 lengths=40,20 state=nan fresh=1,1", nans[i]);
        struct call *none = make("%sH=2 K=32 V=32 lengths=40,20", nans[i]);
        run_plan(plan_for(call), call);
        run_plan(plan_for(none), none);
        same_rows(OUT, call, 0, none, 0, call->tokens);
        same_rows(FINAL_STATE, call, 0, none, 0, 2);
    }
}
END_TEST

START_TEST(test_every_draft_has_its_slot)
{
    gives(TABLES PROBE_V "lengths=3,1 g=-2 slots=8 state=50 in_place=1 columns=3 index=6,0,0,7,0,0 "
                         "write=3,4,5,1,-1,-1",
          "1,2,3,4", "50,4,50,1,2,3,50,50", ulps);
    /* Without a write_index the row that was read takes the states. */
    gives(TABLES PROBE_V
          "lengths=3,2 g=-2 slots=8 state=50 in_place=1 columns=3 index=6,0,2,7,-1,5 "
          "accepted=3,1",
          "1,2,3,4,5", "2,50,3,50,50,50,1,4", ulps);
}
END_TEST

START_TEST(test_accepted_chooses_where_to_resume)
{
    gives(TABLES
          "lengths=1x4 k=0 q=1 g=0 slots=4 state=10,20,30,40 columns=4 index=0,1,2,3,0,1,2,3,0,1,"
          "2,3,0,1,2,3 accepted=4,1,3,2 final=0",
          "40,10,30,20", NULL, 0);
    gives("lengths=1 k=0 q=1 g=0 slots=4 state=10,20,30,40 accepted=1 index=2 in_place=1", "30",
          "10,20,30,40", 0);
}
END_TEST

/* Nothing accepted is not index -1. */
START_TEST(test_nothing_accepted_skips)
{
    struct call *call =
        run(TABLES "K=8 V=4 lengths=4,2,4 columns=4 slots=9 state=normal in_place=1 "
                   "index=0,1,2,3,4,8,-1,-1,5,6,7,-1 accepted=0,1,-3");
    struct call *before = make("%s", call->text);
    for (int slot = 0; slot < 9; slot++)
        if (slot != 4 && slot != 8)
            same_rows(INITIAL_STATE, call, slot, before, slot, 1);
}
END_TEST

/* The last states in the order of tokens; all of a sequence that is shorter. */
START_TEST(test_last_states_are_stored_in_order)
{
    gives(TABLES PROBE_V
          "lengths=5,1,2 g=-2 slots=7 state=50 in_place=1 columns=2 index=6,6,6,6,6,6 "
          "write=0,1,2,3,4,5",
          "1,2,3,4,5,6,7,8", "4,5,6,50,7,8,50", ulps);
    run(TABLES
        "H=2 K=16 V=8 lengths=40,3,17,0 columns=16 slots=64 state=normal state_dtype=bf16 "
        "index=0x64 write=0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,"
        "27,28,29,30,31,32,33,34,35,36,37,38,39,40,41,42,43,44,45,46,47,48,49,50,51,52,53,54,55,"
        "56,57,58,59,60,61,62,63");
}
END_TEST

/* Four snapshots, a step of two tokens, both taken back: the state that was passed in. */
START_TEST(test_rollback_of_a_whole_step)
{
    struct call *step = make(TABLES "K=8 V=4 lengths=2 columns=4 slots=5 state=normal in_place=1 "
                                    "index=4,0,1,2 write=0,1,2,3 seed=5");
    struct call *before = copy(step);
    kda_plan *plan = plan_for(step);
    run_plan(plan, step);
    same_rows(INITIAL_STATE, step, 4, before, 4, 1);
    struct call *again = copy(step);
    run_plan(plan, again);
    same_rows(OUT, again, 0, step, 0, 2);
    same_rows(INITIAL_STATE, again, 0, step, 0, 5);
}
END_TEST

/* A slot is resumed from as if the tokens behind it had never been. */
START_TEST(test_resumption_after_some_tokens)
{
    static const char *const shapes[] = {"H=2 K=33 V=20 lengths=7", "H=2 K=32 V=64 lengths=7",
                                         "H=1 K=128 V=128 lengths=7 layout=vk dtype=bf16"};
    struct call *drafts = make(TABLES "%s max_tokens=90 columns=7 slots=8 state=normal in_place=1 "
                                      "index=7x7 write=0,1,2,3,4,5,6",
                               shapes[_i]);
    struct call *before = copy(drafts);
    kda_plan *plan = plan_for(drafts);
    run_plan(plan, drafts);
    for (int accepted = 1; accepted <= 7; accepted += 2) {
        struct call *kept = make(TABLES "%s max_tokens=90 columns=7 slots=8 state=normal final=0 "
                                        "index=0,1,2,3,4,5,6 accepted=%d",
                                 shapes[_i], accepted);
        memcpy(kept->tensor[INITIAL_STATE].block, drafts->tensor[INITIAL_STATE].block,
               drafts->tensor[INITIAL_STATE].block_size);
        run_plan(plan, kept);
        struct call *alone = slice(before, 0, 0, 1);
        for (int t = 0; t < accepted; t++) { /* token by token, the state carried */
            struct call *one = slice(before, 0, t, t + 1);
            if (t)
                memcpy(one->tensor[INITIAL_STATE].block, alone->tensor[FINAL_STATE].block,
                       one->tensor[INITIAL_STATE].block_size);
            run_host(plan, alone = one);
        }
        same_rows(FINAL_STATE, alone, 0, drafts, accepted - 1, 1);
    }
}
END_TEST

/* What one sequence writes may not depend on a neighbour that reads the same. */
START_TEST(test_two_sequences_resume_from_one_slot)
{
    struct call *call = run("H=2 K=16 V=8 lengths=3,3 index=1,1 write=0,2 slots=3 state=normal "
                            "in_place=1 q=0.5 k=0.25 v=1 g=-1 beta=0.5");
    same_rows(OUT, call, 0, call, 3, 3);
    same_rows(INITIAL_STATE, call, 0, call, 2, 1);
}
END_TEST

/* Device memory may hold anything; the host refuses it. */
START_TEST(test_indices_out_of_range)
{
    static const char drafts[] = "H=2 K=16 V=8 lengths=2,2,1 index=0,0,1,1,5,5 write=0,2,1,3,4,-1 "
                                 "accepted=1,1,2 columns=2";
    static const char tokens[] = "H=2 K=64 V=64 lengths=1x4 index=0,1,5,3 write=0,2,4,3";
    static const struct {
        const char *text;
        int id, at;
        double value;
    } wrong[] = {
        {drafts, STATE_INDEX, 2, 6}, {drafts, STATE_INDEX, 2, 2147483647},
        {drafts, WRITE_INDEX, 2, 6}, {drafts, WRITE_INDEX, 3, 1e9},
        {drafts, ACCEPTED, 1, 3},    {drafts, ACCEPTED, 1, 2147483647},
        {tokens, STATE_INDEX, 2, 6}, {tokens, STATE_INDEX, 0, 2147483647},
        {tokens, WRITE_INDEX, 2, 6}, {tokens, WRITE_INDEX, 3, 1e9},
    };
    struct call *call = make(TABLES "%s slots=6 state=normal in_place=1", wrong[_i].text);
    struct call *before = copy(call);
    kda_plan *plan = plan_for(call);
    tensor_set(&call->tensor[wrong[_i].id], wrong[_i].at, wrong[_i].value);
    tensor_set(&before->tensor[wrong[_i].id], wrong[_i].at, wrong[_i].value);
    kda_args args = call_args(call);
    ck_assert_int_eq(kda_execute(plan, &args), KDA_INVALID);
    same_results(call, before);
    if (device.id)
        run_device(plan, call);
}
END_TEST

/* To know the longest sequence changes what is launched, not what comes out. */
START_TEST(test_max_length_changes_no_result)
{
    struct call *call = make("H=2 K=32 V=32 lengths=1,5,0,9,60 cu=i32 max_tokens=200 state=normal");
    struct call *told = make("%s max_length=60", call->text);
    kda_plan *plan = plan_for(call);
    run_plan(plan, call);
    run_plan(plan, told);
    same_results(call, told);
    told->max_length = 59;
    kda_args args = call_args(told);
    ck_assert_int_eq(kda_execute(plan, &args), KDA_INVALID);
    struct call *before = copy(told);
    for (told->max_length = 1; device.id && told->max_length < 64; told->max_length += 29) {
        struct buffers *b = upload(told, plan, device.context);
        ck_assert_int_eq(kda_enqueue(plan, device.queue, &b->args, 0, NULL, NULL), KDA_OK);
        download(told, b, device.queue);
        check_guards(told, before);
    }
}
END_TEST

/* One token each, which may have a kernel of its own, is what a call with cu_seqlens says too. */
START_TEST(test_single_tokens_however_told)
{
    static const char *const calls[] = {
        "H=4 K=128 V=128 dtype=bf16 gate=bounded a_log=rate dt_bias=normal activation=sigmoid "
        "norm=1",
        "H=2 HV=4 K=64 V=100 dtype=f16 state_dtype=f16 gate=softplus per_head=1 a_log=rate "
        "dt_bias=normal norm=1 lengths=1x3",
        "H=2 HV=6 K=64 V=64 dtype=bf16 g_dtype=f32 state_dtype=bf16 activation=sigmoid2 map=modulo "
        "norm=1 lengths=1x5 max_sequences=8 scale=0.5",
        "K=128 V=36 gate=none rule=additive lengths=1x2 in_place=1 pad=4,8,12 order=heads",
        "H=3 K=100 V=44 dtype=bf16 out_dtype=f32 pad=4,8,12 per_head=1",
        "H=2 K=256 V=64 layout=vk dtype=f16 norm=1 lengths=1x2",
        "H=2 K=64 V=64 pad=1,3,5 lengths=1x2",
        "H=2 HV=4 K=128 V=64 lengths=1x4 index=2,-1,0,4 write=1,2,-1,4 slots=5 index_type=i64",
        "H=2 K=64 V=96 dtype=bf16 lengths=1x3 index=3,0,1 in_place=1 slots=4 max_sequences=9",
        "K=64 V=64 lengths=1x2 columns=2 index=0,2,1,3 write=4,5,-1,0 slots=6",
    };
    struct call *call = make("state=normal %s", calls[_i]);
    struct call *told = make("%s cu=i32 max_length=1", call->text);
    kda_plan *plan = plan_for(call);
    run_plan(plan, call);
    run_plan(plan, told);
    same_results(told, call);
}
END_TEST

/* Memory for states of 32 x 32, each at the beginning of a page of its own, of which one is there
 * and the others cannot be touched. */
struct guarded {
    float *state;
    size_t bytes;
    int64_t stride;
};

static struct guarded guard(int64_t states, int64_t there)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), state = 32 * 32 * sizeof(float);
    const size_t each = (state + page - 1) / page * page;
    struct guarded g = {.bytes = each * (size_t)states, .stride = (int64_t)(each / sizeof(float))};
    void *at;
    ck_assert_int_eq(posix_memalign(&at, page, g.bytes), 0);
    memset(at, 0, g.bytes);
    ck_assert_int_eq(mprotect(at, g.bytes, PROT_NONE), 0);
    ck_assert_int_eq(mprotect((char *)at + each * (size_t)there, each, PROT_READ | PROT_WRITE), 0);
    g.state = at;
    return g;
}

static void unguard(struct guarded g)
{
    ck_assert_int_eq(mprotect(g.state, g.bytes, PROT_READ | PROT_WRITE), 0);
    free(g.state);
}

/* A sequence that reads slot 2, writes slot 5 and has checkpoint 0, and one that is skipped: nobody
 * needs the other slots, nor checkpoint 1, which is the skipped sequence's. */
START_TEST(test_what_a_call_does_not_name_is_not_touched)
{
    enum { TOKENS = 140, WIDTH = 32, FROM = 2, TO = 5, SLOTS = 8 };
    static float x[TOKENS * WIDTH], beta[TOKENS], out[TOKENS * WIDTH];
    static const int32_t cu[] = {0, 70, TOKENS}, from[] = {FROM, -1}, to[] = {TO, TO + 1};
    struct guarded read = guard(SLOTS, FROM), write = guard(SLOTS, TO), at = guard(2, 0);
    for (int i = 0; i < TOKENS * WIDTH; i++)
        x[i] = (float)(i * 7 % 13 - 6) / 20;
    for (int i = 0; i < TOKENS; i++)
        beta[i] = 0.5f;
    kda_plan *plan;
    const kda_problem *const problem =
        kda_problem(.heads = 1, .key_dim = WIDTH, .value_dim = WIDTH, .max_tokens = TOKENS,
                    .max_sequences = 2, .gate = KDA_GATE_NONE, .checkpoint_every = 64,
                    .schedule = _i ? KDA_SCHEDULE_CHUNKWISE : KDA_SCHEDULE_RECURRENT);
    ck_assert_int_eq(kda_plan_create(&plan, device.ctx, problem), KDA_OK);
    const kda_args *const args =
        kda_args(.tokens = TOKENS, .sequences = 2, .q.host = x, .k.host = x, .v.host = x,
                 .beta.host = beta, .out.host = out, .cu_seqlens.host = cu,
                 .state_index.host = from, .write_index.host = to, .slots = SLOTS,
                 .initial_state.host = read.state, .initial_state.token_stride = read.stride,
                 .final_state.host = write.state, .final_state.token_stride = write.stride,
                 .checkpoints.host = at.state, .checkpoints.token_stride = at.stride);
    ck_assert_int_eq(kda_execute(plan, args), KDA_OK);
    ck_assert(write.state[TO * write.stride] != 0.0f);
    ck_assert(at.state[0] != 0.0f);
    kda_plan_destroy(&plan);
    unguard(read);
    unguard(write);
    unguard(at);
}
END_TEST

TCase *tcase_serving(void)
{
    TCase *tcase = tcase_create("serving");
    tcase_add_checked_fixture(tcase, harness_setup, harness_teardown);
    tcase_add_test(tcase, test_write_slot_apart_from_read_slot);
    tcase_add_test(tcase, test_chunks_write_where_they_are_told);
    tcase_add_test(tcase, test_fresh_ignores_what_the_slot_holds);
    tcase_add_test(tcase, test_every_draft_has_its_slot);
    tcase_add_test(tcase, test_accepted_chooses_where_to_resume);
    tcase_add_test(tcase, test_nothing_accepted_skips);
    tcase_add_test(tcase, test_last_states_are_stored_in_order);
    tcase_add_test(tcase, test_rollback_of_a_whole_step);
    tcase_add_loop_test(tcase, test_resumption_after_some_tokens, 0, 3);
    tcase_add_test(tcase, test_two_sequences_resume_from_one_slot);
    tcase_add_loop_test(tcase, test_indices_out_of_range, 0, 10);
    tcase_add_test(tcase, test_max_length_changes_no_result);
    tcase_add_loop_test(tcase, test_single_tokens_however_told, 0, 10);
    tcase_add_loop_test(tcase, test_what_a_call_does_not_name_is_not_touched, 0, 2);
    return tcase;
}

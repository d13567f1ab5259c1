/* A server's life in random steps: requests arrive in slots that others left, with prompts or a
 * single token, decode, draft, accept some of the drafts or none, sit out a step, are copied, and
 * leave poison behind. Every request is also computed alone, one call a step or a token, on states
 * of its own; after each step the rows of out and the whole pool must hold exactly those bits, and
 * every other slot exactly what it held before.
 *
 * A request keeps the states of its last step: that which it read and those after each token, with
 * the slots that hold them. The next step resumes from any of them that is still there.
 *
 * SPDX-License-Identifier: MIT */
#include "harness.h"

#include "oracle.h"
#include "random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* SLOTS: more than requests can hold, with all that they keep, read and write. */
enum { STEPS = 100, REQUESTS = 5, COLUMNS = 3, SLOTS = 64, LONGEST = 80 };

/* Prompts go in chunks. */
#define SHAPE                                                                                      \
    "schedule=auto engine=auto K=32 V=32 max_tokens=400 max_sequences=5 norm=1 gate=bounded "      \
    "a_log=rate dt_bias=normal activation=sigmoid "
enum { STATE_SIZE = 32 * 32, STATE_BYTES = STATE_SIZE * 4 };

struct request {
    bool alive;
    int states;            /* kept from its last step */
    int slot[1 + COLUMNS]; /* of each; -1: not stored */
    unsigned char state[1 + COLUMNS][STATE_BYTES];

    /* In the step being made. */
    bool fresh, skipped;
    int length, from; /* tokens, the kept state to resume from */
    int row[COLUMNS], write[COLUMNS], accepted;
};

struct server {
    struct request request[REQUESTS];
    unsigned char pool[SLOTS][STATE_BYTES]; /* what it must hold */
    uint64_t seed, next;

    /* The step being made. */
    int columns;
    bool in_place, store, writes, accepts;
    bool single; /* a token each, and no cu_seqlens */
};

static int choose(struct server *s, int n)
{
    return (int)(random_bits(s->seed, s->next++) % (uint64_t)n);
}

/* A slot that nobody needs. */
static int free_slot(struct server *s)
{
    for (;;) {
        int slot = choose(s, SLOTS);
        bool used = false;
        for (int i = 0; i < REQUESTS; i++) {
            const struct request *r = &s->request[i];
            for (int j = 0; r->alive && j < r->states; j++)
                used |= r->slot[j] == slot;
            for (int c = 0; r->alive && c < s->columns; c++)
                used |= r->row[c] == slot || r->write[c] == slot;
        }
        if (!used)
            return slot;
    }
}

static void leave(struct server *s, struct request *r)
{
    for (int i = 0; i < r->states; i++)
        if (r->slot[i] >= 0)
            memset(s->pool[r->slot[i]], POISON, STATE_BYTES);
    r->alive = false;
}

/* Whether any state is left to go on from. */
static bool can_resume(const struct request *r)
{
    bool can = false;
    for (int i = 0; i < r->states; i++)
        can |= r->slot[i] >= 0;
    return can;
}

static void choose_length(struct server *s, struct request *r)
{
    const int kind = choose(s, 8);
    r->length = s->columns > 1 ? 1 + choose(s, COLUMNS + (kind == 0 ? 3 : 0)) : 1;
    if (s->columns == 1 && kind < 1)
        r->length = choose(s, LONGEST);
    if (kind == 7)
        r->length = 0;
    if (s->single)
        r->length = 1;
}

/* The row of slots that is read, and the one that is written if it is another. */
static void choose_slots(struct server *s, struct request *r)
{
    for (int c = 0; c < s->columns; c++)
        r->row[c] = r->write[c] = -1;
    r->accepted = 1 + (s->accepts ? choose(s, s->columns) : 0);
    r->row[r->accepted - 1] = r->fresh ? free_slot(s) : r->slot[r->from];
    for (int c = 0; c < s->columns; c++) {
        if (!s->writes && r->row[c] < 0 && choose(s, 8))
            r->row[c] = free_slot(s);
        if (s->writes && choose(s, 8))
            r->write[c] = choose(s, 8) || c ? free_slot(s) : r->row[r->accepted - 1];
    }
    if (r->skipped && s->accepts)
        r->accepted = -choose(s, 2);
    else if (r->skipped)
        r->row[0] = -1;
}

static void choose_request(struct server *s, struct request *r)
{
    if (r->alive && (choose(s, 16) == 0 || !can_resume(r)))
        leave(s, r);
    r->fresh = !r->alive;
    if (r->fresh) {
        r->states = 0;
        r->alive = true;
    } else {
        do
            r->from = choose(s, r->states);
        while (r->slot[r->from] < 0);
    }
    r->skipped = choose(s, 8) == 0;
    for (int c = 0; c < COLUMNS; c++)
        r->row[c] = r->write[c] = -1;
}

static void choose_step(struct server *s)
{
    s->columns = choose(s, 2) ? COLUMNS : 1;
    s->in_place = choose(s, 4) != 0;
    s->store = s->in_place || choose(s, 2);
    s->writes = choose(s, 2);
    s->accepts = choose(s, 2);
    s->single = choose(s, 4) == 0;
    for (int i = 0; i < REQUESTS; i++)
        choose_request(s, &s->request[i]);
    for (int i = 0; i < REQUESTS; i++) {
        choose_length(s, &s->request[i]);
        choose_slots(s, &s->request[i]);
    }
}

/* KEY= and a list of one number for each request. */
#define ADD_LIST(text, key, value)                                                                 \
    do {                                                                                           \
        text_add(text, " " key);                                                                   \
        for (int i = 0; i < REQUESTS; i++) {                                                       \
            const struct request *r = &s->request[i];                                              \
            text_add(text, i ? ",%d" : "=%d", (int)(value));                                       \
        }                                                                                          \
    } while (0)

static void add_rows(struct text *text, const struct server *s, const char *key, bool write)
{
    text_add(text, " %s", key);
    for (int i = 0; i < REQUESTS; i++)
        for (int c = 0; c < s->columns; c++)
            text_add(text, i + c ? ",%d" : "=%d",
                     write ? s->request[i].write[c] : s->request[i].row[c]);
}

static struct call *make_step(struct server *s)
{
    struct text t = {.length = 0};
    bool fresh = false;
    for (int i = 0; i < REQUESTS; i++)
        fresh |= s->request[i].fresh;
    text_add(&t, SHAPE "state=0 slots=%d columns=%d in_place=%d seed=%d", SLOTS, s->columns,
             s->in_place, choose(s, 1 << 30));
    text_add(&t, " cu=%s index_type=%s", s->single ? "no" : "i32", choose(s, 2) ? "i64" : "i32");
    ADD_LIST(&t, "lengths", r->length);
    if (fresh)
        ADD_LIST(&t, "fresh", r->fresh);
    if (s->accepts)
        ADD_LIST(&t, "accepted", r->accepted);
    add_rows(&t, s, "index", false);
    if (s->writes)
        add_rows(&t, s, "write", true);
    struct call *call = make("%s", t.all);
    memcpy(tensor_at(&call->tensor[INITIAL_STATE], 0), s->pool, sizeof(s->pool));
    call->tensor[FINAL_STATE].present = s->store;
    return call;
}

/* Tokens [from, to) of a request alone, from a state, with nothing else that the step may have had:
 * a single one may have a kernel of its own. Returns the call. */
static struct call *run_alone(kda_plan *plan, const struct call *step, int n, int from, int to,
                              const unsigned char *state)
{
    struct call *alone = slice(step, n, from, to);
    memcpy(tensor_at(&alone->tensor[INITIAL_STATE], 0), state, STATE_BYTES);
    alone->tensor[CU_SEQLENS].present = false;
    kda_args args = call_args(alone);
    ck_assert_int_eq(kda_execute(plan, &args), KDA_OK);
    return alone;
}

/* The state that follows the last one kept, and the slot that must hold it. */
static void keep_state(struct server *s, struct request *r, int column, const struct call *step,
                       const unsigned char *state)
{
    const int slot = !s->store ? -1 : s->writes ? r->write[column] : r->row[column];
    memcpy(r->state[r->states], state, STATE_BYTES);
    r->slot[r->states++] = slot;
    if (slot < 0)
        return;
    if (slot == r->slot[0])
        r->slot[0] = -1; /* written over */
    memcpy(s->pool[slot], state, STATE_BYTES);
    if (memcmp(tensor_at(&step->tensor[FINAL_STATE], (int64_t)slot * STATE_SIZE), state,
               STATE_BYTES))
        fail_call(step, "slot %d is not what its request has alone", slot);
}

/* What must come of request n, whose rows of out begin at start. */
static void check_request(struct server *s, kda_plan *plan, const struct call *step, int n,
                          int64_t start)
{
    struct request *r = &s->request[n];
    unsigned char state[STATE_BYTES] = {0};
    if (r->skipped) { /* run_plan has held its rows of out to zero */
        r->alive = !r->fresh;
        return;
    }
    if (!r->fresh)
        memcpy(state, r->state[r->from], STATE_BYTES);
    memcpy(r->state[0], state, STATE_BYTES);
    r->slot[0] = r->fresh ? -1 : r->slot[r->from];
    r->states = 1;
    if (r->length == 0)
        keep_state(s, r, 0, step, state);
    const int at_once = s->columns > 1 ? 1 : r->length;
    const int passed = r->length > s->columns ? r->length - s->columns : 0; /* without a slot */
    for (int t = 0; t < r->length; t += at_once) {
        struct call *alone = run_alone(plan, step, n, t, t + at_once, state);
        same_rows(OUT, step, start + t, alone, 0, at_once);
        memcpy(state, tensor_at(&alone->tensor[FINAL_STATE], 0), STATE_BYTES);
        if (t + at_once > passed)
            keep_state(s, r, t + at_once - 1 - passed, step, state);
    }
}

static void check_pool(const struct server *s, const struct call *step)
{
    for (int64_t slot = 0; slot < SLOTS; slot++)
        if (memcmp(tensor_at(&step->tensor[FINAL_STATE], slot * STATE_SIZE), s->pool[slot],
                   STATE_BYTES))
            fail_call(step, "slot %d does not hold what it should", (int)slot);
}

static void make_and_check_step(struct server *s)
{
    choose_step(s);
    struct call *step = make_step(s);
    kda_plan *plan = plan_for(step);
    run_plan(plan, step);
    for (int64_t n = 0, start = 0; n < REQUESTS; start += step->lengths[n++])
        check_request(s, plan, step, (int)n, start);
    if (s->in_place)
        check_pool(s, step);
    harness_teardown();
}

START_TEST(test_serving_soak)
{
    static struct server s;
    memset(&s, 0, sizeof(s));
    memset(s.pool, POISON, sizeof(s.pool));
    s.seed = random_bits(harness_seed, (uint64_t)_i);
    for (int step = 0; step < STEPS; step++)
        make_and_check_step(&s);
}
END_TEST

static int decode_calls;

/* By each kernel that there may be for single tokens: with what raw gates have, and without. */
START_TEST(test_decode_repeats_itself)
{
    static const char *const words[] = {"a_log=rate dt_bias=normal", ""};
    struct call *call = run("H=1 HV=2 K=64 V=64 lengths=1x2 norm=1 activation=sigmoid state=normal "
                            "dtype=bf16 gate=bounded %s",
                            words[_i]);
    run_again(plan_for(call), call, decode_calls / 2);
}
END_TEST

static bool is_supported(const struct call *call)
{
    kda_plan *plan;
    const kda_args args = call_args(call);
    kda_status status = kda_plan_create(&plan, device.ctx, &call->problem);
    if (!status)
        status = kda_execute(plan, &args);
    kda_plan_destroy(&plan);
    return status != KDA_UNSUPPORTED;
}

/* What races, in a chunk or between many, need not show in one call. Chunks that hardly forget lie
 * between chunks that forget nearly all. On a processor OpenCL's work-groups are loops, which race
 * less. */
START_TEST(test_prompts_repeat_themselves)
{
    enum { LENGTH = 8192, HEADS = 48, DIM = 128, CHUNK = 64 };
    static const char *const words[] = {RECURRENT, "engine=fused", "engine=clblast", "engine=mma"};
    NEEDS(device.id || _i < 2, "the CPU backend has no such engine");
    NEEDS(_i < 3 || !device_is_processor(), "a processor plays matrix units for hours");
    struct call *first = make("%s dtype=bf16 H=%d K=%d V=%d lengths=%d q=normal k=normal v=normal "
                              "norm=1 beta=uniform",
                              words[_i], HEADS, DIM, DIM, LENGTH);
    for (int64_t i = 0; i < LENGTH * HEADS * DIM; i++)
        tensor_set(&first->tensor[G], i, i / (CHUNK * HEADS * DIM) % 2 ? -5 : -1e-3);
    NEEDS(is_supported(first), "the device has no matrix units, or its driver ends long loops");
    run_plan(plan_for(first), first);
    run_again(plan_for(first), first, device.id && device_is_processor() ? 20 : 100);
}
END_TEST

TCase *tcase_decode(int calls)
{
    TCase *tcase = tcase_create("decode");
    decode_calls = calls;
    tcase_add_checked_fixture(tcase, harness_setup, harness_teardown);
    tcase_set_timeout(tcase, 600);
    tcase_add_loop_test(tcase, test_decode_repeats_itself, 0, 2);
    return tcase;
}

TCase *tcase_repeats(void)
{
    TCase *tcase = tcase_create("repeats");
    tcase_add_checked_fixture(tcase, harness_setup, harness_teardown);
    tcase_set_timeout(tcase, 600);
    tcase_add_loop_test(tcase, test_prompts_repeat_themselves, 0, 4);
    return tcase;
}

TCase *tcase_soak(enum level level)
{
    TCase *tcase = tcase_create("soak");
    tcase_set_tags(tcase, "soak"); /* for CK_EXCLUDE_TAGS */
    tcase_add_checked_fixture(tcase, harness_setup, harness_teardown);
    tcase_set_timeout(tcase, 600);
    tcase_add_loop_test(tcase, test_serving_soak, 0,
                        level == FULL || !device.id ? 10000 / STEPS : 2);
    return tcase;
}

/* Every documented rule broken one at a time. Whatever the rule, the outcome has the same shape:
 * the documented status, one line in the log that names the argument, handles NULL, outputs
 * untouched, and a plan that gives the same bits as before. The rules are in rules.def.
 *
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "test_api.h"

enum stage { OPEN, PLAN, CPU_PLAN, CL_PLAN, EXECUTE, ENQUEUE, RUN, CONTENTS };

struct rule {
    enum stage stage;
    enum base base;
    kda_status status;
    const char *words, *what;
    void (*change)(struct trial *t);
};

static const kda_input absent;

static kda_input input(const struct trial *t, enum tensor id)
{
    return trial_tensor(t, id);
}

static kda_output output(const struct trial *t, enum tensor id)
{
    return (kda_output){.mem = t->device ? t->rig->mem[id] : NULL,
                        .host = t->device ? NULL : t->rig->host[id]};
}

static void no_tokens(struct trial *t)
{
    static const int32_t none[SEQUENCES + 1];
    t->args.tokens = 0;
    t->args.q = t->args.k = t->args.v = t->args.g = t->args.beta = absent;
    t->args.out = (kda_output){0};
    if (t->args.cu_seqlens.host)
        t->args.cu_seqlens.host = none;
}

static const char *long_name(void)
{
    static char name[4002];
    memset(name, 'x', sizeof name - 1);
    return name;
}

static void starts(struct trial *t, int32_t a, int32_t b, int32_t c, int32_t d)
{
    const int32_t list[] = {a, b, c, d};
    memcpy(t->starts.i32, list, sizeof list);
    t->args.cu_seqlens.host = t->starts.i32;
}

static void starts64(struct trial *t, int64_t a, int64_t b, int64_t c, int64_t d)
{
    const int64_t list[] = {a, b, c, d};
    memcpy(t->starts.i64, list, sizeof list);
    t->args.cu_seqlens.host = t->starts.i64;
    t->args.cu_seqlens_type = KDA_I64;
}

static void slots(struct trial *t, int32_t a, int32_t b, int32_t c)
{
    const int32_t list[] = {a, b, c};
    memcpy(t->slots.i32, list, sizeof list);
    t->args.state_index.host = t->slots.i32;
    t->args.slots = SEQUENCES;
}

static void slots64(struct trial *t, int64_t a, int64_t b, int64_t c)
{
    const int64_t list[] = {a, b, c};
    memcpy(t->slots.i64, list, sizeof list);
    t->args.state_index.host = t->slots.i64;
    t->args.state_index_type = KDA_I64;
    t->args.slots = SEQUENCES;
}

/* Rows of two columns of index and write, nothing accepted unless said. */
static void tables(struct trial *t, const int32_t *index, const int32_t *write)
{
    memcpy(t->slots.i32, index, 2 * SEQUENCES * sizeof *index);
    memcpy(t->writes.i32, write, 2 * SEQUENCES * sizeof *write);
    t->args.state_index.host = t->slots.i32;
    t->args.write_index.host = t->writes.i32;
    t->args.index_columns = 2;
    t->args.slots = SEQUENCES;
}
#define TABLE(...)                                                                                 \
    (const int32_t[2 * SEQUENCES])                                                                 \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

static void writes(struct trial *t, int32_t a, int32_t b, int32_t c)
{
    const int32_t list[] = {a, b, c};
    memcpy(t->writes.i32, list, sizeof list);
    t->args.write_index.host = t->writes.i32;
}

static void in_place(struct trial *t)
{
    t->args.initial_state = input(t, FINAL_STATE);
}

static void accepted(struct trial *t, int32_t a, int32_t b, int32_t c)
{
    const int32_t list[] = {a, b, c};
    memcpy(t->accepted.i32, list, sizeof list);
    t->args.accepted.host = t->accepted.i32;
}

static void accepted64(struct trial *t, int64_t a, int64_t b, int64_t c)
{
    const int64_t list[] = {a, b, c};
    memcpy(t->accepted.i64, list, sizeof list);
    t->args.accepted.host = t->accepted.i64;
}

/* The call's gates with one of them changed; gate16 for tensors of a 16-bit type. */
static void gate(struct trial *t, size_t at, float x)
{
    memcpy(t->gates, t->args.g.host, sizeof t->gates);
    t->gates[at] = x;
    t->args.g.host = t->gates;
}

static void gate16(struct trial *t, size_t at, uint16_t bits)
{
    gate(t, 0, 0);
    memcpy((char *)t->gates + at * sizeof bits, &bits, sizeof bits);
}

/* Each line of rules.def becomes a function, then a row of the table. */
#define NAME_LINE(line) rule_##line
#define NAME(line) NAME_LINE(line)

#define RULE(stage, base, status, words, ...)                                                      \
    static void NAME(__LINE__)(struct trial * t)                                                   \
    {                                                                                              \
        kda_context_params *x = &t->params;                                                        \
        kda_problem *p = &t->problem;                                                              \
        kda_args *a = &t->args;                                                                    \
        (void)x, (void)p, (void)a;                                                                 \
        __VA_ARGS__;                                                                               \
    }
#include "rules.def"
#undef RULE

static const struct rule rules[] = {
#define RULE(stage, base, status, words, ...)                                                      \
    {stage, base, status, words, #__VA_ARGS__, NAME(__LINE__)},
#include "rules.def"
#undef RULE
};

static void try_open(const struct rule *rule)
{
    struct trial t = trial_make(rig, rule->base, false);
    kda_context *ctx = rig->ctx;
    rule->change(&t);
    log_clear(&rig->log);
    kda_status st = kda_context_create(&ctx, &t.params);
    expect(st, rule->status, rule->words, rule->what);
    ck_assert_msg(!ctx == !!st, "%s: the handle is wrong", rule->what);
    kda_context_destroy(&ctx);
}

static void try_plan(const struct rule *rule)
{
    struct trial t = trial_make(rig, rule->base, false);
    kda_plan *plan = t.plan;
    rule->change(&t);
    log_clear(&rig->log);
    kda_status st = kda_plan_create(&plan, rig->ctx, &t.problem);
    expect(st, rule->status, rule->words, rule->what);
    ck_assert_msg(!plan == !!st, "%s: the handle is wrong", rule->what);
    kda_plan_destroy(&plan);
}

/* The device's copy of a view in host memory: the rig's, or one of the trial's own arrays. */
static kda_input on_device(const struct trial *t, kda_input view)
{
    cl_int code = CL_SUCCESS;
    if (!view.host)
        return view;
    for (int i = 0; i < TENSORS && !view.mem; i++)
        if (view.host == rig->host[i])
            view.mem = rig->mem[i];
    if (view.mem)
        clRetainMemObject(view.mem);
    else
        view.mem = clCreateBuffer(kda_context_cl_context(rig->ctx), CL_MEM_COPY_HOST_PTR,
                                  view.host == t->gates ? sizeof t->gates : sizeof t->slots,
                                  (void *)(uintptr_t)view.host, &code);
    ck_assert_int_eq(code, CL_SUCCESS);
    view.host = NULL;
    return view;
}

/* In debug kda_enqueue answers as kda_execute does. */
static void try_in_debug(const struct rule *rule)
{
    struct trial host = trial_make(rig, rule->base, false), t = trial_make(rig, rule->base, true);
    rule->change(&host);
    host.args.workspace.mem = t.args.workspace.mem;
    host.args.workspace.size = t.args.workspace.size;
    t.args = host.args;
    for (int i = 0; i < TENSORS; i++)
        view_set(&t.args, (enum tensor)i, on_device(&host, view_get(&t.args, (enum tensor)i)));
    t.plan = rig_debug_plan(rig, rule->base);
    trial_poison(&t);
    log_clear(&rig->log);
    kda_status st = trial_run(&t);
    expect(st, rule->status, rule->words, rule->what);
    struct outputs outputs = trial_outputs(&t);
    ck_assert_msg(!st || outputs_untouched(&outputs), "%s: an output was touched", rule->what);
    for (int i = 0; i < TENSORS; i++) {
        kda_input view = view_get(&t.args, (enum tensor)i);
        if (view.mem)
            clReleaseMemObject(view.mem);
    }
}

/* Of buffers that are for devices alone debug can't see the contents. */
START_TEST(test_debug_must_read)
{
    struct trial t = trial_make(rig, FULL, true);
    const size_t bytes = views[CU_SEQLENS].bytes;
    char copy[128];
    cl_int code;
    cl_mem mem = clCreateBuffer(kda_context_cl_context(rig->ctx),
                                CL_MEM_COPY_HOST_PTR | CL_MEM_HOST_NO_ACCESS, bytes,
                                rig->host[CU_SEQLENS], &code);
    ck_assert_int_eq(code, CL_SUCCESS);
    ck_assert_int_le(bytes, sizeof copy);
    const bool readable =
        !clEnqueueReadBuffer(rig->queue, mem, CL_TRUE, 0, bytes, copy, 0, NULL, NULL);
    t.args.cu_seqlens.mem = mem;
    ck_assert_int_eq(trial_run(&t), KDA_OK);
    t.plan = rig_debug_plan(rig, FULL);
    log_clear(&rig->log);
    if (readable)
        expect(trial_run(&t), KDA_OK, "", "a readable buffer");
    else
        expect(trial_run(&t), KDA_INVALID, "cu_seqlens CL_MEM_HOST_NO_ACCESS", "one that is not");
    clReleaseMemObject(mem);
}
END_TEST

/* Memory is the same whichever buffer names it: here slots that are read are others' to write, in
 * place only. */
START_TEST(test_debug_sees_through_sub_buffers)
{
    struct trial t = trial_make(rig, FULL, true);
    cl_int code;
    cl_buffer_region half = {2048, 2048};
    cl_mem part = clCreateSubBuffer(rig->spare, CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION,
                                    &half, &code);
    ck_assert_int_eq(code, CL_SUCCESS);
    t.plan = rig_debug_plan(rig, FULL);
    t.args.initial_state.mem = rig->spare;
    t.args.final_state.mem = part;
    log_clear(&rig->log);
    expect(trial_run(&t), KDA_OK, "", "pools in two halves of a buffer");
    t.args.initial_state.offset = half.origin;
    log_clear(&rig->log);
    expect(trial_run(&t), KDA_INVALID, "state_index[0] another", "pools in one half");
    t.args.initial_state.mem = part;
    t.args.initial_state.offset = 0;
    log_clear(&rig->log);
    expect(trial_run(&t), KDA_INVALID, "state_index[0] another", "pools in one sub-buffer");
    t.args.final_state = (kda_output){.mem = rig->spare, .offset = half.origin, .token_stride = 49};
    log_clear(&rig->log);
    expect(trial_run(&t), KDA_INVALID, "final_state strides", "pools of two strides in one half");
    clReleaseMemObject(part);
}
END_TEST

/* Nor does it wait for what comes after an event that has failed. */
START_TEST(test_debug_after_failure)
{
    struct trial t = trial_make(rig, FULL, true);
    cl_int code;
    cl_event failed = clCreateUserEvent(kda_context_cl_context(rig->ctx), &code);
    ck_assert_int_eq(code, CL_SUCCESS);
    ck_assert_int_eq(clSetUserEventStatus(failed, -1), CL_SUCCESS);
    t.plan = rig_debug_plan(rig, FULL);
    log_clear(&rig->log);
    expect(kda_enqueue(t.plan, rig->queue, &t.args, 1, &failed, NULL), KDA_DRIVER,
           "clWaitForEvents", "an event that has failed");
    clReleaseEvent(failed);
}
END_TEST

START_TEST(test_rule)
{
    const struct rule *r = &rules[_i];
    if (r->stage == OPEN)
        try_open(r);
    if (r->stage == PLAN || r->stage == CPU_PLAN || r->stage == CL_PLAN)
        try_plan(r);
    if (r->stage == EXECUTE || r->stage == RUN || r->stage == CONTENTS)
        try_call(r->base, false, r->change, r->status, r->words, r->what);
    if (rig->device && (r->stage == ENQUEUE || r->stage == RUN))
        try_call(r->base, true, r->change, r->status, r->words, r->what);
    if (rig->device && r->stage == CONTENTS)
        try_in_debug(r);
}
END_TEST

static bool applies(const struct rule *r)
{
    return r->stage == CPU_PLAN ? !rig->device
                                : rig->device || (r->stage != ENQUEUE && r->stage != CL_PLAN);
}

void add_rules(Suite *suite)
{
    TCase *tc = tcase_create("rules");
    for (int i = 0; i < (int)(sizeof rules / sizeof *rules); i++)
        if (applies(&rules[i]))
            tcase_add_loop_test(tc, test_rule, i, i + 1);
    if (rig->device) {
        tcase_add_test(tc, test_debug_must_read);
        tcase_add_test(tc, test_debug_sees_through_sub_buffers);
        tcase_add_test(tc, test_debug_after_failure);
    }
    suite_add_tcase(suite, tc);
}

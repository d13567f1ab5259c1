/* Rows of kda_context_params.tuned: which plans follow them, and what becomes of those that are for
 * another device, problem or driver, or that the device can't follow. What a row may hold is among
 * the rules in rules.def.
 *
 * SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "test_api.h"

static const char *fact(const char *name)
{
    static kda_fact facts[64];
    size_t count = kda_context_facts(rig->ctx, facts, 64);
    for (size_t i = 0; i < count; i++)
        if (!strcmp(facts[i].name, name))
            return facts[i].value;
    ck_abort_msg("no fact %s", name);
    return NULL;
}

/* %D in the text becomes what is to be matched on the device under test, all but the shape. */
static const char *rows_of(const char *text)
{
    static char rows[4096];
    size_t used = 0;
    for (; *text; text++) {
        if (strncmp(text, "%D", 2)) {
            rows[used++] = *text;
            continue;
        }
        used += (size_t)snprintf(rows + used, sizeof rows - used,
                                 "device=\"%s\" driver=\"%s\" dtype=f32 key_dim=32 value_dim=32",
                                 fact("name"), fact("driver"));
        text++;
    }
    rows[used] = '\0';
    return rows;
}

/* A context on the device under test; closed by the caller. */
static kda_context *open_tuned(const char *text)
{
    kda_context *ctx;
    log_clear(&rig->log);
    kda_context_params params =
        *kda_context_params(.backend = rig->device ? KDA_OPENCL : KDA_CPU, .device = rig->device,
                            .log = log_line, .log_data = &rig->log, .tuned = rows_of(text));
    ck_assert_int_eq(kda_context_create(&ctx, &params), KDA_OK);
    return ctx;
}

static const struct {
    const char *text, *says; /* says NULL: no row is followed */
    kda_problem problem;     /* what it has of its own */
    bool opencl;             /* on OpenCL only */
    int warnings;            /* at least so many; 0: none */
} trials[] = {
    {"%D chunk=16 recurrent_up_to=33", "chunk=16 recurrent_up_to=33 ", {0}, false, 0},
    {"# all\r\n\n  %D\tchunk=64 recurrent_up_to=0 # 1",
     "chunk=64 recurrent_up_to=0 ",
     {0},
     false,
     0},
    {"%D recurrent_up_to=100", "schedule=recurrent", {0}, false, 0},
    {"%D recurrent_up_to=99 engine=fused", "recurrent_up_to=99 ", {0}, false, 0},
    {"%D recurrent_up_to=9 scan=16x16x1", "scan=16x16x1 ", {0}, true, 0},
    {"%D chunk=16 recurrent_up_to=9 scan=64x16x4", "scan=32x16x4 ", {0}, true, 0},
    {"%D chunk=16 recurrent_up_to=9\n%D chunk=64 recurrent_up_to=8", "tuned=2", {0}, false, 0},
    {"%D chunk=16 recurrent_up_to=9",
     "chunk=16 recurrent_up_to=0 ",
     {.schedule = KDA_SCHEDULE_CHUNKWISE},
     false,
     0},
    {"%D chunk=32 recurrent_up_to=9", "chunk=32 ", {.checkpoint_every = 32}, false, 0},
    {"%D chunk=64 recurrent_up_to=9", NULL, {.checkpoint_every = 32}, false, 0},
    {"%D chunk=64", NULL, {.chunk = 16, .schedule = KDA_SCHEDULE_CHUNKWISE}, false, 0},
    {"%D engine=clblast", NULL, {.engine = KDA_ENGINE_FUSED}, false, 0},
    {"%D recurrent_up_to=9", NULL, {.schedule = KDA_SCHEDULE_RECURRENT}, false, 0},
    {"%D recurrent_up_to=9", NULL, {.dtype = KDA_BF16}, false, 0},
    {"%D recurrent_up_to=9", NULL, {.key_dim = 31}, false, 0},
    {"%D recurrent_up_to=9", NULL, {.value_dim = 33}, false, 0},
    {"device=x driver=y key_dim=32 value_dim=32 dtype=f32 chunk=16", NULL, {0}, false, 0},
    {"%D engine=mma recurrent_up_to=9", NULL, {0}, false, 1}, /* not for f32 */
};

START_TEST(test_plans_follow_rows)
{
    if (trials[_i].opencl && !rig->device)
        return;
    kda_context *ctx = open_tuned(trials[_i].text);
    kda_problem p = trials[_i].problem;
    kda_plan *plan;
    char text[512];
    p.struct_size = sizeof p;
    p.heads = 1;
    p.max_tokens = 100;
    p.key_dim = p.key_dim ? p.key_dim : 32;
    p.value_dim = p.value_dim ? p.value_dim : 32;
    ck_assert_msg(!kda_plan_create(&plan, ctx, &p), "%s", rig->log.error);
    kda_plan_describe(plan, text, sizeof text);
    const char *says = trials[_i].says;
    ck_assert_msg(!says == !strstr(text, " tuned="), "%s", text);
    ck_assert_msg(!says || strstr(text, says), "no '%s' in '%s'", says, text);
    ck_assert_int_eq(rig->log.lines[KDA_LOG_WARN] > 0, trials[_i].warnings > 0);
    kda_plan_destroy(&plan);
    kda_context_destroy(&ctx);
}
END_TEST

/* The driver has changed since: a warning for each row, once. */
START_TEST(test_stale_rows)
{
    char text[1024];
    snprintf(text, sizeof text,
             "device=\"%s\" driver=older key_dim=32 value_dim=32 dtype=f32 chunk=16\n%%D chunk=64",
             fact("name"));
    kda_context *ctx = open_tuned(text);
    kda_fact facts[64];
    size_t count = kda_context_facts(ctx, facts, 64);
    ck_assert_int_eq(rig->log.lines[KDA_LOG_WARN], 1);
    ck_assert_uint_eq(count, kda_context_facts(rig->ctx, NULL, 0) + 1);
    ck_assert_str_eq(facts[count - 1].name, "tuned");
    ck_assert_str_eq(facts[count - 1].source, "given");
    ck_assert_str_eq(facts[count - 1].value, rows_of("%D chunk=64"));
    kda_context_destroy(&ctx);
}
END_TEST

void add_tuned(Suite *suite)
{
    TCase *tcase = tcase_create("tuned");
    tcase_add_loop_test(tcase, test_plans_follow_rows, 0, sizeof trials / sizeof trials[0]);
    tcase_add_test(tcase, test_stale_rows);
    tcase_set_timeout(tcase, 60);
    suite_add_tcase(suite, tcase);
}

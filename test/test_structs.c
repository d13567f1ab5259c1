/* Parameter structs of other versions of the header. An older program's struct ends early: what is
 * missing is the default, and nothing behind the end is read (each struct is alone in its own heap
 * block, so that AddressSanitizer sees a byte too many). A newer program's is longer: accepted
 * while the members unknown here are zero.
 *
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "test_api.h"

/* A copy of the first `size` bytes of a struct, the rest zero, with the size stored in it. */
static void *resized(const void *params, size_t known, size_t size)
{
    void *copy = calloc(1, size);
    ck_assert_ptr_nonnull(copy);
    memcpy(copy, params, size < known ? size : known);
    memcpy(copy, &size, sizeof size);
    return copy;
}

enum { EXTRA = 24 };

static kda_status open_resized(const struct trial *t, size_t size, bool nonzero)
{
    kda_context *ctx = rig->ctx;
    kda_context_params *params = resized(&t->params, sizeof t->params, size);
    if (nonzero)
        ((char *)params)[size - 1] = 1;
    log_clear(&rig->log);
    kda_status st = kda_context_create(&ctx, params);
    ck_assert(!ctx == !!st);
    kda_context_destroy(&ctx);
    free(params);
    return st;
}

static kda_status plan_resized(const struct trial *t, size_t size, bool nonzero, kda_plan **plan)
{
    kda_problem *problem = resized(&t->problem, sizeof t->problem, size);
    if (nonzero)
        ((char *)problem)[size - 1] = 1;
    log_clear(&rig->log);
    kda_status st = kda_plan_create(plan, rig->ctx, problem);
    free(problem);
    return st;
}

static kda_status execute_resized(const struct trial *t, size_t size, bool nonzero)
{
    kda_args *args = resized(&t->args, sizeof t->args, size);
    if (nonzero)
        ((char *)args)[size - 1] = 1;
    log_clear(&rig->log);
    kda_status st = kda_execute(t->plan, args);
    free(args);
    return st;
}

START_TEST(test_older_context_params)
{
    struct trial t = trial_make(rig, LOG, false);
    size_t sizes[] = {
        offsetof(kda_context_params, log),       offsetof(kda_context_params, log_level),
        offsetof(kda_context_params, threads),   offsetof(kda_context_params, cache_dir),
        offsetof(kda_context_params, on_launch), offsetof(kda_context_params, tuned),
        offsetof(kda_context_params, debug)};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        expect(open_resized(&t, sizes[i], false), KDA_OK, "", "an older struct");
}
END_TEST

/* What the missing members default to can be seen in the description. */
START_TEST(test_older_problem)
{
    struct trial t = trial_make(rig, LOG, false);
    char whole[512], older[512];
    kda_plan_describe(t.plan, whole, sizeof whole);
    size_t sizes[] = {offsetof(kda_problem, dtype), offsetof(kda_problem, gate_bound),
                      offsetof(kda_problem, flags), offsetof(kda_problem, checkpoint_every),
                      offsetof(kda_problem, chunk)};
    for (int i = 0; i < 5; i++) {
        kda_plan *plan;
        expect(plan_resized(&t, sizes[i], false, &plan), KDA_OK, "", "an older struct");
        kda_plan_describe(plan, older, sizeof older);
        ck_assert_str_eq(older, whole);
        kda_plan_destroy(&plan);
    }
}
END_TEST

START_TEST(test_older_args)
{
    struct trial t = trial_make(rig, LOG, false);
    trial_poison(&t);
    ck_assert_int_eq(trial_run(&t), KDA_OK);
    struct outputs whole = trial_outputs(&t);
    size_t sizes[] = {offsetof(kda_args, state_index), offsetof(kda_args, checkpoints),
                      offsetof(kda_args, workspace)};
    for (int i = 0; i < 3; i++) {
        trial_poison(&t);
        expect(execute_resized(&t, sizes[i], false), KDA_OK, "", "an older struct");
        struct outputs older = trial_outputs(&t);
        ck_assert(outputs_equal(&older, &whole));
    }
}
END_TEST

/* A member that the library knows and needs is missing. */
START_TEST(test_too_old)
{
    struct trial t = trial_make(rig, LOG, false);
    kda_plan *plan = t.plan;
    trial_poison(&t);
    expect(plan_resized(&t, sizeof(size_t), false, &plan), KDA_INVALID, "heads", "only a size");
    ck_assert_ptr_null(plan);
    expect(execute_resized(&t, offsetof(kda_args, out), false), KDA_INVALID, "out", "no outputs");
    struct outputs outputs = trial_outputs(&t);
    ck_assert(outputs_untouched(&outputs));
}
END_TEST

/* With the log itself out of reach a status is all that there is. */
START_TEST(test_context_params_without_size)
{
    struct trial t = trial_make(rig, LOG, false);
    for (size_t size = 0; size < sizeof(size_t); size++) {
        kda_context *ctx = rig->ctx;
        t.params.struct_size = size;
        ck_assert_int_eq(kda_context_create(&ctx, &t.params), KDA_INVALID);
        ck_assert_ptr_null(ctx);
    }
}
END_TEST

START_TEST(test_newer_structs)
{
    struct trial t = trial_make(rig, LOG, false);
    kda_plan *plan;
    expect(open_resized(&t, sizeof t.params + EXTRA, false), KDA_OK, "", "a newer struct");
    expect(plan_resized(&t, sizeof t.problem + EXTRA, false, &plan), KDA_OK, "", "a newer struct");
    kda_plan_destroy(&plan);
    expect(execute_resized(&t, sizeof t.args + EXTRA, false), KDA_OK, "", "a newer struct");
}
END_TEST

START_TEST(test_unknown_members)
{
    struct trial t = trial_make(rig, LOG, false);
    kda_plan *plan = t.plan;
    trial_poison(&t);
    expect(open_resized(&t, sizeof t.params + EXTRA, true), KDA_UNSUPPORTED,
           "kda_context_params zero", "unknown members");
    expect(plan_resized(&t, sizeof t.problem + EXTRA, true, &plan), KDA_UNSUPPORTED,
           "kda_problem zero", "unknown members");
    ck_assert_ptr_null(plan);
    expect(execute_resized(&t, sizeof t.args + EXTRA, true), KDA_UNSUPPORTED, "kda_args zero",
           "unknown members");
    struct outputs outputs = trial_outputs(&t);
    ck_assert(outputs_untouched(&outputs));
}
END_TEST

void add_structs(Suite *suite)
{
    TCase *tc = tcase_create("structs");
    tcase_add_test(tc, test_older_context_params);
    tcase_add_test(tc, test_older_problem);
    tcase_add_test(tc, test_older_args);
    tcase_add_test(tc, test_too_old);
    tcase_add_test(tc, test_context_params_without_size);
    tcase_add_test(tc, test_newer_structs);
    tcase_add_test(tc, test_unknown_members);
    suite_add_tcase(suite, tc);
}

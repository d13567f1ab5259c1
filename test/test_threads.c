/* Objects shared by threads: one plan used by all, many plans made and used on one context at once,
 * and contexts of the CPU backend that come and go. Each thread has its own tensors and holds its
 * results to those of a call made alone. Under ThreadSanitizer (.ci/test) the CPU backend's locking
 * is proved too.
 *
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "test_api.h"

enum { THREADS = 4, ROUNDS = 8 };

struct worker {
    pthread_t thread;
    kda_plan *shared; /* NULL: a plan of its own for each round */
    bool alone;       /* a context too */
    struct trial trial;
    struct outputs wanted;
    unsigned char memory[TENSORS][1024];
    int failures;
};

/* A worker's own outputs and its own v, so that a result from another worker's call is wrong. */
static void worker_tensors(struct worker *w, int number)
{
    for (int i = 0; i < TENSORS; i++) {
        kda_input view = view_get(&w->trial.args, (enum tensor)i);
        if (!view.host)
            continue;
        memcpy(w->memory[i], view.host, views[i].bytes);
        view.host = w->memory[i];
        view_set(&w->trial.args, (enum tensor)i, view);
    }
    float v = (float)number;
    memcpy(w->memory[V], &v, sizeof v);
}

static struct outputs worker_outputs(const struct worker *w)
{
    struct outputs outputs;
    size_t at = 0;
    for (int i = 0; i < TENSORS; i++) {
        if (!views[i].output)
            continue;
        memcpy(outputs.bytes + at, w->memory[i], views[i].bytes);
        at += views[i].bytes;
    }
    return outputs;
}

static void worker_round(struct worker *w)
{
    kda_context *ctx = NULL;
    kda_plan *own = NULL;
    memset(w->memory[OUT], 0, sizeof w->memory[OUT]);
    memset(w->memory[FINAL_STATE], 0, sizeof w->memory[FINAL_STATE]);
    if (w->alone && kda_context_create(&ctx, &w->trial.params) != KDA_OK)
        w->failures++;
    if (!w->shared && kda_plan_create(&own, ctx ? ctx : rig->ctx, &w->trial.problem) != KDA_OK)
        w->failures++;
    kda_plan *plan = w->shared ? w->shared : own;
    if (!plan || kda_execute(plan, &w->trial.args) != KDA_OK)
        w->failures++;
    struct outputs got = worker_outputs(w);
    w->failures += !outputs_equal(&got, &w->wanted);
    kda_plan_destroy(&own);
    kda_context_destroy(&ctx);
}

static void *work(void *arg)
{
    for (int i = 0; i < ROUNDS; i++)
        worker_round(arg);
    return NULL;
}

static void run_workers(kda_plan *shared, bool alone)
{
    static struct worker workers[THREADS];
    log_clear(&rig->log);
    for (int i = 0; i < THREADS; i++) {
        struct worker *w = &workers[i];
        memset(w, 0, sizeof *w);
        w->trial = trial_make(rig, LOG, false);
        w->shared = shared;
        w->alone = alone;
        w->trial.params.threads = 2;
        worker_tensors(w, i);
        ck_assert_int_eq(kda_execute(w->trial.plan, &w->trial.args), KDA_OK);
        w->wanted = worker_outputs(w);
        ck_assert(!i || !outputs_equal(&w->wanted, &workers[i - 1].wanted));
    }
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(workers[i].thread, NULL);
    for (int i = 0; i < THREADS; i++)
        ck_assert_msg(!workers[i].failures, "thread %d failed %d times; log: %s", i,
                      workers[i].failures, rig->log.error);
}

START_TEST(test_one_plan)
{
    run_workers(rig_plan(rig, LOG), false);
}
END_TEST

START_TEST(test_many_plans)
{
    run_workers(NULL, false);
}
END_TEST

START_TEST(test_many_contexts)
{
    run_workers(NULL, true);
}
END_TEST

void add_threads(Suite *suite)
{
    TCase *tc = tcase_create("threads");
    tcase_add_test(tc, test_one_plan);
    tcase_add_test(tc, test_many_plans);
    if (!rig->device)
        tcase_add_test(tc, test_many_contexts);
    suite_add_tcase(suite, tc);
}

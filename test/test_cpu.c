/* What the CPU backend adds to the contract: vectors as asked for, and the same bits from any
 * number of threads. More threads cut heads into fewer columns, so the calls have few heads, and
 * columns that fill neither a piece nor a vector; and they are long enough to be worth all threads.
 *
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE /* RUSAGE_THREAD */
#include <check.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#ifdef __aarch64__
#include <sys/auxv.h>
#include <sys/prctl.h>
#endif

#include "kda.h"

enum { TOKENS = 400, SEQUENCES = 4, SLOTS = 6, MOST_DIM = 300 };

/* A call's memory: numbers between -1 and 1, in every type. */
struct memory {
    char q[4 * TOKENS * MOST_DIM], k[4 * TOKENS * MOST_DIM], v[4 * TOKENS * 2 * MOST_DIM];
    float g[TOKENS * 2 * MOST_DIM], beta[TOKENS * 2];
    char initial[4 * SLOTS * 2 * 128 * MOST_DIM];
    char final[4 * SLOTS * 2 * 128 * MOST_DIM], out[4 * TOKENS * 2 * MOST_DIM];
};

static void fill(void *memory, kda_dtype type, size_t n, float scale, float shift)
{
    static uint32_t seed = 1;
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525 + 1013904223;
        const float x = (float)(int32_t)seed * 0x1p-31f * scale + shift;
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        if (type == KDA_F32)
            ((float *)memory)[i] = x;
        else
            ((uint16_t *)memory)[i] = (uint16_t)(bits >> 16); /* bf16 */
    }
}

static void fill_inputs(struct memory *m, kda_dtype type)
{
    memset(m, 0, sizeof *m);
    fill(m->q, type, TOKENS * MOST_DIM, 0.1f, 0);
    fill(m->k, type, TOKENS * MOST_DIM, 0.1f, 0);
    fill(m->v, type, TOKENS * 2 * MOST_DIM, 1, 0);
    fill(m->g, KDA_F32, TOKENS * 2 * MOST_DIM, 0.5f, -0.5f);
    fill(m->beta, KDA_F32, TOKENS * 2, 0.5f, 0.5f);
    fill(m->initial, type, SLOTS * 2 * 128 * MOST_DIM, 1, 0);
}

/* A sequence of each length that takes another way, and one whose slot is negative. */
static void execute(struct memory *m, kda_vectors vectors, int32_t threads,
                    const kda_problem *problem)
{
    static const int32_t starts[SEQUENCES + 1] = {0, 1, 1, 7, TOKENS}, slots[] = {4, 0, -1, 2};
    kda_context *ctx;
    kda_plan *plan;
    ck_assert_int_eq(
        kda_context_create(
            &ctx, kda_context_params(.backend = KDA_CPU, .threads = threads, .vectors = vectors)),
        KDA_OK);
    ck_assert_int_eq(kda_plan_create(&plan, ctx, problem), KDA_OK);
    memset(m->out, 0xa5, sizeof m->out);
    memset(m->final, 0xa5, sizeof m->final);
    ck_assert_int_eq(
        kda_execute(plan,
                    kda_args(.tokens = TOKENS, .sequences = SEQUENCES, .q.host = m->q,
                             .k.host = m->k, .v.host = m->v, .g.host = m->g, .beta.host = m->beta,
                             .cu_seqlens.host = starts, .state_index.host = slots, .slots = SLOTS,
                             .initial_state.host = m->initial, .final_state.host = m->final,
                             .out.host = m->out)),
        KDA_OK);
    kda_plan_destroy(&plan);
    kda_context_destroy(&ctx);
}

static const struct {
    int32_t value_heads, key_dim, value_dim;
    kda_dtype type;
    kda_state_layout layout;
    kda_schedule schedule;
} calls[] = {
    {1, 128, 128, KDA_F32, KDA_STATE_KV, KDA_SCHEDULE_RECURRENT},
    {1, 128, 128, KDA_F32, KDA_STATE_KV, KDA_SCHEDULE_CHUNKWISE},
    {2, 128, 128, KDA_BF16, KDA_STATE_VK, KDA_SCHEDULE_AUTO},
    {1, 100, 300, KDA_F32, KDA_STATE_VK, KDA_SCHEDULE_RECURRENT},
    {1, 100, 300, KDA_BF16, KDA_STATE_KV, KDA_SCHEDULE_CHUNKWISE},
    {2, 33, 65, KDA_F32, KDA_STATE_KV, KDA_SCHEDULE_AUTO},
};

static kda_problem problem_of(int i)
{
    return *kda_problem(.heads = 1, .value_heads = calls[i].value_heads,
                        .key_dim = calls[i].key_dim, .value_dim = calls[i].value_dim,
                        .max_tokens = TOKENS, .max_sequences = SEQUENCES, .dtype = calls[i].type,
                        .g_dtype = KDA_F32, .beta_dtype = KDA_F32, .state_dtype = calls[i].type,
                        .state_layout = calls[i].layout, .schedule = calls[i].schedule,
                        .flags = KDA_NORM_QK);
}

START_TEST(test_threads_change_nothing)
{
    static const int32_t threads[] = {2, 3, 16};
    const kda_problem problem = problem_of(_i);
    struct memory *one = malloc(sizeof *one), *many = malloc(sizeof *many);
    ck_assert(one && many);
    fill_inputs(one, calls[_i].type);
    for (int vectors = KDA_VECTORS_NONE; vectors <= KDA_VECTORS_512; vectors++) {
        execute(one, (kda_vectors)vectors, 1, &problem);
        for (size_t n = 0; n < sizeof threads / sizeof threads[0]; n++) {
            memcpy(many, one, sizeof *many);
            execute(many, (kda_vectors)vectors, threads[n], &problem);
            ck_assert_msg(!memcmp(one->out, many->out, sizeof one->out) &&
                              !memcmp(one->final, many->final, sizeof one->final),
                          "%d threads change bits, vectors %d", (int)threads[n], vectors);
        }
    }
    free(one);
    free(many);
}
END_TEST

static void expect_vectors(kda_vectors asked, const char *wanted)
{
    kda_context *ctx;
    kda_fact facts[64];
    ck_assert_int_eq(kda_context_create(&ctx, kda_context_params(.backend = KDA_CPU, .threads = 1,
                                                                 .vectors = asked)),
                     KDA_OK);
    const size_t n = kda_context_facts(ctx, facts, 64);
    size_t i = 0;
    while (i < n && strcmp(facts[i].name, "vectors"))
        i++;
    ck_assert_uint_lt(i, n);
    ck_assert_str_eq(facts[i].value, wanted);
    kda_context_destroy(&ctx);
}

/* The longest that the processor has, up to what was asked for. */
START_TEST(test_vectors_as_asked_for)
{
    const char *at_256 = "128", *at_512 = "128";
#ifdef __aarch64__
    const int vl = getauxval(AT_HWCAP) & HWCAP_SVE ? prctl(PR_SVE_GET_VL) & PR_SVE_VL_LEN_MASK : 0;
    at_256 = vl == 32 ? "256" : "128";
    at_512 = vl == 64 ? "512" : at_256;
#elif defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        at_256 = "256";
    at_512 = at_256;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        at_512 = "512";
#endif
    expect_vectors(KDA_VECTORS_NONE, "none");
    expect_vectors(KDA_VECTORS_128, "128");
    expect_vectors(KDA_VECTORS_256, at_256);
    expect_vectors(KDA_VECTORS_512, at_512);
    expect_vectors(KDA_VECTORS_AUTO, at_512);
}
END_TEST

/* How often threads other than this one have gone to sleep. */
static long helpers_slept(void)
{
    struct rusage all, own;
    ck_assert(!getrusage(RUSAGE_SELF, &all) && !getrusage(RUSAGE_THREAD, &own));
    return all.ru_nvcsw - own.ru_nvcsw;
}

/* Calls that some threads make with pauses in which helpers fall asleep; how often they did. */
static long sleeps_of_calls(int32_t heads, int count)
{
    static float one[64 * 64], out[64 * 64], state[64 * 64 * 64];
    const struct timespec pause = {.tv_nsec = 1000000};
    kda_context *ctx;
    kda_plan *plan;
    ck_assert_int_eq(kda_context_create(&ctx, kda_context_params(.backend = KDA_CPU, .threads = 8)),
                     KDA_OK);
    ck_assert_int_eq(kda_plan_create(&plan, ctx,
                                     kda_problem(.heads = heads, .key_dim = 64, .value_dim = 64,
                                                 .max_tokens = 1, .gate = KDA_GATE_NONE)),
                     KDA_OK);
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL); /* threads start */
    const long before = helpers_slept();
    for (int i = 0; i < count; i++) {
        ck_assert_int_eq(
            kda_execute(plan, kda_args(.tokens = 1, .q.host = one, .k.host = one, .v.host = one,
                                       .beta.host = one, .initial_state.host = state,
                                       .final_state.host = state, .out.host = out)),
            KDA_OK);
        nanosleep(&pause, NULL);
    }
    const long slept = helpers_slept() - before;
    kda_plan_destroy(&plan);
    kda_context_destroy(&ctx);
    return slept;
}

/* A call that takes less than waking a thread does leaves them asleep, whatever their number. */
START_TEST(test_small_calls_wake_nobody)
{
    enum { CALLS = 100 };
    /* Far apart, however busy the machine is: none, but for threads that start late, against one
     * or more a call, but for threads that are awake still. */
    ck_assert_int_lt(sleeps_of_calls(2, CALLS), CALLS / 4);
    ck_assert_int_ge(sleeps_of_calls(64, CALLS), CALLS / 4);
}
END_TEST

/* A signal to the process that the caller blocks waits for the caller; SIGUSR1 would end a thread,
 * and with it the process, that does not block it. */
START_TEST(test_signals_are_the_callers)
{
    const struct timespec soon = {.tv_sec = 5};
    kda_context *ctx;
    sigset_t one;
    ck_assert_int_eq(kda_context_create(&ctx, kda_context_params(.backend = KDA_CPU, .threads = 4)),
                     KDA_OK);
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    ck_assert(!pthread_sigmask(SIG_BLOCK, &one, NULL));
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL); /* threads start */
    ck_assert(!kill(getpid(), SIGUSR1));
    ck_assert_int_eq(sigtimedwait(&one, NULL, &soon), SIGUSR1);
    kda_context_destroy(&ctx);
}
END_TEST

/* What a call takes is known ahead, and does not grow with it. */
START_TEST(test_memory_is_bounded)
{
    const kda_problem call = problem_of(_i);
    kda_problem large = call;
    kda_context *ctx;
    kda_plan *plans[2];
    large.max_tokens = 1000000;
    large.value_heads = large.heads = 64;
    large.value_dim = 65536;
    ck_assert_int_eq(kda_context_create(&ctx, kda_context_params(.backend = KDA_CPU, .threads = 4)),
                     KDA_OK);
    ck_assert_int_eq(kda_plan_create(&plans[0], ctx, &call), KDA_OK);
    ck_assert_int_eq(kda_plan_create(&plans[1], ctx, &large), KDA_OK);
    ck_assert_uint_gt(kda_plan_workspace(plans[0]), 0);
    ck_assert_uint_lt(kda_plan_workspace(plans[1]), 4 << 20);
    kda_plan_destroy(&plans[0]);
    kda_plan_destroy(&plans[1]);
    kda_context_destroy(&ctx);
}
END_TEST

static long peak_kib(void)
{
    struct rusage usage;
    ck_assert(!getrusage(RUSAGE_SELF, &usage));
    return usage.ru_maxrss;
}

/* A million tokens, each adding 1 to a number, in the memory that the plan names (and some MiB for
 * what else goes on): not even 16 bytes a token. */
START_TEST(test_million_tokens)
{
    enum { MILLION = 1000000, DIM = 16 };
    const size_t size = (size_t)MILLION * DIM * sizeof(uint16_t);
    uint16_t *in = malloc(size), *out = malloc(size);
    float state[DIM * DIM];
    kda_context *ctx;
    kda_plan *plan;
    ck_assert(in && out);
    memset(out, 0xa5, size);
    for (size_t i = 0; i < (size_t)MILLION * DIM; i++)
        in[i] = i % DIM ? 0 : 0x3f80; /* 1 */
    ck_assert_int_eq(kda_context_create(&ctx, kda_context_params(.backend = KDA_CPU, .threads = 2)),
                     KDA_OK);
    ck_assert_int_eq(
        kda_plan_create(
            &plan, ctx,
            kda_problem(.heads = 1, .key_dim = DIM, .value_dim = DIM, .max_tokens = MILLION,
                        .dtype = KDA_BF16, .scale = 1, .rule = KDA_RULE_ADDITIVE,
                        .gate = KDA_GATE_NONE,
                        .schedule = _i ? KDA_SCHEDULE_CHUNKWISE : KDA_SCHEDULE_RECURRENT)),
        KDA_OK);
    const long before = peak_kib();
    ck_assert_int_eq(
        kda_execute(plan, kda_args(.tokens = MILLION, .q.host = in, .k.host = in, .v.host = in,
                                   .out.host = out, .final_state.host = state)),
        KDA_OK);
    ck_assert_int_lt(peak_kib() - before, (long)(kda_plan_workspace(plan) >> 10) + 8192);
    ck_assert(state[0] == MILLION && state[1] == 0);
    kda_plan_destroy(&plan);
    kda_context_destroy(&ctx);
    free(in);
    free(out);
}
END_TEST

static void keep_line(void *data, kda_log_level level, const char *line)
{
    if (level == KDA_LOG_ERROR)
        snprintf(data, 256, "%s", line);
}

/* Threads share the search for a gate that breaks the rule; of several the first is named. */
START_TEST(test_first_wrong_gate_is_named)
{
    enum { LONG = 1000 };
    static float one[LONG * 2], g[LONG * 2];
    char line[256] = "";
    kda_context *ctx;
    kda_plan *plan;
    ck_assert_int_eq(
        kda_context_create(&ctx, kda_context_params(.backend = KDA_CPU, .threads = 4,
                                                    .log = keep_line, .log_data = line)),
        KDA_OK);
    ck_assert_int_eq(
        kda_plan_create(&plan, ctx,
                        kda_problem(.heads = 1, .key_dim = 2, .value_dim = 2, .max_tokens = LONG)),
        KDA_OK);
    for (int t = 333; t < LONG; t += 100)
        g[2 * t + 1] = (float)t;
    ck_assert_int_eq(
        kda_execute(plan, kda_args(.tokens = LONG, .q.host = one, .k.host = one, .v.host = one,
                                   .g.host = g, .beta.host = one, .out.host = one)),
        KDA_INVALID);
    ck_assert_msg(strstr(line, "token 333, head 0, channel 1 is 333"), "the log says '%s'", line);
    kda_plan_destroy(&plan);
    kda_context_destroy(&ctx);
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("cpu");
    tcase_add_loop_test(tcase, test_threads_change_nothing, 0,
                        (int)(sizeof calls / sizeof calls[0]));
    tcase_add_test(tcase, test_vectors_as_asked_for);
    tcase_add_loop_test(tcase, test_million_tokens, 0, 2);
    tcase_add_test(tcase, test_first_wrong_gate_is_named);
    tcase_add_test(tcase, test_small_calls_wake_nobody);
    tcase_add_test(tcase, test_signals_are_the_callers);
    tcase_add_loop_test(tcase, test_memory_is_bounded, 0, (int)(sizeof calls / sizeof calls[0]));
    tcase_set_timeout(tcase, 60);
    Suite *suite = suite_create("cpu");
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}

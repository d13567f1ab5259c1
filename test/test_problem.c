/* The problem language: what a text means, that its canonical form means the same, that a wrong one
 * is refused with its wrong part named; and the workload made from it, whose judge must see what is
 * wrong with a result.
 *
 * SPDX-License-Identifier: MIT */
#include "test_tools.h"
#include "numbers.h"
#include "random.h"
#include "workload.h"

#include <stdio.h>
#include <stdlib.h>

static struct problem parse(const char *text)
{
    struct problem p;
    char why[256] = "";
    ck_assert_msg(problem_parse(&p, text, why, sizeof why), "%s: %s", text, why);
    return p;
}

static const struct {
    const char *text, *canonical;
} forms[] = {
    {"8192x32x128", "8192x32x128/bf16/bounded"},
    {"8192x32x128/bounded/bf16", "8192x32x128/bf16/bounded"},
    {"4x2048x32x128/softplus", "4x2048x32x128/bf16/softplus"},
    {"1x2048x32x128", "2048x32x128/bf16/bounded"},
    {"decode:64x32x128", "decode:64x32x128/bf16/bounded"},
    {"64x1x32x128", "decode:64x32x128/bf16/bounded"},
    {"1x32x128", "decode:1x32x128/bf16/bounded"},
    {"0008x4x16", "8x4x16/bf16/bounded"},
    {"8x4x16/k64/v96", "8x4x64/bf16/bounded/v96"},
    {"8x4x16/v16/hv4", "8x4x16/bf16/bounded"},
    {"8x4x16/hv8/f16", "8x4x16/f16/bounded/hv8"},
    {"8x4x16/f16/g=f32/state=f16", "8x4x16/f16/bounded/g=f32/state=f16"},
    {"8x4x16/f16/g=f16/state=f32", "8x4x16/f16/bounded"},
    {"8x4x16/per-head/log/vk/state=bf16", "8x4x16/bf16/log/state=bf16/vk/per-head"},
    {"8x4x16/additive/none/nostate/f32", "8x4x16/f32/none/nostate/additive"},
    {"8x4x16/mma/chunkwise", "8x4x16/bf16/bounded/chunkwise/mma"},
    {"8x4x16/segment64/mma", "8x4x16/bf16/bounded/mma/segment64"},
    {"8x4x16/recurrent", "8x4x16/bf16/bounded/recurrent"},
    {"96x128/lens=1300,547,2048", "3895x96x128/bf16/bounded/lens=1300,547,2048"},
    {"3895x96x128/lens=1300,547,2048/f32", "3895x96x128/f32/bounded/lens=1300,547,2048"},
    {"2x8/lens=0,1,0", "1x2x8/bf16/bounded/lens=0,1,0"},
    {"1x1x1/v65536/k256", "decode:1x1x256/bf16/bounded/v65536"},
    {"decode:4x2x8/pool4", "decode:4x2x8/bf16/bounded/pool4"},
    {"2x4x2x8/recurrent/drafts/pool9", "2x4x2x8/bf16/bounded/pool9/drafts/recurrent"},
};

START_TEST(test_canonical_form)
{
    char text[128], again[128];
    struct problem p = parse(forms[_i].text);
    size_t length = problem_print(&p, text, sizeof text);
    ck_assert_str_eq(text, forms[_i].canonical);
    ck_assert_uint_eq(length, strlen(text));
    struct problem q = parse(text);
    problem_print(&q, again, sizeof again);
    ck_assert_str_eq(text, again);
    ck_assert_mem_eq(&p.shape, &q.shape, sizeof p.shape);
    ck_assert_mem_eq(p.starts, q.starts, ((size_t)p.sequences + 1) * sizeof *p.starts);
    ck_assert_int_eq(p.ragged, q.ragged);
    ck_assert_int_eq(p.states, q.states);
    problem_free(&p);
    problem_free(&q);
}
END_TEST

START_TEST(test_text_is_cut_not_overrun)
{
    struct problem p = parse("8x4x16/f16/lens=3,5");
    char whole[64], text[64];
    size_t length = problem_print(&p, whole, sizeof whole);
    for (size_t size = 0; size <= length; ++size) {
        memset(text, '#', sizeof text);
        ck_assert_uint_eq(problem_print(&p, text, size), length);
        ck_assert_int_eq(text[size], '#');
        if (size) {
            ck_assert_uint_eq(strlen(text), size - 1);
            ck_assert_mem_eq(text, whole, size - 1);
        }
    }
    problem_free(&p);
}
END_TEST

START_TEST(test_defaults_are_the_published_models)
{
    struct problem p = parse("8192x96x128");
    const kda_problem *s = &p.shape;
    ck_assert_int_eq(s->heads, 96);
    ck_assert_int_eq(s->value_heads, 96);
    ck_assert_int_eq(s->key_dim, 128);
    ck_assert_int_eq(s->value_dim, 128);
    ck_assert_int_eq(s->max_tokens, 8192);
    ck_assert_int_eq(s->max_sequences, 1);
    ck_assert_int_eq(s->dtype, KDA_BF16);
    ck_assert_int_eq(s->g_dtype, KDA_BF16);
    ck_assert_int_eq(s->beta_dtype, KDA_BF16);
    ck_assert_int_eq(s->out_dtype, KDA_BF16);
    ck_assert_int_eq(s->state_dtype, KDA_F32);
    ck_assert_int_eq(s->gate, KDA_GATE_BOUNDED);
    ck_assert_int_eq(s->beta, KDA_BETA_SIGMOID);
    ck_assert_int_eq(s->rule, KDA_RULE_DELTA);
    ck_assert_uint_eq(s->flags, KDA_NORM_QK);
    ck_assert_int_eq(s->schedule, KDA_SCHEDULE_AUTO);
    ck_assert_int_eq(s->engine, KDA_ENGINE_AUTO);
    ck_assert(p.states && !p.ragged);
    problem_free(&p);
}
END_TEST

START_TEST(test_every_option_arrives)
{
    struct problem p = parse("2x3x40/f16/softplus/hv6/k20/v7/g=f32/state=bf16/vk/per-head/additive/"
                             "chunkwise/fused/lens=2,0");
    const kda_problem *s = &p.shape;
    ck_assert_int_eq(s->heads, 3);
    ck_assert_int_eq(s->value_heads, 6);
    ck_assert_int_eq(s->key_dim, 20);
    ck_assert_int_eq(s->value_dim, 7);
    ck_assert_int_eq(s->max_tokens, 2);
    ck_assert_int_eq(s->max_sequences, 2);
    ck_assert_int_eq(s->dtype, KDA_F16);
    ck_assert_int_eq(s->g_dtype, KDA_F32);
    ck_assert_int_eq(s->beta_dtype, KDA_F16);
    ck_assert_int_eq(s->out_dtype, KDA_F16);
    ck_assert_int_eq(s->state_dtype, KDA_BF16);
    ck_assert_int_eq(s->gate, KDA_GATE_SOFTPLUS);
    ck_assert_int_eq(s->state_layout, KDA_STATE_VK);
    ck_assert_uint_eq(s->flags, KDA_NORM_QK | KDA_GATE_PER_HEAD);
    ck_assert_int_eq(s->rule, KDA_RULE_ADDITIVE);
    ck_assert_int_eq(s->schedule, KDA_SCHEDULE_CHUNKWISE);
    ck_assert_int_eq(s->engine, KDA_ENGINE_FUSED);
    ck_assert(p.ragged && p.starts[0] == 0 && p.starts[1] == 2 && p.starts[2] == 2);
    problem_free(&p);
}
END_TEST

/* Texts and what the answer must name. */
static const struct {
    const char *text, *says;
} refused[] = {
    {"", "''"},
    {"x", "'x'"},
    {"8", "TxHxD"},
    {"8x4", "TxHxD"},
    {"8x4x", "'8x4x'"},
    {"8x4x16x", "'8x4x16x'"},
    {"8x4y16", "'y'"},
    {"8x-4x16", "'8x-4x16'"},
    {"8x0x16", "'8x0x16'"},
    {"0x4x16", "'0x4x16'"},
    {"1x2x3x4x5", "four"},
    {"2147483648x1x1", "2147483647"},
    {"99999999999999999999x1x1", "2147483647"},
    {"65536x32768x1x1", "tokens"},
    {"2000000x1x1x1", "1048576 sequences"},
    {"8x4x257", "K is at most 256"},
    {"8x4x16/k257", "'k257'"},
    {"8x4x16/v65537", "'v65537'"},
    {"8x4x16/v0", "'v0'"},
    {"8x4x16/v", "'v'"},
    {"8x4x16/hv6", "'hv6'"},
    {"8x4x16/hv-4", "'hv-4'"},
    {"decode:8x4", "decode:NxHxD"},
    {"decode:2x8x4x16", "decode:NxHxD"},
    {"decode:", "'decode:'"},
    {"encode:8x4x16", "'encode:8x4x16'"},
    {"8x4x16/", "''"},
    {"8x4x16//f32", "''"},
    {"8x4x16/f64", "'f64'"},
    {"8x4x16/F32", "'F32'"},
    {"8x4x16/f32/bf16", "'bf16' contradicts or repeats 'f32'"},
    {"8x4x16/log/log", "'log'"},
    {"8x4x16/log/none", "'none'"},
    {"8x4x16/recurrent/chunkwise", "'chunkwise'"},
    {"8x4x16/fused/mma", "'mma'"},
    {"8x4x16/k8/k8", "'k8'"},
    {"8x4x16/none/per-head", "'per-head'"},
    {"8x4x16/g=f32/none", "'g=f32'"},
    {"8x4x16/bf16/g=f16", "'g=f16'"},
    {"8x4x16/f32/g=bf16", "'g=bf16'"},
    {"8x4x16/nostate/vk", "'vk'"},
    {"8x4x16/state=f16/nostate", "'state=f16'"},
    {"8x4x16/state=f64", "'state=f64'"},
    {"8x4x16/lens=3,4", "7 tokens"},
    {"8x4x16/lens=8/lens=8", "twice"},
    {"2x4x16x8/lens=4,4", "'2x4x16x8'"},
    {"decode:2x4x16/lens=1,1", "'decode:2x4x16'"},
    {"4x16/lens=", "'lens='"},
    {"4x16/lens=3,", "'lens=3,'"},
    {"4x16/lens=3;4", "'lens=3;4'"},
    {"4x16/lens=-1", "'lens=-1'"},
    {"4x16/lens=0,0", "tokens"},
    {"4x16/lens=2147483647,1", "tokens"},
    {"16/lens=3", "HxD"},
    {"8x4x16/pool0", "'pool0'"},
    {"8x4x16/pool", "'pool'"},
    {"8x4x16/pool2/nostate", "'pool2'"},
    {"decode:4x4x16/pool3", "'pool3'"},
    {"2x4x4x16/drafts/pool7", "'pool7'"},
    {"2x4x4x16/drafts", "pool#"},
    {"2x17x4x16/drafts/pool99", "16 tokens"},
    {"4x16/lens=1,2/drafts/pool99", "'drafts'"},
};

START_TEST(test_wrong_part_is_named)
{
    struct problem p;
    char why[256] = "";
    ck_assert_msg(!problem_parse(&p, refused[_i].text, why, sizeof why), "accepted: %s",
                  refused[_i].text);
    ck_assert_msg(strstr(why, refused[_i].says), "%s: '%s' does not say %s", refused[_i].text, why,
                  refused[_i].says);
}
END_TEST

/* Counted by hand. */
START_TEST(test_bytes_and_operations)
{
    /* 8 tokens of q, k: 2 x 2 x 16; v, out: 2 x 4 x 8; beta: 4, all of 2 bytes; g: 4 x 16 of 4;
     * 2 x 4 x 16 x 8 states of 4, in and out */
    struct problem p = parse("2x4x2x16/hv4/v8/g=f32");
    ck_assert_double_eq(problem_bytes(&p), 8 * (2 * (64 + 64 + 4) + 4 * 64) + 2 * 2 * 4 * 128 * 4);
    ck_assert_double_eq(problem_flops(&p), 8. * 4 * 128 * 7);
    problem_free(&p);
    p = parse("2x4x2x16/hv4/v8/g=f32/pool20/drafts");
    ck_assert_double_eq(problem_bytes(&p), 8 * (2 * (64 + 64 + 4) + 4 * 64) + 5 * 2 * 4 * 128 * 4);
    problem_free(&p);
    p = parse("8x4x16/none/nostate/f32");
    ck_assert_double_eq(problem_bytes(&p), 8 * 4 * (4 * 64 + 4));
    ck_assert_double_eq(problem_flops(&p), 8. * 4 * 256 * 6);
    problem_free(&p);
    p = parse("8x4x16/per-head/additive/nostate/f32");
    ck_assert_double_eq(problem_bytes(&p), 8 * 4 * (4 * 64 + 4 + 4));
    ck_assert_double_eq(problem_flops(&p), 8. * 4 * 256 * 5);
    problem_free(&p);
}
END_TEST

/* splitmix64's published first output for the seed 0; the moments of the normal numbers. */
START_TEST(test_random_numbers)
{
    enum { N = 1 << 20 };
    double sum = 0, squares = 0, uniform = 0;
    ck_assert_uint_eq(random_bits(0, 0), UINT64_C(0xe220a8397b1dcdaf));
    for (uint64_t i = 0; i < N; ++i) {
        double x = random_normal(1, i), u = random_uniform(1, i);
        sum += x;
        squares += x * x;
        uniform += u;
        ck_assert(u >= 0 && u < 1);
    }
    ck_assert_double_lt(fabs(sum / N), 0.005);
    ck_assert_double_lt(fabs(squares / N - 1), 0.005);
    ck_assert_double_lt(fabs(uniform / N - 0.5), 0.005);
}
END_TEST

/* A problem run on the CPU backend, whose result can be tampered with. */
static struct problem problem;
static struct workload w;

static void run(const char *text)
{
    kda_context *ctx;
    kda_plan *plan;
    problem = parse(text);
    ck_assert(workload_create(&w, &problem, 7));
    ck_assert_int_eq(kda_context_create(&ctx, kda_context_params(.backend = KDA_CPU)), KDA_OK);
    ck_assert_int_eq(kda_plan_create(&plan, ctx, &problem.shape), KDA_OK);
    kda_args args = workload_args(&w, NULL);
    ck_assert_int_eq(kda_execute(plan, &args), KDA_OK);
    kda_plan_destroy(&plan);
    kda_context_destroy(&ctx);
}

static void done(void)
{
    workload_free(&w);
    problem_free(&problem);
}

static struct workload_check judge(void)
{
    struct workload_check check;
    ck_assert(workload_compare(&w, &check));
    return check;
}

static const char *const runs[] = {
    "70x2x16/f32/log",
    "decode:3x2x16/bf16/softplus/hv4",
    "2x8/f16/bounded/v5/vk/state=bf16/lens=0,3,0,65,0",
    "2x9x3x12/f32/none/nostate",
    "9x3x12/bf16/per-head/additive/g=f32",
    "decode:5x2x16/pool5",
    "2x8/f32/vk/pool5/lens=0,3,0,65,0",
    "3x4x2x16/f16/drafts/pool12/recurrent",
};

START_TEST(test_right_results_pass)
{
    run(runs[_i]);
    struct workload_check check = judge();
    ck_assert_msg(check.pass, "%s: %s", runs[_i], check.why);
    ck_assert_int_eq(check.heads, check.all_heads);
    ck_assert_double_gt(check.out_error, 0);
    ck_assert(problem.states ? check.state_error > 0 : check.state_error == 0);
    done();
}
END_TEST

/* One number more than a rounding away, anywhere in an output, is found. */
START_TEST(test_one_wrong_number_fails)
{
    run(runs[_i]);
    for (int t = WORKLOAD_FINAL_STATE; t <= WORKLOAD_OUT; ++t) {
        int type = (int)(t == WORKLOAD_OUT ? problem.shape.out_dtype : problem.shape.state_dtype);
        int64_t count = (int64_t)(w.bytes[t] / number_size(type));
        for (int64_t i = 0; i < count; i += 1 + count / 7) {
            double right = number_load(w.data[t], type, i);
            number_store(w.data[t], type, i, (float)right + 1);
            struct workload_check check = judge();
            ck_assert_msg(!check.pass && *check.why, "%s: tensor %d, element %d", runs[_i], t,
                          (int)i);
            number_store(w.data[t], type, i, NAN);
            ck_assert(!judge().pass);
            number_store(w.data[t], type, i, (float)right);
        }
    }
    ck_assert(judge().pass);
    done();
}
END_TEST

START_TEST(test_no_result_fails)
{
    run(runs[_i]);
    workload_poison(&w);
    struct workload_check check = judge();
    ck_assert(!check.pass && isinf(check.out_error));
    ck_assert(isnan(number_load(w.data[WORKLOAD_OUT], (int)problem.shape.out_dtype, 0)));
    done();
}
END_TEST

/* A large problem is sampled; what lies outside the sample must at least have been written. */
START_TEST(test_large_problems_are_sampled)
{
    run("3x300x32x128/f32/nostate");
    struct workload_check check = judge();
    ck_assert_msg(check.pass, "%s", check.why);
    ck_assert_int_eq(check.heads, 4);
    ck_assert_int_eq(check.all_heads, 96);
    float *out = w.data[WORKLOAD_OUT];
    size_t last = 32 * 128 * 300 - 1, middle = last + 16 * 128 + 5;
    out[last] += 1; /* last head, last token, first sequence */
    ck_assert(!judge().pass);
    out[last] -= 1;
    out[middle] = NAN;
    ck_assert(!judge().pass);
    done();
}
END_TEST

Suite *suite_problem(void)
{
    Suite *suite = suite_create("problems");
    TCase *language = tcase_create("language"), *results = tcase_create("results");
    tcase_add_loop_test(language, test_canonical_form, 0, COUNT(forms));
    tcase_add_test(language, test_text_is_cut_not_overrun);
    tcase_add_test(language, test_defaults_are_the_published_models);
    tcase_add_test(language, test_every_option_arrives);
    tcase_add_loop_test(language, test_wrong_part_is_named, 0, COUNT(refused));
    tcase_add_test(language, test_bytes_and_operations);
    suite_add_tcase(suite, language);
    tcase_add_test(results, test_random_numbers);
    tcase_add_loop_test(results, test_right_results_pass, 0, COUNT(runs));
    tcase_add_loop_test(results, test_one_wrong_number_fails, 0, COUNT(runs));
    tcase_add_loop_test(results, test_no_result_fails, 0, COUNT(runs));
    tcase_add_test(results, test_large_problems_are_sampled);
    suite_add_tcase(suite, results);
    return suite;
}

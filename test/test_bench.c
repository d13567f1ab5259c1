/* What kdabench measures against: a device's limits, on PoCL; what each kernel of a call has to do;
 * others' figures.
 *
 * SPDX-License-Identifier: MIT */
#include "bench.h"
#include "runner.h"
#include "spec.h"

#include <cjson/cJSON.h>
#include <check.h>
#include <stdlib.h>
#include <string.h>

START_TEST(test_limits)
{
    kda_context_params params = *kda_context_params(.backend = KDA_AUTO);
    struct bench b;
    ck_assert_int_eq(spec_resolve("Portable", &params), 0);
    ck_assert_msg(bench_open(&b, &params, false), "%s", b.failure.why);
    bench_limits(&b);
    ck_assert_double_gt(b.copy_bytes_s, 1e8);
    ck_assert_double_gt(b.f32_flops_s, 1e8);
    ck_assert_double_gt(b.empty_s, 0);
    ck_assert_double_eq(b.matrix_flops_s, 0); /* it has no such units */
    ck_assert_double_gt(bench_matrix_flops(&b, false), 0);
    bench_close(&b);
}
END_TEST

#define CHUNKS "schedule=chunkwise engine=x chunk=64 recurrent_up_to=20 device=opencl"

/* Counted by hand: 128 tokens, 2 heads of 64 channels, 4 value heads of 32, in two chunks of 64. */
static const struct {
    const char *kernel;
    bool additive;
    double bytes, flops;
} works[] = {
    /* tokens x (q, k + v + g + beta) + 8 blocks x (3 C K + C C + C V) floats */
    {"kda_prepare", false, 128 * (512 + 256 + 512 + 8) + 8 * 4 * (12288 + 4096 + 2048),
     8 * (786432 + 131072 + 262144. / 3)},
    {"kda_prepare", true, 128 * (512 + 256 + 512 + 8) + 8 * 4 * (8192 + 4096 + 2048), 8 * 262144},
    /* out + states in and out + the same blocks */
    {"kda_scan", false, 128 * 256 + 2 * 32768 + 8 * 4 * (12288 + 4096 + 2048),
     8 * (131072 + 786432 + 2048)},
    {"kda_scan", true, 128 * 256 + 2 * 32768 + 8 * 4 * (8192 + 4096 + 2048),
     8 * (131072 + 524288 + 2048)},
    {"kda_enter", false, 8 * 4 * 3 * 2048, 8 * 2048},
    {"CLBlast", false, 8 * 4 * (12288 + 4096 + 7 * 2048 + 4 * 2048), 8 * (786432 + 262144)},
    {"kda_emit", false, 128 * 256 + 32768 + 8 * 4 * 2048, 0},
    /* blocks of three images of C K and two of C C in bf16 */
    {"kda_mma_prepare", false, 128 * (512 + 512 + 8) + 8 * 2 * (12288 + 8192),
     8 * (524288 + 262144. / 3)},
    {"kda_mma_scan", false, 128 * (256 + 256) + 2 * 32768 + 8 * 2 * (12288 + 8192),
     8 * (2 * 131072 + 786432 + 2048)},
    {"kda_mma", false,
     128 * (512 + 512 + 8) + 128 * (256 + 256) + 2 * 32768 + 2 * 8 * 2 * (12288 + 8192),
     8 * (524288 + 262144. / 3 + 2 * 131072 + 786432 + 2048)},
    {"kda_step", false, 0, 0}, /* nothing goes token by token */
    {"kda_table", false, 0, 0},
};

static struct problem parse(const char *text)
{
    struct problem p;
    char why[256] = "";
    ck_assert_msg(problem_parse(&p, text, why, sizeof why), "%s: %s", text, why);
    return p;
}

START_TEST(test_work)
{
    struct problem p = parse(works[_i].additive ? "128x2x64/hv4/v32/additive" : "128x2x64/hv4/v32");
    struct bench_work work = bench_work(&p, CHUNKS, works[_i].kernel);
    ck_assert_double_eq_tol(work.bytes, works[_i].bytes, 0.5);
    ck_assert_double_eq_tol(work.flops, works[_i].flops, 0.5);
    problem_free(&p);
}
END_TEST

/* Each sequence is worked on by one schedule; without chunks, one kernel does it all. */
START_TEST(test_work_of_mixed_lengths)
{
    struct problem p = parse("2x32/f32/lens=20,0,65,21");
    struct bench_work work = bench_work(&p, CHUNKS, "kda_step");
    ck_assert(bench_has_chunks(&p, CHUNKS));
    ck_assert_double_eq(work.bytes, 20 * (5 * 64 + 2) * 4 + 2 * 2 * 2 * 1024 * 4);
    ck_assert_double_eq_tol(work.flops, 20 * 2 * 1024 * 7, 0.5);
    work = bench_work(&p, CHUNKS, "kda_emit");
    ck_assert_double_eq(work.bytes, 86 * 64 * 4 + 2 * 2 * 1024 * 4 + 3 * 2 * 64 * 32 * 4);
    work = bench_work(&p, "schedule=recurrent device=opencl", "kda_step");
    ck_assert(!bench_has_chunks(&p, "schedule=recurrent device=opencl"));
    ck_assert_double_eq(work.bytes, problem_bytes(&p));
    ck_assert_double_eq(work.flops, problem_flops(&p));
    problem_free(&p);
}
END_TEST

/* Others' figures stand beside problems of the same shape only, on their device only. */
static const struct {
    const char *device, *problem;
    int peers;
    double ratio; /* of the first, to 1 ms */
} beside[] = {
    {"NVIDIA H200", "8192x96x128", 2, 2.598},
    {"NVIDIA H200", "8192x64x128", 3, 1.755},
    {"NVIDIA H200", "8192x96x128/chunkwise/mma", 2, 2.598},
    {"NVIDIA H200", "8192x96x128/softplus", 1, 2.886},
    {"NVIDIA H200", "8192x8x128/mma", 1, 0.318},
    {"NVIDIA H200", "decode:64x32x128/recurrent", 1, 0.0865},
    {"NVIDIA H200", "8192x12x128", 0, 0},
    {"NVIDIA H200", "8192x96x128/f32", 0, 0},
    {"NVIDIA H200", "8192x96x128/vk", 0, 0},
    {"NVIDIA H200", "8191x96x128", 0, 0},
    {"NVIDIA H100", "8192x96x128", 0, 0},
};

START_TEST(test_peers)
{
    struct problem p = parse(beside[_i].problem);
    struct bench b = {0};
    cJSON *row = cJSON_CreateObject();
    cJSON_AddNumberToObject(row, "median_s", 1e-3);
    strcpy(b.device, beside[_i].device);
    bench_peers_add(row, &b, &p);
    const cJSON *list = cJSON_GetObjectItem(row, "peers");
    ck_assert_int_eq(cJSON_GetArraySize(list), beside[_i].peers);
    if (list->child)
        ck_assert_double_eq_tol(cJSON_GetNumberValue(cJSON_GetObjectItem(list->child, "ratio")),
                                beside[_i].ratio, 1e-12);
    cJSON_Delete(row);
    problem_free(&p);
}
END_TEST

START_TEST(test_peers_problems)
{
    size_t count = 0;
    for (const char *text; (text = bench_peers_problem(count)); ++count) {
        struct problem p = parse(text);
        ck_assert_int_eq(p.shape.dtype, KDA_BF16);
        problem_free(&p);
    }
    ck_assert_int_gt(count, 10);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("bench");
    TCase *tcase = tcase_create("bench");
    tcase_add_test(tcase, test_limits);
    tcase_add_loop_test(tcase, test_work, 0, sizeof works / sizeof works[0]);
    tcase_add_test(tcase, test_work_of_mixed_lengths);
    tcase_add_loop_test(tcase, test_peers, 0, sizeof beside / sizeof beside[0]);
    tcase_add_test(tcase, test_peers_problems);
    tcase_set_timeout(tcase, 0);
    suite_add_tcase(suite, tcase);
    return runner_run(srunner_create(suite)) ? EXIT_FAILURE : EXIT_SUCCESS;
}

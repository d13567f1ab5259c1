/* What kdabench tells besides its rows: each kernel of a call, and others' figures.
 *
 * SPDX-License-Identifier: MIT */
#include "files.h"
#include "spec.h"
#include "test_tools.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

static const char *kdabench;

static struct outcome run_list(const char *const *arguments)
{
    program = kdabench;
    return run_arguments(arguments);
}
#define run(...) run_list((const char *const[]){__VA_ARGS__, NULL})

static const cJSON *kernel(const cJSON *document, int index, const char *name)
{
    const cJSON *row = cJSON_GetArrayItem(cJSON_GetObjectItem(document, "results"), 0);
    const cJSON *one = cJSON_GetArrayItem(cJSON_GetObjectItem(row, "kernels"), index);
    ck_assert_msg(one, "no kernel %d", index);
    ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(one, "name")), name);
    return one;
}

/* Where PoCL is not, there is no kernel to tell of. */
START_TEST(test_kernels)
{
    struct outcome o = run("-d", "Portable", "-kjn3", "70x2x16/f32/log/chunkwise");
    if (o.code == EXIT_NO_DEVICE)
        return;
    ck_assert_msg(o.code == EXIT_SUCCESS, "%s", o.err);
    cJSON *document = cJSON_Parse(o.out);
    kernel(document, 0, "kda_prepare");
    const cJSON *scan = kernel(document, 1, "kda_scan");
    ck_assert_double_eq(number(scan, "launches"), 1);
    ck_assert_double_gt(number(scan, "bytes"), 70 * 2 * 16 * 4 + 2 * 2 * 16 * 16 * 4);
    ck_assert_double_eq_tol(
        number(scan, "bytes") / number(scan, "median_s") / number(scan, "bytes_per_s"), 1, 1e-9);
    ck_assert_double_eq_tol(
        number(scan, "flops") / number(scan, "median_s") / number(scan, "flops_per_s"), 1, 1e-9);
    cJSON_Delete(document);
    o = run("-d", "Portable", "-kn3", "70x2x16/f32/log/chunkwise");
    ck_assert_ptr_nonnull(strstr(o.out, " kda_scan  "));
    ck_assert_ptr_nonnull(strstr(o.out, "  1 launch, "));
}
END_TEST

/* Of one launch an empty kernel's time is told, of several it is in the call's. */
START_TEST(test_empty)
{
    struct outcome o = run("-d", "Portable", "-jn5", "decode:2x2x16", "70x2x16/chunkwise");
    if (o.code == EXIT_NO_DEVICE)
        return;
    ck_assert_msg(o.code == EXIT_SUCCESS, "%s", o.err);
    cJSON *document = cJSON_Parse(o.out), *rows = cJSON_GetObjectItem(document, "results");
    const cJSON *one = cJSON_GetArrayItem(rows, 0), *several = cJSON_GetArrayItem(rows, 1);
    ck_assert_double_gt(number(one, "empty_median_s"), 0);
    ck_assert_double_eq_tol(number(one, "empty_median_s") + number(one, "above_empty_s"),
                            number(one, "median_s"), 1e-12);
    ck_assert(cJSON_IsNull(cJSON_GetObjectItem(several, "above_empty_s")));
    cJSON_Delete(document);
}
END_TEST

/* On a processor there are no figures to stand beside, and no problems that have some. */
START_TEST(test_peers)
{
    struct outcome o = run("-d", "cpu", "--peers");
    ck_assert_int_eq(o.code, EXIT_INPUT);
    ck_assert_str_eq(o.out, "");
    ck_assert_ptr_nonnull(strstr(o.err, "; name the problems to measure\n"));
    o = run("-d", "cpu", "-n", "1", "--peers", "9x2x8/f32");
    ck_assert_msg(o.code == EXIT_SUCCESS, "%s", o.err);
    ck_assert_ptr_nonnull(strstr(o.out, "times floor       FLA us  ratio  FlashKDA us"));
    ck_assert_ptr_nonnull(strstr(o.err, "others' figures are of NVIDIA H200, and not shown"));
    ck_assert_ptr_null(strstr(o.out, "Triton"));
    o = run("-d", "cpu", "-l", "--peers");
    ck_assert_ptr_nonnull(strstr(o.out, "\n65536x32x128/bf16/bounded\n"));
    ck_assert_ptr_nonnull(strstr(o.out, "\ndecode:256x32x128/bf16/bounded\n"));
}
END_TEST

Suite *suite_bench_report(const char *path)
{
    Suite *suite = suite_create("kdabench's report");
    TCase *tcase = tcase_create("report");
    kdabench = path;
    tcase_add_checked_fixture(tcase, folder_enter, folder_leave);
    tcase_add_test(tcase, test_kernels);
    tcase_add_test(tcase, test_empty);
    tcase_add_test(tcase, test_peers);
    suite_add_tcase(suite, tcase);
    return suite;
}

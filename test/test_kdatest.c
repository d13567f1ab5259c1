/* kdatest as its users see it: the TAP file, skipped tests, misuse.
 *
 * SPDX-License-Identifier: MIT */
#include "files.h"
#include "spec.h"
#include "test_tools.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *kdatest, *kdatest_wrong;

static struct outcome run_list(const char *tool, const char *const *arguments)
{
    program = tool;
    return run_arguments(arguments);
}
#define run_kdatest(...) run_list(kdatest, (const char *const[]){__VA_ARGS__, NULL})
#define run_kdatest_wrong(...) run_list(kdatest_wrong, (const char *const[]){__VA_ARGS__, NULL})

static void ck_says(const char *output, const char *what)
{
    ck_assert_msg(strstr(output, what), "does not say \"%s\" but\n%.2000s", what, output);
}

static void ck_file_says(const char *path, const char *what)
{
    size_t size;
    char *all = read_bytes(path, &size);
    all = realloc(all, size + 1);
    all[size] = '\0';
    ck_says(all, what);
    free(all);
}

static int count_lines(const char *path, const char *what)
{
    size_t size;
    char *all = read_bytes(path, &size);
    int count = 0;
    all = realloc(all, size + 1);
    all[size] = '\0';
    for (const char *at = all; (at = strstr(at, what)); at++)
        count++;
    free(all);
    return count;
}

START_TEST(test_tap)
{
    struct outcome o =
        run_kdatest("--device", "cpu", "--tap", "good", "--call", "H=1 K=2 V=2 lengths=3");
    ck_assert_int_eq(o.code, EXIT_SUCCESS);
    ck_says(o.out, "\ntests     1 passed, 0 failed, 0 skipped\n");
    ck_file_says("good", "ok 1 - ");
    ck_file_says("good", "\n1..1\n");
    o = run_kdatest("--device", "cpu", "--tap", "bad", "--call", "H=1 K=2 V=2 lengths=3 slack=0");
    ck_assert_int_eq(o.code, EXIT_WRONG);
    ck_says(o.out, "\ntests     0 passed, 1 failed, 0 skipped\n");
    ck_file_says("bad", "not ok 1 - ");
    CHECK_FOLDER("good", "bad");
}
END_TEST

/* Nothing has passed when all was skipped. */
START_TEST(test_skips)
{
    setenv("CK_RUN_CASE", "queues", 1);
    struct outcome o = run_kdatest("--device", "cpu", "--tap", "tap");
    unsetenv("CK_RUN_CASE");
    ck_assert_int_eq(o.code, EXIT_WRONG);
    ck_says(o.out,
            "\ntests     0 passed, 0 failed, 14 skipped\nskipped   14: the CPU backend has no");
    ck_file_says("tap", "test_queues_share_a_plan # SKIP the CPU backend has no queues\n");
}
END_TEST

/* Of a loop test some turns are skipped and others run: each has its own line. */
START_TEST(test_skipped_turns)
{
    setenv("CK_RUN_CASE", "shapes", 1);
    struct outcome o = run_kdatest("--device", "cpu", "--tap", "tap");
    unsetenv("CK_RUN_CASE");
    ck_assert_int_eq(o.code, EXIT_SUCCESS);
    int passed, failed, skipped;
    const char *sums = strstr(o.out, "\ntests     ");
    ck_assert_int_eq(
        sscanf(sums, "\ntests     %d passed, %d failed, %d skipped", &passed, &failed, &skipped),
        3);
    ck_assert_int_gt(passed, 0);
    ck_assert_int_gt(skipped, 0);
    ck_assert_int_eq(count_lines("tap", ": Passed\n"), passed);
    ck_assert_int_eq(count_lines("tap", " # SKIP "), skipped);
}
END_TEST

/* A signal ends kdatest and nobody else, and leaves no file but the one asked for. */
START_TEST(test_signal)
{
    program = "/bin/sh";
    struct outcome o = run_arguments((const char *const[]){
        "-c",
        "\"$1\" --device cpu --tap tap --level full & sleep 1; kill -TERM $!; wait $!; exit $?",
        "sh", kdatest, NULL});
    ck_assert_int_eq(o.code, 128 + SIGTERM);
    CHECK_FOLDER("tap");
}
END_TEST

/* What computes wrongly does not pass, and its errors are not among the worst of the right ones. */
START_TEST(test_wrong_result)
{
    struct outcome o = run_kdatest_wrong("--device", "cpu", "--call", "H=1 K=2 V=2 lengths=3");
    ck_assert_int_eq(o.code, EXIT_WRONG);
    ck_says(o.out, "out [0, 0, 0] is ");
    ck_says(o.out, "\ntests     0 passed, 1 failed, 0 skipped\n");
}
END_TEST

/* The errors of products in bf16 stand in lines of their own. Where PoCL is not, the rest holds. */
START_TEST(test_worst)
{
    struct outcome o = run_kdatest("--device", "cpu", "--call", "H=1 K=16 V=16 lengths=30");
    ck_assert_int_eq(o.code, EXIT_SUCCESS);
    ck_says(o.out, "\nworst     rms error of out: f32 ");
    ck_says(o.out, "\n          of states: f32 ");
    ck_assert_ptr_null(strstr(o.out, "matrix units"));
    o = run_kdatest("--device", "Portable", "--call",
                    "engine=mma schedule=chunkwise dtype=bf16 H=1 K=128 V=64 lengths=65 norm=1");
    if (o.code == EXIT_NO_DEVICE)
        return;
    ck_assert_int_eq(o.code, EXIT_SUCCESS);
    ck_says(o.out, "\n          by matrix units, of out: bf16 ");
    ck_says(o.out, "\n          by matrix units, of states: f32 ");
    ck_assert_ptr_null(strstr(o.out, "rms error of out: "));
}
END_TEST

/* Little is run where little time is wanted, and the summary says so. */
START_TEST(test_level)
{
    struct outcome o = run_kdatest("--device", "cpu", "--level", "quick", "--verbose");
    ck_says(o.out, "\noptions   --level quick ");
    ck_says(o.out, "test_transitions_multiply");
    ck_assert_ptr_null(strstr(o.out, "test_shape_"));
    CHECK_FOLDER(NULL);
}
END_TEST

START_TEST(test_misuse)
{
    char *device = getenv("KDA_TEST_DEVICE");
    device = device ? strdup(device) : NULL;
    unsetenv("KDA_TEST_DEVICE");
    struct outcome o = run_kdatest("--tap", "tap");
    if (device)
        setenv("KDA_TEST_DEVICE", device, 1);
    free(device);
    CHECK_OUTCOME(&o, EXIT_INPUT, "--tap needs --device");
    o = run_kdatest("--device", "cpu", "--call", "H=1", "--tap", "none/tap");
    CHECK_OUTCOME(&o, EXIT_INPUT, "kdatest: --tap none/tap: No such file");
    o = run_kdatest("--device", "cpu", "--call", "H=1 K=257");
    CHECK_OUTCOME(&o, EXIT_INPUT, "kdatest: --call: K must be from 1 to 256, not 257");
    o = run_kdatest("--device", "cpu", "--level", "slow");
    CHECK_OUTCOME(&o, EXIT_INPUT, "--level is quick, normal or full, not slow");
    o = run_kdatest("--device", "cpu", "--soak", "0");
    CHECK_OUTCOME(&o, EXIT_INPUT, "--soak is", "not 0");
    static const char *const seeds[] = {"-1", "+1", " 1", "1x", "", "18446744073709551616"};
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) {
        o = run_kdatest("--device", "cpu", "--call", "H=1", "--seed", seeds[i]);
        CHECK_OUTCOME(&o, EXIT_INPUT, "--seed");
    }
    CHECK_FOLDER(NULL);
}
END_TEST

Suite *suite_kdatest(const char *path, const char *wrong_path)
{
    Suite *suite = suite_create("kdatest");
    TCase *tcase = tcase_create("kdatest");
    kdatest = path;
    kdatest_wrong = wrong_path;
    tcase_add_checked_fixture(tcase, folder_enter, folder_leave);
    tcase_add_test(tcase, test_tap);
    tcase_add_test(tcase, test_skips);
    tcase_add_test(tcase, test_skipped_turns);
    tcase_add_test(tcase, test_signal);
    tcase_add_test(tcase, test_wrong_result);
    tcase_add_test(tcase, test_worst);
    tcase_add_test(tcase, test_level);
    tcase_add_test(tcase, test_misuse);
    suite_add_tcase(suite, tcase);
    return suite;
}

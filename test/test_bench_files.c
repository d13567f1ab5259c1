/* kdabench on files: what --compare makes of two documents, what --plot draws.
 *
 * SPDX-License-Identifier: MIT */
#include "files.h"
#include "spec.h"
#include "test_tools.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *kdabench;

static struct outcome run_list(const char *const *arguments)
{
    program = kdabench;
    return run_arguments(arguments);
}
#define run(...) run_list((const char *const[]){__VA_ARGS__, NULL})

/* A document with one problem, "P", and another that has no time. */
static void write_document(const char *path, const char *status, double p10, double median,
                           double p90)
{
    char text[1024];
    int size =
        snprintf(text, sizeof text,
                 "{\"kda\": \"0\", \"device\": {\"name\": \"D\", \"driver\": null}, \"results\": ["
                 "{\"problem\": \"P\", \"status\": \"%s\", \"why\": \"because\", \"p10_s\": %g, "
                 "\"median_s\": %g, \"p90_s\": %g},"
                 "{\"problem\": \"only %s\", \"status\": \"MEMORY\", \"why\": \"large\"}]}",
                 status, p10, median, p90, path);
    write_bytes(path, text, (size_t)size);
}

/* The problem in B, of which A says 9, 10, 12 us, and what comes of it. */
static const struct {
    const char *status;
    double p10, median, p90; /* us */
    int code;
    const char *says;
} rows[] = {
    {"OK", 9, 10, 12, EXIT_SUCCESS, "1.000\n"},
    {"OK", 12.5, 13, 14, EXIT_WRONG, "1.300  SLOWER\n"},
    {"OK", 11.5, 13, 14, EXIT_SUCCESS, "1.300\n"}, /* the spreads overlap */
    {"OK", 5, 6, 7, EXIT_SUCCESS, "0.600  faster\n"},
    {"OK", 5, 6, 9.5, EXIT_SUCCESS, "0.600\n"},
    {"WRONG", 9, 10, 12, EXIT_WRONG, "WRONG: because\n"},
};

START_TEST(test_compare)
{
    write_document("a", "OK", 9e-6, 10e-6, 12e-6);
    write_document("b", rows[_i].status, 1e-6 * rows[_i].p10, 1e-6 * rows[_i].median,
                   1e-6 * rows[_i].p90);
    struct outcome o = run("--compare", "a", "b");
    ck_assert_msg(o.code == rows[_i].code && strstr(o.out, rows[_i].says), "exit %d\n%s%s", o.code,
                  o.out, o.err);
    ck_assert_ptr_nonnull(strstr(o.out, "only in A: only a\nonly in B: only b\n"));
}
END_TEST

/* A change that no spread hides is none below 5 %. */
START_TEST(test_compare_small_changes)
{
    write_document("a", "OK", 10e-6, 10e-6, 10e-6);
    write_document("b", "OK", 10.4e-6, 10.4e-6, 10.4e-6);
    struct outcome o = run("--compare", "a", "b");
    ck_assert_int_eq(o.code, EXIT_SUCCESS);
    ck_assert_ptr_nonnull(strstr(o.out, "1.040\n"));
}
END_TEST

/* What failed before and still does is no regression. */
START_TEST(test_compare_failures)
{
    write_document("a", "WRONG", 9e-6, 10e-6, 12e-6);
    write_document("b", "DRIVER", 9e-6, 10e-6, 12e-6);
    struct outcome o = run("--compare", "a", "b");
    ck_assert_int_eq(o.code, EXIT_SUCCESS);
    ck_assert_ptr_nonnull(strstr(o.out, "DRIVER: because\n"));
}
END_TEST

START_TEST(test_compare_misuse)
{
    struct outcome o;
    write_document("a", "OK", 9e-6, 10e-6, 12e-6);
    write_bytes("list", "[1, 2", 5);
    write_bytes("empty", "", 0);
    write_bytes("other", "{\"results\": []}", 15);
    o = run("--compare", "a");
    CHECK_OUTCOME(&o, EXIT_INPUT, "--compare takes two files");
    o = run("--compare", "a", "a", "a");
    CHECK_OUTCOME(&o, EXIT_INPUT, "--compare takes two files");
    o = run("--compare", "a", "none");
    CHECK_OUTCOME(&o, EXIT_INPUT, "none: No such file");
    o = run("--compare", "list", "a");
    CHECK_OUTCOME(&o, EXIT_INPUT, "list is not what kdabench --json prints");
    o = run("--compare", "a", "empty");
    CHECK_OUTCOME(&o, EXIT_INPUT, "empty is not what kdabench --json prints");
    write_document("bad", "OK", 9e-6, -10e-6, 12e-6);
    o = run("--compare", "a", "bad");
    CHECK_OUTCOME(&o, EXIT_INPUT, "bad is not what kdabench --json prints");
    o = run("--json", "--compare", "a", "a");
    CHECK_OUTCOME(&o, EXIT_INPUT, "--compare contradicts");
    o = run("--compare", "a", "other");
    ck_assert_int_eq(o.code, EXIT_INPUT); /* nothing in common */
}
END_TEST

#define PLOT(file)                                                                                 \
    run("-d", "cpu", "-n", "1", "--plot", file, "4x2x8/f32", "8x2x8/f32", "8x4x8/f32",             \
        "8x2/lens=3,5", "decode:3x4x8/f32")

START_TEST(test_plot)
{
    bool there = !system("command -v gnuplot >/dev/null");
    struct outcome o = PLOT("it's.svg");
    if (!there) {
        CHECK_OUTCOME(&o, EXIT_INPUT, "gnuplot is missing");
        return;
    }
    ck_assert_msg(o.code == EXIT_SUCCESS, "%s", o.err);
    ck_assert_str_eq(o.err, ""); /* though curves of one point make gnuplot talk */
    size_t size;
    char *svg = read_bytes("it's.svg", &size);
    svg = realloc(svg, size + 1);
    svg[size] = '\0';
    static const char *const curves[] = {">Tx2x8/f32/bounded<",        ">Tx4x8/f32/bounded<",
                                         ">8xHx8/f32/bounded<",        ">decode:Tx4x8/f32/bounded<",
                                         ">decode:3xHx8/f32/bounded<", "</svg>"};
    for (int i = 0; i < COUNT(curves); ++i)
        ck_assert_msg(strstr(svg, curves[i]), "no %s", curves[i]);
    ck_assert_ptr_null(strstr(svg, "lens"));
    free(svg);
    program = "/bin/sh"; /* on a disk with room for 2 KiB */
    o = run_arguments((const char *const[]){
        "-c",
        "trap '' XFSZ; ulimit -f 4; exec \"$0\" -d cpu -n 1 --plot part.svg 4x2x8/f32 8x2x8/f32",
        kdabench, NULL});
    CHECK_OUTCOME(&o, EXIT_INPUT, "gnuplot does not draw part.svg");
    unlink("part.svg");
    o = PLOT("none/x.svg");
    CHECK_OUTCOME(&o, EXIT_INPUT, "none/x.svg: No such file or directory");
    ck_assert_str_eq(o.out, ""); /* said before anything is measured */
    ck_assert_int_eq(access("x.svg", F_OK), -1);
    o = run("-d", "cpu", "--plot", "x.svg", "nonsense");
    ck_assert_int_eq(o.code, EXIT_INPUT);
    ck_assert_int_eq(access("x.svg", F_OK), -1);
}
END_TEST

Suite *suite_bench_files(const char *path)
{
    Suite *suite = suite_create("kdabench on files");
    TCase *tcase = tcase_create("files");
    kdabench = path;
    tcase_add_checked_fixture(tcase, folder_enter, folder_leave);
    tcase_add_loop_test(tcase, test_compare, 0, COUNT(rows));
    tcase_add_test(tcase, test_compare_small_changes);
    tcase_add_test(tcase, test_compare_failures);
    tcase_add_test(tcase, test_compare_misuse);
    tcase_add_test(tcase, test_plot);
    suite_add_tcase(suite, tcase);
    return suite;
}

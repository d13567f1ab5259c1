/* kdabench over several numbers of threads: its rows, and what --compare and --plot make of them.
 *
 * SPDX-License-Identifier: MIT */
#include "files.h"
#include "spec.h"
#include "test_tools.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *kdabench;

static struct outcome run_list(const char *const *arguments)
{
    program = kdabench;
    return run_arguments(arguments);
}
#define run(...) run_list((const char *const[]){__VA_ARGS__, NULL})

/* A row for each number, compared with the first. */
START_TEST(test_rows)
{
    static const int threads[] = {2, 1, 3};
    struct outcome o = run("-d", "cpu", "-n", "3", "--threads", "2,1,3", "-j", "9x2x8", "5x2x8");
    ck_assert_msg(o.code == EXIT_SUCCESS, "%s", o.err);
    cJSON *document = cJSON_Parse(o.out);
    const cJSON *row;
    int i = 0;
    double first = 0;
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(document, "results"))
    {
        const char *plan = cJSON_GetStringValue(cJSON_GetObjectItem(row, "plan"));
        const int n = threads[i % 3];
        char wanted[32];
        snprintf(wanted, sizeof wanted, " threads=%d ", n);
        first = i % 3 ? first : number(row, "median_s");
        ck_assert_double_eq(number(row, "tokens"), i++ < 3 ? 9 : 5);
        ck_assert_msg(plan && strstr(plan, wanted), "%s is not in %s", wanted, plan);
        ck_assert_double_eq(number(row, "threads"), n);
        ck_assert_double_eq_tol(number(row, "speedup") * number(row, "median_s") / first, 1, 1e-9);
        ck_assert_double_eq_tol(number(row, "efficiency") * n, number(row, "speedup") * 2, 1e-9);
    }
    ck_assert_int_eq(i, 6);
    cJSON_Delete(document);
}
END_TEST

static void says(const struct outcome *o, int code, const char *what)
{
    ck_assert_msg(o->code == code && strstr(o->out, what), "exit %d, not \"%s\" but\n%.2000s%.999s",
                  o->code, what, o->out, o->err);
}

/* Columns that only several numbers have. */
START_TEST(test_columns)
{
    struct outcome o = run("-d", "cpu", "-n", "1", "--threads", "3,1", "9x2x8/f32");
    says(&o, EXIT_SUCCESS, "\nproblem            threads  out err");
    says(&o, EXIT_SUCCESS, "\n9x2x8/f32/bounded        3  ");
    says(&o, EXIT_SUCCESS, "     1.000   100.0  schedule=recurrent device=cpu threads=3 ");
    o = run("-d", "cpu", "-n", "1", "--threads", "3", "9x2x8/f32");
    says(&o, EXIT_SUCCESS, "threads=3 ");
    ck_assert(!strstr(o.out, "speed-up"));
    o = run("-d", "cpu", "-n", "1", "--threads", "3", "--csv", "9x2x8/f32");
    says(&o, EXIT_SUCCESS, "\",,,\n");
}
END_TEST

static void write_results(const char *path, const char *results)
{
    char text[1024];
    const int size = snprintf(text, sizeof text, "{\"results\": [%s]}", results);
    write_bytes(path, text, (size_t)size);
}
#define ROW(median, threads)                                                                       \
    "{\"problem\": \"P\", \"status\": \"OK\", \"median_s\": " median ", \"threads\": " threads "}"

/* Rows are compared with those of the same number; one without, with the first. */
START_TEST(test_compare)
{
    write_results("a", ROW("1", "1") "," ROW("2", "2"));
    write_results("b", ROW("3", "2"));
    write_results("c", ROW("7", "null"));
    struct outcome o = run("--compare", "a", "b");
    says(&o, EXIT_SUCCESS, " 1.500\nonly in A: P\n\n1 problem in both");
    o = run("--compare", "c", "a");
    says(&o, EXIT_SUCCESS, " 0.143\n\n1 problem in both");
}
END_TEST

/* A curve for each number. */
START_TEST(test_plot)
{
    if (system("command -v gnuplot >/dev/null"))
        return; /* test_bench_files.c sees what is said then */
    struct outcome o =
        run("-d", "cpu", "-n", "1", "--threads", "2,1", "--plot", "x.svg", "4x2x8", "8x2x8");
    ck_assert_msg(o.code == EXIT_SUCCESS, "%s", o.err);
    size_t size;
    char *svg = read_bytes("x.svg", &size);
    svg = realloc(svg, size + 1);
    svg[size] = '\0';
    ck_assert(strstr(svg, ">Tx2x8/bf16/bounded on 1<") && strstr(svg, ">Tx2x8/bf16/bounded on 2<"));
    free(svg);
}
END_TEST

static const char *const wrong[] = {"0",  "1025", "",    "two",
                                    "1,", "2,0",  "1;2", "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1"};

START_TEST(test_misuse)
{
    struct outcome o = run("--threads", wrong[_i], "8x2x8");
    CHECK_OUTCOME(&o, EXIT_INPUT, "--threads is up to 16 numbers from 1 to 1024, commas between");
}
END_TEST

Suite *suite_bench_threads(const char *path)
{
    Suite *suite = suite_create("kdabench over threads");
    TCase *tcase = tcase_create("threads");
    kdabench = path;
    tcase_add_checked_fixture(tcase, folder_enter, folder_leave);
    tcase_add_test(tcase, test_rows);
    tcase_add_test(tcase, test_columns);
    tcase_add_test(tcase, test_compare);
    tcase_add_test(tcase, test_plot);
    tcase_add_loop_test(tcase, test_misuse, 0, COUNT(wrong));
    suite_add_tcase(suite, tcase);
    return suite;
}

/* The suites of test_tools: kdabench's problem language and its judge, then both programs as users
 * run them.
 *
 * SPDX-License-Identifier: MIT */
#ifndef TEST_TOOLS_H
#define TEST_TOOLS_H

#include <cjson/cJSON.h>
#include <check.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

/* A number of an object of a program's JSON, which must be there. */
double number(const cJSON *object, const char *name);

Suite *suite_problem(void);
/* Of a program. */
Suite *suite_bench_files(const char *path);
Suite *suite_bench_report(const char *path);
Suite *suite_bench_threads(const char *path);
Suite *suite_drivers(const char *kdainfo);
Suite *suite_help(const char *kdabench_path, const char *kdainfo_path);
Suite *suite_kdatest(const char *path, const char *wrong_path);
Suite *suite_output(const char *const *kdabench_kdainfo_kdatest);
Suite *suite_tune(const char *kdabench, const char *kdabench_wrong, const char *kdainfo);
Suite *suite_programs(void);

#endif

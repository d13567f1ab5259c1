/* The tools where standard output goes nowhere: a full disk, a closed one. What was to be printed
 * is lost, and that is no success.
 *
 * SPDX-License-Identifier: MIT */
#include "files.h"
#include "spec.h"
#include "test_tools.h"

#include <stdio.h>

static const char *const *tools;
enum { TOOLS = 3 };
static const char *const arguments[TOOLS] = {"-d cpu --list", "-d cpu --json",
                                             "--device cpu --call H=1"};

static void check(int i, const char *to)
{
    char command[256];
    snprintf(command, sizeof command, "exec \"$0\" %s %s", arguments[i], to);
    program = "/bin/sh";
    struct outcome o = run_arguments((const char *const[]){"-c", command, tools[i], NULL});
    CHECK_OUTCOME(&o, EXIT_INPUT, "standard output cannot be written");
}

START_TEST(test_lost)
{
    check(_i, ">/dev/full");
    check(_i, ">&-");
}
END_TEST

Suite *suite_output(const char *const *kdabench_kdainfo_kdatest)
{
    Suite *suite = suite_create("output");
    TCase *tcase = tcase_create("output");
    tools = kdabench_kdainfo_kdatest;
    tcase_add_checked_fixture(tcase, folder_enter, folder_leave);
    tcase_add_loop_test(tcase, test_lost, 0, TOOLS);
    suite_add_tcase(suite, tcase);
    return suite;
}

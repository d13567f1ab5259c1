/* How a test program runs its suites: in its own process, as OpenCL drivers do not survive a fork.
 *
 * SPDX-License-Identifier: MIT */
#ifndef RUNNER_H
#define RUNNER_H

#include <check.h>

/* Frees the runner; returns how many tests failed. */
static inline int runner_run(SRunner *runner)
{
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed;
}

#endif

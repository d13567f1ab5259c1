/* kdatest --soak: random problems through every engine, serving steps, decode calls and queues
 * again and again, each round with other numbers and in a context of its own; and the memory that
 * the process has after each.
 *
 * SPDX-License-Identifier: MIT */
#include "harness.h"

#include "spec.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

/* Megabytes of memory that the process has, by Linux; 0: unknown. */
static double resident(void)
{
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file)
        return 0;
    if (fscanf(file, "%*s %ld", &pages) != 1)
        pages = 0;
    fclose(file);
    return (double)pages * (double)sysconf(_SC_PAGESIZE) / 1e6;
}

/* Rounds differ in what they take: the most after any of the first ones is compared with the least
 * after any of as many last ones. */
enum { EARLY = 2 };

/* How many calls of decode give the same bits in the first round, and in others. */
enum { MANY_CALLS = 100000, SOME_CALLS = 1000 };

/* One round; how many tests failed, or -1 without a device. */
static int run_round(const kda_context_params *params, bool first, int *tests)
{
    int failed = -1;
    if (device_open(params)) {
        Suite *suite = suite_create("soak");
        suite_add_tcase(suite, tcase_decode(first ? MANY_CALLS : SOME_CALLS));
        suite_add_tcase(suite, tcase_soak(NORMAL));
        suite_add_tcase(suite, tcase_engines());
        suite_add_tcase(suite, tcase_queues());
        SRunner *runner = srunner_create(suite);
        srunner_add_suite(runner, suite_shapes(NORMAL));
        harness_begin();
        srunner_set_fork_status(runner, CK_NOFORK);
        srunner_run_all(runner, CK_SILENT);
        failed = srunner_ntests_failed(runner);
        *tests += srunner_ntests_run(runner) - report_skipped();
        if (failed)
            srunner_print(runner, CK_NORMAL);
        srunner_free(runner);
    }
    device_close();
    return failed;
}

int soak(const kda_context_params *params, long seconds)
{
    const time_t start = time(NULL);
    int failed = 0, rounds = 0, tests = 0;
    double early = 0, late[EARLY] = {0};
    for (; failed == 0 && (rounds < EARLY || time(NULL) - start < seconds);
         rounds++, harness_seed++) {
        failed = run_round(params, rounds == 0, &tests);
        double now = late[rounds % EARLY] = resident();
        early = rounds < EARLY && now > early ? now : early;
        printf("round %d, seed %llu, %ld s: %.1f MB\n", rounds + 1,
               (unsigned long long)harness_seed, (long)(time(NULL) - start), now);
        fflush(stdout);
    }
    double end = late[0];
    for (int i = 1; i < EARLY; i++)
        end = late[i] < end ? late[i] : end;
    printf("%d rounds, %d tests, %d failed; %.1f MB at first, %.1f MB at the end\n", rounds, tests,
           failed, early, end);
    return failed < 0 ? EXIT_NO_DEVICE : failed ? EXIT_WRONG : 0;
}

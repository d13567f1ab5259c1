/* What kdatest tells besides what Check does: the tests that do not apply to a device and why, how
 * far it is, and the results as TAP, in which those tests are skips.
 *
 * SPDX-License-Identifier: MIT */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Of the device under test: tests by their number, a loop test having one for each turn. Texts are
 * the compiler's own. */
static struct skip {
    int test;
    const char *reason;
} * skips;
static int skips_used, tests;
static time_t start, last;

void report_begin(void)
{
    skips_used = tests = 0;
    start = last = time(NULL);
}

void report_test(void)
{
    tests++;
}

void report_skip(const char *reason)
{
    struct skip *more = realloc(skips, (size_t)(skips_used + 1) * sizeof(*skips));
    ck_assert_ptr_nonnull(more);
    skips = more;
    skips[skips_used++] = (struct skip){tests, reason};
}

static int count_skips(const char *reason)
{
    int n = 0;
    for (int i = 0; i < skips_used; i++)
        n += !strcmp(skips[i].reason, reason);
    return n;
}

int report_skipped(void)
{
    return skips_used;
}

void report_print_skips(void)
{
    for (int i = 0; i < skips_used; i++) {
        int first = 0;
        while (strcmp(skips[first].reason, skips[i].reason))
            first++;
        if (first == i)
            printf("skipped   %d: %s\n", count_skips(skips[i].reason), skips[i].reason);
    }
}

/* On a terminal, every two seconds, in a line that the next one writes over. */
void report_progress(void)
{
    time_t now = time(NULL);
    if (now - last < 2 || !isatty(STDERR_FILENO))
        return;
    last = now;
    fprintf(stderr, "\r%4d s: %-60s\r", (int)(now - start), tcase_name());
}

/* Why the test of Check's line was skipped: "ok 7 - file.c:case:test: Passed"; NULL: it was not. */
static const char *skip_of(const char *line)
{
    const int test = strncmp(line, "ok ", 3) ? 0 : atoi(line + 3);
    for (int i = 0; i < skips_used; i++)
        if (skips[i].test == test)
            return skips[i].reason;
    return NULL;
}

void report_tap(FILE *from, FILE *to)
{
    char line[8192];
    rewind(from);
    while (fgets(line, sizeof(line), from)) {
        const char *reason = skip_of(line);
        if (reason)
            fprintf(to, "%.*s # SKIP %s\n", (int)(strrchr(line, ':') - line), line, reason);
        else
            fputs(line, to);
    }
}

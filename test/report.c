/* What kdatest tells besides what Check does: the tests that do not apply to a device and why, how
 * far it is, and the results as TAP, in which those tests are skips.
 *
 * SPDX-License-Identifier: MIT */
#include "harness.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MOST_SKIPS = 64 };

/* Of the device under test. Texts are the compiler's own. */
static struct skip {
    const char *function, *reason;
    int count; /* a loop test counts once a turn */
} skips[MOST_SKIPS];
static int skips_used;
static time_t start, last;

void report_begin(void)
{
    memset(skips, 0, sizeof(skips));
    skips_used = 0;
    start = last = time(NULL);
}

void report_skip(const char *function, const char *reason)
{
    int i = 0;
    while (i < skips_used && strcmp(skips[i].function, function))
        i++;
    ck_assert_int_lt(i, MOST_SKIPS);
    skips_used += i == skips_used;
    skips[i] = (struct skip){function, reason, skips[i].count + 1};
}

/* How many were skipped for a reason; NULL: for any. */
static int count_skips(const char *reason)
{
    int n = 0;
    for (int i = 0; i < skips_used; i++)
        if (!reason || !strcmp(skips[i].reason, reason))
            n += skips[i].count;
    return n;
}

int report_skipped(void)
{
    return count_skips(NULL);
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

/* Check's line of a test that was skipped: "ok 7 - file.c:case:test: Passed". */
static const char *skip_of(const char *line)
{
    char name[128];
    for (int i = 0; !strncmp(line, "ok ", 3) && i < skips_used; i++) {
        int length = (int)strlen(skips[i].function) - 3; /* Check calls it test_fn */
        snprintf(name, sizeof(name), ":%.*s: ", length, skips[i].function);
        if (strstr(line, name))
            return skips[i].reason;
    }
    return NULL;
}

bool report_tap(const char *from, const char *to)
{
    char line[8192];
    FILE *in = fopen(from, "r"), *out = fopen(to, "w");
    while (in && out && fgets(line, sizeof(line), in)) {
        const char *reason = skip_of(line);
        if (reason)
            fprintf(out, "%.*s # SKIP %s\n", (int)(strrchr(line, ':') - line), line, reason);
        else
            fputs(line, out);
    }
    if (in)
        fclose(in);
    remove(from);
    return out && !fclose(out) && in;
}

/* Fuzz target: the problem language of kdabench. A text is refused with a reason, or its canonical
 * text parses to the same.
 *
 * SPDX-License-Identifier: MIT */
#include "problem.h"
#include "fuzz.h"

#include <string.h>

enum { LONGEST = 4096 };

static void check_canonical(const struct problem *p)
{
    static char text[16 * LONGEST], again[16 * LONGEST];
    char why[256] = "";
    struct problem q;
    size_t n = problem_print(p, text, sizeof text);
    FUZZ_CHECK(n == strlen(text), "printed %zu characters", n);
    FUZZ_CHECK(problem_parse(&q, text, why, sizeof why), "'%s' is refused: %s", text, why);
    problem_print(&q, again, sizeof again);
    FUZZ_CHECK(!strcmp(text, again), "'%s' became '%s'", text, again);
    FUZZ_CHECK(p->tokens == q.tokens && p->sequences == q.sequences, "'%s'", text);
    FUZZ_CHECK(!memcmp(&p->shape, &q.shape, sizeof q.shape), "'%s'", text);
    FUZZ_CHECK(!memcmp(p->starts, q.starts, (size_t)(q.sequences + 1) * sizeof *q.starts), "%s",
               text);
    problem_free(&q);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char text[LONGEST + 1];
    char why[256] = "";
    struct problem p;
    size = size < LONGEST ? size : LONGEST;
    memcpy(text, data, size);
    text[size] = '\0';
    if (problem_parse(&p, text, why, sizeof why)) {
        check_canonical(&p);
        problem_free(&p);
    } else {
        FUZZ_CHECK(*why, "'%s' is refused without a reason", text);
    }
    return 0;
}

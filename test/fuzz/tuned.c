/* Fuzz target: rows of kda_context_params.tuned. A text is refused with a line in the log, or plans
 * are made by it.
 *
 * SPDX-License-Identifier: MIT */
#include "fuzz.h"
#include "kda.h"

#include <string.h>

enum { LONGEST = 4096 };

static void count(void *data, kda_log_level level, const char *line)
{
    (void)line;
    ((int *)data)[level]++;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char text[LONGEST + 1];
    int lines[KDA_LOG_DEBUG + 1] = {0};
    size = size < LONGEST ? size : LONGEST;
    memcpy(text, data, size);
    text[size] = '\0';
    kda_context *ctx;
    kda_plan *plan = NULL;
    kda_status st =
        kda_context_create(&ctx, kda_context_params(.backend = KDA_CPU, .threads = 1, .log = count,
                                                    .log_data = lines, .tuned = text));
    FUZZ_CHECK(st == KDA_OK || st == KDA_INVALID, "%s: %s", kda_status_string(st), text);
    FUZZ_CHECK(lines[KDA_LOG_ERROR] == !!st, "%d lines: %s", lines[KDA_LOG_ERROR], text);
    if (!st)
        st = kda_plan_create(
            &plan, ctx, kda_problem(.heads = 1, .key_dim = 8, .value_dim = 8, .max_tokens = 100));
    FUZZ_CHECK(!ctx || !st, "no plan: %s", text);
    kda_plan_destroy(&plan);
    kda_context_destroy(&ctx);
    return 0;
}

/* The public header alone, as strict C99 and C11, and every function of it linked and called.
 *
 * SPDX-License-Identifier: MIT */
#include "kda.h"

static void ignore(void *data, kda_log_level level, const char *line)
{
    (void)data;
    (void)level;
    (void)line;
}

int main(void)
{
    float one = 1, out = 0, minus = -1;
    char text[256];
    kda_fact fact;
    kda_context *ctx = NULL;
    kda_plan *plan = NULL;
    if (kda_context_create(&ctx, kda_context_params(.backend = KDA_CPU, .log = ignore)))
        return 1;
    if (kda_plan_create(&plan, ctx,
                        kda_problem(.heads = 1, .key_dim = 1, .value_dim = 1, .max_tokens = 1)))
        return 2;
    if (kda_execute(plan, kda_args(.tokens = 1, .q.host = &one, .k.host = &one, .v.host = &one,
                                   .g.host = &minus, .beta.host = &one, .out.host = &out)))
        return 3;
    if (kda_enqueue(plan, NULL, kda_args(.tokens = 0), 0, NULL, NULL) != KDA_INVALID)
        return 4;
    if (!kda_plan_describe(plan, text, sizeof text) || !kda_plan_workspace(plan) ||
        !kda_context_facts(ctx, &fact, 1) || kda_context_backend(ctx) != KDA_CPU ||
        kda_context_cl_context(ctx) || kda_context_cl_device(ctx))
        return 5;
    kda_plan_destroy(&plan);
    kda_context_destroy(&ctx);
    return kda_status_string(KDA_OK) && kda_version() && out == 1 ? 0 : 6;
}

/* A memory of two keys: each is written, the first is overwritten, then both are read back.
 * Build: cc example.c $(pkg-config --cflags --libs kda)
 * SPDX-License-Identifier: MIT */
#include <kda.h>
#include <stdio.h>

int main(void)
{
    float k[5][2] = {{1, 0}, {0, 1}, {1, 0}}; /* the key that each of 5 tokens writes */
    float v[5] = {10, 20, 30}, beta[5] = {1, 1, 1};
    float q[5][2] = {{1, 0}, {0, 1}, {1, 0}, {1, 0}, {0, 1}}; /* the key that it reads */
    float out[5] = {0};
    kda_context *ctx;
    kda_plan *plan = NULL;
    kda_status st = kda_context_create(&ctx, NULL); /* a GPU if there is one, else the CPU */
    if (!st)
        st = kda_plan_create(&plan, ctx,
                             kda_problem(.heads = 1, .key_dim = 2, .value_dim = 1, .scale = 1,
                                         .max_tokens = 5, .gate = KDA_GATE_NONE));
    if (!st)
        st = kda_execute(plan, kda_args(.tokens = 5, .q.host = q, .k.host = k, .v.host = v,
                                        .beta.host = beta, .out.host = out));
    printf("%s: %g %g %g %g %g\n", kda_status_string(st), out[0], out[1], out[2], out[3], out[4]);
    kda_plan_destroy(&plan);
    kda_context_destroy(&ctx);
    return st; /* OK: 10 20 30 30 20 */
}

/* The public header from C++11, which has no compound literals: structs are made by hand.
 *
 * SPDX-License-Identifier: MIT */
#include "kda.h"

int main()
{
    float one = 1, out = 0, minus = -1;
    kda_context_params params = {};
    params.struct_size = sizeof params;
    params.backend = KDA_CPU;
    kda_problem problem = {};
    problem.struct_size = sizeof problem;
    problem.heads = problem.key_dim = problem.value_dim = 1;
    problem.max_tokens = 1;
    kda_args args = {};
    args.struct_size = sizeof args;
    args.tokens = 1;
    args.q.host = args.k.host = args.v.host = args.beta.host = &one;
    args.g.host = &minus;
    args.out.host = &out;
    kda_context *ctx = nullptr;
    kda_plan *plan = nullptr;
    if (kda_context_create(&ctx, &params) || kda_plan_create(&plan, ctx, &problem) ||
        kda_execute(plan, &args))
        return 1;
    kda_plan_destroy(&plan);
    kda_context_destroy(&ctx);
    return out == 1 ? 0 : 2;
}

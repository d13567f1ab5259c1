/* Two requests in a pool of eight states, served to the end of a draft. Each state is one number,
 * the sum of what its request was given: additive rule, no gate, every key 1.
 * Build: cc serving.c $(pkg-config --cflags --libs kda)
 * SPDX-License-Identifier: MIT */
#include <kda.h>
#include <stdio.h>

static const float ones[6] = {1, 1, 1, 1, 1, 1};
static float pool[8], out[6];

/* A step of both requests: n tokens with values v, those of each request from starts on. */
#define STEP(n, v_, starts, ...)                                                                   \
    kda_execute(plan, kda_args(.tokens = n, .sequences = 2, .q.host = ones, .k.host = ones,        \
                               .v.host = v_, .out.host = out, .cu_seqlens.host = starts,           \
                               .initial_state.host = pool, .final_state.host = pool, .slots = 8,   \
                               __VA_ARGS__))

int main(void)
{
    const float prompts[] = {1, 2, 3, 10, 20}, next[] = {4, 30}, drafts[] = {5, 6, 7, 1, 1, 1},
                more[] = {100, 100};
    const int32_t prompt_starts[] = {0, 3, 5}, starts[] = {0, 1, 2}, draft_starts[] = {0, 3, 6};
    const int32_t slots[] = {0, 1}, accepted[] = {2, 2};
    const int32_t home[2][3] = {{0, -1, -1}, {1, -1, -1}},
                  draft_slots[2][3] = {{2, 3, 4}, {5, 6, 7}};
    const unsigned char fresh[] = {1, 1};
    kda_context *ctx;
    kda_plan *plan = NULL;
    kda_status st = kda_context_create(&ctx, NULL);
    if (!st)
        st = kda_plan_create(&plan, ctx,
                             kda_problem(.heads = 1, .key_dim = 1, .value_dim = 1, .scale = 1,
                                         .max_tokens = 6, .max_sequences = 2,
                                         .rule = KDA_RULE_ADDITIVE, .gate = KDA_GATE_NONE));
    /* Prompts of 3 and 2 tokens, in slots 0 and 1, whatever these held before. */
    if (!st)
        st = STEP(5, prompts, prompt_starts, .state_index.host = slots, .fresh.host = fresh);
    printf("prompts %g %g", out[2], out[4]);
    /* A token each, in place. */
    if (!st)
        st = STEP(2, next, starts, .state_index.host = slots);
    printf(", decoded %g %g", out[0], out[1]);
    /* Three drafts each: read from home, the state after each draft to a slot of its own. */
    if (!st)
        st = STEP(6, drafts, draft_starts, .index_columns = 3, .state_index.host = home,
                  .write_index.host = draft_slots);
    printf(", drafted %g %g %g, %g %g %g", out[0], out[1], out[2], out[3], out[4], out[5]);
    /* Two of them are accepted: go on from there, back to home. */
    if (!st)
        st = STEP(2, more, starts, .index_columns = 3, .state_index.host = draft_slots,
                  .accepted.host = accepted, .write_index.host = home);
    printf(", went on %g %g\n", out[0], out[1]);
    kda_plan_destroy(&plan);
    kda_context_destroy(&ctx);
    return st; /* prompts 6 30, decoded 10 60, drafted 15 21 28, 61 62 63, went on 121 162 */
}

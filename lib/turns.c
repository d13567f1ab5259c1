/* For drivers that end a kernel's loops once a work-item has turned them so many times
 * (max_loop_turns of lib/device.c): how often that may be in a call. Such calls are refused that
 * may need more.
 *
 * Counted is what llvmpipe (Mesa 22.3.6) counts of the kernels as lib/config.c shapes them for it:
 * every turn of every loop but those that are gone when it is done unrolling. The longest sequences
 * with right results, and what is worked out here for a token or a chunk, without the states at
 * both ends, of which the first two have 1200 turns each (2026-11-30):
 *
 *     K, V             tokens            turns of each, by that        here
 *     128, 128         178               368 a token                   368
 *     128, 8           107               612                           608
 *     24, 8            347               189                           192
 *     1, 1             2048              32                            37
 *     128, 128, C 32   274 chunks        239 a chunk                   244
 *     16, 8, C 16      573               114                           118
 *     64, 16, C 64     409               160                           169
 *
 * SPDX-License-Identifier: MIT */
#include "internal.h"

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Of cl/step.cl, with `stored` states on the way: sums and updates of rows, what an item brings in
 * of a token, loops over columns. */
static int64_t step_turns(const struct kda_config *c, int64_t tokens, int64_t stored)
{
    int64_t items = c->cols * c->groups;
    int64_t brought = ceil_div(c->rows * c->groups, items) + c->vec;
    int64_t each = 2 * c->rows + 2 * brought + 7 * c->vec + 24;
    int64_t state = c->rows * (c->vec + 1) + c->vec;
    return tokens * each + (stored + 1) * state + 3 * brought;
}

/* Of cl/scan.cl: E and O, the token's own four, S, and what an item stores. */
static int64_t scan_turns(const struct kda_config *c, int64_t tokens, int64_t stored)
{
    int64_t rows = c->chunk / c->scan_rows, items = rows * (c->scan_v / c->scan_vec);
    int64_t each = c->padded_k / 4 + c->chunk / 4 + 8 + c->scan_rows * (c->scan_vec + 8) +
                   ceil_div(c->padded_k, 4 * rows) * (c->chunk + 1);
    int64_t state = ceil_div((int64_t)c->padded_k * c->scan_v, items);
    return ceil_div(tokens, c->chunk) * each + (stored + 2) * state;
}

/* Of a skipped sequence kda_step clears the outputs, however long it is. */
static int64_t skip_turns(const struct kda_config *c, const struct kda_run *run)
{
    return kda_present(&run->tensor[KDA_TENSOR_STATE_INDEX])
               ? ceil_div(run->max_length, c->groups) * (c->vec + 2)
               : 0;
}

static int64_t most_turns(const struct kda_config *c, const struct kda_problem *p,
                          const struct kda_run *run, int64_t step_limit)
{
    int64_t tokens = run->max_length, every = p->checkpoint_every;
    int64_t checkpoints = kda_present(&run->tensor[KDA_TENSOR_CHECKPOINTS]) ? tokens / every : 0;
    int64_t steps = tokens < step_limit ? tokens : step_limit;
    int64_t turns =
        step_turns(c, steps, checkpoints + (run->columns < steps ? run->columns : steps));
    int64_t scan = tokens > step_limit ? scan_turns(c, tokens, checkpoints) : 0;
    int64_t skip = skip_turns(c, run);
    turns = turns > scan ? turns : scan;
    return turns > skip ? turns : skip;
}

kda_status kda_turns_check(const kda_plan *plan, const struct kda_run *run, int64_t step_limit)
{
    const struct kda_launch *l = plan->backend;
    const int64_t limit = plan->ctx->device->max_loop_turns;
    const int64_t turns = limit ? most_turns(&l->config, &plan->problem, run, step_limit) : 0;
    if (turns <= limit)
        return KDA_OK;
    kda_log(plan->ctx, KDA_LOG_ERROR,
            "kda_args: a sequence of %lld tokens: this driver ends loops after %lld iterations, "
            "this call may need %lld",
            (long long)run->max_length, (long long)limit, (long long)turns);
    return KDA_UNSUPPORTED;
}

/* A call of a plan: kernel arguments, and the order of the launches. The only file that sets kernel
 * arguments.
 *
 * SPDX-License-Identifier: MIT */
#include <stdatomic.h>
#include <time.h>

#include "args.h"
#include "internal.h"

/* The parameters of each kernel, in order: SCALARS, buffers, the WORKSPACE; END closes the list. */
#define STEP_PARAMETERS                                                                            \
    {                                                                                              \
        SCALARS, KDA_TENSOR_Q, KDA_TENSOR_K, KDA_TENSOR_V, KDA_TENSOR_G, KDA_TENSOR_BETA,          \
            KDA_TENSOR_A_LOG, KDA_TENSOR_DT_BIAS, KDA_TENSOR_CU_SEQLENS, KDA_TENSOR_STATE_INDEX,   \
            KDA_TENSOR_WRITE_INDEX, KDA_TENSOR_ACCEPTED, KDA_TENSOR_FRESH,                         \
            KDA_TENSOR_INITIAL_STATE, KDA_TENSOR_FINAL_STATE, KDA_TENSOR_OUT,                      \
            KDA_TENSOR_CHECKPOINTS, END                                                            \
    }
enum { WORKSPACE = KDA_TENSORS, SCALARS, END };
static const signed char parameters[KDA_KERNELS][KDA_TENSORS + 3] = {
    [KDA_KERNEL_STEP] = STEP_PARAMETERS,
    [KDA_KERNEL_STEP_NARROW] = STEP_PARAMETERS,
    [KDA_KERNEL_STEP_ONE] = STEP_PARAMETERS,
    [KDA_KERNEL_STEP_FEW] = {KDA_TENSOR_INITIAL_STATE, SCALARS, KDA_TENSOR_Q, KDA_TENSOR_K,
                             KDA_TENSOR_G, KDA_TENSOR_V, KDA_TENSOR_BETA, KDA_TENSOR_A_LOG,
                             KDA_TENSOR_DT_BIAS, KDA_TENSOR_FINAL_STATE, KDA_TENSOR_OUT,
                             KDA_TENSOR_STATE_INDEX, KDA_TENSOR_WRITE_INDEX, END},
    [KDA_KERNEL_TABLE] = {SCALARS, KDA_TENSOR_CU_SEQLENS, KDA_TENSOR_STATE_INDEX,
                          KDA_TENSOR_ACCEPTED, WORKSPACE, END},
    [KDA_KERNEL_PREPARE] = {SCALARS, KDA_TENSOR_Q, KDA_TENSOR_K, KDA_TENSOR_V, KDA_TENSOR_G,
                            KDA_TENSOR_BETA, KDA_TENSOR_A_LOG, KDA_TENSOR_DT_BIAS,
                            KDA_TENSOR_CU_SEQLENS, WORKSPACE, END},
    [KDA_KERNEL_SCAN] = {SCALARS, KDA_TENSOR_CU_SEQLENS, KDA_TENSOR_STATE_INDEX,
                         KDA_TENSOR_WRITE_INDEX, KDA_TENSOR_ACCEPTED, KDA_TENSOR_FRESH,
                         KDA_TENSOR_INITIAL_STATE, KDA_TENSOR_FINAL_STATE, KDA_TENSOR_OUT,
                         KDA_TENSOR_CHECKPOINTS, WORKSPACE, END},
    [KDA_KERNEL_ENTER] = {SCALARS, KDA_TENSOR_STATE_INDEX, KDA_TENSOR_ACCEPTED, KDA_TENSOR_FRESH,
                          KDA_TENSOR_INITIAL_STATE, WORKSPACE, END},
    [KDA_KERNEL_EMIT] = {SCALARS, KDA_TENSOR_CU_SEQLENS, KDA_TENSOR_STATE_INDEX,
                         KDA_TENSOR_WRITE_INDEX, KDA_TENSOR_ACCEPTED, KDA_TENSOR_FINAL_STATE,
                         KDA_TENSOR_OUT, KDA_TENSOR_CHECKPOINTS, WORKSPACE, END},
    [KDA_KERNEL_MMA] = {SCALARS, KDA_TENSOR_Q, KDA_TENSOR_K, KDA_TENSOR_V, KDA_TENSOR_G,
                        KDA_TENSOR_BETA, KDA_TENSOR_A_LOG, KDA_TENSOR_DT_BIAS,
                        KDA_TENSOR_CU_SEQLENS, KDA_TENSOR_STATE_INDEX, KDA_TENSOR_WRITE_INDEX,
                        KDA_TENSOR_ACCEPTED, KDA_TENSOR_FRESH, KDA_TENSOR_INITIAL_STATE,
                        KDA_TENSOR_FINAL_STATE, KDA_TENSOR_OUT, KDA_TENSOR_CHECKPOINTS, WORKSPACE,
                        END},
    [KDA_KERNEL_MMA_PREPARE] = {SCALARS, KDA_TENSOR_Q, KDA_TENSOR_K, KDA_TENSOR_G, KDA_TENSOR_BETA,
                                KDA_TENSOR_A_LOG, KDA_TENSOR_DT_BIAS, KDA_TENSOR_CU_SEQLENS,
                                WORKSPACE, END},
    [KDA_KERNEL_MMA_SCAN] = {SCALARS, KDA_TENSOR_V, KDA_TENSOR_CU_SEQLENS, KDA_TENSOR_STATE_INDEX,
                             KDA_TENSOR_WRITE_INDEX, KDA_TENSOR_ACCEPTED, KDA_TENSOR_FRESH,
                             KDA_TENSOR_INITIAL_STATE, KDA_TENSOR_FINAL_STATE, KDA_TENSOR_OUT,
                             KDA_TENSOR_CHECKPOINTS, WORKSPACE, END},
    [KDA_KERNEL_MMA_JOIN] = {SCALARS, WORKSPACE, END},
};

/* A chain of launches: each waits for the one before, the first for the caller's events. On an
 * in-order queue the queue sees to that. */
struct chain {
    cl_command_queue queue;
    bool out_of_order;
    cl_uint num_wait;
    const cl_event *wait;
    cl_event last; /* of the last launch, where somebody waits for it; owned here */
};

/* Whether the chain's launches have events, the last one aside. */
static bool has_events(const kda_plan *plan, const struct chain *chain)
{
    return chain->out_of_order || plan->ctx->on_launch;
}

/* What a launch leaves behind: the next one waits for it. */
static void chain_on(const kda_plan *plan, struct chain *chain, const char *kernel, cl_event done)
{
    if (plan->ctx->on_launch)
        plan->ctx->on_launch(plan->ctx->launch_data, kernel, done);
    if (chain->last)
        clReleaseEvent(chain->last);
    chain->last = done;
    chain->num_wait = chain->out_of_order ? 1 : 0;
    chain->wait = chain->out_of_order ? &chain->last : NULL;
}

/* In the form in which a kernel takes them. */
static cl_int set_scalars(const kda_plan *plan, enum kda_kernel_id id, cl_uint index,
                          const struct kda_call_args *args)
{
    cl_kernel kernel = ((const struct kda_launch *)plan->backend)->kernel[id];
    struct kda_few_args few;
    if (id != KDA_KERNEL_STEP_FEW)
        return clSetKernelArg(kernel, index, sizeof *args, args);
    kda_few_args(&plan->problem, args, &few);
    return clSetKernelArg(kernel, index, sizeof few, &few);
}

static kda_status launch_range(const kda_plan *plan, struct chain *chain, enum kda_kernel_id id,
                               const struct kda_run *run, const struct kda_call_args *args,
                               const size_t *local, const size_t *global, cl_event *event)
{
    const struct kda_launch *l = plan->backend;
    cl_kernel kernel = l->kernel[id];
    const signed char *list = parameters[id];
    cl_int err = CL_SUCCESS;
    for (cl_uint i = 0; !err && list[i] != END; i++) {
        if (list[i] == SCALARS)
            err = set_scalars(plan, id, i, args);
        else if (list[i] == WORKSPACE)
            err = clSetKernelArg(kernel, i, sizeof(cl_mem), &run->workspace.mem);
        else
            err = clSetKernelArg(kernel, i, sizeof(cl_mem), &run->tensor[list[i]].mem);
    }
    kda_status st = kda_cl_check(plan->ctx, err, "clSetKernelArg");
    if (st)
        return st;
    cl_event done = NULL;
    bool wants_event = event || has_events(plan, chain);
    err = clEnqueueNDRangeKernel(chain->queue, kernel, 3, NULL, global, local, chain->num_wait,
                                 chain->wait, wants_event ? &done : NULL);
    if ((st = kda_cl_check(plan->ctx, err, "clEnqueueNDRangeKernel")))
        return st;
    chain_on(plan, chain, kda_kernel_name(id), done);
    return KDA_OK;
}

/* Work-groups that find their work by one number: GROUP_ID in cl/common.cl. */
static kda_status launch(const kda_plan *plan, struct chain *chain, enum kda_kernel_id id,
                         const struct kda_run *run, const struct kda_call_args *args, size_t items,
                         int64_t groups, cl_event *event)
{
    const struct kda_launch *l = plan->backend;
    const size_t n = (size_t)groups, local[] = {items, 1, 1};
    const size_t global[] = {l->config.compact ? items : items * n, 1, l->config.compact ? n : 1};
    return launch_range(plan, chain, id, run, args, local, global, event);
}

/* A work-item for each cell of many rows. */
static kda_status launch_rows(const kda_plan *plan, struct chain *chain, enum kda_kernel_id id,
                              const struct kda_run *run, const struct kda_call_args *args,
                              int64_t cells, int64_t rows, cl_event *event)
{
    const struct kda_launch *l = plan->backend;
    const size_t items = (size_t)l->config.gemm_wg;
    const size_t local[] = {items, 1, 1};
    const size_t global[] = {((size_t)cells + items - 1) / items * items, 1, (size_t)rows};
    return launch_range(plan, chain, id, run, args, local, global, event);
}

/* One product of the clblast engine. CLBlast takes no wait list, so on an out-of-order queue a
 * barrier keeps it behind the launch before. */
static kda_status multiply(const kda_plan *plan, struct chain *chain, const struct kda_run *run,
                           const struct kda_gemm *gemm)
{
    cl_event done = NULL;
    kda_status st = KDA_OK;
    if (chain->out_of_order)
        st = kda_cl_check(
            plan->ctx,
            clEnqueueBarrierWithWaitList(chain->queue, chain->num_wait, chain->wait, NULL),
            "clEnqueueBarrierWithWaitList");
    if (!st)
        st = kda_gemm_enqueue(plan->ctx, chain->queue, run->workspace.mem, gemm,
                              has_events(plan, chain) ? &done : NULL);
    if (!st)
        chain_on(plan, chain, "CLBlast", done);
    return st;
}

/* The clblast engine's scan over the chunks of a piece, then its outputs: see cl/gemm.cl. */
static kda_status launch_products(const kda_plan *plan, struct chain *chain,
                                  const struct kda_run *run, struct kda_call_args *args,
                                  cl_event *event)
{
    const struct kda_launch *l = plan->backend;
    const struct kda_config *c = &l->config;
    const int64_t C = c->chunk, K = c->padded_k, V = c->padded_v, HV = plan->problem.value_heads;
    const int64_t factors = args->factors, stride = args->factor_stride, blocks = HV * stride;
    const int64_t w = 0, qd = C * K, ke = 2 * C * K, a = 3 * C * K, u = a + C * C + K;
    kda_status st = KDA_OK;
    for (int64_t i = 0; !st && i < args->chunk_count; i++) {
        const int64_t at = factors + i * blocks, state = i * HV * K * V;
        const struct kda_gemm errors = {.m = C,
                                        .n = V,
                                        .k = K,
                                        .batch = HV,
                                        .alpha = -1,
                                        .beta = 1,
                                        .a = {at + w, K, stride},
                                        .b = {args->states_in + state, V, K * V},
                                        .c = {at + u, V, stride}};
        const struct kda_gemm writes = {.transpose_a = true,
                                        .m = K,
                                        .n = V,
                                        .k = C,
                                        .batch = HV,
                                        .alpha = 1,
                                        .beta = 1,
                                        .a = {at + ke, K, stride},
                                        .b = {at + u, V, stride},
                                        .c = {args->states_out + state, V, K * V}};
        args->step = (kda_i32)i;
        st = launch_rows(plan, chain, KDA_KERNEL_ENTER, run, args, K * V, HV, NULL);
        if (!st && plan->problem.rule == KDA_RULE_DELTA)
            st = multiply(plan, chain, run, &errors);
        if (!st)
            st = multiply(plan, chain, run, &writes);
    }
    const struct kda_gemm reads = {.m = C,
                                   .n = V,
                                   .k = K,
                                   .batch = args->chunk_count * HV,
                                   .alpha = 1,
                                   .a = {factors + qd, K, stride},
                                   .b = {args->states_in, V, K * V},
                                   .c = {args->products, V, C * V}};
    const struct kda_gemm inside = {.m = C,
                                    .n = V,
                                    .k = C,
                                    .batch = args->chunk_count * HV,
                                    .alpha = 1,
                                    .beta = 1,
                                    .a = {factors + a, C, stride},
                                    .b = {factors + u, V, stride},
                                    .c = {args->products, V, C * V}};
    if (!st)
        st = multiply(plan, chain, run, &reads);
    if (!st)
        st = multiply(plan, chain, run, &inside);
    if (!st)
        st = launch_rows(plan, chain, KDA_KERNEL_EMIT, run, args, (C > K ? C : K) * V,
                         args->chunk_count * HV, event);
    return st;
}

/* ---- Run -------------------------------------------------------------------------------- */

static struct kda_call_args call_args_of(const kda_plan *plan, const struct kda_run *run)
{
    const struct kda_launch *l = plan->backend;
    const struct kda_workspace *w = &l->workspace;
    struct kda_call_args args = kda_call_args(&plan->problem, &l->config, run);
    int64_t base = (int64_t)(run->workspace.offset / sizeof(float));
    args.table = base + w->table;
    args.progress = base + w->progress;
    args.factors = base + w->factors;
    args.factor_stride = w->factor_stride;
    args.states_in = base + w->states_in;
    args.states_out = base + w->states_out;
    args.products = base + w->products;
    args.piece = (kda_i32)l->config.piece;
    return args;
}

/* What takes sequences token by token: by how state rows lie, how long sequences are, and what else
 * the call has. */
static enum kda_kernel_id step_kernel(const kda_plan *plan, const struct kda_run *run,
                                      const struct kda_call_args *args)
{
    const struct kda_launch *l = plan->backend;
    struct kda_few_args few;
    if (l->kernel[KDA_KERNEL_STEP_NARROW] && !(args->has & KDA_HAS_WIDE_STATES))
        return KDA_KERNEL_STEP_NARROW;
    if (run->max_length > 1)
        return KDA_KERNEL_STEP;
    if (l->kernel[KDA_KERNEL_STEP_FEW] && kda_few_args(&plan->problem, args, &few))
        return KDA_KERNEL_STEP_FEW;
    return l->kernel[KDA_KERNEL_STEP_ONE] ? KDA_KERNEL_STEP_ONE : KDA_KERNEL_STEP;
}

/* What the host knows of a call: whether any sequence may go token by token, and how many chunks
 * the others have at most. */
struct extent {
    bool steps;
    int64_t chunks;
};

static struct extent extent_of(const struct kda_config *c, const struct kda_run *run)
{
    bool ragged = kda_present(&run->tensor[KDA_TENSOR_CU_SEQLENS]);
    bool skips = kda_present(&run->tensor[KDA_TENSOR_STATE_INDEX]);
    if (run->max_length <= kda_step_limit(c, run))
        return (struct extent){.steps = true};
    if (ragged)
        return (struct extent){true, kda_workspace_chunks(c, run->tokens, run->sequences)};
    return (struct extent){skips, run->sequences * ((run->max_length + c->chunk - 1) / c->chunk)};
}

/* Everything about a piece's chunks that does not need the state. */
static kda_status launch_prepare(const kda_plan *plan, struct chain *chain,
                                 const struct kda_run *run, const struct kda_call_args *args)
{
    const struct kda_config *c = &((const struct kda_launch *)plan->backend)->config;
    bool mma = c->teams;
    enum kda_kernel_id id = mma ? KDA_KERNEL_MMA_PREPARE : KDA_KERNEL_PREPARE;
    int64_t blocks = (int64_t)args->chunk_count * plan->problem.value_heads;
    int64_t groups = mma ? kda_shares_preparers(blocks) : blocks;
    return launch(plan, chain, id, run, args, kda_config_items(c, id), groups, NULL);
}

/* The scan of so many sequences or segments, of so many columns. */
static kda_status launch_scan(const kda_plan *plan, struct chain *chain, const struct kda_run *run,
                              const struct kda_call_args *args, int64_t scans, int64_t columns,
                              cl_event *event)
{
    const struct kda_config *c = &((const struct kda_launch *)plan->backend)->config;
    enum kda_kernel_id id = c->teams ? KDA_KERNEL_MMA_SCAN : KDA_KERNEL_SCAN;
    return launch(plan, chain, id, run, args, kda_config_items(c, id),
                  kda_config_scan_groups(&plan->problem, c, scans, columns), event);
}

/* A number that no other launch has had, whose like no memory holds by chance: this process's first
 * one comes from the clock and from where its memory is. */
static int64_t next_call(void)
{
    static _Atomic uint64_t last;
    uint64_t none = 0;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t first = ((uint64_t)now.tv_sec << 30 ^ (uint64_t)now.tv_nsec ^ (uintptr_t)&now) *
                     0x9e3779b97f4a7c15u;
    atomic_compare_exchange_strong(&last, &none, first | 1);
    return (int64_t)atomic_fetch_add(&last, 1);
}

/* What needs no state, unless it is there already, then the scan: on matrix units both in one,
 * where there are any. */
static kda_status launch_mma(const kda_plan *plan, struct chain *chain, const struct kda_run *run,
                             struct kda_call_args *args, int64_t scans, int64_t columns,
                             bool prepared, cl_event *event)
{
    const struct kda_launch *l = plan->backend;
    const struct kda_shares shares =
        prepared ? kda_shares_of_scan(plan->ctx, &plan->problem, &l->config, scans, columns)
                 : kda_shares_of(plan->ctx, &plan->problem, &l->config, scans, columns,
                                 args->chunk_count);
    args->preparers = shares.preparers;
    args->heads_abreast = shares.heads_abreast;
    if (l->kernel[KDA_KERNEL_MMA])
        return launch(plan, chain, KDA_KERNEL_MMA, run, args,
                      kda_config_items(&l->config, KDA_KERNEL_MMA),
                      shares.preparers + shares.scanners, event);
    kda_status st = prepared ? KDA_OK : launch_prepare(plan, chain, run, args);
    return st ? st : launch_scan(plan, chain, run, args, scans, columns, event);
}

/* One piece. */
static kda_status launch_piece(const kda_plan *plan, struct chain *chain, const struct kda_run *run,
                               struct kda_call_args *args, cl_event *event)
{
    const struct kda_launch *l = plan->backend;
    const struct kda_config *c = &l->config;
    const int64_t V = plan->problem.value_dim;
    if (c->teams) {
        args->call = next_call();
        return launch_mma(plan, chain, run, args, run->sequences, V, false, event);
    }
    kda_status st = launch_prepare(plan, chain, run, args);
    if (st)
        return st;
    return c->engine == KDA_ENGINE_CLBLAST
               ? launch_products(plan, chain, run, args, event)
               : launch_scan(plan, chain, run, args, run->sequences, V, event);
}

/* All chunks at once, of sequences that are cut: see cl/mma_segments.cl. */
static kda_status launch_segments(const kda_plan *plan, struct chain *chain,
                                  const struct kda_run *run, struct kda_call_args *args,
                                  int64_t chunks, cl_event *event)
{
    const struct kda_launch *l = plan->backend;
    const struct kda_config *c = &l->config;
    const kda_problem *p = &plan->problem;
    const int64_t longest = (run->max_length + c->chunk - 1) / c->chunk;
    const int64_t segments = (longest + c->segment - 1) / c->segment;
    const bool cut = segments > 1;
    args->first_chunk = 0;
    args->chunk_count = (kda_i32)chunks;
    args->call = next_call();
    args->piece = c->segment;
    args->step = (kda_i32)segments;
    kda_status st = KDA_OK;
    if (cut)
        st = launch_mma(plan, chain, run, args, run->sequences * segments,
                        p->value_dim + p->key_dim, false, NULL);
    if (cut && !st)
        st = launch(plan, chain, KDA_KERNEL_MMA_JOIN, run, args,
                    kda_config_items(c, KDA_KERNEL_MMA_JOIN),
                    run->sequences * p->value_heads * p->value_dim / KDA_JOIN_COLUMNS, NULL);
    args->states_out = 0;
    return st ? st
              : launch_mma(plan, chain, run, args, run->sequences * segments, p->value_dim, cut,
                           event);
}

/* The chunkwise part of a call, piece by piece. */
static kda_status launch_chunks(const kda_plan *plan, struct chain *chain,
                                const struct kda_run *run, struct kda_call_args *args,
                                int64_t chunks, cl_event *event)
{
    const struct kda_launch *l = plan->backend;
    const struct kda_config *c = &l->config;
    int64_t base = args->table - l->workspace.table;
    kda_status st = KDA_OK;
    if (kda_present(&run->tensor[KDA_TENSOR_CU_SEQLENS]))
        st = launch(plan, chain, KDA_KERNEL_TABLE, run, args, kda_config_items(c, KDA_KERNEL_TABLE),
                    1, NULL);
    else
        args->chunks_each = (kda_i32)(chunks / run->sequences);
    if (!st && c->segment)
        return launch_segments(plan, chain, run, args, chunks, event);
    for (int64_t first = 0, turn = 0; !st && first < chunks; first += c->piece, turn ^= 1) {
        int64_t count = chunks - first < c->piece ? chunks - first : c->piece;
        args->first_chunk = (kda_i32)first;
        args->chunk_count = (kda_i32)count;
        args->carry_in = base + l->workspace.carry[turn];
        args->carry_out = base + l->workspace.carry[turn ^ 1];
        cl_event *last = first + count == chunks ? event : NULL;
        st = launch_piece(plan, chain, run, args, last);
    }
    return st;
}

kda_status kda_launch_run(kda_plan *plan, cl_command_queue queue, const struct kda_run *run,
                          cl_uint num_wait, const cl_event *wait, cl_event *event)
{
    struct kda_launch *l = plan->backend;
    const struct kda_config *c = &l->config;
    struct chain chain = {.queue = queue, .num_wait = num_wait, .wait = wait};
    cl_command_queue_properties properties = 0;
    kda_status st = kda_cl_check(
        plan->ctx,
        clGetCommandQueueInfo(queue, CL_QUEUE_PROPERTIES, sizeof properties, &properties, NULL),
        "clGetCommandQueueInfo(CL_QUEUE_PROPERTIES)");
    if (st)
        return st;
    chain.out_of_order = properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE;

    struct kda_call_args args = call_args_of(plan, run);
    st = kda_turns_check(plan, run, args.step_limit);
    if (st)
        return st;
    struct extent extent = extent_of(c, run);
    pthread_mutex_lock(&l->lock);
    enum kda_kernel_id step = step_kernel(plan, run, &args);
    if (extent.steps)
        st = launch(plan, &chain, step, run, &args, kda_config_items(c, step),
                    kda_config_step_groups(&plan->problem, c, run->sequences),
                    extent.chunks ? NULL : event);
    if (!st && extent.chunks)
        st = launch_chunks(plan, &chain, run, &args, extent.chunks, event);
    pthread_mutex_unlock(&l->lock);
    if (!st && event) {
        *event = chain.last;
        chain.last = NULL;
    }
    if (chain.last)
        clReleaseEvent(chain.last);
    return st;
}

/* What a plan launches: its kernels, their arguments, and the order of the launches. The only file
 * that sets kernel arguments.
 *
 * SPDX-License-Identifier: MIT */
#include <pthread.h>
#include <stdlib.h>

#include "args.h"
#include "internal.h"

enum kernel_id { STEP, TABLE, PREPARE, SCAN, ENTER, EMIT, KERNELS };

/* The buffers of each kernel after its scalars, in the order of its parameters; WORKSPACE stands
 * for the workspace, END closes the list. */
enum { WORKSPACE = KDA_TENSORS, END };
static const struct {
    const char *name;
    enum kda_stage stage;
    signed char buffers[KDA_TENSORS + 2];
} kernels[KERNELS] = {
    [STEP] = {"kda_step",
              KDA_STAGE_STEP,
              {KDA_TENSOR_Q, KDA_TENSOR_K, KDA_TENSOR_V, KDA_TENSOR_G, KDA_TENSOR_BETA,
               KDA_TENSOR_A_LOG, KDA_TENSOR_DT_BIAS, KDA_TENSOR_CU_SEQLENS, KDA_TENSOR_STATE_INDEX,
               KDA_TENSOR_INITIAL_STATE, KDA_TENSOR_FINAL_STATE, KDA_TENSOR_OUT,
               KDA_TENSOR_CHECKPOINTS, END}},
    [TABLE] = {"kda_table",
               KDA_STAGE_CHUNK,
               {KDA_TENSOR_CU_SEQLENS, KDA_TENSOR_STATE_INDEX, WORKSPACE, END}},
    [PREPARE] = {"kda_prepare",
                 KDA_STAGE_CHUNK,
                 {KDA_TENSOR_Q, KDA_TENSOR_K, KDA_TENSOR_V, KDA_TENSOR_G, KDA_TENSOR_BETA,
                  KDA_TENSOR_A_LOG, KDA_TENSOR_DT_BIAS, KDA_TENSOR_CU_SEQLENS, WORKSPACE, END}},
    [SCAN] = {"kda_scan",
              KDA_STAGE_SCAN,
              {KDA_TENSOR_CU_SEQLENS, KDA_TENSOR_STATE_INDEX, KDA_TENSOR_INITIAL_STATE,
               KDA_TENSOR_FINAL_STATE, KDA_TENSOR_OUT, KDA_TENSOR_CHECKPOINTS, WORKSPACE, END}},
    [ENTER] = {"kda_enter",
               KDA_STAGE_GEMM,
               {KDA_TENSOR_STATE_INDEX, KDA_TENSOR_INITIAL_STATE, WORKSPACE, END}},
    [EMIT] = {"kda_emit",
              KDA_STAGE_GEMM,
              {KDA_TENSOR_CU_SEQLENS, KDA_TENSOR_STATE_INDEX, KDA_TENSOR_FINAL_STATE,
               KDA_TENSOR_OUT, KDA_TENSOR_CHECKPOINTS, WORKSPACE, END}},
};

/* Whether a plan with this configuration launches a kernel. */
static bool is_used(const struct kda_config *c, enum kernel_id id)
{
    if (id == STEP || !c->chunk)
        return id == STEP;
    if (id == TABLE || id == PREPARE)
        return true;
    return (id == SCAN) == (c->engine == KDA_ENGINE_FUSED);
}

struct kda_launch {
    pthread_mutex_t lock; /* setting arguments and enqueueing is one step: a kernel object holds
                           * only one set of arguments */
    cl_kernel kernel[KERNELS]; /* those of the chunkwise schedule NULL if no sequence takes it */
    struct kda_config config;
    struct kda_workspace workspace;
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

/* What a launch leaves behind: the next one waits for it. */
static void chain_on(struct chain *chain, cl_event done)
{
    if (chain->last)
        clReleaseEvent(chain->last);
    chain->last = done;
    chain->num_wait = chain->out_of_order ? 1 : 0;
    chain->wait = chain->out_of_order ? &chain->last : NULL;
}

static struct kda_layout layout(const struct kda_tensor *t)
{
    return (struct kda_layout){(kda_i64)(t->offset / t->element), t->token_stride, t->head_stride};
}

static kda_i64 elements(const struct kda_tensor *t)
{
    return (kda_i64)(t->offset / t->element);
}

/* Whether every row of a state tensor starts on a multiple of four elements. Buffers themselves
 * are aligned to the largest type (OpenCL 1.2, 5.2.1), sub-buffers to the device's base address
 * alignment. */
static bool wide(const struct kda_problem *p, const struct kda_tensor *t)
{
    int32_t contiguous = p->state_layout == KDA_STATE_KV ? p->value_dim : p->key_dim;
    return !kda_present(t) || (contiguous % 4 == 0 && t->offset % (4 * t->element) == 0 &&
                               t->token_stride % 4 == 0 && t->head_stride % 4 == 0);
}

static kda_i32 presence(const kda_problem *p, const struct kda_run *r)
{
    const struct kda_tensor *t = r->tensor;
    kda_i32 has = 0;
    has |= kda_present(t + KDA_TENSOR_BETA) ? KDA_HAS_BETA : 0;
    has |= kda_present(t + KDA_TENSOR_A_LOG) ? KDA_HAS_A_LOG : 0;
    has |= kda_present(t + KDA_TENSOR_DT_BIAS) ? KDA_HAS_DT_BIAS : 0;
    has |= kda_present(t + KDA_TENSOR_CU_SEQLENS) ? KDA_HAS_CU_SEQLENS : 0;
    has |= r->cu_seqlens_i64 ? KDA_HAS_CU_SEQLENS_I64 : 0;
    has |= kda_present(t + KDA_TENSOR_STATE_INDEX) ? KDA_HAS_STATE_INDEX : 0;
    has |= r->state_index_i64 ? KDA_HAS_STATE_INDEX_I64 : 0;
    has |= kda_present(t + KDA_TENSOR_INITIAL_STATE) ? KDA_HAS_INITIAL_STATE : 0;
    has |= kda_present(t + KDA_TENSOR_FINAL_STATE) ? KDA_HAS_FINAL_STATE : 0;
    has |= kda_present(t + KDA_TENSOR_CHECKPOINTS) ? KDA_HAS_CHECKPOINTS : 0;
    if (wide(p, t + KDA_TENSOR_INITIAL_STATE) && wide(p, t + KDA_TENSOR_FINAL_STATE) &&
        wide(p, t + KDA_TENSOR_CHECKPOINTS))
        has |= KDA_HAS_WIDE_STATES;
    return has;
}

static struct kda_call_args call_args(const kda_problem *p, const struct kda_config *c,
                                      const struct kda_run *r)
{
    const struct kda_tensor *t = r->tensor;
    return (struct kda_call_args){
        .q = layout(t + KDA_TENSOR_Q),
        .k = layout(t + KDA_TENSOR_K),
        .v = layout(t + KDA_TENSOR_V),
        .g = layout(t + KDA_TENSOR_G),
        .beta = layout(t + KDA_TENSOR_BETA),
        .out = layout(t + KDA_TENSOR_OUT),
        .initial_state = layout(t + KDA_TENSOR_INITIAL_STATE),
        .final_state = layout(t + KDA_TENSOR_FINAL_STATE),
        .checkpoints = layout(t + KDA_TENSOR_CHECKPOINTS),
        .a_log = elements(t + KDA_TENSOR_A_LOG),
        .dt_bias = elements(t + KDA_TENSOR_DT_BIAS),
        .cu_seqlens = elements(t + KDA_TENSOR_CU_SEQLENS),
        .state_index = elements(t + KDA_TENSOR_STATE_INDEX),
        .tokens = r->tokens,
        .sequences = r->sequences,
        .slots = r->slots,
        .heads = p->heads,
        .value_heads = p->value_heads,
        .value_dim = p->value_dim,
        .checkpoint_every = (kda_i32)p->checkpoint_every,
        .has = presence(p, r),
        .scale = p->scale,
        .gate_bound = p->gate_bound,
        .step_limit = c->step_limit,
        .padded_v = c->padded_v,
    };
}

static kda_status launch_range(const kda_plan *plan, struct chain *chain, enum kernel_id id,
                               const struct kda_run *run, const struct kda_call_args *args,
                               const size_t *local, const size_t *global, cl_event *event)
{
    const struct kda_launch *l = plan->backend;
    cl_kernel kernel = l->kernel[id];
    cl_int err = clSetKernelArg(kernel, 0, sizeof *args, args);
    for (cl_uint i = 0; !err && kernels[id].buffers[i] != END; i++) {
        int buffer = kernels[id].buffers[i];
        const cl_mem *mem =
            buffer == WORKSPACE ? &run->workspace.mem : &run->tensor[buffer].mem;
        err = clSetKernelArg(kernel, i + 1, sizeof *mem, mem);
    }
    kda_status st = kda_cl_check(plan->ctx, err, "clSetKernelArg");
    if (st)
        return st;
    cl_event done = NULL;
    bool wants_event = event || chain->out_of_order;
    err = clEnqueueNDRangeKernel(chain->queue, kernel, 2, NULL, global, local, chain->num_wait,
                                 chain->wait, wants_event ? &done : NULL);
    if ((st = kda_cl_check(plan->ctx, err, "clEnqueueNDRangeKernel")))
        return st;
    chain_on(chain, done);
    return KDA_OK;
}

/* Work-groups that find their work by one number. */
static kda_status launch(const kda_plan *plan, struct chain *chain, enum kernel_id id,
                         const struct kda_run *run, const struct kda_call_args *args, size_t items,
                         int64_t groups, cl_event *event)
{
    const size_t local[] = {items, 1}, global[] = {items * (size_t)groups, 1};
    return launch_range(plan, chain, id, run, args, local, global, event);
}

/* A work-item for each cell of many rows. */
static kda_status launch_rows(const kda_plan *plan, struct chain *chain, enum kernel_id id,
                              const struct kda_run *run, const struct kda_call_args *args,
                              int64_t cells, int64_t rows, cl_event *event)
{
    const struct kda_launch *l = plan->backend;
    const size_t items = (size_t)l->config.gemm_wg;
    const size_t local[] = {items, 1};
    const size_t global[] = {((size_t)cells + items - 1) / items * items, (size_t)rows};
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
        st = kda_cl_check(plan->ctx,
                          clEnqueueBarrierWithWaitList(chain->queue, chain->num_wait, chain->wait,
                                                       NULL),
                          "clEnqueueBarrierWithWaitList");
    if (!st)
        st = kda_gemm_enqueue(plan->ctx, chain->queue, run->workspace.mem, gemm,
                              chain->out_of_order ? &done : NULL);
    if (!st)
        chain_on(chain, done);
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
        st = launch_rows(plan, chain, ENTER, run, args, K * V, HV, NULL);
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
        st = launch_rows(plan, chain, EMIT, run, args, (C > K ? C : K) * V, args->chunk_count * HV,
                         event);
    return st;
}

/* ---- Build ------------------------------------------------------------------------------ */

static size_t work_items(const struct kda_config *c, enum kernel_id id)
{
    return id == STEP                  ? kda_config_step_items(c)
           : id == SCAN                ? kda_config_scan_items(c)
           : id == ENTER || id == EMIT ? (size_t)c->gemm_wg
                                       : (size_t)c->prepare_wg;
}

/* Changes the configuration so that a kernel asks for less; false: it cannot. */
static bool shrink(const kda_problem *p, struct kda_config *c, enum kernel_id id)
{
    if (id == STEP)
        return kda_config_shrink(p, c);
    int32_t *size = id == SCAN                ? &c->scan_v
                    : id == ENTER || id == EMIT ? &c->gemm_wg
                                                : &c->prepare_wg;
    int32_t least = id == SCAN ? c->scan_vec : 16;
    if (*size <= least)
        return false;
    *size /= 2;
    return true;
}

/* Whether a kernel that was built can run as configured. If not, changes the configuration. */
static bool fits(const kda_plan *plan, struct kda_launch *l, enum kernel_id id)
{
    const struct kda_device *d = plan->ctx->device;
    struct kda_config *c = &l->config;
    size_t items = work_items(c, id), most = items;
    if (c->path == KDA_PATH_SUB_GROUPS && id == STEP &&
        kda_device_sub_group_size(d, l->kernel[id], items) != (size_t)c->lanes) {
        kda_log(plan->ctx, KDA_LOG_WARN,
                "the compiler did not give kda_step sub-groups of %d: using local memory instead",
                (int)c->lanes);
        c->path = KDA_PATH_LOCAL;
        c->lanes = 1;
        return false;
    }
    clGetKernelWorkGroupInfo(l->kernel[id], d->id, CL_KERNEL_WORK_GROUP_SIZE, sizeof most, &most,
                             NULL);
    if (most >= items || !shrink(&plan->problem, c, id))
        return true;
    kda_log(plan->ctx, KDA_LOG_INFO, "%s runs in work-groups of %zu at most, not %zu",
            kernels[id].name, most, items);
    return false;
}

static kda_status build(kda_plan *plan, struct kda_launch *l, enum kernel_id id)
{
    for (;;) {
        kda_status st = kda_program_kernel(plan->ctx, &plan->problem, &l->config, kernels[id].stage,
                                           kernels[id].name, &l->kernel[id]);
        if (st || fits(plan, l, id))
            return st;
        clReleaseKernel(l->kernel[id]);
        l->kernel[id] = NULL;
    }
}

static struct kda_call_args call_args_of(const kda_plan *plan, const struct kda_run *run,
                                         const struct kda_workspace *w)
{
    const struct kda_launch *l = plan->backend;
    struct kda_call_args args = call_args(&plan->problem, &l->config, run);
    int64_t base = (int64_t)(run->workspace.offset / sizeof(float));
    args.table = base + w->table;
    args.factors = base + w->factors;
    args.factor_stride = w->factor_stride;
    args.states_in = base + w->states_in;
    args.states_out = base + w->states_out;
    args.products = base + w->products;
    args.piece = (kda_i32)l->config.piece;
    return args;
}

static kda_status launch_nothing(const kda_plan *plan, cl_mem memory, const struct kda_workspace *w)
{
    const struct kda_launch *l = plan->backend;
    struct chain chain = {.queue = plan->ctx->device->queue};
    struct kda_run nothing = {.sequences = 1, .slots = 1, .workspace.mem = memory};
    for (int i = 0; i < KDA_TENSORS; i++)
        nothing.tensor[i].element = 1;
    struct kda_call_args args = call_args_of(plan, &nothing, w);
    args.chunk_count = 1;
    kda_status st = KDA_OK;
    for (int id = 0; !st && id < KERNELS; id++)
        if (l->kernel[id])
            st = launch(plan, &chain, (enum kernel_id)id, &nothing, &args,
                        work_items(&l->config, (enum kernel_id)id), 1, NULL);
    if (!st && l->config.engine == KDA_ENGINE_CLBLAST)
        st = launch_products(plan, &chain, &nothing, &args, NULL);
    kda_status finished = kda_cl_check(plan->ctx, clFinish(chain.queue), "clFinish");
    return st ? st : finished;
}

/* Launches everything once over no tokens, in a workspace for one chunk: some drivers, and CLBlast,
 * compile at the first launch, and kda_enqueue must not. */
static kda_status warm_up(const kda_plan *plan)
{
    const struct kda_launch *l = plan->backend;
    struct kda_config config = l->config;
    kda_problem problem = plan->problem;
    config.piece = 1;
    problem.max_sequences = 1;
    struct kda_workspace w = kda_workspace_layout(&problem, &config);
    cl_int err;
    cl_mem memory =
        clCreateBuffer(plan->ctx->device->context, CL_MEM_READ_WRITE, w.bytes, NULL, &err);
    kda_status st = kda_cl_check(plan->ctx, err, "clCreateBuffer");
    if (st)
        return st;
    st = launch_nothing(plan, memory, &w);
    clReleaseMemObject(memory);
    return st;
}

kda_status kda_launch_create(kda_plan *plan)
{
    struct kda_launch *l = calloc(1, sizeof *l);
    if (!l)
        return kda_no_memory(plan->ctx, "a plan", sizeof *l);
    plan->backend = l;
    pthread_mutex_init(&l->lock, NULL);
    kda_status st = kda_config_choose(plan->ctx, &plan->problem, &l->config);
    for (int id = 0; !st && id < KERNELS; id++)
        if (is_used(&l->config, (enum kernel_id)id))
            st = build(plan, l, (enum kernel_id)id);
    if (st)
        return st;
    if (l->config.chunk) {
        l->workspace = kda_workspace_layout(&plan->problem, &l->config);
        plan->workspace = l->workspace.bytes;
    }
    return warm_up(plan);
}

void kda_launch_destroy(struct kda_launch *l)
{
    if (!l)
        return;
    for (int id = 0; id < KERNELS; id++)
        if (l->kernel[id])
            clReleaseKernel(l->kernel[id]);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

const struct kda_config *kda_launch_config(const struct kda_launch *l)
{
    return &l->config;
}

/* ---- Run -------------------------------------------------------------------------------- */

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
    int64_t length = run->tokens / run->sequences;
    if (!c->chunk)
        return (struct extent){.steps = true};
    if (ragged)
        return (struct extent){true, kda_workspace_chunks(c, run->tokens, run->sequences)};
    if (length <= c->step_limit)
        return (struct extent){.steps = true};
    return (struct extent){skips, run->sequences * ((length + c->chunk - 1) / c->chunk)};
}

/* The chunkwise part of a call, piece by piece. */
static kda_status launch_chunks(const kda_plan *plan, struct chain *chain,
                                const struct kda_run *run, struct kda_call_args *args,
                                int64_t chunks, cl_event *event)
{
    const struct kda_launch *l = plan->backend;
    const struct kda_config *c = &l->config;
    int64_t base = args->table - l->workspace.table;
    kda_status st =
        launch(plan, chain, TABLE, run, args, work_items(c, TABLE), 1, NULL);
    for (int64_t first = 0, turn = 0; !st && first < chunks; first += c->piece, turn ^= 1) {
        int64_t count = chunks - first < c->piece ? chunks - first : c->piece;
        args->first_chunk = (kda_i32)first;
        args->chunk_count = (kda_i32)count;
        args->carry_in = base + l->workspace.carry[turn];
        args->carry_out = base + l->workspace.carry[turn ^ 1];
        st = launch(plan, chain, PREPARE, run, args, work_items(c, PREPARE),
                    count * plan->problem.value_heads, NULL);
        cl_event *last = first + count == chunks ? event : NULL;
        if (!st && c->engine == KDA_ENGINE_FUSED)
            st = launch(plan, chain, SCAN, run, args, work_items(c, SCAN),
                        kda_config_scan_groups(&plan->problem, c, run->sequences), last);
        else if (!st)
            st = launch_products(plan, chain, run, args, last);
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
    clGetCommandQueueInfo(queue, CL_QUEUE_PROPERTIES, sizeof properties, &properties, NULL);
    chain.out_of_order = properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE;

    struct kda_call_args args = call_args_of(plan, run, &l->workspace);
    struct extent extent = extent_of(c, run);
    kda_status st = KDA_OK;
    pthread_mutex_lock(&l->lock);
    if (extent.steps)
        st = launch(plan, &chain, STEP, run, &args, work_items(c, STEP),
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

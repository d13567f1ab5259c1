/* From a resolved problem to kernels that have proved themselves: configuration, kernels, then a
 * small call whose answer is known. What a device does not build or gets wrong is demoted, step by
 * step, with a warning: a tuned row to the library's own choice, matrix units that the caller did
 * not ask for to the engine fused, a path of cl/tile.cl to local memory, chunks to the recurrent
 * schedule.
 *
 * SPDX-License-Identifier: MIT */
#include <stdlib.h>

#include "internal.h"

static const struct {
    const char *name;
    enum kda_stage stage;
} kernels[KDA_KERNELS] = {
    [KDA_KERNEL_STEP] = {"kda_step", KDA_STAGE_STEP},
    [KDA_KERNEL_STEP_NARROW] = {"kda_step", KDA_STAGE_STEP_NARROW},
    [KDA_KERNEL_STEP_ONE] = {"kda_step", KDA_STAGE_STEP_ONE},
    [KDA_KERNEL_STEP_FEW] = {"kda_step", KDA_STAGE_STEP_FEW},
    [KDA_KERNEL_TABLE] = {"kda_table", KDA_STAGE_TABLE},
    [KDA_KERNEL_PREPARE] = {"kda_prepare", KDA_STAGE_PREPARE},
    [KDA_KERNEL_SCAN] = {"kda_scan", KDA_STAGE_SCAN},
    [KDA_KERNEL_ENTER] = {"kda_enter", KDA_STAGE_GEMM},
    [KDA_KERNEL_EMIT] = {"kda_emit", KDA_STAGE_GEMM},
    [KDA_KERNEL_MMA] = {"kda_mma", KDA_STAGE_MMA},
    [KDA_KERNEL_MMA_PREPARE] = {"kda_mma_prepare", KDA_STAGE_MMA},
    [KDA_KERNEL_MMA_SCAN] = {"kda_mma_scan", KDA_STAGE_MMA},
    [KDA_KERNEL_MMA_JOIN] = {"kda_mma_join", KDA_STAGE_MMA},
};

const char *kda_kernel_name(enum kda_kernel_id id)
{
    return kernels[id].name;
}

/* Whether a plan with this configuration launches a kernel. */
static bool is_used(const struct kda_config *c, enum kda_kernel_id id)
{
    if (id == KDA_KERNEL_STEP_NARROW || id == KDA_KERNEL_STEP_ONE)
        return kda_config_steps(c) && !c->compact;
    if (id == KDA_KERNEL_STEP_FEW)
        return kda_config_steps(c) && c->few;
    if (id == KDA_KERNEL_STEP || !c->chunk)
        return id == KDA_KERNEL_STEP;
    switch (id) {
    case KDA_KERNEL_TABLE:
        return true;
    case KDA_KERNEL_PREPARE:
        return !c->teams;
    case KDA_KERNEL_SCAN:
        return c->engine != KDA_ENGINE_CLBLAST && !c->teams;
    case KDA_KERNEL_MMA:
        return c->teams && c->path == KDA_PATH_PTX;
    case KDA_KERNEL_MMA_PREPARE:
    case KDA_KERNEL_MMA_SCAN:
        return c->teams && c->path != KDA_PATH_PTX;
    case KDA_KERNEL_MMA_JOIN:
        return c->segment;
    default:
        return c->engine == KDA_ENGINE_CLBLAST;
    }
}

/* Whether a kernel that was built can run as configured. If not, changes the configuration. */
static bool fits(const kda_plan *plan, struct kda_launch *l, enum kda_kernel_id id)
{
    const struct kda_device *d = plan->ctx->device;
    struct kda_config *c = &l->config;
    size_t items = kda_config_items(c, id), most = items;
    if (c->path == KDA_PATH_SUB_GROUPS && id == KDA_KERNEL_STEP &&
        kda_device_sub_group_size(d, l->kernel[id], items) != (size_t)c->lanes) {
        kda_log(plan->ctx, KDA_LOG_WARN,
                "the compiler did not give kda_step sub-groups of %d: using local memory instead",
                (int)c->lanes);
        c->path = KDA_PATH_LOCAL;
        c->lanes = 1;
        c->few = false;
        return false;
    }
    clGetKernelWorkGroupInfo(l->kernel[id], d->id, CL_KERNEL_WORK_GROUP_SIZE, sizeof most, &most,
                             NULL);
    bool shrunk = false;
    while (kda_config_items(c, id) > most && kda_config_shrink(&plan->problem, c, id))
        shrunk = true;
    if (!shrunk)
        return true;
    kda_log(plan->ctx, KDA_LOG_INFO, "%s runs in work-groups of %zu at most, not %zu",
            kernels[id].name, most, items);
    return false;
}

static kda_status build_kernel(kda_plan *plan, struct kda_launch *l, enum kda_kernel_id id)
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

void kda_launch_destroy(struct kda_launch *l)
{
    if (!l)
        return;
    for (int id = 0; id < KDA_KERNELS; id++)
        if (l->kernel[id])
            clReleaseKernel(l->kernel[id]);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

static struct kda_launch *make_launch(kda_plan *plan)
{
    struct kda_launch *l = calloc(1, sizeof *l);
    if (!l)
        kda_no_memory(plan->ctx, "a plan", sizeof *l);
    else
        pthread_mutex_init(&l->lock, NULL);
    plan->backend = l;
    return l;
}

kda_status kda_launch_clone(const struct kda_launch *l, kda_plan *plan)
{
    const kda_problem *p = &plan->problem;
    struct kda_launch *clone = make_launch(plan);
    if (!clone)
        return KDA_MEMORY;
    clone->config = l->config;
    kda_config_pad(p, &clone->config);
    if (clone->config.segment)
        clone->config.segment = p->segment / clone->config.chunk;
    for (int id = 0; id < KDA_KERNELS; id++) {
        if (!l->kernel[id])
            continue;
        kda_status st = kda_cl_check(plan->ctx, clRetainKernel(l->kernel[id]), "clRetainKernel");
        if (st)
            return st;
        clone->kernel[id] = l->kernel[id];
    }
    if (clone->config.chunk) {
        clone->config.piece = kda_workspace_chunks(&clone->config, p->max_tokens, p->max_sequences);
        clone->workspace = kda_workspace_layout(p, &clone->config);
        plan->workspace = clone->workspace.bytes;
    }
    return KDA_OK;
}

/* The kernels that a plan launches. */
static kda_status build_kernels(kda_plan *plan, struct kda_launch *l)
{
    bool wanted[KDA_STAGES] = {false};
    for (int id = 0; id < KDA_KERNELS; id++)
        if (is_used(&l->config, (enum kda_kernel_id)id))
            wanted[kernels[id].stage] = true;
    kda_status st = kda_programs_build(plan->ctx, &plan->problem, &l->config, wanted);
    for (int id = 0; !st && id < KDA_KERNELS; id++)
        if (is_used(&l->config, (enum kda_kernel_id)id))
            st = build_kernel(plan, l, (enum kda_kernel_id)id);
    return st;
}

/* One try with the schedule and path as they stand. */
static kda_status try_build(kda_plan *plan, const kda_problem *p, enum kda_path path, bool *right)
{
    struct kda_launch *l = make_launch(plan);
    if (!l)
        return KDA_MEMORY;
    kda_status st = kda_config_choose(plan->ctx, p, plan->tuned, path, &l->config);
    if (!st)
        st = build_kernels(plan, l);
    if (st)
        return st;
    plan->workspace = 0;
    if (l->config.chunk) {
        l->workspace = kda_workspace_layout(p, &l->config);
        plan->workspace = l->workspace.bytes;
    }
    return kda_known_answer(plan, right);
}

/* Takes back the boldest choice of a configuration that does not build or gives a wrong answer;
 * false: none was left. */
static bool demote(kda_plan *plan, kda_problem *p, enum kda_path *path, const char *why)
{
    const struct kda_config *c = &((const struct kda_launch *)plan->backend)->config;
    const char *instead;
    if (plan->tuned) {
        plan->tuned = NULL;
        *p = plan->problem;
        instead = "as a row of kda_context_params.tuned has it: going on without";
    } else if (c->teams && p->engine == KDA_ENGINE_AUTO) {
        p->engine = KDA_ENGINE_FUSED;
        instead = "by matrix units: using the engine fused instead";
    } else if (c->path != KDA_PATH_LOCAL) {
        *path = KDA_PATH_LOCAL;
        instead = "with lane exchange: using local memory instead";
    } else if (c->chunk && p->schedule == KDA_SCHEDULE_AUTO) {
        p->schedule = KDA_SCHEDULE_RECURRENT;
        instead = "in chunks: using the recurrent schedule for all lengths";
    } else {
        return false;
    }
    kda_log(plan->ctx, KDA_LOG_WARN, "%s %s", why, instead);
    return true;
}

/* Whether a try's failure is the plan's. What a row asks for may also be refused. */
static bool is_final(const kda_plan *plan, kda_status st)
{
    return plan->tuned ? st == KDA_MEMORY || st == KDA_DRIVER : st && st != KDA_COMPILE;
}

kda_status kda_launch_create(kda_plan *plan)
{
    kda_problem p = plan->problem;
    kda_tuned_apply(plan->tuned, &p);
    enum kda_path path = plan->ctx->device->path;
    for (;;) {
        bool right = false;
        kda_status st = try_build(plan, &p, path, &right);
        if (right)
            kda_programs_keep(plan->ctx);
        if (right || is_final(plan, st))
            return st;
        if (!demote(plan, &p, &path,
                    st == KDA_COMPILE ? "does not build"
                    : st              ? "refused"
                                      : "wrong answer")) {
            kda_log(plan->ctx, KDA_LOG_ERROR, "kda_plan_create: this device %s",
                    st ? "does not build the kernels: clBuildProgram's log is above"
                       : "computes a wrong answer for a small problem");
            return st ? st : KDA_UNSUPPORTED;
        }
        kda_launch_destroy(plan->backend);
        plan->backend = NULL;
    }
}

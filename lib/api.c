/* The public entry points: contexts and plans are made, calls are checked and handed to the
 * backend.
 *
 * SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define TEXT(x) #x
#define VERSION(a, b, c) TEXT(a) "." TEXT(b) "." TEXT(c)

const char *kda_version(void)
{
    return VERSION(KDA_VERSION_MAJOR, KDA_VERSION_MINOR, KDA_VERSION_PATCH);
}

static kda_status check_context_params(const kda_context *ctx, const kda_context_params *p)
{
    KDA_REQUIRE(ctx, p->backend >= KDA_AUTO && p->backend <= KDA_OPENCL,
                "kda_context_params.backend is not a kda_backend (%d)", (int)p->backend);
    KDA_REQUIRE(ctx, p->log_level >= KDA_LOG_DEFAULT && p->log_level <= KDA_LOG_DEBUG,
                "kda_context_params.log_level is not a kda_log_level (%d)", (int)p->log_level);
    KDA_REQUIRE(ctx, p->backend != KDA_CPU || (!p->context && !p->device),
                "kda_context_params.context and .device must be NULL with KDA_CPU");
    KDA_REQUIRE(ctx, p->vectors >= KDA_VECTORS_AUTO && p->vectors <= KDA_VECTORS_512,
                "kda_context_params.vectors must be one of kda_vectors (is %d)", (int)p->vectors);
    KDA_REQUIRE(ctx, p->threads >= 0 && p->threads <= 1024,
                "kda_context_params.threads must be in 0..1024 (is %d)", (int)p->threads);
    size_t length = p->cache_dir ? strlen(p->cache_dir) : 1;
    KDA_REQUIRE(ctx, length && length <= 4000,
                "kda_context_params.cache_dir must have 1..4000 characters (has %zu)", length);
    return KDA_OK;
}

static kda_status open_backend(kda_context *ctx, const kda_context_params *p)
{
    if (p->backend == KDA_CPU)
        return kda_cpu_open(ctx, p);
    kda_status st = kda_opencl_open(ctx, p);
    bool asked = p->backend == KDA_OPENCL || p->context || p->device;
    if (st == KDA_OK || asked)
        return st;
    if (ctx->ops)
        ctx->ops->context_destroy(ctx);
    ctx->ops = NULL;
    kda_log(ctx, KDA_LOG_WARN, "no OpenCL GPU or accelerator that works: using the CPU backend");
    return kda_cpu_open(ctx, p);
}

/* Rows are read first: one that is wrong is so on any device. */
static kda_status open_tuned(kda_context *ctx, const kda_context_params *p)
{
    kda_status st = p->tuned ? kda_tuned_read(ctx, p->tuned) : KDA_OK;
    if (!st)
        st = open_backend(ctx, p);
    if (!st)
        kda_tuned_keep(ctx);
    return st;
}

kda_status kda_context_create(kda_context **out, const kda_context_params *params)
{
    if (!out)
        return KDA_INVALID;
    *out = NULL;
    /* Where messages go is read first, so that a wrong struct can be reported at all. */
    kda_context nowhere = {.log_level = KDA_LOG_WARN};
    if (params && params->struct_size >= offsetof(kda_context_params, threads)) {
        nowhere.log = params->log;
        nowhere.log_data = params->log_data;
    }
    kda_context_params p = {.struct_size = sizeof p};
    kda_status st = KDA_OK;
    if (params)
        st = kda_struct_copy(&nowhere, "kda_context_params", &p, sizeof p, params,
                             params->struct_size);
    if (!st)
        st = check_context_params(&nowhere, &p);
    if (st)
        return st;
    kda_context *ctx = calloc(1, sizeof *ctx);
    if (!ctx)
        return kda_no_memory(&nowhere, "a context", sizeof *ctx);
    ctx->log = p.log;
    ctx->log_data = p.log_data;
    ctx->debug = p.debug;
    ctx->on_launch = p.on_launch;
    ctx->launch_data = p.launch_data;
    ctx->log_level = p.log_level ? p.log_level : KDA_LOG_WARN;
    st = open_tuned(ctx, &p);
    if (st)
        kda_context_destroy(&ctx);
    *out = ctx;
    return st;
}

void kda_context_destroy(kda_context **ctx)
{
    if (!ctx || !*ctx)
        return;
    if ((*ctx)->ops)
        (*ctx)->ops->context_destroy(*ctx);
    free((*ctx)->tuned);
    free(*ctx);
    *ctx = NULL;
}

kda_backend kda_context_backend(const kda_context *ctx)
{
    return ctx ? ctx->backend : KDA_AUTO;
}

size_t kda_context_facts(const kda_context *ctx, kda_fact *facts, size_t max)
{
    if (!ctx)
        return 0;
    const size_t rows = ctx->tuned ? ctx->tuned->count : 0;
    const size_t known = ctx->ops->facts(ctx, facts, facts ? max : 0);
    for (size_t i = 0; facts && i < rows && known + i < max; i++)
        facts[known + i] = (kda_fact){"tuned", ctx->tuned->row[i].text, "given"};
    return known + rows;
}

kda_status kda_plan_create(kda_plan **out, kda_context *ctx, const kda_problem *problem)
{
    if (!out)
        return KDA_INVALID;
    *out = NULL;
    if (!ctx)
        return KDA_INVALID;
    KDA_REQUIRE(ctx, problem, "kda_plan_create: problem must not be NULL");
    kda_problem resolved;
    kda_status st = kda_problem_resolve(ctx, problem, &resolved);
    if (st)
        return st;
    kda_plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return kda_no_memory(ctx, "a plan", sizeof *plan);
    plan->ctx = ctx;
    plan->problem = resolved;
    plan->tuned = kda_tuned_find(ctx, &plan->problem);
    st = ctx->ops->plan_create(plan);
    if (st) {
        kda_plan_destroy(&plan);
    } else {
        char text[256];
        kda_plan_describe(plan, text, sizeof text);
        kda_log(ctx, KDA_LOG_INFO, "plan: %s", text);
    }
    *out = plan;
    return st;
}

void kda_plan_destroy(kda_plan **plan)
{
    if (!plan || !*plan)
        return;
    (*plan)->ctx->ops->plan_destroy(*plan);
    free(*plan);
    *plan = NULL;
}

size_t kda_plan_workspace(const kda_plan *plan)
{
    return plan ? plan->workspace : 0;
}

size_t kda_plan_describe(const kda_plan *plan, char *text, size_t n)
{
    if (!plan)
        return 0;
    return plan->ctx->ops->describe(plan, text, text ? n : 0);
}

kda_status kda_enqueue(kda_plan *plan, cl_command_queue queue, const kda_args *args,
                       cl_uint num_wait, const cl_event *wait, cl_event *event)
{
    if (event)
        *event = NULL;
    if (!plan)
        return KDA_INVALID;
    const kda_context *ctx = plan->ctx;
    KDA_REQUIRE(ctx, args, "kda_enqueue: args must not be NULL");
    KDA_REQUIRE(
        ctx, ctx->ops->enqueue,
        "kda_enqueue: the plan is on the CPU backend, which has no queues; use kda_execute");
    KDA_REQUIRE(ctx, queue, "kda_enqueue: queue must not be NULL");
    KDA_REQUIRE(ctx, !num_wait == !wait,
                "kda_enqueue: wait must be NULL exactly when num_wait is 0");
    for (cl_uint i = 0; i < num_wait; i++)
        KDA_REQUIRE(ctx, wait[i], "kda_enqueue: wait[%u] must not be NULL", (unsigned)i);
    struct kda_run run;
    kda_status st = kda_run_resolve(plan, args, false, &run);
    return st ? st : ctx->ops->enqueue(plan, queue, &run, num_wait, wait, event);
}

kda_status kda_execute(kda_plan *plan, const kda_args *args)
{
    if (!plan)
        return KDA_INVALID;
    KDA_REQUIRE(plan->ctx, args, "kda_execute: args must not be NULL");
    struct kda_run run;
    kda_status st = kda_run_resolve(plan, args, true, &run);
    return st ? st : plan->ctx->ops->execute(plan, &run);
}

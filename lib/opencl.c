/* The OpenCL backend's front: opens a device, checks queues and buffers, runs on host memory.
 *
 * SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* ---- Context ---------------------------------------------------------------------------- */

#define NO_PLATFORMS (-1001) /* CL_PLATFORM_NOT_FOUND_KHR */

/* The first device of a type on any platform; platforms that fail or are empty are passed over. */
static cl_device_id find_device(const kda_context *ctx, cl_device_type type)
{
    cl_platform_id platforms[64];
    cl_uint count = 0;
    cl_int err = clGetPlatformIDs(64, platforms, &count);
    if (err && err != NO_PLATFORMS)
        kda_log(ctx, KDA_LOG_WARN, "clGetPlatformIDs failed: %s (%d)", kda_cl_error_name(err),
                (int)err);
    for (cl_uint i = 0; !err && i < count && i < 64; i++) {
        cl_device_id id;
        cl_int code = clGetDeviceIDs(platforms[i], type, 1, &id, NULL);
        if (!code)
            return id;
        if (code != CL_DEVICE_NOT_FOUND)
            kda_log(ctx, KDA_LOG_WARN, "clGetDeviceIDs failed: %s (%d): a platform is passed over",
                    kda_cl_error_name(code), (int)code);
    }
    return NULL;
}

static kda_status choose_device(kda_context *ctx, const kda_context_params *params)
{
    struct kda_device *d = ctx->device;
    d->id = params->device;
    if (params->context) {
        cl_device_id ids[64];
        size_t size = 0;
        kda_status st = kda_cl_check(
            ctx, clGetContextInfo(params->context, CL_CONTEXT_DEVICES, sizeof ids, ids, &size),
            "clGetContextInfo(CL_CONTEXT_DEVICES)");
        if (st)
            return st;
        size_t i = 0;
        while (d->id && i < size / sizeof *ids && ids[i] != d->id)
            i++;
        KDA_REQUIRE(ctx, i < size / sizeof *ids,
                    "kda_context_params.device is not one of .context's devices");
        d->id = ids[i];
    }
    if (!d->id)
        d->id = find_device(ctx, CL_DEVICE_TYPE_GPU | CL_DEVICE_TYPE_ACCELERATOR);
    if (!d->id && params->backend == KDA_OPENCL)
        d->id = find_device(ctx, CL_DEVICE_TYPE_ALL);
    if (d->id)
        return KDA_OK;
    kda_log(ctx, params->backend == KDA_OPENCL ? KDA_LOG_ERROR : KDA_LOG_INFO,
            "no OpenCL %s was found: clGetPlatformIDs and clGetDeviceIDs name none",
            params->backend == KDA_OPENCL ? "device" : "GPU or accelerator");
    return KDA_NO_DEVICE;
}

static kda_status open_device(kda_context *ctx, const kda_context_params *params)
{
    struct kda_device *d = ctx->device;
    cl_int err = CL_SUCCESS;
    kda_status st = choose_device(ctx, params);
    if (st)
        return st;
    if (!params->context)
        d->context = clCreateContext(NULL, 1, &d->id, NULL, NULL, &err);
    else if (!(err = clRetainContext(params->context)))
        d->context = params->context;
    if ((st = kda_cl_check(ctx, err, params->context ? "clRetainContext" : "clCreateContext")))
        return st;
    d->queue = clCreateCommandQueue(d->context, d->id, 0, &err);
    if ((st = kda_cl_check(ctx, err, "clCreateCommandQueue")))
        return st;
    d->programs = kda_programs_create();
    if (params->cache_dir && !(d->cache = kda_cache_open(params->cache_dir)))
        return kda_no_memory(ctx, "a cache", 0);
    return d->programs ? kda_device_probe(ctx) : kda_no_memory(ctx, "programs", 0);
}

static void context_destroy(kda_context *ctx)
{
    struct kda_device *d = ctx->device;
    if (!d)
        return;
    kda_programs_destroy(d->programs);
    free(d->cache);
    if (d->queue)
        clReleaseCommandQueue(d->queue);
    if (d->context)
        clReleaseContext(d->context);
    free(d);
    ctx->device = NULL;
}

static size_t facts(const kda_context *ctx, kda_fact *out, size_t max)
{
    const struct kda_device *d = ctx->device;
    for (size_t i = 0; i < d->fact_count && i < max; i++)
        out[i] = (kda_fact){d->fact[i].name, d->fact[i].value, d->fact[i].source};
    return d->fact_count;
}

cl_context kda_context_cl_context(const kda_context *ctx)
{
    return ctx && ctx->device ? ctx->device->context : NULL;
}

cl_device_id kda_context_cl_device(const kda_context *ctx)
{
    return ctx && ctx->device ? ctx->device->id : NULL;
}

/* ---- Plan ------------------------------------------------------------------------------- */

static kda_status plan_create(kda_plan *plan)
{
    return kda_launch_create(plan);
}

static void plan_destroy(kda_plan *plan)
{
    kda_launch_destroy(plan->backend);
}

static size_t describe(const kda_plan *plan, char *text, size_t n)
{
    static const char *const paths[] = {"local", "sub_groups", "ptx"};
    const struct kda_launch *l = plan->backend;
    const struct kda_config *c = &l->config;
    char step[128], tuned[32], unit[32] = "", segment[32] = "";
    snprintf(step, sizeof step, "path=%s lanes=%d rows=%d groups=%d cols=%d vec=%d%s",
             paths[c->path], (int)c->lanes, (int)c->rows, (int)c->groups, (int)c->cols, (int)c->vec,
             kda_tuned_name(plan->tuned, tuned, sizeof tuned));
    if (!c->chunk)
        return (size_t)snprintf(text, n, "schedule=recurrent device=opencl %s", step);
    if (c->unit)
        snprintf(unit, sizeof unit, "unit=%s ", kda_unit_shape(c->unit).name);
    if (c->segment)
        snprintf(segment, sizeof segment, "segment=%d ", (int)(c->segment * c->chunk));
    return (size_t)snprintf(text, n,
                            "schedule=chunkwise engine=%s chunk=%d recurrent_up_to=%d "
                            "device=opencl scan=%dx%dx%d %spiece=%lld %s%s",
                            kda_engine_name(c->engine), (int)c->chunk, (int)c->step_limit,
                            (int)c->scan_v, (int)c->scan_vec, (int)c->scan_rows, unit,
                            (long long)c->piece, segment, step);
}

/* ---- Run -------------------------------------------------------------------------------- */

/* A caller's buffer must be of this context, hold so many bytes from an offset, and not have been
 * made for what its kernels don't do with it. */
static kda_status check_buffer(const kda_context *ctx, const char *name, cl_mem mem, size_t offset,
                               size_t bytes, cl_mem_flags forbidden)
{
    size_t size = 0;
    cl_context owner = NULL;
    cl_mem_flags flags = 0;
    cl_int err = clGetMemObjectInfo(mem, CL_MEM_SIZE, sizeof size, &size, NULL);
    if (!err)
        err = clGetMemObjectInfo(mem, CL_MEM_CONTEXT, sizeof owner, &owner, NULL);
    if (!err)
        err = clGetMemObjectInfo(mem, CL_MEM_FLAGS, sizeof flags, &flags, NULL);
    if (err && err != CL_INVALID_MEM_OBJECT)
        return kda_cl_check(ctx, err, "clGetMemObjectInfo");
    KDA_REQUIRE(ctx, !err, "kda_args.%s.mem is not an OpenCL buffer (%s)", name,
                kda_cl_error_name(err));
    KDA_REQUIRE(ctx, owner == ctx->device->context,
                "kda_args.%s.mem belongs to another OpenCL context", name);
    KDA_REQUIRE(ctx, offset <= size && bytes <= size - offset,
                "kda_args.%s needs %zu bytes from offset %zu, its buffer has %zu", name, bytes,
                offset, size);
    KDA_REQUIRE(ctx, !(flags & forbidden), "kda_args.%s.mem: kernels %s it, so not %s", name,
                flags & forbidden & CL_MEM_READ_ONLY ? "write" : "read",
                flags & forbidden & CL_MEM_READ_ONLY ? "CL_MEM_READ_ONLY" : "CL_MEM_WRITE_ONLY");
    return KDA_OK;
}

static kda_status check_buffers(const kda_context *ctx, const struct kda_run *run)
{
    kda_status st = KDA_OK;
    for (int i = 0; !st && i < KDA_TENSORS; i++) {
        const struct kda_tensor *t = &run->tensor[i];
        if (t->mem)
            st = check_buffer(ctx, t->name, t->mem, t->offset, kda_tensor_span(t),
                              t->output ? CL_MEM_READ_ONLY : CL_MEM_WRITE_ONLY);
    }
    if (!st && run->workspace.mem)
        st = check_buffer(ctx, "workspace", run->workspace.mem, run->workspace.offset,
                          run->workspace.size, CL_MEM_READ_ONLY | CL_MEM_WRITE_ONLY);
    return st;
}

static kda_status check_queue(const kda_context *ctx, cl_command_queue queue)
{
    cl_context owner = NULL;
    cl_device_id device = NULL;
    cl_int err = clGetCommandQueueInfo(queue, CL_QUEUE_CONTEXT, sizeof owner, &owner, NULL);
    if (!err)
        err = clGetCommandQueueInfo(queue, CL_QUEUE_DEVICE, sizeof device, &device, NULL);
    if (err && err != CL_INVALID_COMMAND_QUEUE)
        return kda_cl_check(ctx, err, "clGetCommandQueueInfo");
    KDA_REQUIRE(ctx, !err, "kda_enqueue: queue is not a command queue (%s)",
                kda_cl_error_name(err));
    KDA_REQUIRE(ctx, owner == ctx->device->context && device == ctx->device->id,
                "kda_enqueue: queue belongs to another OpenCL context or device");
    return KDA_OK;
}

static kda_status enqueue(kda_plan *plan, cl_command_queue queue, const struct kda_run *run,
                          cl_uint num_wait, const cl_event *wait, cl_event *event)
{
    kda_status st = check_queue(plan->ctx, queue);
    if (!st)
        st = check_buffers(plan->ctx, run);
    if (!st && plan->ctx->debug)
        st = kda_debug_check(plan, queue, run, num_wait, wait);
    return st ? st : kda_launch_run(plan, queue, run, num_wait, wait, event);
}

static kda_status execute(kda_plan *plan, const struct kda_run *run)
{
    const kda_context *ctx = plan->ctx;
    struct kda_run on_device;
    kda_status st = kda_staging_upload(plan, run, &on_device);
    if (!st && plan->workspace) {
        cl_int err;
        on_device.workspace.mem =
            clCreateBuffer(ctx->device->context, CL_MEM_READ_WRITE, plan->workspace, NULL, &err);
        st = kda_cl_check(ctx, err, "clCreateBuffer(workspace)");
    }
    if (!st)
        st = kda_launch_run(plan, ctx->device->queue, &on_device, 0, NULL, NULL);
    if (!st)
        st = kda_cl_check(ctx, clFinish(ctx->device->queue), "clFinish");
    if (!st)
        st = kda_staging_download(plan, run, &on_device);
    kda_staging_release(&on_device);
    return st;
}

kda_status kda_opencl_open(kda_context *ctx, const kda_context_params *params)
{
    static const struct kda_backend_ops ops = {
        .plan_create = plan_create,
        .plan_destroy = plan_destroy,
        .execute = execute,
        .enqueue = enqueue,
        .describe = describe,
        .facts = facts,
        .context_destroy = context_destroy,
    };
    ctx->ops = &ops;
    ctx->backend = KDA_OPENCL;
    ctx->device = calloc(1, sizeof *ctx->device);
    return ctx->device ? open_device(ctx, params) : kda_no_memory(ctx, "a device", 0);
}

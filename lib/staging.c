/* kda_execute on an OpenCL device: host tensors into buffers of their own, packed, and back. Only
 * elements of a tensor travel, so gaps between strided rows keep their contents.
 *
 * SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

static size_t packed_bytes(const struct kda_tensor *t)
{
    return (size_t)(t->rows * t->heads * t->inner) * t->element;
}

/* Copies every row between a strided host tensor and packed memory. */
static void copy_rows(const struct kda_tensor *t, char *packed, bool to_packed)
{
    size_t bytes = (size_t)t->inner * t->element;
    for (int64_t row = 0; row < t->rows; row++) {
        for (int64_t head = 0; head < t->heads; head++, packed += bytes) {
            if (to_packed)
                memcpy(packed, kda_row(t, row, head), bytes);
            else
                memcpy(kda_row(t, row, head), packed, bytes);
        }
    }
}

static kda_status upload(const kda_context *ctx, const struct kda_tensor *t, cl_mem mem)
{
    size_t bytes = packed_bytes(t);
    char *packed = kda_tensor_packed(t) ? kda_row(t, 0, 0) : malloc(bytes);
    if (!packed)
        return kda_no_memory(ctx, t->name, bytes);
    if (!kda_tensor_packed(t))
        copy_rows(t, packed, true);
    kda_status st = kda_cl_check(
        ctx,
        clEnqueueWriteBuffer(ctx->device->queue, mem, CL_TRUE, 0, bytes, packed, 0, NULL, NULL),
        "clEnqueueWriteBuffer");
    if (!kda_tensor_packed(t))
        free(packed);
    return st;
}

static kda_status download(const kda_context *ctx, const struct kda_tensor *t, cl_mem mem)
{
    size_t bytes = packed_bytes(t);
    char *packed = kda_tensor_packed(t) ? kda_row(t, 0, 0) : malloc(bytes);
    if (!packed)
        return kda_no_memory(ctx, t->name, bytes);
    kda_status st = kda_cl_check(
        ctx, clEnqueueReadBuffer(ctx->device->queue, mem, CL_TRUE, 0, bytes, packed, 0, NULL, NULL),
        "clEnqueueReadBuffer");
    if (!kda_tensor_packed(t)) {
        if (!st)
            copy_rows(t, packed, false);
        free(packed);
    }
    return st;
}

/* Outputs of which a call may leave elements unwritten start from what the host has there: pool
 * slots without a sequence, numbers without a checkpoint. */
static bool keeps_contents(const struct kda_run *run, int id)
{
    return id == KDA_TENSOR_CHECKPOINTS ||
           (id == KDA_TENSOR_FINAL_STATE && kda_present(&run->tensor[KDA_TENSOR_STATE_INDEX]));
}

kda_status kda_staging_upload(const kda_context *ctx, const struct kda_run *run,
                              struct kda_run *on_device)
{
    *on_device = *run;
    for (int i = 0; i < KDA_TENSORS; i++)
        on_device->tensor[i].host = NULL;
    for (int i = 0; i < KDA_TENSORS; i++) {
        const struct kda_tensor *t = &run->tensor[i];
        struct kda_tensor *d = &on_device->tensor[i];
        size_t bytes = packed_bytes(t);
        if (!kda_present(t) || !bytes)
            continue;
        if (bytes > ctx->device->max_alloc_bytes) {
            kda_log(ctx, KDA_LOG_ERROR, "%s takes %zu bytes, the device's buffers at most %llu",
                    t->name, bytes, (unsigned long long)ctx->device->max_alloc_bytes);
            return KDA_MEMORY;
        }
        cl_int err;
        d->mem =
            clCreateBuffer(ctx->device->context, t->output ? CL_MEM_READ_WRITE : CL_MEM_READ_ONLY,
                           bytes, NULL, &err);
        kda_status st = kda_cl_check(ctx, err, "clCreateBuffer");
        if (st)
            return st;
        d->offset = 0;
        d->head_stride = t->inner;
        d->token_stride = t->heads * t->inner;
        if ((!t->output || keeps_contents(run, i)) && (st = upload(ctx, t, d->mem)))
            return st;
    }
    return KDA_OK;
}

kda_status kda_staging_download(const kda_context *ctx, const struct kda_run *run,
                                const struct kda_run *on_device)
{
    for (int i = 0; i < KDA_TENSORS; i++) {
        if (!run->tensor[i].output || !on_device->tensor[i].mem)
            continue;
        kda_status st = download(ctx, &run->tensor[i], on_device->tensor[i].mem);
        if (st)
            return st;
    }
    return KDA_OK;
}

void kda_staging_release(struct kda_run *on_device)
{
    for (int i = 0; i < KDA_TENSORS; i++)
        if (on_device->tensor[i].mem)
            clReleaseMemObject(on_device->tensor[i].mem);
    if (on_device->workspace.mem)
        clReleaseMemObject(on_device->workspace.mem);
}

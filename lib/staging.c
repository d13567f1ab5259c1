/* kda_execute on an OpenCL device: host tensors into buffers of their own, packed, and back. Only
 * what the call reads or writes travels: no gaps between strided rows, of pools the slots that it
 * names, of checkpoints the numbers that it has. So the rest may be anybody's, at work elsewhere.
 *
 * SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* The rows of a tensor that travel. */
struct rows {
    int64_t *number; /* NULL: all, in order */
    int64_t count;
};

static int64_t row_number(const struct rows *rows, int64_t i)
{
    return rows->number ? rows->number[i] : i;
}

static size_t row_bytes(const struct kda_tensor *t)
{
    return (size_t)(t->heads * t->inner) * t->element;
}

static kda_status list_rows(const kda_plan *plan, const struct kda_run *run, enum kda_tensor_id id,
                            struct rows *rows)
{
    const int64_t every = plan->problem.checkpoint_every;
    *rows = (struct rows){.count = run->tensor[id].rows};
    if (id != KDA_TENSOR_INITIAL_STATE && id != KDA_TENSOR_FINAL_STATE &&
        id != KDA_TENSOR_CHECKPOINTS)
        return KDA_OK;
    rows->count = kda_run_rows(run, id, every, NULL);
    const size_t bytes = (size_t)(rows->count + 1) * sizeof *rows->number;
    rows->number = malloc(bytes);
    if (!rows->number)
        return kda_no_memory(plan->ctx, run->tensor[id].name, bytes);
    kda_run_rows(run, id, every, rows->number);
    return KDA_OK;
}

/* Copies rows between a strided host tensor and packed memory. */
static void copy_rows(const struct kda_tensor *t, const struct rows *rows, char *packed,
                      bool to_packed)
{
    size_t bytes = (size_t)t->inner * t->element;
    for (int64_t i = 0; i < rows->count; i++) {
        for (int64_t head = 0; head < t->heads; head++, packed += bytes) {
            char *const row = kda_row(t, row_number(rows, i), head);
            memcpy(to_packed ? packed : row, to_packed ? row : packed, bytes);
        }
    }
}

/* One transfer for rows that follow each other, to the device or back. packed: memory for them, or
 * NULL where the host's rows are packed themselves. */
static kda_status transfer(const kda_context *ctx, const struct kda_tensor *t,
                           const struct rows *rows, char *packed, cl_mem mem, bool to_device)
{
    const size_t row = row_bytes(t);
    kda_status st = KDA_OK;
    for (int64_t i = 0, n; !st && i < rows->count; i += n) {
        const int64_t first = row_number(rows, i);
        for (n = 1; i + n < rows->count && row_number(rows, i + n) == first + n; n++) {
        }
        char *const host = packed ? packed + (size_t)i * row : kda_row(t, first, 0);
        const size_t at = (size_t)first * row, bytes = (size_t)n * row;
        if (to_device)
            st = kda_cl_check(ctx,
                              clEnqueueWriteBuffer(ctx->device->queue, mem, CL_TRUE, at, bytes,
                                                   host, 0, NULL, NULL),
                              "clEnqueueWriteBuffer");
        else
            st = kda_cl_check(ctx,
                              clEnqueueReadBuffer(ctx->device->queue, mem, CL_TRUE, at, bytes, host,
                                                  0, NULL, NULL),
                              "clEnqueueReadBuffer");
    }
    return st;
}

/* The rows of a tensor that the call reads, to the device, or that it writes, back. */
static kda_status move_rows(const kda_plan *plan, const struct kda_run *run, enum kda_tensor_id id,
                            cl_mem mem, bool to_device)
{
    const struct kda_tensor *t = &run->tensor[id];
    struct rows rows;
    kda_status st = list_rows(plan, run, id, &rows);
    const size_t bytes = (size_t)rows.count * row_bytes(t);
    char *packed = NULL;
    if (!st && bytes && !kda_tensor_packed(t)) {
        packed = malloc(bytes);
        if (!packed)
            st = kda_no_memory(plan->ctx, t->name, bytes);
        else if (to_device)
            copy_rows(t, &rows, packed, true);
    }
    if (!st)
        st = transfer(plan->ctx, t, &rows, packed, mem, to_device);
    if (!st && packed && !to_device)
        copy_rows(t, &rows, packed, false);
    free(packed);
    free(rows.number);
    return st;
}

kda_status kda_staging_upload(const kda_plan *plan, const struct kda_run *run,
                              struct kda_run *on_device)
{
    const kda_context *ctx = plan->ctx;
    *on_device = *run;
    for (int i = 0; i < KDA_TENSORS; i++)
        on_device->tensor[i].host = NULL;
    for (int i = 0; i < KDA_TENSORS; i++) {
        const struct kda_tensor *t = &run->tensor[i];
        struct kda_tensor *d = &on_device->tensor[i];
        const size_t row = row_bytes(t), bytes = (size_t)t->rows * row;
        if (!kda_present(t) || !t->rows || !row)
            continue;
        if ((size_t)t->rows > ctx->device->max_alloc_bytes / row) {
            kda_log(ctx, KDA_LOG_ERROR,
                    "kda_args.%s: %lld rows of %zu bytes, used or not, pass the device's largest "
                    "buffer of %llu",
                    t->name, (long long)t->rows, row,
                    (unsigned long long)ctx->device->max_alloc_bytes);
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
        if (!t->output && (st = move_rows(plan, run, (enum kda_tensor_id)i, d->mem, true)))
            return st;
    }
    return KDA_OK;
}

kda_status kda_staging_download(const kda_plan *plan, const struct kda_run *run,
                                const struct kda_run *on_device)
{
    kda_status st = KDA_OK;
    for (int i = 0; !st && i < KDA_TENSORS; i++)
        if (run->tensor[i].output && on_device->tensor[i].mem)
            st = move_rows(plan, run, (enum kda_tensor_id)i, on_device->tensor[i].mem, false);
    return st;
}

void kda_staging_release(struct kda_run *on_device)
{
    for (int i = 0; i < KDA_TENSORS; i++)
        if (on_device->tensor[i].mem)
            clReleaseMemObject(on_device->tensor[i].mem);
    if (on_device->workspace.mem)
        clReleaseMemObject(on_device->workspace.mem);
}

/* How much local memory a kernel may declare, where it is more than a part of global memory, as it
 * is on processors. NVIDIA's driver names 48 KiB, the most that it takes as a kernel argument, and
 * builds kernels that declare all that a multiprocessor has.
 *
 * SPDX-License-Identifier: MIT */
#include <stdio.h>

#include "internal.h"

/* Fills FLOATS floats with 0, 1, ..., 511 over and over by the copies of cl/tile.cl; each item sums
 * every 128th, from the end. */
static const char source[] = "__kernel WORK_GROUP(128)\n"
                             "void kda_probe(__global const float *in, __global float *out)\n"
                             "{\n"
                             "    __local float all[FLOATS] __attribute__((aligned(16)));\n"
                             "    const int lid = (int)get_local_id(0);\n"
                             "    for (int x = lid * 4; x < FLOATS; x += 512)\n"
                             "        fetch(all + x, in + lid * 4);\n"
                             "    fetch_wait();\n"
                             "    barrier(CLK_LOCAL_MEM_FENCE);\n"
                             "    float sum = 0.0f;\n"
                             "    for (int x = lid; x < FLOATS; x += 128)\n"
                             "        sum += all[FLOATS - 1 - x];\n"
                             "    out[lid] = sum;\n"
                             "}\n";

enum { ITEMS = 128, NUMBERS = 512 };

static bool run(const struct kda_device *d, cl_kernel kernel, size_t floats)
{
    static const size_t items = ITEMS;
    float in[NUMBERS], out[ITEMS];
    cl_int err;
    for (int i = 0; i < NUMBERS; i++)
        in[i] = (float)i;
    cl_mem from =
        clCreateBuffer(d->context, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, sizeof in, in, &err);
    cl_mem to = err ? NULL : clCreateBuffer(d->context, CL_MEM_WRITE_ONLY, sizeof out, NULL, &err);
    bool right =
        !err && !clSetKernelArg(kernel, 0, sizeof from, &from) &&
        !clSetKernelArg(kernel, 1, sizeof to, &to) &&
        !clEnqueueNDRangeKernel(d->queue, kernel, 1, NULL, &items, &items, 0, NULL, NULL) &&
        !clEnqueueReadBuffer(d->queue, to, CL_TRUE, 0, sizeof out, out, 0, NULL, NULL);
    for (size_t i = 0; right && i < ITEMS; i++) {
        size_t four = 4 * (NUMBERS - 1 - i) - ITEMS * (0 + 1 + 2 + 3);
        right = out[i] == (float)(floats / NUMBERS * four);
    }
    if (from)
        clReleaseMemObject(from);
    if (to)
        clReleaseMemObject(to);
    return right;
}

/* Whether a kernel that declares so many bytes builds and gives its answer. */
static kda_status try(kda_context *ctx, size_t bytes, bool *works)
{
    const struct kda_device *d = ctx->device;
    const size_t floats = bytes / sizeof(float);
    cl_kernel kernel;
    char options[96];
    snprintf(options, sizeof options, "-cl-std=CL1.2 -DKDA_PATH=%d -DKDA_LANES=%d -DFLOATS=%zu",
             (int)d->path, (int)d->lanes, floats);
    kda_status st = kda_program_probe(ctx, false, source, options, "kda_probe", &kernel);
    if (st)
        return st == KDA_MEMORY ? st : KDA_OK;
    *works = run(d, kernel, floats);
    clReleaseKernel(kernel);
    return KDA_OK;
}

kda_status kda_device_probe_local(kda_context *ctx, bool *probed)
{
    enum { SIZES = 6, STEP = NUMBERS * sizeof(float) };
    struct kda_device *d = ctx->device;
    /* An H200 builds the first, an A100 neither. Then what the driver says, or a part of that. */
    size_t sizes[SIZES] = {224 << 10, 96 << 10}, n = d->path == KDA_PATH_PTX ? 2 : 0;
    *probed = false;
    if (d->is_cpu || d->max_work_group < ITEMS)
        return KDA_OK;
    for (cl_ulong bytes = d->local_bytes; n < SIZES && bytes >= STEP; bytes /= 2)
        sizes[n++] = (size_t)bytes / STEP * STEP;
    kda_status st = KDA_OK;
    for (size_t i = 0; !st && !*probed && i < n; i++) {
        st = try(ctx, sizes[i], probed);
        if (*probed)
            d->local_bytes = sizes[i];
    }
    return st;
}

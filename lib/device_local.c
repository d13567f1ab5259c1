/* How much local memory a kernel may declare: NVIDIA's driver names 48 KiB, the most that it takes
 * as a kernel argument, and builds kernels that declare all that a multiprocessor has.
 *
 * SPDX-License-Identifier: MIT */
#include <stdio.h>

#include "internal.h"

/* Fills FLOATS floats with 0, 1, ..., 511 over and over by the copies of cl/tile.cl; each item sums
 * every 128th, from the end. */
static const char source[] = "__kernel __attribute__((reqd_work_group_size(128, 1, 1)))\n"
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

kda_status kda_device_probe_local(kda_context *ctx)
{
    static const size_t kib[] = {224, 96}; /* an H200 builds the first, an A100 neither */
    struct kda_device *d = ctx->device;
    for (size_t i = 0; d->path == KDA_PATH_PTX && i < KDA_COUNT_OF(kib); i++) {
        cl_kernel kernel;
        char options[96];
        size_t floats = kib[i] * 1024 / sizeof(float);
        snprintf(options, sizeof options, "-cl-std=CL1.2 -DKDA_PATH=%d -DKDA_LANES=%d -DFLOATS=%zu",
                 (int)d->path, (int)d->lanes, floats);
        kda_status st = kda_program_probe(ctx, false, source, options, "kda_probe", &kernel);
        if (st == KDA_MEMORY)
            return st;
        if (st)
            continue;
        bool right = run(d, kernel, floats);
        clReleaseKernel(kernel);
        if (right) {
            d->local_bytes = kib[i] * 1024;
            break;
        }
    }
    return KDA_OK;
}

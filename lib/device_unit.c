/* Whether a device's matrix units can be used that are AMD's or Intel's: the products of cl/unit.cl
 * must build and multiply as f32 does.
 *
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "internal.h"

struct kda_unit_shape kda_unit_shape(enum kda_unit unit)
{
#define NEVER "; never run on hardware"
    static const struct kda_unit_shape shapes[KDA_UNITS] = {
        [KDA_UNIT_NONE] = {"none", "no", 1, 1, 1},
        [KDA_UNIT_MFMA] = {"mfma", "yes, AMD's for f32" NEVER, 16, 16, 64},
        [KDA_UNIT_WMMA] = {"wmma", "yes, AMD's for bf16" NEVER, 16, 16, 32},
        [KDA_UNIT_DPAS8] = {"dpas8", "yes, Intel's for bf16, 8 lanes" NEVER, 8, 8, 8},
        [KDA_UNIT_DPAS16] = {"dpas16", "yes, Intel's for bf16, 16 lanes" NEVER, 8, 16, 16},
    };
    return shapes[unit];
}

/* Two tiles side by side, by a sub-group each, are added to what is in out. */
static const char source[] =
    "__kernel UNIT_GROUP(2 * UNIT_LANES) void kda_probe(__global const float *a, __global const "
    "float *b, __global float *out)\n"
    "{\n"
    "    enum { WIDTH = 2 * UNIT_COLS };\n"
    "    __local float image[16 * WIDTH] __attribute__((aligned(16)));\n"
    "    const int lid = (int)get_local_id(0), lane = lid % UNIT_LANES;\n"
    "    const int col = lid / UNIT_LANES * UNIT_COLS;\n"
    "    for (int x = lid; x < 16 * WIDTH; x += 2 * UNIT_LANES)\n"
    "        unit_put(image, WIDTH, x / WIDTH, x % WIDTH, b[x]);\n"
    "    barrier(CLK_LOCAL_MEM_FENCE);\n"
    "    unit_t d;\n"
    "    for (int i = 0; i < UNIT_CELLS; i++)\n"
    "        d[i] = out[UNIT_ROW(lane, i) * WIDTH + col + UNIT_COL(lane)];\n"
    "    d = unit_product(d, unit_left(a, 16, 1, lane), unit_right(image, WIDTH, 0, col, lane));\n"
    "    for (int i = 0; i < UNIT_CELLS; i++)\n"
    "        out[UNIT_ROW(lane, i) * WIDTH + col + UNIT_COL(lane)] = d[i];\n"
    "}\n";

enum { DEPTH = 16, ROWS = 16, WIDTH = 32 }; /* of a product, of the largest tiles */

/* Numbers of 15 bits, twice what bf16 has. */
static void fill(float *x, int n, int step)
{
    for (int i = 0; i < n; i++)
        x[i] = (float)((i + 3) * step % 32749 - 16374);
}

/* Exact but for what three products of bf16 leave out, 3 * 2^-18, and the rounding of sums. One
 * product of bf16 alone is 2^-9 off. */
static bool right(struct kda_unit_shape unit, const float *a, const float *b, const float *from,
                  const float *out)
{
    const int width = 2 * unit.cols;
    for (int row = 0; row < unit.rows; row++) {
        for (int col = 0; col < width; col++) {
            double sum = from[row * width + col], size = fabs(sum);
            for (int k = 0; k < DEPTH; k++) {
                sum += (double)a[row * DEPTH + k] * b[k * width + col];
                size += fabs((double)a[row * DEPTH + k] * b[k * width + col]);
            }
            if (!(fabs(out[row * width + col] - sum) <= 0x1p-15 * size))
                return false;
        }
    }
    return true;
}

static bool run(const struct kda_device *d, cl_kernel kernel, struct kda_unit_shape unit)
{
    float a[ROWS * DEPTH], b[DEPTH * WIDTH], from[ROWS * WIDTH], out[ROWS * WIDTH];
    const size_t items = 2 * (size_t)unit.lanes;
    cl_mem mem[3] = {NULL, NULL, NULL};
    const struct {
        float *at;
        size_t bytes;
    } host[3] = {{a, sizeof a}, {b, sizeof b}, {from, sizeof from}};
    cl_int err = CL_SUCCESS;
    fill(a, ROWS * DEPTH, 7919);
    fill(b, DEPTH * WIDTH, 104729);
    fill(from, ROWS * WIDTH, 1299709);
    for (cl_uint i = 0; !err && i < 3; i++) {
        mem[i] = clCreateBuffer(d->context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, host[i].bytes,
                                host[i].at, &err);
        if (!err)
            err = clSetKernelArg(kernel, i, sizeof mem[i], &mem[i]);
    }
    if (!err)
        err = clEnqueueNDRangeKernel(d->queue, kernel, 1, NULL, &items, &items, 0, NULL, NULL);
    if (!err)
        err = clEnqueueReadBuffer(d->queue, mem[2], CL_TRUE, 0, sizeof out, out, 0, NULL, NULL);
    for (int i = 0; i < 3; i++)
        if (mem[i])
            clReleaseMemObject(mem[i]);
    return !err && right(unit, a, b, from, out);
}

/* Tries one kind; takes it if it builds and answers right. */
static kda_status probe(kda_context *ctx, enum kda_unit kind, const char **says)
{
    struct kda_device *d = ctx->device;
    const struct kda_unit_shape unit = kda_unit_shape(kind);
    char options[96];
    cl_kernel kernel;
    snprintf(options, sizeof options, "-cl-std=CL1.2 -DKDA_UNIT=%d", (int)kind);
    kda_status st = kda_program_probe(ctx, false, source, options, "kda_probe", &kernel);
    *says = "no: they do not build";
    if (st)
        return st == KDA_MEMORY ? st : KDA_OK;
    d->unit = run(d, kernel, unit) ? kind : KDA_UNIT_NONE;
    clReleaseKernel(kernel);
    *says = d->unit ? unit.says : "no: wrong answer";
    if (!d->unit)
        kda_log(ctx, KDA_LOG_WARN, "matrix units build but give a wrong answer: not used");
    return KDA_OK;
}

/* CL_DEVICE_SUB_GROUP_SIZES_INTEL */
#define SUB_GROUP_SIZES 0x4108

/* The kind that Intel's extension has on the device, by its narrowest sub-groups. */
static enum kda_unit intel_unit(const struct kda_device *d)
{
    size_t sizes[16], bytes = 0, least = 0;
    if (clGetDeviceInfo(d->id, SUB_GROUP_SIZES, sizeof sizes, sizes, &bytes))
        return KDA_UNIT_NONE;
    for (size_t i = 0; i < bytes / sizeof *sizes; i++)
        least = least && least < sizes[i] ? least : sizes[i];
    return least == 8 ? KDA_UNIT_DPAS8 : least == 16 ? KDA_UNIT_DPAS16 : KDA_UNIT_NONE;
}

kda_status kda_device_probe_unit(kda_context *ctx, const char *extensions, const char **says)
{
    const struct kda_device *d = ctx->device;
    enum kda_unit kinds[2] = {KDA_UNIT_NONE, KDA_UNIT_NONE};
    kda_status st = KDA_OK;
    if (strstr(extensions, "cl_amd_")) {
        kinds[0] = KDA_UNIT_MFMA;
        kinds[1] = KDA_UNIT_WMMA;
    } else if (strstr(extensions, "cl_intel_subgroup_matrix_multiply_accumulate")) {
        kinds[0] = intel_unit(d);
    }
    for (int i = 0; !st && !d->is_cpu && !d->unit && i < 2; i++)
        if (kinds[i] && d->max_work_group >= 2 * (size_t)kda_unit_shape(kinds[i]).lanes)
            st = probe(ctx, kinds[i], says);
    return st;
}

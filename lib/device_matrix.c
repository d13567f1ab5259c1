/* Whether a device's matrix units can be used: the products and copies of cl/matrix.cl must build
 * and multiply small integers exactly.
 *
 * SPDX-License-Identifier: MIT */
#include <stdlib.h>

#include "internal.h"

enum { ROWS = 64, COLS = 128, ITEMS = 128, IMAGE = ROWS * COLS };

/* One image, fetched by the ring, is the right operand of all three products; the left operand is
 * cell(row, column). */
static const char source[] =
    "static inline float cell(int row, int col)\n"
    "{\n"
    "    return (float)((row * 3 + col * 5) % 7 - 3);\n"
    "}\n"
    "__kernel WORK_GROUP(128)\n"
    "void kda_probe(__global const ushort *image, __global float *out)\n"
    "{\n"
    "    __local ushort local_image[64 * 128] __attribute__((aligned(1024)));\n"
    "    __local ring_counter counters[2];\n"
    "    TEAM_SCRATCH(1)\n"
    "    const int lid = (int)get_local_id(0), g = (lid & 31) >> 2, t = lid & 3;\n"
    "    if (lid == 0)\n"
    "        ring_init(counters, 1, 1, 1);\n"
    "    barrier(CLK_LOCAL_MEM_FENCE);\n"
    "    ring_fill(local_image, image, 64 * 128 * 2, counters, lid);\n"
    "    ring_wait(counters, 0);\n"
    "    lanes_sync();\n"
    "    uint a[32];\n"
    "UNROLL\n"
    "    for (int i = 0; i < 32; i++) {\n"
    "        const int row = lid / 32 * 16 + g + (i & 1) * 8;\n"
    "        const int col = i / 4 * 16 + (i & 2) * 4 + 2 * t;\n"
    "        a[i] = pack_operands(cell(row, col), cell(row, col + 1));\n"
    "    }\n"
    "    float x[32], s[64];\n"
    "UNROLL\n"
    "    for (int i = 0; i < 64; i++)\n"
    "        s[i] = x[i & 31] = 0.0f;\n"
    "    product_rows(x, a, local_image);\n"
    "    product_square(x, a, local_image);\n"
    "    product_cols(s, a, local_image);\n"
    "    product_wait32(0, x);\n"
    "    product_wait_cols(0, s);\n"
    "UNROLL\n"
    "    for (int i = 0; i < 64; i++) {\n"
    "        const int row = lid / 32 * 16 + g + (i & 2) * 4, col = i / 4 * 8 + 2 * t + (i & 1);\n"
    "        out[row * 128 + col] = s[i];\n"
    "        if (i < 32)\n"
    "            out[64 * 128 + row * 64 + col] = x[i];\n"
    "    }\n"
    "}\n";

static int cell(int row, int col)
{
    return (row * 3 + col * 5) % 7 - 3;
}

static int right_cell(int row, int col)
{
    return (row * row + col * 3) % 5 - 2;
}

/* The right operand as IMAGE_AT in cl/matrix.cl lays it out. */
static void fill(uint16_t *image)
{
    static const uint16_t f16[] = {0xc000, 0xbc00, 0, 0x3c00, 0x4000}; /* -2 .. 2 */
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLS; c++)
            image[(c / 64 * ROWS + r) * 64 + (((c / 8) & 7) ^ (r & 7)) * 8 + c % 8] =
                f16[right_cell(r, c) + 2];
}

static bool right(const float *out)
{
    for (int r = 0; r < ROWS; r++) {
        for (int c = 0; c < COLS; c++) {
            int cols = 0, rows = 0;
            for (int k = 0; k < ROWS; k++)
                cols += cell(r, k) * right_cell(k, c);
            for (int k = 0; k < COLS && c < ROWS; k++)
                rows += cell(r, k) * right_cell(c, k) * (k < 64 ? 2 : 1); /* rows, then square */
            if (out[r * COLS + c] != (float)cols)
                return false;
            if (c < ROWS && out[IMAGE + r * ROWS + c] != (float)rows)
                return false;
        }
    }
    return true;
}

static bool run(const struct kda_device *d, cl_kernel kernel)
{
    static const size_t items = ITEMS;
    uint16_t image[IMAGE];
    float out[IMAGE + ROWS * ROWS];
    cl_int err;
    fill(image);
    cl_mem from = clCreateBuffer(d->context, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, sizeof image,
                                 image, &err);
    cl_mem to = err ? NULL : clCreateBuffer(d->context, CL_MEM_WRITE_ONLY, sizeof out, NULL, &err);
    bool ran = !err && !clSetKernelArg(kernel, 0, sizeof from, &from) &&
               !clSetKernelArg(kernel, 1, sizeof to, &to) &&
               !clEnqueueNDRangeKernel(d->queue, kernel, 1, NULL, &items, &items, 0, NULL, NULL) &&
               !clEnqueueReadBuffer(d->queue, to, CL_TRUE, 0, sizeof out, out, 0, NULL, NULL);
    if (from)
        clReleaseMemObject(from);
    if (to)
        clReleaseMemObject(to);
    return ran && right(out);
}

kda_status kda_device_probe_matrix(kda_context *ctx, const char **says)
{
    struct kda_device *d = ctx->device;
    cl_kernel kernel;
    *says = "no: none that this library knows";
    if (d->path != KDA_PATH_PTX)
        return KDA_OK;
    *says = "no: they do not build";
    kda_status st = kda_program_probe(ctx, true, source,
                                      "-cl-std=CL1.2 -DKDA_PATH=2 -DKDA_LANES=32 -DKDA_NORM_QK=1",
                                      "kda_probe", &kernel);
    if (st)
        return st == KDA_MEMORY ? st : KDA_OK;
    d->matrix = run(d, kernel);
    clReleaseKernel(kernel);
    *says = d->matrix ? "yes, f16 and bf16 by warp groups" : "no: wrong answer";
    if (!d->matrix)
        kda_log(ctx, KDA_LOG_WARN, "matrix units build but give a wrong answer: not used");
    return KDA_OK;
}

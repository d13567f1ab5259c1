/* A kernel of nothing but f16 products, by the very code that the engine mma is made of: what the
 * matrix units can do at best, for that engine.
 *
 * SPDX-License-Identifier: MIT */
#include "bench.h"
#include "internal.h"

#include <stdio.h>

/* A work-group multiplies 64 x 64 by 64 x 128, over and over. Four products are on their way before
 * their result is waited for. Whether the units see what is written to the image, or what was there
 * before, does not matter to the rate. */
static const char source[] =
    "__kernel __attribute__((reqd_work_group_size(128, 1, 1)))\n"
    "void kda_matrix_rate(__global float *out)\n"
    "{\n"
    "    __local ushort image[64 * 128] __attribute__((aligned(1024)));\n"
    "    TEAM_SCRATCH(1)\n"
    "    const int lid = (int)get_local_id(0);\n"
    "    for (int i = lid; i < 64 * 128; i += 128)\n"
    "        image[i] = (ushort)pack_operands(0.01f * (float)(i % 101 - 50), 0.0f);\n"
    "    barrier(CLK_LOCAL_MEM_FENCE);\n"
    "    uint a[16];\n"
    "    float d[64], sum = 0.0f;\n"
    "UNROLL\n"
    "    for (int i = 0; i < 16; i++)\n"
    "        a[i] = pack_operands(0.01f * (float)(lid - i), 0.02f * (float)i);\n"
    "UNROLL\n"
    "    for (int i = 0; i < 64; i++)\n"
    "        d[i] = 0.0f;\n"
    "    for (int turn = 0; turn < TURNS; turn++) {\n"
    "        product_cols(d, a, image);\n"
    "        product_cols(d, a, image);\n"
    "        product_cols(d, a, image);\n"
    "        product_cols(d, a, image);\n"
    "        product_wait_cols(0, d);\n"
    "    }\n"
    "UNROLL\n"
    "    for (int i = 0; i < 64; i++)\n"
    "        sum += d[i];\n"
    "    out[get_global_id(0)] = sum;\n"
    "}\n";

double bench_matrix_kernel(struct bench *b, bool units, cl_kernel *kernel)
{
    const int turns = units ? 128 : 1;
    char options[96];
    snprintf(options, sizeof options,
             "-cl-std=CL1.2 -DKDA_PATH=%d -DKDA_LANES=%d -DKDA_NORM_QK=1 -DTURNS=%d",
             units ? KDA_PATH_PTX : KDA_PATH_LOCAL, units ? 32 : 1, turns);
    if (kda_program_probe(b->ctx, true, source, options, "kda_matrix_rate", kernel))
        return 0;
    return 4.0 * turns * 2 * 64 * 64 * 128;
}

/* The only caller of CLBlast: single precision products of row-major matrices within one buffer.
 * CLBlast keeps a cache of programs of its own, for the whole process; it compiles at the first
 * call for a context and may allocate device memory within any call.
 *
 * SPDX-License-Identifier: MIT */
#include "internal.h"

#include <clblast_c.h>

static const char *clblast_name(CLBlastStatusCode code)
{
    switch (code) {
    case CLBlastNotImplemented:
        return "not implemented";
    case CLBlastInvalidMatrixA:
    case CLBlastInvalidMatrixB:
    case CLBlastInvalidMatrixC:
        return "invalid matrix";
    case CLBlastInsufficientMemoryA:
    case CLBlastInsufficientMemoryB:
    case CLBlastInsufficientMemoryC:
        return "buffer too small";
    case CLBlastInvalidLocalMemUsage:
        return "not enough local memory";
    case CLBlastDatabaseError:
        return "no tuning parameters for the device";
    default:
        return "unexpected";
    }
}

/* CLBlast's codes are OpenCL's where OpenCL has one. */
static kda_status check(const kda_context *ctx, CLBlastStatusCode code)
{
    if (code > -1000)
        return kda_cl_check(ctx, (cl_int)code, "CLBlastSgemmStridedBatched");
    kda_log(ctx, KDA_LOG_ERROR, "CLBlastSgemmStridedBatched failed: %s (%d)", clblast_name(code),
            (int)code);
    return KDA_DRIVER;
}

kda_status kda_gemm_enqueue(const kda_context *ctx, cl_command_queue queue, cl_mem buffer,
                            const struct kda_gemm *g, cl_event *event)
{
    return check(ctx, CLBlastSgemmStridedBatched(
                          CLBlastLayoutRowMajor,
                          g->transpose_a ? CLBlastTransposeYes : CLBlastTransposeNo,
                          CLBlastTransposeNo, (size_t)g->m, (size_t)g->n, (size_t)g->k, g->alpha,
                          buffer, (size_t)g->a.offset, (size_t)g->a.leading, (size_t)g->a.stride,
                          buffer, (size_t)g->b.offset, (size_t)g->b.leading, (size_t)g->b.stride,
                          g->beta, buffer, (size_t)g->c.offset, (size_t)g->c.leading,
                          (size_t)g->c.stride, (size_t)g->batch, &queue, event));
}

/* Statuses, names of OpenCL codes, and the log: the one place that knows what an OpenCL code means
 * to our callers.
 *
 * SPDX-License-Identifier: MIT */
#include <stdio.h>

#include "internal.h"

const char *kda_status_string(kda_status status)
{
    static const char *const names[] = {"OK",     "INVALID", "UNSUPPORTED", "NO_DEVICE",
                                        "MEMORY", "COMPILE", "DRIVER"};
    return (size_t)status < KDA_COUNT_OF(names) ? names[status] : "unknown status";
}

const char *kda_dtype_name(kda_dtype t)
{
    static const char *const names[] = {"default", "f32", "f16", "bf16"};
    return names[t];
}

const char *kda_engine_name(kda_engine e)
{
    static const char *const names[] = {"auto", "clblast", "fused", "mma"};
    return names[e];
}

void kda_log(const kda_context *ctx, kda_log_level level, const char *format, ...)
{
    if (!ctx->log || level > ctx->log_level)
        return;
    char line[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    ctx->log(ctx->log_data, level, line);
}

kda_status kda_no_memory(const kda_context *ctx, const char *what, size_t bytes)
{
    kda_log(ctx, KDA_LOG_ERROR, "out of host memory: %zu bytes for %s", bytes, what);
    return KDA_MEMORY;
}

const char *kda_cl_error_name(cl_int code)
{
    static const struct {
        cl_int code;
        const char *name;
    } table[] = {
#define NAME(x) {x, #x}
        NAME(CL_DEVICE_NOT_FOUND),
        NAME(CL_DEVICE_NOT_AVAILABLE),
        NAME(CL_COMPILER_NOT_AVAILABLE),
        NAME(CL_MEM_OBJECT_ALLOCATION_FAILURE),
        NAME(CL_OUT_OF_RESOURCES),
        NAME(CL_OUT_OF_HOST_MEMORY),
        NAME(CL_MEM_COPY_OVERLAP),
        NAME(CL_BUILD_PROGRAM_FAILURE),
        NAME(CL_MISALIGNED_SUB_BUFFER_OFFSET),
        NAME(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST),
        NAME(CL_INVALID_VALUE),
        NAME(CL_INVALID_DEVICE_TYPE),
        NAME(CL_INVALID_PLATFORM),
        NAME(CL_INVALID_DEVICE),
        NAME(CL_INVALID_CONTEXT),
        NAME(CL_INVALID_QUEUE_PROPERTIES),
        NAME(CL_INVALID_COMMAND_QUEUE),
        NAME(CL_INVALID_HOST_PTR),
        NAME(CL_INVALID_MEM_OBJECT),
        NAME(CL_INVALID_BINARY),
        NAME(CL_INVALID_BUILD_OPTIONS),
        NAME(CL_INVALID_PROGRAM),
        NAME(CL_INVALID_PROGRAM_EXECUTABLE),
        NAME(CL_INVALID_KERNEL_NAME),
        NAME(CL_INVALID_KERNEL_DEFINITION),
        NAME(CL_INVALID_KERNEL),
        NAME(CL_INVALID_ARG_INDEX),
        NAME(CL_INVALID_ARG_VALUE),
        NAME(CL_INVALID_ARG_SIZE),
        NAME(CL_INVALID_KERNEL_ARGS),
        NAME(CL_INVALID_WORK_DIMENSION),
        NAME(CL_INVALID_WORK_GROUP_SIZE),
        NAME(CL_INVALID_WORK_ITEM_SIZE),
        NAME(CL_INVALID_GLOBAL_OFFSET),
        NAME(CL_INVALID_EVENT_WAIT_LIST),
        NAME(CL_INVALID_EVENT),
        NAME(CL_INVALID_OPERATION),
        NAME(CL_INVALID_BUFFER_SIZE),
        NAME(CL_INVALID_GLOBAL_WORK_SIZE),
#undef NAME
        {-1001, "CL_PLATFORM_NOT_FOUND_KHR"},
    };
    for (size_t i = 0; i < KDA_COUNT_OF(table); i++)
        if (table[i].code == code)
            return table[i].name;
    return "unknown code";
}

kda_status kda_cl_check(const kda_context *ctx, cl_int code, const char *call)
{
    if (code == CL_SUCCESS)
        return KDA_OK;
    /* -5 at a launch is how drivers say that registers or local memory ran out, or that an earlier
     * kernel crashed: not a lack of memory that a smaller call would cure. */
    const char *hint = code == CL_OUT_OF_RESOURCES
                           ? "; too many registers or too much local memory, or a lost device"
                           : "";
    kda_log(ctx, KDA_LOG_ERROR, "%s failed: %s (%d)%s", call, kda_cl_error_name(code), (int)code,
            hint);
    switch (code) {
    case CL_MEM_OBJECT_ALLOCATION_FAILURE:
    case CL_OUT_OF_HOST_MEMORY:
    case CL_INVALID_BUFFER_SIZE:
        return KDA_MEMORY;
    case CL_DEVICE_NOT_FOUND:
    case CL_DEVICE_NOT_AVAILABLE:
    case CL_COMPILER_NOT_AVAILABLE:
    case -1001:
        return KDA_NO_DEVICE;
    case CL_BUILD_PROGRAM_FAILURE:
        return KDA_COMPILE;
    default:
        return KDA_DRIVER;
    }
}

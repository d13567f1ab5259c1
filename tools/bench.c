/* A device opened for measuring: the library's context, and on OpenCL a queue beside it.
 *
 * SPDX-License-Identifier: MIT */
#include "bench.h"
#include "machine.h"
#include "spec.h"
#include "tuned.h"

#include <stdio.h>
#include <stdlib.h>

/* Keeps the last error for the row it belongs to; warnings, and all with --verbose, go to stderr.
 */
static void keep_error(void *data, kda_log_level level, const char *line)
{
    struct bench *b = data;
    if (level == KDA_LOG_ERROR)
        snprintf(b->failure.why, sizeof b->failure.why, "%s%s", line, tuned_source(line));
    if (level == KDA_LOG_WARN || b->verbose) {
        bench_progress("", "");
        spec_log(NULL, level, line);
    }
}

bool bench_cl(struct bench *b, cl_int code, const char *call)
{
    if (code == CL_SUCCESS)
        return true;
    bool memory = code == CL_MEM_OBJECT_ALLOCATION_FAILURE || code == CL_OUT_OF_HOST_MEMORY ||
                  code == CL_INVALID_BUFFER_SIZE;
    b->failure.status = memory ? KDA_MEMORY : KDA_DRIVER;
    snprintf(b->failure.why, sizeof b->failure.why, "%s: OpenCL error %d%s", call, code,
             memory ? " (the device's memory does not suffice)" : "");
    return false;
}

static bool open_opencl(struct bench *b)
{
    cl_device_id device = kda_context_cl_device(b->ctx);
    cl_device_type type = 0;
    cl_int code;
    clGetDeviceInfo(device, CL_DEVICE_NAME, sizeof b->device - 1, b->device, NULL);
    clGetDeviceInfo(device, CL_DRIVER_VERSION, sizeof b->driver - 1, b->driver, NULL);
    clGetDeviceInfo(device, CL_DEVICE_TYPE, sizeof type, &type, NULL);
    b->small = type & CL_DEVICE_TYPE_CPU;
    b->queue = clCreateCommandQueue(kda_context_cl_context(b->ctx), device,
                                    CL_QUEUE_PROFILING_ENABLE, &code);
    return bench_cl(b, code, "clCreateCommandQueue with profiling");
}

bool bench_open(struct bench *b, const kda_context_params *params, bool verbose)
{
    kda_context_params own = *params;
    own.cache_dir = spec_cache_dir();
    *b = (struct bench){.verbose = verbose, .kernels = params->on_launch};
    own.log = keep_error;
    own.log_data = b;
    own.launch_data = b;
    own.log_level = verbose ? KDA_LOG_DEBUG : KDA_LOG_WARN;
    b->params = own;
    if (!own.tuned)
        b->params.tuned = b->tuned = tuned_read();
    b->failure.status = kda_context_create(&b->ctx, &b->params);
    if (b->failure.status)
        return false;
    if (kda_context_backend(b->ctx) == KDA_OPENCL)
        return open_opencl(b);
    char model[128];
    machine_model(model, sizeof model);
    snprintf(b->device, sizeof b->device, "CPU backend on %s, %d core%s", model, machine_cores(),
             machine_cores() > 1 ? "s" : "");
    b->small = true;
    return true;
}

bool bench_threads(struct bench *b, int32_t threads)
{
    kda_context_destroy(&b->ctx);
    b->params.threads = threads;
    b->failure.status = kda_context_create(&b->ctx, &b->params);
    return !b->failure.status;
}

void bench_close(struct bench *b)
{
    if (b->empty)
        clReleaseKernel(b->empty);
    if (b->queue)
        clReleaseCommandQueue(b->queue);
    kda_context_destroy(&b->ctx);
    free(b->tuned);
}

/* The functions in front of the real ones; see count.h.
 *
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE /* RTLD_NEXT */
#include "count.h"

#include <dlfcn.h>
#include <string.h>

#define NAME(type, name, parameters, arguments) #name,
const char *const count_names[COUNTED] = {COUNTED_LIBC(NAME) COUNTED_OPENCL(NAME, NAME)};

static _Thread_local struct counts counts;

void count_start(void)
{
    memset(&counts, 0, sizeof counts);
}

struct counts count_stop(void)
{
    return counts;
}

#define WRAP(type, name, parameters, arguments)                                                    \
    type __real_##name parameters;                                                                 \
    type __wrap_##name parameters;                                                                 \
    type __wrap_##name parameters                                                                  \
    {                                                                                              \
        counts.calls[CALLS_##name]++;                                                              \
        return __real_##name arguments;                                                            \
    }
COUNTED_LIBC(WRAP)

#define STAND_IN_NOTING(note, type, name, parameters, arguments)                                   \
    type name parameters                                                                           \
    {                                                                                              \
        type(*real) parameters;                                                                    \
        *(void **)&real = dlsym(RTLD_NEXT, #name);                                                 \
        counts.calls[CALLS_##name]++;                                                              \
        note;                                                                                      \
        return real arguments;                                                                     \
    }
#define STAND_IN(...) STAND_IN_NOTING((void)0, __VA_ARGS__)
#define STAND_IN_LAUNCH(...)                                                                       \
    STAND_IN_NOTING((note_width(n, global), note_size(queue, kernel)), __VA_ARGS__)

static void note_width(cl_uint dims, const size_t *global)
{
    for (cl_uint i = 0; i < dims && i < 2; i++)
        if (global[i] > counts.width)
            counts.width = global[i];
}

static void note_size(cl_command_queue queue, cl_kernel kernel)
{
    char name[64] = "";
    size_t size[3] = {0};
    cl_device_id device = NULL;
    clGetCommandQueueInfo(queue, CL_QUEUE_DEVICE, sizeof device, &device, NULL);
    clGetKernelInfo(kernel, CL_KERNEL_FUNCTION_NAME, sizeof name, name, NULL);
    clGetKernelWorkGroupInfo(kernel, device, CL_KERNEL_COMPILE_WORK_GROUP_SIZE, sizeof size, size,
                             NULL);
    counts.sized += size[0] && !strncmp(name, "kda_", 4);
}

COUNTED_OPENCL(STAND_IN, STAND_IN_LAUNCH)

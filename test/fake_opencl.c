/* OpenCL at its worst, put under kdainfo at link time: one platform whose only device answers few
 * questions and makes no context, one without devices, one that fails when asked.
 *
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "kda.h"

static int things[4]; /* their addresses are the handles */
#define PLATFORM(i) ((cl_platform_id)(void *)&things[i])
#define DEVICE ((cl_device_id)(void *)&things[3])

cl_int __wrap_clGetPlatformIDs(cl_uint room, cl_platform_id *list, cl_uint *count);
cl_int __wrap_clGetPlatformInfo(cl_platform_id platform, cl_platform_info what, size_t size,
                                void *value, size_t *needed);
cl_int __wrap_clGetDeviceIDs(cl_platform_id platform, cl_device_type type, cl_uint room,
                             cl_device_id *list, cl_uint *count);
cl_int __wrap_clGetDeviceInfo(cl_device_id device, cl_device_info what, size_t size, void *value,
                              size_t *needed);
cl_context __wrap_clCreateContext(const cl_context_properties *properties, cl_uint count,
                                  const cl_device_id *devices,
                                  void(CL_CALLBACK *notify)(const char *, const void *, size_t,
                                                            void *),
                                  void *data, cl_int *code);

static cl_int answer(const void *from, size_t bytes, size_t size, void *value, size_t *needed)
{
    if (needed)
        *needed = bytes;
    if (value && size < bytes)
        return CL_INVALID_VALUE;
    if (value)
        memcpy(value, from, bytes);
    return CL_SUCCESS;
}

cl_int __wrap_clGetPlatformIDs(cl_uint room, cl_platform_id *list, cl_uint *count)
{
    for (cl_uint i = 0; list && i < room && i < 3; ++i)
        list[i] = PLATFORM(i);
    if (count)
        *count = 3;
    return CL_SUCCESS;
}

cl_int __wrap_clGetPlatformInfo(cl_platform_id platform, cl_platform_info what, size_t size,
                                void *value, size_t *needed)
{
    static const char *const names[] = {"Lonely", "Empty", "Broken"};
    const char *name = names[(int *)(void *)platform - things];
    if (what != CL_PLATFORM_NAME)
        return CL_INVALID_VALUE;
    return answer(name, strlen(name) + 1, size, value, needed);
}

cl_int __wrap_clGetDeviceIDs(cl_platform_id platform, cl_device_type type, cl_uint room,
                             cl_device_id *list, cl_uint *count)
{
    (void)type;
    if (platform == PLATFORM(1))
        return CL_DEVICE_NOT_FOUND;
    if (platform == PLATFORM(2))
        return CL_OUT_OF_RESOURCES;
    if (list && room)
        *list = DEVICE;
    if (count)
        *count = 1;
    return CL_SUCCESS;
}

/* A name, a list of extensions, a number of a wrong size; nothing else. */
cl_int __wrap_clGetDeviceInfo(cl_device_id device, cl_device_info what, size_t size, void *value,
                              size_t *needed)
{
    static const char name[] = "Mute Processor", extensions[] = "cl_nv_device_attribute_query";
    static const char number[3];
    (void)device;
    switch (what) {
    case CL_DEVICE_NAME:
        return answer(name, sizeof name, size, value, needed);
    case CL_DEVICE_EXTENSIONS:
        return answer(extensions, sizeof extensions, size, value, needed);
    case CL_DEVICE_MAX_COMPUTE_UNITS:
        return answer(number, sizeof number, size, value, needed);
    default:
        return CL_INVALID_VALUE;
    }
}

cl_context __wrap_clCreateContext(
    const cl_context_properties *properties, cl_uint count, const cl_device_id *devices,
    void(CL_CALLBACK *notify)(const char *, const void *, size_t, void *), void *data, cl_int *code)
{
    (void)properties, (void)count, (void)devices, (void)notify, (void)data;
    if (code)
        *code = CL_OUT_OF_RESOURCES;
    return NULL;
}

/* Calls every OpenCL device a GPU: linked in front of clGetDeviceInfo, so that a CPU runs what GPUs
 * get, sub-groups included.
 *
 * SPDX-License-Identifier: MIT */
#include "kda.h"

cl_int __real_clGetDeviceInfo(cl_device_id id, cl_device_info what, size_t size, void *value,
                              size_t *answer);
cl_int __wrap_clGetDeviceInfo(cl_device_id id, cl_device_info what, size_t size, void *value,
                              size_t *answer);

cl_int __wrap_clGetDeviceInfo(cl_device_id id, cl_device_info what, size_t size, void *value,
                              size_t *answer)
{
    cl_int err = __real_clGetDeviceInfo(id, what, size, value, answer);
    if (!err && what == CL_DEVICE_TYPE && value)
        *(cl_device_type *)value = CL_DEVICE_TYPE_GPU;
    return err;
}

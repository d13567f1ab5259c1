/* Run when the build is set up: one line P:D for each OpenCL device, so that each gets a test of
 * its own. Counted as tools/spec.h says. Mesa shows its software device when asked.
 *
 * SPDX-License-Identifier: MIT */
#define CL_TARGET_OPENCL_VERSION 120
#ifdef __APPLE__
#include <OpenCL/opencl.h>
#else
#include <CL/cl.h>
#endif

#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    enum { MOST = 64 };
    cl_platform_id platforms[MOST];
    cl_uint num_platforms = 0;
    setenv("RUSTICL_ENABLE", "llvmpipe", 0);
    if (clGetPlatformIDs(MOST, platforms, &num_platforms) != CL_SUCCESS)
        return 0;
    for (cl_uint p = 0; p < num_platforms && p < MOST; p++) {
        cl_uint num_devices = 0;
        if (clGetDeviceIDs(platforms[p], CL_DEVICE_TYPE_ALL, 0, NULL, &num_devices) != CL_SUCCESS)
            continue;
        for (cl_uint d = 0; d < num_devices; d++)
            printf("%d:%d\n", (int)p, (int)d);
    }
    return 0;
}

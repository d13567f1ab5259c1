/* Has every OpenCL device claim what the environment says, and keep to it: linked in front of
 * OpenCL, so that a CPU runs what GPUs and small devices get.
 *
 *     KDA_PRETEND_TYPE=gpu        it is a GPU
 *     KDA_PRETEND_COMPUTE_UNITS=N it has so many, which few work-groups don't fill
 *     KDA_PRETEND_WORK_GROUP=N    work-groups have at most N items
 *     KDA_PRETEND_KERNEL=N        the same, but only a kernel that was built says so
 *     KDA_PRETEND_ALLOC=BYTES     buffers are no larger, but for what tests put around their
 *                                 contents
 *     KDA_PRETEND_UNIT=NAME       it has a matrix unit of pretend_unit.c
 *
 * SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>

#include "kda.h"
#include "pretend_unit.h"

cl_int __real_clGetDeviceInfo(cl_device_id id, cl_device_info what, size_t size, void *value,
                              size_t *answer);
cl_int __wrap_clGetDeviceInfo(cl_device_id id, cl_device_info what, size_t size, void *value,
                              size_t *answer);
cl_int __real_clGetKernelWorkGroupInfo(cl_kernel kernel, cl_device_id id,
                                       cl_kernel_work_group_info what, size_t size, void *value,
                                       size_t *answer);
cl_int __wrap_clGetKernelWorkGroupInfo(cl_kernel kernel, cl_device_id id,
                                       cl_kernel_work_group_info what, size_t size, void *value,
                                       size_t *answer);
cl_mem __real_clCreateBuffer(cl_context context, cl_mem_flags flags, size_t size, void *from,
                             cl_int *code);
cl_mem __wrap_clCreateBuffer(cl_context context, cl_mem_flags flags, size_t size, void *from,
                             cl_int *code);
cl_int __real_clEnqueueNDRangeKernel(cl_command_queue queue, cl_kernel kernel, cl_uint dims,
                                     const size_t *offset, const size_t *global,
                                     const size_t *local, cl_uint waits, const cl_event *wait,
                                     cl_event *event);
cl_int __wrap_clEnqueueNDRangeKernel(cl_command_queue queue, cl_kernel kernel, cl_uint dims,
                                     const size_t *offset, const size_t *global,
                                     const size_t *local, cl_uint waits, const cl_event *wait,
                                     cl_event *event);

cl_program __real_clCreateProgramWithSource(cl_context context, cl_uint count, const char **text,
                                            const size_t *lengths, cl_int *code);
cl_program __wrap_clCreateProgramWithSource(cl_context context, cl_uint count, const char **text,
                                            const size_t *lengths, cl_int *code);

static unsigned long long limit(const char *name)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : ~0ull;
}
#define MOST_ITEMS limit("KDA_PRETEND_WORK_GROUP")
#define MOST_OF_KERNEL limit("KDA_PRETEND_KERNEL")
#define MOST_BYTES limit("KDA_PRETEND_ALLOC")
#define SUB_GROUP_SIZES 0x4108 /* CL_DEVICE_SUB_GROUP_SIZES_INTEL */

static size_t most_of_kernel(void)
{
    const unsigned long long kernel = MOST_OF_KERNEL;
    return (size_t)(kernel < MOST_ITEMS ? kernel : MOST_ITEMS);
}

cl_int __wrap_clGetDeviceInfo(cl_device_id id, cl_device_info what, size_t size, void *value,
                              size_t *answer)
{
    const struct pretend_unit *unit = pretend_unit();
    const size_t more = unit && what == CL_DEVICE_EXTENSIONS ? strlen(unit->extension) : 0;
    cl_int err = __real_clGetDeviceInfo(id, what, size - (value ? more : 0), value, answer);
    if (!err && answer)
        *answer += more;
    if (err || !value)
        return err;
    if (more)
        strcat(value, unit->extension);
    if (unit && what == SUB_GROUP_SIZES && answer) {
        *(size_t *)value = unit->lanes;
        *answer = sizeof(size_t);
    }
    if (what == CL_DEVICE_TYPE && getenv("KDA_PRETEND_TYPE"))
        *(cl_device_type *)value = CL_DEVICE_TYPE_GPU;
    if (what == CL_DEVICE_MAX_COMPUTE_UNITS && getenv("KDA_PRETEND_COMPUTE_UNITS"))
        *(cl_uint *)value = (cl_uint)limit("KDA_PRETEND_COMPUTE_UNITS");
    if (what == CL_DEVICE_MAX_WORK_GROUP_SIZE && *(size_t *)value > MOST_ITEMS)
        *(size_t *)value = (size_t)MOST_ITEMS;
    if (what == CL_DEVICE_MAX_MEM_ALLOC_SIZE && *(cl_ulong *)value > MOST_BYTES)
        *(cl_ulong *)value = MOST_BYTES;
    return err;
}

cl_int __wrap_clGetKernelWorkGroupInfo(cl_kernel kernel, cl_device_id id,
                                       cl_kernel_work_group_info what, size_t size, void *value,
                                       size_t *answer)
{
    cl_int err = __real_clGetKernelWorkGroupInfo(kernel, id, what, size, value, answer);
    if (!err && value && what == CL_KERNEL_WORK_GROUP_SIZE && *(size_t *)value > most_of_kernel())
        *(size_t *)value = most_of_kernel();
    return err;
}

cl_mem __wrap_clCreateBuffer(cl_context context, cl_mem_flags flags, size_t size, void *from,
                             cl_int *code)
{
    enum { GUARDS = 2 * 4096 };
    if (size < GUARDS || size - GUARDS <= MOST_BYTES)
        return __real_clCreateBuffer(context, flags, size, from, code);
    if (code)
        *code = CL_INVALID_BUFFER_SIZE;
    return NULL;
}

cl_int __wrap_clEnqueueNDRangeKernel(cl_command_queue queue, cl_kernel kernel, cl_uint dims,
                                     const size_t *offset, const size_t *global,
                                     const size_t *local, cl_uint waits, const cl_event *wait,
                                     cl_event *event)
{
    size_t items = 1;
    for (cl_uint i = 0; local && i < dims; i++)
        items *= local[i];
    return items > most_of_kernel()
               ? CL_INVALID_WORK_GROUP_SIZE
               : __real_clEnqueueNDRangeKernel(queue, kernel, dims, offset, global, local, waits,
                                               wait, event);
}

cl_program __wrap_clCreateProgramWithSource(cl_context context, cl_uint count, const char **text,
                                            const size_t *lengths, cl_int *code)
{
    const struct pretend_unit *unit = pretend_unit();
    const char *all[16] = {unit ? unit->source : ""};
    (void)lengths; /* the library gives none */
    memcpy(all + 1, text, count * sizeof *text);
    return __real_clCreateProgramWithSource(context, count + 1, all, NULL, code);
}

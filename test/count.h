/* Counts the calls of functions that allocate, compile, read back or wait, so that a test can tell
 * that none was made, and launches. Functions of the C library are wrapped at link time (-Wl,--wrap
 * for each), so that calls of the code linked statically are counted and those of the driver are
 * not. OpenCL's are defined in count.c in front of libOpenCL's, so that CLBlast's calls are counted
 * too.
 *
 * SPDX-License-Identifier: MIT */
#ifndef COUNT_H
#define COUNT_H

#include <pthread.h>
#include <stdlib.h>

#include "kda.h"

/* Type, name, parameters, arguments. */
#define COUNTED_LIBC(X)                                                                            \
    X(void *, malloc, (size_t n), (n))                                                             \
    X(void *, calloc, (size_t n, size_t size), (n, size))                                          \
    X(void *, realloc, (void *p, size_t n), (p, n))                                                \
    X(void *, aligned_alloc, (size_t align, size_t n), (align, n))                                 \
    X(int, posix_memalign, (void **p, size_t align, size_t n), (p, align, n))                      \
    X(char *, strdup, (const char *s), (s))                                                        \
    X(int, pthread_create,                                                                         \
      (pthread_t * t, const pthread_attr_t *attributes, void *(*fn)(void *), void *arg),           \
      (t, attributes, fn, arg))

#define COUNTED_OPENCL(X)                                                                          \
    X(cl_mem, clCreateBuffer,                                                                      \
      (cl_context context, cl_mem_flags flags, size_t n, void *p, cl_int *code),                   \
      (context, flags, n, p, code))                                                                \
    X(cl_mem, clCreateSubBuffer,                                                                   \
      (cl_mem mem, cl_mem_flags flags, cl_buffer_create_type type, const void *info,               \
       cl_int *code),                                                                              \
      (mem, flags, type, info, code))                                                              \
    X(cl_command_queue, clCreateCommandQueue,                                                      \
      (cl_context context, cl_device_id device, cl_command_queue_properties how, cl_int * code),   \
      (context, device, how, code))                                                                \
    X(cl_program, clCreateProgramWithSource,                                                       \
      (cl_context context, cl_uint n, const char **text, const size_t *size, cl_int *code),        \
      (context, n, text, size, code))                                                              \
    X(cl_program, clCreateProgramWithBinary,                                                       \
      (cl_context context, cl_uint n, const cl_device_id *device, const size_t *size,              \
       const unsigned char **binary, cl_int *status, cl_int *code),                                \
      (context, n, device, size, binary, status, code))                                            \
    X(cl_int, clBuildProgram,                                                                      \
      (cl_program program, cl_uint n, const cl_device_id *device, const char *options,             \
       void (*done)(cl_program, void *), void *data),                                              \
      (program, n, device, options, done, data))                                                   \
    X(cl_int, clCompileProgram,                                                                    \
      (cl_program program, cl_uint n, const cl_device_id *device, const char *options,             \
       cl_uint headers, const cl_program *header, const char **name,                               \
       void (*done)(cl_program, void *), void *data),                                              \
      (program, n, device, options, headers, header, name, done, data))                            \
    X(cl_kernel, clCreateKernel, (cl_program program, const char *name, cl_int *code),             \
      (program, name, code))                                                                       \
    X(cl_int, clCreateKernelsInProgram,                                                            \
      (cl_program program, cl_uint n, cl_kernel * kernel, cl_uint * count),                        \
      (program, n, kernel, count))                                                                 \
    X(cl_int, clEnqueueReadBuffer,                                                                 \
      (cl_command_queue queue, cl_mem mem, cl_bool blocking, size_t offset, size_t n, void *p,     \
       cl_uint waits, const cl_event *wait, cl_event *event),                                      \
      (queue, mem, blocking, offset, n, p, waits, wait, event))                                    \
    X(cl_int, clEnqueueReadBufferRect,                                                             \
      (cl_command_queue queue, cl_mem mem, cl_bool blocking, const size_t *a, const size_t *b,     \
       const size_t *c, size_t d, size_t e, size_t f, size_t g, void *p, cl_uint waits,            \
       const cl_event *wait, cl_event *event),                                                     \
      (queue, mem, blocking, a, b, c, d, e, f, g, p, waits, wait, event))                          \
    X(void *, clEnqueueMapBuffer,                                                                  \
      (cl_command_queue queue, cl_mem mem, cl_bool blocking, cl_map_flags flags, size_t offset,    \
       size_t n, cl_uint waits, const cl_event *wait, cl_event *event, cl_int *code),              \
      (queue, mem, blocking, flags, offset, n, waits, wait, event, code))                          \
    X(cl_int, clEnqueueNDRangeKernel,                                                              \
      (cl_command_queue queue, cl_kernel kernel, cl_uint n, const size_t *offset,                  \
       const size_t *global, const size_t *local, cl_uint waits, const cl_event *wait,             \
       cl_event *event),                                                                           \
      (queue, kernel, n, offset, global, local, waits, wait, event))                               \
    X(cl_int, clWaitForEvents, (cl_uint n, const cl_event *event), (n, event))                     \
    X(cl_int, clFinish, (cl_command_queue queue), (queue))

#define COUNT_INDEX(type, name, parameters, arguments) CALLS_##name,
enum { COUNTED_LIBC(COUNT_INDEX) COUNTED_OPENCL(COUNT_INDEX) COUNTED };

struct counts {
    int calls[COUNTED];
};
extern const char *const count_names[COUNTED];

/* The calling thread's calls since the last count_start. */
void count_start(void);
struct counts count_stop(void);

#endif

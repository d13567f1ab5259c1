/* The functions outside the library that it calls and that can fail, as lists for macros
 * X(type, name, parameters, arguments), one list for each way to fail.
 *
 * SPDX-License-Identifier: MIT */
#ifndef CALLS_H
#define CALLS_H

#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "kda.h"

/* The C library's, which return NULL. */
#define CALLS_POINTER(X)                                                                           \
    X(void *, malloc, (size_t n), (n))                                                             \
    X(void *, calloc, (size_t n, size_t size), (n, size))                                          \
    X(void *, realloc, (void *p, size_t n), (p, n))                                                \
    X(void *, aligned_alloc, (size_t align, size_t n), (align, n))                                 \
    X(char *, strdup, (const char *s), (s))
/* Those that return an error number. */
#define CALLS_ERRNO(X)                                                                             \
    X(int, posix_memalign, (void **p, size_t align, size_t n), (p, align, n))                      \
    X(int, pthread_create,                                                                         \
      (pthread_t * t, const pthread_attr_t *attributes, void *(*fn)(void *), void *arg),           \
      (t, attributes, fn, arg))
/* Those for files, with what they return then; by the names that they have where files may be
 * large. */
#define CALLS_FILE(X)                                                                              \
    X(FILE *, fopen64, (const char *path, const char *mode), (path, mode), NULL)                   \
    X(FILE *, fdopen, (int file, const char *mode), (file, mode), NULL)                            \
    X(DIR *, opendir, (const char *path), (path), NULL)                                            \
    X(int, mkstemp64, (char *path), (path), -1)                                                    \
    X(int, mkdir, (const char *path, mode_t mode), (path, mode), -1)                               \
    X(int, rename, (const char *from, const char *to), (from, to), -1)                             \
    X(int, lstat64, (const char *path, struct stat64 *s), (path, s), -1)                           \
    X(int, fseek, (FILE * file, long n, int from), (file, n, from), -1)                            \
    X(long, ftell, (FILE * file), (file), -1)                                                      \
    X(size_t, fread, (void *p, size_t size, size_t n, FILE *file), (p, size, n, file), 0)          \
    X(size_t, fwrite, (const void *p, size_t size, size_t n, FILE *file), (p, size, n, file), 0)
/* OpenCL's that store a code and return NULL. */
#define CALLS_HANDLE(X)                                                                            \
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
    X(cl_kernel, clCreateKernel, (cl_program program, const char *name, cl_int *code),             \
      (program, name, code))                                                                       \
    X(void *, clEnqueueMapBuffer,                                                                  \
      (cl_command_queue queue, cl_mem mem, cl_bool blocking, cl_map_flags flags, size_t offset,    \
       size_t n, cl_uint waits, const cl_event *wait, cl_event *event, cl_int *code),              \
      (queue, mem, blocking, flags, offset, n, waits, wait, event, code))                          \
    X(cl_context, clCreateContext,                                                                 \
      (const cl_context_properties *properties, cl_uint n, const cl_device_id *device,             \
       void (*notify)(const char *, const void *, size_t, void *), void *data, cl_int *code),      \
      (properties, n, device, notify, data, code))
/* Those that return a code, and compile, read back or wait. */
#define CALLS_CODE(X)                                                                              \
    X(cl_int, clBuildProgram,                                                                      \
      (cl_program program, cl_uint n, const cl_device_id *device, const char *options,             \
       void (*done)(cl_program, void *), void *data),                                              \
      (program, n, device, options, done, data))                                                   \
    X(cl_int, clCompileProgram,                                                                    \
      (cl_program program, cl_uint n, const cl_device_id *device, const char *options,             \
       cl_uint headers, const cl_program *header, const char **name,                               \
       void (*done)(cl_program, void *), void *data),                                              \
      (program, n, device, options, headers, header, name, done, data))                            \
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
    X(cl_int, clWaitForEvents, (cl_uint n, const cl_event *event), (n, event))                     \
    X(cl_int, clFinish, (cl_command_queue queue), (queue))
/* The one that launches. */
#define CALLS_LAUNCH(X)                                                                            \
    X(cl_int, clEnqueueNDRangeKernel,                                                              \
      (cl_command_queue queue, cl_kernel kernel, cl_uint n, const size_t *offset,                  \
       const size_t *global, const size_t *local, cl_uint waits, const cl_event *wait,             \
       cl_event *event),                                                                           \
      (queue, kernel, n, offset, global, local, waits, wait, event))
/* Those that keep an object. */
#define CALLS_RETAIN(X)                                                                            \
    X(cl_int, clRetainContext, (cl_context context), (context))                                    \
    X(cl_int, clRetainKernel, (cl_kernel kernel), (kernel))
/* Those that return a code and may be called at any time. */
#define CALLS_QUICK(X)                                                                             \
    X(cl_int, clGetPlatformIDs, (cl_uint n, cl_platform_id * ids, cl_uint * count),                \
      (n, ids, count))                                                                             \
    X(cl_int, clGetDeviceIDs,                                                                      \
      (cl_platform_id platform, cl_device_type type, cl_uint n, cl_device_id * ids,                \
       cl_uint * count),                                                                           \
      (platform, type, n, ids, count))                                                             \
    X(cl_int, clGetDeviceInfo,                                                                     \
      (cl_device_id device, cl_device_info what, size_t n, void *value, size_t *answer),           \
      (device, what, n, value, answer))                                                            \
    X(cl_int, clGetContextInfo,                                                                    \
      (cl_context context, cl_context_info what, size_t n, void *value, size_t *answer),           \
      (context, what, n, value, answer))                                                           \
    X(cl_int, clGetCommandQueueInfo,                                                               \
      (cl_command_queue queue, cl_command_queue_info what, size_t n, void *value, size_t *answer), \
      (queue, what, n, value, answer))                                                             \
    X(cl_int, clGetMemObjectInfo,                                                                  \
      (cl_mem mem, cl_mem_info what, size_t n, void *value, size_t *answer),                       \
      (mem, what, n, value, answer))                                                               \
    X(cl_int, clGetProgramInfo,                                                                    \
      (cl_program program, cl_program_info what, size_t n, void *value, size_t *answer),           \
      (program, what, n, value, answer))                                                           \
    X(cl_int, clGetProgramBuildInfo,                                                               \
      (cl_program program, cl_device_id device, cl_program_build_info what, size_t n, void *value, \
       size_t *answer),                                                                            \
      (program, device, what, n, value, answer))                                                   \
    X(cl_int, clGetKernelWorkGroupInfo,                                                            \
      (cl_kernel kernel, cl_device_id device, cl_kernel_work_group_info what, size_t n,            \
       void *value, size_t *answer),                                                               \
      (kernel, device, what, n, value, answer))                                                    \
    X(cl_int, clSetKernelArg, (cl_kernel kernel, cl_uint i, size_t n, const void *value),          \
      (kernel, i, n, value))                                                                       \
    X(cl_int, clEnqueueWriteBuffer,                                                                \
      (cl_command_queue queue, cl_mem mem, cl_bool blocking, size_t offset, size_t n,              \
       const void *p, cl_uint waits, const cl_event *wait, cl_event *event),                       \
      (queue, mem, blocking, offset, n, p, waits, wait, event))                                    \
    X(cl_int, clEnqueueBarrierWithWaitList,                                                        \
      (cl_command_queue queue, cl_uint waits, const cl_event *wait, cl_event *event),              \
      (queue, waits, wait, event))
/* Those that give back what the others made. */
#define CALLS_RELEASE(X)                                                                           \
    X(cl_int, clReleaseContext, (cl_context x), (x))                                               \
    X(cl_int, clReleaseCommandQueue, (cl_command_queue x), (x))                                    \
    X(cl_int, clReleaseProgram, (cl_program x), (x))                                               \
    X(cl_int, clReleaseKernel, (cl_kernel x), (x))                                                 \
    X(cl_int, clReleaseMemObject, (cl_mem x), (x))                                                 \
    X(cl_int, clReleaseEvent, (cl_event x), (x))

#endif

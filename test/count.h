/* Counts the calls of functions that allocate, compile, read back or wait, so that a test can tell
 * that none was made, and launches. Functions of the C library are wrapped at link time (-Wl,--wrap
 * for each), so that calls of the code linked statically are counted and those of the driver are
 * not. OpenCL's are defined in count.c in front of libOpenCL's, so that CLBlast's calls are counted
 * too.
 *
 * SPDX-License-Identifier: MIT */
#ifndef COUNT_H
#define COUNT_H

#include "calls.h"

#define COUNTED_LIBC(X) CALLS_POINTER(X) CALLS_ERRNO(X)
#define COUNTED_OPENCL(X, LAUNCH) CALLS_HANDLE(X) CALLS_CODE(X) CALLS_LAUNCH(LAUNCH)

#define COUNT_INDEX(type, name, parameters, arguments) CALLS_##name,
enum { COUNTED_LIBC(COUNT_INDEX) COUNTED_OPENCL(COUNT_INDEX, COUNT_INDEX) COUNTED };

struct counts {
    int calls[COUNTED];
    size_t width; /* the longer of a launch's first two dimensions, of the widest launch */
    int sized;    /* launches of the library's kernels that declare a work-group's size */
};
extern const char *const count_names[COUNTED];

/* The calling thread's calls since the last count_start. */
void count_start(void);
struct counts count_stop(void);

#endif

/* Faults: calls that the library makes of the C library, of OpenCL and of CLBlast fail when a test
 * says so, and what it holds of memory, threads and OpenCL objects is counted. By link-time
 * wrapping
 * (-Wl,--wrap for each function): calls of the drivers, and of CLBlast, are their own.
 *
 * SPDX-License-Identifier: MIT */
#ifndef FAULT_H
#define FAULT_H

#include "kda.h"

struct fault {
    const char *only; /* a function; NULL: any */
    int first, last;  /* which of its calls fail, from 1 */
    cl_int code;      /* with what; CL_SUCCESS: they do nothing and claim to have */
};

/* Faults are the calling thread's, from fault_start to fault_stop. */
void fault_start(struct fault fault);
/* The function that failed last; NULL: there were not so many calls. */
const char *fault_stop(void);

/* Blocks of memory, threads and references to OpenCL objects that were made and not given back. */
long fault_held(void);

#endif

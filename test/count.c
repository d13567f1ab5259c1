/* The functions in front of the real ones; see count.h.
 *
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE /* RTLD_NEXT */
#include "count.h"

#include <dlfcn.h>
#include <string.h>

#define NAME(type, name, parameters, arguments) #name,
const char *const count_names[COUNTED] = {COUNTED_LIBC(NAME) COUNTED_OPENCL(NAME)};

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

#define STAND_IN(type, name, parameters, arguments)                                                \
    type name parameters                                                                           \
    {                                                                                              \
        type(*real) parameters;                                                                    \
        *(void **)&real = dlsym(RTLD_NEXT, #name);                                                 \
        counts.calls[CALLS_##name]++;                                                              \
        return real arguments;                                                                     \
    }
COUNTED_OPENCL(STAND_IN)

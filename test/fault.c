/* The functions in front of the real ones; see fault.h.
 *
 * SPDX-License-Identifier: MIT */
#include "fault.h"

#include <clblast_c.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "calls.h"

static _Thread_local struct fault fault;
static _Thread_local int calls;
static _Thread_local const char *failed;
static _Thread_local long held;

void fault_start(struct fault wanted)
{
    fault = wanted;
    calls = 0;
    failed = NULL;
}

const char *fault_stop(void)
{
    fault.first = fault.last = 0;
    return failed;
}

long fault_held(void)
{
    return held;
}

/* Whether a call that is made now is to fail. */
static bool fails(const char *name)
{
    if (!fault.first || (fault.only && strcmp(fault.only, name)))
        return false;
    calls++;
    if (calls < fault.first || calls > fault.last)
        return false;
    failed = name;
    return true;
}

#define DECLARE(type, name, parameters)                                                            \
    type __real_##name parameters;                                                                 \
    type __wrap_##name parameters;                                                                 \
    type __wrap_##name parameters

#define POINTER(type, name, parameters, arguments)                                                 \
    DECLARE(type, name, parameters)                                                                \
    {                                                                                              \
        type made = fails(#name) ? NULL : __real_##name arguments;                                 \
        held += made != NULL;                                                                      \
        return made;                                                                               \
    }
CALLS_POINTER(POINTER)

#define ERRNO(type, name, parameters, arguments)                                                   \
    DECLARE(type, name, parameters)                                                                \
    {                                                                                              \
        int error = fails(#name) ? EAGAIN : __real_##name arguments;                               \
        held += !error;                                                                            \
        return error;                                                                              \
    }
CALLS_ERRNO(ERRNO)

#define HANDLE(type, name, parameters, arguments)                                                  \
    DECLARE(type, name, parameters)                                                                \
    {                                                                                              \
        bool fail = fails(#name);                                                                  \
        if (fail && code)                                                                          \
            *code = fault.code;                                                                    \
        type made = fail ? NULL : __real_##name arguments;                                         \
        held += made != NULL;                                                                      \
        return made;                                                                               \
    }
CALLS_HANDLE(HANDLE)

#define CODE(type, name, parameters, arguments)                                                    \
    DECLARE(type, name, parameters)                                                                \
    {                                                                                              \
        return fails(#name) ? fault.code : __real_##name arguments;                                \
    }
CALLS_CODE(CODE)
CALLS_QUICK(CODE)

#define RETAIN(type, name, parameters, arguments)                                                  \
    DECLARE(type, name, parameters)                                                                \
    {                                                                                              \
        type error = fails(#name) ? fault.code : __real_##name arguments;                          \
        held += !error;                                                                            \
        return error;                                                                              \
    }
CALLS_RETAIN(RETAIN)

/* A launch makes an event if one is asked for. */
#define LAUNCH(type, name, parameters, arguments)                                                  \
    DECLARE(type, name, parameters)                                                                \
    {                                                                                              \
        type error = fails(#name) ? (type)fault.code : __real_##name arguments;                    \
        held += !error && event;                                                                   \
        return error;                                                                              \
    }
CALLS_LAUNCH(LAUNCH)
LAUNCH(CLBlastStatusCode, CLBlastSgemmStridedBatched,
       (CLBlastLayout layout, CLBlastTranspose ta, CLBlastTranspose tb, size_t m, size_t n,
        size_t k, float alpha, cl_mem a, size_t a_at, size_t lda, size_t a_stride, cl_mem b,
        size_t b_at, size_t ldb, size_t b_stride, float beta, cl_mem c, size_t c_at, size_t ldc,
        size_t c_stride, size_t batch, cl_command_queue *queue, cl_event *event),
       (layout, ta, tb, m, n, k, alpha, a, a_at, lda, a_stride, b, b_at, ldb, b_stride, beta, c,
        c_at, ldc, c_stride, batch, queue, event))

/* Giving back does not fail. */
#define RELEASE(type, name, parameters, arguments)                                                 \
    DECLARE(type, name, parameters)                                                                \
    {                                                                                              \
        held--;                                                                                    \
        return __real_##name arguments;                                                            \
    }
CALLS_RELEASE(RELEASE)

DECLARE(void, free, (void *p))
{
    held -= p != NULL;
    __real_free(p);
}

DECLARE(int, pthread_join, (pthread_t thread, void **result))
{
    held--;
    return __real_pthread_join(thread, result);
}

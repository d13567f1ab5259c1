/* The functions in front of the real ones; see fault.h.
 *
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE /* stat64 */
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
static _Thread_local bool in_clblast; /* what it makes it may keep */

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
    failed = in_clblast ? "CLBlastSgemmStridedBatched" : name;
    return true;
}

static void hold(long n)
{
    held += in_clblast ? 0 : n;
}

#define DECLARE(type, name, parameters)                                                            \
    type __real_##name parameters;                                                                 \
    type __wrap_##name parameters;                                                                 \
    type __wrap_##name parameters

#define POINTER(type, name, parameters, arguments)                                                 \
    DECLARE(type, name, parameters)                                                                \
    {                                                                                              \
        type made = fails(#name) ? NULL : __real_##name arguments;                                 \
        hold(made != NULL);                                                                        \
        return made;                                                                               \
    }
CALLS_POINTER(POINTER)

#define ERRNO(type, name, parameters, arguments)                                                   \
    DECLARE(type, name, parameters)                                                                \
    {                                                                                              \
        int error = fails(#name) ? EAGAIN : __real_##name arguments;                               \
        hold(!error);                                                                              \
        return error;                                                                              \
    }
CALLS_ERRNO(ERRNO)

#define FILES(type, name, parameters, arguments, failure)                                          \
    DECLARE(type, name, parameters)                                                                \
    {                                                                                              \
        if (!fails(#name))                                                                         \
            return __real_##name arguments;                                                        \
        errno = EIO;                                                                               \
        return failure;                                                                            \
    }
CALLS_FILE(FILES)

/* A file is closed even where that fails. */
DECLARE(int, fclose, (FILE * file))
{
    const bool fail = fails("fclose");
    const int closed = __real_fclose(file);
    if (!fail)
        return closed;
    errno = EIO;
    return EOF;
}

#define HANDLE(type, name, parameters, arguments)                                                  \
    DECLARE(type, name, parameters)                                                                \
    {                                                                                              \
        bool fail = fails(#name);                                                                  \
        if (fail && code)                                                                          \
            *code = fault.code;                                                                    \
        type made = fail ? NULL : __real_##name arguments;                                         \
        hold(made != NULL);                                                                        \
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
        hold(!error);                                                                              \
        return error;                                                                              \
    }
CALLS_RETAIN(RETAIN)

/* A launch makes an event if one is asked for. */
#define LAUNCH(type, name, parameters, arguments)                                                  \
    DECLARE(type, name, parameters)                                                                \
    {                                                                                              \
        type error = fails(#name) ? (type)fault.code : __real_##name arguments;                    \
        hold(!error && event);                                                                     \
        return error;                                                                              \
    }
CALLS_LAUNCH(LAUNCH)

/* Its own calls fail too, where it is linked statically. */
DECLARE(CLBlastStatusCode, CLBlastSgemmStridedBatched,
        (CLBlastLayout layout, CLBlastTranspose ta, CLBlastTranspose tb, size_t m, size_t n,
         size_t k, float alpha, cl_mem a, size_t a_at, size_t lda, size_t a_stride, cl_mem b,
         size_t b_at, size_t ldb, size_t b_stride, float beta, cl_mem c, size_t c_at, size_t ldc,
         size_t c_stride, size_t batch, cl_command_queue *queue, cl_event *event))
{
    if (fails("CLBlastSgemmStridedBatched"))
        return (CLBlastStatusCode)fault.code;
    in_clblast = true;
    CLBlastStatusCode error = __real_CLBlastSgemmStridedBatched(
        layout, ta, tb, m, n, k, alpha, a, a_at, lda, a_stride, b, b_at, ldb, b_stride, beta, c,
        c_at, ldc, c_stride, batch, queue, event);
    in_clblast = false;
    hold(!error && event);
    return error;
}

/* Giving back does not fail. */
#define RELEASE(type, name, parameters, arguments)                                                 \
    DECLARE(type, name, parameters)                                                                \
    {                                                                                              \
        hold(-1);                                                                                  \
        return __real_##name arguments;                                                            \
    }
CALLS_RELEASE(RELEASE)

DECLARE(void, free, (void *p))
{
    hold(-(p != NULL));
    __real_free(p);
}

DECLARE(int, pthread_join, (pthread_t thread, void **result))
{
    hold(-1);
    return __real_pthread_join(thread, result);
}

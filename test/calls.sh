#!/bin/sh
# Whatever the library calls outside itself either fails in test_faults or is named here, as what
# does not fail in the way that it is used, or whose failure is an answer.
# Usage: calls.sh LIBRARY WRAPPED, the latter being the names that test_faults wraps.
#
# SPDX-License-Identifier: MIT
set -eu
safe="
    __errno_location __xpg_strerror_r strerror_r snprintf vsnprintf
    bcmp memchr memcmp memcpy memmove memset strcat strchr strcmp strcpy strcspn strlen strncmp
    strspn strstr strtok_r
    exp2f expf fmaxf fminf log1pf sqrtf
    clock_gettime sysconf sched_getaffinity __sched_cpucount
    pthread_cond_broadcast pthread_cond_destroy pthread_cond_init pthread_cond_signal
    pthread_cond_wait pthread_mutex_destroy pthread_mutex_init pthread_mutex_lock
    pthread_mutex_unlock pthread_sigmask sigfillset
    close closedir readdir64 unlink
    clGetExtensionFunctionAddressForPlatform
    _GLOBAL_OFFSET_TABLE_ __cpu_model"

names() {
    tr ' ,' '\n\n' | grep . | sort -u
}
defined=$(nm --defined-only "$1" | awk 'NF == 3 { print $3 }' | names)
called=$(nm --undefined-only "$1" | awk '$1 == "U" { print $2 }' |
    grep -Ev '^__(asan|ubsan|tsan|gcov|llvm|sancov|sanitizer|stack_chk)' |
    sed 's/^__\(.*\)_chk$/\1/' | names)
known=$(echo $safe "$2" "$defined" | names)
[ "$called" ] || exit 1
unknown=$(echo "$called" | grep -Fvx "$known") || exit 0
echo "neither made to fail in test_faults nor known not to:" $unknown
exit 1

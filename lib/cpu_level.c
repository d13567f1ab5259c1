/* Which vectors the processor has.
 *
 * SPDX-License-Identifier: MIT */
#if defined(KDA_WIDE_LEVELS) && defined(__aarch64__)
#include <sys/auxv.h>
#include <sys/prctl.h>
#endif

#include "cpu.h"

#ifdef KDA_WIDE_LEVELS
static bool has(int bits)
{
#ifdef __aarch64__
    /* Code for SVE of one length runs where vectors are so long, no shorter and no longer. */
    return getauxval(AT_HWCAP) & HWCAP_SVE &&
           (prctl(PR_SVE_GET_VL) & PR_SVE_VL_LEN_MASK) * 8 == bits;
#else
    /* The compiler's own test; it asks the system too whether it saves the registers. */
    if (bits == 256)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
}
#endif

const struct kda_cpu_level *kda_cpu_level_choose(kda_vectors most)
{
    if (most == KDA_VECTORS_NONE)
        return &kda_cpu_scalar;
#ifdef KDA_WIDE_LEVELS
    if ((most == KDA_VECTORS_AUTO || most >= KDA_VECTORS_512) && has(512))
        return &kda_cpu_512;
    if ((most == KDA_VECTORS_AUTO || most >= KDA_VECTORS_256) && has(256))
        return &kda_cpu_256;
#endif
    return &kda_cpu_128;
}

/* Which vectors the processor has.
 *
 * SPDX-License-Identifier: MIT */
#include "cpu.h"

/* The compiler's own test; it asks the system too whether it saves the registers. */
#ifdef KDA_X86_LEVELS
static bool has_256(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool has_512(void)
{
    return has_256() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

const struct kda_cpu_level *kda_cpu_level_choose(kda_vectors most)
{
    if (most == KDA_VECTORS_NONE)
        return &kda_cpu_scalar;
#ifdef KDA_X86_LEVELS
    if ((most == KDA_VECTORS_AUTO || most >= KDA_VECTORS_512) && has_512())
        return &kda_cpu_512;
    if ((most == KDA_VECTORS_AUTO || most >= KDA_VECTORS_256) && has_256())
        return &kda_cpu_256;
#endif
    return &kda_cpu_128;
}

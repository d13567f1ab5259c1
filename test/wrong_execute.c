/* A library that computes wrongly, put under the tools at link time: the first number of
 * an f32 output is off.
 *
 * SPDX-License-Identifier: MIT */
#include "kda.h"

kda_status __real_kda_execute(kda_plan *plan, const kda_args *args);
kda_status __wrap_kda_execute(kda_plan *plan, const kda_args *args);

kda_status __wrap_kda_execute(kda_plan *plan, const kda_args *args)
{
    kda_status status = __real_kda_execute(plan, args);
    *(float *)(void *)((char *)args->out.host + args->out.offset) += 1;
    return status;
}

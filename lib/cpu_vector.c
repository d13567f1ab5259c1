/* A level of the CPU backend in vectors of KDA_VECTOR_BYTES. The build compiles this file once for
 * each level, with the compiler's options for it.
 *
 * SPDX-License-Identifier: MIT */
#include "vector_chunk.h"
#include "vector_state.h"
#include "vector_step.h"

/* Work comes in pieces of this many columns at most, so that a thread's memory is bounded. */
enum { MOST_COLUMNS = 256 };

static size_t scratch_floats(const kda_problem *p, int32_t columns)
{
    const size_t step = step_floats(p, columns), chunk = p->chunk ? chunk_floats(p, columns) : 0;
    return step > chunk ? step : chunk;
}

#if KDA_VECTOR_BYTES == 64
#define LEVEL kda_cpu_512
#define VECTORS KDA_VECTORS_512
#define NAME "512"
#elif KDA_VECTOR_BYTES == 32
#define LEVEL kda_cpu_256
#define VECTORS KDA_VECTORS_256
#define NAME "256"
#else
#define LEVEL kda_cpu_128
#define VECTORS KDA_VECTORS_128
#define NAME "128"
#endif

const struct kda_cpu_level LEVEL = {
    .vectors = VECTORS,
    .name = NAME,
    .most_columns = MOST_COLUMNS,
    .scratch_floats = scratch_floats,
    .load_state = load_state,
    .store_state = store_state,
    .steps = steps,
    .chunk = chunk,
};

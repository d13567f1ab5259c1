/* The matrix-unit engine: its kernels. Where work-groups can wait for each other's work, one that
 * does both parts of it (see mma_order.cl); in plain OpenCL C, one for each.
 *
 * SPDX-License-Identifier: MIT */

#if KDA_PATH == KDA_PATH_PTX

#define BYTES_OF_BOTH                                                                              \
    (sizeof(struct scan_memory) > PARTS * sizeof(struct memory) ? sizeof(struct scan_memory)       \
                                                                : PARTS * sizeof(struct memory))

__kernel WORK_GROUP(PARTS * PART) void
kda_mma(const struct kda_call_args a, __global const data_t *q, __global const data_t *k,
        __global const data_t *v, __global const gate_t *g, __global const beta_t *beta,
        __global const float *a_log, __global const float *dt_bias, __global const int *cu_seqlens,
        __global const int *state_index, __global const int *write_index,
        __global const int *accepted, __global const uchar *fresh,
        __global const state_t *initial_state, __global state_t *final_state, __global out_t *out,
        __global state_t *checkpoints, __global float *workspace)
{
    __local uchar memory[BYTES_OF_BOTH] __attribute__((aligned(1024)));
    const uint mine = GROUP_ID, preparers = (uint)a.preparers;
    if (mine < preparers)
        prepare(&a, q, k, g, beta, a_log, dt_bias, cu_seqlens, workspace,
                (__local struct memory *)memory, mine, preparers);
    else
        scan(&a, v, cu_seqlens, state_index, write_index, accepted, fresh, initial_state,
             final_state, out, checkpoints, workspace, (__local struct scan_memory *)memory,
             mine - preparers, GROUP_COUNT - preparers);
}

#else

__kernel WORK_GROUP(PARTS * PART) void
kda_mma_prepare(const struct kda_call_args a, __global const data_t *q, __global const data_t *k,
                __global const gate_t *g, __global const beta_t *beta, __global const float *a_log,
                __global const float *dt_bias, __global const int *cu_seqlens,
                __global float *workspace)
{
    __local struct memory memory[PARTS] __attribute__((aligned(128)));
    prepare(&a, q, k, g, beta, a_log, dt_bias, cu_seqlens, workspace, memory, GROUP_ID,
            GROUP_COUNT);
}

__kernel WORK_GROUP(128 * KDA_TEAMS) void
kda_mma_scan(const struct kda_call_args a, __global const data_t *v, __global const int *cu_seqlens,
             __global const int *state_index, __global const int *write_index,
             __global const int *accepted, __global const uchar *fresh,
             __global const state_t *initial_state, __global state_t *final_state,
             __global out_t *out, __global state_t *checkpoints, __global float *workspace)
{
    __local struct scan_memory memory __attribute__((aligned(1024)));
    scan(&a, v, cu_seqlens, state_index, write_index, accepted, fresh, initial_state, final_state,
         out, checkpoints, workspace, &memory, GROUP_ID, GROUP_COUNT);
}

#endif

#if KDA_SEGMENTS
__kernel WORK_GROUP(KDA_K) void kda_mma_join(const struct kda_call_args a,
                                             __global float *workspace)
{
    __local float s[KDA_K][KDA_JOIN_COLUMNS];
    join_segments(&a, workspace, s);
}
#endif

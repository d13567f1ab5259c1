/* Which chunk belongs to which sequence: read from cu_seqlens on the device, so that a call needs
 * no read-back.
 *
 * SPDX-License-Identifier: MIT */

#ifndef KDA_TABLE_WG
#define KDA_TABLE_WG 256
#endif

/* Chunks of a sequence that the chunkwise schedule handles; short ones belong to kda_step. */
static inline int chunks_of(const struct kda_call_args *a, __global const int *cu_seqlens,
                            __global const int *state_index, __global const int *accepted, long n)
{
    const long begin = sequence_start(a, cu_seqlens, n);
    const long length = sequence_start(a, cu_seqlens, n + 1) - begin;
    if (length <= a->step_limit || sequence_slot(a, state_index, accepted, n) < 0)
        return 0;
    return (int)((length + KDA_CHUNK - 1) / KDA_CHUNK);
}

/* The chunk table of a call with cu_seqlens: first chunk of each sequence, counted over all
 * sequences, then the total; behind it how many sequences have chunks, then which. One work-group;
 * each item sums a run of sequences, the runs' sums are scanned, then written. */
__kernel WORK_GROUP(KDA_TABLE_WG) void
kda_table(const struct kda_call_args a, __global const int *cu_seqlens,
          __global const int *state_index, __global const int *accepted, __global float *workspace)
{
    __local int2 sums[KDA_TABLE_WG]; /* chunks, sequences that have any */
    __global int *const table = (__global int *)(workspace + a.table);
    __global int *const list = table + a.sequences + 1;
    const int lid = (int)get_local_id(0);
    const long run = (a.sequences + KDA_TABLE_WG - 1) / KDA_TABLE_WG;
    const long first = lid * run, last = min(first + run, (long)a.sequences);
    int2 sum = 0;
    ROLLED
    for (long n = first; n < last; n++) {
        const int chunks = chunks_of(&a, cu_seqlens, state_index, accepted, n);
        sum += (int2)(chunks, chunks > 0);
    }
    sums[lid] = sum;
    barrier(CLK_LOCAL_MEM_FENCE); /* all sums are there */
    int2 at = 0;
    for (int i = 0; i < lid; i++)
        at += sums[i];
    ROLLED
    for (long n = first; n < last; n++) {
        const int chunks = chunks_of(&a, cu_seqlens, state_index, accepted, n);
        table[n] = at.s0;
        if (chunks > 0)
            list[1 + at.s1] = (int)n;
        at += (int2)(chunks, chunks > 0);
    }
    if (lid == KDA_TABLE_WG - 1) {
        table[a.sequences] = at.s0;
        list[0] = at.s1;
    }
}

/* The matrix-unit engine: the order of its work, and how one part of it tells another that images
 * are there.
 *
 * One launch does it all. Its first work-groups prepare chunks (mma_prepare.cl), the others scan
 * (mma_scan.cl), each a sequence and head after the other, and wait for the images of each chunk.
 * So matrix products, whose chain of chunks leaves most of a device idle, run beside the
 * preparation, which has no such chain; and images are read while they are still in the last cache.
 *
 * NOBODY WAITS FOR ONE THAT MAY NEVER COME. The first `preparers` work-groups prepare, and wait for
 * nobody. One that scans waits for those alone; the device starts work-groups in the order of their
 * numbers, so all of them have begun by then, however few it holds at once and whatever else it is
 * doing.
 *
 * Chunks are prepared in the order in which they are scanned: heads_abreast heads at a time, as
 * many as fit the work-groups that scan, over all sequences, before the next ones.
 *
 * Progress is a word for each chunk and head: `call`, a number that no other call has, once its
 * images are there. So nothing need be cleared, whatever the workspace held.
 *
 * SPDX-License-Identifier: MIT */

/* Number x in this order of `count` times value_heads: which of `count`, and which head. */
static inline uint2 order_of(const struct kda_call_args *a, uint x, uint count)
{
    const uint abreast = (uint)a->heads_abreast, turn = x / (count * abreast);
    const uint first = turn * abreast, width = min(abreast, (uint)a->value_heads - first);
    const uint inside = x - first * count;
    return (uint2)(inside / width, first + inside % width);
}

/* How many sequences have chunks, and number x of these. */
static inline uint chunked_sequences(const struct kda_call_args *a, __global const float *workspace)
{
    if (!(a->has & KDA_HAS_CU_SEQLENS))
        return (uint)a->sequences;
    return ((__global const uint *)(workspace + a->table))[a->sequences + 1];
}
static inline long chunked_sequence(const struct kda_call_args *a, __global const float *workspace,
                                    uint x)
{
    if (!(a->has & KDA_HAS_CU_SEQLENS))
        return x;
    return ((__global const int *)(workspace + a->table))[a->sequences + 2 + x];
}

static inline __global ulong *progress_of(const struct kda_call_args *a, __global float *workspace)
{
    return (__global ulong *)(workspace + a->progress);
}

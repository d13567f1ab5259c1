/* The matrix-unit engine: long sequences in segments. A scan goes through a sequence's chunks one
 * after the other, so few sequences and heads leave most of a device idle, however long they are.
 * But what a segment of chunks does to the state is an affine map,
 *
 *     S_(n+1) = M_n S_n + B_n
 *
 * where B_n is what becomes of no state, and M_n of the identity without values: one scan of V + K
 * columns, [0 | 1]. That needs no other segment, so there are three launches:
 *
 *     maps       kda_mma prepares all chunks, and scans each segment from [0 | 1] to [B | M]: none
 *                that is its sequence's last; the first from the sequence's own state, to S_1
 *     join       kda_mma_join: the S_n of each sequence, in f32
 *     outputs    kda_mma scans each segment from its S_n
 *
 * which is three times the work of a scan if K = V, in chains as long as a segment.
 *
 * BITS. A segment begins where a multiple of its length does, counted from its sequence's start: so
 * no bit depends on what a sequence is packed with, nor on later tokens. But S_n differs from what
 * a scan through segment n - 1 ends with in rounding. A call that ends there hands on the latter.
 *
 * IN MEMORY, for each segment and head: S_n, and [B_n | M_n], column by column.
 *
 * SPDX-License-Identifier: MIT */

#ifndef KDA_SEGMENTS
#define KDA_SEGMENTS 0 /* 1: sequences longer than a->piece chunks are cut */
#endif

#if KDA_SEGMENTS
#define MAP_COLUMNS (KDA_V + KDA_K)
/* Whether this is the launch that makes maps. */
#define MAPPING(a) ((a)->states_out != 0)

/* How many segments a sequence has, whose chunks these are. */
static inline int segments_in(const struct kda_call_args *a, int begin, int end)
{
    return (end - begin + a->piece - 1) / a->piece;
}

/* Where a segment and head has its S and its map, of a sequence whose chunks begin so. A sequence's
 * first segment can have the place of the last one of the sequence before: but that one has no map,
 * and the first one no S. */
static inline long segment_place(const struct kda_call_args *a, int begin, int segment, int head)
{
    return (long)(begin / a->piece + segment) * a->value_heads + head;
}

static inline __global float *segment_state(const struct kda_call_args *a,
                                            __global float *workspace, long place)
{
    return workspace + a->states_in + place * (KDA_K * KDA_V);
}
static inline __global float *segment_map(const struct kda_call_args *a, __global float *workspace,
                                          long place)
{
    return workspace + a->states_out + place * (KDA_K * MAP_COLUMNS);
}

/* The join: an item has a row of KDA_JOIN_COLUMNS columns of S, of one sequence and head. */
static __attribute__((always_inline)) inline void
join_segments(const struct kda_call_args *a, __global float *workspace,
              __local float s[KDA_K][KDA_JOIN_COLUMNS])
{
    const uint tiles = KDA_V / KDA_JOIN_COLUMNS, heads = (uint)a->value_heads;
    const int row = (int)get_local_id(0), head = (int)(GROUP_ID / tiles % heads);
    const int cell = (int)(GROUP_ID % tiles) * (KDA_JOIN_COLUMNS * KDA_K) + row;
    const uint x = GROUP_ID / tiles / heads, there = x < chunked_sequences(a, workspace);
    const long n = there ? chunked_sequence(a, workspace, x) : 0;
    const int begin = there ? chunk_start(a, workspace, n) : 0;
    const int end = there ? chunk_start(a, workspace, n + 1) : 0;
    const int segments = segments_in(a, begin, end);
    for (int segment = 0; segment + 1 < segments; segment++) {
        const long place = segment_place(a, begin, segment, head);
        __global const float *const map = segment_map(a, workspace, place);
        __global float *const next = segment_state(a, workspace, place + heads) + cell;
        float sum[KDA_JOIN_COLUMNS];
        UNROLL
        for (int c = 0; c < KDA_JOIN_COLUMNS; c++)
            sum[c] = map[cell + c * KDA_K];
        if (segment > 0)
            for (int k = 0; k < KDA_K; k += 8) {
                float m[8];
                UNROLL
                for (int i = 0; i < 8; i++)
                    m[i] = map[(KDA_V + k + i) * KDA_K + row];
                UNROLL
                for (int i = 0; i < 8; i++)
                    UNROLL
                for (int c = 0; c < KDA_JOIN_COLUMNS; c++)
                    sum[c] = fma(m[i], s[k + i][c], sum[c]);
            }
        barrier(CLK_LOCAL_MEM_FENCE); /* the last S has been read */
        UNROLL
        for (int c = 0; c < KDA_JOIN_COLUMNS; c++) {
            s[row][c] = sum[c];
            next[c * KDA_K] = sum[c];
        }
        barrier(CLK_LOCAL_MEM_FENCE); /* S is there */
    }
}
#endif

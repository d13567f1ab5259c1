/* The matrix-unit engine: the jobs of a work-group that scans (mma_scan.cl), a sequence or segment
 * of one, head and tile of columns each, and how its warps come to know of them.
 *
 * Where sequences lie is several looks at memory and divisions, one after the other: about a
 * chunk's time. So a warp of its own, the scout, does nothing else, and leaves jobs in a ring for
 * the others, some of which are at the next job already while some are busy with the last. A job
 * without chunks is left out; one that has none ends the ring.
 *
 * SPDX-License-Identifier: MIT */

#ifndef KDA_TEAMS
#define KDA_TEAMS 1 /* tiles of 64 columns in a work-group */
#endif
#ifndef KDA_PIECES
#define KDA_PIECES 1 /* 0: the workspace holds all chunks of any call */
#endif
#ifndef KDA_V
#define KDA_V 128 /* value_dim, a multiple of 64 KDA_TEAMS */
#endif
#define TEAM_WARPS (4 * KDA_TEAMS)
/* Jobs of a sequence or segment and head, and how many segments every sequence is taken to have. */
#if KDA_SEGMENTS
#define TILES ((uint)(MAPPING(a) ? MAP_COLUMNS : KDA_V) / (64 * KDA_TEAMS))
#define SEGMENTS ((uint)a->step)
#else
#define TILES (KDA_V / (64 * KDA_TEAMS))
#define SEGMENTS 1u
#endif
/* The items that fetch images and that scout; the warps that read jobs. */
#define FETCHER (32 * TEAM_WARPS + MOVERS)
#define SCOUT (FETCHER + 32)
#define JOB_READERS (TEAM_WARPS + MOVERS / 32 + 1)

/* A sequence, head and tile of columns, as far as the piece has it. */
struct job {
    long from, to;                 /* slots of its states; negative `to`: it is not stored */
    long start, length;            /* its first token and tokens */
    int begin, end, first, chunks; /* its chunks; the piece's first of them, and how many */
    int head, col, fresh;
#if KDA_SEGMENTS
    long place; /* of the segment */
#endif
};

/* So many jobs are known at a time: teams at the end of one, what feeds them chunks ahead. */
#define JOBS 4
struct jobs {
    struct job job[JOBS];
    ring_counter counters[2 * JOBS];
};

static __attribute__((always_inline)) inline struct job
find_job(const struct kda_call_args *a, __global const int *cu_seqlens,
         __global const int *state_index, __global const int *write_index,
         __global const int *accepted, __global const uchar *fresh, __global const float *workspace,
         uint number)
{
    const uint sequences = chunked_sequences(a, workspace);
    struct job j;
    j.from = j.to = j.start = j.length = 0;
    j.begin = j.end = j.first = j.chunks = j.head = j.col = j.fresh = 0;
    if (number >= sequences * SEGMENTS * (uint)a->value_heads * TILES)
        return j;
    const uint2 at = order_of(a, number / TILES, sequences * SEGMENTS);
    const long n = chunked_sequence(a, workspace, at.s0 / SEGMENTS);
    j.head = (int)at.s1;
    j.col = (int)(number % TILES) * (64 * KDA_TEAMS);
    j.begin = chunk_start(a, workspace, n);
    j.end = chunk_start(a, workspace, n + 1);
#if KDA_SEGMENTS
    const int segment = (int)(at.s0 % SEGMENTS);
    j.first = min(j.begin + segment * a->piece, j.end);
    j.place = segment_place(a, j.begin, segment, j.head);
    const int until = j.first + a->piece;
#else
    j.first = max(j.begin, a->first_chunk);
    const int until = a->first_chunk + a->chunk_count;
#endif
    j.from = sequence_slot(a, state_index, accepted, n);
    j.fresh = is_fresh(a, fresh, n);
    j.start = sequence_start(a, cu_seqlens, n);
    j.length = sequence_start(a, cu_seqlens, n + 1) - j.start;
    const int last = j.from < 0 ? 0 : min(j.end, until);
    j.chunks = max(last - j.first, 0);
#if KDA_SEGMENTS
    if (MAPPING(a) && (last == j.end || (segment == 0 && j.col >= KDA_V)))
        j.chunks = 0; /* nobody asks for this part of a map */
#endif
    j.to = last == j.end ? write_slot(a, write_index, n, 0) : -1;
    return j;
}

#if MOVERS
/* One item's: finds the jobs of one of `scanners` work-groups, in order. */
static __attribute__((always_inline)) inline void
scout(const struct kda_call_args *a, __global const int *cu_seqlens,
      __global const int *state_index, __global const int *write_index,
      __global const int *accepted, __global const uchar *fresh, __global const float *workspace,
      __local struct jobs *jobs, uint scanner, uint scanners)
{
    const uint all = chunked_sequences(a, workspace) * SEGMENTS * (uint)a->value_heads * TILES;
    int found = 0;
    for (uint number = scanner, last = 0; !last; number += scanners) {
        last = number >= all;
        const struct job j =
            find_job(a, cu_seqlens, state_index, write_index, accepted, fresh, workspace, number);
        if (j.chunks == 0 && !last)
            continue;
        const int at = found % JOBS;
        ring_reclaim(jobs->counters + 2 * at, found >= JOBS, (found / JOBS & 1) ^ 1);
        jobs->job[at] = j;
        ring_filled(jobs->counters + 2 * at);
        found++;
    }
}

/* Job i of the work-group, from wait_job of any lane of a reading warp on until one of its lanes,
 * when all are done with it, calls leave_job. */
static inline __local const struct job *wait_job(__local const struct jobs *jobs, int i)
{
    ring_wait(jobs->counters + 2 * (i % JOBS), i / JOBS & 1);
    return &jobs->job[i % JOBS];
}
static inline void leave_job(__local struct jobs *jobs, int i)
{
    ring_release(jobs->counters + 2 * (i % JOBS));
}
#endif

/* The first token of a job's chunk, counted from the sequence's, and how many tokens it has. */
#define ROW_OF(j, chunk) (((j).first - (j).begin + (chunk)) * 64l)
#define ROWS(j, chunk) ((int)min((j).length - ROW_OF(j, chunk), 64l))

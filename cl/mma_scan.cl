/* The matrix-unit engine, part two: the scan over chunks of 64 tokens. What mma_prepare.cl leaves
 * of a chunk and head are Kd, Qd, Ke, A_qk and L as images for the matrix units, D and beta. With
 * the error of a token before the corrections of its own chunk,
 *
 *     X = V - Kd S      E = beta X + L X      O = Qd S + A_qk E      S = D S + Ke^T E
 *
 * where L = (T - 1) diag(beta) is strictly lower triangular: so the largest part of E, beta X, is
 * never rounded to 16 bits before it is used. Nor is what a token reads of its own write, the
 * diagonal of A_qk, which is most of O where decays are strong.
 *
 * A team of four warps owns 64 columns of V and keeps S^T, a warp 16 rows of it, in the registers
 * that results of products have; all products are of transposes, so a result packed to pairs is
 * the next product's left operand, and nothing crosses lanes (see matrix.cl). A work-group is
 * KDA_TEAMS teams that share the chunk's images, and what feeds them; it takes one job after the
 * other (mma_jobs.cl), and the rings turn on from job to job.
 *
 *     registers of a lane     S^T 64, packed S^T 32, X -> E 32, O 32, packed X -> E 16, V 16, beta
 *                             or A_qk's diagonal 16 (of 128 key channels; of 64 S^T is half that)
 *     local memory, a stage   65 KiB of images (or 41), a tile of 9 KiB for each team
 *
 * THE ORDER OF A CHUNK. S waits for three products in a row, and each of these for what lanes do in
 * between; all else runs while they do:
 *
 *     matrix units   | Kd S                       | L X | Ke^T E    Qd S    A_qk E |
 *     lanes          | O of the chunk before, D S |     | A_qk's diagonal, next V  | pack S
 *
 * What comes from memory and goes there is others' work (copies.cl). Two rings turn, STAGES chunks
 * ahead: of images, which one item fetches as soon as they have been prepared, and whose stage a
 * warp releases when a chunk is through; and of tiles, which the movers see to, where a warp has
 * taken V long before its chunk ends: it puts the O of the chunk before in V's place and releases
 * that, so that the next V for this place is not late.
 *
 * SPDX-License-Identifier: MIT */

#define STAGES (KDA_TEAMS == 1 ? 3 : 2) /* two teams take twice as long for a chunk */

/* O of a chunk as it is stored: pairs as of V, or the numbers themselves. */
#if KDA_OUT_DTYPE != KDA_F32
#define RESULTS 16
#define RESULT(o, i) pack_data(o[2 * (i)] * gain, o[2 * (i) + 1] * gain)
typedef uint result_t;
#else
#define RESULTS 32
#define RESULT(o, i) o[i] * gain
typedef float result_t;
#endif

/* Where sequences are cut (mma_segments.cl): whether the launch makes maps, of which only S is
 * wanted, and whose last columns have no V. Rows of V of a chunk, of whose O `next` knows, and
 * whether there is such a chunk. */
#if KDA_SEGMENTS
#define IS_MAP MAPPING(a)
#define COMES(next, chunk) ((chunk) < job->chunks)
#define VALUE_ROWS(next, chunk)                                                                    \
    (COMES(next, chunk) && job->col < KDA_V ? ROWS(*job, chunk) : 0)
#else
#define IS_MAP 0
#define COMES(next, chunk) (next.rows > 0)
#define VALUE_ROWS(next, chunk) next.rows
#endif

/* Where O of a chunk goes: the columns of this work-group, and how many tokens; 0: there is none.
 */
struct target {
    __global out_t *at;
    int rows;
};
/* Targets of O that movers keep: more than the turns that one of them can be ahead, and O late. */
#define TARGETS 8
struct scan_memory {
    uchar ring[STAGES][IMAGE_BYTES];
    ushort tiles[STAGES][KDA_TEAMS][64 * TILE_ROW];
    ring_counter early_counters[2 * STAGES], late_counters[2 * STAGES], tile_counters[2 * STAGES];
    struct target targets[TARGETS];
    struct jobs jobs;
#if !MOVERS
    ushort team_scratch[KDA_TEAMS][64][128];
#endif
};

static __attribute__((always_inline)) inline struct target target_of(const struct kda_call_args *a,
                                                                     __global out_t *out,
                                                                     __local const struct job *j,
                                                                     int chunk)
{
    struct target t;
    t.at = out + a->out.offset + j->head * a->out.head_stride +
           (j->start + ROW_OF(*j, chunk)) * a->out.token_stride + j->col;
    t.rows = IS_MAP ? 0 : ROWS(*j, chunk);
    return t;
}

/* An item's pieces of 8 elements, 16 rows apart, of a tile of O, which goes to `out` for as many
 * rows as `done` says, and of the V that takes its place, of which there may be none. */
static __attribute__((always_inline)) inline void exchange_wide(const struct kda_call_args *a,
                                                                __local ushort *tile,
                                                                __global const data_t *v, int rows,
                                                                __global out_t *out, int done,
                                                                int comes)
{
    uint4 held[4];
    UNROLL
    for (int p = 0; p < 4; p++)
        held[p] = *(__local const uint4 *)(tile + 16 * p * TILE_ROW);
    if (comes)
        UNROLL
    for (int p = 0; p < 4; p++)
        copy_16(tile + 16 * p * TILE_ROW, v + p * 16 * a->v.token_stride, 16 * p < rows);
#if KDA_OUT_DTYPE != KDA_F32
    UNROLL
    for (int p = 0; p < 4; p++)
        if (16 * p < done)
            *(__global uint4 *)(out + p * 16 * a->out.token_stride) = held[p];
#endif
}
/* The same where rows are not aligned, an element after the other. */
static __attribute__((always_inline)) inline void
exchange_narrow(const struct kda_call_args *a, __local ushort *tile, __global const data_t *v,
                int rows, __global out_t *out, int done, int comes)
{
    ROLLED
    for (int i = 0; i < 32; i++) {
        const int row = (i >> 3) * 16, column = i & 7;
        __local ushort *const at = tile + row * TILE_ROW + column;
#if KDA_OUT_DTYPE != KDA_F32
        if (row < done)
            out[row * a->out.token_stride + column] = *at;
#endif
        if (comes)
            *at = row < rows ? v[row * a->v.token_stride + column] : 0;
    }
}

/* Sends off the O that a tile has, of which there may be none, and if a chunk comes, for the `rows`
 * rows of V that begin at `v`, with zeros behind them. An item's own pieces of 8 elements, 16 rows
 * apart: nothing else needs to be waited for. */
static __attribute__((always_inline)) inline void exchange(const struct kda_call_args *a,
                                                           __local ushort *tile,
                                                           __global const data_t *v, int rows,
                                                           int comes, struct target done,
                                                           int mover)
{
    const int row0 = mover >> 3, inside = (mover & 7) * 8, wide = a->has & KDA_HAS_WIDE_ROWS;
    tile += row0 * TILE_ROW + inside;
    v += row0 * a->v.token_stride + inside;
    done.at += row0 * a->out.token_stride + inside;
    if (mover < 128)
        ROLLED
        for (int team = 0; team < KDA_TEAMS;
             team++, tile += 64 * TILE_ROW, v += 64, done.at += 64) {
            if (!wide)
                exchange_narrow(a, tile, v, rows - row0, done.at, done.rows - row0, comes);
            else
                exchange_wide(a, tile, v, rows - row0, done.at, done.rows - row0, comes);
        }
}

#if KDA_OUT_DTYPE != KDA_F32
/* A chunk's O takes V's place in its stage. */
#define PUT_RESULT tile_store(TILE(stage), result, lane)
#else
/* Numbers that are not rounded go from where they are. */
#define PUT_RESULT                                                                                 \
    UNROLL                                                                                         \
    for (int i = 0; i < 32; i++) {                                                                 \
        const int row = i / 4 * 8 + 2 * t + (i & 1);                                               \
        if (row < before.rows)                                                                     \
            store_out(before.at, row * a->out.token_stride + warp * 16 + g + (i & 2) * 4,          \
                      result[i]);                                                                  \
    }
#endif

/* The O that is left when all chunks are through; before that, its tile's has been taken. */
#define LAST_OUTPUT                                                                                \
    {                                                                                              \
        ring_wait(memory->tile_counters + 2 * stage, turn);                                        \
        result_t result[RESULTS];                                                                  \
        UNROLL                                                                                     \
        for (int i = 0; i < RESULTS; i++)                                                          \
            result[i] = RESULT(o, i);                                                              \
        PUT_OUTPUT                                                                                 \
    }

#define CHECKPOINT_AT(done)                                                                        \
    (checkpoints + a->checkpoints.offset + job->head * a->checkpoints.head_stride +                \
     CHECKPOINT(a, job->start, done) * a->checkpoints.token_stride)

/* S^T in its registers from and to a state in memory: a lane's first cell, and where its i-th one
 * is from there, which compilers know. */
#define FIRST_CELL STATE_AT(2 * t, job->col + warp * 16 + g, KDA_V)
#define CELL(i) STATE_AT((i) / 4 * 8 + ((i)&1), ((i)&2) * 4, KDA_V)
#define STORE_CELLS(at)                                                                            \
    {                                                                                              \
        __global state_t *const to = (at) + FIRST_CELL;                                            \
        UNROLL                                                                                     \
        for (int i = 0; i < KDA_K / 2; i++)                                                        \
            store_state(to, CELL(i), s[i] * unit);                                                 \
    }
/* What a job takes over from the one before it in its sequence, and leaves to the next: across the
 * end of a piece or of a segment. */
#if KDA_SEGMENTS
#define CARRIED_CELL(i) ((i) / 4 * 8 + ((i)&1) + ((i)&2) * 4 * KDA_K)
#define FIRST_CARRIED ((job->col + warp * 16 + g) * KDA_K + 2 * t)
#define CARRIED_IN (segment_state(a, workspace, job->place) + FIRST_CARRIED)
#define CARRIED_OUT (segment_map(a, workspace, job->place) + FIRST_CARRIED)
#define IS_CARRIED_OUT IS_MAP
/* A checkpoint at a segment's end is the next one's first S. */
#define IS_LAST (job->first + chunks == job->end)
#else
#define CARRIED_CELL CELL
#define FIRST_CARRIED ((long)job->head * (KDA_K * KDA_V) + FIRST_CELL)
#define CARRIED_IN (workspace + a->carry_in + FIRST_CARRIED)
#define CARRIED_OUT (workspace + a->carry_out + FIRST_CARRIED)
#define IS_CARRIED_OUT (KDA_PIECES && job->first + chunks < job->end)
#define IS_LAST (chunks > 0)
#endif
/* What a job begins with, if no piece came before and it is not fresh. */
#define FIRST_STATE                                                                                \
    (initial_state + a->initial_state.offset + job->from * a->initial_state.token_stride +         \
     job->head * a->initial_state.head_stride)
/* This warp's columns of a tile. */
#define TILE(stage) (memory->tiles[stage][warp >> 2] + (warp & 3) * 16)

#define PACK_STATE                                                                                 \
    UNROLL                                                                                         \
    for (int i = 0; i < KDA_K / 4; i++)                                                            \
        left[i] = pack_operands(s[2 * i], s[2 * i + 1]);
/* The unit of this chunk (mma_unit.cl), if it is not the last one's. */
#if OPERANDS_F16
#define TOO_LARGE(pairs, factor) large = !(pairs_max(pairs) * factor < VALUES_LIMIT);
#define FIT_UNIT                                                                                   \
    {                                                                                              \
        uint bits = 0;                                                                             \
        UNROLL                                                                                     \
        for (int i = 0; i < KDA_K / 4; i++)                                                        \
            bits |= left[i];                                                                       \
        if (lanes_outside(bits, large)) {                                                          \
            fit_unit(&unit, s, x, beta, t, UNIT_SCRATCH, lid);                                     \
            PACK_STATE                                                                             \
        }                                                                                          \
    }
#else
#define TOO_LARGE(pairs, factor)
#define FIT_UNIT
#endif
#if MOVERS
#define UNIT_SCRATCH 0
#else
#define UNIT_SCRATCH (__local float *)team_scratch
#endif

/* The next stage, and how often it was filled before, modulo 2. */
#define NEXT_STAGE                                                                                 \
    if (++stage == STAGES) {                                                                       \
        stage = 0;                                                                                 \
        turn ^= 1;                                                                                 \
    }

/* Turn i of the tiles' ring, for a chunk of the job or for none: its V comes when the O that was
 * put in its tile goes. All movers write the same target, each reads what it wrote itself; none is
 * so far ahead of another that it would overwrite one that is still to be read. */
#define MOVE_TOKENS(i, chunk, mover)                                                               \
    {                                                                                              \
        struct target done = memory->targets[((i)-STAGES - 1) & (TARGETS - 1)];                    \
        if ((i) <= STAGES)                                                                         \
            done.rows = 0;                                                                         \
        struct target next = target_of(a, out, job, chunk);                                        \
        if ((chunk) >= job->chunks)                                                                \
            next.rows = 0;                                                                         \
        memory->targets[(i) & (TARGETS - 1)] = next;                                               \
        ring_reclaim(memory->tile_counters + 2 * stage, (i) >= STAGES, turn ^ 1);                  \
        lanes_sync();                                                                              \
        exchange(a, memory->tiles[stage][0],                                                       \
                 v + a->v.offset + job->head * a->v.head_stride +                                  \
                     (job->start + ROW_OF(*job, chunk)) * a->v.token_stride + job->col,            \
                 VALUE_ROWS(next, chunk), COMES(next, chunk), done, mover);                        \
        ring_filled(memory->tile_counters + 2 * stage);                                            \
    }
/* Turn i of the images' ring, for a chunk of the job or for none. Two rings in step: what the first
 * half of a chunk reads is free while the second goes on, which is the time that copies need. */
#define FETCH_PART(part, begin, end, item)                                                         \
    ring_reclaim(memory->part##_counters + 2 * stage, again, turn ^ 1);                            \
    if (there)                                                                                     \
        ring_fill(memory->ring[stage] + (begin), images + (begin), (end) - (begin),                \
                  memory->part##_counters + 2 * stage, item);
#define FETCH_IMAGES(i, chunk, item)                                                               \
    {                                                                                              \
        const uint image = (uint)(job->first - a->first_chunk + (chunk)) * (uint)a->value_heads +  \
                           (uint)job->head;                                                        \
        __global const uchar *const images =                                                       \
            (__global const uchar *)(workspace + a->factors + (long)image * a->factor_stride);     \
        const int there = (chunk) < job->chunks, again = (i) >= STAGES && there;                   \
        if (there)                                                                                 \
            images_wait(progress_of(a, workspace) + image, (ulong)a->call, item);                  \
        FETCH_PART(early, 0, IMAGE_A, item)                                                        \
        FETCH_PART(late, IMAGE_A, IMAGE_BYTES, item)                                               \
    }
/* V of a chunk to where its product will be subtracted from it. */
#define TAKE_VALUES                                                                                \
    {                                                                                              \
        uint pairs[16];                                                                            \
        ring_wait(memory->tile_counters + 2 * stage, turn);                                        \
        lanes_sync();                                                                              \
        tile_load(pairs, TILE(stage), lane);                                                       \
        const float factor = VALUE_FACTOR(unit);                                                   \
        UNROLL                                                                                     \
        for (int i = 0; i < 16; i++) {                                                             \
            x[2 * i] = DATA_LOW(pairs[i]) * factor;                                                \
            x[2 * i + 1] = DATA_HIGH(pairs[i]) * factor;                                           \
        }                                                                                          \
        TOO_LARGE(pairs, factor)                                                                   \
    }
/* O of the chunk before this one to where this one's V was. */
#define PUT_OUTPUT                                                                                 \
    {                                                                                              \
        PUT_RESULT;                                                                                \
        lanes_sync();                                                                              \
        if (lane == 0)                                                                             \
            ring_release(memory->tile_counters + 2 * stage);                                       \
    }

/* The work of one of `scanners` work-groups, of whose items the first are teams, the next movers,
 * one fetches images, one scouts, and the others have nothing to do. */
static __attribute__((always_inline)) inline void
scan(const struct kda_call_args *a, __global const data_t *v, __global const int *cu_seqlens,
     __global const int *state_index, __global const int *write_index, __global const int *accepted,
     __global const uchar *fresh, __global const state_t *initial_state,
     __global state_t *final_state, __global out_t *out, __global state_t *checkpoints,
     __global float *workspace, __local struct scan_memory *memory, uint scanner, uint scanners)
{
#if !MOVERS
    __local ushort(*const team_scratch)[64][128] = memory->team_scratch;
#endif
    const int lid = (int)get_local_id(0), lane = lid & 31, warp = lanes_uniform(lid >> 5);
    int g = lane >> 2, t = lane & 3;

    if (lid == 0) {
        ring_init(memory->early_counters, STAGES, 1, TEAM_WARPS);
        ring_init(memory->late_counters, STAGES, 1, TEAM_WARPS);
        ring_init(memory->tile_counters, STAGES, MOVERS, TEAM_WARPS);
        ring_init(memory->jobs.counters, JOBS, 1, JOB_READERS);
    }
    barrier(CLK_LOCAL_MEM_FENCE); /* counters are there */
    int stage = 0, turn = 0;
#if MOVERS
    __local struct jobs *const jobs = &memory->jobs;
    __local const struct job *job;
    /* One item each, so that no lane lags behind the turns of a ring. */
    if (warp >= TEAM_WARPS + MOVERS / 32) {
        FETCHER_REGISTERS
        if (lid == SCOUT)
            scout(a, cu_seqlens, state_index, write_index, accepted, fresh, workspace, jobs,
                  scanner, scanners);
        if (lid == FETCHER)
            for (int j = 0, i = 0; (job = wait_job(jobs, j))->chunks; leave_job(jobs, j++)) {
                if (job->first == job->begin && !job->fresh)
                    read_soon(FIRST_STATE, KDA_K * KDA_V * sizeof(state_t));
                for (int chunk = 0; chunk < job->chunks; chunk++, i++) {
                    FETCH_IMAGES(i, chunk, 0)
                    NEXT_STAGE
                }
            }
        return;
    }
    if (warp >= TEAM_WARPS) {
        MOVER_REGISTERS
        job = wait_job(jobs, 0);
        int j = 0, chunk = 0, chunks = job->chunks;
        int left = STAGES + 1; /* the last O goes so many turns after its V came */
        for (int i = 0; left > 0; i++) {
            MOVE_TOKENS(i, chunk, lid - 32 * TEAM_WARPS)
            if (chunks == 0)
                left--;
            else if (++chunk == chunks) {
                lanes_sync(); /* the job has been used */
                if (lane == 0)
                    leave_job(jobs, j);
                job = wait_job(jobs, ++j);
                chunks = job->chunks;
                chunk = 0;
            }
            NEXT_STAGE
        }
        return;
    }
    TEAM_REGISTERS
#endif

    float x[32], o[32], gain = 0.0f; /* of the output in o */
    struct target before;
    before.at = out;
    before.rows = 0;
    UNROLL
    for (int i = 0; i < 32; i++)
        o[i] = 0.0f;
#if MOVERS
    for (int taken = 0;; taken++) {
        job = wait_job(jobs, taken);
        const int chunks = lanes_uniform(job->chunks);
        if (chunks == 0)
            break;
#else
    { /* one job for each work-group, so that no barrier stands in a branch: see step.cl */
        __local struct job *const job = memory->jobs.job;
        if (lid == 0)
            *job = find_job(a, cu_seqlens, state_index, write_index, accepted, fresh, workspace,
                            scanner);
        barrier(CLK_LOCAL_MEM_FENCE); /* the job is there */
        const int chunks = job->chunks;
        MOVE_TOKENS(0, 0, lid)
        FETCH_IMAGES(0, 0, lid)
#endif
        HIDE(g); /* where cells of states are is made out anew for each, not kept */
        float s[KDA_K / 2], unit = 1.0f;
        int large;
        if (IS_MAP && chunks > 0 && job->first > job->begin) {
            const int diagonal = job->col - KDA_V + warp * 16 + g - 2 * t;
            UNROLL
            for (int i = 0; i < KDA_K / 2; i++)
                s[i] = i / 4 * 8 + (i & 1) - (i & 2) * 4 == diagonal ? 1.0f : 0.0f;
        } else if ((KDA_PIECES || KDA_SEGMENTS) && chunks > 0 && job->first > job->begin) {
            __global const float *const from = CARRIED_IN;
            UNROLL
            for (int i = 0; i < KDA_K / 2; i++)
                s[i] = from[CARRIED_CELL(i)];
        } else if (chunks > 0 && !job->fresh) {
            __global const state_t *const from = FIRST_STATE + FIRST_CELL;
            UNROLL
            for (int i = 0; i < KDA_K / 2; i++)
                s[i] = load_state(from, CELL(i));
        } else {
            UNROLL
            for (int i = 0; i < KDA_K / 2; i++)
                s[i] = 0.0f;
        }
        TAKE_VALUES
        for (int chunk = 0; chunk < chunks; chunk++) {
            const long chunk_row = ROW_OF(*job, chunk);
            __local const uchar *const image = memory->ring[stage];
            __local const float2 *const decay = (__local const float2 *)(image + IMAGE_D);
            __local const float2 *const beta = (__local const float2 *)(image + IMAGE_BETA);
            __local const float2 *const diagonal = (__local const float2 *)(image + IMAGE_DIAGONAL);
            if (!IS_MAP && is_checkpoint(a, chunk_row, job->length))
                STORE_CELLS(CHECKPOINT_AT(chunk_row))

            uint left[KDA_K / 4], pairs[16];
            PACK_STATE
            result_t result[RESULTS];
            UNROLL
            for (int i = 0; i < RESULTS; i++) {
                result[i] = RESULT(o, i);
                HIDE(result[i]);
            }
            ring_wait(memory->early_counters + 2 * stage, turn);
            lanes_sync();
            FIT_UNIT
            gain = a->scale * (unit * STATE_GAIN);
#if KDA_RULE == KDA_RULE_DELTA
            product_rows(x, left, image + IMAGE_KD);
            product_wait_cols(1, s); /* for the compiler, which loses count around a loop */
#endif

            /* While they run: the output of the chunk before, and D S. */
            PUT_OUTPUT
            before = target_of(a, out, job, chunk);
            UNROLL
            for (int i = 0; i < KDA_K / 2; i += 4) {
                const float2 d = decay[i + t];
                s[i] *= d.s0;
                s[i + 1] *= d.s1;
                s[i + 2] *= d.s0;
                s[i + 3] *= d.s1;
            }

            /* E: what needs no product, and the rest. */
            float2 b[8], a0[8];
            UNROLL
            for (int i = 0; i < 8; i++)
                b[i] = beta[4 * i + t];
#if KDA_RULE == KDA_RULE_DELTA
            product_wait32(0, x);
#endif
            UNROLL
            for (int i = 0; i < 32; i += 4) {
                pairs[i / 2] = pack_operands(x[i], x[i + 1]);
                pairs[i / 2 + 1] = pack_operands(x[i + 2], x[i + 3]);
                x[i] *= b[i / 4].s0;
                x[i + 1] *= b[i / 4].s1;
                x[i + 2] *= b[i / 4].s0;
                x[i + 3] *= b[i / 4].s1;
            }
#if KDA_RULE == KDA_RULE_DELTA
            product_square(x, pairs, image + IMAGE_L);
#endif
            UNROLL
            for (int i = 0; i < 8; i++)
                a0[i] = diagonal[4 * i + t];
            ring_wait(memory->late_counters + 2 * stage, turn);
            lanes_sync();
#if KDA_RULE == KDA_RULE_DELTA
            product_wait32(0, x);
#endif
            UNROLL
            for (int i = 0; i < 16; i++)
                pairs[i] = pack_operands(x[2 * i], x[2 * i + 1]);
            product_cols(s, pairs, image + IMAGE_KE);
            UNROLL
            for (int i = 0; i < 32; i += 4) {
                o[i] = x[i] * a0[i / 4].s0;
                o[i + 1] = x[i + 1] * a0[i / 4].s1;
                o[i + 2] = x[i + 2] * a0[i / 4].s0;
                o[i + 3] = x[i + 3] * a0[i / 4].s1;
            }
            lanes_sync(); /* the first images are through */
            if (lane == 0)
                ring_release(memory->early_counters + 2 * stage);
            product_rows(o, left, image + IMAGE_QD);
            product_square(o, pairs, image + IMAGE_A);

            /* While these run: the next V. */
            __local ring_counter *const used = memory->late_counters + 2 * stage;
            NEXT_STAGE
#if MOVERS
            if (chunk + 1 < chunks)
#else
            MOVE_TOKENS(chunk + 1, chunk + 1, lid)
            FETCH_IMAGES(chunk + 1, chunk + 1, lid)
#endif
                TAKE_VALUES
            product_wait32(0, o);
            product_wait_cols(0, s);
            if (lane == 0)
                ring_release(used);
        }

        const long done = ROW_OF(*job, chunks); /* tokens behind us, if the last chunk was full */
        if (!IS_MAP && chunks > 0 && IS_LAST && is_checkpoint(a, done, job->length))
            STORE_CELLS(CHECKPOINT_AT(done))
        if (chunks > 0 && job->to >= 0)
            STORE_CELLS(final_state + a->final_state.offset +
                        job->to * a->final_state.token_stride +
                        job->head * a->final_state.head_stride)
        if (chunks > 0 && IS_CARRIED_OUT) {
            __global float *const to = CARRIED_OUT;
            UNROLL
            for (int i = 0; i < KDA_K / 2; i++)
                to[CARRIED_CELL(i)] = s[i] * unit;
        }
#if MOVERS
        lanes_sync(); /* the job has been used */
        if (lane == 0)
            leave_job(jobs, taken);
    }
    LAST_OUTPUT
#else
        LAST_OUTPUT
        for (int i = chunks + 1; i <= chunks + STAGES; i++) {
            NEXT_STAGE
            MOVE_TOKENS(i, i, lid)
        }
    }
#endif
}

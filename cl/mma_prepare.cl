/* The matrix-unit engine, part one: kda_prepare of chunk.cl for chunks of 64 tokens on matrix
 * units. Names and formulas are those of chunk.cl and mma_scan.cl; the result of a chunk and head
 * is one block of images (IMAGE_* in common.cl), in the very order in which the scan's products
 * read it.
 *
 * Norms come first, and then q and k are what operands are (operand.cl). R and A_qk are sums over
 * channels by the rules of mma_operands.cl. (I + R) is inverted by substitution in 16 x 16 blocks
 * and merged as in chunk.cl; the merging products run on matrix units with every number as the sum
 * of two of bf16.
 *
 * WORK SPLIT. A work-group is two parts of 256 items, each with its own barriers and its own chunk
 * and head, that take turns until all are done: 512 items make the compiler keep to 128 registers.
 * Of a part, warp w holds the 16 tokens of block w / 2, lane l of it channels 64 (w % 2) + 2 l and
 * the next: decays, k and q in 64 registers. (Of 64 channels odd warps have none: k = q = 0.) What
 * is over the rest goes to memory that is far away, for local memory leaves little of the first
 * cache: 136 bytes an item cost a third of the time.
 * (Twice the items with half the tokens want 40 bytes more than their 64 registers, and take 1.2
 * times as long. H200, driver 580.159, 2026-11-30.)
 *
 * At the end of a turn the second half of the part inverts the diagonal blocks and goes on with the
 * next one; the first half merges them.
 *
 *     local memory of a part   `area`: the raw rows of the chunk as they arrive, then operands of
 *                              two levels                                                   51 KiB
 *                              the images of L and A_qk, D, beta, A_qk's diagonal           17 KiB
 *                              R and T split in two                                         18 KiB
 *                              R of the diagonal blocks, sums, totals, decays, norms        15 KiB
 *
 * Rows come by copies of their own (mma_rows.cl), a turn ahead, while this one's blocks are
 * inverted.
 *
 * SPDX-License-Identifier: MIT */

#define PARTS 2                /* of a work-group, which fills a multiprocessor */
#define SENDER (PART / 2 - 32) /* of the half that merges */
#define LOCATOR (PART - 1)
#define DIAGONAL_ROW 20
/* Barriers besides that of the whole part. */
#define SOLVED(part) (PARTS + (part))
#define MERGING(part) (2 * PARTS + (part))

/* The images from IMAGE_D to IMAGE_A. */
struct rest {
    float d[128], beta[64], a_diagonal[64];
    ushort l[64 * 64], a[64 * 64];
};

struct memory {
    uchar area[2 * 96 * PAIR_ROW * 2];
    struct rest rest;
    ushort split[2 * SPLIT_PLANE];
    float diagonal[64][DIAGONAL_ROW], totals[BLOCKS][128], sums[2][SUM_KINDS][64];
    float2 reach[BLOCKS][128]; /* decays from the chunk's start to a block and from it to the end */
    float2 norms[64];          /* of k and of q, one divided by them */
    ring_counter arrivals[2 * BLOCKS]; /* of the rows of a block, every other one */
    int turn;                          /* modulo 2 */
    uint number;                       /* of the next chunk and head, in the order of work */
    struct place next;
    uint image; /* of this turn */
    uint zero;
};

#define NO_IMAGE 0xffffffffu

/* T of a merged block, this warp's 16 x 16 of it at (row, col), below the first 32 columns: into L,
 * and if it is to be merged again. */
static __attribute__((always_inline)) inline void store_merged(const float z[2][4],
                                                               __local struct rest *rest,
                                                               __local ushort *split, int row,
                                                               int col, int again, int lane)
{
    const int i = row + (lane >> 2), j = col + 2 * (lane & 3);
    UNROLL
    for (int n = 0; n < 2; n++) {
        const float2 beta = *(__local const float2 *)&rest->beta[j + 8 * n];
        __local uint *const to = (__local uint *)(rest->l + IMAGE_AT(i, j + 8 * n));
        to[0] = pack_operands(z[n][0] * beta.s0, z[n][1] * beta.s1);
        to[8 * 64 / 2] = pack_operands(z[n][2] * beta.s0, z[n][3] * beta.s1);
        if (again) {
            split_store(split, i, j + 8 * n, z[n][0], z[n][1]);
            split_store(split, i + 8, j + 8 * n, z[n][2], z[n][3]);
        }
    }
}

/* T of the diagonal block at `base` by substitution, a column each for 16 items; into L too. Zeros
 * above the diagonal come out as such; beta of a later token does not touch them. */
static __attribute__((always_inline)) inline void
solve_block(__local const float (*r)[DIAGONAL_ROW], __local struct rest *rest,
            __local ushort *split, int base, int c)
{
    float column[16];
    UNROLL
    for (int i = 0; i < 16; i++) {
        float x = i == c ? 1.0f : 0.0f;
        UNROLL
        for (int m = 0; m < 16; m += 4)
            if (m < i) {
                const float4 four = *(__local const float4 *)&r[i][m];
                x -= four.s0 * column[m];
                if (m + 1 < i)
                    x -= four.s1 * column[m + 1];
                if (m + 2 < i)
                    x -= four.s2 * column[m + 2];
                if (m + 3 < i)
                    x -= four.s3 * column[m + 3];
            }
        column[i] = x;
    }
    const int j = base + c;
    const float beta = rest->beta[j];
    __local ushort *const to = split + base * SPLIT_ROW + j;
    __local ushort *const l = rest->l + base * 64 + (j & 7);
    UNROLL
    for (int i = 0; i < 16; i += 2) {
        const float x = column[i], y = column[i + 1];
        const uint high = pack_bf16(x, y);
        const uint low = pack_bf16(x - BF16_LOW(high), y - BF16_HIGH(high));
        const uint pair = pack_operands(c < i ? x * beta : 0.0f, c < i + 1 ? y * beta : 0.0f);
        to[i * SPLIT_ROW] = (ushort)high;
        to[(i + 1) * SPLIT_ROW] = (ushort)(high >> 16);
        to[i * SPLIT_ROW + SPLIT_PLANE] = (ushort)low;
        to[(i + 1) * SPLIT_ROW + SPLIT_PLANE] = (ushort)(low >> 16);
        l[i * 64 + (((j >> 3) ^ (i & 7)) << 3)] = (ushort)pair;
        l[(i + 1) * 64 + (((j >> 3) ^ (i + 1 & 7)) << 3)] = (ushort)(pair >> 16);
    }
}

/* Numbers of an item and where its part's memory is, made anew in each phase between barriers:
 * hidden from the compiler, which would make every phase's addresses once and then keep them, for
 * want of registers in memory that is far away: local memory leaves little of the first cache. */
#define PHASE                                                                                      \
    HIDE(lid);                                                                                     \
    HIDE(part);
#define merges (lid < PART / 2)
#define lane (lid & 31)
#define warp (lid >> 5)
#define block (lid >> 6)
#define channel ((lid & 63) * 2)
#define has_channels (channel < KDA_K)
#define area (memory[part].area)
#define operands ((__local ushort(*)[96][PAIR_ROW])area)
#define rest (&memory[part].rest)
#define split (memory[part].split)
#define diagonal (memory[part].diagonal)
#define totals (memory[part].totals)
#define sums (memory[part].sums)
#define reach (memory[part].reach)
#define norms (memory[part].norms)
/* Where this turn's go. */
#define IMAGES                                                                                     \
    ((__global uchar *)(workspace + a->factors + (long)memory[part].image * a->factor_stride))

/* Those of an earlier turn are stored. */
static inline void announce(const struct kda_call_args *a, __global float *workspace, uint image)
{
    if (image != NO_IMAGE)
        images_ready(progress_of(a, workspace) + image, (ulong)a->call);
}

/* What an item knows of its part's next chunk and head. */
struct coming {
    struct place here;
    struct extras extras;
};

/* One turn of a part: prepares what is `coming`, if a turn has `begun` before, and sends for the
 * next, so that the code for that stands in one place. */
static __attribute__((always_inline)) inline void
prepare_turn(const struct kda_call_args *a, __global const data_t *q0, __global const data_t *k0,
             __global const gate_t *g0, __global const beta_t *beta, __global const float *a_log,
             __global const float *dt_bias, __global const int *cu_seqlens,
             __global float *workspace, __local struct memory *memory, uint preparers, int part,
             int lid, struct coming *coming, int begun)
{
    const int rows = begun ? coming->here.rows : 0, head = begun ? coming->here.head : 0;
    const int exists = !KDA_COMPACT || rows > 0;
    uint kx[TOKENS], qx[TOKENS];
    float ax[TOKENS], ay[TOKENS];
    if (begun) {
        PHASE
        const int inside = has_channels ? rows - block * TOKENS : 0;

        /* Decays, k and q. */
        ring_wait(memory[part].arrivals + 2 * (lid >> 6), memory[part].turn);
        {
            __local const ushort *const at =
                (__local const ushort *)area + block * (TOKENS * KDA_K) + channel % KDA_K;
            UNROLL
            for (int i = 0; i < TOKENS; i++) {
                kx[i] = *(__local const uint *)(at + i * KDA_K);
                qx[i] = *(__local const uint *)(at + 8192 + i * KDA_K);
#if GATES_ARRIVE
                const uint both = *(__local const uint *)(at + 16384 + i * KDA_K);
                ax[i] = DATA_LOW(both);
                ay[i] = DATA_HIGH(both);
#endif
            }
        }
#if !GATES_ARRIVE
        if (inside > 0) {
            __global const gate_t *const g =
                g0 + a->g.offset + head * a->g.head_stride + (KDA_GATE_PER_HEAD ? 0 : channel);
            UNROLL
            for (int i = 0; i < TOKENS; i++) {
                const long row = coming->here.start + block * TOKENS + min(i, inside - 1);
                LOAD_GATES(ax[i], ay[i], g + row * a->g.token_stride);
            }
        }
#endif
        const float write = lid >= rows             ? 0.0f
                            : a->has & KDA_HAS_BETA ? fast_beta(coming->extras.write)
                                                    : 1.0f;
        {
            const float log_scale = coming->extras.log_scale * LOG2E;
            const float scale =
                a->has & KDA_HAS_A_LOG ? min(fast_exp2(log_scale) * LOG2E, FLT_MAX) : LOG2E;
            UNROLL
            for (int i = 0; i < TOKENS; i++) {
                ax[i] = fast_decay(ax[i], coming->extras.bias.s0, scale, a->gate_bound);
                ay[i] = fast_decay(ay[i], coming->extras.bias.s1, scale, a->gate_bound);
            }
        }
        /* Rows past the end did not come, nor did channels: k = q = 0; beta = 0, decay 1. */
        if (inside < TOKENS)
            UNROLL
        for (int i = 0; i < TOKENS; i++)
            if (i >= inside) {
                ax[i] = ay[i] = 1.0f;
                kx[i] = qx[i] = 0;
            }

        {
            uint x[16];
            UNROLL
            for (int i = 0; i < 16; i++)
                x[i] = squares(kx[i]);
            SUM_UP(SUM_KK, lanes_sum16_bf16(x, (__local float *)area, lid))
            UNROLL
            for (int i = 0; i < 16; i++)
                x[i] = squares(qx[i]);
            SUM_UP(SUM_QQ, lanes_sum16_bf16(x, (__local float *)area, lid))
        }
        if (lid == SENDER)
            stores_done();
        part_barrier(part, PART); /* sums are there; rows are read, the last turn's images stored */
        PHASE
        if (lid == SENDER)
            announce(a, workspace, memory[part].image);
        if (lid < 64) {
#if KDA_NORM_QK
            norms[lid] = (float2)(fast_rsqrt(SUM(SUM_KK, lid) + 1e-6f),
                                  fast_rsqrt(SUM(SUM_QQ, lid) + 1e-6f));
#endif
            rest->beta[lid] = write;
        }
        part_barrier(part, PART); /* norms are there */
        PHASE
#if KDA_NORM_QK
        {
            /* NVIDIA's compiler keeps both halves of a pair that it sees packed, and the pair. */
            const uint hidden_zero = memory[part].zero;
            UNROLL
            for (int i = 0; i < TOKENS; i++) {
                const float2 norm = norms[block * TOKENS + i];
                kx[i] = pack_operands(DATA_LOW(kx[i]) * norm.s0, DATA_HIGH(kx[i]) * norm.s0);
                qx[i] = pack_operands(DATA_LOW(qx[i]) * norm.s1, DATA_HIGH(qx[i]) * norm.s1);
                kx[i] ^= hidden_zero;
                qx[i] ^= hidden_zero;
            }
        }
#endif
        {
            uint x[16];
            SUM_UP(SUM_QK, lanes_dot16(qx, kx, (__local float *)area, lid))
            UNROLL
            for (int i = 0; i < 16; i += 4) {
                PAIR_SUMS(i, i + 1, i, ax[i + 1], ay[i + 1])
                PAIR_SUMS(i + 2, i + 2, i + 1, ax[i + 2], ay[i + 2])
            }
            SUM_UP(SUM_PAIRS, SUM_OF_X)
            UNROLL
            for (int i = 0; i < 16; i += 4) {
                PAIR_SUMS(i, i + 3, i + 2, ax[i + 3], ay[i + 3])
                PAIR_SUMS(i + 2, i + 2, i, ax[i + 2] * ax[i + 1], ay[i + 2] * ay[i + 1])
            }
            SUM_UP(SUM_PAIRS + 1, SUM_OF_X)
            UNROLL
            for (int i = 0; i < 16; i += 4) {
                const float fx = ax[i + 3] * ax[i + 2], fy = ay[i + 3] * ay[i + 2];
                PAIR_SUMS(i, i + 3, i + 1, fx, fy)
                PAIR_SUMS(i + 2, i + 3, i, fx * ax[i + 1], fy * ay[i + 1])
            }
            SUM_UP(SUM_PAIRS + 2, SUM_OF_X)
        }
        warp_has_read(); /* what sums were made from */
        WRITE_LEVEL(0, 2)
        WRITE_LEVEL(1, 3)
        {
            float2 total = 1.0f;
            UNROLL
            for (int i = 0; i < TOKENS; i++)
                total *= (float2)(ax[i], ay[i]);
            *(__local float2 *)&totals[block][channel] = total;
        }
        part_barrier(part, PART); /* operands, sums and totals are there */
        PHASE
        {
            const int eight = warp & 3;
            float d[4];
            MULTIPLY(d, warp >> 2, eight, eight);
            if (warp < 4)
                SCATTER_NEAR(d, 2, eight)
            else
                SCATTER_NEAR(d, 3, eight)
        }
        if (lid < 192) { /* the pairs within 4 tokens */
            const int p = lid >> 6, at = lid & 63, pair = 2 * p + (at >> 1 & 1);
            const int i = (at & ~3) + PAIR_TOKEN(pair), j = (at & ~3) + PAIR_KEY(pair);
            const float sum = SUM(SUM_PAIRS + p, at);
            if (at & 1)
                rest->a[IMAGE_AT(i, j)] = (ushort)pack_operands(sum, 0.0f);
            else
                diagonal[i][j & 15] = sum * rest->beta[i];
        } else {
            rest->a_diagonal[lid - 192] = SUM(SUM_QK, lid - 192);
        }
        part_barrier(part, PART); /* operands have been used */
        PHASE
        ROLLED
        for (int level = 4; level < 6; level++)
            WRITE_BLOCK(level - 4, level)
        part_barrier(part, PART); /* operands are there */
        PHASE
        UNROLL
        for (int i = 0; i < 16; i += WARPS) {
            const int rows8 = (warp + i) >> 2, keys8 = warp & 3;
            float d[4];
            MULTIPLY(d, 1, rows8, keys8);
            SCATTER_FAR(d, 5, rows8, keys8)
        }
        {
            const int rows8 = warp >> 1, keys8 = (rows8 & 2) + (warp & 1);
            float d[4];
            MULTIPLY(d, 0, rows8, keys8);
            SCATTER_FAR(d, 4, rows8, keys8)
        }
        if (lid < 128) {
            const int c = lid;
            float before = 1.0f, behind = 1.0f;
            UNROLL
            for (int b = 0; b < BLOCKS; b++) {
                reach[b][c].s0 = before;
                before *= totals[b][c];
            }
            UNROLL
            for (int b = BLOCKS - 1; b >= 0; b--) {
                reach[b][c].s1 = behind;
                behind *= totals[b][c];
            }
            rest->d[c] = before;
        }
    }
    if (lid == LOCATOR) {
        memory[part].image = memory[part].next.image;
        memory[part].turn ^= 1;
        memory[part].number += preparers * PARTS;
        memory[part].next =
            locate(a, cu_seqlens, workspace, memory[part].number, memory[part].next);
    }
    part_barrier(part, PART); /* R, A_qk and decays are complete, operands have been used */
    PHASE

    if (merges) {
        copies_follow();
        send_for_rows(a, k0, q0, memory[part].next, warp * TOKENS, (__local ushort *)area,
                      memory[part].arrivals + 2 * warp, lane);
    } else {
        send_for_gates(a, g0, memory[part].next, (warp - BLOCKS) * TOKENS,
                       (__local ushort *)area + 16384, memory[part].arrivals + 2 * (warp - BLOCKS),
                       lane);
    }
    if (begun) {
        if (!merges) {
#if KDA_RULE == KDA_RULE_DELTA
            if (lane < 16)
                solve_block(diagonal + (warp - WARPS / 2) * 16, rest, split,
                            (warp - WARPS / 2) * 16, lane);
#endif
            part_arrive(SOLVED(part), PART);
        }
        /* -Kd, Qd, Ke: decayed from the chunk's start and to its end. */
        __global uchar *const images = IMAGES;
        if (exists && has_channels) {
            const float4 both = *(__local const float4 *)&reach[block][channel];
            float2 before = both.s02 / STATE_GAIN, behind = both.s13 * STATE_GAIN;
            __global ushort *const tile =
                (__global ushort *)images + IMAGE_AT(block * TOKENS, channel & ~63) + (channel & 7);
            const int piece = (channel & 63) >> 3;
            UNROLL
            for (int i = 0; i < TOKENS; i++) {
                __global ushort *const at = tile + (uint)(i * 64 + ((piece ^ (i & 7)) << 3));
                before *= (float2)(ax[i], ay[i]);
                *(__global uint *)(at + IMAGE_KD / 2) =
                    SCALED_QUICKLY(kx[i], before.s0, before.s1) ^ BOTH_SIGNS;
                *(__global uint *)(at + IMAGE_QD / 2) =
                    SCALED_QUICKLY(qx[i], before.s0, before.s1);
            }
            UNROLL
            for (int i = TOKENS - 1; i >= 0; i--) {
                __global ushort *const at = tile + (uint)(i * 64 + ((piece ^ (i & 7)) << 3));
                *(__global uint *)(at + IMAGE_KE / 2) = SCALED(kx[i], behind.s0, behind.s1);
                behind *= (float2)(ax[i], ay[i]);
            }
        }
        PHASE
    }
    coming->here = memory[part].next; /* not kept in registers since it was sent for */
    coming->extras = load_extras(a, beta, a_log, dt_bias, coming->here, channel, lid);
    if (begun) {
        /* The first half of the part merges; the other goes on with the next turn. */
        part_barrier_of(merges, SOLVED(part), PART); /* T of the diagonal blocks is complete */
        PHASE
#if KDA_RULE == KDA_RULE_DELTA
        {
            const int at = warp * 32;
            float z[2][4];
            if (warp < 2)
                merge(z, split + (at + 16) * SPLIT_ROW + at + 16,
                      split + (at + 16) * SPLIT_ROW + at, split + at * SPLIT_ROW + at, 0, 0, 16,
                      lane);
            warp_has_read(); /* R of the block */
            if (warp < 2)
                store_merged(z, rest, split, at + 16, at, 1, lane);
        }
        part_barrier_of(merges, MERGING(part), PART / 2); /* T of 32 rows is complete */
        PHASE
        if (warp < 4) {
            const int row = (warp >> 1) * 16, col = (warp & 1) * 16;
            float z[2][4];
            merge(z, split + 32 * SPLIT_ROW + 32, split + 32 * SPLIT_ROW, split, row, col, 32,
                  lane);
            store_merged(z, rest, split, 32 + row, col, 0, lane);
        }
#endif
        part_barrier_of(merges, MERGING(part), PART / 2); /* images in local memory are complete */
        PHASE
        if (exists)
            store_block(IMAGES + IMAGE_D, rest, sizeof(*rest), lid, SENDER, PART);
    }
}

/* The work of one of `preparers` work-groups of PARTS * PART items. */
static __attribute__((always_inline)) inline void
prepare(const struct kda_call_args *a, __global const data_t *q, __global const data_t *k,
        __global const gate_t *g, __global const beta_t *beta, __global const float *a_log,
        __global const float *dt_bias, __global const int *cu_seqlens, __global float *workspace,
        __local struct memory *memory, uint preparer, uint preparers)
{
    const int part = (int)get_local_id(0) / PART, lid = (int)get_local_id(0) % PART;
    /* Cells above the diagonal are never written. */
    ROLLED
    for (int i = lid; i < 64 * 64; i += PART)
        ((__local uint *)rest->l)[i] = 0;
    ROLLED
    for (int i = lid; i < SPLIT_PLANE; i += PART)
        ((__local uint *)split)[i] = 0;
    if (lid == LOCATOR) { /* as if turns had come before */
        struct place none;
        none.chunks_begin = none.chunks_end = none.rows = 0;
        none.head = 0; /* also of a part that finds no work */
        none.image = NO_IMAGE;
        none.start = none.tokens_begin = none.tokens_end = 0;
        memory[part].number = (preparer - preparers) * PARTS + part;
        memory[part].next = none;
        memory[part].turn = 1;
        memory[part].zero = 0;
        ring_init(memory[part].arrivals, BLOCKS, 1 + 32 * GATES_ARRIVE, 1);
    }
    struct coming coming;
#define PREPARE_TURN(begun)                                                                        \
    prepare_turn(a, q, k, g, beta, a_log, dt_bias, cu_seqlens, workspace, memory, preparers, part, \
                 lid, &coming, begun)
#if KDA_COMPACT /* one chunk, so that no barrier stands in a branch: see step.cl */
    PREPARE_TURN(0);
    PREPARE_TURN(1);
#else
    int begun = 0;
    do {
        PREPARE_TURN(begun);
        begun = 1;
    } while (coming.here.rows > 0);
#endif
    if (lid == SENDER)
        stores_done();
    part_barrier(part, PART); /* the last images are stored */
    if (lid == SENDER)
        announce(a, workspace, memory[part].image);
}

#undef merges
#undef lane
#undef warp
#undef block
#undef channel
#undef has_channels
#undef area
#undef operands
#undef rest
#undef split
#undef diagonal
#undef totals
#undef sums
#undef reach
#undef norms

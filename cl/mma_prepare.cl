/* The matrix-unit engine, part one: kda_prepare of chunk.cl for chunks of 64 tokens on matrix
 * units. Names and formulas are those of chunk.cl and mma_scan.cl; the result of a chunk and head
 * is one block of images (IMAGE_* in common.cl), in the very order in which the scan's products
 * read it.
 *
 * NO EXPONENT IS EVER POSITIVE, for any gate, on one path. Pairs (i, j), j < i, fall into six
 * levels by the highest bit in which the two differ: at level l, j is in the lower and i in the
 * upper half of the same 2 l tokens, l = 1, 2, .. 32, and the factor between them splits at the
 * middle:
 *
 *     D(j+1..i) = S_j P_i      P_i = product of decays from the middle to i
 *                              S_j = product of decays behind j up to the middle
 *
 * Both are products of at most 32 numbers in [0, 1], taken anew at every level from the decays.
 * There each token is either a row, k P and q P, or a key, k S, so a level is 32 + 32 rows and 32
 * keys of bf16 operands; what matrix units compute beyond the level's pairs is dropped. P_i holds
 * tokens up to i alone and S_j tokens up to the middle, which is no later than i: nothing that a
 * row uses knows a future token.
 *
 * The pairs i = j need no decay; they are summed in f32 with the norms. Norms multiply the sums.
 * (I + R) is inverted by substitution in 16 x 16 blocks and merged as in chunk.cl; the merging
 * products run on matrix units with every number as the sum of two of bf16.
 *
 * WORK SPLIT. A work-group is two parts of 256 items, each with its own barriers and its own chunk
 * and head, that take turns until all are done: 512 items make the compiler keep to 128 registers.
 * Of a part, warp w holds tokens 16 (w / 2) .. + 15, lane l of it channels 64 (w % 2) + 2 l and
 * the next: decays, k and q in 64 registers. Two levels at a time go through local memory (51 of
 * a part's 85 KiB); a product is eight rows of k and q by eight keys, 40 of them.
 *
 * SPDX-License-Identifier: MIT */

#define PART 256
#define PARTS 2 /* of a work-group, which fills a multiprocessor */
#define TRI_ROW 68
#define HAS_GATE_ROWS (!KDA_GATE_PER_HEAD && KDA_GATE != KDA_GATE_NONE)

#define LOG2E 1.44269504f

/* The decay of a raw gate; scale: exp(a_log) log2(e). */
static inline float fast_decay(float g, float bias, float scale, float bound)
{
#if KDA_GATE == KDA_GATE_SOFTPLUS
    /* log(1 + e) loses the digits of a small e: a series there, the next term is below 2^-21. */
    const float x = g + bias, e = fast_exp2(-LOG2E * fabs(x));
    const float series = e * (1.0f + e * (-0.5f + e * (0.33333333f - 0.25f * e)));
    const float log_part = e < 0.03125f ? series : fast_log2(1.0f + e) * 0.69314718f;
    return fast_exp2(-scale * (fmax(x, 0.0f) + log_part));
#elif KDA_GATE == KDA_GATE_BOUNDED
    return fast_exp2(bound * LOG2E * fast_recip(1.0f + fast_exp2(-scale * (g + bias))));
#else
    return fast_exp2(g * LOG2E);
#endif
}

/* Raw rows of two neighbouring channels: `inside` rows, the last one again after that. */
#define LOAD_ROWS(wide)                                                                            \
    UNROLL for (int i = 0; i < 16; i++)                                                            \
    {                                                                                              \
        kx[i] = load_pair(k, wide);                                                                \
        qx[i] = load_pair(q, wide);                                                                \
        LOAD_GATES(ax[i], ay[i], wide)                                                             \
        const int more = i + 1 < inside;                                                           \
        k += more ? a.k.token_stride : 0;                                                          \
        q += more ? a.q.token_stride : 0;                                                          \
        g += more ? a.g.token_stride : 0;                                                          \
    }

static inline uint load_pair(__global const ushort *p, int wide)
{
    return wide ? *(__global const uint *)p : p[0] | (uint)p[1] << 16;
}

#if KDA_GATE == KDA_GATE_NONE
#define LOAD_GATES(x, y, wide) x = y = 0.0f;
#elif KDA_GATE_PER_HEAD
#define LOAD_GATES(x, y, wide) x = y = load_gate(g, 0);
#elif KDA_G_DTYPE == KDA_F32
#define LOAD_GATES(x, y, wide)                                                                     \
    {                                                                                              \
        const float2 both = wide ? *(__global const float2 *)g : (float2)(g[0], g[1]);             \
        x = both.s0;                                                                               \
        y = both.s1;                                                                               \
    }
#else
#define LOAD_GATES(x, y, wide)                                                                     \
    {                                                                                              \
        const uint both = load_pair(g, wide);                                                      \
        x = LOW(both);                                                                             \
        y = HIGH(both);                                                                            \
    }
#endif

#define LOW(x) as_float((x) << 16)
#define HIGH(x) as_float((x)&0xffff0000u)
/* A pair of 16-bit numbers times two factors. */
#define SCALED(pair, fx, fy) pack_bf16(LOW(pair) * (fx), HIGH(pair) * (fy))

/* The token that is number x among those with a level's bit set, or clear. */
#define TOKEN_AT(x, level, bit)                                                                    \
    (((x) >> (level)) << ((level) + 1) | (bit) << (level) | ((x) & ((1 << (level)) - 1)))
#define NUMBER_OF(token, level)                                                                    \
    (((token) >> ((level) + 1)) << (level) | ((token) & ((1 << (level)) - 1)))

/* A token's operands of a level, as a row or as a key; x and y become P of the token or the next S.
 */
#define WRITE_ROW(at, i)                                                                           \
    {                                                                                              \
        x *= ax[i];                                                                                \
        y *= ay[i];                                                                                \
        const uint factor = pack_bf16(x, y);                                                       \
        (at)[0] = multiply_bf16(kx[i], factor);                                                    \
        (at)[32 * (PAIR_ROW / 2)] = multiply_bf16(qx[i], factor);                                  \
    }
#define WRITE_KEY(at, i)                                                                           \
    {                                                                                              \
        (at)[64 * (PAIR_ROW / 2)] = multiply_bf16(kx[i], pack_bf16(x, y));                         \
        x *= ax[i];                                                                                \
        y *= ay[i];                                                                                \
    }

/* All operands of a level below 4: eight rows and eight keys of the block. */
#define WRITE_LEVEL(level, buffer)                                                                 \
    {                                                                                              \
        __local uint *const level_at = (__local uint *)(operands[buffer][block * 8] + channel);    \
        float x = 1.0f, y = 1.0f;                                                                  \
        UNROLL for (int i = 0; i < 16; i++) if (i >> (level)&1)                                    \
        {                                                                                          \
            if ((i & ((1 << (level)) - 1)) == 0)                                                   \
                x = y = 1.0f;                                                                      \
            WRITE_ROW(level_at + NUMBER_OF(i, level) * (PAIR_ROW / 2), i)                          \
        }                                                                                          \
        UNROLL for (int i = 15; i >= 0; i--) if (!(i >> (level)&1))                                \
        {                                                                                          \
            if (((i + 1) & ((1 << (level)) - 1)) == 0)                                             \
                x = y = 1.0f;                                                                      \
            WRITE_KEY(level_at + NUMBER_OF(i, level) * (PAIR_ROW / 2), i)                          \
        }                                                                                          \
    }

/* Of level 4 or 5: the block is all rows or all keys, number first and so on of the level; other:
 * the total of the block between it and the middle, if there is one. */
#define WRITE_BLOCK(first, upper, buffer, other)                                                   \
    {                                                                                              \
        __local uint *const level_at = (__local uint *)(operands[buffer][first] + channel);        \
        float x = (other).s0, y = (other).s1;                                                      \
        if (upper) {                                                                               \
            UNROLL for (int i = 0; i < 16; i++) WRITE_ROW(level_at + i * (PAIR_ROW / 2), i)        \
        } else {                                                                                   \
            UNROLL for (int i = 15; i >= 0; i--) WRITE_KEY(level_at + i * (PAIR_ROW / 2), i)       \
        }                                                                                          \
    }

/* Eight rows by eight keys of a level, numbered within the level. */
#define MULTIPLY(d, buffer, rows8, keys8)                                                          \
    product_pairs(d, operands[buffer][8 * (rows8)], operands[buffer][32 + 8 * (rows8)],            \
                  operands[buffer][64 + 8 * (keys8)], lane)

/* Puts their cells where they belong. */
#define SCATTER(d, level, rows8, keys8)                                                            \
    {                                                                                              \
        const int i = TOKEN_AT(8 * (rows8) + (lane >> 2), level, 1);                               \
        const float row_k = norms[i].s0 * row_beta[i], row_q = norms[i].s1;                        \
        UNROLL for (int e = 0; e < 2; e++)                                                         \
        {                                                                                          \
            const int j = TOKEN_AT(8 * (keys8) + 2 * (lane & 3) + e, level, 0);                    \
            if ((i >> ((level) + 1)) == (j >> ((level) + 1))) {                                    \
                tri[i][j] = (d)[e] * norms[j].s0 * row_k;                                          \
                a_qk[IMAGE_AT(i, j)] = float_to_bf16((d)[2 + e] * norms[j].s0 * row_q);            \
            }                                                                                      \
        }                                                                                          \
    }

/* T of the lower left SIZE x SIZE blocks on the diagonal of 2 SIZE: -T_II R_IJ T_JJ, by warps, each
 * 16 rows by 8 columns. */
#define MERGE_BLOCKS(size)                                                                         \
    do {                                                                                           \
        const int active = warp < 4 || (size) == 32;                                               \
        const int above = (size) == 16 ? (warp >> 1 & 1) * 32 : 0;                                 \
        const int row = (size) == 16 ? 0 : (warp >> 2) * 16;                                       \
        const int col = (size) == 16 ? (warp & 1) * 8 : (warp & 3) * 8;                            \
        __local float(*const y)[36] = between + (above >> 1);                                      \
        const int cell_row = row + (lane >> 2), cell_col = col + 2 * (lane & 3);                   \
        float d[4];                                                                                \
        if (active) {                                                                              \
            product_f32(d, &tri[above + (size) + row][above], TRI_ROW, &tri[above][above + col],   \
                        TRI_ROW, (size) / 16, lane);                                               \
            *(__local float2 *)&y[cell_row][cell_col] = (float2)(d[0], d[1]);                      \
            *(__local float2 *)&y[cell_row + 8][cell_col] = (float2)(d[2], d[3]);                  \
        }                                                                                          \
        part_barrier(part); /* R of the blocks has been used */                                    \
        if (active) {                                                                              \
            product_f32(d, &tri[above + (size) + row][above + (size)], TRI_ROW, &y[0][col], 36,    \
                        (size) / 16, lane);                                                        \
            __local float *const to = &tri[above + (size) + cell_row][above + cell_col];           \
            *(__local float2 *)to = (float2)(-d[0], -d[1]);                                        \
            *(__local float2 *)(to + 8 * TRI_ROW) = (float2)(-d[2], -d[3]);                        \
        }                                                                                          \
        part_barrier(part); /* T of 2 SIZE rows is complete */                                     \
    } while (0)

/* Where a chunk and head lies: its first token and how many it has; 0: there is none. */
struct place {
    long start;
    int rows, head;
};
static inline struct place locate(const struct kda_call_args *a, __global const int *cu_seqlens,
                                  __global const float *workspace, uint index)
{
    struct place p = {0, 0, (int)(index % (uint)a->value_heads)};
    const int in_piece = (int)(index / (uint)a->value_heads), chunk = a->first_chunk + in_piece;
    if (in_piece < a->chunk_count && chunk < chunk_start(a, workspace, a->sequences)) {
        const long n = sequence_of(a, workspace, chunk);
        p.start =
            sequence_start(a, cu_seqlens, n) + (long)(chunk - chunk_start(a, workspace, n)) * 64;
        p.rows = (int)min(sequence_start(a, cu_seqlens, n + 1) - p.start, 64l);
    }
    return p;
}

/* Brings the rows of q, k and g nearer, the first 256 bytes of each. */
static inline void fetch_rows_soon(const struct kda_call_args *a, __global const data_t *q,
                                   __global const data_t *k, __global const gate_t *g,
                                   struct place p, int lid)
{
    const int row = lid & 63, kh = key_head(p.head, a->heads, a->value_heads);
    const long token = p.start + row;
    __global const uchar *at = 0;
    if (lid < 64)
        at = (__global const uchar *)(k + a->k.offset + kh * a->k.head_stride +
                                      token * a->k.token_stride);
    else if (lid < 128)
        at = (__global const uchar *)(q + a->q.offset + kh * a->q.head_stride +
                                      token * a->q.token_stride);
    else if (lid < 192 && HAS_GATE_ROWS)
        at = (__global const uchar *)(g + a->g.offset + p.head * a->g.head_stride +
                                      token * a->g.token_stride);
    if (at && row < p.rows) {
        fetch_soon(at);
        fetch_soon(at + 128);
    }
}

__kernel __attribute__((reqd_work_group_size(PARTS * PART, 1, 1))) void
kda_mma_prepare(const struct kda_call_args a, __global const data_t *q0, __global const data_t *k0,
                __global const gate_t *g0, __global const beta_t *beta, __global const float *a_log,
                __global const float *dt_bias, __global const int *cu_seqlens,
                __global float *workspace)
{
    __local struct {
        ushort operands[2][96][PAIR_ROW];
        ushort a_qk[64 * 64];
        float tri[64][TRI_ROW], between[32][36], totals[4][128];
        float parts[2][3][64], row_beta[64];
        float2 norms[64]; /* of k, of q times scale */
    } memory[PARTS] __attribute__((aligned(16)));

    const int part = (int)get_local_id(0) / PART;
    __local ushort(*const operands)[96][PAIR_ROW] = memory[part].operands;
    __local ushort *const a_qk = memory[part].a_qk;
    __local float(*const tri)[TRI_ROW] = memory[part].tri;
    __local float(*const between)[36] = memory[part].between;
    __local float(*const totals)[128] = memory[part].totals;
    __local float(*const parts)[3][64] = memory[part].parts;
    __local float *const row_beta = memory[part].row_beta;
    __local float2 *const norms = memory[part].norms;

    const uint count = (uint)a.chunk_count * (uint)a.value_heads;
    const uint stride = (uint)get_num_groups(0) * PARTS;
#if KDA_COMPACT /* one turn, so that no barrier stands in a branch: see step.cl */
    const uint first = (uint)get_group_id(0) * PARTS;
    {
#else
    for (uint first = (uint)get_group_id(0) * PARTS; first < count; first += stride) {
#endif
        /* Parts left over. On a CPU they go along without storing: see "Barriers" in step.cl. */
        const uint index = first + part;
        const struct place here = locate(&a, cu_seqlens, workspace, index);
        const long start = here.start;
        const int rows = here.rows, head = here.head, exists = rows > 0;
#if !KDA_COMPACT
        if (!exists)
            break;
#endif
        /* Hidden, so that no address is kept from one turn to the next. */
        int lid = (int)get_local_id(0) % PART;
        HIDE(lid);
        const int lane = lid & 31, warp = lid >> 5;
        const int block = warp >> 1, channel = (warp & 1) * 64 + lane * 2;
        __global const data_t *q = q0, *k = k0;
        __global const gate_t *g = g0;
        const int kh = key_head(head, a.heads, a.value_heads);
        const long row0 = start + min(block * 16, max(rows - 1, 0));
        q += a.q.offset + kh * a.q.head_stride + row0 * a.q.token_stride + channel;
        k += a.k.offset + kh * a.k.head_stride + row0 * a.k.token_stride + channel;
        g += a.g.offset + head * a.g.head_stride + row0 * a.g.token_stride +
             (KDA_GATE_PER_HEAD ? 0 : channel);
        const int inside = rows - block * 16;

        uint kx[16], qx[16];
        float ax[16], ay[16]; /* decays */
        if (rows > 0) {
            if (a.has & KDA_HAS_WIDE_ROWS) {
                LOAD_ROWS(1)
            } else {
                LOAD_ROWS(0)
            }
        }
        float2 bias = 0.0f;
        float gate_scale = LOG2E;
#if KDA_GATE_PER_HEAD
        if (a.has & KDA_HAS_DT_BIAS)
            bias = dt_bias[a.dt_bias + head];
#else
        if (a.has & KDA_HAS_DT_BIAS)
            bias = (float2)(dt_bias[a.dt_bias + (long)head * KDA_K + channel],
                            dt_bias[a.dt_bias + (long)head * KDA_K + channel + 1]);
#endif
        if (a.has & KDA_HAS_A_LOG)
            gate_scale = min(fast_exp2(a_log[a.a_log + head] * LOG2E) * LOG2E, FLT_MAX);
        UNROLL
        for (int i = 0; i < 16; i++) {
            ax[i] = fast_decay(ax[i], bias.s0, gate_scale, a.gate_bound);
            ay[i] = fast_decay(ay[i], bias.s1, gate_scale, a.gate_bound);
        }
        /* Rows past the end: k = q = beta = 0, decay 1. */
        if (inside < 16)
            UNROLL
        for (int i = 0; i < 16; i++)
            if (i >= inside) {
                kx[i] = qx[i] = 0;
                ax[i] = ay[i] = 1.0f;
            }

        /* Sums over channels: of k k, q q and q k. */
        UNROLL
        for (int kind = 0; kind < 3; kind++) {
            float sums[16];
            UNROLL
            for (int i = 0; i < 16; i++) {
                const uint x = kind == 1 ? qx[i] : kx[i], y = kind == 0 ? kx[i] : qx[i];
                sums[i] = LOW(x) * LOW(y) + HIGH(x) * HIGH(y);
            }
            lanes_sum16(sums, (__local float *)operands + lid * 16, lane);
            if (lane < 16)
                parts[warp & 1][kind][block * 16 + lane] = sums[0];
        }
        for (int i = lid; i < 64 * 64 / 8; i += PART)
            ((__local uint4 *)a_qk)[i] = 0;
        for (int i = lid; i < 64 * TRI_ROW / 4; i += PART)
            ((__local float4 *)tri)[i] = 0.0f;
        if (lid < 64) {
            float b = 1.0f;
            if ((a.has & KDA_HAS_BETA) && lid < rows)
                b = activate_beta(load_beta(beta, a.beta.offset + head * a.beta.head_stride +
                                                      (start + lid) * a.beta.token_stride));
            row_beta[lid] = lid < rows ? b : 0.0f;
        }
        part_barrier(part); /* sums are there, matrices are cleared */
        if (lid < 64) {
#if KDA_NORM_QK
            const float nk = 1.0f / sqrt(parts[0][0][lid] + parts[1][0][lid] + 1e-6f);
            const float nq = a.scale / sqrt(parts[0][1][lid] + parts[1][1][lid] + 1e-6f);
#else
            const float nk = 1.0f, nq = a.scale;
#endif
            norms[lid] = (float2)(nk, nq);
            a_qk[IMAGE_AT(lid, lid)] =
                float_to_bf16((parts[0][2][lid] + parts[1][2][lid]) * nk * nq);
        }

        WRITE_LEVEL(0, 0)
        WRITE_LEVEL(1, 1)
        part_barrier(part); /* operands and norms are there */
        {
            const int eight = warp & 3;
            float d[4];
            MULTIPLY(d, warp >> 2, eight, eight);
            if (warp < 4)
                SCATTER(d, 0, eight, eight)
            else
                SCATTER(d, 1, eight, eight)
        }
        part_barrier(part); /* operands have been used */
        WRITE_LEVEL(2, 0)
        WRITE_LEVEL(3, 1)
        {
            float2 total = 1.0f;
            UNROLL
            for (int i = 0; i < 16; i++)
                total *= (float2)(ax[i], ay[i]);
            *(__local float2 *)&totals[block][channel] = total;
        }
        part_barrier(part); /* operands and totals are there */
        {
            const int eight = warp & 3;
            float d[4];
            MULTIPLY(d, warp >> 2, eight, eight);
            if (warp < 4)
                SCATTER(d, 2, eight, eight)
            else
                SCATTER(d, 3, eight, eight)
        }
        part_barrier(part); /* operands have been used */

        /* Levels 4 and 5: the same for whole blocks. */
        WRITE_BLOCK((block >> 1) * 16, block & 1, 0, (float2)(1.0f))
        {
            const int between_block = block == 0 || block == 3;
            const float2 total = *(__local const float2 *)&totals[block ^ 1][channel];
            const float2 other = between_block ? total : (float2)(1.0f);
            WRITE_BLOCK((block & 1) * 16, block >> 1, 1, other)
        }
        part_barrier(part); /* operands are there */
        {
            const int rows8 = warp >> 1, keys4 = (warp >> 2) * 2 + (warp & 1),
                      keys5 = (warp & 1) * 2;
            float d4[4], d5[4], e5[4];
            MULTIPLY(d4, 0, rows8, keys4);
            SCATTER(d4, 4, rows8, keys4)
            MULTIPLY(d5, 1, rows8, keys5);
            MULTIPLY(e5, 1, rows8, keys5 + 1);
            SCATTER(d5, 5, rows8, keys5)
            SCATTER(e5, 5, rows8, keys5 + 1)
        }

        /* Kd, Qd, Ke: decayed from the chunk's start and to its end. */
        __global float *const result = workspace + a.factors + (long)index * a.factor_stride;
        __global uchar *const images = (__global uchar *)result;
        {
            float2 before = 1.0f, behind = 1.0f;
            UNROLL
            for (int i = 0; i < 4; i++) {
                const float2 total = *(__local const float2 *)&totals[i][channel];
                before *= i < block ? total : (float2)(1.0f);
                behind *= i > block ? total : (float2)(1.0f);
            }
            __global ushort *const tile =
                (__global ushort *)images + IMAGE_AT(block * 16, channel & ~63);
            const int piece = (channel & 63) >> 3, inside_piece = channel & 7;
            if (exists)
                UNROLL
            for (int i = 0; i < 16; i++) {
                HIDE(kx[i]);
                HIDE(qx[i]);
                const float2 norm = norms[block * 16 + i];
                __global ushort *const at = tile + i * 64 + ((piece ^ (i & 7)) << 3) + inside_piece;
                before *= (float2)(ax[i], ay[i]);
                *(__global uint *)(at + IMAGE_KD / 2) =
                    SCALED(kx[i], before.s0 * norm.s0, before.s1 * norm.s0);
                *(__global uint *)(at + IMAGE_QD / 2) =
                    SCALED(qx[i], before.s0 * norm.s1, before.s1 * norm.s1);
            }
            if (exists)
                UNROLL
            for (int i = 15; i >= 0; i--) {
                HIDE(kx[i]);
                const float nk = norms[block * 16 + i].s0;
                __global ushort *const at = tile + i * 64 + ((piece ^ (i & 7)) << 3) + inside_piece;
                *(__global uint *)(at + IMAGE_KE / 2) =
                    SCALED(kx[i], behind.s0 * nk, behind.s1 * nk);
                behind *= (float2)(ax[i], ay[i]);
            }
        }
        if (exists && lid < 128)
            result[IMAGE_D / 4 + lid] =
                (totals[0][lid] * totals[1][lid]) * (totals[2][lid] * totals[3][lid]);
        else if (exists && lid < 192)
            result[IMAGE_BETA / 4 + lid - 128] = row_beta[lid - 128];

        fetch_rows_soon(&a, q0, k0, g0, locate(&a, cu_seqlens, workspace, index + stride), lid);
        part_barrier(part); /* R and A_qk are complete */
        for (int i = lid; exists && i < 64 * 64 / 8; i += PART)
            ((__global uint4 *)(images + IMAGE_A))[i] = ((__local const uint4 *)a_qk)[i];
#if KDA_RULE == KDA_RULE_DELTA
        /* T of the diagonal blocks: substitution, one column an item. */
        float column[16];
        const int base = lid & 48;
        if (lid < 64)
            UNROLL
        for (int i = 0; i < 16; i++) {
            float x = base + i == lid ? 1.0f : 0.0f;
            UNROLL
            for (int m = 0; m < 16; m++)
                if (m < i)
                    x -= tri[base + i][base + m] * column[m];
            column[i] = x;
        }
        part_barrier(part); /* the diagonal blocks of R have been read */
        if (lid < 64)
            UNROLL
        for (int i = 0; i < 16; i++)
            tri[base + i][lid] = column[i];
        part_barrier(part); /* the diagonal blocks of T are complete */
        MERGE_BLOCKS(16);
        MERGE_BLOCKS(32);

        for (int x = lid; exists && x < 64 * 64 / 8; x += PART) {
            const int i = x >> 3,
                      j = ((x & 7) ^ (i & 7)) * 8; /* the piece at x holds columns j.. */
            uint pairs[4];
            UNROLL
            for (int e = 0; e < 4; e++) {
                const int c = j + 2 * e;
                pairs[e] = pack_bf16(c < i ? tri[i][c] * row_beta[c] : 0.0f,
                                     c + 1 < i ? tri[i][c + 1] * row_beta[c + 1] : 0.0f);
            }
            ((__global uint4 *)(images + IMAGE_L))[x] =
                (uint4)(pairs[0], pairs[1], pairs[2], pairs[3]);
        }
#endif
        part_barrier(part); /* local memory may be used again */
    }
}

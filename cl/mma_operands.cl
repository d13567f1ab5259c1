/* The sums over key channels that kda_mma_prepare makes of a chunk: pairs of tokens with the decay
 * between them, as operands of matrix products or one by one.
 *
 * NO EXPONENT IS EVER POSITIVE, for any gate, on one path. Pairs (i, j), j < i, fall into levels by
 * the highest bit in which the two differ: at level l, j is in the lower and i in the upper half of
 * the same 2^(l+1) tokens, and the factor between them splits at the middle:
 *
 *     D(j+1..i) = S_j P_i      P_i = product of decays from the middle to i
 *                              S_j = product of decays behind j up to the middle
 *
 * Both are products of at most 32 numbers in [0, 1], taken anew at every level from the decays.
 * There each token is either a row, k P and q P, or a key, k S, so a level is 32 + 32 rows and 32
 * keys of operands; what matrix units compute beyond the level's pairs is dropped. P_i holds
 * tokens up to i alone and S_j tokens up to the middle, which is no later than i: nothing that a
 * row uses knows a future token. Levels 2 to 5 are products of operands; the pairs of levels 0 and
 * 1, six in each 4 tokens, and the pairs i = j are summed over channels one by one.
 *
 * The macros stand for code of kda_mma_prepare: they use its arrays and the numbers of its items.
 *
 * SPDX-License-Identifier: MIT */

#define TOKENS 16 /* of a warp */
#define BLOCKS (64 / TOKENS)
#define WARPS (2 * BLOCKS)
#define PART (32 * WARPS)

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

static inline float fast_beta(beta_t stored)
{
    const float x = beta_to_float(stored);
#if KDA_BETA == KDA_BETA_GIVEN
    return x;
#else
    return (KDA_BETA == KDA_BETA_SIGMOID2 ? 2.0f : 1.0f) * fast_recip(1.0f + fast_exp2(-LOG2E * x));
#endif
}

/* The raw gates of two neighbouring channels, where they do not arrive with k and q. */
#if KDA_GATE == KDA_GATE_NONE
#define LOAD_GATES(x, y, from) x = y = 0.0f
#elif KDA_GATE_PER_HEAD
#define LOAD_GATES(x, y, from) x = y = load_gate(from, 0)
#else
#define LOAD_GATES(x, y, from) x = load_gate(from, 0), y = load_gate(from, 1)
#endif

/* An operand times two factors, rounded once. Or the factors are rounded too, which is quicker: not
 * for Ke, whose errors no later token corrects, nor for bf16. */
#define SCALED(pair, fx, fy) pack_operands(OPERAND_LOW(pair) * (fx), OPERAND_HIGH(pair) * (fy))
#if OPERANDS_F16
#define SCALED_QUICKLY(pair, fx, fy) multiply_operands(pair, pack_operands(fx, fy))
#else
#define SCALED_QUICKLY SCALED
#endif
#define BOTH_SIGNS 0x80008000u

/* Sums over channels of 16 values x, by kind: of tokens, k k, q q and q k; of two pairs of each
 * four tokens, k k and q k of the first, of the second. Pair p of four tokens is (PAIR_TOKEN(p),
 * PAIR_KEY(p)): (1,0) (2,1) (3,2) (2,0) (3,1) (3,0), two to a kind. */
enum { SUM_KK, SUM_QQ, SUM_QK, SUM_PAIRS, SUM_KINDS = SUM_PAIRS + 3 };
#define SUM(kind, token) (sums[0][kind][token] + sums[1][kind][token])
#define SUM_UP(kind, sum_of_lanes)                                                                 \
    {                                                                                              \
        const float sum = sum_of_lanes;                                                            \
        if (lane < 16)                                                                             \
            sums[warp & 1][kind][block * 16 + SUM_INDEX(lane)] = sum;                              \
    }
#define SUM_OF_X lanes_sum16(x, (__local float *)area, lid)
/* A pair (i, j) of tokens, the factor between them f. */
#define PAIR_SUMS(at, i, j, fx, fy)                                                                \
    {                                                                                              \
        const uint key = multiply_operands(kx[j], pack_operands(fx, fy));                          \
        x[at] = multiply_operands(kx[i], key);                                                     \
        x[(at) + 1] = multiply_operands(qx[i], key);                                               \
    }
#define PAIR_TOKEN(p) (0x332321 >> 4 * (p)&3)
#define PAIR_KEY(p) (0x010210 >> 4 * (p)&3)

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
        const uint factor = pack_operands(x, y);                                                   \
        (at)[0] = multiply_operands(kx[i], factor);                                                \
        (at)[32 * (PAIR_ROW / 2)] = multiply_operands(qx[i], factor);                              \
    }
#define WRITE_KEY(at, i)                                                                           \
    {                                                                                              \
        (at)[64 * (PAIR_ROW / 2)] = multiply_operands(kx[i], pack_operands(x, y));                 \
        x *= ax[i];                                                                                \
        y *= ay[i];                                                                                \
    }

/* All operands of a level whose tokens are in one block. */
#define WRITE_LEVEL(buffer, level)                                                                 \
    {                                                                                              \
        __local uint *const level_at =                                                             \
            (__local uint *)(operands[buffer][block * (TOKENS / 2)] + channel);                    \
        float x = 1.0f, y = 1.0f;                                                                  \
        UNROLL for (int i = 0; i < TOKENS; i++) if (i >> (level)&1)                                \
        {                                                                                          \
            if ((i & ((1 << (level)) - 1)) == 0)                                                   \
                x = y = 1.0f;                                                                      \
            WRITE_ROW(level_at + NUMBER_OF(i, level) * (PAIR_ROW / 2), i)                          \
        }                                                                                          \
        UNROLL for (int i = TOKENS - 1; i >= 0; i--) if (!(i >> (level)&1))                        \
        {                                                                                          \
            if (((i + 1) & ((1 << (level)) - 1)) == 0)                                             \
                x = y = 1.0f;                                                                      \
            WRITE_KEY(level_at + NUMBER_OF(i, level) * (PAIR_ROW / 2), i)                          \
        }                                                                                          \
    }

/* Of a level whose halves are whole blocks: the block is all rows or all keys. x and y: the decay
 * of the blocks between it and the middle. */
#define WRITE_BLOCK(buffer, level)                                                                 \
    {                                                                                              \
        const int half_blocks = (1 << (level)) / TOKENS, upper = block * TOKENS >> (level)&1;      \
        const int place = block & (half_blocks - 1);                                               \
        const int count = upper ? place : half_blocks - 1 - place;                                 \
        __local uint *const level_at =                                                             \
            (__local uint *)(operands[buffer][NUMBER_OF(block * TOKENS, level)] + channel);        \
        float x = 1.0f, y = 1.0f;                                                                  \
        ROLLED for (int i = 1; i <= count; i++)                                                    \
        {                                                                                          \
            const float2 between =                                                                 \
                *(__local const float2 *)&totals[upper ? block - i : block + i][channel];          \
            x *= between.s0;                                                                       \
            y *= between.s1;                                                                       \
        }                                                                                          \
        if (upper) {                                                                               \
            UNROLL for (int i = 0; i < TOKENS; i++) WRITE_ROW(level_at + i * (PAIR_ROW / 2), i)    \
        } else {                                                                                   \
            UNROLL for (int i = TOKENS - 1; i >= 0; i--)                                           \
                WRITE_KEY(level_at + i * (PAIR_ROW / 2), i)                                        \
        }                                                                                          \
    }

/* Eight rows by eight keys of a level, numbered within the level. */
#define MULTIPLY(d, buffer, rows8, keys8)                                                          \
    product_pairs(d, operands[buffer][8 * (rows8)], operands[buffer][32 + 8 * (rows8)],            \
                  operands[buffer][64 + 8 * (keys8)], lane)

/* Puts their cells of level 2 or 3 where they belong; rows8 = keys8 = eight, tokens 16 eight
 * and so on. */
#define SCATTER_NEAR(d, level, eight)                                                              \
    {                                                                                              \
        const int i = TOKEN_AT(8 * (eight) + (lane >> 2), level, 1);                               \
        const int j = TOKEN_AT(8 * (eight) + 2 * (lane & 3), level, 0);                            \
        if ((i >> ((level) + 1)) == (j >> ((level) + 1))) {                                        \
            *(__local float2 *)&diagonal[i][j & 15] = (float2)((d)[0], (d)[1]) * rest->beta[i];    \
            *(__local uint *)(rest->a + IMAGE_AT(i, j)) = pack_operands((d)[2], (d)[3]);           \
        }                                                                                          \
    }
/* Of level 4 or 5. */
#define SCATTER_FAR(d, level, rows8, keys8)                                                        \
    {                                                                                              \
        const int i = TOKEN_AT(8 * (rows8) + (lane >> 2), level, 1);                               \
        const int j = TOKEN_AT(8 * (keys8) + 2 * (lane & 3), level, 0);                            \
        const float beta_i = rest->beta[i];                                                        \
        split_store(split, i, j, (d)[0] * beta_i, (d)[1] * beta_i);                                \
        *(__local uint *)(rest->a + IMAGE_AT(i, j)) = pack_operands((d)[2], (d)[3]);               \
    }

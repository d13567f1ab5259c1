/* The matrix-unit engine: the 16-bit numbers that its products multiply, in pairs, the first one
 * low. Sums of products are f32.
 *
 * f16 where q and k are made unit vectors: that bounds keys and queries, and all that is made of
 * them; memory and values, which nothing bounds, are taken in a unit that fits them
 * (mma_unit.cl). Else bf16, which has the range of f32, and three bits less.
 *
 * SPDX-License-Identifier: MIT */

#define OPERANDS_F16 KDA_NORM_QK

/* The halves of a pair as they are stored in q, k and v, and in an operand. */
#define BF16_LOW(x) as_float((x) << 16)
#define BF16_HIGH(x) as_float((x)&0xffff0000u)
#define F16_LOW(x) f16_to_float((ushort)(x))
#define F16_HIGH(x) f16_to_float((ushort)((x) >> 16))

#if OPERANDS_F16
#define OPERAND "f16"
#define OPERAND_ONES 0x3c003c00u
#define OPERAND_LOW F16_LOW
#define OPERAND_HIGH F16_HIGH
#define pack_operands pack_f16
#else
#define OPERAND "bf16"
#define OPERAND_ONES 0x3f803f80u
#define OPERAND_LOW BF16_LOW
#define OPERAND_HIGH BF16_HIGH
#define pack_operands pack_bf16
#endif

#if KDA_DTYPE == KDA_F16
#define DATA "f16"
#define DATA_LOW F16_LOW
#define DATA_HIGH F16_HIGH
#define pack_data pack_f16
#else
#define DATA "bf16"
#define DATA_LOW BF16_LOW
#define DATA_HIGH BF16_HIGH
#define pack_data pack_bf16
#endif

/* The largest number, but for its sign, of 16 pairs of data. */
static __attribute__((always_inline)) inline float pairs_max(const uint pairs[16])
{
#if KDA_PATH == KDA_PATH_PTX
    uint x = pairs[0];
    UNROLL
    for (int i = 1; i < 16; i++)
        __asm__("max.xorsign.abs." DATA "x2 %0, %0, %1;" : "+r"(x) : "r"(pairs[i]));
    return fmax(fabs(DATA_LOW(x)), fabs(DATA_HIGH(x)));
#else
    float x = 0.0f;
    for (int i = 0; i < 16; i++)
        x = fmax(x, fmax(fabs(DATA_LOW(pairs[i])), fabs(DATA_HIGH(pairs[i]))));
    return x;
#endif
}

/* What both halves of a pair of data squared add up to, as a pair of bf16, which can hold it: the
 * squares; those of f16, of which bf16 would drop too much, as the upper bits of their sum and the
 * rest of it. */
static __attribute__((always_inline)) inline uint squares(uint x)
{
#if KDA_DTYPE == KDA_F16
    /* Without signs: NVIDIA's compiler would keep both halves of a pair that is used again. */
    const float low = DATA_LOW(x & 0x7fff7fffu), high = DATA_HIGH(x & 0x7fff7fffu);
    const float sum = low * low + high * high;
    const float upper = as_float(as_uint(sum) & 0xffff0000u);
    return pack_bf16(upper, sum - upper);
#elif KDA_PATH == KDA_PATH_PTX
    uint z;
    __asm__("mul.rn.bf16x2 %0, %1, %1;" : "=r"(z) : "r"(x));
    return z;
#else
    return pack_bf16(DATA_LOW(x) * DATA_LOW(x), DATA_HIGH(x) * DATA_HIGH(x));
#endif
}

/* Both halves of a pair times those of another, rounded. */
#if KDA_PATH == KDA_PATH_PTX
static inline uint multiply_operands(uint x, uint y)
{
    uint z;
    __asm__("mul.rn." OPERAND "x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
    return z;
}
#else
static __attribute__((always_inline)) inline uint multiply_operands(uint x, uint y)
{
    return pack_operands(OPERAND_LOW(x) * OPERAND_LOW(y), OPERAND_HIGH(x) * OPERAND_HIGH(y));
}
static __attribute__((always_inline)) inline float operand_to_float(ushort x)
{
    return OPERAND_LOW((uint)x);
}
#endif

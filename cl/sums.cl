/* Sums over key channels by the items of a work-group that share out a tile of a state.
 *
 * The order of a sum. The rows of a leaf in turn, then a binary tree over the leaves of a work-item
 * and on over the groups, lowest bit of a number first. The tree is the same whether an item, lanes
 * or local memory carry a level of it, and columns never mix: so a result depends neither on TILE_V
 * nor on the path, nor on ROWS where these differ from plan to plan.
 *
 * SPDX-License-Identifier: MIT */

/* Row groups whose partial sums the lanes add up before local memory does the rest. */
#if KDA_LANES / KDA_COLS >= KDA_GROUPS
#define FOLD KDA_GROUPS
#elif KDA_LANES > KDA_COLS
#define FOLD (KDA_LANES / KDA_COLS)
#else
#define FOLD 1
#endif
#define PARTS (KDA_GROUPS / FOLD)

/* Rows of a leaf: what divides ROWS on a device where config.c chooses them by more than K. */
#if KDA_PATH == KDA_PATH_PTX && KDA_ROWS % 8 == 0
#define LEAF 8
#else
#define LEAF KDA_ROWS
#endif
#define LEAVES (KDA_ROWS / LEAF)

/* NVIDIA's compiler heeds a bound on registers only where no size of work-groups is required. */
#if KDA_PATH == KDA_PATH_PTX
#define SIZED
#else
#define SIZED WORK_GROUP(KDA_WG)
#endif

/* The tree over the leaves of a work-item, for each of so many sums of a leaf. */
#define ADD_LEAVES(sums, count)                                                                    \
    UNROLL                                                                                         \
    for (int d = 1; d < LEAVES; d *= 2)                                                            \
        UNROLL                                                                                     \
        for (int leaf = 0; leaf < LEAVES; leaf += 2 * d)                                           \
            UNROLL                                                                                 \
            for (int j = 0; j < count; j++)                                                        \
                sums[leaf][j] += sums[leaf + d][j];

/* Sums x over the row groups that share a sub-group; every lane gets the sum. */
static inline float fold(float x)
{
#if FOLD > 1
UNROLL
    for (int d = 1; d < FOLD; d *= 2)
        x += lane_xor(x, (uint)(d * KDA_COLS));
#endif
    return x;
}

/* Sums one column of parts: the rest of the tree. */
static inline float tree(__local const float *parts, int stride)
{
    float x[PARTS];
UNROLL
    for (int p = 0; p < PARTS; p++)
        x[p] = parts[p * stride];
UNROLL
    for (int d = 1; d < PARTS; d *= 2)
UNROLL
    for (int p = 0; p + d < PARTS; p += 2 * d)
        x[p] += x[p + d];
    return x[0];
}

/* Products of a team of four warps on matrix units behind vendor-free names: what mma_scan.cl is
 * made of. One body for NVIDIA's warp-group instructions, one that says the same in plain OpenCL
 * C.
 *
 * A TEAM is 128 work-items, four warps of 32 lanes, and multiplies 64 rows at once: warp w of the
 * team has rows 16 w .. 16 w + 15, and of these lane l has rows g = l / 4 and g + 8. What lane l
 * holds of a 64 x N result d, t = l % 4:
 *
 *     d[4 n + 0], d[4 n + 1]: row g,     columns 8 n + 2 t and + 1
 *     d[4 n + 2], d[4 n + 3]: row g + 8, the same columns
 *
 * and of a left operand of 64 x 16 s, a[4 s + ..]: the same cells of columns 16 s .., as pairs in
 * the order (g, 2 t), (g + 8, 2 t), (g, 2 t + 8), (g + 8, 2 t + 8). So pairs of a result's columns,
 * packed, ARE a left operand: results feed the next product without leaving their lane.
 *
 * A right operand is an image in local memory, aligned to 1024 bytes: 64 rows of 64 or 128 columns
 * of 16 bits, 64 columns side by side (128 bytes a row), then the other 64; within a row the eight
 * 16-byte pieces are permuted by the row's number, so that neither rows nor columns of pieces
 * collide in one bank. IMAGE_AT says where a cell is.
 *
 * SPDX-License-Identifier: MIT */

/* Elements from row to row of a team's tile of 64 x 64: whole 16-byte pieces, and eight rows lie in
 * different banks. */
#define TILE_ROW 72

/* Products run on their own: results are there after product_wait. NVIDIA's compiler keeps that
 * only if the result of a product is one array wherever it is used, and no branch that lanes may
 * take differently stands between a product and its wait.
 *
 *     product_rows      d = d + a b^T      b: 64 rows of KDA_K
 *     product_square    d = d + a b^T      b: 64 rows of 64
 *     product_cols      d = d + a b        b: 64 rows of KDA_K
 */
#if KDA_PATH == KDA_PATH_PTX

/* Matrix instructions of a warp group exist on one target only, which a directive inside the
 * function names. */
#define GROUP_TARGET ".target sm_90a\n"

/* Operand descriptor: 128-byte permutation, 1024 bytes between groups of eight rows, 8192 between
 * the column halves. */
static inline ulong descriptor(__local const void *p)
{
    return (ulong)((local_address(p) & 0x3ffff) >> 4) | (512ul << 16) | (64ul << 32) | (1ul << 62);
}

#define F8(d, i)                                                                                   \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),    \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define F32(d) F8(d, 0), F8(d, 8), F8(d, 16), F8(d, 24)
#define F64(d) F32(d), F8(d, 32), F8(d, 40), F8(d, 48), F8(d, 56)
#define U8(a, i)                                                                                   \
    "r"(a[i]), "r"(a[i + 1]), "r"(a[i + 2]), "r"(a[i + 3]), "r"(a[i + 4]), "r"(a[i + 5]),          \
        "r"(a[i + 6]), "r"(a[i + 7])
#define U16(a) U8(a, 0), U8(a, 8)
#define U32(a) U16(a), U8(a, 16), U8(a, 24)

#define D32                                                                                        \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"                                      \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},"
#define D64                                                                                        \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"                                      \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"                             \
    "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"                             \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63},"
/* A step of a product: d of n columns, 16 columns of a, b from `at` units of 16 bytes on, which are
 * columns of it or, `transposed`, rows. The operands' numbers in the list of the assembly. */
#define STEP(n, d, a0, a1, a2, a3, b, at, transposed)                                              \
    "add.s64 b, %" #b ", " #at ";\n"                                                               \
    "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." OPERAND "." OPERAND "\n"                     \
    d "{%" #a0 ",%" #a1 ",%" #a2 ",%" #a3 "}, b, p, 1, 1, " #transposed ";\n"
#define PRODUCT(steps)                                                                             \
    GROUP_TARGET "{ .reg .pred p; .reg .b64 b;\n"                                                  \
                 "setp.ne.s32 p, 0, 1;\n"                                                          \
                 "wgmma.fence.sync.aligned;\n" steps "wgmma.commit_group.sync.aligned; }\n"

static inline void product_square(float d[32], const uint a[16], __local const void *b)
{
    __asm__ volatile(PRODUCT(STEP(64, D32, 32, 33, 34, 35, 48, 0, 0)
                             STEP(64, D32, 36, 37, 38, 39, 48, 2, 0)
                             STEP(64, D32, 40, 41, 42, 43, 48, 4, 0)
                             STEP(64, D32, 44, 45, 46, 47, 48, 6, 0))
                     : F32(d)
                     : U16(a), "l"(descriptor(b))
                     : "memory");
}

#if KDA_K == 64

#define product_rows product_square
#define FK F32
static inline void product_cols(float d[32], const uint a[16], __local const void *b)
{
    __asm__ volatile(PRODUCT(STEP(64, D32, 32, 33, 34, 35, 48, 0, 1)
                             STEP(64, D32, 36, 37, 38, 39, 48, 128, 1)
                             STEP(64, D32, 40, 41, 42, 43, 48, 256, 1)
                             STEP(64, D32, 44, 45, 46, 47, 48, 384, 1))
                     : F32(d)
                     : U16(a), "l"(descriptor(b))
                     : "memory");
}

#else

#define FK F64
static inline void product_rows(float d[32], const uint a[32], __local const void *b)
{
    __asm__ volatile(PRODUCT(STEP(64, D32, 32, 33, 34, 35, 64, 0, 0)
                             STEP(64, D32, 36, 37, 38, 39, 64, 2, 0)
                             STEP(64, D32, 40, 41, 42, 43, 64, 4, 0)
                             STEP(64, D32, 44, 45, 46, 47, 64, 6, 0)
                             STEP(64, D32, 48, 49, 50, 51, 64, 512, 0)
                             STEP(64, D32, 52, 53, 54, 55, 64, 514, 0)
                             STEP(64, D32, 56, 57, 58, 59, 64, 516, 0)
                             STEP(64, D32, 60, 61, 62, 63, 64, 518, 0))
                     : F32(d)
                     : U32(a), "l"(descriptor(b))
                     : "memory");
}

static inline void product_cols(float d[64], const uint a[16], __local const void *b)
{
    __asm__ volatile(PRODUCT(STEP(128, D64, 64, 65, 66, 67, 80, 0, 1)
                             STEP(128, D64, 68, 69, 70, 71, 80, 128, 1)
                             STEP(128, D64, 72, 73, 74, 75, 80, 256, 1)
                             STEP(128, D64, 76, 77, 78, 79, 80, 384, 1))
                     : F64(d)
                     : U16(a), "l"(descriptor(b))
                     : "memory");
}

#endif

/* Waits until all but the last `pending` products are done; d: a result among those. */
#define product_wait32(pending, d)                                                                 \
    __asm__ volatile(GROUP_TARGET "wgmma.wait_group.sync.aligned " #pending ";"                    \
                     : F32(d)                                                                      \
                     :                                                                             \
                     : "memory")
#define product_wait_cols(pending, d)                                                              \
    __asm__ volatile(GROUP_TARGET "wgmma.wait_group.sync.aligned " #pending ";"                    \
                     : FK(d)                                                                       \
                     :                                                                             \
                     : "memory")
#define TEAM_SCRATCH(teams)

/* What is seldom so, and the same for all lanes of a warp. */
#define RARELY(so) (so)

/* Whether one of a warp's numbers is 2 or more, or a lane says `more`, or none is 2^-7 or more.
 * bits: a lane's pairs of f16, ORed, whose exponents show it in their upper two bits. */
static inline int lanes_outside(uint bits, int more)
{
    int outside;
    __asm__ volatile("{ .reg .pred more, enough; .reg .b32 b;\n"
                     "and.b32 b, %1, 0x20002000;\n"
                     "setp.ne.u32 enough, b, 0;\n"
                     "and.b32 b, %1, 0x40004000;\n"
                     "or.b32 b, b, %2;\n"
                     "setp.ne.u32 more, b, 0;\n"
                     "vote.sync.any.pred more, more, 0xffffffff;\n"
                     "vote.sync.any.pred enough, enough, 0xffffffff;\n"
                     "not.pred enough, enough;\n"
                     "or.pred more, more, enough;\n"
                     "selp.b32 %0, 1, 0, more; }"
                     : "=r"(outside)
                     : "r"(bits), "r"(more));
    return outside;
}

/* The largest of a warp's, none of which is negative: then their bits have the same order. */
static inline float lanes_max(float x, __local float *scratch, int lid)
{
    uint y;
    __asm__ volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(y) : "r"(as_uint(x)));
    return as_float(y);
}

/* Registers of a lane from here on, of 128 that each of 512 items has at first: all warps of a team
 * pass here, all movers, or the last four warps. */
#define TEAM_REGISTERS __asm__ volatile(GROUP_TARGET "setmaxnreg.inc.sync.aligned.u32 216;");
#define MOVER_REGISTERS __asm__ volatile(GROUP_TARGET "setmaxnreg.dec.sync.aligned.u32 48;");
#define FETCHER_REGISTERS __asm__ volatile(GROUP_TARGET "setmaxnreg.dec.sync.aligned.u32 32;");

/* A warp's 64 x 16 of a tile of bf16 in local memory, to and from the transposed cells of a result:
 * f[2 n], f[2 n + 1] stand for d[4 n] .. d[4 n + 3]. */
static inline void tile_load(uint f[16], __local const ushort *tile, int lane)
{
    const uint at =
        local_address(tile + ((lane >> 4) * 8 + (lane & 7)) * TILE_ROW + ((lane >> 3) & 1) * 8);
    UNROLL
    for (int i = 0; i < 4; i++)
        __asm__ volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                         : "=r"(f[4 * i]), "=r"(f[4 * i + 1]), "=r"(f[4 * i + 2]),
                           "=r"(f[4 * i + 3])
                         : "r"(at + i * 16 * TILE_ROW * 2)
                         : "memory");
}
static inline void tile_store(__local ushort *tile, const uint f[16], int lane)
{
    const uint at =
        local_address(tile + ((lane >> 4) * 8 + (lane & 7)) * TILE_ROW + ((lane >> 3) & 1) * 8);
    UNROLL
    for (int i = 0; i < 4; i++)
        __asm__ volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%4], {%0,%1,%2,%3};"
                         :
                         : "r"(f[4 * i]), "r"(f[4 * i + 1]), "r"(f[4 * i + 2]), "r"(f[4 * i + 3]),
                           "r"(at + i * 16 * TILE_ROW * 2)
                         : "memory");
}

#else /* plain OpenCL C: the reference of the body above, and no faster than that sounds */

/* Inlined without fail: PoCL 3.1 gives a function of its own, called by two work-groups at once,
 * the work-items of either. `lid`, the caller's, is the work-item's number. */
#define TEAM_SCRATCH(teams) __local ushort team_scratch[teams][64][128];
#define product_rows(d, a, b)                                                                      \
    product_plain(d, a, (__local const ushort *)(b), KDA_K / 16, 0, team_scratch, lid)
#define product_square(d, a, b)                                                                    \
    product_plain(d, a, (__local const ushort *)(b), 4, 0, team_scratch, lid)
#define product_cols(d, a, b)                                                                      \
    product_plain(d, a, (__local const ushort *)(b), 4, 1, team_scratch, lid)
#define TEAM_REGISTERS
#define RARELY(so) 1 /* so that no barrier stands in a branch: see step.cl */
#define lanes_outside(bits, more) 1
#define product_wait32(pending, d)
#define product_wait_cols(pending, d)

static __attribute__((always_inline)) inline void
product_plain(float *d, const uint *a, __local const ushort *b, int steps, int by_columns,
              __local ushort scratch[][64][128], int lid)
{
    const int team = lid >> 7, g = (lid & 31) >> 2, t = lid & 3;
    const int row = ((lid >> 5) & 3) * 16 + g;
    for (int s = 0; s < steps; s++)
        for (int r = 0; r < 4; r++)
            for (int e = 0; e < 2; e++)
                scratch[team][row + (r & 1) * 8][16 * s + (r >> 1) * 8 + 2 * t + e] =
                    (ushort)(a[4 * s + r] >> (16 * e));
    barrier(CLK_LOCAL_MEM_FENCE); /* the left operand is complete */
    for (int i = 0; i < (by_columns ? KDA_K / 2 : 32); i++) {
        const int n = i / 4 * 8 + 2 * t + (i & 1), m = row + (i & 2) * 4;
        float sum = d[i];
        for (int k = 0; k < 16 * steps; k++)
            sum += operand_to_float(scratch[team][m][k]) *
                   operand_to_float(by_columns ? b[IMAGE_AT(k, n)] : b[IMAGE_AT(n, k)]);
        d[i] = sum;
    }
    barrier(CLK_LOCAL_MEM_FENCE); /* the left operand has been used */
}

/* scratch: a number for each item. */
static __attribute__((always_inline)) inline float lanes_max(float x, __local float *scratch,
                                                             int lid)
{
    barrier(CLK_LOCAL_MEM_FENCE); /* scratch has been read */
    scratch[lid] = x;
    barrier(CLK_LOCAL_MEM_FENCE); /* all numbers are there */
    for (int i = 0; i < 32; i++)
        x = fmax(x, scratch[(lid & ~31) + i]);
    return x;
}

static __attribute__((always_inline)) inline void tile_load(uint f[16], __local const ushort *tile,
                                                            int lane)
{
    const int g = lane >> 2, t = lane & 3;
    for (int i = 0; i < 16; i++) {
        __local const ushort *at = tile + (i / 2 * 8 + 2 * t) * TILE_ROW + g + (i & 1) * 8;
        f[i] = at[0] | (uint)at[TILE_ROW] << 16;
    }
}
static __attribute__((always_inline)) inline void tile_store(__local ushort *tile, const uint f[16],
                                                             int lane)
{
    const int g = lane >> 2, t = lane & 3;
    for (int i = 0; i < 16; i++) {
        __local ushort *at = tile + (i / 2 * 8 + 2 * t) * TILE_ROW + g + (i & 1) * 8;
        at[0] = (ushort)f[i];
        at[TILE_ROW] = (ushort)(f[i] >> 16);
    }
}

#endif

/* Products of matrix units behind vendor-free names, and the asynchronous copies that feed them:
 * with tile.cl the only place that knows vendors' instructions. One body for NVIDIA's warp-group
 * instructions, one that says the same in plain OpenCL C.
 *
 * A TEAM is 128 work-items, four warps of 32 lanes, and multiplies 64 rows at once: warp w of the
 * team has rows 16 w .. 16 w + 15, and of these lane l has rows g = l / 4 and g + 8. What lane l
 * holds of a 64 x N result d, t = l % 4:
 *
 *     d[4 n + 0], d[4 n + 1]: row g,     columns 8 n + 2 t and + 1
 *     d[4 n + 2], d[4 n + 3]: row g + 8, the same columns
 *
 * and of a left operand of 64 x 16 s, a[4 s + ..]: the same cells of columns 16 s .., as pairs of
 * bf16 in the order (g, 2 t), (g + 8, 2 t), (g, 2 t + 8), (g + 8, 2 t + 8). So pairs of a result's
 * columns, packed, ARE a left operand: results feed the next product without leaving their lane.
 *
 * A right operand is an image in local memory, aligned to 1024 bytes: 64 rows of 64 or 128 columns
 * of bf16, 64 columns side by side (128 bytes a row), then the other 64; within a row the eight
 * 16-byte pieces are permuted by the row's number, so that neither rows nor columns of pieces
 * collide in one bank. IMAGE_AT says where a cell is.
 *
 * SPDX-License-Identifier: MIT */

/* Elements from row to row of the operands of product_pairs and of a warp's strip: whole 16-byte
 * pieces, and eight rows lie in different banks. */
#define PAIR_ROW 136
#define STRIP_ROW 24

#define IMAGE_AT(row, col)                                                                         \
    ((((col) >> 6) * 64 + (row)) * 64 + (((((col) >> 3) & 7) ^ ((row)&7)) << 3) + ((col)&7))

/* Products run on their own: results are there after product_wait. NVIDIA's compiler keeps that
 * only if the result of a product is one array wherever it is used, and no branch that lanes may
 * take differently stands between a product and its wait. product_rows   d = a b^T          b: 64
 * rows of 128 product_square d = d + a b^T      b: 64 rows of 64 product_cols   d = d + a b b: 64
 * rows of 128 */
#if KDA_PATH == KDA_PATH_PTX

/* Matrix instructions of a warp group exist on one target only, which a directive inside the
 * function names. */
#define GROUP_TARGET ".target sm_90a\n"

static inline uint local_address(__local const void *p)
{
    return (uint)(ulong)p;
}

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
#define N8(d, i)                                                                                   \
    "=&f"(d[i]), "=&f"(d[i + 1]), "=&f"(d[i + 2]), "=&f"(d[i + 3]), "=&f"(d[i + 4]),               \
        "=&f"(d[i + 5]), "=&f"(d[i + 6]), "=&f"(d[i + 7])
#define N32(d) N8(d, 0), N8(d, 8), N8(d, 16), N8(d, 24)
#define U8(a, i)                                                                                   \
    "r"(a[i]), "r"(a[i + 1]), "r"(a[i + 2]), "r"(a[i + 3]), "r"(a[i + 4]), "r"(a[i + 5]),          \
        "r"(a[i + 6]), "r"(a[i + 7])
#define U16(a) U8(a, 0), U8(a, 8)
#define U32(a) U16(a), U8(a, 16), U8(a, 24)

static inline void product_rows(float d[32], const uint a[32], __local const void *b)
{
    __asm__ volatile(GROUP_TARGET
                     "{ .reg .pred p; .reg .b64 b;\n"
                     "setp.ne.s32 p, 0, 1;\n"
                     "wgmma.fence.sync.aligned;\n"
                     "add.s64 b, %64, 0;\n"
                     "setp.ne.s32 p, 0, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
                     "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                     "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},"
                     "{%32,%33,%34,%35}, b, p, 1, 1, 0;\n"
                     "setp.ne.s32 p, 0, 1;\n"
                     "add.s64 b, %64, 2;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
                     "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                     "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},"
                     "{%36,%37,%38,%39}, b, p, 1, 1, 0;\n"
                     "add.s64 b, %64, 4;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
                     "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                     "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},"
                     "{%40,%41,%42,%43}, b, p, 1, 1, 0;\n"
                     "add.s64 b, %64, 6;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
                     "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                     "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},"
                     "{%44,%45,%46,%47}, b, p, 1, 1, 0;\n"
                     "add.s64 b, %64, 512;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
                     "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                     "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},"
                     "{%48,%49,%50,%51}, b, p, 1, 1, 0;\n"
                     "add.s64 b, %64, 514;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
                     "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                     "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},"
                     "{%52,%53,%54,%55}, b, p, 1, 1, 0;\n"
                     "add.s64 b, %64, 516;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
                     "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                     "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},"
                     "{%56,%57,%58,%59}, b, p, 1, 1, 0;\n"
                     "add.s64 b, %64, 518;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
                     "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                     "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},"
                     "{%60,%61,%62,%63}, b, p, 1, 1, 0;\n"
                     "wgmma.commit_group.sync.aligned; }\n"
                     : N32(d)
                     : U32(a), "l"(descriptor(b))
                     : "memory");
}

static inline void product_square(float d[32], const uint a[16], __local const void *b)
{
    __asm__ volatile(GROUP_TARGET
                     "{ .reg .pred p; .reg .b64 b;\n"
                     "setp.ne.s32 p, 0, 1;\n"
                     "wgmma.fence.sync.aligned;\n"
                     "add.s64 b, %48, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
                     "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                     "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},"
                     "{%32,%33,%34,%35}, b, p, 1, 1, 0;\n"
                     "add.s64 b, %48, 2;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
                     "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                     "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},"
                     "{%36,%37,%38,%39}, b, p, 1, 1, 0;\n"
                     "add.s64 b, %48, 4;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
                     "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                     "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},"
                     "{%40,%41,%42,%43}, b, p, 1, 1, 0;\n"
                     "add.s64 b, %48, 6;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
                     "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                     "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},"
                     "{%44,%45,%46,%47}, b, p, 1, 1, 0;\n"
                     "wgmma.commit_group.sync.aligned; }\n"
                     : F32(d)
                     : U16(a), "l"(descriptor(b))
                     : "memory");
}

static inline void product_cols(float d[64], const uint a[16], __local const void *b)
{
    __asm__ volatile(GROUP_TARGET
                     "{ .reg .pred p; .reg .b64 b;\n"
                     "setp.ne.s32 p, 0, 1;\n"
                     "wgmma.fence.sync.aligned;\n"
                     "add.s64 b, %80, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n"
                     "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                     "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                     "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                     "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63},"
                     "{%64,%65,%66,%67}, b, p, 1, 1, 1;\n"
                     "add.s64 b, %80, 128;\n"
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n"
                     "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                     "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                     "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                     "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63},"
                     "{%68,%69,%70,%71}, b, p, 1, 1, 1;\n"
                     "add.s64 b, %80, 256;\n"
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n"
                     "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                     "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                     "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                     "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63},"
                     "{%72,%73,%74,%75}, b, p, 1, 1, 1;\n"
                     "add.s64 b, %80, 384;\n"
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n"
                     "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                     "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                     "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                     "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63},"
                     "{%76,%77,%78,%79}, b, p, 1, 1, 1;\n"
                     "wgmma.commit_group.sync.aligned; }\n"
                     : F64(d)
                     : U16(a), "l"(descriptor(b))
                     : "memory");
}

/* Waits until all but the last `pending` products are done; d: a result among those. */
#define product_wait32(pending, d)                                                                 \
    __asm__ volatile(GROUP_TARGET "wgmma.wait_group.sync.aligned " #pending ";"                    \
                     : F32(d)                                                                      \
                     :                                                                             \
                     : "memory")
#define product_wait64(pending, d)                                                                 \
    __asm__ volatile(GROUP_TARGET "wgmma.wait_group.sync.aligned " #pending ";"                    \
                     : F64(d)                                                                      \
                     :                                                                             \
                     : "memory")
#define TEAM_SCRATCH(teams)

/* Eight row tokens by eight keys: d[0], d[1] of k, d[2], d[3] of q. Every row has 128 columns of
 * bf16 and starts 272 bytes after the one before. */
static inline void product_pairs(float d[4], __local const ushort *k, __local const ushort *q,
                                 __local const ushort *key, int lane)
{
    const uint a_at = local_address((lane & 8 ? q : k) + (lane & 7) * PAIR_ROW + (lane >> 4) * 8);
    const uint b_at = local_address(key + (lane & 7) * PAIR_ROW + (lane >> 3) * 8);
    float e[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    d[0] = d[1] = d[2] = d[3] = 0.0f;
    UNROLL
    for (int s = 0; s < 4; s++) {
        uint a[8], b[4];
        __asm__ volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                         : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                         : "r"(b_at + s * 64));
        __asm__ volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                         : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                         : "r"(a_at + s * 64));
        __asm__ volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                         : "=r"(a[4]), "=r"(a[5]), "=r"(a[6]), "=r"(a[7])
                         : "r"(a_at + s * 64 + 32));
        __asm__("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
        __asm__("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                : "+f"(e[0]), "+f"(e[1]), "+f"(e[2]), "+f"(e[3])
                : "r"(a[4]), "r"(a[5]), "r"(a[6]), "r"(a[7]), "r"(b[2]), "r"(b[3]));
    }
    UNROLL
    for (int i = 0; i < 4; i++)
        d[i] += e[i];
}

/* Two floats as a pair of bf16, the first one low. */
static inline uint pack_bf16(float low, float high)
{
    uint pair;
    __asm__("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

#define MULTIPLY_16x8x16(d, a, b)                                                                  \
    __asm__("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "                  \
            "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                                               \
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                       \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

/* d = a b for f32 matrices of 16 x 16 steps and 16 steps x 8, a warp's work: each number goes in as
 * the sum of two of bf16, the product of the two small parts is left out, about 2^-16. d[i]: row
 * g + 8 (i / 2), column 2 t + i % 2. */
static inline void product_f32(float d[4], __local const float *a, int a_row,
                               __local const float *b, int b_row, int steps, int lane)
{
    const int g = lane >> 2, t = lane & 3;
    d[0] = d[1] = d[2] = d[3] = 0.0f;
    UNROLL
    for (int s = 0; s < steps; s++) {
        uint high[4], low[4], b_high[2], b_low[2];
        UNROLL
        for (int i = 0; i < 4; i++) {
            const float2 x = *(__local const float2 *)(a + (g + (i & 1) * 8) * a_row + 16 * s +
                                                       2 * t + (i & 2) * 4);
            high[i] = pack_bf16(x.s0, x.s1);
            low[i] =
                pack_bf16(x.s0 - as_float(high[i] << 16), x.s1 - as_float(high[i] & 0xffff0000u));
        }
        UNROLL
        for (int i = 0; i < 2; i++) {
            __local const float *const at = b + (16 * s + 2 * t + 8 * i) * b_row + g;
            const float x = at[0], y = at[b_row];
            b_high[i] = pack_bf16(x, y);
            b_low[i] =
                pack_bf16(x - as_float(b_high[i] << 16), y - as_float(b_high[i] & 0xffff0000u));
        }
        MULTIPLY_16x8x16(d, high, b_high);
        MULTIPLY_16x8x16(d, high, b_low);
        MULTIPLY_16x8x16(d, low, b_high);
    }
}

/* Both halves of a pair times those of another, rounded to bf16. */
static inline uint multiply_bf16(uint x, uint y)
{
    uint z;
    __asm__("mul.rn.bf16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
    return z;
}

/* Asks for 128 bytes to be brought nearer. */
static inline void fetch_soon(__global const void *p)
{
    ulong global_p;
    __asm__("cvta.to.global.u64 %0, %1;" : "=l"(global_p) : "l"(p));
    __asm__ volatile("prefetch.global.L2 [%0];" : : "l"(global_p));
}

/* Approximations to about 22 bits; results below the smallest normal number are zero. */
static inline float fast_exp2(float x)
{
    float y;
    __asm__("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
static inline float fast_log2(float x)
{
    float y;
    __asm__("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
static inline float fast_recip(float x)
{
    float y;
    __asm__("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* A warp's own 64 x 16 tile of bf16 in local memory, rows STRIP_ROW apart, to and from the
 * transposed cells of a result: f[2 n], f[2 n + 1] stand for d[4 n] .. d[4 n + 3]. */
static inline void strip_load(uint f[16], __local const ushort *strip, int lane)
{
    const uint at =
        local_address(strip + ((lane >> 4) * 8 + (lane & 7)) * STRIP_ROW + ((lane >> 3) & 1) * 8);
    UNROLL
    for (int i = 0; i < 4; i++)
        __asm__ volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                         : "=r"(f[4 * i]), "=r"(f[4 * i + 1]), "=r"(f[4 * i + 2]),
                           "=r"(f[4 * i + 3])
                         : "r"(at + i * 16 * STRIP_ROW * 2)
                         : "memory");
}
static inline void strip_store(__local ushort *strip, const uint f[16], int lane)
{
    const uint at =
        local_address(strip + ((lane >> 4) * 8 + (lane & 7)) * STRIP_ROW + ((lane >> 3) & 1) * 8);
    UNROLL
    for (int i = 0; i < 4; i++)
        __asm__ volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%4], {%0,%1,%2,%3};"
                         :
                         : "r"(f[4 * i]), "r"(f[4 * i + 1]), "r"(f[4 * i + 2]), "r"(f[4 * i + 3]),
                           "r"(at + i * 16 * STRIP_ROW * 2)
                         : "memory");
}

/* Copies 16 bytes, or zero if not `there`, on its own; copies_wait waits for this lane's copies. */
static inline void copy_16(__local void *to, __global const void *from, int there)
{
    ulong global_from;
    __asm__("cvta.to.global.u64 %0, %1;" : "=l"(global_from) : "l"(from));
    __asm__ volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;"
                     :
                     : "r"(local_address(to)), "l"(global_from), "r"(there ? 16 : 0)
                     : "memory");
}
static inline void copies_wait(void)
{
    __asm__ volatile("cp.async.wait_all;" : : : "memory");
}

/* The same for 256 items of a work-group, the index-th such part: others need not take part. */
static inline void part_barrier(int index)
{
    __asm__ volatile("bar.sync %0, 256;" : : "r"(index + 1) : "memory");
}

/* Hides from the compiler what x is made of, so that it keeps x and not what follows from it. */
#define HIDE(x) __asm__ volatile("" : "+r"(x))

/* The lanes of a warp see each other's local memory. */
static inline void lanes_sync(void)
{
    __asm__ volatile("bar.warp.sync 0xffffffff;" : : : "memory");
}

/* x of lane 0, for all lanes: tells the compiler that branches on x do not diverge. */
static inline int lanes_uniform(int x)
{
    int y;
    __asm__ volatile("shfl.sync.idx.b32 %0, %1, 0, 0x1f, 0xffffffff;" : "=r"(y) : "r"(x));
    return y;
}

/* x[0] of lane l becomes the sum over the warp's lanes of x[l % 16]. */
static inline void lanes_sum16(float x[16], __local float *scratch, int lane)
{
#define FOLD(m)                                                                                    \
    UNROLL for (int i = 0; i < (m); i++)                                                           \
    {                                                                                              \
        const float low = x[i], high = x[i + (m)];                                                 \
        x[i] = (lane & (m) ? high : low) + lane_xor(lane & (m) ? low : high, m);                   \
    }
    FOLD(8)
    FOLD(4)
    FOLD(2)
    FOLD(1)
#undef FOLD
    x[0] += lane_xor(x[0], 16);
}

/* Copies that run on their own. Each stage of a ring has two counters: of arrived bytes, and of
 * readers that are through with it. All items call ring_fill (bytes: a multiple of 16; again: the
 * stage was in use, in turn `turn`) and ring_wait; one lane of each reading warp calls
 * ring_release. A turn is how often the stage was filled before, modulo 2. */
typedef ulong ring_counter;

static inline void ring_init(__local ring_counter *counters, int stages, int readers)
{
    for (int i = 0; i < stages; i++) {
        __asm__ volatile("mbarrier.init.shared.b64 [%0], 1;"
                         :
                         : "r"(local_address(counters + 2 * i))
                         : "memory");
        __asm__ volatile("mbarrier.init.shared.b64 [%0], %1;"
                         :
                         : "r"(local_address(counters + 2 * i + 1)), "r"(readers)
                         : "memory");
    }
    __asm__ volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
}
static inline void ring_counter_wait(__local const ring_counter *counter, int parity)
{
    __asm__ volatile("{ .reg .pred p;\n"
                     "again: mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n"
                     "@p bra done;\n"
                     "bra again;\n"
                     "done: }"
                     :
                     : "r"(local_address(counter)), "r"(parity)
                     : "memory");
}
static inline void ring_fill(__local void *to, __global const void *from, uint bytes,
                             __local ring_counter *counters, int again, int turn, int lid)
{
    ulong global_from;
    if (lid != 0)
        return;
    if (again)
        ring_counter_wait(counters + 1, turn);
    __asm__("cvta.to.global.u64 %0, %1;" : "=l"(global_from) : "l"(from));
    __asm__ volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;"
                     :
                     : "r"(local_address(counters)), "r"(bytes)
                     : "memory");
    __asm__ volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        :
        : "r"(local_address(to)), "l"(global_from), "r"(bytes), "r"(local_address(counters))
        : "memory");
}
static inline void ring_release(__local ring_counter *counters)
{
    __asm__ volatile("mbarrier.arrive.shared.b64 _, [%0];"
                     :
                     : "r"(local_address(counters + 1))
                     : "memory");
}
#define ring_wait(counters, turn) ring_counter_wait(counters, turn)

#else /* plain OpenCL C: the reference of the body above, and no faster than that sounds */

/* Inlined without fail: PoCL 3.1 gives a function of its own, called by two work-groups at once,
 * the work-items of either. `lid`, the caller's, is the work-item's number. */
#define TEAM_SCRATCH(teams) __local ushort team_scratch[teams][64][128];
#define product_rows(d, a, b)                                                                      \
    product_plain(d, a, (__local const ushort *)(b), 8, 0, team_scratch, lid)
#define product_square(d, a, b)                                                                    \
    product_plain(d, a, (__local const ushort *)(b), 4, 1, team_scratch, lid)
#define product_cols(d, a, b)                                                                      \
    product_plain(d, a, (__local const ushort *)(b), 4, 2, team_scratch, lid)
#define product_wait32(pending, d)
#define product_wait64(pending, d)

static __attribute__((always_inline)) inline void
product_plain(float *d, const uint *a, __local const ushort *b, int steps, int kind,
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
    for (int i = 0; i < (kind == 2 ? 64 : 32); i++) {
        const int n = i / 4 * 8 + 2 * t + (i & 1), m = row + (i & 2) * 4;
        float sum = kind == 0 ? 0.0f : d[i];
        for (int k = 0; k < 16 * steps; k++)
            sum += bf16_to_float(scratch[team][m][k]) *
                   bf16_to_float(kind == 2 ? b[IMAGE_AT(k, n)] : b[IMAGE_AT(n, k)]);
        d[i] = sum;
    }
    barrier(CLK_LOCAL_MEM_FENCE); /* the left operand has been used */
}

static __attribute__((always_inline)) inline void product_pairs(float d[4], __local const ushort *k,
                                                                __local const ushort *q,
                                                                __local const ushort *key, int lane)
{
    const int g = lane >> 2, t = lane & 3;
    for (int i = 0; i < 4; i++) {
        __local const ushort *row = (i & 2 ? q : k) + g * PAIR_ROW,
                             *column = key + (2 * t + (i & 1)) * PAIR_ROW;
        float sum = 0.0f;
        for (int c = 0; c < 128; c++)
            sum += bf16_to_float(row[c]) * bf16_to_float(column[c]);
        d[i] = sum;
    }
}

static __attribute__((always_inline)) inline uint pack_bf16(float low, float high)
{
    return float_to_bf16(low) | (uint)float_to_bf16(high) << 16;
}

static __attribute__((always_inline)) inline void product_f32(float d[4], __local const float *a,
                                                              int a_row, __local const float *b,
                                                              int b_row, int steps, int lane)
{
    const int g = lane >> 2, t = lane & 3;
    for (int i = 0; i < 4; i++) {
        d[i] = 0.0f;
        for (int k = 0; k < 16 * steps; k++)
            d[i] += a[(g + (i & 2) * 4) * a_row + k] * b[k * b_row + 2 * t + (i & 1)];
    }
}

static __attribute__((always_inline)) inline uint multiply_bf16(uint x, uint y)
{
    return pack_bf16(as_float(x << 16) * as_float(y << 16),
                     as_float(x & 0xffff0000u) * as_float(y & 0xffff0000u));
}

#define fetch_soon(p)
#define fast_exp2 native_exp2
#define fast_log2 native_log2
#define fast_recip native_recip

static __attribute__((always_inline)) inline void strip_load(uint f[16],
                                                             __local const ushort *strip, int lane)
{
    const int g = lane >> 2, t = lane & 3;
    for (int i = 0; i < 16; i++) {
        __local const ushort *at = strip + (i / 2 * 8 + 2 * t) * STRIP_ROW + g + (i & 1) * 8;
        f[i] = at[0] | (uint)at[STRIP_ROW] << 16;
    }
}
static __attribute__((always_inline)) inline void strip_store(__local ushort *strip,
                                                              const uint f[16], int lane)
{
    const int g = lane >> 2, t = lane & 3;
    for (int i = 0; i < 16; i++) {
        __local ushort *at = strip + (i / 2 * 8 + 2 * t) * STRIP_ROW + g + (i & 1) * 8;
        at[0] = (ushort)f[i];
        at[STRIP_ROW] = (ushort)(f[i] >> 16);
    }
}

static __attribute__((always_inline)) inline void copy_16(__local void *to,
                                                          __global const void *from, int there)
{
    for (int i = 0; i < 8; i++)
        ((__local ushort *)to)[i] = there ? ((__global const ushort *)from)[i] : 0;
}
#define copies_wait()

#define HIDE(x)
#define lanes_sync() barrier(CLK_LOCAL_MEM_FENCE)
#define part_barrier(index) barrier(CLK_LOCAL_MEM_FENCE)
#define lanes_uniform(x) (x)

/* scratch: 16 floats for each lane, the warp's side by side. */
static __attribute__((always_inline)) inline void lanes_sum16(float x[16], __local float *scratch,
                                                              int lane)
{
    for (int i = 0; i < 16; i++)
        scratch[i] = x[i];
    barrier(CLK_LOCAL_MEM_FENCE);
    x[0] = 0.0f;
    for (int i = 0; i < 32; i++)
        x[0] += scratch[(i - lane) * 16 + lane % 16];
    barrier(CLK_LOCAL_MEM_FENCE);
}

typedef int ring_counter;
#define ring_init(counters, stages, readers)
#define ring_release(counters)
static __attribute__((always_inline)) inline void ring_fill(__local void *to,
                                                            __global const void *from, uint bytes,
                                                            __local ring_counter *counters,
                                                            int again, int turn, int lid)
{
    for (uint i = lid; i < bytes / 4; i += get_local_size(0))
        ((__local uint *)to)[i] = ((__global const uint *)from)[i];
}
#define ring_wait(counters, turn) barrier(CLK_LOCAL_MEM_FENCE)

#endif

/* What the matrix-unit engine needs around its products, behind vendor-free names: copies between
 * global and local memory that run on their own, and the order among a warp's 32 lanes and among
 * the parts of a work-group. One body for NVIDIA, one that says the same in plain OpenCL C, where
 * copies are made at once and every order is the work-group's barrier.
 *
 * SPDX-License-Identifier: MIT */

/* BULK COPIES count the bytes that arrive. Each stage of a ring has two counters: of arrivals, and
 * of readers that are through with it. A turn is how often a stage was filled before, modulo 2.
 * Where copies run on their own, MOVERS items behind the others of a work-group do nothing but see
 * to them; where they don't (MOVERS is 0), all items do that too.
 *
 *     ring_init      one item, before a barrier; fillers: how many items call ring_filled
 *     ring_reclaim   all movers; the stage, last filled in `turn`, has been released (if `again`)
 *     ring_fill      one mover; bytes: a multiple of 16. Alone in filling a stage
 *     ring_filled    each mover, after its copy_16 to a stage, or copies of its own
 *     ring_wait      all items; all is there
 *     ring_release   one lane of each reading warp
 *
 * The other way:
 *
 *     store_block    all items of a part; one of them, `sender`, sends local memory off
 *     stores_done    that one again: all it sent is stored
 *
 * And from one work-group to another:
 *
 *     images_ready   one item: what its part has stored by the last barrier is there
 *     images_wait    all movers, before ring_fill: it is
 *
 * read_soon: memory that will be read soon comes to the last cache, if it begins at a multiple of
 * 16 bytes; bytes as of copies.
 */
#if KDA_PATH == KDA_PATH_PTX

static inline uint local_address(__local const void *p)
{
    return (uint)(ulong)p;
}
static inline ulong global_address(__global const void *p)
{
    ulong q;
    __asm__("cvta.to.global.u64 %0, %1;" : "=l"(q) : "l"(p));
    return q;
}

typedef ulong ring_counter;
#define MOVERS 128

static inline void ring_init(__local ring_counter *counters, int stages, int fillers, int readers)
{
    ROLLED
    for (int i = 0; i < stages; i++) {
        __asm__ volatile("mbarrier.init.shared.b64 [%0], %1;"
                         :
                         : "r"(local_address(counters + 2 * i)), "r"(fillers)
                         : "memory");
        __asm__ volatile("mbarrier.init.shared.b64 [%0], %1;"
                         :
                         : "r"(local_address(counters + 2 * i + 1)), "r"(readers)
                         : "memory");
    }
    __asm__ volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
}
static inline void ring_wait(__local const ring_counter *counter, int turn)
{
    __asm__ volatile("{ .reg .pred p;\n"
                     "again: mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n"
                     "@p bra done;\n"
                     "bra again;\n"
                     "done: }"
                     :
                     : "r"(local_address(counter)), "r"(turn)
                     : "memory");
}
static inline void arrivals_expect(__local ring_counter *counter, uint bytes)
{
    __asm__ volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;"
                     :
                     : "r"(local_address(counter)), "r"(bytes)
                     : "memory");
}
static inline void bulk_copy(__local void *to, __global const void *from, uint bytes,
                             __local ring_counter *counter)
{
    __asm__ volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        :
        : "r"(local_address(to)), "l"(global_address(from)), "r"(bytes), "r"(local_address(counter))
        : "memory");
}
/* Copies of this item may write what a barrier or a counter has freed of local memory. */
static inline void copies_follow(void)
{
    __asm__ volatile("fence.proxy.async.shared::cta;" : : : "memory");
}
static inline void ring_reclaim(__local ring_counter *counters, int again, int turn)
{
    if (again)
        ring_wait(counters + 1, turn);
}
static inline void ring_fill(__local void *to, __global const void *from, uint bytes,
                             __local ring_counter *counters, int mover)
{
    if (mover == 0) {
        copies_follow(); /* what lanes load does not stay ahead of a bulk copy by itself */
        arrivals_expect(counters, bytes);
        bulk_copy(to, from, bytes, counters);
    }
}
static inline void ring_filled(__local ring_counter *counters)
{
    mem_fence(CLK_LOCAL_MEM_FENCE); /* what the item wrote itself, too */
    __asm__ volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];"
                     :
                     : "r"(local_address(counters))
                     : "memory");
}
static inline void ring_release(__local ring_counter *counters)
{
    __asm__ volatile("mbarrier.arrive.shared.b64 _, [%0];"
                     :
                     : "r"(local_address(counters + 1))
                     : "memory");
}
static inline void store_block(__global void *to, __local const void *from, uint bytes, int lid,
                               int sender, int items)
{
    if (lid == sender)
        __asm__ volatile("fence.proxy.async.shared::cta;\n" /* what was written before is seen */
                         "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
                         "cp.async.bulk.commit_group;"
                         :
                         : "l"(global_address(to)), "r"(local_address(from)), "r"(bytes)
                         : "memory");
}
static inline void stores_done(void)
{
    __asm__ volatile("cp.async.bulk.wait_group 0;" : : : "memory");
}
/* What the items of a part stored before their last barrier, and what this one sent, is there for
 * all who see the word. */
static inline void images_ready(__global ulong *word, ulong call)
{
    __asm__ volatile("st.release.gpu.global.u64 [%0], %1;"
                     :
                     : "l"(global_address(word)), "l"(call)
                     : "memory");
}
static inline void images_wait(__global const ulong *word, ulong call, int mover)
{
    if (mover == 0)
        __asm__ volatile("{ .reg .pred p; .reg .u64 x;\n"
                         "again: ld.acquire.gpu.global.u64 x, [%0];\n"
                         "setp.eq.u64 p, x, %1;\n"
                         "@p bra done;\n"
                         "nanosleep.u32 100;\n"
                         "bra again;\n"
                         "done: fence.proxy.async.global; }"
                         :
                         : "l"(global_address(word)), "l"(call)
                         : "memory");
}
/* One lane of the warp, all of which pass here. NVIDIA's compiler makes a loop over lanes of a bulk
 * copy unless it knows that there is one only. */
static inline int one_lane(int lane)
{
    int one;
    (void)lane;
    __asm__ volatile("{ .reg .pred p; .reg .b32 x;\n"
                     "elect.sync x|p, 0xffffffff;\n"
                     "selp.s32 %0, 1, 0, p; }"
                     : "=r"(one)
                     :
                     : "memory");
    return one;
}
static inline void read_soon(__global const void *from, uint bytes)
{
    const ulong at = global_address(from);
    if ((at & 15) == 0)
        __asm__ volatile("cp.async.bulk.prefetch.L2.global [%0], %1;"
                         :
                         : "l"(at), "r"(bytes)
                         : "memory");
}
/* As fetch of tile.cl, 16 bytes of anything, or zeros if not `there`. */
static inline void copy_16(__local void *to, __global const void *from, int there)
{
    __asm__ volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;"
                     :
                     : "r"(local_address(to)), "l"(global_address(from)), "r"(there ? 16 : 0)
                     : "memory");
}

/* A barrier of the index-th so many items of a work-group: others need not take part. */
static inline void part_barrier(int index, int items)
{
    __asm__ volatile("bar.sync %0, %1;" : : "r"(index + 1), "r"(items) : "memory");
}

/* One in which some of them only make the others wait: those arrive. The others, and all items of a
 * barrier that is not for the whole part, say who they are. */
#define part_barrier_of(who, index, items)                                                         \
    if (who)                                                                                       \
    part_barrier(index, items)
static inline void part_arrive(int index, int items)
{
    __asm__ volatile("bar.arrive %0, %1;" : : "r"(index + 1), "r"(items) : "memory");
}

/* The lanes of a warp see each other's local memory. */
static inline void lanes_sync(void)
{
    __asm__ volatile("bar.warp.sync 0xffffffff;" : : : "memory");
}

/* What they have stored is there for all who wait for a counter that one of them tells afterwards.
 */
#define lanes_stored() lanes_sync()

/* Between what the lanes of a warp read together and what they write there: matrix products read
 * before any lane goes on. All items pass here. */
#define warp_has_read()

/* x of lane 0, for all lanes: tells the compiler that branches on x do not diverge. */
static inline int lanes_uniform(int x)
{
    int y;
    __asm__ volatile("shfl.sync.idx.b32 %0, %1, 0, 0x1f, 0xffffffff;" : "=r"(y) : "r"(x));
    return y;
}

/* Hides from the compiler what x is made of, so that it keeps x and not what follows from it. */
#define HIDE(x) __asm__ volatile("" : "+r"(x))

#else

typedef int ring_counter;
#define MOVERS 0
#define ring_init(counters, stages, fillers, readers)
#define ring_filled(counters)
#define ring_wait(counter, turn) barrier(CLK_LOCAL_MEM_FENCE)
#define ring_reclaim(counters, again, turn) barrier(CLK_LOCAL_MEM_FENCE)
#define ring_release(counters)
#define arrivals_expect(counter, bytes)
#define copies_follow()
#define lanes_stored()
#define stores_done()
#define images_ready(word, call)
#define images_wait(word, call, mover)
#define one_lane(lane) ((lane) == 0)
#define part_barrier(index, items) barrier(CLK_LOCAL_MEM_FENCE)
#define part_barrier_of(who, index, items) barrier(CLK_LOCAL_MEM_FENCE)
#define part_arrive(index, items)
#define lanes_sync() barrier(CLK_LOCAL_MEM_FENCE)
#define warp_has_read() barrier(CLK_LOCAL_MEM_FENCE)
#define lanes_uniform(x) (x)
#define HIDE(x)

static __attribute__((always_inline)) inline void
bulk_copy(__local void *to, __global const void *from, uint bytes, __local ring_counter *counter)
{
    for (uint i = 0; i < bytes / 4; i++)
        ((__local uint *)to)[i] = ((__global const uint *)from)[i];
}
static __attribute__((always_inline)) inline void ring_fill(__local void *to,
                                                            __global const void *from, uint bytes,
                                                            __local ring_counter *counters,
                                                            int mover)
{
    for (uint i = mover; i < bytes / 4; i += get_local_size(0))
        ((__local uint *)to)[i] = ((__global const uint *)from)[i];
}
static __attribute__((always_inline)) inline void
store_block(__global void *to, __local const void *from, uint bytes, int lid, int sender, int items)
{
    for (uint i = lid; i < bytes / 4; i += items)
        ((__global uint *)to)[i] = ((__local const uint *)from)[i];
}
static __attribute__((always_inline)) inline void copy_16(__local void *to,
                                                          __global const void *from, int there)
{
    for (int i = 0; i < 8; i++)
        ((__local ushort *)to)[i] = there ? ((__global const ushort *)from)[i] : 0;
}
#endif

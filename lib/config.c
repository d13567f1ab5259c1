/* What we choose for a device: problem and facts -> the shape of the kernel. Every number that both
 * the host and the kernel need is in struct kda_config; nothing is derived twice.
 *
 * SPDX-License-Identifier: MIT */
#include "internal.h"

static int32_t ceil_div(int32_t a, int32_t b)
{
    return (a + b - 1) / b;
}

static int32_t power_of_two_up(int32_t n)
{
    int32_t p = 1;
    while (p < n)
        p *= 2;
    return p;
}

/* Rows of an item, so that sums over K, a tree over leaves of rows (cl/step.cl), are the same for
 * every layout and number of groups: a power of two where there are groups, and not less than a
 * leaf where rows differ by more than K. */
static int32_t rows_of(const kda_problem *p, const struct kda_config *c)
{
    const int32_t rows = ceil_div(p->key_dim, c->groups);
    if (c->path == KDA_PATH_PTX)
        return rows > 8 ? power_of_two_up(rows) : 8;
    if (c->groups > 1)
        return power_of_two_up(rows);
    return p->state_layout == KDA_STATE_VK && p->key_dim % 4 == 0 ? ceil_div(rows, 4) * 4 : rows;
}

/* A CPU runs a work-group's items one after the other: one row group (no reduction at all) and 128
 * columns a work-group, since each work-group repeats the gates. 16 items of 8 columns were the
 * fastest split of 128 on PoCL 3.1 (EPYC with AVX-512, two cores, 2026-11-29): T 1024, H 8, K = V =
 * 128 in 100 ms, against 125 ms for 8 x 16 and 130 ms for 1 x 128. */
static void choose_cpu(const kda_problem *p, struct kda_config *c)
{
    c->groups = 1;
    c->vec = p->value_dim >= 8 ? 8 : p->value_dim >= 4 ? 4 : 1;
    c->cols = power_of_two_up(ceil_div(p->value_dim, c->vec));
    if (c->cols > 16)
        c->cols = 16;
}

/* A GPU: 16 rows by 4 columns of state in registers and 64 columns a work-group, which reads 256
 * contiguous bytes of each state row. With few sequences and heads half the columns: more
 * work-groups, and half the time of a token. On NVIDIA these are 8 items of 4 columns by 8 rows,
 * elsewhere 16 of 2. Where rows are contiguous, all of them lie side by side: 8 rows of 8 columns,
 * 16 such groups. Where sub-groups exchange lanes, which is Intel, a lane has 128 registers at
 * best, and ocloc (22.43) moves the whole state to memory rather than to spill some: 2 columns.
 *
 * An H200 (driver 580.159, 2026-11-30; bf16, f32 state, K = V = 128, 32 heads), us, each column
 * measured at once; "contiguous": the states' rows, "128": bound to that many registers:
 *     rows x columns, groups x items    64     256    64 of 4 tokens    1      8       1024 tokens
 *     16 x 4, 8 x 16                    72     266    99                8.5    12.8
 *     16 x 4, 8 x 16, 128                             90
 *     32 x 4, 4 x 16                    72     265    96
 *     16 x 8, 8 x 8                     74     268    98
 *      8 x 4, 16 x 8                                                    8.2    13.5    800
 *      8 x 2, 16 x 16                                                   8.1    14.0    813
 *     16 x 2, 8 x 16                                                    8.1    13.3    777
 *     8 x 8, 16 x 4, contiguous         73     269    113
 *     8 x 8, 16 x 8, contiguous         100    359
 *     16 x 8, 8 x 4, contiguous         91     323
 * Single tokens above an empty kernel, by cl/few.cl but for the first row; * slots of a pool:
 *     rows x columns, groups x items    1       1 *     4       1, 96 heads
 *     16 x 2, 8 x 16, cl/step.cl        2.42    2.68    4.64    3.98
 *     16 x 2, 8 x 16                    1.97    2.01    4.29    3.58
 *      8 x 4, 16 x 8                    1.89    1.97    3.98    3.38
 *     the same another day, 25 runs     2.03    2.17    4.13    3.50
 *     common numbers by sub-group, 18   2.02    2.20    4.00    3.42
 * Many tokens of one sequence are a little slower with this shape (1024 at 32 heads: 800). All but
 * the first and last row read slot 0 for skipped sequences; not to, by a branch alone, was 2.12,
 * 2.31, 4.50 and 3.87. */
static void choose_gpu(const struct kda_device *d, const kda_problem *p, struct kda_config *c)
{
    const bool rows_contiguous =
        p->state_layout == KDA_STATE_VK && c->path == KDA_PATH_PTX && p->value_dim >= 8;
    c->vec = rows_contiguous ? 8 : 4;
    c->cols = rows_contiguous ? 4 : 16;
    int32_t rows = rows_contiguous ? 8 : 16;
    const bool few = kda_config_step_groups(p, c, p->max_sequences) < 2 * (int64_t)d->compute_units;
    if (few && !rows_contiguous && c->path == KDA_PATH_PTX) {
        c->cols = 8;
        rows = 8;
    } else if (!rows_contiguous && (few || d->path == KDA_PATH_SUB_GROUPS)) {
        c->vec = 2;
    }
    c->few = few;
    if (p->value_dim < c->vec)
        c->vec = 1;
    const int32_t most = power_of_two_up(ceil_div(p->value_dim, c->vec));
    if (c->cols > most)
        c->cols = most;
    c->groups = power_of_two_up(ceil_div(p->key_dim, rows));
}

/* Bytes of local memory that cl/step.cl declares. */
static cl_ulong local_bytes(const struct kda_config *c)
{
    cl_ulong columns = (cl_ulong)(c->cols * c->vec), ring = c->compact ? 3 : 5;
    cl_ulong tokens = ring * (3 * (cl_ulong)(c->rows * c->groups) + columns + 1);
    cl_ulong parts = 2 * (cl_ulong)c->groups * (2 * columns + 3);
    return (tokens + parts) * sizeof(float);
}

static bool shrink_step(const kda_problem *p, struct kda_config *c)
{
    if (c->cols > 1)
        c->cols /= 2;
    else if (c->groups > 1)
        c->groups /= 2;
    else
        return false;
    c->rows = rows_of(p, c);
    c->few = false; /* lanes may no longer do: has_lanes_for_leaves */
    return true;
}

/* Of the engine mma: items of a work-group of its widest kernel, and the local memory that all of
 * its kernels are made for. */
enum { MMA_ITEMS = 512, MMA_LOCAL_BYTES = 224 * 1024 };

bool kda_config_shrink(const kda_problem *p, struct kda_config *c, enum kda_kernel_id id)
{
    if (id == KDA_KERNEL_STEP)
        return shrink_step(p, c);
    if (kda_is_step(id) || id == KDA_KERNEL_MMA || id == KDA_KERNEL_MMA_PREPARE ||
        id == KDA_KERNEL_MMA_SCAN || id == KDA_KERNEL_MMA_JOIN)
        return false;
    int32_t *size = id == KDA_KERNEL_TABLE                            ? &c->table_wg
                    : id == KDA_KERNEL_SCAN                           ? &c->scan_v
                    : id == KDA_KERNEL_ENTER || id == KDA_KERNEL_EMIT ? &c->gemm_wg
                                                                      : &c->prepare_wg;
    int32_t least = id == KDA_KERNEL_SCAN ? c->scan_vec : 16;
    if (*size <= least)
        return false;
    *size /= 2;
    return true;
}

size_t kda_config_items(const struct kda_config *c, enum kda_kernel_id id)
{
    switch (id) {
    case KDA_KERNEL_STEP:
    case KDA_KERNEL_STEP_NARROW:
    case KDA_KERNEL_STEP_ONE:
    case KDA_KERNEL_STEP_FEW:
        return (size_t)(c->cols * c->groups);
    case KDA_KERNEL_TABLE:
        return (size_t)c->table_wg;
    case KDA_KERNEL_SCAN:
        return (size_t)(c->chunk / c->scan_rows * (c->scan_v / c->scan_vec) *
                        kda_unit_shape(c->unit).lanes);
    case KDA_KERNEL_ENTER:
    case KDA_KERNEL_EMIT:
        return (size_t)c->gemm_wg;
    case KDA_KERNEL_MMA:
    case KDA_KERNEL_MMA_PREPARE:
        return MMA_ITEMS;
    case KDA_KERNEL_MMA_SCAN:
        return (size_t)c->teams * 128;
    case KDA_KERNEL_MMA_JOIN:
        return (size_t)c->padded_k;
    default:
        return (size_t)c->prepare_wg;
    }
}

static kda_status no_work_group(const kda_context *ctx, kda_log_level level)
{
    kda_log(ctx, level,
            "the device's limits (%zu work-items, %llu bytes of local memory) allow no work-group "
            "for this problem",
            ctx->device->max_work_group, (unsigned long long)ctx->device->local_bytes);
    return KDA_UNSUPPORTED;
}

/* Whether cl/few.cl works: a sub-group has a lane for each leaf of a sum, states go in vectors. */
static bool has_lanes_for_leaves(const struct kda_config *c)
{
    const int32_t leaf = c->path == KDA_PATH_PTX ? 8 : c->rows;
    return c->path != KDA_PATH_LOCAL && c->rows * c->groups <= c->lanes * leaf &&
           c->cols * c->groups % c->lanes == 0 && c->vec > 1 && c->rows % 2 == 0;
}

static kda_status choose_step(const kda_context *ctx, const kda_problem *p, struct kda_config *c)
{
    const struct kda_device *d = ctx->device;
    c->compact = d->is_cpu;
    c->vectors = d->has_vectors;
    if (d->is_cpu)
        choose_cpu(p, c);
    else
        choose_gpu(d, p, c);
    c->rows = rows_of(p, c);
    while (kda_config_items(c, KDA_KERNEL_STEP) > d->max_work_group ||
           local_bytes(c) > d->local_bytes)
        if (!shrink_step(p, c))
            return no_work_group(ctx, KDA_LOG_ERROR);
    c->few = c->few && has_lanes_for_leaves(c) && !p->checkpoint_every;
    if (kda_config_step_groups(p, c, p->max_sequences) > INT32_MAX) {
        kda_log(ctx, KDA_LOG_ERROR,
                "kda_problem.max_sequences * value_heads * tiles of value_dim passes 2^31-1 "
                "work-groups");
        return KDA_UNSUPPORTED;
    }
    return KDA_OK;
}

/* Bytes of local memory that cl/prepare.cl declares. */
static cl_ulong prepare_bytes(const struct kda_config *c)
{
    cl_ulong C = (cl_ulong)c->chunk, blocks = C / 16, slab = (cl_ulong)c->slab;
    cl_ulong slabs = 3 * C * (slab + (c->vectors ? 0 : 4)), rows = 128 * blocks * (blocks + 1);
    cl_ulong columns = C * (slab > 32 ? 128 : 64);
    cl_ulong later = rows + (columns > rows + 16 * C ? columns : rows + 16 * C);
    return ((slabs > later ? slabs : later) + blocks * slab + 3 * C) * sizeof(float);
}

/* Bytes of local memory that cl/scan.cl declares. */
static cl_ulong scan_bytes(const struct kda_config *c)
{
    cl_ulong C = (cl_ulong)c->chunk, K = (cl_ulong)c->padded_k, V = (cl_ulong)c->scan_v;
    cl_ulong floats = (K + C) * V;
    if (c->unit > KDA_UNIT_MFMA) /* the image of S */
        floats += K * V;
    if (c->scan_staged)
        floats += 3 * C * (K + 4) + C * (C + 4) + K + C * V;
    return floats * sizeof(float);
}

/* 32 tokens, or what divides the distance of checkpoints. For GEMMs on a GPU 64: half the launches.
 *
 * Tokens x heads, K = V = 128, f32, bounded gate, H200, driver 580.159, 2026-11-30, us:
 *     C     64 x 32    2048 x 32
 *     16    45         700
 *     32    40         518
 *     64    75         611 */
static int32_t choose_chunk(const kda_problem *p, bool is_cpu, kda_engine engine)
{
    if (p->chunk)
        return p->chunk;
    int32_t chunk = engine == KDA_ENGINE_CLBLAST && !is_cpu ? 64 : 32;
    while (chunk > 16 && p->checkpoint_every % chunk)
        chunk /= 2;
    return chunk;
}

void kda_config_pad(const kda_problem *p, struct kda_config *c)
{
    if (!c->chunk)
        return;
    const int32_t wide = c->vectors ? 16 : 4; /* of cl/lanes.cl */
    const int32_t columns = c->scan_vec > wide ? c->scan_vec : wide;
    c->padded_k = ceil_div(p->key_dim, 32) * 32;
    c->padded_v = ceil_div(p->value_dim, columns) * columns;
}

/* Why the matrix-unit engine cannot serve a problem; NULL: it can. On a CPU plain OpenCL C stands
 * in for the matrix units, for tests. */
static const char *mma_obstacle(const kda_context *ctx, const kda_problem *p,
                                const struct kda_config *c)
{
    if (ctx->device->unit)
        return ctx->device->unit == KDA_UNIT_MFMA || p->dtype != KDA_F32
                   ? NULL
                   : "the device's matrix units are for bf16, not for dtype KDA_F32";
    if (p->dtype == KDA_F32)
        return "dtype must be KDA_BF16 or KDA_F16";
    if (p->dtype == KDA_F16 && !(p->flags & KDA_NORM_QK))
        return "dtype KDA_F16 needs KDA_NORM_QK: without it products are of bf16";
    if ((p->key_dim != 64 && p->key_dim != 128) || (p->value_dim != 64 && p->value_dim != 128))
        return "key_dim and value_dim must be 64 or 128";
    if (p->chunk && p->chunk != 64)
        return "chunk must be 0 or 64";
    if (p->checkpoint_every % 64)
        return "checkpoint_every must be a multiple of 64";
    if (ctx->device->max_work_group < MMA_ITEMS)
        return "the device's work-groups are too small";
    if (ctx->device->local_bytes < MMA_LOCAL_BYTES)
        return "the device has less than 224 KiB of local memory";
    if (!ctx->device->is_cpu && (!ctx->device->matrix || c->path != KDA_PATH_PTX))
        return "the device has no matrix units that this library knows";
    return NULL;
}

/* Whether two tiles of 64 columns share a chunk's images, which does not touch the result; and
 * whether long sequences are cut, for which the workspace must hold all chunks. */
static kda_status choose_mma(const kda_context *ctx, const kda_problem *p, struct kda_config *c)
{
    if (ctx->device->is_cpu)
        kda_log(ctx, KDA_LOG_WARN, "no matrix units: plain OpenCL C says what they would, slowly");
    c->engine = KDA_ENGINE_MMA;
    c->chunk = 64;
    c->scan_vec = c->scan_rows = 1; /* no kernel of that kind */
    c->teams = 1;
    kda_config_pad(p, c);
    c->segment = p->max_tokens > p->segment ? p->segment / c->chunk : 0;
    if (c->segment && !kda_workspace_holds_all(ctx, p, c)) {
        kda_log(ctx, KDA_LOG_WARN,
                "kda_problem.segment: no sequence is cut, as a workspace of all %lld chunks is too "
                "large",
                (long long)c->piece);
        c->segment = 0;
    }
    if (c->segment && !ctx->device->is_cpu)
        kda_log(ctx, KDA_LOG_WARN, "kda_problem.segment: never run on hardware");
    const int64_t chunks = kda_workspace_chunks(c, p->max_tokens, p->max_sequences);
    const int64_t scans = p->max_sequences + (c->segment ? kda_workspace_segments(c, chunks) : 0);
    const int64_t columns = p->value_dim + (c->segment ? p->key_dim : 0);
    const int64_t one = kda_shares_ns(ctx, p, 1, scans, columns, chunks);
    const int64_t two = kda_shares_ns(ctx, p, 2, scans, columns, chunks);
    if (p->value_dim == 128 && columns % 128 == 0 && two < one)
        c->teams = 2;
    c->scan_v = 64 * c->teams;
    return c->segment ? KDA_OK : kda_workspace_choose(ctx, p, c); /* holds all, or what fits */
}

/* Whether what the caller asks for is what published models compute: beta below 1, and no gate by
 * which memory is forgotten at once, behind which f16 would have lost the digits of small values.
 */
static bool is_tame(const kda_problem *p)
{
    return (p->gate == KDA_GATE_SOFTPLUS || p->gate == KDA_GATE_BOUNDED) &&
           p->beta == KDA_BETA_SIGMOID;
}

/* Whether AUTO's engine is mma: on NVIDIA's matrix units, for tensors of bf16 with operands in f16,
 * in no more memory than the caller allows, unless a row has a shape for another engine's scan.
 * Tensors of f16 show the errors of such operands, which those of bf16 hide. */
static bool auto_takes_mma(const kda_context *ctx, const kda_problem *p,
                           const struct kda_tuned *row, const struct kda_config *c)
{
    struct kda_config mma = *c;
    if (p->engine != KDA_ENGINE_AUTO || !ctx->device->matrix || !(p->flags & KDA_NORM_QK) ||
        p->dtype != KDA_BF16 || !is_tame(p) || mma_obstacle(ctx, p, c) || (row && row->scan_v))
        return false;
    mma.engine = KDA_ENGINE_MMA;
    mma.chunk = 64;
    mma.teams = 1;
    kda_config_pad(p, &mma);
    return !p->max_workspace || kda_workspace_least(p, &mma) <= p->max_workspace;
}

/* One item a work-group where an item takes whole vectors: its loops are the compiler's to arrange,
 * and no barrier splits them. Elsewhere a role of cl/chunk.cl each, and all channels at once where
 * local memory has room for two work-groups.
 *
 * kda_prepare, H 32, K = V = 128, f32, bounded gate, 2026-11-29:
 *     PoCL 3.1, EPYC with AVX-512, C 32, T 512    1 item 7.3 ms, 16 items 9.2, 64 scalar ones 50
 *     H200, driver 580.159, C 64, T 4096          512 items of 64 registers, slabs of 128: 0.52 ms,
 *         of 64: 0.55, of 32: 0.62; 512 items of 80 registers, which leave room for one work-group
 *         only: 0.69; 256 items of 128 registers: 0.58
 *     the same, C 32, 256 items, 2026-11-30       of 80 registers T 64: 23 us, T 2048: 189; of 64:
 *         26 and 186; of 128: 24 and 226 */
static void choose_prepare(const struct kda_device *d, const kda_problem *p, struct kda_config *c)
{
    c->table_wg = c->vectors ? 1 : 256;
    while ((size_t)c->table_wg > d->max_work_group)
        c->table_wg /= 2;
    c->prepare_wg = c->vectors ? 1 : 8 * c->chunk;
    while ((size_t)c->prepare_wg > d->max_work_group)
        c->prepare_wg /= 2;
    c->slab = ceil_div(p->key_dim, 32) * 32;
    if (2 * prepare_bytes(c) > d->local_bytes)
        c->slab = 32;
}

/* False: no shape fits the device.
 *
 * kda_scan, H 32, K = V = 128, f32, 2026-11-29 (H200: 2026-11-30, driver 580.159):
 *     columns x a vector x tokens    H200, C 32, T 2048    PoCL 3.1, C 64, T 512
 *     32 x 4 x 2                     0.33 ms
 *     32 x 8 x 1                     0.35
 *     32 x 4 x 1                     0.36
 *     16 x 4 x 2                     0.37
 *     64 x 8 x 2                     0.67
 *     64 x 16 x 4                                          7 ms
 *     64 x 8 x 4                                           11
 * Not staged, in chunks of 64 tokens it took more than twice as long on the H200. */
static bool choose_scan(const struct kda_device *d, const kda_problem *p,
                        const struct kda_tuned *row, struct kda_config *c)
{
    const bool given = row && row->scan_v;
    const struct kda_unit_shape unit = kda_unit_shape(c->unit);
    c->scan_vec = c->unit ? unit.cols : given ? row->scan_vec : c->vectors ? 16 : d->is_cpu ? 8 : 4;
    c->scan_rows = c->unit ? unit.rows : given ? row->scan_rows : d->is_cpu ? 4 : 2;
    c->scan_v = given ? row->scan_v : d->is_cpu ? 64 : 32;
    kda_config_pad(p, c);
    while (c->scan_v > c->scan_vec && c->scan_v / 2 >= c->padded_v)
        c->scan_v /= 2;
    c->scan_v = c->scan_v < c->scan_vec ? c->scan_vec : c->scan_v;
    c->scan_staged = c->path == KDA_PATH_PTX && !c->unit;
    if (scan_bytes(c) > d->local_bytes)
        c->scan_staged = false;
    while (scan_bytes(c) > d->local_bytes ||
           kda_config_items(c, KDA_KERNEL_SCAN) > d->max_work_group) {
        if (c->scan_v > c->scan_vec)
            c->scan_v /= 2;
        else if (c->scan_rows < 16 && !c->unit)
            c->scan_rows *= 2;
        else
            return false;
    }
    return true;
}

/* Sequences of so many tokens take less time token by token, by what was measured on 2026-11-29
 * and 30 with a bounded gate and K = V = 128, bf16 unless said:
 *
 *     device                       tokens x heads    recurrent    in chunks
 *     H200, driver 580.159         32 x 32           27 us        38 us
 *                                  48 x 32           38           42
 *                                  48 x 96           56           (40 x 96) 78
 *     PoCL 3.1, EPYC, two cores    16 x 32           2.0 ms       2.9 ms
 *                                  24 x 32           2.8          3.1
 *                                  32 x 32           3.8          3.1
 *     llvmpipe, the same machine   32 x 4            20           14
 *                                  64 x 4            40           19 */
static int32_t step_limit(const kda_context *ctx, const kda_problem *p, const struct kda_tuned *row,
                          const struct kda_config *c)
{
    if (row && row->recurrent_up_to >= 0)
        return row->recurrent_up_to;
    if (ctx->device->is_cpu)
        return 27;
    const bool mma = p->engine == KDA_ENGINE_MMA && !ctx->device->unit;
    return mma || auto_takes_mma(ctx, p, row, c) ? 28 : 48;
}

static kda_status choose_chunkwise(const kda_context *ctx, const kda_problem *p,
                                   const struct kda_tuned *row, struct kda_config *c)
{
    const struct kda_device *d = ctx->device;
    c->engine = p->engine == KDA_ENGINE_CLBLAST ? KDA_ENGINE_CLBLAST : KDA_ENGINE_FUSED;
    c->gemm_wg = 64;
    while ((size_t)c->gemm_wg > d->max_work_group)
        c->gemm_wg /= 2;
    c->chunk = choose_chunk(p, d->is_cpu, c->engine);
    c->step_limit = p->schedule == KDA_SCHEDULE_CHUNKWISE ? 0 : step_limit(ctx, p, row, c);
    choose_prepare(d, p, c);
    if ((p->engine == KDA_ENGINE_MMA && !d->unit) || auto_takes_mma(ctx, p, row, c))
        return choose_mma(ctx, p, c);
    if (p->engine == KDA_ENGINE_MMA) {
        kda_log(ctx, KDA_LOG_WARN, "matrix units of this kind (%s): never run on hardware",
                kda_unit_shape(d->unit).name);
        c->engine = KDA_ENGINE_MMA;
        c->unit = d->unit;
    }
    if (!choose_scan(d, p, row, c))
        return no_work_group(ctx, row ? KDA_LOG_WARN : kda_no_chunks_level(p));
    return kda_workspace_choose(ctx, p, c);
}

static kda_status choose_schedule(const kda_context *ctx, const kda_problem *p,
                                  const struct kda_tuned *row, struct kda_config *c)
{
    c->step_limit = INT32_MAX;
    bool checkpoints_fit = p->checkpoint_every % (p->chunk ? p->chunk : 16) == 0;
    if (p->schedule == KDA_SCHEDULE_RECURRENT)
        return KDA_OK;
    const char *obstacle = mma_obstacle(ctx, p, c);
    if (row && row->engine == KDA_ENGINE_MMA && !ctx->device->unit &&
        (!(p->flags & KDA_NORM_QK) || !is_tame(p)))
        obstacle =
            "without KDA_NORM_QK, a raw gate and KDA_BETA_SIGMOID only a caller can ask for it";
    if (obstacle && p->engine == KDA_ENGINE_MMA) {
        kda_log(ctx, row ? KDA_LOG_WARN : KDA_LOG_ERROR, "%s: KDA_ENGINE_MMA: %s",
                row ? "kda_context_params.tuned" : "kda_problem.engine", obstacle);
        return KDA_UNSUPPORTED;
    }
    if (p->schedule == KDA_SCHEDULE_AUTO &&
        (p->max_tokens <= step_limit(ctx, p, row, c) || !checkpoints_fit))
        return KDA_OK;
    kda_status st = choose_chunkwise(ctx, p, row, c);
    if (st != KDA_UNSUPPORTED || row || p->schedule != KDA_SCHEDULE_AUTO)
        return st;
    c->chunk = 0; /* a warning has said why there are none */
    c->step_limit = INT32_MAX;
    return KDA_OK;
}

kda_status kda_config_choose(const kda_context *ctx, const kda_problem *p,
                             const struct kda_tuned *row, enum kda_path path, struct kda_config *c)
{
    c->path = path;
    c->lanes = path == KDA_PATH_LOCAL ? 1 : ctx->device->lanes;
    kda_status st = choose_step(ctx, p, c);
    return st ? st : choose_schedule(ctx, p, row, c);
}

int64_t kda_config_step_groups(const kda_problem *p, const struct kda_config *c, int64_t sequences)
{
    return sequences * p->value_heads * ceil_div(p->value_dim, c->cols * c->vec);
}

int64_t kda_config_scan_groups(const kda_problem *p, const struct kda_config *c, int64_t scans,
                               int64_t columns)
{
    return scans * p->value_heads * ((columns + c->scan_v - 1) / c->scan_v);
}

/* From a configuration to a kernel: the options, the embedded sources, the build log, and the
 * programs that a context has already, built by it or read from its cache. Those of a plan are
 * built side by side where that is faster.
 *
 * SPDX-License-Identifier: MIT */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "internal.h"
#include "programs.h"

/* Sources of a program, one after the other; NULL where there are fewer. */
enum { SOURCES = 16 };
typedef const char *sources[SOURCES];

struct entry {
    char key[2560];
    cl_program program;
    bool keep; /* not in the cache yet */
    struct entry *next;
};

/* A program that is asked for, by its first four members; the others start as zero. */
struct request {
    const char *name; /* for the log */
    sources source;
    char options[1024];
    kda_log_level failure; /* level at which it is reported that it does not build */
    struct entry *entry;
    bool is_new;    /* the entry is not among the context's yet */
    bool is_source; /* its program is not built yet */
    cl_int err;     /* of the build, which took so long */
    double ms;
};

struct kda_programs {
    pthread_mutex_t lock; /* also held while building: nothing is built twice at once */
    struct entry *first;
};

struct kda_programs *kda_programs_create(void)
{
    struct kda_programs *programs = calloc(1, sizeof *programs);
    if (programs)
        pthread_mutex_init(&programs->lock, NULL);
    return programs;
}

void kda_programs_destroy(struct kda_programs *programs)
{
    if (!programs)
        return;
    while (programs->first) {
        struct entry *e = programs->first;
        programs->first = e->next;
        clReleaseProgram(e->program);
        free(e);
    }
    pthread_mutex_destroy(&programs->lock);
    free(programs);
}

static void format_options(const kda_problem *p, const struct kda_config *c, char *text, size_t n)
{
    snprintf(text, n,
             "-cl-std=CL1.2 -DKDA_K=%d -DKDA_DTYPE=%d -DKDA_G_DTYPE=%d -DKDA_BETA_DTYPE=%d "
             "-DKDA_OUT_DTYPE=%d -DKDA_STATE_DTYPE=%d -DKDA_GATE=%d -DKDA_GATE_PER_HEAD=%d "
             "-DKDA_BETA=%d -DKDA_RULE=%d -DKDA_NORM_QK=%d -DKDA_STATE_LAYOUT=%d "
             "-DKDA_HEAD_MAP=%d -DKDA_PATH=%d -DKDA_LANES=%d -DKDA_ROWS=%d -DKDA_GROUPS=%d "
             "-DKDA_COLS=%d -DKDA_VEC=%d -DKDA_CHUNK=%d -DKDA_TABLE_WG=%d -DKDA_PREPARE_WG=%d "
             "-DKDA_SCAN_V=%d "
             "-DKDA_SCAN_VEC=%d -DKDA_SCAN_ROWS=%d -DKDA_COMPACT=%d -DKDA_VECTORS=%d -DKDA_SLAB=%d "
             "-DKDA_SCAN_STAGED=%d -DKDA_UNIT=%d -DKDA_CHECKPOINTS=%d",
             (int)p->key_dim, (int)p->dtype, (int)p->g_dtype, (int)p->beta_dtype, (int)p->out_dtype,
             (int)p->state_dtype, (int)p->gate, !!(p->flags & KDA_GATE_PER_HEAD), (int)p->beta,
             (int)p->rule, !!(p->flags & KDA_NORM_QK), (int)p->state_layout, (int)p->head_map,
             (int)c->path, (int)c->lanes, (int)c->rows, (int)c->groups, (int)c->cols, (int)c->vec,
             (int)c->chunk, (int)c->table_wg, (int)c->prepare_wg, (int)c->scan_v, (int)c->scan_vec,
             (int)c->scan_rows, (int)c->compact, (int)c->vectors, (int)c->slab, (int)c->scan_staged,
             (int)c->unit, p->checkpoint_every > 0);
    size_t used = strlen(text);
    /* On a CPU not where a tile has columns that are not there: loops keep those from being stored,
     * and would become branches (see "Barriers" in cl/step.cl). */
    if (c->teams || (p->value_dim <= KDA_KNOWN_COLUMNS &&
                     (!c->compact || p->value_dim % (c->cols * c->vec) == 0)))
        used += (size_t)snprintf(text + used, n - used, " -DKDA_V=%d", (int)p->value_dim);
    if (c->teams)
        used += (size_t)snprintf(
            text + used, n - used, " -DKDA_TEAMS=%d -DKDA_PIECES=%d", (int)c->teams,
            c->piece < kda_workspace_chunks(c, p->max_tokens, p->max_sequences));
    if (c->segment)
        snprintf(text + used, n - used, " -DKDA_SEGMENTS=1");
}

/* What a build took, and its log, line by line. */
static void log_build(const kda_context *ctx, kda_log_level level, const struct request *r)
{
    const cl_program program = r->entry->program;
    size_t size = 0;
    kda_log(ctx, level, "clBuildProgram of %s: %.0f ms with %s", r->name, r->ms, r->options);
    clGetProgramBuildInfo(program, ctx->device->id, CL_PROGRAM_BUILD_LOG, 0, NULL, &size);
    char *text = size > 1 ? calloc(size + 1, 1) : NULL;
    if (!text)
        return;
    clGetProgramBuildInfo(program, ctx->device->id, CL_PROGRAM_BUILD_LOG, size, text, NULL);
    char *rest;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        kda_log(ctx, level, "  %s", line);
    free(text);
}

/* All that a built program depends on. */
static void format_key(const struct kda_device *d, const sources source, const char *options,
                       char *key, size_t n)
{
    uint64_t sum = KDA_CACHE_HASH;
    for (size_t i = 0; i < SOURCES; i++)
        if (source[i])
            sum = kda_cache_hash(sum, source[i], strlen(source[i]));
    snprintf(key, n, "%s\n%s\n%s\n%s\n%s\n%016llx\n%s\n", kda_version(), kda_device_fact(d, "name"),
             kda_device_fact(d, "vendor"), kda_device_fact(d, "version"),
             kda_device_fact(d, "driver"), (unsigned long long)sum, options);
}

/* Finds a program among those that the context has or in its cache, or has it ready to be built. */
static kda_status look_up(const kda_context *ctx, struct request *r)
{
    const struct kda_device *d = ctx->device;
    cl_int err;
    cl_uint count = 0;
    const char *text[SOURCES];
    struct entry *e = calloc(1, sizeof *e);
    if (!e)
        return kda_no_memory(ctx, "a program", sizeof *e);
    format_key(d, r->source, r->options, e->key, sizeof e->key);
    for (r->entry = d->programs->first; r->entry; r->entry = r->entry->next) {
        if (!strcmp(r->entry->key, e->key)) {
            free(e);
            return KDA_OK;
        }
    }
    r->entry = e;
    r->is_new = true;
    if (d->cache && (e->program = kda_cache_load(ctx, e->key, r->options)))
        return KDA_OK;
    r->is_source = true;
    e->keep = d->cache;
    for (size_t i = 0; i < SOURCES; i++)
        if (r->source[i])
            text[count++] = r->source[i];
    e->program = clCreateProgramWithSource(d->context, count, text, NULL, &err);
    return kda_cl_check(ctx, err, "clCreateProgramWithSource");
}

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

struct builds {
    cl_device_id device;
    struct request *request[KDA_STAGES];
    int64_t count;
};

static void build(void *arg, int64_t i, int32_t lane)
{
    const struct builds *b = arg;
    struct request *r = b->request[i];
    (void)lane;
    const double start = now_ms();
    r->err = clBuildProgram(r->entry->program, 1, &b->device, r->options, NULL, NULL);
    r->ms = now_ms() - start;
}

/* Builds what has to be, each program in a thread. Not on CPUs, whose drivers have a lock around
 * their compiler (a plan for 8192 tokens, two cores, 2026-11-30: Intel's runtime 2.8 s at once, 2.5
 * in turn; llvmpipe 2.3 and 2.4). */
static void build_all(const kda_context *ctx, struct request *requests, size_t n)
{
    struct builds b = {.device = ctx->device->id};
    for (size_t i = 0; i < n; i++)
        if (requests[i].is_source)
            b.request[b.count++] = requests + i;
    struct kda_pool *pool =
        b.count > 1 && ctx->device->builds_at_once ? kda_pool_create(ctx, (int32_t)b.count) : NULL;
    if (pool)
        kda_pool_run(pool, b.count, kda_pool_threads(pool), build, &b);
    for (int64_t i = 0; !pool && i < b.count; i++)
        build(&b, i, 0);
    kda_pool_destroy(pool);
}

/* Forgets an entry that is not to be among the context's. */
static void discard(struct request *r)
{
    if (!r->is_new)
        return;
    if (r->entry->program)
        clReleaseProgram(r->entry->program);
    free(r->entry);
}

/* Adds a program that is there to the context's, or says why there is none. */
static kda_status settle(const kda_context *ctx, struct request *r)
{
    struct kda_programs *programs = ctx->device->programs;
    struct entry *e = r->entry;
    if (!r->is_new)
        return KDA_OK;
    if (r->is_source)
        log_build(ctx, r->err ? r->failure : KDA_LOG_DEBUG, r);
    if (!r->err) {
        e->next = programs->first;
        programs->first = e;
        return KDA_OK;
    }
    discard(r);
    if (r->err == CL_OUT_OF_HOST_MEMORY)
        return kda_cl_check(ctx, r->err, "clBuildProgram");
    kda_log(ctx, r->failure, "clBuildProgram failed: %s (%d)", kda_cl_error_name(r->err),
            (int)r->err);
    return KDA_COMPILE;
}

/* The programs that are asked for. Called with the lock held. */
static kda_status get(const kda_context *ctx, struct request *requests, size_t n)
{
    kda_status st = KDA_OK;
    size_t known = 0;
    while (!st && known < n)
        st = look_up(ctx, requests + known++);
    while (st && known > 0)
        discard(requests + --known);
    if (st)
        return st;
    build_all(ctx, requests, n);
    for (size_t i = 0; i < n; i++) {
        kda_status one = settle(ctx, requests + i);
        st = st ? st : one;
    }
    return st;
}

static kda_status make_kernel(kda_context *ctx, struct request *r, const char *name,
                              cl_kernel *kernel)
{
    struct kda_programs *programs = ctx->device->programs;
    cl_int err = CL_SUCCESS;
    pthread_mutex_lock(&programs->lock);
    kda_status st = get(ctx, r, 1);
    if (!st)
        *kernel = clCreateKernel(r->entry->program, name, &err);
    pthread_mutex_unlock(&programs->lock);
    return st ? st : kda_cl_check(ctx, err, "clCreateKernel");
}

/* What a stage's program is called in the log, and what is behind args.h, tile.cl and common.cl. */
static const struct {
    const char *name, *source[SOURCES - 3];
} stages[KDA_STAGES] = {
    [KDA_STAGE_STEP] = {"kda_step", {state_cl, sums_cl, step_cl}},
    [KDA_STAGE_STEP_NARROW] = {"kda_step (narrow)", {state_cl, sums_cl, step_cl}},
    [KDA_STAGE_STEP_ONE] = {"kda_step (one token)", {state_cl, sums_cl, step_cl}},
    [KDA_STAGE_STEP_FEW] = {"kda_step (one token, few groups)", {state_cl, sums_cl, few_cl}},
    [KDA_STAGE_TABLE] = {"kda_table", {table_cl}},
    [KDA_STAGE_PREPARE] = {"kda_prepare", {lanes_cl, chunk_cl, slab_cl, triangle_cl, prepare_cl}},
    [KDA_STAGE_SCAN] = {"kda_scan", {unit_cl, scan_cl}},
    [KDA_STAGE_GEMM] = {"kda_enter, kda_emit", {gemm_cl}},
    [KDA_STAGE_MMA] = {"kda_mma",
                       {copies_cl, operand_cl, matrix_cl, warp_cl, mma_order_cl, mma_segments_cl,
                        mma_unit_cl, mma_operands_cl, mma_rows_cl, mma_prepare_cl, mma_jobs_cl,
                        mma_scan_cl, mma_cl}},
};

static struct request request_of(const kda_problem *p, const struct kda_config *c,
                                 enum kda_stage stage)
{
    struct request r = {.name = stages[stage].name,
                        .source = {args_h, tile_cl, common_cl},
                        .failure = KDA_LOG_WARN};
    char *const options = r.options;
    memcpy(r.source + 3, stages[stage].source, sizeof stages[stage].source);
    format_options(p, c, options, sizeof r.options);
    if ((stage == KDA_STAGE_STEP && kda_config_steps(c) && !c->compact) ||
        stage == KDA_STAGE_STEP_FEW)
        strcat(options, " -DKDA_WIDE=1");
    if (stage == KDA_STAGE_STEP_ONE)
        strcat(options, " -DKDA_WIDE=1 -DKDA_ONE=1");
    /* 512 items of kda_step on a multiprocessor. */
    if (stage >= KDA_STAGE_STEP_FEW && stage <= KDA_STAGE_STEP_NARROW && c->path == KDA_PATH_PTX)
        strcat(options, " -cl-nv-maxrregcount=128");
    if (stage == KDA_STAGE_STEP_NARROW)
        strcat(options, " -DKDA_WIDE=0");
    /* Two work-groups of kda_prepare with 512 items on a multiprocessor, three with 256. */
    if (stage == KDA_STAGE_PREPARE && c->path == KDA_PATH_PTX)
        strcat(options,
               c->prepare_wg > 256 ? " -cl-nv-maxrregcount=64" : " -cl-nv-maxrregcount=80");
    return r;
}

kda_status kda_programs_build(kda_context *ctx, const kda_problem *p, const struct kda_config *c,
                              const bool wanted[KDA_STAGES])
{
    struct kda_programs *programs = ctx->device->programs;
    struct request requests[KDA_STAGES];
    size_t n = 0;
    for (int stage = KDA_STAGES - 1; stage >= 0; stage--) /* those that take longest come first */
        if (wanted[stage])
            requests[n++] = request_of(p, c, (enum kda_stage)stage);
    pthread_mutex_lock(&programs->lock);
    kda_status st = get(ctx, requests, n);
    pthread_mutex_unlock(&programs->lock);
    return st;
}

kda_status kda_program_kernel(kda_context *ctx, const kda_problem *p, const struct kda_config *c,
                              enum kda_stage stage, const char *name, cl_kernel *kernel)
{
    struct request r = request_of(p, c, stage);
    return make_kernel(ctx, &r, name, kernel);
}

kda_status kda_program_probe(kda_context *ctx, bool matrix, const char *text, const char *options,
                             const char *name, cl_kernel *kernel)
{
    struct request r = {.name = name,
                        .source = {args_h, tile_cl, common_cl, unit_cl, matrix ? copies_cl : NULL,
                                   matrix ? operand_cl : NULL, matrix ? matrix_cl : NULL, text},
                        .failure = KDA_LOG_DEBUG};
    strcpy(r.options, options);
    return make_kernel(ctx, &r, name, kernel);
}

void kda_programs_keep(const kda_context *ctx)
{
    struct kda_programs *programs = ctx->device->programs;
    pthread_mutex_lock(&programs->lock);
    for (struct entry *e = programs->first; e; e = e->next) {
        if (e->keep)
            kda_cache_store(ctx, e->key, e->program);
        e->keep = false;
    }
    pthread_mutex_unlock(&programs->lock);
}

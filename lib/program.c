/* From a configuration to a kernel: the options, the embedded sources, the build log, and the
 * programs that a context has already, built by it or read from its cache.
 *
 * SPDX-License-Identifier: MIT */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"
#include "programs.h"

/* Sources of a program, one after the other; NULL where there are fewer. */
enum { SOURCES = 13 };
typedef const char *sources[SOURCES];

struct entry {
    char key[2560];
    cl_program program;
    bool keep; /* not in the cache yet */
    struct entry *next;
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
             "-DKDA_SCAN_STAGED=%d -DKDA_UNIT=%d",
             (int)p->key_dim, (int)p->dtype, (int)p->g_dtype, (int)p->beta_dtype, (int)p->out_dtype,
             (int)p->state_dtype, (int)p->gate, !!(p->flags & KDA_GATE_PER_HEAD), (int)p->beta,
             (int)p->rule, !!(p->flags & KDA_NORM_QK), (int)p->state_layout, (int)p->head_map,
             (int)c->path, (int)c->lanes, (int)c->rows, (int)c->groups, (int)c->cols, (int)c->vec,
             (int)c->chunk, (int)c->table_wg, (int)c->prepare_wg, (int)c->scan_v, (int)c->scan_vec,
             (int)c->scan_rows, (int)c->compact, (int)c->vectors, (int)c->slab, (int)c->scan_staged,
             (int)c->unit);
    size_t used = strlen(text);
    /* On a CPU not where a tile has columns that are not there: loops keep those from being stored,
     * and would become branches (see "Barriers" in cl/step.cl). */
    if (c->teams || (p->value_dim <= KDA_KNOWN_COLUMNS &&
                     (!c->compact || p->value_dim % (c->cols * c->vec) == 0)))
        used += (size_t)snprintf(text + used, n - used, " -DKDA_V=%d", (int)p->value_dim);
    if (c->teams)
        snprintf(text + used, n - used, " -DKDA_TEAMS=%d", (int)c->teams);
}

/* The build log, line by line. */
static void log_build(const kda_context *ctx, kda_log_level level, cl_program program,
                      const char *options)
{
    size_t size = 0;
    kda_log(ctx, level, "clBuildProgram with %s", options);
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

/* failure: level at which a program that does not build is reported. */
static kda_status build(const kda_context *ctx, const sources source, const char *options,
                        kda_log_level failure, cl_program *out)
{
    cl_int err;
    cl_uint count = 0;
    const char *text[SOURCES];
    for (size_t i = 0; i < SOURCES; i++)
        if (source[i])
            text[count++] = source[i];
    cl_program program = clCreateProgramWithSource(ctx->device->context, count, text, NULL, &err);
    if (err)
        return kda_cl_check(ctx, err, "clCreateProgramWithSource");
    err = clBuildProgram(program, 1, &ctx->device->id, options, NULL, NULL);
    log_build(ctx, err ? failure : KDA_LOG_DEBUG, program, options);
    if (!err) {
        *out = program;
        return KDA_OK;
    }
    clReleaseProgram(program);
    if (err == CL_OUT_OF_HOST_MEMORY)
        return kda_cl_check(ctx, err, "clBuildProgram");
    kda_log(ctx, failure, "clBuildProgram failed: %s (%d)", kda_cl_error_name(err), (int)err);
    return KDA_COMPILE;
}

/* Fills in an entry whose key is set. */
static kda_status read_or_build(const kda_context *ctx, const sources source, const char *options,
                                kda_log_level failure, struct entry *e)
{
    if (ctx->device->cache)
        e->program = kda_cache_load(ctx, e->key, options);
    if (e->program)
        return KDA_OK;
    e->keep = ctx->device->cache;
    return build(ctx, source, options, failure, &e->program);
}

/* The program of some sources and options. Called with the lock held. */
static kda_status find_or_build(const kda_context *ctx, const sources source, const char *options,
                                kda_log_level failure, cl_program *program)
{
    struct kda_programs *programs = ctx->device->programs;
    struct entry *e = calloc(1, sizeof *e);
    if (!e)
        return kda_no_memory(ctx, "a program", sizeof *e);
    format_key(ctx->device, source, options, e->key, sizeof e->key);
    for (const struct entry *old = programs->first; old; old = old->next) {
        if (!strcmp(old->key, e->key)) {
            free(e);
            *program = old->program;
            return KDA_OK;
        }
    }
    kda_status st = read_or_build(ctx, source, options, failure, e);
    if (st) {
        free(e);
        return st;
    }
    e->next = programs->first;
    programs->first = e;
    *program = e->program;
    return KDA_OK;
}

static kda_status make_kernel(kda_context *ctx, const sources source, const char *options,
                              kda_log_level failure, const char *name, cl_kernel *kernel)
{
    struct kda_programs *programs = ctx->device->programs;
    cl_program program = NULL;
    cl_int err = CL_SUCCESS;
    pthread_mutex_lock(&programs->lock);
    kda_status st = find_or_build(ctx, source, options, failure, &program);
    if (!st)
        *kernel = clCreateKernel(program, name, &err);
    pthread_mutex_unlock(&programs->lock);
    return st ? st : kda_cl_check(ctx, err, "clCreateKernel");
}

kda_status kda_program_kernel(kda_context *ctx, const kda_problem *p, const struct kda_config *c,
                              enum kda_stage stage, const char *name, cl_kernel *kernel)
{
    static const char *const stages[][SOURCES - 3] = {
        [KDA_STAGE_STEP] = {state_cl, step_cl},
        [KDA_STAGE_STEP_NARROW] = {state_cl, step_cl},
        [KDA_STAGE_STEP_ONE] = {state_cl, step_cl},
        [KDA_STAGE_TABLE] = {table_cl},
        [KDA_STAGE_PREPARE] = {lanes_cl, chunk_cl, slab_cl, triangle_cl, prepare_cl},
        [KDA_STAGE_SCAN] = {unit_cl, scan_cl},
        [KDA_STAGE_GEMM] = {gemm_cl},
        [KDA_STAGE_MMA] = {copies_cl, matrix_cl, warp_cl, mma_order_cl, mma_operands_cl,
                           mma_rows_cl, mma_prepare_cl, mma_jobs_cl, mma_scan_cl, mma_cl},
    };
    char options[1024];
    format_options(p, c, options, sizeof options);
    if (stage == KDA_STAGE_STEP && !c->compact)
        strcat(options, " -DKDA_WIDE=1");
    if (stage == KDA_STAGE_STEP_ONE)
        strcat(options, " -DKDA_WIDE=1 -DKDA_ONE=1");
    /* 512 items of kda_step on a multiprocessor. */
    if (stage <= KDA_STAGE_STEP_ONE && c->path == KDA_PATH_PTX)
        strcat(options, " -cl-nv-maxrregcount=128");
    if (stage == KDA_STAGE_STEP_NARROW)
        strcat(options, " -DKDA_WIDE=0");
    /* Two work-groups of kda_prepare with 512 items on a multiprocessor, three with 256. */
    if (stage == KDA_STAGE_PREPARE && c->path == KDA_PATH_PTX)
        strcat(options,
               c->prepare_wg > 256 ? " -cl-nv-maxrregcount=64" : " -cl-nv-maxrregcount=80");
    sources source = {args_h, tile_cl, common_cl};
    for (int i = 3; i < SOURCES; i++)
        source[i] = stages[stage][i - 3];
    return make_kernel(ctx, source, options, KDA_LOG_WARN, name, kernel);
}

kda_status kda_program_probe(kda_context *ctx, bool matrix, const char *text, const char *options,
                             const char *name, cl_kernel *kernel)
{
    const sources source = {
        args_h, tile_cl, common_cl, unit_cl, matrix ? copies_cl : NULL, matrix ? matrix_cl : NULL,
        text};
    return make_kernel(ctx, source, options, KDA_LOG_DEBUG, name, kernel);
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

/* From a configuration to a kernel: the options, the embedded sources, the build log, and the
 * programs that a context has built already.
 *
 * SPDX-License-Identifier: MIT */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"
#include "programs.h"

struct entry {
    enum kda_stage stage;
    char options[1024];
    cl_program program;
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
             "-DKDA_COLS=%d -DKDA_VEC=%d -DKDA_CHUNK=%d -DKDA_PREPARE_WG=%d -DKDA_SCAN_V=%d "
             "-DKDA_SCAN_VEC=%d -DKDA_SCAN_ROWS=%d -DKDA_COMPACT=%d",
             (int)p->key_dim, (int)p->dtype, (int)p->g_dtype, (int)p->beta_dtype, (int)p->out_dtype,
             (int)p->state_dtype, (int)p->gate, !!(p->flags & KDA_GATE_PER_HEAD), (int)p->beta,
             (int)p->rule, !!(p->flags & KDA_NORM_QK), (int)p->state_layout, (int)p->head_map,
             (int)c->path, (int)c->lanes, (int)c->rows, (int)c->groups, (int)c->cols, (int)c->vec,
             (int)c->chunk, (int)c->prepare_wg, (int)c->scan_v, (int)c->scan_vec, (int)c->scan_rows,
             (int)c->compact);
    if (c->engine == KDA_ENGINE_MMA) {
        size_t used = strlen(text);
        snprintf(text + used, n - used, " -DKDA_V=%d -DKDA_TEAMS=%d", (int)p->value_dim,
                 (int)c->teams);
    }
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
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        kda_log(ctx, level, "  %s", line);
    free(text);
}

/* failure: level at which a program that does not build is reported. */
static kda_status build(const kda_context *ctx, cl_uint count, const char **sources,
                        const char *options, kda_log_level failure, cl_program *out)
{
    cl_int err;
    cl_program program =
        clCreateProgramWithSource(ctx->device->context, count, sources, NULL, &err);
    if (err)
        return kda_cl_check(ctx, err, "clCreateProgramWithSource");
    err = clBuildProgram(program, 1, &ctx->device->id, options, NULL, NULL);
    log_build(ctx, err ? failure : KDA_LOG_DEBUG, program, options);
    if (!err) {
        *out = program;
        return KDA_OK;
    }
    clReleaseProgram(program);
    if (failure == KDA_LOG_ERROR)
        kda_cl_check(ctx, err, "clBuildProgram");
    return err == CL_OUT_OF_HOST_MEMORY ? KDA_MEMORY : KDA_COMPILE;
}

/* The program of a stage with some options. Called with the lock held. */
static kda_status find_or_build(const kda_context *ctx, enum kda_stage stage, const char *options,
                                cl_program *program)
{
    static const char *const stages[][2] = {{"", step_cl},
                                            {"", chunk_cl},
                                            {"", scan_cl},
                                            {"", gemm_cl},
                                            {matrix_cl, mma_prepare_cl},
                                            {matrix_cl, mma_scan_cl}};
    struct kda_programs *programs = ctx->device->programs;
    for (struct entry *e = programs->first; e; e = e->next) {
        if (e->stage == stage && !strcmp(e->options, options)) {
            *program = e->program;
            return KDA_OK;
        }
    }
    struct entry *e = calloc(1, sizeof *e);
    if (!e)
        return kda_no_memory(ctx, "a program", sizeof *e);
    const char *sources[] = {args_h, common_cl, tile_cl, stages[stage][0], stages[stage][1]};
    e->stage = stage;
    snprintf(e->options, sizeof e->options, "%s", options);
    kda_status st =
        build(ctx, (cl_uint)KDA_COUNT_OF(sources), sources, options, KDA_LOG_ERROR, &e->program);
    if (st) {
        free(e);
        return st;
    }
    e->next = programs->first;
    programs->first = e;
    *program = e->program;
    return KDA_OK;
}

kda_status kda_program_kernel(kda_context *ctx, const kda_problem *p, const struct kda_config *c,
                              enum kda_stage stage, const char *name, cl_kernel *kernel)
{
    struct kda_programs *programs = ctx->device->programs;
    char options[sizeof programs->first->options];
    format_options(p, c, options, sizeof options);
    cl_program program = NULL;
    pthread_mutex_lock(&programs->lock);
    kda_status st = find_or_build(ctx, stage, options, &program);
    if (!st) {
        cl_int err;
        *kernel = clCreateKernel(program, name, &err);
        st = kda_cl_check(ctx, err, "clCreateKernel");
    }
    pthread_mutex_unlock(&programs->lock);
    return st;
}

kda_status kda_program_probe(kda_context *ctx, bool matrix, const char *source, const char *options,
                             const char *kernel_name, cl_kernel *kernel)
{
    const char *sources[] = {args_h, common_cl, tile_cl, matrix ? matrix_cl : "", source};
    cl_program program = NULL;
    kda_status st =
        build(ctx, (cl_uint)KDA_COUNT_OF(sources), sources, options, KDA_LOG_DEBUG, &program);
    if (st)
        return st;
    cl_int err;
    *kernel = clCreateKernel(program, kernel_name, &err);
    clReleaseProgram(program); /* the kernel keeps it */
    return err ? KDA_COMPILE : KDA_OK;
}

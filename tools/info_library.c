/* What the library makes of a device: its facts, what it supports by trying it, what it chooses for
 * the published models, and whether it computes right. Nothing here knows the answers: each comes
 * from a plan that was made or refused.
 *
 * SPDX-License-Identifier: MIT */
#include "bench.h"
#include "info.h"
#include "machine.h"
#include "spec.h"
#include "tuned.h"
#include "workload.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The library's log: lines for the report, the last error and warning for what they explain. */
struct listener {
    cJSON *lines;
    bool verbose;
    char error[512], warning[512];
};

static void listen(void *data, kda_log_level level, const char *line)
{
    static const char *const levels[] = {"", "error", "warning", "info", "debug"};
    struct listener *log = data;
    if (level == KDA_LOG_ERROR)
        snprintf(log->error, sizeof log->error, "%s%s", line, tuned_source(line));
    if (level == KDA_LOG_WARN)
        snprintf(log->warning, sizeof log->warning, "%s", line);
    if (level != KDA_LOG_WARN && !log->verbose)
        return;
    cJSON *entry = cJSON_CreateObject();
    cJSON_AddStringToObject(entry, "level", levels[level]);
    cJSON_AddStringToObject(entry, "line", line);
    cJSON_AddItemToArray(log->lines, entry);
}

static cJSON *add_row(cJSON *list, const char *name, const char *value)
{
    cJSON *row = cJSON_CreateObject();
    cJSON_AddItemToArray(list, row);
    cJSON_AddStringToObject(row, name, value);
    return row;
}

static void add_status(cJSON *row, kda_status status, const struct listener *log)
{
    cJSON_AddStringToObject(row, "status", kda_status_string(status));
    if (status)
        cJSON_AddStringToObject(row, "why", log->error);
}

static void add_facts(cJSON *device, const kda_context *ctx)
{
    cJSON *list = cJSON_AddArrayToObject(device, "facts");
    size_t count = kda_context_facts(ctx, NULL, 0);
    kda_fact *facts = calloc(count + 1, sizeof *facts);
    if (facts)
        count = kda_context_facts(ctx, facts, count);
    for (size_t i = 0; facts && i < count; ++i) {
        cJSON *fact = add_row(list, "name", facts[i].name);
        cJSON_AddStringToObject(fact, "value", facts[i].value);
        cJSON_AddStringToObject(fact, "source", facts[i].source);
    }
    free(facts);
}

/* Makes a plan for a problem and, if asked, tells of it. */
static kda_status try_plan(kda_context *ctx, const kda_problem *problem, cJSON *row,
                           struct listener *log, bool tell)
{
    kda_plan *plan;
    char text[512];
    *log->warning = '\0';
    bench_progress(row->child->prev->valuestring, "making a plan"); /* its last word */
    double start = machine_seconds();
    kda_status status = kda_plan_create(&plan, ctx, problem);
    double seconds = machine_seconds() - start;
    add_status(row, status, log);
    if (!status && *log->warning)
        cJSON_AddStringToObject(row, "note", log->warning);
    if (!status && tell) {
        kda_plan_describe(plan, text, sizeof text);
        cJSON_AddStringToObject(row, "plan", text);
        cJSON_AddNumberToObject(row, "plan_create_s", seconds);
    }
    kda_plan_destroy(&plan);
    return status;
}

void info_add_cache(cJSON *report)
{
    const char *dir = spec_cache_dir();
    char path[4400];
    struct stat file;
    double programs = 0, bytes = 0;
    if (!dir)
        return;
    DIR *list = opendir(dir);
    for (const struct dirent *e; list && (e = readdir(list));) {
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (strncmp(e->d_name, "kda-", 4) || stat(path, &file) || !S_ISREG(file.st_mode))
            continue;
        programs++;
        bytes += (double)file.st_size;
    }
    if (list)
        closedir(list);
    cJSON *cache = cJSON_AddObjectToObject(report, "cache");
    cJSON_AddStringToObject(cache, "dir", dir);
    cJSON_AddNumberToObject(cache, "programs", programs);
    cJSON_AddNumberToObject(cache, "bytes", bytes);
}

static void add_measured(cJSON *measured, const char *name, double value)
{
    if (value > 0)
        cJSON_AddNumberToObject(measured, name, value);
}

void info_add_measured(cJSON *device, const kda_context_params *params)
{
    struct bench b;
    cJSON *measured = cJSON_AddObjectToObject(device, "measured");
    bench_progress("device", "measuring");
    if (bench_open(&b, params, false))
        bench_limits(&b);
    add_measured(measured, "copy_bytes_per_s", b.copy_bytes_s);
    add_measured(measured, "f32_flops_per_s", b.f32_flops_s);
    add_measured(measured, "matrix_flops_per_s", b.matrix_flops_s);
    add_measured(measured, "empty_kernel_s", b.empty_s);
    bench_close(&b);
}

static void add_types(cJSON *device, kda_context *ctx, struct listener *log)
{
    static const struct {
        const char *name;
        kda_dtype dtype;
    } types[] = {{"f32", KDA_F32}, {"f16", KDA_F16}, {"bf16", KDA_BF16}};
    cJSON *list = cJSON_AddArrayToObject(device, "types");
    for (size_t i = 0; i < sizeof types / sizeof types[0]; ++i)
        try_plan(ctx,
                 kda_problem(.heads = 1, .key_dim = 128, .value_dim = 128, .max_tokens = 64,
                             .dtype = types[i].dtype, .state_dtype = types[i].dtype),
                 add_row(list, "type", types[i].name), log, false);
}

static void add_engines(cJSON *device, kda_context *ctx, struct listener *log)
{
    static const struct {
        const char *schedule_name, *engine_name;
        kda_schedule schedule;
        kda_engine engine;
    } engines[] = {
        {"recurrent", "auto", KDA_SCHEDULE_RECURRENT, KDA_ENGINE_AUTO},
        {"chunkwise", "clblast", KDA_SCHEDULE_CHUNKWISE, KDA_ENGINE_CLBLAST},
        {"chunkwise", "fused", KDA_SCHEDULE_CHUNKWISE, KDA_ENGINE_FUSED},
        {"chunkwise", "mma", KDA_SCHEDULE_CHUNKWISE, KDA_ENGINE_MMA},
    };
    cJSON *list = cJSON_AddArrayToObject(device, "engines");
    for (size_t i = 0; i < sizeof engines / sizeof engines[0]; ++i) {
        cJSON *row = add_row(list, "schedule", engines[i].schedule_name);
        cJSON_AddStringToObject(row, "engine", engines[i].engine_name);
        try_plan(ctx,
                 kda_problem(.heads = 1, .key_dim = 128, .value_dim = 128, .max_tokens = 64,
                             .dtype = KDA_BF16, .schedule = engines[i].schedule,
                             .engine = engines[i].engine),
                 row, log, false);
    }
}

static void add_models(cJSON *device, kda_context *ctx, struct listener *log)
{
    static const struct {
        const char *name, *problem;
    } models[] = {
        {"Kimi-Linear, prefill", "8192x32x128/bf16/softplus"},
        {"Kimi-Linear, decode", "decode:64x32x128/bf16/softplus"},
        {"Kimi K3, prefill", "8192x96x128/bf16/bounded"},
        {"Kimi K3, decode", "decode:64x96x128/bf16/bounded"},
    };
    cJSON *list = cJSON_AddArrayToObject(device, "models");
    for (size_t i = 0; i < sizeof models / sizeof models[0]; ++i) {
        struct problem problem;
        cJSON *row = add_row(list, "model", models[i].name);
        cJSON_AddStringToObject(row, "problem", models[i].problem);
        if (!problem_parse(&problem, models[i].problem, log->error, sizeof log->error)) {
            add_status(row, KDA_INVALID, log);
            continue;
        }
        try_plan(ctx, &problem.shape, row, log, true);
        problem_free(&problem);
    }
}

/* Runs a problem on host memory and compares. */
static kda_status run_problem(kda_context *ctx, const struct problem *problem,
                              struct workload_check *check, struct listener *log)
{
    struct workload w;
    kda_plan *plan;
    kda_status status = kda_plan_create(&plan, ctx, &problem->shape);
    if (status)
        return status;
    if (workload_create(&w, problem, 1)) {
        kda_args args = workload_args(&w, NULL);
        status = kda_execute(plan, &args);
        if (!status && !workload_compare(&w, check))
            status = KDA_MEMORY;
        workload_free(&w);
    } else {
        status = KDA_MEMORY;
    }
    if (status == KDA_MEMORY)
        snprintf(log->error, sizeof log->error, "out of memory");
    kda_plan_destroy(&plan);
    return status;
}

static bool add_trial(cJSON *list, kda_context *ctx, const char *text, struct listener *log)
{
    struct problem problem;
    struct workload_check check = {0};
    cJSON *row = add_row(list, "problem", text);
    bench_progress(text, "self-test");
    kda_status status = KDA_INVALID;
    if (problem_parse(&problem, text, log->error, sizeof log->error)) {
        status = run_problem(ctx, &problem, &check, log);
        problem_free(&problem);
    }
    if (!status && !check.pass) {
        cJSON_AddStringToObject(row, "status", "WRONG");
        cJSON_AddStringToObject(row, "why", check.why);
    } else {
        add_status(row, status, log);
    }
    if (!status) {
        cJSON_AddNumberToObject(row, "out_error", check.out_error);
        cJSON_AddNumberToObject(row, "state_error", check.state_error);
    }
    return !status && check.pass;
}

/* Small problems that between them meet each type, gate, layout and shape of call. */
static bool add_selftest(cJSON *device, kda_context *ctx, struct listener *log)
{
    static const char *const trials[] = {
        "decode:3x4x128/bf16/bounded/hv8",
        "130x2x64/f32/softplus/v96",
        "2x40/f16/log/v24/state=f16/vk/lens=17,0,1,40",
        "2x33x3x60/bf16/none/additive/v7/state=bf16",
    };
    bool fine = true;
    cJSON *list = cJSON_AddArrayToObject(device, "selftest");
    for (size_t i = 0; i < sizeof trials / sizeof trials[0]; ++i)
        fine &= add_trial(list, ctx, trials[i], log);
    return fine;
}

int info_add_library(cJSON *device, const kda_context_params *params, bool selftest, bool verbose)
{
    struct listener log = {.lines = cJSON_CreateArray(), .verbose = verbose};
    kda_context_params own = *params;
    char *tuned = tuned_read();
    own.cache_dir = spec_cache_dir();
    own.tuned = tuned;
    kda_context *ctx;
    int exit_code = EXIT_SUCCESS;
    own.log = listen;
    own.log_data = &log;
    own.log_level = verbose ? KDA_LOG_DEBUG : KDA_LOG_WARN;
    if (kda_context_create(&ctx, &own)) {
        cJSON_AddStringToObject(device, "error", log.error);
        exit_code = EXIT_NO_DEVICE;
    } else {
        add_facts(device, ctx);
        add_types(device, ctx, &log);
        add_engines(device, ctx, &log);
        add_models(device, ctx, &log);
        if (selftest && !add_selftest(device, ctx, &log))
            exit_code = EXIT_WRONG;
    }
    kda_context_destroy(&ctx);
    free(tuned);
    cJSON_AddItemToObject(device, "log", log.lines);
    return exit_code;
}

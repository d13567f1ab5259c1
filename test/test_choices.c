/* What the library chooses on a device with NVIDIA's matrix units, and what it does where they do
 * not build: PoCL, whose context is told that it has them.
 *
 * SPDX-License-Identifier: MIT */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../lib/internal.h"
#include "runner.h"
#include "spec.h"

static cl_device_id device;

/* The last error that a context logged. */
static char error[512];

static void keep_line(void *data, kda_log_level level, const char *line)
{
    (void)data;
    if (level == KDA_LOG_ERROR)
        snprintf(error, sizeof error, "%s", line);
}

/* A device with matrix units, of an H200's size. */
static kda_context *open_matrix_units(const char *rows)
{
    kda_context *ctx;
    ck_assert_int_eq(
        kda_context_create(&ctx, kda_context_params(.backend = KDA_OPENCL, .device = device,
                                                    .log = keep_line, .tuned = rows)),
        KDA_OK);
    struct kda_device *d = ctx->device;
    d->is_cpu = false;
    d->has_vectors = false;
    d->matrix = true;
    d->path = KDA_PATH_PTX;
    d->lanes = 32;
    d->compute_units = 132;
    d->max_work_group = 512;
    d->local_bytes = (cl_ulong)224 * 1024;
    return ctx;
}

/* What is chosen for a problem there, of which `p` becomes the resolved one. */
static kda_status choose(const kda_context *ctx, kda_problem *p, const struct kda_tuned *row,
                         enum kda_path path, struct kda_config *c)
{
    const kda_problem given = *p;
    *c = (struct kda_config){.step_limit = 0};
    error[0] = '\0';
    ck_assert_int_eq(kda_problem_resolve(ctx, &given, p), KDA_OK);
    kda_tuned_apply(row, p);
    return kda_config_choose(ctx, p, row, path, c);
}

#define SIZED(type, K, V)                                                                          \
    .struct_size = sizeof(kda_problem), .heads = 2, .key_dim = K, .value_dim = V, .dtype = type,   \
    .gate = KDA_GATE_SOFTPLUS, .beta = KDA_BETA_SIGMOID
#define ASKED(type, K, V)                                                                          \
    SIZED(type, K, V), .max_tokens = 4096, .flags = KDA_NORM_QK, .engine = KDA_ENGINE_MMA

static void expect_refusal(const kda_context *ctx, kda_problem p, enum kda_path path,
                           const char *why)
{
    struct kda_config config;
    ck_assert_int_eq(choose(ctx, &p, NULL, path, &config), KDA_UNSUPPORTED);
    ck_assert_msg(strstr(error, why), "'%s' is not '%s'", error, why);
}

/* Each reason, by itself, why matrix units do not take what a caller asks of them. */
START_TEST(test_matrix_units_refuse)
{
    static const struct {
        kda_problem problem;
        const char *why;
    } refused[] = {
        {{ASKED(KDA_F32, 128, 128)}, "dtype must be KDA_BF16 or KDA_F16"},
        {{ASKED(KDA_BF16, 96, 128)}, "must be 64 or 128"},
        {{ASKED(KDA_BF16, 256, 64)}, "must be 64 or 128"},
        {{ASKED(KDA_BF16, 128, 96)}, "must be 64 or 128"},
        {{ASKED(KDA_BF16, 64, 256)}, "must be 64 or 128"},
        {{ASKED(KDA_BF16, 128, 128), .chunk = 32}, "chunk must be 0 or 64"},
        {{ASKED(KDA_BF16, 128, 128), .checkpoint_every = 96}, "checkpoint_every must be"},
    };
    kda_context *ctx = open_matrix_units(NULL);
    struct kda_device *d = ctx->device;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        expect_refusal(ctx, refused[i].problem, KDA_PATH_PTX, refused[i].why);
    for (int i = 0; i < 4; i++) {
        kda_problem p = {ASKED(KDA_F16, i & 1 ? 64 : 128, i & 2 ? 64 : 128)};
        struct kda_config config;
        ck_assert_int_eq(choose(ctx, &p, NULL, KDA_PATH_PTX, &config), KDA_OK);
    }
    const kda_problem good = {ASKED(KDA_BF16, 128, 128)};
    expect_refusal(ctx, good, KDA_PATH_LOCAL, "no matrix units");
    d->max_work_group = 511;
    expect_refusal(ctx, good, KDA_PATH_PTX, "work-groups are too small");
    d->max_work_group = 512;
    d->local_bytes--;
    expect_refusal(ctx, good, KDA_PATH_PTX, "less than 224 KiB");
    d->local_bytes++;
    d->matrix = false;
    expect_refusal(ctx, good, KDA_PATH_PTX, "no matrix units");
    kda_context_destroy(&ctx);
}
END_TEST

/* On a CPU plain OpenCL C stands in for them, for a caller that asks, not for AUTO. */
START_TEST(test_auto_without_matrix_units)
{
    kda_context *ctx = open_matrix_units(NULL);
    kda_problem p = {SIZED(KDA_BF16, 128, 128), .max_tokens = 4096, .flags = KDA_NORM_QK};
    kda_problem asked = {ASKED(KDA_BF16, 128, 128)};
    struct kda_config config;
    ctx->device->is_cpu = true;
    ctx->device->matrix = false;
    ck_assert_int_eq(choose(ctx, &p, NULL, KDA_PATH_LOCAL, &config), KDA_OK);
    ck_assert_int_eq(config.engine, KDA_ENGINE_FUSED);
    ck_assert_int_eq(choose(ctx, &asked, NULL, KDA_PATH_LOCAL, &config), KDA_OK);
    ck_assert_int_eq(config.engine, KDA_ENGINE_MMA);
    kda_context_destroy(&ctx);
}
END_TEST

/* From which length on sequences go in chunks: sooner where matrix units take these. */
START_TEST(test_step_limit_on_matrix_units)
{
    static const struct kda_tuned mma = {.engine = KDA_ENGINE_MMA, .recurrent_up_to = -1},
                                  fused = {.engine = KDA_ENGINE_FUSED, .recurrent_up_to = -1},
                                  given = {.recurrent_up_to = 100};
    static const struct {
        kda_dtype dtype;
        uint32_t flags;
        const struct kda_tuned *row;
        int32_t limit;
    } cases[] = {
        {KDA_BF16, KDA_NORM_QK, NULL, 28}, {KDA_F16, KDA_NORM_QK, &mma, 28},
        {KDA_BF16, 0, NULL, 48},           {KDA_BF16, KDA_NORM_QK, &fused, 48},
        {KDA_F16, KDA_NORM_QK, NULL, 48},  {KDA_BF16, KDA_NORM_QK, &given, 100},
    };
    kda_context *ctx = open_matrix_units(NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int32_t more = 0; more < 2; more++) {
            kda_problem p = {SIZED(cases[i].dtype, 128, 128), .flags = cases[i].flags,
                             .max_tokens = cases[i].limit + more};
            struct kda_config config;
            ck_assert_int_eq(choose(ctx, &p, cases[i].row, KDA_PATH_PTX, &config), KDA_OK);
            ck_assert_msg((config.chunk > 0) == more &&
                              config.step_limit == (more ? cases[i].limit : INT32_MAX),
                          "case %zu of %d tokens: chunk %d, limit %d", i, (int)p.max_tokens,
                          (int)config.chunk, (int)config.step_limit);
        }
    kda_context_destroy(&ctx);
}
END_TEST

/* AUTO takes matrix units where one chunk of theirs fits what the caller allows, to the byte; of
 * these sizes one of the other engine's takes less. Each chunk and head has a word of 8 bytes that
 * tells of it. */
START_TEST(test_auto_workspace_on_matrix_units)
{
    kda_context *ctx = open_matrix_units(NULL);
    const kda_problem problem = {SIZED(KDA_BF16, 64, 64), .max_tokens = 4096, .flags = KDA_NORM_QK};
    kda_problem p = problem;
    struct kda_config config;
    ck_assert_int_eq(choose(ctx, &p, NULL, KDA_PATH_PTX, &config), KDA_OK);
    ck_assert_int_eq(config.engine, KDA_ENGINE_MMA);
    const struct kda_workspace w = kda_workspace_layout(&p, &config);
    ck_assert_int_eq(config.piece, 65);
    ck_assert_int_ge(w.factors - w.progress, 2 * 65 * 2);
    ck_assert_int_ge(w.factor_stride * 4, 3 * 128 * 64 + 2 * 8192 + 1024); /* IMAGE_BYTES */
    ck_assert_int_eq(w.progress % 2, 0);
    ck_assert_int_ge((int64_t)(w.bytes / sizeof(float)) - w.factors, 65 * 2 * w.factor_stride);
    const size_t least = kda_workspace_least(&p, &config);
    for (size_t more = 0; more < 2; more++) {
        p = problem;
        p.max_workspace = least - 1 + more;
        ck_assert_int_eq(choose(ctx, &p, NULL, KDA_PATH_PTX, &config), KDA_OK);
        ck_assert_int_eq(config.engine, more ? KDA_ENGINE_MMA : KDA_ENGINE_FUSED);
        ck_assert_int_eq(config.piece, 1);
    }
    kda_context_destroy(&ctx);
}
END_TEST

/* However much a caller allows, no more is taken, and of segments all chunks fit or none is cut. */
START_TEST(test_workspace_keeps_to_its_limit)
{
    static const int32_t heads[] = {1, 3, 4, 12, 20};
    kda_context *ctx = open_matrix_units(NULL);
    for (int i = 0; i < 5 * 2; i++) {
        kda_problem given = {SIZED(KDA_BF16, 64, 64), .max_tokens = 64 * 50, .flags = KDA_NORM_QK,
                             .schedule = KDA_SCHEDULE_CHUNKWISE, .segment = i % 2 ? 128 : 0};
        struct kda_config config;
        given.heads = heads[i / 2];
        kda_problem p = given;
        ck_assert_int_eq(choose(ctx, &p, NULL, KDA_PATH_PTX, &config), KDA_OK);
        const int64_t all = config.piece;
        const size_t whole = kda_workspace_layout(&p, &config).bytes;
        ck_assert_int_eq(config.segment, i % 2 ? 2 : 0);
        for (size_t less = 0; less < whole * 3 / 4; less += less ? less / 8 + 64 : 1) {
            p = given;
            p.max_workspace = whole - less;
            ck_assert_int_eq(choose(ctx, &p, NULL, KDA_PATH_PTX, &config), KDA_OK);
            ck_assert_uint_le(kda_workspace_layout(&p, &config).bytes, whole - less);
            ck_assert_msg(config.engine == KDA_ENGINE_MMA &&
                              (!config.segment || config.piece == all),
                          "%d heads, %zu less: piece %d of %d", (int)p.heads, less,
                          (int)config.piece, (int)all);
        }
    }
    kda_context_destroy(&ctx);
}
END_TEST

/* Two tiles of columns share images where that takes less time: in calls of many heads. */
START_TEST(test_teams)
{
    static const struct {
        int32_t heads, value_dim, teams;
    } cases[] = {{96, 128, 2}, {32, 64, 1}, {1, 128, 1}};
    kda_context *ctx = open_matrix_units(NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kda_problem p = {.struct_size = sizeof p,
                         .heads = cases[i].heads,
                         .key_dim = 128,
                         .value_dim = cases[i].value_dim,
                         .dtype = KDA_BF16,
                         .gate = KDA_GATE_BOUNDED,
                         .beta = KDA_BETA_SIGMOID,
                         .max_tokens = 8192,
                         .flags = KDA_NORM_QK};
        struct kda_config config;
        ck_assert_int_eq(choose(ctx, &p, NULL, KDA_PATH_PTX, &config), KDA_OK);
        ck_assert_int_eq(config.teams, cases[i].teams);
        ck_assert_int_eq(config.scan_v, 64 * config.teams);
    }
    kda_context_destroy(&ctx);
}
END_TEST

static void check_shares(const kda_context *ctx, const kda_problem *p, int32_t teams,
                         int64_t sequences, int64_t chunks)
{
    const struct kda_config c = {.teams = teams, .scan_v = 64 * teams};
    const int64_t units = ctx->device->compute_units, most = units > 2 ? units : 2;
    const struct kda_shares s = kda_shares_of(ctx, p, &c, sequences, p->value_dim, chunks);
    ck_assert_int_lt(kda_shares_ns(ctx, p, teams, sequences, p->value_dim, chunks), INT64_MAX);
    ck_assert_int_ge(s.preparers, 1);
    ck_assert_int_ge(s.scanners, 1);
    ck_assert_int_le(s.preparers + s.scanners, most);
    const struct kda_shares scan = kda_shares_of_scan(ctx, p, &c, sequences, p->value_dim);
    ck_assert_int_eq(scan.preparers, 0);
    ck_assert_int_ge(scan.scanners, 1);
    ck_assert_int_le(scan.scanners, most);
    ck_assert_int_ge(s.heads_abreast, 1);
    ck_assert_int_le(s.heads_abreast, p->value_heads);
}

/* Those that prepare and those that scan are there for any call, and all fit the device at once; a
 * work-group prepares for two chunks and heads. */
START_TEST(test_shares)
{
    static const cl_uint units[] = {1, 2, 3, 8, 132};
    static const int32_t heads[] = {1, 3, 96};
    static const int64_t sequences[] = {1, 5, 300}, chunks[] = {1, 7, 640};
    kda_context *ctx = open_matrix_units(NULL);
    for (int i = 0; i < 5 * 3 * 3 * 3 * 2; i++) {
        const kda_problem p = {.value_heads = heads[i / 5 % 3], .value_dim = 128};
        ctx->device->compute_units = units[i % 5];
        check_shares(ctx, &p, 1 + i / 135, sequences[i / 15 % 3], chunks[i / 45 % 3]);
    }
    ck_assert_int_eq(kda_shares_preparers(3), 2);
    ck_assert_int_eq(kda_shares_preparers(4), 2);
    kda_context_destroy(&ctx);
}
END_TEST

/* Nobody goes on without what a caller asked for. */
START_TEST(test_asked_for_matrix_units)
{
    const kda_problem problem = {ASKED(KDA_BF16, 128, 128)};
    kda_context *ctx = open_matrix_units(NULL);
    kda_plan *plan;
    ck_assert_int_eq(kda_plan_create(&plan, ctx, &problem), KDA_UNSUPPORTED);
    ck_assert_ptr_null(plan);
    kda_context_destroy(&ctx);
}
END_TEST

/* A row's choice is not a caller's: the plan is what it would be without the row, which here is
 * another engine for the same reason. */
START_TEST(test_row_goes_on_without_matrix_units)
{
    const kda_problem problem = {SIZED(KDA_BF16, 128, 128), .max_tokens = 4096,
                                 .flags = KDA_NORM_QK, .schedule = KDA_SCHEDULE_CHUNKWISE};
    char row[1024], text[256];
    kda_context *ctx = open_matrix_units(NULL);
    kda_plan *plan;
    snprintf(row, sizeof row,
             "device=\"%s\" driver=\"%s\" key_dim=128 value_dim=128 dtype=bf16 engine=mma",
             kda_device_fact(ctx->device, "name"), kda_device_fact(ctx->device, "driver"));
    kda_context_destroy(&ctx);
    ctx = open_matrix_units(row);
    ctx->device->compute_units = 1; /* for 132, PoCL builds what is used instead for a minute */
    ck_assert_int_eq(kda_plan_create(&plan, ctx, &problem), KDA_OK);
    kda_plan_describe(plan, text, sizeof text);
    ck_assert_msg(strstr(text, "engine=fused") && !strstr(text, "tuned="), "%s", text);
    kda_plan_destroy(&plan);
    kda_context_destroy(&ctx);
}
END_TEST

int main(void)
{
    kda_context_params params = {.struct_size = sizeof params};
    if (spec_resolve("Portable", &params))
        return EXIT_FAILURE;
    device = params.device;
    Suite *suite = suite_create("choices");
    TCase *tc = tcase_create("choices");
    tcase_set_timeout(tc, 300);
    tcase_add_test(tc, test_matrix_units_refuse);
    tcase_add_test(tc, test_auto_without_matrix_units);
    tcase_add_test(tc, test_step_limit_on_matrix_units);
    tcase_add_test(tc, test_auto_workspace_on_matrix_units);
    tcase_add_test(tc, test_workspace_keeps_to_its_limit);
    tcase_add_test(tc, test_teams);
    tcase_add_test(tc, test_shares);
    tcase_add_test(tc, test_asked_for_matrix_units);
    tcase_add_test(tc, test_row_goes_on_without_matrix_units);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    return runner_run(runner) ? EXIT_FAILURE : EXIT_SUCCESS;
}

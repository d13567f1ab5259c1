/* What the library finds out about GPUs, on a device that plays one: PoCL, whose driver says here
 * that it is one, and whose compiler is given plain OpenCL C where the probes have instructions of
 * vendors. Each probe answers right, wrong, does not build, or runs out of memory.
 *
 * Linked with -Wl,--wrap for each function that is wrapped below.
 *
 * SPDX-License-Identifier: MIT */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../lib/internal.h"
#include "runner.h"
#include "spec.h"

enum outcome { RIGHT, WRONG, BROKEN, NO_MEMORY };
#define SUB_GROUP_SIZES 0x4108 /* CL_DEVICE_SUB_GROUP_SIZES_INTEL */

/* The device that is played; NULL, 0: as it is. */
static struct {
    const char *extensions;
    cl_device_id without_compiler;
    cl_ulong local_bytes;
    size_t work_group;
    size_t sub_group; /* width of a kernel's, 0: as the probe has it, 8 */
    size_t widths[2]; /* of sub-groups, as Intel's extension tells them */
    enum outcome shuffle, matrix, unit[KDA_UNITS]; /* unit[KDA_UNIT_NONE]: local memory */
} play;

cl_int __real_clGetDeviceInfo(cl_device_id id, cl_device_info what, size_t size, void *value,
                              size_t *answer);
cl_int __wrap_clGetDeviceInfo(cl_device_id id, cl_device_info what, size_t size, void *value,
                              size_t *answer);
void *__wrap_clGetExtensionFunctionAddressForPlatform(cl_platform_id platform, const char *name);
kda_status __real_kda_program_probe(kda_context *ctx, bool matrix, const char *text,
                                    const char *options, const char *name, cl_kernel *kernel);
kda_status __wrap_kda_program_probe(kda_context *ctx, bool matrix, const char *text,
                                    const char *options, const char *name, cl_kernel *kernel);

cl_int __wrap_clGetDeviceInfo(cl_device_id id, cl_device_info what, size_t size, void *value,
                              size_t *answer)
{
    if (what == CL_DEVICE_EXTENSIONS && play.extensions) {
        if (value)
            snprintf(value, size, "%s", play.extensions);
        if (answer)
            *answer = strlen(play.extensions) + 1;
        return CL_SUCCESS;
    }
    if (what == SUB_GROUP_SIZES && play.widths[0]) {
        memcpy(value, play.widths, sizeof play.widths);
        *answer = sizeof play.widths;
        return CL_SUCCESS;
    }
    cl_int err = __real_clGetDeviceInfo(id, what, size, value, answer);
    if (what == CL_DEVICE_TYPE && value && play.extensions)
        *(cl_device_type *)value = CL_DEVICE_TYPE_GPU;
    if (what == CL_DEVICE_LOCAL_MEM_SIZE && value && play.local_bytes)
        *(cl_ulong *)value = play.local_bytes;
    if (what == CL_DEVICE_MAX_WORK_GROUP_SIZE && value && play.work_group)
        *(size_t *)value = play.work_group;
    if (what == CL_DEVICE_COMPILER_AVAILABLE && value && id == play.without_compiler)
        *(cl_bool *)value = CL_FALSE;
    return err;
}

static cl_int CL_API_CALL sub_group_info(cl_kernel kernel, cl_device_id id, cl_uint what, size_t n,
                                         const void *in, size_t size, void *value, size_t *answer)
{
    (void)kernel, (void)id, (void)what, (void)n, (void)in, (void)size, (void)answer;
    *(size_t *)value = play.sub_group ? play.sub_group : 8;
    return CL_SUCCESS;
}

void *__wrap_clGetExtensionFunctionAddressForPlatform(cl_platform_id platform, const char *name)
{
    cl_int(CL_API_CALL * function)(cl_kernel, cl_device_id, cl_uint, size_t, const void *, size_t,
                                   void *, size_t *) = sub_group_info;
    void *address;
    (void)platform, (void)name;
    memcpy(&address, &function, sizeof address);
    return address;
}

/* Two tiles of AMD's or Intel's products; wrong ones have a in bf16 alone. */
static kda_status build_unit(kda_context *ctx, enum kda_unit kind, const char *name,
                             cl_kernel *kernel)
{
    static const char product[] =
        "__kernel void kda_probe(__global const float *a, __global const float *b,\n"
        "                        __global float *out)\n"
        "{\n"
        "    for (int x = (int)get_local_id(0); x < ROWS * WIDTH; x += (int)get_local_size(0))\n"
        "        for (int k = 0; k < 16; k++)\n"
        "            out[x] += as_float(as_uint(a[x / WIDTH * 16 + k]) & KEPT) *\n"
        "                      b[k * WIDTH + x % WIDTH];\n"
        "}\n";
    const struct kda_unit_shape unit = kda_unit_shape(kind);
    char options[96];
    snprintf(options, sizeof options, "-cl-std=CL1.2 -DROWS=%d -DWIDTH=%d -DKEPT=0x%xu", unit.rows,
             2 * unit.cols, play.unit[kind] == WRONG ? 0xffff0000 : 0xffffffff);
    return __real_kda_program_probe(ctx, false, play.unit[kind] == BROKEN ? "error" : product,
                                    options, name, kernel);
}

/* The same program in plain OpenCL C; the exchange of lanes, which has no plain body, by itself. */
kda_status __wrap_kda_program_probe(kda_context *ctx, bool matrix, const char *text,
                                    const char *options, const char *name, cl_kernel *kernel)
{
    static const char exchange[] = "__kernel void probe(__global float *out, __global int *lanes)\n"
                                   "{\n"
                                   "    const int lid = (int)get_local_id(0);\n"
                                   "    *lanes = 8;\n"
                                   "    for (int i = 0; i < 3; i++)\n"
                                   "        out[i * 128 + lid] = (float)(lid ^ (1 << i));\n"
                                   "}\n",
                      nothing[] =
                          "__kernel void probe(__global float *out, __global int *lanes) {}"
                          "__kernel void kda_probe(__global ushort *in, __global float *out)"
                          "{ out[get_local_id(0)] = 12345.0f; }";
    const bool shuffle = !strcmp(name, "probe");
    const char *unit = strstr(options, "KDA_UNIT=");
    const enum kda_unit kind = unit ? (enum kda_unit)(unit[strlen("KDA_UNIT=")] - '0') : 0;
    const enum outcome outcome = shuffle ? play.shuffle : matrix ? play.matrix : play.unit[kind];
    char plain[256], *word;
    snprintf(plain, sizeof plain, "%s", options);
    if ((word = strstr(plain, "KDA_PATH=")))
        word[strlen("KDA_PATH=")] = '0';
    if ((word = strstr(plain, "KDA_LANES=")) && word[strlen("KDA_LANES=") + 1] > ' ')
        memcpy(word, "KDA_LANES=01", strlen("KDA_LANES=01"));
    if (outcome == NO_MEMORY)
        return kda_no_memory(ctx, "a probe", 1);
    if (unit)
        return build_unit(ctx, kind, name, kernel);
    text = outcome == BROKEN ? "error" : outcome == WRONG ? nothing : shuffle ? exchange : text;
    return __real_kda_program_probe(ctx, matrix, text, plain, name, kernel);
}

/* ---- What comes of it ------------------------------------------------------------------- */

static cl_device_id device;

static void count_warning(void *data, kda_log_level level, const char *line)
{
    (void)line;
    *(int *)data += level == KDA_LOG_WARN;
}

static int warned; /* outlives the contexts that count in it */

/* Opens the device and expects so many warnings. */
static kda_context *open_device(int warnings)
{
    kda_context *ctx;
    warned = 0;
    ck_assert_int_eq(
        kda_context_create(&ctx, kda_context_params(.backend = KDA_OPENCL, .device = device,
                                                    .log = count_warning, .log_data = &warned)),
        KDA_OK);
    ck_assert_int_eq(warned, warnings);
    return ctx;
}

static void expect(const char *path, const char *says, const char *matrix, int warnings)
{
    kda_context *ctx = open_device(warnings);
    ck_assert_str_eq(kda_device_fact(ctx->device, path), says);
    ck_assert_str_eq(kda_device_fact(ctx->device, "matrix_units"), matrix);
    ck_assert_int_eq(ctx->device->lanes, says[0] == 'y' ? 8 : 1);
    ck_assert_int_eq(ctx->device->matrix, matrix[0] == 'y');
    kda_context_destroy(&ctx);
}

#define NONE_KNOWN "no: none that this library knows"

START_TEST(test_nvidia)
{
    play.extensions = "cl_nv_device_attribute_query";
    expect("ptx_shuffle", "yes, 8 lanes", "yes, f16 and bf16 by warp groups", 0);
    play.matrix = WRONG;
    expect("ptx_shuffle", "yes, 8 lanes", "no: wrong answer", 1);
    play.matrix = BROKEN;
    expect("ptx_shuffle", "yes, 8 lanes", "no: they do not build", 0);
    play.shuffle = WRONG;
    expect("ptx_shuffle", "no: wrong answer", NONE_KNOWN, 1);
    play.shuffle = BROKEN;
    expect("ptx_shuffle", "no: it does not build", NONE_KNOWN, 0);
}
END_TEST

START_TEST(test_sub_groups)
{
    play.extensions = _i ? "cl_intel_subgroups" : "cl_khr_subgroup_shuffle";
    expect("sub_group_shuffle", "yes, 8 lanes", NONE_KNOWN, 0);
    play.shuffle = WRONG;
    expect("sub_group_shuffle", "no: wrong answer", NONE_KNOWN, 1);
    play.shuffle = BROKEN;
    expect("sub_group_shuffle", "no: it does not build", NONE_KNOWN, 0);
    play.extensions = "cl_khr_fp16";
    expect("sub_group_shuffle", "", NONE_KNOWN, 0);
}
END_TEST

static void expect_unit(enum kda_unit unit, const char *says, int warnings)
{
    kda_context *ctx = open_device(warnings);
    ck_assert_int_eq(ctx->device->unit, unit);
    ck_assert_str_eq(kda_device_fact(ctx->device, "matrix_units"), says);
    kda_context_destroy(&ctx);
}

static void expect_right(enum kda_unit unit)
{
    expect_unit(unit, kda_unit_shape(unit).says, 0);
}

START_TEST(test_amd)
{
    play.extensions = "cl_amd_device_attribute_query";
    expect_right(KDA_UNIT_MFMA);
    play.unit[KDA_UNIT_MFMA] = BROKEN;
    expect_right(KDA_UNIT_WMMA);
    play.unit[KDA_UNIT_WMMA] = WRONG;
    expect_unit(KDA_UNIT_NONE, "no: wrong answer", 1);
    play.unit[KDA_UNIT_WMMA] = BROKEN;
    expect_unit(KDA_UNIT_NONE, "no: they do not build", 0);
}
END_TEST

START_TEST(test_intel)
{
    play.extensions = "cl_intel_subgroup_matrix_multiply_accumulate";
    play.widths[0] = 32;
    play.widths[1] = 8;
    expect_right(KDA_UNIT_DPAS8);
    play.widths[1] = 16;
    expect_right(KDA_UNIT_DPAS16);
    play.unit[KDA_UNIT_DPAS16] = WRONG;
    expect_unit(KDA_UNIT_NONE, "no: wrong answer", 1);
    play.widths[1] = 32;
    expect_unit(KDA_UNIT_NONE, NONE_KNOWN, 0);
    play.widths[0] = 0; /* nobody tells */
    expect_unit(KDA_UNIT_NONE, NONE_KNOWN, 0);
}
END_TEST

static void expect_failure(kda_status wanted)
{
    kda_context *ctx;
    ck_assert_int_eq(
        kda_context_create(&ctx, kda_context_params(.backend = KDA_OPENCL, .device = device)),
        wanted);
    ck_assert_ptr_null(ctx);
}

START_TEST(test_no_context)
{
    play.extensions = "cl_nv_device_attribute_query";
    play.matrix = NO_MEMORY;
    expect_failure(KDA_MEMORY);
    play.shuffle = NO_MEMORY;
    expect_failure(KDA_MEMORY);
    play.extensions = "cl_amd_device_attribute_query";
    play.unit[KDA_UNIT_MFMA] = NO_MEMORY;
    expect_failure(KDA_MEMORY);
    play.unit[KDA_UNIT_NONE] = NO_MEMORY;
    expect_failure(KDA_MEMORY);
    play.extensions = NULL;
    play.without_compiler = device;
    expect_failure(KDA_NO_DEVICE);
}
END_TEST

/* Matrix units, or what stands in for them, need more local memory than many devices have. */
START_TEST(test_small_local_memory)
{
    kda_context *ctx;
    kda_plan *plan;
    play.local_bytes = 32768;
    ck_assert_int_eq(
        kda_context_create(&ctx, kda_context_params(.backend = KDA_OPENCL, .device = device)),
        KDA_OK);
    ck_assert_int_eq(
        kda_plan_create(&plan, ctx,
                        kda_problem(.heads = 1, .key_dim = 128, .value_dim = 64, .max_tokens = 64,
                                    .dtype = KDA_BF16, .engine = KDA_ENGINE_MMA)),
        KDA_UNSUPPORTED);
    kda_context_destroy(&ctx);
}
END_TEST

/* Makes a plan on the device; says what it runs, "" if there is none, and counts warnings. */
static kda_status plan_of(const kda_problem *problem, char *text, size_t n)
{
    kda_context *ctx = open_device(0);
    kda_plan *plan;
    *text = '\0';
    const kda_status st = kda_plan_create(&plan, ctx, problem);
    kda_plan_describe(plan, text, n);
    kda_plan_destroy(&plan);
    kda_context_destroy(&ctx);
    return st;
}

#define PROBLEM(...)                                                                               \
    kda_problem(.heads = 1, .key_dim = 64, .value_dim = 64, .max_tokens = 4096, __VA_ARGS__)

/* Nothing runs in no local memory, and no chunk in a work-group of two items. */
START_TEST(test_no_work_group)
{
    char text[256];
    play.work_group = 2;
    ck_assert_int_eq(plan_of(PROBLEM(.chunk = 64), text, sizeof text), KDA_OK);
    ck_assert_msg(strstr(text, "schedule=recurrent"), "%s", text);
    ck_assert_int_eq(warned, 1);
    ck_assert_int_eq(plan_of(PROBLEM(.chunk = 64, .engine = KDA_ENGINE_FUSED), text, sizeof text),
                     KDA_UNSUPPORTED);
    ck_assert_int_eq(warned, 0);
    play.work_group = 0;
    play.extensions = "none";
    play.local_bytes = 64;
    ck_assert_int_eq(plan_of(PROBLEM(.chunk = 0), text, sizeof text), KDA_UNSUPPORTED);
}
END_TEST

/* The compiler gives kda_step other sub-groups than it gave the probe. So many sequences, since the
 * program for few exchanges lanes however short sums are, which PoCL cannot compile. */
START_TEST(test_other_sub_groups)
{
    char text[256];
    play.extensions = "cl_intel_subgroups";
    play.sub_group = 16;
    ck_assert_int_eq(plan_of(PROBLEM(.max_sequences = 4096, .schedule = KDA_SCHEDULE_RECURRENT),
                             text, sizeof text),
                     KDA_OK);
    ck_assert_msg(strstr(text, "path=local"), "%s", text);
    ck_assert_int_eq(warned, 1);
}
END_TEST

/* What AUTO, or a row, chooses on a device with NVIDIA's matrix units. */
START_TEST(test_auto_on_matrix_units)
{
#define MODEL_OF(type) MODEL_SHAPE(type), .gate = KDA_GATE_BOUNDED, .beta = KDA_BETA_SIGMOID
#define MODEL_SHAPE(type)                                                                          \
    .struct_size = sizeof(kda_problem), .heads = 2, .key_dim = 128, .value_dim = 128,              \
    .max_tokens = 4096, .dtype = type, .schedule = KDA_SCHEDULE_CHUNKWISE
#define MODEL MODEL_OF(KDA_BF16)
#define MODEL_BY(its_gate, its_beta)                                                               \
    MODEL_SHAPE(KDA_BF16), .gate = its_gate, .beta = its_beta, .flags = KDA_NORM_QK
    const struct kda_tuned fused = {.engine = KDA_ENGINE_FUSED}, mma = {.engine = KDA_ENGINE_MMA},
                           scan = {.scan_v = 32, .scan_vec = 4, .scan_rows = 2};
    const struct {
        kda_problem problem;
        const struct kda_tuned *row;
        kda_engine engine;
        kda_status status;
    } choices[] = {
        {{MODEL, .flags = KDA_NORM_QK}, NULL, KDA_ENGINE_MMA, KDA_OK},
        {{MODEL, .flags = KDA_NORM_QK, .checkpoint_every = 128}, NULL, KDA_ENGINE_MMA, KDA_OK},
        {{MODEL, .flags = KDA_NORM_QK, .checkpoint_every = 32}, NULL, KDA_ENGINE_FUSED, KDA_OK},
        {{MODEL, .flags = KDA_NORM_QK, .chunk = 32}, NULL, KDA_ENGINE_FUSED, KDA_OK},
        {{MODEL, .flags = KDA_NORM_QK, .engine = KDA_ENGINE_FUSED}, NULL, KDA_ENGINE_FUSED, KDA_OK},
        {{MODEL, .flags = KDA_NORM_QK, .max_workspace = 1000000}, NULL, KDA_ENGINE_MMA, KDA_OK},
        {{MODEL}, NULL, KDA_ENGINE_FUSED, KDA_OK},
        {{MODEL_BY(KDA_GATE_SOFTPLUS, KDA_BETA_SIGMOID)}, NULL, KDA_ENGINE_MMA, KDA_OK},
        {{MODEL_BY(KDA_GATE_LOG, KDA_BETA_SIGMOID)}, NULL, KDA_ENGINE_FUSED, KDA_OK},
        {{MODEL_BY(KDA_GATE_NONE, KDA_BETA_SIGMOID)}, NULL, KDA_ENGINE_FUSED, KDA_OK},
        {{MODEL_BY(KDA_GATE_BOUNDED, KDA_BETA_GIVEN)}, NULL, KDA_ENGINE_FUSED, KDA_OK},
        {{MODEL_BY(KDA_GATE_BOUNDED, KDA_BETA_SIGMOID2)}, NULL, KDA_ENGINE_FUSED, KDA_OK},
        {{MODEL_BY(KDA_GATE_LOG, KDA_BETA_SIGMOID)}, &mma, 0, KDA_UNSUPPORTED},
        {{MODEL_BY(KDA_GATE_LOG, KDA_BETA_GIVEN), .engine = KDA_ENGINE_MMA},
         NULL,
         KDA_ENGINE_MMA,
         KDA_OK},
        {{MODEL_OF(KDA_F16), .flags = KDA_NORM_QK}, NULL, KDA_ENGINE_FUSED, KDA_OK},
        {{MODEL_OF(KDA_F16), .flags = KDA_NORM_QK}, &mma, KDA_ENGINE_MMA, KDA_OK},
        {{MODEL_OF(KDA_F16), .engine = KDA_ENGINE_MMA}, NULL, 0, KDA_UNSUPPORTED},
        {{MODEL, .engine = KDA_ENGINE_MMA}, NULL, KDA_ENGINE_MMA, KDA_OK},
        {{MODEL, .flags = KDA_NORM_QK}, &fused, KDA_ENGINE_FUSED, KDA_OK},
        {{MODEL, .flags = KDA_NORM_QK}, &scan, KDA_ENGINE_FUSED, KDA_OK},
        {{MODEL}, &mma, 0, KDA_UNSUPPORTED},
        {{MODEL, .flags = KDA_NORM_QK, .segment = 1024}, NULL, KDA_ENGINE_MMA, KDA_OK},
        {{MODEL, .segment = 1024}, NULL, KDA_ENGINE_FUSED, KDA_OK},
    };
    play.extensions = "cl_nv_device_attribute_query";
    kda_context *ctx = open_device(0);
    ctx->device->is_cpu = false;
    for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++) {
        struct kda_config config = {.step_limit = 0};
        kda_problem p;
        ck_assert_int_eq(kda_problem_resolve(ctx, &choices[i].problem, &p), KDA_OK);
        kda_tuned_apply(choices[i].row, &p);
        warned = 0;
        ck_assert_int_eq(kda_config_choose(ctx, &p, choices[i].row, KDA_PATH_PTX, &config),
                         choices[i].status);
        /* A caller's mistake is an error; of segments a warning says that they are untried. */
        ck_assert_int_eq(warned, (choices[i].status && choices[i].row) || config.segment);
        if (!choices[i].status)
            ck_assert_msg(config.engine == choices[i].engine &&
                              (config.engine == KDA_ENGINE_MMA) == (config.teams > 0) &&
                              64 * config.segment == (config.teams ? p.segment : 0),
                          "choice %zu: engine %d, %d teams", i, config.engine, config.teams);
    }
    kda_context_destroy(&ctx);
}
END_TEST

static void find_line(void *data, kda_log_level level, const char *line)
{
    const char **wanted = data;
    if (level == KDA_LOG_WARN && *wanted && strstr(line, *wanted))
        *wanted = NULL;
}

/* PoCL builds none of their kernels: the plan goes on without, and says so. */
START_TEST(test_auto_goes_on_without_matrix_units)
{
    const char *wanted = "by matrix units: using the engine fused instead";
    const kda_problem problem = {MODEL, .flags = KDA_NORM_QK};
    char text[256];
    kda_context *ctx;
    kda_plan *plan;
    play.extensions = "cl_nv_device_attribute_query";
    ck_assert_int_eq(
        kda_context_create(&ctx, kda_context_params(.backend = KDA_OPENCL, .device = device,
                                                    .log = find_line, .log_data = &wanted)),
        KDA_OK);
    ck_assert_int_eq(kda_plan_create(&plan, ctx, &problem), KDA_OK);
    kda_plan_describe(plan, text, sizeof text);
    ck_assert_msg(strstr(text, "engine=fused") && strstr(text, "path=local"), "%s", text);
    ck_assert_ptr_null(wanted);
    kda_plan_destroy(&plan);
    kda_context_destroy(&ctx);
}
END_TEST

static void play_nothing(void)
{
    memset(&play, 0, sizeof play);
}

int main(void)
{
    kda_context_params params = {.struct_size = sizeof params};
    if (spec_resolve("Portable", &params))
        return EXIT_FAILURE;
    device = params.device;
    Suite *suite = suite_create("probes");
    TCase *tc = tcase_create("probes");
    tcase_add_checked_fixture(tc, play_nothing, NULL);
    tcase_set_timeout(tc, 300);
    tcase_add_test(tc, test_nvidia);
    tcase_add_loop_test(tc, test_sub_groups, 0, 2);
    tcase_add_test(tc, test_amd);
    tcase_add_test(tc, test_intel);
    tcase_add_test(tc, test_no_context);
    tcase_add_test(tc, test_small_local_memory);
    tcase_add_test(tc, test_no_work_group);
    tcase_add_test(tc, test_other_sub_groups);
    tcase_add_test(tc, test_auto_on_matrix_units);
    tcase_add_test(tc, test_auto_goes_on_without_matrix_units);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    return runner_run(runner) ? EXIT_FAILURE : EXIT_SUCCESS;
}

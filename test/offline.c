/* offline FOLDER: the programs that the library builds on devices which aren't here. Each device is
 * a description; OpenCL is a stand-in that takes any program as built and writes it into FOLDER,
 * for the devices' own compilers. What to build, and with which options, is said by the library
 * alone: plans are made as on a real device.
 *
 * Writes DEVICE-NUMBER.cl and prints, for each, "DEVICE NUMBER PROBLEM hot|cold OPTION...", where
 * hot ones are those of the published models. Programs that differ in nothing come once.
 *
 * SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../lib/internal.h"

/* What a device's driver answers, and what probes would find. */
static const struct device {
    const char *name;
    enum kda_path path;
    int32_t lanes;
    bool is_cpu, matrix;
    enum kda_unit unit;
    cl_uint compute_units;
    size_t max_work_group;
    cl_ulong local_bytes;
} devices[] = {
    {"gfx906", KDA_PATH_LOCAL, 1, false, false, KDA_UNIT_NONE, 60, 256, 65536},
    {"gfx908", KDA_PATH_LOCAL, 1, false, false, KDA_UNIT_MFMA, 120, 256, 65536},
    {"gfx90a", KDA_PATH_LOCAL, 1, false, false, KDA_UNIT_MFMA, 104, 256, 65536},
    {"gfx942", KDA_PATH_LOCAL, 1, false, false, KDA_UNIT_MFMA, 304, 256, 65536},
    {"gfx1100", KDA_PATH_LOCAL, 1, false, false, KDA_UNIT_WMMA, 48, 256, 65536},
    {"gfx1201", KDA_PATH_LOCAL, 1, false, false, KDA_UNIT_WMMA, 32, 256, 65536},
    {"skl", KDA_PATH_SUB_GROUPS, 16, false, false, KDA_UNIT_NONE, 24, 256, 65536},
    {"tgllp", KDA_PATH_SUB_GROUPS, 16, false, false, KDA_UNIT_NONE, 96, 512, 65536},
    {"dg2", KDA_PATH_SUB_GROUPS, 16, false, false, KDA_UNIT_DPAS8, 512, 1024, 65536},
    {"pvc", KDA_PATH_SUB_GROUPS, 32, false, false, KDA_UNIT_DPAS16, 512, 1024, 131072},
    {"sm_80", KDA_PATH_PTX, 32, false, false, KDA_UNIT_NONE, 108, 1024, 49152},
    {"sm_90a", KDA_PATH_PTX, 32, false, true, KDA_UNIT_NONE, 132, 1024, 229376},
    {"spirv", KDA_PATH_LOCAL, 1, false, false, KDA_UNIT_NONE, 8, 128, 16384},
    {"spirv_cpu", KDA_PATH_LOCAL, 1, true, false, KDA_UNIT_NONE, 8, 4096, 524288},
};

#define MODEL                                                                                      \
    .key_dim = 128, .value_dim = 128, .dtype = KDA_BF16, .beta = KDA_BETA_SIGMOID,                 \
    .flags = KDA_NORM_QK
#define LINEAR MODEL, .heads = 32, .gate = KDA_GATE_SOFTPLUS
#define K3 MODEL, .heads = 96, .gate = KDA_GATE_BOUNDED
#define PROBLEM(...)                                                                               \
    {                                                                                              \
        .struct_size = sizeof(kda_problem), __VA_ARGS__                                            \
    }

/* The published models; then what else changes the choice of kernels and their shapes, with every
 * option taking each of its values. */
static const struct {
    const char *name;
    bool hot;
    kda_problem problem;
} problems[] = {
    {"decode", true,
     PROBLEM(LINEAR, .max_tokens = 64, .max_sequences = 64, .schedule = KDA_SCHEDULE_RECURRENT)},
    {"prefill", true, PROBLEM(LINEAR, .max_tokens = 8192)},
    {"k3", true, PROBLEM(K3, .max_tokens = 8192, .max_sequences = 64)},
    {"k3_mma", true, PROBLEM(K3, .max_tokens = 8192, .engine = KDA_ENGINE_MMA)},
    {"clblast", false,
     PROBLEM(.heads = 32, .key_dim = 128, .value_dim = 128, .max_tokens = 8192,
             .engine = KDA_ENGINE_CLBLAST, .gate = KDA_GATE_NONE, .state_layout = KDA_STATE_VK)},
    {"k256_f16", false,
     PROBLEM(.heads = 2, .value_heads = 4, .key_dim = 256, .value_dim = 60, .max_tokens = 512,
             .dtype = KDA_F16, .flags = KDA_GATE_PER_HEAD, .head_map = KDA_HEADS_MODULO,
             .beta = KDA_BETA_SIGMOID2, .state_dtype = KDA_F16, .chunk = 16,
             .engine = KDA_ENGINE_FUSED)},
    {"k60_bf16", false,
     PROBLEM(.heads = 1, .key_dim = 60, .value_dim = 5, .max_tokens = 512, .dtype = KDA_BF16,
             .g_dtype = KDA_F32, .beta_dtype = KDA_F32, .out_dtype = KDA_F32,
             .state_dtype = KDA_BF16, .rule = KDA_RULE_ADDITIVE, .chunk = 32,
             .engine = KDA_ENGINE_FUSED)},
    {"k1_f32", false, PROBLEM(.heads = 1, .key_dim = 1, .value_dim = 1, .max_tokens = 1)},
    {"mma", false,
     PROBLEM(.heads = 2, .key_dim = 128, .value_dim = 128, .max_tokens = 128, .dtype = KDA_F16,
             .flags = KDA_NORM_QK, .gate = KDA_GATE_SOFTPLUS, .beta = KDA_BETA_SIGMOID2,
             .engine = KDA_ENGINE_MMA, .state_layout = KDA_STATE_VK, .state_dtype = KDA_BF16)},
    {"k64_mma", false,
     PROBLEM(.heads = 4, .key_dim = 64, .value_dim = 128, .max_tokens = 4096, .dtype = KDA_BF16,
             .gate = KDA_GATE_SOFTPLUS, .beta = KDA_BETA_SIGMOID, .flags = KDA_NORM_QK,
             .engine = KDA_ENGINE_MMA)},
    {"cut_mma", false,
     PROBLEM(MODEL, .heads = 4, .gate = KDA_GATE_BOUNDED, .max_tokens = 65536, .segment = 2048,
             .engine = KDA_ENGINE_MMA)},
    {"k60_mma", false,
     PROBLEM(.heads = 1, .key_dim = 60, .value_dim = 5, .max_tokens = 512, .dtype = KDA_BF16,
             .chunk = 16, .rule = KDA_RULE_ADDITIVE, .engine = KDA_ENGINE_MMA)},
    {"k256_mma", false,
     PROBLEM(.heads = 2, .key_dim = 256, .value_dim = 200, .max_tokens = 512, .dtype = KDA_F16,
             .chunk = 64, .engine = KDA_ENGINE_MMA)},
};

static const char *folder;
static const struct device *device; /* whose plans are being made */
static size_t problem;              /* the one of them */
static int errors;

/* ---- The stand-in ----------------------------------------------------------------------- */

static int anything; /* what every handle points to, but a program's */

struct _cl_program {
    char text[1 << 18], options[1024]; /* options: once it is built */
};

/* Sums of what has been written for the device. */
static uint64_t written[256];
static int written_count;

static void write_program(const char *text, const char *options)
{
    uint64_t sum = kda_cache_hash(KDA_CACHE_HASH, text, strlen(text));
    sum = kda_cache_hash(sum, options, strlen(options));
    for (int i = 0; i < written_count; i++)
        if (written[i] == sum)
            return;
    char path[1024];
    snprintf(path, sizeof path, "%s/%s-%d.cl", folder, device->name, written_count);
    FILE *file = fopen(path, "w");
    if (!file || fputs(text, file) < 0 || fclose(file)) {
        perror(path);
        exit(EXIT_FAILURE);
    }
    printf("%s %d %s %s %s\n", device->name, written_count, problems[problem].name,
           problems[problem].hot ? "hot" : "cold", options);
    written[written_count++] = sum;
}

cl_context clCreateContext(const cl_context_properties *properties, cl_uint count,
                           const cl_device_id *ids,
                           void(CL_CALLBACK *notify)(const char *, const void *, size_t, void *),
                           void *data, cl_int *err)
{
    (void)properties, (void)count, (void)ids, (void)notify, (void)data;
    *err = CL_SUCCESS;
    return (cl_context)&anything;
}

cl_command_queue clCreateCommandQueue(cl_context context, cl_device_id id,
                                      cl_command_queue_properties properties, cl_int *err)
{
    (void)context, (void)id, (void)properties;
    *err = CL_SUCCESS;
    return (cl_command_queue)&anything;
}

cl_program clCreateProgramWithSource(cl_context context, cl_uint count, const char **strings,
                                     const size_t *lengths, cl_int *err)
{
    (void)context, (void)lengths;
    size_t used = 0;
    cl_program program = calloc(1, sizeof *program);
    for (cl_uint i = 0; program && i < count; i++)
        used +=
            (size_t)snprintf(program->text + used, sizeof program->text - used, "%s", strings[i]);
    *err = program ? CL_SUCCESS : CL_OUT_OF_HOST_MEMORY;
    return program;
}

cl_int clBuildProgram(cl_program program, cl_uint count, const cl_device_id *ids,
                      const char *options, void(CL_CALLBACK *notify)(cl_program, void *),
                      void *data)
{
    (void)count, (void)ids, (void)notify, (void)data;
    snprintf(program->options, sizeof program->options, "%s", options);
    return CL_SUCCESS;
}

cl_int clGetProgramBuildInfo(cl_program program, cl_device_id id, cl_program_build_info what,
                             size_t size, void *value, size_t *answer)
{
    (void)program, (void)id, (void)what, (void)size, (void)value;
    if (answer)
        *answer = 0;
    return CL_SUCCESS;
}

cl_kernel clCreateKernel(cl_program program, const char *name, cl_int *err)
{
    (void)name;
    write_program(program->text, program->options);
    *err = CL_SUCCESS;
    return (cl_kernel)&anything;
}

cl_int clGetKernelWorkGroupInfo(cl_kernel kernel, cl_device_id id, cl_kernel_work_group_info what,
                                size_t size, void *value, size_t *answer)
{
    (void)kernel, (void)id, (void)what, (void)size, (void)value, (void)answer;
    return CL_INVALID_VALUE; /* it runs in any work-group */
}

static cl_int CL_API_CALL sub_group_info(cl_kernel kernel, cl_device_id id, cl_uint what,
                                         size_t in_size, const void *in, size_t size, void *value,
                                         size_t *answer)
{
    (void)kernel, (void)id, (void)what, (void)in_size, (void)in, (void)answer;
    size_t lanes = (size_t)device->lanes;
    memcpy(value, &lanes, size);
    return CL_SUCCESS;
}

cl_int clReleaseProgram(cl_program program)
{
    free(program);
    return CL_SUCCESS;
}

#define RELEASE(name, type)                                                                        \
    cl_int name(type handle)                                                                       \
    {                                                                                              \
        (void)handle;                                                                              \
        return CL_SUCCESS;                                                                         \
    }
RELEASE(clReleaseContext, cl_context)
RELEASE(clReleaseCommandQueue, cl_command_queue)
RELEASE(clReleaseKernel, cl_kernel)

/* ---- In place of two parts of the library ----------------------------------------------- */

kda_status __wrap_kda_device_probe(kda_context *ctx);
kda_status __wrap_kda_known_answer(const kda_plan *plan, bool *right);

kda_status __wrap_kda_device_probe(kda_context *ctx)
{
    struct kda_device *d = ctx->device;
    d->path = device->path;
    d->lanes = device->lanes;
    d->is_cpu = device->is_cpu;
    d->matrix = device->matrix;
    d->unit = device->unit;
    d->compute_units = device->compute_units;
    d->max_work_group = device->max_work_group;
    d->local_bytes = device->local_bytes;
    d->max_alloc_bytes = 1 << 30;
    d->sub_group_info = sub_group_info;
    return KDA_OK;
}

kda_status __wrap_kda_known_answer(const kda_plan *plan, bool *right)
{
    (void)plan;
    *right = true;
    return KDA_OK;
}

/* ----------------------------------------------------------------------------------------- */

static void print_log(void *data, kda_log_level level, const char *line)
{
    (void)data, (void)level;
    fprintf(stderr, "%s: %s\n", device->name, line);
}

static void make_plans(void)
{
    kda_context *ctx;
    kda_plan *plan;
    written_count = 0;
    errors += kda_context_create(
        &ctx, kda_context_params(.device = (cl_device_id)&anything, .log = print_log));
    for (problem = 0; ctx && problem < KDA_COUNT_OF(problems); problem++) {
        const kda_problem *p = &problems[problem].problem;
        if (p->engine == KDA_ENGINE_MMA && !device->unit &&
            !((device->matrix || device->is_cpu) && p->key_dim % 64 == 0 && p->key_dim <= 128))
            continue;
        errors += kda_plan_create(&plan, ctx, p) != KDA_OK;
        kda_plan_destroy(&plan);
    }
    kda_context_destroy(&ctx);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: offline FOLDER\n");
        return EXIT_FAILURE;
    }
    folder = argv[1];
    for (size_t i = 0; i < KDA_COUNT_OF(devices); i++) {
        device = &devices[i];
        make_plans();
    }
    return errors ? EXIT_FAILURE : EXIT_SUCCESS;
}

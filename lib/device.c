/* What is true of an OpenCL device: queried from the driver, probed by building and running a
 * kernel, corrected by the quirk table. Elsewhere code asks for facts, never for names.
 *
 * SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#ifdef __GNUC__
__attribute__((format(printf, 4, 5)))
#endif
static void
add_fact(struct kda_device *d, const char *source, const char *name, const char *format, ...)
{
    if (d->fact_count == KDA_COUNT_OF(d->fact))
        return;
    va_list list;
    va_start(list, format);
    snprintf(d->fact[d->fact_count].name, sizeof d->fact[0].name, "%s", name);
    vsnprintf(d->fact[d->fact_count].value, sizeof d->fact[0].value, format, list);
    va_end(list);
    d->fact[d->fact_count++].source = source;
}

const char *kda_device_fact(const struct kda_device *d, const char *name)
{
    for (size_t i = 0; i < d->fact_count; i++)
        if (!strcmp(d->fact[i].name, name))
            return d->fact[i].value;
    return "";
}

/* What OpenCL says of the device; name is that of the question. */
static kda_status query(const kda_context *ctx, cl_device_info what, const char *name, size_t size,
                        void *value, size_t *answer)
{
    char call[80];
    snprintf(call, sizeof call, "clGetDeviceInfo(%s)", name);
    return kda_cl_check(ctx, clGetDeviceInfo(ctx->device->id, what, size, value, answer), call);
}

/* A string of the device, to be freed. */
static kda_status query_string(const kda_context *ctx, cl_device_info what, const char *name,
                               char **text)
{
    size_t size = 0;
    *text = NULL;
    kda_status st = query(ctx, what, name, 0, NULL, &size);
    if (st)
        return st;
    *text = calloc(size + 1, 1);
    if (!*text)
        return kda_no_memory(ctx, name, size + 1);
    st = size ? query(ctx, what, name, size, *text, NULL) : KDA_OK;
    if (!st)
        return KDA_OK;
    free(*text);
    *text = NULL;
    return st;
}

#define NAMED(what) what, #what

static kda_status query_strings(const kda_context *ctx, struct kda_device *d)
{
    static const struct {
        cl_device_info what;
        const char *question, *name;
    } strings[] = {
        {NAMED(CL_DEVICE_NAME), "name"},
        {NAMED(CL_DEVICE_VENDOR), "vendor"},
        {NAMED(CL_DEVICE_VERSION), "version"},
        {NAMED(CL_DEVICE_OPENCL_C_VERSION), "opencl_c_version"},
        {NAMED(CL_DRIVER_VERSION), "driver"},
    };
    for (size_t i = 0; i < KDA_COUNT_OF(strings); i++) {
        char *text;
        kda_status st = query_string(ctx, strings[i].what, strings[i].question, &text);
        if (st)
            return st;
        add_fact(d, "queried", strings[i].name, "%s", text);
        free(text);
    }
    return KDA_OK;
}

static kda_status query_limits(const kda_context *ctx, struct kda_device *d)
{
    cl_device_type type = 0;
    cl_bool compiler = CL_FALSE;
    cl_ulong global = 0;
    cl_uint width = 1; /* PoCL: the processor's; llvmpipe: 1, it is a GPU's driver in all else */
    const struct {
        cl_device_info what;
        const char *question;
        size_t size;
        void *value;
    } limits[] = {
#define INTO(x) sizeof(x), &(x)
        {NAMED(CL_DEVICE_TYPE), INTO(type)},
        {NAMED(CL_DEVICE_MAX_COMPUTE_UNITS), INTO(d->compute_units)},
        {NAMED(CL_DEVICE_MAX_WORK_GROUP_SIZE), INTO(d->max_work_group)},
        {NAMED(CL_DEVICE_LOCAL_MEM_SIZE), INTO(d->local_bytes)},
        {NAMED(CL_DEVICE_MAX_MEM_ALLOC_SIZE), INTO(d->max_alloc_bytes)},
        {NAMED(CL_DEVICE_GLOBAL_MEM_SIZE), INTO(global)},
        {NAMED(CL_DEVICE_COMPILER_AVAILABLE), INTO(compiler)},
        {NAMED(CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT), INTO(width)},
#undef INTO
    };
    for (size_t i = 0; i < KDA_COUNT_OF(limits); i++) {
        kda_status st =
            query(ctx, limits[i].what, limits[i].question, limits[i].size, limits[i].value, NULL);
        if (st)
            return st;
    }
    d->is_cpu = type & CL_DEVICE_TYPE_CPU;
    d->has_vectors = d->is_cpu && width > 1;
    d->builds_at_once = !d->is_cpu;
    add_fact(d, "queried", "type", "%s",
             type & CL_DEVICE_TYPE_GPU   ? "gpu"
             : type & CL_DEVICE_TYPE_CPU ? "cpu"
                                         : "accelerator");
    add_fact(d, "queried", "float_vector_width", "%u", width);
    add_fact(d, "queried", "compute_units", "%u", d->compute_units);
    add_fact(d, "queried", "max_work_group_size", "%zu", d->max_work_group);
    add_fact(d, "queried", "local_memory_bytes", "%llu", (unsigned long long)d->local_bytes);
    add_fact(d, "queried", "max_alloc_bytes", "%llu", (unsigned long long)d->max_alloc_bytes);
    add_fact(d, "queried", "global_memory_bytes", "%llu", (unsigned long long)global);
    add_fact(d, "queried", "compiler", "%s", compiler ? "yes" : "no");
    if (!compiler || !d->max_work_group) {
        kda_log(ctx, KDA_LOG_ERROR, "the OpenCL device has no compiler or no work-groups");
        return KDA_NO_DEVICE;
    }
    return KDA_OK;
}

/* Known answer of lane_xor: lane i of a full work-group must receive what lane i ^ mask sent, for
 * every mask a reduction uses. The kernel also tells how many lanes its sub-group has. */
static const char probe_source[] =
    "__kernel WORK_GROUP(128)\n"
    "void probe(__global float *out, __global int *lanes)\n"
    "{\n"
    "    const int lid = (int)get_local_id(0);\n"
    "#if KDA_PATH == KDA_PATH_SUB_GROUPS\n"
    "    if (lid == 0)\n"
    "        *lanes = (int)get_sub_group_size();\n"
    "#else\n"
    "    if (lid == 0)\n"
    "        *lanes = 32;\n"
    "#endif\n"
    "    for (int i = 0; i < 3; i++)\n"
    "        out[i * 128 + lid] = \n"
    "            lane_xor(bf16_to_float(float_to_bf16((float)lid)), 1u << i);\n"
    "}\n";

enum { PROBE_ITEMS = 128, PROBE_MASKS = 3 };

/* Runs the probe and returns the number of lanes, or 0 if an answer was wrong. */
static int32_t run_probe(const struct kda_device *d, cl_kernel kernel)
{
    float answer[PROBE_MASKS * PROBE_ITEMS];
    cl_int lanes = 0, err;
    size_t items = PROBE_ITEMS;
    cl_mem out = clCreateBuffer(d->context, CL_MEM_WRITE_ONLY, sizeof answer, NULL, &err);
    cl_mem width = err ? NULL : clCreateBuffer(d->context, CL_MEM_WRITE_ONLY, 4, NULL, &err);
    bool ran =
        !err && !clSetKernelArg(kernel, 0, sizeof out, &out) &&
        !clSetKernelArg(kernel, 1, sizeof width, &width) &&
        !clEnqueueNDRangeKernel(d->queue, kernel, 1, NULL, &items, &items, 0, NULL, NULL) &&
        !clEnqueueReadBuffer(d->queue, out, CL_TRUE, 0, sizeof answer, answer, 0, NULL, NULL) &&
        !clEnqueueReadBuffer(d->queue, width, CL_TRUE, 0, 4, &lanes, 0, NULL, NULL);
    if (out)
        clReleaseMemObject(out);
    if (width)
        clReleaseMemObject(width);
    bool right = ran && lanes >= 8 && lanes <= PROBE_ITEMS && (lanes & (lanes - 1)) == 0;
    for (int i = 0; right && i < PROBE_MASKS * PROBE_ITEMS; i++)
        right = answer[i] == (float)((i % PROBE_ITEMS) ^ (1 << i / PROBE_ITEMS));
    return right ? lanes : 0;
}

/* CL_KERNEL_MAX_SUB_GROUP_SIZE_FOR_NDRANGE_KHR */
#define SUB_GROUP_SIZE_FOR_RANGE 0x2033

size_t kda_device_sub_group_size(const struct kda_device *d, cl_kernel kernel, size_t work_items)
{
    size_t size = 0;
    if (d->sub_group_info)
        d->sub_group_info(kernel, d->id, SUB_GROUP_SIZE_FOR_RANGE, sizeof work_items, &work_items,
                          sizeof size, &size, NULL);
    return size;
}

/* Tries one path; takes it if it builds and answers right. */
static kda_status probe_path(kda_context *ctx, enum kda_path path, const char *name)
{
    struct kda_device *d = ctx->device;
    char options[96];
    snprintf(options, sizeof options, "-cl-std=CL1.2 -DKDA_PATH=%d", (int)path);
    cl_kernel kernel;
    kda_status st = kda_program_probe(ctx, false, probe_source, options, "probe", &kernel);
    if (st) {
        add_fact(d, "probed", name, "no: it does not build");
        return st == KDA_MEMORY ? st : KDA_OK;
    }
    int32_t lanes = d->max_work_group >= PROBE_ITEMS ? run_probe(d, kernel) : 0;
    clReleaseKernel(kernel);
    if (!lanes) {
        kda_log(ctx, KDA_LOG_WARN, "%s builds but gives a wrong answer: not used", name);
        add_fact(d, "probed", name, "no: wrong answer");
        return KDA_OK;
    }
    add_fact(d, "probed", name, "yes, %d lanes", (int)lanes);
    d->path = path;
    d->lanes = lanes;
    return KDA_OK;
}

/* Inline assembly can take a compiler down instead of failing to build, so the PTX path is tried
 * only where the driver shows an NVIDIA extension. */
static kda_status probe_paths(kda_context *ctx, const char *extensions)
{
    struct kda_device *d = ctx->device;
    cl_platform_id platform = NULL;
    kda_status st = query(ctx, NAMED(CL_DEVICE_PLATFORM), sizeof platform, &platform, NULL);
    if (st)
        return st;
    /* ISO C has no cast from an object pointer to a function pointer. */
    void *address =
        clGetExtensionFunctionAddressForPlatform(platform, "clGetKernelSubGroupInfoKHR");
    memcpy(&d->sub_group_info, &address, sizeof address);
    d->path = KDA_PATH_LOCAL;
    d->lanes = 1;
    if (d->is_cpu)
        ; /* work-items are loops there */
    else if (strstr(extensions, "cl_nv_"))
        st = probe_path(ctx, KDA_PATH_PTX, "ptx_shuffle");
    else if (d->sub_group_info && (strstr(extensions, "cl_khr_subgroup_shuffle") ||
                                   strstr(extensions, "cl_intel_subgroups")))
        st = probe_path(ctx, KDA_PATH_SUB_GROUPS, "sub_group_shuffle");
    return st;
}

/* What drivers get wrong, as corrected facts: which device, the symptom, what we do. */
static void apply_quirks(kda_context *ctx, struct kda_device *d)
{
    /* Mesa's llvmpipe (22.3.6 on Debian 12, 2026-11-29) leaves every loop of a work-item once all
     * its loops together have turned 65535 times (gallivm's LP_MAX_TGSI_LOOP_ITERATIONS), without a
     * word. Calls that could turn more often are refused. */
    if (strstr(kda_device_fact(d, "name"), "llvmpipe")) {
        d->max_loop_turns = 65535;
        add_fact(d, "quirk", "max_loop_turns", "%d: longer loops end early without an error",
                 (int)d->max_loop_turns);
        kda_log(ctx, KDA_LOG_INFO, "quirk of llvmpipe: at most %d loop iterations in a work-item",
                (int)d->max_loop_turns);
    }
    /* PoCL (3.1 on Debian 12, 2026-11-30): builds at once in one context write to one string of the
     * context's, without a lock (ThreadSanitizer). So there they are in turn, on GPUs too. */
    if (strstr(kda_device_fact(d, "version"), "PoCL")) {
        d->builds_at_once = false;
        add_fact(d, "quirk", "builds_at_once", "no: they would write to one string");
    }
}

static kda_status probe(kda_context *ctx, const char *extensions)
{
    struct kda_device *d = ctx->device;
    const char *matrix;
    bool probed;
    kda_status st = probe_paths(ctx, extensions);
    if (st || (st = kda_device_probe_local(ctx, &probed)))
        return st;
    if (probed)
        add_fact(d, "probed", "declared_local_bytes", "%llu", (unsigned long long)d->local_bytes);
    if ((st = kda_device_probe_matrix(ctx, &matrix)) ||
        (st = kda_device_probe_unit(ctx, extensions, &matrix)))
        return st;
    add_fact(d, "probed", "matrix_units", "%s", matrix);
    return KDA_OK;
}

kda_status kda_device_probe(kda_context *ctx)
{
    char *extensions;
    kda_status st = query_strings(ctx, ctx->device);
    if (st || (st = query_limits(ctx, ctx->device)))
        return st;
    apply_quirks(ctx, ctx->device);
    if ((st = query_string(ctx, NAMED(CL_DEVICE_EXTENSIONS), &extensions)))
        return st;
    st = probe(ctx, extensions);
    free(extensions);
    return st;
}

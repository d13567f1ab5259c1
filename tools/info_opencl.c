/* What OpenCL says, asked field by field: a driver that refuses one question, or knows no device,
 * leaves a note and the questions go on.
 *
 * SPDX-License-Identifier: MIT */
#include "info.h"
#include "machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Spelled here for headers that don't have vendors' extensions. */
enum {
    SUB_GROUP_SIZES_INTEL = 0x4108,
    COMPUTE_CAPABILITY_MAJOR_NV = 0x4000,
    COMPUTE_CAPABILITY_MINOR_NV = 0x4001,
    WARP_SIZE_NV = 0x4003,
    WAVEFRONT_WIDTH_AMD = 0x4043
};

enum kind { TEXT, NUMBER_32, NUMBER_64, SIZE, SIZES, YES_NO, TYPE, LOCAL_TYPE, EXTENSION };

/* Names carry their units; those that the library reports as facts have the names they have there.
 * A question that only an extension knows is not put where it is not listed. The kind EXTENSION
 * asks whether the one of that name is. */
static const struct property {
    const char *name;
    cl_device_info what;
    enum kind kind;
    const char *only;
} properties[] = {
    {"vendor", CL_DEVICE_VENDOR, TEXT, NULL},
    {"version", CL_DEVICE_VERSION, TEXT, NULL},
    {"opencl_c_version", CL_DEVICE_OPENCL_C_VERSION, TEXT, NULL},
    {"driver", CL_DRIVER_VERSION, TEXT, NULL},
    {"type", CL_DEVICE_TYPE, TYPE, NULL},
    {"available", CL_DEVICE_AVAILABLE, YES_NO, NULL},
    {"compiler", CL_DEVICE_COMPILER_AVAILABLE, YES_NO, NULL},
    {"compute_units", CL_DEVICE_MAX_COMPUTE_UNITS, NUMBER_32, NULL},
    {"clock_mhz", CL_DEVICE_MAX_CLOCK_FREQUENCY, NUMBER_32, NULL},
    {"address_bits", CL_DEVICE_ADDRESS_BITS, NUMBER_32, NULL},
    {"max_work_group_size", CL_DEVICE_MAX_WORK_GROUP_SIZE, SIZE, NULL},
    {"global_memory_bytes", CL_DEVICE_GLOBAL_MEM_SIZE, NUMBER_64, NULL},
    {"max_alloc_bytes", CL_DEVICE_MAX_MEM_ALLOC_SIZE, NUMBER_64, NULL},
    {"global_cache_bytes", CL_DEVICE_GLOBAL_MEM_CACHE_SIZE, NUMBER_64, NULL},
    {"local_memory_bytes", CL_DEVICE_LOCAL_MEM_SIZE, NUMBER_64, NULL},
    {"local_memory_type", CL_DEVICE_LOCAL_MEM_TYPE, LOCAL_TYPE, NULL},
    {"timer_ns", CL_DEVICE_PROFILING_TIMER_RESOLUTION, SIZE, NULL},
    {"cl_khr_fp16", 0, EXTENSION, NULL},
    {"cl_khr_subgroups", 0, EXTENSION, NULL},
    {"cl_khr_subgroup_shuffle", 0, EXTENSION, NULL},
    {"cl_intel_subgroups", 0, EXTENSION, NULL},
    {"sub_group_sizes", SUB_GROUP_SIZES_INTEL, SIZES, "cl_intel_required_subgroup_size"},
    {"compute_capability_major", COMPUTE_CAPABILITY_MAJOR_NV, NUMBER_32,
     "cl_nv_device_attribute_query"},
    {"compute_capability_minor", COMPUTE_CAPABILITY_MINOR_NV, NUMBER_32,
     "cl_nv_device_attribute_query"},
    {"warp_size", WARP_SIZE_NV, NUMBER_32, "cl_nv_device_attribute_query"},
    {"wavefront_width", WAVEFRONT_WIDTH_AMD, NUMBER_32, "cl_amd_device_attribute_query"},
    {"extensions", CL_DEVICE_EXTENSIONS, TEXT, NULL},
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

const char *info_text(const cJSON *object, const char *name)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItem(object, name));
    return text ? text : "";
}

/* The answer with a zero byte behind it, to be freed; NULL with the code if there is none. */
static void *device_answer(cl_device_id id, cl_device_info what, size_t *size, cl_int *code)
{
    *size = 0;
    *code = clGetDeviceInfo(id, what, 0, NULL, size);
    char *answer = *code ? NULL : calloc(*size + 1, 1);
    if (answer && (*code = clGetDeviceInfo(id, what, *size, answer, NULL))) {
        free(answer);
        answer = NULL;
    }
    return answer;
}

/* Whether a word stands in a list with blanks between. */
static bool is_listed(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = list; (at = strstr(at, word)); at += length)
        if ((at == list || at[-1] == ' ') && (at[length] == ' ' || !at[length]))
            return true;
    return false;
}

static cJSON *type_value(cl_device_type type)
{
    return cJSON_CreateString(type & CL_DEVICE_TYPE_GPU           ? "gpu"
                              : type & CL_DEVICE_TYPE_ACCELERATOR ? "accelerator"
                              : type & CL_DEVICE_TYPE_CPU         ? "cpu"
                                                                  : "custom");
}

static cJSON *sizes_value(const size_t *sizes, size_t count)
{
    cJSON *array = cJSON_CreateArray();
    for (size_t i = 0; i < count; ++i)
        cJSON_AddItemToArray(array, cJSON_CreateNumber((double)sizes[i]));
    return array;
}

/* NULL if the answer has another size than its kind. */
static cJSON *make_value(enum kind kind, const void *answer, size_t size)
{
    union {
        cl_uint u32;
        cl_ulong u64;
        size_t size;
        cl_bool yes;
        cl_device_type type;
    } v = {0};
    static const size_t sizes[] = {
        [NUMBER_32] = sizeof v.u32, [NUMBER_64] = sizeof v.u64, [SIZE] = sizeof v.size,
        [YES_NO] = sizeof v.yes,    [TYPE] = sizeof v.type,     [LOCAL_TYPE] = sizeof v.u32};
    if (kind == TEXT)
        return cJSON_CreateString(answer);
    if (kind == SIZES)
        return sizes_value(answer, size / sizeof v.size);
    if (size != sizes[kind])
        return NULL;
    memcpy(&v, answer, size);
    switch (kind) {
    case NUMBER_32:
        return cJSON_CreateNumber(v.u32);
    case NUMBER_64:
        return cJSON_CreateNumber((double)v.u64);
    case SIZE:
        return cJSON_CreateNumber((double)v.size);
    case YES_NO:
        return cJSON_CreateBool(v.yes != CL_FALSE);
    case LOCAL_TYPE:
        return cJSON_CreateString(v.u32 == CL_LOCAL ? "on chip" : "part of global memory");
    default:
        return type_value(v.type);
    }
}

static void add_note(cJSON *device, const char *name, cl_int code)
{
    char note[96];
    cJSON *notes = cJSON_GetObjectItem(device, "notes");
    if (!notes)
        notes = cJSON_AddArrayToObject(device, "notes");
    if (code)
        snprintf(note, sizeof note, "%s: not known to the driver (OpenCL error %d)", name, code);
    else
        snprintf(note, sizeof note, "%s: the driver's answer has a wrong size", name);
    cJSON_AddItemToArray(notes, cJSON_CreateString(note));
}

static void add_property(cJSON *device, cJSON *values, cl_device_id id, const struct property *p,
                         const char *extensions)
{
    size_t size;
    cl_int code;
    if (p->kind == EXTENSION) {
        cJSON_AddBoolToObject(values, p->name, is_listed(extensions, p->name));
        return;
    }
    if (p->only && !is_listed(extensions, p->only))
        return;
    void *answer = device_answer(id, p->what, &size, &code);
    cJSON *value = answer ? make_value(p->kind, answer, size) : NULL;
    if (!value)
        add_note(device, p->name, code);
    cJSON_AddItemToObject(values, p->name, value ? value : cJSON_CreateNull());
    free(answer);
}

static void add_processor(cJSON *values)
{
    char model[128];
    machine_model(model, sizeof model);
    cJSON_AddStringToObject(values, "processor", model);
    cJSON_AddNumberToObject(values, "cores", machine_cores());
}

void info_add_properties(cJSON *device, cl_device_id id)
{
    cJSON *values = cJSON_AddObjectToObject(device, "properties");
    size_t size;
    cl_int code;
    if (!id) {
        add_processor(values);
        return;
    }
    char *extensions = device_answer(id, CL_DEVICE_EXTENSIONS, &size, &code);
    for (size_t i = 0; i < COUNT(properties); ++i)
        add_property(device, values, id, &properties[i], extensions ? extensions : "");
    free(extensions);
}

static void add_platform_text(cJSON *platform, const char *name, cl_platform_id id,
                              cl_platform_info what)
{
    char text[256] = "";
    if (clGetPlatformInfo(id, what, sizeof text - 1, text, NULL)) {
        cJSON_AddNullToObject(platform, name);
        return;
    }
    while (*text && text[strlen(text) - 1] == ' ')
        text[strlen(text) - 1] = '\0';
    cJSON_AddStringToObject(platform, name, text);
}

static void add_platform(cJSON *list, cl_platform_id id, cl_uint index)
{
    cJSON *platform = cJSON_CreateObject();
    cl_uint devices = 0;
    char note[96];
    cJSON_AddItemToArray(list, platform);
    cJSON_AddNumberToObject(platform, "index", index);
    add_platform_text(platform, "name", id, CL_PLATFORM_NAME);
    add_platform_text(platform, "vendor", id, CL_PLATFORM_VENDOR);
    add_platform_text(platform, "version", id, CL_PLATFORM_VERSION);
    cl_int code = clGetDeviceIDs(id, CL_DEVICE_TYPE_ALL, 0, NULL, &devices);
    cJSON_AddNumberToObject(platform, "devices", code ? 0 : devices);
    if (!code && devices)
        return;
    if (!strcmp(info_text(platform, "name"), "rusticl"))
        snprintf(note, sizeof note, "no device: RUSTICL_ENABLE must name Mesa's drivers to use");
    else if (code && code != CL_DEVICE_NOT_FOUND)
        snprintf(note, sizeof note, "broken: clGetDeviceIDs answers OpenCL error %d", code);
    else
        snprintf(note, sizeof note, "no device of this driver's kind in this machine");
    cJSON_AddStringToObject(platform, "note", note);
}

void info_add_platforms(cJSON *report)
{
    cl_uint count = 0;
    char note[96];
    cJSON *list = cJSON_AddArrayToObject(report, "platforms");
    cl_int code = clGetPlatformIDs(0, NULL, &count);
    cl_platform_id *ids = code || !count ? NULL : calloc(count, sizeof(cl_platform_id));
    if (ids && !(code = clGetPlatformIDs(count, ids, NULL)))
        for (cl_uint i = 0; i < count; ++i)
            add_platform(list, ids[i], i);
    free(ids);
    if (cJSON_GetArraySize(list))
        return;
    snprintf(note, sizeof note, "no OpenCL driver %s (clGetPlatformIDs: OpenCL error %d)",
             cJSON_GetArraySize(cJSON_GetObjectItem(report, "drivers")) ? "works" : "is installed",
             code);
    cJSON_AddStringToObject(report, "note", note);
}

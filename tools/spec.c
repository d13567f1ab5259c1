/* Devices by name. Enumeration goes through every platform whatever the others answer: loaders list
 * platforms that have no device, or fail when asked.
 *
 * SPDX-License-Identifier: MIT */
#include "spec.h"
#include "tuned.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* The list under construction; a failed allocation ends it early. */
struct devices {
    struct spec_device *list;
    size_t count;
};

static cl_platform_id *platforms(cl_uint *count)
{
    cl_platform_id *list = NULL;
    if (clGetPlatformIDs(0, NULL, count) != CL_SUCCESS || !*count ||
        !(list = calloc(*count, sizeof(*list))) ||
        clGetPlatformIDs(*count, list, NULL) != CL_SUCCESS)
        *count = 0;
    return list;
}

/* A name that can't be had stays empty. */
static struct spec_device describe(cl_platform_id platform, cl_device_id id, int number, int index)
{
    struct spec_device d = {.id = id, .platform = number, .index = index};
    clGetDeviceInfo(id, CL_DEVICE_NAME, sizeof(d.name) - 1, d.name, NULL);
    clGetPlatformInfo(platform, CL_PLATFORM_NAME, sizeof(d.platform_name) - 1, d.platform_name,
                      NULL);
    clGetPlatformInfo(platform, CL_PLATFORM_VERSION, sizeof(d.platform_version) - 1,
                      d.platform_version, NULL);
    return d;
}

static void add_platform(struct devices *d, cl_platform_id platform, int number)
{
    cl_uint count = 0;
    cl_device_id *ids = NULL;
    if (clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, NULL, &count) != CL_SUCCESS || !count)
        return;
    struct spec_device *list = realloc(d->list, (d->count + count) * sizeof(*list));
    if (list)
        d->list = list;
    ids = calloc(count, sizeof(cl_device_id));
    if (!list || !ids ||
        clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, count, ids, NULL) != CL_SUCCESS)
        count = 0;
    for (cl_uint i = 0; i < count; ++i)
        d->list[d->count++] = describe(platform, ids[i], number, (int)i);
    free(ids);
}

size_t spec_devices(struct spec_device **list)
{
    struct devices d = {0};
    cl_uint count = 0;
    cl_platform_id *all = platforms(&count);
    for (cl_uint i = 0; i < count; ++i)
        add_platform(&d, all[i], (int)i);
    free(all);
    *list = d.list;
    return d.count;
}

static bool contains(const char *text, const char *part)
{
    for (size_t length = strlen(part); *text; ++text)
        if (!strncasecmp(text, part, length))
            return true;
    return false;
}

/* Whether spec is P:D; indices too large for any list come out as -1. */
static bool parse_indices(const char *spec, int *platform, int *index)
{
    size_t first = strspn(spec, "0123456789");
    size_t second = spec[first] == ':' ? strspn(spec + first + 1, "0123456789") : 0;
    if (!first || !second || spec[first + 1 + second])
        return false;
    *platform = first < 7 ? atoi(spec) : -1;
    *index = second < 7 ? atoi(spec + first + 1) : -1;
    return true;
}

static const struct spec_device *find(const struct spec_device *list, size_t count,
                                      const char *spec)
{
    int platform = -1, index = -1;
    bool indices = parse_indices(spec, &platform, &index);
    for (size_t i = 0; i < count; ++i) {
        const struct spec_device *d = &list[i];
        if (indices ? d->platform == platform && d->index == index
                    : contains(d->name, spec) || contains(d->platform_name, spec) ||
                          contains(d->platform_version, spec))
            return d;
    }
    return NULL;
}

static void print_devices(const struct spec_device *list, size_t count)
{
    fprintf(stderr, "devices here:\n  cpu   the CPU backend; cpu:none, cpu:128, cpu:256, "
                    "cpu:512: in vectors of so many bits at most\n");
    for (size_t i = 0; i < count; ++i)
        fprintf(stderr, "  %d:%d   %s (%s)\n", list[i].platform, list[i].index, list[i].name,
                list[i].platform_name);
    if (!count)
        fprintf(stderr, "  (no OpenCL device)\n");
}

/* Whether spec is the CPU backend, and which vectors it names. */
static bool parse_cpu(const char *spec, kda_vectors *vectors)
{
    static const char *const names[] = {"cpu", "cpu:none", "cpu:128", "cpu:256", "cpu:512"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
        if (!strcasecmp(spec, names[i])) {
            *vectors = (kda_vectors)i;
            return true;
        }
    }
    return false;
}

int spec_resolve(const char *spec, kda_context_params *params)
{
    bool cpu = parse_cpu(spec, &params->vectors);
    if (!*spec) {
        fprintf(stderr, "--device: empty; must be %s\n", SPEC_HELP);
        return EXIT_INPUT;
    }
    if (!cpu && !strncasecmp(spec, "cpu:", 4)) {
        fprintf(stderr, "--device %s: after cpu: must come none, 128, 256 or 512\n", spec);
        return EXIT_INPUT;
    }
    if (cpu || !strcasecmp(spec, "auto")) {
        params->backend = cpu ? KDA_CPU : KDA_AUTO;
        return 0;
    }
    struct spec_device *list;
    size_t count = spec_devices(&list);
    const struct spec_device *device = find(list, count, spec);
    if (device) {
        params->backend = KDA_OPENCL;
        params->device = device->id;
    } else {
        fprintf(stderr, "--device %s: no such device\n", spec);
        print_devices(list, count);
    }
    free(list);
    return device ? 0 : EXIT_NO_DEVICE;
}

const char *spec_cache_dir(void)
{
    static char dir[4001];
    const char *own = getenv("KDA_CACHE_DIR"), *cache = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    if (own)
        snprintf(dir, sizeof dir, "%s", own);
    else if (cache && *cache)
        snprintf(dir, sizeof dir, "%s/kda", cache);
    else if (home && *home)
        snprintf(dir, sizeof dir, "%s/.cache/kda", home);
    return *dir ? dir : NULL;
}

void spec_log(void *data, kda_log_level level, const char *line)
{
    static const char *const names[] = {"", "error", "warning", "info", "debug"};
    (void)data;
    fprintf(stderr, "%s: %s%s\n", names[level], line, tuned_source(line));
}

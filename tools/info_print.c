/* The report for people: the platforms, then one page for each device, aligned.
 *
 * SPDX-License-Identifier: MIT */
#include "info.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where values begin. */
enum { VALUE_COLUMN = 30 };

static void print_bytes(char *text, size_t size, double bytes)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    int unit = 0;
    for (; bytes >= 1024 && unit < 4; ++unit)
        bytes /= 1024;
    snprintf(text, size, "%.4g %s", bytes, units[unit]);
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

/* A name as people write it: "max_alloc_bytes" is "max alloc", its unit goes to the value. Names of
 * extensions stay. */
static void print_name(const char *name)
{
    static const char *const suffixes[] = {"_bytes", "_mhz", "_ns"};
    char text[64];
    snprintf(text, sizeof text, "%s", name);
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; ++i)
        if (ends_with(text, suffixes[i]))
            text[strlen(text) - strlen(suffixes[i])] = '\0';
    for (char *c = text; *c && strncmp(text, "cl_", 3); ++c)
        if (*c == '_')
            *c = ' ';
    printf("    %-*s", VALUE_COLUMN - 4, text);
}

static void print_number(const char *name, double value)
{
    char text[32];
    if (ends_with(name, "_bytes"))
        print_bytes(text, sizeof text, value);
    else
        snprintf(text, sizeof text, "%.15g%s", value,
                 ends_with(name, "_mhz")  ? " MHz"
                 : ends_with(name, "_ns") ? " ns"
                                          : "");
    fputs(text, stdout);
}

static void print_value(const cJSON *value)
{
    if (cJSON_IsNumber(value))
        print_number(value->string, value->valuedouble);
    else if (cJSON_IsString(value))
        fputs(value->valuestring, stdout);
    else if (cJSON_IsBool(value))
        fputs(cJSON_IsTrue(value) ? "yes" : "no", stdout);
    else if (cJSON_IsNull(value))
        fputs("? (see the notes)", stdout);
    for (const cJSON *item = value->child; item; item = item->next)
        printf("%.15g%s", item->valuedouble, item->next ? ", " : "");
}

static double number(const cJSON *row, const char *name)
{
    return cJSON_GetNumberValue(cJSON_GetObjectItem(row, name));
}

static const cJSON *find_fact(const cJSON *device, const char *name)
{
    const cJSON *fact;
    cJSON_ArrayForEach(fact,
                       cJSON_GetObjectItem(device, "facts")) if (!strcmp(info_text(fact, "name"),
                                                                         name)) return fact;
    return NULL;
}

static void print_facts(const cJSON *device)
{
    const cJSON *fact;
    printf("  the library knows\n");
    cJSON_ArrayForEach(fact, cJSON_GetObjectItem(device, "facts"))
    {
        const char *name = info_text(fact, "name"), *value = info_text(fact, "value");
        char text[32];
        print_name(name);
        if (ends_with(name, "_bytes")) {
            print_bytes(text, sizeof text, strtod(value, NULL));
            value = text;
        }
        printf("%-10s%s\n", info_text(fact, "source"), value);
    }
}

/* What is not among the facts; the long list of extensions only when asked for. */
static void print_properties(const cJSON *device, bool verbose)
{
    const cJSON *value;
    printf("  %s\n", *info_text(device, "platform") ? "OpenCL says besides" : "the system says");
    cJSON_ArrayForEach(value, cJSON_GetObjectItem(device, "properties"))
    {
        if (find_fact(device, value->string) || (!verbose && !strcmp(value->string, "extensions")))
            continue;
        print_name(value->string);
        print_value(value);
        printf("\n");
    }
    cJSON_ArrayForEach(value, cJSON_GetObjectItem(device, "notes"))
        printf("    note: %s\n", value->valuestring);
}

static bool is_fine(const cJSON *row)
{
    return !strcmp(info_text(row, "status"), "OK");
}

/* A row that ends in yes, or in no and why. */
static void print_answer(const cJSON *row, const char *name)
{
    bool fine = is_fine(row);
    const char *note = info_text(row, "note");
    printf("    %-*s%s%s%s%s\n", VALUE_COLUMN - 4, name,
           fine ? "yes" : "no: ", info_text(row, "why"), *note ? ", but " : "", note);
}

static void print_support(const cJSON *device)
{
    const cJSON *row;
    char name[64];
    printf("  tensors and states of type\n");
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(device, "types"))
        print_answer(row, info_text(row, "type"));
    printf("  schedules and engines\n");
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(device, "engines"))
    {
        bool only = !strcmp(info_text(row, "engine"), "auto");
        snprintf(name, sizeof name, "%s%s%s", info_text(row, "schedule"), only ? "" : ", ",
                 only ? "" : info_text(row, "engine"));
        print_answer(row, name);
    }
}

static void print_seconds(double seconds)
{
    if (seconds < 1e-3)
        printf("%.1f us", 1e6 * seconds);
    else if (seconds < 1)
        printf("%.1f ms", 1e3 * seconds);
    else
        printf("%.2f s", seconds);
}

static void print_measured(const cJSON *device)
{
    const cJSON *value, *list = cJSON_GetObjectItem(device, "measured");
    static const struct {
        const char *name, *label, *unit;
        double scale;
    } rows[] = {{"copy_bytes_per_s", "a large copy, in and out", "GB/s", 1e-9},
                {"f32_flops_per_s", "f32 multiply-adds", "GFLOP/s", 1e-9},
                {"matrix_flops_per_s", "bf16 on matrix units", "GFLOP/s", 1e-9},
                {"empty_kernel_s", "an empty kernel", "us", 1e6}};
    if (list)
        printf("  measured\n");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i)
        if ((value = cJSON_GetObjectItem(list, rows[i].name)))
            printf("    %-*s%.4g %s\n", VALUE_COLUMN - 4, rows[i].label,
                   rows[i].scale * value->valuedouble, rows[i].unit);
}

static void print_models(const cJSON *device)
{
    const cJSON *row;
    printf("  chosen for the published models\n");
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(device, "models"))
    {
        printf("    %-*s%-32s", VALUE_COLUMN - 4, info_text(row, "model"),
               info_text(row, "problem"));
        if (!is_fine(row)) {
            printf("\n      %s: %s\n", info_text(row, "status"), info_text(row, "why"));
            continue;
        }
        printf("  plan made in ");
        print_seconds(number(row, "plan_create_s"));
        printf("\n      %s\n", info_text(row, "plan"));
        if (*info_text(row, "note"))
            printf("      note: %s\n", info_text(row, "note"));
    }
}

static void print_selftest(const cJSON *device)
{
    const cJSON *row, *list = cJSON_GetObjectItem(device, "selftest");
    if (!list)
        return;
    printf("  self-test against f64\n");
    cJSON_ArrayForEach(row, list)
    {
        printf("    %-48s", info_text(row, "problem"));
        if (is_fine(row))
            printf("pass: out %.1e, state %.1e\n", number(row, "out_error"),
                   number(row, "state_error"));
        else
            printf("FAIL: %s: %s\n", info_text(row, "status"), info_text(row, "why"));
    }
}

static void print_device(const cJSON *device, bool verbose)
{
    const cJSON *entry;
    const char *platform = info_text(device, "platform"), *error = info_text(device, "error");
    printf("\ndevice %s: %s%s%s%s\n", info_text(device, "spec"), info_text(device, "name"),
           *platform ? " (" : "", platform, *platform ? ")" : "");
    if (*error)
        printf("  the library can't use it: %s\n", error);
    else
        print_facts(device);
    print_properties(device, verbose);
    print_measured(device);
    if (!*error) {
        print_support(device);
        print_models(device);
        print_selftest(device);
    }
    if (cJSON_GetArraySize(cJSON_GetObjectItem(device, "log")))
        printf("  the library's log\n");
    cJSON_ArrayForEach(entry, cJSON_GetObjectItem(device, "log"))
        printf("    %s: %s\n", info_text(entry, "level"), info_text(entry, "line"));
}

/* For who has no OpenCL device, or misses one. */
static const char drivers[] = "  Drivers on Debian: any processor, pocl-opencl-icd; Intel GPUs, "
                              "intel-opencl-icd; NVIDIA GPUs,\n"
                              "  nvidia-opencl-icd (non-free); AMD GPUs, mesa-opencl-icd with "
                              "RUSTICL_ENABLE=radeonsi set, or\n"
                              "  AMD's ROCm packages. The CPU backend needs none.\n";

static void print_platforms(const cJSON *report)
{
    const cJSON *platform, *driver;
    bool any = false;
    printf("OpenCL platforms\n");
    cJSON_ArrayForEach(platform, cJSON_GetObjectItem(report, "platforms"))
    {
        int devices = (int)number(platform, "devices");
        any |= devices > 0;
        printf("  %d  %s, %s: ", (int)number(platform, "index"), info_text(platform, "name"),
               info_text(platform, "version"));
        if (devices)
            printf("%d device%s\n", devices, devices > 1 ? "s" : "");
        else
            printf("%s\n", info_text(platform, "note"));
    }
    cJSON_ArrayForEach(driver, cJSON_GetObjectItem(report, "drivers"))
        printf("  -  %s: %s\n", info_text(driver, "file"), info_text(driver, "why"));
    if (cJSON_GetObjectItem(report, "note"))
        printf("  none: %s\n", info_text(report, "note"));
    if (!any)
        fputs(drivers, stdout);
}

static void print_cache(const cJSON *cache)
{
    char size[32];
    if (!cache) {
        printf("built programs: not kept\n\n");
        return;
    }
    print_bytes(size, sizeof size, number(cache, "bytes"));
    printf("built programs: %s, %.0f files, %s\n\n", info_text(cache, "dir"),
           number(cache, "programs"), size);
}

void info_print(const cJSON *report, bool verbose)
{
    const cJSON *device;
    printf("libkda %s\n", info_text(report, "kda"));
    print_cache(cJSON_GetObjectItem(report, "cache"));
    print_platforms(report);
    cJSON_ArrayForEach(device, cJSON_GetObjectItem(report, "devices"))
        print_device(device, verbose);
}

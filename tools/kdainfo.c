/* kdainfo: which devices there are, what is known of them, and what the library does with them.
 * The first thing to look at, and the first thing to paste into a bug report.
 *
 * SPDX-License-Identifier: MIT */
#include "bench.h"
#include "info.h"
#include "output.h"
#include "spec.h"
#include "tuned.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

static const char usage[] =
    "Usage: kdainfo [options]\n"
    "\n"
    "Shows every OpenCL platform, then each device and the CPU backend: what the library knows of\n"
    "it (queried from the driver, probed by running something, or corrected by a quirk), which\n"
    "types, schedules and engines it supports there, and what it chooses for Kimi-Linear and\n"
    "Kimi K3. What a driver doesn't answer is noted and the rest goes on.\n"
    "\n"
    "Options:\n"
    "  -d, --device SPEC  this device only: " SPEC_HELP "\n"
    "  -s, --selftest     run small problems on each device and compare them with f64\n"
    "  -m, --measure      time a large copy, multiply-adds, bf16 products on matrix units, an "
    "empty kernel\n"
    "  -j, --json         the same as one JSON document\n"
    "  -v, --verbose      extensions, and all that the library logs: what each build took, too\n"
    "  -h, --help\n"
    "  -V, --version\n"
    "\n"
    "JSON, one object; what has nothing to say is absent:\n"
    "  kda         the library's version\n"
    "  cache       {dir, programs, bytes}: where built programs are kept, how many were there\n"
    "  platforms   [{index, name, vendor, version, devices, note}]: how many devices, or why none\n"
    "  drivers     [{file, why}]: installed drivers that give no platform\n"
    "  note        why there is no platform\n"
    "  devices     [{spec, name, platform, properties, notes, measured, error, facts, types, "
    "engines,\n"
    "              models, selftest, log}]: spec is what --device takes; error is why the library\n"
    "              can't use it, and then there is none of the rest but the log\n"
    "\n"
    "Of a device:\n"
    "  properties  {name: value}: what the driver answers; null if it does not, and notes say why\n"
    "  measured    {copy_bytes_per_s, f32_flops_per_s, matrix_flops_per_s, empty_kernel_s}: with\n"
    "              --measure; what the device has\n"
    "  facts       [{name, value, source}]: source is queried, probed, quirk or, of tuned rows,\n"
    "              given\n"
    "  types       [{type, status, why, note}]: f32, f16 and bf16\n"
    "  engines     [{schedule, engine, status, why, note}]: those that are OK gave a known answer\n"
    "  models      [{model, problem, status, why, note, plan, plan_create_s}]: what a plan "
    "chooses\n"
    "              and what it took to make: a program that an earlier one has, or the cache, is\n"
    "              not built again\n"
    "  selftest    [{problem, status, why, out_error, state_error}]: with --selftest\n"
    "  log         [{level, line}]: warnings; with --verbose all\n"
    "A status is OK, another of the library's, or WRONG. Why not is said if it isn't OK, and a "
    "note\n"
    "is a warning that came with an OK.\n"
    "\n"
    "Exit status:\n"
    "  0  fine, even if a device does not work\n"
    "  1  a self-test failed\n"
    "  2  bad usage or output\n"
    "  3  the device asked for is absent or the library can't use it\n"
    "\n" SPEC_CACHE_HELP "\n" TUNED_HELP "\n"
    "Examples:\n"
    "  $ kdainfo --selftest  # does each device compute right?\n"
    "  $ kdainfo --device 0:0 --measure --json > device.json\n";

struct options {
    const char *device;
    bool selftest, measure, json, verbose;
};

/* -1: go on; else the exit code. */
static int read_options(int argc, char **argv, struct options *options)
{
    static const struct option names[] = {
        {"device", required_argument, NULL, 'd'}, {"selftest", no_argument, NULL, 's'},
        {"measure", no_argument, NULL, 'm'},      {"json", no_argument, NULL, 'j'},
        {"verbose", no_argument, NULL, 'v'},      {"help", no_argument, NULL, 'h'},
        {"version", no_argument, NULL, 'V'},      {0},
    };
    int letter;
    while ((letter = getopt_long(argc, argv, "d:smjvhV", names, NULL)) != -1) {
        if (letter == 'h') {
            fputs(usage, stdout);
            return EXIT_SUCCESS;
        }
        if (letter == 'V') {
            printf("kdainfo %s\n", kda_version());
            return EXIT_SUCCESS;
        }
        if (letter == 'd')
            options->device = optarg;
        else if (letter == 's')
            options->selftest = true;
        else if (letter == 'm')
            options->measure = true;
        else if (letter == 'j')
            options->json = true;
        else if (letter == 'v')
            options->verbose = true;
        else
            break;
    }
    if (letter == -1 && optind == argc)
        return -1;
    if (letter == -1)
        fprintf(stderr, "kdainfo: unexpected argument '%s'\n", argv[optind]);
    fputs("see kdainfo --help\n", stderr);
    return EXIT_INPUT;
}

/* Adds a device's page; worst collects the exit codes. */
static void add_device(cJSON *report, const struct spec_device *device, kda_vectors vectors,
                       const struct options *options, int *worst)
{
    kda_context_params params =
        *kda_context_params(.backend = device ? KDA_OPENCL : KDA_CPU,
                            .device = device ? device->id : NULL, .vectors = vectors);
    char spec[32] = "cpu";
    cJSON *page = cJSON_CreateObject();
    cJSON_AddItemToArray(cJSON_GetObjectItem(report, "devices"), page);
    if (device)
        snprintf(spec, sizeof spec, "%d:%d", device->platform, device->index);
    cJSON_AddStringToObject(page, "spec", spec);
    cJSON_AddStringToObject(page, "name", device ? device->name : "the CPU backend");
    if (device)
        cJSON_AddStringToObject(page, "platform", device->platform_name);
    info_add_properties(page, params.device);
    if (options->measure)
        info_add_measured(page, &params);
    int exit_code = info_add_library(page, &params, options->selftest, options->verbose);
    bench_progress("", "");
    if (exit_code == EXIT_WRONG || (options->device && exit_code))
        *worst = exit_code;
}

/* The device that auto means: NULL in params for the CPU backend. */
static void settle_auto(kda_context_params *params)
{
    kda_context *ctx;
    if (params->backend != KDA_AUTO)
        return;
    params->backend = KDA_CPU;
    if (!kda_context_create(&ctx, NULL)) {
        params->backend = kda_context_backend(ctx);
        params->device = kda_context_cl_device(ctx);
    }
    kda_context_destroy(&ctx);
}

static void print_report(const cJSON *report, const struct options *options)
{
    if (!options->json) {
        info_print(report, options->verbose);
        return;
    }
    char *text = cJSON_Print(report);
    puts(text ? text : "{}");
    cJSON_free(text);
}

/* The exit code. */
static int run(int argc, char **argv)
{
    struct options options = {0};
    kda_context_params only = *kda_context_params(.backend = KDA_AUTO);
    int exit_code = read_options(argc, argv, &options);
    if (exit_code >= 0)
        return exit_code;
    exit_code = options.device ? spec_resolve(options.device, &only) : EXIT_SUCCESS;
    if (exit_code)
        return exit_code;
    if (options.device)
        settle_auto(&only);

    cJSON *report = cJSON_CreateObject();
    struct spec_device *list;
    size_t count = spec_devices(&list);
    cJSON_AddStringToObject(report, "kda", kda_version());
    info_add_cache(report);
    info_add_drivers(report);
    info_add_platforms(report);
    cJSON_AddArrayToObject(report, "devices");
    for (size_t i = 0; i < count; ++i)
        if (!options.device || list[i].id == only.device)
            add_device(report, &list[i], KDA_VECTORS_AUTO, &options, &exit_code);
    if (!options.device || !only.device)
        add_device(report, NULL, only.vectors, &options, &exit_code);
    print_report(report, &options);
    cJSON_Delete(report);
    free(list);
    return exit_code;
}

int main(int argc, char **argv)
{
    output_begin();
    return output_end("kdainfo", run(argc, argv));
}

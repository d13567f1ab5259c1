/* kdabench and kdainfo as their users see them: what they print, in each form, and how they end.
 *
 *     test_tools KDABENCH KDABENCH_WRONG KDAINFO KDAINFO_WRONG KDATEST KDATEST_WRONG
 *
 * The _WRONG ones are the same programs on a library that computes wrongly (wrong_execute.c) and,
 * kdainfo, on OpenCL at its worst (fake_opencl.c).
 *
 * SPDX-License-Identifier: MIT */
#define _XOPEN_SOURCE 700 /* realpath */
#include "files.h"
#include "runner.h"
#include "spec.h"
#include "test_tools.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char *kdabench, *kdabench_wrong, *kdainfo, *kdainfo_wrong, *kdatest,
    *kdatest_wrong; /* the last two: test_kdatest.c */

static struct outcome run_list(const char *tool, const char *const *arguments)
{
    program = tool;
    return run_arguments(arguments);
}
#define run(tool, ...) run_list(tool, (const char *const[]){__VA_ARGS__, NULL})

static const cJSON *get(const cJSON *object, const char *name)
{
    const cJSON *value = cJSON_GetObjectItem(object, name);
    ck_assert_msg(value, "no \"%s\"", name);
    return value;
}

static const char *text(const cJSON *object, const char *name)
{
    const char *value = cJSON_GetStringValue(get(object, name));
    ck_assert_msg(value, "\"%s\" is no text", name);
    return value;
}

double number(const cJSON *object, const char *name)
{
    const cJSON *value = get(object, name);
    ck_assert_msg(cJSON_IsNumber(value), "\"%s\" is no number", name);
    return value->valuedouble;
}

static cJSON *parse(const struct outcome *o)
{
    const char *end = "";
    cJSON *document = cJSON_ParseWithOpts(o->out, &end, 0);
    ck_assert_msg(document && !end[strspn(end, "\n")], "not a JSON document: %.2000s", o->out);
    return document;
}

static void ck_says(const char *output, const char *what)
{
    ck_assert_msg(strstr(output, what), "does not say \"%s\" but\n%.2000s", what, output);
}

/* check_outcome for long outputs, of which a message of Check's has no room for more. */
static void ck_exit(const struct outcome *o, int code)
{
    ck_assert_msg(o->code == code, "exit %d, wanted %d\n%.2000s%.2000s", o->code, code, o->out,
                  o->err);
}

START_TEST(test_bench_json)
{
    struct outcome o = run(kdabench, "--device", "cpu", "--json", "--repeat", "4",
                           "70x2x16/f32/log", "decode:3x2x16/hv4/v5/nostate");
    ck_exit(&o, EXIT_SUCCESS);
    ck_assert_str_eq(o.err, "");
    cJSON *document = parse(&o);
    const cJSON *device = get(document, "device"), *results = get(document, "results"), *row;
    ck_assert_str_eq(text(document, "kda"), kda_version());
    ck_assert_str_eq(text(device, "backend"), "cpu");
    ck_assert_double_gt(number(device, "copy_bytes_per_s"), 0);
    ck_assert_double_gt(number(device, "f32_flops_per_s"), 1e8);
    ck_assert_int_eq(cJSON_GetArraySize(results), 2);
    cJSON_ArrayForEach(row, results)
    {
        ck_assert_str_eq(text(row, "status"), "OK");
        ck_assert_double_eq(number(row, "calls"), 4);
        ck_assert_double_gt(number(row, "median_s"), 0);
        ck_assert_double_le(number(row, "p10_s"), number(row, "median_s"));
        ck_assert_double_le(number(row, "median_s"), number(row, "p90_s"));
        double tokens_s = number(row, "tokens") / number(row, "median_s");
        ck_assert_double_eq_tol(number(row, "tokens_per_s") / tokens_s, 1, 1e-9);
        double bytes_s = number(row, "bytes") / number(row, "median_s");
        ck_assert_double_eq_tol(number(row, "bytes_per_s") / bytes_s, 1, 1e-9);
        ck_assert_double_eq_tol(
            number(row, "copy_share") * number(device, "copy_bytes_per_s") / bytes_s, 1, 1e-9);
        ck_assert_double_eq_tol(number(row, "f32_share") * number(device, "f32_flops_per_s") /
                                    number(row, "flops_per_s"),
                                1, 1e-9);
        ck_says(text(row, "plan"), "recurrent");
    }
    row = cJSON_GetArrayItem(results, 0);
    ck_assert_str_eq(text(row, "problem"), "70x2x16/f32/log");
    ck_assert_double_lt(number(row, "out_error"), 1e-5);
    ck_assert_double_lt(number(row, "state_error"), 1e-5);
    row = cJSON_GetArrayItem(results, 1);
    ck_assert_str_eq(text(row, "problem"), "decode:3x2x16/bf16/bounded/hv4/v5/nostate");
    ck_assert_double_lt(number(row, "out_error"), 4e-3);
    ck_assert(cJSON_IsNull(get(row, "state_error")));
    cJSON_Delete(document);
}
END_TEST

static void set_env(const char *name, const char *value)
{
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

/* Takes all OpenCL drivers from the programs; returns what show_drivers needs. */
static char *hide_drivers(void)
{
    const char *named = getenv("OCL_ICD_VENDORS");
    char *kept = named ? strdup(named) : NULL;
    setenv("OCL_ICD_VENDORS", "/nonexistent", 1);
    return kept;
}

static void show_drivers(char *kept)
{
    set_env("OCL_ICD_VENDORS", kept);
    free(kept);
}

/* Fields of a line, commas inside quotes not counting. */
static int count_fields(const char *line)
{
    int fields = 1;
    bool quoted = false;
    for (; *line && *line != '\n'; ++line) {
        quoted ^= *line == '"';
        fields += *line == ',' && !quoted;
    }
    return fields;
}

START_TEST(test_bench_csv)
{
    struct outcome o = run(kdabench, "-d", "cpu", "--csv", "-n", "1", "2x8/f32/lens=3,0,4",
                           "decode:1x2x8/chunkwise/mma");
    ck_exit(&o, EXIT_NO_DEVICE);
    ck_assert_msg(!strncmp(o.out, "problem,status,why,out_error,", 29), "%.2000s", o.out);
    int fields = count_fields(o.out), lines = 0;
    for (const char *line = o.out; *line; line = strchr(line, '\n') + 1, ++lines)
        ck_assert_int_eq(count_fields(line), fields);
    ck_assert_int_eq(lines, 3);
    ck_says(o.out, "\n\"7x2x8/f32/bounded/lens=3,0,4\",\"OK\",,");
    ck_says(o.out, "\n\"decode:1x2x8/bf16/bounded/chunkwise/mma\",\"UNSUPPORTED\",\"");
}
END_TEST

START_TEST(test_bench_table)
{
    struct outcome o = run(kdabench, "--device=cpu", "--time=0.01", "9x2x8/f32", "3x2x8/f16");
    ck_exit(&o, EXIT_SUCCESS);
    ck_says(o.out, kda_version());
    ck_says(o.out, "\nproblem            out err  state err  median us");
    ck_says(o.out, "\n9x2x8/f32/bounded  ");
    ck_says(o.out, "\n3x2x8/f16/bounded  ");
    ck_says(o.out, "schedule=");
}
END_TEST

/* One problem goes wrong; the others still count, and the exit code is the wrong result's. */
START_TEST(test_bench_wrong_result)
{
    struct outcome o = run(kdabench_wrong, "-d", "cpu", "-n", "1", "--json", "9x2x8/f32",
                           "9x2x8/mma/chunkwise", "9x2x8/f16");
    ck_exit(&o, EXIT_WRONG);
    cJSON *document = parse(&o);
    const cJSON *row = cJSON_GetArrayItem(get(document, "results"), 0);
    ck_assert_str_eq(text(row, "status"), "WRONG");
    ck_says(text(row, "why"), "out: ");
    ck_assert_double_gt(number(row, "out_error"), 1e-3);
    ck_assert_double_gt(number(row, "median_s"), 0);
    ck_assert_int_eq(cJSON_GetArraySize(get(document, "results")), 3);
    cJSON_Delete(document);
    o = run(kdabench_wrong, "-d", "cpu", "-n", "1", "9x2x8/f32");
    ck_exit(&o, EXIT_WRONG);
    ck_says(o.out, "WRONG: out: ");
}
END_TEST

/* Far more than fits any machine: said, not tried. */
START_TEST(test_bench_too_large)
{
    struct outcome o = run(kdabench, "-d", "cpu", "-n", "1", "2000000000x2000000000x128");
    ck_exit(&o, EXIT_NO_DEVICE);
    ck_says(o.out, "MEMORY: ");
}
END_TEST

START_TEST(test_bench_list)
{
    struct outcome o = run(kdabench, "--list", "--device", "cpu");
    ck_exit(&o, EXIT_SUCCESS);
    ck_says(o.out, "x32x128/bf16/softplus\n");
    ck_says(o.out, "x96x128/bf16/bounded\n");
    ck_says(o.out, "decode:");
    o = run(kdabench, "--list", "64x2x8/none/f32", "decode:1x2x8");
    ck_exit(&o, EXIT_SUCCESS);
    ck_assert_str_eq(o.out, "64x2x8/f32/none\ndecode:1x2x8/bf16/bounded\n");
}
END_TEST

/* What is wrong on the command line, and what the answer must name. Nothing has run then. */
static const struct {
    const char *arguments[6], *says;
} misuses[] = {
    {{"--device", "cpu", "8x2x8", "8x2x8/bf17"}, "problem '8x2x8/bf17': 'bf17'"},
    {{"8x2x8/hv3"}, "'hv3'"},
    {{"8x2x8/pool0"}, "'pool0': # is a number from 1"},
    {{"8x2xq"}, "problem '8x2xq': sizes"},
    {{""}, "problem '': sizes"},
    {{"--json", "--csv", "8x2x8"}, "--json contradicts --csv"},
    {{"--repeat", "0", "8x2x8"}, "--repeat"},
    {{"--repeat", "4x", "8x2x8"}, "--repeat"},
    {{"--time", "-1", "8x2x8"}, "--time"},
    {{"--time", "0", "8x2x8"}, "--time is a number of seconds above 0"},
    {{"--time", "nan", "8x2x8"}, "--time"},
    {{"--time", "soon", "8x2x8"}, "--time"},
    {{"--tempo", "8x2x8"}, "--tempo"},
    {{"--device"}, "--device"},
    {{"--device", "", "8x2x8"}, "--device"},
    {{"--device", "cpu:64", "8x2x8"}, "none, 128, 256 or 512"},
};

START_TEST(test_bench_misuse)
{
    struct outcome o = run_list(kdabench, misuses[_i].arguments);
    CHECK_OUTCOME(&o, EXIT_INPUT, misuses[_i].says);
    ck_assert_str_eq(o.out, "");
}
END_TEST

START_TEST(test_absent_device)
{
    struct outcome o = run(kdabench, "--device", "99:0", "8x2x8");
    CHECK_OUTCOME(&o, EXIT_NO_DEVICE, "99:0");
    ck_assert_str_eq(o.out, "");
    o = run(kdainfo, "--device", "no such thing");
    CHECK_OUTCOME(&o, EXIT_NO_DEVICE, "no such thing");
    ck_assert_str_eq(o.out, "");
}
END_TEST

START_TEST(test_help)
{
    struct outcome o = run(_i ? kdainfo : kdabench, "--help");
    ck_exit(&o, EXIT_SUCCESS);
    ck_says(o.out, _i ? "Usage: kdainfo" : "Usage: kdabench");
    ck_says(o.out, "\nExit status:\n  0  fine");
    ck_assert_str_eq(o.err, "");
}
END_TEST

START_TEST(test_info_json)
{
    struct outcome o = run(kdainfo, "--json", "--selftest", "--device", "cpu");
    ck_exit(&o, EXIT_SUCCESS);
    cJSON *report = parse(&o);
    const cJSON *devices = get(report, "devices"), *row;
    const cJSON *cpu = cJSON_GetArrayItem(devices, 0);
    ck_assert_int_eq(cJSON_GetArraySize(devices), 1);
    ck_assert_str_eq(text(cpu, "spec"), "cpu");
    ck_assert_double_ge(number(get(cpu, "properties"), "cores"), 1);
    ck_assert_int_ge(cJSON_GetArraySize(get(cpu, "facts")), 1);
    cJSON_ArrayForEach(row, get(cpu, "facts"))
        ck_assert(*text(row, "name") && *text(row, "value") && *text(row, "source"));
    ck_assert_int_eq(cJSON_GetArraySize(get(cpu, "types")), 3);
    ck_assert_str_eq(text(cJSON_GetArrayItem(get(cpu, "engines"), 0), "status"), "OK");
    ck_assert_str_eq(text(cJSON_GetArrayItem(get(cpu, "engines"), 3), "engine"), "mma");
    ck_assert_str_eq(text(cJSON_GetArrayItem(get(cpu, "engines"), 3), "status"), "UNSUPPORTED");
    ck_assert_int_eq(cJSON_GetArraySize(get(cpu, "models")), 4);
    cJSON_ArrayForEach(row, get(cpu, "models"))
    {
        ck_assert(*text(row, "plan"));
        ck_assert_double_ge(number(row, "plan_create_s"), 0);
    }
    ck_assert_int_ge(cJSON_GetArraySize(get(cpu, "selftest")), 3);
    cJSON_ArrayForEach(row, get(cpu, "selftest")) ck_assert_str_eq(text(row, "status"), "OK");
    cJSON_Delete(report);
}
END_TEST

START_TEST(test_info_measure)
{
    struct outcome o = run(kdainfo, "--measure", "--json", "--device", "cpu");
    ck_exit(&o, EXIT_SUCCESS);
    cJSON *report = parse(&o);
    const cJSON *cpu = cJSON_GetArrayItem(get(report, "devices"), 0);
    ck_assert_double_gt(number(get(cpu, "measured"), "copy_bytes_per_s"), 1e8);
    ck_assert(!cJSON_GetObjectItem(get(cpu, "measured"), "empty_kernel_s"));
    cJSON_Delete(report);
}
END_TEST

/* The folder of built programs, by each of its names; what is in it is counted. */
START_TEST(test_info_cache)
{
    static const struct {
        const char *own, *cache, *home, *dir;
    } rows[] = {{"mine", "/x", "/x", "mine"},
                {NULL, "c", "/x", "c/kda"},
                {NULL, "", "h", "h/.cache/kda"},
                {"", "c", "h", NULL},
                {NULL, NULL, NULL, NULL}};
    char *home = strdup(getenv("HOME"));
    char *drivers = hide_drivers(); /* which have caches of their own there */
    ck_assert(!mkdir("c", 0700) && !mkdir("c/kda", 0700));
    write_bytes("c/kda/kda-1", "12345", 5);
    write_bytes("c/kda/other", "1", 1);
    for (size_t i = 0; i < COUNT(rows); ++i) {
        set_env("KDA_CACHE_DIR", rows[i].own);
        set_env("XDG_CACHE_HOME", rows[i].cache);
        set_env("HOME", rows[i].home);
        struct outcome o = run(kdainfo, "--json", "--device", "cpu");
        cJSON *report = parse(&o);
        const cJSON *cache = cJSON_GetObjectItem(report, "cache");
        ck_assert_int_eq(!cache, !rows[i].dir);
        if (cache) {
            ck_assert_str_eq(text(cache, "dir"), rows[i].dir);
            ck_assert_double_eq(number(cache, "bytes"), i == 1 ? 5 : 0);
            ck_assert_double_eq(number(cache, "programs"), i == 1);
        }
        cJSON_Delete(report);
    }
    show_drivers(drivers);
    set_env("KDA_CACHE_DIR", "");
    set_env("XDG_CACHE_HOME", NULL);
    set_env("HOME", home);
    free(home);
    ck_assert(!remove("c/kda/kda-1") && !remove("c/kda/other") && !remove("c/kda") && !remove("c"));
}
END_TEST

START_TEST(test_info_page)
{
    struct outcome o = run(kdainfo, "--selftest", "--device", "cpu");
    ck_exit(&o, EXIT_SUCCESS);
    ck_says(o.out, "\ndevice cpu: ");
    ck_says(o.out, "Kimi-Linear, prefill");
    ck_says(o.out, "schedule=");
    ck_says(o.out, "pass: out ");
    ck_assert_msg(!strstr(o.out, "FAIL"), "%.2000s", o.out);
}
END_TEST

/* Without any driver: what is missing, how to get it, and the CPU backend's page all the same. */
START_TEST(test_info_without_opencl)
{
    char *drivers = hide_drivers();
    struct outcome o = run(kdainfo, NULL);
    struct outcome absent = run(kdainfo, "--device", "0:0");
    show_drivers(drivers);
    ck_exit(&o, EXIT_SUCCESS);
    ck_says(o.out, "no OpenCL driver is installed");
    ck_says(o.out, "pocl-opencl-icd");
    ck_says(o.out, "intel-opencl-icd");
    ck_says(o.out, "nvidia-opencl-icd");
    ck_says(o.out, "mesa-opencl-icd");
    ck_says(o.out, "\ndevice cpu: ");
    CHECK_OUTCOME(&absent, EXIT_NO_DEVICE, "0:0");
}
END_TEST

/* Every question refused is a note, every platform that fails a line; nothing ends the program. */
START_TEST(test_info_degrades)
{
    struct outcome o = run(kdainfo_wrong, "--json", "--measure");
    ck_exit(&o, EXIT_SUCCESS);
    cJSON *report = parse(&o);
    const cJSON *platforms = get(report, "platforms"), *devices = get(report, "devices");
    ck_assert_int_eq(cJSON_GetArraySize(platforms), 3);
    ck_says(text(cJSON_GetArrayItem(platforms, 1), "note"), "no device");
    ck_says(text(cJSON_GetArrayItem(platforms, 2), "note"), "broken");
    ck_assert_int_eq(cJSON_GetArraySize(devices), 2);
    const cJSON *mute = cJSON_GetArrayItem(devices, 0);
    ck_assert_str_eq(text(mute, "name"), "Mute Processor");
    ck_assert_str_eq(text(mute, "platform"), "Lonely");
    ck_says(text(mute, "error"), "clCreateContext");
    ck_assert_int_eq(cJSON_GetArraySize(get(mute, "measured")), 0);
    ck_assert(cJSON_IsNull(get(get(mute, "properties"), "global_memory_bytes")));
    ck_assert(cJSON_IsNull(get(get(mute, "properties"), "compute_units")));
    ck_assert(cJSON_IsNull(get(get(mute, "properties"), "warp_size")));
    ck_assert(!cJSON_GetObjectItem(get(mute, "properties"), "wavefront_width"));
    ck_assert_int_gt(cJSON_GetArraySize(get(mute, "notes")), 10);
    ck_assert_str_eq(text(cJSON_GetArrayItem(devices, 1), "spec"), "cpu");
    ck_assert(!cJSON_GetObjectItem(cJSON_GetArrayItem(devices, 1), "error"));
    cJSON_Delete(report);
    o = run(kdainfo_wrong, NULL);
    ck_exit(&o, EXIT_SUCCESS);
    ck_says(o.out, "the library can't use it: clCreateContext");
    ck_says(o.out, "note: version: ");
    o = run(kdainfo_wrong, "--device", "0:0");
    ck_exit(&o, EXIT_NO_DEVICE);
}
END_TEST

/* What PoCL, where it is, does only in a way. */
START_TEST(test_info_note)
{
    struct outcome o = run(kdainfo, "--device", "Portable");
    if (o.code != EXIT_NO_DEVICE)
        ck_says(o.out, "chunkwise, mma            yes, but no matrix units: plain OpenCL C");
}
END_TEST

START_TEST(test_info_failed_selftest)
{
    struct outcome o = run(kdainfo_wrong, "--selftest");
    ck_exit(&o, EXIT_WRONG);
    ck_says(o.out, "FAIL: WRONG: out: ");
    o = run(kdainfo_wrong, "--selftest", "--device", "cpu", "--json");
    ck_exit(&o, EXIT_WRONG);
    cJSON *report = parse(&o);
    const cJSON *cpu = cJSON_GetArrayItem(get(report, "devices"), 0), *row;
    cJSON_ArrayForEach(row, get(cpu, "selftest")) ck_assert_str_eq(text(row, "status"), "WRONG");
    cJSON_Delete(report);
}
END_TEST

START_TEST(test_info_misuse)
{
    struct outcome o = run(kdainfo, "cpu");
    CHECK_OUTCOME(&o, EXIT_INPUT, "'cpu'");
    o = run(kdainfo, "--colour");
    CHECK_OUTCOME(&o, EXIT_INPUT, "--colour");
}
END_TEST

Suite *suite_programs(void)
{
    Suite *suite = suite_create("programs");
    TCase *bench = tcase_create("kdabench"), *info = tcase_create("kdainfo");
    tcase_add_checked_fixture(bench, folder_enter, folder_leave);
    tcase_add_checked_fixture(info, folder_enter, folder_leave);
    tcase_add_test(bench, test_bench_json);
    tcase_add_test(bench, test_bench_csv);
    tcase_add_test(bench, test_bench_table);
    tcase_add_test(bench, test_bench_wrong_result);
    tcase_add_test(bench, test_bench_too_large);
    tcase_add_test(bench, test_bench_list);
    tcase_add_loop_test(bench, test_bench_misuse, 0, COUNT(misuses));
    tcase_add_test(bench, test_absent_device);
    tcase_add_loop_test(bench, test_help, 0, 2);
    tcase_add_test(info, test_info_json);
    tcase_add_test(info, test_info_measure);
    tcase_add_test(info, test_info_cache);
    tcase_add_test(info, test_info_page);
    tcase_add_test(info, test_info_without_opencl);
    tcase_add_test(info, test_info_degrades);
    tcase_add_test(info, test_info_note);
    tcase_add_test(info, test_info_failed_selftest);
    tcase_add_test(info, test_info_misuse);
    suite_add_tcase(suite, bench);
    suite_add_tcase(suite, info);
    return suite;
}

int main(int argc, char **argv)
{
    char **const programs[] = {&kdabench,      &kdabench_wrong, &kdainfo,
                               &kdainfo_wrong, &kdatest,        &kdatest_wrong};
    for (int i = 0; i < COUNT(programs); ++i)
        if (argc != 1 + COUNT(programs) || !(*programs[i] = realpath(argv[1 + i], NULL))) {
            fprintf(stderr, "usage: test_tools KDABENCH KDABENCH_WRONG KDAINFO KDAINFO_WRONG "
                            "KDATEST KDATEST_WRONG\n");
            return EXIT_FAILURE;
        }
    SRunner *runner = srunner_create(suite_problem());
    srunner_add_suite(runner, suite_programs());
    srunner_add_suite(runner, suite_bench_files(kdabench));
    srunner_add_suite(runner, suite_bench_report(kdabench));
    srunner_add_suite(runner, suite_bench_threads(kdabench));
    srunner_add_suite(runner, suite_drivers(kdainfo));
    srunner_add_suite(runner, suite_help(kdabench, kdainfo));
    srunner_add_suite(runner, suite_kdatest(kdatest, kdatest_wrong));
    srunner_add_suite(runner, suite_output((const char *const[]){kdabench, kdainfo, kdatest}));
    srunner_add_suite(runner, suite_tune(kdabench, kdabench_wrong, kdainfo));
    int failed = runner_run(runner);
    for (int i = 0; i < COUNT(programs); ++i)
        free(*programs[i]);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

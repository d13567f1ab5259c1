/* kdatest: the conformance suite on any device, ending in a summary that can be pasted into a bug
 * report.
 *
 * SPDX-License-Identifier: MIT */
#include "harness.h"

#include "output.h"
#include "spec.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_WORDS = 256 };

struct options {
    const char *device, *golden, *call, *tap;
    enum level level;
    long soak; /* seconds */
};

static const char help[] =
    "Usage: kdatest [options]\n"
    "\n"
    "Runs libkda's conformance suite and prints a summary for bug reports.\n"
    "\n"
    "Options:\n"
    "  --device SPEC       " SPEC_HELP ";\n"
    "                      default: $KDA_TEST_DEVICE, else the CPU backend and every OpenCL "
    "device\n"
    "  --level quick|normal|full\n"
    "                      under half a minute, with few problems; all suites, a few minutes "
    "where\n"
    "                      kernels are compiled; more and larger random problems; default: normal\n"
    "  --seed N            of random problems and numbers; default: $KDA_TEST_SEED, else 1\n"
    "  --with WORDS        put before every call, such as schedule=recurrent (test/call.h)\n"
    "  --call TEXT         runs one call, as a failed test prints it, and nothing else\n"
    "  --soak SECONDS      random problems, serving, decode and queues over and over, with other "
    "seeds "
    "and\n"
    "                      in new contexts; tells the process's memory; with --device\n"
    "  --tap FILE          writes the results in the Test Anything Protocol too; with --device\n"
    "  --golden DIR        where the golden vectors are; default: " GOLDEN_DIR "\n"
    "  --verbose           names every test, and every call before it runs\n"
    "  --help\n"
    "  --version\n"
    "\n"
    "Exit status:\n"
    "  0  all passed\n"
    "  1  a test failed\n"
    "  2  bad usage or output\n"
    "  3  a device is absent or does not work\n"
    "\n"
    "Examples:\n"
    "  $ kdatest --device 0:0\n"
    "  $ kdatest --device cpu --level full --seed 2 --tap results.tap\n";

static int hint(void)
{
    fputs("see kdatest --help\n", stderr);
    return EXIT_INPUT;
}

static int usage(const char *what, const char *value)
{
    fprintf(stderr, "kdatest: %s%s\n", what, value);
    return hint();
}

#define SEED_RULE "--seed and KDA_TEST_SEED are a number from 0 to 18446744073709551615, not "

static bool read_seed(const char *text)
{
    errno = 0;
    harness_seed = strtoull(text, NULL, 10);
    return *text && !text[strspn(text, "0123456789")] && !errno;
}

static bool read_soak(const char *text, long *seconds)
{
    *seconds = strtol(text, NULL, 10);
    return *text && !text[strspn(text, "0123456789")] && *seconds >= 1 && *seconds <= 1000000;
}

static const char *const level_names[] = {"quick", "normal", "full"};

static bool read_level(const char *text, enum level *level)
{
    for (*level = QUICK; *level <= FULL; ++*level)
        if (!strcmp(text, level_names[*level]))
            return true;
    return false;
}

/* 0, or the exit code; -1: --help was answered. */
static int read_options(int argc, char **argv, struct options *o)
{
    static const struct option options[] = {
        {"device", required_argument, NULL, 'd'}, {"level", required_argument, NULL, 'l'},
        {"seed", required_argument, NULL, 's'},   {"call", required_argument, NULL, 'c'},
        {"golden", required_argument, NULL, 'g'}, {"tap", required_argument, NULL, 't'},
        {"with", required_argument, NULL, 'w'},   {"soak", required_argument, NULL, 'o'},
        {"verbose", no_argument, NULL, 'v'},      {"help", no_argument, NULL, 'h'},
        {"version", no_argument, NULL, 'V'},      {NULL, 0, NULL, 0},
    };
    int c;
    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (c == 'd')
            o->device = optarg;
        else if (c == 'c')
            o->call = optarg;
        else if (c == 'g')
            o->golden = optarg;
        else if (c == 't')
            o->tap = optarg;
        else if (c == 'w')
            harness_words = optarg;
        else if (c == 'v')
            harness_verbose = true;
        else if (c == 'h')
            return fputs(help, stdout), -1;
        else if (c == 'V')
            return printf("kdatest %s\n", kda_version()), -1;
        else if (c == 'l' && !read_level(optarg, &o->level))
            return usage("--level is quick, normal or full, not ", optarg);
        else if (c == 'o' && !read_soak(optarg, &o->soak))
            return usage("--soak is a number of seconds from 1 to 1000000, not ", optarg);
        else if (c == 's' && !read_seed(optarg))
            return usage(SEED_RULE, optarg);
        else if (c == '?')
            return hint(); /* getopt_long has said what is wrong */
    }
    return optind < argc ? usage("unexpected argument ", argv[optind]) : 0;
}

/* What plan the library makes for the published models' shape. */
static void print_plan(void)
{
    kda_plan *plan;
    char text[256] = "";
    kda_status status = kda_plan_create(
        &plan, device.ctx,
        kda_problem(.heads = 32, .key_dim = 128, .value_dim = 128, .max_tokens = 8192,
                    .dtype = KDA_BF16, .gate = KDA_GATE_SOFTPLUS, .beta = KDA_BETA_SIGMOID,
                    .flags = KDA_NORM_QK));
    if (status == KDA_OK)
        kda_plan_describe(plan, text, sizeof(text));
    printf("plan      %s\n", status == KDA_OK ? text : kda_status_string(status));
    kda_plan_destroy(&plan);
}

/* Rms errors by the type of the result, of types that there were. */
static void print_worst(const char *what, const double *worst_of)
{
    static const char *const types[] = {[KDA_F32] = "f32", [KDA_F16] = "f16", [KDA_BF16] = "bf16"};
    const char *between = what;
    for (int type = KDA_F32; type <= KDA_BF16; type++) {
        if (worst_of[type] > 0)
            printf("%s%s %.2g", between, types[type], worst_of[type]);
        between = worst_of[type] > 0 ? ", " : between;
    }
    if (between != what)
        printf("\n");
}

static void print_summary(const struct options *o, int passed, int failed)
{
    printf("---- kdatest ----\n");
    printf("library   kda %s\n", kda_version());
    printf("device    %s\n", device.name);
    printf("driver    %s\n", device.driver);
    print_plan();
    printf("options   --level %s --seed %llu --with '%s'\n", level_names[o->level],
           (unsigned long long)harness_seed, harness_words);
    printf("tests     %d passed, %d failed, %d skipped\n", passed, failed, report_skipped());
    report_print_skips();
    print_worst("worst     rms error of out: ", worst[BY_F32].out);
    print_worst("          of states: ", worst[BY_F32].state);
    print_worst("          by matrix units, of out: ", worst[BY_MATRIX_UNITS].out);
    print_worst("          by matrix units, of states: ", worst[BY_MATRIX_UNITS].state);
    printf("-----------------\n");
}

/* --call */
static const char *the_call;

START_TEST(test_call)
{
    run("%s", the_call);
}
END_TEST

static Suite *suite_call(const char *text)
{
    Suite *suite = suite_create("call");
    TCase *tcase = tcase_create("given");
    the_call = text;
    tcase_add_checked_fixture(tcase, harness_setup, harness_teardown);
    tcase_add_test(tcase, test_call);
    suite_add_tcase(suite, tcase);
    return suite;
}

/* Whether a text given on the command line makes a call. */
static bool is_call(const char *option, const char *text)
{
    char why[CALL_WHY] = "";
    struct call *call = call_create(text, harness_seed, why);
    if (!call)
        fprintf(stderr, "kdatest: %s: %s\n", option, why);
    call_destroy(call);
    return call;
}

/* Runs the suites; false: the TAP file could not be written. What Check writes of it goes to a file
 * without a name, which nothing can leave behind. */
static bool run_suites(SRunner *runner, FILE *tap, int *passed, int *failed)
{
    char path[32];
    FILE *by_check = tap ? tmpfile() : NULL;
    if (by_check) {
        snprintf(path, sizeof(path), "/dev/fd/%d", fileno(by_check));
        srunner_set_tap(runner, path);
    }
    harness_begin();
    srunner_set_fork_status(runner, CK_NOFORK); /* OpenCL drivers do not survive a fork */
    srunner_run_all(runner, harness_verbose ? CK_VERBOSE : CK_NORMAL);
    *failed = srunner_ntests_failed(runner);
    *passed = srunner_ntests_run(runner) - *failed - report_skipped();
    srunner_free(runner);
    fflush(stdout);
    if (!tap)
        return true;
    if (by_check) {
        report_tap(by_check, tap);
        fclose(by_check);
    }
    return !fflush(tap) && !ferror(tap) && by_check;
}

static SRunner *choose_suites(const struct options *o)
{
    SRunner *runner =
        srunner_create(o->call ? suite_call(o->call) : suite_golden(o->golden, o->level));
    if (!o->call)
        srunner_add_suite(runner, suite_cases(o->level));
    if (!o->call && o->level != QUICK) {
        srunner_add_suite(runner, suite_relations());
        srunner_add_suite(runner, suite_shapes(o->level));
    }
    return runner;
}

static int tap_error(const char *path)
{
    fprintf(stderr, "kdatest: --tap %s: %s\n", path, strerror(errno));
    return EXIT_INPUT;
}

/* The exit code that one device comes to. */
static int test_device(const kda_context_params *params, const struct options *o)
{
    int passed, failed;
    FILE *tap = o->tap ? fopen(o->tap, "w") : NULL;
    if (o->tap && !tap)
        return tap_error(o->tap);
    if (!device_open(params)) {
        device_close();
        return EXIT_NO_DEVICE;
    }
    printf("kda %s on %s (%s), seed %llu\n", kda_version(), device.name, device.driver,
           (unsigned long long)harness_seed);
    int code = run_suites(choose_suites(o), tap, &passed, &failed) ? 0 : tap_error(o->tap);
    print_summary(o, passed, failed);
    device_close();
    if (tap)
        fclose(tap);
    return failed || !passed ? EXIT_WRONG : code;
}

/* The CPU backend and every OpenCL device. */
static int test_everything(const struct options *o)
{
    struct spec_device *list;
    size_t n = spec_devices(&list);
    int code = test_device(kda_context_params(.backend = KDA_CPU), o);
    for (size_t i = 0; i < n; i++) {
        int other = test_device(kda_context_params(.backend = KDA_OPENCL, .device = list[i].id), o);
        code = !code || other == EXIT_WRONG ? other : code;
    }
    free(list);
    return code;
}

/* The exit code. */
static int run_options(int argc, char **argv)
{
    struct options o = {.device = getenv("KDA_TEST_DEVICE"), .golden = GOLDEN_DIR, .level = NORMAL};
    const char *seed = getenv("KDA_TEST_SEED");
    harness_seed = 1;
    if (seed && !read_seed(seed))
        return usage(SEED_RULE, seed);
    int code = read_options(argc, argv, &o);
    if (code)
        return code < 0 ? 0 : code;
    if ((o.call && !is_call("--call", o.call)) || !is_call("--with", harness_words))
        return EXIT_INPUT;
    if (strlen(harness_words) >= MOST_WORDS)
        return usage("--with is too long", "");
    if (!o.device || !*o.device)
        return o.tap    ? usage("--tap needs --device", "")
               : o.soak ? usage("--soak needs --device", "")
                        : test_everything(&o);
    kda_context_params params = {.struct_size = sizeof(params)};
    code = spec_resolve(o.device, &params);
    return code ? code : o.soak ? soak(&params, o.soak) : test_device(&params, &o);
}

int main(int argc, char **argv)
{
    output_begin();
    return output_end("kdatest", run_options(argc, argv));
}

/* kdabench: how fast and how exact the library is on a device, problem by problem.
 *
 * SPDX-License-Identifier: MIT */
#include "bench.h"
#include "output.h"
#include "spec.h"
#include "tuned.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "Usage: kdabench [options] [PROBLEM...]\n"
    "\n"
    "Checks each problem against a recurrence in f64, then times it.\n"
    "\n"
    "A PROBLEM is sizes, then options after slashes in any order:\n"
    "  TxHxD           one sequence of T tokens, H heads, D = K = V channels\n"
    "  NxTxHxD         N sequences of T tokens each\n"
    "  decode:NxHxD    N sequences of one token each\n"
    "  HxD/lens=#,#..  sequences of these lengths, which may be 0\n"
    "  f32 f16 bf16                   q, k, v, g, beta and out (bf16)\n"
    "  log softplus bounded none      gate (bounded)\n"
    "  hv# k# v#                      value heads, key channels, value channels (H, D, D)\n"
    "  g=TYPE state=TYPE              types of g and of the states (as q; f32)\n"
    "  vk nostate                     states are [V, K]; there is no initial or final state\n"
    "  pool# drafts                   states are slots of pools of #; each token's is stored, and\n"
    "                                 sequences resume from an accepted one of as many\n"
    "  per-head additive              one gate a head; no delta rule\n"
    "  recurrent chunkwise            schedule (the library's choice)\n"
    "  clblast fused mma              engine (the library's choice)\n"
    "  segment#                       mma cuts longer sequences into segments of # tokens\n"
    "q and k are normalised and beta is a sigmoid, as in the published models. Without a PROBLEM:\n"
    "prefill and decode of Kimi-Linear (32 heads, softplus) and Kimi K3 (96 heads, bounded), "
    "shorter\n"
    "where the device is a processor.\n"
    "\n"
    "Options:\n"
    "  -d, --device SPEC   " SPEC_HELP "\n"
    "  -T, --threads N,..  on the CPU backend, 1 to 1024 (a core each); of several numbers each\n"
    "                      problem has a row each, and shares are of the largest's limits\n"
    "  -n, --repeat N      time N calls of each problem\n"
    "  -t, --time SECONDS  time calls for so long, 3 calls at least (default 1; of more\n"
    "                      than 8 problems 8 for all together)\n"
    "  -l, --list          print the problems in canonical form, and end\n"
    "  -j, --json          one JSON document; numbers in seconds, bytes and operations\n"
    "  -c, --csv           the rows of --json as comma-separated values\n"
    "  -k, --kernels       also each kernel of a call, in the table and in --json\n"
    "  --peers             also beside others' figures, in the table and in --json; without a "
    "PROBLEM,\n"
    "                      all that have such figures (on one kind of device)\n"
    "  --plot FILE.svg     also draw time over length and speed over heads, by gnuplot\n"
    "  --compare A B       how two files that --json made relate, B/A; measures nothing\n"
    "  --tune              search what is fastest for each problem, some minutes for each, and\n"
    "                      leave it as a row for plans of the same K, V and type to follow; "
    "engines\n"
    "                      that bend a promise (see kda.h) are among what is tried. Without a\n"
    "                      PROBLEM: one of bf16 and one of f32, K = V = 128\n"
    "  -v, --verbose       all that the library logs, on stderr\n"
    "  -h, --help\n"
    "  -V, --version\n"
    "\n"
    "Columns:\n"
    "  out err, state err  rms(err)/rms(ref) against f64, of all heads of a small problem, else "
    "of\n"
    "                      the first and last head of the first and last sequence\n"
    "  median, p10, p90    of a warm call: on OpenCL the device's time by events (by the clock "
    "where\n"
    "                      a driver's events are useless), on the CPU backend kda_execute by the "
    "clock\n"
    "  - empty             on OpenCL, of a call that is one launch: the median less that of an\n"
    "                      empty kernel, which has run in turns with the calls, as often\n"
    "  GB/s, % of copy     bytes that must move once (q, k, v, g, beta, out, states in and out) "
    "per\n"
    "                      second, and their share of what a large copy reads and writes; more "
    "than\n"
    "                      100 is possible where a problem fits the caches\n"
    "  GFLOP/s, % of f32   operations of the recurrence, 7 K V a token and value head (6 without "
    "a\n"
    "                      gate, 2 fewer with the additive rule) whatever the schedule computes,\n"
    "                      and their share of the measured rate of f32 multiply-adds; more than\n"
    "                      100 is possible on matrix units\n"
    "  of a kernel         the same, of the bytes that it must read and write once itself, "
    "factors\n"
    "                      of chunks included, and of the operations that its formulas have\n"
    "  host                what kda_enqueue itself takes; compare with the empty kernel's\n"
    "  speed-up, % each    with several --threads: what is gained over the first number of them,\n"
    "                      and that for each thread\n"
    "Inputs are normal random numbers, the same in every run.\n"
    "\n"
    "JSON, one object; what is not known is null:\n"
    "  kda, seed  the library's version; that of the inputs\n"
    "  device     {name, backend, driver, timed_by, copy_bytes_per_s, f32_flops_per_s,\n"
    "             matrix_flops_per_s, empty_kernel_s, empty_enqueue_s}: limits as measured\n"
    "  results    [{problem, status, why, out_error, state_error, heads_checked, heads, calls,\n"
    "             median_s, p10_s, p90_s, tokens, bytes, flops, tokens_per_s, bytes_per_s,\n"
    "             copy_share, flops_per_s, f32_share, enqueue_median_s, empty_median_s,\n"
    "             above_empty_s, plan_create_s, plan, threads, speedup, efficiency, kernels,\n"
    "             peers}]: a row, which --csv has but for the last two; status is OK, another of\n"
    "             the library's, or WRONG\n"
    "  kernels    [{name, launches, median_s, bytes, flops, bytes_per_s, copy_share, flops_per_s,\n"
    "             f32_share, matrix_share}]: of a row, with --kernels\n"
    "  peers      [{name, source, median_s, ratio}]: of a row, with --peers\n"
    "\n"
    "Exit status:\n"
    "  0  fine\n"
    "  1  a wrong result, or --compare finds B slower: by 5 % and more than the spread\n"
    "  2  bad usage or output\n"
    "  3  the device or a problem is not supported\n"
    "\n" SPEC_CACHE_HELP "\n" TUNED_HELP "\n"
    "Examples:\n"
    "  $ kdabench --device cpu 256x32x128/softplus\n"
    "  $ kdabench --device cpu --threads 1,2,4 1024x32x128 decode:1x32x128\n"
    "  $ kdabench --device nvidia decode:64x96x128 8192x96x128 --csv > k3.csv\n"
    "  $ kdabench --json 8192x32x128 > new.json; kdabench --compare old.json new.json\n"
    "  $ kdabench --device nvidia --peers\n"
    "  $ kdabench --plot length.svg 1024x32x128 4096x32x128 16384x32x128\n"
    "  $ kdabench --tune 8192x32x128/softplus 8192x64x64/f32\n"
    "  $ kdabench 4x2048x32x128/f32/log/state=bf16/vk 96x128/lens=1300,547,2048\n";

/* Prefill and decode of the two published models. */
static const char *const gpu_problems[] = {
    "8192x32x128/bf16/softplus",      "8192x96x128/bf16/bounded",
    "8x1024x32x128/bf16/softplus",    "decode:1x32x128/bf16/softplus",
    "decode:64x32x128/bf16/softplus", "decode:256x32x128/bf16/softplus",
    "decode:1x96x128/bf16/bounded",   "decode:64x96x128/bf16/bounded",
};
static const char *const cpu_problems[] = {
    "256x32x128/bf16/softplus",      "256x96x128/bf16/bounded",
    "decode:1x32x128/bf16/softplus", "decode:8x32x128/bf16/softplus",
    "decode:1x96x128/bf16/bounded",
};

/* What the library's own choices were measured with, mostly. */
static const char *const gpu_tunes[] = {"8192x32x128/bf16", "8192x32x128/f32"};
static const char *const cpu_tunes[] = {"256x32x128/bf16", "256x32x128/f32"};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

enum { MOST_COUNTS = 16 };

struct options {
    const char *device;
    struct bench_effort effort;
    enum bench_form form;
    int32_t threads[MOST_COUNTS]; /* numbers of them, of which there are */
    int counts;
    bool list, verbose, kernels, peers, tune;
    const char *plot, *compare;
};

static int refuse(const char *what, const char *why)
{
    fprintf(stderr, "kdabench: %s%s; see kdabench --help\n", what, why);
    return EXIT_INPUT;
}

static bool read_repeat(const char *text, struct bench_effort *effort)
{
    char *end;
    errno = 0;
    effort->repeat = strtol(text, &end, 10);
    return !errno && end != text && !*end && effort->repeat >= 1 && effort->repeat <= 1000000;
}

/* Numbers, with commas between them. */
static bool read_threads(const char *text, struct options *options)
{
    char *end;
    for (options->counts = 0; options->counts < MOST_COUNTS; text = end + 1) {
        const long n = strtol(text, &end, 10);
        if (end == text || n < 1 || n > 1024)
            return false;
        options->threads[options->counts++] = (int32_t)n;
        if (*end != ',')
            return !*end;
    }
    return false;
}

static int32_t most_threads(const struct options *options)
{
    int32_t most = 0;
    for (int i = 0; i < options->counts; ++i)
        most = options->threads[i] > most ? options->threads[i] : most;
    return most;
}

static bool read_time(const char *text, struct bench_effort *effort)
{
    char *end;
    effort->seconds = strtod(text, &end);
    return end != text && !*end && effort->seconds > 0 && effort->seconds <= 86400;
}

/* The number of an option, or the rule that it breaks. */
static const char *read_number(int letter, const char *text, struct options *options)
{
    if (letter == 'n' && !read_repeat(text, &options->effort))
        return "--repeat is a number from 1 to 1000000, not ";
    if (letter == 't' && !read_time(text, &options->effort))
        return "--time is a number of seconds above 0 and up to 86400, not ";
    if (letter == 'T' && !read_threads(text, options))
        return "--threads is up to 16 numbers from 1 to 1024, commas between them, not ";
    return NULL;
}

static const struct option names[] = {
    {"device", required_argument, NULL, 'd'},  {"threads", required_argument, NULL, 'T'},
    {"repeat", required_argument, NULL, 'n'},  {"time", required_argument, NULL, 't'},
    {"list", no_argument, NULL, 'l'},          {"json", no_argument, NULL, 'j'},
    {"csv", no_argument, NULL, 'c'},           {"kernels", no_argument, NULL, 'k'},
    {"peers", no_argument, NULL, 'e'},         {"plot", required_argument, NULL, 'p'},
    {"compare", required_argument, NULL, 'o'}, {"verbose", no_argument, NULL, 'v'},
    {"tune", no_argument, NULL, 'u'},          {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, 'V'},       {0},
};

/* -1: go on; else the exit code. */
static int read_options(int argc, char **argv, struct options *options)
{
    const char *rule;
    int letter;
    while ((letter = getopt_long(argc, argv, "d:T:n:t:ljckvhV", names, NULL)) != -1) {
        enum bench_form form = letter == 'j' ? BENCH_JSON : BENCH_CSV;
        switch (letter) {
        case 'd':
            options->device = optarg;
            break;
        case 'T':
        case 'n':
        case 't':
            rule = read_number(letter, optarg, options);
            if (rule)
                return refuse(rule, optarg);
            break;
        case 'l':
            options->list = true;
            break;
        case 'j':
        case 'c':
            if (options->form != BENCH_TABLE && options->form != form)
                return refuse("--json contradicts --csv", "");
            options->form = form;
            break;
        case 'k':
            options->kernels = true;
            break;
        case 'e':
            options->peers = true;
            break;
        case 'p':
            options->plot = optarg;
            break;
        case 'o':
            options->compare = optarg;
            break;
        case 'u':
            options->tune = true;
            break;
        case 'v':
            options->verbose = true;
            break;
        case 'h':
            fputs(usage, stdout);
            return 0;
        case 'V':
            printf("kdabench %s\n", kda_version());
            return 0;
        default:
            fputs("see kdabench --help\n", stderr);
            return EXIT_INPUT;
        }
    }
    return -1;
}

struct problems {
    struct problem *list;
    size_t count;
};

static void free_problems(struct problems *problems)
{
    for (size_t i = 0; i < problems->count; ++i)
        problem_free(&problems->list[i]);
    free(problems->list);
}

/* All or none; says which is wrong. A reason begins with the part that it is about, which may be
 * all of the problem. */
static bool read_problems(struct problems *problems, const char *const *texts, size_t count)
{
    char why[256] = "out of memory";
    problems->list = calloc(count, sizeof *problems->list);
    while (problems->list && problems->count < count) {
        if (!problem_parse(&problems->list[problems->count], texts[problems->count], why,
                           sizeof why))
            break;
        ++problems->count;
    }
    if (problems->count == count)
        return true;
    const char *text = texts[problems->count];
    const bool all = *why == '\'' && !strncmp(why + 1, text, strlen(text));
    if (all)
        fprintf(stderr, "kdabench: problem %s\n", why);
    else
        fprintf(stderr, "kdabench: problem '%s': %s\n", text, why);
    return false;
}

static void list_problems(const struct problems *problems)
{
    for (size_t i = 0; i < problems->count; ++i) {
        size_t size = problem_print(&problems->list[i], NULL, 0) + 1;
        char *text = malloc(size);
        if (!text)
            return;
        problem_print(&problems->list[i], text, size);
        puts(text);
        free(text);
    }
}

static bool read_defaults(struct problems *problems, const struct options *options,
                          const struct bench *b)
{
    const char *others[64];
    size_t count = 0;
    while (b->peers && count < COUNT(others) && (others[count] = bench_peers_problem(count)))
        ++count;
    if (count)
        return read_problems(problems, others, count);
    if (options->tune)
        return b->small ? read_problems(problems, cpu_tunes, COUNT(cpu_tunes))
                        : read_problems(problems, gpu_tunes, COUNT(gpu_tunes));
    return b->small ? read_problems(problems, cpu_problems, COUNT(cpu_problems))
                    : read_problems(problems, gpu_problems, COUNT(gpu_problems));
}

/* A wrong result outweighs a problem that does not run. */
static int worse(int exit_code, const struct bench_result *result)
{
    if (!result->failure.status && !result->check.pass)
        return EXIT_WRONG;
    if (result->failure.status && exit_code == EXIT_SUCCESS)
        return result->failure.status == KDA_INVALID ? EXIT_INPUT : EXIT_NO_DEVICE;
    return exit_code;
}

/* A problem with each number of threads; returns what the exit code becomes. */
static int measure_problem(struct bench *b, const struct options *options,
                           const struct problem *problem, struct bench_report *report,
                           int exit_code)
{
    const int runs = b->scaling ? options->counts : 1;
    double first = 0;
    for (int i = 0; i < runs; ++i) {
        struct bench_result result = {0};
        if (!b->scaling || bench_threads(b, options->threads[i]))
            bench_run(b, problem, &options->effort, &result);
        else
            result.failure = b->failure;
        if (b->scaling) {
            result.threads = options->threads[i];
            first = i ? first : result.call.median;
            result.speedup = first / result.call.median;
            result.efficiency = result.speedup * options->threads[0] / options->threads[i];
        }
        bench_report_row(report, b, problem, &result);
        exit_code = worse(exit_code, &result);
    }
    return exit_code;
}

static int measure(struct bench *b, struct options *options, const struct problems *problems)
{
    struct bench_report report;
    if (!options->effort.seconds)
        options->effort.seconds = problems->count > 8 ? 8.0 / (double)problems->count : 1;
    int exit_code = EXIT_SUCCESS;
    bench_progress("device", "measuring a copy");
    bench_limits(b);
    bench_progress("", "");
    if (options->tune)
        return bench_tune(b, &options->effort, problems->list, problems->count);
    bench_report_open(&report, options->form, b, problems->list, problems->count);
    for (size_t i = 0; i < problems->count; ++i)
        exit_code = measure_problem(b, options, &problems->list[i], &report, exit_code);
    if (options->plot && !bench_plot(report.json, options->plot))
        exit_code = refuse("--plot: gnuplot does not draw ", options->plot);
    bench_report_close(&report, b);
    return exit_code;
}

/* The given problems, or those that suit the device, on the device. */
static int open_and_measure(struct options *options, struct problems *problems)
{
    struct bench b;
    kda_context_params params =
        *kda_context_params(.backend = KDA_AUTO, .threads = most_threads(options));
    params.on_launch = options->kernels ? bench_on_launch : NULL;
    int exit_code = spec_resolve(options->device, &params);
    if (exit_code)
        return exit_code;
    const bool opened = bench_open(&b, &params, options->verbose);
    const size_t given = problems->count;
    b.peers = options->peers;
    if (!opened) {
        fprintf(stderr, "kdabench: %s: %s\n", options->device, b.failure.why);
        exit_code = b.failure.status == KDA_INVALID ? EXIT_INPUT : EXIT_NO_DEVICE;
    } else if (!problems->count && !read_defaults(problems, options, &b)) {
        exit_code = EXIT_INPUT;
    } else if (options->list) {
        list_problems(problems);
    } else if (b.queue && options->counts > 1) {
        exit_code = refuse("several --threads need the CPU backend", "");
    } else if (b.peers && !bench_peers_here(&b, given) && !given) {
        exit_code = EXIT_INPUT;
    } else {
        if (options->kernels && !b.queue)
            fputs("kdabench: --kernels: the CPU backend has none\n", stderr);
        b.scaling = options->counts > 1;
        exit_code = measure(&b, options, problems);
    }
    bench_close(&b);
    return exit_code;
}

/* The exit code. */
static int run(int argc, char **argv)
{
    struct options options = {.device = "auto"};
    struct problems problems = {0};
    int exit_code = read_options(argc, argv, &options);
    if (exit_code >= 0)
        return exit_code;
    const char *const *texts = (const char *const *)argv + optind;
    if (options.compare && (options.form != BENCH_TABLE || options.plot || options.kernels ||
                            options.peers || options.counts || options.list || options.tune))
        return refuse("--compare contradicts all that is for measuring", "");
    if (options.compare)
        return argc - optind == 1 ? bench_compare(options.compare, texts[0])
                                  : refuse("--compare takes two files", "");
    if (options.tune && (options.form != BENCH_TABLE || options.plot || options.kernels ||
                         options.peers || options.counts > 1))
        return refuse("--tune contradicts --json, --csv, --kernels, --peers, --plot and several "
                      "--threads",
                      "");
    const char *obstacle = options.plot ? bench_plot_obstacle(options.plot) : NULL;
    if (obstacle) {
        fprintf(stderr, "kdabench: --plot %s: %s\n", options.plot, obstacle);
        return EXIT_INPUT;
    }
    if (optind < argc && !read_problems(&problems, texts, (size_t)(argc - optind)))
        exit_code = EXIT_INPUT;
    else if (options.list && problems.count) {
        list_problems(&problems);
        exit_code = EXIT_SUCCESS;
    } else
        exit_code = open_and_measure(&options, &problems);
    free_problems(&problems);
    return exit_code;
}

int main(int argc, char **argv)
{
    output_begin();
    return output_end("kdabench", run(argc, argv));
}

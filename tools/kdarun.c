/* kdarun: one safetensors file through the library, into another file or against the answers that
 * the file itself brings. It only arranges: job.c reads and writes files, compare.c judges.
 *
 * SPDX-License-Identifier: MIT */
#include <cjson/cJSON.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare.h"
#include "job.h"
#include "output.h"
#include "spec.h"
#include "tuned.h"

static const char help[] =
    "Usage: kdarun [options] IN.safetensors [OUT.safetensors]\n"
    "\n"
    "Runs Kimi Delta Attention on the tensors of IN (q, k, v, g, beta, ...) as its metadata say, "
    "and\n"
    "writes o and final_state to OUT, and checkpoints if checkpoint_every is set: one after every\n"
    "so many tokens of each sequence, packed in the order of the sequences.\n"
    "\n"
    "Options:\n"
    "  --check            compare the results with the tensors o, final_state and checkpoints of "
    "IN\n"
    "                     and print the errors; OUT, if given, is written whatever they are\n"
    "  --json             print what --check finds as JSON\n"
    "  --device SPEC      " SPEC_HELP "\n"
    "  --schedule S       auto | recurrent | chunkwise\n"
    "  --engine E         auto | clblast | fused | mma\n"
    "  --set KEY=VALUE    put VALUE in the place of IN's metadata KEY; \"KEY=\" is its default\n"
    "  --out-dtype f32    store o as F32 instead of q's type\n"
    "  -v, --verbose      say on stderr what runs and what was chosen\n"
    "  -h, --help         print this\n"
    "  -V, --version      print the version\n"
    "\n"
    "Metadata keys: gate (log | softplus | bounded | none), gate_bound, beta (given | sigmoid |\n"
    "sigmoid2), norm_qk (0 | 1), scale, rule (delta | additive), state_layout (kv | vk), head_map\n"
    "(grouped | modulo), gate_per_head (0 | 1), checkpoint_every, name. With a tensor g, gate has\n"
    "no default. Tensors are those of kda.h, with state_index making initial_state a pool; fresh\n"
    "is BOOL or U8, and a state_index [N, C] has C columns (index_columns).\n"
    "\n"
    "Errors are ratios: rms(error) / rms(expected), over the whole tensor and in its worst window "
    "(64\n"
    "tokens, or one sequence's state), and largest error / largest expected value. The first two "
    "may\n"
    "reach the bound, the last %d times the bound.\n"
    "\n"
    "Exit status:\n"
    "  0  fine\n"
    "  1  a wrong result\n"
    "  2  bad usage, input or output\n"
    "  3  the device is absent or not able\n"
    "\n" SPEC_CACHE_HELP "\n" TUNED_HELP "\n"
    "Examples:\n"
    "  $ kdarun --check case.safetensors  # is this machine's answer right?\n"
    "  $ kdarun --device 0:0 in.safetensors out.safetensors  # on the first OpenCL device\n"
    "  $ kdarun --set gate=bounded --set gate_bound=-5 --out-dtype f32 in.safetensors "
    "out.safetensors\n";

struct options {
    const char *in, *out, *device;
    int schedule, engine;
    bool check, json, verbose, f32;
    struct st_pair *set;
    size_t num_set;
};

/* What a step answers that isn't the last one: no exit code. */
enum { GO_ON = -1 };

static int hint(void)
{
    fprintf(stderr, "Try 'kdarun --help'.\n");
    return EXIT_INPUT;
}

static int usage(const char *what, const char *value)
{
    fprintf(stderr, "kdarun: %s%s\n", what, value);
    return hint();
}

/* Stores the index of an option's word in a list that ends in NULL. */
static int parse_word(const char *option, const char *const *words, const char *text, int *index)
{
    char list[128];
    size_t n = (size_t)snprintf(list, sizeof(list), "--%s must be one of", option);
    for (int i = 0; words[i]; ++i) {
        if (!strcmp(text, words[i])) {
            *index = i;
            return GO_ON;
        }
        n += (size_t)snprintf(list + n, sizeof(list) - n, " %s", words[i]);
    }
    snprintf(list + n, sizeof(list) - n, ", not ");
    return usage(list, text);
}

static int parse_set(struct options *o, char *text)
{
    char *equals = strchr(text, '=');
    if (!equals)
        return usage("--set must be KEY=VALUE, not ", text);
    *equals = 0;
    o->set[o->num_set++] = (struct st_pair){text, equals + 1};
    return GO_ON;
}

static int parse_option(struct options *o, int option)
{
    static const char *const schedules[] = {"auto", "recurrent", "chunkwise", NULL};
    static const char *const engines[] = {"auto", "clblast", "fused", "mma", NULL};
    static const char *const out_dtypes[] = {"f32", NULL};
    int only;
    switch (option) {
    case 'c':
        o->check = true;
        return GO_ON;
    case 'j':
        o->json = true;
        return GO_ON;
    case 'd':
        o->device = optarg;
        return GO_ON;
    case 's':
        return parse_word("schedule", schedules, optarg, &o->schedule);
    case 'e':
        return parse_word("engine", engines, optarg, &o->engine);
    case 'k':
        return parse_set(o, optarg);
    case 'o':
        o->f32 = true;
        return parse_word("out-dtype", out_dtypes, optarg, &only);
    case 'v':
        o->verbose = true;
        return GO_ON;
    case 'h':
        printf(help, ERROR_SINGLE);
        return 0;
    case 'V':
        printf("kdarun %s\n", kda_version());
        return 0;
    default: /* getopt_long has said what is wrong */
        return hint();
    }
}

static int parse_options(struct options *o, int argc, char **argv)
{
    static const struct option list[] = {
        {"check", no_argument, NULL, 'c'},
        {"json", no_argument, NULL, 'j'},
        {"device", required_argument, NULL, 'd'},
        {"schedule", required_argument, NULL, 's'},
        {"engine", required_argument, NULL, 'e'},
        {"set", required_argument, NULL, 'k'},
        {"out-dtype", required_argument, NULL, 'o'},
        {"verbose", no_argument, NULL, 'v'},
        {"help", no_argument, NULL, 'h'},
        {"version", no_argument, NULL, 'V'},
        {NULL, 0, NULL, 0},
    };
    int option, code = GO_ON;
    while (code == GO_ON && (option = getopt_long(argc, argv, "vhV", list, NULL)) != -1)
        code = parse_option(o, option);
    if (code != GO_ON)
        return code;
    int files = argc - optind;
    if (files < 1)
        return usage("no input file", "");
    if (files > 2)
        return usage("more than two files: ", argv[optind + 2]);
    o->in = argv[optind];
    o->out = files == 2 ? argv[optind + 1] : NULL;
    if (!o->out && !o->check)
        return usage("nothing to do with the result: give OUT, or --check", "");
    if (o->json && !o->check)
        return usage("--json needs --check", "");
    return GO_ON;
}

/* Messages up to the level in data reach stderr. */
static void log_line(void *data, kda_log_level level, const char *line)
{
    if (level <= *(const kda_log_level *)data)
        spec_log(NULL, level, line);
}

/* A run in progress. */
struct run {
    struct options options;
    struct job job;
    kda_context *ctx;
    kda_plan *plan;
    kda_log_level level; /* of messages that are shown */
    char what[256];      /* what runs */
};

static int input_error(const char *line)
{
    fprintf(stderr, "kdarun: %s\n", line);
    return EXIT_INPUT;
}

/* After the library's own line about a call that failed. */
static int refused(const struct run *r, const char *call, kda_status status)
{
    fprintf(stderr, "kdarun: %s: refused by %s (%s)\n", r->options.in, call,
            kda_status_string(status));
    return status == KDA_INVALID ? EXIT_INPUT : EXIT_NO_DEVICE;
}

static int open_job(struct run *r)
{
    const struct options *o = &r->options;
    const struct metadata_settings set = {o->set, o->num_set};
    char error[ST_ERROR_SIZE];
    if (!job_open(&r->job, o->in, &set, error) || (o->check && !job_references(&r->job, error)) ||
        (o->out && !st_writable(o->out, error)))
        return input_error(error);
    kda_problem *p = &r->job.problem;
    p->schedule = (kda_schedule)o->schedule;
    p->engine = (kda_engine)o->engine;
    p->out_dtype = o->f32 ? KDA_F32 : KDA_DTYPE_DEFAULT;
    return GO_ON;
}

/* Whoever leaves the device to us is not warned about what it turns out to be: --check and
 * --verbose say it. */
static int open_context(struct run *r)
{
    kda_context_params params = {
        .struct_size = sizeof(params), .log = log_line, .cache_dir = spec_cache_dir()};
    int code = spec_resolve(r->options.device, &params);
    if (code)
        return code;
    char *tuned = tuned_read();
    params.tuned = tuned;
    kda_log_level shown = r->options.verbose ? KDA_LOG_INFO : KDA_LOG_WARN;
    params.log_data = &r->level;
    params.log_level = shown;
    r->level = params.backend == KDA_AUTO && !r->options.verbose ? KDA_LOG_ERROR : shown;
    kda_status status = kda_context_create(&r->ctx, &params);
    free(tuned);
    r->level = shown;
    return status ? refused(r, "kda_context_create", status) : GO_ON;
}

static int execute(struct run *r)
{
    char error[ST_ERROR_SIZE];
    const kda_problem *p = &r->job.problem;
    kda_status status = kda_plan_create(&r->plan, r->ctx, p);
    if (status == KDA_INVALID)
        fprintf(stderr, "kdarun: tensor 'q' has H = %d, K = %d, tensor 'v' has HV = %d, V = %d\n",
                p->heads, p->key_dim, p->value_heads, p->value_dim);
    if (status)
        return refused(r, "kda_plan_create", status);
    kda_plan_describe(r->plan, r->what, sizeof(r->what));
    if (!job_allocate(&r->job, error))
        return input_error(error);
    status = kda_execute(r->plan, &r->job.args);
    if (status)
        return refused(r, "kda_execute", status);
    job_collect(&r->job);
    return GO_ON;
}

/* How one output compares with what the file says. */
struct finding {
    const char *name;
    struct error error;
    double bound;
    bool pass;
};

static struct finding find(const struct job *job, int id)
{
    const kda_problem *p = &job->problem;
    const struct st_tensor *got = &job->output[id].tensor, *want = job->output[id].reference;
    size_t rows = (size_t)got->shape[0];
    struct finding f = {.name = got->name};
    f.bound =
        id == JOB_OUT ? error_bound_out(p->dtype) : error_bound_state(p->dtype, p->state_dtype);
    f.error =
        error_measure(got->data, job_number_type(got), want->data, job_number_type(want), rows,
                      rows ? (size_t)st_elements(got) / rows : 0, id == JOB_OUT ? ERROR_WINDOW : 1);
    f.pass = error_within(&f.error, f.bound);
    return f;
}

static void print_table(const struct run *r, const struct finding *list, size_t count)
{
    printf("%s\n%-13s %-10s%-10s%-10s%s\n", r->what, "tensor", "rms", "window", "max", "bound");
    for (size_t i = 0; i < count; ++i) {
        const struct finding *f = &list[i];
        printf("%-13s %-10.2e%-10.2e%-10.2e%-9.0e%s", f->name, f->error.rms, f->error.window,
               f->error.max, f->bound, f->pass ? "ok" : "FAIL");
        if (f->error.not_finite)
            printf(": %zu not finite where expected, or the reverse", f->error.not_finite);
        printf("\n");
    }
}

static void print_json(const struct run *r, const struct finding *list, size_t count, bool pass)
{
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "file", r->options.in);
    cJSON_AddStringToObject(root, "plan", r->what);
    cJSON_AddBoolToObject(root, "pass", pass);
    cJSON *tensors = cJSON_AddArrayToObject(root, "tensors");
    for (size_t i = 0; i < count; ++i) {
        const struct finding *f = &list[i];
        cJSON *t = cJSON_CreateObject();
        cJSON_AddStringToObject(t, "name", f->name);
        cJSON_AddNumberToObject(t, "rms", f->error.rms);
        cJSON_AddNumberToObject(t, "window", f->error.window);
        cJSON_AddNumberToObject(t, "max", f->error.max);
        cJSON_AddNumberToObject(t, "not_finite", (double)f->error.not_finite);
        cJSON_AddNumberToObject(t, "bound", f->bound);
        cJSON_AddBoolToObject(t, "pass", f->pass);
        cJSON_AddItemToArray(tensors, t);
    }
    char *text = cJSON_Print(root);
    puts(text ? text : "{}");
    free(text);
    cJSON_Delete(root);
}

/* Whether every output that has a reference is within its bound. */
static bool check(const struct run *r)
{
    struct finding list[JOB_OUTPUTS];
    size_t count = 0;
    bool pass = true;
    for (int id = 0; id < JOB_OUTPUTS; ++id) {
        if (!r->job.output[id].reference)
            continue;
        list[count] = find(&r->job, id);
        pass &= list[count++].pass;
    }
    if (r->options.json)
        print_json(r, list, count, pass);
    else
        print_table(r, list, count);
    return pass;
}

static int deliver(const struct run *r)
{
    const struct options *o = &r->options;
    char error[ST_ERROR_SIZE];
    bool pass = !o->check || check(r);
    if (o->out && !job_write(&r->job, o->out, error))
        return input_error(error);
    return pass ? 0 : EXIT_WRONG;
}

int main(int argc, char **argv)
{
    struct run r = {.options = {.device = "auto"}};
    output_begin();
    r.options.set = calloc((size_t)argc, sizeof(*r.options.set));
    int code = r.options.set ? parse_options(&r.options, argc, argv) : usage("out of memory", "");
    if (code == GO_ON)
        code = open_job(&r);
    if (code == GO_ON)
        code = open_context(&r);
    if (code == GO_ON)
        code = execute(&r);
    if (code == GO_ON)
        code = deliver(&r);
    kda_plan_destroy(&r.plan);
    kda_context_destroy(&r.ctx);
    job_close(&r.job);
    free(r.options.set);
    return output_end("kdarun", code);
}

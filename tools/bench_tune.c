/* kdabench --tune: which engine, chunk and tiles take least, and up to which length going token by
 * token does. A candidate is a row of kda_context_params.tuned, as plans will follow it, measured
 * by bench_run, which checks it first.
 *
 * SPDX-License-Identifier: MIT */
#include "bench.h"
#include "spec.h"
#include "tuned.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A gain below this is noise. */
#define GAIN 0.98

/* Lengths at which the switch to chunks is looked for: multiples of STEP. */
enum { STEP = 8, MOST_STEPS = 128, LEAST_LENGTH = 64 };

struct candidate {
    kda_engine engine;  /* AUTO: the library's own choice of everything */
    int chunk, scan[3]; /* scan[0] 0: the library's */
    int32_t recurrent_up_to;
};

struct search {
    struct bench *b; /* its OpenCL context and empty kernel serve the candidates */
    struct bench_effort effort;
    const struct problem *problem;
    struct candidate best;
    double seconds; /* of the best */
    bool wrong;     /* some candidate's result was */
};

/* ---- Rows ------------------------------------------------------------------------------- */

static const char *const dtypes[] = {"", "f32", "f16", "bf16"};
static const char *const engines[] = {"", "clblast", "fused", "mma"};

/* What a candidate chooses, as in a row. */
static void print_choice(const struct candidate *c, char *text, size_t size)
{
    int n = snprintf(text, size, "engine=%s chunk=%d recurrent_up_to=%d", engines[c->engine],
                     c->chunk, (int)c->recurrent_up_to);
    if (c->scan[0])
        snprintf(text + n, size - (size_t)n, " scan=%dx%dx%d", c->scan[0], c->scan[1], c->scan[2]);
}

/* For which plans a row is: what comes before the driver, and after it. */
static void print_device(const struct bench *b, char *text, size_t size)
{
    snprintf(text, size, "device=\"%s\" driver=", bench_fact(b, "name"));
}

static void print_shape(const kda_problem *p, char *text, size_t size)
{
    snprintf(text, size, " key_dim=%d value_dim=%d dtype=%s ", (int)p->key_dim, (int)p->value_dim,
             dtypes[p->dtype]);
}

static void print_row(const struct search *s, const struct candidate *c, char *text, size_t size)
{
    char device[320], shape[80], choice[128];
    print_device(s->b, device, sizeof device);
    print_shape(&s->problem->shape, shape, sizeof shape);
    print_choice(c, choice, sizeof choice);
    snprintf(text, size, "%s\"%s\"%s%s", device, bench_fact(s->b, "driver"), shape, choice);
}

/* ---- Measuring -------------------------------------------------------------------------- */

static void say(const char *what, const struct bench_result *result)
{
    printf("  %-56s", what);
    if (result->failure.status)
        printf("%s: %s\n", kda_status_string(result->failure.status), result->failure.why);
    else if (!result->check.pass)
        printf("WRONG: %s\n", result->check.why);
    else
        printf("%10.1f us   out %.1e\n", 1e6 * result->call.median, result->check.out_error);
    fflush(stdout);
}

/* Runs a problem on a context of its own that follows a row. */
static void run_row(const struct search *s, const char *row, const struct problem *problem,
                    struct bench_result *result)
{
    struct bench trial;
    kda_context_params params = s->b->params;
    params.tuned = row;
    params.backend = kda_context_backend(s->b->ctx);
    params.context = kda_context_cl_context(s->b->ctx);
    params.device = kda_context_cl_device(s->b->ctx);
    *result = (struct bench_result){0};
    if (bench_open(&trial, &params, s->b->verbose)) {
        trial.by_clock = s->b->by_clock;
        trial.empty = s->b->empty;
        if (trial.empty)
            clRetainKernel(trial.empty);
        bench_run(&trial, problem, &s->effort, result);
    } else {
        result->failure = trial.failure;
    }
    bench_close(&trial);
}

/* Seconds that a candidate takes; infinite: it does not run as it says. */
static double time_candidate(struct search *s, const struct candidate *c,
                             const struct problem *problem, struct bench_result *result)
{
    char row[768] = "", choice[128] = "the library's own choice";
    if (c->engine) {
        print_row(s, c, row, sizeof row);
        print_choice(c, choice, sizeof choice);
    }
    run_row(s, row, problem, result);
    if (!result->failure.status && *row && !strstr(result->plan, " tuned=1"))
        result->failure = (struct failure){KDA_UNSUPPORTED, "the device does not run it"};
    say(choice, result);
    s->wrong |= !result->failure.status && !result->check.pass;
    return !result->failure.status && result->check.pass ? result->call.median : INFINITY;
}

/* Takes a candidate that is faster. */
static void try_candidate(struct search *s, struct candidate c)
{
    struct bench_result result;
    const double seconds = time_candidate(s, &c, s->problem, &result);
    if (!(seconds < GAIN * s->seconds))
        return;
    s->seconds = seconds;
    const char *scan = strstr(result.plan, "scan=");
    if (scan && c.engine == KDA_ENGINE_FUSED)
        sscanf(scan, "scan=%dx%dx%d", &c.scan[0], &c.scan[1], &c.scan[2]);
    s->best = c;
}

/* ---- The search ------------------------------------------------------------------------- */

/* Processors have no other engine worth the time: by CLBlast 1024 tokens took seven times as long
 * on PoCL, and plain C stands in for matrix units. */
static void search_engines(struct search *s)
{
    for (int chunk = 16; chunk <= 64; chunk *= 2)
        try_candidate(s, (struct candidate){.engine = KDA_ENGINE_FUSED, .chunk = chunk});
    for (int chunk = 16; !s->b->small && chunk <= 64; chunk *= 2)
        try_candidate(s, (struct candidate){.engine = KDA_ENGINE_CLBLAST, .chunk = chunk});
    for (int chunk = 16; !s->b->small && chunk <= 64; chunk *= 2)
        try_candidate(s, (struct candidate){.engine = KDA_ENGINE_MMA, .chunk = chunk});
}

/* Tiles of kda_scan: one number after the other, the others as they are best by then. */
static void search_tiles(struct search *s)
{
    static const int values[3][5] = {{16, 32, 64, 128}, {4, 8, 16}, {1, 2, 4}};
    for (int which = 0; s->best.scan[0] && which < 3; ++which) {
        const int from = s->best.scan[which];
        for (const int *value = values[which]; *value; ++value) {
            struct candidate c = s->best;
            c.scan[which] = *value;
            if (*value != from && c.scan[1] <= c.scan[0])
                try_candidate(s, c);
        }
    }
}

/* The problem with sequences of another length, in starts. */
static struct problem shortened(const struct problem *problem, int64_t length, int64_t *starts)
{
    struct problem p = *problem;
    p.ragged = false;
    p.starts = starts;
    for (int64_t n = 0; n <= p.sequences; ++n)
        starts[n] = n * length;
    p.tokens = p.shape.max_tokens = starts[p.sequences];
    return p;
}

/* Whether sequences of a length are faster token by token. */
static bool steps_win(struct search *s, int64_t length, int64_t *starts)
{
    const struct problem p = shortened(s->problem, length, starts);
    struct bench_result result;
    struct candidate c = s->best;
    printf("  at %lld tokens\n", (long long)length);
    c.recurrent_up_to = INT32_MAX;
    const double steps = time_candidate(s, &c, &p, &result);
    c.recurrent_up_to = 0;
    return steps <= time_candidate(s, &c, &p, &result);
}

/* Bisection: below a length steps win, above it chunks. A problem says nothing of sequences longer
 * than its own, unless steps win at the last length that is tried at all. */
static void search_switch(struct search *s, int64_t longest)
{
    int64_t *starts = calloc((size_t)s->problem->sequences + 1, sizeof *starts);
    int64_t low = 0, high = longest / STEP < MOST_STEPS ? longest / STEP : MOST_STEPS;
    const bool all = starts && steps_win(s, high * STEP, starts);
    while (starts && !all && high - low > 1) {
        const int64_t middle = (low + high) / 2;
        if (steps_win(s, middle * STEP, starts))
            low = middle;
        else
            high = middle;
    }
    s->best.recurrent_up_to =
        all && high == MOST_STEPS ? INT32_MAX : (int32_t)(all ? longest : low * STEP);
    free(starts);
}

static int64_t longest_sequence(const struct problem *p)
{
    int64_t longest = 0;
    for (int64_t n = 0; n < p->sequences; ++n)
        if (p->starts[n + 1] - p->starts[n] > longest)
            longest = p->starts[n + 1] - p->starts[n];
    return longest;
}

/* The row that a problem gets, with a comment that says what it is from. false: nothing works. */
static bool search(struct search *s, char *row, size_t size)
{
    struct bench_result result;
    const struct candidate none = {0};
    char text[128];
    time_t now = time(NULL);
    problem_print(s->problem, text, sizeof text);
    printf("%s\n", text);
    const double before = time_candidate(s, &none, s->problem, &result);
    s->seconds = INFINITY;
    search_engines(s);
    search_tiles(s);
    if (isinf(s->seconds))
        return false;
    search_switch(s, longest_sequence(s->problem));
    printf("  found\n");
    const double after = time_candidate(s, &s->best, s->problem, &result);
    print_row(s, &s->best, row, size);
    const size_t used = strlen(row);
    char date[16];
    strftime(date, sizeof date, "%Y-%m-%d", gmtime(&now));
    snprintf(row + used, size - used, " # %s: %s, %.1f us, untuned %.1f", date, text, 1e6 * after,
             1e6 * before);
    return true;
}

/* ---- The user's file -------------------------------------------------------------------- */

/* Whether a line is a row of this program's for the same plans, of whatever driver. */
static bool is_replaced(const struct search *s, const char *line, size_t length)
{
    char device[320], shape[80];
    print_device(s->b, device, sizeof device);
    print_shape(&s->problem->shape, shape, sizeof shape);
    const char *found = strstr(line, shape);
    return !strncmp(line, device, strlen(device)) && found && found < line + length;
}

/* Puts a row behind the others. */
static bool file_row(const struct search *s, const char *row)
{
    char *old = tuned_read(), *text = NULL;
    size_t size;
    FILE *lines = open_memstream(&text, &size);
    for (const char *line = old ? old : ""; lines && *line;) {
        const size_t length = strcspn(line, "\n");
        if (!is_replaced(s, line, length))
            fprintf(lines, "%.*s\n", (int)length, line);
        line += length + (line[length] == '\n');
    }
    const bool filed =
        lines && fprintf(lines, "%s\n", row) > 0 && !fclose(lines) && tuned_write(text);
    free(old);
    free(text);
    return filed;
}

/* What a problem must leave open, and be long enough for. */
static bool tunable(const struct problem *p)
{
    if (p->shape.schedule == KDA_SCHEDULE_AUTO && p->shape.engine == KDA_ENGINE_AUTO &&
        longest_sequence(p) >= LEAST_LENGTH)
        return true;
    fprintf(stderr,
            "kdabench: --tune: a problem must leave schedule and engine open and have a sequence "
            "of %d tokens\n",
            LEAST_LENGTH);
    return false;
}

int bench_tune(struct bench *b, const struct bench_effort *effort, const struct problem *problems,
               size_t count)
{
    int exit_code = EXIT_SUCCESS;
    if (!tuned_path()) {
        fputs("kdabench: --tune: rows have no place: neither XDG_CONFIG_HOME nor HOME is set\n",
              stderr);
        return EXIT_INPUT;
    }
    for (size_t i = 0; i < count; ++i)
        if (!tunable(&problems[i]))
            return EXIT_INPUT;
    for (size_t i = 0; i < count; ++i) {
        struct search s = {.b = b, .effort = *effort, .problem = &problems[i]};
        char row[1024];
        if (!search(&s, row, sizeof row)) {
            exit_code = EXIT_NO_DEVICE;
        } else {
            printf("%s\n", row);
            if (!file_row(&s, row))
                return EXIT_INPUT;
        }
        if (s.wrong)
            exit_code = EXIT_WRONG;
    }
    return exit_code;
}

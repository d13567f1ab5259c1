/* Results for people, for spreadsheets and for programs. Every row is one JSON object, from which
 * the CSV line and the table's line are taken, so the three can't differ.
 *
 * SPDX-License-Identifier: MIT */
#include "bench.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The table's columns after the problem: a member of the row, in which unit, how wide; errors take
 * two digits, all else four. The last ones compare numbers of threads. */
static const struct column {
    const char *title, *member;
    double unit;
    int width;
} columns[] = {
    {"out err", "out_error", 0, 7},        {"state err", "state_error", 0, 9},
    {"median us", "median_s", 1e-6, 9},    {"p10 us", "p10_s", 1e-6, 7},
    {"p90 us", "p90_s", 1e-6, 7},          {"- empty us", "above_empty_s", 1e-6, 10},
    {"ktokens/s", "tokens_per_s", 1e3, 9}, {"GB/s", "bytes_per_s", 1e9, 6},
    {"% of copy", "copy_share", 0.01, 9},  {"GFLOP/s", "flops_per_s", 1e9, 7},
    {"% of f32", "f32_share", 0.01, 8},    {"host us", "enqueue_median_s", 1e-6, 7},
    {"speed-up", "speedup", 1, 8},         {"% each", "efficiency", 0.01, 6},
};
enum { SCALING_COLUMNS = 2 };

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

void bench_progress(const char *problem, const char *stage)
{
    static bool shown;
    if (!isatty(STDERR_FILENO) || (!*stage && !shown))
        return;
    shown = *stage;
    fprintf(stderr, "\r\033[K%s%s%s", problem, *stage ? ": " : "", stage);
    fflush(stderr);
}

static void add_number(cJSON *row, const char *name, bool known, double value)
{
    if (known)
        cJSON_AddNumberToObject(row, name, value);
    else
        cJSON_AddNullToObject(row, name);
}

static void add_text(cJSON *row, const char *name, const char *text)
{
    if (*text)
        cJSON_AddStringToObject(row, name, text);
    else
        cJSON_AddNullToObject(row, name);
}

static const char *status_word(const struct bench_result *r)
{
    return r->failure.status ? kda_status_string(r->failure.status)
           : r->check.pass   ? "OK"
                             : "WRONG";
}

/* The members of a row, in the order of CSV's columns; all always there. */
static cJSON *make_row(const struct bench *b, const struct problem *problem,
                       const struct bench_result *r)
{
    char text[4096];
    cJSON *row = cJSON_CreateObject();
    bool ran = !r->failure.status, timed = ran && r->call.count, device = timed && b->queue;
    double seconds = r->call.median, bytes = problem_bytes(problem), flops = problem_flops(problem);
    problem_print(problem, text, sizeof text);
    add_text(row, "problem", text);
    add_text(row, "status", status_word(r));
    add_text(row, "why", r->failure.status ? r->failure.why : r->check.why);
    add_number(row, "out_error", ran, r->check.out_error);
    add_number(row, "state_error", ran && problem->states, r->check.state_error);
    add_number(row, "heads_checked", ran, (double)r->check.heads);
    add_number(row, "heads", ran, (double)r->check.all_heads);
    add_number(row, "calls", ran, (double)r->call.count);
    add_number(row, "median_s", timed, seconds);
    add_number(row, "p10_s", timed, r->call.p10);
    add_number(row, "p90_s", timed, r->call.p90);
    add_number(row, "tokens", true, (double)problem->tokens);
    add_number(row, "bytes", true, bytes);
    add_number(row, "flops", true, flops);
    add_number(row, "tokens_per_s", timed, (double)problem->tokens / seconds);
    add_number(row, "bytes_per_s", timed, bytes / seconds);
    add_number(row, "copy_share", timed && b->copy_bytes_s > 0, bytes / seconds / b->copy_bytes_s);
    add_number(row, "flops_per_s", timed, flops / seconds);
    add_number(row, "f32_share", timed && b->f32_flops_s > 0, flops / seconds / b->f32_flops_s);
    add_number(row, "enqueue_median_s", device, r->enqueue.median);
    add_number(row, "empty_median_s", timed && r->empty.count, r->empty.median);
    add_number(row, "above_empty_s", timed && r->empty.count, seconds - r->empty.median);
    add_number(row, "plan_create_s", ran, r->plan_s);
    add_text(row, "plan", r->plan);
    add_number(row, "threads", r->threads, r->threads);
    add_number(row, "speedup", timed && r->threads, r->speedup);
    add_number(row, "efficiency", timed && r->threads, r->efficiency);
    return row;
}

static void print_device(const struct bench *b)
{
    printf("libkda %s on %s%s%s\n", kda_version(), b->device, *b->driver ? ", driver " : "",
           b->driver);
    if (b->copy_bytes_s > 0)
        printf("a large copy: %.4g GB/s read and written", 1e-9 * b->copy_bytes_s);
    else
        printf("a large copy: not measured");
    if (b->f32_flops_s > 0)
        printf("; f32: %.4g GFLOP/s", 1e-9 * b->f32_flops_s);
    if (b->matrix_flops_s > 0)
        printf("; f16 on matrix units: %.4g GFLOP/s", 1e-9 * b->matrix_flops_s);
    if (b->empty_s > 0)
        printf("; an empty kernel: %.4g us, %.3g us of the host's time to enqueue",
               1e6 * b->empty_s, 1e6 * b->launch_s);
    if (b->by_clock)
        printf("\ntimes are the clock's, from the call to its end: this driver's event times are "
               "useless");
    printf("\n\n");
}

static void print_header(const struct bench_report *report)
{
    printf("%-*s%s", report->width, "problem", report->scaling ? "  threads" : "");
    for (size_t i = 0; i < report->columns; ++i)
        printf("  %*s", columns[i].width, columns[i].title);
    printf("  plan\n");
}

/* Four digits, or all before the point. */
static void print_digits(char *text, size_t size, double x)
{
    snprintf(text, size, "%.*f", x < 10 ? 3 : x < 100 ? 2 : x < 1000 ? 1 : 0, x);
}

static void print_cell(const struct column *column, const cJSON *row)
{
    const cJSON *value = cJSON_GetObjectItem(row, column->member);
    char text[32] = "-";
    if (cJSON_IsNumber(value) && column->unit > 0)
        print_digits(text, sizeof text, value->valuedouble / column->unit);
    else if (cJSON_IsNumber(value))
        snprintf(text, sizeof text, "%.1e", value->valuedouble);
    printf("  %*s", column->width, text);
}

static const char *row_text(const cJSON *row, const char *name)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItem(row, name));
    return text ? text : "";
}

static void print_line(const struct bench_report *report, const cJSON *row)
{
    const char *status = row_text(row, "status");
    printf("%-*s", report->width, row_text(row, "problem"));
    if (report->scaling)
        printf("  %7d", cJSON_GetObjectItem(row, "threads")->valueint);
    if (cJSON_IsNumber(cJSON_GetObjectItem(row, "median_s"))) {
        for (size_t i = 0; i < report->columns; ++i)
            print_cell(&columns[i], row);
        printf("  %s", row_text(row, "plan"));
    }
    if (strcmp(status, "OK"))
        printf("  %s: %s", status, row_text(row, "why"));
    printf("\n");
}

/* A kernel's members are named as a row's. Shares are of the rates that it could reach. */
static cJSON *make_kernel(const struct bench *b, const struct bench_kernel *k)
{
    cJSON *kernel = cJSON_CreateObject();
    const bool works = k->seconds > 0 && k->work.bytes > 0;
    const double bytes_s = k->work.bytes / k->seconds, flops_s = k->work.flops / k->seconds;
    add_text(kernel, "name", k->name);
    add_number(kernel, "launches", true, (double)k->launches);
    add_number(kernel, "median_s", true, k->seconds);
    add_number(kernel, "bytes", k->work.bytes > 0, k->work.bytes);
    add_number(kernel, "flops", k->work.bytes > 0, k->work.flops);
    add_number(kernel, "bytes_per_s", works, bytes_s);
    add_number(kernel, "copy_share", works && b->copy_bytes_s > 0, bytes_s / b->copy_bytes_s);
    add_number(kernel, "flops_per_s", works, flops_s);
    add_number(kernel, "f32_share", works && b->f32_flops_s > 0, flops_s / b->f32_flops_s);
    add_number(kernel, "matrix_share", works && b->matrix_flops_s > 0, flops_s / b->matrix_flops_s);
    return kernel;
}

static void add_kernels(cJSON *row, const struct bench *b, const struct bench_result *r)
{
    cJSON *list = cJSON_AddArrayToObject(row, "kernels");
    for (size_t i = 0; i < r->kernels; ++i)
        cJSON_AddItemToArray(list, make_kernel(b, &r->kernel[i]));
}

static double number_of(const cJSON *object, const char *name)
{
    return cJSON_GetNumberValue(cJSON_GetObjectItem(object, name));
}

/* Below its row: a kernel in the place of the errors, what it takes, how it stands to the limits;
 * how often a call launches it, and what that has to do. */
static void print_kernels(const struct bench_report *report, const cJSON *row)
{
    const cJSON *kernel;
    cJSON_ArrayForEach(kernel, cJSON_GetObjectItem(row, "kernels"))
    {
        const double launches = number_of(kernel, "launches");
        printf("%-*s  %*s", report->width, "", columns[0].width + 2 + columns[1].width,
               row_text(kernel, "name"));
        for (size_t i = 2; i < COUNT(columns); ++i)
            print_cell(&columns[i], kernel);
        printf("  %.0f launch%s", launches, launches > 1 ? "es" : "");
        if (cJSON_IsNumber(cJSON_GetObjectItem(kernel, "bytes")))
            printf(", %.4g MB, %.4g GFLOP", 1e-6 * number_of(kernel, "bytes"),
                   1e-9 * number_of(kernel, "flops"));
        if (cJSON_IsNumber(cJSON_GetObjectItem(kernel, "matrix_share")))
            printf(", %.3g %% of matrix units", 100 * number_of(kernel, "matrix_share"));
        printf("\n");
    }
}

static void print_csv_header(const cJSON *row)
{
    for (const cJSON *value = row->child; value; value = value->next)
        printf("%s%s", value->string, value->next ? "," : "\n");
}

static void print_csv(const cJSON *row)
{
    for (const cJSON *value = row->child; value; value = value->next) {
        if (cJSON_IsNumber(value))
            printf("%.9g", value->valuedouble);
        if (cJSON_IsString(value)) {
            putchar('"');
            for (const char *c = value->valuestring; *c; ++c)
                printf(*c == '"' ? "\"\"" : "%c", *c);
            putchar('"');
        }
        putchar(value->next ? ',' : '\n');
    }
}

static cJSON *make_document(const struct bench *b)
{
    cJSON *document = cJSON_CreateObject();
    add_text(document, "kda", kda_version());
    add_number(document, "seed", true, BENCH_SEED);
    cJSON *device = cJSON_AddObjectToObject(document, "device");
    add_text(device, "name", b->device);
    add_text(device, "backend", b->queue ? "opencl" : "cpu");
    add_text(device, "driver", b->driver);
    add_text(device, "timed_by", b->queue && !b->by_clock ? "events" : "clock");
    add_number(device, "copy_bytes_per_s", b->copy_bytes_s > 0, b->copy_bytes_s);
    add_number(device, "f32_flops_per_s", b->f32_flops_s > 0, b->f32_flops_s);
    add_number(device, "matrix_flops_per_s", b->matrix_flops_s > 0, b->matrix_flops_s);
    add_number(device, "empty_kernel_s", b->empty_s > 0, b->empty_s);
    add_number(device, "empty_enqueue_s", b->launch_s > 0, b->launch_s);
    cJSON_AddArrayToObject(document, "results");
    return document;
}

void bench_report_open(struct bench_report *report, enum bench_form form, const struct bench *b,
                       const struct problem *problems, size_t count)
{
    *report = (struct bench_report){.form = form, .width = (int)strlen("problem")};
    report->scaling = b->scaling;
    report->columns = COUNT(columns) - (b->scaling ? 0 : SCALING_COLUMNS);
    for (size_t i = 0; i < count; ++i) {
        int width = (int)problem_print(&problems[i], NULL, 0);
        report->width = width > report->width ? width : report->width;
    }
    report->json = make_document(b);
    if (form == BENCH_TABLE) {
        print_device(b);
        print_header(report);
    }
}

void bench_report_row(struct bench_report *report, const struct bench *b,
                      const struct problem *problem, const struct bench_result *result)
{
    cJSON *row = make_row(b, problem, result);
    cJSON_AddItemToArray(cJSON_GetObjectItem(report->json, "results"), row);
    if (report->form == BENCH_CSV && !report->rows)
        print_csv_header(row);
    if (report->form == BENCH_CSV)
        print_csv(row);
    if (b->kernels)
        add_kernels(row, b, result);
    if (b->peers)
        bench_peers_add(row, b, problem);
    if (report->form == BENCH_TABLE) {
        print_line(report, row);
        print_kernels(report, row);
    }
    ++report->rows;
    fflush(stdout);
}

void bench_report_close(struct bench_report *report, const struct bench *b)
{
    if (b->peers && report->form == BENCH_TABLE)
        bench_peers_print(report->json, b, report->width);
    char *text = report->form == BENCH_JSON ? cJSON_Print(report->json) : NULL;
    if (text)
        puts(text);
    cJSON_free(text);
    cJSON_Delete(report->json);
}

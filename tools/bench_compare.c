/* Two --json documents side by side: how the times of the problems that are in both relate, and
 * which have become slower beyond what their own spread explains.
 *
 * SPDX-License-Identifier: MIT */
#include "bench.h"
#include "spec.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A change of the median by less is none, however small the spread. */
static const double least = 0.05;

static const char *text_of(const cJSON *object, const char *name)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItem(object, name));
    return text ? text : "";
}

static double number_of(const cJSON *row, const char *name)
{
    return cJSON_GetNumberValue(cJSON_GetObjectItem(row, name));
}

static bool is_fine(const cJSON *row)
{
    return !strcmp(text_of(row, "status"), "OK");
}

/* Whether every row that is fine has a time. */
static bool is_document(const cJSON *document)
{
    const cJSON *row, *rows = cJSON_GetObjectItem(document, "results");
    bool all = cJSON_IsArray(rows);
    cJSON_ArrayForEach(row, rows)
    {
        all &= !is_fine(row) || number_of(row, "median_s") > 0;
    }
    return all;
}

static cJSON *read_document(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file) {
        fprintf(stderr, "kdabench: %s: %s\n", path, strerror(errno));
        return NULL;
    }
    size_t used = 0, room = 1 << 16;
    char *text = malloc(room);
    for (size_t n = 1; text && n; used += n) {
        if (used == room) {
            char *more = realloc(text, room *= 2);
            if (!more)
                break;
            text = more;
        }
        n = fread(text + used, 1, room - used, file);
    }
    fclose(file);
    cJSON *document = text ? cJSON_ParseWithLength(text, used) : NULL;
    free(text);
    if (is_document(document))
        return document;
    fprintf(stderr, "kdabench: %s is not what kdabench --json prints\n", path);
    cJSON_Delete(document);
    return NULL;
}

/* The same problem; where both know of how many threads, the same number. */
static bool alike(const cJSON *a, const cJSON *b)
{
    double n = number_of(a, "threads"), m = number_of(b, "threads");
    return !strcmp(text_of(a, "problem"), text_of(b, "problem")) && !(n < m || n > m);
}

static const cJSON *find_row(const cJSON *document, const cJSON *wanted)
{
    const cJSON *row = cJSON_GetObjectItem(document, "results")->child;
    while (row && !alike(row, wanted))
        row = row->next;
    return row;
}

static void print_source(const char *name, const char *path, const cJSON *document)
{
    const cJSON *device = cJSON_GetObjectItem(document, "device");
    printf("%s: %s: libkda %s on %s, driver %s\n", name, path, text_of(document, "kda"),
           text_of(device, "name"),
           *text_of(device, "driver") ? text_of(device, "driver") : "none");
}

/* Prints a line; false: b is worse than a. */
static bool compare_rows(const cJSON *a, const cJSON *b, int width)
{
    double before = number_of(a, "median_s"), after = number_of(b, "median_s");
    double ratio = after / before;
    bool slower = ratio > 1 + least && number_of(b, "p10_s") > number_of(a, "p90_s");
    bool faster = ratio < 1 - least && number_of(b, "p90_s") < number_of(a, "p10_s");
    printf("%-*s", width, text_of(a, "problem"));
    if (!is_fine(b)) {
        printf("  %s: %s\n", text_of(b, "status"), text_of(b, "why"));
        return !is_fine(a);
    }
    if (is_fine(a))
        printf("  %10.2f  %10.2f  %6.3f%s\n", 1e6 * before, 1e6 * after, ratio,
               slower   ? "  SLOWER"
               : faster ? "  faster"
                        : "");
    else
        printf("  %10s  %10.2f  %6s\n", text_of(a, "status"), 1e6 * after, "-");
    return !is_fine(a) || !slower;
}

/* Problems of one document that the other lacks. */
static void print_missing(const cJSON *from, const cJSON *other, const char *name)
{
    const cJSON *row;
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(from, "results"))
    {
        if (!find_row(other, row))
            printf("only in %s: %s\n", name, text_of(row, "problem"));
    }
}

static int compare_documents(const cJSON *a, const cJSON *b)
{
    int width = (int)strlen("problem"), shared = 0, worse = 0;
    const cJSON *row, *other;
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(a, "results"))
    {
        int length = (int)strlen(text_of(row, "problem"));
        width = length > width ? length : width;
    }
    printf("\n%-*s  %10s  %10s  %6s\n", width, "problem", "A us", "B us", "B/A");
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(a, "results"))
    {
        if (!(other = find_row(b, row)))
            continue;
        ++shared;
        worse += !compare_rows(row, other, width);
    }
    print_missing(a, b, "A");
    print_missing(b, a, "B");
    printf("\n%d problem%s in both, %d worse in B\n", shared, shared == 1 ? "" : "s", worse);
    return worse ? EXIT_WRONG : shared ? EXIT_SUCCESS : EXIT_INPUT;
}

int bench_compare(const char *path_a, const char *path_b)
{
    cJSON *a = read_document(path_a), *b = a ? read_document(path_b) : NULL;
    int exit_code = EXIT_INPUT;
    if (b) {
        print_source("A", path_a, a);
        print_source("B", path_b, b);
        exit_code = compare_documents(a, b);
    }
    cJSON_Delete(a);
    cJSON_Delete(b);
    return exit_code;
}

/* Beside others: the problems whose times on one device others' programs are known for, and how a
 * measurement relates to those and to its floor, which is the bytes that must move once at the
 * rate of a large copy.
 *
 * SPDX-License-Identifier: MIT */
#include "bench.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

/* The device of all figures; where they come from. */
#define DEVICE "NVIDIA H200"
enum { FLA, FLASH_KDA, CULA, PEERS };
static const struct {
    const char *name, *source;
} peers[PEERS] = {
    {"FLA", "flash-linear-attention 0.5.2 on Triton 3.6, safe gate where bounded; device events, "
            "medians, 2026-11-29, driver 580.159; one token each: replay of a CUDA graph"},
    {"FlashKDA", "MoonshotAI's CUTLASS kernels of 2026-07; device events, medians, 2026-11-29, "
                 "driver 580.159"},
    {"cuLA", "inclusionAI's CuTe DSL kernels, as published in 2026-08, without states; not "
             "measured again"},
};

/* Microseconds; 0: not known. K = V = 128, bf16, f32 states in and out, norms and sigmoid inside.
 * 12 heads are Kimi K3's on each of 8 devices. */
static const struct figures {
    const char *problem;
    double us[PEERS];
} table[] = {
    {"8192x96x128/bounded", {2598, 1396, 0}},
    {"8192x64x128/bounded", {1755, 1194, 1283}},
    {"8192x32x128/bounded", {1082, 978, 0}},
    {"8x1024x32x128/bounded", {1020, 427, 0}},
    {"96x128/lens=1300,547,2048,963,271,3063/bounded", {2637, 1401, 0}},
    {"8x2048x32x128/bounded", {0, 793, 0}},
    {"1024x32x128/bounded", {0, 152, 0}},
    {"65536x32x128/bounded", {7393, 7564, 0}},
    {"8192x96x128/softplus", {2886, 0, 0}},
    {"8192x64x128/softplus", {1950, 0, 0}},
    {"8192x32x128/softplus", {1058, 0, 0}},
    {"8192x4x128/bounded", {0, 0, 282}},
    {"8192x8x128/bounded", {0, 0, 318}},
    {"8192x12x128/bounded", {0, 0, 0}},
    {"1024x12x128/bounded", {0, 0, 0}},
    {"65536x4x128/bounded", {0, 0, 966}},
    {"65536x8x128/bounded", {0, 0, 1624}},
    {"decode:1x32x128/bounded", {4.7, 0, 0}},
    {"decode:8x32x128/bounded", {0, 0, 0}},
    {"decode:64x32x128/bounded", {86.5, 0, 0}},
    {"decode:256x32x128/bounded", {346, 0, 0}},
    {"decode:64x96x128/bounded", {0, 0, 0}},
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

const char *bench_peers_problem(size_t i)
{
    return i < COUNT(table) ? table[i].problem : NULL;
}

/* Whether two problems differ in schedule and engine at most. */
static bool is_same(const struct problem *problem, const char *other)
{
    struct problem p = *problem, q;
    char text[256], other_text[256] = "", why[64];
    p.option[OPTION_SCHEDULE] = p.option[OPTION_ENGINE] = 0;
    problem_print(&p, text, sizeof text);
    if (problem_parse(&q, other, why, sizeof why)) {
        problem_print(&q, other_text, sizeof other_text);
        problem_free(&q);
    }
    return !strcmp(text, other_text);
}

static const double *find_figures(const struct problem *problem)
{
    for (size_t i = 0; i < COUNT(table); ++i)
        if (is_same(problem, table[i].problem))
            return table[i].us;
    return NULL;
}

void bench_peers_add(cJSON *row, const struct bench *b, const struct problem *problem)
{
    const double seconds = cJSON_GetNumberValue(cJSON_GetObjectItem(row, "median_s"));
    const double *us = strstr(b->device, DEVICE) ? find_figures(problem) : NULL;
    cJSON *list = cJSON_AddArrayToObject(row, "peers");
    for (int i = 0; us && i < PEERS; ++i) {
        if (!us[i])
            continue;
        cJSON *peer = cJSON_CreateObject();
        cJSON_AddStringToObject(peer, "name", peers[i].name);
        cJSON_AddStringToObject(peer, "source", peers[i].source);
        cJSON_AddNumberToObject(peer, "median_s", 1e-6 * us[i]);
        if (seconds > 0)
            cJSON_AddNumberToObject(peer, "ratio", 1e-6 * us[i] / seconds);
        cJSON_AddItemToArray(list, peer);
    }
}

/* A number, or a dash if there is none. */
static void print_number(int width, const char *format, const cJSON *number, double unit)
{
    char text[32] = "-";
    if (cJSON_IsNumber(number))
        snprintf(text, sizeof text, format, number->valuedouble / unit);
    printf("  %*s", width, text);
}

static const cJSON *find_peer(const cJSON *row, const char *name)
{
    const cJSON *peer;
    cJSON_ArrayForEach(peer, cJSON_GetObjectItem(row, "peers"))
    {
        if (!strcmp(cJSON_GetStringValue(cJSON_GetObjectItem(peer, "name")), name))
            return peer;
    }
    return NULL;
}

static void print_row(const cJSON *row, int width)
{
    const cJSON *share = cJSON_GetObjectItem(row, "copy_share");
    printf("%-*s", width, cJSON_GetStringValue(cJSON_GetObjectItem(row, "problem")));
    print_number(7, "%.1e", cJSON_GetObjectItem(row, "out_error"), 1);
    print_number(9, "%.1e", cJSON_GetObjectItem(row, "state_error"), 1);
    print_number(9, "%.1f", cJSON_GetObjectItem(row, "median_s"), 1e-6);
    if (cJSON_IsNumber(share) && share->valuedouble > 0)
        printf("  %11.2f", 1 / share->valuedouble);
    else
        printf("  %11s", "-");
    for (int i = 0; i < PEERS; ++i) {
        const cJSON *peer = find_peer(row, peers[i].name);
        print_number(11, "%.1f", cJSON_GetObjectItem(peer, "median_s"), 1e-6);
        print_number(5, "%.2f", cJSON_GetObjectItem(peer, "ratio"), 1);
    }
    printf("\n");
}

void bench_peers_print(const cJSON *document, const struct bench *b, int width)
{
    const cJSON *row;
    const bool here = strstr(b->device, DEVICE);
    printf("\n%-*s  %7s  %9s  %9s  %11s", width, "problem", "out err", "state err", "median us",
           "times floor");
    for (int i = 0; i < PEERS; ++i)
        printf("  %8s us  %5s", peers[i].name, "ratio");
    printf("\n");
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(document, "results")) print_row(row, width);
    printf(
        "\nfloor: the bytes that must move once, at a large copy's rate; ratio: theirs / ours\n");
    for (int i = 0; here && i < PEERS; ++i)
        printf("%s: %s, %s\n", peers[i].name, DEVICE, peers[i].source);
}

bool bench_peers_here(const struct bench *b, size_t problems)
{
    const bool here = strstr(b->device, DEVICE);
    if (!here)
        fprintf(stderr, "kdabench: --peers: others' figures are of %s, and not shown beside %s%s\n",
                DEVICE, b->device, problems ? "" : "; name the problems to measure");
    return here;
}

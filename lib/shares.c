/* How the work-groups of kda_mma share its work: those that prepare chunks and those that scan run
 * side by side (cl/mma_order.cl), so both should take about as long.
 *
 * SPDX-License-Identifier: MIT */
#include "internal.h"

enum { PARTS = 2 }; /* of a work-group that prepares, each with a chunk and head of its own */

static int64_t ceil_div64(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* What a work-group of kda_mma takes, in ns: to prepare a chunk and head, to scan one of one or two
 * tiles, to begin and end a scan (H200, 2026-11-30). Their relation is what counts. */
enum { PREPARE_NS = 6300, SCAN_NS = 1290, SCAN_TWO_NS = 1960, SCAN_ENDS_NS = 3600 };

struct work {
    int64_t units, blocks, jobs, job_ns; /* work-groups; to prepare; to scan, and each one's time */
};

/* The longer of both parts' times if so many work-groups scan. */
static int64_t longer_part(const struct work *w, int64_t scanners)
{
    int64_t scan = ceil_div64(w->jobs, scanners) * w->job_ns;
    int64_t prepare = w->blocks * PREPARE_NS / (w->units - scanners);
    return scan > prepare ? scan : prepare;
}

/* How many work-groups should scan, so that the longer part is about as short as can be, and how
 * long it is at least. Of numbers that hardly differ the largest: with more jobs begun, less waits
 * for one chunk. (H200, 2026-11-30, us, how many of 132 scan: 8 sequences of 2048 tokens, 32 heads:
 * 32 565, 34 545, 36 547, 38 557, 40 567; 8 of 1024: 32 314, 34 311, 37 299, 38 303, 43 308; one of
 * 8192, 64 heads: 30 755, 32 549, 33 544, 35 555.) */
static int64_t balance(const struct work *w, int64_t *ns)
{
    int64_t n = w->units - 1 < w->jobs ? w->units - 1 : w->jobs;
    *ns = INT64_MAX;
    for (int64_t i = 1; i <= n; i++) {
        const int64_t longer = longer_part(w, i);
        *ns = longer < *ns ? longer : *ns;
    }
    while (n > 1 && longer_part(w, n) > *ns + *ns / 50)
        n--;
    return n > 1 ? n : 1;
}

/* The same of a call. */
static int64_t balance_call(const kda_context *ctx, const kda_problem *p, int32_t teams,
                            int64_t scans, int64_t columns, int64_t chunks, int64_t *ns)
{
    const int64_t busy = scans < chunks ? scans : chunks;
    const int64_t chunk_ns = teams == 2 ? SCAN_TWO_NS : SCAN_NS;
    const struct work work = {
        .units = ctx->device->compute_units > 2 ? ctx->device->compute_units : 2,
        .blocks = chunks * p->value_heads,
        .jobs = busy * p->value_heads * columns / 64 / teams,
        .job_ns = ceil_div64(chunks, busy) * chunk_ns + SCAN_ENDS_NS,
    };
    return balance(&work, ns);
}

int64_t kda_shares_ns(const kda_context *ctx, const kda_problem *p, int32_t teams, int64_t scans,
                      int64_t columns, int64_t chunks)
{
    int64_t ns;
    balance_call(ctx, p, teams, scans, columns, chunks, &ns);
    return ns;
}

int64_t kda_shares_preparers(int64_t blocks)
{
    return ceil_div64(blocks, PARTS);
}

struct kda_shares kda_shares_of(const kda_context *ctx, const kda_problem *p,
                                const struct kda_config *c, int64_t scans, int64_t columns,
                                int64_t chunks)
{
    int64_t ns, scanners = balance_call(ctx, p, c->teams, scans, columns, chunks, &ns);
    int64_t preparers = (int64_t)ctx->device->compute_units - scanners;
    int64_t most = kda_shares_preparers(chunks * p->value_heads);
    int64_t turns = ceil_div64(p->value_heads * columns / c->scan_v, scanners);
    preparers = preparers < most ? preparers : most;
    return (struct kda_shares){
        .preparers = (int32_t)(preparers > 1 ? preparers : 1),
        .scanners = (int32_t)scanners,
        .heads_abreast = (int32_t)ceil_div64(p->value_heads, turns),
    };
}

struct kda_shares kda_shares_of_scan(const kda_context *ctx, const kda_problem *p,
                                     const struct kda_config *c, int64_t scans, int64_t columns)
{
    int64_t jobs = kda_config_scan_groups(p, c, scans, columns);
    int64_t units = ctx->device->compute_units;
    return (struct kda_shares){
        .scanners = (int32_t)(jobs < units ? jobs : units),
        .heads_abreast = p->value_heads,
    };
}

/* kdabench's parts: a device opened for measuring, its limits, a problem measured on it, and how
 * results are shown. kdainfo --measure shows the limits too.
 *
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_H
#define BENCH_H

#include "workload.h"

/* Inputs come from this seed: every run of every machine computes the same. */
enum { BENCH_SEED = 1 };

/* Why something did not work, with the status it amounts to. */
struct failure {
    kda_status status; /* KDA_OK: none */
    char why[512];
};

struct bench {
    kda_context_params params; /* of the context */
    kda_context *ctx;
    cl_command_queue queue; /* in order, with profiling; NULL: the CPU backend */
    cl_kernel empty;        /* does nothing; NULL where it does not build */
    char device[256], driver[128];
    bool small;            /* a processor, by whatever way: short problems suit it */
    bool by_clock;         /* the driver's event times are useless, so the clock is read instead */
    double copy_bytes_s;   /* bytes read plus bytes written each second by a large copy */
    double f32_flops_s;    /* f32 multiply-adds, two operations each */
    double matrix_flops_s; /* f16 multiply-adds on matrix units; 0 without such units */
    double empty_s;        /* an empty kernel; 0 on the CPU backend */
    double launch_s;       /* what the host takes to enqueue it with an event */
    bool verbose;
    bool peers;             /* results stand beside others' figures */
    bool kernels;           /* results tell of each kernel: on_launch is bench_on_launch */
    bool scaling;           /* results are of several numbers of threads */
    char *tuned;            /* the user's rows, if params has no other; owned here */
    struct kernel_log *log; /* of launches, while not NULL */
    struct failure failure; /* the library's last error, then what was made of it */
};

/* bench.c. False: why is in failure; bench_close is due all the same. params->on_launch is told of
 * launches with the bench as its data. */
bool bench_open(struct bench *b, const kda_context_params *params, bool verbose);
void bench_close(struct bench *b);
/* CPU backend: goes on with so many threads, in a new context. False: why is in failure. */
bool bench_threads(struct bench *b, int32_t threads);
/* Files a failed OpenCL call as the failure; true for CL_SUCCESS. */
bool bench_cl(struct bench *b, cl_int code, const char *call);

/* bench_limits.c (on the CPU backend bench_host.c): fills in by_clock, copy_bytes_s, f32_flops_s,
 * matrix_flops_s, empty_s and launch_s; 0 where measuring failed. */
void bench_limits(struct bench *b);
/* The value of a fact of the context's, which owns it; "" if there is none of that name. */
const char *bench_fact(const struct bench *b, const char *name);
/* The rate of f16 products by matrix units, or by the plain OpenCL C that stands in for tests. */
double bench_matrix_flops(struct bench *b, bool units);

/* bench_matrix.c: a kernel of f16 products that writes a float an item, for work-groups of 128;
 * returns the operations of a work-group, 0: it does not build. */
double bench_matrix_kernel(struct bench *b, bool units, cl_kernel *kernel);

struct bench_samples;
/* Has the empty kernel run so many times, up to BENCH_IN_FLIGHT, one behind another: what each
 * takes as a call is timed, and what each takes the host to enqueue. */
enum { BENCH_IN_FLIGHT = 64 };
bool bench_empties(struct bench *b, int count, struct bench_samples *times,
                   struct bench_samples *enqueues);

/* When to stop: after `repeat` timed calls, or if that is 0 after so many seconds. */
struct bench_effort {
    int64_t repeat;
    double seconds;
};

/* Times in seconds, over `count` calls. */
struct bench_times {
    double median, p10, p90;
    size_t count;
};

/* bench_work.c: what a kernel's launches of one call have to move and to compute, by the problem
 * and the plan's description; zeros for a kernel that has next to nothing to do. */
struct bench_work {
    double bytes, flops;
};
struct bench_work bench_work(const struct problem *p, const char *plan, const char *name);
/* Whether a sequence of the problem goes in chunks. */
bool bench_has_chunks(const struct problem *problem, const char *plan);

/* The launches of one kernel in a call. */
struct bench_kernel {
    char name[32];
    size_t launches;
    double seconds; /* of all of them, the median over calls */
    struct bench_work work;
};
enum { BENCH_KERNELS = 8 };

struct bench_result {
    struct failure failure; /* with a status, nothing below it is meaningful */
    struct workload_check check;
    double plan_s; /* making the plan */
    char plan[512];
    struct bench_times call;    /* OpenCL: from the first start to the last end on the device, by
                                 * events; by clock: kda_enqueue and clFinish; CPU backend:
                                 * kda_execute */
    struct bench_times enqueue; /* OpenCL: kda_enqueue by the clock */
    struct bench_times empty;   /* the empty kernel in turns with the calls, if these are a launch
                                 * each */
    struct bench_kernel kernel[BENCH_KERNELS];
    size_t kernels;             /* known; 0 unless asked for */
    int32_t threads;            /* 0 unless several numbers are compared; then also */
    double speedup, efficiency; /* against the first number; a thread's share of that */
};

/* bench_run.c: checks the problem's result, then times it on the same plan and memory. */
void bench_run(struct bench *b, const struct problem *problem, const struct bench_effort *effort,
               struct bench_result *result);

/* bench_tune.c: searches what is fastest for each problem, says what it tries, and files a row in
 * the user's file; returns the exit code. b: measured by bench_limits. */
int bench_tune(struct bench *b, const struct bench_effort *effort, const struct problem *problems,
               size_t count);

/* bench_times.c */
struct bench_samples {
    double *seconds;
    size_t count, room;
};
void bench_sample(struct bench_samples *samples, double seconds);
bool bench_enough(const struct bench_samples *samples, const struct bench_effort *effort,
                  double since);
/* Sorts the samples, takes the quantiles, frees. */
struct bench_times bench_summary(struct bench_samples *samples);
/* Seconds until the end of `last`, from its start, or from the end of `before` if not NULL. Both
 * are released. */
double bench_event_seconds(cl_event before, cl_event last);

/* bench_kernels.c: for kda_context_params.on_launch. */
void bench_on_launch(void *data, const char *kernel, cl_event event);
/* Has a problem's call made some times, and files what each kernel had to do and took. */
bool bench_kernels(struct bench *b, const struct problem *problem, kda_plan *plan,
                   const kda_args *args, struct bench_result *result);

struct cJSON;
/* bench_peers.c: problems that others' figures are known for; NULL behind the last one. */
const char *bench_peers_problem(size_t i);
/* Adds others' figures to a row, if its device is theirs. */
void bench_peers_add(struct cJSON *row, const struct bench *b, const struct problem *problem);
/* A document's rows beside them; width: of the longest problem. */
void bench_peers_print(const struct cJSON *document, const struct bench *b, int width);
/* Whether the device is the one of the figures. If not, says so; problems: which were asked for. */
bool bench_peers_here(const struct bench *b, size_t problems);

/* bench_print.c: one report in one of three forms; rows appear as they are measured, JSON and
 * others' figures at the end. */
enum bench_form { BENCH_TABLE, BENCH_CSV, BENCH_JSON };
struct bench_report {
    enum bench_form form;
    int width;          /* of the longest problem */
    bool scaling;       /* as in struct bench */
    size_t columns;     /* of a table */
    size_t rows;        /* printed */
    struct cJSON *json; /* the document, whatever the form */
};
void bench_report_open(struct bench_report *report, enum bench_form form, const struct bench *b,
                       const struct problem *problems, size_t count);
void bench_report_row(struct bench_report *report, const struct bench *b,
                      const struct problem *problem, const struct bench_result *result);
/* bench_plot.c: why nothing can be drawn into a file; NULL: it can. */
const char *bench_plot_obstacle(const char *path);
/* Draws a document's results. false: gnuplot failed. */
bool bench_plot(const struct cJSON *document, const char *path);
/* bench_compare.c: prints how two files relate; returns the exit code. */
int bench_compare(const char *path_a, const char *path_b);
void bench_report_close(struct bench_report *report, const struct bench *b);

/* A line on a terminal's stderr that says what takes so long, replaced by the next; "" wipes it. */
void bench_progress(const char *problem, const char *stage);

#endif

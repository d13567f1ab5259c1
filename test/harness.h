/* What every conformance test does with a call: run it through each entry point of the library on
 * the device under test, between guards, and hold the results to the oracle. A test that fails
 * prints the call, which repeats it.
 *
 * One device is under test at a time, with one context, and one plan for each problem, however many
 * calls it has. Calls and buffers made by a test live until its end, whether it fails or not.
 *
 * SPDX-License-Identifier: MIT */
#ifndef HARNESS_H
#define HARNESS_H

#include <check.h>
#include <stdio.h>

#include "call.h"

/* Plans made for the device, by problem. */
struct plans;

/* The device under test. */
struct device {
    char name[256], driver[256];
    kda_context *ctx;
    cl_device_id id; /* NULL: the CPU backend, and the next three */
    cl_context context;
    cl_command_queue queue;
    struct plans *plans;
};
extern struct device device;

/* false: the context could not be made; the reason has been printed. */
bool device_open(const kda_context_params *params);
void device_close(void);

bool device_is_processor(void);

/* Whether a plan's kernels gave a wrong answer to the library's own question since this was asked
 * before, so that it took others. */
bool device_found_wrong(void);

/* The last error that the library logged since this was asked before; "" if none. */
void device_last_error(char *text, size_t size);

/* For random numbers whose call names no seed. */
extern uint64_t harness_seed;
/* Words that every call's text begins with; its own words override them. */
extern const char *harness_words;
/* Whether each call is printed before it runs: the last one printed is the one that crashed. */
extern bool harness_verbose;

/* The largest errors since device_open, by the type of the result (kda_dtype): of plans whose
 * arithmetic is f32, and of those whose products are of 16-bit operands. */
enum arithmetic { BY_F32, BY_MATRIX_UNITS, ARITHMETICS };
extern struct worst {
    double out[KDA_BF16 + 1], state[KDA_BF16 + 1];
} worst[ARITHMETICS];

/* Before suites are run on a device. */
void harness_begin(void);
/* Every test case has these as its checked fixture. A signal ends the program, as it does others;
 * the teardown frees what the test made and shows progress. */
void harness_setup(void);
void harness_teardown(void);

/* report.c. First in a test that some devices cannot be put to: ends it, as skipped. */
#define NEEDS(condition, reason)                                                                   \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            report_skip(reason);                                                                   \
            return;                                                                                \
        }                                                                                          \
    } while (0)
#define NEEDS_QUEUES NEEDS(device.id, "the CPU backend has no queues")

void report_begin(void); /* with a device */
void report_test(void);  /* before each test */
void report_skip(const char *reason);
int report_skipped(void); /* how many tests, which Check takes for passed */
void report_print_skips(void);
void report_progress(void); /* after each test, or part of one */
/* Copies the TAP that Check wrote, from its beginning, as one that knows of skips. */
void report_tap(FILE *from, FILE *to);

/* Has a thing destroyed when the test ends; returns it. */
void *keep(void *thing, void (*destroy)(void *thing));

/* A call's text under construction. */
struct text {
    char all[CALL_TEXT];
    size_t length;
};
void text_add(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A call from text, printf-like; the test fails if the text is wrong. */
struct call *make(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A call of some tokens of one sequence (call_slice). */
struct call *slice(const struct call *call, int64_t sequence, int64_t from, int64_t to);

/* The plan for the call's problem: made once, used by all tests, as making one takes long. */
kda_plan *plan_for(const struct call *call);

/* Whether a plan's description has some words. */
bool plan_has(const kda_plan *plan, const char *words);
/* One that no call has used yet. */
kda_plan *new_plan(const struct call *call);
/* Destroys all those of plan_for. */
void harness_drop_plans(void);

/* Fails the test with a message and the call. */
void fail_call(const struct call *call, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Runs the call by kda_execute. Fails unless the status is KDA_OK; inputs, guards, gaps, and
 * whatever else the call has no business with are unchanged; the results are there and agree with
 * the oracle. They stay in the call's tensors. */
void run_host(kda_plan *plan, struct call *call);
/* The same by kda_enqueue; on OpenCL devices only. */
void run_device(kda_plan *plan, struct call *call);
/* By every way that the device has, and fails unless the bits are the same. */
void run_plan(kda_plan *plan, struct call *call);

/* make, plan_for and run_plan in one. */
struct call *run(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Fails unless a result's element i (tensor_get) is right within a part of it; 0: exactly. What a
 * device may flush to zero counts as zero. */
void check_near(const struct call *call, int id, int64_t i, double want, double tolerance);
/* The same for all elements, from NUMBERS. */
void check_numbers(const struct call *call, int id, const char *numbers, double tolerance);
/* Runs a call and checks its out and, unless NULL, its final_state. */
struct call *gives(const char *text, const char *out, const char *state, double tolerance);

/* Fails unless two calls hold the same bits in some rows of a tensor. */
void same_rows(int id, const struct call *a, int64_t a_row, const struct call *b, int64_t b_row,
               int64_t rows);
/* In all rows of all results. */
void same_results(const struct call *a, const struct call *b);

/* A call's tensors in OpenCL memory, guards included, and the workspace that its plan asks for,
 * poisoned and between guards of its own. */
struct buffers {
    cl_mem mem[TENSORS], workspace;
    kda_args args;
};
struct buffers *upload(const struct call *call, const kda_plan *plan, cl_context context);
/* Every block back to the call; the queue has finished then. Fails if the workspace's guards were
 * written. */
void download(struct call *call, const struct buffers *buffers, cl_command_queue queue);

/* Runs a call that has its results so many times more, through a queue where there is one, and
 * fails unless each gives the same bits. */
void run_again(kda_plan *plan, const struct call *first, int times);

/* Fails if anything but elements of outputs differs from an earlier copy of the call. */
struct call *copy(const struct call *call);
void check_guards(const struct call *call, const struct call *before);

/* Fails unless an OpenCL call succeeded. */
#define check_cl(code) ck_assert_int_eq(code, CL_SUCCESS)

/* Words that many calls begin with. RECURRENT: what the chunkwise schedule does not promise.
 * PROBE_V writes each value over the last one and reads it back, so that o_t = v_t for any decay;
 * PROBE_D writes once, then only decays. */
#define RECURRENT "schedule=recurrent engine=auto chunk=0 "
#define PROBE_V "q=1 k=1 beta=1 v=count "
#define PROBE_D "q=1 k=first beta=1 v=1 "

/* The suites. QUICK: few of them, under half a minute also where kernels are compiled. */
enum level { QUICK, NORMAL, FULL };
Suite *suite_cases(enum level level);
Suite *suite_golden(const char *directory, enum level level);
TCase *tcase_worked(void);
TCase *tcase_numbers(void);
TCase *tcase_sequences(void);
TCase *tcase_serving(void);
TCase *tcase_sizes(enum level level);
TCase *tcase_large(void);
TCase *tcase_soak(enum level level);
TCase *tcase_decode(int calls);
TCase *tcase_repeats(void);
TCase *tcase_queues(void);
TCase *tcase_mma(void);
TCase *tcase_units(void);
TCase *tcase_engines(void);
Suite *suite_shapes(enum level level);
Suite *suite_relations(void);

/* soak.c: the exit code. */
int soak(const kda_context_params *params, long seconds);

#endif

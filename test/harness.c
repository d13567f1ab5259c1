/* What a test makes, the plans that tests share, and the run of a call between guards.
 *
 * The check of writes turns on one rule: after a run, every byte of every block must be what it was
 * before, except the elements for which the oracle gives a value. That covers inputs, guards, gaps
 * of strided views, rows outside every sequence, unused slots and unused checkpoints at once.
 *
 * SPDX-License-Identifier: MIT */
#include "harness.h"

#include "compare.h"
#include "numbers.h"
#include "oracle.h"

#include <float.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t harness_seed;
const char *harness_words = "";
bool harness_verbose;
struct worst worst[ARITHMETICS];

/* What the running test has made, the newest first. */
static struct made {
    void *thing;
    void (*destroy)(void *thing);
    struct made *next;
} * made;

void *keep(void *thing, void (*destroy)(void *))
{
    struct made *m = malloc(sizeof(*m));
    *m = (struct made){thing, destroy, made};
    made = m;
    return thing;
}

/* What the program came with. Check, while it runs, answers both by killing the process group,
 * which may be the caller's. */
static struct sigaction on_interrupt, on_terminate;

void harness_begin(void)
{
    sigaction(SIGINT, NULL, &on_interrupt);
    sigaction(SIGTERM, NULL, &on_terminate);
    report_begin();
}

void harness_setup(void)
{
    sigaction(SIGINT, &on_interrupt, NULL);
    sigaction(SIGTERM, &on_terminate, NULL);
    report_test();
}

void harness_teardown(void)
{
    char ignored[1];
    report_progress();
    device_last_error(ignored, sizeof(ignored));
    while (made) {
        struct made *m = made;
        made = m->next;
        m->destroy(m->thing);
        free(m);
    }
    ck_assert_msg(!device_found_wrong(), "a plan's kernels gave a wrong answer: see the warnings");
}

static void destroy_call(void *call)
{
    call_destroy(call);
}

static void destroy_plan(void *plan)
{
    kda_plan *p = plan;
    kda_plan_destroy(&p);
}

void fail_call(const struct call *call, const char *format, ...)
{
    char message[512], logged[512];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof(message), format, args);
    va_end(args);
    device_last_error(logged, sizeof(logged));
    ck_abort_msg("%s\n    call: %s%s%s", message, call->text, *logged ? "\n    log: " : "", logged);
}

void text_add(struct text *text, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    text->length +=
        (size_t)vsnprintf(text->all + text->length, sizeof(text->all) - text->length, format, args);
    va_end(args);
    ck_assert_uint_lt(text->length, sizeof(text->all));
}

static struct call *make_v(const char *format, va_list args)
{
    char text[CALL_TEXT], why[CALL_WHY] = "";
    int n = snprintf(text, sizeof(text), "%s%s", harness_words, *harness_words ? " " : "");
    vsnprintf(text + n, sizeof(text) - (size_t)n, format, args);
    struct call *call = call_create(text, harness_seed, why);
    ck_assert_msg(call != NULL, "%s\n    call: %s", why, text);
    if (harness_verbose)
        fprintf(stderr, "call: %s\n", call->text);
    return keep(call, destroy_call);
}

struct call *make(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    struct call *call = make_v(format, args);
    va_end(args);
    return call;
}

struct call *run(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    struct call *call = make_v(format, args);
    va_end(args);
    run_plan(plan_for(call), call);
    return call;
}

struct call *slice(const struct call *call, int64_t sequence, int64_t from, int64_t to)
{
    return keep(call_slice(call, sequence, from, to), destroy_call);
}

struct call *copy(const struct call *call)
{
    return keep(call_copy(call), destroy_call);
}

static kda_plan *make_plan(const struct call *call)
{
    kda_plan *plan;
    kda_status status = kda_plan_create(&plan, device.ctx, &call->problem);
    if (status != KDA_OK)
        fail_call(call, "kda_plan_create: %s", kda_status_string(status));
    return plan;
}

kda_plan *new_plan(const struct call *call)
{
    return keep(make_plan(call), destroy_plan);
}

struct plans {
    kda_problem problem; /* calls come from calloc: equal problems are equal bytes */
    kda_plan *plan;
    struct plans *next;
};

kda_plan *plan_for(const struct call *call)
{
    for (const struct plans *p = device.plans; p; p = p->next)
        if (!memcmp(&p->problem, &call->problem, sizeof(p->problem)))
            return p->plan;
    kda_plan *plan = make_plan(call);
    struct plans *p = malloc(sizeof(*p));
    *p = (struct plans){.plan = plan, .next = device.plans};
    memcpy(&p->problem, &call->problem, sizeof(p->problem));
    device.plans = p;
    return plan;
}

void harness_drop_plans(void)
{
    while (device.plans) {
        struct plans *p = device.plans;
        device.plans = p->next;
        kda_plan_destroy(&p->plan);
        free(p);
    }
}

/* The values that the call must give, by tensor, packed; NaN: must not be written. Outputs that the
 * call does not have are NULL. */
struct expected {
    double *of[TENSORS];
};

static void free_expected(void *thing)
{
    struct expected *e = thing;
    for (int id = 0; id < TENSORS; id++)
        free(e->of[id]);
    free(e);
}

static struct expected *expect(const struct call *call)
{
    struct expected *e = keep(calloc(1, sizeof(*e)), free_expected);
    for (int id = 0; id < TENSORS; id++) {
        int64_t n = call_writes(id) ? tensor_elements(&call->tensor[id]) : 0;
        if (n == 0)
            continue;
        e->of[id] = malloc(sizeof(double) * (size_t)n);
        for (int64_t i = 0; i < n; i++)
            e->of[id][i] = NAN;
    }
    kda_args args = call_args(call);
    oracle_run(&call->problem, &args,
               &(struct oracle_outputs){e->of[OUT], e->of[FINAL_STATE], e->of[CHECKPOINTS]});
    return e;
}

/* The block may differ from `before` in elements that are expected (NULL: in any element). */
static void check_block(const struct call *call, const struct call *before, int id,
                        bool any_element, const double *want)
{
    const struct tensor *t = &call->tensor[id], *old = &before->tensor[id];
    unsigned char *block = malloc(t->block_size);
    memcpy(block, t->block, t->block_size);
    for (int64_t i = 0; (any_element || want) && i < tensor_elements(t); i++) {
        size_t at = (size_t)((unsigned char *)tensor_at(t, i) - t->block);
        if (any_element || !isnan(want[i]))
            memcpy(block + at, old->block + at, t->size);
    }
    for (size_t i = 0; i < t->block_size; i++)
        if (block[i] != old->block[i])
            fail_call(call,
                      "%s: byte %lld from its first element was written; elements end at %lld",
                      t->name, (long long)i - (long long)t->offset,
                      (long long)(t->block_size - t->offset) - GUARD);
    free(block);
}

static bool shared_state(const struct call *call, int id)
{
    return id == INITIAL_STATE && call->in_place;
}

void check_guards(const struct call *call, const struct call *before)
{
    for (int id = 0; id < TENSORS; id++)
        if (call->tensor[id].present && !shared_state(call, id))
            check_block(call, before, id, call_writes(id), NULL);
}

static void check_untouched(const struct call *call, const struct call *before,
                            const struct expected *want)
{
    for (int id = 0; id < TENSORS; id++)
        if (call->tensor[id].present && !shared_state(call, id))
            check_block(call, before, id, false, want->of[id]);
}

static void fail_at_worst(const struct call *call, int id, const double *want,
                          const struct error *e, double bound)
{
    const struct tensor *t = &call->tensor[id];
    int64_t worst_i = 0;
    double most = -1;
    for (int64_t i = 0; i < tensor_elements(t); i++) {
        double error = fabs(tensor_get(t, i) - want[i]);
        if (isnan(want[i]) || tensor_get(t, i) == want[i])
            continue;
        if (!(error <= most)) {
            most = isnan(error) ? INFINITY : error;
            worst_i = i;
        }
    }
    int64_t row = worst_i / t->width / t->heads, head = worst_i / t->width % t->heads;
    fail_call(call,
              "%s [%lld, %lld, %lld] is %.9g, should be %.9g; rms error %.3g, in a window %.3g, "
              "largest %.3g, %zu not finite; bound %.3g",
              t->name, (long long)row, (long long)head, (long long)(worst_i % t->width),
              tensor_get(t, worst_i), want[worst_i], e->rms, e->window, e->max, e->not_finite,
              bound);
}

bool plan_has(const kda_plan *plan, const char *words)
{
    char text[256];
    kda_plan_describe(plan, text, sizeof(text));
    return strstr(text, words);
}

/* Elements that are not expected count as right: check_untouched is about them. */
static void check_values(const struct call *call, const kda_plan *plan, int id, const double *want,
                         size_t window, double bound)
{
    const struct tensor *t = &call->tensor[id];
    int64_t n = tensor_elements(t);
    char *got = calloc((size_t)n, t->size);
    double *reference = malloc(sizeof(*reference) * (size_t)n);
    for (int64_t i = 0; i < n; i++) {
        reference[i] = isnan(want[i]) ? 0 : want[i];
        if (!isnan(want[i]))
            memcpy(got + (size_t)i * t->size, tensor_at(t, i), t->size);
    }
    struct error e = error_measure(got, t->type, reference, NUMBER_F64, (size_t)t->rows,
                                   (size_t)(t->heads * t->width), window);
    free(got);
    free(reference);
    if (!error_within(&e, bound))
        fail_at_worst(call, id, want, &e, bound);
    struct worst *of = &worst[plan_has(plan, "engine=mma") ? BY_MATRIX_UNITS : BY_F32];
    double *largest = id == OUT ? &of->out[t->type] : &of->state[t->type];
    if (call->slack == 1)
        *largest = fmax(*largest, fmax(e.rms, e.window));
}

/* The table's bounds. The recurrent schedule is f32 arithmetic whatever the tensors are, so only
 * the type of the result itself counts; the chunkwise one has twice the error in f32, and its
 * engines may use the tensors' type inside. */
static double bound_of(const struct call *call, const kda_plan *plan, int id)
{
    const bool recurrent = plan_has(plan, "schedule=recurrent");
    const kda_dtype type = recurrent ? KDA_F32 : call->tensor[Q].type;
    const kda_dtype result = call->tensor[id].type;
    double bound = id == OUT ? fmax(error_bound_out(type), error_bound_out(result))
                             : error_bound_state(type, result);
    if (!recurrent && type == KDA_F32 && result == KDA_F32)
        bound *= 2;
    return bound * call->slack;
}

static void check_expected(const struct call *call, const kda_plan *plan,
                           const struct expected *want)
{
    for (int id = 0; id < TENSORS; id++)
        if (want->of[id])
            check_values(call, plan, id, want->of[id], id == OUT ? ERROR_WINDOW : 1,
                         bound_of(call, plan, id));
}

/* Results that are exact: the states of empty sequences, the outputs of skipped ones. */
static void check_exact(const struct call *call, const struct call *before)
{
    const struct tensor *out = &call->tensor[OUT], *final = &call->tensor[FINAL_STATE],
                        *initial = &before->tensor[INITIAL_STATE];
    const int64_t row = out->heads * out->width, state = final->heads * final->width;
    const unsigned char zero[4] = {0};
    kda_args args = call_args(before);
    for (int64_t n = 0; n < call->sequences; n++) {
        struct oracle_sequence s = oracle_sequence(&args, n);
        for (int64_t i = s.start * row; s.slot < 0 && i < (s.start + s.length) * row; i++)
            if (tensor_get(out, i) != 0)
                fail_call(call, "out of skipped sequence %lld is not zero", (long long)n);
        const int64_t to = oracle_slot(&args, n, 0);
        if (s.slot < 0 || s.length > 0 || !final->present || to < 0)
            continue;
        const bool some = initial->present && !s.fresh;
        for (int64_t i = 0; i < state; i++)
            if (memcmp(tensor_at(final, to * state + i),
                       some ? tensor_at(initial, s.slot * state + i) : zero, final->size))
                fail_call(call, "final_state of empty sequence %lld is not its initial state",
                          (long long)n);
    }
}

void check_near(const struct call *call, int id, int64_t i, double want, double tolerance)
{
    double got = tensor_get(&call->tensor[id], i);
    double most = tolerance > 0 ? tolerance * fabs(want) + FLT_MIN : 0;
    if (!(fabs(got - want) <= most))
        fail_call(call, "%s: element %lld is %.9g, should be %.9g", call->tensor[id].name,
                  (long long)i, got, want);
}

void check_numbers(const struct call *call, int id, const char *numbers, double tolerance)
{
    struct call *right = copy(call);
    ck_assert_msg(call_fill(right, id, numbers), "%s: not numbers", numbers);
    for (int64_t i = 0; i < tensor_elements(&call->tensor[id]); i++)
        check_near(call, id, i, tensor_get(&right->tensor[id], i), tolerance);
}

struct call *gives(const char *text, const char *out, const char *state, double tolerance)
{
    struct call *call = run("%s", text);
    check_numbers(call, OUT, out, tolerance);
    if (state)
        check_numbers(call, FINAL_STATE, state, tolerance);
    return call;
}

void same_rows(int id, const struct call *a, int64_t a_row, const struct call *b, int64_t b_row,
               int64_t rows)
{
    const struct tensor *x = &a->tensor[id], *y = &b->tensor[id];
    const int64_t size = x->heads * x->width;
    for (int64_t i = 0; i < rows * size; i++)
        if (memcmp(tensor_at(x, a_row * size + i), tensor_at(y, b_row * size + i), x->size))
            fail_call(
                a, "%s: row %lld element %lld is %.9g, not the same bits as %.9g in\n    call: %s",
                x->name, (long long)(a_row + i / size), (long long)(i % size),
                tensor_get(x, a_row * size + i), tensor_get(y, b_row * size + i), b->text);
}

void same_results(const struct call *a, const struct call *b)
{
    for (int id = 0; id < TENSORS; id++)
        if (call_writes(id) && a->tensor[id].present)
            same_rows(id, a, 0, b, 0, a->tensor[id].rows);
}

static void poison_outputs(struct call *call)
{
    for (int id = 0; id < TENSORS; id++)
        if (call_writes(id) && call->tensor[id].present && !(id == FINAL_STATE && call->in_place))
            tensor_poison(&call->tensor[id]);
}

static void run_execute(kda_plan *plan, struct call *call)
{
    kda_args args = call_args(call);
    kda_status status = kda_execute(plan, &args);
    if (status != KDA_OK)
        fail_call(call, "kda_execute: %s", kda_status_string(status));
}

static void run_enqueue(kda_plan *plan, struct call *call)
{
    struct buffers *b = upload(call, plan, device.context);
    kda_status status = kda_enqueue(plan, device.queue, &b->args, 0, NULL, NULL);
    if (status != KDA_OK)
        fail_call(call, "kda_enqueue: %s", kda_status_string(status));
    download(call, b, device.queue);
}

/* Runs the call one way and holds it to everything that is known. */
static void run_checked(void (*way)(kda_plan *, struct call *), kda_plan *plan, struct call *call)
{
    poison_outputs(call);
    struct call *before = copy(call);
    struct expected *want = expect(before);
    way(plan, call);
    check_untouched(call, before, want);
    check_exact(call, before);
    check_expected(call, plan, want);
}

void run_host(kda_plan *plan, struct call *call)
{
    run_checked(run_execute, plan, call);
}

void run_device(kda_plan *plan, struct call *call)
{
    run_checked(run_enqueue, plan, call);
}

void run_plan(kda_plan *plan, struct call *call)
{
    struct call *before = copy(call);
    run_host(plan, call);
    if (device.id) {
        run_device(plan, before);
        same_results(before, call);
    }
}

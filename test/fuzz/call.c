/* Fuzz target: the library's structs, on the CPU backend. Bytes choose the words of a call
 * (test/call.h), which makes typed structs and tensors between guards. Then either nothing else is
 * done, and what the library accepts is held to the oracle; or members get values that no rule
 * allows, or lists numbers that none allows, and the library must refuse and touch nothing, or be
 * none the worse for it.
 *
 * SPDX-License-Identifier: MIT */
#include "call.h"
#include "compare.h"
#include "fuzz.h"
#include "numbers.h"
#include "oracle.h"

#include <math.h>
#include <string.h>

/* ---- The call ---------------------------------------------------------------------------- */

/* Words and what each may be, separated by bars; an empty one leaves the word out. */
static const struct {
    const char *key, *values;
} words[] = {
    {"H", "1|2|3"},
    {"HV", "|2|4|6"},
    {"K", "1|4|16|17|33|64|128"},
    {"V", "1|3|8|16|20|33|64"},
    {"lengths", "1|0|5|16|33|70|3,0,20|1,1,1|40,1,17|2x5"},
    {"max_sequences", "|8"},
    {"dtype", "|f32|f16|bf16"},
    {"g_dtype", "|f32"},
    {"beta_dtype", "|f32"},
    {"out_dtype", "|f32"},
    {"state_dtype", "|f32|f16|bf16"},
    {"gate", "|log|softplus|bounded|none"},
    {"activation", "|given|sigmoid|sigmoid2"},
    {"rule", "|additive"},
    {"norm", "|1"},
    {"per_head", "|1"},
    {"checkpoint", "|1|16|5"},
    {"layout", "|vk"},
    {"map", "|modulo"},
    {"schedule", "|recurrent|chunkwise"},
    {"engine", "|fused"},
    {"chunk", "|16|32|64"},
    {"a_log", "|no|rate"},
    {"dt_bias", "|no"},
    {"beta", "|no"},
    {"state", "|no"},
    {"final", "|0"},
    {"in_place", "|1"},
    {"cu", "|i32|i64|no"},
    {"index", "||0,1,2|2,-1,0|1,1,1|0,1,2,3,4,5|0"},
    {"write", "||3,4,5|-1,0,1|0,0,0|6,5,4,3,2,1"},
    {"accepted", "||1,1,1|2,1,0|1"},
    {"fresh", "||1,0,1|1"},
    {"columns", "||1|2"},
    {"index_type", "|i64"},
    {"slots", "|3|8"},
    {"max_length", "||70|5"},
    {"pad", "|1,2,3|0,4,0"},
    {"order", "|heads"},
};
enum { WORDS = sizeof words / sizeof *words };

static void add_word(struct bytes *b, const char *key, const char *values, char *text)
{
    int count = 1;
    for (const char *c = values; *c; c++)
        count += *c == '|';
    for (int i = pick(b, count); i; i--)
        values = strchr(values, '|') + 1;
    const size_t n = strcspn(values, "|"), used = strlen(text);
    if (n)
        snprintf(text + used, CALL_TEXT - used, "%s=%.*s ", key, (int)n, values);
}

static struct call *make_call(struct bytes *b)
{
    char text[CALL_TEXT] = "", why[CALL_WHY];
    for (int i = 0; i < WORDS; i++)
        add_word(b, words[i].key, words[i].values, text);
    return call_create(text, 1, why);
}

/* ---- What is right ----------------------------------------------------------------------- */

/* The table's bounds, as in test/harness.c: for chunks twice as much in f32. */
static double bound_of(const struct call *call, const kda_plan *plan, int id)
{
    char text[256];
    kda_plan_describe(plan, text, sizeof text);
    const bool recurrent = strstr(text, "schedule=recurrent");
    const kda_dtype type = recurrent ? KDA_F32 : call->tensor[Q].type;
    const kda_dtype result = call->tensor[id].type;
    double bound = id == OUT ? fmax(error_bound_out(type), error_bound_out(result))
                             : error_bound_state(type, result);
    return !recurrent && type == KDA_F32 && result == KDA_F32 ? 2 * bound : bound;
}

/* want: NaN where nothing is written. */
static void check_tensor(const struct call *call, const kda_plan *plan, int id, double *want)
{
    const struct tensor *t = &call->tensor[id];
    const int64_t n = tensor_elements(t);
    double *got = calloc((size_t)n + 1, sizeof *got);
    for (int64_t i = 0; i < n; i++) {
        if (isnan(want[i]))
            want[i] = 0;
        else
            got[i] = tensor_get(t, i);
    }
    const struct error e = error_measure(got, NUMBER_F64, want, NUMBER_F64, (size_t)t->rows,
                                         (size_t)(t->heads * t->width), (size_t)t->rows + 1);
    FUZZ_CHECK(error_within(&e, bound_of(call, plan, id)), "%s\n%s: rms error %g, largest %g",
               call->text, t->name, e.rms, e.max);
    free(got);
}

static void check_results(const struct call *call, const struct call *before, const kda_plan *plan)
{
    static const int ids[] = {OUT, FINAL_STATE, CHECKPOINTS};
    double *want[3] = {NULL};
    const kda_args args = call_args(before);
    for (int i = 0; i < 3; i++) {
        const struct tensor *t = &call->tensor[ids[i]];
        const int64_t n = t->present ? tensor_elements(t) : 0;
        want[i] = t->present ? malloc(((size_t)n + 1) * sizeof **want) : NULL;
        for (int64_t j = 0; j < n; j++)
            want[i][j] = NAN;
    }
    oracle_run(&call->problem, &args, &(struct oracle_outputs){want[0], want[1], want[2]});
    for (int i = 0; i < 3; i++) {
        if (want[i])
            check_tensor(call, plan, ids[i], want[i]);
        free(want[i]);
    }
}

/* Every byte of a call's memory is as it was; of one that ran, every byte of inputs and guards. */
static void check_untouched(const struct call *call, const struct call *before, bool ran)
{
    for (int id = 0; id < TENSORS; id++) {
        const struct tensor *t = &call->tensor[id];
        if (!t->present || (ran && id == INITIAL_STATE && call->in_place))
            continue;
        const bool written = ran && call_writes(id);
        const size_t n = written ? GUARD : t->block_size;
        FUZZ_CHECK(!memcmp(t->block, before->tensor[id].block, n), "%s\n%s was written", call->text,
                   t->name);
        FUZZ_CHECK(!written || !memcmp(t->block + t->block_size - GUARD,
                                       before->tensor[id].block + t->block_size - GUARD, GUARD),
                   "%s\n%s was written past its end", call->text, t->name);
    }
}

/* ---- What is wrong ----------------------------------------------------------------------- */

static int64_t wild(struct bytes *b)
{
    static const int64_t numbers[] = {-1,        INT64_MIN,          INT64_MAX,          1,
                                      INT32_MAX, (int64_t)1 << 57,   INT32_MIN,          0,
                                      3,         (int64_t)1 << 31,   ((int64_t)1 << 56), 17,
                                      257,       (int64_t)INT32_MAX, ((int64_t)1 << 62), -7};
    return numbers[pick(b, sizeof numbers / sizeof *numbers)];
}

/* A problem with any number in some members is refused or planned. */
static void try_problem(struct bytes *b, kda_context *ctx, const struct call *call)
{
    kda_problem p = call->problem;
    kda_plan *plan = (kda_plan *)(void *)&p;
    for (int i = 1 + pick(b, 3); i; i--) {
        const int64_t x = wild(b);
        const size_t at = 4 * (size_t)(2 + pick(b, sizeof p / 4 - 2)); /* all but struct_size */
        memcpy((char *)&p + at, &x, at + sizeof x > sizeof p || pick(b, 2) ? 4 : sizeof x);
    }
    p.max_tokens = p.max_tokens < 1 << 20 ? p.max_tokens : 1 << 20;
    const kda_status st = kda_plan_create(&plan, ctx, &p);
    FUZZ_CHECK(!st == !!plan && (!st || st == KDA_INVALID || st == KDA_UNSUPPORTED), "%s",
               kda_status_string(st));
    kda_plan_destroy(&plan);
}

/* Values for members of the arguments that can't make the library read memory that isn't there:
 * either a rule forbids them or they only choose. */
static void spoil_args(struct bytes *b, kda_args *a)
{
    static const int64_t strides[] = {-1, INT64_MIN, INT64_MAX};
    kda_input *view = call_view(a, pick(b, TENSORS));
    const int64_t stride = strides[pick(b, 3)];
    switch (pick(b, 12)) {
    case 0:
        view->host = NULL;
        break;
    case 1:
        view->token_stride = stride;
        break;
    case 2:
        view->head_stride = stride;
        break;
    case 3:
        view->offset = SIZE_MAX - (size_t)pick(b, 16);
        break;
    case 4:
        view->mem = (cl_mem)(void *)a;
        break;
    case 5:
        a->tokens = stride;
        break;
    case 6:
        a->sequences = stride;
        break;
    case 7:
        a->slots = stride;
        break;
    case 8:
        a->max_length = wild(b);
        break;
    case 9:
        a->cu_seqlens_type = (kda_index_type)wild(b);
        break;
    case 10:
        a->state_index_type = (kda_index_type)wild(b);
        break;
    default:
        a->workspace.offset = (size_t)wild(b);
        break;
    }
}

/* Numbers in lists, and NaN or more than zero as a gate. */
static void spoil_tensor(struct bytes *b, struct call *call)
{
    static const int ids[] = {CU_SEQLENS, STATE_INDEX, WRITE_INDEX, ACCEPTED, G};
    struct tensor *t = &call->tensor[ids[pick(b, 5)]];
    const int64_t n = t->present ? tensor_elements(t) : 0, number = wild(b);
    const uint64_t nan = UINT64_MAX; /* in any type */
    if (n)
        memcpy(tensor_at(t, pick(b, n < 255 ? (int)n : 255)),
               t->integer ? (const void *)&number : &nan, t->size);
}

/* ---- The target -------------------------------------------------------------------------- */

static kda_context *context(int vectors)
{
    static kda_context *contexts[KDA_VECTORS_512 + 1];
    if (!contexts[vectors])
        FUZZ_CHECK(!kda_context_create(&contexts[vectors],
                                       kda_context_params(.backend = KDA_CPU, .threads = 1,
                                                          .vectors = (kda_vectors)vectors)),
                   "no context");
    return contexts[vectors];
}

static void try_call(struct bytes *b, kda_plan *plan, struct call *call)
{
    kda_args args = call_args(call);
    const int spoilt = pick(b, 4);
    for (int i = 0; i < spoilt; i++) {
        if (pick(b, 2))
            spoil_args(b, &args);
        else
            spoil_tensor(b, call);
    }
    struct call *before = call_copy(call);
    const kda_status st = kda_execute(plan, &args);
    FUZZ_CHECK(!st || st == KDA_INVALID, "%s\n%s", call->text, kda_status_string(st));
    check_untouched(call, before, !st);
    if (!st && !spoilt)
        check_results(call, before, plan);
    call_destroy(before);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bytes b = {data, size};
    kda_context *ctx = context(pick(&b, KDA_VECTORS_512 + 1));
    const int kind = pick(&b, 4);
    struct call *call = make_call(&b);
    kda_plan *plan = NULL;
    if (call && kind == 0)
        try_problem(&b, ctx, call);
    else if (call && !kda_plan_create(&plan, ctx, &call->problem))
        try_call(&b, plan, call);
    kda_plan_destroy(&plan);
    call_destroy(call);
    return 0;
}

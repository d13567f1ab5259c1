/* The problem language. Every option is a row of one table (a word and its value) or a letter and
 * a number; the parser collects values and remembers which part of the text said them, so that a
 * contradiction can name its parts, and the printer walks the same table.
 *
 * SPDX-License-Identifier: MIT */
#include "problem.h"
#include "numbers.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct word {
    const char *text;
    enum problem_option option;
    int value;
} words[] = {
    {"f32", OPTION_DTYPE, KDA_F32},
    {"f16", OPTION_DTYPE, KDA_F16},
    {"bf16", OPTION_DTYPE, KDA_BF16},
    {"log", OPTION_GATE, KDA_GATE_LOG},
    {"softplus", OPTION_GATE, KDA_GATE_SOFTPLUS},
    {"bounded", OPTION_GATE, KDA_GATE_BOUNDED},
    {"none", OPTION_GATE, KDA_GATE_NONE},
    {"g=f32", OPTION_G, KDA_F32},
    {"g=f16", OPTION_G, KDA_F16},
    {"g=bf16", OPTION_G, KDA_BF16},
    {"state=f32", OPTION_STATE, KDA_F32},
    {"state=f16", OPTION_STATE, KDA_F16},
    {"state=bf16", OPTION_STATE, KDA_BF16},
    {"vk", OPTION_LAYOUT, KDA_STATE_VK},
    {"nostate", OPTION_NO_STATE, 1},
    {"drafts", OPTION_DRAFTS, 1},
    {"per-head", OPTION_PER_HEAD, 1},
    {"additive", OPTION_RULE, KDA_RULE_ADDITIVE},
    {"recurrent", OPTION_SCHEDULE, KDA_SCHEDULE_RECURRENT},
    {"chunkwise", OPTION_SCHEDULE, KDA_SCHEDULE_CHUNKWISE},
    {"clblast", OPTION_ENGINE, KDA_ENGINE_CLBLAST},
    {"fused", OPTION_ENGINE, KDA_ENGINE_FUSED},
    {"mma", OPTION_ENGINE, KDA_ENGINE_MMA},
};

/* Options that are letters before a number. */
static const struct {
    const char *letters;
    enum problem_option option;
} numbers[] = {{"hv", OPTION_VALUE_HEADS},
               {"k", OPTION_KEY_DIM},
               {"v", OPTION_VALUE_DIM},
               {"pool", OPTION_POOL},
               {"segment", OPTION_SEGMENT}};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* More sequences than any device serves at once, few enough that a slip of the hand doesn't fill
 * the machine's memory with their starts. */
enum { MAX_SIZES = 4, MAX_PART = 64, MAX_SEQUENCES = 1 << 20, MAX_DRAFTS = 16 };

struct parser {
    struct problem *p;
    bool decode;
    int sizes;
    int64_t size[MAX_SIZES];
    char sizes_text[MAX_PART];
    char said[OPTION_COUNT][MAX_PART]; /* the part that gave each option; empty: none did */
    char *why;
    size_t why_size;
};

__attribute__((format(printf, 2, 3))) static bool refuse(struct parser *in, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    vsnprintf(in->why, in->why_size, format, values);
    va_end(values);
    return false;
}

static bool is_given(const struct parser *in, enum problem_option option)
{
    return in->said[option][0] != '\0';
}

/* The part of the text that an option's value comes from. */
static const char *who_said(const struct parser *in, enum problem_option option)
{
    return is_given(in, option) ? in->said[option] : in->sizes_text;
}

/* Reads a number without sign; end receives where it stops. Returns -1 if there is none or if it
 * is above 2^31 - 1. */
static int64_t read_number(const char *text, const char **end)
{
    int64_t n = 0;
    for (*end = text; **end >= '0' && **end <= '9'; ++*end) {
        n = 10 * n + (**end - '0');
        if (n > INT32_MAX)
            return -1;
    }
    return *end == text ? -1 : n;
}

static bool read_sizes(struct parser *in, const char *text)
{
    static const char decode[] = "decode:";
    snprintf(in->sizes_text, sizeof in->sizes_text, "%s", text);
    in->decode = !strncmp(text, decode, sizeof decode - 1);
    if (in->decode)
        text += sizeof decode - 1;
    for (;;) {
        const char *end;
        int64_t n = read_number(text, &end);
        if (n < 1)
            return refuse(in, "'%s': sizes are numbers from 1 to 2147483647 with x between",
                          in->sizes_text);
        if (in->sizes == MAX_SIZES)
            return refuse(in, "'%s': more than four sizes", in->sizes_text);
        in->size[in->sizes++] = n;
        if (!*end)
            return true;
        if (*end != 'x')
            return refuse(in, "'%s': unexpected '%c' in the sizes", in->sizes_text, *end);
        text = end + 1;
    }
}

/* lens=: the list replaces what the sizes say about sequences. */
static bool read_lengths(struct parser *in, const char *part, const char *list)
{
    struct problem *p = in->p;
    if (p->ragged)
        return refuse(in, "'%s': lens= is given twice", part);
    p->ragged = true;
    p->sequences = 1;
    for (const char *c = list; *c; ++c)
        p->sequences += *c == ',';
    p->starts = calloc((size_t)p->sequences + 1, sizeof *p->starts);
    if (!p->starts)
        return refuse(in, "'%s': out of memory", part);
    for (int64_t n = 0; n < p->sequences; ++n) {
        const char *end;
        int64_t length = read_number(list, &end);
        if (length < 0 || *end != (n + 1 < p->sequences ? ',' : '\0'))
            return refuse(in, "'%s': lengths are numbers with commas between", part);
        p->starts[n + 1] = p->starts[n] + length;
        list = end + 1;
    }
    return true;
}

static bool set_option(struct parser *in, enum problem_option option, const char *part,
                       int64_t value)
{
    if (is_given(in, option))
        return refuse(in, "'%s' contradicts or repeats '%s'", part, in->said[option]);
    snprintf(in->said[option], MAX_PART, "%s", part);
    in->p->option[option] = value;
    return true;
}

static bool read_option(struct parser *in, const char *part)
{
    if (!strncmp(part, "lens=", 5))
        return read_lengths(in, part, part + 5);
    for (size_t i = 0; i < COUNT(words); ++i)
        if (!strcmp(part, words[i].text))
            return set_option(in, words[i].option, part, words[i].value);
    for (size_t i = 0; i < COUNT(numbers); ++i) {
        size_t length = strlen(numbers[i].letters);
        const char *end;
        if (strncmp(part, numbers[i].letters, length))
            continue;
        int64_t n = read_number(part + length, &end);
        if (n > 0 && !*end)
            return set_option(in, numbers[i].option, part, n);
        if (part[length] >= '0' && part[length] <= '9')
            return refuse(in, "'%s': # is a number from 1 to 2147483647", part);
    }
    return refuse(in, "'%s' is not an option", part);
}

static bool read_parts(struct parser *in, char *text)
{
    char *next = strchr(text, '/');
    if (next)
        *next++ = '\0';
    if (!read_sizes(in, text))
        return false;
    while (next) {
        char *part = next;
        next = strchr(part, '/');
        if (next)
            *next++ = '\0';
        if (!read_option(in, part))
            return false;
    }
    return true;
}

/* Splits the sizes into sequences and tokens, heads and D. */
static bool settle_lengths(struct parser *in)
{
    struct problem *p = in->p;
    int64_t rows = 1;
    if (p->ragged) {
        p->tokens = p->starts[p->sequences];
        if (in->decode || in->sizes > 3)
            return refuse(in, "'%s' and lens= both say how many sequences", in->sizes_text);
        if (in->sizes == 3 && in->size[0] != p->tokens)
            return refuse(in, "'%s': lens= adds up to %" PRId64 " tokens", in->sizes_text,
                          p->tokens);
    } else {
        if (in->sizes != 3 && (in->decode || in->sizes != 4))
            return refuse(in, "'%s': expected %s", in->sizes_text,
                          in->decode ? "decode:NxHxD" : "TxHxD or NxTxHxD");
        p->sequences = in->decode || in->sizes == 4 ? in->size[0] : 1;
        rows = in->decode ? 1 : in->size[in->sizes - 3];
        p->tokens = p->sequences * rows;
    }
    if (p->tokens < 1 || p->tokens > INT32_MAX)
        return refuse(in, "'%s': tokens of all sequences must be 1 to 2147483647", in->sizes_text);
    if (p->sequences > MAX_SEQUENCES)
        return refuse(in, "'%s': more than %d sequences", in->sizes_text, MAX_SEQUENCES);
    if (p->ragged)
        return in->sizes > 1 || refuse(in, "'%s': expected HxD", in->sizes_text);
    p->starts = calloc((size_t)p->sequences + 1, sizeof *p->starts);
    for (int64_t n = 0; p->starts && n < p->sequences; ++n)
        p->starts[n + 1] = p->starts[n] + rows;
    return p->starts || refuse(in, "'%s': out of memory", in->sizes_text);
}

static void settle_defaults(struct parser *in)
{
    int64_t *option = in->p->option;
    int64_t heads = in->size[in->sizes - 2], dim = in->size[in->sizes - 1];
    const struct {
        enum problem_option option;
        int64_t value;
    } defaults[] = {
        {OPTION_DTYPE, KDA_BF16}, {OPTION_GATE, KDA_GATE_BOUNDED}, {OPTION_VALUE_HEADS, heads},
        {OPTION_KEY_DIM, dim},    {OPTION_VALUE_DIM, dim},         {OPTION_STATE, KDA_F32},
    };
    for (size_t i = 0; i < COUNT(defaults); ++i)
        if (!is_given(in, defaults[i].option))
            option[defaults[i].option] = defaults[i].value;
    if (!is_given(in, OPTION_G))
        option[OPTION_G] = option[OPTION_DTYPE];
    in->p->states = !option[OPTION_NO_STATE];
    in->p->slots = option[OPTION_POOL];
    in->p->columns = option[OPTION_DRAFTS] ? in->p->tokens / in->p->sequences : 1;
}

static bool check_pool(struct parser *in)
{
    const struct problem *p = in->p;
    const char *drafts = in->said[OPTION_DRAFTS];
    if (p->option[OPTION_DRAFTS] && !p->slots)
        return refuse(in, "'%s' needs pool#", drafts);
    if (p->option[OPTION_DRAFTS] && p->ragged)
        return refuse(in, "'%s' contradicts lens=", drafts);
    if (p->columns > MAX_DRAFTS)
        return refuse(in, "'%s': a sequence has %d tokens at most", drafts, MAX_DRAFTS);
    if (p->slots && p->slots < p->sequences * p->columns)
        return refuse(in, "'%s': %" PRId64 " states need a slot each", in->said[OPTION_POOL],
                      p->sequences * p->columns);
    return true;
}

/* What no library could run, or what would silently say nothing. */
static bool check_meaning(struct parser *in)
{
    const int64_t *option = in->p->option;
    int64_t heads = in->size[in->sizes - 2];
    if (option[OPTION_VALUE_HEADS] % heads)
        return refuse(in, "'%s': value heads must be a multiple of the %" PRId64 " heads",
                      who_said(in, OPTION_VALUE_HEADS), heads);
    if (option[OPTION_KEY_DIM] > 256)
        return refuse(in, "'%s': K is at most 256", who_said(in, OPTION_KEY_DIM));
    if (option[OPTION_VALUE_DIM] > 65536)
        return refuse(in, "'%s': V is at most 65536", who_said(in, OPTION_VALUE_DIM));
    if (option[OPTION_G] != option[OPTION_DTYPE] && option[OPTION_G] != KDA_F32)
        return refuse(in, "'%s': g is f32 or of q's type", who_said(in, OPTION_G));
    static const enum problem_option gated[] = {OPTION_G, OPTION_PER_HEAD};
    for (size_t i = 0; i < COUNT(gated); ++i)
        if (option[OPTION_GATE] == KDA_GATE_NONE && is_given(in, gated[i]))
            return refuse(in, "'%s' contradicts 'none': there is no g", who_said(in, gated[i]));
    static const enum problem_option stateful[] = {OPTION_STATE, OPTION_LAYOUT, OPTION_POOL};
    for (size_t i = 0; i < COUNT(stateful); ++i)
        if (option[OPTION_NO_STATE] && is_given(in, stateful[i]))
            return refuse(in, "'%s' contradicts 'nostate'", who_said(in, stateful[i]));
    return check_pool(in);
}

static void fill_shape(struct problem *p, int64_t heads)
{
    const int64_t *option = p->option;
    p->shape =
        *kda_problem(.heads = (int32_t)heads, .value_heads = (int32_t)option[OPTION_VALUE_HEADS],
                     .key_dim = (int32_t)option[OPTION_KEY_DIM],
                     .value_dim = (int32_t)option[OPTION_VALUE_DIM], .max_tokens = p->tokens,
                     .max_sequences = p->sequences, .dtype = (kda_dtype)option[OPTION_DTYPE],
                     .g_dtype = (kda_dtype)option[OPTION_G],
                     .beta_dtype = (kda_dtype)option[OPTION_DTYPE],
                     .out_dtype = (kda_dtype)option[OPTION_DTYPE],
                     .state_dtype = (kda_dtype)option[OPTION_STATE],
                     .gate = (kda_gate)option[OPTION_GATE], .beta = KDA_BETA_SIGMOID,
                     .rule = (kda_rule)option[OPTION_RULE],
                     .flags = KDA_NORM_QK | (option[OPTION_PER_HEAD] ? KDA_GATE_PER_HEAD : 0u),
                     .state_layout = (kda_state_layout)option[OPTION_LAYOUT],
                     .schedule = (kda_schedule)option[OPTION_SCHEDULE],
                     .engine = (kda_engine)option[OPTION_ENGINE],
                     .segment = (int32_t)option[OPTION_SEGMENT]);
}

bool problem_parse(struct problem *p, const char *text, char *why, size_t why_size)
{
    struct parser in = {.p = p, .why = why, .why_size = why_size};
    memset(p, 0, sizeof *p);
    char *copy = strdup(text);
    bool fine = copy ? read_parts(&in, copy) : refuse(&in, "out of memory");
    free(copy);
    fine = fine && settle_lengths(&in);
    if (fine) {
        settle_defaults(&in);
        fine = check_meaning(&in);
    }
    if (fine)
        fill_shape(p, in.size[in.sizes - 2]);
    else
        problem_free(p);
    return fine;
}

void problem_free(struct problem *p)
{
    free(p->starts);
    p->starts = NULL;
}

/* A text that knows how long it would be. */
struct printer {
    char *text;
    size_t size, length;
};

__attribute__((format(printf, 2, 3))) static void add(struct printer *out, const char *format, ...)
{
    bool full = out->length >= out->size;
    va_list values;
    va_start(values, format);
    int n = vsnprintf(full ? NULL : out->text + out->length, full ? 0 : out->size - out->length,
                      format, values);
    va_end(values);
    out->length += n > 0 ? (size_t)n : 0;
}

static void add_sizes(struct printer *out, const struct problem *p)
{
    int64_t rows = p->starts[1];
    if (p->ragged || (p->sequences == 1 && rows > 1))
        add(out, "%" PRId64, p->tokens);
    else if (rows == 1)
        add(out, "decode:%" PRId64, p->sequences);
    else
        add(out, "%" PRId64 "x%" PRId64, p->sequences, rows);
    add(out, "x%" PRId32 "x%" PRId32, p->shape.heads, p->shape.key_dim);
}

/* Whether the canonical text says an option: type and gate always, the others where they differ
 * from their default. The key dimension stands in the sizes. */
static bool is_said(const struct problem *p, enum problem_option option)
{
    switch (option) {
    case OPTION_DTYPE:
    case OPTION_GATE:
        return true;
    case OPTION_VALUE_HEADS:
        return p->shape.value_heads != p->shape.heads;
    case OPTION_KEY_DIM:
        return false;
    case OPTION_VALUE_DIM:
        return p->shape.value_dim != p->shape.key_dim;
    case OPTION_G:
        return p->shape.g_dtype != p->shape.dtype;
    case OPTION_STATE:
        return p->shape.state_dtype != KDA_F32;
    default:
        return p->option[option] != 0;
    }
}

static void add_option(struct printer *out, enum problem_option option, int64_t value)
{
    for (size_t i = 0; i < COUNT(numbers); ++i)
        if (numbers[i].option == option)
            add(out, "/%s%" PRId64, numbers[i].letters, value);
    for (size_t i = 0; i < COUNT(words); ++i)
        if (words[i].option == option && words[i].value == value)
            add(out, "/%s", words[i].text);
}

size_t problem_print(const struct problem *p, char *text, size_t size)
{
    struct printer out = {text, size, 0};
    add_sizes(&out, p);
    for (int i = 0; i < OPTION_COUNT; ++i)
        if (is_said(p, (enum problem_option)i))
            add_option(&out, (enum problem_option)i, p->option[i]);
    for (int64_t n = 0; p->ragged && n < p->sequences; ++n)
        add(&out, "%s%" PRId64, n ? "," : "/lens=", p->starts[n + 1] - p->starts[n]);
    return out.length;
}

double problem_bytes(const struct problem *p)
{
    const kda_problem *s = &p->shape;
    double tokens = (double)p->tokens, h = s->heads, hv = s->value_heads;
    double k = s->key_dim, v = s->value_dim, element = (double)number_size(s->dtype);
    double gates = s->gate == KDA_GATE_NONE ? 0 : s->flags & KDA_GATE_PER_HEAD ? 1 : k;
    double row =
        element * (2 * h * k + 2 * hv * v + hv) + (double)number_size(s->g_dtype) * hv * gates;
    double state = (double)number_size(s->state_dtype) * hv * k * v;
    return tokens * row + (p->states ? (double)(1 + p->columns) * (double)p->sequences * state : 0);
}

double problem_flops(const struct problem *p)
{
    const kda_problem *s = &p->shape;
    int per_element = 4 + (s->gate != KDA_GATE_NONE) + (s->rule == KDA_RULE_DELTA ? 2 : 0);
    return (double)p->tokens * s->value_heads * s->key_dim * s->value_dim * per_element;
}

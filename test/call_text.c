/* The language of call.h read into a struct call. One table says, for each key, where its value
 * goes and what it may be.
 *
 * SPDX-License-Identifier: MIT */
#include "call.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { INT, LONG, REAL, TEXT, WORD };

struct key {
    const char *name;
    enum kind kind;
    size_t at;         /* in struct call */
    const char *words; /* WORD: the words there are, of values first, first + 1, ... */
    int first;
};

#define AT(member) offsetof(struct call, member)
#define INTEGER(member) INT, AT(member), NULL, 0
#define WIDE(member) LONG, AT(member), NULL, 0
#define NUMBER(member) REAL, AT(member), NULL, 0
#define STRING(member) TEXT, AT(member), NULL, 0
#define CHOICE(member, words) WORD, AT(member), words, 0
#define TYPE(member) WORD, AT(member), "f32|f16|bf16", KDA_F32

static const struct key keys[] = {
    {"H", INTEGER(problem.heads)},
    {"HV", INTEGER(problem.value_heads)},
    {"K", INTEGER(problem.key_dim)},
    {"V", INTEGER(problem.value_dim)},
    {"lengths", STRING(lengths_text)},
    {"max_tokens", WIDE(problem.max_tokens)},
    {"max_sequences", WIDE(problem.max_sequences)},
    {"dtype", TYPE(problem.dtype)},
    {"g_dtype", TYPE(problem.g_dtype)},
    {"beta_dtype", TYPE(problem.beta_dtype)},
    {"out_dtype", TYPE(problem.out_dtype)},
    {"state_dtype", TYPE(problem.state_dtype)},
    {"gate", CHOICE(problem.gate, "log|softplus|bounded|none")},
    {"bound", NUMBER(problem.gate_bound)},
    {"activation", CHOICE(problem.beta, "given|sigmoid|sigmoid2")},
    {"rule", CHOICE(problem.rule, "delta|additive")},
    {"norm", INTEGER(norm)},
    {"per_head", INTEGER(per_head)},
    {"scale", NUMBER(problem.scale)},
    {"checkpoint", WIDE(problem.checkpoint_every)},
    {"layout", CHOICE(problem.state_layout, "kv|vk")},
    {"map", CHOICE(problem.head_map, "grouped|modulo")},
    {"schedule", CHOICE(problem.schedule, "auto|recurrent|chunkwise")},
    {"engine", CHOICE(problem.engine, "auto|clblast|fused|mma")},
    {"chunk", INTEGER(problem.chunk)},
    {"segment", INTEGER(problem.segment)},
    {"workspace", WIDE(workspace)},
    {"q", STRING(numbers[Q])},
    {"k", STRING(numbers[K])},
    {"v", STRING(numbers[V])},
    {"g", STRING(numbers[G])},
    {"beta", STRING(numbers[BETA])},
    {"a_log", STRING(numbers[A_LOG])},
    {"dt_bias", STRING(numbers[DT_BIAS])},
    {"state", STRING(numbers[INITIAL_STATE])},
    {"final", INTEGER(final)},
    {"in_place", INTEGER(in_place)},
    {"cu", CHOICE(cu, "auto|no|i32|i64")},
    {"index", STRING(numbers[STATE_INDEX])},
    {"write", STRING(numbers[WRITE_INDEX])},
    {"accepted", STRING(numbers[ACCEPTED])},
    {"fresh", STRING(numbers[FRESH])},
    {"columns", INTEGER(columns)},
    {"max_length", WIDE(max_length)},
    {"index_type", CHOICE(index_type, "i32|i64")},
    {"slots", WIDE(slots)},
    {"pad", STRING(pad_text)},
    {"order", CHOICE(heads_outside, "tokens|heads")},
    {"seed", WIDE(seed)},
    {"slack", NUMBER(slack)},
};

/* Number of the word in a|b|c, or -1. */
static int word_number(const char *words, const char *word)
{
    size_t n = strlen(word);
    for (int i = 0; words; i++) {
        const char *bar = strchr(words, '|');
        size_t length = bar ? (size_t)(bar - words) : strlen(words);
        if (length == n && !memcmp(words, word, n))
            return i;
        words = bar ? bar + 1 : NULL;
    }
    return -1;
}

static bool read_word(const struct key *key, const char *text, void *to)
{
    int32_t word = word_number(key->words, text);
    if (word < 0)
        return false;
    word += key->first;
    memcpy(to, &word, sizeof(word));
    return true;
}

/* A whole number of 4 or 8 bytes. */
static bool read_integer(const char *text, size_t size, void *to)
{
    char *end;
    errno = 0;
    long long wide = strtoll(text, &end, 10);
    int32_t narrow = (int32_t)wide;
    if (end == text || *end || errno || (size == sizeof(narrow) && narrow != wide))
        return false;
    memcpy(to, size == sizeof(narrow) ? (void *)&narrow : (void *)&wide, size);
    return true;
}

static bool read_real(const char *text, void *to)
{
    char *end;
    float real = strtof(text, &end);
    memcpy(to, &real, sizeof(real));
    return end != text && !*end;
}

static bool read_value(const struct key *key, const char *text, void *to)
{
    switch (key->kind) {
    case INT:
        return read_integer(text, sizeof(int32_t), to);
    case LONG:
        return read_integer(text, sizeof(int64_t), to);
    case REAL:
        return read_real(text, to);
    case TEXT:
        memcpy(to, &text, sizeof(text));
        return true;
    default:
        return read_word(key, text, to);
    }
}

static bool read_pair(struct call *call, char *pair, char *why)
{
    char *value = strchr(pair, '=');
    if (value)
        *value++ = '\0';
    for (size_t i = 0; value && i < sizeof(keys) / sizeof(keys[0]); i++) {
        if (strcmp(keys[i].name, pair))
            continue;
        if (read_value(&keys[i], value, (char *)call + keys[i].at))
            return true;
        snprintf(why, CALL_WHY, "%s=%s: not a value of this key", pair, value);
        return false;
    }
    snprintf(why, CALL_WHY, "%s: no such key, or no value", pair);
    return false;
}

/* Integers separated by commas, AxN being N times A. Returns how many, -1 if it is no such list. */
static int64_t read_list(const char *text, int64_t *list, int64_t max)
{
    int64_t count = 0;
    for (const char *at = text;; at++) {
        char *end;
        long long x = strtoll(at, &end, 10), times = 1;
        if (end == at)
            return -1;
        if (*end == 'x')
            times = strtoll(end + 1, &end, 10);
        if (times < 1 || times > max - count)
            return -1;
        for (; times > 0; times--)
            list[count++] = x;
        at = end;
        if (*at != ',')
            return *at ? -1 : count;
    }
}

static bool read_lengths(struct call *call, char *why)
{
    int64_t *lengths = calloc(MAX_SEQUENCES, sizeof(*lengths));
    call->sequences = read_list(call->lengths_text, lengths, MAX_SEQUENCES);
    call->tokens = 0;
    call->lengths = calloc(MAX_SEQUENCES, sizeof(*call->lengths));
    for (int64_t n = 0; n < call->sequences; n++) {
        if (lengths[n] < 0 || lengths[n] > INT32_MAX)
            call->sequences = -1;
        call->lengths[n] = (int32_t)lengths[n];
        call->tokens += lengths[n];
    }
    free(lengths);
    if (call->sequences < 1)
        snprintf(why, CALL_WHY, "lengths=%.100s: not a list of lengths", call->lengths_text);
    return call->sequences >= 1;
}

static bool read_lists(struct call *call, char *why)
{
    if (!read_lengths(call, why))
        return false;
    if (call->pad_text && read_list(call->pad_text, call->pad, 3) != 3) {
        snprintf(why, CALL_WHY, "pad=%.100s: not three numbers", call->pad_text);
        return false;
    }
    for (int i = 0; i < LISTS; i++) {
        const char *text = call->numbers[STATE_INDEX + i];
        call->list[i] = text ? calloc(MAX_SEQUENCES, sizeof(int64_t)) : NULL;
        if (text && read_list(text, call->list[i], MAX_SEQUENCES) != call_list_length(call, i)) {
            snprintf(why, CALL_WHY, "%.100s: not a number for each sequence and column", text);
            return false;
        }
    }
    return true;
}

/* Sizes that make tensors at all; what else is wrong with a problem is for the library to say. */
static bool check_sizes(const struct call *call, char *why)
{
    enum { MOST = 65536 };
    const kda_problem *p = &call->problem;
    const struct size {
        const char *name;
        int64_t value, least, most;
    } sizes[] = {
        {"H", p->heads, 1, MOST},
        {"HV", p->value_heads, 0, MOST},
        {"K", p->key_dim, 1, 256},
        {"V", p->value_dim, 1, MOST},
        {"the sum of lengths", call->tokens, 0, INT32_MAX},
        {"checkpoint", p->checkpoint_every, 0, INT64_MAX},
        {"columns", call->columns, INT32_MIN, 16},
        {"slots", call->slots, call->numbers[STATE_INDEX] ? 1 : 0, INT32_MAX},
        {"pad", call->pad[0], 0, MOST},
        {"pad", call->pad[1], 0, MOST},
        {"pad", call->pad[2], 0, MOST},
    };
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        const struct size *s = &sizes[i];
        if (s->value >= s->least && s->value <= s->most)
            continue;
        snprintf(why, CALL_WHY, "%s must be from %lld to %lld, not %lld", s->name,
                 (long long)s->least, (long long)s->most, (long long)s->value);
        return false;
    }
    return true;
}

static void set_defaults(struct call *call, uint64_t seed)
{
    call->problem.struct_size = sizeof(call->problem);
    call->problem.heads = call->problem.key_dim = call->problem.value_dim = 1;
    call->lengths_text = "1";
    call->final = 1;
    call->slack = 1;
    call->seed = (int64_t)(seed & INT64_MAX);
}

bool call_parse(struct call *call, const char *text, uint64_t seed, char *why)
{
    set_defaults(call, seed);
    if (snprintf(call->words, sizeof(call->words), "%s", text) >= (int)sizeof(call->words) - 32) {
        snprintf(why, CALL_WHY, "the call's text is too long");
        return false;
    }
    char *rest = call->words, *pair;
    while ((pair = strtok_r(rest, " \t\n", &rest)))
        if (!read_pair(call, pair, why))
            return false;
    if (!read_lists(call, why) || !check_sizes(call, why))
        return false;
    kda_problem *p = &call->problem;
    p->flags = (call->norm ? KDA_NORM_QK : 0) | (call->per_head ? KDA_GATE_PER_HEAD : 0);
    p->max_workspace = (size_t)call->workspace;
    if (!p->max_tokens)
        p->max_tokens = call->tokens ? call->tokens : 1;
    if (!p->max_sequences)
        p->max_sequences = call->sequences;
    bool named = strstr(text, "seed=");
    snprintf(call->text, sizeof(call->text), named ? "%s" : "%s seed=%" PRId64, text, call->seed);
    return true;
}

/* Rows of measured choices that a caller hands over: read, kept if they are for the context's
 * device, found for a problem. What a row is stands in kda.h, at kda_context_params.tuned.
 *
 * SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* ---- Words ------------------------------------------------------------------------------ */

#define BLANKS " \t\r"

static bool is(struct kda_span s, const char *text)
{
    return s.length == strlen(text) && !memcmp(s.at, text, s.length);
}

/* A number in decimal digits, below 2^31; -1: it is none. */
static int32_t number(struct kda_span s)
{
    int64_t n = 0;
    for (size_t i = 0; i < s.length; i++) {
        if (s.at[i] < '0' || s.at[i] > '9' || n > INT32_MAX)
            return -1;
        n = 10 * n + (s.at[i] - '0');
    }
    return s.length && n <= INT32_MAX ? (int32_t)n : -1;
}

/* The part of s before a separator, which is cut off it with the part. */
static struct kda_span cut(struct kda_span *s, char separator)
{
    const char *end = memchr(s->at, separator, s->length);
    struct kda_span part = {s->at, end ? (size_t)(end - s->at) : s->length};
    size_t taken = part.length + (end ? 1 : 0);
    s->at += taken;
    s->length -= taken;
    return part;
}

/* Takes a word KEY=VALUE off a line. False: there is none, or what it breaks is in rule. */
static bool take_word(const char **line, struct kda_span *key, struct kda_span *value,
                      const char **rule)
{
    const char *at = *line + strspn(*line, BLANKS);
    if (!*at || *at == '#')
        return false;
    *key = (struct kda_span){at, strcspn(at, "=" BLANKS)};
    at += key->length;
    if (*at != '=') {
        *rule = "a word must be KEY=VALUE, without blanks around =";
        return false;
    }
    const bool quoted = *++at == '"';
    at += quoted;
    *value = (struct kda_span){at, strcspn(at, quoted ? "\"" : BLANKS)};
    at += value->length;
    if (quoted && (*at++ != '"' || (*at && !strchr(BLANKS, *at)))) {
        *rule = "a value that begins with a double quote must end in one";
        return false;
    }
    *line = at;
    return true;
}

/* ---- Values ----------------------------------------------------------------------------- */

static bool read_device(struct kda_tuned *row, struct kda_span value)
{
    row->device = value;
    return value.length;
}

static bool read_driver(struct kda_tuned *row, struct kda_span value)
{
    row->driver = value;
    return value.length;
}

static bool read_key_dim(struct kda_tuned *row, struct kda_span value)
{
    row->key_dim = number(value);
    return row->key_dim >= 1 && row->key_dim <= 256;
}

static bool read_value_dim(struct kda_tuned *row, struct kda_span value)
{
    row->value_dim = number(value);
    return row->value_dim >= 1 && row->value_dim <= 65536;
}

static bool read_dtype(struct kda_tuned *row, struct kda_span value)
{
    row->dtype = KDA_BF16;
    while (row->dtype && !is(value, kda_dtype_name(row->dtype)))
        row->dtype--;
    return row->dtype;
}

static bool read_engine(struct kda_tuned *row, struct kda_span value)
{
    row->engine = KDA_ENGINE_MMA;
    while (row->engine && !is(value, kda_engine_name(row->engine)))
        row->engine--;
    return row->engine;
}

static bool read_chunk(struct kda_tuned *row, struct kda_span value)
{
    row->chunk = number(value);
    return row->chunk == 16 || row->chunk == 32 || row->chunk == 64;
}

static bool read_recurrent_up_to(struct kda_tuned *row, struct kda_span value)
{
    row->recurrent_up_to = number(value);
    return row->recurrent_up_to >= 0;
}

static bool read_scan(struct kda_tuned *row, struct kda_span value)
{
    const int32_t v = number(cut(&value, 'x')), vec = number(cut(&value, 'x')),
                  rows = number(value);
    row->scan_v = v;
    row->scan_vec = vec;
    row->scan_rows = rows;
    return v <= 256 && v >= vec && !(v & (v - 1)) && (vec == 4 || vec == 8 || vec == 16) &&
           (rows == 1 || rows == 2 || rows == 4);
}

static const struct {
    const char *name;
    bool (*read)(struct kda_tuned *row, struct kda_span value);
    const char *rule;
} keys[] = {
    {"device", read_device, "a name"},
    {"driver", read_driver, "a name"},
    {"key_dim", read_key_dim, "in 1..256"},
    {"value_dim", read_value_dim, "in 1..65536"},
    {"dtype", read_dtype, "f32, f16 or bf16"},
    {"engine", read_engine, "clblast, fused or mma"},
    {"chunk", read_chunk, "16, 32 or 64"},
    {"recurrent_up_to", read_recurrent_up_to, "in 0..2^31-1"},
    {"scan", read_scan,
     "COLUMNSxVECTORxTOKENS: a power of two up to 256, 4, 8 or 16 and no more than that, 1, 2 or "
     "4"},
};
enum { NEEDED = 5 }; /* the first keys say what a row is for: each must be there */

/* ---- Rows ------------------------------------------------------------------------------- */

#define LINE "kda_context_params.tuned: line %d: "

/* Reads one word of a row. seen: a bit for each key that was there. */
static kda_status read_word(const kda_context *ctx, struct kda_tuned *row, struct kda_span key,
                            struct kda_span value, unsigned *seen)
{
    size_t i = 0;
    while (i < KDA_COUNT_OF(keys) && !is(key, keys[i].name))
        i++;
    KDA_REQUIRE(ctx, i < KDA_COUNT_OF(keys), LINE "there is no key '%.*s'", row->line,
                (int)key.length, key.at);
    KDA_REQUIRE(ctx, !(*seen & 1u << i), LINE "%s comes twice", row->line, keys[i].name);
    KDA_REQUIRE(ctx, keys[i].read(row, value), LINE "%s must be %s (is '%.*s')", row->line,
                keys[i].name, keys[i].rule, (int)value.length, value.at);
    *seen |= 1u << i;
    return KDA_OK;
}

/* Reads a line; found: it is a row, neither empty nor a comment. */
static kda_status read_row(const kda_context *ctx, struct kda_tuned *row, bool *found)
{
    const char *at = row->text, *broken = NULL;
    struct kda_span key, value;
    unsigned seen = 0;
    kda_status st = KDA_OK;
    while (!st && take_word(&at, &key, &value, &broken))
        st = read_word(ctx, row, key, value, &seen);
    *found = seen;
    if (st)
        return st;
    KDA_REQUIRE(ctx, !broken, LINE "%s", row->line, broken);
    for (int i = 0; seen && i < NEEDED; i++)
        KDA_REQUIRE(ctx, seen & 1u << i, LINE "%s is missing", row->line, keys[i].name);
    KDA_REQUIRE(ctx, !seen || seen >> NEEDED,
                LINE "nothing is chosen: one of engine, chunk, "
                     "recurrent_up_to and scan must be there",
                row->line);
    return KDA_OK;
}

static size_t count_lines(const char *text)
{
    size_t lines = 1;
    for (; *text; text++)
        lines += *text == '\n';
    return lines;
}

kda_status kda_tuned_read(kda_context *ctx, const char *text)
{
    const size_t length = strlen(text) + 1, lines = count_lines(text);
    const size_t bytes = sizeof(struct kda_tuned_rows) + lines * sizeof(struct kda_tuned) + length;
    struct kda_tuned_rows *rows = calloc(1, bytes);
    if (!rows)
        return kda_no_memory(ctx, "tuned rows", bytes);
    ctx->tuned = rows;
    char *at = memcpy(rows->row + lines, text, length), *rest;
    kda_status st = KDA_OK;
    for (int line = 1; !st && at; at = rest, line++) {
        rest = strchr(at, '\n');
        if (rest)
            *rest++ = '\0';
        bool found;
        rows->row[rows->count] =
            (struct kda_tuned){.line = line, .text = at, .recurrent_up_to = -1};
        st = read_row(ctx, &rows->row[rows->count], &found);
        rows->count += found;
    }
    return st;
}

/* ---- What they are for ------------------------------------------------------------------ */

/* The value of a fact of the context's; "" if there is none of that name. */
static const char *fact(const kda_context *ctx, const char *name)
{
    kda_fact facts[64];
    size_t count = ctx->ops->facts(ctx, facts, KDA_COUNT_OF(facts));
    for (size_t i = 0; i < count && i < KDA_COUNT_OF(facts); i++)
        if (!strcmp(facts[i].name, name))
            return facts[i].value;
    return "";
}

void kda_tuned_keep(kda_context *ctx)
{
    struct kda_tuned_rows *rows = ctx->tuned;
    const char *device = fact(ctx, "name"), *driver = fact(ctx, "driver");
    size_t kept = 0;
    for (size_t i = 0; rows && i < rows->count; i++) {
        const struct kda_tuned *row = &rows->row[i];
        if (!is(row->device, device))
            continue;
        if (is(row->driver, driver))
            rows->row[kept++] = *row;
        else
            kda_log(ctx, KDA_LOG_WARN,
                    "kda_context_params.tuned: line %d is of driver %.*s, not %s: not used",
                    row->line, (int)row->driver.length, row->driver.at, driver);
    }
    if (rows)
        rows->count = kept;
}

/* Whether a row is for a problem, and chooses nothing that the problem chooses otherwise. */
static bool serves(const struct kda_tuned *row, const kda_problem *p)
{
    return row->key_dim == p->key_dim && row->value_dim == p->value_dim && row->dtype == p->dtype &&
           (!row->engine || !p->engine || row->engine == p->engine) &&
           (!row->chunk || !p->chunk || row->chunk == p->chunk) &&
           (!row->chunk || p->checkpoint_every % row->chunk == 0) &&
           p->schedule != KDA_SCHEDULE_RECURRENT;
}

const struct kda_tuned *kda_tuned_find(const kda_context *ctx, const kda_problem *p)
{
    const struct kda_tuned *found = NULL;
    for (size_t i = 0; ctx->tuned && i < ctx->tuned->count; i++)
        if (serves(&ctx->tuned->row[i], p))
            found = &ctx->tuned->row[i];
    return found;
}

const char *kda_tuned_name(const struct kda_tuned *row, char *text, size_t n)
{
    *text = '\0';
    if (row)
        snprintf(text, n, " tuned=%d", row->line);
    return text;
}

void kda_tuned_apply(const struct kda_tuned *row, kda_problem *p)
{
    if (row && row->engine)
        p->engine = row->engine;
    if (row && row->chunk)
        p->chunk = row->chunk;
}

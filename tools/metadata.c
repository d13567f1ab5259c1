/* Metadata by a table of keys. Every value is checked to its last character: a value that is nearly
 * right would be a wrong answer.
 *
 * SPDX-License-Identifier: MIT */
#include "metadata.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum key {
    KEY_GATE,
    KEY_GATE_BOUND,
    KEY_BETA,
    KEY_NORM_QK,
    KEY_SCALE,
    KEY_RULE,
    KEY_STATE_LAYOUT,
    KEY_HEAD_MAP,
    KEY_GATE_PER_HEAD,
    KEY_CHECKPOINT_EVERY,
    KEY_NAME,
    KEYS
};

enum { MAX_WORDS = 4 };

/* The words of a key stand in the order of the enum they mean. */
static const struct {
    const char *name, *words[MAX_WORDS];
} keys[KEYS] = {
    [KEY_GATE] = {"gate", {"log", "softplus", "bounded", "none"}},
    [KEY_GATE_BOUND] = {"gate_bound", {NULL}},
    [KEY_BETA] = {"beta", {"given", "sigmoid", "sigmoid2"}},
    [KEY_NORM_QK] = {"norm_qk", {"0", "1"}},
    [KEY_SCALE] = {"scale", {NULL}},
    [KEY_RULE] = {"rule", {"delta", "additive"}},
    [KEY_STATE_LAYOUT] = {"state_layout", {"kv", "vk"}},
    [KEY_HEAD_MAP] = {"head_map", {"grouped", "modulo"}},
    [KEY_GATE_PER_HEAD] = {"gate_per_head", {"0", "1"}},
    [KEY_CHECKPOINT_EVERY] = {"checkpoint_every", {NULL}},
    [KEY_NAME] = {"name", {NULL}},
};

/* A file's metadata on its way to a problem. */
struct reader {
    const struct st_file *file;
    const char *path;
    const char *value[KEYS]; /* NULL: absent or "" */
    char *error;
};

static bool find_key(const char *name, enum key *key)
{
    for (int i = 0; i < KEYS; ++i) {
        if (!strcmp(name, keys[i].name)) {
            *key = (enum key)i;
            return true;
        }
    }
    return false;
}

/* The file's metadata, then what is set in its place. */
static bool collect_metadata(struct reader *r, const struct metadata_settings *set)
{
    const struct st_file *file = r->file;
    size_t count = file->num_metadata + (set ? set->count : 0);
    char quoted[64];
    for (size_t i = 0; i < count; ++i) {
        bool own = i < file->num_metadata;
        const struct st_pair *pair = own ? &file->metadata[i] : &set->pairs[i - file->num_metadata];
        enum key key;
        if (!find_key(pair->key, &key))
            return st_fail(r->error, own ? r->path : "--set", "unknown metadata key '%s'",
                           st_quote(quoted, sizeof(quoted), pair->key));
        r->value[key] = *pair->value ? pair->value : NULL;
    }
    return true;
}

static bool fail_value(const struct reader *r, enum key key, const char *rule)
{
    char quoted[64];
    return st_fail(r->error, r->path, "metadata '%s' is '%s', which is not %s", keys[key].name,
                   st_quote(quoted, sizeof(quoted), r->value[key]), rule);
}

/* The index of a key's word; 0, the default, where absent. */
static bool read_word(const struct reader *r, enum key key, int *index)
{
    char list[80] = "one of";
    *index = 0;
    if (!r->value[key])
        return true;
    for (int i = 0; i < MAX_WORDS && keys[key].words[i]; ++i) {
        if (!strcmp(r->value[key], keys[key].words[i])) {
            *index = i;
            return true;
        }
        size_t n = strlen(list);
        snprintf(list + n, sizeof(list) - n, " %s", keys[key].words[i]);
    }
    return fail_value(r, key, list);
}

/* A number in low <= x < high that a float tells from 0; 0 where absent. strtof alone would take
 * spaces, hexadecimals, inf and nan. */
static bool read_number(const struct reader *r, enum key key, float low, float high, float *number,
                        const char *rule)
{
    const char *text = r->value[key];
    char *end;
    *number = 0;
    if (!text)
        return true;
    float x = strtof(text, &end);
    if (text[strspn(text, "0123456789+-.eE")] || *end || end == text || x == 0 ||
        !(x >= low && x < high))
        return fail_value(r, key, rule);
    *number = x;
    return true;
}

static bool read_checkpoint_every(const struct reader *r, int64_t *every)
{
    const char *text = r->value[KEY_CHECKPOINT_EVERY];
    *every = 0;
    if (!text)
        return true;
    errno = 0;
    *every = strtoll(text, NULL, 10);
    if (text[strspn(text, "0123456789")] || errno)
        return fail_value(r, KEY_CHECKPOINT_EVERY, "a number of tokens");
    return true;
}

static bool read_gate(const struct reader *r, kda_problem *p)
{
    int gate;
    if (!read_word(r, KEY_GATE, &gate) ||
        !read_number(r, KEY_GATE_BOUND, -5, 0, &p->gate_bound, "a number in [-5, 0)"))
        return false;
    p->gate = (kda_gate)gate;
    if (!r->value[KEY_GATE]) {
        if (st_find(r->file, "g"))
            return st_fail(r->error, r->path,
                           "metadata 'gate' is missing: tensor 'g' can't be read without it");
        p->gate = KDA_GATE_NONE;
    }
    if (r->value[KEY_GATE_BOUND] && p->gate != KDA_GATE_BOUNDED)
        return st_fail(r->error, r->path,
                       "metadata 'gate_bound' is for gate bounded, but gate is %s",
                       keys[KEY_GATE].words[p->gate]);
    return true;
}

static bool read_keys(const struct reader *r, kda_problem *p)
{
    int beta, norm, rule, layout, map, per_head;
    if (!read_gate(r, p) || !read_word(r, KEY_BETA, &beta) || !read_word(r, KEY_NORM_QK, &norm) ||
        !read_word(r, KEY_RULE, &rule) || !read_word(r, KEY_STATE_LAYOUT, &layout) ||
        !read_word(r, KEY_HEAD_MAP, &map) || !read_word(r, KEY_GATE_PER_HEAD, &per_head) ||
        !read_number(r, KEY_SCALE, -HUGE_VALF, HUGE_VALF, &p->scale,
                     "a finite number other than 0 (\"\" is 1 / sqrt(K))") ||
        !read_checkpoint_every(r, &p->checkpoint_every))
        return false;
    p->beta = (kda_beta)beta;
    p->rule = (kda_rule)rule;
    p->state_layout = (kda_state_layout)layout;
    p->head_map = (kda_head_map)map;
    p->flags = (norm ? KDA_NORM_QK : 0) | (per_head ? KDA_GATE_PER_HEAD : 0);
    return true;
}

bool metadata_read(const struct st_file *file, const char *path,
                   const struct metadata_settings *set, kda_problem *problem, char *error)
{
    struct reader r = {.file = file, .path = path, .error = error};
    return collect_metadata(&r, set) && read_keys(&r, problem);
}

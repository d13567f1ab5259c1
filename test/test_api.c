/* The contract of kda.h, on every device: what each misuse answers, and what it leaves alone. The
 * parts are in the files named in test_api.h; here is what a broken call is held to.
 *
 * SPDX-License-Identifier: MIT */
#include <ctype.h>
#include <string.h>

#include "runner.h"
#include "test_api.h"

struct rig *rig;

static bool part_of_word(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* Whether text has the n characters at word, not as a part of a longer name. */
static bool has_word(const char *text, const char *word, size_t n)
{
    for (const char *at = text; *at; at++)
        if (!strncmp(at, word, n) && (at == text || !part_of_word(at[-1])) &&
            !(part_of_word(word[n - 1]) && part_of_word(at[n])))
            return true;
    return false;
}

static bool has_words(const char *text, const char *words)
{
    while (*words) {
        size_t n = strcspn(words, " ");
        if (!has_word(text, words, n))
            return false;
        words += n + (words[n] == ' ');
    }
    return true;
}

void expect(kda_status got, kda_status wanted, const char *words, const char *what)
{
    const struct log *log = &rig->log;
    ck_assert_msg(got == wanted, "%s: %s instead of %s; log: %s", what, kda_status_string(got),
                  kda_status_string(wanted), log->error);
    ck_assert_msg(log->lines[KDA_LOG_ERROR] == (wanted != KDA_OK),
                  "%s: %d lines of level ERROR: %s", what, log->lines[KDA_LOG_ERROR], log->error);
    ck_assert_msg(has_words(log->error, words), "%s: the log says '%s', not '%s'", what, log->error,
                  words);
}

static struct outputs valid_outputs(enum base base, bool device)
{
    struct trial t = trial_make(rig, base, device);
    trial_poison(&t);
    ck_assert_msg(trial_run(&t) == KDA_OK, "the valid call fails: %s", rig->log.error);
    return trial_outputs(&t);
}

static void try_trial(struct trial t, void (*change)(struct trial *t), kda_status status,
                      const char *words, const char *what)
{
    trial_poison(&t);
    change(&t);
    log_clear(&rig->log);
    kda_status st = trial_run(&t);
    expect(st, status, words, what);
    ck_assert_msg(!t.event, "%s: an event was stored", what);
    struct outputs during = trial_outputs(&t);
    ck_assert_msg(!st || outputs_untouched(&during), "%s: an output was touched", what);
}

/* What is refused is refused in debug in the same words, before anything is read back. */
void try_call(enum base base, bool device, void (*change)(struct trial *t), kda_status status,
              const char *words, const char *what)
{
    struct outputs before = valid_outputs(base, device);
    ck_assert(!outputs_untouched(&before));
    struct trial t = trial_make(rig, base, device);
    try_trial(t, change, status, words, what);
    if (device && status) {
        t.plan = rig_debug_plan(rig, base);
        try_trial(t, change, status, words, what);
    }
    struct outputs after = valid_outputs(base, device);
    ck_assert_msg(outputs_equal(&before, &after), "%s: the valid call changed", what);
}

static int test_device(struct rig *opened)
{
    rig = opened;
    Suite *suite = suite_create(rig->name);
    add_objects(suite);
    add_structs(suite);
    add_rules(suite);
    add_views(suite);
    add_threads(suite);
    add_tuned(suite);
    return runner_run(srunner_create(suite));
}

int main(void)
{
    return for_each_rig(test_device) ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* --help against what the tools print: every member of their JSON is documented.
 *
 * SPDX-License-Identifier: MIT */
#include "files.h"
#include "spec.h"
#include "test_tools.h"

#include <cjson/cJSON.h>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static const char *kdabench, *kdainfo;

static struct outcome run_list(const char *tool, const char *const *arguments)
{
    program = tool;
    return run_arguments(arguments);
}
#define run(tool, ...) run_list(tool, (const char *const[]){__VA_ARGS__, NULL})

static bool is_letter(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* Whether a text has a word that is no part of a longer one. */
static bool has_word(const char *text, const char *word)
{
    const size_t length = strlen(word);
    for (const char *at = text; (at = strstr(at, word)); at += length)
        if ((at == text || !is_letter(at[-1])) && !is_letter(at[length]))
            return true;
    return false;
}

/* Properties have the names of what OpenCL is asked, of which --help says only that. */
static void ck_documented(const cJSON *node, const char *help)
{
    const cJSON *child;
    cJSON_ArrayForEach(child, node)
    {
        if (child->string)
            ck_assert_msg(has_word(help, child->string), "--help does not say \"%s\"",
                          child->string);
        if (!child->string || strcmp(child->string, "properties"))
            ck_documented(child, help);
    }
}

static void ck_json(const char *tool, const struct outcome *o)
{
    cJSON *document = cJSON_Parse(o->out);
    ck_assert_msg(document, "exit %d: %.999s%.999s", o->code, o->out, o->err);
    struct outcome help = run(tool, "--help");
    ck_documented(document, help.out);
    cJSON_Delete(document);
}

START_TEST(test_kdainfo)
{
    struct outcome o = run(kdainfo, "-d", "cpu", "--json", "--measure", "--selftest", "--verbose");
    ck_json(kdainfo, &o);
}
END_TEST

/* Where PoCL is not, the CPU backend has fewer members to show. */
START_TEST(test_kdabench)
{
    struct outcome o = run(kdabench, "-d", "Portable", "-jkn1", "--peers", "70x1x16/chunkwise");
    if (o.code == EXIT_NO_DEVICE)
        o = run(kdabench, "-d", "cpu", "-jkn1", "--peers", "70x1x16/chunkwise");
    ck_json(kdabench, &o);
}
END_TEST

START_TEST(test_version)
{
    struct outcome o = run(kdainfo, "--version");
    ck_assert_int_eq(o.code, EXIT_SUCCESS);
    ck_assert(!strncmp(o.out, "kdainfo ", 8) && !strncmp(o.out + 8, kda_version(), 5));
    o = run(kdabench, "--version");
    ck_assert_int_eq(o.code, EXIT_SUCCESS);
    ck_assert(!strncmp(o.out, "kdabench ", 9) && !strncmp(o.out + 9, kda_version(), 5));
}
END_TEST

Suite *suite_help(const char *kdabench_path, const char *kdainfo_path)
{
    Suite *suite = suite_create("--help");
    TCase *tcase = tcase_create("help");
    kdabench = kdabench_path;
    kdainfo = kdainfo_path;
    tcase_add_checked_fixture(tcase, folder_enter, folder_leave);
    tcase_add_test(tcase, test_kdainfo);
    tcase_add_test(tcase, test_kdabench);
    tcase_add_test(tcase, test_version);
    suite_add_tcase(suite, tcase);
    return suite;
}

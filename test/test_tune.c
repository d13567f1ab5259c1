/* kdabench --tune, and that the tools follow the file that it leaves.
 *
 * SPDX-License-Identifier: MIT */
#include "files.h"
#include "spec.h"
#include "test_tools.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *kdabench, *kdabench_wrong, *kdainfo;

#define FILE_NAME "kda/tuned"
#define OTHERS "# mine\ndevice=x driver=y key_dim=16 value_dim=16 dtype=f32 chunk=64\n"

static struct outcome run_list(const char *tool, const char *const *arguments)
{
    program = tool;
    return run_arguments(arguments);
}
#define run(tool, ...) run_list(tool, (const char *const[]){__VA_ARGS__, NULL})

static void says(const struct outcome *o, int code, const char *output, const char *what)
{
    ck_assert_msg(o->code == code && strstr(output, what),
                  "exit %d, wanted %d; not \"%s\" but\n%.2000s%.999s", o->code, code, what, o->out,
                  o->err);
}

/* The user's folder is the test's. */
static void enter(void)
{
    folder_enter();
    setenv("XDG_CONFIG_HOME", ".", 1);
    setenv("KDA_CACHE_DIR", "kda", 1);
}

static void leave(void)
{
    if (!chdir("kda")) {
        DIR *files = opendir(".");
        for (const struct dirent *e; (e = readdir(files));)
            if (*e->d_name != '.')
                remove(e->d_name);
        closedir(files);
        ck_assert(!chdir("..") && !rmdir("kda"));
    }
    setenv("XDG_CONFIG_HOME", "/nonexistent", 1);
    setenv("KDA_CACHE_DIR", "", 1);
    folder_leave();
}

/* The file, which has rows that are not the device's, and then so many lines. */
static char *read_rows(int lines)
{
    size_t size;
    char *text = read_bytes(FILE_NAME, &size);
    ck_assert(size > strlen(OTHERS) && !strncmp(text, OTHERS, strlen(OTHERS)));
    for (size_t i = strlen(OTHERS); i < size; i++)
        lines -= text[i] == '\n';
    ck_assert_int_eq(lines, 0);
    return text;
}

static const char *const devices[] = {"cpu", "Portable"};

/* A row is written behind those of others, and followed. */
START_TEST(test_round_trip)
{
    const char *device = devices[_i];
    ck_assert(!mkdir("kda", 0700));
    write_bytes(FILE_NAME, OTHERS, strlen(OTHERS));
    struct outcome o = run(kdabench, "-d", device, "--tune", "-n", "3", "64x1x16/f32/log");
    says(&o, EXIT_SUCCESS, o.out, "key_dim=16 value_dim=16 dtype=f32 engine=");
    char *row = read_rows(1);
    ck_assert_msg(strstr(o.out, row + strlen(OTHERS)), "%s", row);
    const char *up_to = strstr(row, "recurrent_up_to=");
    ck_assert_int_le(atol(strchr(up_to, '=') + 1), 64); /* no more is known of */
    free(row);
    o = run(kdabench, "-d", device, "-n", "1", "64x1x16/f32/log", "64x1x17/f32/log");
    says(&o, EXIT_SUCCESS, o.out, " tuned=3\n");
    ck_assert_ptr_null(strstr(strstr(o.out, " tuned=") + 1, " tuned="));
    o = run(kdainfo, "-d", device);
    says(&o, EXIT_SUCCESS, o.out, "given ");
    says(&o, EXIT_SUCCESS, o.out, "key_dim=16 value_dim=16 dtype=f32 engine=");
    ck_assert_ptr_null(strstr(o.out, "device=x"));
}
END_TEST

/* The row of the same plans makes way, that of others stays; a missing folder is made. */
START_TEST(test_again)
{
    struct outcome o;
    o = run(kdabench, "-d", "cpu", "--tune", "-n", "3", "64x1x16/f32/log", "64x1x16/bf16");
    says(&o, EXIT_SUCCESS, o.out, "dtype=bf16 engine=");
    o = run(kdabench, "-d", "cpu", "--tune", "-n", "3", "64x1x16/f32/log");
    size_t size;
    char *text = read_bytes(FILE_NAME, &size);
    const char *first = strstr(text, "dtype=bf16"), *second = strstr(text, "dtype=f32");
    ck_assert_msg(first && second && first < second && !strstr(second + 1, "dtype="), "%s", text);
    free(text);
}
END_TEST

/* What computes wrongly is not timed, and leaves no row. */
START_TEST(test_wrong_results)
{
    struct outcome o = run(kdabench_wrong, "-d", "cpu", "--tune", "-n", "3", "64x1x16/f32/log");
    says(&o, EXIT_WRONG, o.out, "WRONG: ");
    CHECK_FOLDER(NULL);
}
END_TEST

START_TEST(test_bad_rows)
{
    ck_assert(!mkdir("kda", 0700));
    write_bytes(FILE_NAME, "\nchunk=17\n", 10);
    struct outcome o = run(kdabench, "-d", "cpu", "9x1x8");
    says(&o, EXIT_INPUT, o.err, "kda_context_params.tuned: line 2: chunk must be");
    says(&o, EXIT_INPUT, o.err, " (in ./kda/tuned)\n");
    o = run(kdainfo, "-d", "cpu");
    says(&o, EXIT_NO_DEVICE, o.out, "kda_context_params.tuned: line 2: chunk must be");
    says(&o, EXIT_NO_DEVICE, o.out, " (in ./kda/tuned)\n");
}
END_TEST

START_TEST(test_misuse)
{
    static const struct {
        const char *arguments[3], *says;
    } rows[] = {{{"decode:1x1x16"}, "a sequence of 64 tokens"},
                {{"63x1x16"}, "a sequence of 64 tokens"},
                {{"64x1x16/recurrent"}, "leave schedule and engine open"},
                {{"64x1x16/fused"}, "leave schedule and engine open"},
                {{"--json", "64x1x16"}, "--tune contradicts"},
                {{"--threads", "1,2", "64x1x16"}, "--tune contradicts"}};
    for (int i = 0; i < COUNT(rows); i++) {
        const char *const *a = rows[i].arguments;
        struct outcome o = run(kdabench, "-d", "cpu", "--tune", a[0], a[1], a[2]);
        says(&o, EXIT_INPUT, o.err, rows[i].says);
    }
    CHECK_FOLDER(NULL);
    char *home = strdup(getenv("HOME"));
    unsetenv("XDG_CONFIG_HOME");
    unsetenv("HOME");
    struct outcome o = run(kdabench, "-d", "cpu", "--tune", "-n", "1", "64x1x16/f32");
    setenv("XDG_CONFIG_HOME", ".", 1);
    setenv("HOME", home, 1);
    free(home);
    says(&o, EXIT_INPUT, o.err, "--tune: rows have no place");
    ck_assert_str_eq(o.out, "");
    write_bytes("kda", "", 0); /* where the folder would be */
    o = run(kdabench, "-d", "cpu", "--tune", "-n", "1", "64x1x16/f32");
    says(&o, EXIT_INPUT, o.err, "kda/tuned");
}
END_TEST

Suite *suite_tune(const char *bench, const char *bench_wrong, const char *info)
{
    Suite *suite = suite_create("tune");
    TCase *tcase = tcase_create("tune");
    kdabench = bench;
    kdabench_wrong = bench_wrong;
    kdainfo = info;
    tcase_add_checked_fixture(tcase, enter, leave);
    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, test_round_trip, 0, COUNT(devices));
    tcase_add_test(tcase, test_again);
    tcase_add_test(tcase, test_wrong_results);
    tcase_add_test(tcase, test_bad_rows);
    tcase_add_test(tcase, test_misuse);
    suite_add_tcase(suite, tcase);
    return suite;
}

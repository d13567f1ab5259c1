/* The folder of built programs, on every OpenCL device: what was built once is read afterwards,
 * whatever else is found there is built again and said so, and neither damage nor other processes
 * nor a folder that can't be had ever fails a plan.
 *
 *     test_cache                  the tests
 *     test_cache child SPEC DIR   one process that makes a plan; started by a test, several at once
 *     test_cache little SPEC DIR  the same with little memory
 *
 * SPDX-License-Identifier: MIT */
#include "files.h"
#include "runner.h"
#include "spec.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct spec_device *device;

/* What the library said while plans were made. */
struct said {
    int built, read, warned;
    char warning[1024]; /* the last one */
};

static void listen(void *data, kda_log_level level, const char *line)
{
    struct said *said = data;
    said->built += !strncmp(line, "clBuildProgram of", 17);
    said->read += !strncmp(line, "program read from", 17);
    if (level <= KDA_LOG_WARN) {
        said->warned++;
        snprintf(said->warning, sizeof said->warning, "%s", line);
    }
}

/* A plan whose answer for one token is checked: k, q = 1, no gate, so out = beta v. */
static kda_status make_plan(kda_context *ctx, int32_t value_dim)
{
    float one = 1, v[2] = {5, 7}, out[2] = {0};
    kda_plan *plan;
    kda_status status = kda_plan_create(
        &plan, ctx,
        kda_problem(.heads = 1, .key_dim = 1, .value_dim = value_dim, .max_tokens = 1, .scale = 1,
                    .gate = KDA_GATE_NONE, .schedule = KDA_SCHEDULE_RECURRENT));
    if (!status)
        status = kda_execute(plan, kda_args(.tokens = 1, .q.host = &one, .k.host = &one,
                                            .v.host = v, .beta.host = &one, .out.host = out));
    kda_plan_destroy(&plan);
    return !status && out[0] != 5 ? KDA_DRIVER : status;
}

/* Makes a plan, then others like it, in a context of their own. */
static struct said use(const char *dir, int plans)
{
    struct said said = {0};
    kda_context *ctx;
    ck_assert_int_eq(
        kda_context_create(&ctx, kda_context_params(.backend = KDA_OPENCL, .device = device->id,
                                                    .log = listen, .log_data = &said,
                                                    .log_level = KDA_LOG_DEBUG, .cache_dir = dir)),
        KDA_OK);
    for (int i = 0; i < plans; i++)
        ck_assert_msg(!make_plan(ctx, 1), "%s", said.warning);
    kda_context_destroy(&ctx);
    return said;
}

/* Entries of the folder whose names begin so; keeps the last one's path. */
static int count(const char *start, char *path, size_t size)
{
    int n = 0;
    DIR *dir = opendir("cache");
    for (const struct dirent *e; dir && (e = readdir(dir));) {
        if (*e->d_name == '.' || strncmp(e->d_name, start, strlen(start)))
            continue;
        n++;
        if (path)
            snprintf(path, size, "cache/%s", e->d_name);
    }
    if (dir)
        closedir(dir);
    return n;
}

static void leave(void)
{
    ck_assert_int_eq(system("rm -rf cache"), 0); /* /bin/rm, of a folder of our own */
    folder_leave();
}

START_TEST(test_read_again)
{
    struct said first = use("cache", 1), second = use("cache", 1);
    ck_assert_int_gt(first.built, 0);
    ck_assert_int_eq(first.warned, 0);
    ck_assert_int_eq(count("", NULL, 0), first.built);
    ck_assert_int_eq(second.built, 0);
    ck_assert_int_eq(second.read, first.built);
    ck_assert_int_eq(second.warned, 0);
}
END_TEST

START_TEST(test_folders_are_made)
{
    ck_assert_int_gt(use("cache/a/b/", 1).built, 0);
    ck_assert_int_eq(use("cache/a/b", 1).built, 0);
}
END_TEST

START_TEST(test_none_by_default)
{
    int built = use(NULL, 1).built;
    ck_assert_int_gt(built, 0);
    ck_assert_int_eq(use(NULL, 1).built, built);
    CHECK_FOLDER(NULL);
}
END_TEST

/* Other types are other options: a program of their own. */
START_TEST(test_another_problem)
{
    struct said said = {0};
    kda_context *ctx;
    int programs = use("cache", 1).built;
    kda_plan *plan;
    kda_context_create(&ctx, kda_context_params(.backend = KDA_OPENCL, .device = device->id,
                                                .log = listen, .log_data = &said,
                                                .log_level = KDA_LOG_DEBUG, .cache_dir = "cache"));
    ck_assert_int_eq(kda_plan_create(&plan, ctx,
                                     kda_problem(.heads = 1, .key_dim = 1, .value_dim = 1,
                                                 .max_tokens = 1, .gate = KDA_GATE_BOUNDED)),
                     KDA_OK);
    kda_plan_destroy(&plan);
    kda_context_destroy(&ctx);
    ck_assert_int_eq(said.built, 1);
    ck_assert_int_eq(count("", NULL, 0), programs + 1);
}
END_TEST

/* ---- Damage ----------------------------------------------------------------------------- */

/* Where the parts of a file are: 8 bytes of magic, three 64-bit numbers, the key, the binary. */
enum { HEAD = 32, SUM_AT = 24 };

static uint64_t sum_of(const char *bytes, size_t size)
{
    uint64_t sum = 0xcbf29ce484222325u; /* FNV-1a */
    for (size_t i = HEAD; i < size; i++)
        sum = (sum ^ (unsigned char)bytes[i]) * 0x100000001b3u;
    return sum;
}

/* Puts other bytes into a program's file. One warning must name it, the program be built and kept
 * again. */
static void expect_rebuilt(const char *path, const void *bytes, size_t size, const char *what)
{
    write_bytes(path, bytes, size);
    struct said said = use("cache", 1), after = use("cache", 1);
    ck_assert_msg(said.built == 1 && said.warned == 1, "%s: %d built, %d warnings: %s", what,
                  said.built, said.warned, said.warning);
    ck_assert_msg(strstr(said.warning, path), "%s: %s", what, said.warning);
    ck_assert_msg(!after.built && !after.warned, "%s: not kept again", what);
}

START_TEST(test_truncated)
{
    char path[512];
    size_t size;
    use("cache", 1);
    count("", path, sizeof path);
    char *bytes = read_bytes(path, &size);
    const size_t lengths[] = {0, 1, 8, HEAD - 1, HEAD, HEAD + 100, size / 2, size - 1};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        expect_rebuilt(path, bytes, lengths[i], "cut short");
    bytes = realloc(bytes, size + 1);
    bytes[size] = 0;
    expect_rebuilt(path, bytes, size + 1, "a byte too many");
    free(bytes);
}
END_TEST

START_TEST(test_bits_flipped)
{
    char path[512];
    size_t size;
    use("cache", 1);
    count("", path, sizeof path);
    char *bytes = read_bytes(path, &size);
    const size_t places[] = {0, 9, 15, 17, 23, SUM_AT, HEAD, HEAD + 7, size / 2, size - 1};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        bytes[places[i]] ^= 0x10;
        expect_rebuilt(path, bytes, size, "a bit flipped");
        bytes[places[i]] ^= 0x10;
    }
    free(bytes);
}
END_TEST

START_TEST(test_foreign)
{
    static const char poem[] = "A file that somebody else put here, longer than any head.\n";
    char path[512];
    size_t size;
    use("cache", 1);
    count("", path, sizeof path);
    expect_rebuilt(path, poem, sizeof poem, "a text");
    char *bytes = read_bytes(path, &size);
    bytes[HEAD]++; /* of the key: the library's version */
    uint64_t sum = sum_of(bytes, size);
    memcpy(bytes + SUM_AT, &sum, sizeof sum);
    expect_rebuilt(path, bytes, size, "another version's");
    free(bytes);
}
END_TEST

/* A file that is sound and yet nothing that the driver can use. Mesa 22.3 would take the process
 * down instead of refusing: what the sum is for. */
START_TEST(test_driver_refuses)
{
    char path[512];
    size_t size;
    uint64_t key_bytes;
    if (strstr(device->platform_name, "rusticl"))
        return;
    use("cache", 1);
    count("", path, sizeof path);
    char *bytes = read_bytes(path, &size);
    memcpy(&key_bytes, bytes + 8, sizeof key_bytes);
    memset(bytes + HEAD + key_bytes, 'x', size - HEAD - key_bytes);
    uint64_t sum = sum_of(bytes, size);
    memcpy(bytes + SUM_AT, &sum, sizeof sum);
    expect_rebuilt(path, bytes, size, "not a binary");
    free(bytes);
}
END_TEST

/* A folder where a file should be can't be replaced: built each time, said each time. */
START_TEST(test_folder_in_the_way)
{
    char path[512];
    use("cache", 1);
    count("", path, sizeof path);
    unlink(path);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    for (int i = 0; i < 2; i++) {
        struct said said = use("cache", 1);
        ck_assert_int_eq(said.built, 1);
        ck_assert_int_eq(said.warned, 2); /* it can't be read, nor written */
    }
    ck_assert_int_eq(count("kda-new-", NULL, 0), 0);
}
END_TEST

/* Said once, however many programs could not be kept. */
START_TEST(test_unwritable)
{
    write_bytes("file", "x", 1);
    struct said said = use("file/cache", 2);
    ck_assert_int_gt(said.built, 0);
    ck_assert_int_eq(said.warned, 1);
    ck_assert_ptr_nonnull(strstr(said.warning, "file/cache"));
    CHECK_FOLDER("file");
}
END_TEST

/* ---- Many files, processes and threads -------------------------------------------------- */

/* 512 files are kept: the oldest goes, and nothing that is not the library's. */
START_TEST(test_bounded)
{
    char path[64];
    struct timespec long_ago[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    mkdir("cache", 0700);
    write_bytes("cache/precious", "x", 1);
    utimensat(AT_FDCWD, "cache/precious", long_ago, 0);
    for (int i = 0; i < 512; i++) {
        snprintf(path, sizeof path, "cache/kda-%d", i);
        write_bytes(path, "x", 1);
        long_ago[1].tv_sec = 2000 + (i + 100) % 512; /* number 412 is the oldest */
        utimensat(AT_FDCWD, path, long_ago, 0);
    }
    int built = use("cache", 1).built;
    ck_assert_int_eq(count("kda-", NULL, 0), 512);
    ck_assert_int_eq(count("precious", NULL, 0), 1);
    for (int i = 411; i < 412 + built + 1; i++) {
        snprintf(path, sizeof path, "cache/kda-%d", i);
        ck_assert_int_eq(!access(path, F_OK), i < 412 || i >= 412 + built);
    }
    ck_assert_int_eq(use("cache", 1).built, 0);
}
END_TEST

/* Leaves the process room to build programs, but for a buffer of 256 MiB. */
static void take_memory(const char *spec)
{
    kda_context_params params = *kda_context_params(.log = spec_log);
    kda_context *ctx;
    long pages = 0;
    if (spec_resolve(spec, &params) || kda_context_create(&ctx, &params))
        return;
    make_plan(ctx, 1);
    FILE *file = fopen("/proc/self/statm", "r");
    if (file && fscanf(file, "%ld", &pages) == 1)
        setrlimit(RLIMIT_AS, &(struct rlimit){(rlim_t)(pages * sysconf(_SC_PAGESIZE)) + (200 << 20),
                                              RLIM_INFINITY});
    if (file)
        fclose(file);
    kda_context_destroy(&ctx);
}

/* Makes a plan in a context of its own, to so many warnings. */
static int child(const char *name, const char *dir, kda_log_fn log, int warnings)
{
    struct said said = {0};
    kda_context_params params = *kda_context_params(.log = log, .log_data = &said,
                                                    .log_level = KDA_LOG_DEBUG, .cache_dir = dir);
    kda_context *ctx;
    if (spec_resolve(name, &params) || kda_context_create(&ctx, &params))
        return EXIT_FAILURE;
    kda_status status = make_plan(ctx, 1);
    kda_context_destroy(&ctx);
    if (said.warned != warnings)
        fprintf(stderr, "%d warnings: %s\n", said.warned, said.warning);
    return status || said.warned != warnings ? EXIT_FAILURE : EXIT_SUCCESS;
}

static char spec[32]; /* of the device */

/* Starts this program as a child that makes a plan. */
static pid_t start_child(char *word)
{
    extern char **environ;
    char self[512], dir[] = "cache";
    pid_t id;
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    ck_assert_int_gt(n, 0);
    self[n] = '\0';
    char *arguments[] = {self, word, spec, dir, NULL};
    ck_assert_int_eq(posix_spawn(&id, self, NULL, NULL, arguments, environ), 0);
    return id;
}

static void end_child(pid_t id)
{
    int status;
    ck_assert_int_eq(waitpid(id, &status, 0), id);
    ck_assert_msg(WIFEXITED(status) && !WEXITSTATUS(status), "a process failed: %d", status);
}

/* After several that stored the same at once. */
static void expect_stored(void)
{
    ck_assert_int_eq(count("kda-new-", NULL, 0), 0);
    struct said said = use("cache", 1);
    ck_assert_int_eq(said.built + said.warned, 0);
}

enum { AT_ONCE = 6 };

START_TEST(test_processes)
{
    char word[] = "child";
    pid_t ids[AT_ONCE];
    for (int i = 0; i < AT_ONCE; i++)
        ids[i] = start_child(word);
    for (int i = 0; i < AT_ONCE; i++)
        end_child(ids[i]);
    expect_stored();
}
END_TEST

/* Nobody stores before all have built. */
static pthread_barrier_t all_built;

static void listen_and_wait(void *data, kda_log_level level, const char *line)
{
    const struct said *said = data;
    const int built = said->built;
    listen(data, level, line);
    if (said->built > built)
        pthread_barrier_wait(&all_built);
}

static void *make_in_thread(void *failed)
{
    return child(spec, "cache", listen_and_wait, 0) ? failed : NULL;
}

/* Each with a context of its own. */
START_TEST(test_threads)
{
    pthread_t threads[AT_ONCE];
    int failed = 0;
    pthread_barrier_init(&all_built, NULL, AT_ONCE);
    for (int i = 0; i < AT_ONCE; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, make_in_thread, &failed), 0);
    for (int i = 0; i < AT_ONCE; i++) {
        void *result;
        pthread_join(threads[i], &result);
        failed += result != NULL;
    }
    pthread_barrier_destroy(&all_built);
    ck_assert_int_eq(failed, 0);
    expect_stored();
}
END_TEST

/* Where there is no memory to keep a program, none is kept, which is said, and the plan is made. */
START_TEST(test_little_memory)
{
    char word[] = "little";
    end_child(start_child(word));
    ck_assert_int_eq(count("kda-", NULL, 0), 0);
}
END_TEST

static int test_device_of(const struct spec_device *d)
{
    device = d;
    snprintf(spec, sizeof spec, "%d:%d", d->platform, d->index);
    Suite *suite = suite_create(d->name);
    TCase *tc = tcase_create("cache");
    tcase_add_checked_fixture(tc, folder_enter, leave);
    tcase_add_test(tc, test_read_again);
    tcase_add_test(tc, test_folders_are_made);
    tcase_add_test(tc, test_none_by_default);
    tcase_add_test(tc, test_another_problem);
    tcase_add_test(tc, test_truncated);
    tcase_add_test(tc, test_bits_flipped);
    tcase_add_test(tc, test_foreign);
    tcase_add_test(tc, test_driver_refuses);
    tcase_add_test(tc, test_folder_in_the_way);
    tcase_add_test(tc, test_unwritable);
    tcase_add_test(tc, test_bounded);
    tcase_add_test(tc, test_processes);
    tcase_add_test(tc, test_threads);
    tcase_add_test(tc, test_little_memory);
    suite_add_tcase(suite, tc);
    return runner_run(srunner_create(suite));
}

int main(int argc, char **argv)
{
    const bool little = argc == 4 && !strcmp(argv[1], "little");
    if (little)
        take_memory(argv[2]);
    if (argc == 4)
        return child(argv[2], argv[3], listen, little);
    struct spec_device *list;
    size_t n = spec_devices(&list);
    int failed = n ? 0 : 1;
    for (size_t i = 0; i < n; i++)
        failed += test_device_of(&list[i]);
    free(list);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* kdarun as its users see it: right answers pass, wrong ones fail, and files hold what they should.
 *
 *     test_kdarun KDARUN GOLDEN_FOLDER        on the device $KDA_TEST_DEVICE, else on the CPU
 *
 * SPDX-License-Identifier: MIT */
#define _XOPEN_SOURCE 700 /* realpath */
#include "compare.h"
#include "files.h"
#include "job.h"
#include "numbers.h"
#include "runner.h"
#include "spec.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static const char *const golden[] = {
    "bounded_bf16_varlen",  "bounded_no_a_log",   "gated_additive",
    "grouped_k32_v48",      "k256_v32",           "linear_attention",
    "log_f32_k60_batch",    "log_f32_t63",        "no_gate_deltanet",
    "ragged_empty",         "same_keys_slow",     "scalar_gate",
    "sigmoid2_f16_grouped", "softplus_bf16_d128", "strong_gates",
};

static struct sample s;

static void leave(void)
{
    sample_free(&s);
    folder_leave();
}

START_TEST(test_golden_passes)
{
    sample_open(&s, golden[_i]);
    sample_write(&s, "in");
    struct outcome o = kdarun("--check", "in");
    CHECK_OUTCOME(&o, 0, "");
    ck_assert_msg(strstr(o.out, "final_state") && !strstr(o.out, "FAIL"), "%s", o.out);
    ck_assert_str_eq(o.err, "");
    CHECK_FOLDER("in");
}
END_TEST

static void multiply(const struct st_tensor *t, void *data, float factor)
{
    for (int64_t i = 0; i < st_elements(t); ++i)
        number_store(data, job_number_type(t), i,
                     factor * (float)number_load(data, job_number_type(t), i));
}

/* Every input matters: each one changed alone makes the answers wrong. */
START_TEST(test_golden_fails_with_a_changed_input)
{
    static const struct {
        const char *name;
        float factor;
    } changes[] = {{"q", -1},      {"k", -1},       {"v", -1},         {"g", 0.5f},
                   {"beta", 0.5f}, {"a_log", 0.5f}, {"dt_bias", 0.5f}, {"initial_state", -1}};
    sample_open(&s, golden[_i]);
    for (size_t c = 0; c < COUNT(changes); ++c) {
        size_t i = 0;
        while (i < s.num_tensors && strcmp(s.tensors[i].name, changes[c].name))
            ++i;
        if (i == s.num_tensors)
            continue;
        multiply(&s.tensors[i], s.data[i], changes[c].factor);
        sample_write(&s, "in");
        multiply(&s.tensors[i], s.data[i], 1 / changes[c].factor);
        struct outcome o = kdarun("--check", "in");
        ck_assert_msg(o.code == EXIT_WRONG, "with %s changed: exit %d\n%s%s", changes[c].name,
                      o.code, o.out, o.err);
        ck_assert_msg(strstr(o.out, "FAIL"), "%s", o.out);
    }
}
END_TEST

/* So does each expected value: one of them, off by a little more than a single error may be. */
START_TEST(test_golden_fails_with_a_changed_answer)
{
    static const char *const names[] = {"o", "final_state"};
    sample_open(&s, golden[_i]);
    kda_dtype dtype = (kda_dtype)job_number_type(sample_tensor(&s, "q"));
    for (int n = 0; n < 2; ++n) {
        float *x = sample_data(&s, names[n]), largest = 0;
        int64_t count = st_elements(sample_tensor(&s, names[n])), at = count * 2 / 3;
        for (int64_t i = 0; i < count; ++i)
            largest = fmaxf(largest, fabsf(x[i]));
        double bound = n ? error_bound_state(dtype, KDA_F32) : error_bound_out(dtype);
        float kept = x[at];
        x[at] += 1.5f * ERROR_SINGLE * (float)bound * largest;
        sample_write(&s, "in");
        x[at] = kept;
        struct outcome o = kdarun("--check", "in");
        CHECK_OUTCOME(&o, EXIT_WRONG, "");
        ck_assert_msg(strstr(o.out, "FAIL"), "%s", o.out);
    }
}
END_TEST

/* rms(error) / rms(reference) of an output against the sample's answer of that name. */
static double out_error(const struct st_file *file, const char *name)
{
    const struct st_tensor *got = result_tensor(file, name), *want = sample_tensor(&s, name);
    ck_assert_int_eq(got->rank, want->rank);
    ck_assert_mem_eq(got->shape, want->shape, (size_t)got->rank * sizeof(got->shape[0]));
    size_t rows = (size_t)got->shape[0];
    return error_measure(got->data, job_number_type(got), want->data, KDA_F32, rows,
                         (size_t)st_elements(got) / rows, 1)
        .rms;
}

START_TEST(test_out_holds_the_answers)
{
    sample_open(&s, golden[_i]);
    sample_write(&s, "in");
    run_silently("in", "out");
    CHECK_FOLDER("in", "out");
    struct st_file *out = open_result("out");
    kda_dtype dtype = (kda_dtype)job_number_type(sample_tensor(&s, "q"));
    ck_assert_uint_eq(out->num_tensors, 2);
    ck_assert_int_eq(result_tensor(out, "o")->dtype, sample_tensor(&s, "q")->dtype);
    ck_assert_int_eq(result_tensor(out, "final_state")->dtype, ST_F32);
    ck_assert(out_error(out, "o") <= error_bound_out(dtype));
    ck_assert(out_error(out, "final_state") <= error_bound_state(dtype, KDA_F32));
    st_close(out);
}
END_TEST

START_TEST(test_out_dtype_shows_f32_arithmetic)
{
    sample_open(&s, "softplus_bf16_d128");
    sample_write(&s, "in");
    struct outcome o = kdarun("--out-dtype", "f32", "in", "out");
    CHECK_OUTCOME(&o, 0, "");
    struct st_file *out = open_result("out");
    ck_assert_int_eq(result_tensor(out, "o")->dtype, ST_F32);
    ck_assert(out_error(out, "o") <= error_bound_out(KDA_F32));
    st_close(out);
}
END_TEST

START_TEST(test_out_may_be_the_input)
{
    sample_open(&s, "log_f32_t63");
    sample_write(&s, "in");
    struct outcome o = kdarun("in", "in");
    CHECK_OUTCOME(&o, 0, "");
    struct st_file *out = open_result("in");
    ck_assert(out_error(out, "o") <= error_bound_out(KDA_F32));
    st_close(out);
    CHECK_FOLDER("in");
}
END_TEST

/* A wrong answer is written all the same: whoever looks for the fault needs it. */
START_TEST(test_out_with_a_failed_check)
{
    sample_open(&s, "log_f32_t63");
    sample_write(&s, "in");
    struct outcome o = kdarun("--check", "--set", "scale=2", "in", "out");
    CHECK_OUTCOME(&o, EXIT_WRONG, "");
    struct st_file *out = open_result("out");
    ck_assert(out_error(out, "o") > 1);
    st_close(out);
}
END_TEST

START_TEST(test_out_replaces_what_a_link_points_to)
{
    struct stat st;
    sample_open(&s, "log_f32_t63");
    sample_write(&s, "in");
    write_bytes("target", "old", 3);
    ck_assert_int_eq(chmod("target", 0640), 0);
    ck_assert_int_eq(symlink("target", "out"), 0);
    run_silently("in", "out");
    st_close(open_result("target"));
    ck_assert_int_eq(lstat("out", &st), 0);
    ck_assert(S_ISLNK(st.st_mode));
    ck_assert_int_eq(stat("target", &st), 0);
    ck_assert_int_eq(st.st_mode & 0777, 0640);
    CHECK_FOLDER("in", "out", "target");
}
END_TEST

/* The disk is full after 4 KiB, so to speak. On the CPU: drivers write files of their own. */
START_TEST(test_out_is_all_or_nothing)
{
    struct rlimit old, limit;
    sample_open(&s, "log_f32_t63");
    sample_write(&s, "in");
    write_bytes("out", "precious", 8);
    getrlimit(RLIMIT_FSIZE, &old);
    limit = old;
    limit.rlim_cur = 4096;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    struct outcome o = run_arguments((const char *const[]){"--device", "cpu", "in", "out", NULL});
    setrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, SIG_DFL);
    CHECK_OUTCOME(&o, EXIT_INPUT, "out: ");
    size_t size;
    char *bytes = read_bytes("out", &size);
    ck_assert_str_eq(bytes, "precious");
    free(bytes);
    CHECK_FOLDER("in", "out");
}
END_TEST

/* A signal ends the process in the middle of the file. */
START_TEST(test_nothing_is_left_of_an_interrupted_file)
{
    static const double data[1000];
    const struct st_tensor list[] = {{"a", ST_F64, 1, {1000}, data}};
    char error[ST_ERROR_SIZE];
    int status;
    write_bytes("out", "precious", 8);
    pid_t child = fork();
    if (child == 0) {
        const struct rlimit limit = {4096, 4096};
        setrlimit(RLIMIT_FSIZE, &limit);
        st_write("out", list, COUNT(list), NULL, 0, error);
        _exit(0);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ);
    size_t size;
    char *bytes = read_bytes("out", &size);
    ck_assert_str_eq(bytes, "precious");
    free(bytes);
    CHECK_FOLDER("out");
}
END_TEST

START_TEST(test_written_tensors_are_aligned)
{
    const double data[2] = {1, 2};
    const struct st_tensor list[] = {{"a", ST_U8, 1, {3}, data},
                                     {"b", ST_F16, 1, {1}, data},
                                     {"c", ST_F32, 1, {1}, data},
                                     {"d", ST_F64, 1, {2}, data}};
    char error[ST_ERROR_SIZE];
    ck_assert_msg(st_write("out", list, COUNT(list), NULL, 0, error), "%s", error);
    struct st_file *out = open_result("out");
    ck_assert_uint_eq(out->num_tensors, COUNT(list));
    for (size_t i = 0; i < COUNT(list); ++i) {
        const struct st_tensor *t = result_tensor(out, list[i].name);
        ck_assert_uint_eq((uintptr_t)t->data % st_dtype_size(t->dtype), 0);
        check_same_bits(t, &list[i]);
    }
    st_close(out);
}
END_TEST

/* The same file with its data moved by some bytes. */
static void shift_data(const char *from, const char *to, size_t by)
{
    size_t size;
    char *bytes = read_bytes(from, &size), *moved = malloc(size + by);
    size_t header = (unsigned char)bytes[0] + 256u * (unsigned char)bytes[1];
    memcpy(moved, bytes, 8 + header);
    memset(moved + 8 + header, ' ', by);
    memcpy(moved + 8 + header + by, bytes + 8 + header, size - 8 - header);
    moved[0] = (char)((header + by) & 255);
    moved[1] = (char)((header + by) >> 8);
    write_bytes(to, moved, size + by);
    free(bytes);
    free(moved);
}

START_TEST(test_unaligned_data)
{
    sample_open(&s, _i ? "sigmoid2_f16_grouped" : "log_f32_t63");
    sample_write(&s, "aligned");
    struct outcome o = kdarun("aligned", "expected");
    CHECK_OUTCOME(&o, 0, "");
    struct st_file *expected = open_result("expected");
    for (size_t by = 1; by < 8; ++by) {
        shift_data("aligned", "in", by);
        run_silently("in", "out");
        struct st_file *out = open_result("out");
        check_same_bits(result_tensor(out, "o"), result_tensor(expected, "o"));
        check_same_bits(result_tensor(out, "final_state"), result_tensor(expected, "final_state"));
        st_close(out);
    }
    st_close(expected);
}
END_TEST

static Suite *suite_files(void)
{
    const int files = (int)COUNT(golden);
    Suite *suite = suite_create("files");
    TCase *check = tcase_create("check"), *out = tcase_create("out");
    tcase_add_checked_fixture(check, folder_enter, leave);
    tcase_add_loop_test(check, test_golden_passes, 0, files);
    tcase_add_loop_test(check, test_golden_fails_with_a_changed_input, 0, files);
    tcase_add_loop_test(check, test_golden_fails_with_a_changed_answer, 0, files);
    tcase_add_checked_fixture(out, folder_enter, leave);
    tcase_add_loop_test(out, test_out_holds_the_answers, 0, files);
    tcase_add_test(out, test_out_dtype_shows_f32_arithmetic);
    tcase_add_test(out, test_out_may_be_the_input);
    tcase_add_test(out, test_out_with_a_failed_check);
    tcase_add_test(out, test_out_replaces_what_a_link_points_to);
    tcase_add_test(out, test_out_is_all_or_nothing);
    tcase_add_test(out, test_nothing_is_left_of_an_interrupted_file);
    tcase_add_test(out, test_written_tensors_are_aligned);
    tcase_add_loop_test(out, test_unaligned_data, 0, 2);
    suite_add_tcase(suite, check);
    suite_add_tcase(suite, out);
    return suite;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: test_kdarun KDARUN GOLDEN_FOLDER\n");
        return EXIT_FAILURE;
    }
    program = realpath(argv[1], NULL);
    golden_folder = realpath(argv[2], NULL);
    test_device = getenv("KDA_TEST_DEVICE") ? getenv("KDA_TEST_DEVICE") : "cpu";
    printf("%s on %s\n", program, test_device);
    SRunner *runner = srunner_create(suite_compare());
    srunner_add_suite(runner, suite_files());
    srunner_add_suite(runner, suite_jobs());
    srunner_add_suite(runner, suite_format());
    srunner_add_suite(runner, suite_input());
    int failed = runner_run(runner);
    free((void *)(uintptr_t)program);
    free((void *)(uintptr_t)golden_folder);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* kdarun against bad jobs: well-formed files that ask for what can't be, wrong usage, absent
 * devices. Every fault ends in exit 2 (3 if it is the device), says which file, tensor and rule,
 * prints no result, and leaves an existing output as it is.
 *
 * SPDX-License-Identifier: MIT */
#include "files.h"
#include "spec.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static struct sample s;

static void enter(void)
{
    folder_enter();
    make_precious();
    sample_open(&s, "grouped_k32_v48");
}

static void leave(void)
{
    sample_free(&s);
    folder_leave();
}

enum { GONE = -1 }; /* in the place of a rank */

static const struct {
    const char *name;
    enum st_dtype dtype;
    int rank;
    int64_t shape[4];
    const char *says;
} tensors[] = {
    {"q", ST_F32, GONE, {0}, "tensor 'q' is missing"},
    {"k", ST_F32, GONE, {0}, "tensor 'k' is missing"},
    {"v", ST_F32, GONE, {0}, "tensor 'v' is missing"},
    {"g", ST_F32, GONE, {0}, "kda_args.g is missing"},
    {"beta", ST_F32, GONE, {0}, "kda_args.beta is missing"},
    {"q", ST_F32, 2, {100, 64}, "tensor 'q': shape [100, 64], wanted [T, H, K]"},
    {"q", ST_F32, 0, {0}, "tensor 'q': shape [], wanted [T, H, K]"},
    {"q", ST_F64, 3, {100, 2, 32}, "tensor 'q': type F64, wanted F16 or BF16 or F32"},
    {"q", ST_F16, 3, {100, 2, 32}, "tensor 'k': type F32, wanted F16"},
    {"q", ST_F32, 3, {100, 0, 32}, "tensor 'k': shape [100, 2, 32], wanted [T, H, K] = [100, 0,"},
    {"q", ST_F32, 3, {0, 3000000000, 32}, "tensor 'q': shape [0, 3000000000, 32] is above 2^31-1"},
    {"k",
     ST_F32,
     3,
     {100, 2, 31},
     "tensor 'k': shape [100, 2, 31], wanted [T, H, K] = [100, 2, 32]"},
    {"k", ST_F32, 3, {99, 2, 32}, "tensor 'k': shape [99, 2, 32], wanted [T, H, K]"},
    {"v",
     ST_F32,
     3,
     {99, 4, 48},
     "tensor 'v': shape [99, 4, 48], wanted [T, HV, V] = [100, any, any]"},
    {"v", ST_F32, 3, {100, 0, 48}, "tensor 'v': shape [100, 0, 48] has no heads"},
    {"v", ST_BF16, 3, {100, 4, 48}, "tensor 'v': type BF16, wanted F32"},
    {"g", ST_F32, 2, {100, 4}, "tensor 'g': shape [100, 4], wanted [T, HV, K] = [100, 4, 32]"},
    {"g", ST_F32, 3, {100, 2, 32}, "tensor 'g': shape [100, 2, 32], wanted [T, HV, K]"},
    {"g", ST_BF16, 3, {100, 4, 32}, "tensor 'g': type BF16, wanted F32"},
    {"beta", ST_F32, 2, {100, 2}, "tensor 'beta': shape [100, 2], wanted [T, HV] = [100, 4]"},
    {"beta", ST_F64, 2, {100, 4}, "tensor 'beta': type F64, wanted F32"},
    {"a_log", ST_F32, 1, {4}, "kda_args.a_log must be absent"},
    {"a_log", ST_F32, 1, {3}, "tensor 'a_log': shape [3], wanted [HV] = [4]"},
    {"a_log", ST_F16, 1, {4}, "tensor 'a_log': type F16, wanted F32"},
    {"dt_bias", ST_F32, 2, {4, 32}, "kda_args.dt_bias must be absent"},
    {"dt_bias", ST_F32, 1, {4}, "tensor 'dt_bias': shape [4], wanted [HV, K] = [4, 32]"},
    {"cu_seqlens", ST_I32, 1, {1}, "tensor 'cu_seqlens': shape [1], wanted [N+1] with N >= 1"},
    {"cu_seqlens", ST_I32, 2, {1, 2}, "tensor 'cu_seqlens': shape [1, 2], wanted [N+1]"},
    {"cu_seqlens", ST_F32, 1, {2}, "tensor 'cu_seqlens': type F32, wanted I32 or I64"},
    {"cu_seqlens", ST_I32, 1, {2}, "cu_seqlens must end at tokens = 100 (ends at 0)"},
    {"cu_seqlens",
     ST_I32,
     1,
     {3},
     "tensor 'initial_state': shape [1, 4, 32, 48], wanted [N, HV, K, V] = [2, 4, 32, 48]"},
    {"initial_state", ST_F32, 4, {1, 4, 48, 32}, "tensor 'initial_state': shape [1, 4, 48, 32]"},
    {"initial_state", ST_I32, 4, {1, 4, 32, 48}, "tensor 'initial_state': type I32, wanted"},
    {"state_index", ST_I32, 1, {2}, "tensor 'state_index': shape [2], wanted [N] = [1]"},
    {"state_index", ST_F32, 1, {1}, "tensor 'state_index': type F32, wanted I32 or I64"},
    {"state_index", ST_I32, 2, {2, 1}, "shape [2, 1], wanted [N, columns] = [1, 1]"},
    {"state_index", ST_I32, 2, {1, 0}, "tensor 'state_index': 0 columns"},
    {"state_index", ST_I32, 2, {1, 17}, "kda_args.index_columns must be in 1..16"},
    {"write_index", ST_I32, 1, {1}, "kda_args.write_index must be absent without state_index"},
    {"write_index", ST_I32, 2, {1, 2}, "tensor 'write_index': shape [1, 2], wanted [N] = [1]"},
    {"accepted", ST_I64, 1, {1}, "kda_args.accepted must be absent without state_index"},
    {"accepted", ST_I32, 1, {2}, "tensor 'accepted': shape [2], wanted [N] = [1]"},
    {"fresh", ST_I32, 1, {1}, "tensor 'fresh': type I32, wanted BOOL or U8"},
    {"fresh", ST_BOOL, 1, {2}, "tensor 'fresh': shape [2], wanted [N] = [1]"},
    {"dfresh", ST_F32, 1, {1}, "unknown tensor 'dfresh'"},
    {"gate", ST_F32, 1, {1}, "unknown tensor 'gate'"},
    {"dcu_seqlens", ST_F32, 1, {1}, "unknown tensor 'dcu_seqlens'"},
    {"o", ST_F32, 3, {100, 4, 47}, "tensor 'o': shape [100, 4, 47], wanted [T, HV, V]"},
    {"o", ST_I32, 3, {100, 4, 48}, "tensor 'o': type I32, wanted"},
    {"final_state",
     ST_F32,
     4,
     {1, 4, 48, 32},
     "tensor 'final_state': shape [1, 4, 48, 32], wanted"},
    {"checkpoints",
     ST_F32,
     4,
     {1, 4, 32, 48},
     "tensor 'checkpoints' without metadata 'checkpoint_every'"},
};

START_TEST(test_tensor)
{
    if (tensors[_i].rank == GONE)
        sample_drop(&s, tensors[_i].name);
    else
        sample_put(&s, tensors[_i].name, tensors[_i].dtype, tensors[_i].rank, tensors[_i].shape);
    sample_write(&s, "in");
    check_refused(EXIT_INPUT, "in: ", tensors[_i].says);
}
END_TEST

static const struct {
    const char *key, *value, *says; /* value NULL: without the key */
} metadata[] = {
    {"gate", NULL, "metadata 'gate' is missing: tensor 'g'"},
    {"gate", "", "metadata 'gate' is missing: tensor 'g'"},
    {"gate", "Log", "metadata 'gate' is 'Log', which is not one of log softplus bounded none"},
    {"gate", "none", "kda_args.g must be absent"},
    {"gate", "softplus", "kda_args.a_log is missing"},
    {"gate_bound", "-5", "metadata 'gate_bound' is for gate bounded, but gate is log"},
    {"beta", "raw", "metadata 'beta' is 'raw', which is not one of given sigmoid sigmoid2"},
    {"norm_qk", "true", "metadata 'norm_qk' is 'true', which is not one of 0 1"},
    {"scale", "0", "metadata 'scale' is '0', which is not a finite number other than 0"},
    {"scale", "-0.0", "metadata 'scale' is"},
    {"scale", "1e-60", "metadata 'scale' is"},
    {"scale", "1e60", "metadata 'scale' is"},
    {"scale", "nan", "metadata 'scale' is"},
    {"scale", "-inf", "metadata 'scale' is"},
    {"scale", "0x10", "metadata 'scale' is"},
    {"scale", " 1", "metadata 'scale' is"},
    {"scale", "1 ", "metadata 'scale' is"},
    {"scale", "1,5", "metadata 'scale' is"},
    {"scale", "e", "metadata 'scale' is"},
    {"rule", "gated", "metadata 'rule' is 'gated', which is not one of delta additive"},
    {"state_layout", "kV", "metadata 'state_layout' is 'kV', which is not one of kv vk"},
    {"state_layout", "vk", "tensor 'initial_state': shape [1, 4, 32, 48], wanted [N, HV, V, K]"},
    {"head_map", "x", "metadata 'head_map' is 'x', which is not one of grouped modulo"},
    {"gate_per_head", "1", "tensor 'g': shape [100, 4, 32], wanted [T, HV] = [100, 4]"},
    {"checkpoint_every", "-1", "metadata 'checkpoint_every' is '-1'"},
    {"checkpoint_every", "1.5", "metadata 'checkpoint_every' is '1.5'"},
    {"checkpoint_every", "99999999999999999999", "metadata 'checkpoint_every' is"},
    {"checkpoint_every", "3000000000", "checkpoint_every must be in 0..2^31-1"},
    {"scales", "1", "unknown metadata key 'scales'"},
    {"scale ", "1", "unknown metadata key 'scale '"},
};

START_TEST(test_metadata)
{
    sample_set(&s, metadata[_i].key, metadata[_i].value);
    sample_write(&s, "in");
    check_refused(EXIT_INPUT, "in: ", metadata[_i].says);
}
END_TEST

START_TEST(test_gate_bound)
{
    const char *const values[] = {"-5x", "nan",    "inf",    "-inf", "0", "-0",
                                  "1",   "-5.001", "-1e-60", "--1",  "-"};
    sample_free(&s);
    sample_open(&s, "bounded_no_a_log");
    sample_set(&s, "gate_bound", values[_i]);
    sample_write(&s, "in");
    check_refused(EXIT_INPUT, "in: ", "metadata 'gate_bound' is '");
}
END_TEST

/* Rules about numbers that only the library sees: its line names the tensor, ours the file. */
START_TEST(test_contents)
{
    const struct {
        const char *name;
        int32_t first[3];
        const char *says;
    } changes[] = {
        {"cu_seqlens", {1, 100}, "cu_seqlens[0] must be 0 (is 1)"},
        {"cu_seqlens", {0, 99}, "cu_seqlens must end at tokens = 100 (ends at 99)"},
        {"cu_seqlens", {0, 101}, "cu_seqlens must end at tokens = 100 (ends at 101)"},
        {"cu_seqlens", {0, -1}, "cu_seqlens must not decrease"},
        {"g", {0x3f800000}, "g must be <= 0"},
        {"g", {0x7fc00000}, "g must be <= 0"},
    };
    memcpy(sample_data(&s, changes[_i].name), changes[_i].first,
           _i < 4 ? 2 * sizeof(int32_t) : sizeof(int32_t));
    sample_set(&s, "checkpoint_every", "7");
    sample_write(&s, "in");
    check_refused(EXIT_INPUT, "in: ", changes[_i].says);
}
END_TEST

START_TEST(test_slots)
{
    const int64_t one = 1;
    int32_t *index = sample_put(&s, "state_index", ST_I32, 1, &one);
    index[0] = 1;
    sample_write(&s, "in");
    check_refused(EXIT_INPUT, "in: ", "state_index[0] = 1 must be below slots");
    sample_drop(&s, "initial_state");
    sample_write(&s, "in");
    check_refused(EXIT_INPUT, "in: ", "tensor 'initial_state' is missing: state_index");
}
END_TEST

START_TEST(test_sizes_the_library_refuses)
{
    sample_put(&s, "v", ST_F32, 3, (const int64_t[]){100, 3, 48});
    sample_put(&s, "g", ST_F32, 3, (const int64_t[]){100, 3, 32});
    sample_put(&s, "beta", ST_F32, 2, (const int64_t[]){100, 3});
    sample_put(&s, "initial_state", ST_F32, 4, (const int64_t[]){1, 3, 32, 48});
    sample_put(&s, "o", ST_F32, 3, (const int64_t[]){100, 3, 48});
    sample_drop(&s, "final_state");
    sample_write(&s, "in");
    check_refused(EXIT_INPUT, "in: ", "value_heads must be a multiple of heads");
    check_refused(EXIT_INPUT, "in: ", "tensor 'v' has HV = 3");
}
END_TEST

START_TEST(test_nothing_to_check)
{
    sample_drop(&s, "o");
    sample_drop(&s, "final_state");
    sample_write(&s, "in");
    check_refused(EXIT_INPUT,
                  "in: ", "nothing to check: no tensor 'o', 'final_state' or 'checkpoints'");
}
END_TEST

START_TEST(test_bad_output)
{
    static const struct {
        const char *path, *says;
    } outputs[] = {{"absent/out", "absent/out: cannot be written: No such file"},
                   {".", ".: exists and is not a regular file"},
                   {"pipe", "pipe: exists and is not a regular file"},
                   {"/proc/out", "/proc/out: cannot be written: "},
                   {"in/out", "in/out: Not a directory"},
                   {"", "an empty name"}};
    sample_write(&s, "in");
    ck_assert_int_eq(mkfifo("pipe", 0600), 0);
    struct outcome o = kdarun("--check", "in", outputs[_i].path);
    CHECK_OUTCOME(&o, EXIT_INPUT, outputs[_i].says);
    ck_assert_str_eq(o.out, ""); /* seen before anything ran */
    ck_assert_int_eq(remove("pipe"), 0);
    check_precious();
}
END_TEST

START_TEST(test_usage)
{
    static const struct {
        const char *arguments[6], *says;
    } lines[] = {
        {{NULL}, "no input file"},
        {{"in"}, "give OUT, or --check"},
        {{"in", "out", "x"}, "more than two files: x"},
        {{"--nothing", "in", "out"}, "unrecognized option"},
        {{"--json", "in", "out"}, "--json needs --check"},
        {{"--schedule", "fast", "in", "out"}, "--schedule must be one of auto recurrent chunkwise"},
        {{"--engine", "fast", "in", "out"}, "--engine must be one of auto clblast fused mma"},
        {{"--out-dtype", "f64", "in", "out"}, "--out-dtype must be one of f32"},
        {{"--set", "gate", "in", "out"}, "--set must be KEY=VALUE, not gate"},
        {{"--set", "gait=log", "in", "out"}, "--set: unknown metadata key 'gait'"},
        {{"--set", "gate=x", "in", "out"}, "metadata 'gate' is 'x'"},
        {{"--device", "", "in", "out"}, "--device: empty"},
        {{"--set"}, "requires an argument"},
    };
    sample_write(&s, "in");
    struct outcome o = run_arguments(lines[_i].arguments);
    CHECK_OUTCOME(&o, EXIT_INPUT, lines[_i].says);
    ck_assert_str_eq(o.out, "");
    check_precious();
}
END_TEST

START_TEST(test_vectors_that_there_are_not)
{
    static const char *const specs[] = {"cpu:64", "cpu:", "CPU:512x"};
    sample_write(&s, "in");
    struct outcome o =
        run_arguments((const char *const[]){"--device", specs[_i], "in", "out", NULL});
    CHECK_OUTCOME(&o, EXIT_INPUT, specs[_i], "none, 128, 256 or 512");
    check_precious();
}
END_TEST

START_TEST(test_device_that_is_not_there)
{
    static const char *const specs[] = {"no such thing", "99:0", "0:99", "99999999999999999999:0"};
    sample_write(&s, "in");
    struct outcome o =
        run_arguments((const char *const[]){"--device", specs[_i], "in", "out", NULL});
    CHECK_OUTCOME(&o, EXIT_NO_DEVICE, specs[_i], "no such device", "cpu   the CPU backend");
    check_precious();
}
END_TEST

static cl_device_id resolve(const char *format, ...)
{
    kda_context_params params = {.struct_size = sizeof(params)};
    char spec[600];
    va_list list;
    va_start(list, format);
    vsnprintf(spec, sizeof(spec), format, list);
    va_end(list);
    ck_assert_msg(!spec_resolve(spec, &params), "%s is refused", spec);
    ck_assert_int_eq(params.backend, KDA_OPENCL);
    return params.device;
}

/* Whatever devices are here are found by all their names, in any case. */
START_TEST(test_devices_by_name)
{
    struct spec_device *list;
    size_t count = spec_devices(&list);
    for (size_t i = 0; i < count; ++i) {
        const struct spec_device *d = &list[i];
        ck_assert_ptr_eq(resolve("%d:%d", d->platform, d->index), d->id);
        char part[8] = "";
        for (size_t c = 0; c < 7 && d->name[c]; ++c)
            part[c] = (char)toupper((unsigned char)d->name[c]);
        size_t first = 0; /* that bears the name: several may */
        while (strncasecmp(list[first].name, part, strlen(part)))
            ++first;
        ck_assert_ptr_eq(resolve("%s", part), list[first].id);
    }
    free(list);
}
END_TEST

START_TEST(test_engine_that_the_device_lacks)
{
    const char *const arguments[] = {"--device", "cpu", "--engine", "mma", "in", "out", NULL};
    sample_write(&s, "in");
    struct outcome o = run_arguments(arguments);
    CHECK_OUTCOME(&o, EXIT_NO_DEVICE, "engine", "in: ", "UNSUPPORTED");
    check_precious();
}
END_TEST

START_TEST(test_help_and_version)
{
    struct outcome o = run_arguments((const char *const[]){"--help", NULL});
    CHECK_OUTCOME(&o, 0, "");
    ck_assert_msg(strstr(o.out, "Usage: kdarun"), "%s", o.out);
    ck_assert_str_eq(o.err, "");
    o = run_arguments((const char *const[]){"--version", NULL});
    CHECK_OUTCOME(&o, 0, "");
    ck_assert_msg(!strncmp(o.out, "kdarun ", 7), "%s", o.out);
}
END_TEST

START_TEST(test_verbose)
{
    sample_write(&s, "in");
    struct outcome o = kdarun("--verbose", "--schedule", "recurrent", "in", "result");
    CHECK_OUTCOME(&o, 0, "schedule=recurrent");
    ck_assert_ptr_null(strstr(strstr(o.err, "schedule=") + 1, "schedule=")); /* once */
    ck_assert_str_eq(o.out, "");
}
END_TEST

/* Without a GPU the CPU backend is the default, with PoCL (if it is there) as without any driver.
 */
START_TEST(test_default_device)
{
    const char *named = getenv("OCL_ICD_VENDORS");
    char *kept = named ? strdup(named) : NULL;
    sample_write(&s, "in");
    setenv("OCL_ICD_VENDORS", _i ? "pocl.icd" : "/nonexistent", 1);
    struct outcome o = run_arguments((const char *const[]){"--verbose", "in", "result", NULL});
    unsetenv("OCL_ICD_VENDORS");
    if (kept)
        setenv("OCL_ICD_VENDORS", kept, 1);
    free(kept);
    CHECK_OUTCOME(&o, 0, "using the CPU backend", "device=cpu threads=");
}
END_TEST

Suite *suite_input(void)
{
    Suite *suite = suite_create("input");
    TCase *tcase = tcase_create("input");
    tcase_add_checked_fixture(tcase, enter, leave);
    tcase_add_loop_test(tcase, test_tensor, 0, COUNT(tensors));
    tcase_add_loop_test(tcase, test_metadata, 0, COUNT(metadata));
    tcase_add_loop_test(tcase, test_gate_bound, 0, 11);
    tcase_add_loop_test(tcase, test_contents, 0, 6);
    tcase_add_test(tcase, test_slots);
    tcase_add_test(tcase, test_sizes_the_library_refuses);
    tcase_add_test(tcase, test_nothing_to_check);
    tcase_add_loop_test(tcase, test_bad_output, 0, 6);
    tcase_add_loop_test(tcase, test_usage, 0, 13);
    tcase_add_loop_test(tcase, test_vectors_that_there_are_not, 0, 3);
    tcase_add_loop_test(tcase, test_device_that_is_not_there, 0, 4);
    tcase_add_test(tcase, test_devices_by_name);
    tcase_add_test(tcase, test_engine_that_the_device_lacks);
    tcase_add_test(tcase, test_help_and_version);
    tcase_add_test(tcase, test_verbose);
    tcase_add_loop_test(tcase, test_default_device, 0, 2);
    suite_add_tcase(suite, tcase);
    return suite;
}

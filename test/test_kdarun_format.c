/* kdarun against files that break the rules of safetensors, by accident or by intent: exit 2, a
 * line that names file, tensor and rule, and never a crash.
 *
 * SPDX-License-Identifier: MIT */
#include "files.h"
#include "spec.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static void enter(void)
{
    folder_enter();
    make_precious();
}

static const struct {
    const char *header;
    size_t data_size;
    const char *says;
} headers[] = {
    {"", 0, "header: length is 0"},
    {"{", 0, "header: not valid JSON"},
    {"{}x", 0, "header: not valid JSON"},
    {"{'q':1}", 0, "header: not valid JSON"},
    {"[1, 2]", 0, "header: does not begin with '{'"},
    {"1", 0, "header: does not begin with '{'"},
    {" {}", 0, "header: does not begin with '{'"},
    {"\xef\xbb\xbf{}", 0, "header: does not begin with '{'"},
    {"{\"q\\u0000x\":1}", 0, "header: zero character"},
    {"{}", 0, "tensor 'q' is missing"},
    {"{}", 4, "4 bytes after the last tensor"},
    {"{\"q\":1}", 0, "tensor 'q': its entry is not a JSON object"},
    {"{\"q\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "tensor 'q': data_offsets is missing"},
    {"{\"q\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "tensor 'q': shape is missing"},
    {"{\"q\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "tensor 'q': dtype is missing"},
    {"{\"q\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
     "tensor 'q': duplicate key 'dtype'"},
    {"{\"q\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4,
     "tensor 'q': unknown key 'x'"},
    {"{\"q\":{\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
     "tensor 'q': unknown dtype 'F33'"},
    {"{\"q\":{\"dtype\":32,\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
     "tensor 'q': dtype is not a string"},
    {"{\"q\":{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]}}", 4,
     "tensor 'q': shape is not an array"},
    {"{\"q\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4,
     "tensor 'q': shape[0]"},
    {"{\"q\":{\"dtype\":\"F32\",\"shape\":[1,0.5],\"data_offsets\":[0,4]}}", 4,
     "tensor 'q': shape[1] is not a whole number"},
    {"{\"q\":{\"dtype\":\"F32\",\"shape\":[1e300],\"data_offsets\":[0,4]}}", 4,
     "tensor 'q': shape[0] is not a whole number"},
    {"{\"q\":{\"dtype\":\"F32\",\"shape\":[\"1\"],\"data_offsets\":[0,4]}}", 4,
     "tensor 'q': shape[0] is not a whole number"},
    {"{\"q\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967297],\"data_offsets\":[0,4]}}", 4,
     "tensor 'q': shape overflows"},
    {"{\"q\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4,
     "tensor 'q': shape has more than 8 dimensions"},
    {"{\"q\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4]}}", 4,
     "tensor 'q': data_offsets is not a pair"},
    {"{\"q\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4,
     "tensor 'q': data_offsets is not a pair"},
    {"{\"q\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4,
     "tensor 'q': data_offsets [4, 0] are reversed"},
    {"{\"q\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 4,
     "tensor 'q': data_offsets [0, 8] reach past the end"},
    {"{\"q\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[9007199254740984,9007199254740988]}"
     "}",
     4, "tensor 'q': data_offsets [9007199254740984, 9007199254740988] reach past the end"},
    {"{\"q\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
     "tensor 'q': data_offsets span 4 bytes, dtype and shape make 2"},
    {"{\"q\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
     "\"k\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[2,6]}}",
     6, "tensor 'k': its data overlaps that of tensor 'q'"},
    {"{\"q\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
     "\"k\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]}}",
     12, "tensor 'k': a hole of 4 bytes before its data"},
    {"{\"q\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8,
     "tensor 'q': a hole of 4 bytes before its data"},
    {"{\"q\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},"
     "\"q\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}",
     0, "duplicate tensor 'q'"},
    {"{\"q\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},"
     "\"\\u0071\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}",
     0, "duplicate tensor 'q'"},
    {"{\"__metadata__\":1}", 0, "__metadata__ is not a JSON object"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "duplicate name '__metadata__'"},
    {"{\"__metadata__\":{\"gate\":1}}", 0, "metadata 'gate': its value is not a string"},
    {"{\"__metadata__\":{\"gate\":\"log\",\"gate\":\"log\"}}", 0, "duplicate metadata key 'gate'"},
    {"{\"__metadata__\":{\"gait\":\"log\"}}", 0, "unknown metadata key 'gait'"},
    {"{\"\\u001b[31m\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0,
     "unknown tensor '?[31m'"},
};

START_TEST(test_header)
{
    write_header("in", headers[_i].header, headers[_i].data_size);
    check_refused(EXIT_INPUT, "in: ", headers[_i].says);
}
END_TEST

/* Nested as deep as a header may be long, in each kind of bracket. */
START_TEST(test_header_nested_deep)
{
    const char *const brackets[] = {"[", "{\"a\":"};
    static const char begin[] = "{\"a\":";
    size_t first = strlen(begin), length = strlen(brackets[_i]), count = 4000000 / length;
    char *header = calloc(first + count * length + 1, 1);
    memcpy(header, begin, first);
    for (size_t i = 0; i < count; ++i)
        memcpy(header + first + i * length, brackets[_i], length);
    write_header("in", header, 0);
    free(header);
    check_refused(EXIT_INPUT, "in: ", "nested too deep");
}
END_TEST

/* Wherever a file is cut off. */
START_TEST(test_truncated)
{
    struct sample s;
    size_t size;
    sample_open(&s, "grouped_k32_v48");
    sample_write(&s, "in");
    sample_free(&s);
    char *bytes = read_bytes("in", &size);
    const size_t sizes[] = {0, 1, 7, 8, 9, 500, 5000, size - 1};
    for (size_t i = 0; i < COUNT(sizes); ++i) {
        write_bytes("in", bytes, sizes[i]);
        check_refused(EXIT_INPUT, "in: ", "");
    }
    free(bytes);
}
END_TEST

START_TEST(test_header_length)
{
    const struct {
        unsigned char bytes[10];
        const char *says;
    } files[] = {
        {{0, 0, 0, 0, 0, 0, 0, 0, '{', '}'}, "header: length is 0"},
        {{3, 0, 0, 0, 0, 0, 0, 0, '{', '}'}, "header: length is 3 but only 2 bytes follow"},
        {{255, 255, 255, 255, 255, 255, 255, 255, '{', '}'}, "length is 18446744073709551615"},
        {{0, 0, 0, 0, 0, 0, 0, 128, '{', '}'}, "length is 9223372036854775808"},
        {{2, 0, 0, 0, 0, 0, 0, 0, '{', 0}, "header: zero character"},
    };
    write_bytes("in", files[_i].bytes, sizeof(files[_i].bytes));
    check_refused(EXIT_INPUT, "in: ", files[_i].says);
}
END_TEST

START_TEST(test_header_of_zeros)
{
    char *bytes = calloc(1 << 23, 1);
    bytes[2] = 0x50; /* 5 MiB */
    write_bytes("in", bytes, 1 << 23);
    free(bytes);
    check_refused(EXIT_INPUT, "in: ", "header: length is 5242880, more than");
}
END_TEST

START_TEST(test_not_a_file)
{
    struct outcome o = kdarun("--check", "absent");
    CHECK_OUTCOME(&o, EXIT_INPUT, "absent: No such file");
    o = kdarun("--check", ".");
    CHECK_OUTCOME(&o, EXIT_INPUT, ".: not a regular file");
    ck_assert_int_eq(mkfifo("in", 0600), 0);
    check_refused(EXIT_INPUT, "in: ", "not a regular file");
}
END_TEST

Suite *suite_format(void)
{
    Suite *suite = suite_create("format");
    TCase *tcase = tcase_create("format");
    tcase_add_checked_fixture(tcase, enter, folder_leave);
    tcase_add_loop_test(tcase, test_header, 0, COUNT(headers));
    tcase_add_loop_test(tcase, test_header_nested_deep, 0, 2);
    tcase_add_test(tcase, test_truncated);
    tcase_add_loop_test(tcase, test_header_length, 0, 5);
    tcase_add_test(tcase, test_header_of_zeros);
    tcase_add_test(tcase, test_not_a_file);
    suite_add_tcase(suite, tcase);
    return suite;
}

/* kdarun's less common jobs, each held to plain ones: the same numbers described in another way
 * must give the same bits.
 *
 * SPDX-License-Identifier: MIT */
#include "files.h"
#include "job.h"
#include "numbers.h"
#include "spec.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>

static struct sample s;

static void leave(void)
{
    sample_free(&s);
    folder_leave();
}

/* Runs the sample; to close. */
static struct st_file *run_sample(const char *to)
{
    sample_write(&s, "in");
    run_silently("in", to);
    return open_result(to);
}

static void check_same_results(const struct st_file *a, const struct st_file *b)
{
    check_same_bits(result_tensor(a, "o"), result_tensor(b, "o"));
    check_same_bits(result_tensor(a, "final_state"), result_tensor(b, "final_state"));
}

START_TEST(test_set_stands_before_the_file)
{
    sample_open(&s, "grouped_k32_v48");
    sample_set(&s, "gate", NULL);
    sample_write(&s, "in");
    struct outcome o = kdarun("--check", "--set", "gate=log", "in");
    CHECK_OUTCOME(&o, 0, "");
    o = kdarun("--check", "--set", "gate=log", "--set", "scale=2", "in");
    CHECK_OUTCOME(&o, EXIT_WRONG, "");
    o = kdarun("--check", "--set", "gate=log", "--set", "scale=2", "--set", "scale=", "in");
    CHECK_OUTCOME(&o, 0, "");
    CHECK_FOLDER("in");
}
END_TEST

/* Every key is heard: set to something else, the answers are wrong. */
START_TEST(test_set_each_key)
{
    static const struct {
        const char *golden, *set;
    } changes[] = {
        {"softplus_bf16_d128", "gate=bounded"},     {"bounded_no_a_log", "gate_bound=-1.5"},
        {"grouped_k32_v48", "beta=sigmoid"},        {"sigmoid2_f16_grouped", "beta=sigmoid"},
        {"softplus_bf16_d128", "norm_qk=0"},        {"grouped_k32_v48", "scale=2"},
        {"grouped_k32_v48", "rule=additive"},       {"grouped_k32_v48", "head_map=modulo"},
        {"bounded_bf16_varlen", "state_layout=kv"},
    };
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); ++i) {
        sample_open(&s, changes[i].golden);
        sample_write(&s, "in");
        sample_free(&s);
        struct outcome o = kdarun("--check", "--set", changes[i].set, "in");
        ck_assert_msg(o.code == EXIT_WRONG, "%s: exit %d\n%s%s", changes[i].set, o.code, o.out,
                      o.err);
    }
}
END_TEST

/* scale: the default spelt out; gate_bound: as the file has it, and another. */
START_TEST(test_numbers_in_metadata)
{
    sample_open(&s, "bounded_no_a_log");
    sample_write(&s, "in");
    struct outcome o = kdarun("--check", "--set", "scale=0.17677669529663687", "in");
    CHECK_OUTCOME(&o, 0, "");
    o = kdarun("--check", "--set", "gate_bound=-5e0", "in");
    CHECK_OUTCOME(&o, 0, "");
    o = kdarun("--check", "--set", "gate_bound=", "in");
    CHECK_OUTCOME(&o, 0, "");
}
END_TEST

static void set_indices(const char *name, enum st_dtype dtype, const int *values, int count)
{
    int64_t shape = count;
    char *data = sample_put(&s, name, dtype, 1, &shape);
    for (int i = 0; i < count; ++i) {
        int32_t narrow = values[i];
        int64_t wide = values[i];
        memcpy(data + i * (int)st_dtype_size(dtype),
               dtype == ST_I64 ? (const void *)&wide : (const void *)&narrow, st_dtype_size(dtype));
    }
}

START_TEST(test_offsets_of_either_type_or_none)
{
    const int offsets[] = {0, 63};
    sample_open(&s, "log_f32_t63");
    struct st_file *expected = run_sample("expected");
    set_indices("cu_seqlens", ST_I64, offsets, 2);
    struct st_file *out = run_sample("out");
    check_same_results(out, expected);
    st_close(out);
    sample_drop(&s, "cu_seqlens");
    out = run_sample("out");
    check_same_results(out, expected);
    st_close(out);
    st_close(expected);
}
END_TEST

/* Bytes of one row of the outermost dimension. */
static size_t row_bytes(const struct st_tensor *t)
{
    return st_bytes(t) / (size_t)t->shape[0];
}

static const char *row(const struct st_tensor *t, int64_t i)
{
    return (const char *)t->data + (size_t)i * row_bytes(t);
}

enum { SLOTS = 7, SEQUENCES = 5, FRESH = 2 };
static const int slot_of[SEQUENCES] = {3, -1, 0, 6, 2};

/* The sample's states, moved into a pool whose other slots hold 7s. */
static void make_pool(enum st_dtype index_type)
{
    struct st_tensor old = *sample_tensor(&s, "initial_state");
    size_t bytes = row_bytes(&old);
    char *states = malloc(st_bytes(&old));
    memcpy(states, old.data, st_bytes(&old));
    old.shape[0] = SLOTS;
    float *pool = sample_put(&s, "initial_state", ST_F32, old.rank, old.shape);
    for (size_t i = 0; i < SLOTS * bytes / sizeof(float); ++i)
        pool[i] = 7;
    for (int n = 0; n < SEQUENCES; ++n)
        if (slot_of[n] >= 0)
            memcpy((char *)pool + (size_t)slot_of[n] * bytes, states + (size_t)n * bytes, bytes);
    free(states);
    set_indices("state_index", index_type, slot_of, SEQUENCES);
}

static void check_pool_states(const struct st_tensor *pool, const struct st_tensor *states)
{
    bool used[SLOTS] = {false};
    for (int n = 0; n < SEQUENCES; ++n) {
        if (slot_of[n] < 0)
            continue;
        used[slot_of[n]] = true;
        ck_assert_mem_eq(row(pool, slot_of[n]), row(states, n), row_bytes(pool));
    }
    for (int i = 0; i < SLOTS; ++i)
        for (size_t e = 0; !used[i] && e < row_bytes(pool) / sizeof(float); ++e)
            ck_assert(((const float *)(const void *)row(pool, i))[e] == 7);
}

static void check_pool_rows(const struct st_tensor *got, const struct st_tensor *expected,
                            const int32_t *offsets)
{
    for (int n = 0; n < SEQUENCES; ++n) {
        for (int64_t t = offsets[n]; t < offsets[n + 1]; ++t) {
            if (slot_of[n] >= 0)
                ck_assert_mem_eq(row(got, t), row(expected, t), row_bytes(got));
            for (size_t e = 0; slot_of[n] < 0 && e < row_bytes(got); ++e)
                ck_assert(row(got, t)[e] == 0);
        }
    }
}

START_TEST(test_pool_of_states)
{
    sample_open(&s, "ragged_empty");
    struct st_file *expected = run_sample("expected");
    make_pool(_i ? ST_I64 : ST_I32);
    struct st_file *out = run_sample("out");
    ck_assert_int_eq(result_tensor(out, "final_state")->shape[0], SLOTS);
    check_pool_states(result_tensor(out, "final_state"), result_tensor(expected, "final_state"));
    check_pool_rows(result_tensor(out, "o"), result_tensor(expected, "o"),
                    sample_data(&s, "cu_seqlens"));
    st_close(out);
    st_close(expected);
}
END_TEST

/* Two columns a sequence. */
static void set_table(const char *name, const int *values)
{
    const int64_t shape[] = {SEQUENCES, 2};
    int32_t *data = sample_put(&s, name, ST_I32, 2, shape);
    for (int i = 0; i < 2 * SEQUENCES; ++i)
        data[i] = values[i];
}

/* The tables of two columns: each sequence resumes from the second; its last states go to slots 2n
 * and 2n + 1 of a pool of 17, slots 10 and up are read. */
static void make_tables(const int32_t *offsets)
{
    struct st_tensor old = *sample_tensor(&s, "initial_state");
    const size_t bytes = row_bytes(&old);
    const int accepted[SEQUENCES] = {2, 2, 2, 2, 2};
    int index[2 * SEQUENCES], write[2 * SEQUENCES];
    char *states = malloc(st_bytes(&old));
    memcpy(states, old.data, st_bytes(&old));
    old.shape[0] = 17;
    char *pool = sample_put(&s, "initial_state", ST_F32, old.rank, old.shape);
    memset(pool, 0xff, 17 * bytes); /* NaN */
    for (int n = 0; n < SEQUENCES; ++n) {
        index[2 * n] = -1;
        index[2 * n + 1] = 10 + n;
        write[2 * n] = offsets[n + 1] - offsets[n] > 1 ? -1 : 2 * n + 1;
        write[2 * n + 1] = offsets[n + 1] - offsets[n] > 1 ? 2 * n + 1 : 2 * n;
        if (n != FRESH)
            memcpy(pool + (size_t)(10 + n) * bytes, states + (size_t)n * bytes, bytes);
    }
    free(states);
    set_indices("accepted", ST_I32, accepted, SEQUENCES);
    set_table("state_index", index);
    set_table("write_index", write);
    const int64_t shape = SEQUENCES;
    char *fresh = sample_put(&s, "fresh", ST_BOOL, 1, &shape);
    memset(fresh, 0, SEQUENCES);
    fresh[FRESH] = 1;
}

/* The state that a fresh sequence has, spelt out, then what tables and flags make of the same. */
START_TEST(test_tables_of_slots)
{
    sample_open(&s, "ragged_empty");
    const struct st_tensor *state = sample_tensor(&s, "initial_state");
    memset((char *)(uintptr_t)row(state, FRESH), 0, row_bytes(state));
    sample_write(&s, "in");
    struct outcome o = kdarun("--schedule", "recurrent", "in", "expected");
    CHECK_OUTCOME(&o, 0, "");
    struct st_file *expected = open_result("expected");
    make_tables(sample_data(&s, "cu_seqlens"));
    struct st_file *out = run_sample("out");
    const struct st_tensor *pool = result_tensor(out, "final_state");
    for (int n = 0; n < SEQUENCES; ++n)
        ck_assert_mem_eq(row(pool, 2 * n + 1), row(result_tensor(expected, "final_state"), n),
                         row_bytes(pool));
    const struct st_tensor *got = result_tensor(out, "o");
    ck_assert_mem_eq(got->data, result_tensor(expected, "o")->data, st_bytes(got));
    st_close(out);
    st_close(expected);
}
END_TEST

/* Only the first tokens of sequence n, which starts at a token; the answers are dropped. */
static void cut(int64_t start, int64_t length)
{
    static const char *const tokens[] = {"q", "k", "v", "g", "beta"};
    for (size_t i = 0; i < sizeof(tokens) / sizeof(tokens[0]); ++i) {
        struct st_tensor t = *sample_tensor(&s, tokens[i]);
        size_t bytes = row_bytes(&t);
        char *kept = malloc((size_t)length * bytes);
        memcpy(kept, row(&t, start), (size_t)length * bytes);
        t.shape[0] = length;
        memcpy(sample_put(&s, tokens[i], t.dtype, t.rank, t.shape), kept, (size_t)length * bytes);
        free(kept);
    }
    sample_drop(&s, "cu_seqlens");
    sample_drop(&s, "o");
    sample_drop(&s, "final_state");
}

enum { EVERY = 16 };
/* 0, 0, 2, 0 and 3 checkpoints, which the library numbers 1, 2 and 4, 5, 6. */
static const int offsets_of[] = {0, 15, 30, 77, 77, 140};

/* Checkpoint j of a sequence is the final state of its first tokens. */
START_TEST(test_checkpoints)
{
    int64_t count = 0;
    sample_open(&s, "log_f32_k60_batch");
    set_indices("cu_seqlens", ST_I32, offsets_of, 6);
    sample_drop(&s, "final_state");
    sample_set(&s, "checkpoint_every", "16");
    struct st_file *out = run_sample("out");
    const struct st_tensor *checkpoints = result_tensor(out, "checkpoints");
    ck_assert_int_eq(checkpoints->shape[0], 5);
    sample_free(&s);
    for (int n = 0; n < 5; ++n) {
        int length = offsets_of[n + 1] - offsets_of[n];
        for (int j = 1; j <= length / EVERY; ++j) {
            sample_open(&s, "log_f32_k60_batch");
            cut(offsets_of[n], j * EVERY);
            struct st_file *part = run_sample("part");
            const struct st_tensor *state = result_tensor(part, "final_state");
            ck_assert_mem_eq(row(checkpoints, count), state->data, st_bytes(state));
            st_close(part);
            sample_free(&s);
            ++count;
        }
    }
    ck_assert_int_eq(count, 5);
    st_close(out);
}
END_TEST

START_TEST(test_checkpoints_are_checked)
{
    sample_open(&s, "log_f32_k60_batch");
    sample_set(&s, "checkpoint_every", "16");
    struct st_file *out = run_sample("out");
    const struct st_tensor *t = result_tensor(out, "checkpoints");
    float *expected = sample_put(&s, "checkpoints", ST_F32, t->rank, t->shape);
    memcpy(expected, t->data, st_bytes(t));
    st_close(out);
    sample_write(&s, "in");
    struct outcome o = kdarun("--check", "in");
    CHECK_OUTCOME(&o, 0, "");
    ck_assert_msg(strstr(o.out, "checkpoints"), "%s", o.out);
    expected[st_elements(sample_tensor(&s, "checkpoints")) - 1] += 1;
    sample_write(&s, "in");
    o = kdarun("--check", "in");
    CHECK_OUTCOME(&o, EXIT_WRONG, "");
    o = kdarun("--check", "--set", "checkpoint_every=", "in");
    CHECK_OUTCOME(&o, EXIT_INPUT, "in: tensor 'checkpoints' without metadata 'checkpoint_every'");
    o = kdarun("--check", "--set", "checkpoint_every=20", "in");
    CHECK_OUTCOME(&o, EXIT_INPUT,
                  "in: tensor 'checkpoints': shape [8, 3, 60, 60], wanted "
                  "[checkpoints, HV, K, V] = [6, 3, 60, 60]");
}
END_TEST

START_TEST(test_checkpoints_longer_than_the_sequences)
{
    sample_open(&s, "log_f32_t63");
    sample_set(&s, "checkpoint_every", "64");
    struct st_file *out = run_sample("out");
    ck_assert_int_eq(result_tensor(out, "checkpoints")->shape[0], 0);
    st_close(out);
}
END_TEST

/* 16-bit states compute as f32 ones do and are rounded at the end; OUT has them as F32. */
START_TEST(test_states_of_16_bits)
{
    const enum st_dtype dtype = _i ? ST_BF16 : ST_F16;
    const int type = _i ? KDA_BF16 : KDA_F16;
    sample_open(&s, "log_f32_t63");
    float *wide = sample_data(&s, "initial_state");
    struct st_tensor t = *sample_tensor(&s, "initial_state");
    uint16_t *narrow = malloc((size_t)st_elements(&t) * sizeof(*narrow));
    for (int64_t i = 0; i < st_elements(&t); ++i) {
        number_store(narrow, type, i, wide[i]);
        wide[i] = (float)number_load(narrow, type, i);
    }
    struct st_file *expected = run_sample("expected");
    memcpy(sample_put(&s, "initial_state", dtype, t.rank, t.shape), narrow,
           (size_t)st_elements(&t) * sizeof(*narrow));
    struct st_file *out = run_sample("out");
    check_same_bits(result_tensor(out, "o"), result_tensor(expected, "o"));
    const struct st_tensor *state = result_tensor(out, "final_state");
    const struct st_tensor *exact = result_tensor(expected, "final_state");
    ck_assert_int_eq(state->dtype, ST_F32);
    for (int64_t i = 0; i < st_elements(&t); ++i) {
        number_store(narrow, type, 0, (float)number_load(exact->data, KDA_F32, i));
        ck_assert(number_load(state->data, KDA_F32, i) == number_load(narrow, type, 0));
    }
    free(narrow);
    st_close(out);
    st_close(expected);
}
END_TEST

START_TEST(test_no_tokens)
{
    sample_open(&s, "log_f32_t63");
    cut(0, 0);
    struct st_file *out = run_sample("out");
    ck_assert_int_eq(result_tensor(out, "o")->shape[0], 0);
    check_same_bits(result_tensor(out, "final_state"), sample_tensor(&s, "initial_state"));
    st_close(out);
}
END_TEST

/* Answers may be stored in any type of float, and one of the two is enough. */
START_TEST(test_answers_in_f64)
{
    sample_open(&s, "log_f32_t63");
    struct st_tensor t = *sample_tensor(&s, "o");
    float *old = malloc(st_bytes(&t));
    memcpy(old, t.data, st_bytes(&t));
    double *wide = sample_put(&s, "o", ST_F64, t.rank, t.shape);
    for (int64_t i = 0; i < st_elements(&t); ++i)
        wide[i] = old[i];
    free(old);
    sample_drop(&s, "final_state");
    sample_write(&s, "in");
    struct outcome o = kdarun("--check", "in");
    CHECK_OUTCOME(&o, 0, "");
    ck_assert_msg(!strstr(o.out, "final_state"), "%s", o.out);
    wide[5] += 1;
    sample_write(&s, "in");
    o = kdarun("--check", "in");
    CHECK_OUTCOME(&o, EXIT_WRONG, "");
}
END_TEST

START_TEST(test_answer_that_is_not_finite)
{
    sample_open(&s, "log_f32_t63");
    ((float *)sample_data(&s, "o"))[77] = NAN;
    sample_write(&s, "in");
    struct outcome o = kdarun("--check", "in");
    CHECK_OUTCOME(&o, EXIT_WRONG, "");
    ck_assert_msg(strstr(o.out, "1 not finite"), "%s", o.out);
}
END_TEST

static double number_of(const cJSON *object, const char *key)
{
    const cJSON *json = cJSON_GetObjectItemCaseSensitive(object, key);
    ck_assert_msg(cJSON_IsNumber(json), "no number '%s'", key);
    return json->valuedouble;
}

static void check_json(const char *text, bool pass)
{
    cJSON *root = cJSON_Parse(text);
    ck_assert_msg(root, "not JSON: %s", text);
    const cJSON *tensors = cJSON_GetObjectItemCaseSensitive(root, "tensors");
    ck_assert_int_eq(cJSON_GetArraySize(tensors), 2);
    ck_assert_int_eq(cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(root, "pass")), pass);
    const cJSON *o = cJSON_GetArrayItem(tensors, 0);
    ck_assert_str_eq(cJSON_GetObjectItemCaseSensitive(o, "name")->valuestring, "o");
    ck_assert_int_eq(number_of(o, "rms") <= number_of(o, "bound"), pass);
    ck_assert(number_of(o, "window") >= number_of(o, "rms"));
    ck_assert(number_of(o, "max") > 0);
    cJSON_Delete(root);
}

START_TEST(test_json)
{
    sample_open(&s, "log_f32_t63");
    sample_write(&s, "in");
    struct outcome o = kdarun("--check", "--json", "in");
    CHECK_OUTCOME(&o, 0, "");
    check_json(o.out, true);
    o = kdarun("--check", "--json", "--set", "scale=3", "in");
    CHECK_OUTCOME(&o, EXIT_WRONG, "");
    check_json(o.out, false);
}
END_TEST

Suite *suite_jobs(void)
{
    Suite *suite = suite_create("jobs");
    TCase *tcase = tcase_create("jobs");
    tcase_add_checked_fixture(tcase, folder_enter, leave);
    tcase_add_test(tcase, test_set_stands_before_the_file);
    tcase_add_test(tcase, test_set_each_key);
    tcase_add_test(tcase, test_numbers_in_metadata);
    tcase_add_test(tcase, test_offsets_of_either_type_or_none);
    tcase_add_loop_test(tcase, test_pool_of_states, 0, 2);
    tcase_add_test(tcase, test_tables_of_slots);
    tcase_add_test(tcase, test_checkpoints);
    tcase_add_test(tcase, test_checkpoints_are_checked);
    tcase_add_test(tcase, test_checkpoints_longer_than_the_sequences);
    tcase_add_loop_test(tcase, test_states_of_16_bits, 0, 2);
    tcase_add_test(tcase, test_no_tokens);
    tcase_add_test(tcase, test_answers_in_f64);
    tcase_add_test(tcase, test_answer_that_is_not_finite);
    tcase_add_test(tcase, test_json);
    suite_add_tcase(suite, tcase);
    return suite;
}

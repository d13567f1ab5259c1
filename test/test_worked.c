/* Worked examples of the mathematics: small calls whose answers follow from the formulas by hand,
 * or from another way of writing them, in f64.
 *
 * SPDX-License-Identifier: MIT */
#include "harness.h"

#include <math.h>
#include <string.h>

/* A few roundings of f32. */
static const double ulps = 5e-7;

/* Makes queries of the keys. */
static void ask_for_keys(struct call *call)
{
    for (int64_t i = 0; i < tensor_elements(&call->tensor[K]); i++)
        tensor_set(&call->tensor[Q], i, tensor_get(&call->tensor[K], i));
}

START_TEST(test_write_is_read_back)
{
    struct call *c = make("K=16 V=5 lengths=9 scale=1 beta=1 g=decay state=normal v=1,2,3,4,5");
    ask_for_keys(c);
    run_plan(plan_for(c), c);
    for (int64_t i = 0; i < tensor_elements(&c->tensor[OUT]); i++)
        check_near(c, OUT, i, tensor_get(&c->tensor[V], i), 2e-6);
}
END_TEST

/* b v plus (1 - b) of the decayed prediction: 0.25 * 8 + 0.75 * 0.5 * 4. */
START_TEST(test_write_of_part_strength_mixes)
{
    gives("K=2 scale=1 q=1,0 k=1,0 beta=0.25 v=8 g=-0.6931471805599453 state=4,6", "3.5", "3.5,3",
          ulps);
}
END_TEST

START_TEST(test_write_leaves_orthogonal_query_alone)
{
    gives("K=3 scale=1 q=0,1,0 k=1,0,0 beta=1 v=100 g=0 state=1,2,3", "2", "100,2,3", 0);
}
END_TEST

START_TEST(test_decay_is_per_channel)
{
    gives("H=2 K=2 V=2 scale=1 q=1,0,0,1 beta=0 g=0,-1.3862943611198906 state=1,0,0,1",
          "1,0,0,0.25", "1,0,0,0.25", ulps);
}
END_TEST

START_TEST(test_decay_comes_before_write)
{
    struct call *c = make("K=2 V=2 scale=1 k=0.7071067811865476 q=1,0 beta=1 v=0 "
                          "g=0,-0.6931471805599453 state=1,0,0,1");
    run_plan(plan_for(c), c);
    check_numbers(c, FINAL_STATE, "0.5,-0.25,-0.5,0.25", ulps);
    check_numbers(c, OUT, "0.5,-0.25", ulps);
}
END_TEST

/* Results of two calls that compute the same by different words. */
static void check_alike(const struct call *a, const struct call *b)
{
    for (int id = 0; id < TENSORS; id++)
        for (int64_t i = 0; call_writes(id) && i < tensor_elements(&a->tensor[id]); i++) {
            double x = tensor_get(&a->tensor[id], i), y = tensor_get(&b->tensor[id], i);
            if (!(fabs(x - y) <= 1e-5))
                fail_call(a, "%s: element %lld is %g, but %g in\n    call: %s", a->tensor[id].name,
                          (long long)i, x, y, b->text);
        }
}

START_TEST(test_equal_decays_are_the_gate_per_head)
{
    const char *both = "H=2 K=24 V=8 lengths=20 state=normal g=-0.1,-0.7";
    struct call *per_head = run("%s per_head=1", both), *per_channel = make("%s", both);
    for (int64_t i = 0; i < tensor_elements(&per_channel->tensor[G]); i++)
        tensor_set(&per_channel->tensor[G], i, tensor_get(&per_head->tensor[G], i / 24));
    run_plan(plan_for(per_channel), per_channel);
    check_alike(per_head, per_channel);
}
END_TEST

START_TEST(test_decays_of_one_are_delta_net)
{
    const char *both = "H=2 K=24 V=8 lengths=20 state=normal";
    check_alike(run("%s g=0", both), run("%s gate=none", both));
}
END_TEST

/* o_t = sum over i <= t of (k_i . q_t) v_i */
START_TEST(test_additive_without_gate_is_linear_attention)
{
    struct call *c = run("K=24 V=8 lengths=20 scale=1 rule=additive gate=none");
    const struct tensor *q = &c->tensor[Q], *k = &c->tensor[K], *v = &c->tensor[V];
    for (int64_t t = 0; t < 20; t++) {
        double o[8] = {0};
        for (int64_t i = 0; i <= t; i++) {
            double dot = 0;
            for (int64_t j = 0; j < 24; j++)
                dot += tensor_get(k, i * 24 + j) * tensor_get(q, t * 24 + j);
            for (int64_t j = 0; j < 8; j++)
                o[j] += dot * tensor_get(v, i * 8 + j);
        }
        for (int64_t j = 0; j < 8; j++)
            ck_assert_double_eq_tol(tensor_get(&c->tensor[OUT], t * 8 + j), o[j], 1e-5);
    }
}
END_TEST

START_TEST(test_same_write_twice_doubles_if_additive)
{
    gives("K=2 V=2 lengths=2 scale=1 gate=none rule=additive q=1,0 k=1,0 v=3,4", "3,4,6,8",
          "6,8,0,0", 0);
}
END_TEST

START_TEST(test_same_write_twice_changes_nothing_with_delta)
{
    gives("K=2 V=2 lengths=2 scale=1 gate=none q=1,0 k=1,0 v=3,4 beta=1", "3,4,3,4", "3,4,0,0", 0);
}
END_TEST

/* Four tokens solved as a triangular system, K = 6, V = 3. */
enum { N = 4, KEYS = 6, VALUES = 3 };

static double entry(const struct call *c, int id, int64_t row, int64_t i)
{
    return tensor_get(&c->tensor[id], row * c->tensor[id].width + i);
}

/* Decay of channel c over tokens from..to, both counted. */
static double decay_over(const struct call *c, int64_t from, int64_t to, int64_t channel)
{
    double g = 0;
    for (int64_t t = from; t <= to; t++)
        g += entry(c, G, t, channel);
    return exp(g);
}

/* x_i . D(j+1..i) k_j, x being q or k. */
static double decayed_dot(const struct call *c, int x, int64_t i, int64_t j)
{
    double sum = 0;
    for (int64_t n = 0; n < KEYS; n++)
        sum += entry(c, x, i, n) * decay_over(c, j + 1, i, n) * entry(c, K, j, n);
    return sum;
}

/* x_i against the decayed entry state, column v. */
static double entry_read(const struct call *c, int x, int64_t i, int64_t v)
{
    double sum = 0;
    for (int64_t n = 0; n < KEYS; n++)
        sum += entry(c, x, i, n) * decay_over(c, 0, i, n) *
               tensor_get(&c->tensor[INITIAL_STATE], n * VALUES + v);
    return sum;
}

START_TEST(test_four_tokens_are_a_triangular_system)
{
    struct call *c = run("K=6 V=3 lengths=4 scale=0.5 state=normal g=decay");
    for (int64_t v = 0; v < VALUES; v++) {
        double e[N], o[N];
        for (int64_t i = 0; i < N; i++) {
            double beta = entry(c, BETA, i, 0);
            e[i] = beta * (entry(c, V, i, v) - entry_read(c, K, i, v));
            for (int64_t j = 0; j < i; j++)
                e[i] -= beta * decayed_dot(c, K, i, j) * e[j];
            o[i] = entry_read(c, Q, i, v);
            for (int64_t j = 0; j <= i; j++)
                o[i] += decayed_dot(c, Q, i, j) * e[j];
            ck_assert_double_eq_tol(entry(c, OUT, i, v), 0.5 * o[i], 3e-6);
        }
        for (int64_t n = 0; n < KEYS; n++) {
            double s =
                decay_over(c, 0, N - 1, n) * tensor_get(&c->tensor[INITIAL_STATE], n * VALUES + v);
            for (int64_t i = 0; i < N; i++)
                s += decay_over(c, i + 1, N - 1, n) * entry(c, K, i, n) * e[i];
            ck_assert_double_eq_tol(tensor_get(&c->tensor[FINAL_STATE], n * VALUES + v), s, 3e-6);
        }
    }
}
END_TEST

/* With v = 0 a token multiplies the state by D - beta k (k^T D). */
START_TEST(test_transitions_multiply)
{
    enum { T = 100, ROWS = 32, COLUMNS = 16 };
    struct call *c = run("K=32 V=16 lengths=100 v=0 g=slow state=normal");
    double s[ROWS][COLUMNS];
    for (int i = 0; i < ROWS * COLUMNS; i++)
        s[i / COLUMNS][i % COLUMNS] = tensor_get(&c->tensor[INITIAL_STATE], i);
    for (int64_t t = 0; t < T; t++) {
        double next[ROWS][COLUMNS] = {{0}};
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < ROWS; j++) {
                double transition =
                    (i == j) - entry(c, BETA, t, 0) * entry(c, K, t, i) * entry(c, K, t, j);
                for (int v = 0; v < COLUMNS; v++)
                    next[i][v] += transition * exp(entry(c, G, t, j)) * s[j][v];
            }
        memcpy(s, next, sizeof(s));
    }
    for (int i = 0; i < ROWS * COLUMNS; i++)
        ck_assert_double_eq_tol(tensor_get(&c->tensor[FINAL_STATE], i), s[i / COLUMNS][i % COLUMNS],
                                1e-5);
}
END_TEST

TCase *tcase_worked(void)
{
    TCase *tcase = tcase_create("worked");
    tcase_add_checked_fixture(tcase, harness_setup, harness_teardown);
    tcase_add_test(tcase, test_write_is_read_back);
    tcase_add_test(tcase, test_write_of_part_strength_mixes);
    tcase_add_test(tcase, test_write_leaves_orthogonal_query_alone);
    tcase_add_test(tcase, test_decay_is_per_channel);
    tcase_add_test(tcase, test_decay_comes_before_write);
    tcase_add_test(tcase, test_equal_decays_are_the_gate_per_head);
    tcase_add_test(tcase, test_decays_of_one_are_delta_net);
    tcase_add_test(tcase, test_additive_without_gate_is_linear_attention);
    tcase_add_test(tcase, test_same_write_twice_doubles_if_additive);
    tcase_add_test(tcase, test_same_write_twice_changes_nothing_with_delta);
    tcase_add_test(tcase, test_four_tokens_are_a_triangular_system);
    tcase_add_test(tcase, test_transitions_multiply);
    return tcase;
}

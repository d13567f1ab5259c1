/* Shapes: a fixed list that covers each option of a problem beside most others, then random
 * problems, of the library's own choice of schedule and of every engine. On an OpenCL device, which
 * compiles kernels for each, there are fewer.
 *
 * SPDX-License-Identifier: MIT */
#include "harness.h"

#include "random.h"

#include <inttypes.h>
#include <stdio.h>

#define RAW_SOFTPLUS "gate=softplus a_log=rate dt_bias=normal "
#define RAW_BOUNDED "gate=bounded a_log=rate dt_bias=normal "
#define MODEL "dtype=bf16 norm=1 activation=sigmoid state=normal "

static const char *const fixed[] = {
    /* key and value dims, each beside another gate, type or layout */
    "H=3 K=1 V=1 lengths=70 state=normal",
    "H=2 K=16 V=3 lengths=40 state=normal layout=vk g=strong",
    "H=2 HV=4 K=17 V=16 lengths=33,2 state=normal dtype=f16",
    "H=1 HV=3 K=33 V=33 lengths=21 state=normal dtype=bf16 state_dtype=bf16 map=modulo",
    "H=3 K=60 V=60 lengths=64,64 scale=1",
    "H=2 K=64 V=48 lengths=45 state=normal layout=vk state_dtype=f16 norm=1",
    "H=2 HV=4 K=96 V=80 lengths=40 state=normal gate=none scale=1",
    "H=4 K=100 V=100 lengths=20x3 state=normal scale=0.1 norm=1",
    "H=2 K=128 V=200 lengths=20 state=normal dtype=bf16 out_dtype=f32 layout=vk",
    "H=2 K=160 V=33 lengths=17 state=normal dtype=f16 state_dtype=f16 " RAW_SOFTPLUS,
    "H=2 HV=6 K=192 V=16 lengths=30 state=normal map=modulo per_head=1",
    "H=1 K=255 V=48 lengths=12 state=normal dtype=bf16 g_dtype=f32",
    "H=1 HV=2 K=256 V=96 lengths=12 state=normal " RAW_BOUNDED "norm=1",
    "H=1 K=2 V=200 lengths=50 state=normal activation=sigmoid2",
    /* gates: all kinds, per channel and per head, given parameters and without */
    "H=2 K=32 V=16 lengths=150 state=normal g=slow k=same",
    "H=2 K=32 V=16 lengths=150 state=normal g=-20 k=same beta=0.5",
    "H=2 K=32 V=16 lengths=50 state=normal per_head=1 g=strong",
    "H=2 K=32 V=16 lengths=50 state=normal gate=softplus a_log=rate g=wide",
    "H=2 K=32 V=16 lengths=90 state=normal per_head=1 " RAW_SOFTPLUS "activation=sigmoid",
    "H=2 K=32 V=16 lengths=50 state=normal gate=bounded g=wide",
    "H=2 K=32 V=16 lengths=50 state=normal gate=bounded bound=-0.5 dt_bias=wide g=-8,-4,0,8",
    "H=2 K=32 V=16 lengths=50 state=normal per_head=1 bound=-3 " RAW_BOUNDED "dtype=f16",
    "H=2 K=32 V=16 lengths=50 state=normal gate=none activation=sigmoid2 norm=1",
    /* the additive rule */
    "H=2 K=32 V=16 lengths=50 state=normal rule=additive gate=none",
    "H=2 K=32 V=16 lengths=90 state=normal rule=additive g=decay beta=uniform",
    "H=2 K=32 V=16 lengths=50 state=normal rule=additive activation=sigmoid " RAW_SOFTPLUS,
    "H=2 K=32 V=16 lengths=50 rule=additive per_head=1 dtype=bf16 beta_dtype=f32 beta=uniform",
    /* numbers at the ends */
    "H=2 K=32 V=16 lengths=150 state=normal beta=0",
    "H=2 K=32 V=16 lengths=150 state=normal beta=1 k=same v=huge",
    "H=2 K=32 V=16 lengths=150 v=tiny",
    "H=2 K=32 V=16 lengths=50 norm=1 q=huge k=huge state=normal",
    "H=2 K=32 V=16 lengths=50 norm=1 q=0 k=0 state=normal",
    "H=2 K=32 V=16 lengths=50 norm=1 q=tiny k=tiny state=normal",
    "H=2 K=64 V=32 lengths=60 norm=1 k=-50 q=uniform dtype=bf16",
    /* lengths, states, views */
    "H=2 K=32 V=16 lengths=1,0,2,31,32,33,0,63,64,65,1 state=normal cu=i64",
    "H=2 K=32 V=16 lengths=1x200 state=normal final=0",
    RECURRENT "H=2 K=48 V=20 lengths=3x7 cu=i32 checkpoint=2 state=normal layout=vk",
    RECURRENT "H=2 K=48 V=20 lengths=20,13 checkpoint=5 dtype=bf16 state_dtype=bf16 pad=5,3,2",
    "H=2 K=48 V=20 lengths=9 pad=1,1,1 order=heads dtype=f16 state=normal",
    "H=2 K=48 V=20 lengths=4,5,6 index=7,-1,2 slots=9 index_type=i64 state=normal in_place=1",
    RECURRENT "H=2 K=48 V=20 lengths=4,5,6 index=2,0,1 slots=3 state=normal checkpoint=3 "
              "state_dtype=f16",
    "HV=1 K=48 V=20 lengths=9 pad=3,1,2 state=normal per_head=1",
    "H=2 HV=4 K=1 V=20 lengths=9 pad=3,1,2 state=normal",
    /* what models do, with fewer heads: prompts, ragged batches, decoding from a pool */
    "H=2 K=128 V=128 lengths=100 " MODEL RAW_SOFTPLUS,
    "H=2 K=128 V=128 lengths=100 " MODEL RAW_BOUNDED,
    "H=1 HV=4 K=128 V=128 lengths=15,28,0,18 layout=vk " MODEL RAW_BOUNDED,
    "H=4 K=128 V=128 lengths=1x12 index=20,3,17,-1,9,0,31,12,-1,5,6,7 slots=36 in_place=1 " MODEL
        RAW_SOFTPLUS,
    "H=8 K=64 V=64 lengths=1x8 dtype=f16 norm=1 state=normal index=9,1,8,2,7,3,6,4 slots=12",
    "H=32 K=16 V=16 lengths=1 order=heads state=normal layout=vk",
    "H=8 HV=16 K=32 V=32 lengths=4,4 map=modulo state=normal layout=vk",
};

static const char *const long_ones[] = {
    "H=4 K=100 V=100 lengths=1000x3 scale=0.1 norm=1 g=decay",
    "H=4 K=128 V=128 lengths=1024x4 scale=0.1",
    "H=2 HV=8 K=128 V=128 lengths=1024x2 norm=1 dtype=f16 " RAW_SOFTPLUS,
    "H=4 K=128 V=128 lengths=256,244,500,0,1300,547,2048 " MODEL RAW_BOUNDED,
    "H=1 K=128 V=128 lengths=8192 g=wide bound=-5 " MODEL RAW_BOUNDED,
    "H=4 K=256 V=256 lengths=100,200,900 " MODEL RAW_BOUNDED,
    "H=2 K=64 V=64 lengths=4000 g=slow state=normal",
    "H=16 HV=32 K=128 V=128 lengths=1x64 state=normal layout=vk dtype=bf16 index_type=i64",
    "H=64 K=128 V=128 lengths=1x32 " MODEL RAW_SOFTPLUS,
};

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

/* Random choices: number `next` of the problem's seed. */
struct choices {
    uint64_t seed, next;
};

static int choose(struct choices *c, int n)
{
    return (int)(random_bits(c->seed, c->next++) % (uint64_t)n);
}

static const char *choose_word(struct choices *c, int n, const char *const *words)
{
    return words[choose(c, n)];
}
#define WORD(c, ...)                                                                               \
    choose_word(c, sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *),                         \
                (const char *const[]){__VA_ARGS__})

/* Slots of n sequences: the upper half of the pool is read, the lower written, so that no two
 * meet. */
static void add_pool(struct text *t, struct choices *c, int n)
{
    const int columns = choose(c, 2) ? 1 : 1 + choose(c, 16), apart = choose(c, 2);
    const int used = n * columns, slots = used * (1 + apart) + choose(c, 4);
    text_add(t, " slots=%d index_type=%s columns=%d", slots, WORD(c, "i32", "i64"), columns);
    if (columns > 1) /* no business of the chunkwise schedule */
        text_add(t, " schedule=auto engine=auto");
    for (int write = 0; write <= apart; write++) {
        text_add(t, write ? " write=" : " index=");
        for (int i = 0; i < used; i++)
            text_add(t, i ? ",%d" : "%d", choose(c, 4) == 0 ? -1 : write ? i : slots - 1 - i);
    }
    if (choose(c, 2))
        return;
    text_add(t, " accepted=");
    for (int i = 0; i < n; i++)
        text_add(t, i ? ",%d" : "%d", choose(c, columns + 1));
}

/* A last length that makes more than a few tokens with those before, unless there are none at all.
 * One token's out from a zero state is q.k times v: where that product cancels, no sum in f32 keeps
 * the bound, and the tensor has nothing else. */
static int last_length(int length, int before)
{
    const int tokens = before + length;
    return tokens > 0 && tokens < 4 ? 4 : length;
}

static const int key_dims[] = {1, 16, 17, 33, 60, 64, 96, 100, 128, 160, 192, 255, 256};
static const int value_dims[] = {1, 3, 16, 33, 48, 80, 96, 128, 200};

static void add_shape(struct text *t, struct choices *c)
{
    static const int lengths[] = {0, 1, 1, 2, 3, 7, 15, 16, 17, 31, 33, 64, 65};
    int h = 1 + choose(c, 3), k = key_dims[choose(c, COUNT(key_dims))],
        v = value_dims[choose(c, COUNT(value_dims))];
    int n = 1 + choose(c, 6), hv = h * (1 + choose(c, 3));
    text_add(t, "H=%d HV=%d K=%d V=%d lengths=", h, hv, k, v);
    const int work = 2000000 / (hv * k * v) + 1, few = choose(c, 3) ? 63 : work;
    for (int i = 0, tokens = 0, most = few < work ? few : work; i < n; i++) {
        int length = lengths[choose(c, 13)];
        length = length < most - tokens ? length : most - tokens;
        length = i < n - 1 ? length : last_length(length, tokens);
        tokens += length;
        text_add(t, i ? ",%d" : "%d", length);
    }
    text_add(t, " cu=%s", WORD(c, "i32", "i64"));
    if (choose(c, 3) == 0)
        add_pool(t, c, n);
    if (choose(c, 4) == 0) {
        text_add(t, " fresh=");
        for (int i = 0; i < n; i++)
            text_add(t, i ? ",%d" : "%d", choose(c, 3) == 0);
    }
}

/* The engines and chunks that are tried with every key dimension. */
static const struct {
    const char *words;
    int chunk;
    bool everywhere; /* on the CPU backend too */
} engines[] = {
    {"schedule=recurrent engine=auto", 1, true},
    {"schedule=chunkwise engine=fused chunk=16", 16, true},
    {"schedule=chunkwise engine=fused chunk=32", 32, true},
    {"schedule=chunkwise engine=fused chunk=64", 64, true},
    {"schedule=chunkwise engine=clblast chunk=32", 32, false},
};
enum { ENGINES = COUNT(engines), KEY_DIMS = COUNT(key_dims) };

/* Sequences that end around the edges of chunks, some with checkpoints. */
static void add_engine(struct text *t, struct choices *c, int engine, int k)
{
    const int chunk = engines[engine].chunk, h = 1 + choose(c, 2), hv = h * (1 + choose(c, 3));
    const int edge = chunk > 1 ? chunk : 16;
    const int lengths[] = {0, 1, 15, edge - 1, edge, edge + 1, 2 * edge - 1, 2 * edge + 1};
    text_add(t, "%s H=%d HV=%d K=%d V=%d lengths=", engines[engine].words, h, hv, k,
             value_dims[choose(c, COUNT(value_dims))]);
    for (int i = 0, tokens = 0, n = 1 + choose(c, 3); i < n; i++) {
        int length = lengths[choose(c, COUNT(lengths))];
        length = i < n - 1 ? length : last_length(length, tokens);
        tokens += length;
        text_add(t, i ? ",%d" : "%d", length);
    }
    text_add(t, " cu=%s", WORD(c, "i32", "i64"));
    if (choose(c, 3) == 0)
        text_add(t, " checkpoint=%d", chunk * (1 + choose(c, 2)));
}

static void add_types(struct text *t, struct choices *c)
{
    const char *type = WORD(c, "f32", "f16", "bf16");
    text_add(t, " dtype=%s g_dtype=%s", type, choose(c, 2) ? type : "f32");
    text_add(t, " beta_dtype=%s", choose(c, 2) ? type : "f32");
    text_add(t, " out_dtype=%s", choose(c, 2) ? type : "f32");
    text_add(t, " state_dtype=%s", WORD(c, "f32", "f32", "f16", "bf16"));
}

static void add_formula(struct text *t, struct choices *c)
{
    const char *gate = WORD(c, "log", "log", "softplus", "bounded", "none");
    text_add(t, " gate=%s", gate);
    if (*gate == 'l')
        text_add(t, " g=%s", WORD(c, "decay", "slow", "strong", "-20", "0"));
    if (*gate == 's' || *gate == 'b')
        text_add(t, " g=%s dt_bias=%s", WORD(c, "normal", "wide"), WORD(c, "no", "normal"));
    if (*gate == 'b')
        text_add(t, " a_log=%s bound=%s", WORD(c, "no", "rate"), WORD(c, "-5", "-1"));
    if (choose(c, 4) == 0)
        text_add(t, " rule=additive");
    text_add(t, " activation=%s", WORD(c, "given", "sigmoid", "sigmoid2"));
    text_add(t, " per_head=%d norm=%d", choose(c, 2), choose(c, 2));
    text_add(t, " scale=%s", WORD(c, "0", "1", "0.1"));
    text_add(t, " map=%s layout=%s", WORD(c, "grouped", "modulo"), WORD(c, "kv", "vk"));
}

static void add_memory(struct text *t, struct choices *c)
{
    if (choose(c, 4))
        text_add(t, " state=normal in_place=%d", choose(c, 2));
    if (choose(c, 2))
        text_add(t, " pad=%d,%d,%d", choose(c, 9), choose(c, 5), choose(c, 7));
    if (choose(c, 4) == 0)
        text_add(t, " order=heads");
}

START_TEST(test_shape_fixed)
{
    run("%s", fixed[_i]);
}
END_TEST

START_TEST(test_shape_long)
{
    run("%s", long_ones[_i]);
}
END_TEST

START_TEST(test_shape_random)
{
    uint64_t seed = random_bits(harness_seed, (uint64_t)_i) >> 1;
    struct choices choices = {seed, 0};
    struct text text = {.length = 0};
    add_shape(&text, &choices);
    add_types(&text, &choices);
    add_formula(&text, &choices);
    add_memory(&text, &choices);
    if (choose(&choices, 3) == 0)
        text_add(&text, " " RECURRENT "checkpoint=%d", 1 + choose(&choices, 9));
    text_add(&text, " seed=%" PRIu64, seed);
    run("%s", text.all);
}
END_TEST

/* Engine by engine, each with all key dimensions in turn and whatever else is drawn. */
START_TEST(test_shape_engine)
{
    const int engine = _i % ENGINES, turn = _i / ENGINES;
    NEEDS(device.id || engines[engine].everywhere, "the CPU backend has no CLBlast");
    uint64_t seed = random_bits(~harness_seed, (uint64_t)_i) >> 1;
    struct choices choices = {seed, 0};
    struct text text = {.length = 0};
    add_engine(&text, &choices, engine, key_dims[(turn + 3 * engine + harness_seed) % KEY_DIMS]);
    add_types(&text, &choices);
    add_formula(&text, &choices);
    add_memory(&text, &choices);
    text_add(&text, " seed=%" PRIu64, seed);
    run("%s", text.all);
}
END_TEST

Suite *suite_shapes(enum level level)
{
    /* Problems, by whether the device compiles (a second or two each) and whether at level FULL. */
    static const int randoms[2][2] = {{300, 500}, {10, 150}};
    static const int turns[2][2] = {{KEY_DIMS, 8 * KEY_DIMS}, {2, 2 * KEY_DIMS}};
    const bool compiles = device.id;
    Suite *suite = suite_create("shapes");
    TCase *tcase = tcase_create("shapes");
    tcase_add_checked_fixture(tcase, harness_setup, harness_teardown);
    tcase_add_loop_test(tcase, test_shape_fixed, 0, COUNT(fixed));
    tcase_add_loop_test(tcase, test_shape_random, 0, randoms[compiles][level == FULL]);
    tcase_add_loop_test(tcase, test_shape_engine, 0, ENGINES * turns[compiles][level == FULL]);
    if (level == FULL)
        tcase_add_loop_test(tcase, test_shape_long, 0, COUNT(long_ones));
    suite_add_tcase(suite, tcase);
    return suite;
}

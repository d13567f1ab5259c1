/* What each kernel of a call has to do, from shapes alone: the bytes that it must read and write
 * once, however often it does, and the operations of its formulas, cl/chunk.cl's and those of the
 * files named below. A triangular matrix counts half a square one. Gates, norms and sums don't
 * count, and what a kernel computes beyond its formulas, on whole tiles say, is not its work.
 *
 * SPDX-License-Identifier: MIT */
#include "bench.h"
#include "numbers.h"

#include <stdlib.h>
#include <string.h>

/* The tensors of a call, by what moves together. */
enum {
    QK = 1,
    V = 2,
    GATES = 4,
    OUT = 8,
    ROWS = QK | V | GATES | OUT,
    STATE_IN = 16,
    STATE_OUT = 32
};

/* For a chunk of C tokens and a value head, with the delta rule and with the additive one. */
static const struct kernel {
    const char *name;
    int moves; /* of the call's tensors, those of sequences in chunks */
    struct {
        double ck, cc, cv, kv;
    } floats[2]; /* of the workspace, in matrices of C x K, ... */
    struct {
        double cck, ccv, ckv, kv, ccc;
    } flops[2];
} kernels[] = {
    /* Reads tokens; writes W, Qd, Ke, A_qk, U. Sums A_kk, A_qk; inverts; W = T .., U = T .. */
    {"kda_prepare",
     QK | V | GATES,
     {{3, 1, 1, 0}, {2, 1, 1, 0}},
     {{3, 1, 0, 0, 1. / 3}, {1, 0, 0, 0, 0}}},
    /* Reads those. E = U - W S; O = Qd S + A_qk E; S = D S + Ke^T E */
    {"kda_scan",
     OUT | STATE_IN | STATE_OUT,
     {{3, 1, 1, 0}, {2, 1, 1, 0}},
     {{0, 1, 6, 1, 0}, {0, 1, 4, 1, 0}}},
    /* gemm.cl: the state before, twice; S = D S */
    {"kda_enter", 0, {{0, 0, 0, 3}, {0, 0, 0, 3}}, {{0, 0, 0, 1, 0}, {0, 0, 0, 1, 0}}},
    /* The four products of gemm.cl, three with the additive rule; A_qk as the square that it is to
     * them. */
    {"CLBlast", 0, {{3, 1, 7, 4}, {2, 1, 5, 3}}, {{0, 2, 6, 0, 0}, {0, 2, 4, 0, 0}}},
    {"kda_emit", OUT | STATE_OUT, {{0, 0, 1, 0}, {0, 0, 1, 0}}, {{0, 0, 0, 0, 0}, {0, 0, 0, 0, 0}}},
    /* The two below in one. */
    {"kda_mma",
     QK | V | GATES | OUT | STATE_IN | STATE_OUT,
     {{3, 2, 0, 0}, {2, 1, 0, 0}},
     {{2, 2, 6, 1, 1. / 3}, {1, 1, 4, 1, 0}}},
    /* mma_scan.cl: Kd, Qd, Ke, L, A_qk in bf16. Sums A_kk and A_qk; inverts. */
    {"kda_mma_prepare",
     QK | GATES,
     {{1.5, 1, 0, 0}, {1, 0.5, 0, 0}},
     {{2, 0, 0, 0, 1. / 3}, {1, 0, 0, 0, 0}}},
    /* X = V - Kd S; E = beta X + L X; O = Qd S + A_qk E; S = D S + Ke^T E */
    {"kda_mma_scan",
     V | OUT | STATE_IN | STATE_OUT,
     {{1.5, 1, 0, 0}, {1, 0.5, 0, 0}},
     {{0, 2, 6, 1, 0}, {0, 1, 4, 1, 0}}},
};

/* The number behind a word of a plan's description; `otherwise` if it isn't there. */
static int64_t number_in(const char *plan, const char *word, int64_t otherwise)
{
    const char *at = strstr(plan, word);
    return at ? atoll(at + strlen(word)) : otherwise;
}

/* Sequences that go in chunks, or the others. */
struct part {
    double tokens, sequences, chunks;
};

static struct part part_of(const struct problem *p, const char *plan, bool in_chunks)
{
    const int64_t limit = number_in(plan, "recurrent_up_to=", INT64_MAX);
    const int64_t chunk = number_in(plan, "chunk=", 1);
    struct part part = {0};
    for (int64_t n = 0; n < p->sequences; ++n) {
        const int64_t length = p->starts[n + 1] - p->starts[n];
        if ((length > limit) != in_chunks)
            continue;
        part.tokens += (double)length;
        part.sequences++;
        part.chunks += (double)((length + chunk - 1) / chunk);
    }
    return part;
}

bool bench_has_chunks(const struct problem *problem, const char *plan)
{
    return part_of(problem, plan, true).sequences > 0;
}

static double moved(const struct problem *p, const struct part *part, int what)
{
    const kda_problem *s = &p->shape;
    const double h = s->heads, hv = s->value_heads, k = s->key_dim, v = s->value_dim;
    const double gates = s->gate == KDA_GATE_NONE ? 0 : s->flags & KDA_GATE_PER_HEAD ? 1 : k;
    const double state = p->states ? (double)number_size(s->state_dtype) * hv * k * v : 0;
    double row = 0;
    row += what & QK ? 2 * h * k * (double)number_size(s->dtype) : 0;
    row += what & V ? hv * v * (double)number_size(s->dtype) : 0;
    row += what & GATES ? hv * gates * (double)number_size(s->g_dtype) : 0;
    row += what & GATES ? hv * (double)number_size(s->beta_dtype) : 0;
    row += what & OUT ? hv * v * (double)number_size(s->out_dtype) : 0;
    return part->tokens * row +
           part->sequences * state *
               (!!(what & STATE_IN) + (what & STATE_OUT ? (double)p->columns : 0));
}

static const struct kernel *find_kernel(const char *name)
{
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; ++i)
        if (!strcmp(kernels[i].name, name))
            return &kernels[i];
    return NULL;
}

static struct bench_work work_in_chunks(const struct problem *p, const char *plan,
                                        const struct kernel *kernel)
{
    const struct part part = part_of(p, plan, true);
    const double c = (double)number_in(plan, "chunk=", 1), k = p->shape.key_dim,
                 v = p->shape.value_dim, blocks = part.chunks * p->shape.value_heads;
    const int rule = p->shape.rule == KDA_RULE_ADDITIVE;
    const double floats = kernel->floats[rule].ck * c * k + kernel->floats[rule].cc * c * c +
                          kernel->floats[rule].cv * c * v + kernel->floats[rule].kv * k * v;
    const double flops = kernel->flops[rule].cck * c * c * k + kernel->flops[rule].ccv * c * c * v +
                         kernel->flops[rule].ckv * c * k * v + kernel->flops[rule].kv * k * v +
                         kernel->flops[rule].ccc * c * c * c;
    return (struct bench_work){moved(p, &part, kernel->moves) + blocks * floats * sizeof(float),
                               blocks * flops};
}

struct bench_work bench_work(const struct problem *p, const char *plan, const char *name)
{
    const struct kernel *kernel = find_kernel(name);
    if (kernel)
        return work_in_chunks(p, plan, kernel);
    if (strcmp(name, "kda_step"))
        return (struct bench_work){0}; /* kda_table, which only looks at cu_seqlens */
    const struct part part = part_of(p, plan, false);
    return (struct bench_work){moved(p, &part, ROWS | STATE_IN | STATE_OUT),
                               problem_flops(p) * part.tokens / (double)p->tokens};
}

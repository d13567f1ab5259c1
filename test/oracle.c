/* The f64 recurrence. Stored values are widened on load, then everything is double: the gate, the
 * activations, the norm, the state. Sequence by sequence, head by head, token by token, as the
 * operation is written down.
 *
 * SPDX-License-Identifier: MIT */
#include "oracle.h"
#include "numbers.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_KEY_DIM = 256 };

/* What a token brings to one head, activated. */
struct token {
    double q[MAX_KEY_DIM], k[MAX_KEY_DIM], decay[MAX_KEY_DIM], beta;
};

/* A tensor to read: rows of the outermost dimension, heads, contiguous elements. */
struct tensor {
    const char *base; /* NULL: absent */
    kda_dtype type;
    int64_t row_stride, head_stride;
};

static kda_dtype or_else(kda_dtype type, kda_dtype fallback)
{
    return type ? type : fallback;
}

static int32_t value_heads(const kda_problem *p)
{
    return p->value_heads ? p->value_heads : p->heads;
}

static struct tensor tensor(const kda_input *in, kda_dtype type, int64_t heads, int64_t width)
{
    return (struct tensor){
        .base = in->host ? (const char *)in->host + in->offset : NULL,
        .type = type,
        .row_stride = in->token_stride ? in->token_stride : heads * width,
        .head_stride = in->head_stride ? in->head_stride : width,
    };
}

static double element(const struct tensor *t, int64_t row, int64_t head, int64_t i)
{
    int64_t index = row * t->row_stride + head * t->head_stride + i;
    return number_load(t->base, t->type, index);
}

static int64_t integer(const kda_input *in, kda_index_type type, int64_t i)
{
    const char *base = (const char *)in->host + in->offset;
    int32_t narrow;
    int64_t wide;
    if (type == KDA_I64) {
        memcpy(&wide, base + i * 8, sizeof(wide));
        return wide;
    }
    memcpy(&narrow, base + i * 4, sizeof(narrow));
    return narrow;
}

static int64_t clamp(int64_t x, int64_t low, int64_t high)
{
    return x < low ? low : x > high ? high : x;
}

/* In each sequence's row of state_index and write_index. */
static int64_t columns(const kda_args *args)
{
    return args->index_columns ? args->index_columns : 1;
}

static int64_t slot_at(const kda_args *args, const kda_input *index, int64_t i)
{
    int64_t slot = integer(index, args->state_index_type, i);
    return slot < args->slots ? slot : -1;
}

struct oracle_sequence oracle_sequence(const kda_args *args, int64_t n)
{
    int64_t sequences = args->sequences ? args->sequences : 1;
    struct oracle_sequence s = {.slot = n};
    if (args->cu_seqlens.host) {
        int64_t start = integer(&args->cu_seqlens, args->cu_seqlens_type, n);
        int64_t end = integer(&args->cu_seqlens, args->cu_seqlens_type, n + 1);
        s.start = clamp(start, 0, args->tokens);
        s.length = clamp(end, s.start, args->tokens) - s.start;
    } else {
        s.length = args->tokens / sequences;
        s.start = n * s.length;
    }
    if (args->fresh.host)
        s.fresh = ((const char *)args->fresh.host + args->fresh.offset)[n] != 0;
    if (args->state_index.host) {
        int64_t accepted = 1;
        if (args->accepted.host)
            accepted = integer(&args->accepted, args->state_index_type, n);
        s.slot = -1;
        if (accepted >= 1 && accepted <= columns(args))
            s.slot = slot_at(args, &args->state_index, n * columns(args) + accepted - 1);
    }
    return s;
}

int64_t oracle_stored(const kda_args *args, int64_t length)
{
    return clamp(length, 1, columns(args));
}

int64_t oracle_slot(const kda_args *args, int64_t n, int64_t i)
{
    if (!args->state_index.host)
        return n;
    return slot_at(args, args->write_index.host ? &args->write_index : &args->state_index,
                   n * columns(args) + i);
}

static int32_t key_head(const kda_problem *p, int32_t head)
{
    if (p->head_map == KDA_HEADS_MODULO)
        return head % p->heads;
    return head / (value_heads(p) / p->heads);
}

static double softplus(double x)
{
    return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* The log decay from the stored gate g. */
static double log_decay(const kda_problem *p, const kda_args *args, int32_t head, int32_t channel,
                        double g)
{
    if (p->gate == KDA_GATE_LOG)
        return g;
    int32_t width = p->flags & KDA_GATE_PER_HEAD ? 1 : p->key_dim;
    struct tensor a_log = tensor(&args->a_log, KDA_F32, 1, 1);
    struct tensor dt_bias = tensor(&args->dt_bias, KDA_F32, 1, width);
    double rate = a_log.base ? fmin(exp(element(&a_log, head, 0, 0)), FLT_MAX) : 1;
    double x = g + (dt_bias.base ? element(&dt_bias, head, 0, channel) : 0);
    if (p->gate == KDA_GATE_SOFTPLUS)
        return -rate * softplus(x);
    return (p->gate_bound != 0 ? p->gate_bound : -5.0) * sigmoid(rate * x);
}

static void load_decay(const kda_problem *p, const kda_args *args, int64_t t, int32_t head,
                       double *decay)
{
    int per_head = (p->flags & KDA_GATE_PER_HEAD) != 0;
    kda_dtype type = or_else(p->g_dtype, or_else(p->dtype, KDA_F32));
    struct tensor g = tensor(&args->g, type, value_heads(p), per_head ? 1 : p->key_dim);
    for (int32_t i = 0; i < p->key_dim; i++) {
        int32_t channel = per_head ? 0 : i;
        decay[i] = 1;
        if (p->gate != KDA_GATE_NONE)
            decay[i] = exp(log_decay(p, args, head, channel, element(&g, t, head, channel)));
    }
}

static void load_row(const kda_problem *p, const kda_input *in, int64_t t, int32_t head, double *x)
{
    struct tensor row = tensor(in, or_else(p->dtype, KDA_F32), p->heads, p->key_dim);
    double sum = 1e-6;
    for (int32_t i = 0; i < p->key_dim; i++) {
        x[i] = element(&row, t, head, i);
        sum += x[i] * x[i];
    }
    if (p->flags & KDA_NORM_QK)
        for (int32_t i = 0; i < p->key_dim; i++)
            x[i] /= sqrt(sum);
}

static double load_beta(const kda_problem *p, const kda_args *args, int64_t t, int32_t head)
{
    kda_dtype type = or_else(p->beta_dtype, or_else(p->dtype, KDA_F32));
    struct tensor beta = tensor(&args->beta, type, value_heads(p), 1);
    if (!beta.base)
        return 1;
    double x = element(&beta, t, head, 0);
    if (p->beta == KDA_BETA_GIVEN)
        return x;
    return p->beta == KDA_BETA_SIGMOID ? sigmoid(x) : 2 * sigmoid(x);
}

static void load_token(const kda_problem *p, const kda_args *args, int64_t t, int32_t head,
                       struct token *token)
{
    load_row(p, &args->q, t, key_head(p, head), token->q);
    load_row(p, &args->k, t, key_head(p, head), token->k);
    load_decay(p, args, t, head, token->decay);
    token->beta = load_beta(p, args, t, head);
}

/* One token: decay, error, write, read. u holds v on entry and is used up; o receives S^T q. */
static void step(const kda_problem *p, const struct token *token, double *state, double *u,
                 double *o)
{
    int32_t n = p->value_dim;
    memset(o, 0, sizeof(*o) * n);
    for (int32_t i = 0; i < p->key_dim; i++)
        for (int32_t j = 0; j < n; j++) {
            state[i * n + j] *= token->decay[i];
            o[j] += state[i * n + j] * token->k[i]; /* the prediction S^T k for now */
        }
    for (int32_t j = 0; j < n; j++)
        u[j] = token->beta * (p->rule == KDA_RULE_ADDITIVE ? u[j] : u[j] - o[j]);
    memset(o, 0, sizeof(*o) * n);
    for (int32_t i = 0; i < p->key_dim; i++)
        for (int32_t j = 0; j < n; j++) {
            state[i * n + j] += token->k[i] * u[j];
            o[j] += state[i * n + j] * token->q[i];
        }
}

/* Index within one head's stored state of key channel i, value channel j. */
static int64_t state_element(const kda_problem *p, int32_t i, int32_t j)
{
    if (p->state_layout == KDA_STATE_VK)
        return (int64_t)j * p->key_dim + i;
    return (int64_t)i * p->value_dim + j;
}

static void load_state(const kda_problem *p, const kda_args *args,
                       const struct oracle_sequence *from, int32_t head, double *state)
{
    struct tensor s = tensor(&args->initial_state, or_else(p->state_dtype, KDA_F32), value_heads(p),
                             (int64_t)p->key_dim * p->value_dim);
    for (int32_t i = 0; i < p->key_dim; i++)
        for (int32_t j = 0; j < p->value_dim; j++)
            state[(int64_t)i * p->value_dim + j] =
                s.base && !from->fresh ? element(&s, from->slot, head, state_element(p, i, j)) : 0;
}

void oracle_head(const kda_problem *p, const kda_args *args, int64_t sequence, int32_t head,
                 double *state, double *out, double *checkpoints, double *stored)
{
    struct oracle_sequence s = oracle_sequence(args, sequence);
    size_t state_size = (size_t)p->key_dim * p->value_dim;
    struct tensor v = tensor(&args->v, or_else(p->dtype, KDA_F32), value_heads(p), p->value_dim);
    double scale = p->scale != 0 ? p->scale : 1 / sqrt(p->key_dim);
    double *u = malloc(2 * sizeof(*u) * p->value_dim), *o = u + p->value_dim;
    struct token token;

    load_state(p, args, &s, head, state);
    if (stored && s.length == 0)
        memcpy(stored, state, sizeof(*state) * state_size);
    for (int64_t t = 0; t < s.length; t++) {
        load_token(p, args, s.start + t, head, &token);
        for (int32_t j = 0; j < p->value_dim; j++)
            u[j] = element(&v, s.start + t, head, j);
        step(p, &token, state, u, o);
        for (int32_t j = 0; out && j < p->value_dim; j++)
            *out++ = scale * o[j];
        if (checkpoints && (t + 1) % p->checkpoint_every == 0) {
            memcpy(checkpoints, state, sizeof(*state) * state_size);
            checkpoints += state_size;
        }
        if (stored && t >= s.length - oracle_stored(args, s.length)) {
            memcpy(stored, state, sizeof(*state) * state_size);
            stored += state_size;
        }
    }
    free(u);
}

/* Files a head's K x V state as number `row` of a packed array of states. */
static void file_state(const kda_problem *p, const double *state, int64_t row, int32_t head,
                       double *states)
{
    double *to = states + (row * value_heads(p) + head) * p->key_dim * p->value_dim;
    for (int32_t i = 0; i < p->key_dim; i++)
        for (int32_t j = 0; j < p->value_dim; j++)
            to[state_element(p, i, j)] = state[(int64_t)i * p->value_dim + j];
}

/* out's rows of one head, from a packed [length, V]; rows NULL: zero. */
static void file_out(const kda_problem *p, const struct oracle_sequence *s, int32_t head,
                     const double *rows, double *out)
{
    for (int64_t t = 0; t < s->length; t++)
        for (int32_t j = 0; j < p->value_dim; j++)
            out[((s->start + t) * value_heads(p) + head) * p->value_dim + j] =
                rows ? rows[t * p->value_dim + j] : 0;
}

static void run_head(const kda_problem *p, const kda_args *args, int64_t n, int32_t head,
                     const struct oracle_outputs *outputs)
{
    struct oracle_sequence s = oracle_sequence(args, n);
    int64_t count = p->checkpoint_every > 0 ? s.length / p->checkpoint_every : 0;
    size_t state_size = (size_t)p->key_dim * p->value_dim;
    int64_t last = oracle_stored(args, s.length);
    double *state = malloc(sizeof(*state) * state_size * (1 + count + last));
    double *stored = state + (1 + count) * state_size;
    double *rows = malloc(sizeof(*rows) * (s.length * p->value_dim + 1));

    oracle_head(p, args, n, head, state, rows, count ? state + state_size : NULL, stored);
    if (outputs->out)
        file_out(p, &s, head, rows, outputs->out);
    for (int64_t i = 0; outputs->final_state && i < last; i++)
        if (oracle_slot(args, n, i) >= 0)
            file_state(p, stored + i * state_size, oracle_slot(args, n, i), head,
                       outputs->final_state);
    for (int64_t c = 0; outputs->checkpoints && c < count; c++)
        file_state(p, state + (1 + c) * state_size, s.start / p->checkpoint_every + c, head,
                   outputs->checkpoints);
    free(rows);
    free(state);
}

void oracle_run(const kda_problem *p, const kda_args *args, const struct oracle_outputs *outputs)
{
    int64_t sequences = args->sequences ? args->sequences : 1;
    for (int64_t n = 0; n < sequences; n++) {
        struct oracle_sequence s = oracle_sequence(args, n);
        for (int32_t head = 0; head < value_heads(p); head++) {
            if (s.slot >= 0)
                run_head(p, args, n, head, outputs);
            else if (outputs->out)
                file_out(p, &s, head, NULL, outputs->out);
        }
    }
}

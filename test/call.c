/* The memory of a call: which tensors there are, their shapes, where their elements lie between
 * poison, and the arguments that say so to the library.
 *
 * SPDX-License-Identifier: MIT */
#include "call.h"

#include "numbers.h"
#include "oracle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    size_t at; /* the view in kda_args */
    bool output;
} tensors[TENSORS] = {
    [Q] = {"q", offsetof(kda_args, q), false},
    [K] = {"k", offsetof(kda_args, k), false},
    [V] = {"v", offsetof(kda_args, v), false},
    [G] = {"g", offsetof(kda_args, g), false},
    [BETA] = {"beta", offsetof(kda_args, beta), false},
    [A_LOG] = {"a_log", offsetof(kda_args, a_log), false},
    [DT_BIAS] = {"dt_bias", offsetof(kda_args, dt_bias), false},
    [CU_SEQLENS] = {"cu_seqlens", offsetof(kda_args, cu_seqlens), false},
    [INITIAL_STATE] = {"initial_state", offsetof(kda_args, initial_state), false},
    [FINAL_STATE] = {"final_state", offsetof(kda_args, final_state), true},
    [OUT] = {"out", offsetof(kda_args, out), true},
    [STATE_INDEX] = {"state_index", offsetof(kda_args, state_index), false},
    [WRITE_INDEX] = {"write_index", offsetof(kda_args, write_index), false},
    [ACCEPTED] = {"accepted", offsetof(kda_args, accepted), false},
    [FRESH] = {"fresh", offsetof(kda_args, fresh), false},
    [CHECKPOINTS] = {"checkpoints", offsetof(kda_args, checkpoints), true},
};

bool call_writes(int id)
{
    return tensors[id].output;
}

int64_t tensor_elements(const struct tensor *t)
{
    return t->present ? t->rows * t->heads * t->width : 0;
}

void *tensor_at(const struct tensor *t, int64_t i)
{
    int64_t row = i / t->width / t->heads, head = i / t->width % t->heads;
    int64_t element = row * t->row_stride + head * t->head_stride + i % t->width;
    return t->block + t->offset + (size_t)element * t->size;
}

double tensor_get(const struct tensor *t, int64_t i)
{
    if (!t->integer)
        return number_load(tensor_at(t, i), t->type, 0);
    int32_t narrow;
    int64_t wide;
    if (t->size == 1)
        return *(unsigned char *)tensor_at(t, i);
    memcpy(&narrow, tensor_at(t, i), sizeof(narrow));
    if (t->size == sizeof(narrow))
        return narrow;
    memcpy(&wide, tensor_at(t, i), sizeof(wide));
    return (double)wide;
}

void tensor_set(struct tensor *t, int64_t i, double x)
{
    if (!t->integer) {
        number_store(tensor_at(t, i), t->type, 0, (float)x);
        return;
    }
    int64_t wide = (int64_t)x;
    int32_t narrow = (int32_t)wide;
    unsigned char flag = (unsigned char)wide;
    memcpy(tensor_at(t, i),
           t->size == 8   ? (void *)&wide
           : t->size == 4 ? (void *)&narrow
                          : (void *)&flag,
           t->size);
}

void tensor_poison(struct tensor *t)
{
    memset(t->block, POISON, t->block_size);
}

static void shape(struct call *call, int id, bool present, kda_dtype type, int64_t rows,
                  int64_t heads, int64_t width)
{
    call->tensor[id] = (struct tensor){.name = tensors[id].name,
                                       .present = present,
                                       .type = type,
                                       .size = number_size(type),
                                       .rows = rows,
                                       .heads = heads,
                                       .width = width};
}

static void shape_integers(struct call *call, int id, bool present, int type, int64_t count)
{
    shape(call, id, present, KDA_F32, count, 1, 1);
    call->tensor[id].integer = true;
    call->tensor[id].size = type == KDA_I64 ? 8 : 4;
}

/* Whether the words ask for a tensor; usual: it is there unless they say no. */
static bool wanted(const struct call *call, int id, bool usual)
{
    return call->numbers[id] ? strcmp(call->numbers[id], "no") != 0 : usual;
}

/* cu: "auto|no|i32|i64" */
static bool wants_offsets(const struct call *call)
{
    bool equal = true;
    for (int64_t n = 1; n < call->sequences; n++)
        equal &= call->lengths[n] == call->lengths[0];
    return call->cu >= 2 || (call->cu == 0 && !equal);
}

int64_t call_list_length(const struct call *call, int list)
{
    bool rows = list == 0 || list == WRITE_INDEX - STATE_INDEX;
    return call->sequences * (rows && call->columns ? call->columns : 1);
}

static void shape_all(struct call *call)
{
    const kda_problem *p = &call->problem;
    const int64_t T = call->tokens, H = p->heads, HV = p->value_heads ? p->value_heads : H;
    const int64_t width = p->flags & KDA_GATE_PER_HEAD ? 1 : p->key_dim;
    const int64_t size = (int64_t)p->key_dim * p->value_dim;
    const int64_t states = call->numbers[STATE_INDEX] ? call->slots : call->sequences;
    const kda_dtype type = p->dtype ? p->dtype : KDA_F32;
    const kda_dtype state = p->state_dtype ? p->state_dtype : KDA_F32;
    const bool additive = p->rule == KDA_RULE_ADDITIVE && p->beta == KDA_BETA_GIVEN;
    const bool raw = p->gate == KDA_GATE_SOFTPLUS || p->gate == KDA_GATE_BOUNDED;

    shape(call, Q, true, type, T, H, p->key_dim);
    shape(call, K, true, type, T, H, p->key_dim);
    shape(call, V, true, type, T, HV, p->value_dim);
    shape(call, G, p->gate != KDA_GATE_NONE, p->g_dtype ? p->g_dtype : type, T, HV, width);
    shape(call, BETA, wanted(call, BETA, !additive), p->beta_dtype ? p->beta_dtype : type, T, HV,
          1);
    shape(call, A_LOG, wanted(call, A_LOG, p->gate == KDA_GATE_SOFTPLUS), KDA_F32, 1, 1, HV);
    shape(call, DT_BIAS, raw && wanted(call, DT_BIAS, false), KDA_F32, 1, HV, width);
    shape_integers(call, CU_SEQLENS, wants_offsets(call), call->cu == 3 ? KDA_I64 : KDA_I32,
                   call->sequences + 1);
    shape(call, INITIAL_STATE, wanted(call, INITIAL_STATE, false), state, states, HV, size);
    shape(call, FINAL_STATE, call->final || call->in_place, state, states, HV, size);
    shape(call, OUT, true, p->out_dtype ? p->out_dtype : type, T, HV, p->value_dim);
    for (int i = 0; i < LISTS; i++)
        shape_integers(call, STATE_INDEX + i, call->numbers[STATE_INDEX + i], call->index_type,
                       call_list_length(call, i));
    call->tensor[FRESH].size = 1;
    shape(call, CHECKPOINTS, p->checkpoint_every > 0, state,
          p->checkpoint_every > 0 ? T / p->checkpoint_every : 0, HV, size);
}

static bool strided(int id)
{
    return id != A_LOG && id != DT_BIAS && id != CU_SEQLENS &&
           !(id >= STATE_INDEX && id < STATE_INDEX + LISTS);
}

static void lay_out(const struct call *call, int id, struct tensor *t)
{
    bool padded = call->pad_text && strided(id), heads_outside = call->heads_outside && strided(id);
    int64_t between_rows = padded ? call->pad[0] : 0, between_heads = padded ? call->pad[1] : 0;
    int64_t rows = t->rows ? t->rows : 1;
    if (heads_outside) {
        t->row_stride = t->width + between_rows;
        t->head_stride = rows * t->row_stride + between_heads;
    } else {
        t->head_stride = t->width + between_heads;
        t->row_stride = t->heads * t->head_stride + between_rows;
    }
    int64_t span = (rows - 1) * t->row_stride + (t->heads - 1) * t->head_stride + t->width;
    t->offset = GUARD + (padded ? (size_t)call->pad[2] * t->size : 0);
    t->block_size = t->offset + (size_t)span * t->size + GUARD;
}

/* Shapes, and memory full of poison. */
static void make_tensors(struct call *call)
{
    shape_all(call);
    for (int id = 0; id < TENSORS; id++) {
        struct tensor *t = &call->tensor[id];
        if (!t->present)
            continue;
        lay_out(call, id, t);
        t->block = malloc(t->block_size);
        if (!t->block) {
            fprintf(stderr, "no memory for %zu bytes of %s\n", t->block_size, t->name);
            exit(EXIT_FAILURE);
        }
        tensor_poison(t);
    }
    if (call->in_place) {
        free(call->tensor[FINAL_STATE].block);
        call->tensor[FINAL_STATE].block = call->tensor[INITIAL_STATE].block;
    }
}

static const char *usual_numbers(const struct call *call, int id)
{
    bool log_gate = call->problem.gate == KDA_GATE_LOG;
    switch (id) {
    case Q:
    case K:
        return call->problem.flags & KDA_NORM_QK ? "normal" : "unit";
    case G:
        return log_gate ? "decay" : "normal";
    case BETA:
        return call->problem.beta == KDA_BETA_GIVEN ? "uniform" : "normal";
    case A_LOG:
        return "rate";
    default:
        return "normal";
    }
}

static bool fill_tensors(struct call *call, char *why)
{
    for (int id = 0; id < TENSORS; id++) {
        struct tensor *t = &call->tensor[id];
        const char *numbers = call->numbers[id] ? call->numbers[id] : usual_numbers(call, id);
        if (!t->present || call_writes(id) || t->integer)
            continue;
        if (!call_fill(call, id, numbers)) {
            snprintf(why, CALL_WHY, "%s=%s: neither numbers nor a distribution", t->name, numbers);
            return false;
        }
    }
    int64_t start = 0;
    for (int64_t n = 0; n <= call->sequences && call->tensor[CU_SEQLENS].present; n++) {
        tensor_set(&call->tensor[CU_SEQLENS], n, (double)start);
        start += n < call->sequences ? call->lengths[n] : 0;
    }
    for (int l = 0; l < LISTS; l++)
        for (int64_t i = 0; i < tensor_elements(&call->tensor[STATE_INDEX + l]); i++)
            tensor_set(&call->tensor[STATE_INDEX + l], i, (double)call->list[l][i]);
    return true;
}

struct call *call_create(const char *text, uint64_t seed, char *why)
{
    struct call *call = calloc(1, sizeof(*call));
    bool made = call_parse(call, text, seed, why);
    if (made && call->in_place && !wanted(call, INITIAL_STATE, false)) {
        snprintf(why, CALL_WHY, "in_place without state");
        made = false;
    }
    if (made) {
        make_tensors(call);
        made = fill_tensors(call, why);
    }
    if (!made) {
        call_destroy(call);
        return NULL;
    }
    return call;
}

void call_destroy(struct call *call)
{
    if (!call)
        return;
    if (call->in_place)
        call->tensor[FINAL_STATE].block = NULL;
    for (int id = 0; id < TENSORS; id++)
        free(call->tensor[id].block);
    for (int i = 0; i < LISTS; i++)
        free(call->list[i]);
    free(call->lengths);
    free(call);
}

static void *copy_of(const void *from, size_t size)
{
    return memcpy(malloc(size), from, size);
}

struct call *call_copy(const struct call *call)
{
    struct call *copy = copy_of(call, sizeof(*call));
    copy->lengths = copy_of(call->lengths, sizeof(*call->lengths) * (size_t)call->sequences);
    for (int i = 0; i < LISTS; i++)
        if (call->list[i])
            copy->list[i] =
                copy_of(call->list[i], sizeof(int64_t) * (size_t)call_list_length(call, i));
    for (int id = 0; id < TENSORS; id++) {
        struct tensor *t = &copy->tensor[id];
        if (!t->block || (id == FINAL_STATE && call->in_place))
            continue;
        t->block = copy_of(t->block, t->block_size);
    }
    if (call->in_place)
        copy->tensor[FINAL_STATE].block = copy->tensor[INITIAL_STATE].block;
    return copy;
}

/* Copies rows of one tensor bit by bit. */
static void copy_rows(struct tensor *to, int64_t to_row, const struct tensor *from,
                      int64_t from_row, int64_t rows)
{
    int64_t size = from->heads * from->width;
    for (int64_t i = 0; i < rows * size; i++)
        memcpy(tensor_at(to, to_row * size + i), tensor_at(from, from_row * size + i), to->size);
}

struct call *call_slice(const struct call *call, int64_t sequence, int64_t from, int64_t to)
{
    struct call *slice = copy_of(call, sizeof(*call));
    slice->lengths = calloc(1, sizeof(*slice->lengths));
    memset(slice->list, 0, sizeof(slice->list));
    snprintf(slice->text, sizeof(slice->text), "%.*s [tokens %d to %d of sequence %d]",
             CALL_TEXT - 64, call->text, (int)from, (int)to, (int)sequence);
    slice->sequences = 1;
    slice->tokens = slice->lengths[0] = (int32_t)(to - from);
    slice->columns = 0;
    slice->max_length = 0;
    for (int id = STATE_INDEX; id < STATE_INDEX + LISTS; id++)
        slice->numbers[id] = NULL;
    make_tensors(slice);
    for (int64_t n = 0; n < sequence; n++)
        from += call->lengths[n];
    kda_args args = call_args(call);
    struct oracle_sequence s = oracle_sequence(&args, sequence);
    for (int id = 0; id < TENSORS; id++) {
        if (!slice->tensor[id].present || call_writes(id) || slice->tensor[id].integer)
            continue;
        int64_t row = id == INITIAL_STATE ? s.slot : id == A_LOG || id == DT_BIAS ? 0 : from;
        copy_rows(&slice->tensor[id], 0, &call->tensor[id], row, slice->tensor[id].rows);
    }
    for (int64_t i = 0; s.fresh && i < tensor_elements(&slice->tensor[INITIAL_STATE]); i++)
        tensor_set(&slice->tensor[INITIAL_STATE], i, 0);
    if (slice->tensor[CU_SEQLENS].present) {
        tensor_set(&slice->tensor[CU_SEQLENS], 0, 0);
        tensor_set(&slice->tensor[CU_SEQLENS], 1, (double)slice->tokens);
    }
    return slice;
}

kda_input *call_view(kda_args *args, int id)
{
    return (kda_input *)(void *)((char *)args + tensors[id].at);
}

kda_args call_args(const struct call *call)
{
    kda_args args = {.struct_size = sizeof(args),
                     .tokens = call->tokens,
                     .sequences = call->sequences,
                     .cu_seqlens_type = call->tensor[CU_SEQLENS].size == 8 ? KDA_I64 : KDA_I32,
                     .state_index_type = call->tensor[STATE_INDEX].size == 8 ? KDA_I64 : KDA_I32,
                     .slots = call->numbers[STATE_INDEX] ? call->slots : 0,
                     .max_length = call->max_length,
                     .index_columns = call->columns};
    for (int id = 0; id < TENSORS; id++) {
        const struct tensor *t = &call->tensor[id];
        bool told = strided(id) && (call->pad_text || call->heads_outside);
        if (t->present)
            *call_view(&args, id) = (kda_input){.host = t->block,
                                                .offset = t->offset,
                                                .token_stride = told ? t->row_stride : 0,
                                                .head_stride = told ? t->head_stride : 0};
    }
    return args;
}

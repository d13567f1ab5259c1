/* A problem's tensors: one table of shapes serves allocation, filling and the call's arguments.
 *
 * SPDX-License-Identifier: MIT */
#include "workload.h"
#include "machine.h"
#include "numbers.h"
#include "random.h"

#include <pthread.h>
#include <stdlib.h>

/* Elements and type of a tensor; no elements: the problem does not have it. */
struct shape {
    size_t count;
    int type;
};

static struct shape tensor_shape(const struct problem *p, enum workload_tensor tensor)
{
    const kda_problem *s = &p->shape;
    size_t tokens = (size_t)p->tokens, hv = (size_t)s->value_heads;
    size_t k = (size_t)s->key_dim, v = (size_t)s->value_dim;
    size_t channels = s->gate == KDA_GATE_NONE ? 0 : s->flags & KDA_GATE_PER_HEAD ? 1 : k;
    bool learnt = s->gate == KDA_GATE_SOFTPLUS || s->gate == KDA_GATE_BOUNDED;
    switch (tensor) {
    case WORKLOAD_Q:
    case WORKLOAD_K:
        return (struct shape){tokens * (size_t)s->heads * k, (int)s->dtype};
    case WORKLOAD_V:
        return (struct shape){tokens * hv * v, (int)s->dtype};
    case WORKLOAD_G:
        return (struct shape){tokens * hv * channels, (int)s->g_dtype};
    case WORKLOAD_BETA:
        return (struct shape){tokens * hv, (int)s->beta_dtype};
    case WORKLOAD_A_LOG:
        return (struct shape){learnt ? hv : 0, KDA_F32};
    case WORKLOAD_DT_BIAS:
        return (struct shape){learnt ? hv * channels : 0, KDA_F32};
    /* Integers are counted in f64, the size of an i64; these are copied from the problem. */
    case WORKLOAD_CU_SEQLENS:
        return (struct shape){p->ragged ? (size_t)p->sequences + 1 : 0, NUMBER_F64};
    case WORKLOAD_STATE_INDEX:
        return (struct shape){p->slots ? (size_t)(p->sequences * p->columns) : 0, NUMBER_F64};
    case WORKLOAD_ACCEPTED:
        return (struct shape){p->columns > 1 ? (size_t)p->sequences : 0, NUMBER_F64};
    case WORKLOAD_OUT:
        return (struct shape){tokens * hv * v, (int)s->out_dtype};
    default:
        return (struct shape){p->states ? (size_t)(p->slots ? p->slots : p->sequences) * hv * k * v
                                        : 0,
                              (int)s->state_dtype};
    }
}

static float draw(const struct problem *p, enum workload_tensor tensor, uint64_t seed, uint64_t i)
{
    if (tensor == WORKLOAD_A_LOG)
        return logf(1 + 15 * random_uniform(seed, i));
    if (tensor == WORKLOAD_G && p->shape.gate == KDA_GATE_LOG)
        return -log1pf(expf(random_normal(seed, i)));
    return random_normal(seed, i);
}

static int64_t common_divisor(int64_t a, int64_t b)
{
    return b ? common_divisor(b, a % b) : a;
}

/* Steps of about a golden section of the pool, which meet every slot once. */
int64_t workload_slot(const struct problem *p, int64_t i)
{
    if (!p->slots)
        return i;
    int64_t step = (int64_t)(0.618 * (double)p->slots) + 1;
    while (common_divisor(p->slots, step) != 1)
        ++step;
    return i * step % p->slots;
}

static void fill_integers(struct workload *w, enum workload_tensor tensor, uint64_t seed)
{
    const struct problem *p = w->problem;
    int64_t *list = w->data[tensor];
    const size_t count = w->bytes[tensor] / sizeof *list;
    for (size_t i = 0; i < count; ++i)
        list[i] = tensor == WORKLOAD_CU_SEQLENS ? p->starts[i]
                  : tensor == WORKLOAD_STATE_INDEX
                      ? workload_slot(p, (int64_t)i)
                      : 1 + (int64_t)(random_bits(seed, i) % (uint64_t)p->columns);
}

/* A part of a tensor, to be filled by one thread. */
struct part {
    const struct workload *w;
    enum workload_tensor tensor;
    uint64_t stream;
    size_t begin, end;
};

static void *fill_part(void *arg)
{
    const struct part *part = arg;
    const int type = tensor_shape(part->w->problem, part->tensor).type;
    for (size_t i = part->begin; i < part->end; ++i)
        number_store(part->w->data[part->tensor], type, (int64_t)i,
                     draw(part->w->problem, part->tensor, part->stream, i));
    return NULL;
}

/* By as many threads as there are cores, where that is worth starting them; what a thread that does
 * not start would fill, this one does. */
static void fill(struct workload *w, enum workload_tensor tensor, uint64_t seed)
{
    enum { MOST = 64, WORTH = 1 << 20 };
    const size_t count = tensor_shape(w->problem, tensor).count, cores = (size_t)machine_cores();
    size_t parts = count / WORTH + 1, started = 0;
    parts = parts < cores ? parts : cores;
    parts = parts < MOST ? parts : MOST;
    struct part part[MOST];
    pthread_t thread[MOST];
    for (size_t i = 0; i < parts; ++i)
        part[i] = (struct part){w, tensor, random_bits(seed, (uint64_t)tensor), count * i / parts,
                                count * (i + 1) / parts};
    while (started + 1 < parts &&
           !pthread_create(&thread[started], NULL, fill_part, &part[started]))
        ++started;
    for (size_t i = started; i < parts; ++i)
        fill_part(&part[i]);
    for (size_t i = 0; i < started; ++i)
        pthread_join(thread[i], NULL);
}

bool workload_create(struct workload *w, const struct problem *problem, uint64_t seed)
{
    *w = (struct workload){.problem = problem};
    /* beyond this allocation may succeed, and using it would end the program */
    double bytes = 0;
    for (int t = 0; t < WORKLOAD_TENSORS; ++t) {
        struct shape shape = tensor_shape(problem, (enum workload_tensor)t);
        w->bytes[t] = shape.count * number_size(shape.type);
        bytes += (double)w->bytes[t];
    }
    if (bytes > machine_memory())
        return false;
    for (int t = 0; t < WORKLOAD_TENSORS; ++t) {
        if (!w->bytes[t])
            continue;
        w->data[t] = malloc(w->bytes[t]);
        if (!w->data[t]) {
            workload_free(w);
            return false;
        }
        if (t >= WORKLOAD_CU_SEQLENS && t <= WORKLOAD_ACCEPTED)
            fill_integers(w, (enum workload_tensor)t, seed);
        else if (t < WORKLOAD_FINAL_STATE)
            fill(w, (enum workload_tensor)t, seed);
    }
    workload_poison(w);
    return true;
}

void workload_free(struct workload *w)
{
    for (int t = 0; t < WORKLOAD_TENSORS; ++t)
        free(w->data[t]);
    *w = (struct workload){0};
}

/* All bits set is a NaN in every storage type. */
void workload_poison(struct workload *w)
{
    for (int t = WORKLOAD_FINAL_STATE; t <= WORKLOAD_OUT; ++t)
        if (w->data[t])
            memset(w->data[t], 0xff, w->bytes[t]);
}

kda_args workload_args(const struct workload *w, const cl_mem *mem)
{
    kda_args args = *kda_args(.tokens = w->problem->tokens, .sequences = w->problem->sequences,
                              .cu_seqlens_type = KDA_I64, .state_index_type = KDA_I64,
                              .slots = w->problem->slots);
    if (args.slots)
        args.index_columns = (int32_t)w->problem->columns;
    for (int64_t n = 0; n < args.sequences; ++n) {
        int64_t length = w->problem->starts[n + 1] - w->problem->starts[n];
        args.max_length = length > args.max_length ? length : args.max_length;
    }
    kda_input *inputs[] = {
        [WORKLOAD_Q] = &args.q,
        [WORKLOAD_K] = &args.k,
        [WORKLOAD_V] = &args.v,
        [WORKLOAD_G] = &args.g,
        [WORKLOAD_BETA] = &args.beta,
        [WORKLOAD_A_LOG] = &args.a_log,
        [WORKLOAD_DT_BIAS] = &args.dt_bias,
        [WORKLOAD_CU_SEQLENS] = &args.cu_seqlens,
        [WORKLOAD_STATE_INDEX] = &args.state_index,
        [WORKLOAD_ACCEPTED] = &args.accepted,
        [WORKLOAD_INITIAL_STATE] = &args.initial_state,
    };
    for (int t = 0; t < WORKLOAD_FINAL_STATE; ++t)
        *inputs[t] = mem ? (kda_input){.mem = mem[t]} : (kda_input){.host = w->data[t]};
    kda_output *outputs[] = {&args.final_state, &args.out};
    for (int t = WORKLOAD_FINAL_STATE; t <= WORKLOAD_OUT; ++t)
        *outputs[t - WORKLOAD_FINAL_STATE] =
            mem ? (kda_output){.mem = mem[t]} : (kda_output){.host = w->data[t]};
    return args;
}

/* From a safetensors file to a problem and its arguments, tensors by their wanted shapes, and the
 * results back into a file. What the library checks itself (sizes, which tensors a gate needs,
 * contents) is left to it; here a file is held to its own description.
 *
 * SPDX-License-Identifier: MIT */
#include "job.h"
#include "numbers.h"

#include <stdio.h>
#include <stdlib.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* The inputs that have gradients, those that don't, and what tests keep beside them. */
static const char *const real[] = {"q", "k", "v", "g", "beta", "a_log", "dt_bias", "initial_state"};
static const char *const indices[] = {"cu_seqlens", "state_index", "write_index", "accepted",
                                      "fresh"};
static const char *const results[] = {"o", "final_state", "checkpoints", "do", "dht"};

/* The shape a tensor should have; ANY where the tensor itself decides. */
enum { MAX_DIMS = 4, ANY = -1 };
struct shape {
    const char *formula;
    int rank;
    int64_t n[MAX_DIMS];
};

static bool listed(const char *const *list, size_t count, const char *name)
{
    for (size_t i = 0; i < count; ++i)
        if (!strcmp(list[i], name))
            return true;
    return false;
}

static bool check_names(const struct job *job, char *error)
{
    char quoted[64];
    for (size_t i = 0; i < job->file->num_tensors; ++i) {
        const char *name = job->file->tensors[i].name;
        if (!listed(real, COUNT(real), name) && !listed(indices, COUNT(indices), name) &&
            !listed(results, COUNT(results), name) &&
            !(name[0] == 'd' && listed(real, COUNT(real), name + 1)))
            return st_fail(error, job->path, "unknown tensor '%s'",
                           st_quote(quoted, sizeof(quoted), name));
    }
    return true;
}

/* "[40, 2, any]" */
static const char *shape_text(char *out, size_t size, int rank, const int64_t *n)
{
    size_t at = 0;
    out[0] = 0;
    for (int i = 0; i < rank && at < size; ++i)
        at += (size_t)(n[i] == ANY ? snprintf(out + at, size - at, "%sany", i ? ", " : "[")
                                   : snprintf(out + at, size - at, "%s%lld", i ? ", " : "[",
                                              (long long)n[i]));
    if (at < size)
        snprintf(out + at, size - at, rank ? "]" : "[]");
    return out;
}

static bool check_shape(const struct job *job, const struct st_tensor *t, const struct shape *want,
                        char *error)
{
    char found[200], wanted[120];
    bool same = t->rank == want->rank;
    for (int i = 0; same && i < t->rank; ++i)
        same = want->n[i] == ANY || want->n[i] == t->shape[i];
    return same || st_fail(error, job->path, "tensor '%s': shape %s, wanted %s = %s", t->name,
                           shape_text(found, sizeof(found), t->rank, t->shape), want->formula,
                           shape_text(wanted, sizeof(wanted), want->rank, want->n));
}

/* types: a set of 1 << enum st_dtype. */
static bool check_type(const struct job *job, const struct st_tensor *t, unsigned types,
                       char *error)
{
    char list[64] = "";
    if (types >> t->dtype & 1)
        return true;
    for (int i = 0; i < ST_DTYPES; ++i) {
        size_t n = strlen(list);
        if (types >> i & 1)
            snprintf(list + n, sizeof(list) - n, "%s%s", n ? " or " : "",
                     st_dtype_name((enum st_dtype)i));
    }
    return st_fail(error, job->path, "tensor '%s': type %s, wanted %s", t->name,
                   st_dtype_name(t->dtype), list);
}

int job_number_type(const struct st_tensor *tensor)
{
    switch (tensor->dtype) {
    case ST_F64:
        return NUMBER_F64;
    case ST_F16:
        return KDA_F16;
    case ST_BF16:
        return KDA_BF16;
    default:
        return KDA_F32;
    }
}

static enum st_dtype file_type(kda_dtype type)
{
    return type == KDA_BF16 ? ST_BF16 : type == KDA_F16 ? ST_F16 : ST_F32;
}

/* Sets of types. */
enum {
    F32 = 1 << ST_F32,
    ANY_FLOAT = 1 << ST_F32 | 1 << ST_F16 | 1 << ST_BF16,
    ANY_INDEX = 1 << ST_I32 | 1 << ST_I64,
    FLAGS = 1 << ST_BOOL | 1 << ST_U8
};

/* Checks a tensor and hands it to the library. NULL if there is none of that name, which is no
 * error, or if ok is false, then or before. */
static const struct st_tensor *take(struct job *job, const char *name, unsigned types,
                                    struct shape want, kda_input *input, char *error, bool *ok)
{
    const struct st_tensor *t = *ok ? st_find(job->file, name) : NULL;
    if (!t)
        return NULL;
    *ok = check_type(job, t, types, error) && check_shape(job, t, &want, error);
    if (!*ok)
        return NULL;
    input->host = st_data(job->file, t);
    if (!input->host)
        *ok = st_fail(error, job->path, "out of memory");
    return *ok ? t : NULL;
}

static bool check_present(const struct job *job, char *error)
{
    static const char *const needed[] = {"q", "k", "v"};
    for (size_t i = 0; i < COUNT(needed); ++i)
        if (!st_find(job->file, needed[i]))
            return st_fail(error, job->path, "tensor '%s' is missing", needed[i]);
    return true;
}

/* Dimensions that the library counts in 32 bits. */
static bool check_small(const struct job *job, const struct st_tensor *t, char *error)
{
    char found[200];
    for (int i = 0; i < t->rank; ++i)
        if (t->shape[i] > INT32_MAX)
            return st_fail(error, job->path, "tensor '%s': shape %s is above 2^31-1", t->name,
                           shape_text(found, sizeof(found), t->rank, t->shape));
    return true;
}

static bool take_tokens(struct job *job, char *error)
{
    kda_problem *p = &job->problem;
    kda_args *a = &job->args;
    bool ok = check_present(job, error);
    const struct st_tensor *q = take(
        job, "q", ANY_FLOAT, (struct shape){"[T, H, K]", 3, {ANY, ANY, ANY}}, &a->q, error, &ok);
    if (!q || !check_small(job, q, error))
        return false;
    a->tokens = q->shape[0];
    p->max_tokens = a->tokens ? a->tokens : 1;
    p->heads = (int32_t)q->shape[1];
    p->key_dim = (int32_t)q->shape[2];
    p->dtype = (kda_dtype)job_number_type(q);
    take(job, "k", 1u << q->dtype,
         (struct shape){"[T, H, K]", 3, {a->tokens, p->heads, p->key_dim}}, &a->k, error, &ok);
    const struct st_tensor *v =
        take(job, "v", 1u << q->dtype, (struct shape){"[T, HV, V]", 3, {a->tokens, ANY, ANY}},
             &a->v, error, &ok);
    if (!v || !check_small(job, v, error))
        return false;
    if (v->shape[1] == 0) /* to the library, 0 value heads are as many as heads */
        return st_fail(error, job->path, "tensor 'v': shape [%lld, 0, %lld] has no heads",
                       (long long)v->shape[0], (long long)v->shape[2]);
    p->value_heads = (int32_t)v->shape[1];
    p->value_dim = (int32_t)v->shape[2];
    return true;
}

static bool take_gates(struct job *job, char *error)
{
    kda_problem *p = &job->problem;
    kda_args *a = &job->args;
    unsigned float_types = F32 | 1u << file_type(p->dtype);
    bool per_head = p->flags & KDA_GATE_PER_HEAD, ok = true;
    int64_t T = a->tokens, HV = p->value_heads, K = p->key_dim;
    const struct st_tensor *g = take(job, "g", float_types,
                                     per_head ? (struct shape){"[T, HV]", 2, {T, HV}}
                                              : (struct shape){"[T, HV, K]", 3, {T, HV, K}},
                                     &a->g, error, &ok);
    const struct st_tensor *beta =
        take(job, "beta", float_types, (struct shape){"[T, HV]", 2, {T, HV}}, &a->beta, error, &ok);
    take(job, "a_log", F32, (struct shape){"[HV]", 1, {HV}}, &a->a_log, error, &ok);
    take(job, "dt_bias", F32,
         per_head ? (struct shape){"[HV]", 1, {HV}} : (struct shape){"[HV, K]", 2, {HV, K}},
         &a->dt_bias, error, &ok);
    if (g)
        p->g_dtype = (kda_dtype)job_number_type(g);
    if (beta)
        p->beta_dtype = (kda_dtype)job_number_type(beta);
    return ok;
}

static bool take_sequences(struct job *job, char *error)
{
    kda_problem *p = &job->problem;
    kda_args *a = &job->args;
    bool ok = true;
    const struct st_tensor *cu =
        take(job, "cu_seqlens", ANY_INDEX, (struct shape){"[N+1]", 1, {ANY}}, &a->cu_seqlens, error,
             &ok);
    if (cu && cu->shape[0] < 2)
        return st_fail(error, job->path,
                       "tensor 'cu_seqlens': shape [%lld], wanted [N+1] with N >= 1",
                       (long long)cu->shape[0]);
    a->sequences = cu ? cu->shape[0] - 1 : 1;
    a->cu_seqlens_type = cu && cu->dtype == ST_I64 ? KDA_I64 : KDA_I32;
    p->max_sequences = a->sequences;
    take(job, "fresh", FLAGS, (struct shape){"[N]", 1, {a->sequences}}, &a->fresh, error, &ok);
    return ok;
}

/* state_index, whose second dimension if it has one counts the columns, and what goes with it. */
static bool take_slots(struct job *job, char *error)
{
    kda_args *a = &job->args;
    bool ok = true;
    const struct st_tensor *index = st_find(job->file, "state_index");
    const bool table = index && index->rank == 2;
    const struct shape row = {"[N]", 1, {a->sequences}},
                       rows = {"[N, columns]", 2, {a->sequences, table ? index->shape[1] : ANY}};
    if (table && (index->shape[1] < 1 || index->shape[1] > INT32_MAX))
        return st_fail(error, job->path, "tensor 'state_index': %lld columns",
                       (long long)index->shape[1]);
    a->index_columns = table ? (int32_t)index->shape[1] : 1;
    index = take(job, "state_index", ANY_INDEX, table ? rows : row, &a->state_index, error, &ok);
    const unsigned types = index ? 1u << index->dtype : ANY_INDEX;
    a->state_index_type = index && index->dtype == ST_I64 ? KDA_I64 : KDA_I32;
    take(job, "write_index", types, table ? rows : row, &a->write_index, error, &ok);
    take(job, "accepted", types, row, &a->accepted, error, &ok);
    return ok;
}

/* What states are counted by. */
enum count { SEQUENCES, SLOTS, CHECKPOINTS };

static struct shape state_shape(const kda_problem *p, enum count what, int64_t count)
{
    static const char *const kv[] = {"[N, HV, K, V]", "[slots, HV, K, V]",
                                     "[checkpoints, HV, K, V]"};
    static const char *const vk[] = {"[N, HV, V, K]", "[slots, HV, V, K]",
                                     "[checkpoints, HV, V, K]"};
    if (p->state_layout == KDA_STATE_VK)
        return (struct shape){vk[what], 4, {count, p->value_heads, p->value_dim, p->key_dim}};
    return (struct shape){kv[what], 4, {count, p->value_heads, p->key_dim, p->value_dim}};
}

static bool take_states(struct job *job, char *error)
{
    kda_problem *p = &job->problem;
    kda_args *a = &job->args;
    bool pool = a->state_index.host, ok = true;
    struct shape want = pool ? state_shape(p, SLOTS, ANY) : state_shape(p, SEQUENCES, a->sequences);
    const struct st_tensor *state =
        take(job, "initial_state", ANY_FLOAT, want, &a->initial_state, error, &ok);
    if (!ok)
        return false;
    if (pool && !state)
        return st_fail(error, job->path,
                       "tensor 'initial_state' is missing: state_index points into it");
    p->state_dtype = state ? (kda_dtype)job_number_type(state) : KDA_F32;
    a->slots = pool ? state->shape[0] : 0;
    return true;
}

static int64_t index_at(const kda_input *input, kda_index_type type, int64_t i)
{
    return type == KDA_I64 ? ((const int64_t *)input->host)[i] : ((const int32_t *)input->host)[i];
}

/* Sequence n's first token, and how many checkpoints it has. */
static int64_t sequence_checkpoints(const struct job *job, int64_t n, int64_t *start)
{
    const kda_args *a = &job->args;
    int64_t end = a->tokens;
    *start = 0;
    if (a->cu_seqlens.host) {
        *start = index_at(&a->cu_seqlens, a->cu_seqlens_type, n);
        end = index_at(&a->cu_seqlens, a->cu_seqlens_type, n + 1);
    }
    /* Offsets have not been checked when this is first asked. */
    bool sane = 0 <= *start && *start <= end && end <= a->tokens;
    return sane ? (end - *start) / job->problem.checkpoint_every : 0;
}

static const char *const output_names[JOB_OUTPUTS] = {"o", "final_state", "checkpoints"};

static bool has_output(const struct job *job, int id)
{
    return id != JOB_CHECKPOINTS || job->problem.checkpoint_every;
}

static struct shape output_shape(const struct job *job, int id)
{
    const kda_problem *p = &job->problem;
    const kda_args *a = &job->args;
    int64_t count = 0, start;
    if (id == JOB_OUT)
        return (struct shape){"[T, HV, V]", 3, {a->tokens, p->value_heads, p->value_dim}};
    if (id == JOB_STATE)
        return a->slots ? state_shape(p, SLOTS, a->slots) : state_shape(p, SEQUENCES, a->sequences);
    for (int64_t n = 0; n < a->sequences; ++n)
        count += sequence_checkpoints(job, n, &start);
    return state_shape(p, CHECKPOINTS, count);
}

bool job_open(struct job *job, const char *path, const struct metadata_settings *set, char *error)
{
    *job = (struct job){.path = path};
    job->problem.struct_size = sizeof(job->problem);
    job->args.struct_size = sizeof(job->args);
    job->file = st_open(path, error);
    return job->file && check_names(job, error) &&
           metadata_read(job->file, path, set, &job->problem, error) && take_tokens(job, error) &&
           take_gates(job, error) && take_sequences(job, error) && take_slots(job, error) &&
           take_states(job, error);
}

void job_close(struct job *job)
{
    for (int i = 0; i < JOB_OUTPUTS; ++i)
        free(job->output[i].data);
    st_close(job->file);
    *job = (struct job){0};
}

bool job_references(struct job *job, char *error)
{
    const unsigned types = ANY_FLOAT | 1u << ST_F64;
    bool any = false;
    for (int id = 0; id < JOB_OUTPUTS; ++id)
        any |= st_find(job->file, output_names[id]) != NULL;
    if (!any)
        return st_fail(error, job->path,
                       "nothing to check: no tensor 'o', 'final_state' or 'checkpoints'");
    for (int id = 0; id < JOB_OUTPUTS; ++id) {
        const struct st_tensor *t = st_find(job->file, output_names[id]);
        job->output[id].reference = t;
        if (!t)
            continue;
        if (!has_output(job, id))
            return st_fail(error, job->path, "tensor '%s' without metadata 'checkpoint_every'",
                           t->name);
        struct shape want = output_shape(job, id);
        if (!check_type(job, t, types, error) || !check_shape(job, t, &want, error))
            return false;
    }
    return true;
}

/* rows: of the memory, at least those of the shape. */
static bool make_output(struct job *job, int id, kda_dtype type, int64_t rows, char *error)
{
    struct job_output *out = &job->output[id];
    struct st_tensor *t = &out->tensor;
    struct shape shape = output_shape(job, id);
    double bytes = (double)number_size(type) * (double)rows;
    *t = (struct st_tensor){output_names[id], file_type(type), shape.rank, {0}, NULL};
    for (int i = 0; i < shape.rank; ++i) {
        t->shape[i] = shape.n[i];
        bytes *= i ? (double)shape.n[i] : 1;
    }
    /* The product is exact up to 2^53, and no memory is larger. Zeros stay where nothing is
     * written: in the checkpoints of a sequence that is skipped. */
    if (bytes < 0x1p53)
        out->data = calloc((size_t)bytes + 1, 1);
    t->data = out->data;
    return out->data || st_fail(error, job->path, "not enough memory for %s (%.0f bytes)",
                                output_names[id], bytes);
}

bool job_allocate(struct job *job, char *error)
{
    const kda_problem *p = &job->problem;
    kda_args *a = &job->args;
    int64_t every = p->checkpoint_every, checkpoints = every ? a->tokens / every : 0;
    if (!make_output(job, JOB_OUT, p->out_dtype ? p->out_dtype : p->dtype, a->tokens, error) ||
        !make_output(job, JOB_STATE, p->state_dtype, a->slots ? a->slots : a->sequences, error) ||
        (every && !make_output(job, JOB_CHECKPOINTS, p->state_dtype, checkpoints, error)))
        return false;
    a->out.host = job->output[JOB_OUT].data;
    a->final_state.host = job->output[JOB_STATE].data;
    a->checkpoints.host = job->output[JOB_CHECKPOINTS].data;
    if (a->slots) {
        memcpy(a->final_state.host, a->initial_state.host,
               st_bytes(&job->output[JOB_STATE].tensor));
        a->initial_state.host = a->final_state.host;
    }
    return true;
}

void job_collect(struct job *job)
{
    struct job_output *out = &job->output[JOB_CHECKPOINTS];
    int64_t every = job->problem.checkpoint_every, to = 0, start;
    if (!out->data || !out->tensor.shape[0])
        return;
    size_t state = st_bytes(&out->tensor) / (size_t)out->tensor.shape[0];
    char *data = out->data;
    for (int64_t n = 0; n < job->args.sequences; ++n) {
        int64_t count = sequence_checkpoints(job, n, &start);
        memmove(data + (size_t)to * state, data + (size_t)(start / every) * state,
                (size_t)count * state);
        to += count;
    }
}

/* A tensor of the same numbers as F32, to be freed by its data. */
static struct st_tensor widened(const struct st_tensor *from)
{
    struct st_tensor to = *from;
    int64_t count = st_elements(from);
    float *data = malloc((size_t)count * sizeof(*data) + 1);
    for (int64_t i = 0; data && i < count; ++i)
        data[i] = (float)number_load(from->data, job_number_type(from), i);
    to.dtype = ST_F32;
    to.data = data;
    return to;
}

bool job_write(const struct job *job, const char *path, char *error)
{
    struct st_tensor list[JOB_OUTPUTS];
    void *copies[JOB_OUTPUTS] = {NULL};
    size_t count = 0;
    bool ok = true;
    for (int id = 0; id < JOB_OUTPUTS; ++id) {
        const struct st_tensor *t = &job->output[id].tensor;
        if (!job->output[id].data)
            continue;
        list[count] = *t;
        if (id != JOB_OUT && t->dtype != ST_F32) {
            list[count] = widened(t);
            copies[id] = (void *)(uintptr_t)list[count].data;
            ok &= !!copies[id];
        }
        ++count;
    }
    ok = ok ? st_write(path, list, count, NULL, 0, error) : st_fail(error, path, "out of memory");
    for (int id = 0; id < JOB_OUTPUTS; ++id)
        free(copies[id]);
    return ok;
}

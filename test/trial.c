/* The valid call, its memory and its devices; see trial.h.
 *
 * SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "spec.h"
#include "trial.h"

/* Bytes of workspace: ONE_CHUNK is enough for one chunk of the FUSED call at once, not for two. */
enum { POISON = 0xa5, SPARE_BYTES = 4096, ONE_CHUNK = 60 << 10, FOREIGN_BYTES = 64 << 10 };

static void must(bool ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "the test could not be set up: %s\n", what);
    exit(1);
}

void log_line(void *data, kda_log_level level, const char *line)
{
    struct log *log = data;
    pthread_mutex_lock(&log->lock);
    log->lines[level]++;
    if (level == KDA_LOG_ERROR)
        snprintf(log->error, sizeof log->error, "%s", line);
    pthread_mutex_unlock(&log->lock);
}

void log_clear(struct log *log)
{
    pthread_mutex_lock(&log->lock);
    memset(log->lines, 0, sizeof log->lines);
    log->error[0] = 0;
    pthread_mutex_unlock(&log->lock);
}

#define VIEW(name, output, strided, ...)                                                           \
    {                                                                                              \
#name, offsetof(kda_args, name), sizeof(float[__VA_ARGS__]), output, strided               \
    }
const struct view views[TENSORS] = {
    [Q] = VIEW(q, false, true, TOKENS *HEADS *KEY_DIM),
    [K] = VIEW(k, false, true, TOKENS *HEADS *KEY_DIM),
    [V] = VIEW(v, false, true, TOKENS *VALUE_HEADS *VALUE_DIM),
    [G] = VIEW(g, false, true, TOKENS *VALUE_HEADS *KEY_DIM),
    [BETA] = VIEW(beta, false, true, TOKENS *VALUE_HEADS),
    [A_LOG] = VIEW(a_log, false, false, VALUE_HEADS),
    [DT_BIAS] = VIEW(dt_bias, false, false, VALUE_HEADS *KEY_DIM),
    [CU_SEQLENS] = VIEW(cu_seqlens, false, false, SEQUENCES + 1),
    [INITIAL_STATE] = VIEW(initial_state, false, true, SEQUENCES *VALUE_HEADS *KEY_DIM *VALUE_DIM),
    [FINAL_STATE] = VIEW(final_state, true, true, SEQUENCES *VALUE_HEADS *KEY_DIM *VALUE_DIM),
    [OUT] = VIEW(out, true, true, TOKENS *VALUE_HEADS *VALUE_DIM),
    [STATE_INDEX] = VIEW(state_index, false, false, SEQUENCES),
    [WRITE_INDEX] = VIEW(write_index, false, false, SEQUENCES),
    [ACCEPTED] = VIEW(accepted, false, false, SEQUENCES),
    [FRESH] = {"fresh", offsetof(kda_args, fresh), SEQUENCES, false, false},
    [CHECKPOINTS] = VIEW(checkpoints, true, true, SEQUENCES *VALUE_HEADS *KEY_DIM *VALUE_DIM),
};

kda_input view_get(const kda_args *args, enum tensor id)
{
    kda_input view;
    memcpy(&view, (const char *)args + views[id].at, sizeof view);
    return view;
}

void view_set(kda_args *args, enum tensor id, kda_input view)
{
    memcpy((char *)args + views[id].at, &view, sizeof view);
}

/* Multiples of 1/8 below 1; decays are negative, write strengths positive. */
static void *make_contents(enum tensor id)
{
    static const int32_t starts[] = {0, 2, 4, 6}, slots[] = {2, 0, 1}, writes[] = {0, 1, 2},
                         accepted[] = {1, 1, 1};
    static const char fresh[] = {0, 1, 0};
    const void *const integers[TENSORS] = {[CU_SEQLENS] = starts,
                                           [STATE_INDEX] = slots,
                                           [WRITE_INDEX] = writes,
                                           [ACCEPTED] = accepted,
                                           [FRESH] = fresh};
    char *memory = malloc(views[id].bytes);
    must(memory, "host memory");
    if (integers[id])
        return memcpy(memory, integers[id], views[id].bytes);
    for (size_t i = 0; i < views[id].bytes / sizeof(float); i++) {
        float x = (float)((i * 5 + id) % 7 + 1) / 8;
        if (id == G || (id != BETA && i % 3 == 0))
            x = -x;
        memcpy(memory + i * sizeof x, &x, sizeof x);
    }
    return memory;
}

static void open_queues(struct rig *rig)
{
    cl_int code;
    cl_context context = kda_context_cl_context(rig->ctx);
    rig->queue = clCreateCommandQueue(context, rig->device, 0, &code);
    must(rig->queue, "clCreateCommandQueue");
    for (int i = 0; i < TENSORS; i++) {
        rig->mem[i] =
            clCreateBuffer(context, CL_MEM_COPY_HOST_PTR, views[i].bytes, rig->host[i], &code);
        must(rig->mem[i], "clCreateBuffer");
    }
    rig->spare = clCreateBuffer(context, CL_MEM_READ_WRITE, SPARE_BYTES, NULL, &code);
    rig->read_only = clCreateBuffer(context, CL_MEM_READ_ONLY, SPARE_BYTES, NULL, &code);
    rig->write_only = clCreateBuffer(context, CL_MEM_WRITE_ONLY, SPARE_BYTES, NULL, &code);
    rig->foreign = clCreateContext(NULL, 1, &rig->device, NULL, NULL, &code);
    must(rig->foreign, "clCreateContext");
    rig->foreign_mem = clCreateBuffer(rig->foreign, CL_MEM_READ_WRITE, FOREIGN_BYTES, NULL, &code);
    rig->foreign_queue = clCreateCommandQueue(rig->foreign, rig->device, 0, &code);
    must(rig->spare && rig->read_only && rig->write_only && rig->foreign_mem && rig->foreign_queue,
         "OpenCL objects");
}

static void rig_open(struct rig *rig, const kda_context_params *wanted)
{
    memset(rig, 0, sizeof *rig);
    pthread_mutex_init(&rig->log.lock, NULL);
    kda_context_params params = *wanted;
    params.log = log_line;
    params.log_data = &rig->log;
    params.log_level = KDA_LOG_DEBUG;
    kda_status st = kda_context_create(&rig->ctx, &params);
    if (st)
        fprintf(stderr, "%s\n", rig->log.error);
    must(st == KDA_OK, "kda_context_create");
    for (int i = 0; i < TENSORS; i++)
        rig->host[i] = make_contents((enum tensor)i);
    rig->device = kda_context_cl_device(rig->ctx);
    snprintf(rig->name, sizeof rig->name, "CPU backend");
    if (!rig->device)
        return;
    clGetDeviceInfo(rig->device, CL_DEVICE_NAME, sizeof rig->name, rig->name, NULL);
    open_queues(rig);
}

static void rig_close(struct rig *rig)
{
    for (int i = 0; i < BASES; i++) {
        kda_plan_destroy(&rig->plans[i]);
        kda_plan_destroy(&rig->debug_plans[i]);
        if (rig->workspace[i])
            clReleaseMemObject(rig->workspace[i]);
    }
    for (int i = 0; i < TENSORS; i++)
        free(rig->host[i]);
    if (rig->device) {
        for (int i = 0; i < TENSORS; i++)
            clReleaseMemObject(rig->mem[i]);
        clReleaseMemObject(rig->spare);
        clReleaseMemObject(rig->read_only);
        clReleaseMemObject(rig->write_only);
        clReleaseMemObject(rig->foreign_mem);
        clReleaseCommandQueue(rig->queue);
        clReleaseCommandQueue(rig->foreign_queue);
        clReleaseContext(rig->foreign);
    }
    kda_context_destroy(&rig->debug);
    kda_context_destroy(&rig->ctx);
    pthread_mutex_destroy(&rig->log.lock);
}

static int run_on(const kda_context_params *params, int (*test)(struct rig *rig))
{
    static struct rig rig;
    rig_open(&rig, params);
    printf("%s\n", rig.name);
    fflush(stdout);
    int failed = test(&rig);
    rig_close(&rig);
    return failed;
}

int for_each_rig(int (*test)(struct rig *rig))
{
    const char *asked = getenv("KDA_TEST_DEVICE");
    if (asked && *asked) {
        kda_context_params params = {.struct_size = sizeof params};
        return spec_resolve(asked, &params) ? 1 : run_on(&params, test);
    }
    int failed = run_on(kda_context_params(.backend = KDA_CPU), test);
    struct spec_device *list;
    size_t n = spec_devices(&list);
    for (size_t i = 0; i < n; i++)
        failed += run_on(kda_context_params(.backend = KDA_OPENCL, .device = list[i].id), test);
    free(list);
    return failed;
}

static const kda_problem *base_problem(enum base base)
{
    static kda_problem p;
    p = (kda_problem){.struct_size = sizeof p,
                      .heads = HEADS,
                      .value_heads = VALUE_HEADS,
                      .key_dim = KEY_DIM,
                      .value_dim = VALUE_DIM,
                      .max_tokens = 8,
                      .max_sequences = SEQUENCES};
    if (base == PER_HEAD)
        p.flags = KDA_GATE_PER_HEAD;
    if (base == SOFTPLUS || base == FULL)
        p.gate = KDA_GATE_SOFTPLUS;
    if (base == BOUNDED)
        p.gate = KDA_GATE_BOUNDED;
    if (base == NONE)
        p.gate = KDA_GATE_NONE;
    if (base == ADDITIVE)
        p.rule = KDA_RULE_ADDITIVE;
    if (base == HALF)
        p.dtype = p.state_dtype = KDA_BF16;
    if (base == FULL)
        p.checkpoint_every = TOKENS / SEQUENCES;
    if (base == FUSED || base == CLBLAST) {
        p.schedule = KDA_SCHEDULE_CHUNKWISE;
        p.engine = base == FUSED ? KDA_ENGINE_FUSED : KDA_ENGINE_CLBLAST;
        p.chunk = 16;
        p.max_workspace = base == FUSED ? ONE_CHUNK : 0;
    }
    return &p;
}

static bool base_has(enum base base, enum tensor id)
{
    switch (id) {
    case G:
        return base != NONE;
    case BETA:
        return base != ADDITIVE;
    case A_LOG:
    case DT_BIAS:
        return base == SOFTPLUS || base == FULL;
    case CU_SEQLENS:
    case STATE_INDEX:
    case WRITE_INDEX:
    case ACCEPTED:
    case FRESH:
    case CHECKPOINTS:
        return base == FULL;
    default:
        return true;
    }
}

kda_plan *rig_plan(struct rig *rig, enum base base)
{
    if (rig->plans[base])
        return rig->plans[base];
    must(kda_plan_create(&rig->plans[base], rig->ctx, base_problem(base)) == KDA_OK,
         rig->log.error);
    size_t bytes = kda_plan_workspace(rig->plans[base]);
    if (bytes && rig->device) {
        rig->workspace[base] =
            clCreateBuffer(kda_context_cl_context(rig->ctx), CL_MEM_READ_WRITE, bytes, NULL, NULL);
        must(rig->workspace[base], "the workspace");
    }
    return rig->plans[base];
}

kda_plan *rig_debug_plan(struct rig *rig, enum base base)
{
    kda_context_params params = {.struct_size = sizeof params,
                                 .context = kda_context_cl_context(rig->ctx),
                                 .device = rig->device,
                                 .log = log_line,
                                 .log_data = &rig->log,
                                 .debug = 1};
    if (!rig->debug)
        must(kda_context_create(&rig->debug, &params) == KDA_OK, rig->log.error);
    if (!rig->debug_plans[base])
        must(kda_plan_create(&rig->debug_plans[base], rig->debug, base_problem(base)) == KDA_OK,
             rig->log.error);
    return rig->debug_plans[base];
}

kda_input trial_tensor(const struct trial *trial, enum tensor id)
{
    return trial->device ? (kda_input){.mem = trial->rig->mem[id]}
                         : (kda_input){.host = trial->rig->host[id]};
}

struct trial trial_make(struct rig *rig, enum base base, bool device)
{
    struct trial t = {
        .rig = rig,
        .device = device,
        .params = {.struct_size = sizeof(kda_context_params),
                   .backend = rig->device ? KDA_OPENCL : KDA_CPU,
                   .device = rig->device,
                   .log = log_line,
                   .log_data = &rig->log},
        .problem = *base_problem(base),
        .plan = rig_plan(rig, base),
        .args = {.struct_size = sizeof(kda_args), .tokens = TOKENS, .sequences = SEQUENCES},
        .queue = rig->queue,
    };
    for (int i = 0; i < TENSORS; i++)
        if (base_has(base, (enum tensor)i))
            view_set(&t.args, (enum tensor)i, trial_tensor(&t, (enum tensor)i));
    if (base == FULL)
        t.args.slots = SEQUENCES;
    if (device) {
        t.args.workspace.mem = rig->workspace[base];
        t.args.workspace.size = kda_plan_workspace(t.plan);
    }
    return t;
}

void trial_poison(const struct trial *trial)
{
    for (int i = 0; i < TENSORS; i++) {
        if (!views[i].output)
            continue;
        memset(trial->rig->host[i], POISON, views[i].bytes);
        if (trial->device)
            must(!clEnqueueWriteBuffer(trial->rig->queue, trial->rig->mem[i], CL_TRUE, 0,
                                       views[i].bytes, trial->rig->host[i], 0, NULL, NULL),
                 "clEnqueueWriteBuffer");
    }
}

kda_status trial_run(struct trial *trial)
{
    if (!trial->device)
        return kda_execute(trial->plan, &trial->args);
    kda_status st = kda_enqueue(trial->plan, trial->queue, &trial->args, trial->num_wait,
                                trial->wait, &trial->event);
    if (st == KDA_OK) {
        must(!clWaitForEvents(1, &trial->event), "clWaitForEvents");
        clReleaseEvent(trial->event);
        trial->event = NULL;
    }
    return st;
}

struct outputs trial_outputs(const struct trial *trial)
{
    struct outputs outputs;
    size_t at = 0;
    for (int i = 0; i < TENSORS; i++) {
        if (!views[i].output)
            continue;
        if (trial->device)
            must(!clEnqueueReadBuffer(trial->rig->queue, trial->rig->mem[i], CL_TRUE, 0,
                                      views[i].bytes, outputs.bytes + at, 0, NULL, NULL),
                 "clEnqueueReadBuffer");
        else
            memcpy(outputs.bytes + at, trial->rig->host[i], views[i].bytes);
        at += views[i].bytes;
    }
    must(at == sizeof outputs.bytes, "outputs of known size");
    return outputs;
}

bool outputs_equal(const struct outputs *a, const struct outputs *b)
{
    return !memcmp(a->bytes, b->bytes, sizeof a->bytes);
}

bool outputs_untouched(const struct outputs *outputs)
{
    for (size_t i = 0; i < sizeof outputs->bytes; i++)
        if (outputs->bytes[i] != POISON)
            return false;
    return true;
}

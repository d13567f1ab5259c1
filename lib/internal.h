/* The only private header: objects, the backend table, the checked form of a call, and the log
 * and check macros. Its idea: the front door (api.c, problem.c, run.c) turns what the caller wrote
 * into a resolved problem and a checked run; backends read only those and trust them.
 *
 * SPDX-License-Identifier: MIT */
#ifndef KDA_INTERNAL_H
#define KDA_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdarg.h>

#include "kda.h"

#define KDA_COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

struct kda_run;

/* A backend. The front door has validated everything before any of these is called. */
struct kda_backend_ops {
    kda_status (*plan_create)(kda_plan *plan);
    void (*plan_destroy)(kda_plan *plan); /* accepts half-built plans */
    kda_status (*execute)(kda_plan *plan, const struct kda_run *run);
    /* NULL: the backend has no queues */
    kda_status (*enqueue)(kda_plan *plan, cl_command_queue queue, const struct kda_run *run,
                          cl_uint num_wait, const cl_event *wait, cl_event *event);
    size_t (*describe)(const kda_plan *plan, char *text, size_t n);
    size_t (*facts)(const kda_context *ctx, kda_fact *facts, size_t max);
    void (*context_destroy)(kda_context *ctx); /* accepts half-opened contexts */
};

struct kda_context {
    const struct kda_backend_ops *ops;
    kda_backend backend;
    kda_log_fn log;
    void *log_data;
    bool debug;
    kda_launch_fn on_launch; /* NULL: nobody asks */
    void *launch_data;
    kda_log_level log_level;
    struct kda_pool *pool;           /* CPU backend */
    const struct kda_cpu_level *cpu; /* its way to compute: cpu.h */
    char cpu_threads[12];            /* the pool's size, as a fact */
    char cpu_name[32];               /* the fact "name" */
    struct kda_device *device;       /* OpenCL backend */
    struct kda_tuned_rows *tuned;    /* NULL: none */
};

struct kda_plan {
    kda_context *ctx;
    kda_problem problem;           /* every default filled in */
    size_t workspace;              /* bytes */
    void *backend;                 /* the backend's own part */
    const struct kda_tuned *tuned; /* the row that it follows; NULL: none */
};

/* ---- Log and check ---------------------------------------------------------------------- */

#ifdef __GNUC__
__attribute__((format(printf, 3, 4)))
#endif
void kda_log(const kda_context *ctx, kda_log_level level, const char *format, ...);

/* One line for each documented rule: the log gets the rule's own words. */
#define KDA_REQUIRE(ctx, rule, ...)                                                                \
    do {                                                                                           \
        if (!(rule)) {                                                                             \
            kda_log(ctx, KDA_LOG_ERROR, __VA_ARGS__);                                              \
            return KDA_INVALID;                                                                    \
        }                                                                                          \
    } while (0)

/* ---- status.c --------------------------------------------------------------------------- */

/* Logs a failed OpenCL call with its code's name and returns the status it means; KDA_OK and
 * silence for CL_SUCCESS. */
kda_status kda_cl_check(const kda_context *ctx, cl_int code, const char *call);
const char *kda_cl_error_name(cl_int code);

/* Logs that host memory ran out; returns KDA_MEMORY. */
kda_status kda_no_memory(const kda_context *ctx, const char *what, size_t bytes);

/* ---- The checked call ------------------------------------------------------------------- */

/* The tensors of a call in the order in which kernels take them. */
enum kda_tensor_id {
    KDA_TENSOR_Q,
    KDA_TENSOR_K,
    KDA_TENSOR_V,
    KDA_TENSOR_G,
    KDA_TENSOR_BETA,
    KDA_TENSOR_A_LOG,
    KDA_TENSOR_DT_BIAS,
    KDA_TENSOR_CU_SEQLENS,
    KDA_TENSOR_STATE_INDEX,
    KDA_TENSOR_WRITE_INDEX, /* the tensor state_index, if the caller gave no other */
    KDA_TENSOR_ACCEPTED,
    KDA_TENSOR_FRESH,
    KDA_TENSOR_INITIAL_STATE,
    KDA_TENSOR_FINAL_STATE,
    KDA_TENSOR_OUT,
    KDA_TENSOR_CHECKPOINTS,
    KDA_TENSORS
};

/* One tensor: rows x heads x inner elements, the strides filled in. */
struct kda_tensor {
    const char *name;
    bool output;
    bool list;      /* one number after the other; a caller's strides don't count */
    size_t element; /* bytes of one */
    int64_t rows, heads, inner;
    cl_mem mem; /* both NULL: absent */
    char *host; /* read only unless output */
    size_t offset;
    int64_t token_stride, head_stride;
};

static inline bool kda_present(const struct kda_tensor *t)
{
    return t->mem || t->host;
}

/* Address of the first element of a row of a host tensor. */
static inline char *kda_row(const struct kda_tensor *t, int64_t row, int64_t head)
{
    return t->host + t->offset +
           (size_t)(row * t->token_stride + head * t->head_stride) * t->element;
}

/* Bytes from a tensor's first element to the end of its last. */
size_t kda_tensor_span(const struct kda_tensor *t);

/* Whether a tensor's rows follow each other without gaps. */
bool kda_tensor_packed(const struct kda_tensor *t);

struct kda_run {
    int64_t tokens, sequences, slots;
    int64_t max_length; /* no sequence is longer */
    int64_t columns;    /* of state_index and write_index; more than one: token by token */
    bool cu_seqlens_i64, state_index_i64;
    struct kda_tensor tensor[KDA_TENSORS];
    struct {
        cl_mem mem;
        size_t offset, size;
    } workspace;
};

/* problem.c: copies a caller's problem, fills in every default, checks every rule. */
kda_status kda_problem_resolve(const kda_context *ctx, const kda_problem *in, kda_problem *out);
/* A caller's parameter struct of any age copied into one of this library's size. */
kda_status kda_struct_copy(const kda_context *ctx, const char *name, void *out, size_t out_size,
                           const void *in, size_t in_size);

/* run.c: the same for the arguments of a call. host: kda_execute, else kda_enqueue. */
kda_status kda_run_resolve(const kda_plan *plan, const kda_args *args, bool host,
                           struct kda_run *run);

/* sequences.c: the part of a call that belongs to sequence n, read from host tensors. */
struct kda_sequence {
    int64_t begin, length;
    int64_t slot; /* of its initial state; negative: skip it */
    bool fresh;   /* starts from zero */
};
struct kda_sequence kda_run_sequence(const struct kda_run *run, int64_t n);

/* The last kda_run_stored() states of a sequence of so many tokens are stored, the oldest of them
 * to the slot of column 0, unless that is negative. */
int64_t kda_run_stored(const struct kda_run *run, int64_t length);
int64_t kda_run_write_slot(const struct kda_run *run, int64_t n, int64_t column);

/* How many rows of a tensor of states (initial_state, final_state, checkpoints) the call reads or
 * writes, and unless `rows` is NULL, which; every: kda_problem.checkpoint_every. */
int64_t kda_run_rows(const struct kda_run *run, enum kda_tensor_id id, int64_t every,
                     int64_t *rows);

/* Whether final_state is the initial state's own memory. */
bool kda_run_in_place(const struct kda_run *run);

/* The rules for what those tensors of integers contain that have host memory; max_length becomes
 * exact. */
kda_status kda_run_check_sequences(const kda_context *ctx, struct kda_run *run);

/* All rules for what tensors in host memory contain, and for a final_state in place. */
kda_status kda_run_check_contents(const kda_plan *plan, struct kda_run *run);

/* debug.c: the same for a call whose tensors are in device memory, in buffers that hold them, once
 * the queue has come to it. */
kda_status kda_debug_check(const kda_plan *plan, cl_command_queue queue, const struct kda_run *run,
                           cl_uint num_wait, const cl_event *wait);

static inline size_t kda_dtype_size(kda_dtype t)
{
    return t == KDA_F32 ? 4 : 2;
}

static inline int32_t kda_key_head(const kda_problem *p, int32_t value_head)
{
    return p->head_map == KDA_HEADS_MODULO ? value_head % p->heads
                                           : value_head / (p->value_heads / p->heads);
}

/* Names for logs and descriptions. */
const char *kda_dtype_name(kda_dtype t);
const char *kda_engine_name(kda_engine e);

/* ---- tuned.c ---------------------------------------------------------------------------- */

struct kda_span {
    const char *at;
    size_t length;
};

/* A row of kda_context_params.tuned. */
struct kda_tuned {
    int line;
    const char *text;
    struct kda_span device, driver; /* in the text */
    int32_t key_dim, value_dim;
    kda_dtype dtype;
    /* What it chooses; what is 0, of recurrent_up_to what is negative, it leaves to the library. */
    kda_engine engine;
    int32_t chunk, recurrent_up_to, scan_v, scan_vec, scan_rows;
};

struct kda_tuned_rows {
    size_t count;
    struct kda_tuned row[];
};

/* Sets ctx->tuned, to be freed also after a failure: INVALID for text that breaks a rule. */
kda_status kda_tuned_read(kda_context *ctx, const char *text);

/* Drops the rows that are not for the context's device and driver. */
void kda_tuned_keep(kda_context *ctx);

/* The row for a problem; NULL: there is none. */
const struct kda_tuned *kda_tuned_find(const kda_context *ctx, const kda_problem *p);

/* " tuned=LINE" for a description; "" for NULL. */
const char *kda_tuned_name(const struct kda_tuned *row, char *text, size_t n);

/* Sets what a row chooses of a problem's own members. */
void kda_tuned_apply(const struct kda_tuned *row, kda_problem *p);

/* ---- cpu.c, cpu_pool.c ------------------------------------------------------------------ */

kda_status kda_cpu_open(kda_context *ctx, const kda_context_params *params);

/* Threads that work through numbered items. Several callers may share a pool; each works on its
 * own items too, so a pool without threads still makes progress. */
/* 0 = one a core; NULL: out of memory. Fewer than wanted get a warning. */
struct kda_pool *kda_pool_create(const kda_context *ctx, int32_t threads);
void kda_pool_destroy(struct kda_pool *pool);
int32_t kda_pool_threads(const struct kda_pool *pool); /* the caller's included */
/* How many threads are worth having now for work that one would take so long for, roughly. */
int32_t kda_pool_lanes(struct kda_pool *pool, double ns);
/* Calls fn(arg, item, lane) for every item below count, each once, and returns when all are done.
 * lane < lanes, which is at most kda_pool_threads(), is never in use twice at once within a call.
 */
void kda_pool_run(struct kda_pool *pool, int64_t count, int32_t lanes,
                  void (*fn)(void *, int64_t, int32_t), void *arg);

/* ---- OpenCL: device.c ------------------------------------------------------------------- */

/* Ways a kernel can combine values of neighbouring work-items: the bodies of cl/tile.cl. */
enum kda_path { KDA_PATH_LOCAL, KDA_PATH_SUB_GROUPS, KDA_PATH_PTX };

/* Kinds of matrix units of AMD and Intel: the bodies of cl/unit.cl. */
enum kda_unit {
    KDA_UNIT_NONE,
    KDA_UNIT_MFMA,
    KDA_UNIT_WMMA,
    KDA_UNIT_DPAS8,
    KDA_UNIT_DPAS16,
    KDA_UNITS
};

/* What is true of a device, and its retained OpenCL objects. */
struct kda_device {
    cl_context context;
    cl_device_id id;
    cl_command_queue queue; /* for kda_execute */
    bool is_cpu;            /* runs work-items as loops: wide vectors, few work-items */
    bool has_vectors;       /* a CPU whose driver says that it works in vectors */
    cl_uint compute_units;
    size_t max_work_group;
    cl_ulong local_bytes, max_alloc_bytes;
    int64_t max_loop_turns; /* of all loops of a work-item together; 0 = no limit */
    bool builds_at_once;    /* programs, in threads */
    enum kda_path path;     /* best one that gave its known answer */
    bool matrix;            /* so did the matrix units of cl/matrix.cl */
    enum kda_unit unit;     /* and this kind of cl/unit.cl */
    int32_t lanes;          /* work-items that exchange registers on it; 1 on KDA_PATH_LOCAL */
    /* clGetKernelSubGroupInfoKHR; NULL where the platform has none */
    cl_int(CL_API_CALL *sub_group_info)(cl_kernel, cl_device_id, cl_uint, size_t, const void *,
                                        size_t, void *, size_t *);
    struct kda_programs *programs;
    struct kda_cache *cache; /* NULL: none */
    size_t fact_count;
    struct {
        char name[32], value[224];
        const char *source;
    } fact[40];
};

/* Fills in the facts of ctx->device, whose context and id are set. */
kda_status kda_device_probe(kda_context *ctx);

/* The value of a fact; "" if there is none of that name. */
const char *kda_device_fact(const struct kda_device *d, const char *name);

/* device_local.c: sets local_bytes to what a kernel may declare, if that could be probed. */
kda_status kda_device_probe_local(kda_context *ctx, bool *probed);

/* device_matrix.c: sets matrix if matrix units build and give their known answer; says why not. */
kda_status kda_device_probe_matrix(kda_context *ctx, const char **says);

/* device_unit.c: sets unit, and says what becomes of it, where extensions name AMD or Intel. */
kda_status kda_device_probe_unit(kda_context *ctx, const char *extensions, const char **says);

/* The tile of a result and the width of the sub-group that a kind of unit works with. */
struct kda_unit_shape {
    const char *name, *says; /* says: as a fact */
    int32_t rows, cols, lanes;
};
struct kda_unit_shape kda_unit_shape(enum kda_unit unit);

/* Width of a kernel's sub-groups when run in work-groups of some size, 0 if unknown. The compiler
 * chooses it per kernel, so no constant of the device tells. */
size_t kda_device_sub_group_size(const struct kda_device *d, cl_kernel kernel, size_t work_items);

/* ---- OpenCL: config.c ------------------------------------------------------------------- */

/* Level for what keeps a problem from going in chunks: where the schedule is the library's choice,
 * it goes token by token instead. */
static inline kda_log_level kda_no_chunks_level(const kda_problem *p)
{
    return p->schedule == KDA_SCHEDULE_AUTO ? KDA_LOG_WARN : KDA_LOG_ERROR;
}

/* How the kernels are specialised and launched. */
struct kda_config {
    enum kda_path path;
    int32_t lanes;
    bool compact;                    /* loops are not unrolled */
    bool vectors;                    /* the compiler makes vectors; cl/lanes.cl: of 16 */
    int32_t rows, groups, cols, vec; /* cl/step.cl */
    bool few;                        /* cl/few.cl takes the single tokens of plain calls */
    /* The chunkwise schedule: sequences longer than step_limit go in chunks. chunk = 0: none do. */
    kda_engine engine;
    int32_t chunk, step_limit;
    int32_t table_wg;                    /* cl/table.cl */
    int32_t prepare_wg, slab;            /* cl/chunk.cl */
    int32_t scan_v, scan_vec, scan_rows; /* cl/scan.cl */
    bool scan_staged;
    enum kda_unit unit;         /* of cl/scan.cl, with engine mma */
    int32_t gemm_wg;            /* cl/gemm.cl */
    int32_t teams;              /* cl/mma_scan.cl; 0: not used */
    int32_t padded_k, padded_v; /* dimensions of the factors in the workspace */
    int64_t piece;              /* chunks that the workspace holds */
    int32_t segment;            /* chunks of a segment, cl/mma_segments.cl; 0: none is cut */
};

/* The kernels; which of them a plan has depends on its schedule and engine. */
enum kda_kernel_id {
    KDA_KERNEL_STEP,
    KDA_KERNEL_STEP_NARROW, /* where state rows are not aligned; not on a CPU */
    KDA_KERNEL_STEP_ONE,    /* where no sequence has more than a token; not on a CPU */
    KDA_KERNEL_STEP_FEW,    /* instead of that one where a call has little else */
    KDA_KERNEL_TABLE,
    KDA_KERNEL_PREPARE,
    KDA_KERNEL_SCAN,
    KDA_KERNEL_ENTER,
    KDA_KERNEL_EMIT,
    KDA_KERNEL_MMA, /* on matrix units, for the two behind it */
    KDA_KERNEL_MMA_PREPARE,
    KDA_KERNEL_MMA_SCAN,
    KDA_KERNEL_MMA_JOIN, /* where sequences are cut */
    KDA_KERNELS
};

/* path: the best one that may be used. row: what it chooses besides the problem's own members;
 * NULL: nothing. */
kda_status kda_config_choose(const kda_context *ctx, const kda_problem *p,
                             const struct kda_tuned *row, enum kda_path path, struct kda_config *c);

/* Sets the dimensions of the factors for a problem. */
void kda_config_pad(const kda_problem *p, struct kda_config *c);

/* Halves a kernel's work-group, for limits that only the built kernel shows; false: it cannot. */
bool kda_config_shrink(const kda_problem *p, struct kda_config *c, enum kda_kernel_id id);

/* Whether a kernel is one of those that go token by token: cl/step.cl and cl/few.cl. */
static inline bool kda_is_step(enum kda_kernel_id id)
{
    return id <= KDA_KERNEL_STEP_FEW;
}

/* Whether sequences go token by token by their length: where not, only few calls want that, and one
 * program for all of them is enough. */
static inline bool kda_config_steps(const struct kda_config *c)
{
    return c->step_limit > 0;
}

/* Work-items of a kernel's work-group. */
size_t kda_config_items(const struct kda_config *c, enum kda_kernel_id id);

/* Work-groups of one call of kda_step, and of a scan of so many sequences or segments and columns.
 */
int64_t kda_config_step_groups(const kda_problem *p, const struct kda_config *c, int64_t sequences);
int64_t kda_config_scan_groups(const kda_problem *p, const struct kda_config *c, int64_t scans,
                               int64_t columns);

/* ---- OpenCL: shares.c ------------------------------------------------------------------- */

/* How the work-groups of kda_mma share a piece's work: see cl/mma_order.cl. */
struct kda_shares {
    int32_t preparers, scanners, heads_abreast;
};
struct kda_shares kda_shares_of(const kda_context *ctx, const kda_problem *p,
                                const struct kda_config *c, int64_t scans, int64_t columns,
                                int64_t chunks);
/* The same where all chunks are prepared. */
struct kda_shares kda_shares_of_scan(const kda_context *ctx, const kda_problem *p,
                                     const struct kda_config *c, int64_t scans, int64_t columns);

/* How long a call should take that scans so many sequences or segments, of so many columns and
 * chunks together, with teams of so many tiles. */
int64_t kda_shares_ns(const kda_context *ctx, const kda_problem *p, int32_t teams, int64_t scans,
                      int64_t columns, int64_t chunks);

/* Work-groups that can prepare at once, of so many chunks times heads. */
int64_t kda_shares_preparers(int64_t blocks);

/* ---- OpenCL: turns.c -------------------------------------------------------------------- */

/* UNSUPPORTED where the driver might end the loops of a call, in which sequences of up to
 * step_limit tokens go token by token. */
kda_status kda_turns_check(const kda_plan *plan, const struct kda_run *run, int64_t step_limit);

/* ---- OpenCL: workspace.c ---------------------------------------------------------------- */

/* Where things lie in the workspace, in floats from its start. */
struct kda_workspace {
    int64_t table;    /* int[2 (sequences + 1)]: see cl/table.cl */
    int64_t carry[2]; /* states between pieces, [HV][padded_k][padded_v], taken in turn */
    int64_t progress; /* mma engine: ulong[piece][HV], see cl/mma_order.cl */
    int64_t factors;  /* [piece][HV] blocks of factor_stride */
    int64_t factor_stride;
    /* clblast engine: [piece][HV] states before and after each chunk, and outputs. mma engine,
     * where sequences are cut: states before each segment and maps, see cl/mma_segments.cl */
    int64_t states_in, states_out, products;
    size_t bytes;
};

struct kda_workspace kda_workspace_layout(const kda_problem *p, const struct kda_config *c);

/* Most chunks that sequences of together so many tokens can have. */
int64_t kda_workspace_chunks(const struct kda_config *c, int64_t tokens, int64_t sequences);

/* Places for the segments of so many chunks: segment_place in cl/mma_segments.cl. */
int64_t kda_workspace_segments(const struct kda_config *c, int64_t chunks);

/* Whether the workspace may hold all chunks of any call; sets c->piece to so many. */
bool kda_workspace_holds_all(const kda_context *ctx, const kda_problem *p, struct kda_config *c);

/* The bytes that one chunk's pieces take; sets c->piece to that. */
size_t kda_workspace_least(const kda_problem *p, struct kda_config *c);

/* Sets c->piece to what the limit allows; UNSUPPORTED or INVALID if not one chunk fits. */
kda_status kda_workspace_choose(const kda_context *ctx, const kda_problem *p, struct kda_config *c);

/* Up to so many, value_dim is an option of the programs: the known answer has the plan's then. */
enum { KDA_KNOWN_COLUMNS = 160 };

/* ---- OpenCL: program.c ------------------------------------------------------------------ */

/* Programs that a context has already. */
struct kda_programs *kda_programs_create(void); /* NULL: out of memory */
void kda_programs_destroy(struct kda_programs *programs);

/* A program for each stage, so that a plan builds only what it runs; what takes longest to build is
 * last. */
enum kda_stage {
    KDA_STAGE_TABLE,
    KDA_STAGE_STEP_FEW,
    KDA_STAGE_STEP_ONE,
    KDA_STAGE_STEP,
    KDA_STAGE_STEP_NARROW,
    KDA_STAGE_PREPARE,
    KDA_STAGE_SCAN,
    KDA_STAGE_GEMM,
    KDA_STAGE_MMA,
    KDA_STAGES
};

/* Builds what a plan wants and the context does not have: several at once, where that is faster.
 * Logs each that does not build. */
kda_status kda_programs_build(kda_context *ctx, const kda_problem *p, const struct kda_config *c,
                              const bool wanted[KDA_STAGES]);

/* A kernel of a problem and configuration, built or taken from the context's programs. */
kda_status kda_program_kernel(kda_context *ctx, const kda_problem *p, const struct kda_config *c,
                              enum kda_stage stage, const char *name, cl_kernel *kernel);

/* Builds a probe's source, with cl/matrix.cl or without. That it does not build is logged at DEBUG
 * only: it is an answer, which KDA_MEMORY is not. */
kda_status kda_program_probe(kda_context *ctx, bool matrix, const char *text, const char *options,
                             const char *name, cl_kernel *kernel);

/* Puts the programs that were built into the context's cache. They have run by then: many drivers
 * compile for the device at a kernel's first launch only. */
void kda_programs_keep(const kda_context *ctx);

/* ---- OpenCL: cache.c -------------------------------------------------------------------- */

/* A folder of built programs; nothing there is touched yet. NULL: out of memory. */
struct kda_cache *kda_cache_open(const char *dir);

/* The program that was stored under a key, built; NULL: none that can be used. */
cl_program kda_cache_load(const kda_context *ctx, const char *key, const char *options);
void kda_cache_store(const kda_context *ctx, const char *key, cl_program program);

/* FNV-1a: a sum over some bytes, from the sum over those before, at first KDA_CACHE_HASH. */
#define KDA_CACHE_HASH 0xcbf29ce484222325u
uint64_t kda_cache_hash(uint64_t sum, const void *bytes, size_t n);

/* ---- OpenCL: gemm.c --------------------------------------------------------------------- */

/* A batch of row-major products within one buffer: c = alpha * op(a) * b + beta * c, op(a) m x k.
 * Offsets, leading dimensions and strides from one product to the next are in floats. */
struct kda_gemm {
    bool transpose_a;
    int64_t m, n, k, batch;
    float alpha, beta;
    struct kda_matrix {
        int64_t offset, leading, stride;
    } a, b, c;
};

/* event may be NULL. On an out-of-order queue the caller sees to the order. */
kda_status kda_gemm_enqueue(const kda_context *ctx, cl_command_queue queue, cl_mem buffer,
                            const struct kda_gemm *gemm, cl_event *event);

/* ---- OpenCL: call_args.c ---------------------------------------------------------------- */

struct kda_call_args;
struct kda_few_args;

/* All but where the workspace lies and which chunks are at work. */
struct kda_call_args kda_call_args(const kda_problem *p, const struct kda_config *c,
                                   const struct kda_run *r);

/* The form for cl/few.cl; false: a call is not of that kind, or does not fit in there. */
bool kda_few_args(const kda_problem *p, const struct kda_call_args *a, struct kda_few_args *few);

/* The longest sequence that goes token by token: any, if no chunks are launched. */
int32_t kda_step_limit(const struct kda_config *c, const struct kda_run *r);

/* ---- OpenCL: opencl.c, build.c, known_answer.c, launch.c, staging.c
 * --------------------------------------------------------- */

kda_status kda_opencl_open(kda_context *ctx, const kda_context_params *params);

/* What a plan launches: plan->backend. */
struct kda_launch {
    pthread_mutex_t lock; /* setting arguments and enqueueing is one step: a kernel object holds
                           * only one set of arguments */
    cl_kernel kernel[KDA_KERNELS]; /* NULL: not used */
    struct kda_config config;
    struct kda_workspace workspace;
};

const char *kda_kernel_name(enum kda_kernel_id id);
kda_status kda_launch_create(kda_plan *plan); /* half-built on failure */
void kda_launch_destroy(struct kda_launch *launch);
/* Gives a plan the kernels of another, whose problem differs in numbers of heads, tokens and
 * columns only; half-built on failure. */
kda_status kda_launch_clone(const struct kda_launch *launch, kda_plan *plan);

/* Runs a small problem of a plan's kind and compares with the CPU backend. */
kda_status kda_known_answer(const kda_plan *plan, bool *right);

/* Enqueues a checked call whose tensors are buffers of the plan's context. */
kda_status kda_launch_run(kda_plan *plan, cl_command_queue queue, const struct kda_run *run,
                          cl_uint num_wait, const cl_event *wait, cl_event *event);

/* Copies what a call reads of host tensors into buffers of their own and points `on_device` at
 * them; after the work, copies what it wrote back. release frees the buffers, also after a failure.
 */
kda_status kda_staging_upload(const kda_plan *plan, const struct kda_run *run,
                              struct kda_run *on_device);
kda_status kda_staging_download(const kda_plan *plan, const struct kda_run *run,
                                const struct kda_run *on_device);
void kda_staging_release(struct kda_run *on_device);

#endif

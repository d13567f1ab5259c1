/* libkda: Kimi Delta Attention (KDA) for every OpenCL device and for the CPU.
 *
 * THE OPERATION. Each value head keeps a state S of key_dim x value_dim numbers (rows are key
 * channels). For each token t, in this order:
 *
 *     S   = Diag(exp(g_t)) S               forget: g_t <= 0 is the natural-log decay
 *     u_t = beta_t (v_t - S^T k_t)         the error against the decayed state
 *     S   = S + k_t u_t^T                  write
 *     o_t = scale * S^T q_t                read, after the write
 *
 * This is the recurrence of "Kimi Linear: An Expressive, Efficient Attention Architecture"
 * (Moonshot AI, 2025). With no gate it is DeltaNet, with one gate per head Gated DeltaNet, with
 * the additive rule (gated) linear attention.
 *
 * TENSORS. The innermost dimension is contiguous; token and head strides are free.
 *
 *     name                        shape                             type
 *     q, k                        [T, H, K]                         dtype
 *     v                           [T, HV, V]                        dtype
 *     out                         [T, HV, V]                        out_dtype
 *     g                           [T, HV, K], per head [T, HV]      g_dtype
 *     beta                        [T, HV]                           beta_dtype
 *     a_log                       [HV]                              f32
 *     dt_bias                     [HV, K], per head [HV]            f32
 *     cu_seqlens                  [N+1]                             i32 or i64
 *     initial_state, final_state  [N, HV, K, V] or [N, HV, V, K]    state_dtype
 *     checkpoints                 [T/n, HV, K, V] or [.., V, K]     state_dtype
 *     state_index, write_index    [N] or [N, index_columns]         i32 or i64
 *     accepted                    [N]                               as state_index
 *     fresh                       [N]                               bytes
 *
 * T counts the tokens of all N sequences, packed one after another; H = heads, HV = value_heads,
 * K = key_dim, V = value_dim. Arithmetic is f32 whatever the storage types
 * (KDA_ENGINE_MMA: see there).
 *
 * USE. A problem describes shapes and types; a plan is a problem compiled for a context; args
 * carry what may change from call to call.
 *
 *     kda_context *ctx;
 *     kda_context_create(&ctx, kda_context_params(.backend = KDA_CPU));
 *     kda_plan *plan;
 *     kda_plan_create(&plan, ctx, kda_problem(.heads = 32, .key_dim = 128, .value_dim = 128,
 *                                             .max_tokens = 4096));
 *     kda_execute(plan, kda_args(.tokens = T, .q.host = q, .k.host = k, .v.host = v, .g.host = g,
 *                                .beta.host = beta, .out.host = out));
 *     kda_plan_destroy(&plan);
 *     kda_context_destroy(&ctx);
 *
 * CONVENTIONS
 * - Parameter structs begin with their own size, which the macro of the same name fills in
 *   (C++: `kda_args a = {}; a.struct_size = sizeof a;`, then members). Zero always means the
 *   default, and structs grow at the end only, so a program built against an older header keeps
 *   working. A struct from a newer header is accepted as long as the members unknown here are
 *   zero.
 * - Parameter structs, and what they point to, are read during the call only; kda_args memory
 *   objects must live until the enqueued work has finished.
 * - create functions set the handle to NULL on failure; destroy functions take the handle's
 *   address, accept NULL inside, and store NULL.
 * - Strides are in elements, offsets and sizes in bytes.
 * - A function that fails has logged one line that names the argument and the rule, or the OpenCL
 *   call and its code. The library prints nothing, reads no environment variable and never exits.
 * - Thread safety: any function from any thread, on one object or several, except that destroying
 *   an object must not overlap another use of it.
 *
 * SPDX-License-Identifier: MIT */
#ifndef KDA_H
#define KDA_H

#include <stddef.h>
#include <stdint.h>

#ifndef CL_TARGET_OPENCL_VERSION
#define CL_TARGET_OPENCL_VERSION 120
#endif
#ifdef __APPLE__
#include <OpenCL/opencl.h>
#else
#include <CL/cl.h>
#endif

#if defined(_WIN32)
#define KDA_API /* exported by the import library's definition file */
#elif defined(__GNUC__)
#define KDA_API __attribute__((visibility("default")))
#else
#define KDA_API
#endif

#define KDA_VERSION_MAJOR 0
#define KDA_VERSION_MINOR 1
#define KDA_VERSION_PATCH 0

#ifdef __cplusplus
extern "C" {
#endif

/* What a call came to. */
typedef enum kda_status {
    KDA_OK = 0,
    KDA_INVALID,     /* a documented rule was broken; nothing was done */
    KDA_UNSUPPORTED, /* legal, but this build or device can't do it; the log says what is missing */
    KDA_NO_DEVICE,   /* no OpenCL device, or none that works */
    KDA_MEMORY,      /* out of host or device memory */
    KDA_COMPILE,     /* a kernel did not build; the build log is in the log */
    KDA_DRIVER       /* an OpenCL call failed in a way that is not one of the above */
} kda_status;

typedef enum kda_backend {
    KDA_AUTO = 0, /* the first OpenCL GPU or accelerator that works, else the CPU backend */
    KDA_CPU,      /* this library's own threads; needs no OpenCL driver */
    KDA_OPENCL    /* the caller's device, else the first GPU or accelerator, else any device */
} kda_backend;

/* Storage types. 16-bit values are converted on load and store; no device needs cl_khr_fp16. */
typedef enum kda_dtype {
    KDA_DTYPE_DEFAULT = 0, /* dtype, state_dtype: f32; g_dtype, beta_dtype, out_dtype: dtype */
    KDA_F32 = 1,
    KDA_F16 = 2, /* IEEE binary16 */
    KDA_BF16 = 3 /* upper half of a binary32, rounded to nearest even */
} kda_dtype;

typedef enum kda_index_type { KDA_I32 = 0, KDA_I64 = 1 } kda_index_type;

/* How the tensor g becomes the log decay. x = g + dt_bias; softplus(x) = log(1 + exp(x)). */
typedef enum kda_gate {
    KDA_GATE_LOG = 0,      /* g itself: any g <= 0, -inf (a reset) included */
    KDA_GATE_SOFTPLUS = 1, /* -exp(a_log) * softplus(x); exp(a_log) at most the largest float */
    KDA_GATE_BOUNDED = 2,  /* gate_bound * sigmoid(exp(a_log) * x); a_log absent = 0 */
    KDA_GATE_NONE = 3      /* no decay; g must be absent */
} kda_gate;

/* How the tensor beta becomes the write strength. */
typedef enum kda_beta {
    KDA_BETA_GIVEN = 0,
    KDA_BETA_SIGMOID = 1, /* sigmoid(beta) */
    KDA_BETA_SIGMOID2 = 2 /* 2 * sigmoid(beta) */
} kda_beta;

typedef enum kda_rule {
    KDA_RULE_DELTA = 0,
    KDA_RULE_ADDITIVE = 1 /* u_t = beta_t v_t; beta may be absent and is 1 then */
} kda_rule;

/* Order of a state's two dimensions in memory, the contiguous one last. */
typedef enum kda_state_layout { KDA_STATE_KV = 0, KDA_STATE_VK = 1 } kda_state_layout;

/* Which key head value head h reads when value_heads > heads. */
typedef enum kda_head_map {
    KDA_HEADS_GROUPED = 0, /* h / (value_heads / heads) */
    KDA_HEADS_MODULO = 1   /* h % heads */
} kda_head_map;

typedef enum kda_schedule {
    /* By each sequence's own length in the call: kda_plan_describe says where it switches. The two
     * differ in rounding, so what is promised bit for bit across calls of different lengths (a
     * carried state, a resumed checkpoint) holds within one schedule. */
    KDA_SCHEDULE_AUTO = 0,
    KDA_SCHEDULE_RECURRENT = 1, /* token by token */
    KDA_SCHEDULE_CHUNKWISE = 2  /* chunks turned into matrix products */
} kda_schedule;

/* Who does the products of the chunkwise schedule. One that is not built, or that the device can't
 * run, answers UNSUPPORTED. */
typedef enum kda_engine {
    /* `mma` on NVIDIA's matrix units where it serves the problem, that is what published models
     * compute (dtype bf16, KDA_NORM_QK, a gate from raw numbers, KDA_BETA_SIGMOID), and
     * max_workspace allows it; else `fused`. */
    KDA_ENGINE_AUTO = 0,
    /* CLBlast's batched GEMMs. Bends two promises: CLBlast may allocate device memory inside
     * kda_enqueue, and a NaN or infinity in a token can reach earlier tokens of its chunk. */
    KDA_ENGINE_CLBLAST = 1,
    KDA_ENGINE_FUSED = 2, /* portable OpenCL C tile kernels */
    /* Matrix units. A NaN or infinity in a token can reach earlier tokens of its chunk.
     *
     * NVIDIA's, of compute capability 9.0: dtype bf16 or, with KDA_NORM_QK, f16; K and V 64 or 128,
     * chunks of 64. With KDA_NORM_QK operands of products are f16, and errors 3e-4 to 7e-4, within
     * these limits:
     *     keys      One key again and again, where gates hardly forget, from an empty memory on:
     *               states are up to 4e-2 off after 128 tokens of beta 1, 8e-2 of beta 1.9. Of beta
     *               2, from any memory, 0.18 after 1024.
     *     sizes     16 neighbouring value columns share a unit in each chunk, by the largest |S|
     *               of theirs at its start. What is 100 times smaller is up to 5e-3 off, 1000
     *               times 5e-2, 10^6 times it is lost: small values beside large ones, behind a
     *               memory that is forgotten inside the chunk, or beside an infinity, which leaves
     *               its neighbours finite, but wrong for some chunks. Numbers of 1e-20 are
     *               right, of 1e-30 lost; states and values must be below 2^64.
     *     causality A value far above the memory at its chunk's start makes that unit larger.
     *               50 times can touch the last bits of outputs before it in the chunk, 10^6 times
     *               takes 4e-3 of them, 10^9 times all.
     *     beta      from 0 to 2, beyond which what overflows becomes NaN.
     *     q, k      Rows of length 1e-6 lose digits, of 1e-9 they are zero.
     * Without KDA_NORM_QK operands are bf16, without these limits, and errors a few 1e-3, more than
     * the bounds of README.md where gates hardly forget. On a processor plain OpenCL C stands in,
     * slowly, for tests.
     *
     * AMD's (gfx908, gfx90a, gfx942; gfx11, gfx12) and Intel's (Arc, Max): what `fused` takes, with
     * the scan's products on them. Those of gfx9 multiply f32. The others multiply bf16, of which a
     * number is two: errors of 1e-5, infinities may become NaN, and dtype must be 16 bits. Never
     * run on hardware: a plan says so in a warning, and has given a known answer like any other. */
    KDA_ENGINE_MMA = 3
} kda_engine;

/* Bits of kda_problem.flags. */
enum {
    KDA_NORM_QK = 1 << 0,      /* q and k are divided by sqrt(sum of squares + 1e-6), per row */
    KDA_GATE_PER_HEAD = 1 << 1 /* g (and dt_bias) have one value per head, not one per channel */
};

/* Levels of log messages: what fails a call, what made it slower or different from what was
 * asked, what was chosen, everything. */
typedef enum kda_log_level {
    KDA_LOG_DEFAULT = 0, /* WARN */
    KDA_LOG_ERROR = 1,
    KDA_LOG_WARN = 2,
    KDA_LOG_INFO = 3,
    KDA_LOG_DEBUG = 4
} kda_log_level;

/* Vectors of the CPU backend, in bits. Results differ in rounding. */
typedef enum kda_vectors {
    KDA_VECTORS_AUTO = 0, /* as long as the processor has */
    KDA_VECTORS_NONE = 1, /* the recurrence as written above, in plain C: slow */
    KDA_VECTORS_128 = 2,  /* SSE2, NEON or what the compiler makes of it */
    KDA_VECTORS_256 = 3,  /* AVX2 and FMA; SVE of 256 bits */
    KDA_VECTORS_512 = 4   /* AVX-512 F, BW, DQ and VL; SVE of 512 bits */
} kda_vectors;

/* Receives one line, without newline, valid during the call. May be called from any thread that
 * is inside a kda_ function; must not call the library. */
typedef void (*kda_log_fn)(void *data, kda_log_level level, const char *line);

/* Told of every launch that a call enqueues, in order, from inside the call: the kernel's name
 * ("CLBlast" for the clblast engine's products) and its event, which has times if the queue has
 * profiling. The event is the library's: clRetainEvent to keep it. Must not call the library. */
typedef void (*kda_launch_fn)(void *data, const char *kernel, cl_event event);

/* A device, ready for plans. Plans must be destroyed before their context. */
typedef struct kda_context kda_context;

/* A problem compiled for a context. Two threads may use one plan at once. */
typedef struct kda_plan kda_plan;

/* ---- Context ---------------------------------------------------------------------------- */

typedef struct kda_context_params {
    size_t struct_size;
    kda_backend backend;
    /* An OpenCL context and device of the caller's; both are retained. device alone: a context is
     * made for it. context alone: its first device is used. Both NULL: see kda_backend. */
    cl_context context; /* NULL with KDA_CPU, like device */
    cl_device_id device;
    kda_log_fn log; /* NULL: nothing is logged */
    void *log_data;
    kda_log_level log_level; /* least severe level that reaches log */
    /* CPU backend: threads at work, the caller's included, 1..1024; 0 = a core each that the
     * process may run on (quotas of time are not looked at). A call has as many of them as it is
     * worth waking. They block all signals, and a child of fork has none of them: it may not
     * destroy the context. */
    int32_t threads;
    /* OpenCL: a folder (made if missing) in which built programs are kept, so that later processes
     * read instead of build them; 1..4000 characters; NULL: none. Any number of processes may share
     * it. Programs are told apart by device, driver, library version, options and source; a file
     * that is damaged or from elsewhere is built again, a folder that can't be written to goes
     * unused, each with a warning. The newest 512 programs are kept, some 10 to 500 KiB each; the
     * folder may be emptied at any time. What is there runs on the device: let nobody else write.
     */
    const char *cache_dir;
    kda_vectors vectors; /* CPU backend: the longest that it may use, if the processor has them */
    /* OpenCL: for profiling. Not NULL: every launch gets an event, which takes the host longer. */
    kda_launch_fn on_launch;
    void *launch_data;
    /* Choices that were measured, for plans to make where the problem leaves them open; NULL: none.
     * A line of text each; the library reads no file, `kdabench --tune` makes and the tools read
     * one. A row is words KEY=VALUE in any order, each at most once, VALUE in double quotes if it
     * has blanks; # begins a comment:
     *
     *     device="NVIDIA H200" driver=580.159.04 key_dim=128 value_dim=128 dtype=bf16
     *     engine=fused chunk=32 recurrent_up_to=48 scan=32x4x2        # all of it on one line
     *
     * Which plans a row is for, all needed:
     *     device, driver              the context's facts "name" and "driver"
     *     key_dim, value_dim, dtype   of the problem
     * What it chooses, one at least; the others stay the library's choice:
     *     engine                      clblast, fused or mma
     *     chunk                       16, 32 or 64
     *     recurrent_up_to             0..2^31-1: sequences that KDA_SCHEDULE_AUTO has go token by
     *                                 token
     *     scan                        CxVxT, tiles of kda_scan: C columns, a power of two up to
     *                                 256, of which an item has V (4, 8, 16), and T tokens (1, 2,
     *                                 4); smaller where the problem or the device does not fill or
     *                                 hold them. OpenCL only, and not `mma` on NVIDIA
     * The last row that is for a plan counts. A row with an engine or a chunk that the problem asks
     * to be another, or with a chunk that does not divide checkpoint_every, is not for it. A row of
     * another device is passed over in silence, of another driver with a warning; what the device
     * does not build, refuses or gets wrong is left out with one. A row that breaks these rules is
     * INVALID, and the log says its line. */
    const char *tuned;
    /* OpenCL: not 0: kda_enqueue reads indices, offsets, flags and log gates back from the device
     * and refuses what kda_execute would refuse, and buffers that the host may not read. For
     * finding mistakes: it takes host memory, and returns only when the queue and the events in
     * wait have come to the call. */
    int32_t debug;
} kda_context_params;
#define kda_context_params(...)                                                                    \
    (&(struct kda_context_params){.struct_size = sizeof(struct kda_context_params), __VA_ARGS__})

/* params may be NULL: all defaults. */
KDA_API kda_status kda_context_create(kda_context **ctx, const kda_context_params *params);
KDA_API void kda_context_destroy(kda_context **ctx);

/* The backend that was chosen: KDA_CPU or KDA_OPENCL. */
KDA_API kda_backend kda_context_backend(const kda_context *ctx);

/* The OpenCL objects in use, owned by the context; NULL on the CPU backend. */
KDA_API cl_context kda_context_cl_context(const kda_context *ctx);
KDA_API cl_device_id kda_context_cl_device(const kda_context *ctx);

/* What is known of the context's device, as name and value, and how it is known: "queried" from
 * the driver, "probed" by building and running a kernel, a "quirk" that corrects either, or
 * "given" by the caller: a row of kda_context_params.tuned for this device. */
typedef struct kda_fact {
    const char *name, *value, *source; /* owned by the context */
} kda_fact;

/* Stores at most max facts and returns how many there are. */
KDA_API size_t kda_context_facts(const kda_context *ctx, kda_fact *facts, size_t max);

/* ---- Plan ------------------------------------------------------------------------------- */

typedef struct kda_problem {
    size_t struct_size;
    int32_t heads;         /* H >= 1 */
    int32_t value_heads;   /* HV, a multiple of H; 0 = H */
    int32_t key_dim;       /* K, 1..256 */
    int32_t value_dim;     /* V, 1..65536 */
    int64_t max_tokens;    /* most tokens of one call, all sequences together; 1..2^31-1 */
    int64_t max_sequences; /* most sequences of one call, 1..2^31-1; 0 = 1 */
    kda_dtype dtype;       /* q, k, v */
    kda_dtype g_dtype;     /* dtype or f32 */
    kda_dtype beta_dtype;  /* dtype or f32 */
    kda_dtype out_dtype;   /* dtype or f32 */
    kda_dtype state_dtype; /* any */
    kda_gate gate;
    float gate_bound; /* KDA_GATE_BOUNDED only: in [-5, 0); 0 = -5 */
    kda_beta beta;
    kda_rule rule;
    uint32_t flags; /* KDA_NORM_QK, KDA_GATE_PER_HEAD */
    float scale;    /* finite; 0 = 1 / sqrt(key_dim) */
    kda_state_layout state_layout;
    kda_head_map head_map;
    kda_schedule schedule;
    kda_engine engine; /* any but AUTO makes the schedule chunkwise */
    /* n > 0, at most 2^31-1: calls may store each sequence's state after every n of its tokens
     * (kda_args). With KDA_SCHEDULE_CHUNKWISE a multiple of the chunk; with KDA_SCHEDULE_AUTO one
     * that is no multiple of .chunk, or of 16, has every sequence go token by token. */
    int64_t checkpoint_every;
    int32_t chunk; /* tokens in a chunk: 16, 32 or 64; 0 = chosen for the device, the only value
                    * with KDA_SCHEDULE_RECURRENT */
    /* n > 0, a multiple of 64: the engine `mma` cuts longer sequences into segments of n tokens,
     * scans these at once, and joins their maps S -> M S + B in f32: for few heads and long
     * sequences, on three times the work of a scan. What is promised bit for bit holds, but that a
     * cut sequence whose state is carried on, or that resumes from a checkpoint, continues in the
     * same bits. All chunks must fit the workspace; where they don't, a warning says that no
     * sequence is cut. Other engines, and AMD's and Intel's matrix units, don't cut. Never run on
     * a GPU: a plan says so in a warning. 0 = no segments. */
    int32_t segment;
    /* OpenCL: most bytes that kda_plan_workspace may come to; 0 = chosen for the device. Long calls
     * of the chunkwise schedule are cut into pieces that fit; the result does not depend on it,
     * unless it leaves no room for segments. */
    size_t max_workspace;
} kda_problem;
#define kda_problem(...)                                                                           \
    (&(struct kda_problem){.struct_size = sizeof(struct kda_problem), __VA_ARGS__})

/* Compiles; the one slow call. */
KDA_API kda_status kda_plan_create(kda_plan **plan, kda_context *ctx, const kda_problem *problem);
KDA_API void kda_plan_destroy(kda_plan **plan);

/* Bytes of device memory that a call needs besides its tensors: the least size of
 * kda_args.workspace. The recurrent schedule needs none, kda_execute brings its own. CPU backend:
 * the most host memory that kda_execute takes for the time of a call, whatever its length. */
KDA_API size_t kda_plan_workspace(const kda_plan *plan);

/* Writes what will run (schedule, engine, device, tiles) as one line of at most n - 1 characters
 * and returns the length it has in full. */
KDA_API size_t kda_plan_describe(const kda_plan *plan, char *text, size_t n);

/* ---- Run -------------------------------------------------------------------------------- */

/* Where a tensor is: in an OpenCL buffer (kda_enqueue) or in host memory (kda_execute), offset
 * bytes in; address and offset are multiples of the element size. Rows of the outermost dimension
 * are token_stride elements apart, heads head_stride; 0 = packed. The outermost dimension of a
 * state is its slot, of checkpoints their number. Strides are not negative; those of an output let
 * no two elements coincide, and no element of an output may belong to another tensor (final_state:
 * see there), which is not checked.
 * Ignored by a_log, dt_bias and the tensors of integers, which are packed. A buffer of an input
 * must not be CL_MEM_WRITE_ONLY, of an output not CL_MEM_READ_ONLY. Both mem and host NULL: absent.
 */
typedef struct kda_input {
    cl_mem mem;
    const void *host;
    size_t offset;
    int64_t token_stride, head_stride;
} kda_input;

typedef struct kda_output {
    cl_mem mem;
    void *host;
    size_t offset;
    int64_t token_stride, head_stride;
} kda_output;

typedef struct kda_args {
    size_t struct_size;
    int64_t tokens;    /* T, 0..max_tokens */
    int64_t sequences; /* N, 1..max_sequences; 0 = 1 */

    kda_input q, k, v; /* may be absent when tokens is 0, like g, beta and out */
    kda_input g;       /* present unless KDA_GATE_NONE */
    kda_input beta;    /* may be absent with KDA_RULE_ADDITIVE and KDA_BETA_GIVEN */
    kda_input a_log;   /* KDA_GATE_SOFTPLUS: required; KDA_GATE_BOUNDED: optional; else absent */
    kda_input dt_bias; /* KDA_GATE_SOFTPLUS and _BOUNDED: optional, absent = 0; else absent */

    /* Where each sequence starts, then where the last one ends: 0, ..., T, never decreasing; empty
     * sequences are legal. Absent: N sequences of T / N tokens each. */
    kda_input cu_seqlens;
    kda_index_type cu_seqlens_type;

    kda_input initial_state; /* absent = zero */
    kda_output final_state;  /* absent = not stored; may be the initial state's own memory, with the
                              * same strides; an empty sequence's state is copied bit for bit */
    kda_output out;

    /* Makes initial_state and final_state pools of `slots` states: sequence n reads slot
     * state_index[n], and writes it unless there is a write_index. A negative index skips the
     * sequence: its states are neither read nor written, its rows of out are zero. Slot 0 is a
     * slot like any other. No slot may be written twice in one call or, if both pools are the same
     * memory, written by one sequence and read by another. */
    kda_input state_index;
    kda_index_type state_index_type; /* of write_index and accepted too */
    int64_t slots;                   /* with state_index only: states in each pool, 1..2^31-1 */

    /* The state after every n = checkpoint_every tokens of a sequence, counted from its own start.
     * The j-th of the sequence that starts at token s is number s / n + j - 1 (rounding down), so
     * that [T / n] states always suffice and nobody counts the sequences before; numbers that
     * belong to no checkpoint are not written, and a skipped sequence has none. A sequence resumed
     * from a checkpoint continues bit for bit. A state does not say after how many tokens it is:
     * whoever keeps one keeps that with it. */
    kda_output checkpoints;

    /* kda_enqueue: at least kda_plan_workspace(plan) bytes, for this call alone until it has
     * finished; read and written; offset is a multiple of 128. */
    struct {
        cl_mem mem;
        size_t offset, size;
    } workspace;

    /* No sequence of the call is longer; 0 = unknown. Lengths in device memory are unknown to the
     * host: with this it launches only what so short sequences need. */
    int64_t max_length;

    /* Where states go, with state_index only: sequence n writes slot write_index[n] instead of the
     * one it reads, or nothing if negative. */
    kda_input write_index;

    /* Sequences whose initial state is zero whatever the memory holds, NaN included: those with a
     * byte other than 0. */
    kda_input fresh;

    /* Speculation and rollback. C columns, 1..16 (0 = 1), make rows of C slots of state_index and
     * write_index. A row of write_index (of state_index, if that is absent) takes the last C states
     * of the sequence, in order: of a sequence of L tokens, column c takes the state after token
     * max(L - C, 0) + c, counted from 0, and columns past L nothing; so while L <= C every token
     * has its slot. Negative: not stored. An empty sequence's state goes to column 0.
     *
     * Sequence n resumes from column accepted[n] - 1 of its row of state_index; accepted absent:
     * from column 0. So the table that took the states of a call of drafts is, with the number of
     * tokens that were accepted, what the next call resumes from, and rolling a whole call back is
     * to resume from the slot that it read. accepted[n] <= 0 skips the sequence as a negative index
     * does; more than C is an error, in device memory a skip. To verify and keep nothing, leave
     * final_state out.
     *
     * With more than one column every sequence goes token by token, which a plan of
     * KDA_SCHEDULE_CHUNKWISE refuses. */
    kda_input accepted;
    int32_t index_columns;
} kda_args;
#define kda_args(...) (&(struct kda_args){.struct_size = sizeof(struct kda_args), __VA_ARGS__})

/* Enqueues the work on a queue of the plan's OpenCL context and device, in-order or out-of-order,
 * after the events in wait (num_wait of them; NULL when 0), and returns at once: it compiles,
 * allocates and reads back nothing. event, if not NULL, receives an event to wait for, owned by
 * the caller; NULL on failure. Tensors are in OpenCL memory. INVALID on a plan of the CPU backend.
 * Should the driver fail between launches, those before still run: the outputs, and a state that is
 * both read and written, hold anything once the queue has finished.
 *
 * Contents of device memory can't be checked here (but see kda_context_params.debug). Offsets in
 * cu_seqlens that break their rule are clamped to 0..T and to their predecessor, rows of out
 * outside every sequence are not touched, an index of slots or more counts as negative, and of a
 * sequence longer than max_length the results are unspecified: a wrong value never reads or writes
 * outside the caller's tensors. A log gate above 0 multiplies the state by exp(g), as the formula
 * says. */
KDA_API kda_status kda_enqueue(kda_plan *plan, cl_command_queue queue, const kda_args *args,
                               cl_uint num_wait, const cl_event *wait, cl_event *event);

/* Runs on tensors in host memory, on any backend, and returns when the outputs are written. An
 * OpenCL plan allocates device memory for all of the tensors, of a pool for every slot (MEMORY if
 * that passes the device's largest buffer), and copies what is read and written. Nothing else is
 * touched: gaps between strided rows, slots of pools that the call does not name and numbers
 * without a checkpoint may be in use elsewhere. What kda_enqueue can't see is checked: cu_seqlens
 * must obey its rule and max_length, indices their rules, accepted must be at most index_columns,
 * and with KDA_GATE_LOG every g, a skipped sequence's too, must be <= 0 (NaN is not): else INVALID.
 * Nothing is written then. */
KDA_API kda_status kda_execute(kda_plan *plan, const kda_args *args);

/* ---- Misc ------------------------------------------------------------------------------- */

/* "OK", "INVALID", ...; never NULL. */
KDA_API const char *kda_status_string(kda_status status);

/* "major.minor.patch" of the library that runs, which may be newer than this header. */
KDA_API const char *kda_version(void);

#ifdef __cplusplus
}
#endif

#endif

/* What every kernel shares: storage types and conversions, activations, and where a sequence lies.
 * 16-bit types are storage only, so no device needs cl_khr_fp16; arithmetic is float.
 *
 * SPDX-License-Identifier: MIT */

/* The numbers of the public enums in kda.h. */
#define KDA_F32 1
#define KDA_F16 2
#define KDA_BF16 3
#define KDA_GATE_LOG 0
#define KDA_GATE_SOFTPLUS 1
#define KDA_GATE_BOUNDED 2
#define KDA_GATE_NONE 3
#define KDA_BETA_GIVEN 0
#define KDA_BETA_SIGMOID 1
#define KDA_BETA_SIGMOID2 2
#define KDA_RULE_DELTA 0
#define KDA_STATE_KV 0
#define KDA_HEADS_GROUPED 0

/* Options of every program. The host gives all; the defaults let a file compile alone. */
#ifndef KDA_K
#define KDA_K 128 /* key_dim, 1..256 */
#endif
/* value_dim, where the program is for one. */
#ifdef KDA_V
#define VALUE_DIM(a) KDA_V
#else
#define VALUE_DIM(a) ((a).value_dim)
#endif
#ifndef KDA_DTYPE
#define KDA_DTYPE KDA_BF16 /* q, k, v */
#endif
#ifndef KDA_G_DTYPE
#define KDA_G_DTYPE KDA_DTYPE
#endif
#ifndef KDA_BETA_DTYPE
#define KDA_BETA_DTYPE KDA_DTYPE
#endif
#ifndef KDA_OUT_DTYPE
#define KDA_OUT_DTYPE KDA_DTYPE
#endif
#ifndef KDA_STATE_DTYPE
#define KDA_STATE_DTYPE KDA_F32
#endif
#ifndef KDA_GATE
#define KDA_GATE KDA_GATE_BOUNDED
#endif
#ifndef KDA_GATE_PER_HEAD
#define KDA_GATE_PER_HEAD 0 /* 1: one gate a head instead of one a channel */
#endif
#ifndef KDA_BETA
#define KDA_BETA KDA_BETA_SIGMOID
#endif
#ifndef KDA_RULE
#define KDA_RULE KDA_RULE_DELTA
#endif
#ifndef KDA_NORM_QK
#define KDA_NORM_QK 1
#endif
#ifndef KDA_STATE_LAYOUT
#define KDA_STATE_LAYOUT KDA_STATE_KV
#endif
#ifndef KDA_HEAD_MAP
#define KDA_HEAD_MAP KDA_HEADS_GROUPED
#endif
#ifndef KDA_CHECKPOINTS
#define KDA_CHECKPOINTS 1 /* 0: no call has any */
#endif

/* Arrays in registers need unrolled loops; a CPU keeps them in memory and wants compact code, which
 * its compilers vectorise, and which takes a tenth of the time to build. */
#ifndef KDA_COMPACT
#define KDA_COMPACT 0
#endif
#ifndef KDA_VECTORS
#define KDA_VECTORS 0 /* 1: a CPU whose driver works in vectors */
#endif
#define PRAGMA(x) _Pragma(#x)
#if KDA_COMPACT
#define UNROLL
#define UNROLL_BY(n)
#define ROLLED
#else
#define UNROLL PRAGMA(unroll)
#define ROLLED PRAGMA(unroll 1)
#define UNROLL_BY(n) PRAGMA(unroll n)
#endif

/* n, as the bound of a loop that has to stay one. Mesa unrolls those whose turns it can count, up
 * to 32, whatever a pragma says. In its llvmpipe each access to memory is a loop over work-items,
 * and the time to build a kernel grows by the square of their number: 17 s for kda_step of K = 24
 * when unrolled, 0.6 s with its loops kept, kda_prepare 6 s and 0.5 s, and neither is faster
 * unrolled (22.3.6, 2026-11-30). No launch has an offset, but the compiler cannot know. */
#if KDA_COMPACT && !KDA_VECTORS
#define LOOP_BOUND(n) ((n) + (int)get_global_offset(0))
#else
#define LOOP_BOUND(n) (n)
#endif

/* Runs i over those of 0..count-1 that are below inside: as a loop's bound on a CPU, as guards in
 * an unrolled loop elsewhere. */
#if KDA_COMPACT
#define FOR_INSIDE(i, count, inside)                                                               \
    for (int i = 0; i < LOOP_BOUND(min((int)(count), (int)(inside))); i++)
#else
#define FOR_INSIDE(i, count, inside)                                                               \
    PRAGMA(unroll)                                                                                 \
    for (int i = 0; i < (count); i++)                                                              \
        if (i < (inside))
#endif

/* Of work-groups that find their work by one number: this number, and how many there are. On a CPU
 * they lie along the last dimension, which PoCL 3.1 leaves out where it tells whether a launch is
 * wider than those before. For one that is, it compiles again, and up to 5.0 it ends the process
 * where others of the kernel are at work (docs/devices.md). */
#if KDA_COMPACT
#define GROUP_DIM 2
#else
#define GROUP_DIM 0
#endif
#define GROUP_ID ((uint)get_group_id(GROUP_DIM))
#define GROUP_COUNT ((uint)get_num_groups(GROUP_DIM))

/* ---- Storage ---- */

static inline float f32_to_float(float x)
{
    return x;
}

static inline float load_f32(__global const float *p, long i)
{
    return p[i];
}
static inline float load_f16(__global const ushort *p, long i)
{
    return f16_to_float(p[i]);
}
static inline float load_bf16(__global const ushort *p, long i)
{
    return bf16_to_float(p[i]);
}
static inline void store_f32(__global float *p, long i, float x)
{
    p[i] = x;
}
static inline void store_bf16(__global ushort *p, long i, float x)
{
    p[i] = float_to_bf16(x);
}

#if KDA_DTYPE == KDA_F32
typedef float data_t;
#define load_data load_f32
#define data_to_float f32_to_float
#elif KDA_DTYPE == KDA_F16
typedef ushort data_t;
#define load_data load_f16
#define data_to_float f16_to_float
#else
typedef ushort data_t;
#define load_data load_bf16
#define data_to_float bf16_to_float
#endif

#if KDA_G_DTYPE == KDA_F32
typedef float gate_t;
#define load_gate load_f32
#define gate_to_float f32_to_float
#elif KDA_G_DTYPE == KDA_F16
typedef ushort gate_t;
#define load_gate load_f16
#define gate_to_float f16_to_float
#else
typedef ushort gate_t;
#define load_gate load_bf16
#define gate_to_float bf16_to_float
#endif

#if KDA_BETA_DTYPE == KDA_F32
typedef float beta_t;
#define load_beta load_f32
#define beta_to_float f32_to_float
#elif KDA_BETA_DTYPE == KDA_F16
typedef ushort beta_t;
#define load_beta load_f16
#define beta_to_float f16_to_float
#else
typedef ushort beta_t;
#define load_beta load_bf16
#define beta_to_float bf16_to_float
#endif

#if KDA_OUT_DTYPE == KDA_F32
typedef float out_t;
#define store_out store_f32
#elif KDA_OUT_DTYPE == KDA_F16
typedef ushort out_t;
#define store_out store_f16
#else
typedef ushort out_t;
#define store_out store_bf16
#endif

#if KDA_STATE_DTYPE == KDA_F32
typedef float state_t;
#define load_state load_f32
#define store_state store_f32
#elif KDA_STATE_DTYPE == KDA_F16
typedef ushort state_t;
#define load_state load_f16
#define store_state store_f16
#else
typedef ushort state_t;
#define load_state load_bf16
#define store_state store_bf16
#endif

/* Where row r (key channel), column c of a state lies. */
#if KDA_STATE_LAYOUT == KDA_STATE_KV
#define STATE_AT(r, c, value_dim) ((long)(r) * (value_dim) + (c))
#else
#define STATE_AT(r, c, value_dim) ((long)(c)*KDA_K + (r))
#endif

/* ---- Activations ---- */

/* Macros: kda_prepare gives them vectors. */
#define sigmoid(x) (1.0f / (1.0f + exp(-(x))))

/* log(1 + exp(x)); above 20 the difference to x is below half an ulp. */
#define softplus(x) ((x) > 20.0f ? (x) : log1p(exp(x)))

/* The log decay, from the raw value g, its bias and exp(a_log). */
#if KDA_GATE == KDA_GATE_SOFTPLUS
#define log_decay(g, bias, a, bound) (-(a)*softplus((g) + (bias)))
#elif KDA_GATE == KDA_GATE_BOUNDED
#define log_decay(g, bias, a, bound) ((bound)*sigmoid((a) * ((g) + (bias))))
#else
#define log_decay(g, bias, a, bound) (g)
#endif

static inline float activate_beta(float x)
{
#if KDA_BETA == KDA_BETA_SIGMOID
    return sigmoid(x);
#elif KDA_BETA == KDA_BETA_SIGMOID2
    return 2.0f * sigmoid(x);
#else
    return x;
#endif
}

/* ---- Sequences and heads ---- */

/* The key head that value head h reads. */
static inline int key_head(const struct kda_call_args *a, int h)
{
#if KDA_HEAD_MAP == KDA_HEADS_GROUPED
    return a->head_divisor == 1 ? h : h / a->head_divisor;
#else
    return h % a->head_divisor;
#endif
}

static inline long load_index(__global const int *p, long i, int is_i64)
{
    return is_i64 ? ((__global const long *)p)[i] : (long)p[i];
}

/* n / value_heads, for n below 2^31, by multiplication (Granlund and Montgomery): a division takes
 * a GPU as long as a good part of a token. */
static inline uint heads_in(const struct kda_call_args *a, uint n)
{
    return (mul_hi(n, (uint)a->by_heads) + n) >> a->by_heads_shift;
}

/* First token of sequence n, or of the one behind the last. Clamped, so that no content of
 * cu_seqlens leads outside the tensors. */
static inline long sequence_start(const struct kda_call_args *a, __global const int *cu_seqlens,
                                  long n)
{
    if (!(a->has & KDA_HAS_CU_SEQLENS))
        return a->sequence_tokens * n;
    int is_i64 = a->has & KDA_HAS_CU_SEQLENS_I64;
    return clamp(load_index(cu_seqlens, a->cu_seqlens + n, is_i64), 0l, a->tokens);
}

/* Where sequence n begins and ends. */
static inline void sequence_bounds(const struct kda_call_args *a, __global const int *cu_seqlens,
                                   long n, long *begin, long *end)
{
    const long at = a->cu_seqlens + n;
    long first = a->sequence_tokens * n, last = first + a->sequence_tokens;
    if (a->has & KDA_HAS_CU_SEQLENS) {
        if (a->has & KDA_HAS_CU_SEQLENS_I64) {
            first = ((__global const long *)cu_seqlens)[at];
            last = ((__global const long *)cu_seqlens)[at + 1];
        } else {
            first = cu_seqlens[at];
            last = cu_seqlens[at + 1];
        }
    }
    *begin = clamp(first, 0l, a->tokens);
    *end = clamp(last, *begin, a->tokens);
}

/* The slot of sequence n's initial state, or -1 to skip it. */
static inline long sequence_slot(const struct kda_call_args *a, __global const int *state_index,
                                 __global const int *accepted, long n)
{
    const int is_i64 = a->has & KDA_HAS_STATE_INDEX_I64;
    if (!(a->has & KDA_HAS_STATE_INDEX))
        return n;
    long column = 0;
    if (a->has & KDA_HAS_ACCEPTED)
        column = load_index(accepted, a->accepted + n, is_i64) - 1;
    if (column < 0 || column >= a->index_columns)
        return -1;
    long slot = load_index(state_index, a->state_index + n * a->index_columns + column, is_i64);
    return slot < a->slots ? slot : -1;
}

/* The slot of the column-th of those states of sequence n that are stored; -1: it is not. */
static inline long write_slot(const struct kda_call_args *a, __global const int *write_index,
                              long n, long column)
{
    if (!(a->has & KDA_HAS_FINAL_STATE))
        return -1;
    if (!(a->has & KDA_HAS_STATE_INDEX))
        return n;
    long slot = load_index(write_index, a->write_index + n * a->index_columns + column,
                           a->has & KDA_HAS_STATE_INDEX_I64);
    return slot < a->slots ? slot : -1;
}

/* Whether sequence n starts from zero. */
static inline int is_fresh(const struct kda_call_args *a, __global const uchar *fresh, long n)
{
    return !(a->has & KDA_HAS_INITIAL_STATE) || ((a->has & KDA_HAS_FRESH) && fresh[a->fresh + n]);
}

/* ---- What kda_prepare leaves for the other kernels ---- */

#ifndef KDA_CHUNK
#define KDA_CHUNK 64 /* C, tokens in a chunk: 16, 32 or 64 */
#endif

/* Key channels in the workspace: whole slabs of kda_prepare, zero where there are none. */
#define PADDED_K ((KDA_K + 31) / 32 * 32)

/* The factors of one chunk and head, row-major, at these offsets in floats. */
#define FACTOR_W 0
#define FACTOR_QD (FACTOR_W + KDA_CHUNK * PADDED_K)
#define FACTOR_KE (FACTOR_QD + KDA_CHUNK * PADDED_K)
#define FACTOR_A (FACTOR_KE + KDA_CHUNK * PADDED_K)
#define FACTOR_D (FACTOR_A + KDA_CHUNK * KDA_CHUNK)
#define FACTOR_U (FACTOR_D + PADDED_K) /* C x padded_v; last, since V is an argument */

/* What kda_mma_prepare leaves of one chunk and head instead: images of operands as matrix.cl has
 * them, 64 rows each (of Kd its negative, of A_qk what is below the diagonal), and D, beta and the
 * diagonal of A_qk as floats, D with room for 128, which keeps images aligned. In bytes; IMAGE_AT
 * counts elements of an image. */
#define IMAGE_AT(row, col)                                                                         \
    ((((col) >> 6) * 64 + (row)) * 64 + (((((col) >> 3) & 7) ^ ((row)&7)) << 3) + ((col)&7))
#define IMAGE_KD 0
#define IMAGE_D (128 * KDA_K)
#define IMAGE_BETA (IMAGE_D + 512)
#define IMAGE_DIAGONAL (IMAGE_BETA + 256)
#define IMAGE_L (IMAGE_DIAGONAL + 256)
#define IMAGE_A (IMAGE_L + 8192) /* the scan needs from here on in the second half of a chunk */
#define IMAGE_QD (IMAGE_A + 8192)
#define IMAGE_KE (IMAGE_QD + 128 * KDA_K)
#define IMAGE_BYTES (IMAGE_KE + 128 * KDA_K)

#define HAS_CHECKPOINTS(a) (KDA_CHECKPOINTS && ((a)->has & KDA_HAS_CHECKPOINTS))
/* Whether a sequence's state after `done` tokens is a checkpoint, and its number. */
static inline int is_checkpoint(const struct kda_call_args *a, long done, long length)
{
    return HAS_CHECKPOINTS(a) && done > 0 && done <= length &&
           done % a->checkpoint_every == 0;
}
#define CHECKPOINT(a, start, done)                                                                 \
    ((start) / (a)->checkpoint_every + (done) / (a)->checkpoint_every - 1)

/* First chunk of sequence n, counted over all sequences, or of the one behind the last: from
 * kda_table's table, or without cu_seqlens by arithmetic. */
static inline int chunk_start(const struct kda_call_args *a, __global const float *workspace,
                              long n)
{
    if (!(a->has & KDA_HAS_CU_SEQLENS))
        return (int)n * a->chunks_each;
    return ((__global const int *)(workspace + a->table))[n];
}

/* The sequence that a chunk belongs to: the last one that starts at or before it. */
static inline long sequence_of(const struct kda_call_args *a, __global const float *workspace,
                               int chunk)
{
    if (!(a->has & KDA_HAS_CU_SEQLENS))
        return chunk / a->chunks_each;
    long low = 0, high = a->sequences; /* chunk_start(low) <= chunk < chunk_start(high) */
    while (high - low > 1) {
        long middle = (low + high) / 2;
        if (chunk_start(a, workspace, middle) <= chunk)
            low = middle;
        else
            high = middle;
    }
    return low;
}

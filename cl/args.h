/* Scalar arguments of the kernels: one struct, passed by value, read by host and device alike.
 * 32-bit members come in pairs, so that no compiler inserts padding (Mesa leaves it out at the
 * end).
 *
 * SPDX-License-Identifier: MIT */
#ifndef KDA_ARGS_H
#define KDA_ARGS_H

#if defined(__OPENCL_C_VERSION__) || defined(__OPENCL_VERSION__)
typedef long kda_i64;
typedef int kda_i32;
#else
#include <stdint.h>
typedef int64_t kda_i64;
typedef int32_t kda_i32;
#endif

/* A tensor in a buffer, in elements. */
struct kda_layout {
    kda_i64 offset, token_stride, head_stride;
};

/* Bits of kda_call_args.has: what is present, and of which kind. */
#define KDA_HAS_BETA (1 << 0)
#define KDA_HAS_A_LOG (1 << 1)
#define KDA_HAS_DT_BIAS (1 << 2)
#define KDA_HAS_CU_SEQLENS (1 << 3)
#define KDA_HAS_CU_SEQLENS_I64 (1 << 4)
#define KDA_HAS_STATE_INDEX (1 << 5)
#define KDA_HAS_STATE_INDEX_I64 (1 << 6)
#define KDA_HAS_INITIAL_STATE (1 << 7)
#define KDA_HAS_FINAL_STATE (1 << 8)
#define KDA_HAS_CHECKPOINTS (1 << 9)
#define KDA_HAS_ACCEPTED (1 << 10)
#define KDA_HAS_FRESH (1 << 11)
#define KDA_HAS_WIDE_STATES (1 << 12) /* every state row is aligned for the vector accesses */
#define KDA_HAS_WIDE_ROWS (1 << 13)   /* so is every row of q, k, v, g and out, for 16 bytes */

/* Columns of S that a work-group of kda_mma_join has. */
#define KDA_JOIN_COLUMNS 4

/* Members that cl/step.cl needs of every call come first: each line of 64 bytes that a work-group
 * touches costs it a wait. */
struct kda_call_args {
    kda_i64 sequence_tokens; /* of each sequence, where there are no cu_seqlens */
    kda_i32 has;
    kda_i32 value_heads, by_heads, by_heads_shift; /* what divides by the first: see heads_in */
    kda_i32 head_divisor; /* key_head: value heads to a key head, or key heads */
    kda_i32 step_limit;   /* longest sequence that goes token by token */
    float scale, gate_bound;
    kda_i32 value_dim, checkpoint_every;
    struct kda_layout initial_state, q, k, v, g, beta, out, final_state, checkpoints;
    /* Offsets in elements. */
    kda_i64 a_log, dt_bias, cu_seqlens, state_index, write_index, accepted, fresh;
    kda_i64 tokens, sequences, slots, index_columns;
    /* The workspace of the chunkwise schedule, in floats: see lib/workspace.c. */
    kda_i64 table, factors, factor_stride, carry_in, carry_out;
    kda_i64 states_in, states_out, products; /* clblast engine */
    kda_i64 progress, call;                  /* mma engine: see cl/mma_order.cl */
    kda_i32 first_chunk, chunk_count;        /* of this piece, counted over all sequences */
    kda_i32 chunks_each;                     /* of every sequence, without cu_seqlens */
    kda_i32 piece, step;              /* clblast engine: chunks of a full piece, the one at work */
    kda_i32 padded_v;                 /* columns of U and of the carried states */
    kda_i32 preparers, heads_abreast; /* mma engine */
};
/* The mma engine, where it cuts sequences (cl/mma_segments.cl), has states that segments begin with
 * at states_in, and while it makes maps these at states_out, which is 0 otherwise; a segment has
 * `piece` chunks, a sequence of the call at most `step` segments. */

/* The same for cl/few.cl, most of it in 32 bits. */
struct kda_few_layout {
    kda_i32 offset, token_stride, head_stride;
};
struct kda_few_states {
    kda_i64 offset;
    kda_i32 token_stride, head_stride;
};

/* What such a call has, what else where gates are raw, and what it has not. */
#define KDA_FEW_HAS                                                                                \
    (KDA_HAS_BETA | KDA_HAS_INITIAL_STATE | KDA_HAS_FINAL_STATE | KDA_HAS_WIDE_STATES)
#define KDA_FEW_HAS_RAW (KDA_HAS_A_LOG | KDA_HAS_DT_BIAS)
#define KDA_FEW_HAS_NOT                                                                            \
    (KDA_HAS_CU_SEQLENS | KDA_HAS_ACCEPTED | KDA_HAS_FRESH | KDA_HAS_CHECKPOINTS)

/* On an H200 a line of arguments, which costs 40 ns, ends behind 48 bytes and then every 64. So
 * where a state lies is in the first, with the pointer to them ahead of this struct, and pointers
 * follow it in a line of their own. */
struct kda_few_args {
    kda_i32 has, value_heads, by_heads, by_heads_shift;
    struct kda_few_states initial_state;
    kda_i32 by_keys; /* with the shift: the same for head_divisor */
    float gate_bound;
    struct kda_few_layout q, k, g, v, beta;
    kda_i32 a_log;
    kda_i32 dt_bias;
    float scale;
    struct kda_few_layout out;
    kda_i32 by_keys_shift;
    struct kda_few_states final_state;
    kda_i32 value_dim, index_columns, state_index, write_index;
    kda_i32 slots; /* without state_index more than there are */
    kda_i32 head_divisor;
};

#endif

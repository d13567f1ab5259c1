/* The operation in f64, straight from its formulas: what everything else is held to.
 *
 * A problem and its args mean here what they mean to the library: defaults, strides, offsets,
 * cu_seqlens, indices and checkpoints as kda.h says, tensors at their .host pointers. No code
 * is shared with the library. Work is done per sequence and value head, so that a few heads of a
 * large problem can be checked alone.
 *
 * SPDX-License-Identifier: MIT */
#ifndef ORACLE_H
#define ORACLE_H

#include "kda.h"

/* Where sequence n of a call lies: its first token, how many follow, the slot of its initial state
 * (< 0: the call skips it) and whether that is zero instead. Offsets and indices that break their
 * rule are treated as kda_enqueue documents. */
struct oracle_sequence {
    int64_t start, length, slot;
    int fresh;
};
struct oracle_sequence oracle_sequence(const kda_args *args, int64_t n);

/* How many states of a sequence of so many tokens may be stored as final_state, its last ones, and
 * the slot of one of them, the oldest being 0; < 0: it is not stored. An empty sequence has one. */
int64_t oracle_stored(const kda_args *args, int64_t length);
int64_t oracle_slot(const kda_args *args, int64_t n, int64_t i);

/* One value head of one sequence that is not skipped. state, K x V with key channels as rows
 * whatever state_layout says, is working memory and the final state; out is [length, V] or NULL,
 * checkpoints [length / checkpoint_every, K, V] or NULL, stored [oracle_stored(), K, V] or NULL. */
void oracle_head(const kda_problem *problem, const kda_args *args, int64_t sequence, int32_t head,
                 double *state, double *out, double *checkpoints, double *stored);

/* What a whole call writes, in packed arrays of the shapes in kda.h, states in the problem's
 * layout; NULL where not wanted. Elements that the call does not write keep their values. */
struct oracle_outputs {
    double *out, *final_state, *checkpoints;
};
void oracle_run(const kda_problem *problem, const kda_args *args,
                const struct oracle_outputs *outputs);

#endif

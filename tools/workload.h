/* A problem's tensors in host memory: filled from a seed, handed to the library, and compared with
 * the f64 oracle afterwards. kdabench measures with them, kdainfo's self-test checks with them.
 *
 * The data, number i of a tensor being a function of the seed, the tensor and i alone: q, k, v,
 * beta and the initial state are normal; so is g where the library makes the log decay of it,
 * while the log gate gets -softplus(normal); a_log is the logarithm of a number in [1, 16), and
 * dt_bias is normal, as the published models start out. The slots that sequences have in a pool are
 * spread over it, and any number of drafts may have been accepted.
 *
 * SPDX-License-Identifier: MIT */
#ifndef WORKLOAD_H
#define WORKLOAD_H

#include "problem.h"

enum workload_tensor {
    WORKLOAD_Q,
    WORKLOAD_K,
    WORKLOAD_V,
    WORKLOAD_G,
    WORKLOAD_BETA,
    WORKLOAD_A_LOG,
    WORKLOAD_DT_BIAS,
    WORKLOAD_CU_SEQLENS,
    WORKLOAD_STATE_INDEX,
    WORKLOAD_ACCEPTED,
    WORKLOAD_INITIAL_STATE,
    WORKLOAD_FINAL_STATE,
    WORKLOAD_OUT,
    WORKLOAD_TENSORS
};

struct workload {
    const struct problem *problem;
    void *data[WORKLOAD_TENSORS];   /* NULL: the problem has no such tensor */
    size_t bytes[WORKLOAD_TENSORS]; /* 0 then */
};

/* False: out of memory; nothing to free then. The problem must outlive the workload. */
bool workload_create(struct workload *w, const struct problem *problem, uint64_t seed);
void workload_free(struct workload *w);

/* Fills the outputs with NaN, so that what a call leaves out is found. */
void workload_poison(struct workload *w);

/* The slot of the i-th of a problem's stored states, numbered column by column of each sequence. */
int64_t workload_slot(const struct problem *problem, int64_t i);

/* The call, on the host tensors, or on buffers that hold the same if mem is not NULL. */
kda_args workload_args(const struct workload *w, const cl_mem *mem);

struct workload_check {
    bool pass;
    double out_error, state_error; /* rms(err) / rms(ref) over the heads compared; infinite if an
                                    * element is not finite */
    int64_t heads, all_heads;      /* heads compared, of all sequences; how many there are */
    char why[160];                 /* what is wrong, if not pass */
};

/* Compares the outputs with the oracle, head by head, each over its whole sequence: all heads if
 * that takes a second or two, else the first and the last head of the first and the last sequence.
 * Of the others it asks only that they hold no NaN. False: out of memory. */
bool workload_compare(const struct workload *w, struct workload_check *check);

#endif

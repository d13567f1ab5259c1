/* A job: what one safetensors file asks the library to do, and room for what comes of it.
 *
 *     tensor             shape                              type
 *     q, k               [T, H, K]                          F32, F16 or BF16
 *     v                  [T, HV, V]                         as q
 *     g                  [T, HV, K] or per head [T, HV]     as q, or F32
 *     beta               [T, HV]                            as q, or F32
 *     a_log, dt_bias     [HV], [HV, K] or per head [HV]     F32
 *     cu_seqlens         [N+1]; absent = one sequence       I32 or I64
 *     initial_state      [N, HV, K, V] or [N, HV, V, K]     F32, F16 or BF16: how states are kept
 *     state_index        [N]; the states are a pool then    I32 or I64
 *                        [N, C]: C columns (kda_args.index_columns)
 *     write_index        as state_index                     as state_index
 *     accepted           [N]                                as state_index
 *     fresh              [N]                                BOOL or U8
 *
 * metadata.h has the keys that say how they are meant. Results and gradients that tests keep beside
 * the inputs may be there: o, final_state, checkpoints, do, dht, d<input>. Any other tensor is an
 * error: an input misspelt would be an answer without it.
 *
 * SPDX-License-Identifier: MIT */
#ifndef JOB_H
#define JOB_H

#include "metadata.h"

/* A result, packed, in the type the library stores. */
struct job_output {
    struct st_tensor tensor;
    void *data;                        /* tensor.data, ours */
    const struct st_tensor *reference; /* what the file says it should be; NULL: nothing */
};

enum { JOB_OUT, JOB_STATE, JOB_CHECKPOINTS, JOB_OUTPUTS };

struct job {
    const char *path;
    struct st_file *file;
    kda_problem problem;
    kda_args args;
    struct job_output output[JOB_OUTPUTS]; /* name NULL: the job has no such output */
};

/* All that can fail returns false and stores a line in error (of ST_ERROR_SIZE bytes). */

/* The type of a tensor's numbers, as numbers.h has them. */
int job_number_type(const struct st_tensor *tensor);

/* Fills in the problem and the inputs; set may be NULL. job_close is due either way; path must
 * outlive the job. */
bool job_open(struct job *job, const char *path, const struct metadata_settings *set, char *error);
void job_close(struct job *job);

/* Looks up what the outputs should be; fails if the file knows neither o nor final_state. */
bool job_references(struct job *job, char *error);

/* Makes the outputs, out in the problem's out_dtype. */
bool job_allocate(struct job *job, char *error);

/* After a run: moves checkpoints together, which the library numbers with gaps. */
void job_collect(struct job *job);

/* Writes the outputs to a file: out, named o, as it is, states as F32. */
bool job_write(const struct job *job, const char *path, char *error);

#endif

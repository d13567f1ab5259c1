/* One call of the library, made from one line of text: the problem, the lengths of the sequences,
 * the numbers in every tensor and how the tensors lie in memory. A test is such a line, a failure
 * prints it, and `kdatest --call LINE` runs it again.
 *
 * The line is words KEY=VALUE, all optional, of which the last of each key counts:
 *
 *     H HV K V                 sizes; 1, H, 1, 1
 *     lengths=5,0,33x4         tokens of each sequence, 33x4 being four of 33; 1
 *     max_tokens max_sequences=N    of the plan; as many as there are
 *     dtype g_dtype beta_dtype out_dtype state_dtype=f32|f16|bf16    the library's defaults
 *     gate=log|softplus|bounded|none  bound=X             log
 *     activation=given|sigmoid|sigmoid2                   what beta goes through; given
 *     rule=delta|additive  norm=0|1  per_head=0|1  scale=X  checkpoint=N
 *     layout=kv|vk  map=grouped|modulo
 *     schedule=auto|recurrent|chunkwise  engine=auto|clblast|fused|mma  chunk=N  workspace=BYTES
 *     q k v g beta a_log dt_bias state=NUMBERS    contents; state is the initial state
 *     final=0|1                whether the final state is asked for; 1
 *     in_place=0|1             the final state goes to the initial state's memory; 0
 *     cu=auto|no|i32|i64       cu_seqlens; auto: only if lengths differ
 *     index=2,-1,0  slots=N  index_type=i32|i64    state_index, and the states of a pool
 *     write=1,0,-1  accepted=2,0,1  columns=C      write_index, accepted and index_columns: index
 *                              and write have C slots a sequence
 *     fresh=1,0,0              the flags
 *     max_length=N             as in the arguments; 0: not said
 *     pad=A,B,C                views with A more elements between rows, B between heads, C before
 *     order=tokens|heads       which of the two is the outer dimension in memory; tokens
 *     seed=N                   of the random numbers
 *     slack=X                  errors may be X times the usual bounds; 1
 *
 * NUMBERS are some, separated by commas and repeated over the tensor's elements, or the name of a
 * distribution (call_data.c), or `no`: the tensor is absent.
 *
 * SPDX-License-Identifier: MIT */
#ifndef CALL_H
#define CALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kda.h"

/* The tensors of a call, in the order of kda_args. */
enum {
    Q,
    K,
    V,
    G,
    BETA,
    A_LOG,
    DT_BIAS,
    CU_SEQLENS,
    INITIAL_STATE,
    FINAL_STATE,
    OUT,
    STATE_INDEX,
    WRITE_INDEX,
    ACCEPTED,
    FRESH,
    CHECKPOINTS,
    TENSORS,
    LISTS = CHECKPOINTS - STATE_INDEX
};

/* Fills every byte that the call has no business with: a NaN in each type, and the index -1.
 * GUARD bytes of it stand before the first and after the last element of every tensor. */
enum { POISON = 0xff, GUARD = 4096 };

/* [rows, heads, width] elements in a block of memory that is poison elsewhere. */
struct tensor {
    const char *name;
    bool present, integer;
    size_t size; /* bytes of an element; integers of 1 are flags */
    kda_dtype type;
    int64_t rows, heads, width;
    int64_t row_stride, head_stride; /* elements */
    size_t offset;                   /* bytes from the block's start to the first element */
    size_t block_size;
    unsigned char *block;
};

enum { MAX_SEQUENCES = 65536, CALL_TEXT = 2048 };

struct call {
    char text[CALL_TEXT]; /* complete: it names the seed */
    kda_problem problem;
    int64_t tokens, sequences;
    int32_t *lengths;
    int64_t seed;
    struct tensor tensor[TENSORS];

    /* what the words said, where the members above don't tell */
    char words[CALL_TEXT];
    const char *numbers[TENSORS], *lengths_text, *pad_text; /* NULL: not said */
    int32_t norm, per_head, final, in_place, cu, index_type, heads_outside;
    float slack;
    int32_t columns;
    int64_t workspace, slots, max_length, pad[3];
    int64_t *list[LISTS]; /* the tensors from STATE_INDEX on that are lists; NULL: not said */
};

/* Reads the text and makes the tensors; outputs are poison. seed: if the text names none. NULL, and
 * a line in why, if the text is wrong. */
enum { CALL_WHY = 256 };
struct call *call_create(const char *text, uint64_t seed, char *why);
void call_destroy(struct call *call); /* accepts NULL */

/* Tokens [from, to) of one sequence as a call of its own, from the same initial state: the same
 * numbers laid out in the same way, outputs poisoned. */
struct call *call_slice(const struct call *call, int64_t sequence, int64_t from, int64_t to);

/* The same call in memory of its own. */
struct call *call_copy(const struct call *call);

/* The arguments, on host memory. */
kda_args call_args(const struct call *call);

/* A tensor's view in the arguments; inputs and outputs have the same members. */
kda_input *call_view(kda_args *args, int id);

/* Whether the library may write the tensor. */
bool call_writes(int id);

/* The i-th element, counted as if packed. */
int64_t tensor_elements(const struct tensor *tensor);
void *tensor_at(const struct tensor *tensor, int64_t i);
double tensor_get(const struct tensor *tensor, int64_t i);
void tensor_set(struct tensor *tensor, int64_t i, double x);

/* Makes the whole block poison. */
void tensor_poison(struct tensor *tensor);

/* How many integers a list has: index and write one for each sequence and column. */
int64_t call_list_length(const struct call *call, int list);

/* call_text.c: fills in everything but the tensors. */
bool call_parse(struct call *call, const char *text, uint64_t seed, char *why);

/* call_data.c: fills a tensor with NUMBERS; false if they are none. */
bool call_fill(struct call *call, int id, const char *numbers);

#endif

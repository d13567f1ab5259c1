/* The problem language of kdabench: one token of text says what is computed, so that a bug report
 * or a measurement is one word that anyone can paste.
 *
 *     problem  = sizes { "/" option }
 *     sizes    = T x H x D             one sequence of T tokens, H heads, D = K = V
 *              | N x T x H x D         N sequences of T tokens each
 *              | "decode:" N x H x D   N sequences of one token each
 *              | H x D                 with lens=, which says the tokens
 *     option   = f32 | f16 | bf16                   q, k, v, out, and g and beta   (bf16)
 *              | log | softplus | bounded | none    gate                           (bounded)
 *              | hv#  | k#  | v#                    value heads, K, V              (H, D, D)
 *              | g=TYPE | state=TYPE                types of g and of the states   (as q, f32)
 *              | vk                                 states [V, K]                  ([K, V])
 *              | nostate                            no state goes in or comes out
 *              | pool#                              states are slots of pools of #   (one a
 * sequence) | drafts                             with pool#: a slot for the state after each of T
 * <= 16 tokens; sequences resume from one of T | per-head                           one gate value
 * per head, not per channel | additive                           no delta rule | recurrent |
 * chunkwise              schedule                       (the library's) | clblast | fused | mma
 * engine                         (the library's) | lens=#,#,...                       ragged
 * sequences, as cu_seqlens
 *
 * Options come in any order, each at most once. q and k are normalised and beta is a sigmoid, as in
 * the published models. problem_print gives the canonical text, which parses to the same problem.
 *
 * SPDX-License-Identifier: MIT */
#ifndef PROBLEM_H
#define PROBLEM_H

#include <stdbool.h>

#include "kda.h"

enum problem_option {
    OPTION_DTYPE,
    OPTION_GATE,
    OPTION_VALUE_HEADS,
    OPTION_KEY_DIM,
    OPTION_VALUE_DIM,
    OPTION_G,
    OPTION_STATE,
    OPTION_LAYOUT,
    OPTION_NO_STATE,
    OPTION_POOL,
    OPTION_DRAFTS,
    OPTION_PER_HEAD,
    OPTION_RULE,
    OPTION_SCHEDULE,
    OPTION_ENGINE,
    OPTION_SEGMENT,
    OPTION_COUNT
};

struct problem {
    kda_problem shape; /* what a plan is made for, every member said */
    int64_t tokens;    /* of all sequences */
    int64_t sequences;
    int64_t *starts; /* where each sequence starts, then where the last one ends */
    bool ragged;     /* the lengths were given one by one: the library gets starts as cu_seqlens */
    bool states;     /* an initial state goes in and a final state comes out */
    int64_t slots;   /* of a pool; 0: there is none */
    int64_t columns; /* states of a sequence that are stored, each in a slot of the pool */
    int64_t option[OPTION_COUNT]; /* the options' values as problem_print says them */
};

/* On failure says in why which part of the text is wrong; p needs no problem_free then. */
bool problem_parse(struct problem *p, const char *text, char *why, size_t why_size);
void problem_free(struct problem *p);

/* Writes at most size - 1 characters and returns the length in full. */
size_t problem_print(const struct problem *p, char *text, size_t size);

/* Bytes that must move once: q, k, v, g, beta and out, a state in for each sequence and what is
 * stored of it. The small
 * parameters (a_log, dt_bias, cu_seqlens) don't count. */
double problem_bytes(const struct problem *p);

/* Floating-point operations of the recurrence, a multiplication and an addition counting one each:
 * per token and value head, of K V each, one for the decay (unless the gate is none), two for
 * S^T k (delta rule), two for the write and two for S^T q. Gate, norms and sigmoids don't count,
 * and a schedule that does more arithmetic is not credited for it. */
double problem_flops(const struct problem *p);

#endif

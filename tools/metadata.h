/* The metadata of a safetensors file, as the part of a problem it describes. All keys are optional,
 * and "" is the same as absent:
 *
 *     gate                 log | softplus | bounded | none; required if there is a tensor g, for
 *                          nobody can see from the numbers which it is
 *     gate_bound           in [-5, 0), for gate bounded                                  (-5)
 *     beta                 given | sigmoid | sigmoid2                                    (given)
 *     norm_qk              0 | 1                                                         (0)
 *     scale                finite, not 0 (1/sqrt(K)) rule                 delta | additive (delta)
 *     state_layout         kv | vk                                                       (kv)
 *     head_map             grouped | modulo                                              (grouped)
 *     gate_per_head        0 | 1                                                         (0)
 *     checkpoint_every     a number of tokens, 0 = never                                 (0)
 *     name                 anything
 *
 * SPDX-License-Identifier: MIT */
#ifndef METADATA_H
#define METADATA_H

#include "kda.h"
#include "safetensors.h"

/* What stands in the place of a file's own, later ones before earlier ones. */
struct metadata_settings {
    const struct st_pair *pairs;
    size_t count;
};

/* set: NULL is none. False on failure, and a line in error (of ST_ERROR_SIZE bytes). */
bool metadata_read(const struct st_file *file, const char *path,
                   const struct metadata_settings *set, kda_problem *problem, char *error);

#endif

/* The call that the API tests break: one small valid call, its memory and a device to run it on.
 * A test copies the trial, changes one thing, and tries it. Everything is a few hundred numbers,
 * exactly representable in bf16, so that a view too far by one element leaves its buffer and the
 * same bytes are legal numbers in every storage type.
 *
 * SPDX-License-Identifier: MIT */
#ifndef TRIAL_H
#define TRIAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "kda.h"

/* H = 2, HV = 4, K = 4, V = 3; T = 6 tokens in N = 3 sequences. */
enum { TOKENS = 6, SEQUENCES = 3, HEADS = 2, VALUE_HEADS = 4, KEY_DIM = 4, VALUE_DIM = 3 };

/* The valid problems that rules start from. */
enum base {
    LOG,      /* given log gate, f32 */
    PER_HEAD, /* the same with one gate a head */
    SOFTPLUS, /* with a_log and dt_bias */
    BOUNDED,  /* with neither */
    NONE,     /* no gate, no g */
    ADDITIVE, /* additive rule, no beta */
    HALF,     /* bf16 everywhere, log gate */
    FULL,     /* softplus, and every tensor that there is: offsets, slots, flags, checkpoints */
    FUSED,    /* chunkwise, one chunk at a time; OpenCL only, as is the next */
    CLBLAST,
    BASES
};

/* What the library said. */
struct log {
    pthread_mutex_t lock;
    int lines[KDA_LOG_DEBUG + 1]; /* by level */
    char error[1024];             /* the last line of level ERROR */
};

void log_line(void *data, kda_log_level level, const char *line); /* a kda_log_fn */
void log_clear(struct log *log);

/* The tensors of a call, in the order of kda_args. */
enum tensor {
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
    TENSORS
};

/* Where a tensor's view stands in kda_args, and what the rules of views need to know. Inputs and
 * outputs have the same members in the same order, so either can be read as a kda_input. */
struct view {
    const char *name;
    size_t at;    /* in kda_args */
    size_t bytes; /* of its memory in the FULL call: the view packed, no more */
    bool output, strided;
};
extern const struct view views[TENSORS];

kda_input view_get(const kda_args *args, enum tensor id);
void view_set(kda_args *args, enum tensor id, kda_input view);

/* A device under test: a context, and memory for one call in host and in OpenCL memory. */
struct rig {
    char name[160];
    cl_device_id device; /* NULL: the CPU backend; nothing below is there then */
    kda_context *ctx;
    kda_plan *plans[BASES];
    kda_context *debug; /* the same device in debug; made when asked for, as are its plans */
    kda_plan *debug_plans[BASES];
    struct log log;
    void *host[TENSORS];
    cl_mem mem[TENSORS];
    cl_mem workspace[BASES]; /* what the plan asks for, no more */
    cl_mem spare;            /* larger than any tensor, as are the next two */
    cl_mem read_only, write_only;
    cl_command_queue queue;
    /* A second OpenCL context on the same device: what comes from it is foreign. */
    cl_context foreign;
    cl_mem foreign_mem;
    cl_command_queue foreign_queue;
};

/* Calls test for the CPU backend and every OpenCL device, or for what KDA_TEST_DEVICE names, and
 * returns how many Check tests failed; what was asked for and is missing counts as one. */
int for_each_rig(int (*test)(struct rig *rig));

kda_plan *rig_plan(struct rig *rig, enum base base); /* made once */
kda_plan *rig_debug_plan(struct rig *rig, enum base base);

/* All that a rule may change before the call is tried. */
struct trial {
    struct rig *rig;
    bool device; /* tensors in OpenCL memory, for kda_enqueue */
    kda_context_params params;
    kda_problem problem;
    kda_plan *plan;
    kda_args args;
    cl_command_queue queue;
    cl_uint num_wait;
    const cl_event *wait;
    cl_event event; /* stored by a successful kda_enqueue */
    union {
        int32_t i32[4 * SEQUENCES];
        int64_t i64[4 * SEQUENCES];
    } starts, slots, writes, accepted; /* a rule's own cu_seqlens and indices */
    float gates[TOKENS * VALUE_HEADS * KEY_DIM];
};

struct trial trial_make(struct rig *rig, enum base base, bool device);
/* The view of a whole tensor, whether the base has it or not. */
kda_input trial_tensor(const struct trial *trial, enum tensor id);
/* Fills every output with a byte that no result has. */
void trial_poison(const struct trial *trial);
/* Runs the call and waits for it. */
kda_status trial_run(struct trial *trial);

/* The bytes of all outputs, for comparison. */
struct outputs {
    unsigned char bytes[4 * (2 * SEQUENCES * KEY_DIM + TOKENS) * VALUE_HEADS * VALUE_DIM];
};
struct outputs trial_outputs(const struct trial *trial);
bool outputs_equal(const struct outputs *a, const struct outputs *b);
bool outputs_untouched(const struct outputs *outputs); /* all poison */

#endif

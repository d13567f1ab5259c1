/* kda_context_params.debug: kda_enqueue sees what it can't otherwise. What device memory holds is
 * read back and held to the rules that kda_execute holds host memory to, and a pool in place is
 * known as such through sub-buffers.
 *
 * SPDX-License-Identifier: MIT */
#include <stdlib.h>

#include "internal.h"

/* The tensors whose contents have rules, and fresh, which excepts sequences from one. */
static const enum kda_tensor_id ruled[] = {KDA_TENSOR_G,           KDA_TENSOR_CU_SEQLENS,
                                           KDA_TENSOR_STATE_INDEX, KDA_TENSOR_WRITE_INDEX,
                                           KDA_TENSOR_ACCEPTED,    KDA_TENSOR_FRESH};

/* Turns a tensor in device memory into a copy in host memory. */
static kda_status read_back(const kda_context *ctx, cl_command_queue queue, struct kda_tensor *t)
{
    const size_t bytes = kda_tensor_span(t);
    if (!bytes)
        return KDA_OK;
    t->host = malloc(bytes);
    if (!t->host)
        return kda_no_memory(ctx, t->name, bytes);
    const cl_int err =
        clEnqueueReadBuffer(queue, t->mem, CL_TRUE, t->offset, bytes, t->host, 0, NULL, NULL);
    t->offset = 0;
    KDA_REQUIRE(ctx, err != CL_INVALID_OPERATION,
                "kda_args.%s.mem: kda_context_params.debug reads it, so neither "
                "CL_MEM_HOST_NO_ACCESS nor CL_MEM_HOST_WRITE_ONLY",
                t->name);
    return kda_cl_check(ctx, err, "clEnqueueReadBuffer");
}

/* Two sub-buffers may be the same memory: a state is looked for in the buffer that it is part of.
 */
static kda_status leave_sub_buffer(const kda_context *ctx, struct kda_tensor *t)
{
    cl_mem whole = NULL;
    size_t origin = 0;
    cl_int err = CL_SUCCESS;
    if (t->mem)
        err = clGetMemObjectInfo(t->mem, CL_MEM_ASSOCIATED_MEMOBJECT, sizeof whole, &whole, NULL);
    if (!err && whole)
        err = clGetMemObjectInfo(t->mem, CL_MEM_OFFSET, sizeof origin, &origin, NULL);
    if (!err && whole) {
        t->mem = whole;
        t->offset += origin;
    }
    return kda_cl_check(ctx, err, "clGetMemObjectInfo");
}

kda_status kda_debug_check(const kda_plan *plan, cl_command_queue queue, const struct kda_run *run,
                           cl_uint num_wait, const cl_event *wait)
{
    struct kda_run seen = *run;
    kda_status st = KDA_OK;
    /* Not by the reads themselves: where an event has failed, PoCL's never return. */
    if (num_wait)
        st = kda_cl_check(plan->ctx, clWaitForEvents(num_wait, wait), "clWaitForEvents");
    for (size_t i = 0; !st && i < KDA_COUNT_OF(ruled); i++)
        if (seen.tensor[ruled[i]].mem &&
            (ruled[i] != KDA_TENSOR_G || plan->problem.gate == KDA_GATE_LOG))
            st = read_back(plan->ctx, queue, &seen.tensor[ruled[i]]);
    if (!st)
        st = leave_sub_buffer(plan->ctx, &seen.tensor[KDA_TENSOR_INITIAL_STATE]);
    if (!st)
        st = leave_sub_buffer(plan->ctx, &seen.tensor[KDA_TENSOR_FINAL_STATE]);
    if (!st)
        st = kda_run_check_contents(plan, &seen);
    for (size_t i = 0; i < KDA_COUNT_OF(ruled); i++)
        free(seen.tensor[ruled[i]].host);
    return st;
}

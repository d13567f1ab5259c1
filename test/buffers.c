/* A call in OpenCL memory: each block of the call becomes a buffer, guards and all, and comes back.
 *
 * SPDX-License-Identifier: MIT */
#include "harness.h"

#include <stdlib.h>
#include <string.h>

static void destroy_buffers(void *thing)
{
    struct buffers *buffers = thing;
    for (int id = 0; id < TENSORS; id++)
        if (buffers->mem[id])
            clReleaseMemObject(buffers->mem[id]);
    if (buffers->workspace)
        clReleaseMemObject(buffers->workspace);
    free(buffers);
}

static cl_mem make_buffer(cl_context context, size_t size, void *contents)
{
    cl_int code;
    cl_mem mem =
        clCreateBuffer(context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, size, contents, &code);
    check_cl(code);
    return mem;
}

static void add_workspace(struct buffers *b, const kda_plan *plan, cl_context context)
{
    size_t size = kda_plan_workspace(plan);
    if (!size)
        return;
    unsigned char *poison = malloc(size + 2 * GUARD);
    memset(poison, POISON, size + 2 * GUARD);
    b->workspace = make_buffer(context, size + 2 * GUARD, poison);
    free(poison);
    b->args.workspace.mem = b->workspace;
    b->args.workspace.offset = GUARD;
    b->args.workspace.size = size;
}

static void check_workspace(const struct buffers *b, cl_command_queue queue)
{
    unsigned char guard[GUARD];
    for (size_t i = 0; b->workspace && i < 2; i++) {
        check_cl(clEnqueueReadBuffer(queue, b->workspace, CL_TRUE,
                                     i * (GUARD + b->args.workspace.size), GUARD, guard, 0, NULL,
                                     NULL));
        for (int j = 0; j < GUARD; j++)
            ck_assert_msg(guard[j] == POISON, "byte %d %s the workspace was written", j,
                          i ? "after" : "of the guard before");
    }
}

struct buffers *upload(const struct call *call, const kda_plan *plan, cl_context context)
{
    struct buffers *b = keep(calloc(1, sizeof(*b)), destroy_buffers);
    b->args = call_args(call);
    for (int id = 0; id < TENSORS; id++) {
        const struct tensor *t = &call->tensor[id];
        if (!t->present)
            continue;
        if (id == FINAL_STATE && call->in_place) {
            clRetainMemObject(b->mem[INITIAL_STATE]);
            b->mem[id] = b->mem[INITIAL_STATE];
        } else {
            b->mem[id] = make_buffer(context, t->block_size, t->block);
        }
        call_view(&b->args, id)->host = NULL;
        call_view(&b->args, id)->mem = b->mem[id];
    }
    add_workspace(b, plan, context);
    return b;
}

void download(struct call *call, const struct buffers *b, cl_command_queue queue)
{
    check_cl(clFinish(queue));
    check_workspace(b, queue);
    for (int id = 0; id < TENSORS; id++)
        if (b->mem[id])
            check_cl(clEnqueueReadBuffer(queue, b->mem[id], CL_TRUE, 0, call->tensor[id].block_size,
                                         call->tensor[id].block, 0, NULL, NULL));
}

/* Fills what the call writes with poison, in its buffers too. */
static void poison(struct call *call, const struct buffers *b)
{
    for (int id = 0; id < TENSORS; id++) {
        struct tensor *t = &call->tensor[id];
        if (!t->present || !call_writes(id))
            continue;
        tensor_poison(t);
        if (b)
            check_cl(clEnqueueWriteBuffer(device.queue, b->mem[id], CL_TRUE, 0, t->block_size,
                                          t->block, 0, NULL, NULL));
    }
}

void run_again(kda_plan *plan, const struct call *first, int times)
{
    struct call *again = copy(first);
    const struct buffers *b = device.id ? upload(again, plan, device.context) : NULL;
    const kda_args args = b ? b->args : call_args(again);
    for (int i = 0; i < times; i++) {
        poison(again, b);
        kda_status status =
            b ? kda_enqueue(plan, device.queue, &args, 0, NULL, NULL) : kda_execute(plan, &args);
        ck_assert_int_eq(status, KDA_OK);
        if (b)
            download(again, b, device.queue);
        for (int id = 0; id < TENSORS; id++)
            if (again->tensor[id].present && call_writes(id) &&
                memcmp(again->tensor[id].block, first->tensor[id].block,
                       first->tensor[id].block_size))
                fail_call(again, "call %d of the same gives other bits", i);
    }
}

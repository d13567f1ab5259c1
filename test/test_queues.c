/* What only OpenCL has: contexts, queues and events of the caller's, and device memory whose
 * contents the library cannot check.
 *
 * SPDX-License-Identifier: MIT */
#include "harness.h"
#include "random.h"

#include <string.h>

#define SOME "H=2 HV=4 K=48 V=36 state=normal max_tokens=90 max_sequences=4 "

static cl_command_queue make_queue(cl_context context, cl_command_queue_properties properties)
{
    cl_int code;
    cl_command_queue queue = clCreateCommandQueue(context, device.id, properties, &code);
    check_cl(code);
    return queue;
}

/* Out of order where the device can. */
static cl_command_queue make_loose_queue(void)
{
    cl_command_queue_properties can = 0;
    check_cl(clGetDeviceInfo(device.id, CL_DEVICE_QUEUE_PROPERTIES, sizeof(can), &can, NULL));
    return make_queue(device.context, can & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
}

START_TEST(test_context_of_the_caller)
{
    NEEDS_QUEUES;
    struct call *right = run(SOME "lengths=70,4"), *call = copy(right);
    cl_int code;
    cl_context context = clCreateContext(NULL, 1, &device.id, NULL, NULL, &code);
    check_cl(code);
    cl_command_queue queue = make_queue(context, 0);
    kda_context *ctx;
    kda_plan *plan;
    ck_assert_int_eq(
        kda_context_create(&ctx, kda_context_params(.context = context, .device = device.id)),
        KDA_OK);
    ck_assert_ptr_eq(kda_context_cl_context(ctx), context);
    ck_assert_ptr_eq(kda_context_cl_device(ctx), device.id);
    ck_assert_int_eq(kda_plan_create(&plan, ctx, &call->problem), KDA_OK);
    tensor_poison(&call->tensor[OUT]);
    struct buffers *buffers = upload(call, plan, context);
    ck_assert_int_eq(kda_enqueue(plan, queue, &buffers->args, 0, NULL, NULL), KDA_OK);
    download(call, buffers, queue);
    same_results(call, right);
    kda_plan_destroy(&plan);
    kda_context_destroy(&ctx);
    clReleaseCommandQueue(queue);
    clReleaseContext(context);
}
END_TEST

/* Inputs arrive only after the call has been enqueued, on another queue; what reads the results
 * waits for the call's event alone. */
START_TEST(test_wait_list_and_event_are_honoured)
{
    NEEDS_QUEUES;
    struct call *right = run(SOME "lengths=70,4"), *call = copy(right), *late = copy(right);
    cl_command_queue copies = make_loose_queue(), queue = make_loose_queue();
    cl_event start, written[TENSORS], done, read;
    cl_uint num_written = 0;
    cl_int code;
    for (int id = 0; id < TENSORS; id++)
        if (call->tensor[id].present)
            tensor_poison(&call->tensor[id]);
    kda_plan *plan = plan_for(call);
    struct buffers *buffers = upload(call, plan, device.context);
    start = clCreateUserEvent(device.context, &code);
    check_cl(code);
    for (int id = 0; id < TENSORS; id++)
        if (late->tensor[id].present && !call_writes(id))
            check_cl(clEnqueueWriteBuffer(copies, buffers->mem[id], CL_FALSE, 0,
                                          late->tensor[id].block_size, late->tensor[id].block, 1,
                                          &start, &written[num_written++]));
    ck_assert_int_eq(kda_enqueue(plan, queue, &buffers->args, num_written, written, &done), KDA_OK);
    struct tensor *out = &call->tensor[OUT];
    check_cl(clEnqueueReadBuffer(queue, buffers->mem[OUT], CL_FALSE, 0, out->block_size, out->block,
                                 1, &done, &read));
    check_cl(clFlush(copies));
    check_cl(clFlush(queue));
    cl_int state;
    check_cl(clGetEventInfo(done, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(state), &state, NULL));
    ck_assert_int_gt(state, CL_COMPLETE);
    check_cl(clSetUserEventStatus(start, CL_COMPLETE));
    check_cl(clWaitForEvents(1, &read));
    same_rows(OUT, call, 0, right, 0, right->tokens);
    check_cl(clFinish(copies));
    for (cl_uint i = 0; i < num_written; i++)
        clReleaseEvent(written[i]);
    clReleaseEvent(start);
    clReleaseEvent(done);
    clReleaseEvent(read);
    clReleaseCommandQueue(copies);
    clReleaseCommandQueue(queue);
}
END_TEST

/* Each call continues from the state that it left in place. */
static void continue_often(kda_plan *plan, struct call *call, int times)
{
    struct buffers *buffers = upload(call, plan, device.context);
    for (int i = 0; i < times; i++)
        ck_assert_int_eq(kda_enqueue(plan, device.queue, &buffers->args, 0, NULL, NULL), KDA_OK);
    download(call, buffers, device.queue);
}

START_TEST(test_queues_share_a_plan)
{
    NEEDS_QUEUES;
    enum { TIMES = 50 };
    struct call *call[2] = {make(SOME "lengths=70 in_place=1"),
                            make(SOME "lengths=70 in_place=1 seed=77")};
    struct call *right[2] = {copy(call[0]), copy(call[1])};
    struct buffers *buffers[2];
    cl_command_queue queue[2];
    kda_plan *plan = plan_for(call[0]);
    for (int i = 0; i < 2; i++) {
        continue_often(plan, right[i], TIMES);
        buffers[i] = upload(call[i], plan, device.context);
        queue[i] = make_queue(device.context, 0);
    }
    for (int n = 0; n < TIMES; n++)
        for (int i = 0; i < 2; i++)
            ck_assert_int_eq(kda_enqueue(plan, queue[i], &buffers[i]->args, 0, NULL, NULL), KDA_OK);
    for (int i = 0; i < 2; i++) {
        download(call[i], buffers[i], queue[i]);
        same_results(call[i], right[i]);
        clReleaseCommandQueue(queue[i]);
    }
}
END_TEST

/* The contents of memory count, not which memory it is. */
START_TEST(test_offsets_change_in_the_same_memory)
{
    NEEDS_QUEUES;
    struct call *call = make(SOME "lengths=90,0 cu=i32"), *other = make(SOME "lengths=6,84 cu=i32");
    kda_plan *plan = plan_for(call);
    run_plan(plan, other);
    struct buffers *buffers = upload(call, plan, device.context);
    ck_assert_int_eq(kda_enqueue(plan, device.queue, &buffers->args, 0, NULL, NULL), KDA_OK);
    const struct tensor *offsets = &other->tensor[CU_SEQLENS];
    check_cl(clEnqueueWriteBuffer(device.queue, buffers->mem[CU_SEQLENS], CL_TRUE, 0,
                                  offsets->block_size, offsets->block, 0, NULL, NULL));
    ck_assert_int_eq(kda_enqueue(plan, device.queue, &buffers->args, 0, NULL, NULL), KDA_OK);
    download(call, buffers, device.queue);
    same_results(call, other);
}
END_TEST

static void set_wide(struct tensor *t, int64_t i, int64_t x)
{
    int32_t narrow = (int32_t)x;
    memcpy(tensor_at(t, i), t->size == 8 ? (void *)&x : (void *)&narrow, t->size);
}

/* Offsets and slots of every wrong kind: anything may come out, but nothing is touched outside the
 * tensors, and the kernel ends. */
START_TEST(test_garbage_stays_inside)
{
    NEEDS_QUEUES;
    static const int64_t offsets[][5] = {
        {0, INT32_MAX, -5, 7, 3},
        {INT32_MIN, 4, 3, 2, 1},
        {1000000, 1000001, -1000000, 1000000, 12},
        {-1, -1, -1, -1, -1},
        {0, ((int64_t)1 << 32) + 3, -((int64_t)1 << 40), INT64_MAX, INT64_MIN},
        {INT64_MIN, INT64_MAX, INT64_MIN, INT64_MAX, 12},
    };
    static const int64_t slots[][4] = {
        {2, 3, 1000000, INT32_MAX},
        {INT32_MIN, -1, 1, 2},
        {(int64_t)1 << 32, ((int64_t)1 << 32) + 1, INT64_MAX, INT64_MIN},
    };
    static const char *const types[] = {"i32", "i64"};
    struct call *call = make(SOME "lengths=%d,3,3,3 cu=%s index=0,1,2,-1 slots=3 index_type=%s "
                                  "checkpoint=16",
                             _i < 2 ? 3 : 80, types[_i % 2], types[_i % 2]);
    kda_plan *plan = plan_for(call);
    for (size_t n = 0; n < sizeof(offsets) / sizeof(offsets[0]); n++) {
        for (int i = 0; i < 5; i++)
            set_wide(&call->tensor[CU_SEQLENS], i, offsets[n][i]);
        for (int i = 0; i < 4; i++)
            set_wide(&call->tensor[STATE_INDEX], i, slots[n % 3][i]);
        struct call *before = copy(call);
        struct buffers *buffers = upload(call, plan, device.context);
        ck_assert_int_eq(kda_enqueue(plan, device.queue, &buffers->args, 0, NULL, NULL), KDA_OK);
        download(call, buffers, device.queue);
        check_guards(call, before);
    }
}
END_TEST

/* One of these numbers in every fourth place of the tensors of integers. */
static void spoil(struct call *call, uint64_t seed)
{
    static const int64_t numbers[] = {INT64_MIN, INT64_MAX, INT32_MIN, INT32_MAX, -1,
                                      0,         2,         6,         89,        90};
    static const int ids[] = {CU_SEQLENS, STATE_INDEX, WRITE_INDEX, ACCEPTED};
    for (uint64_t i = 0; i < 4; i++) {
        struct tensor *t = &call->tensor[ids[i]];
        for (int64_t j = 0; j < tensor_elements(t); j++) {
            const uint64_t bits = random_bits(seed, 100 * i + (uint64_t)j);
            if (bits >> 62 == 0)
                set_wide(t, j, numbers[bits % (sizeof(numbers) / sizeof(numbers[0]))]);
        }
    }
}

START_TEST(test_random_garbage_stays_inside)
{
    NEEDS_QUEUES;
#define ROWS "index=0,1,2,-1 write=3,4,5,0 accepted=1,1,1,1 "
#define PAIRS "index=0,0,1,1,2,2,-1,-1 write=0,3,1,4,2,5,-1,-1 accepted=1,1,1,1 columns=2 "
    static const char *const kinds[] = {
        ROWS "cu=i64 index_type=i64",
        ROWS "schedule=chunkwise chunk=16 cu=i32 in_place=1",
        ROWS "engine=clblast chunk=16 cu=i64 index_type=i64",
        PAIRS "schedule=recurrent cu=i32 index_type=i64 in_place=1",
    };
    struct call *legal =
        make(SOME "lengths=80,3,3,3 slots=6 fresh=1,0,0,0 checkpoint=16 %s", kinds[_i]);
    kda_plan *plan = plan_for(legal);
    for (uint64_t seed = 0; seed < 100; seed++) {
        struct call *call = copy(legal);
        spoil(call, seed);
        struct call *before = copy(call);
        struct buffers *buffers = upload(call, plan, device.context);
        ck_assert_int_eq(kda_enqueue(plan, device.queue, &buffers->args, 0, NULL, NULL), KDA_OK);
        download(call, buffers, device.queue);
        check_guards(call, before);
    }
}
END_TEST

/* A slot beyond the pool is a skip like a negative one; rows before and after all sequences are
 * left alone. */
START_TEST(test_wrong_but_ordered_values_have_a_meaning)
{
    NEEDS_QUEUES;
    struct call *call = make(SOME "lengths=4,4,4 cu=i64 index=0,1,2 slots=3 index_type=i64");
    static const int64_t offsets[] = {2, 4, 4, 9}, slots[] = {1, 0, ((int64_t)1 << 32) + 2};
    for (int i = 0; i < 4; i++)
        set_wide(&call->tensor[CU_SEQLENS], i, offsets[i]);
    for (int i = 0; i < 3; i++)
        set_wide(&call->tensor[STATE_INDEX], i, slots[i]);
    run_device(plan_for(call), call);
}
END_TEST

/* A workspace that is too small for the call at once: it goes through in pieces, to the same bits.
 */
START_TEST(test_workspace_size_does_not_matter)
{
    NEEDS_QUEUES;
    const char *words = "H=2 HV=4 K=48 V=36 state=normal lengths=150,3,100";
    struct call *whole = run("%s", words);
    size_t size = kda_plan_workspace(plan_for(make(SOME "lengths=70")));
    struct call *pieces = run("%s workspace=%zu", words, size);
    same_results(pieces, whole);
    ck_assert_uint_le(kda_plan_workspace(plan_for(pieces)), size);
}
END_TEST

TCase *tcase_queues(void)
{
    TCase *tcase = tcase_create("queues");
    tcase_add_checked_fixture(tcase, harness_setup, harness_teardown);
    tcase_add_test(tcase, test_context_of_the_caller);
    tcase_add_test(tcase, test_wait_list_and_event_are_honoured);
    tcase_add_test(tcase, test_queues_share_a_plan);
    tcase_add_test(tcase, test_offsets_change_in_the_same_memory);
    tcase_add_loop_test(tcase, test_garbage_stays_inside, 0, 4);
    tcase_add_loop_test(tcase, test_random_garbage_stays_inside, 0, 4);
    tcase_add_test(tcase, test_wrong_but_ordered_values_have_a_meaning);
    tcase_add_test(tcase, test_workspace_size_does_not_matter);
    return tcase;
}

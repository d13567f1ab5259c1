/* Sizes that 32 bits don't count: elements more than 2^31 apart, pools and workspaces of more than
 * 4 GiB, and sequences by the ten thousands. Where it is about addresses, few elements lie far
 * apart in memory of which the rest is never touched; the same call with its elements close
 * together, held to the oracle, says what must come out.
 *
 * SPDX-License-Identifier: MIT */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define GIB ((size_t)1 << 30)

/* ---- Memory ----------------------------------------------------------------------------- */

/* A file without contents, mapped, or a buffer of the device. */
struct far {
    size_t bytes;
    FILE *file;
    char *host;
    cl_mem mem;
};

static void far_close(void *thing)
{
    struct far *far = thing;
    if (far->host)
        munmap(far->host, far->bytes);
    if (far->file)
        fclose(far->file);
    if (far->mem)
        clReleaseMemObject(far->mem);
    free(far);
}

static struct far *far_on_host(size_t bytes)
{
    struct far *far = keep(calloc(1, sizeof(*far)), far_close);
    far->bytes = bytes;
    far->file = tmpfile();
    ck_assert(far->file && !ftruncate(fileno(far->file), (off_t)bytes));
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(far->file), 0);
    ck_assert(at != MAP_FAILED);
    far->host = at;
    return far;
}

static struct far *far_on_device(size_t bytes)
{
    cl_int code;
    struct far *far = keep(calloc(1, sizeof(*far)), far_close);
    far->bytes = bytes;
    far->mem = clCreateBuffer(device.context, CL_MEM_READ_WRITE, bytes, NULL, &code);
    check_cl(code);
    return far;
}

static void far_write(const struct far *far, size_t at, const void *from, size_t n)
{
    if (far->mem)
        check_cl(clEnqueueWriteBuffer(device.queue, far->mem, CL_TRUE, at, n, from, 0, NULL, NULL));
    else
        memcpy(far->host + at, from, n);
}

static void far_read(const struct far *far, size_t at, void *to, size_t n)
{
    if (far->mem)
        check_cl(clEnqueueReadBuffer(device.queue, far->mem, CL_TRUE, at, n, to, 0, NULL, NULL));
    else
        memcpy(to, far->host + at, n);
}

/* Bytes of the largest buffer of the device, 0 without one. */
static size_t largest_buffer(void)
{
    cl_ulong most = 0;
    if (device.id)
        clGetDeviceInfo(device.id, CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof(most), &most, NULL);
    return (size_t)most;
}

static size_t global_memory(void)
{
    cl_ulong all = 0;
    clGetDeviceInfo(device.id, CL_DEVICE_GLOBAL_MEM_SIZE, sizeof(all), &all, NULL);
    return (size_t)all;
}

/* ---- Elements far apart ----------------------------------------------------------------- */

/* All tensors of a call lie in one memory, cut into cells: a cell has LANE elements of each tensor,
 * one row of it with all heads, or one head with all rows. */
enum { LANE = 1 << 16, CELL = LANE * TENSORS };

/* The CPU backend has the first two, the last is bf16 alone. */
static const char *const shapes[] = {
    RECURRENT "H=3 HV=6 K=20 V=12 lengths=4,0,3 checkpoint=2",
    "engine=fused chunk=16 H=2 K=20 V=12 lengths=40,0,35 checkpoint=16 layout=vk",
    "engine=clblast chunk=16 H=2 K=20 V=12 lengths=40,0,35 checkpoint=16",
    "engine=mma H=1 HV=2 K=128 V=64 lengths=70,0,64 checkpoint=64",
};
enum { SHAPES = sizeof(shapes) / sizeof(*shapes), CPU_SHAPES = 2, TYPES = 2, ORDERS = 2 };

static size_t turn_size(int turn)
{
    return turn / SHAPES % TYPES ? 2 : 4;
}

static struct call *run_turn(int turn)
{
    const char *type = turn_size(turn) == 2 ? "bf16" : "f32";
    return run("%s state=normal norm=1 dtype=%s state_dtype=%s", shapes[turn % SHAPES], type, type);
}

static bool lies_far(int id)
{
    return id <= BETA || (id >= INITIAL_STATE && id <= OUT) || id == CHECKPOINTS;
}

/* A tensor's view in the memory: the cells that it has elements in reach from end to end. */
static kda_input spread(const struct far *far, const struct tensor *t, int id, bool by_heads)
{
    const int64_t cells = by_heads ? t->heads : t->rows, room = (int64_t)(far->bytes / t->size);
    const int64_t apart = cells > 1 ? (room / CELL - 1) / (cells - 1) * CELL : CELL;
    ck_assert_int_le((by_heads ? t->rows : t->heads) * t->width, LANE);
    return (kda_input){.mem = far->mem,
                       .host = far->host,
                       .offset = (size_t)id * LANE * t->size,
                       .token_stride = by_heads ? t->width : apart,
                       .head_stride = by_heads ? apart : t->width};
}

/* Copies a tensor's elements to where a view has them, or back. */
static void move(const struct far *far, const struct tensor *t, const kda_input *view, bool back)
{
    for (int64_t i = 0; i < t->rows * t->heads; i++) {
        const int64_t row = i / t->heads, head = i % t->heads;
        const size_t element = (size_t)(row * view->token_stride + head * view->head_stride);
        const size_t at = view->offset + element * t->size, n = (size_t)t->width * t->size;
        if (back)
            far_read(far, at, tensor_at(t, i * t->width), n);
        else
            far_write(far, at, tensor_at(t, i * t->width), n);
    }
}

static void run_far(const struct far *far, const struct call *near, bool by_heads)
{
    struct call *call = copy(near);
    kda_plan *plan = plan_for(call);
    for (int id = 0; id < TENSORS; id++)
        if (call_writes(id))
            tensor_poison(&call->tensor[id]);
    kda_args args = far->mem ? upload(call, plan, device.context)->args : call_args(call);
    for (int id = 0; id < TENSORS; id++) {
        if (!call->tensor[id].present || !lies_far(id))
            continue;
        *call_view(&args, id) = spread(far, &call->tensor[id], id, by_heads);
        move(far, &call->tensor[id], call_view(&args, id), false);
    }
    if (far->mem)
        ck_assert_int_eq(kda_enqueue(plan, device.queue, &args, 0, NULL, NULL), KDA_OK);
    else
        ck_assert_int_eq(kda_execute(plan, &args), KDA_OK);
    for (int id = 0; id < TENSORS; id++)
        if (call->tensor[id].present && call_writes(id))
            move(far, &call->tensor[id], call_view(&args, id), true);
    same_results(near, call);
}

/* Past 2^32 elements. Devices get packed copies. */
START_TEST(test_far_in_host_memory)
{
    run_far(far_on_host(turn_size(_i) * (4 * GIB + GIB / 4)), run_turn(_i), _i >= SHAPES * TYPES);
}
END_TEST

/* Past 2^31 elements, or as far as a buffer goes, past 2^31 bytes. */
static size_t far_bytes(size_t size)
{
    const size_t enough = size * (2 * GIB + GIB / 4), most = largest_buffer();
    return most < enough ? most : enough;
}
#define NEEDS_FAR_BUFFERS                                                                          \
    NEEDS_QUEUES;                                                                                  \
    NEEDS(largest_buffer() > 2 * GIB, "the device has no buffers of more than 2 GiB")

START_TEST(test_far_in_device_memory)
{
    NEEDS_FAR_BUFFERS;
    run_far(far_on_device(far_bytes(turn_size(_i))), run_turn(_i), _i >= SHAPES * TYPES);
}
END_TEST

/* ---- Pools ------------------------------------------------------------------------------ */

enum { SLOT = 2 * 128 * 128 };

/* A pool of three slots, and the same states in the first, the middle and the last slot of one that
 * fills the memory. */
static void run_pool(struct far *far, struct call *call)
{
    struct call *small = copy(call);
    kda_plan *plan = plan_for(call);
    const struct tensor *states = &call->tensor[INITIAL_STATE];
    const size_t bytes = SLOT * states->size;
    const int32_t slots = (int32_t)(far->bytes / bytes);
    const int32_t slot[] = {0, slots / 2, slots - 1};
    run_plan(plan, small);
    for (int i = 0; i < 3; i++) {
        far_write(far, (size_t)slot[i] * bytes, tensor_at(states, i * SLOT), bytes);
        tensor_set(&call->tensor[STATE_INDEX], i, slot[call->list[0][i]]);
    }
    struct buffers *buffers = far->mem ? upload(call, plan, device.context) : NULL;
    kda_args args = buffers ? buffers->args : call_args(call);
    args.initial_state = (kda_input){.mem = far->mem, .host = far->host};
    args.final_state = (kda_output){.mem = far->mem, .host = far->host};
    args.slots = slots;
    if (!buffers) {
        ck_assert_int_eq(kda_execute(plan, &args), KDA_OK);
    } else {
        ck_assert_int_eq(kda_enqueue(plan, device.queue, &args, 0, NULL, NULL), KDA_OK);
        download(call, buffers, device.queue);
    }
    for (int i = 0; i < 3; i++)
        far_read(far, (size_t)slot[i] * bytes, tensor_at(states, i * SLOT), bytes);
    same_results(small, call);
}

/* kda_execute on a device would bring all of the pool there. */
START_TEST(test_large_pool)
{
    NEEDS(!device.id || largest_buffer() > 2 * GIB, "the device has no buffers of more than 2 GiB");
    static const char *const types[] = {"bf16", "f32"};
    const size_t size = _i % 2 ? 4 : 2;
    struct call *call =
        make("%s H=2 K=128 V=128 lengths=20,1,33 state=normal in_place=1 index=1,2,0 slots=3 "
             "state_dtype=%s",
             _i / 2 ? "schedule=chunkwise engine=fused" : RECURRENT, types[_i % 2]);
    run_pool(device.id ? far_on_device(far_bytes(size)) : far_on_host(size * (4 * GIB + GIB / 4)),
             call);
}
END_TEST

/* What kda_execute would bring to a device must fit its buffers. */
START_TEST(test_pool_larger_than_a_buffer)
{
    NEEDS_QUEUES;
    struct call *call = make(RECURRENT "H=2 K=128 V=128 lengths=1 state=normal in_place=1 index=0 "
                                       "slots=1");
    const struct far *far = far_on_host(largest_buffer() + SLOT * sizeof(float));
    kda_args args = call_args(call);
    args.initial_state = (kda_input){.host = far->host};
    args.final_state = (kda_output){.host = far->host};
    args.slots = (int64_t)(far->bytes / (SLOT * sizeof(float)));
    ck_assert_int_eq(kda_execute(plan_for(call), &args), KDA_MEMORY);
    char error[256];
    device_last_error(error, sizeof(error));
    ck_assert_msg(strstr(error, "kda_args.initial_state") && strstr(error, "largest buffer"), "%s",
                  error);
}
END_TEST

/* ---- Sequences -------------------------------------------------------------------------- */

START_TEST(test_many_sequences)
{
    run("H=1 K=8 V=8 lengths=3,0,70,1x65533 max_length=70 state=normal "
        "fresh=0x65535,1");
    run("engine=fused chunk=16 H=1 K=8 V=8 lengths=17,0x3,1x65000,16x532 max_length=17 "
        "state=normal cu=i64");
}
END_TEST

/* ---- Workspace -------------------------------------------------------------------------- */

/* Cut into pieces or not: factors of a chunk and head are 214 KiB, there are 20480 of them. */
START_TEST(test_large_workspace)
{
    NEEDS_QUEUES;
    NEEDS(largest_buffer() > 4 * GIB + GIB / 2, "the device has no buffers of 4.5 GiB");
    static const char text[] = "engine=fused chunk=64 H=1 HV=64 K=256 V=16 lengths=20480 "
                               "per_head=1 norm=1 state=normal workspace=%zu";
    struct call *whole = make(text, 8 * GIB), *pieces = make(text, GIB / 4);
    kda_plan *plan = new_plan(whole);
    ck_assert_uint_gt(kda_plan_workspace(plan), 4 * GIB);
    const kda_args args = call_args(whole), others = call_args(pieces);
    ck_assert_int_eq(kda_execute(plan, &args), KDA_OK);
    ck_assert_int_eq(kda_execute(new_plan(pieces), &others), KDA_OK);
    same_results(whole, pieces);
}
END_TEST

/* ---- Tokens ----------------------------------------------------------------------------- */

/* Token CUT begins at element 2^31 of q, k, v, g and out, of which the first four are one tensor.
 * Its first tokens over and over, and others from there on. */
enum { HEADS = 64, DIM = 128, ROW = HEADS * DIM, CUT = 1 << 18, BEGIN = 64, END = 65 };
static const size_t row_bytes = ROW * 2, beta_bytes = HEADS * 2, state_bytes = ROW * DIM * 4;

static struct call *make_part(const char *words, const char *state, int tokens)
{
    struct call *call = make("%s dtype=bf16 H=64 K=128 V=128 max_tokens=262209 checkpoint=262144 "
                             "gate=bounded norm=1 activation=sigmoid a_log=no state=%s lengths=%d "
                             "seed=%d",
                             words, state, tokens, tokens);
    for (int id = K; id <= G; id++)
        memcpy(tensor_at(&call->tensor[id], 0), tensor_at(&call->tensor[Q], 0),
               (size_t)tokens * row_bytes);
    return call;
}

/* A tensor's rows of both parts, those of the first up to the second. */
static cl_mem join(const struct call *begin, const struct call *end, int id, size_t row)
{
    const struct far *far = far_on_device((CUT + END) * row);
    far_write(far, 0, tensor_at(&begin->tensor[id], 0), BEGIN * row);
    for (size_t n = BEGIN * row; n < CUT * row; n *= 2)
        check_cl(clEnqueueCopyBuffer(device.queue, far->mem, far->mem, 0, n, n, 0, NULL, NULL));
    far_write(far, CUT * row, tensor_at(&end->tensor[id], 0), END * row);
    return far->mem;
}

static void check_rows(const struct far *out, size_t at, const struct call *part)
{
    const size_t n = (size_t)part->tokens * row_bytes;
    void *rows = keep(malloc(n), free);
    far_read(out, at, rows, n);
    if (memcmp(rows, tensor_at(&part->tensor[OUT], 0), n))
        fail_call(part, "out is not what it is from token %zu on of a long sequence",
                  at / row_bytes);
}

static void run_long(kda_plan *plan, struct call *begin, struct call *end)
{
    const cl_mem x = join(begin, end, Q, row_bytes);
    const size_t size = kda_plan_workspace(plan);
    const struct far *out = far_on_device((CUT + END) * row_bytes),
                     *states = far_on_device(2 * state_bytes);
    kda_args args = {.struct_size = sizeof(args), .tokens = CUT + END};
    args.q.mem = args.k.mem = args.v.mem = args.g.mem = x;
    args.beta.mem = join(begin, end, BETA, beta_bytes);
    args.out.mem = out->mem;
    args.final_state.mem = args.checkpoints.mem = states->mem;
    args.checkpoints.offset = state_bytes;
    args.workspace.mem = size ? far_on_device(size)->mem : NULL;
    args.workspace.size = size;
    ck_assert_int_eq(kda_enqueue(plan, device.queue, &args, 0, NULL, NULL), KDA_OK);
    far_read(states, state_bytes, tensor_at(&end->tensor[INITIAL_STATE], 0), state_bytes);
    run_plan(plan, begin);
    run_plan(plan, end);
    check_rows(out, 0, begin);
    check_rows(out, CUT * row_bytes, end);
    far_read(states, 0, tensor_at(&begin->tensor[FINAL_STATE], 0), state_bytes);
    same_rows(FINAL_STATE, begin, 0, end, 0, 1);
}

START_TEST(test_long_sequence)
{
    static const char *const words[] = {RECURRENT, "schedule=chunkwise engine=fused", "engine=mma"};
    NEEDS_QUEUES;
    NEEDS(largest_buffer() > 4 * GIB + GIB / 2 && global_memory() > 12 * GIB,
          "the device has no 12 GiB, or no buffers of 4.5 GiB");
    NEEDS(_i < 2 || !device_is_processor(), "a processor plays matrix units for hours");
    struct call *begin = make_part(words[_i], "no", BEGIN), *end = make_part(words[_i], "0", END);
    kda_plan *plan = NULL;
    const kda_status status = kda_plan_create(&plan, device.ctx, &begin->problem);
    kda_plan_destroy(&plan);
    NEEDS(status != KDA_UNSUPPORTED, "the device has no matrix units");
    run_long(plan_for(begin), begin, end);
}
END_TEST

static bool driver_ends_loops(void)
{
    kda_fact facts[64];
    const size_t n = kda_context_facts(device.ctx, facts, 64);
    for (size_t i = 0; i < n && i < 64; i++)
        if (!strcmp(facts[i].name, "max_loop_turns"))
            return true;
    return false;
}

/* Of a call that a driver may refuse by its length, the longest that it takes is right. */
static void run_longest(const char *text)
{
    enum { MOST = 1 << 15 };
    int fits = 1, exceeds = MOST;
    while (exceeds - fits > 1) {
        const int tokens = (fits + exceeds) / 2;
        struct call *call = make("%s lengths=%d max_tokens=%d", text, tokens, MOST);
        const kda_args args = call_args(call);
        const kda_status status = kda_execute(plan_for(call), &args);
        ck_assert(status == KDA_OK || status == KDA_UNSUPPORTED);
        *(status == KDA_OK ? &fits : &exceeds) = tokens;
    }
    ck_assert_int_lt(exceeds, MOST);
    run("%s lengths=%d max_tokens=%d", text, fits, MOST);
}

START_TEST(test_loops_come_to_their_end)
{
    NEEDS(driver_ends_loops(), "the driver ends no loops");
    run_longest(RECURRENT "K=128 V=8");
    run_longest(RECURRENT "K=24 V=16 state=normal checkpoint=1");
    run_longest(RECURRENT "K=100 V=24 state=normal layout=vk dtype=bf16 norm=1");
    run_longest("schedule=chunkwise chunk=32 K=128 V=128");
    run_longest("schedule=chunkwise chunk=16 K=16 V=8 checkpoint=16");
    run_longest("schedule=chunkwise chunk=32 K=16 V=16 state=normal index=-1 slots=1");
}
END_TEST

TCase *tcase_sizes(enum level level)
{
    TCase *tcase = tcase_create("sizes");
    tcase_add_checked_fixture(tcase, harness_setup, harness_teardown);
    tcase_set_timeout(tcase, 600);
    for (int turn = 0; turn < SHAPES * TYPES * ORDERS; turn++) {
        const int shape = turn % SHAPES;
        const bool f32 = turn_size(turn) == 4, last = shape == SHAPES - 1;
        if (shape < (device.id ? 1 : CPU_SHAPES))
            tcase_add_loop_test(tcase, test_far_in_host_memory, turn, turn + 1);
        if (!last || (!f32 && level == FULL))
            tcase_add_loop_test(tcase, test_far_in_device_memory, turn, turn + 1);
    }
    tcase_add_loop_test(tcase, test_large_pool, 0, 4);
    tcase_add_test(tcase, test_pool_larger_than_a_buffer);
    tcase_add_test(tcase, test_many_sequences);
    tcase_add_test(tcase, test_loops_come_to_their_end);
    return tcase;
}

TCase *tcase_large(void)
{
    TCase *tcase = tcase_create("large");
    tcase_add_checked_fixture(tcase, harness_setup, harness_teardown);
    tcase_set_timeout(tcase, 600);
    tcase_add_test(tcase, test_large_workspace);
    tcase_add_loop_test(tcase, test_long_sequence, 0, 3);
    return tcase;
}

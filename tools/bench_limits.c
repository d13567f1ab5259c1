/* What the device can do at best, measured: the bandwidth of a large copy, the rates of f32
 * multiply-adds and of f16 products on matrix units, and the time of a kernel that does nothing. A
 * call can't be faster than the last, nor than its bytes at the first unless they sit in a cache.
 *
 * SPDX-License-Identifier: MIT */
#include "bench.h"
#include "bench_host.h"
#include "machine.h"

#include <stdlib.h>
#include <string.h>

/* Beyond the caches of processors, and long enough for a fast GPU to get going: an H200 (driver
 * 580.159, November 2026) copies 256 MiB at 4.07 TB/s, 1 GiB at 4.24 and 4 GiB at 4.26, with
 * clEnqueueCopyBuffer as well. */
enum { COPY_BYTES = 256 << 20, GPU_COPY_BYTES = 1 << 30 };
enum { RUNS = 9 };

/* Work-items of the multiply-adds: 2^30 operations on a processor, 2^35 on a GPU. A processor needs
 * eight sums at once; of eight a GPU has too few registers left for items that hide each other's
 * waits (H200: 56.3 TFLOP/s, of four 61.6). */
enum { ITEM_FLOPS = 32 * 8 * 16 * 2, ITEMS = (1 << 30) / ITEM_FLOPS };
enum { GPU_ITEMS = 32 * ITEMS };

static const char source[] =
    "__kernel void copy(__global const float4 *restrict from, __global float4 *restrict to)\n"
    "{ to[get_global_id(0)] = from[get_global_id(0)]; }\n"
    "#if TURNS == 32\n"
    "#define FOUR_MORE(op) e = op(e, x, x), f = op(f, x, x), g = op(g, x, x), h = op(h, x, x);\n"
    "#else\n"
    "#define FOUR_MORE(op)\n"
    "#endif\n"
    "#define MULTIPLY_ADD(name, op)                                                \\\n"
    "    __kernel void name(__global float *out)                                   \\\n"
    "    {                                                                         \\\n"
    "        const float16 x = (float16)(1.0f + 1e-7f * (float)get_global_id(0));  \\\n"
    "        float16 a = x, b = x + 1.0f, c = x + 2.0f, d = x + 3.0f;              \\\n"
    "        float16 e = x + 4.0f, f = x + 5.0f, g = x + 6.0f, h = x + 7.0f;       \\\n"
    "        for (int i = 0; i < TURNS; i++) {                                     \\\n"
    "            a = op(a, x, x);                                                  \\\n"
    "            b = op(b, x, x);                                                  \\\n"
    "            c = op(c, x, x);                                                  \\\n"
    "            d = op(d, x, x);                                                  \\\n"
    "            FOUR_MORE(op)                                                     \\\n"
    "        }                                                                     \\\n"
    "        a += b + c + d + e + f + g + h;                                       \\\n"
    "        const float8 half_sum = a.lo + a.hi;                                  \\\n"
    "        const float4 sum = half_sum.lo + half_sum.hi;                         \\\n"
    "        out[get_global_id(0)] = sum.x + sum.y + sum.z + sum.w;                \\\n"
    "    }\n"
    "MULTIPLY_ADD(multiply_add, mad)\n"
    "MULTIPLY_ADD(fused_multiply_add, fma)\n"
    "__kernel void empty(void) {}\n";

/* A kernel's time, the median of warm runs: by its event, and by the clock from the call until the
 * queue is empty. 0: it does not run. */
struct kernel_times {
    double event, clock;
};

static struct kernel_times time_kernel(struct bench *b, cl_kernel kernel, size_t items,
                                       const size_t *group)
{
    struct bench_samples events = {0}, clocks = {0};
    for (int run = 0; run <= RUNS; ++run) {
        cl_event event;
        double start = machine_seconds();
        if (clEnqueueNDRangeKernel(b->queue, kernel, 1, NULL, &items, group, 0, NULL, &event))
            break;
        bool finished = !clFinish(b->queue);
        double clock = machine_seconds() - start, seconds = bench_event_seconds(NULL, event);
        if (!finished)
            break;
        if (run) {
            bench_sample(&events, seconds);
            bench_sample(&clocks, clock);
        }
    }
    struct kernel_times times = {bench_summary(&events).median, bench_summary(&clocks).median};
    return times;
}

/* Two buffers of this size take a quarter of the device's memory at most. */
static size_t copy_bytes(const struct bench *b)
{
    cl_device_id device = kda_context_cl_device(b->ctx);
    size_t wanted = b->small ? COPY_BYTES : GPU_COPY_BYTES;
    cl_ulong most = 0, all = 0;
    clGetDeviceInfo(device, CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof most, &most, NULL);
    clGetDeviceInfo(device, CL_DEVICE_GLOBAL_MEM_SIZE, sizeof all, &all, NULL);
    if (all / 8 < most)
        most = all / 8;
    return most < wanted ? (size_t)most & ~(size_t)15 : wanted;
}

/* A copy that lasts this long takes its event as long as the clock, or the driver's event times are
 * not what they say: Mesa 22.3's rusticl ends every event a nanosecond after its start. */
static void measure_copy(struct bench *b, cl_context context, cl_kernel kernel)
{
    size_t bytes = copy_bytes(b);
    float zero = 0;
    cl_mem from = clCreateBuffer(context, CL_MEM_READ_WRITE, bytes, NULL, NULL);
    cl_mem to = clCreateBuffer(context, CL_MEM_READ_WRITE, bytes, NULL, NULL);
    if (from && to &&
        !clEnqueueFillBuffer(b->queue, from, &zero, sizeof zero, 0, bytes, 0, NULL, NULL) &&
        !clSetKernelArg(kernel, 0, sizeof from, &from) &&
        !clSetKernelArg(kernel, 1, sizeof to, &to)) {
        struct kernel_times times = time_kernel(b, kernel, bytes / 16, NULL);
        b->by_clock = times.event < 0.1 * times.clock;
        double seconds = b->by_clock ? times.clock : times.event;
        b->copy_bytes_s = seconds > 0 ? 2 * (double)bytes / seconds : 0;
    }
    if (from)
        clReleaseMemObject(from);
    if (to)
        clReleaseMemObject(to);
}

/* Operations each second of a kernel that writes a float an item; 0: it does not run. */
static double rate(struct bench *b, cl_kernel kernel, size_t items, const size_t *group,
                   double flops)
{
    double seconds = 0;
    cl_mem out = clCreateBuffer(kda_context_cl_context(b->ctx), CL_MEM_WRITE_ONLY,
                                items * sizeof(float), NULL, NULL);
    if (!out)
        return 0;
    if (!clSetKernelArg(kernel, 0, sizeof out, &out)) {
        struct kernel_times times = time_kernel(b, kernel, items, group);
        seconds = b->by_clock ? times.clock : times.event;
    }
    clReleaseMemObject(out);
    return seconds > 0 ? flops / seconds : 0;
}

/* In the way that is faster: PoCL makes two instructions of mad, others a call of fma. */
static void measure_multiply_add(struct bench *b, cl_context context, cl_kernel kernel)
{
    const size_t items = b->small ? ITEMS : GPU_ITEMS;
    (void)context;
    const double flops_s = rate(b, kernel, items, NULL, (double)ITEM_FLOPS * (double)items);
    if (flops_s > b->f32_flops_s)
        b->f32_flops_s = flops_s;
}

double bench_matrix_flops(struct bench *b, bool units)
{
    const size_t group = 128, groups = units ? 2048 : 2;
    cl_kernel kernel;
    const double flops = bench_matrix_kernel(b, units, &kernel);
    if (!flops)
        return 0;
    const double flops_s = rate(b, kernel, groups * group, &group, (double)groups * flops);
    clReleaseKernel(kernel);
    return flops_s;
}

bool bench_empties(struct bench *b, int count, struct bench_samples *times,
                   struct bench_samples *enqueues)
{
    const size_t one = 1;
    cl_event events[BENCH_IN_FLIGHT];
    cl_int code = CL_SUCCESS;
    int made = 0;
    const double since = machine_seconds();
    while (made < count) {
        const double start = machine_seconds();
        code =
            clEnqueueNDRangeKernel(b->queue, b->empty, 1, NULL, &one, NULL, 0, NULL, &events[made]);
        if (code)
            break;
        bench_sample(enqueues, machine_seconds() - start);
        ++made;
    }
    const bool fine =
        bench_cl(b, clFinish(b->queue), "clFinish") && bench_cl(b, code, "clEnqueueNDRangeKernel");
    const double clock = (machine_seconds() - since) / count;
    for (int i = 0; i < made; ++i) {
        const double event = bench_event_seconds(NULL, events[i]);
        bench_sample(times, b->by_clock ? clock : event);
    }
    return fine;
}

static void measure_empty(struct bench *b, cl_context context, cl_kernel kernel)
{
    (void)context;
    clRetainKernel(kernel);
    b->empty = kernel;
    struct bench_samples times = {0}, enqueues = {0};
    for (int run = 0; run < RUNS; ++run)
        if (!bench_empties(b, b->by_clock ? 1 : BENCH_IN_FLIGHT, &times, &enqueues))
            break;
    b->empty_s = bench_summary(&times).median;
    b->launch_s = bench_summary(&enqueues).median;
}

/* The copy comes first: it settles by_clock. */
static void measure_opencl(struct bench *b)
{
    static const struct {
        const char *kernel;
        void (*measure)(struct bench *b, cl_context context, cl_kernel kernel);
    } limits[] = {{"copy", measure_copy},
                  {"multiply_add", measure_multiply_add},
                  {"fused_multiply_add", measure_multiply_add},
                  {"empty", measure_empty}};
    cl_context context = kda_context_cl_context(b->ctx);
    cl_device_id device = kda_context_cl_device(b->ctx);
    const char *text = source;
    cl_program program = clCreateProgramWithSource(context, 1, &text, NULL, NULL);
    if (!program)
        return;
    const char *const turns = b->small ? "-DTURNS=32" : "-DTURNS=64"; /* of eight or four sums */
    bool built = !clBuildProgram(program, 1, &device, turns, NULL, NULL);
    for (size_t i = 0; built && i < sizeof limits / sizeof limits[0]; ++i) {
        cl_kernel kernel = clCreateKernel(program, limits[i].kernel, NULL);
        if (!kernel)
            continue;
        limits[i].measure(b, context, kernel);
        clReleaseKernel(kernel);
    }
    clReleaseProgram(program);
}

const char *bench_fact(const struct bench *b, const char *name)
{
    kda_fact facts[64];
    const size_t n = kda_context_facts(b->ctx, facts, 64);
    for (size_t i = 0; i < n && i < 64; ++i)
        if (!strcmp(facts[i].name, name))
            return facts[i].value;
    return "";
}

void bench_limits(struct bench *b)
{
    if (b->queue) {
        measure_opencl(b);
        if (!strncmp(bench_fact(b, "matrix_units"), "yes", 3))
            b->matrix_flops_s = bench_matrix_flops(b, true);
        return;
    }
    const int threads = atoi(bench_fact(b, "threads"));
    b->copy_bytes_s = bench_host_copy(threads);
    b->f32_flops_s = bench_host_flops(threads, atoi(bench_fact(b, "vectors")));
}

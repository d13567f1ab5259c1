/* The rules that every tensor of a call shares: a table of faults, each tried on each tensor that
 * it can befall.
 *
 * SPDX-License-Identifier: MIT */
#include <stdio.h>

#include "test_api.h"

enum where { HOST = 1, DEVICE = 2, ANYWHERE = HOST | DEVICE };
enum whom { STRIDED = 1, PACKED = 2, ANY = STRIDED | PACKED, INPUTS = 4, OUTPUTS = 8 };

/* Any address will do where the call must not look behind it. */
static cl_mem some_mem(void)
{
    static int object;
    return (cl_mem)(void *)&object;
}

static void mem_too(const struct trial *t, kda_input *view)
{
    (void)t;
    view->mem = some_mem();
}

static void mem_instead(const struct trial *t, kda_input *view)
{
    (void)t;
    *view = (kda_input){.mem = some_mem()};
}

static void host_too(const struct trial *t, kda_input *view)
{
    view->host = t->rig->host[FINAL_STATE];
}

static void host_instead(const struct trial *t, kda_input *view)
{
    *view = (kda_input){.host = t->rig->host[FINAL_STATE]};
}

/* In the spare buffer, so that nothing but the alignment is wrong. */
static void half_an_element(const struct trial *t, kda_input *view)
{
    if (t->device)
        view->mem = t->rig->spare;
    view->offset = 2;
}

static void negative_token_stride(const struct trial *t, kda_input *view)
{
    (void)t;
    view->token_stride = -1;
}

static void negative_head_stride(const struct trial *t, kda_input *view)
{
    (void)t;
    view->head_stride = INT64_MIN;
}

static void endless_token_stride(const struct trial *t, kda_input *view)
{
    (void)t;
    view->token_stride = INT64_MAX;
}

static void endless_head_stride(const struct trial *t, kda_input *view)
{
    (void)t;
    view->head_stride = INT64_MAX / 2;
}

static void strides_of_a_packed_tensor(const struct trial *t, kda_input *view)
{
    (void)t;
    view->token_stride = 7;
    view->head_stride = -7;
}

static void offset_too_far(const struct trial *t, kda_input *view)
{
    (void)t;
    view->offset = 4;
}

static void offset_near_the_end_of_numbers(const struct trial *t, kda_input *view)
{
    (void)t;
    view->offset = SIZE_MAX - 3;
}

static void stride_too_far(const struct trial *t, kda_input *view)
{
    (void)t;
    view->token_stride = 1 << 20;
}

static void foreign_buffer(const struct trial *t, kda_input *view)
{
    view->mem = t->rig->foreign_mem;
}

static void buffer_not_to_be_read(const struct trial *t, kda_input *view)
{
    view->mem = t->rig->write_only;
}

static void buffer_not_to_be_written(const struct trial *t, kda_input *view)
{
    view->mem = t->rig->read_only;
}

#define FAULT(where, whom, status, words, change)                                                  \
    {                                                                                              \
        where, whom, status, words, change, #change                                                \
    }
static const struct fault {
    enum where where;
    enum whom whom;
    kda_status status;
    const char *words; /* in the log, beside the tensor's name */
    void (*change)(const struct trial *t, kda_input *view);
    const char *name;
} faults[] = {
    FAULT(HOST, ANY, KDA_INVALID, "mem", mem_too),
    FAULT(HOST, ANY, KDA_INVALID, "mem", mem_instead),
    FAULT(DEVICE, ANY, KDA_INVALID, "host", host_too),
    FAULT(DEVICE, ANY, KDA_INVALID, "host", host_instead),
    FAULT(ANYWHERE, ANY, KDA_INVALID, "offset element", half_an_element),
    FAULT(ANYWHERE, STRIDED, KDA_INVALID, "strides negative", negative_token_stride),
    FAULT(ANYWHERE, STRIDED, KDA_INVALID, "strides negative", negative_head_stride),
    FAULT(ANYWHERE, STRIDED, KDA_INVALID, "strides", endless_token_stride),
    FAULT(ANYWHERE, STRIDED, KDA_INVALID, "strides", endless_head_stride),
    FAULT(ANYWHERE, PACKED, KDA_OK, "", strides_of_a_packed_tensor),
    FAULT(DEVICE, ANY, KDA_INVALID, "bytes", offset_too_far),
    FAULT(DEVICE, ANY, KDA_INVALID, "bytes", offset_near_the_end_of_numbers),
    FAULT(DEVICE, STRIDED, KDA_INVALID, "bytes", stride_too_far),
    FAULT(DEVICE, ANY, KDA_INVALID, "context", foreign_buffer),
    FAULT(DEVICE, INPUTS, KDA_INVALID, "CL_MEM_WRITE_ONLY", buffer_not_to_be_read),
    FAULT(DEVICE, OUTPUTS, KDA_INVALID, "CL_MEM_READ_ONLY", buffer_not_to_be_written),
    FAULT(DEVICE, OUTPUTS, KDA_OK, "", buffer_not_to_be_read),
    FAULT(DEVICE, INPUTS, KDA_OK, "", buffer_not_to_be_written),
};

static const struct fault *fault;
static enum tensor victim;

static void make_fault(struct trial *t)
{
    kda_input view = view_get(&t->args, victim);
    fault->change(t, &view);
    view_set(&t->args, victim, view);
}

static void try_fault(bool device)
{
    char what[128], words[128];
    snprintf(what, sizeof what, "%s of %s", fault->name, views[victim].name);
    snprintf(words, sizeof words, "%s %s", views[victim].name, fault->words);
    try_call(FULL, device, make_fault, fault->status, fault->status ? words : "", what);
}

START_TEST(test_view)
{
    fault = &faults[_i / TENSORS];
    victim = (enum tensor)(_i % TENSORS);
    if (fault->where & HOST)
        try_fault(false);
    if (fault->where & DEVICE && rig->device)
        try_fault(true);
}
END_TEST

static bool befalls(const struct fault *f, const struct view *view)
{
    if (f->change == half_an_element && view == &views[FRESH]) /* its elements are bytes */
        return false;
    const int kind = (view->strided ? STRIDED : PACKED) | (view->output ? OUTPUTS : INPUTS);
    return f->whom & kind && (f->where & HOST || rig->device);
}

void add_views(Suite *suite)
{
    TCase *tc = tcase_create("views");
    for (int i = 0; i < (int)(sizeof faults / sizeof *faults) * TENSORS; i++)
        if (befalls(&faults[i / TENSORS], &views[i % TENSORS]))
            tcase_add_loop_test(tc, test_view, i, i + 1);
    suite_add_tcase(suite, tc);
}

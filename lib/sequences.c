/* Where the sequences of a call lie and which states they read and write, as its tensors of
 * integers say in host memory: the look-up, and the rules for what they contain.
 *
 * SPDX-License-Identifier: MIT */
#include <stdlib.h>

#include "internal.h"

static int64_t read_index(const struct kda_tensor *t, int64_t i)
{
    const char *at = kda_row(t, i, 0);
    return t->element == 8 ? *(const int64_t *)(const void *)at
                           : *(const int32_t *)(const void *)at;
}

/* Where in state_index the slot stands that sequence n reads; -1: it is skipped. */
static int64_t read_at(const struct kda_run *r, int64_t n)
{
    const struct kda_tensor *accepted = &r->tensor[KDA_TENSOR_ACCEPTED];
    const int64_t count = accepted->host ? read_index(accepted, n) : 1;
    return count <= 0 ? -1 : n * r->columns + count - 1;
}

static int64_t read_slot(const struct kda_run *r, int64_t n)
{
    const struct kda_tensor *index = &r->tensor[KDA_TENSOR_STATE_INDEX];
    int64_t at = read_at(r, n);
    return !index->host ? n : at < 0 ? -1 : read_index(index, at);
}

struct kda_sequence kda_run_sequence(const struct kda_run *r, int64_t n)
{
    const struct kda_tensor *cu = &r->tensor[KDA_TENSOR_CU_SEQLENS],
                            *fresh = &r->tensor[KDA_TENSOR_FRESH];
    struct kda_sequence s = {.slot = read_slot(r, n), .length = r->tokens / r->sequences};
    s.begin = n * s.length;
    if (cu->host) {
        s.begin = read_index(cu, n);
        s.length = read_index(cu, n + 1) - s.begin;
    }
    s.fresh = !kda_present(&r->tensor[KDA_TENSOR_INITIAL_STATE]) ||
              (fresh->host && *kda_row(fresh, n, 0));
    return s;
}

int64_t kda_run_write_slot(const struct kda_run *r, int64_t n, int64_t column)
{
    const struct kda_tensor *index = &r->tensor[KDA_TENSOR_WRITE_INDEX];
    return index->host ? read_index(index, n * r->columns + column) : n;
}

int64_t kda_run_stored(const struct kda_run *r, int64_t length)
{
    return length < r->columns ? length : r->columns;
}

/* Slots of a row of write_index that sequence n uses: an empty one stores what it began with. */
static int64_t columns_used(const struct kda_run *r, int64_t n)
{
    int64_t stored = kda_run_stored(r, kda_run_sequence(r, n).length);
    return stored ? stored : 1;
}

/* The rows of a tensor of states that sequence n, which is not skipped, reads or writes: how many,
 * and unless `rows` is NULL, which. */
static int64_t rows_of_sequence(const struct kda_run *r, enum kda_tensor_id id, int64_t every,
                                int64_t n, int64_t *rows)
{
    const struct kda_sequence s = kda_run_sequence(r, n);
    int64_t count = 0;
    if (id == KDA_TENSOR_INITIAL_STATE && !s.fresh) {
        if (rows)
            rows[count] = s.slot;
        count++;
    }
    for (int64_t c = 0; id == KDA_TENSOR_FINAL_STATE && c < columns_used(r, n); c++) {
        const int64_t slot = kda_run_write_slot(r, n, c);
        if (slot < 0)
            continue;
        if (rows)
            rows[count] = slot;
        count++;
    }
    for (int64_t c = 0; id == KDA_TENSOR_CHECKPOINTS && c < s.length / every; c++, count++)
        if (rows)
            rows[count] = s.begin / every + c;
    return count;
}

int64_t kda_run_rows(const struct kda_run *r, enum kda_tensor_id id, int64_t every, int64_t *rows)
{
    int64_t count = 0;
    for (int64_t n = 0; n < r->sequences; n++)
        if (kda_run_sequence(r, n).slot >= 0)
            count += rows_of_sequence(r, id, every, n, rows ? rows + count : NULL);
    return count;
}

bool kda_run_in_place(const struct kda_run *r)
{
    const struct kda_tensor *in = &r->tensor[KDA_TENSOR_INITIAL_STATE],
                            *out = &r->tensor[KDA_TENSOR_FINAL_STATE];
    return kda_present(in) && kda_present(out) && in->mem == out->mem &&
           (uintptr_t)in->host + in->offset == (uintptr_t)out->host + out->offset;
}

static kda_status check_offsets(const kda_context *ctx, struct kda_run *r)
{
    const struct kda_tensor *cu = &r->tensor[KDA_TENSOR_CU_SEQLENS];
    int64_t longest = 0;
    if (!cu->host)
        return KDA_OK;
    KDA_REQUIRE(ctx, read_index(cu, 0) == 0, "kda_args.cu_seqlens[0] must be 0 (is %lld)",
                (long long)read_index(cu, 0));
    for (int64_t n = 0; n < r->sequences; n++) {
        int64_t begin = read_index(cu, n), end = read_index(cu, n + 1);
        KDA_REQUIRE(ctx, begin <= end,
                    "kda_args.cu_seqlens must not decrease (%lld, then %lld at %lld)",
                    (long long)begin, (long long)end, (long long)n + 1);
        longest = end - begin > longest ? end - begin : longest;
    }
    KDA_REQUIRE(ctx, read_index(cu, r->sequences) == r->tokens,
                "kda_args.cu_seqlens must end at tokens = %lld (ends at %lld)",
                (long long)r->tokens, (long long)read_index(cu, r->sequences));
    KDA_REQUIRE(ctx, longest <= r->max_length,
                "kda_args.max_length = %lld, but a sequence has %lld tokens",
                (long long)r->max_length, (long long)longest);
    r->max_length = longest;
    return KDA_OK;
}

/* Marks the slots that sequence n writes. */
static kda_status check_writes(const kda_context *ctx, const struct kda_run *r, int64_t n,
                               unsigned char *written)
{
    const char *name = r->tensor[KDA_TENSOR_WRITE_INDEX].name;
    for (int64_t c = 0; c < columns_used(r, n); c++) {
        int64_t slot = kda_run_write_slot(r, n, c), i = n * r->columns + c;
        KDA_REQUIRE(ctx, slot < r->slots, "kda_args.%s[%lld] = %lld must be below slots = %lld",
                    name, (long long)i, (long long)slot, (long long)r->slots);
        if (slot < 0)
            continue;
        KDA_REQUIRE(ctx, !(written[slot / 8] >> slot % 8 & 1),
                    "kda_args.%s[%lld] = %lld must not repeat a slot that is written", name,
                    (long long)i, (long long)slot);
        written[slot / 8] |= (unsigned char)(1 << slot % 8);
    }
    return KDA_OK;
}

/* That nobody else writes the slot which sequence n reads. */
static kda_status check_read(const kda_context *ctx, const struct kda_run *r, int64_t n,
                             const unsigned char *written)
{
    int64_t slot = kda_run_sequence(r, n).slot;
    bool own = false;
    for (int64_t c = 0; c < columns_used(r, n); c++)
        own |= kda_run_write_slot(r, n, c) == slot;
    KDA_REQUIRE(ctx, own || !(written[slot / 8] >> slot % 8 & 1),
                "kda_args.state_index[%lld] = %lld must not be a slot that another sequence writes",
                (long long)read_at(r, n), (long long)slot);
    return KDA_OK;
}

static kda_status check_slots(const kda_context *ctx, const struct kda_run *r,
                              unsigned char *written)
{
    const struct kda_tensor *accepted = &r->tensor[KDA_TENSOR_ACCEPTED];
    const bool stored = kda_present(&r->tensor[KDA_TENSOR_FINAL_STATE]);
    kda_status st = KDA_OK;
    for (int64_t n = 0; !st && n < r->sequences; n++) {
        KDA_REQUIRE(ctx, !accepted->host || read_index(accepted, n) <= r->columns,
                    "kda_args.accepted[%lld] = %lld must be at most index_columns = %lld",
                    (long long)n, (long long)read_index(accepted, n), (long long)r->columns);
        int64_t slot = kda_run_sequence(r, n).slot;
        KDA_REQUIRE(ctx, slot < r->slots,
                    "kda_args.state_index[%lld] = %lld must be below slots = %lld",
                    (long long)read_at(r, n), (long long)slot, (long long)r->slots);
        if (slot >= 0 && stored)
            st = check_writes(ctx, r, n, written);
    }
    for (int64_t n = 0; !st && kda_run_in_place(r) && n < r->sequences; n++) {
        struct kda_sequence s = kda_run_sequence(r, n);
        if (s.slot >= 0 && !s.fresh)
            st = check_read(ctx, r, n, written);
    }
    return st;
}

kda_status kda_run_check_sequences(const kda_context *ctx, struct kda_run *r)
{
    kda_status st = check_offsets(ctx, r);
    if (st || !r->tensor[KDA_TENSOR_STATE_INDEX].host)
        return st;
    size_t bytes = (size_t)r->slots / 8 + 1;
    unsigned char *written = calloc(bytes, 1); /* a bit a slot */
    if (!written)
        return kda_no_memory(ctx, "the check of state_index", bytes);
    st = check_slots(ctx, r, written);
    free(written);
    return st;
}

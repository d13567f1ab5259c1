/* What fuzz targets share: decisions drawn from the fuzzer's bytes, and how a finding ends. Each
 * target is a program of libFuzzer's (.ci/fuzz builds and runs them).
 *
 * SPDX-License-Identifier: MIT */
#ifndef FUZZ_H
#define FUZZ_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct bytes {
    const uint8_t *at;
    size_t left;
};

/* A number below n, 0 when the bytes have run out. */
static inline int pick(struct bytes *b, int n)
{
    if (!b->left)
        return 0;
    b->left--;
    return *b->at++ % n;
}

/* Ends the program, as libFuzzer wants a finding reported. */
#define FUZZ_CHECK(condition, ...)                                                                 \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fprintf(stderr, "\n%s:%d: %s\n", __FILE__, __LINE__, #condition);                      \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

#endif

/* Safetensors files: a length, a JSON header that says where each tensor lies, then the bytes. A
 * file is mapped, never read as a whole, and believed only after every rule of the format has been
 * checked; a file is written beside its destination and renamed, so that nobody sees half of one.
 *
 * Errors are one line of text that names the file, the tensor and the rule. Texts from a file that
 * appear in one are shortened, and bytes that a terminal might obey are shown as '?'.
 *
 * SPDX-License-Identifier: MIT */
#ifndef SAFETENSORS_H
#define SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum st_dtype {
    ST_BOOL,
    ST_U8,
    ST_I8,
    ST_F8_E4M3,
    ST_F8_E5M2,
    ST_F8_E8M0,
    ST_U16,
    ST_I16,
    ST_F16,
    ST_BF16,
    ST_U32,
    ST_I32,
    ST_F32,
    ST_U64,
    ST_I64,
    ST_F64,
    ST_C64,
    ST_DTYPES
};

const char *st_dtype_name(enum st_dtype dtype);
size_t st_dtype_size(enum st_dtype dtype);

enum { ST_MAX_RANK = 8, ST_ERROR_SIZE = 512 };

struct st_tensor {
    const char *name;
    enum st_dtype dtype;
    int rank;
    int64_t shape[ST_MAX_RANK];
    const void *data; /* of an opened file: possibly unaligned, see st_data */
};

int64_t st_elements(const struct st_tensor *tensor);
size_t st_bytes(const struct st_tensor *tensor);

struct st_pair {
    const char *key, *value;
};

struct st_file {
    const struct st_tensor *tensors; /* in the order of their data */
    size_t num_tensors;
    const struct st_pair *metadata;
    size_t num_metadata;
    struct st_private *private;
};

/* NULL on failure, and a line in error (of ST_ERROR_SIZE bytes). */
struct st_file *st_open(const char *path, char *error);
void st_close(struct st_file *file); /* accepts NULL */

const struct st_tensor *st_find(const struct st_file *file, const char *name); /* or NULL */
const char *st_metadata(const struct st_file *file, const char *key);          /* or NULL */

/* The tensor's elements, aligned for their type: in the mapping where they happen to be, else a
 * copy that lives as long as the file. NULL: out of memory. */
const void *st_data(struct st_file *file, const struct st_tensor *tensor);

/* Whether st_write to path can be expected to work: asked before long work. */
bool st_writable(const char *path, char *error);

/* Replaces or makes the file at path, as a whole or not at all. Data is written with the widest
 * types first, so that every tensor of the file is aligned. */
bool st_write(const char *path, const struct st_tensor *tensors, size_t num_tensors,
              const struct st_pair *metadata, size_t num_metadata, char *error);

/* Stores "path: " and a message in error; returns false. */
#ifdef __GNUC__
__attribute__((format(printf, 3, 4)))
#endif
bool st_fail(char *error, const char *path, const char *format, ...);

/* Copies text from a file into out, as harmless ASCII; returns out. */
const char *st_quote(char *out, size_t size, const char *text);

#endif

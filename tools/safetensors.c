/* Reading safetensors: map, parse, then check every rule before anything is believed. The order of
 * the checks makes each later one safe: lengths against the file, the header's syntax, each tensor
 * by itself, and at last all of them together, which must tile the data without hole or overlap.
 *
 * SPDX-License-Identifier: MIT */
#include "safetensors.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#error "safetensors are little-endian and are used as they lie in the file"
#endif

/* A hostile header ("[0,0,0,...") takes some 40 times its length once parsed, so this bounds memory
 * at 160 MiB. Files for one operation have headers of a few KiB. */
enum { PREFIX = 8, MAX_HEADER = 4 << 20 };

/* JSON numbers are doubles: whole up to here, and no product of ours may exceed it. */
static const int64_t max_whole = INT64_C(1) << 53;

static const struct {
    const char *name;
    size_t size;
} dtypes[ST_DTYPES] = {
    [ST_BOOL] = {"BOOL", 1},       [ST_U8] = {"U8", 1},           [ST_I8] = {"I8", 1},
    [ST_F8_E4M3] = {"F8_E4M3", 1}, [ST_F8_E5M2] = {"F8_E5M2", 1}, [ST_F8_E8M0] = {"F8_E8M0", 1},
    [ST_U16] = {"U16", 2},         [ST_I16] = {"I16", 2},         [ST_F16] = {"F16", 2},
    [ST_BF16] = {"BF16", 2},       [ST_U32] = {"U32", 4},         [ST_I32] = {"I32", 4},
    [ST_F32] = {"F32", 4},         [ST_U64] = {"U64", 8},         [ST_I64] = {"I64", 8},
    [ST_F64] = {"F64", 8},         [ST_C64] = {"C64", 8},
};

struct st_private {
    void *map;
    size_t map_size;
    cJSON *header; /* owns every name and text */
    struct st_tensor *tensors;
    struct st_pair *metadata;
    void **copies; /* of unaligned tensors, made when asked for */
};

/* A file being read: what the checks need. */
struct reader {
    const char *path;
    char *error;
    struct st_file *file;
    const char *data; /* where the header ends */
    size_t data_size;
};

const char *st_dtype_name(enum st_dtype dtype)
{
    return dtypes[dtype].name;
}

size_t st_dtype_size(enum st_dtype dtype)
{
    return dtypes[dtype].size;
}

int64_t st_elements(const struct st_tensor *tensor)
{
    int64_t n = 1;
    for (int i = 0; i < tensor->rank; ++i)
        n *= tensor->shape[i];
    return n;
}

size_t st_bytes(const struct st_tensor *tensor)
{
    return (size_t)st_elements(tensor) * dtypes[tensor->dtype].size;
}

const char *st_quote(char *out, size_t size, const char *text)
{
    size_t i = 0;
    for (; text[i] && i + 1 < size; ++i)
        out[i] = text[i] < ' ' || text[i] > '~' ? '?' : text[i];
    out[i] = 0;
    if (text[i] && size > 3)
        memcpy(out + size - 4, "...", 4);
    return out;
}

bool st_fail(char *error, const char *path, const char *format, ...)
{
    int n = snprintf(error, ST_ERROR_SIZE, "%.255s: ", path);
    va_list list;
    va_start(list, format);
    vsnprintf(error + n, ST_ERROR_SIZE - (size_t)n, format, list);
    va_end(list);
    return false;
}

#ifdef __GNUC__
__attribute__((format(printf, 3, 4)))
#endif
static bool
fail_tensor(const struct reader *r, const char *name, const char *format, ...)
{
    char quoted[64], rule[256];
    va_list list;
    va_start(list, format);
    vsnprintf(rule, sizeof(rule), format, list);
    va_end(list);
    return st_fail(r->error, r->path, "tensor '%s': %s", st_quote(quoted, sizeof(quoted), name),
                   rule);
}

static bool map_file(const struct reader *r)
{
    struct st_private *p = r->file->private;
    struct stat st;
    /* Without O_NONBLOCK opening a pipe would wait for its writer. */
    int fd = open(r->path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return st_fail(r->error, r->path, "%s", strerror(errno));
    if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
        close(fd);
        return st_fail(r->error, r->path, "not a regular file");
    }
    if (st.st_size < PREFIX) {
        close(fd);
        return st_fail(r->error, r->path, "%lld bytes, too short for a safetensors file",
                       (long long)st.st_size);
    }
    p->map_size = (size_t)st.st_size;
    void *map = mmap(NULL, p->map_size, PROT_READ, MAP_PRIVATE, fd, 0);
    int code = errno;
    close(fd);
    if (map == MAP_FAILED)
        return st_fail(r->error, r->path, "cannot be mapped: %s", strerror(code));
    p->map = map;
    return true;
}

static uint64_t little_endian(const unsigned char *bytes)
{
    uint64_t n = 0;
    for (int i = PREFIX - 1; i >= 0; --i)
        n = n << 8 | bytes[i];
    return n;
}

/* The parser ends strings at a zero, so that two names could look the same: none is let in. It gets
 * a copy that ends in one because some versions look one byte past a text they were told to end. */
static bool parse(struct reader *r, const char *text, size_t length)
{
    static const char zero[] = "\\u0000";
    const char *end = NULL;
    char *copy = malloc(length + 1);
    if (!copy)
        return st_fail(r->error, r->path, "out of memory");
    memcpy(copy, text, length);
    copy[length] = 0;
    if (strlen(copy) < length || strstr(copy, zero)) {
        free(copy);
        return st_fail(r->error, r->path, "header: zero character in the JSON");
    }
    cJSON *header = cJSON_ParseWithLengthOpts(copy, length + 1, &end, false);
    r->file->private->header = header;
    size_t at = end ? (size_t)(end - copy) : 0;
    bool only_spaces = header && strspn(end, " \t\r\n") == length - at;
    free(copy);
    if (!header || !only_spaces)
        return st_fail(r->error, r->path,
                       "header: not valid JSON near byte %zu of it (or nested too deep)", at);
    return true;
}

static bool read_header(struct reader *r)
{
    const struct st_private *p = r->file->private;
    uint64_t length = little_endian(p->map);
    uint64_t rest = p->map_size - PREFIX;
    if (length == 0)
        return st_fail(r->error, r->path, "header: length is 0");
    if (length > rest)
        return st_fail(r->error, r->path,
                       "header: length is %llu but only %llu bytes follow (truncated, or not a "
                       "safetensors file)",
                       (unsigned long long)length, (unsigned long long)rest);
    if (length > MAX_HEADER)
        return st_fail(r->error, r->path,
                       "header: length is %llu, more than the %d that are accepted",
                       (unsigned long long)length, MAX_HEADER);
    if (((const char *)p->map)[PREFIX] != '{')
        return st_fail(r->error, r->path, "header: does not begin with '{'");
    r->data = (const char *)p->map + PREFIX + length;
    r->data_size = rest - length;
    return parse(r, (const char *)p->map + PREFIX, length);
}

static bool whole_number(const cJSON *json, int64_t *value)
{
    if (!cJSON_IsNumber(json))
        return false;
    double d = json->valuedouble;
    if (!(d >= 0 && d <= (double)max_whole))
        return false;
    *value = (int64_t)d;
    return (double)*value == d;
}

static bool read_shape(const struct reader *r, const cJSON *json, struct st_tensor *t)
{
    const cJSON *entry;
    int64_t bytes = (int64_t)dtypes[t->dtype].size;
    if (!cJSON_IsArray(json))
        return fail_tensor(r, t->name, "shape is not an array");
    cJSON_ArrayForEach(entry, json)
    {
        int64_t n;
        if (t->rank == ST_MAX_RANK)
            return fail_tensor(r, t->name, "shape has more than %d dimensions", ST_MAX_RANK);
        if (!whole_number(entry, &n))
            return fail_tensor(r, t->name, "shape[%d] is not a whole number from 0 to 2^53",
                               t->rank);
        if (n && bytes > max_whole / n)
            return fail_tensor(r, t->name, "shape overflows: more than 2^53 bytes");
        bytes *= n;
        t->shape[t->rank++] = n;
    }
    return true;
}

static bool read_offsets(const struct reader *r, const cJSON *json, struct st_tensor *t)
{
    int64_t begin, end;
    const cJSON *first = cJSON_IsArray(json) ? json->child : NULL;
    if (!first || !first->next || first->next->next || !whole_number(first, &begin) ||
        !whole_number(first->next, &end))
        return fail_tensor(r, t->name, "data_offsets is not a pair of whole numbers");
    if (begin > end)
        return fail_tensor(r, t->name, "data_offsets [%lld, %lld] are reversed", (long long)begin,
                           (long long)end);
    if ((uint64_t)end > r->data_size)
        return fail_tensor(r, t->name,
                           "data_offsets [%lld, %lld] reach past the end of the data (%zu bytes)",
                           (long long)begin, (long long)end, r->data_size);
    if ((size_t)(end - begin) != st_bytes(t))
        return fail_tensor(r, t->name, "data_offsets span %lld bytes, dtype and shape make %zu",
                           (long long)(end - begin), st_bytes(t));
    t->data = r->data + begin;
    return true;
}

static bool read_dtype(const struct reader *r, const cJSON *json, struct st_tensor *t)
{
    char quoted[32];
    if (!cJSON_IsString(json))
        return fail_tensor(r, t->name, "dtype is not a string");
    for (int i = 0; i < ST_DTYPES; ++i) {
        if (!strcmp(json->valuestring, dtypes[i].name)) {
            t->dtype = (enum st_dtype)i;
            return true;
        }
    }
    return fail_tensor(r, t->name, "unknown dtype '%s'",
                       st_quote(quoted, sizeof(quoted), json->valuestring));
}

static bool read_tensor(const struct reader *r, const cJSON *json, struct st_tensor *t)
{
    static const char *const names[] = {"dtype", "shape", "data_offsets"};
    const cJSON *member, *found[3] = {NULL};
    char quoted[64];
    *t = (struct st_tensor){.name = json->string};
    if (!cJSON_IsObject(json))
        return fail_tensor(r, t->name, "its entry is not a JSON object");
    cJSON_ArrayForEach(member, json)
    {
        int i = 0;
        while (i < 3 && strcmp(member->string, names[i]))
            ++i;
        if (i == 3 || found[i])
            return fail_tensor(r, t->name, "%s '%s' in its entry",
                               i == 3 ? "unknown key" : "duplicate key",
                               st_quote(quoted, sizeof(quoted), member->string));
        found[i] = member;
    }
    for (int i = 0; i < 3; ++i)
        if (!found[i])
            return fail_tensor(r, t->name, "%s is missing", names[i]);
    return read_dtype(r, found[0], t) && read_shape(r, found[1], t) && read_offsets(r, found[2], t);
}

static bool read_metadata(const struct reader *r, const cJSON *json)
{
    struct st_file *file = r->file;
    const cJSON *entry;
    char quoted[64];
    if (file->metadata)
        return st_fail(r->error, r->path, "duplicate name '__metadata__'");
    if (!cJSON_IsObject(json))
        return st_fail(r->error, r->path, "__metadata__ is not a JSON object");
    file->private->metadata = calloc((size_t)cJSON_GetArraySize(json) + 1, sizeof(struct st_pair));
    file->metadata = file->private->metadata;
    if (!file->metadata)
        return st_fail(r->error, r->path, "out of memory");
    cJSON_ArrayForEach(entry, json)
    {
        if (!cJSON_IsString(entry))
            return st_fail(r->error, r->path, "metadata '%s': its value is not a string",
                           st_quote(quoted, sizeof(quoted), entry->string));
        file->private->metadata[file->num_metadata++] =
            (struct st_pair){entry->string, entry->valuestring};
    }
    return true;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* count names that lie stride bytes apart. */
static bool names_differ(const struct reader *r, const char *what, const void *first, size_t count,
                         size_t stride)
{
    char quoted[64];
    const char **sorted = malloc((count + 1) * sizeof(*sorted));
    if (!sorted)
        return st_fail(r->error, r->path, "out of memory");
    for (size_t i = 0; i < count; ++i)
        sorted[i] = *(const char *const *)((const char *)first + i * stride);
    qsort(sorted, count, sizeof(*sorted), compare_names);
    size_t i = 1;
    while (i < count && strcmp(sorted[i - 1], sorted[i]))
        ++i;
    if (i < count)
        st_fail(r->error, r->path, "duplicate %s '%s'", what,
                st_quote(quoted, sizeof(quoted), sorted[i]));
    free(sorted);
    return i >= count;
}

static bool read_entries(const struct reader *r)
{
    struct st_file *file = r->file;
    struct st_private *p = file->private;
    const cJSON *entry;
    size_t count = (size_t)cJSON_GetArraySize(p->header);
    p->tensors = calloc(count + 1, sizeof(*p->tensors));
    p->copies = calloc(count + 1, sizeof(*p->copies));
    if (!p->tensors || !p->copies)
        return st_fail(r->error, r->path, "out of memory");
    file->tensors = p->tensors;
    cJSON_ArrayForEach(entry, p->header)
    {
        if (!strcmp(entry->string, "__metadata__")) {
            if (!read_metadata(r, entry))
                return false;
        } else if (!read_tensor(r, entry, &p->tensors[file->num_tensors++])) {
            return false;
        }
    }
    return names_differ(r, "tensor", &file->tensors->name, file->num_tensors,
                        sizeof(*file->tensors)) &&
           (!file->metadata || names_differ(r, "metadata key", &file->metadata->key,
                                            file->num_metadata, sizeof(*file->metadata)));
}

/* By where the data begins; empty tensors before the one that begins at the same place. */
static int compare_places(const void *a, const void *b)
{
    const struct st_tensor *s = a, *t = b;
    if (s->data != t->data)
        return (const char *)s->data < (const char *)t->data ? -1 : 1;
    return (st_bytes(s) > st_bytes(t)) - (st_bytes(s) < st_bytes(t));
}

static bool tensors_tile_data(const struct reader *r)
{
    const struct st_file *file = r->file;
    char quoted[64];
    const char *end = r->data;
    qsort(file->private->tensors, file->num_tensors, sizeof(*file->tensors), compare_places);
    for (size_t i = 0; i < file->num_tensors; ++i) {
        const struct st_tensor *t = &file->tensors[i];
        const char *begin = t->data;
        if (begin < end)
            return fail_tensor(r, t->name, "its data overlaps that of tensor '%s'",
                               st_quote(quoted, sizeof(quoted), t[-1].name));
        if (begin > end)
            return fail_tensor(r, t->name, "a hole of %td bytes before its data", begin - end);
        end = begin + st_bytes(t);
    }
    if (end != r->data + r->data_size)
        return st_fail(r->error, r->path, "%td bytes after the last tensor belong to none",
                       r->data + r->data_size - end);
    return true;
}

struct st_file *st_open(const char *path, char *error)
{
    struct reader r = {.path = path, .error = error};
    r.file = calloc(1, sizeof(*r.file));
    if (r.file)
        r.file->private = calloc(1, sizeof(*r.file->private));
    if (!r.file || !r.file->private)
        st_fail(error, path, "out of memory");
    else if (map_file(&r) && read_header(&r) && read_entries(&r) && tensors_tile_data(&r))
        return r.file;
    st_close(r.file);
    return NULL;
}

void st_close(struct st_file *file)
{
    if (!file)
        return;
    struct st_private *p = file->private;
    for (size_t i = 0; p && p->copies && i < file->num_tensors; ++i)
        free(p->copies[i]);
    if (p) {
        if (p->map)
            munmap(p->map, p->map_size);
        cJSON_Delete(p->header);
        free(p->tensors);
        free(p->metadata);
        free(p->copies);
    }
    free(p);
    free(file);
}

const struct st_tensor *st_find(const struct st_file *file, const char *name)
{
    for (size_t i = 0; i < file->num_tensors; ++i)
        if (!strcmp(file->tensors[i].name, name))
            return &file->tensors[i];
    return NULL;
}

const char *st_metadata(const struct st_file *file, const char *key)
{
    for (size_t i = 0; i < file->num_metadata; ++i)
        if (!strcmp(file->metadata[i].key, key))
            return file->metadata[i].value;
    return NULL;
}

const void *st_data(struct st_file *file, const struct st_tensor *tensor)
{
    void **copy = &file->private->copies[tensor - file->tensors];
    if ((uintptr_t)tensor->data % dtypes[tensor->dtype].size == 0)
        return tensor->data;
    if (!*copy && (*copy = malloc(st_bytes(tensor) + 1)))
        memcpy(*copy, tensor->data, st_bytes(tensor));
    return *copy;
}

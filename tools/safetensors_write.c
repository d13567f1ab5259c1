/* Writing safetensors, all or nothing: the whole file goes to a temporary name beside the
 * destination, reaches the disk, and only then takes the destination's name. A mapping of a file
 * that is replaced this way keeps showing the old one, so a file may be written over its own input.
 *
 * SPDX-License-Identifier: MIT */
#define _XOPEN_SOURCE 700 /* realpath */
#include "safetensors.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Where a file goes, seen through symbolic links. */
struct target {
    char *path, *temporary;
    mode_t mode; /* of the file that is replaced, 0 if there is none */
};

static void target_free(struct target *target)
{
    free(target->path);
    free(target->temporary);
}

static bool target_find(struct target *target, const char *path, char *error)
{
    struct stat st;
    if (!*path)
        return st_fail(error, "output", "an empty name");
    target->path = realpath(path, NULL);
    if (!target->path) {
        if (errno != ENOENT)
            return st_fail(error, path, "%s", strerror(errno));
        target->path = strdup(path);
    } else if (!stat(target->path, &st)) {
        if (!S_ISREG(st.st_mode))
            return st_fail(error, path, "exists and is not a regular file");
        if (access(target->path, W_OK))
            return st_fail(error, path, "%s", strerror(errno));
        target->mode = st.st_mode & 0777;
    }
    size_t size = target->path ? strlen(target->path) + 32 : 0;
    target->temporary = target->path ? malloc(size) : NULL;
    if (!target->temporary)
        return st_fail(error, path, "out of memory");
    snprintf(target->temporary, size, "%s.%ld.tmp", target->path, (long)getpid());
    return true;
}

/* What a signal that ends the process leaves behind otherwise: the file that is being written. */
static const int endings[] = {SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
enum { ENDINGS = sizeof(endings) / sizeof(endings[0]) };
static const char *unfinished;

static void remove_unfinished(int signal_number)
{
    unlink(unfinished);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

/* Signals that somebody ignores stay ignored. */
static void watch_signals(const char *temporary, struct sigaction before[ENDINGS])
{
    struct sigaction action = {.sa_handler = remove_unfinished};
    sigemptyset(&action.sa_mask);
    unfinished = temporary;
    for (int i = 0; i < ENDINGS; ++i) {
        sigaction(endings[i], NULL, &before[i]);
        if (before[i].sa_handler == SIG_DFL)
            sigaction(endings[i], &action, NULL);
    }
}

static void leave_signals(const struct sigaction before[ENDINGS])
{
    for (int i = 0; i < ENDINGS; ++i)
        sigaction(endings[i], &before[i], NULL);
}

/* -1 on failure. */
static int target_open(const struct target *target)
{
    return open(target->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
}

bool st_writable(const char *path, char *error)
{
    struct target target = {0};
    bool ok = target_find(&target, path, error);
    if (ok) {
        int fd = target_open(&target);
        ok = fd >= 0 || st_fail(error, path, "cannot be written: %s", strerror(errno));
        if (ok) {
            close(fd);
            unlink(target.temporary);
        }
    }
    target_free(&target);
    return ok;
}

/* Tensors in the order of their data: widest elements first. */
static const struct st_tensor **data_order(const struct st_tensor *tensors, size_t count)
{
    const struct st_tensor **order = malloc((count + 1) * sizeof(*order));
    size_t n = 0;
    for (size_t size = 8; order && size > 0; size /= 2)
        for (size_t i = 0; i < count; ++i)
            if (st_dtype_size(tensors[i].dtype) == size)
                order[n++] = &tensors[i];
    return order;
}

/* Adds a tensor's entry, its data beginning at offset. */
static bool add_entry(cJSON *header, const struct st_tensor *t, size_t offset)
{
    cJSON *entry = cJSON_AddObjectToObject(header, t->name);
    bool ok = cJSON_AddStringToObject(entry, "dtype", st_dtype_name(t->dtype));
    cJSON *shape = cJSON_AddArrayToObject(entry, "shape");
    for (int i = 0; i < t->rank; ++i)
        ok &= cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)t->shape[i]));
    cJSON *offsets = cJSON_AddArrayToObject(entry, "data_offsets");
    ok &= cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)offset));
    ok &= cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)(offset + st_bytes(t))));
    return ok;
}

/* The header's text, to free; NULL: out of memory. */
static char *header_text(const struct st_tensor *const *order, size_t count,
                         const struct st_pair *metadata, size_t num_metadata)
{
    cJSON *header = cJSON_CreateObject();
    size_t offset = 0;
    bool ok = header;
    if (num_metadata) {
        cJSON *object = cJSON_AddObjectToObject(header, "__metadata__");
        for (size_t i = 0; i < num_metadata; ++i)
            ok &= !!cJSON_AddStringToObject(object, metadata[i].key, metadata[i].value);
    }
    for (size_t i = 0; i < count; ++i) {
        ok &= add_entry(header, order[i], offset);
        offset += st_bytes(order[i]);
    }
    char *text = ok ? cJSON_PrintUnformatted(header) : NULL;
    cJSON_Delete(header);
    return text;
}

static bool write_all(int fd, const void *data, size_t size)
{
    const char *at = data;
    while (size) {
        ssize_t n = write(fd, at, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return false;
        at += n;
        size -= (size_t)n;
    }
    return true;
}

/* Length, header padded with spaces to a multiple of 8, data. */
static bool write_content(int fd, const char *header, const struct st_tensor *const *order,
                          size_t count)
{
    size_t length = strlen(header), padding = -length & 7;
    unsigned char prefix[8];
    for (int i = 0; i < 8; ++i)
        prefix[i] = (unsigned char)((uint64_t)(length + padding) >> 8 * i);
    bool ok = write_all(fd, prefix, sizeof(prefix)) && write_all(fd, header, length) &&
              write_all(fd, "       ", padding);
    for (size_t i = 0; ok && i < count; ++i)
        ok = write_all(fd, order[i]->data, st_bytes(order[i]));
    return ok;
}

static bool write_temporary(const struct target *target, const char *header,
                            const struct st_tensor *const *order, size_t count)
{
    int fd = target_open(target);
    if (fd < 0)
        return false;
    bool ok = write_content(fd, header, order, count) &&
              !(target->mode && fchmod(fd, target->mode)) && !fsync(fd);
    int code = errno;
    if (close(fd) && ok) {
        ok = false;
        code = errno;
    }
    if (ok && rename(target->temporary, target->path)) {
        ok = false;
        code = errno;
    }
    if (!ok) {
        unlink(target->temporary);
        errno = code;
    }
    return ok;
}

static bool write_target(const struct target *target, const char *header,
                         const struct st_tensor *const *order, size_t count)
{
    struct sigaction before[ENDINGS];
    watch_signals(target->temporary, before);
    bool ok = write_temporary(target, header, order, count);
    int code = errno;
    leave_signals(before);
    errno = code;
    return ok;
}

bool st_write(const char *path, const struct st_tensor *tensors, size_t num_tensors,
              const struct st_pair *metadata, size_t num_metadata, char *error)
{
    struct target target = {0};
    bool ok = target_find(&target, path, error);
    if (ok) {
        const struct st_tensor **order = data_order(tensors, num_tensors);
        char *header = order ? header_text(order, num_tensors, metadata, num_metadata) : NULL;
        errno = ENOMEM;
        ok = header && write_target(&target, header, order, num_tensors);
        if (!ok)
            st_fail(error, path, "cannot be written: %s", strerror(errno));
        free(header);
        free(order);
    }
    target_free(&target);
    return ok;
}

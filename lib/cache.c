/* Built programs on disk: a folder with one file for each program, which holds the driver's binary
 * and the key that it was built for. Whatever a file holds, the worst it does is nothing: it is
 * used if its length, its key and the sum over all of it are right and the driver takes it, and
 * else written anew. Files appear whole, under their name, by a rename, so any number of processes
 * may share a folder.
 *
 * SPDX-License-Identifier: MIT */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

/* Names begin with this, unfinished ones too: nothing else in the folder is ever removed. */
#define PREFIX "kda-"

enum {
    MOST_FILES = 512, /* when there are more, the oldest go */
    MOST_BYTES = 1 << 26,
    PATH = 4096
};

struct kda_cache {
    bool told; /* that nothing can be written: once is enough */
    char dir[];
};

/* A file: this, the key, the binary. In the machine's byte order: another one's is foreign. */
struct head {
    char magic[8];
    uint64_t key_bytes, binary_bytes;
    uint64_t sum; /* of key and binary */
};
static const char magic[8] = "kdaprog1";

struct kda_cache *kda_cache_open(const char *dir)
{
    struct kda_cache *cache = calloc(1, sizeof *cache + strlen(dir) + 1);
    if (cache)
        strcpy(cache->dir, dir);
    return cache;
}

uint64_t kda_cache_hash(uint64_t h, const void *bytes, size_t n)
{
    for (const unsigned char *b = bytes; n; n--)
        h = (h ^ *b++) * 0x100000001b3;
    return h;
}

static void program_path(const struct kda_cache *cache, const char *key, char *path)
{
    snprintf(path, PATH, "%s/" PREFIX "%016llx", cache->dir,
             (unsigned long long)kda_cache_hash(KDA_CACHE_HASH, key, strlen(key)));
}

/* ---- Load ------------------------------------------------------------------------------- */

/* A file's bytes, to be freed; NULL with size 0: there is none, else it can't be read. */
static char *read_file(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    *size = !file && errno != ENOENT && errno != ENOTDIR;
    if (!file)
        return NULL;
    long end = fseek(file, 0, SEEK_END) ? -1 : ftell(file);
    *size = end > 0 && end <= MOST_BYTES ? (size_t)end : 1;
    char *bytes = malloc(*size);
    if (bytes && (fseek(file, 0, SEEK_SET) || fread(bytes, 1, *size, file) != *size)) {
        free(bytes);
        bytes = NULL;
    }
    fclose(file);
    return bytes;
}

/* The binary in a file's bytes; NULL: they are not what was stored for this key. */
static const unsigned char *find_binary(const char *bytes, size_t size, const char *key,
                                        size_t *binary_bytes)
{
    struct head head;
    size_t key_bytes = strlen(key);
    if (!bytes || size < sizeof head + key_bytes)
        return NULL;
    memcpy(&head, bytes, sizeof head);
    *binary_bytes = size - sizeof head - key_bytes;
    if (memcmp(head.magic, magic, sizeof magic) || head.key_bytes != key_bytes ||
        head.binary_bytes != *binary_bytes || memcmp(bytes + sizeof head, key, key_bytes) ||
        head.sum != kda_cache_hash(KDA_CACHE_HASH, bytes + sizeof head, size - sizeof head))
        return NULL;
    return (const unsigned char *)bytes + sizeof head + key_bytes;
}

static cl_program from_binary(const kda_context *ctx, const unsigned char *binary, size_t size,
                              const char *options)
{
    const struct kda_device *d = ctx->device;
    cl_int err;
    cl_program program =
        clCreateProgramWithBinary(d->context, 1, &d->id, &size, &binary, NULL, &err);
    if (err)
        return NULL;
    if (!clBuildProgram(program, 1, &d->id, options, NULL, NULL))
        return program;
    clReleaseProgram(program);
    return NULL;
}

cl_program kda_cache_load(const kda_context *ctx, const char *key, const char *options)
{
    char path[PATH];
    size_t size, binary_bytes;
    program_path(ctx->device->cache, key, path);
    char *bytes = read_file(path, &size);
    if (!bytes && !size)
        return NULL;
    const unsigned char *binary = find_binary(bytes, size, key, &binary_bytes);
    cl_program program = binary ? from_binary(ctx, binary, binary_bytes, options) : NULL;
    free(bytes);
    if (program)
        kda_log(ctx, KDA_LOG_DEBUG, "program read from %s", path);
    else
        kda_log(ctx, KDA_LOG_WARN, "%s %s: the program is built again", path,
                binary ? "is not to the driver's liking"
                       : "is unreadable, damaged or not a program's");
    return program;
}

/* ---- Store ------------------------------------------------------------------------------ */

/* Whether there is the memory for the driver to make a binary: PoCL (3.1, pocl_binary.c) takes 256
 * MiB for a moment, and does not look whether it got them. */
static bool has_room(void)
{
    void *volatile room = malloc((size_t)256 << 20);
    free(room);
    return room;
}

/* The program's binary for the context's device, to be freed; NULL: the driver gives none. */
static unsigned char *get_binary(const kda_context *ctx, cl_program program, size_t *size)
{
    if (!has_room())
        return NULL;
    cl_uint count = 0, ours = 0;
    clGetProgramInfo(program, CL_PROGRAM_NUM_DEVICES, sizeof count, &count, NULL);
    cl_device_id *ids = calloc(count + 1, sizeof(cl_device_id));
    size_t *sizes = calloc(count + 1, sizeof *sizes);
    unsigned char **binaries = calloc(count + 1, sizeof(unsigned char *)), *binary = NULL;
    if (ids && sizes && binaries &&
        !clGetProgramInfo(program, CL_PROGRAM_DEVICES, count * sizeof *ids, ids, NULL) &&
        !clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, count * sizeof *sizes, sizes, NULL)) {
        while (ours < count && ids[ours] != ctx->device->id)
            ours++;
        *size = sizes[ours]; /* a device that is not listed has size 0 */
        binary = binaries[ours] = *size ? malloc(*size) : NULL;
    }
    if (binary &&
        clGetProgramInfo(program, CL_PROGRAM_BINARIES, count * sizeof *binaries, binaries, NULL)) {
        free(binary);
        binary = NULL;
    }
    free(ids);
    free(sizes);
    free(binaries);
    return binary;
}

/* Makes a folder and those above it. */
static void make_folder(const char *dir)
{
    char path[PATH];
    snprintf(path, sizeof path, "%s", dir);
    for (char *c = path + 1; *c; c++) {
        if (*c != '/')
            continue;
        *c = '\0';
        mkdir(path, 0700);
        *c = '/';
    }
    mkdir(path, 0700);
}

/* Removes the oldest file if there are too many. Called for each one that is added, which keeps
 * the number where it is however many processes add at once. */
static void trim(const struct kda_cache *cache)
{
    char path[PATH + 256], oldest[sizeof path] = "";
    struct stat s;
    struct timespec least = {0};
    int count = 0;
    DIR *dir = opendir(cache->dir);
    for (const struct dirent *e; dir && (e = readdir(dir));) {
        snprintf(path, sizeof path, "%s/%s", cache->dir, e->d_name);
        if (strncmp(e->d_name, PREFIX, strlen(PREFIX)) || lstat(path, &s))
            continue;
        bool older = s.st_mtim.tv_sec < least.tv_sec ||
                     (s.st_mtim.tv_sec == least.tv_sec && s.st_mtim.tv_nsec < least.tv_nsec);
        if (!count++ || older) {
            memcpy(oldest, path, sizeof oldest);
            least = s.st_mtim;
        }
    }
    if (dir)
        closedir(dir);
    if (count > MOST_FILES)
        unlink(oldest);
}

/* Writes a file whole or not at all; false leaves errno. */
static bool write_file(const struct kda_cache *cache, const char *key, const struct head *head,
                       const void *binary)
{
    char path[PATH], temporary[PATH];
    program_path(cache, key, path);
    snprintf(temporary, sizeof temporary, "%s/" PREFIX "new-XXXXXX", cache->dir);
    make_folder(cache->dir);
    int fd = mkstemp(temporary);
    if (fd < 0)
        return false;
    FILE *file = fdopen(fd, "wb");
    bool wrote = file && fwrite(head, sizeof *head, 1, file) == 1 &&
                 fwrite(key, 1, head->key_bytes, file) == head->key_bytes &&
                 fwrite(binary, 1, head->binary_bytes, file) == head->binary_bytes;
    wrote &= file ? !fclose(file) : !close(fd);
    if (wrote && !rename(temporary, path))
        return true;
    int why = errno;
    unlink(temporary);
    errno = why;
    return false;
}

/* Warns once that programs are not kept. */
static void tell(const kda_context *ctx, const char *why)
{
    struct kda_cache *cache = ctx->device->cache;
    if (!cache->told)
        kda_log(ctx, KDA_LOG_WARN,
                "kda_context_params.cache_dir %s is not written to (%s): programs are not kept",
                cache->dir, why);
    cache->told = true;
}

void kda_cache_store(const kda_context *ctx, const char *key, cl_program program)
{
    char why[128] = "";
    struct head head = {.key_bytes = strlen(key)};
    size_t size = 0;
    unsigned char *binary = get_binary(ctx, program, &size);
    if (!binary || size > MOST_BYTES - sizeof head - head.key_bytes) {
        tell(ctx, binary ? "a program is too large" : "the driver's binary can't be had");
        free(binary);
        return;
    }
    memcpy(head.magic, magic, sizeof magic);
    head.binary_bytes = size;
    head.sum = kda_cache_hash(KDA_CACHE_HASH, key, head.key_bytes);
    head.sum = kda_cache_hash(head.sum, binary, size);
    if (write_file(ctx->device->cache, key, &head, binary)) {
        trim(ctx->device->cache);
    } else {
        strerror_r(errno, why, sizeof why);
        tell(ctx, why);
    }
    free(binary);
}

/* Safetensors files taken apart and put together again, and kdarun as a child process.
 *
 * SPDX-License-Identifier: MIT */
#define _XOPEN_SOURCE 700 /* mkdtemp */
#include "files.h"

#include <dirent.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

const char *test_device, *program, *golden_folder;

static char folder[] = "/tmp/test_kdarun.XXXXXX";

void folder_enter(void)
{
    strcpy(folder + strlen(folder) - 6, "XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(chdir(folder), 0);
}

void folder_leave(void)
{
    DIR *dir = opendir(".");
    for (struct dirent *entry; (entry = readdir(dir));)
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
            ck_assert_int_eq(remove(entry->d_name), 0);
    closedir(dir);
    ck_assert_int_eq(chdir("/"), 0);
    ck_assert_int_eq(rmdir(folder), 0);
}

static bool listed(const char *const *names, const char *name)
{
    for (; *names; ++names)
        if (!strcmp(*names, name))
            return true;
    return false;
}

/* What the runs printed goes here. */
static const char *const captures[] = {".", "..", "stdout", "stderr", NULL};

void check_folder(const char *const *names)
{
    DIR *dir = opendir(".");
    for (struct dirent *entry; (entry = readdir(dir));)
        ck_assert_msg(listed(captures, entry->d_name) || listed(names, entry->d_name),
                      "'%s' was left behind", entry->d_name);
    closedir(dir);
}

void write_bytes(const char *path, const void *data, size_t size)
{
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(data, 1, size, f), size);
    ck_assert_int_eq(fclose(f), 0);
}

void write_header(const char *path, const char *header, size_t data_size)
{
    size_t length = strlen(header);
    unsigned char *bytes = calloc(8 + length + data_size, 1);
    for (int i = 0; i < 8; ++i)
        bytes[i] = (unsigned char)((uint64_t)length >> 8 * i);
    memcpy(bytes + 8, header, length);
    write_bytes(path, bytes, 8 + length + data_size);
    free(bytes);
}

char *read_bytes(const char *path, size_t *size)
{
    FILE *f = fopen(path, "rb");
    ck_assert_msg(f, "%s is not there", path);
    fseek(f, 0, SEEK_END);
    *size = (size_t)ftell(f);
    rewind(f);
    char *bytes = calloc(*size + 1, 1);
    ck_assert_uint_eq(fread(bytes, 1, *size, f), *size);
    fclose(f);
    return bytes;
}

static char *copy_text(const char *text)
{
    return strcpy(malloc(strlen(text) + 1), text);
}

static bool is_gradient(const char *name)
{
    return name[0] == 'd' && strcmp(name, "dt_bias");
}

void sample_open(struct sample *s, const char *golden)
{
    char path[1024], error[ST_ERROR_SIZE];
    snprintf(path, sizeof(path), "%s/%s.safetensors", golden_folder, golden);
    struct st_file *file = st_open(path, error);
    ck_assert_msg(file, "%s", error);
    *s = (struct sample){.num_tensors = 0};
    for (size_t i = 0; i < file->num_tensors; ++i) {
        const struct st_tensor *t = &file->tensors[i];
        if (!is_gradient(t->name))
            memcpy(sample_put(s, t->name, t->dtype, t->rank, t->shape), t->data, st_bytes(t));
    }
    for (size_t i = 0; i < file->num_metadata; ++i)
        sample_set(s, file->metadata[i].key, file->metadata[i].value);
    st_close(file);
}

static void free_tensor(struct sample *s, size_t i)
{
    free((void *)(uintptr_t)s->tensors[i].name);
    free(s->data[i]);
}

static void free_pair(const struct st_pair *pair)
{
    free((void *)(uintptr_t)pair->key);
    free((void *)(uintptr_t)pair->value);
}

void sample_free(struct sample *s)
{
    for (size_t i = 0; i < s->num_tensors; ++i)
        free_tensor(s, i);
    for (size_t i = 0; i < s->num_metadata; ++i)
        free_pair(&s->metadata[i]);
    *s = (struct sample){.num_tensors = 0};
}

static size_t find(const struct sample *s, const char *name)
{
    size_t i = 0;
    while (i < s->num_tensors && strcmp(s->tensors[i].name, name))
        ++i;
    return i;
}

const struct st_tensor *sample_tensor(const struct sample *s, const char *name)
{
    size_t i = find(s, name);
    ck_assert_msg(i < s->num_tensors, "no tensor '%s'", name);
    return &s->tensors[i];
}

void *sample_data(struct sample *s, const char *name)
{
    return s->data[sample_tensor(s, name) - s->tensors];
}

void *sample_put(struct sample *s, const char *name, enum st_dtype dtype, int rank,
                 const int64_t *shape)
{
    size_t i = find(s, name);
    ck_assert_uint_lt(i, 32);
    struct st_tensor t = {.name = copy_text(name), .dtype = dtype, .rank = rank};
    for (int d = 0; d < rank; ++d)
        t.shape[d] = shape[d];
    void *data = calloc(st_bytes(&t) + 1, 1);
    t.data = data;
    if (i < s->num_tensors)
        free_tensor(s, i);
    else
        ++s->num_tensors;
    s->tensors[i] = t;
    s->data[i] = data;
    return data;
}

void sample_drop(struct sample *s, const char *name)
{
    size_t i = find(s, name);
    if (i == s->num_tensors)
        return;
    free_tensor(s, i);
    --s->num_tensors;
    s->tensors[i] = s->tensors[s->num_tensors];
    s->data[i] = s->data[s->num_tensors];
}

void sample_set(struct sample *s, const char *key, const char *value)
{
    size_t i = 0;
    while (i < s->num_metadata && strcmp(s->metadata[i].key, key))
        ++i;
    ck_assert_uint_lt(i, 16);
    if (i < s->num_metadata) {
        free_pair(&s->metadata[i]);
        s->metadata[i] = s->metadata[--s->num_metadata];
    }
    if (value)
        s->metadata[s->num_metadata++] = (struct st_pair){copy_text(key), copy_text(value)};
}

void sample_write(const struct sample *s, const char *path)
{
    char error[ST_ERROR_SIZE];
    ck_assert_msg(st_write(path, s->tensors, s->num_tensors, s->metadata, s->num_metadata, error),
                  "%s", error);
}

static void read_capture(const char *path, char *text, size_t size)
{
    FILE *f = fopen(path, "rb");
    text[fread(text, 1, size - 1, f)] = 0;
    fclose(f);
}

struct outcome run_arguments(const char *const *arguments)
{
    struct outcome o;
    char *argv[32] = {(char *)(uintptr_t)program};
    int argc = 1, status;
    pid_t child;
    posix_spawn_file_actions_t actions;
    for (; *arguments; ++arguments) {
        ck_assert_int_lt(argc, 31);
        argv[argc++] = (char *)(uintptr_t)*arguments;
    }
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, "stdout", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_addopen(&actions, 2, "stderr", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ck_assert_int_eq(posix_spawn(&child, program, &actions, NULL, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    read_capture("stdout", o.out, sizeof(o.out));
    read_capture("stderr", o.err, sizeof(o.err));
    ck_assert_msg(WIFEXITED(status), "kdarun died of signal %d\n%s", WTERMSIG(status), o.err);
    o.code = WEXITSTATUS(status);
    return o;
}

void check_outcome(const struct outcome *o, int code, const char *const *says)
{
    ck_assert_msg(o->code == code, "exit %d, wanted %d\n%s%s", o->code, code, o->out, o->err);
    for (; *says; ++says)
        ck_assert_msg(strstr(o->err, *says), "stderr does not say \"%s\" but\n%s", *says, o->err);
}

void run_silently(const char *from, const char *to)
{
    struct outcome o = kdarun(from, to);
    CHECK_OUTCOME(&o, 0, "");
    ck_assert_str_eq(o.out, "");
    ck_assert_str_eq(o.err, "");
}

struct st_file *open_result(const char *path)
{
    char error[ST_ERROR_SIZE];
    struct st_file *file = st_open(path, error);
    ck_assert_msg(file, "%s", error);
    return file;
}

const struct st_tensor *result_tensor(const struct st_file *file, const char *name)
{
    const struct st_tensor *t = st_find(file, name);
    ck_assert_msg(t, "no tensor '%s' in the output", name);
    return t;
}

void check_same_bits(const struct st_tensor *a, const struct st_tensor *b)
{
    ck_assert_int_eq(a->dtype, b->dtype);
    ck_assert_int_eq(st_elements(a), st_elements(b));
    ck_assert_mem_eq(a->data, b->data, st_bytes(a));
}

void make_precious(void)
{
    write_bytes("out", "precious", 8);
}

void check_precious(void)
{
    size_t size;
    char *bytes = read_bytes("out", &size);
    ck_assert_str_eq(bytes, "precious");
    free(bytes);
    CHECK_FOLDER("in", "out");
}

void check_refused(int code, const char *file, const char *says)
{
    struct outcome o = kdarun("--check", "in", "out");
    CHECK_OUTCOME(&o, code, file, says);
    ck_assert_str_eq(o.out, "");
    check_precious();
}

/* What the tests of kdarun share: a safetensors file taken apart so that one thing about it can be
 * changed, and the program run as a user runs it. Tests work in an empty folder of their own, so
 * files have plain names there and whatever a run leaves behind is seen.
 *
 * SPDX-License-Identifier: MIT */
#ifndef FILES_H
#define FILES_H

#include <check.h>

#include "safetensors.h"

/* A file's content in memory, to be changed. Data is its own. */
struct sample {
    struct st_tensor tensors[32];
    void *data[32];
    size_t num_tensors;
    struct st_pair metadata[16];
    size_t num_metadata;
};

/* The golden file of that name, without the gradients. */
void sample_open(struct sample *s, const char *golden);
void sample_free(struct sample *s);

/* The data of a tensor, which must be there. */
void *sample_data(struct sample *s, const char *name);
const struct st_tensor *sample_tensor(const struct sample *s, const char *name);
/* Adds a tensor of zeros or puts it in the place of the one of that name; returns its data. */
void *sample_put(struct sample *s, const char *name, enum st_dtype dtype, int rank,
                 const int64_t *shape);
void sample_drop(struct sample *s, const char *name);
/* value NULL: takes the key out. */
void sample_set(struct sample *s, const char *key, const char *value);
void sample_write(const struct sample *s, const char *path);

/* A file of any bytes; of a header and as many zeros. */
void write_bytes(const char *path, const void *data, size_t size);
void write_header(const char *path, const char *header, size_t data_size);
/* A whole file; to free. */
char *read_bytes(const char *path, size_t *size);

/* How a run of kdarun ended and what it printed. */
struct outcome {
    int code;
    char out[16384], err[16384];
};
struct outcome run_arguments(const char *const *arguments);
/* kdarun --device DEVICE with more arguments. */
#define kdarun(...) run_arguments((const char *const[]){"--device", test_device, __VA_ARGS__, NULL})

extern const char *test_device; /* $KDA_TEST_DEVICE, else cpu */
extern const char *program, *golden_folder;

/* Goes into a new folder; leaves it and removes it with all files. */
void folder_enter(void);
void folder_leave(void);
/* Fails if there is a file in it that is not named, in a list that ends in NULL. */
void check_folder(const char *const *names);
#define CHECK_FOLDER(...) check_folder((const char *const[]){__VA_ARGS__, NULL})

/* kdarun FROM TO: fails unless it succeeds and prints nothing. */
void run_silently(const char *from, const char *to);

/* A file that kdarun wrote, and a tensor that must be in it. */
struct st_file *open_result(const char *path);
const struct st_tensor *result_tensor(const struct st_file *file, const char *name);
void check_same_bits(const struct st_tensor *a, const struct st_tensor *b);

/* Fails unless a run ended with a code and said, on stderr, all of the NULL-terminated texts. */
void check_outcome(const struct outcome *o, int code, const char *const *says);
#define CHECK_OUTCOME(o, code, ...) check_outcome(o, code, (const char *const[]){__VA_ARGS__, NULL})

/* A file "out" that must survive; fails unless it has, and nothing but "in" is beside it. */
void make_precious(void);
void check_precious(void);
/* Runs "in" into "out", compared with its answers: fails unless that is refused with an exit code
 * and both texts, and "out" survives. */
void check_refused(int code, const char *file, const char *says);

Suite *suite_compare(void); /* test_compare.c */
Suite *suite_jobs(void);    /* test_kdarun_jobs.c */
Suite *suite_format(void);  /* test_kdarun_format.c */
Suite *suite_input(void);   /* test_kdarun_input.c */

#endif

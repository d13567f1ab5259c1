/* What the tools share about devices: the device a user names on the command line, the folder of
 * built programs, and the library's log on stderr.
 *
 *     SPEC = auto     the first OpenCL GPU or accelerator that works, else the CPU backend
 *          | cpu      the CPU backend
 *          | cpu:N    the same in vectors of N bits at most: 128, 256, 512, or none
 *          | P:D      OpenCL platform and device by index, as `clinfo -l` counts them
 *          | text     part of a device's or platform's name, or of a platform's version, in any
 *                     case: the first device that matches
 *
 * SPDX-License-Identifier: MIT */
#ifndef SPEC_H
#define SPEC_H

#include <stddef.h>

#include "kda.h"

/* Exit codes of every tool. */
enum { EXIT_WRONG = 1, EXIT_INPUT = 2, EXIT_NO_DEVICE = 3 };

/* For --help. */
#define SPEC_HELP                                                                                  \
    "auto | cpu[:BITS] | P:D (platform:device index) | part of a device or platform name"

struct spec_device {
    cl_device_id id;
    int platform, index; /* P and D */
    char name[256], platform_name[256], platform_version[256];
};

/* Every OpenCL device; platforms that fail or have none are passed over. Returns how many there are
 * and stores an array to free in list. */
size_t spec_devices(struct spec_device **list);

/* Fills in backend, device and vectors. 0, or the exit code after saying on stderr what is wrong,
 * with a list of what there is. */
int spec_resolve(const char *spec, kda_context_params *params);

/* kda_context_params.cache_dir of the tools: $KDA_CACHE_DIR, NULL if that is empty; else
 * $XDG_CACHE_HOME/kda or $HOME/.cache/kda. */
const char *spec_cache_dir(void);

/* For --help. */
#define SPEC_CACHE_HELP                                                                            \
    "Environment:\n"                                                                               \
    "  KDA_CACHE_DIR  where built OpenCL programs are kept; empty: nowhere; not set:\n"            \
    "                 $XDG_CACHE_HOME/kda or ~/.cache/kda\n"

/* A kda_log_fn: "level: line" on stderr. */
void spec_log(void *data, kda_log_level level, const char *line);

#endif

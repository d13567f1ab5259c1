/* kdainfo's parts. Everything found goes into one JSON document, which is printed as it is or
 * rendered for people, so that neither form knows more than the other:
 *
 *     {"kda": version,
 *      "note": why there is no platform, absent if there is one,
 *      "cache": {"dir": folder of built programs, "programs": files there before this run,
 * "bytes"}; absent if there is to be none, "platforms": [{"index", "name", "vendor", "version",
 * "devices": how many, "note": why none}], "devices": [{"spec": for --device, "name", "platform":
 * absent for the CPU backend, "properties": {name: value, null where the driver does not say},
 *                   "notes": [what the driver answered there],
 *                   "error": why the library can't use the device; nothing follows then,
 *                   "facts": [{"name", "value", "source"}],
 *                   "types": [{"type", "status", "why"}],
 *                   "engines": [{"schedule", "engine", "status", "why"}],
 *                   "measured": {"copy_bytes_per_s", "f32_flops_per_s", "empty_kernel_s"}; with
 *                   --measure, and what could not be measured is absent,
 *                   "models": [{"model", "problem", "status", "why", "plan", "plan_create_s"}],
 *                   "selftest": [{"problem", "status", "why", "out_error", "state_error"}],
 *                   "log": [{"level", "line"}]}]}
 *
 * status is a kda_status without its prefix, or WRONG where a result was; why is absent when OK.
 *
 * SPDX-License-Identifier: MIT */
#ifndef INFO_H
#define INFO_H

#include <cjson/cJSON.h>
#include <stdbool.h>

#include "kda.h"

/* info_opencl.c: adds platforms, and note if there are none. */
void info_add_platforms(cJSON *report);
/* Adds properties and notes of an OpenCL device, or of the processor if id is NULL. */
void info_add_properties(cJSON *device, cl_device_id id);

/* info_library.c: adds the state of the folder of built programs. */
void info_add_cache(cJSON *report);
/* Adds what the library makes of a device, from error to log. 0, EXIT_WRONG: a
 * self-test failed, or EXIT_NO_DEVICE: the library can't use the device. */
int info_add_library(cJSON *device, const kda_context_params *params, bool selftest, bool verbose);
/* Adds what the device can do at best. */
void info_add_measured(cJSON *device, const kda_context_params *params);

/* info_print.c */
void info_print(const cJSON *report, bool verbose);

/* A member that is a text, or "". */
const char *info_text(const cJSON *object, const char *name);

#endif

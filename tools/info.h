/* kdainfo's parts. Everything found goes into one JSON document, which is printed as it is or
 * rendered for people, so that neither form knows more than the other. kdainfo --help says what is
 * in the document.
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

/* info_drivers.c: adds drivers, those that give no platform. */
void info_add_drivers(cJSON *report);

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

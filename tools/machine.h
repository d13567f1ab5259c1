/* The processor this program runs on, for the CPU backend's rows in reports.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MACHINE_H
#define MACHINE_H

#include <stddef.h>

/* Cores in use by the system, at least 1. */
int machine_cores(void);

/* Bytes of memory in the machine. */
double machine_memory(void);

/* The model as the system names it; "unknown processor" where it doesn't say. */
void machine_model(char *text, size_t size);

/* Seconds on a clock that only goes forward. */
double machine_seconds(void);

#endif

/* Standard output, which a program must not believe to have arrived: disks are full, and callers
 * close what they don't want.
 *
 * SPDX-License-Identifier: MIT */
#ifndef OUTPUT_H
#define OUTPUT_H

/* First in main: no file that is opened later takes the place of a standard stream that the caller
 * has closed. */
void output_begin(void);

/* Last in main: the exit code, which is EXIT_INPUT instead of 0, after saying on stderr why, if not
 * all of the output could be written. */
int output_end(const char *tool, int code);

#endif

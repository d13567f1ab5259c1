/* The user's file of tuned rows (kda_context_params.tuned), which kdabench --tune writes and the
 * tools hand to the library: $XDG_CONFIG_HOME/kda/tuned, or ~/.config/kda/tuned.
 *
 * SPDX-License-Identifier: MIT */
#ifndef TUNED_H
#define TUNED_H

#include <stdbool.h>

/* NULL: the user has no folder for it. */
const char *tuned_path(void);

/* The file's text, to free; NULL: there is none. One that can't be read is said so on stderr. */
char *tuned_read(void);

/* What a line of the library's log lacks if it is about these rows: " (in FILE)", else "". */
const char *tuned_source(const char *line);

/* Puts a text in the file's place, all or nothing, and makes its folder. There must be a path.
 * False: it has been said on stderr why not. */
bool tuned_write(const char *text);

/* For --help. */
#define TUNED_HELP                                                                                 \
    "Files:\n"                                                                                     \
    "  ~/.config/kda/tuned  rows that kdabench --tune has left and that plans follow;\n"           \
    "                       $XDG_CONFIG_HOME/kda/tuned if that is set\n"

#endif

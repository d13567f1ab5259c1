/* Whether standard output has arrived.
 *
 * SPDX-License-Identifier: MIT */
#include "output.h"

#include "spec.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

void output_begin(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDONLY); /* writing to it fails, as to a closed one */
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}

int output_end(const char *tool, int code)
{
    if (!fflush(stdout) && !ferror(stdout))
        return code;
    fprintf(stderr, "%s: standard output cannot be written\n", tool);
    return code ? code : EXIT_INPUT;
}

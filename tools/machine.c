/* Facts about the processor, from where Linux keeps them.
 *
 * SPDX-License-Identifier: MIT */
#include "machine.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int machine_cores(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 1 ? (int)n : 1;
}

double machine_memory(void)
{
    return (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
}

void machine_model(char *text, size_t size)
{
    char line[256];
    snprintf(text, size, "unknown processor");
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) || !colon)
            continue;
        snprintf(text, size, "%s", colon + 1 + strspn(colon + 1, " "));
        text[strcspn(text, "\n")] = '\0';
        break;
    }
    if (file)
        fclose(file);
}

double machine_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

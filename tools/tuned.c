/* Reads and writes the user's file of tuned rows.
 *
 * SPDX-License-Identifier: MIT */
#include "tuned.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

const char *tuned_path(void)
{
    static char path[4096];
    const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    if (config && *config)
        snprintf(path, sizeof path, "%s/kda/tuned", config);
    else if (home && *home)
        snprintf(path, sizeof path, "%s/.config/kda/tuned", home);
    else
        return NULL;
    return path;
}

static bool fail(const char *path)
{
    fprintf(stderr, "%s: %s\n", path, strerror(errno));
    return false;
}

/* All of a file, as a text that ends where the first zero byte is. */
static char *read_all(FILE *file)
{
    char *text = NULL, piece[4096];
    size_t size = 0, n;
    FILE *memory = open_memstream(&text, &size);
    while (memory && (n = fread(piece, 1, sizeof piece, file)))
        fwrite(piece, 1, n, memory);
    if (memory && !fclose(memory) && !ferror(file))
        return text;
    free(text);
    return NULL;
}

char *tuned_read(void)
{
    const char *path = tuned_path();
    FILE *file = path ? fopen(path, "r") : NULL;
    char *text = file ? read_all(file) : NULL;
    if (path && !text && errno != ENOENT && errno != ENOTDIR)
        fail(path);
    if (file)
        fclose(file);
    return text;
}

const char *tuned_source(const char *line)
{
    static char text[4110];
    const char about[] = "kda_context_params.tuned", *path = tuned_path();
    if (!path || strncmp(line, about, sizeof about - 1))
        return "";
    snprintf(text, sizeof text, " (in %s)", path);
    return text;
}

/* Makes the folders on the way to a file; one that can't be made shows when the file can't be. */
static void make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0777);
        *slash = '/';
    }
}

bool tuned_write(const char *text)
{
    const char *path = tuned_path();
    char other[4104];
    snprintf(other, sizeof other, "%s.new", path);
    make_folders(other);
    FILE *file = fopen(other, "w");
    if (!file)
        return fail(other);
    bool written = fputs(text, file) >= 0;
    written = !fclose(file) && written;
    return (written && !rename(other, path)) || fail(path);
}

/* Results as a picture: time over the length of sequences, and tokens a second over the number of
 * heads. A curve is made of the problems that differ in that number alone; gnuplot draws.
 *
 * SPDX-License-Identifier: MIT */
#include "bench.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_POINTS = 1024, NAME = 256 };

/* A measured problem on one of the axes: its name without that number. */
struct point {
    char curve[NAME];
    double x, y;
};

struct panel {
    const char *title, *labels;
    bool of_heads;
    struct point points[MOST_POINTS];
    int count;
};

/* Splits a problem's canonical text at one of its sizes: the tokens of a sequence (of a decode
 * step, sequences), or the heads. false: it has no such number. */
static bool split(const char *problem, bool of_heads, struct point *p)
{
    const char *decode = strchr(problem, ':');
    int begin[8], end[8], count = 0;
    for (const char *c = decode ? decode + 1 : problem; count < 8 && *c >= '0' && *c <= '9';) {
        begin[count] = (int)(c - problem);
        c += strspn(c, "0123456789");
        end[count++] = (int)(c - problem);
        c += *c == 'x';
    }
    int which = of_heads ? count - 2 : count - 3;
    if (count < 3 || strstr(problem, "lens="))
        return false;
    p->x = strtod(problem + begin[which], NULL);
    snprintf(p->curve, sizeof p->curve, "%.*s%c%s", begin[which], problem, of_heads ? 'H' : 'T',
             problem + end[which]);
    return true;
}

static void add_row(struct panel *panel, const cJSON *row)
{
    const char *problem = cJSON_GetStringValue(cJSON_GetObjectItem(row, "problem"));
    const cJSON *y = cJSON_GetObjectItem(row, panel->of_heads ? "tokens_per_s" : "median_s");
    struct point *p = &panel->points[panel->count];
    if (panel->count == MOST_POINTS || !problem || !cJSON_IsNumber(y) ||
        !split(problem, panel->of_heads, p))
        return;
    const cJSON *threads = cJSON_GetObjectItem(row, "threads");
    if (cJSON_IsNumber(threads)) {
        const size_t used = strlen(p->curve);
        snprintf(p->curve + used, sizeof p->curve - used, " on %d", threads->valueint);
    }
    p->y = y->valuedouble;
    ++panel->count;
}

static int by_curve(const void *a, const void *b)
{
    const struct point *p = a, *q = b;
    int order = strcmp(p->curve, q->curve);
    return order ? order : (p->x > q->x) - (p->x < q->x);
}

/* A data block for each curve, two blank lines between them, then the command that draws them. */
static void write_panel(FILE *gnuplot, struct panel *panel, int number)
{
    int curves = 0;
    qsort(panel->points, (size_t)panel->count, sizeof *panel->points, by_curve);
    fprintf(gnuplot, "$data%d << END\n", number);
    for (int i = 0; i < panel->count; ++i) {
        const struct point *p = &panel->points[i];
        bool first = !i || strcmp(p->curve, p[-1].curve);
        if (first)
            fprintf(gnuplot, "%s\"%s\"\n", curves++ ? "\n\n" : "", p->curve);
        fprintf(gnuplot, "%.9g %.9g\n", p->x, p->y);
    }
    fprintf(gnuplot, "END\nset title '%s'\n%s\n", panel->title, panel->labels);
    if (curves)
        fprintf(gnuplot,
                "plot for [i=0:%d] $data%d index i using 1:2 with linespoints "
                "title columnheader(1) noenhanced\n",
                curves - 1, number);
}

/* gnuplot's quotes: two in a row stand for one. */
static void write_quoted(FILE *gnuplot, const char *text)
{
    putc('\'', gnuplot);
    for (; *text; ++text)
        fprintf(gnuplot, *text == '\'' ? "''" : "%c", *text);
    fputs("'\n", gnuplot);
}

const char *bench_plot_obstacle(const char *path)
{
    const bool there = !access(path, F_OK);
    FILE *file = fopen(path, "a"); /* leaves alone what is there */
    if (!file)
        return strerror(errno);
    fclose(file);
    if (!there)
        remove(path);
    return system("gnuplot --version >/dev/null 2>&1") ? "gnuplot is missing" : NULL;
}

/* Whether a picture is all there: gnuplot does not look whether what it wrote has found room. What
 * is no file can't be looked at. */
static bool is_whole(const char *path)
{
    char text[64] = "";
    struct stat s;
    if (!stat(path, &s) && !S_ISREG(s.st_mode))
        return true;
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    fseek(file, -32, SEEK_END);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    return strstr(text, "</svg>");
}

bool bench_plot(const cJSON *document, const char *path)
{
    static struct panel panels[] = {
        {.title = "time over length",
         .labels = "set xlabel 'tokens (decode: sequences)'; set format y '%.0s %cs'"},
        {.title = "speed over heads",
         .labels = "set xlabel 'heads'; set format y '%.0s%c tokens/s'",
         .of_heads = true},
    };
    void (*before)(int) = signal(SIGPIPE, SIG_IGN); /* of a gnuplot that is not there */
    /* Its exit code tells whether it drew; what it says of curves of one point helps nobody, and a
     * file that it cannot write becomes its output. */
    FILE *gnuplot = popen("gnuplot >/dev/null 2>&1", "w");
    if (!gnuplot)
        return false;
    fputs("set terminal svg size 1200,600\nset output ", gnuplot);
    write_quoted(gnuplot, path);
    fputs("set logscale xy\nset grid\nset key outside below vertical\nset multiplot layout 1,2\n",
          gnuplot);
    for (int i = 0; i < 2; ++i) {
        const cJSON *row;
        cJSON_ArrayForEach(row, cJSON_GetObjectItem(document, "results")) add_row(&panels[i], row);
        write_panel(gnuplot, &panels[i], i);
    }
    fputs("unset multiplot\n", gnuplot);
    bool drawn = !pclose(gnuplot);
    signal(SIGPIPE, before);
    return drawn && is_whole(path);
}

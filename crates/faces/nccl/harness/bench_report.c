/* What was measured, as a table and as JSON. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "bench.h"

enum { COLUMNS_MAX = 4 + 3 * CONTESTANTS_MAX, CELL = 40 };

static const char *const mode_names[MODES] = {"ring", "p2p", "latency"};

static int less(const void *a, const void *b);
static double spread_percent(const double *samples, int count);
static void size_text(char *to, size_t bytes);
static void print_columns(char cells[][COLUMNS_MAX][CELL], int rows, int columns);

double median(const double *samples, int count) {
    double *sorted = malloc((size_t)count * sizeof *sorted);
    memcpy(sorted, samples, (size_t)count * sizeof *sorted);
    qsort(sorted, (size_t)count, sizeof *sorted, less);
    double middle = count % 2 ? sorted[count / 2] : (sorted[count / 2 - 1] + sorted[count / 2]) / 2;
    free(sorted);
    return middle;
}

void report_table(const struct bench_settings *bench, const struct row *rows, int count, char names[][32],
                  int contestants) {
    static char cells[LIST_MAX * LIST_MAX + 1][COLUMNS_MAX][CELL];
    for (int mode = 0; mode < MODES; mode++) {
        int lines = 1, columns = 0;
        bool is_latency = mode == MODE_LATENCY;
        const char *unit = is_latency ? "us" : "GB/s";
        snprintf(cells[0][columns++], CELL, "size");
        if (!is_latency) {
            snprintf(cells[0][columns++], CELL, "channels");
        }
        for (int who = 0; who < contestants; who++) {
            snprintf(cells[0][columns++], CELL, "%.30s %s", names[who], unit);
            snprintf(cells[0][columns++], CELL, "±%%");
            if (!is_latency) {
                snprintf(cells[0][columns++], CELL, "CPU s/GB");
            }
        }
        if (contestants > 1) {
            snprintf(cells[0][columns++], CELL, "ratio");
        }
        const struct row *first = NULL;
        for (int r = 0; r < count; r++) {
            const struct row *row = &rows[r];
            int column = 0;
            double best = 0;
            if ((int)row->mode != mode) {
                continue;
            }
            first = first ? first : row;
            size_text(cells[lines][column++], row->bytes);
            if (!is_latency) {
                snprintf(cells[lines][column++], CELL, "%d", row->channels);
            }
            for (int who = 0; who < contestants; who++) {
                double figure = median(row->series[who].figure, bench->rounds);
                if (who > 0 && (best == 0 || (is_latency ? figure < best : figure > best))) {
                    best = figure;
                }
                snprintf(cells[lines][column++], CELL, "%.2f", figure);
                snprintf(cells[lines][column++], CELL, "%.1f", spread_percent(row->series[who].figure, bench->rounds));
                if (!is_latency) {
                    snprintf(cells[lines][column++], CELL, "%.3f", median(row->series[who].cpu, bench->rounds));
                }
            }
            if (contestants > 1) {
                snprintf(cells[lines][column++], CELL, "%.2f", median(row->series[0].figure, bench->rounds) / best);
            }
            lines++;
        }
        if (!first) {
            continue;
        }
        if (is_latency) {
            printf("latency: one way, ping-pong, receives posted ahead, seen in the data\n\n");
        } else {
            printf("%s: %s, messages %d deep; GB/s each way\n\n", mode_names[mode],
                   first->both ? "both processes send and receive" : "one process sends, the other receives",
                   first->depth);
        }
        print_columns(cells, lines, columns);
        printf("\n");
    }
    if (contestants > 1) {
        printf("ratio: %.30s to the best of the others; medians of %d rounds in turn, ±%% half the distance between "
               "the slowest and the fastest\n",
               names[0], bench->rounds);
    }
}

bool report_json(const struct bench_settings *bench, const struct row *rows, int count, char names[][32],
                 int contestants) {
    FILE *file = fopen(bench->json, "we");
    if (!file) {
        perror(bench->json);
        return false;
    }
    fprintf(file, "{\"abi\": %d, \"seconds\": %g, \"rounds\": %d, \"rows\": [", settings.abi, bench->seconds,
            bench->rounds);
    for (int r = 0; r < count; r++) {
        for (int who = 0; who < contestants; who++) {
            const struct row *row = &rows[r];
            fprintf(file, "%s\n  {\"mode\": \"%s\", \"bytes\": %zu, \"channels\": %d, \"depth\": %d, \"both\": %s, ",
                    r || who ? "," : "", mode_names[row->mode], row->bytes, row->channels, row->depth,
                    row->both ? "true" : "false");
            fprintf(file, "\"who\": \"%s\", \"unit\": \"%s\", \"samples\": [", names[who],
                    row->mode == MODE_LATENCY ? "us" : "GB/s");
            for (int i = 0; i < bench->rounds; i++) {
                fprintf(file, "%s%.6g", i ? ", " : "", row->series[who].figure[i]);
            }
            fprintf(file, "], \"cpu_s_per_gb\": [");
            for (int i = 0; i < bench->rounds && row->mode != MODE_LATENCY; i++) {
                fprintf(file, "%s%.6g", i ? ", " : "", row->series[who].cpu[i]);
            }
            fprintf(file, "]}");
        }
    }
    fprintf(file, "\n]}\n");
    bool good = !ferror(file);
    return fclose(file) == 0 && good;
}

static int less(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double spread_percent(const double *samples, int count) {
    double least = samples[0], most = samples[0];
    for (int i = 1; i < count; i++) {
        least = samples[i] < least ? samples[i] : least;
        most = samples[i] > most ? samples[i] : most;
    }
    return (most - least) / 2 / median(samples, count) * 100;
}

static void size_text(char *to, size_t bytes) {
    if (bytes >= 1 << 20 && bytes % (1 << 20) == 0) {
        snprintf(to, CELL, "%zuMiB", bytes >> 20);
    } else if (bytes >= 1 << 10 && bytes % (1 << 10) == 0) {
        snprintf(to, CELL, "%zuKiB", bytes >> 10);
    } else {
        snprintf(to, CELL, "%zuB", bytes);
    }
}

/* Characters, not bytes: ± has two of these. */
static int width_of(const char *text) {
    int width = 0;
    for (; *text; text++) {
        width += (*text & 0xc0) != 0x80;
    }
    return width;
}

static void print_columns(char cells[][COLUMNS_MAX][CELL], int rows, int columns) {
    int widths[COLUMNS_MAX] = {0};
    for (int row = 0; row < rows; row++) {
        for (int column = 0; column < columns; column++) {
            int width = width_of(cells[row][column]);
            widths[column] = width > widths[column] ? width : widths[column];
        }
    }
    for (int row = 0; row < rows; row++) {
        for (int column = 0; column < columns; column++) {
            printf("%s%*s%s", column ? "  " : "", widths[column] - width_of(cells[row][column]), "", cells[row][column]);
        }
        printf("\n");
    }
}

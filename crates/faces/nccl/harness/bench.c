#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base.h"

const char bench_usage[] =
    "\n"
    "  --bench                     measure instead\n"
    "  --against socket-like       beside what NCCL's own socket transport does\n"
    "  --mode ring,p2p,latency     1 MiB messages 4 deep both ways; 128 KiB 8 deep one way; ping-pong\n"
    "  --both                      p2p both ways, too\n"
    "  --sizes 8,64KiB,1MiB        sizes of messages, for all modes chosen\n"
    "  --channels 1,2,4,8,16       connections each way\n"
    "  --depth N                   messages outstanding per connection, up to 32\n"
    "  --setups 0x0,4x4            threads and sockets per thread of the baseline\n"
    "  --rounds N                  (3)\n"
    "  --time S                    seconds of each trial (1)\n"
    "  --json FILE                 every sample\n";

static const size_t latency_sizes[] = {8, 64, 512, 4096, 16384, 65536};

static bool takes_modes(struct bench_settings *, const char *value);
static bool takes_sizes(struct bench_settings *, const char *value);
static bool takes_numbers(int *to, int *count, const char *value);
static bool takes_setups(struct bench_settings *, const char *value);
static int makes_rows(const struct bench_settings *, struct row *);

struct bench_settings bench_defaults(void) {
    return (struct bench_settings){
        .modes = {true, true, true},
        .channels = {1, 2, 4, 8, 16},
        .channels_count = 5,
        .helpers = {0, 4},
        .sockets = {0, 4},
        .setups_count = 2,
        .rounds = 3,
        .seconds = 1,
    };
}

bool bench_option_has_value(const char *word) {
    return strcmp(word, "--both") != 0;
}

bool bench_option(struct bench_settings *bench, const char *word, const char *value) {
    if (!strcmp(word, "--both")) {
        bench->both = true;
        return true;
    }
    if (!value) {
        return false;
    } else if (!strcmp(word, "--against")) {
        bench->against = true;
        return !strcmp(value, "socket-like");
    } else if (!strcmp(word, "--mode")) {
        return takes_modes(bench, value);
    } else if (!strcmp(word, "--sizes")) {
        return takes_sizes(bench, value);
    } else if (!strcmp(word, "--channels")) {
        return takes_numbers(bench->channels, &bench->channels_count, value);
    } else if (!strcmp(word, "--setups")) {
        return takes_setups(bench, value);
    } else if (!strcmp(word, "--depth")) {
        bench->depth = atoi(value);
        return bench->depth >= 1 && bench->depth <= 32;
    } else if (!strcmp(word, "--rounds")) {
        bench->rounds = atoi(value);
        return bench->rounds >= 1 && bench->rounds <= ROUNDS_MAX;
    } else if (!strcmp(word, "--time")) {
        bench->seconds = atof(value);
        return bench->seconds > 0 && bench->seconds <= 60;
    } else if (!strcmp(word, "--json")) {
        bench->json = value;
        return true;
    }
    return false;
}

bool bench_runs(const struct bench_settings *bench) {
    struct row *rows = calloc(MODES * LIST_MAX * LIST_MAX, sizeof *rows);
    char names[CONTESTANTS_MAX][32] = {"library"};
    int count = makes_rows(bench, rows), contestants = 1;
    for (int setup = 0; bench->against && setup < bench->setups_count; setup++) {
        snprintf(names[contestants++], 32, "socket-like %dx%d", bench->helpers[setup], bench->sockets[setup]);
    }
    for (int r = 0; r < count; r++) {
        for (int round = 0; round < bench->rounds; round++) {
            for (int turn = 0; turn < contestants; turn++) {
                /* Rotate, so that no contestant is always first or always follows the same one. */
                int who = round % 2 ? contestants - 1 - turn : turn;
                struct trial trial = {
                    .mode = rows[r].mode,
                    .baseline = who > 0,
                    .both = rows[r].both,
                    .helpers = who ? bench->helpers[who - 1] : 0,
                    .sockets = who ? bench->sockets[who - 1] : 0,
                    .channels = rows[r].channels,
                    .depth = rows[r].depth,
                    .bytes = rows[r].bytes,
                    .seconds = bench->seconds,
                };
                struct measured measured;
                if (isatty(2)) {
                    fprintf(stderr, "\r%d of %d, round %d: %-24s", r + 1, count, round + 1, names[who]);
                }
                if (!trial_runs(&trial, &measured)) {
                    fprintf(stderr, "nccl-harness: a trial of %s failed\n", names[who]);
                    free(rows);
                    return false;
                }
                rows[r].series[who].figure[round] = measured.figure;
                rows[r].series[who].cpu[round] = measured.cpu;
            }
        }
    }
    if (isatty(2)) {
        fprintf(stderr, "\r%60s\r", "");
    }
    report_table(bench, rows, count, names, contestants);
    bool good = !bench->json || report_json(bench, rows, count, names, contestants);
    free(rows);
    return good;
}

static int makes_rows(const struct bench_settings *bench, struct row *rows) {
    static const struct {
        size_t bytes;
        int depth;
    } usual[] = {{1 << 20, 4}, {128 << 10, 8}};
    int count = 0;
    for (int mode = MODE_RING; mode < MODE_LATENCY; mode++) {
        const size_t *sizes = bench->sizes_count ? bench->sizes : &usual[mode].bytes;
        int sizes_count = bench->sizes_count ? bench->sizes_count : 1;
        for (int s = 0; bench->modes[mode] && s < sizes_count; s++) {
            for (int c = 0; c < bench->channels_count; c++) {
                rows[count++] = (struct row){
                    .mode = mode,
                    .bytes = sizes[s],
                    .channels = bench->channels[c],
                    .depth = bench->depth ? bench->depth : usual[mode].depth,
                    .both = mode == MODE_RING || bench->both,
                };
            }
        }
    }
    const size_t *sizes = bench->sizes_count ? bench->sizes : latency_sizes;
    int sizes_count = bench->sizes_count ? bench->sizes_count : (int)(sizeof latency_sizes / sizeof *latency_sizes);
    for (int s = 0; bench->modes[MODE_LATENCY] && s < sizes_count; s++) {
        rows[count++] = (struct row){.mode = MODE_LATENCY, .bytes = sizes[s], .channels = 1, .depth = 8, .both = true};
    }
    return count;
}

static bool takes_modes(struct bench_settings *bench, const char *value) {
    static const char *const names[MODES] = {"ring", "p2p", "latency"};
    memset(bench->modes, 0, sizeof bench->modes);
    while (*value) {
        size_t length = strcspn(value, ",");
        bool known = false;
        for (int mode = 0; mode < MODES; mode++) {
            if (strlen(names[mode]) == length && !strncmp(names[mode], value, length)) {
                known = bench->modes[mode] = true;
            }
        }
        if (!known) {
            return false;
        }
        value += length + (value[length] == ',');
    }
    return true;
}

static bool takes_sizes(struct bench_settings *bench, const char *value) {
    bench->sizes_count = 0;
    while (*value && bench->sizes_count < LIST_MAX) {
        char *end;
        size_t size = strtoull(value, &end, 10);
        if (!strncmp(end, "KiB", 3) || !strncmp(end, "MiB", 3)) {
            size <<= *end == 'K' ? 10 : 20;
            end += 3;
        }
        /* Flags of eight bytes must fit in each message of a ping-pong. */
        if (end == value || (*end && *end != ',') || size < 8 || size % 8 || size > (size_t)1 << 30) {
            return false;
        }
        bench->sizes[bench->sizes_count++] = size;
        value = end + (*end == ',');
    }
    return !*value && bench->sizes_count > 0;
}

static bool takes_numbers(int *to, int *count, const char *value) {
    *count = 0;
    while (*value && *count < LIST_MAX) {
        char *end;
        long number = strtol(value, &end, 10);
        if (end == value || (*end && *end != ',') || number < 1 || number > 64) {
            return false;
        }
        to[(*count)++] = (int)number;
        value = end + (*end == ',');
    }
    return !*value && *count > 0;
}

static bool takes_setups(struct bench_settings *bench, const char *value) {
    bench->setups_count = 0;
    while (*value && bench->setups_count < CONTESTANTS_MAX - 1) {
        int helpers, sockets, length = 0;
        if (sscanf(value, "%dx%d%n", &helpers, &sockets, &length) != 2 || helpers < 0 || helpers > 16 || sockets < 0 ||
            helpers * sockets > 64 || (value[length] && value[length] != ',')) {
            return false;
        }
        bench->helpers[bench->setups_count] = helpers;
        bench->sockets[bench->setups_count++] = sockets;
        value += length + (value[length] == ',');
    }
    return !*value && bench->setups_count > 0;
}

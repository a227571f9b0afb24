/* Measurements: the library beside the baseline, in turn, round after round. */
#ifndef BENCH_H
#define BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LIST_MAX = 16, CONTESTANTS_MAX = 8, ROUNDS_MAX = 64 };

enum bench_mode { MODE_RING, MODE_P2P, MODE_LATENCY, MODES };

struct bench_settings {
    bool against;
    bool modes[MODES];
    /* Both ways at once for p2p, too. */
    bool both;
    size_t sizes[LIST_MAX];
    int sizes_count;
    int channels[LIST_MAX], channels_count;
    /* Of the baseline: helper threads, and sockets of each. */
    int helpers[LIST_MAX], sockets[LIST_MAX], setups_count;
    /* 0 means what NCCL has for the mode. */
    int depth;
    int rounds;
    double seconds;
    const char *json;
};

/* What a trial is about. */
struct trial {
    enum bench_mode mode;
    bool baseline, both;
    int helpers, sockets, channels, depth;
    size_t bytes;
    double seconds;
};

/* GB/s each way and CPU seconds per GB of all that was moved; or the one-way time in us. */
struct measured {
    double figure, cpu;
};

/* All samples of one row of a table and one contestant. */
struct series {
    double figure[ROUNDS_MAX], cpu[ROUNDS_MAX];
};

struct row {
    enum bench_mode mode;
    size_t bytes;
    int channels, depth;
    bool both;
    struct series series[CONTESTANTS_MAX];
};

extern const char bench_usage[];

struct bench_settings bench_defaults(void);
/* Whether the word is an option of measurements, with a value that it can have. */
bool bench_option(struct bench_settings *, const char *word, const char *value);
bool bench_option_has_value(const char *word);
bool bench_runs(const struct bench_settings *);

/* bench_trial.c */
bool trial_runs(const struct trial *, struct measured *);

/* bench_report.c */
double median(const double *samples, int count);
void report_table(const struct bench_settings *, const struct row *, int rows, char names[][32], int contestants);
bool report_json(const struct bench_settings *, const struct row *, int rows, char names[][32], int contestants);

#endif

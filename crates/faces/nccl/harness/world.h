/* A world is the processes and ranks of one case, and the memory that they share: their bootstrap. Each process is
 * forked by the harness and loads the library itself; a rank is a thread of one, as a GPU is of a process that has
 * several. */
#ifndef WORLD_H
#define WORLD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include "base.h"
#include "nccl_net_abi.h"

enum { RANKS_MAX = 8, CHANNELS_MAX = 64, NOTES_MAX = 48, NOTE_BYTES = 400, FLAGS_MAX = 16, NUMBERS_MAX = 16 };

/* The threads of a rank that call the plugin. */
enum caller { CALLER_APPLICATION, CALLER_SERVICE, CALLER_PROGRESS, CALLERS };

/* Lines that several processes write. */
struct notes {
    /* Lines claimed by a writer, and lines written. */
    atomic_int begun, count;
    char line[NOTES_MAX][NOTE_BYTES];
};

struct mail {
    atomic_int full;
    char handle[ABI_HANDLE_BYTES];
};

/* The call that a thread is in, which tells where something hangs. */
struct call {
    _Atomic uint64_t since_ns;
    struct moment begun;
    char name[24];
};

/* The longest calls of a name. */
struct longest {
    _Atomic uint64_t count, wall_ns, own_ns;
};

enum { LONGEST_MAX = 16 };

/* The progress of both ends of a connection, to explain which one waits for the other. */
struct ends {
    _Atomic uint64_t sends_posted, sends_done, receives_posted, receives_done;
};

struct world {
    int processes, ranks;
    pid_t pids[RANKS_MAX];
    /* Processes whose death is part of the case. */
    atomic_int may_die[RANKS_MAX];
    atomic_uint arrived;
    struct notes failures, warnings, log_faults;
    struct call calls[RANKS_MAX][CALLERS];
    struct longest longest[LONGEST_MAX];
    struct mail mail[RANKS_MAX][RANKS_MAX][CHANNELS_MAX];
    struct ends ends[RANKS_MAX][RANKS_MAX][CHANNELS_MAX];
    /* For the case's own use. */
    atomic_int flags[FLAGS_MAX];
    double numbers[RANKS_MAX][NUMBERS_MAX];
};

extern struct world *world;

/* The rank of this thread, or -1. */
extern _Thread_local int my_rank;

struct rank;

/* Runs `run` for each rank of `processes` * `ranks_per_process`, ends the processes, says whether all went well. */
bool world_run(const char *name, int processes, int ranks_per_process, unsigned deadline_s,
               void (*run)(struct rank *));

/* Every rank of the world gets here before any goes on. */
void meet(void);

/* Records a failure and ends this process. */
_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Ends this process quietly if another rank has failed: waiting for it would only hide the reason. */
void leave_if_others_failed(void);

void note(struct notes *, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Waits until the condition holds, for at most so many seconds (times patience), or fails with the words. */
#define WAIT_UNTIL(condition, seconds, ...)                                            \
    do {                                                                               \
        uint64_t wait_ends_ns = now_ns() + (uint64_t)(seconds)*1000000000u * settings.patience; \
        while (!(condition)) {                                                         \
            leave_if_others_failed();                                                  \
            if (now_ns() > wait_ends_ns) {                                             \
                fail(__VA_ARGS__);                                                     \
            }                                                                          \
            pause_us(100);                                                             \
        }                                                                              \
    } while (0)

/* Marks that the thread is in a call of the plugin. Ending the mark fails if the call took too long. */
void call_begins(enum caller, const char *name);
void call_ends(enum caller);

/* The logger for the plugin: collects warnings, and faults in the lines. */
void collect_log(int level, unsigned long subsystems, const char *file, int line, const char *format, ...);

#endif

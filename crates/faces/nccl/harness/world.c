#include "world.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base.h"
#include "rank.h"

struct world *world;
_Thread_local int my_rank = -1;

struct seat {
    struct rank rank;
    pthread_t thread;
    void (*run)(struct rank *);
};

static _Noreturn void process_runs(int process, int ranks, void (*run)(struct rank *));
static void *rank_thread(void *seat);
static bool processes_end(const char *name, uint64_t ends_ns);
static void tell_where_calls_are(const char *name);
static void note_longest(const char *name, struct taken);
static void print_longest(void);
static void print_notes(const char *what, const struct notes *);
static void vnote(struct notes *, const char *format, va_list);
static void await_writers(void);

bool world_run(const char *name, int processes, int ranks_per_process, unsigned deadline_s,
               void (*run)(struct rank *)) {
    world = mmap(NULL, sizeof *world, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (world == MAP_FAILED) {
        perror("nccl-harness: shared memory");
        exit(3);
    }
    world->processes = processes;
    world->ranks = processes * ranks_per_process;
    fflush(NULL);
    for (int process = 0; process < processes; process++) {
        pid_t pid = fork();
        if (pid < 0) {
            perror("nccl-harness: fork");
            exit(3);
        }
        if (pid == 0) {
            process_runs(process, ranks_per_process, run);
        }
        world->pids[process] = pid;
    }
    uint64_t ends_ns = now_ns() + (uint64_t)deadline_s * 1000000000u * settings.patience;
    bool good = processes_end(name, ends_ns);
    if (atomic_load(&world->log_faults.count) > 0) {
        note(&world->failures, "what the plugin gave the logger was wrong");
    }
    good = good && atomic_load(&world->failures.count) == 0;
    if (!good) {
        print_notes("failed", &world->failures);
        print_notes("log", &world->log_faults);
    }
    if (!good || settings.verbose) {
        print_notes("plugin warned", &world->warnings);
    }
    if (settings.longest) {
        print_longest();
    }
    munmap(world, sizeof *world);
    world = NULL;
    return good;
}

void meet(void) {
    unsigned ranks = (unsigned)world->ranks;
    unsigned ticket = atomic_fetch_add(&world->arrived, 1);
    unsigned all = (ticket / ranks + 1) * ranks;
    WAIT_UNTIL(atomic_load(&world->arrived) >= all, 60, "the other ranks did not come to the meeting");
}

void fail(const char *format, ...) {
    char text[NOTE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (my_rank >= 0) {
        note(&world->failures, "rank %d: %s", my_rank, text);
    } else {
        note(&world->failures, "%s", text);
    }
    await_writers();
    /* Don't call exit: other threads are inside the plugin, and exit handlers may wait for them. */
    _exit(1);
}

void leave_if_others_failed(void) {
    if (atomic_load(&world->failures.count) > 0) {
        await_writers();
        _exit(1);
    }
}

/* Another thread of this process may be writing its line, and the end of the process would cut it off. */
static void await_writers(void) {
    const struct notes *notes = &world->failures;
    for (int turns = 0; turns < 1000 && atomic_load(&notes->count) != atomic_load(&notes->begun); turns++) {
        pause_us(1000);
    }
}

void note(struct notes *notes, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vnote(notes, format, arguments);
    va_end(arguments);
}

void call_begins(enum caller caller, const char *name) {
    struct call *call = &world->calls[my_rank][caller];
    snprintf(call->name, sizeof call->name, "%s", name);
    call->begun = moment_now();
    atomic_store(&call->since_ns, call->begun.at_ns);
}

void call_ends(enum caller caller) {
    struct call *call = &world->calls[my_rank][caller];
    struct taken taken = taken_since(call->begun);
    atomic_store(&call->since_ns, 0);
    note_longest(call->name, taken);
    uint64_t own_ms = taken.own_ns / 1000000;
    unsigned limit_ms = caller == CALLER_PROGRESS ? settings.post_limit_ms : settings.call_limit_ms;
    if (own_ms > (uint64_t)limit_ms * settings.patience) {
        fail("%s took %llu ms (it slept %ld times, %ld pages came from a disk), and %llu more for want of a CPU: "
             "it blocks the thread that drives all other connections",
             call->name, (unsigned long long)own_ms, taken.sleeps, taken.disk_faults,
             (unsigned long long)(taken.wall_ns / 1000000 - own_ms));
    }
}

static const char *const call_names[LONGEST_MAX] = {"isend", "irecv",  "test",     "connect", "accept", "listen",
                                                    "regMr", "deregMr", "closeListen", "close", "init",   "devices",
                                                    "finalize"};

static void note_longest(const char *name, struct taken taken) {
    for (int i = 0; i < LONGEST_MAX && call_names[i]; i++) {
        if (strcmp(name, call_names[i])) {
            continue;
        }
        struct longest *longest = &world->longest[i];
        atomic_fetch_add(&longest->count, 1);
        for (uint64_t most = atomic_load(&longest->wall_ns);
             taken.wall_ns > most && !atomic_compare_exchange_weak(&longest->wall_ns, &most, taken.wall_ns);) {
        }
        for (uint64_t most = atomic_load(&longest->own_ns);
             taken.own_ns > most && !atomic_compare_exchange_weak(&longest->own_ns, &most, taken.own_ns);) {
        }
    }
}

static void print_longest(void) {
    for (int i = 0; i < LONGEST_MAX && call_names[i]; i++) {
        const struct longest *longest = &world->longest[i];
        if (atomic_load(&longest->count)) {
            printf("    %-11s %8llu calls, longest %8.2f ms by its own doing, %8.2f ms by the clock\n", call_names[i],
                   (unsigned long long)atomic_load(&longest->count), (double)atomic_load(&longest->own_ns) / 1e6,
                   (double)atomic_load(&longest->wall_ns) / 1e6);
        }
    }
}

void collect_log(int level, unsigned long subsystems, const char *file, int line, const char *format, ...) {
    if (level < ABI_LOG_VERSION || level > ABI_LOG_TRACE) {
        note(&world->log_faults, "level %d is none of 1 to 5", level);
    }
    if (subsystems == 0 || (subsystems >> 16 != 0 && subsystems != ~0ul)) {
        note(&world->log_faults, "subsystems 0x%lx are none", subsystems);
    }
    if (!file) {
        note(&world->log_faults, "no file or function is given");
    }
    if (line < 0) {
        note(&world->log_faults, "line %d", line);
    }
    if (!format || strcmp(format, "%s") != 0) {
        /* Anything else would let the text of a peer be a format, and Rust has no variadic calls that check. */
        note(&world->log_faults, "the format is not \"%%s\": %.80s", format ? format : "none");
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    const char *text = va_arg(arguments, const char *);
    va_end(arguments);
    if (!text || !*text) {
        note(&world->log_faults, "a line without text at level %d", level);
        return;
    }
    if (strchr(text, '\n')) {
        note(&world->log_faults, "a line with a line break in it: %.80s", text);
    }
    if (level == ABI_LOG_WARN) {
        note(&world->warnings, "%s", text);
    }
    if (settings.verbose) {
        fprintf(stderr, "    [%d] level %d, 0x%lx, %s:%d: %s\n", getpid(), level, subsystems, file, line, text);
    }
}

static _Noreturn void process_runs(int process, int ranks, void (*run)(struct rank *)) {
    /* A harness that is killed leaves nobody behind. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    reserve_files();
    struct seat *seats = calloc((size_t)ranks, sizeof *seats);
    for (int i = 0; i < ranks; i++) {
        seats[i].rank.number = process * ranks + i;
        seats[i].rank.process = process;
        seats[i].run = run;
        pthread_create(&seats[i].thread, NULL, rank_thread, &seats[i]);
    }
    for (int i = 0; i < ranks; i++) {
        pthread_join(seats[i].thread, NULL);
    }
    free(seats);
    /* Exit like a normal program: handlers and destructors of the library run. */
    exit(0);
}

static void *rank_thread(void *argument) {
    struct seat *seat = argument;
    my_rank = seat->rank.number;
    seat->run(&seat->rank);
    return NULL;
}

static bool processes_end(const char *name, uint64_t ends_ns) {
    int left = world->processes;
    bool good = true;
    bool gone[RANKS_MAX] = {false};
    while (left > 0) {
        bool late = now_ns() > ends_ns;
        if (late && good) {
            tell_where_calls_are(name);
        }
        for (int process = 0; process < world->processes; process++) {
            int status = 0;
            if (gone[process]) {
                continue;
            }
            if (late) {
                kill(world->pids[process], SIGKILL);
            }
            if (waitpid(world->pids[process], &status, late ? 0 : WNOHANG) != world->pids[process]) {
                continue;
            }
            gone[process] = true;
            left--;
            bool fine = WIFEXITED(status) && WEXITSTATUS(status) == 0;
            if (fine || (atomic_load(&world->may_die[process]) && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)) {
                continue;
            }
            if (good && WIFSIGNALED(status) && !late) {
                note(&world->failures, "process %d died of signal %d (%s)", process, WTERMSIG(status),
                     strsignal(WTERMSIG(status)));
            } else if (good && !late && atomic_load(&world->failures.count) == 0) {
                note(&world->failures, "process %d ended with status %d", process, WEXITSTATUS(status));
            }
            good = false;
        }
        pause_us(1000);
    }
    return good;
}

static void tell_where_calls_are(const char *name) {
    static const char *const callers[CALLERS] = {"application", "service", "progress"};
    note(&world->failures, "%s did not end in time", name);
    for (int rank = 0; rank < world->ranks; rank++) {
        for (int caller = 0; caller < CALLERS; caller++) {
            uint64_t since_ns = atomic_load(&world->calls[rank][caller].since_ns);
            if (since_ns) {
                note(&world->failures, "rank %d: its %s thread is in %s for %.1f s", rank, callers[caller],
                     world->calls[rank][caller].name, (double)(now_ns() - since_ns) / 1e9);
            }
        }
    }
}

static void print_notes(const char *what, const struct notes *notes) {
    int begun = atomic_load(&notes->begun);
    for (int i = 0; i < begun && i < NOTES_MAX; i++) {
        /* A process that was killed may have left its line empty. */
        if (notes->line[i][0]) {
            fprintf(stderr, "    %s: %s\n", what, notes->line[i]);
        }
    }
    if (begun > NOTES_MAX) {
        fprintf(stderr, "    %s: and %d lines more\n", what, begun - NOTES_MAX);
    }
}

static void vnote(struct notes *notes, const char *format, va_list arguments) {
    int index = atomic_fetch_add(&notes->begun, 1);
    if (index < NOTES_MAX) {
        vsnprintf(notes->line[index], NOTE_BYTES, format, arguments);
    }
    /* Set this last: a process that sees a failure ends itself, and it may be the writer. */
    atomic_fetch_add(&notes->count, 1);
}

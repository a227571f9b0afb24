/* Small things that everything here needs: settings, time, patterns of bytes, what a process holds. */
#ifndef BASE_H
#define BASE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What the command line said; written once, before the first fork. */
struct settings {
    const char *library;
    int abi;
    /* Less data and fewer rounds: for valgrind, and for a first look. */
    bool quick;
    /* Also shows what passed and each line of the plugin's log. */
    bool verbose;
    /* Factor on every deadline, for tools that slow programs down. */
    unsigned patience;
    /* The longest that one call into the plugin may take by its own doing, and one of those that post and test. */
    unsigned call_limit_ms, post_limit_ms;
    /* Also prints the longest calls of each kind. */
    bool longest;
    /* File descriptors that a process may hold per peer process. */
    unsigned fds_per_peer;
    /* How long after the death of a peer its requests may take to end. */
    unsigned death_s;
};

extern struct settings settings;

uint64_t now_ns(void);
void pause_us(unsigned us);

/* A well-mixed number from a number; the same everywhere. */
uint64_t mix(uint64_t value);

/* Bytes that tell their position: eight of them are a number made of seed and position. */
void pattern_fill(void *at, size_t bytes, uint64_t seed);

/* The first byte that is not the pattern's, or -1. */
ptrdiff_t pattern_differs(const void *at, size_t bytes, uint64_t seed);

/* A value that is rare in patterns, for memory that must not change. */
void poison(void *at, size_t bytes);
ptrdiff_t poison_differs(const void *at, size_t bytes);

/* Anonymous memory of whole pages, or an end of the program. */
void *pages(size_t bytes);
void pages_free(void *at, size_t bytes);

/* Under valgrind there is no vDSO, and what it tells of the program's start says so; one system call of Linux 6.4 that
 * it does not know tells otherwise, and who believes that call crashes. It is refused from now on. */
void refuse_auxv_under_valgrind(void);

/* Makes room in the process's table of files for as many as it may have open, 4096 at most; before it has threads. The
 * kernel enlarges the table for the 65th file, the 257th and so on, and with several threads the call that opens that one, and
 * all that open one meanwhile, wait until each CPU has gone through the scheduler: 0.4 s and more where CPUs are busy. No plugin can
 * change that. */
void reserve_files(void);

struct footprint {
    int threads, fds;
    size_t resident_bytes;
};

/* The harness's own open files, which don't count as the plugin's footprint. */
extern atomic_int harness_files;

struct footprint footprint_now(void);

/* A moment of this thread, and what it took since: by the clock, and by its own doing, which leaves out that it waited
 * for a CPU that others had. */
struct moment {
    uint64_t at_ns, ran_ns, waited_ns;
    long sleeps, disk_faults;
};

/* How often the thread slept, and how often memory that it touched had to come from a disk, say why it took that. */
struct taken {
    uint64_t wall_ns, own_ns;
    long sleeps, disk_faults;
};

struct moment moment_now(void);
struct taken taken_since(struct moment);

#endif

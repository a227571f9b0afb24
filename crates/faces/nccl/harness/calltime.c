/* What a call of the plugin took by its own doing. Where CPUs are short a thread that could go on waits for its turn,
 * which no plugin can change: the kernel counts that wait for each thread, and it is taken off. A thread that gives its
 * turn away in the middle of a call waits by the call's doing, as does one that sleeps or waits for a lock. The CPU of a
 * virtual machine may also stand still, for 25 ms at times, which counts as neither: a call in which the thread never
 * slept took the time that it ran. */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base.h"

static _Thread_local int stat_fd = -1;
static _Thread_local uint64_t yielded_ns;
static _Thread_local bool is_timed;

static void file_closes(void *fd) {
    close((int)(long)fd);
    atomic_fetch_sub(&harness_files, 1);
}

static pthread_key_t file_of_thread;

static void key_is_made(void) {
    pthread_key_create(&file_of_thread, file_closes);
}

/* How long this thread has waited for a CPU; 0 for ever where the kernel does not count. */
static uint64_t waited_ns(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    char text[96];
    unsigned long long ran, waited;
    if (stat_fd < 0) {
        pthread_once(&once, key_is_made);
        stat_fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
        if (stat_fd < 0) {
            return 0;
        }
        atomic_fetch_add(&harness_files, 1);
        pthread_setspecific(file_of_thread, (void *)(long)stat_fd);
    }
    ssize_t length = pread(stat_fd, text, sizeof text - 1, 0);
    if (length <= 0) {
        return 0;
    }
    text[length] = 0;
    return sscanf(text, "%llu %llu", &ran, &waited) == 2 ? waited : 0;
}

/* How long this thread has had a CPU. */
static uint64_t ran_ns(void) {
    struct timespec ran;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ran);
    return (uint64_t)ran.tv_sec * 1000000000u + (uint64_t)ran.tv_nsec;
}

/* What this thread has waited for other than a CPU. */
static struct rusage waits(void) {
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage;
}

struct moment moment_now(void) {
    is_timed = true;
    yielded_ns = 0;
    uint64_t waited = waited_ns();
    struct rusage waits_now = waits();
    return (struct moment){now_ns(), ran_ns(), waited, waits_now.ru_nvcsw, waits_now.ru_majflt};
}

struct taken taken_since(struct moment begun) {
    uint64_t wall_ns = now_ns() - begun.at_ns;
    uint64_t waited = waited_ns() - begun.waited_ns - yielded_ns;
    uint64_t busy_ns = ran_ns() - begun.ran_ns + yielded_ns;
    uint64_t own_ns = waited < wall_ns ? wall_ns - waited : 0;
    is_timed = false;
    struct rusage since = waits();
    struct taken taken = {.wall_ns = wall_ns,
                          .own_ns = own_ns,
                          .sleeps = since.ru_nvcsw - begun.sleeps,
                          .disk_faults = since.ru_majflt - begun.disk_faults};
    if (taken.sleeps == 0 && busy_ns < own_ns) {
        taken.own_ns = busy_ns;
    }
    return taken;
}

/* In place of the C library's: what a thread waits for because it gave its turn away counts. */
int sched_yield(void) {
    if (!is_timed) {
        return (int)syscall(SYS_sched_yield);
    }
    uint64_t before = waited_ns();
    int result = (int)syscall(SYS_sched_yield);
    yielded_ns += waited_ns() - before;
    return result;
}

#include "base.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { POISON = 0xee, FILES_MAX = 4096 };

struct settings settings = {
    .abi = 12,
    .patience = 1,
    .call_limit_ms = 2000,
    .post_limit_ms = 50,
    .fds_per_peer = 32,
    .death_s = 30,
};

atomic_int harness_files;

static int entries_in(const char *folder);

uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void pause_us(unsigned us) {
    struct timespec time = {.tv_sec = us / 1000000, .tv_nsec = (long)(us % 1000000) * 1000};
    nanosleep(&time, NULL);
}

uint64_t mix(uint64_t value) {
    value += 0x9e3779b97f4a7c15u;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

static uint64_t pattern_word(uint64_t seed, size_t word) {
    /* Cheaper than mix, yet no two places within a message get the same value. */
    return (seed + word) * 0x9e3779b97f4a7c15u ^ (seed >> 7);
}

void pattern_fill(void *at, size_t bytes, uint64_t seed) {
    char *to = at;
    size_t word = 0;
    for (; (word + 1) * 8 <= bytes; word++) {
        uint64_t value = pattern_word(seed, word);
        memcpy(to + word * 8, &value, 8);
    }
    uint64_t last = pattern_word(seed, word);
    memcpy(to + word * 8, &last, bytes - word * 8);
}

ptrdiff_t pattern_differs(const void *at, size_t bytes, uint64_t seed) {
    const char *from = at;
    size_t word = 0;
    for (; (word + 1) * 8 <= bytes; word++) {
        uint64_t found;
        memcpy(&found, from + word * 8, 8);
        if (found != pattern_word(seed, word)) {
            break;
        }
    }
    /* The word that differs, or the bytes behind the last whole one. */
    uint64_t value = pattern_word(seed, word);
    for (size_t byte = word * 8; byte < bytes && byte < word * 8 + 8; byte++) {
        if (from[byte] != ((const char *)&value)[byte - word * 8]) {
            return (ptrdiff_t)byte;
        }
    }
    return -1;
}

void poison(void *at, size_t bytes) {
    memset(at, POISON, bytes);
}

ptrdiff_t poison_differs(const void *at, size_t bytes) {
    const unsigned char *from = at;
    /* Every byte is the one before it: the C library compares many at once. */
    if (bytes == 0 || (from[0] == POISON && memcmp(from, from + 1, bytes - 1) == 0)) {
        return -1;
    }
    size_t byte = 0;
    while (from[byte] == POISON) {
        byte++;
    }
    return (ptrdiff_t)byte;
}

void *pages(size_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        perror("nccl-harness: memory");
        exit(3);
    }
    return at;
}

void pages_free(void *at, size_t bytes) {
    munmap(at, bytes);
}

void reserve_files(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur == 0) {
        return;
    }
    int last = limit.rlim_cur > FILES_MAX ? FILES_MAX - 1 : (int)limit.rlim_cur - 1;
    int fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, last);
    if (fd >= 0) {
        /* The table never shrinks. */
        close(fd);
    }
}

struct footprint footprint_now(void) {
    struct footprint now = {.threads = entries_in("/proc/self/task"), .fds = entries_in("/proc/self/fd")};
    FILE *file = fopen("/proc/self/statm", "re");
    unsigned long total, resident;
    if (file && fscanf(file, "%lu %lu", &total, &resident) == 2) {
        now.resident_bytes = resident * (size_t)sysconf(_SC_PAGESIZE);
    }
    if (file) {
        fclose(file);
    }
    /* Reading the folder held it open. */
    now.fds -= 1 + atomic_load(&harness_files);
    return now;
}

static int entries_in(const char *folder) {
    DIR *dir = opendir(folder);
    int count = 0;
    if (!dir) {
        return -1;
    }
    for (struct dirent *entry; (entry = readdir(dir));) {
        count += entry->d_name[0] != '.';
    }
    closedir(dir);
    return count;
}

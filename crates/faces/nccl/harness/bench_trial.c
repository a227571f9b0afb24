/* One trial: two processes, one contestant, one kind of traffic. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "base.h"
#include "bench.h"
#include "cases.h"

enum {
    FLAG_STRIDE = 512,
    WARM_MESSAGES = 32,
    PINGS_MIN = 20,
    PINGS_MAX = 1 << 20,
};

/* Shared by the two processes and by the one that asked. */
struct outcome {
    uint64_t messages;
    uint64_t begun_ns[2], ended_ns[2];
    double cpu_s[2];
    double one_way_us;
};

/* A ping-pong as two low-latency kernels have it, of which the proxies know when data is to be sent, and which look
 * at the data themselves to know that it came. */
struct pong {
    struct rank *rank;
    struct link *send, *recv;
    size_t bytes;
    uint64_t total, recv_posted, recv_done, send_posted, send_done, arrived;
    void *recv_requests[ABI_STEPS], *send_requests[ABI_STEPS];
};

extern const struct abi_table_v12 ncclNetPlugin_v12;

static const struct trial *trial;
static struct outcome *outcome;

static void rank_measures(struct rank *);
static void bandwidth(struct rank *, struct link *links, int count);
static uint64_t streams_take(struct rank *, struct link *links, int count, uint64_t messages);
static void latency(struct rank *, struct link *links, int count);
static void pongs(struct pong *, double *one_way_us);
static void pong_step(struct pong *);
static void pong_sends(struct pong *, uint64_t message);
static bool pong_arrived(const struct pong *, uint64_t message);
static double cpu_s(void);

bool trial_runs(const struct trial *what, struct measured *measured) {
    trial = what;
    outcome = mmap(NULL, sizeof *outcome, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (outcome == MAP_FAILED) {
        return false;
    }
    bool good = world_run("measurement", 2, 1, 120 + (unsigned)what->seconds, rank_measures);
    if (good && what->mode == MODE_LATENCY) {
        measured->figure = outcome->one_way_us;
        measured->cpu = 0;
    } else if (good) {
        uint64_t begun = outcome->begun_ns[0] < outcome->begun_ns[1] ? outcome->begun_ns[0] : outcome->begun_ns[1];
        uint64_t ended = outcome->ended_ns[0] > outcome->ended_ns[1] ? outcome->ended_ns[0] : outcome->ended_ns[1];
        double one_way = (double)what->bytes * (double)outcome->messages * what->channels;
        measured->figure = one_way / (double)(ended - begun);
        measured->cpu = (outcome->cpu_s[0] + outcome->cpu_s[1]) / (one_way * (what->both ? 2 : 1) / 1e9);
    }
    munmap(outcome, sizeof *outcome);
    return good;
}

static void rank_measures(struct rank *rank) {
    if (trial->baseline) {
        char number[16];
        snprintf(number, sizeof number, "%d", trial->helpers);
        setenv("SOCKET_LIKE_THREADS", number, 1);
        snprintf(number, sizeof number, "%d", trial->sockets);
        setenv("SOCKET_LIKE_SOCKETS", number, 1);
        rank_takes_builtin(&ncclNetPlugin_v12);
    }
    rank_starts(rank);
    int count, kept = 0;
    struct link *links = ring_links(rank, trial->channels, &count);
    for (int i = 0; i < count; i++) {
        if (trial->both || links[i].from == 0) {
            links[kept++] = links[i];
        }
    }
    if (trial->mode == MODE_LATENCY) {
        latency(rank, links, kept);
    } else {
        bandwidth(rank, links, kept);
    }
    free(links);
    rank_ends(rank);
}

static void bandwidth(struct rank *rank, struct link *links, int count) {
    struct traffic traffic = {.depth = (unsigned)trial->depth, .sizes = &trial->bytes, .sizes_count = 1, .bare = true};
    links_open(rank, links, count, traffic_memory(&traffic));
    for (int i = 0; i < count; i++) {
        /* Touch all pages before the clock runs. */
        poison(links[i].memory, links[i].memory_bytes);
    }
    meet();
    streams_take(rank, links, count, WARM_MESSAGES);
    meet();
    uint64_t warm_ns = streams_take(rank, links, count, 4 * WARM_MESSAGES);
    if (rank->number == 0) {
        double fits = trial->seconds * 1e9 / (double)warm_ns * 4 * WARM_MESSAGES;
        outcome->messages = fits < WARM_MESSAGES ? WARM_MESSAGES : (uint64_t)fits;
    }
    meet();
    double cpu_before_s = cpu_s();
    outcome->begun_ns[rank->number] = now_ns();
    streams_take(rank, links, count, outcome->messages);
    outcome->ended_ns[rank->number] = now_ns();
    outcome->cpu_s[rank->number] = cpu_s() - cpu_before_s;
    meet();
    links_close(rank, links, count);
}

static uint64_t streams_take(struct rank *rank, struct link *links, int count, uint64_t messages) {
    struct traffic traffic = {
        .messages = messages, .depth = (unsigned)trial->depth, .sizes = &trial->bytes, .sizes_count = 1, .bare = true};
    struct stream *streams = streams_of(links, count, &traffic);
    uint64_t begun_ns = now_ns();
    progress_posts(rank, streams, count);
    progress_awaits(streams, count, 120);
    free(streams);
    return now_ns() - begun_ns;
}

static void latency(struct rank *rank, struct link *links, int count) {
    struct pong pong = {.rank = rank, .bytes = trial->bytes};
    size_t memory_bytes = trial->bytes * ABI_STEPS;
    links_open(rank, links, count, memory_bytes);
    for (int i = 0; i < count; i++) {
        memset(links[i].memory, 0, memory_bytes);
        *(links[i].sends ? &pong.send : &pong.recv) = &links[i];
    }
    double *one_way_us = calloc(PINGS_MAX, sizeof *one_way_us);
    pong.total = WARM_MESSAGES * 8;
    meet();
    uint64_t begun_ns = now_ns();
    pongs(&pong, one_way_us);
    if (rank->number == 0) {
        double fits = trial->seconds * 1e9 / (double)(now_ns() - begun_ns) * WARM_MESSAGES * 8;
        outcome->messages = fits < PINGS_MIN ? PINGS_MIN : fits > PINGS_MAX ? PINGS_MAX : (uint64_t)fits;
    }
    meet();
    memset(pong.recv->memory, 0, memory_bytes);
    pong = (struct pong){.rank = rank, .bytes = trial->bytes, .send = pong.send, .recv = pong.recv};
    pong.total = outcome->messages;
    meet();
    pongs(&pong, one_way_us);
    if (rank->number == 0) {
        outcome->one_way_us = median(one_way_us, (int)pong.total);
    }
    free(one_way_us);
    meet();
    links_close(rank, links, count);
}

/* Rank 0 sends first; the time one way is half of that to and fro. */
static void pongs(struct pong *pong, double *one_way_us) {
    bool first = pong->rank->number == 0;
    pong_step(pong);
    for (uint64_t message = 0; message < pong->total; message++) {
        uint64_t begun_ns = now_ns();
        if (first) {
            pong_sends(pong, message);
        }
        while (!pong_arrived(pong, message)) {
            pong_step(pong);
        }
        pong->arrived = message + 1;
        if (first) {
            one_way_us[message] = (double)(now_ns() - begun_ns) / 2000;
        } else {
            pong_sends(pong, message);
        }
    }
    while (pong->send_done < pong->total || pong->recv_done < pong->total) {
        pong_step(pong);
    }
}

/* One pass of a proxy over a receive and a send. */
static void pong_step(struct pong *pong) {
    const struct net *net = pong->rank->net;
    bool moved = false;
    /* A step of the buffer is free once its data was seen and its request is done. */
    while (pong->recv_posted < pong->total && pong->recv_posted < pong->arrived + ABI_STEPS &&
           pong->recv_posted < pong->recv_done + ABI_STEPS) {
        uint64_t step = pong->recv_posted % ABI_STEPS;
        void *request = ABI_OPTIONAL_COMPLETION;
        if (net_irecv(net, pong->recv->comm, pong->recv->memory + step * pong->bytes, pong->bytes, 0,
                      pong->recv->mhandle, &request)) {
            fail("irecv failed");
        }
        if (!request) {
            break;
        }
        pong->recv_requests[step] = request;
        pong->recv_posted++;
        moved = true;
    }
    int done = 0, size = 0;
    if (pong->recv_done < pong->recv_posted) {
        if (net_test(net, pong->recv_requests[pong->recv_done % ABI_STEPS], &done, &size)) {
            fail("test of a receive failed");
        }
        pong->recv_done += done != 0;
        moved |= done != 0;
    }
    if (pong->send_done < pong->send_posted) {
        if (net_test(net, pong->send_requests[pong->send_done % ABI_STEPS], &done, &size)) {
            fail("test of a send failed");
        }
        pong->send_done += done != 0;
        moved |= done != 0;
    }
    if (!moved) {
        sched_yield();
    }
}

static void pong_sends(struct pong *pong, uint64_t message) {
    char *at = pong->send->memory + message % ABI_STEPS * pong->bytes;
    void *request = NULL;
    while (pong->send_posted - pong->send_done == ABI_STEPS) {
        pong_step(pong);
    }
    uint64_t flag = message + 1;
    for (size_t place = 0; place + 8 <= pong->bytes; place += FLAG_STRIDE) {
        memcpy(at + place, &flag, 8);
    }
    memcpy(at + pong->bytes - 8, &flag, 8);
    for (;;) {
        request = NULL;
        if (net_isend(pong->rank->net, pong->send->comm, at, pong->bytes, 0, pong->send->mhandle, &request)) {
            fail("isend failed");
        }
        if (request) {
            break;
        }
        pong_step(pong);
    }
    pong->send_requests[message % ABI_STEPS] = request;
    pong->send_posted++;
}

static bool pong_arrived(const struct pong *pong, uint64_t message) {
    const char *at = pong->recv->memory + message % ABI_STEPS * pong->bytes;
    uint64_t flag = message + 1;
    /* Another thread writes it, so read memory each time. Check the last flag first: it usually comes last. */
    if (*(const volatile uint64_t *)(at + pong->bytes - 8) != flag) {
        return false;
    }
    for (size_t place = 0; place + 8 <= pong->bytes; place += FLAG_STRIDE) {
        if (*(const volatile uint64_t *)(at + place) != flag) {
            return false;
        }
    }
    return true;
}

static double cpu_s(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base.h"
#include "cases.h"

static const size_t large_sizes[] = {1048576};
static const size_t mixed_sizes[] = {524288, 8, 131072, 0, 1000};
static const struct traffic some = {.messages = 24, .depth = 4, .sizes = mixed_sizes, .sizes_count = 5};

/* What a child of a fork does to the connections that it inherited. */
struct inherited {
    struct rank *rank;
    struct link *links;
    int count;
    void *request;
    atomic_int *step;
};

/* Whether this is the child of a fork. */
static bool is_child;

int __lsan_is_turned_off(void);
static void child_calls(const struct inherited *);
static void child_must_fail(int result, int step);
static void awaits_child(pid_t child, const atomic_int *step);

void case_close_outstanding(struct rank *rank) {
    /* The other end may be the first to stop. */
    struct traffic traffic = {.messages = UINT64_MAX,
                              .depth = ABI_STEPS,
                              .sizes = large_sizes,
                              .sizes_count = 1,
                              .may_break = true};
    int count, posted = 0;
    rank_starts(rank);
    struct link *links = ring_links(rank, 3, &count);
    links_open(rank, links, count, traffic_memory(&traffic));
    struct stream *streams = streams_of(links, count, &traffic);
    for (int i = 0; i < count; i++) {
        /* Channel 0 has receivers alone, channel 1 senders alone, channel 2 is in full flow. */
        if (links[i].channel == 2 || links[i].sends == (links[i].channel == 1)) {
            streams[posted] = streams[i];
            streams[posted++].link = &links[i];
        }
    }
    progress_posts(rank, streams, posted);
    pause_us(300000);
    progress_drops(streams, posted);
    if (rank->number == 1) {
        /* Meanwhile the other end closes. It must not wait until this end closes, too. */
        pause_us((settings.call_limit_ms + 500) * 1000 * settings.patience);
    }
    service_does(rank, SERVE_DEREG, links, count, 10);
    service_does(rank, SERVE_CLOSE, links, count, 10);
    for (int i = 0; i < count; i++) {
        poison(links[i].memory, links[i].memory_bytes);
    }
    pause_us(500000);
    for (int i = 0; i < count; i++) {
        ptrdiff_t at = poison_differs(links[i].memory, links[i].memory_bytes);
        if (at >= 0) {
            fail("byte %td of a buffer of channel %d was written after its connection was closed", at, links[i].channel);
        }
        pages_free(links[i].memory, links[i].memory_bytes);
    }
    free(streams);
    meet();
    /* Closed connections must not block new ones. */
    links_move(rank, links, count, &some);
    free(links);
    rank_ends(rank);
}

void case_peer_closes(struct rank *rank) {
    struct traffic traffic = {
        .messages = UINT64_MAX,
        .depth = ABI_STEPS,
        .sizes = large_sizes,
        .sizes_count = 1,
        .stall_s = settings.death_s,
        .may_break = true,
    };
    int count;
    rank_starts(rank);
    struct link *links = ring_links(rank, 2, &count);
    links_open(rank, links, count, traffic_memory(&traffic));
    struct stream *streams = streams_of(links, count, &traffic);
    progress_posts(rank, streams, count);
    meet();
    if (rank->number == 1) {
        pause_us(200000);
        progress_drops(streams, count);
    } else {
        /* An orderly end of one side with requests of the other outstanding is what an abort looks like from here. */
        progress_awaits(streams, count, settings.death_s + 10);
    }
    links_close(rank, links, count);
    free(streams);
    meet();
    links_move(rank, links, count, &some);
    free(links);
    rank_ends(rank);
}

/* A sender may leave when it has sent everything, such as a sender of a broadcast whose program ends. */
void case_leaves_early(struct rank *rank) {
    static const size_t sizes[] = {262144, 8, 0, 4097, 8, 64, 1000};
    struct traffic traffic = {
        .messages = 42,
        .depth = ABI_STEPS,
        .sizes = sizes,
        .sizes_count = 7,
        .recv_every_ms = 10,
    };
    int count;
    rank_starts(rank);
    struct link *both = ring_links(rank, 1, &count), *link = &both[rank->number == 1 ? 0 : 1];
    /* One that receives has one receive at a time, so that most are posted when the sender is gone. */
    traffic.depth = link->sends ? ABI_STEPS : 1;
    links_move(rank, link, 1, &traffic);
    free(both);
    rank_ends(rank);
}

void case_peer_killed(struct rank *rank) {
    enum { VICTIM = 2, IDLE_CHANNEL = 2, UNUSED_CHANNEL = 9 };
    struct traffic endless = {
        .messages = UINT64_MAX,
        .depth = ABI_STEPS,
        .sizes = mixed_sizes,
        .sizes_count = 5,
        .stall_s = settings.death_s,
        .may_break = true,
    };
    struct traffic idle = endless, among_living = endless;
    /* Nothing is ever sent on this channel; the posted receives must end, too. */
    idle.send_after_ms = 1000000000;
    among_living.messages = settings.quick ? 100 : 1000;
    among_living.stall_s = 0;
    among_living.may_break = false;
    int count;
    rank_starts(rank);
    struct link *links = mesh_links(rank, 3, &count);
    links_open(rank, links, count, traffic_memory(&endless));
    struct stream *streams = streams_of(links, count, &endless), *with_victim[16];
    int broken = 0;
    for (int i = 0; i < count; i++) {
        bool victim = links[i].from == VICTIM || links[i].to == VICTIM;
        if (victim && rank->number != VICTIM) {
            with_victim[broken++] = &streams[i];
        }
        streams[i].traffic = !victim                              ? &among_living
                             : links[i].channel == IDLE_CHANNEL ? &idle
                                                                : &endless;
    }
    /* A listener that nobody will ever connect to. */
    struct link dead = {.from = 0, .to = VICTIM, .channel = UNUSED_CHANNEL, .sends = rank->number == 0};
    if (rank->number == VICTIM) {
        service_does(rank, SERVE_LISTEN, &dead, 1, 10);
        mail_puts(&dead);
    } else if (rank->number == 0) {
        mail_gets(&dead, 30);
    }
    atomic_store(&world->may_die[VICTIM], 1);
    meet();
    progress_posts(rank, streams, count);
    pause_us(400000);
    if (rank->number == VICTIM) {
        pause_us(600000000);
    }
    int victim = -1;
    if (rank->number == 0) {
        victim = (int)syscall(SYS_pidfd_open, world->pids[VICTIM], 0);
        if (victim < 0) {
            fail("pidfd_open: %s", strerror(errno));
        }
        kill(world->pids[VICTIM], SIGKILL);
    }
    uint64_t killed_ns = now_ns();
    for (int i = 0; i < broken; i++) {
        if (with_victim[i]->link->channel == IDLE_CHANNEL && with_victim[i]->link->sends) {
            /* It has nothing outstanding, and waits for a day. */
            progress_drops(with_victim[i], 1);
            continue;
        }
        progress_awaits(with_victim[i], 1, settings.death_s + 10);
        if (atomic_load(&with_victim[i]->state) != STREAM_BROKE) {
            fail("a stream with a dead peer ended as %d", atomic_load(&with_victim[i]->state));
        }
    }
    uint64_t took_ms = (now_ns() - killed_ns) / 1000000;
    for (int i = 0; i < count; i++) {
        if (streams[i].traffic == &among_living) {
            progress_awaits(&streams[i], 1, 120);
        }
    }
    if (atomic_load(&world->warnings.count) == 0) {
        fail("no warning says that the peer is gone");
    }
    if (rank->number == 0) {
        note(&world->warnings, "(no warning) all requests had ended %llu ms after the peer's death",
             (unsigned long long)took_ms);
        /* The kernel closes its files one after the other, and the listener, which takes connections, last. */
        struct pollfd ends = {.fd = victim, .events = POLLIN};
        if (poll(&ends, 1, (int)(settings.death_s * settings.patience * 1000)) != 1) {
            fail("the killed process is still there after %u s", settings.death_s);
        }
        close(victim);
        int result = ABI_SUCCESS;
        uint64_t begun_ns = now_ns();
        while (result == ABI_SUCCESS) {
            call_begins(CALLER_APPLICATION, "connect");
            result = net_connect(rank->net, rank->ctx, 0, dead.handle, &dead.comm);
            call_ends(CALLER_APPLICATION);
            if (dead.comm) {
                fail("connect to a dead peer gave a connection");
            }
            if (result == ABI_SUCCESS && now_ns() - begun_ns > (uint64_t)settings.death_s * 1000000000u * settings.patience) {
                fail("connect to a dead peer gave no error within %u s", settings.death_s);
            }
            pause_us(1000);
        }
    }
    links_close(rank, links, count);
    free(streams);
    free(links);
    rank_ends(rank);
}

void case_fork(struct rank *rank) {
    struct traffic traffic = some, waiting = some;
    traffic.messages = settings.quick ? 400 : 2000;
    traffic.depth = ABI_STEPS;
    waiting.send_after_ms = 1000000000;
    int count;
    rank_starts(rank);
    struct link *links = ring_links(rank, 2, &count);
    links_open(rank, links, count, traffic_memory(&traffic));
    struct stream *streams = streams_of(links, count, &traffic);
    struct stream *waits = NULL;
    for (int i = 0; i < count; i++) {
        if (links[i].channel == 1) {
            streams[i].traffic = &waiting;
            waits = links[i].sends ? waits : &streams[i];
        }
    }
    progress_posts(rank, streams, count);
    WAIT_UNTIL(waits->posted > 0, 10, "no receive was accepted");
    for (int round = 0; round < (settings.quick ? 2 : 10); round++) {
        struct inherited inherited = {rank, links, count, waits->requests[0], &world->flags[rank->number]};
        /* Fork in the midst of traffic: a thread that the child lacks may hold any of the plugin's locks. */
        pid_t child = fork();
        if (child == 0) {
            child_calls(&inherited);
            /* As a worker of a data loader ends: destructors run. */
            atomic_store(inherited.step, 100);
            if (round % 2) {
                exit(0);
            }
            _exit(0);
        }
        awaits_child(child, inherited.step);
        pause_us(20000);
    }
    for (int i = 0; i < count; i++) {
        if (streams[i].traffic == &traffic) {
            progress_awaits(&streams[i], 1, 60);
        } else {
            progress_drops(&streams[i], 1);
        }
    }
    meet();
    links_close(rank, links, count);
    free(streams);
    free(links);
    rank_ends(rank);
}

/* For the leak sanitizer: in a child, the stacks of missing threads keep nothing alive. */
int __lsan_is_turned_off(void) {
    return is_child;
}

static void child_calls(const struct inherited *inherited) {
    const struct net *net = inherited->rank->net;
    struct link *send = NULL, *recv = NULL;
    struct net_properties properties;
    char handle[ABI_HANDLE_BYTES] = {0};
    void *comm = NULL, *request = NULL;
    int done = 0, size = 0, devices = 0;
    for (int i = 0; i < inherited->count; i++) {
        *(inherited->links[i].sends ? &send : &recv) = &inherited->links[i];
    }
    is_child = true;
    alarm(5 * settings.patience);
    atomic_store(inherited->step, 1);
    child_must_fail(net_isend(net, send->comm, send->memory, 8, 0, send->mhandle, &request), 1);
    atomic_store(inherited->step, 2);
    child_must_fail(net_irecv(net, recv->comm, recv->memory, 8, 0, recv->mhandle, &request), 2);
    atomic_store(inherited->step, 3);
    child_must_fail(net_test(net, inherited->request, &done, &size), 3);
    atomic_store(inherited->step, 4);
    child_must_fail(net_listen(net, inherited->rank->ctx, 0, handle, &comm), 4);
    atomic_store(inherited->step, 5);
    memcpy(handle, send->handle, sizeof handle);
    child_must_fail(net_connect(net, inherited->rank->ctx, 0, handle, &comm), 5);
    /* Ignore the results of these calls; they only must return. */
    atomic_store(inherited->step, 6);
    net_devices(net, &devices);
    net_get_properties(net, 0, &properties);
    atomic_store(inherited->step, 7);
    net_dereg(net, send->comm, send->mhandle);
    atomic_store(inherited->step, 8);
    net_close_send(net, send->comm);
    net_close_recv(net, recv->comm);
    atomic_store(inherited->step, 9);
    net_finalize(net, inherited->rank->ctx);
}

static void child_must_fail(int result, int step) {
    if (result == ABI_SUCCESS) {
        _exit(10 + step);
    }
}

static void awaits_child(pid_t child, const atomic_int *step) {
    static const char *const steps[] = {"nothing", "isend",   "irecv",   "test",  "listen",
                                        "connect", "devices", "deregMr", "close", "finalize"};
    int status;
    waitpid(child, &status, 0);
    int reached = atomic_load(step);
    const char *where = reached < 10 ? steps[reached] : "exit";
    if (WIFSIGNALED(status)) {
        fail("a forked child %s in %s", WTERMSIG(status) == SIGALRM ? "hangs" : "crashes", where);
    }
    if (WEXITSTATUS(status) != 0) {
        fail("a forked child got no error from %s (status %d)", where, WEXITSTATUS(status));
    }
}

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base.h"
#include "cases.h"

enum { PORTS_MAX = 256, STRANGERS = 48 };

static const size_t some_sizes[] = {131072, 0, 1000, 524288};
static const struct traffic some = {.messages = 24, .depth = 4, .sizes = some_sizes, .sizes_count = 4};

/* Strangers that connect to the port. */
struct stranger {
    struct sockaddr_storage ports[PORTS_MAX];
    int ports_count, entered;
    atomic_bool stop;
    pthread_t thread;
};

static void opens_in_two_steps(struct rank *, struct link *links, int count, enum service_kind first);
static void *stranger_thread(void *stranger);
static void knock(struct stranger *, int port, int manner, int *silent, int *silent_count);
static void expects_error(struct rank *, struct link *, const char *what, bool must_fail);

/* Both ends of a connection in one process, and in one thread: old libraries probe a device like that. */
void case_self(struct rank *rank) {
    int count;
    rank_starts(rank);
    struct link *links = ring_links(rank, 2, &count);
    links_move(rank, links, count, &some);
    free(links);
    rank_ends(rank);
}

/* Everybody connects before anybody accepts, and then the other way round: whoever waits inside of one makes a circle
 * of waiting. */
void case_late_accept(struct rank *rank) {
    int count;
    rank_starts(rank);
    struct link *links = ring_links(rank, 2, &count);
    opens_in_two_steps(rank, links, count, SERVE_CONNECT);
    links_close(rank, links, count);
    meet();
    opens_in_two_steps(rank, links, count, SERVE_ACCEPT);
    struct stream *streams = streams_of(links, count, &some);
    progress_posts(rank, streams, count);
    progress_awaits(streams, count, 60);
    links_close(rank, links, count);
    free(streams);
    free(links);
    rank_ends(rank);
}

static void opens_in_two_steps(struct rank *rank, struct link *links, int count, enum service_kind first) {
    struct service_op *ops = calloc((size_t)count, sizeof *ops);
    int front = 0, back = count;
    for (int i = 0; i < count; i++) {
        if (!links[i].sends) {
            service_does(rank, SERVE_LISTEN, &links[i], 1, 10);
            mail_puts(&links[i]);
        }
    }
    for (int i = 0; i < count; i++) {
        enum service_kind kind = links[i].sends ? SERVE_CONNECT : SERVE_ACCEPT;
        if (links[i].sends) {
            mail_gets(&links[i], 30);
        }
        ops[kind == first ? front++ : --back] = (struct service_op){.kind = kind, .link = &links[i]};
    }
    service_posts(rank, ops, front);
    meet();
    pause_us(500000);
    service_posts(rank, ops + front, count - front);
    service_awaits(ops, count, 10);
    links_are_open(rank, links, count, traffic_memory(&some));
    free(ops);
}

void case_registration(struct rank *rank) {
    int count;
    rank_starts(rank);
    struct link *links = ring_links(rank, 1, &count);
    links_open(rank, links, count, traffic_memory(&some));
    for (int i = 0; i < count; i++) {
        void *mhandle[2];
        struct link *link = &links[i];
        int first = net_reg(rank->net, link->comm, link->memory, link->memory_bytes, ABI_HOST, &mhandle[0]);
        int second = net_reg(rank->net, link->comm, link->memory + 4096, 8192, ABI_HOST, &mhandle[1]);
        if (first || second) {
            fail("regMr of memory that is registered gave %d and %d", first, second);
        }
        /* The plugin must refuse memory that its properties don't list, or it would read an accelerator's pointer. */
        struct net_properties properties;
        void *refused;
        net_get_properties(rank->net, link->dev, &properties);
        if (!(properties.pointers & ABI_CUDA) &&
            net_reg(rank->net, link->comm, link->memory, 4096, ABI_CUDA, &refused) == ABI_SUCCESS) {
            fail("regMr took a pointer of an accelerator, which getProperties does not list");
        }
        void *request = (void *)0x5a5a5a5a5a5a5a5a;
        int done = 0;
        if (!link->sends) {
            int result = net_iflush(rank->net, link->comm, link->memory, 4096, link->mhandle, &request);
            if (result != ABI_SUCCESS || request == (void *)0x5a5a5a5a5a5a5a5a) {
                fail("iflush gave %d and request %p", result, request);
            }
            while (request && !done) {
                if (net_test(rank->net, request, &done, NULL) != ABI_SUCCESS) {
                    fail("the test of a flush failed");
                }
            }
        }
        if (net_dereg(rank->net, link->comm, mhandle[1]) || net_dereg(rank->net, link->comm, mhandle[0])) {
            fail("deregMr failed");
        }
    }
    struct stream *streams = streams_of(links, count, &some);
    progress_posts(rank, streams, count);
    progress_awaits(streams, count, 60);
    links_close(rank, links, count);
    free(streams);
    free(links);
    rank_ends(rank);
}

void case_bad_handle(struct rank *rank) {
    rank_starts(rank);
    struct link spoiled = {.from = 1, .to = 0, .channel = 1, .sends = rank->number == 1};
    if (rank->number == 0) {
        service_does(rank, SERVE_LISTEN, &spoiled, 1, 10);
        mail_puts(&spoiled);
        meet();
        service_does(rank, SERVE_CLOSE_LISTEN, &spoiled, 1, 10);
    } else {
        mail_gets(&spoiled, 30);
        struct link bad = spoiled;
        memset(bad.handle, 0, sizeof bad.handle);
        expects_error(rank, &bad, "zeros", true);
        memset(bad.handle, 0xff, sizeof bad.handle);
        expects_error(rank, &bad, "ones", true);
        pattern_fill(bad.handle, sizeof bad.handle, 4711);
        expects_error(rank, &bad, "noise", true);
        memset(bad.handle, 0, sizeof bad.handle);
        /* An address, as other plugins have it at the start. */
        struct sockaddr_in address = {
            .sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        memcpy(bad.handle, &address, sizeof address);
        expects_error(rank, &bad, "an address", true);
        for (int byte = 0; byte < 16; byte++) {
            char what[40];
            memcpy(bad.handle, spoiled.handle, sizeof bad.handle);
            bad.handle[byte] ^= 0x41;
            snprintf(what, sizeof what, "another byte %d", byte);
            /* The first eight bytes tell plugins and versions apart; the plugin defines the others. */
            expects_error(rank, &bad, what, byte < 8);
        }
        meet();
    }
    int count;
    struct link *links = ring_links(rank, 1, &count);
    links_move(rank, links, count, &some);
    free(links);
    rank_ends(rank);
}

void case_strangers(struct rank *rank) {
    struct traffic longer = some;
    longer.messages = settings.quick ? 50 : 1000;
    struct stranger stranger = {.ports_count = 0};
    int count;
    rank_starts(rank);
    struct link *links = ring_links(rank, 2, &count);
    /* One listener stays open over the whole case, so that there is a port to knock at. */
    struct link open = {.from = rank->number, .to = rank->number, .channel = 7};
    service_does(rank, SERVE_LISTEN, &open, 1, 10);
    stranger.ports_count = listening_ports(stranger.ports, PORTS_MAX);
    if (stranger.ports_count == 0) {
        fail("after listen the process listens on no TCP port");
    }
    /* Close these before anybody connects to them. */
    struct service_op accepts[2];
    int accepts_count = 0;
    for (int i = 0; i < count; i++) {
        if (!links[i].sends) {
            service_does(rank, SERVE_LISTEN, &links[i], 1, 10);
            accepts[accepts_count++] = (struct service_op){.kind = SERVE_ACCEPT, .link = &links[i]};
        }
    }
    stranger.ports_count = listening_ports(stranger.ports, PORTS_MAX);
    pthread_create(&stranger.thread, NULL, stranger_thread, &stranger);
    service_posts(rank, accepts, accepts_count);
    /* So that accept meets strangers before it meets the peer. */
    pause_us(500000);
    for (int i = 0; i < count; i++) {
        if (!links[i].sends) {
            mail_puts(&links[i]);
        }
    }
    for (int i = 0; i < count; i++) {
        if (links[i].sends) {
            mail_gets(&links[i], 30);
            service_does(rank, SERVE_CONNECT, &links[i], 1, 30);
        }
    }
    service_awaits(accepts, accepts_count, 30);
    links_are_open(rank, links, count, traffic_memory(&longer));
    struct stream *streams = streams_of(links, count, &longer);
    progress_posts(rank, streams, count);
    progress_awaits(streams, count, 120);
    links_close(rank, links, count);
    meet();
    atomic_store(&stranger.stop, true);
    pthread_join(stranger.thread, NULL);
    if (stranger.entered == 0) {
        fail("no stranger reached any of %d ports", stranger.ports_count);
    }
    service_does(rank, SERVE_CLOSE_LISTEN, &open, 1, 10);
    free(streams);
    free(links);
    rank_ends(rank);
}

static void *stranger_thread(void *memory) {
    struct stranger *stranger = memory;
    int silent[STRANGERS], silent_count = 0;
    for (int i = 0; !atomic_load(&stranger->stop); i++) {
        knock(stranger, i % stranger->ports_count, i / stranger->ports_count % 5, silent, &silent_count);
        pause_us(2000);
    }
    while (silent_count > 0) {
        close(silent[--silent_count]);
    }
    return NULL;
}

static void knock(struct stranger *stranger, int port, int manner, int *silent, int *silent_count) {
    static const char web[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    char noise[4096];
    struct sockaddr_storage *address = &stranger->ports[port];
    int fd = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct timeval brief = {.tv_usec = 100000};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &brief, sizeof brief);
    socklen_t length = address->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    if (fd < 0 || connect(fd, (struct sockaddr *)address, length)) {
        close(fd);
        return;
    }
    stranger->entered++;
    pattern_fill(noise, sizeof noise, (uint64_t)port + (uint64_t)stranger->entered);
    switch (manner) {
    case 0:
        break;
    case 1:
        send(fd, noise, sizeof noise, MSG_NOSIGNAL);
        break;
    case 2:
        send(fd, web, sizeof web, MSG_NOSIGNAL);
        break;
    case 3:
        /* The first bytes of something longer, and then a reset. */
        send(fd, noise, 3, MSG_NOSIGNAL);
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1}, sizeof(struct linger));
        break;
    default:
        if (*silent_count < STRANGERS) {
            silent[(*silent_count)++] = fd;
            return;
        }
    }
    close(fd);
}

/* Tries a handle that leads nowhere. */
static void expects_error(struct rank *rank, struct link *link, const char *what, bool must_fail) {
    uint64_t begun_ns = now_ns();
    unsigned seconds = 10 * settings.patience;
    link->comm = NULL;
    do {
        call_begins(CALLER_APPLICATION, "connect");
        int result = net_connect(rank->net, rank->ctx, 0, link->handle, &link->comm);
        call_ends(CALLER_APPLICATION);
        if (result != ABI_SUCCESS) {
            return;
        }
        if (link->comm && must_fail) {
            fail("connect took a handle of %s", what);
        }
        if (link->comm) {
            net_close_send(rank->net, link->comm);
            return;
        }
        pause_us(1000);
    } while (now_ns() - begun_ns < (must_fail ? (uint64_t)seconds * 1000000000u : 20000000u));
    if (must_fail) {
        fail("connect with a handle of %s gave no error within %u s", what, seconds);
    }
}

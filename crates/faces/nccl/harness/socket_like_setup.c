/* Listening, connecting and accepting, each a little further with every call, none of them waiting. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base.h"
#include "socket_like.h"

static const uint64_t MAGIC = 0x736f636b6c696b65u;
static const uint64_t STRANGER_NS = 500000000u;

struct connecting {
    struct sl_comm *comm;
    int fd, index;
};

struct handle {
    uint64_t magic, connection;
    struct sockaddr_in address;
    int sockets, helpers;
    /* The memory is the same at every attempt, so what was reached can be kept in it. */
    struct connecting *connecting;
};

_Static_assert(sizeof(struct handle) <= ABI_HANDLE_BYTES, "the handle must fit");

static int connects(const struct handle *, struct connecting *);
static int socket_new(void);
static bool stranger_enters(struct sl_listener *, int fd);

int sl_listen(void *ctx, int dev, void *handle_memory, void **listen_comm) {
    struct handle handle = {.magic = MAGIC, .sockets = sl.sockets, .helpers = sl.helpers};
    struct sl_listener *listener = calloc(1, sizeof *listener);
    static atomic_uint number;
    (void)ctx;
    if (sl.forked || dev < 0) {
        free(listener);
        return ABI_INTERNAL_ERROR;
    }
    handle.address.sin_family = AF_INET;
    handle.address.sin_addr = sl.addresses[dev < sl.addresses_count ? dev : 0];
    handle.connection = mix(((uint64_t)getpid() << 32) + atomic_fetch_add(&number, 1));
    listener->connection = handle.connection;
    listener->fd = socket_new();
    socklen_t length = sizeof handle.address;
    if (bind(listener->fd, (struct sockaddr *)&handle.address, length) || listen(listener->fd, 4096) ||
        getsockname(listener->fd, (struct sockaddr *)&handle.address, &length)) {
        sl_log(ABI_LOG_WARN, "listen: %s", strerror(errno));
        close(listener->fd);
        free(listener);
        return ABI_SYSTEM_ERROR;
    }
    for (int i = 0; i < SL_STRANGERS_MAX; i++) {
        listener->strangers[i].fd = -1;
    }
    memcpy(handle_memory, &handle, sizeof handle);
    *listen_comm = listener;
    return ABI_SUCCESS;
}

int sl_connect(void *ctx, int dev, void *handle_memory, void **send_comm, struct abi_device_handle **device) {
    /* It need not be aligned. */
    struct handle handle;
    (void)ctx, (void)dev, (void)device;
    memcpy(&handle, handle_memory, sizeof handle);
    *send_comm = NULL;
    if (sl.forked) {
        return ABI_INTERNAL_ERROR;
    }
    if (handle.magic != MAGIC) {
        if (sl_fault("any-handle")) {
            return ABI_SUCCESS;
        }
        sl_log(ABI_LOG_WARN, "connect: the handle is of another plugin");
        return ABI_INVALID_ARGUMENT;
    }
    if (!handle.connecting) {
        handle.connecting = calloc(1, sizeof *handle.connecting);
        handle.connecting->comm = sl_comm_new(true, handle.sockets, handle.helpers);
        handle.connecting->fd = -1;
        handle.connecting->index = -1;
    }
    struct connecting *at = handle.connecting;
    int result = connects(&handle, at);
    bool complete = at->index == at->comm->sockets_count;
    if (result != ABI_SUCCESS) {
        sl_log(ABI_LOG_WARN, "connect: %s", strerror(errno));
        if (at->fd >= 0) {
            close(at->fd);
        }
        sl_close_comm(at->comm);
    } else if (complete) {
        *send_comm = at->comm;
    }
    if (result != ABI_SUCCESS || complete) {
        free(at);
        handle.connecting = NULL;
    }
    memcpy(handle_memory, &handle, sizeof handle);
    return result;
}

int sl_accept(void *listen_comm, void **recv_comm, struct abi_device_handle **device) {
    struct sl_listener *listener = listen_comm;
    (void)device;
    *recv_comm = NULL;
    if (sl.forked) {
        return ABI_INTERNAL_ERROR;
    }
    if (sl_fault("accept-waits")) {
        struct pollfd ready = {.fd = listener->fd, .events = POLLIN};
        poll(&ready, 1, -1);
    }
    if (!listener->comm) {
        listener->comm = sl_comm_new(false, sl.sockets, sl.helpers);
    }
    for (int i = 0; i < SL_STRANGERS_MAX; i++) {
        int *fd = &listener->strangers[i].fd;
        if (*fd < 0) {
            *fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
            listener->strangers[i].since_ns = now_ns();
        }
        if (*fd < 0) {
            continue;
        }
        struct sl_hello hello;
        ssize_t got = recv(*fd, &hello, sizeof hello, MSG_PEEK);
        bool whole = got == sizeof hello;
        if (whole && hello.magic == MAGIC && hello.connection == listener->connection) {
            listener->arrived += stranger_enters(listener, *fd);
            *fd = -1;
        } else if (whole || got == 0 || now_ns() - listener->strangers[i].since_ns > STRANGER_NS) {
            sl_log(ABI_LOG_WARN, "accept: a foreign connection is dropped");
            close(*fd);
            *fd = -1;
            if (sl_fault("strangers-are-fatal")) {
                return ABI_REMOTE_ERROR;
            }
        }
    }
    if (listener->arrived == listener->comm->sockets_count + 1) {
        *recv_comm = listener->comm;
        listener->comm = NULL;
        listener->arrived = 0;
    }
    return ABI_SUCCESS;
}

int sl_close_listen(void *listen_comm) {
    struct sl_listener *listener = listen_comm;
    if (!sl_fault("leaks-fds")) {
        close(listener->fd);
    }
    for (int i = 0; i < SL_STRANGERS_MAX; i++) {
        if (listener->strangers[i].fd >= 0) {
            close(listener->strangers[i].fd);
        }
    }
    if (listener->comm) {
        sl_close_comm(listener->comm);
    }
    free(listener);
    return ABI_SUCCESS;
}

/* Makes as many connections as possible without waiting. */
static int connects(const struct handle *handle, struct connecting *at) {
    for (; at->index < at->comm->sockets_count; at->index++) {
        struct sl_hello hello = {MAGIC, handle->connection, (uint32_t)(at->index + 1), 0};
        if (at->fd < 0) {
            at->fd = socket_new();
            if (at->fd < 0) {
                return ABI_SYSTEM_ERROR;
            }
            if (connect(at->fd, (const struct sockaddr *)&handle->address, sizeof handle->address) &&
                errno != EINPROGRESS) {
                return ABI_SYSTEM_ERROR;
            }
        }
        struct pollfd ready = {.fd = at->fd, .events = POLLOUT};
        if (poll(&ready, 1, 0) <= 0) {
            return ABI_SUCCESS;
        }
        if (send(at->fd, &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello) {
            return ABI_REMOTE_ERROR;
        }
        if (at->index < 0) {
            at->comm->control = at->fd;
        } else {
            at->comm->sockets[at->index] = at->fd;
        }
        at->fd = -1;
    }
    return ABI_SUCCESS;
}

static int socket_new(void) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1;
    if (fd >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    }
    return fd;
}

static bool stranger_enters(struct sl_listener *listener, int fd) {
    struct sl_hello hello;
    struct sl_comm *comm = listener->comm;
    int one = 1;
    if (recv(fd, &hello, sizeof hello, 0) != sizeof hello || hello.index > (uint32_t)comm->sockets_count) {
        close(fd);
        return false;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (hello.index == 0) {
        comm->control = fd;
    } else {
        comm->sockets[hello.index - 1] = fd;
    }
    return true;
}

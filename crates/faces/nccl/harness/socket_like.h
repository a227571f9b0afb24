/* "socket-like": what NCCL's own socket transport does, from its description: a control socket and threads times
 * sockets per connection, nothing moves but in test() of the oldest request and in helper threads, which see one
 * group of tasks to its end before the next.
 *
 * It is the baseline of measurements, and a plugin that passes all cases, so that a failure of another is not the
 * harness's. Each fault (SOCKET_LIKE_FAULT=name) makes it fail one, so that every case has been seen to fail. */
#ifndef SOCKET_LIKE_H
#define SOCKET_LIKE_H

#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "nccl_net_abi.h"

enum {
    SL_SOCKETS_MAX = 64,
    SL_HELPERS_MAX = 16,
    SL_INLINE_BYTES = 128,
    SL_TASK_BYTES_MIN = 64 << 10,
    SL_STRANGERS_MAX = 16,
    SL_ADDRESSES_MAX = 16,
};

struct sl_hello {
    uint64_t magic, connection;
    uint32_t index, unused;
};

/* A part of a message, on one socket. */
struct sl_task {
    char *data;
    size_t bytes, offset;
    int fd;
    bool sends;
    /* 0 under way, 1 done, 2 failed. */
    atomic_int state;
};

struct sl_comm;

struct sl_request {
    struct sl_comm *comm;
    bool used, has_head;
    char *data;
    size_t posted, bytes, offset;
    uint32_t head;
    struct sl_task tasks[SL_SOCKETS_MAX];
    int tasks_count;
};

struct sl_helper {
    struct sl_comm *comm;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct sl_task *queue[ABI_REQUESTS_MAX * SL_SOCKETS_MAX];
    unsigned first, last;
};

struct sl_comm {
    bool sends;
    int control, sockets[SL_SOCKETS_MAX];
    int sockets_count, helpers_count, next_socket, next_request;
    atomic_bool ends;
    struct sl_request requests[ABI_REQUESTS_MAX];
    struct sl_helper helpers[SL_HELPERS_MAX];
};

struct sl_listener {
    int fd;
    uint64_t connection;
    struct sl_comm *comm;
    int arrived;
    /* Accepted, but the peer has not identified itself yet. */
    struct {
        int fd;
        uint64_t since_ns;
    } strangers[SL_STRANGERS_MAX];
};

struct sl_settings {
    int helpers, sockets;
    /* A device listens at each of these. */
    struct in_addr addresses[SL_ADDRESSES_MAX];
    int addresses_count;
    abi_logger *logger;
    const char *fault;
    /* Set in the child of a fork: its copies of connections are the parent's. */
    bool forked;
};

extern struct sl_settings sl;

bool sl_fault(const char *name);
void sl_log(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));

struct sl_comm *sl_comm_new(bool sends, int sockets, int helpers);
int sl_close_comm(void *comm);

int sl_listen(void *ctx, int dev, void *handle, void **listen_comm);
int sl_connect(void *ctx, int dev, void *handle, void **send_comm, struct abi_device_handle **);
int sl_accept(void *listen_comm, void **recv_comm, struct abi_device_handle **);
int sl_close_listen(void *listen_comm);

int sl_isend(void *comm, void *data, size_t bytes, int tag, void *mhandle, void *phandle, void **request);
int sl_irecv(void *comm, int n, void **data, size_t *bytes, int *tags, void **mhandles, void **phandles,
             void **request);
int sl_test(void *request, int *done, int *bytes);

#endif

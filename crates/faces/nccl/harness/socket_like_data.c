/* Moving data: a request is a slot, and test() is what moves it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base.h"
#include "socket_like.h"

/* A count of messages, for faults that hit one of many. */
static atomic_uint received;
/* The blocked sender; with the fault set, all others wait for it. */
static _Atomic(struct sl_comm *) stuck;
/* Hide from the compiler that nobody needs it. */
static void *volatile leaked;

static void *helper_thread(void *helper);
static int request_new(struct sl_comm *, void *data, size_t bytes, void **request);
static int head_moves(struct sl_request *);
static void splits(struct sl_request *);
static void task_moves(struct sl_task *);
static ssize_t moves(int fd, bool sends, char *data, size_t bytes);
static int lost(void);
static void *late_writer(void *data);

struct sl_comm *sl_comm_new(bool sends, int sockets, int helpers) {
    struct sl_comm *comm = calloc(1, sizeof *comm);
    comm->sends = sends;
    comm->control = -1;
    comm->sockets_count = sockets;
    comm->helpers_count = helpers;
    for (int i = 0; i < SL_SOCKETS_MAX; i++) {
        comm->sockets[i] = -1;
    }
    for (int i = 0; i < SL_HELPERS_MAX; i++) {
        comm->helpers[i].comm = comm;
        pthread_mutex_init(&comm->helpers[i].lock, NULL);
        pthread_cond_init(&comm->helpers[i].changed, NULL);
    }
    return comm;
}

int sl_close_comm(void *memory) {
    struct sl_comm *comm = memory;
    atomic_store(&comm->ends, true);
    for (int i = 0; i < SL_HELPERS_MAX; i++) {
        struct sl_helper *helper = &comm->helpers[i];
        if (helper->started && !sl.forked) {
            pthread_mutex_lock(&helper->lock);
            pthread_cond_signal(&helper->changed);
            pthread_mutex_unlock(&helper->lock);
            pthread_join(helper->thread, NULL);
        }
    }
    for (int i = 0; sl_fault("writes-after-close") && !comm->sends && i < ABI_REQUESTS_MAX; i++) {
        if (comm->requests[i].used) {
            pthread_t thread;
            pthread_create(&thread, NULL, late_writer, comm->requests[i].data);
            pthread_detach(thread);
            break;
        }
    }
    for (int i = 0; sl_fault("close-waits") && i < ABI_REQUESTS_MAX; i++) {
        /* The oldest first: in another order the other end would find wrong bytes, which is another fault. */
        struct sl_request *request = &comm->requests[(comm->next_request + i) % ABI_REQUESTS_MAX];
        for (int done = 0; request->used && sl_test(request, &done, NULL) == ABI_SUCCESS && !done;) {
        }
    }
    if (sl_fault("leaks-threads")) {
        pthread_t thread;
        pthread_create(&thread, NULL, late_writer, NULL);
        pthread_detach(thread);
    }
    for (int i = 0; i < comm->sockets_count; i++) {
        if (comm->sockets[i] >= 0) {
            close(comm->sockets[i]);
        }
    }
    if (comm->control >= 0) {
        close(comm->control);
    }
    if (sl_fault("leaks-memory")) {
        leaked = memset(malloc(4 << 20), 1, 4 << 20);
    }
    /* Otherwise the compiler would notice the two faults below. */
    volatile struct sl_comm *volatile freed = comm;
    free(comm);
    if (sl_fault("reads-freed") && freed->control == 0) {
        sl_log(ABI_LOG_INFO, "nothing was there");
    }
    if (sl_fault("frees-twice")) {
        free((void *)freed);
    }
    return ABI_SUCCESS;
}

int sl_isend(void *comm, void *data, size_t bytes, int tag, void *mhandle, void *phandle, void **request) {
    (void)tag, (void)mhandle, (void)phandle;
    if (sl_fault("isend-sleeps")) {
        pause_us(300000);
    }
    for (uint64_t begun_ns = now_ns(); sl_fault("isend-computes") && now_ns() - begun_ns < 300000000;) {
    }
    return request_new(comm, data, bytes, request);
}

int sl_irecv(void *comm, int n, void **data, size_t *bytes, int *tags, void **mhandles, void **phandles,
             void **request) {
    (void)n, (void)tags, (void)mhandles, (void)phandles;
    if (sl_fault("keeps-the-sign") && *request == ABI_OPTIONAL_COMPLETION) {
        return ABI_SUCCESS;
    }
    return request_new(comm, data[0], bytes[0], request);
}

int sl_test(void *memory, int *done, int *bytes) {
    struct sl_request *request = memory;
    struct sl_comm *comm = request->comm;
    *done = 0;
    while (sl.forked && sl_fault("forks-wait")) {
        pause_us(1000000);
    }
    if (sl.forked) {
        return sl_fault("forks-hang") ? ABI_SUCCESS : ABI_INTERNAL_ERROR;
    }
    if (sl_fault("crashes") && request->bytes == 4096) {
        *(volatile int *)NULL = 1;
    }
    struct sl_comm *waits = atomic_load(&stuck);
    if (sl_fault("waits-for-all") && comm->sends && waits && waits != comm) {
        return ABI_SUCCESS;
    }
    if (!request->has_head) {
        int result = head_moves(request);
        if (result != ABI_SUCCESS || !request->has_head) {
            return result;
        }
        splits(request);
    }
    if (sl_fault("zero-hangs") && request->bytes == 0) {
        return ABI_SUCCESS;
    }
    if (comm->sockets_count == 0) {
        ssize_t moved = moves(comm->control, comm->sends, request->data + request->offset,
                              request->bytes - request->offset);
        if (moved < 0) {
            return lost();
        }
        request->offset += (size_t)moved;
        *done = request->offset == request->bytes;
        if (comm->sends && sl_fault("waits-for-all")) {
            atomic_store(&stuck, moved == 0 && !*done ? comm : NULL);
        }
    } else {
        *done = 1;
        for (int i = 0; i < request->tasks_count; i++) {
            int state = atomic_load_explicit(&request->tasks[i].state, memory_order_acquire);
            if (state == 2) {
                *done = 0;
                return lost();
            }
            *done &= state == 1;
        }
        /* Fault: reports the send as done while another thread still reads the data. */
        *done |= sl_fault("sends-early") && comm->sends;
    }
    if (!*done) {
        return ABI_SUCCESS;
    }
    if (bytes) {
        *bytes = (int)(sl_fault("wrong-size") ? request->posted : request->bytes);
    }
    if (!comm->sends) {
        unsigned number = atomic_fetch_add(&received, 1);
        if (sl_fault("flips-a-byte") && request->bytes > 0 && number % 8 == 5) {
            request->data[request->bytes / 2] ^= 1;
        }
        if (sl_fault("overruns") && number % 8 == 5) {
            request->data[request->posted] = 0;
        }
    }
    request->used = false;
    return ABI_SUCCESS;
}

static int request_new(struct sl_comm *comm, void *data, size_t bytes, void **request_to) {
    struct sl_request *request = &comm->requests[comm->next_request];
    if (sl.forked) {
        return sl_fault("forks-hang") ? (*request_to = request, ABI_SUCCESS) : ABI_INTERNAL_ERROR;
    }
    int outstanding = 0;
    for (int i = 0; sl.fault && i < ABI_REQUESTS_MAX; i++) {
        outstanding += comm->requests[i].used;
    }
    *request_to = NULL;
    if (sl_fault("full-is-an-error") && outstanding > 8) {
        return ABI_INTERNAL_ERROR;
    }
    if (request->used || (sl_fault("one-at-a-time") && outstanding > 0)) {
        return ABI_SUCCESS;
    }
    comm->next_request = (comm->next_request + 1) % ABI_REQUESTS_MAX;
    request->comm = comm;
    request->used = true;
    request->has_head = false;
    request->data = data;
    request->posted = request->bytes = bytes;
    request->offset = 0;
    request->head = (uint32_t)bytes;
    request->tasks_count = 0;
    *request_to = sl_fault("same-request") ? &comm->requests[0] : request;
    return ABI_SUCCESS;
}

/* The size, and as much as goes with it; `offset` counts its bytes until it is over. */
static int head_moves(struct sl_request *request) {
    struct sl_comm *comm = request->comm;
    size_t with = request->bytes < SL_INLINE_BYTES ? request->bytes : SL_INLINE_BYTES;
    size_t head = sizeof request->head, all = head + (comm->sends ? with : 0);
    struct iovec parts[2] = {{&request->head, head}, {request->data, with}};
    if (comm->sends && request->offset == 0) {
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
        ssize_t sent = sendmsg(comm->control, &message, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN && errno != EINTR) {
            return lost();
        }
        request->offset = sent < 0 ? 0 : (size_t)sent;
    }
    /* The rest of it, usually nothing. */
    while (request->offset < all && (!comm->sends || request->offset > 0)) {
        bool in_head = request->offset < head;
        char *at = in_head ? (char *)&request->head + request->offset : request->data + request->offset - head;
        ssize_t moved = moves(comm->control, comm->sends, at, (in_head ? head : all) - request->offset);
        if (moved < 0) {
            return lost();
        }
        if (moved == 0) {
            return ABI_SUCCESS;
        }
        request->offset += (size_t)moved;
    }
    if (request->offset < all) {
        return ABI_SUCCESS;
    }
    request->has_head = true;
    request->offset = comm->sends ? with : 0;
    if (!comm->sends) {
        request->bytes = request->head;
        if (request->bytes > request->posted) {
            sl_log(ABI_LOG_WARN, "a message of %zu bytes for a receive of %zu", request->bytes, request->posted);
            return ABI_INVALID_USAGE;
        }
    }
    return ABI_SUCCESS;
}

/* Static: each task has its socket before anybody knows which of them is fast. */
static void splits(struct sl_request *request) {
    struct sl_comm *comm = request->comm;
    if (comm->sockets_count == 0) {
        return;
    }
    if (!comm->sends && request->bytes > 0) {
        /* Data that came with the size is on the control socket and available at once. */
        size_t with = request->bytes < SL_INLINE_BYTES ? request->bytes : SL_INLINE_BYTES;
        while (request->offset < with) {
            ssize_t moved = moves(comm->control, false, request->data + request->offset, with - request->offset);
            if (moved < 0) {
                break;
            }
            request->offset += (size_t)moved;
        }
    }
    size_t share = (request->bytes + (size_t)comm->sockets_count - 1) / (size_t)comm->sockets_count;
    size_t most = share > SL_TASK_BYTES_MIN ? share : SL_TASK_BYTES_MIN;
    for (size_t at = request->offset; at < request->bytes; at += most) {
        struct sl_task *task = &request->tasks[request->tasks_count++];
        struct sl_helper *helper = &comm->helpers[comm->next_socket % comm->helpers_count];
        task->data = request->data + at;
        task->bytes = request->bytes - at < most ? request->bytes - at : most;
        task->offset = 0;
        task->fd = comm->sockets[comm->next_socket];
        task->sends = comm->sends;
        atomic_store(&task->state, 0);
        comm->next_socket = (comm->next_socket + 1) % comm->sockets_count;
        pthread_mutex_lock(&helper->lock);
        if (!helper->started) {
            helper->started = pthread_create(&helper->thread, NULL, helper_thread, helper) == 0;
        }
        helper->queue[helper->last++ % (ABI_REQUESTS_MAX * SL_SOCKETS_MAX)] = task;
        pthread_cond_signal(&helper->changed);
        pthread_mutex_unlock(&helper->lock);
    }
}

static void *helper_thread(void *memory) {
    struct sl_helper *helper = memory;
    struct sl_comm *comm = helper->comm;
    struct sl_task *group[SL_SOCKETS_MAX];
    int per_helper = comm->sockets_count / comm->helpers_count;
    for (;;) {
        int count = 0;
        pthread_mutex_lock(&helper->lock);
        while (helper->first == helper->last && !atomic_load(&comm->ends)) {
            pthread_cond_wait(&helper->changed, &helper->lock);
        }
        while (helper->first != helper->last && count < per_helper) {
            group[count++] = helper->queue[helper->first++ % (ABI_REQUESTS_MAX * SL_SOCKETS_MAX)];
        }
        pthread_mutex_unlock(&helper->lock);
        bool all_done;
        do {
            if (atomic_load_explicit(&comm->ends, memory_order_relaxed)) {
                return NULL;
            }
            all_done = true;
            for (int i = 0; i < count; i++) {
                if (atomic_load_explicit(&group[i]->state, memory_order_relaxed) == 0) {
                    task_moves(group[i]);
                    all_done &= atomic_load_explicit(&group[i]->state, memory_order_relaxed) != 0;
                }
            }
        } while (!all_done);
    }
}

static void task_moves(struct sl_task *task) {
    ssize_t moved = moves(task->fd, task->sends, task->data + task->offset, task->bytes - task->offset);
    if (moved < 0) {
        atomic_store_explicit(&task->state, sl_fault("deaf") ? 0 : 2, memory_order_release);
        return;
    }
    task->offset += (size_t)moved;
    if (task->offset == task->bytes) {
        atomic_store_explicit(&task->state, 1, memory_order_release);
    }
}

/* Bytes moved, 0 if none can be at the moment, -1 if the connection is gone. */
static ssize_t moves(int fd, bool sends, char *data, size_t bytes) {
    if (bytes == 0) {
        return 0;
    }
    ssize_t moved = sends ? send(fd, data, bytes, MSG_NOSIGNAL) : recv(fd, data, bytes, 0);
    if (moved < 0 && (errno == EAGAIN || errno == EINTR)) {
        return 0;
    }
    return moved == 0 ? -1 : moved;
}

static int lost(void) {
    if (sl_fault("deaf")) {
        return ABI_SUCCESS;
    }
    if (!sl_fault("mute")) {
        sl_log(ABI_LOG_WARN, "the connection was closed by the peer");
    }
    return ABI_REMOTE_ERROR;
}

static void *late_writer(void *data) {
    /* Again and again, as the buffer may be filled with its pattern late. */
    while (data) {
        pause_us(20000);
        *(volatile char *)data = 0;
    }
    pause_us(60000000);
    return NULL;
}

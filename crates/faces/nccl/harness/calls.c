/* A plugin between NCCL and another one, which notes when each call on a message began and how long it took.
 *
 *   NCCL_NET_PLUGIN=/…/libnccl-net-calls.so CALLS_LIBRARY=/…/libnccl-net-polyrail.so CALLS_OUT=/tmp/calls …
 *
 * Each process writes its last calls to CALLS_OUT.PID when it ends, one a line: the monotonic clock in ns, the
 * duration in ns, the call, the connection, and bytes. `../measure/net_calls.py` reads them. Version 11 of the
 * interface, which NCCL 2.28 and newer find. A call costs 0.1 us more. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base.h"
#include "nccl_net_abi.h"

enum { CALLS = 1 << 18, REQUESTS = 1 << 16 };

struct call {
    uint64_t at_ns;
    uint64_t duration_ns;
    const char *name;
    unsigned connection;
    uint64_t bytes;
};

/* A request is of one connection and direction until its address is used for another. */
struct request {
    _Atomic(void *) request;
    bool receives;
    unsigned connection;
};

__attribute__((visibility("default"))) struct abi_table_v11 ncclNetPlugin_v11;
static struct abi_table_v11 inner;
static struct call calls[CALLS];
static atomic_ulong call_count;
static struct request requests[REQUESTS];
static void *connections[1024];
static unsigned connection_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void note(const char *name, uint64_t begin_ns, unsigned connection, uint64_t bytes) {
    struct call *call = &calls[atomic_fetch_add(&call_count, 1) % CALLS];
    *call = (struct call){begin_ns, now_ns() - begin_ns, name, connection, bytes};
}

static unsigned number_of(void *comm) {
    pthread_mutex_lock(&lock);
    unsigned number = 0;
    while (number < connection_count && connections[number] != comm) {
        number++;
    }
    if (number == connection_count && connection_count < sizeof connections / sizeof *connections) {
        connections[connection_count++] = comm;
    }
    pthread_mutex_unlock(&lock);
    return number;
}

/* Where a request is noted, or a free place; NULL if there are too many. */
static struct request *place_of(void *request) {
    uint64_t first = mix((uintptr_t)request);
    for (uint64_t probe = 0; probe < REQUESTS; probe++) {
        struct request *place = &requests[(first + probe) % REQUESTS];
        void *known = atomic_load_explicit(&place->request, memory_order_acquire);
        if (!known || known == request) {
            return place;
        }
    }
    return NULL;
}

static unsigned remember(void *request, void *comm, bool receives) {
    unsigned connection = number_of(comm);
    pthread_mutex_lock(&lock);
    struct request *place = place_of(request);
    if (place) {
        place->receives = receives;
        place->connection = connection;
        atomic_store_explicit(&place->request, request, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    return connection;
}

static int watched_isend(void *comm, void *data, size_t bytes, int tag, void *mhandle, void *phandle, void **request) {
    uint64_t begin_ns = now_ns();
    int result = inner.isend(comm, data, bytes, tag, mhandle, phandle, request);
    if (result == ABI_SUCCESS && *request) {
        note("isend", begin_ns, remember(*request, comm, false), bytes);
    }
    return result;
}

static int watched_irecv(void *comm, int n, void **data, size_t *bytes, int *tags, void **mhandles, void **phandles,
                         void **request) {
    uint64_t begin_ns = now_ns();
    int result = inner.irecv(comm, n, data, bytes, tags, mhandles, phandles, request);
    if (result == ABI_SUCCESS && *request) {
        note("irecv", begin_ns, remember(*request, comm, true), bytes[0]);
    }
    return result;
}

static int watched_test(void *request, int *done, int *bytes) {
    int own[ABI_STEPS] = {0};
    int *sizes = bytes ? bytes : own;
    uint64_t begin_ns = now_ns();
    int result = inner.test(request, done, sizes);
    struct request *place = place_of(request);
    if (result == ABI_SUCCESS && place && atomic_load(&place->request) == request) {
        const char *name = place->receives ? (*done ? "received" : "receiving") : (*done ? "sent" : "sending");
        note(name, begin_ns, place->connection, *done && place->receives ? (uint64_t)sizes[0] : 0);
    }
    return result;
}

__attribute__((constructor)) static void begin(void) {
    const char *name = getenv("CALLS_LIBRARY");
    void *library = name ? dlopen(name, RTLD_NOW | RTLD_LOCAL) : NULL;
    struct abi_table_v11 *table = library ? dlsym(library, "ncclNetPlugin_v11") : NULL;
    if (!table) {
        fprintf(stderr, "calls: CALLS_LIBRARY=%s: %s\n", name ? name : "", name ? dlerror() : "is not set");
        exit(2);
    }
    inner = ncclNetPlugin_v11 = *table;
    ncclNetPlugin_v11.isend = watched_isend;
    ncclNetPlugin_v11.irecv = watched_irecv;
    ncclNetPlugin_v11.test = watched_test;
}

__attribute__((destructor)) static void end(void) {
    const char *out = getenv("CALLS_OUT");
    unsigned long count = atomic_load(&call_count);
    if (!out || !count) {
        return;
    }
    char path[4096];
    snprintf(path, sizeof path, "%s.%d", out, getpid());
    FILE *file = fopen(path, "we");
    if (!file) {
        fprintf(stderr, "calls: CALLS_OUT=%s: ", path);
        perror("");
        return;
    }
    for (unsigned long at = count > CALLS ? count - CALLS : 0; at < count; at++) {
        struct call *call = &calls[at % CALLS];
        fprintf(file, "%lu %lu %s %u %lu\n", call->at_ns, call->duration_ns, call->name, call->connection, call->bytes);
    }
    fclose(file);
}

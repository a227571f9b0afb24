/* The tables of all versions over one core, and all calls that move no data. */
#include <arpa/inet.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "socket_like.h"

#define EXPORTED __attribute__((visibility("default")))

struct sl_settings sl;

static char names[SL_ADDRESSES_MAX][16];

static int number_of(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

bool sl_fault(const char *name) {
    return sl.fault && strcmp(sl.fault, name) == 0;
}

void sl_log(int level, const char *format, ...) {
    char text[256];
    va_list arguments;
    if (!sl.logger) {
        return;
    }
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (sl_fault("logs-formats")) {
        sl.logger(level, 0x10, "socket_like", __LINE__, text);
        return;
    }
    sl.logger(level, 0x10, "socket_like", __LINE__, "%s", text);
}

/* From SOCKET_LIKE_ADDRESSES, which has commas between them; a bad one ends the list. */
static void takes_addresses(void) {
    char text[SL_ADDRESSES_MAX * INET_ADDRSTRLEN] = "127.0.0.1", *rest = NULL;
    const char *given = getenv("SOCKET_LIKE_ADDRESSES");
    if (given) {
        snprintf(text, sizeof text, "%s", given);
    }
    for (char *one = strtok_r(text, ",", &rest); one && sl.addresses_count < SL_ADDRESSES_MAX;
         one = strtok_r(NULL, ",", &rest)) {
        if (inet_pton(AF_INET, one, &sl.addresses[sl.addresses_count]) != 1) {
            break;
        }
        sl.addresses_count++;
    }
    for (int i = 0; i < SL_ADDRESSES_MAX; i++) {
        snprintf(names[i], sizeof names[i], "socket%d", i);
    }
}

static void forked(void) {
    sl.forked = true;
}

static void *spins(void *nothing) {
    static atomic_ulong turns;
    while (atomic_fetch_add(&turns, 1) < UINT64_MAX) {
    }
    return nothing;
}

static int init(abi_logger *logger) {
    static bool done;
    pthread_t thread;
    /* Communicators are made while others are in use. */
    if (done) {
        return ABI_SUCCESS;
    }
    done = true;
    sl.logger = logger;
    sl.fault = getenv("SOCKET_LIKE_FAULT");
    sl.helpers = number_of("SOCKET_LIKE_THREADS", 0);
    sl.sockets = sl.helpers * number_of("SOCKET_LIKE_SOCKETS", 0);
    takes_addresses();
    pthread_atfork(NULL, NULL, forked);
    if (sl_fault("spins") && pthread_create(&thread, NULL, spins, NULL) == 0) {
        pthread_detach(thread);
    }
    sl_log(ABI_LOG_INFO, "%d threads, %d sockets", sl.helpers, sl.sockets);
    return ABI_SUCCESS;
}

static int init_v10(abi_logger *logger, abi_profiler *profiler) {
    (void)profiler;
    return init(logger);
}

static int init_v11(void **ctx, uint64_t comm_id, struct abi_comm_config *config, abi_logger *logger,
                    abi_profiler *profiler) {
    (void)comm_id, (void)config, (void)profiler;
    *ctx = &sl;
    return init(logger);
}

static int devices(int *count) {
    if (sl.forked) {
        return ABI_INTERNAL_ERROR;
    }
    *count = sl_fault("same-name") ? 2 : number_of("SOCKET_LIKE_DEVICES", sl.addresses_count);
    return ABI_SUCCESS;
}

static int fill(int dev, struct abi_properties_v12 *to) {
    if (dev < 0 || dev >= SL_ADDRESSES_MAX || sl.forked) {
        return ABI_INVALID_ARGUMENT;
    }
    memset(to, 0, sizeof *to);
    to->name = sl_fault("new-strings") ? strdup(names[dev]) : names[sl_fault("same-name") ? 0 : dev];
    to->pci_path = NULL;
    to->guid = (uint64_t)dev;
    to->pointers = ABI_HOST;
    to->registers_globally = 0;
    to->speed = sl_fault("no-speed") ? 0 : 10000;
    to->port = 0;
    to->comms_max = 65536;
    to->receives_max = 1;
    to->virtual.count = 1;
    to->virtual.devices[0] = dev;
    to->p2p_bytes_max = sl_fault("no-p2p-bytes") ? 0 : (size_t)1 << 30;
    to->collective_bytes_max = (size_t)1 << 29;
    to->multi_requests_max = 1;
    to->rail = to->plane = -1;
    return ABI_SUCCESS;
}

#define COMMON(to, from)                                                                                       \
    ((to)->name = (from).name, (to)->pci_path = (from).pci_path, (to)->guid = (from).guid,                     \
     (to)->pointers = (from).pointers, (to)->speed = (from).speed, (to)->port = (from).port,                   \
     (to)->latency = (from).latency, (to)->comms_max = (from).comms_max, (to)->receives_max = (from).receives_max)

static int properties_v6(int dev, struct abi_properties_v6 *to) {
    struct abi_properties_v12 from;
    int result = fill(dev, &from);
    return result ? result : (COMMON(to, from), ABI_SUCCESS);
}

static int properties_v7(int dev, struct abi_properties_v7 *to) {
    struct abi_properties_v12 from;
    int result = fill(dev, &from);
    to->device_type = to->device_version = 0;
    return result ? result : (COMMON(to, from), ABI_SUCCESS);
}

static int properties_v8(int dev, struct abi_properties_v8 *to) {
    struct abi_properties_v12 from;
    int result = fill(dev, &from);
    to->device_type = to->device_version = to->registers_globally = 0;
    return result ? result : (COMMON(to, from), ABI_SUCCESS);
}

static int properties_v11(int dev, struct abi_properties_v11 *to) {
    struct abi_properties_v12 from;
    int result = fill(dev, &from);
    if (result) {
        return result;
    }
    COMMON(to, from);
    to->registers_globally = to->forces_flush = to->device_type = to->device_version = 0;
    to->virtual.count = 1;
    to->virtual.devices[0] = dev;
    to->p2p_bytes_max = from.p2p_bytes_max;
    to->collective_bytes_max = from.collective_bytes_max;
    to->multi_requests_max = 1;
    return ABI_SUCCESS;
}

static int properties_v9(int dev, struct abi_properties_v9 *to) {
    struct abi_properties_v11 longer;
    int result = properties_v11(dev, &longer);
    return result ? result : (memcpy(to, &longer, sizeof *to), ABI_SUCCESS);
}

static int listen_v6(int dev, void *handle, void **listen_comm) {
    return sl_listen(NULL, dev, handle, listen_comm);
}

static int connect_v6(int dev, void *handle, void **send_comm) {
    return sl_connect(NULL, dev, handle, send_comm, NULL);
}

static int connect_v7(int dev, void *handle, void **send_comm, struct abi_device_handle **device) {
    return sl_connect(NULL, dev, handle, send_comm, device);
}

static int connect_v10(int dev, struct abi_comm_config *config, void *handle, void **send_comm,
                       struct abi_device_handle **device) {
    (void)config;
    return sl_connect(NULL, dev, handle, send_comm, device);
}

static int accept_v6(void *listen_comm, void **recv_comm) {
    return sl_accept(listen_comm, recv_comm, NULL);
}

static int reg(void *comm, void *data, size_t bytes, int type, void **mhandle) {
    (void)comm, (void)data, (void)bytes;
    *mhandle = NULL;
    return sl.forked || (type != ABI_HOST && !sl_fault("registers-all")) ? ABI_INTERNAL_ERROR : ABI_SUCCESS;
}

static int reg_v6(void *comm, void *data, int bytes, int type, void **mhandle) {
    return reg(comm, data, (size_t)bytes, type, mhandle);
}

static int dereg(void *comm, void *mhandle) {
    (void)comm, (void)mhandle;
    return ABI_SUCCESS;
}

static int isend_v6(void *comm, void *data, int bytes, int tag, void *mhandle, void **request) {
    return sl_isend(comm, data, (size_t)bytes, tag, mhandle, NULL, request);
}

static int isend_v9(void *comm, void *data, size_t bytes, int tag, void *mhandle, void **request) {
    return sl_isend(comm, data, bytes, tag, mhandle, NULL, request);
}

static int irecv_v6(void *comm, int n, void **data, int *bytes, int *tags, void **mhandles, void **request) {
    size_t wide = (size_t)bytes[0];
    return sl_irecv(comm, n, data, &wide, tags, mhandles, NULL, request);
}

static int irecv_v9(void *comm, int n, void **data, size_t *bytes, int *tags, void **mhandles, void **request) {
    return sl_irecv(comm, n, data, bytes, tags, mhandles, NULL, request);
}

static int iflush(void *comm, int n, void **data, int *bytes, void **mhandles, void **request) {
    (void)comm, (void)n, (void)data, (void)bytes, (void)mhandles;
    *request = NULL;
    return ABI_SUCCESS;
}

static int finalize(void *ctx) {
    (void)ctx;
    return ABI_SUCCESS;
}

static int set_attributes(void *ctx, struct abi_attributes *attributes) {
    (void)ctx, (void)attributes;
    return ABI_SUCCESS;
}

/* What the tables have in common. */
#define TAIL                                                                                            \
    .reg_dmabuf = NULL, .dereg = dereg, .iflush = iflush, .test = sl_test, .close_send = sl_close_comm, \
    .close_recv = sl_close_comm, .close_listen = sl_close_listen
#define BEFORE_11 .name = "SocketLike", .devices = devices, .listen = listen_v6
#define SINCE_11                                                                                             \
    .name = "SocketLike", .devices = devices, .listen = sl_listen, .connect = sl_connect, .accept = sl_accept, \
    .init = init_v11, .reg = reg, .isend = sl_isend, .irecv = sl_irecv, .finalize = finalize,                \
    .set_attributes = set_attributes

EXPORTED const struct abi_table_v6 ncclNetPlugin_v6 = {
    BEFORE_11, TAIL, .init = init, .properties = properties_v6, .connect = connect_v6,
    .accept = accept_v6, .reg = reg_v6, .isend = isend_v6, .irecv = irecv_v6};
EXPORTED const struct abi_table_v7 ncclNetPlugin_v7 = {
    BEFORE_11, TAIL, .init = init, .properties = properties_v7, .connect = connect_v7,
    .accept = sl_accept, .reg = reg_v6, .isend = isend_v6, .irecv = irecv_v6};
EXPORTED const struct abi_table_v8 ncclNetPlugin_v8 = {
    BEFORE_11, TAIL, .init = init, .properties = properties_v8, .connect = connect_v7,
    .accept = sl_accept, .reg = reg, .isend = isend_v6, .irecv = irecv_v6};
EXPORTED const struct abi_table_v9 ncclNetPlugin_v9 = {
    BEFORE_11, TAIL, .init = init, .properties = properties_v9, .connect = connect_v7,
    .accept = sl_accept, .reg = reg, .isend = isend_v9, .irecv = irecv_v9};
EXPORTED const struct abi_table_v10 ncclNetPlugin_v10 = {
    BEFORE_11, TAIL, .init = init_v10, .properties = properties_v9, .connect = connect_v10,
    .accept = sl_accept, .reg = reg, .isend = sl_isend, .irecv = sl_irecv};
EXPORTED const struct abi_table_v11 ncclNetPlugin_v11 = {SINCE_11, TAIL, .properties = properties_v11};
EXPORTED const struct abi_table_v12 ncclNetPlugin_v12 = {SINCE_11, TAIL, .properties = fill};

#ifdef STRAY_SYMBOL
EXPORTED int socket_like_stray;
#endif

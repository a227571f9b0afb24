/* A net plugin whose connections stay within one process, for tests of those that host plugins. It does what
 * TEST_PLUGIN says, "function=what" with commas between them: a number is returned as an error, and the words are
 * below. Compiled with NO_TABLE it is no plugin, and with UNKNOWN_TABLE one of a version that nobody knows. */
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nccl_net_abi.h"

#ifndef NAME
#define NAME "Test"
#endif

#define EXPORTED __attribute__((visibility("default")))
#define CALL(name)               \
    do {                         \
        int code_ = fault(name); \
        if (code_) {             \
            return code_;        \
        }                        \
    } while (0)

static abi_logger *logger;

static bool says(const char *function, const char *what) {
    char text[512], wanted[64], *rest = NULL;
    const char *all = getenv("TEST_PLUGIN");
    snprintf(text, sizeof text, "%s", all ? all : "");
    snprintf(wanted, sizeof wanted, "%s=%s", function, what);
    for (char *one = strtok_r(text, ",", &rest); one; one = strtok_r(NULL, ",", &rest)) {
        if (strcmp(one, wanted) == 0) {
            return true;
        }
    }
    return false;
}

static int fault(const char *function);

/* What can happen at the end of the process. */
__attribute__((destructor)) static void ends(void) {
    fault("end");
}

/* What can happen in each function. */
static int fault(const char *function) {
    char number[2] = "1";
    if (says(function, "exit")) {
        exit(7);
    }
    if (says(function, "print")) {
        printf("hello from %s", function);
        fflush(stdout);
    }
    if (says(function, "crash")) {
        *(volatile int *)NULL = 1;
    }
    if (says(function, "abort")) {
        abort();
    }
    while (says(function, "hang")) {
        pause();
    }
    if (says(function, "stop")) {
        raise(SIGSTOP);
    }
    if (says(function, "unbound") && !getenv("NCCL_GPUDIRECTTCPX_TX_BINDINGS")) {
        return 3;
    }
    for (; number[0] <= '9'; number[0]++) {
        if (says(function, number)) {
            if (logger) {
                logger(ABI_LOG_WARN, 0x10, "plugin.c", __LINE__, "%s is told to fail with %s", function, number);
            }
            return number[0] - '0';
        }
    }
    return ABI_SUCCESS;
}

/* --- what a plugin leaves behind in its process ----------------------------------------------------------------- */

static void *idle(void *unused) {
    for (;;) {
        pause();
    }
    return unused;
}

static void handler(int signal) {
    (void)signal;
}

static void litters(const char *function) {
    if (says(function, "thread")) {
        pthread_t thread;
        cpu_set_t first;
        CPU_ZERO(&first);
        sched_getaffinity(0, sizeof first, &first);
        for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; cpu++) {
            if (CPU_ISSET(cpu, &first) && seen++) {
                CPU_CLR(cpu, &first);
            }
        }
        pthread_create(&thread, NULL, idle, NULL);
        pthread_setname_np(thread, "test-plugin-rx");
        pthread_setaffinity_np(thread, sizeof first, &first);
    }
    if (says(function, "handler")) {
        signal(SIGSEGV, handler);
        signal(SIGCHLD, SIG_IGN);
    }
    if (says(function, "env")) {
        setenv("TEST_PLUGIN_WAS", "here", 1);
        setenv("TEST_PLUGIN_KEEP", "changed", 1);
        unsetenv("TEST_PLUGIN_GONE");
    }
    if (says(function, "file")) {
        if (open("/dev/null", O_RDONLY | O_CLOEXEC) < 0) {
            abort();
        }
    }
}

/* --- devices ------------------------------------------------------------------------------------------------------ */

static int init_v6(abi_logger *log) {
    logger = log;
    litters("init");
    CALL("init");
    return ABI_SUCCESS;
}

static int init_v10(abi_logger *log, abi_profiler *profiler) {
    return profiler ? init_v6(log) : ABI_INVALID_ARGUMENT;
}

static int init_v11(void **ctx, uint64_t id, struct abi_comm_config *config, abi_logger *log, abi_profiler *profiler) {
    if (!id || !config || config->traffic_class != -1) {
        return ABI_INVALID_ARGUMENT;
    }
    *ctx = &logger;
    return init_v10(log, profiler);
}

static int device_count(void) {
    return says("devices", "none") ? 0 : says("devices", "negative") ? -1 : says("devices", "crowd") ? 65 :
        says("devices", "absurd") ? 2000000 : 2;
}

static int devices(int *count) {
    CALL("devices");
    *count = device_count();
    return ABI_SUCCESS;
}

static int properties_v12(int dev, struct abi_properties_v12 *to) {
    static char *const names[] = {"test0", "test1"};
    CALL("getProperties");
    if (dev < 0 || dev >= device_count()) {
        return ABI_INVALID_ARGUMENT;
    }
    *to = (struct abi_properties_v12){
        .name = says("getProperties", "no-name") ? NULL : says("getProperties", "same-name") ? names[0] : names[dev % 2],
        .pci_path = says("getProperties", "pci") ? "0000:zz" : NULL,
        .guid = 100 + (uint64_t)dev,
        .pointers = says("getProperties", "no-kind") ? 0 : says("getProperties", "kinds") ? 0x41 :
            says("getProperties", "cuda") ? ABI_HOST | 2 : says("getProperties", "dma-buf") ? ABI_HOST | 4 : ABI_HOST,
        .registers_globally = 1,
        .forces_flush = says("getProperties", "flush"),
        .speed = says("getProperties", "no-speed") ? 0 : 25000,
        .port = 1,
        .latency = says("getProperties", "latency") ? NAN : 12.5f,
        .comms_max = says("getProperties", "no-comms") ? 0 : 64,
        .receives_max = says("getProperties", "no-receives") ? 0 : 8,
        .device_type = says("getProperties", "type") ? 9 : ABI_DEVICE_HOST,
        .virtual = {1, {dev}},
        .p2p_bytes_max = says("getProperties", "no-bytes") ? 0 : 1 << 30,
        .collective_bytes_max = 1 << 30,
        .multi_requests_max = 1,
    };
    return ABI_SUCCESS;
}

/* Fields that are there since version 6, since 7, 8 and 9. */
#define SINCE_6(to, from)                                                                                             \
    (to)->name = (from).name, (to)->pci_path = (from).pci_path, (to)->guid = (from).guid,                             \
    (to)->pointers = (from).pointers, (to)->speed = (from).speed, (to)->port = (from).port,                           \
    (to)->latency = (from).latency, (to)->comms_max = (from).comms_max, (to)->receives_max = (from).receives_max
#define SINCE_7(to, from) \
    SINCE_6(to, from), (to)->device_type = (from).device_type, (to)->device_version = (from).device_version
#define SINCE_8(to, from) SINCE_7(to, from), (to)->registers_globally = (from).registers_globally
#define SINCE_9(to, from)                                                                                  \
    SINCE_8(to, from), (to)->forces_flush = (from).forces_flush, (to)->p2p_bytes_max = (from).p2p_bytes_max, \
    (to)->collective_bytes_max = (from).collective_bytes_max, (to)->virtual.count = 1,                     \
    (to)->virtual.devices[0] = (from).virtual.devices[0]
#define PROPERTIES(version, fields)                                                \
    static int properties_v##version(int dev, struct abi_properties_v##version *to) { \
        struct abi_properties_v12 from;                                            \
        int code = properties_v12(dev, &from);                                     \
        return code ? code : ((fields(to, from)), ABI_SUCCESS);                    \
    }
PROPERTIES(6, SINCE_6)
PROPERTIES(7, SINCE_7)
PROPERTIES(8, SINCE_8)
PROPERTIES(9, SINCE_9)
PROPERTIES(11, SINCE_9)

/* --- connections: two ends of a wire, all behind one lock ------------------------------------------------------------- */

enum { POSTED_MAX = 64, GROUP_MAX = 8 };

struct request {
    bool is_used, is_done, is_receive;
    int count, filled;
    char *data[GROUP_MAX];
    size_t bytes[GROUP_MAX], got[GROUP_MAX];
    int tags[GROUP_MAX];
    bool has[GROUP_MAX];
    struct wire *wire;
};

struct wire {
    int ends;
    struct request sends[POSTED_MAX], receives[POSTED_MAX];
    unsigned sent, received;
};

struct listener {
    struct wire *waiting[16];
    int count;
};

struct handle {
    uint64_t magic;
    struct listener *listener;
    pid_t process;
};

static const uint64_t MAGIC = 0x746573742d706c67;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int listen_v11(void *ctx, int dev, void *handle, void **listen_comm) {
    struct handle *to = handle;
    (void)ctx;
    litters("listen");
    CALL("listen");
    if (dev < 0 || dev >= device_count()) {
        return ABI_INVALID_ARGUMENT;
    }
    if (says("listen", "null")) {
        *listen_comm = NULL;
        return ABI_SUCCESS;
    }
    *to = (struct handle){MAGIC, calloc(1, sizeof(struct listener)), getpid()};
    *listen_comm = to->listener;
    return ABI_SUCCESS;
}

static int listen_v6(int dev, void *handle, void **listen_comm) {
    return listen_v11(NULL, dev, handle, listen_comm);
}

static int connect_v11(void *ctx, int dev, void *handle, void **send_comm, struct abi_device_handle **device) {
    struct handle *from = handle;
    (void)ctx, (void)dev, (void)device;
    CALL("connect");
    *send_comm = NULL;
    if (from->magic != MAGIC || from->process != getpid()) {
        return ABI_INVALID_ARGUMENT;
    }
    if (says("connect", "never")) {
        return ABI_SUCCESS;
    }
    struct wire *wire = calloc(1, sizeof *wire);
    wire->ends = 2;
    pthread_mutex_lock(&lock);
    from->listener->waiting[from->listener->count++] = wire;
    pthread_mutex_unlock(&lock);
    *send_comm = wire;
    return ABI_SUCCESS;
}

static int connect_v6(int dev, void *handle, void **send_comm) {
    return connect_v11(NULL, dev, handle, send_comm, NULL);
}

static int connect_v7(int dev, void *handle, void **send_comm, struct abi_device_handle **device) {
    return connect_v11(NULL, dev, handle, send_comm, device);
}

static int connect_v10(int dev, struct abi_comm_config *config, void *handle, void **send_comm,
                       struct abi_device_handle **device) {
    return config ? connect_v11(NULL, dev, handle, send_comm, device) : ABI_INVALID_ARGUMENT;
}

static int accept_v7(void *listen_comm, void **recv_comm, struct abi_device_handle **device) {
    struct listener *listener = listen_comm;
    CALL("accept");
    *recv_comm = NULL;
    if (device && *device) {
        return ABI_INVALID_ARGUMENT;
    }
    pthread_mutex_lock(&lock);
    if (listener->count && !says("accept", "never")) {
        *recv_comm = listener->waiting[--listener->count];
    }
    pthread_mutex_unlock(&lock);
    return ABI_SUCCESS;
}

static int accept_v6(void *listen_comm, void **recv_comm) {
    return accept_v7(listen_comm, recv_comm, NULL);
}

static int reg_v8(void *comm, void *data, size_t bytes, int type, void **mhandle) {
    CALL("regMr");
    (void)comm, (void)bytes;
    *mhandle = data;
    return type == ABI_HOST && data ? ABI_SUCCESS : ABI_INVALID_ARGUMENT;
}

static int reg_v6(void *comm, void *data, int bytes, int type, void **mhandle) {
    return reg_v8(comm, data, (size_t)bytes, type, mhandle);
}

static int reg_dmabuf(void *comm, void *data, size_t bytes, int type, uint64_t offset, int fd, void **mhandle) {
    (void)offset;
    return fd < 0 ? ABI_INVALID_ARGUMENT : reg_v8(comm, data, bytes, type, mhandle);
}

static int dereg(void *comm, void *mhandle) {
    (void)comm;
    CALL("deregMr");
    return mhandle ? ABI_SUCCESS : ABI_INVALID_ARGUMENT;
}

/* Gives a message to the first posted receive that has its tag. */
static bool deliver(struct wire *wire, struct request *message) {
    for (unsigned i = 0; i < wire->received; i++) {
        struct request *to = &wire->receives[i % POSTED_MAX];
        for (int part = 0; to->is_used && !to->is_done && part < to->count; part++) {
            if (to->has[part] || to->tags[part] != message->tags[0]) {
                continue;
            }
            memcpy(to->data[part], message->data[0], message->bytes[0]);
            if (says("test", "flip") && message->bytes[0]) {
                to->data[part][message->bytes[0] / 2] ^= 1;
            }
            to->got[part] = message->bytes[0];
            to->has[part] = true;
            to->is_done = ++to->filled == to->count;
            return true;
        }
    }
    return false;
}

static struct request *post(struct request *all, unsigned *number) {
    struct request *place = &all[*number % POSTED_MAX];
    if (place->is_used) {
        return NULL;
    }
    ++*number;
    *place = (struct request){.is_used = true};
    return place;
}

static int isend_v10(void *comm, void *data, size_t bytes, int tag, void *mhandle, void *phandle, void **request) {
    struct wire *wire = comm;
    (void)phandle;
    CALL("isend");
    *request = NULL;
    if (!mhandle || (char *)data < (char *)mhandle) {
        return ABI_INVALID_ARGUMENT;
    }
    if (says("isend", "full")) {
        return ABI_SUCCESS;
    }
    pthread_mutex_lock(&lock);
    struct request *message = post(wire->sends, &wire->sent);
    if (message) {
        message->count = 1, message->data[0] = data, message->bytes[0] = message->got[0] = bytes;
        message->tags[0] = tag, message->wire = wire;
        *request = message;
    }
    pthread_mutex_unlock(&lock);
    return ABI_SUCCESS;
}

static int isend_v9(void *comm, void *data, size_t bytes, int tag, void *mhandle, void **request) {
    return isend_v10(comm, data, bytes, tag, mhandle, NULL, request);
}

static int isend_v6(void *comm, void *data, int bytes, int tag, void *mhandle, void **request) {
    return isend_v10(comm, data, (size_t)bytes, tag, mhandle, NULL, request);
}

static int irecv_v10(void *comm, int n, void **data, size_t *bytes, int *tags, void **mhandles, void **phandles,
                     void **request) {
    struct wire *wire = comm;
    CALL("irecv");
    *request = NULL;
    if (n < 1 || n > GROUP_MAX || !phandles) {
        return ABI_INVALID_ARGUMENT;
    }
    if (says("irecv", "full")) {
        return ABI_SUCCESS;
    }
    pthread_mutex_lock(&lock);
    struct request *to = post(wire->receives, &wire->received);
    for (int part = 0; to && part < n; part++) {
        to->data[part] = data[part], to->bytes[part] = bytes[part], to->tags[part] = tags[part];
    }
    if (to) {
        to->count = n, to->is_receive = true, to->wire = wire;
        *request = mhandles[0] ? to : NULL;
    }
    pthread_mutex_unlock(&lock);
    return ABI_SUCCESS;
}

static int irecv_v9(void *comm, int n, void **data, size_t *bytes, int *tags, void **mhandles, void **request) {
    return irecv_v10(comm, n, data, bytes, tags, mhandles, mhandles, request);
}

static int irecv_v6(void *comm, int n, void **data, int *bytes, int *tags, void **mhandles, void **request) {
    size_t wide[GROUP_MAX] = {0};
    for (int part = 0; part < n && part < GROUP_MAX; part++) {
        wide[part] = (size_t)bytes[part];
    }
    return irecv_v9(comm, n, data, wide, tags, mhandles, request);
}

static int iflush(void *comm, int n, void **data, int *bytes, void **mhandles, void **request) {
    (void)comm, (void)n, (void)data, (void)bytes, (void)mhandles;
    CALL("iflush");
    *request = NULL;
    return ABI_SUCCESS;
}

static int test(void *request, int *done, int *bytes) {
    struct request *one = request;
    CALL("test");
    *done = 0;
    if (says("test", "never")) {
        return ABI_SUCCESS;
    }
    pthread_mutex_lock(&lock);
    if (!one->is_receive && !one->is_done) {
        one->is_done = deliver(one->wire, one);
    }
    if (one->is_done) {
        *done = 1;
        one->is_used = false;
        for (int part = 0; part < one->count && !says("test", "untold"); part++) {
            bytes[part] = (int)one->got[part] + (says("test", "long") ? 1 << 20 : 0);
        }
    }
    pthread_mutex_unlock(&lock);
    return ABI_SUCCESS;
}

static int consumed(void *comm, int n, void *request) {
    struct request *one = request;
    CALL("irecvConsumed");
    return one->wire == comm && one->is_receive && one->is_done && one->count == n ? ABI_SUCCESS : ABI_INVALID_USAGE;
}

static int leave(void *comm) {
    struct wire *wire = comm;
    pthread_mutex_lock(&lock);
    int left = --wire->ends;
    pthread_mutex_unlock(&lock);
    if (!left) {
        free(wire);
    }
    return ABI_SUCCESS;
}

static int close_send(void *comm) {
    CALL("closeSend");
    return leave(comm);
}

static int close_recv(void *comm) {
    CALL("closeRecv");
    return leave(comm);
}

static int close_listen(void *comm) {
    CALL("closeListen");
    free(comm);
    return ABI_SUCCESS;
}

static int finalize(void *ctx) {
    CALL("finalize");
    return ctx == &logger ? ABI_SUCCESS : ABI_INVALID_ARGUMENT;
}

static int set_attributes(void *ctx, struct abi_attributes *attributes) {
    (void)ctx, (void)attributes;
    return ABI_SUCCESS;
}

/* --- tables ------------------------------------------------------------------------------------------------------------ */

#define TAIL                                                                                                       \
    .name = NAME, .devices = devices, .dereg = dereg, .iflush = iflush, .test = test, .close_send = close_send, \
    .close_recv = close_recv, .close_listen = close_listen
#define BEFORE_11 TAIL, .listen = listen_v6
#define SINCE_11                                                                                                 \
    TAIL, .listen = listen_v11, .init = init_v11, .connect = connect_v11, .accept = accept_v7, .reg = reg_v8,       \
          .reg_dmabuf = reg_dmabuf, .isend = isend_v10, .irecv = irecv_v10, .finalize = finalize,                   \
          .set_attributes = set_attributes, .consumed = consumed

#ifdef UNKNOWN_TABLE
EXPORTED const char *const ncclNetPlugin_v13[] = {"Test"};
EXPORTED const char *const ncclNetPlugin_v4[] = {"Test"};
#elif !defined NO_TABLE
struct table_v5 {
    const char *name;
    abi_init_v6 *init;
    abi_devices_v6 *devices;
    int (*properties)(int dev, struct abi_properties_v6 *);
    abi_listen_v6 *listen;
    abi_connect_v6 *connect;
    abi_accept_v6 *accept;
    abi_reg_v6 *reg;
    abi_dereg_v6 *dereg;
    abi_isend_v6 *isend;
    abi_irecv_v6 *irecv;
    ABI_TABLE_TAIL;
};

EXPORTED const struct table_v5 ncclNetPlugin_v5 = {BEFORE_11, .init = init_v6, .properties = properties_v6,
    .connect = connect_v6, .accept = accept_v6, .reg = reg_v6, .isend = isend_v6, .irecv = irecv_v6};
EXPORTED const struct abi_table_v6 ncclNetPlugin_v6 = {BEFORE_11, .init = init_v6, .properties = properties_v6,
    .connect = connect_v6, .accept = accept_v6, .reg = reg_v6, .reg_dmabuf = reg_dmabuf, .isend = isend_v6,
    .irecv = irecv_v6};
EXPORTED const struct abi_table_v7 ncclNetPlugin_v7 = {BEFORE_11, .init = init_v6, .properties = properties_v7,
    .connect = connect_v7, .accept = accept_v7, .reg = reg_v6, .isend = isend_v6, .irecv = irecv_v6,
    .consumed = consumed};
EXPORTED const struct abi_table_v8 ncclNetPlugin_v8 = {BEFORE_11, .init = init_v6, .properties = properties_v8,
    .connect = connect_v7, .accept = accept_v7, .reg = reg_v8, .isend = isend_v6, .irecv = irecv_v6};
EXPORTED const struct abi_table_v9 ncclNetPlugin_v9 = {BEFORE_11, .init = init_v6, .properties = properties_v9,
    .connect = connect_v7, .accept = accept_v7, .reg = reg_v8, .isend = isend_v9, .irecv = irecv_v9};
EXPORTED const struct abi_table_v10 ncclNetPlugin_v10 = {BEFORE_11, .init = init_v10, .properties = properties_v9,
    .connect = connect_v10, .accept = accept_v7, .reg = reg_v8, .isend = isend_v10, .irecv = irecv_v10};
EXPORTED const struct abi_table_v11 ncclNetPlugin_v11 = {SINCE_11, .properties = properties_v11};
EXPORTED const struct abi_table_v12 ncclNetPlugin_v12 = {SINCE_11, .properties = properties_v12};
#endif

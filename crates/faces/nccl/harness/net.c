#include "net.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* The value that NCCL's shims use for versions without such a limit. */
static const size_t OLD_BYTES_MAX = (size_t)1 << 30;

/* Calls a function that all versions have in one form. */
#define SAME(net, function, ...)                                    \
    switch ((net)->abi) {                                           \
    case 6: return (net)->table.v6->function(__VA_ARGS__);          \
    case 7: return (net)->table.v7->function(__VA_ARGS__);          \
    case 8: return (net)->table.v8->function(__VA_ARGS__);          \
    case 9: return (net)->table.v9->function(__VA_ARGS__);          \
    case 10: return (net)->table.v10->function(__VA_ARGS__);        \
    case 11: return (net)->table.v11->function(__VA_ARGS__);        \
    default: return (net)->table.v12->function(__VA_ARGS__);        \
    }

static int no_profiler(void **event, int type, void *parent, int64_t plugin, void *data);

bool net_open(struct net *net, const char *path, int abi, char *why, size_t why_bytes) {
    char symbol[32];
    snprintf(symbol, sizeof symbol, "ncclNetPlugin_v%d", abi);
    net->abi = abi;
    net->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!net->library) {
        snprintf(why, why_bytes, "%s", dlerror());
        return false;
    }
    net->table.name = dlsym(net->library, symbol);
    if (!net->table.name) {
        snprintf(why, why_bytes, "%s has no symbol %s", path, symbol);
        dlclose(net->library);
        return false;
    }
    return true;
}

void net_builtin(struct net *net, const struct abi_table_v12 *table) {
    *net = (struct net){.abi = 12, .table.v12 = table};
}

void net_unload(struct net *net) {
    if (net->library) {
        dlclose(net->library);
    }
    net->library = NULL;
}

bool net_has_contexts(const struct net *net) {
    return net->abi >= 11;
}

int net_init(const struct net *net, void **ctx, uint64_t comm_id, abi_logger *logger) {
    struct abi_comm_config config = {.traffic_class = -1};
    *ctx = NULL;
    switch (net->abi) {
    case 6: return net->table.v6->init(logger);
    case 7: return net->table.v7->init(logger);
    case 8: return net->table.v8->init(logger);
    case 9: return net->table.v9->init(logger);
    case 10: return net->table.v10->init(logger, no_profiler);
    case 11: return net->table.v11->init(ctx, comm_id, &config, logger, no_profiler);
    default: return net->table.v12->init(ctx, comm_id, &config, logger, no_profiler);
    }
}

int net_devices(const struct net *net, int *count) {
    SAME(net, devices, count);
}

/* Fields that every version has. */
#define COPY_COMMON(to, from)                   \
    ((to)->name = (from).name,                  \
     (to)->pci_path = (from).pci_path,          \
     (to)->guid = (from).guid,                  \
     (to)->pointers = (from).pointers,          \
     (to)->speed = (from).speed,                \
     (to)->port = (from).port,                  \
     (to)->latency = (from).latency,            \
     (to)->comms_max = (from).comms_max,        \
     (to)->receives_max = (from).receives_max)

#define COPY_DEVICE(to, from) \
    ((to)->device_type = (from).device_type, (to)->device_version = (from).device_version)

#define COPY_SINCE_9(to, from)                                                                      \
    do {                                                                                            \
        COPY_COMMON(to, from);                                                                      \
        COPY_DEVICE(to, from);                                                                      \
        (to)->registers_globally = (from).registers_globally;                                       \
        (to)->forces_flush = (from).forces_flush;                                                   \
        (to)->virtual_count = (from).virtual.count;                                                 \
        memcpy((to)->virtual_devices, (from).virtual.devices, sizeof (from).virtual.devices);       \
        (to)->p2p_bytes_max = (from).p2p_bytes_max;                                                 \
        (to)->collective_bytes_max = (from).collective_bytes_max;                                   \
    } while (0)

/* Don't clear structs: fields that the plugin leaves out hold garbage, as they may with NCCL. */
#define ASK(version)                                        \
    struct abi_properties_v##version got;                   \
    memset(&got, 0x5a, sizeof got)

int net_get_properties(const struct net *net, int dev, struct net_properties *to) {
    int result;
    *to = (struct net_properties){
        .virtual_count = 1,
        .virtual_devices = {dev},
        .p2p_bytes_max = OLD_BYTES_MAX,
        .collective_bytes_max = OLD_BYTES_MAX,
        .multi_requests_max = 1,
        .rail = -1,
        .plane = -1,
    };
    if (net->abi == 6) {
        ASK(6);
        result = net->table.v6->properties(dev, &got);
        COPY_COMMON(to, got);
    } else if (net->abi == 7) {
        ASK(7);
        result = net->table.v7->properties(dev, &got);
        COPY_COMMON(to, got);
        COPY_DEVICE(to, got);
    } else if (net->abi == 8) {
        ASK(8);
        result = net->table.v8->properties(dev, &got);
        COPY_COMMON(to, got);
        COPY_DEVICE(to, got);
        to->registers_globally = got.registers_globally;
    } else if (net->abi <= 10) {
        ASK(9);
        result = net->abi == 9 ? net->table.v9->properties(dev, &got) : net->table.v10->properties(dev, &got);
        COPY_SINCE_9(to, got);
    } else if (net->abi == 11) {
        ASK(11);
        result = net->table.v11->properties(dev, &got);
        COPY_SINCE_9(to, got);
        to->multi_requests_max = got.multi_requests_max;
    } else {
        ASK(12);
        result = net->table.v12->properties(dev, &got);
        COPY_SINCE_9(to, got);
        to->multi_requests_max = got.multi_requests_max;
        to->rail = got.rail;
        to->plane = got.plane;
    }
    return result;
}

int net_listen(const struct net *net, void *ctx, int dev, void *handle, void **listen_comm) {
    switch (net->abi) {
    case 6: return net->table.v6->listen(dev, handle, listen_comm);
    case 7: return net->table.v7->listen(dev, handle, listen_comm);
    case 8: return net->table.v8->listen(dev, handle, listen_comm);
    case 9: return net->table.v9->listen(dev, handle, listen_comm);
    case 10: return net->table.v10->listen(dev, handle, listen_comm);
    case 11: return net->table.v11->listen(ctx, dev, handle, listen_comm);
    default: return net->table.v12->listen(ctx, dev, handle, listen_comm);
    }
}

int net_connect(const struct net *net, void *ctx, int dev, void *handle, void **send_comm) {
    /* Only accelerators have anything allocated for the device. */
    struct abi_device_handle *device = NULL;
    struct abi_comm_config config = {.traffic_class = -1};
    switch (net->abi) {
    case 6: return net->table.v6->connect(dev, handle, send_comm);
    case 7: return net->table.v7->connect(dev, handle, send_comm, &device);
    case 8: return net->table.v8->connect(dev, handle, send_comm, &device);
    case 9: return net->table.v9->connect(dev, handle, send_comm, &device);
    case 10: return net->table.v10->connect(dev, &config, handle, send_comm, &device);
    case 11: return net->table.v11->connect(ctx, dev, handle, send_comm, &device);
    default: return net->table.v12->connect(ctx, dev, handle, send_comm, &device);
    }
}

int net_accept(const struct net *net, void *listen_comm, void **recv_comm) {
    /* Only accelerators have anything allocated for the device. */
    struct abi_device_handle *device = NULL;
    switch (net->abi) {
    case 6: return net->table.v6->accept(listen_comm, recv_comm);
    case 7: return net->table.v7->accept(listen_comm, recv_comm, &device);
    case 8: return net->table.v8->accept(listen_comm, recv_comm, &device);
    case 9: return net->table.v9->accept(listen_comm, recv_comm, &device);
    case 10: return net->table.v10->accept(listen_comm, recv_comm, &device);
    case 11: return net->table.v11->accept(listen_comm, recv_comm, &device);
    default: return net->table.v12->accept(listen_comm, recv_comm, &device);
    }
}

int net_reg(const struct net *net, void *comm, void *data, size_t bytes, int type, void **mhandle) {
    switch (net->abi) {
    case 6: return net->table.v6->reg(comm, data, (int)bytes, type, mhandle);
    case 7: return net->table.v7->reg(comm, data, (int)bytes, type, mhandle);
    case 8: return net->table.v8->reg(comm, data, bytes, type, mhandle);
    case 9: return net->table.v9->reg(comm, data, bytes, type, mhandle);
    case 10: return net->table.v10->reg(comm, data, bytes, type, mhandle);
    case 11: return net->table.v11->reg(comm, data, bytes, type, mhandle);
    default: return net->table.v12->reg(comm, data, bytes, type, mhandle);
    }
}

int net_dereg(const struct net *net, void *comm, void *mhandle) {
    SAME(net, dereg, comm, mhandle);
}

int net_isend(const struct net *net, void *comm, void *data, size_t bytes, int tag, void *mhandle, void **request) {
    if (net->abi < 9) {
        *request = NULL;
    }
    switch (net->abi) {
    case 6: return net->table.v6->isend(comm, data, (int)bytes, tag, mhandle, request);
    case 7: return net->table.v7->isend(comm, data, (int)bytes, tag, mhandle, request);
    case 8: return net->table.v8->isend(comm, data, (int)bytes, tag, mhandle, request);
    case 9: return net->table.v9->isend(comm, data, bytes, tag, mhandle, request);
    case 10: return net->table.v10->isend(comm, data, bytes, tag, mhandle, NULL, request);
    case 11: return net->table.v11->isend(comm, data, bytes, tag, mhandle, NULL, request);
    default: return net->table.v12->isend(comm, data, bytes, tag, mhandle, NULL, request);
    }
}

int net_irecv(const struct net *net, void *comm, void *data, size_t bytes, int tag, void *mhandle, void **request) {
    int narrow = (int)bytes;
    void *phandle = NULL;
    if (net->abi < 9) {
        *request = NULL;
    }
    switch (net->abi) {
    case 6: return net->table.v6->irecv(comm, 1, &data, &narrow, &tag, &mhandle, request);
    case 7: return net->table.v7->irecv(comm, 1, &data, &narrow, &tag, &mhandle, request);
    case 8: return net->table.v8->irecv(comm, 1, &data, &narrow, &tag, &mhandle, request);
    case 9: return net->table.v9->irecv(comm, 1, &data, &bytes, &tag, &mhandle, request);
    case 10: return net->table.v10->irecv(comm, 1, &data, &bytes, &tag, &mhandle, &phandle, request);
    case 11: return net->table.v11->irecv(comm, 1, &data, &bytes, &tag, &mhandle, &phandle, request);
    default: return net->table.v12->irecv(comm, 1, &data, &bytes, &tag, &mhandle, &phandle, request);
    }
}

int net_iflush(const struct net *net, void *comm, void *data, int bytes, void *mhandle, void **request) {
    SAME(net, iflush, comm, 1, &data, &bytes, &mhandle, request);
}

int net_test(const struct net *net, void *request, int *done, int *bytes) {
    SAME(net, test, request, done, bytes);
}

bool net_has_consumed(const struct net *net) {
    switch (net->abi) {
    case 6: return false;
    case 7: return net->table.v7->consumed;
    case 8: return net->table.v8->consumed;
    case 9: return net->table.v9->consumed;
    case 10: return net->table.v10->consumed;
    case 11: return net->table.v11->consumed;
    default: return net->table.v12->consumed;
    }
}

int net_consumed(const struct net *net, void *comm, void *request) {
    switch (net->abi) {
    case 6: return ABI_SUCCESS;
    case 7: return net->table.v7->consumed(comm, 1, request);
    case 8: return net->table.v8->consumed(comm, 1, request);
    case 9: return net->table.v9->consumed(comm, 1, request);
    case 10: return net->table.v10->consumed(comm, 1, request);
    case 11: return net->table.v11->consumed(comm, 1, request);
    default: return net->table.v12->consumed(comm, 1, request);
    }
}

int net_close_send(const struct net *net, void *comm) {
    SAME(net, close_send, comm);
}

int net_close_recv(const struct net *net, void *comm) {
    SAME(net, close_recv, comm);
}

int net_close_listen(const struct net *net, void *comm) {
    SAME(net, close_listen, comm);
}

int net_set_attributes(const struct net *net, void *ctx, struct abi_attributes *attributes) {
    switch (net->abi) {
    case 11: return net->table.v11->set_attributes ? net->table.v11->set_attributes(ctx, attributes) : ABI_SUCCESS;
    case 12: return net->table.v12->set_attributes ? net->table.v12->set_attributes(ctx, attributes) : ABI_SUCCESS;
    default: return ABI_SUCCESS;
    }
}

int net_finalize(const struct net *net, void *ctx) {
    switch (net->abi) {
    case 11: return net->table.v11->finalize ? net->table.v11->finalize(ctx) : ABI_SUCCESS;
    case 12: return net->table.v12->finalize ? net->table.v12->finalize(ctx) : ABI_SUCCESS;
    default: return ABI_SUCCESS;
    }
}

static int no_profiler(void **event, int type, void *parent, int64_t plugin, void *data) {
    (void)event, (void)type, (void)parent, (void)plugin, (void)data;
    return ABI_SUCCESS;
}

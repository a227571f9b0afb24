/* One way to call a plugin of any version: what NCCL's shims do. */
#ifndef NET_H
#define NET_H

#include <stdbool.h>

#include "nccl_net_abi.h"

/* A loaded library and its table of one version. */
struct net {
    int abi;
    void *library;
    union {
        const char *const *name;
        const struct abi_table_v6 *v6;
        const struct abi_table_v7 *v7;
        const struct abi_table_v8 *v8;
        const struct abi_table_v9 *v9;
        const struct abi_table_v10 *v10;
        const struct abi_table_v11 *v11;
        const struct abi_table_v12 *v12;
    } table;
};

/* The newest properties, with what shims put where a version has no such field. */
struct net_properties {
    const char *name, *pci_path;
    uint64_t guid;
    int pointers, registers_globally, forces_flush, speed, port;
    float latency;
    int comms_max, receives_max, device_type, device_version, virtual_count, virtual_devices[8];
    size_t p2p_bytes_max, collective_bytes_max;
    int multi_requests_max, rail, plane;
};

/* Loads the library as NCCL does. On failure says why in `why` and returns false. */
bool net_open(struct net *, const char *path, int abi, char *why, size_t why_bytes);

/* A table that is linked in, of the newest version. */
void net_builtin(struct net *, const struct abi_table_v12 *);
void net_unload(struct net *);

/* Whether each communicator has a context of its own and ends with finalize. */
bool net_has_contexts(const struct net *);

int net_init(const struct net *, void **ctx, uint64_t comm_id, abi_logger *);
int net_devices(const struct net *, int *count);
int net_get_properties(const struct net *, int dev, struct net_properties *);
int net_listen(const struct net *, void *ctx, int dev, void *handle, void **listen_comm);
int net_connect(const struct net *, void *ctx, int dev, void *handle, void **send_comm);
int net_accept(const struct net *, void *listen_comm, void **recv_comm);
int net_reg(const struct net *, void *comm, void *data, size_t bytes, int type, void **mhandle);
int net_dereg(const struct net *, void *comm, void *mhandle);

/* `*request` is handed to the plugin as it is from version 9 on, and cleared before. */
int net_isend(const struct net *, void *comm, void *data, size_t bytes, int tag, void *mhandle, void **request);
int net_irecv(const struct net *, void *comm, void *data, size_t bytes, int tag, void *mhandle, void **request);
int net_iflush(const struct net *, void *comm, void *data, int bytes, void *mhandle, void **request);
int net_test(const struct net *, void *request, int *done, int *bytes);

/* To be called after each receive if the plugin has it; whether it has is in `net_has_consumed`. */
bool net_has_consumed(const struct net *);
int net_consumed(const struct net *, void *comm, void *request);

int net_close_send(const struct net *, void *comm);
int net_close_recv(const struct net *, void *comm);
int net_close_listen(const struct net *, void *comm);
int net_set_attributes(const struct net *, void *ctx, struct abi_attributes *);
int net_finalize(const struct net *, void *ctx);

#endif

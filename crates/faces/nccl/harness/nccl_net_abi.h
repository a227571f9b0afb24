/* The binary interface of NCCL's and RCCL's net plugins, versions 6 to 12, as far as a caller needs it.
 *
 * Written from the documented order, sizes and offsets, so that the harness has a second opinion on what the
 * plugin's own declarations say. A plugin exports `ncclNetPlugin_vN` as data: a name and then function pointers.
 * Every function returns an enum abi_result as int. */
#ifndef NCCL_NET_ABI_H
#define NCCL_NET_ABI_H

#include <stddef.h>
#include <stdint.h>

enum {
    ABI_OLDEST = 6,
    ABI_NEWEST = 12,
    /* Bytes of the handle that listen fills and connect is given. */
    ABI_HANDLE_BYTES = 128,
    /* Requests that the library may have outstanding per connection (8 until 2.18). */
    ABI_REQUESTS_MAX = 32,
    /* Steps of a connection's buffer: as many requests are outstanding at most in practice. */
    ABI_STEPS = 8,
};

enum abi_result {
    ABI_SUCCESS = 0,
    ABI_UNHANDLED_CUDA_ERROR = 1,
    ABI_SYSTEM_ERROR = 2,
    ABI_INTERNAL_ERROR = 3,
    ABI_INVALID_ARGUMENT = 4,
    ABI_INVALID_USAGE = 5,
    ABI_REMOTE_ERROR = 6,
    ABI_IN_PROGRESS = 7,
};

enum abi_log_level { ABI_LOG_VERSION = 1, ABI_LOG_WARN = 2, ABI_LOG_INFO = 3, ABI_LOG_ABORT = 4, ABI_LOG_TRACE = 5 };

enum abi_pointer { ABI_HOST = 1, ABI_CUDA = 2, ABI_DMABUF = 4 };

enum abi_device_type { ABI_DEVICE_HOST = 0, ABI_DEVICE_UNPACK = 1 };

/* What irecv (and in RCCL isend) may find in `*request` beforehand: the caller polls the data itself, so the plugin
 * may say early that the receive is done. */
#define ABI_OPTIONAL_COMPLETION ((void *)1)

#define ABI_MESSAGE_BYTES_MAX ((size_t)1 << 40)

typedef void abi_logger(int level, unsigned long subsystems, const char *file, int line, const char *format, ...);
typedef int abi_profiler(void **event, int type, void *parent, int64_t plugin, void *data);

struct abi_device_handle {
    int32_t type, version;
    void *handle;
    size_t size;
    int32_t needs_proxy_progress;
};

struct abi_comm_config {
    int32_t traffic_class;
};

struct abi_attributes {
    struct {
        int32_t peers_max, peers_min, flows_per_peer_max, flows_per_peer_min;
    } send, recv;
    uint32_t op, algorithm, protocol;
};

struct abi_virtual_v9 {
    int32_t count;
    int32_t devices[4];
};

struct abi_virtual_v12 {
    int32_t count;
    int32_t devices[8];
};

/* --- properties ------------------------------------------------------------------------------------------------ */

struct abi_properties_v6 {
    char *name, *pci_path;
    uint64_t guid;
    int32_t pointers, speed, port;
    float latency;
    int32_t comms_max, receives_max;
};

struct abi_properties_v7 {
    char *name, *pci_path;
    uint64_t guid;
    int32_t pointers, speed, port;
    float latency;
    int32_t comms_max, receives_max, device_type, device_version;
};

struct abi_properties_v8 {
    char *name, *pci_path;
    uint64_t guid;
    int32_t pointers, registers_globally, speed, port;
    float latency;
    int32_t comms_max, receives_max, device_type, device_version;
};

struct abi_properties_v9 {
    char *name, *pci_path;
    uint64_t guid;
    int32_t pointers, registers_globally, forces_flush, speed, port;
    float latency;
    int32_t comms_max, receives_max, device_type, device_version;
    struct abi_virtual_v9 virtual;
    size_t p2p_bytes_max, collective_bytes_max;
};

struct abi_properties_v11 {
    char *name, *pci_path;
    uint64_t guid;
    int32_t pointers, registers_globally, forces_flush, speed, port;
    float latency;
    int32_t comms_max, receives_max, device_type, device_version;
    struct abi_virtual_v9 virtual;
    size_t p2p_bytes_max, collective_bytes_max;
    int32_t multi_requests_max;
};

struct abi_properties_v12 {
    char *name, *pci_path;
    uint64_t guid;
    int32_t pointers, registers_globally, forces_flush, speed, port;
    float latency;
    int32_t comms_max, receives_max, device_type, device_version;
    struct abi_virtual_v12 virtual;
    size_t p2p_bytes_max, collective_bytes_max;
    int32_t multi_requests_max;
    int16_t rail, plane;
};

/* --- functions, each with the first version that has it in this form ---------------------------------------------- */

typedef int abi_init_v6(abi_logger *);
typedef int abi_init_v10(abi_logger *, abi_profiler *);
typedef int abi_init_v11(void **ctx, uint64_t comm_id, struct abi_comm_config *, abi_logger *, abi_profiler *);
typedef int abi_devices_v6(int *count);
typedef int abi_listen_v6(int dev, void *handle, void **listen_comm);
typedef int abi_listen_v11(void *ctx, int dev, void *handle, void **listen_comm);
typedef int abi_connect_v6(int dev, void *handle, void **send_comm);
typedef int abi_connect_v7(int dev, void *handle, void **send_comm, struct abi_device_handle **);
typedef int abi_connect_v10(int dev, struct abi_comm_config *, void *handle, void **, struct abi_device_handle **);
typedef int abi_connect_v11(void *ctx, int dev, void *handle, void **send_comm, struct abi_device_handle **);
typedef int abi_accept_v6(void *listen_comm, void **recv_comm);
typedef int abi_accept_v7(void *listen_comm, void **recv_comm, struct abi_device_handle **);
typedef int abi_reg_v6(void *comm, void *data, int bytes, int type, void **mhandle);
typedef int abi_reg_v8(void *comm, void *data, size_t bytes, int type, void **mhandle);
typedef int abi_reg_dmabuf_v6(void *comm, void *data, size_t bytes, int type, uint64_t offset, int fd, void **mhandle);
typedef int abi_dereg_v6(void *comm, void *mhandle);
typedef int abi_isend_v6(void *comm, void *data, int bytes, int tag, void *mhandle, void **request);
typedef int abi_isend_v9(void *comm, void *data, size_t bytes, int tag, void *mhandle, void **request);
typedef int abi_isend_v10(void *comm, void *data, size_t bytes, int tag, void *mhandle, void *phandle, void **request);
typedef int abi_irecv_v6(void *comm, int n, void **data, int *bytes, int *tags, void **mhandles, void **request);
typedef int abi_irecv_v9(void *comm, int n, void **data, size_t *bytes, int *tags, void **mhandles, void **request);
typedef int abi_irecv_v10(void *comm, int n, void **data, size_t *bytes, int *tags, void **mhandles, void **phandles,
                          void **request);
typedef int abi_iflush_v6(void *comm, int n, void **data, int *bytes, void **mhandles, void **request);
typedef int abi_test_v6(void *request, int *done, int *bytes);
typedef int abi_close_v6(void *comm);
typedef int abi_device_mr_v7(void *comm, void *mhandle, void **device_pointer);
typedef int abi_consumed_v7(void *comm, int n, void *request);
typedef int abi_virtual_device_v9(int *dev, struct abi_virtual_v9 *);
typedef int abi_virtual_device_v12(int *dev, struct abi_virtual_v12 *);
typedef int abi_finalize_v11(void *ctx);
typedef int abi_set_attributes_v11(void *ctx, struct abi_attributes *);

/* --- tables ----------------------------------------------------------------------------------------------------- */

/* The end of every table, which never changed. */
#define ABI_TABLE_TAIL           \
    abi_iflush_v6 *iflush;       \
    abi_test_v6 *test;           \
    abi_close_v6 *close_send;    \
    abi_close_v6 *close_recv;    \
    abi_close_v6 *close_listen

struct abi_table_v6 {
    const char *name;
    abi_init_v6 *init;
    abi_devices_v6 *devices;
    int (*properties)(int dev, struct abi_properties_v6 *);
    abi_listen_v6 *listen;
    abi_connect_v6 *connect;
    abi_accept_v6 *accept;
    abi_reg_v6 *reg;
    abi_reg_dmabuf_v6 *reg_dmabuf;
    abi_dereg_v6 *dereg;
    abi_isend_v6 *isend;
    abi_irecv_v6 *irecv;
    ABI_TABLE_TAIL;
};

struct abi_table_v7 {
    const char *name;
    abi_init_v6 *init;
    abi_devices_v6 *devices;
    int (*properties)(int dev, struct abi_properties_v7 *);
    abi_listen_v6 *listen;
    abi_connect_v7 *connect;
    abi_accept_v7 *accept;
    abi_reg_v6 *reg;
    abi_reg_dmabuf_v6 *reg_dmabuf;
    abi_dereg_v6 *dereg;
    abi_isend_v6 *isend;
    abi_irecv_v6 *irecv;
    ABI_TABLE_TAIL;
    abi_device_mr_v7 *device_mr;
    abi_consumed_v7 *consumed;
};

struct abi_table_v8 {
    const char *name;
    abi_init_v6 *init;
    abi_devices_v6 *devices;
    int (*properties)(int dev, struct abi_properties_v8 *);
    abi_listen_v6 *listen;
    abi_connect_v7 *connect;
    abi_accept_v7 *accept;
    abi_reg_v8 *reg;
    abi_reg_dmabuf_v6 *reg_dmabuf;
    abi_dereg_v6 *dereg;
    abi_isend_v6 *isend;
    abi_irecv_v6 *irecv;
    ABI_TABLE_TAIL;
    abi_device_mr_v7 *device_mr;
    abi_consumed_v7 *consumed;
};

struct abi_table_v9 {
    const char *name;
    abi_init_v6 *init;
    abi_devices_v6 *devices;
    int (*properties)(int dev, struct abi_properties_v9 *);
    abi_listen_v6 *listen;
    abi_connect_v7 *connect;
    abi_accept_v7 *accept;
    abi_reg_v8 *reg;
    abi_reg_dmabuf_v6 *reg_dmabuf;
    abi_dereg_v6 *dereg;
    abi_isend_v9 *isend;
    abi_irecv_v9 *irecv;
    ABI_TABLE_TAIL;
    abi_device_mr_v7 *device_mr;
    abi_consumed_v7 *consumed;
    abi_virtual_device_v9 *virtual_device;
};

struct abi_table_v10 {
    const char *name;
    abi_init_v10 *init;
    abi_devices_v6 *devices;
    int (*properties)(int dev, struct abi_properties_v9 *);
    abi_listen_v6 *listen;
    abi_connect_v10 *connect;
    abi_accept_v7 *accept;
    abi_reg_v8 *reg;
    abi_reg_dmabuf_v6 *reg_dmabuf;
    abi_dereg_v6 *dereg;
    abi_isend_v10 *isend;
    abi_irecv_v10 *irecv;
    ABI_TABLE_TAIL;
    abi_device_mr_v7 *device_mr;
    abi_consumed_v7 *consumed;
    abi_virtual_device_v9 *virtual_device;
};

struct abi_table_v11 {
    const char *name;
    abi_init_v11 *init;
    abi_devices_v6 *devices;
    int (*properties)(int dev, struct abi_properties_v11 *);
    abi_listen_v11 *listen;
    abi_connect_v11 *connect;
    abi_accept_v7 *accept;
    abi_reg_v8 *reg;
    abi_reg_dmabuf_v6 *reg_dmabuf;
    abi_dereg_v6 *dereg;
    abi_isend_v10 *isend;
    abi_irecv_v10 *irecv;
    ABI_TABLE_TAIL;
    abi_device_mr_v7 *device_mr;
    abi_consumed_v7 *consumed;
    abi_virtual_device_v9 *virtual_device;
    abi_finalize_v11 *finalize;
    abi_set_attributes_v11 *set_attributes;
};

struct abi_table_v12 {
    const char *name;
    abi_init_v11 *init;
    abi_devices_v6 *devices;
    int (*properties)(int dev, struct abi_properties_v12 *);
    abi_listen_v11 *listen;
    abi_connect_v11 *connect;
    abi_accept_v7 *accept;
    abi_reg_v8 *reg;
    abi_reg_dmabuf_v6 *reg_dmabuf;
    abi_dereg_v6 *dereg;
    abi_isend_v10 *isend;
    abi_irecv_v10 *irecv;
    ABI_TABLE_TAIL;
    abi_device_mr_v7 *device_mr;
    abi_consumed_v7 *consumed;
    abi_virtual_device_v12 *virtual_device;
    abi_finalize_v11 *finalize;
    abi_set_attributes_v11 *set_attributes;
};

#endif

/* Sizes and offsets of every version, which the compiler checks: a field moved by four bytes would be read as
 * nonsense by a library of another version, and no test of data would find out. */
#include "nccl_net_abi.h"

#define AT(version, field, offset)                                              \
    _Static_assert(offsetof(struct abi_properties_v##version, field) == offset, \
                   "v" #version ": " #field " must be at " #offset)
#define SIZE(type, bytes) _Static_assert(sizeof(struct type) == (bytes), #type " must have " #bytes " bytes")

_Static_assert(sizeof(void *) == 8 && sizeof(size_t) == 8, "the plugin interface is one of 64-bit Linux");

SIZE(abi_properties_v6, 48);
AT(6, name, 0);
AT(6, pci_path, 8);
AT(6, guid, 16);
AT(6, pointers, 24);
AT(6, speed, 28);
AT(6, port, 32);
AT(6, latency, 36);
AT(6, comms_max, 40);
AT(6, receives_max, 44);

SIZE(abi_properties_v7, 56);
AT(7, name, 0);
AT(7, pci_path, 8);
AT(7, guid, 16);
AT(7, pointers, 24);
AT(7, speed, 28);
AT(7, port, 32);
AT(7, latency, 36);
AT(7, comms_max, 40);
AT(7, receives_max, 44);
AT(7, device_type, 48);
AT(7, device_version, 52);

SIZE(abi_properties_v8, 64);
AT(8, name, 0);
AT(8, pci_path, 8);
AT(8, guid, 16);
AT(8, pointers, 24);
AT(8, registers_globally, 28);
AT(8, speed, 32);
AT(8, port, 36);
AT(8, latency, 40);
AT(8, comms_max, 44);
AT(8, receives_max, 48);
AT(8, device_type, 52);
AT(8, device_version, 56);

/* From version 9 on the start is the same. */
#define COMMON_SINCE_9(version)           \
    AT(version, name, 0);                 \
    AT(version, pci_path, 8);             \
    AT(version, guid, 16);                \
    AT(version, pointers, 24);            \
    AT(version, registers_globally, 28);  \
    AT(version, forces_flush, 32);        \
    AT(version, speed, 36);               \
    AT(version, port, 40);                \
    AT(version, latency, 44);             \
    AT(version, comms_max, 48);           \
    AT(version, receives_max, 52);        \
    AT(version, device_type, 56);         \
    AT(version, device_version, 60);      \
    AT(version, virtual, 64)

SIZE(abi_properties_v9, 104);
COMMON_SINCE_9(9);
AT(9, p2p_bytes_max, 88);
AT(9, collective_bytes_max, 96);

SIZE(abi_properties_v11, 112);
COMMON_SINCE_9(11);
AT(11, p2p_bytes_max, 88);
AT(11, collective_bytes_max, 96);
AT(11, multi_requests_max, 104);

SIZE(abi_properties_v12, 128);
COMMON_SINCE_9(12);
AT(12, p2p_bytes_max, 104);
AT(12, collective_bytes_max, 112);
AT(12, multi_requests_max, 120);
AT(12, rail, 124);
AT(12, plane, 126);

SIZE(abi_virtual_v9, 20);
SIZE(abi_virtual_v12, 36);
SIZE(abi_device_handle, 32);
SIZE(abi_comm_config, 4);
SIZE(abi_attributes, 44);

SIZE(abi_table_v6, 17 * 8);
SIZE(abi_table_v7, 19 * 8);
SIZE(abi_table_v8, 19 * 8);
SIZE(abi_table_v9, 20 * 8);
SIZE(abi_table_v10, 20 * 8);
SIZE(abi_table_v11, 22 * 8);
SIZE(abi_table_v12, 22 * 8);

/* The place of every function is its number in the interface; the name is word 0. */
#define WORD(version, field, word) \
    _Static_assert(offsetof(struct abi_table_v##version, field) == (word) * 8, "v" #version ": " #field " is word " #word)
#define WORDS_OF_ALL(version)     \
    WORD(version, init, 1);       \
    WORD(version, devices, 2);    \
    WORD(version, properties, 3); \
    WORD(version, listen, 4);     \
    WORD(version, connect, 5);    \
    WORD(version, accept, 6);     \
    WORD(version, reg, 7);        \
    WORD(version, reg_dmabuf, 8); \
    WORD(version, dereg, 9);      \
    WORD(version, isend, 10);     \
    WORD(version, irecv, 11);     \
    WORD(version, iflush, 12);    \
    WORD(version, test, 13);      \
    WORD(version, close_send, 14);\
    WORD(version, close_recv, 15);\
    WORD(version, close_listen, 16)
#define WORDS_SINCE_7(version)    \
    WORDS_OF_ALL(version);        \
    WORD(version, device_mr, 17); \
    WORD(version, consumed, 18)
#define WORDS_SINCE_9(version) \
    WORDS_SINCE_7(version);    \
    WORD(version, virtual_device, 19)
#define WORDS_SINCE_11(version)  \
    WORDS_SINCE_9(version);      \
    WORD(version, finalize, 20); \
    WORD(version, set_attributes, 21)

WORDS_OF_ALL(6);
WORDS_SINCE_7(7);
WORDS_SINCE_7(8);
WORDS_SINCE_9(9);
WORDS_SINCE_9(10);
WORDS_SINCE_11(11);
WORDS_SINCE_11(12);

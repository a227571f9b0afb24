/*
 * Polyrail for C: moves memory between processes and machines over every network interface at once.
 *
 * Made by cbindgen of the crate polyrail-capi. docs/c.md has examples, and says how to link.
 *
 * Results. Calls return 0 (POLYRAIL_OK), a positive number where nothing is wrong but nothing was done
 * either (POLYRAIL_PENDING, POLYRAIL_BUSY), or a negative one for an error. polyrail_last_error() has its
 * text. Unless a call returns POLYRAIL_OK, it has written nothing to where its results go.
 *
 * Handles. `polyrail_engine *` and its like are numbers that the library looks up, and no addresses: don't
 * look into them, and compare them with NULL only. A handle that was closed, that is of another kind, or
 * that never was one is refused with POLYRAIL_ERR_HANDLE. Every handle that a call hands out is to be closed
 * by its own call; closing NULL does nothing.
 *
 * Threads. Every call may be made by any thread, also with a handle that others use or close just now: a
 * call that has begun ends as if it had come first. Callbacks don't exist.
 *
 * Pointers. What is handed in is read during the call only, but for memory that is registered. Texts are
 * UTF-8 and end with a zero byte. Texts that are returned as `const char *` belong to the library. What a
 * call fills in as polyrail_bytes belongs to the program, which frees it with polyrail_bytes_free().
 *
 * Structures with a field `size` grow with the versions of the library. Set it to sizeof the structure,
 * and the rest to 0 first; the functions at the end of this file do that.
 *
 * Times are in nanoseconds. 0 is a look that does not wait, POLYRAIL_FOREVER waits however long it takes.
 *
 * After fork() handles are refused in the child with POLYRAIL_ERR_FORKED. It may open engines of its own.
 */


#ifndef POLYRAIL_H
#define POLYRAIL_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

// In polyrail_engine_options.flags: leaves the environment alone. Otherwise POLYRAIL_RAILS and its like are read.
#define POLYRAIL_IGNORE_ENVIRONMENT 1

// In polyrail_engine_options.admission: everybody may come who proves that it may connect (setting `auth`).
#define POLYRAIL_ADMIT_ALL 0

// In polyrail_engine_options.admission: nobody becomes a peer who is not added here.
#define POLYRAIL_ADMIT_NONE 1

// In polyrail_engine_options.admission: polyrail_engine_next_incoming() has who wants to join.
#define POLYRAIL_ADMIT_ASK 2

// In polyrail_memory.kind: memory of this process, by pointer.
#define POLYRAIL_HOST 0

// In polyrail_memory.kind: memory of an NVIDIA GPU, by any device pointer that CUDA knows.
#define POLYRAIL_CUDA 1

// In polyrail_memory.access: peers may read it.
#define POLYRAIL_REMOTE_READ 1

// In polyrail_memory.access: peers may write it.
#define POLYRAIL_REMOTE_WRITE 2

// In polyrail_request.operation: bytes from here into the peer's memory.
#define POLYRAIL_WRITE 1

// In polyrail_request.operation: bytes from the peer's memory to here.
#define POLYRAIL_READ 2

// In polyrail_request.operation: a message for the peer's oldest receive of the same tag. It waits for that.
#define POLYRAIL_SEND 3

// In polyrail_request.operation: room for a message of a tag. At most 1024 segments after merging.
#define POLYRAIL_RECEIVE 4

// Counts the versions of this header that have something more.
#define POLYRAIL_ABI_VERSION 2

// In place of a time in nanoseconds: however long it takes.
#define POLYRAIL_FOREVER UINT64_MAX

// What calls return as an `int`: 0; a positive number where nothing is wrong, but nothing was done
// either; a negative one for an error, which has changed nothing. Numbers keep their meaning in all
// versions, and later ones may have more.
typedef enum {
  // Done.
  POLYRAIL_OK = 0,
  // Not yet: ask again, or wait longer.
  POLYRAIL_PENDING = 1,
  // As many operations are outstanding as the setting `ops_pool` allows: post again when one is over.
  POLYRAIL_BUSY = 2,
  // An argument is not one that is allowed; the text names it, its value and what is allowed.
  POLYRAIL_ERR_ARGUMENT = -1,
  // What is passed as a handle is none, is one of another kind, or was closed.
  POLYRAIL_ERR_HANDLE = -2,
  // A setting has a name or a value that is not allowed.
  POLYRAIL_ERR_CONFIG = -3,
  // The system refused something, or a file can't be used.
  POLYRAIL_ERR_SYSTEM = -4,
  // Bytes are not what they should be: metadata of an engine, an invitation, a key of a region.
  POLYRAIL_ERR_FORMAT = -5,
  // Nobody could be connected to.
  POLYRAIL_ERR_CONNECT = -6,
  // A range is not inside a region.
  POLYRAIL_ERR_RANGE = -7,
  // A GPU, or its driver, is missing or did not do what was asked.
  POLYRAIL_ERR_DEVICE = -8,
  // A region or a peer belongs to another engine than the one that is asked.
  POLYRAIL_ERR_FOREIGN = -9,
  // Something has reached its limit.
  POLYRAIL_ERR_LIMIT = -10,
  // The peer is gone, or the engine of the transfer was closed.
  POLYRAIL_ERR_PEER_LOST = -11,
  // A region of the request was closed.
  POLYRAIL_ERR_REGION_CLOSED = -12,
  // The transfer was cancelled here.
  POLYRAIL_ERR_CANCELLED = -13,
  // The deadline of the transfer has passed.
  POLYRAIL_ERR_DEADLINE = -14,
  // The peer refused: a region is closed there, or may not be used like this. Or a group has refused this engine.
  POLYRAIL_ERR_REFUSED = -15,
  // A message is longer than the receive that it met.
  POLYRAIL_ERR_TOO_LONG = -16,
  // The engine is closed.
  POLYRAIL_ERR_CLOSED = -17,
  // The handle belongs to the process that this one was forked from.
  POLYRAIL_ERR_FORKED = -18,
  // A fault of the library; it goes on, and the call may have done a part of its work.
  POLYRAIL_ERR_PANIC = -19,
  // Something else, of which the text tells.
  POLYRAIL_ERR_OTHER = -20,
} polyrail_status;

// An attempt to connect.
typedef struct polyrail_connecting polyrail_connecting;

// An engine: what one process, or a part of one, moves memory with. It may be used by several threads
// at a time.
typedef struct polyrail_engine polyrail_engine;

// A descriptor that tells of events.
typedef struct polyrail_events polyrail_events;

// The membership of an engine in a group.
typedef struct polyrail_group polyrail_group;

// A peer that wants to join. It waits for polyrail_incoming_accept() or polyrail_incoming_refuse().
typedef struct polyrail_incoming polyrail_incoming;

// A remote engine, as one engine knows it. Several handles may stand for the same peer:
// polyrail_peer_describe() has its instance, by which peers are compared.
typedef struct polyrail_peer polyrail_peer;

// A request that was checked and cut into chunks. It may be posted by several threads at a time, also while
// earlier posts of it are under way.
typedef struct polyrail_prepared polyrail_prepared;

// Memory that an engine may send from and receive into. It may be used by several threads at a time.
typedef struct polyrail_region polyrail_region;

// A peer's region, as its key tells.
typedef struct polyrail_remote polyrail_remote;

// A posted request. It may be used by several threads at a time.
typedef struct polyrail_transfer polyrail_transfer;

// Bytes that the library has allocated; free them with polyrail_bytes_free(). Behind them is a zero byte,
// which `length` does not count, so that a text can be printed as it is. This structure never grows.
typedef struct {
  // The bytes, never NULL unless they were freed.
  uint8_t *data;
  // How many there are.
  size_t length;
} polyrail_bytes;

// How an engine is set up. All zero but the size: the defaults.
typedef struct {
  // sizeof(polyrail_engine_options).
  size_t size;
  // What peers call it in messages, or NULL: host name and process.
  const char *name;
  // Settings, each as "name=value"; they win over the environment, and that over the file.
  const char *const *settings;
  // How many settings there are.
  size_t setting_count;
  // A YAML file of settings, or NULL.
  const char *config_file;
  // 0, or POLYRAIL_IGNORE_ENVIRONMENT.
  uint32_t flags;
  // Who may become a peer by itself: POLYRAIL_ADMIT_ALL, _NONE or _ASK.
  uint32_t admission;
} polyrail_engine_options;

// The number of one run of an engine.
typedef struct {
  // To be compared, and for nothing else.
  uint8_t bytes[16];
} polyrail_instance;

// Bytes that a peer sent with a write, or by polyrail_notify().
typedef struct {
  // sizeof(polyrail_notification).
  size_t size;
  // Who sent it; polyrail_engine_peer() has the peer, while it is known.
  polyrail_instance from;
  // What; free it with polyrail_bytes_free().
  polyrail_bytes data;
} polyrail_notification;

// A change in a group.
typedef struct {
  // sizeof(polyrail_group_event).
  size_t size;
  // 1 if the member has joined, 0 if it has left or died.
  uint32_t has_joined;
  // Its name; free it with polyrail_bytes_free().
  polyrail_bytes name;
} polyrail_group_event;

// What is known of a peer.
typedef struct {
  // sizeof(polyrail_peer_info).
  size_t size;
  // Which run of which engine it is.
  polyrail_instance instance;
  // 1 if it is on this host.
  uint32_t is_same_host;
  // 1 if it is gone.
  uint32_t is_gone;
  // Connections towards it that are up.
  uint64_t flows_up;
  // Connections towards it that are meant to be.
  uint64_t flows_total;
} polyrail_peer_info;

// Memory to be registered.
typedef struct {
  // sizeof(polyrail_memory).
  size_t size;
  // Its first byte, here or on the device.
  void *base;
  // Bytes.
  uint64_t length;
  // POLYRAIL_HOST or POLYRAIL_CUDA.
  uint32_t kind;
  // What peers may do: 0, POLYRAIL_REMOTE_READ, POLYRAIL_REMOTE_WRITE, or both. Own transfers may
  // always use it.
  uint32_t access;
  // The peers that may use it; NULL: all that have its key.
  const polyrail_instance *granted;
  // How many are granted; not looked at if `granted` is NULL.
  size_t granted_count;
} polyrail_memory;

// What is known of a region, here or at a peer.
typedef struct {
  // sizeof(polyrail_region_info).
  size_t size;
  // Bytes.
  uint64_t length;
  // What peers may do: POLYRAIL_REMOTE_READ and POLYRAIL_REMOTE_WRITE.
  uint32_t access;
  // 1 if it is memory of a device.
  uint32_t is_on_device;
} polyrail_region_info;

// A part of a request. Segments that continue each other on both sides are merged.
typedef struct {
  // Memory here.
  polyrail_region *local;
  // Where in it, in bytes.
  uint64_t local_offset;
  // Memory of the peer; NULL for a send and a receive.
  polyrail_remote *remote;
  // Where in that; 0 for a send and a receive.
  uint64_t remote_offset;
  // Bytes.
  uint64_t length;
} polyrail_segment;

// What is to be moved. Everything that it points to is read during the call only.
typedef struct {
  // sizeof(polyrail_request).
  size_t size;
  // POLYRAIL_WRITE, POLYRAIL_READ, POLYRAIL_SEND or POLYRAIL_RECEIVE.
  uint32_t operation;
  // sizeof(polyrail_segment).
  uint32_t segment_size;
  // With whom.
  polyrail_peer *peer;
  // Of a send or a receive.
  uint64_t tag;
  // The parts; 100,000 and more are fine.
  const polyrail_segment *segments;
  // How many parts there are; none are needed for a notification.
  size_t segment_count;
  // Of a write: bytes that the peer gets once all others are in place; NULL: none.
  const void *notification;
  // Bytes of the notification, at most 64 KiB; not looked at if that is NULL.
  size_t notification_length;
  // The transfer fails if it is not complete after this time, which counts from each post. 0: no
  // limit; a peer without progress is given up after `peer_timeout_ms`.
  uint64_t timeout_ns;
} polyrail_request;

// What is known of a prepared request.
typedef struct {
  // sizeof(polyrail_prepared_info).
  size_t size;
  // Payload of each post.
  uint64_t bytes;
  // Segments after merging.
  uint64_t segments;
} polyrail_prepared_info;

// How a transfer ended that is complete.
typedef struct {
  // sizeof(polyrail_outcome).
  size_t size;
  // Payload that is in place. For a receive: the length of the message.
  uint64_t bytes;
  // From post to completion.
  uint64_t duration_ns;
} polyrail_outcome;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Frees bytes and sets the structure to NULL and 0, so that freeing it again does nothing.
//
// Nobody else may use the structure meanwhile. A copy of it must not be freed as well.
int polyrail_bytes_free(polyrail_bytes *bytes);

// Starts an engine. It listens on every rail when this returns. `options` may be NULL. Nobody may change
// the environment meanwhile, unless it is left alone.
int polyrail_engine_open(const polyrail_engine_options *options,
                         polyrail_engine **engine);

// Closes an engine: leaves its groups, tells the peers, ends all transfers with POLYRAIL_ERR_PEER_LOST and stops its
// threads. Blocks for a second or two at most. Calls that wait in other threads return.
//
// The handle ends here. Other handles of the engine (peers, regions, transfers, requests) stay valid
// until they are closed, and say how things ended. Close regions before you free their memory. NULL is
// fine.
int polyrail_engine_close(polyrail_engine *engine);

// What another engine needs to find this one: pass it on by any means, to polyrail_engine_add_peer()
// there. It is a capability: whoever has it may connect, so pass it on by private means.
int polyrail_engine_metadata(polyrail_engine *engine,
                             polyrail_bytes *metadata);

// A text that lets somebody connect to this engine who gets the address by other means; see
// polyrail_engine_connect(). It is as private as the metadata.
int polyrail_engine_invitation(polyrail_engine *engine, polyrail_bytes *invitation);

// Where the engine listens on a rail, counted from 0, as a text such as "10.0.0.1:39411".
int polyrail_engine_address(polyrail_engine *engine, size_t rail, polyrail_bytes *address);

// The rails in use, as JSON: a list of objects with `name`, `interface`, `address` and `speed_mbps`, which is
// null if the driver does not tell.
int polyrail_engine_rails(polyrail_engine *engine,
                          polyrail_bytes *json);

// The number of this run of the engine, which no other has.
int polyrail_engine_instance(polyrail_engine *engine, polyrail_instance *instance);

// The settings in force, as JSON: an object of name, value and where that comes from.
int polyrail_engine_settings(polyrail_engine *engine, polyrail_bytes *json);

// All counters since the engine started, as JSON: bytes of payload, chunks, what was sent again; by
// peer, rail and flow.
int polyrail_engine_stats(polyrail_engine *engine, polyrail_bytes *json);

// The state of everything, for people: peers, flows, what is outstanding and what it waits for.
int polyrail_engine_dump(polyrail_engine *engine, polyrail_bytes *text);

// With the setting `progress=caller`: moves data. POLYRAIL_OK if any moved, POLYRAIL_PENDING if none
// did; without the setting always that.
int polyrail_engine_progress(polyrail_engine *engine);

// Waits until every transfer that was posted here is over, detached ones as well. POLYRAIL_PENDING:
// some are under way after this time.
int polyrail_engine_drain(polyrail_engine *engine, uint64_t timeout_ns);

// Writes the metadata to a file for polyrail_engine_find_peer(), with bytes of the program's own: keys
// of regions for instance. At most 16 MiB; `extra` may be NULL with a length of 0. The file appears whole
// or not at all, and only its owner may read it.
int polyrail_engine_publish(polyrail_engine *engine,
                            const char *file,
                            const void *extra,
                            size_t extra_length);

// Takes the next notification; waits for it at most this time, 0 for a look. POLYRAIL_PENDING: none came.
// Those that came before the engine was closed are gone with its handle. Fill in `notification->size` before.
int polyrail_engine_next_notification(polyrail_engine *engine,
                                      uint64_t timeout_ns,
                                      polyrail_notification *notification);

// Makes a descriptor that is readable, for poll(2) and its like, once a transfer has ended, a notification
// or a peer has come, a peer is gone, or an attempt to connect has ended. Each loop may have one of its own.
//
// It stays readable until polyrail_events_clear(). Clear first, and look then at all that you wait for.
// With `progress=caller` nothing makes it readable unless somebody calls the engine.
int polyrail_events_open(polyrail_engine *engine,
                         polyrail_events **events);

// The descriptor. It belongs to the library: poll it, and neither read nor close it.
int polyrail_events_descriptor(polyrail_events *events, int *descriptor);

// Arms it again: from now on the descriptor is not readable, until something else happens.
int polyrail_events_clear(polyrail_events *events);

// Closes the descriptor. NULL is fine.
int polyrail_events_close(polyrail_events *events);

// Joins a group of engines at the place that the setting `rendezvous` names: a folder, etcd, the addresses of a name, the
// ranks of a job. Returns as soon as others can find this engine; waits at most this time for that, as long as a name is that
// of an engine that has died, or rank 0 has not started.
//
// `name` may be NULL: then it is rank-3 among ranks, and else the engine's instance. POLYRAIL_ERR_CONNECT: the place can't be
// reached; POLYRAIL_ERR_REFUSED: it refuses, or the name is taken.
int polyrail_group_join(polyrail_engine *engine,
                        const char *group,
                        const char *name,
                        uint64_t timeout_ns,
                        polyrail_group **joined);

// The name of this engine in the group.
int polyrail_group_name(polyrail_group *group, polyrail_bytes *name);

// How many members the launcher of the ranks has started, this one included. POLYRAIL_PENDING: nobody knows.
int polyrail_group_expected(polyrail_group *group,
                            size_t *count);

// Waits until the group has as many members, this one included. POLYRAIL_PENDING: it has fewer.
int polyrail_group_wait(polyrail_group *group, size_t count, uint64_t timeout_ns);

// The other members now, as JSON: a list of objects with `name`, and as each says of itself `engine`, `instance` and
// `addresses`.
int polyrail_group_members(polyrail_group *group,
                           polyrail_bytes *json);

// The member of this name as a peer of the engine; it is connected when it is first used. POLYRAIL_PENDING: no other member
// is called so.
int polyrail_group_peer(polyrail_group *group,
                        const char *name,
                        polyrail_peer **peer);

// The next change; waits for it. Whoever was there before has joined first. POLYRAIL_PENDING: nothing has changed. Fill in
// `event->size` before.
int polyrail_group_next_event(polyrail_group *group,
                              uint64_t timeout_ns,
                              polyrail_group_event *event);

// Leaves the group, so that the others hear of it at once, and ends the handle. Peers stay. An engine that closes leaves
// its groups by itself. NULL is fine.
int polyrail_group_leave(polyrail_group *group);

// Takes the next peer that wants to join, where polyrail_engine_options.admission is POLYRAIL_ADMIT_ASK; waits
// for one. POLYRAIL_PENDING: none wants to. The descriptor of polyrail_events_open() does not tell of these.
//
// Peers that are asked about wait, and nobody else does: up to 8 at a time, for a minute each. Who is accepted
// after the time of its handshake (`connect_timeout_ms`) is let in when it comes again.
int polyrail_engine_next_incoming(polyrail_engine *engine,
                                  uint64_t timeout_ns,
                                  polyrail_incoming **incoming);

// What it says of itself, as JSON: an object with `name`, `listens_on` and `is_same_host`; and what is known
// of it: `address`, where its connection comes from, and `proven_names`, those on its certificate.
int polyrail_incoming_describe(polyrail_incoming *incoming,
                               polyrail_bytes *json);

// Which run of which engine it is, which it has proven.
int polyrail_incoming_instance(polyrail_incoming *incoming, polyrail_instance *instance);

// Lets it in, and ends the handle. polyrail_engine_accept_peer() then has the peer.
int polyrail_incoming_accept(polyrail_incoming *incoming);

// Refuses it for this reason, of which it hears 512 bytes, and ends the handle.
int polyrail_incoming_refuse(polyrail_incoming *incoming, const char *reason);

// Adds a peer by the metadata that it gave. It is connected in the background: post at once, transfers
// wait for that.
int polyrail_engine_add_peer(polyrail_engine *engine,
                             const void *metadata,
                             size_t metadata_length,
                             polyrail_peer **peer);

// Begins to connect to the engine that listens on an address such as "10.0.0.1:39411", any of its rails.
//
// `invitation` is the text that polyrail_engine_invitation() gave there, or NULL. Without it both ends
// need the same secret (setting `secret_file`), or to be processes of one user on one host, or `auth=none`.
int polyrail_engine_connect(polyrail_engine *engine,
                            const char *address,
                            const char *invitation,
                            polyrail_connecting **connecting);

// Waits until the peer has answered, or `connect_timeout_ms` has passed. POLYRAIL_PENDING: not yet.
int polyrail_connecting_wait(polyrail_connecting *connecting,
                             uint64_t timeout_ns,
                             polyrail_peer **peer);

// Ends the handle, and the attempt if it is under way. NULL is fine.
int polyrail_connecting_free(polyrail_connecting *connecting);

// Adds the peer that published its metadata in a file, by polyrail_engine_publish(); waits for the file.
// `extra` gets the bytes that the peer has added, unless it is NULL. POLYRAIL_PENDING: no file is there yet.
int polyrail_engine_find_peer(polyrail_engine *engine,
                              const char *file,
                              uint64_t timeout_ns,
                              polyrail_peer **peer,
                              polyrail_bytes *extra);

// The next peer that came to this engine by itself; waits for it. POLYRAIL_PENDING: none came. One that is
// gone again before it was taken is not among them; its notifications stay.
int polyrail_engine_accept_peer(polyrail_engine *engine,
                                uint64_t timeout_ns,
                                polyrail_peer **peer);

// The peer of this instance. POLYRAIL_PENDING: none is known.
int polyrail_engine_peer(polyrail_engine *engine,
                         const polyrail_instance *instance,
                         polyrail_peer **peer);

// Every peer that is known now: writes as many instances as there is room for, and to `count` how many
// there are. `instances` may be NULL with a capacity of 0.
int polyrail_engine_peers(polyrail_engine *engine,
                          polyrail_instance *instances,
                          size_t capacity,
                          size_t *count);

// Ends all transfers with a peer and forgets it; it is told so. The handle stays.
int polyrail_engine_remove_peer(polyrail_engine *engine, polyrail_peer *peer);

// What is known of a peer now. Fill in `info->size` before.
int polyrail_peer_describe(polyrail_peer *peer, polyrail_peer_info *info);

// What the peer calls itself.
int polyrail_peer_name(polyrail_peer *peer, polyrail_bytes *name);

// The names on the peer's certificate, as JSON: a list of texts, empty if it proved something else than a
// certificate. What the peer calls itself proves nothing.
int polyrail_peer_proven_names(polyrail_peer *peer,
                               polyrail_bytes *json);

// Waits until the peer is gone; `why` gets the reason, unless it is NULL. POLYRAIL_PENDING: it is there.
//
// From the first such call on, and until the handle is freed, a peer that is silent is asked for a sign
// of life, so that its end is noticed though no transfer is under way.
int polyrail_peer_gone(polyrail_peer *peer,
                       uint64_t timeout_ns,
                       polyrail_bytes *why);

// Ends the handle. The peer stays one of its engine. NULL is fine.
int polyrail_peer_free(polyrail_peer *peer);

// Registers memory. It must stay allocated until polyrail_region_close() has returned, whatever becomes
// of the engine meanwhile. Overlapping regions are independent of each other.
//
// What a GPU was given to do with the memory before a transfer is posted must be done: the engine's copies
// wait for no stream.
int polyrail_region_register(polyrail_engine *engine,
                             const polyrail_memory *memory,
                             polyrail_region **region);

// Ends the registration. When this returns, nobody touches the memory through it any more, and it may be
// freed. Transfers that still need it fail with POLYRAIL_ERR_REGION_CLOSED, and peers are refused.
//
// Close a region before its memory goes, also if its engine is closed. NULL is fine.
int polyrail_region_close(polyrail_region *region);

// What a peer needs to reach the region: pass it on, to polyrail_remote_import() there. Whoever has it and
// a connection can use the region as its access allows.
int polyrail_region_key(polyrail_region *region,
                        polyrail_bytes *key);

// What is known of a region of this engine. Fill in `info->size` before.
int polyrail_region_describe(polyrail_region *region, polyrail_region_info *info);

// Copies bytes of a region out, to where they don't overlap it; from a device by a detour, for a look at
// them.
int polyrail_region_read(polyrail_region *region,
                         uint64_t offset,
                         void *into,
                         size_t length);

// Copies bytes into a region, from where they don't overlap it; to a device by a detour.
int polyrail_region_write(polyrail_region *region,
                          uint64_t offset,
                          const void *from,
                          size_t length);

// Reads a key that a peer gave, by polyrail_region_key() there.
int polyrail_remote_import(polyrail_engine *engine,
                           const void *key,
                           size_t key_length,
                           polyrail_remote **remote);

// What is known of a peer's region. Fill in `info->size` before.
int polyrail_remote_describe(polyrail_remote *remote, polyrail_region_info *info);

// Ends the handle. Requests that were prepared with it stay as they are. NULL is fine.
int polyrail_remote_free(polyrail_remote *remote);

// Checks a request and cuts it into chunks, for many posts.
int polyrail_prepare(polyrail_engine *engine,
                     const polyrail_request *request,
                     polyrail_prepared **prepared);

// Prepares a request and posts it, for one that is posted once. `transfer` may be NULL: then the transfer
// goes on by itself, and nobody learns how it ends.
int polyrail_submit(polyrail_engine *engine,
                    const polyrail_request *request,
                    polyrail_transfer **transfer);

// Sends a notification of its own; they have no order among each other. `transfer` may be NULL.
int polyrail_notify(polyrail_engine *engine,
                    polyrail_peer *peer,
                    const void *notification,
                    size_t notification_length,
                    polyrail_transfer **transfer);

// Posts a prepared request. POLYRAIL_BUSY: again, once an older transfer is over. `transfer` may be NULL.
int polyrail_post(polyrail_prepared *prepared,
                  polyrail_transfer **transfer);

// Posts a prepared write with this notification, this once, in place of its own or none. `transfer` may be
// NULL.
int polyrail_post_with(polyrail_prepared *prepared,
                       const void *notification,
                       size_t notification_length,
                       polyrail_transfer **transfer);

// What is known of a prepared request. Fill in `info->size` before.
int polyrail_prepared_describe(polyrail_prepared *prepared, polyrail_prepared_info *info);

// How the bytes of a prepared request travel, and why so: "tcp: ...", "shared memory: ...", "peer copy: ..."
// or "single copy: ...".
int polyrail_prepared_path(polyrail_prepared *prepared,
                           polyrail_bytes *path);

// Ends the handle; transfers that were posted go on. NULL is fine.
int polyrail_prepared_free(polyrail_prepared *prepared);

// What a status means, as a text that is always there. A number that is no status has a text, too.
const char *polyrail_strerror(int status);

// The text of the last call of this thread that returned an error: it names what was wrong, its value
// and what is allowed. Empty if none did. It stays until the next error of this thread, or its end.
const char *polyrail_last_error(void);

// What to do about that error, where its text does not say; else empty. It stays as long as the text.
const char *polyrail_last_help(void);

// The version of the library, as in "0.1.0".
const char *polyrail_version(void);

// The number of the interface: POLYRAIL_ABI_VERSION of the header that the library was built with. A
// program that was built with the same number, or a smaller one, runs with this library.
uint32_t polyrail_abi_version(void);

// Looks whether a transfer is over: POLYRAIL_OK if it is complete, POLYRAIL_PENDING if it is under way, or
// the error that ended it. Makes no system call and never blocks; with `progress=caller` it moves data.
//
// `outcome` may be NULL; else fill in `outcome->size` before. It is filled in if the transfer is complete.
int polyrail_transfer_poll(polyrail_transfer *transfer,
                           polyrail_outcome *outcome);

// Waits until a transfer is over, at most this time, and says how it ended, as polyrail_transfer_poll()
// does. Any number of threads may wait.
int polyrail_transfer_wait(polyrail_transfer *transfer,
                           uint64_t timeout_ns,
                           polyrail_outcome *outcome);

// Asks for an early end and returns at once. It is over when polyrail_transfer_poll() says so: after that
// no byte of it is read here, or lands at the peer. It may still turn out complete.
int polyrail_transfer_cancel(polyrail_transfer *transfer);

// Payload of the parts that are complete.
int polyrail_transfer_bytes_done(polyrail_transfer *transfer, uint64_t *bytes);

// Ends the handle, and lets the transfer go on by itself. NULL is fine.
int polyrail_transfer_detach(polyrail_transfer *transfer);

// Ends the handle, and cancels the transfer if it is under way. Its memory may be in use for a while after
// that: wait for the end of the transfer, or close its regions, before you use it for something else. NULL
// is fine.
int polyrail_transfer_free(polyrail_transfer *transfer);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* POLYRAIL_H */

#ifndef POLYRAIL_INIT_H
#define POLYRAIL_INIT_H

#define POLYRAIL_INIT_OF_(type)                                                                    \
    static inline type type##_init(void) {                                                         \
        type empty;                                                                                \
        memset(&empty, 0, sizeof(empty));                                                          \
        empty.size = sizeof(empty);                                                                \
        return empty;                                                                              \
    }

/* polyrail_engine_options_init() and so on: all zero, with the size. */
POLYRAIL_INIT_OF_(polyrail_engine_options)
POLYRAIL_INIT_OF_(polyrail_group_event)
POLYRAIL_INIT_OF_(polyrail_memory)
POLYRAIL_INIT_OF_(polyrail_notification)
POLYRAIL_INIT_OF_(polyrail_outcome)
POLYRAIL_INIT_OF_(polyrail_peer_info)
POLYRAIL_INIT_OF_(polyrail_prepared_info)
POLYRAIL_INIT_OF_(polyrail_region_info)

/* The same, with the size of its segments. */
static inline polyrail_request polyrail_request_init(void) {
    polyrail_request empty;
    memset(&empty, 0, sizeof(empty));
    empty.size = sizeof(empty);
    empty.segment_size = sizeof(polyrail_segment);
    return empty;
}

#undef POLYRAIL_INIT_OF_

#endif /* POLYRAIL_INIT_H */

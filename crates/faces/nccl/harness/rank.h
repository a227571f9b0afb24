/* A rank and its two threads, as NCCL's proxy has them: "service" sets connections up and tears them down, one
 * attempt at a time for all that are pending; "progress" posts and tests. */
#ifndef RANK_H
#define RANK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "net.h"
#include "world.h"

struct link;
struct stream;
struct service_op;

struct service {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct service_op *pending;
    bool ends;
};

struct progress {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct stream *active;
    bool ends;
};

struct rank {
    int number, process;
    /* Of the process; the library is loaded once for all its ranks. */
    struct net *net;
    int devices;
    /* Its context, from version 11 on. */
    void *ctx;
    struct service service;
    struct progress progress;
};

/* Loads and initialises the library if this is the first rank of the process, and starts both threads. */
void rank_starts(struct rank *);
/* The reverse; the last rank of the process unloads the library. */
void rank_ends(struct rank *);

/* The same without threads, and with any communicator's number. */
void rank_loads(struct rank *, uint64_t comm_id);
void rank_unloads(struct rank *);

/* Makes every further load of this process take a table that is linked in, for the built-in baseline. */
void rank_takes_builtin(const struct abi_table_v12 *);

/* --- connections --------------------------------------------------------------------------------------------------- */

/* One end of one connection, which carries data one way. */
struct link {
    int from, to, channel, dev;
    bool sends;
    /* Passed to every attempt to connect: the plugin may keep its state in it. */
    char at_an_odd_address, handle[ABI_HANDLE_BYTES];
    void *listen_comm, *comm;
    char *memory;
    size_t memory_bytes;
    void *mhandle;
};

enum service_kind { SERVE_LISTEN, SERVE_CONNECT, SERVE_ACCEPT, SERVE_CLOSE_LISTEN, SERVE_REG, SERVE_DEREG, SERVE_CLOSE };

struct service_op {
    enum service_kind kind;
    struct link *link;
    int result;
    /* Attempts that returned success, but no connection yet. */
    unsigned retries;
    atomic_bool done;
    struct service_op *next;
};

void service_starts(struct rank *);
void service_ends(struct rank *);

/* Hands operations to the service thread, all at once. */
void service_posts(struct rank *, struct service_op *ops, int count);
/* Waits for them all, and fails with their name if one takes longer or ends with an error. */
void service_awaits(struct service_op *ops, int count, unsigned seconds);

/* Both, for one kind of operation on several links. */
void service_does(struct rank *, enum service_kind, struct link *links, int count, unsigned seconds);

/* The connections of one rank: `count` links of which it is an end. Listens, exchanges handles, connects and accepts
 * at once, closes the listeners, registers `memory_bytes` for each. */
void links_open(struct rank *, struct link *links, int count, size_t memory_bytes);
/* The last part of that: all are connected and accepted. */
void links_are_open(struct rank *, struct link *links, int count, size_t memory_bytes);
/* Closes what is open and frees the memory. The other ranks may be gone. */
void links_close(struct rank *, struct link *links, int count);

/* Handles pass through here. */
void mail_puts(const struct link *);
void mail_gets(struct link *, unsigned seconds);

/* --- data ---------------------------------------------------------------------------------------------------------- */

/* What is sent over a connection; both ends have the same. */
struct traffic {
    uint64_t messages;
    /* Outstanding at most, up to ABI_REQUESTS_MAX. */
    unsigned depth;
    /* Message n has sizes[n % sizes_count] bytes. */
    const size_t *sizes;
    int sizes_count;
    /* Receives are up to this much longer than the message. */
    size_t extra_bytes;
    /* Buffers begin at any byte. */
    bool unaligned;
    /* The receiver sees by the data itself when it is there, as with NCCL's low-latency protocols. */
    bool optional;
    /* For measurements: nothing is written or looked at, and calls are not timed. */
    bool bare;
    /* Pauses before the first post. */
    unsigned send_after_ms, recv_after_ms;
    /* Between posts of receives. */
    unsigned recv_every_ms;
    /* Nothing is received before it is true, unless NULL. */
    const atomic_bool *recv_gate;
    /* The stream fails after this time without progress; 0 means 20 s. */
    unsigned stall_s;
    /* An error ends the stream, which then looks at all requests that are left, and is not a failure. */
    bool may_break;
};

enum stream_state { STREAM_RUNS, STREAM_DONE, STREAM_BROKE, STREAM_DROPPED };

/* Traffic over one link, driven by the progress thread. */
struct stream {
    struct link *link;
    const struct traffic *traffic;
    uint64_t prepared, done;
    /* Others may look at it. */
    _Atomic uint64_t posted;
    void *requests[ABI_REQUESTS_MAX];
    /* Calls that gave success and no request. */
    uint64_t retries;
    /* The most requests that were outstanding at once. */
    unsigned depth_seen;
    int error;
    uint64_t started_ns, posted_ns, moved_ns, finished_ns;
    bool lands;
    /* How it ended; `state` says so once the progress thread has forgotten it. */
    enum stream_state ended_as;
    /* Tells the progress thread to forget it, requests and all. */
    atomic_bool drop;
    _Atomic int state;
    struct stream *next;
};

/* Bytes of memory that a stream of this traffic needs. */
size_t traffic_memory(const struct traffic *);
size_t traffic_sum(const struct traffic *);

void progress_starts(struct rank *);
void progress_ends(struct rank *);

void progress_posts(struct rank *, struct stream *streams, int count);
/* Waits until all streams are at an end. */
void progress_awaits(struct stream *streams, int count, unsigned seconds);
void progress_drops(struct stream *streams, int count);

/* One pass over a stream, as the progress thread does it; whether anything moved. */
bool stream_steps(struct rank *, struct stream *);

/* Opens the links, moves the traffic, closes them. */
void links_move(struct rank *, struct link *links, int count, const struct traffic *);

/* Streams of links. */
struct stream *streams_of(struct link *links, int count, const struct traffic *);

#endif

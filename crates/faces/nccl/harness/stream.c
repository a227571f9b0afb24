/* A stream: posts what the depth allows, and tests the oldest request of its connection and no other. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base.h"
#include "rank.h"

enum {
    /* Guard bytes before and after each message, which must not change. */
    GUARD = 64,
    SHIFT_MAX = 64,
    STALL_S = 20,
    LANDING_S = 5,
};

/* The garbage in `*request` before a call, unless it asks for optional completion. */
static void *const STALE = (void *)0x5a5a5a5a5a5a5a5a;

static bool posts_one(struct rank *, struct stream *);
static bool tests_oldest(struct rank *, struct stream *);
static bool landing_ends(struct stream *, uint64_t sent_bytes);
static void prepares(struct stream *);
static void publishes(const struct stream *);
static void breaks(struct stream *, const char *call, int error);
static _Noreturn void hangs(const struct stream *);
static void ends(struct stream *, enum stream_state);

static size_t sent_bytes(const struct traffic *traffic, uint64_t message) {
    return traffic->sizes[message % (uint64_t)traffic->sizes_count];
}

static size_t posted_bytes(const struct traffic *traffic, uint64_t message) {
    size_t extra = traffic->extra_bytes ? (size_t)(mix(message) % (traffic->extra_bytes + 1)) : 0;
    return sent_bytes(traffic, message) + extra;
}

static size_t slot_bytes(const struct traffic *traffic) {
    size_t most = 0;
    for (int i = 0; i < traffic->sizes_count; i++) {
        most = traffic->sizes[i] > most ? traffic->sizes[i] : most;
    }
    /* Neighbours do not share a page, so that the accelerator's view of them does not either. */
    return (most + traffic->extra_bytes + 2 * GUARD + SHIFT_MAX + 4095) & ~(size_t)4095;
}

static char *slot_of(const struct stream *stream, uint64_t message) {
    return stream->link->memory + message % stream->traffic->depth * slot_bytes(stream->traffic);
}

static char *place_of(const struct stream *stream, uint64_t message) {
    size_t shift = stream->traffic->unaligned ? (size_t)(mix(message + 7) % SHIFT_MAX) : 0;
    return slot_of(stream, message) + GUARD + shift;
}

static uint64_t seed_of(const struct stream *stream, uint64_t message) {
    const struct link *link = stream->link;
    return mix(message * 1000003u + (uint64_t)link->from * 8191u + (uint64_t)link->to * 127u + (uint64_t)link->channel);
}

size_t traffic_memory(const struct traffic *traffic) {
    return slot_bytes(traffic) * traffic->depth;
}

size_t traffic_sum(const struct traffic *traffic) {
    size_t sum = 0;
    for (int i = 0; i < traffic->sizes_count; i++) {
        uint64_t times = traffic->messages / (uint64_t)traffic->sizes_count;
        times += (uint64_t)i < traffic->messages % (uint64_t)traffic->sizes_count;
        sum += traffic->sizes[i] * times;
    }
    return sum;
}

bool stream_steps(struct rank *rank, struct stream *stream) {
    const struct traffic *traffic = stream->traffic;
    bool moved = false;
    if (atomic_load_explicit(&stream->drop, memory_order_relaxed)) {
        ends(stream, STREAM_DROPPED);
        return true;
    }
    unsigned after_ms = stream->link->sends ? traffic->send_after_ms : traffic->recv_after_ms;
    bool may_post = !after_ms || now_ns() - stream->started_ns >= (uint64_t)after_ms * 1000000u;
    if (traffic->recv_gate && !stream->link->sends) {
        may_post &= atomic_load(traffic->recv_gate);
    }
    if (traffic->recv_every_ms && !stream->link->sends) {
        may_post &= now_ns() - stream->posted_ns >= (uint64_t)traffic->recv_every_ms * 1000000u;
    }
    while (may_post && !stream->error && stream->posted < traffic->messages &&
           stream->posted - stream->done < traffic->depth && posts_one(rank, stream)) {
        moved = true;
    }
    if (stream->done < stream->posted) {
        moved |= tests_oldest(rank, stream);
    }
    if (moved && !traffic->bare) {
        publishes(stream);
    }
    if (stream->done == (stream->error ? stream->posted : traffic->messages)) {
        ends(stream, stream->error ? STREAM_BROKE : STREAM_DONE);
        return true;
    }
    if (traffic->bare) {
        return moved;
    }
    if (moved) {
        stream->moved_ns = now_ns();
    } else if (now_ns() - stream->moved_ns >
               (uint64_t)(traffic->stall_s ? traffic->stall_s : STALL_S) * settings.patience * 1000000000u) {
        hangs(stream);
    }
    return moved;
}

static _Noreturn void hangs(const struct stream *stream) {
    const struct link *link = stream->link;
    const struct ends *ends = &world->ends[link->from][link->to][link->channel];
    char of_all[32] = "";
    if (stream->traffic->messages != UINT64_MAX) {
        snprintf(of_all, sizeof of_all, " of %" PRIu64, stream->traffic->messages);
    }
    fail("%s (%d to %d, channel %d) hangs%s: %" PRIu64 "%s messages sent and %" PRIu64 " received are done, %" PRIu64
         " and %" PRIu64 " posted; %" PRIu64 " times no request",
         link->sends ? "sending" : "receiving", link->from, link->to, link->channel,
         stream->error ? " after an error" : "", ends->sends_done, of_all, ends->receives_done, ends->sends_posted,
         ends->receives_posted, stream->retries);
}

/* Where others can see it. */
static void publishes(const struct stream *stream) {
    const struct link *link = stream->link;
    struct ends *ends = &world->ends[link->from][link->to][link->channel];
    atomic_store(link->sends ? &ends->sends_posted : &ends->receives_posted, stream->posted);
    atomic_store(link->sends ? &ends->sends_done : &ends->receives_done, stream->done);
}

static bool posts_one(struct rank *rank, struct stream *stream) {
    const struct traffic *traffic = stream->traffic;
    struct link *link = stream->link;
    uint64_t message = stream->posted;
    void *before = traffic->optional ? ABI_OPTIONAL_COMPLETION : STALE;
    void *request = before;
    int result;
    if (stream->prepared == message) {
        if (!traffic->bare) {
            prepares(stream);
        }
        stream->prepared++;
    }
    if (!traffic->bare) {
        call_begins(CALLER_PROGRESS, link->sends ? "isend" : "irecv");
    }
    if (link->sends) {
        result = net_isend(rank->net, link->comm, place_of(stream, message), sent_bytes(traffic, message), 0,
                           link->mhandle, &request);
    } else {
        result = net_irecv(rank->net, link->comm, place_of(stream, message), posted_bytes(traffic, message), 0,
                           link->mhandle, &request);
    }
    if (!traffic->bare) {
        call_ends(CALLER_PROGRESS);
    }
    if (result != ABI_SUCCESS) {
        breaks(stream, link->sends ? "isend" : "irecv", result);
        return true;
    }
    if (request == before && rank->net->abi >= 9) {
        fail("%s did not write *request, which held %p", link->sends ? "isend" : "irecv", before);
    }
    if (!request) {
        stream->retries++;
        return false;
    }
    for (uint64_t other = stream->done; other < stream->posted; other++) {
        if (stream->requests[other % ABI_REQUESTS_MAX] == request) {
            fail("request %p was given out twice at a time", request);
        }
    }
    stream->requests[message % ABI_REQUESTS_MAX] = request;
    stream->posted++;
    if (traffic->recv_every_ms) {
        stream->posted_ns = now_ns();
    }
    if (stream->posted - stream->done > stream->depth_seen) {
        stream->depth_seen = (unsigned)(stream->posted - stream->done);
    }
    return true;
}

static bool tests_oldest(struct rank *rank, struct stream *stream) {
    const struct traffic *traffic = stream->traffic;
    const struct link *link = stream->link;
    uint64_t message = stream->done;
    /* Cleared by the caller for receives; a plugin must not write more than the one that was posted. */
    int sizes[8] = {0, -77, -77, -77, -77, -77, -77, -77};
    int done = -1;
    if (stream->lands) {
        return landing_ends(stream, sent_bytes(traffic, message));
    }
    bool wants_size = !link->sends || message % 2 == 0;
    if (!traffic->bare) {
        call_begins(CALLER_PROGRESS, "test");
    }
    int result = net_test(rank->net, stream->requests[message % ABI_REQUESTS_MAX], &done, wants_size ? sizes : NULL);
    if (!traffic->bare) {
        call_ends(CALLER_PROGRESS);
    }
    if (result != ABI_SUCCESS) {
        breaks(stream, "test", result);
        /* This request has ended, though with an error. */
        stream->done++;
        return true;
    }
    if (done != 0 && done != 1) {
        fail("test left %d in *done", done);
    }
    if (done == 0) {
        return false;
    }
    if (traffic->bare) {
        stream->done++;
        return true;
    }
    for (int i = 1; i < 8; i++) {
        if (sizes[i] != -77) {
            fail("test wrote the size of request %d of 1", i + 1);
        }
    }
    if (link->sends) {
        /* Done means that the caller owns the memory again. */
        poison(place_of(stream, message), sent_bytes(traffic, message));
        stream->done++;
        return true;
    }
    if (net_has_consumed(rank->net)) {
        result = net_consumed(rank->net, link->comm, stream->requests[message % ABI_REQUESTS_MAX]);
        if (result != ABI_SUCCESS) {
            fail("irecvConsumed gave %d", result);
        }
    }
    bool early = traffic->optional && rank->net->abi >= 9;
    if (!early && (size_t)sizes[0] != sent_bytes(traffic, message)) {
        fail("message %llu: test says %d bytes; %zu were sent, %zu posted", (unsigned long long)message, sizes[0],
             sent_bytes(traffic, message), posted_bytes(traffic, message));
    }
    stream->lands = true;
    stream->moved_ns = now_ns();
    if (!early) {
        /* Everything must be there by now. */
        ptrdiff_t at = pattern_differs(place_of(stream, message), sent_bytes(traffic, message), seed_of(stream, message));
        if (at >= 0) {
            fail("%d to %d, channel %d: byte %td of message %llu (%zu bytes) is wrong", link->from, link->to,
                 link->channel, at, (unsigned long long)message, sent_bytes(traffic, message));
        }
    }
    landing_ends(stream, sent_bytes(traffic, message));
    return true;
}

/* Looks whether all data of a receive is there, as an accelerator that polls it does, and that nothing else is. */
static bool landing_ends(struct stream *stream, uint64_t bytes) {
    uint64_t message = stream->done;
    char *slot = slot_of(stream, message), *place = place_of(stream, message);
    size_t whole = slot_bytes(stream->traffic);
    ptrdiff_t at = pattern_differs(place, bytes, seed_of(stream, message));
    if (at >= 0) {
        if (now_ns() - stream->moved_ns > (uint64_t)LANDING_S * settings.patience * 1000000000u) {
            fail("byte %td of message %llu (%zu bytes) did not come within %d s after its receive was done", at,
                 (unsigned long long)message, (size_t)bytes, LANDING_S);
        }
        return false;
    }
    ptrdiff_t before = poison_differs(slot, (size_t)(place - slot));
    ptrdiff_t behind = poison_differs(place + bytes, (size_t)(slot + whole - place - bytes));
    if (before >= 0 || behind >= 0) {
        fail("message %llu (%zu bytes, %zu posted): memory was written %s", (unsigned long long)message, (size_t)bytes,
             posted_bytes(stream->traffic, message), before >= 0 ? "before its begin" : "behind its end");
    }
    stream->lands = false;
    stream->done++;
    return true;
}

static void prepares(struct stream *stream) {
    uint64_t message = stream->posted;
    if (stream->link->sends) {
        pattern_fill(place_of(stream, message), sent_bytes(stream->traffic, message), seed_of(stream, message));
    } else {
        poison(slot_of(stream, message), slot_bytes(stream->traffic));
    }
}

static void breaks(struct stream *stream, const char *call, int error) {
    const struct link *link = stream->link;
    if (!stream->traffic->may_break) {
        fail("%s (%d to %d, channel %d) gave %d at message %llu", call, link->from, link->to, link->channel, error,
             (unsigned long long)stream->posted);
    }
    if (error < 0 || error > ABI_IN_PROGRESS) {
        fail("%s gave %d, which is no result", call, error);
    }
    if (!stream->error) {
        stream->error = error;
    }
}

static void ends(struct stream *stream, enum stream_state state) {
    stream->finished_ns = now_ns();
    stream->ended_as = state;
}

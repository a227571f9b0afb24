/* Ends: handles that were closed, engines that are gone, transfers that fail, threads that wait. */
#include <pthread.h>

#include "refused.h"

static const int H = POLYRAIL_ERR_HANDLE;

static polyrail_transfer *receive(pair *both, uint64_t tag, uint64_t timeout_ns) {
    polyrail_segment segment = segment_of(both->here, NULL);
    polyrail_request request = request_of(POLYRAIL_RECEIVE, both->to_b, &segment, 1);
    polyrail_transfer *transfer = NULL;
    request.tag = tag;
    request.timeout_ns = timeout_ns;
    CHECK(polyrail_submit(both->a, &request, &transfer));
    return transfer;
}

static void handles_that_were_closed(void) {
    pair both;
    open_pair(&both);
    polyrail_segment segment = segment_of(both.here, both.remote);
    polyrail_request request = request_of(POLYRAIL_WRITE, both.to_b, &segment, 1);
    polyrail_prepared *prepared = NULL;
    polyrail_transfer *transfer = receive(&both, 1, 0);
    polyrail_events *events = NULL;
    polyrail_connecting *connecting = NULL;
    polyrail_bytes address, bytes;
    polyrail_peer *peer = NULL;
    int descriptor;
    CHECK(polyrail_prepare(both.a, &request, &prepared));
    CHECK(polyrail_events_open(both.a, &events));
    CHECK(polyrail_engine_address(both.b, 0, &address));
    CHECK(polyrail_engine_connect(both.a, (char *)address.data, NULL, &connecting));
    CHECK(polyrail_bytes_free(&address));
    CHECK(polyrail_connecting_wait(connecting, POLYRAIL_FOREVER, &peer));

    /* One kind in place of another. */
    REFUSED(H, "transfer is a polyrail_peer, allowed is an open polyrail_transfer",
            polyrail_transfer_poll((polyrail_transfer *)(void *)peer, NULL));
    REFUSED(H, "engine is a polyrail_events", polyrail_engine_stats((polyrail_engine *)(void *)events, &bytes));
    /* What is no handle at all. */
    REFUSED(H, "engine is 0x", polyrail_engine_stats((polyrail_engine *)(void *)&bytes, &bytes));
    REFUSED(H, "engine is 0xf", polyrail_engine_close((polyrail_engine *)(uintptr_t)15));

    CHECK(polyrail_transfer_free(transfer));
    REFUSED(H, "it was closed already", polyrail_transfer_free(transfer));
    REFUSED(H, "it was closed already", polyrail_transfer_detach(transfer));
    REFUSED(H, "it was closed already", polyrail_transfer_wait(transfer, POLYRAIL_FOREVER, NULL));
    CHECK(polyrail_prepared_free(prepared));
    REFUSED(H, "prepared is 0x", polyrail_prepared_free(prepared));
    REFUSED(H, "prepared is 0x", polyrail_post(prepared, NULL));
    CHECK(polyrail_events_close(events));
    REFUSED(H, "events is 0x", polyrail_events_descriptor(events, &descriptor));
    CHECK(polyrail_connecting_free(connecting));
    REFUSED(H, "connecting is 0x", polyrail_connecting_wait(connecting, 0, &peer));
    CHECK(polyrail_peer_free(peer));
    REFUSED(H, "peer is 0x", polyrail_peer_free(peer));
    CHECK(polyrail_region_close(both.here));
    REFUSED(H, "region is 0x", polyrail_region_close(both.here));
    REFUSED(H, "request.segments[0]: local is 0x", polyrail_prepare(both.a, &request, &prepared));
    both.here = NULL;
    polyrail_engine *gone = both.a;
    CHECK(polyrail_engine_close(both.a));
    both.a = NULL;
    REFUSED(H, "no open polyrail_engine", polyrail_engine_close(gone));
    REFUSED(H, "no open polyrail_engine", polyrail_engine_metadata(gone, &bytes));
    close_pair(&both);
}

static void what_an_engine_leaves(void) {
    pair both;
    open_pair(&both);
    polyrail_segment segment = segment_of(both.here, both.remote);
    polyrail_request request = request_of(POLYRAIL_WRITE, both.to_b, &segment, 1);
    polyrail_prepared *prepared = NULL;
    polyrail_transfer *waits = receive(&both, 1, 0), *done = NULL, *none = NULL;
    polyrail_peer_info info = polyrail_peer_info_init();
    polyrail_outcome outcome = polyrail_outcome_init();
    polyrail_events *events = NULL;
    unsigned char byte = 0;
    CHECK(polyrail_events_open(both.a, &events));
    CHECK(polyrail_prepare(both.a, &request, &prepared));
    CHECK(polyrail_post(prepared, &done));
    CHECK(polyrail_transfer_wait(done, POLYRAIL_FOREVER, NULL));
    CHECK(polyrail_engine_close(both.a));
    both.a = NULL;

    REFUSED(POLYRAIL_ERR_PEER_LOST, "this engine closed", polyrail_transfer_wait(waits, POLYRAIL_FOREVER, NULL));
    CHECK(polyrail_transfer_poll(done, &outcome));
    expect(outcome.bytes == BYTES, "what was done stays done");
    REFUSED(POLYRAIL_ERR_CLOSED, "the engine is closed", polyrail_post(prepared, &none));
    expect(none == NULL, "no transfer of what failed");
    CHECK(polyrail_transfer_cancel(waits));
    CHECK(polyrail_peer_describe(both.to_b, &info));
    expect(info.is_gone == 1, "its peers are gone");
    CHECK(polyrail_peer_gone(both.to_b, POLYRAIL_FOREVER, NULL));
    CHECK(polyrail_region_write(both.here, 0, "x", 1));
    CHECK(polyrail_region_read(both.here, 0, &byte, 1));
    expect(byte == 'x' && both.source[0] == 'x', "a region keeps its bytes");
    CHECK(polyrail_events_clear(events));
    CHECK(polyrail_events_close(events));
    CHECK(polyrail_transfer_free(waits));
    CHECK(polyrail_transfer_free(done));
    CHECK(polyrail_prepared_free(prepared));
    close_pair(&both);
}

static int run(polyrail_engine *engine, polyrail_request request) {
    polyrail_transfer *transfer = NULL;
    CHECK(polyrail_submit(engine, &request, &transfer));
    int status = polyrail_transfer_wait(transfer, POLYRAIL_FOREVER, NULL);
    CHECK(polyrail_transfer_free(transfer));
    return status;
}

static void transfers_that_fail(void) {
    pair both;
    polyrail_instance own;
    open_pair(&both);
    CHECK(polyrail_engine_instance(both.b, &own));

    /* What a peer may not do with a region, and what not even its key helps. */
    polyrail_memory memory = polyrail_memory_init();
    memory.base = both.target;
    memory.length = BYTES;
    memory.access = POLYRAIL_REMOTE_READ;
    polyrail_region *only_read = NULL, *of_others = NULL;
    CHECK(polyrail_region_register(both.b, &memory, &only_read));
    memory.granted = &own;
    memory.granted_count = 1;
    CHECK(polyrail_region_register(both.b, &memory, &of_others));
    polyrail_region *regions[] = {only_read, of_others};
    for (int at = 0; at < 2; at++) {
        polyrail_remote *remote = import_key(both.a, regions[at]);
        polyrail_segment segment = segment_of(both.here, remote);
        uint32_t refused_operation = at == 0 ? POLYRAIL_WRITE : POLYRAIL_READ;
        REFUSED(POLYRAIL_ERR_REFUSED, "peer b refused",
                run(both.a, request_of(refused_operation, both.to_b, &segment, 1)));
        CHECK(polyrail_region_close(regions[at]));
        REFUSED(POLYRAIL_ERR_REFUSED, "peer b refused",
                run(both.a, request_of(POLYRAIL_READ, both.to_b, &segment, 1)));
        CHECK(polyrail_remote_free(remote));
    }

    polyrail_transfer *late = receive(&both, 2, 1000000);
    REFUSED(POLYRAIL_ERR_DEADLINE, "deadline", polyrail_transfer_wait(late, POLYRAIL_FOREVER, NULL));
    CHECK(polyrail_transfer_free(late));

    /* A message that is longer than its receive. */
    polyrail_segment half = {both.there, 0, NULL, 0, BYTES / 2};
    polyrail_request room = request_of(POLYRAIL_RECEIVE, both.to_a, &half, 1);
    polyrail_transfer *too_small = NULL;
    CHECK(polyrail_submit(both.b, &room, &too_small));
    polyrail_segment whole = segment_of(both.here, NULL);
    expect(run(both.a, request_of(POLYRAIL_SEND, both.to_b, &whole, 1)) == POLYRAIL_ERR_TOO_LONG,
           "the send hears of it");
    REFUSED(POLYRAIL_ERR_TOO_LONG, "message of 4096 bytes met a receive of 2048",
            polyrail_transfer_wait(too_small, POLYRAIL_FOREVER, NULL));
    CHECK(polyrail_transfer_free(too_small));

    /* A detached transfer goes on without its handle. */
    polyrail_segment segment = segment_of(both.here, both.remote);
    polyrail_request write = request_of(POLYRAIL_WRITE, both.to_b, &segment, 1);
    polyrail_transfer *detached = NULL;
    polyrail_notification notification = polyrail_notification_init();
    write.notification = "went on";
    write.notification_length = 7;
    CHECK(polyrail_submit(both.a, &write, &detached));
    CHECK(polyrail_transfer_detach(detached));
    CHECK(polyrail_engine_next_notification(both.b, POLYRAIL_FOREVER, &notification));
    expect(notification.data.length == 7, "it went on");
    CHECK(polyrail_bytes_free(&notification.data));

    polyrail_transfer *waits = receive(&both, 3, 0);
    CHECK(polyrail_region_close(both.here));
    both.here = NULL;
    REFUSED(POLYRAIL_ERR_REGION_CLOSED, "dropped", polyrail_transfer_wait(waits, POLYRAIL_FOREVER, NULL));
    CHECK(polyrail_transfer_free(waits));

    CHECK(polyrail_engine_remove_peer(both.a, both.to_b));
    REFUSED(POLYRAIL_ERR_PEER_LOST, "peer b is gone", polyrail_notify(both.a, both.to_b, "x", 1, NULL));
    close_pair(&both);
}

static void a_full_pool(void) {
    const char *settings[] = {"rails=127.0.0.1", "ops_pool=64", "append_batch=1"};
    polyrail_engine_options options = polyrail_engine_options_init();
    pair both;
    polyrail_transfer *posted[64], *none = NULL;
    open_pair(&both);
    options.settings = settings;
    options.setting_count = 3;
    options.flags = POLYRAIL_IGNORE_ENVIRONMENT;
    polyrail_engine *small = NULL;
    CHECK(polyrail_engine_open(&options, &small));
    polyrail_peer *peer = add_peer(small, both.b);
    polyrail_region *region = open_region(small, both.source, BYTES, 0);
    polyrail_segment segment = segment_of(region, NULL);
    polyrail_request request = request_of(POLYRAIL_RECEIVE, peer, &segment, 1);
    for (int at = 0; at < 64; at++) {
        CHECK(polyrail_submit(small, &request, &posted[at]));
    }
    expect(polyrail_submit(small, &request, &none) == POLYRAIL_BUSY, "the pool is full");
    expect(none == NULL, "and nothing was posted");
    polyrail_bytes json;
    CHECK(polyrail_engine_settings(small, &json));
    expect(strstr((char *)json.data, "\"ops_pool\"") != NULL, "the settings have their names");
    CHECK(polyrail_bytes_free(&json));
    CHECK(polyrail_region_close(region));
    for (int at = 0; at < 64; at++) {
        REFUSED(POLYRAIL_ERR_REGION_CLOSED, "", polyrail_transfer_wait(posted[at], POLYRAIL_FOREVER, NULL));
        CHECK(polyrail_transfer_free(posted[at]));
    }
    CHECK(polyrail_peer_free(peer));
    CHECK(polyrail_engine_close(small));
    close_pair(&both);
}

static polyrail_connecting *connect_to(polyrail_engine *from, polyrail_engine *to) {
    polyrail_bytes address, invitation;
    polyrail_connecting *connecting = NULL;
    CHECK(polyrail_engine_address(to, 0, &address));
    CHECK(polyrail_engine_invitation(to, &invitation));
    CHECK(polyrail_engine_connect(from, (char *)address.data, (char *)invitation.data, &connecting));
    CHECK(polyrail_bytes_free(&address));
    CHECK(polyrail_bytes_free(&invitation));
    return connecting;
}

/* Who chooses its peers itself lets nobody else in, whatever proof there is. */
static void an_engine_that_admits_nobody(void) {
    polyrail_engine_options options = polyrail_engine_options_init();
    const char *settings[] = {"rails=127.0.0.1"};
    polyrail_engine *closed = NULL, *other = open_engine("other");
    polyrail_connecting *connecting = NULL;
    polyrail_peer *peer = NULL;
    options.settings = settings;
    options.setting_count = 1;
    options.admission = POLYRAIL_ADMIT_NONE;
    CHECK(polyrail_engine_open(&options, &closed));
    connecting = connect_to(other, closed);
    REFUSED(POLYRAIL_ERR_CONNECT, "this engine chooses its peers itself",
            polyrail_connecting_wait(connecting, POLYRAIL_FOREVER, &peer));
    expect(polyrail_engine_accept_peer(closed, 0, &peer) == POLYRAIL_PENDING, "nobody came");
    CHECK(polyrail_connecting_free(connecting));
    /* With the invitation, the other way round. */
    connecting = connect_to(closed, other);
    CHECK(polyrail_connecting_wait(connecting, POLYRAIL_FOREVER, &peer));
    CHECK(polyrail_connecting_free(connecting));
    CHECK(polyrail_peer_free(peer));
    CHECK(polyrail_engine_close(closed));
    CHECK(polyrail_engine_close(other));
}

/* Lists: of rails, of peers, of names. */
static void what_is_known_of_others(void) {
    pair both;
    polyrail_bytes json;
    polyrail_instance of_b, found[2];
    polyrail_peer_info info = polyrail_peer_info_init();
    polyrail_peer *again = NULL;
    size_t count = 0;
    open_pair(&both);
    CHECK(polyrail_engine_rails(both.a, &json));
    expect(strstr((char *)json.data, "\"address\":\"127.0.0.2:") != NULL, "both rails");
    expect(strstr((char *)json.data, "\"speed_mbps\":") != NULL, "and their speed");
    CHECK(polyrail_bytes_free(&json));
    CHECK(polyrail_engine_peers(both.a, NULL, 0, &count));
    expect(count == 1, "one peer, though there was no room for it");
    CHECK(polyrail_engine_peers(both.a, found, 2, &count));
    CHECK(polyrail_engine_instance(both.b, &of_b));
    CHECK(polyrail_peer_describe(both.to_b, &info));
    expect(count == 1 && memcmp(&found[0], &of_b, sizeof(of_b)) == 0, "it is b");
    expect(memcmp(&info.instance, &of_b, sizeof(of_b)) == 0 && info.is_same_host, "and here");
    CHECK(polyrail_engine_peer(both.a, &of_b, &again));
    CHECK(polyrail_peer_proven_names(again, &json));
    expect(strcmp((char *)json.data, "[]") == 0, "it has shown no certificate");
    CHECK(polyrail_bytes_free(&json));
    CHECK(polyrail_peer_free(again));
    of_b.bytes[0] ^= 1;
    expect(polyrail_engine_peer(both.a, &of_b, &again) == POLYRAIL_PENDING, "nobody else");
    close_pair(&both);
}

/* Who is asked about waits for the answer, and hears it. */
static void an_engine_that_asks(void) {
    polyrail_engine_options options = polyrail_engine_options_init();
    const char *settings[] = {"rails=127.0.0.1"};
    polyrail_engine *asks = NULL, *other = open_engine("other");
    polyrail_incoming *incoming = NULL, *late = NULL;
    polyrail_peer *peer = NULL, *came = NULL;
    polyrail_instance own, shown;
    polyrail_bytes json;
    options.settings = settings;
    options.setting_count = 1;
    options.admission = POLYRAIL_ADMIT_ASK;
    CHECK(polyrail_engine_open(&options, &asks));
    REFUSED(POLYRAIL_ERR_ARGUMENT, "the engine asks nobody", polyrail_engine_next_incoming(other, 0, &incoming));
    expect(polyrail_engine_next_incoming(asks, 1000, &incoming) == POLYRAIL_PENDING, "nobody yet");

    polyrail_connecting *first = connect_to(other, asks);
    CHECK(polyrail_engine_next_incoming(asks, POLYRAIL_FOREVER, &incoming));
    CHECK(polyrail_incoming_describe(incoming, &json));
    expect(strstr((char *)json.data, "\"name\":\"other\"") != NULL, "what it calls itself");
    CHECK(polyrail_bytes_free(&json));
    CHECK(polyrail_incoming_instance(incoming, &shown));
    CHECK(polyrail_engine_instance(other, &own));
    expect(memcmp(&own, &shown, sizeof(own)) == 0, "which run it is");
    REFUSED(POLYRAIL_ERR_ARGUMENT, "reason is NULL", polyrail_incoming_refuse(incoming, NULL));
    CHECK(polyrail_incoming_refuse(incoming, "not on a Monday"));
    REFUSED(H, "incoming is 0x", polyrail_incoming_accept(incoming));
    REFUSED(POLYRAIL_ERR_CONNECT, "not on a Monday", polyrail_connecting_wait(first, POLYRAIL_FOREVER, &peer));
    CHECK(polyrail_connecting_free(first));

    polyrail_connecting *second = connect_to(other, asks);
    CHECK(polyrail_engine_next_incoming(asks, POLYRAIL_FOREVER, &incoming));
    CHECK(polyrail_incoming_accept(incoming));
    CHECK(polyrail_connecting_wait(second, POLYRAIL_FOREVER, &peer));
    CHECK(polyrail_notify(other, peer, "hello", 5, NULL));
    CHECK(polyrail_engine_accept_peer(asks, POLYRAIL_FOREVER, &came));
    CHECK(polyrail_peer_free(came));
    CHECK(polyrail_peer_free(peer));
    CHECK(polyrail_connecting_free(second));

    /* Who waits when the engine ends is not kept waiting. */
    polyrail_engine *third = open_engine("third");
    polyrail_connecting *last = connect_to(third, asks);
    CHECK(polyrail_engine_next_incoming(asks, POLYRAIL_FOREVER, &late));
    CHECK(polyrail_engine_close(asks));
    expect(polyrail_connecting_wait(last, POLYRAIL_FOREVER, &peer) == POLYRAIL_ERR_CONNECT, "the end");
    CHECK(polyrail_incoming_accept(late));
    CHECK(polyrail_connecting_free(last));
    CHECK(polyrail_engine_close(third));
    CHECK(polyrail_engine_close(other));
}

typedef struct {
    polyrail_engine *engine;
    polyrail_transfer *transfer;
    int status;
    int has_own_text;
} waiter;

static void *wait_for_notification(void *argument) {
    waiter *own = (waiter *)argument;
    polyrail_notification notification = polyrail_notification_init();
    own->has_own_text = polyrail_last_error()[0] == 0;
    own->status = polyrail_engine_next_notification(own->engine, POLYRAIL_FOREVER, &notification);
    return NULL;
}

static void *wait_for_peer(void *argument) {
    waiter *own = (waiter *)argument;
    polyrail_peer *peer = NULL;
    own->status = polyrail_engine_accept_peer(own->engine, POLYRAIL_FOREVER, &peer);
    return NULL;
}

static void *wait_for_file(void *argument) {
    waiter *own = (waiter *)argument;
    polyrail_peer *peer = NULL;
    own->status = polyrail_engine_find_peer(own->engine, "no-such-file", POLYRAIL_FOREVER, &peer, NULL);
    return NULL;
}

static void *wait_for_transfer(void *argument) {
    waiter *own = (waiter *)argument;
    own->status = polyrail_transfer_wait(own->transfer, POLYRAIL_FOREVER, NULL);
    return NULL;
}

/* Whichever comes first, the wait or the close: the wait ends. */
static void waits_that_are_closed(void) {
    pair both;
    pthread_t threads[4];
    waiter waiters[4];
    open_pair(&both);
    memset(waiters, 0, sizeof(waiters));
    waiters[0].transfer = receive(&both, 1, 0);
    waiters[1].engine = waiters[2].engine = waiters[3].engine = both.a;
    expect(polyrail_engine_close((polyrail_engine *)(uintptr_t)1) == H, "a failure of this thread");
    expect(pthread_create(&threads[0], NULL, wait_for_transfer, &waiters[0]) == 0, "a thread");
    expect(pthread_create(&threads[1], NULL, wait_for_notification, &waiters[1]) == 0, "a thread");
    expect(pthread_create(&threads[2], NULL, wait_for_peer, &waiters[2]) == 0, "a thread");
    expect(pthread_create(&threads[3], NULL, wait_for_file, &waiters[3]) == 0, "a thread");
    CHECK(polyrail_transfer_free(waiters[0].transfer));
    expect(pthread_join(threads[0], NULL) == 0, "its end");
    expect(waiters[0].status == POLYRAIL_ERR_CANCELLED || waiters[0].status == H, "it was cancelled");
    CHECK(polyrail_engine_close(both.a));
    both.a = NULL;
    for (int at = 1; at < 4; at++) {
        expect(pthread_join(threads[at], NULL) == 0, "its end");
        expect(waiters[at].status == POLYRAIL_ERR_CLOSED || waiters[at].status == H, "it was closed");
    }
    expect(waiters[1].has_own_text, "no text of another thread");
    close_pair(&both);
}

int main(void) {
    handles_that_were_closed();
    what_an_engine_leaves();
    transfers_that_fail();
    a_full_pool();
    an_engine_that_admits_nobody();
    an_engine_that_asks();
    what_is_known_of_others();
    waits_that_are_closed();
    printf("all ends are told\n");
    return 0;
}

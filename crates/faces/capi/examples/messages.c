/* Messages by tag: a send fills the oldest receive of its tag. A receive that nobody wants is cancelled. */
#include "example.h"

#define ROOM 4096

static polyrail_transfer *post(polyrail_engine *engine, uint32_t operation, polyrail_peer *peer,
                               uint64_t tag, polyrail_region *region, uint64_t offset,
                               uint64_t length) {
    polyrail_segment segment = {region, offset, NULL, 0, length};
    polyrail_request request = polyrail_request_init();
    polyrail_transfer *transfer = NULL;
    request.operation = operation;
    request.peer = peer;
    request.tag = tag;
    request.segments = &segment;
    request.segment_count = 1;
    request.timeout_ns = SECONDS(60);
    CHECK(polyrail_submit(engine, &request, &transfer));
    return transfer;
}

int main(void) {
    char question[ROOM] = "how many rails?", room[ROOM] = "";
    polyrail_engine *a = open_engine("a");
    polyrail_engine *b = open_engine("b");
    polyrail_peer *to_b = add_peer(a, b), *to_a = add_peer(b, a);
    polyrail_region *from = open_region(a, question, ROOM, 0);
    polyrail_region *into = open_region(b, room, ROOM, 0);

    /* Two receives wait; each send meets that of its tag, in whatever order. */
    polyrail_transfer *first = post(b, POLYRAIL_RECEIVE, to_a, 1, into, 0, ROOM / 2);
    polyrail_transfer *second = post(b, POLYRAIL_RECEIVE, to_a, 2, into, ROOM / 2, ROOM / 2);
    polyrail_transfer *sends[2];
    sends[0] = post(a, POLYRAIL_SEND, to_b, 2, from, 4, 11);
    sends[1] = post(a, POLYRAIL_SEND, to_b, 1, from, 0, 15);

    polyrail_outcome outcome = polyrail_outcome_init();
    CHECK(polyrail_transfer_wait(first, POLYRAIL_FOREVER, &outcome));
    expect(outcome.bytes == 15 && strcmp(room, "how many rails?") == 0, "the message of tag 1");
    CHECK(polyrail_transfer_wait(second, POLYRAIL_FOREVER, &outcome));
    expect(outcome.bytes == 11 && strcmp(room + ROOM / 2, "many rails?") == 0, "that of tag 2");
    for (int at = 0; at < 2; at++) {
        CHECK(polyrail_transfer_wait(sends[at], POLYRAIL_FOREVER, NULL));
        CHECK(polyrail_transfer_free(sends[at]));
    }

    polyrail_transfer *never = post(b, POLYRAIL_RECEIVE, to_a, 3, into, 0, ROOM);
    expect(polyrail_transfer_wait(never, 1000000, NULL) == POLYRAIL_PENDING, "nobody sends it");
    CHECK(polyrail_transfer_cancel(never));
    int status = polyrail_transfer_wait(never, POLYRAIL_FOREVER, NULL);
    expect(status == POLYRAIL_ERR_CANCELLED, "it is cancelled");
    printf("the third one: %s\n", polyrail_last_error());

    CHECK(polyrail_transfer_free(first));
    CHECK(polyrail_transfer_free(second));
    CHECK(polyrail_transfer_free(never));
    CHECK(polyrail_region_close(from));
    CHECK(polyrail_region_close(into));
    CHECK(polyrail_peer_free(to_a));
    CHECK(polyrail_peer_free(to_b));
    CHECK(polyrail_engine_close(a));
    CHECK(polyrail_engine_close(b));
    return 0;
}

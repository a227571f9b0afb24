/* Two engines in one process: one writes into the memory of the other, which hears of it. */
#include "example.h"

#define BYTES ((size_t)4 << 20)

int main(void) {
    polyrail_engine *a = open_engine("a");
    polyrail_engine *b = open_engine("b");

    /* Two byte strings must get from b to a, by any means: where b listens, and which of its memory a
     * may use. */
    unsigned char *target = (unsigned char *)calloc(1, BYTES);
    polyrail_region *there = open_region(b, target, BYTES, POLYRAIL_REMOTE_WRITE);
    polyrail_peer *peer = add_peer(a, b);
    polyrail_remote *remote = import_key(a, there);

    unsigned char *source = (unsigned char *)malloc(BYTES);
    memset(source, 7, BYTES);
    polyrail_region *here = open_region(a, source, BYTES, 0);

    polyrail_segment segment = {here, 0, remote, 0, BYTES};
    polyrail_request write = polyrail_request_init();
    write.operation = POLYRAIL_WRITE;
    write.peer = peer;
    write.segments = &segment;
    write.segment_count = 1;
    write.notification = "done";
    write.notification_length = 4;
    polyrail_transfer *transfer = NULL;
    polyrail_outcome outcome = polyrail_outcome_init();
    CHECK(polyrail_submit(a, &write, &transfer));
    CHECK(polyrail_transfer_wait(transfer, SECONDS(60), &outcome));
    CHECK(polyrail_transfer_free(transfer));
    printf("%llu bytes are in place after %llu us\n", (unsigned long long)outcome.bytes,
           (unsigned long long)outcome.duration_ns / 1000);

    /* b gets the notification once the last byte is in place. */
    polyrail_notification notification = polyrail_notification_init();
    CHECK(polyrail_engine_next_notification(b, SECONDS(60), &notification));
    expect(strcmp((char *)notification.data.data, "done") == 0, "the notification");
    CHECK(polyrail_bytes_free(&notification.data));
    expect(memcmp(source, target, BYTES) == 0, "the same bytes");

    /* Regions end before their memory does. */
    CHECK(polyrail_region_close(here));
    CHECK(polyrail_region_close(there));
    CHECK(polyrail_remote_free(remote));
    CHECK(polyrail_peer_free(peer));
    CHECK(polyrail_engine_close(a));
    CHECK(polyrail_engine_close(b));
    free(source);
    free(target);
    printf("version %s, interface %u\n", polyrail_version(), polyrail_abi_version());
    return 0;
}

/* A loop of its own around poll(2): one descriptor tells of transfers, notifications and peers. */
#include <poll.h>

#include "example.h"

#define NOTES 20

int main(void) {
    polyrail_engine *a = open_engine("a");
    polyrail_engine *b = open_engine("b");
    polyrail_peer *to_b = add_peer(a, b);
    polyrail_events *events = NULL;
    struct pollfd polled;
    CHECK(polyrail_events_open(b, &events));
    CHECK(polyrail_events_descriptor(events, &polled.fd));
    polled.events = POLLIN;

    /* Nobody waits for these. */
    for (int note = 0; note < NOTES; note++) {
        CHECK(polyrail_notify(a, to_b, &note, sizeof(note), NULL));
    }

    int taken = 0, sum = 0, is_gone = 0;
    polyrail_peer *came = NULL;
    while (!is_gone) {
        expect(poll(&polled, 1, 60000) == 1, "an event within a minute");
        /* First this, and then the look at all that is waited for: so no event is lost. */
        CHECK(polyrail_events_clear(events));
        if (came == NULL && polyrail_engine_accept_peer(b, 0, &came) == POLYRAIL_OK) {
            polyrail_bytes name;
            CHECK(polyrail_peer_name(came, &name));
            printf("%s came\n", (char *)name.data);
            CHECK(polyrail_bytes_free(&name));
        }
        polyrail_notification notification = polyrail_notification_init();
        while (polyrail_engine_next_notification(b, 0, &notification) == POLYRAIL_OK) {
            int note;
            polyrail_peer *sender = NULL;
            memcpy(&note, notification.data.data, sizeof(note));
            CHECK(polyrail_engine_peer(b, &notification.from, &sender));
            CHECK(polyrail_peer_free(sender));
            CHECK(polyrail_bytes_free(&notification.data));
            sum += note;
            taken++;
        }
        if (a != NULL && came != NULL && taken == NOTES) {
            /* The other end leaves, which is an event as well. */
            CHECK(polyrail_engine_drain(a, SECONDS(60)));
            CHECK(polyrail_engine_close(a));
            a = NULL;
        }
        polyrail_bytes why;
        if (came != NULL && polyrail_peer_gone(came, 0, &why) == POLYRAIL_OK) {
            is_gone = 1;
            printf("it is gone: %s\n", (char *)why.data);
            CHECK(polyrail_bytes_free(&why));
        }
    }
    expect(taken == NOTES && sum == NOTES * (NOTES - 1) / 2, "each notification once");
    printf("%d notifications\n", taken);

    polyrail_bytes stats;
    CHECK(polyrail_engine_stats(b, &stats));
    expect(strstr((char *)stats.data, "\"totals\"") != NULL, "counters");
    CHECK(polyrail_bytes_free(&stats));
    CHECK(polyrail_events_close(events));
    CHECK(polyrail_peer_free(came));
    CHECK(polyrail_peer_free(to_b));
    CHECK(polyrail_engine_close(b));
    return 0;
}

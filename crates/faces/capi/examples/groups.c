/* Engines that find each other in a group, here by a folder. etcd, DNS and the ranks of a job differ by the setting only. */
/* For mkdtemp, which C99 has not. */
#define _POSIX_C_SOURCE 200809L
#include <unistd.h>

#include "example.h"

static polyrail_engine *open_engine_of(const char *place) {
    const char *settings[] = {"rails=127.0.0.1", place};
    polyrail_engine_options options = polyrail_engine_options_init();
    polyrail_engine *engine = NULL;
    options.settings = settings;
    options.setting_count = 2;
    CHECK(polyrail_engine_open(&options, &engine));
    return engine;
}

static void expect_event(polyrail_group *group, uint32_t has_joined, const char *name) {
    polyrail_group_event event = polyrail_group_event_init();
    CHECK(polyrail_group_next_event(group, SECONDS(60), &event));
    expect(event.has_joined == has_joined && strcmp((char *)event.name.data, name) == 0, name);
    printf("%s has %s\n", (char *)event.name.data, has_joined ? "joined" : "left");
    CHECK(polyrail_bytes_free(&event.name));
}

int main(void) {
    char folder[] = "/tmp/polyrail-groups-XXXXXX";
    char place[64], inside[80];
    expect(mkdtemp(folder) != NULL, "a folder");
    snprintf(place, sizeof(place), "rendezvous=dir://%s", folder);
    polyrail_engine *a = open_engine_of(place);
    polyrail_engine *b = open_engine_of(place);

    polyrail_group *of_a = NULL, *of_b = NULL;
    CHECK(polyrail_group_join(a, "trainers", "one", SECONDS(60), &of_a));
    CHECK(polyrail_group_join(b, "trainers", "two", SECONDS(60), &of_b));
    CHECK(polyrail_group_wait(of_a, 2, SECONDS(60)));
    expect_event(of_a, 1, "two");

    /* A member becomes a peer when it is used. */
    polyrail_peer *peer = NULL;
    polyrail_notification notification = polyrail_notification_init();
    CHECK(polyrail_group_peer(of_a, "two", &peer));
    CHECK(polyrail_notify(a, peer, "hello", 5, NULL));
    CHECK(polyrail_engine_next_notification(b, SECONDS(60), &notification));
    CHECK(polyrail_bytes_free(&notification.data));
    CHECK(polyrail_peer_free(peer));

    polyrail_bytes text;
    CHECK(polyrail_group_members(of_a, &text));
    expect(strstr((char *)text.data, "\"name\":\"two\"") != NULL, "the other one");
    CHECK(polyrail_bytes_free(&text));
    CHECK(polyrail_group_name(of_a, &text));
    printf("%s is alone again\n", (char *)text.data);
    CHECK(polyrail_bytes_free(&text));

    CHECK(polyrail_group_leave(of_b));
    expect_event(of_a, 0, "two");
    CHECK(polyrail_group_leave(of_a));
    CHECK(polyrail_engine_close(a));
    CHECK(polyrail_engine_close(b));
    snprintf(inside, sizeof(inside), "%s/trainers/.lock", folder);
    unlink(inside);
    snprintf(inside, sizeof(inside), "%s/trainers", folder);
    rmdir(inside);
    rmdir(folder);
    return 0;
}

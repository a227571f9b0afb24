/* Groups: bad input, waits that end, and what becomes of a group whose engine closes. */
#include <pthread.h>
#include <unistd.h>

#include "refused.h"

static polyrail_engine *open_engine_of(const char *place) {
    const char *settings[] = {"rails=127.0.0.1", place};
    polyrail_engine_options options = polyrail_engine_options_init();
    polyrail_engine *engine = NULL;
    options.settings = settings;
    options.setting_count = place == NULL ? 1 : 2;
    CHECK(polyrail_engine_open(&options, &engine));
    return engine;
}

static void *waits(void *group) {
    polyrail_group_event event = polyrail_group_event_init();
    int status = polyrail_group_next_event((polyrail_group *)group, POLYRAIL_FOREVER, &event);
    /* Which one depends on whether the wait had begun. */
    expect(status == POLYRAIL_ERR_CLOSED || status == POLYRAIL_ERR_HANDLE, "the wait ends when the group is left");
    return NULL;
}

int main(void) {
    const int A = POLYRAIL_ERR_ARGUMENT, H = POLYRAIL_ERR_HANDLE;
    char folder[] = "/tmp/polyrail-groups-XXXXXX";
    char place[64], inside[80];
    polyrail_bytes bytes;
    polyrail_peer *peer = NULL;
    polyrail_group *group = NULL, *other = NULL;
    polyrail_group_event event = polyrail_group_event_init();
    size_t count;
    pthread_t thread;
    expect(mkdtemp(folder) != NULL, "a folder");
    snprintf(place, sizeof(place), "rendezvous=dir://%s", folder);
    polyrail_engine *a = open_engine_of(place), *b = open_engine_of(place), *nowhere = open_engine_of(NULL);

    REFUSED(A, "engine is NULL", polyrail_group_join(NULL, "g", NULL, 0, &group));
    REFUSED(A, "group is NULL", polyrail_group_join(a, NULL, NULL, 0, &group));
    REFUSED(A, "joined is NULL", polyrail_group_join(a, "g", NULL, 0, NULL));
    REFUSED(A, "group `../up` has other characters", polyrail_group_join(a, "../up", NULL, 0, &group));
    REFUSED(A, "name `` is empty; allowed: 1 to 63 letters", polyrail_group_join(a, "g", "", 0, &group));
    REFUSED(POLYRAIL_ERR_CONFIG, "rendezvous is empty; allowed: dir://, etcd://",
            polyrail_group_join(nowhere, "g", NULL, 0, &group));
    REFUSED(A, "group is NULL", polyrail_group_wait(NULL, 1, 0));
    REFUSED(A, "group is NULL", polyrail_group_name(NULL, &bytes));
    REFUSED(A, "group is NULL", polyrail_group_peer(NULL, "x", &peer));
    REFUSED(H, "group is a polyrail_engine", polyrail_group_wait((polyrail_group *)(void *)a, 1, 0));
    expect(group == NULL, "no handle of what failed");
    CHECK(polyrail_group_leave(NULL));

    CHECK(polyrail_group_join(a, "g", "one", SECONDS(60), &group));
    REFUSED(POLYRAIL_ERR_REFUSED, "name `one` of the group `g` is taken",
            polyrail_group_join(b, "g", "one", 1000000, &other));
    REFUSED(A, "name is NULL", polyrail_group_peer(group, NULL, &peer));
    REFUSED(A, "peer is NULL", polyrail_group_peer(group, "x", NULL));
    REFUSED(A, "json is NULL", polyrail_group_members(group, NULL));
    REFUSED(A, "event is NULL", polyrail_group_next_event(group, 0, NULL));
    event.size = 4;
    REFUSED(A, "sizeof(polyrail_group_event)", polyrail_group_next_event(group, 0, &event));
    event.size = sizeof(event);
    expect(polyrail_group_peer(group, "nobody", &peer) == POLYRAIL_PENDING, "no such member");
    expect(polyrail_group_wait(group, 2, 1000000) == POLYRAIL_PENDING, "it is alone");
    expect(polyrail_group_expected(group, &count) == POLYRAIL_PENDING, "no launcher");
    expect(polyrail_group_next_event(group, 0, &event) == POLYRAIL_PENDING, "nothing has happened");

    expect(pthread_create(&thread, NULL, waits, group) == 0, "a thread");
    /* Whichever comes first, the wait or this. */
    int status = polyrail_group_leave(group);
    expect(status == POLYRAIL_OK, "it is left");
    REFUSED(H, "it was closed already", polyrail_group_leave(group));
    pthread_join(thread, NULL);

    /* An engine that closes leaves its groups, and the handle says so. */
    CHECK(polyrail_group_join(a, "g", "one", SECONDS(60), &group));
    CHECK(polyrail_group_join(b, "g", "two", SECONDS(60), &other));
    CHECK(polyrail_group_wait(other, 2, SECONDS(60)));
    CHECK(polyrail_group_next_event(other, SECONDS(60), &event));
    CHECK(polyrail_bytes_free(&event.name));
    CHECK(polyrail_engine_close(a));
    CHECK(polyrail_group_next_event(other, SECONDS(60), &event));
    expect(event.has_joined == 0, "it has left");
    CHECK(polyrail_bytes_free(&event.name));
    REFUSED(POLYRAIL_ERR_CLOSED, "the group was left", polyrail_group_wait(group, 9, POLYRAIL_FOREVER));
    CHECK(polyrail_group_leave(group));
    CHECK(polyrail_group_leave(other));
    CHECK(polyrail_engine_close(b));
    CHECK(polyrail_engine_close(nowhere));
    snprintf(inside, sizeof(inside), "%s/g/.lock", folder);
    unlink(inside);
    snprintf(inside, sizeof(inside), "%s/g", folder);
    rmdir(inside);
    rmdir(folder);
    printf("groups are told apart\n");
    return 0;
}

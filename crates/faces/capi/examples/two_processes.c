/* Two processes, which find each other by a file: one has a table, the other reads it.
 *
 *   two_processes serve FILE     in one terminal
 *   two_processes fetch FILE     in another one
 *
 * On two machines the file is on a file system of both, and the rails are those that lead from one to the
 * other: leave the settings of open_engine() out.
 */
#include "example.h"

#define BYTES ((size_t)1 << 20)

static unsigned char value(size_t at) { return (unsigned char)(at / 3 + at / 1000); }

static int serve(const char *file) {
    polyrail_engine *engine = open_engine("server");
    unsigned char *table = (unsigned char *)malloc(BYTES);
    for (size_t at = 0; at < BYTES; at++) {
        table[at] = value(at);
    }
    polyrail_region *region = open_region(engine, table, BYTES, POLYRAIL_REMOTE_READ);
    polyrail_bytes key;
    CHECK(polyrail_region_key(region, &key));
    /* All that the other end needs: where this engine listens, who may connect, and the key. */
    CHECK(polyrail_engine_publish(engine, file, key.data, key.length));
    CHECK(polyrail_bytes_free(&key));

    /* Reads are one-sided: nothing is to be done here until the other end says that it is through. */
    polyrail_notification notification = polyrail_notification_init();
    CHECK(polyrail_engine_next_notification(engine, SECONDS(60), &notification));
    printf("the other end says: %s\n", (char *)notification.data.data);
    CHECK(polyrail_bytes_free(&notification.data));
    CHECK(polyrail_region_close(region));
    CHECK(polyrail_engine_close(engine));
    free(table);
    return remove(file);
}

static int fetch(const char *file) {
    polyrail_engine *engine = open_engine("reader");
    polyrail_peer *peer = NULL;
    polyrail_remote *remote = NULL;
    polyrail_bytes key;
    CHECK(polyrail_engine_find_peer(engine, file, SECONDS(60), &peer, &key));
    CHECK(polyrail_remote_import(engine, key.data, key.length, &remote));
    CHECK(polyrail_bytes_free(&key));
    polyrail_region_info info = polyrail_region_info_init();
    CHECK(polyrail_remote_describe(remote, &info));
    unsigned char *table = (unsigned char *)malloc(info.length);
    polyrail_region *region = open_region(engine, table, info.length, 0);

    polyrail_segment segment = {region, 0, remote, 0, info.length};
    polyrail_request read = polyrail_request_init();
    polyrail_transfer *transfer = NULL;
    read.operation = POLYRAIL_READ;
    read.peer = peer;
    read.segments = &segment;
    read.segment_count = 1;
    CHECK(polyrail_submit(engine, &read, &transfer));
    CHECK(polyrail_transfer_wait(transfer, SECONDS(60), NULL));
    CHECK(polyrail_transfer_free(transfer));
    for (size_t at = 0; at < info.length; at++) {
        expect(table[at] == value(at), "the byte of the table");
    }
    printf("%llu bytes are right\n", (unsigned long long)info.length);
    CHECK(polyrail_notify(engine, peer, "thanks", 6, &transfer));
    CHECK(polyrail_transfer_wait(transfer, SECONDS(60), NULL));
    CHECK(polyrail_transfer_free(transfer));

    CHECK(polyrail_region_close(region));
    CHECK(polyrail_remote_free(remote));
    CHECK(polyrail_peer_free(peer));
    CHECK(polyrail_engine_close(engine));
    free(table);
    return 0;
}

int main(int count, char **arguments) {
    if (count == 3 && strcmp(arguments[1], "serve") == 0) {
        return serve(arguments[2]);
    }
    if (count == 3 && strcmp(arguments[1], "fetch") == 0) {
        return fetch(arguments[2]);
    }
    fprintf(stderr, "give `serve FILE` or `fetch FILE`\n");
    return 2;
}

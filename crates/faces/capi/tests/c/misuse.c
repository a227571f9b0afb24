/* Bad input: each is refused with the status and the words that say what is wrong, and nothing changes. */
#include "refused.h"

static pair both;

static void nothing_where_something_is_needed(void) {
    polyrail_bytes bytes;
    polyrail_peer *peer;
    polyrail_events *events;
    polyrail_region *region;
    polyrail_remote *remote;
    polyrail_prepared *prepared;
    polyrail_transfer *transfer;
    polyrail_connecting *connecting;
    polyrail_instance instance;
    polyrail_memory memory = polyrail_memory_init();
    polyrail_request request = polyrail_request_init();
    polyrail_notification notification = polyrail_notification_init();
    uint64_t number;
    size_t count;
    int descriptor;
    const int A = POLYRAIL_ERR_ARGUMENT;

    REFUSED(A, "engine is NULL", polyrail_engine_open(NULL, NULL));
    REFUSED(A, "engine is NULL, allowed is an open polyrail_engine", polyrail_engine_metadata(NULL, &bytes));
    REFUSED(A, "metadata is NULL", polyrail_engine_metadata(both.a, NULL));
    REFUSED(A, "engine is NULL", polyrail_engine_invitation(NULL, &bytes));
    REFUSED(A, "invitation is NULL", polyrail_engine_invitation(both.a, NULL));
    REFUSED(A, "address is NULL", polyrail_engine_address(both.a, 0, NULL));
    REFUSED(A, "engine is NULL", polyrail_engine_instance(NULL, &instance));
    REFUSED(A, "instance is NULL", polyrail_engine_instance(both.a, NULL));
    REFUSED(A, "json is NULL", polyrail_engine_settings(both.a, NULL));
    REFUSED(A, "json is NULL", polyrail_engine_rails(both.a, NULL));
    REFUSED(A, "count is NULL", polyrail_engine_peers(both.a, &instance, 1, NULL));
    REFUSED(A, "instances is NULL", polyrail_engine_peers(both.a, NULL, 1, &count));
    REFUSED(A, "json is NULL", polyrail_peer_proven_names(both.to_b, NULL));
    REFUSED(A, "engine is NULL", polyrail_engine_stats(NULL, &bytes));
    REFUSED(A, "text is NULL", polyrail_engine_dump(both.a, NULL));
    REFUSED(A, "engine is NULL", polyrail_engine_progress(NULL));
    REFUSED(A, "engine is NULL", polyrail_engine_drain(NULL, 0));
    REFUSED(A, "file is NULL", polyrail_engine_publish(both.a, NULL, NULL, 0));
    REFUSED(A, "extra is NULL", polyrail_engine_publish(both.a, "x", NULL, 1));
    REFUSED(A, "metadata is NULL", polyrail_engine_add_peer(both.a, NULL, 1, &peer));
    REFUSED(A, "peer is NULL", polyrail_engine_add_peer(both.a, "x", 1, NULL));
    REFUSED(A, "address is NULL", polyrail_engine_connect(both.a, NULL, NULL, &connecting));
    REFUSED(A, "connecting is NULL", polyrail_engine_connect(both.a, "x", NULL, NULL));
    REFUSED(A, "connecting is NULL", polyrail_connecting_wait(NULL, 0, &peer));
    REFUSED(A, "file is NULL", polyrail_engine_find_peer(both.a, NULL, 0, &peer, NULL));
    REFUSED(A, "peer is NULL", polyrail_engine_accept_peer(both.a, 0, NULL));
    REFUSED(A, "instance is NULL", polyrail_engine_peer(both.a, NULL, &peer));
    REFUSED(A, "peer is NULL", polyrail_engine_remove_peer(both.a, NULL));
    REFUSED(A, "info is NULL", polyrail_peer_describe(both.to_b, NULL));
    REFUSED(A, "name is NULL", polyrail_peer_name(both.to_b, NULL));
    REFUSED(A, "peer is NULL", polyrail_peer_gone(NULL, 0, NULL));
    REFUSED(A, "memory is NULL, allowed is a pointer to a polyrail_memory",
            polyrail_region_register(both.a, NULL, &region));
    REFUSED(A, "region is NULL", polyrail_region_register(both.a, &memory, NULL));
    memory.length = 1;
    REFUSED(A, "memory.base is NULL", polyrail_region_register(both.a, &memory, &region));
    REFUSED(A, "key is NULL", polyrail_region_key(both.here, NULL));
    REFUSED(A, "info is NULL", polyrail_region_describe(both.here, NULL));
    REFUSED(A, "into is NULL", polyrail_region_read(both.here, 0, NULL, 1));
    REFUSED(A, "from is NULL", polyrail_region_write(both.here, 0, NULL, 1));
    REFUSED(A, "key is NULL", polyrail_remote_import(both.a, NULL, 46, &remote));
    REFUSED(A, "info is NULL", polyrail_remote_describe(both.remote, NULL));
    REFUSED(A, "request is NULL", polyrail_prepare(both.a, NULL, &prepared));
    REFUSED(A, "prepared is NULL", polyrail_prepare(both.a, &request, NULL));
    REFUSED(A, "request is NULL", polyrail_submit(both.a, NULL, &transfer));
    REFUSED(A, "peer is NULL", polyrail_notify(both.a, NULL, "x", 1, NULL));
    REFUSED(A, "notification is NULL", polyrail_notify(both.a, both.to_b, NULL, 1, NULL));
    REFUSED(A, "prepared is NULL", polyrail_post(NULL, NULL));
    REFUSED(A, "prepared is NULL", polyrail_post_with(NULL, "x", 1, NULL));
    REFUSED(A, "prepared is NULL", polyrail_prepared_path(NULL, &bytes));
    REFUSED(A, "transfer is NULL", polyrail_transfer_poll(NULL, NULL));
    REFUSED(A, "transfer is NULL", polyrail_transfer_wait(NULL, 0, NULL));
    REFUSED(A, "transfer is NULL", polyrail_transfer_cancel(NULL));
    REFUSED(A, "transfer is NULL", polyrail_transfer_bytes_done(NULL, &number));
    REFUSED(A, "engine is NULL", polyrail_engine_next_notification(NULL, 0, &notification));
    REFUSED(A, "notification is NULL", polyrail_engine_next_notification(both.a, 0, NULL));
    REFUSED(A, "incoming is NULL", polyrail_engine_next_incoming(both.a, 0, NULL));
    REFUSED(A, "incoming is NULL", polyrail_incoming_describe(NULL, &bytes));
    REFUSED(A, "incoming is NULL", polyrail_incoming_instance(NULL, &instance));
    REFUSED(A, "incoming is NULL", polyrail_incoming_accept(NULL));
    REFUSED(A, "incoming is NULL", polyrail_incoming_refuse(NULL, "no"));
    REFUSED(A, "events is NULL", polyrail_events_open(both.a, NULL));
    REFUSED(A, "engine is NULL", polyrail_events_open(NULL, &events));
    REFUSED(A, "events is NULL", polyrail_events_descriptor(NULL, &descriptor));
    REFUSED(A, "events is NULL", polyrail_events_clear(NULL));

    CHECK(polyrail_engine_close(NULL));
    CHECK(polyrail_connecting_free(NULL));
    CHECK(polyrail_peer_free(NULL));
    CHECK(polyrail_region_close(NULL));
    CHECK(polyrail_remote_free(NULL));
    CHECK(polyrail_prepared_free(NULL));
    CHECK(polyrail_transfer_free(NULL));
    CHECK(polyrail_transfer_detach(NULL));
    CHECK(polyrail_events_close(NULL));
    CHECK(polyrail_bytes_free(NULL));
}

static void structures_of_another_size(void) {
    polyrail_engine *engine = NULL;
    polyrail_engine_options options = polyrail_engine_options_init();
    polyrail_peer_info info = polyrail_peer_info_init();
    polyrail_request request = request_of(POLYRAIL_WRITE, both.to_b, NULL, 0);
    polyrail_segment segment = segment_of(both.here, both.remote);
    polyrail_prepared *prepared = NULL;
    size_t wrong[] = {0, 8, sizeof(options) - 1, sizeof(options) + 8, SIZE_MAX};
    char words[200];
    for (size_t at = 0; at < sizeof(wrong) / sizeof(wrong[0]); at++) {
        options.size = wrong[at];
        snprintf(words, sizeof(words), "options: the field size is %zu, allowed is %zu", wrong[at],
                 sizeof(options));
        REFUSED(POLYRAIL_ERR_ARGUMENT, words, polyrail_engine_open(&options, &engine));
    }
    expect(engine == NULL, "nothing is written where a call fails");
    info.size += 8;
    REFUSED(POLYRAIL_ERR_ARGUMENT, "sizeof(polyrail_peer_info)",
            polyrail_peer_describe(both.to_b, &info));
    request.size = 16;
    REFUSED(POLYRAIL_ERR_ARGUMENT, "sizeof(polyrail_request)",
            polyrail_prepare(both.a, &request, &prepared));
    request = request_of(POLYRAIL_WRITE, both.to_b, &segment, 1);
    request.segment_size = 32;
    REFUSED(POLYRAIL_ERR_ARGUMENT, "request.segment_size is 32, allowed is 40",
            polyrail_prepare(both.a, &request, &prepared));
}

static void settings_that_are_none(void) {
    const char *wrong[] = {"rails", "no_such_setting=1", "ops_pool=many", "\xff=1", NULL};
    const char *words[] = {"`rails`", "no_such_setting", "many", "UTF-8", "options.settings[0] is NULL"};
    polyrail_engine *engine = NULL;
    polyrail_engine_options options = polyrail_engine_options_init();
    options.setting_count = 1;
    REFUSED(POLYRAIL_ERR_ARGUMENT, "options.settings is NULL", polyrail_engine_open(&options, &engine));
    for (size_t at = 0; at < sizeof(wrong) / sizeof(wrong[0]); at++) {
        options.settings = &wrong[at];
        REFUSED(at < 3 ? POLYRAIL_ERR_CONFIG : POLYRAIL_ERR_ARGUMENT, words[at],
                polyrail_engine_open(&options, &engine));
    }
    options.setting_count = 0;
    options.config_file = "/no/such/file";
    REFUSED(POLYRAIL_ERR_CONFIG, "/no/such/file", polyrail_engine_open(&options, &engine));
    options.config_file = NULL;
    options.admission = 3;
    REFUSED(POLYRAIL_ERR_ARGUMENT, "options.admission is 3, allowed is POLYRAIL_ADMIT_ALL (0) or",
            polyrail_engine_open(&options, &engine));
    options.admission = POLYRAIL_ADMIT_ALL;
    options.flags = 0x12;
    REFUSED(POLYRAIL_ERR_ARGUMENT, "options.flags is 0x12", polyrail_engine_open(&options, &engine));
}

static void bytes_that_are_something_else(void) {
    polyrail_bytes metadata, key;
    polyrail_peer *peer = NULL;
    polyrail_remote *remote = NULL;
    polyrail_connecting *connecting = NULL;
    const int F = POLYRAIL_ERR_FORMAT;
    CHECK(polyrail_engine_metadata(both.b, &metadata));
    CHECK(polyrail_region_key(both.there, &key));
    REFUSED(F, "metadata of the peer", polyrail_engine_add_peer(both.a, "", 0, &peer));
    REFUSED(F, "metadata of the peer", polyrail_engine_add_peer(both.a, "garbage", 7, &peer));
    for (size_t length = 0; length < metadata.length; length++) {
        REFUSED(F, "", polyrail_engine_add_peer(both.a, metadata.data, length, &peer));
    }
    REFUSED(F, "they are the description of a region",
            polyrail_engine_add_peer(both.a, key.data, key.length, &peer));
    REFUSED(F, "they are an engine's metadata",
            polyrail_remote_import(both.a, metadata.data, metadata.length, &remote));
    for (size_t length = 0; length < key.length; length++) {
        REFUSED(F, "not a region description", polyrail_remote_import(both.a, key.data, length, &remote));
    }
    REFUSED(POLYRAIL_ERR_ARGUMENT, "this engine's own",
            polyrail_engine_add_peer(both.b, metadata.data, metadata.length, &peer));
    REFUSED(POLYRAIL_ERR_ARGUMENT, "address is \"localhost\"",
            polyrail_engine_connect(both.a, "localhost", NULL, &connecting));
    REFUSED(F, "an invitation has 8 characters",
            polyrail_engine_connect(both.a, "127.0.0.1:1", "nonsense", &connecting));
    expect(peer == NULL && remote == NULL && connecting == NULL, "no handle of what failed");
    CHECK(polyrail_bytes_free(&metadata));
    CHECK(polyrail_bytes_free(&key));
    CHECK(polyrail_bytes_free(&key));
}

static void memory_that_can_not_be(void) {
    polyrail_region *region = NULL;
    polyrail_memory memory = polyrail_memory_init();
    memory.base = both.source;
    memory.length = UINT64_MAX;
    REFUSED(POLYRAIL_ERR_ARGUMENT, "memory.length is 18446744073709551615, allowed is 0 to",
            polyrail_region_register(both.a, &memory, &region));
    memory.base = (void *)16;
    memory.length = BYTES;
    REFUSED(POLYRAIL_ERR_ARGUMENT,
            "the 4096 bytes from 0x10 on are no memory of this process: address 0x10 can't be read",
            polyrail_region_register(both.a, &memory, &region));
    expect(strstr(polyrail_last_help(), "POLYRAIL_CUDA") != NULL, "and what to do");
    memory.base = both.source;
    memory.length = (uint64_t)1 << 46;
    REFUSED(POLYRAIL_ERR_ARGUMENT, "can't be read", polyrail_region_register(both.a, &memory, &region));
    memory.length = 16;
    memory.kind = 7;
    REFUSED(POLYRAIL_ERR_ARGUMENT, "memory.kind is 7, allowed is POLYRAIL_HOST (0) or POLYRAIL_CUDA (1)",
            polyrail_region_register(both.a, &memory, &region));
    memory.kind = POLYRAIL_HOST;
    memory.access = 8;
    REFUSED(POLYRAIL_ERR_ARGUMENT, "memory.access is 0x8",
            polyrail_region_register(both.a, &memory, &region));
    memory.access = 0;
    memory.kind = POLYRAIL_CUDA;
    REFUSED(POLYRAIL_ERR_DEVICE, "", polyrail_region_register(both.a, &memory, &region));
    expect(region == NULL, "no region of what failed");
}

static void segments_that_lead_nowhere(void) {
    polyrail_engine *c = open_engine("c");
    polyrail_region *of_c = open_region(c, both.target, BYTES, POLYRAIL_REMOTE_WRITE);
    polyrail_remote *at_c = import_key(both.a, of_c);
    polyrail_peer *to_c = add_peer(both.b, c);
    polyrail_prepared *prepared = NULL;
    polyrail_segment segment = segment_of(both.here, both.remote);
    polyrail_request request = request_of(POLYRAIL_WRITE, both.to_b, &segment, 1);

    segment.length = BYTES + 1;
    REFUSED(POLYRAIL_ERR_RANGE, "request.segments[0].local: range 0+4097 is outside the region of 4096",
            polyrail_prepare(both.a, &request, &prepared));
    segment.length = 2;
    segment.remote_offset = UINT64_MAX;
    REFUSED(POLYRAIL_ERR_RANGE, "request.segments[0].remote: range 18446744073709551615+2",
            polyrail_prepare(both.a, &request, &prepared));
    segment = segment_of(both.here, at_c);
    REFUSED(POLYRAIL_ERR_FOREIGN, "segment 0 names a region of another engine than peer b",
            polyrail_prepare(both.a, &request, &prepared));
    segment = segment_of(of_c, both.remote);
    REFUSED(POLYRAIL_ERR_FOREIGN, "segment 0 is here", polyrail_prepare(both.a, &request, &prepared));
    segment = segment_of(both.here, both.remote);
    request.peer = to_c;
    REFUSED(POLYRAIL_ERR_FOREIGN, "", polyrail_prepare(both.a, &request, &prepared));
    REFUSED(POLYRAIL_ERR_FOREIGN, "another engine", polyrail_engine_remove_peer(both.a, to_c));
    request.peer = both.to_b;
    request.operation = 0;
    REFUSED(POLYRAIL_ERR_ARGUMENT, "request.operation is 0, allowed is POLYRAIL_WRITE (1) or",
            polyrail_prepare(both.a, &request, &prepared));
    request.operation = POLYRAIL_SEND;
    REFUSED(POLYRAIL_ERR_ARGUMENT, "request.segments[0].remote is",
            polyrail_prepare(both.a, &request, &prepared));
    request.operation = POLYRAIL_READ;
    request.notification = "x";
    request.notification_length = 1;
    REFUSED(POLYRAIL_ERR_ARGUMENT, "request.notification is given",
            polyrail_prepare(both.a, &request, &prepared));
    request.notification = NULL;
    request.segments = NULL;
    REFUSED(POLYRAIL_ERR_ARGUMENT, "request.segments is NULL, allowed is a pointer to 1 of them",
            polyrail_prepare(both.a, &request, &prepared));
    request.segments = &segment;
    request.segment_count = SIZE_MAX;
    REFUSED(POLYRAIL_ERR_ARGUMENT, "request.segments has 18446744073709551615 elements",
            polyrail_prepare(both.a, &request, &prepared));
    expect(prepared == NULL, "no request of what failed");
    CHECK(polyrail_peer_free(to_c));
    CHECK(polyrail_remote_free(at_c));
    CHECK(polyrail_region_close(of_c));
    CHECK(polyrail_engine_close(c));
}

/* The last of 100,000 segments is wrong, and is named. */
static void many_segments(size_t count) {
    char words[200];
    polyrail_segment *segments = (polyrail_segment *)calloc(count, sizeof(*segments));
    polyrail_request request = request_of(POLYRAIL_WRITE, both.to_b, segments, count);
    polyrail_prepared *prepared = NULL;
    polyrail_transfer *transfer = NULL;
    polyrail_outcome outcome = polyrail_outcome_init();
    for (size_t at = 0; at < count; at++) {
        polyrail_segment segment = {both.here, at % 2000 * 2, both.remote, at % 1999 * 2, 1};
        segments[at] = segment;
    }
    segments[count - 1].remote = (polyrail_remote *)(void *)both.here;
    snprintf(words, sizeof(words), "request.segments[%zu]: remote is a polyrail_region, allowed is an open",
             count - 1);
    REFUSED(POLYRAIL_ERR_HANDLE, words, polyrail_prepare(both.a, &request, &prepared));
    segments[count - 1].remote = both.remote;
    segments[count - 1].local_offset = BYTES;
    snprintf(words, sizeof(words), "request.segments[%zu].local: range 4096+1", count - 1);
    REFUSED(POLYRAIL_ERR_RANGE, words, polyrail_prepare(both.a, &request, &prepared));
    segments[count - 1].local_offset = 0;
    CHECK(polyrail_submit(both.a, &request, &transfer));
    CHECK(polyrail_transfer_wait(transfer, POLYRAIL_FOREVER, &outcome));
    expect(outcome.bytes == count, "each segment's byte");
    CHECK(polyrail_transfer_free(transfer));

    /* A receive has room for fewer. */
    for (size_t at = 0; at < 1025; at++) {
        polyrail_segment segment = {both.here, at * 2, NULL, 0, 1};
        segments[at] = segment;
    }
    request = request_of(POLYRAIL_RECEIVE, both.to_b, segments, 1025);
    REFUSED(POLYRAIL_ERR_LIMIT, "receive has 1025 segments after merging, allowed is 1024",
            polyrail_prepare(both.a, &request, &prepared));
    free(segments);
}

static void results_that_are_out_of_place(void) {
    char room[64];
    uint64_t number = 0;
    polyrail_transfer *transfer = NULL;
    polyrail_bytes bytes;
    size_t odd = 1 + (8 - (uintptr_t)room % 8) % 8;
    REFUSED(POLYRAIL_ERR_ARGUMENT, "allowed are multiples of 8",
            polyrail_engine_metadata(both.a, (polyrail_bytes *)(void *)(room + odd)));
    REFUSED(POLYRAIL_ERR_ARGUMENT, "rail is 2, allowed is 0 to 1", polyrail_engine_address(both.a, 2, &bytes));
    REFUSED(POLYRAIL_ERR_RANGE, "range 4090+7", polyrail_region_read(both.here, 4090, room, 7));
    REFUSED(POLYRAIL_ERR_RANGE, "range 4090+7", polyrail_region_write(both.here, 4090, room, 7));
    CHECK(polyrail_notify(both.a, both.to_b, NULL, 0, &transfer));
    REFUSED(POLYRAIL_ERR_ARGUMENT, "outcome: the field size is 0",
            polyrail_transfer_poll(transfer, (polyrail_outcome *)memset(room, 0, sizeof(room)) + 0));
    CHECK(polyrail_transfer_wait(transfer, POLYRAIL_FOREVER, NULL));
    CHECK(polyrail_transfer_bytes_done(transfer, &number));
    expect(number == 0, "a notification has no payload");
    CHECK(polyrail_transfer_free(transfer));
}

static void files_that_are_none(void) {
    polyrail_peer *peer = NULL;
    REFUSED(POLYRAIL_ERR_SYSTEM, "/no/such/folder/file",
            polyrail_engine_publish(both.a, "/no/such/folder/file", NULL, 0));
    expect(polyrail_engine_find_peer(both.a, "no-such-file", 0, &peer, NULL) == POLYRAIL_PENDING,
           "no file yet");
    REFUSED(POLYRAIL_ERR_SYSTEM, "metadata file /", polyrail_engine_find_peer(both.a, "/", 0, &peer, NULL));
}

/* Another number of segments may be given: under valgrind each takes its time. */
int main(int count, char **arguments) {
    for (int status = -21; status < 4; status++) {
        expect(strlen(polyrail_strerror(status)) > 3, "a text for every number");
    }
    expect(polyrail_last_error()[0] == 0, "nothing has failed yet");
    open_pair(&both);
    nothing_where_something_is_needed();
    structures_of_another_size();
    settings_that_are_none();
    bytes_that_are_something_else();
    memory_that_can_not_be();
    segments_that_lead_nowhere();
    many_segments(count > 1 ? strtoul(arguments[1], NULL, 10) : 100000);
    results_that_are_out_of_place();
    files_that_are_none();
    close_pair(&both);
    printf("all bad input is refused\n");
    return 0;
}

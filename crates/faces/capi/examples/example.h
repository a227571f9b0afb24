/* What the examples share: they end at the first error, with its text. */
#ifndef EXAMPLE_H
#define EXAMPLE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <polyrail.h>

#define SECONDS(n) ((uint64_t)(n) * 1000000000u)

/* Takes every status, and goes on with POLYRAIL_OK only. */
#define CHECK(call) check((call), #call)

static inline void check(int status, const char *call) {
    if (status == POLYRAIL_OK) {
        return;
    }
    fprintf(stderr, "%s: %s", call, polyrail_strerror(status));
    if (status < 0) {
        fprintf(stderr, ": %s; %s", polyrail_last_error(), polyrail_last_help());
    }
    fprintf(stderr, "\n");
    exit(1);
}

static inline void expect(int is_true, const char *what) {
    if (!is_true) {
        fprintf(stderr, "expected: %s\n", what);
        exit(1);
    }
}

/* An engine on two loopback addresses. Leave the settings out to use every NIC of the machine. */
static inline polyrail_engine *open_engine(const char *name) {
    const char *settings[] = {"rails=127.0.0.1,127.0.0.2"};
    polyrail_engine_options options = polyrail_engine_options_init();
    polyrail_engine *engine = NULL;
    options.name = name;
    options.settings = settings;
    options.setting_count = 1;
    CHECK(polyrail_engine_open(&options, &engine));
    return engine;
}

/* Registers memory of this process. Peers may do with it what `access` says. */
static inline polyrail_region *open_region(polyrail_engine *engine, void *base, size_t length,
                                           uint32_t access) {
    polyrail_memory memory = polyrail_memory_init();
    polyrail_region *region = NULL;
    memory.base = base;
    memory.length = length;
    memory.kind = POLYRAIL_HOST;
    memory.access = access;
    CHECK(polyrail_region_register(engine, &memory, &region));
    return region;
}

/* Makes `to` a peer of `from`: the metadata gets there by any means, here within one process. */
static inline polyrail_peer *add_peer(polyrail_engine *from, polyrail_engine *to) {
    polyrail_bytes metadata;
    polyrail_peer *peer = NULL;
    CHECK(polyrail_engine_metadata(to, &metadata));
    CHECK(polyrail_engine_add_peer(from, metadata.data, metadata.length, &peer));
    CHECK(polyrail_bytes_free(&metadata));
    return peer;
}

/* Lets `engine` use a region of another one, by its key. */
static inline polyrail_remote *import_key(polyrail_engine *engine, polyrail_region *region) {
    polyrail_bytes key;
    polyrail_remote *remote = NULL;
    CHECK(polyrail_region_key(region, &key));
    CHECK(polyrail_remote_import(engine, key.data, key.length, &remote));
    CHECK(polyrail_bytes_free(&key));
    return remote;
}

#endif

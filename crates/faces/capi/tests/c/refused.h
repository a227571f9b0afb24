/* What the tests of bad input share. */
#ifndef REFUSED_H
#define REFUSED_H

#include "../../examples/example.h"

#define BYTES 4096

/* The call returns this status, and its text has these words. */
#define REFUSED(status, words, call) refused((call), (status), (words), #call, __LINE__)

static inline void refused(int got, int status, const char *words, const char *call, int line) {
    if (got != status) {
        fprintf(stderr, "line %d: %s is %d (%s), expected %d (%s); last error: %s\n", line, call, got,
                polyrail_strerror(got), status, polyrail_strerror(status), polyrail_last_error());
        exit(1);
    }
    if (strstr(polyrail_last_error(), words) == NULL) {
        fprintf(stderr, "line %d: %s says \"%s\", expected \"%s\" in it\n", line, call,
                polyrail_last_error(), words);
        exit(1);
    }
}

/* Two engines that know each other, and memory of each. */
typedef struct {
    polyrail_engine *a, *b;
    polyrail_peer *to_b, *to_a;
    polyrail_region *here, *there;
    polyrail_remote *remote;
    unsigned char source[BYTES], target[BYTES];
} pair;

static inline void open_pair(pair *both) {
    memset(both, 0, sizeof(*both));
    both->a = open_engine("a");
    both->b = open_engine("b");
    both->to_b = add_peer(both->a, both->b);
    both->to_a = add_peer(both->b, both->a);
    both->here = open_region(both->a, both->source, BYTES, 0);
    both->there = open_region(both->b, both->target, BYTES,
                              POLYRAIL_REMOTE_READ | POLYRAIL_REMOTE_WRITE);
    both->remote = import_key(both->a, both->there);
}

static inline void close_pair(pair *both) {
    CHECK(polyrail_region_close(both->here));
    CHECK(polyrail_region_close(both->there));
    CHECK(polyrail_remote_free(both->remote));
    CHECK(polyrail_peer_free(both->to_a));
    CHECK(polyrail_peer_free(both->to_b));
    CHECK(polyrail_engine_close(both->a));
    CHECK(polyrail_engine_close(both->b));
}

static inline polyrail_request request_of(uint32_t operation, polyrail_peer *peer,
                                          const polyrail_segment *segments, size_t count) {
    polyrail_request request = polyrail_request_init();
    request.operation = operation;
    request.peer = peer;
    request.segments = segments;
    request.segment_count = count;
    return request;
}

static inline polyrail_segment segment_of(polyrail_region *local, polyrail_remote *remote) {
    polyrail_segment segment = {local, 0, remote, 0, BYTES};
    return segment;
}

#endif

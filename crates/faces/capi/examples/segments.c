/* 100,000 scattered blocks as one request, prepared once and posted several times; then they are read back.
 * Another number of blocks may be given. */
#include "example.h"

#define BLOCK ((size_t)16)
#define POSTS 3

static size_t blocks = 100000;

/* The last block comes first, so none continues the one before, and they stay apart. */
static size_t place_of(size_t block) { return blocks - 1 - block; }

static void run(polyrail_prepared *prepared) {
    polyrail_transfer *transfer = NULL;
    polyrail_outcome outcome = polyrail_outcome_init();
    CHECK(polyrail_post(prepared, &transfer));
    /* A look costs no system call, so a program that has other work may look as often as it likes. */
    int status = polyrail_transfer_poll(transfer, &outcome);
    if (status == POLYRAIL_PENDING) {
        status = polyrail_transfer_wait(transfer, SECONDS(60), &outcome);
    }
    CHECK(status);
    expect(outcome.bytes == blocks * BLOCK, "every byte counted");
    CHECK(polyrail_transfer_free(transfer));
}

int main(int count, char **arguments) {
    if (count > 1) {
        blocks = strtoul(arguments[1], NULL, 10);
    }
    if (count > 2 || blocks == 0) {
        fprintf(stderr, "give a number of blocks from 1 on, or nothing\n");
        return 2;
    }
    polyrail_engine *a = open_engine("a");
    polyrail_engine *b = open_engine("b");
    unsigned char *source = (unsigned char *)malloc(blocks * BLOCK);
    unsigned char *target = (unsigned char *)calloc(blocks, BLOCK);
    unsigned char *copy = (unsigned char *)calloc(blocks, BLOCK);
    polyrail_segment *there = (polyrail_segment *)calloc(blocks, sizeof(polyrail_segment));
    polyrail_segment *back = (polyrail_segment *)calloc(blocks, sizeof(polyrail_segment));
    size_t at;

    polyrail_region *own = open_region(a, source, blocks * BLOCK, 0);
    polyrail_region *own_copy = open_region(a, copy, blocks * BLOCK, 0);
    polyrail_region *far =
        open_region(b, target, blocks * BLOCK, POLYRAIL_REMOTE_READ | POLYRAIL_REMOTE_WRITE);
    polyrail_peer *peer = add_peer(a, b);
    polyrail_remote *remote = import_key(a, far);
    for (at = 0; at < blocks; at++) {
        polyrail_segment segment = {own, at * BLOCK, remote, place_of(at) * BLOCK, BLOCK};
        there[at] = segment;
        segment.local = own_copy;
        back[at] = segment;
    }

    polyrail_request request = polyrail_request_init();
    polyrail_prepared *write = NULL, *read = NULL;
    request.operation = POLYRAIL_WRITE;
    request.peer = peer;
    request.segments = there;
    request.segment_count = blocks;
    CHECK(polyrail_prepare(a, &request, &write));
    request.operation = POLYRAIL_READ;
    request.segments = back;
    CHECK(polyrail_prepare(a, &request, &read));

    polyrail_prepared_info info = polyrail_prepared_info_init();
    polyrail_bytes path;
    CHECK(polyrail_prepared_describe(write, &info));
    CHECK(polyrail_prepared_path(write, &path));
    printf("%llu segments by %s\n", (unsigned long long)info.segments, (char *)path.data);
    CHECK(polyrail_bytes_free(&path));

    for (int post = 0; post < POSTS; post++) {
        for (at = 0; at < blocks * BLOCK; at++) {
            source[at] = (unsigned char)(at / 3 + (size_t)post);
        }
        run(write);
        for (at = 0; at < blocks; at++) {
            expect(memcmp(source + at * BLOCK, target + place_of(at) * BLOCK, BLOCK) == 0,
                   "each block in its place");
        }
        run(read);
        expect(memcmp(source, copy, blocks * BLOCK) == 0, "the same blocks after both ways");
    }
    printf("%d times %zu blocks there and back\n", POSTS, blocks);

    CHECK(polyrail_prepared_free(write));
    CHECK(polyrail_prepared_free(read));
    CHECK(polyrail_region_close(own));
    CHECK(polyrail_region_close(own_copy));
    CHECK(polyrail_region_close(far));
    CHECK(polyrail_remote_free(remote));
    CHECK(polyrail_peer_free(peer));
    CHECK(polyrail_engine_close(a));
    CHECK(polyrail_engine_close(b));
    free(source);
    free(target);
    free(copy);
    free(there);
    free(back);
    return 0;
}

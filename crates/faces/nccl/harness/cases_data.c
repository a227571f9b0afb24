#include <stdlib.h>

#include "base.h"
#include "cases.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

static void moves_in_ring(struct rank *rank, int channels, const struct traffic *traffic) {
    int count;
    rank_starts(rank);
    struct link *links = ring_links(rank, channels, &count);
    links_move(rank, links, count, traffic);
    free(links);
    rank_ends(rank);
}

void case_sizes(struct rank *rank) {
    static const size_t sizes[] = {0,    1,    2,    3,    7,     8,     9,      63,     64,      65,     127,  128,
                                   129,  1000, 4095, 4096, 4097,  8192,  16384,  65535,  65536,   65537,  131072,
                                   524287, 524288, 1048576, 1048577, 4194304, 4194303, 5};
    struct traffic traffic = {
        .messages = settings.quick ? COUNT(sizes) : 5 * COUNT(sizes),
        .depth = 4,
        .sizes = sizes,
        .sizes_count = COUNT(sizes),
        .unaligned = true,
    };
    moves_in_ring(rank, 1, &traffic);
}

void case_larger_receive(struct rank *rank) {
    static const size_t sizes[] = {1, 100, 4096, 0, 70000, 8, 131072, 300000};
    struct traffic traffic = {
        .messages = settings.quick ? 32 : 400,
        .depth = 8,
        .sizes = sizes,
        .sizes_count = COUNT(sizes),
        .extra_bytes = 200000,
    };
    moves_in_ring(rank, 2, &traffic);
}

void case_zero(struct rank *rank) {
    static const size_t sizes[] = {0, 0, 8, 0, 262144, 0, 0, 0, 1};
    struct traffic traffic = {
        .messages = settings.quick ? 27 : 900,
        .depth = 8,
        .sizes = sizes,
        .sizes_count = COUNT(sizes),
        .extra_bytes = 64,
    };
    moves_in_ring(rank, 1, &traffic);
}

void case_optional(struct rank *rank) {
    static const size_t sizes[] = {8, 64, 512, 16384, 8, 1024, 65536, 128, 32};
    struct traffic traffic = {
        .messages = settings.quick ? 45 : 3600,
        .depth = 8,
        .sizes = sizes,
        .sizes_count = COUNT(sizes),
        .extra_bytes = 1024,
        .optional = true,
    };
    moves_in_ring(rank, 2, &traffic);
}

void case_pressure(struct rank *rank) {
    static const size_t sizes[] = {1048576, 8, 262144, 0, 131072, 64};
    struct traffic traffic = {
        .messages = settings.quick ? 64 : 256,
        .depth = ABI_REQUESTS_MAX,
        .sizes = sizes,
        .sizes_count = COUNT(sizes),
    };
    int count;
    rank_starts(rank);
    struct link *links = ring_links(rank, 2, &count);
    traffic.recv_after_ms = 300;
    links_move(rank, links, count, &traffic);
    meet();
    traffic.recv_after_ms = 0;
    traffic.send_after_ms = 300;
    links_move(rank, links, count, &traffic);
    free(links);
    rank_ends(rank);
}

void case_depth(struct rank *rank) {
    static const size_t sizes[] = {1048576, 131072, 524288};
    struct traffic traffic = {
        .messages = settings.quick ? 24 : 120,
        .depth = ABI_STEPS,
        .sizes = sizes,
        .sizes_count = COUNT(sizes),
        /* All receives are posted before the first message comes. */
        .send_after_ms = 100,
    };
    int count;
    rank_starts(rank);
    struct link *links = ring_links(rank, 2, &count);
    links_open(rank, links, count, traffic_memory(&traffic));
    struct stream *streams = streams_of(links, count, &traffic);
    progress_posts(rank, streams, count);
    progress_awaits(streams, count, 120);
    for (int i = 0; i < count; i++) {
        if (streams[i].depth_seen < ABI_STEPS) {
            fail("%s: at most %u of %d requests were taken at a time", links[i].sends ? "isend" : "irecv",
                 streams[i].depth_seen, ABI_STEPS);
        }
    }
    links_close(rank, links, count);
    free(streams);
    free(links);
    rank_ends(rank);
}

void case_stalled(struct rank *rank) {
    static const size_t sizes[] = {524288, 1000};
    atomic_bool receives = false;
    struct traffic flowing = {
        .messages = settings.quick ? 120 : 400,
        .depth = 8,
        .sizes = sizes,
        .sizes_count = COUNT(sizes),
        .stall_s = 10,
    };
    struct traffic stalled = flowing;
    /* More than the buffers of a connection hold. */
    stalled.messages = 80;
    stalled.recv_gate = &receives;
    stalled.stall_s = 120;
    int count;
    rank_starts(rank);
    struct link *links = ring_links(rank, 4, &count);
    links_open(rank, links, count, traffic_memory(&flowing));
    struct stream *streams = streams_of(links, count, &flowing);
    for (int i = 0; i < count; i++) {
        /* Half of the senders have no receiver until the others have finished. */
        streams[i].traffic = links[i].channel % 2 == 0 ? &stalled : &flowing;
    }
    progress_posts(rank, streams, count);
    for (int i = 0; i < count; i++) {
        if (streams[i].traffic == &flowing) {
            progress_awaits(&streams[i], 1, 60);
        }
    }
    meet();
    atomic_store(&receives, true);
    progress_awaits(streams, count, 60);
    links_close(rank, links, count);
    free(streams);
    free(links);
    rank_ends(rank);
}

void case_threads(struct rank *rank) {
    static const size_t sizes[] = {131072, 8, 1048576, 0, 4097};
    struct traffic traffic = {
        .messages = settings.quick ? 20 : 200,
        .depth = 8,
        .sizes = sizes,
        .sizes_count = COUNT(sizes),
        .unaligned = true,
    };
    moves_in_ring(rank, 4, &traffic);
}

void case_many(struct rank *rank) {
    static const size_t sizes[] = {131072, 8, 0, 4097, 65536};
    struct traffic traffic = {
        .messages = settings.quick ? 5 : 20,
        .depth = 4,
        .sizes = sizes,
        .sizes_count = COUNT(sizes),
    };
    moves_in_ring(rank, settings.quick ? 8 : CHANNELS_MAX, &traffic);
}

void case_alltoall(struct rank *rank) {
    static const size_t sizes[] = {65536, 0, 8, 1000, 131072};
    struct traffic traffic = {
        .messages = settings.quick ? 5 : 10,
        .depth = 4,
        .sizes = sizes,
        .sizes_count = COUNT(sizes),
    };
    int count, channels = settings.quick ? 2 : 8;
    struct footprint before = footprint_now();
    rank_starts(rank);
    struct link *links = mesh_links(rank, channels, &count);
    links_open(rank, links, count, traffic_memory(&traffic));
    struct stream *streams = streams_of(links, count, &traffic);
    progress_posts(rank, streams, count);
    progress_awaits(streams, count, 120);
    struct footprint open = footprint_now();
    int allowed = (int)settings.fds_per_peer * (world->ranks - 1);
    if (open.fds - before.fds > allowed) {
        fail("%d file descriptors for %d peers with %d connections each; %u per peer may be", open.fds - before.fds,
             world->ranks - 1, 2 * channels, settings.fds_per_peer);
    }
    world->numbers[rank->number][0] = open.fds - before.fds;
    world->numbers[rank->number][1] = open.threads - before.threads;
    meet();
    if (rank->number == 0 && settings.verbose) {
        note(&world->warnings, "(no warning) rank 0: %d file descriptors and %d threads more for %d peers, %d connections",
             open.fds - before.fds, open.threads - before.threads, world->ranks - 1, count);
    }
    links_close(rank, links, count);
    free(streams);
    free(links);
    rank_ends(rank);
}

struct link *ring_links(const struct rank *rank, int channels, int *count) {
    struct link *links = calloc((size_t)channels * 2, sizeof *links);
    int next = (rank->number + 1) % world->ranks, previous = (rank->number + world->ranks - 1) % world->ranks;
    for (int channel = 0; channel < channels; channel++) {
        int dev = channel % rank->devices;
        links[2 * channel] =
            (struct link){.from = rank->number, .to = next, .channel = channel, .dev = dev, .sends = true};
        links[2 * channel + 1] = (struct link){.from = previous, .to = rank->number, .channel = channel, .dev = dev};
    }
    *count = channels * 2;
    return links;
}

struct link *mesh_links(const struct rank *rank, int channels, int *count) {
    struct link *links = calloc((size_t)channels * 2 * (size_t)world->ranks, sizeof *links);
    *count = 0;
    for (int peer = 0; peer < world->ranks; peer++) {
        for (int channel = 0; channel < channels && peer != rank->number; channel++) {
            int dev = channel % rank->devices;
            links[(*count)++] =
                (struct link){.from = rank->number, .to = peer, .channel = channel, .dev = dev, .sends = true};
            links[(*count)++] = (struct link){.from = peer, .to = rank->number, .channel = channel, .dev = dev};
        }
    }
    return links;
}

/* The progress thread: drives all streams of its rank, and spins while anything is outstanding and moves. */
#include <sched.h>
#include <stdlib.h>

#include "base.h"
#include "rank.h"

enum { SPIN_NS = 2000000 };

static void *progress_thread(void *rank);

void progress_starts(struct rank *rank) {
    pthread_mutex_init(&rank->progress.lock, NULL);
    pthread_cond_init(&rank->progress.changed, NULL);
    pthread_create(&rank->progress.thread, NULL, progress_thread, rank);
}

void progress_ends(struct rank *rank) {
    pthread_mutex_lock(&rank->progress.lock);
    rank->progress.ends = true;
    pthread_cond_signal(&rank->progress.changed);
    pthread_mutex_unlock(&rank->progress.lock);
    pthread_join(rank->progress.thread, NULL);
    pthread_mutex_destroy(&rank->progress.lock);
    pthread_cond_destroy(&rank->progress.changed);
    rank->progress.ends = false;
}

void progress_posts(struct rank *rank, struct stream *streams, int count) {
    pthread_mutex_lock(&rank->progress.lock);
    for (int i = 0; i < count; i++) {
        streams[i].started_ns = streams[i].moved_ns = now_ns();
        streams[i].next = rank->progress.active;
        rank->progress.active = &streams[i];
    }
    pthread_cond_signal(&rank->progress.changed);
    pthread_mutex_unlock(&rank->progress.lock);
}

void progress_awaits(struct stream *streams, int count, unsigned seconds) {
    for (int i = 0; i < count; i++) {
        WAIT_UNTIL(atomic_load(&streams[i].state) != STREAM_RUNS, seconds, "a stream was not over after %u s", seconds);
    }
}

void progress_drops(struct stream *streams, int count) {
    for (int i = 0; i < count; i++) {
        atomic_store(&streams[i].drop, true);
    }
    progress_awaits(streams, count, 10);
}

struct stream *streams_of(struct link *links, int count, const struct traffic *traffic) {
    struct stream *streams = calloc((size_t)count, sizeof *streams);
    for (int i = 0; i < count; i++) {
        streams[i].link = &links[i];
        streams[i].traffic = traffic;
    }
    return streams;
}

void links_move(struct rank *rank, struct link *links, int count, const struct traffic *traffic) {
    links_open(rank, links, count, traffic_memory(traffic));
    struct stream *streams = streams_of(links, count, traffic);
    progress_posts(rank, streams, count);
    progress_awaits(streams, count, 300);
    links_close(rank, links, count);
    free(streams);
}

static void *progress_thread(void *argument) {
    struct rank *rank = argument;
    struct progress *progress = &rank->progress;
    uint64_t moved_ns = 0;
    my_rank = rank->number;
    pthread_mutex_lock(&progress->lock);
    while (!progress->ends) {
        if (!progress->active) {
            pthread_cond_wait(&progress->changed, &progress->lock);
            continue;
        }
        struct stream *first = progress->active;
        pthread_mutex_unlock(&progress->lock);
        bool moved = false, over = false, measures = false;
        for (struct stream *stream = first; stream; stream = stream->next) {
            moved |= stream_steps(rank, stream);
            over |= stream->ended_as != STREAM_RUNS;
            measures |= stream->traffic->bare;
        }
        if (moved) {
            moved_ns = now_ns();
        } else if (measures || now_ns() - moved_ns < SPIN_NS) {
            sched_yield();
        } else {
            /* NCCL spins for ever. Here the process that we wait for needs the CPUs more. */
            pause_us(100);
        }
        pthread_mutex_lock(&progress->lock);
        for (struct stream **at = &progress->active; over && *at;) {
            struct stream *stream = *at;
            if (stream->ended_as != STREAM_RUNS) {
                *at = stream->next;
                /* From now on the waiting thread may free it. */
                atomic_store(&stream->state, stream->ended_as);
            } else {
                at = &stream->next;
            }
        }
    }
    pthread_mutex_unlock(&progress->lock);
    return NULL;
}

/* The service thread: one for all connections of a rank, so that one call that waits would hold up all others. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "rank.h"

static const char *const names[] = {"listen", "connect", "accept", "closeListen", "regMr", "deregMr", "close"};

static void *service_thread(void *rank);
static bool op_steps(struct rank *, struct service_op *);

void service_starts(struct rank *rank) {
    pthread_mutex_init(&rank->service.lock, NULL);
    pthread_cond_init(&rank->service.changed, NULL);
    pthread_create(&rank->service.thread, NULL, service_thread, rank);
}

void service_ends(struct rank *rank) {
    pthread_mutex_lock(&rank->service.lock);
    rank->service.ends = true;
    pthread_cond_signal(&rank->service.changed);
    pthread_mutex_unlock(&rank->service.lock);
    pthread_join(rank->service.thread, NULL);
    pthread_mutex_destroy(&rank->service.lock);
    pthread_cond_destroy(&rank->service.changed);
    rank->service.ends = false;
}

void service_posts(struct rank *rank, struct service_op *ops, int count) {
    pthread_mutex_lock(&rank->service.lock);
    for (int i = 0; i < count; i++) {
        ops[i].next = rank->service.pending;
        rank->service.pending = &ops[i];
    }
    pthread_cond_signal(&rank->service.changed);
    pthread_mutex_unlock(&rank->service.lock);
}

void service_awaits(struct service_op *ops, int count, unsigned seconds) {
    for (int i = 0; i < count; i++) {
        const struct link *link = ops[i].link;
        WAIT_UNTIL(atomic_load(&ops[i].done), seconds, "%s (%d to %d, channel %d) is not done after %u s",
                   names[ops[i].kind], link->from, link->to, link->channel, seconds);
        if (ops[i].result != ABI_SUCCESS) {
            fail("%s (%d to %d, channel %d) gave %d", names[ops[i].kind], link->from, link->to, link->channel,
                 ops[i].result);
        }
    }
}

void service_does(struct rank *rank, enum service_kind kind, struct link *links, int count, unsigned seconds) {
    struct service_op *ops = calloc((size_t)count, sizeof *ops);
    for (int i = 0; i < count; i++) {
        ops[i].kind = kind;
        ops[i].link = &links[i];
    }
    service_posts(rank, ops, count);
    service_awaits(ops, count, seconds);
    free(ops);
}

void links_open(struct rank *rank, struct link *links, int count, size_t memory_bytes) {
    struct service_op *ops = calloc((size_t)count, sizeof *ops);
    for (int i = 0; i < count; i++) {
        if (!links[i].sends) {
            service_does(rank, SERVE_LISTEN, &links[i], 1, 10);
            mail_puts(&links[i]);
        }
    }
    for (int i = 0; i < count; i++) {
        if (links[i].sends) {
            mail_gets(&links[i], 30);
        }
        ops[i].kind = links[i].sends ? SERVE_CONNECT : SERVE_ACCEPT;
        ops[i].link = &links[i];
    }
    service_posts(rank, ops, count);
    service_awaits(ops, count, 30);
    free(ops);
    links_are_open(rank, links, count, memory_bytes);
}

void links_are_open(struct rank *rank, struct link *links, int count, size_t memory_bytes) {
    for (int i = 0; i < count; i++) {
        if (!links[i].sends) {
            service_does(rank, SERVE_CLOSE_LISTEN, &links[i], 1, 10);
        }
        links[i].memory_bytes = memory_bytes;
        links[i].memory = pages(memory_bytes);
    }
    service_does(rank, SERVE_REG, links, count, 10);
}

void links_close(struct rank *rank, struct link *links, int count) {
    service_does(rank, SERVE_DEREG, links, count, 10);
    service_does(rank, SERVE_CLOSE, links, count, 10);
    for (int i = 0; i < count; i++) {
        pages_free(links[i].memory, links[i].memory_bytes);
        links[i].memory = NULL;
    }
}

void mail_puts(const struct link *link) {
    struct mail *mail = &world->mail[link->from][link->to][link->channel];
    WAIT_UNTIL(!atomic_load(&mail->full), 30, "rank %d did not fetch its handle", link->from);
    memcpy(mail->handle, link->handle, sizeof mail->handle);
    atomic_store(&mail->full, 1);
}

void mail_gets(struct link *link, unsigned seconds) {
    struct mail *mail = &world->mail[link->from][link->to][link->channel];
    WAIT_UNTIL(atomic_load(&mail->full), seconds, "no handle of rank %d came", link->to);
    memcpy(link->handle, mail->handle, sizeof mail->handle);
    atomic_store(&mail->full, 0);
}

static void *service_thread(void *argument) {
    struct rank *rank = argument;
    struct service *service = &rank->service;
    my_rank = rank->number;
    pthread_mutex_lock(&service->lock);
    while (!service->ends) {
        if (!service->pending) {
            pthread_cond_wait(&service->changed, &service->lock);
            continue;
        }
        bool moved = false;
        for (struct service_op **at = &service->pending; *at;) {
            struct service_op *op = *at;
            pthread_mutex_unlock(&service->lock);
            bool done = op_steps(rank, op);
            pthread_mutex_lock(&service->lock);
            /* New operations go to the front of the list meanwhile, so search for this one again. */
            for (at = &service->pending; *at != op; at = &(*at)->next) {
            }
            if (done) {
                *at = op->next;
                moved = true;
                atomic_store(&op->done, true);
            } else {
                at = &op->next;
            }
        }
        if (!moved) {
            pthread_mutex_unlock(&service->lock);
            pause_us(50);
            pthread_mutex_lock(&service->lock);
        }
    }
    pthread_mutex_unlock(&service->lock);
    return NULL;
}

/* Makes one attempt; returns whether the operation has ended. */
static bool op_steps(struct rank *rank, struct service_op *op) {
    struct link *link = op->link;
    const struct net *net = rank->net;
    call_begins(CALLER_SERVICE, names[op->kind]);
    switch (op->kind) {
    case SERVE_LISTEN:
        /* The memory comes from a message that held something else before. */
        memset(link->handle, 0xa5, sizeof link->handle);
        link->listen_comm = NULL;
        op->result = net_listen(net, rank->ctx, link->dev, link->handle, &link->listen_comm);
        break;
    case SERVE_CONNECT:
        op->result = net_connect(net, rank->ctx, link->dev, link->handle, &link->comm);
        break;
    case SERVE_ACCEPT:
        op->result = net_accept(net, link->listen_comm, &link->comm);
        break;
    case SERVE_CLOSE_LISTEN:
        op->result = net_close_listen(net, link->listen_comm);
        link->listen_comm = NULL;
        break;
    case SERVE_REG:
        op->result = net_reg(net, link->comm, link->memory, link->memory_bytes, ABI_HOST, &link->mhandle);
        break;
    case SERVE_DEREG:
        op->result = net_dereg(net, link->comm, link->mhandle);
        link->mhandle = NULL;
        break;
    case SERVE_CLOSE:
        op->result = link->sends ? net_close_send(net, link->comm) : net_close_recv(net, link->comm);
        link->comm = NULL;
        break;
    }
    call_ends(CALLER_SERVICE);
    if (op->kind == SERVE_LISTEN && op->result == ABI_SUCCESS && !link->listen_comm) {
        fail("listen gave success and nothing to accept on");
    }
    bool waits = (op->kind == SERVE_CONNECT || op->kind == SERVE_ACCEPT) && !link->comm;
    op->retries += op->result == ABI_SUCCESS && waits;
    return op->result != ABI_SUCCESS || !waits;
}

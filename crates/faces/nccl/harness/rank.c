#include "rank.h"

#include <stdio.h>

#include "base.h"

/* State that a process has once, whatever the number of its ranks. */
static struct {
    pthread_mutex_t lock;
    struct net net;
    int users, devices;
    const struct abi_table_v12 *builtin;
} loaded = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void load(void);

void rank_starts(struct rank *rank) {
    rank_loads(rank, 0x706f6c79u);
    service_starts(rank);
    progress_starts(rank);
}

void rank_ends(struct rank *rank) {
    progress_ends(rank);
    service_ends(rank);
    rank_unloads(rank);
}

void rank_loads(struct rank *rank, uint64_t comm_id) {
    /* NCCL holds a mutex while it loads and initialises plugins, too. */
    pthread_mutex_lock(&loaded.lock);
    bool first = loaded.users++ == 0;
    if (first) {
        load();
    }
    rank->net = &loaded.net;
    if (first || net_has_contexts(rank->net)) {
        call_begins(CALLER_APPLICATION, "init");
        int result = net_init(rank->net, &rank->ctx, comm_id, collect_log);
        call_ends(CALLER_APPLICATION);
        if (result != ABI_SUCCESS) {
            fail("init gave %d", result);
        }
    }
    if (first) {
        call_begins(CALLER_APPLICATION, "devices");
        int result = net_devices(rank->net, &loaded.devices);
        call_ends(CALLER_APPLICATION);
        if (result != ABI_SUCCESS || loaded.devices <= 0) {
            fail("devices gave %d and %d devices", result, loaded.devices);
        }
    }
    rank->devices = loaded.devices;
    pthread_mutex_unlock(&loaded.lock);
}

void rank_unloads(struct rank *rank) {
    pthread_mutex_lock(&loaded.lock);
    call_begins(CALLER_APPLICATION, "finalize");
    int result = net_finalize(rank->net, rank->ctx);
    call_ends(CALLER_APPLICATION);
    if (result != ABI_SUCCESS) {
        fail("finalize gave %d", result);
    }
    if (--loaded.users == 0) {
        net_unload(&loaded.net);
    }
    rank->ctx = NULL;
    pthread_mutex_unlock(&loaded.lock);
}

void rank_takes_builtin(const struct abi_table_v12 *table) {
    loaded.builtin = table;
}

static void load(void) {
    char why[NOTE_BYTES];
    if (loaded.builtin) {
        net_builtin(&loaded.net, loaded.builtin);
    } else if (!net_open(&loaded.net, settings.library, settings.abi, why, sizeof why)) {
        fail("%.300s", why);
    }
}

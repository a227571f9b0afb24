#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base.h"
#include "cases.h"

/* As the address sanitizer does: gcc and clang say it in different ways. */
#ifdef __SANITIZE_ADDRESS__
#define KEEPS_WHAT_IS_FREED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KEEPS_WHAT_IS_FREED
#endif
#endif

static const size_t some_sizes[] = {131072, 0, 1000, 1048576};
static const struct traffic some = {.messages = 24, .depth = 4, .sizes = some_sizes, .sizes_count = 4};

static void properties_are_sane(const struct net *, int dev, const struct net_properties *);
static double cpu_s(void);
static struct footprint settled(struct footprint goal);

void case_properties(struct rank *rank) {
    enum { DEVICES_MAX = 64, ASKED = 1000 };
    struct net_properties first[DEVICES_MAX], again;
    rank_loads(rank, 1);
    const char *name = *rank->net->table.name;
    if (!name || !*name || strlen(name) > 32 || !strcmp(name, "IB") || !strcmp(name, "Socket")) {
        fail("the plugin's name is %s", name ? name : "missing");
    }
    int devices = rank->devices, counted = -1;
    if (devices > DEVICES_MAX || net_devices(rank->net, &counted) || counted != devices) {
        fail("%d devices, and then %d", devices, counted);
    }
    for (int dev = 0; dev < devices; dev++) {
        if (net_get_properties(rank->net, dev, &first[dev]) != ABI_SUCCESS) {
            fail("getProperties of device %d of %d failed", dev, devices);
        }
        properties_are_sane(rank->net, dev, &first[dev]);
        for (int before = 0; before < dev; before++) {
            if (!strcmp(first[before].name, first[dev].name)) {
                fail("devices %d and %d are both named %s, which makes them one", before, dev, first[dev].name);
            }
        }
    }
    for (int asked = 0; asked < ASKED; asked++) {
        int dev = asked % devices;
        if (net_get_properties(rank->net, dev, &again) != ABI_SUCCESS) {
            fail("getProperties failed the second time");
        }
        if (again.name != first[dev].name || again.pci_path != first[dev].pci_path) {
            fail("getProperties makes new strings with every call, which nobody frees");
        }
        if (memcmp(&again.guid, &first[dev].guid, sizeof again.guid) || again.speed != first[dev].speed) {
            fail("device %d has another guid or speed now", dev);
        }
    }
    if (net_get_properties(rank->net, -1, &again) == ABI_SUCCESS ||
        net_get_properties(rank->net, devices + 100, &again) == ABI_SUCCESS) {
        fail("getProperties knows devices that are not there");
    }
    void *listen_comm = NULL;
    char handle[ABI_HANDLE_BYTES];
    if (net_listen(rank->net, rank->ctx, -1, handle, &listen_comm) == ABI_SUCCESS) {
        fail("listen took device -1");
    }
    rank_unloads(rank);
}

void case_symbols(struct rank *rank) {
    char strays[8][64];
    int tables = 0;
    (void)rank;
    int count = stray_symbols(settings.library, strays, 8, &tables);
    if (count < 0) {
        fail("%s is no ELF library", settings.library);
    }
    if (count > 0) {
        fail("%d symbols are exported that others could get by accident: %s%s%s", count, strays[0], count > 1 ? ", " : "",
             count > 1 ? strays[1] : "");
    }
    if (tables < ABI_NEWEST - ABI_OLDEST + 1) {
        fail("%d plugin symbols are exported, at least %d must be", tables, ABI_NEWEST - ABI_OLDEST + 1);
    }
    void *library = dlopen(settings.library, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fail("%.300s", dlerror());
    }
    const char *const *newest = dlsym(library, "ncclNetPlugin_v12");
    if (!newest || !newest[0]) {
        fail("ncclNetPlugin_v12 is missing, or has no name");
    }
    for (int abi = ABI_OLDEST; abi <= ABI_NEWEST; abi++) {
        char symbol[32];
        snprintf(symbol, sizeof symbol, "ncclNetPlugin_v%d", abi);
        const char *const *table = dlsym(library, symbol);
        if (!table) {
            fail("%s is missing", symbol);
        }
        if (!table[0] || strcmp(table[0], newest[0])) {
            fail("%s has another name than version %d", symbol, ABI_NEWEST);
        }
        /* Pointers that every version must have: 1 to 7, 9 to 16. */
        for (int word = 1; word <= 16; word++) {
            if (word != 8 && !table[word]) {
                fail("%s lacks function %d", symbol, word);
            }
        }
    }
    dlclose(library);
}

/* Split communicators and several of one process: each has a context, and ends for itself. */
void case_contexts(struct rank *rank) {
    struct rank other = {.number = rank->number, .process = rank->process};
    struct abi_attributes attributes;
    memset(&attributes, 0xff, sizeof attributes);
    int count;
    rank_starts(rank);
    rank_loads(&other, 99);
    if (net_set_attributes(rank->net, rank->ctx, &attributes) != ABI_SUCCESS) {
        fail("setNetAttr failed");
    }
    struct link *links = ring_links(rank, 2, &count);
    links_open(rank, links, count, traffic_memory(&some));
    rank_unloads(&other);
    struct stream *streams = streams_of(links, count, &some);
    progress_posts(rank, streams, count);
    progress_awaits(streams, count, 60);
    rank_loads(&other, 100);
    links_close(rank, links, count);
    rank_unloads(&other);
    free(streams);
    free(links);
    rank_ends(rank);
}

void case_idle(struct rank *rank) {
    int count;
    rank_starts(rank);
    struct link *links = ring_links(rank, 4, &count);
    links_open(rank, links, count, traffic_memory(&some));
    struct stream *streams = streams_of(links, count, &some);
    progress_posts(rank, streams, count);
    progress_awaits(streams, count, 60);
    meet();
    /* Threads may spin for a moment after the last request. */
    pause_us(300000);
    double before_s = cpu_s();
    uint64_t begun_ns = now_ns();
    pause_us(settings.quick ? 1000000 : 3000000);
    double used = (cpu_s() - before_s) / ((double)(now_ns() - begun_ns) / 1e9);
    if (used > 0.05) {
        fail("with open connections and nothing to do the process uses %.0f %% of a CPU", used * 100);
    }
    links_close(rank, links, count);
    free(streams);
    free(links);
    rank_ends(rank);
}

void case_reload(struct rank *rank) {
    enum { WARM = 10 };
    int rounds = settings.quick ? 20 : 100, count;
    struct footprint warm = {0, 0, 0};
    for (int round = 0; round < rounds; round++) {
        rank_starts(rank);
        struct link *links = ring_links(rank, 1, &count);
        links_move(rank, links, count, &some);
        free(links);
        rank_ends(rank);
        if (round == WARM) {
            warm = settled((struct footprint){0, 0, 0});
        }
    }
    struct footprint now = settled(warm);
    if (now.threads > warm.threads || now.fds > warm.fds) {
        fail("%d loads ago there were %d threads and %d file descriptors, now %d and %d", rounds - WARM, warm.threads,
             warm.fds, now.threads, now.fds);
    }
#ifndef KEEPS_WHAT_IS_FREED
    if (now.resident_bytes > warm.resident_bytes + (24u << 20)) {
        fail("%d loads took %zu MiB of memory that did not come back", rounds - WARM,
             (now.resident_bytes - warm.resident_bytes) >> 20);
    }
#endif
}

static void properties_are_sane(const struct net *net, int dev, const struct net_properties *got) {
    if (!got->name || !*got->name) {
        fail("device %d has no name", dev);
    }
    if (got->pci_path && got->pci_path[0] != '/') {
        fail("device %s: the PCI path \"%s\" is none; without one it must be NULL", got->name, got->pci_path);
    }
    if (!(got->pointers & ABI_HOST) || got->pointers & ~(ABI_HOST | ABI_CUDA | ABI_DMABUF)) {
        fail("device %s: pointer kinds 0x%x", got->name, got->pointers);
    }
    if (got->speed <= 0 || got->speed > 100000000) {
        fail("device %s: a speed of %d Mbit/s", got->name, got->speed);
    }
    if (!(got->latency >= 0 && got->latency < 10000)) {
        fail("device %s: a latency of %g us", got->name, (double)got->latency);
    }
    if (got->comms_max < 1 || got->receives_max < 1 || got->receives_max > 8 || got->port < 0) {
        fail("device %s: %d connections, %d receives, port %d", got->name, got->comms_max, got->receives_max, got->port);
    }
    if (got->device_type != ABI_DEVICE_HOST) {
        fail("device %s: device type %d", got->name, got->device_type);
    }
    if (net->abi >= 9) {
        if (got->p2p_bytes_max == 0 || got->p2p_bytes_max > ABI_MESSAGE_BYTES_MAX || got->collective_bytes_max == 0 ||
            got->collective_bytes_max > ABI_MESSAGE_BYTES_MAX) {
            fail("device %s: messages of at most %zu and %zu bytes; 1 byte to 1 TiB can be", got->name,
                 got->p2p_bytes_max, got->collective_bytes_max);
        }
        if (got->virtual_count < 0 || got->virtual_count > (net->abi == 12 ? 8 : 4)) {
            fail("device %s: consists of %d devices", got->name, got->virtual_count);
        }
        if (got->forces_flush != 0 && got->forces_flush != 1) {
            fail("device %s: forceFlush %d", got->name, got->forces_flush);
        }
    }
    if (net->abi >= 8 && got->registers_globally != 0 && got->registers_globally != 1) {
        fail("device %s: regIsGlobal %d", got->name, got->registers_globally);
    }
    if (net->abi >= 11 && (got->multi_requests_max < 0 || got->multi_requests_max > 32)) {
        fail("device %s: maxMultiRequestSize %d", got->name, got->multi_requests_max);
    }
    if (net->abi >= 12 && (got->rail < -1 || got->plane < -1)) {
        fail("device %s: rail %d, plane %d", got->name, got->rail, got->plane);
    }
}

static double cpu_s(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

/* What the process holds once it reaches the goal, or nothing changes for a while: threads may still be
 * on their way out. */
static struct footprint settled(struct footprint goal) {
    struct footprint now = footprint_now(), before;
    unsigned quiet = 0;
    for (unsigned i = 0; i < 100 * settings.patience && quiet < 20; i++) {
        before = now;
        pause_us(50000);
        now = footprint_now();
        quiet = now.threads == before.threads && now.fds == before.fds ? quiet + 1 : 0;
        if (now.threads <= goal.threads && now.fds <= goal.fds) {
            break;
        }
    }
    return now;
}

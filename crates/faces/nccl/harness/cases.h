/* The cases. Each runs in processes of its own, and says in one sentence what holds if it passes. */
#ifndef CASES_H
#define CASES_H

#include "rank.h"

struct test_case {
    const char *name, *says;
    int processes, ranks_per_process;
    unsigned deadline_s;
    void (*run)(struct rank *);
    /* The first version that it is about. */
    int since;
};

extern const struct test_case cases[];
extern const int cases_count;

/* cases_data.c: bytes. */
void case_sizes(struct rank *);
void case_larger_receive(struct rank *);
void case_zero(struct rank *);
void case_optional(struct rank *);
void case_pressure(struct rank *);
void case_depth(struct rank *);
void case_stalled(struct rank *);
void case_threads(struct rank *);
void case_many(struct rank *);
void case_alltoall(struct rank *);

/* cases_setup.c: connections. */
void case_self(struct rank *);
void case_late_accept(struct rank *);
void case_registration(struct rank *);
void case_bad_handle(struct rank *);
void case_strangers(struct rank *);

/* cases_trouble.c: what must not hang. */
void case_close_outstanding(struct rank *);
void case_peer_closes(struct rank *);
void case_leaves_early(struct rank *);
void case_peer_killed(struct rank *);
void case_fork(struct rank *);

/* cases_library.c: the library as such. */
void case_properties(struct rank *);
void case_symbols(struct rank *);
void case_contexts(struct rank *);
void case_idle(struct rank *);
void case_reload(struct rank *);

/* Links of a ring: on each channel one to the next rank, one from the previous. */
struct link *ring_links(const struct rank *, int channels, int *count);

/* Links to and from each other rank, on each channel. */
struct link *mesh_links(const struct rank *, int channels, int *count);

/* The listening TCP ports of this process, with addresses; how many. */
struct sockaddr_storage;
int listening_ports(struct sockaddr_storage *to, int most);

/* Names that a library defines for others, but for those that a plugin should; how many. */
int stray_symbols(const char *library, char names[][64], int most, int *plugin_symbols);

#endif

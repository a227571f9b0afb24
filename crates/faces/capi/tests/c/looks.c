/* A look makes no system call: the thread that looks may make none, or the kernel ends it. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "refused.h"

#define LOOKS 100000

typedef struct {
    polyrail_transfer *waits, *done;
    int looks, is_over;
} looker;

static void *look(void *argument) {
    looker *own = (looker *)argument;
    polyrail_outcome outcome = polyrail_outcome_init();
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0) {
        while (own->looks < LOOKS && polyrail_transfer_poll(own->waits, &outcome) == POLYRAIL_PENDING &&
               polyrail_transfer_poll(own->done, &outcome) == POLYRAIL_OK) {
            own->looks++;
        }
        own->is_over = 1;
    }
    /* What the C library does at the end of a thread is not allowed any more. */
    syscall(SYS_exit, 0);
    return NULL;
}

int main(void) {
    pair both;
    looker own;
    pthread_t thread;
    open_pair(&both);
    memset(&own, 0, sizeof(own));
    polyrail_segment segment = segment_of(both.here, NULL);
    polyrail_request request = request_of(POLYRAIL_RECEIVE, both.to_b, &segment, 1);
    CHECK(polyrail_submit(both.a, &request, &own.waits));
    segment = segment_of(both.here, both.remote);
    request = request_of(POLYRAIL_WRITE, both.to_b, &segment, 1);
    CHECK(polyrail_submit(both.a, &request, &own.done));
    CHECK(polyrail_transfer_wait(own.done, POLYRAIL_FOREVER, NULL));
    expect(pthread_create(&thread, NULL, look, &own) == 0, "a thread");
    expect(pthread_join(thread, NULL) == 0, "its end");
    expect(own.is_over && own.looks == LOOKS, "every look, and no system call");
    CHECK(polyrail_transfer_free(own.waits));
    CHECK(polyrail_transfer_free(own.done));
    close_pair(&both);
    printf("%d looks without a system call\n", own.looks);
    return 0;
}

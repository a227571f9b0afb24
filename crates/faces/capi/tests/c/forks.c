/* A process that was forked is refused what the other has, and opens engines of its own. Nobody watches this:
 * in the child valgrind takes for lost what belonged to the other's threads, and the address sanitizer waits
 * for a lock of its own that one of them held. */
#include <sys/wait.h>
#include <unistd.h>

#include "refused.h"

int main(void) {
    pair both;
    polyrail_bytes bytes;
    int status = 0;
    open_pair(&both);
    fflush(NULL);
    pid_t child = fork();
    expect(child >= 0, "a child");
    if (child == 0) {
        REFUSED(POLYRAIL_ERR_FORKED, "engine belongs to the process that this one was forked from",
                polyrail_engine_metadata(both.a, &bytes));
        REFUSED(POLYRAIL_ERR_FORKED, "region belongs", polyrail_region_close(both.here));
        REFUSED(POLYRAIL_ERR_FORKED, "engine belongs", polyrail_engine_close(both.a));
        polyrail_engine *own = open_engine("child");
        CHECK(polyrail_engine_metadata(own, &bytes));
        CHECK(polyrail_bytes_free(&bytes));
        CHECK(polyrail_engine_close(own));
        _exit(0);
    }
    expect(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0,
           "the child can do without the parent's engines");
    polyrail_segment segment = segment_of(both.here, both.remote);
    polyrail_request write = request_of(POLYRAIL_WRITE, both.to_b, &segment, 1);
    polyrail_transfer *transfer = NULL;
    CHECK(polyrail_submit(both.a, &write, &transfer));
    CHECK(polyrail_transfer_wait(transfer, POLYRAIL_FOREVER, NULL));
    CHECK(polyrail_transfer_free(transfer));
    close_pair(&both);
    printf("both processes go on\n");
    return 0;
}

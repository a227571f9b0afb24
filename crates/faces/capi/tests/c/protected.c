/* Memory that can't be written is no place for a peer's writes; it may be read. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sys/mman.h>
#include <unistd.h>

#include "refused.h"

#define PAGES 16

static int registers(polyrail_engine *engine, unsigned char *base, size_t length, uint32_t access) {
    polyrail_memory memory = polyrail_memory_init();
    polyrail_region *region = NULL;
    memory.base = base;
    memory.length = length;
    memory.kind = POLYRAIL_HOST;
    memory.access = access;
    int status = polyrail_region_register(engine, &memory, &region);
    if (status == POLYRAIL_OK) {
        CHECK(polyrail_region_close(region));
    }
    return status;
}

int main(void) {
    pair both;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), length = PAGES * page;
    open_pair(&both);
    unsigned char *base = (unsigned char *)mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    expect(base != MAP_FAILED, "memory");
    CHECK(registers(both.a, base, length, POLYRAIL_REMOTE_READ | POLYRAIL_REMOTE_WRITE));

    /* One page in the middle that can only be read. */
    expect(mprotect(base + 5 * page, page, PROT_READ) == 0, "a read-only page");
    CHECK(registers(both.a, base, length, POLYRAIL_REMOTE_READ));
    CHECK(registers(both.a, base, 5 * page, POLYRAIL_REMOTE_WRITE));
    CHECK(registers(both.a, base + 6 * page, length - 6 * page, POLYRAIL_REMOTE_WRITE));
    char address[64];
    snprintf(address, sizeof(address), "%p is mapped read-only", (void *)(base + 5 * page));
    REFUSED(POLYRAIL_ERR_ARGUMENT, address, registers(both.a, base, length, POLYRAIL_REMOTE_WRITE));
    expect(strstr(polyrail_last_help(), "PROT_WRITE") != NULL, polyrail_last_help());

    /* And one without any access. */
    expect(mprotect(base + 5 * page, page, PROT_NONE) == 0, "a page without access");
    REFUSED(POLYRAIL_ERR_ARGUMENT, "mapped without access", registers(both.a, base, length, POLYRAIL_REMOTE_READ));
    CHECK(registers(both.a, base, length, 0));

    expect(munmap(base, length) == 0, "the end of the memory");
    close_pair(&both);
    puts("read-only memory takes no writes");
    return 0;
}

/* Memory of a GPU moves by the same calls as the host's. Without a GPU it says so and ends with 77.
 *
 * The driver is opened at run time, so that this builds without CUDA's headers. A program that has a pointer
 * already, of cudaMalloc() or a tensor, needs no more than open_device_region().
 */
#include <dlfcn.h>

#include "example.h"

#define BYTES ((size_t)4 << 20)
#define WITHOUT_A_GPU 77

typedef int (*init_fn)(unsigned);
typedef int (*device_fn)(int *, int);
typedef int (*retain_fn)(void **, int);
typedef int (*current_fn)(void *);
typedef int (*allocate_fn)(unsigned long long *, size_t);
typedef int (*free_fn)(unsigned long long);

static void *library;

/* ISO C has no conversion from a pointer of data to one of a function, so the bytes are copied. */
static int find_symbol(const char *name, void *function) {
    void *found = dlsym(library, name);
    memcpy(function, &found, sizeof(found));
    return found != NULL;
}

static free_fn free_memory;

static unsigned long long allocate(void) {
    init_fn init;
    device_fn get_device;
    retain_fn retain;
    current_fn make_current;
    allocate_fn allocate_memory;
    unsigned long long pointer = 0;
    void *context = NULL;
    int device = 0;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL || !find_symbol("cuInit", &init) ||
        !find_symbol("cuDeviceGet", &get_device) ||
        !find_symbol("cuDevicePrimaryCtxRetain", &retain) ||
        !find_symbol("cuCtxSetCurrent", &make_current) ||
        !find_symbol("cuMemAlloc_v2", &allocate_memory) ||
        !find_symbol("cuMemFree_v2", &free_memory) || init(0) != 0 ||
        get_device(&device, 0) != 0 || retain(&context, device) != 0 ||
        make_current(context) != 0 || allocate_memory(&pointer, BYTES) != 0) {
        printf("no GPU\n");
        exit(WITHOUT_A_GPU);
    }
    return pointer;
}

static polyrail_region *open_device_region(polyrail_engine *engine, unsigned long long pointer,
                                           uint32_t access) {
    polyrail_memory memory = polyrail_memory_init();
    polyrail_region *region = NULL;
    memory.base = (void *)(uintptr_t)pointer;
    memory.length = BYTES;
    memory.kind = POLYRAIL_CUDA;
    memory.access = access;
    CHECK(polyrail_region_register(engine, &memory, &region));
    return region;
}

int main(void) {
    unsigned long long pointer = allocate();
    unsigned char *source = (unsigned char *)malloc(BYTES), *copy = (unsigned char *)malloc(BYTES);
    for (size_t at = 0; at < BYTES; at++) {
        source[at] = (unsigned char)(at / 3);
    }
    polyrail_engine *a = open_engine("a");
    polyrail_engine *b = open_engine("b");
    polyrail_peer *peer = add_peer(a, b);
    polyrail_region *here = open_region(a, source, BYTES, 0);
    polyrail_region *there = open_device_region(b, pointer, POLYRAIL_REMOTE_WRITE);
    polyrail_remote *remote = import_key(a, there);

    polyrail_segment segment = {here, 0, remote, 0, BYTES};
    polyrail_request write = polyrail_request_init();
    polyrail_prepared *prepared = NULL;
    polyrail_transfer *transfer = NULL;
    polyrail_bytes path;
    write.operation = POLYRAIL_WRITE;
    write.peer = peer;
    write.segments = &segment;
    write.segment_count = 1;
    CHECK(polyrail_prepare(a, &write, &prepared));
    CHECK(polyrail_prepared_path(prepared, &path));
    printf("%s\n", (char *)path.data);
    CHECK(polyrail_bytes_free(&path));
    CHECK(polyrail_post(prepared, &transfer));
    CHECK(polyrail_transfer_wait(transfer, SECONDS(60), NULL));
    CHECK(polyrail_region_read(there, 0, copy, BYTES));
    expect(memcmp(source, copy, BYTES) == 0, "the same bytes on the GPU");
    printf("%zu bytes are right on the GPU\n", BYTES);

    CHECK(polyrail_transfer_free(transfer));
    CHECK(polyrail_prepared_free(prepared));
    CHECK(polyrail_region_close(here));
    CHECK(polyrail_region_close(there));
    CHECK(polyrail_remote_free(remote));
    CHECK(polyrail_peer_free(peer));
    CHECK(polyrail_engine_close(a));
    CHECK(polyrail_engine_close(b));
    free_memory(pointer);
    free(source);
    free(copy);
    return 0;
}

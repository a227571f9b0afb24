/* What valgrind and the address sanitizer must find; else they would not have watched the others. */
#include "refused.h"

int main(int count, char **arguments) {
    const char *fault = count > 1 ? arguments[1] : "";
    polyrail_engine *engine = open_engine("a");
    polyrail_bytes metadata;
    CHECK(polyrail_engine_metadata(engine, &metadata));
    if (strcmp(fault, "leak") == 0) {
        metadata.data = NULL;
    }
    unsigned char *data = metadata.data;
    CHECK(polyrail_bytes_free(&metadata));
    if (strcmp(fault, "freed") == 0) {
        printf("%d\n", *(volatile unsigned char *)data);
    }
    CHECK(polyrail_engine_close(engine));
    return 0;
}

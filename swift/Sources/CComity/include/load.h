// Search for libcomity. Its functions may be called once it was found whole.
#ifndef COMITY_LOAD_H
#define COMITY_LOAD_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    // The loader's words where there is no library, else NULL.
    const char *absence;
    // Version of the library, as `comity_version` numbers it. 0 where there is none.
    uint32_t version;
    // First function of the package that the library lacks, else NULL.
    const char *missing;
} comity_library;

#ifdef COMITY_LINKED
// The program has libcomity in it (`swift/xcframework.sh`).
uint32_t comity_version(void);

static inline comity_library comity_load(void) {
    comity_library linked = {NULL, comity_version(), NULL};
    return linked;
}
#else
// Load it. To be called once, before any other function.
comity_library comity_load(void);
#endif

#endif

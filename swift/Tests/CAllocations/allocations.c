#include "allocations.h"

#include <stddef.h>

#ifdef __GLIBC__
// The program's own functions come before those of the C library.
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

static __thread int64_t count;

void *malloc(size_t size) {
    count++;
    return __libc_malloc(size);
}

void *calloc(size_t number, size_t size) {
    count++;
    return __libc_calloc(number, size);
}

void *realloc(void *old, size_t size) {
    count++;
    return __libc_realloc(old, size);
}

void *aligned_alloc(size_t alignment, size_t size) {
    count++;
    return __libc_memalign(alignment, size);
}

int posix_memalign(void **out, size_t alignment, size_t size) {
    count++;
    *out = __libc_memalign(alignment, size);
    return *out ? 0 : 12;
}

int64_t allocations(void) { return count; }
#else
int64_t allocations(void) { return -1; }
#endif

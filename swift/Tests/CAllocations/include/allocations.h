// Allocations of this thread, counted.
#ifndef ALLOCATIONS_H
#define ALLOCATIONS_H

#include <stdint.h>

// How often this thread has asked for memory; -1 where that is not known.
int64_t allocations(void);

#endif

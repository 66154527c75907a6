#include "raise.h"

// Function of mlx-c, in its header error.h. Swift calls no function with a variable number of arguments.
void _mlx_error(const char *file, const int line, const char *format, ...);

void comity_mlx_raise(const char *message) {
    _mlx_error("Comity", 0, "%s", message);
}

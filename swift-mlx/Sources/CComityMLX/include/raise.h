#pragma once

/// Report an error to the handler that mlx-c has, as its own functions do.
void comity_mlx_raise(const char *message);

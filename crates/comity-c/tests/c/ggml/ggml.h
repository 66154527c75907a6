/* A stand-in for ggml: what examples/c/ggml.c asks of it, by the same names, so that the example is compiled and run without llama.cpp. */
#ifndef STAND_IN_GGML_H
#define STAND_IN_GGML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ggml_type { GGML_TYPE_F32 = 0, GGML_TYPE_F16 = 1 };
enum ggml_tensor_flag { GGML_TENSOR_FLAG_COMPUTE = 16 };

struct ggml_backend_buffer;

struct ggml_tensor {
    enum ggml_type type;
    struct ggml_backend_buffer *buffer;
    int64_t ne[4];
    bool packed;
    int32_t flags;
    struct ggml_tensor *view_src;
    void *data;
};

static inline int64_t ggml_nelements(const struct ggml_tensor *t) { return t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3]; }
static inline bool ggml_is_contiguous(const struct ggml_tensor *t) { return t->packed; }

#endif

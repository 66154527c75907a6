/* A stand-in for ggml's backends: one computes in the background until somebody synchronizes it, and memory of a device is not the host's. */
#ifndef STAND_IN_GGML_BACKEND_H
#define STAND_IN_GGML_BACKEND_H

#include "ggml.h"
#include <stdlib.h>
#include <string.h>

struct ggml_backend_buffer {
    bool host;
};

/* What it computes in the background: `pending` elements of `value` in `into`. */
struct ggml_backend {
    float *into;
    size_t pending;
    float value;
};

typedef struct ggml_backend *ggml_backend_t;
typedef struct ggml_backend_buffer *ggml_backend_buffer_t;
typedef void *(*ggml_backend_comm_init_t)(ggml_backend_t *backends, size_t n_backends);
typedef void (*ggml_backend_comm_free_t)(void *comm_ctx);
typedef bool (*ggml_backend_comm_allreduce_tensor_t)(void *comm_ctx, struct ggml_tensor **tensors);

/* An address of a device is one that the host cannot read: it is far from where the bytes are. */
#define STAND_IN_FAR ((uintptr_t)1 << 62)

static inline bool ggml_backend_buffer_is_host(ggml_backend_buffer_t buffer) { return buffer->host; }

static inline char *stand_in_bytes(const struct ggml_tensor *t) {
    uintptr_t at = (uintptr_t)t->data;
    return (char *)(at & STAND_IN_FAR ? at - STAND_IN_FAR : at);
}

static inline void ggml_backend_tensor_get(const struct ggml_tensor *t, void *data, size_t offset, size_t size) {
    memcpy(data, stand_in_bytes(t) + offset, size);
}

static inline void ggml_backend_tensor_set(struct ggml_tensor *t, const void *data, size_t offset, size_t size) {
    memcpy(stand_in_bytes(t) + offset, data, size);
}

static inline void ggml_backend_synchronize(ggml_backend_t backend) {
    for (; backend->pending > 0; backend->pending--) backend->into[backend->pending - 1] = backend->value;
}

#endif

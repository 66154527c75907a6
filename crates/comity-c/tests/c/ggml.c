/* ggml LIBRARY [refuse]: examples/c/ggml.c, loaded by name as ggml's meta backend would find it, over a stand-in for ggml. */
#include <dlfcn.h>
#include <ggml-backend.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ELEMENTS 1000
#define MOST 3
#define HOLDS(what)                                                           \
    do {                                                                      \
        if (!(what)) {                                                        \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what); \
            exit(1);                                                          \
        }                                                                     \
    } while (0)

static ggml_backend_comm_init_t init;
static ggml_backend_comm_free_t finish;
static ggml_backend_comm_allreduce_tensor_t reduce;

static void *function(void *library, const char *name) {
    void *found = dlsym(library, name);
    HOLDS(found != NULL);
    return found;
}

/* `n` backends of this process, whose tensors are in host memory or not. Rank r computes r + 1 on its first backend, twice that on its second
   and so on, and nothing at all on the one with the number `idle`. */
static void add_up(void *comm, struct ggml_backend *backends, int n, int host, int idle, int rank, int size) {
    static float data[MOST][ELEMENTS];
    struct ggml_backend_buffer buffer = {host != 0};
    struct ggml_tensor tensors[MOST], *given[MOST];
    float right = 0;
    for (int j = 0; j < n; j++) {
        struct ggml_tensor t = {GGML_TYPE_F32, &buffer, {10, 20, 5, 1}, true, GGML_TENSOR_FLAG_COMPUTE, NULL, NULL};
        t.data = (void *)((uintptr_t)data[j] + (host ? 0 : STAND_IN_FAR));
        for (int i = 0; i < ELEMENTS; i++) data[j][i] = 1e9f;
        if (j == idle) {
            t.flags = 0;
        } else {
            backends[j] = (struct ggml_backend){data[j], ELEMENTS, (float)((rank + 1) * (j + 1))};
            right += (float)(size * (size + 1) / 2 * (j + 1));
        }
        tensors[j] = t;
        given[j] = &tensors[j];
    }
    HOLDS(reduce(comm, given));
    for (int j = 0; j < n; j++) {
        for (int i = 0; i < ELEMENTS; i++) HOLDS(data[j][i] == right);
    }
}

int main(int argc, char **argv) {
    HOLDS(argc > 1);
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!library) fprintf(stderr, "%s\n", dlerror());
    HOLDS(library != NULL);
    *(void **)&init = function(library, "ggml_backend_comm_init");
    *(void **)&finish = function(library, "ggml_backend_comm_free");
    *(void **)&reduce = function(library, "ggml_backend_comm_allreduce_tensor");

    struct ggml_backend backends[MOST];
    memset(backends, 0, sizeof backends);
    ggml_backend_t handles[MOST] = {&backends[0], &backends[1], &backends[2]};
    const char *ranks = getenv("COMITY_SIZE"), *own = getenv("COMITY_RANK");
    if (!ranks || !own) {
        HOLDS(init(handles, 2) == NULL);
        HOLDS(!reduce(NULL, NULL));
        finish(NULL);
        printf("all right without a launcher\n");
        return 0;
    }
    int rank = atoi(own), size = atoi(ranks);
    for (int n = 1; n <= MOST; n++) {
        void *comm = init(handles, (size_t)n);
        HOLDS(comm != NULL);
        for (int host = 0; host < 2; host++) {
            add_up(comm, backends, n, host, -1, rank, size);
            add_up(comm, backends, n, host, n - 1, rank, size);
        }
        if (size == 1 || argc > 2) {
            struct ggml_tensor half = {GGML_TYPE_F16, NULL, {8, 1, 1, 1}, true, 0, NULL, NULL};
            struct ggml_tensor *given[MOST] = {&half, &half, &half};
            HOLDS(!reduce(comm, given));
        }
        finish(comm);
    }
    printf("tensors added up on rank %d of %d\n", rank, size);
    return 0;
}

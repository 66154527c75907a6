/* A communicator for ggml's tensor parallelism: each process of a job has one backend of ggml or more, and Comity adds up what all of them
   computed. Built as a shared library:

     cc -shared -fPIC ggml.c -o libcomity-ggml.so -I LLAMA/ggml/include $(pkg-config --cflags --libs comity)

   ggml's meta backend asks the registry of its first device for three functions by these names (ggml-backend.h has their types). Nothing
   hands out those of another library yet: docs/start/c.md says what llama.cpp leaves open. */
#include <comity.h>
#include <ggml-backend.h>
#include <ggml.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *ggml_backend_comm_init(ggml_backend_t *backends, size_t n);
void ggml_backend_comm_free(void *comm);
bool ggml_backend_comm_allreduce_tensor(void *comm, struct ggml_tensor **tensors);

struct communicator {
    comity_group *group;
    ggml_backend_t *backends; /* those of this process */
    size_t n;
    float *sum, *part; /* room for `room` elements each */
    size_t room;
};

/* ggml takes false for "add it up yourself", which it would do within this process alone. So where the other processes are needed and cannot
   be had, this one ends: its launcher then ends the others, with this sentence. */
static void give_up(const char *why) {
    fprintf(stderr, "comity: %s\n", why);
    fflush(stderr);
    _Exit(1);
}

/* Memory that the processor can read. Data of a view is in its source's buffer. */
static bool on_host(const struct ggml_tensor *t) {
    return ggml_backend_buffer_is_host(t->view_src ? t->view_src->buffer : t->buffer);
}

/* Where the split leaves a backend nothing to compute, its tensor holds no zeros but anything. */
static bool computed(const struct ggml_tensor *t) { return (t->flags & GGML_TENSOR_FLAG_COMPUTE) != 0; }

/* All processes. They meet once, however many communicators ggml makes: one for each context of a model. */
static comity_group *job;

static void leave(void) {
    if (comity_group_free(job) != COMITY_OK) fprintf(stderr, "comity: %s\n", comity_last_error());
}

/* NULL where no launcher has started this process: ggml then adds up by itself. Every process makes as many, in the same order. */
void *ggml_backend_comm_init(ggml_backend_t *backends, size_t n) {
    comity_group *group;
    if (!job) {
        comity_status status = comity_init_strict(&job);
        if (status == COMITY_ERR_CONFIG) return NULL;
        if (status != COMITY_OK || atexit(leave) != 0) give_up(comity_last_error());
    }
    if (comity_group_split(job, 0, 0, &group) != COMITY_OK) give_up(comity_last_error());
    struct communicator *c = calloc(1, sizeof *c);
    if (c) c->backends = malloc(n * sizeof *backends);
    if (!c || !c->backends) give_up("no memory for a communicator");
    memcpy(c->backends, backends, n * sizeof *backends);
    c->group = group;
    c->n = n;
    return c;
}

void ggml_backend_comm_free(void *comm) {
    struct communicator *c = comm;
    if (!c) return;
    if (comity_group_free(c->group) != COMITY_OK) fprintf(stderr, "comity: %s\n", comity_last_error());
    free(c->backends);
    free(c->sum);
    free(c->part);
    free(c);
}

/* The sum of this process's tensors, in host memory. */
static float *added_up(struct communicator *c, struct ggml_tensor **tensors, size_t count) {
    if (c->n == 1 && on_host(tensors[0]) && computed(tensors[0])) return tensors[0]->data;
    if (count > c->room) {
        free(c->sum);
        free(c->part);
        c->sum = malloc(count * sizeof(float));
        c->part = malloc(count * sizeof(float));
        if (!c->sum || !c->part) give_up("no memory to add tensors up");
        c->room = count;
    }
    memset(c->sum, 0, count * sizeof(float));
    for (size_t j = 0; j < c->n; j++) {
        if (!computed(tensors[j])) continue;
        const float *part = tensors[j]->data;
        if (!on_host(tensors[j])) {
            ggml_backend_tensor_get(tensors[j], c->part, 0, count * sizeof(float));
            part = c->part;
        }
        for (size_t i = 0; i < count; i++) c->sum[i] += part[i];
    }
    return c->sum;
}

/* `tensors` has one for each backend of this process, of equal shapes, here and in the other processes. Each gets the sum of all. */
bool ggml_backend_comm_allreduce_tensor(void *comm, struct ggml_tensor **tensors) {
    struct communicator *c = comm;
    if (!c) return false;
    size_t count = (size_t)ggml_nelements(tensors[0]);
    for (size_t j = 0; j < c->n; j++) {
        if (tensors[j]->type == GGML_TYPE_F32 && ggml_is_contiguous(tensors[j]) &&
            (size_t)ggml_nelements(tensors[j]) == count) {
            continue;
        }
        if (comity_group_size(c->group) == 1) return false;
        give_up("this example adds up contiguous tensors of F32 only");
    }
    /* Backends compute in the background. */
    for (size_t j = 0; j < c->n; j++) ggml_backend_synchronize(c->backends[j]);
    float *sum = added_up(c, tensors, count);
    if (comity_all_reduce(c->group, sum, sum, (int64_t)count, COMITY_F32, COMITY_SUM) != COMITY_OK) {
        give_up(comity_last_error());
    }
    for (size_t j = 0; j < c->n; j++) {
        if (tensors[j]->data != sum) ggml_backend_tensor_set(tensors[j], sum, 0, count * sizeof(float));
    }
    return true;
}

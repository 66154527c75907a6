/* JAX's CPU collectives over Comity: a library that MPItrampoline, which is in jaxlib, loads in the place of a wrapped MPI.
 *
 *     cc -shared -fPIC mpiwrapper.c -o libcomity_mpi.so $(pkg-config --cflags --libs comity)
 *     MPITRAMPOLINE_LIB=$PWD/libcomity_mpi.so comity launch -n 2 -- python psum.py
 *
 * It is an MPI for JAX and for nothing else: what JAX calls is below, and every other function answers MPI_ERR_OTHER. Communicators are
 * Comity's groups. Sends and receives wait in a list until a wait, which makes all of the group in an order that cannot block: step d
 * goes to the rank d further and comes from the rank d before. */
#include <comity.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "symbols.h"

typedef uintptr_t handle;

/* Each constant is a number of its own, but for these. */
enum { FIRST = 4096 };
#define NUMBER(name) number_##name,
enum { before_all = FIRST, CONSTANTS(NUMBER) after_all };
#define VARIABLE(name) const handle name = number_##name;
CONSTANTS(VARIABLE)
const handle MPIABI_SUCCESS = 0;

#define OWN(name) ((handle)number_MPIABI_##name)
enum { SUCCESS = 0, FAILED = number_MPIABI_ERR_OTHER };

const int mpiabi_version_major = 2, mpiabi_version_minor = 9, mpiabi_version_patch = 0;
const int mpiwrapper_version_major = 2, mpiwrapper_version_minor = 10, mpiwrapper_version_patch = 0;
void mpiwrapper_export_fortran_constants_(void) {}

#define STUB(name)                                                         \
    int name(void) {                                                       \
        fprintf(stderr, "comity: " #name " is none of what JAX calls\n");  \
        return FAILED;                                                     \
    }
UNUSED(STUB)

static comity_group *world;
static int finished;

static int answer(comity_status status) {
    if (status == COMITY_OK) return SUCCESS;
    fprintf(stderr, "comity: %s\n", comity_last_error());
    return FAILED;
}

static comity_group *of(handle comm) { return comm == OWN(COMM_WORLD) ? world : (comity_group *)comm; }

/* Elements of Comity's that one of MPI's is; 0 for a type that JAX does not have. */
static int elements(handle type, comity_dtype *dtype) {
    static const struct { int number; comity_dtype dtype; int count; } types[] = {
        {number_MPIABI_INT8_T, COMITY_I8, 1}, {number_MPIABI_UINT8_T, COMITY_U8, 1}, {number_MPIABI_INT16_T, COMITY_I16, 1},
        {number_MPIABI_UINT16_T, COMITY_U16, 1}, {number_MPIABI_INT32_T, COMITY_I32, 1}, {number_MPIABI_UINT32_T, COMITY_U32, 1},
        {number_MPIABI_INT64_T, COMITY_I64, 1}, {number_MPIABI_UINT64_T, COMITY_U64, 1}, {number_MPIABI_FLOAT, COMITY_F32, 1},
        {number_MPIABI_DOUBLE, COMITY_F64, 1}, {number_MPIABI_C_COMPLEX, COMITY_C64, 1}, {number_MPIABI_BYTE, COMITY_U8, 1},
        {number_MPIABI_C_BOOL, COMITY_BOOL, 1}, {number_MPIABI_INT, COMITY_I32, 1}, {number_MPIABI_CHAR, COMITY_I8, 1},
        /* Of sums alone, in which it is two doubles. */
        {number_MPIABI_C_DOUBLE_COMPLEX, COMITY_F64, 2},
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if ((handle)types[i].number == type) {
            *dtype = types[i].dtype;
            return types[i].count;
        }
    fprintf(stderr, "comity: a type that is none of what JAX uses\n");
    return 0;
}

static int reduction(handle op, comity_reduce_op *out) {
    static const struct { int number; comity_reduce_op op; } ops[] = {
        {number_MPIABI_SUM, COMITY_SUM}, {number_MPIABI_PROD, COMITY_PRODUCT}, {number_MPIABI_MIN, COMITY_MIN}, {number_MPIABI_MAX, COMITY_MAX},
    };
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if ((handle)ops[i].number == op) {
            *out = ops[i].op;
            return 1;
        }
    fprintf(stderr, "comity: a reduction that is none of what JAX uses\n");
    return 0;
}

int MPIABI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    (void)argc, (void)argv, (void)required;
    if (provided) *provided = number_MPIABI_THREAD_MULTIPLE;
    return world ? SUCCESS : answer(comity_init_strict(&world));
}
int MPIABI_Init(int *argc, char ***argv) { return MPIABI_Init_thread(argc, argv, 0, NULL); }
int MPIABI_Initialized(int *flag) { return *flag = world != NULL, SUCCESS; }
int MPIABI_Finalized(int *flag) { return *flag = finished, SUCCESS; }
int MPIABI_Is_thread_main(int *flag) { return *flag = 1, SUCCESS; }
int MPIABI_Query_thread(int *provided) { return *provided = number_MPIABI_THREAD_MULTIPLE, SUCCESS; }
int MPIABI_Finalize(void) {
    comity_group *group = world;
    world = NULL, finished = 1;
    return answer(comity_group_free(group));
}
int MPIABI_Abort(handle comm, int code) {
    comity_group_abort(of(comm), "MPI_Abort was called");
    exit(code ? code : 1);
}
int MPIABI_Get_version(int *major, int *minor) { return *major = 3, *minor = 1, SUCCESS; }
int MPIABI_Get_library_version(char *text, int *length) { return *length = sprintf(text, "Comity %s", comity_version_text()), SUCCESS; }
int MPIABI_Error_string(int code, char *text, int *length) {
    return *length = snprintf(text, 1024, "code %d: %s", code, comity_last_error()), SUCCESS;
}
int MPIABI_Get_count(const void *status, handle type, int *count) { return (void)status, (void)type, *count = number_MPIABI_UNDEFINED, SUCCESS; }
double MPIABI_Wtime(void) { return 0; }
double MPIABI_Wtick(void) { return 1; }

int MPIABI_Comm_rank(handle comm, int *rank) { return *rank = comity_group_rank(of(comm)), *rank < 0 ? FAILED : SUCCESS; }
int MPIABI_Comm_size(handle comm, int *size) { return *size = comity_group_size(of(comm)), *size < 0 ? FAILED : SUCCESS; }
int MPIABI_Comm_split(handle comm, int color, int key, handle *out) {
    comity_group *made = NULL;
    int none = color == number_MPIABI_UNDEFINED;
    int code = answer(comity_group_split(of(comm), none ? -1 : color & 0x7fffffff, key, &made));
    *out = made ? (handle)made : OWN(COMM_NULL);
    return code;
}
int MPIABI_Comm_dup(handle comm, handle *out) { return MPIABI_Comm_split(comm, 0, 0, out); }
int MPIABI_Comm_free(handle *comm) {
    int code = answer(comity_group_free(of(*comm)));
    return *comm = OWN(COMM_NULL), code;
}

int MPIABI_Barrier(handle comm) { return answer(comity_barrier(of(comm))); }
int MPIABI_Bcast(void *buffer, int count, handle type, int root, handle comm) {
    comity_dtype dtype;
    int n = elements(type, &dtype);
    return n ? answer(comity_broadcast(of(comm), buffer, (int64_t)n * count, dtype, root)) : FAILED;
}
int MPIABI_Allreduce(const void *src, void *dst, int count, handle type, handle op, handle comm) {
    comity_dtype dtype;
    comity_reduce_op reduce;
    int n = elements(type, &dtype);
    if (!n || !reduction(op, &reduce) || (n > 1 && reduce != COMITY_SUM)) return FAILED;
    if (src == (const void *)OWN(IN_PLACE)) src = dst;
    return answer(comity_all_reduce(of(comm), src, dst, (int64_t)n * count, dtype, reduce));
}
int MPIABI_Allgather(const void *src, int count, handle type, void *dst, int recv_count, handle recv_type, handle comm) {
    comity_dtype dtype;
    comity_group *group = of(comm);
    int in_place = src == (const void *)OWN(IN_PLACE), n = elements(in_place ? recv_type : type, &dtype);
    int64_t all = (int64_t)n * (in_place ? recv_count : count);
    if (in_place) src = (char *)dst + (size_t)comity_group_rank(group) * (size_t)all * comity_dtype_size(dtype);
    return n ? answer(comity_all_gather(group, src, dst, all, dtype)) : FAILED;
}
int MPIABI_Alltoall(const void *src, int count, handle type, void *dst, int recv_count, handle recv_type, handle comm) {
    comity_dtype dtype;
    int in_place = src == (const void *)OWN(IN_PLACE), n = elements(in_place ? recv_type : type, &dtype);
    return n ? answer(comity_all_to_all(of(comm), in_place ? dst : src, dst, (int64_t)n * (in_place ? recv_count : count), dtype)) : FAILED;
}
int MPIABI_Reduce_scatter_block(const void *src, void *dst, int count, handle type, handle op, handle comm) {
    comity_dtype dtype;
    comity_reduce_op reduce;
    int n = elements(type, &dtype);
    if (!n || !reduction(op, &reduce) || (n > 1 && reduce != COMITY_SUM)) return FAILED;
    return answer(comity_reduce_scatter(of(comm), src, dst, (int64_t)n * count, dtype, reduce));
}
int MPIABI_Reduce_scatter(const void *src, void *dst, const int *counts, handle type, handle op, handle comm) {
    comity_dtype dtype;
    comity_reduce_op reduce;
    int n = elements(type, &dtype), size = comity_group_size(of(comm));
    if (!n || !reduction(op, &reduce) || (n > 1 && reduce != COMITY_SUM) || size < 1) return FAILED;
    int64_t *wide = malloc((size_t)size * sizeof *wide);
    if (!wide) return FAILED;
    for (int r = 0; r < size; r++) wide[r] = (int64_t)n * counts[r];
    int code = answer(comity_reduce_scatter_v(of(comm), src, dst, wide, dtype, reduce));
    return free(wide), code;
}

/* A message that waits for a wait: JAX posts all that belong together before it waits for the first. */
struct message {
    comity_group *group;
    void *buffer;
    int64_t count;
    comity_dtype dtype;
    int peer, tag, sends, taken, done, code;
    struct message *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t news = PTHREAD_COND_INITIALIZER;
static struct message *posted;
/* Groups whose messages some thread moves. */
static comity_group *busy[64];

static int later(void *buffer, int count, handle type, int peer, int tag, handle comm, int sends, handle *request) {
    struct message *m = calloc(1, sizeof *m), **at = &posted;
    int n = m ? elements(type, &m->dtype) : 0;
    if (!n) return free(m), FAILED;
    m->group = of(comm), m->buffer = buffer, m->count = (int64_t)n * count;
    m->peer = peer, m->tag = tag, m->sends = sends;
    pthread_mutex_lock(&lock);
    while (*at) at = &(*at)->next;
    *at = m;
    pthread_mutex_unlock(&lock);
    return *request = (handle)m, SUCCESS;
}
int MPIABI_Isend(const void *src, int count, handle type, int to, int tag, handle comm, handle *request) {
    return later((void *)(uintptr_t)src, count, type, to, tag, comm, 1, request);
}
int MPIABI_Irecv(void *dst, int count, handle type, int from, int tag, handle comm, handle *request) {
    return later(dst, count, type, from, tag, comm, 0, request);
}

/* The first message of this direction, group and rank that nobody has taken. */
static struct message *take(comity_group *group, int sends, int peer) {
    for (struct message *m = posted; m; m = m->next)
        if (!m->taken && m->group == group && m->sends == sends && m->peer == peer) return m->taken = 1, m;
    return NULL;
}

static void move(struct message *out, struct message *in) {
    int code;
    if (out && in && out->peer == comity_group_rank(out->group)) {
        memcpy(in->buffer, out->buffer, (size_t)in->count * comity_dtype_size(in->dtype));
        code = SUCCESS;
    } else if (out && in && out->dtype == in->dtype && out->tag == in->tag) {
        code = answer(comity_sendrecv(out->group, out->buffer, out->count, out->peer, in->buffer, in->count, in->peer, in->dtype, (uint32_t)in->tag));
    } else {
        code = out ? answer(comity_send(out->group, out->buffer, out->count, out->dtype, out->peer, (uint32_t)out->tag)) : SUCCESS;
        if (in && code == SUCCESS) code = answer(comity_recv(in->group, in->buffer, in->count, in->dtype, in->peer, (uint32_t)in->tag));
    }
    if (out) out->code = code;
    if (in) in->code = code;
}

/* The place of a group that some thread moves, or of none where `group` is NULL; -1 if there is none. */
static int place(const comity_group *group) {
    for (int i = 0; i < 64; i++)
        if (busy[i] == group) return i;
    return -1;
}

/* Move all that was posted for a group. Without the lock while bytes move: other groups go on. */
static void move_all(comity_group *group) {
    int rank = comity_group_rank(group), size = comity_group_size(group), at = place(NULL);
    if (at < 0) abort();
    busy[at] = group;
    for (int again = 1; again;) {
        again = 0;
        for (int d = 0; d < size; d++) {
            struct message *out = take(group, 1, (rank + d) % size), *in = take(group, 0, (rank - d + size) % size);
            if (!out && !in) continue;
            again = 1;
            pthread_mutex_unlock(&lock);
            move(out, in);
            pthread_mutex_lock(&lock);
            if (out) out->done = 1;
            if (in) in->done = 1;
        }
    }
    busy[at] = NULL;
    pthread_cond_broadcast(&news);
}

int MPIABI_Waitall(int n, handle *all, void *statuses) {
    int code = SUCCESS;
    (void)statuses;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n; i++) {
        struct message *m = (struct message *)all[i], **at = &posted;
        if (all[i] == OWN(REQUEST_NULL)) continue;
        while (!m->done) {
            if (place(m->group) < 0) move_all(m->group);
            else pthread_cond_wait(&news, &lock);
        }
        if (m->code) code = m->code;
        while (*at != m) at = &(*at)->next;
        *at = m->next;
        free(m), all[i] = OWN(REQUEST_NULL);
    }
    pthread_mutex_unlock(&lock);
    return code;
}
int MPIABI_Wait(handle *request, void *status) { return MPIABI_Waitall(1, request, status); }
int MPIABI_Send(const void *src, int count, handle type, int to, int tag, handle comm) {
    handle request;
    int code = MPIABI_Isend(src, count, type, to, tag, comm, &request);
    return code ? code : MPIABI_Wait(&request, NULL);
}
int MPIABI_Recv(void *dst, int count, handle type, int from, int tag, handle comm, void *status) {
    handle request;
    int code = MPIABI_Irecv(dst, count, type, from, tag, comm, &request);
    return code ? code : MPIABI_Wait(&request, status);
}
int MPIABI_Sendrecv(const void *src, int count, handle type, int to, int tag, void *dst, int recv_count, handle recv_type, int from,
                    int recv_tag, handle comm, void *status) {
    handle both[2];
    int code = MPIABI_Isend(src, count, type, to, tag, comm, &both[0]);
    if (!code) code = MPIABI_Irecv(dst, recv_count, recv_type, from, recv_tag, comm, &both[1]);
    return code ? code : MPIABI_Waitall(2, both, status);
}

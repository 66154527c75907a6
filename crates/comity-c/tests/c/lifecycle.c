/* Requests, callbacks, splits, forks, and groups that threads share: the rest of the interface, on 2 ranks or more. */
#include "common.h"
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static comity_group *group;
static int rank, size;

static void done(void *context) { __atomic_store_n((int *)context, 1, __ATOMIC_SEQ_CST); }

static void requests(void) {
    enum { MANY = 20 };
    comity_request *all[MANY];
    static float x[MANY][100];
    int told[MANY] = {0}, ended = 0;
    for (int i = 0; i < MANY; i++) {
        comity_call call = call_of(COMITY_OP_ALL_REDUCE);
        for (int k = 0; k < 100; k++) x[i][k] = (float)i;
        call.dtype = COMITY_F32, call.src = x[i], call.dst = x[i], call.count = 100;
        OK(comity_start(group, &call, &all[i]));
        OK(comity_request_on_done(all[i], done, &told[i]));
    }
    while (ended < MANY) {
        int32_t index = -2;
        OK(comity_request_wait_any(all, MANY, -1, &index));
        HOLDS(index >= 0 && index < MANY && x[index][99] == (float)(index * size));
        OK(comity_request_test(all[index]));
        OK(comity_request_free(all[index]));
        all[index] = NULL, ended++;
    }
    int32_t index = -2;
    OK(comity_request_wait_any(all, MANY, -1, &index));
    HOLDS(index == -1);
    OK(comity_barrier(group));
    for (int i = 0; i < MANY; i++)
        for (int k = 0; !__atomic_load_n(&told[i], __ATOMIC_SEQ_CST); k++) {
            HOLDS(k < 30000);
            usleep(1000);
        }
    /* Freed before it has ended: the work goes on. */
    static float y[10] = {1};
    comity_call call = call_of(COMITY_OP_ALL_REDUCE);
    comity_request *request;
    call.dtype = COMITY_F32, call.src = y, call.dst = y, call.count = 10;
    OK(comity_start(group, &call, &request));
    OK(comity_request_free(request));
    OK(comity_barrier(group));
    HOLDS(y[0] == (float)size);
}

static void groups(void) {
    comity_group *half, *pair;
    int32_t members[2] = {0, 1}, x = 1;
    OK(comity_group_split(group, rank % 2, -rank, &half));
    int n = comity_group_size(half);
    HOLDS(n == (rank % 2 ? size / 2 : (size + 1) / 2) && comity_group_rank(half) == n - 1 - rank / 2);
    OK(comity_all_reduce(half, &x, &x, 1, COMITY_I32, COMITY_SUM));
    HOLDS(x == n);
    OK(comity_group_free(half));
    OK(comity_group_split(group, rank == 0 ? 3 : -1, 0, &half));
    HOLDS((half != NULL) == (rank == 0));
    OK(comity_group_free(half));
    if (rank < 2) {
        OK(comity_group_subgroup(group, members, 2, 9, &pair));
        OK(comity_barrier(pair));
        OK(comity_group_free(pair));
    }
    comity_stats stats = {sizeof stats, 0, 0, 0, 0, 0, 0};
    OK(comity_group_stats(group, &stats));
    HOLDS(stats.calls > 20 && stats.errors == 0 && stats.bytes_sent > 0);
    for (int r = 0; r < size; r++) {
        comity_member member;
        member.size = sizeof member;
        OK(comity_group_member(group, r, &member));
        HOLDS(member.rank == r && member.pid > 0 && member.host && (member.link == NULL) == (r == rank));
        HOLDS(r != rank || member.pid == getpid());
    }
    OK(comity_group_set_timeout(group, 60));
    HOLDS(comity_group_timeout(group) == 60 && comity_group_device(group) == -1);
}

static void forked(void) {
    comity_group *own;
    float x = 2;
    pid_t child = fork();
    HOLDS(child >= 0);
    if (child == 0) {
        WANT(COMITY_ERR_FORKED, comity_barrier(group));
        WANT(COMITY_ERR_FORKED, comity_group_close(group));
        WANT(COMITY_ERR_FORKED, comity_init(&own)); /* its parent's place is taken */
        OK(comity_group_free(group));
        WANT(COMITY_ERR_MISUSE, comity_barrier(group));
        OK(comity_init_local(1, &own));
        OK(comity_all_reduce(own, &x, &x, 1, COMITY_F32, COMITY_AVG));
        OK(comity_group_free(own));
        _exit(x == 2 ? 0 : 1); /* what the parent has is not the child's to clear away */
    }
    int status = -1;
    HOLDS(waitpid(child, &status, 0) == child && status == 0);
    OK(comity_barrier(group));
}

static void *use(void *shared) {
    long *told = (long *)shared;
    for (;;) {
        int r = comity_group_rank((comity_group *)__atomic_load_n(&told[0], __ATOMIC_SEQ_CST));
        if (r == -1) return NULL;
        HOLDS(r == 0);
    }
}

/* One thread frees what others use. */
static void shared(void) {
    for (int i = 0; i < 20; i++) {
        comity_group *own;
        pthread_t threads[2];
        OK(comity_init_local(1, &own));
        long told = (long)own;
        for (int t = 0; t < 2; t++) HOLDS(pthread_create(&threads[t], NULL, use, &told) == 0);
        usleep(500);
        OK(comity_group_free(own));
        for (int t = 0; t < 2; t++) pthread_join(threads[t], NULL);
    }
}

int main(void) {
    OK(comity_init_strict(&group));
    rank = comity_group_rank(group), size = comity_group_size(group);
    requests();
    groups();
    forked();
    shared();
    OK(comity_barrier(group));
    OK(comity_group_close(group));
    WANT(COMITY_ERR_CLOSED, comity_barrier(group));
    OK(comity_group_free(group));
    printf("all right on rank %d of %d\n", rank, size);
    return 0;
}

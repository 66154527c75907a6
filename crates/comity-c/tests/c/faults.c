/* faults WHAT: what a rank is told when another one fails. */
#include "common.h"
#include <signal.h>
#include <unistd.h>

/* The last rank leaves, and the others go on, with the state of rank 0. */
static void form_again(comity_group *group, int rank, int size) {
    comity_reform_options options = {sizeof options, size, 0, 30};
    comity_group *next;
    comity_departure who;
    comity_error *error;
    float x[4] = {(float)rank, 2, 3, 4};
    int64_t step = rank == 0 ? 7 : 6;
    WANT(COMITY_ERR_ABORTED, comity_barrier(group));
    HOLDS(strstr(comity_last_error(), "call the group's reform") != NULL);
    if (rank == size - 1) return;
    WANT(COMITY_ERR_JOIN, comity_group_reform(group, &options, &next));
    comity_error_info info = last(&error);
    HOLDS(info.rank == size - 1);
    OK(comity_error_free(error));
    options.fewest = size - 1;
    OK(comity_group_reform(group, &options, &next));
    HOLDS(comity_group_rank(next) == rank && comity_group_size(next) == size - 1);
    HOLDS(comity_group_joined(next) == 0 && comity_group_left(next) == 1 && comity_group_joiners(next) == 0);
    who.size = sizeof who;
    OK(comity_group_departure(next, 0, &who));
    HOLDS(who.rank == size - 1 && who.pid > 0 && who.host && strlen(who.why) > 0);
    WANT(COMITY_ERR_MISUSE, comity_group_departure(next, 1, &who));
    comity_buffer state[2] = {{x, 4, COMITY_F32, 0}, {&step, 1, COMITY_I64, 0}};
    OK(comity_sync(next, state, 2, rank == 0));
    HOLDS(x[0] == 0 && x[3] == 4 && step == 7);
    state[1] = (comity_buffer){x + 1, 1, COMITY_F32, 0};
    WANT(COMITY_ERR_MISUSE, comity_sync(next, state, 2, 1));
    OK(comity_all_reduce(next, x, x, 4, COMITY_F32, COMITY_SUM));
    HOLDS(x[1] == 2 * (float)(size - 1));
    OK(comity_group_free(next));
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    /* The second is for words about the first. */
    comity_group *group, *beside;
    comity_error *error;
    comity_error_info info;
    float x[8] = {0};
    OK(comity_init_strict(&group));
    int rank = comity_group_rank(group), size = comity_group_size(group);
    OK(comity_group_split(group, 0, rank, &beside));
    /* All have left the split before the group fails. */
    OK(comity_barrier(beside));

    if (strcmp(what, "killed") == 0) {
        if (rank == size - 1) {
            /* The others are in no call when they have sent this. */
            for (int r = 0; r < rank; r++) OK(comity_recv(group, x, 1, COMITY_F32, r, 5));
            raise(SIGKILL);
        }
        OK(comity_send(group, x, 1, COMITY_F32, size - 1, 5));
        WANT(COMITY_ERR_PEER_LOST, comity_all_reduce(group, x, x, 8, COMITY_F32, COMITY_SUM));
        info = last(&error);
        HOLDS(info.rank == size - 1 && info.fatal && !info.earlier && info.host && info.pid > 0 && info.rank_count == 1);
        HOLDS(strstr(info.call, "all_reduce") != NULL);
    } else if (strcmp(what, "mismatch") == 0) {
        int odd = rank == size - 1;
        WANT(COMITY_ERR_MISMATCH, comity_all_reduce(group, x, x, odd ? 7 : 8, COMITY_F32, COMITY_SUM));
        info = last(&error);
        HOLDS(strcmp(info.differs, "count") == 0 && info.fatal);
        HOLDS(strstr(info.call, "f32[") && strstr(info.peer_call, "f32[") && strcmp(info.call, info.peer_call) != 0);
        HOLDS(info.rank >= 0 && info.ranks[0] == info.rank);
    } else if (strcmp(what, "timeout") == 0) {
        comity_call call = call_of(COMITY_OP_ALL_REDUCE);
        call.dtype = COMITY_F32, call.src = x, call.dst = x, call.count = 8, call.timeout = 2.0;
        if (rank == size - 1) {
            OK(comity_barrier(beside));
            /* It made nobody wait beyond its own limit; the others gave the group up. What they had sent before may do for one call. */
            comity_status first = comity_run(group, &call);
            WANT(COMITY_ERR_ABORTED, first == COMITY_OK ? comity_run(group, &call) : first);
            info = last(&error);
            HOLDS(info.rank >= 0 && info.rank < rank && strstr(info.text, "timed out"));
        } else {
            WANT(COMITY_ERR_TIMEOUT, comity_run(group, &call));
            info = last(&error);
            HOLDS(info.rank == size - 1 && info.timeout == 2.0 && info.host);
            OK(comity_barrier(beside));
        }
    } else if (strcmp(what, "abort") == 0) {
        if (rank == 0) {
            OK(comity_barrier(beside));
            OK(comity_group_abort(group, "the loss is not a number"));
            WANT(COMITY_ERR_ABORTED, comity_barrier(group));
        } else {
            comity_request *request;
            comity_call call = call_of(COMITY_OP_BARRIER);
            OK(comity_start(group, &call, &request));
            WANT(COMITY_PENDING, comity_request_test(request));
            WANT(COMITY_PENDING, comity_request_wait(request, 0.05));
            OK(comity_barrier(beside));
            WANT(COMITY_ERR_ABORTED, comity_request_wait(request, -1));
            OK(comity_request_free(request));
        }
        info = last(&error);
        HOLDS(info.rank == 0 && strstr(info.text, "the loss is not a number"));
    } else {
        fprintf(stderr, "faults killed|mismatch|timeout|abort\n");
        return 2;
    }
    comity_status first = info.status;
    OK(comity_error_free(error));
    WANT(COMITY_ERR_MISUSE, comity_error_get(error, &info));
    /* The group stays failed, and says why. */
    WANT(first, comity_barrier(group));
    info = last(&error);
    HOLDS(info.earlier && info.status == first);
    OK(comity_error_free(error));
    if (strcmp(what, "abort") == 0 && size > 2) form_again(group, rank, size);
    printf("rank %d was told: %s\n", rank, what);
    fflush(stdout);
    comity_group_free(beside);
    comity_group_free(group);
    return 0;
}

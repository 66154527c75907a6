/* faults WHAT: what a rank is told when another one fails. */
#include "common.h"
#include <signal.h>
#include <unistd.h>

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    comity_group *group;
    comity_error *error;
    comity_error_info info;
    float x[8] = {0};
    OK(comity_init_strict(&group));
    int rank = comity_group_rank(group), size = comity_group_size(group);
    OK(comity_barrier(group));

    if (strcmp(what, "killed") == 0) {
        if (rank == size - 1) raise(SIGKILL);
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
        call.dtype = COMITY_F32, call.src = x, call.dst = x, call.count = 8, call.timeout = 1.0;
        if (rank == size - 1) {
            sleep(3);
            /* It made nobody wait beyond its own limit; the others gave the group up. */
            WANT(COMITY_ERR_ABORTED, comity_run(group, &call));
            info = last(&error);
            HOLDS(info.rank >= 0 && info.rank < rank && strstr(info.text, "timed out"));
        } else {
            WANT(COMITY_ERR_TIMEOUT, comity_run(group, &call));
            info = last(&error);
            HOLDS(info.rank == size - 1 && info.timeout == 1.0 && info.host);
            sleep(3);
        }
    } else if (strcmp(what, "abort") == 0) {
        if (rank == 0) {
            sleep(1);
            OK(comity_group_abort(group, "the loss is not a number"));
            WANT(COMITY_ERR_ABORTED, comity_barrier(group));
        } else {
            comity_request *request;
            comity_call call = call_of(COMITY_OP_BARRIER);
            OK(comity_start(group, &call, &request));
            WANT(COMITY_PENDING, comity_request_test(request));
            WANT(COMITY_PENDING, comity_request_wait(request, 0.05));
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
    printf("rank %d was told: %s\n", rank, what);
    fflush(stdout);
    comity_group_free(group);
    return 0;
}

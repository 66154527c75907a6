/* allreduce [ELEMENTS]: the average of gradients, timed, and what to do with an error. */
#define _POSIX_C_SOURCE 200809L
#include <comity.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Say whose fault it was, for a program that restarts without that rank. */
static int failed(void) {
    comity_error *error;
    comity_error_info info;
    memset(&info, 0, sizeof info);
    info.size = sizeof info;
    if (comity_error_take(&error) == COMITY_OK && comity_error_get(error, &info) == COMITY_OK) {
        fprintf(stderr, "%s (rank %d on %s): %s\n", comity_status_name(info.status), (int)info.rank,
                info.host ? info.host : "?", info.text);
    }
    comity_error_free(error);
    return 1;
}

int main(int argc, char **argv) {
    int64_t n = argc > 1 ? atoll(argv[1]) : 1000000;
    comity_group *group;
    if (comity_init(&group) != COMITY_OK) return failed();
    int rank = comity_group_rank(group), size = comity_group_size(group);
    float *gradients = malloc((size_t)n * sizeof *gradients);
    if (!gradients) return 1;
    for (int64_t i = 0; i < n; i++) gradients[i] = (float)rank;

    double begun = now();
    if (comity_all_reduce(group, gradients, gradients, n, COMITY_F32, COMITY_AVG) != COMITY_OK) return failed();
    double took = now() - begun;

    float right = (float)(size - 1) / 2;
    for (int64_t i = 0; i < n; i++) {
        if (gradients[i] != right) {
            fprintf(stderr, "element %ld is %g and not %g\n", (long)i, gradients[i], right);
            return 1;
        }
    }
    if (rank == 0) printf("%ld floats averaged over %d ranks in %.3f ms\n", (long)n, size, took * 1e3);
    free(gradients);
    return comity_group_free(group) == COMITY_OK ? 0 : failed();
}

/* speed ROUNDS: what an all_reduce of 8 bytes takes through C; examples/speed.rs asks the same through Rust. */
#include "common.h"
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* The least mean of seven runs, in nanoseconds. */
static double measured(comity_group *group, long rounds) {
    float x[2] = {1, 1};
    double best = 1e9;
    for (int k = 0; k < 7; k++) {
        OK(comity_barrier(group));
        double begun = now();
        for (long i = 0; i < rounds; i++) OK(comity_all_reduce(group, x, x, 2, COMITY_F32, COMITY_MAX));
        double took = (now() - begun) / (double)rounds;
        if (took < best) best = took;
    }
    return best * 1e9;
}

int main(int argc, char **argv) {
    long rounds = argc > 1 ? atol(argv[1]) : 200000;
    comity_group *group, *alone;
    OK(comity_init(&group));
    OK(comity_init_local(1, &alone));
    double together = measured(group, rounds), single = measured(alone, rounds);
    if (comity_group_rank(group) == 0) printf("c %.1f ns\nc, alone %.1f ns\n", together, single);
    OK(comity_group_free(alone));
    OK(comity_group_free(group));
    return 0;
}

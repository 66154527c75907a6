/* eight_bytes EMPTY CALLS: crates/comity/examples/eight_bytes.rs through C. */
#include "common.h"
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

/* Calls before those that are counted. */
enum { FIRST = 20, PATIENCE = 10000 };

static comity_group *group;
static int rank, size;

/* Ignored where no tracer looks. */
static void marker(void) { raise(SIGURG); }

static void one_call(int marks) {
    float x[2] = {1, 1};
    if (marks) marker();
    OK(comity_all_reduce(group, x, x, 2, COMITY_F32, COMITY_SUM));
    if (marks) marker();
    HOLDS(x[0] == (float)size && x[1] == (float)size);
}

/* Says which process this is. Rank 0 waits for the tracer. */
static void meet_tracer(void) {
    const char *folder = getenv("COUNTED_IN");
    if (!folder) return;
    char path[4096];
    HOLDS(snprintf(path, sizeof path, "%s/rank-%d", folder, rank) < (int)sizeof path);
    FILE *file = fopen(path, "w");
    HOLDS(file && fprintf(file, "%ld\n", (long)getpid()) > 0 && fclose(file) == 0);
    HOLDS(snprintf(path, sizeof path, "%s/go", folder) < (int)sizeof path);
    for (int k = 0; rank == 0 && k < PATIENCE && access(path, F_OK) != 0; k++) usleep(2000);
}

int main(int argc, char **argv) {
    int empty = argc > 1 ? atoi(argv[1]) : 0, calls = argc > 2 ? atoi(argv[2]) : 0;
    OK(comity_init(&group));
    rank = comity_group_rank(group), size = comity_group_size(group);
    meet_tracer();
    for (int i = 0; i < FIRST; i++) one_call(0);
    for (int i = 0; rank == 0 && i < empty; i++) {
        marker();
        marker();
    }
    for (int i = 0; i < calls; i++) one_call(rank == 0);
    printf("rank %d of %d: %d calls\n", rank, size, calls);
    OK(comity_group_free(group));
    return 0;
}

/* An MPI library timed as `comity bench --raw` times Comity, for `cargo xtask bench`, which compiles it with each MPI's compiler.
 *
 *   mpi OPS SIZES BUDGET TAG     e.g. all_reduce,barrier 8,1024 0.15 /folder/tag
 *
 * Calls are made back to back, without a barrier between them. A sample is a call, or the mean of a batch where more fit into
 * BUDGET seconds than are kept. Each rank writes a line for each operation and size to TAG.rN.jsonl.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { MOST_SAMPLES = 20000, LEAST_STEPS = 5, WARM = 20, PAGE = 4096, OVERRUN = 4 };

/* The buffers of an operation: what is given, what is got; an all_reduce and a broadcast have the second one alone. */
struct cell {
    const char *op;
    float *give, *get;
    size_t given, got;
};

static int rank, ranks;

static int is(const struct cell *c, const char *op) { return strcmp(c->op, op) == 0; }

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

/* Seconds that all cores have worked, for whomever. */
static double busy(void) {
    double f[7] = {0};
    FILE *stat = fopen("/proc/stat", "r");
    if (!stat) return 0;
    int n = fscanf(stat, "cpu %lf %lf %lf %lf %lf %lf %lf", f, f + 1, f + 2, f + 3, f + 4, f + 5, f + 6);
    fclose(stat);
    return n == 7 ? (f[0] + f[1] + f[2] + f[5] + f[6]) / sysconf(_SC_CLK_TCK) : 0;
}

static double seconds(struct timeval t) { return t.tv_sec + t.tv_usec * 1e-6; }

/* The most memory that this process has had. */
static long peak_kib(void) {
    char line[256];
    long kib = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        if (sscanf(line, "VmHWM: %ld", &kib) == 1) break;
    if (status) fclose(status);
    return kib;
}

static void fill(float *p, size_t n, float v) {
    for (size_t i = 0; i < n; i++) p[i] = v;
}

static int all(const float *p, size_t n, float v) {
    for (size_t i = 0; i < n; i++)
        if (p[i] != v) return 0;
    return 1;
}

/* Buffers whose every page was written: the first touch of a page is no part of a call. */
static float *buffer(size_t n) {
    float *p = aligned_alloc(PAGE, (n * sizeof *p + PAGE) / PAGE * PAGE);
    if (!p) {
        fprintf(stderr, "no memory for %zu elements\n", n);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    fill(p, n, 0);
    return p;
}

static struct cell prepare(const char *op, size_t bytes) {
    struct cell c = {.op = op, .got = bytes / sizeof(float)};
    size_t part = c.got / ranks;
    if (is(&c, "all_gather")) c.given = part, c.got = part * ranks;
    if (is(&c, "reduce_scatter")) c.given = part * ranks, c.got = part;
    if (is(&c, "all_to_all")) c.given = c.got = part * ranks;
    if (is(&c, "pingpong")) c.given = c.got;
    if (is(&c, "barrier")) c.got = 0;
    c.give = buffer(c.given);
    c.get = buffer(c.got);
    return c;
}

/* What is timed. */
static void step(struct cell *c) {
    MPI_Comm w = MPI_COMM_WORLD;
    if (is(c, "all_reduce")) MPI_Allreduce(MPI_IN_PLACE, c->get, c->got, MPI_FLOAT, MPI_SUM, w);
    else if (is(c, "all_gather")) MPI_Allgather(c->give, c->given, MPI_FLOAT, c->get, c->given, MPI_FLOAT, w);
    else if (is(c, "reduce_scatter")) MPI_Reduce_scatter_block(c->give, c->get, c->got, MPI_FLOAT, MPI_SUM, w);
    else if (is(c, "all_to_all"))
        MPI_Alltoall(c->give, c->given / ranks, MPI_FLOAT, c->get, c->got / ranks, MPI_FLOAT, w);
    else if (is(c, "barrier")) MPI_Barrier(w);
    else if (is(c, "broadcast")) {
        MPI_Bcast(c->get, c->got, MPI_FLOAT, 0, w);
        MPI_Bcast(c->get, c->got, MPI_FLOAT, 1 % ranks, w);
    } else if (rank == 0) {
        MPI_Send(c->give, c->given, MPI_FLOAT, 1, 0, w);
        MPI_Recv(c->get, c->got, MPI_FLOAT, 1, 0, w, MPI_STATUS_IGNORE);
    } else if (rank == 1) {
        MPI_Recv(c->get, c->got, MPI_FLOAT, 0, 0, w, MPI_STATUS_IGNORE);
        MPI_Send(c->give, c->given, MPI_FLOAT, 0, 0, w);
    }
}

/* Steps have so many calls. */
static int calls(const struct cell *c) { return is(c, "broadcast") || is(c, "pingpong") ? 2 : 1; }

/* Whether a call gives what it has to; zeros are left behind. */
static int check(struct cell *c) {
    float sum = ranks * (ranks + 1) / 2.0f;
    size_t part = c->got / ranks;
    int ok = 1;
    fill(c->give, c->given, rank + 1);
    fill(c->get, c->got, rank + 1);
    step(c);
    if (is(c, "all_reduce") || is(c, "reduce_scatter")) ok = all(c->get, c->got, sum);
    else if (is(c, "all_gather") || is(c, "all_to_all"))
        for (int r = 0; r < ranks; r++) ok &= all(c->get + r * part, part, r + 1);
    else if (is(c, "broadcast")) ok = all(c->get, c->got, 1);
    else if (is(c, "pingpong") && rank < 2) ok = all(c->get, c->got, 2 - rank);
    fill(c->give, c->given, 0);
    fill(c->get, c->got, 0);
    return ok;
}

/* How often: as rank 0 finds by the middle one of three calls. */
static int estimate(struct cell *c, double budget, double least, double most) {
    double at[4] = {now()};
    for (int i = 1; i < 4; i++) step(c), at[i] = now();
    double a = at[1] - at[0], b = at[2] - at[1], d = at[3] - at[2];
    double low = a < b ? a : b, high = a < b ? b : a;
    double steps = budget / ((d < low ? low : d > high ? high : d) / 1e9 + 1e-9);
    MPI_Bcast(&steps, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    return steps < least ? least : steps > most ? most : steps;
}

static void measure(struct cell *c, size_t bytes, double budget, FILE *file) {
    int ok = check(c);
    for (int i = estimate(c, budget / 2, 1, WARM); i > 0; i--) step(c);
    int steps = estimate(c, budget, LEAST_STEPS, 1e9), batch = (steps + MOST_SAMPLES - 1) / MOST_SAMPLES;
    int samples = steps / batch;
    double *took = malloc(samples * sizeof *took);
    if (!took) MPI_Abort(MPI_COMM_WORLD, 1);
    for (int i = 0; i < samples; i++) took[i] = 0;
    struct rusage before, after;
    MPI_Barrier(MPI_COMM_WORLD);
    double worked = busy();
    getrusage(RUSAGE_SELF, &before);
    double begun = now(), last = begun, end = begun;
    int done = 0, eighth = samples / 8 > 0 ? samples / 8 : 1;
    while (done < samples) {
        for (int k = 0; k < batch; k++) step(c);
        end = now();
        took[done++] = end - last;
        last = end;
        /* Some calls take a hundred times as long as others: rank 0 ends what takes far too long. */
        if (done >= LEAST_STEPS && done % eighth == 0) {
            int over = end - begun > OVERRUN * budget * 1e9;
            MPI_Bcast(&over, 1, MPI_INT, 0, MPI_COMM_WORLD);
            if (over) break;
            last = now();
        }
    }
    getrusage(RUSAGE_SELF, &after);
    worked = busy() - worked;
    int each = calls(c) * batch;
    fprintf(file, "{\"op\":\"%s\",\"bytes\":%zu,\"n\":%d,\"ok\":%s,\"iters\":%d,\"batch\":%d,", c->op, bytes, ranks,
            ok ? "true" : "false", done * each, batch);
    fprintf(file, "\"busy_s\":%.2f,\"wall_ns\":%.0f,\"user_s\":%.6f,\"sys_s\":%.6f,\"peak_kib\":%ld,\"times_ns\":[", worked,
            end - begun, seconds(after.ru_utime) - seconds(before.ru_utime),
            seconds(after.ru_stime) - seconds(before.ru_stime), peak_kib());
    for (int i = 0; i < done; i++) fprintf(file, "%s%.0f", i ? "," : "", took[i] / each);
    fprintf(file, "]}\n");
    free(took);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 5) {
        fprintf(stderr, "usage: mpi OPS SIZES BUDGET TAG\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    char path[4096], *more = NULL, *ops = strdup(argv[1]);
    snprintf(path, sizeof path, "%s.r%d.jsonl", argv[4], rank);
    FILE *file = fopen(path, "w");
    if (!file) {
        perror(path);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    for (char *op = strtok_r(ops, ",", &more); op; op = strtok_r(NULL, ",", &more)) {
        char *rest = NULL, *sizes = strdup(argv[2]);
        for (char *size = strtok_r(sizes, ",", &rest); size; size = strtok_r(NULL, ",", &rest)) {
            size_t bytes = strtoull(size, NULL, 10);
            struct cell c = prepare(op, bytes);
            measure(&c, bytes, atof(argv[3]), file);
            MPI_Barrier(MPI_COMM_WORLD);
            free(c.give);
            free(c.get);
        }
        free(sizes);
    }
    free(ops);
    fclose(file);
    MPI_Finalize();
    return 0;
}

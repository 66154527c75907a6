/* Every operation, on every type and reduction, in place and not, by each way to make a call, against values computed here. */
#include "common.h"

static comity_group *group;
static int rank, size;
static long calls;

/* An element before it has a type: integers are exact, floats small enough to be. */
typedef struct {
    int64_t re, im;
    double divided; /* by so many, for averages of floats */
} num;

static int is_float(comity_dtype t) { return t == COMITY_F16 || t == COMITY_BF16 || t == COMITY_F32 || t == COMITY_F64 || t == COMITY_C64; }

/* What rank r has at place i. */
static num given(comity_dtype t, int r, int64_t i) {
    num n = {1 + (r * 3 + i) % 4, 0, 1};
    if (t == COMITY_BOOL) n.re = (r + i) % 2;
    if (t == COMITY_C64) n.im = 1 + (r + 2 * i) % 4;
    return n;
}

static uint16_t bf16(float x) {
    uint32_t b;
    memcpy(&b, &x, 4);
    return (uint16_t)((b + 0x7fff + ((b >> 16) & 1)) >> 16);
}

/* Of numbers that a half can hold without being subnormal. */
static uint16_t f16(float x) {
    uint32_t b;
    memcpy(&b, &x, 4);
    uint32_t sign = b >> 16 & 0x8000, rest = b & 0x7fffffff;
    if (rest == 0) return (uint16_t)sign;
    rest -= (127 - 15) << 23;
    rest += 0xfff + ((rest >> 13) & 1);
    return (uint16_t)(sign | rest >> 13);
}

static void put(comity_dtype t, void *at, int64_t i, num n) {
    char *p = (char *)at + i * (int64_t)comity_dtype_size(t);
    double d = (double)n.re / n.divided;
    float f = (float)n.re / (float)n.divided, parts[2];
    uint16_t half;
    switch (t) {
    case COMITY_F64: memcpy(p, &d, 8); return;
    case COMITY_F32: memcpy(p, &f, 4); return;
    case COMITY_F16: half = f16(f); memcpy(p, &half, 2); return;
    case COMITY_BF16: half = bf16(f); memcpy(p, &half, 2); return;
    case COMITY_C64:
        parts[0] = f;
        parts[1] = (float)n.im / (float)n.divided;
        memcpy(p, parts, 8);
        return;
    default: memcpy(p, &n.re, comity_dtype_size(t)); return; /* a little-endian machine */
    }
}

static int less(num a, num b) { return a.re < b.re || (a.re == b.re && a.im < b.im); }

/* Cut to the width of an integer type. */
static int64_t wrapped(comity_dtype t, int64_t x) {
    switch (t) {
    case COMITY_I8: return (int8_t)x;
    case COMITY_U8: return (uint8_t)x;
    default: return x;
    }
}

static num reduced(comity_dtype t, comity_reduce_op op, int64_t i) {
    num all = given(t, 0, i);
    for (int r = 1; r < size; r++) {
        num x = given(t, r, i), before = all;
        switch (op) {
        case COMITY_SUM:
        case COMITY_AVG: all.re += x.re; all.im += x.im; break;
        case COMITY_PRODUCT:
            all.re = before.re * x.re - before.im * x.im;
            all.im = before.re * x.im + before.im * x.re;
            break;
        case COMITY_MIN: all = less(x, all) ? x : all; break;
        case COMITY_MAX: all = less(all, x) ? x : all; break;
        case COMITY_AND: all.re &= x.re; break;
        case COMITY_OR: all.re |= x.re; break;
        case COMITY_XOR: all.re ^= x.re; break;
        }
        if (t == COMITY_BOOL && op == COMITY_SUM) all.re = before.re | x.re;
    }
    if (op == COMITY_AVG && is_float(t)) all.divided = size;
    if (op == COMITY_AVG && !is_float(t)) all.re = wrapped(t, all.re) / size;
    return all;
}

/* The function of the operation's name. */
static comity_status direct(const comity_call *c) {
    switch (c->op) {
    case COMITY_OP_ALL_REDUCE: return comity_all_reduce(group, c->src, c->dst, c->count, c->dtype, c->reduce);
    case COMITY_OP_REDUCE: return comity_reduce(group, c->src, c->dst, c->count, c->dtype, c->reduce, c->rank);
    case COMITY_OP_BROADCAST: return comity_broadcast(group, c->dst, c->count, c->dtype, c->rank);
    case COMITY_OP_ALL_GATHER:
        if (c->counts) return comity_all_gather_v(group, c->src, c->dst, c->counts, c->dtype);
        return comity_all_gather(group, c->src, c->dst, c->count, c->dtype);
    case COMITY_OP_REDUCE_SCATTER:
        if (c->counts) return comity_reduce_scatter_v(group, c->src, c->dst, c->counts, c->dtype, c->reduce);
        return comity_reduce_scatter(group, c->src, c->dst, c->count, c->dtype, c->reduce);
    case COMITY_OP_GATHER: return comity_gather(group, c->src, c->dst, c->count, c->dtype, c->rank);
    case COMITY_OP_SCATTER: return comity_scatter(group, c->src, c->dst, c->count, c->dtype, c->rank);
    case COMITY_OP_ALL_TO_ALL:
        if (c->counts) return comity_all_to_all_v(group, c->src, c->counts, c->dst, c->recv_counts, c->dtype);
        return comity_all_to_all(group, c->src, c->dst, c->count, c->dtype);
    case COMITY_OP_SEND: return comity_send(group, c->src, c->count, c->dtype, c->rank, c->tag);
    case COMITY_OP_RECV: return comity_recv(group, c->dst, c->count, c->dtype, c->rank, c->tag);
    case COMITY_OP_SENDRECV:
        return comity_sendrecv(group, c->src, c->count, c->rank, c->dst, c->recv_count, c->source, c->dtype, c->tag);
    case COMITY_OP_BARRIER: return comity_barrier(group);
    }
    return COMITY_ERR_MISUSE;
}

/* By its function, by comity_run, in the background: in turns. */
static void make(const comity_call *call) {
    comity_request *request;
    switch (calls++ % 3) {
    case 0: OK(direct(call)); return;
    case 1: OK(comity_run(group, call)); return;
    default:
        OK(comity_start(group, call, &request));
        OK(comity_request_wait(request, -1));
        OK(comity_request_free(request));
    }
}

static char *in, *out, *right;

/* `out` holds `count` elements that are right. */
static void compare(const comity_call *c, int64_t count) {
    size_t bytes = (size_t)count * comity_dtype_size(c->dtype);
    if (bytes && memcmp(out, right, bytes) != 0) {
        fprintf(stderr, "rank %d of %d: op %d, %s, %s, count %ld: wrong\n", rank, size, (int)c->op, comity_dtype_name(c->dtype),
                comity_reduce_op_name(c->reduce), (long)c->count);
        exit(1);
    }
}

static void fill(comity_dtype t, char *at, int r, int64_t from, int64_t count) {
    for (int64_t i = 0; i < count; i++) put(t, at, i, given(t, r, from + i));
}

static void reducing(comity_dtype t, comity_reduce_op op, int64_t n) {
    size_t width = comity_dtype_size(t);
    for (int in_place = 0; in_place < 2; in_place++) {
        comity_call c = call_of(COMITY_OP_ALL_REDUCE);
        c.dtype = t, c.reduce = op, c.count = n, c.src = in, c.dst = out;
        fill(t, in, rank, 0, n);
        if (in_place) fill(t, out, rank, 0, n), c.src = out;
        for (int64_t i = 0; i < n; i++) put(t, right, i, reduced(t, op, i));
        make(&c), compare(&c, n);

        c.op = COMITY_OP_REDUCE, c.rank = size - 1;
        if (in_place) fill(t, out, rank, 0, n);
        if (rank != c.rank) c.src = in, c.dst = NULL;
        make(&c);
        if (rank == c.rank) compare(&c, n);

        c.op = COMITY_OP_REDUCE_SCATTER, c.src = in, c.dst = out;
        fill(t, in, rank, 0, n * size);
        if (in_place) c.dst = in + (size_t)rank * (size_t)n * width;
        for (int64_t i = 0; i < n; i++) put(t, right, i, reduced(t, op, rank * n + i));
        make(&c);
        if (in_place) memcpy(out, c.dst, (size_t)n * width);
        compare(&c, n);
    }
    /* Rank r has a part of n + r elements. */
    int64_t counts[64], at = 0, total = 0;
    for (int r = 0; r < size; r++) counts[r] = n + r, at += r < rank ? n + r : 0, total += n + r;
    comity_call c = call_of(COMITY_OP_REDUCE_SCATTER);
    c.dtype = t, c.reduce = op, c.src = in, c.dst = out, c.counts = counts;
    fill(t, in, rank, 0, total);
    for (int64_t i = 0; i < counts[rank]; i++) put(t, right, i, reduced(t, op, at + i));
    make(&c), compare(&c, counts[rank]);
}

static void gathering(comity_dtype t, int64_t n) {
    size_t part = (size_t)n * comity_dtype_size(t);
    comity_call c = call_of(COMITY_OP_ALL_GATHER);
    c.dtype = t, c.count = n, c.dst = out;
    for (int r = 0; r < size; r++) fill(t, right + (size_t)r * part, r, 0, n);
    for (int in_place = 0; in_place < 2; in_place++) {
        c.src = in_place ? out + (size_t)rank * part : in;
        memset(out, 0, part * (size_t)size);
        fill(t, (char *)c.src, rank, 0, n);
        make(&c), compare(&c, n * size);
    }
    c.op = COMITY_OP_GATHER, c.src = in, c.rank = size - 1;
    if (rank != c.rank) c.dst = NULL;
    memset(out, 0, part * (size_t)size);
    make(&c);
    if (rank == c.rank) compare(&c, n * size);

    c.op = COMITY_OP_SCATTER, c.src = rank == c.rank ? in : NULL, c.dst = out;
    fill(t, in, c.rank, 0, n * size);
    fill(t, right, c.rank, rank * n, n);
    make(&c), compare(&c, n);

    c.op = COMITY_OP_BROADCAST, c.rank = 0, c.src = NULL;
    fill(t, out, rank, 0, n), fill(t, right, 0, 0, n);
    make(&c), compare(&c, n);

    int64_t counts[64], at = 0;
    for (int r = 0; r < size; r++) {
        counts[r] = n + r;
        fill(t, right + (size_t)at * comity_dtype_size(t), r, 0, n + r);
        at += n + r;
    }
    c = call_of(COMITY_OP_ALL_GATHER);
    c.dtype = t, c.src = in, c.dst = out, c.counts = counts;
    fill(t, in, rank, 0, n + rank);
    make(&c), compare(&c, at);
}

static void exchanging(comity_dtype t, int64_t n) {
    size_t width = comity_dtype_size(t), part = (size_t)n * width;
    comity_call c = call_of(COMITY_OP_ALL_TO_ALL);
    c.dtype = t, c.count = n, c.dst = out;
    for (int r = 0; r < size; r++) fill(t, right + (size_t)r * part, r, rank * n, n);
    for (int in_place = 0; in_place < 2; in_place++) {
        c.src = in_place ? out : in;
        fill(t, (char *)c.src, rank, 0, n * size);
        make(&c), compare(&c, n * size);
    }
    /* To rank r go n + rank + r elements, and as many come from it. */
    int64_t counts[64], at = 0;
    for (int r = 0; r < size; r++) {
        counts[r] = n + rank + r;
        fill(t, right + (size_t)at * width, r, 7 * rank, counts[r]);
        fill(t, in + (size_t)at * width, rank, 7 * r, counts[r]);
        at += counts[r];
    }
    c.src = in, c.counts = c.recv_counts = counts;
    make(&c), compare(&c, at);

    if (size < 2) return;
    c = call_of(COMITY_OP_SENDRECV);
    c.dtype = t, c.src = in, c.dst = out, c.tag = 5;
    c.rank = (rank + 1) % size, c.source = (rank + size - 1) % size;
    c.count = n + rank, c.recv_count = n + c.source;
    fill(t, in, rank, 0, c.count), fill(t, right, c.source, 0, c.recv_count);
    make(&c), compare(&c, c.recv_count);

    if (rank > 1) return;
    c = call_of(rank == 0 ? COMITY_OP_SEND : COMITY_OP_RECV);
    c.dtype = t, c.src = in, c.dst = out, c.tag = 6, c.rank = 1 - rank, c.count = n;
    if (rank == 0) c.dst = NULL; else c.src = NULL;
    fill(t, in, rank, 0, n), fill(t, right, 0, 0, n);
    make(&c);
    if (rank == 1) compare(&c, n);
}

/* Sums of 4096 floats on each wire: near, the same bits on all ranks, and in fewer bytes. */
static void wires(void) {
    static const double off[] = {0, 1.0 / 127, 1.0 / 1000, 1.0 / 124};
    comity_stats stats;
    uint64_t plain = 0, sent = 0;
    stats.size = sizeof stats;
    for (int wire = COMITY_WIRE_PLAIN; wire <= COMITY_WIRE_INT8_BLOCK; wire++) {
        float *x = (float *)in, *all = (float *)out;
        for (int i = 0; i < 4096; i++) x[i] = (float)(i % 257 - 128) / 128 * (float)(rank + 1);
        OK(comity_group_stats(group, &stats));
        sent = stats.bytes_sent;
        comity_call c = call_of(COMITY_OP_ALL_REDUCE);
        c.src = c.dst = x, c.count = 4096, c.dtype = COMITY_F32, c.reduce = COMITY_SUM, c.wire = (comity_wire)wire;
        OK(comity_run(group, &c));
        OK(comity_group_stats(group, &stats));
        sent = stats.bytes_sent - sent;
        if (wire == COMITY_WIRE_PLAIN) plain = sent;
        else HOLDS(sent <= plain * 52 / 100);
        double ranks = size * (size + 1) / 2;
        for (int i = 0; i < 4096; i++) {
            double want = (i % 257 - 128) / 128.0 * ranks, far = x[i] - want;
            HOLDS(size == 1 || (far <= off[wire] * ranks + 1e-5 && -far <= off[wire] * ranks + 1e-5));
        }
        OK(comity_all_reduce(group, x, all, 4096, COMITY_F32, COMITY_MAX));
        HOLDS(memcmp(all, x, 4096 * sizeof *x) == 0);
        calls += 2;
    }
    comity_call c = call_of(COMITY_OP_BARRIER);
    c.wire = COMITY_WIRE_BF16;
    WANT(COMITY_ERR_MISUSE, comity_run(group, &c));
}

int main(void) {
    static const int64_t counts[] = {0, 1, 5, 3000};
    OK(comity_init(&group));
    rank = comity_group_rank(group), size = comity_group_size(group);
    HOLDS(rank >= 0 && size > rank && size <= 64);
    size_t room = (size_t)(3000 + 2 * size) * (size_t)size * 8;
    in = (char *)calloc(1, room), out = (char *)calloc(1, room), right = (char *)calloc(1, room);
    for (int k = 0; k < 4; k++)
        for (int t = 0; t <= COMITY_C64; t++) {
            for (int op = 0; op <= COMITY_XOR; op++)
                if (comity_dtype_supports((comity_dtype)t, (comity_reduce_op)op)) reducing((comity_dtype)t, (comity_reduce_op)op, counts[k]);
            gathering((comity_dtype)t, counts[k]);
            exchanging((comity_dtype)t, counts[k]);
        }
    wires();
    comity_call barrier = call_of(COMITY_OP_BARRIER);
    for (int i = 0; i < 3; i++) make(&barrier);
    comity_member member;
    member.size = sizeof member;
    OK(comity_group_member(group, (rank + 1) % size, &member));
    if (rank == 0) printf("all right: %ld calls, %d ranks, link %s\n", calls, size, member.link ? member.link : "none");
    OK(comity_group_free(group));
    free(in), free(out), free(right);
    return 0;
}

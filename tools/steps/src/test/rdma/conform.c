/* What a provider of verbs does with SEND and RECV, case by case, in words that do not depend on its error numbers.
 *
 * conform DEVICE DEVICE: two queue pairs of one process, one on each device. The output is the same on the software device and on the kernel's
 * Soft-RoCE, which is what makes the first one worth testing with. Compiled against rdma-core's own header. */
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CHECK(x) do { if (!(x)) { printf("failed: %s (line %d)\n", #x, __LINE__); exit(1); } } while (0)

enum { SLOT = 8192, SLOTS = 8 };

struct end {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_mr *mr;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    union ibv_gid gid;
    int gid_index;
    char *memory;
};

static enum ibv_qp_type type;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void make(struct end *e, const char *name) {
    int count;
    struct ibv_device **list = ibv_get_device_list(&count), *device = NULL;
    CHECK(list);
    for (int i = 0; i < count; i++)
        if (!strcmp(ibv_get_device_name(list[i]), name)) device = list[i];
    CHECK(device);
    CHECK(e->context = ibv_open_device(device));
    ibv_free_device_list(list);
    CHECK(e->pd = ibv_alloc_pd(e->context));
    CHECK(e->memory = aligned_alloc(4096, SLOT * SLOTS));
    memset(e->memory, 0, SLOT * SLOTS);
    CHECK(e->mr = ibv_reg_mr(e->pd, e->memory, SLOT * SLOTS, IBV_ACCESS_LOCAL_WRITE));
    CHECK(e->channel = ibv_create_comp_channel(e->context));
    CHECK(e->cq = ibv_create_cq(e->context, 64, e, e->channel, 0));
    struct ibv_qp_init_attr init = {
        .send_cq = e->cq, .recv_cq = e->cq, .qp_type = type,
        .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 64},
    };
    CHECK(e->qp = ibv_create_qp(e->pd, &init));
    struct ibv_port_attr port;
    CHECK(!ibv_query_port(e->context, 1, &port));
    CHECK(port.state == IBV_PORT_ACTIVE);
    static const unsigned char mapped[12] = {[10] = 0xff, [11] = 0xff};
    for (e->gid_index = 0; e->gid_index < port.gid_tbl_len; e->gid_index++)
        if (!ibv_query_gid(e->context, 1, e->gid_index, &e->gid) && !memcmp(e->gid.raw, mapped, 12)) return;
    CHECK(!"an IPv4-mapped GID");
}

static int init(struct end *e) {
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    return ibv_modify_qp(e->qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

static void join(struct end *e, struct end *peer, int rnr_retry) {
    CHECK(!init(e));
    int rc = type == IBV_QPT_RC;
    struct ibv_qp_attr a = {
        .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp->qp_num, .rq_psn = 7,
        .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = peer->gid, .sgid_index = e->gid_index, .hop_limit = 1}},
    };
    CHECK(!ibv_modify_qp(e->qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                        (rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)));
    struct ibv_qp_attr b = {
        .qp_state = IBV_QPS_RTS, .sq_psn = 7, .timeout = 14, .retry_cnt = 2, .rnr_retry = rnr_retry, .max_rd_atomic = 1};
    CHECK(!ibv_modify_qp(e->qp, &b, IBV_QP_STATE | IBV_QP_SQ_PSN |
                                        (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0)));
}

static void end(struct end *e) {
    if (e->qp) CHECK(!ibv_destroy_qp(e->qp));
    CHECK(!ibv_destroy_cq(e->cq));
    CHECK(!ibv_destroy_comp_channel(e->channel));
    CHECK(!ibv_dereg_mr(e->mr));
    CHECK(!ibv_dealloc_pd(e->pd));
    CHECK(!ibv_close_device(e->context));
    free(e->memory);
}

static int send_with(struct end *e, int slot, unsigned length, unsigned key, enum ibv_wr_opcode opcode, unsigned flags) {
    struct ibv_sge part = {.addr = (uintptr_t)e->memory + slot * SLOT, .length = length, .lkey = key};
    struct ibv_send_wr wr = {.wr_id = 1, .sg_list = &part, .num_sge = 1, .opcode = opcode,
                             .send_flags = IBV_SEND_SIGNALED | flags, .imm_data = 77}, *bad;
    return ibv_post_send(e->qp, &wr, &bad);
}

static int sends(struct end *e, int slot, unsigned length) {
    return send_with(e, slot, length, e->mr->lkey, IBV_WR_SEND, 0);
}

static int recv_with(struct end *e, int slot, unsigned length, unsigned key) {
    struct ibv_sge part = {.addr = (uintptr_t)e->memory + slot * SLOT, .length = length, .lkey = key};
    struct ibv_recv_wr wr = {.wr_id = 2, .sg_list = &part, .num_sge = 1}, *bad;
    return ibv_post_recv(e->qp, &wr, &bad);
}

static int receives(struct end *e, int slot, unsigned length) { return recv_with(e, slot, length, e->mr->lkey); }

/* The next completion of an end: "received N", "sent", "error", or "nothing" in a while. */
static void next(struct end *e, const char *who, double patience) {
    struct ibv_wc wc;
    double until = now() + patience;
    int n = 0;
    while (!n && now() < until) n = ibv_poll_cq(e->cq, 1, &wc);
    CHECK(n >= 0);
    if (!n) printf(" %s nothing,", who);
    else if (wc.status) printf(" %s error,", who);
    else if (wc.opcode & IBV_WC_RECV) {
        printf(" %s received %u", who, wc.byte_len);
        printf(wc.wc_flags & IBV_WC_WITH_IMM ? " with %u," : ",", wc.imm_data);
    } else printf(" %s sent,", who);
}

static const double LONG = 5, SHORT = 0.3;

static void title(const char *text) { printf("\n%s %s:", type == IBV_QPT_RC ? "RC" : "UC", text); }

int main(int argc, char **argv) {
    CHECK(argc == 3);
    for (int kind = 0; kind < 2; kind++) {
        type = kind ? IBV_QPT_UC : IBV_QPT_RC;
        struct end a, b;
#define PAIR(text, rnr) do { title(text); make(&a, argv[1]); make(&b, argv[2]); join(&a, &b, rnr); join(&b, &a, rnr); } while (0)
#define DONE() do { end(&a); end(&b); } while (0)
        PAIR("a message, an empty one, a short one, one of inline data", 7);
        for (int i = 0; i < 4; i++) CHECK(!receives(&b, i, SLOT));
        strcpy(a.memory, "hello");
        CHECK(!sends(&a, 0, SLOT));
        next(&a, "a", LONG), next(&b, "b", LONG);
        printf(" \"%s\"", b.memory);
        CHECK(!sends(&a, 0, 0));
        next(&a, "a", LONG), next(&b, "b", LONG);
        CHECK(!sends(&a, 0, 5));
        next(&a, "a", LONG), next(&b, "b", LONG);
        CHECK(!send_with(&a, 0, 6, 0, IBV_WR_SEND_WITH_IMM, IBV_SEND_INLINE));
        memset(a.memory, 0, 6);
        next(&a, "a", LONG), next(&b, "b", LONG);
        printf(" \"%s\"", b.memory + 3 * SLOT);
        DONE();

        /* Of RC too, on a network card; the Soft-RoCE of Linux 6.1 often never tries again after it was told to wait. */
        if (type == IBV_QPT_UC) {
            PAIR("sent before it is expected, then another", 7);
            a.memory[0] = '1', a.memory[SLOT] = '2';
            CHECK(!sends(&a, 0, 1));
            next(&b, "b", SHORT);
            CHECK(!receives(&b, 0, SLOT));
            CHECK(!receives(&b, 0, SLOT));
            next(&b, "b", 2 * SHORT);
            CHECK(!sends(&a, 1, 1));
            next(&b, "b", LONG);
            printf(" the last is %c", b.memory[0]);
            DONE();
        }

        PAIR("longer than its receive", 7);
        CHECK(!receives(&b, 0, 100));
        CHECK(!sends(&a, 0, 101));
        next(&b, "b", LONG);
        if (type == IBV_QPT_RC) next(&a, "a", LONG);
        DONE();

        PAIR("sent from memory that is not registered", 7);
        CHECK(!receives(&b, 0, SLOT));
        CHECK(!send_with(&a, 0, 100, a.mr->lkey ^ 0x5a5a00, IBV_WR_SEND, 0));
        next(&a, "a", LONG), next(&b, "b", SHORT);
        DONE();

        PAIR("received into memory that is not registered", 7);
        if (!recv_with(&b, 0, SLOT, b.mr->lkey ^ 0x5a5a00)) {
            CHECK(!sends(&a, 0, 100));
            next(&b, "b", LONG);
        } else printf(" b error,");
        DONE();

        PAIR("an ended pair gives back what was posted", 7);
        CHECK(!receives(&b, 0, SLOT));
        struct ibv_qp_attr ended = {.qp_state = IBV_QPS_ERR};
        CHECK(!ibv_modify_qp(b.qp, &ended, IBV_QP_STATE));
        next(&b, "b", LONG);
        DONE();

        PAIR("a sleeper is told", 7);
        CHECK(!ibv_req_notify_cq(b.cq, 0));
        CHECK(!receives(&b, 0, SLOT));
        struct pollfd fd = {.fd = b.channel->fd, .events = POLLIN};
        printf(poll(&fd, 1, 100) ? " too early," : " not yet,");
        CHECK(!sends(&a, 0, 9));
        CHECK(poll(&fd, 1, 5000) == 1);
        struct ibv_cq *cq;
        void *context;
        CHECK(!ibv_get_cq_event(b.channel, &cq, &context));
        CHECK(cq == b.cq && context == &b);
        ibv_ack_cq_events(cq, 1);
        next(&b, "b", LONG);
        DONE();

        PAIR("the peer is gone", 7);
        CHECK(!ibv_destroy_qp(b.qp));
        b.qp = NULL;
        CHECK(!receives(&a, 0, SLOT));
        CHECK(!sends(&a, 0, 100));
        next(&a, "a", LONG), next(&a, "a", SHORT);
        DONE();

        if (type == IBV_QPT_RC) {
            PAIR("the peer is never ready", 1);
            CHECK(!sends(&a, 0, 100));
            next(&a, "a", LONG);
            DONE();
        }

        title("steps out of order");
        make(&a, argv[1]);
        printf(sends(&a, 0, 1) ? " send refused," : " send taken,");
        CHECK(!init(&a));
        printf(receives(&a, 0, 1) ? " receive refused," : " receive taken,");
        struct ibv_qp_attr early = {.qp_state = IBV_QPS_RTS};
        printf(ibv_modify_qp(a.qp, &early, IBV_QP_STATE | IBV_QP_SQ_PSN) ? " skip refused," : " skip taken,");
        struct ibv_qp_attr bare = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024};
        printf(ibv_modify_qp(a.qp, &bare, IBV_QP_STATE | IBV_QP_PATH_MTU) ? " bare step refused" : " bare step taken");
        end(&a);
    }
    printf("\ndone\n");
    return 0;
}

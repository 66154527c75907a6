/* What a caller can do wrong is an error with a sentence, and the groups are unharmed. */
#include "common.h"
#include <pthread.h>
#include <stdint.h>

static comity_group *groups[2];
static int64_t tried;

/* Wrong, and told so in words. */
static void wrong(comity_status status, int line) {
    if (status != COMITY_ERR_MISUSE || strlen(comity_last_error()) < 10) {
        fprintf(stderr, "misuse.c:%d: expected misuse, got %s\n", line, comity_status_name(status));
        exit(1);
    }
    tried++;
}
#define WRONG(call) wrong(call, __LINE__)

static void *other(void *nothing) {
    float x[4] = {1, 2, 3, 4};
    (void)nothing;
    OK(comity_all_reduce(groups[1], x, x, 4, COMITY_F32, COMITY_SUM));
    OK(comity_barrier(groups[1]));
    return NULL;
}

/* Numbers that are of no enum; C++ would not let us write them so. */
static comity_dtype no_dtype(uint32_t n) { comity_dtype t; memcpy(&t, &n, sizeof t); return t; }
static comity_reduce_op no_op(uint32_t n) { comity_reduce_op t; memcpy(&t, &n, sizeof t); return t; }

static void calls(comity_group *g) {
    float x[64] = {0}, y[64];
    int64_t counts[2] = {1, -1}, good[2] = {1, 1};
    WRONG(comity_all_reduce(NULL, x, y, 4, COMITY_F32, COMITY_SUM));
    WRONG(comity_all_reduce(g, NULL, y, 4, COMITY_F32, COMITY_SUM));
    WRONG(comity_all_reduce(g, x, NULL, 4, COMITY_F32, COMITY_SUM));
    WRONG(comity_all_reduce(g, NULL, NULL, 4, COMITY_F32, COMITY_SUM));
    WRONG(comity_all_reduce(g, x, y, -1, COMITY_F32, COMITY_SUM));
    WRONG(comity_all_reduce(g, x, y, INT64_MAX, COMITY_F32, COMITY_SUM));
    WRONG(comity_all_reduce(g, x, y, 4, no_dtype(14), COMITY_SUM));
    WRONG(comity_all_reduce(g, x, y, 4, no_dtype(0xffffffffu), COMITY_SUM));
    WRONG(comity_all_reduce(g, x, y, 4, COMITY_F32, no_op(8)));
    WRONG(comity_all_reduce(g, x, y, 4, COMITY_F32, COMITY_XOR));
    WRONG(comity_all_reduce(g, x, x + 1, 4, COMITY_F32, COMITY_SUM));
    WRONG(comity_reduce(g, x, x + 1, 4, COMITY_F32, COMITY_SUM, 0));
    WRONG(comity_reduce(g, x, y, 4, COMITY_F32, COMITY_SUM, 2));
    WRONG(comity_reduce(g, x, y, 4, COMITY_F32, COMITY_SUM, -1));
    WRONG(comity_broadcast(g, NULL, 4, COMITY_F32, 0));
    WRONG(comity_broadcast(g, x, 4, COMITY_F32, 7));
    WRONG(comity_all_gather(g, x, x + 2, 4, COMITY_F32));
    WRONG(comity_all_gather(g, x, y, INT64_MAX / 2, COMITY_F32));
    WRONG(comity_all_gather_v(g, x, y, NULL, COMITY_F32));
    WRONG(comity_all_gather_v(g, x, y, counts, COMITY_F32));
    WRONG(comity_all_gather_v(g, x, x, good, COMITY_F32));
    WRONG(comity_reduce_scatter(g, x, x + 1, 4, COMITY_F32, COMITY_SUM));
    WRONG(comity_reduce_scatter_v(g, x, y, counts, COMITY_F32, COMITY_SUM));
    WRONG(comity_gather(g, x, NULL, 4, COMITY_F32, 0));
    WRONG(comity_gather(g, x, x, 4, COMITY_F32, 0));
    WRONG(comity_scatter(g, NULL, y, 4, COMITY_F32, 0));
    WRONG(comity_all_to_all(g, x, x + 4, 4, COMITY_F32));
    WRONG(comity_all_to_all_v(g, x, good, y, NULL, COMITY_F32));
    WRONG(comity_send(g, x, 4, COMITY_F32, 0, 1));
    WRONG(comity_send(g, x, 4, COMITY_F32, 1, 0x80000000u));
    WRONG(comity_recv(g, x, 4, COMITY_F32, -2, 1));
    WRONG(comity_sendrecv(g, x, 4, 1, x + 3, 4, 1, COMITY_F32, 1));
    WRONG(comity_run(g, NULL));
    comity_call call = call_of(COMITY_OP_BARRIER);
    call.size = 3;
    WRONG(comity_run(g, &call));
    call = call_of((comity_op)0);
    WRONG(comity_run(g, &call));
    call = call_of((comity_op)13);
    WRONG(comity_run(g, &call));
    call = call_of(COMITY_OP_ALL_REDUCE);
    call.dtype = COMITY_F32, call.src = call.dst = x, call.count = 1, call.place = COMITY_PLACE_CUDA;
    WRONG(comity_run(g, &call));
    call.place = COMITY_PLACE_HOST, call.timeout = -1;
    WRONG(comity_run(g, &call));
    call.timeout = 0, call.reserved = 1;
    WRONG(comity_run(g, &call));
    call.reserved = 0;
    /* A newer program's field, in use. */
    struct { comity_call call; int64_t more; } newer;
    memset(&newer, 0, sizeof newer);
    newer.call.size = sizeof newer, newer.call.op = COMITY_OP_BARRIER, newer.more = 1;
    WRONG(comity_run(g, &newer.call));
    comity_request *request;
    WRONG(comity_start(g, NULL, &request));
    call.timeout = 0;
    WRONG(comity_start(g, &call, NULL));
}

/* A name or a value that is no setting's is refused, and the sentence has both. */
static void settings(comity_config *config) {
    static const char *const bad[][2] = {
        {"COMITY_LINKS", "shm,string"}, {"COMITY_ADDRS", "nowhere"}, {"COMITY_ALGORITHM", "magic"}, {"COMITY_BACKEND", "smoke"},
        {"COMITY_TIMEOUT", "soon"}, {"COMITY_RANK", "3"}, {"COMITY_MPI", "libmpi.so"}, {"timeout", "30"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        WANT(COMITY_ERR_CONFIG, comity_config_set(config, bad[i][0], bad[i][1]));
        HOLDS(strstr(comity_last_error(), bad[i][0]) && strstr(comity_last_error(), bad[i][1]));
    }
    OK(comity_config_set_timeout(config, 10));
    OK(comity_config_set(config, "COMITY_LINKS", "shm,tcp"));
    OK(comity_config_set(config, "COMITY_TIMEOUT", "42"));
}

static void handles(comity_group *g) {
    comity_group *none;
    comity_request *request;
    comity_config *config;
    comity_error *error;
    comity_member member;
    comity_stats stats;
    int32_t index, members[2] = {0, 0};
    int local[16] = {0};
    WRONG(comity_init(NULL));
    WRONG(comity_init_local(0, &none));
    WRONG(comity_init_local(-3, &none));
    WRONG(comity_init_local(2, NULL));
    HOLDS(comity_group_rank(NULL) == -1 && comity_group_size((comity_group *)(void *)local) == -1);
    WRONG(comity_barrier((comity_group *)(void *)local));
    WRONG(comity_barrier((comity_group *)(void *)(uintptr_t)0xdeadbeef1));
    WRONG(comity_request_test((comity_request *)(void *)g));
    WRONG(comity_request_wait(NULL, 1));
    WRONG(comity_request_wait_any(NULL, 3, 1, &index));
    WRONG(comity_request_wait_any(NULL, -1, 1, &index));
    WRONG(comity_request_wait_any(NULL, 0, 1, NULL));
    WRONG(comity_error_get((comity_error *)(void *)g, NULL));
    WRONG(comity_error_take(NULL));
    WRONG(comity_group_member(g, 2, &member));
    member.size = sizeof member;
    WRONG(comity_group_member(g, -1, &member));
    stats.size = 0;
    WRONG(comity_group_stats(g, &stats));
    WRONG(comity_group_set_timeout(g, 0));
    WRONG(comity_group_set_timeout(g, -5));
    WRONG(comity_group_split(g, -2, 0, &none));
    WRONG(comity_group_split(g, 0, 0, NULL));
    WRONG(comity_group_subgroup(g, members, 2, 0, &none));
    WRONG(comity_group_subgroup(g, members, -1, 0, &none));
    WRONG(comity_group_subgroup(g, NULL, 1, 0, &none));
    WRONG(comity_group_abort(g, NULL));
    WRONG(comity_config_new(2, 2, &config));
    WRONG(comity_config_new(-1, 2, &config));
    OK(comity_config_new(0, 1, &config));
    WRONG(comity_config_set_key(config, (const uint8_t *)"short", 5));
    WRONG(comity_config_set_key(config, NULL, 32));
    WRONG(comity_config_set(NULL, "COMITY_LINKS", "shm"));
    WRONG(comity_config_set(config, NULL, "shm"));
    WRONG(comity_config_set(config, "COMITY_LINKS", NULL));
    WRONG(comity_config_set(config, "COMITY_LINKS", "\xff\xfe"));
    settings(config);
    WRONG(comity_config_set_detection(config, 0));
    WRONG(comity_config_set_timeout(config, 0));
    WRONG(comity_config_set_exchange(config, NULL, NULL));
    WANT(COMITY_ERR_CONFIG, comity_config_set_rendezvous(config, "no port"));
    OK(comity_config_connect(config, &none));
    HOLDS(comity_group_size(none) == 1 && comity_group_timeout(none) == 42);
    OK(comity_group_close(none));
    OK(comity_group_close(none));
    WANT(COMITY_ERR_CLOSED, comity_barrier(none));
    OK(comity_group_free(none));
    WRONG(comity_group_free(none));
    WRONG(comity_barrier(none));
    OK(comity_config_free(config));
    WRONG(comity_config_connect(config, &none));
    OK(comity_group_free(NULL));
    OK(comity_request_free(NULL));
    OK(comity_error_take(&error));
    OK(comity_error_free(error));
    WRONG(comity_error_free(error));
    comity_call call = call_of(COMITY_OP_BARRIER);
    OK(comity_init_local(1, &none));
    OK(comity_start(none, &call, &request));
    OK(comity_request_wait(request, -1));
    OK(comity_request_free(request));
    WRONG(comity_request_free(request));
    OK(comity_group_free(none));
}

int main(void) {
    pthread_t thread;
    float x[4] = {1, 2, 3, 4};
    HOLDS(comity_version() >= 100 && strchr(comity_version_text(), '.'));
    HOLDS(strcmp(comity_last_error(), "") == 0);
    OK(comity_init_local(2, groups));
    calls(groups[0]);
    handles(groups[0]);
    HOLDS(pthread_create(&thread, NULL, other, NULL) == 0);
    OK(comity_all_reduce(groups[0], x, x, 4, COMITY_F32, COMITY_SUM));
    OK(comity_barrier(groups[0]));
    HOLDS(x[3] == 8);
    pthread_join(thread, NULL);
    OK(comity_group_free(groups[1]));
    OK(comity_group_free(groups[0]));
    printf("all right: %ld mistakes were told, the groups are unharmed\n", (long)tried);
    return 0;
}

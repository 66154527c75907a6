/* Layers are added up in the background while the next ones are computed, as a backward pass does it. */
#include <comity.h>
#include <stdio.h>
#include <string.h>

enum { LAYERS = 8, WIDTH = 100000 };

static float layers[LAYERS][WIDTH];

static int failed(void) {
    fprintf(stderr, "%s\n", comity_last_error());
    return 1;
}

int main(void) {
    comity_group *group;
    comity_request *pending[LAYERS];
    if (comity_init(&group) != COMITY_OK) return failed();
    int size = comity_group_size(group);

    for (int layer = LAYERS - 1; layer >= 0; layer--) {
        for (int i = 0; i < WIDTH; i++) layers[layer][i] = (float)(layer + 1); /* "computed" */
        comity_call call;
        memset(&call, 0, sizeof call);
        call.size = sizeof call;
        call.op = COMITY_OP_ALL_REDUCE;
        call.dtype = COMITY_F32;
        call.reduce = COMITY_SUM;
        call.src = call.dst = layers[layer];
        call.count = WIDTH;
        /* The buffer is Comity's until the request has ended. */
        if (comity_start(group, &call, &pending[layer]) != COMITY_OK) return failed();
    }

    for (int layer = 0; layer < LAYERS; layer++) {
        if (comity_request_wait(pending[layer], -1) != COMITY_OK) return failed();
        comity_request_free(pending[layer]);
        if (layers[layer][WIDTH - 1] != (float)((layer + 1) * size)) {
            fprintf(stderr, "layer %d is wrong\n", layer);
            return 1;
        }
    }
    if (comity_group_rank(group) == 0) printf("%d layers added up over %d ranks\n", (int)LAYERS, size);
    return comity_group_free(group) == COMITY_OK ? 0 : failed();
}

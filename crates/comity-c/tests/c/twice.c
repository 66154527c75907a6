/* twice LIBRARY COPY: two libraries in one process, each with a group of its own, in one job. */
#include "common.h"
#include <dlfcn.h>

typedef comity_status (*start_fn)(comity_group **);
typedef comity_status (*reduce_fn)(comity_group *, const void *, void *, int64_t, comity_dtype, comity_reduce_op);
typedef comity_status (*free_fn)(comity_group *);
typedef int32_t (*rank_fn)(comity_group *);

/* A function, without the cast from an object that C does not know. */
static void find(void *library, const char *name, void *function) {
    void *at = dlsym(library, name);
    HOLDS(at != NULL);
    memcpy(function, &at, sizeof at);
}

int main(int argc, char **argv) {
    start_fn start[2];
    reduce_fn reduce[2];
    free_fn release[2];
    rank_fn rank[2];
    comity_group *groups[2];
    HOLDS(argc == 3);
    for (int i = 0; i < 2; i++) {
        void *library = dlopen(argv[1 + i], RTLD_NOW | RTLD_LOCAL);
        if (!library) fprintf(stderr, "%s\n", dlerror());
        HOLDS(library != NULL);
        find(library, "comity_init", &start[i]);
        find(library, "comity_all_reduce", &reduce[i]);
        find(library, "comity_group_free", &release[i]);
        find(library, "comity_group_rank", &rank[i]);
    }
    HOLDS(start[0] != start[1]);
    for (int i = 0; i < 2; i++) HOLDS(start[i](&groups[i]) == COMITY_OK);
    for (int k = 0; k < 50; k++)
        for (int i = 0; i < 2; i++) {
            float x = (float)(rank[i](groups[i]) + k);
            HOLDS(reduce[i](groups[i], &x, &x, 1, COMITY_F32, COMITY_MIN) == COMITY_OK && x == (float)k);
        }
    for (int i = 0; i < 2; i++) HOLDS(release[i](groups[i]) == COMITY_OK);
    printf("all right with two libraries\n");
    return 0;
}

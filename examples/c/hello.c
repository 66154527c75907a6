/* The first program: every rank adds its number to those of the others. */
#include <comity.h>
#include <stdio.h>

int main(void) {
    comity_group *group;
    if (comity_init(&group) != COMITY_OK) {
        fprintf(stderr, "%s\n", comity_last_error());
        return 1;
    }
    float x = (float)comity_group_rank(group);
    if (comity_all_reduce(group, &x, &x, 1, COMITY_F32, COMITY_SUM) != COMITY_OK) {
        fprintf(stderr, "%s\n", comity_last_error());
        return 1;
    }
    printf("rank %d of %d: the sum is %g\n", comity_group_rank(group), comity_group_size(group), x);
    return comity_group_free(group) == COMITY_OK ? 0 : 1;
}

/* What the test programs share. */
#ifndef COMMON_H
#define COMMON_H

#include <comity.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* End the program unless a status is the one that is expected. */
#define WANT(status, call) want(status, call, #call, __FILE__, __LINE__)
#define OK(call) WANT(COMITY_OK, call)
/* End the program unless something holds. */
#define HOLDS(what)                                                                  \
    do {                                                                             \
        if (!(what)) {                                                               \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what);        \
            exit(1);                                                                 \
        }                                                                            \
    } while (0)

static inline void want(comity_status expected, comity_status got, const char *call, const char *file, int line) {
    if (expected != got) {
        fprintf(stderr, "%s:%d: %s: expected %s, got %s: %s\n", file, line, call, comity_status_name(expected),
                comity_status_name(got), comity_last_error());
        exit(1);
    }
}

/* What is known of the last error of this thread; *handle keeps its texts. */
static inline comity_error_info last(comity_error **handle) {
    comity_error_info info;
    memset(&info, 0, sizeof info);
    info.size = sizeof info;
    OK(comity_error_take(handle));
    HOLDS(*handle != NULL);
    OK(comity_error_get(*handle, &info));
    HOLDS(info.size == sizeof info && strlen(info.text) > 0);
    return info;
}

static inline comity_call call_of(comity_op op) {
    comity_call call;
    memset(&call, 0, sizeof call);
    call.size = sizeof call;
    call.op = op;
    return call;
}

#endif

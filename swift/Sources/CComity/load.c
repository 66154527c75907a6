// libcomity, loaded when the package first needs it, so that its absence is an error and not the end of the program.
//
// Each function here has the name and the type of libcomity's, which the header checks, and calls it through a pointer. The linker
// misses a function that the package calls and that is not in the table.

#include <dlfcn.h>

// Names of libcomity stay in this program: the library's own calls must not come here.
#pragma GCC visibility push(hidden)
#include "include/functions.h"
#include "include/load.h"

#ifdef __APPLE__
#define LIBRARY "@rpath/libcomity.0.dylib"
#else
#define LIBRARY "libcomity.so.0"
#endif

// Result, name, parameters, arguments.
#define TABLE(FUNCTION) \
    FUNCTION(uint32_t, comity_version, (void), ()) \
    FUNCTION(comity_status, comity_error_take, (comity_error **out), (out)) \
    FUNCTION(comity_status, comity_error_get, (comity_error *error, comity_error_info *out), (error, out)) \
    FUNCTION(comity_status, comity_error_free, (comity_error *error), (error)) \
    FUNCTION(comity_status, comity_init, (comity_group **out), (out)) \
    FUNCTION(comity_status, comity_init_strict, (comity_group **out), (out)) \
    FUNCTION(comity_status, comity_init_local, (int32_t size, comity_group **groups), (size, groups)) \
    FUNCTION(int32_t, comity_group_rank, (comity_group *group), (group)) \
    FUNCTION(int32_t, comity_group_size, (comity_group *group), (group)) \
    FUNCTION(comity_status, comity_group_member, (comity_group *group, int32_t rank, comity_member *out), (group, rank, out)) \
    FUNCTION(comity_status, comity_group_stats, (comity_group *group, comity_stats *out), (group, out)) \
    FUNCTION(double, comity_group_timeout, (comity_group *group), (group)) \
    FUNCTION(comity_status, comity_group_set_timeout, (comity_group *group, double timeout), (group, timeout)) \
    FUNCTION(comity_status, comity_group_split, (comity_group *group, int32_t color, int32_t key, comity_group **out), \
             (group, color, key, out)) \
    FUNCTION(comity_status, comity_group_subgroup, \
             (comity_group *group, const int32_t *members, int32_t count, uint64_t label, comity_group **out), \
             (group, members, count, label, out)) \
    FUNCTION(comity_status, comity_group_reform, \
             (comity_group *group, const comity_reform_options *options, comity_group **out), (group, options, out)) \
    FUNCTION(int32_t, comity_group_joiners, (comity_group *group), (group)) \
    FUNCTION(int32_t, comity_group_joined, (comity_group *group), (group)) \
    FUNCTION(int32_t, comity_group_left, (comity_group *group), (group)) \
    FUNCTION(comity_status, comity_group_departure, (comity_group *group, int32_t index, comity_departure *out), \
             (group, index, out)) \
    FUNCTION(comity_status, comity_sync, \
             (comity_group *group, const comity_buffer *buffers, int32_t count, int32_t holds), \
             (group, buffers, count, holds)) \
    FUNCTION(comity_status, comity_group_abort, (comity_group *group, const char *why), (group, why)) \
    FUNCTION(comity_status, comity_group_close, (comity_group *group), (group)) \
    FUNCTION(comity_status, comity_group_free, (comity_group *group), (group)) \
    FUNCTION(comity_status, comity_run, (comity_group *group, const comity_call *call), (group, call)) \
    FUNCTION(comity_status, comity_all_reduce, \
             (comity_group *group, const void *src, void *dst, int64_t count, comity_dtype dtype, comity_reduce_op reduce), \
             (group, src, dst, count, dtype, reduce)) \
    FUNCTION(comity_status, comity_start, (comity_group *group, const comity_call *call, comity_request **out), \
             (group, call, out)) \
    FUNCTION(comity_status, comity_request_test, (comity_request *request), (request)) \
    FUNCTION(comity_status, comity_request_wait, (comity_request *request, double timeout), (request, timeout)) \
    FUNCTION(comity_status, comity_request_on_done, (comity_request *request, comity_done_fn done, void *context), \
             (request, done, context)) \
    FUNCTION(comity_status, comity_request_free, (comity_request *request), (request)) \
    FUNCTION(comity_status, comity_config_new, (int32_t rank, int32_t size, comity_config **out), (rank, size, out)) \
    FUNCTION(comity_status, comity_config_from_env, (comity_config **out), (out)) \
    FUNCTION(comity_status, comity_config_set, (comity_config *config, const char *name, const char *value), \
             (config, name, value)) \
    FUNCTION(comity_status, comity_config_set_rendezvous, (comity_config *config, const char *at), (config, at)) \
    FUNCTION(comity_status, comity_config_set_store, (comity_config *config, const char *at), (config, at)) \
    FUNCTION(comity_status, comity_config_set_hostfile, (comity_config *config, const char *path), (config, path)) \
    FUNCTION(comity_status, comity_config_set_exchange, \
             (comity_config *config, comity_exchange_fn exchange, void *context), (config, exchange, context)) \
    FUNCTION(comity_status, comity_config_set_key, (comity_config *config, const uint8_t *key, size_t length), \
             (config, key, length)) \
    FUNCTION(comity_status, comity_config_set_timeout, (comity_config *config, double timeout), (config, timeout)) \
    FUNCTION(comity_status, comity_config_set_join_timeout, (comity_config *config, double timeout), (config, timeout)) \
    FUNCTION(comity_status, comity_config_set_detection, (comity_config *config, double limit), (config, limit)) \
    FUNCTION(comity_status, comity_config_connect, (comity_config *config, comity_group **out), (config, out)) \
    FUNCTION(comity_status, comity_config_free, (comity_config *config), (config))

#define CALL(result, name, parameters, arguments) \
    static __typeof__(&name) name##_loaded; \
    result name parameters { return name##_loaded arguments; }
TABLE(CALL)

comity_library comity_load(void) {
    comity_library found = {NULL, 0, NULL};
    // It stays: its threads may run until the process ends.
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        found.absence = dlerror();
        return found;
    }
#define FIND(result, name, parameters, arguments) \
    name##_loaded = (__typeof__(&name))dlsym(library, #name); \
    if (!name##_loaded && !found.missing) found.missing = #name;
    TABLE(FIND)
    if (comity_version_loaded) found.version = comity_version();
    return found;
}
#pragma GCC visibility pop

/**
 * Comity: collective communication for machine learning, on the computers people own.
 *
 * cbindgen makes this file of crates/comity-c. Write to it with `WRITE_C_HEADER=1 cargo test -p comity-c`.
 *
 * A program:
 *
 *     comity_group *group;
 *     float x[4] = {1, 2, 3, 4};
 *     if (comity_init(&group) != COMITY_OK ||
 *         comity_all_reduce(group, x, x, 4, COMITY_F32, COMITY_SUM) != COMITY_OK) {
 *         fprintf(stderr, "%s\n", comity_last_error());
 *         return 1;
 *     }
 *     comity_group_free(group);
 *
 * Errors. Functions answer a comity_status. Nothing is printed, nothing ends the process, and no exception or panic leaves the library.
 * COMITY_ERR_MISUSE says that the caller broke a rule that it could have checked: NULL, a handle that was freed or is of another kind, a
 * negative count, a number that is of no enum, buffers that overlap. Nothing was done then, and the group is unharmed.
 *
 * Handles. Each is yours until you free it with the function of its name. A handle is a token and no address: it may be copied and
 * compared, and NULL is never one. A function that is given a freed handle says so, also while another thread frees it; the object itself
 * goes when the last function that uses it returns. What Comity cannot see is memory: a pointer to a buffer, a text or a struct must be
 * good for what the function says, and for as long.
 *
 * Threads. Any function may be called on any thread, with the same handles. Calls of one group run one at a time, in the order in which
 * they are made, which must be the same on all ranks. The last error is each thread's own. Callbacks may come on any thread.
 *
 * Forks. In a forked child the parent's groups and requests are COMITY_ERR_FORKED; groups that the child makes itself work.
 *
 * Structs begin with their size, so that later versions can add fields: set it to sizeof of the struct.
 * Counts are of elements, times are in seconds, texts are UTF-8.
 */

#ifndef COMITY_H
#define COMITY_H

#include <stddef.h>
#include <stdint.h>


/**
 * Status code of a call. 0 and 1 are no errors.
 *
 * After an error comity_last_error() has a sentence for it, and comity_error_take() an object with all that is known of it.
 */
typedef enum {
    /**
     * Success.
     */
    COMITY_OK = 0,
    /**
     * A request is still under way.
     */
    COMITY_PENDING = 1,
    /**
     * The caller broke a rule that it could have checked. No byte moved, and the group is unharmed.
     */
    COMITY_ERR_MISUSE = 2,
    /**
     * The configuration is incomplete or contradicts itself.
     */
    COMITY_ERR_CONFIG = 3,
    /**
     * A library, device or permission is missing.
     */
    COMITY_ERR_UNAVAILABLE = 4,
    /**
     * A callback waits for work that can only run after it.
     */
    COMITY_ERR_ORDER = 5,
    /**
     * Not all ranks came together in time.
     */
    COMITY_ERR_JOIN = 6,
    /**
     * Two ranks made different calls, or the same call with other arguments.
     */
    COMITY_ERR_MISMATCH = 7,
    /**
     * The call did not end in time.
     */
    COMITY_ERR_TIMEOUT = 8,
    /**
     * A member's process or link is gone.
     */
    COMITY_ERR_PEER_LOST = 9,
    /**
     * A rank gave the group up.
     */
    COMITY_ERR_ABORTED = 10,
    /**
     * A library outside of Comity said no.
     */
    COMITY_ERR_LIBRARY = 11,
    /**
     * The system refused something that this process needs.
     */
    COMITY_ERR_OS = 12,
    /**
     * The group was closed by this process.
     */
    COMITY_ERR_CLOSED = 13,
    /**
     * The handle belongs to the process that this one was forked from, or that one is in a job, in which this one has no place.
     */
    COMITY_ERR_FORKED = 14,
    /**
     * A mistake in Comity. Please report it with its text.
     */
    COMITY_ERR_INTERNAL = 15,
} comity_status;

/**
 * The type of one element of a buffer. Buffers need no alignment.
 */
typedef enum {
    /**
     * One byte, 0 or 1 and nothing else.
     */
    COMITY_BOOL = 0,
    COMITY_U8 = 1,
    COMITY_U16 = 2,
    COMITY_U32 = 3,
    COMITY_U64 = 4,
    COMITY_I8 = 5,
    COMITY_I16 = 6,
    COMITY_I32 = 7,
    COMITY_I64 = 8,
    /**
     * IEEE 754 half precision.
     */
    COMITY_F16 = 9,
    /**
     * The upper half of a float.
     */
    COMITY_BF16 = 10,
    /**
     * float
     */
    COMITY_F32 = 11,
    /**
     * double
     */
    COMITY_F64 = 12,
    /**
     * Two floats: the real part, then the imaginary part.
     */
    COMITY_C64 = 13,
} comity_dtype;

/**
 * Way to combine elements of different ranks. Every rank gets the same bits.
 *
 * COMITY_AVG is not defined on COMITY_BOOL; the last three are defined on integers and COMITY_BOOL only. Integers wrap.
 */
typedef enum {
    COMITY_SUM = 0,
    COMITY_PRODUCT = 1,
    COMITY_MIN = 2,
    COMITY_MAX = 3,
    /**
     * The sum, divided by the number of ranks.
     */
    COMITY_AVG = 4,
    COMITY_AND = 5,
    COMITY_OR = 6,
    COMITY_XOR = 7,
} comity_reduce_op;

/**
 * The operations, for comity_call.
 */
typedef enum {
    COMITY_ALL_REDUCE = 1,
    COMITY_REDUCE = 2,
    COMITY_BROADCAST = 3,
    COMITY_ALL_GATHER = 4,
    COMITY_REDUCE_SCATTER = 5,
    COMITY_GATHER = 6,
    COMITY_SCATTER = 7,
    COMITY_ALL_TO_ALL = 8,
    COMITY_SEND = 9,
    COMITY_RECV = 10,
    COMITY_SENDRECV = 11,
    COMITY_BARRIER = 12,
} comity_op;

/**
 * Memory of a call's buffers.
 */
typedef enum {
    /**
     * Host memory.
     */
    COMITY_HOST = 0,
    /**
     * Memory of the group's CUDA device; the work is ordered on a stream.
     */
    COMITY_CUDA = 1,
} comity_place;

/**
 * Backend for the calls of a group.
 */
typedef enum {
    /**
     * Comity's own plans over its own links.
     */
    COMITY_BACKEND_ANY = 0,
    /**
     * An MPI library, in a job that its launcher started.
     */
    COMITY_BACKEND_MPI = 1,
    /**
     * As any, and NCCL for CUDA memory.
     */
    COMITY_BACKEND_NCCL = 2,
    /**
     * As any, with RDMA before all other links.
     */
    COMITY_BACKEND_JACCL = 3,
} comity_backend;

/**
 * Use of the job's key.
 */
typedef enum {
    /**
     * The right to connect.
     */
    COMITY_SECURE_HANDSHAKE = 0,
    /**
     * That, and everything that goes over TCP.
     */
    COMITY_SECURE_DATA = 1,
} comity_secure;

/**
 * Settings of a process before it meets the others. Any thread may use it. Free it with comity_config_free().
 */
typedef struct comity_config comity_config;

/**
 * An error that was taken from its thread. Any thread may use it. Free it with comity_error_free().
 */
typedef struct comity_error comity_error;

/**
 * Ranks that call collectives together. Any thread may use it; calls run one at a time, in the order in which they are made, which
 * must be the same on all ranks. Free it with comity_group_free().
 *
 * A handle is a token and no address: using one after it was freed is COMITY_ERR_MISUSE.
 */
typedef struct comity_group comity_group;

/**
 * A call under way in the background. Any thread may use it. Free it with comity_request_free().
 */
typedef struct comity_request comity_request;

/**
 * Description of an error. The pointers are valid until comity_error_free() of that error.
 */
typedef struct {
    /**
     * sizeof(comity_error_info); set it before the call.
     */
    size_t size;
    comity_status status;
    /**
     * 1: the group had failed before, and this is that failure.
     */
    int32_t earlier;
    /**
     * 1: the group cannot be used any more, or was never made.
     */
    int32_t fatal;
    /**
     * The first rank at fault; -1 where none is, or none is known.
     */
    int32_t rank;
    /**
     * Its process id; 0 where that is not known.
     */
    int64_t pid;
    /**
     * The name of its host; NULL where that is not known.
     */
    const char *host;
    /**
     * One sentence that says what happened, to whom, and what to do next. Never NULL.
     */
    const char *text;
    /**
     * The call of this rank: "all_reduce #3 f32[8] sum"; NULL outside of a call.
     */
    const char *call;
    /**
     * Of a mismatch: the other rank's call. Else NULL.
     */
    const char *peer_call;
    /**
     * Of a mismatch: what differs first, "dtype" or "count". Else NULL.
     */
    const char *differs;
    /**
     * All ranks at fault.
     */
    const int32_t *ranks;
    /**
     * How many.
     */
    size_t rank_count;
    /**
     * Of a timeout: the limit in seconds. Else 0.
     */
    double after;
} comity_error_info;

/**
 * A member of a group. `host` is valid until comity_group_free() of that group.
 */
typedef struct {
    /**
     * sizeof(comity_member); set it before the call.
     */
    size_t size;
    /**
     * Its rank in the group.
     */
    int32_t rank;
    /**
     * Must be 0.
     */
    int32_t reserved;
    /**
     * Its process id; 0 where that is not known.
     */
    int64_t pid;
    /**
     * The name of its host; NULL where that is not known.
     */
    const char *host;
    /**
     * The kind of link to it, "shm" or "tcp"; NULL for this rank.
     */
    const char *link;
} comity_member;

/**
 * Counters of a group on this rank.
 */
typedef struct {
    /**
     * sizeof(comity_stats); set it before the call.
     */
    size_t size;
    /**
     * Calls that succeeded.
     */
    uint64_t calls;
    /**
     * Calls that failed.
     */
    uint64_t errors;
    /**
     * Payload bytes sent to other ranks.
     */
    uint64_t bytes_sent;
    /**
     * Number of times that a member was silent for a fifth of the detection limit.
     */
    uint64_t suspicions;
    /**
     * Seconds asleep, waiting for other ranks.
     */
    double parked;
    /**
     * The longest time in seconds for which nothing was heard from one member.
     */
    double longest_silence;
} comity_stats;

/**
 * A call of a group, for comity_run() and comity_start(). Set `size` to sizeof(comity_call) and all that is not used to 0.
 *
 * A later version may add fields at the end; 0 in them will mean what this version does.
 */
typedef struct {
    /**
     * sizeof(comity_call), which says which fields there are.
     */
    size_t size;
    /**
     * What to do.
     */
    comity_op op;
    /**
     * The type of the elements.
     */
    comity_dtype dtype;
    /**
     * For operations that reduce.
     */
    comity_reduce_op reduce;
    /**
     * The root; of send and sendrecv, the rank to send to; of recv, the rank to receive from.
     */
    int32_t rank;
    /**
     * Of sendrecv, the rank to receive from.
     */
    int32_t source;
    /**
     * Of send, recv and sendrecv: 0 to 0x7fffffff.
     */
    uint32_t tag;
    /**
     * What is read. In place where it is also written: see each operation.
     */
    const void *src;
    /**
     * What is written.
     */
    void *dst;
    /**
     * Elements, counted as by the function of the operation's name.
     */
    int64_t count;
    /**
     * Of sendrecv: elements to receive.
     */
    int64_t recv_count;
    /**
     * Elements of each rank's part, one number for each rank; NULL where all have `count`.
     */
    const int64_t *counts;
    /**
     * Of all_to_all with unequal parts: elements from each rank.
     */
    const int64_t *recv_counts;
    /**
     * Where src and dst are.
     */
    comity_place place;
    /**
     * Must be 0.
     */
    uint32_t reserved;
    /**
     * For COMITY_CUDA: the cudaStream_t.
     */
    void *stream;
    /**
     * Seconds that this call may take; 0: the group's limit, INFINITY: none. A call in the background begins when its turn comes.
     */
    double timeout;
} comity_call;

/**
 * Called once when a request has ended, on a thread of Comity's, or at once on the thread that asks where it has ended already.
 *
 * It must be short, must not wait for a request, and must not free the group. comity_request_test() says inside of it how it went.
 */
typedef void (*comity_done_fn)(void *context);

/**
 * Function by which rank 0 sends the others a short text, over a channel of the program's. All ranks are called equally often; call k of one rank
 * belongs to call k of the others.
 *
 * @param mine On rank 0 the text to send: 1 to 512 printable characters. NULL on the others.
 * @param seconds The time that is left.
 * @param out Gets the text on the other ranks, with a NUL at its end.
 * @param room Bytes at `out`.
 * @return 0 if it went well.
 */
typedef int32_t (*comity_share_fn)(void *context,
                                   int32_t rank,
                                   int32_t size,
                                   const char *mine,
                                   double seconds,
                                   char *out,
                                   size_t room);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The sentence of the last error of this thread: what happened, to whom, and what to do next. "" where there was none.
 *
 * A function that goes well leaves it as it is.
 *
 * @return Text that is valid until the next function of Comity fails on this thread, or comity_error_take() is called on it.
 */
const char *comity_last_error(void);

/**
 * Take the last error of this thread, so that any thread can ask it for more than its sentence.
 *
 * Call this on the thread on which the function failed, before another one fails there: a runtime that moves its tasks between
 * threads must keep this one on its thread for the two calls.
 *
 * @param out Gets the error, yours to free with comity_error_free(); NULL where there is none.
 */
comity_status comity_error_take(comity_error **out);

/**
 * Describe an error.
 *
 * @param error From comity_error_take().
 * @param out Its `size` must be set to sizeof(comity_error_info). What it points to is valid until comity_error_free().
 */
comity_status comity_error_get(comity_error *error,
                               comity_error_info *out);

/**
 * Free an error. NULL is allowed.
 */
comity_status comity_error_free(comity_error *error);

/**
 * A word for a status: "peer lost". The text lives as long as the library.
 *
 * @return NULL where there is no such status.
 */
const char *comity_status_name(comity_status status);

/**
 * The name of a type: "bf16". The text lives as long as the library.
 *
 * @return NULL where there is no such type.
 */
const char *comity_dtype_name(comity_dtype dtype);

/**
 * The name of a reduction: "sum". The text lives as long as the library.
 *
 * @return NULL where there is no such reduction.
 */
const char *comity_reduce_op_name(comity_reduce_op op);

/**
 * Bytes of one element; 0 where there is no such type.
 */
size_t comity_dtype_size(comity_dtype dtype);

/**
 * Returns whether a reduction is defined on a type: 1 or 0.
 */
int32_t comity_dtype_supports(comity_dtype dtype,
                              comity_reduce_op op);

/**
 * The version of the library: major * 10000 + minor * 100 + patch.
 */
uint32_t comity_version(void);

/**
 * The version of the library as text: "0.1.0". The text lives as long as the library.
 */
const char *comity_version_text(void);

/**
 * The group of this process's job, found in the environment: the variables of `comity launch`, MLX, torchrun, Open MPI, MPICH and
 * Slurm are understood. A group of one where no launcher's variables are set.
 *
 * @param out Gets the group, yours to free with comity_group_free().
 * @return Also COMITY_ERR_CONFIG for broken variables, COMITY_ERR_JOIN when the ranks do not come together within the join limit, and
 * COMITY_ERR_FORKED in a child that was forked from a process of the job.
 */
comity_status comity_init(comity_group **out);

/**
 * Like comity_init(), but COMITY_ERR_CONFIG where no launcher's variables are set.
 */
comity_status comity_init_strict(comity_group **out);

/**
 * Groups for `size` threads of this process, which talk through memory: for tests, and for programs without processes.
 *
 * @param size Number of ranks; 1 is a group of this process alone.
 * @param out Gets `size` groups by rank, each yours to free with comity_group_free().
 */
comity_status comity_local(int32_t size,
                           comity_group **out);

/**
 * This process's place in the group, from 0; -1 if there is no such group.
 */
int32_t comity_group_rank(comity_group *group);

/**
 * Number of ranks of the group; -1 if there is no such group.
 */
int32_t comity_group_size(comity_group *group);

/**
 * The CUDA device whose memory calls take, besides that of the host; -1 if none.
 */
int32_t comity_group_device(comity_group *group);

/**
 * A member of the group.
 *
 * @param member Its rank.
 * @param out Its `size` must be set to sizeof(comity_member). Its texts are valid until comity_group_free().
 */
comity_status comity_group_member(comity_group *group,
                                  int32_t member,
                                  comity_member *out);

/**
 * Counters of the group on this rank.
 *
 * @param out Its `size` must be set to sizeof(comity_stats).
 */
comity_status comity_group_stats(comity_group *group,
                                 comity_stats *out);

/**
 * Limit on a call, in seconds; INFINITY where there is none, a negative number if there is no such group.
 */
double comity_group_timeout(comity_group *group);

/**
 * Let calls that are made from now on take so long (at first 300, or COMITY_TIMEOUT). A call that runs out of time ends the group.
 *
 * @param timeout Seconds, more than 0; INFINITY: as long as all ranks live. comity_call has a limit for one call.
 */
comity_status comity_group_set_timeout(comity_group *group,
                                       double timeout);

/**
 * Split into groups of equal color: every rank calls this. Ranks of one color form a group, by key and then by rank.
 *
 * @param color 0 or more; -1 to be in none of the groups.
 * @param out Gets the group, yours to free with comity_group_free(); NULL where the color is -1.
 */
comity_status comity_group_split(comity_group *group,
                                 int32_t color,
                                 int32_t key,
                                 comity_group **out);

/**
 * The group of some members; only they call this, all with the same list and label. Calls of `group` may run meanwhile.
 *
 * @param members Ranks of `group` in their new order, this one among them.
 * @param count Number of `members`.
 * @param label Tells apart groups of the same members.
 * @param out Gets the group, yours to free with comity_group_free().
 */
comity_status comity_group_subgroup(comity_group *group,
                                    const int32_t *members,
                                    int32_t count,
                                    uint64_t label,
                                    comity_group **out);

/**
 * Give the group up on every rank: calls under way and later ones fail with COMITY_ERR_ABORTED, which carries `why`. This is also how
 * a request is cancelled: MPI's rules hold, nothing less than the group can be.
 *
 * @param why A sentence for the other ranks, in UTF-8.
 */
comity_status comity_group_abort(comity_group *group,
                                 const char *why);

/**
 * Leave the group in good order: calls under way on other threads and later ones are COMITY_ERR_CLOSED, and peers that still need this
 * rank get an error that names it. The handle stays, to be freed.
 *
 * @return COMITY_ERR_MISMATCH if the ranks made different calls and no call has shown it. The group is closed all the same.
 */
comity_status comity_group_close(comity_group *group);

/**
 * Close the group if it is not closed yet, and free the handle. Requests under way end as with comity_group_close(). NULL is allowed.
 *
 * In a forked child this frees the handle and leaves the parent's connections alone.
 *
 * @return As comity_group_close(); the handle is freed in any case.
 */
comity_status comity_group_free(comity_group *group);

/**
 * Make any call, with all that can be said of one: CUDA memory, unequal parts, a limit of its own. Returns when it has ended; on a
 * device, when its work is on the stream.
 *
 * @param call Read before the function returns, as are the counts that it points to.
 */
comity_status comity_run(comity_group *group,
                         const comity_call *call);

/**
 * Combine `src` of all ranks, element by element; every rank gets the result in `dst`.
 *
 * @param src `count` elements.
 * @param dst `count` elements; may be `src`.
 * @return COMITY_ERR_MISUSE for what the caller could have checked, and then the group is unharmed. Any other error is final: the group
 * has failed on every rank, and what `dst` holds is undefined. So it is with all operations.
 */
comity_status comity_all_reduce(comity_group *group,
                                const void *src,
                                void *dst,
                                int64_t count,
                                comity_dtype dtype,
                                comity_reduce_op op);

/**
 * Combine `src` of all ranks, element by element; the root gets the result in `dst`.
 *
 * @param src `count` elements.
 * @param dst At the root `count` elements; may be `src`. Elsewhere not used, and may be NULL.
 * @param root The rank that gets the result.
 */
comity_status comity_reduce(comity_group *group,
                            const void *src,
                            void *dst,
                            int64_t count,
                            comity_dtype dtype,
                            comity_reduce_op op,
                            int32_t root);

/**
 * Copy the root's `buffer` to every rank.
 *
 * @param buffer `count` elements, which the root's is read from and the others' are written to.
 */
comity_status comity_broadcast(comity_group *group,
                               void *buffer,
                               int64_t count,
                               comity_dtype dtype,
                               int32_t root);

/**
 * Send `src` to a rank, which calls comity_recv() with the same tag, type and count. Returns when `src` may be used again, which may
 * be before it is received. Two ranks that both send long buffers before they receive wait for each other: use comity_sendrecv().
 *
 * @param tag 0 to 0x7fffffff.
 */
comity_status comity_send(comity_group *group,
                          const void *src,
                          int64_t count,
                          comity_dtype dtype,
                          int32_t to,
                          uint32_t tag);

/**
 * Receive into `dst` what a rank sends with comity_send() and this tag.
 *
 * @return COMITY_ERR_MISMATCH when what was sent has another type or count.
 */
comity_status comity_recv(comity_group *group,
                          void *dst,
                          int64_t count,
                          comity_dtype dtype,
                          int32_t from,
                          uint32_t tag);

/**
 * Send `src` to one rank and receive `dst` from one, which may be the same, at once.
 *
 * @param src `count` elements. It must not overlap `dst`.
 * @param dst `recv_count` elements.
 */
comity_status comity_sendrecv(comity_group *group,
                              const void *src,
                              int64_t count,
                              int32_t to,
                              void *dst,
                              int64_t recv_count,
                              int32_t from,
                              comity_dtype dtype,
                              uint32_t tag);

/**
 * Return once every rank has called this.
 */
comity_status comity_barrier(comity_group *group);

/**
 * Join every rank's `src` in every rank's `dst`, by rank.
 *
 * @param src `count` elements. In place it is this rank's part of `dst`, at dst + rank * count elements.
 * @param dst `count` elements for each rank.
 */
comity_status comity_all_gather(comity_group *group,
                                const void *src,
                                void *dst,
                                int64_t count,
                                comity_dtype dtype);

/**
 * Like comity_all_gather(), where rank r gives counts[r] elements. It has no form in place.
 *
 * @param counts One number for each rank, the same on every rank.
 */
comity_status comity_all_gather_v(comity_group *group,
                                  const void *src,
                                  void *dst,
                                  const int64_t *counts,
                                  comity_dtype dtype);

/**
 * Combine `src` of all ranks, element by element; rank r gets part r of the result in `dst`.
 *
 * @param src `count` elements for each rank.
 * @param dst `count` elements. In place it is this rank's part of `src`, at src + rank * count elements; the rest of `src` stays.
 */
comity_status comity_reduce_scatter(comity_group *group,
                                    const void *src,
                                    void *dst,
                                    int64_t count,
                                    comity_dtype dtype,
                                    comity_reduce_op op);

/**
 * Like comity_reduce_scatter(), where part r has counts[r] elements. It has no form in place.
 *
 * @param counts One number for each rank, the same on every rank.
 */
comity_status comity_reduce_scatter_v(comity_group *group,
                                      const void *src,
                                      void *dst,
                                      const int64_t *counts,
                                      comity_dtype dtype,
                                      comity_reduce_op op);

/**
 * Join every rank's `src` in the root's `dst`, by rank.
 *
 * @param src `count` elements. It must not overlap `dst`.
 * @param dst At the root `count` elements for each rank; elsewhere not used, and may be NULL.
 */
comity_status comity_gather(comity_group *group,
                            const void *src,
                            void *dst,
                            int64_t count,
                            comity_dtype dtype,
                            int32_t root);

/**
 * Give part r of the root's `src` to rank r, in `dst`.
 *
 * @param src At the root `count` elements for each rank; elsewhere not used, and may be NULL. It must not overlap `dst`.
 * @param dst `count` elements.
 */
comity_status comity_scatter(comity_group *group,
                             const void *src,
                             void *dst,
                             int64_t count,
                             comity_dtype dtype,
                             int32_t root);

/**
 * Give part r of `src` to rank r; `dst` gets one part from each rank, by rank.
 *
 * @param src `count` elements for each rank.
 * @param dst As many; may be `src`.
 */
comity_status comity_all_to_all(comity_group *group,
                                const void *src,
                                void *dst,
                                int64_t count,
                                comity_dtype dtype);

/**
 * Like comity_all_to_all(), where this rank gives send_counts[r] elements to rank r and gets recv_counts[r] from it, each side's parts
 * one after the other. It has no form in place.
 *
 * @param send_counts One number for each rank.
 * @param recv_counts One number for each rank.
 */
comity_status comity_all_to_all_v(comity_group *group,
                                  const void *src,
                                  const int64_t *send_counts,
                                  void *dst,
                                  const int64_t *recv_counts,
                                  comity_dtype dtype);

/**
 * Make a call in the background, in its turn among the group's calls: the turn is taken now.
 *
 * @param call Read before the function returns, as are the counts that it points to. Its buffers must stay, and nobody else may write
 * them, until the request has ended, also when its handle is freed before.
 * @param out Gets the request, yours to free with comity_request_free().
 */
comity_status comity_start(comity_group *group,
                           const comity_call *call,
                           comity_request **out);

/**
 * Status of a request.
 *
 * @return COMITY_PENDING while it is under way; then the status of its call, on every call of this function.
 */
comity_status comity_request_test(comity_request *request);

/**
 * Wait until a request has ended. It always does: at the latest at the limit of its call.
 *
 * @param seconds Limit on the wait; less than 0: as long as it takes.
 * @return The status of the call; COMITY_PENDING where it is still under way after `seconds`, which harms nothing.
 * COMITY_ERR_ORDER in a callback.
 */
comity_status comity_request_wait(comity_request *request,
                                  double seconds);

/**
 * Wait until one of several requests has ended.
 *
 * @param requests `count` handles; NULL among them are passed over.
 * @param seconds Limit on the wait; less than 0: as long as it takes.
 * @param index Gets the place in `requests` of one that has ended; -1 where none has, or all are NULL.
 * @return The status of that call; COMITY_PENDING where none has ended after `seconds`; COMITY_OK where all are NULL.
 */
comity_status comity_request_wait_any(comity_request *const *requests,
                                      int32_t count,
                                      double seconds,
                                      int32_t *index);

/**
 * Have a function called when a request has ended: once, on a thread of Comity's, or at once on this thread where it has ended already.
 *
 * @param done Must be short. It must not wait for requests and must not free or close groups; comity_request_test() may be asked.
 * @param context Given to it. It must stay until then, also when the request's handle is freed before.
 */
comity_status comity_request_on_done(comity_request *request,
                                     comity_done_fn done,
                                     void *context);

/**
 * Free a request. Its call, if it is under way, goes on, since other ranks count on it; its buffers must stay until it has ended.
 * NULL is allowed.
 */
comity_status comity_request_free(comity_request *request);

/**
 * Rank `rank` of `size`, with every other setting at its default. More than one rank needs a place to meet (one of
 * comity_config_store(), comity_config_rendezvous(), comity_config_hostfile(), comity_config_exchange()) and a key.
 *
 * @param out Gets the configuration, yours to free with comity_config_free().
 */
comity_status comity_config_new(int32_t rank,
                                int32_t size,
                                comity_config **out);

/**
 * Make a configuration from the environment; see comity_init().
 *
 * @param out Gets the configuration, yours to free with comity_config_free().
 */
comity_status comity_config_from_env(comity_config **out);

/**
 * Free a configuration. Groups that were made by it stay. NULL is allowed.
 */
comity_status comity_config_free(comity_config *config);

/**
 * Meet the other ranks and make the group of all of them. Every rank of the job calls this. It returns when all have come, or fails at
 * the join limit and names those that are missing.
 *
 * @param config Stays as it is, and yours.
 * @param out Gets the group, yours to free with comity_group_free().
 */
comity_status comity_connect(comity_config *config,
                             comity_group **out);

/**
 * Meet at a store that runs elsewhere, such as that of `comity launch`: "host:port".
 */
comity_status comity_config_store(comity_config *config,
                                  const char *at);

/**
 * Meet at a store that rank 0 runs at this "host:port", which every rank can reach.
 */
comity_status comity_config_rendezvous(comity_config *config,
                                       const char *at);

/**
 * Meet at rank 0's first address in a hostfile of MLX's form, and listen on this rank's own.
 */
comity_status comity_config_hostfile(comity_config *config,
                                     const char *path);

/**
 * Meet at a store that rank 0 runs at a free port, which it tells the others through a function of yours, over whatever channel the
 * program has. Without a key rank 0 makes one and tells that too: whoever can read the channel can join.
 *
 * @param share Called on a thread of Comity's or on that of comity_connect(), and never after that has returned.
 * @param context Given to it.
 */
comity_status comity_config_exchange(comity_config *config,
                                     comity_share_fn share,
                                     void *context);

/**
 * The name of the job, the same on all ranks. Ranks of different jobs refuse one another.
 */
comity_status comity_config_job(comity_config *config,
                                const char *job);

/**
 * The secret that every rank of the job holds.
 *
 * @param key 32 bytes, which are copied.
 * @param length Must be 32.
 */
comity_status comity_config_key(comity_config *config,
                                const uint8_t *key,
                                size_t length);

/**
 * Like comity_config_key(), from a file that only its owner can read.
 */
comity_status comity_config_key_file(comity_config *config,
                                     const char *path);

/**
 * Meet without a secret: whoever reaches a port and knows the job's name can join.
 *
 * @param public_addresses 0: addresses that the internet may reach are refused. 1: they are not.
 */
comity_status comity_config_insecure(comity_config *config,
                                     int32_t public_addresses);

/**
 * Use of the key; at first COMITY_SECURE_HANDSHAKE. The same on all ranks.
 */
comity_status comity_config_secure(comity_config *config,
                                   comity_secure secure);

/**
 * Limit on a call, in seconds; at first 300. INFINITY: as long as all ranks live.
 */
comity_status comity_config_timeout(comity_config *config,
                                    double timeout);

/**
 * Limit on the time until all ranks have met, in seconds; at first 60.
 */
comity_status comity_config_join_timeout(comity_config *config,
                                         double timeout);

/**
 * Silence after which the others give a rank up, in seconds: 0.1 to 86400, or 0 for never; at first 5.
 */
comity_status comity_config_detection(comity_config *config,
                                      double limit);

/**
 * The kinds of link that may be used: "shm,tcp".
 */
comity_status comity_config_links(comity_config *config,
                                  const char *kinds);

/**
 * Backend for the calls; at first COMITY_BACKEND_ANY.
 */
comity_status comity_config_backend(comity_config *config,
                                    comity_backend backend);

/**
 * The CUDA device of this rank for COMITY_BACKEND_NCCL; at first by the rank's number on its host.
 */
comity_status comity_config_device(comity_config *config,
                                   uint32_t device);

/**
 * The RDMA devices that lead from each rank to each other: JSON in MLX's form, or a path to such a file.
 */
comity_status comity_config_devices(comity_config *config,
                                    const char *matrix);

/**
 * This rank's own addresses to listen on, with a comma between: "10.0.0.1,[fe80::1]:7000".
 */
comity_status comity_config_addrs(comity_config *config,
                                  const char *addrs);

/**
 * TCP connections for each pair of addresses.
 */
comity_status comity_config_connections(comity_config *config,
                                        int32_t connections);

/**
 * Number of threads that may send long messages over TCP beside the rank's own.
 */
comity_status comity_config_send_threads(comity_config *config,
                                         int32_t threads);

/**
 * The name of this host. Ranks whose hosts have equal names use shared memory.
 */
comity_status comity_config_host_name(comity_config *config,
                                      const char *name);

/**
 * When a group fails, write its last calls to a file in this directory, for `comity report`.
 */
comity_status comity_config_log_dir(comity_config *config,
                                    const char *path);

/**
 * Measure every link when the ranks have met, and choose plans by that. On all ranks or none.
 */
comity_status comity_config_measure_costs(comity_config *config);

/**
 * Choose plans by what `comity check --links --json` wrote into a file. On all ranks or none.
 */
comity_status comity_config_costs_file(comity_config *config,
                                       const char *path);

/**
 * Carry out every operation by this algorithm, where it can: "ring". On all ranks or none. For tests and measurements.
 */
comity_status comity_config_algorithm(comity_config *config,
                                      const char *name);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* COMITY_H */

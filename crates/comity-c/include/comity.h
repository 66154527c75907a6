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
 * Names. comity_TYPE_VERB() takes a comity_TYPE first. Collectives, comity_run() and comity_start() take a group. Enumerators begin with
 * their type's name, but for the short ones that stand in most calls: statuses (COMITY_OK, COMITY_ERR_...), element types (COMITY_F32)
 * and reductions (COMITY_SUM).
 *
 * Errors. Functions return a comity_status. The library prints nothing, does not end the process, and lets no exception or panic out.
 * After COMITY_ERR_MISUSE nothing was done, and the group is unharmed. It means that you broke a rule that you could have checked: NULL,
 * a handle that was freed or is of another type, a negative count, a number that stands in no enum, buffers that overlap.
 *
 * Handles. A function that makes an object gives you a handle of it. Each comity_TYPE has its comity_TYPE_free(); call it once. A handle
 * is a token, not an address: a function that gets a freed handle returns COMITY_ERR_MISUSE, also while another thread frees it.
 *
 * Memory. Comity copies texts, lists and structs before a function returns. It cannot check pointers: a buffer must have the size that
 * you say, and a text must end with a NUL.
 *
 * Threads. Any thread may call any function, with the same handles. Calls of a group run one after the other, in the order in which they
 * are made. That order must be the same on all ranks. Each thread has a last error of its own. Callbacks may come on any thread.
 *
 * Forks. In a forked child, the parent's groups and requests return COMITY_ERR_FORKED. Groups that the child makes itself work.
 *
 * Structs begin with their size, so that later versions can add fields: set it to sizeof of the struct.
 * Counts are of elements. Times are in seconds, and INFINITY is no limit. Texts are UTF-8.
 */

#ifndef COMITY_H
#define COMITY_H

#include <stddef.h>
#include <stdint.h>


/**
 * Status of a call. COMITY_OK and COMITY_PENDING are no errors.
 *
 * After an error comity_last_error() has a sentence about it, and comity_error_take() an object with all details.
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
     * The caller broke a rule that it could have checked. Nothing was done, and the group is unharmed.
     */
    COMITY_ERR_MISUSE = 2,
    /**
     * A setting is unknown or has a bad value, or the configuration is incomplete or contradicts itself.
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
     * Not all ranks met within the join limit.
     */
    COMITY_ERR_JOIN = 6,
    /**
     * Two ranks made different calls, or the same call with other arguments.
     */
    COMITY_ERR_MISMATCH = 7,
    /**
     * The call did not end within its time limit.
     */
    COMITY_ERR_TIMEOUT = 8,
    /**
     * A member's process or link is gone.
     */
    COMITY_ERR_PEER_LOST = 9,
    /**
     * A rank aborted the group.
     */
    COMITY_ERR_ABORTED = 10,
    /**
     * A library outside of Comity, such as MPI or NCCL, failed.
     */
    COMITY_ERR_LIBRARY = 11,
    /**
     * The system refused something that this process needs, such as memory or a port.
     */
    COMITY_ERR_OS = 12,
    /**
     * This process closed the group.
     */
    COMITY_ERR_CLOSED = 13,
    /**
     * The handle belongs to the parent of this forked process; or the parent has this process's place in the job.
     */
    COMITY_ERR_FORKED = 14,
    /**
     * A mistake in Comity. Please report it with its sentence.
     */
    COMITY_ERR_INTERNAL = 15,
} comity_status;

/**
 * Type of one element of a buffer. Buffers need no alignment.
 */
typedef enum {
    /**
     * One byte: 0 or 1.
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
     * IEEE 754 half precision
     */
    COMITY_F16 = 9,
    /**
     * Upper half of a float
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
     * Two floats: the real part, then the imaginary part
     */
    COMITY_C64 = 13,
} comity_dtype;

/**
 * Reduction: combines the elements of different ranks. Every rank gets the same bits, and integers wrap.
 *
 * COMITY_AND, COMITY_OR and COMITY_XOR take integers and COMITY_BOOL. COMITY_AVG takes all types but COMITY_BOOL.
 */
typedef enum {
    COMITY_SUM = 0,
    COMITY_PRODUCT = 1,
    COMITY_MIN = 2,
    COMITY_MAX = 3,
    /**
     * Sum, divided by the number of ranks
     */
    COMITY_AVG = 4,
    COMITY_AND = 5,
    COMITY_OR = 6,
    COMITY_XOR = 7,
} comity_reduce_op;

/**
 * Operation of a comity_call. Each has a function of its name, which explains it: comity_all_reduce().
 */
typedef enum {
    COMITY_OP_ALL_REDUCE = 1,
    COMITY_OP_REDUCE = 2,
    COMITY_OP_BROADCAST = 3,
    COMITY_OP_ALL_GATHER = 4,
    COMITY_OP_REDUCE_SCATTER = 5,
    COMITY_OP_GATHER = 6,
    COMITY_OP_SCATTER = 7,
    COMITY_OP_ALL_TO_ALL = 8,
    COMITY_OP_SEND = 9,
    COMITY_OP_RECV = 10,
    COMITY_OP_SENDRECV = 11,
    COMITY_OP_BARRIER = 12,
} comity_op;

/**
 * Place of a call's buffers.
 */
typedef enum {
    /**
     * Host memory
     */
    COMITY_PLACE_HOST = 0,
    /**
     * Memory of the group's CUDA device. The work is ordered on a stream.
     */
    COMITY_PLACE_CUDA = 1,
} comity_place;

/**
 * Form in which the elements of an all_reduce, reduce_scatter or all_gather cross the links. It is for sums and averages of COMITY_F32,
 * COMITY_F16 and COMITY_BF16 in host memory, on slow networks. Each contribution is rounded once and the sum once more; all ranks get the same
 * bits. All ranks name the same.
 */
typedef enum {
    /**
     * As they are
     */
    COMITY_WIRE_PLAIN = 0,
    /**
     * 2 bytes, with the range of a float
     */
    COMITY_WIRE_BF16 = 1,
    /**
     * 2 bytes, up to 65,504
     */
    COMITY_WIRE_F16 = 2,
    /**
     * A byte, and a scale for each block of 256
     */
    COMITY_WIRE_INT8_BLOCK = 3,
} comity_wire;

/**
 * Settings of a process before it meets the others. Free it with comity_config_free().
 */
typedef struct comity_config comity_config;

/**
 * Error that was taken from its thread. Free it with comity_error_free().
 */
typedef struct comity_error comity_error;

/**
 * Ranks that call collectives together. Free it with comity_group_free().
 */
typedef struct comity_group comity_group;

/**
 * Call under way in the background. Free it with comity_request_free().
 */
typedef struct comity_request comity_request;

/**
 * Details of an error. The pointers are valid until comity_error_free() of that error.
 */
typedef struct {
    /**
     * sizeof(comity_error_info); set it before the call
     */
    size_t size;
    /**
     * Status of the function that failed
     */
    comity_status status;
    /**
     * 1: the group had failed before, and this is that failure
     */
    int32_t earlier;
    /**
     * 1: the group cannot be used any more, or was never made
     */
    int32_t fatal;
    /**
     * First rank at fault; -1: none, or not known
     */
    int32_t rank;
    /**
     * Process id of that rank; 0: not known
     */
    int64_t pid;
    /**
     * Host of that rank; NULL: not known
     */
    const char *host;
    /**
     * Sentence that says what happened, to whom, and what to do next; never NULL
     */
    const char *text;
    /**
     * Call of this rank, such as "all_reduce #3 f32[8] sum"; NULL outside of a call
     */
    const char *call;
    /**
     * Call of the other rank; NULL but for COMITY_ERR_MISMATCH
     */
    const char *peer_call;
    /**
     * First difference between the two calls, such as "dtype" or "count"; NULL but for COMITY_ERR_MISMATCH
     */
    const char *differs;
    /**
     * All ranks at fault
     */
    const int32_t *ranks;
    /**
     * Number of `ranks`
     */
    size_t rank_count;
    /**
     * Limit in seconds that passed; 0 but for COMITY_ERR_TIMEOUT
     */
    double timeout;
} comity_error_info;

/**
 * Member of a group. The texts are valid until comity_group_free() of that group.
 */
typedef struct {
    /**
     * sizeof(comity_member); set it before the call
     */
    size_t size;
    /**
     * Rank in the group
     */
    int32_t rank;
    /**
     * Must be 0
     */
    int32_t reserved;
    /**
     * Process id; 0: not known
     */
    int64_t pid;
    /**
     * Name of the host; NULL: not known
     */
    const char *host;
    /**
     * Kind of the link to it, such as "shm" or "tcp"; NULL for this rank
     */
    const char *link;
} comity_member;

/**
 * Counters of a group on this rank.
 */
typedef struct {
    /**
     * sizeof(comity_stats); set it before the call
     */
    size_t size;
    /**
     * Number of calls that succeeded
     */
    uint64_t calls;
    /**
     * Number of calls that failed
     */
    uint64_t errors;
    /**
     * Bytes of payload sent to other ranks
     */
    uint64_t bytes_sent;
    /**
     * Number of times that a member was silent for a fifth of the detection limit
     */
    uint64_t suspicions;
    /**
     * Seconds asleep, waiting for other ranks
     */
    double parked;
    /**
     * Longest silence of a member, in seconds
     */
    double longest_silence;
} comity_stats;

/**
 * Conditions for comity_group_reform(). Set the struct to 0, then `size`, then the fields that you need.
 */
typedef struct {
    /**
     * sizeof(comity_reform_options)
     */
    size_t size;
    /**
     * Form no group of fewer ranks; 0: of one or more
     */
    int32_t fewest;
    /**
     * 1: go on wherever the job's store can be asked, with however few ranks. 0: where more than half of the former ranks are
     */
    int32_t store_decides;
    /**
     * Seconds to wait for the other ranks; 0: as long as the group's limit of a call
     */
    double timeout;
} comity_reform_options;

/**
 * Rank of a former group that is not in the one that follows. The texts are valid until comity_group_free() of that one.
 */
typedef struct {
    /**
     * sizeof(comity_departure); set it before the call
     */
    size_t size;
    /**
     * Its rank in the former group
     */
    int32_t rank;
    /**
     * Must be 0
     */
    int32_t reserved;
    /**
     * Process id; 0: not known
     */
    int64_t pid;
    /**
     * Name of the host; NULL: not known
     */
    const char *host;
    /**
     * Reason, as the rest of the sentence "rank 3 ..."; never NULL
     */
    const char *why;
} comity_departure;

/**
 * Buffer of comity_sync().
 */
typedef struct {
    /**
     * First element
     */
    void *data;
    /**
     * Number of elements
     */
    int64_t count;
    /**
     * Type of the elements
     */
    comity_dtype dtype;
    /**
     * Must be 0
     */
    uint32_t reserved;
} comity_buffer;

/**
 * Arguments of a call, for comity_run() and comity_start(). Set the struct to 0, then `size`, then the fields that your call needs.
 */
typedef struct {
    /**
     * sizeof(comity_call)
     */
    size_t size;
    /**
     * Operation
     */
    comity_op op;
    /**
     * Type of the elements
     */
    comity_dtype dtype;
    /**
     * Reduction of all_reduce, reduce and reduce_scatter
     */
    comity_reduce_op reduce;
    /**
     * Root of reduce, broadcast, gather and scatter; destination of send and sendrecv; source of recv
     */
    int32_t rank;
    /**
     * Source of sendrecv
     */
    int32_t source;
    /**
     * Tag of send, recv and sendrecv, 0 to 0x7fffffff
     */
    uint32_t tag;
    /**
     * Buffer to read. Each operation's function says where it may be `dst`.
     */
    const void *src;
    /**
     * Buffer to write
     */
    void *dst;
    /**
     * Number of elements, counted as the operation's function does
     */
    int64_t count;
    /**
     * Number of elements that sendrecv receives
     */
    int64_t recv_count;
    /**
     * Number of elements of each rank's part, an entry for each rank; NULL: all parts have `count`. In all_to_all the parts to send
     */
    const int64_t *counts;
    /**
     * Number of elements that all_to_all receives from each rank, where `counts` is not NULL
     */
    const int64_t *recv_counts;
    /**
     * Place of `src` and `dst`
     */
    comity_place place;
    /**
     * Must be 0
     */
    uint32_t reserved;
    /**
     * cudaStream_t, for COMITY_PLACE_CUDA
     */
    void *stream;
    /**
     * Time limit in seconds; 0: the group's limit, INFINITY: none. In the background it begins with the call's turn.
     */
    double timeout;
    /**
     * Form of the elements on the links
     */
    comity_wire wire;
} comity_call;

/**
 * Function of yours for comity_request_on_done(). It must be short, must not wait for a request, and must not close or free a group.
 * Inside, comity_request_test() has the status of the call.
 *
 * @param context Pointer that you gave.
 */
typedef void (*comity_done_fn)(void *context);

/**
 * Function of yours for comity_config_set_exchange(): sends a short text from rank 0 to all others, over a channel that your program has.
 * It is called equally often on all ranks; call k of a rank belongs to call k of the others.
 *
 * @param mine Text to send: 1 to 512 printable characters; NULL on all ranks but 0.
 * @param timeout Seconds that are left.
 * @param out Gets the text and a NUL, on all ranks but 0.
 * @param room Number of bytes at `out`.
 * @return 0 on success; any other number ends comity_config_connect() with COMITY_ERR_JOIN.
 */
typedef int32_t (*comity_exchange_fn)(void *context,
                                      int32_t rank,
                                      int32_t size,
                                      const char *mine,
                                      double timeout,
                                      char *out,
                                      size_t room);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Get the sentence of this thread's last error: what happened, to whom, and what to do next. A function that succeeds leaves it.
 *
 * @return Text that is valid until the next function of Comity fails on this thread, or this thread calls comity_error_take(). "" if
 * there was no error.
 */
const char *comity_last_error(void);

/**
 * Take the last error of this thread as an object. comity_error_get() has its details, on any thread.
 *
 * Call this on the thread on which the function failed, before another one fails there.
 *
 * @param out Gets the error, or NULL if there is none. Free it with comity_error_free().
 */
comity_status comity_error_take(comity_error **out);

/**
 * Get the details of an error.
 *
 * @param out Set its `size` to sizeof(comity_error_info) before. Its pointers are valid until comity_error_free().
 */
comity_status comity_error_get(comity_error *error,
                               comity_error_info *out);

/**
 * Free an error. NULL is allowed.
 */
comity_status comity_error_free(comity_error *error);

/**
 * Get the name of a status, such as "peer lost".
 *
 * @return Text that stays valid; NULL if there is no such status.
 */
const char *comity_status_name(comity_status status);

/**
 * Get the name of a type, such as "bf16".
 *
 * @return Text that stays valid; NULL if there is no such type.
 */
const char *comity_dtype_name(comity_dtype dtype);

/**
 * Get the name of a reduction, such as "sum".
 *
 * @return Text that stays valid; NULL if there is no such reduction.
 */
const char *comity_reduce_op_name(comity_reduce_op reduce);

/**
 * Get the size of one element in bytes.
 *
 * @return 0 if there is no such type.
 */
size_t comity_dtype_size(comity_dtype dtype);

/**
 * Find out whether a reduction is defined on a type.
 *
 * @return 1 if it is, else 0.
 */
int32_t comity_dtype_supports(comity_dtype dtype,
                              comity_reduce_op reduce);

/**
 * Get the version of the library as a number: major * 10000 + minor * 100 + patch.
 */
uint32_t comity_version(void);

/**
 * Get the version of the library as text, such as "0.1.0".
 *
 * @return Text that stays valid.
 */
const char *comity_version_text(void);

/**
 * Meet the other ranks of this process's job and make the group of all. The environment says which job: the variables of
 * `comity launch`, MLX, torchrun, Open MPI, MPICH and Slurm are understood. Without a launcher's variables it is a group of one.
 *
 * @param out Gets the group. Free it with comity_group_free().
 * @return COMITY_ERR_CONFIG if the variables make no sense; COMITY_ERR_JOIN if a rank does not come within the join limit;
 * COMITY_ERR_FORKED in a child that was forked from a process of the job.
 */
comity_status comity_init(comity_group **out);

/**
 * Like comity_init(), but without a launcher's variables it is COMITY_ERR_CONFIG.
 *
 * @param out Gets the group. Free it with comity_group_free().
 */
comity_status comity_init_strict(comity_group **out);

/**
 * Make a group of `size` threads of this process, which exchange data through memory.
 *
 * @param size Number of ranks; 1 is a group of this process alone.
 * @param groups Array of `size` handles. Gets one for each rank; give each thread its own. Free each with comity_group_free().
 */
comity_status comity_init_local(int32_t size,
                                comity_group **groups);

/**
 * Get this process's rank in the group, from 0.
 *
 * @return -1 if there is no such group.
 */
int32_t comity_group_rank(comity_group *group);

/**
 * Get the number of ranks of the group.
 *
 * @return -1 if there is no such group.
 */
int32_t comity_group_size(comity_group *group);

/**
 * Get the CUDA device of the group: its calls take memory of this device and of the host.
 *
 * @return -1 if it has none, or there is no such group.
 */
int32_t comity_group_device(comity_group *group);

/**
 * Describe a member of the group.
 *
 * @param rank Rank of the member in the group.
 * @param out Set its `size` to sizeof(comity_member) before. Its texts are valid until comity_group_free().
 */
comity_status comity_group_member(comity_group *group,
                                  int32_t rank,
                                  comity_member *out);

/**
 * Get the counters of the group on this rank.
 *
 * @param out Set its `size` to sizeof(comity_stats) before.
 */
comity_status comity_group_stats(comity_group *group,
                                 comity_stats *out);

/**
 * Get the time limit of a call in seconds.
 *
 * @return INFINITY if calls have no limit; a negative number if there is no such group.
 */
double comity_group_timeout(comity_group *group);

/**
 * Set the time limit of calls that are made from now on. comity_call has a limit for a single call. A call that runs out of time ends
 * the group.
 *
 * @param timeout Seconds, more than 0; INFINITY: as long as all ranks live.
 */
comity_status comity_group_set_timeout(comity_group *group,
                                       double timeout);

/**
 * Split the group: every rank calls this, and ranks of equal color form a group.
 *
 * @param color 0 or more; -1: this rank is in none of the groups.
 * @param key Order of the ranks in the new group; where keys are equal, the order of `group`.
 * @param out Gets the group; NULL where the color is -1. Free it with comity_group_free().
 */
comity_status comity_group_split(comity_group *group,
                                 int32_t color,
                                 int32_t key,
                                 comity_group **out);

/**
 * Make a group of some members. Only they call this, all with the same list and label. Calls of `group` may run meanwhile.
 *
 * @param members Ranks of `group` in their new order, this one among them.
 * @param count Number of `members`.
 * @param label Number that tells apart groups of the same members.
 * @param out Gets the group. Free it with comity_group_free().
 */
comity_status comity_group_subgroup(comity_group *group,
                                    const int32_t *members,
                                    int32_t count,
                                    uint64_t label,
                                    comity_group **out);

/**
 * Abort the group on every rank: calls under way and later ones fail with COMITY_ERR_ABORTED. This also cancels a request: other ranks
 * count on its call, so nothing less than the group can be cancelled.
 *
 * @param why Sentence that the error of every rank holds.
 */
comity_status comity_group_abort(comity_group *group,
                                 const char *why);

/**
 * Leave the group in good order. Calls under way on other threads and later ones fail with COMITY_ERR_CLOSED. A rank that still needs
 * this one gets an error that names it. The handle stays yours: free it.
 *
 * @return COMITY_ERR_MISMATCH if the ranks made different calls and no call has shown it. The group is closed all the same.
 */
comity_status comity_group_close(comity_group *group);

/**
 * Close the group if it is open, and free the handle. NULL is allowed. Requests under way end as with comity_group_close().
 *
 * In a forked child this frees the handle and leaves the parent's connections alone.
 *
 * @return Status of comity_group_close(). The handle is freed in any case.
 */
comity_status comity_group_free(comity_group *group);

/**
 * Form the group again of the ranks that are left: after a failure, or where all ranks of a healthy group call this.
 *
 * The others that live call it too, each when a call of it has failed. They get new numbers without gaps, in the former order. Processes
 * that wait to be taken in become the last ranks. All get the same group, or an error. `group` stays failed; one that had not failed is
 * closed. Free it as well. Groups that were split from it are not formed again.
 *
 * @param options NULL for the usual ones. Every rank gives the same.
 * @param out Gets the group. Free it with comity_group_free().
 * @return COMITY_ERR_JOIN where no group follows. Unless the others went on without this rank, you may call this again.
 */
comity_status comity_group_reform(comity_group *group,
                                  const comity_reform_options *options,
                                  comity_group **out);

/**
 * Get the number of processes that wait to be taken in (COMITY_JOIN=1). The next comity_group_reform() takes them in. This asks nobody;
 * ranks may learn of a process at different moments.
 *
 * @return -1 if there is no such group.
 */
int32_t comity_group_joiners(comity_group *group);

/**
 * Get the number of ranks that comity_group_reform() took into this group: its last ones.
 *
 * @return -1 if there is no such group.
 */
int32_t comity_group_joined(comity_group *group);

/**
 * Get the number of ranks that were in the group before comity_group_reform() and are not in this one.
 *
 * @return -1 if there is no such group.
 */
int32_t comity_group_left(comity_group *group);

/**
 * Describe one of the ranks that comity_group_left() counts.
 *
 * @param index 0 to comity_group_left() - 1.
 * @param out Set its `size` to sizeof(comity_departure) before. Its texts are valid until comity_group_free() of `group`.
 */
comity_status comity_group_departure(comity_group *group,
                                     int32_t index,
                                     comity_departure *out);

/**
 * Give all ranks the buffers of those that hold them, with the same bits on all. Only buffers that differ are sent.
 *
 * Every rank passes buffers of the same types and lengths in the same order, in host memory. They must not overlap.
 *
 * @param buffers Array of `count` buffers.
 * @param holds 1 on ranks whose buffers are right, such as those that went on; 0 on those that have just joined. The lowest rank that
 * gives 1 decides.
 */
comity_status comity_sync(comity_group *group,
                          const comity_buffer *buffers,
                          int32_t count,
                          int32_t holds);

/**
 * Make any call: this takes CUDA memory, unequal parts, and a time limit of its own. Returns when the call has ended; with CUDA memory,
 * when its work is on the stream.
 *
 * @param call Arguments, which stay yours.
 */
comity_status comity_run(comity_group *group,
                         const comity_call *call);

/**
 * Combine `src` of all ranks, element by element; every rank gets the result in `dst`.
 *
 * @param src `count` elements.
 * @param dst `count` elements; may be `src`.
 * @return COMITY_ERR_MISUSE: nothing was done, and the group is unharmed. After any other error the group has failed on every rank, and
 * the content of `dst` is undefined. This holds for all operations.
 */
comity_status comity_all_reduce(comity_group *group,
                                const void *src,
                                void *dst,
                                int64_t count,
                                comity_dtype dtype,
                                comity_reduce_op reduce);

/**
 * Combine `src` of all ranks, element by element; the root gets the result in `dst`.
 *
 * @param src `count` elements.
 * @param dst On the root `count` elements; may be `src`. Elsewhere not used, and may be NULL.
 * @param root Rank that gets the result.
 */
comity_status comity_reduce(comity_group *group,
                            const void *src,
                            void *dst,
                            int64_t count,
                            comity_dtype dtype,
                            comity_reduce_op reduce,
                            int32_t root);

/**
 * Copy the root's `buffer` to every rank.
 *
 * @param buffer `count` elements: read on the root, written on the others.
 * @param root Rank whose buffer is copied.
 */
comity_status comity_broadcast(comity_group *group,
                               void *buffer,
                               int64_t count,
                               comity_dtype dtype,
                               int32_t root);

/**
 * Send `src` to a rank, which calls comity_recv() with the same tag, type and count. Returns when you may use `src` again, maybe before
 * the other rank has it. Two ranks that both send long buffers before they receive wait for each other: use comity_sendrecv().
 *
 * @param src `count` elements.
 * @param to Rank that receives.
 * @param tag Number that both ranks choose alike, 0 to 0x7fffffff.
 */
comity_status comity_send(comity_group *group,
                          const void *src,
                          int64_t count,
                          comity_dtype dtype,
                          int32_t to,
                          uint32_t tag);

/**
 * Receive the message that a rank sends by comity_send() with the same tag.
 *
 * @param dst `count` elements.
 * @param from Rank that sends.
 * @return COMITY_ERR_MISMATCH if the message has another type or count.
 */
comity_status comity_recv(comity_group *group,
                          void *dst,
                          int64_t count,
                          comity_dtype dtype,
                          int32_t from,
                          uint32_t tag);

/**
 * Send `src` to a rank, and at the same time receive `dst` from a rank: the same or another.
 *
 * @param src `count` elements for the rank `to`. It must not overlap `dst`.
 * @param dst `recv_count` elements of the rank `from`.
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
 * Wait until every rank has called this.
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
 * @param counts Array with an entry for each rank, the same on every rank.
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
                                    comity_reduce_op reduce);

/**
 * Like comity_reduce_scatter(), where part r has counts[r] elements. It has no form in place.
 *
 * @param counts Array with an entry for each rank, the same on every rank.
 */
comity_status comity_reduce_scatter_v(comity_group *group,
                                      const void *src,
                                      void *dst,
                                      const int64_t *counts,
                                      comity_dtype dtype,
                                      comity_reduce_op reduce);

/**
 * Join every rank's `src` in the root's `dst`, by rank.
 *
 * @param src `count` elements. It must not overlap `dst`.
 * @param dst On the root `count` elements for each rank; elsewhere not used, and may be NULL.
 * @param root Rank that gets all parts.
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
 * @param src On the root `count` elements for each rank; elsewhere not used, and may be NULL. It must not overlap `dst`.
 * @param dst `count` elements.
 * @param root Rank that gives the parts.
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
 * @param dst `count` elements for each rank; may be `src`.
 */
comity_status comity_all_to_all(comity_group *group,
                                const void *src,
                                void *dst,
                                int64_t count,
                                comity_dtype dtype);

/**
 * Like comity_all_to_all(), where this rank gives send_counts[r] elements to rank r and gets recv_counts[r] from it. `src` and `dst`
 * hold the parts by rank, without gaps. It has no form in place.
 *
 * @param send_counts Array with an entry for each rank.
 * @param recv_counts Array with an entry for each rank.
 */
comity_status comity_all_to_all_v(comity_group *group,
                                  const void *src,
                                  const int64_t *send_counts,
                                  void *dst,
                                  const int64_t *recv_counts,
                                  comity_dtype dtype);

/**
 * Start a call in the background. Its place among the group's calls is that of this function.
 *
 * @param call Copied, and so are the counts that it points to. Leave its buffers alone until the request has ended, also if you free the
 * request before.
 * @param out Gets the request. Free it with comity_request_free().
 */
comity_status comity_start(comity_group *group,
                           const comity_call *call,
                           comity_request **out);

/**
 * Get the status of a request.
 *
 * @return COMITY_PENDING while it is under way; then the status of its call, each time.
 */
comity_status comity_request_test(comity_request *request);

/**
 * Wait until a request has ended: at the latest at the time limit of its call.
 *
 * @param timeout Seconds to wait at most; negative or INFINITY: until the end.
 * @return Status of the call; COMITY_PENDING if it is still under way, which harms nothing; COMITY_ERR_ORDER in a callback.
 */
comity_status comity_request_wait(comity_request *request,
                                  double timeout);

/**
 * Wait until one of several requests has ended.
 *
 * @param requests Array of `count` handles. NULL is allowed in it.
 * @param timeout Seconds to wait at most; negative or INFINITY: until one ends.
 * @param index Gets the place in `requests` of one that has ended; -1 if none has, or all are NULL.
 * @return Status of that request's call; COMITY_PENDING if none has ended; COMITY_OK if all are NULL.
 */
comity_status comity_request_wait_any(comity_request *const *requests,
                                      int32_t count,
                                      double timeout,
                                      int32_t *index);

/**
 * Call a function when a request has ended: once, on a thread of Comity's, or at once on this thread if it has ended already.
 *
 * @param done Function of yours: see comity_done_fn.
 * @param context Passed to `done`. It must stay valid until then, also if you free the request before.
 */
comity_status comity_request_on_done(comity_request *request,
                                     comity_done_fn done,
                                     void *context);

/**
 * Free a request. NULL is allowed. A call under way goes on, since other ranks count on it: leave its buffers alone until it has ended.
 */
comity_status comity_request_free(comity_request *request);

/**
 * Make a configuration for rank `rank` of `size`, with every setting at its default.
 *
 * More than one rank needs a key (comity_config_set_key(), or COMITY_KEY_FILE) and a place to meet: one of
 * comity_config_set_rendezvous(), comity_config_set_store(), comity_config_set_hostfile() and comity_config_set_exchange().
 *
 * @param out Gets the configuration. Free it with comity_config_free().
 */
comity_status comity_config_new(int32_t rank,
                                int32_t size,
                                comity_config **out);

/**
 * Make a configuration from the variables of the environment, as comity_init() reads them.
 *
 * @param out Gets the configuration. Free it with comity_config_free().
 */
comity_status comity_config_from_env(comity_config **out);

/**
 * Change a setting, by the name of its variable: comity_config_set(config, "COMITY_LINKS", "shm,tcp").
 *
 * `comity info --settings` lists all. Some count in the environment only, such as the paths of libraries: they are refused. After an
 * error the configuration is as before.
 *
 * @param name Name of the variable.
 * @param value Value, as the variable takes it.
 * @return COMITY_ERR_CONFIG for an unknown name or a bad value. comity_last_error() names both.
 */
comity_status comity_config_set(comity_config *config,
                                const char *name,
                                const char *value);

/**
 * Meet at a store that rank 0 runs at this address, which every rank can reach.
 *
 * @param at "host:port".
 */
comity_status comity_config_set_rendezvous(comity_config *config,
                                           const char *at);

/**
 * Meet at a store that runs already, such as that of `comity launch`.
 *
 * @param at "host:port", as COMITY_STORE takes it.
 */
comity_status comity_config_set_store(comity_config *config,
                                      const char *at);

/**
 * Meet at rank 0's first address in a hostfile of MLX's form, and listen on this rank's own addresses.
 *
 * @param path Name of the file, which is read at once.
 */
comity_status comity_config_set_hostfile(comity_config *config,
                                         const char *path);

/**
 * Meet at a store that rank 0 runs at a free port. Rank 0 tells the others its address through a function of yours, over a channel that
 * your program has. Without a key rank 0 makes one and sends it too: whoever can read the channel can join.
 *
 * @param exchange Called on any thread during comity_config_connect(), and never after that has returned.
 * @param context Passed to `exchange`. It must stay valid while comity_config_connect() runs.
 */
comity_status comity_config_set_exchange(comity_config *config,
                                         comity_exchange_fn exchange,
                                         void *context);

/**
 * Set the secret that every rank of the job holds. COMITY_KEY_FILE takes it from a file.
 *
 * @param key 32 bytes, which are copied.
 * @param length Number of bytes: must be 32.
 */
comity_status comity_config_set_key(comity_config *config,
                                    const uint8_t *key,
                                    size_t length);

/**
 * Set the time limit of a call; the default is 300 s.
 *
 * @param timeout Seconds, more than 0; INFINITY: as long as all ranks live.
 */
comity_status comity_config_set_timeout(comity_config *config,
                                        double timeout);

/**
 * Set the time limit until all ranks have met; the default is 60 s.
 *
 * @param timeout Seconds, more than 0.
 */
comity_status comity_config_set_join_timeout(comity_config *config,
                                             double timeout);

/**
 * Set the silence after which the others give a rank up; the default is 5 s.
 *
 * @param limit Seconds, 0.1 to 86400; INFINITY: never.
 */
comity_status comity_config_set_detection(comity_config *config,
                                          double limit);

/**
 * Meet the other ranks and make the group of all. Every rank of the job calls this. It returns when all have come, or fails at the join
 * limit and names those that are missing.
 *
 * @param config Stays as it is, and yours.
 * @param out Gets the group. Free it with comity_group_free().
 */
comity_status comity_config_connect(comity_config *config,
                                    comity_group **out);

/**
 * Free a configuration. Groups that it made stay. NULL is allowed.
 */
comity_status comity_config_free(comity_config *config);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* COMITY_H */

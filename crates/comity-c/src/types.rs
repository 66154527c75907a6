//! Numbers and structs that both sides of the interface know.
//!
//! Enums arrive from C as a `u32`, since C may pass any number; [`known`] turns it into Rust's.

use crate::errors::CFault;
use comity::{DType, Op, ReduceOp, Wire};
use std::ffi::{c_char, c_void};

/// Status of a call. COMITY_OK and COMITY_PENDING are no errors.
///
/// After an error comity_last_error() has a sentence about it, and comity_error_take() an object with all details.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub enum comity_status {
    /** Success. */
    #[default]
    COMITY_OK = 0,
    /** A request is still under way. */
    COMITY_PENDING = 1,
    /** The caller broke a rule that it could have checked. Nothing was done, and the group is unharmed. */
    COMITY_ERR_MISUSE = 2,
    /** A setting is unknown or has a bad value, or the configuration is incomplete or contradicts itself. */
    COMITY_ERR_CONFIG = 3,
    /** A library, device or permission is missing. */
    COMITY_ERR_UNAVAILABLE = 4,
    /** A callback waits for work that can only run after it. */
    COMITY_ERR_ORDER = 5,
    /** Not all ranks met within the join limit. */
    COMITY_ERR_JOIN = 6,
    /** Two ranks made different calls, or the same call with other arguments. */
    COMITY_ERR_MISMATCH = 7,
    /** The call did not end within its time limit. */
    COMITY_ERR_TIMEOUT = 8,
    /** A member's process or link is gone. */
    COMITY_ERR_PEER_LOST = 9,
    /** A rank aborted the group. */
    COMITY_ERR_ABORTED = 10,
    /** A library outside of Comity, such as MPI or NCCL, failed. */
    COMITY_ERR_LIBRARY = 11,
    /** The system refused something that this process needs, such as memory or a port. */
    COMITY_ERR_OS = 12,
    /** This process closed the group. */
    COMITY_ERR_CLOSED = 13,
    /** The handle belongs to the parent of this forked process; or the parent has this process's place in the job. */
    COMITY_ERR_FORKED = 14,
    /** A mistake in Comity. Please report it with its sentence. */
    COMITY_ERR_INTERNAL = 15,
}

/// Type of one element of a buffer. Buffers need no alignment.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(dead_code, reason = "for C")]
pub enum comity_dtype {
    /** One byte: 0 or 1. */
    COMITY_BOOL = 0,
    COMITY_U8 = 1,
    COMITY_U16 = 2,
    COMITY_U32 = 3,
    COMITY_U64 = 4,
    COMITY_I8 = 5,
    COMITY_I16 = 6,
    COMITY_I32 = 7,
    COMITY_I64 = 8,
    /** IEEE 754 half precision */
    COMITY_F16 = 9,
    /** Upper half of a float */
    COMITY_BF16 = 10,
    /** float */
    COMITY_F32 = 11,
    /** double */
    COMITY_F64 = 12,
    /** Two floats: the real part, then the imaginary part */
    COMITY_C64 = 13,
}

/// Reduction: combines the elements of different ranks. Every rank gets the same bits, and integers wrap.
///
/// COMITY_AND, COMITY_OR and COMITY_XOR take integers and COMITY_BOOL. COMITY_AVG takes all types but COMITY_BOOL.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(dead_code, reason = "for C")]
pub enum comity_reduce_op {
    COMITY_SUM = 0,
    COMITY_PRODUCT = 1,
    COMITY_MIN = 2,
    COMITY_MAX = 3,
    /** Sum, divided by the number of ranks */
    COMITY_AVG = 4,
    COMITY_AND = 5,
    COMITY_OR = 6,
    COMITY_XOR = 7,
}

/// Operation of a comity_call. Each has a function of its name, which explains it: comity_all_reduce().
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(dead_code, reason = "for C")]
pub enum comity_op {
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
}

/// Place of a call's buffers.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(dead_code, reason = "for C")]
pub enum comity_place {
    /** Host memory */
    COMITY_PLACE_HOST = 0,
    /** Memory of the group's CUDA device. The work is ordered on a stream. */
    COMITY_PLACE_CUDA = 1,
}

/// Form in which the elements of an all_reduce, reduce_scatter or all_gather cross the links. It is for sums and averages of COMITY_F32,
/// COMITY_F16 and COMITY_BF16 in host memory, on slow networks. Each contribution is rounded once and the sum once more; all ranks get the same
/// bits. All ranks name the same.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(dead_code, reason = "for C")]
pub enum comity_wire {
    /** As they are */
    COMITY_WIRE_PLAIN = 0,
    /** 2 bytes, with the range of a float */
    COMITY_WIRE_BF16 = 1,
    /** 2 bytes, up to 65,504 */
    COMITY_WIRE_F16 = 2,
    /** A byte, and a scale for each block of 256 */
    COMITY_WIRE_INT8_BLOCK = 3,
}

/// Arguments of a call, for comity_run() and comity_start(). Set the struct to 0, then `size`, then the fields that your call needs.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct comity_call {
    /** sizeof(comity_call) */
    pub size: usize,
    /** Operation */
    pub op: OpNumber,
    /** Type of the elements */
    pub dtype: DTypeNumber,
    /** Reduction of all_reduce, reduce and reduce_scatter */
    pub reduce: ReduceNumber,
    /** Root of reduce, broadcast, gather and scatter; destination of send and sendrecv; source of recv */
    pub rank: i32,
    /** Source of sendrecv */
    pub source: i32,
    /** Tag of send, recv and sendrecv, 0 to 0x7fffffff */
    pub tag: u32,
    /** Buffer to read. Each operation's function says where it may be `dst`. */
    pub src: *const c_void,
    /** Buffer to write */
    pub dst: *mut c_void,
    /** Number of elements, counted as the operation's function does */
    pub count: i64,
    /** Number of elements that sendrecv receives */
    pub recv_count: i64,
    /** Number of elements of each rank's part, an entry for each rank; NULL: all parts have `count`. In all_to_all the parts to send */
    pub counts: *const i64,
    /** Number of elements that all_to_all receives from each rank, where `counts` is not NULL */
    pub recv_counts: *const i64,
    /** Place of `src` and `dst` */
    pub place: PlaceNumber,
    /** Must be 0 */
    pub reserved: u32,
    /** cudaStream_t, for COMITY_PLACE_CUDA */
    pub stream: *mut c_void,
    /** Time limit in seconds; 0: the group's limit, INFINITY: none. In the background it begins with the call's turn. */
    pub timeout: f64,
    /** Form of the elements on the links */
    pub wire: WireNumber,
}

/// Details of an error. The pointers are valid until comity_error_free() of that error.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct comity_error_info {
    /** sizeof(comity_error_info); set it before the call */
    pub size: usize,
    /** Status of the function that failed */
    pub status: comity_status,
    /** 1: the group had failed before, and this is that failure */
    pub earlier: i32,
    /** 1: the group cannot be used any more, or was never made */
    pub fatal: i32,
    /** First rank at fault; -1: none, or not known */
    pub rank: i32,
    /** Process id of that rank; 0: not known */
    pub pid: i64,
    /** Host of that rank; NULL: not known */
    pub host: *const c_char,
    /** Sentence that says what happened, to whom, and what to do next; never NULL */
    pub text: *const c_char,
    /** Call of this rank, such as "all_reduce #3 f32[8] sum"; NULL outside of a call */
    pub call: *const c_char,
    /** Call of the other rank; NULL but for COMITY_ERR_MISMATCH */
    pub peer_call: *const c_char,
    /** First difference between the two calls, such as "dtype" or "count"; NULL but for COMITY_ERR_MISMATCH */
    pub differs: *const c_char,
    /** All ranks at fault */
    pub ranks: *const i32,
    /** Number of `ranks` */
    pub rank_count: usize,
    /** Limit in seconds that passed; 0 but for COMITY_ERR_TIMEOUT */
    pub timeout: f64,
}

/// Member of a group. The texts are valid until comity_group_free() of that group.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct comity_member {
    /** sizeof(comity_member); set it before the call */
    pub size: usize,
    /** Rank in the group */
    pub rank: i32,
    /** Must be 0 */
    pub reserved: i32,
    /** Process id; 0: not known */
    pub pid: i64,
    /** Name of the host; NULL: not known */
    pub host: *const c_char,
    /** Kind of the link to it, such as "shm" or "tcp"; NULL for this rank */
    pub link: *const c_char,
}

/// Counters of a group on this rank.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct comity_stats {
    /** sizeof(comity_stats); set it before the call */
    pub size: usize,
    /** Number of calls that succeeded */
    pub calls: u64,
    /** Number of calls that failed */
    pub errors: u64,
    /** Bytes of payload sent to other ranks */
    pub bytes_sent: u64,
    /** Number of times that a member was silent for a fifth of the detection limit */
    pub suspicions: u64,
    /** Seconds asleep, waiting for other ranks */
    pub parked: f64,
    /** Longest silence of a member, in seconds */
    pub longest_silence: f64,
}

/// Conditions for comity_group_reform(). Set the struct to 0, then `size`, then the fields that you need.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct comity_reform_options {
    /** sizeof(comity_reform_options) */
    pub size: usize,
    /** Form no group of fewer ranks; 0: of one or more */
    pub fewest: i32,
    /** 1: go on wherever the job's store can be asked, with however few ranks. 0: where more than half of the former ranks are */
    pub store_decides: i32,
    /** Seconds to wait for the other ranks; 0: as long as the group's limit of a call */
    pub timeout: f64,
}

/// Rank of a former group that is not in the one that follows. The texts are valid until comity_group_free() of that one.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct comity_departure {
    /** sizeof(comity_departure); set it before the call */
    pub size: usize,
    /** Its rank in the former group */
    pub rank: i32,
    /** Must be 0 */
    pub reserved: i32,
    /** Process id; 0: not known */
    pub pid: i64,
    /** Name of the host; NULL: not known */
    pub host: *const c_char,
    /** Reason, as the rest of the sentence "rank 3 ..."; never NULL */
    pub why: *const c_char,
}

/// Buffer of comity_sync().
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct comity_buffer {
    /** First element */
    pub data: *mut c_void,
    /** Number of elements */
    pub count: i64,
    /** Type of the elements */
    pub dtype: DTypeNumber,
    /** Must be 0 */
    pub reserved: u32,
}

/// Numbers that C passes for enums; in the header they have the enums' names.
pub type OpNumber = u32;
/// Like [`OpNumber`].
pub type DTypeNumber = u32;
/// Like [`OpNumber`].
pub type ReduceNumber = u32;
/// Like [`OpNumber`].
pub type PlaceNumber = u32;
/// Like [`OpNumber`].
pub type WireNumber = u32;
/// Like [`OpNumber`].
pub type StatusNumber = u32;

/// Element `n` of `all`, or a sentence on the numbers that there are.
#[inline]
fn known<T: Copy>(what: &str, all: &[T], first: usize, n: u32) -> Result<T, CFault> {
    match (n as usize).checked_sub(first).and_then(|n| all.get(n)) {
        Some(t) => Ok(*t),
        None => Err(unknown(what, first, all.len(), n)),
    }
}

#[cold]
#[inline(never)]
fn unknown(what: &str, first: usize, count: usize, n: u32) -> CFault {
    CFault::misuse(format!("{n} is no {what}; they are {first} to {}", first + count - 1))
}

#[inline]
pub(crate) fn dtype(n: DTypeNumber) -> Result<DType, CFault> {
    known("comity_dtype", &DType::ALL, 0, n)
}

#[inline]
pub(crate) fn reduce_op(n: ReduceNumber) -> Result<ReduceOp, CFault> {
    known("comity_reduce_op", &ReduceOp::ALL, 0, n)
}

pub(crate) fn op(n: OpNumber) -> Result<Op, CFault> {
    // A split makes a group and so is a function of its own.
    known("comity_op", &Op::ALL[..Op::Split as usize - 1], 1, n)
}

pub(crate) fn wire(n: WireNumber) -> Result<Option<Wire>, CFault> {
    let [a, b, c] = Wire::ALL.map(Some);
    known("comity_wire", &[None, a, b, c], 0, n)
}

pub(crate) fn on_device(n: PlaceNumber) -> Result<bool, CFault> {
    known("comity_place", &[false, true], 0, n)
}

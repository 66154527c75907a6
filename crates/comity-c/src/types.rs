//! Numbers and structs that both sides of the interface know.
//!
//! Enums arrive from C as a `u32`, since C may pass any number; [`known`] turns it into Rust's.

use crate::errors::CFault;
use comity::{BackendKind, DType, Op, ReduceOp, Secure};
use std::ffi::{c_char, c_void};

/// Status code of a call. 0 and 1 are no errors.
///
/// After an error comity_last_error() has a sentence for it, and comity_error_take() an object with all that is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum comity_status {
    /** Success. */
    COMITY_OK = 0,
    /** A request is still under way. */
    COMITY_PENDING = 1,
    /** The caller broke a rule that it could have checked. No byte moved, and the group is unharmed. */
    COMITY_ERR_MISUSE = 2,
    /** The configuration is incomplete or contradicts itself. */
    COMITY_ERR_CONFIG = 3,
    /** A library, device or permission is missing. */
    COMITY_ERR_UNAVAILABLE = 4,
    /** A callback waits for work that can only run after it. */
    COMITY_ERR_ORDER = 5,
    /** Not all ranks came together in time. */
    COMITY_ERR_JOIN = 6,
    /** Two ranks made different calls, or the same call with other arguments. */
    COMITY_ERR_MISMATCH = 7,
    /** The call did not end in time. */
    COMITY_ERR_TIMEOUT = 8,
    /** A member's process or link is gone. */
    COMITY_ERR_PEER_LOST = 9,
    /** A rank gave the group up. */
    COMITY_ERR_ABORTED = 10,
    /** A library outside of Comity said no. */
    COMITY_ERR_LIBRARY = 11,
    /** The system refused something that this process needs. */
    COMITY_ERR_OS = 12,
    /** The group was closed by this process. */
    COMITY_ERR_CLOSED = 13,
    /** The handle belongs to the process that this one was forked from, or that one is in a job, in which this one has no place. */
    COMITY_ERR_FORKED = 14,
    /** A mistake in Comity. Please report it with its text. */
    COMITY_ERR_INTERNAL = 15,
}

/// The type of one element of a buffer. Buffers need no alignment.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(dead_code, reason = "for C")]
pub enum comity_dtype {
    /** One byte, 0 or 1 and nothing else. */
    COMITY_BOOL = 0,
    COMITY_U8 = 1,
    COMITY_U16 = 2,
    COMITY_U32 = 3,
    COMITY_U64 = 4,
    COMITY_I8 = 5,
    COMITY_I16 = 6,
    COMITY_I32 = 7,
    COMITY_I64 = 8,
    /** IEEE 754 half precision. */
    COMITY_F16 = 9,
    /** The upper half of a float. */
    COMITY_BF16 = 10,
    /** float */
    COMITY_F32 = 11,
    /** double */
    COMITY_F64 = 12,
    /** Two floats: the real part, then the imaginary part. */
    COMITY_C64 = 13,
}

/// Way to combine elements of different ranks. Every rank gets the same bits.
///
/// COMITY_AVG is not defined on COMITY_BOOL; the last three are defined on integers and COMITY_BOOL only. Integers wrap.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(dead_code, reason = "for C")]
pub enum comity_reduce_op {
    COMITY_SUM = 0,
    COMITY_PRODUCT = 1,
    COMITY_MIN = 2,
    COMITY_MAX = 3,
    /** The sum, divided by the number of ranks. */
    COMITY_AVG = 4,
    COMITY_AND = 5,
    COMITY_OR = 6,
    COMITY_XOR = 7,
}

/// The operations, for comity_call.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(dead_code, reason = "for C")]
pub enum comity_op {
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
}

/// Memory of a call's buffers.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(dead_code, reason = "for C")]
pub enum comity_place {
    /** Host memory. */
    COMITY_HOST = 0,
    /** Memory of the group's CUDA device; the work is ordered on a stream. */
    COMITY_CUDA = 1,
}

/// Backend for the calls of a group.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(dead_code, reason = "for C")]
pub enum comity_backend {
    /** Comity's own plans over its own links. */
    COMITY_BACKEND_ANY = 0,
    /** An MPI library, in a job that its launcher started. */
    COMITY_BACKEND_MPI = 1,
    /** As any, and NCCL for CUDA memory. */
    COMITY_BACKEND_NCCL = 2,
    /** As any, with RDMA before all other links. */
    COMITY_BACKEND_JACCL = 3,
}

/// Use of the job's key.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(dead_code, reason = "for C")]
pub enum comity_secure {
    /** The right to connect. */
    COMITY_SECURE_HANDSHAKE = 0,
    /** That, and everything that goes over TCP. */
    COMITY_SECURE_DATA = 1,
}

/// A call of a group, for comity_run() and comity_start(). Set `size` to sizeof(comity_call) and all that is not used to 0.
///
/// A later version may add fields at the end; 0 in them will mean what this version does.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct comity_call {
    /** sizeof(comity_call), which says which fields there are. */
    pub size: usize,
    /** What to do. */
    pub op: OpNumber,
    /** The type of the elements. */
    pub dtype: DTypeNumber,
    /** For operations that reduce. */
    pub reduce: ReduceNumber,
    /** The root; of send and sendrecv, the rank to send to; of recv, the rank to receive from. */
    pub rank: i32,
    /** Of sendrecv, the rank to receive from. */
    pub source: i32,
    /** Of send, recv and sendrecv: 0 to 0x7fffffff. */
    pub tag: u32,
    /** What is read. In place where it is also written: see each operation. */
    pub src: *const c_void,
    /** What is written. */
    pub dst: *mut c_void,
    /** Elements, counted as by the function of the operation's name. */
    pub count: i64,
    /** Of sendrecv: elements to receive. */
    pub recv_count: i64,
    /** Elements of each rank's part, one number for each rank; NULL where all have `count`. */
    pub counts: *const i64,
    /** Of all_to_all with unequal parts: elements from each rank. */
    pub recv_counts: *const i64,
    /** Where src and dst are. */
    pub place: PlaceNumber,
    /** Must be 0. */
    pub reserved: u32,
    /** For COMITY_CUDA: the cudaStream_t. */
    pub stream: *mut c_void,
    /** Seconds that this call may take; 0: the group's limit, INFINITY: none. A call in the background begins when its turn comes. */
    pub timeout: f64,
}

/// Description of an error. The pointers are valid until comity_error_free() of that error.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct comity_error_info {
    /** sizeof(comity_error_info); set it before the call. */
    pub size: usize,
    pub status: comity_status,
    /** 1: the group had failed before, and this is that failure. */
    pub earlier: i32,
    /** 1: the group cannot be used any more, or was never made. */
    pub fatal: i32,
    /** The first rank at fault; -1 where none is, or none is known. */
    pub rank: i32,
    /** Its process id; 0 where that is not known. */
    pub pid: i64,
    /** The name of its host; NULL where that is not known. */
    pub host: *const c_char,
    /** One sentence that says what happened, to whom, and what to do next. Never NULL. */
    pub text: *const c_char,
    /** The call of this rank: "all_reduce #3 f32[8] sum"; NULL outside of a call. */
    pub call: *const c_char,
    /** Of a mismatch: the other rank's call. Else NULL. */
    pub peer_call: *const c_char,
    /** Of a mismatch: what differs first, "dtype" or "count". Else NULL. */
    pub differs: *const c_char,
    /** All ranks at fault. */
    pub ranks: *const i32,
    /** How many. */
    pub rank_count: usize,
    /** Of a timeout: the limit in seconds. Else 0. */
    pub after: f64,
}

/// A member of a group. `host` is valid until comity_group_free() of that group.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct comity_member {
    /** sizeof(comity_member); set it before the call. */
    pub size: usize,
    /** Its rank in the group. */
    pub rank: i32,
    /** Must be 0. */
    pub reserved: i32,
    /** Its process id; 0 where that is not known. */
    pub pid: i64,
    /** The name of its host; NULL where that is not known. */
    pub host: *const c_char,
    /** The kind of link to it, "shm" or "tcp"; NULL for this rank. */
    pub link: *const c_char,
}

/// Counters of a group on this rank.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct comity_stats {
    /** sizeof(comity_stats); set it before the call. */
    pub size: usize,
    /** Calls that succeeded. */
    pub calls: u64,
    /** Calls that failed. */
    pub errors: u64,
    /** Payload bytes sent to other ranks. */
    pub bytes_sent: u64,
    /** Number of times that a member was silent for a fifth of the detection limit. */
    pub suspicions: u64,
    /** Seconds asleep, waiting for other ranks. */
    pub parked: f64,
    /** The longest time in seconds for which nothing was heard from one member. */
    pub longest_silence: f64,
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
pub type BackendNumber = u32;
/// Like [`OpNumber`].
pub type SecureNumber = u32;
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

pub(crate) fn on_device(n: PlaceNumber) -> Result<bool, CFault> {
    known("comity_place", &[false, true], 0, n)
}

pub(crate) fn backend(n: BackendNumber) -> Result<BackendKind, CFault> {
    known("comity_backend", &BackendKind::ALL, 0, n)
}

pub(crate) fn secure(n: SecureNumber) -> Result<Secure, CFault> {
    known("comity_secure", &[Secure::Handshake, Secure::Data], 0, n)
}

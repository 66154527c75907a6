//! The operations as functions, on host memory.

use crate::{
    errors::{CFault, answer},
    group::GroupHandle,
    handles::{UsedGroup, comity_group},
    job, raw,
    types::{self, DTypeNumber, ReduceNumber, comity_call, comity_op, comity_status},
};
use comity::Place;
use std::{ffi::c_void, ptr};

impl comity_call {
    /// Makes a call on host memory.
    pub(crate) fn of(op: comity_op) -> Self {
        Self { size: size_of::<Self>(), op: op as u32, ..raw::zeroed() }
    }
}

/// Make a call with the limits that hold for it.
pub(crate) fn run(group: &GroupHandle, call: &comity_call) -> Result<(), CFault> {
    let open = group.open()?;
    let job = job::checked(open, call)?;
    if call.timeout == 0.0 && group.usual_limit() {
        return Ok(job.run(open)?);
    }
    Ok(job.run(&group.limited(call.timeout)?)?)
}

/// The same for a function of the interface.
fn run_on(group: *mut comity_group, call: &comity_call) -> comity_status {
    answer(|| run(&*UsedGroup::find(group)?, call))
}

/// The call with these fields, made by [`run_on`].
macro_rules! run_op {
    ($group:ident, $op:ident, $($fields:tt)*) => {
        run_on($group, &comity_call { $($fields)*, ..comity_call::of(comity_op::$op) })
    };
}

/// Make any call: this takes CUDA memory, unequal parts, and a time limit of its own. Returns when the call has ended; with CUDA memory,
/// when its work is on the stream.
///
/// @param call Arguments, which stay yours.
#[unsafe(no_mangle)]
pub extern "C" fn comity_run(group: *mut comity_group, call: *const comity_call) -> comity_status {
    answer(|| {
        let group = UsedGroup::find(group)?;
        run(&group, &raw::take_struct("comity_call", call)?)
    })
}

/// Combine `src` of all ranks, element by element; every rank gets the result in `dst`.
///
/// @param src `count` elements.
/// @param dst `count` elements; may be `src`.
/// @return COMITY_ERR_MISUSE: nothing was done, and the group is unharmed. After any other error the group has failed on every rank, and
/// the content of `dst` is undefined. This holds for all operations.
#[unsafe(no_mangle)]
pub extern "C" fn comity_all_reduce(
    group: *mut comity_group,
    src: *const c_void,
    dst: *mut c_void,
    count: i64,
    dtype: DTypeNumber,
    reduce: ReduceNumber,
) -> comity_status {
    // The shortest way, since small calls are made often. The others go by `job::checked`.
    answer(|| {
        let group = UsedGroup::find(group)?;
        let open = group.open()?;
        let dtype = types::dtype(dtype)?;
        let reduce = types::reduce_op(reduce)?;
        let n = job::count("the count", count)?;
        if ptr::eq(src, dst) && group.usual_limit() {
            let dst = raw::memory("dst", dst.expose_provenance(), n, dtype, Place::Host)?;
            return Ok(open.all_reduce(dst.view_mut(), reduce)?);
        }
        let dtype = dtype as u32;
        let reduce = reduce as u32;
        let all_reduce = comity_call::of(comity_op::COMITY_OP_ALL_REDUCE);
        run(&group, &comity_call { src, dst, count, dtype, reduce, ..all_reduce })
    })
}

/// Combine `src` of all ranks, element by element; the root gets the result in `dst`.
///
/// @param src `count` elements.
/// @param dst On the root `count` elements; may be `src`. Elsewhere not used, and may be NULL.
/// @param root Rank that gets the result.
#[unsafe(no_mangle)]
pub extern "C" fn comity_reduce(
    group: *mut comity_group,
    src: *const c_void,
    dst: *mut c_void,
    count: i64,
    dtype: DTypeNumber,
    reduce: ReduceNumber,
    root: i32,
) -> comity_status {
    run_op!(group, COMITY_OP_REDUCE, src, dst, count, dtype, reduce, rank: root)
}

/// Copy the root's `buffer` to every rank.
///
/// @param buffer `count` elements: read on the root, written on the others.
/// @param root Rank whose buffer is copied.
#[unsafe(no_mangle)]
pub extern "C" fn comity_broadcast(
    group: *mut comity_group,
    buffer: *mut c_void,
    count: i64,
    dtype: DTypeNumber,
    root: i32,
) -> comity_status {
    run_op!(group, COMITY_OP_BROADCAST, dst: buffer, count, dtype, rank: root)
}

/// Send `src` to a rank, which calls comity_recv() with the same tag, type and count. Returns when you may use `src` again, maybe before
/// the other rank has it. Two ranks that both send long buffers before they receive wait for each other: use comity_sendrecv().
///
/// @param src `count` elements.
/// @param to Rank that receives.
/// @param tag Number that both ranks choose alike, 0 to 0x7fffffff.
#[unsafe(no_mangle)]
pub extern "C" fn comity_send(
    group: *mut comity_group,
    src: *const c_void,
    count: i64,
    dtype: DTypeNumber,
    to: i32,
    tag: u32,
) -> comity_status {
    run_op!(group, COMITY_OP_SEND, src, count, dtype, rank: to, tag)
}

/// Receive the message that a rank sends by comity_send() with the same tag.
///
/// @param dst `count` elements.
/// @param from Rank that sends.
/// @return COMITY_ERR_MISMATCH if the message has another type or count.
#[unsafe(no_mangle)]
pub extern "C" fn comity_recv(
    group: *mut comity_group,
    dst: *mut c_void,
    count: i64,
    dtype: DTypeNumber,
    from: i32,
    tag: u32,
) -> comity_status {
    run_op!(group, COMITY_OP_RECV, dst, count, dtype, rank: from, tag)
}

/// Send `src` to a rank, and at the same time receive `dst` from a rank: the same or another.
///
/// @param src `count` elements for the rank `to`. It must not overlap `dst`.
/// @param dst `recv_count` elements of the rank `from`.
#[unsafe(no_mangle)]
pub extern "C" fn comity_sendrecv(
    group: *mut comity_group,
    src: *const c_void,
    count: i64,
    to: i32,
    dst: *mut c_void,
    recv_count: i64,
    from: i32,
    dtype: DTypeNumber,
    tag: u32,
) -> comity_status {
    run_op!(group, COMITY_OP_SENDRECV, src, count, dst, recv_count, rank: to, source: from, dtype, tag)
}

/// Wait until every rank has called this.
#[unsafe(no_mangle)]
pub extern "C" fn comity_barrier(group: *mut comity_group) -> comity_status {
    answer(|| {
        let group = UsedGroup::find(group)?;
        if group.usual_limit() {
            return Ok(group.open()?.barrier()?);
        }
        Ok(group.limited(0.0)?.barrier()?)
    })
}

/// Join every rank's `src` in every rank's `dst`, by rank.
///
/// @param src `count` elements. In place it is this rank's part of `dst`, at dst + rank * count elements.
/// @param dst `count` elements for each rank.
#[unsafe(no_mangle)]
pub extern "C" fn comity_all_gather(
    group: *mut comity_group,
    src: *const c_void,
    dst: *mut c_void,
    count: i64,
    dtype: DTypeNumber,
) -> comity_status {
    run_op!(group, COMITY_OP_ALL_GATHER, src, dst, count, dtype)
}

/// Like comity_all_gather(), where rank r gives counts[r] elements. It has no form in place.
///
/// @param counts Array with an entry for each rank, the same on every rank.
#[unsafe(no_mangle)]
pub extern "C" fn comity_all_gather_v(
    group: *mut comity_group,
    src: *const c_void,
    dst: *mut c_void,
    counts: *const i64,
    dtype: DTypeNumber,
) -> comity_status {
    run_op!(group, COMITY_OP_ALL_GATHER, src, dst, dtype, counts: some(counts))
}

/// Combine `src` of all ranks, element by element; rank r gets part r of the result in `dst`.
///
/// @param src `count` elements for each rank.
/// @param dst `count` elements. In place it is this rank's part of `src`, at src + rank * count elements; the rest of `src` stays.
#[unsafe(no_mangle)]
pub extern "C" fn comity_reduce_scatter(
    group: *mut comity_group,
    src: *const c_void,
    dst: *mut c_void,
    count: i64,
    dtype: DTypeNumber,
    reduce: ReduceNumber,
) -> comity_status {
    run_op!(group, COMITY_OP_REDUCE_SCATTER, src, dst, count, dtype, reduce)
}

/// Like comity_reduce_scatter(), where part r has counts[r] elements. It has no form in place.
///
/// @param counts Array with an entry for each rank, the same on every rank.
#[unsafe(no_mangle)]
pub extern "C" fn comity_reduce_scatter_v(
    group: *mut comity_group,
    src: *const c_void,
    dst: *mut c_void,
    counts: *const i64,
    dtype: DTypeNumber,
    reduce: ReduceNumber,
) -> comity_status {
    run_op!(group, COMITY_OP_REDUCE_SCATTER, src, dst, dtype, reduce, counts: some(counts))
}

/// Join every rank's `src` in the root's `dst`, by rank.
///
/// @param src `count` elements. It must not overlap `dst`.
/// @param dst On the root `count` elements for each rank; elsewhere not used, and may be NULL.
/// @param root Rank that gets all parts.
#[unsafe(no_mangle)]
pub extern "C" fn comity_gather(
    group: *mut comity_group,
    src: *const c_void,
    dst: *mut c_void,
    count: i64,
    dtype: DTypeNumber,
    root: i32,
) -> comity_status {
    run_op!(group, COMITY_OP_GATHER, src, dst, count, dtype, rank: root)
}

/// Give part r of the root's `src` to rank r, in `dst`.
///
/// @param src On the root `count` elements for each rank; elsewhere not used, and may be NULL. It must not overlap `dst`.
/// @param dst `count` elements.
/// @param root Rank that gives the parts.
#[unsafe(no_mangle)]
pub extern "C" fn comity_scatter(
    group: *mut comity_group,
    src: *const c_void,
    dst: *mut c_void,
    count: i64,
    dtype: DTypeNumber,
    root: i32,
) -> comity_status {
    run_op!(group, COMITY_OP_SCATTER, src, dst, count, dtype, rank: root)
}

/// Give part r of `src` to rank r; `dst` gets one part from each rank, by rank.
///
/// @param src `count` elements for each rank.
/// @param dst `count` elements for each rank; may be `src`.
#[unsafe(no_mangle)]
pub extern "C" fn comity_all_to_all(
    group: *mut comity_group,
    src: *const c_void,
    dst: *mut c_void,
    count: i64,
    dtype: DTypeNumber,
) -> comity_status {
    run_op!(group, COMITY_OP_ALL_TO_ALL, src, dst, count, dtype)
}

/// Like comity_all_to_all(), where this rank gives send_counts[r] elements to rank r and gets recv_counts[r] from it. `src` and `dst`
/// hold the parts by rank, without gaps. It has no form in place.
///
/// @param send_counts Array with an entry for each rank.
/// @param recv_counts Array with an entry for each rank.
#[unsafe(no_mangle)]
pub extern "C" fn comity_all_to_all_v(
    group: *mut comity_group,
    src: *const c_void,
    send_counts: *const i64,
    dst: *mut c_void,
    recv_counts: *const i64,
    dtype: DTypeNumber,
) -> comity_status {
    run_op!(group, COMITY_OP_ALL_TO_ALL, src, dst, dtype, counts: some(send_counts), recv_counts: some(recv_counts))
}

/// Counts that must be there: in a `comity_call` NULL would mean equal parts. No list can be at this address, which is refused by name.
fn some(counts: *const i64) -> *const i64 {
    if counts.is_null() { ptr::without_provenance(1) } else { counts }
}

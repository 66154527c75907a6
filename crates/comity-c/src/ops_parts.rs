//! The operations in which each rank has a part.

use crate::{
    handles::comity_group,
    ops::run_on,
    types::{DTypeNumber, ReduceNumber, comity_call, comity_op, comity_status},
};
use std::ffi::c_void;

/// Join every rank's `src` in every rank's `dst`, by rank.
///
/// @param src `count` elements. In place it is this rank's part of `dst`, at dst + rank * count elements.
/// @param dst `count` elements for each rank.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_all_gather(
    group: *mut comity_group,
    src: *const c_void,
    dst: *mut c_void,
    count: i64,
    dtype: DTypeNumber,
) -> comity_status {
    run_on(group, &comity_call { src, dst, count, dtype, ..comity_call::of(comity_op::COMITY_OP_ALL_GATHER) })
}

/// Like comity_all_gather(), where rank r gives counts[r] elements. It has no form in place.
///
/// @param counts Array with an entry for each rank, the same on every rank.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_all_gather_v(
    group: *mut comity_group,
    src: *const c_void,
    dst: *mut c_void,
    counts: *const i64,
    dtype: DTypeNumber,
) -> comity_status {
    let call = comity_call { src, dst, dtype, ..comity_call::of(comity_op::COMITY_OP_ALL_GATHER) };
    run_on(group, &comity_call { counts: some(counts), ..call })
}

/// Combine `src` of all ranks, element by element; rank r gets part r of the result in `dst`.
///
/// @param src `count` elements for each rank.
/// @param dst `count` elements. In place it is this rank's part of `src`, at src + rank * count elements; the rest of `src` stays.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_reduce_scatter(
    group: *mut comity_group,
    src: *const c_void,
    dst: *mut c_void,
    count: i64,
    dtype: DTypeNumber,
    reduce: ReduceNumber,
) -> comity_status {
    let call = comity_call { src, dst, count, dtype, ..comity_call::of(comity_op::COMITY_OP_REDUCE_SCATTER) };
    run_on(group, &comity_call { reduce, ..call })
}

/// Like comity_reduce_scatter(), where part r has counts[r] elements. It has no form in place.
///
/// @param counts Array with an entry for each rank, the same on every rank.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_reduce_scatter_v(
    group: *mut comity_group,
    src: *const c_void,
    dst: *mut c_void,
    counts: *const i64,
    dtype: DTypeNumber,
    reduce: ReduceNumber,
) -> comity_status {
    let call =
        comity_call { src, dst, dtype, reduce, ..comity_call::of(comity_op::COMITY_OP_REDUCE_SCATTER) };
    run_on(group, &comity_call { counts: some(counts), ..call })
}

/// Join every rank's `src` in the root's `dst`, by rank.
///
/// @param src `count` elements. It must not overlap `dst`.
/// @param dst On the root `count` elements for each rank; elsewhere not used, and may be NULL.
/// @param root Rank that gets all parts.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_gather(
    group: *mut comity_group,
    src: *const c_void,
    dst: *mut c_void,
    count: i64,
    dtype: DTypeNumber,
    root: i32,
) -> comity_status {
    let call =
        comity_call { src, dst, count, dtype, rank: root, ..comity_call::of(comity_op::COMITY_OP_GATHER) };
    run_on(group, &call)
}

/// Give part r of the root's `src` to rank r, in `dst`.
///
/// @param src On the root `count` elements for each rank; elsewhere not used, and may be NULL. It must not overlap `dst`.
/// @param dst `count` elements.
/// @param root Rank that gives the parts.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_scatter(
    group: *mut comity_group,
    src: *const c_void,
    dst: *mut c_void,
    count: i64,
    dtype: DTypeNumber,
    root: i32,
) -> comity_status {
    let call =
        comity_call { src, dst, count, dtype, rank: root, ..comity_call::of(comity_op::COMITY_OP_SCATTER) };
    run_on(group, &call)
}

/// Give part r of `src` to rank r; `dst` gets one part from each rank, by rank.
///
/// @param src `count` elements for each rank.
/// @param dst `count` elements for each rank; may be `src`.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_all_to_all(
    group: *mut comity_group,
    src: *const c_void,
    dst: *mut c_void,
    count: i64,
    dtype: DTypeNumber,
) -> comity_status {
    run_on(group, &comity_call { src, dst, count, dtype, ..comity_call::of(comity_op::COMITY_OP_ALL_TO_ALL) })
}

/// Like comity_all_to_all(), where this rank gives send_counts[r] elements to rank r and gets recv_counts[r] from it. `src` and `dst`
/// hold the parts by rank, without gaps. It has no form in place.
///
/// @param send_counts Array with an entry for each rank.
/// @param recv_counts Array with an entry for each rank.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_all_to_all_v(
    group: *mut comity_group,
    src: *const c_void,
    send_counts: *const i64,
    dst: *mut c_void,
    recv_counts: *const i64,
    dtype: DTypeNumber,
) -> comity_status {
    let call = comity_call {
        src,
        dst,
        dtype,
        counts: some(send_counts),
        ..comity_call::of(comity_op::COMITY_OP_ALL_TO_ALL)
    };
    run_on(group, &comity_call { recv_counts: some(recv_counts), ..call })
}

/// Counts that must be there: in a `comity_call` NULL would mean equal parts. No list can be at this address, which is refused by name.
fn some(counts: *const i64) -> *const i64 {
    if counts.is_null() { std::ptr::without_provenance(1) } else { counts }
}

//! Groups that form again, and the state of those that join.

use crate::{
    boundary::{answer, value},
    errors::CFault,
    group::{hand_out_formed, seconds},
    handles::{self, comity_group},
    raw,
    types::{comity_buffer, comity_departure, comity_reform_options, comity_status, dtype},
};
use comity::{Place, ReformOptions, ViewMut, tools::ForeignMemory};
use std::ptr;

/// Form the group again of the ranks that are left: after a failure, or where all ranks of a healthy group call this.
///
/// The others that live call it too, each when a call of it has failed. They get new numbers without gaps, in the former order. Processes
/// that wait to be taken in become the last ranks. All get the same group, or an error. `group` stays failed; one that had not failed is
/// closed. Free it as well. Groups that were split from it are not formed again.
///
/// @param options NULL for the usual ones. Every rank gives the same.
/// @param out Gets the group. Free it with comity_group_free().
/// @return COMITY_ERR_JOIN where no group follows. Unless the others went on without this rank, you may call this again.
#[unsafe(no_mangle)]
pub extern "C" fn comity_group_reform(
    group: *mut comity_group,
    options: *const comity_reform_options,
    out: *mut *mut comity_group,
) -> comity_status {
    answer(|| {
        raw::check_out("out", out)?;
        let made = handles::find(group)?.limited(0.0)?.reform(&given(options)?)?;
        hand_out_formed(out, made)
    })
}

fn given(options: *const comity_reform_options) -> Result<ReformOptions, CFault> {
    if options.is_null() {
        return Ok(ReformOptions::new());
    }
    let theirs = raw::take_struct("comity_reform_options", options)?;
    let fewest = usize::try_from(theirs.fewest)
        .map_err(|_| CFault::misuse(format!("fewest is {}, and must be 0 or more", theirs.fewest)))?;
    let mut made = ReformOptions::new().fewest(fewest.max(1));
    if theirs.timeout != 0.0 {
        made = made.limit(seconds("the timeout", theirs.timeout)?);
    }
    Ok(if theirs.store_decides == 0 { made } else { made.store_decides() })
}

/// Get the number of processes that wait to be taken in (COMITY_JOIN=1). The next comity_group_reform() takes them in. This asks nobody;
/// ranks may learn of a process at different moments.
///
/// @return -1 if there is no such group.
#[unsafe(no_mangle)]
pub extern "C" fn comity_group_joiners(group: *mut comity_group) -> i32 {
    value(-1, || Ok(handles::find(group)?.open()?.joiners() as i32))
}

/// Get the number of ranks that comity_group_reform() took into this group: its last ones.
///
/// @return -1 if there is no such group.
#[unsafe(no_mangle)]
pub extern "C" fn comity_group_joined(group: *mut comity_group) -> i32 {
    value(-1, || Ok(handles::find(group)?.joined as i32))
}

/// Get the number of ranks that were in the group before comity_group_reform() and are not in this one.
///
/// @return -1 if there is no such group.
#[unsafe(no_mangle)]
pub extern "C" fn comity_group_left(group: *mut comity_group) -> i32 {
    value(-1, || Ok(handles::find(group)?.left.len() as i32))
}

/// Describe one of the ranks that comity_group_left() counts.
///
/// @param index 0 to comity_group_left() - 1.
/// @param out Set its `size` to sizeof(comity_departure) before. Its texts are valid until comity_group_free() of `group`.
#[unsafe(no_mangle)]
pub extern "C" fn comity_group_departure(
    group: *mut comity_group,
    index: i32,
    out: *mut comity_departure,
) -> comity_status {
    answer(|| {
        let group = handles::find(group)?;
        let Some(who) = usize::try_from(index).ok().and_then(|i| group.left.get(i)) else {
            return Err(CFault::misuse(format!("index {index}: {} ranks have left", group.left.len())));
        };
        let size = size_of::<comity_departure>();
        let host = who.host.as_ref().map_or(ptr::null(), |h| h.as_ptr());
        let why = who.why.as_ptr();
        let out_of = comity_departure { size, rank: who.rank, reserved: 0, pid: who.pid, host, why };
        raw::put_struct("comity_departure", out, out_of)
    })
}

/// Give all ranks the buffers of those that hold them, with the same bits on all. Only buffers that differ are sent.
///
/// Every rank passes buffers of the same types and lengths in the same order, in host memory. They must not overlap.
///
/// @param buffers Array of `count` buffers.
/// @param holds 1 on ranks whose buffers are right, such as those that went on; 0 on those that have just joined. The lowest rank that
/// gives 1 decides.
#[unsafe(no_mangle)]
pub extern "C" fn comity_sync(
    group: *mut comity_group,
    buffers: *const comity_buffer,
    count: i32,
    holds: i32,
) -> comity_status {
    answer(|| {
        let count = usize::try_from(count).map_err(|_| CFault::misuse(format!("the count is {count}")))?;
        let mut all = Vec::with_capacity(count);
        for (i, b) in raw::list("buffers", buffers, count)?.iter().enumerate() {
            let what = format!("buffer {i}");
            let n = usize::try_from(b.count)
                .map_err(|_| CFault::misuse(format!("{what}: the count is {}", b.count)))?;
            all.push(raw::memory(&what, b.data.expose_provenance(), n, dtype(b.dtype)?, Place::Host)?);
        }
        let mut order: Vec<_> = all.iter().map(|m| m.range()).filter(|r| !r.is_empty()).collect();
        order.sort_by_key(|r| r.start);
        if order.windows(2).any(|pair| pair[1].start < pair[0].end) {
            return Err(CFault::misuse("two of the buffers overlap"));
        }
        let group = handles::find(group)?.limited(0.0)?;
        let mut views: Vec<ViewMut<'_>> = all.iter().map(ForeignMemory::view_mut).collect();
        group.sync(&mut views, holds != 0)?;
        Ok(())
    })
}

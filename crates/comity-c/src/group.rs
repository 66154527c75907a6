//! Groups: made, asked, split, closed, formed again; and the state of those that join.

use crate::{
    errors::{self, CFault, answer, value},
    handles::{self, HeldHandle, comity_group},
    raw,
    types::{
        comity_buffer, comity_departure, comity_member, comity_reform_options, comity_stats, comity_status,
        dtype,
    },
};
use comity::{
    Group, Place, ReformOptions, ReformOutcome, ViewMut,
    tools::{ForeignMemory, HomeProcess},
};
use std::{
    ffi::{CString, c_char},
    mem::ManuallyDrop,
    ptr,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

pub(crate) struct GroupHandle {
    group: ManuallyDrop<Group>,
    /// The limit that this handle was given since, as the bits of seconds; 0: that of the group.
    limit: AtomicU64,
    home: HomeProcess,
    /// Ranks of the former group that are not in this one, which followed it.
    pub(crate) left: Vec<DepartedRank>,
    /// Number of ranks that joined then.
    pub(crate) joined: usize,
    /// Host and link of each member, once somebody asked.
    members: OnceLock<Vec<[Option<CString>; 2]>>,
}

/// Rank that left, with its texts as C reads them.
pub(crate) struct DepartedRank {
    pub(crate) rank: i32,
    pub(crate) pid: i64,
    pub(crate) host: Option<CString>,
    pub(crate) why: CString,
}

impl Drop for GroupHandle {
    fn drop(&mut self) {
        // A forked child must not say goodbye in its parent's name.
        if self.home.is_here() {
            // SAFETY: once, here, and nobody uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.group) };
        }
    }
}

impl GroupHandle {
    /// The group, in the process that made it.
    #[inline]
    pub(crate) fn open(&self) -> Result<&Group, CFault> {
        self.home.check()?;
        Ok(&self.group)
    }

    /// Returns whether calls have the limit that the group has.
    #[inline]
    pub(crate) fn usual_limit(&self) -> bool {
        self.limit.load(Ordering::Relaxed) == 0
    }

    /// The group with this handle's limit, or with one call's in seconds if that is more than 0.
    pub(crate) fn limited(&self, timeout: f64) -> Result<Group, CFault> {
        let group = self.open()?;
        if timeout != 0.0 {
            return Ok(group.with_timeout(seconds("the timeout", timeout)?));
        }
        let own = f64::from_bits(self.limit.load(Ordering::Relaxed));
        if own == 0.0 { Ok(group.clone()) } else { Ok(group.with_timeout(seconds("the timeout", own)?)) }
    }

    pub(crate) fn home(&self) -> HomeProcess {
        self.home
    }

    fn named(&self) -> &[[Option<CString>; 2]] {
        self.members.get_or_init(|| {
            let links = self.group.link_kinds();
            let link = |rank: usize| links.get(rank).copied().flatten();
            let link = |rank| link(rank).map(|k| errors::plain(k.to_string()));
            self.group.members().iter().map(|p| [errors::host(p), link(p.rank)]).collect()
        })
    }
}

/// A time of more than 0 seconds.
pub(crate) fn seconds(what: &str, t: f64) -> Result<Duration, CFault> {
    if t.is_nan() || t <= 0.0 {
        return Err(CFault::misuse(format!("{what} is {t} s, and must be more than 0")));
    }
    Ok(Duration::try_from_secs_f64(t).unwrap_or(Duration::MAX))
}

/// A number that must be a rank. Whether it is one of the group is seen later.
#[inline]
pub(crate) fn rank(what: &str, rank: i32) -> Result<usize, CFault> {
    usize::try_from(rank).map_err(|_| CFault::misuse(format!("{what} is {rank}, and must be a rank, from 0")))
}

pub(crate) fn hand_out(out: *mut *mut comity_group, group: Group) -> Result<(), CFault> {
    hand_out_formed(out, ReformOutcome { group, left: Vec::new(), joined: Vec::new() })
}

/// A handle for a group that follows another.
pub(crate) fn hand_out_formed(out: *mut *mut comity_group, made: ReformOutcome) -> Result<(), CFault> {
    let ReformOutcome { group, left, joined } = made;
    let departed = |d: comity::Departure| DepartedRank {
        rank: d.peer.rank as i32,
        pid: d.peer.pid.map_or(0, i64::from),
        host: errors::host(&d.peer),
        why: errors::plain(d.why),
    };
    let handle = GroupHandle {
        left: left.into_iter().map(departed).collect(),
        joined: joined.len(),
        group: ManuallyDrop::new(group),
        limit: AtomicU64::new(0),
        home: HomeProcess::here(),
        members: OnceLock::new(),
    };
    raw::put(out, handles::add::<comity_group>(handle)?)
}

/// Meet the other ranks of this process's job and make the group of all. The environment says which job: the variables of
/// `comity launch`, MLX, torchrun, Open MPI, MPICH and Slurm are understood. Without a launcher's variables it is a group of one.
///
/// @param out Gets the group. Free it with comity_group_free().
/// @return COMITY_ERR_CONFIG if the variables make no sense; COMITY_ERR_JOIN if a rank does not come within the join limit;
/// COMITY_ERR_FORKED in a child that was forked from a process of the job.
#[unsafe(no_mangle)]
pub extern "C" fn comity_init(out: *mut *mut comity_group) -> comity_status {
    answer(|| {
        raw::check_out("out", out)?;
        let home = HomeProcess::here();
        let group = comity::init()?;
        home.check()?;
        hand_out(out, group)
    })
}

/// Like comity_init(), but without a launcher's variables it is COMITY_ERR_CONFIG.
///
/// @param out Gets the group. Free it with comity_group_free().
#[unsafe(no_mangle)]
pub extern "C" fn comity_init_strict(out: *mut *mut comity_group) -> comity_status {
    answer(|| {
        raw::check_out("out", out)?;
        hand_out(out, comity::init_strict()?)
    })
}

/// Make a group of `size` threads of this process, which exchange data through memory.
///
/// @param size Number of ranks; 1 is a group of this process alone.
/// @param groups Array of `size` handles. Gets one for each rank; give each thread its own. Free each with comity_group_free().
#[unsafe(no_mangle)]
pub extern "C" fn comity_init_local(size: i32, groups: *mut *mut comity_group) -> comity_status {
    answer(|| {
        raw::check_out("groups", groups)?;
        if size < 1 {
            return Err(CFault::misuse(format!("the size is {size}, and must be 1 or more")));
        }
        for (rank, group) in Group::local(rank("the size", size)?)?.into_iter().enumerate() {
            let mut handle = ptr::null_mut();
            hand_out(&raw mut handle, group)?;
            raw::put_at(groups, rank, handle);
        }
        Ok(())
    })
}

/// Get this process's rank in the group, from 0.
///
/// @return -1 if there is no such group.
#[unsafe(no_mangle)]
pub extern "C" fn comity_group_rank(group: *mut comity_group) -> i32 {
    value(-1, || Ok(handles::find(group)?.open()?.rank() as i32))
}

/// Get the number of ranks of the group.
///
/// @return -1 if there is no such group.
#[unsafe(no_mangle)]
pub extern "C" fn comity_group_size(group: *mut comity_group) -> i32 {
    value(-1, || Ok(handles::find(group)?.open()?.size() as i32))
}

/// Get the CUDA device of the group: its calls take memory of this device and of the host.
///
/// @return -1 if it has none, or there is no such group.
#[unsafe(no_mangle)]
pub extern "C" fn comity_group_device(group: *mut comity_group) -> i32 {
    value(-1, || Ok(handles::find(group)?.open()?.device().map_or(-1, |d| d as i32)))
}

/// Describe a member of the group.
///
/// @param rank Rank of the member in the group.
/// @param out Set its `size` to sizeof(comity_member) before. Its texts are valid until comity_group_free().
#[unsafe(no_mangle)]
pub extern "C" fn comity_group_member(
    group: *mut comity_group,
    rank: i32,
    out: *mut comity_member,
) -> comity_status {
    answer(|| {
        let group = handles::find(group)?;
        let inner = group.open()?;
        let known = usize::try_from(rank).ok().and_then(|r| inner.members().get(r).zip(group.named().get(r)));
        let Some((peer, names)) = known else {
            let words = format!("rank {rank} is not in a group of {}", inner.size());
            return Err(CFault::misuse(words));
        };
        let [host, link] = names.each_ref().map(|t| t.as_ref().map_or(ptr::null(), |t| t.as_ptr()));
        let pid = peer.pid.map_or(0, i64::from);
        let size = size_of::<comity_member>();
        raw::put_struct("comity_member", out, comity_member { size, rank, reserved: 0, pid, host, link })
    })
}

/// Get the counters of the group on this rank.
///
/// @param out Set its `size` to sizeof(comity_stats) before.
#[unsafe(no_mangle)]
pub extern "C" fn comity_group_stats(group: *mut comity_group, out: *mut comity_stats) -> comity_status {
    answer(|| {
        let stats = handles::find(group)?.open()?.stats();
        let stats = comity_stats {
            size: size_of::<comity_stats>(),
            calls: stats.calls,
            errors: stats.errors,
            bytes_sent: stats.bytes_sent,
            suspicions: stats.suspicions,
            parked: stats.parked.as_secs_f64(),
            longest_silence: stats.longest_silence.as_secs_f64(),
        };
        raw::put_struct("comity_stats", out, stats)
    })
}

/// Get the time limit of a call in seconds.
///
/// @return INFINITY if calls have no limit; a negative number if there is no such group.
#[unsafe(no_mangle)]
pub extern "C" fn comity_group_timeout(group: *mut comity_group) -> f64 {
    value(-1.0, || {
        let limit = handles::find(group)?.limited(0.0)?.timeout();
        Ok(if limit == Duration::MAX { f64::INFINITY } else { limit.as_secs_f64() })
    })
}

/// Set the time limit of calls that are made from now on. comity_call has a limit for a single call. A call that runs out of time ends
/// the group.
///
/// @param timeout Seconds, more than 0; INFINITY: as long as all ranks live.
#[unsafe(no_mangle)]
pub extern "C" fn comity_group_set_timeout(group: *mut comity_group, timeout: f64) -> comity_status {
    answer(|| {
        let group = handles::find(group)?;
        group.open()?;
        let limit = seconds("the timeout", timeout)?;
        group.limit.store(limit.as_secs_f64().to_bits(), Ordering::Relaxed);
        Ok(())
    })
}

/// Split the group: every rank calls this, and ranks of equal color form a group.
///
/// @param color 0 or more; -1: this rank is in none of the groups.
/// @param key Order of the ranks in the new group; where keys are equal, the order of `group`.
/// @param out Gets the group; NULL where the color is -1. Free it with comity_group_free().
#[unsafe(no_mangle)]
pub extern "C" fn comity_group_split(
    group: *mut comity_group,
    color: i32,
    key: i32,
    out: *mut *mut comity_group,
) -> comity_status {
    answer(|| {
        raw::check_out("out", out)?;
        let made = handles::find(group)?.limited(0.0)?.split((color != -1).then_some(color), key)?;
        match made {
            Some(made) => hand_out(out, made),
            None => raw::put(out, ptr::null_mut()),
        }
    })
}

/// Make a group of some members. Only they call this, all with the same list and label. Calls of `group` may run meanwhile.
///
/// @param members Ranks of `group` in their new order, this one among them.
/// @param count Number of `members`.
/// @param label Number that tells apart groups of the same members.
/// @param out Gets the group. Free it with comity_group_free().
#[unsafe(no_mangle)]
pub extern "C" fn comity_group_subgroup(
    group: *mut comity_group,
    members: *const i32,
    count: i32,
    label: u64,
    out: *mut *mut comity_group,
) -> comity_status {
    answer(|| {
        raw::check_out("out", out)?;
        let count = usize::try_from(count).map_err(|_| CFault::misuse(format!("the count is {count}")))?;
        let members = raw::list("members", members, count)?;
        let members = members.iter().map(|r| rank("a member", *r)).collect::<Result<Vec<_>, _>>()?;
        let made = handles::find(group)?.limited(0.0)?.subgroup(&members, label)?;
        hand_out(out, made)
    })
}

/// Abort the group on every rank: calls under way and later ones fail with COMITY_ERR_ABORTED. This also cancels a request: other ranks
/// count on its call, so nothing less than the group can be cancelled.
///
/// @param why Sentence that the error of every rank holds.
#[unsafe(no_mangle)]
pub extern "C" fn comity_group_abort(group: *mut comity_group, why: *const c_char) -> comity_status {
    answer(|| {
        let why = raw::text("why", why)?;
        handles::find(group)?.open()?.abort(why);
        Ok(())
    })
}

/// Leave the group in good order. Calls under way on other threads and later ones fail with COMITY_ERR_CLOSED. A rank that still needs
/// this one gets an error that names it. The handle stays yours: free it.
///
/// @return COMITY_ERR_MISMATCH if the ranks made different calls and no call has shown it. The group is closed all the same.
#[unsafe(no_mangle)]
pub extern "C" fn comity_group_close(group: *mut comity_group) -> comity_status {
    answer(|| Ok(handles::find(group)?.open()?.close()?))
}

/// Close the group if it is open, and free the handle. NULL is allowed. Requests under way end as with comity_group_close().
///
/// In a forked child this frees the handle and leaves the parent's connections alone.
///
/// @return Status of comity_group_close(). The handle is freed in any case.
#[unsafe(no_mangle)]
pub extern "C" fn comity_group_free(group: *mut comity_group) -> comity_status {
    answer(|| {
        if group.is_null() {
            return Ok(());
        }
        let used: HeldHandle<comity_group> = handles::find(group)?;
        handles::free(group)?;
        // Not by dropping the last handle: that tells standard error what it finds.
        if used.home.is_here() { Ok(used.group.close()?) } else { Ok(()) }
    })
}

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

//! Groups: made, asked, split, closed.

use crate::{
    boundary::{answer, value},
    errors::{self, CFault},
    handles::{self, Used, comity_group},
    raw,
    types::{comity_member, comity_stats, comity_status},
    words,
};
use comity::{Group, tools::HomeProcess};
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

/// Object behind a `comity_group`.
pub(crate) struct GroupHandle {
    group: ManuallyDrop<Group>,
    /// The limit that this handle was given since, as the bits of seconds; 0: that of the group.
    limit: AtomicU64,
    home: HomeProcess,
    /// Host and link of each member, once somebody asked.
    members: OnceLock<Vec<[Option<CString>; 2]>>,
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
            let link = |rank| link(rank).map(|k| words::text(k.to_string()));
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

/// A handle for a group of this process.
pub(crate) fn hand_out(out: *mut *mut comity_group, group: Group) -> Result<(), CFault> {
    let handle = GroupHandle {
        group: ManuallyDrop::new(group),
        limit: AtomicU64::new(0),
        home: HomeProcess::here(),
        members: OnceLock::new(),
    };
    raw::put(out, handles::add::<comity_group>(handle)?)
}

/// The group of this process's job, found in the environment: the variables of `comity launch`, MLX, torchrun, Open MPI, MPICH and
/// Slurm are understood. A group of one where no launcher's variables are set.
///
/// @param out Gets the group, yours to free with comity_group_free().
/// @return Also COMITY_ERR_CONFIG for broken variables, COMITY_ERR_JOIN when the ranks do not come together within the join limit, and
/// COMITY_ERR_FORKED in a child that was forked from a process of the job.
// SAFETY: the name is this library's own.
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

/// Like comity_init(), but COMITY_ERR_CONFIG where no launcher's variables are set.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_init_strict(out: *mut *mut comity_group) -> comity_status {
    answer(|| {
        raw::check_out("out", out)?;
        hand_out(out, comity::init_strict()?)
    })
}

/// Groups for `size` threads of this process, which talk through memory: for tests, and for programs without processes.
///
/// @param size Number of ranks; 1 is a group of this process alone.
/// @param out Gets `size` groups by rank, each yours to free with comity_group_free().
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_local(size: i32, out: *mut *mut comity_group) -> comity_status {
    answer(|| {
        raw::check_out("out", out)?;
        if size < 1 {
            return Err(CFault::misuse(format!("the size is {size}, and must be 1 or more")));
        }
        for (rank, group) in Group::local(rank("the size", size)?)?.into_iter().enumerate() {
            let mut handle = ptr::null_mut();
            hand_out(&raw mut handle, group)?;
            raw::put_at(out, rank, handle);
        }
        Ok(())
    })
}

/// This process's place in the group, from 0; -1 if there is no such group.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_group_rank(group: *mut comity_group) -> i32 {
    value(-1, || Ok(handles::find(group)?.open()?.rank() as i32))
}

/// Number of ranks of the group; -1 if there is no such group.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_group_size(group: *mut comity_group) -> i32 {
    value(-1, || Ok(handles::find(group)?.open()?.size() as i32))
}

/// The CUDA device whose memory calls take, besides that of the host; -1 if none.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_group_device(group: *mut comity_group) -> i32 {
    value(-1, || Ok(handles::find(group)?.open()?.device().map_or(-1, |d| d as i32)))
}

/// A member of the group.
///
/// @param member Its rank.
/// @param out Its `size` must be set to sizeof(comity_member). Its texts are valid until comity_group_free().
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_group_member(
    group: *mut comity_group,
    member: i32,
    out: *mut comity_member,
) -> comity_status {
    answer(|| {
        let group = handles::find(group)?;
        let inner = group.open()?;
        let known =
            usize::try_from(member).ok().and_then(|r| inner.members().get(r).zip(group.named().get(r)));
        let Some((peer, names)) = known else {
            let words = format!("rank {member} is not in a group of {}", inner.size());
            return Err(CFault::misuse(words));
        };
        let [host, link] = names.each_ref().map(|t| t.as_ref().map_or(ptr::null(), |t| t.as_ptr()));
        let pid = peer.pid.map_or(0, i64::from);
        let size = size_of::<comity_member>();
        raw::put_struct(
            "comity_member",
            out,
            comity_member { size, rank: member, reserved: 0, pid, host, link },
        )
    })
}

/// Counters of the group on this rank.
///
/// @param out Its `size` must be set to sizeof(comity_stats).
// SAFETY: the name is this library's own.
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

/// Limit on a call, in seconds; INFINITY where there is none, a negative number if there is no such group.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_group_timeout(group: *mut comity_group) -> f64 {
    value(-1.0, || {
        let limit = handles::find(group)?.limited(0.0)?.timeout();
        Ok(if limit == Duration::MAX { f64::INFINITY } else { limit.as_secs_f64() })
    })
}

/// Let calls that are made from now on take so long (at first 300, or COMITY_TIMEOUT). A call that runs out of time ends the group.
///
/// @param timeout Seconds, more than 0; INFINITY: as long as all ranks live. comity_call has a limit for one call.
// SAFETY: the name is this library's own.
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

/// Split into groups of equal color: every rank calls this. Ranks of one color form a group, by key and then by rank.
///
/// @param color 0 or more; -1 to be in none of the groups.
/// @param out Gets the group, yours to free with comity_group_free(); NULL where the color is -1.
// SAFETY: the name is this library's own.
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

/// The group of some members; only they call this, all with the same list and label. Calls of `group` may run meanwhile.
///
/// @param members Ranks of `group` in their new order, this one among them.
/// @param count Number of `members`.
/// @param label Tells apart groups of the same members.
/// @param out Gets the group, yours to free with comity_group_free().
// SAFETY: the name is this library's own.
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

/// Give the group up on every rank: calls under way and later ones fail with COMITY_ERR_ABORTED, which carries `why`. This is also how
/// a request is cancelled: MPI's rules hold, nothing less than the group can be.
///
/// @param why A sentence for the other ranks, in UTF-8.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_group_abort(group: *mut comity_group, why: *const c_char) -> comity_status {
    answer(|| {
        let why = raw::text("why", why)?;
        handles::find(group)?.open()?.abort(why);
        Ok(())
    })
}

/// Leave the group in good order: calls under way on other threads and later ones are COMITY_ERR_CLOSED, and peers that still need this
/// rank get an error that names it. The handle stays, to be freed.
///
/// @return COMITY_ERR_MISMATCH if the ranks made different calls and no call has shown it. The group is closed all the same.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_group_close(group: *mut comity_group) -> comity_status {
    answer(|| Ok(handles::find(group)?.open()?.close()?))
}

/// Close the group if it is not closed yet, and free the handle. Requests under way end as with comity_group_close(). NULL is allowed.
///
/// In a forked child this frees the handle and leaves the parent's connections alone.
///
/// @return As comity_group_close(); the handle is freed in any case.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
pub extern "C" fn comity_group_free(group: *mut comity_group) -> comity_status {
    answer(|| {
        if group.is_null() {
            return Ok(());
        }
        let used: Used<comity_group> = handles::find(group)?;
        handles::free(group)?;
        // Not by dropping the last handle: that tells standard error what it finds.
        if used.home.is_here() { Ok(used.group.close()?) } else { Ok(()) }
    })
}

//! A device's communicator, which puts work on a stream, and its guard, which looks after work that is there and not done: at the call's limit, or when a member is lost, the communicator is aborted.
//!
//! A call that is under way for long is compared with the next rank's: ranks that call different things wait for each other in vain.
//! The thread sleeps while nothing is under way, and looks every few milliseconds while something is.

use super::{Spot, StepResult, Waiting, parts::StreamWork};
use crate::{
    CallInfo, Error, Result,
    backend::external::wait,
    engine::{Census, Members, library_word},
    status::{Failure, GroupStatus, World},
    sync::lock,
    sys::{
        cuda::{CudaContext, Mark, StreamId},
        nccl::{Comm, Nccl, UniqueId},
    },
};
use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Condvar, Mutex, Weak},
    thread,
    time::{Duration, Instant},
};

const STREAM_POLL: Duration = Duration::from_millis(5);
/// A call that is not done for so long is told to the next rank, which compares it with its own: if any two ranks differ, two neighbours do.
pub(super) const LATE: Duration = Duration::from_millis(50);
/// Communicators of groups that are over, kept because a peer's device may still write to their memory.
const MAX_RETIRED: usize = 64;

/// Aborts the communicator when work on a stream passes its limit or a member is lost.
#[derive(Debug)]
pub(super) struct Guard(Arc<Post>);

#[derive(Debug)]
struct Post {
    comm: Arc<Comm>,
    rank: usize,
    size: usize,
    group_id: u64,
    status: Arc<GroupStatus>,
    world: Weak<dyn World>,
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// A call that is being put on a stream.
    entering: Option<(Instant, CallInfo, Duration)>,
    under_way: VecDeque<(Mark, Instant, CallInfo, Duration)>,
    spare: Vec<Mark>,
    /// The thread sleeps until it is told of news.
    idle: bool,
    over: bool,
}

impl Guard {
    pub(super) fn new(comm: Arc<Comm>, members: &Members) -> Result<Self> {
        let post = Arc::new(Post {
            comm,
            rank: members.rank,
            size: members.size(),
            group_id: members.group_id,
            status: members.status.clone(),
            world: Arc::downgrade(&members.world),
            state: Mutex::default(),
            news: Condvar::new(),
        });
        let at_post = Arc::clone(&post);
        thread::Builder::new()
            .name("comity-nccl".into())
            .spawn(move || at_post.stand())
            .map_err(|e| Error::os("starting the thread that watches NCCL", e))?;
        Ok(Self(post))
    }

    /// A call is about to be put on a stream. It must be done by `until`, when it has taken its `limit`.
    pub(super) fn enter(&self, (until, limit): (Instant, Duration), info: CallInfo) {
        let mut state = lock(&self.0.state);
        state.entering = Some((until, info, limit));
        if state.idle {
            self.0.news.notify_one();
        }
    }

    /// It is on the stream. The device is current.
    pub(super) fn mark(&self, device: &CudaContext, stream: StreamId) -> Result<()> {
        let spare = lock(&self.0.state).spare.pop();
        let mark = match spare {
            Some(mark) => mark.again(stream)?,
            None => device.mark(stream)?,
        };
        let mut state = lock(&self.0.state);
        if let Some((until, info, limit)) = state.entering.take() {
            state.under_way.push_back((mark, until, info, limit));
        }
        Ok(())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        lock(&self.0.state).over = true;
        self.0.news.notify_one();
    }
}

impl Post {
    // WAIT(over): NCCL's guard: woken for each call, and at the end
    fn stand(&self) {
        let mut state = lock(&self.state);
        let mut told = 0;
        loop {
            while let Some((mark, ..)) = state.under_way.front() {
                match mark.is_passed() {
                    Ok(true) => {
                        let passed = state.under_way.pop_front();
                        state.spare.extend(passed.map(|(mark, ..)| mark));
                    }
                    Ok(false) => break,
                    Err(e) => {
                        self.fail(format!("could not go on: {e}"));
                        break;
                    }
                }
            }
            let first = state
                .under_way
                .front()
                .map(|(_, until, info, limit)| (*until, *info, *limit))
                .or(state.entering);
            let left = |until: &Instant| until.saturating_duration_since(Instant::now());
            if let Some((_, info, _)) =
                first.filter(|(until, info, limit)| info.seq > told && left(until) + LATE <= *limit)
            {
                told = info.seq;
                drop(state);
                self.announce(info.seq);
                state = lock(&self.state);
            }
            if let Some((_, info, limit)) = first.filter(|(until, ..)| Instant::now() >= *until) {
                drop(state);
                self.late(info, limit);
                state = lock(&self.state);
            } else if first.is_some()
                && let Err(e) = self.comm.check()
            {
                drop(state);
                let known = library_word(&self.status).is_some() || self.status.is_closing();
                state = lock(&self.state);
                if !known {
                    self.fail(format!("could not go on: {e}"));
                }
            }
            if self.status.failure().is_some() && (state.over || first.is_some()) {
                // It may take its time, and who is in a call wants the lock.
                drop(state);
                self.comm.abort();
                return;
            }
            if state.over && first.is_none() {
                retire(&self.comm);
                return;
            }
            state.idle = state.under_way.is_empty() && state.entering.is_none();
            state = if state.idle {
                self.news.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner)
            } else {
                self.news.wait_timeout(state, STREAM_POLL).map_or_else(|e| e.into_inner().0, |(s, _)| s)
            };
        }
    }

    /// Tell the next rank of call number `seq`.
    fn announce(&self, seq: u64) {
        if let Some(world) = self.world.upgrade()
            && let Some(call) = self.status.ledger().call(seq)
        {
            world.ask(self.group_id, &[(self.rank + 1) % self.size], &call);
        }
    }

    /// The limit of a call has passed: find out who has not made it.
    fn late(&self, info: CallInfo, limit: Duration) {
        let Some(world) = self.world.upgrade() else {
            return self.fail(format!("did not finish {info} on its device within {limit:?}"));
        };
        let rank = self.rank;
        let size = self.size;
        let group_id = self.group_id;
        let census = Census { world: &*world, status: &self.status, group_id, rank, size };
        if let Ok(late) = census.hold(info, limit, None) {
            self.tell(Failure::late(rank, late));
        }
    }

    fn fail(&self, cause: String) {
        self.tell(Failure::lost(self.rank, self.rank, cause));
    }

    fn tell(&self, failure: Failure) {
        // In the order of `AbortHandle::raise`, for its reason.
        if let Some(world) = self.world.upgrade() {
            world.abort(self.group_id, &failure);
        }
        self.status.fail(failure);
    }
}

/// Ending a communicator is a call of all its ranks; dropping a group is not. So it is kept until its peers are long done with it.
fn retire(comm: &Arc<Comm>) {
    static RETIRED: Mutex<VecDeque<Arc<Comm>>> = Mutex::new(VecDeque::new());
    let mut retired = lock(&RETIRED);
    retired.push_back(Arc::clone(comm));
    if retired.len() > MAX_RETIRED
        && let Some(oldest) = retired.pop_front()
    {
        oldest.abort();
    }
}

#[derive(Debug)]
pub(super) struct DeviceComm {
    pub(super) device: CudaContext,
    comm: Arc<Comm>,
    guard: Guard,
}

pub(super) fn open(device: u32) -> Result<(CudaContext, &'static Nccl)> {
    Ok((CudaContext::open(device)?, Nccl::find()?))
}

/// A call, when it must be done, and its limit, which has passed then.
pub(super) type WatchedCall = (CallInfo, (Instant, Duration));

impl DeviceComm {
    /// Make the communicator; all members do so with the same id.
    // WAIT(is_finished): a thread of NCCL, to the deadline of the call
    pub(super) fn join(
        members: &Members,
        device: CudaContext,
        lib: &'static Nccl,
        id: UniqueId,
        waiting: &mut Waiting,
    ) -> StepResult<Self> {
        let rank = members.rank;
        let size = members.size();
        // NCCL waits for all ranks there; this one may have to give up first, and leaves the thread behind then.
        let maker = thread::Builder::new().name("comity-nccl-init".into());
        let maker = maker.spawn(move || device.within(|| lib.make(id, rank, size)));
        let maker = maker.map_err(|e| Error::os("starting a thread", e))?;
        wait(members, waiting, || Ok(maker.is_finished()))?;
        let lost = || Error::os("making an NCCL communicator", io::Error::other("its thread panicked"));
        let comm = Arc::new(maker.join().map_err(|_| lost())??);
        tracing::info!(device = device.ordinal, name = device.name(), nccl = lib.version(), "NCCL is up");
        let guard = Guard::new(Arc::clone(&comm), members)?;
        Ok(Self { device, comm, guard })
    }

    /// Put a call's work on the stream, and have it watched until it is done or late.
    pub(super) fn put(&self, work: &StreamWork, spot: Spot, (info, due): WatchedCall) -> StepResult<()> {
        for &(from, to, len) in &work.copies {
            // SAFETY: addresses inside the caller's views or our own scratch, which is given back after this in the stream's order.
            unsafe { self.device.copy(to, from, len, spot.stream)? };
        }
        if !work.parts.is_empty() {
            self.guard.enter(due, info);
            self.device.within(|| {
                // SAFETY: as above; views of device memory promise their bytes until the stream has come past the call.
                unsafe { self.comm.enqueue(&work.parts, spot.stream)? };
                self.guard.mark(&self.device, spot.stream)
            })?;
        }
        Ok(())
    }

    /// Wait until the stream has come as far as it is filled now.
    pub(super) fn until_passed(
        &self,
        members: &Members,
        stream: StreamId,
        waiting: &mut Waiting,
    ) -> StepResult<()> {
        let mark = self.device.mark(stream)?;
        // WAIT(Waiting): NCCL, to the deadline of the call
        wait(members, waiting, || Ok(mark.is_passed()?))
    }
}

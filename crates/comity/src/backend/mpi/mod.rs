//! MPI carries the data; Comity's control connections watch over the members.
//!
//! ```text
//!   a call:  every rank's header to every rank (MPI_Iallgather, 40 bytes each): do all make the same call?
//!            then, chunk by chunk:  user's buffer -> ours -> MPI_I... -> ours -> user's buffer
//! ```
//!
//! Cost: one small all_gather and two copies more than MPI's own call. What they buy: ranks that disagree are told before a byte
//! moves; a call ends at its limit, or when a member dies, because MPI never holds memory of the caller; and no count
//! reaches the 2^31 at which MPI's older functions end.

mod collective;
mod pair;
mod place;

pub(crate) use place::Runtime;

use super::{Alarm, Backend, Bufs, Call};
use crate::{
    CallInfo, Error, LinkKind, Op, Peer, Result,
    boot::World,
    engine::{Differs, Failure, Header, Patience, Stage, Wait, Watch},
    kernel,
    plan::{Buf, Slice},
    stats::Counters,
    sys::mpi::{Handle, Move, Mpi, Pending},
    view::Memory,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    collections::VecDeque,
    fmt,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// The shortest and the longest sleep between two looks: MPI has no descriptor to sleep on.
const NAPS: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(2));

/// Sends kept until their receive is called, in bytes per peer.
const MAX_STASH: usize = 256 << 20;

/// See the module.
pub(crate) struct MpiBackend<H: Handle> {
    mpi: &'static Mpi<H>,
    comm: H,
    rank: usize,
    world: Arc<dyn World>,
    watch: Arc<Watch>,
    /// World ranks by rank.
    members: Vec<usize>,
    peers: Arc<[Peer]>,
    context: u64,
    patience: Patience,
    counters: Arc<Counters>,
    /// Sends whose receive was not called yet, by peer.
    stash: Vec<VecDeque<(Header, Vec<u8>)>>,
    /// Buffers to use again.
    spare: Vec<Vec<u8>>,
}

impl<H: Handle> fmt::Debug for MpiBackend<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MpiBackend").field("rank", &self.rank).field("mpi", &self.mpi).finish_non_exhaustive()
    }
}

/// Why a call stopped.
enum Stop {
    Failed(Failure),
    Late,
    Closed,
    Left(usize),
    /// What another rank called, and what differs.
    Differs(usize, CallInfo, &'static str),
    /// Words about a peer that broke a rule.
    Peer(usize, String),
    Library(Error),
}

impl From<Error> for Stop {
    fn from(e: Error) -> Self {
        Self::Library(e)
    }
}

type Stopped<T> = std::result::Result<T, Stop>;

impl<H: Handle> MpiBackend<H> {
    /// The backend of everyone in `world`; all of them call this.
    pub(crate) fn open(mpi: &'static Mpi<H>, world: Arc<dyn World>, counters: Arc<Counters>) -> Result<Self> {
        let members = (0..world.peers().len()).collect();
        Self::with(mpi, mpi.world()?, world, members, 0, counters)
    }

    fn with(
        mpi: &'static Mpi<H>,
        comm: H,
        world: Arc<dyn World>,
        members: Vec<usize>,
        context: u64,
        counters: Arc<Counters>,
    ) -> Result<Self> {
        let watch = Watch::new(members.len(), counters.clone());
        let watch = Arc::new(watch.map_err(|e| Error::os("making an event descriptor", e))?);
        world.attend(context, &members, &watch)?;
        let rank = members.iter().position(|&m| m == world.rank()).unwrap_or_default();
        let known =
            |m: usize| world.peers().get(m).cloned().unwrap_or(Peer { rank: m, host: None, pid: None });
        let peers: Arc<[Peer]> =
            members.iter().enumerate().map(|(rank, &m)| Peer { rank, ..known(m) }).collect();
        let host = world.hosts().get(world.rank()).copied();
        let here = world.hosts().iter().filter(|&&h| Some(h) == host).count();
        let cores = thread::available_parallelism().map_or(1, |n| n.get());
        let stash = members.iter().map(|_| VecDeque::new()).collect();
        let patience = Patience::new(here, cores);
        Ok(Self {
            mpi,
            comm,
            rank,
            world,
            watch,
            members,
            peers,
            context,
            patience,
            counters,
            stash,
            spare: Vec::new(),
        })
    }

    fn size(&self) -> usize {
        self.members.len()
    }

    /// A buffer of `len` bytes, whatever they are.
    fn buffer(&mut self, len: usize) -> Vec<u8> {
        let mut buf = self.spare.pop().unwrap_or_default();
        buf.resize(len, 0);
        buf
    }

    /// Keep buffers for the next chunk.
    fn keep(&mut self, bufs: impl IntoIterator<Item = Vec<u8>>) {
        self.spare.extend(bufs.into_iter().filter(|b| b.capacity() > 0));
        self.spare.truncate(8);
    }

    fn start(&self, what: &Move, src: Vec<u8>, out: Vec<u8>) -> Result<Pending<H>> {
        Pending::start(self.mpi, self.comm, self.size(), what, src, out)
    }

    /// Wait until `done` says so; it is asked again and again.
    fn wait(&self, wait: &mut Wait, mut done: impl FnMut() -> Stopped<bool>) -> Stopped<()> {
        let (mut nap, mut leaver) = (NAPS.0, false);
        loop {
            if done()? {
                wait.reset();
                return Ok(());
            }
            if let Some(f) = self.watch.failure() {
                return Err(Stop::Failed(f.clone()));
            }
            if self.watch.is_closing() {
                return Err(Stop::Closed);
            }
            match wait.next() {
                Stage::Spin => std::hint::spin_loop(),
                Stage::Yield => thread::yield_now(),
                Stage::Park => {
                    // What a member sent before it left may still be on its way; a nap or two tells.
                    if self.watch.anyone_left()
                        && nap >= NAPS.1
                        && let Some(peer) = (0..self.size()).find(|&r| self.watch.has_left(r))
                    {
                        if leaver {
                            return Err(Stop::Left(peer));
                        }
                        leaver = true;
                    }
                    let Some(left) = wait.left() else { return Err(Stop::Late) };
                    self.sleep(left.min(nap));
                    nap = (nap * 2).min(NAPS.1);
                }
            }
        }
    }

    /// Until the group's bell rings, at most `limit`.
    fn sleep(&self, limit: Duration) {
        let slept = Instant::now();
        let limit = Timespec { tv_sec: 0, tv_nsec: i64::from(limit.subsec_nanos()) };
        // A signal ends the sleep early, which is no harm.
        let _ = poll(&mut [PollFd::from_borrowed_fd(self.watch.bell_fd(), PollFlags::IN)], Some(&limit));
        self.watch.hush();
        self.counters.slept(slept.elapsed());
    }

    /// Turn what stopped a call into this rank's error, and tell the others.
    fn explain(&self, stop: Stop, info: CallInfo, limit: Duration) -> Error {
        let call = Some(info);
        let tell = |culprit: usize, cause: String| {
            let failure = Failure { culprit, by: self.rank, cause, reported: false, calls: None };
            if self.watch.fail(failure.clone()) {
                self.world.abort(self.context, &failure);
            }
        };
        match stop {
            Stop::Failed(f) => self.blame(&f, call),
            Stop::Closed => Error::Closed,
            Stop::Left(peer) => {
                let cause = "left the group".to_owned();
                tell(peer, cause.clone());
                Error::PeerLost { peer: self.peers[peer].clone(), cause, call }
            }
            Stop::Late => {
                tell(self.rank, format!("did not finish {info} within {limit:?}"));
                let waiting_for = self.peers.iter().filter(|p| p.rank != self.rank).cloned().collect();
                Error::Timeout { rank: self.rank, call: info, after: limit, waiting_for, crossed: Vec::new() }
            }
            Stop::Differs(peer, theirs, differs) => {
                let calls = Differs { ours: info, theirs, what: differs };
                let failure = Failure::differs(peer, self.rank, calls);
                if self.watch.fail(failure.clone()) {
                    self.world.abort(self.context, &failure);
                }
                self.blame(&failure, call)
            }
            Stop::Peer(peer, cause) => {
                tell(peer, cause.clone());
                Error::PeerLost { peer: self.peers[peer].clone(), cause, call }
            }
            Stop::Library(e) => {
                tell(self.rank, format!("could not go on: {e}"));
                e
            }
        }
    }

    fn blame(&self, f: &Failure, call: Option<CallInfo>) -> Error {
        let member = |r: usize| self.peers.get(r).cloned().unwrap_or(Peer { rank: r, host: None, pid: None });
        if let Some(Differs { ours, theirs, what }) = f.calls {
            return Error::Mismatch { rank: f.by, ours, peer: member(f.culprit), theirs, differs: what };
        }
        if f.reported {
            return Error::Aborted { by: member(f.culprit), reason: f.cause.clone(), call };
        }
        let seen = if f.by == self.rank { String::new() } else { format!(" (seen by rank {})", f.by) };
        Error::PeerLost { peer: member(f.culprit), cause: format!("{}{seen}", f.cause), call }
    }
}

impl<H: Handle> Backend for MpiBackend<H> {
    fn run(&mut self, call: Call<'_>, limit: Duration) -> Result<()> {
        let info = call.info;
        let mut wait = Wait::new(self.patience, limit);
        self.watch.advance();
        let out = match info.op {
            Op::Send | Op::Recv | Op::Exchange => self.pair(call, &mut wait),
            _ => self.collective(call, &mut wait),
        };
        self.watch.advance();
        self.patience = wait.patience();
        out.map_err(|stop| self.explain(stop, info, limit))
    }

    fn split(
        &mut self,
        members: &[usize],
        context: u64,
        counters: Arc<Counters>,
        limit: Duration,
    ) -> Result<Box<dyn Backend>> {
        if members.len() == 1 {
            return Ok(Box::new(super::Single));
        }
        // Making a communicator is the one call that may block in MPI: on a thread, so that this one can give up.
        let (mpi, comm, ranks) = (self.mpi, self.comm, members.to_vec());
        let maker = thread::Builder::new().name("comity-mpi-split".into());
        let maker = maker
            .spawn(move || mpi.subset(comm, &ranks, context as u16))
            .map_err(|e| Error::os("starting a thread", e))?;
        let mut wait = Wait::new(self.patience, limit);
        let info = CallInfo::new(Op::Split);
        let made = self.wait(&mut wait, || Ok(maker.is_finished()));
        if made.is_err() {
            mpi.spoil();
        }
        made.map_err(|stop| self.explain(stop, info, limit))?;
        let lost = || Error::Os { what: "splitting a group".into(), message: "its thread panicked".into() };
        let comm = maker.join().map_err(|_| lost())??;
        let members = members.iter().map(|&m| self.members[m]).collect();
        Ok(Box::new(Self::with(mpi, comm, self.world.clone(), members, context, counters)?))
    }

    fn failure(&self, call: Option<CallInfo>) -> Option<Error> {
        self.watch.failure().map(|f| self.blame(f, call))
    }

    fn alarm(&self) -> Option<Alarm> {
        let (watch, world) = (self.watch.clone(), Arc::downgrade(&self.world));
        Some(Alarm { watch, world, context: self.context })
    }

    fn links(&self) -> Vec<Option<LinkKind>> {
        (0..self.size()).map(|r| (r != self.rank).then_some(LinkKind::Mpi)).collect()
    }
}

impl<H: Handle> Drop for MpiBackend<H> {
    fn drop(&mut self) {
        self.world.leave(self.context);
        self.mpi.free(self.comm);
    }
}

/// The buffers of a call, by what they are for.
fn memory<'a>(call_bufs: Bufs<'a>, rank: usize, part: usize) -> Memory<'a> {
    match call_bufs {
        Bufs::None => Memory::new(None, None, &mut []),
        Bufs::In(src) => Memory::new(Some(src), None, &mut []),
        Bufs::Out(dst) | Bufs::InPlace(dst) => Memory::new(None, Some(dst), &mut []),
        Bufs::Both(src, dst) => Memory::new(Some(src), Some(dst), &mut []),
        Bufs::OwnIn(dst) => Memory::within(dst, rank * part, part, &mut []),
        Bufs::OwnOut(dst) => Memory::around(dst, rank * part, part, &mut []),
    }
}

/// Put what came into the caller's buffer; bytes of a `bool` become 0 and 1.
fn put(memory: &mut Memory<'_>, at: usize, bytes: &[u8], is_bool: bool) {
    let dst = memory.write(Slice::new(Buf::Out, at, bytes.len()));
    dst.copy_from_slice(bytes);
    if is_bool {
        kernel::normalise_bool(dst);
    }
}

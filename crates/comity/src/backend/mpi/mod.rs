//! MPI carries the data; Comity's control connections watch over the members.
//!
//! ```text
//!   a call:  every rank's header to every rank (MPI_Iallgather, 40 bytes each): do all make the same call?
//!            then, chunk by chunk:  user's buffer -> ours -> MPI_I... -> ours -> user's buffer
//! ```
//!
//! Cost: one small all_gather and two copies more than MPI's own call. In return, ranks that disagree are told before a byte
//! moves; a call ends at its limit, or when a member dies, because MPI never holds memory of the caller; and no count
//! reaches the 2^31 at which MPI's older functions end.
//!
//! A process that MPI started has its place from MPI ([`Runtime`]), and so the exchange on which rank 0 tells the others where to meet.

mod collective;
mod pair;

use super::{
    AbortHandle, Backend, Call, NewGroup, SubgroupFactory,
    external::{attend, explain_joining, wait},
};
use crate::{
    CallInfo, Error, ErrorKind, Exchange, JoinCause, JoinError, Launcher, LinkKind, MeetingPoint, Op, Result,
    engine::{Members, Patience, StepResult, Stop, Waiting},
    exchange::MAX_EXCHANGE_TEXT,
    settings::Settings,
    stats::Counters,
    status::{Header, World},
    sys::mpi::{Family, Move, Mpi, MpiHandle, Pending, find},
    view::Memory,
};
use comity_kernel as kernel;
use comity_plan::{Buf, Slice};
use std::{
    collections::VecDeque,
    fmt, io,
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Name of the function in which the ranks of a group come together, in errors.
const LIBRARY: &str = "MPI (MPI_Comm_dup)";

/// Carries out calls with MPI, on buffers that Comity owns.
#[derive(Debug)]
pub(crate) struct MpiBackend<H: MpiHandle> {
    mpi: &'static Mpi<H>,
    comm: H,
    members: Members,
    patience: Patience,
    /// Sends whose receive was not called yet, by peer.
    stash: Vec<VecDeque<(Header, Vec<u8>)>>,
    /// Buffers to use again.
    spare: Vec<Vec<u8>>,
}

impl<H: MpiHandle> MpiBackend<H> {
    /// The backend of everyone in `world`; all of them call this, and have `limit` to come together in MPI.
    pub(crate) fn open(
        mpi: &'static Mpi<H>,
        world: Arc<dyn World>,
        counters: Arc<Counters>,
        limit: Duration,
    ) -> Result<Self> {
        let ranks = (0..world.peers().len()).collect();
        let members = attend(world, ranks, 0, counters)?;
        let mut waiting = Waiting::new(members.patience(), limit, None);
        let made = together(mpi, &members, &mut waiting, move || mpi.base().and_then(|_| mpi.world()));
        let comm = made.map_err(|stop| explain_joining(&members, stop, LIBRARY, limit))?;
        Ok(Self::with(mpi, comm, members))
    }

    fn with(mpi: &'static Mpi<H>, comm: H, members: Members) -> Self {
        let stash = members.ranks.iter().map(|_| VecDeque::new()).collect();
        let patience = members.patience();
        Self { mpi, comm, members, patience, stash, spare: Vec::new() }
    }

    /// A communicator of some members. They may be made in any order on several threads of a rank, and MPI tells them apart by 15 bits only.
    /// So the members show each other, over the new one, that it is the one they mean.
    fn proven(mpi: &'static Mpi<H>, members: &Members, waiting: &mut Waiting) -> StepResult<H> {
        let group_id = members.group_id;
        let comm = subset(mpi, mpi.base()?, members.ranks.to_vec(), group_id, members, waiting)?;
        let own = group_id.to_le_bytes();
        let size = members.size();
        let mut pending = Pending::start(mpi, comm, size, &Move::AllGather, own.to_vec(), vec![0; 8 * size])?;
        // WAIT(Waiting): MPI, to the deadline of the call
        wait(members, waiting, || Ok(pending.test()?))?;
        let (_, all) = pending.finish();
        match all.chunks_exact(8).position(|c| c != own) {
            None => Ok(comm),
            Some(peer) => {
                Err(Stop::Peer(peer, "was making another group at the same time; try once more".into()))
            }
        }
    }

    fn make(mpi: &'static Mpi<H>, world: Arc<dyn World>, new: NewGroup<'_>) -> Result<Box<dyn Backend>> {
        if !mpi.is_for_many_threads() {
            let reason = "groups of some members are made beside other calls, and the program started MPI for one thread at a time: ask MPI_Init_thread for MPI_THREAD_MULTIPLE, or use split";
            return Err(ErrorKind::Unavailable { backend: "subgroup", reason: reason.into() }.into());
        }
        let members = attend(Arc::clone(&world), new.members.to_vec(), new.group_id, new.counters)?;
        let mut waiting = Waiting::new(members.patience(), new.limit, None);
        match Self::proven(mpi, &members, &mut waiting) {
            Ok(comm) => Ok(Box::new(Self::with(mpi, comm, members))),
            Err(stop) => {
                let e = members.explain(stop, CallInfo::new(Op::Split), new.limit);
                world.leave(new.group_id);
                Err(e)
            }
        }
    }

    fn size(&self) -> usize {
        self.members.size()
    }

    /// A buffer of `len` bytes, whatever they are.
    fn buffer(&mut self, len: usize) -> Vec<u8> {
        let mut buf = self.spare.pop().unwrap_or_default();
        buf.resize(len, 0);
        buf
    }

    fn keep(&mut self, bufs: impl IntoIterator<Item = Vec<u8>>) {
        self.spare.extend(bufs.into_iter().filter(|b| b.capacity() > 0));
        self.spare.truncate(8);
    }

    /// The error, after which MPI is not ended cleanly: a member that has stopped in the middle of a call cannot end it so, and
    /// `MPI_Finalize` waits for all.
    fn explain(&self, stop: Stop, info: CallInfo, limit: Duration) -> Error {
        self.mpi.spoil();
        self.members.explain(stop, info, limit)
    }

    fn start(&self, what: &Move, src: Vec<u8>, out: Vec<u8>) -> Result<Pending<H>> {
        Pending::start(self.mpi, self.comm, self.size(), what, src, out)
    }
}

impl<H: MpiHandle> Backend for MpiBackend<H> {
    fn run(&mut self, call: Call<'_>, limit: Duration) -> Result<()> {
        let info = call.whole.map_or(call.info, |whole| whole.info);
        let mut waiting = Waiting::new(self.patience, limit, None);
        self.members.status.advance();
        let out = match call.info.op {
            Op::Send | Op::Recv | Op::SendRecv => self.pair(call, &mut waiting),
            _ => self.collective(call, &mut waiting),
        };
        self.members.status.advance();
        self.patience = waiting.patience();
        out.map_err(|stop| self.explain(stop, info, limit))
    }

    fn split(&mut self, new: NewGroup<'_>) -> Result<Box<dyn Backend>> {
        let NewGroup { members, group_id, counters, limit } = new;
        let info = CallInfo::new(Op::Split);
        let mut waiting = Waiting::new(self.patience, limit, None);
        let comm = subset(self.mpi, self.comm, members.to_vec(), group_id, &self.members, &mut waiting)
            .map_err(|stop| self.explain(stop, info, limit))?;
        let ranks = self.members.world_ranks(members);
        let members = attend(self.members.world.clone(), ranks, group_id, counters)?;
        Ok(Box::new(Self::with(self.mpi, comm, members)))
    }

    fn failure(&self, call: Option<&CallInfo>) -> Option<Error> {
        self.members.failure(call)
    }

    fn abort_handle(&self) -> Option<AbortHandle> {
        Some(AbortHandle::new(&self.members))
    }

    fn subgroup_factory(&self) -> Option<SubgroupFactory> {
        let mpi = self.mpi;
        Some(SubgroupFactory::new(&self.members, Box::new(move |world, new| Self::make(mpi, world, new))))
    }

    fn links(&self) -> Vec<Option<LinkKind>> {
        (0..self.size()).map(|r| (r != self.members.rank).then_some(LinkKind::Mpi)).collect()
    }
}

impl<H: MpiHandle> Drop for MpiBackend<H> {
    fn drop(&mut self) {
        // Between calls, too.
        if self.members.status.failure().is_some() {
            self.mpi.spoil();
        }
        self.members.world.leave(self.members.group_id);
        self.mpi.free(self.comm);
    }
}

/// A communicator that a thread of its own makes: that is the one call that waits for other ranks in MPI, for as long as they take. The thread
/// is left behind when the caller gives up. If it is dropped before it is finished, it stays in MPI, which then does not end cleanly.
#[derive(Debug)]
struct CommunicatorMaker<H: MpiHandle> {
    mpi: &'static Mpi<H>,
    thread: Option<JoinHandle<Result<H>>>,
}

impl<H: MpiHandle> CommunicatorMaker<H> {
    fn start(mpi: &'static Mpi<H>, make: impl FnOnce() -> Result<H> + Send + 'static) -> Result<Self> {
        let thread = thread::Builder::new().name("comity-mpi-comm".into()).spawn(make);
        let thread = thread.map_err(|e| Error::os("starting a thread", e))?;
        Ok(Self { mpi, thread: Some(thread) })
    }

    /// Returns true if [`finish`](Self::finish) returns at once.
    fn is_done(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    fn finish(mut self) -> Result<H> {
        let lost = || Error::os("making an MPI communicator", io::Error::other("its thread panicked"));
        // WAIT: a thread that has ended: callers ask `is_done` first
        self.thread.take().and_then(|t| t.join().ok()).unwrap_or_else(|| Err(lost()))
    }
}

impl<H: MpiHandle> Drop for CommunicatorMaker<H> {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.mpi.spoil();
        }
    }
}

/// A communicator that all members make; whoever waits for one that does not come can give up.
fn together<H: MpiHandle>(
    mpi: &'static Mpi<H>,
    members: &Members,
    waiting: &mut Waiting,
    make: impl FnOnce() -> Result<H> + Send + 'static,
) -> StepResult<H> {
    let making = CommunicatorMaker::start(mpi, make)?;
    // WAIT(Waiting): MPI, to the deadline of the call
    wait(members, waiting, || Ok(making.is_done()))?;
    Ok(making.finish()?)
}

fn subset<H: MpiHandle>(
    mpi: &'static Mpi<H>,
    comm: H,
    some: Vec<usize>,
    group_id: u64,
    members: &Members,
    waiting: &mut Waiting,
) -> StepResult<H> {
    together(mpi, members, waiting, move || mpi.subset(comm, &some, group_id as u16))
}

/// Put what came into the caller's buffer; bytes of a `bool` become 0 and 1.
fn put(memory: &mut Memory<'_>, at: usize, bytes: &[u8], is_bool: bool) {
    let dst = memory.write(Slice::new(Buf::Out, at, bytes.len()));
    dst.copy_from_slice(bytes);
    if is_bool {
        kernel::normalise_bool(dst);
    }
}

const MPI_POLL: Duration = Duration::from_micros(200);

/// MPI as this process has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Runtime(Family);

impl Runtime {
    /// Load MPI and start it, unless that is done.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) when there is none, or none that can be used.
    pub(crate) fn find() -> Result<Self> {
        find().map(Self)
    }

    pub(crate) fn version(self) -> &'static str {
        match self.0 {
            Family::Pointers(m) => m.version(),
            Family::Ints(m) => m.version(),
        }
    }

    /// The configuration with MPI's ranks, and its own way to meet unless another is given.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) when the environment says another place than MPI does; [`ErrorKind::Join`](crate::ErrorKind::Join) when not all ranks come to make
    /// that in time.
    pub(crate) fn place(self, config: &Settings) -> Result<Settings> {
        let (rank, size) = match self.0 {
            Family::Pointers(m) => m.place()?,
            Family::Ints(m) => m.place()?,
        };
        let ours = (rank, size);
        let said = (config.rank, config.size);
        if config.evidence.launcher != Launcher::Alone && ours != said {
            return Err(Error::config(format!(
                "{} says rank {} of {}, but {} says rank {rank} of {size}: the MPI library is not the launcher's; COMITY_MPI names another",
                config.evidence.launcher,
                said.0,
                said.1,
                self.version()
            )));
        }
        let mut placed = Settings { rank, size, ..config.clone() };
        if !matches!(
            config.meeting_point,
            MeetingPoint::Store(_) | MeetingPoint::Host(_) | MeetingPoint::Hostfile(_)
        ) {
            let limit = config.join_timeout;
            placed.meeting_point = MeetingPoint::Exchange(match self.0 {
                Family::Pointers(m) => Arc::new(MpiExchange::new(m, rank, limit)?),
                Family::Ints(m) => Arc::new(MpiExchange::new(m, rank, limit)?),
            });
        }
        Ok(placed)
    }

    /// The backend of everyone in `world`, who have `limit` to come together.
    pub(crate) fn open(
        self,
        world: Arc<dyn World>,
        counters: Arc<Counters>,
        limit: Duration,
    ) -> Result<Box<dyn Backend>> {
        Ok(match self.0 {
            Family::Pointers(m) => Box::new(MpiBackend::open(m, world, counters, limit)?),
            Family::Ints(m) => Box::new(MpiBackend::open(m, world, counters, limit)?),
        })
    }
}

/// An exchange over MPI_Ibcast.
#[derive(Debug)]
struct MpiExchange<H: MpiHandle> {
    mpi: &'static Mpi<H>,
    comm: H,
}

impl<H: MpiHandle> MpiExchange<H> {
    fn new(mpi: &'static Mpi<H>, rank: usize, limit: Duration) -> Result<Self> {
        let until = Instant::now() + limit;
        let making = CommunicatorMaker::start(mpi, || mpi.world())?;
        while !making.is_done() {
            if Instant::now() >= until {
                return Err(Error::join(format!(
                    "rank {rank} was not joined by all other ranks in {LIBRARY} within {limit:?}; look for a rank that MPI has started and that is stopped, or does not come to Comity, or raise the limit of joining (COMITY_JOIN_TIMEOUT) if it is only slow"
                )));
            }
            // WAIT(until): telling the meeting place, to the join deadline
            thread::sleep(MPI_POLL);
        }
        Ok(Self { mpi, comm: making.finish()? })
    }
}

impl<H: MpiHandle> fmt::Display for MpiExchange<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MPI_Ibcast")
    }
}

impl<H: MpiHandle> Drop for MpiExchange<H> {
    fn drop(&mut self) {
        self.mpi.free(self.comm);
    }
}

impl<H: MpiHandle> Exchange for MpiExchange<H> {
    fn share(&self, rank: usize, size: usize, mine: Option<&str>, until: Instant) -> Result<String> {
        let mut text = mine.unwrap_or_default().as_bytes().to_vec();
        if text.len() > MAX_EXCHANGE_TEXT || (rank == 0) != mine.is_some() {
            return Err(Error::config(format!(
                "rank 0, and no other, gives a text of at most {MAX_EXCHANGE_TEXT} bytes"
            )));
        }
        // Blanks stand for the end: no text has one.
        text.resize(MAX_EXCHANGE_TEXT, b' ');
        let mut pending =
            Pending::start(self.mpi, self.comm, size, &Move::Broadcast { root: 0 }, Vec::new(), text)?;
        while !pending.test()? {
            if Instant::now() >= until {
                let why = JoinError::new(
                    "rank 0 told no place to meet over MPI_Ibcast in time; look at its own output, or raise the limit of joining (COMITY_JOIN_TIMEOUT)",
                );
                return Err(why.of([0]).because(JoinCause::Missing).into());
            }
            // WAIT(until): the meeting place, to the join deadline
            thread::sleep(MPI_POLL);
        }
        let (_, out) = pending.finish();
        let told =
            String::from_utf8(out).map_err(|_| Error::join("MPI_Ibcast brought bytes that are no text"))?;
        Ok(told.trim_end().to_owned())
    }
}

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

use super::{
    Alarm, Backend, Bufs, Call,
    company::{Company, Stop, Stopped, attend, world_ranks},
};
use crate::{
    CallInfo, Error, LinkKind, Op, Result,
    boot::World,
    engine::{Header, Patience, Wait},
    kernel,
    plan::{Buf, Slice},
    stats::Counters,
    sys::mpi::{Handle, Move, Mpi, Pending},
    view::Memory,
};
use std::{collections::VecDeque, fmt, sync::Arc, thread, time::Duration};

/// Sends kept until their receive is called, in bytes per peer.
const MAX_STASH: usize = 256 << 20;

/// See the module.
pub(crate) struct MpiBackend<H: Handle> {
    mpi: &'static Mpi<H>,
    comm: H,
    company: Company,
    patience: Patience,
    /// Sends whose receive was not called yet, by peer.
    stash: Vec<VecDeque<(Header, Vec<u8>)>>,
    /// Buffers to use again.
    spare: Vec<Vec<u8>>,
}

impl<H: Handle> fmt::Debug for MpiBackend<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MpiBackend")
            .field("rank", &self.company.rank)
            .field("mpi", &self.mpi)
            .finish_non_exhaustive()
    }
}

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
        let watch = attend(&world, &members, context, &counters)?;
        let stash = members.iter().map(|_| VecDeque::new()).collect();
        let company = Company::new(world, members, context, watch, counters);
        let patience = company.patience();
        Ok(Self { mpi, comm, company, patience, stash, spare: Vec::new() })
    }

    fn size(&self) -> usize {
        self.company.size()
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
}

impl<H: Handle> Backend for MpiBackend<H> {
    fn run(&mut self, call: Call<'_>, limit: Duration) -> Result<()> {
        let info = call.info;
        let mut wait = Wait::new(self.patience, limit);
        self.company.watch.advance();
        let out = match info.op {
            Op::Send | Op::Recv | Op::Exchange => self.pair(call, &mut wait),
            _ => self.collective(call, &mut wait),
        };
        self.company.watch.advance();
        self.patience = wait.patience();
        out.map_err(|stop| self.company.explain(stop, info, limit))
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
        let made = self.company.wait(&mut wait, || Ok(maker.is_finished()));
        if made.is_err() {
            mpi.spoil();
        }
        made.map_err(|stop| self.company.explain(stop, info, limit))?;
        let lost = || Error::Os { what: "splitting a group".into(), message: "its thread panicked".into() };
        let comm = maker.join().map_err(|_| lost())??;
        let members = world_ranks(&self.company, members);
        Ok(Box::new(Self::with(mpi, comm, self.company.world.clone(), members, context, counters)?))
    }

    fn failure(&self, call: Option<CallInfo>) -> Option<Error> {
        self.company.failure(call)
    }

    fn alarm(&self) -> Option<Alarm> {
        Some(self.company.alarm())
    }

    fn links(&self) -> Vec<Option<LinkKind>> {
        (0..self.size()).map(|r| (r != self.company.rank).then_some(LinkKind::Mpi)).collect()
    }
}

impl<H: Handle> Drop for MpiBackend<H> {
    fn drop(&mut self) {
        self.company.world.leave(self.company.context);
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

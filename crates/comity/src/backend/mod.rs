//! Backends: they carry out a group's calls.

mod average;
mod external;
mod mpi;
mod native;
mod nccl;
mod wire;

use crate::{
    CallInfo, DType, LinkKind, Op, Result, View, ViewMut,
    engine::Members,
    stats::Counters,
    status::{Failure, GroupStatus, World},
    view::{self, Memory},
};
use comity_plan::Algorithm;
use std::{
    fmt, mem,
    sync::{Arc, Weak},
    time::Duration,
};

pub(crate) use mpi::Runtime as MpiRuntime;
pub(crate) use native::NativeBackend;
pub(crate) use nccl::{NcclAlone, NcclBackend};
pub(crate) use wire::WireCalls;

/// A checked call with its buffers.
pub(crate) struct Call<'a> {
    pub(crate) info: CallInfo,
    pub(crate) bufs: Bufs<'a>,
    /// Elements per rank, where parts are unequal: of the source for all_to_all.
    pub(crate) counts: &'a [usize],
    /// For all_to_all with unequal parts: elements from each rank.
    pub(crate) recv_counts: &'a [usize],
    /// The call that this one is a part of, which is announced and named in errors in its place.
    pub(crate) whole: Option<Whole>,
}

/// A call that is made of several.
#[derive(Clone, Copy)]
pub(crate) struct Whole {
    pub(crate) info: CallInfo,
    /// Digest of the other facts that all ranks must know alike: the same for all its parts.
    pub(crate) shape: u64,
}

pub(crate) enum Bufs<'a> {
    None,
    In(View<'a>),
    Out(ViewMut<'a>),
    Both(View<'a>, ViewMut<'a>),
    /// The result replaces the contribution.
    InPlace(ViewMut<'a>),
    /// The contribution is this rank's part of the result (all_gather).
    OwnIn(ViewMut<'a>),
    /// The result replaces this rank's part of the contribution (reduce_scatter).
    OwnOut(ViewMut<'a>),
}

#[derive(Debug)]
pub(crate) struct NewGroup<'a> {
    /// In their new order, this rank among them.
    pub(crate) members: &'a [usize],
    pub(crate) group_id: u64,
    pub(crate) counters: Arc<Counters>,
    pub(crate) limit: Duration,
}

/// Carries out calls for one rank of one group. Calls come one at a time. What a backend does not say is as in a group of one.
pub(crate) trait Backend: Send + fmt::Debug {
    /// Carry out a call. After a fatal error the backend is not used again.
    fn run(&mut self, call: Call<'_>, limit: Duration) -> Result<()>;

    /// Runs as [`run`](Self::run), for a call that need not be moved: it is long. `begun` notes that the call has begun: at once, or while its
    /// first message is under way.
    fn run_noted(&mut self, call: &mut Call<'_>, limit: Duration, begun: &mut dyn FnMut()) -> Result<()> {
        begun();
        self.run(call.take(), limit)
    }

    /// The backend of a new group of two members or more, which are ranks of this group. Every member calls this, in the
    /// same order. A group of one rank is never asked.
    fn split(&mut self, _: NewGroup<'_>) -> Result<Box<dyn Backend>> {
        Ok(self.alone())
    }

    /// The backend of a new group of this rank alone.
    fn alone(&self) -> Box<dyn Backend> {
        Box::new(Single)
    }

    /// The failure that another rank or the control thread has seen, if any.
    fn failure(&self, _call: Option<&CallInfo>) -> Option<crate::Error> {
        None
    }

    /// Before this rank leaves in good order: whether all ranks have made the same calls, where no call has compared that.
    fn conclude(&mut self) -> Result<()> {
        Ok(())
    }

    /// Returns the handle that ends a call under way from another thread; `None` when no call can take long.
    fn abort_handle(&self) -> Option<AbortHandle> {
        None
    }

    /// Returns the factory for groups of some members without the others; `None` where there is none.
    fn subgroup_factory(&self) -> Option<SubgroupFactory> {
        None
    }

    /// From now on this algorithm goes before the cheapest, where it can carry out a call. Every member says the same, between the same
    /// calls. `false` where plans are not what carries out calls.
    fn prefer(&mut self, _algorithm: Option<Algorithm>) -> bool {
        false
    }

    /// The link to each rank, as far as is known before it is made; `None` for oneself.
    fn links(&self) -> Vec<Option<LinkKind>> {
        vec![None]
    }

    /// The CUDA device whose buffers it takes, besides those of host memory.
    fn device(&self) -> Option<u32> {
        None
    }
}

/// Ends calls of a group from outside them.
#[derive(Debug)]
pub(crate) struct AbortHandle {
    pub(crate) status: Arc<GroupStatus>,
    /// Not kept alive: a closed group's world may end.
    pub(crate) world: Weak<dyn World>,
    pub(crate) group_id: u64,
}

/// Makes groups of some of a group's members, outside its calls.
pub(crate) struct SubgroupFactory {
    /// Not kept alive, as in [`AbortHandle`].
    pub(crate) world: Weak<dyn World>,
    /// World ranks by rank.
    pub(crate) ranks: Arc<[usize]>,
    pub(crate) group_id: u64,
    pub(crate) make: Box<MakeBackend>,
}

/// Makes a backend of some members of a world (world ranks), all of which call it, and no others. A failure here ends no other group.
pub(crate) type MakeBackend = dyn Fn(Arc<dyn World>, NewGroup<'_>) -> Result<Box<dyn Backend>> + Send + Sync;

impl SubgroupFactory {
    pub(super) fn new(members: &Members, make: Box<MakeBackend>) -> Self {
        let world = Arc::downgrade(&members.world);
        let ranks = Arc::clone(&members.ranks);
        Self { world, ranks, group_id: members.group_id, make }
    }

    /// The backend of a group whose members are ranks of this group.
    pub(crate) fn open(&self, world: Arc<dyn World>, new: NewGroup<'_>) -> Result<Box<dyn Backend>> {
        let members: Vec<usize> = new.members.iter().map(|&m| self.ranks[m]).collect();
        (self.make)(world, NewGroup { members: &members, ..new })
    }
}

impl AbortHandle {
    pub(super) fn new(members: &Members) -> Self {
        let status = members.status.clone();
        let world = Arc::downgrade(&members.world);
        Self { status, world, group_id: members.group_id }
    }

    /// The group has failed: here, and by word to the others. Does not block.
    pub(crate) fn raise(&self, failure: Failure) {
        if self.status.failure().is_some() {
            return;
        }
        // The others first: the thread that wakes here may leave the group at once, and they would hear only that.
        if let Some(world) = self.world.upgrade() {
            world.abort(self.group_id, &failure);
        }
        self.status.fail(failure);
    }

    /// This rank leaves: its call under way ends.
    pub(crate) fn close(&self) {
        self.status.close();
    }
}

type Elements = (usize, DType);

impl Bufs<'_> {
    /// Elements of the messages that leave and come in a send, recv or sendrecv.
    fn messages(&self) -> (Option<Elements>, Option<Elements>) {
        let (src, dst) = match self {
            Self::In(s) => (Some(s), None),
            Self::Out(d) => (None, Some(d)),
            Self::Both(s, d) => (Some(s), Some(d)),
            _ => (None, None),
        };
        (src.map(|s| (s.count(), s.dtype())), dst.map(|d| (d.count(), d.dtype())))
    }

    /// The buffers; none are left.
    #[inline]
    pub(crate) fn take(&mut self) -> Self {
        mem::replace(self, Self::None)
    }
}

impl<'a> Bufs<'a> {
    /// The buffers as plans address them. This rank's own part may begin there and have so many bytes.
    #[inline]
    fn memory(self, (own, part): (usize, usize), tmp: &'a mut [u8]) -> Memory<'a> {
        match self {
            Self::None => Memory::new(None, None, tmp),
            Self::In(src) => Memory::new(Some(src), None, tmp),
            Self::Out(dst) | Self::InPlace(dst) => Memory::new(None, Some(dst), tmp),
            Self::Both(src, dst) => Memory::new(Some(src), Some(dst), tmp),
            Self::OwnIn(dst) => Memory::within(dst, own, part, tmp),
            Self::OwnOut(dst) => Memory::around(dst, own, part, tmp),
        }
    }
}

impl<'a> Call<'a> {
    pub(crate) fn new(op: Op, bufs: Bufs<'a>) -> Self {
        let mut info = CallInfo::new(op);
        let (count, dtype) = match &bufs {
            Bufs::None => (0, None),
            Bufs::In(v) | Bufs::Both(v, _) => (v.count(), Some(v.dtype())),
            Bufs::Out(v) | Bufs::InPlace(v) | Bufs::OwnIn(v) | Bufs::OwnOut(v) => {
                (v.count(), Some(v.dtype()))
            }
        };
        info.count = count;
        info.dtype = dtype;
        Self { info, bufs, counts: &[], recv_counts: &[], whole: None }
    }

    /// Returns true if its parts may differ from rank to rank, so that two ranks know in common only their own.
    pub(crate) fn is_pairwise(&self) -> bool {
        self.info.op == Op::AllToAll && !self.counts.is_empty()
    }

    /// The call, which leaves its buffers.
    pub(crate) fn take(&mut self) -> Self {
        Self { bufs: self.bufs.take(), ..*self }
    }
}

/// The backend of a group of one rank in host memory.
#[derive(Debug)]
pub(crate) struct Single;

impl Backend for Single {
    fn run(&mut self, call: Call<'_>, _: Duration) -> Result<()> {
        if let Bufs::Both(src, dst) = call.bufs {
            view::copy(src, dst);
        }
        Ok(())
    }
}

/// The backend of the last rank that is left of a job, which others may join.
#[derive(Debug)]
pub(crate) struct Lone {
    world: Arc<dyn World>,
    group_id: u64,
}

impl Lone {
    pub(crate) fn new(world: Arc<dyn World>, group_id: u64) -> Self {
        Self { world, group_id }
    }
}

impl Backend for Lone {
    fn run(&mut self, call: Call<'_>, limit: Duration) -> Result<()> {
        Single.run(call, limit)
    }

    fn subgroup_factory(&self) -> Option<SubgroupFactory> {
        let world = Arc::downgrade(&self.world);
        let ranks = [self.world.rank()].into();
        Some(SubgroupFactory { world, ranks, group_id: self.group_id, make: Box::new(NativeBackend::make) })
    }
}

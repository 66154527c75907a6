//! CUDA buffers: NCCL moves them between devices; everything else stays with Comity's own plans and links.
//!
//! ```text
//!   host buffers            plans over links, as without a GPU
//!   CUDA buffers            NCCL, in the order of the caller's stream; the ranks' calls are compared later, over the links
//!   a reduction that NCCL   to page-locked memory, over the links with Comity's kernels, and back
//!   lacks or means otherwise
//! ```
//!
//! A call on CUDA buffers returns when its work is on the stream, and asks nobody before. All ranks compare their calls every [`COMPARED`]
//! calls, in a barrier, when the group closes, and when a call is still on its way after [`LATE`](guard::LATE). A call whose parts differ from
//! rank to rank is compared before it is made: no rank knows the others' parts later.
//!
//! A thread of the group looks after work that is not done yet: when a member dies, or the call's limit passes, it aborts the communicator,
//! so no stream waits for ever; the next call says why.
//! The communicator is made with the group, one per device and group; its id travels over the group's own authenticated links.
#![allow(unsafe_code, reason = "addresses of device memory that views promise")]

mod guard;
mod parts;

use super::{
    AbortHandle, Backend, Bufs, Call, NativeBackend, NewGroup, Single, SubgroupFactory,
    external::explain_joining,
};
use crate::{
    CallInfo, DType, Error, ErrorKind, LinkKind, Op, Place, Result, View, ViewMut,
    engine::{Members, Patience, StepResult, Stop, Waiting},
    status::World,
    sys::{
        cuda::{CudaContext, CudaDriver, StreamId},
        nccl,
    },
};
use guard::DeviceComm;
use parts::UnmatchedSend;
use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

/// Mark of calls on device memory, as against calls on host memory, which travel another way.
const ON_DEVICE: u64 = 0x6375_6461;
/// Calls between two comparisons, which share its cost: far fewer than the ledger keeps.
const COMPARED: u64 = 32;
/// Name of the function in which the ranks of a group come together, in errors.
const LIBRARY: &str = "NCCL (ncclCommInitRankConfig; NCCL_DEBUG=INFO shows more)";
/// Length of a rank's announcement before NCCL is used, in bytes: whether it is able, and its device's UUID.
const ABLE: usize = 1 + 16;

/// Carries out calls on CUDA buffers with NCCL, and the others over links.
#[derive(Debug)]
pub(crate) struct NcclBackend {
    native: NativeBackend,
    members: Members,
    patience: Patience,
    device_comm: DeviceComm,
    /// Sends that came before their receive, by peer.
    stash: Vec<VecDeque<UnmatchedSend>>,
    /// A call was made since the ranks last compared theirs.
    is_behind: bool,
}

/// Device and stream of a call on device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Spot {
    device: u32,
    stream: StreamId,
}

impl NcclBackend {
    /// Around the group's own links, for buffers on `device`. All members call this.
    pub(crate) fn open(mut native: NativeBackend, device: Result<u32>, limit: Duration) -> Result<Self> {
        let members = native.members().clone();
        let patience = members.patience();
        let mut waiting = Waiting::new(patience, limit, None);
        let device_comm = Self::join(&members, &mut native, device, Instant::now() + limit, &mut waiting);
        let device_comm = device_comm.map_err(|stop| explain_joining(&members, stop, LIBRARY, limit))?;
        let stash = (0..members.size()).map(|_| VecDeque::new()).collect();
        Ok(Self { native, members, patience, device_comm, stash, is_behind: false })
    }

    /// Opens as [`open`](Self::open), for a group that comes of another; its members have to meet by `until`.
    fn around(native: NativeBackend, device: u32, until: Instant) -> Result<Box<dyn Backend>> {
        Ok(Box::new(Self::open(native, Ok(device), until.saturating_duration_since(Instant::now()))?))
    }

    /// The device of a rank that is told none: by its number on its host, among those that CUDA_VISIBLE_DEVICES leaves.
    pub(crate) fn device_of(world: &dyn World) -> Result<u32> {
        let host = world.hosts().get(world.rank());
        let before = world.hosts().iter().take(world.rank()).filter(|h| Some(*h) == host).count();
        let n = CudaDriver::find()?.devices()?.max(1);
        Ok(before as u32 % n)
    }

    fn on_device(&mut self, call: Call<'_>, spot: Spot, limit: Duration) -> Result<()> {
        let info = call.info;
        let until = Instant::now() + limit;
        let mut waiting = Waiting::new(self.patience, limit, None);
        let out = match info.op {
            Op::Send | Op::Recv | Op::SendRecv => self.pair(call, spot, until, &mut waiting),
            _ => self.collective(call, spot, until, &mut waiting),
        };
        self.patience = waiting.patience();
        out.map_err(|stop| self.members.explain(stop, info, limit))
    }

    fn collective(
        &mut self,
        call: Call<'_>,
        spot: Spot,
        until: Instant,
        waiting: &mut Waiting,
    ) -> StepResult<()> {
        let info = call.info;
        self.note(&call, until).map_err(Stop::Told)?;
        let native = match (info.dtype, info.reduce) {
            (Some(d), Some(r)) => nccl::native(d, r).is_some(),
            _ => true,
        };
        if !native {
            return self.over_host(call, spot, until, waiting);
        }
        let work = parts::of(&call, self.members.rank, self.members.size(), &self.device_comm, spot)?;
        self.members.counters.add_sent(work.bytes as u64);
        self.device_comm.put(&work, spot, (info, (until, waiting.limit())))
    }

    /// Record the call, and compare it with the other ranks' now if it is time.
    fn note(&mut self, call: &Call<'_>, until: Instant) -> Result<()> {
        let is_due = call.info.seq.is_multiple_of(COMPARED);
        if !is_due && !call.is_pairwise() {
            self.native.note(call, ON_DEVICE);
            self.is_behind = true;
            return Ok(());
        }
        let left = until.saturating_duration_since(Instant::now());
        self.native.agree(call, ON_DEVICE, left)?;
        if is_due {
            self.compare(call.info.seq, until)?;
        }
        Ok(())
    }

    /// Compare all calls up to number `seq`, which all ranks have come to.
    fn compare(&mut self, seq: u64, until: Instant) -> Result<()> {
        self.is_behind = false;
        self.native.compare(seq, until.saturating_duration_since(Instant::now()))
    }

    fn join(
        members: &Members,
        native: &mut NativeBackend,
        device: Result<u32>,
        until: Instant,
        waiting: &mut Waiting,
    ) -> StepResult<DeviceComm> {
        let mut made = device.and_then(guard::open);
        // Whether all ranks can is asked before the id is told, so that none waits for one that cannot.
        let mut id = [0u8; 128];
        if members.rank == 0
            && let Ok((_, lib)) = &made
        {
            match lib.unique_id() {
                Ok(u) => id = u.0,
                Err(e) => made = Err(e),
            }
        }
        let left = |u: Instant| u.saturating_duration_since(Instant::now());
        // Whether this rank can, and with which device.
        let mut own = [0u8; ABLE];
        match made.as_ref().map_err(Clone::clone).and_then(|(d, _)| d.uuid()) {
            Ok(uuid) => {
                own[0] = 1;
                own[1..].copy_from_slice(&uuid);
            }
            Err(e) => made = Err(e),
        }
        let mut all = vec![0u8; ABLE * members.size()];
        let tell = Call::new(Op::AllGather, Bufs::Both((&own).into(), all.as_mut_slice().into()));
        native.run(tell, left(until)).map_err(Stop::Told)?;
        let (device, lib) = made.map_err(Stop::Own)?;
        let unavailable = |reason| Stop::Own(ErrorKind::Unavailable { backend: "nccl", reason }.into());
        let all = all.as_chunks::<ABLE>().0;
        if let Some(peer) = all.iter().position(|a| a[0] == 0) {
            return Err(unavailable(format!(
                "rank {peer} has no NCCL or no such device; its own error says which"
            )));
        }
        if let Some((a, b)) = twice(all) {
            return Err(unavailable(format!(
                "ranks {a} and {b} would share a device ({} is rank {}'s), and NCCL takes one rank per device: start no more ranks on a host than it has devices, or give each rank its own with CUDA_VISIBLE_DEVICES",
                device.name(),
                members.rank
            )));
        }
        let mut tell = Call::new(Op::Broadcast, Bufs::InPlace((&mut id).into()));
        tell.info.root = Some(0);
        native.run(tell, left(until)).map_err(Stop::Told)?;
        DeviceComm::join(members, device, lib, nccl::UniqueId(id), waiting)
    }

    /// A reduction that NCCL has not: over page-locked memory and the links.
    fn over_host(
        &mut self,
        call: Call<'_>,
        spot: Spot,
        until: Instant,
        waiting: &mut Waiting,
    ) -> StepResult<()> {
        let device_comm = &self.device_comm;
        let (src, dst) = parts::ends(&call.bufs);
        let mut held_src = src.map(|(_, len)| device_comm.device.pinned(len)).transpose()?;
        let mut held_dst = dst.map(|(_, len)| device_comm.device.pinned(len)).transpose()?;
        let in_place = src.is_none() || dst.is_none();
        for (held, (at, len)) in held_src.iter().zip(src).chain(held_dst.iter().zip(dst).filter(|_| in_place))
        {
            // SAFETY: the view promises the device's side, this rank owns the host's; both stay until the mark below is passed.
            unsafe { device_comm.device.copy(held.addr(), at, len, spot.stream)? };
        }
        device_comm.until_passed(&self.members, spot.stream, waiting)?;
        let dtype = call.info.dtype.unwrap_or(DType::U8);
        let left = until.saturating_duration_since(Instant::now());
        let mut copy = Call {
            info: call.info,
            bufs: Bufs::None,
            counts: call.counts,
            recv_counts: call.recv_counts,
            whole: self.native.known(call.info.seq),
        };
        let count = |len: usize| len / dtype.size();
        let s = held_src.as_mut().map(|p| p.bytes());
        let d = held_dst.as_mut().map(|p| p.bytes());
        // SAFETY: page-locked memory of this call's, in elements of the type that was copied there.
        let view = |b: &[u8]| unsafe { View::from_raw(b.as_ptr(), count(b.len()), dtype, Place::Host) };
        // SAFETY: as above.
        let view_mut =
            |b: &mut [u8]| unsafe { ViewMut::from_raw(b.as_mut_ptr(), count(b.len()), dtype, Place::Host) };
        copy.bufs = match (&call.bufs, s, d) {
            (Bufs::Both(..), Some(s), Some(d)) => Bufs::Both(view(s), view_mut(d)),
            (Bufs::InPlace(_), _, Some(d)) => Bufs::InPlace(view_mut(d)),
            (Bufs::OwnOut(_), _, Some(d)) => Bufs::OwnOut(view_mut(d)),
            _ => Bufs::None,
        };
        self.native.run(copy, left).map_err(Stop::Told)?;
        if let (Some(held), Some((at, len))) = (&held_dst, dst) {
            // SAFETY: as on the way here.
            unsafe { device_comm.device.copy(at, held.addr(), len, spot.stream)? };
            device_comm.until_passed(&self.members, spot.stream, waiting)?;
        }
        Ok(())
    }
}

/// Two ranks that say the same of their devices.
fn twice(all: &[[u8; ABLE]]) -> Option<(usize, usize)> {
    let mut pairs = all
        .iter()
        .enumerate()
        .flat_map(|(b, x)| all[..b].iter().enumerate().map(move |(a, y)| (a, b, x == y)));
    pairs.find(|p| p.2).map(|(a, b, _)| (a, b))
}

/// The place that all buffers of a call share; the group has checked that they do.
fn spot(bufs: &Bufs<'_>) -> Option<Spot> {
    let place = match bufs {
        Bufs::None => return None,
        Bufs::In(v) | Bufs::Both(v, _) => v.place(),
        Bufs::Out(v) | Bufs::InPlace(v) | Bufs::OwnIn(v) | Bufs::OwnOut(v) => v.place(),
    };
    place.device().map(|(device, stream)| Spot { device, stream })
}

impl Backend for NcclBackend {
    fn run(&mut self, mut call: Call<'_>, limit: Duration) -> Result<()> {
        self.run_noted(&mut call, limit, &mut || ())
    }

    fn run_noted(&mut self, call: &mut Call<'_>, limit: Duration, begun: &mut dyn FnMut()) -> Result<()> {
        match spot(&call.bufs) {
            None if call.info.op == Op::Barrier && self.is_behind => {
                let until = Instant::now() + limit;
                let seq = call.info.seq;
                self.native.run_noted(call, limit, begun)?;
                self.compare(seq, until)
            }
            None => self.native.run_noted(call, limit, begun),
            Some(spot) => {
                begun();
                self.on_device(call.take(), spot, limit)
            }
        }
    }

    fn split(&mut self, new: NewGroup<'_>) -> Result<Box<dyn Backend>> {
        let until = Instant::now() + new.limit;
        Self::around(self.native.part(new)?, self.device_comm.device.ordinal, until)
    }

    fn alone(&self) -> Box<dyn Backend> {
        Box::new(NcclAlone(self.device_comm.device))
    }

    fn conclude(&mut self) -> Result<()> {
        self.native.conclude()
    }

    fn failure(&self, call: Option<&CallInfo>) -> Option<Error> {
        self.native.failure(call)
    }

    fn abort_handle(&self) -> Option<AbortHandle> {
        self.native.abort_handle()
    }

    fn subgroup_factory(&self) -> Option<SubgroupFactory> {
        let device = self.device_comm.device.ordinal;
        // Each member on the device that it has.
        let make = move |world: Arc<dyn World>, new: NewGroup<'_>| {
            let until = Instant::now() + new.limit;
            let native = NativeBackend::open(world, new, None)?;
            Self::around(native, device, until)
        };
        Some(SubgroupFactory::new(self.native.members(), Box::new(make)))
    }

    fn links(&self) -> Vec<Option<LinkKind>> {
        self.native.links()
    }

    fn device(&self) -> Option<u32> {
        Some(self.device_comm.device.ordinal)
    }
}

/// The backend of a group of one rank with a CUDA device: every call copies within it, in the order of the caller's stream, or does nothing.
#[derive(Debug)]
pub(crate) struct NcclAlone(CudaContext);

impl NcclAlone {
    /// Around this device; NCCL itself is not needed.
    pub(crate) fn open(device: u32) -> Result<Self> {
        Ok(Self(CudaContext::open(device)?))
    }
}

impl Backend for NcclAlone {
    fn run(&mut self, call: Call<'_>, limit: Duration) -> Result<()> {
        let Some(spot) = spot(&call.bufs) else { return Single.run(call, limit) };
        if let (Some((from, len)), Some((to, room))) = parts::ends(&call.bufs)
            && from != to
        {
            // SAFETY: the views promise so many bytes of the device until its stream has come past the call.
            unsafe { self.0.copy(to, from, len.min(room), spot.stream)? };
        }
        Ok(())
    }

    fn alone(&self) -> Box<dyn Backend> {
        Box::new(Self(self.0))
    }

    fn device(&self) -> Option<u32> {
        Some(self.0.ordinal)
    }
}

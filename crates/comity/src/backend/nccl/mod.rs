//! CUDA buffers: NCCL moves them between devices; everything else stays with Comity's own plans and links.
//!
//! ```text
//!   host buffers            plans over links, as without a GPU
//!   CUDA buffers            headers of all ranks compared over the links; then NCCL, in the order of the caller's stream
//!   a reduction that NCCL   to page-locked memory, over the links with Comity's kernels, and back
//!   lacks or means otherwise
//! ```
//!
//! A call on CUDA buffers returns when its work is on the stream. A thread of the group looks after work that is not done yet: when a
//! member dies, or the call's limit passes, it aborts the communicator, so no stream waits for ever; the next call says why.
//! The communicator is made with the group, one per device and group; its id travels over the group's own authenticated links.

mod alone;
mod guard;
mod lane;
mod pair;
mod parts;

use super::{Alarm, Backend, Bufs, Call, Door, Fabric, Maker, external::explain_joining};
use crate::{
    CallInfo, DType, Error, LinkKind, Op, Place, Result, View, ViewMut,
    engine::{Members, Patience, Stop, Stopped, Waiting},
    stats::Counters,
    status::World,
    sys::{
        cuda::{Cuda, StreamId},
        nccl,
    },
};
pub(crate) use alone::NcclAlone;
use lane::Lane;
use pair::Announced;
use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

/// What tells calls on device memory from calls on host memory, which travel another way.
const ON_DEVICE: u64 = 0x6375_6461;
/// Where the ranks of a group come together in NCCL, in errors.
const LIBRARY: &str = "NCCL (ncclCommInitRankConfig; NCCL_DEBUG=INFO shows more)";
/// What a rank says of itself before NCCL is asked for anything: whether it can, and its device's UUID.
const ABLE: usize = 1 + 16;

/// See the module.
#[derive(Debug)]
pub(crate) struct NcclBackend {
    fabric: Fabric,
    members: Members,
    patience: Patience,
    lane: Lane,
    /// Sends that came before their receive, by peer.
    stash: Vec<VecDeque<Announced>>,
}

/// Where and when the bytes of a call on device memory move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Spot {
    device: u32,
    stream: StreamId,
}

impl NcclBackend {
    /// Around the group's own links, for buffers on `device`. All members call this.
    pub(crate) fn open(mut fabric: Fabric, device: Result<u32>, limit: Duration) -> Result<Self> {
        let members = fabric.members().clone();
        let patience = members.patience();
        let mut waiting = Waiting::new(patience, limit, None);
        let lane = Self::join(&members, &mut fabric, device, Instant::now() + limit, &mut waiting);
        let lane = lane.map_err(|stop| explain_joining(&members, stop, LIBRARY, limit))?;
        let stash = (0..members.size()).map(|_| VecDeque::new()).collect();
        Ok(Self { fabric, members, patience, lane, stash })
    }

    /// The device of a rank that is told none: by its number on its host, among those that CUDA_VISIBLE_DEVICES leaves.
    pub(crate) fn device_of(world: &dyn World) -> Result<u32> {
        let host = world.hosts().get(world.rank());
        let before = world.hosts().iter().take(world.rank()).filter(|h| Some(*h) == host).count();
        let n = Cuda::find()?.devices()?.max(1);
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
    ) -> Stopped<()> {
        let info = call.info;
        let left = until.saturating_duration_since(Instant::now());
        self.fabric.agree(&call, ON_DEVICE, left).map_err(Stop::Told)?;
        let native = match (info.dtype, info.reduce) {
            (Some(d), Some(r)) => nccl::native(d, r).is_some(),
            _ => true,
        };
        if !native {
            return self.over_host(call, spot, until, waiting);
        }
        let work = parts::of(&call, self.members.rank, self.members.size(), &self.lane, spot)?;
        self.members.counters.add_sent(work.bytes as u64);
        self.lane.put(&work, spot, (info, until))
    }

    /// Make the communicator, with the others.
    fn join(
        members: &Members,
        fabric: &mut Fabric,
        device: Result<u32>,
        until: Instant,
        waiting: &mut Waiting,
    ) -> Stopped<Lane> {
        let mut made = device.and_then(lane::open);
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
        fabric.run(tell, left(until)).map_err(Stop::Told)?;
        let (device, lib) = made.map_err(Stop::Own)?;
        let unavailable = |reason| Stop::Own(Error::Unavailable { backend: "nccl", reason });
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
        fabric.run(tell, left(until)).map_err(Stop::Told)?;
        Lane::join(members, device, lib, nccl::UniqueId(id), waiting)
    }

    /// A reduction that NCCL has not: over page-locked memory and the links.
    fn over_host(
        &mut self,
        call: Call<'_>,
        spot: Spot,
        until: Instant,
        waiting: &mut Waiting,
    ) -> Stopped<()> {
        let lane = &self.lane;
        let (src, dst) = parts::ends(&call.bufs);
        let mut held_src = src.map(|(_, len)| lane.device.pinned(len)).transpose()?;
        let mut held_dst = dst.map(|(_, len)| lane.device.pinned(len)).transpose()?;
        let in_place = src.is_none() || dst.is_none();
        for (held, (at, len)) in held_src.iter().zip(src).chain(held_dst.iter().zip(dst).filter(|_| in_place))
        {
            // SAFETY: the view promises the device's side, this rank owns the host's; both stay until the mark below is passed.
            unsafe { lane.device.copy(held.addr(), at, len, spot.stream)? };
        }
        lane.until_passed(&self.members, spot.stream, waiting)?;
        let (dtype, left) =
            (call.info.dtype.unwrap_or(DType::U8), until.saturating_duration_since(Instant::now()));
        let mut copy =
            Call { info: call.info, bufs: Bufs::None, counts: call.counts, recv_counts: call.recv_counts };
        let count = |len: usize| len / dtype.size();
        let (s, d) = (held_src.as_mut().map(|p| p.bytes()), held_dst.as_mut().map(|p| p.bytes()));
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
        self.fabric.run(copy, left).map_err(Stop::Told)?;
        if let (Some(held), Some((at, len))) = (&held_dst, dst) {
            // SAFETY: as on the way here.
            unsafe { lane.device.copy(at, held.addr(), len, spot.stream)? };
            lane.until_passed(&self.members, spot.stream, waiting)?;
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
    match place {
        Place::Cuda { device, stream } => Some(Spot { device, stream }),
        Place::Host => None,
    }
}

/// Makes groups of some members, each on the device that it has.
#[derive(Debug)]
struct OnDevice(u32);

impl Maker for OnDevice {
    fn make(
        &self,
        world: Arc<dyn World>,
        members: Vec<usize>,
        context: u64,
        counters: Arc<Counters>,
        limit: Duration,
    ) -> Result<Box<dyn Backend>> {
        let until = Instant::now() + limit;
        let fabric = Fabric::open(world, members, context, counters, until)?;
        let left = until.saturating_duration_since(Instant::now());
        Ok(Box::new(NcclBackend::open(fabric, Ok(self.0), left)?))
    }
}

impl Backend for NcclBackend {
    fn run(&mut self, call: Call<'_>, limit: Duration) -> Result<()> {
        match spot(&call.bufs) {
            None => self.fabric.run(call, limit),
            Some(spot) => self.on_device(call, spot, limit),
        }
    }

    fn split(
        &mut self,
        members: &[usize],
        context: u64,
        counters: Arc<Counters>,
        limit: Duration,
    ) -> Result<Box<dyn Backend>> {
        let until = Instant::now() + limit;
        let fabric = self.fabric.part(members, context, counters, limit)?;
        let left = until.saturating_duration_since(Instant::now());
        Ok(Box::new(Self::open(fabric, Ok(self.lane.device.ordinal), left)?))
    }

    fn alone(&self) -> Box<dyn Backend> {
        Box::new(NcclAlone(self.lane.device))
    }

    fn failure(&self, call: Option<CallInfo>) -> Option<Error> {
        self.fabric.failure(call)
    }

    fn alarm(&self) -> Option<Alarm> {
        self.fabric.alarm()
    }

    fn door(&self) -> Option<Door> {
        let maker = Box::new(OnDevice(self.lane.device.ordinal));
        self.fabric.door().map(|door| Door { maker, ..door })
    }

    fn links(&self) -> Vec<Option<LinkKind>> {
        self.fabric.links()
    }

    fn device(&self) -> Option<u32> {
        Some(self.lane.device.ordinal)
    }
}

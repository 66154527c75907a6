//! Plans over links: the backend that needs nothing but memory and sockets.

mod kept;
mod lent;
mod pair;
#[cfg(all(test, not(loom)))]
mod tests;

use super::{AbortHandle, Backend, Bufs, Call, NewGroup, SubgroupFactory, Whole, average};
use crate::{
    CallInfo, DType, Error, ErrorKind, LinkKind, Op, ReduceOp, Result,
    engine::{Direction, Engine, Members, ShortHeaders, Task},
    stats::Counters,
    status::{GroupStatus, Header, World},
    transport::Link,
    view::Memory,
};
use comity_plan::{Algorithm, HostLink, Kind, Topology};
use kept::{Carried, KEPT, KeptSchedule, ScheduleKey, fingerprint};
use lent::InOnePiece;
use pair::{PairSchedule, Route};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Carries out calls by Comity's own plans over links.
#[derive(Debug)]
pub(crate) struct NativeBackend {
    engine: Engine,
    topology: Topology,
    /// Goes before all else where it can carry out the operation.
    prefer: Option<Algorithm>,
    #[expect(clippy::vec_box, reason = "they change places from call to call")]
    kept: Vec<Box<KeptSchedule>>,
    in_one_piece: InOnePiece,
    routes: Vec<(Route, PairSchedule)>,
    scratch: Vec<u8>,
}

impl NativeBackend {
    pub(crate) fn members(&self) -> &Members {
        self.engine.members()
    }

    /// Nothing moves, but all ranks say what they call, and are told if it differs. `also` must be the same on all.
    pub(crate) fn agree(&mut self, call: &Call<'_>, also: u64, limit: Duration) -> Result<()> {
        let in_place = false;
        let in_one_piece = false;
        let shift = None;
        let key =
            ScheduleKey { kind: Kind::Barrier, count: 0, elem: 1, root: 0, in_place, shift, in_one_piece };
        let none = Call::new(Op::Barrier, Bufs::None);
        let mut kept = match self.kept.iter().rposition(|k| k.key == key) {
            Some(i) => self.kept.remove(i),
            None => self.prepare(key, &none).into(),
        };
        let common = self.common(call, also);
        let pairwise = call.is_pairwise();
        let headers =
            Headers { common: &common, pairwise, counts: call.counts, recv_counts: call.recv_counts };
        let header = |direction, peer| headers.of(direction, peer);
        let task = Task::of(&call.info, &header, Some(&common), limit);
        let nothing = &mut Memory::new(None, None, &mut []);
        let out = self.engine.run(&mut kept.schedule, nothing, &task, &mut || ());
        if out.is_ok() {
            kept.schedule.reset();
            if self.kept.len() == KEPT {
                self.kept.remove(0);
            }
            self.kept.push(kept);
        }
        out
    }

    /// Record a call that another library carries, to be compared with the other ranks' later. `also` as in [`agree`](Self::agree).
    pub(crate) fn note(&self, call: &Call<'_>, also: u64) {
        let members = self.members();
        members.status.ledger().record(&self.common(call, also));
        members.settle();
    }

    /// Returns call number `seq`, the last one, as this rank has made it known: parts of it that are made now go under its name.
    ///
    /// A rank that waits in a part tells others which call it is in. One that has only made the call known holds that against its record,
    /// so a part of another name would be told as a difference.
    pub(crate) fn known(&self, seq: u64) -> Option<Whole> {
        let Header { info, shape, .. } = self.members().status.ledger().call(seq)?;
        Some(Whole { info, shape: shape ^ self.preference() })
    }

    /// Compare all calls up to number `seq`, which is the last one and known on all ranks.
    pub(crate) fn compare(&mut self, seq: u64, limit: Duration) -> Result<()> {
        let Some(own) = self.members().status.ledger().digest(seq).1 else { return Ok(()) };
        let own = [own];
        let mut all = vec![0u64; self.members().size()];
        let mut tell = Call::new(Op::AllGather, Bufs::Both((&own).into(), all.as_mut_slice().into()));
        tell.info.seq = seq;
        tell.whole = self.known(seq);
        self.run(tell, limit)?;
        match all.iter().position(|theirs| *theirs != own[0]) {
            Some(rank) => Err(self.members().differs(rank)),
            None => Ok(()),
        }
    }

    /// Digest of the algorithm that the user prefers, which all ranks must.
    fn preference(&self) -> u64 {
        self.prefer.map_or(0, |algorithm| fingerprint(algorithm, 0, &[]))
    }

    /// Returns the header by which all ranks know a call, made by a schedule of this shape.
    fn announcement(&self, call: &Call<'_>, shape: u64) -> Header {
        let shape = call.whole.map_or(shape, |whole| whole.shape ^ self.preference());
        let info = call.whole.map_or(call.info, |whole| whole.info);
        Header { info, shape, group_id: self.members().group_id as u32, lends: false }
    }

    /// Returns the header of a call of which nothing moves over the links.
    fn common(&self, call: &Call<'_>, also: u64) -> Header {
        let mut info = call.info;
        let mut shape = also ^ fingerprint(Algorithm::Direct, 0, call.counts);
        if call.is_pairwise() {
            info.count = 0;
            shape = 0;
        }
        Header { info, shape, group_id: self.members().group_id as u32, lends: false }
    }

    /// Makes a group of some members, as [`MakeBackend`](super::MakeBackend).
    pub(super) fn make(world: Arc<dyn World>, new: NewGroup<'_>) -> Result<Box<dyn Backend>> {
        Ok(Box::new(Self::open(world, new, None)?))
    }

    /// Splits as [`Backend::split`], and returns the backend itself.
    pub(crate) fn part(&mut self, new: NewGroup<'_>) -> Result<Self> {
        let Members { world, status, .. } = self.members();
        let ranks = self.members().world_ranks(new.members);
        Self::open(world.clone(), NewGroup { members: &ranks, ..new }, Some(status))
            // The group that is split may have failed: then that is the reason.
            .map_err(|e| self.failure(Some(&CallInfo::new(Op::Split))).unwrap_or(e))
    }

    /// The backend of the group of everyone in `world`.
    pub(crate) fn open_all(
        world: Arc<dyn World>,
        group_id: u64,
        counters: Arc<Counters>,
        limit: Duration,
    ) -> Result<Self> {
        let members: Vec<usize> = (0..world.peers().len()).collect();
        Self::open(world, NewGroup { members: &members, group_id, counters, limit }, None)
    }

    /// The backend of the group of some world ranks, all of which call this; `above` is the status of the group that they are split from.
    pub(super) fn open(
        world: Arc<dyn World>,
        NewGroup { members, group_id, counters, limit }: NewGroup<'_>,
        above: Option<&Arc<GroupStatus>>,
    ) -> Result<Self> {
        let until = Instant::now() + limit;
        let status = Arc::new(
            GroupStatus::new(members.len(), counters.clone())
                .map_err(|e| Error::os("making an event descriptor", e))?,
        );
        if let Some(above) = above {
            status.split_from(above);
        }
        let links = world.open(group_id, members, &status, until)?;
        // All ranks must choose alike: from what all know, not from what this one measured.
        let host: Vec<usize> = members.iter().map(|&m| world.hosts().get(m).copied().unwrap_or(0)).collect();
        let prefer = world.prefers();
        let topology = topology(&*world, host, members);
        let members = Members::new(world, members.to_vec(), group_id, status, counters);
        let engine = Engine::new(members, links);
        let kept = Vec::new();
        let routes = Vec::new();
        let scratch = Vec::new();
        let in_one_piece = InOnePiece::default();
        Ok(Self { engine, topology, prefer, kept, in_one_piece, routes, scratch })
    }

    fn collective(
        &mut self,
        kind: Kind,
        call: &mut Call<'_>,
        mut limit: Duration,
        begun: &mut dyn FnMut(),
    ) -> Result<()> {
        let mut divides = self.schedule(kind, call);
        if self.lacks_lanes() {
            limit = self.open_lanes(call, limit, begun)?;
            divides = self.schedule(kind, call);
        }
        let info = &call.info;
        let Some(kept) = self.kept.last() else { return Err(ErrorKind::Closed.into()) };
        let ScheduleKey { elem, root, .. } = kept.key;
        let mut common = self.announcement(call, kept.shape);
        let told = common.info;
        let rank = self.members().rank;
        let plain = call.counts.is_empty();
        let part = info.count * elem;
        let Some(kept) = self.kept.last_mut() else { return Err(ErrorKind::Closed.into()) };
        let pairwise = kind == Kind::AllToAll && !plain && call.whole.is_none();
        let asked = kept.lends.is_some();
        let lends = kept.lends == Some(true);
        if pairwise {
            // With parts that differ by pair nobody knows the others' totals.
            common.shape = 0;
            common.info.count = 0;
        }
        let headers =
            Headers { common: &common, pairwise, counts: call.counts, recv_counts: call.recv_counts };
        // The hint is no part of the call, which all ranks know alike.
        let header = |direction, peer| Header { lends, ..headers.of(direction, peer) };
        let short = kept.short.then(|| {
            let header = common.encode();
            ShortHeaders { out: header, into: header }
        });
        let before = if asked { self.engine.lent() } else { 0 };
        let tmp = kept.carried.as_ref().map_or(0, Carried::tmp).max(kept.schedule.tmp());
        if self.scratch.len() < tmp {
            self.scratch.resize(tmp, 0);
        }
        let tmp = &mut self.scratch[..tmp];
        let mut divided = Vec::new();
        let size = self.engine.members().size();
        let mut memory = call.bufs.take().memory((rank * part, part), tmp);
        if divides {
            average::divide_input(&mut memory, &mut divided, size);
        }
        let reduce = info.reduce.filter(|_| !divides).unwrap_or(ReduceOp::Sum);
        let short = short.as_ref();
        let pulls = kept.pulls;
        let lanes = kept.carried.as_ref().and_then(|c| c.call(kind, info, reduce, (rank, elem)));
        let phases = kept.carried.as_mut().map_or(&mut [][..], |c| &mut c.phases);
        let since = (!phases.is_empty()).then(Instant::now);
        let call = Some(&common);
        let dtype = info.dtype.unwrap_or(DType::U8);
        let task =
            Task { info: &told, dtype, reduce, header: &header, call, plain, limit, pulls, short, lanes };
        let out = match since {
            None => self.engine.run(&mut kept.schedule, &mut memory, &task, begun),
            Some(since) => {
                let headers = Task { lanes: None, ..task };
                let heard = self.engine.run(&mut kept.schedule, &mut memory, &headers, begun);
                heard.and_then(|()| self.engine.run_phases(phases, &mut memory, &task, since))
            }
        };
        if let Err(e) = out {
            // In the middle of a call that failed: of no use for another.
            self.kept.pop();
            return Err(e);
        }
        if divides && (kind != Kind::Reduce || root == rank) {
            average::divide_after(memory.output(), size);
        }
        if !plain {
            // Of unequal parts: of no use for another.
            self.kept.pop();
            return Ok(());
        }
        kept.schedule.reset();
        if asked {
            self.learn(before, lends);
        }
        Ok(())
    }
}

impl NativeBackend {
    /// Have the schedule of `call` stand last. Whether each contribution is divided before it is added: an average of `f16` by a schedule
    /// that stores partial sums. What is divided lies apart from the output.
    ///
    /// The key stays here: a core waits when it copies in wide words what it has just written in narrow ones.
    #[inline]
    fn schedule(&mut self, kind: Kind, call: &Call<'_>) -> bool {
        let key = self.key(kind, call);
        self.come_last(&key, call);
        let stores = self.kept.last().is_some_and(|kept| !kept.adds_at_once);
        let divides = stores && average::is_of_halves(&call.info);
        if divides {
            self.schedule_divided(&key, call);
        }
        divides
    }

    #[cold]
    fn schedule_divided(&mut self, key: &ScheduleKey, call: &Call<'_>) {
        if !call.counts.is_empty() {
            // Of unequal parts: of no use for another.
            self.kept.pop();
        }
        self.come_last(&ScheduleKey { in_place: false, shift: None, ..*key }, call);
    }

    /// Returns true if the schedule that stands last is one for lanes, and nobody knows yet whether all ranks can use them.
    #[inline]
    fn lacks_lanes(&self) -> bool {
        self.kept.last().is_some_and(|kept| kept.carried.is_some()) && self.engine.has_lanes().is_none()
    }

    /// Find out whether all ranks can use lanes, as a part of `call`, of which the schedule stands last: it is to be made anew then. How
    /// long the call may still take.
    #[cold]
    fn open_lanes(
        &mut self,
        call: &mut Call<'_>,
        limit: Duration,
        begun: &mut dyn FnMut(),
    ) -> Result<Duration> {
        let since = Instant::now();
        let Some(mut kept) = self.kept.pop() else { return Ok(limit) };
        let common = self.announcement(call, kept.shape);
        // What follows goes under this name too, by whatever plan.
        call.whole = Some(Whole { info: common.info, shape: common.shape ^ self.preference() });
        let header = |_, _| common;
        let task = Task::of(&common.info, &header, Some(&common), limit);
        let mates = kept.carried.as_ref().map_or(&[][..], |c| &c.mates);
        self.engine.open_lanes((self.topology.lanes.most(), mates), &mut kept.schedule, &task, begun)?;
        Ok(limit.saturating_sub(since.elapsed()))
    }

    /// The last of the kept schedules has done a call, before which `before` bytes had been lent; this rank's header said that its
    /// messages `were_lent` the time before.
    fn learn(&mut self, before: u64, were_lent: bool) {
        let all_lent = were_lent && self.engine.all_lend();
        let size = self.members().size() as u64;
        let lent = self.engine.lent() - before;
        let Some(kept) = self.kept.last_mut() else { return };
        let ScheduleKey { kind, count, elem, .. } = kept.key;
        let call = (kind, count, elem);
        let bytes = (count * elem) as u64;
        // Most of what it sent: bytes at the edges of parts may go through the ring.
        kept.lends = Some(lent * 4 >= bytes / size * (size - 1) * 2 * 3);
        if all_lent != self.in_one_piece.has(call) {
            // What a schedule remembers that this call did not use is from before.
            let others = self.kept.iter_mut().filter(|k| (k.key.kind, k.key.count, k.key.elem) == call);
            others
                .filter(|k| k.key.in_one_piece || !all_lent)
                .for_each(|k| k.lends = k.lends.map(|_| all_lent));
        }
        self.in_one_piece.learn(call, all_lent);
    }
}

/// The headers of a call. Parts that differ by pair are known to the two alone.
struct Headers<'a> {
    common: &'a Header,
    pairwise: bool,
    counts: &'a [usize],
    recv_counts: &'a [usize],
}

impl Headers<'_> {
    fn of(&self, direction: Direction, peer: usize) -> Header {
        let counts = match direction {
            _ if !self.pairwise => return *self.common,
            Direction::Out => self.counts,
            Direction::In => self.recv_counts,
        };
        Header { shape: counts.get(peer).map_or(0, |&c| c as u64), ..*self.common }
    }
}

impl Backend for NativeBackend {
    fn run(&mut self, mut call: Call<'_>, limit: Duration) -> Result<()> {
        self.run_noted(&mut call, limit, &mut || ())
    }

    fn run_noted(&mut self, call: &mut Call<'_>, limit: Duration, begun: &mut dyn FnMut()) -> Result<()> {
        let Some(kind) = call.info.op.kind() else { return self.pair(call, limit, begun) };
        self.collective(kind, call, limit, begun)
    }

    fn split(&mut self, new: NewGroup<'_>) -> Result<Box<dyn Backend>> {
        Ok(Box::new(self.part(new)?))
    }

    fn failure(&self, call: Option<&CallInfo>) -> Option<Error> {
        self.members().failure(call)
    }

    fn conclude(&mut self) -> Result<()> {
        self.members().conclude()
    }

    fn abort_handle(&self) -> Option<AbortHandle> {
        Some(AbortHandle::new(self.members()))
    }

    fn subgroup_factory(&self) -> Option<SubgroupFactory> {
        Some(SubgroupFactory::new(self.members(), Box::new(Self::make)))
    }

    fn prefer(&mut self, algorithm: Option<Algorithm>) -> bool {
        self.prefer = algorithm.or_else(|| self.members().world.prefers());
        self.kept.clear();
        self.in_one_piece.forget();
        true
    }

    fn links(&self) -> Vec<Option<LinkKind>> {
        let Members { world, ranks, rank, .. } = self.members();
        let likely = |(r, link): (usize, &Option<Box<dyn Link>>)| match link {
            Some(link) => Some(link.properties().kind),
            None if r == *rank => None,
            None => world.likely_link(ranks[r]),
        };
        self.engine.links().iter().enumerate().map(likely).collect()
    }
}

/// Returns the members' hosts, and the cost of their links: the same for all of them.
fn topology(world: &dyn World, host: Vec<usize>, members: &[usize]) -> Topology {
    let mut topology = Topology::new(host, world.cores());
    topology.lanes = kept::lanes_of(world, members);
    if !world.shares_memory() {
        topology.local = topology.remote;
        topology.usual = Some(HostLink::Tcp);
    }
    match world.costs().and_then(|c| c.as_ref().of(members)) {
        Some(costs) => topology.measured(costs),
        None => topology,
    }
}

impl Drop for NativeBackend {
    fn drop(&mut self) {
        self.members().world.leave(self.members().group_id);
    }
}

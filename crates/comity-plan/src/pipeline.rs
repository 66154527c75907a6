//! From a shape to a plan: which algorithm runs on which slices, and segments that make a pipeline.
//!
//! A large buffer (or each part of it) is cut into segments, the algorithm is written once for each, and
//! the steps are ordered by segment + round:
//!
//! ```text
//!   time ──>       0        1        2        3
//!   segment 0   collect   share
//!   segment 1            collect   share
//!   segment 2                     collect   share
//! ```
//!
//! Every rank orders by the same rule, so both ends of a pair see the same order of messages. Segments
//! share no memory, so between them nothing has to wait. May import `algorithms` and what stands below it.

use crate::{
    Buf, Plan, Slice,
    algorithms::{Algorithm, Cuts, Order, Segment, Service, across, barrier},
    draft::{Draft, Hosts, Parts, Team},
    shape::{Kind, Shape},
};

/// About as many steps as a plan may have; segments grow until it fits.
const MOST_STEPS: usize = 8192;

/// Below this a message between hosts is small: rounds cost more than bytes.
const SMALL: usize = 32 << 10;

/// Parts that lanes reduce begin on a cache line, in bytes.
const LINE: usize = 64;

/// Returns true if a message is so small, of bytes that so many ranks divide among them.
fn is_small(bytes: usize, ranks: usize) -> bool {
    bytes / ranks.max(1) < SMALL
}

/// The plan of `shape.rank`. An algorithm that cannot carry out the call gives way to the first that can.
/// `segment` is in elements; 0 means one segment.
pub fn build(shape: &Shape<'_>, algorithm: Algorithm, segment: usize) -> Plan {
    let call = shape.common();
    let mut able = [algorithm].into_iter().chain(shape.kind.algorithms()).filter(|a| a.carries(&call));
    let found = able.find_map(|a| Some((a.definition().order, a.service(shape.kind)?)));
    // Every operation is served: a test looks at the whole table.
    let Some((order, service)) = found else { return Draft::default().finish() };
    let hosts = Hosts::new(shape.hosts, shape.rank, shape.size);
    let team = match order {
        Order::ByHost => Team::of(hosts.by_host(), shape.rank),
        Order::ByRank => None,
    };
    let team = team.unwrap_or_else(|| Team::all(shape.rank, shape.size));
    let mut d = Draft::default();
    d.empty = shape.kind == Kind::Barrier;
    let call = Call { shape, service, hosts: &hosts, team: &team };
    match shape.kind {
        Kind::AllReduce | Kind::Reduce | Kind::Broadcast | Kind::Barrier => {
            for (k, range) in cuts(shape.count, call.segment(shape.count, segment)).enumerate() {
                d.round = k as u32;
                (service.steps)(&mut d, &call.whole(range));
            }
        }
        Kind::AllGather | Kind::ReduceScatter | Kind::Gather | Kind::Scatter | Kind::AllToAll => {
            let parts = offsets((0..shape.size).map(|i| shape.part(i)));
            let longest = parts.iter().map(|p| p.1).max().unwrap_or(0);
            for (k, range) in cuts(longest, call.segment(longest, segment)).enumerate() {
                d.round = k as u32;
                (service.steps)(&mut d, &call.parted(&parts, range));
            }
        }
    }
    d.finish()
}

/// A call that lanes carry, as `shape.rank` sees it.
#[derive(Debug)]
pub struct LanePlan {
    /// The ranks that share memory, in order: all, or those of this rank's host.
    pub mates: Vec<usize>,
    /// Brings a header from each rank that this one depends on, and nothing else.
    pub headers: Plan,
    /// Phases that follow on several hosts, one after the other. None on one host: lanes do all of the call.
    pub phases: Vec<Phase>,
}

/// Part of a call over several hosts.
#[derive(Debug)]
pub enum Phase {
    /// Messages to other hosts, over links.
    Links(Plan),
    /// Work of the ranks of a host, by lanes.
    Lanes(LanePhase),
}

/// A reduce_scatter or an all_gather among the ranks of a host, each of which has a part of so many elements: the last ones may have
/// fewer, or none.
#[derive(Clone, Copy, Debug)]
pub struct LanePhase {
    /// Parts are added up; else they are gathered.
    pub adds: bool,
    /// All parts.
    pub input: Slice,
    /// All parts, or the own one alone.
    pub output: Slice,
    /// Elements of a part.
    pub part: usize,
}

/// Plan of a call that lanes carry: over several hosts one by [`Algorithm::Hierarchy`], on as many ranks of each.
pub fn build_with_lanes(shape: &Shape<'_>) -> LanePlan {
    let hosts = Hosts::new(shape.hosts, shape.rank, shape.size);
    let mates = hosts.ranks[hosts.mine].clone();
    let at = mates.iter().position(|&r| r == shape.rank).unwrap_or(0);
    let peers = Team::at(hosts.peers(at), hosts.mine);
    // All that this rank takes something from within the call, by whichever way.
    let far = peers.others().map(|p| peers.rank(p));
    let near = Team::at(mates.iter().copied().chain(far).collect(), at);
    let mut d = Draft::default();
    d.empty = true;
    barrier(&mut d, &near, Slice::new(Buf::Tmp, 0, 0));
    let headers = d.finish();
    let phases = if peers.len() > 1 { phases(shape, &hosts, &peers, at) } else { Vec::new() };
    LanePlan { mates, headers, phases }
}

/// The phases of rank `at` of a host, whose `peers` stand there on the others.
fn phases(shape: &Shape<'_>, hosts: &Hosts, peers: &Team, at: usize) -> Vec<Phase> {
    let Shape { kind, count, elem, size, rank, .. } = *shape;
    let local = hosts.ranks[hosts.mine].len();
    let mut d = Draft::default();
    let lanes = |adds, input, output, part| Phase::Lanes(LanePhase { adds, input, output, part });
    // The parts of a host's ranks, in a buffer that holds all.
    let of_host = |buf, h: usize| Slice::new(buf, hosts.ranks[h][0] * count, local * count);
    match kind {
        Kind::AllGather => {
            let own = Slice::new(Buf::In, 0, count);
            let place = |r: usize| Slice::new(Buf::Out, r * count, count);
            peers.others().for_each(|p| d.send(peers, p, own));
            peers.others().for_each(|p| d.recv(peers, p, place(peers.rank(p))));
            d.copy(own, place(rank));
            let all = (0..peers.len()).map(|h| of_host(Buf::Out, h));
            [Phase::Links(d.finish())].into_iter().chain(all.map(|s| lanes(false, s, s, count))).collect()
        }
        Kind::ReduceScatter => {
            let sums: Vec<Slice> = (0..peers.len()).map(|_| d.reserve(count)).collect();
            let mut all: Vec<Phase> = sums
                .iter()
                .enumerate()
                .map(|(h, &sum)| lanes(true, of_host(Buf::In, h), sum, count))
                .collect();
            peers.others().for_each(|p| d.send(peers, p, sums[p]));
            d.n_way_reduce(peers, sums[hosts.mine], Slice::new(Buf::Out, 0, count), true);
            all.push(Phase::Links(d.finish()));
            all
        }
        _ => {
            let elem = elem.max(1);
            let part = (count * elem).div_ceil(local).next_multiple_of(LINE).div_ceil(elem);
            let begin = (at * part).min(count);
            let own = Slice::new(Buf::Out, begin, part.min(count - begin));
            across(&mut d, peers, own, own, is_small(count * elem, size));
            let input = Slice::new(Buf::In, 0, count);
            let output = Slice::new(Buf::Out, 0, count);
            let collect = lanes(true, input, output, part);
            vec![collect, Phase::Links(d.finish()), lanes(false, output, output, part)]
        }
    }
}

struct Call<'a> {
    shape: &'a Shape<'a>,
    service: &'static Service,
    hosts: &'a Hosts,
    team: &'a Team,
}

/// `len` in cuts of `segment`; one cut, even if of nothing.
fn cuts(len: usize, segment: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..len.max(1)).step_by(segment.max(1)).map(move |at| (at, segment.min(len - at)))
}

/// Parts one after the other.
fn offsets(lens: impl Iterator<Item = usize>) -> Parts {
    let mut at = 0;
    lens.map(|len| {
        at += len;
        (at - len, len)
    })
    .collect()
}

fn cut_each(parts: &Parts, (lo, len): (usize, usize)) -> Parts {
    parts.iter().map(|&(at, all)| (at + lo.min(all), all.saturating_sub(lo).min(len))).collect()
}

impl<'a> Call<'a> {
    /// Returns the length of a segment, in elements, of buffers of `len`, where `segment` is wanted: the same on every rank.
    fn segment(&self, len: usize, segment: usize) -> usize {
        // Ranks do not know one another's counts.
        let private = self.shape.kind == Kind::AllToAll && !self.shape.counts.is_empty();
        let steps = match &self.service.cuts {
            Cuts::Asked { steps } | Cuts::Gains { steps, .. } if !private && segment > 0 => steps,
            Cuts::Never | Cuts::Asked { .. } | Cuts::Gains { .. } => return len.max(1),
        };
        let steps = steps(self.shape.size).max(1);
        segment.max(len.div_ceil((MOST_STEPS / steps).max(1))).max(1)
    }

    /// A segment of an operation whose ranks all hold all of the buffer.
    fn whole(&self, (at, len): (usize, usize)) -> Segment<'a> {
        let (src, dst) = match self.shape.kind {
            // Its messages have no elements, and a call without buffers has nothing else.
            Kind::Barrier => (Slice::new(Buf::Tmp, 0, 0), Slice::new(Buf::Tmp, 0, 0)),
            _ => (Slice::new(Buf::In, at, len), Slice::new(Buf::Out, at, len)),
        };
        let parts = Parts::new();
        let incoming = Parts::new();
        Segment { parts, incoming, own_src: src, own_dst: dst, ..self.around(src, dst) }
    }

    /// A segment of an operation of which every rank has a part.
    fn parted(&self, parts: &Parts, cut: (usize, usize)) -> Segment<'a> {
        let by_rank = cut_each(parts, cut);
        let here: Parts = (0..self.team.len()).map(|p| by_rank[self.team.rank(p)]).collect();
        let all = here.iter().map(|p| p.1).sum();
        // The small buffer begins where the own part begins.
        let own = |buf| Slice::new(buf, cut.0, here[self.team.me].1);
        let incoming = match self.shape.recv_counts {
            [] => here.clone(),
            counts => cut_each(&offsets(counts.iter().copied()), (0, usize::MAX)),
        };
        let own_src = own(Buf::In);
        let own_dst = own(Buf::Out);
        let around = self.around(Slice::new(Buf::In, 0, all), Slice::new(Buf::Out, 0, all));
        Segment { parts: here, incoming, own_src, own_dst, ..around }
    }

    /// Makes a segment of `src` and `dst` without its parts.
    fn around(&self, src: Slice, dst: Slice) -> Segment<'a> {
        let small = is_small(self.shape.count.saturating_mul(self.shape.elem), self.team.len());
        let team = self.team;
        let hosts = self.hosts;
        let root = self.shape.root;
        let parts = Parts::new();
        let incoming = Parts::new();
        Segment { team, hosts, root, small, src, dst, parts, incoming, own_src: src, own_dst: dst }
    }
}

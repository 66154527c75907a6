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
//! share no memory, so between them nothing has to wait.

use crate::draft::{Draft, Parts, Team};
use crate::hierarchy::{self, Hosts};
use crate::{Algorithm, Buf, Kind, Plan, Shape, Slice, alltoall, direct, doubling, ring, tree};

/// About as many steps as a plan may have; segments grow until it fits.
const MOST_STEPS: usize = 8192;

/// Below this a message between hosts is small: rounds cost more than bytes.
pub(super) const SMALL: usize = 32 << 10;

/// The plan of `shape.rank`. An algorithm that cannot carry out the kind gives way to `Direct`.
/// `segment` is in elements; 0 means one segment.
pub fn build(shape: &Shape, algorithm: Algorithm, segment: usize) -> Plan {
    let can = shape.kind.algorithms().contains(&algorithm);
    let algorithm = if can { algorithm } else { Algorithm::Direct };
    let hosts = Hosts::new(shape.hosts, shape.rank, shape.size);
    let team = match algorithm {
        // A host's ranks side by side, so that the ring crosses between hosts as rarely as it can.
        Algorithm::Ring | Algorithm::Chain => Team::of(hosts.by_host(), shape.rank),
        _ => None,
    };
    let team = team.unwrap_or_else(|| Team::all(shape.rank, shape.size));
    let call = Call { shape, algorithm, hosts, team };
    let mut d = Draft::default();
    match shape.kind {
        Kind::AllReduce | Kind::Reduce | Kind::Broadcast => {
            for (k, range) in cuts(shape.count, call.segment(shape.count, segment)).enumerate() {
                d.round = k as u32;
                call.whole(&mut d, range);
            }
        }
        Kind::Barrier => {
            d.empty = true;
            call.barrier(&mut d);
        }
        _ => {
            let parts = offsets((0..shape.size).map(|i| shape.part(i)));
            let longest = parts.iter().map(|p| p.1).max().unwrap_or(0);
            for (k, range) in cuts(longest, call.segment(longest, segment)).enumerate() {
                d.round = k as u32;
                call.parted(&mut d, &parts, range);
            }
        }
    }
    d.finish()
}

struct Call<'a> {
    shape: &'a Shape<'a>,
    algorithm: Algorithm,
    hosts: Hosts,
    team: Team,
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

/// The cut of every part.
fn cut_each(parts: &Parts, (lo, len): (usize, usize)) -> Parts {
    parts.iter().map(|&(at, all)| (at + lo.min(all), all.saturating_sub(lo).min(len))).collect()
}

impl Call<'_> {
    /// What `segment` comes to for buffers of `len`: the same on every rank.
    fn segment(&self, len: usize, segment: usize) -> usize {
        let n = self.shape.size;
        let steps = match (self.shape.kind, self.algorithm) {
            // Neighbouring parts travel in one message, so they must stay neighbours.
            (Kind::Gather | Kind::Scatter, Algorithm::Tree) => return len.max(1),
            (Kind::AllGather | Kind::ReduceScatter, Algorithm::Doubling) => return len.max(1),
            // Ranks do not know one another's counts.
            (Kind::AllToAll, _) if !self.shape.counts.is_empty() => return len.max(1),
            (_, Algorithm::Tree | Algorithm::Doubling) => 2 * n.max(2).ilog2() as usize + 4,
            (_, Algorithm::Chain) => 2,
            _ => 4 * n,
        };
        match segment {
            0 => len.max(1),
            _ => segment.max(len.div_ceil((MOST_STEPS / steps.max(1)).max(1))).max(1),
        }
    }

    /// Operations whose ranks all hold all of the buffer.
    fn whole(&self, d: &mut Draft, (at, len): (usize, usize)) {
        let (src, dst) = (Slice::new(Buf::In, at, len), Slice::new(Buf::Out, at, len));
        let (team, hosts) = (&self.team, &self.hosts);
        let root = (0..team.len()).find(|&p| team.rank(p) == self.shape.root).unwrap_or(0);
        let small = self.shape.count.saturating_mul(self.shape.elem) / team.len().max(1) < SMALL;
        match (self.shape.kind, self.algorithm) {
            (Kind::AllReduce, Algorithm::TwoPhase) => direct::two_phase_all_reduce(d, team, src, dst, true),
            (Kind::AllReduce, Algorithm::Ring) => ring::all_reduce(d, team, src, dst),
            (Kind::AllReduce, Algorithm::Doubling) => doubling::all_reduce(d, team, src, dst),
            (Kind::AllReduce, Algorithm::Leader) => hierarchy::leader_all_reduce(d, hosts, src, dst, true),
            (Kind::AllReduce, Algorithm::Hierarchy) => hierarchy::all_reduce(d, hosts, src, dst, small),
            (Kind::AllReduce, _) => direct::all_reduce(d, team, src, dst, true),
            (Kind::Reduce, Algorithm::TwoPhase) => direct::two_phase_reduce(d, team, root, src, dst, true),
            (Kind::Reduce, Algorithm::Ring) => ring::reduce(d, team, root, src, dst),
            (Kind::Reduce, Algorithm::Tree) => {
                // Only the root's `Out` may be written.
                let keep = self.shape.rank == self.shape.root || tree::is_leaf(team, root);
                let sum = if keep { dst } else { d.reserve(len) };
                tree::reduce(d, team, root, src, sum);
            }
            (Kind::Reduce, Algorithm::Leader) => {
                hierarchy::leader_reduce(d, hosts, self.shape.root, src, dst);
            }
            (Kind::Reduce, _) => direct::reduce(d, team, root, src, dst, true),
            (_, Algorithm::TwoPhase) => direct::two_phase_broadcast(d, team, root, dst),
            (_, Algorithm::Tree) => tree::broadcast(d, team, root, dst),
            (_, Algorithm::Chain) => tree::chain(d, team, root, dst),
            (_, Algorithm::Leader) => hierarchy::leader_broadcast(d, hosts, self.shape.root, dst),
            _ => direct::broadcast(d, team, root, dst),
        }
    }

    /// Operations of which every rank has a part.
    fn parted(&self, d: &mut Draft, parts: &Parts, cut: (usize, usize)) {
        let by_rank = cut_each(parts, cut);
        let by_place: Parts = (0..self.team.len()).map(|p| by_rank[self.team.rank(p)]).collect();
        let (team, parts) = (&self.team, &by_place);
        let everything = |buf| Slice::new(buf, 0, parts.iter().map(|p| p.1).sum());
        // The small buffer begins where the own part begins.
        let own = |buf| Slice::new(buf, cut.0, parts[team.me].1);
        let (into, out) = (everything(Buf::In), everything(Buf::Out));
        let root = self.shape.root;
        match (self.shape.kind, self.algorithm) {
            (Kind::AllGather, Algorithm::Ring) => ring::all_gather(d, team, own(Buf::In), out, parts),
            (Kind::AllGather, Algorithm::Doubling) => doubling::all_gather(d, team, own(Buf::In), out, parts),
            (Kind::AllGather, Algorithm::Hierarchy) => {
                hierarchy::all_gather(d, &self.hosts, own(Buf::In), out, parts);
            }
            (Kind::AllGather, _) => direct::all_gather(d, team, own(Buf::In), out, parts),
            (Kind::ReduceScatter, Algorithm::Ring) => {
                ring::reduce_scatter(d, team, into, parts, own(Buf::Out))
            }
            (Kind::ReduceScatter, Algorithm::Doubling) => {
                doubling::reduce_scatter(d, team, into, parts, own(Buf::Out));
            }
            (Kind::ReduceScatter, Algorithm::Hierarchy) => {
                hierarchy::reduce_scatter(d, &self.hosts, into, parts, own(Buf::Out));
            }
            (Kind::ReduceScatter, _) => direct::reduce_scatter(d, team, into, parts, own(Buf::Out), true),
            (Kind::Gather, Algorithm::Tree) => tree::gather(d, team, root, own(Buf::In), out, parts),
            (Kind::Gather, _) => direct::gather(d, team, root, own(Buf::In), out, parts),
            (Kind::Scatter, Algorithm::Tree) => tree::scatter(d, team, root, into, parts, own(Buf::Out)),
            (Kind::Scatter, _) => direct::scatter(d, team, root, into, parts, own(Buf::Out)),
            _ => {
                let recv = match self.shape.recv_counts {
                    [] => by_rank.clone(),
                    counts => cut_each(&offsets(counts.iter().copied()), (0, usize::MAX)),
                };
                alltoall::all_to_all(d, team, into, parts, out, &recv);
            }
        }
    }

    fn barrier(&self, d: &mut Draft) {
        let nothing = Slice::new(Buf::Tmp, 0, 0);
        match self.algorithm {
            Algorithm::Doubling => doubling::barrier(d, &self.team, nothing),
            Algorithm::Leader => hierarchy::leader_barrier(d, &self.hosts, nothing),
            _ => direct::barrier(d, &self.team, nothing),
        }
    }
}

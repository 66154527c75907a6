//! Straight from whoever has it to whoever needs it.
//!
//! ```text
//!   all_reduce of 3: 1 round      0 ──all──> 1    every rank sends all it has to every other, and folds what comes
//!                                 0 ──all──> 2    in rank order
//! ```
//!
//! Cost per rank, n ranks, B bytes (of the buffer, or of one part):
//! - all_reduce: n-1 messages, (n-1)B. reduce: B from all but the root. broadcast: (n-1)B at the root.
//! - all_gather, reduce_scatter, gather, scatter: every part goes once to each that needs it.
//! - barrier: n-1 messages without bytes.
//!
//! Each element is reduced by one rank, all operands together and in rank order: f16 rounds once.

use super::{Cuts, Definition, Order, PartLengths, Service, of_all};
use crate::{
    Slice,
    draft::{Draft, Parts, Team},
    model::Model,
    shape::Kind,
};

const ASKED: Cuts = Cuts::Asked { steps: of_all };

pub(super) const DEFINITION: Definition = Definition {
    name: "direct",
    order: Order::ByRank,
    parts: PartLengths::Listed,
    adds_at_once: true,
    serves: &[
        Service {
            kind: Kind::AllReduce,
            steps: |d, s| all_reduce(d, s.team, s.src, s.dst, true),
            seconds: |m| m.lean() * m.at_once() * (m.exchange(m.bytes) + m.add((m.n - 1.0) * m.bytes)),
            cuts: ASKED,
            sends: |e| (e.n - 1) * e.count,
        },
        Service {
            kind: Kind::Reduce,
            steps: |d, s| reduce(d, s.team, s.root_at(), s.src, s.dst, true),
            seconds: |m| m.star(m.bytes) + m.add((m.n - 1.0) * m.bytes),
            cuts: ASKED,
            sends: |e| e.count,
        },
        Service {
            kind: Kind::Broadcast,
            steps: |d, s| broadcast(d, s.team, s.root_at(), s.dst),
            seconds: |m| m.star(m.bytes),
            cuts: ASKED,
            sends: |e| (e.n - 1) * e.count,
        },
        Service {
            kind: Kind::AllGather,
            steps: |d, s| all_gather(d, s.team, s.own_src, s.dst, &s.parts),
            seconds: |m| m.spread(m.bytes),
            cuts: ASKED,
            sends: |e| (e.n - 1) * e.count,
        },
        Service {
            kind: Kind::ReduceScatter,
            steps: |d, s| reduce_scatter(d, s.team, s.src, &s.parts, s.own_dst, true),
            seconds: |m| m.exchange(m.bytes) + m.add((m.n - 1.0) * m.bytes),
            cuts: ASKED,
            sends: |e| (e.n - 1) * e.count,
        },
        Service {
            kind: Kind::Gather,
            steps: |d, s| gather(d, s.team, s.root_at(), s.own_src, s.dst, &s.parts),
            seconds: one_to_all,
            cuts: ASKED,
            sends: |e| e.count,
        },
        Service {
            kind: Kind::Scatter,
            steps: |d, s| scatter(d, s.team, s.root_at(), s.src, &s.parts, s.own_dst),
            seconds: one_to_all,
            cuts: ASKED,
            sends: |e| (e.n - 1) * e.count,
        },
        Service {
            kind: Kind::Barrier,
            steps: |d, s| barrier(d, s.team, s.src),
            seconds: |m| m.lean() * m.greet(),
            cuts: ASKED,
            sends: |_| 0,
        },
    ],
};

fn one_to_all(m: &Model<'_>) -> f64 {
    m.star(m.bytes)
}

/// All send all to all; every rank reduces everything in rank order.
pub(super) fn all_reduce(d: &mut Draft, team: &Team, src: Slice, dst: Slice, last: bool) {
    team.others().for_each(|p| d.send(team, p, src));
    d.n_way_reduce(team, src, dst, last);
    d.round += 1;
}

pub(super) fn reduce(d: &mut Draft, team: &Team, root: usize, src: Slice, dst: Slice, last: bool) {
    if team.me == root {
        d.n_way_reduce(team, src, dst, last);
    } else {
        d.send(team, root, src);
    }
    d.round += 1;
}

pub(super) fn broadcast(d: &mut Draft, team: &Team, root: usize, buf: Slice) {
    if team.me == root {
        team.others().for_each(|p| d.send(team, p, buf));
    } else {
        d.recv(team, root, buf);
    }
    d.round += 1;
}

/// `own` is sent and copied to its part of `out`.
pub(super) fn all_gather(d: &mut Draft, team: &Team, own: Slice, out: Slice, parts: &Parts) {
    team.others().for_each(|p| d.send(team, p, own));
    team.others().for_each(|p| d.recv(team, p, out.part(parts[p])));
    d.copy(own, out.part(parts[team.me]));
    d.round += 1;
}

/// Everyone's part of `src` is reduced by its position, to `dst`.
pub(super) fn reduce_scatter(d: &mut Draft, team: &Team, src: Slice, parts: &Parts, dst: Slice, last: bool) {
    team.others().for_each(|p| d.send(team, p, src.part(parts[p])));
    d.n_way_reduce(team, src.part(parts[team.me]), dst, last);
    d.round += 1;
}

pub(super) fn gather(d: &mut Draft, team: &Team, root: usize, own: Slice, out: Slice, parts: &Parts) {
    if team.me == root {
        team.others().for_each(|p| d.recv(team, p, out.part(parts[p])));
        d.copy(own, out.part(parts[root]));
    } else {
        d.send(team, root, own);
    }
    d.round += 1;
}

pub(super) fn scatter(d: &mut Draft, team: &Team, root: usize, src: Slice, parts: &Parts, own: Slice) {
    if team.me == root {
        team.others().for_each(|p| d.send(team, p, src.part(parts[p])));
        d.copy(src.part(parts[root]), own);
    } else {
        d.recv(team, root, own);
    }
    d.round += 1;
}

pub(crate) fn barrier(d: &mut Draft, team: &Team, nothing: Slice) {
    team.others().for_each(|p| d.send(team, p, nothing));
    team.others().for_each(|p| d.recv(team, p, nothing));
    d.round += 1;
}

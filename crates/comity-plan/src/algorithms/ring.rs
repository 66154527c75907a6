//! Parts travel from neighbour to neighbour; every link carries the same, both ways at once or one.
//!
//! ```text
//!   reduce_scatter, part 2 of 4 ranks:   3 ──c3──> 0 ──c3+c0──> 1 ──c3+c0+c1──> 2   (its owner adds c2)
//!   all_gather, part 2 of 4 ranks:       2 ──c──> 3 ──c──> 0 ──c──> 1
//! ```
//!
//! Cost per rank, n ranks, B bytes in all: all_reduce 2(n-1) rounds and 2(n-1)/n B; reduce_scatter and
//! all_gather n-1 rounds and (n-1)/n B (less own part). Where ranks of a host are neighbours, each link between
//! hosts carries everything once only.

use super::{Cuts, Definition, Order, PartLengths, Service, direct, of_all};
use crate::{
    Slice,
    draft::{Draft, Parts, Team, even},
    shape::Kind,
};

const GAINS: Cuts = Cuts::Gains { steps: of_all, messages: |m| m.n };
const ASKED: Cuts = Cuts::Asked { steps: of_all };

pub(super) const DEFINITION: Definition = Definition {
    name: "ring",
    order: Order::ByHost,
    parts: PartLengths::Listed,
    adds_at_once: false,
    serves: &[
        Service {
            kind: Kind::AllReduce,
            steps: |d, s| all_reduce(d, s.team, s.src, s.dst),
            seconds: |m| (m.n - 1.0) * (2.0 * m.shift(m.bytes / m.n) + m.add(m.bytes / m.n)),
            cuts: GAINS,
            sends: |e| 2 * (e.n - 1) * e.count.div_ceil(e.n),
        },
        Service {
            kind: Kind::Reduce,
            steps: |d, s| reduce(d, s.team, s.root_at(), s.src, s.dst),
            seconds: |m| {
                let part = m.bytes / m.n;
                (m.n - 1.0) * (m.shift(part) + m.add(part)) + m.star(part)
            },
            cuts: GAINS,
            sends: |e| e.n * e.count.div_ceil(e.n),
        },
        Service {
            kind: Kind::AllGather,
            steps: |d, s| all_gather(d, s.team, s.own_src, s.dst, &s.parts),
            seconds: |m| (m.n - 1.0) * m.shift(m.bytes),
            cuts: ASKED,
            sends: |e| (e.n - 1) * e.count,
        },
        Service {
            kind: Kind::ReduceScatter,
            steps: |d, s| reduce_scatter(d, s.team, s.src, &s.parts, s.own_dst),
            seconds: |m| (m.n - 1.0) * (m.shift(m.bytes) + m.add(m.bytes)),
            cuts: ASKED,
            sends: |e| (e.n - 1) * e.count,
        },
    ],
};

/// Partial sums of `src`'s parts pass by; the sum of this position's part ends in what `sum` says. `sum(part,
/// round)` is where the sum of `part` received in that round is kept until it is sent on.
fn collect(d: &mut Draft, team: &Team, src: Slice, parts: &Parts, sum: impl Fn(usize, usize) -> Slice) {
    let n = team.len();
    for t in 0..n - 1 {
        let out = team.before(1 + t);
        let new = team.before((2 + t) % n);
        let from = if t == 0 { src.part(parts[out]) } else { sum(out, t - 1) };
        d.send(team, team.after(1), from);
        d.reduce(team, team.before(1), src.part(parts[new]), sum(new, t), t == n - 2);
        d.round += 1;
    }
}

pub(super) fn all_reduce(d: &mut Draft, team: &Team, src: Slice, dst: Slice) {
    if team.len() == 1 {
        return d.copy(src, dst);
    }
    let parts = even(src.len, team.len());
    collect(d, team, src, &parts, |p, _| dst.part(parts[p]));
    all_gather(d, team, dst.part(parts[team.me]), dst, &parts);
}

fn reduce_scatter(d: &mut Draft, team: &Team, src: Slice, parts: &Parts, dst: Slice) {
    let n = team.len();
    if n == 1 {
        return d.copy(src.part(parts[0]), dst);
    }
    // What arrived last round leaves while the next arrives: two places are enough.
    let longest = if n > 2 { parts.iter().map(|p| p.1).max().unwrap_or(0) } else { 0 };
    let slots = [d.reserve(longest), d.reserve(if n > 3 { longest } else { 0 })];
    let sum = |p: usize, t: usize| match t == n - 2 {
        true => dst,
        false => slots[t % 2].part((0, parts[p].1)),
    };
    collect(d, team, src, parts, sum);
}

fn reduce(d: &mut Draft, team: &Team, root: usize, src: Slice, dst: Slice) {
    let parts = even(src.len, team.len());
    let own = match team.me == root {
        true => dst.part(parts[root]),
        false => d.reserve(parts[team.me].1),
    };
    reduce_scatter(d, team, src, &parts, own);
    direct::gather(d, team, root, own, dst, &parts);
}

fn all_gather(d: &mut Draft, team: &Team, own: Slice, out: Slice, parts: &Parts) {
    for t in 0..team.len() - 1 {
        let old = team.before(t);
        let new = team.before(t + 1);
        d.send(team, team.after(1), if t == 0 { own } else { out.part(parts[old]) });
        d.recv(team, team.before(1), out.part(parts[new]));
        d.round += 1;
    }
    d.copy(own, out.part(parts[team.me]));
}

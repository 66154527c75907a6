//! Each rank answers for one part: parts are collected directly, then shared directly.
//!
//! ```text
//!   all_reduce of 3: 2 rounds, part i belongs to rank i
//!     0: [a0|b0|c0]  ──b0──> 1: reduces b0 b1 b2  ──b──> 0, 2
//!                    ──c0──> 2: reduces c0 c1 c2  ──c──> 0, 1
//! ```
//!
//! Cost per rank, n ranks, B bytes (all of the buffer):
//! - all_reduce: 2(n-1) messages, 2(n-1)/n B, the least possible.
//! - reduce: n messages, B (a part fewer at the root). broadcast: B at the root, (n-2)/(n-1) B elsewhere.
//!
//! A segment is cut so that each of its n messages stays in a core's cache.

use super::{Cuts, Definition, Order, PartLengths, Service, direct, of_all};
use crate::{
    Slice,
    draft::{Draft, Team, even},
    shape::Kind,
};

const GAINS: Cuts = Cuts::Gains { steps: of_all, messages: |m| m.n };

pub(super) const DEFINITION: Definition = Definition {
    name: "two-phase",
    order: Order::ByRank,
    parts: PartLengths::Listed,
    adds_at_once: true,
    serves: &[
        Service {
            kind: Kind::AllReduce,
            steps: |d, s| all_reduce(d, s.team, s.src, s.dst, true),
            seconds: |m| 2.0 * m.exchange(m.bytes / m.n) + m.add(m.bytes * (m.n - 1.0) / m.n),
            cuts: GAINS,
            sends: |e| 2 * (e.n - 1) * e.count.div_ceil(e.n),
        },
        Service {
            kind: Kind::Reduce,
            steps: |d, s| reduce(d, s.team, s.root_at(), s.src, s.dst, true),
            seconds: |m| m.exchange(m.bytes / m.n) + m.add(m.bytes) + m.star(m.bytes / m.n),
            cuts: GAINS,
            sends: |e| e.n * e.count.div_ceil(e.n),
        },
        Service {
            kind: Kind::Broadcast,
            steps: |d, s| broadcast(d, s.team, s.root_at(), s.dst),
            seconds: |m| m.star(m.bytes / (m.n - 1.0)) + m.exchange(m.bytes / (m.n - 1.0)),
            cuts: Cuts::Asked { steps: of_all },
            sends: |e| e.count + e.n,
        },
    ],
};

pub(super) fn all_reduce(d: &mut Draft, team: &Team, src: Slice, dst: Slice, last: bool) {
    let parts = even(src.len, team.len());
    let own = dst.part(parts[team.me]);
    direct::reduce_scatter(d, team, src, &parts, own, last);
    direct::all_gather(d, team, own, dst, &parts);
}

pub(super) fn reduce(d: &mut Draft, team: &Team, root: usize, src: Slice, dst: Slice, last: bool) {
    let parts = even(src.len, team.len());
    let own = match team.me == root {
        true => dst.part(parts[root]),
        false => d.reserve(parts[team.me].1),
    };
    direct::reduce_scatter(d, team, src, &parts, own, last);
    direct::gather(d, team, root, own, dst, &parts);
}

/// The root deals the buffer out among the others, who exchange what they got.
pub(super) fn broadcast(d: &mut Draft, team: &Team, root: usize, buf: Slice) {
    let n = team.len();
    if n == 1 {
        return;
    }
    let parts = even(buf.len, n - 1);
    let part = |p: usize| buf.part(parts[(p + n - root) % n - 1]);
    if team.me == root {
        team.others().for_each(|p| d.send(team, p, part(p)));
        d.round += 2;
        return;
    }
    d.recv(team, root, part(team.me));
    d.round += 1;
    team.others().filter(|&p| p != root).for_each(|p| d.send(team, p, part(team.me)));
    team.others().filter(|&p| p != root).for_each(|p| d.recv(team, p, part(p)));
    d.round += 1;
}

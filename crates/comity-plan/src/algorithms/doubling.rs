//! Partners at distance 1, 2, 4, ...: the fewest rounds, for small messages on many ranks.
//!
//! ```text
//!   all_reduce of 6:  0 ──> 1   1 <──> 3   1 <──> 4   1 ──> 0     4 = 2 x 2 continue,
//!                     2 ──> 3   4 <──> 5   3 <──> 5   3 ──> 2     the others hand in and are told
//! ```
//!
//! Cost per rank, n ranks, B bytes in all, k = log2 n rounded down:
//! - all_reduce: k rounds (k + 2 when n is no power of two), at most (k + 1) B; everyone adds in the same
//!   pairs, so all get the same bits.
//! - reduce_scatter: an all_reduce of which everyone keeps a part.
//! - all_gather (Bruck): log2 n rounded up rounds, (n-1)/n B, everything copied once more.
//! - all_to_all (Bruck), equal parts of B bytes: log2 n rounded up rounds, about n/2 B in each. Part `i` is for the rank that comes `i`
//!   later; round k moves those whose number has bit k, side by side, by 2^k ranks. Everything is copied as often, and once more.
//! - barrier (dissemination): log2 n rounded up rounds of one message.

use super::{Cuts, Definition, Order, PartLengths, Service, of_rounds};
use crate::{
    HostLink, Slice,
    draft::{Draft, Parts, Team},
    model::Model,
    shape::Kind,
};
use std::iter::successors;

/// Elements of what is short.
const SHORT: usize = 8192;

pub(super) const DEFINITION: Definition = Definition {
    name: "doubling",
    order: Order::ByRank,
    parts: PartLengths::Listed,
    adds_at_once: false,
    serves: &[
        Service {
            kind: Kind::AllReduce,
            steps: |d, s| all_reduce(d, s.team, s.src, s.dst),
            seconds: |m| m.lean() * seconds_of(m, m.n, |by| m.swap(by, m.bytes), m.bytes),
            cuts: Cuts::Asked { steps: of_rounds },
            sends: |e| (e.n.ilog2() as usize + 1) * e.count,
        },
        Service {
            kind: Kind::AllGather,
            steps: |d, s| all_gather(d, s.team, s.own_src, s.dst, &s.parts),
            seconds: all_gather_seconds,
            cuts: Cuts::Never,
            sends: |e| (e.n - 1) * e.count,
        },
        Service {
            kind: Kind::AllToAll,
            steps: |d, s| all_to_all(d, s.team, s.src, &s.parts, s.dst, &s.incoming),
            seconds: all_to_all_seconds,
            cuts: Cuts::Never,
            sends: |e| distances(e.n).map(|by| moved(e.n, by).count() * e.count).sum(),
        },
        Service {
            kind: Kind::ReduceScatter,
            steps: |d, s| reduce_scatter(d, s.team, s.src, &s.parts, s.own_dst),
            seconds: |m| m.levels(m.n, |by| m.swap(by, m.n * m.bytes) + m.add(m.n * m.bytes)),
            cuts: Cuts::Never,
            sends: |e| (e.n.ilog2() as usize + 1) * e.n * e.count,
        },
        Service {
            kind: Kind::Barrier,
            steps: |d, s| barrier(d, s.team, s.src),
            seconds: |m| m.lean() * m.levels(m.n, |by| m.rotate(by, 0.0)),
            cuts: Cuts::Asked { steps: of_rounds },
            sends: |_| 0,
        },
    ],
};

fn all_gather_seconds(m: &Model<'_>) -> f64 {
    let all = m.n * m.bytes;
    // Up to 16 KiB in all, no message is too long to be made past the schedule; those of `direct` never are, for they come in the output.
    // Measured on one host with 3, 4, 6, 8 and 16 ranks.
    let part = if m.n < 3.0 { 1.0 } else { m.part(HostLink::Shm, &[(16384.0 / m.n, 0.45)]) };
    // Everything is copied once more.
    part * (m.levels(m.n, |by| m.astride(by, by * m.bytes)) + m.copy(2.0 * all))
}

/// 1, 2, 4, ... below `n`.
pub(super) fn distances(n: usize) -> impl Iterator<Item = usize> {
    successors(Some(1), |by| Some(by * 2)).take_while(move |&by| by < n)
}

/// Parts of an all_to_all that move `by` ranks on.
fn moved(n: usize, by: usize) -> impl Iterator<Item = usize> {
    (0..n).filter(move |i| i & by != 0)
}

fn all_to_all_seconds(m: &Model<'_>) -> f64 {
    let level = |by: f64| {
        let bytes = moved(m.n as usize, by as usize).count() as f64 * m.bytes;
        m.astride(by, bytes) + m.copy(bytes)
    };
    // Measured on one host with 4, 8 and 16 ranks. With parts of 4 KiB it is the formula's.
    let part = if m.n < 4.0 { 1.0 } else { m.part(HostLink::Shm, &[(64.0, 0.5), (1024.0, 0.6)]) };
    part * (m.levels(m.n, level) + m.copy(m.n * m.bytes))
}

fn all_to_all(d: &mut Draft, team: &Team, src: Slice, send: &Parts, dst: Slice, recv: &Parts) {
    let n = team.len();
    let mut at: Vec<Slice> = (0..n).map(|i| src.part(send[team.after(i)])).collect();
    for by in distances(n) {
        let len = moved(n, by).map(|i| at[i].len).sum();
        let together = d.reserve(len);
        let come = d.reserve(len);
        let mut begin = 0;
        for i in moved(n, by) {
            let place = (begin, at[i].len);
            d.copy(at[i], together.part(place));
            at[i] = come.part(place);
            begin += place.1;
        }
        d.send(team, team.after(by), together);
        d.recv(team, team.before(by), come);
        d.round += 1;
    }
    for (i, part) in at.into_iter().enumerate() {
        d.copy(part, dst.part(recv[team.before(i)]));
    }
}

/// Seconds of [`all_reduce`] between `n`, of which each round takes so long at a distance.
pub(super) fn seconds_of(m: &Model<'_>, n: f64, round: impl Fn(f64) -> f64, bytes: f64) -> f64 {
    let odd = n.log2().fract() > 0.0;
    let extra = if odd { 2.0 * round(1.0) + m.add(bytes) } else { 0.0 };
    m.levels(n / 2.0 + 0.5, |by| round(by) + m.add(bytes)) + extra
}

pub(super) fn all_reduce(d: &mut Draft, team: &Team, src: Slice, dst: Slice) {
    let n = team.len();
    if n == 1 {
        return d.copy(src, dst);
    }
    let levels = n.ilog2();
    let extra = n - (1 << levels);
    // Of the first `2 * extra` positions the even ones hand in to their neighbour.
    let paired = team.me < 2 * extra;
    if paired && team.me.is_multiple_of(2) {
        d.send(team, team.me + 1, src);
        d.round += levels + 1;
        d.recv(team, team.me + 1, dst);
        d.round += 1;
        return;
    }
    // What is short is kept aside, so that nothing is written to `dst` before every partner was heard.
    let aside = if (levels > 1 || paired) && src.len <= SHORT { d.reserve(src.len) } else { dst };
    let mut held = src;
    if paired {
        d.reduce(team, team.me - 1, src, aside, false);
        held = aside;
    }
    d.round += u32::from(extra > 0);
    let me = if paired { team.me / 2 } else { team.me - extra };
    for level in 0..levels {
        let other = me ^ (1 << level);
        let other = if other < extra { 2 * other + 1 } else { other + extra };
        let last = level + 1 == levels;
        d.send(team, other, held);
        d.reduce(team, other, held, if last { dst } else { aside }, last);
        held = aside;
        d.round += 1;
    }
    if paired {
        d.send(team, team.me - 1, dst);
    }
    d.round += u32::from(extra > 0);
}

/// Returns the number of rounds of [`all_reduce`] on `n` ranks.
pub(super) fn rounds(n: usize) -> u32 {
    let levels = n.ilog2();
    levels + if n.is_power_of_two() { 0 } else { 2 }
}

fn reduce_scatter(d: &mut Draft, team: &Team, src: Slice, parts: &Parts, dst: Slice) {
    if team.len() == 1 {
        return d.copy(src.part(parts[0]), dst);
    }
    let all = d.reserve(src.len);
    all_reduce(d, team, src, all);
    d.copy(all.part(parts[team.me]), dst);
}

/// Everyone gathers into own memory, beginning with the own part, and turns it round at the end.
fn all_gather(d: &mut Draft, team: &Team, own: Slice, out: Slice, parts: &Parts) {
    let n = team.len();
    if n == 1 {
        return d.copy(own, out.part(parts[0]));
    }
    // Where the i-th part after the own one begins.
    let mut starts = vec![0];
    (0..n).for_each(|i| starts.push(starts[i] + parts[team.after(i)].1));
    let all = d.reserve(starts[n]);
    let span = |from: usize, to: usize| all.part((starts[from], starts[to] - starts[from]));
    d.copy(own, span(0, 1));
    let mut have = 1;
    while have < n {
        let more = have.min(n - have);
        // The first message can leave before the copy.
        let lent = if have == 1 { own } else { span(0, more) };
        d.send(team, team.before(have), lent);
        d.recv(team, team.after(have), span(have, have + more));
        have += more;
        d.round += 1;
    }
    (0..n).for_each(|i| d.copy(span(i, i + 1), out.part(parts[team.after(i)])));
}

pub(super) fn barrier(d: &mut Draft, team: &Team, nothing: Slice) {
    let mut by = 1;
    while by < team.len() {
        d.send(team, team.after(by), nothing);
        d.recv(team, team.before(by), nothing);
        d.round += 1;
        by *= 2;
    }
}

//! Recursive halving, then doubling: halves are swapped and added until each rank has a part, then shared the same way back.
//!
//! ```text
//!   all_reduce of 4:   0 <─half─> 1   2 <─half─> 3      0, 2 keep the left half, 1, 3 the right
//!                      0 <─quarter─> 2   1 <─quarter─> 3      each has the sum of a quarter
//!                      0 <─quarter─> 2   1 <─quarter─> 3      and back
//!                      0 <─half─> 1   2 <─half─> 3
//! ```
//!
//! Cost per rank, n ranks, B bytes, k = log2 n rounded down: 2k rounds and 2(n-1)/n B, the least possible, where n is a power of two;
//! else 2 rounds and B more, as ranks above the power hand in what they have and are told the result. The largest messages go to the
//! nearest rank. Source: R. Rabenseifner, "Optimization of Collective Reduction Operations", 2004.

use super::{Cuts, Definition, Order, PartLengths, Service, of_rounds};
use crate::{
    Slice,
    draft::{Draft, Team, even},
    model::Model,
    shape::Kind,
};

pub(super) const DEFINITION: Definition = Definition {
    name: "halving-doubling",
    order: Order::ByHost,
    parts: PartLengths::Listed,
    adds_at_once: false,
    serves: &[Service {
        kind: Kind::AllReduce,
        steps: |d, s| all_reduce(d, s.team, s.src, s.dst),
        seconds,
        cuts: Cuts::Asked { steps: |n| 2 * of_rounds(n) },
        sends: |e| {
            let levels = e.n.ilog2() as usize;
            (if e.n.is_power_of_two() { 2 } else { 3 }) * e.count + 2 * levels
        },
    }],
};

fn seconds(m: &Model<'_>) -> f64 {
    let level = |by: f64| 2.0 * m.swap(by, m.bytes / (2.0 * by)) + m.add(m.bytes / (2.0 * by));
    let odd = m.n.log2().fract() > 0.0;
    let extra = if odd { 2.0 * m.swap(1.0, m.bytes) + m.add(m.bytes) } else { 0.0 };
    STRICT * (m.levels(m.n / 2.0 + 0.5, level) + extra)
}

/// Each level adds what the one before has made: measured beside the others, some 20 % are lost in waiting.
const STRICT: f64 = 1.2;

fn all_reduce(d: &mut Draft, team: &Team, src: Slice, dst: Slice) {
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
        d.round += 2 * levels + 1;
        d.recv(team, team.me + 1, dst);
        d.round += 1;
        return;
    }
    let mut held = src;
    if paired {
        d.reduce(team, team.me - 1, src, dst, false);
        held = dst;
    }
    d.round += u32::from(extra > 0);
    let me = if paired { team.me / 2 } else { team.me - extra };
    let other = |level: u32| {
        let other = me ^ (1 << level);
        if other < extra { 2 * other + 1 } else { other + extra }
    };
    // What this rank kept and gave away, level by level.
    let mut whole = (0, src.len);
    let mut halves = Vec::new();
    for level in 0..levels {
        let (keep, give) = split(whole, me >> level & 1 == 1);
        d.send(team, other(level), held.part(give));
        d.reduce(team, other(level), held.part(keep), dst.part(keep), level + 1 == levels);
        d.round += 1;
        halves.push((level, keep, give));
        held = dst;
        whole = keep;
    }
    for (level, kept, given) in halves.into_iter().rev() {
        d.send(team, other(level), dst.part(kept));
        d.recv(team, other(level), dst.part(given));
        d.round += 1;
    }
    if paired {
        d.send(team, team.me - 1, dst);
    }
    d.round += u32::from(extra > 0);
}

/// The half of a range that is kept, and the one that is given away.
fn split((at, len): (usize, usize), upper: bool) -> ((usize, usize), (usize, usize)) {
    let parts = even(len, 2);
    let half = |i: usize| (at + parts[i].0, parts[i].1);
    if upper { (half(1), half(0)) } else { (half(0), half(1)) }
}

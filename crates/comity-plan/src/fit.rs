//! From what was measured on a machine to its numbers: those of the links first, then what the formulas leave.
//!
//! ```text
//!   Timing: an operation, by an algorithm, on so many ranks, of so many bytes: seconds
//!     ──> alpha, beta, gamma, ...   the numbers for which the formulas lie nearest to all timings
//!     ──> ratios                    measured over predicted by these, for each algorithm, rank count and size
//! ```
//!
//! Nearest: the mean distance of logarithms, which a few disturbed timings do not move. One number after the other is made larger or
//! smaller, by less and less, as long as that gets nearer. Cost: some million predictions, a second. May import `algorithms`, `choose`,
//! `pairs`, `shape`, `topology` and `tuned`.

use crate::{
    algorithms::Algorithm,
    choose::price,
    pairs::LinkClass,
    shape::{Kind, Shape},
    topology::Topology,
    tuned::{RatioRow, RatioTable, TunedCosts},
};
use std::collections::BTreeMap;

/// A call that was timed, of elements of 4 bytes, on ranks of one host with a core each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// The operation.
    pub kind: Kind,
    /// By which algorithm.
    pub algorithm: Algorithm,
    /// Number of ranks.
    pub ranks: usize,
    /// Bytes of the whole buffer.
    pub bytes: u64,
    /// Duration of the call.
    pub seconds: f64,
}

/// Bytes of an element.
const ELEM: usize = 4;
/// By how much a number is changed, from one pass to the next.
const CHANGES: [f64; 7] = [3.0, 1.8, 1.35, 1.15, 1.07, 1.03, 1.015];
/// No number is further from the usual one than this.
const FURTHEST: f64 = 100.0;

/// The numbers that are fitted: alpha, beta, busy, crowd, same, gamma.
type Numbers = [f64; 6];

/// Fits costs to a machine's timings, over shared memory and over TCP; `None` where one of them has none, or its timings do not have every size
/// for every rank count, or are no times of two ranks or more.
pub fn fit(shm: &[Timing], tcp: &[Timing]) -> Option<TunedCosts> {
    let is_time = |t: &Timing| t.ranks >= 2 && t.seconds.is_finite() && t.seconds > 0.0;
    if !shm.iter().chain(tcp).all(is_time) {
        return None;
    }
    let gamma = Topology::new(Vec::new(), 1).gamma;
    let near = nearest(shm, with_gamma(&LinkClass::SHM, gamma), 6);
    // Additions are the same whatever link brought the bytes.
    let far = nearest(tcp, with_gamma(&LinkClass::TCP, near[5]), 5);
    let tables = [ratios(shm, &near)?, ratios(tcp, &far)?];
    TunedCosts::new([class(&near), class(&far)], near[5], tables)
}

fn with_gamma(c: &LinkClass, gamma: f64) -> Numbers {
    [c.cost.alpha, c.cost.beta, c.busy, c.crowd, c.same, gamma]
}

fn class(n: &Numbers) -> LinkClass {
    let mut class = LinkClass { busy: n[2], crowd: n[3], same: n[4], ..LinkClass::SHM };
    (class.cost.alpha, class.cost.beta) = (n[0], n[1]);
    class
}

/// The numbers nearest to the timings, of which the first `free` may change.
fn nearest(timings: &[Timing], usual: Numbers, free: usize) -> Numbers {
    let (mut best, mut distance) = (usual, distance(timings, &usual));
    for change in CHANGES {
        loop {
            let before = distance;
            for i in 0..free {
                for by in [change, 1.0 / change] {
                    let mut other = best;
                    other[i] = (other[i] * by).clamp(usual[i] / FURTHEST, usual[i] * FURTHEST);
                    let d = self::distance(timings, &other);
                    if d < distance {
                        (best, distance) = (other, d);
                    }
                }
            }
            // Nothing that would show.
            if before - distance < 1e-4 {
                break;
            }
        }
    }
    best
}

fn distance(timings: &[Timing], numbers: &Numbers) -> f64 {
    let mut worlds = BTreeMap::new();
    let all = timings.iter().map(|t| {
        let world = worlds.entry(t.ranks).or_insert_with(|| world(t.ranks, numbers));
        (predicted(t, world) / t.seconds).ln().abs()
    });
    all.sum::<f64>() / timings.len().max(1) as f64
}

/// `n` ranks of one host, a core each.
fn world(n: usize, numbers: &Numbers) -> Topology {
    Topology { local: class(numbers), usual: None, gamma: numbers[5], ..Topology::new(vec![0; n], n) }
}

fn predicted(t: &Timing, world: &Topology) -> f64 {
    let whole = t.bytes as usize / ELEM;
    let count = if t.kind.has_parts() { whole / t.ranks.max(1) } else { whole };
    price(&Shape::new(t.kind, 0, t.ranks, count, ELEM).common(), world, t.algorithm).predicted
}

/// Returns the measured over the predicted times. Operations without bytes have the same ratio at every size.
fn ratios(timings: &[Timing], numbers: &Numbers) -> Option<RatioTable> {
    let sorted = |all: &mut dyn Iterator<Item = u64>| {
        let mut all: Vec<u64> = all.collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    let ranks = sorted(&mut timings.iter().map(|t| t.ranks as u64));
    let bytes = sorted(&mut timings.iter().filter(|t| t.kind != Kind::Barrier).map(|t| t.bytes));
    let worlds: Vec<Topology> = ranks.iter().map(|&n| world(n as usize, numbers)).collect();
    let mut found = BTreeMap::new();
    for t in timings {
        let at = ranks.binary_search(&(t.ranks as u64)).ok()?;
        let ratio = t.seconds / predicted(t, &worlds[at]);
        let size = if t.kind == Kind::Barrier { 0 } else { t.bytes };
        found.insert((t.kind.name(), t.algorithm.name(), t.ranks as u64, size), ratio);
    }
    let pairs = Kind::ALL.into_iter().flat_map(|k| k.algorithms().map(move |a| (k, a)));
    let mut rows = Vec::new();
    for (kind, algorithm) in pairs {
        let mut row = Vec::new();
        for (n, size) in ranks.iter().flat_map(|&n| bytes.iter().map(move |&b| (n, b))) {
            let size = if kind == Kind::Barrier { 0 } else { size };
            row.push(*found.get(&(kind.name(), algorithm.name(), n, size))?);
        }
        rows.push(RatioRow::new(kind, algorithm, row));
    }
    let ranks = ranks.iter().map(|&n| u32::try_from(n)).collect::<Result<_, _>>().ok()?;
    RatioTable::new(ranks, bytes, rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{choose::choose, tuned::HostLink};
    use std::sync::Arc;

    /// A machine by other numbers, on which one algorithm takes longer than its formula says.
    fn timings(numbers: &Numbers, slow: Algorithm) -> Vec<Timing> {
        let mut all = Vec::new();
        for (kind, ranks) in Kind::ALL.into_iter().flat_map(|k| [2usize, 4, 8].map(|n| (k, n))) {
            for bytes in [32u64, 1 << 10, 1 << 15, 1 << 20] {
                for algorithm in kind.algorithms() {
                    let t = Timing { kind, algorithm, ranks, bytes, seconds: 1.0 };
                    let strange = if algorithm == slow { 3.0 } else { 1.0 };
                    all.push(Timing { seconds: strange * predicted(&t, &world(ranks, numbers)), ..t });
                }
            }
        }
        all
    }

    #[test]
    fn a_machine_s_numbers_are_found_and_its_timings_predicted() {
        let shm = [0.3e-6, 1.0 / 30e9, 0.4, 1.2, 2.0, 1.0 / 60e9];
        let tcp = [30e-6, 1.0 / 1e9, 0.2, 1.5, 1.0, 1.0 / 60e9];
        let (near, far) = (timings(&shm, Algorithm::Ring), timings(&tcp, Algorithm::Tree));
        let costs = Arc::new(fit(&near, &far).unwrap());
        for (link, numbers) in [(HostLink::Shm, &shm), (HostLink::Tcp, &tcp)] {
            let class = costs.class(link);
            for (found, real) in [(class.cost.alpha, numbers[0]), (class.cost.beta, numbers[1])] {
                assert!((0.7..1.4).contains(&(found / real)), "{link:?}: {class:?} for {numbers:?}");
            }
        }
        for (link, all) in [(HostLink::Shm, near), (HostLink::Tcp, far)] {
            for t in all {
                let world = Topology::new(vec![0; t.ranks], 8).tuned(Arc::clone(&costs), link);
                let off = predicted(&t, &world) / t.seconds;
                assert!((0.99..1.01).contains(&off), "{t:?}: {off}");
            }
        }
        // Between the sizes that were timed, too.
        let world8 = Topology::new(vec![0; 8], 8).tuned(costs, HostLink::Shm);
        let shape = Shape::new(Kind::AllGather, 0, 8, 3000, 4);
        let real = world(8, &shm);
        let chosen = choose(&shape.common(), &world8, None);
        let best = choose(&shape.common(), &real, None).predicted;
        assert!(price(&shape.common(), &real, chosen.algorithm).predicted <= 1.1 * best, "{chosen:?}");
        assert!((0.5..2.0).contains(&(chosen.predicted / best)));
    }

    #[test]
    fn timings_with_a_hole_are_none() {
        let mut shm = timings(&with_gamma(&LinkClass::SHM, 5e-11), Algorithm::Ring);
        let tcp = timings(&with_gamma(&LinkClass::TCP, 5e-11), Algorithm::Ring);
        assert!(fit(&shm, &tcp).is_some());
        assert!(fit(&shm, &[]).is_none() && fit(&[], &tcp).is_none());
        for (ranks, seconds) in [(1, 1e-6), (2, 0.0), (2, f64::NAN), (2, f64::INFINITY)] {
            let mut other = shm.clone();
            (other[3].ranks, other[3].seconds) = (ranks, seconds);
            assert!(fit(&other, &tcp).is_none(), "{ranks} {seconds}");
        }
        shm.swap_remove(17);
        assert!(fit(&shm, &tcp).is_none());
    }
}

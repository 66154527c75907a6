//! What was measured between each two ranks, and what an algorithm costs by that.
//!
//! The model of `choose` knows two kinds of link. With a number for each pair it is the plans themselves that are priced:
//!
//! ```text
//!   seconds = sum over rounds of the slowest rank's messages
//!           + the bytes of the rank, or of the host's network, that needs longest for all it sends or takes
//!           + the bytes that the busiest rank adds and copies
//! ```
//!
//! Bytes are not counted by rounds: what comes in is passed on while more of it comes.

use crate::{Act, Algorithm, Shape, Take, Topology, build, choose::Cost};
use std::collections::BTreeMap;

/// Groups above this are priced by the medians: pricing looks at the plan of every rank.
const MOST_RANKS: usize = 128;

/// What messages cost between each two ranks of a group, the same numbers on all of them.
#[derive(Clone, Debug, PartialEq)]
pub struct PairCosts {
    size: usize,
    /// By sender, then receiver.
    pairs: Vec<Cost>,
}

impl PairCosts {
    /// By sender, then receiver; `None` unless there is a sound number for every pair.
    pub fn new(size: usize, pairs: Vec<Cost>) -> Option<Self> {
        let sound = |c: &Cost| [c.alpha, c.beta].iter().all(|x| x.is_finite() && *x >= 0.0);
        (size > 0 && size.checked_mul(size) == Some(pairs.len()) && pairs.iter().all(sound))
            .then_some(Self { size, pairs })
    }

    /// How many ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Seconds that a small message takes.
    ///
    /// # Panics
    /// For a rank that is not there.
    pub fn latency(&self, from: usize, to: usize) -> f64 {
        self.pair(from, to).alpha
    }

    /// Bytes per second, of large messages.
    ///
    /// # Panics
    /// For a rank that is not there.
    pub fn bandwidth(&self, from: usize, to: usize) -> f64 {
        1.0 / self.pair(from, to).beta
    }

    pub(super) fn pair(&self, from: usize, to: usize) -> Cost {
        assert!(from < self.size && to < self.size, "ranks {from} and {to} of {}", self.size);
        self.pairs[from * self.size + to]
    }

    /// Those of some ranks, in this order.
    pub fn of(&self, members: &[usize]) -> Option<Self> {
        if members.iter().any(|&m| m >= self.size) {
            return None;
        }
        let pairs = members.iter().flat_map(|&a| members.iter().map(move |&b| (a, b)));
        Self::new(members.len(), pairs.map(|(a, b)| self.pair(a, b)).collect())
    }

    /// The median of each number over pairs that share a host, or that do not.
    fn median(&self, host: &[usize], shared: bool) -> Option<Cost> {
        let at = |r: usize| host.get(r);
        let ends = (0..self.size).flat_map(|a| (0..self.size).map(move |b| (a, b)));
        let all: Vec<Cost> = ends
            .filter(|&(a, b)| a != b && (at(a) == at(b)) == shared)
            .map(|(a, b)| self.pair(a, b))
            .collect();
        let middle = |mut x: Vec<f64>| {
            x.sort_by(f64::total_cmp);
            x.get(x.len() / 2).copied()
        };
        let alpha = middle(all.iter().map(|c| c.alpha).collect())?;
        Some(Cost { alpha, beta: middle(all.iter().map(|c| c.beta).collect())? })
    }
}

impl Topology {
    /// With what was measured between its ranks.
    pub fn measured(mut self, costs: PairCosts) -> Self {
        self.local = costs.median(&self.host, true).unwrap_or(self.local);
        self.remote = costs.median(&self.host, false).unwrap_or(self.remote);
        self.pairs = Some(costs);
        self
    }

    /// What was measured, where it is to price this group's plans.
    pub(super) fn costs(&self, size: usize) -> Option<&PairCosts> {
        self.pairs.as_ref().filter(|c| c.size == size && size <= MOST_RANKS)
    }
}

/// Seconds of one algorithm. `share` ranks take turns on a core.
pub(super) fn seconds(
    shape: &Shape,
    world: &Topology,
    costs: &PairCosts,
    algorithm: Algorithm,
    share: f64,
) -> f64 {
    let n = shape.size;
    let host = |r: usize| world.host.get(r).copied();
    let bytes = |len: usize| (len * shape.elem) as f64;
    let (mut sent, mut taken, mut added, mut copied) =
        (vec![0.0; n], vec![0.0; n], vec![0.0; n], vec![0.0; n]);
    let mut left: BTreeMap<Option<usize>, f64> = BTreeMap::new();
    // By round and rank: the slowest message, and all of them.
    let mut rounds: BTreeMap<u32, Vec<(f64, f64)>> = BTreeMap::new();
    for rank in 0..n {
        for step in build(&Shape { rank, ..*shape }, algorithm, 0).steps {
            match step.act {
                Act::Send { to, src } => {
                    let (cost, near) = (costs.pair(rank, to), host(rank) == host(to));
                    let turns = if near { share } else { 1.0 };
                    let time = bytes(src.len) * cost.beta;
                    sent[rank] += turns * time;
                    taken[to] += turns * time;
                    if !near {
                        *left.entry(host(rank)).or_default() += time;
                    }
                    let (most, all) =
                        &mut rounds.entry(step.round).or_insert_with(|| vec![(0.0, 0.0); n])[rank];
                    *most = most.max(share * cost.alpha);
                    *all += share * cost.alpha;
                }
                Act::Recv { dst, take: Take::Reduce { .. }, .. } => added[rank] += bytes(dst.len),
                Act::Recv { .. } => {}
                Act::Fold { from, dst, .. } => added[rank] += from.len() as f64 * bytes(dst.len),
                Act::Copy { src, .. } => copied[rank] += bytes(src.len),
            }
        }
    }
    let most = |of: &[f64]| of.iter().copied().fold(0.0, f64::max);
    let turns = if share > 1.0 { share * world.switch } else { 0.0 };
    // Messages of one round overlap, though not wholly.
    let round =
        |r: &Vec<(f64, f64)>| most(&r.iter().map(|(most, all)| (most + all) / 2.0).collect::<Vec<_>>());
    let messages: f64 = rounds.values().map(|r| turns + round(r)).sum();
    let moved = most(&sent).max(most(&taken)).max(left.values().copied().fold(0.0, f64::max));
    messages + moved + share * (world.gamma * most(&added) + world.local.beta * most(&copied))
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Kind, choose},
        *,
    };

    /// `n` ranks of one host, of which two are far from each other.
    fn world(n: usize, far: Option<(usize, usize)>) -> Topology {
        let is_far = |a, b| far == Some((a, b)) || far == Some((b, a));
        let cost = |a, b| if is_far(a, b) { Cost { alpha: 5e-3, beta: 1e-6 } } else { Cost::SHM };
        let pairs = (0..n).flat_map(|a| (0..n).map(move |b| (a, b))).map(|(a, b)| cost(a, b)).collect();
        Topology::new(vec![0; n], 2).measured(PairCosts::new(n, pairs).unwrap())
    }

    /// Whether any rank's plan sends from one of the two to the other.
    fn crosses(shape: &Shape, algorithm: Algorithm, (a, b): (usize, usize)) -> bool {
        (0..shape.size).any(|rank| {
            let plan = build(&Shape { rank, ..*shape }, algorithm, 0);
            plan.steps.iter().any(
                |s| matches!(s.act, Act::Send { to, .. } if (rank, to) == (a, b) || (rank, to) == (b, a)),
            )
        })
    }

    #[test]
    fn a_slow_pair_is_gone_around_and_by_all_ranks() {
        for (kind, count) in [(Kind::AllReduce, 2), (Kind::AllReduce, 1 << 20)] {
            let shape = Shape::new(kind, 0, 4, count, 4);
            let (usual, slow) = (world(4, None), world(4, Some((0, 3))));
            let plain = choose(&shape, &usual).algorithm;
            assert!(crosses(&shape, plain, (0, 3)), "{kind:?} {count}: {plain:?} uses every pair");
            let around = choose(&shape, &slow);
            assert!(!crosses(&shape, around.algorithm, (0, 3)), "{kind:?} {count}: {around:?}");
            for rank in 1..4 {
                assert_eq!(choose(&Shape { rank, ..shape }, &slow), around);
            }
        }
    }

    #[test]
    fn equal_links_cost_about_what_the_model_without_pairs_says() {
        for (kind, n) in Kind::ALL.into_iter().flat_map(|k| [2, 4, 8].map(|n| (k, n))) {
            for count in [1, 1000, 1 << 20] {
                let shape = Shape::new(kind, 0, n, if kind == Kind::Barrier { 0 } else { count }, 4);
                let plain = choose(&shape, &Topology::new(vec![0; n], 2)).predicted;
                let measured = choose(&shape, &world(n, None)).predicted;
                assert!(
                    measured > plain / 5.0 && measured < plain * 5.0,
                    "{kind:?} {n} {count}: {plain} {measured}"
                );
            }
        }
    }

    #[test]
    fn a_part_of_the_ranks_keeps_its_numbers() {
        let all = world(4, Some((0, 3))).pairs.unwrap();
        let some = all.of(&[3, 1, 0]).unwrap();
        assert_eq!((some.size(), some.latency(0, 2), some.latency(0, 1)), (3, 5e-3, Cost::SHM.alpha));
        assert!(all.of(&[4]).is_none());
        assert!(PairCosts::new(2, vec![Cost { alpha: f64::NAN, beta: 0.0 }; 4]).is_none());
        assert!(PairCosts::new(2, vec![Cost::SHM; 3]).is_none());
    }
}

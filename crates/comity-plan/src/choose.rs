//! Choice of the algorithm and its segments: the cheapest by facts that all ranks know alike.
//!
//! ```text
//!   Shape ──common──> Common ─┐
//!                             ├──> Model ──> each algorithm's seconds ──> the least
//!   Topology ─────────────────┘
//! ```
//!
//! The answer must be the same on every rank. So a choice sees a [`Common`], in which there is nothing of one rank alone, and a
//! [`Topology`], on which ranks agreed before the first call. Cost: some hundred nanoseconds; where pairs were measured, the plans of all ranks
//! by each algorithm, which take 10 to 60 us on 4 and 8 ranks, and 3 ms on 128.

use crate::{
    StepOp,
    algorithms::{Algorithm, Cuts},
    lanes::lanes,
    model::Model,
    pipeline::build,
    shape::{Common, Kind, Lengths, Shape},
    topology::Topology,
};
use std::collections::BTreeMap;

/// Measured pairs of larger groups count by their medians alone.
const MOST_RANKS: usize = 128;

/// Algorithm and segments of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Elements of a segment; 0 for one segment.
    pub segment: usize,
    /// Threads of each rank that carry a part of the call each; 1 where the rank's own thread carries it over links.
    pub lanes: usize,
    /// Expected seconds.
    pub predicted: f64,
}

/// The cheapest way to carry out a call; the preferred one, if it can. The same on every rank.
pub fn choose(call: &Common<'_>, world: &Topology, prefer: Option<Algorithm>) -> Choice {
    if let Some(algorithm) = prefer.filter(|a| a.carries(call)) {
        return price(call, world, algorithm);
    }
    let model = Model::new(call, world);
    let mut best: Option<(Algorithm, f64)> = None;
    for algorithm in call.kind.algorithms().filter(|a| a.carries(call)) {
        let predicted = seconds(&model, call, algorithm);
        if best.is_none_or(|(_, least)| predicted < least) {
            best = Some((algorithm, predicted));
        }
    }
    // Every operation is served: a test looks at the whole table.
    let (algorithm, predicted) = best.unwrap_or((Algorithm::Direct, f64::INFINITY));
    made(call, world, &model, algorithm, predicted)
}

/// Prices a call as [`choose`], with the algorithm given. Infinite seconds where it cannot carry out the call.
pub fn price(call: &Common<'_>, world: &Topology, algorithm: Algorithm) -> Choice {
    let model = Model::new(call, world);
    let predicted = if algorithm.carries(call) { seconds(&model, call, algorithm) } else { f64::INFINITY };
    made(call, world, &model, algorithm, predicted)
}

fn made(call: &Common<'_>, world: &Topology, model: &Model<'_>, algorithm: Algorithm, plain: f64) -> Choice {
    let (lanes, predicted) = lanes(call, world, model, algorithm, plain);
    Choice { algorithm, segment: segment(model, call.kind, algorithm), lanes, predicted }
}

fn seconds(model: &Model<'_>, call: &Common<'_>, algorithm: Algorithm) -> f64 {
    match algorithm.service(call.kind) {
        Some(service) if model.n > 1.0 => (service.seconds)(model) + delay(model, call, algorithm),
        Some(_) => 0.0,
        None => f64::INFINITY,
    }
}

/// Seconds that a call takes longer where pairs were measured: each round waits for the rank whose messages take longest, as far as they take
/// longer than the usual ones, which the formula knows.
fn delay(model: &Model<'_>, call: &Common<'_>, algorithm: Algorithm) -> f64 {
    let world = model.world;
    let Some(costs) = world.pairs.as_ref().filter(|c| c.size() == call.size && call.size <= MOST_RANKS)
    else {
        return 0.0;
    };
    let count = (model.bytes / call.elem.max(1) as f64) as usize;
    let counts = if let Lengths::Listed(counts) = call.lengths { counts } else { &[] };
    let mut rounds: BTreeMap<u32, f64> = BTreeMap::new();
    for rank in 0..call.size {
        let shape = Shape {
            root: call.root,
            counts,
            hosts: &world.host,
            ..Shape::new(call.kind, rank, call.size, count, call.elem)
        };
        let mut own: BTreeMap<u32, f64> = BTreeMap::new();
        for step in build(&shape, algorithm, 0).steps {
            let StepOp::Send { to, src } = step.op else { continue };
            let is_near = world.host.get(rank) == world.host.get(to);
            let usual = if is_near { world.local.cost } else { world.remote.cost };
            let cost = costs.pair(rank, to);
            let bytes = (src.len * call.elem) as f64;
            *own.entry(step.round).or_default() +=
                (cost.alpha - usual.alpha).max(0.0) + bytes * (cost.beta - usual.beta).max(0.0);
        }
        for (round, delay) in own {
            let longest = rounds.entry(round).or_default();
            *longest = longest.max(delay);
        }
    }
    rounds.into_values().sum()
}

/// Elements of a segment. Only plans whose later rounds pass on what earlier ones made gain by it; a message is to
/// stay in a core's cache on the way.
fn segment(model: &Model<'_>, kind: Kind, algorithm: Algorithm) -> usize {
    let Some(Cuts::Gains { messages, .. }) = algorithm.service(kind).map(|s| &s.cuts) else { return 0 };
    if model.bytes < 1048576.0 {
        return 0;
    }
    let message = if model.hosts > 1.0 { 524288.0 } else { 131072.0 };
    let segment = (message * messages(model)) as usize / model.elem;
    if segment as f64 * model.elem as f64 >= model.bytes { 0 } else { segment.max(1) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ReceiveMode, Step,
        topology::{Cost, HostLink, LinkClass, PairCosts},
    };

    fn pick(kind: Kind, n: usize, bytes: usize, per_host: usize, cores: usize) -> Choice {
        let host = (0..n).map(|r| r / per_host).collect();
        choose(&Shape::new(kind, 0, n, bytes / 4, 4).common(), &Topology::new(host, cores), None)
    }

    #[test]
    fn small_messages_take_few_rounds_and_large_ones_few_bytes() {
        assert_eq!(pick(Kind::AllReduce, 2, 8, 2, 2).algorithm, Algorithm::Direct);
        assert_eq!(pick(Kind::AllReduce, 4, 8, 4, 2).algorithm, Algorithm::Direct);
        assert_eq!(pick(Kind::AllReduce, 64, 8, 1, 1).algorithm, Algorithm::Doubling);
        // Where each has a core.
        for (n, algorithm) in [(2, Algorithm::Direct), (3, Algorithm::Direct), (4, Algorithm::Doubling)] {
            assert_eq!(pick(Kind::AllReduce, n, 8, n, n).algorithm, algorithm, "{n}");
        }
        let large = pick(Kind::AllReduce, 4, 64 << 20, 4, 2);
        assert_eq!(large.algorithm, Algorithm::TwoPhase);
        assert!((1..16 << 20).contains(&large.segment));
        assert_eq!(pick(Kind::Broadcast, 4, 64, 4, 4).algorithm, Algorithm::Direct);
        assert_eq!(pick(Kind::Broadcast, 64, 64, 1, 1).algorithm, Algorithm::Tree);
        assert_eq!(pick(Kind::Barrier, 2, 0, 2, 2).algorithm, Algorithm::Direct);
        assert_eq!(pick(Kind::Barrier, 512, 0, 1, 1).algorithm, Algorithm::Doubling);
        // Bytes of a part; with a core for each rank and without. Whoever measures that another algorithm is quicker changes its row.
        for (kind, n, bytes, cores, algorithm) in [
            (Kind::AllToAll, 2, 16, 2, Algorithm::Pairwise),
            (Kind::AllToAll, 4, 16, 4, Algorithm::Doubling),
            (Kind::AllToAll, 4, 1024, 4, Algorithm::Doubling),
            (Kind::AllToAll, 4, 4096, 4, Algorithm::Pairwise),
            (Kind::AllToAll, 16, 1024, 16, Algorithm::Doubling),
            (Kind::AllToAll, 16, 4096, 16, Algorithm::Pairwise),
            (Kind::AllToAll, 8, 8, 2, Algorithm::Pairwise),
            (Kind::AllGather, 2, 16, 2, Algorithm::Direct),
            (Kind::AllGather, 3, 1024, 3, Algorithm::Doubling),
            (Kind::AllGather, 4, 1024, 4, Algorithm::Doubling),
            (Kind::AllGather, 4, 8192, 4, Algorithm::Direct),
            (Kind::AllGather, 16, 1024, 16, Algorithm::Doubling),
            (Kind::AllGather, 8, 4096, 8, Algorithm::Direct),
            (Kind::AllGather, 8, 65536, 8, Algorithm::Ring),
            (Kind::AllGather, 8, 1 << 20, 8, Algorithm::Ring),
            (Kind::ReduceScatter, 8, 128, 8, Algorithm::Doubling),
            (Kind::ReduceScatter, 8, 2048, 8, Algorithm::Direct),
            (Kind::ReduceScatter, 8, 1 << 20, 8, Algorithm::Direct),
        ] {
            assert_eq!(pick(kind, n, bytes, n, cores).algorithm, algorithm, "{kind:?}, {n}, {bytes}");
        }
    }

    #[test]
    fn hosts_with_several_ranks_speak_as_one() {
        assert_eq!(pick(Kind::AllReduce, 16, 64 << 20, 8, 8).algorithm, Algorithm::Hierarchy);
        assert_eq!(pick(Kind::AllReduce, 12, 8, 3, 3).algorithm, Algorithm::Leader);
        assert_eq!(pick(Kind::AllGather, 16, 1 << 20, 8, 8).algorithm, Algorithm::Hierarchy);
        assert_eq!(pick(Kind::Broadcast, 12, 8, 3, 3).algorithm, Algorithm::Leader);
    }

    #[test]
    fn a_ring_that_is_preferred_goes_before_what_is_cheaper() {
        for kind in Kind::ALL {
            for (n, bytes) in [(2, 8), (4, 1 << 20), (16, 64 << 20)] {
                let shape = Shape::new(kind, 0, n, bytes / 4, 4);
                let usual = Topology::new((0..n).map(|r| r / 4).collect(), 2);
                let free = choose(&shape.common(), &usual, None);
                let ring = choose(&shape.common(), &usual, Some(Algorithm::Ring));
                let has_ring = Algorithm::Ring.serves(kind);
                let wanted = if has_ring { Algorithm::Ring } else { free.algorithm };
                assert_eq!(ring.algorithm, wanted, "{kind:?}, {n} ranks, {bytes} bytes");
            }
        }
        let small = Shape::new(Kind::AllReduce, 0, 4, 2, 4);
        assert_ne!(choose(&small.common(), &Topology::new(vec![0; 4], 2), None).algorithm, Algorithm::Ring);
    }

    #[test]
    fn all_ranks_choose_alike() {
        let counts = [[1, 2, 3], [7, 0, 900], [0, 0, 0]];
        let world = Topology::new(vec![0, 0, 1], 2);
        for kind in Kind::ALL {
            let choice = |rank: usize| {
                // What a rank sends in an all_to_all is its own affair.
                let counts = if kind == Kind::AllToAll { &counts[rank] } else { &counts[0] };
                let shape = Shape { counts, recv_counts: counts, ..Shape::new(kind, rank, 3, 0, 4) };
                choose(&shape.common(), &world, None)
            };
            assert_eq!(choice(0), choice(1), "{kind:?}");
            assert_eq!(choice(0), choice(2), "{kind:?}");
        }
    }

    #[test]
    fn costs_grow_with_bytes_and_never_go_wrong() {
        for kind in Kind::ALL {
            for n in [1, 2, 3, 5, 8, 64, 1000] {
                for algorithm in kind.algorithms() {
                    let world = Topology::new((0..n).map(|r| r / 3).collect(), 2);
                    let at = |count| {
                        price(&Shape::new(kind, 0, n, count, 4).common(), &world, algorithm).predicted
                    };
                    assert!(at(0).is_finite() && at(0) >= 0.0, "{kind:?} {algorithm:?} {n}");
                    assert!(at(1000) <= at(1_000_000), "{kind:?} {algorithm:?} {n}");
                    assert_eq!(n == 1, at(1) == 0.0, "{kind:?} {algorithm:?} {n}");
                }
            }
        }
    }

    /// `n` ranks of one host, of which two are far from each other.
    fn world(n: usize, far: Option<(usize, usize)>) -> Topology {
        let is_far = |a, b| far == Some((a, b)) || far == Some((b, a));
        let cost = |a, b| if is_far(a, b) { Cost { alpha: 5e-3, beta: 1e-6 } } else { LinkClass::SHM.cost };
        let pairs = (0..n).flat_map(|a| (0..n).map(move |b| (a, b))).map(|(a, b)| cost(a, b)).collect();
        Topology::new(vec![0; n], 2).measured(PairCosts::new(n, pairs).unwrap())
    }

    /// Returns true if any rank's plan sends from one of the two to the other.
    fn crosses(shape: &Shape, algorithm: Algorithm, a: usize, b: usize) -> bool {
        (0..shape.size).any(|rank| {
            let plan = build(&Shape { rank, ..*shape }, algorithm, 0);
            plan.steps.iter().any(
                |s| matches!(s.op, StepOp::Send { to, .. } if (rank, to) == (a, b) || (rank, to) == (b, a)),
            )
        })
    }

    #[test]
    fn a_slow_pair_is_gone_around_and_by_all_ranks() {
        for (kind, count) in [(Kind::AllReduce, 2), (Kind::AllReduce, 1 << 20)] {
            let shape = Shape::new(kind, 0, 4, count, 4);
            let usual = world(4, None);
            let slow = world(4, Some((0, 3)));
            let plain = choose(&shape.common(), &usual, None).algorithm;
            assert!(crosses(&shape, plain, 0, 3), "{kind:?} {count}: {plain:?} uses every pair");
            let around = choose(&shape.common(), &slow, None);
            assert!(!crosses(&shape, around.algorithm, 0, 3), "{kind:?} {count}: {around:?}");
            for rank in 1..4 {
                assert_eq!(choose(&Shape { rank, ..shape }.common(), &slow, None), around);
            }
        }
    }

    /// A round of the model names the pairs that the plan's round uses, and no others.
    #[test]
    fn a_slow_pair_costs_the_plans_that_cross_it() {
        let mut wrong = Vec::new();
        for (kind, n) in Kind::ALL.into_iter().flat_map(|k| [2, 3, 4, 5, 6, 8].map(|n| (k, n))) {
            let shape = Shape::new(kind, 0, n, if kind == Kind::Barrier { 0 } else { 1000 }, 4);
            for algorithm in kind.algorithms() {
                let predict = |far| price(&shape.common(), &world(n, far), algorithm).predicted;
                let usual = predict(None);
                for (a, b) in (0..n).flat_map(|b| (0..b).map(move |a| (a, b))) {
                    let crosses = crosses(&shape, algorithm, a, b);
                    let slow = predict(Some((a, b)));
                    if crosses != (slow > usual * 1.001) {
                        wrong.push(format!(
                            "{kind:?} {algorithm:?}, {n} ranks, {a} - {b}: crossed {crosses}, {usual} {slow}"
                        ));
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "{} {}", wrong.len(), wrong.join("\n"));
    }

    #[test]
    fn equal_links_cost_about_what_the_model_without_pairs_says() {
        for (kind, n) in Kind::ALL.into_iter().flat_map(|k| [2, 4, 8].map(|n| (k, n))) {
            for count in [1, 1000, 1 << 20] {
                let shape = Shape::new(kind, 0, n, if kind == Kind::Barrier { 0 } else { count }, 4);
                let plain = choose(&shape.common(), &Topology::new(vec![0; n], 2), None).predicted;
                let measured = choose(&shape.common(), &world(n, None), None).predicted;
                assert!(
                    measured > plain / 5.0 && measured < plain * 5.0,
                    "{kind:?} {n} {count}: {plain} {measured}"
                );
            }
        }
    }

    /// Least cost of a plan: of the dearest message of each round, of the bytes within its host that the busiest rank sends or takes, and of
    /// those to other hosts that the busiest host sends or takes.
    fn counted(shape: &Shape, algorithm: Algorithm, world: &Topology) -> f64 {
        let mut rounds: BTreeMap<u32, f64> = BTreeMap::new();
        let mut near = [vec![0.0; shape.size], vec![0.0; shape.size]];
        let mut far = near.clone();
        for rank in 0..shape.size {
            for step in build(&Shape { rank, ..*shape }, algorithm, 0).steps {
                let StepOp::Send { to, src } = step.op else { continue };
                let [from, at] = [rank, to].map(|r| world.host[r]);
                let cost = if from == at { world.local.cost } else { world.remote.cost };
                let dearest = rounds.entry(step.round).or_default();
                *dearest = dearest.max(cost.alpha);
                let (moved, ends) = if from == at { (&mut near, [rank, to]) } else { (&mut far, [from, at]) };
                moved.iter_mut().zip(ends).for_each(|(m, end)| m[end] += (src.len * 4) as f64 * cost.beta);
            }
        }
        let most = |moved: [Vec<f64>; 2]| moved.concat().into_iter().fold(0.0, f64::max);
        rounds.values().sum::<f64>() + most(near) + most(far)
    }

    #[test]
    fn a_price_is_near_what_the_plans_rounds_and_bytes_cost() {
        // One host; hosts alike; uneven ones, the fullest last, first and in between.
        let layouts: [&[usize]; 9] =
            [&[2], &[4], &[7], &[16], &[4, 4], &[3, 5], &[5, 3], &[1, 7], &[2, 6, 1]];
        for (kind, ranks) in Kind::ALL.into_iter().flat_map(|k| layouts.map(|l| (k, l))) {
            let hosts: Vec<usize> =
                ranks.iter().enumerate().flat_map(|(h, n)| std::iter::repeat_n(h, *n)).collect();
            let n = hosts.len();
            for (algorithm, bytes) in
                kind.algorithms().flat_map(|a| [4096, 1 << 20, 64 << 20].map(|b| (a, b)))
            {
                let count = if kind.has_parts() { bytes / 4 / n } else { bytes / 4 };
                let count = if kind == Kind::Barrier { 0 } else { count };
                let shape = Shape { hosts: &hosts, ..Shape::new(kind, 0, n, count, 4) };
                for link in [LinkClass::SHM, LinkClass::TCP] {
                    let usual = (link == LinkClass::SHM).then_some(HostLink::Shm);
                    let world = Topology { local: link, usual, ..Topology::new(hosts.clone(), n) };
                    let price = price(&shape.common(), &world, algorithm).predicted;
                    let off = price / counted(&shape, algorithm, &world);
                    assert!(
                        (0.5..13.0).contains(&off),
                        "{kind:?} of {bytes} bytes by {algorithm:?} on {ranks:?}, {usual:?}: {off}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_round_of_the_barrier_crosses_hosts_at_every_distance() {
        // Two hosts of four: ranks 3 and 7 send to the other host in each of the three rounds.
        let world = Topology::new((0..8).map(|r| r / 4).collect(), 4);
        let shape = Shape::new(Kind::Barrier, 0, 8, 0, 1);
        let price = price(&shape.common(), &world, Algorithm::Doubling).predicted;
        assert!(price >= 3.0 * LinkClass::TCP.cost.alpha, "{price}");
        let cost =
            |a: usize, b: usize| if a / 4 == b / 4 { LinkClass::SHM.cost } else { LinkClass::TCP.cost };
        let pairs = (0..64).map(|i| cost(i / 8, i % 8)).collect();
        let world = world.measured(PairCosts::new(8, pairs).unwrap());
        let measured = self::price(&shape.common(), &world, Algorithm::Doubling).predicted;
        assert!(measured >= 3.0 * LinkClass::TCP.cost.alpha && measured < 2.0 * price, "{measured} {price}");
    }

    #[test]
    fn parts_that_nobody_knows_are_not_free() {
        let world = Topology::new(vec![0; 8], 8);
        let parts = [1, 2, 3, 4, 5, 6, 7, 8];
        let of = |counts| Shape { counts, recv_counts: counts, ..Shape::new(Kind::AllToAll, 0, 8, 0, 4) };
        for algorithm in Kind::AllToAll.algorithms().filter(|a| a.carries(&of(&parts).common())) {
            let unknown = price(&of(&parts).common(), &world, algorithm).predicted;
            let empty = price(&of(&[]).common(), &world, algorithm).predicted;
            assert!(unknown > 1.5 * empty, "{algorithm:?}: {unknown} {empty}");
        }
    }

    /// Elements that each rank sends to each other, adds and copies, round by round.
    fn traffic(shape: &Shape, algorithm: Algorithm) -> Vec<Vec<(u32, usize, usize)>> {
        let of_rank = |rank| {
            let plan = build(&Shape { rank, ..*shape }, algorithm, 0);
            let first = plan.steps.iter().map(|s| s.round).min().unwrap_or_default();
            let kept = |s: &Step| match &s.op {
                StepOp::Send { to, src } => Some((s.round - first, *to, src.len)),
                StepOp::Copy { src, .. } => Some((s.round - first, rank, src.len)),
                StepOp::NWayReduce { from, dst, .. } => Some((s.round - first, from.len() << 16, dst.len)),
                StepOp::Recv { mode: ReceiveMode::Reduce { .. }, dst, .. } => {
                    Some((s.round - first, 1 << 16, dst.len))
                }
                StepOp::Recv { .. } => None,
            };
            let mut all: Vec<_> = plan
                .steps
                .iter()
                .filter_map(kept)
                .filter(|k| k.2 > 0 || shape.kind == Kind::Barrier)
                .collect();
            all.sort_unstable();
            all
        };
        (0..shape.size).map(of_rank).collect()
    }

    /// On 2 and 3 ranks, and where hosts are uneven, formulas count phases that are empty there, or pairs that cross hosts at some distances
    /// only: they are dearer than a twin, and so are not chosen in its place. The hierarchy is priced by its way for long buffers.
    #[test]
    fn equal_traffic_is_priced_alike() {
        let mut twins = 0;
        for (kind, n) in Kind::ALL.into_iter().flat_map(|k| [4, 6, 8, 16].map(|n| (k, n))) {
            for (count, hosts) in [2, 1000, 1 << 20].into_iter().flat_map(|c| [1, n].map(|h| (c, h))) {
                let hosts: Vec<_> = (0..n).map(|r| r % hosts).collect();
                let shape = Shape { hosts: &hosts, ..Shape::new(kind, 0, n, count, 4) };
                let world = Topology::new(hosts.clone(), n);
                let served = kind.algorithms().filter(|a| a.carries(&shape.common()));
                let priced: Vec<_> = served
                    .filter(|a| *a != Algorithm::Hierarchy)
                    .map(|a| (a, traffic(&shape, a), price(&shape.common(), &world, a).predicted))
                    .collect();
                for (i, (one, moved, seconds)) in priced.iter().enumerate() {
                    for (other, _, also) in priced[..i].iter().filter(|(_, m, _)| m == moved) {
                        twins += 1;
                        let off = seconds / also;
                        assert!(
                            (0.95..1.05).contains(&off),
                            "{kind:?} of {count} on {n}, {hosts:?}: {one:?} {off} of {other:?}"
                        );
                    }
                }
            }
        }
        assert!(twins > 50, "{twins}");
    }
}

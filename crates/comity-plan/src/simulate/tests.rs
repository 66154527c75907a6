//! Every operation, algorithm and rank count, with the sizes that go wrong.

use super::*;
use crate::{Algorithm, LanePhase, LanePlan, Phase, Slice, algorithms::Extent, build, build_with_lanes};
use proptest::prelude::*;
use std::{collections::BTreeSet, ops::RangeInclusive};

const UNBOUNDED: usize = usize::MAX;

/// Hosts of `n` ranks: one, pairs, threes, dealt out, one rank apart from the rest, each its own.
fn layouts(n: usize) -> Vec<Vec<usize>> {
    let all = [
        Vec::new(),
        (0..n).map(|r| r / 2).collect(),
        (0..n).map(|r| r / 3).collect(),
        (0..n).map(|r| r % 2).collect(),
        (0..n).map(|r| usize::from(r > 0)).collect(),
        (0..n).collect(),
    ];
    all.into_iter().take(if n > 1 { 6 } else { 1 }).collect()
}

/// Returns true if the plans depend on the hosts of the ranks.
fn knows_hosts(a: Algorithm, kind: Kind, n: usize) -> bool {
    let here = |hosts: &[usize]| {
        let shape = Shape { hosts, ..Shape::new(kind, 0, n, if kind == Kind::Barrier { 0 } else { n }, 4) };
        (0..n).map(|rank| build(&Shape { rank, ..shape }, a, 0)).collect::<Vec<_>>()
    };
    let together = here(&[]);
    layouts(n).iter().any(|hosts| here(hosts) != together)
}

fn rooted(kind: Kind) -> bool {
    matches!(kind, Kind::Reduce | Kind::Broadcast | Kind::Gather | Kind::Scatter)
}

/// All ranks' shapes of one call.
fn call<'a>(shape: Shape<'a>) -> Vec<Shape<'a>> {
    (0..shape.size).map(|rank| Shape { rank, ..shape }).collect()
}

/// Run and judge; the name of the case goes into the message.
fn prove(shape: Shape, algorithm: Algorithm, segment: usize, how: Trial) -> Outcome {
    match run(&call(shape), how, |s| build(s, algorithm, segment)) {
        Ok(done) => done,
        Err(e) => panic!("{e}\n{shape:?} {algorithm:?} segment {segment} {how:?}"),
    }
}

/// Cases of one rank count, all or a rotating choice of what matters less.
struct Sweep<'a> {
    n: usize,
    counts: &'a [usize],
    /// Segment and capacity.
    ways: &'a [(usize, usize)],
    /// True if every layout, root and way meets every count.
    all: bool,
    /// If not, how many cases.
    each: usize,
}

impl Sweep<'_> {
    fn prove(&self) {
        let n = self.n;
        let mut turn = n;
        for kind in Kind::ALL {
            for algorithm in kind.algorithms() {
                let layouts = if knows_hosts(algorithm, kind, n) { layouts(n) } else { vec![Vec::new()] };
                let mut roots = if rooted(kind) { vec![0, n / 2, n - 1] } else { vec![0] };
                roots.dedup();
                for &count in self.counts {
                    let whole = matches!(kind, Kind::AllReduce | Kind::Reduce | Kind::Broadcast);
                    let count = match kind {
                        Kind::Barrier => 0,
                        // The square of the ranks times this is what moves.
                        _ if n > 17 && !whole => count.min(3),
                        _ => count,
                    };
                    let cases = layouts.len() * roots.len() * self.ways.len() * 4;
                    // A step without common divisors comes by everything in time.
                    let (from, to) =
                        if self.all { (0, cases) } else { (turn * 7919, turn * 7919 + self.each) };
                    for case in (from..to).map(|c| c % cases) {
                        let rest = case / 4;
                        let in_place = case % 2 == 1;
                        let lends = case / 2 % 2 == 1;
                        let (rest, (segment, capacity)) =
                            (rest / self.ways.len(), self.ways[rest % self.ways.len()]);
                        let hosts = &layouts[rest / roots.len()];
                        let root = roots[rest % roots.len()];
                        let shape = Shape { root, hosts, ..Shape::new(kind, 0, n, count, 4) };
                        prove(shape, algorithm, segment, Trial { capacity, in_place, lends, disorder: 0 });
                    }
                    turn += 1;
                }
            }
        }
    }
}

/// All that a rank does in a call over several hosts whose ranks add up and share within their host by lanes.
fn with_lanes(s: &Shape) -> Plan {
    let LanePlan { mates, phases, .. } = build_with_lanes(s);
    let at = mates.iter().position(|&m| m == s.rank).unwrap();
    let mut all = Plan { steps: Vec::new(), tmp: 0 };
    for (i, phase) in phases.into_iter().enumerate() {
        let round = 1000 * i as u32;
        match phase {
            Phase::Links(plan) => {
                all.steps.extend(plan.steps.into_iter().map(|s| Step { round: s.round + round, ..s }));
                all.tmp = plan.tmp;
            }
            Phase::Lanes(phase) => {
                all.steps.extend(by_messages(phase, &mates, at).into_iter().map(|op| Step { round, op }));
            }
        }
    }
    all
}

/// Steps of rank `at` of `mates` in a phase, as messages.
fn by_messages(phase: LanePhase, mates: &[usize], at: usize) -> Vec<StepOp> {
    let LanePhase { adds, input, output, part } = phase;
    let of = |s: Slice, i: usize| {
        let begin = (i * part).min(s.len);
        s.part((begin, part.min(s.len - begin)))
    };
    let others = || (0..mates.len()).filter(|&i| i != at);
    let send = |i: usize| StepOp::Send { to: mates[i], src: of(input, if adds { i } else { at }) };
    let mut ops: Vec<StepOp> = others().map(send).collect();
    if adds {
        let dst = if output.len == input.len { of(output, at) } else { output };
        let own = of(input, at);
        let from: Vec<usize> = others().map(|i| mates[i]).collect();
        ops.push(match from[..] {
            [from] => StepOp::Recv { from, dst, mode: ReceiveMode::Reduce { with: own, last: false } },
            _ => StepOp::NWayReduce { from, own, dst, last: false },
        });
    } else {
        let take = |i: usize| StepOp::Recv { from: mates[i], dst: of(output, i), mode: ReceiveMode::Copy };
        ops.extend(others().map(take));
    }
    let has_elements = |op: &StepOp| match op {
        StepOp::Send { src, .. } => src.len > 0,
        StepOp::Recv { dst, .. } | StepOp::NWayReduce { dst, .. } | StepOp::Copy { dst, .. } => dst.len > 0,
    };
    ops.retain(has_elements);
    ops
}

#[test]
fn lanes_within_hosts_add_in_the_order_of_the_hierarchy() {
    for (hosts, local) in [(2, 2), (2, 3), (3, 2), (4, 4), (5, 2), (16, 2)] {
        let n = hosts * local;
        for (kind, by_turns) in [
            (Kind::AllReduce, false),
            (Kind::AllReduce, true),
            (Kind::AllGather, false),
            (Kind::ReduceScatter, false),
        ] {
            let host: Vec<usize> = (0..n).map(|r| if by_turns { r % hosts } else { r / local }).collect();
            for count in if kind.has_parts() { [1, 7, 100] } else { [1, 100, 5000] } {
                let shape = Shape { hosts: &host, ..Shape::new(kind, 0, n, count, 4) };
                for in_place in [false, true] {
                    let how = Trial { capacity: 64, in_place, lends: false, disorder: 3 };
                    let plain = prove(shape, Algorithm::Hierarchy, 0, how);
                    let lanes =
                        run(&call(shape), how, with_lanes).unwrap_or_else(|e| panic!("{e}\n{shape:?}"));
                    assert!(plain.out == lanes.out, "{shape:?}");
                }
                // Each hears from all that it takes something from, and nobody waits in vain.
                let all: Vec<LanePlan> = call(shape).iter().map(build_with_lanes).collect();
                let sources = |plan: &Plan| -> BTreeSet<usize> {
                    let of = |s: &Step| match &s.op {
                        StepOp::Recv { from, .. } => vec![*from],
                        StepOp::NWayReduce { from, .. } => from.clone(),
                        _ => Vec::new(),
                    };
                    plan.steps.iter().flat_map(of).collect()
                };
                for (rank, LanePlan { mates, headers, phases }) in all.iter().enumerate() {
                    let heard = sources(headers);
                    let links =
                        |p: &Phase| if let Phase::Links(plan) = p { sources(plan) } else { BTreeSet::new() };
                    let taken = phases.iter().flat_map(links);
                    let mut needed = mates.iter().copied().filter(|&r| r != rank).chain(taken);
                    assert!(needed.all(|r| heard.contains(&r)), "{rank}: {shape:?}");
                    let sent = |s: &Step| matches!(s.op, StepOp::Send { to, .. } if to == rank);
                    let from: BTreeSet<usize> =
                        (0..n).filter(|&r| all[r].headers.steps.iter().any(sent)).collect();
                    assert_eq!(heard, from);
                }
            }
        }
    }
}

/// 0, 1, 2, around `n`, primes.
fn awkward(n: usize) -> Vec<usize> {
    let mut counts = vec![0, 1, 2, n - 1, n, n + 1, 13, 31, 100];
    counts.sort_unstable();
    counts.dedup();
    counts
}

const WAYS: [(usize, usize); 6] = [(0, 1), (0, 3), (0, UNBOUNDED), (5, 1), (5, 3), (5, UNBOUNDED)];

#[test]
fn up_to_5_ranks_everything() {
    for n in 1..=5 {
        Sweep { n, counts: &awkward(n), ways: &WAYS, all: true, each: 0 }.prove();
    }
}

#[test]
fn up_to_17_ranks_awkward_counts() {
    for n in share(6..=17) {
        Sweep { n, counts: &awkward(n), ways: &WAYS, all: false, each: 2 }.prove();
        Sweep { n, counts: &[1, n + 1], ways: &[(0, 1)], all: n < 12, each: 2 }.prove();
    }
}

#[test]
fn up_to_64_ranks() {
    for n in share(18..=64) {
        Sweep { n, counts: &[1, n + 3], ways: &[(0, 1), (0, UNBOUNDED), (2, 3)], all: false, each: 1 }
            .prove();
    }
}

/// The rank counts that this run takes.
fn share(ranks: RangeInclusive<usize>) -> Vec<usize> {
    scope::Scope::from_env().share(ranks.collect(), 3)
}

/// Parts of all lengths, some empty.
fn uneven(n: usize, salt: u64) -> Vec<usize> {
    (0..n).map(|r| (mix(r as u64, salt) % 7) as usize * usize::from(r % 5 != 3)).collect()
}

#[test]
fn unequal_parts() {
    for n in 1..=17 {
        for kind in [Kind::AllGather, Kind::ReduceScatter, Kind::Gather, Kind::Scatter] {
            for algorithm in kind.algorithms() {
                for hosts in if knows_hosts(algorithm, kind, n) { layouts(n) } else { vec![Vec::new()] } {
                    for (salt, (segment, capacity)) in WAYS.into_iter().enumerate() {
                        let counts = uneven(n, salt as u64);
                        let root = salt * 5 % n;
                        let shape =
                            Shape { counts: &counts, hosts: &hosts, root, ..Shape::new(kind, 0, n, 0, 4) };
                        if !algorithm.carries(&shape.common()) {
                            continue;
                        }
                        prove(
                            shape,
                            algorithm,
                            segment,
                            Trial { capacity, in_place: salt % 2 == 0, lends: salt % 3 == 0, disorder: 0 },
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn all_to_all_of_unequal_parts() {
    for n in 1..=17 {
        let send: Vec<_> = (0..n).map(|r| uneven(n, r as u64)).collect();
        let recv: Vec<Vec<_>> = (0..n).map(|r| send.iter().map(|s| s[r]).collect()).collect();
        let shape = |r: usize| Shape {
            counts: &send[r],
            recv_counts: &recv[r],
            ..Shape::new(Kind::AllToAll, r, n, 0, 4)
        };
        let shapes: Vec<_> = (0..n).map(shape).collect();
        for algorithm in Kind::AllToAll.algorithms().filter(|a| a.carries(&shapes[0].common())) {
            for (segment, capacity) in WAYS {
                let how = Trial { capacity, in_place: false, lends: false, disorder: 0 };
                let done = run(&shapes, how, |s| build(s, algorithm, segment));
                assert_eq!(done.map(|_| ()), Ok(()), "{n} ranks, {algorithm:?}");
            }
        }
    }
}

#[test]
fn ranks_send_what_the_files_promise() {
    for n in 2..=20 {
        for kind in Kind::ALL {
            for algorithm in kind.algorithms() {
                for hosts in [vec![0; n], (0..n).map(|r| r / 4).collect()] {
                    let count = if kind == Kind::Barrier { 0 } else { 2 * n + 1 };
                    let shape = Shape { hosts: &hosts, ..Shape::new(kind, 0, n, count, 4) };
                    let how = Trial { capacity: UNBOUNDED, in_place: false, lends: false, disorder: 0 };
                    let done = prove(shape, algorithm, 0, how);
                    let many = hosts[n - 1] + 1;
                    let local = n.div_ceil(many).max(n.min(if many > 1 { 4 } else { n }));
                    let most =
                        (algorithm.service(kind).unwrap().sends)(Extent { n, count, local, hosts: many });
                    let sent = done.sent.iter().max();
                    assert!(sent <= Some(&most), "{sent:?} > {most}: {n} {kind:?} {algorithm:?} {hosts:?}");
                }
            }
        }
    }
}

#[test]
fn hosts_exchange_no_more_than_they_must() {
    // Four hosts of three: all that leaves a host in an all_reduce is 2 * 3/4 of the buffer.
    let hosts: Vec<_> = (0..12).map(|r| r / 3).collect();
    let shape = Shape { hosts: &hosts, ..Shape::new(Kind::AllReduce, 0, 12, 1 << 20, 4) };
    let left: usize = (0..3)
        .flat_map(|rank| build(&Shape { rank, ..shape }, Algorithm::Hierarchy, 0).steps)
        .filter_map(|s| match s.op {
            StepOp::Send { to, src } if to >= 3 => Some(src.len),
            _ => None,
        })
        .sum();
    assert!(left.abs_diff(3 * (1 << 20) / 2) < 16, "{left}");
}

#[test]
fn doubling_has_few_rounds_and_equal_bits() {
    for n in 2..=64usize {
        let shape = Shape::new(Kind::AllReduce, 0, n, 1, 4);
        let rounds =
            |rank| build(&Shape { rank, ..shape }, Algorithm::Doubling, 0).steps.last().map(|s| s.round + 1);
        let most = n.ilog2() + if n.is_power_of_two() { 0 } else { 2 };
        assert!((0..n).filter_map(rounds).all(|r| r <= most), "{n}");
    }
}

#[test]
fn thousands_of_ranks() {
    let how = Trial { capacity: 3, in_place: true, lends: true, disorder: 0 };
    for (n, per_host) in [(257, 8), (4096, 64)] {
        let hosts: Vec<_> = (0..n).map(|r| r / per_host).collect();
        let shape = |kind, count| Shape { hosts: &hosts, root: n / 3, ..Shape::new(kind, 0, n, count, 4) };
        for (kind, algorithm) in [
            (Kind::AllReduce, Algorithm::Doubling),
            (Kind::AllReduce, Algorithm::Leader),
            (Kind::AllReduce, Algorithm::Hierarchy),
            (Kind::Reduce, Algorithm::Tree),
            (Kind::Reduce, Algorithm::Direct),
            (Kind::Reduce, Algorithm::Leader),
            (Kind::Broadcast, Algorithm::Tree),
            (Kind::Broadcast, Algorithm::Chain),
            (Kind::Broadcast, Algorithm::Leader),
            (Kind::Gather, Algorithm::Tree),
            (Kind::Scatter, Algorithm::Direct),
            (Kind::Scatter, Algorithm::Tree),
        ] {
            // The largest group takes a second each: a choice.
            if n < 4096 || matches!(algorithm, Algorithm::Doubling | Algorithm::Hierarchy) {
                prove(shape(kind, 2), algorithm, 0, how);
            }
        }
        prove(shape(Kind::Barrier, 0), Algorithm::Doubling, 0, how);
        prove(shape(Kind::Barrier, 0), Algorithm::Leader, 0, how);
    }
}

/// Messages from `a` to `b`, with their rounds, as `rank` sees them.
fn messages(shape: &Shape, algorithm: Algorithm, rank: usize, a: usize, b: usize) -> Vec<(u32, usize)> {
    let steps = build(&Shape { rank, ..*shape }, algorithm, 0).steps.into_iter();
    steps
        .filter_map(|s| match s.op {
            StepOp::Send { to, src } if rank == a && to == b => Some((s.round, src.len)),
            StepOp::Recv { from, dst, .. } if rank == b && from == a => Some((s.round, dst.len)),
            StepOp::NWayReduce { ref from, dst, .. } if rank == b && from.contains(&a) => {
                Some((s.round, dst.len))
            }
            _ => None,
        })
        .collect()
}

#[test]
fn pairs_of_thousands_agree() {
    let n = 4096;
    let hosts: Vec<_> = (0..n).map(|r| r / 32).collect();
    for kind in Kind::ALL {
        for algorithm in kind.algorithms() {
            let count =
                if matches!(kind, Kind::AllReduce | Kind::Reduce | Kind::Broadcast) { n + 77 } else { 3 };
            let shape = Shape { hosts: &hosts, root: 5, ..Shape::new(kind, 0, n, count, 4) };
            for (a, b) in [(0, 1), (5, 4095), (31, 32), (1024, 0), (100, 5), (7, 39)] {
                let sent = messages(&shape, algorithm, a, a, b);
                let awaited = messages(&shape, algorithm, b, a, b);
                assert_eq!(sent, awaited, "{kind:?} {algorithm:?} {a} -> {b}");
            }
        }
    }
}

#[test]
fn plans_stay_small_enough() {
    for n in [2, 8, 64] {
        for algorithm in Kind::AllReduce.algorithms() {
            let plan = build(&Shape::new(Kind::AllReduce, 0, n, 1 << 30, 4), algorithm, 1);
            assert!(plan.steps.len() <= 8192 + 8 * n, "{n} {algorithm:?}: {}", plan.steps.len());
        }
    }
}

#[test]
fn the_simulation_sees_a_broken_plan() {
    let shape = Shape::new(Kind::AllReduce, 0, 3, 8, 4);
    let how = Trial { capacity: 1, in_place: false, lends: false, disorder: 0 };
    let spoil = |change: fn(&mut Plan)| {
        run(&call(shape), how, |s| {
            let mut plan = build(s, Algorithm::Ring, 0);
            if s.rank == 1 {
                change(&mut plan);
            }
            plan
        })
        .map(|_| ())
    };
    assert_eq!(spoil(|_| {}), Ok(()));
    assert!(spoil(|p| drop(p.steps.pop())).is_err());
    assert!(spoil(|p| p.steps.swap(0, 2)).is_err());
    let never_last = |p: &mut Plan| {
        for s in &mut p.steps {
            if let StepOp::Recv { mode: ReceiveMode::Reduce { last, .. }, .. } = &mut s.op {
                *last = false;
            }
        }
    };
    assert!(spoil(never_last).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_call_in_any_order(
        kind in 0..Kind::ALL.len(), pick in 0usize..16, n in 1usize..13, count in 0usize..40, root in 0usize..13,
        segment in 0usize..12, capacity in 1usize..9, in_place: bool, disorder in 1u64.., world in prop::collection::vec(0usize..4, 13),
    ) {
        let kind = Kind::ALL[kind];
        let algorithm = kind.algorithms().nth(pick % kind.algorithms().count()).unwrap();
        let count = if kind == Kind::Barrier { 0 } else { count };
        let shape = Shape { root: root % n, hosts: &world[..n], ..Shape::new(kind, 0, n, count, 4) };
        let one = prove(shape, algorithm, segment, Trial { capacity, in_place, lends: disorder % 2 == 0, disorder });
        // Neither arrival order nor capacity nor place changes a bit.
        let two = prove(shape, algorithm, segment, Trial { capacity: UNBOUNDED, in_place: !in_place, lends: false, disorder: 0 });
        prop_assert_eq!(one.out, two.out);
        prop_assert_eq!(one.messages, two.messages);
    }
}

//! Groups in which one rank makes another call than the others: somebody is told, nobody hangs, no result is wrong.
//!
//! A rank's result depends on the ranks that its call takes data from. If one of them made another call, this rank must
//! fail; otherwise it may succeed, with the right result. Once somebody has seen the difference, every rank's next call fails.
//! Ranks that wait for each other are told long before their limit.

mod call;
mod case;
#[path = "../common/mod.rs"]
mod common;
mod parts;
mod worlds;

use call::{Call, Counts, next};
use case::{Case, How, judge, play};
use comity::{DType, ErrorKind, Group, Op, ReduceOp, Wire};
use common::each;
use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

/// Cases at a time: some spend most of their time asleep.
const WORKERS: usize = 12;

const COLLECTIVES: [Op; 9] = [
    Op::AllReduce,
    Op::Reduce,
    Op::Broadcast,
    Op::AllGather,
    Op::ReduceScatter,
    Op::Gather,
    Op::Scatter,
    Op::AllToAll,
    Op::Barrier,
];

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for n in [2, 3, 4] {
        for odd in 0..n {
            let mut odd = || odd;
            // 1 MiB, or parts of 256 KiB.
            cases.extend(arguments(n, [262_144, 65_536], &mut odd));
            cases.extend(orders(n, 65_536, [Op::Broadcast, Op::Reduce], &mut odd));
            cases.extend(messages(n, 262_144, &mut odd));
        }
    }
    // Where the difference is none.
    cases.retain(|c| c.calls.iter().any(|calls| *calls != c.calls[0]));
    cases
}

/// The odd rank calls another operation, or the same with another argument; of few elements, or of so many, where those are the whole or parts.
fn arguments(n: usize, [whole, part]: [usize; 2], odd: &mut dyn FnMut() -> usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, op) in COLLECTIVES.into_iter().enumerate() {
        let is_whole = matches!(op, Op::AllReduce | Op::Reduce | Op::Broadcast);
        for count in [3, if is_whole { whole } else { part }] {
            let usual = Call::new(op, count);
            let mut add = |what, other: Call| {
                cases.push(Case::new(what, n, odd(), &[usual], &[other]));
            };
            // Two others: not every pair of operations moves bytes the same way.
            for step in [1, 4] {
                add("operation", Call { op: COLLECTIVES[(i + step) % 9], ..usual });
            }
            if op == Op::Barrier {
                continue;
            }
            add("dtype of the same size", Call { dtype: DType::I32, ..usual });
            add("dtype of another size", Call { dtype: DType::F64, ..usual });
            add("count", Call { count: count + 1, ..usual });
            add("plan", Call { count: if count == 3 { whole + 1 } else { 5 }, ..usual });
            add("nothing", Call { count: 0, ..usual });
            if usual.reduces() {
                add("reduction", Call { reduce: ReduceOp::Max, ..usual });
            }
            if usual.wired() {
                add("wire", Call { wire: Some(Wire::Bf16), ..usual });
            }
            if usual.rooted() {
                add("root", Call { root: 1, ..usual });
                add("last root", Call { root: n - 1, ..usual });
            }
            if usual.wired() {
                let wired = |wire| [Call { wire: Some(wire), ..usual }];
                let usual = wired(Wire::Bf16);
                let other = wired(Wire::F16);
                cases.push(Case::new("another wire", n, odd(), &usual, &other));
            }
        }
    }
    cases
}

/// Other parts, and calls in another order.
fn orders(n: usize, many: usize, rooted: [Op; 2], odd: &mut dyn FnMut() -> usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for op in [Op::AllGather, Op::ReduceScatter, Op::AllToAll] {
        let usual = Call { counts: Counts::Growing, ..Call::new(op, n) };
        let other = Call { counts: Counts::Swapped, ..usual };
        cases.push(Case::new("counts", n, odd(), &[usual], &[other]));
    }
    for count in [3, many] {
        let pair = [Call::new(Op::AllReduce, count), Call::new(Op::AllGather, count)];
        cases.push(Case::new("order", n, odd(), &pair, &[pair[1], pair[0]]));
        cases.push(Case::new("a call left out", n, odd(), &pair, &pair[1..]));
        cases.push(Case::new("a call too many", n, odd(), &pair[1..], &pair));
        let pair = rooted.map(|op| Call::new(op, count));
        cases.push(Case::new("order of rooted calls", n, odd(), &pair, &[pair[1], pair[0]]));
    }
    cases
}

/// A message that the next rank does not expect.
fn messages(n: usize, many: usize, odd: &mut dyn FnMut() -> usize) -> Vec<Case> {
    let mut cases = Vec::new();
    // The odd one sends to the next rank, which expects something else; the others do nothing.
    for count in [3, many] {
        let odd = odd();
        let to = next(odd, n);
        let send = Call { other: to, ..Call::new(Op::Send, count) };
        let recv = Call { other: odd, ..Call::new(Op::Recv, count) };
        let others = [
            ("tag of a message", Call { tag: 8, ..recv }),
            ("dtype of a message", Call { dtype: DType::I32, ..recv }),
            ("count of a message", Call { count: count + 1, ..recv }),
            ("a shorter message", Call { count: 2, ..recv }),
            ("a collective call for a message", Call::new(Op::AllReduce, count)),
            (
                "a call on a wire for a message",
                Call { wire: Some(Wire::Bf16), ..Call::new(Op::AllReduce, count) },
            ),
        ];
        for (what, call) in others {
            let mut calls = vec![vec![]; n];
            (calls[odd], calls[to]) = (vec![send], vec![call]);
            cases.push(Case::of(what, odd, calls));
        }
    }
    cases
}

#[test]
fn threads_of_one_process() {
    let cases = cases();
    // As docs/errors.md says.
    assert_eq!(cases.len(), 1557);
    let cases = scope::Scope::from_env().share(cases, 4);
    let at = AtomicUsize::new(0);
    let work = || {
        let mut found = Vec::new();
        while let Some(case) = cases.get(at.fetch_add(1, Ordering::Relaxed)) {
            let groups = Group::local(case.calls.len()).unwrap();
            found.push((case, judge(case, &play(case, &groups, How::Now))));
        }
        found
    };
    let found = each(0..WORKERS, |_| work());
    let wrong: Vec<_> = found
        .iter()
        .flatten()
        .filter_map(|(case, verdict)| Some(format!("{}\n    {}", case.name(), verdict.as_ref().err()?)))
        .collect();
    println!("{} cases", cases.len());
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn a_rank_whose_threads_share_the_group_is_told_so() {
    let groups = Group::local(2).unwrap();
    let call = |g: &Group, count: usize| g.all_reduce(&mut vec![1f32; count], ReduceOp::Sum);
    let errors = each(&groups, |g| {
        // Background work is of the thread that asked for it.
        g.spawn(|g| g.barrier()).wait().unwrap();
        g.barrier().unwrap();
        match g.rank() {
            0 => thread::scope(|s| s.spawn(|| call(g, 3)).join().unwrap()),
            _ => call(g, 5),
        }
        .unwrap_err()
    });
    let words = "; on this rank threads share the group: call #3 came from another one than the call before it, so give threads that call at once a group each;";
    let told = errors.iter().map(|e| e.to_string().contains(words));
    assert_eq!(told.collect::<Vec<_>>(), [true, false], "{errors:?}");
    assert!(errors[1].to_string().contains("ranks disagree in count: "), "{}", errors[1]);
    assert!(matches!(errors[1].root().kind(), ErrorKind::Mismatch { threads: None, .. }), "{errors:?}");
    let again = groups[0].barrier().unwrap_err();
    assert!(again.to_string().contains(words), "the first cause stays: {again}");
}

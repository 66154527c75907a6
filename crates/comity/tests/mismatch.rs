//! Groups in which one rank makes another call than the others: somebody is told, nobody hangs, no result is wrong.
//!
//! A rank's result depends on the ranks that its call takes data from. If one of them made another call, this rank must
//! fail; otherwise it may succeed, with the right result. Once somebody has seen the difference, every rank's next call fails.
//! Ranks that wait for each other are told long before their limit.

use comity::{DType, Element, Error, Group, Op, ReduceOp, Result};
use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

/// How long a call may take. Nobody is to be told by it.
const LIMIT: Duration = Duration::from_secs(20);
/// Cases at a time: some spend most of their time asleep.
const WORKERS: usize = 12;

/// What one rank calls.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Call {
    op: Op,
    dtype: DType,
    reduce: ReduceOp,
    count: usize,
    root: usize,
    counts: Counts,
    /// The other rank of send and recv.
    other: usize,
    tag: u32,
}

/// Where parts have counts of their own.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Counts {
    Same,
    /// Rank r has r + 1 elements, or gives r + p + 1 to rank p.
    Growing,
    /// The same number in all, but ranks 0 and 1 have changed places; in all_to_all this rank expects one more of the next.
    Swapped,
}

impl Call {
    fn new(op: Op, count: usize) -> Self {
        let (dtype, reduce) = (DType::F32, ReduceOp::Sum);
        Self { op, dtype, reduce, count, root: 0, counts: Counts::Same, other: 0, tag: 7 }
    }

    fn reduces(&self) -> bool {
        matches!(self.op, Op::AllReduce | Op::Reduce | Op::ReduceScatter)
    }

    fn rooted(&self) -> bool {
        matches!(self.op, Op::Reduce | Op::Broadcast | Op::Gather | Op::Scatter)
    }

    /// Whether the result of `rank` is made of what `from` gives.
    fn needs(&self, rank: usize, from: usize) -> bool {
        match self.op {
            Op::Reduce | Op::Gather => rank == self.root,
            Op::Broadcast | Op::Scatter => rank != self.root && from == self.root,
            Op::Send => false,
            Op::Recv => from == self.other,
            _ => true,
        }
    }

    /// Whether `theirs`, made by `from`, gives what this call, made by `rank`, asks for.
    fn agrees(&self, rank: usize, theirs: &Self, from: usize) -> bool {
        if (self.op, theirs.op) == (Op::AllToAll, Op::AllToAll) && self.counts != Counts::Same {
            // What a rank expects of others is nobody else's affair.
            return theirs.counts != Counts::Same
                && self.dtype == theirs.dtype
                && (self.counts == Counts::Growing || from != next(rank, self.count));
        }
        if self.op == Op::Recv {
            return *self == Self { op: Op::Recv, other: from, ..*theirs } && theirs.other == rank;
        }
        self == theirs
    }
}

fn next(rank: usize, n: usize) -> usize {
    (rank + 1) % n
}

/// What became of one call.
struct Outcome {
    result: Result<()>,
    took: Duration,
    /// The output buffer differs from what it was.
    written: bool,
    /// The output buffer holds what the call gives when all ranks make it.
    right: bool,
}

trait Value: Element + PartialEq {
    fn of(x: i32) -> Self;
}

impl Value for f32 {
    fn of(x: i32) -> Self {
        x as Self
    }
}

impl Value for f64 {
    fn of(x: i32) -> Self {
        Self::from(x)
    }
}

impl Value for i32 {
    fn of(x: i32) -> Self {
        x
    }
}

fn make(g: &Group, c: &Call) -> Outcome {
    match c.dtype {
        DType::F32 => make_of::<f32>(g, c),
        DType::F64 => make_of::<f64>(g, c),
        _ => make_of::<i32>(g, c),
    }
}

fn make_of<T: Value>(g: &Group, c: &Call) -> Outcome {
    let (n, me) = (g.size(), g.rank());
    let value = |rank: usize, i: usize| (rank * 7 + i % 13 + 1) as i32;
    let all = |i: usize| match c.reduce {
        ReduceOp::Sum => (0..n).map(|r| value(r, i)).sum(),
        _ => value(n - 1, i),
    };
    let fill = |len: usize, f: &dyn Fn(usize) -> i32| (0..len).map(|i| T::of(f(i))).collect::<Vec<T>>();
    let mine = |len: usize| fill(len, &|i| value(me, i));
    let blank = |len: usize| fill(len, &|_| -1);
    let (count, at_root) = (c.count, me == c.root);
    let by_rank: Vec<usize> = (0..n)
        .map(|r| match (c.counts, r) {
            (Counts::Swapped, 0) => 2,
            (Counts::Swapped, 1) => 1,
            _ => r + 1,
        })
        .collect();
    let total: usize = by_rank.iter().sum();
    let own: usize = by_rank[me];
    let before_own: usize = by_rank[..me].iter().sum();
    // (input, output, what the output is to be)
    let (src, mut dst, want) = match (c.op, c.counts) {
        (Op::AllReduce, _) => (vec![], mine(count), fill(count, &all)),
        (Op::Reduce, _) => (vec![], mine(count), if at_root { fill(count, &all) } else { mine(count) }),
        (Op::Broadcast, _) => (vec![], mine(count), fill(count, &|i| value(c.root, i))),
        (Op::AllGather, Counts::Same) => {
            (mine(count), blank(n * count), fill(n * count, &|i| value(i / count, i % count)))
        }
        (Op::AllGather, _) => {
            let want = (0..n).flat_map(|r| fill(by_rank[r], &|i| value(r, i))).collect();
            (mine(own), blank(total), want)
        }
        (Op::ReduceScatter, Counts::Same) => {
            (mine(n * count), blank(count), fill(count, &|i| all(me * count + i)))
        }
        (Op::ReduceScatter, _) => (mine(total), blank(own), fill(own, &|i| all(before_own + i))),
        (Op::Gather, _) if at_root => {
            (mine(count), blank(n * count), fill(n * count, &|i| value(i / count, i % count)))
        }
        (Op::Gather, _) => (mine(count), vec![], vec![]),
        (Op::Scatter, _) => {
            let src = if at_root { mine(n * count) } else { vec![] };
            (src, blank(count), fill(count, &|i| value(c.root, me * count + i)))
        }
        (Op::AllToAll, Counts::Same) => {
            let want = fill(n * count, &|i| value(i / count, me * count + i % count));
            (mine(n * count), blank(n * count), want)
        }
        (Op::AllToAll, _) => {
            let src = (0..n).flat_map(|p| fill(me + p + 1, &|i| value(me, p + i))).collect();
            let want: Vec<T> = (0..n).flat_map(|p| fill(me + p + 1, &|i| value(p, me + i))).collect();
            let extra = usize::from(c.counts == Counts::Swapped);
            (src, blank(want.len() + extra), want)
        }
        (Op::Send, _) => (mine(count), vec![], vec![]),
        (Op::Recv, _) => (vec![], blank(count), fill(count, &|i| value(c.other, i))),
        _ => (vec![], vec![], vec![]),
    };
    let before = dst.clone();
    let start = Instant::now();
    let result = match (c.op, c.counts) {
        (Op::AllReduce, _) => g.all_reduce(&mut dst, c.reduce),
        (Op::Reduce, _) => g.reduce(&mut dst, c.reduce, c.root),
        (Op::Broadcast, _) => g.broadcast(&mut dst, c.root),
        (Op::AllGather, Counts::Same) => g.all_gather(&src, &mut dst),
        (Op::AllGather, _) => g.all_gather_v(&src, &mut dst, &by_rank),
        (Op::ReduceScatter, Counts::Same) => g.reduce_scatter(&src, &mut dst, c.reduce),
        (Op::ReduceScatter, _) => g.reduce_scatter_v(&src, &mut dst, &by_rank, c.reduce),
        (Op::Gather, _) => g.gather(&src, &mut dst, c.root),
        (Op::Scatter, _) => g.scatter(&src, &mut dst, c.root),
        (Op::AllToAll, Counts::Same) => g.all_to_all(&src, &mut dst),
        (Op::AllToAll, counts) => {
            let out: Vec<usize> = (0..n).map(|p| me + p + 1).collect();
            let mut into = out.clone();
            into[next(me, n)] += usize::from(counts == Counts::Swapped);
            g.all_to_all_v(&src, &out, &mut dst, &into)
        }
        (Op::Send, _) => g.send(&src, c.other, c.tag),
        (Op::Recv, _) => g.recv(&mut dst, c.other, c.tag),
        _ => g.barrier(),
    };
    Outcome { result, took: start.elapsed(), written: dst != before, right: dst == want }
}

/// A job of which one rank differs.
#[derive(Clone, Debug)]
struct Case {
    what: &'static str,
    odd: usize,
    /// By rank.
    calls: Vec<Vec<Call>>,
}

impl Case {
    fn new(what: &'static str, n: usize, odd: usize, usual: &[Call], other: &[Call]) -> Self {
        Self::of(what, odd, (0..n).map(|r| if r == odd { other.to_vec() } else { usual.to_vec() }).collect())
    }

    /// Barriers follow: in the first a difference may show that nobody could see before, so that some still return
    /// from it; a second then fails; and so does what comes after a failure.
    fn of(what: &'static str, odd: usize, mut calls: Vec<Vec<Call>>) -> Self {
        calls.iter_mut().for_each(|c| c.extend([Call::new(Op::Barrier, 0); 3]));
        Self { what, odd, calls }
    }

    fn name(&self) -> String {
        let usual = &self.calls[usize::from(self.odd == 0)];
        let show = |calls: &[Call]| {
            let one = |c: &Call| format!("{}[{}]{:?}/{}", c.op, c.count, c.dtype, c.root);
            calls.iter().filter(|c| c.op != Op::Barrier).map(one).collect::<Vec<_>>().join(", ")
        };
        let (n, odd) = (self.calls.len(), self.odd);
        format!("{}: {n} ranks, {}; rank {odd}: {}", self.what, show(usual), show(&self.calls[odd]))
    }
}

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
            for (i, op) in COLLECTIVES.into_iter().enumerate() {
                let whole = matches!(op, Op::AllReduce | Op::Reduce | Op::Broadcast);
                // 1 MiB, or parts of 256 KiB.
                for count in [3, if whole { 262_144 } else { 65_536 }] {
                    let usual = Call::new(op, count);
                    let mut add = |what, other: Call| {
                        cases.push(Case::new(what, n, odd, &[usual], &[other]));
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
                    add("plan", Call { count: if count == 3 { 262_145 } else { 5 }, ..usual });
                    add("nothing", Call { count: 0, ..usual });
                    if usual.reduces() {
                        add("reduction", Call { reduce: ReduceOp::Max, ..usual });
                    }
                    if usual.rooted() {
                        add("root", Call { root: 1, ..usual });
                        add("last root", Call { root: n - 1, ..usual });
                    }
                }
            }
            for op in [Op::AllGather, Op::ReduceScatter, Op::AllToAll] {
                let usual = Call { counts: Counts::Growing, ..Call::new(op, n) };
                let other = Call { counts: Counts::Swapped, ..usual };
                cases.push(Case::new("counts", n, odd, &[usual], &[other]));
            }
            for count in [3, 65_536] {
                let pair = [Call::new(Op::AllReduce, count), Call::new(Op::AllGather, count)];
                cases.push(Case::new("order", n, odd, &pair, &[pair[1], pair[0]]));
                cases.push(Case::new("a call left out", n, odd, &pair, &pair[1..]));
                cases.push(Case::new("a call too many", n, odd, &pair[1..], &pair));
                let pair = [Call::new(Op::Broadcast, count), Call::new(Op::Reduce, count)];
                cases.push(Case::new("order of rooted calls", n, odd, &pair, &[pair[1], pair[0]]));
            }
            // The odd one sends to the next rank, which expects something else; the others do nothing.
            for count in [3, 262_144] {
                let to = next(odd, n);
                let send = Call { other: to, ..Call::new(Op::Send, count) };
                let recv = Call { other: odd, ..Call::new(Op::Recv, count) };
                let others = [
                    ("tag of a message", Call { tag: 8, ..recv }),
                    ("dtype of a message", Call { dtype: DType::I32, ..recv }),
                    ("count of a message", Call { count: count + 1, ..recv }),
                    ("a shorter message", Call { count: 2, ..recv }),
                    ("a collective call for a message", Call::new(Op::AllReduce, count)),
                ];
                for (what, call) in others {
                    let mut calls = vec![vec![]; n];
                    (calls[odd], calls[to]) = (vec![send], vec![call]);
                    cases.push(Case::of(what, odd, calls));
                }
            }
        }
    }
    // Where the difference is none.
    cases.retain(|c| c.calls.iter().any(|calls| *calls != c.calls[0]));
    cases
}

/// What the case came to, by rank: each call up to the first that failed, and one more.
fn play(case: &Case) -> Vec<Vec<Outcome>> {
    let groups = Group::local(case.calls.len()).unwrap();
    let play_rank = |g: &Group| {
        let g = g.timeout(LIMIT);
        let mut outcomes = Vec::new();
        for call in &case.calls[g.rank()] {
            let failed = outcomes.last().is_some_and(|o: &Outcome| o.result.is_err());
            outcomes.push(make(&g, call));
            if failed {
                break;
            }
        }
        outcomes
    };
    // The groups outlive the threads, so that nobody is told that somebody has left.
    thread::scope(|s| {
        let ranks: Vec<_> = groups.iter().map(|g| s.spawn(move || play_rank(g))).collect();
        ranks.into_iter().map(|r| r.join().unwrap()).collect()
    })
}

/// What is wrong with how the case came out.
fn judge(case: &Case, outcomes: &[Vec<Outcome>]) -> Result<(), String> {
    for (rank, made) in outcomes.iter().enumerate() {
        if made.last().is_none_or(|o| o.result.is_ok()) {
            return Err(format!("rank {rank} can go on"));
        }
        let first = made.iter().position(|o| o.result.is_err()).unwrap_or_default();
        for (k, (o, call)) in made.iter().zip(&case.calls[rank]).enumerate() {
            let Err(e) = &o.result else {
                if k > first {
                    return Err(format!("rank {rank} had success in call {k}, after a failure"));
                }
                for from in (0..outcomes.len()).filter(|&f| f != rank && call.needs(rank, f)) {
                    if !case.calls[from].get(k).is_some_and(|theirs| call.agrees(rank, theirs, from)) {
                        return Err(format!("rank {rank} had success in call {k}, which needs rank {from}"));
                    }
                }
                if !o.right {
                    return Err(format!("rank {rank} had success in call {k} with a wrong result"));
                }
                continue;
            };
            // Both calls in words, also where another rank has seen it.
            let Error::Mismatch { rank: by, peer, .. } = e.root() else {
                return Err(format!("rank {rank} was told after {:?}: {e}", o.took));
            };
            // It may have all of its result when it hears of a rank from which it takes nothing.
            if k == first && *by == rank && o.written && call.needs(rank, peer.rank) {
                return Err(format!("rank {rank} wrote its output in call {k} and then saw the difference"));
            }
        }
    }
    Ok(())
}

#[test]
fn one_rank_that_differs_is_found_out() {
    let cases = cases();
    assert!(cases.len() >= 200, "only {} cases", cases.len());
    let at = AtomicUsize::new(0);
    let work = || {
        let mut found = Vec::new();
        while let Some(case) = cases.get(at.fetch_add(1, Ordering::Relaxed)) {
            found.push((case, judge(case, &play(case))));
        }
        found
    };
    let found: Vec<_> = thread::scope(|s| {
        let workers: Vec<_> = (0..WORKERS).map(|_| s.spawn(work)).collect();
        workers.into_iter().flat_map(|w| w.join().unwrap()).collect()
    });
    let wrong: Vec<_> = found
        .iter()
        .filter_map(|(case, verdict)| Some(format!("{}\n    {}", case.name(), verdict.as_ref().err()?)))
        .collect();
    println!("{} cases", cases.len());
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

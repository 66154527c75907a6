//! A call as data, and how to make it.

use comity::{DType, Element, Group, Op, ReduceOp, Result, Wire};
use std::time::{Duration, Instant};

/// A rank's call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Call {
    pub(super) op: Op,
    pub(super) dtype: DType,
    pub(super) reduce: ReduceOp,
    pub(super) count: usize,
    pub(super) root: usize,
    pub(super) counts: Counts,
    /// The other rank of send and recv.
    pub(super) other: usize,
    pub(super) tag: u32,
    pub(super) wire: Option<Wire>,
}

/// Counts of the parts, equal or of their own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Counts {
    Same,
    /// Rank r has r + 1 elements, or gives r + p + 1 to rank p.
    Growing,
    /// The same number in all, but ranks 0 and 1 have changed places; in all_to_all this rank expects one more of the next.
    Swapped,
}

impl Call {
    pub(super) fn new(op: Op, count: usize) -> Self {
        let dtype = DType::F32;
        let reduce = ReduceOp::Sum;
        Self { op, dtype, reduce, count, root: 0, counts: Counts::Same, other: 0, tag: 7, wire: None }
    }

    pub(super) fn reduces(&self) -> bool {
        matches!(self.op, Op::AllReduce | Op::Reduce | Op::ReduceScatter)
    }

    pub(super) fn rooted(&self) -> bool {
        matches!(self.op, Op::Reduce | Op::Broadcast | Op::Gather | Op::Scatter)
    }

    pub(super) fn wired(&self) -> bool {
        matches!(self.op, Op::AllReduce | Op::ReduceScatter | Op::AllGather)
    }

    /// Returns true if the result of `rank` is made of the contribution of `from`.
    pub(super) fn needs(&self, rank: usize, from: usize) -> bool {
        match self.op {
            Op::Reduce | Op::Gather => rank == self.root,
            Op::Broadcast | Op::Scatter => rank != self.root && from == self.root,
            Op::Send => false,
            Op::Recv => from == self.other,
            _ => true,
        }
    }

    /// Returns true if `theirs`, made by `from`, gives what this call, made by `rank`, asks for.
    pub(super) fn agrees(&self, rank: usize, theirs: &Self, from: usize) -> bool {
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

pub(super) fn next(rank: usize, n: usize) -> usize {
    (rank + 1) % n
}

/// Outcome of a call.
pub(super) struct Outcome {
    pub(super) result: Result<()>,
    pub(super) took: Duration,
    /// The output buffer differs from what it was.
    pub(super) written: bool,
    /// The output buffer holds what the call gives when all ranks make it.
    pub(super) right: bool,
}

impl Counts {
    /// Rank `r`'s part.
    fn of(self, r: usize) -> usize {
        match (self, r) {
            (Self::Swapped, 0) => 2,
            (Self::Swapped, 1) => 1,
            _ => r + 1,
        }
    }
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

pub(super) fn make(g: &Group, c: &Call) -> Outcome {
    match c.dtype {
        DType::F32 => make_of::<f32>(g, c),
        DType::F64 => make_of::<f64>(g, c),
        _ => make_of::<i32>(g, c),
    }
}

fn make_of<T: Value>(g: &Group, c: &Call) -> Outcome {
    let n = g.size();
    let me = g.rank();
    let value = |rank: usize, i: usize| (rank * 7 + i % 13 + 1) as i32;
    let all = |i: usize| match c.reduce {
        ReduceOp::Sum => (0..n).map(|r| value(r, i)).sum(),
        _ => value(n - 1, i),
    };
    let fill = |len: usize, f: &dyn Fn(usize) -> i32| (0..len).map(|i| T::of(f(i))).collect::<Vec<T>>();
    let mine = |len: usize| fill(len, &|i| value(me, i));
    let blank = |len: usize| fill(len, &|_| -1);
    let count = c.count;
    let at_root = me == c.root;
    let by_rank: Vec<usize> = (0..n).map(|r| c.counts.of(r)).collect();
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
    let result = ask(g, c, &src, &mut dst, &by_rank);
    Outcome { result, took: start.elapsed(), written: dst != before, right: dst == want }
}

/// The call itself.
fn ask<T: Value>(g: &Group, c: &Call, src: &[T], dst: &mut Vec<T>, by_rank: &[usize]) -> Result<()> {
    let n = g.size();
    let me = g.rank();
    let g = &g.with_wire(c.wire);
    match (c.op, c.counts) {
        (Op::AllReduce, _) => g.all_reduce(dst, c.reduce),
        (Op::Reduce, _) => g.reduce(dst, c.reduce, c.root),
        (Op::Broadcast, _) => g.broadcast(dst, c.root),
        (Op::AllGather, Counts::Same) => g.all_gather(src, dst),
        (Op::AllGather, _) => g.all_gather_v(src, dst, by_rank),
        (Op::ReduceScatter, Counts::Same) => g.reduce_scatter(src, dst, c.reduce),
        (Op::ReduceScatter, _) => g.reduce_scatter_v(src, dst, by_rank, c.reduce),
        (Op::Gather, _) => g.gather(src, dst, c.root),
        (Op::Scatter, _) => g.scatter(src, dst, c.root),
        (Op::AllToAll, Counts::Same) => g.all_to_all(src, dst),
        (Op::AllToAll, counts) => {
            let out: Vec<usize> = (0..n).map(|p| me + p + 1).collect();
            let mut into = out.clone();
            into[next(me, n)] += usize::from(counts == Counts::Swapped);
            g.all_to_all_v(src, &out, dst, &into)
        }
        (Op::Send, _) => g.send(src, c.other, c.tag),
        (Op::Recv, _) => g.recv(dst, c.other, c.tag),
        _ => g.barrier(),
    }
}

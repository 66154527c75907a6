//! A call as C asks for it, and the method of [`Group`] that makes it.

use crate::{
    errors::CFault,
    group::rank,
    raw::{self, CMemory},
    types::{self, comity_call},
};
use comity::{DType, Group, Op, Place, ReduceOp, Wire};

/// A call whose arguments are complete.
#[derive(Debug)]
pub(crate) struct CheckedCall {
    op: Op,
    src: CMemory,
    dst: CMemory,
    shape: Shape,
    reduce: ReduceOp,
    rank: usize,
    source: usize,
    tag: u32,
    wire: Option<Wire>,
    /// Elements of each rank's part where they differ.
    counts: Option<Parts>,
}

/// Elements that go to each rank, and come from each where that is another number.
type Parts = (Vec<usize>, Vec<usize>);

/// Overlap of the two buffers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    Apart,
    /// The same bytes.
    Same,
    /// The smaller one is this rank's part of the larger one.
    Own,
}

impl CheckedCall {
    /// The call, if it can be one of this group.
    pub(crate) fn new(group: &Group, call: &comity_call) -> Result<Self, CFault> {
        let op = types::op(call.op)?;
        if call.reserved != 0 {
            return Err(CFault::misuse(
                "what is reserved in the comity_call is not 0; set all that is not used to 0",
            ));
        }
        let dtype = if op == Op::Barrier { DType::U8 } else { types::dtype(call.dtype)? };
        let reduces = matches!(op, Op::AllReduce | Op::Reduce | Op::ReduceScatter);
        let reduce = if reduces { types::reduce_op(call.reduce)? } else { ReduceOp::Sum };
        let wire = types::wire(call.wire)?;
        let counts = parts(group, op, call)?;
        let root = match op {
            Op::Reduce | Op::Broadcast | Op::Gather | Op::Scatter => rank("the root", call.rank)?,
            Op::Send | Op::Recv | Op::SendRecv => rank("the other rank", call.rank)?,
            _ => 0,
        };
        let source = if op == Op::SendRecv { rank("the source", call.source)? } else { 0 };
        let (inp, out) = lengths(group, op, call, root, counts.as_ref())?;
        let place = place(group, call)?;
        // A reduce writes the root's only; elsewhere its buffer is the one that was given.
        let lone = op == Op::Reduce && call.dst.is_null() && root != group.rank();
        let to = if lone { call.src.cast_mut() } else { call.dst };
        let from = call.src;
        let src = CMemory::new("src", from.expose_provenance(), inp, dtype, place)?;
        let dst = CMemory::new("dst", to.expose_provenance(), out, dtype, place)?;
        let shape = shape(op, group.rank(), src, dst, counts.is_some())?;
        Ok(Self { op, src, dst, shape, reduce, rank: root, source, tag: call.tag, wire, counts })
    }

    /// Make the call and wait for it; on a device, until its work is on the stream.
    pub(crate) fn run(&self, g: &Group) -> comity::Result<()> {
        match self.wire {
            None => self.run_on(g),
            wire => self.run_on(&g.with_wire(wire)),
        }
    }

    fn run_on(&self, g: &Group) -> comity::Result<()> {
        let src = || self.src.view();
        let dst = || self.dst.view_mut();
        let rank = self.rank;
        let reduce = self.reduce;
        let apart = self.shape == Shape::Apart;
        match (self.op, &self.counts) {
            (Op::Barrier, _) => g.barrier(),
            (Op::AllReduce, _) if apart => g.all_reduce_into(src(), dst(), reduce),
            (Op::AllReduce, _) => g.all_reduce(dst(), reduce),
            (Op::Reduce, _) => self.reduce(g),
            (Op::Broadcast, _) => g.broadcast(dst(), rank),
            (Op::AllGather, Some((counts, _))) => g.all_gather_v(src(), dst(), counts),
            (Op::AllGather, None) if apart => g.all_gather(src(), dst()),
            (Op::AllGather, None) => g.all_gather_in_place(dst()),
            (Op::ReduceScatter, Some((counts, _))) => g.reduce_scatter_v(src(), dst(), counts, reduce),
            (Op::ReduceScatter, None) if apart => g.reduce_scatter(src(), dst(), reduce),
            // The destination is a part of it, and so it may be written.
            (Op::ReduceScatter, None) => g.reduce_scatter_in_place(self.src.view_mut(), reduce),
            (Op::Gather, _) => g.gather(src(), dst(), rank),
            (Op::Scatter, _) => g.scatter(src(), dst(), rank),
            (Op::AllToAll, Some((s, r))) => g.all_to_all_v(src(), s, dst(), r),
            (Op::AllToAll, None) if apart => g.all_to_all(src(), dst()),
            (Op::AllToAll, None) => g.all_to_all_in_place(dst()),
            (Op::Send, _) => g.send(src(), rank, self.tag),
            (Op::Recv, _) => g.recv(dst(), rank, self.tag),
            (Op::SendRecv, _) => g.sendrecv(src(), rank, dst(), self.source, self.tag),
            _ => unreachable!("`types::op` knows no other"),
        }
    }

    /// It works in place: on the destination at the root, elsewhere on what is only read.
    fn reduce(&self, g: &Group) -> comity::Result<()> {
        if self.rank != g.rank() {
            return g.reduce(self.src.view_mut(), self.reduce, self.rank);
        }
        if self.shape == Shape::Apart && self.dst.view().dtype().supports(self.reduce) {
            self.src.copy_to(self.dst)?;
        }
        g.reduce(self.dst.view_mut(), self.reduce, self.rank)
    }
}

/// A count of elements.
#[inline]
pub(crate) fn count(what: &str, n: i64) -> Result<usize, CFault> {
    usize::try_from(n).map_err(|_| negative(what, n))
}

#[cold]
#[inline(never)]
fn negative(what: &str, n: i64) -> CFault {
    CFault::misuse(format!("{what} is {n}, and must be 0 or more"))
}

/// Counts of each rank's part, where the call has such.
fn parts(group: &Group, op: Op, call: &comity_call) -> Result<Option<Parts>, CFault> {
    if call.counts.is_null() && call.recv_counts.is_null() {
        return Ok(None);
    }
    let read = |what: &str, at: *const i64| {
        let all = raw::list(what, at, group.size())?;
        all.iter().map(|n| count(&format!("an entry of {what}"), *n)).collect::<Result<Vec<_>, _>>()
    };
    match op {
        Op::AllGather | Op::ReduceScatter => Ok(Some((read("counts", call.counts)?, Vec::new()))),
        Op::AllToAll => Ok(Some((read("counts", call.counts)?, read("recv_counts", call.recv_counts)?))),
        _ => Err(CFault::misuse(format!("{op} takes no counts; set counts and recv_counts to NULL"))),
    }
}

/// Elements of the two buffers.
fn lengths(
    group: &Group,
    op: Op,
    call: &comity_call,
    root: usize,
    counts: Option<&Parts>,
) -> Result<(usize, usize), CFault> {
    let n = count("the count", call.count)?;
    let me = group.rank();
    let all = n.saturating_mul(group.size());
    let sum = |counts: &[usize]| counts.iter().fold(0usize, |a, b| a.saturating_add(*b));
    if let Some((counts, recv)) = counts {
        return Ok(match op {
            Op::AllGather => (counts[me], sum(counts)),
            Op::ReduceScatter => (sum(counts), counts[me]),
            _ => (sum(counts), sum(recv)),
        });
    }
    Ok(match op {
        Op::Barrier => (0, 0),
        Op::AllReduce | Op::Reduce => (n, n),
        Op::Broadcast | Op::Recv => (0, n),
        Op::Send => (n, 0),
        Op::AllGather => (n, all),
        Op::ReduceScatter => (all, n),
        Op::Gather => (n, if root == me { all } else { 0 }),
        Op::Scatter => (if root == me { all } else { 0 }, n),
        Op::SendRecv => (n, count("the count to receive", call.recv_count)?),
        _ => (all, all),
    })
}

/// Memory of the buffers, or the reason why the group cannot use it.
fn place(group: &Group, call: &comity_call) -> Result<Place, CFault> {
    if !types::on_device(call.place)? {
        return Ok(Place::Host);
    }
    match group.device() {
        Some(device) => Ok(Place::Cuda { device, stream: call.stream.addr() }),
        None => Err(CFault::misuse(
            "the memory is on a CUDA device, and this group moves host memory; make the group with COMITY_BACKEND=nccl",
        )),
    }
}

/// Overlap of the buffers; an error for those that share bytes in a way that no operation has.
fn shape(op: Op, rank: usize, src: CMemory, dst: CMemory, uneven: bool) -> Result<Shape, CFault> {
    let s = src.range();
    let d = dst.range();
    let overlap = s.start < d.end && d.start < s.end;
    if !overlap {
        // Where both are empty, one call is as good as the other; all ranks must make the same.
        return Ok(Shape::Apart);
    }
    let part_at = |whole: &std::ops::Range<usize>, part: &std::ops::Range<usize>| {
        !uneven && part.start == whole.start + rank * part.len() && part.end <= whole.end
    };
    match op {
        Op::AllReduce | Op::Reduce if s == d => Ok(Shape::Same),
        Op::AllToAll if s == d && !uneven => Ok(Shape::Same),
        Op::AllGather if part_at(&d, &s) => Ok(Shape::Own),
        Op::ReduceScatter if part_at(&s, &d) => Ok(Shape::Own),
        _ => Err(CFault::misuse(format!(
            "src and dst of {op} overlap; use two buffers, or where the operation has a form in place, exactly that"
        ))),
    }
}

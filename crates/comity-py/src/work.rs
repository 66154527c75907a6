//! A call as Python asks for it, and the method of [`Group`] that makes it.

use crate::{
    args::{CheckedArgs, OnDevice},
    raw::RawBuffer,
};
use comity::{Error, ErrorKind, Group, Misuse, Op, Place, ReduceOp, tools};

/// Buffer from Python: address, number of the type, elements.
pub(crate) type BufferSpec = (usize, u8, usize);

/// A call whose arguments are complete.
#[derive(Debug)]
pub(crate) struct PreparedCall {
    op: Op,
    inp: Option<RawBuffer>,
    out: Option<RawBuffer>,
    args: CheckedArgs,
    shape: Shape,
}

/// Overlap of the two buffers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    Apart,
    /// The same bytes, or only one was given for an operation that works in place.
    Same,
    /// The smaller one is this rank's part of the larger one.
    Own,
}

impl PreparedCall {
    /// The call, or words that say what is missing.
    pub(crate) fn new(
        group: &Group,
        op: &str,
        inp: Option<BufferSpec>,
        out: Option<BufferSpec>,
        args: CheckedArgs,
    ) -> Result<Self, String> {
        let op = Op::from_name(op).filter(|o| !matches!(o, Op::Split | Op::Reform));
        let op = op.ok_or("there is no such operation; see comity._core.OPS")?;
        let place = place(group, args.place)?;
        let raw = |given: Option<BufferSpec>| given.map(|g| RawBuffer::new(g, place)).transpose();
        let inp = raw(inp)?;
        let out = raw(out)?;
        let (needs_inp, needs_out) = needs(op, group, &args, inp.is_some());
        if needs_inp && inp.is_none() {
            return Err(format!("{op} needs an input"));
        }
        if needs_out && out.is_none() {
            return Err(format!("{op} needs an output"));
        }
        if matches!(op, Op::Recv | Op::Barrier) && inp.is_some() {
            return Err(format!("{op} takes no input"));
        }
        if let (Op::Broadcast | Op::Reduce, Some(i), Some(o)) = (op, inp, out)
            && i.range().len() != o.range().len()
        {
            return Err(format!("the input and the output of {op} differ in size"));
        }
        for (lacks, what) in [
            (
                matches!(op, Op::AllReduce | Op::Reduce | Op::ReduceScatter) && args.reduce.is_none(),
                "a reduction",
            ),
            (
                matches!(op, Op::Broadcast | Op::Reduce | Op::Gather | Op::Scatter) && args.root.is_none(),
                "a root",
            ),
            (matches!(op, Op::Send | Op::Recv | Op::SendRecv) && args.peer.is_none(), "a peer"),
            (op == Op::SendRecv && args.source.is_none(), "a source"),
        ] {
            if lacks {
                return Err(format!("{op} needs {what}"));
            }
        }
        let shape = shape(op, group.rank(), inp, out, args.counts.is_some())?;
        Ok(Self { op, inp, out, args, shape })
    }

    pub(crate) fn op(&self) -> Op {
        self.op
    }

    /// Make the call and wait for it; on a device, until its work is on the stream.
    pub(crate) fn run(&self, g: &Group) -> comity::Result<()> {
        match (self.args.objects, self.args.wire) {
            (true, _) => self.call(&tools::of_objects(g)),
            (false, None) => self.call(g),
            (false, wire) => self.call(&g.with_wire(wire)),
        }
    }

    fn call(&self, g: &Group) -> comity::Result<()> {
        let a = &self.args;
        let root = a.root.unwrap_or(0);
        let peer = a.peer.unwrap_or(0);
        // `new` has seen to it that what an operation needs is there.
        let reduce = a.reduce.unwrap_or(ReduceOp::Sum);
        let src = || self.inp.as_ref().map(RawBuffer::view);
        let dst = || self.out.as_ref().map(RawBuffer::view_mut);
        match (self.op, src(), dst(), self.shape) {
            (Op::Barrier, ..) => g.barrier(),
            (Op::AllReduce, Some(i), Some(o), Shape::Apart) => g.all_reduce_into(i, o, reduce),
            (Op::AllReduce, _, Some(o), _) => g.all_reduce(o, reduce),
            (Op::Reduce | Op::Broadcast, ..) => self.rooted(g, root, reduce),
            (Op::AllGather, Some(i), Some(o), Shape::Apart) => match &a.counts {
                Some(counts) => g.all_gather_v(i, o, counts),
                None => g.all_gather(i, o),
            },
            (Op::AllGather, _, Some(o), _) => g.all_gather_in_place(o),
            (Op::ReduceScatter, Some(i), Some(o), Shape::Apart) => match &a.counts {
                Some(counts) => g.reduce_scatter_v(i, o, counts, reduce),
                None => g.reduce_scatter(i, o, reduce),
            },
            (Op::ReduceScatter, Some(_), _, Shape::Own) => match &self.inp {
                // The output is a part of it, and so it may be written.
                Some(i) => g.reduce_scatter_in_place(i.view_mut(), reduce),
                None => Err(self.lacking()),
            },
            (Op::ReduceScatter, None, Some(o), _) => g.reduce_scatter_in_place(o, reduce),
            (Op::Gather, Some(i), o, _) => g.gather(i, o.unwrap_or_else(|| (&mut [0u8; 0]).into()), root),
            (Op::Scatter, i, Some(o), _) => g.scatter(i.unwrap_or_else(|| (&[0u8; 0]).into()), o, root),
            (Op::AllToAll, Some(i), Some(o), Shape::Apart) => match (&a.counts, &a.recv_counts) {
                (Some(s), Some(r)) => g.all_to_all_v(i, s, o, r),
                _ => g.all_to_all(i, o),
            },
            (Op::AllToAll, _, Some(o), _) => g.all_to_all_in_place(o),
            (Op::Send, Some(i), ..) => g.send(i, peer, a.tag),
            (Op::Recv, _, Some(o), _) => g.recv(o, peer, a.tag),
            (Op::SendRecv, Some(i), Some(o), _) => g.sendrecv(i, peer, o, a.source.unwrap_or(0), a.tag),
            _ => Err(self.lacking()),
        }
    }
}

impl PreparedCall {
    /// A reduce or broadcast, which works in place: on the output, or on the input of a rank that only reads.
    fn rooted(&self, g: &Group, root: usize, reduce: ReduceOp) -> comity::Result<()> {
        let buffer = match (&self.out, &self.inp) {
            (Some(out), _) => {
                if self.op == Op::Reduce || root == g.rank() {
                    self.fill()?;
                }
                out
            }
            // Not written: a reduce writes the root's only, a broadcast the others'.
            (None, Some(inp)) => inp,
            (None, None) => return Err(self.lacking()),
        };
        match self.op {
            Op::Reduce => g.reduce(buffer.view_mut(), reduce, root),
            _ => g.broadcast(buffer.view_mut(), root),
        }
    }

    /// A buffer is missing; `new` has seen to it that none is.
    fn lacking(&self) -> Error {
        let misuse = Misuse::Length { buffer: "buffer", expected: 1, got: 0, why: "; none was given" };
        ErrorKind::Misuse { op: self.op, misuse }.into()
    }

    /// Copies the input where an operation works in place and an input was given all the same.
    fn fill(&self) -> comity::Result<()> {
        match (&self.inp, &self.out, self.shape) {
            (Some(i), Some(o), Shape::Apart) => i.copy_to(o),
            _ => Ok(()),
        }
    }
}

/// Memory of the buffers of a call, or the reason why the group cannot use it.
fn place(group: &Group, given: Option<OnDevice>) -> Result<Place, String> {
    let Some((device, stream)) = given else { return Ok(Place::Host) };
    match (device, group.device()) {
        (None, Some(device)) => Ok(Place::Cuda { device, stream }),
        (Some(device), Some(own)) if device == own => Ok(Place::Cuda { device, stream }),
        (Some(device), Some(own)) => Err(format!(
            "the memory is on CUDA device {device}, and this group's is device {own} (COMITY_DEVICE); move it there"
        )),
        (_, None) => Err("the memory is on a CUDA device, and this group moves host memory; make the group with backend=\"nccl\"".into()),
    }
}

/// Returns whether an operation needs an input and an output here.
fn needs(op: Op, group: &Group, args: &CheckedArgs, has_inp: bool) -> (bool, bool) {
    let root = args.root == Some(group.rank());
    match op {
        Op::Barrier => (false, false),
        Op::Send => (true, false),
        Op::Gather => (true, root),
        Op::Scatter => (root, true),
        Op::SendRecv => (true, true),
        Op::Reduce => (false, root || !has_inp),
        Op::Broadcast => (false, !root || !has_inp),
        // With different counts there is no form in place.
        Op::AllGather | Op::ReduceScatter | Op::AllToAll => (args.counts.is_some() && !has_inp, true),
        _ => (false, true),
    }
}

fn shape(
    op: Op,
    rank: usize,
    inp: Option<RawBuffer>,
    out: Option<RawBuffer>,
    uneven: bool,
) -> Result<Shape, String> {
    let (Some(i), Some(o)) = (inp, out) else { return Ok(Shape::Same) };
    if !i.overlaps(o) {
        return Ok(Shape::Apart);
    }
    let ri = i.range();
    let ro = o.range();
    let part_at = |whole: &std::ops::Range<usize>, part: &std::ops::Range<usize>| {
        !uneven && part.start == whole.start + rank * part.len() && part.end <= whole.end
    };
    match op {
        Op::AllReduce | Op::Reduce | Op::Broadcast if ri == ro => Ok(Shape::Same),
        Op::AllToAll if ri == ro && !uneven => Ok(Shape::Same),
        Op::AllGather if part_at(&ro, &ri) => Ok(Shape::Own),
        Op::ReduceScatter if part_at(&ri, &ro) => Ok(Shape::Own),
        _ => Err(format!("the input and the output of {op} overlap; use two buffers, or give only one")),
    }
}

//! A call as Python asks for it.

use crate::{args::OnDevice, raw};
use comity::{
    Group, Op, Place,
    tools::{ForeignArgs, ForeignCall},
};

/// Buffer from Python: address, number of the type, elements.
pub(crate) type BufferSpec = (usize, u8, usize);

/// The call, or words that say what is missing.
pub(crate) fn prepared(
    group: &Group,
    op: &str,
    inp: Option<BufferSpec>,
    out: Option<BufferSpec>,
    place: Option<OnDevice>,
    args: ForeignArgs,
) -> Result<ForeignCall, String> {
    let op = Op::from_name(op).filter(|o| !matches!(o, Op::Split | Op::Reform));
    let op = op.ok_or("there is no such operation; see comity._core.OPS")?;
    let place = self::place(group, place)?;
    let given = |given: Option<BufferSpec>| given.map(|g| raw::memory(g, place)).transpose();
    let inp = given(inp)?;
    let out = given(out)?;
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
    ForeignCall::new(group.rank(), op, inp, out, args)
        .ok_or_else(|| format!("the input and the output of {op} overlap; use two buffers, or give only one"))
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
fn needs(op: Op, group: &Group, args: &ForeignArgs, has_inp: bool) -> (bool, bool) {
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

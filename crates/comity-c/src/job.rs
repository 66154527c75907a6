//! A call as C asks for it.

use crate::{
    errors::CFault,
    group::rank,
    raw,
    types::{self, comity_call},
};
use comity::{
    DType, Group, Op, Place,
    tools::{ForeignArgs, ForeignCall},
};

/// Elements that go to each rank, and come from each where that is another number.
type Parts = (Vec<usize>, Option<Vec<usize>>);

/// The call, if it can be one of this group.
pub(crate) fn checked(group: &Group, call: &comity_call) -> Result<ForeignCall, CFault> {
    let op = types::op(call.op)?;
    if call.reserved != 0 {
        return Err(CFault::misuse(
            "what is reserved in the comity_call is not 0; set all that is not used to 0",
        ));
    }
    let dtype = if op == Op::Barrier { DType::U8 } else { types::dtype(call.dtype)? };
    let reduces = matches!(op, Op::AllReduce | Op::Reduce | Op::ReduceScatter);
    let reduce = if reduces { Some(types::reduce_op(call.reduce)?) } else { None };
    let wire = types::wire(call.wire)?;
    let parts = parts(group, op, call)?;
    let other = match op {
        Op::Reduce | Op::Broadcast | Op::Gather | Op::Scatter => rank("the root", call.rank)?,
        Op::Send | Op::Recv | Op::SendRecv => rank("the other rank", call.rank)?,
        _ => 0,
    };
    let source = if op == Op::SendRecv { Some(rank("the source", call.source)?) } else { None };
    let (inp, out) = lengths(group, op, call, other, parts.as_ref())?;
    let place = place(group, call)?;
    let src = raw::memory("src", call.src.expose_provenance(), inp, dtype, place)?;
    // A reduce uses the root's only.
    let is_read = op == Op::Reduce && other != group.rank();
    let dst = if is_read { 0 } else { out };
    let dst = raw::memory("dst", call.dst.expose_provenance(), dst, dtype, place)?;
    let src = (!matches!(op, Op::Broadcast | Op::Recv | Op::Barrier)).then_some(src);
    let dst = (!is_read && !matches!(op, Op::Send | Op::Barrier)).then_some(dst);
    let (counts, recv_counts) = parts.map_or((None, None), |(counts, recv)| (Some(counts), recv));
    let args = ForeignArgs {
        reduce,
        root: Some(other),
        peer: Some(other),
        source,
        tag: call.tag,
        counts,
        recv_counts,
        objects: false,
        wire,
    };
    ForeignCall::new(group.rank(), op, src, dst, args).ok_or_else(|| {
        CFault::misuse(format!(
            "src and dst of {op} overlap; use two buffers, or where the operation has a form in place, exactly that"
        ))
    })
}

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
        Op::AllGather | Op::ReduceScatter => Ok(Some((read("counts", call.counts)?, None))),
        Op::AllToAll => {
            Ok(Some((read("counts", call.counts)?, Some(read("recv_counts", call.recv_counts)?))))
        }
        _ => Err(CFault::misuse(format!("{op} takes no counts; set counts and recv_counts to NULL"))),
    }
}

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
            _ => (sum(counts), recv.as_deref().map_or(0, sum)),
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

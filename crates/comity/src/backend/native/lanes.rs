//! Calls that lanes carry.

use crate::{
    CallInfo, DType, ReduceOp,
    lanes::{Collective, LaneCall, MOST_MATES},
    status::World,
};
use comity_plan::{Kind, Lanes};

/// Number of lanes that a group of these members of a world may use.
pub(super) fn of(world: &dyn World, members: &[usize]) -> Lanes {
    let may = world.shares_memory() && members.len() <= MOST_MATES;
    if may { world.lanes() } else { Lanes::UpTo(1) }
}

/// A call of that kind as lanes carry it, if there are some.
#[inline]
pub(super) fn carried(
    kind: Kind,
    info: &CallInfo,
    (reduce, lanes): (ReduceOp, usize),
    (rank, size, elem): (usize, usize, usize),
) -> Option<LaneCall> {
    if lanes < 2 {
        return None;
    }
    let collective = match kind {
        Kind::AllReduce => Collective::AllReduce,
        Kind::ReduceScatter => Collective::ReduceScatter,
        Kind::AllGather => Collective::AllGather,
        Kind::AllToAll => Collective::AllToAll,
        Kind::Broadcast => Collective::Broadcast(info.root.unwrap_or(0)),
        _ => return None,
    };
    let dtype = info.dtype.unwrap_or(DType::U8);
    let bytes = info.count * elem;
    Some(LaneCall { collective, dtype, reduce, rank, size, bytes, lanes })
}

#[cfg(all(test, not(loom)))]
mod tests;

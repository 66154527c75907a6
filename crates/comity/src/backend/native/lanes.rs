//! Which calls lanes carry, and how a group finds out whether it can use them.

use super::NativeBackend;
use crate::{
    CallInfo, DType, ReduceOp, Result,
    engine::Task,
    lanes::{Collective, LaneCall, MOST_MATES},
    status::{Header, World},
};
use comity_plan::{Kind, Lanes};
use std::time::{Duration, Instant};

/// How many lanes a group of these members of a world may use.
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

impl NativeBackend {
    /// Whether the schedule that stands last is one for lanes, and nobody knows yet whether all ranks can use them.
    #[inline]
    pub(super) fn lacks_lanes(&self) -> bool {
        self.kept.last().is_some_and(|kept| kept.lanes > 1) && self.engine.has_lanes().is_none()
    }

    /// Find out whether all ranks can use lanes, in the call `info`, of which the schedule stands last: it is to be made anew then. How
    /// long the call may still take.
    #[cold]
    pub(super) fn open_lanes(
        &mut self,
        info: &CallInfo,
        limit: Duration,
        begun: &mut dyn FnMut(),
    ) -> Result<Duration> {
        let since = Instant::now();
        let Some(mut kept) = self.kept.pop() else { return Ok(limit) };
        let group_id = self.members().group_id as u16;
        let common = Header { info: *info, shape: kept.shape, epoch: 0, group_id, lends: false };
        let header = |_, _| common;
        let reduce = ReduceOp::Sum;
        let call = Some(&common);
        let pulls = false;
        let short = None;
        let lanes = None;
        let task = Task { info, reduce, header: &header, call, plain: true, limit, pulls, short, lanes };
        self.engine.open_lanes(self.topology.lanes.most(), &mut kept.schedule, &task, begun)?;
        Ok(limit.saturating_sub(since.elapsed()))
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

//! Calls that lanes carry.

use super::kept::scaled;
use crate::{
    CallInfo, DType, ReduceOp,
    engine::BetweenHosts,
    lanes::{Collective, LaneCall, MOST_MATES},
    status::World,
};
use comity_plan::{Between, Kind, LanePlan, Lanes, Plan, Shape, build_around_lanes};

/// How many lanes a group of these members of a world may use.
pub(super) fn of(world: &dyn World, members: &[usize]) -> Lanes {
    let host = |m: &usize| world.hosts().get(*m);
    let mates = |m: &usize| members.iter().filter(|o| host(o) == host(m)).count();
    let may = world.shares_memory() && members.iter().all(|m| mates(m) <= MOST_MATES);
    if may { world.lanes() } else { Lanes::UpTo(1) }
}

/// How a call goes whose bytes lanes carry.
#[derive(Debug)]
pub(super) struct Carried {
    /// Number of lanes.
    lanes: usize,
    /// The ranks that share memory.
    pub(super) mates: Vec<usize>,
    /// Where there are several hosts: bytes of a rank's part within its host, and what comes after.
    pub(super) between: Option<(usize, BetweenHosts)>,
}

impl Carried {
    /// With the schedule of its headers, in bytes.
    pub(super) fn new(shape: &Shape<'_>, lanes: usize) -> (Self, Plan) {
        let LanePlan { mates, headers, between } = build_around_lanes(shape);
        let of_hosts = |b: Between| (b.part * shape.elem, BetweenHosts::new(&scaled(b.plan, shape.elem)));
        (Self { lanes, mates, between: between.map(of_hosts) }, headers)
    }

    /// Bytes of working memory.
    pub(super) fn tmp(&self) -> usize {
        self.between.as_ref().map_or(0, |(_, b)| b.tmp())
    }

    /// A call of that kind, on this rank, as lanes carry it.
    #[inline]
    pub(super) fn call(
        &self,
        kind: Kind,
        info: &CallInfo,
        reduce: ReduceOp,
        (rank, elem): (usize, usize),
    ) -> Option<LaneCall> {
        let rank = self.mates.iter().position(|&m| m == rank)?;
        let size = self.mates.len();
        let dtype = info.dtype.unwrap_or(DType::U8);
        let bytes = info.count * elem;
        let lanes = self.lanes;
        if let &Some((part, _)) = &self.between {
            // An average divides what all hosts have added up.
            let reduce = if reduce == ReduceOp::Avg { ReduceOp::Sum } else { reduce };
            let collective = Collective::ReduceScatter;
            return Some(LaneCall {
                collective,
                dtype,
                reduce,
                rank,
                size,
                bytes: part,
                whole: Some(bytes),
                lanes,
            });
        }
        let collective = match kind {
            Kind::AllReduce => Collective::AllReduce,
            Kind::ReduceScatter => Collective::ReduceScatter,
            Kind::AllGather => Collective::AllGather,
            Kind::AllToAll => Collective::AllToAll,
            Kind::Broadcast => Collective::Broadcast(info.root.unwrap_or(0)),
            _ => return None,
        };
        Some(LaneCall { collective, dtype, reduce, rank, size, bytes, whole: None, lanes })
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

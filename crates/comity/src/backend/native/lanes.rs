//! Calls that lanes carry.

use crate::{
    CallInfo, DType, ReduceOp,
    engine::CallPhase,
    lanes::{Collective, LaneCall, MOST_MATES},
    status::World,
};
use comity_plan::{Kind, LanePhase, LanePlan, Lanes, Phase, Plan, Schedule, Shape, Slice, build_with_lanes};

/// Number of lanes that a group of these members of a world may use.
pub(super) fn of(world: &dyn World, members: &[usize]) -> Lanes {
    let host = |m: &usize| world.hosts().get(*m);
    let mates = |m: &usize| members.iter().filter(|o| host(o) == host(m)).count();
    let may = world.shares_memory() && members.iter().all(|m| mates(m) <= MOST_MATES);
    if may { world.lanes() } else { Lanes::UpTo(1) }
}

/// Way of a call whose bytes lanes carry.
#[derive(Debug)]
pub(super) struct Carried {
    lanes: usize,
    /// The ranks that share memory.
    pub(super) mates: Vec<usize>,
    /// Phases that follow the headers on several hosts.
    pub(super) phases: Vec<CallPhase>,
}

impl Carried {
    /// With the plan of its headers. `schedule` makes one of a plan.
    pub(super) fn new(shape: &Shape<'_>, lanes: usize, schedule: impl Fn(Plan) -> Schedule) -> (Self, Plan) {
        let LanePlan { mates, headers, phases } = build_with_lanes(shape);
        let bytes = |s: Slice| Slice::new(s.buf, s.at * shape.elem, s.len * shape.elem);
        let phase = |phase| match phase {
            Phase::Links(plan) => CallPhase::links(schedule(plan)),
            Phase::Lanes(LanePhase { adds, input, output, part }) => CallPhase::lanes(LanePhase {
                adds,
                input: bytes(input),
                output: bytes(output),
                part: part * shape.elem,
            }),
        };
        let phases = phases.into_iter().map(phase).collect();
        (Self { lanes, mates, phases }, headers)
    }

    pub(super) fn tmp(&self) -> usize {
        self.phases.iter().map(CallPhase::tmp).max().unwrap_or(0)
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
        // Over several hosts an average divides what all have added up.
        let divides = reduce == ReduceOp::Avg && self.phases.is_empty();
        let reduce = if divides || reduce != ReduceOp::Avg { reduce } else { ReduceOp::Sum };
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

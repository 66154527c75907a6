//! Schedules that are kept for calls that come again, and how one is prepared; calls that lanes carry.

use super::{
    NativeBackend,
    lent::{gains_by_pull, is_asked},
};
use crate::{
    CallInfo, DType, ReduceOp,
    backend::{Bufs, Call},
    engine::{CallPhase, is_short},
    lanes::{Collective, LaneCall, MOST_MATES},
    status::World,
    sys::fnv,
};
use comity_plan::{
    self as plan, Algorithm, Choice, Kind, LanePhase, LanePlan, Lanes, Phase, Plan, ReceiveMode, Schedule,
    Shape, Slice, StepOp, build_with_lanes,
};

/// Schedules kept for calls that come again.
pub(super) const KEPT: usize = 16;

#[derive(Debug)]
pub(super) struct KeptSchedule {
    pub(super) key: ScheduleKey,
    pub(super) schedule: Schedule,
    pub(super) shape: u64,
    /// True if no partial sum is stored.
    pub(super) adds_at_once: bool,
    /// True if its calls can be made step by step.
    pub(super) short: bool,
    /// True if its messages are quicker when the system copies them out of the sender's memory.
    pub(super) pulls: bool,
    /// Lanes that carry the call, if any do: the schedule brings the headers only then.
    pub(super) carried: Option<Carried>,
    /// True if its last call's messages were read in place; `None` if nobody asks.
    pub(super) lends: Option<bool>,
}

/// Properties of a call that determine its schedule, besides the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ScheduleKey {
    pub(super) kind: Kind,
    pub(super) count: usize,
    pub(super) elem: usize,
    pub(super) root: usize,
    pub(super) in_place: bool,
    /// Distance from `Out` to `In` in one memory, in bytes, where they do not begin together.
    pub(super) shift: Option<isize>,
    /// Not in segments: all ranks read the messages where they lie.
    pub(super) in_one_piece: bool,
}

impl NativeBackend {
    #[inline]
    pub(super) fn key(&self, kind: Kind, call: &Call<'_>) -> ScheduleKey {
        let count = call.info.count;
        let elem = call.info.dtype.map_or(1, DType::size);
        let own = (self.members().rank * count * elem) as isize;
        let shift = match call.bufs {
            Bufs::OwnIn(_) => Some(own),
            Bufs::OwnOut(_) => Some(-own),
            _ => None,
        };
        ScheduleKey {
            kind,
            count,
            elem,
            root: call.info.root.unwrap_or(0),
            in_place: matches!(call.bufs, Bufs::InPlace(_)) && kind != Kind::Broadcast,
            shift,
            in_one_piece: call.counts.is_empty() && self.in_one_piece.has((kind, count, elem)),
        }
    }

    /// Have the schedule of `call` stand last of those kept, made anew where there is none: the first to go is the one not used longest.
    #[inline]
    pub(super) fn come_last(&mut self, key: &ScheduleKey, call: &Call<'_>) {
        let plain = call.counts.is_empty();
        let stands_last = plain && self.kept.last().is_some_and(|kept| kept.key == *key);
        if !stands_last {
            self.bring_last(key, call);
        }
    }

    fn bring_last(&mut self, key: &ScheduleKey, call: &Call<'_>) {
        let plain = call.counts.is_empty();
        match self.kept.iter().rposition(|kept| plain && kept.key == *key) {
            Some(i) => self.kept[i..].rotate_left(1),
            None => {
                let new = self.prepare(*key, call);
                if self.kept.len() == KEPT {
                    self.kept.remove(0);
                }
                self.kept.push(new.into());
            }
        }
    }

    /// Choose a plan and prepare it, in bytes.
    pub(super) fn prepare(&self, key: ScheduleKey, call: &Call<'_>) -> KeptSchedule {
        let shape = Shape {
            // Nothing to move: still a word to every peer, so that ranks which disagree are told.
            kind: if is_empty(key, call) { Kind::Barrier } else { key.kind },
            rank: self.members().rank,
            size: self.members().size(),
            count: key.count,
            elem: key.elem,
            root: key.root,
            counts: call.counts,
            recv_counts: call.recv_counts,
            hosts: &self.topology.host,
        };
        let choice = plan::choose(&shape.common(), &self.topology, self.prefer);
        let may_carry = choice.lanes > 1 && self.engine.has_lanes() != Some(false) && !is_empty(key, call);
        let lends = (!may_carry && is_asked(shape.kind, &choice)).then_some(key.in_one_piece);
        let Choice { algorithm, segment, .. } = choice;
        let segment = if key.in_one_piece { 0 } else { segment };
        let schedule = |plan| {
            let mut schedule = Schedule::new(&scaled(plan, key.elem), key.in_place);
            if let Some(shift) = key.shift {
                schedule.input_lies(shift);
            }
            schedule
        };
        let (carried, plan) = if may_carry {
            let (carried, headers) = Carried::new(&shape, choice.lanes, schedule);
            (Some(carried), headers)
        } else {
            (None, plan::build(&shape, algorithm, segment))
        };
        // Ranks that were told different numbers of lanes are told so, also where they then use none.
        let agreed = fingerprint(algorithm, segment, call.counts) ^ (choice.lanes as u64 - 1);
        let schedule = schedule(plan);
        let pulls = gains_by_pull((key.kind, key.count, key.elem), shape.size, call.counts);
        // With counts, headers may differ by peer.
        let short = call.counts.is_empty() && is_short(shape.size, &schedule);
        let adds_at_once = shape.size <= 2 || algorithm.adds_at_once();
        KeptSchedule { key, schedule, shape: agreed, adds_at_once, short, pulls, carried, lends }
    }
}

/// Returns true if no rank gives or gets anything.
fn is_empty(key: ScheduleKey, call: &Call<'_>) -> bool {
    let pairwise = key.kind == Kind::AllToAll && !call.counts.is_empty();
    key.count == 0 && !pairwise && call.counts.iter().all(|&c| c == 0)
}

/// The plan with ranges in bytes.
fn scaled(mut plan: Plan, elem: usize) -> Plan {
    let scale = |s: &mut Slice| {
        s.at *= elem;
        s.len *= elem;
    };
    for step in &mut plan.steps {
        match &mut step.op {
            StepOp::Send { src, .. } => scale(src),
            StepOp::Recv { dst, mode, .. } => {
                scale(dst);
                if let ReceiveMode::Reduce { with, .. } = mode {
                    scale(with);
                }
            }
            StepOp::NWayReduce { own, dst, .. } => {
                scale(own);
                scale(dst);
            }
            StepOp::Copy { src, dst } => {
                scale(src);
                scale(dst);
            }
        }
    }
    plan.tmp *= elem;
    plan
}

/// Digest of the choices that all ranks must share beyond the call's header (FNV-1a). The algorithm's name is in it, and not its place in the table.
pub(super) fn fingerprint(algorithm: Algorithm, segment: usize, counts: &[usize]) -> u64 {
    let words = [fnv(algorithm.name().as_bytes()), segment as u64, counts.len() as u64];
    let counts = counts.iter().map(|count| *count as u64);
    words.into_iter().chain(counts).fold(0xcbf2_9ce4_8422_2325, |h, w| (h ^ w).wrapping_mul(0x0100_0000_01b3))
}

/// Number of lanes that a group of these members of a world may use.
pub(super) fn lanes_of(world: &dyn World, members: &[usize]) -> Lanes {
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
mod lane_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_does_not_depend_on_the_order_of_the_table() {
        assert_eq!(fingerprint(Algorithm::Ring, 0, &[]), 0x2d1aa008c690eaba);
        let all: std::collections::BTreeSet<_> =
            Algorithm::ALL.iter().map(|a| fingerprint(*a, 0, &[])).collect();
        assert_eq!(all.len(), Algorithm::ALL.len());
    }
}

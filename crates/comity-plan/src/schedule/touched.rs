//! Earlier steps that a step waits for, by the ranges that they touch.

use super::{Dep, Id};
use crate::{Buf, Plan, ReceiveMode, Slice, Step, StepOp};
use std::collections::BTreeMap;

/// Steps by the ranges that they have touched so far, to find those that a step must wait for.
pub(super) struct TouchedRanges {
    in_place: bool,
    /// No slice is longer: what begins this far before a range cannot reach it.
    longest: usize,
    reads: Ranges,
    writes: Ranges,
}

/// Lengths by buffer, start and step.
type Ranges = BTreeMap<(Buf, usize, Id), usize>;

impl TouchedRanges {
    pub(super) fn new(plan: &Plan, in_place: bool) -> Self {
        let len = |s: &Step| match &s.op {
            StepOp::Send { src: s, .. } | StepOp::Recv { dst: s, .. } | StepOp::NWayReduce { dst: s, .. } => {
                s.len
            }
            StepOp::Copy { dst, .. } => dst.len,
        };
        let longest = plan.steps.iter().map(len).max().unwrap_or(0);
        Self { in_place, longest, reads: Ranges::new(), writes: Ranges::new() }
    }

    pub(super) fn depend(&mut self, op: &StepOp, id: Id, deps: &mut Vec<Dep>) {
        let (read, write) = match op {
            StepOp::Send { src, .. } => (Some(*src), None),
            StepOp::Recv { dst, mode: ReceiveMode::Copy, .. } => (None, Some(*dst)),
            StepOp::Recv { dst, mode: ReceiveMode::Reduce { with, .. }, .. } => (Some(*with), Some(*dst)),
            StepOp::NWayReduce { own, dst, .. } => (Some(*own), Some(*dst)),
            StepOp::Copy { src, dst } => (Some(*src), Some(*dst)),
        };
        let read = read.map(|r| self.place(r));
        let write = write.map(|w| self.place(w));
        if let Some(r) = read.filter(|_| read != write) {
            self.after(r, &self.writes, deps);
        }
        if let Some(w) = write {
            self.after(w, &self.writes, deps);
            self.after(w, &self.reads, deps);
            // Whoever waits for this step has waited for all that it covers.
            self.forget_covered(w);
            self.writes.insert((w.buf, w.at, id), w.len);
        }
        // Own reads come last: a step reads each element before it writes it.
        if let Some(r) = read {
            self.reads.insert((r.buf, r.at, id), r.len);
        }
    }

    /// `In` and `Out` are one memory when in place.
    fn place(&self, s: Slice) -> Slice {
        match s.buf {
            Buf::In if self.in_place => Slice { buf: Buf::Out, ..s },
            _ => s,
        }
    }

    fn after(&self, s: Slice, earlier: &Ranges, deps: &mut Vec<Dep>) {
        let near = (s.buf, s.at.saturating_sub(self.longest), 0)..(s.buf, s.at + s.len, 0);
        for (&(_, at, on), &len) in earlier.range(near) {
            if at + len > s.at && s.len > 0 && len > 0 {
                let free = at.saturating_sub(s.at);
                deps.push(Dep { on, shift: s.at as isize - at as isize, free });
            }
        }
    }

    fn forget_covered(&mut self, w: Slice) {
        for ranges in [&mut self.reads, &mut self.writes] {
            let within = (w.buf, w.at, 0)..(w.buf, w.at + w.len, 0);
            let covered: Vec<_> =
                ranges.range(within).filter(|&(k, len)| k.1 + len <= w.at + w.len).map(|(k, _)| *k).collect();
            for k in covered {
                ranges.remove(&k);
            }
        }
    }
}

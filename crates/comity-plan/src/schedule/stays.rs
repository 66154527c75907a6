//! Sends whose elements may stay in place until the peer has read them from there.
//!
//! ```text
//!   round 3   send A  -------------> the peer reads A here, when its round 3 has come
//!   round 4   recv into A            waits for that
//! ```
//! A step that writes over what a send reads waits for the peer. If it belongs to a later round, the peer never waits for it in turn:
//! it comes to the end of the earlier round by itself. In one round two ranks could wait for each other, as partners do that exchange a
//! buffer in place; so of such a round nothing stays.

use super::{Dep, Schedule};
use crate::{Buf, Plan, Slice, StepOp};
use std::collections::BTreeSet;

impl Schedule {
    pub(super) fn find_stays(&mut self, plan: &Plan) {
        let mut tied = BTreeSet::new();
        for (item, step) in self.items.iter().zip(&plan.steps) {
            let waits = |d: &Dep| {
                let on = &plan.steps[d.on as usize];
                on.round == step.round && matches!(on.op, StepOp::Send { .. })
            };
            if self.deps_of(item).iter().any(waits) {
                tied.insert(step.round);
            }
        }
        for (item, step) in self.items.iter_mut().zip(&plan.steps) {
            item.stays = !tied.contains(&step.round);
        }
    }
    /// `In` and `Out` are one memory, but do not begin together: `In` begins `shift` elements after `Out`. What the plan does in place
    /// needs no waiting, but a send of what is written later cannot stay.
    pub fn input_lies(&mut self, shift: isize) {
        self.apart = false;
        let mut written: Vec<(isize, isize)> =
            self.items.iter().filter_map(|i| written(&i.op, shift)).collect();
        written.sort_unstable();
        // Each beside the farthest end so far.
        let mut end = isize::MIN;
        for w in &mut written {
            end = end.max(w.1);
            w.1 = end;
        }
        for item in &mut self.items {
            let StepOp::Send { src: Slice { buf: Buf::In, at, len }, .. } = item.op else { continue };
            let from = at as isize + shift;
            let to = (at + len) as isize + shift;
            let before = written.partition_point(|w| w.0 < to);
            item.stays &= before == 0 || written[before - 1].1 <= from;
        }
    }
}

/// Returns the range of `Out` that a step changes, its start and its end.
fn written(op: &StepOp, shift: isize) -> Option<(isize, isize)> {
    let dst = match op {
        StepOp::Send { .. } => return None,
        // To where it lies already.
        StepOp::Copy { src: Slice { buf: Buf::In, at, .. }, dst }
            if *at as isize + shift == dst.at as isize =>
        {
            return None;
        }
        StepOp::Recv { dst, .. } | StepOp::NWayReduce { dst, .. } | StepOp::Copy { dst, .. } => dst,
    };
    (dst.buf == Buf::Out).then_some((dst.at as isize, (dst.at + dst.len) as isize))
}

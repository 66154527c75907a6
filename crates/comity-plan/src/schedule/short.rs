//! Schedules that can be made step by step, without a look at the steps that may move now.

use super::{Item, Queue, Schedule};
use crate::{Buf, StepOp};

impl Schedule {
    /// Returns true if its steps can be made one after the other: at most one message to each rank and one from each, of `most` elements or
    /// fewer, and nothing written to `Out` before the last of those that come.
    pub fn is_short(&self, most: usize) -> bool {
        let once = |queues: &[Queue]| queues.iter().all(|q| q.ids.len() == 1);
        let comes = |i: &Item| matches!(i.op, StepOp::Recv { .. } | StepOp::NWayReduce { .. });
        let before = self.items.iter().rposition(comes).unwrap_or(0);
        once(&self.sends)
            && once(&self.recvs)
            && self.items.iter().all(|i| i.len <= most)
            && !self.items[..before].iter().any(writes_out)
    }
}

fn writes_out(item: &Item) -> bool {
    match &item.op {
        StepOp::Send { .. } => false,
        StepOp::Recv { dst, .. } | StepOp::NWayReduce { dst, .. } | StepOp::Copy { dst, .. } => {
            dst.buf == Buf::Out && dst.len > 0
        }
    }
}

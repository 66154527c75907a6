//! The step of a schedule that combines what several ranks bring, all at once and out of their links' memory.

use super::{
    Engine,
    run::{Blame, Task},
};
use crate::{CallInfo, DType, ReduceOp, kernel, transport::LinkError, view::Memory};
use comity_plan::{Act, Schedule, Slice};

impl Engine {
    /// Whether the links have more for fold `id`, of which `pulled` bytes were combined just now.
    pub(super) fn goes_on(&self, schedule: &Schedule, q: usize, id: u32, pulled: usize) -> bool {
        let Act::Fold { from, .. } = schedule.act(id) else { return false };
        let has_more =
            |&p: &usize| self.links[p].as_deref().is_some_and(|l| pulled < l.chunk() && l.has_more());
        schedule.next_recv(q).is_some_and(|want| want.id == id) && from.iter().all(has_more)
    }

    /// Combine what all senders of a fold have brought; how many bytes of each.
    pub(super) fn fold(
        &mut self,
        schedule: &mut Schedule,
        q: usize,
        memory: &mut Memory<'_>,
        task: &Task<'_>,
    ) -> Result<usize, Blame> {
        let Some(want) = schedule.next_recv(q) else { return Ok(0) };
        if !schedule.fold_is_ready(want.id) {
            return Ok(0);
        }
        let Act::Fold { from, own, dst, last } = schedule.act(want.id) else { return Ok(0) };
        let (own, dst, last) = (*own, *dst, *last);
        if !from.iter().all(|&p| self.rx[p].is_in_body()) {
            return Ok(0);
        }
        let (dtype, op) = types(&task.info);
        // The same for all senders.
        let pending = from.first().map_or(0, |&p| self.rx[p].pending);
        let done = want.done + pending;
        let mut n = want.allowed.saturating_sub(done);
        let mut sources: [&[u8]; 64] = [&[]; 64];
        let mut many: Vec<&[u8]> = Vec::new();
        if from.len() > sources.len() {
            many.resize(from.len(), &[]);
        }
        let slots = if from.len() > 64 { &mut many[..] } else { &mut sources[..from.len()] };
        let mut links = self.links.iter_mut().enumerate();
        for (slot, &p) in slots.iter_mut().zip(from) {
            let Some((_, Some(link))) = links.by_ref().find(|(i, _)| *i == p) else { return Ok(0) };
            let chunk = link.chunk();
            // At least an element: a look for nothing would not see what has come.
            let look = n.min(chunk).max(dtype.size());
            let blame = |e: LinkError| Blame(Some(p), e.into());
            if (1..dtype.size()).contains(&link.peek(look).map_err(blame)?.len()) {
                // A piece of an element: has the link ended?
                link.put(&[], &[]).map_err(blame)?;
            }
            *slot = link.peek(look).map_err(blame)?;
            let ready = whole(slot.len().min(chunk), dtype);
            self.rx[p].starved = ready == 0;
            n = n.min(ready);
        }
        let n = whole(n, dtype);
        if n == 0 {
            return Ok(0);
        }
        slots.iter_mut().for_each(|s| *s = &s[..n]);
        let me = from.partition_point(|&p| p < self.rank);
        let cut = |s: Slice| Slice { at: s.at + done, len: n, ..s };
        let (out, operand) = memory.operands(cut(dst), cut(own));
        let op = if op == ReduceOp::Avg && !last { ReduceOp::Sum } else { op };
        kernel::fold(dtype, op, self.members.len(), out, operand, &slots[..me], &slots[me..]);
        let ended = done + n == schedule.len(want.id);
        let mut unproven = 0;
        for &p in from {
            if let Some(link) = &mut self.links[p] {
                link.consume(n);
                unproven = link.unproven().max(unproven);
            }
        }
        let mut proven = 0;
        for &p in from {
            proven = self.rx[p].took(n, unproven);
            if ended {
                self.rx[p].end_checked().map_err(|e| Blame(Some(p), e.into()))?;
            }
        }
        if proven > 0 {
            schedule.folded(want.id, proven);
        }
        Ok(n)
    }
}

pub(super) fn types(info: &CallInfo) -> (DType, ReduceOp) {
    (info.dtype.unwrap_or(DType::U8), info.reduce.unwrap_or(ReduceOp::Sum))
}

/// `n` bytes, rounded down to whole elements.
pub(super) fn whole(n: usize, dtype: DType) -> usize {
    n - n % dtype.size()
}

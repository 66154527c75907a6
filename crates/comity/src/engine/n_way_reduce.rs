//! The step of a schedule that combines what several ranks bring, all at once and out of their links' memory.

use super::{
    run::{Run, StepFault, Task},
    stream::Rx,
};
use crate::{DType, ReduceOp, status::Links, transport::LinkError};
use comity_kernel as kernel;
use comity_plan::{Buf, Id, Slice, StepOp};

/// Up to so many senders are listed without memory of the heap.
pub(super) const FEW: usize = 64;

impl Run<'_, '_> {
    /// Take what has come for n-way reduce `id`, in the turn of `peer`, which is one of its senders. `pulled` bytes came in this turn before.
    pub(super) fn pull_n_way(
        &mut self,
        q: usize,
        peer: usize,
        id: Id,
        mut pulled: usize,
    ) -> Result<bool, StepFault> {
        let StepOp::NWayReduce { from, dst, .. } = self.schedule.op(id) else { return Ok(false) };
        if self.pending_headers > 0 && dst.buf == Buf::Out {
            self.engine.rx[peer].starved = false;
            return Ok(false);
        }
        // All of an n-way reduce's senders are looked at together, in the turn of the last, and their flags are set there.
        if from.last() != Some(&peer) {
            return Ok(false);
        }
        let mut moved = false;
        loop {
            let n = self.n_way_reduce(q)?;
            moved |= n > 0;
            pulled += n;
            if n == 0 || !self.goes_on(q, id, pulled) {
                return Ok(moved);
            }
        }
    }

    /// Returns true if the links have more for n-way reduce `id`, of which `pulled` bytes were combined just now.
    fn goes_on(&self, q: usize, id: Id, pulled: usize) -> bool {
        let StepOp::NWayReduce { from, .. } = self.schedule.op(id) else { return false };
        let links = &self.engine.links;
        let has_more = |&p: &usize| links[p].as_deref().is_some_and(|l| pulled < l.chunk() && l.has_more());
        self.schedule.next_recv(q).is_some_and(|want| want.id == id) && from.iter().all(has_more)
    }

    /// Combine what all senders of an n-way reduce have brought; how many bytes of each.
    fn n_way_reduce(&mut self, q: usize) -> Result<usize, StepFault> {
        let Some(want) = self.schedule.next_recv(q) else { return Ok(0) };
        if !self.schedule.n_way_is_ready(want.id) {
            return Ok(0);
        }
        let StepOp::NWayReduce { from, own, dst, last } = self.schedule.op(want.id) else { return Ok(0) };
        let engine = &mut *self.engine;
        if !from.iter().all(|&p| engine.rx[p].is_in_body()) {
            return Ok(0);
        }
        let (dtype, op) = types(self.task);
        // The same for all senders.
        let done = want.done + from.first().map_or(0, |&p| engine.rx[p].pending);
        let most = want.allowed.saturating_sub(done);
        let mut few: [&[u8]; FEW] = [&[]; FEW];
        let mut many: Vec<&[u8]> = Vec::new();
        if from.len() > FEW {
            many.resize(from.len(), &[]);
        }
        let sources = if from.len() > FEW { &mut many[..] } else { &mut few[..from.len()] };
        let n = gather(&mut engine.links, &mut engine.rx, from, sources, (most, dtype))?;
        if n == 0 {
            return Ok(0);
        }
        let rank = engine.members.rank;
        let size = engine.members.size();
        let (before, after) = sources.split_at(from.partition_point(|&p| p < rank));
        let cut = |s: Slice| Slice { at: s.at + done, len: n, ..s };
        let (out, operand) = self.memory.operands(cut(*dst), cut(*own));
        let op = if op == ReduceOp::Avg && !*last { ReduceOp::Sum } else { op };
        kernel::n_way_reduce(dtype, op, size, out, operand, before, after);
        let ended = done + n == self.schedule.len(want.id);
        let proven = pass(&mut engine.links, &mut engine.rx, from, (n, ended))?;
        if proven > 0 {
            self.schedule.n_way_reduced(want.id, proven);
        }
        Ok(n)
    }
}

/// Fills `sources` with equally many bytes that each link of `from` lends, whole elements and at most `most`. Returns their number.
#[inline]
fn gather<'a>(
    links: &'a mut Links,
    rx: &mut [Rx],
    from: &[usize],
    sources: &mut [&'a [u8]],
    (most, dtype): (usize, DType),
) -> Result<usize, StepFault> {
    let mut n = most;
    let mut links = links.iter_mut().enumerate();
    for (source, &p) in sources.iter_mut().zip(from) {
        let Some((_, Some(link))) = links.by_ref().find(|(i, _)| *i == p) else { return Ok(0) };
        let piece = link.piece().unwrap_or_else(|| link.chunk());
        // At least an element: a look for nothing would not see what has come.
        let look = n.min(piece).max(dtype.size());
        let fault = |e: LinkError| StepFault(Some(p), e.into());
        if (1..dtype.size()).contains(&link.peek(look).map_err(fault)?.len()) {
            // A piece of an element: has the link ended?
            link.put(&[], &[]).map_err(fault)?;
        }
        *source = link.peek(look).map_err(fault)?;
        let ready = whole(source.len().min(piece), dtype);
        rx[p].starved = ready == 0;
        n = n.min(ready);
    }
    let n = whole(n, dtype);
    if n > 0 {
        sources.iter_mut().for_each(|s| *s = &s[..n]);
    }
    Ok(n)
}

/// Give back the `n` bytes of each of `from` that were combined, with which their messages may have `ended`; how many more are known to
/// be right.
#[inline]
fn pass(
    links: &mut Links,
    rx: &mut [Rx],
    from: &[usize],
    (n, ended): (usize, bool),
) -> Result<usize, StepFault> {
    let mut unproven = 0;
    for &p in from {
        if let Some(link) = &mut links[p] {
            link.still_holds(n).map_err(|e| StepFault(Some(p), e.into()))?;
            link.consume(n);
            unproven = link.unproven().max(unproven);
        }
    }
    let mut proven = 0;
    for &p in from {
        proven = rx[p].took(n, unproven);
        if ended {
            rx[p].end_checked().map_err(|e| StepFault(Some(p), e.into()))?;
        }
    }
    Ok(proven)
}

pub(super) fn types(task: &Task<'_>) -> (DType, ReduceOp) {
    (task.info.dtype.unwrap_or(DType::U8), task.reduce)
}

/// `n` bytes, rounded down to whole elements.
pub(super) fn whole(n: usize, dtype: DType) -> usize {
    n - n % dtype.size()
}

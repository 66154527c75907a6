//! The steps of a schedule: those that send, those that receive from one peer, copied or combined into their place, and n-way reductions, which
//! combine what several ranks bring, all at once and out of their links' memory.

use super::{
    run::{Direction, Run, StepFault, Task},
    stream::{Begin, HeaderRefusal, Rx},
};
use crate::{
    DType, ReduceOp,
    status::Links,
    transport::{LinkError, Stays},
};
use comity_kernel as kernel;
use comity_plan::{Buf, Id, ReceiveMode, Slice, StepOp, Want};

/// A send to one rank that is shorter returns before its receive is made, as far as the link has room.
const LONG_PAIR: usize = 512 << 10;

/// After a message this long, look at what else arrives before the next one.
const LONG: usize = 4096;

/// Up to so many senders are listed without memory of the heap.
pub(super) const FEW: usize = 64;

impl Run<'_, '_> {
    /// Send what may leave of one queue.
    #[inline]
    pub(super) fn push(&mut self, q: usize) -> Result<bool, LinkError> {
        let moved = self.offer(q)?;
        let tx = &mut self.engine.tx[self.schedule.send_peer(q)];
        // It waits for what it has lent.
        tx.blocked |= tx.lent > 0;
        Ok(moved)
    }

    #[inline]
    fn offer(&mut self, q: usize) -> Result<bool, LinkError> {
        let engine = &mut *self.engine;
        let schedule = &mut *self.schedule;
        let peer = schedule.send_peer(q);
        let tx = &mut engine.tx[peer];
        tx.blocked = false;
        let Some(link) = engine.links[peer].as_deref_mut() else {
            // It is being made.
            tx.blocked = schedule.next_send(q).is_some();
            return Ok(false);
        };
        let mut moved = tx.lent > 0 && tx.collect(link, schedule, q)?;
        loop {
            let Some(want) = schedule.next_send(q) else { return Ok(moved) };
            let len = schedule.len(want.id);
            if !tx.is_open() {
                let header =
                    schedule.is_first_send(q).then(|| (self.task.header)(Direction::Out, peer).encode());
                // A header goes ahead of bytes that are to come, so that a difference is told early. A short call's goes with them: two
                // writes to a socket take twice as long as one.
                let goes_ahead = header.is_some() && self.task.short.is_none();
                if want.allowed == 0 && len > 0 && !goes_ahead {
                    return Ok(moved);
                }
                tx.begin(header.as_ref(), len);
                // Who sends to one rank need not find it there, up to a length.
                let waits = self.task.call.is_some() || len >= LONG_PAIR;
                let stays = match (schedule.stays(want.id), waits, self.task.pulls) {
                    (false, ..) => Stays::No,
                    (true, false, _) if schedule.recv_queues() > 0 => Stays::No,
                    (true, false, _) => Stays::AtOnce,
                    (true, true, false) => Stays::Yes,
                    (true, true, true) => Stays::Pulled,
                };
                link.announce(len, schedule.recv_queues() > 0, stays);
            }
            if want.allowed == want.done && tx.lead_is_sent() && len > 0 {
                return Ok(moved);
            }
            let StepOp::Send { src, .. } = *schedule.op(want.id) else { return Ok(moved) };
            let n = (want.allowed - want.done).min(link.offer_size().unwrap_or_else(|| link.chunk()));
            let n = tx.put(link, self.memory.read(Slice { at: src.at + want.done, len: n, ..src }))?;
            moved |= n > 0;
            if !tx.lead_is_sent() {
                return Ok(moved);
            }
            engine.members.counters.add_sent(n as u64);
            if want.done + n == len {
                tx.end();
            }
            if n > 0 || len == 0 {
                moved = true;
                tx.gave(link, schedule, q, n)?;
            }
            // One chunk, then look at what arrives; a message that has ended makes room for the next small one.
            if want.done + n < len || len >= link.chunk() {
                return Ok(moved);
            }
        }
    }

    /// Take what has come of one queue.
    #[inline]
    pub(super) fn pull(&mut self, q: usize) -> Result<bool, StepFault> {
        let peer = self.schedule.recv_peer(q);
        let mut moved = false;
        let mut pulled = 0;
        loop {
            let Some(want) = self.schedule.next_recv(q) else { return Ok(moved) };
            let is_n_way = matches!(self.schedule.op(want.id), StepOp::NWayReduce { .. });
            let is_in_body = self.engine.rx[peer].is_in_body();
            if is_n_way && is_in_body {
                return Ok(self.pull_n_way(q, peer, want.id, pulled)? || moved);
            }
            self.engine.rx[peer].starved = false;
            if !is_in_body {
                match self.begin(q, peer, want)? {
                    Begin::Nothing => return Ok(moved),
                    Begin::More => return Ok(true),
                    Begin::Body => moved = true,
                }
            }
            if is_n_way {
                continue;
            }
            // What has come but is not checked stands behind what the schedule knows.
            let done = want.done + self.engine.rx[peer].pending;
            let Some(n) = self.take(peer, want, done)? else { return Ok(moved) };
            let Some(link) = self.engine.links[peer].as_deref() else { return Ok(moved) };
            pulled += n;
            // What lies here goes on as one piece, not frame by frame.
            let more = n > 0 && pulled < link.chunk() && link.has_more();
            let len = self.schedule.len(want.id);
            let rx = &mut self.engine.rx[peer];
            let proven = rx.took(n, link.unproven());
            rx.starved = n == 0 && len > 0;
            if done + n == len {
                rx.end_checked()?;
            }
            moved |= n > 0;
            if proven > 0 || len == 0 {
                moved = true;
                self.schedule.received(q, proven);
            }
            if !more && (done + n < len || len >= LONG) {
                return Ok(moved);
            }
        }
    }

    /// Come to the payload of the message that brings `want`.
    #[inline]
    fn begin(&mut self, q: usize, peer: usize, want: Want) -> Result<Begin, HeaderRefusal> {
        let header = self.schedule.is_first_recv(q).then(|| (self.task.header)(Direction::In, peer));
        let len = self.schedule.len(want.id);
        let engine = &mut *self.engine;
        let Some(link) = engine.links[peer].as_deref_mut() else {
            // It is being made.
            engine.rx[peer].starved = true;
            return Ok(Begin::Nothing);
        };
        let begin = engine.rx[peer].begin(link, header.as_ref(), len, engine.members.rank)?;
        if matches!(begin, Begin::Body) {
            self.pending_headers -= usize::from(header.is_some() && len > 0);
        }
        Ok(begin)
    }

    /// Take what has come of `want`, of which `done` bytes came before, to its place: how many bytes; none if they may not go there yet.
    #[inline]
    fn take(&mut self, peer: usize, want: Want, done: usize) -> Result<Option<usize>, LinkError> {
        let StepOp::Recv { dst, mode, .. } = *self.schedule.op(want.id) else { return Ok(None) };
        let len = self.schedule.len(want.id);
        let may = want.allowed.saturating_sub(done);
        if len > 0 && (may == 0 || (self.pending_headers > 0 && dst.buf == Buf::Out)) {
            return Ok(None);
        }
        let Some(link) = self.engine.links[peer].as_deref_mut() else { return Ok(None) };
        let dst = Slice { at: dst.at + done, len: may, ..dst };
        let (with, last) = match mode {
            ReceiveMode::Reduce { with, last } => (Slice { at: with.at + done, len: may, ..with }, last),
            ReceiveMode::Copy => {
                let dst = self.memory.write(dst);
                let n = if len == 0 { 0 } else { link.take(dst)? };
                if self.task.dtype == DType::Bool {
                    kernel::normalise_bool(&mut dst[..n]);
                }
                return Ok(Some(n));
            }
        };
        let (dtype, op) = types(self.task);
        let piece = link.piece().unwrap_or_else(|| link.chunk());
        let ready = link.peek(may.min(piece))?;
        let n = whole(ready.len().min(may).min(piece), dtype);
        let cut = |s: Slice| Slice { len: n, ..s };
        let (out, operand) = self.memory.operands(cut(dst), cut(with));
        let theirs = &ready[..n];
        match operand {
            // Divides before it rounds.
            _ if last && op == ReduceOp::Avg => {
                kernel::n_way_reduce(dtype, op, self.engine.members.size(), out, operand, &[theirs], &[]);
            }
            None => kernel::combine(dtype, op, out, theirs),
            Some(a) => kernel::combine_into(dtype, op, out, a, theirs),
        }
        let piece = n == 0 && !ready.is_empty();
        link.still_holds(n)?;
        link.consume(n);
        if piece {
            // A piece of an element: has the link ended?
            link.put(&[], &[])?;
        }
        Ok(Some(n))
    }

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
    (task.dtype, task.reduce)
}

/// `n` bytes, rounded down to whole elements.
pub(super) fn whole(n: usize, dtype: DType) -> usize {
    n - n % dtype.size()
}

//! The steps of a schedule that receive from one peer: a message's begin, then its bytes, copied or combined into their place.

use super::{
    n_way_reduce::{types, whole},
    run::{Direction, Run, StepFault},
    stream::{Begin, HeaderRefusal},
};
use crate::{DType, ReduceOp, transport::LinkError};
use comity_kernel as kernel;
use comity_plan::{Buf, ReceiveMode, Slice, StepOp, Want};

/// After a message this long, look at what else arrives before the next one.
const LONG: usize = 4096;

impl Run<'_, '_> {
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
                if self.task.info.dtype == Some(DType::Bool) {
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
}

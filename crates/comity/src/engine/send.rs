//! The steps of a schedule that send.

use super::run::{Direction, Run};
use crate::transport::{LinkError, Stays};
use comity_plan::{Slice, StepOp};

/// A send to one rank that is shorter returns before its receive is made, as far as the link has room.
const LONG_PAIR: usize = 512 << 10;

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
                if want.allowed == 0 && len > 0 && header.is_none() {
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
            let n = (want.allowed - want.done).min(link.offer_size());
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
}

//! Short calls between ranks that share memory: one message to each peer and one from each, without a schedule's bookkeeping.
//!
//! ```text
//!   put the message to every peer ──> look until that of every peer is there ──> combine, all at once
//!          │ no room                        │ not soon, or another one
//!          └────────────────────────────────┴──> the schedule goes on from here (run.rs)
//! ```
//!
//! The same bytes travel over the same links in the same order, and are combined by the same kernels. Whatever is not as expected stays
//! where it is for the schedule, which finds it as if nothing else had looked. So there is nothing here of failures, limits and sleep.
//!
//! Cost: n-1 messages, as the plan `direct` has; about half of the instructions that the schedule takes for them.

use super::{
    Engine,
    n_way_reduce::{FEW, types},
    run::Run,
};
use crate::{
    ReduceOp, kernel,
    status::{HEADER, lead},
    transport::LinkKind,
};
use comity_plan::{Buf, Slice};

/// Longer messages are not worth it.
const LONGEST: usize = 1024;
/// So many looks without a rest: a peer that runs answers meanwhile.
const EAGER: u32 = 32;

/// What a short call sends to each peer and expects of each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShortMessage {
    /// Encoded.
    pub(crate) header: [u8; HEADER],
    /// Bytes of `In`, which are combined into as many of `Out`.
    pub(crate) len: usize,
}

impl ShortMessage {
    /// Whether calls of `len` bytes on `size` ranks are short.
    pub(crate) fn fits(size: usize, len: usize) -> bool {
        (2..=FEW).contains(&size) && len <= LONGEST
    }
}

impl Engine {
    /// Whether there is a link through memory to every member.
    fn is_all_memory(&mut self) -> bool {
        let in_memory = |l: &dyn crate::transport::Link| matches!(l.kind(), LinkKind::Shm | LinkKind::Local);
        self.unlinked == 0
            && *self
                .all_memory
                .get_or_insert_with(|| self.links.iter().flatten().all(|l| in_memory(l.as_ref())))
    }
}

impl Run<'_, '_> {
    /// Make the call, or leave it to the schedule: whether it was made.
    #[inline]
    pub(super) fn short(&mut self) -> bool {
        let Some(message) = self.task.short else { return false };
        if !self.engine.is_all_memory() {
            return false;
        }
        let put = self.put_short(&message);
        let looks = self.engine.looks();
        let made = put == self.schedule.send_queues()
            && match self.schedule.recv_queues() {
                1 => self.take_one(&message, looks),
                _ => self.take_all(&message, looks),
            };
        if !made {
            (0..put).for_each(|q| self.schedule.sent(q, message.len));
        }
        made
    }

    /// Put the message to one peer after another: to how many it was put whole.
    fn put_short(&mut self, message: &ShortMessage) -> usize {
        let (engine, body) = (&mut *self.engine, Slice::new(Buf::In, 0, message.len));
        let queues = self.schedule.send_queues();
        for q in 0..queues {
            let peer = self.schedule.send_peer(q);
            let Some(link) = engine.links[peer].as_deref_mut() else { return q };
            let tx = &mut engine.tx[peer];
            tx.begin(Some(&message.header), message.len);
            link.announce(message.len, true, false);
            // An error comes again.
            let n = tx.put(link, self.memory.read(body)).unwrap_or(0);
            if !tx.lead_is_sent() || n < message.len {
                self.schedule.sent(q, n);
                engine.members.counters.add_sent((q * message.len + n) as u64);
                return q;
            }
            tx.end();
        }
        engine.members.counters.add_sent((queues * message.len) as u64);
        queues
    }

    /// Take the message of the one peer and combine it.
    fn take_one(&mut self, message: &ShortMessage, looks: u32) -> bool {
        let peer = self.schedule.recv_peer(0);
        let (dtype, op) = types(&self.task.info);
        let (engine, len) = (&mut *self.engine, message.len);
        let (rx, Some(link)) = (&mut engine.rx[peer], engine.links[peer].as_deref_mut()) else { return false };
        if !rx.is_between() {
            return false;
        }
        let lead = lead(rx.pos(), true, len);
        for look in 0..looks {
            let Ok(bytes) = link.peek(lead + len) else { return false };
            let Some((head, after)) = bytes.split_first_chunk() else {
                pause(look);
                continue;
            };
            let Some(theirs) = after.get(lead - HEADER..lead - HEADER + len) else { return false };
            if *head != message.header {
                return false;
            }
            if len > 0 {
                let (out, own) =
                    self.memory.operands(Slice::new(Buf::Out, 0, len), Slice::new(Buf::In, 0, len));
                match own {
                    // Divides before it rounds.
                    _ if op == ReduceOp::Avg => kernel::n_way_reduce(dtype, op, 2, out, own, &[theirs], &[]),
                    None => kernel::combine(dtype, op, out, theirs),
                    Some(own) => kernel::combine_into(dtype, op, out, own, theirs),
                }
            }
            link.consume(lead + len);
            rx.took(lead + len, 0);
            return true;
        }
        false
    }

    /// Take the messages of all peers and combine them in the order of the ranks.
    fn take_all(&mut self, message: &ShortMessage, looks: u32) -> bool {
        if !self.await_all(message, looks) {
            return false;
        }
        let (dtype, op) = types(&self.task.info);
        let (engine, len) = (&mut *self.engine, message.len);
        let (rank, size) = (engine.members.rank, engine.members.size());
        let mut sources: [&[u8]; FEW] = [&[]; FEW];
        let (mut n, mut before) = (0, 0);
        for (peer, (link, rx)) in engine.links.iter_mut().zip(&engine.rx).enumerate() {
            let Some(link) = link.as_deref_mut().filter(|_| peer != rank) else { continue };
            let lead = lead(rx.pos(), true, len);
            let Ok(Some(theirs)) = link.peek(lead + len).map(|b| b.get(lead..lead + len)) else { return false };
            sources[n] = theirs;
            n += 1;
            before += usize::from(peer < rank);
        }
        if len > 0 {
            let (before, after) = sources[..n].split_at(before);
            let (out, own) = self.memory.operands(Slice::new(Buf::Out, 0, len), Slice::new(Buf::In, 0, len));
            kernel::n_way_reduce(dtype, op, size, out, own, before, after);
        }
        for (link, rx) in engine.links.iter_mut().zip(&mut engine.rx) {
            let Some(link) = link else { continue };
            let whole = lead(rx.pos(), true, len) + len;
            link.consume(whole);
            rx.took(whole, 0);
        }
        true
    }

    /// Look until the messages of all peers are there and the expected ones.
    fn await_all(&mut self, message: &ShortMessage, looks: u32) -> bool {
        let (engine, queues) = (&mut *self.engine, self.schedule.recv_queues());
        let (mut here, mut look) = (0, 0);
        while here < queues {
            let peer = self.schedule.recv_peer(here);
            let (rx, Some(link)) = (&engine.rx[peer], engine.links[peer].as_deref_mut()) else { return false };
            let whole = lead(rx.pos(), true, message.len) + message.len;
            let Ok(bytes) = link.peek(whole) else { return false };
            match bytes.first_chunk() {
                None if look + 1 < looks => {
                    pause(look);
                    look += 1;
                }
                Some(head) if *head == message.header && bytes.len() >= whole && rx.is_between() => here += 1,
                _ => return false,
            }
        }
        true
    }
}

#[inline]
fn pause(look: u32) {
    if look >= EAGER {
        std::hint::spin_loop();
    }
}

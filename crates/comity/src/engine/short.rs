//! Short calls between ranks that share memory: at most one message to each peer and one from each, without a schedule's bookkeeping.
//!
//! ```text
//!   the plan's steps, one after the other:   put a message whole ──> look until one is there ──> combine ──> ...
//!                                               │ no room               │ not soon, or another one
//!                                               └───────────────────────┴──> the schedule goes on from this step (run.rs)
//! ```
//!
//! Notes about the call wait until its first messages are put: this rank makes them while the messages are on their way to the other cores.
//!
//! The same bytes travel over the same links in the same order, and are combined by the same kernels. Whatever is not as expected stays
//! where it is for the schedule, which finds it as if nothing else had looked. So there is nothing here of failures, limits and sleep.
//! Nothing is written to the caller's output before every header that this rank waits for was seen: the plans for it write there last.
//! The ranks need not agree: who makes a call so and who does not put and take the same.
//!
//! Cost: the plan's messages. The day it was made, 8 bytes between two ranks took 2,483 instructions in all, and 3,656 by the schedule.

use super::{
    Engine,
    run::Run,
    steps::{FEW, types},
};
use crate::{
    DType, ReduceOp, Result,
    status::{HEADER, Links, lead},
    transport::{Link, Stays},
    view::Memory,
};
use comity_kernel as kernel;
use comity_plan::{Id, ReceiveMode, Schedule, Slice, StepOp};

/// Longer messages gain little.
const LONGEST: usize = 8192;
/// So many looks without a rest: a peer that runs answers meanwhile.
const EAGER: u32 = 32;

/// A call's headers, encoded: to all ranks the same, and from all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShortHeaders {
    pub(crate) out: [u8; HEADER],
    pub(crate) into: [u8; HEADER],
}

/// Returns true if calls by `schedule`, in bytes, on `size` ranks are made so.
pub(crate) fn is_short(size: usize, schedule: &Schedule) -> bool {
    (2..=FEW).contains(&size) && schedule.is_short(LONGEST)
}

impl Engine {
    /// The link to a peer, if it goes through memory.
    #[inline]
    fn memory_link(links: &mut Links, peer: usize) -> Option<&mut (dyn Link + 'static)> {
        links[peer].as_deref_mut().filter(|l| l.properties().is_memory)
    }

    /// Put the message to a peer; how many bytes of its body left, if there was no room for all.
    #[inline]
    fn put_short(&mut self, to: usize, header: &[u8; HEADER], body: &[u8]) -> Result<(), usize> {
        let Some(link) = Self::memory_link(&mut self.links, to) else { return Err(0) };
        link.announce(body.len(), true, Stays::No);
        // An error comes again.
        self.tx[to].put_whole(link, header, body)
    }

    /// Look for the message of a peer, `len` bytes, and hand its body over; whether it came soon, and is the expected one.
    #[inline]
    fn take_short(
        &mut self,
        (from, len): (usize, usize),
        header: &[u8; HEADER],
        body: impl FnOnce(&[u8]),
    ) -> bool {
        let looks = self.patience.looks();
        let Some(link) = Self::memory_link(&mut self.links, from) else { return false };
        let rx = &mut self.rx[from];
        if !rx.is_between() {
            return false;
        }
        let lead = lead(rx.pos(), true, len);
        let whole = lead + len;
        for look in 0..looks {
            let Ok(bytes) = link.peek(whole) else { return false };
            let Some(head) = bytes.first_chunk() else {
                pause(look);
                continue;
            };
            let Some(theirs) = bytes.get(lead..whole).filter(|_| head == header) else {
                return false;
            };
            body(theirs);
            link.consume(whole);
            rx.took(whole, 0);
            return true;
        }
        false
    }

    /// Takes messages as [`take_short`](Self::take_short), from several peers: nothing is taken before the messages of all are there.
    #[inline]
    fn take_short_of_all(
        &mut self,
        (from, len): (&[usize], usize),
        header: &[u8; HEADER],
        bodies: impl FnOnce(&[&[u8]]),
    ) -> bool {
        let looks = self.patience.looks();
        let mut here = 0;
        let mut look = 0;
        while let Some(&peer) = from.get(here) {
            let Some(link) = Self::memory_link(&mut self.links, peer) else { return false };
            let rx = &self.rx[peer];
            let whole = lead(rx.pos(), true, len) + len;
            let Ok(bytes) = link.peek(whole) else { return false };
            match bytes.first_chunk() {
                None if look + 1 < looks => {
                    pause(look);
                    look += 1;
                }
                Some(head) if head == header && bytes.len() >= whole && rx.is_between() => here += 1,
                _ => return false,
            }
        }
        let mut all: [&[u8]; FEW] = [&[]; FEW];
        let Some(all) = all.get_mut(..from.len()) else { return false };
        let mut links = self.links.iter_mut().enumerate();
        for (theirs, &peer) in all.iter_mut().zip(from) {
            let Some((_, Some(link))) = links.by_ref().find(|(i, _)| *i == peer) else { return false };
            let lead = lead(self.rx[peer].pos(), true, len);
            let Ok(Some(there)) = link.peek(lead + len).map(|b| b.get(lead..lead + len)) else {
                return false;
            };
            *theirs = there;
        }
        bodies(all);
        for &peer in from {
            let (rx, Some(link)) = (&mut self.rx[peer], self.links[peer].as_deref_mut()) else { continue };
            let whole = lead(rx.pos(), true, len) + len;
            link.consume(whole);
            rx.took(whole, 0);
        }
        true
    }
}

impl Run<'_, '_> {
    /// Make the call, or its first steps and leave the others to the schedule; whether all were made. An error is one that the group had
    /// before.
    #[inline]
    pub(super) fn short(&mut self) -> Result<bool> {
        let Some(headers) = self.task.short else { return self.note().map(|()| false) };
        let steps = self.schedule.steps();
        let mut sent = 0;
        let mut made = 0;
        while made < steps {
            if !matches!(self.schedule.op(made), StepOp::Send { .. }) {
                self.note()?;
            }
            if !self.make_short(made, headers, &mut sent) {
                break;
            }
            made += 1;
        }
        self.note()?;
        if made < steps {
            self.leave_to_schedule(made);
        }
        self.engine.members.counters.add_sent(sent as u64);
        Ok(made == steps)
    }

    /// Make one step, if it can be made soon. Adds up what was `sent`.
    #[inline]
    fn make_short(&mut self, id: Id, headers: &ShortHeaders, sent: &mut usize) -> bool {
        let Run { engine, schedule, memory, task, .. } = self;
        let (dtype, op) = types(task);
        let size = engine.members.size();
        match schedule.op(id) {
            StepOp::Send { to, src } => {
                let out = engine.put_short(*to, &headers.out, memory.read(*src));
                let n = out.err().unwrap_or(src.len);
                *sent += n;
                if out.is_err() && n > 0 {
                    schedule.sent(send_queue(schedule, *to), n);
                }
                out.is_ok()
            }
            StepOp::Recv { from, dst, mode } => {
                engine.take_short((*from, dst.len), &headers.into, |theirs| match mode {
                    _ if theirs.is_empty() => {}
                    ReceiveMode::Copy => {
                        let dst = memory.write(*dst);
                        dst.copy_from_slice(theirs);
                        if task.dtype == DType::Bool {
                            kernel::normalise_bool(dst);
                        }
                    }
                    // Divides before it rounds.
                    ReceiveMode::Reduce { with, last: true } if op == ReduceOp::Avg => {
                        let (out, own) = memory.operands(*dst, *with);
                        kernel::n_way_reduce(dtype, op, size, out, own, &[theirs], &[]);
                    }
                    ReceiveMode::Reduce { with, .. } => combine((dtype, op), memory, *dst, *with, theirs),
                })
            }
            StepOp::NWayReduce { from, own, dst, last } => {
                let op = if op == ReduceOp::Avg && !*last { ReduceOp::Sum } else { op };
                let before = from.partition_point(|&p| p < engine.members.rank);
                engine.take_short_of_all((from, dst.len), &headers.into, |all| {
                    let (before, after) = all.split_at(before);
                    let (out, own) = memory.operands(*dst, *own);
                    kernel::n_way_reduce(dtype, op, size, out, own, before, after);
                })
            }
            StepOp::Copy { src, dst } => {
                memory.copy(*src, *dst);
                true
            }
        }
    }

    /// The steps before `id` were made: the schedule goes on from there.
    #[cold]
    fn leave_to_schedule(&mut self, id: Id) {
        for made in 0..id {
            let len = self.schedule.len(made);
            let heard = usize::from(len > 0);
            match *self.schedule.op(made) {
                StepOp::Send { to, .. } => self.schedule.sent(send_queue(self.schedule, to), len),
                StepOp::Recv { from, .. } => {
                    let queues = 0..self.schedule.recv_queues();
                    let queue = queues.into_iter().find(|&q| self.schedule.recv_peer(q) == from);
                    self.schedule.received(queue.unwrap_or_default(), len);
                    self.pending_headers -= heard;
                }
                StepOp::NWayReduce { ref from, .. } => {
                    self.pending_headers -= heard * from.len();
                    self.schedule.n_way_reduced(made, len);
                }
                // It was made: only to be noted.
                StepOp::Copy { .. } => drop(self.schedule.next_copy(len, len)),
            }
        }
    }
}

fn send_queue(schedule: &Schedule, to: usize) -> usize {
    (0..schedule.send_queues()).find(|&q| schedule.send_peer(q) == to).unwrap_or_default()
}

fn combine((dtype, op): (DType, ReduceOp), memory: &mut Memory<'_>, dst: Slice, with: Slice, theirs: &[u8]) {
    match memory.operands(dst, with) {
        (out, None) => kernel::combine(dtype, op, out, theirs),
        (out, Some(own)) => kernel::combine_into(dtype, op, out, own, theirs),
    }
}

#[inline]
fn pause(look: u32) {
    if look >= EAGER {
        // WAIT(look): some hundred of them at most, some microseconds; then the schedule waits
        std::hint::spin_loop();
    }
}

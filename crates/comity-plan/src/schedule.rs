//! Parts of a plan that may move now: the sans-IO heart that the engine and the simulator both drive.
//!
//! Between two ranks messages keep the plan's order; otherwise steps overlap wherever their data
//! allow. A step that reads a range waits for the earlier steps that write it, a step that
//! writes waits for the earlier ones that read or write it, element by element: a block of a ring
//! travels on while its tail still arrives.
//!
//! ```text
//!   recv  [########>.........]   8 elements are here,
//!   send  [######>...........]   so 8 may leave: 2 more now
//! ```
//!
//! Messages without elements (a barrier's) have no data to wait for: such a send waits for those that arrive
//! in earlier rounds.
//!
//! A send has ended when this rank need not keep its elements. Mostly that is when they have left. A link that lets the peer read them
//! where they lie gives them back later: the queue goes on to the next send meanwhile, and who writes over them waits.
//!
//! Cost: building is linear in the steps times the overlapping ones before them; asking and
//! advancing are O(dependencies of the step), of which a ring has two.

mod queue;
mod short;
mod stays;
mod touched;

use crate::{Buf, Plan, Slice, StepOp};
use queue::{Queue, enqueue};
use touched::TouchedRanges;

/// A step's place in the schedule.
pub type Id = u32;

/// Next request of a peer's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// The step.
    pub id: Id,
    /// Elements of it that have moved.
    pub done: usize,
    /// Elements of it that may have moved by now, at most its length.
    pub allowed: usize,
}

#[derive(Debug)]
struct Item {
    op: StepOp,
    len: usize,
    /// Elements that have moved; of a send, those that this rank no longer has to keep.
    done: usize,
    ended: bool,
    /// Range of `Schedule::deps`.
    deps: (u32, u32),
    /// True if the elements of this send may stay in place until the peer has read them ([`Schedule::stays`]).
    stays: bool,
}

/// Before this step may pass element `e` of its own, step `on` must have passed `e + shift`, as far as it reaches.
#[derive(Clone, Copy, Debug)]
struct Dep {
    on: Id,
    /// Start of this step's range minus start of the other's, in elements.
    shift: isize,
    /// Elements of this step before the overlap begins.
    free: usize,
}

/// A plan under way.
#[derive(Debug)]
pub struct Schedule {
    items: Vec<Item>,
    deps: Vec<Dep>,
    sends: Vec<Queue>,
    recvs: Vec<Queue>,
    copies: Vec<Id>,
    copied: usize,
    left: usize,
    tmp: usize,
    /// Ranks whose first message has elements.
    expected_headers: usize,
    /// Some message waits for a local copy.
    copies_feed: bool,
    /// True if `In` and `Out` share no memory.
    apart: bool,
}

impl Schedule {
    /// Prepare `plan`. With `in_place`, `In` and `Out` are the same memory from the same start.
    pub fn new(plan: &Plan, in_place: bool) -> Self {
        let mut s = Self {
            items: Vec::with_capacity(plan.steps.len()),
            deps: Vec::new(),
            sends: Vec::new(),
            recvs: Vec::new(),
            copies: Vec::new(),
            copied: 0,
            left: 0,
            tmp: plan.tmp,
            expected_headers: 0,
            copies_feed: false,
            apart: !in_place,
        };
        let mut touched = TouchedRanges::new(plan, in_place);
        let mut bells: Vec<(u32, Id)> = Vec::new();
        for step in &plan.steps {
            let id = s.items.len() as Id;
            let len = match &step.op {
                StepOp::Send { to, src } => {
                    enqueue(&mut s.sends, *to, id);
                    src.len
                }
                StepOp::Recv { from, dst, .. } => {
                    enqueue(&mut s.recvs, *from, id);
                    dst.len
                }
                StepOp::NWayReduce { from, dst, .. } => {
                    from.iter().for_each(|&f| enqueue(&mut s.recvs, f, id));
                    dst.len
                }
                StepOp::Copy { dst, .. } => {
                    s.copies.push(id);
                    dst.len
                }
            };
            let from = s.deps.len() as u32;
            match &step.op {
                StepOp::Recv { .. } if len == 0 => bells.push((step.round, id)),
                StepOp::Send { .. } if len == 0 => {
                    let heard = bells.iter().filter(|b| b.0 < step.round);
                    s.deps.extend(heard.map(|&(_, on)| Dep { on, shift: 0, free: 0 }));
                }
                op => touched.depend(op, id, &mut s.deps),
            }
            let deps = (from, s.deps.len() as u32);
            s.items.push(Item { op: step.op.clone(), len, done: 0, ended: false, deps, stays: true });
        }
        s.expected_headers =
            s.recvs.iter().filter(|q| q.ids.first().is_some_and(|&id| s.len(id) > 0)).count();
        let is_copy = |d: &Dep| matches!(s.op(d.on), StepOp::Copy { .. });
        let is_send = |i: &&Item| matches!(i.op, StepOp::Send { .. });
        s.copies_feed = s.items.iter().filter(is_send).any(|i| s.deps_of(i).iter().any(is_copy));
        s.find_stays(plan);
        s.reset();
        s
    }

    /// Back to the start, to run the same plan again.
    #[inline]
    pub fn reset(&mut self) {
        for item in &mut self.items {
            item.done = 0;
            item.ended = false;
        }
        for q in self.sends.iter_mut().chain(&mut self.recvs) {
            q.reset();
        }
        self.copied = 0;
        self.left = self.items.len();
    }

    /// Elements of `Buf::Tmp` that the plan uses.
    #[inline]
    pub fn tmp(&self) -> usize {
        self.tmp
    }

    /// Returns the number of steps; their places are below it, in the plan's order.
    #[inline]
    pub fn steps(&self) -> Id {
        self.items.len() as Id
    }

    /// Returns true if every step has ended.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.left == 0
    }

    /// Returns the number of peers that this rank sends to; send queues are numbered below it.
    #[inline]
    pub fn send_queues(&self) -> usize {
        self.sends.len()
    }

    /// Returns the number of peers that this rank receives from; receive queues are numbered below it.
    #[inline]
    pub fn recv_queues(&self) -> usize {
        self.recvs.len()
    }

    /// The peer of a send queue.
    #[inline]
    pub fn send_peer(&self, queue: usize) -> usize {
        self.sends[queue].peer
    }

    /// The peer of a receive queue.
    #[inline]
    pub fn recv_peer(&self, queue: usize) -> usize {
        self.recvs[queue].peer
    }

    /// Returns a send queue's next request, or `None` when it has ended or its next message, one without elements, may not
    /// go yet.
    #[inline]
    pub fn next_send(&self, queue: usize) -> Option<Want> {
        let q = &self.sends[queue];
        let &id = q.ids.get(q.at)?;
        let item = &self.items[id as usize];
        if item.len == 0 && self.deps_of(item).iter().any(|d| !self.items[d.on as usize].ended) {
            return None;
        }
        Some(Want { done: q.lent, ..self.want(id) })
    }

    /// Returns true if an element of a send queue has not left, or must still be kept.
    #[inline]
    pub fn send_is_open(&self, queue: usize) -> bool {
        self.sends[queue].sends()
    }

    /// Returns true if the elements of a send may stay in place until the peer has read them from there.
    #[inline]
    pub fn stays(&self, id: Id) -> bool {
        self.items[id as usize].stays
    }

    /// Returns a receive queue's next request, or `None` when it has ended.
    #[inline]
    pub fn next_recv(&self, queue: usize) -> Option<Want> {
        let q = &self.recvs[queue];
        q.ids.get(q.at).map(|&id| self.want(id))
    }

    /// The act of a step.
    #[inline]
    pub fn op(&self, id: Id) -> &StepOp {
        &self.items[id as usize].op
    }

    /// The length of a step in elements.
    #[inline]
    pub fn len(&self, id: Id) -> usize {
        self.items[id as usize].len
    }

    /// Returns true if the queue's next message is its first, and so carries the call's header.
    #[inline]
    pub fn is_first_send(&self, queue: usize) -> bool {
        self.sends[queue].at == 0
    }

    /// Answers as [`is_first_send`](Self::is_first_send), for receives.
    #[inline]
    pub fn is_first_recv(&self, queue: usize) -> bool {
        self.recvs[queue].at == 0
    }

    /// `n` more elements of the queue's current send have left, and this rank need not keep them.
    #[inline]
    pub fn sent(&mut self, queue: usize, n: usize) {
        self.lend(queue, n);
        self.returned(queue, n);
    }

    /// `n` more elements of the queue's current send have left. The peer may read them from this rank's memory until they are
    /// [`returned`](Self::returned).
    #[inline]
    pub fn lend(&mut self, queue: usize, n: usize) {
        let q = &mut self.sends[queue];
        q.lent += n;
        if q.lent == self.items[q.ids[q.at] as usize].len {
            q.at += 1;
            q.lent = 0;
        }
    }

    /// `n` more elements of the queue that have left, the oldest first, need not be kept any longer.
    #[inline]
    pub fn returned(&mut self, queue: usize, mut n: usize) {
        let q = &mut self.sends[queue];
        while let Some(&id) = q.ids.get(q.kept) {
            let item = &mut self.items[id as usize];
            let of_this = n.min(item.len - item.done);
            item.done += of_this;
            n -= of_this;
            if item.done < item.len || q.kept == q.at {
                return;
            }
            item.ended = true;
            q.kept += 1;
            self.left -= 1;
        }
    }

    /// `n` more elements of the queue's current receive, a [`StepOp::Recv`], have been taken.
    #[inline]
    pub fn received(&mut self, queue: usize, n: usize) {
        let q = &mut self.recvs[queue];
        let item = &mut self.items[q.ids[q.at] as usize];
        item.done += n;
        if item.done == item.len {
            item.ended = true;
            q.at += 1;
            self.left -= 1;
        }
    }

    /// Returns true if the n-way reduce `id` is at the head of all its senders' queues.
    #[inline]
    pub fn n_way_is_ready(&self, id: Id) -> bool {
        let StepOp::NWayReduce { from, .. } = self.op(id) else { return false };
        let at_head = |q: &Queue| q.ids.get(q.at) == Some(&id);
        self.recvs.iter().filter(|q| at_head(q)).count() == from.len()
    }

    /// `n` more elements of the n-way reduce `id` have been taken from each of its senders.
    #[inline]
    pub fn n_way_reduced(&mut self, id: Id, n: usize) {
        let item = &mut self.items[id as usize];
        item.done += n;
        if item.done == item.len {
            item.ended = true;
            self.left -= 1;
            for q in self.recvs.iter_mut().filter(|q| q.ids.get(q.at) == Some(&id)) {
                q.at += 1;
            }
        }
    }

    /// Returns the number of ranks to hear from whose first message has elements. All of them announce themselves before anything
    /// else, so waiting for that cannot stop the plan.
    #[inline]
    pub fn expected_headers(&self) -> usize {
        self.expected_headers
    }

    /// Returns true if the next local copy writes a buffer that the caller sees and is better left for later: until all have been `heard`, or, on
    /// a rank that hears from nobody, until all else has ended.
    #[inline]
    pub fn copy_can_wait(&self, heard: bool) -> bool {
        let Some(&id) = self.copies.get(self.copied) else { return false };
        let late = self.recvs.is_empty() && !self.copies_feed && self.left > self.copies.len() - self.copied;
        (!heard || late) && matches!(self.op(id), StepOp::Copy { dst, .. } if dst.buf == Buf::Out)
    }

    /// The next local copy if it may run now, or a piece of one of more than `whole` elements; the caller does it and asks again. A copy
    /// within memory that may overlap comes whole.
    #[inline]
    pub fn next_copy(&mut self, whole: usize, piece: usize) -> Option<(Slice, Slice)> {
        let &id = self.copies.get(self.copied)?;
        let want = self.want(id);
        let item = &mut self.items[id as usize];
        if want.allowed < item.len {
            return None;
        }
        let StepOp::Copy { src, dst } = item.op else { unreachable!("only copies are in this list") };
        let is_cut = item.len > whole && self.apart && src.buf != dst.buf;
        let n = if is_cut { piece.min(item.len - item.done) } else { item.len };
        let cut = |s: Slice| Slice { at: s.at + item.done, len: n, ..s };
        let both = (cut(src), cut(dst));
        item.done += n;
        if item.done == item.len {
            item.ended = true;
            self.left -= 1;
            self.copied += 1;
        }
        Some(both)
    }

    /// Ranks whose bytes this rank still needs, ascending.
    #[inline]
    pub fn waiting_for(&self) -> Vec<usize> {
        let mut from: Vec<_> = self.recvs.iter().filter(|q| q.receives()).map(|q| q.peer).collect();
        if from.is_empty() {
            from = self.sends.iter().filter(|q| q.sends()).map(|q| q.peer).collect();
        }
        from.sort_unstable();
        from
    }

    #[inline]
    fn deps_of(&self, item: &Item) -> &[Dep] {
        &self.deps[item.deps.0 as usize..item.deps.1 as usize]
    }

    #[inline]
    fn want(&self, id: Id) -> Want {
        let item = &self.items[id as usize];
        let mut allowed = item.len;
        for d in self.deps_of(item) {
            let on = &self.items[d.on as usize];
            if on.done < on.len {
                let reach = (on.done as isize - d.shift).max(d.free as isize);
                allowed = allowed.min(reach as usize);
            }
        }
        Want { id, done: item.done, allowed: allowed.max(item.done) }
    }
}

#[cfg(test)]
mod tests;

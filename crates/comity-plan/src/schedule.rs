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

use crate::{Buf, Plan, ReceiveMode, Slice, Step, StepOp};
use std::collections::{BTreeMap, BTreeSet};

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

    /// Finds the sends whose elements may stay in place until the peer has read them from there.
    ///
    /// ```text
    ///   round 3   send A  -------------> the peer reads A here, when its round 3 has come
    ///   round 4   recv into A            waits for that
    /// ```
    /// A step that writes over what a send reads waits for the peer. If it belongs to a later round, the peer never waits for it in turn:
    /// it comes to the end of the earlier round by itself. In one round two ranks could wait for each other, as partners do that exchange
    /// a buffer in place; so of such a round nothing stays.
    fn find_stays(&mut self, plan: &Plan) {
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

fn writes_out(item: &Item) -> bool {
    match &item.op {
        StepOp::Send { .. } => false,
        StepOp::Recv { dst, .. } | StepOp::NWayReduce { dst, .. } | StepOp::Copy { dst, .. } => {
            dst.buf == Buf::Out && dst.len > 0
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

/// A direction between this rank and a peer: step ids in order, and the one in progress.
#[derive(Debug)]
struct Queue {
    peer: usize,
    ids: Vec<Id>,
    at: usize,
    /// Elements of the send in progress that have left.
    lent: usize,
    /// Oldest send of which this rank must still keep some elements.
    kept: usize,
}

impl Queue {
    /// Returns true if a step of it has not ended, for a queue of receives.
    fn receives(&self) -> bool {
        self.at < self.ids.len()
    }

    /// Returns true if a step of it has not ended, for a queue of sends.
    fn sends(&self) -> bool {
        self.kept < self.ids.len()
    }

    fn reset(&mut self) {
        self.at = 0;
        self.lent = 0;
        self.kept = 0;
    }
}

fn enqueue(queues: &mut Vec<Queue>, peer: usize, id: Id) {
    match queues.iter_mut().find(|q| q.peer == peer) {
        Some(q) => q.ids.push(id),
        None => queues.push(Queue { peer, ids: vec![id], at: 0, lent: 0, kept: 0 }),
    }
}

/// Steps by the ranges that they have touched so far, to find those that a step must wait for.
struct TouchedRanges {
    in_place: bool,
    /// No slice is longer: what begins this far before a range cannot reach it.
    longest: usize,
    reads: Ranges,
    writes: Ranges,
}

/// Lengths by buffer, start and step.
type Ranges = BTreeMap<(Buf, usize, Id), usize>;

impl TouchedRanges {
    fn new(plan: &Plan, in_place: bool) -> Self {
        let len = |s: &Step| match &s.op {
            StepOp::Send { src: s, .. } | StepOp::Recv { dst: s, .. } | StepOp::NWayReduce { dst: s, .. } => {
                s.len
            }
            StepOp::Copy { dst, .. } => dst.len,
        };
        let longest = plan.steps.iter().map(len).max().unwrap_or(0);
        Self { in_place, longest, reads: Ranges::new(), writes: Ranges::new() }
    }

    fn depend(&mut self, op: &StepOp, id: Id, deps: &mut Vec<Dep>) {
        let (read, write) = match op {
            StepOp::Send { src, .. } => (Some(*src), None),
            StepOp::Recv { dst, mode: ReceiveMode::Copy, .. } => (None, Some(*dst)),
            StepOp::Recv { dst, mode: ReceiveMode::Reduce { with, .. }, .. } => (Some(*with), Some(*dst)),
            StepOp::NWayReduce { own, dst, .. } => (Some(*own), Some(*dst)),
            StepOp::Copy { src, dst } => (Some(*src), Some(*dst)),
        };
        let read = read.map(|r| self.place(r));
        let write = write.map(|w| self.place(w));
        if let Some(r) = read.filter(|_| read != write) {
            self.after(r, &self.writes, deps);
        }
        if let Some(w) = write {
            self.after(w, &self.writes, deps);
            self.after(w, &self.reads, deps);
            // Whoever waits for this step has waited for all that it covers.
            self.forget_covered(w);
            self.writes.insert((w.buf, w.at, id), w.len);
        }
        // Own reads come last: a step reads each element before it writes it.
        if let Some(r) = read {
            self.reads.insert((r.buf, r.at, id), r.len);
        }
    }

    /// `In` and `Out` are one memory when in place.
    fn place(&self, s: Slice) -> Slice {
        match s.buf {
            Buf::In if self.in_place => Slice { buf: Buf::Out, ..s },
            _ => s,
        }
    }

    fn after(&self, s: Slice, earlier: &Ranges, deps: &mut Vec<Dep>) {
        let near = (s.buf, s.at.saturating_sub(self.longest), 0)..(s.buf, s.at + s.len, 0);
        for (&(_, at, on), &len) in earlier.range(near) {
            if at + len > s.at && s.len > 0 && len > 0 {
                let free = at.saturating_sub(s.at);
                deps.push(Dep { on, shift: s.at as isize - at as isize, free });
            }
        }
    }

    fn forget_covered(&mut self, w: Slice) {
        for ranges in [&mut self.reads, &mut self.writes] {
            let within = (w.buf, w.at, 0)..(w.buf, w.at + w.len, 0);
            let covered: Vec<_> =
                ranges.range(within).filter(|&(k, len)| k.1 + len <= w.at + w.len).map(|(k, _)| *k).collect();
            for k in covered {
                ranges.remove(&k);
            }
        }
    }
}

#[cfg(test)]
mod tests;

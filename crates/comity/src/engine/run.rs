//! The engine: one rank's links, and what moves a schedule over them.
//!
//! ```text
//!   step:  every send queue:     schedule says how far -> memory -> link.put            (steps.rs)
//!          every receive queue:  link.peek -> kernel -> memory, or link.take -> memory  (steps.rs)
//!          copies of this rank
//! ```
//! [`complete`] takes steps until the schedule is done, and waits in between.
//!
//! Links that a call lacks are asked for by the first call that names a peer. Where nothing has moved for long, it is looked at what a peer owes: a
//! stalled peer, a cut path, the limit of one that left. A rank sleeps on the descriptors of the links that lack something, and the group's waker.
//!
//! Headers leave before anything else, also those of messages that have nothing to carry yet, and nothing is written to the
//! caller's output before all ranks that this one hears from have announced the same call.

use super::{
    CallProgress, Members, OutstandingMessages, Patience, Progress, ShortHeaders, StepResult, Stop, Waiting,
    complete,
    lanes::Staging,
    progress::ASK,
    stream::{HeaderRefusal, Rx, Tx},
};
use crate::{
    CallInfo, DType, Error, Op, ReduceOp, Result,
    error::PART,
    lanes::LaneCall,
    recorder::NOBODY,
    status::{Differs, Header, Links, NO_COMPARISON, Standing},
    transport::{Interest, LinkError, NAP},
    view::Memory,
};
use comity_membership::RESENT;
use comity_plan::Schedule;
use rustix::event::{PollFd, PollFlags};
use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

/// Bytes of a copy up to which it is made at once: they are still near when they are sent. Of a longer one so many are copied before this rank
/// goes on with its messages (`bench/record/2026-11-28-fewer-ways.md`).
const WHOLE: usize = 1 << 20;
const COPIED: usize = 32 << 10;

/// Interval at which the sender of a message that is missed is asked where it stands.
const ASK_AGAIN: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct Engine {
    pub(super) members: Members,
    pub(super) links: Links,
    pub(super) tx: Vec<Tx>,
    pub(super) rx: Vec<Rx>,
    pub(super) patience: Patience,
    pub(super) silence: Option<Duration>,
    /// To how many members there is no link yet.
    pub(super) unlinked: usize,
    pub(super) staging: Staging,
}

/// Properties of a call besides its data.
pub(crate) struct Task<'a> {
    /// Announced to peers, and named in errors.
    pub(crate) info: &'a CallInfo,
    /// The type of the elements that steps move; that of a part may differ from the call's.
    pub(crate) dtype: DType,
    pub(crate) reduce: ReduceOp,
    /// The header for (or from) each peer.
    pub(crate) header: &'a dyn Fn(Direction, usize) -> Header,
    /// The call as told to ranks that are waited for; `None` for calls between two ranks alone.
    pub(crate) call: Option<&'a Header>,
    /// True if all parts have the same length.
    pub(crate) plain: bool,
    pub(crate) limit: Duration,
    /// True if its messages are quicker when the system copies them out of the sender's memory.
    pub(crate) pulls: bool,
    /// The headers of a call that [`is_short`](super::is_short).
    pub(crate) short: Option<&'a ShortHeaders>,
    /// Bytes that lanes carry when all ranks have announced the call; the schedule brings the headers only.
    pub(crate) lanes: Option<LaneCall>,
}

impl<'a> Task<'a> {
    /// A call of bytes, to which nothing is added.
    #[inline]
    pub(crate) fn of(
        info: &'a CallInfo,
        header: &'a dyn Fn(Direction, usize) -> Header,
        call: Option<&'a Header>,
        limit: Duration,
    ) -> Self {
        let dtype = DType::U8;
        let reduce = ReduceOp::Sum;
        Self { info, dtype, reduce, header, call, plain: true, limit, pulls: false, short: None, lanes: None }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Out,
    In,
}

pub(super) struct Run<'a, 'm> {
    pub(super) engine: &'a mut Engine,
    pub(super) schedule: &'a mut Schedule,
    pub(super) memory: &'a mut Memory<'m>,
    pub(super) task: &'a Task<'a>,
    /// From how many ranks no header has come that is due.
    pub(super) pending_headers: usize,
    /// The links know that this rank is about to sleep.
    armed: bool,
    /// It has slept since, for a moment.
    napped: bool,
    /// It has slept, and nothing has moved since.
    lacking: bool,
    /// Member that had left at the last look that found nothing.
    leaver: Option<usize>,
    /// Some links that the call needs are still being made.
    linking: bool,
    /// When the sender of a message that is missed was last asked where it stands.
    asked: Option<Instant>,
    /// Notes that the call has begun, once.
    begun: Option<&'a mut dyn FnMut()>,
}

/// Fault, and the rank that caused it, if not the peer whose queue was looked at: an n-way reduce takes from several.
pub(super) struct StepFault(pub(super) Option<usize>, pub(super) HeaderRefusal);

impl<E: Into<HeaderRefusal>> From<E> for StepFault {
    fn from(e: E) -> Self {
        Self(None, e.into())
    }
}

impl Engine {
    pub(crate) fn new(members: Members, links: Links) -> Self {
        let size = members.size();
        let tx = (0..size).map(|_| Tx::new()).collect();
        let rx = (0..size).map(|_| Rx::new()).collect();
        let patience = members.patience();
        let silence = members.world.silence();
        let unlinked = links.iter().filter(|l| l.is_none()).count().saturating_sub(1);
        let staging = Staging::default();
        let mut engine = Self { members, links, tx, rx, patience, silence, unlinked, staging };
        (0..size).for_each(|rank| engine.watch(rank));
        engine
    }

    /// Run `schedule` to its end over `memory`. An error means that the group has failed, and has been told so. `begun` notes that the
    /// call has begun: before anything is received, and while the first message is under way if it is short.
    pub(crate) fn run(
        &mut self,
        schedule: &mut Schedule,
        memory: &mut Memory<'_>,
        task: &Task<'_>,
        begun: &mut dyn FnMut(),
    ) -> Result<()> {
        let pending_headers = schedule.expected_headers();
        self.members.status.advance();
        let linking = self.want_links(schedule);
        // Its tag alone: the rest was written in parts just now, and would be waited for.
        let since = task.lanes.is_some().then(Instant::now);
        // In a closure of its own the compiler need not know how long the other lives.
        let mut begun = || begun();
        let mut run = Run {
            engine: self,
            schedule,
            memory,
            task,
            pending_headers,
            armed: false,
            napped: false,
            lacking: false,
            leaver: None,
            linking,
            asked: None,
            begun: Some(&mut begun),
        };
        let mut out = match run.short() {
            Ok(true) => Ok(()),
            Ok(false) => run.complete(),
            Err(e) => Err(Stop::Told(e)),
        };
        if let (Ok(()), Some(call), Some(since)) = (&out, task.lanes, since) {
            out = self.carry(call, memory, task, since);
        }
        self.members.status.advance();
        if let Err(stop) = out {
            let error = self.members.explain(stop, *task.info, task.limit);
            // The caller has its buffers back with the error.
            self.links.iter_mut().flatten().for_each(|l| l.revoke());
            return Err(error);
        }
        Ok(())
    }

    /// This rank makes a call: known from now on to those who ask, and compared with what they have told.
    fn announce(&self, call: &Header) -> Result<()> {
        let members = &self.members;
        members.status.ledger().record(call);
        members.settle();
        match members.status.failure() {
            None => Ok(()),
            Some(f) => Err(members.error(f, Some(call.info))),
        }
    }

    /// A send from `peer` that came before its receive, if `wants` accepts its header.
    pub(crate) fn unstash(
        &mut self,
        peer: usize,
        wants: impl Fn(&Header) -> bool,
    ) -> Option<(Header, Vec<u8>)> {
        self.rx[peer].unstash(wants).map(|p| (p.header, p.bytes))
    }

    /// A send that was kept does not fit the receive that asks for it: the error, told to all.
    pub(crate) fn refuse(&self, peer: usize, ours: CallInfo, theirs: Header, what: &'static str) -> Error {
        self.members.refuse(peer, Differs { ours, theirs: theirs.info, what })
    }

    pub(crate) fn members(&self) -> &Members {
        &self.members
    }

    pub(crate) fn links(&self) -> &Links {
        &self.links
    }

    /// Returns the number of bytes that peers have read, or may read, in place.
    pub(crate) fn lent(&self) -> u64 {
        self.links.iter().flatten().map(|l| l.lent_in_all()).sum()
    }

    /// Returns true if the last header of every other member announced that its messages were read in place.
    pub(crate) fn all_lend(&self) -> bool {
        self.rx.iter().enumerate().all(|(rank, rx)| rank == self.members.rank || rx.lends)
    }

    /// The link to `peer` ended for `cause`.
    pub(super) fn broken(&self, peer: usize, LinkError(cause): LinkError) -> Stop {
        let path = self.links[peer].as_ref().and_then(|l| l.progress().path);
        let Some((here, there)) = path else { return Stop::Link(peer, cause) };
        let me = &self.members.peers[self.members.rank];
        Stop::Link(peer, format!("{cause}, over TCP from {there} to {me} at {here}"))
    }
}

impl Run<'_, '_> {
    /// Note the call, here and for those who ask, if that was not done yet.
    #[inline]
    pub(super) fn note(&mut self) -> Result<()> {
        let Some(note) = self.begun.take() else { return Ok(()) };
        note();
        match self.task.call {
            Some(call) => self.engine.announce(call),
            None => Ok(()),
        }
    }

    fn complete(&mut self) -> StepResult<()> {
        let mut waiting = Waiting::new(self.engine.patience, self.task.limit, self.task.call.copied());
        complete(self, &mut waiting)?;
        self.engine.patience = waiting.patience();
        Ok(())
    }

    /// Error for which nothing more can be taken from `peer`.
    #[cold]
    fn refused(&self, peer: usize, refusal: HeaderRefusal) -> Stop {
        match refusal {
            HeaderRefusal::Link(e) => self.engine.broken(peer, e),
            HeaderRefusal::Flood(h) => Stop::flood(peer, h.info),
            HeaderRefusal::Other(theirs, what) => self.differs(peer, theirs, what),
        }
    }

    fn differs(&self, peer: usize, theirs: Header, what: &'static str) -> Stop {
        let task = self.task;
        let ours = (task.header)(Direction::In, peer);
        let pairwise = ours.info.op == Op::AllToAll && task.call.is_some_and(|c| c.shape != ours.shape);
        if pairwise && what == Header::PLAN {
            // Of parts that differ by pair only the two ranks know.
            let mut parts = Differs { ours: *task.info, theirs: *task.info, what: PART };
            parts.ours.count = ours.shape as usize;
            parts.theirs.count = theirs.shape as usize;
            return Stop::Differs(peer, Box::new(parts));
        }
        Stop::Differs(peer, Box::new(Differs { ours: *task.info, theirs: theirs.info, what }))
    }

    /// Make the copies that this rank has to make, as far as they may be made now; of a long one a piece.
    #[inline]
    fn copy(&mut self) -> bool {
        let mut moved = 0;
        while moved < COPIED
            && !self.schedule.copy_can_wait(self.pending_headers == 0)
            && let Some((src, dst)) = self.schedule.next_copy(WHOLE, COPIED)
        {
            self.memory.copy(src, dst);
            moved += src.len;
        }
        moved > 0
    }

    /// Returns the difference where this rank waits for a message of a member that is in a collective instead. It is one that cannot end before
    /// this rank makes it, and all that the member sent before is here: so the message never comes. Asks the member first, and only
    /// if somebody has told that it waits for this rank in a later call.
    fn passed_over(&mut self, idle: Duration) -> Option<Stop> {
        let Members { status, world, group_id, rank, .. } = &self.engine.members;
        if self.task.call.is_some() || idle < ASK || !status.ledger().is_awaited() {
            return None;
        }
        let mut open = (0..self.schedule.recv_queues()).filter(|&q| self.schedule.next_recv(q).is_some());
        let peer = self.schedule.recv_peer(open.next()?);
        let made = status.ledger().made();
        let stands = status.answer(peer).and_then(|answer| answer.standing);
        let is_behind = |s: &Standing| {
            s.call.info.seq > made && s.call.needs(peer, *rank) && self.engine.rx[peer].pos() >= s.sent
        };
        if let Some(Standing { call, .. }) = stands.filter(is_behind) {
            return Some(self.differs(peer, call, Header::OPERATION));
        }
        if self.asked.is_none_or(|at| at.elapsed() >= ASK_AGAIN) {
            self.asked = Some(Instant::now());
            world.census(*group_id, NO_COMPARISON, &[peer]);
        }
        None
    }

    fn disarm(&mut self) {
        if self.armed {
            self.engine.disarm();
            self.armed = false;
            self.napped = false;
        }
    }

    /// This rank waits for nobody now.
    #[inline]
    fn lacks_nothing(&mut self) {
        if self.lacking {
            self.engine.members.status.moves();
            self.lacking = false;
        }
    }
}

impl Progress for Run<'_, '_> {
    #[inline]
    fn members(&self) -> &Members {
        &self.engine.members
    }

    #[inline]
    fn step(&mut self) -> StepResult<CallProgress> {
        let mut moved = self.linking && self.engine.take_links();
        for q in 0..self.schedule.send_queues() {
            moved |= self.push(q).map_err(|e| self.engine.broken(self.schedule.send_peer(q), e))?;
        }
        for q in 0..self.schedule.recv_queues() {
            moved |= self.pull(q).map_err(|StepFault(who, why)| {
                self.refused(who.unwrap_or_else(|| self.schedule.recv_peer(q)), why)
            })?;
        }
        moved |= self.copy();
        let is_done = self.schedule.is_done();
        if is_done || moved {
            self.leaver = None;
            self.disarm();
            self.lacks_nothing();
        }
        Ok(match (is_done, moved) {
            (true, _) => CallProgress::Done,
            (false, true) => CallProgress::Moved,
            (false, false) => CallProgress::Stuck,
        })
    }

    fn idle(&mut self, idle: Duration) -> StepResult<bool> {
        let engine = &mut *self.engine;
        if engine.members.status.anyone_left()
            && let Some(peer) = self.schedule.waiting_for().into_iter().find(|&p| engine.has_left(p))
        {
            // What it sent before it left may have come since the last look.
            if self.leaver == Some(peer) {
                return Err(Stop::Left(peer));
            }
            self.leaver = Some(peer);
            return Ok(true);
        }
        let stalled = engine.stalled(self.schedule, idle).or_else(|| engine.cut_off(idle));
        let stop = stalled.or_else(|| engine.left_long_ago(self.schedule, idle));
        match stop.or_else(|| self.passed_over(idle)) {
            Some(stop) => Err(stop),
            None => Ok(false),
        }
    }

    fn lacking(&self, idle: Duration) -> OutstandingMessages {
        let waits = self.schedule.waiting_for();
        let first = self.engine.lacks().map(|(p, _)| p).chain(waits.iter().copied()).next();
        let tell = self.task.call.copied();
        OutstandingMessages { tell, first: first.map(|p| (p, idle)), pair: tell.is_none().then_some(waits) }
    }

    fn waits_for(&self) -> Vec<usize> {
        self.engine.lacks().map(|(p, _)| p).collect()
    }

    fn arm(&mut self) -> bool {
        if !self.armed {
            self.engine.arm(self.schedule);
            self.armed = true;
            return true;
        }
        false
    }

    fn sleep(&mut self, limit: Duration, idle: Duration) {
        // What a peer put at the same moment is there after a nap. A wake-up that came meanwhile is unread, and ends the long sleep.
        let naps = !self.napped && self.engine.lacks_memory();
        if let Some(call) = self.task.call.filter(|_| self.task.plain && idle >= ASK) {
            let sent = self.engine.tx.iter().map(Tx::pos);
            self.engine.members.status.stands(call.info.seq, sent);
        }
        // WAIT(limit): to the limit of who calls
        self.engine.sleep(if naps { limit.min(NAP) } else { limit }, idle);
        self.napped = naps;
        self.lacking = true;
        if !naps {
            self.disarm();
        }
    }
}

impl Engine {
    /// Ask for links that `schedule` needs and that are not there; whether some are not.
    #[inline]
    pub(super) fn want_links(&mut self, schedule: &Schedule) -> bool {
        if self.unlinked == 0 {
            return false;
        }
        self.take_links();
        let senders = (0..schedule.send_queues()).map(|q| schedule.send_peer(q));
        let peers = senders.chain((0..schedule.recv_queues()).map(|q| schedule.recv_peer(q)));
        let mut lacking = peers.filter(|&p| self.links[p].is_none());
        let Some(first) = lacking.next() else { return false };
        let mut wanted: Vec<usize> = std::iter::once(first).chain(lacking).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let members = &self.members;
        members.world.want(members.group_id, &wanted);
        true
    }

    /// Let the bytes over the link to `rank` be seen from outside, where somebody can look.
    pub(super) fn watch(&mut self, rank: usize) {
        let Some(kind) = self.links[rank].as_ref().and_then(|l| l.properties().kind.wire()) else { return };
        let live = self.members.counters.link(self.members.ranks[rank], kind);
        self.tx[rank].live.clone_from(&live);
        self.rx[rank].live = live;
    }

    /// Take over what was made; whether there was something.
    #[inline]
    pub(super) fn take_links(&mut self) -> bool {
        let made = self.members.status.links().take();
        let any = !made.is_empty();
        for (rank, link) in made {
            if let Some(place @ None) = self.links.get_mut(rank) {
                *place = Some(link);
                self.unlinked -= 1;
                self.watch(rank);
            }
        }
        any
    }
}

impl Engine {
    /// A peer that owes this rank the rest of a frame, after nothing has moved for `idle` and no byte of it has come: it had all of
    /// it at hand, and beats come from it, so bytes were lost on the way. A link that was down for less than the limit on silence may take
    /// [`RESENT`] times as long to send again.
    pub(super) fn stalled(&mut self, schedule: &Schedule, idle: Duration) -> Option<Stop> {
        let limit = self.silence?.saturating_mul(RESENT);
        let now = Instant::now();
        for (rx, link) in self.rx.iter_mut().zip(&self.links) {
            let arrived = link.as_ref().map_or(0, |l| l.progress().arrived);
            if rx.arrived.0 != arrived {
                rx.arrived = (arrived, Some(now));
            }
        }
        // Not one whose bytes lie here and are only not wanted yet.
        let owes = |p: &usize| {
            let rx = &self.rx[*p];
            rx.starved
                && rx.is_quiet(now, limit)
                && self.links[*p].as_ref().is_some_and(|l| l.progress().is_inside)
        };
        let peer = (idle > limit).then(|| schedule.waiting_for().into_iter().find(owes))??;
        let cause = format!("stopped in the middle of a frame: its rest did not come within {limit:?}");
        Some(self.broken(peer, LinkError(cause)))
    }

    /// A peer whose system has not acknowledged for long what this rank's system sends again, while beats come from it: its control
    /// connection takes another path, and that of the link is cut. As late as in [`stalled`](Self::stalled).
    pub(super) fn cut_off(&self, idle: Duration) -> Option<Stop> {
        let limit = self.silence?;
        if idle <= limit.saturating_mul(RESENT) {
            return None;
        }
        let silence =
            |peer: usize| self.links[peer].as_ref()?.progress().unanswered.filter(|silence| *silence > limit);
        let (peer, silence) = (0..self.links.len()).find_map(|peer| Some((peer, silence(peer)?)))?;
        let cause = format!(
            "is cut off: its system has acknowledged nothing for {silence:.1?}, though it beats over its control connection"
        );
        Some(self.broken(peer, LinkError(cause)))
    }

    /// A peer that this rank lacks something of and that left the group, so long ago that what it sent would have come. The end of
    /// its connection says so sooner, unless that is lost too, with its host or on the way. As late as in
    /// [`stalled`](Self::stalled), from when this rank saw that it had left.
    pub(super) fn left_long_ago(&mut self, schedule: &Schedule, idle: Duration) -> Option<Stop> {
        let limit = self.silence?.saturating_mul(RESENT);
        if !self.members.status.anyone_left() {
            return None;
        }
        let now = Instant::now();
        for (p, rx) in self.rx.iter_mut().enumerate() {
            if self.members.status.has_left(p) {
                rx.left.get_or_insert(now);
            }
        }
        // Not one whose bytes lie here and are only not wanted yet. A long frame over a slow link still comes.
        let owes = |p: &usize| {
            let tx = &self.tx[*p];
            let rx = &self.rx[*p];
            let long_ago = rx.left.is_some_and(|since| now - since > limit);
            long_ago && (rx.starved || tx.blocked) && rx.is_quiet(now, limit)
        };
        (idle > limit).then(|| schedule.waiting_for().into_iter().find(owes))?.map(Stop::Left)
    }
}

impl Engine {
    /// Returns true if `peer` left and this rank lacks something of it that cannot be under way. Bytes that it sent over a network may arrive
    /// after its goodbye; there the end of the connection tells.
    pub(super) fn has_left(&self, peer: usize) -> bool {
        let lacks = self.rx[peer].starved || self.tx[peer].blocked;
        let status = &self.members.status;
        let is_all_here = match &self.links[peer] {
            Some(link) => !link.properties().may_lag,
            // What it made may still come.
            None => status.links().is_ruled_out(peer),
        };
        lacks && is_all_here && status.has_left(peer)
    }

    /// Lists each peer's missing bytes or room.
    pub(super) fn lacks(&self) -> impl Iterator<Item = (usize, Interest)> {
        self.tx.iter().zip(&self.rx).enumerate().filter_map(|(p, (tx, rx))| {
            let i = Interest { recv: rx.starved, send: tx.blocked };
            (i.recv || i.send).then_some((p, i))
        })
    }

    /// Returns true if a link through memory lacks something.
    pub(super) fn lacks_memory(&self) -> bool {
        self.lacks().any(|(p, _)| self.links[p].as_ref().is_some_and(|l| l.properties().is_memory))
    }

    pub(super) fn arm(&mut self, schedule: &Schedule) {
        // Flags of peers whose queues ended in an earlier look are stale.
        let open_send: Vec<_> = (0..schedule.send_queues())
            .filter(|&q| schedule.send_is_open(q))
            .map(|q| schedule.send_peer(q))
            .collect();
        let open_recv: Vec<_> = (0..schedule.recv_queues())
            .filter(|&q| schedule.next_recv(q).is_some())
            .map(|q| schedule.recv_peer(q))
            .collect();
        for p in 0..self.tx.len() {
            self.tx[p].blocked &= open_send.contains(&p);
            self.rx[p].starved &= open_recv.contains(&p);
        }
        let lacks: Vec<_> = self.lacks().collect();
        for (p, i) in lacks {
            if let Some(link) = &mut self.links[p] {
                link.arm(i);
            }
        }
    }

    pub(super) fn disarm(&mut self) {
        for link in self.links.iter_mut().flatten() {
            // A link that ended says so again when it is used.
            let _ = link.disarm();
        }
        self.members.status.drain();
    }

    pub(super) fn sleep(&self, limit: Duration, idle: Duration) {
        let mut fds = Vec::with_capacity(self.links.len() + 1);
        for (p, i) in self.lacks() {
            if let Some(link) = &self.links[p] {
                link.fds(i, &mut fds);
            }
        }
        let polls = fds.iter().map(|(fd, i)| {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, i.recv);
            flags.set(PollFlags::OUT, i.send);
            PollFd::from_borrowed_fd(*fd, flags)
        });
        let Members { status, counters, .. } = &self.members;
        if let Some((p, _)) = self.lacks().min_by_key(|(_, i)| !i.recv) {
            if counters.parked_on.load(Ordering::Relaxed) == NOBODY {
                counters.parked_on.store(p as u32, Ordering::Relaxed);
            }
            counters.sleeps_for(self.members.ranks[p]);
            status.sleeps_for(p, idle);
        }
        // WAIT(limit): what a link lacks, to the limit of who calls; the waker wakes for a failure
        self.members.sleep(polls.collect(), limit);
    }
}

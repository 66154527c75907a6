//! From what stopped a call to this rank's error, and to the words that the other ranks get.

use super::{Census, Engine, Task, Way, run::Stop, stream::Refusal};
use crate::{
    CallInfo, Error, Op, Result,
    error::PART,
    status::{Ask, Differs, Failure, Header, conclude},
    transport::LinkError,
};
use comity_plan::Schedule;
use std::{
    thread,
    time::{Duration, Instant},
};

/// How long after a link broke to wait for word of whose fault it was. It comes within milliseconds; a control thread that gets no
/// processor for some tenths of a second must not make this rank blame one that only closed.
const GRACE: Duration = Duration::from_millis(500);

impl Engine {
    /// A send that was kept does not fit the receive that asks for it: the error, told to all.
    pub(crate) fn refuse(&self, peer: usize, ours: CallInfo, theirs: Header, what: &'static str) -> Error {
        let failure = Failure::differs(peer, self.rank, Differs { ours, theirs: theirs.info, what });
        self.abort(failure.clone());
        self.blame(&failure, Some(ours))
    }

    /// This rank makes a call: known from now on to those who ask, and compared with what they have told.
    pub(crate) fn announce(&self, call: &Header) -> Result<()> {
        self.watch.ledger().record(call);
        self.settle();
        match self.watch.failure() {
            None => Ok(()),
            Some(f) => Err(self.blame(f, Some(call.info))),
        }
    }

    /// Compare this rank's calls with those that others have told, as far as it has come.
    #[inline]
    pub(super) fn settle(&self) {
        if self.watch.ledger().is_due()
            && let Some((peer, calls)) = self.watch.ledger().settle()
        {
            self.abort(Failure::differs(peer, self.rank, calls));
        }
    }

    /// Tell those whom this rank has waited for which call it is in, once each.
    pub(super) fn ask(&self, call: &Header, asked: &mut Vec<usize>) {
        let new: Vec<usize> = self.lacks().map(|(p, _)| p).filter(|p| !asked.contains(p)).collect();
        if !new.is_empty() {
            self.world.ask(self.context, &new, call);
            asked.extend(new);
        }
    }

    /// Before this rank leaves: whether all ranks have made the same calls.
    pub(crate) fn conclude(&self) -> Result<()> {
        match conclude(&self.watch, self.rank, self.members.len(), self) {
            Err(f) if f.is_disagreement() => Err(self.blame(&f, None)),
            // A rank that only meets the end of another meanwhile leaves as it would have.
            _ => Ok(()),
        }
    }

    /// The failure that this group has, if any, as this rank's error.
    pub(crate) fn failure(&self, call: Option<CallInfo>) -> Option<Error> {
        self.watch.failure().map(|f| self.blame(f, call))
    }

    /// Tell the members that this rank gives up, and why.
    pub(crate) fn abort(&self, failure: Failure) {
        if self.watch.fail(failure.clone()) {
            self.world.abort(self.context, &failure);
        }
    }

    /// A peer that owes this rank the rest of a frame, after nothing has moved for `idle` and no byte of it has come: it had all of
    /// it at hand, and beats come from it, so bytes were lost on the way. Twice the limit on silence, because a link that was down
    /// for less than that limit may take so long to send again.
    pub(super) fn stalled(&mut self, schedule: &Schedule, idle: Duration) -> Option<Stop> {
        let limit = self.silence?.saturating_mul(2);
        let now = Instant::now();
        for (rx, link) in self.rx.iter_mut().zip(&self.links) {
            let arrived = link.as_ref().map_or(0, |l| l.arrived());
            if rx.arrived.0 != arrived {
                rx.arrived = (arrived, Some(now));
            }
        }
        // Not one whose bytes lie here and are only not wanted yet.
        let owes = |p: &usize| {
            let rx = &self.rx[*p];
            rx.starved && rx.is_quiet(now, limit) && self.links[*p].as_ref().is_some_and(|l| l.is_inside())
        };
        let peer = (idle > limit).then(|| schedule.waiting_for().into_iter().find(owes))??;
        let cause = format!("stopped in the middle of a frame: its rest did not come within {limit:?}");
        Some(Stop::Refused(peer, Refusal::Link(LinkError(cause))))
    }

    /// A peer that this rank lacks something of and that left the group, so long ago that what it sent would have come. The end of
    /// its connection says so sooner, unless that is lost too, with its host or on the way. Twice the limit, as in
    /// [`stalled`](Self::stalled), from when this rank saw that it had left.
    pub(super) fn forsaken(&mut self, schedule: &Schedule, idle: Duration) -> Option<Stop> {
        let limit = self.silence?.saturating_mul(2);
        if !self.watch.anyone_left() {
            return None;
        }
        let now = Instant::now();
        for (p, rx) in self.rx.iter_mut().enumerate() {
            if self.watch.has_left(p) {
                rx.left.get_or_insert(now);
            }
        }
        // Not one whose bytes lie here and are only not wanted yet. A long frame over a slow link still comes.
        let owes = |p: &usize| {
            let (tx, rx) = (&self.tx[*p], &self.rx[*p]);
            let long_ago = rx.left.is_some_and(|since| now - since > limit);
            long_ago && (rx.starved || tx.blocked) && rx.is_quiet(now, limit)
        };
        (idle > limit).then(|| schedule.waiting_for().into_iter().find(owes))?.map(Stop::Left)
    }

    /// Turn what stopped the loop into this rank's error, and tell the others.
    pub(super) fn explain(&mut self, stop: Stop, schedule: &Schedule, task: &Task<'_>) -> Error {
        let call = Some(task.info);
        match stop {
            Stop::Failed(f) => self.blame(&f, call),
            Stop::Closed => Error::Closed,
            Stop::Interrupted(why) => {
                let me = self.rank;
                self.abort(Failure::reported(me, why.clone()));
                Error::Aborted { by: self.members[me].clone(), reason: why, call }
            }
            Stop::Left(peer) => {
                let cause = "left the group".to_owned();
                self.abort(Failure::lost(peer, self.rank, cause.clone()));
                Error::PeerLost { peer: self.members[peer].clone(), cause, call }
            }
            Stop::Late => self.late(schedule, task),
            Stop::Refused(peer, Refusal::Other(theirs, differs)) => {
                let ours = (task.header)(Way::In, peer);
                let pairwise =
                    ours.info.op == Op::AllToAll && task.call.is_some_and(|c| c.shape != ours.shape);
                if pairwise && differs == Header::PLAN {
                    // Of parts that differ by pair only the two ranks know.
                    let part =
                        |h: Header| Header { info: CallInfo { count: h.shape as usize, ..task.info }, ..h };
                    self.refuse(peer, part(ours).info, part(theirs), PART)
                } else {
                    self.refuse(peer, task.info, theirs, differs)
                }
            }
            Stop::Refused(peer, Refusal::Flood(h)) => {
                let cause = format!(
                    "sent {} that this rank has not asked for; no more than 256 MiB are kept",
                    h.info
                );
                self.abort(Failure::lost(peer, self.rank, cause.clone()));
                Error::PeerLost { peer: self.members[peer].clone(), cause, call }
            }
            Stop::Refused(peer, Refusal::Link(LinkError(cause))) => {
                // The peer may have closed because of somebody else: word of that travels on another connection.
                let until = Instant::now() + GRACE;
                while self.watch.failure().is_none() && !self.watch.has_left(peer) && Instant::now() < until {
                    thread::sleep(Duration::from_millis(1));
                }
                if let Some(f) = self.watch.failure() {
                    return self.blame(f, call);
                }
                let path = self.links[peer].as_ref().and_then(|l| l.path());
                let cause = match path {
                    _ if self.watch.has_left(peer) => "left the group".into(),
                    Some((here, there)) => {
                        format!("{cause}, over TCP from {there} to {} at {here}", self.members[self.rank])
                    }
                    None => cause,
                };
                self.abort(Failure::lost(peer, self.rank, cause.clone()));
                Error::PeerLost { peer: self.members[peer].clone(), cause, call }
            }
        }
    }

    /// The limit of a call has passed: find out who has not made it, and tell all.
    fn late(&self, schedule: &Schedule, task: &Task<'_>) -> Error {
        let (call, after) = (task.info, task.limit);
        let waits: Vec<usize> = schedule.waiting_for();
        let (rank, size) = (self.rank, self.members.len());
        let census = Census { world: &*self.world, watch: &self.watch, context: self.context, rank, size };
        // Compared by whoever hears it, so that a wrong call is told as one.
        if let Some(told) = &task.call {
            let others: Vec<usize> = (0..size).filter(|r| *r != rank).collect();
            self.world.ask(self.context, &others, told);
        }
        let lacks = self.lacks().map(|(p, _)| p).chain(waits.iter().copied()).next();
        let mut late = match census.hold(call, after, lacks.map(|p| (p, self.still))) {
            Ok(late) => late,
            Err(failure) => return self.blame(&failure, Some(call)),
        };
        if task.call.is_none() {
            // A send and a receive at once may have two others.
            late.missing = waits;
        }
        let crossed = census.crossed(&late, &self.members);
        self.abort(Failure::late(rank, late.clone()));
        late.error(rank, rank, &|r| self.members[r].clone(), crossed)
    }

    pub(super) fn blame(&self, f: &Failure, call: Option<CallInfo>) -> Error {
        f.error(self.rank, &self.members, call)
    }
}

impl Ask for Engine {
    fn census(&self, at: u64) {
        self.world.census(self.context, at);
    }

    fn tell(&self, rank: usize, call: &Header) {
        self.world.ask(self.context, &[rank], call);
    }

    fn abort(&self, failure: &Failure) {
        self.world.abort(self.context, failure);
    }
}

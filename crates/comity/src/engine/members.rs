//! A group as one of its members knows it: who they are, what this one tells them, and how it sleeps until there is word.
//!
//! The engine and the backends that call a library share it, so both find the root cause of a failure alike.
//!
//! From what ended a call to its root cause: this rank's error, and the words that the other ranks get.
//!
//! ```text
//!   another rank said why      that, as this rank's error
//!   a link or library broke    wait for word of whose fault it was; else whoever it was seen on
//!   the limit passed           census: who has not made the call?
//!   anything seen here         tell all, then the same as an error
//! ```
//! There is one way for links and for libraries.

use super::{Census, Patience, STASH};
use crate::{
    CallInfo, Error, ErrorKind, Peer, Result,
    stats::Counters,
    status::{Ask, Differs, Failure, GroupStatus, Header, World, conclude, find_difference},
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    fmt,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// Looks, after a link broke, for the report of the rank at fault: half a second where this process has a core. It comes within milliseconds; a
/// control thread that gets no processor for long must not make this rank blame a peer that only closed. Looks come late then, too.
const LINK_WORD: u32 = 500;
/// The same after a library failed, which can see that a peer is gone before the control connections say which.
const LIBRARY_WORD: u32 = 1000;
/// Between two looks whether word has come.
const CAUSE_POLL: Duration = Duration::from_millis(1);
/// Time limit for all looks, however crowded the host.
const LONGEST_WORD: Duration = Duration::from_secs(5);

pub(crate) enum Stop {
    /// The group has failed, and all are told already.
    Failed(Failure),
    /// The limit of the call passed.
    Late(OutstandingMessages),
    /// This rank closes the group.
    Closed,
    /// This rank's program was interrupted, and why.
    Interrupted(String),
    /// A peer left in good order, and something of it is due.
    Left(usize),
    /// A peer made another call.
    Differs(usize, Box<Differs>),
    /// A peer broke a rule: its rank, and the fault.
    Peer(usize, String),
    /// The link to a peer ended: its rank, and the cause.
    Link(usize, String),
    /// An error of this rank, which the others are told of.
    Own(Error),
    /// An error that all are told of already.
    Told(Error),
}

pub(crate) type StepResult<T> = Result<T, Stop>;

/// Outstanding messages of a call when its limit passed.
#[derive(Default)]
pub(crate) struct OutstandingMessages {
    /// The call, if the others are to compare it with theirs now.
    pub(crate) tell: Option<Header>,
    /// Member that this rank waited for first, and the time in which nothing had moved.
    pub(crate) first: Option<(usize, Duration)>,
    /// Members that it waited for, if two ranks alone make the call and a census cannot tell.
    pub(crate) pair: Option<Vec<usize>>,
}

impl From<Error> for Stop {
    fn from(e: Error) -> Self {
        Self::Own(e)
    }
}

impl Stop {
    /// `peer` sent so much unasked, last `theirs`, that this rank will not keep it.
    pub(crate) fn flood(peer: usize, theirs: CallInfo) -> Self {
        let most = STASH >> 20;
        let words =
            format!("sent {theirs} that this rank has not asked for; no more than {most} MiB are kept");
        Self::Peer(peer, words)
    }
}

/// The members of a group, as one of them knows them.
#[derive(Clone)]
pub(crate) struct Members {
    pub(crate) rank: usize,
    pub(crate) world: Arc<dyn World>,
    pub(crate) status: Arc<GroupStatus>,
    /// World ranks by rank.
    pub(crate) ranks: Arc<[usize]>,
    pub(crate) peers: Arc<[Peer]>,
    pub(crate) group_id: u64,
    pub(crate) counters: Arc<Counters>,
}

impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Members")
            .field("rank", &self.rank)
            .field("ranks", &self.ranks)
            .finish_non_exhaustive()
    }
}

impl Members {
    /// The members (world ranks) of a group whose status is kept already.
    pub(crate) fn new(
        world: Arc<dyn World>,
        ranks: Vec<usize>,
        group_id: u64,
        status: Arc<GroupStatus>,
        counters: Arc<Counters>,
    ) -> Self {
        let rank = ranks.iter().position(|&m| m == world.rank()).unwrap_or_default();
        let known =
            |m: usize| world.peers().get(m).cloned().unwrap_or(Peer { rank: m, host: None, pid: None });
        let peers = ranks.iter().enumerate().map(|(rank, &m)| Peer { rank, ..known(m) }).collect();
        Self { rank, world, status, ranks: ranks.into(), peers, group_id, counters }
    }

    pub(crate) fn size(&self) -> usize {
        self.ranks.len()
    }

    pub(crate) fn others(&self) -> Vec<usize> {
        (0..self.size()).filter(|&r| r != self.rank).collect()
    }

    pub(crate) fn world_ranks(&self, members: &[usize]) -> Vec<usize> {
        members.iter().map(|&m| self.ranks[m]).collect()
    }

    /// Returns the patience of waits on this host: ranks outside this group run on the same cores.
    pub(crate) fn patience(&self) -> Patience {
        let host = self.world.hosts().get(self.world.rank()).copied();
        let here = self.world.hosts().iter().filter(|&&h| Some(h) == host).count();
        Patience::new(here, self.world.own_cores())
    }

    /// Compare this rank's calls with those that others have told, as far as it has come.
    #[inline]
    pub(crate) fn settle(&self) {
        if self.status.ledger().is_due()
            && let Some((peer, calls)) = self.status.ledger().settle()
        {
            self.abort(Failure::differs(peer, self.rank, calls));
        }
    }

    /// Tell the members that this rank gives up, and why, unless the group has failed already.
    pub(crate) fn abort(&self, failure: Failure) {
        if self.status.fail(failure.clone()) {
            self.world.abort(self.group_id, &failure);
        }
    }

    /// Before this rank leaves: whether all ranks have made the same calls.
    pub(crate) fn conclude(&self) -> Result<()> {
        match conclude(&self.status, self.rank, self.size(), self) {
            Err(f) if f.is_disagreement() => Err(self.error(&f, None)),
            // A rank that only meets the end of another meanwhile leaves as it would have.
            _ => Ok(()),
        }
    }

    /// Returns the error of a rank whose calls so far are not those of `peer`. All are told of it.
    pub(crate) fn differs(&self, peer: usize) -> Error {
        self.error(&find_difference(&self.status, self.rank, peer, self), None)
    }

    /// `failure` as the error of this rank, which was making `call`.
    pub(crate) fn error(&self, failure: &Failure, call: Option<CallInfo>) -> Error {
        failure.error(self.rank, &self.peers, call)
    }

    /// The failure that another rank or the control thread has seen, if any.
    pub(crate) fn failure(&self, call: Option<&CallInfo>) -> Option<Error> {
        self.status.failure().map(|f| self.error(f, call.copied()))
    }

    /// Until the group's waker is woken or one of `polls` is ready, at most `limit`.
    pub(crate) fn sleep<'a>(&'a self, mut polls: Vec<PollFd<'a>>, limit: Duration) {
        polls.push(PollFd::from_borrowed_fd(self.status.waker_fd(), PollFlags::IN));
        let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
        let slept = Instant::now();
        self.counters.sleeps();
        // A signal ends the sleep early, which is no harm.
        // WAIT(waker_fd): to the limit of who calls; the waker wakes for a failure
        let _ = poll(&mut polls, Some(&limit));
        self.counters.slept(slept.elapsed());
    }

    /// Turn what stopped a call into this rank's error, and tell the others.
    pub(crate) fn explain(&self, stop: Stop, info: CallInfo, limit: Duration) -> Error {
        let call = Some(info);
        match stop {
            Stop::Failed(f) => self.error(&f, call),
            Stop::Late(lacking) => self.late(info, limit, lacking),
            Stop::Closed => ErrorKind::Closed.into(),
            Stop::Interrupted(why) => {
                self.abort(Failure::reported(self.rank, why.clone()));
                ErrorKind::Aborted { by: self.peers[self.rank].clone(), reason: why, call }.into()
            }
            Stop::Left(peer) => self.left(peer, call),
            Stop::Differs(peer, calls) => self.refuse(peer, *calls),
            Stop::Peer(peer, cause) => self.lost(peer, cause, call),
            Stop::Link(peer, cause) => self.broken(peer, cause, call),
            Stop::Own(e) => self.own(e, call),
            Stop::Told(e) => e,
        }
    }

    /// `peer` has made another call than this rank: the error, told to all.
    pub(crate) fn refuse(&self, peer: usize, calls: Differs) -> Error {
        let failure = Failure::differs(peer, self.rank, calls);
        self.tell(failure, Some(calls.ours))
    }

    /// `peer` is gone, or of no use any more: the error, told to all.
    fn lost(&self, peer: usize, cause: String, call: Option<CallInfo>) -> Error {
        self.tell(Failure::lost(peer, self.rank, cause), call)
    }

    /// `peer` left the group: the error, with its last call where it made fewer than this rank, told to all.
    fn left(&self, peer: usize, call: Option<CallInfo>) -> Error {
        let made = self.status.concluded(peer).map(|(made, _)| made);
        let fewer = made.filter(|made| call.is_some_and(|call| *made < call.seq));
        self.tell(Failure::left(peer, self.rank, fewer), call)
    }

    fn tell(&self, failure: Failure, call: Option<CallInfo>) -> Error {
        self.abort(failure.clone());
        self.error(&failure, call)
    }

    /// The link to `peer` broke. It may have closed because of somebody else: word of that travels on another connection.
    fn broken(&self, peer: usize, cause: String, call: Option<CallInfo>) -> Error {
        if let Some(f) = word(&self.status, LINK_WORD, || self.status.has_left(peer)) {
            return self.error(f, call);
        }
        if self.status.has_left(peer) { self.left(peer, call) } else { self.lost(peer, cause, call) }
    }

    /// This rank cannot go on. A library that fails because a member is gone does not say so.
    fn own(&self, e: Error, call: Option<CallInfo>) -> Error {
        if matches!(e.kind(), ErrorKind::Library { .. }) {
            if let Some(f) = library_word(&self.status) {
                return self.error(f, call);
            }
            if self.status.is_closing() {
                return ErrorKind::Closed.into();
            }
        }
        self.abort(Failure::lost(self.rank, self.rank, format!("could not go on: {e}")));
        e
    }

    /// The limit of a call has passed: find out who has not made it, and tell all.
    fn late(&self, call: CallInfo, after: Duration, lacking: OutstandingMessages) -> Error {
        // Compared by whoever hears it, so that a wrong call is told as one.
        if let Some(told) = &lacking.tell {
            self.world.ask(self.group_id, &self.others(), told);
        }
        let rank = self.rank;
        let size = self.size();
        let census =
            Census { world: &*self.world, status: &self.status, group_id: self.group_id, rank, size };
        let held = match lacking.pair {
            // A send and a receive at once may have two others.
            Some(pair) => census.hold_pair(call, after, pair),
            None => census.hold(call, after, lacking.first),
        };
        let late = match held {
            Ok(late) => late,
            Err(failure) => return self.error(&failure, Some(call)),
        };
        let crossed = census.crossed_waits(&late, &self.peers);
        self.abort(Failure::late(rank, late.clone()));
        late.error(rank, rank, &|r| self.peers[r].clone(), crossed)
    }
}

impl Ask for Members {
    fn census(&self, at: u64, ranks: &[usize]) {
        self.world.census(self.group_id, at, ranks);
    }

    fn tell(&self, rank: usize, call: &Header) {
        self.world.ask(self.group_id, &[rank], call);
    }

    fn abort(&self, failure: &Failure) {
        self.world.abort(self.group_id, failure);
    }
}

/// Reason of the group's failure, once it is known, after a library failed.
pub(crate) fn library_word(status: &GroupStatus) -> Option<&Failure> {
    word(status, LIBRARY_WORD, || status.is_closing())
}

/// Reason of the group's failure, once it is known. So many looks are taken, or fewer if it is `needless`.
fn word(status: &GroupStatus, looks: u32, needless: impl Fn() -> bool) -> Option<&Failure> {
    // WAIT(looks): word of whose fault it was: half a second for a link, a second for a library, 5 s where this process has no turn
    word_by(status, looks, needless, || thread::sleep(CAUSE_POLL))
}

/// Waits as [`word`], with such a pause between two looks.
fn word_by(
    status: &GroupStatus,
    looks: u32,
    needless: impl Fn() -> bool,
    pause: impl Fn(),
) -> Option<&Failure> {
    let until = Instant::now() + LONGEST_WORD;
    for _ in 0..looks {
        if status.failure().is_some() || needless() || Instant::now() >= until {
            break;
        }
        pause();
    }
    status.failure()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn word_of_a_fault_is_waited_for_by_looks_and_not_by_the_clock() {
        // Each look comes so late that half a second is over at the third.
        let status = GroupStatus::new(3, Arc::default()).unwrap();
        let looks = Cell::new(0);
        let pause = || {
            looks.set(looks.get() + 1);
            thread::sleep(Duration::from_millis(200));
            if looks.get() == 4 {
                status.fail(Failure::lost(2, 0, "died"));
            }
        };
        let found = word_by(&status, LINK_WORD, || false, pause).map(|f| f.culprit);
        assert_eq!((found, looks.get()), (Some(2), 4));
        let status = GroupStatus::new(3, Arc::default()).unwrap();
        let looks = Cell::new(0);
        assert!(word_by(&status, LINK_WORD, || false, || looks.set(looks.get() + 1)).is_none());
        assert_eq!(looks.get(), LINK_WORD);
    }
}

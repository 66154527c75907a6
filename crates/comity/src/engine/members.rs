//! A group as one of its members knows it: who they are, what this one tells them, and how it sleeps until there is word.
//!
//! The engine and the backends that call a library share it, so both find the root cause of a failure alike.

use super::Patience;
use crate::{
    CallInfo, Error, Peer, Result,
    stats::Counters,
    status::{Ask, Failure, GroupStatus, Header, World, conclude, find_difference},
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

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

    /// All ranks but this one.
    pub(crate) fn others(&self) -> Vec<usize> {
        (0..self.size()).filter(|&r| r != self.rank).collect()
    }

    /// These ranks of the group, as world ranks.
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

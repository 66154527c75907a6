//! Errors of a link that could not be made, for the caller and for the other members.

use super::Opening;
use crate::{Error, JoinCause, JoinError, channel::Miss, error::seconds, status::Failure, sys::poll_until};
use rustix::event::{PollFd, PollFlags};
use std::time::{Duration, Instant};

/// When a link breaks while it is made, a death that explains it may be known this much later.
const EXPLANATION: Duration = Duration::from_millis(250);

/// An error, and what the other members must hear if they do not know it yet.
pub(in crate::links) struct MeshError {
    pub(super) error: Error,
    pub(in crate::links) news: Option<Failure>,
}

impl Opening<'_> {
    /// Returns the error of `rank`'s link; but if `rank` has died or the group has failed, that is the reason.
    pub(super) fn explained(&self, rank: usize, cause: String) -> MeshError {
        let until = (Instant::now() + EXPLANATION).min(self.until);
        while self.group.status.failure().is_none() && Instant::now() < until {
            self.drain();
            if self.group.status.failure().is_some() {
                break;
            }
            let mut fds = [PollFd::from_borrowed_fd(self.waker_fd(), PollFlags::IN)];
            // WAIT(until): word of whose fault it was, to the join deadline at most
            if poll_until(&mut fds, Some(until)).is_err() {
                break;
            }
        }
        match self.group.status.failure() {
            Some(f) => MeshError { error: self.failed(f), news: None },
            None => self.own(rank, cause),
        }
    }

    pub(super) fn missed(&self, rank: usize, at: &str, miss: Miss) -> MeshError {
        match miss {
            Miss::Stop(error) if self.group.status.failure().is_some() => MeshError { error, news: None },
            Miss::Stop(error) => self.unable(error),
            miss => {
                let me = self.group.peer(self.group.mine);
                self.explained(rank, format!("could not be reached from {me} at {at}: {miss}"))
            }
        }
    }

    pub(super) fn late(&self, missing: &[usize]) -> MeshError {
        if let Some(error) = self.group.control.lacked() {
            return self.unable(error);
        }
        let waited = seconds(self.begun.elapsed());
        let names: Vec<String> = missing.iter().map(|r| self.group.peer(*r).to_string()).collect();
        let first = missing.first().copied().unwrap_or(self.group.mine);
        let mut failed = self.own(first, format!("did not come to the group within {waited}"));
        let why = JoinError::new(format!(
            "rank {} waited {waited} for {} to come to the group; do all of its ranks make this call?",
            self.group.mine,
            names.join(", ")
        ));
        failed.error = why.of(missing.iter().copied()).because(JoinCause::Absent).into();
        failed
    }

    /// This rank lacks something itself.
    pub(super) fn unable(&self, error: Error) -> MeshError {
        let cause = error.to_string();
        let failure = Failure::reported(self.group.mine, cause);
        MeshError { error, news: Some(failure) }
    }

    /// A failure that this rank has found.
    pub(super) fn own(&self, culprit: usize, cause: String) -> MeshError {
        let failure = Failure::lost(culprit, self.group.mine, cause);
        MeshError { error: self.failed(&failure), news: Some(failure) }
    }

    pub(super) fn failed(&self, f: &Failure) -> Error {
        let peers: Vec<_> = (0..self.group.members.len()).map(|r| self.group.peer(r)).collect();
        f.error(self.group.mine, &peers, None)
    }
}

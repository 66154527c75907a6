//! From what stopped a call to this rank's error, and to the words that the other ranks get.

use super::{Engine, Failure, Task, header::Header, run::Stop, stream::Refusal};
use crate::{CallInfo, Error, Peer, link::LinkError, plan::Schedule};
use std::{
    thread,
    time::{Duration, Instant},
};

/// How long after a link broke to wait for word of whose fault it was.
const GRACE: Duration = Duration::from_millis(100);

impl Engine {
    /// A send that was kept does not fit the receive that asks for it: the error, told to all.
    pub(crate) fn refuse(&self, peer: usize, ours: CallInfo, theirs: Header, differs: &'static str) -> Error {
        let cause = format!("called {} while rank {} called {ours}", theirs.info, self.rank);
        self.abort(Failure { culprit: peer, by: self.rank, cause, reported: false });
        Error::Mismatch {
            rank: self.rank,
            ours,
            peer: self.members[peer].clone(),
            theirs: theirs.info,
            differs,
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

    /// Turn what stopped the loop into this rank's error, and tell the others.
    pub(super) fn explain(&mut self, stop: Stop, schedule: &Schedule, task: &Task<'_>) -> Error {
        let call = Some(task.info);
        match stop {
            Stop::Failed(f) => self.blame(&f, call),
            Stop::Closed => Error::Closed,
            Stop::Interrupted(why) => {
                let me = self.rank;
                self.abort(Failure { culprit: me, by: me, cause: why.clone(), reported: true });
                Error::Aborted { by: self.members[me].clone(), reason: why, call }
            }
            Stop::Left(peer) => {
                let cause = "left the group".to_owned();
                self.abort(Failure { culprit: peer, by: self.rank, cause: cause.clone(), reported: false });
                Error::PeerLost { peer: self.members[peer].clone(), cause, call }
            }
            Stop::Late => {
                let waiting_for = schedule.waiting_for();
                let culprit = waiting_for.first().copied().unwrap_or(self.rank);
                let cause = format!("did not finish {} within {:?}", task.info, task.limit);
                self.abort(Failure { culprit, by: self.rank, cause, reported: false });
                let waiting_for = waiting_for.into_iter().map(|p| self.members[p].clone()).collect();
                Error::Timeout { rank: self.rank, call: task.info, after: task.limit, waiting_for }
            }
            Stop::Refused(peer, Refusal::Other(theirs, differs)) => {
                self.refuse(peer, task.info, theirs, differs)
            }
            Stop::Refused(peer, Refusal::Flood(h)) => {
                let cause = format!(
                    "sent {} that this rank has not asked for; no more than 256 MiB are kept",
                    h.info
                );
                self.abort(Failure { culprit: peer, by: self.rank, cause: cause.clone(), reported: false });
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
                let cause = if self.watch.has_left(peer) { "left the group".into() } else { cause };
                self.abort(Failure { culprit: peer, by: self.rank, cause: cause.clone(), reported: false });
                Error::PeerLost { peer: self.members[peer].clone(), cause, call }
            }
        }
    }

    pub(super) fn blame(&self, f: &Failure, call: Option<CallInfo>) -> Error {
        let member =
            |r: usize| self.members.get(r).cloned().unwrap_or(Peer { rank: r, host: None, pid: None });
        if f.reported {
            return Error::Aborted { by: member(f.culprit), reason: f.cause.clone(), call };
        }
        let seen = if f.by == self.rank { String::new() } else { format!(" (seen by rank {})", f.by) };
        Error::PeerLost { peer: member(f.culprit), cause: format!("{}{seen}", f.cause), call }
    }
}

//! Shared parts of external backends: they wait for a library that works by itself, instead of for links.

#[cfg(test)]
mod tests;

use crate::{
    CallInfo, Error, ErrorKind, JoinCause, JoinError, Op, Peer, Result,
    engine::{
        CallProgress, Members, OutstandingMessages, Progress, STASH, StepResult, Stop, Waiting, complete,
    },
    stats::Counters,
    status::{Differs, GroupStatus, Header, World},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// The shortest and the longest sleep between two looks: such a library has no descriptor to sleep on.
const NAPS: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(2));

/// Time limit, after a member's goodbye, for a call that it may have finished.
const BEHIND: Duration = Duration::from_secs(1);

/// A library that works by itself, and is asked again and again whether it is done.
struct Library<'a, F> {
    members: &'a Members,
    done: F,
    /// The next sleep.
    nap: Duration,
    /// When this rank saw that a member had left.
    left: Option<Instant>,
}

/// This rank makes a call: known from now on to those who ask, and told to the others if it waits for long.
pub(super) fn announce(members: &Members, call: Header, waiting: &mut Waiting) {
    members.status.ledger().record(&call);
    waiting.is_in(call);
}

/// Wait until `done` says so; it is asked again and again.
pub(super) fn wait(
    members: &Members,
    waiting: &mut Waiting,
    done: impl FnMut() -> StepResult<bool>,
) -> StepResult<()> {
    complete(&mut Library { members, done, nap: NAPS.0, left: None }, waiting)
}

impl<F: FnMut() -> StepResult<bool>> Progress for Library<'_, F> {
    fn members(&self) -> &Members {
        self.members
    }

    fn step(&mut self) -> StepResult<CallProgress> {
        if !(self.done)()? {
            return Ok(CallProgress::Stuck);
        }
        self.members.status.moves();
        Ok(CallProgress::Done)
    }

    fn idle(&mut self, _: Duration) -> StepResult<bool> {
        let Members { status, .. } = self.members;
        // It may have left because its part of this call is done, and the others still pass it on to each other.
        if status.anyone_left()
            && let Some(peer) = (0..self.members.size()).find(|&r| status.has_left(r))
            && self.left.get_or_insert_with(Instant::now).elapsed() >= BEHIND
        {
            return Err(Stop::Left(peer));
        }
        Ok(false)
    }

    fn lacking(&self, _: Duration) -> OutstandingMessages {
        OutstandingMessages::default()
    }

    fn waits_for(&self) -> Vec<usize> {
        self.members.others()
    }

    fn sleep(&mut self, limit: Duration, idle: Duration) {
        // The library does not say for whom.
        self.members.status.sleeps_for(self.members.rank, idle);
        // WAIT(limit): a library, to the limit of who calls
        self.members.sleep(Vec::new(), limit.min(self.nap));
        self.members.status.drain();
        self.nap = (self.nap * 2).min(NAPS.1);
    }
}

/// Explains as [`Members::explain`], but outside of a call: the members do not come together in `library`.
pub(super) fn explain_joining(members: &Members, stop: Stop, library: &str, limit: Duration) -> Error {
    let late = |waiting_for: &[Peer]| {
        let names: Vec<String> = waiting_for.iter().map(Peer::to_string).collect();
        let names = names.join(", ");
        let why = JoinError::new(format!(
            "rank {} was not connected with {names} by {library} within {limit:?}; look at those ranks, or raise the limit of joining (COMITY_JOIN_TIMEOUT) or of the call if they are only slow",
            members.rank
        ));
        why.of(waiting_for.iter().map(|p| p.rank)).because(JoinCause::Unreachable).into()
    };
    let stop = match stop {
        Stop::Late(_) => {
            let others: Vec<Peer> =
                members.peers.iter().filter(|p| p.rank != members.rank).cloned().collect();
            Stop::Own(late(&others))
        }
        stop => stop,
    };
    match members.explain(stop, CallInfo::new(Op::Split), limit).into_kind() {
        // On the way there the members make small calls of their own.
        ErrorKind::Timeout { waiting_for, .. } => late(&waiting_for),
        ErrorKind::PeerLost { peer, cause, because_of, seen_by, left, .. } => {
            ErrorKind::PeerLost { peer, cause, because_of, seen_by, left, call: None }.into()
        }
        ErrorKind::Aborted { by, reason, .. } => ErrorKind::Aborted { by, reason, call: None }.into(),
        other => other.into(),
    }
}

/// Checks that a send of `len` bytes, `theirs`, that `peer` made before the awaited one can be kept beside `kept` bytes.
pub(super) fn room(kept: usize, len: usize, peer: usize, theirs: CallInfo) -> StepResult<()> {
    if kept.saturating_add(len) <= STASH { Ok(()) } else { Err(Stop::flood(peer, theirs)) }
}

/// Checks that a message of `peer` is the one that `call` wants, before a byte of it is written.
pub(super) fn fits(peer: usize, call: CallInfo, theirs: CallInfo, wanted: CallInfo) -> StepResult<()> {
    if (theirs.count, theirs.dtype) == (wanted.count, wanted.dtype) {
        return Ok(());
    }
    let what = if theirs.dtype == wanted.dtype { "count" } else { "dtype" };
    Err(Stop::Differs(peer, Box::new(Differs { ours: call, theirs, what })))
}

/// The members (world ranks) of a group whose bytes a library carries, with its status.
pub(super) fn attend(
    world: Arc<dyn World>,
    ranks: Vec<usize>,
    group_id: u64,
    counters: Arc<Counters>,
) -> Result<Members> {
    let status = GroupStatus::new(ranks.len(), counters.clone());
    let status = Arc::new(status.map_err(|e| Error::os("making an event descriptor", e))?);
    world.attend(group_id, &ranks, &status)?;
    Ok(Members::new(world, ranks, group_id, status, counters))
}

//! Backend of a group's calls, and their results: one call runs at a time, in its turn, and the first failure is kept.

use super::Core;
use crate::{
    Error, ErrorKind, Op, Result,
    backend::{Backend, Call, WireCalls},
    recorder::Recorder,
    stats::Counters,
    status::untold,
    sync::lock,
    sys::{HomeProcess, thread_number},
    turn::Turn,
};
use std::{
    io, mem,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{MutexGuard, TryLockError, atomic::Ordering},
    time::Duration,
};

/// State that a call of a group changes, one call at a time.
pub(super) struct CallState {
    pub(super) backend: Option<Box<dyn Backend>>,
    pub(super) seq: u64,
    pub(super) splits: u64,
    pub(super) group_id: u64,
    pub(super) broken: Option<Error>,
    pub(super) recorder: Recorder,
    /// Process that owns the backend's connections.
    pub(super) home: HomeProcess,
    pub(super) threads: CallingThreads,
    pub(super) wires: WireCalls,
}

/// Calls back from a call that failed in which another thread's calls are said to be a likely reason.
const LATELY: u64 = 32;

/// The threads that ask for a group's calls. Ranks whose threads share a group make their calls in orders that differ.
#[derive(Debug, Default)]
pub(super) struct CallingThreads {
    /// That of the call to come, that of the last call with a number; 0 at first.
    now: usize,
    last: usize,
    /// The number of the latest call that came from another thread than the one before it; 0 if none did.
    changed: u64,
}

impl CallingThreads {
    /// The next call comes from this thread.
    pub(super) fn come(&mut self, thread: usize) {
        self.now = thread;
    }

    /// That call has a number.
    fn number(&mut self, seq: u64) {
        let last = mem::replace(&mut self.last, self.now);
        // No thread of the program came for the call in which joiners are met.
        if last != 0 && last != self.now {
            self.changed = seq;
        }
    }

    /// The latest change shortly before a call.
    fn changed(&self, seq: u64) -> Option<u64> {
        (self.changed > 0 && seq - self.changed < LATELY).then_some(self.changed)
    }
}

impl CallState {
    /// Make a call, which has ended then.
    pub(super) fn run(&mut self, call: &mut Call<'_>, limit: Duration, counters: &Counters) -> Result<()> {
        let op = call.info.op;
        self.run_part(call, limit, counters)?;
        counters.ended(op, true);
        Ok(())
    }

    /// Runs as [`run`](Self::run), for a call that has more parts, and so has not ended when this part has.
    pub(super) fn run_part(
        &mut self,
        call: &mut Call<'_>,
        limit: Duration,
        counters: &Counters,
    ) -> Result<()> {
        let counts = !matches!(call.info.op, Op::Send | Op::Recv | Op::SendRecv);
        if let Some(root) = &self.broken {
            return Err(match root.kind() {
                ErrorKind::Closed => root.clone(),
                _ => ErrorKind::Broken(root.clone()).into(),
            });
        }
        self.seq += u64::from(counts);
        if counts {
            self.threads.number(self.seq);
        }
        call.info.seq = if counts { self.seq } else { 0 };
        let Some(backend) = &mut self.backend else { return Err(ErrorKind::Closed.into()) };
        let info = call.info;
        let wires = &mut self.wires;
        let recorder = &mut self.recorder;
        let mut noted = false;
        let mut begun = || {
            if !mem::replace(&mut noted, true) {
                recorder.begin(&info, counters);
            }
        };
        let ran = match backend.failure(Some(&info)) {
            // A panic in the middle of a call leaves the links in the middle of a message.
            None => catch_unwind(AssertUnwindSafe(|| match info.wire {
                None => backend.run_noted(call, limit, &mut begun),
                Some(wire) => wires.run(&mut **backend, wire, call, limit, &mut begun),
            })),
            Some(e) => Ok(Err(e)),
        };
        // Where it failed before it had begun.
        begun();
        let mut out = match ran {
            Ok(out) => out,
            Err(panic) => {
                self.fail(Error::os(info.to_string(), io::Error::other("panicked")));
                resume_unwind(panic)
            }
        };
        if let Err(e) = &mut out {
            e.add_threads(self.threads.changed(self.seq));
        }
        self.recorder.end(&info, out.as_ref().err(), counters);
        if let Err(e) = &out {
            self.note(info.op, e, counters);
        }
        out
    }

    /// A call has failed. A fatal error ends the group; the links stay until the handle is dropped, so that peers hear the reason first.
    pub(super) fn note(&mut self, op: Op, e: &Error, counters: &Counters) {
        counters.ended(op, false);
        if e.is_fatal() {
            tracing::error!(error = %e, "the group failed");
            self.fail(e.clone());
        }
    }

    /// The group has ended because of `e`.
    pub(super) fn fail(&mut self, e: Error) {
        // One that this rank only left has not failed.
        if *e.kind() != ErrorKind::Closed {
            self.recorder.write(self.group_id, &e);
        }
        self.broken = Some(e);
    }

    /// This rank leaves. Where the group has failed and no call here was told, this writes the record.
    pub(super) fn leave(&mut self) -> Result<()> {
        let Some(mut backend) = self.backend.take() else { return Ok(()) };
        let told = self.broken.as_ref().is_some_and(|e| *e.kind() != ErrorKind::Closed);
        let changed = self.threads.changed(self.seq);
        if !told && let Some(mut e) = backend.failure(None) {
            e.add_threads(changed);
            self.recorder.write(self.group_id, &e);
            // Another rank found it first, between this one's last call and now.
            if self.broken.is_none() && matches!(e.kind(), ErrorKind::Mismatch { .. }) {
                self.fail(e.clone());
                return Err(e);
            }
        } else if self.broken.is_none()
            && let Err(mut e) = backend.conclude()
        {
            e.add_threads(changed);
            self.fail(e.clone());
            return Err(e);
        }
        Ok(())
    }
}

impl Drop for CallState {
    fn drop(&mut self) {
        if !self.home.is_here() {
            // A forked child says no goodbye in its parent's name.
            mem::forget(self.backend.take());
            return;
        }
        if std::thread::panicking() {
            // It is on its way out of a call that the others know nothing of.
            self.broken.get_or_insert_with(|| ErrorKind::Closed.into());
        }
        if let Err(e) = self.leave() {
            untold(&e.to_string());
        }
    }
}

/// A turn being served; it ends with the guard, also when the work panics.
pub(super) struct TurnGuard<'a> {
    turn: &'a Turn,
    ticket: u64,
}

impl<'a> TurnGuard<'a> {
    pub(super) fn wait(core: &'a Core, ticket: u64) -> Self {
        // WAIT: an earlier call of this group, which has a deadline
        core.turn.wait(ticket);
        let served = Self { turn: &core.turn, ticket };
        // WAIT: a call without a ticket, which has a deadline too; none begins from now on
        drop(lock(&core.state));
        served
    }
}

impl Core {
    /// The thread that asks for the call whose turn it is.
    #[inline]
    pub(super) fn caller(&self) -> usize {
        match self.asker.load(Ordering::Relaxed) {
            0 => thread_number(),
            asker => asker,
        }
    }

    /// The state, if nobody has a ticket: a call that finds it free has its turn without one, and holds up whoever takes one meanwhile.
    #[inline]
    pub(super) fn free_state(&self) -> Option<MutexGuard<'_, CallState>> {
        if !self.turn.is_idle() {
            return None;
        }
        let state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        // Whoever took one before this lock was free for it is seen now.
        self.turn.is_idle().then_some(state)
    }
}

impl Drop for TurnGuard<'_> {
    fn drop(&mut self) {
        self.turn.end(self.ticket);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn threads_change_when_another_one_comes() {
        let mut threads = CallingThreads::default();
        threads.number(1);
        threads.come(7);
        threads.number(2);
        threads.number(3);
        assert_eq!(threads.changed(3), None);
        threads.come(8);
        threads.number(4);
        assert_eq!((threads.changed(4), threads.changed(4 + LATELY)), (Some(4), None));
    }
}

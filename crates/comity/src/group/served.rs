//! Call that a group serves: its turn, the state that comes with it, and the thread that asked for it.

use super::{Core, state::CallState};
use crate::{sync::lock, sys::thread_number, turn::Turn};
use std::sync::{MutexGuard, TryLockError, atomic::Ordering};

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

//! Events that are still to happen in a simulated world, ordered by time.

use crate::{NoConnection, Note, simulate::SimulatedFailure};
use std::rc::Rc;

#[derive(Clone, Debug)]
pub(super) enum Item {
    Beat(u64),
    Note(Rc<Note<SimulatedFailure>>),
    End,
    /// On a new connection, made then: does the process live?
    Asked(u64),
    /// It does.
    Answer,
    /// A control connection is made.
    Connected,
    /// A control connection was not made.
    Missed(NoConnection),
}

/// Ordered by its time and number.
#[derive(Clone, Debug)]
pub(super) struct Due<T> {
    pub(super) at: u64,
    pub(super) number: u64,
    pub(super) what: T,
}

impl<T> PartialEq for Due<T> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl<T> Eq for Due<T> {}

impl<T> PartialOrd for Due<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Due<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum DueEvent {
    /// The control thread of a rank gets its turn.
    Turn(usize),
    Enter(usize, usize),
    Leave(usize, usize),
    Goodbye(usize),
    /// A fault begins.
    Strike(usize),
}

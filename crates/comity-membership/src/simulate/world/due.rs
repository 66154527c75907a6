//! Events that are still to happen in a simulated world.

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

//! A process in one group, as the judge sees it, and the occasions on which it acts.

use super::SimulatedFailure;

/// State of a process in one group.
#[derive(Clone, Debug, Default)]
pub(super) struct SimulatedMember {
    pub(super) entered: Option<u64>,
    pub(super) left: Option<u64>,
    /// Failure as its watch holds it: the first, and when.
    pub(super) failed: Option<(u64, SimulatedFailure)>,
}

/// Occasion on which a process acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Occasion {
    Call,
    Leave,
    Hear,
    Tick,
}

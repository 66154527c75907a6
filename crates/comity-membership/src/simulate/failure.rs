//! Failures as simulated members tell them.

use crate::Reason;

/// Failure of a simulated group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SimulatedFailure {
    pub(crate) culprit: usize,
    pub(crate) by: usize,
    pub(crate) cause: String,
    pub(crate) why: SimulatedReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SimulatedReason {
    /// A member or its link is gone.
    Lost,
    /// The culprit itself reported it.
    Reported,
}

impl SimulatedFailure {
    pub(crate) fn reported(by: usize, cause: String) -> Self {
        Self { culprit: by, by, cause, why: SimulatedReason::Reported }
    }
}

impl Reason for SimulatedFailure {
    /// A call's number.
    type Call = u64;
    /// The number of the last call.
    type Reached = u64;

    fn lost(culprit: usize, by: usize, cause: String) -> Self {
        Self { culprit, by, cause, why: SimulatedReason::Lost }
    }

    fn culprit(&self) -> usize {
        self.culprit
    }

    fn witness(&self) -> usize {
        self.by
    }

    fn cause(&self) -> &str {
        &self.cause
    }
}

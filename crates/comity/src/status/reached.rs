//! Progress of a member in its calls: its answer to members that ask.

/// In place of a call's number, in a census of a rank that does not close the group: only how far the others have come is asked for.
pub(crate) const NO_COMPARISON: u64 = u64::MAX;

/// Progress of a member of a group, as its control thread sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reached {
    /// The number of its last call.
    pub(crate) made: u64,
    /// Digest of its calls up to the number asked for, if it knows.
    pub(crate) digest: Option<u64>,
    /// The member that it sleeps for in a call, itself where it does not know for whom, and since when, in milliseconds.
    pub(crate) lacks: Option<(usize, u64)>,
}

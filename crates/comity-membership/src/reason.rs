//! Interface of this crate to the library that uses it.

use std::fmt::Debug;

/// Reason of a group's failure, as one of its members tells it to the others.
///
/// The library says what a reason is. This crate compares reasons, passes them on, and makes one where a member is lost.
pub trait Reason: Clone + Debug + Eq {
    /// A call, as a member announces it to the members that it waits for.
    type Call: Copy + Debug + Eq;

    /// Progress of a member with its calls. The default: it has made none.
    type Reached: Copy + Debug + Default + Eq;

    /// Member `by` saw that member `culprit` is gone, or the connection to it. The cause goes on after "rank 3 ...".
    fn lost(culprit: usize, by: usize, cause: String) -> Self;

    /// The same failure, where the culprit gave up because of these members. By default they are forgotten.
    #[must_use]
    fn on_account_of(self, _ranks: Vec<usize>) -> Self {
        self
    }

    /// The members on whose account the culprit gave up.
    fn because_of(&self) -> &[usize] {
        &[]
    }

    /// The member at fault, by its rank in the group.
    fn culprit(&self) -> usize;

    /// The member that saw it, by its rank in the group.
    fn witness(&self) -> usize;

    /// Event, in words.
    fn cause(&self) -> &str;
}

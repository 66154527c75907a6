//! The steps of one direction between this rank and a peer, in order.

use super::Id;

/// A direction between this rank and a peer: step ids in order, and the one in progress.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) peer: usize,
    pub(super) ids: Vec<Id>,
    pub(super) at: usize,
    /// Elements of the send in progress that have left.
    pub(super) lent: usize,
    /// Oldest send of which this rank must still keep some elements.
    pub(super) kept: usize,
}

impl Queue {
    /// Returns true if a step of it has not ended, for a queue of receives.
    pub(super) fn receives(&self) -> bool {
        self.at < self.ids.len()
    }

    /// Returns true if a step of it has not ended, for a queue of sends.
    pub(super) fn sends(&self) -> bool {
        self.kept < self.ids.len()
    }

    pub(super) fn reset(&mut self) {
        self.at = 0;
        self.lent = 0;
        self.kept = 0;
    }
}

/// Append to the queue of `peer`.
pub(super) fn enqueue(queues: &mut Vec<Queue>, peer: usize, id: Id) {
    match queues.iter_mut().find(|q| q.peer == peer) {
        Some(q) => q.ids.push(id),
        None => queues.push(Queue { peer, ids: vec![id], at: 0, lent: 0, kept: 0 }),
    }
}

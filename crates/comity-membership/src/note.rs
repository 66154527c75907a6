//! Messages of two processes on their control connection. As values: the library makes bytes of them.

use crate::{Message, Reason};

/// Message of one process to another. Groups have numbers that all processes know alike, their ids.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "a field whose name says it needs no other word")]
pub enum Note<R: Reason> {
    /// The sender leaves a group in good order.
    Leave { group_id: u64 },
    /// The sender has opened a group.
    Entered { group_id: u64 },
    /// The sender needs a link to the receiver, which is the one to connect.
    Connect { group_id: u64 },
    /// A group has failed.
    Abort { group_id: u64, failure: R },
    /// The sender has waited for the receiver for long.
    Waits {
        group_id: u64,
        /// The call that the sender is in.
        call: R::Call,
    },
    /// The sender asks how far the receiver has come.
    Census {
        group_id: u64,
        /// Calls up to this number count for the digest.
        at: u64,
        /// Digest of the sender's calls.
        digest: u64,
    },
    /// The answer to a census.
    Reached {
        group_id: u64,
        /// Progress of the sender.
        reached: R::Reached,
    },
    /// The sender lives.
    Heartbeat {
        /// Progress of its engines.
        progress: u64,
    },
    /// The sender ends.
    Goodbye {
        /// Reason for which it could not join, if so; else empty.
        words: String,
        /// The processes at fault by these words, if other ones are.
        because_of: Vec<usize>,
    },
    /// The sender has given the receiver up, and closes the connection.
    GivenUp {
        /// For how many milliseconds it has heard nothing.
        silence: u64,
    },
    /// The sender and the receiver agree on the group that follows one.
    Reform { group_id: u64, message: Box<Message> },
    /// In a large job: an edge of the graph is gone. Only within [`Spread`](Self::Spread).
    Lost {
        /// The process that gave the other up.
        by: usize,
        /// The process that it gave up.
        rank: usize,
        /// Reason, as the rest of the sentence "rank 3 ...".
        cause: String,
        /// For how many milliseconds nothing was heard, if that is why.
        silence: Option<u64>,
    },
    /// In a large job: the sender has lost these ranks by what others said; no edge of the graph leads to them. Only within
    /// [`Spread`](Self::Spread).
    NoWay { ranks: Vec<usize> },
    /// In a large job: news of one process for all, which everyone passes on once.
    Spread {
        /// Process whose news they are.
        origin: usize,
        /// The number of this news among all of its origin, from 1.
        number: u64,
        note: Box<Self>,
    },
    /// In a large job: news of one process for some, passed on from neighbour to neighbour.
    Passed {
        /// Process whose news they are.
        from: usize,
        /// The processes that they are for.
        to: Vec<usize>,
        /// Number of times that they were passed on.
        hops: u8,
        note: Box<Self>,
    },
}

impl<R: Reason> Note<R> {
    /// Return whether this note goes to all processes of a large job.
    pub(crate) fn is_for_all(&self) -> bool {
        matches!(
            self,
            Self::Leave { .. }
                | Self::Entered { .. }
                | Self::Abort { .. }
                | Self::Goodbye { .. }
                | Self::Lost { .. }
                | Self::NoWay { .. }
        )
    }

    /// Return whether a large job's processes send each other this note through neighbours.
    pub(crate) fn is_for_one(&self) -> bool {
        matches!(
            self,
            Self::Waits { .. }
                | Self::Connect { .. }
                | Self::Census { .. }
                | Self::Reached { .. }
                | Self::Reform { .. }
        )
    }

    /// The open group that the note is about, if it is about one.
    pub fn group_id(&self) -> Option<u64> {
        match self {
            Self::Leave { group_id }
            | Self::Entered { group_id }
            | Self::Connect { group_id }
            | Self::Abort { group_id, .. }
            | Self::Waits { group_id, .. }
            | Self::Census { group_id, .. }
            | Self::Reached { group_id, .. } => Some(*group_id),
            Self::Heartbeat { .. }
            | Self::Goodbye { .. }
            | Self::GivenUp { .. }
            | Self::Reform { .. }
            | Self::Lost { .. }
            | Self::NoWay { .. }
            | Self::Spread { .. }
            | Self::Passed { .. } => None,
        }
    }
}

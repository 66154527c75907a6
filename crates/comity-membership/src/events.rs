//! Events that come in to [`Membership`](crate::Membership), and actions that go out of it; the notes of two processes, as values: the library
//! makes bytes of them; and what the library supplies.

use crate::{Message, Verdict};
use std::{fmt::Debug, time::Duration};

/// The cause of death of a process whose connection ended without a goodbye.
pub const DIED: &str = "died: its control connection closed";

/// Presence of another process, as this one knows it.
#[derive(Clone, Debug, PartialEq)]
pub enum Presence {
    /// It is this process itself.
    Oneself,
    /// It has not connected yet.
    Absent,
    /// It is connected.
    Live,
    /// It said goodbye. If it could not join, it said why, and named the processes at fault if others were.
    Gone(String, Vec<usize>),
    /// It ended without a goodbye; the cause.
    Dead(String),
    /// It has given this process up, after so many seconds of silence. The fault is this process's own.
    Shut(f64),
}

/// A process that keeps others from coming together, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The process of whom the words are.
    pub rank: usize,
    /// Its fate, as the rest of the sentence "rank 3 ...".
    pub words: String,
    /// The processes on whose account it gave up, where it said so.
    pub because_of: Vec<usize>,
}

/// Event on a control connection.
#[derive(Clone, Debug)]
pub enum Heard<R: Reason> {
    /// A note.
    Note(Note<R>),
    /// Nothing more comes; the cause.
    End(&'static str),
}

/// Action of the caller, in this order. A `member` is named by its rank in the group, everyone else by the process's.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "a field whose name says it needs no other word")]
pub enum Action<R: Reason> {
    /// Send a note. A process that cannot be reached is found when it is next read.
    Tell { to: Vec<usize>, note: Note<R> },
    /// Send a heartbeat to every process that has no note waiting for room.
    Beat {
        /// Progress of this process's engines.
        progress: u64,
    },
    /// Close the connection to a process. It is heard and told no more.
    Close { rank: usize },
    /// A group has failed. The first reason stays.
    Fail { group_id: u64, failure: R },
    /// A member says this of a group in which this process has the rank `mine`: that it has left, has opened it, needs a link, or has come so
    /// far; or it asks this one. What it waits for is to be compared with this rank's own calls: if they differ, call
    /// [`Membership::abort`](crate::Membership::abort). A census is to be answered: [say](crate::Membership::say) [`Note::Reached`].
    Said { mine: usize, member: usize, note: Note<R> },
    /// A process speaks of the group that follows one. Have the [`Reform`](crate::Reform) of that group hear it.
    Reform { from: usize, group_id: u64, message: Message },
    /// A member of a group has not been heard for some time. Count it.
    Suspect { group_id: u64 },
    /// Ask a silent process over a new connection whether it lives.
    Ask { rank: usize },
    /// A member of a group was silent for longer than any had been before in it.
    Silence { group_id: u64, silence: Duration },
    /// In a large job: make a control connection to a process. Then call [`Membership::attach`](crate::Membership::attach) or
    /// [`Membership::missed`](crate::Membership::missed).
    Dial { rank: usize },
    /// Wake whoever waits for the processes to meet.
    News,
    /// Log this.
    Log(Word),
}

/// Reason for which a control connection that was to be [made](Action::Dial) was not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoConnection {
    /// Nobody listens there: the process has ended.
    NobodyListens,
    /// The other has given this process up.
    GivenUp,
    /// Nothing answers, or not now.
    NoAnswer,
}

/// Entry for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "a field whose name says it needs no other word")]
pub enum Word {
    /// A process was judged for its silence.
    Silent(Verdict),
    /// A suspect process is heard again.
    Back { rank: usize, silence: Duration },
}

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

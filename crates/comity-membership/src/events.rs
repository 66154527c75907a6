//! Events that come in to [`Membership`](crate::Membership), and actions that go out of it.

use crate::{Message, Note, Reason, Verdict};
use std::time::Duration;

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

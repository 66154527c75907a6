//! What comes to the decisions, and what goes out of them.

use crate::{
    boot::{liveness::Verdict, wire::Note},
    engine::{Failure, Header, Reached},
};
use std::time::Duration;

/// What the group is told of a member whose process ended without a goodbye.
pub(in crate::boot) const DIED: &str = "died: its control connection closed";

/// How a process stands with one other.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::boot) enum Presence {
    /// This process itself.
    Oneself,
    /// Not connected yet.
    Absent,
    Live,
    /// It said goodbye; with words if it could not join.
    Gone(String),
    /// It ended without one; the cause.
    Dead(String),
    /// It has given this process up, after so many seconds of silence: here the fault is this process's own.
    Shut(f64),
}

/// What came over a control connection.
#[derive(Clone, Debug)]
pub(in crate::boot) enum Heard {
    Note(Note),
    /// Nothing more comes; the cause.
    End(&'static str),
}

/// What is to be done, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::boot) enum Action {
    /// Send a note to these processes. One that cannot be reached is found when it is next read.
    Tell {
        to: Vec<usize>,
        note: Note,
    },
    /// Send a beat to every process that has no note waiting for room.
    Beat {
        progress: u64,
    },
    /// A process is heard and told no more.
    Close {
        rank: usize,
    },
    /// A group has failed, unless it had before.
    Fail {
        context: u64,
        failure: Failure,
    },
    /// A member, by its rank in the group, has left in good order.
    Left {
        context: u64,
        member: usize,
    },
    /// A member has waited for this one, `mine`, in a call: to compare with its own. What differs is for [`Membership::abort`](super::Membership::abort).
    Waits {
        context: u64,
        mine: usize,
        member: usize,
        call: Header,
    },
    /// A member asks how far this one has come; for [`Membership::answer`](super::Membership::answer).
    Census {
        context: u64,
        member: usize,
        at: u64,
        digest: u64,
    },
    /// A member has answered how far it has come.
    Reached {
        context: u64,
        member: usize,
        reached: Reached,
    },
    /// A member of this group has not been heard for some time.
    Suspect {
        context: u64,
    },
    /// A process that is silent is to be asked over a new connection whether it lives.
    Ask {
        rank: usize,
    },
    /// A member of this group was silent for longer than any had been before in it.
    Silence {
        context: u64,
        silence: Duration,
    },
    /// Whoever waits for the processes to meet should look again.
    News,
    Log(Word),
}

/// What is to be logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::boot) enum Word {
    Silent(Verdict),
    /// A suspect rank is heard again, after so long.
    Back {
        rank: usize,
        silence: Duration,
    },
}

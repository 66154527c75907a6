//! The members of a group, as errors name them.

use crate::CallInfo;
use std::{fmt, sync::Arc};

/// A member of a group, as errors name it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    /// Its rank in the group of the call.
    pub rank: usize,
    /// Its host name, where known.
    pub host: Option<Arc<str>>,
    /// Its process id, where known.
    pub pid: Option<u32>,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.rank)?;
        match (&self.host, self.pid) {
            (Some(h), Some(p)) => write!(f, " (host {h}, pid {p})"),
            (Some(h), None) => write!(f, " (host {h})"),
            (None, Some(p)) => write!(f, " (pid {p})"),
            (None, None) => Ok(()),
        }
    }
}

/// A rank that was waited for, while it waited for the one that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crossed {
    /// The rank, as in the group of the error.
    pub peer: Peer,
    /// The call in which it waited.
    pub call: CallInfo,
    /// That call is one of another group, with its own numbers of ranks and calls.
    pub elsewhere: bool,
}

//! The members of a group, as errors name them.

use crate::CallInfo;
use std::{fmt, sync::Arc};

/// A member of a group, as errors name it: rank, host, process id.
///
/// ```
/// let group = comity::Group::single();
/// let me = &group.members()[0];
/// assert_eq!((me.rank, me.pid), (0, Some(std::process::id())));
/// println!("{me}"); // rank 0 (pid 4711)
/// ```
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

/// A rank that was waited for, while it waited for the one that waits. [`ErrorKind::Timeout`](crate::ErrorKind::Timeout) lists them.
///
/// ```
/// use comity::{Error, ErrorKind};
///
/// fn explain(e: &Error) {
///     if let ErrorKind::Timeout { crossed, .. } = e.kind() {
///         for c in crossed {
///             println!("{} waits for this rank in {}", c.peer, c.call);
///         }
///     }
/// }
/// explain(&ErrorKind::Closed.into());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrossedWait {
    /// The rank, as in the group of the error.
    pub peer: Peer,
    /// The call in which it waited.
    pub call: CallInfo,
    /// True if that call is on another group, with its own numbers of ranks and calls.
    pub elsewhere: bool,
}

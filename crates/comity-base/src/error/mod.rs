//! The one error type, sorted by who is to blame.
//!
//! May import: `call`.

mod config;
mod join;
mod misuse;
mod peer;
#[cfg(test)]
mod tests;
mod words;

pub use config::ConfigError;
pub use join::{JoinCause, JoinError};
pub use misuse::Misuse;
pub use peer::{Crossed, Peer};
pub use words::PART;

use crate::CallInfo;
use std::{fmt, sync::Arc, time::Duration};
use words::{Calls, Changed, Crossings, During, SeenBy, Waited, advice};

/// Result of a collective operation.
///
/// ```
/// fn total(group: &comity::Group, mut x: f64) -> comity::Result<f64> {
///     group.all_reduce(std::slice::from_mut(&mut x), comity::ReduceOp::Sum)?;
///     Ok(x)
/// }
/// assert_eq!(total(&comity::Group::single(), 2.0)?, 2.0);
/// # Ok::<(), comity::Error>(())
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed.
///
/// Cloneable, because every later call on a failed group gets the root cause.
///
/// ```
/// use comity::{Error, Group};
///
/// let group = Group::single();
/// group.abort("the loss is NaN");
/// let e = group.barrier().unwrap_err();
/// assert!(e.is_fatal());
/// match e.root() {
///     Error::PeerLost { peer, .. } => eprintln!("{peer} is gone"),
///     Error::Aborted { by, reason, .. } => eprintln!("{by} gave up: {reason}"),
///     other => eprintln!("{other}"),
/// }
/// assert_eq!(e.ranks(), [0]); // whose fault it was
/// ```
#[non_exhaustive]
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The configuration is incomplete or contradicts itself. Nothing was connected.
    #[error("configuration: {0}")]
    Config(ConfigError),

    /// The backend cannot run here: its library, device or permission is missing.
    #[error("{backend} is not available: {reason}")]
    Unavailable {
        /// Name of the backend or link.
        backend: &'static str,
        /// Missing part, the places searched, and the remedy.
        reason: String,
    },

    /// The caller broke a rule it could have checked. No byte moved; the group is unharmed.
    #[error("{op}: {misuse}")]
    Misuse {
        /// The operation called.
        op: crate::Op,
        /// The rule.
        misuse: Misuse,
    },

    /// A wait that could never end: background work waits for later work of the same group. Nothing moved.
    #[error(
        "background work of a group cannot wait for a later request of the same group, which runs after it; wait outside, or make the call inside"
    )]
    Order,

    /// Not all ranks came together in time.
    #[error("{0}")]
    Join(JoinError),

    /// Two ranks made different calls, or the same call with other arguments.
    #[error("ranks disagree in {differs}: {}{}; make the same calls with the same arguments in the same order on every rank", Calls((*.rank, .ours), (.peer, .theirs), .differs), Changed(.threads))]
    Mismatch {
        /// The rank that saw it, by its number in the group; every rank gets the same error.
        rank: usize,
        /// Its call.
        ours: CallInfo,
        /// The other rank.
        peer: Peer,
        /// Its call.
        theirs: CallInfo,
        /// First difference: "dtype", "count", ...
        differs: &'static str,
        /// Where threads of this rank share the group: the number of its latest call, shortly before, that came from another thread than the
        /// call before it. Each rank says it of itself.
        threads: Option<u64>,
    },

    /// The operation did not finish in time.
    #[error("{call} timed out after {after:?} on rank {rank}: {}{}; {} or raise COMITY_TIMEOUT, or the limit of this group or call, if it is only slow (none: as long as all ranks live)", Waited(.call, .waiting_for, .stalled.as_ref()), Crossings(.crossed), advice(.waiting_for, .stalled.is_some()))]
    Timeout {
        /// The rank whose limit passed; every rank that waited gets the same error.
        rank: usize,
        /// The call.
        call: CallInfo,
        /// The limit that passed.
        after: Duration,
        /// The ranks that had not made the call, never the one that reads this; of a call between two ranks, the other one.
        waiting_for: Vec<Peer>,
        /// If all had made it: the two between which nothing moves, first the one that waits. Those of them that do not read this are in
        /// `waiting_for` as well.
        stalled: Option<[Peer; 2]>,
        /// Ranks that waited for this rank, in calls that it has not come to; empty on other ranks than `rank`.
        crossed: Vec<Crossed>,
    },

    /// A member's process or link is gone.
    #[error("{peer} {cause}{}{}{}; look at that rank's last output, then restart the job (`comity launch --max-restarts`) or call the group's reform", SeenBy(.seen_by), if *.left && .call.is_some() { "," } else { "" }, During(.call))]
    PeerLost {
        /// The member.
        peer: Peer,
        /// Observation, as the rest of a sentence: "closed its connections".
        cause: String,
        /// The members on whose account it gave up, where it said so; mostly empty.
        because_of: Vec<usize>,
        /// Another member that saw it and told this one; None where this rank saw it itself.
        seen_by: Option<usize>,
        /// True if it closed the group in good order, and a call still needed it.
        left: bool,
        /// Call under way on this rank.
        call: Option<CallInfo>,
    },

    /// Another rank reported a failure that this rank did not see itself.
    #[error("{by} gave up the group: {reason}{}; mend that, then restart the job or call the group's reform", During(.call))]
    Aborted {
        /// Rank that reported it.
        by: Peer,
        /// Its words.
        reason: String,
        /// Call under way on this rank.
        call: Option<CallInfo>,
    },

    /// A library outside this project said no.
    #[error("{library}: {message} (code {code})")]
    Library {
        /// Name of the library.
        library: &'static str,
        /// Its code.
        code: i64,
        /// Its message.
        message: String,
    },

    /// The operating system refused something this process needs.
    #[error("{what}: {message}")]
    Os {
        /// Failed action.
        what: String,
        /// The system's words.
        message: String,
    },

    /// An earlier failure left the group unusable; this is that failure.
    #[error("the group failed earlier: {0}")]
    Broken(Arc<Self>),

    /// This handle's group was closed by this process.
    #[error("the group is closed on this rank")]
    Closed,

    /// This process was forked from one that is in a job. It has neither the connections of that one nor its place.
    #[error(
        "the group belongs to process {home}, and process {process} was forked from it: a forked child cannot use its parent's connections, nor join in its parent's place; start it anew instead (exec; in Python the multiprocessing method \"spawn\"), or make the group after the fork"
    )]
    Forked {
        /// The process that is in the job.
        home: u32,
        /// This process.
        process: u32,
    },
}

/// The same sentence as `Display`: it is what a `main` that returns the error prints.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error {
    /// Returns true if the group is unusable after this error, or was never made: for all but `Misuse`, `Order`, `Config`, `Unavailable`
    /// and `Forked`.
    pub fn is_fatal(&self) -> bool {
        !matches!(
            self,
            Self::Config(_)
                | Self::Unavailable { .. }
                | Self::Misuse { .. }
                | Self::Order
                | Self::Forked { .. }
        )
    }

    /// The first failure: what is inside [`Error::Broken`], else the error itself.
    pub fn root(&self) -> &Self {
        match self {
            Self::Broken(e) => e.root(),
            e => e,
        }
    }

    /// The ranks at fault, by their numbers in the group of the call, or in the job for [`Error::Join`]; empty where no rank is, or none
    /// is known. Programs that act on whose fault it was ask this, not the sentence.
    pub fn ranks(&self) -> Vec<usize> {
        match self.root() {
            Self::PeerLost { because_of, .. } if !because_of.is_empty() => because_of.clone(),
            Self::PeerLost { peer, .. } | Self::Mismatch { peer, .. } => vec![peer.rank],
            Self::Aborted { by, .. } => vec![by.rank],
            Self::Timeout { waiting_for, .. } => waiting_for.iter().map(|p| p.rank).collect(),
            Self::Join(why) => why.ranks.clone(),
            _ => Vec::new(),
        }
    }

    /// Returns the error for ranks that wait for this rank to join.
    #[doc(hidden)]
    pub fn as_join(&self) -> JoinError {
        match self {
            Self::Join(why) => why.clone(),
            e => JoinError::new(e.to_string()).of(e.ranks()),
        }
    }

    /// Note in an error that tells of different calls that threads of this rank share the group.
    #[doc(hidden)]
    pub fn add_threads(&mut self, changed: Option<u64>) {
        if let Self::Mismatch { threads, .. } = self {
            *threads = changed;
        }
    }

    #[doc(hidden)]
    pub fn config(words: impl Into<String>) -> Self {
        ConfigError::new(words).into()
    }

    /// `key`, a variable or a setting's name, has this value, and that is wrong.
    #[doc(hidden)]
    pub fn setting(key: &str, value: impl fmt::Display, words: impl Into<String>) -> Self {
        ConfigError::new(words).with_key(key).with_value(value.to_string()).into()
    }

    #[doc(hidden)]
    pub fn join(words: impl Into<String>) -> Self {
        JoinError::new(words).into()
    }

    #[doc(hidden)]
    pub fn os(what: impl Into<String>, e: impl fmt::Display) -> Self {
        let mut message = e.to_string();
        // EMFILE and ENFILE, on every system.
        if message.ends_with("(os error 24)") {
            let most = most_files().map_or_else(String::new, |n| format!(" may have {n} and"));
            message += &format!("; this process{most} needs more: raise `ulimit -n` where it is started");
        } else if message.ends_with("(os error 23)") {
            message += "; this host has too few for all its processes: raise fs.file-max, or end some";
        }
        Self::Os { what: what.into(), message }
    }
}

/// Returns the limit of descriptors of this process.
fn most_files() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

/// "60 s", "0.5 s".
pub fn seconds(d: Duration) -> String {
    format!("{} s", d.as_millis() as f64 / 1000.0)
}

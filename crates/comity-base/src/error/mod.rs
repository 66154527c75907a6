//! The one error type, sorted by who is to blame.

mod particulars;
#[cfg(test)]
mod tests;

use crate::CallInfo;
pub use particulars::{ConfigError, CrossedWait, JoinCause, JoinError, Misuse, OsError, Peer};
use std::{error, fmt, io, sync::Arc, time::Duration};

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

/// Failure of an operation. A pointer: a [`Result`] of a call that succeeds costs no more than a word, and later calls on a failed group
/// share the root cause.
///
/// [`kind`](Self::kind) says what failed, for programs; `Display` says it in a sentence, with what to do next.
/// [`source`](std::error::Error::source) leads to the [`std::io::Error`] where the system refused something.
///
/// ```
/// use comity::{ErrorKind, Group};
///
/// let group = Group::single();
/// group.abort("the loss is NaN");
/// let e = group.barrier().unwrap_err();
/// assert!(e.is_fatal());
/// match e.root().kind() {
///     ErrorKind::PeerLost { peer, .. } => eprintln!("{peer} is gone"),
///     ErrorKind::Aborted { by, reason, .. } => eprintln!("{by} gave up: {reason}"),
///     other => eprintln!("{other}"),
/// }
/// assert_eq!(e.ranks(), [0]); // whose fault it was
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Error(Arc<ErrorKind>);

const _: () = assert!(size_of::<Result<()>>() == size_of::<usize>());

impl From<ErrorKind> for Error {
    #[cold]
    fn from(kind: ErrorKind) -> Self {
        Self(Arc::new(kind))
    }
}

impl From<ConfigError> for Error {
    fn from(e: ConfigError) -> Self {
        ErrorKind::Config(e).into()
    }
}

impl From<JoinError> for Error {
    fn from(e: JoinError) -> Self {
        ErrorKind::Join(e).into()
    }
}

impl From<OsError> for Error {
    fn from(e: OsError) -> Self {
        ErrorKind::Os(e).into()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.0.source()
    }
}

/// The same sentence as `Display`: it is what a `main` that returns the error prints.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error {
    /// Returns the kind of the failure, with its particulars.
    pub fn kind(&self) -> &ErrorKind {
        &self.0
    }

    /// Returns the kind by value, for an error that says the same in other words.
    pub fn into_kind(self) -> ErrorKind {
        Arc::unwrap_or_clone(self.0)
    }

    /// Returns the error of an `action` that the system refused.
    ///
    /// ```
    /// use std::{error::Error as _, io};
    ///
    /// let e = comity::Error::os("opening the key", io::Error::from(io::ErrorKind::NotFound));
    /// assert_eq!(e.to_string(), "opening the key: entity not found");
    /// let cause = e.source().and_then(|os| os.source()?.downcast_ref::<io::Error>());
    /// assert_eq!(cause.map(io::Error::kind), Some(io::ErrorKind::NotFound));
    /// ```
    pub fn os(action: impl Into<String>, source: impl Into<io::Error>) -> Self {
        OsError::new(action, source).into()
    }

    /// Returns true if the group is unusable after this error, or was never made: for all but `Misuse`, `Order`, `Config`, `Unavailable`
    /// and `Forked`.
    pub fn is_fatal(&self) -> bool {
        !matches!(
            self.kind(),
            ErrorKind::Config(_)
                | ErrorKind::Unavailable { .. }
                | ErrorKind::Misuse { .. }
                | ErrorKind::Order
                | ErrorKind::Forked { .. }
        )
    }

    /// The first failure: what is inside [`ErrorKind::Broken`], else the error itself.
    pub fn root(&self) -> &Self {
        match self.kind() {
            ErrorKind::Broken(e) => e.root(),
            _ => self,
        }
    }

    /// The ranks at fault, by their numbers in the group of the call, or in the job for [`ErrorKind::Join`]; empty where no rank is, or none
    /// is known. Programs that act on whose fault it was ask this, not the sentence.
    pub fn ranks(&self) -> Vec<usize> {
        match self.root().kind() {
            ErrorKind::PeerLost { because_of, .. } if !because_of.is_empty() => because_of.clone(),
            ErrorKind::PeerLost { peer, .. } | ErrorKind::Mismatch { peer, .. } => vec![peer.rank],
            ErrorKind::Aborted { by, .. } => vec![by.rank],
            ErrorKind::Timeout { waiting_for, .. } => waiting_for.iter().map(|p| p.rank).collect(),
            ErrorKind::Join(why) => why.ranks.clone(),
            _ => Vec::new(),
        }
    }

    /// Returns the error for ranks that wait for this rank to join.
    #[doc(hidden)]
    pub fn as_join(&self) -> JoinError {
        match self.kind() {
            ErrorKind::Join(why) => why.clone(),
            _ => JoinError::new(self.to_string()).of(self.ranks()),
        }
    }

    /// Note in an error that tells of different calls that threads of this rank share the group.
    #[doc(hidden)]
    pub fn add_threads(&mut self, changed: Option<u64>) {
        if changed.is_some()
            && let ErrorKind::Mismatch { threads, .. } = Arc::make_mut(&mut self.0)
        {
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
}

/// "60 s", "0.5 s".
pub fn seconds(d: Duration) -> String {
    format!("{} s", d.as_millis() as f64 / 1000.0)
}

/// Kind of a failure, and its particulars. [`Error::kind`] returns it, and `Error::from` makes an error of it.
///
/// ```
/// use comity::{Error, ErrorKind};
///
/// fn explain(e: &Error) -> String {
///     match e.root().kind() {
///         ErrorKind::PeerLost { peer, .. } => format!("{peer} is gone"),
///         ErrorKind::Timeout { waiting_for, .. } => format!("{} ranks are late", waiting_for.len()),
///         other => other.to_string(),
///     }
/// }
/// assert_eq!(explain(&ErrorKind::Closed.into()), "the group is closed on this rank");
/// ```
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ErrorKind {
    /// The configuration is incomplete or contradicts itself. Nothing was connected.
    #[error("configuration: {0}")]
    Config(#[source] ConfigError),

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
    Join(#[source] JoinError),

    /// Two ranks made different calls, or the same call with other arguments.
    #[error("ranks disagree in {differs}: {}{}; make the same calls with the same arguments in the same order on every rank", calls(*.rank, .ours, .peer, .theirs, .differs), changed_thread(*.threads))]
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
        /// Number of the group's latest call, shortly before, that came from another thread than the
        /// call before it. Each rank says it of itself.
        threads: Option<u64>,
    },

    /// The operation did not finish in time.
    #[error("{call} timed out after {after:?} on rank {rank}: {}{}; {} or raise COMITY_TIMEOUT, or the limit of this group or call, if it is only slow (none: as long as all ranks live)", waited_ranks(.call, .waiting_for, .stalled.as_ref()), crossings(.crossed), advice(.waiting_for, .stalled.is_some()))]
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
        crossed: Vec<CrossedWait>,
    },

    /// A member's process or link is gone.
    #[error("{peer} {cause}{}{}{}; look at that rank's last output, then restart the job (`comity launch --max-restarts`) or call the group's reform", witness(*.seen_by), if *.left && .call.is_some() { "," } else { "" }, during(.call.as_ref()))]
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
    #[error("{by} gave up the group: {reason}{}; mend that, then restart the job or call the group's reform", during(.call.as_ref()))]
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
    #[error("{0}")]
    Os(#[source] OsError),

    /// An earlier failure left the group unusable; this is that failure.
    #[error("the group failed earlier: {0}")]
    Broken(#[source] Error),

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

/// Names of files and values of variables come from strangers at times, and errors go to terminals.
fn printable(text: &str) -> String {
    let shown = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.into() };
    text.chars().map(shown).collect()
}

/// Difference in an all_to_all: the size of the part that a rank sends another, and the size that the other expects.
pub const PART: &str = "the size of a part";

fn witness(rank: Option<usize>) -> String {
    rank.map_or_else(String::new, |rank| format!(" (seen by rank {rank})"))
}

fn during(call: Option<&CallInfo>) -> String {
    call.map_or_else(String::new, |call| format!(" during {call}"))
}

fn advice(named: &[Peer], stalled: bool) -> &'static str {
    match (stalled, named) {
        (true, _) => "look at the network between those two,",
        (false, []) => "look at the load of the hosts,",
        (false, [_]) => "look at what that rank does,",
        (false, _) => "look at what those ranks do,",
    }
}

/// Two calls that do not fit.
fn calls(rank: usize, ours: &CallInfo, peer: &Peer, theirs: &CallInfo, differs: &str) -> String {
    if differs == PART {
        let sent = theirs.count;
        let wanted = ours.count;
        let call = CallInfo { count: 0, dtype: None, ..*ours };
        return format!("in {call} {peer} sends {sent} elements to rank {rank}, which expects {wanted}");
    }
    format!("{peer} called {theirs} while rank {rank} called {ours}")
}

/// A call of this rank that came from another thread than the one before it.
fn changed_thread(seq: Option<u64>) -> String {
    seq.map_or_else(String::new, |seq| format!(
        "; on this rank threads share the group: call #{seq} came from another one than the call before it, so give threads that call at once a group each"
    ))
}

/// Ranks that a call waited for when it timed out.
fn waited_ranks(call: &CallInfo, named: &[Peer], stalled: Option<&[Peer; 2]>) -> String {
    let all = named.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match (stalled, named) {
        (Some([waits, other]), _) => {
            format!("all ranks have called it, but nothing moves between {waits} and {other}")
        }
        (None, []) => "all ranks have called it, but it did not end".into(),
        // Calls between two ranks alone have no number.
        (None, named) if call.seq == 0 => match call.root {
            Some(other) if named.iter().all(|p| p.rank != other) => {
                format!("it was waiting for rank {other}, which waits for {all}")
            }
            _ => format!("it was waiting for {all}"),
        },
        (None, _) => format!("{all} had not called it"),
    }
}

fn crossings(crossed: &[CrossedWait]) -> String {
    let words = |c: &CrossedWait| {
        let group = if c.elsewhere { " of another group" } else { "" };
        format!("; rank {} waited for this one in {}{group}", c.peer.rank, c.call)
    };
    crossed.iter().map(words).collect()
}

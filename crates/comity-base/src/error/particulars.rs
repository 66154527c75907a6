//! Particulars of errors: members of a group, configurations that make no sense, ranks that did not come together, rules that a caller can
//! break, and refusals of the operating system.

use super::{ErrorKind, printable};
use crate::{CallInfo, DType, ReduceOp, Wire};
use comity_kernel::named;
use rustix::{
    io::Errno,
    process::{Resource, getrlimit},
};
use std::{
    error, fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

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

/// Fault of a configuration, and its place.
///
/// ```
/// use comity::{Config, ErrorKind};
///
/// let e = Config::from_vars(|name| (name == "COMITY_LINKS").then(|| "telepathy".into())).unwrap_err();
/// let ErrorKind::Config(why) = e.kind() else { panic!() };
/// assert_eq!(why.key.as_deref(), Some("COMITY_LINKS"));
/// assert_eq!(why.value.as_deref(), Some("telepathy"));
/// ```
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
// Without control characters, which names of files may hold.
#[error("{}", printable(.words))]
pub struct ConfigError {
    /// The file that it is about.
    pub file: Option<PathBuf>,
    /// The line in the file, from 1, where the file's form is wrong.
    pub line: Option<usize>,
    /// The column in that line, from 1.
    pub column: Option<usize>,
    /// The variable, or the setting's name where a program gave it.
    pub key: Option<String>,
    /// Its value, where it is to blame and no secret.
    pub value: Option<String>,
    words: Box<str>,
}

impl ConfigError {
    /// An error of these words. The other methods say what it is about.
    ///
    /// ```
    /// use comity::{ConfigError, Error};
    ///
    /// let e: Error = ConfigError::new("no such colour").with_key("colour").with_value("mauve").into();
    /// assert_eq!(e.to_string(), "configuration: no such colour");
    ///
    /// let why = ConfigError::new("is not JSON").with_file("hosts.json").at(3, 14);
    /// assert_eq!((why.line, why.column), (Some(3), Some(14)));
    /// ```
    pub fn new(words: impl Into<String>) -> Self {
        Self { file: None, line: None, column: None, key: None, value: None, words: words.into().into() }
    }

    /// Say which file it is about.
    #[must_use]
    pub fn with_file(mut self, file: impl AsRef<Path>) -> Self {
        self.file = Some(file.as_ref().into());
        self
    }

    /// Say at which line and column of the file, both from 1.
    #[must_use]
    pub fn at(mut self, line: usize, column: usize) -> Self {
        self.line = Some(line);
        self.column = Some(column);
        self
    }

    /// Say which variable or setting it is about.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Say which value is wrong. It must be no secret.
    #[must_use]
    pub fn with_value(mut self, value: impl Into<String>) -> Self {
        self.value = Some(value.into());
        self
    }

    /// `e`, which says more of this in its words, at this one's place in a file.
    #[doc(hidden)]
    pub fn place(self, e: super::Error) -> super::Error {
        let ErrorKind::Config(why) = e.kind() else { return e };
        let why = why.clone();
        Self { file: self.file.or(why.file), line: self.line, column: self.column, ..why }.into()
    }

    /// The same, from the variable `key`, which its words say first.
    #[doc(hidden)]
    pub fn named_by(self, key: &str) -> Self {
        Self { words: format!("{key}: {}", self.words).into(), ..self }.with_key(key)
    }
}

/// Failure to come together: the reason, and the ranks on whose account.
///
/// ```
/// # use comity::{Error, ErrorKind, JoinCause, JoinError};
/// # let e = Error::from(JoinError::new("rank 3 never came").of([3]).because(JoinCause::Missing));
/// if let ErrorKind::Join(why) = e.kind()
///     && why.cause == JoinCause::Missing
/// {
///     eprintln!("start ranks {:?}, then try again", why.ranks);
/// }
/// ```
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{words}")]
pub struct JoinError {
    /// The ranks at fault, by their numbers in the job, or in the group that its members make: those that are missing, or the one
    /// that ended, gave up or cannot be reached. Empty where no rank is known to be at fault.
    pub ranks: Vec<usize>,
    /// Reason for which they did not join.
    pub cause: JoinCause,
    /// The address that was tried in vain, as the sentence has it.
    pub address: Option<String>,
    words: String,
}

named! {
    /// Reason that kept ranks from coming together, as a short name for programs.
    ///
    /// ```
    /// use comity::JoinCause;
    ///
    /// assert_eq!(JoinCause::GaveUp.name(), "gave up");
    /// assert!(JoinCause::ALL.contains(&JoinCause::Missing));
    /// ```
    #[non_exhaustive]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum JoinCause: "cause" {
        /// Something else, or it is not known.
        #[default]
        Other => "other",
        /// Nobody has heard of those ranks.
        Missing => "missing",
        /// They are in the job, and did not come in time to the group that its members make.
        Absent => "absent",
        /// They came, and no connection to them can be made.
        Unreachable => "unreachable",
        /// They ended before all had come together.
        Ended => "ended",
        /// They said that they give up.
        GaveUp => "gave up",
        /// Several processes claim one rank, or one was started for another job.
        Claimed => "claimed",
    }
}

impl JoinError {
    /// An error of these words. The other methods say who is at fault, and how.
    ///
    /// ```
    /// use comity::{Error, JoinCause, JoinError};
    ///
    /// let why = JoinError::new("rank 2 cannot be reached").of([2]).because(JoinCause::Unreachable).at("10.0.0.3:7000");
    /// assert_eq!((&why.ranks, why.address.as_deref()), (&vec![2], Some("10.0.0.3:7000")));
    /// assert_eq!(Error::from(why).to_string(), "rank 2 cannot be reached");
    /// ```
    pub fn new(words: impl Into<String>) -> Self {
        Self { ranks: Vec::new(), cause: JoinCause::Other, address: None, words: words.into() }
    }

    /// Say which ranks are at fault.
    #[must_use]
    pub fn of(mut self, ranks: impl IntoIterator<Item = usize>) -> Self {
        self.ranks = ranks.into_iter().collect();
        self
    }

    /// Say what became of them.
    #[must_use]
    pub fn because(mut self, cause: JoinCause) -> Self {
        self.cause = cause;
        self
    }

    /// Say which address was tried in vain.
    #[must_use]
    pub fn at(mut self, address: impl fmt::Display) -> Self {
        self.address = Some(address.to_string());
        self
    }

    /// The same about the same ranks, in other words.
    #[doc(hidden)]
    pub fn in_words(&self, words: String) -> Self {
        Self { words, ..self.clone() }
    }

    /// `rank` says this of why it gives up. Whoever is at fault by its words stays so; else it is that rank.
    #[doc(hidden)]
    pub fn said_by(&self, rank: usize, words: String) -> Self {
        let own = self.ranks.is_empty();
        let told = self.in_words(words);
        if own { told.of([rank]).because(JoinCause::GaveUp) } else { told }
    }
}

/// A rule that the caller broke. [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) carries it; no byte has moved, and the group goes on.
///
/// ```
/// use comity::{Error, ErrorKind, Group, Misuse};
///
/// let group = Group::single();
/// let e = group.broadcast(&mut [0f32; 4], 7).unwrap_err();
/// assert!(matches!(e.kind(), ErrorKind::Misuse { misuse: Misuse::Rank { rank: 7, size: 1, .. }, .. }));
/// group.barrier()?;
/// # Ok::<(), Error>(())
/// ```
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misuse {
    /// A buffer has the wrong number of elements.
    #[error("the {buffer} holds {got} elements, expected {expected}{why}")]
    Length {
        /// Name of the buffer: "source" or "destination".
        buffer: &'static str,
        /// Length that the rule asks.
        expected: usize,
        /// Length that was given.
        got: usize,
        /// The rule, as the rest of the sentence; may be empty.
        why: &'static str,
    },
    /// Two buffers of one call have different types.
    #[error("the source is {src} and the destination {dst}; they must be the same")]
    DTypes {
        /// Element type of the source.
        src: DType,
        /// Element type of the destination.
        dst: DType,
    },
    /// The reduction is not defined on this type.
    #[error("{reduce} is not defined on {dtype}")]
    Reduction {
        /// The reduction.
        reduce: ReduceOp,
        /// The type.
        dtype: DType,
    },
    /// No such rank.
    #[error("{what} {rank} is not in a group of {size} (ranks 0 to {})", .size - 1)]
    Rank {
        /// "root", "destination" or "source".
        what: &'static str,
        /// The rank asked for.
        rank: usize,
        /// The group's size.
        size: usize,
    },
    /// A list of members that no group can have.
    #[error(
        "the members must be ranks of a group of {size}, each once, and rank {rank}, which calls, among them"
    )]
    Members {
        /// This rank.
        rank: usize,
        /// The group's size.
        size: usize,
    },
    /// A list of counts has the wrong length.
    #[error("{got} counts were given for {size} ranks")]
    Counts {
        /// Entries given.
        got: usize,
        /// Ranks in the group.
        size: usize,
    },
    /// Sends and receives to oneself.
    #[error("rank {0} cannot {1} itself")]
    Oneself(usize, &'static str),
    /// A negative color.
    #[error("color {0} is negative; use a color >= 0, or none to stay out")]
    Color(i32),
    /// A tag outside the range for users.
    #[error("tag {0} is above {max}", max = crate::MAX_TAG)]
    Tag(u32),
    /// Two buffers of one call are in different places.
    #[error(
        "the source is in {0} and the destination in {1}; they must be in the same memory, on the same stream"
    )]
    Places(String, String),
    /// A call that has no smaller form of its elements.
    #[error("the wire {wire} is for {fits}, not for {got}; make this call without a wire")]
    Wire {
        /// The wire that the call asked for.
        wire: Wire,
        /// Calls that it is for.
        fits: &'static str,
        /// The call's operation, reduction, type or place.
        got: String,
    },
    /// Memory this backend cannot reach.
    #[error(
        "the buffer lives in {0}, which this group does not reach; copy it to host memory, or use the nccl backend and its device"
    )]
    Place(String),
}

/// Refusal of the operating system: the action, and the system's error as its [`source`](std::error::Error::source).
///
/// ```
/// use comity::OsError;
/// use std::io;
///
/// let e = OsError::new("starting a thread", io::Error::from(io::ErrorKind::WouldBlock));
/// assert_eq!((e.action(), e.kind()), ("starting a thread", io::ErrorKind::WouldBlock));
/// ```
#[derive(Clone, Debug)]
pub struct OsError {
    action: String,
    source: Arc<io::Error>,
    /// Remedy, as the rest of the sentence; mostly empty.
    advice: String,
}

impl OsError {
    /// Returns the refusal of `action`, such as "opening a socket".
    pub fn new(action: impl Into<String>, source: impl Into<io::Error>) -> Self {
        let source = source.into();
        let refused = |e: Errno| source.raw_os_error() == Some(e.raw_os_error());
        let advice = if refused(Errno::MFILE) {
            let most = getrlimit(Resource::Nofile).current;
            let most = most.map_or_else(String::new, |n| format!(" may have {n} and"));
            format!("; this process{most} needs more: raise `ulimit -n` where it is started")
        } else if refused(Errno::NFILE) {
            "; this host has too few for all its processes: raise fs.file-max, or end some".into()
        } else {
            String::new()
        };
        Self { action: action.into(), source: Arc::new(source), advice }
    }

    /// Returns the action that was refused.
    pub fn action(&self) -> &str {
        &self.action
    }

    /// Returns the kind of the system's error.
    pub fn kind(&self) -> io::ErrorKind {
        self.source.kind()
    }

    /// Returns the system's own error.
    pub fn io(&self) -> &io::Error {
        &self.source
    }
}

impl fmt::Display for OsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}{}", self.action, self.source, self.advice)
    }
}

impl error::Error for OsError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        Some(&*self.source)
    }
}

/// Equal actions, refused with equal words.
impl PartialEq for OsError {
    fn eq(&self, other: &Self) -> bool {
        self.kind() == other.kind() && self.to_string() == other.to_string()
    }
}

impl Eq for OsError {}

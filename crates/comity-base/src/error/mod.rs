//! The one error type, sorted by who is to blame.

mod kind;
mod particulars;
#[cfg(test)]
mod tests;

pub use kind::{ErrorKind, PART};
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

//! Refusals of the operating system.

use rustix::{
    io::Errno,
    process::{Resource, getrlimit},
};
use std::{error, fmt, io, sync::Arc};

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

//! The two streams that a process writes to.
use std::os::fd::BorrowedFd;

/// Stream of a rank, and of the launcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputStream {
    Out,
    Err,
}

impl OutputStream {
    pub(crate) const BOTH: [Self; 2] = [Self::Out, Self::Err];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Out => "standard output",
            Self::Err => "standard error",
        }
    }

    /// Returns whether it leads to a terminal on which lines can be written over.
    pub(crate) fn is_live(self) -> bool {
        rustix::termios::isatty(self.fd()) && std::env::var_os("TERM").is_none_or(|t| t != "dumb")
    }

    /// Returns whether text that is written there may have colours.
    pub(crate) fn has_colour(self) -> bool {
        self.is_live() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
    }

    /// The launcher's own.
    pub(super) fn fd(self) -> BorrowedFd<'static> {
        match self {
            Self::Out => rustix::stdio::stdout(),
            Self::Err => rustix::stdio::stderr(),
        }
    }
}

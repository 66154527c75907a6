//! End of a process, in a number and in words.
use serde::{Deserialize, Serialize};
use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// End of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ending {
    /// It exited with this code.
    Exit(i32),
    /// This signal killed it.
    Signal(i32),
}

impl Ending {
    /// The end that the system tells of by this number; none when the process was only stopped or continued.
    pub(crate) fn of_raw(status: i32) -> Option<Self> {
        let status = ExitStatus::from_raw(status);
        status.code().map(Self::Exit).or_else(|| status.signal().map(Self::Signal))
    }

    /// Returns whether the process did not exit with 0.
    pub(crate) fn is_failure(self) -> bool {
        self != Self::Exit(0)
    }

    /// Exit code as shells count it: 128 + signal.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Exit(code) => (code & 0xff) as u8,
            Self::Signal(signal) => (128 + (signal & 0x7f)) as u8,
        }
    }

    /// Returns whether this may well be a consequence of another rank's end: an error that was reported and given up on
    /// (Python exits, Rust and C abort, Swift ends by SIGILL or SIGTRAP), a write to a rank that is gone. Another crash or a kill is no consequence.
    pub(crate) fn may_be_a_consequence(self) -> bool {
        matches!(
            self,
            Self::Exit(_) | Self::Signal(libc::SIGABRT | libc::SIGILL | libc::SIGPIPE | libc::SIGTRAP)
        )
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exit(code) => write!(f, "exited with code {code}"),
            Self::Signal(signal) => write!(f, "was killed by signal {signal}{}", SignalName(*signal)),
        }
    }
}

/// " (SIGKILL)", or nothing for a signal without a name.
struct SignalName(i32);

impl fmt::Display for SignalName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match signal_hook::low_level::signal_name(self.0) {
            Some(name) => write!(f, " ({name})"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_codes() {
        assert_eq!(Ending::Exit(3).to_string(), "exited with code 3");
        assert_eq!(Ending::Exit(3).code(), 3);
        assert_eq!(Ending::Signal(9).to_string(), "was killed by signal 9 (SIGKILL)");
        assert_eq!(Ending::Signal(9).code(), 137);
        assert_eq!(Ending::Signal(50).to_string(), "was killed by signal 50");
        assert!(
            Ending::Signal(libc::SIGILL).may_be_a_consequence() && !Ending::Signal(9).may_be_a_consequence()
        );
        assert!(!Ending::Exit(0).is_failure() && Ending::Signal(15).is_failure());
    }
}

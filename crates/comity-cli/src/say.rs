//! End of a command: its output, the exit code, and what is said where it could not do what was asked.
use comity::{Error, ErrorKind as Kind};
use std::{
    fmt::Display,
    io::{self, ErrorKind, IsTerminal, Write},
};

/// Exit code for input that a user can correct.
pub(crate) const USAGE: u8 = 2;
/// Exit code where something is not as it should be, or the output was lost.
pub(crate) const FAULTY: u8 = 1;

/// Exit code of a command, or what kept it from its end.
pub(crate) type Exit = Result<u8, CommandError>;

/// Reason that kept a command from its end: the exit code, and its sentences.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CommandError {
    pub(crate) code: u8,
    pub(crate) problems: Vec<String>,
}

impl CommandError {
    /// A fault of the input.
    pub(crate) fn usage(problem: impl Display) -> Self {
        Self { code: USAGE, problems: vec![problem.to_string()] }
    }

    /// Any other fault.
    pub(crate) fn faulty(problem: impl Display) -> Self {
        Self { code: FAULTY, problems: vec![problem.to_string()] }
    }

    /// Fails with all these sentences, if there are any.
    pub(crate) fn if_any(code: u8, problems: Vec<String>) -> Result<(), Self> {
        if problems.is_empty() { Ok(()) } else { Err(Self { code, problems }) }
    }

    /// Says it; the exit code.
    pub(crate) fn tell(&self, command: &str) -> u8 {
        self.problems.iter().for_each(|problem| complain(command, problem));
        self.code
    }
}

impl From<Error> for CommandError {
    fn from(e: Error) -> Self {
        if matches!(e.kind(), Kind::Config(_)) { Self::usage(e) } else { Self::faulty(e) }
    }
}

/// A line of a command on standard error, written at once: `eprintln!` writes piece by piece, between which another rank's line may come.
pub(crate) fn complain(command: &str, words: impl Display) {
    // Who has no standard error any more is told nothing.
    let _ = io::stderr().write_all(format!("comity {command}: {words}\n").as_bytes());
}

/// Prints it; then `code` is the exit code. A reader that went away has seen enough.
pub(crate) fn say(text: impl AsRef<[u8]>, code: u8) -> Exit {
    // One piece, since ranks may share the output.
    let mut out = io::stdout().lock();
    taken(out.write_all(text.as_ref()).and_then(|()| out.flush())).map(|()| code)
}

/// Result of writing to standard output; a reader that went away is no fault.
pub(crate) fn taken(written: io::Result<()>) -> Result<(), CommandError> {
    match written {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(CommandError::faulty(format!(
            "standard output cannot be written, so what is printed is not whole: {e}"
        ))),
        _ => Ok(()),
    }
}

/// Returns whether standard output shows colours, or gets them all the same, and the user allows them: see <https://no-color.org>.
pub(crate) fn has_colour(forced: bool) -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
        && std::env::var_os("TERM").is_none_or(|t| t != "dumb")
        && (forced || io::stdout().is_terminal())
}

/// A rank's lines: it prints those that it can and goes on, for a lost output is no reason to leave the other ranks waiting.
#[derive(Debug)]
pub(crate) struct RankLines {
    speaks: bool,
    lost: Option<CommandError>,
}

impl RankLines {
    /// Makes one that prints nothing where `speaks` is false.
    pub(crate) fn new(speaks: bool) -> Self {
        Self { speaks, lost: None }
    }

    pub(crate) fn line(&mut self, line: &str) {
        if self.speaks && self.lost.is_none() {
            self.lost = say(format!("{line}\n"), 0).err();
        }
    }

    /// `code`, or the trouble of a line that was lost.
    pub(crate) fn end(self, code: u8) -> Exit {
        self.lost.map_or(Ok(code), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_went_away_is_no_fault_and_a_full_disk_is() {
        assert_eq!(taken(Err(ErrorKind::BrokenPipe.into())), Ok(()));
        let error = taken(Err(ErrorKind::StorageFull.into())).unwrap_err();
        let is_told = error.problems[0].starts_with("standard output cannot be written");
        assert!(error.code == FAULTY && is_told, "{error:?}");
    }
}

//! Output of a command on standard output, and the message when that is lost.
use std::io::{self, ErrorKind, Write};

/// The exit code where the output was lost.
const LOST: u8 = 1;

/// Prints it; the exit code is `code`, or 1 where it could not be written, which is told. A reader that went away has seen enough.
pub(crate) fn say(command: &str, text: impl AsRef<[u8]>, code: u8) -> u8 {
    match said(text.as_ref()) {
        Ok(()) => code,
        Err(why) => {
            let _ = writeln!(io::stderr(), "comity {command}: {why}");
            LOST
        }
    }
}

/// Prints it.
///
/// # Errors
/// It was lost, as on a full disk; the sentence says so.
pub(crate) fn said(text: &[u8]) -> Result<(), String> {
    // One piece, since ranks may share the output.
    let mut out = io::stdout().lock();
    taken(out.write_all(text).and_then(|()| out.flush()))
}

/// Result of writing to standard output; a reader that went away is no fault.
///
/// # Errors
/// It was lost.
pub(crate) fn taken(written: io::Result<()>) -> Result<(), String> {
    match written {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            Err(format!("standard output cannot be written, so what is printed is not whole: {e}"))
        }
        _ => Ok(()),
    }
}

/// A rank's lines: it prints those that it can and goes on, for a lost output is no reason to leave the other ranks waiting.
#[derive(Debug)]
pub(crate) struct RankLines {
    speaks: bool,
    lost: Option<String>,
}

impl RankLines {
    /// Makes one that prints nothing where `speaks` is false.
    pub(crate) fn new(speaks: bool) -> Self {
        Self { speaks, lost: None }
    }

    pub(crate) fn line(&mut self, line: &str) {
        if self.speaks && self.lost.is_none() {
            self.lost = said(format!("{line}\n").as_bytes()).err();
        }
    }

    /// The exit code: `code`, or 1 where a line was lost, which is told.
    pub(crate) fn end(self, command: &str, code: u8) -> u8 {
        let Some(why) = self.lost else { return code };
        let _ = writeln!(io::stderr(), "comity {command}: {why}");
        LOST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_went_away_is_no_fault_and_a_full_disk_is() {
        assert_eq!(taken(Err(ErrorKind::BrokenPipe.into())), Ok(()));
        let why = taken(Err(ErrorKind::StorageFull.into())).unwrap_err();
        assert!(why.starts_with("standard output cannot be written"), "{why}");
    }
}

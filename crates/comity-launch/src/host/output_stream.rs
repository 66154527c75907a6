//! The two streams that a process writes to.
use crate::host::own_output::Outputs;
use crate::host::rank_lines::Lines;
use std::fs::File;
use std::io::Write;
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

/// Stream of a rank on its way to the launcher's output and to its log.
#[derive(Debug)]
pub(crate) struct RankStream {
    pub(crate) stream: OutputStream,
    lines: Lines,
    log: Option<File>,
}

impl RankStream {
    pub(crate) fn new(
        stream: OutputStream,
        lines: impl Fn(OutputStream) -> Lines,
        log: Option<File>,
    ) -> Self {
        Self { stream, lines: lines(stream), log }
    }

    /// Shows and logs what the rank has written.
    pub(crate) fn wrote(&mut self, rank: usize, bytes: &[u8], output: &Outputs) {
        let mut show = Vec::new();
        self.lines.take(bytes, &mut show);
        output.put_of(rank, self.stream, &show);
        if let Some(line) = self.lines.progress() {
            output.progress(self.stream, &line);
        }
        if let Some(file) = &mut self.log
            && let Err(e) = file.write_all(bytes)
        {
            self.log = None;
            let name = self.stream.name();
            output.say(&format!("rank {rank}: its {name} is no longer written to --log-dir: {e}"));
        }
    }

    /// Shows what is left of its last line.
    pub(crate) fn finish(&mut self, rank: usize, output: &Outputs) {
        let mut show = Vec::new();
        self.lines.finish(&mut show);
        output.put_of(rank, self.stream, &show);
    }
}

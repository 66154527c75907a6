//! Output of the ranks on its way out: while they run, and the rest when they have ended.
use super::{LEFT_OPEN, Supervisor};
use crate::launch::shutdown::StopReason;
use std::time::{Duration, Instant};

/// Time for which the reader of the output may do nothing when the job was ended from outside.
const READER: Duration = Duration::from_secs(2);

impl Supervisor {
    pub(super) fn check_outputs(&mut self) {
        self.output.drain();
        while let Some((stream, error)) = self.output.failure() {
            // The logs still have a reader.
            if self.job.logs.is_none() && self.unread.is_none() {
                self.unread = Some((stream, error));
                self.stop(StopReason::Unread);
            }
        }
    }

    pub(super) fn read(&mut self, rank: usize, pipe: usize) {
        let number = self.job.first + rank;
        let Some(pipe) = self.ranks.get_mut(rank).and_then(|r| r.pipes.get_mut(pipe)) else { return };
        let mut show = Vec::new();
        let (logged, raw) = pipe.read(&mut self.buffer, &mut show);
        self.output.put_of(number, pipe.stream, &show);
        if let Some(line) = pipe.progress() {
            self.output.progress(pipe.stream, &line);
        }
        self.journal.wrote(number, pipe.stream, &self.buffer[..raw]);
        if let Err(e) = logged {
            let name = pipe.stream.name();
            self.output.say(&format!("rank {number}: its {name} is no longer written to --log-dir: {e}"));
        }
    }

    /// Reads what the ranks have written before they ended.
    pub(super) fn drain(&mut self) {
        let since = Instant::now();
        self.flush(|supervisor| {
            let open = supervisor.ranks.iter().flat_map(|r| &r.pipes).any(|p| p.fd.is_some());
            // Some other process may have been handed a pipe; then it never ends.
            open && (supervisor.output.is_pending() || since.elapsed() < LEFT_OPEN)
        });
        for (rank, number) in self.ranks.iter_mut().zip(self.job.first..) {
            for pipe in &mut rank.pipes {
                let mut show = Vec::new();
                pipe.close(&mut show);
                self.output.put_of(number, pipe.stream, &show);
            }
        }
    }

    /// Goes on while `more` says so. A reader that takes nothing is waited for, unless the job was ended from outside.
    pub(super) fn flush(&mut self, more: impl Fn(&Self) -> bool) {
        let mut written = self.output.written();
        let mut since = Instant::now();
        while more(self) {
            self.turn(Some(Instant::now() + Duration::from_millis(100)));
            if written != self.output.written() || !self.output.is_pending() {
                (written, since) = (self.output.written(), Instant::now());
            }
            let patience = match self.shutdown.cause() {
                None | Some(StopReason::Failed { .. } | StopReason::Missed { .. }) => continue,
                Some(StopReason::Orphaned) => READER / 10,
                Some(_) => READER,
            };
            if since.elapsed() >= patience {
                return;
            }
        }
    }
}

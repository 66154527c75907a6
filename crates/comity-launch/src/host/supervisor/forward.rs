//! Output of the ranks on its way out: while they run, and the rest when they have ended.
use super::Supervisor;
use crate::host::output::unread;
use crate::machine::Event;

impl Supervisor {
    pub(super) fn check_outputs(&mut self) {
        self.output.drain();
        while let Some((stream, error)) = self.output.failure() {
            // The logs still have a reader.
            if self.job.logs.is_none() {
                self.hear(Event::Unread { problem: unread(stream, error) });
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

    /// Gives up on what ranks may still write.
    pub(super) fn close_pipes(&mut self) {
        for (rank, number) in self.ranks.iter_mut().zip(self.job.first..) {
            for pipe in &mut rank.pipes {
                let mut show = Vec::new();
                pipe.close(&mut show);
                self.output.put_of(number, pipe.stream, &show);
            }
        }
    }

    /// Tells the machine how far the output has come.
    pub(super) fn tell_output(&mut self) {
        let open = self.ranks.iter().flat_map(|r| &r.pipes).any(|p| p.fd.is_some());
        let pending = self.output.is_pending();
        let written = self.output.written();
        self.hear(Event::Output { open, pending, written });
    }
}

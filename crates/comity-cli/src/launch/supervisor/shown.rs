//! View of the job from outside: its counters, and its ranks' calls just now.
use super::Supervisor;
use crate::launch::door::Door;
use crate::launch::metrics::Metrics;
use std::io;
use std::net::TcpListener;

impl Supervisor {
    /// Makes the ranks' sheets, and answers those who ask. Only who asked for --metrics is refused a job without them.
    pub(in crate::launch) fn show(&mut self, listener: Option<TcpListener>) -> io::Result<()> {
        let metrics = match Metrics::new(&self.job, &self.meeting.job) {
            Ok(metrics) => metrics,
            Err(e) if listener.is_some() => return Err(e),
            Err(e) => {
                self.cannot_show(&e);
                return Ok(());
            }
        };
        if let Some(listener) = listener {
            let at = listener.local_addr()?;
            metrics.serve(listener)?;
            self.output.say(&format!("metrics at http://{at}/metrics"));
        }
        // A launcher elsewhere, or those of other nodes, know the rest.
        let is_part = self.output.is_framed() || self.job.world > self.job.size;
        if let Some(launcher) = rustix::process::getppid() {
            match Door::open(launcher, metrics.view(&self.job, launcher, is_part)) {
                Ok(door) => self.door = Some(door),
                Err(e) => self.cannot_show(&e),
            }
        }
        self.metrics = Some(metrics);
        Ok(())
    }

    fn cannot_show(&self, e: &io::Error) {
        if self.job.verbose {
            self.output.say(&format!("`comity top` will not see this job: {e}"));
        }
    }
}

//! What the launcher says of a job that has ended: one line, and the exit code.
use super::Supervisor;
use crate::launch::REFUSED;
use crate::launch::ending::Ending;
use crate::launch::shutdown::StopReason;
use rustix::io::Errno;
use std::io;

impl Supervisor {
    pub(super) fn name(&self, number: usize) -> String {
        let pid = self.ranks.get(number).map_or(0, |r| r.pid.as_raw_pid());
        format!("rank {number} (pid {pid}, host {})", rustix::system::uname().nodename().to_string_lossy())
    }

    /// The last line and the exit code.
    pub(super) fn verdict(&self) -> (Option<String>, u8) {
        let Some(cause) = self.shutdown.cause() else { return (None, 0) };
        let (text, code) = match cause {
            StopReason::Failed { rank, ending } => {
                let why = self.memory.map(|m| format!(": {m}")).unwrap_or_default();
                (format!("{} {ending}{why}", self.name(*rank)), ending.code())
            }
            StopReason::Missed { rank, ended, by, ending } => {
                let (name, stopped) = (self.name(*rank), self.stopped.contains(rank));
                let text = match (ended, stopped) {
                    (true, _) => {
                        format!("{name} ended with code 0 while others still needed it; rank {by} {ending}")
                    }
                    (_, true) => {
                        format!("{name} fell silent: it was stopped; rank {by} gave it up and {ending}")
                    }
                    _ => format!("{name} was still running when rank {by} gave it up and {ending}"),
                };
                (text, ending.code())
            }
            StopReason::Interrupted { signal } => {
                let name = signal_hook::low_level::signal_name(*signal).unwrap_or("a signal");
                (format!("ended by {name}"), Ending::Signal(*signal).code())
            }
            StopReason::TimedOut => {
                let seconds = self.job.timeout.unwrap_or_default().as_secs_f64();
                (format!("ended because the job took longer than --timeout {seconds} s"), 124)
            }
            StopReason::Unread => match self.unread {
                Some((stream, Errno::PIPE)) => {
                    (format!("ended because nobody reads {} any more", stream.name()), 141)
                }
                Some((stream, error)) => {
                    let error = io::Error::from(error);
                    (format!("ended because {} cannot be written: {error}", stream.name()), REFUSED)
                }
                None => ("ended because its output cannot be written".into(), REFUSED),
            },
            StopReason::Orphaned => ("ended because the process that started it is gone".into(), 137),
            StopReason::Unstarted => {
                self.unstarted.clone().unwrap_or_else(|| ("not all ranks could be started".into(), REFUSED))
            }
        };
        (Some(text), code)
    }
}

//! Verdict of the launcher on a job that has ended: one line, and the exit code.
use super::REFUSED;
use super::ending::Ending;
use super::output::OutputStream;
use super::shutdown::StopReason;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;
use std::time::Duration;

/// Facts about a job that has ended.
pub(super) struct Findings<'a> {
    pub(super) cause: Option<&'a StopReason>,
    /// "rank 3 (pid 77, host c)"
    pub(super) name: &'a dyn Fn(usize) -> String,
    /// Returns whether the rank was stopped when it got the order to end.
    pub(super) was_stopped: &'a dyn Fn(usize) -> bool,
    /// Evidence that lack of memory ended the rank at fault.
    pub(super) memory: Option<&'a str>,
    pub(super) timeout: Option<Duration>,
    /// Why not all ranks could be started.
    pub(super) unstarted: Option<&'a (String, u8)>,
    /// Why the output cannot be written.
    pub(super) unread: Option<(OutputStream, Errno)>,
    /// Sentence on a host that was lost.
    pub(super) lost_host: &'a dyn Fn(usize) -> String,
}

/// Ranks that were killed because they had not ended this long after SIGTERM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CutOff {
    pub(super) ranks: Vec<usize>,
    pub(super) after: Duration,
}

/// The last line with the ranks that were cut off.
pub(super) fn with_cut_off<'a>(
    text: Option<String>,
    all: impl Iterator<Item = &'a CutOff>,
) -> Option<String> {
    let mut text = text?;
    for cut in all.filter(|cut| !cut.ranks.is_empty()) {
        let (ranks, were) = match cut.ranks[..] {
            [rank] => (format!("rank {rank}"), "was"),
            _ => (format!("ranks {}", ranges(&cut.ranks)), "were"),
        };
        let seconds = (cut.after.as_secs_f64() * 10.).round() / 10.;
        text.push_str(&format!(
            "; {ranks} had not ended {seconds} s after SIGTERM and {were} killed (--grace SECONDS gives more time)"
        ));
    }
    Some(text)
}

/// Ends of all ranks and the place of their output, for a job that failed: "how they ended: 1: exited with code 7; 0, 2-5: ...".
pub(super) fn summary(
    cause: Option<&StopReason>,
    endings: &[Option<Ending>],
    logs: Option<&Path>,
) -> Option<String> {
    let told = matches!(
        cause?,
        StopReason::Failed { .. }
            | StopReason::Missed { .. }
            | StopReason::HostLost { .. }
            | StopReason::TimedOut
    );
    if endings.len() < 2 || !told {
        return None;
    }
    let mut kinds: Vec<(Option<Ending>, Vec<usize>)> = Vec::new();
    for (rank, ending) in endings.iter().enumerate() {
        match kinds.iter_mut().find(|(kind, _)| kind == ending) {
            Some((_, ranks)) => ranks.push(rank),
            None => kinds.push((*ending, vec![rank])),
        }
    }
    let parts: Vec<_> = kinds
        .iter()
        .map(|(kind, ranks)| match kind {
            Some(ending) if ranks.len() > 1 => {
                format!("{} {}", ranges(ranks), ending.to_string().replacen("was ", "were ", 1))
            }
            Some(ending) => format!("{} {ending}", ranges(ranks)),
            None => format!("{} not known", ranges(ranks)),
        })
        .collect();
    let logs = logs.map(|dir| format!("; their output is in {}/rank-*.out and .err", dir.display()));
    Some(format!("how the ranks ended: {}{}", parts.join("; "), logs.unwrap_or_default()))
}

/// "0, 2-5"
fn ranges(ranks: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &rank in ranks {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => parts.push((rank, rank)),
        }
    }
    let word = |(a, b): &(usize, usize)| if a == b { a.to_string() } else { format!("{a}-{b}") };
    parts.iter().map(word).collect::<Vec<_>>().join(", ")
}

impl Findings<'_> {
    /// The last line and the exit code.
    pub(super) fn verdict(&self) -> (Option<String>, u8) {
        let Some(cause) = self.cause else { return (None, 0) };
        let (text, code) = match cause {
            StopReason::Failed { rank, ending } => {
                let why = self.memory.map(|m| format!(": {m}")).unwrap_or_default();
                (format!("{} {ending}{why}", (self.name)(*rank)), ending.code())
            }
            StopReason::Missed { rank, ended, by, ending } => {
                let code = if ending.is_failure() { ending.code() } else { REFUSED };
                (self.missed(*rank, *ended, *by, *ending), code)
            }
            StopReason::HostLost { host } => ((self.lost_host)(*host), REFUSED),
            StopReason::Interrupted { signal } => {
                let name = signal_hook::low_level::signal_name(*signal).unwrap_or("a signal");
                (format!("ended by {name}"), Ending::Signal(*signal).code())
            }
            StopReason::TimedOut => {
                let seconds = self.timeout.unwrap_or_default().as_secs_f64();
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
                self.unstarted.cloned().unwrap_or_else(|| ("not all ranks could be started".into(), REFUSED))
            }
        };
        (Some(text), code)
    }

    fn missed(&self, rank: usize, ended: bool, by: usize, ending: Ending) -> String {
        let name = (self.name)(rank);
        match (ended, (self.was_stopped)(rank)) {
            (true, _) => format!("{name} ended with code 0 while others still needed it; rank {by} {ending}"),
            (_, true) => format!("{name} fell silent: it was stopped; rank {by} gave it up and {ending}"),
            _ => format!("{name} was still running when rank {by} gave it up and {ending}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_names_each_kind_of_end_once() {
        let seven = Some(Ending::Exit(7));
        let killed = Some(Ending::Signal(15));
        let all = [killed, seven, killed, killed, None];
        assert_eq!(
            summary(Some(&StopReason::TimedOut), &all, Some(Path::new("/logs"))).unwrap(),
            "how the ranks ended: 0, 2-3 were killed by signal 15 (SIGTERM); 1 exited with code 7; 4 not known; their output is in /logs/rank-*.out and .err"
        );
        assert_eq!(summary(Some(&StopReason::TimedOut), &all[..1], None), None);
        assert_eq!(summary(Some(&StopReason::Interrupted { signal: 2 }), &all, None), None);
    }
}

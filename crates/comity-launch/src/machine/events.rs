//! Events that the machine hears, and actions that it asks for.
use super::{REFUSED, USAGE};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

/// News of the ranks, the hosts and the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The caller is ready to carry out actions.
    Begin,
    /// A host can run its part.
    HostReady { host: usize },
    /// A host cannot run its part.
    HostRefused { host: usize, problem: Problem },
    /// Hosts did not answer in time: the others are not waited for either.
    HostsLate { problems: Vec<Problem> },
    /// Answer to [`Action::Compare`].
    Compared { problems: Vec<Problem> },
    /// A rank could not be started.
    Unstarted {
        /// Its number, where those before it run and those behind it were not tried; else hosts will say what they ended.
        rank: Option<usize>,
        problem: Problem,
    },
    /// A rank's process ended. Send [`Event::Blames`] before it where the rank left such a word.
    Ended {
        rank: usize,
        ending: Ending,
        /// Evidence that lack of memory ended it, or nothing.
        memory: String,
    },
    /// The group has taken in a rank that was started again.
    Joined { rank: usize },
    /// So many processes of the group were not started by this launcher.
    Guests { number: usize },
    /// A rank names another one, whose failure it followed, or which it gave up.
    Blames { by: usize, rank: usize },
    /// A rank that still runs is stopped, as by SIGSTOP.
    Stopped { rank: usize },
    /// The launcher that this one obeys wants a rank started again.
    StartAgain { rank: usize },
    /// The connection to a host ended while ranks ran there.
    HostLost {
        host: usize,
        /// Time for which nothing had come from it.
        silent: Duration,
        why: String,
    },
    /// A host has ended all that ran there.
    HostDone { host: usize },
    /// The launcher of another node ends its ranks, or is not heard of any more.
    OtherEnds {
        /// Number of the node, `usize::MAX` where it is not known.
        node: usize,
    },
    /// Ranks that those of other nodes gave up before these ended well, each with the rank that gave it up.
    GivenUp(Vec<(usize, usize)>),
    /// The user, or the loss of the user's process, ends the job.
    Stop(StopReason),
    /// The launcher that this one obeys wants its ranks ended.
    Ordered(StopOrder),
    /// Answer to [`Action::LookForStrays`].
    Strays {
        /// Something that ranks started still runs, or a host has not cleared up.
        left: bool,
    },
    /// Answer to [`Action::LookAtOutput`].
    Output {
        /// A pipe of a rank is open.
        open: bool,
        /// Bytes wait for the reader.
        pending: bool,
        /// Bytes that the reader has taken so far.
        written: u64,
    },
    /// Answer to [`Action::LookAtOthers`].
    Others {
        /// All of them have said what they found, or are lost.
        heard: bool,
        /// At least a single other node ends its ranks.
        failing: bool,
    },
}

/// Sentence for people, and the exit code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) why: String,
    pub(crate) code: u8,
}

impl Problem {
    /// A fault of the input.
    pub(crate) fn usage(why: String) -> Self {
        Self { why, code: USAGE }
    }

    /// Tells the user; the exit code.
    pub(crate) fn say(&self) -> u8 {
        // The terminal may be gone.
        let _ = writeln!(io::stderr(), "comity launch: {}", self.why);
        self.code
    }

    /// A refusal of the machine.
    pub(crate) fn machine(why: String) -> Self {
        Self { why, code: REFUSED }
    }
}

/// Reason for which a job ends before all of its ranks exited with 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StopReason {
    Failed {
        rank: usize,
        ending: Ending,
    },
    /// Rank `by` failed because of `rank`, which did not fail itself: it ended with code 0, or ran on.
    Missed {
        rank: usize,
        /// It ended with 0 before the others were ended.
        ended: bool,
        /// The rank that missed it.
        by: usize,
        /// End of the rank that missed it.
        ending: Ending,
    },
    /// The connection to a host ended while ranks ran there.
    HostLost {
        host: usize,
    },
    Interrupted {
        signal: i32,
    },
    TimedOut,
    /// Nobody takes the output any more.
    Unread(Problem),
    /// The process that the user started is gone, or the launcher that this one obeys.
    Orphaned,
    Unstarted,
}

impl StopReason {
    /// Returns whether neither a rank nor a host failed: to start the job again would not be what is wanted.
    pub(crate) fn is_from_outside(&self) -> bool {
        matches!(self, Self::Interrupted { .. } | Self::TimedOut | Self::Unread(_) | Self::Orphaned)
    }

    pub(super) fn is_ctrl_c(&self) -> bool {
        matches!(self, Self::Interrupted { signal: libc::SIGINT })
    }
}

/// Order for every rank that still runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopOrder {
    /// SIGTERM, and SIGCONT for those that are stopped.
    Term,
    Kill,
    /// Some process does not die of SIGKILL: do not wait for it.
    Abandon,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Compare the hosts' programs, and answer with [`Event::Compared`].
    Compare,
    Start(Range<usize>),
    /// Say that the job goes on without a rank.
    SayLost {
        rank: usize,
        /// Number of its next start, from 1, and the time until then; none where it is not started again.
        again: Option<(u32, Duration)>,
    },
    /// Say why nothing runs ([`Machine::problems`](super::Machine::problems)).
    SayProblems,
    /// Say that the job goes on without a host.
    SayHostLost {
        host: usize,
        /// Time until it is tried again.
        pause: Duration,
    },
    /// Try a host again that was lost, and answer with [`Event::HostReady`] or [`Event::HostRefused`].
    TryHost {
        host: usize,
    },
    /// Find the ranks that are stopped, and answer with [`Event::Stopped`].
    FindStopped,
    /// Send this to every rank that still runs.
    End(StopOrder),
    /// No rank is waited for: answer with [`Event::Blames`] for each rank that left such a word.
    AskForCauses,
    /// Send this to the processes that ranks left running.
    EndStrays(StopOrder),
    /// Answer with [`Event::Strays`].
    LookForStrays,
    /// Answer with [`Event::Output`].
    LookAtOutput,
    /// Answer with [`Event::Others`].
    LookAtOthers,
    /// Give up on the pipes that are still open.
    CloseOutput,
    /// Tell the other nodes how the ranks here ended.
    TellFindings,
    SayVerdict,
}

/// End of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ending {
    Exit(i32),
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

//! What is done to the ranks, and when: the rules of ending a job, without a clock or a process in them.
use super::ending::Ending;
use std::time::{Duration, Instant};

/// How long the others may go on after a rank failed, so that they can report what they saw of it.
pub(super) const GRACE: Duration = Duration::from_secs(1);
/// How long a rank may take to end after SIGTERM.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);
/// The same when the launcher was killed: nothing may outlive it by 2 s.
const PATIENCE_ORPHANED: Duration = Duration::from_secs(1);
/// How long a process may take to vanish after SIGKILL before it is left behind (it hangs in the kernel).
const VANISH: Duration = Duration::from_secs(10);
/// A rank that crashed holds its connections until the kernel has taken it apart, so a peer may report the
/// loss and exit first. A crash seen this soon after such an exit is taken for its cause.
const CONSEQUENCE: Duration = Duration::from_millis(100);

/// SIGINT hurries a job that ends already, but not this soon: `timeout` and some shells send a signal to the
/// process and to its group, which is one wish in two signals.
const TWICE: Duration = Duration::from_millis(200);

/// Why a job ends before all of its ranks exited with 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StopReason {
    /// A rank ended with a failure (the first, by its index).
    Failed {
        rank: usize,
        ending: Ending,
    },
    /// Rank `by` failed because of `rank`, which did not fail itself: it ended with code 0, or ran on.
    Missed {
        rank: usize,
        /// It ended with 0 before the others were ended.
        ended: bool,
        by: usize,
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
    Unread,
    /// The process that the user started is gone.
    Orphaned,
    /// Not all ranks could be started.
    Unstarted,
}

impl StopReason {
    /// Neither a rank nor a host failed: to start the job again would not be what is wanted.
    pub(super) fn is_from_outside(&self) -> bool {
        matches!(self, Self::Interrupted { .. } | Self::TimedOut | Self::Unread | Self::Orphaned)
    }

    fn is_ctrl_c(&self) -> bool {
        matches!(self, Self::Interrupted { signal: libc::SIGINT })
    }
}

/// What is to be sent to every rank that still runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopOrder {
    Term,
    Kill,
    /// Some process does not die of SIGKILL: do not wait for it.
    Abandon,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    Grace { until: Instant },
    Ending { since: Instant, until: Instant },
    Killing { until: Instant },
    Abandoned,
}

#[derive(Debug)]
pub(super) struct Shutdown {
    size: usize,
    alive: usize,
    phase: Phase,
    timeout: Option<Instant>,
    cause: Option<StopReason>,
    failed_at: Option<Instant>,
    /// Failures before the others were ended: these say something about their rank.
    failures: Vec<(usize, Ending)>,
    /// Those that ended with 0 before the others were ended.
    well: Vec<usize>,
    /// How long ranks may take to end after SIGTERM when one of them or a host has failed.
    patience: Duration,
}

impl Shutdown {
    pub(super) fn new(size: usize, timeout: Option<Instant>) -> Self {
        Self {
            size,
            alive: size,
            phase: Phase::Running,
            timeout,
            cause: None,
            failed_at: None,
            failures: Vec::new(),
            well: Vec::new(),
            patience: PATIENCE,
        }
    }

    pub(super) fn cause(&self) -> Option<&StopReason> {
        self.cause.as_ref()
    }

    /// Follow what the ranks say of each other: one that failed because of another one is not the cause. Whoever crashed is
    /// no consequence. The first failure stays the cause where ranks name each other in a circle.
    pub(super) fn find_root_cause(&mut self, root_cause_of: impl Fn(usize) -> Option<usize>) {
        let Some(StopReason::Failed { rank, ending }) = &self.cause else { return };
        let (mut rank, mut ending) = (*rank, *ending);
        let mut passed = vec![rank];
        while ending.may_be_a_consequence()
            && let Some(next) = root_cause_of(rank).filter(|next| *next < self.size)
        {
            if passed.contains(&next) {
                return;
            }
            passed.push(next);
            let Some(&(_, theirs)) = self.failures.iter().find(|(r, _)| *r == next) else {
                // What it said itself after that may be a consequence of the others' ends.
                let ended = self.well.contains(&next);
                self.cause = Some(StopReason::Missed { rank: next, ended, by: rank, ending });
                return;
            };
            (rank, ending) = (next, theirs);
        }
        self.cause = Some(StopReason::Failed { rank, ending });
    }

    /// Whether the end of a rank still says something about it.
    pub(super) fn judges(&self) -> bool {
        matches!(self.phase, Phase::Running | Phase::Grace { .. })
    }

    /// No rank is left, or none is waited for.
    pub(super) fn over(&self) -> bool {
        self.alive == 0 || self.phase == Phase::Abandoned
    }

    pub(super) fn ended(&mut self, rank: usize, ending: Ending, now: Instant) {
        self.alive = self.alive.saturating_sub(1);
        if self.judges() {
            match ending.is_failure() {
                true => self.failures.push((rank, ending)),
                false => self.well.push(rank),
            }
        }
        if !ending.is_failure() {
            return;
        }
        match (self.phase, &self.cause) {
            (Phase::Running, _) => {
                self.cause = Some(StopReason::Failed { rank, ending });
                self.failed_at = Some(now);
                self.phase = Phase::Grace { until: now + GRACE };
            }
            (Phase::Grace { .. }, Some(StopReason::Failed { ending: first, .. }))
                if first.may_be_a_consequence()
                    && !ending.may_be_a_consequence()
                    && self.failed_at.is_some_and(|at| now.saturating_duration_since(at) <= CONSEQUENCE) =>
            {
                self.cause = Some(StopReason::Failed { rank, ending });
            }
            // From SIGTERM on, an end says nothing about its rank.
            _ => {}
        }
    }

    /// The connection to host `host` ended, where `ranks` were still running: as if they had ended.
    /// What it was `silent` before is time that the others have no more: nothing of the job may be left 5 s after a cable was cut.
    pub(super) fn host_lost(&mut self, host: usize, ranks: usize, now: Instant, silent: Duration) {
        self.alive = self.alive.saturating_sub(ranks);
        let first = match self.phase {
            Phase::Running => true,
            // Those who missed the host may have been quicker.
            Phase::Grace { .. } => {
                matches!(&self.cause, Some(StopReason::Failed { ending, .. }) if ending.may_be_a_consequence())
            }
            _ => false,
        };
        if first {
            self.cause = Some(StopReason::HostLost { host });
        }
        if self.phase == Phase::Running {
            self.failed_at = Some(now);
            let grace = GRACE.saturating_sub(silent);
            self.patience = (GRACE + PATIENCE).saturating_sub(silent + grace).max(PATIENCE_ORPHANED);
            self.phase = Phase::Grace { until: now + grace };
        }
    }

    /// The job is to end now for `cause`, unless it already ends for another; asking again hurries it.
    pub(super) fn stop(&mut self, cause: StopReason, now: Instant) -> Option<StopOrder> {
        let patience = if cause == StopReason::Orphaned { PATIENCE_ORPHANED } else { PATIENCE };
        match self.phase {
            Phase::Running => {
                self.cause = Some(cause);
                self.phase = Phase::Ending { since: now, until: now + patience };
                Some(StopOrder::Term)
            }
            Phase::Grace { .. } => {
                self.phase = Phase::Ending { since: now, until: now + patience };
                Some(StopOrder::Term)
            }
            Phase::Ending { since, .. } if cause.is_ctrl_c() && now >= since + TWICE => Some(self.kill(now)),
            Phase::Ending { since, until } => {
                self.phase = Phase::Ending { since, until: until.min(now + patience) };
                None
            }
            Phase::Killing { .. } | Phase::Abandoned => None,
        }
    }

    /// What is due by now.
    pub(super) fn tick(&mut self, now: Instant) -> Option<StopOrder> {
        match self.phase {
            Phase::Running if self.timeout.is_some_and(|t| now >= t) => self.stop(StopReason::TimedOut, now),
            Phase::Grace { until } if now >= until => {
                self.phase = Phase::Ending { since: now, until: now + self.patience };
                Some(StopOrder::Term)
            }
            Phase::Ending { until, .. } if now >= until => Some(self.kill(now)),
            Phase::Killing { until } if now >= until => {
                self.phase = Phase::Abandoned;
                Some(StopOrder::Abandon)
            }
            _ => None,
        }
    }

    /// When `tick` has something to do next.
    pub(super) fn next(&self) -> Option<Instant> {
        match self.phase {
            Phase::Running => self.timeout,
            Phase::Grace { until } | Phase::Ending { until, .. } | Phase::Killing { until } => Some(until),
            Phase::Abandoned => None,
        }
    }

    fn kill(&mut self, now: Instant) -> StopOrder {
        self.phase = Phase::Killing { until: now + VANISH };
        StopOrder::Kill
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INT: StopReason = StopReason::Interrupted { signal: 2 };

    fn failed(rank: usize, ending: Ending) -> StopReason {
        StopReason::Failed { rank, ending }
    }

    #[test]
    fn ranks_that_end_well_stop_nobody() {
        let now = Instant::now();
        let mut shutdown = Shutdown::new(2, None);
        shutdown.ended(0, Ending::Exit(0), now);
        assert!(!shutdown.over() && shutdown.tick(now + PATIENCE).is_none() && shutdown.next().is_none());
        shutdown.ended(1, Ending::Exit(0), now);
        assert!(shutdown.over() && shutdown.cause().is_none());
    }

    #[test]
    fn a_failure_gives_the_others_a_second_then_term_then_kill() {
        let now = Instant::now();
        let mut shutdown = Shutdown::new(3, None);
        shutdown.ended(2, Ending::Exit(3), now);
        assert_eq!(shutdown.tick(now), None);
        assert_eq!(shutdown.next(), Some(now + GRACE));
        shutdown.ended(0, Ending::Exit(1), now + GRACE / 2);
        assert_eq!(shutdown.tick(now + GRACE), Some(StopOrder::Term));
        assert_eq!(shutdown.tick(now + GRACE), None);
        assert_eq!(shutdown.tick(now + GRACE + PATIENCE), Some(StopOrder::Kill));
        shutdown.ended(1, Ending::Signal(9), now + GRACE + PATIENCE);
        assert!(shutdown.over());
        assert_eq!(shutdown.cause(), Some(&failed(2, Ending::Exit(3))));
    }

    #[test]
    fn a_crash_is_the_root_cause_of_its_consequence_and_only_then() {
        let now = Instant::now();
        let soon = now + CONSEQUENCE / 2;
        let mut shutdown = Shutdown::new(4, None);
        shutdown.ended(0, Ending::Exit(1), now);
        shutdown.ended(1, Ending::Signal(libc::SIGABRT), soon);
        shutdown.ended(2, Ending::Signal(9), soon);
        shutdown.ended(3, Ending::Signal(11), soon);
        assert_eq!(shutdown.cause(), Some(&failed(2, Ending::Signal(9))));

        let mut shutdown = Shutdown::new(2, None);
        shutdown.ended(0, Ending::Exit(1), now);
        shutdown.ended(1, Ending::Signal(9), now + CONSEQUENCE * 2);
        assert_eq!(shutdown.cause(), Some(&failed(0, Ending::Exit(1))));
    }

    #[test]
    fn what_ranks_say_of_each_other_finds_the_cause() {
        let now = Instant::now();
        let shutdown = || {
            let mut shutdown = Shutdown::new(4, None);
            shutdown.ended(0, Ending::Exit(1), now);
            shutdown.ended(1, Ending::Signal(libc::SIGABRT), now);
            shutdown.ended(2, Ending::Exit(37), now + CONSEQUENCE * 2);
            shutdown
        };
        let found = |root_causes: [Option<usize>; 4]| {
            let mut shutdown = shutdown();
            shutdown.find_root_cause(|r| root_causes[r]);
            shutdown.cause().cloned()
        };
        assert_eq!(found([None; 4]), Some(failed(0, Ending::Exit(1))));
        assert_eq!(found([Some(2), Some(2), None, None]), Some(failed(2, Ending::Exit(37))));
        assert_eq!(found([Some(1), None, Some(1), None]), Some(failed(1, Ending::Signal(libc::SIGABRT))));
        // A circle leaves it with the first, and so does the name of a rank that does not exist.
        assert_eq!(found([Some(2), None, Some(0), None]), Some(failed(0, Ending::Exit(1))));
        assert_eq!(found([Some(9), None, None, None]), Some(failed(0, Ending::Exit(1))));
    }

    #[test]
    fn one_that_did_not_fail_is_named_when_others_failed_for_it() {
        let now = Instant::now();
        let mut shutdown = Shutdown::new(4, None);
        shutdown.ended(2, Ending::Exit(0), now);
        shutdown.ended(0, Ending::Exit(1), now);
        shutdown.ended(1, Ending::Exit(5), now);
        let missed = |root_causes: [Option<usize>; 4]| {
            let mut shutdown = Shutdown {
                failures: shutdown.failures.clone(),
                well: shutdown.well.clone(),
                cause: shutdown.cause.clone(),
                ..Shutdown::new(4, None)
            };
            shutdown.find_root_cause(|r| root_causes[r]);
            shutdown.cause().cloned()
        };
        let by =
            |rank, ended, by, code| Some(StopReason::Missed { rank, ended, by, ending: Ending::Exit(code) });
        assert_eq!(missed([Some(2), Some(2), None, None]), by(2, true, 0, 1));
        assert_eq!(missed([Some(3), Some(3), None, None]), by(3, false, 0, 1));
        assert_eq!(missed([Some(1), Some(3), None, None]), by(3, false, 1, 5));
        // What a rank says after it was given up is not followed.
        assert_eq!(missed([Some(3), Some(3), None, Some(0)]), by(3, false, 0, 1));
    }

    #[test]
    fn a_second_interrupt_kills_and_no_later_end_is_the_cause() {
        let now = Instant::now();
        let mut shutdown = Shutdown::new(1, None);
        assert_eq!(shutdown.stop(INT, now), Some(StopOrder::Term));
        assert_eq!(shutdown.stop(INT, now + TWICE / 2), None);
        assert_eq!(shutdown.stop(StopReason::Interrupted { signal: libc::SIGHUP }, now + TWICE), None);
        assert_eq!(shutdown.stop(INT, now + TWICE), Some(StopOrder::Kill));
        assert_eq!(shutdown.stop(INT, now + TWICE), None);
        shutdown.ended(0, Ending::Signal(9), now);
        assert_eq!(shutdown.cause(), Some(&INT));
    }

    #[test]
    fn an_interrupt_during_the_grace_keeps_the_culprit() {
        let now = Instant::now();
        let mut shutdown = Shutdown::new(2, None);
        shutdown.ended(1, Ending::Exit(7), now);
        assert_eq!(shutdown.stop(INT, now), Some(StopOrder::Term));
        assert_eq!(shutdown.cause(), Some(&failed(1, Ending::Exit(7))));
    }

    #[test]
    fn who_was_silent_for_long_leaves_the_others_less_time() {
        let now = Instant::now();
        let killed_after = |silent: u64| {
            let mut shutdown = Shutdown::new(2, None);
            shutdown.host_lost(1, 1, now, Duration::from_secs(silent));
            assert_eq!(shutdown.cause(), Some(&StopReason::HostLost { host: 1 }));
            let term = shutdown.next().unwrap();
            assert_eq!(shutdown.tick(term), Some(StopOrder::Term));
            let kill = shutdown.next().unwrap();
            assert_eq!(shutdown.tick(kill), Some(StopOrder::Kill));
            (term - now, kill - now)
        };
        assert_eq!(killed_after(0), (GRACE, GRACE + PATIENCE));
        assert_eq!(killed_after(3), (Duration::ZERO, PATIENCE_ORPHANED));
    }

    #[test]
    fn an_orphaned_job_hurries() {
        let now = Instant::now();
        let mut shutdown = Shutdown::new(1, None);
        assert_eq!(shutdown.stop(INT, now), Some(StopOrder::Term));
        assert_eq!(shutdown.stop(StopReason::Orphaned, now), None);
        assert_eq!(shutdown.tick(now + PATIENCE_ORPHANED), Some(StopOrder::Kill));
    }

    #[test]
    fn time_runs_out_once_and_what_does_not_die_is_left() {
        let now = Instant::now();
        let limit = now + Duration::from_secs(60);
        let mut shutdown = Shutdown::new(1, Some(limit));
        assert_eq!(shutdown.next(), Some(limit));
        assert_eq!(shutdown.tick(limit), Some(StopOrder::Term));
        assert_eq!(shutdown.cause(), Some(&StopReason::TimedOut));
        assert_eq!(shutdown.tick(limit + PATIENCE), Some(StopOrder::Kill));
        assert_eq!(shutdown.tick(limit + PATIENCE + VANISH), Some(StopOrder::Abandon));
        assert!(shutdown.over());
    }
}

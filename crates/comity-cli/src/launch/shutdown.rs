//! Rules of ending a job, without a clock or a process in them: the signals that ranks get, and when.
use super::ending::Ending;
use std::time::{Duration, Instant};

/// Time for which the others may go on after a rank failed, so that they can report the failure.
pub(super) const GRACE: Duration = Duration::from_secs(1);
/// Time that a rank has to end after SIGTERM, unless `--grace` says otherwise.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);
/// The same when the launcher was killed: nothing may outlive it by 2 s.
const PATIENCE_ORPHANED: Duration = Duration::from_secs(1);
/// Time that a process has to vanish after SIGKILL before it is left behind (it hangs in the kernel).
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

/// Order for every rank that still runs.
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
    /// Ranks that ended with 0 before the others were ended.
    well: Vec<usize>,
    /// Time that ranks have to end after SIGTERM.
    patience: Duration,
    /// The same when one of them or a host has failed.
    patience_failed: Duration,
    /// Time that ranks had before they were killed, where some had not ended by then.
    cut_after: Option<Duration>,
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
            patience_failed: PATIENCE,
            cut_after: None,
        }
    }

    /// The same with as long a time to end after SIGTERM.
    pub(super) fn with_grace(self, grace: Duration) -> Self {
        Self { patience: grace, patience_failed: grace, ..self }
    }

    /// Time that ranks had to end after SIGTERM, if some were killed because they took longer.
    pub(super) fn cut_after(&self) -> Option<Duration> {
        self.cut_after
    }

    pub(super) fn cause(&self) -> Option<&StopReason> {
        self.cause.as_ref()
    }

    /// Follow what the ranks say of each other: one that failed because of another one is not the cause. Whoever crashed is
    /// no consequence. The first failure stays the cause where ranks name each other in a circle.
    pub(super) fn find_root_cause(&mut self, root_cause_of: impl Fn(usize) -> Option<usize>) {
        let Some(StopReason::Failed { rank, ending }) = &self.cause else { return };
        let mut rank = *rank;
        let mut ending = *ending;
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

    /// Returns whether the end of a rank still counts as its own.
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
    /// The time that it was `silent` before is lost to the others: nothing of the job may be left 5 s after a cable was cut.
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
            self.patience_failed = (GRACE + self.patience)
                .saturating_sub(silent + grace)
                .max(PATIENCE_ORPHANED.min(self.patience));
            self.phase = Phase::Grace { until: now + grace };
        }
    }

    /// The ranks that ended with 0, while nothing has gone wrong.
    pub(super) fn well(&self) -> &[usize] {
        if self.phase == Phase::Running { &self.well } else { &[] }
    }

    /// The first of `alive` and the rank that gave it up, if all of them were given up by ranks that ended with 0.
    pub(super) fn deserted(
        &self,
        mut alive: impl Iterator<Item = usize>,
        giver: impl Fn(usize) -> Option<usize>,
    ) -> Option<(usize, usize)> {
        let first = alive.next().filter(|_| self.phase == Phase::Running)?;
        let by = giver(first)?;
        alive.all(|rank| giver(rank).is_some()).then_some((first, by))
    }

    /// Rank `rank`, which rank `by` gave up, will not end by itself.
    pub(super) fn leave(&mut self, rank: usize, by: usize, now: Instant) {
        self.cause = Some(StopReason::Missed { rank, ended: false, by, ending: Ending::Exit(0) });
        self.phase = Phase::Grace { until: now + GRACE };
    }

    /// The job is to end now for `cause`, unless it already ends for another; asking again hurries it.
    pub(super) fn stop(&mut self, cause: StopReason, now: Instant) -> Option<StopOrder> {
        let patience = match cause {
            StopReason::Orphaned => PATIENCE_ORPHANED.min(self.patience),
            _ => self.patience,
        };
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

    /// Moves on to the phase that is due by now; returns its order.
    pub(super) fn tick(&mut self, now: Instant) -> Option<StopOrder> {
        match self.phase {
            Phase::Running if self.timeout.is_some_and(|t| now >= t) => self.stop(StopReason::TimedOut, now),
            Phase::Grace { until } if now >= until => {
                self.phase = Phase::Ending { since: now, until: now + self.patience_failed };
                Some(StopOrder::Term)
            }
            Phase::Ending { since, until } if now >= until => {
                self.cut_after = Some(until.saturating_duration_since(since));
                Some(self.kill(now))
            }
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
mod tests;

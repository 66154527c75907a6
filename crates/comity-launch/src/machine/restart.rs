//! Starting a whole job again: whether, when, and for how long hosts are waited for.
use super::{Machine, StopReason, USAGE};
use std::time::{Duration, Instant};

/// Between tries of a restart, and before one.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A pause that doubles from 1 s, before try `number`, from 1.
pub(crate) fn pause(number: u32) -> Duration {
    Duration::from_secs(1 << number.saturating_sub(1).min(5)).min(LONGEST_PAUSE)
}

/// The end of an attempt to run the job. The exit code alone does not say it: a rank may end with the code of bad input or of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttemptEnd {
    Ran,
    /// To start the job again would change nothing, or is not wanted.
    Final,
    /// Ranks ran before, and now not all hosts could run their part.
    NotBegun,
}

impl AttemptEnd {
    /// The end of an attempt, which had this exit code.
    pub(crate) fn of(machine: &Machine, code: u8) -> Self {
        let outside = machine.cause.as_ref().is_some_and(StopReason::is_from_outside);
        let unstarted = machine.unstarted.as_ref().is_some_and(|p| p.code == USAGE);
        let is_first = machine.plan.restart == 0;
        // Input that cannot be right the next time. A host that was there before may come back.
        let is_bad = is_first && code == USAGE && (!machine.begun || unstarted);
        match (outside || is_bad, machine.begun || is_first) {
            (true, _) => Self::Final,
            (false, true) => Self::Ran,
            (false, false) => Self::NotBegun,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextAttempt {
    None,
    /// Hosts were waited for as long as they are.
    GiveUp,
    /// Start it again, after a pause.
    Again {
        /// Number of the restart, from 1.
        number: u32,
        /// Time until then.
        pause: Duration,
        /// The restart of this number was tried already.
        is_tried: bool,
    },
}

/// Decides after each attempt whether the job is started again.
#[derive(Debug)]
pub(crate) struct Restarts {
    most: u32,
    wait_for_hosts: Duration,
    number: u32,
    /// Tries of this restart that did not come to run, and when the first of them ended.
    tries: u32,
    since: Option<Instant>,
}

impl Restarts {
    /// A job that is started again so many times at most, and waits so long for hosts.
    pub(crate) fn new(most: u32, wait_for_hosts: Duration) -> Self {
        Self { most, wait_for_hosts, number: 0, tries: 0, since: None }
    }

    /// Decides after an attempt that ended like this.
    pub(crate) fn after(&mut self, code: u8, end: AttemptEnd, now: Instant) -> NextAttempt {
        if code == 0 || end == AttemptEnd::Final {
            return NextAttempt::None;
        }
        if end == AttemptEnd::NotBegun {
            let since = *self.since.get_or_insert(now);
            let left = self.wait_for_hosts.saturating_sub(now.saturating_duration_since(since));
            if left.is_zero() {
                return NextAttempt::GiveUp;
            }
            self.tries += 1;
            return NextAttempt::Again {
                number: self.number,
                pause: pause(self.tries).min(left),
                is_tried: true,
            };
        }
        if self.number == self.most {
            return NextAttempt::None;
        }
        self.number += 1;
        self.tries = 0;
        self.since = None;
        NextAttempt::Again { number: self.number, pause: pause(self.number), is_tried: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit() {
        assert_eq!([1, 2, 3, 6, 40].map(|n| pause(n).as_secs()), [1, 2, 4, 30, 30]);
    }

    #[test]
    fn a_job_is_started_again_so_often_and_waits_for_hosts_so_long() {
        let now = Instant::now();
        let wait = Duration::from_secs(5);
        let mut restarts = Restarts::new(1, wait);
        let again = |number, seconds, is_tried| NextAttempt::Again {
            number,
            pause: Duration::from_secs(seconds),
            is_tried,
        };
        assert_eq!(restarts.after(137, AttemptEnd::Ran, now), again(1, 1, false));
        // The time counts from the first try that did not come to run.
        let late = now + Duration::from_secs(100);
        assert_eq!(restarts.after(2, AttemptEnd::NotBegun, late), again(1, 1, true));
        assert_eq!(restarts.after(2, AttemptEnd::NotBegun, late + wait / 5), again(1, 2, true));
        assert_eq!(restarts.after(2, AttemptEnd::NotBegun, late + wait / 5 * 4), again(1, 1, true));
        assert_eq!(restarts.after(2, AttemptEnd::NotBegun, late + wait), NextAttempt::GiveUp);
        assert_eq!(restarts.after(1, AttemptEnd::Ran, late), NextAttempt::None);
        for (code, end) in [(0, AttemptEnd::Ran), (130, AttemptEnd::Final)] {
            assert_eq!(Restarts::new(9, wait).after(code, end, now), NextAttempt::None);
        }
    }
}

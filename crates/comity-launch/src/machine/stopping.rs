//! The end of a job in its order: SIGTERM, SIGKILL, what ranks left running, their output, the last line.
use super::ends::may_start;
use super::{
    Action, Clearing, CutOff, Machine, OTHERS, PATIENCE_ORPHANED, Phase, ReaderProgress, Role, StopOrder,
    StopReason, TWICE, VANISH, verdict,
};
use std::time::{Duration, Instant};

/// Time between SIGTERM and SIGKILL for the processes that ranks left running.
const STRAYS: Duration = Duration::from_millis(500);
/// Time for ending these, and for which a pipe may stay open after that.
const LEFT_OPEN: Duration = Duration::from_secs(2);
/// Time that hosts have to end the processes that ranks left: the silence after which one is lost, and a second.
const FAREWELL: Duration = Duration::from_secs(4);
/// Time that `ssh` has to end after that.
const FAREWELL_SSH: Duration = Duration::from_secs(2);
/// Time for which the reader of the output may do nothing when the job was ended from outside.
const READER: Duration = Duration::from_secs(2);
/// Interval of looks at what is left.
const LOOK: Duration = Duration::from_millis(20);
/// The same at the output and at other nodes, beside what wakes the caller.
const TURN: Duration = Duration::from_millis(100);

impl Machine {
    /// When [`Machine::tick`] has something to do next.
    pub(crate) fn next(&self) -> Option<Instant> {
        let look = verdict::may_be_deserted(self).then(|| self.looked + self.plan.role.look());
        let phase = match self.phase {
            Phase::New | Phase::Over => None,
            Phase::Gathering => self.deadline,
            Phase::Running => {
                let ranks = self.ranks.iter().filter_map(|r| r.again);
                let hosts = self.lost_hosts.iter().filter_map(|h| h.again);
                ranks.chain(hosts).chain(self.deadline).min()
            }
            Phase::Grace { until } | Phase::Ending { until, .. } | Phase::Killing { until } => Some(until),
            Phase::Clearing { until, look, .. } => Some(until.min(look)),
            Phase::Draining(reading) | Phase::Saying(reading) => Some(reading.looked + TURN),
            Phase::Others { looked, .. } => Some(looked + TURN),
        };
        phase.into_iter().chain(look).min()
    }

    /// Moves on to the phase that is due by now.
    pub(crate) fn tick(&mut self, now: Instant) {
        self.start_again(now);
        match self.phase {
            Phase::Gathering | Phase::Running if self.deadline.is_some_and(|t| now >= t) => {
                self.stop(StopReason::TimedOut, now);
            }
            Phase::Grace { until } if now >= until => {
                self.term(now, self.patience_failed);
            }
            Phase::Ending { since, until } if now >= until => {
                let ranks = self.awaited().collect();
                self.cut_off = Some(CutOff { ranks, after: until.saturating_duration_since(since) });
                self.kill(now);
            }
            Phase::Killing { until } if now >= until => {
                self.actions.push(Action::End(StopOrder::Abandon));
                self.clear(now);
            }
            Phase::Clearing { until, look, .. } if now >= until.min(look) => {
                self.actions.push(Action::LookForStrays);
                if let Phase::Clearing { look, .. } = &mut self.phase {
                    *look = now + LOOK;
                }
            }
            Phase::Draining(_) | Phase::Saying(_) => self.actions.push(Action::LookAtOutput),
            Phase::Others { .. } => self.actions.push(Action::LookAtOthers),
            _ => {}
        }
        if verdict::may_be_deserted(self) && now >= self.looked + self.plan.role.look() {
            self.looked = now;
            if verdict::deserted(self).is_some() {
                self.find_stopped();
            }
        }
        self.settle(now);
    }

    /// The job is to end now for `cause`, unless it already ends for another; asking again hurries it.
    pub(super) fn stop(&mut self, cause: StopReason, now: Instant) {
        let patience = match cause {
            StopReason::Orphaned => PATIENCE_ORPHANED.min(self.plan.grace),
            _ => self.plan.grace,
        };
        match self.phase {
            Phase::New | Phase::Gathering => {
                self.cause = Some(cause);
                self.phase = Phase::Gathering;
                self.give_up_beginning(now);
            }
            Phase::Running => {
                self.cause = Some(cause);
                self.term(now, patience);
            }
            Phase::Grace { .. } => self.term(now, patience),
            Phase::Ending { since, .. } if cause.is_ctrl_c() && now >= since + TWICE => self.kill(now),
            Phase::Ending { since, until } => {
                self.phase = Phase::Ending { since, until: until.min(now + patience) };
            }
            Phase::Clearing { .. } | Phase::Draining(_) | Phase::Others { .. } | Phase::Saying(_) => {
                self.hurried |= cause.is_from_outside();
                // Of the last line, which is said already, nothing changes.
                if !matches!(self.phase, Phase::Saying(_)) {
                    self.cause.get_or_insert(cause);
                }
            }
            Phase::Killing { .. } | Phase::Over => {}
        }
    }

    /// Ends of ranks from now on are not their own doing.
    pub(super) fn end_judging(&mut self) {
        if self.judges() {
            self.phase = Phase::Killing { until: self.looked };
        }
    }

    /// Another launcher decides.
    pub(super) fn ordered(&mut self, order: StopOrder) {
        self.is_ordered = true;
        if order == StopOrder::Term {
            self.find_stopped();
        }
        self.actions.push(Action::End(order));
    }

    pub(super) fn term(&mut self, now: Instant, patience: Duration) {
        self.phase = Phase::Ending { since: now, until: now + patience };
        // From then on none is stopped any more.
        self.find_stopped();
        self.actions.push(Action::End(StopOrder::Term));
    }

    fn kill(&mut self, now: Instant) {
        self.phase = Phase::Killing { until: now + VANISH };
        self.actions.push(Action::End(StopOrder::Kill));
    }

    fn find_stopped(&mut self) {
        self.ranks.iter_mut().for_each(|r| r.stopped = false);
        self.actions.push(Action::FindStopped);
    }

    /// Goes on where nothing is left to wait for.
    pub(super) fn settle(&mut self, now: Instant) {
        let ranks = matches!(
            self.phase,
            Phase::Running | Phase::Grace { .. } | Phase::Ending { .. } | Phase::Killing { .. }
        );
        let starts = self.phase == Phase::Running && may_start(self);
        if ranks && !starts && !self.ranks.iter().any(|r| r.life.is_awaited()) {
            self.clear(now);
        }
    }

    /// No rank is left, or none is waited for.
    pub(super) fn clear(&mut self, now: Instant) {
        // Hosts without ranks wait for others to start.
        if self.plan.role == Role::Fleet
            && self.plan.elastic.is_some()
            && matches!(self.phase, Phase::Running | Phase::Grace { .. })
        {
            self.actions.push(Action::End(StopOrder::Term));
        }
        self.actions.push(Action::AskForCauses);
        let until = now + if self.plan.role == Role::Fleet { FAREWELL } else { LEFT_OPEN };
        self.phase = Phase::Clearing { step: Clearing::Look, until, look: now };
    }

    pub(super) fn strays(&mut self, left: bool, now: Instant) {
        let Phase::Clearing { step, until, look } = self.phase else { return };
        match self.plan.role {
            Role::Fleet => self.hosts_left(left, step, until, look, now),
            _ => self.processes_left(left, step, until, look, now),
        }
    }

    fn processes_left(&mut self, left: bool, step: Clearing, until: Instant, look: Instant, now: Instant) {
        let since = until.checked_sub(LEFT_OPEN).unwrap_or(now);
        let mut go = |step, order| {
            self.actions.push(Action::EndStrays(order));
            self.phase = Phase::Clearing { step, until, look };
        };
        match step {
            _ if !left || now >= until => self.drain(now),
            Clearing::Look => go(Clearing::Asked, StopOrder::Term),
            // Again and again: they may start others.
            _ if now.saturating_duration_since(since) >= STRAYS => go(Clearing::Killed, StopOrder::Kill),
            _ => {}
        }
    }

    /// Hosts first clear up, then the connections are closed, then `ssh` is killed.
    fn hosts_left(&mut self, left: bool, step: Clearing, until: Instant, look: Instant, now: Instant) {
        match step {
            Clearing::Killed if left && now < until => {}
            Clearing::Killed => {
                self.actions.push(Action::EndStrays(StopOrder::Abandon));
                self.drain(now);
            }
            _ if left && now < until => {}
            _ => {
                self.actions.push(Action::EndStrays(StopOrder::Kill));
                self.phase = Phase::Clearing { step: Clearing::Killed, until: now + FAREWELL_SSH, look };
            }
        }
    }

    fn drain(&mut self, now: Instant) {
        self.phase = Phase::Draining(ReaderProgress::begun(now));
        self.actions.push(Action::LookAtOutput);
    }

    pub(super) fn output(&mut self, open: bool, pending: bool, written: u64, now: Instant) {
        let (Phase::Draining(mut reading) | Phase::Saying(mut reading)) = self.phase else { return };
        reading.looked = now;
        if reading.written != Some(written) || !pending {
            reading.written = Some(written);
            reading.moved = now;
        }
        let is_patient = !self.hurried
            && matches!(self.cause, None | Some(StopReason::Failed { .. } | StopReason::Missed { .. }));
        let patience = if self.cause == Some(StopReason::Orphaned) { READER / 10 } else { READER };
        let is_given_up = !is_patient && now.saturating_duration_since(reading.moved) >= patience;
        match &mut self.phase {
            Phase::Draining(state) => {
                *state = reading;
                // Some other process may have been handed a pipe; then it never ends.
                let late = now.saturating_duration_since(reading.since) < LEFT_OPEN;
                if is_given_up || !(open && (pending || late)) {
                    self.actions.push(Action::CloseOutput);
                    self.ask_others(now);
                }
            }
            Phase::Saying(state) => {
                *state = reading;
                if is_given_up || !pending {
                    self.phase = Phase::Over;
                }
            }
            _ => {}
        }
    }

    fn ask_others(&mut self, now: Instant) {
        if self.plan.role == Role::Node {
            self.phase = Phase::Others { until: None, looked: now };
            self.actions.push(Action::LookAtOthers);
        } else {
            self.say(now);
        }
    }

    pub(super) fn others(&mut self, heard: bool, failing: bool, now: Instant) {
        let Phase::Others { mut until, .. } = self.phase else { return };
        let is_failing = self.is_failing();
        if self.told_failing != Some(is_failing) {
            self.told_failing = Some(is_failing);
            self.actions.push(Action::TellFindings);
        }
        if failing || is_failing {
            until = until.or_else(|| now.checked_add(OTHERS + self.plan.grace));
        }
        if heard || until.is_some_and(|u| now > u) {
            self.say(now);
        } else {
            self.phase = Phase::Others { until, looked: now };
        }
    }

    fn say(&mut self, now: Instant) {
        self.actions.extend([Action::SayVerdict, Action::LookAtOutput]);
        self.phase = Phase::Saying(ReaderProgress::begun(now));
    }
}

impl ReaderProgress {
    fn begun(now: Instant) -> Self {
        Self { since: now, looked: now, written: None, moved: now }
    }
}

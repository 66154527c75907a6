//! Ends of ranks and hosts: whether the job ends with them, or goes on without them.
//!
//! # Jobs that go on without ranks
//! ```text
//!                   fails, and enough are left              the pause is over
//!   member --------------------------------------> down ----------------------> joiner
//!     |  <---------------------------------------------------------------------    |
//!     | ends with 0                     the group has taken it in                  | fails: down again
//!     v
//!   done                 no member runs any more: joiners end, and those that are down stay down
//! ```
//!
//! | rule | reason |
//! |---|---|
//! | Members and ranks that are done count as left. Joiners do not | a joiner may wait for a group that nobody forms any more |
//! | Fewer are left than the terms ask for: the job ends like any other that failed | |
//! | Processes that others started are members too | they may carry the job while ranks of this launcher are down |
//! | From the first rank that is done on, nobody is started again | the job's work is done |
//! | Only words about the first failures name its cause | after that the group has other numbers than the launcher |
use super::{
    Action, CONSEQUENCE, Ending, GRACE, Life, Machine, PATIENCE_ORPHANED, Phase, RankState, Role, StopReason,
    restart, verdict,
};
use std::time::{Duration, Instant};

impl Machine {
    pub(super) fn rank_ended(&mut self, rank: usize, ending: Ending, memory: String, now: Instant) {
        let early = self.judges();
        let Some(state) = self.rank_mut(rank).filter(|r| r.life.is_awaited()) else { return };
        state.life = Life::Ended { ending, at: now, early };
        state.memory = memory;
        if !early {
            // From SIGTERM on, an end says nothing about its rank.
            return;
        }
        if let (Some(terms), Phase::Running) = (self.plan.elastic, self.phase) {
            return self.bear(rank, ending, terms, now);
        }
        if !ending.is_failure() {
            self.well.push(rank);
            return;
        }
        self.first_failure.get_or_insert(now);
        self.failures.push((rank, ending));
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
            _ => {}
        }
    }

    /// The connection to a host ended: nothing more is known of its ranks than that they are ended there.
    pub(super) fn host_lost(&mut self, host: usize, silent: Duration, why: String, now: Instant) {
        if let (Some(terms), Phase::Running) = (self.plan.elastic, self.phase) {
            return self.bear_host(host, silent, why, terms, now);
        }
        let mut any = false;
        for rank in self.ranks.iter_mut().filter(|r| r.host == host && r.life.is_awaited()) {
            rank.life = Life::Lost;
            any = true;
        }
        if any {
            self.losses.push((host, why));
            self.others_fail(host, silent, now);
        }
    }

    /// A host is gone, or its ranks end. The time that it was `silent` before is lost to the others: nothing of the job may be
    /// left 5 s after a cable was cut.
    pub(super) fn others_fail(&mut self, host: usize, silent: Duration, now: Instant) {
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
            self.patience_failed = (GRACE + self.plan.grace)
                .saturating_sub(silent + grace)
                .max(PATIENCE_ORPHANED.min(self.plan.grace));
            self.phase = Phase::Grace { until: now + grace };
        }
    }

    /// Ranks of a host that has ended all and still seem to run were never started.
    pub(super) fn host_done(&mut self, host: usize) {
        for rank in self.ranks.iter_mut().filter(|r| r.host == host && r.life.is_awaited()) {
            rank.life = Life::Unstarted;
        }
    }

    /// A rank was seen stopped. Where all that run are, and were given up by those that ended well, nobody waits for them.
    pub(super) fn is_stopped(&mut self, rank: usize, now: Instant) {
        if let Some(state) = self.rank_mut(rank).filter(|r| r.life.is_awaited()) {
            state.stopped = true;
        }
        if let Some((rank, by)) = verdict::deserted(self)
            && self.ranks.iter().filter(|r| r.life.is_awaited()).all(|r| r.stopped)
        {
            // The others have done the work without it.
            if self.plan.elastic.is_some() {
                return self.term(now, self.plan.grace);
            }
            self.cause = Some(StopReason::Missed { rank, ended: false, by, ending: Ending::Exit(0) });
            self.phase = Phase::Grace { until: now + GRACE };
        }
    }

    /// A rank of a job that goes on has ended.
    pub(super) fn bear(&mut self, rank: usize, ending: Ending, terms: ElasticTerms, now: Instant) {
        let was_in = self.rank(rank).is_some_and(|r| r.is_in);
        if !ending.is_failure() {
            // A joiner that came to nothing says nothing about the work.
            if was_in {
                self.well.push(rank);
                self.ranks.iter_mut().for_each(|r| r.again = None);
                self.lost_hosts.clear();
            }
            return self.wind_up(now);
        }
        self.first_failure.get_or_insert(now);
        self.failures.push((rank, ending));
        let left = left_now(self);
        if left < terms.fewest {
            return self.fail_for(rank, ending, now);
        }
        let failures = self.rank(rank).map_or(0, |r| r.failures);
        let again = (failures < terms.restarts && self.well.is_empty())
            .then(|| (failures + 1, restart::pause(failures + 1)));
        if let Some(state) = self.rank_mut(rank) {
            state.failures += 1;
            state.again = again.map(|(_, pause)| now + pause);
        }
        self.actions.push(Action::SayLost { rank, again });
        self.wind_up(now);
    }

    fn fail_for(&mut self, rank: usize, ending: Ending, now: Instant) {
        self.left = Some(left_now(self));
        self.cause = Some(StopReason::Failed { rank, ending });
        self.failed_at = Some(now);
        self.phase = Phase::Grace { until: now + GRACE };
    }

    /// End the wait of joiners when no member runs any more.
    fn wind_up(&mut self, now: Instant) {
        if self.ranks.iter().any(|r| r.is_member()) {
            return;
        }
        if !self.well.is_empty() {
            if self.ranks.iter().any(|r| r.life.is_awaited()) {
                self.term(now, self.plan.grace);
            }
            return;
        }
        // Others have the job, and this launcher has nobody left.
        let is_empty = !may_start(self) && !self.ranks.iter().any(|r| r.life.is_awaited());
        if let Some(&(rank, ending)) = self.failures.last().filter(|_| is_empty) {
            self.fail_for(rank, ending, now);
        }
    }

    /// Starts the ranks whose pause is over.
    pub(super) fn start_again(&mut self, now: Instant) {
        if self.phase != Phase::Running {
            return;
        }
        for (rank, state) in (self.plan.first..).zip(&mut self.ranks) {
            if state.again.take_if(|at| now >= *at).is_some() {
                state.begin_again();
                self.actions.push(Action::Start(rank..rank + 1));
            }
        }
        for lost in &mut self.lost_hosts {
            if lost.again.take_if(|at| now >= *at).is_some() {
                self.actions.push(Action::TryHost { host: lost.host });
            }
        }
    }

    /// The launcher that this one obeys starts a rank again.
    pub(super) fn start_rank(&mut self, rank: usize) {
        let may = self.phase == Phase::Running && !self.is_ordered;
        if let Some(state) = self.rank_mut(rank).filter(|r| may && !r.life.is_awaited()) {
            state.begin_again();
            self.actions.push(Action::Start(rank..rank + 1));
        }
    }

    /// A host of a job that goes on is lost: its ranks are down until it is back.
    pub(super) fn bear_host(
        &mut self,
        host: usize,
        silent: Duration,
        why: String,
        terms: ElasticTerms,
        now: Instant,
    ) {
        for rank in self.ranks.iter_mut().filter(|r| r.host == host) {
            if rank.life.is_awaited() || rank.again.is_some() {
                rank.life = Life::Lost;
                rank.again = None;
            }
        }
        self.lose_host(host, why);
        self.first_failure.get_or_insert(now);
        let left = left_now(self);
        if left < terms.fewest {
            self.left = Some(left);
            return self.others_fail(host, silent, now);
        }
        if self.well.is_empty() {
            self.lost_hosts.push(LostHost { host, tries: 0, again: None });
            self.try_later(host, now);
        }
        self.wind_up(now);
    }

    pub(super) fn lose_host(&mut self, host: usize, why: String) {
        self.losses.retain(|(h, _)| *h != host);
        self.losses.push((host, why));
    }

    pub(super) fn try_later(&mut self, host: usize, now: Instant) {
        let Some(lost) = self.lost_hosts.iter_mut().find(|lost| lost.host == host) else { return };
        lost.tries += 1;
        let pause = restart::pause(lost.tries);
        lost.again = Some(now + pause);
        self.actions.push(Action::SayHostLost { host, pause });
    }

    /// A host is back: all of its ranks are started.
    pub(super) fn host_back(&mut self, host: usize) {
        self.lost_hosts.retain(|lost| lost.host != host);
        let mine: Vec<usize> = (0..self.ranks.len()).filter(|n| self.ranks[*n].host == host).collect();
        if let (Phase::Running, Some(first), Some(last)) = (self.phase, mine.first(), mine.last()) {
            mine.iter().for_each(|n| self.ranks[*n].begin_again());
            self.actions.push(Action::Start(self.plan.first + first..self.plan.first + last + 1));
        }
    }

    /// The number of processes in the group that others started has changed.
    pub(super) fn have_guests(&mut self, number: usize, now: Instant) {
        self.guests = number;
        let Some(terms) = self.plan.elastic.filter(|_| self.phase == Phase::Running) else { return };
        let is_lost = !self.ranks.iter().any(|r| r.is_member()) && self.well.is_empty();
        if let Some(&(rank, ending)) = self.failures.last().filter(|_| is_lost && number < terms.fewest) {
            self.fail_for(rank, ending, now);
        }
    }

    pub(super) fn joined(&mut self, rank: usize) {
        if let Some(state) = self.rank_mut(rank).filter(|r| r.life == Life::Running) {
            state.is_in = true;
        }
    }
}

impl RankState {
    /// Another process of this rank begins, which is not in the group yet.
    fn begin_again(&mut self) {
        self.life = Life::Running;
        self.again = None;
        self.is_in = false;
        self.stopped = false;
        self.blames = None;
        self.memory.clear();
        self.restarts += 1;
    }
}

/// Terms on which a job goes on without ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ElasticTerms {
    /// Ranks that have to be left.
    pub(crate) fewest: usize,
    /// Number of times that each rank is started again at most.
    pub(crate) restarts: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct LostHost {
    pub(super) host: usize,
    /// Tries in vain since it was lost.
    pub(super) tries: u32,
    /// When it is tried again; none while it is tried.
    pub(super) again: Option<Instant>,
}

/// Members of the group, with those that have done their work.
pub(super) fn left_now(machine: &Machine) -> usize {
    machine.ranks.iter().filter(|r| r.is_member()).count() + machine.well.len() + machine.guests
}

/// Returns whether ranks are down that will be started again, or another launcher may want some.
pub(super) fn may_start(machine: &Machine) -> bool {
    let obeys = machine.plan.role == Role::Host && machine.plan.elastic.is_some() && !machine.is_ordered;
    obeys || !machine.lost_hosts.is_empty() || machine.ranks.iter().any(|r| r.again.is_some())
}

/// Returns whether the group may have formed again before the failure that ended the job.
pub(super) fn has_gone_on(machine: &Machine) -> bool {
    let times = machine.first_failure.zip(machine.failed_at).filter(|_| machine.plan.elastic.is_some());
    times.is_some_and(|(first, last)| last.saturating_duration_since(first) > GRACE)
}

/// End of the sentence on the failure that left too few ranks.
pub(super) fn too_few(machine: &Machine) -> String {
    let Some((left, terms)) = machine.left.zip(machine.plan.elastic).filter(|(l, t)| *l < t.fewest) else {
        return String::new();
    };
    let were = if left == 1 { "1 rank was" } else { &format!("{left} ranks were") };
    format!("; {were} left then, and --elastic asks for {} at least", terms.fewest)
}

/// End of the summary: the ranks that were started again.
pub(super) fn restarted(machine: &Machine) -> String {
    let again = (machine.plan.first..).zip(&machine.ranks).filter(|(_, r)| r.restarts > 0);
    let all: Vec<String> = again
        .map(|(rank, r)| {
            format!(
                "{rank} {}",
                if r.restarts == 1 { "once".into() } else { format!("{} times", r.restarts) }
            )
        })
        .collect();
    if all.is_empty() { String::new() } else { format!("; started again: {}", all.join(", ")) }
}

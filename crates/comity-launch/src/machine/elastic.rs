//! Jobs that go on without ranks.
//!
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
use super::{Action, Ending, GRACE, Life, Machine, Phase, StopReason, restart};
use std::time::Instant;

/// Terms on which a job goes on without ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElasticTerms {
    /// Ranks that have to be left.
    pub fewest: usize,
    /// Number of times that each rank is started again at most.
    pub restarts: u32,
}

impl Machine {
    /// A rank of a job that goes on has ended.
    pub(super) fn bear(&mut self, rank: usize, ending: Ending, terms: ElasticTerms, now: Instant) {
        let was_in = self.rank(rank).is_some_and(|r| r.is_in);
        if !ending.is_failure() {
            // A joiner that came to nothing says nothing about the work.
            if was_in {
                self.well.push(rank);
                self.ranks.iter_mut().for_each(|r| r.again = None);
            }
            return self.wind_up(now);
        }
        self.first_failure.get_or_insert(now);
        self.failures.push((rank, ending));
        let left = self.left_now();
        if left < terms.fewest {
            return self.fail_for(rank, ending, now);
        }
        let restarts = self.rank(rank).map_or(0, |r| r.restarts);
        let again = (restarts < terms.restarts && self.well.is_empty())
            .then(|| (restarts + 1, restart::pause(restarts + 1)));
        if let Some(state) = self.rank_mut(rank) {
            state.again = again.map(|(_, pause)| now + pause);
        }
        self.actions.push(Action::SayLost { rank, again });
        self.wind_up(now);
    }

    /// Members of the group, with those that have done their work.
    fn left_now(&self) -> usize {
        self.ranks.iter().filter(|r| r.is_member()).count() + self.well.len() + self.guests
    }

    fn fail_for(&mut self, rank: usize, ending: Ending, now: Instant) {
        self.left = Some(self.left_now());
        self.cause = Some(StopReason::Failed { rank, ending });
        self.failed_at = Some(now);
        self.phase = Phase::Grace { until: now + GRACE };
    }

    /// Where no member runs any more, joiners wait for nothing.
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
        let is_empty = !self.ranks.iter().any(|r| r.life.is_awaited() || r.again.is_some());
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
                state.life = Life::Running;
                state.is_in = false;
                state.stopped = false;
                state.blames = None;
                state.memory.clear();
                state.restarts += 1;
                self.actions.push(Action::Start(rank..rank + 1));
            }
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

    /// Number of times that a rank was started again.
    pub fn restarts_of(&self, rank: usize) -> u32 {
        self.rank(rank).map_or(0, |r| r.restarts)
    }

    /// Returns whether the group may have formed again before the failure that ended the job.
    pub(super) fn has_gone_on(&self) -> bool {
        let times = self.first_failure.zip(self.failed_at).filter(|_| self.plan.elastic.is_some());
        times.is_some_and(|(first, last)| last.saturating_duration_since(first) > GRACE)
    }

    /// End of the sentence on the failure that left too few ranks.
    pub(super) fn too_few(&self) -> String {
        let Some((left, terms)) = self.left.zip(self.plan.elastic).filter(|(l, t)| *l < t.fewest) else {
            return String::new();
        };
        let were = if left == 1 { "1 rank was" } else { &format!("{left} ranks were") };
        format!("; {were} left then, and --elastic asks for {} at least", terms.fewest)
    }

    /// End of the summary: the ranks that were started again.
    pub(super) fn restarted(&self) -> String {
        let again = (self.plan.first..).zip(&self.ranks).filter(|(_, r)| r.restarts > 0);
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
}

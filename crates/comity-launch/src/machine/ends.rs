//! Ends of ranks and hosts, and whose fault they are.
use super::{CONSEQUENCE, Ending, GRACE, Life, Machine, PATIENCE_ORPHANED, Phase, Role, StopReason};
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
            return self.bear_host(host, (silent, why), terms, now);
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

    /// Cause of the job's end, by what the ranks say of each other: one that failed because of another one is not the cause. Whoever
    /// crashed is no consequence. The first failure stays the cause where ranks name each other in a circle.
    pub fn root_cause(&self) -> Option<StopReason> {
        let found = self.blamed().ok().or_else(|| self.cause.clone());
        match found {
            // Those who missed it were right, and the host is why.
            Some(StopReason::Missed { rank, .. })
                if self.rank(rank).is_some_and(|r| r.life == Life::Lost) =>
            {
                self.rank(rank).map(|r| StopReason::HostLost { host: r.host })
            }
            found => found,
        }
    }

    /// The cause by the ranks' words, or the ranks that name each other in a circle; none where nobody was named.
    pub(super) fn blamed(&self) -> Result<StopReason, Vec<usize>> {
        let Some(StopReason::Failed { rank, ending }) = &self.cause else { return Err(Vec::new()) };
        if self.has_gone_on() {
            return Err(Vec::new());
        }
        let mut rank = *rank;
        let mut ending = *ending;
        let mut passed = vec![rank];
        while ending.may_be_a_consequence()
            && let Some(next) = self.rank(rank).and_then(|r| r.blames).filter(|n| *n < self.plan.world)
        {
            if let Some(at) = passed.iter().position(|rank| *rank == next) {
                let mut circle = passed.split_off(at);
                circle.sort_unstable();
                return Err(circle);
            }
            passed.push(next);
            let Some(&(_, theirs)) = self.failures.iter().find(|(r, _)| *r == next) else {
                // What it said itself after that may be a consequence of the others' ends.
                let ended = self.well.contains(&next);
                return Ok(StopReason::Missed { rank: next, ended, by: rank, ending });
            };
            (rank, ending) = (next, theirs);
        }
        Ok(StopReason::Failed { rank, ending })
    }

    /// A rank was seen stopped. Where all that run are, and were given up by those that ended well, nobody waits for them.
    pub(super) fn is_stopped(&mut self, rank: usize, now: Instant) {
        if let Some(state) = self.rank_mut(rank).filter(|r| r.life.is_awaited()) {
            state.stopped = true;
        }
        if let Some((rank, by)) = self.deserted()
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

    /// The first rank that still runs and the rank that gave it up, if all that run were given up by ranks that ended with 0.
    pub(super) fn deserted(&self) -> Option<(usize, usize)> {
        if !self.may_be_deserted() {
            return None;
        }
        if self.plan.elastic.is_some() {
            return self.awaited().next().zip(self.well.first().copied());
        }
        let here: Vec<_> = self.given_up_here().collect();
        let giver = |rank: usize| {
            let mut all = here.iter().chain(&self.given_up);
            all.find_map(|(named, by)| (*named == rank).then_some(*by))
        };
        let mut awaited = self.awaited();
        let first = awaited.next()?;
        let by = giver(first)?;
        awaited.all(|rank| giver(rank).is_some()).then_some((first, by))
    }

    pub(super) fn may_be_deserted(&self) -> bool {
        let some_left = !self.well.is_empty() || !self.given_up.is_empty();
        self.plan.role != Role::Host && self.phase == Phase::Running && some_left
    }
}

//! Ranks that are stopped, and that the others have given up and left: nobody waits for them.
use super::Supervisor;
use crate::launch::nodes::Nodes;
use crate::launch::tree;
use std::time::{Duration, Instant};

/// Interval of looks whether a rank that was given up is stopped.
const LOOK: Duration = Duration::from_millis(500);

impl Supervisor {
    /// Until when to wait for something to happen.
    pub(super) fn next(&self) -> Option<Instant> {
        let some_left = !self.shutdown.well().is_empty() || !self.given_up_elsewhere().is_empty();
        self.shutdown.next().into_iter().chain(some_left.then(|| self.looked + LOOK)).min()
    }

    /// Ends a job whose last ranks are stopped, and were given up by those that ended well.
    pub(super) fn leave_stopped(&mut self) {
        // A launcher elsewhere decides for its guards.
        if self.looked.elapsed() < LOOK || self.orders.is_some() {
            return;
        }
        self.looked = Instant::now();
        let Some((rank, by)) = self.deserted() else { return };
        let stopped = tree::stopped();
        if self.ranks.iter().filter(|r| r.alive).all(|r| stopped.contains(&r.pid)) {
            self.shutdown.leave(rank, by, Instant::now());
        }
    }

    /// A rank of this host (by its number here) that still runs and was given up, and a rank that gave it up, where none is left here that was not.
    fn deserted(&self) -> Option<(usize, usize)> {
        let first = self.job.first;
        let elsewhere = self.given_up_elsewhere();
        let named_here = self.given_up_here();
        let giver = |rank: usize| {
            let all = named_here.iter().chain(&elsewhere);
            all.copied().find_map(|(named, by)| (named == first + rank).then_some(by))
        };
        let alive = self.ranks.iter().enumerate().filter(|(_, r)| r.alive).map(|(n, _)| n);
        self.shutdown.deserted(alive, giver)
    }

    /// Ranks that were given up by others that ended well here, and by whom, by their numbers in the job.
    pub(in crate::launch) fn given_up_here(&self) -> Vec<(usize, usize)> {
        let well = self.shutdown.well().iter().map(|n| self.job.first + n);
        well.filter_map(|by| Some((self.meeting.root_cause_of(by)?, by))).collect()
    }

    fn given_up_elsewhere(&self) -> Vec<(usize, usize)> {
        self.nodes.as_ref().map(Nodes::given_up).unwrap_or_default()
    }
}

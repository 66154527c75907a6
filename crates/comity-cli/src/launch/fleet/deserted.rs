//! Ranks that are stopped, and that the others have given up and left: nobody waits for them.
use super::supervise::Fleet;
use crate::launch::wire::FleetOrder;
use std::time::{Duration, Instant};

/// Interval at which hosts are asked whether a rank that was given up is stopped.
const LOOK: Duration = Duration::from_secs(1);

impl Fleet {
    /// Ends a job whose last ranks are stopped, and were given up by those that ended well.
    pub(super) fn leave_stopped(&mut self) {
        if self.looked.elapsed() < LOOK {
            return;
        }
        self.looked = Instant::now();
        let alive = self.ranks.iter().enumerate().filter(|(_, r)| r.alive).map(|(n, _)| n);
        let told = |by: usize| self.ranks.get(by).and_then(|r| r.root_cause).or_else(|| self.store.culprit());
        let giver = |rank: usize| self.shutdown.well().iter().copied().find(|by| told(*by) == Some(rank));
        let Some((rank, by)) = self.shutdown.deserted(alive, giver) else { return };
        if self.ranks.iter().filter(|r| r.alive).all(|r| r.stopped) {
            self.shutdown.leave(rank, by, Instant::now());
            return;
        }
        self.ranks.iter_mut().for_each(|r| r.stopped = false);
        self.tell_running(&FleetOrder::FindStopped);
    }
}

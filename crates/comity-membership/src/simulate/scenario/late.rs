//! Delay of the news of a failure where ranks have no turns.

use super::{MS, PlantedFault, Scenario};

impl Scenario {
    /// Further delay because of slow control threads.
    pub(in crate::simulate) fn slowness(&self) -> u64 {
        self.faults.iter().map(|f| if let PlantedFault::Slow { lag, .. } = f { *lag } else { 0 }).sum()
    }

    /// Part of the time in which `rank` has no turns that counts as nobody's silence, at most. In a sparse group others judge on its behalf,
    /// and the time of all ranks counts.
    pub(in crate::simulate) fn lateness(&self, rank: usize) -> u64 {
        self.late(|r| self.sparse || r == rank)
    }

    /// Largest lateness of any rank.
    pub(super) fn most_lateness(&self) -> u64 {
        self.late(|_| true)
    }

    fn late(&self, counts: impl Fn(usize) -> bool) -> u64 {
        let late = self.faults.iter().map(|f| match f {
            PlantedFault::Slow { rank, at, to, lag } if counts(*rank) => to - at + lag,
            // For longer it sleeps, which gives the others all of their time anew.
            PlantedFault::Stop { rank, at, to: Some(to), .. }
                if counts(*rank) && to - at <= self.limit / 2 + self.slack() =>
            {
                to - at
            }
            _ => 0,
        });
        let beat = (self.limit / 10).min(500 * MS);
        // As late as this, each beat counts as late: of the time between two, so much.
        let all = if self.lag.1 > beat / 5 { self.limit * self.lag.1 / beat + self.lag.1 } else { 0 };
        (late.sum::<u64>() + all).min(3 * self.limit)
    }
}

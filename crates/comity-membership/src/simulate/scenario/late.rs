//! Delay of the news of a failure where ranks have no turns.

use super::{MS, PlantedFault, Scenario};

impl Scenario {
    /// Further delay because of slow control threads.
    pub(in crate::simulate) fn slowness(&self) -> u64 {
        self.faults.iter().map(|f| if let PlantedFault::Slow { lag, .. } = f { *lag } else { 0 }).sum()
    }

    /// Part of the time in which ranks have no turns that counts as nobody's silence, at most.
    pub(in crate::simulate) fn lateness(&self) -> u64 {
        let late = self.faults.iter().map(|f| match f {
            PlantedFault::Slow { at, to, lag, .. } => to - at + lag,
            // For longer it sleeps, which gives the others all of their time anew.
            PlantedFault::Stop { at, to: Some(to), .. } if to - at <= self.limit / 2 + self.slack() => {
                to - at
            }
            _ => 0,
        });
        // As late as this, all beats count as late.
        let all = self.lag.1 > (self.limit / 10).min(500 * MS) / 5;
        late.sum::<u64>().max(if all { u64::MAX } else { 0 }).min(3 * self.limit)
    }
}

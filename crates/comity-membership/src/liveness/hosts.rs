//! Other hosts on which nobody had a turn for long, as far as one can hear.
//!
//! ```text
//!   rank 4 of host b:  beat . . . . . . . beat        5 of the limit's 8 parts
//!   rank 5 of host b:       beat . . . . . . . .      so long it may have had no turn either
//!   host b was late:        |-------------|
//! ```
//! Times that overlap count once.

use std::time::{Duration, Instant};

/// Hosts of the ranks, and for how long the ranks of each had no turn.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    of: Vec<Option<usize>>,
    /// For how long in all, and until when that is counted.
    late: Vec<(Duration, Option<Instant>)>,
}

impl Hosts {
    pub(super) fn new(of: Vec<Option<usize>>) -> Self {
        let most = of.iter().flatten().max().map_or(0, |host| host + 1);
        Self { of, late: vec![(Duration::ZERO, None); most] }
    }

    /// For how long in all the ranks of the host of `rank` had no turn.
    pub(super) fn late(&self, rank: usize) -> Duration {
        let host = self.of.get(rank).copied().flatten();
        host.and_then(|host| self.late.get(host)).map_or(Duration::ZERO, |(late, _)| *late)
    }

    /// `rank` is heard again, after `gap`.
    pub(super) fn speaks_again(&mut self, rank: usize, gap: Duration, now: Instant) {
        let host = self.of.get(rank).copied().flatten();
        let Some((late, until)) = host.and_then(|host| self.late.get_mut(host)) else { return };
        let counted = until.replace(now).map_or(gap, |until| now.saturating_duration_since(until));
        *late += gap.min(counted);
    }
}

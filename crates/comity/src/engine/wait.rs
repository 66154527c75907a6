//! How a rank waits: spin, then yield, then park.
//!
//! Waking a sleeping core costs some 20 us, so a rank first spins for about that long; then it yields, so
//! that ranks which share a core with it get on; then it parks in `poll` and costs nothing. Where
//! more ranks live on a host than it has cores, spinning only keeps the others from running: it is left out.

use std::time::{Duration, Instant};

/// How long each stage lasts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Spin this long, in looks without a clock.
    pub(crate) spins: u32,
    /// Then yield until this long after the first look at the clock.
    pub(crate) yields: Duration,
}

impl Patience {
    /// For a host that runs `ranks` of the group on `cores`.
    pub(crate) fn new(ranks: usize, cores: usize) -> Self {
        if ranks > cores {
            Self { spins: 0, yields: Duration::from_millis(2) }
        } else {
            Self { spins: 2000, yields: Duration::from_micros(300) }
        }
    }
}

/// What to do after a look that found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Look again.
    Spin,
    /// Let others run, look again.
    Yield,
    /// Sleep until woken.
    Park,
}

/// One call's waiting.
#[derive(Debug)]
pub(crate) struct Wait {
    patience: Patience,
    limit: Duration,
    looks: u32,
    since: Option<Instant>,
    /// When the call gives up; known from the first look at the clock.
    until: Option<Instant>,
}

impl Wait {
    /// A call that may take `limit`. The clock is not read before spinning has failed.
    pub(crate) fn new(patience: Patience, limit: Duration) -> Self {
        Self { patience, limit, looks: 0, since: None, until: None }
    }

    /// Something moved.
    #[inline]
    pub(crate) fn reset(&mut self) {
        self.looks = 0;
        self.since = None;
    }

    /// Nothing moved.
    #[inline]
    pub(crate) fn next(&mut self) -> Stage {
        self.looks += 1;
        if self.looks <= self.patience.spins {
            return Stage::Spin;
        }
        let now = Instant::now();
        let since = *self.since.get_or_insert(now);
        self.until.get_or_insert_with(|| now + self.limit);
        if now - since < self.patience.yields { Stage::Yield } else { Stage::Park }
    }

    /// Time left, or `None` when the call must give up.
    pub(crate) fn left(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let until = *self.until.get_or_insert_with(|| now + self.limit);
        until.checked_duration_since(now).filter(|d| !d.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spins_then_yields_then_parks() {
        let mut w =
            Wait::new(Patience { spins: 2, yields: Duration::from_millis(5) }, Duration::from_secs(1));
        assert_eq!([w.next(), w.next(), w.next()], [Stage::Spin, Stage::Spin, Stage::Yield]);
        std::thread::sleep(Duration::from_millis(6));
        assert_eq!(w.next(), Stage::Park);
        w.reset();
        assert_eq!(w.next(), Stage::Spin);
    }

    #[test]
    fn ends_at_the_limit_whatever_moves() {
        let mut w = Wait::new(Patience { spins: 0, yields: Duration::ZERO }, Duration::from_millis(5));
        assert!(w.left().is_some());
        w.reset();
        std::thread::sleep(Duration::from_millis(6));
        assert_eq!(w.left(), None);
    }

    #[test]
    fn crowded_hosts_do_not_spin() {
        assert_eq!(Patience::new(4, 2).spins, 0);
        assert!(Patience::new(2, 2).spins > 0);
    }
}

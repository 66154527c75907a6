//! A rank as it was heard.

use std::time::{Duration, Instant};

/// Multiple of the limit on silence within which a connection carries something again that was cut for less than that limit. TCP sends again
/// after a time that grows with each round trip it has seen, also with one that a cut of before made long, and doubles at each try: the first
/// after `r`, the next after `3 r`. If the first comes just before the cable is back, the next comes at thrice that time.
pub const RESENT: u32 = 3;

/// Longest interval at which a silent rank is asked.
const FASTEST_ASK: Duration = Duration::from_millis(250);

/// Most limits of this process's lateness that are not counted as another's silence.
const MOST_LATE: u32 = 3;

#[derive(Debug)]
pub(super) struct Pulse {
    pub(super) heard: Instant,
    /// By how much all beats of this process had been late then.
    pub(super) late: Duration,
    /// On its own connection.
    pub(super) carried: Instant,
    /// When it was last to be asked.
    pub(super) asked: Option<Instant>,
    /// When its own connection spoke again after a suspicion: what goes there may still wait to be sent again.
    pub(super) doubt: Option<Instant>,
    /// Progress of its engines by its last beat.
    pub(super) progress: Option<u64>,
    pub(super) suspect: bool,
    /// Its time was extended because this process slept.
    pub(super) extended: bool,
}

impl Pulse {
    pub(super) fn new(now: Instant, late: Duration) -> Self {
        Self {
            heard: now,
            late,
            carried: now,
            asked: None,
            doubt: None,
            progress: None,
            suspect: false,
            extended: false,
        }
    }

    /// It was heard now, this process's beats having been late by `late` in all.
    pub(super) fn is_heard(&mut self, now: Instant, late: Duration) {
        self.heard = self.heard.max(now);
        self.late = late;
    }

    /// For how long it has been silent, as far as this process had turns to hear it.
    pub(super) fn silence(&self, limit: Duration, late: Duration, heard_until: Instant) -> Duration {
        heard_until.saturating_duration_since(self.heard).saturating_sub(self.missed(limit, late))
    }

    /// For how long its own connection has carried nothing, as far as this process had turns to hear it.
    pub(super) fn stands(&self, limit: Duration, late: Duration, heard_until: Instant) -> Duration {
        heard_until.saturating_duration_since(self.carried).saturating_sub(self.missed(limit, late))
    }

    /// When to look at it at the latest: it may be suspect then, or over, or is to be asked. A question that went out somewhat early puts off no
    /// suspicion.
    pub(super) fn due(&self, limit: Duration, late: Duration) -> Instant {
        let silent = if self.suspect { limit } else { suspicion(limit) };
        let judged = (self.heard + silent).min(self.carried + limit * RESENT);
        (judged + self.missed(limit, late)).min(self.asks(limit))
    }

    /// For how long since it was heard this process had no turn, its beats being late by `late` in all.
    fn missed(&self, limit: Duration, late: Duration) -> Duration {
        late.saturating_sub(self.late).min(limit * MOST_LATE)
    }

    /// When to ask it next whether it lives. It is asked while it is silent, and some times afterwards, so that it knows that this process lives.
    pub(super) fn asks(&self, limit: Duration) -> Instant {
        let silent = self.carried + suspicion(limit);
        let silent = self.asked.map_or(silent, |at| silent.max(at + spacing(limit)));
        let doubt = self.doubt.map(|since| {
            let before = self.asked.filter(|at| *at >= since);
            (since, before.map_or(since, |at| at + limit / 2))
        });
        doubt.filter(|(since, at)| *at < *since + limit * RESENT).map_or(silent, |(_, at)| at.min(silent))
    }
}

/// Interval at which a silent rank is asked: half of that at which it should have been heard, for each question is answered at once or never.
pub(super) fn spacing(limit: Duration) -> Duration {
    (limit / 20).min(FASTEST_ASK)
}

/// After what silence a peer is suspect.
pub(super) fn suspicion(limit: Duration) -> Duration {
    limit / 5
}

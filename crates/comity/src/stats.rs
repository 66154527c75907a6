//! Counters of a group, always on.

use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

/// What a group has done on this rank so far.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Calls that succeeded.
    pub calls: u64,
    /// Calls that failed.
    pub errors: u64,
    /// Payload bytes sent to other ranks.
    pub bytes_sent: u64,
    /// Time asleep, waiting for other ranks (spinning and yielding not counted).
    pub parked: Duration,
    /// How often a member was silent for a fifth of the limit of [`Detection`](crate::Detection).
    pub suspicions: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) calls: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) sent: AtomicU64,
    pub(crate) parked_ns: AtomicU64,
    /// Whom the call under way waited for when it first slept; the recorder clears it.
    pub(crate) parked_on: AtomicU32,
    pub(crate) suspicions: AtomicU64,
}

impl Counters {
    /// Only the call under way writes: no locked addition is needed.
    #[inline]
    pub(crate) fn add_sent(&self, n: u64) {
        self.sent.store(self.sent.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Stats {
        Stats {
            calls: self.calls.load(Ordering::Relaxed),
            errors: self.errors.load(Ordering::Relaxed),
            bytes_sent: self.sent.load(Ordering::Relaxed),
            parked: Duration::from_nanos(self.parked_ns.load(Ordering::Relaxed)),
            suspicions: self.suspicions.load(Ordering::Relaxed),
        }
    }
}

//! Lateness of the machine: by how much a thread that sleeps, and wants nothing else, wakes late. Where that is much, times of others tell nothing.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

const STEP: Duration = Duration::from_millis(10);

/// A thread that sleeps until this is dropped.
#[derive(Debug)]
pub(super) struct Lateness {
    most: Arc<AtomicU64>,
}

impl Lateness {
    pub(super) fn watch() -> Self {
        let most = Arc::<AtomicU64>::default();
        let seen = Arc::downgrade(&most);
        thread::spawn(move || {
            while let Some(most) = seen.upgrade() {
                let begun = Instant::now();
                thread::sleep(STEP);
                most.fetch_max((begun.elapsed() - STEP).as_millis() as u64, Ordering::Relaxed);
            }
        });
        Self { most }
    }

    /// The most since the last look.
    pub(super) fn take(&self) -> Duration {
        Duration::from_millis(self.most.swap(0, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_look_begins_anew() {
        let lateness = Lateness::watch();
        lateness.most.fetch_max(1 << 40, Ordering::Relaxed);
        assert!(lateness.take() >= Duration::from_millis(1 << 40));
        assert!(lateness.take() < Duration::from_millis(1 << 40));
    }
}

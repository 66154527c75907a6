//! Atomics and locks of std, or of loom when its model checker runs (`RUSTFLAGS="--cfg loom"`).

#[cfg(loom)]
pub(crate) use loom::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering, fence},
    sync::{Condvar, Mutex, MutexGuard},
    thread,
};
#[cfg(not(loom))]
pub(crate) use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering, fence},
    sync::{Condvar, Mutex, MutexGuard},
    thread,
};

/// Lock, whatever a panicking thread left behind: our locked sections keep their data whole.
pub(crate) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(|e| e.into_inner())
}

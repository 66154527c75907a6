//! Atomics and locks of std, or of loom when its model checker runs (`RUSTFLAGS="--cfg loom"`).

#[cfg(loom)]
pub(crate) use loom::sync::{
    Condvar, Mutex,
    atomic::{AtomicU32, AtomicU64, Ordering, fence},
};
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Condvar, Mutex,
    atomic::{AtomicU32, AtomicU64, Ordering, fence},
};
use std::sync::{Mutex as StdMutex, MutexGuard};

/// Lock, whatever a panicking thread left behind: our locked sections keep their data whole.
pub(crate) fn lock<T>(m: &StdMutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(|e| e.into_inner())
}

//! Atomics and locks of std, or of loom when its model checker runs (`RUSTFLAGS="--cfg loom"`).

#[cfg(loom)]
pub use loom::sync::{
    Condvar, Mutex,
    atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence},
};
#[cfg(not(loom))]
pub use std::sync::{
    Condvar, Mutex,
    atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence},
};
use std::{
    sync::{Mutex as StdMutex, MutexGuard, TryLockError},
    thread,
    time::{Duration, Instant},
};

/// Time limit for a lock, for a thread that ends the process.
const LOCK_SOON: Duration = Duration::from_millis(500);

/// Lock, whatever a panicking thread left behind: our locked sections keep their data whole.
pub fn lock<T>(m: &StdMutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(|e| e.into_inner())
}

/// The lock, if it is free soon: another thread holds it for a moment only, but one that exits while it holds it never gives
/// it back.
pub fn lock_soon<T>(mutex: &StdMutex<T>) -> Option<MutexGuard<'_, T>> {
    let until = Instant::now() + LOCK_SOON;
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(guard)) => return Some(guard.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() >= until => return None,
            // WAIT(until): the state at the end of a process: half a second at most
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_micros(100)),
        }
    }
}

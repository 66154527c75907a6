//! Turns: calls on a group run one at a time, in the order of their tickets. A call that finds nobody with a ticket needs none
//! (`Core::free_state`).

use crate::sync::{AtomicU32, AtomicU64, Condvar, Mutex, Ordering, fence};
use std::sync::PoisonError;

/// A queue of tickets. Uncontended, taking and ending a turn are a few atomic operations.
#[derive(Debug)]
pub(crate) struct Turn {
    next: AtomicU64,
    serving: AtomicU64,
    waiters: AtomicU32,
    lock: Mutex<()>,
    moved: Condvar,
}

impl Turn {
    pub(crate) fn new() -> Self {
        Self {
            next: AtomicU64::new(0),
            serving: AtomicU64::new(0),
            waiters: AtomicU32::new(0),
            lock: Mutex::new(()),
            moved: Condvar::new(),
        }
    }

    /// The next ticket.
    #[inline]
    pub(crate) fn take(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns true if all tickets were served that this thread can know of.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        // In this order: none was open when the first number was read if no further one was taken until the second.
        let serving = self.serving.load(Ordering::Acquire);
        serving == self.next.load(Ordering::Relaxed)
    }

    /// Wait until `ticket` is served.
    #[inline]
    pub(crate) fn wait(&self, ticket: u64) {
        if self.serving.load(Ordering::Acquire) == ticket {
            return;
        }
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiters.fetch_add(1, Ordering::Relaxed);
        // Either this thread sees the turn that ends now, or the thread that ends it sees a waiter (Dekker).
        fence(Ordering::SeqCst);
        while self.serving.load(Ordering::Acquire) != ticket {
            // WAIT: an earlier call of this group, which has a deadline
            guard = self.moved.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.waiters.fetch_sub(1, Ordering::Relaxed);
        drop(guard);
    }

    /// End the turn of `ticket`, which is being served.
    #[inline]
    pub(crate) fn end(&self, ticket: u64) {
        self.serving.store(ticket + 1, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.waiters.load(Ordering::Relaxed) > 0 {
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.moved.notify_all();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::lock;
    use std::{sync::Arc, thread, time::Duration};

    #[test]
    fn turns_follow_tickets_not_arrival() {
        let turn = Arc::new(Turn::new());
        let log = Arc::new(Mutex::new(vec![]));
        let tickets: Vec<_> = (0..8).map(|_| turn.take()).collect();
        let threads: Vec<_> = tickets
            .into_iter()
            .rev()
            .map(|t| {
                let turn = turn.clone();
                let log = log.clone();
                thread::sleep(Duration::from_millis(1));
                thread::spawn(move || {
                    turn.wait(t);
                    lock(&log).push(t);
                    turn.end(t);
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(*lock(&log), (0..8).collect::<Vec<_>>());
    }
}

#[cfg(all(test, loom))]
#[allow(unsafe_code, reason = "a cell that the turns guard")]
mod loom_tests {
    use super::*;
    use loom::{cell::UnsafeCell, sync::Arc, thread};

    /// Three threads: the turns exclude each other, and nobody waits for ever.
    #[test]
    fn turns_exclude_each_other_and_all_come() {
        loom::model(|| {
            let turn = Arc::new(Turn::new());
            let cell = Arc::new(UnsafeCell::new(0));
            let one = |turn: &Turn, cell: &UnsafeCell<i32>| {
                let t = turn.take();
                turn.wait(t);
                // SAFETY: in its turn a thread is alone with the cell; loom checks it.
                cell.with_mut(|p| unsafe { *p += 1 });
                turn.end(t);
            };
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let turn = turn.clone();
                    let cell = cell.clone();
                    thread::spawn(move || one(&turn, &cell))
                })
                .collect();
            one(&turn, &cell);
            threads.into_iter().for_each(|t| t.join().unwrap());
        });
    }

    /// A thread that finds no ticket open and the lock free has its turn without a ticket, as in a group, and one with a ticket waits for that lock,
    /// too. The thread that was let in is alone.
    #[test]
    fn a_turn_without_a_ticket_is_nobody_elses() {
        loom::model(|| {
            let shared = Arc::new((Turn::new(), Mutex::new(()), UnsafeCell::new(0)));
            let other = shared.clone();
            let other = thread::spawn(move || {
                let (turn, lock, cell) = &*other;
                let t = turn.take();
                turn.wait(t);
                drop(lock.lock().unwrap());
                // SAFETY: in its turn a thread is alone with the cell; loom checks it.
                cell.with_mut(|p| unsafe { *p += 1 });
                turn.end(t);
            });
            let (turn, lock, cell) = &*shared;
            for _ in 0..2 {
                if turn.is_idle()
                    && let Ok(_guard) = lock.try_lock()
                    && turn.is_idle()
                {
                    // SAFETY: as above.
                    cell.with_mut(|p| unsafe { *p += 1 });
                }
            }
            other.join().unwrap();
        });
    }
}

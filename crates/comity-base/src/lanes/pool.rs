//! The threads that carry lanes: made on first use, owned by the process, gone when the last stage is.
//!
//! ```text
//!   a call claims as many as it needs ── a lane each ──> spins a moment for the next lane ──> sleeps
//!   it gives them back when all its lanes have ended
//! ```
//! A thread that sleeps is woken by another one that was woken before it, some each, so that the last runs soon.

use super::carriage::LaneJob;
use crate::sync::lock;
use std::{
    hint, mem, process,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle, Thread},
    time::{Duration, Instant},
};

/// Time for which a thread looks for the next lane before it sleeps.
pub(super) const SPIN: Duration = Duration::from_micros(50);
/// Looks between two looks at the clock.
const LOOKS: u32 = 64;
/// Bytes of stack that a lane needs.
const STACK: usize = 256 << 10;

/// Thread of the pool, as other threads see it.
#[derive(Debug, Default)]
pub(super) struct Worker {
    job: Mutex<Option<LaneJob>>,
    /// A job is there, or the end.
    ready: AtomicBool,
    ends: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

#[derive(Debug)]
pub(super) struct Pool(Mutex<State>);

#[derive(Debug)]
struct State {
    /// A process that was forked has none of these threads.
    process: u32,
    holders: usize,
    idle: Vec<Arc<Worker>>,
    threads: Vec<JoinHandle<()>>,
}

pub(super) static POOL: Pool = Pool::new();

/// Keeps the threads; when the last one goes, they end. Not among what a thread shares: none ends itself.
#[derive(Debug)]
pub struct Threads {
    pool: &'static Pool,
    process: u32,
}

/// From now on threads that were made stay.
pub fn hold_threads() -> Threads {
    POOL.hold()
}

impl State {
    const fn new(process: u32) -> Self {
        Self { process, holders: 0, idle: Vec::new(), threads: Vec::new() }
    }
}

impl Pool {
    const fn new() -> Self {
        Self(Mutex::new(State::new(0)))
    }

    /// Returns the pool, without the threads of a process that this one was forked from.
    fn here(&self) -> MutexGuard<'_, State> {
        let mut state = lock(&self.0);
        let process = process::id();
        if state.process != process {
            let gone = mem::replace(&mut *state, State::new(process));
            mem::forget(gone.threads);
        }
        state
    }

    fn hold(&'static self) -> Threads {
        let mut state = self.here();
        state.holders += 1;
        Threads { pool: self, process: state.process }
    }

    /// At most `n` threads that do nothing, made where there are too few. Where the system makes no more, there are fewer.
    pub(super) fn claim(&self, n: usize) -> Vec<Arc<Worker>> {
        let mut state = self.here();
        let from = state.idle.len().saturating_sub(n);
        let mut workers = state.idle.split_off(from);
        while workers.len() < n {
            let worker = Arc::<Worker>::default();
            let own = Arc::clone(&worker);
            let thread = thread::Builder::new().name("comity-lane".into()).stack_size(STACK);
            let Ok(handle) = thread.spawn(move || own.serve()) else { break };
            *lock(&worker.thread) = Some(handle.thread().clone());
            state.threads.push(handle);
            workers.push(worker);
        }
        workers
    }

    /// Give back [claimed](Self::claim) workers, idle again.
    pub(super) fn give_back(&self, workers: Vec<Arc<Worker>>) {
        self.here().idle.extend(workers);
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        let mut state = self.pool.here();
        if self.process != state.process {
            return;
        }
        state.holders -= 1;
        if state.holders > 0 {
            return;
        }
        let idle = mem::take(&mut state.idle);
        let threads = mem::take(&mut state.threads);
        drop(state);
        for worker in idle {
            worker.ends.store(true, Ordering::Relaxed);
            worker.ready();
            worker.wake();
        }
        // WAIT(ends): threads that carry nothing and were told to end
        threads.into_iter().for_each(|t| drop(t.join()));
    }
}

impl Worker {
    /// Take over a job. It begins now if it spins, else when it is [woken](Self::wake).
    pub(super) fn give(&self, job: LaneJob) {
        *lock(&self.job) = Some(job);
        self.ready();
    }

    /// Take back a job that was not begun, if it is still there.
    pub(super) fn take_back(&self) {
        drop(lock(&self.job).take());
    }

    fn ready(&self) {
        self.ready.store(true, Ordering::Release);
    }

    /// A call into the system only if it sleeps.
    pub(super) fn wake(&self) {
        if let Some(thread) = &*lock(&self.thread) {
            thread.unpark();
        }
    }

    /// Carry what comes, until the end.
    fn serve(&self) {
        loop {
            let since = Instant::now();
            let mut looks = 0;
            while !self.ready.load(Ordering::Acquire) {
                looks += 1;
                if looks % LOOKS != 0 || since.elapsed() < SPIN {
                    // WAIT(SPIN): the next lane, for a moment
                    hint::spin_loop();
                } else {
                    // WAIT(ready): the next lane, or the end; whoever gives one wakes this thread
                    thread::park();
                }
            }
            self.ready.store(false, Ordering::Relaxed);
            if self.ends.load(Ordering::Relaxed) {
                return;
            }
            let job = lock(&self.job).take();
            if let Some(job) = job {
                job.carry();
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn threads_serve_all_holders_and_end_with_the_last_one() {
        static OWN: Pool = Pool::new();
        let pool = &OWN;
        let first = pool.hold();
        let second = pool.hold();
        let three = pool.claim(3);
        let same = three.clone();
        pool.give_back(three);
        let two = pool.claim(2);
        assert!(two.iter().zip(&same[1..]).all(|(a, b)| Arc::ptr_eq(a, b)), "none is made while one is idle");
        pool.give_back(two);
        drop(first);
        assert!(
            same.iter().all(|w| Arc::strong_count(w) == 3),
            "each is held here, by the pool and by its thread"
        );
        drop(second);
        assert!(same.iter().all(|w| Arc::strong_count(w) == 1), "all have ended");
        assert!(pool.here().threads.is_empty());
    }

    #[test]
    fn a_process_that_was_forked_has_no_threads_and_ends_none() {
        static OWN: Pool = Pool::new();
        let pool = &OWN;
        let mut held = pool.hold();
        let one = pool.claim(1);
        pool.give_back(one.clone());
        // As a child sees it: the same memory under another number.
        held.process ^= 1;
        lock(&pool.0).process ^= 1;
        let child = pool.hold();
        assert!(pool.here().idle.is_empty(), "made anew");
        drop(held);
        assert_eq!(pool.here().holders, 1, "of the parent");
        drop(child);
        assert_eq!(Arc::strong_count(&one[0]), 2, "the parent's runs on");
    }
}

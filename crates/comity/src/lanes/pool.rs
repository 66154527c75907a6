//! The threads that carry lanes: made on first use, owned by the process, gone when the last stage is.
//!
//! ```text
//!   a call claims as many as it needs ── a lane each ──> spins a moment for the next lane ──> sleeps
//!   it gives them back when all its lanes have ended
//! ```
//! A thread that sleeps is woken by another one that was woken before it, two each, so that the last runs soon.

use super::carriage::Job;
use crate::sync::lock;
use std::{
    hint, process,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle, Thread},
    time::{Duration, Instant},
};

/// How long a thread looks for the next lane before it sleeps.
pub(super) const SPIN: Duration = Duration::from_micros(50);
/// Looks between two looks at the clock.
const LOOKS: u32 = 64;
/// Bytes of stack that a lane needs.
const STACK: usize = 256 << 10;

/// One thread, as others see it.
#[derive(Debug, Default)]
pub(super) struct Worker {
    job: Mutex<Option<Job>>,
    /// A job is there, or the end.
    ready: AtomicBool,
    ends: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

#[derive(Debug)]
struct Pool {
    /// A process that was forked has none of these threads.
    process: u32,
    holders: usize,
    idle: Vec<Arc<Worker>>,
    threads: Vec<JoinHandle<()>>,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { process: 0, holders: 0, idle: Vec::new(), threads: Vec::new() });

/// Keeps the threads; when the last one goes, they end. Not among what a thread shares: none ends itself.
#[derive(Debug)]
pub(crate) struct Threads(u32);

/// From now on threads that were made stay.
pub(crate) fn hold_threads() -> Threads {
    let mut pool = here();
    pool.holders += 1;
    Threads(pool.process)
}

/// The pool, without the threads of a process that this one was forked from.
fn here() -> std::sync::MutexGuard<'static, Pool> {
    let (mut pool, process) = (lock(&POOL), process::id());
    if pool.process != process {
        std::mem::forget(std::mem::take(&mut pool.threads));
        *pool = Pool { process, holders: 0, idle: Vec::new(), threads: Vec::new() };
    }
    pool
}

/// At most `n` threads that do nothing, made where there are too few. Where the system makes no more, there are fewer.
pub(super) fn claim(n: usize) -> Vec<Arc<Worker>> {
    let mut pool = here();
    let from = pool.idle.len().saturating_sub(n);
    let mut workers = pool.idle.split_off(from);
    while workers.len() < n {
        let worker = Arc::<Worker>::default();
        let own = Arc::clone(&worker);
        let thread = thread::Builder::new().name("comity-lane".into()).stack_size(STACK);
        let Ok(handle) = thread.spawn(move || own.serve()) else { break };
        *lock(&worker.thread) = Some(handle.thread().clone());
        pool.threads.push(handle);
        workers.push(worker);
    }
    workers
}

/// Give back [claimed](claim) workers, idle again.
pub(super) fn give_back(workers: Vec<Arc<Worker>>) {
    here().idle.extend(workers);
}

impl Drop for Threads {
    fn drop(&mut self) {
        let mut pool = here();
        if self.0 != pool.process {
            return;
        }
        pool.holders -= 1;
        if pool.holders > 0 {
            return;
        }
        let (idle, threads) = (std::mem::take(&mut pool.idle), std::mem::take(&mut pool.threads));
        drop(pool);
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
    pub(super) fn give(&self, job: Job) {
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
                    // WAIT(wake): the next lane, or the end; whoever gives one wakes this thread
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

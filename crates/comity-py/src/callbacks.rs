//! Threads that run callbacks.
//!
//! Callbacks are Python, may take long, and may wait for a later call of the group: they must not run on the thread that makes
//! the group's calls, and one that waits must not keep others from running. So whenever none of these threads is idle, one more starts;
//! they end when nothing comes for a while.

use std::{
    collections::VecDeque,
    process,
    sync::{Condvar, Mutex, PoisonError},
    thread,
    time::Duration,
};

type Job = Box<dyn FnOnce() + Send>;

const IDLE: Duration = Duration::from_secs(10);

struct Pool {
    queue: Mutex<Queue>,
    came: Condvar,
}

struct Queue {
    jobs: VecDeque<Job>,
    idle: usize,
    /// The process whose threads these are: a forked child has none of them.
    home: u32,
}

static POOL: Pool =
    Pool { queue: Mutex::new(Queue { jobs: VecDeque::new(), idle: 0, home: 0 }), came: Condvar::new() };

/// Run `job` soon, on a thread that nothing else waits for.
pub(crate) fn post(job: Job) {
    let mut queue = POOL.queue.lock().unwrap_or_else(PoisonError::into_inner);
    if queue.home != process::id() {
        (queue.idle, queue.home) = (0, process::id());
        queue.jobs.clear();
    }
    queue.jobs.push_back(job);
    if queue.idle >= queue.jobs.len() {
        drop(queue);
        POOL.came.notify_one();
        return;
    }
    drop(queue);
    if thread::Builder::new().name("comity-call".into()).spawn(serve).is_err() {
        // The system has no thread left. Late, on this one, is better than never.
        let job = POOL.queue.lock().unwrap_or_else(PoisonError::into_inner).jobs.pop_back();
        if let Some(job) = job {
            job();
        }
    }
}

fn serve() {
    let mut queue = POOL.queue.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if let Some(job) = queue.jobs.pop_front() {
            drop(queue);
            job();
            queue = POOL.queue.lock().unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        queue.idle += 1;
        let (back, late) = POOL.came.wait_timeout(queue, IDLE).unwrap_or_else(PoisonError::into_inner);
        queue = back;
        queue.idle -= 1;
        if late.timed_out() && queue.jobs.is_empty() {
            return;
        }
    }
}

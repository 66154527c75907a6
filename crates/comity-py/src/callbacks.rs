//! The threads that run callbacks, one pool for the process: those of requests, and what Python gives to `_core.post`.
//!
//! Callbacks are Python, may take long, and may wait for a later call of the group: they must not run on the thread that makes
//! the group's calls, and one that waits must not keep others from running. So whenever none of these threads is idle, one more starts;
//! they end when nothing comes for a while. One of them tells Python's `logging` (the logger "comity") the library's warnings.

use crate::interpreter::{self, Visit};
use pyo3::{prelude::*, types::PyTuple};
use std::{
    collections::VecDeque,
    io::{self, Write},
    process,
    sync::{Condvar, Mutex, MutexGuard, Once, OnceLock, PoisonError},
    thread,
    time::Duration,
};

type Job = Box<dyn FnOnce() + Send>;

const IDLE: Duration = Duration::from_secs(10);

static FIRST: OnceLock<Pool> = OnceLock::new();

struct Pool {
    /// The process whose threads these are.
    home: u32,
    queue: Mutex<Queue>,
    came: Condvar,
    /// Pool of a forked child, which has none of these threads, and in which one of them may hold the lock for ever.
    child: OnceLock<Box<Self>>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    idle: usize,
}

impl Pool {
    fn new() -> Self {
        Self { home: process::id(), queue: Mutex::default(), came: Condvar::new(), child: OnceLock::new() }
    }

    /// This process's.
    fn here() -> &'static Self {
        let id = process::id();
        let mut pool = FIRST.get_or_init(Self::new);
        while pool.home != id {
            pool = pool.child.get_or_init(|| Box::new(Self::new()));
        }
        pool
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn post(&'static self, job: Job) {
        let mut queue = self.lock();
        queue.jobs.push_back(job);
        if queue.idle >= queue.jobs.len() {
            drop(queue);
            self.came.notify_one();
            return;
        }
        drop(queue);
        if thread::Builder::new().name("comity-call".into()).spawn(|| self.serve()).is_err() {
            // The system has no thread left. Late, on this one, is better than never.
            let job = self.lock().jobs.pop_back();
            if let Some(job) = job {
                job();
            }
        }
    }

    fn serve(&self) {
        let mut queue = self.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                drop(queue);
                job();
                queue = self.lock();
                continue;
            }
            queue.idle += 1;
            // WAIT(IDLE): the next callback: 10 s at most
            let (back, late) = self.came.wait_timeout(queue, IDLE).unwrap_or_else(PoisonError::into_inner);
            queue = back;
            queue.idle -= 1;
            if late.timed_out() && queue.jobs.is_empty() {
                return;
            }
        }
    }
}

/// Run `job` soon, on a thread that nothing else waits for. False, and nothing runs, once the interpreter ends.
pub(crate) fn run_soon(job: impl FnOnce(Python<'_>) + Send + 'static) -> bool {
    let Some(visit) = Visit::begin() else { return false };
    Pool::here().post(Box::new(move || {
        visit.attach(job);
    }));
    true
}

/// Call `job` soon, on a thread that nothing else waits for.
#[pyfunction]
#[pyo3(signature = (job, /))]
pub(crate) fn post(job: Py<PyAny>) {
    run_soon(move |py| {
        if let Err(e) = interpreter::call(job.bind(py), &PyTuple::empty(py)) {
            e.write_unraisable(py, Some(job.bind(py)));
        }
    });
}

/// From the first call on, each warning goes to the logger. Without a handler Python writes it to standard error, and so does this module
/// once the interpreter ends.
pub(crate) fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // A thread that warns may hold a lock that the holder of the interpreter waits for: another thread tells it.
        comity::tools::on_warning(|words| {
            let line = words.to_owned();
            let is_told = run_soon(move |py| {
                if let Err(e) = warn(py, &line) {
                    e.write_unraisable(py, None);
                }
            });
            if !is_told {
                // Nobody may read it.
                let _ = writeln!(io::stderr(), "comity: {words}");
            }
        });
    });
}

fn warn(py: Python<'_>, words: &str) -> PyResult<()> {
    let logger = py.import("logging")?.call_method1("getLogger", ("comity",))?;
    // Not a format: words may have a percent sign.
    interpreter::call(&logger.getattr("warning")?, &PyTuple::new(py, ["%s", words])?).map(drop)
}

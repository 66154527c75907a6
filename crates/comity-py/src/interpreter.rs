//! The interpreter, as threads that Python did not start reach it, and as its signal handlers run while a call waits, which they may end
//! (Ctrl-C). Those threads are done with it before it ends: up to Python 3.13 a thread that
//! comes back to one that ends is taken down in the middle of Rust's frames, and the process aborts.
//!
//! ```text
//!   Visit::begin     a job for the interpreter is queued
//!   Visit::attach    it runs
//!   close            an exit handler of Python's: no visit begins any more, and those begun get LAST_WORDS to end
//!   Halt             keeps a thread for ever that was still inside: nothing waits for it
//! ```
#![allow(unsafe_code, reason = "calls that may be unwound")]

use pyo3::{ffi, prelude::*, types::PyTuple};
use std::{
    cell::{Cell, RefCell},
    mem, process,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Time that jobs get to end when the interpreter does.
const LAST_WORDS: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(1);

/// Process id, [`CLOSED`] or not, and the number of visits. A forked child has none of its parent's threads: another id means none.
static VISITS: AtomicU64 = AtomicU64::new(0);
const CLOSED: u64 = 1 << 31;
const COUNT: u64 = CLOSED - 1;

/// [`VISITS`] of this process.
fn visits(stored: u64) -> u64 {
    let home = u64::from(process::id()) << 32;
    if stored & !(CLOSED | COUNT) == home { stored } else { home }
}

/// Changes the visits of this process, unless `change` says `None`.
fn update(change: impl Fn(u64) -> Option<u64>) -> Option<u64> {
    VISITS.fetch_update(Ordering::AcqRel, Ordering::Acquire, |stored| change(visits(stored))).ok()
}

/// A job for the interpreter, queued or running.
pub(crate) struct Visit(u32);

impl Visit {
    /// `None` once the interpreter ends.
    pub(crate) fn begin() -> Option<Self> {
        update(|now| (now & CLOSED == 0).then(|| now + 1))?;
        Some(Self(process::id()))
    }

    /// Run `job` in the interpreter. `None` if there is none.
    pub(crate) fn attach<R>(self, job: impl FnOnce(Python<'_>) -> R) -> Option<R> {
        Python::try_attach(|py| {
            let halt = Halt;
            let out = job(py);
            mem::forget(halt);
            out
        })
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        // A job may fork. The child has no part in its parent's visits.
        if self.0 == process::id() {
            update(|now| (now & COUNT > 0).then(|| now - 1));
        }
    }
}

/// Keeps its thread for ever when it is dropped: the system is about to take the thread down through frames of Rust.
struct Halt;

impl Drop for Halt {
    fn drop(&mut self) {
        loop {
            // WAIT: a thread that the interpreter no longer lets in; the process ends
            thread::park();
        }
    }
}

/// Call `callable` with `args` on a thread of ours.
pub(crate) fn call<'py>(
    callable: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
) -> PyResult<Bound<'py, PyAny>> {
    // pyo3's own declaration rules out that the call is unwound, which is how such a thread is taken down.
    // SAFETY: the declaration of Python's stable interface.
    unsafe extern "C-unwind" {
        fn PyObject_Call(
            callable: *mut ffi::PyObject,
            args: *mut ffi::PyObject,
            kwargs: *mut ffi::PyObject,
        ) -> *mut ffi::PyObject;
    }
    let halt = Halt;
    // SAFETY: both are live objects, the second a tuple, and `callable` shows that this thread holds the interpreter's lock.
    let out = unsafe { PyObject_Call(callable.as_ptr(), args.as_ptr(), std::ptr::null_mut()) };
    mem::forget(halt);
    // SAFETY: a new reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(callable.py(), out) }
}

/// The exit handler.
#[pyfunction]
pub(crate) fn close(py: Python<'_>) {
    update(|now| Some(now | CLOSED));
    let until = Instant::now() + LAST_WORDS;
    py.detach(|| {
        while visits(VISITS.load(Ordering::Acquire)) & COUNT > 0 && Instant::now() < until {
            // WAIT(until): the jobs that are queued or running: 2 s at most
            thread::sleep(LOOK);
        }
    });
}

/// Reason to give up what another thread waits in, once there is one.
#[derive(Debug, Default)]
pub(crate) struct JoinInterrupt(Mutex<Option<String>>);

impl JoinInterrupt {
    pub(crate) fn set(&self, words: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(words);
    }

    fn words(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Run `f` on this thread, whose waits ask for this wish.
    pub(crate) fn heed<R>(self: Arc<Self>, f: impl FnOnce() -> R) -> R {
        HEEDED.replace(Some(self));
        comity::interrupt_with(Some(|| HEEDED.with_borrow(Clone::clone)?.words()));
        let out = f();
        comity::interrupt_with(None);
        out
    }
}

/// Return whether this thread, which joins, is to give up: a signal handler raised in the thread that waits for it.
#[pyfunction]
pub(crate) fn is_given_up() -> bool {
    HEEDED.with_borrow(|wish| wish.as_ref().is_some_and(|wish| wish.words().is_some()))
}

thread_local! {
    static HEEDED: RefCell<Option<Arc<JoinInterrupt>>> = const { RefCell::new(None) };
    static ARMED: Cell<bool> = const { Cell::new(false) };
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Let calls that this thread waits in look for signals.
pub(crate) fn arm() {
    if !ARMED.replace(true) {
        comity::interrupt_with(Some(ask));
    }
}

/// Exception that a signal handler raised during the last call, if any.
pub(crate) fn taken() -> Option<PyErr> {
    RAISED.take()
}

/// Description of an exception from a signal handler for the other ranks.
pub(crate) fn words(py: Python<'_>, e: &PyErr) -> String {
    let class = e.get_type(py).name().map_or_else(|_| "a signal".into(), |n| n.to_string());
    format!("its program was interrupted by a signal ({class})")
}

fn ask() -> Option<String> {
    let asked = Python::try_attach(|py| {
        let e = py.check_signals().err()?;
        let words = words(py, &e);
        RAISED.replace(Some(e));
        Some(words)
    });
    // None: the interpreter ends, and nobody will see what this call brings.
    asked.unwrap_or_else(|| Some("its interpreter ended".into()))
}

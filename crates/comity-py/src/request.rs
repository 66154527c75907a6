//! Work that runs in its turn on the group's thread, as Python waits for it.

use crate::{callbacks, errors, interpreter};
use comity::{Error, tools::HomeProcess};
use pyo3::prelude::*;
use std::{
    mem,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// Time to wait for an attempt that was given up. Its waits ask ten times a second, and a store sends last words for half a second.
const ENDING: Duration = Duration::from_secs(3);

/// Time that a wait goes without a look at signals.
const SLICE: Duration = Duration::from_millis(100);

/// State of a piece of work, shared by the group's thread and Python.
pub(crate) struct RequestState {
    /// This process's rank in the group, for errors.
    rank: Option<usize>,
    inner: Mutex<Inner>,
    done: Condvar,
}

#[derive(Default)]
struct Inner {
    out: Option<Result<(), Error>>,
    callbacks: Vec<Py<PyAny>>,
    /// Owner of the memory. Let go under the interpreter's lock where that is at hand.
    hold: Option<Py<PyAny>>,
}

impl RequestState {
    pub(crate) fn new(rank: Option<usize>, hold: Option<Py<PyAny>>) -> Arc<Self> {
        let inner = Inner { hold, ..Inner::default() };
        Arc::new(Self { rank, inner: Mutex::new(inner), done: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The work has ended. The first word counts.
    fn set(&self, out: Result<(), Error>) {
        let mut inner = self.lock();
        if inner.out.is_some() {
            return;
        }
        inner.out = Some(out);
        let callbacks = mem::take(&mut inner.callbacks);
        let error = inner.out.clone().and_then(Result::err);
        // Where callbacks come, what is held goes with them.
        let hold = if callbacks.is_empty() { None } else { inner.hold.take() };
        drop(inner);
        self.done.notify_all();
        if !callbacks.is_empty() {
            let rank = self.rank;
            callbacks::run_soon(move |py| {
                drop(hold);
                callbacks.iter().for_each(|f| tell(py, f, rank, error.as_ref()));
            });
        }
    }

    /// Wait until `until`; whether the work has ended.
    fn wait_until(&self, until: Instant) -> bool {
        let mut inner = self.lock();
        while inner.out.is_none() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            // WAIT(until): background work, to the deadline of who calls
            inner = self.done.wait_timeout(inner, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Wait for the end, and let signal handlers run meanwhile; `false` when `limit` passed first.
    pub(crate) fn wait(&self, py: Python<'_>, limit: Option<Duration>) -> PyResult<bool> {
        if self.is_done() {
            return Ok(true);
        }
        let end = limit.and_then(|l| Instant::now().checked_add(l));
        loop {
            let slice = Instant::now() + SLICE;
            let until = end.map_or(slice, |e| e.min(slice));
            if py.detach(|| self.wait_until(until)) {
                return Ok(true);
            }
            if end.is_some_and(|e| Instant::now() >= e) {
                // It may have ended while this thread came back to the interpreter.
                return Ok(self.is_done());
            }
            py.check_signals()?;
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.lock().out.is_some()
    }

    /// Result; also lets go of the memory.
    pub(crate) fn out(&self, py: Python<'_>) -> Option<Result<(), PyErr>> {
        let mut inner = self.lock();
        let out = inner.out.clone()?;
        let hold = inner.hold.take();
        drop(inner);
        // May run a destructor, so the state must not be locked.
        drop(hold);
        Some(out.map_err(|e| errors::raised(py, self.rank, &e)))
    }
}

/// The end of one piece of work, whatever becomes of it.
pub(crate) struct FinishGuard {
    state: Arc<RequestState>,
    busy: Arc<AtomicUsize>,
}

impl FinishGuard {
    pub(crate) fn new(state: Arc<RequestState>, busy: Arc<AtomicUsize>) -> Self {
        busy.fetch_add(1, Ordering::Relaxed);
        Self { state, busy }
    }

    pub(crate) fn set(self, out: Result<(), Error>) {
        self.state.set(out);
    }
}

impl Drop for FinishGuard {
    fn drop(&mut self) {
        self.busy.fetch_sub(1, Ordering::Release);
        // Only where the work panicked, or no thread could be had for it.
        let message = "it could not be run: no thread, or a panic";
        self.state.set(Err(Error::os("background work", std::io::Error::other(message))));
    }
}

fn tell(py: Python<'_>, callback: &Py<PyAny>, rank: Option<usize>, error: Option<&Error>) {
    let arg = error.map(|e| errors::raised(py, rank, e));
    let args = (arg,).into_pyobject(py);
    if let Err(e) = args.and_then(|args| interpreter::call(callback.bind(py), &args)) {
        e.write_unraisable(py, Some(callback.bind(py)));
    }
}

/// Work under way.
#[pyclass(frozen, module = "comity._core", name = "Request")]
pub(crate) struct PyRequest {
    state: Arc<RequestState>,
    what: String,
    home: HomeProcess,
}

impl PyRequest {
    pub(crate) fn new(state: Arc<RequestState>, what: String, home: HomeProcess) -> Self {
        Self { state, what, home }
    }
}

#[pymethods]
impl PyRequest {
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        errors::check_home(py, self.home)?;
        let limit = timeout.map(|t| seconds(py, self.state.rank, t)).transpose()?;
        // WAIT(limit): background work, to the caller's limit; it looks at Python's signals ten times a second
        if !self.state.wait(py, limit)? {
            let message = format!(
                "{} is still under way after {:?}; the group is unharmed: wait again, or abort it",
                self.what,
                limit.unwrap_or_default()
            );
            return Err(errors::new(py, "TimeoutError", message, None, Some(self.what.clone()), None));
        }
        self.state.out(py).unwrap_or(Ok(()))
    }

    fn done(&self) -> bool {
        self.state.is_done()
    }

    /// The exception it ended with; `None` while it is under way and when it went well.
    fn exception(&self, py: Python<'_>) -> Option<PyErr> {
        self.state.out(py)?.err()
    }

    fn add_done_callback(&self, py: Python<'_>, callback: Py<PyAny>) {
        let mut inner = self.state.lock();
        let Some(out) = inner.out.clone() else {
            inner.callbacks.push(callback);
            return;
        };
        drop(inner);
        tell(py, &callback, self.state.rank, out.err().as_ref());
    }

    fn __repr__(&self) -> String {
        let state = if self.state.is_done() { "done" } else { "under way" };
        format!("<comity._core.Request {}: {state}>", self.what)
    }
}

/// A limit in seconds.
pub(crate) fn seconds(py: Python<'_>, rank: Option<usize>, t: f64) -> PyResult<Duration> {
    if t.is_nan() || t <= 0.0 {
        return Err(errors::misuse(py, rank, format!("a timeout is more than 0 seconds, not {t}"), None));
    }
    Ok(Duration::try_from_secs_f64(t).unwrap_or(Duration::MAX))
}

/// Run `f`, which may take long, on a thread of its own, and let signal handlers run meanwhile. When one of them raises, `give_up` gets words
/// that name the exception, and its result is dropped; it is waited for as long as a thread takes that heeds these words. `rank`: this
/// process's, in a group that is there.
pub(crate) fn watched<T: Send + 'static>(
    py: Python<'_>,
    rank: Option<usize>,
    f: impl FnOnce() -> comity::Result<T> + Send + 'static,
    give_up: impl FnOnce(String) + Send + 'static,
) -> PyResult<T> {
    let slot = Arc::new(Mutex::new(None));
    let state = RequestState::new(rank, None);
    let ending = FinishGuard::new(state.clone(), Arc::default());
    let made = slot.clone();
    let started = std::thread::Builder::new().name("comity-join".into()).spawn(move || {
        let out = f();
        let error = out.as_ref().err().cloned();
        *made.lock().unwrap_or_else(PoisonError::into_inner) = out.ok();
        ending.set(error.map_or(Ok(()), Err));
    });
    if let Err(e) = started {
        let e = Error::os("starting a thread", e);
        return Err(errors::raised(py, rank, &e));
    }
    // WAIT(give_up): a join, which has a deadline; a signal ends it
    if let Err(e) = state.wait(py, None) {
        let words = interpreter::words(py, &e);
        py.detach(|| {
            // It may wait for what `f` holds. Without a thread the call ends at its limit.
            let _ = std::thread::Builder::new().name("comity-abort".into()).spawn(move || give_up(words));
            // Whoever tries again meets nothing of this try.
            state.wait_until(Instant::now() + ENDING);
            drop(slot.lock().unwrap_or_else(PoisonError::into_inner).take());
        });
        return Err(e);
    }
    state.out(py).unwrap_or(Ok(()))?;
    let made = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
    made.ok_or_else(|| errors::new(py, "Error", "nothing came back".into(), None, None, None))
}

/// Wait for work whose buffers the caller lent only for this call: it has ended when this returns, also when a signal
/// handler raises. `abort` ends it then.
pub(crate) fn wait_to_the_end(
    py: Python<'_>,
    state: &RequestState,
    abort: impl FnOnce(&str) + Send,
) -> PyResult<()> {
    // WAIT(abort): a call, which has a deadline; a signal aborts it
    if let Err(e) = state.wait(py, None) {
        let words = interpreter::words(py, &e);
        py.detach(|| {
            abort(&words);
            while !state.wait_until(Instant::now() + SLICE) {}
        });
        return Err(e);
    }
    state.out(py).unwrap_or(Ok(()))
}

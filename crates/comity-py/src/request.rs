//! Work that runs in its turn on the group's thread, as Python waits for it.

use crate::{callbacks, errors, interpreter};
use comity::{
    Error,
    tools::{ForeignRequest, HomeProcess},
};
use pyo3::prelude::*;
use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Time to wait for an attempt that was given up. Its waits ask ten times a second, and a store sends last words for half a second.
const ENDING: Duration = Duration::from_secs(3);

/// Time that a wait goes without a look at signals.
const SLICE: Duration = Duration::from_millis(100);

/// Objects that Python gave to a request: let go of under the interpreter's lock where that is at hand.
#[derive(Default)]
pub(crate) struct Given {
    pub(crate) callbacks: Vec<Py<PyAny>>,
    /// Owner of the memory. Where callbacks come, it goes with them.
    pub(crate) hold: Option<Py<PyAny>>,
}

/// Wait for the end, and let signal handlers run meanwhile; `false` when `limit` passed first.
fn wait(py: Python<'_>, end: &ForeignRequest, limit: Option<Duration>) -> PyResult<bool> {
    if end.out().is_some() {
        return Ok(true);
    }
    let until = limit.and_then(|l| Instant::now().checked_add(l));
    loop {
        let slice = Instant::now() + SLICE;
        let slice = until.map_or(slice, |e| e.min(slice));
        if py.detach(|| ForeignRequest::wait_any(&[end], Some(slice))).is_some() {
            return Ok(true);
        }
        if until.is_some_and(|e| Instant::now() >= e) {
            // It may have ended while this thread came back to the interpreter.
            return Ok(end.out().is_some());
        }
        py.check_signals()?;
    }
}

/// Result of work, if it has ended.
fn out(py: Python<'_>, end: &ForeignRequest, rank: Option<usize>) -> Option<PyResult<()>> {
    Some(end.out()?.map_err(|e| errors::raised(py, rank, &e)))
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
    end: Arc<ForeignRequest>,
    given: Arc<Mutex<Given>>,
    /// This process's rank in the group, for errors.
    rank: usize,
    what: String,
    home: HomeProcess,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PyRequest {
    pub(crate) fn new(
        end: Arc<ForeignRequest>,
        given: Arc<Mutex<Given>>,
        rank: usize,
        what: String,
        home: HomeProcess,
    ) -> Self {
        Self { end, given, rank, what, home }
    }

    /// Result; also lets go of the memory.
    fn out(&self, py: Python<'_>) -> Option<PyResult<()>> {
        let out = out(py, &self.end, Some(self.rank))?;
        let hold = lock(&self.given).hold.take();
        // May run a destructor, so what was given must not be locked.
        drop(hold);
        Some(out)
    }
}

#[pymethods]
impl PyRequest {
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        errors::check_home(py, self.home)?;
        let limit = timeout.map(|t| seconds(py, Some(self.rank), t)).transpose()?;
        // WAIT(limit): background work, to the caller's limit; it looks at Python's signals ten times a second
        if !wait(py, &self.end, limit)? {
            let message = format!(
                "{} is still under way after {:?}; the group is unharmed: wait again, or abort it",
                self.what,
                limit.unwrap_or_default()
            );
            return Err(errors::new(py, "TimeoutError", message, None, Some(self.what.clone()), None));
        }
        self.out(py).unwrap_or(Ok(()))
    }

    fn done(&self) -> bool {
        self.end.out().is_some()
    }

    /// The exception it ended with; `None` while it is under way and when it went well.
    fn exception(&self, py: Python<'_>) -> Option<PyErr> {
        self.out(py)?.err()
    }

    fn add_done_callback(&self, py: Python<'_>, callback: Py<PyAny>) {
        let rank = Some(self.rank);
        if let Some(out) = self.end.out() {
            return tell(py, &callback, rank, out.err().as_ref());
        }
        let mut given = lock(&self.given);
        given.callbacks.push(callback);
        let is_first = given.callbacks.len() == 1;
        drop(given);
        if is_first {
            let given = Arc::clone(&self.given);
            self.end.then(move |out| {
                let error = out.as_ref().err().cloned();
                callbacks::run_soon(move |py| {
                    let Given { callbacks, hold } = mem::take(&mut *lock(&given));
                    drop(hold);
                    callbacks.iter().for_each(|f| tell(py, f, rank, error.as_ref()));
                });
            });
        }
    }

    fn __repr__(&self) -> String {
        let state = if self.end.out().is_some() { "done" } else { "under way" };
        format!("<comity._core.Request {}: {state}>", self.what)
    }
}

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
    let (end, ending) = ForeignRequest::begin();
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
    if let Err(e) = wait(py, &end, None) {
        let words = interpreter::words(py, &e);
        py.detach(|| {
            // It may wait for what `f` holds. Without a thread the call ends at its limit.
            let _ = std::thread::Builder::new().name("comity-abort".into()).spawn(move || give_up(words));
            // Whoever tries again meets nothing of this try.
            ForeignRequest::wait_any(&[&end], Some(Instant::now() + ENDING));
            drop(slot.lock().unwrap_or_else(PoisonError::into_inner).take());
        });
        return Err(e);
    }
    out(py, &end, rank).unwrap_or(Ok(()))?;
    let made = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
    made.ok_or_else(|| errors::new(py, "Error", "nothing came back".into(), None, None, None))
}

/// Wait for work whose buffers the caller lent only for this call: it has ended when this returns, also when a signal
/// handler raises. `abort` ends it then.
pub(crate) fn wait_to_the_end(
    py: Python<'_>,
    rank: usize,
    end: &ForeignRequest,
    abort: impl FnOnce(&str) + Send,
) -> PyResult<()> {
    // WAIT(abort): a call, which has a deadline; a signal aborts it
    if let Err(e) = wait(py, end, None) {
        let words = interpreter::words(py, &e);
        py.detach(|| {
            abort(&words);
            while ForeignRequest::wait_any(&[end], Some(Instant::now() + SLICE)).is_none() {}
        });
        return Err(e);
    }
    out(py, end, Some(rank)).unwrap_or(Ok(()))
}

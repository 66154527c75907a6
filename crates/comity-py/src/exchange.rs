//! An exchange over two Python functions, such as the `set` and `get` of a torch store.

use crate::interpreter::{self, Visit};
use comity::{Error, Exchange, JoinError, Result};
use pyo3::prelude::*;
use std::{
    fmt,
    sync::atomic::{AtomicUsize, Ordering},
    time::Instant,
};

pub(crate) struct Callables {
    set: Py<PyAny>,
    get: Py<PyAny>,
    prefix: String,
    shares: AtomicUsize,
}

impl Callables {
    pub(crate) fn new(set: Py<PyAny>, get: Py<PyAny>, prefix: String) -> Self {
        Self { set, get, prefix, shares: AtomicUsize::new(0) }
    }

    fn failed(&self, e: &PyErr) -> Error {
        JoinError::new(format!("{self} failed: {e}")).into()
    }

    /// Reads the text posted under `key`, once it is there.
    fn read(&self, key: &str, until: Instant) -> Result<String> {
        let left = until.saturating_duration_since(Instant::now()).as_secs_f64();
        let got = visit(|py| {
            let value = interpreter::call(self.get.bind(py), &(key, left).into_pyobject(py)?)?;
            value.extract::<String>().or_else(|_| {
                let bytes = value.extract::<Vec<u8>>()?;
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            })
        });
        got.unwrap_or_else(|| Ok(String::new())).map_err(|e| self.failed(&e))
    }
}

/// Run `job` in the interpreter. `None` once that ends.
fn visit<R>(job: impl FnOnce(Python<'_>) -> R) -> Option<R> {
    Visit::begin()?.attach(job)
}

impl fmt::Display for Callables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the store given from Python ({})", self.prefix)
    }
}

impl fmt::Debug for Callables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callables").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl Exchange for Callables {
    fn share(&self, _rank: usize, _size: usize, mine: Option<&str>, until: Instant) -> Result<String> {
        let key = format!("{}/{}", self.prefix, self.shares.fetch_add(1, Ordering::Relaxed));
        let Some(text) = mine else { return self.read(&key, until) };
        let set =
            visit(|py| interpreter::call(self.set.bind(py), &(&key, text).into_pyobject(py)?).map(drop));
        set.unwrap_or(Ok(())).map_err(|e| self.failed(&e))?;
        Ok(text.to_owned())
    }
}

//! From variables, or the functions of a store, to a group; and the store of a job, for launchers in Python.

use crate::{
    callbacks, errors,
    group::PyGroup,
    interpreter::{self, JoinInterrupt, Visit},
    request::{seconds, watched},
};
use comity::{Config, ConfigError, Error, Exchange, Group, JoinError, Key, Launcher, Result, tools};
use pyo3::prelude::*;
use std::{
    collections::HashMap,
    ffi::OsString,
    fmt,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

/// Values that stand in for those of the environment; `None` for a variable that is to be unset.
type Variables = HashMap<String, Option<String>>;

fn read<'a>(variables: &'a Variables) -> impl Fn(&str) -> Option<OsString> + 'a {
    |name| match variables.get(name) {
        Some(value) => value.as_ref().map(OsString::from),
        None => std::env::var_os(name),
    }
}

/// The group, unless a signal handler raises before the ranks have met: then this rank gives up joining.
fn connected(py: Python<'_>, config: Config) -> PyResult<Group> {
    let wish = Arc::<JoinInterrupt>::default();
    let heard = wish.clone();
    watched(py, None, move || heard.heed(|| config.connect()), move |words| wish.set(words))
}

/// Meet the other ranks: as the environment says, where `variables` does not say otherwise.
#[pyfunction]
#[pyo3(signature = (variables, *, strict=false, key_bytes=None))]
pub(crate) fn init(
    py: Python<'_>,
    variables: Variables,
    strict: bool,
    key_bytes: Option<[u8; 32]>,
) -> PyResult<PyGroup> {
    callbacks::listen();
    let mut config = Config::from_vars(read(&variables)).map_err(|e| errors::raised(py, None, &e))?;
    if let Some(bytes) = key_bytes {
        config = config.key(Key::from(bytes));
    }
    if strict && config.evidence().launcher == Launcher::Alone {
        let why = format!(
            "this process is in no job: {}; start it with `comity launch -n 2 -- python ...`, or set COMITY_RANK, COMITY_SIZE and COMITY_STORE",
            config.evidence().why
        );
        return Err(errors::raised(py, None, &ConfigError::new(why).into()));
    }
    let name = if config.evidence().launcher == Launcher::Alone { "alone" } else { "world" };
    Ok(PyGroup::new(connected(py, config)?, name.into()))
}

/// Meet the other ranks at a store that rank 0 runs and tells of through `set(name, text)`; the others read with
/// `get(name, seconds)`, which waits until the name is set. The job's key travels with it, so the group is as private as that
/// store, unless the environment gives a key.
#[pyfunction]
#[pyo3(signature = (rank, size, set, get, *, prefix="comity", variables=None))]
pub(crate) fn init_with_store(
    py: Python<'_>,
    rank: usize,
    size: usize,
    set: Py<PyAny>,
    get: Py<PyAny>,
    prefix: &str,
    variables: Option<Variables>,
) -> PyResult<PyGroup> {
    callbacks::listen();
    let variables = variables.unwrap_or_default();
    let var = read(&variables);
    let exchange = Callables::new(set, get, format!("{prefix}/store"));
    let config = Config::new(rank, size).job("store").settings_from_vars(var);
    let config = config.map_err(|e| errors::raised(py, None, &e))?.exchange(Arc::new(exchange));
    Ok(PyGroup::new(connected(py, config)?, prefix.into()))
}

/// Meeting point of a job's ranks. It runs in a thread of its own, until it is closed or dropped.
#[pyclass(frozen, module = "comity._core", name = "Store")]
pub(crate) struct PyStore {
    addr: SocketAddr,
    inner: Mutex<Option<tools::Store>>,
}

#[pymethods]
impl PyStore {
    #[new]
    fn new(
        py: Python<'_>,
        size: usize,
        key: [u8; 32],
        job: &str,
        at: (IpAddr, u16),
        join_timeout: f64,
    ) -> PyResult<Self> {
        let limit = seconds(py, None, join_timeout)?;
        let store = py.detach(|| tools::Store::start(at.into(), size, &Key::from(key), job, limit));
        let store = store.map_err(|e| errors::raised(py, None, &e))?;
        Ok(Self { addr: store.addr(), inner: Mutex::new(Some(store)) })
    }

    #[getter]
    fn address(&self) -> String {
        self.addr.to_string()
    }

    fn close(&self, py: Python<'_>) {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(inner));
    }
}

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

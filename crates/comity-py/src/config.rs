//! From variables, or the functions of a store, to a group.

use crate::{
    errors, exchange::Callables, group::PyGroup, interrupt::JoinInterrupt, logging, request::watched,
};
use comity::{Config, ConfigError, Group, Key, Launcher};
use pyo3::prelude::*;
use std::{collections::HashMap, ffi::OsString, sync::Arc};

/// Values that stand in for those of the environment; `None` for a variable that is to be unset.
type Variables = HashMap<String, Option<String>>;

/// Returns a reader of the variables for Comity.
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
    logging::listen();
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
    logging::listen();
    let variables = variables.unwrap_or_default();
    let var = read(&variables);
    let exchange = Callables::new(set, get, format!("{prefix}/store"));
    let config = Config::new(rank, size).job("store").settings_from_vars(var);
    let config = config.map_err(|e| errors::raised(py, None, &e))?.exchange(Arc::new(exchange));
    Ok(PyGroup::new(connected(py, config)?, prefix.into()))
}

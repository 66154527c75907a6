//! From variables, or the functions of a store, to a group.

use crate::{board::Callables, errors, group::Group, request::watched};
use comity::{Board, Config, Error, Key, Launcher};
use pyo3::prelude::*;
use std::{
    collections::HashMap,
    ffi::OsString,
    sync::Arc,
    time::{Duration, Instant},
};

/// Values that stand in for those of the environment; `None` for a variable that is to be unset.
type Variables = HashMap<String, Option<String>>;

/// How long to wait for the store where nothing else is said: as for the ranks.
const JOIN: Duration = Duration::from_secs(60);

fn config(variables: &Variables) -> comity::Result<Config> {
    Config::from_vars(|name| match variables.get(name) {
        Some(value) => value.as_ref().map(OsString::from),
        None => std::env::var_os(name),
    })
}

fn key(bytes: Option<[u8; 32]>, config: Config) -> Config {
    match bytes {
        Some(bytes) => config.key(Key::from(bytes)),
        None => config,
    }
}

/// Meet the other ranks: as the environment says, where `variables` does not say otherwise.
#[pyfunction]
#[pyo3(signature = (variables, *, strict=false, key_bytes=None))]
pub(crate) fn init(
    py: Python<'_>,
    variables: Variables,
    strict: bool,
    key_bytes: Option<[u8; 32]>,
) -> PyResult<Group> {
    let config = config(&variables).map(|c| key(key_bytes, c)).map_err(|e| errors::raised(py, &e))?;
    if strict && config.found().launcher == Launcher::Alone {
        let why = format!(
            "this process is in no job: {}; start it with `comity launch -n 2 -- python ...`, or set COMITY_RANK, COMITY_SIZE and COMITY_STORE",
            config.found().why
        );
        return Err(errors::raised(py, &Error::Config(why)));
    }
    let group = watched(py, move || config.connect())?;
    Ok(Group::new(group, "world".into()))
}

/// Meet the other ranks at a store that rank 0 runs and tells of through `set(name, text)`; the others read with
/// `get(name, seconds)`, which waits until the name is set. The job's key travels the same way, so the group is as private as that
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
) -> PyResult<Group> {
    let mut variables = variables.unwrap_or_default();
    for (name, value) in [
        ("COMITY_RANK", rank.to_string()),
        ("COMITY_SIZE", size.to_string()),
        // The board takes its place below.
        ("COMITY_STORE", "localhost:1".into()),
        ("COMITY_JOB", "store".into()),
    ] {
        variables.entry(name.into()).or_insert(Some(value));
    }
    let said = |name: &str| match variables.get(name) {
        Some(value) => value.is_some(),
        None => std::env::var_os(name).is_some(),
    };
    let told = ["COMITY_KEY_FD", "COMITY_KEY_FILE", "COMITY_INSECURE"].into_iter().any(said);
    let config = config(&variables).map_err(|e| errors::raised(py, &e))?;
    if size == 1 {
        return Ok(Group::new(config.connect().map_err(|e| errors::raised(py, &e))?, prefix.into()));
    }
    let (board, keys) = Python::attach(|py| {
        let board = Callables::new(set.clone_ref(py), get.clone_ref(py), format!("{prefix}/store"));
        (board, Callables::new(set, get, format!("{prefix}/key")))
    });
    let name = prefix.to_owned();
    let group = watched(py, move || {
        let config = config.board(Arc::new(board));
        if told {
            return config.connect();
        }
        let own = (rank == 0).then(Key::random).transpose()?;
        let hex = own.as_ref().map(|k| k.bytes().iter().map(|b| format!("{b:02x}")).collect::<String>());
        let hex = keys.share(rank, size, hex.as_deref(), Instant::now() + JOIN)?;
        config.key(Key::from_hex(&hex)?).connect()
    })?;
    Ok(Group::new(group, name))
}

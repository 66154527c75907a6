//! A job's store, for launchers in Python.

use crate::{errors, request::seconds};
use comity::{Key, tools};
use pyo3::prelude::*;
use std::{
    net::{IpAddr, SocketAddr},
    sync::{Mutex, PoisonError},
};

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

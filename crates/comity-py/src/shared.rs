//! Memory that the other ranks of this host read where it lies, as an object with the buffer protocol.
#![allow(unsafe_code, reason = "memory that Python borrows")]

use comity::SharedBuffer;
use pyo3::{exceptions::PyBufferError, ffi, prelude::*};
use std::ffi::c_int;

/// Bytes of [`comity::Group::alloc`], which live as long as whatever borrows them through the buffer protocol.
#[pyclass(frozen, module = "comity._core", name = "SharedBytes")]
pub(crate) struct SharedBytes(SharedBuffer<u8>);

impl SharedBytes {
    pub(crate) fn new(bytes: SharedBuffer<u8>) -> Self {
        Self(bytes)
    }
}

#[pymethods]
impl SharedBytes {
    /// Reason for which it is ordinary memory, if it is.
    #[getter]
    fn why_not(&self) -> Option<&str> {
        self.0.why_not()
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// # Safety
    /// Only Python calls it, with a view to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let bytes = &slf.get().0;
        let len =
            ffi::Py_ssize_t::try_from(bytes.len()).map_err(|e| PyBufferError::new_err(e.to_string()))?;
        // SAFETY: `view` is Python's to fill; the bytes live as long as `slf`, to which the view holds a reference.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), bytes.begin().as_ptr().cast(), len, 0, flags)
        };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

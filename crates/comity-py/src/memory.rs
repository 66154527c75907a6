//! The memory of a Python object that has the buffer protocol.

use pyo3::{
    buffer::PyUntypedBuffer,
    prelude::*,
    types::{PyMemoryView, PyTuple},
};

/// The memory of an object, kept in place as long as this lives.
#[pyclass(frozen, module = "comity._core", name = "Memory")]
pub(crate) struct HeldMemory {
    buffer: PyUntypedBuffer,
}

#[pymethods]
impl HeldMemory {
    #[new]
    fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        // Some objects leave out what follows from the rest (ctypes: the strides); a memoryview fills it in.
        let buffer = PyUntypedBuffer::get(object)
            .or_else(|_| PyUntypedBuffer::get(PyMemoryView::from(object)?.as_any()))?;
        Ok(Self { buffer })
    }

    #[getter]
    fn address(&self) -> usize {
        self.buffer.buf_ptr() as usize
    }

    #[getter]
    fn count(&self) -> usize {
        self.buffer.item_count()
    }

    #[getter]
    fn itemsize(&self) -> usize {
        self.buffer.item_size()
    }

    #[getter]
    fn format(&self) -> String {
        self.buffer.format().to_string_lossy().into_owned()
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.buffer.shape())
    }

    /// True if the elements lie one after the other, the last axis fastest.
    #[getter]
    fn contiguous(&self) -> bool {
        self.buffer.is_c_contiguous()
    }

    #[getter]
    fn readonly(&self) -> bool {
        self.buffer.readonly()
    }
}

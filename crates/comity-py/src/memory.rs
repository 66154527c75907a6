//! Memory of Python's: what it vouches for (the one place where an address becomes a buffer), what its objects lend, and what it borrows.
#![allow(unsafe_code, reason = "memory that Python vouches for, and that it borrows")]

use comity::{DType, Place, SharedBuffer, tools::ForeignMemory};
use pyo3::{
    buffer::PyUntypedBuffer,
    exceptions::PyBufferError,
    ffi,
    prelude::*,
    types::{PyMemoryView, PyTuple},
};
use std::ffi::c_int;

/// Memory by an address, the number of a type and a count of elements, as they came from Python; the error says why it cannot be. Whoever
/// passes them keeps the memory alive and lets nothing else write it until the call has ended: `comity._core` is private, and its callers
/// in this package hold the array that the address came from.
pub(crate) fn vouched(
    (ptr, dtype, count): (usize, u8, usize),
    place: Place,
) -> Result<ForeignMemory, String> {
    let Some(&dtype) = DType::ALL.get(usize::from(dtype)) else {
        return Err(format!("{dtype} is no type's number; see comity._core.DTYPES"));
    };
    // SAFETY: the caller in Python promises that this is memory which lives as long as the call, and that nothing else uses it meanwhile.
    let memory = unsafe { ForeignMemory::new(ptr, count, dtype, place) };
    memory.ok_or_else(|| format!("{count} elements of {dtype} at address {ptr:#x} are no memory"))
}

/// The memory of an object with the buffer protocol while this is borrowed: one block without gaps, its elements in order.
pub(crate) struct BorrowedBuffer(ffi::Py_buffer);

impl BorrowedBuffer {
    /// Run `f` with the memory of `object`, which stays where it is meanwhile; `None` if the object does not lend it so. Its format, which
    /// takes NumPy longest to say, is not asked for.
    pub(crate) fn with<R>(
        object: &Bound<'_, PyAny>,
        writable: bool,
        f: impl FnOnce(&Self) -> R,
    ) -> Option<R> {
        let flags = ffi::PyBUF_C_CONTIGUOUS | if writable { ffi::PyBUF_WRITABLE } else { 0 };
        let mut lent = Self(ffi::Py_buffer::new());
        // SAFETY: the interpreter's lock is held, which `object` shows; the buffer stays in this frame until it is given back.
        if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &mut lent.0, flags) } != 0 {
            // Who asks in another way gets a better error.
            drop(PyErr::take(object.py()));
            return None;
        }
        let out = f(&lent);
        // SAFETY: filled above, given back once, with the lock held.
        unsafe { ffi::PyBuffer_Release(&mut lent.0) };
        Some(out)
    }

    /// The memory as elements of `dtype`; `None` if they do not fit.
    pub(crate) fn elements(&self, dtype: DType) -> Option<ForeignMemory> {
        let bytes = usize::try_from(self.0.len).ok()?;
        let count = bytes / dtype.size();
        if count * dtype.size() != bytes {
            return None;
        }
        vouched((self.0.buf as usize, dtype as u8, count), Place::Host).ok()
    }

    pub(crate) fn shape(&self) -> &[isize] {
        if self.0.shape.is_null() {
            return &[];
        }
        // SAFETY: the object that filled it says so many lengths, which stand as long as the buffer is lent.
        unsafe { std::slice::from_raw_parts(self.0.shape, usize::try_from(self.0.ndim).unwrap_or(0)) }
    }
}

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

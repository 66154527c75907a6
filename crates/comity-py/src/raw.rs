//! Memory that Python vouches for: the one place where an address becomes a buffer.
#![allow(unsafe_code, reason = "memory that Python vouches for")]

use comity::{DType, Place, tools::ForeignMemory};
use pyo3::{ffi, prelude::*};

/// Memory by an address, the number of a type and a count of elements, as they came from Python; the error says why it cannot be. Whoever
/// passes them keeps the memory alive and lets nothing else write it until the call has ended: `comity._core` is private, and its callers
/// in this package hold the array that the address came from.
pub(crate) fn memory((ptr, dtype, count): (usize, u8, usize), place: Place) -> Result<ForeignMemory, String> {
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
        memory((self.0.buf as usize, dtype as u8, count), Place::Host).ok()
    }

    /// The lengths of the axes.
    pub(crate) fn shape(&self) -> &[isize] {
        if self.0.shape.is_null() {
            return &[];
        }
        // SAFETY: the object that filled it says so many lengths, which stand as long as the buffer is lent.
        unsafe { std::slice::from_raw_parts(self.0.shape, usize::try_from(self.0.ndim).unwrap_or(0)) }
    }
}

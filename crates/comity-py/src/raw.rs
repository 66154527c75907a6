//! Memory that Python vouches for: the one place where an address becomes a buffer.
#![allow(unsafe_code, reason = "memory that Python vouches for")]

use comity::{DType, Place, View, ViewMut, tools::cuda};
use pyo3::{ffi, prelude::*};
use std::ops::Range;

/// An address, a type and a count of elements, as they came from Python. Whoever passes them keeps the memory alive and lets
/// nothing else write it until the call has ended: `comity._core` is private, and its callers in this package
/// hold the array that the address came from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawBuffer {
    ptr: usize,
    count: usize,
    dtype: DType,
    place: Place,
}

impl RawBuffer {
    /// Checks that it can be memory at all; the error says why not.
    pub(crate) fn new((ptr, dtype, count): (usize, u8, usize), place: Place) -> Result<Self, String> {
        let Some(&dtype) = DType::ALL.get(usize::from(dtype)) else {
            return Err(format!("{dtype} is no type's number; see comity._core.DTYPES"));
        };
        let end = count.checked_mul(dtype.size()).and_then(|n| ptr.checked_add(n));
        if end.is_none_or(|e| e > isize::MAX as usize) || (ptr == 0 && count > 0) {
            return Err(format!("{count} elements of {dtype} at address {ptr:#x} are no memory"));
        }
        Ok(Self { ptr, count, dtype, place })
    }

    /// The bytes, as addresses.
    pub(crate) fn range(self) -> Range<usize> {
        self.ptr..self.ptr + self.count * self.dtype.size()
    }

    pub(crate) fn overlaps(self, other: Self) -> bool {
        let a = self.range();
        let b = other.range();
        a.start < b.end && b.start < a.end
    }

    /// To read during one call.
    pub(crate) fn view<'a>(&'a self) -> View<'a> {
        // SAFETY: see the type: the caller in Python promises that this is memory which lives as long as the call. No address
        // arithmetic overflows, as `new` has checked.
        unsafe { View::from_raw(self.ptr as *const u8, self.count, self.dtype, self.place) }
    }

    /// To write during one call.
    pub(crate) fn view_mut<'a>(&'a self) -> ViewMut<'a> {
        // SAFETY: as above; `PreparedCall::new` has checked that no other buffer of the call overlaps this one, and nothing else
        // uses it meanwhile, by the caller's promise.
        unsafe { ViewMut::from_raw(self.ptr as *mut u8, self.count, self.dtype, self.place) }
    }

    /// Copy these bytes to `other`, which has as many, in the same place.
    pub(crate) fn copy_to(&self, other: &Self) -> comity::Result<()> {
        let from = self.range();
        let to = other.range();
        assert_eq!(from.len(), to.len(), "a copy keeps its length");
        match self.place {
            _ if from.is_empty() => Ok(()),
            Place::Cuda { device, stream } => {
                // SAFETY: both are memory of this device, as the caller promised, for as long as its stream has not come past the call.
                unsafe { cuda::copy(device, to.start, from.start, from.len(), stream) }
            }
            _ => {
                // SAFETY: both are memory of that many bytes, as the caller promised; `copy` allows overlap.
                unsafe { std::ptr::copy(from.start as *const u8, to.start as *mut u8, from.len()) };
                Ok(())
            }
        }
    }
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
    pub(crate) fn elements(&self, dtype: DType) -> Option<RawBuffer> {
        let bytes = usize::try_from(self.0.len).ok()?;
        let count = bytes / dtype.size();
        if count * dtype.size() != bytes {
            return None;
        }
        RawBuffer::new((self.0.buf as usize, dtype as u8, count), Place::Host).ok()
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

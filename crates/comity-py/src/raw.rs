//! Memory that Python vouches for: the one place where an address becomes a buffer.

use comity::{DType, Place, View, ViewMut};
use std::ops::Range;

/// An address, a type and a count of elements, as they came from Python. Whoever passes them keeps the memory alive and lets
/// nothing else write it until the call has ended: `comity._core` is private, and its callers in this package
/// hold the array that the address came from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Raw {
    ptr: usize,
    count: usize,
    dtype: DType,
}

impl Raw {
    /// What was given, if it can be memory at all; else words that say why not.
    pub(crate) fn new((ptr, dtype, count): (usize, u8, usize)) -> Result<Self, String> {
        let Some(&dtype) = DType::ALL.get(usize::from(dtype)) else {
            return Err(format!("{dtype} is no type's number; see comity._core.DTYPES"));
        };
        let end = count.checked_mul(dtype.size()).and_then(|n| ptr.checked_add(n));
        if end.is_none_or(|e| e > isize::MAX as usize) || (ptr == 0 && count > 0) {
            return Err(format!("{count} elements of {dtype} at address {ptr:#x} are no memory"));
        }
        Ok(Self { ptr, count, dtype })
    }

    /// The bytes, as addresses.
    pub(crate) fn range(self) -> Range<usize> {
        self.ptr..self.ptr + self.count * self.dtype.size()
    }

    pub(crate) fn overlaps(self, other: Self) -> bool {
        let (a, b) = (self.range(), other.range());
        a.start < b.end && b.start < a.end
    }

    /// To read during one call.
    pub(crate) fn view<'a>(&'a self) -> View<'a> {
        // SAFETY: see the type: the caller in Python promises that this is memory which lives as long as the call. No address
        // arithmetic overflows, as `new` has checked.
        unsafe { View::from_raw(self.ptr as *const u8, self.count, self.dtype, Place::Host) }
    }

    /// To write during one call.
    pub(crate) fn view_mut<'a>(&'a self) -> ViewMut<'a> {
        // SAFETY: as above; `Work::new` has checked that no other buffer of the call overlaps this one, and nothing else
        // uses it meanwhile, by the caller's promise.
        unsafe { ViewMut::from_raw(self.ptr as *mut u8, self.count, self.dtype, Place::Host) }
    }

    /// Copy these bytes to `other`, which has as many.
    pub(crate) fn copy_to(&self, other: &Self) {
        let (from, to) = (self.range(), other.range());
        assert_eq!(from.len(), to.len(), "a copy keeps its length");
        if !from.is_empty() {
            // SAFETY: both are memory of that many bytes, as the caller promised; `copy` allows overlap.
            unsafe { std::ptr::copy(from.start as *const u8, to.start as *mut u8, from.len()) };
        }
    }
}

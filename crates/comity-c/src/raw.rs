//! Memory that C vouches for: the only place that follows pointers from C.
//!
//! The functions here are not `unsafe`, because there is nobody in Rust to make their promise: the header makes it of each pointer,
//! and a C program that breaks it breaks itself. What can be seen to be wrong (NULL, sizes, overlaps) is refused.

use crate::errors::CFault;
use comity::{DType, Place, View, ViewMut};
use std::{
    ffi::{CStr, c_char},
    mem::MaybeUninit,
    ops::Range,
    ptr, slice,
};

/// The first field of a struct that may grow.
pub(crate) trait Growing: Copy {
    /// Bytes of a struct of the first version.
    const FIRST: usize;
}

impl Growing for crate::types::comity_call {
    const FIRST: usize = 104;
}

impl Growing for crate::types::comity_error_info {
    const FIRST: usize = 96;
}

impl Growing for crate::types::comity_member {
    const FIRST: usize = 40;
}

impl Growing for crate::types::comity_stats {
    const FIRST: usize = 56;
}

impl Growing for crate::types::comity_reform_options {
    const FIRST: usize = 24;
}

impl Growing for crate::types::comity_departure {
    const FIRST: usize = 40;
}

/// Checks that a result can be written there.
pub(crate) fn check_out<T>(what: &str, at: *mut T) -> Result<(), CFault> {
    if at.is_null() { Err(CFault::misuse(format!("{what} is NULL"))) } else { Ok(()) }
}

/// Write a result.
pub(crate) fn put<T>(at: *mut T, value: T) -> Result<(), CFault> {
    check_out("the place for the result", at)?;
    // SAFETY: not NULL, and by the header's promise a place for one value.
    unsafe { at.write_unaligned(value) };
    Ok(())
}

/// Write one of several results.
pub(crate) fn put_at<T>(at: *mut T, index: usize, value: T) {
    // SAFETY: by the header's promise a place for so many values; the caller has seen that it is not NULL.
    unsafe { at.add(index).write_unaligned(value) };
}

/// The size that C wrote into its struct, if it can be one.
fn size_of_theirs<T: Growing>(what: &str, at: *const T) -> Result<usize, CFault> {
    if at.is_null() {
        return Err(CFault::misuse(format!("the {what} is NULL")));
    }
    // SAFETY: not NULL, and by the header's promise such a struct, which begins with its size.
    let size = unsafe { at.cast::<usize>().read_unaligned() };
    if size < T::FIRST || size > 4096 {
        return Err(CFault::misuse(format!(
            "the size in the {what} is {size}; set it to sizeof({what}), which is {} here",
            size_of::<T>()
        )));
    }
    Ok(size)
}

/// Write a struct, as much of it as the caller's version has.
pub(crate) fn put_struct<T: Growing>(what: &str, at: *mut T, value: T) -> Result<(), CFault> {
    let size = size_of_theirs(what, at)?.min(size_of::<T>());
    let own = size_of::<usize>();
    // SAFETY: their struct has so many bytes, and so has ours; their size, which comes first, stays.
    unsafe {
        let from = (&raw const value).cast::<u8>().add(own);
        ptr::copy_nonoverlapping(from, at.cast::<u8>().add(own), size - own);
    }
    Ok(())
}

/// A struct of the caller's, with 0 in what its version lacks.
pub(crate) fn take_struct<T: Growing>(what: &str, at: *const T) -> Result<T, CFault> {
    let size = size_of_theirs(what, at)?;
    let own = size_of::<T>();
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: their struct has so many bytes, and ours has room for the smaller number.
    unsafe { ptr::copy_nonoverlapping(at.cast::<u8>(), value.as_mut_ptr().cast::<u8>(), size.min(own)) };
    // SAFETY: the rest of their bytes.
    let beyond =
        unsafe { slice::from_raw_parts(at.cast::<u8>().add(size.min(own)), size.saturating_sub(own)) };
    if beyond.iter().any(|b| *b != 0) {
        let words =
            format!("the {what} uses fields that this library ({}) does not know", env!("CARGO_PKG_VERSION"));
        return Err(CFault::misuse(words));
    }
    // SAFETY: integers, floats and pointers, for which all bytes are good.
    Ok(unsafe { value.assume_init() })
}

/// A list of the caller's.
pub(crate) fn list<'a, T: Copy>(what: &str, at: *const T, count: usize) -> Result<&'a [T], CFault> {
    if count == 0 {
        return Ok(&[]);
    }
    if at.is_null() || !at.is_aligned() {
        return Err(CFault::misuse(format!(
            "{what} is {}",
            if at.is_null() { "NULL" } else { "not aligned" }
        )));
    }
    if count > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(CFault::misuse(format!("{what} cannot have {count} entries")));
    }
    // SAFETY: aligned, and by the header's promise so many values that stay during the call.
    Ok(unsafe { slice::from_raw_parts(at, count) })
}

/// A text of the caller's.
pub(crate) fn text<'a>(what: &str, at: *const c_char) -> Result<&'a str, CFault> {
    if at.is_null() {
        return Err(CFault::misuse(format!("{what} is NULL")));
    }
    // SAFETY: not NULL, and by the header's promise a text with a NUL at its end that stays during the call.
    let text = unsafe { CStr::from_ptr(at) };
    text.to_str().map_err(|_| CFault::misuse(format!("{what} is not UTF-8")))
}

/// Memory of a call: an address, a type and a count of elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CMemory {
    ptr: usize,
    count: usize,
    dtype: DType,
    place: Place,
}

impl CMemory {
    /// Checks that it can be memory at all. `what` is its name in the header.
    #[inline(always)]
    pub(crate) fn new(
        what: &str,
        ptr: usize,
        count: usize,
        dtype: DType,
        place: Place,
    ) -> Result<Self, CFault> {
        let end = count.checked_mul(dtype.size()).and_then(|n| ptr.checked_add(n));
        if end.is_none_or(|e| e > isize::MAX as usize) || (ptr == 0 && count > 0) {
            return Err(no_memory(what, ptr, count, dtype));
        }
        Ok(Self { ptr, count, dtype, place })
    }

    /// The bytes, as addresses.
    #[inline]
    pub(crate) fn range(self) -> Range<usize> {
        self.ptr..self.ptr + self.count * self.dtype.size()
    }

    /// To read during one call.
    #[inline]
    pub(crate) fn view<'a>(self) -> View<'a> {
        // SAFETY: by the header's promise memory of that size, which nobody writes until the call has ended. No address arithmetic
        // overflows, as `new` has checked.
        unsafe { View::from_raw(ptr::with_exposed_provenance(self.ptr), self.count, self.dtype, self.place) }
    }

    /// To write during one call.
    #[inline]
    pub(crate) fn view_mut<'a>(self) -> ViewMut<'a> {
        let at = ptr::with_exposed_provenance_mut(self.ptr);
        // SAFETY: as above; `CheckedCall::new` has checked that no other buffer of the call overlaps this one.
        unsafe { ViewMut::from_raw(at, self.count, self.dtype, self.place) }
    }

    /// Copy these bytes to `other`, which has as many, in the same place.
    pub(crate) fn copy_to(self, other: Self) -> comity::Result<()> {
        let from = self.range();
        let to = other.range();
        match self.place {
            _ if from.is_empty() => Ok(()),
            Place::Cuda { device, stream } => {
                // SAFETY: both are memory of this device, by the header's promise, for as long as its stream has not come past the call.
                unsafe { comity::tools::cuda::copy(device, to.start, from.start, from.len(), stream) }
            }
            _ => {
                let to = ptr::with_exposed_provenance_mut::<u8>(to.start);
                // SAFETY: both are memory of that many bytes, by the header's promise; `copy` allows overlap.
                unsafe { ptr::copy(ptr::with_exposed_provenance::<u8>(from.start), to, from.len()) };
                Ok(())
            }
        }
    }
}

#[cold]
#[inline(never)]
fn no_memory(what: &str, ptr: usize, count: usize, dtype: DType) -> CFault {
    if ptr == 0 {
        return CFault::misuse(format!("{what} is NULL, and should hold {count} elements of {dtype}"));
    }
    CFault::misuse(format!("{what}: {count} elements of {dtype} at address {ptr:#x} are no memory"))
}

/// A pointer of the caller's that a callback gets back, on whatever thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context(pub(crate) *mut std::ffi::c_void);

// SAFETY: nothing here follows it; by the header's promise the callback that does may be called on any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

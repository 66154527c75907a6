//! Memory that C vouches for: the only place that follows pointers from C.
//!
//! The functions here are not `unsafe`, because there is nobody in Rust to make their promise: the header makes it of each pointer,
//! and a C program that breaks it breaks itself. What can be seen to be wrong (NULL, sizes, overlaps) is refused.

use crate::errors::CFault;
use comity::{DType, Place, tools::ForeignMemory};
use std::{
    ffi::{CStr, c_char},
    mem::MaybeUninit,
    ptr, slice,
};

/// The first field of a struct that may grow.
pub(crate) trait Growing: Copy {
    /// Bytes of a struct of the first version.
    const FIRST: usize;
}

macro_rules! growing {
    ($($name:ident = $first:literal),*) => {
        $(impl Growing for crate::types::$name {
            const FIRST: usize = $first;
        })*
    };
}
growing!(
    comity_call = 104,
    comity_error_info = 96,
    comity_member = 40,
    comity_stats = 56,
    comity_reform_options = 24,
    comity_departure = 40
);

/// A struct of the header with nothing in it.
pub(crate) fn zeroed<T: Growing>() -> T {
    // SAFETY: integers, floats and pointers, for which all bytes are good.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// Checks that a result can be written there.
pub(crate) fn check_out<T>(what: &str, at: *mut T) -> Result<(), CFault> {
    if at.is_null() { Err(CFault::misuse(format!("{what} is NULL"))) } else { Ok(()) }
}

pub(crate) fn put<T>(at: *mut T, value: T) -> Result<(), CFault> {
    check_out("the place for the result", at)?;
    // SAFETY: not NULL, and by the header's promise a place for one value.
    unsafe { at.write_unaligned(value) };
    Ok(())
}

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

pub(crate) fn text<'a>(what: &str, at: *const c_char) -> Result<&'a str, CFault> {
    if at.is_null() {
        return Err(CFault::misuse(format!("{what} is NULL")));
    }
    // SAFETY: not NULL, and by the header's promise a text with a NUL at its end that stays during the call.
    let text = unsafe { CStr::from_ptr(at) };
    text.to_str().map_err(|_| CFault::misuse(format!("{what} is not UTF-8")))
}

/// Memory of a call, if it can be memory at all. `what` is its name in the header.
#[inline(always)]
pub(crate) fn memory(
    what: &str,
    ptr: usize,
    count: usize,
    dtype: DType,
    place: Place,
) -> Result<ForeignMemory, CFault> {
    // SAFETY: by the header's promise memory of that size until the call has ended.
    match unsafe { ForeignMemory::new(ptr, count, dtype, place) } {
        Some(memory) => Ok(memory),
        None => Err(no_memory(what, ptr, count, dtype)),
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

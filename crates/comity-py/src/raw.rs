//! Memory that Python vouches for: the one place where an address becomes a buffer.

use comity::{DType, Place, View, ViewMut, cuda};
use std::ops::Range;

/// An address, a type and a count of elements, as they came from Python. Whoever passes them keeps the memory alive and lets
/// nothing else write it until the call has ended: `comity._core` is private, and its callers in this package
/// hold the array that the address came from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Raw {
    ptr: usize,
    count: usize,
    dtype: DType,
    place: Place,
}

/// A point in a device's work that Python's side made, to be set behind a call's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    device: u32,
    stream: usize,
    event: usize,
}

impl Mark {
    /// An event of the place's device, which whoever passes it keeps until the call has ended; `None` for host memory and for 0.
    pub(crate) fn new(place: Place, event: usize) -> Option<Self> {
        match place {
            Place::Cuda { device, stream } if event != 0 => Some(Self { device, stream, event }),
            _ => None,
        }
    }

    /// Set it behind what is on the stream so far.
    pub(crate) fn set(&self) -> comity::Result<()> {
        // SAFETY: both came from Python as the handles of live objects of this device, which its caller holds.
        unsafe { cuda::record(self.device, self.event, self.stream) }
    }
}

impl Raw {
    /// What was given, if it can be memory at all; else words that say why not.
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
        let (a, b) = (self.range(), other.range());
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
        // SAFETY: as above; `Work::new` has checked that no other buffer of the call overlaps this one, and nothing else
        // uses it meanwhile, by the caller's promise.
        unsafe { ViewMut::from_raw(self.ptr as *mut u8, self.count, self.dtype, self.place) }
    }

    /// Copy these bytes to `other`, which has as many, in the same place.
    pub(crate) fn copy_to(&self, other: &Self) -> comity::Result<()> {
        let (from, to) = (self.range(), other.range());
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

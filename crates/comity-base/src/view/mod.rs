//! Borrowed, type-erased buffers: what every operation takes.
#![allow(unsafe_code, reason = "borrowed memory of any type")]

mod buffer;
mod memory;

pub use buffer::SharedBuffer;
pub use memory::Memory;

use crate::{DType, Element};
use std::marker::PhantomData;

/// Location of a buffer's bytes: host memory or a CUDA device.
///
/// ```
/// use comity::{Place, View};
///
/// let x = [1f32; 4];
/// assert_eq!(View::from(&x).place(), Place::Host);
/// ```
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Host memory.
    Host,
    /// CUDA device memory; work is ordered on `stream` (a `cudaStream_t`).
    Cuda {
        /// Device ordinal.
        device: u32,
        /// The stream, as an address, so that views stay `Send`.
        stream: usize,
    },
}

impl Place {
    /// Device and stream; `None` for host memory.
    #[doc(hidden)]
    #[inline]
    pub fn device(self) -> Option<(u32, usize)> {
        match self {
            Self::Host => None,
            Self::Cuda { device, stream } => Some((device, stream)),
        }
    }
}

/// A buffer to read from: an address, a number of elements, their type, and where they are.
///
/// Operations take `impl Into<View>`, so you pass slices, vectors and arrays as they are.
///
/// ```
/// use comity::{DType, View};
///
/// let x = vec![1f32; 1000];
/// let view = View::from(&x);
/// assert_eq!((view.count(), view.dtype(), view.len_bytes()), (1000, DType::F32, 4000));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    pub(crate) ptr: *const u8,
    pub(crate) count: usize,
    pub(crate) dtype: DType,
    pub(crate) place: Place,
    life: PhantomData<&'a [u8]>,
}

/// A buffer to write to, or to work on in place. Otherwise as [`View`].
///
/// ```
/// use comity::{Group, Place, ReduceOp, ViewMut};
///
/// let mut x = [1u8; 16];
/// let mut view = ViewMut::from(&mut x);
/// assert_eq!((view.count(), view.len_bytes(), view.dtype().name(), view.place()), (16, 16, "u8", Place::Host));
/// let group = Group::single();
/// group.all_reduce(view.reborrow(), ReduceOp::Sum)?; // a call takes the view; a shorter borrow leaves it here
/// group.broadcast(view, 0)?;
/// # Ok::<(), comity::Error>(())
/// ```
#[derive(Debug)]
pub struct ViewMut<'a> {
    pub(crate) ptr: *mut u8,
    pub(crate) count: usize,
    pub(crate) dtype: DType,
    pub(crate) place: Place,
    life: PhantomData<&'a mut [u8]>,
}

// SAFETY: a view is a shared borrow of plain data, and `Element: Send + Sync`.
unsafe impl Send for View<'_> {}
// SAFETY: as above.
unsafe impl Sync for View<'_> {}
// SAFETY: a `ViewMut` is the only path to its bytes, which are plain data.
unsafe impl Send for ViewMut<'_> {}

impl View<'_> {
    /// A view of `count` elements from `ptr` on, for buffers that Rust does not own (C, Python, CUDA).
    ///
    /// `ptr` need not be aligned for `dtype`.
    ///
    /// ```
    /// use comity::{DType, Place, View};
    ///
    /// let bytes = [0u8; 64];
    /// // SAFETY: 16 elements of 4 bytes, borrowed for as long as the view is used.
    /// let view = unsafe { View::from_raw(bytes.as_ptr(), 16, DType::F32, Place::Host) };
    /// assert_eq!(view.len_bytes(), 64);
    /// ```
    ///
    /// # Safety
    /// `ptr` is readable for `count * dtype.size()` bytes in `place` for `'a`; bytes of [`DType::Bool`] are 0 or 1.
    #[inline]
    pub unsafe fn from_raw(ptr: *const u8, count: usize, dtype: DType, place: Place) -> Self {
        Self { ptr, count, dtype, place, life: PhantomData }
    }
}

impl ViewMut<'_> {
    /// A view of `count` elements from `ptr` on, to write to; otherwise as [`View::from_raw`].
    ///
    /// ```
    /// use comity::{DType, Place, ViewMut};
    ///
    /// let mut bytes = [0u8; 64];
    /// // SAFETY: 16 elements of 4 bytes, which only the view uses while it lives.
    /// let view = unsafe { ViewMut::from_raw(bytes.as_mut_ptr(), 16, DType::I32, Place::Host) };
    /// comity::Group::single().broadcast(view, 0)?;
    /// # Ok::<(), comity::Error>(())
    /// ```
    ///
    /// # Safety
    /// `ptr` is readable and writable for `count * dtype.size()` bytes in `place` for `'a`, and
    /// nothing else reads or writes them meanwhile.
    #[inline]
    pub unsafe fn from_raw(ptr: *mut u8, count: usize, dtype: DType, place: Place) -> Self {
        Self { ptr, count, dtype, place, life: PhantomData }
    }

    /// The same buffer, borrowed for a shorter time.
    #[inline]
    pub fn reborrow(&mut self) -> ViewMut<'_> {
        ViewMut { ptr: self.ptr, count: self.count, dtype: self.dtype, place: self.place, life: PhantomData }
    }
}

/// Implements what both kinds of view tell of their buffer.
macro_rules! tell {
    ($($view:ident),*) => {$(
        impl $view<'_> {
            /// The number of elements.
            #[inline]
            pub fn count(&self) -> usize {
                self.count
            }

            /// The type of the elements.
            #[inline]
            pub fn dtype(&self) -> DType {
                self.dtype
            }

            /// Returns the location of the bytes.
            #[inline]
            pub fn place(&self) -> Place {
                self.place
            }

            /// The size in bytes: elements times the size of one.
            #[inline]
            pub fn len_bytes(&self) -> usize {
                self.count * self.dtype.size()
            }

            /// The address of the bytes, in `place`.
            #[doc(hidden)]
            #[inline]
            pub fn addr(&self) -> usize {
                self.ptr.expose_provenance()
            }
        }
    )*};
}
tell!(View, ViewMut);

impl<'a, T: Element> From<&'a [T]> for View<'a> {
    #[inline]
    fn from(s: &'a [T]) -> Self {
        // SAFETY: a borrowed slice of plain data.
        unsafe { Self::from_raw(s.as_ptr().cast(), s.len(), T::DTYPE, Place::Host) }
    }
}

impl<'a, T: Element> From<&'a mut [T]> for ViewMut<'a> {
    #[inline]
    fn from(s: &'a mut [T]) -> Self {
        // SAFETY: an exclusively borrowed slice of plain data.
        unsafe { Self::from_raw(s.as_mut_ptr().cast(), s.len(), T::DTYPE, Place::Host) }
    }
}

/// Makes views of what has a slice.
macro_rules! of_slices {
    ($view:ident, $slice:ident $(, $mutable:tt)?) => {
        impl<'a, T: Element> From<&'a $($mutable)? Vec<T>> for $view<'a> {
            #[inline]
            fn from(s: &'a $($mutable)? Vec<T>) -> Self {
                s.$slice().into()
            }
        }

        impl<'a, T: Element, const N: usize> From<&'a $($mutable)? [T; N]> for $view<'a> {
            #[inline]
            fn from(s: &'a $($mutable)? [T; N]) -> Self {
                s.$slice().into()
            }
        }
    };
}
of_slices!(View, as_slice);
of_slices!(ViewMut, as_mut_slice, mut);

/// Copy the whole of `src` to `dst`, which has the same size.
pub fn copy(src: View<'_>, dst: ViewMut<'_>) {
    assert_eq!(src.len_bytes(), dst.len_bytes());
    // SAFETY: both live in host memory for that many bytes (checked by the group for every call); `copy` allows overlap.
    unsafe { std::ptr::copy(src.ptr, dst.ptr, src.len_bytes()) };
}

impl ViewMut<'_> {
    /// The bytes, where they are in host memory.
    #[doc(hidden)]
    pub fn bytes(&self) -> Option<&[u8]> {
        // SAFETY: readable for that many bytes, which nobody writes while this view is borrowed.
        let slice = || unsafe { std::slice::from_raw_parts(self.ptr, self.len_bytes()) };
        match self.place {
            Place::Host if self.len_bytes() == 0 => Some(&[]),
            Place::Host => Some(slice()),
            Place::Cuda { .. } => None,
        }
    }

    /// The same buffer, to be read.
    #[doc(hidden)]
    pub fn as_view(&self) -> View<'_> {
        View { ptr: self.ptr, count: self.count, dtype: self.dtype, place: self.place, life: PhantomData }
    }

    /// Write bytes that were [taken](Self::bytes) from this buffer earlier.
    #[doc(hidden)]
    pub fn restore(&mut self, bytes: &[u8]) {
        let n = bytes.len().min(self.len_bytes());
        if let Place::Host = self.place {
            // SAFETY: `n` bytes are readable there, and writable here; the two do not overlap, for this view is the only path to its bytes.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.ptr, n) };
        }
    }
}

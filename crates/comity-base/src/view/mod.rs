//! Borrowed, type-erased buffers: what every operation takes.
//!
//! The three buffers of a running call, addressed as a plan addresses them.
//!
//! In place, `In` and `Out` are the same bytes. That is sound because every slice handed out borrows the whole
//! `Memory`, and a slice to write comes with no other slice that overlaps it.
#![allow(unsafe_code, reason = "borrowed memory of any type")]

use crate::{DType, Element, sys::SharedMemory};
use comity_plan::{Buf, Slice};
use std::{
    fmt,
    marker::PhantomData,
    ops::{Deref, DerefMut},
    ptr::{self, NonNull},
    slice,
};

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
    unsafe { ptr::copy(src.ptr, dst.ptr, src.len_bytes()) };
}

impl ViewMut<'_> {
    /// The bytes, where they are in host memory.
    #[doc(hidden)]
    pub fn bytes(&self) -> Option<&[u8]> {
        // SAFETY: readable for that many bytes, which nobody writes while this view is borrowed.
        let slice = || unsafe { slice::from_raw_parts(self.ptr, self.len_bytes()) };
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
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.ptr, n) };
        }
    }
}

/// A buffer that the other ranks of this host read where it lies, without a copy. [`Group::alloc`](../comity/struct.Group.html#method.alloc) makes it.
///
/// It is a slice in every other respect: it has a slice's methods, and calls take it as they take a vector.
///
/// ```
/// let group = comity::Group::single();
/// let mut x = group.alloc::<f32>(1000);
/// x.fill(1.0);
/// assert_eq!((x.len(), x[999]), (1000, 1.0));
/// assert_eq!(x.begin().as_ptr().cast_const(), x.as_ptr());
/// // This group has no other rank that could read it.
/// assert!(!x.is_shared());
/// println!("not shared: {}", x.why_not().unwrap_or_default());
/// ```
///
/// A process that was forked from this one shares the memory, too, where ordinary memory would be
/// a copy of its own.
pub struct SharedBuffer<T: Element> {
    begin: NonNull<T>,
    count: usize,
    home: Home,
}

enum Home {
    Shared {
        _memory: SharedMemory,
    },
    /// And why it is not shared.
    Private {
        _memory: Box<[u64]>,
        why: String,
    },
}

// SAFETY: the buffer is the only path to its bytes, apart from peers that read them while a call borrows them; `Element: Send + Sync`.
unsafe impl<T: Element> Send for SharedBuffer<T> {}
// SAFETY: as above.
unsafe impl<T: Element> Sync for SharedBuffer<T> {}

impl<T: Element> SharedBuffer<T> {
    /// `count` elements of zeros that peers may read, if `memory` was found for them.
    #[doc(hidden)]
    pub fn shared(count: usize, memory: SharedMemory) -> Self {
        let begin = NonNull::new(memory.as_ptr().cast()).unwrap_or(NonNull::dangling());
        Self { begin, count, home: Home::Shared { _memory: memory } }
    }

    /// `count` elements of zeros in ordinary memory, and why.
    #[doc(hidden)]
    pub fn private(count: usize, why: String) -> Self {
        // Words of eight bytes: no element needs more alignment.
        const { assert!(align_of::<T>() <= align_of::<u64>()) };
        let bytes = count.saturating_mul(size_of::<T>());
        let mut memory = vec![0u64; bytes.div_ceil(8)].into_boxed_slice();
        let begin = NonNull::new(memory.as_mut_ptr().cast()).unwrap_or(NonNull::dangling());
        Self { begin, count, home: Home::Private { _memory: memory, why } }
    }

    /// The address of its first element, for those who hand it to another language. It is a multiple of 8; of a shared buffer, of a page.
    pub fn begin(&self) -> NonNull<T> {
        self.begin
    }

    /// Returns true if the other ranks of this host may read the memory in place.
    pub fn is_shared(&self) -> bool {
        self.why_not().is_none()
    }

    /// Reason for which it is ordinary memory, in words; `None` if it is shared.
    pub fn why_not(&self) -> Option<&str> {
        match &self.home {
            Home::Shared { .. } => None,
            Home::Private { why, .. } => Some(why),
        }
    }
}

impl<T: Element> Deref for SharedBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `count` elements from `begin` are this buffer's own, and zeros and what was written since are values of `T`.
        unsafe { slice::from_raw_parts(self.begin.as_ptr(), self.count) }
    }
}

impl<T: Element> DerefMut for SharedBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.begin.as_ptr(), self.count) }
    }
}

impl<T: Element> fmt::Debug for SharedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedBuffer")
            .field("dtype", &T::DTYPE)
            .field("count", &self.count)
            .field("why_not", &self.why_not())
            .finish()
    }
}

impl<'a, T: Element> From<&'a SharedBuffer<T>> for View<'a> {
    fn from(b: &'a SharedBuffer<T>) -> Self {
        b.deref().into()
    }
}

impl<'a, T: Element> From<&'a mut SharedBuffer<T>> for ViewMut<'a> {
    fn from(b: &'a mut SharedBuffer<T>) -> Self {
        b.deref_mut().into()
    }
}

/// Slices here are in bytes.
#[derive(Debug)]
pub struct Memory<'a> {
    input: (*const u8, usize),
    output: (*mut u8, usize),
    tmp: (*mut u8, usize),
    life: PhantomData<&'a mut [u8]>,
}

// SAFETY: it holds views, which are `Send`, and a slice of plain bytes.
unsafe impl Send for Memory<'_> {}

impl<'a> Memory<'a> {
    /// `input` `None` means in place: it is `output`.
    #[inline]
    pub fn new(input: Option<View<'a>>, output: Option<ViewMut<'a>>, tmp: &'a mut [u8]) -> Self {
        let output = output.map_or((ptr::null_mut(), 0), |o| (o.ptr, o.len_bytes()));
        let same = (output.0.cast_const(), output.1);
        let input = input.map_or(same, |i| (i.ptr, i.len_bytes()));
        Self { input, output, tmp: (tmp.as_mut_ptr(), tmp.len()), life: PhantomData }
    }

    /// Views memory as [`new`](Self::new) in place, with `In` being `len` bytes of the output from `at`.
    #[inline]
    pub fn within(output: ViewMut<'a>, at: usize, len: usize, tmp: &'a mut [u8]) -> Self {
        let mut m = Self::new(None, Some(output), tmp);
        assert!(at + len <= m.output.1);
        // SAFETY: checked to lie inside the output.
        m.input = (unsafe { m.output.0.add(at).cast_const() }, len);
        m
    }

    /// Views memory as [`new`](Self::new) in place, with `Out` being `len` bytes of the buffer from `at` and `In` all of it.
    #[inline]
    pub fn around(buffer: ViewMut<'a>, at: usize, len: usize, tmp: &'a mut [u8]) -> Self {
        let mut m = Self::new(None, Some(buffer), tmp);
        assert!(at + len <= m.output.1);
        // SAFETY: checked to lie inside the buffer.
        m.output = (unsafe { m.output.0.add(at) }, len);
        m
    }

    /// All bytes of `In`.
    #[inline]
    pub fn input(&self) -> &[u8] {
        self.read(Slice::new(Buf::In, 0, self.input.1))
    }

    /// All bytes of `Out`.
    #[inline]
    pub fn output(&mut self) -> &mut [u8] {
        self.write(Slice::new(Buf::Out, 0, self.output.1))
    }

    /// A part of the call, with this part of a buffer as its input, and this one as its output. Where they overlap they are the same.
    pub fn part(&mut self, input: Slice, output: Slice) -> Memory<'_> {
        let from = self.at(input);
        let to = self.at(output).cast_mut();
        assert!(output.buf != Buf::In, "the input is only read");
        Memory {
            input: (from, input.len),
            output: (to, output.len),
            tmp: (ptr::null_mut(), 0),
            life: PhantomData,
        }
    }

    /// From now on `In` is `input`.
    #[inline]
    pub fn replace_input(&mut self, input: &'a [u8]) {
        self.input = (input.as_ptr(), input.len());
    }

    /// Places of `In` and `Out`, for who sees to it that no two threads write the same bytes.
    pub(crate) fn bounds(&mut self) -> ((*const u8, usize), (*mut u8, usize)) {
        (self.input, self.output)
    }

    /// Bytes to read.
    #[inline]
    pub fn read(&self, s: Slice) -> &[u8] {
        let p = self.at(s);
        // SAFETY: inside a buffer that the views promise to be readable; nothing writes while `self` is borrowed.
        unsafe { slice::from_raw_parts(p, s.len) }
    }

    /// Bytes to write.
    #[inline]
    pub fn write(&mut self, s: Slice) -> &mut [u8] {
        let p = self.at(s).cast_mut();
        assert!(s.buf != Buf::In || self.input.0 == self.output.0.cast_const(), "the input is only read");
        // SAFETY: inside a buffer that the views promise to be writable and not used elsewhere; `self` is borrowed
        // mutably, so no other slice of it exists.
        unsafe { slice::from_raw_parts_mut(p, s.len) }
    }

    /// Bytes to write and the operand they are made from; `None` when that is the same bytes.
    #[inline]
    pub fn operands(&mut self, dst: Slice, with: Slice) -> (&mut [u8], Option<&[u8]>) {
        if dst == with || with.len == 0 {
            return (self.write(dst), None);
        }
        let d = self.at(dst);
        let w = self.at(with);
        if d == w {
            return (self.write(dst), None);
        }
        let d0 = d as usize;
        let w0 = w as usize;
        assert!(d0 + dst.len <= w0 || w0 + with.len <= d0, "a plan combined overlapping ranges");
        // SAFETY: as in `read`, and disjoint from `dst`, as just checked.
        let operand = unsafe { slice::from_raw_parts(w, with.len) };
        (self.write(dst), Some(operand))
    }

    /// Copy within the call; nothing to do when both are the same bytes.
    #[inline]
    pub fn copy(&mut self, src: Slice, dst: Slice) {
        let s = self.at(src);
        let d = self.at(dst).cast_mut();
        assert_eq!(src.len, dst.len);
        if s != d.cast_const() {
            // SAFETY: both inside their buffers; `copy` allows overlap.
            unsafe { ptr::copy(s, d, src.len) };
        }
    }

    #[inline]
    fn at(&self, s: Slice) -> *const u8 {
        let (p, len) = match s.buf {
            Buf::In => self.input,
            Buf::Out => (self.output.0.cast_const(), self.output.1),
            Buf::Tmp => (self.tmp.0.cast_const(), self.tmp.1),
        };
        assert!(s.at <= len && s.len <= len - s.at, "a plan left its buffer");
        if p.is_null() || s.len == 0 {
            return NonNull::<u8>::dangling().as_ptr().cast_const();
        }
        // SAFETY: checked to lie inside the buffer.
        unsafe { p.add(s.at) }
    }
}

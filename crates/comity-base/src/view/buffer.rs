//! A buffer that the ranks of this host may read where it lies.

use super::{View, ViewMut};
use crate::{Element, sys::SharedMemory};
use std::{
    fmt,
    ops::{Deref, DerefMut},
    ptr::NonNull,
    slice,
};

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

/// Owner of the memory.
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

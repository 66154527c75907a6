//! A buffer in host memory: ordinary, or such as peers read where it lies.

use comity::{Element, Group, SharedBuffer};
use std::ops::{Deref, DerefMut, Range};

/// Ordinary memory begins at a multiple of so many bytes, as that of [`Group::alloc`] and of other libraries' benchmarks does.
const PAGE: usize = 4096;

/// Elements of either sort.
#[derive(Debug)]
pub(super) enum HostBuffer<T: Element> {
    /// The elements in the range.
    Private(Vec<T>, Range<usize>),
    Shared(SharedBuffer<T>),
}

impl<T: Element> HostBuffer<T> {
    /// `count` elements, each written: the first touch of a page is no part of a call.
    pub(super) fn new(group: &Group, count: usize, shared: bool, value: impl Fn(u64) -> T) -> Self {
        if !shared {
            let mut room = Vec::<T>::with_capacity(count + PAGE / size_of::<T>());
            let begin = room.as_ptr().align_offset(PAGE).min(room.capacity() - count);
            room.resize(begin, value(0));
            room.extend((0..count).map(|i| value(i as u64)));
            return Self::Private(room, begin..begin + count);
        }
        let mut buffer = group.alloc(count);
        buffer.iter_mut().enumerate().for_each(|(i, x)| *x = value(i as u64));
        Self::Shared(buffer)
    }
}

impl<T: Element> Deref for HostBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Private(b, range) => &b[range.clone()],
            Self::Shared(b) => b,
        }
    }
}

impl<T: Element> DerefMut for HostBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::Private(b, range) => &mut b[range.clone()],
            Self::Shared(b) => b,
        }
    }
}

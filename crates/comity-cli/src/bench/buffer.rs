//! A buffer in host memory: ordinary, or such as peers read where it lies.

use comity::{Element, Group, SharedBuffer};
use std::ops::{Deref, DerefMut};

/// Elements of either sort.
#[derive(Debug)]
pub(super) enum HostBuffer<T: Element> {
    Private(Vec<T>),
    Shared(SharedBuffer<T>),
}

impl<T: Element> HostBuffer<T> {
    /// `count` elements, each written: the first touch of a page is no part of a call.
    pub(super) fn new(group: &Group, count: usize, shared: bool, value: impl Fn(u64) -> T) -> Self {
        if !shared {
            return Self::Private((0..count).map(|i| value(i as u64)).collect());
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
            Self::Private(b) => b,
            Self::Shared(b) => b,
        }
    }
}

impl<T: Element> DerefMut for HostBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::Private(b) => b,
            Self::Shared(b) => b,
        }
    }
}

//! The three buffers of a running call, addressed as a plan addresses them.
//!
//! In place, `In` and `Out` are the same bytes. That is sound because every slice handed out borrows the whole
//! `Memory`, and a slice to write comes with no other slice that overlaps it.

use super::{View, ViewMut};
use comity_plan::{Buf, Slice};
use std::{marker::PhantomData, ptr, slice};

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
            return ptr::NonNull::<u8>::dangling().as_ptr().cast_const();
        }
        // SAFETY: checked to lie inside the buffer.
        unsafe { p.add(s.at) }
    }
}

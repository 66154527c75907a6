//! Memory that a device reads and writes on its own.

use crate::sys::map::whole_pages;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::{
    io,
    ptr::{self, NonNull},
};

/// A provider is reported to keep the low half of addresses only: a region may not cross this.
const WINDOW: usize = 1 << 32;

/// A private mapping of whole pages inside one window of 4 GiB.
///
/// Its users settle the access to its bytes: a device writes where a receive was posted and reads where a send was, until
/// the completion of either.
#[derive(Debug)]
pub struct Slab {
    ptr: NonNull<u8>,
    len: usize,
    /// A forked child does not have it on Linux, and something else may lie there.
    pid: u32,
}

// SAFETY: the mapping is plain memory; who may touch which bytes is settled by its users.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}

impl Slab {
    /// Zeros, `len` of them or a few more.
    pub fn new(len: usize) -> io::Result<Self> {
        let len = whole_pages(len)?;
        let map = |len| {
            // SAFETY: a fresh mapping at an address of the system's choice aliases nothing.
            unsafe {
                mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
            }
        };
        let unmap = |p: *mut u8, len| {
            // SAFETY: a part of a mapping that nobody has seen yet.
            let _ = unsafe { munmap(p.cast(), len) };
        };
        let first = map(len)?.cast::<u8>();
        if to_window(first as usize, len).is_none() {
            return Self::checked(first, len);
        }
        unmap(first, len);
        // Twice as much is long enough on one side of a border that crosses it.
        let whole = map(2 * len)?.cast::<u8>();
        let skip = to_window(whole as usize, len).unwrap_or(0);
        let start = whole.wrapping_add(skip);
        if skip > 0 {
            unmap(whole, skip);
        }
        if skip < len {
            unmap(start.wrapping_add(len), len - skip);
        }
        Self::checked(start, len)
    }

    fn checked(p: *mut u8, len: usize) -> io::Result<Self> {
        let ptr = NonNull::new(p).ok_or_else(|| io::Error::other("mmap returned null"))?;
        let slab = Self { ptr, len, pid: std::process::id() };
        // Where pages are copied on the first write after a fork, the device may go on with the old ones, which only the child has.
        #[cfg(target_os = "linux")]
        // SAFETY: our own mapping of whole pages, which stays as it is in this process.
        unsafe {
            rustix::mm::madvise(p.cast(), len, rustix::mm::Advice::LinuxDontFork)?;
        }
        Ok(slab)
    }

    #[allow(clippy::len_without_is_empty)] // It never is.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The first byte; page aligned.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// Returns true if these bytes lie inside.
    pub fn holds(&self, at: usize, len: usize) -> bool {
        at.checked_add(len).is_some_and(|end| end <= self.len)
    }

    /// The bytes from `at` on.
    ///
    /// # Safety
    /// Nothing writes them while the slice lives: no receive is posted there, and nobody calls [`write`](Self::write) there.
    ///
    /// # Panics
    /// If they do not lie inside.
    pub unsafe fn bytes(&self, at: usize, len: usize) -> &[u8] {
        assert!(self.holds(at, len), "{len} bytes at {at} of a slab of {}", self.len);
        // SAFETY: inside the mapping, which is initialised; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr().add(at), len) }
    }

    /// Put `bytes` at `at`.
    ///
    /// # Safety
    /// Neither the device nor anyone else uses them meanwhile: no send or receive is posted there.
    ///
    /// # Panics
    /// If they do not lie inside.
    pub unsafe fn write(&self, at: usize, bytes: &[u8]) {
        assert!(self.holds(at, bytes.len()), "{} bytes at {at} of a slab of {}", bytes.len(), self.len);
        // SAFETY: inside the mapping; `bytes` is a borrowed slice, so it is not the place that nobody else uses.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.ptr.as_ptr().add(at), bytes.len()) }
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            return;
        }
        // SAFETY: ours since `checked`, and no reference into it outlives its owner.
        let _ = unsafe { munmap(self.ptr.as_ptr().cast(), self.len) };
    }
}

/// Returns the distance from `start` to the next window, if `len` bytes would cross its border.
fn to_window(start: usize, len: usize) -> Option<usize> {
    let crosses = start / WINDOW != (start + len - 1) / WINDOW;
    crosses.then(|| WINDOW - start % WINDOW)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_border_inside_is_found() {
        assert_eq!(to_window(WINDOW - 4096, 4096), None);
        assert_eq!(to_window(WINDOW - 4096, 8192), Some(4096));
        assert_eq!(to_window(WINDOW, 8192), None);
        assert_eq!(to_window(3 * WINDOW - 8192, 1 << 20), Some(8192));
    }

    #[test]
    fn bytes_are_kept() {
        let slab = Slab::new(8192).unwrap();
        assert_eq!(to_window(slab.as_ptr() as usize, slab.len()), None);
        // SAFETY: one thread, and no device.
        unsafe {
            slab.write(4090, b"across a page");
            assert_eq!(slab.bytes(4090, 13), b"across a page");
            assert_eq!(slab.bytes(0, 10), [0; 10]);
        }
        let len = slab.len();
        assert!(!slab.holds(len - 2, 3) && !slab.holds(usize::MAX, 2));
        assert_eq!(Slab::new(len + 100).unwrap().len(), len + rustix::param::page_size(), "whole pages");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_forked_child_gets_no_copy() {
        let slab = Slab::new(8192).unwrap();
        let at = slab.as_ptr() as usize;
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let holds = |line: &&str| {
            let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
            let ends = range.map(|(from, to)| [from, to].map(|n| usize::from_str_radix(n, 16)));
            matches!(ends, Some([Ok(from), Ok(to)]) if (from..to).contains(&at))
        };
        let mut ours = maps.lines().skip_while(|line| !holds(line));
        let flags = ours.find_map(|line| line.strip_prefix("VmFlags:")).unwrap();
        assert!(flags.split_whitespace().any(|flag| flag == "dc"), "{flags}");
    }
}

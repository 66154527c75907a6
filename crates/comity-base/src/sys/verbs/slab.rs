//! Memory that a device reads and writes on its own.

use crate::sys::map::whole_pages;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
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
    begin: NonNull<u8>,
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
        // Twice as much is long enough on one side of a border that crosses it. Memory without access is not counted as used.
        let all = len.checked_mul(2).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: a fresh mapping at an address of the system's choice aliases nothing.
        let whole = unsafe { mmap_anonymous(ptr::null_mut(), all, ProtFlags::empty(), MapFlags::PRIVATE)? };
        let at = to_window(whole as usize, len).unwrap_or(0);
        let begin = whole.wrapping_byte_add(at);
        let first = NonNull::new(begin.cast()).ok_or_else(|| io::Error::other("mmap returned null"))?;
        let slab = Self { begin: first, len, pid: std::process::id() };
        // SAFETY: our own mapping of whole pages, of which nobody has an address yet; the rest of it goes back.
        unsafe {
            for (rest, n) in [(whole, at), (begin.wrapping_byte_add(len), len - at)] {
                if n > 0 {
                    munmap(rest, n)?;
                }
            }
            mprotect(begin, len, MprotectFlags::READ | MprotectFlags::WRITE)?;
            // Where pages are copied on the first write after a fork, the device may go on with the old ones, which only the child has.
            #[cfg(target_os = "linux")]
            rustix::mm::madvise(begin, len, rustix::mm::Advice::LinuxDontFork)?;
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
        self.begin.as_ptr()
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
        unsafe { std::slice::from_raw_parts(self.as_ptr().add(at), len) }
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
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.as_ptr().add(at), bytes.len()) }
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            return;
        }
        // SAFETY: ours since `new`, and no reference into it outlives its owner.
        let _ = unsafe { munmap(self.begin.as_ptr().cast(), self.len) };
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
    fn a_forked_child_gets_no_copy_and_no_more_is_mapped_than_is_used() {
        const LEN: usize = 64 << 20;
        let slab = Slab::new(LEN).unwrap();
        let at = slab.as_ptr() as usize;
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let range = |line: &str| {
            let (from, to) = line.split_once(' ')?.0.split_once('-')?;
            Some(usize::from_str_radix(from, 16).ok()?..usize::from_str_radix(to, 16).ok()?)
        };
        let mut ours = maps.lines().skip_while(|line| range(line).is_none_or(|r| !r.contains(&at)));
        // Short ones of other tests may lie beside it.
        assert!(range(ours.next().unwrap()).unwrap().len() < LEN + LEN / 2);
        let flags = ours.find_map(|line| line.strip_prefix("VmFlags:")).unwrap();
        assert!(flags.split_whitespace().any(|flag| flag == "dc"), "{flags}");
    }
}

//! A descriptor that one thread makes readable to wake another from `poll`.
//!
//! An eventfd on Linux, a pipe elsewhere.

use rustix::{
    event::{PollFd, Timespec},
    io::{read, write},
};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Instant,
};

/// Wakes a thread that sleeps in `poll`.
#[derive(Debug)]
pub struct Waker {
    rx: OwnedFd,
    #[cfg(not(target_os = "linux"))]
    tx: OwnedFd,
}

impl Waker {
    /// Makes a waker that wakes nobody yet.
    #[cfg(target_os = "linux")]
    pub fn new() -> io::Result<Self> {
        use crate::sys::refused;
        use rustix::event::{EventfdFlags, eventfd};
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Self { rx: fd.map_err(|e| refused("eventfd", "to wake its threads", e))? })
    }

    /// Makes a waker that wakes nobody yet.
    #[cfg(not(target_os = "linux"))]
    pub fn new() -> io::Result<Self> {
        use rustix::{
            fs::{OFlags, fcntl_getfl, fcntl_setfl},
            io::{FdFlags, fcntl_setfd},
        };
        let (rx, tx) = rustix::pipe::pipe()?;
        for fd in [&rx, &tx] {
            fcntl_setfd(fd, FdFlags::CLOEXEC)?;
            fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)?;
        }
        Ok(Self { rx, tx })
    }

    /// Make [`fd`](Self::fd) readable. A full counter or pipe is readable already.
    #[inline]
    pub fn wake(&self) {
        #[cfg(target_os = "linux")]
        let _ = write(&self.rx, &1u64.to_ne_bytes());
        #[cfg(not(target_os = "linux"))]
        let _ = write(&self.tx, &[1]);
    }

    /// Take past wakes.
    #[inline]
    pub fn drain(&self) {
        let mut b = [0u8; 64];
        while matches!(read(&self.rx, &mut b), Ok(64)) {}
    }

    /// Returns the descriptor to poll for readable.
    #[inline]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.rx.as_fd()
    }
}

/// Wait until one of `fds` is ready or `until` passes; how many are ready. `None` waits for ever.
pub fn poll_until(fds: &mut [PollFd<'_>], until: Option<Instant>) -> io::Result<usize> {
    loop {
        let left = until.map(|u| u.saturating_duration_since(Instant::now()));
        // A span that does not fit is as good as for ever.
        let left = left.and_then(|l| Timespec::try_from(l).ok());
        // WAIT(until): to the deadline of who calls
        match rustix::event::poll(fds, left.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            r => return Ok(r?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn is_readable(b: &Waker) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::from_borrowed_fd(b.fd(), PollFlags::IN)], Some(&now)).unwrap() == 1
    }

    #[test]
    fn wakes_until_drained() {
        let b = Waker::new().unwrap();
        assert!(!is_readable(&b));
        b.wake();
        b.wake();
        assert!(is_readable(&b));
        b.drain();
        assert!(!is_readable(&b));
    }
}

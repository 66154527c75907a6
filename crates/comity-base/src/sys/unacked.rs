//! Arrival at the other system of bytes that were sent over TCP.

use std::os::fd::BorrowedFd;

/// Returns true if nothing of what was sent is still to arrive: the other side has acknowledged it, or the connection is no more. To close
/// one before may lose it: whatever still comes from the other side then is answered with a reset, which also ends the repeats of
/// what was lost on the way.
#[cfg(target_os = "linux")]
pub fn has_arrived(socket: BorrowedFd<'_>) -> bool {
    use rustix::{
        event::{PollFd, PollFlags, Timespec, poll},
        ioctl::{Getter, Opcode, ioctl},
    };
    /// The same number on all of Linux's architectures that Rust's standard library has, but MIPS, PowerPC and SPARC.
    const SIOCOUTQ: Opcode = 0x5411;
    // SAFETY: for this code the kernel writes an int, whatever kind of file it is asked about, or fails.
    let unacknowledged = unsafe { ioctl(socket, Getter::<SIOCOUTQ, i32>::new()) };
    if !unacknowledged.is_ok_and(|bytes| bytes > 0) {
        return true;
    }
    // One that was reset goes on counting.
    let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::empty())];
    // WAIT(Timespec): a look that never sleeps
    let looked = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    looked.is_err() || fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

/// Not known here.
#[cfg(not(target_os = "linux"))]
pub fn has_arrived(_socket: BorrowedFd<'_>) -> bool {
    true
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
        os::fd::AsFd,
    };

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        a.set_nonblocking(true).unwrap();
        (a, listener.accept().unwrap().0)
    }

    fn fill(mut a: &TcpStream) -> usize {
        std::iter::from_fn(|| a.write(&[0; 65536]).ok()).sum()
    }

    fn wait(a: &TcpStream) {
        while !has_arrived(a.as_fd()) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_does_not_fit_has_not_arrived() {
        let (a, mut b) = pair();
        assert!(has_arrived(a.as_fd()));
        let sent = fill(&a);
        assert!(!has_arrived(a.as_fd()));
        b.read_exact(&mut vec![0; sent]).unwrap();
        wait(&a);
    }

    #[test]
    fn nothing_is_waited_for_on_a_connection_that_was_reset() {
        let (a, b) = pair();
        fill(&a);
        drop(b);
        wait(&a);
    }
}

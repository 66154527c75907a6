//! Whether what was sent over TCP has arrived at the other system.

use std::os::fd::BorrowedFd;

/// How many bytes the other side has not acknowledged. To close a connection before may lose them: whatever still comes from
/// the other side then is answered with a reset, which also ends the repeats of what was lost on the way.
#[cfg(target_os = "linux")]
pub(crate) fn unacked(socket: BorrowedFd<'_>) -> usize {
    use rustix::ioctl::{Getter, Opcode, ioctl};
    /// The same number on all of Linux's architectures that Rust's standard library has, but MIPS, PowerPC and SPARC.
    const SIOCOUTQ: Opcode = 0x5411;
    // SAFETY: for this code the kernel writes an int, whatever kind of file it is asked about, or fails.
    let asked = unsafe { ioctl(socket, Getter::<SIOCOUTQ, i32>::new()) };
    asked.ok().and_then(|n| usize::try_from(n).ok()).unwrap_or(0)
}

/// Not known here.
#[cfg(not(target_os = "linux"))]
pub(crate) fn unacked(_socket: BorrowedFd<'_>) -> usize {
    0
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
        os::fd::AsFd,
    };

    #[test]
    fn what_does_not_fit_is_not_acknowledged() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut b, _) = listener.accept().unwrap();
        assert_eq!(unacked(a.as_fd()), 0);
        a.set_nonblocking(true).unwrap();
        let mut sent = 0;
        while let Ok(n) = a.write(&[0; 65536]) {
            sent += n;
        }
        assert!(unacked(a.as_fd()) > 0);
        b.read_exact(&mut vec![0; sent]).unwrap();
        while unacked(a.as_fd()) > 0 {
            std::thread::yield_now();
        }
    }
}

//! How long TCP waits at most before it sends again what was lost.

use std::{os::fd::BorrowedFd, time::Duration};

/// Let TCP wait at most so long (a second is the least) before it sends again, where by default each wait is twice the one before, up to two
/// minutes: after a cable was off, what was lost is sent soon. Systems that cannot (Linux before 6.15, others) go on as they were.
#[cfg(target_os = "linux")]
pub(crate) fn resend_within(socket: BorrowedFd<'_>, most: Duration) -> bool {
    use std::{ffi::c_int, mem::size_of, os::fd::AsRawFd};
    /// Of `linux/tcp.h`, which the libc crate does not have.
    const TCP_RTO_MAX_MS: c_int = 44;
    let ms = c_int::try_from(most.as_millis()).unwrap_or(c_int::MAX);
    let len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the kernel reads an int of that length, or refuses the option; the descriptor is borrowed.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            TCP_RTO_MAX_MS,
            std::ptr::from_ref(&ms).cast(),
            len,
        )
    };
    set == 0
}

/// Not to be chosen here.
#[cfg(not(target_os = "linux"))]
pub(crate) fn resend_within(_socket: BorrowedFd<'_>, _most: Duration) -> bool {
    false
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::{net::TcpListener, net::TcpStream, os::fd::AsFd};

    #[test]
    fn a_system_that_knows_the_option_takes_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let release = rustix::system::uname();
        let mut numbers =
            release.release().to_str().unwrap().split(['.', '-']).map(|n| n.parse().unwrap_or(0u32));
        let version = (numbers.next().unwrap(), numbers.next().unwrap());
        assert_eq!(resend_within(stream.as_fd(), Duration::from_secs(1)), version >= (6, 15));
        // Not a socket of TCP.
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(!resend_within(null.as_fd(), Duration::from_secs(1)));
    }
}

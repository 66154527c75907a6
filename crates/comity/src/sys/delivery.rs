//! How far what was sent over a TCP connection has come, as the other system acknowledges it.

use std::{os::fd::BorrowedFd, time::Duration};

/// What is known of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Delivery {
    /// Bytes that the other system has.
    pub(crate) acknowledged: u64,
    /// Bytes that it is not known to have.
    pub(crate) waiting: u64,
    /// Since when it has said nothing, while something was sent again and again; none where nothing is.
    pub(crate) silence: Option<Duration>,
}

/// None where the system does not tell.
#[cfg(target_os = "linux")]
pub(crate) fn delivery(socket: BorrowedFd<'_>) -> Option<Delivery> {
    use rustix::ioctl::{Getter, Opcode, ioctl};
    const SIOCOUTQ: Opcode = 0x5411;
    // Before the other number: what is acknowledged in between counts twice, and is not taken for more than was sent.
    // SAFETY: for this code the kernel writes an int, whatever kind of file it is asked about, or fails.
    let waiting = unsafe { ioctl(socket, Getter::<SIOCOUTQ, i32>::new()) }.ok()?;
    let info = super::trip::tcp_info(socket)?;
    Some(Delivery {
        acknowledged: info.acknowledged(),
        waiting: u64::try_from(waiting).ok()?,
        silence: info.is_repeating().then(|| info.silence()),
    })
}

/// Not known here.
#[cfg(not(target_os = "linux"))]
pub(crate) fn delivery(_: BorrowedFd<'_>) -> Option<Delivery> {
    None
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
    fn what_the_other_system_has_is_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut b = listener.accept().unwrap().0;
        let before = delivery(a.as_fd()).unwrap();
        assert_eq!((before.waiting, before.silence), (0, None));
        a.write_all(&[7; 5000]).unwrap();
        b.read_exact(&mut [0; 5000]).unwrap();
        let begun = std::time::Instant::now();
        loop {
            let now = delivery(a.as_fd()).unwrap();
            if now.waiting == 0 {
                assert_eq!(now.acknowledged, before.acknowledged + 5000);
                return;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "{now:?}");
        }
    }
}

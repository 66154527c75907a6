//! Sockets of TCP: several paths at once, round trips, the time for which nothing has come back, and arrival at the other system.
//!
//! The kernel does several paths at once (MPTCP). A socket that is made for it falls back to TCP where the other end, or
//! something between the two, does not speak it.

use socket2::{Domain, Socket, Type};
#[cfg(target_os = "linux")]
use std::os::fd::AsRawFd;
use std::{
    io,
    os::fd::BorrowedFd,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

/// True if sockets of this process are made for it.
static WANTED: AtomicBool = AtomicBool::new(false);

/// Have the sockets that this process makes from now on use several paths, or not.
pub fn want_paths(wanted: bool) {
    WANTED.store(wanted, Ordering::Relaxed);
}

/// A stream socket of TCP: with several paths where they are wanted and the kernel has them.
pub fn tcp_socket(domain: Domain) -> io::Result<Socket> {
    socket(domain, WANTED.load(Ordering::Relaxed))
}

#[cfg_attr(not(target_os = "linux"), expect(unused_variables, reason = "only Linux has them"))]
fn socket(domain: Domain, wants_paths: bool) -> io::Result<Socket> {
    #[cfg(target_os = "linux")]
    if wants_paths && let Ok(socket) = Socket::new(domain, Type::STREAM, Some(socket2::Protocol::MPTCP)) {
        return Ok(socket);
    }
    Socket::new(domain, Type::STREAM, None)
}

/// Succeeds if the kernel makes sockets with several paths; else says why it does not.
#[cfg(target_os = "linux")]
pub fn has_paths() -> Result<(), String> {
    Socket::new(Domain::IPV4, Type::STREAM, Some(socket2::Protocol::MPTCP))
        .map(drop)
        .map_err(|e| format!("the kernel makes no such socket: {e}; `sysctl net.mptcp.enabled` is to be 1"))
}

/// Says why the kernel makes no sockets with several paths.
#[cfg(not(target_os = "linux"))]
pub fn has_paths() -> Result<(), String> {
    Err("only Linux has it".into())
}

/// Returns true if both ends of a connection use several paths.
#[cfg(target_os = "linux")]
pub fn uses_paths(socket: BorrowedFd<'_>) -> bool {
    /// The level and the option of `linux/mptcp.h`, whose first byte is the number of paths beside the first one.
    const SOL_MPTCP: libc::c_int = 284;
    const MPTCP_INFO: libc::c_int = 1;
    let mut paths = 0u8;
    let mut len: libc::socklen_t = 1;
    // SAFETY: the kernel writes at most `len` bytes to `paths`, which is as long, and the length to `len`.
    let out = unsafe {
        libc::getsockopt(socket.as_raw_fd(), SOL_MPTCP, MPTCP_INFO, (&raw mut paths).cast(), &raw mut len)
    };
    // Also where it has fallen back there is no such option.
    out == 0
}

/// `struct tcp_info` of `linux/tcp.h`, up to the field that is read; kernels append to it and change nothing.
#[cfg(target_os = "linux")]
#[repr(C)]
#[derive(Clone, Copy)]
struct TcpInfo {
    /// The state, that of congestion, repeats and probes that were not answered, ...
    states: [u8; 8],
    until_retransmissions: [u32; 24],
    /// Two rates, and bytes acknowledged and received.
    rates_and_bytes: [u64; 4],
    segments_and_unsent: [u32; 3],
    /// Microseconds; all ones before the first sample.
    least_round_trip: u32,
}

#[cfg(target_os = "linux")]
const _: () = assert!(std::mem::offset_of!(TcpInfo, least_round_trip) == 148);

#[cfg(target_os = "linux")]
impl TcpInfo {
    /// Returns true if a packet was sent again more than once, or a full window asked about, and nothing came back.
    fn is_repeating(&self) -> bool {
        const UNACKNOWLEDGED: usize = 4;
        let [_, _, repeats, probes, ..] = self.states;
        probes > 2 || repeats > 1 && self.until_retransmissions[UNACKNOWLEDGED] > 0
    }

    /// Since the last word of the other system.
    fn silence(&self) -> Duration {
        const LAST_ACK_RECEIVED: usize = 12;
        Duration::from_millis(self.until_retransmissions[LAST_ACK_RECEIVED].into())
    }
}

/// The shortest round trip that the system has seen on `socket`; the handshake is one.
#[cfg(target_os = "linux")]
pub fn least_round_trip(socket: BorrowedFd<'_>) -> Option<Duration> {
    let trip = tcp_info(socket)?.least_round_trip;
    (trip != u32::MAX).then(|| Duration::from_micros(trip.into()))
}

/// Time since the last word of the other system, while this one sends again what that has not acknowledged. None with several paths, of
/// which the system tells the first one only.
#[cfg(target_os = "linux")]
pub fn unanswered(socket: BorrowedFd<'_>) -> Option<Duration> {
    let info = tcp_info(socket).filter(TcpInfo::is_repeating).filter(|_| !uses_paths(socket));
    info.map(|info| info.silence())
}

#[cfg(target_os = "linux")]
fn tcp_info(socket: BorrowedFd<'_>) -> Option<TcpInfo> {
    let mut info = std::mem::MaybeUninit::<TcpInfo>::zeroed();
    // Below 2^32 on every system.
    let mut len = size_of::<TcpInfo>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `info`, which is as long, and the length that it wrote to `len`.
    let out = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    // SAFETY: all of it was zeroed, and integers hold any bytes.
    let info = unsafe { info.assume_init() };
    // Linux before 4.6 has a shorter one.
    let whole = out == 0 && len as usize == size_of::<TcpInfo>();
    whole.then_some(info)
}

/// None: this system does not tell it.
#[cfg(not(target_os = "linux"))]
pub fn least_round_trip(_: BorrowedFd<'_>) -> Option<Duration> {
    None
}

/// None: this system does not tell the time for which nothing has come back.
#[cfg(not(target_os = "linux"))]
pub fn unanswered(_: BorrowedFd<'_>) -> Option<Duration> {
    None
}

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
    use std::{net::SocketAddr, os::fd::AsFd};

    /// A connection whose ends are made with or without several paths: whether each uses them.
    fn used(listens: bool, connects: bool) -> [bool; 2] {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = socket(Domain::IPV4, listens).unwrap();
        listener.bind(&any.into()).unwrap();
        listener.listen(1).unwrap();
        let a = socket(Domain::IPV4, connects).unwrap();
        a.connect(&listener.local_addr().unwrap()).unwrap();
        let b = listener.accept().unwrap().0;
        assert_eq!((a.send(b"x").unwrap(), b.recv(&mut [std::mem::MaybeUninit::uninit()]).unwrap()), (1, 1));
        [uses_paths(a.as_fd()), uses_paths(b.as_fd())]
    }

    #[test]
    fn several_paths_are_used_where_both_ends_want_them() {
        let has = has_paths().is_ok();
        assert_eq!(used(true, true), [has, has]);
        for (listens, connects) in [(true, false), (false, true), (false, false)] {
            assert_eq!(used(listens, connects), [false, false]);
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod trip_tests {
    use super::*;
    use std::{
        net::{TcpListener, TcpStream, UdpSocket},
        os::fd::AsFd,
    };

    #[test]
    fn a_connection_has_one_from_its_handshake() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let trip = least_round_trip(a.as_fd()).unwrap();
        // However busy the machine is.
        assert!(trip < Duration::from_secs(60), "{trip:?}");
    }

    #[test]
    fn what_is_no_connection_has_none() {
        assert_eq!(least_round_trip(UdpSocket::bind("127.0.0.1:0").unwrap().as_fd()), None);
    }
}

#[cfg(all(test, target_os = "linux"))]
mod unacked_tests {
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

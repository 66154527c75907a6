//! The round trip of a TCP connection, and the time for which nothing has come back.

use std::{
    os::fd::{AsRawFd, BorrowedFd},
    time::Duration,
};

/// `struct tcp_info` of `linux/tcp.h`, up to the field that is read; kernels append to it and change nothing.
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

const _: () = assert!(std::mem::offset_of!(TcpInfo, least_round_trip) == 148);

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
pub fn least_round_trip(socket: BorrowedFd<'_>) -> Option<Duration> {
    let trip = tcp_info(socket)?.least_round_trip;
    (trip != u32::MAX).then(|| Duration::from_micros(trip.into()))
}

/// Time since the last word of the other system, while this one sends again what that has not acknowledged. None with several paths, of
/// which the system tells the first one only.
pub fn unanswered(socket: BorrowedFd<'_>) -> Option<Duration> {
    let info = tcp_info(socket).filter(TcpInfo::is_repeating).filter(|_| !super::uses_paths(socket));
    info.map(|info| info.silence())
}

/// Reads the system's state of a TCP connection.
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

#[cfg(test)]
mod tests {
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

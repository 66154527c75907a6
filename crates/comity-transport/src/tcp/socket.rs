//! Options of the link's sockets.

pub(super) use crate::socket::{receive, send};
use socket2::{SockRef, TcpKeepalive};
#[cfg(target_os = "linux")]
use std::os::fd::AsFd;
use std::{io, net::TcpStream, time::Duration};

/// Prepare a connected socket for the link.
///
/// The sizes of the system's buffers are left alone: a fixed size turns autotuning off, and that
/// finds the bandwidth-delay product better than a guess does.
pub(super) fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    // A small message must leave at once; large ones are handed over in large pieces anyway.
    socket.set_nodelay(true)?;
    // The connection of long messages may be idle while the pair talks on another, and what stands between hosts forgets such.
    // An hour without an answer, for it is not what finds a host that is gone.
    let half_a_minute = Duration::from_secs(30);
    let alive = TcpKeepalive::new().with_time(half_a_minute).with_interval(half_a_minute).with_retries(120);
    let kept = SockRef::from(socket).set_tcp_keepalive(&alive);
    // Older kernels refuse it to sockets with several paths.
    #[cfg(target_os = "linux")]
    let kept = kept.or_else(|e| if crate::sys::uses_paths(socket.as_fd()) { Ok(()) } else { Err(e) });
    kept?;
    // Where sends take no flag against it, a closed peer must not kill the process.
    #[cfg(target_vendor = "apple")]
    SockRef::from(socket).set_nosigpipe(true)?;
    #[cfg(target_os = "linux")]
    if is_short(socket)? {
        // It is in every kernel; where it is refused the default does.
        let _ = SockRef::from(socket).set_tcp_congestion(b"reno");
    }
    Ok(())
}

/// Returns true if the path is too short for the system's choice of congestion control.
#[cfg(target_os = "linux")]
fn is_short(socket: &TcpStream) -> io::Result<bool> {
    let here = socket.local_addr()?.ip();
    let there = socket.peer_addr()?.ip();
    if here == there || there.to_canonical().is_loopback() {
        return Ok(true);
    }
    // A system that does not say keeps what it has.
    let default = SockRef::from(socket).tcp_congestion().unwrap_or_default();
    Ok(slows(&default, crate::sys::least_round_trip(socket.as_fd())))
}

/// Returns true if a congestion control is slow where a round trip takes `trip`: one that paces sends by a timer, as bbr does, leaves much
/// of the path unused, for the timer is late by more than such trips take. Nothing is known without a trip.
#[cfg(target_os = "linux")]
fn slows(congestion: &[u8], trip: Option<Duration>) -> bool {
    const SHORT: Duration = Duration::from_millis(1);
    congestion.starts_with(b"bbr") && trip.is_some_and(|trip| trip < SHORT)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn only_bbr_on_a_short_path_is_slow() {
        let trip = |micros| Some(Duration::from_micros(micros));
        assert!(slows(b"bbr\0", trip(30)) && slows(b"bbr3", trip(999)));
        assert!(!slows(b"bbr\0", trip(1000)) && !slows(b"bbr\0", None));
        assert!(!slows(b"cubic\0", trip(30)) && !slows(b"dctcp\0", trip(30)));
    }
}

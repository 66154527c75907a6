//! What the system tells of the other end of a control connection.

use crate::channel::Stream;
use socket2::{SockRef, TcpKeepalive};
use std::{io, os::fd::OwnedFd, time::Duration};

/// What tells the end of the process at the other end of a connection within this host. A child that it forked keeps its sockets
/// open, and would hide its death.
#[cfg(target_os = "linux")]
pub(super) fn process_of(stream: &Stream) -> Option<OwnedFd> {
    use rustix::{net::sockopt::socket_peercred, process::PidfdFlags, process::pidfd_open};
    let Stream::Unix(stream) = stream else { return None };
    // One of another namespace of processes cannot be named; an older system cannot tell.
    pidfd_open(socket_peercred(stream).ok()?.pid, PidfdFlags::empty()).ok()
}

#[cfg(not(target_os = "linux"))]
pub(super) fn process_of(_: &Stream) -> Option<OwnedFd> {
    None
}

/// Let the system end a connection whose other host is gone, should the beats not have found it before. Where silence is allowed
/// this is all that finds it.
pub(super) fn keep_alive(stream: &Stream, limit: Option<Duration>) -> io::Result<()> {
    let Stream::Tcp(stream) = stream else { return Ok(()) };
    let second = Duration::from_secs(1);
    let idle = limit.map_or(Duration::from_secs(30), |l| l.max(second));
    let alive = TcpKeepalive::new().with_time(idle).with_interval((idle / 5).max(second)).with_retries(5);
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&alive)?;
    // Above twice the limit, so as not to decide before the beats do, nor before new connections have shown that only this one is lost.
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(limit.map(|l| l.saturating_mul(3)))?;
    Ok(())
}

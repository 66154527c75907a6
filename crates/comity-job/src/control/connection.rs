//! A control connection of this process: who made it, and whether its end counts.

use crate::channel::{Conn, Sealing, Stream, frame};
#[cfg(target_os = "linux")]
use comity_membership::RESENT;
use socket2::{SockRef, TcpKeepalive};
use std::{
    io::{self, ErrorKind},
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

/// Wait, after a connection that a third rank passes on, for the end of that rank, which explains it.
const PASSED_ON: Duration = Duration::from_millis(300);

/// Origin of a control connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Origin {
    /// This end made it, so it knows where the other one listens.
    pub(super) is_ours: bool,
    /// A third rank passes it on.
    pub(super) is_passed_on: bool,
}

/// Carries the notes of a control connection.
#[derive(Debug)]
pub(super) struct ControlConnection {
    pub(super) conn: Conn,
    pub(super) origin: Origin,
    /// The other end has let more pile up than is kept.
    pub(super) is_full: bool,
    /// It has ended; when that counts.
    pub(super) ends: Option<Instant>,
}

impl ControlConnection {
    pub(super) fn new(stream: Stream, seals: Sealing, origin: Origin) -> Self {
        Self { conn: Conn::new(stream, seals), origin, is_full: false, ends: None }
    }

    /// The stream has ended. Whether that counts now: the third rank that passed it on may have ended itself.
    pub(super) fn end(&mut self, now: Instant) -> bool {
        now >= *self.ends.get_or_insert(if self.origin.is_passed_on { now + PASSED_ON } else { now })
    }

    /// Send notes, which go out at once. An end that cannot be reached is found when it is next read.
    pub(super) fn send_all<N: AsRef<[u8]>>(&mut self, notes: &[N]) {
        let frames: Vec<u8> = notes.iter().flat_map(|note| frame(note.as_ref())).collect();
        let sent = self.conn.send_frames(frames.into());
        self.is_full |= sent.is_err_and(|e| e.kind() == ErrorKind::Other);
    }
}

/// Facts about the process at the other end of a connection.
#[derive(Debug)]
pub(super) enum Process {
    /// Readable when it has ended.
    Is(OwnedFd),
    HasEnded,
}

/// Sign that tells the end of the process at the other end of a connection within this host. A child that it forked keeps its sockets
/// open, and would hide its death.
#[cfg(target_os = "linux")]
pub(super) fn process_of(stream: &Stream) -> Option<Process> {
    use rustix::{
        io::Errno,
        process::{Pid, PidfdFlags, pidfd_open},
    };
    let Stream::Unix(stream) = stream else { return None };
    // One of another namespace of processes cannot be named; an older system cannot tell.
    match pidfd_open(Pid::from_raw(crate::sys::peer_of(stream).ok()?.pid)?, PidfdFlags::empty()) {
        Ok(process) => Some(Process::Is(process)),
        Err(Errno::SRCH) => Some(Process::HasEnded),
        Err(_) => None,
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn process_of(_: &Stream) -> Option<Process> {
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
    // Above the time in which it carries something again, so as not to decide before the beats do.
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(limit.map(|l| l.saturating_mul(RESENT + 1)))?;
    Ok(())
}

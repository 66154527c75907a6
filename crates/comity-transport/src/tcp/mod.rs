//! A link over one or several TCP connections.
//!
//! The stream travels in frames (`frame`), each with its number, a CRC32C, and word of where the next one is to be found:
//!
//! ```text
//!   connection 0, both ways:    short | short | head of a long one |                              | short ...
//!   of each direction, in turn:                                    | body, long, long, ..., short |
//! ```
//!
//! So what is short finds its way at once, and long messages of two directions do not share what the system does for a connection.
//!
//! A `framing` puts bytes into frames and takes them out: in the clear straight between the caller's memory and the system's, sealed
//! through a buffer, and in batches for a thread that sends. What is lent to a reduction and a few bytes read ahead lie in a buffer of
//! the link.

#[cfg(test)]
mod apart;
#[cfg(test)]
mod damage;
mod frame;
mod framing;
#[cfg(fuzzing)]
pub(crate) mod fuzz;
mod positions;
mod reach;
#[cfg(test)]
mod tests;

use super::{Interest, Lending, Link, LinkError, LinkKind, LinkProgress, LinkProperties, Stays};
use crate::{channel::Seals, sys::unanswered};
use frame::FrameRoute;
use framing::{Framing, SendThread, SendThreads, framing};
use positions::{CutLengths, Outbound, Receiver};
pub(crate) use reach::Tcp;
use socket2::{SockRef, TcpKeepalive};
use std::{
    io,
    net::{Shutdown, SocketAddr, TcpStream},
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::Duration,
};

/// Bytes to move in one call: a frame. More would starve the other direction.
const CHUNK: usize = frame::FRAME;

/// Use of the connections by one end of a link.
#[derive(Clone, Debug, Default)]
pub(crate) struct TcpOptions {
    /// Connections that carry long messages that leave; at the other end the other ones do.
    pub(crate) ways: Ways,
    /// The peer is [far](reach::FAR): frames are short, so that many connections share even a short message.
    pub(crate) is_far: bool,
    /// Threads that links may have for sending, each on a connection that carries one direction's long messages.
    pub(crate) send_threads: Option<Arc<SendThreads>>,
}

/// Choice of the connections of a link that carry the long messages of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Ways {
    /// All of them, and the other direction too.
    #[default]
    All,
    /// The first of every two.
    First,
    /// The second of every two.
    Second,
}

impl Ways {
    /// Those of the other direction.
    fn back(self) -> Self {
        match self {
            Self::All => Self::All,
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }

    fn first(self) -> usize {
        usize::from(self == Self::Second)
    }
}

/// Over which connections the frames of one direction go.
#[derive(Clone, Copy, Debug)]
struct Route {
    connections: usize,
    ways: Ways,
    /// The connection of the next frame aside.
    aside: usize,
}

impl Route {
    fn new(connections: usize, ways: Ways) -> Self {
        Self { connections, ways, aside: ways.first() }
    }

    /// The connection of the next frame, if it goes to `place`.
    fn connection(&self, place: FrameRoute) -> usize {
        if place == FrameRoute::Home { 0 } else { self.aside }
    }

    /// Takes out the [`connection`](Self::connection).
    fn take(&mut self, place: FrameRoute) -> usize {
        let taken = self.connection(place);
        if place == FrameRoute::Aside {
            let next = taken + if self.ways == Ways::All { 1 } else { 2 };
            self.aside = if next < self.connections { next } else { self.ways.first() };
        }
        taken
    }

    /// Returns true if one connection carries all long messages of this direction, and none of the other.
    fn is_narrow(&self) -> bool {
        self.ways != Ways::All && self.connections == 2
    }
}

/// End of a link over TCP. See the [contract](super).
#[derive(Debug)]
pub(crate) struct TcpLink {
    sockets: Arc<[TcpStream]>,
    /// Position of the outgoing stream, and what hands it to the system.
    out: Outbound,
    framing: Box<dyn Framing>,
    receiver: Receiver,
    error: Option<LinkError>,
    /// By connection, here and there; unknown for one that had ended by the time that it was handed over.
    ends: Vec<Option<(SocketAddr, SocketAddr)>>,
    /// The connection on which the error was seen.
    at: usize,
}

impl TcpLink {
    /// Makes a link in the clear, by [`with_options`](Self::with_options).
    #[cfg(test)]
    pub(crate) fn new(streams: Vec<TcpStream>) -> io::Result<Self> {
        Self::sealed(streams, Vec::new())
    }

    /// Makes a link without options, by [`with_options`](Self::with_options).
    #[cfg(test)]
    pub(crate) fn sealed(streams: Vec<TcpStream>, seals: Vec<Seals>) -> io::Result<Self> {
        Self::with_options(streams, seals, &TcpOptions::default())
    }

    /// A link over connected, authenticated streams, listed in the same order on both ends, and what seals each of them; in the
    /// clear if nothing does.
    pub(crate) fn with_options(
        streams: Vec<TcpStream>,
        seals: Vec<Seals>,
        options: &TcpOptions,
    ) -> io::Result<Self> {
        let invalid = |what| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        if streams.is_empty() {
            return invalid("a TCP link needs a connection");
        }
        if !seals.is_empty() && seals.len() != streams.len() {
            return invalid("all connections of a TCP link are sealed, or none");
        }
        if options.ways != Ways::All && streams.len() % 2 == 1 {
            return invalid("a TCP link that keeps directions apart needs as many connections for each");
        }
        streams.iter().try_for_each(prepare)?;
        Ok(Self::over(streams, seals, options))
    }

    fn over(sockets: Vec<TcpStream>, seals: Vec<Seals>, options: &TcpOptions) -> Self {
        let ends = sockets.iter().map(|s| s.local_addr().ok().zip(s.peer_addr().ok())).collect();
        let (send, recv) = seals.into_iter().map(|s| (s.send, s.recv)).unzip();
        let n = sockets.len();
        let sockets: Arc<[TcpStream]> = sockets.into();
        let ways = options.ways;
        let receiver = Receiver::new(Arc::clone(&sockets), Route::new(n, ways.back()), recv);
        let cutting = if options.is_far && n > 2 { CutLengths::FAR } else { CutLengths::NEAR };
        let out = Outbound::new(Arc::clone(&sockets), Route::new(n, ways), cutting);
        let framing = framing(&out, send, options.send_threads.clone());
        Self { sockets, out, framing, receiver, error: None, ends, at: 0 }
    }

    /// Keep the first error, and where it was seen.
    fn fail(&mut self, e: LinkError, at: usize) -> LinkError {
        if self.error.is_none() {
            self.at = at;
        }
        self.error.get_or_insert(e).clone()
    }
}

impl Lending for TcpLink {}

impl Link for TcpLink {
    fn properties(&self) -> LinkProperties {
        LinkProperties::of_system(LinkKind::Tcp)
    }

    fn connections(&self) -> usize {
        self.sockets.len()
    }

    fn chunk(&self) -> usize {
        self.framing.thread().map_or(CHUNK, SendThread::chunk)
    }

    fn put(&mut self, head: &[u8], body: &[u8]) -> Result<usize, LinkError> {
        if let Some(e) = &self.error {
            return Err(e.clone());
        }
        let put = self.framing.put(&mut self.out, head, body);
        put.map_err(|e| self.fail(e, self.out.turn))
    }

    fn announce(&mut self, len: usize, is_busy: bool, _stays: Stays) {
        let is_long = self.out.begin(len);
        self.framing.announce(&self.out, len, is_long, is_busy);
    }

    fn peek(&mut self, want: usize) -> Result<&[u8], LinkError> {
        if let Err(e) = self.receiver.gather(want) {
            self.fail(e, self.receiver.line.turn);
        }
        match &self.error {
            Some(e) if self.receiver.ready().is_empty() => Err(e.clone()),
            _ => Ok(self.receiver.ready()),
        }
    }

    fn consume(&mut self, n: usize) {
        self.receiver.consume(n);
    }

    fn take(&mut self, dst: &mut [u8]) -> Result<usize, LinkError> {
        let mut taken = 0;
        if let Err(e) = self.receiver.take(dst, &mut taken) {
            self.fail(e, self.receiver.line.turn);
        }
        match &self.error {
            Some(e) if taken == 0 => Err(e.clone()),
            _ => Ok(taken),
        }
    }

    fn unproven(&self) -> usize {
        self.receiver.framing.unproven()
    }

    fn has_more(&self) -> bool {
        self.error.is_none() && self.receiver.framing.has_more(&self.receiver.line)
    }

    fn progress(&self) -> LinkProgress {
        let silences =
            self.sockets.iter().enumerate().filter_map(|(i, socket)| Some((unanswered(socket.as_fd())?, i)));
        let silent = silences.max();
        // The connection that a failure is about, else the one that lacks an answer.
        let at = match silent {
            _ if self.error.is_some() => self.at,
            Some((_, i)) => i,
            None => self.receiver.line.turn,
        };
        LinkProgress {
            is_inside: self.receiver.framing.is_inside(&self.receiver.line),
            arrived: self.receiver.line.arrived,
            unanswered: silent.map(|(silence, _)| silence),
            path: self.ends.get(at).copied().flatten(),
            runs_ahead: self.framing.thread().is_some(),
        }
    }

    // The system wakes whoever polls a socket, announced or not.
    fn arm(&mut self, interest: Interest) {
        if let Some(thread) = self.framing.thread().filter(|_| interest.send) {
            thread.watch();
        }
    }

    fn disarm(&mut self) -> Result<(), LinkError> {
        if let Some(thread) = self.framing.thread() {
            thread.unwatch();
        }
        Ok(())
    }

    fn fds<'a>(&'a self, interest: Interest, out: &mut Vec<(BorrowedFd<'a>, Interest)>) {
        let recv = self.receiver.line.turn;
        let send = self.out.turn;
        let thread = self.framing.thread().filter(|thread| thread.is_busy());
        let one = interest.recv && interest.send && recv == send && thread.is_none();
        if interest.recv {
            out.push((self.sockets[recv].as_fd(), Interest { recv: true, send: one }));
        }
        if let Some(thread) = thread.filter(|_| interest.send) {
            out.push((thread.fd(), Interest { recv: true, send: false }));
        } else if interest.send && !one {
            out.push((self.sockets[send].as_fd(), Interest { recv: false, send: true }));
        }
    }
}

impl Drop for TcpLink {
    /// Close such that what was accepted still arrives: a socket closed with bytes unread resets
    /// its connection, and a reset discards what has not been delivered.
    fn drop(&mut self) {
        self.framing.end_thread();
        for socket in &*self.sockets {
            // It fails where the connection has ended already.
            let _ = socket.shutdown(Shutdown::Write);
        }
        self.receiver.line.drain();
    }
}

/// Prepare a connected socket for the link.
///
/// The sizes of the system's buffers are left alone: a fixed size turns autotuning off, and that
/// finds the bandwidth-delay product better than a guess does.
fn prepare(socket: &TcpStream) -> io::Result<()> {
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
mod socket_tests {
    use super::*;

    #[test]
    fn only_bbr_on_a_short_path_is_slow() {
        let trip = |micros| Some(Duration::from_micros(micros));
        assert!(slows(b"bbr\0", trip(30)) && slows(b"bbr3", trip(999)));
        assert!(!slows(b"bbr\0", trip(1000)) && !slows(b"bbr\0", None));
        assert!(!slows(b"cubic\0", trip(30)) && !slows(b"dctcp\0", trip(30)));
    }
}

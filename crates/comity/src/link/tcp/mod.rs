//! A link over one or several TCP connections.
//!
//! The stream travels in [frames](frame), each with its number and a CRC32C; frame `k` on
//! connection `k mod c`. Bytes go from the caller's memory to the system and from the system to
//! the caller's memory; only what is lent to a reduction, and a few bytes read ahead, lie in a
//! buffer of the link. A sealed link encrypts in a buffer of its own and decrypts where bytes arrived.

#[cfg(test)]
mod damage;
mod frame;
#[cfg(fuzzing)]
pub(crate) mod fuzz;
mod recv;
mod send;
mod socket;
#[cfg(test)]
mod tests;

use super::{Interest, Link, LinkError, LinkKind};
use crate::seal::Seals;
use recv::Receiver;
use send::Sender;
use std::{
    io,
    net::{Shutdown, SocketAddr, TcpStream},
    os::fd::{AsFd, BorrowedFd},
};

/// Bytes to move in one call: a frame. More would starve the other direction.
const CHUNK: usize = frame::FRAME;

/// What a user may choose about the connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TcpOptions {
    /// The congestion control of the connections, as the system names it. By default the system's,
    /// but reno within a host, and in place of bbr where the round trip is short.
    pub(crate) congestion: Option<String>,
}

/// One end of a link over TCP. See the [contract](super).
#[derive(Debug)]
pub(crate) struct TcpLink {
    sockets: Vec<TcpStream>,
    sender: Sender,
    receiver: Receiver,
    error: Option<LinkError>,
    /// By connection, here and there; unknown for one that had ended by the time that it was handed over.
    ends: Vec<Option<(SocketAddr, SocketAddr)>>,
    /// The connection on which the error was seen.
    at: usize,
}

impl TcpLink {
    /// As [`sealed`](Self::sealed), in the clear.
    #[cfg(test)]
    pub(crate) fn new(streams: Vec<TcpStream>) -> io::Result<Self> {
        Self::sealed(streams, Vec::new())
    }

    /// A link over connected, authenticated streams, listed in the same order on both ends, and what seals each of them; in the
    /// clear if nothing does.
    pub(crate) fn sealed(streams: Vec<TcpStream>, seals: Vec<Seals>) -> io::Result<Self> {
        Self::with_options(streams, seals, &TcpOptions::default())
    }

    /// A link with the user's choices.
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
        for stream in &streams {
            socket::prepare(stream, options)?;
        }
        Ok(Self::over(streams, seals))
    }

    fn over(sockets: Vec<TcpStream>, seals: Vec<Seals>) -> Self {
        let ends = sockets.iter().map(|s| s.local_addr().ok().zip(s.peer_addr().ok())).collect();
        let (send, recv) = seals.into_iter().map(|s| (s.send, s.recv)).unzip();
        let receiver = Receiver::new(sockets.len(), recv);
        Self { sockets, sender: Sender::new(send), receiver, error: None, ends, at: 0 }
    }

    /// Keep the first error, and where it was seen.
    fn fail(&mut self, e: LinkError, at: usize) -> LinkError {
        if self.error.is_none() {
            self.at = at;
        }
        self.error.get_or_insert(e).clone()
    }
}

impl Link for TcpLink {
    fn kind(&self) -> LinkKind {
        LinkKind::Tcp
    }

    fn chunk(&self) -> usize {
        CHUNK
    }

    fn put(&mut self, head: &[u8], body: &[u8]) -> Result<usize, LinkError> {
        if let Some(e) = &self.error {
            return Err(e.clone());
        }
        self.sender.put(&self.sockets, head, body).map_err(|e| self.fail(e, self.sender.turn))
    }

    fn peek(&mut self, want: usize) -> Result<&[u8], LinkError> {
        if let Err(e) = self.receiver.gather(&self.sockets, want) {
            self.fail(e, self.receiver.turn);
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
        if let Err(e) = self.receiver.take(&self.sockets, dst, &mut taken) {
            self.fail(e, self.receiver.turn);
        }
        match &self.error {
            Some(e) if taken == 0 => Err(e.clone()),
            _ => Ok(taken),
        }
    }

    fn unproven(&self) -> usize {
        self.receiver.unproven()
    }

    fn is_inside(&self) -> bool {
        self.receiver.is_inside()
    }

    fn arrived(&self) -> u64 {
        self.receiver.arrived
    }

    fn has_more(&self) -> bool {
        self.error.is_none() && self.receiver.has_more()
    }

    fn path(&self) -> Option<(SocketAddr, SocketAddr)> {
        self.ends.get(if self.error.is_some() { self.at } else { self.receiver.turn }).copied().flatten()
    }

    // The system wakes whoever polls a socket, announced or not.
    fn arm(&mut self, _: Interest) {}

    fn disarm(&mut self) -> Result<(), LinkError> {
        Ok(())
    }

    fn fds<'a>(&'a self, interest: Interest, out: &mut Vec<(BorrowedFd<'a>, Interest)>) {
        let (recv, send) = (self.receiver.turn, self.sender.turn);
        let one = interest.recv && interest.send && recv == send;
        if interest.recv {
            out.push((self.sockets[recv].as_fd(), Interest { recv: true, send: one }));
        }
        if interest.send && !one {
            out.push((self.sockets[send].as_fd(), Interest { recv: false, send: true }));
        }
    }
}

impl Drop for TcpLink {
    /// Close such that what was accepted still arrives: a socket closed with bytes unread resets
    /// its connection, and a reset discards what has not been delivered.
    fn drop(&mut self) {
        for socket in &self.sockets {
            // It fails where the connection has ended already.
            let _ = socket.shutdown(Shutdown::Write);
        }
        self.receiver.drain(&self.sockets);
    }
}

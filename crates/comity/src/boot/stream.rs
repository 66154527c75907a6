//! Connections and the messages on them: never blocking, never more in memory than allowed.

use super::wire::Malformed;
use crate::sys;
use std::{
    collections::VecDeque,
    io::{self, ErrorKind, Read, Write},
    net::TcpStream,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    sync::Arc,
};

/// The longest message on an authenticated connection.
const MAX_FRAME: usize = 64 * 1024;
/// A peer that lets this much pile up unread is as good as gone.
const MAX_OUTBOX: usize = 64 * 1024 * 1024;

/// A connection to another process.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Whether the other system has all that was sent, so that closing loses nothing.
    pub(super) fn has_arrived(&self) -> bool {
        match self {
            Self::Tcp(s) => sys::has_arrived(s.as_fd()),
            // It is in the other's queue at once.
            Self::Unix(_) => true,
        }
    }
}

impl Read for &Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(s) => (&*s).read(buf),
            Stream::Unix(s) => (&*s).read(buf),
        }
    }
}

impl Write for &Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(s) => (&*s).write(buf),
            Stream::Unix(s) => (&*s).write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(s) => s.as_fd(),
            Self::Unix(s) => s.as_fd(),
        }
    }
}

/// An authenticated connection that carries messages.
#[derive(Debug)]
pub(super) struct Conn {
    stream: Arc<Stream>,
    inbox: Vec<u8>,
    outbox: VecDeque<Arc<[u8]>>,
    /// Bytes in `outbox`.
    queued: usize,
    /// How much of the first of `outbox` has gone.
    sent: usize,
}

/// `body` as it goes over a connection.
pub(super) fn frame(body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32).to_be_bytes()[..], body].concat()
}

impl Conn {
    pub(super) fn new(stream: Stream) -> Self {
        Self { stream: Arc::new(stream), inbox: Vec::new(), outbox: VecDeque::new(), queued: 0, sent: 0 }
    }

    pub(super) fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// Send a message, now or when there is room.
    pub(super) fn send(&mut self, body: &[u8]) -> io::Result<()> {
        self.send_frames(frame(body).into())
    }

    /// As [`send`](Self::send), of bytes that [`frame`] made.
    pub(super) fn send_frames(&mut self, frames: Arc<[u8]>) -> io::Result<()> {
        if self.queued + frames.len() > MAX_OUTBOX {
            return Err(io::Error::other("the peer does not read"));
        }
        self.queued += frames.len();
        self.outbox.push_back(frames);
        self.flush()
    }

    /// Send what waits, as far as there is room.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while let Some(first) = self.outbox.front() {
            match (&*self.stream).write(first.get(self.sent..).unwrap_or_default()) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => {
                    self.sent += n;
                    if self.sent == first.len() {
                        self.queued -= self.sent;
                        self.sent = 0;
                        self.outbox.pop_front();
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Whether something waits for room.
    pub(super) fn is_pending(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Read what is there. False: the stream has ended; complete messages may still be in the inbox.
    pub(super) fn fill(&mut self) -> bool {
        let mut chunk = [0; 4096];
        while self.inbox.len() < MAX_FRAME + 4 {
            match (&*self.stream).read(&mut chunk) {
                Ok(0) => return false,
                Ok(n) => self.inbox.extend(chunk.get(..n).unwrap_or_default()),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return true,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// The next whole message.
    pub(super) fn next(&mut self) -> Result<Option<Vec<u8>>, Malformed> {
        let Some((head, rest)) = self.inbox.split_first_chunk::<4>() else { return Ok(None) };
        let n = u32::from_be_bytes(*head) as usize;
        if n > MAX_FRAME {
            return Err(Malformed);
        }
        let Some(body) = rest.get(..n) else { return Ok(None) };
        let body = body.to_vec();
        self.inbox.drain(..4 + n);
        Ok(Some(body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Conn, Conn) {
        let (a, b) = UnixStream::pair().unwrap();
        a.set_nonblocking(true).unwrap();
        b.set_nonblocking(true).unwrap();
        (Conn::new(Stream::Unix(a)), Conn::new(Stream::Unix(b)))
    }

    #[test]
    fn messages_cross_in_order_and_whole() {
        let (mut a, mut b) = pair();
        let bodies: Vec<Vec<u8>> = (0..100u8).map(|i| vec![i; usize::from(i) * 600]).collect();
        let mut got = Vec::new();
        for body in &bodies {
            a.send(body).unwrap();
        }
        assert!(a.is_pending());
        while got.len() < bodies.len() {
            a.flush().unwrap();
            assert!(b.fill());
            while let Some(m) = b.next().unwrap() {
                got.push(m);
            }
        }
        assert!(got == bodies && !a.is_pending() && a.queued == 0);
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_its_bytes() {
        let (a, mut b) = pair();
        (&**a.stream()).write_all(&(MAX_FRAME as u32 + 1).to_be_bytes()).unwrap();
        assert!(b.fill());
        assert_eq!(b.next(), Err(Malformed));
    }

    #[test]
    fn what_was_sent_before_the_end_is_read() {
        let (mut a, mut b) = pair();
        a.send(b"last").unwrap();
        drop(a);
        assert!(!b.fill());
        assert_eq!(b.next(), Ok(Some(b"last".to_vec())));
        assert_eq!(b.next(), Ok(None));
    }

    #[test]
    fn what_a_peer_does_not_read_is_bounded() {
        let (mut a, _b) = pair();
        let body = vec![0; 1024 * 1024];
        let e = (0..100).find_map(|_| a.send(&body).err()).unwrap();
        assert!(e.to_string().contains("does not read"), "{e}");
    }
}

//! A link whose two hosts have two paths: when the one in use is cut, it goes on over the other, without loss or repetition.
//!
//! ```text
//!   A  ... 7 8 9 | 10 11 12 kept          cable 1   x         B has received up to 10
//!      other connections, made as the first ones were         cable 2
//!      "I have 512"  -->   <-- "I have 10"    over one more connection, which ends then
//!      11 12 again, then what follows  -->
//! ```
//! Frames are those of any link. The sending half keeps what the other system has not acknowledged ([`kept`]), and the receiving half gives
//! out nothing before its frame is whole and right, so that what it has received can be told by one number.
//!
//! A call of this rank may be far away when a path is cut. So what this rank has sent is sent again by the thread that tends links, over new
//! connections that the maker of links made. What it received is told by its next call, which takes what lies in the old ones first.
//!
//! A path is cut where this host's end of the cable is out, where the system gives a connection up, and where it repeats what it sent
//! for a fifth of the detection limit and hears nothing. A connection that the other end closes or resets is no such thing.

mod kept;
mod outgoing;
mod registry;
#[cfg(test)]
mod tests;

use super::{TcpOptions, recv::Receiver, socket};
use crate::{
    channel::{Conn, Seal},
    sync::lock,
    sys::Waker,
    transport::{Interest, Link, LinkError, LinkKind, SMALL_WANT},
};
use outgoing::{NextMaking, Outgoing};
pub(super) use registry::LastingLinks;
use std::{
    io,
    net::{IpAddr, Shutdown, SocketAddr, TcpStream},
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// Bytes to move in one call.
const LASTING_CHUNK: usize = 256 << 10;

/// What the two halves and the thread that tends links share.
#[derive(Debug)]
pub(super) struct Lasting {
    group_id: u64,
    /// Of the world.
    peer: usize,
    out: Mutex<Outgoing>,
    /// Wakes who sleeps on the link.
    waker: Waker,
    /// New connections wait for the receiving half.
    fresh: AtomicBool,
    /// Somebody has seen the path end.
    doubted: AtomicBool,
}

impl Lasting {
    fn doubt(&self) {
        self.doubted.store(true, Ordering::Release);
    }

    fn tend(&self, running: &[IpAddr], patience: Duration) -> bool {
        let mut out = lock(&self.out);
        // The next call says what went wrong.
        let _ = out.go_on(self);
        out.is_cut(running, patience, self.doubted.load(Ordering::Acquire))
    }

    /// Go on over these, of which the last is for telling how far the ends came. Older than what there is: not.
    fn renew(
        &self,
        making: u16,
        sockets: Vec<TcpStream>,
        seals: (Vec<Seal>, Vec<Seal>),
        desk: Conn,
    ) -> io::Result<()> {
        let mut out = lock(&self.out);
        if making <= out.latest() || sockets.is_empty() {
            return Ok(());
        }
        for stream in &sockets {
            socket::prepare(stream, out.options())?;
        }
        out.next = Some(NextMaking::new(making, sockets.into(), seals, desk));
        self.doubted.store(false, Ordering::Release);
        self.fresh.store(true, Ordering::Release);
        self.waker.wake();
        Ok(())
    }

    fn made(&self) -> Instant {
        lock(&self.out).made()
    }
}

/// One end of a link that lasts. See the [contract](super::super::Link).
#[derive(Debug)]
pub(super) struct LastingLink {
    shared: Arc<Lasting>,
    /// Those that bring what comes.
    sockets: Arc<[TcpStream]>,
    receiver: Receiver,
    /// What lay in earlier connections, and how much of it was given out.
    earlier: Vec<u8>,
    given: usize,
    /// Bytes of the stream that were given out, or lie in `earlier`.
    received: u64,
    /// What to poll for room.
    polled: Option<(Arc<[TcpStream]>, usize)>,
    error: Option<LinkError>,
    #[cfg(test)]
    forgets: bool,
}

impl LastingLink {
    /// Over connected, authenticated streams; see [`TcpLink`](super::TcpLink).
    fn new(shared: Arc<Lasting>, recv: Vec<Seal>) -> Self {
        let out = lock(&shared.out);
        let sockets = Arc::clone(&out.sockets);
        let receiver = Receiver::new(out.route(sockets.len()), recv, true);
        drop(out);
        Self {
            shared,
            sockets,
            receiver,
            earlier: Vec::new(),
            given: 0,
            received: 0,
            polled: None,
            error: None,
            #[cfg(test)]
            forgets: false,
        }
    }

    fn earlier(&self) -> &[u8] {
        self.earlier.get(self.given..).unwrap_or_default()
    }

    /// Take what follows from new connections, if there are some: after what lies in the old ones.
    fn turn_over(&mut self) {
        if !self.shared.fresh.swap(false, Ordering::AcqRel) {
            return;
        }
        self.empty();
        let mut out = lock(&self.shared.out);
        if let Some(next) = &mut out.next
            && let Some(seals) = next.recv.take()
        {
            self.sockets = Arc::clone(&next.sockets);
            out.tell(self.received);
            self.receiver = Receiver::new(out.route(self.sockets.len()), seals, true);
        }
    }

    /// Move what has come whole over the connections to `earlier`.
    fn empty(&mut self) {
        self.earlier.drain(..self.given);
        self.given = 0;
        #[cfg(test)]
        if self.forgets {
            return;
        }
        loop {
            let (begin, mut taken) = (self.earlier.len(), 0);
            self.earlier.resize(begin + LASTING_CHUNK, 0);
            let place = self.earlier.get_mut(begin..).unwrap_or_default();
            // What is damaged there comes again.
            let ended = self.receiver.take(&self.sockets, place, &mut taken).is_err();
            self.earlier.truncate(begin + taken);
            self.received += taken as u64;
            if taken == 0 || ended {
                return;
            }
        }
    }

    /// Whether `e` is no word of the other end, or of one that goes on elsewhere.
    fn is_passing(&self, e: &LinkError) -> bool {
        if socket::is_cut(e) {
            self.shared.doubt();
            return true;
        }
        lock(&self.shared.out).is_renewing()
    }

    /// Take note of what the receiver said.
    fn judge(&mut self, said: Result<(), LinkError>) {
        if let Err(e) = said
            && !self.is_passing(&e)
        {
            self.error.get_or_insert(e);
        }
    }

    fn receive(&mut self, dst: &mut [u8]) -> usize {
        let mut taken = 0;
        let said = self.receiver.take(&self.sockets, dst, &mut taken);
        self.received += taken as u64;
        self.judge(said);
        taken
    }
}

impl Link for LastingLink {
    fn kind(&self) -> LinkKind {
        LinkKind::Tcp
    }

    fn chunk(&self) -> usize {
        LASTING_CHUNK
    }

    fn put(&mut self, head: &[u8], body: &[u8]) -> Result<usize, LinkError> {
        if let Some(e) = &self.error {
            return Err(e.clone());
        }
        self.turn_over();
        let put = lock(&self.shared.out).put(head, body, &self.shared);
        put.or_else(|e| {
            if self.is_passing(&e) {
                return Ok(0);
            }
            Err(self.error.get_or_insert(e).clone())
        })
    }

    fn announce(&mut self, len: usize, is_busy: bool, _stays: bool) {
        lock(&self.shared.out).announce(len, is_busy);
    }

    #[cfg(test)]
    fn runs_ahead(&self) -> bool {
        true
    }

    fn peek(&mut self, want: usize) -> Result<&[u8], LinkError> {
        self.turn_over();
        let have = self.earlier().len();
        if have > 0 {
            if have < SMALL_WANT {
                let mut more = [0; SMALL_WANT];
                let n = self.receive(more.get_mut(have..).unwrap_or_default());
                self.earlier.extend(more.iter().skip(have).take(n));
            }
            return Ok(self.earlier());
        }
        let said = self.receiver.gather(&self.sockets, want);
        self.judge(said);
        match &self.error {
            Some(e) if self.receiver.ready().is_empty() => Err(e.clone()),
            _ => Ok(self.receiver.ready()),
        }
    }

    fn consume(&mut self, n: usize) {
        if self.earlier().is_empty() {
            self.receiver.consume(n);
            self.received += n as u64;
            return;
        }
        self.given += n;
        if self.earlier().is_empty() {
            (self.earlier, self.given) = (Vec::new(), 0);
        }
    }

    fn take(&mut self, dst: &mut [u8]) -> Result<usize, LinkError> {
        self.turn_over();
        let n = self.earlier().len().min(dst.len());
        if n > 0 {
            let (first, _) = dst.split_at_mut(n);
            first.copy_from_slice(self.earlier().get(..n).unwrap_or_default());
            self.consume(n);
            return Ok(n);
        }
        let taken = self.receive(dst);
        match &self.error {
            Some(e) if taken == 0 => Err(e.clone()),
            _ => Ok(taken),
        }
    }

    fn is_inside(&self) -> bool {
        self.receiver.is_inside()
    }

    fn arrived(&self) -> u64 {
        self.received + self.receiver.arrived()
    }

    fn has_more(&self) -> bool {
        !self.earlier().is_empty() || self.error.is_none() && self.receiver.has_more()
    }

    fn path(&self) -> Option<(SocketAddr, SocketAddr)> {
        let socket = self.sockets.get(self.receiver.turn())?;
        socket.local_addr().ok().zip(socket.peer_addr().ok())
    }

    fn arm(&mut self, interest: Interest) {
        let out = lock(&self.shared.out);
        // One that has ended would be ready for ever.
        let sends = interest.send && !out.waits() && !self.shared.doubted.load(Ordering::Acquire);
        self.polled = sends.then(|| (Arc::clone(&out.sockets), out.socket()));
    }

    fn disarm(&mut self) -> Result<(), LinkError> {
        self.shared.waker.drain();
        Ok(())
    }

    fn fds<'a>(&'a self, interest: Interest, out: &mut Vec<(BorrowedFd<'a>, Interest)>) {
        let only = |recv| Interest { recv, send: !recv };
        out.push((self.shared.waker.fd(), only(true)));
        if interest.recv && !self.shared.doubted.load(Ordering::Acquire) {
            out.extend(self.sockets.get(self.receiver.turn()).map(|s| (s.as_fd(), only(true))));
        }
        if let Some((sockets, turn)) = self.polled.as_ref().filter(|_| interest.send) {
            out.extend(sockets.get(*turn).map(|s| (s.as_fd(), only(false))));
        }
    }
}

impl Drop for LastingLink {
    /// As a [`TcpLink`](super::TcpLink) does.
    fn drop(&mut self) {
        let out = lock(&self.shared.out);
        for socket in self.sockets.iter().chain(out.sockets.iter()) {
            // It fails where the connection has ended already.
            let _ = socket.shutdown(Shutdown::Write);
        }
        drop(out);
        self.receiver.drain(&self.sockets);
    }
}

/// A new link that lasts, and what tends it.
fn make(
    (group_id, peer): (u64, usize),
    streams: Vec<TcpStream>,
    (send, recv): (Vec<Seal>, Vec<Seal>),
    options: &TcpOptions,
    making: u16,
) -> io::Result<(LastingLink, Arc<Lasting>)> {
    for stream in &streams {
        socket::prepare(stream, options)?;
    }
    let out = Outgoing::new(streams.into(), send, options.clone(), making);
    let shared = Arc::new(Lasting {
        group_id,
        peer,
        out: Mutex::new(out),
        waker: Waker::new()?,
        fresh: AtomicBool::new(false),
        doubted: AtomicBool::new(false),
    });
    Ok((LastingLink::new(Arc::clone(&shared), recv), shared))
}

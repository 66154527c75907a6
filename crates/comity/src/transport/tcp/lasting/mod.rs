//! A link whose two hosts have two paths: when the one in use is cut, it goes on over the other, without loss or repetition.
//!
//! ```text
//!   A  ... 7 8 9 | 10 11 12 kept          cable 1   x         B has received up to 10
//!      other connections, made as the first ones were         cable 2
//!      "I use these"  -->   <-- "I use these"                 over one more connection, which ends then
//!      "from 10 on", 10 11 12 again, then what follows  -->   B takes what lies in the old ones, and passes over what it has
//! ```
//! Frames are those of any link. The sending half keeps what the other system has not acknowledged ([`kept`]), and begins with that on new
//! connections. The receiving half gives out nothing before its frame is whole and right, so it can tell what comes twice.
//!
//! A call of a rank may be far away when a path is cut. So neither end waits for one: the maker of links makes new connections, and the thread
//! that tends links sends again. Nothing is sent over connections before the other end has said that it uses them too: what its system
//! acknowledges, its rank will read.
//!
//! A path is cut where this host's end of the cable is out, where the system gives a connection up, and where it repeats what it sent
//! for a fifth of the detection limit and hears nothing. A connection that the other end closes or resets is no such thing.

mod incoming;
mod kept;
mod outgoing;
mod registry;
#[cfg(test)]
mod tests;

use super::{Route, TcpOptions, socket};
use crate::{
    channel::Stream,
    sync::lock,
    sys::Waker,
    transport::{Interest, Link, LinkError, LinkKind, Stays},
};
use incoming::{Inflow, NewPath};
use outgoing::{Outgoing, OutgoingPath};
pub(super) use registry::LastingLinks;
use std::{
    io,
    net::{IpAddr, SocketAddr, TcpStream},
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU16, Ordering},
    },
    time::Duration,
};

/// Bytes to move in one call.
const LASTING_CHUNK: usize = 256 << 10;
/// New connections that wait for a call of this rank, which reads them. More are not taken, and the other end tries again.
const MOST_FRESH: usize = 16;

/// What the two halves and the thread that tends links share.
#[derive(Debug)]
pub(super) struct Lasting {
    group_id: u64,
    /// Of the world.
    peer: usize,
    out: Mutex<Outgoing>,
    /// How often connections were begun for it.
    makings: AtomicU16,
    /// Wakes who sleeps on the link.
    waker: Waker,
    /// New connections wait for the receiving half.
    is_fresh: AtomicBool,
    fresh: Mutex<Vec<NewPath>>,
    /// Somebody has seen the path end.
    doubted: AtomicBool,
    /// Its path is cut, as far as was seen last.
    cut: AtomicBool,
    /// Nobody waits any more for what is on its way.
    forgiven: AtomicBool,
    /// What the receiving half used, when it is no more: the other end would take its end for that of the link.
    held: Mutex<Vec<Arc<[TcpStream]>>>,
}

impl Lasting {
    fn doubt(&self) {
        self.doubted.store(true, Ordering::Release);
    }

    fn is_doubted(&self) -> bool {
        self.doubted.load(Ordering::Acquire)
    }

    /// Look after it; whether to make other connections now.
    fn tend(&self, running: &[IpAddr], patience: Duration) -> bool {
        let mut out = lock(&self.out);
        let is_cut = out.tend(running, patience, self);
        self.cut.store(is_cut, Ordering::Release);
        out.asks(is_cut)
    }

    fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Acquire)
    }

    /// Whether the other system has all that was sent.
    fn has_come(&self) -> bool {
        lock(&self.out).has_come(self)
    }

    fn forgive(&self) {
        self.forgiven.store(true, Ordering::Release);
    }

    /// Whether the link is no more, and nothing of it on its way that matters.
    fn is_over(&self) -> bool {
        let mut out = lock(&self.out);
        out.closes() && (self.forgiven.load(Ordering::Acquire) || out.has_come(self))
    }

    /// Go on over these, unless they are older than what there is.
    fn renew(&self, outgoing: OutgoingPath, incoming: NewPath) -> io::Result<()> {
        let mut out = lock(&self.out);
        let mut fresh = lock(&self.fresh);
        if outgoing.making <= out.latest() || fresh.len() >= MOST_FRESH {
            return Ok(());
        }
        for stream in outgoing.sockets.iter() {
            socket::prepare(stream, out.options())?;
        }
        // Before the other end hears that they are used: then it may leave the old ones.
        fresh.push(incoming);
        self.is_fresh.store(true, Ordering::Release);
        drop(fresh);
        self.doubted.store(false, Ordering::Release);
        out.turn_to(outgoing);
        self.waker.wake();
        Ok(())
    }
}

/// One end of a link that lasts. See the [contract](super::super::Link).
#[derive(Debug)]
pub(super) struct LastingLink {
    shared: Arc<Lasting>,
    all: Arc<LastingLinks>,
    options: TcpOptions,
    incoming: Inflow,
    /// What to poll for room, or for word of the other end that it uses the connections.
    polled: Option<(Arc<[TcpStream]>, usize)>,
    desk: Option<Arc<Stream>>,
    error: Option<LinkError>,
}

impl LastingLink {
    /// Over connected, authenticated streams, with one of the world; see [`TcpLink`](super::TcpLink).
    fn make(
        all: &Arc<LastingLinks>,
        (group_id, peer): (u64, usize),
        outgoing: OutgoingPath,
        incoming: NewPath,
        options: &TcpOptions,
    ) -> io::Result<Self> {
        for stream in outgoing.sockets.iter() {
            socket::prepare(stream, options)?;
        }
        let making = outgoing.making;
        let shared = Arc::new(Lasting {
            group_id,
            peer,
            makings: AtomicU16::new(making),
            waker: Waker::new()?,
            is_fresh: AtomicBool::new(true),
            fresh: Mutex::new(vec![incoming]),
            out: Mutex::new(Outgoing::new(outgoing, options.clone())),
            doubted: AtomicBool::new(false),
            cut: AtomicBool::new(false),
            forgiven: AtomicBool::new(false),
            held: Mutex::default(),
        });
        all.add(&shared);
        Ok(Self {
            shared,
            all: Arc::clone(all),
            options: options.clone(),
            incoming: Inflow::default(),
            polled: None,
            desk: None,
            error: None,
        })
    }

    /// Whether new connections were added to those that are read.
    fn take_fresh(&mut self) -> bool {
        if !self.shared.is_fresh.load(Ordering::Acquire) {
            return false;
        }
        self.shared.is_fresh.store(false, Ordering::Release);
        let ways = self.options.ways.back();
        for path in std::mem::take(&mut *lock(&self.shared.fresh)) {
            self.incoming.add(path, &|n| Route::new(n, ways));
        }
        true
    }

    /// Read on from the newest connections that bring something.
    fn turn_over(&mut self) {
        if self.take_fresh() || !self.incoming.is_settled() {
            let said = self.incoming.turn_over();
            self.note(said);
            self.look();
        }
    }

    fn note(&mut self, said: Result<(), LinkError>) {
        if let Err(e) = said {
            self.error.get_or_insert(e);
        }
    }

    /// Whether the other end has not said that it uses the newest connections.
    fn is_unheard(&self) -> bool {
        let mut out = lock(&self.shared.out);
        // The next call that sends says what went wrong.
        let _ = out.go_on(&self.shared);
        out.desk().is_some()
    }

    /// Look whether what was read has ended.
    fn look(&mut self) {
        let (mut ended, mut is_cut) = self.incoming.end();
        // The other end leaves connections when this one uses others.
        if ended.is_some() && self.take_fresh() {
            (ended, is_cut) = self.incoming.end();
        }
        // It may have taken newer ones in the place of these, which it never used.
        if ended.is_some() && !self.incoming.has_begun() && self.is_unheard() {
            (ended, is_cut) = (None, true);
        }
        self.note(ended.map_or(Ok(()), Err));
        if is_cut && !self.shared.is_fresh.load(Ordering::Acquire) {
            self.shared.doubt();
        }
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
        let put = lock(&self.shared.out).put(head, body, &self.shared);
        put.map_err(|e| self.error.get_or_insert(e).clone())
    }

    fn announce(&mut self, len: usize, is_busy: bool, _stays: Stays) {
        lock(&self.shared.out).announce(len, is_busy);
    }

    #[cfg(test)]
    fn runs_ahead(&self) -> bool {
        true
    }

    fn peek(&mut self, want: usize) -> Result<&[u8], LinkError> {
        self.turn_over();
        self.incoming.gather(want);
        self.look();
        match &self.error {
            Some(e) if self.incoming.ready().is_empty() => Err(e.clone()),
            _ => Ok(self.incoming.ready()),
        }
    }

    fn consume(&mut self, n: usize) {
        self.incoming.consume(n);
    }

    fn take(&mut self, dst: &mut [u8]) -> Result<usize, LinkError> {
        self.turn_over();
        let taken = self.incoming.take(dst);
        self.look();
        match &self.error {
            Some(e) if taken == 0 => Err(e.clone()),
            _ => Ok(taken),
        }
    }

    fn is_inside(&self) -> bool {
        self.incoming.is_inside()
    }

    fn arrived(&self) -> u64 {
        self.incoming.arrived()
    }

    fn has_more(&self) -> bool {
        self.incoming.has_more()
    }

    fn path(&self) -> Option<(SocketAddr, SocketAddr)> {
        let socket = self.incoming.socket()?;
        socket.local_addr().ok().zip(socket.peer_addr().ok())
    }

    fn arm(&mut self, interest: Interest) {
        self.take_fresh();
        let out = lock(&self.shared.out);
        // One that has ended would be ready for ever.
        let sends = interest.send && !out.is_full() && !self.shared.is_doubted();
        let (desk, sends) = (out.desk().cloned().filter(|_| sends), sends && out.desk().is_none());
        self.polled = sends.then(|| (Arc::clone(&out.sockets), out.socket()));
        self.desk = desk;
    }

    fn disarm(&mut self) -> Result<(), LinkError> {
        self.shared.waker.drain();
        Ok(())
    }

    fn fds<'a>(&'a self, interest: Interest, out: &mut Vec<(BorrowedFd<'a>, Interest)>) {
        let only = |recv| Interest { recv, send: !recv };
        out.push((self.shared.waker.fd(), only(true)));
        if interest.recv {
            out.extend(self.incoming.fds().map(|fd| (fd, only(true))));
        }
        if interest.send {
            out.extend(self.desk.iter().map(|desk| (desk.as_fd(), only(true))));
            let room = self.polled.iter().filter_map(|(sockets, turn)| sockets.get(*turn));
            out.extend(room.map(|s| (s.as_fd(), only(false))));
        }
    }
}

impl Drop for LastingLink {
    /// What was accepted comes, whatever happens to its path, while this process goes on.
    fn drop(&mut self) {
        self.take_fresh();
        lock(&self.shared.out).close(&self.shared);
        *lock(&self.shared.held) = self.incoming.drain();
        self.all.closed();
    }
}

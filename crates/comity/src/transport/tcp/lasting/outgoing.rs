//! The half of a lasting link that sends. A thread that tends links uses it too, while no call is made.

use super::{Lasting, kept::Kept};
use crate::{
    channel::{Conn, Seal, Stream},
    sys::delivery,
    transport::{
        LinkError,
        tcp::{Route, TcpOptions, outbound::window, send::Sender, socket::is_cut},
    },
};
use std::{
    net::{IpAddr, TcpStream},
    os::fd::AsFd,
    sync::Arc,
    time::{Duration, Instant},
};

/// The longest piece of a frame: it is lent when it is whole, so it is to be in a cache then.
const LASTING_FRAME: usize = 64 << 10;
/// More is not kept; the systems' own buffers are smaller, unless somebody has set them so.
const MOST_KEPT: usize = 64 << 20;
/// Bytes sent again in one go.
const AGAIN: usize = 256 << 10;
/// Between two makings at least, and at most.
const PAUSES: [Duration; 2] = [Duration::from_millis(400), Duration::from_secs(2)];

/// Other connections for a link, made when its path was cut.
#[derive(Debug)]
pub(super) struct NextMaking {
    pub(super) making: u16,
    pub(super) sockets: Arc<[TcpStream]>,
    send: Vec<Seal>,
    /// Taken by the receiving half.
    pub(super) recv: Option<Vec<Seal>>,
    /// Over which the ends tell each other how far they came.
    desk: Conn,
    /// What this end has received is told; what the other has is known.
    told: bool,
    heard: bool,
}

impl NextMaking {
    pub(super) fn new(
        making: u16,
        sockets: Arc<[TcpStream]>,
        (send, recv): (Vec<Seal>, Vec<Seal>),
        desk: Conn,
    ) -> Self {
        Self { making, sockets, send, recv: Some(recv), desk, told: false, heard: false }
    }

    fn connections(&self) -> impl Iterator<Item = &TcpStream> {
        let desk = match &**self.desk.stream() {
            Stream::Tcp(stream) => Some(stream),
            Stream::Unix(_) => None,
        };
        self.sockets.iter().chain(desk)
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Outgoing {
    making: u16,
    pub(super) sockets: Arc<[TcpStream]>,
    sender: Sender,
    options: TcpOptions,
    kept: Kept,
    /// How much at the end of what is kept is still to be sent over these connections.
    backlog: usize,
    /// The other end has so many bytes that are offered again.
    ahead: usize,
    /// Bytes that left in a frame whose rest did not: nobody gives them out before, so they are offered again.
    begun: usize,
    pub(super) next: Option<NextMaking>,
    error: Option<LinkError>,
    made: Instant,
    /// When other connections were asked for, and how long to wait before they are again.
    asked: Option<(Instant, Duration)>,
}

impl Outgoing {
    pub(super) fn new(sockets: Arc<[TcpStream]>, seals: Vec<Seal>, options: TcpOptions, making: u16) -> Self {
        Self {
            making,
            sender: sender(&sockets, seals, &options),
            sockets,
            options,
            kept: Kept::new(),
            backlog: 0,
            ahead: 0,
            begun: 0,
            next: None,
            error: None,
            made: Instant::now(),
            asked: None,
        }
    }

    /// The last making that was begun.
    pub(super) fn latest(&self) -> u16 {
        self.next.as_ref().map_or(self.making, |n| n.making)
    }

    pub(super) fn route(&self, connections: usize) -> Route {
        Route::new(connections, self.options.ways.back())
    }

    pub(super) fn options(&self) -> &TcpOptions {
        &self.options
    }

    pub(super) fn made(&self) -> Instant {
        self.made
    }

    /// Whether nothing can be sent before the other end has said how far it came.
    pub(super) fn waits(&self) -> bool {
        self.next.as_ref().is_some_and(|n| !n.heard)
    }

    /// Whether other connections are there, to which not both ends have turned yet.
    pub(super) fn is_renewing(&self) -> bool {
        self.next.is_some() && self.error.is_none()
    }

    /// The connection of the frames that leave.
    pub(super) fn socket(&self) -> usize {
        self.sender.turn()
    }

    pub(super) fn announce(&mut self, len: usize, is_busy: bool) {
        self.sender.announce(&self.sockets, len, is_busy);
    }

    pub(super) fn put(&mut self, head: &[u8], body: &[u8], shared: &Lasting) -> Result<usize, LinkError> {
        self.go_on(shared)?;
        if self.waits() || self.backlog > 0 {
            return Ok(0);
        }
        let ahead = self.ahead.min(head.len() + body.len());
        self.ahead -= ahead;
        self.kept.push(head, body, ahead);
        if ahead > 0 {
            self.kept.came(self.kept.end());
        }
        let [head, body] = window(head, body, ahead, usize::MAX);
        self.kept.look(&self.sockets);
        if self.kept.len() >= MOST_KEPT || head.len() + body.len() == 0 {
            return Ok(ahead);
        }
        let [more, rest] = window(head, body, self.begun, usize::MAX);
        match self.sender.put(&self.sockets, more, rest) {
            Ok(n) => {
                let left = self.begun + n;
                self.begun = self.sender.begun();
                let whole = left.saturating_sub(self.begun);
                self.kept.push(head, body, whole);
                Ok(ahead + whole)
            }
            Err(e) if is_cut(&e) => {
                shared.doubt();
                Ok(ahead)
            }
            Err(e) => Err(self.fail(e)),
        }
    }

    fn fail(&mut self, e: LinkError) -> LinkError {
        self.error.get_or_insert(e).clone()
    }

    /// Hear how far the other end came, and send again what it lacks.
    pub(super) fn go_on(&mut self, shared: &Lasting) -> Result<(), LinkError> {
        if let Some(e) = &self.error {
            return Err(e.clone());
        }
        if self.waits() {
            self.hear(shared)?;
        }
        while self.backlog > 0 && !self.waits() {
            let [a, b] = self.kept.from(self.kept.len() - self.backlog);
            let [a, b] = window(a, b, 0, AGAIN);
            match self.sender.put(&self.sockets, a, b) {
                Ok(0) => break,
                Ok(n) => self.backlog -= n,
                Err(e) if is_cut(&e) => {
                    shared.doubt();
                    break;
                }
                Err(e) => return Err(self.fail(e)),
            }
        }
        Ok(())
    }

    fn hear(&mut self, shared: &Lasting) -> Result<(), LinkError> {
        let Some(next) = &mut self.next else { return Ok(()) };
        let open = next.desk.fill() && next.desk.flush().is_ok();
        let said = next.desk.next();
        match said.map(|m| m.map(<[u8; 8]>::try_from)) {
            Ok(Some(Ok(bytes))) => self.resume(u64::from_be_bytes(bytes), shared),
            Ok(None) if open => Ok(()),
            _ => {
                // Another making does it.
                shared.doubt();
                Ok(())
            }
        }
    }

    /// The other end has received `came` bytes of the stream: the rest goes over the new connections.
    fn resume(&mut self, came: u64, shared: &Lasting) -> Result<(), LinkError> {
        let Some(next) = &mut self.next else { return Ok(()) };
        next.heard = true;
        let (first, end) = (self.kept.first(), self.kept.end());
        if came < first {
            let words = format!(
                "lost bytes when its path was cut (it has {came}, and {first} were acknowledged): something between the hosts acknowledges in its place (a proxy); COMITY_INTERFACES can leave that path out"
            );
            return Err(self.fail(LinkError(words)));
        }
        let (making, sockets) = (next.making, Arc::clone(&next.sockets));
        let seals = std::mem::take(&mut next.send);
        self.ahead = usize::try_from(came.saturating_sub(end)).unwrap_or(usize::MAX);
        self.kept.came(came.min(end));
        (self.backlog, self.begun) = (self.kept.len(), 0);
        self.sender = sender(&sockets, seals, &self.options);
        (self.making, self.sockets, self.made) = (making, sockets, Instant::now());
        tracing::info!(
            rank = shared.peer,
            again = self.backlog,
            "the link to a rank goes on over other connections"
        );
        shared.waker.wake();
        self.end_making();
        Ok(())
    }

    /// This end has received `came` bytes, and takes what follows from the new connections.
    pub(super) fn tell(&mut self, came: u64) {
        if let Some(next) = &mut self.next {
            // One that cannot be told asks for another making.
            let _ = next.desk.send(&came.to_be_bytes());
            next.told = true;
        }
        self.end_making();
    }

    fn end_making(&mut self) {
        if self.next.as_ref().is_some_and(|n| n.told && n.heard && !n.desk.is_pending()) {
            self.next = None;
            self.asked = None;
        }
    }

    /// Whether other connections are to be made: `running` are the addresses here whose cables are in.
    pub(super) fn is_cut(&mut self, running: &[IpAddr], patience: Duration, is_doubted: bool) -> bool {
        let is_bad = |s: &TcpStream| is_down(s, running) || is_silent(s, patience);
        let cut = is_doubted
            || match &self.next {
                // The other end tells when its next call comes, however long that takes.
                Some(next) if !next.heard => next.connections().any(is_bad),
                _ => self.sockets.iter().any(is_bad),
            };
        let now = Instant::now();
        let due = self.asked.is_none_or(|(at, pause)| now >= at + pause);
        if cut && due {
            let pause = self.asked.map_or(PAUSES[0], |(_, pause)| (pause * 2).min(PAUSES[1]));
            self.asked = Some((now, pause));
        } else if !cut && self.next.is_none() {
            self.asked = None;
        }
        cut && due && self.error.is_none()
    }
}

fn sender(sockets: &[TcpStream], seals: Vec<Seal>, options: &TcpOptions) -> Sender {
    // Without a thread: what it has sent could not be told from what has come.
    Sender::with_frames(Route::new(sockets.len(), options.ways), seals, LASTING_FRAME, None)
}

/// Whether this host's end of the cable is out.
fn is_down(socket: &TcpStream, running: &[IpAddr]) -> bool {
    !running.is_empty() && socket.local_addr().is_ok_and(|at| !running.contains(&at.ip().to_canonical()))
}

/// Whether the other system has said nothing for long, though it was asked.
fn is_silent(socket: &TcpStream, patience: Duration) -> bool {
    delivery(socket.as_fd()).and_then(|d| d.silence).is_some_and(|silence| silence >= patience)
}

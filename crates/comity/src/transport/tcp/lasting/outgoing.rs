//! The half of a lasting link that sends. A thread that tends links uses it too, while no call is made.

use super::{Lasting, kept::Kept};
use crate::{
    channel::{Conn, Seal, Stream},
    sys::{delivery, has_arrived},
    transport::{
        LinkError,
        tcp::{Route, TcpOptions, outbound::window, send::Sender, socket},
    },
};
use std::{
    io,
    net::{IpAddr, Shutdown, TcpStream},
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
/// The other end takes new connections without a call of its rank: one that has said nothing for so long asks for others.
const UNANSWERED: Duration = Duration::from_secs(5);
/// Where in the stream these connections begin, ahead of all else that goes over them.
pub(super) const POSITION: usize = size_of::<u64>();

/// Connections that take the place of others: what seals the outgoing way, and one more over which the ends say that they use them.
#[derive(Debug)]
pub(super) struct OutgoingPath {
    pub(super) making: u16,
    pub(super) sockets: Arc<[TcpStream]>,
    pub(super) seals: Vec<Seal>,
    pub(super) desk: Conn,
}

/// Sends the stream of a lasting link, and sends what may not have come again when new connections replace the old ones.
#[derive(Debug)]
pub(super) struct Outgoing {
    making: u16,
    pub(super) sockets: Arc<[TcpStream]>,
    sender: Sender,
    options: TcpOptions,
    kept: Kept,
    /// Over which the other end says that it uses these connections; none once it has. Nothing is sent before.
    desk: Option<Conn>,
    /// Where they begin in the stream, and how much of that is still to be sent.
    position: ([u8; POSITION], usize),
    /// How much at the end of what is kept is still to be sent over them.
    backlog: usize,
    /// Bytes that left in a frame whose rest did not: nobody gives them out before, so they are offered again.
    begun: usize,
    error: Option<LinkError>,
    made: Instant,
    /// Their addresses here were seen among those whose cables are in: some systems list not all that they have.
    stood: bool,
    /// When other connections were asked for, and how long to wait before they are again.
    asked: Option<(Instant, Duration)>,
    /// The link is no more: the stream ends behind what is kept. And whether the connections were told.
    closes: bool,
    is_shut: bool,
    #[cfg(test)]
    pub(super) never_trims: bool,
}

impl Outgoing {
    pub(super) fn new(path: OutgoingPath, options: TcpOptions) -> Self {
        let OutgoingPath { making, sockets, seals, mut desk } = path;
        say(&mut desk, making);
        Self {
            making,
            sender: sender(&sockets, seals, &options),
            sockets,
            options,
            kept: Kept::new(),
            desk: Some(desk),
            position: ([0; POSITION], POSITION),
            backlog: 0,
            begun: 0,
            error: None,
            made: Instant::now(),
            stood: false,
            asked: None,
            closes: false,
            is_shut: false,
            #[cfg(test)]
            never_trims: false,
        }
    }

    /// What follows goes over other connections, behind what may not have come.
    pub(super) fn turn_to(&mut self, path: OutgoingPath) {
        let OutgoingPath { making, sockets, seals, mut desk } = path;
        self.trim();
        say(&mut desk, making);
        self.kept.go_elsewhere();
        self.position = (self.kept.first().to_be_bytes(), POSITION);
        (self.backlog, self.begun) = (self.kept.len(), 0);
        self.sender = sender(&sockets, seals, &self.options);
        (self.making, self.sockets, self.desk) = (making, sockets, Some(desk));
        (self.made, self.stood, self.is_shut) = (Instant::now(), false, false);
    }

    /// The last making.
    pub(super) fn latest(&self) -> u16 {
        self.making
    }

    pub(super) fn options(&self) -> &TcpOptions {
        &self.options
    }

    pub(super) fn made(&self) -> Instant {
        self.made
    }

    /// Over which the other end is still to say that it uses these connections.
    pub(super) fn desk(&self) -> Option<&Arc<Stream>> {
        self.desk.as_ref().map(Conn::stream)
    }

    /// Whether all that was accepted is with the system, and more may follow.
    fn is_open(&self) -> bool {
        self.desk.is_none() && self.position.1 == 0 && self.backlog == 0
    }

    /// Whether so much is kept that nothing more is accepted.
    pub(super) fn is_full(&self) -> bool {
        self.kept.len() >= MOST_KEPT
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
        if !self.is_open() {
            return Ok(0);
        }
        #[cfg(test)]
        let looks = !self.never_trims;
        #[cfg(not(test))]
        let looks = true;
        if looks {
            self.kept.look(&self.sockets);
        }
        if self.is_full() || head.len() + body.len() == 0 {
            return Ok(0);
        }
        let [more, rest] = window(head, body, self.begun, usize::MAX);
        match self.sender.put(&self.sockets, more, rest) {
            Ok(n) => {
                let left = self.begun + n;
                self.begun = self.sender.begun();
                let whole = left.saturating_sub(self.begun);
                self.kept.push(head, body, whole);
                Ok(whole)
            }
            Err(e) => self.ended(e, shared).map(|()| 0),
        }
    }

    /// A connection has ended: others do it where the system gave it up, else that is the end of the link.
    fn ended(&mut self, e: LinkError, shared: &Lasting) -> Result<(), LinkError> {
        if socket::is_cut(&e) {
            shared.doubt();
            return Ok(());
        }
        Err(self.error.get_or_insert(e).clone())
    }

    /// Hear that the other end uses these connections, and send again what may not have come.
    pub(super) fn go_on(&mut self, shared: &Lasting) -> Result<(), LinkError> {
        if let Some(e) = &self.error {
            return Err(e.clone());
        }
        self.hear(shared);
        while !self.is_open() && self.desk.is_none() {
            let (position, left) = &self.position;
            let (a, b) = match position.get(POSITION - left..).filter(|p| !p.is_empty()) {
                Some(position) => (position, &[][..]),
                None => {
                    let [a, b] = self.kept.from(self.kept.len() - self.backlog);
                    let [a, b] = window(a, b, 0, AGAIN);
                    (a, b)
                }
            };
            match self.sender.put(&self.sockets, a, b) {
                Ok(0) => return Ok(()),
                Ok(n) if *left > 0 => self.position.1 -= n,
                Ok(n) => self.backlog -= n,
                Err(e) => return self.ended(e, shared),
            }
        }
        if self.closes && self.is_open() && !std::mem::replace(&mut self.is_shut, true) {
            for socket in self.sockets.iter() {
                // It fails where the connection has ended already.
                let _ = socket.shutdown(Shutdown::Write);
            }
        }
        Ok(())
    }

    fn hear(&mut self, shared: &Lasting) {
        let Some(desk) = &mut self.desk else { return };
        let open = desk.fill() && desk.flush().is_ok();
        match desk.next() {
            Ok(Some(word)) if word == self.making.to_be_bytes() => {
                self.desk = None;
                self.asked = None;
                if self.making > 1 {
                    tracing::info!(
                        rank = shared.peer,
                        again = self.backlog,
                        "the link to a rank goes on over other connections"
                    );
                }
                shared.waker.wake();
            }
            Ok(None) if open => {}
            // The other end has not taken them: another making does it.
            _ => shared.doubt(),
        }
    }

    /// The stream ends behind what was accepted.
    pub(super) fn close(&mut self, shared: &Lasting) {
        self.closes = true;
        let _ = self.go_on(shared);
    }

    /// Whether the link is no more.
    pub(super) fn closes(&self) -> bool {
        self.closes
    }

    fn trim(&mut self) {
        #[cfg(test)]
        if self.never_trims {
            return;
        }
        if self.is_open() {
            self.kept.trim(&self.sockets);
        }
    }

    /// Whether the other system has all that was accepted, or nobody there wants it.
    pub(super) fn has_come(&mut self, shared: &Lasting) -> bool {
        self.trim();
        if self.error.is_some() || self.kept.len() == 0 {
            return true;
        }
        let is_over = |s: &TcpStream| has_arrived(s.as_fd());
        if shared.is_doubted() || !self.is_open() || !self.sockets.iter().all(is_over) {
            return false;
        }
        // What the system gave up has not come.
        let cut = self.sockets.iter().filter_map(|s| s.take_error().ok().flatten()).any(|e| !is_refusal(&e));
        if cut {
            shared.doubt();
        }
        !cut
    }

    /// Look after it: forget what has come; whether the path is cut, where `running` are the addresses here whose cables are in.
    pub(super) fn tend(&mut self, running: &[IpAddr], patience: Duration, shared: &Lasting) -> bool {
        // The next call says what went wrong.
        let _ = self.go_on(shared);
        let was_full = self.is_full();
        self.trim();
        if was_full && !self.is_full() {
            shared.waker.wake();
        }
        self.stood |= !running.is_empty() && self.sockets.iter().all(|s| !is_down(s, running));
        let stood = self.stood;
        let is_bad = |s: &TcpStream| stood && is_down(s, running) || is_silent(s, patience);
        let desk = match self.desk().map(|s| &**s) {
            Some(Stream::Tcp(stream)) => is_bad(stream) || self.made.elapsed() >= UNANSWERED,
            _ => false,
        };
        self.error.is_none() && (shared.is_doubted() || desk || self.sockets.iter().any(is_bad))
    }

    /// Whether to ask for other connections now: not again at once.
    pub(super) fn asks(&mut self, is_cut: bool) -> bool {
        let now = Instant::now();
        let due = self.asked.is_none_or(|(at, pause)| now >= at + pause);
        if is_cut && due {
            let pause = self.asked.map_or(PAUSES[0], |(_, pause)| (pause * 2).min(PAUSES[1]));
            self.asked = Some((now, pause));
        } else if !is_cut && self.desk.is_none() {
            self.asked = None;
        }
        is_cut && due
    }
}

fn sender(sockets: &[TcpStream], seals: Vec<Seal>, options: &TcpOptions) -> Sender {
    // Without a thread: what it has sent could not be told from what has come.
    Sender::with_frames(Route::new(sockets.len(), options.ways), seals, LASTING_FRAME, None)
}

/// Tell the other end that this one uses these connections.
fn say(desk: &mut Conn, making: u16) {
    // One that cannot be told asks for others.
    let _ = desk.send(&making.to_be_bytes());
}

/// Whether the other system answered that nobody wants what is sent.
fn is_refusal(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}

/// Whether this host's end of the cable is out.
fn is_down(socket: &TcpStream, running: &[IpAddr]) -> bool {
    !running.is_empty() && socket.local_addr().is_ok_and(|at| !running.contains(&at.ip().to_canonical()))
}

/// Whether the other system has said nothing for long, though it was asked.
fn is_silent(socket: &TcpStream, patience: Duration) -> bool {
    delivery(socket.as_fd()).and_then(|d| d.silence).is_some_and(|silence| silence >= patience)
}

//! A control connection that can go on over another one: notes are counted, and kept until the other system has them.
//!
//! ```text
//!   A  notes 7 8 9 -- old, cut -- x            B has received up to 7
//!      "I stop"   -- new -->   <-- "I stop"    from then on nothing more is sent over the old one
//!      <-- "I have 7"                          only then is the old one read to its end, and counted
//!      8 9, then what follows  -->
//! ```
//! Beats are neither counted nor kept: the next one says the same. The end that made the connection makes the new ones, when it hears nothing
//! any more. A new connection counts once the other end has said "I stop". One that ends before that never stood, and is no sign of a death.

#[cfg(test)]
mod tests;

use crate::{
    channel::{Conn, Malformed, Sealing, Stream, frame},
    control::note::is_beat,
    sys::delivery,
};
use comity_membership::RESENT;
use socket2::{SockRef, TcpKeepalive};
use std::{
    collections::VecDeque,
    io::{self, ErrorKind},
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::{Duration, Instant},
};

/// How long after a connection that a third rank passes on the end of that one is waited for, which explains it.
const PASSED_ON: Duration = Duration::from_millis(300);
/// Notes and bytes that are kept; a peer that has not got so much is as good as gone.
const MOST_NOTES: usize = 65_536;
const MOST_BYTES: usize = 48 << 20;
/// How often to ask for another connection in place of one that leads nowhere.
const ASK_AGAIN: Duration = Duration::from_millis(250);
/// Earlier connections that are held open.
const MOST_EARLIER: usize = 16;
/// The first message on a new connection: nothing more is sent over the earlier ones.
const STOP: &[u8] = &[0xff];
/// The second one begins with this: how many notes came.
const COUNT: u8 = 0xfe;

/// How a control connection came about.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Origin {
    /// This end made it, so it makes the others too.
    pub(super) is_ours: bool,
    /// A third rank passes it on.
    pub(super) is_passed_on: bool,
    /// The two hosts have another path.
    pub(super) has_second: bool,
}

/// Carries the notes of a control connection, numbered, over one connection after another, so that none is lost or heard twice.
#[derive(Debug)]
pub(super) struct KeptConn {
    /// The one that is read.
    conn: Conn,
    /// A new one, on which the other end has said nothing yet.
    next: Option<Conn>,
    /// Earlier streams. They stay open until the other end has left them: it would take their end for this one's.
    earlier_streams: Vec<Arc<Stream>>,
    /// Which new connection is the last; 0: none.
    number: u64,
    origin: Origin,
    /// Notes that may not have come, the first of which has this number, and the bytes of them.
    kept: VecDeque<Vec<u8>>,
    first: u64,
    bytes: usize,
    /// Notes before this number have come when so many bytes are acknowledged.
    mark: Option<(u64, u64)>,
    received: u64,
    /// What had come over earlier connections.
    earlier: VecDeque<Vec<u8>>,
    /// This end has said that it stops, and does not know yet what the other one has.
    is_paused: bool,
    /// The other end has stopped; it is to say next how many notes came to it.
    awaits_count: bool,
    /// They were found to be damaged, or to lack notes.
    is_broken: bool,
    /// The other end has let more pile up than is kept.
    is_full: bool,
    /// The one that is read has ended, while there is a new one.
    has_ended: bool,
    /// It has ended; when that counts.
    ends: Option<Instant>,
    /// When something last came, when a new connection was last begun, and when one was asked for.
    heard: Instant,
    renewed: Option<Instant>,
    asked: Option<Instant>,
}

impl KeptConn {
    pub(super) fn new(stream: Stream, seals: Sealing, origin: Origin) -> Self {
        // What a third rank has acknowledged may not have come. And not all systems tell what has come.
        let is_kept = cfg!(target_os = "linux") && !origin.is_passed_on && matches!(stream, Stream::Tcp(_));
        Self {
            conn: Conn::new(stream, seals),
            next: None,
            earlier_streams: Vec::new(),
            number: 0,
            origin: Origin { has_second: origin.has_second && is_kept, ..origin },
            kept: VecDeque::new(),
            first: 0,
            bytes: 0,
            mark: None,
            received: 0,
            earlier: VecDeque::new(),
            is_paused: false,
            awaits_count: false,
            is_broken: false,
            is_full: false,
            has_ended: false,
            ends: None,
            heard: Instant::now(),
            renewed: None,
            asked: None,
        }
    }

    /// The stream has ended. Whether that counts now: the third rank that passed it on may have ended itself.
    pub(super) fn end(&mut self, now: Instant) -> bool {
        now >= *self.ends.get_or_insert(if self.origin.is_passed_on { now + PASSED_ON } else { now })
    }

    /// When its end counts, if it has ended.
    pub(super) fn ends(&self) -> Option<Instant> {
        self.ends
    }

    /// Whether this end made it.
    pub(super) fn is_ours(&self) -> bool {
        self.origin.is_ours
    }

    /// Whether it can go on over another one.
    pub(super) fn has_second(&self) -> bool {
        self.origin.has_second
    }

    /// Whether new connection `number` may take its place.
    pub(super) fn may_renew(&self, number: u64) -> bool {
        self.has_second() && self.number < number && self.earlier_streams.len() < MOST_EARLIER
    }

    /// Whether this end is to make a new connection, having heard nothing for `patience`, or having begun with one that leads nowhere.
    pub(super) fn wants_other(&self, patience: Duration, now: Instant) -> bool {
        let over = |at: Instant| now.saturating_duration_since(at) >= patience;
        let lacks = (self.is_paused || over(self.heard)) && self.renewed.is_none_or(over);
        lacks && self.has_second() && self.is_ours() && self.earlier_streams.len() < MOST_EARLIER
    }

    /// Whether to ask for one now.
    pub(super) fn asks(&mut self, now: Instant) -> bool {
        let due = self.asked.is_none_or(|at| now.saturating_duration_since(at) >= ASK_AGAIN);
        if due {
            self.asked = Some(now);
        }
        due
    }

    /// Whether this end has stopped and does not know what the other one has.
    pub(super) fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Whether notes wait here until it is known what the other end has.
    pub(super) fn is_unsaid(&self) -> bool {
        self.is_paused && !self.kept.is_empty()
    }

    /// Whether the other end has let more pile up than is kept; once.
    pub(super) fn take_full(&mut self) -> bool {
        std::mem::take(&mut self.is_full)
    }

    pub(super) fn is_full(&self) -> bool {
        self.is_full
    }

    pub(super) fn stream(&self) -> &Arc<Stream> {
        self.conn.stream()
    }

    /// What is read, and whether there is something to send over it.
    pub(super) fn streams(&self) -> impl Iterator<Item = (Arc<Stream>, bool)> {
        // One that has ended would be readable for ever.
        let current = Some(&self.conn).filter(|_| !self.has_ended);
        current.into_iter().chain(&self.next).map(|c| (Arc::clone(c.stream()), c.is_pending()))
    }

    pub(super) fn is_pending(&self) -> bool {
        self.conn.is_pending()
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        match &mut self.next {
            // What became of it is found when it is read.
            Some(next) => next.flush().or(Ok(())),
            None => self.conn.flush(),
        }
    }

    /// Read what is there. False: the stream has ended.
    pub(super) fn fill(&mut self) -> bool {
        if let Some(mut next) = self.next.take() {
            let open = next.fill();
            match next.next() {
                Ok(Some(word)) if word == STOP => self.turn_over(next),
                Ok(None) if open => self.next = Some(next),
                // It never stood.
                _ => tracing::debug!("a new control connection has ended before the other end used it"),
            }
        }
        let open = self.conn.fill();
        self.has_ended = !open && self.next.is_some();
        open || self.next.is_some()
    }

    pub(super) fn send(&mut self, note: &[u8]) -> io::Result<()> {
        self.send_all(&[note])
    }

    /// Several notes, which go out at once.
    pub(super) fn send_all<N: AsRef<[u8]>>(&mut self, notes: &[N]) -> io::Result<()> {
        let sent = self.keep(notes).and_then(|()| {
            // The others of an earlier connection go first, when it is known which.
            if self.is_paused {
                return Ok(());
            }
            let frames: Vec<u8> = notes.iter().flat_map(|note| frame(note.as_ref())).collect();
            self.conn.send_frames(frames.into())
        });
        self.is_full |= sent.as_ref().is_err_and(|e| e.kind() == ErrorKind::Other);
        sent
    }

    /// Keep notes until the other system has them, where they could be lost.
    fn keep<N: AsRef<[u8]>>(&mut self, notes: &[N]) -> io::Result<()> {
        if !self.has_second() {
            return Ok(());
        }
        self.let_go();
        for note in notes.iter().map(AsRef::as_ref).filter(|note| !is_beat(note)) {
            if self.kept.len() >= MOST_NOTES || self.bytes + note.len() > MOST_BYTES {
                return Err(io::Error::other("the peer does not read"));
            }
            self.bytes += note.len();
            self.kept.push_back(note.to_vec());
        }
        Ok(())
    }

    /// What has come to the other system need not be kept: it is read there before it is counted.
    fn let_go(&mut self) {
        if self.kept.is_empty() || self.is_paused || self.conn.is_pending() {
            return;
        }
        let Some(now) = delivery(self.conn.stream().as_fd()) else { return };
        let end = self.first + self.kept.len() as u64;
        if now.waiting == 0 {
            return self.came(end);
        }
        if let Some((position, due)) = self.mark
            && now.acknowledged >= due
        {
            self.came(position);
        }
        self.mark.get_or_insert((end, now.acknowledged + now.waiting));
    }

    /// All notes before number `position` have come.
    fn came(&mut self, position: u64) {
        let n = usize::try_from(position - self.first).unwrap_or(usize::MAX);
        self.bytes -= self.kept.drain(..n.min(self.kept.len())).map(|note| note.len()).sum::<usize>();
        (self.first, self.mark) = (position, None);
    }

    /// Go on over another connection, once the other end has said that it does.
    pub(super) fn renew(&mut self, number: u64, stream: Stream, seals: Sealing) {
        let mut next = Conn::new(stream, seals);
        // One that cannot be told is found when it is next read.
        let _ = next.send(STOP);
        let before = self.next.replace(next);
        self.earlier_streams.extend(before.map(|c| Arc::clone(c.stream())));
        (self.number, self.is_paused, self.renewed) = (number, true, Some(Instant::now()));
    }

    /// The other end has stopped: what it said before lies in the old connection. Then it is told how much that was.
    fn turn_over(&mut self, next: Conn) {
        loop {
            let (before, open) = (self.earlier.len(), self.conn.fill());
            // What is damaged there comes again.
            while let Ok(Some(note)) = self.conn.next() {
                if !self.take_count(&note, false) {
                    self.received += u64::from(!is_beat(&note));
                    self.earlier.push_back(note);
                }
            }
            if !open || self.earlier.len() == before {
                break;
            }
        }
        let old = std::mem::replace(&mut self.conn, next);
        self.earlier_streams.push(Arc::clone(old.stream()));
        (self.awaits_count, self.mark, self.heard) = (true, None, Instant::now());
        let mut count = vec![COUNT];
        count.extend(self.received.to_be_bytes());
        let _ = self.conn.send(&count);
    }

    /// Whether this note says how many notes came to the other end. If so, the rest is sent again, unless this end has stopped here as well.
    ///
    /// The other end says it when it has heard that this one stopped.
    fn take_count(&mut self, note: &[u8], is_newest: bool) -> bool {
        if !std::mem::take(&mut self.awaits_count) {
            return false;
        }
        let known = self.first..=self.first + self.kept.len() as u64;
        let count = note.split_first().filter(|(kind, _)| **kind == COUNT);
        let count = count.and_then(|(_, n)| Some(u64::from_be_bytes(n.try_into().ok()?)));
        let Some(came) = count.filter(|n| known.contains(n)) else {
            self.is_broken = true;
            return true;
        };
        self.came(came);
        if is_newest {
            self.earlier_streams.clear();
            self.is_paused = false;
            let frames: Vec<u8> = self.kept.iter().flat_map(|note| frame(note)).collect();
            self.is_full |= self.conn.send_frames(frames.into()).is_err_and(|e| e.kind() == ErrorKind::Other);
        }
        true
    }

    /// The next whole note.
    pub(super) fn next(&mut self) -> Result<Option<Vec<u8>>, Malformed> {
        loop {
            if let Some(note) = self.earlier.pop_front() {
                return Ok(Some(note));
            }
            if self.is_broken {
                return Err(Malformed);
            }
            let Some(note) = self.conn.next()? else { return Ok(None) };
            self.heard = Instant::now();
            if !self.take_count(&note, self.next.is_none()) {
                self.received += u64::from(!is_beat(&note));
                return Ok(Some(note));
            }
        }
    }
}

/// What is known of the process at the other end of a connection.
#[derive(Debug)]
pub(super) enum Process {
    /// Readable when it has ended.
    Is(OwnedFd),
    HasEnded,
}

/// What tells the end of the process at the other end of a connection within this host. A child that it forked keeps its sockets
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
    // Above the time in which it carries something again, so as not to decide before the beats do, nor before new connections have shown that only this one is lost.
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(limit.map(|l| l.saturating_mul(RESENT + 1)))?;
    Ok(())
}

//! A control connection that can go on over another one: notes are counted, and kept until the other system has them.
//!
//! Beats are neither: the next one says the same. Where the two hosts have another path, the higher rank makes a new connection when nothing is
//! heard any more. Both ends take what lies in the old one, tell each other how many notes came, and send the others again.

use crate::{
    channel::{Conn, Malformed, Sealing, Stream, frame},
    control::note::is_beat,
};
use socket2::{SockRef, TcpKeepalive};
use std::{
    collections::VecDeque,
    io,
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};

/// How long after a connection that a third rank passes on the end of that one is waited for, which explains it.
const PASSED_ON: Duration = Duration::from_millis(300);
/// Notes that are kept; a peer that has not got so many is as good as gone.
const MOST_NOTES: usize = 65_536;

/// See the module.
#[derive(Debug)]
pub(super) struct KeptConn {
    conn: Conn,
    /// Notes that may not have come, the first of which has this number.
    kept: VecDeque<Vec<u8>>,
    first: u64,
    received: u64,
    /// What had come over earlier connections.
    earlier: VecDeque<Vec<u8>>,
    /// Which new connection this is; 0: none.
    number: u64,
    /// The other end has not said how many notes came to it. Until then the earlier connections stay open, for their end would be
    /// taken for one's own.
    earlier_streams: Vec<Arc<Stream>>,
    /// They were found to be damaged, or to lack notes.
    is_broken: bool,
    /// A third rank passes it on.
    is_passed_on: bool,
    /// It has ended; when that counts.
    ends: Option<Instant>,
}

impl KeptConn {
    pub(super) fn new(stream: Stream, seals: Sealing, is_passed_on: bool) -> Self {
        Self {
            conn: Conn::new(stream, seals),
            kept: VecDeque::new(),
            first: 0,
            received: 0,
            earlier: VecDeque::new(),
            number: 0,
            earlier_streams: Vec::new(),
            is_broken: false,
            is_passed_on,
            ends: None,
        }
    }

    /// The stream has ended. Whether that counts now: the third rank that passed it on may have ended itself.
    pub(super) fn end(&mut self, now: Instant) -> bool {
        now >= *self.ends.get_or_insert(if self.is_passed_on { now + PASSED_ON } else { now })
    }

    /// When its end counts, if it has ended.
    pub(super) fn ends(&self) -> Option<Instant> {
        self.ends
    }

    /// Which new connection this is.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn stream(&self) -> &Arc<Stream> {
        self.conn.stream()
    }

    pub(super) fn is_pending(&self) -> bool {
        self.conn.is_pending()
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.conn.flush()
    }

    /// Read what is there. False: the stream has ended.
    pub(super) fn fill(&mut self) -> bool {
        self.conn.fill()
    }

    /// Whether the other end is to say first how many notes came to it.
    fn is_resuming(&self) -> bool {
        !self.earlier_streams.is_empty()
    }

    pub(super) fn send(&mut self, note: &[u8]) -> io::Result<()> {
        self.send_all(&[note])
    }

    /// Several notes, which go out at once.
    pub(super) fn send_all<N: AsRef<[u8]>>(&mut self, notes: &[N]) -> io::Result<()> {
        self.let_go();
        for note in notes {
            self.keep(note.as_ref())?;
        }
        // The others of an earlier connection go first, when it is known which.
        if self.is_resuming() {
            return Ok(());
        }
        let frames: Vec<u8> = notes.iter().flat_map(|note| frame(note.as_ref())).collect();
        self.conn.send_frames(frames.into())
    }

    /// What has come to the other system need not be kept.
    fn let_go(&mut self) {
        if !self.is_resuming() && !self.conn.is_pending() && self.conn.stream().has_arrived() {
            self.first += self.kept.len() as u64;
            self.kept.clear();
        }
    }

    /// Keep a note until the other system has it, where it could be lost.
    fn keep(&mut self, note: &[u8]) -> io::Result<()> {
        if is_beat(note) || !matches!(**self.conn.stream(), Stream::Tcp(_)) {
            return Ok(());
        }
        if self.kept.len() >= MOST_NOTES {
            return Err(io::Error::other("the peer does not read"));
        }
        self.kept.push_back(note.to_vec());
        Ok(())
    }

    /// Go on over another connection.
    pub(super) fn renew(&mut self, number: u64, stream: Stream, seals: Sealing) {
        // What came before the path was cut.
        self.conn.fill();
        while let Ok(Some(note)) = self.conn.next() {
            if !self.take_count(&note) {
                self.received += u64::from(!is_beat(&note));
                self.earlier.push_back(note);
            }
        }
        let old = std::mem::replace(&mut self.conn, Conn::new(stream, seals));
        self.earlier_streams.push(Arc::clone(old.stream()));
        self.number = number;
        // One that cannot be told is found when it is next read.
        let _ = self.conn.send(&self.received.to_be_bytes());
    }

    /// Whether this is how many notes came to the other end, which it says first: then the others are sent again.
    fn take_count(&mut self, note: &[u8]) -> bool {
        if !self.is_resuming() {
            return false;
        }
        self.earlier_streams.clear();
        let known = self.first..=self.first + self.kept.len() as u64;
        let Some(came) = note.try_into().ok().map(u64::from_be_bytes).filter(|n| known.contains(n)) else {
            self.is_broken = true;
            return true;
        };
        let n = usize::try_from(came - self.first).unwrap_or(usize::MAX);
        self.kept.drain(..n.min(self.kept.len()));
        self.first = came;
        for note in &self.kept {
            let _ = self.conn.send(note);
        }
        true
    }

    /// The next whole note.
    pub(super) fn next(&mut self) -> Result<Option<Vec<u8>>, Malformed> {
        if let Some(note) = self.earlier.pop_front() {
            return Ok(Some(note));
        }
        loop {
            let Some(note) = self.conn.next()? else { return Ok(None) };
            if !self.take_count(&note) {
                self.received += u64::from(!is_beat(&note));
                return Ok(Some(note));
            }
            if self.is_broken {
                return Err(Malformed);
            }
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    fn streams() -> (Stream, Stream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let b = listener.accept().unwrap().0;
        a.set_nonblocking(true).unwrap();
        b.set_nonblocking(true).unwrap();
        (Stream::Tcp(a), Stream::Tcp(b))
    }

    fn note(i: usize) -> Vec<u8> {
        let mut note = vec![1; 9 + i % 50];
        note[1..9].copy_from_slice(&(i as u64).to_be_bytes());
        note
    }

    #[test]
    fn every_note_comes_once_over_whatever_connection() {
        let (a, b) = streams();
        let mut ends = [KeptConn::new(a, None, false), KeptConn::new(b, None, false)];
        let (mut put, mut got) = ([0; 2], [0; 2]);
        let begun = Instant::now();
        while got != [3000; 2] {
            let turn = put[0];
            for way in 0..2 {
                for _ in 0..7 {
                    if put[way] < 3000 {
                        ends[way].send(&note(put[way])).unwrap();
                        put[way] += 1;
                    }
                }
                ends[way].flush().unwrap();
                // Some is never read from the old connection.
                if turn % 5 < 3 {
                    let end = &mut ends[1 - way];
                    assert!(end.fill());
                    while let Some(came) = end.next().unwrap() {
                        assert_eq!(came, note(got[way]), "{way}");
                        got[way] += 1;
                    }
                }
            }
            if turn % 140 == 7 && turn < 2000 {
                let (a, b) = streams();
                let number = ends[0].number() + 1;
                ends[0].renew(number, a, None);
                ends[1].renew(number, b, None);
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "{put:?} {got:?}");
        }
        assert!(ends.iter().all(|e| e.number() > 5 && !e.is_resuming()));
    }

    #[test]
    fn notes_that_nobody_has_any_more_end_it() {
        let (a, b) = streams();
        let mut end = KeptConn::new(a, None, false);
        end.send(&note(0)).unwrap();
        let (c, d) = streams();
        end.renew(1, c, None);
        let mut other = Conn::new(d, None);
        other.send(&7u64.to_be_bytes()).unwrap();
        let begun = Instant::now();
        while end.fill() && end.next().is_ok() {
            assert!(begun.elapsed() < Duration::from_secs(20));
        }
        drop(b);
    }
}

//! The launcher's standard input, given to every rank.
//!
//! A single piece is in hand at a time, and the next one is read when every rank that still listens has taken it:
//! memory is bounded, and a rank that does not read holds up the others' input but nothing else.
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};

const PIECE: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct StdinFeed {
    source: Option<OwnedFd>,
    /// Pieces are given, not read; false after the last.
    given: bool,
    piece: Vec<u8>,
    sinks: Vec<Option<Sink>>,
}

/// The launcher's end of a rank's standard input; it does not block.
#[derive(Debug)]
pub(crate) struct RankInput {
    pub(crate) fd: OwnedFd,
    /// Closing it says nothing: the end is a key.
    pub(crate) terminal: bool,
}

/// The key that ends what is typed at the beginning of a line (Ctrl-D); twice, anywhere.
const END_KEY: &[u8] = b"\x04\x04";

#[derive(Debug)]
struct Sink {
    input: RankInput,
    /// Bytes of the piece that it has taken.
    taken: usize,
}

impl StdinFeed {
    pub(crate) fn new(source: OwnedFd) -> Self {
        Self { source: Some(source), given: false, piece: Vec::new(), sinks: Vec::new() }
    }

    /// Makes a feed whose pieces are given.
    pub(crate) fn given() -> Self {
        Self { source: None, given: true, piece: Vec::new(), sinks: Vec::new() }
    }

    /// The next piece; none is the end. Only when all have taken the one before.
    pub(crate) fn give(&mut self, piece: Option<Vec<u8>>) {
        match piece {
            Some(piece) => {
                self.piece = piece;
                self.sinks.iter_mut().flatten().for_each(|s| s.taken = 0);
            }
            None => self.end(),
        }
        self.pump(false);
    }

    /// Returns whether every rank has taken the piece.
    pub(crate) fn is_taken(&self) -> bool {
        self.sinks.iter().flatten().all(|s| s.taken == self.piece.len())
    }

    /// Adds a rank's end: the next one's, or that of one that was started again. Without an end it gets nothing.
    pub(crate) fn add(&mut self, rank: usize, sink: Option<RankInput>) {
        let ended = self.source.is_none() && !self.given;
        // What others have taken is not given again.
        let taken = self.piece.len();
        let sink = sink.filter(|input| input.terminal || !ended).map(|input| Sink { input, taken });
        match self.sinks.get_mut(rank) {
            Some(known) => *known = sink,
            None => self.sinks.push(sink),
        }
    }

    pub(crate) fn remove(&mut self, rank: usize) {
        if let Some(sink) = self.sinks.get_mut(rank) {
            *sink = None;
        }
    }

    /// Descriptors to poll: the source when every rank has taken the piece, else the ranks that have not.
    pub(crate) fn wants(&self) -> impl Iterator<Item = PollFd<'_>> {
        let waiting = self.sinks.iter().flatten().filter(|s| s.taken < self.piece.len());
        let idle = waiting.clone().next().is_none() && self.sinks.iter().any(Option::is_some);
        let source = self.source.as_ref().filter(|_| idle).map(|fd| PollFd::new(fd, PollFlags::IN));
        source.into_iter().chain(waiting.map(|s| PollFd::new(&s.input.fd, PollFlags::OUT)))
    }

    /// Moves what can be moved now; `readable` says that the source has something (or has ended).
    pub(crate) fn pump(&mut self, readable: bool) {
        if readable && self.source.is_some() && self.is_taken() {
            self.read();
        }
        let ended = self.source.is_none() && !self.given;
        for slot in &mut self.sinks {
            let Some(sink) = slot else { continue };
            let open = sink.push(&self.piece);
            if !open || (ended && sink.taken == self.piece.len()) {
                *slot = None;
            }
        }
    }

    /// No more comes: what is left is a key for terminals, which may be full just now.
    fn end(&mut self) {
        self.source = None;
        self.given = false;
        self.piece = END_KEY.to_vec();
        for sink in self.sinks.iter_mut().flatten() {
            sink.taken = if sink.input.terminal { 0 } else { END_KEY.len() };
        }
    }

    fn read(&mut self) {
        let Some(source) = &self.source else { return };
        self.piece.resize(PIECE, 0);
        match rustix::io::read(source.as_fd(), &mut self.piece[..]) {
            Ok(n) if n > 0 => self.piece.truncate(n),
            Err(Errno::INTR | Errno::AGAIN) => self.piece.clear(),
            // The end, or an error that will not go away.
            _ => return self.end(),
        }
        self.sinks.iter_mut().flatten().for_each(|s| s.taken = 0);
    }
}

impl Sink {
    /// False when the rank no longer reads.
    fn push(&mut self, piece: &[u8]) -> bool {
        while self.taken < piece.len() {
            match rustix::io::write(&self.input.fd, &piece[self.taken..]) {
                Ok(n) => self.taken += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{OFlags, fcntl_setfl};
    use std::io::Read;

    #[test]
    fn a_terminal_that_is_full_gets_the_key_that_ends_it_when_it_has_room() {
        let (mut from, to) = std::io::pipe().unwrap();
        fcntl_setfl(&from, OFlags::NONBLOCK).unwrap();
        fcntl_setfl(&to, OFlags::NONBLOCK).unwrap();
        while rustix::io::write(&to, &[b'x'; 4096]).is_ok() {}
        let mut feed = StdinFeed::given();
        feed.add(0, Some(RankInput { fd: to.into(), terminal: true }));
        feed.give(None);
        assert_eq!(feed.wants().count(), 1);
        let mut all = Vec::new();
        let _ = from.read_to_end(&mut all);
        feed.pump(false);
        assert_eq!(feed.wants().count(), 0);
        all.clear();
        assert!(from.read_to_end(&mut all).is_ok() && all == END_KEY, "{all:?}");
    }
}

//! The half of a lasting link that receives: from the connections in use, and from those that took their place, in their order.
//!
//! What comes over other connections says first where in the stream it begins: that much had come for certain. So what lies in the ones before
//! is taken from them, and what comes twice is passed over.

use super::outgoing::POSITION;
use crate::{
    channel::Seal,
    transport::{
        LinkError, SMALL_WANT,
        tcp::{Route, recv::Receiver, socket},
    },
};
use std::{
    collections::VecDeque,
    net::TcpStream,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

/// Bytes to take from earlier connections in one go.
const PIECE: usize = 256 << 10;

/// Connections, and what opens what comes over each.
pub(super) type NewPath = (Arc<[TcpStream]>, Vec<Seal>);

/// What comes over the connections of one making.
#[derive(Debug)]
struct IncomingPath {
    sockets: Arc<[TcpStream]>,
    receiver: Receiver,
    /// It has said where it begins.
    has_begun: bool,
    /// Bytes to come that came over earlier ones.
    again: u64,
    /// How it ended.
    ended: Option<LinkError>,
}

impl IncomingPath {
    fn new((sockets, seals): NewPath, route: &dyn Fn(usize) -> Route) -> Self {
        let receiver = Receiver::new(route(sockets.len()), seals, true);
        Self { sockets, receiver, has_begun: false, again: 0, ended: None }
    }

    fn note(&mut self, said: Result<(), LinkError>) {
        if let Err(e) = said {
            self.ended.get_or_insert(e);
        }
    }

    /// Whether it can begin.
    fn has_word(&mut self) -> bool {
        let said = self.receiver.gather(&self.sockets, POSITION);
        self.note(said);
        self.receiver.ready().len() >= POSITION
    }

    /// So much of the stream has come: pass over what comes again.
    fn begin(&mut self, received: u64) -> Result<(), LinkError> {
        let word = self.receiver.ready().first_chunk().map(|word| u64::from_be_bytes(*word));
        let Some(position) = word else { return Ok(()) };
        self.receiver.consume(POSITION);
        self.has_begun = true;
        self.again = received.checked_sub(position).ok_or_else(|| {
            LinkError(format!(
                "lost bytes when its path was cut (it goes on at {position}, and {received} came): something between the hosts acknowledges in this one's place (a proxy); COMITY_INTERFACES can leave that path out"
            ))
        })?;
        Ok(())
    }

    /// Make bytes ready, about `want`.
    fn gather(&mut self, want: usize) {
        loop {
            let said = self.receiver.gather(&self.sockets, want);
            self.note(said);
            let n = self.receiver.ready().len().min(usize::try_from(self.again).unwrap_or(usize::MAX));
            if n == 0 {
                return;
            }
            self.receiver.consume(n);
            self.again -= n as u64;
        }
    }

    /// Move bytes to `dst`; how many.
    fn take(&mut self, dst: &mut [u8]) -> usize {
        if self.again > 0 {
            self.gather(1);
        }
        let mut taken = 0;
        if self.again == 0 {
            let said = self.receiver.take(&self.sockets, dst, &mut taken);
            self.note(said);
        }
        taken
    }
}

/// Reads the stream of a lasting link from the connections in use and from earlier ones, each byte once and in order.
#[derive(Debug, Default)]
pub(super) struct Inflow {
    /// The first is read; those behind it have said nothing yet.
    paths: VecDeque<IncomingPath>,
    /// What lay in earlier connections, and how much of it was given out.
    earlier: Vec<u8>,
    given: usize,
    /// Bytes of the stream that were given out, or lie in `earlier`.
    received: u64,
    #[cfg(test)]
    pub(super) forgets: bool,
}

impl Inflow {
    pub(super) fn add(&mut self, path: NewPath, route: &dyn Fn(usize) -> Route) {
        self.paths.push_back(IncomingPath::new(path, route));
    }

    /// Whether nothing but the first connections is there, and in use.
    pub(super) fn is_settled(&self) -> bool {
        self.paths.len() == 1 && self.paths.front().is_some_and(|p| p.has_begun)
    }

    /// Go on with the newest connections that bring something, after what lies in those before.
    pub(super) fn turn_over(&mut self) -> Result<(), LinkError> {
        let mut newest = None;
        for (i, path) in self.paths.iter_mut().enumerate() {
            if !path.has_begun && path.has_word() {
                newest = Some(i);
            }
        }
        for _ in 0..newest.unwrap_or_default() {
            self.empty()?;
            self.paths.pop_front();
        }
        let received = self.received;
        match self.paths.front_mut().filter(|p| !p.has_begun) {
            Some(path) => path.begin(received),
            None => Ok(()),
        }
    }

    /// Move what has come over the first connections to `earlier`.
    fn empty(&mut self) -> Result<(), LinkError> {
        self.earlier.drain(..self.given);
        self.given = 0;
        #[cfg(test)]
        if self.forgets {
            return Ok(());
        }
        let received = self.received;
        let Some(path) = self.paths.front_mut() else { return Ok(()) };
        if !path.has_begun {
            path.begin(received)?;
        }
        while path.has_begun {
            let begin = self.earlier.len();
            self.earlier.resize(begin + PIECE, 0);
            // What is damaged there comes again.
            let taken = path.take(self.earlier.get_mut(begin..).unwrap_or_default());
            self.earlier.truncate(begin + taken);
            self.received += taken as u64;
            if taken == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Why nothing more comes, if all connections have ended; and whether the path in use is cut.
    pub(super) fn end(&mut self) -> (Option<LinkError>, bool) {
        if self.paths.iter().all(|p| p.ended.is_none()) {
            return (None, false);
        }
        // The other end never used these.
        while self.paths.len() > 1
            && let Some(at) = self.paths.iter().position(|p| !p.has_begun && p.ended.is_some())
        {
            self.paths.remove(at);
        }
        let newest = self.paths.back().and_then(|p| p.ended.as_ref());
        match (newest, self.paths.front().and_then(|p| p.ended.clone())) {
            (Some(newest), _) if socket::is_cut(newest) => (None, true),
            (Some(_), Some(e)) if self.paths.iter().all(|p| p.ended.is_some()) => (Some(e), false),
            _ => (None, false),
        }
    }

    /// Whether anything came.
    pub(super) fn has_begun(&self) -> bool {
        self.paths.front().is_some_and(|p| p.has_begun)
    }

    fn earlier(&self) -> &[u8] {
        self.earlier.get(self.given..).unwrap_or_default()
    }

    /// Of the connections in use, if they are.
    fn current(&mut self) -> Option<&mut IncomingPath> {
        self.paths.front_mut().filter(|p| p.has_begun)
    }

    /// Make bytes ready, about `want`.
    pub(super) fn gather(&mut self, want: usize) {
        let have = self.earlier().len();
        if have == 0 {
            if let Some(path) = self.current() {
                path.gather(want);
            }
        } else if have < SMALL_WANT {
            let mut more = [0; SMALL_WANT];
            let n = self.receive(more.get_mut(have..).unwrap_or_default());
            self.earlier.extend(more.iter().skip(have).take(n));
        }
    }

    /// What lies ready.
    pub(super) fn ready(&self) -> &[u8] {
        if !self.earlier().is_empty() {
            return self.earlier();
        }
        let path = self.paths.front().filter(|p| p.has_begun && p.again == 0);
        path.map_or(&[], |p| p.receiver.ready())
    }

    pub(super) fn consume(&mut self, n: usize) {
        if !self.earlier().is_empty() {
            self.given += n;
            if self.earlier().is_empty() {
                (self.earlier, self.given) = (Vec::new(), 0);
            }
        } else if let Some(path) = self.current() {
            path.receiver.consume(n);
            self.received += n as u64;
        }
    }

    /// Move bytes to `dst`; how many.
    pub(super) fn take(&mut self, dst: &mut [u8]) -> usize {
        let n = self.earlier().len().min(dst.len());
        if n == 0 {
            return self.receive(dst);
        }
        let (first, _) = dst.split_at_mut(n);
        first.copy_from_slice(self.earlier().get(..n).unwrap_or_default());
        self.consume(n);
        n
    }

    fn receive(&mut self, dst: &mut [u8]) -> usize {
        let taken = self.current().map_or(0, |path| path.take(dst));
        self.received += taken as u64;
        taken
    }

    pub(super) fn is_inside(&self) -> bool {
        self.paths.front().is_some_and(|p| p.again > 0 || p.receiver.is_inside())
    }

    pub(super) fn arrived(&self) -> u64 {
        self.received + self.paths.front().map_or(0, |p| p.receiver.arrived())
    }

    pub(super) fn has_more(&self) -> bool {
        !self.earlier().is_empty() || self.paths.front().is_some_and(|p| p.has_begun && p.receiver.has_more())
    }

    /// The connection that brings the next bytes.
    pub(super) fn socket(&self) -> Option<&TcpStream> {
        let path = self.paths.front()?;
        path.sockets.get(path.receiver.turn())
    }

    /// What to poll for something to come.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        // One that has ended would be ready for ever.
        let living = self.paths.iter().filter(|p| p.ended.is_none());
        living.filter_map(|p| p.sockets.get(p.receiver.turn())).map(AsFd::as_fd)
    }

    /// Swallow what lies unread in the connections, before they are closed; these.
    pub(super) fn drain(&mut self) -> Vec<Arc<[TcpStream]>> {
        let paths = std::mem::take(&mut self.paths);
        let drained = paths.into_iter().map(|mut path| {
            path.receiver.drain(&path.sockets);
            path.sockets
        });
        drained.collect()
    }

    /// As if so much had come.
    #[cfg(test)]
    pub(super) fn pretend(&mut self, received: u64) {
        self.received = received;
    }
}

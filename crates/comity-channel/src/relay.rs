//! Passes on bytes between two processes that have no way to each other, as they come, in a thread of its own.
//!
//! ```text
//!   connector           this process                    the other
//!   Hello to the other  --> (its Acceptor) taken as it is  --> connects, and passes it on
//!                       <-- answer, proof, all that follows -->  64 KiB each way in memory, no more
//! ```
//! The two make their handshake with each other and seal what follows it. This process holds the job's key, but not the keys of the
//! connection, so it reads and changes nothing. A slow reader slows its writer down, as it does on a connection of their own.

use super::{dial::begin_connect, hello::Hello};
use crate::{
    sync::lock,
    sys::{Waker, poll_until, tcp_socket},
};
use rustix::event::{PollFd, PollFlags};
use socket2::{Domain, Socket};
use std::{
    fmt,
    io::{self, ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    os::fd::AsFd,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Bytes kept of each direction.
const ROOM: usize = 64 * 1024;
/// Connections at the same time; with [`ROOM`] this bounds the memory.
const MAX_PASSED: usize = 256;
/// Time limit for the connection to the addressee: its connector gives up first.
const PASS_LIMIT: Duration = Duration::from_secs(3);
/// Time for which one direction may be over while nothing moves in the other: a peer that closes, or is refused, soon closes both.
const HALF: Duration = Duration::from_secs(15);
/// Connections over which nothing has come after the hello, which a stranger may have recorded: the oldest makes room for another.
const MAX_YOUNG: usize = 64;
/// Time for which relaying goes on when this process ends.
const LINGER: Duration = Duration::from_secs(2);

/// Finds the addresses of the process that a hello is for; none for a hello to this process, or where nothing is passed on.
type Find = Box<dyn Fn(&Hello) -> Option<Vec<SocketAddr>> + Send + Sync>;

/// Passes on between processes that reach this one and not each other. Its thread starts with the first of them.
pub struct Relay {
    find: Find,
    /// From the first connection on.
    thread: Mutex<Option<(Arc<RelayShared>, JoinHandle<()>)>>,
}

struct RelayShared {
    waker: Waker,
    new: Mutex<Vec<RelayedPair>>,
    /// Connections that are passed on.
    passed: AtomicUsize,
    stop: AtomicBool,
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Relay(..)")
    }
}

impl Relay {
    /// `find` says where the process is that a hello is for.
    pub fn new(find: impl Fn(&Hello) -> Option<Vec<SocketAddr>> + Send + Sync + 'static) -> Self {
        Self { find: Box::new(find), thread: Mutex::default() }
    }

    /// Returns true if a hello is for another process, and is relayed.
    pub(crate) fn takes(&self, hello: &Hello) -> bool {
        (self.find)(hello).is_some()
    }

    /// Returns true if no more connections are relayed for now.
    pub(crate) fn is_full(&self) -> bool {
        let thread = lock(&self.thread);
        thread.as_ref().is_some_and(|(shared, _)| {
            shared.passed.load(Ordering::Acquire) + lock(&shared.new).len() >= MAX_PASSED
        })
    }

    /// Pass on what comes over `stream`, of which `first` has come. Where that fails the connection ends.
    pub(crate) fn pass(&self, stream: TcpStream, first: Vec<u8>, hello: &Hello) {
        let targets = (self.find)(hello).unwrap_or_default();
        let goals: Vec<_> = targets.into_iter().filter_map(|at| connect(at).ok()).collect();
        if goals.is_empty() {
            return;
        }
        tracing::info!(
            from = hello.from,
            to = hello.to,
            "passing on what two ranks say that have no way to each other"
        );
        let hello = first.len();
        let moved = Instant::now();
        let outward = Flow { bytes: first, ..Flow::default() };
        let inward = Flow::default();
        let far = Far::Connecting(goals, moved + PASS_LIMIT);
        let passed = RelayedPair { near: stream, far, outward, inward, hello, seen: (0, false), moved };
        let mut thread = lock(&self.thread);
        if thread.is_none() {
            match RelayShared::start() {
                Ok(started) => *thread = Some(started),
                Err(e) => tracing::warn!(%e, "no thread to pass on with"),
            }
        }
        if let Some((shared, _)) = &*thread {
            lock(&shared.new).push(passed);
            shared.waker.wake();
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let thread = lock(&self.thread).take();
        if let Some((shared, thread)) = thread {
            shared.stop.store(true, Ordering::Release);
            shared.waker.wake();
            // WAIT(stop): the relay's thread, which goes on for two seconds at most
            let _ = thread.join();
        }
    }
}

/// Two connections that are one.
struct RelayedPair {
    near: TcpStream,
    far: Far,
    /// From the near one to the far one.
    outward: Flow,
    inward: Flow,
    /// Bytes of the hello.
    hello: usize,
    /// Bytes that were passed on, and whether one direction is over, when that was looked at last.
    seen: (usize, bool),
    /// Since when both are so.
    moved: Instant,
}

enum Far {
    /// The first to connect is taken, until then.
    Connecting(Vec<Socket>, Instant),
    Connected(TcpStream),
}

/// Bytes of a direction that have come and not gone yet.
#[derive(Default)]
struct Flow {
    bytes: Vec<u8>,
    gone: usize,
    /// Bytes that were passed on, of all.
    passed: usize,
    /// No more comes.
    ended: bool,
    /// The other end was told so.
    told: bool,
}

impl Flow {
    fn wants(&self) -> bool {
        !self.ended
    }

    fn has(&self) -> bool {
        self.gone < self.bytes.len()
    }

    /// Move what can be moved, but not for ever: others wait for their turn.
    fn pump(&mut self, mut from: &TcpStream, mut to: &TcpStream, room: &mut [u8]) -> io::Result<()> {
        const ROUNDS: usize = 4;
        let mut rounds = 0;
        loop {
            while self.has() {
                match to.write(self.bytes.get(self.gone..).unwrap_or_default()) {
                    Ok(n) => {
                        self.gone += n;
                        self.passed = self.passed.wrapping_add(n);
                    }
                    Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(e) => return Err(e),
                }
            }
            self.bytes.clear();
            self.gone = 0;
            if self.ended {
                if !self.told {
                    self.told = true;
                    to.shutdown(Shutdown::Write)?;
                }
                return Ok(());
            }
            if rounds == ROUNDS {
                return Ok(());
            }
            rounds += 1;
            match from.read(room) {
                Ok(n) => {
                    self.ended = n == 0;
                    self.bytes.extend_from_slice(room.get(..n).unwrap_or_default());
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}

impl RelayedPair {
    /// Moves the bytes that can move now. Returns false when the connection is over. `room` is scratch memory.
    fn advance(&mut self, room: &mut [u8]) -> bool {
        if let Far::Connecting(goals, until) = &mut self.far {
            goals.retain(|s| matches!(s.take_error(), Ok(None)));
            match goals.iter().position(|s| s.peer_addr().is_ok()) {
                Some(i) => {
                    let stream: TcpStream = goals.swap_remove(i).into();
                    let _ = stream.set_nodelay(true);
                    self.far = Far::Connected(stream);
                }
                None => return !goals.is_empty() && Instant::now() < *until,
            }
        }
        let Far::Connected(far) = &self.far else { return true };
        let both =
            self.outward.pump(&self.near, far, room).and_then(|()| self.inward.pump(far, &self.near, room));
        let seen = (self.outward.passed.wrapping_add(self.inward.passed), self.is_half());
        if seen != self.seen {
            self.seen = seen;
            self.moved = Instant::now();
        }
        let is_over = self.is_half() && self.moved.elapsed() >= HALF;
        both.is_ok() && !(self.outward.told && self.inward.told) && !is_over
    }

    /// Returns true if a direction is over.
    fn is_half(&self) -> bool {
        self.outward.told || self.inward.told
    }

    /// Nothing has come after the hello.
    fn is_young(&self) -> bool {
        self.outward.passed <= self.hello
    }

    fn interest<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) -> Option<Instant> {
        let flags = |reads: &Flow, writes: &Flow| {
            let read = if reads.wants() && !reads.has() { PollFlags::IN } else { PollFlags::empty() };
            read | if writes.has() { PollFlags::OUT } else { PollFlags::empty() }
        };
        match &self.far {
            Far::Connecting(goals, until) => {
                fds.extend(goals.iter().map(|s| PollFd::from_borrowed_fd(s.as_fd(), PollFlags::OUT)));
                Some(*until)
            }
            Far::Connected(far) => {
                for (socket, events) in [
                    (&self.near, flags(&self.outward, &self.inward)),
                    (far, flags(&self.inward, &self.outward)),
                ] {
                    // A socket of which nothing is wanted would still tell of its end, again and again.
                    if !events.is_empty() {
                        fds.push(PollFd::new(socket, events));
                    }
                }
                self.is_half().then(|| self.moved + HALF)
            }
        }
    }
}

impl RelayShared {
    fn start() -> io::Result<(Arc<Self>, JoinHandle<()>)> {
        let new = Mutex::default();
        let passed = AtomicUsize::new(0);
        let stop = AtomicBool::new(false);
        let new = Self { waker: Waker::new()?, new, passed, stop };
        let shared = Arc::new(new);
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("comity-relay".into()).spawn(move || own.serve())?;
        Ok((shared, thread))
    }

    // WAIT(stop): the relay's thread: woken for each byte, and when it is to stop
    fn serve(&self) {
        let mut all: Vec<RelayedPair> = Vec::new();
        let mut stopped: Option<Instant> = None;
        let mut room = vec![0; ROOM];
        loop {
            let mut waiting = lock(&self.new);
            all.append(&mut waiting);
            while all.iter().filter(|p| p.is_young()).count() > MAX_YOUNG
                && let Some(oldest) = all.iter().position(RelayedPair::is_young)
            {
                all.remove(oldest);
            }
            self.passed.store(all.len(), Ordering::Release);
            drop(waiting);
            all.retain_mut(|p| p.advance(&mut room));
            self.passed.store(all.len(), Ordering::Release);
            if self.stop.load(Ordering::Acquire) {
                let until = *stopped.get_or_insert_with(|| Instant::now() + LINGER);
                if all.is_empty() || Instant::now() >= until {
                    return;
                }
            }
            let mut fds = vec![PollFd::from_borrowed_fd(self.waker.fd(), PollFlags::IN)];
            let until = all.iter().filter_map(|p| p.interest(&mut fds)).chain(stopped).min();
            // The descriptors are ours and open; if the system still refuses, do not spin.
            if poll_until(&mut fds, until).is_err() {
                std::thread::sleep(Duration::from_millis(10));
            }
            self.waker.drain();
        }
    }
}

fn connect(at: SocketAddr) -> io::Result<Socket> {
    begin_connect(tcp_socket(Domain::for_address(at))?, &at.into())
}

#[cfg(test)]
mod tests;

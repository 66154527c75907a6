//! Listening: takes connections, lets in who holds the key, and lets nobody else cost much.
//!
//! A stranger holds a descriptor and about a kilobyte. There are at most 64 strangers at a time:
//!
//! | it has | it stays at most |
//! |---|---|
//! | shown no key | 1 s |
//! | shown the key, or replayed somebody who did | 2 s |
//! | the same for a link of a running job: a true proof can be late when a cable was cut meanwhile | 15 s |
//!
//! The 65th takes the place of the oldest one of the address that holds most places. So neither a crowd nor recordings keep a rank out. When
//! descriptors run out, one that was kept in reserve serves to turn connections away.

use super::{
    hello::{Channel, Denial, HandshakeStep, Hello, HelloVerdict, Responder, Secret},
    relay::Relay,
    stream::{Sealing, Stream},
};
use crate::sys::tcp_socket;
use rustix::{
    event::{PollFd, PollFlags},
    io::Errno,
};
use socket2::{Domain, SockAddr, Socket, Type};
use std::{
    io::{self, Write},
    net::{IpAddr, SocketAddr, TcpListener},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::{UnixListener, UnixStream},
    },
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

/// Connections that have not shown the key yet.
const MAX_HALF_OPEN: usize = 64;
/// The time they have for their first message.
const LIMIT: Duration = Duration::from_secs(1);
/// The time they have for the proof once they were answered; in all it is the two seconds that SECURITY.md names.
pub(crate) const PROOF: Duration = Duration::from_secs(1);
/// Time limit for the proof where the connection is for a link of a running job. The other side believes that the link is made as soon
/// as the proof is on its way. A cable that is cut for some seconds delays it by half as long again.
const PROOF_OF_LINK: Duration = Duration::from_secs(15);
/// Time for which an answered connection keeps its place when others want it. The other side believes that it is in as soon as its
/// proof is on its way, and would take this rank for dead.
const BELIEVES: Duration = Duration::from_millis(500);
/// For how long connections must have been turned away before that is taken for a lack of one's own: strangers who hold descriptors
/// are gone by then.
const LACK: Duration = Duration::from_millis(2500);
/// Pause in accepting when descriptors have run out, or when every place is held by a connection that may not go.
const PAUSE: Duration = Duration::from_millis(50);
const _: () = assert!(LIMIT.as_millis() + PROOF.as_millis() <= 2000);
/// A step lasts that long where there is so much to do.
const LEAST: Duration = Duration::from_millis(5);
/// Connections taken from one listener before the others have their turn.
const BATCH: usize = 64;

/// An authenticated connection.
#[derive(Debug)]
pub struct Accepted {
    pub stream: Stream,
    pub hello: Hello,
    pub seals: Sealing,
}

#[derive(Debug)]
struct HalfOpenConnection {
    stream: Stream,
    from: Option<IpAddr>,
    responder: Responder,
    answered: Option<Instant>,
    until: Instant,
}

/// Listeners, and the connections that have not shown the key yet.
#[derive(Debug)]
pub struct Acceptor {
    listeners: Vec<Listener>,
    secret: Secret,
    half_open: Vec<HalfOpenConnection>,
    /// Given up when descriptors run out, so that waiting connections can be turned away.
    reserve: Option<OwnedFd>,
    paused: Option<Instant>,
    /// Error of the last accept that failed for a lack in this process, such as of descriptors.
    lacked: Option<Errno>,
    /// Since when no connection was taken for that.
    starved: Option<Instant>,
    /// Source addresses of the peers that hold another key or look for another job, since the last query; `None` from this host.
    foreign: Vec<Option<SocketAddr>>,
    /// Takes what is for another.
    relay: Option<Arc<Relay>>,
}

impl Acceptor {
    pub fn new(listeners: Vec<Listener>, secret: Secret) -> Self {
        Self {
            listeners,
            secret,
            half_open: Vec::new(),
            reserve: reserve(),
            paused: None,
            lacked: None,
            starved: None,
            foreign: Vec::new(),
            relay: None,
        }
    }

    /// Have `relay` pass on what is for another.
    pub fn with_relay(self, relay: Option<Arc<Relay>>) -> Self {
        Self { relay, ..self }
    }

    /// Returns the listeners.
    pub fn into_listeners(self) -> Vec<Listener> {
        self.listeners
    }

    /// Lack for which a connection was turned away here; once.
    pub fn lacked(&mut self) -> Option<Errno> {
        self.lacked.take()
    }

    /// Returns true if the lack has lasted so long that no other rank will get in.
    pub fn is_starved(&self) -> bool {
        self.starved.is_some_and(|since| since.elapsed() >= LACK)
    }

    /// Takes the source addresses of the peers that hold another key or look for another job, since the last query.
    pub fn foreign(&mut self) -> Vec<Option<SocketAddr>> {
        std::mem::take(&mut self.foreign)
    }

    /// Adds the descriptors to poll to `fds`. Returns the time of the next [`step`](Self::step) at the latest.
    pub fn interest<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) -> Option<Instant> {
        if self.paused.is_none() {
            fds.extend(self.listeners.iter().map(|l| PollFd::new(l, PollFlags::IN)));
        }
        fds.extend(self.half_open.iter().map(|h| PollFd::new(&h.stream, PollFlags::IN)));
        self.half_open.iter().map(|h| h.until).chain(self.paused).min()
    }

    /// Go on with whatever is ready. `judge` hears who wants what, and over which stream.
    pub fn step(&mut self, judge: &mut dyn FnMut(&Hello, &Stream) -> HelloVerdict) -> Vec<Accepted> {
        self.step_until(None, judge)
    }

    /// Do as [`step`](Self::step), and leave the rest for the next step once that time has come. The arithmetic of a handshake is short, but
    /// on a crowded host many take seconds.
    pub fn step_until(
        &mut self,
        until: Option<Instant>,
        judge: &mut dyn FnMut(&Hello, &Stream) -> HelloVerdict,
    ) -> Vec<Accepted> {
        let now = Instant::now();
        let until = until.map(|until| until.max(now + LEAST));
        let is_over = || until.is_some_and(|until| Instant::now() >= until);
        self.paused.take_if(|p| now >= *p);
        let mut done = Vec::new();
        let mut waiting = std::mem::take(&mut self.half_open).into_iter();
        for h in waiting.by_ref() {
            self.advance(h, now, judge, &mut done);
            if is_over() {
                break;
            }
        }
        self.half_open.extend(waiting);
        if self.paused.is_none() && !is_over() {
            self.take_new(now, &is_over, judge, &mut done);
        }
        done
    }

    fn take_new(
        &mut self,
        now: Instant,
        is_over: &dyn Fn() -> bool,
        judge: &mut dyn FnMut(&Hello, &Stream) -> HelloVerdict,
        done: &mut Vec<Accepted>,
    ) {
        let turns = (0..self.listeners.len()).flat_map(|i| std::iter::repeat_n(i, BATCH));
        let mut idle = None;
        for i in turns {
            if self.half_open.len() >= MAX_HALF_OPEN && self.victim().is_none() {
                // They wait in the queues of the listeners.
                self.paused = Some(now + PAUSE);
                return;
            }
            let Some(listener) = self.listeners.get(i).filter(|_| idle != Some(i)) else { continue };
            match listener.accept() {
                Ok((stream, from)) => {
                    self.starved = None;
                    let new = HalfOpenConnection {
                        stream,
                        from,
                        responder: Responder::new(),
                        answered: None,
                        until: now + LIMIT,
                    };
                    self.advance(new, now, judge, done);
                    if is_over() {
                        return;
                    }
                }
                Err(e) => match Errno::from_io_error(&e) {
                    Some(Errno::AGAIN) => idle = Some(i),
                    // One that has not shown the key makes room.
                    Some(why @ (Errno::MFILE | Errno::NFILE)) if !self.half_open.is_empty() => {
                        self.lacked = Some(why);
                        if !self.evict(judge, done) {
                            self.paused = Some(now + PAUSE);
                            return;
                        }
                    }
                    Some(why @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                        self.lacked = Some(why);
                        self.starved.get_or_insert(now);
                        drop(self.reserve.take());
                        drop(listener.accept());
                        self.reserve = reserve();
                        self.paused = Some(now + PAUSE);
                        return;
                    }
                    // That one connection failed; the next may not.
                    _ => {}
                },
            }
        }
    }

    /// Chooses the connection that makes room for another: the oldest of the address that holds most.
    ///
    /// It is a connection that has not shown the key. If those that have, or replay a peer that did, are more than half, it is one of these,
    /// unless all of them were answered only now.
    fn victim(&self) -> Option<usize> {
        let knowing = self.half_open.iter().filter(|h| h.responder.knows_key()).count();
        let go = knowing > self.half_open.len() / 2;
        let held = |from| self.half_open.iter().filter(|h| h.from == from).count();
        let oldest = |knows: bool| {
            let may_go = |h: &HalfOpenConnection| h.responder.knows_key() == knows && !h.believes();
            let all = self.half_open.iter().enumerate().filter(|(_, h)| may_go(h));
            all.rev().max_by_key(|(_, h)| held(h.from)).map(|(i, _)| i)
        };
        oldest(go).or_else(|| oldest(false))
    }

    /// Make room for another, if there is one to go.
    fn evict(
        &mut self,
        judge: &mut dyn FnMut(&Hello, &Stream) -> HelloVerdict,
        done: &mut Vec<Accepted>,
    ) -> bool {
        let Some(victim) = self.victim() else { return false };
        let mut h = self.half_open.remove(victim);
        // Its proof may lie here since it was answered.
        if h.responder.knows_key()
            && let Fate::Done(hello, seals) = h.advance(&self.secret, None, judge)
        {
            done.push(Accepted { stream: h.stream, hello, seals });
        }
        true
    }

    /// Take a connection as far as it goes for now.
    fn advance(
        &mut self,
        mut h: HalfOpenConnection,
        now: Instant,
        judge: &mut dyn FnMut(&Hello, &Stream) -> HelloVerdict,
        done: &mut Vec<Accepted>,
    ) {
        match h.advance(&self.secret, self.relay.as_deref(), judge) {
            Fate::Done(hello, seals) => done.push(Accepted { stream: h.stream, hello, seals }),
            Fate::Stay if h.until > now => {
                if self.half_open.len() >= MAX_HALF_OPEN {
                    self.evict(judge, done);
                }
                self.half_open.push(h);
            }
            Fate::Foreign if self.foreign.len() < MAX_HALF_OPEN => self.foreign.push(h.stream.peer_addr()),
            Fate::PassOn(hello, first) => {
                if let (Some(relay), Stream::Tcp(stream)) = (&self.relay, h.stream) {
                    relay.pass(stream, first, &hello);
                }
            }
            Fate::Stay | Fate::Go | Fate::Foreign => {}
        }
    }
}

enum Fate {
    Stay,
    Go,
    Foreign,
    Done(Hello, Sealing),
    PassOn(Hello, Vec<u8>),
}

impl HalfOpenConnection {
    /// Returns true if the other side may just have come to believe that it is in.
    fn believes(&self) -> bool {
        self.answered.is_some_and(|at| at.elapsed() < BELIEVES)
    }

    fn advance(
        &mut self,
        secret: &Secret,
        relay: Option<&Relay>,
        judge: &mut dyn FnMut(&Hello, &Stream) -> HelloVerdict,
    ) -> Fate {
        let stream = &self.stream;
        let mut other = None;
        let mut judge = |hello: &Hello| match relay {
            Some(relay) if matches!(stream, Stream::Tcp(_)) && relay.takes(hello) => {
                if relay.is_full() {
                    tracing::warn!(from = hello.from, to = hello.to, "not passed on: {}", Denial::RelayFull);
                    return HelloVerdict::No(Denial::RelayFull);
                }
                other = Some(*hello);
                HelloVerdict::PassOn
            }
            _ => judge(hello, stream),
        };
        loop {
            let was_known = self.responder.knows_key();
            // An answer fits an empty socket buffer; if it does not, this is no rank.
            match self.responder.step(stream, secret, &mut judge) {
                HandshakeStep::PassOn(first) => return other.map_or(Fate::Go, |h| Fate::PassOn(h, first)),
                HandshakeStep::More => return Fate::Stay,
                HandshakeStep::Send(bytes) => {
                    if (&*stream).write_all(&bytes).is_err() {
                        return Fate::Go;
                    }
                    // Padding that follows gets no time of its own.
                    if let Some(hello) = self.responder.admitted().filter(|_| !was_known) {
                        let is_late = matches!(hello.channel, Channel::Link { .. });
                        let now = Instant::now();
                        self.answered = Some(now);
                        self.until = now + if is_late { PROOF_OF_LINK } else { PROOF };
                    }
                }
                HandshakeStep::SendAndClose(bytes) => {
                    let _ = (&*stream).write_all(&bytes);
                    return Fate::Go;
                }
                HandshakeStep::Foreign(bytes) => {
                    let _ = (&*stream).write_all(&bytes);
                    return Fate::Foreign;
                }
                HandshakeStep::Close => return Fate::Go,
                HandshakeStep::Done(hello, seals) => return Fate::Done(hello, seals),
            }
        }
    }
}

fn reserve() -> Option<OwnedFd> {
    std::fs::File::open("/dev/null").ok().map(OwnedFd::from)
}

const BACKLOG: i32 = 1024;

/// A socket that others can connect to.
#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    #[allow(dead_code, reason = "the second field is kept for its drop")]
    Unix(UnixListener, Unlink),
}

impl Listener {
    /// At exactly this address; port 0 stands for any. Nobody can connect before [`listen`](Self::listen): strangers would queue
    /// where nobody turns them away.
    pub fn tcp(at: SocketAddr) -> io::Result<Self> {
        let socket = tcp_socket(Domain::for_address(at))?;
        // Lets a port be used again at once; it does not let two listen on it.
        socket.set_reuse_address(true)?;
        if at.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.bind(&at.into())?;
        socket.set_nonblocking(true)?;
        Ok(Self::Tcp(socket.into()))
    }

    /// For this host only. On Linux the name is outside the file system and leaves nothing there.
    pub fn unix(name: &str) -> io::Result<Self> {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.bind(&unix_addr(name)?)?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok(Self::Unix(socket.into(), Unlink(unix_path(name))))
    }

    /// Take connections from now on.
    pub fn listen(&self) -> io::Result<()> {
        Ok(rustix::net::listen(self, BACKLOG)?)
    }

    /// Takes a socket that listens already.
    pub fn from_tcp(listener: TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self::Tcp(listener))
    }

    /// The address of a TCP listener.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Tcp(l) => l.local_addr(),
            Self::Unix(..) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// The next connection, and where it comes from.
    pub(super) fn accept(&self) -> io::Result<(Stream, Option<IpAddr>)> {
        match self {
            Self::Tcp(l) => {
                let (s, from) = l.accept()?;
                s.set_nonblocking(true)?;
                s.set_nodelay(true)?;
                Ok((Stream::Tcp(s), Some(from.ip())))
            }
            Self::Unix(l, _) => {
                let (s, _) = l.accept()?;
                s.set_nonblocking(true)?;
                check_user(&s)?;
                Ok((Stream::Unix(s), None))
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        match self {
            Self::Tcp(l) => l.as_fd(),
            Self::Unix(l, _) => l.as_fd(),
        }
    }
}

/// An error if the other end is another user's process, which has no business here, key or not.
#[cfg(target_os = "linux")]
pub(crate) fn check_user(stream: &UnixStream) -> io::Result<()> {
    if crate::sys::peer_of(stream)?.uid == rustix::process::geteuid().as_raw() {
        Ok(())
    } else {
        Err(io::Error::new(io::ErrorKind::PermissionDenied, "its process belongs to another user"))
    }
}

/// Elsewhere the socket lies in a directory of this user's alone.
#[cfg(not(target_os = "linux"))]
pub(crate) fn check_user(_: &UnixStream) -> io::Result<()> {
    Ok(())
}

/// Removes a socket's name from the file system in the end.
#[derive(Debug)]
pub struct Unlink(Option<PathBuf>);

impl Drop for Unlink {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // Gone already is as good.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Returns the path of a named socket in the file system, if it has one.
fn unix_path(name: &str) -> Option<PathBuf> {
    (!cfg!(target_os = "linux")).then(|| std::env::temp_dir().join(name))
}

/// The address of a socket by name.
#[cfg(target_os = "linux")]
pub(crate) fn unix_addr(name: &str) -> io::Result<SockAddr> {
    SockAddr::unix(format!("\0{name}"))
}

/// The address of a socket by name: only Linux has names outside the file system. On macOS the temporary directory is this
/// user's alone.
#[cfg(not(target_os = "linux"))]
pub(crate) fn unix_addr(name: &str) -> io::Result<SockAddr> {
    SockAddr::unix(unix_path(name).unwrap_or_default())
}

#[cfg(test)]
mod tests;

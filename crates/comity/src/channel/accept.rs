//! Listening: takes connections, lets in who holds the key, and lets nobody else cost much.
//!
//! A stranger holds a descriptor and about a kilobyte, for two seconds at most, and only with a recording of who knew the key for more
//! than one; 64 strangers at a time. For a new one goes the oldest of the address that holds most places, so that neither a crowd nor recordings
//! keep a rank out. When descriptors run out, one that was kept in reserve serves to turn connections away.

use super::{
    hello::{HandshakeStep, Hello, HelloVerdict, Responder, Secret},
    stream::{Sealing, Stream},
};
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
    time::{Duration, Instant},
};

/// Connections that have not shown the key yet.
const MAX_HALF_OPEN: usize = 64;
/// The time they have for their first message.
const LIMIT: Duration = Duration::from_secs(1);
/// The time they have for the proof once they were answered; in all it is the two seconds that SECURITY.md names.
pub(crate) const PROOF: Duration = Duration::from_secs(1);
/// For how long connections must have been turned away before that is taken for a lack of one's own: strangers who hold descriptors
/// are gone by then.
const LACK: Duration = Duration::from_millis(2500);
/// How long to leave new connections alone when descriptors have run out.
const PAUSE: Duration = Duration::from_millis(50);
const _: () = assert!(LIMIT.as_millis() + PROOF.as_millis() <= 2000);
/// Connections taken from one listener before the others have their turn.
const BATCH: usize = 64;
const BACKLOG: i32 = 1024;

/// A socket that others can connect to.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    #[allow(dead_code, reason = "the second field is kept for its drop")]
    Unix(UnixListener, Unlink),
}

impl Listener {
    /// At exactly this address; port 0 stands for any. Nobody can connect before [`listen`](Self::listen): strangers would queue
    /// where nobody turns them away.
    pub(crate) fn tcp(at: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(at), Type::STREAM, None)?;
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
    pub(crate) fn unix(name: &str) -> io::Result<Self> {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.bind(&unix_addr(name)?)?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok(Self::Unix(socket.into(), Unlink(unix_path(name))))
    }

    /// Take connections from now on.
    pub(crate) fn listen(&self) -> io::Result<()> {
        Ok(rustix::net::listen(self, BACKLOG)?)
    }

    /// One that listens already.
    pub(crate) fn from_tcp(listener: TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self::Tcp(listener))
    }

    /// The address of a TCP listener.
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Tcp(l) => l.local_addr(),
            Self::Unix(..) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// The next connection, and where it comes from.
    fn accept(&self) -> io::Result<(Stream, Option<IpAddr>)> {
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
    if rustix::net::sockopt::socket_peercred(stream)?.uid == rustix::process::geteuid() {
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
pub(crate) struct Unlink(Option<PathBuf>);

impl Drop for Unlink {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // Gone already is as good.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Where a socket by name lies in the file system, if it does.
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

/// An authenticated connection.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) stream: Stream,
    pub(crate) hello: Hello,
    pub(crate) seals: Sealing,
}

#[derive(Debug)]
struct HalfOpen {
    stream: Stream,
    from: Option<IpAddr>,
    responder: Responder,
    until: Instant,
}

/// Listeners, and the connections that have not shown the key yet.
#[derive(Debug)]
pub(crate) struct Acceptor {
    listeners: Vec<Listener>,
    secret: Secret,
    half_open: Vec<HalfOpen>,
    /// Given up when descriptors run out, so that waiting connections can be turned away.
    reserve: Option<OwnedFd>,
    paused: Option<Instant>,
    /// What this process lacked when a connection could not be taken.
    lacked: Option<Errno>,
    /// Since when no connection was taken for that.
    starved: Option<Instant>,
    /// Where those came from that hold another key or look for another job, since this was last asked; `None` from this host.
    foreign: Vec<Option<SocketAddr>>,
}

impl Acceptor {
    pub(crate) fn new(listeners: Vec<Listener>, secret: Secret) -> Self {
        Self {
            listeners,
            secret,
            half_open: Vec::new(),
            reserve: reserve(),
            paused: None,
            lacked: None,
            starved: None,
            foreign: Vec::new(),
        }
    }

    /// Why a connection was turned away for want of something here; once.
    pub(crate) fn lacked(&mut self) -> Option<Errno> {
        self.lacked.take()
    }

    /// Whether that has gone on for so long that no other rank will get in.
    pub(crate) fn is_starved(&self) -> bool {
        self.starved.is_some_and(|since| since.elapsed() >= LACK)
    }

    /// Where those came from that hold another key or look for another job, since this was last asked.
    pub(crate) fn foreign(&mut self) -> Vec<Option<SocketAddr>> {
        std::mem::take(&mut self.foreign)
    }

    /// What to poll for, and when to [`step`](Self::step) at the latest.
    pub(crate) fn interest<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) -> Option<Instant> {
        if self.paused.is_none() {
            fds.extend(self.listeners.iter().map(|l| PollFd::new(l, PollFlags::IN)));
        }
        fds.extend(self.half_open.iter().map(|h| PollFd::new(&h.stream, PollFlags::IN)));
        self.half_open.iter().map(|h| h.until).chain(self.paused).min()
    }

    /// Go on with whatever is ready. `judge` hears who wants what, and over which stream.
    pub(crate) fn step(&mut self, judge: &mut dyn FnMut(&Hello, &Stream) -> HelloVerdict) -> Vec<Accepted> {
        let now = Instant::now();
        self.paused.take_if(|p| now >= *p);
        let mut done = Vec::new();
        for h in std::mem::take(&mut self.half_open) {
            self.advance(h, now, judge, &mut done);
        }
        if self.paused.is_none() {
            self.take_new(now, judge, &mut done);
        }
        done
    }

    fn take_new(
        &mut self,
        now: Instant,
        judge: &mut dyn FnMut(&Hello, &Stream) -> HelloVerdict,
        done: &mut Vec<Accepted>,
    ) {
        let turns = (0..self.listeners.len()).flat_map(|i| std::iter::repeat_n(i, BATCH));
        let mut idle = None;
        for i in turns {
            let Some(listener) = self.listeners.get(i).filter(|_| idle != Some(i)) else { continue };
            match listener.accept() {
                Ok((stream, from)) => {
                    self.starved = None;
                    let new = HalfOpen { stream, from, responder: Responder::new(), until: now + LIMIT };
                    self.advance(new, now, judge, done);
                }
                Err(e) => match Errno::from_io_error(&e) {
                    Some(Errno::AGAIN) => idle = Some(i),
                    // One that has not shown the key makes room.
                    Some(why @ (Errno::MFILE | Errno::NFILE)) if !self.half_open.is_empty() => {
                        self.lacked = Some(why);
                        self.evict(judge, done);
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

    /// Who makes room for another: of those that have not shown the key, unless those that have (or replay one who did) are
    /// more than half; of them the address that holds most; of its connections the oldest.
    fn victim(&self) -> usize {
        let knowing = self.half_open.iter().filter(|h| h.responder.knows_key()).count();
        let go = knowing > self.half_open.len() / 2;
        let held = |from| self.half_open.iter().filter(|h| h.from == from).count();
        let all = self.half_open.iter().enumerate().filter(|(_, h)| h.responder.knows_key() == go);
        all.rev().max_by_key(|(_, h)| held(h.from)).map_or(0, |(i, _)| i)
    }

    /// Make room for another.
    fn evict(&mut self, judge: &mut dyn FnMut(&Hello, &Stream) -> HelloVerdict, done: &mut Vec<Accepted>) {
        let mut h = self.half_open.remove(self.victim());
        // It was answered, and its proof may lie here since: then it believes that it is in.
        if h.responder.knows_key()
            && let Fate::Done(hello, seals) = h.advance(&self.secret, judge)
        {
            done.push(Accepted { stream: h.stream, hello, seals });
        }
    }

    /// Take a connection as far as it goes for now.
    fn advance(
        &mut self,
        mut h: HalfOpen,
        now: Instant,
        judge: &mut dyn FnMut(&Hello, &Stream) -> HelloVerdict,
        done: &mut Vec<Accepted>,
    ) {
        match h.advance(&self.secret, judge) {
            Fate::Done(hello, seals) => done.push(Accepted { stream: h.stream, hello, seals }),
            Fate::Stay if h.until > now => {
                if self.half_open.len() >= MAX_HALF_OPEN {
                    self.evict(judge, done);
                }
                self.half_open.push(h);
            }
            Fate::Foreign if self.foreign.len() < MAX_HALF_OPEN => self.foreign.push(h.stream.peer_addr()),
            Fate::Stay | Fate::Go | Fate::Foreign => {}
        }
    }
}

enum Fate {
    Stay,
    Go,
    Foreign,
    Done(Hello, Sealing),
}

impl HalfOpen {
    fn advance(&mut self, secret: &Secret, judge: &mut dyn FnMut(&Hello, &Stream) -> HelloVerdict) -> Fate {
        let stream = &self.stream;
        loop {
            // An answer fits an empty socket buffer; if it does not, this is no rank.
            match self.responder.step(stream, secret, &mut |hello| judge(hello, stream)) {
                HandshakeStep::More => return Fate::Stay,
                HandshakeStep::Send(bytes) => {
                    if (&*stream).write_all(&bytes).is_err() {
                        return Fate::Go;
                    }
                    self.until = Instant::now() + PROOF;
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

//! Connecting: to an address, with patience, up to an authenticated stream.

use super::{
    accept::PROOF,
    hello::{Agreed, Hello, Initiator, Refusal, Secret},
    stream::{Sealing, Stream},
};
use crate::{Error, Result, sys::poll_until};
use rustix::{
    event::{PollFd, PollFlags},
    io::Errno,
};
use socket2::{SockAddr, Socket, Type};
use std::{
    fmt,
    io::{self, ErrorKind, Write},
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

/// How long to wait for a connection, and at first for an answer; a listener that is alive answers in microseconds, one whose
/// answer was lost in a flood of strangers drops us after a while.
const TRY: Duration = Duration::from_secs(3);
/// How long to wait for an answer at most. Each try waits twice as long as the one before: a listener that has few turns would do
/// nothing but answer those who have left.
const LONGEST_TRY: Duration = Duration::from_secs(24);
/// How often to look whether there is still no answer.
const DIAL_CHECK: Duration = Duration::from_millis(250);
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Where to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Tcp(SocketAddr),
    /// By name, on this host.
    Unix(String),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(a) => a.fmt(f),
            Self::Unix(_) => f.write_str("its socket on this host"),
        }
    }
}

/// How long to wait, and what ends the wait early.
pub(crate) struct DialLimits<'a> {
    pub(crate) until: Instant,
    /// When one of these is readable, `check` is asked (and drains it).
    pub(crate) wakers: Vec<BorrowedFd<'a>>,
    pub(crate) check: &'a dyn Fn() -> Result<()>,
}

impl DialLimits<'_> {
    /// Wait until `fd` is ready (true) or `until` passes (false).
    pub(crate) fn wait(&self, fd: Option<(BorrowedFd<'_>, PollFlags)>, until: Instant) -> Result<bool> {
        loop {
            let mut fds: Vec<_> =
                self.wakers.iter().map(|b| PollFd::from_borrowed_fd(*b, PollFlags::IN)).collect();
            fds.extend(fd.map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags)));
            // WAIT(until): an answer: to the join deadline
            poll_until(&mut fds, Some(until)).map_err(|e| Error::os("waiting for a connection", e))?;
            let mut ready = fds.iter().map(|f| !f.revents().is_empty());
            if ready.by_ref().take(self.wakers.len()).fold(false, |any, r| any | r) {
                (self.check)()?;
            }
            if ready.next() == Some(true) {
                return Ok(true);
            }
            if Instant::now() >= until {
                return Ok(false);
            }
        }
    }
}

/// Why no connection came about.
#[derive(Debug)]
pub(crate) enum Miss {
    /// It is over for the one who asked.
    Stop(Error),
    /// Nothing answers there, for now.
    Nobody(io::Error),
    /// Nothing will: not from this host, or not on this system.
    Nowhere(io::Error),
    /// It answered and said no.
    Refused(Refusal),
}

impl Miss {
    /// Whether another try may do better.
    fn is_passing(&self) -> bool {
        match self {
            Self::Stop(_) | Self::Nowhere(_) => false,
            // An address or a permission does not change by waiting.
            Self::Nobody(e) => !matches!(e.kind(), ErrorKind::InvalidInput | ErrorKind::PermissionDenied),
            Self::Refused(r) => r.is_passing(),
        }
    }
}

impl fmt::Display for Miss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stop(e) => e.fmt(f),
            Self::Nobody(e) | Self::Nowhere(e) => e.fmt(f),
            Self::Refused(r) => r.fmt(f),
        }
    }
}

/// Connect to the first of `targets` that answers, again and again until the patience ends.
pub(crate) fn dial(
    targets: &[Target],
    secret: &Secret,
    hello: &Hello,
    patience: &DialLimits<'_>,
) -> Result<(Stream, Sealing), Miss> {
    let (mut pause, mut limit) = (FIRST_PAUSE, TRY);
    loop {
        let (begun, mut last) = (Instant::now(), None);
        for target in targets {
            match dial_once(target, secret, hello, patience, limit) {
                Ok(done) => return Ok(done),
                Err(miss @ (Miss::Stop(_) | Miss::Refused(Refusal::No(_)))) => return Err(miss),
                // What may still change says more than what cannot.
                Err(miss) => {
                    if last.as_ref().is_none_or(|l: &Miss| miss.is_passing() || !l.is_passing()) {
                        last = Some(miss);
                    }
                }
            }
        }
        let last = last.unwrap_or_else(|| Miss::Nowhere(ErrorKind::AddrNotAvailable.into()));
        let next = Instant::now() + pause;
        if !last.is_passing() || next >= patience.until {
            return Err(last);
        }
        // WAIT(until): the next attempt: to the join deadline
        patience.wait(None, next).map_err(Miss::Stop)?;
        pause = (pause * 2).min(LONGEST_PAUSE);
        if begun.elapsed() >= limit {
            limit = (limit * 2).min(LONGEST_TRY);
        }
    }
}

/// One try. What stays within the host is not encrypted, whatever the hello says.
pub(crate) fn dial_once(
    target: &Target,
    secret: &Secret,
    hello: &Hello,
    patience: &DialLimits<'_>,
    limit: Duration,
) -> Result<(Stream, Sealing), Miss> {
    let hello = &Hello { sealed: hello.sealed && matches!(target, Target::Tcp(_)), ..*hello };
    let ended = |e| Miss::Refused(Refusal::Ended(Some(e)));
    // Before there is a connection, on which the other side waits for it.
    let (mut initiator, first) = Initiator::start(secret, hello).ok_or_else(|| {
        Miss::Stop(Error::Unavailable { backend: "the handshake", reason: "no random numbers".into() })
    })?;
    let stream = connect(target, patience.until.min(Instant::now() + TRY), patience)?;
    // The answer is no older than this.
    let mut unanswered = Instant::now();
    let until = patience.until.min(unanswered + limit);
    // Small enough for an empty socket buffer.
    (&stream).write_all(&first).map_err(ended)?;
    loop {
        match initiator.read(&stream).map_err(Miss::Refused)? {
            Some(Agreed { proof, seals }) => {
                // This process was stopped, or had no turn: whoever answered may wait no longer, and nobody would say so.
                if unanswered.elapsed() > PROOF / 2 {
                    return Err(ended(io::Error::new(ErrorKind::TimedOut, "its answer was read too late")));
                }
                (&stream).write_all(&proof).map_err(ended)?;
                return Ok((stream, seals));
            }
            None => {
                let looked = Instant::now();
                let at_most = until.min(looked + DIAL_CHECK);
                // WAIT(until): the handshake: to the join deadline
                if !patience.wait(Some((stream.as_fd(), PollFlags::IN)), at_most).map_err(Miss::Stop)? {
                    if at_most == until {
                        return Err(ended(silence()));
                    }
                    unanswered = looked;
                }
            }
        }
    }
}

fn silence() -> io::Error {
    io::Error::new(ErrorKind::TimedOut, "it does not answer")
}

/// Whether this process lacks something, which is no fault of a peer, and waiting does not end it.
pub(crate) fn is_own(e: &io::Error) -> bool {
    let own = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::NOSPC, Errno::FBIG];
    Errno::from_io_error(e).is_some_and(|e| own.contains(&e))
}

fn connect(target: &Target, until: Instant, patience: &DialLimits<'_>) -> Result<Stream, Miss> {
    let addr = match target {
        Target::Tcp(a) => SockAddr::from(*a),
        Target::Unix(name) => super::accept::unix_addr(name).map_err(Miss::Nowhere)?,
    };
    let socket = Socket::new(addr.domain(), Type::STREAM, None).map_err(|e| match is_own(&e) {
        true => Miss::Stop(Error::os("opening a connection", e)),
        false => Miss::Nobody(e),
    })?;
    socket.set_nonblocking(true).map_err(Miss::Nobody)?;
    match socket.connect(&addr) {
        Ok(()) => {}
        Err(e) if Errno::from_io_error(&e) == Some(Errno::INPROGRESS) => {
            // WAIT(until): the connection: to the join deadline
            if !patience.wait(Some((socket.as_fd(), PollFlags::OUT)), until).map_err(Miss::Stop)? {
                return Err(Miss::Nobody(silence()));
            }
            if let Some(e) = socket.take_error().map_err(Miss::Nobody)? {
                return Err(Miss::Nobody(e));
            }
        }
        // A name belongs to a process for all its life.
        Err(e) if matches!(target, Target::Unix(_)) && e.kind() != ErrorKind::WouldBlock => {
            return Err(Miss::Nowhere(e));
        }
        Err(e) => return Err(Miss::Nobody(e)),
    }
    match target {
        Target::Tcp(_) => {
            socket.set_tcp_nodelay(true).map_err(Miss::Nobody)?;
            Ok(Stream::Tcp(socket.into()))
        }
        Target::Unix(_) => {
            let stream = socket.into();
            super::accept::check_user(&stream).map_err(Miss::Nowhere)?;
            Ok(Stream::Unix(stream))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Key,
        channel::{Acceptor, Channel, HelloVerdict, Listener, STORE},
        sys::Waker,
    };
    use std::{
        sync::atomic::{AtomicBool, Ordering},
        thread,
    };

    #[test]
    fn who_reads_the_answer_too_late_tries_again() {
        const LONG: Duration = Duration::from_secs(60);
        let listener = Listener::tcp(([127, 0, 0, 1], 0).into()).unwrap();
        listener.listen().unwrap();
        let at = listener.local_addr().unwrap();
        let secret = || Secret::new(&Key::from([7; 32]), "job", 0);
        let (waker, slept, until) = (Waker::new().unwrap(), AtomicBool::new(false), Instant::now() + LONG);
        thread::scope(|s| {
            let listening = s.spawn(|| {
                let mut acceptor = Acceptor::new(vec![listener], secret());
                loop {
                    // Before the answer is on its way.
                    let judge = &mut |_: &Hello, _: &Stream| {
                        waker.wake();
                        HelloVerdict::Yes
                    };
                    if let Some(accepted) = acceptor.step(judge).pop() {
                        return accepted;
                    }
                    assert!(Instant::now() < until, "nobody has come");
                    let mut fds = Vec::new();
                    let next = acceptor.interest(&mut fds);
                    poll_until(&mut fds, next.into_iter().chain([until]).min()).unwrap();
                }
            });
            // As if the process were stopped when the answer comes.
            let check = || {
                waker.drain();
                if !slept.swap(true, Ordering::Relaxed) {
                    thread::sleep(PROOF + Duration::from_millis(500));
                }
                Ok(())
            };
            let patience = DialLimits { until, wakers: vec![waker.fd()], check: &check };
            let channel = Channel::Join;
            let hello = Hello { from: 3, to: STORE, world: 0, group_id: 0, channel, sealed: false };
            let (stream, _) = dial(&[Target::Tcp(at)], &secret(), &hello, &patience).unwrap();
            let Stream::Tcp(theirs) = listening.join().unwrap().stream else { panic!("not over TCP") };
            let Stream::Tcp(ours) = stream else { panic!("not over TCP") };
            assert_eq!(ours.peer_addr().unwrap(), theirs.local_addr().unwrap());
            assert_eq!(ours.local_addr().unwrap(), theirs.peer_addr().unwrap());
        });
    }
}

//! A round of tries, side by side: the best two addresses a moment apart, then all others together, and the first that has authenticated
//! wins.
//!
//! ```text
//!   0 ms    the best address   connecting ................... an answer: its proof is sent, the others are closed
//!   200 ms  the next                     connecting ... greeted ........ closed without a proof: the listener forgets it
//!   400 ms  all others                             connecting ..........
//! ```
//! An address that answers "not now" is tried again while others are under way: they may take seconds to come to nothing.
//!
//! Only the winner sends the last message of the handshake, so the listener never believes that two came.
//!
//! The connections of a link are made side by side too; there all are to win, each with a number of its own in its hello.

use super::{DialLimits, FIRST_PAUSE, LONGEST_PAUSE, Miss, TRY, Target, is_own};
use crate::{
    Error,
    accept::{self, PROOF},
    hello::{Agreed, Channel, Hello, Initiator, Refusal, Secret},
    stream::{Sealing, Stream},
    sys::tcp_socket,
};
use rustix::{event::PollFlags, io::Errno};
use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use std::{
    io::{self, ErrorKind, Write},
    net::IpAddr,
    ops::Deref,
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

/// Delay before the next address is tried while the earlier ones are silent.
pub(super) const STAGGER: Duration = Duration::from_millis(200);
/// Addresses that are tried one by one; where none of them answers, the order of the others is no longer worth a wait.
const ONE_BY_ONE: usize = 2;
/// Connections in the making at a time: a process may have few descriptors.
const MAX_RUNNERS: usize = 32;
/// Interval of the checks for a lasting silence.
const DIAL_CHECK: Duration = Duration::from_millis(250);

/// Failure of a try, and the local address that it was made from.
#[derive(Debug)]
pub(super) struct TryFailure {
    pub(super) from: Option<IpAddr>,
    pub(super) miss: Miss,
}

impl Deref for TryFailure {
    type Target = Miss;

    fn deref(&self) -> &Miss {
        &self.miss
    }
}

/// A connection in the making.
struct Runner {
    index: usize,
    stage: Stage,
    begun: Instant,
    /// It is given up then.
    until: Instant,
    /// After which pause it is tried again, where it is to be.
    pause: Duration,
}

enum Stage {
    Connecting(Socket),
    Greeted {
        stream: Stream,
        initiator: Box<Initiator>,
        /// The answer is no older than this.
        unanswered: Instant,
    },
}

impl Runner {
    fn poll_fd(&self) -> (BorrowedFd<'_>, PollFlags) {
        match &self.stage {
            Stage::Connecting(socket) => (socket.as_fd(), PollFlags::OUT),
            Stage::Greeted { stream, .. } => (stream.as_fd(), PollFlags::IN),
        }
    }

    fn from(&self) -> Option<IpAddr> {
        match &self.stage {
            Stage::Connecting(socket) => source(socket),
            Stage::Greeted { stream, .. } => match stream {
                Stream::Tcp(s) => s.local_addr().ok().map(|a| a.ip()),
                Stream::Unix(_) => None,
            },
        }
    }

    /// Returns true if the address has been silent for so long that another would have answered.
    fn is_silent(&self) -> bool {
        self.is_connecting() && self.begun.elapsed() >= STAGGER / 2
    }

    /// Returns true if this is the address's first try in this round.
    fn is_first(&self) -> bool {
        self.pause == FIRST_PAUSE
    }

    fn is_connecting(&self) -> bool {
        matches!(self.stage, Stage::Connecting(_))
    }
}

fn source(socket: &Socket) -> Option<IpAddr> {
    socket.local_addr().ok()?.as_socket().map(|a| a.ip()).filter(|ip| !ip.is_unspecified())
}

/// The connection that came first.
#[derive(Debug)]
pub struct Winner {
    /// Its target.
    pub index: usize,
    pub connection: (Stream, Sealing),
    /// Targets that had time to answer and did not.
    pub silent: Vec<usize>,
}

pub(super) type SealedStream = (Stream, Sealing);
/// A target, and its connection.
type Won = (usize, SealedStream);
/// A target, and why there is none.
type Lost = (usize, TryFailure);

/// Result of a step of a try.
enum TryStep {
    Goes(Runner),
    Won(usize, SealedStream),
    Lost(usize, TryFailure),
}

/// A round over all addresses of a process: the tries under way, and those that were refused.
pub(super) struct Race<'a> {
    targets: &'a [Target],
    secret: &'a Secret,
    hello: &'a Hello,
    /// By target the number of its connection in the link, where all are to be made.
    numbers: &'a [u16],
    patience: &'a DialLimits<'a>,
    /// Time limit for an answer.
    limit: Duration,
    runners: Vec<Runner>,
    lost: Vec<Lost>,
    /// Addresses to try again: the index, the time of the next try, and the pause after the next refusal.
    again: Vec<(usize, Instant, Duration)>,
    /// The next target, and when it is tried at the latest.
    next: (usize, Instant),
}

impl<'a> Race<'a> {
    pub(super) fn new(
        targets: &'a [Target],
        secret: &'a Secret,
        hello: &'a Hello,
        patience: &'a DialLimits<'a>,
        limit: Duration,
    ) -> Self {
        let next = (0, Instant::now());
        let runners = Vec::new();
        let lost = Vec::new();
        let again = Vec::new();
        Self { targets, secret, hello, numbers: &[], patience, limit, runners, lost, again, next }
    }

    /// Makes a round in which each target is to win, as the connection of its number.
    pub(super) fn for_all(mut self, numbers: &'a [u16]) -> Self {
        self.numbers = numbers;
        self
    }

    fn hello(&self, index: usize) -> Hello {
        match (self.numbers.get(index), self.hello.channel) {
            (Some(&number), Channel::Link { transport, of, .. }) => {
                Hello { channel: Channel::Link { transport, index: number, of }, ..*self.hello }
            }
            _ => *self.hello,
        }
    }

    /// The first that authenticated and which it was, or what each try got.
    pub(super) fn run(mut self) -> Result<Winner, Vec<Lost>> {
        loop {
            if let Some((index, connection)) = self.turn()? {
                return Ok(Winner { index, connection, silent: self.silent() });
            }
            if self.is_over() {
                return Err(self.lost);
            }
        }
    }

    /// All that authenticated, and what the others got.
    pub(super) fn run_all(mut self) -> (Vec<Won>, Vec<Lost>) {
        let mut made = Vec::new();
        loop {
            match self.turn() {
                Ok(won) => made.extend(won),
                Err(lost) => return (made, lost),
            }
            if self.is_over() {
                return (made, self.lost);
            }
        }
    }

    /// Returns true if nobody is under way, and nobody is left to try.
    fn is_over(&self) -> bool {
        self.runners.is_empty() && self.next.0 >= self.targets.len()
    }

    /// Start what is due, wait, and go on with what is ready up to the first that authenticated. An error is final.
    fn turn(&mut self) -> Result<Option<Won>, Vec<Lost>> {
        self.start();
        if self.lost.last().is_some_and(|(_, tried)| tried.is_final()) {
            return Err(std::mem::take(&mut self.lost));
        }
        if self.is_over() {
            return Ok(None);
        }
        // WAIT(until): an answer: to the join deadline
        let ready = self.wait().map_err(|e| vec![(0, TryFailure { from: None, miss: Miss::Stop(e) })])?;
        let mut runners = std::mem::take(&mut self.runners).into_iter().zip(ready);
        while let Some((runner, ready)) = runners.next() {
            let pause = runner.pause;
            match self.step(runner, ready) {
                TryStep::Goes(runner) => self.runners.push(runner),
                TryStep::Won(index, connection) => {
                    self.runners.extend(runners.map(|(runner, _)| runner));
                    return Ok(Some((index, connection)));
                }
                TryStep::Lost(index, tried) if tried.is_final() => return Err(vec![(index, tried)]),
                TryStep::Lost(index, tried) => {
                    self.lose(index, tried, pause);
                    self.next.1 = Instant::now();
                }
            }
        }
        // Someone at the end of the patience, with one that may yet answer, has no use for others.
        if Instant::now() >= self.patience.until {
            self.next.0 = self.targets.len();
            self.again.clear();
        }
        Ok(None)
    }

    fn silent(&self) -> Vec<usize> {
        let lost = self.lost.iter().filter(|(_, tried)| tried.is_silence()).map(|(i, _)| *i);
        lost.chain(self.runners.iter().filter(|r| r.is_silent()).map(|r| r.index)).collect()
    }

    fn lose(&mut self, index: usize, tried: TryFailure, pause: Duration) {
        if tried.is_not_now() {
            self.again.push((index, Instant::now() + pause, (pause * 2).min(LONGEST_PAUSE)));
        }
        self.lost.retain(|(i, _)| *i != index);
        self.lost.push((index, tried));
    }

    /// When the next of those is due that are tried again: a round lasts no longer for them.
    fn next_again(&self) -> Option<Instant> {
        let lasts = self.runners.iter().any(Runner::is_first);
        self.again.iter().map(|a| a.1).min().filter(|_| lasts)
    }

    /// Begin with what is due: at once where nobody is under way.
    fn start(&mut self) {
        while let Some(target) = self.targets.get(self.next.0)
            && (self.runners.is_empty() || self.has_room() && Instant::now() >= self.next.1)
        {
            let index = self.next.0;
            let is_staggered = index < ONE_BY_ONE && self.numbers.is_empty();
            let pause = if is_staggered { STAGGER } else { Duration::ZERO };
            self.next = (index + 1, Instant::now() + pause);
            self.try_at(index, target, FIRST_PAUSE);
        }
        while self.next_again().is_some_and(|at| Instant::now() >= at) {
            let Some(due) = self.again.iter().position(|a| Instant::now() >= a.1) else { return };
            let (index, _, pause) = self.again.swap_remove(due);
            if let Some(target) = self.targets.get(index) {
                self.try_at(index, target, pause);
            }
        }
    }

    fn try_at(&mut self, index: usize, target: &Target, pause: Duration) {
        let begun = Instant::now();
        let until = self.patience.until.min(begun + TRY);
        match connect(target) {
            Ok(socket) => {
                let stage = Stage::Connecting(socket);
                self.runners.push(Runner { index, stage, begun, until, pause });
            }
            Err(miss) => self.lose(index, TryFailure { from: None, miss }, pause),
        }
    }

    /// Returns true if another address may be tried beside those under way. While the socket of this host is being tried none is: it answers
    /// or never will, and a process that lacks descriptors needs no second connection.
    fn has_room(&self) -> bool {
        let is_within = |r: &Runner| matches!(self.targets.get(r.index), Some(Target::Unix(_)));
        self.runners.len() < MAX_RUNNERS && !self.runners.iter().any(is_within)
    }

    /// Sleep until something is ready or due; by runner whether it is ready.
    fn wait(&self) -> Result<Vec<bool>, Error> {
        let looked = self.runners.iter().filter(|r| !r.is_connecting()).map(|_| Instant::now() + DIAL_CHECK);
        let waits = self.next.0 < self.targets.len() && self.has_room();
        let next = waits.then_some(self.next.1);
        let next = next.into_iter().chain(self.next_again());
        let until = self.runners.iter().map(|r| r.until).chain(looked).chain(next).min();
        // WAIT(until): an answer: to the join deadline
        self.patience.poll(self.runners.iter().map(Runner::poll_fd), until)
    }

    fn step(&self, runner: Runner, ready: bool) -> TryStep {
        let index = runner.index;
        let pause = runner.pause;
        let from = runner.from();
        let late = Instant::now() >= runner.until;
        let begun = runner.begun;
        let lost = |miss| TryStep::Lost(index, TryFailure { from, miss });
        let silence = || io::Error::new(ErrorKind::TimedOut, "it does not answer");
        match runner.stage {
            Stage::Connecting(_) if !ready && late => lost(Miss::Nobody(silence())),
            Stage::Connecting(socket) if ready => match self.greet(index, socket, pause) {
                Ok(runner) => TryStep::Goes(runner),
                Err(miss) => lost(miss),
            },
            Stage::Connecting(_) => TryStep::Goes(runner),
            Stage::Greeted { stream, mut initiator, mut unanswered } => {
                let ended = |e| Miss::Refused(Refusal::Ended(Some(e)));
                match initiator.read(&stream) {
                    Err(refusal) => lost(Miss::Refused(refusal)),
                    // This process was stopped, or had no turn: whoever answered may wait no longer, and nobody would say so.
                    Ok(Some(_)) if unanswered.elapsed() > PROOF / 2 => {
                        lost(ended(io::Error::new(ErrorKind::TimedOut, "its answer was read too late")))
                    }
                    Ok(Some(Agreed { proof, seals })) => match (&stream).write_all(&proof) {
                        Ok(()) => TryStep::Won(index, (stream, seals)),
                        Err(e) => lost(ended(e)),
                    },
                    Ok(None) if late => lost(ended(silence())),
                    Ok(None) => {
                        if !ready {
                            unanswered = Instant::now();
                        }
                        let stage = Stage::Greeted { stream, initiator, unanswered };
                        TryStep::Goes(Runner { index, stage, begun, until: runner.until, pause })
                    }
                }
            }
        }
    }

    /// Say who asks, on a socket that has connected or never will.
    fn greet(&self, index: usize, socket: Socket, pause: Duration) -> Result<Runner, Miss> {
        if let Some(e) = socket.take_error().map_err(Miss::Nobody)? {
            return Err(Miss::Nobody(e));
        }
        let target = self.targets.get(index);
        let stream = match target {
            Some(Target::Unix(_)) => {
                let stream = socket.into();
                accept::check_user(&stream).map_err(Miss::Nowhere)?;
                Stream::Unix(stream)
            }
            _ => {
                socket.set_tcp_nodelay(true).map_err(Miss::Nobody)?;
                Stream::Tcp(socket.into())
            }
        };
        // What stays within the host is not encrypted, whatever the hello says.
        let hello = self.hello(index);
        let hello = &Hello { sealed: hello.sealed && matches!(stream, Stream::Tcp(_)), ..hello };
        let (initiator, first) = Initiator::start(self.secret, hello).ok_or_else(|| {
            Miss::Stop(Error::os(
                "starting a handshake",
                io::Error::other("the system has no random numbers"),
            ))
        })?;
        let mut initiator = initiator;
        let mut first = first;
        if let Some(len) = self.packet(&stream) {
            first.extend(initiator.pad(len));
        }
        let unanswered = Instant::now();
        // Small enough for an empty socket buffer.
        (&stream).write_all(&first).map_err(|e| Miss::Refused(Refusal::Ended(Some(e))))?;
        let stage = Stage::Greeted { stream, initiator: Box::new(initiator), unanswered };
        let until = self.patience.until.min(unanswered + self.limit);
        Ok(Runner { index, stage, begun: unanswered, until, pause })
    }
}

impl Race<'_> {
    /// Returns the payload of a full packet, in bytes, of a connection that will carry many.
    fn packet(&self, stream: &Stream) -> Option<usize> {
        let Stream::Tcp(stream) = stream else { return None };
        let is_link = matches!(self.hello.channel, Channel::Link { .. });
        let here = stream.local_addr().ok()?.ip();
        let there = stream.peer_addr().ok()?.ip();
        if !is_link || here == there || there.is_loopback() {
            return None;
        }
        // What the system does not tell is as on most networks.
        Some(SockRef::from(stream).tcp_mss().map_or(1460, |n| n as usize))
    }
}

/// Has a socket connect to `to` without waiting.
pub fn begin_connect(socket: Socket, to: &SockAddr) -> io::Result<Socket> {
    socket.set_nonblocking(true)?;
    match socket.connect(to) {
        Err(e) if Errno::from_io_error(&e) != Some(Errno::INPROGRESS) => Err(e),
        _ => Ok(socket),
    }
}

pub(super) fn connect(target: &Target) -> Result<Socket, Miss> {
    let (addr, socket) = match target {
        Target::Tcp(a) => (SockAddr::from(*a), tcp_socket(Domain::for_address(*a))),
        Target::Unix(name) => {
            (accept::unix_addr(name).map_err(Miss::Nowhere)?, Socket::new(Domain::UNIX, Type::STREAM, None))
        }
    };
    let socket = socket.map_err(|e| match is_own(&e) {
        true => Miss::Stop(Error::os("opening a connection", e)),
        false => Miss::Nobody(e),
    })?;
    match begin_connect(socket, &addr) {
        Ok(socket) => Ok(socket),
        // A name belongs to a process for all its life.
        Err(e) if matches!(target, Target::Unix(_)) && e.kind() != ErrorKind::WouldBlock => {
            Err(Miss::Nowhere(e))
        }
        Err(e) => Err(Miss::Nobody(e)),
    }
}

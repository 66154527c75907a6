//! Asks a rank that says nothing whether it lives, over new connections: the old one may only be waiting to send again.
//!
//! ```text
//!   the cable:           | off                          | on
//!   the old connection:  | x  x    x        x           |               sent again
//!   new ones:            |       x   x   x   x   x   x  | answered
//! ```
//! TCP waits twice as long before each time that it sends again. After a cable was off for 4 s its connections are silent for 6 s, which is
//! beyond the limit of 5 s. So the higher rank of a pair, which made the control connection, makes new ones to the same address while
//! nothing is heard: each twentieth of the limit, and four times a second at least. The handshake proves to both sides that the other's
//! process runs.
//!
//! A try costs a packet, and a socket for up to two seconds; there are at most 64 for all ranks together. The handshake's arithmetic comes
//! only once there is a connection.

use crate::channel::{Agreed, Channel, Hello, Initiator, Refusal, Secret, begin_connect};
use rustix::event::{PollFd, PollFlags};
use socket2::{Domain, Socket, Type};
use std::{
    collections::VecDeque,
    io::{self, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

/// Tries at the same time. While a cable is off all of them are in vain, and once it is on each takes a round trip or two.
const MOST: usize = 64;
/// Time limit for a connection: the next try may have one at once.
const CONNECT: Duration = Duration::from_millis(500);
/// Time limit for an answer in all, of a process that may have few turns.
const ANSWER: Duration = Duration::from_secs(2);

/// The new connections over which silent ranks are asked whether they live.
#[derive(Debug)]
pub struct Probes {
    secret: Secret,
    /// To whom it is addressed is filled in.
    hello: Hello,
    open: Vec<Probe>,
    /// Ranks to ask next, with their addresses, as soon as there is room.
    next: VecDeque<(usize, SocketAddr)>,
    /// [`CONNECT`] and [`ANSWER`], or less where the limit on silence is short.
    patience: [Duration; 2],
}

#[derive(Debug)]
struct Probe {
    rank: usize,
    socket: TcpStream,
    begun: Instant,
    /// None until there is a connection.
    initiator: Option<Initiator>,
}

impl Probes {
    pub fn new(me: usize, world: u64, sealed: bool, secret: Secret, limit: Option<Duration>) -> Self {
        let channel = Channel::Probe;
        let hello = Hello { from: me as u32, to: 0, world, group_id: 0, channel, sealed };
        let limit = limit.unwrap_or(Duration::MAX);
        let patience = [CONNECT.min(limit / 10), ANSWER.min(limit / 2)];
        Self { secret, hello, open: Vec::new(), next: VecDeque::new(), patience }
    }

    /// Ask `rank`, which listens at `at`.
    pub fn ask(&mut self, rank: usize, at: SocketAddr) {
        // One whose system has taken a connection is reached: its process answers when it has a turn.
        let reached = self.open.iter().any(|p| p.rank == rank && p.initiator.is_some());
        if !reached && self.next.iter().all(|(r, _)| *r != rank) {
            self.open.retain(|p| p.rank != rank);
            self.next.push_back((rank, at));
            self.start();
        }
    }

    /// `rank` has ended.
    pub fn forget(&mut self, rank: usize) {
        self.open.retain(|p| p.rank != rank);
        self.next.retain(|(r, _)| *r != rank);
    }

    fn start(&mut self) {
        while self.open.len() < MOST
            && let Some((rank, at)) = self.next.pop_front()
        {
            match connect(at) {
                Ok(socket) => {
                    self.open.push(Probe { rank, socket, begun: Instant::now(), initiator: None });
                }
                // The next try may do better; without any, the limit decides as it always does.
                Err(e) => tracing::debug!(rank, %at, %e, "cannot ask a silent rank"),
            }
        }
    }

    /// Adds the sockets to poll to `fds`. Returns the time of the next [`step`](Self::step) at the latest.
    pub fn interest<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) -> Option<Instant> {
        let flags = |p: &Probe| if p.initiator.is_some() { PollFlags::IN } else { PollFlags::OUT };
        fds.extend(self.open.iter().map(|p| PollFd::new(&p.socket, flags(p))));
        self.open.iter().map(|p| p.until(self.patience)).min()
    }

    /// Go on with whatever is ready; the ranks that live.
    pub fn step(&mut self) -> Vec<usize> {
        let secret = &self.secret;
        let hello = self.hello;
        let patience = self.patience;
        let now = Instant::now();
        let mut alive = Vec::new();
        for mut probe in std::mem::take(&mut self.open) {
            match probe.advance(secret, hello) {
                Ok(true) => alive.push(probe.rank),
                Ok(false) if now < probe.until(patience) => self.open.push(probe),
                _ => {}
            }
        }
        // Older questions to one that has answered are moot.
        self.open.retain(|p| !alive.contains(&p.rank));
        self.next.retain(|(rank, _)| !alive.contains(rank));
        self.start();
        alive
    }
}

impl Probe {
    /// It is given up then.
    fn until(&self, [connect, answer]: [Duration; 2]) -> Instant {
        self.begun + if self.initiator.is_some() { answer } else { connect }
    }

    /// Returns true if the answer of a rank that lives has come.
    ///
    /// # Errors
    /// When this try ends without an answer.
    fn advance(&mut self, secret: &Secret, hello: Hello) -> Result<bool, Refusal> {
        let ended = |e| Refusal::Ended(Some(e));
        if self.initiator.is_none() {
            match self.socket.peer_addr() {
                Ok(_) => {}
                // Not yet, or never.
                Err(e) => {
                    return matches!(self.socket.take_error(), Ok(None))
                        .then_some(false)
                        .ok_or_else(|| ended(e));
                }
            }
            let hello = Hello { to: self.rank as u32, ..hello };
            let (initiator, first) = Initiator::start(secret, &hello).ok_or(Refusal::Ended(None))?;
            // Small enough for an empty socket buffer.
            (&self.socket).write_all(&first).map_err(ended)?;
            self.initiator = Some(initiator);
        }
        let Some(initiator) = &mut self.initiator else { return Ok(false) };
        let Some(Agreed { proof, .. }) = initiator.read(&self.socket)? else { return Ok(false) };
        // With it the other side knows as well. That this one cannot say so does not undo what it has read.
        let _ = (&self.socket).write_all(&proof);
        Ok(true)
    }
}

fn connect(at: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(at), Type::STREAM, None)?;
    socket.set_tcp_nodelay(true)?;
    Ok(begin_connect(socket, &at.into())?.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Key,
        channel::{Acceptor, HelloVerdict, Listener},
        sys::poll_until,
    };

    const LONG: Duration = Duration::from_secs(20);

    fn secret() -> Secret {
        Secret::new(&Key::from([7; 32]), "job", 0)
    }

    fn listening() -> (Acceptor, SocketAddr) {
        let listener = Listener::tcp(([127, 0, 0, 1], 0).into()).unwrap();
        listener.listen().unwrap();
        let at = listener.local_addr().unwrap();
        (Acceptor::new(vec![listener], secret()), at)
    }

    /// Until one side has something to say: who answered, and who was heard to ask.
    fn talk(
        probes: &mut Probes,
        acceptor: &mut Acceptor,
        verdict: &HelloVerdict,
    ) -> (Vec<usize>, Vec<Hello>) {
        let until = Instant::now() + LONG;
        let mut alive = Vec::new();
        let mut heard = Vec::new();
        while !probes.open.is_empty() || alive.len() > heard.len() {
            alive.extend(probes.step());
            let accepted = acceptor.step(&mut |_, _| verdict.clone());
            heard.extend(accepted.iter().map(|a| a.hello));
            assert!(Instant::now() < until, "{alive:?} {heard:?}");
            let mut fds = Vec::new();
            probes.interest(&mut fds);
            acceptor.interest(&mut fds);
            poll_until(&mut fds, Some(Instant::now() + Duration::from_millis(20))).unwrap();
        }
        (alive, heard)
    }

    #[test]
    fn one_that_lives_answers_and_knows_who_asked() {
        for sealed in [false, true] {
            let (mut acceptor, at) = listening();
            let mut probes = Probes::new(3, 5, sealed, secret(), None);
            probes.ask(1, at);
            let (alive, heard) = talk(&mut probes, &mut acceptor, &HelloVerdict::Yes);
            let channel = Channel::Probe;
            let expected = Hello { from: 3, to: 1, world: 5, group_id: 0, channel, sealed };
            assert_eq!((alive, heard), (vec![1], vec![expected]));
        }
    }

    #[test]
    fn a_no_is_no_sign_of_life_nor_is_nobody() {
        let (mut acceptor, at) = listening();
        let mut probes = Probes::new(3, 5, false, secret(), None);
        probes.ask(1, at);
        let (alive, heard) =
            talk(&mut probes, &mut acceptor, &HelloVerdict::No("you are not a member".into()));
        assert_eq!((alive, heard), (vec![], vec![]));
        drop(acceptor);
        probes.ask(1, at);
        let until = Instant::now() + LONG;
        while !probes.open.is_empty() {
            assert!(probes.step().is_empty() && Instant::now() < until);
        }
    }

    #[test]
    fn nor_is_a_listener_whose_process_stands_still() {
        let (mut acceptor, at) = listening();
        let mut probes = Probes::new(300, 5, false, secret(), None);
        for _ in 0..3 {
            (0..MOST + 9).for_each(|rank| probes.ask(rank, at));
            assert!(probes.step().is_empty());
            assert!(probes.open.len() <= MOST && probes.next.len() <= MOST + 9);
        }
        (0..MOST + 9).for_each(|rank| probes.forget(rank));
        assert!(probes.open.is_empty() && probes.next.is_empty());
        let begun = Instant::now();
        for _ in 0..5 {
            probes.ask(1, at);
            assert!(probes.step().is_empty());
        }
        assert_eq!(probes.open.len(), 1);
        // What is not answered is given up, and the others have their turn.
        while !probes.open.is_empty() {
            assert!(probes.step().is_empty() && begun.elapsed() < LONG);
            let mut fds = Vec::new();
            let until = probes.interest(&mut fds).unwrap_or_else(Instant::now);
            poll_until(&mut fds, Some(until)).unwrap();
        }
        assert!(probes.next.is_empty() && begun.elapsed() > ANSWER);
        // It runs again, and drops those that are gone.
        (0..4).for_each(|_| drop(acceptor.step(&mut |_, _| HelloVerdict::Yes)));
        probes.ask(1, at);
        let (alive, _) = talk(&mut probes, &mut acceptor, &HelloVerdict::Yes);
        assert_eq!((alive, probes.open.len()), (vec![1], 0));
    }
}

//! Connecting: to one of several addresses, with patience, up to an authenticated stream.

mod race;

use super::{
    hello::{Channel, Denial, Hello, Refusal, Secret},
    stream::{Sealing, Stream},
};
use crate::{Error, Result, sys::poll_joining};
use race::{Race, STAGGER, SealedStream, TryFailure, connect};
pub use race::{Winner, begin_connect};
use rustix::{
    event::{PollFd, PollFlags},
    io::Errno,
};
use std::{
    fmt,
    io::{self, ErrorKind},
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

/// Time limit for a connection, and at first for an answer. A live listener answers in microseconds. A listener that lost us in a flood of
/// strangers drops us after a while.
pub const TRY: Duration = Duration::from_secs(3);
/// Longest wait for an answer. Each try waits twice as long as the one before: a listener that has few turns would do
/// nothing but answer those who have left.
const LONGEST_TRY: Duration = Duration::from_secs(24);
/// When there is no way to a host whose process has met already: after this, in the second round of tries at least. A round in which
/// nothing answers takes [`TRY`].
const NO_WAY: Duration = Duration::from_secs(1);
/// Time limit where a host answers and nobody listens: it is another host with this address, or something refuses in its place.
const NO_LISTENER: Duration = Duration::from_secs(8);
/// Time limit where only a rank answers that may not relay: an interface may still come up.
const BARRED: Duration = Duration::from_secs(4);
/// A listener drops a connection over which no hello comes after a second.
const UNANSWERED: Duration = Duration::from_millis(900);
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Address of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
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

/// Time limit of a dial, and the events that end it early.
pub struct DialLimits<'a> {
    pub until: Instant,
    /// When one of these is readable, `check` is asked (and drains it).
    pub wakers: Vec<BorrowedFd<'a>>,
    pub check: &'a dyn Fn() -> Result<()>,
}

impl fmt::Debug for DialLimits<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DialLimits").field("until", &self.until).finish_non_exhaustive()
    }
}

impl DialLimits<'_> {
    /// Wait until `fd` is ready (true) or `until` passes (false).
    pub fn wait(&self, fd: Option<(BorrowedFd<'_>, PollFlags)>, until: Instant) -> Result<bool> {
        loop {
            // WAIT(until): an answer: to the join deadline
            if self.poll(fd.iter().copied(), Some(until))?.contains(&true) {
                return Ok(true);
            }
            if Instant::now() >= until {
                return Ok(false);
            }
        }
    }

    /// Sleeps until something is ready or `until` passes. Returns which of `fds` are.
    fn poll<'f>(
        &'f self,
        fds: impl Iterator<Item = (BorrowedFd<'f>, PollFlags)>,
        until: Option<Instant>,
    ) -> Result<Vec<bool>> {
        let wakers = self.wakers.iter().map(|waker| (*waker, PollFlags::IN));
        let mut fds: Vec<_> =
            wakers.chain(fds).map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags)).collect();
        // WAIT(until): an answer: to the join deadline
        poll_joining(&mut fds, until)?;
        let mut ready = fds.iter().map(|f| !f.revents().is_empty());
        if ready.by_ref().take(self.wakers.len()).fold(false, |any, r| any | r) {
            (self.check)()?;
        }
        Ok(ready.collect())
    }
}

/// Reason for which no connection came about.
#[derive(Debug)]
pub enum Miss {
    /// It is over for the one who asked.
    Stop(Error),
    /// Nothing answers there, for now.
    Nobody(io::Error),
    /// Nothing will: not from this host, or not on this system.
    Nowhere(io::Error),
    /// No address led to a host that lives, for as long as it takes to know.
    NoWay(io::Error),
    /// A rank that may not pass on what others say answered, and nobody else.
    Barred(io::Error),
    /// It answered and said no.
    Refused(Refusal),
}

impl Miss {
    /// Returns true if another try may succeed.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Stop(_) | Self::Nowhere(_) | Self::NoWay(_) => false,
            // An address or a permission does not change by waiting.
            Self::Nobody(e) | Self::Barred(e) => {
                !matches!(e.kind(), ErrorKind::InvalidInput | ErrorKind::PermissionDenied)
            }
            Self::Refused(r) => r.is_passing(),
        }
    }

    /// Returns true if no other address needs to be tried.
    fn is_final(&self) -> bool {
        match self {
            Self::Stop(_) => true,
            // Who says so may be somebody else, who has the same address.
            Self::Refused(Refusal::No(why)) => !matches!(why, Denial::NotTheOne | Denial::RelayFull),
            _ => false,
        }
    }

    /// Returns true if the peer's host answers at once that it is too early.
    fn is_not_now(&self) -> bool {
        match self {
            Self::Refused(Refusal::Busy | Refusal::Ended(None)) => true,
            Self::Nobody(e) => e.kind() == ErrorKind::ConnectionRefused,
            _ => false,
        }
    }

    /// Returns true if a rank answered that may not relay.
    fn is_relay_off(&self) -> bool {
        matches!(self, Self::Refused(Refusal::RelayOff(_)))
    }

    /// Returns true if this host's routing table has no route there.
    fn is_off_the_map(&self) -> bool {
        matches!(self, Self::Nobody(e) if e.kind() == ErrorKind::NetworkUnreachable)
    }

    /// Returns true if this host has no route to one of the addresses that were tried.
    pub fn lacks_a_route(&self) -> bool {
        let (Self::Nobody(e)
        | Self::Nowhere(e)
        | Self::NoWay(e)
        | Self::Barred(e)
        | Self::Refused(Refusal::Ended(Some(e)))) = self
        else {
            return false;
        };
        e.get_ref().and_then(|e| e.downcast_ref::<Tries>()).is_some_and(|tries| tries.lack_a_route)
    }

    /// Returns true if there was no answer at all, for no fault of this process.
    fn is_silence(&self) -> bool {
        match self {
            Self::Nobody(e) => self.reached() == TryProgress::Nothing && !is_own(e),
            _ => false,
        }
    }

    /// Returns the furthest point on the way that the failed try proves.
    fn reached(&self) -> TryProgress {
        match self {
            Self::Nobody(e) if e.kind() == ErrorKind::ConnectionRefused => TryProgress::Host,
            Self::Refused(Refusal::Ended(_) | Refusal::Busy) => TryProgress::Listener,
            _ => TryProgress::Nothing,
        }
    }
}

/// Furthest point that a try reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum TryProgress {
    Nothing,
    Host,
    Listener,
}

impl fmt::Display for Miss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stop(e) => e.fmt(f),
            Self::Nobody(e) | Self::Nowhere(e) | Self::NoWay(e) | Self::Barred(e) => e.fmt(f),
            Self::Refused(r) => r.fmt(f),
        }
    }
}

/// Connect to one of `targets`, the first preferred, again and again until the patience ends.
pub fn dial(
    targets: &[Target],
    secret: &Secret,
    hello: &Hello,
    patience: &DialLimits<'_>,
) -> Result<(Stream, Sealing), Miss> {
    dial_any(targets, secret, hello, patience, false).map(|won| won.connection)
}

/// Dial as [`dial`] does; also return which of them answered, and which were silent. A process that `is_elsewhere`, on another host, and has
/// met already is given up ([`Miss::NoWay`]) when it is known that no address leads there.
pub fn dial_any(
    targets: &[Target],
    secret: &Secret,
    hello: &Hello,
    patience: &DialLimits<'_>,
    is_elsewhere: bool,
) -> Result<Winner, Miss> {
    let mut pause = FIRST_PAUSE;
    let mut limit = TRY;
    let first = Instant::now();
    let mut best = TryProgress::Nothing;
    let mut rounds = 0;
    let mut holes = 0;
    loop {
        let begun = Instant::now();
        rounds += 1;
        let missed = match Race::new(targets, secret, hello, patience, limit).run() {
            Ok(won) => return Ok(won),
            Err(missed) => missed,
        };
        best = missed.iter().map(|(_, miss)| miss.reached()).chain([best]).max().unwrap_or(best);
        let is_final = missed.iter().any(|(_, miss)| miss.is_final());
        let is_barred = is_barred(&missed);
        let last = summary(targets, missed);
        if is_barred && first.elapsed() >= BARRED {
            return Err(last);
        }
        if is_final || !last.is_passing() {
            return Err(last);
        }
        let next = Instant::now() + pause;
        if next >= patience.until {
            return Err(last);
        }
        let enough = match best {
            TryProgress::Nothing => NO_WAY,
            TryProgress::Host => NO_LISTENER,
            TryProgress::Listener => Duration::MAX,
        };
        // Who was only busy, or has no room, says so sooner.
        let may_drop = best == TryProgress::Listener && is_elsewhere && begun.elapsed() >= UNANSWERED;
        if may_drop && drops_full_packets(targets, secret, hello, patience)? {
            holes += 1;
            // Once it may only have been slow.
            if holes > 1 {
                return Err(Miss::NoWay(io::Error::new(ErrorKind::HostUnreachable, FULL_PACKETS)));
            }
        }
        if is_elsewhere && rounds > 1 && first.elapsed() >= enough {
            return Err(match last {
                Miss::Nobody(e) | Miss::Barred(e) => Miss::NoWay(e),
                last => last,
            });
        }
        // WAIT(until): the next attempt: to the join deadline
        patience.wait(None, next).map_err(Miss::Stop)?;
        pause = (pause * 2).min(LONGEST_PAUSE);
        // One that answers small packets was not slow.
        if holes == 0 && begun.elapsed() >= limit {
            limit = (limit * 2).min(LONGEST_TRY);
        }
    }
}

/// Make all connections of a link side by side: one to each of `targets`, all of which lead to one process, with the numbers from `first` on.
pub fn dial_all(
    targets: &[Target],
    first: u16,
    secret: &Secret,
    hello: &Hello,
    patience: &DialLimits<'_>,
) -> Result<Vec<(Stream, Sealing)>, Miss> {
    let mut made: Vec<Option<SealedStream>> = targets.iter().map(|_| None).collect();
    let mut pause = FIRST_PAUSE;
    let mut limit = TRY;
    loop {
        let begun = Instant::now();
        let missing: Vec<_> =
            (0..targets.len()).filter(|i| made.get(*i).is_some_and(Option::is_none)).collect();
        let to: Vec<_> = missing.iter().filter_map(|i| targets.get(*i).cloned()).collect();
        let numbers: Vec<_> =
            (first..).zip(0..targets.len()).filter(|(_, i)| missing.contains(i)).map(|(n, _)| n).collect();
        let (won, mut lost) = Race::new(&to, secret, hello, patience, limit).for_all(&numbers).run_all();
        lost.retain(|(i, _)| won.iter().all(|(w, _)| w != i));
        for (i, connection) in won {
            if let Some(place) = missing.get(i).and_then(|i| made.get_mut(*i)) {
                *place = Some(connection);
            }
        }
        if made.iter().all(Option::is_some) {
            return Ok(made.into_iter().flatten().collect());
        }
        let is_final = lost.iter().any(|(_, miss)| miss.is_final());
        let last = summary(&to, lost);
        let next = Instant::now() + pause;
        if is_final || !last.is_passing() || next >= patience.until {
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

/// Returns true if a rank that may not relay answered, and nothing else is in reach: waiting changes neither.
fn is_barred(missed: &[(usize, TryFailure)]) -> bool {
    missed.iter().any(|(_, miss)| miss.is_relay_off())
        && missed.iter().all(|(_, miss)| miss.is_relay_off() || miss.is_off_the_map())
}

/// Diagnosis for a path that drops full packets.
const FULL_PACKETS: &str = "small packets are answered there and full ones are not: something between the hosts drops them; give the interfaces of both, and what is between them, the same MTU (ip link set dev NAME mtu 1500)";

/// Returns true if a listener that did not answer a hello in a full packet answers a small one at once.
fn drops_full_packets(
    targets: &[Target],
    secret: &Secret,
    hello: &Hello,
    patience: &DialLimits<'_>,
) -> Result<bool, Miss> {
    if !matches!(hello.channel, Channel::Link { .. }) {
        return Ok(false);
    }
    let hello = Hello { channel: Channel::Probe, group_id: 0, ..*hello };
    match Race::new(targets, secret, &hello, patience, Duration::from_secs(1)).run() {
        Ok(_) => Ok(true),
        Err(missed) => match missed.into_iter().find(|(_, t)| matches!(t.miss, Miss::Stop(_))) {
            Some((_, tried)) => Err(tried.miss),
            None => Ok(false),
        },
    }
}

/// Results of a round of tries, in words.
#[derive(Debug)]
struct Tries {
    words: String,
    lack_a_route: bool,
}

impl fmt::Display for Tries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl std::error::Error for Tries {}

/// Sums up a round of tries: the final miss if there is one, else the miss that may still change, with the result of each attempt.
fn summary(targets: &[Target], missed: Vec<(usize, TryFailure)>) -> Miss {
    let list = || {
        let each = missed.iter().map(|(i, tried)| {
            let to = targets.get(*i).map_or_else(String::new, ToString::to_string);
            let from = tried.from.map_or_else(String::new, |ip| format!("from {ip} "));
            format!("{from}to {to}: {}", tried.miss)
        });
        let lack_a_route = missed.iter().any(|(_, tried)| tried.is_off_the_map());
        Tries { words: each.collect::<Vec<_>>().join("; "), lack_a_route }
    };
    let tries = targets.iter().any(|t| matches!(t, Target::Tcp(_))).then(list);
    let is_barred = missed.iter().any(|(_, tried)| tried.is_relay_off());
    let hope = |t: &TryFailure| (t.is_final(), t.is_passing(), t.reached());
    let Some((_, tried)) = missed.into_iter().max_by_key(|(i, t)| (hope(t), std::cmp::Reverse(*i))) else {
        return Miss::Nowhere(io::Error::new(
            ErrorKind::AddrNotAvailable,
            "it has no address that leads there",
        ));
    };
    let told = |e: io::Error| match tries {
        // Who asks what this process lacked asks for the system's number.
        Some(tries) if !is_own(&e) => io::Error::new(e.kind(), tries),
        _ => e,
    };
    match tried.miss {
        Miss::Nobody(e) if is_barred => Miss::Barred(told(e)),
        Miss::Nobody(e) => Miss::Nobody(told(e)),
        Miss::Nowhere(e) => Miss::Nowhere(told(e)),
        Miss::Refused(Refusal::Ended(Some(e))) => Miss::Refused(Refusal::Ended(Some(told(e)))),
        miss => miss,
    }
}

/// Returns true if this process lacks a resource, which is no fault of a peer, and waiting does not end it.
pub fn is_own(e: &io::Error) -> bool {
    let own = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::NOSPC, Errno::FBIG];
    Errno::from_io_error(e).is_some_and(|e| own.contains(&e))
}

/// Addresses that are tried at a time: a process may have few descriptors.
const AT_A_TIME: usize = 256;
/// A host on the same link answers in less, unless the system itself has no turn.
const PROBE: Duration = Duration::from_millis(100);

/// The indices of those `targets` that take a connection within `limit`, and soon after the first of them.
pub fn answering(targets: &[Target], patience: &DialLimits<'_>, limit: Duration) -> Result<Vec<usize>, Miss> {
    let mut until = patience.until.min(Instant::now() + limit);
    let mut open = Vec::new();
    for (i, target) in targets.iter().enumerate().take(AT_A_TIME) {
        match connect(target) {
            Ok(socket) => open.push((i, socket)),
            // Those that are open are enough.
            Err(Miss::Stop(_)) if !open.is_empty() => break,
            Err(miss @ Miss::Stop(_)) => return Err(miss),
            Err(_) => {}
        }
    }
    let mut found = Vec::new();
    while !open.is_empty() && Instant::now() < until {
        // WAIT(until): connections: three seconds at most
        let done = patience.poll(open.iter().map(|(_, s)| (s.as_fd(), PollFlags::OUT)), Some(until));
        let mut done = done.map_err(Miss::Stop)?.into_iter();
        open.retain(|(i, socket)| {
            let is_done = done.next() == Some(true);
            if is_done && matches!(socket.take_error(), Ok(None)) && socket.peer_addr().is_ok() {
                found.push(*i);
            }
            !is_done
        });
        if !found.is_empty() {
            until = until.min(Instant::now() + STAGGER);
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// The indices of those `targets` on links of this host that take a connection at once.
pub fn probe(targets: &[Target], patience: &DialLimits<'_>) -> Result<Vec<usize>, Miss> {
    let mut found = Vec::new();
    for (turn, some) in targets.chunks(AT_A_TIME).enumerate() {
        let answered = answering(some, patience, PROBE)?;
        found.extend(answered.into_iter().map(|i| turn * AT_A_TIME + i));
    }
    Ok(found)
}

#[cfg(test)]
mod tests;

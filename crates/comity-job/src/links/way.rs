//! Ways of this process to the others: at one of a rank's addresses, else through a rank that has a way to both.
//!
//! ```text
//!   candidates of the address book, best first  --  guesses are asked first  -->  dial_any: the first that answers
//!     none leads there, and both may be relayed  -->  through: addresses of ranks that reach both, the known one first
//!   the address book learns which address won, which stayed silent, and who relays
//! ```
//! In a large job control connections are made anew: to ranks that become neighbours when those between have ended. Each is made by a thread that
//! lives for a second and a half at most: the control thread hears the others meanwhile. A try that fails is told to the control thread, which
//! tries again, or concludes that the other has ended.

use crate::{
    Peer,
    channel::{
        Channel, Denial, DialLimits, Hello, Miss, Refusal, Sealing, Secret, Stream, Target, Winner, dial_any,
        probe,
    },
    control::{ControlDialer, ControlPlane},
    sync::lock,
    sys::Waker,
    transport::{AddressBook, Candidate, Candidates, Card},
};
use comity_membership::NoConnection;
use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Time limit for finding a rank that relays. It takes some six seconds to know that there is no direct way; both are less than ten.
const RELAY_LIMIT: Duration = Duration::from_millis(3400);
/// Addresses of each of them that are tried.
const RELAY_ADDRS: usize = 2;

/// Ways of a process to the others: its identity, their addresses and the key.
#[derive(Clone, Debug)]
pub(super) struct Ways {
    pub(super) me: usize,
    pub(super) world: u64,
    /// By rank.
    pub(super) cards: Arc<[Card]>,
    pub(super) peers: Arc<[Peer]>,
    pub(super) book: Arc<AddressBook>,
    pub(super) secret: Secret,
    /// Traffic between hosts is encrypted.
    pub(super) sealed: bool,
}

impl Ways {
    /// Begins a connection with another rank.
    pub(super) fn hello(&self, rank: usize, group_id: u64, channel: Channel) -> Hello {
        let sealed = self.sealed;
        Hello { from: self.me as u32, to: rank as u32, world: self.world, group_id, channel, sealed }
    }

    /// The addresses of another rank, the best first, and in words those that lead nowhere from here. None if a third rank is known to
    /// lead there.
    pub(super) fn targets(&self, rank: usize) -> (Vec<Target>, Vec<String>) {
        self.targets_if(rank, |_| true)
    }

    fn targets_if(&self, rank: usize, is_wanted: impl Fn(&Candidate) -> bool) -> (Vec<Target>, Vec<String>) {
        match self.cards.get(rank) {
            Some(card) if self.book.relay_of(rank).is_none() => {
                let found = self.book.candidates(card);
                let (wanted, others): (Vec<_>, Vec<_>) = found.all.into_iter().partition(is_wanted);
                let all = if wanted.is_empty() { others } else { wanted };
                (all.into_iter().map(|c| Target::Tcp(c.at)).collect(), found.vain)
            }
            _ => (Vec::new(), Vec::new()),
        }
    }

    /// The addresses of another rank for a link. If guesses would be the best, those that answer come first, and are no guesses any more.
    pub(super) fn link_candidates(&self, rank: usize, patience: &DialLimits<'_>) -> Candidates {
        let Some(card) = self.cards.get(rank).filter(|_| self.book.relay_of(rank).is_none()) else {
            return Candidates::default();
        };
        let found = self.book.candidates(card);
        let guesses = if self.is_elsewhere(rank) { found.good_guesses() } else { Vec::new() };
        if self.ask(card, &guesses, patience) { self.book.candidates(card) } else { found }
    }

    /// Learn which of these addresses of a host lead there. Returns true if there was something to learn.
    fn ask(&self, card: &Card, guesses: &[SocketAddr], patience: &DialLimits<'_>) -> bool {
        let targets: Vec<_> = guesses.iter().copied().map(Target::Tcp).collect();
        // Whoever stops this is heard again by the dialling that follows.
        let Ok(found) = probe(&targets, patience) else { return false };
        let is_found = |i: usize| found.contains(&i);
        let (answered, silent): (Vec<_>, Vec<_>) = (0..guesses.len()).partition(|i| is_found(*i));
        let at =
            |all: Vec<usize>| all.into_iter().filter_map(|i| guesses.get(i).copied()).collect::<Vec<_>>();
        self.book.hear(card, &at(answered), &at(silent));
        !guesses.is_empty()
    }

    pub(super) fn is_elsewhere(&self, rank: usize) -> bool {
        match (self.cards.get(self.me), self.cards.get(rank)) {
            (Some(ours), Some(theirs)) => ours.host_id != theirs.host_id,
            _ => false,
        }
    }

    /// The addresses of another rank for a control connection, which stays within the host where it can.
    pub(super) fn control_targets(
        &self,
        rank: usize,
        patience: &DialLimits<'_>,
    ) -> (Vec<Target>, Vec<String>) {
        // An address of theirs that this host has, too (a bridge for containers, say), leads back to this host: that nobody listens there
        // says nothing of them.
        let is_elsewhere = self.is_elsewhere(rank);
        if let Some(card) =
            self.cards.get(rank).filter(|_| is_elsewhere && self.book.relay_of(rank).is_none())
        {
            let found = self.book.candidates(card);
            if found.is_guesswork() {
                self.ask(card, &found.guesses(), patience);
            }
        }
        let (mut targets, vain) = self.targets_if(rank, |c| !is_elsewhere || !c.is_own());
        let host = |rank: usize| self.cards.get(rank).map(|c| c.host_id);
        if let Some(card) =
            self.cards.get(rank).filter(|c| !c.unix.is_empty() && host(self.me) == Some(c.host_id))
        {
            targets.insert(0, Target::Unix(card.unix.clone()));
        }
        (targets, vain)
    }

    /// Connect to a rank at one of `targets`, else through another rank. An error names the addresses that lead nowhere from here.
    pub(super) fn dial(
        &self,
        rank: usize,
        targets: &[Target],
        vain: &[String],
        hello: &Hello,
        patience: &DialLimits<'_>,
    ) -> Result<(Stream, Sealing), Miss> {
        let is_elsewhere = self.is_elsewhere(rank);
        let direct = match self.book.relay_of(rank) {
            None if targets.is_empty() && is_elsewhere => Err(Miss::NoWay(unreachable(vain.join("; ")))),
            None => dial_any(targets, &self.secret, hello, patience, is_elsewhere),
            Some(_) => Err(Miss::NoWay(unreachable("it was not reached before".into()))),
        };
        match direct {
            Ok(won) => {
                self.learn(rank, targets, &won);
                Ok(won.connection)
            }
            Err(Miss::NoWay(why)) => {
                let tried = std::iter::once(why.to_string()).chain(vain.iter().cloned());
                let tried: Vec<_> = tried.filter(|t| !t.is_empty()).collect();
                let mut said = tried.clone();
                said.dedup();
                self.through(rank, hello, patience, &said.join("; "))
            }
            Err(miss) => Err(miss),
        }
    }

    fn learn(&self, rank: usize, targets: &[Target], won: &Winner) {
        let at = |i: usize| match targets.get(i) {
            Some(Target::Tcp(at)) => Some(*at),
            _ => None,
        };
        let (Some(card), Some(reached)) = (self.cards.get(rank), at(won.index)) else { return };
        let silent: Vec<_> = won.silent.iter().filter_map(|i| at(*i)).collect();
        tracing::debug!(rank, at = %reached, ?silent, "reached");
        self.book.learn(card, reached, &silent);
    }

    /// Connect through a rank that passes on what the two say, encrypted by them.
    pub(super) fn through(
        &self,
        rank: usize,
        hello: &Hello,
        patience: &DialLimits<'_>,
        tried: &str,
    ) -> Result<(Stream, Sealing), Miss> {
        let off = [self.me, rank].into_iter().find(|r| self.cards.get(*r).is_some_and(|c| !c.relays));
        if let Some(off) = off {
            return Err(Miss::NoWay(unreachable(format!(
                "{tried}; no other rank may pass on what they say, for rank {off} was started with COMITY_RELAY=0"
            ))));
        }
        let mut relays = self.book.relays(&self.cards, self.me, rank);
        if let Some(known) = self.book.relay_of(rank) {
            relays.retain(|r| *r != known);
            relays.insert(0, known);
        }
        let mut targets = Vec::new();
        for relay in relays {
            let addrs = self.targets(relay).0.into_iter().take(RELAY_ADDRS);
            targets.extend(addrs.map(|at| (relay, at)));
        }
        let at: Vec<_> = targets.iter().map(|(_, at)| at.clone()).collect();
        let limits = DialLimits {
            until: patience.until.min(Instant::now() + RELAY_LIMIT),
            wakers: patience.wakers.clone(),
            check: patience.check,
        };
        let hello = Hello { sealed: true, ..*hello };
        match dial_any(&at, &self.secret, &hello, &limits, false) {
            Ok(won) => {
                if let Some((relay, at)) = targets.get(won.index) {
                    self.note(rank, *relay, at);
                }
                Ok(won.connection)
            }
            Err(Miss::Stop(e)) => Err(Miss::Stop(e)),
            Err(_) if at.is_empty() => Err(Miss::NoWay(unreachable(format!(
                "{tried}; no other rank is reached that could pass on what they say"
            )))),
            Err(miss) => Err(Miss::NoWay(unreachable(format!("{tried}; nor through other ranks ({miss})")))),
        }
    }

    fn note(&self, rank: usize, relay: usize, at: &Target) {
        if self.book.relay_of(rank) == Some(relay) {
            return;
        }
        self.book.learn_relay(rank, relay);
        let name = |r: usize| self.peers.get(r).map_or_else(|| format!("rank {r}"), ToString::to_string);
        tracing::warn!(
            "there is no way from here (rank {}) to {}: {} passes on what they say, at {at}; it is encrypted, and slower than a cable between the two",
            self.me,
            name(rank),
            name(relay)
        );
    }
}

fn unreachable(words: String) -> io::Error {
    io::Error::new(ErrorKind::HostUnreachable, words)
}

const TRIES: Duration = Duration::from_secs(1);
/// And then through other ranks, which know their ways: it takes them milliseconds.
const THROUGH: Duration = Duration::from_millis(500);

/// Makes control connections that are missing.
#[derive(Debug)]
pub(super) struct Redial {
    inner: Arc<RedialState>,
    /// Each with what ends its try, which it holds: a descriptor only while there is one.
    threads: Mutex<Vec<(JoinHandle<()>, Weak<Waker>)>>,
}

#[derive(Debug)]
struct RedialState {
    ways: Ways,
    control: Weak<ControlPlane>,
    stop: AtomicBool,
}

impl Redial {
    pub(super) fn new(ways: Ways, control: Weak<ControlPlane>) -> Arc<Self> {
        let inner = RedialState { ways, control, stop: AtomicBool::new(false) };
        Arc::new(Self { inner: Arc::new(inner), threads: Mutex::default() })
    }

    pub(super) fn end(&self) {
        self.inner.stop.store(true, Ordering::Release);
        for (thread, waker) in std::mem::take(&mut *lock(&self.threads)) {
            waker.upgrade().iter().for_each(|waker| waker.wake());
            // WAIT(end): a thread of ours, which is told to stop
            let _ = thread.join();
        }
    }

    fn start(&self, rank: usize) -> io::Result<()> {
        let inner = Arc::clone(&self.inner);
        let waker = Arc::new(Waker::new()?);
        let ends = Arc::downgrade(&waker);
        let named = thread::Builder::new().name("comity-redial".into());
        let thread = named.spawn(move || inner.make(rank, &waker))?;
        let mut threads = lock(&self.threads);
        threads.retain(|(thread, _)| !thread.is_finished());
        threads.push((thread, ends));
        Ok(())
    }
}

impl ControlDialer for Redial {
    fn connect(&self, rank: usize) {
        if let Err(e) = self.start(rank) {
            tracing::warn!(rank, %e, "no thread to make a control connection with");
            self.inner.tell(rank, NoConnection::NoAnswer);
        }
    }
}

impl RedialState {
    fn make(&self, rank: usize, waker: &Waker) {
        let ways = &self.ways;
        let hello = ways.hello(rank, 0, Channel::Control);
        // Not drained: it ends all tries.
        let check =
            || if self.stop.load(Ordering::Acquire) { Err(crate::ErrorKind::Closed.into()) } else { Ok(()) };
        let limits =
            |time| DialLimits { until: Instant::now() + time, wakers: vec![waker.fd()], check: &check };
        let (targets, vain) = ways.control_targets(rank, &limits(TRIES));
        let made = ways.dial(rank, &targets, &vain, &hello, &limits(TRIES));
        // No time is left to find out that there is no way.
        let made = made.or_else(|miss| match &miss {
            Miss::Nobody(e) if e.kind() != ErrorKind::ConnectionRefused && ways.is_elsewhere(rank) => {
                ways.through(rank, &hello, &limits(THROUGH), &e.to_string()).map_err(|_| miss)
            }
            _ => Err(miss),
        });
        match made {
            Ok((stream, seals)) => {
                if let Some(control) = self.control.upgrade() {
                    control.attach(rank, stream, seals);
                }
            }
            Err(Miss::Stop(_)) => {}
            Err(miss) => {
                tracing::debug!(rank, %miss, "no control connection");
                self.tell(rank, why(&miss));
            }
        }
    }

    fn tell(&self, rank: usize, why: NoConnection) {
        if let Some(control) = self.control.upgrade() {
            control.missed(rank, why);
        }
    }
}

/// Returns the conclusion about the other rank from a failed try.
fn why(miss: &Miss) -> NoConnection {
    match miss {
        Miss::Nobody(e) | Miss::NoWay(e)
            if matches!(e.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound) =>
        {
            NoConnection::NobodyListens
        }
        Miss::Refused(Refusal::No(Denial::NotAMember)) => NoConnection::GivenUp,
        _ => NoConnection::NoAnswer,
    }
}

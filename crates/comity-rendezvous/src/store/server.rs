//! The store's thread: who has come, who is missed, and what each is told.

mod hearing;

use super::{
    StoreState,
    joiners::{Joiner, Voters},
};
use crate::{
    Error, Field, JoinCause, JoinError,
    channel::{Accepted, Acceptor, Channel, Conn, Hello, HelloVerdict, Listener, STORE, Secret, Stream},
    error::seconds,
    sync::lock,
    sys::poll_until,
    wire::{Facts, FromStore},
};
use rustix::event::{PollFd, PollFlags};
use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, SocketAddr},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

/// Time limit for an authenticated rank's first message: it looks up its own addresses in between.
const FIRST_WORD: Duration = Duration::from_secs(30);
/// Time limit for the refusal of a rank.
const REFUSAL: Duration = Duration::from_secs(2);
/// Time for which due messages are still sent when the store is dropped.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// Time limit then for ranks that have not come yet, to tell them why the others did not meet.
const STRAGGLERS: Duration = Duration::from_millis(100);
/// Connections that said no word yet.
const MAX_FRESH: usize = 1024;
/// Interval of reports about missing ranks, to the log, to a user at a terminal, and to the ranks that wait.
const SAY: Duration = Duration::from_secs(5);
/// Pause before another try to end a job whose groups are just being made.
const RETRY: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(super) struct StoreMember {
    pub(super) conn: Conn,
    pub(super) who: Who,
}

/// A process as it says of itself, and where it connected from.
#[derive(Clone, Debug)]
pub(super) struct Who {
    pub(super) facts: Facts,
    pub(super) from: Option<IpAddr>,
}

/// The ranks that have come so far.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) members: BTreeMap<u32, StoreMember>,
    /// When the least patient of them gives up: so long after the last one came.
    pub(super) until: Instant,
    pub(super) limit: Duration,
    pub(super) begun: Instant,
    /// When to say next who is missing.
    pub(super) say: Instant,
    /// When to tell those who wait that another one has come.
    pub(super) tell: Option<Instant>,
    /// All are there. The group opens then.
    pub(super) opens: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct Met {
    /// Ranks that still connect.
    pub(super) connecting: BTreeMap<u32, StoreMember>,
    /// Ranks that run and stay connected: they hear what ends the job, and hold their places.
    pub(super) attached: BTreeMap<u32, StoreMember>,
    /// All, by rank.
    pub(super) all: Vec<Who>,
}

impl Met {
    pub(super) fn members(&self) -> impl Iterator<Item = &StoreMember> {
        self.connecting.values().chain(self.attached.values())
    }
}

#[derive(Debug)]
pub(super) struct Server {
    pub(super) shared: Arc<StoreState>,
    acceptor: Acceptor,
    pub(super) size: u32,
    pub(super) join: Duration,
    /// Another job may come that nothing tells from this one; how long the process of rank 0 has waited for a processor.
    pub(super) unnamed: Option<Duration>,
    fresh: Vec<(Conn, u32, Instant)>,
    pub(super) round: Option<Round>,
    /// Groups that have met; the last one stays.
    pub(super) met: Vec<Met>,
    /// When the first one did.
    pub(super) first: Option<Instant>,
    /// A running job that is to end, by the rank that two processes claim, and why; once it has groups.
    pub(super) condemned: Option<(u32, String)>,
    /// Processes of other jobs or with other keys that were turned away, and where the last came from.
    pub(super) foreign: (u64, Option<SocketAddr>),
    /// The addresses at which ranks come.
    place: Vec<SocketAddr>,
    /// Ranks that the last group waited for in vain, and what became of it.
    missed: HashMap<u32, (JoinError, Instant)>,
    /// Votes on groups that follow others.
    pub(super) voters: Voters,
    /// Processes that came while the job ran.
    pub(super) joiners: Vec<Joiner>,
    /// Number of the last one.
    pub(super) last_joiner: u64,
    /// The ranks have not been told of a change of those that wait.
    pub(super) untold: bool,
    /// Connections that only have something left to be sent.
    leaving: Vec<(Conn, Instant)>,
}

impl Server {
    pub(super) fn new(
        shared: Arc<StoreState>,
        listeners: Vec<Listener>,
        secret: Secret,
        size: u32,
        join: Duration,
    ) -> Self {
        let place = listeners.iter().filter_map(|l| l.local_addr().ok()).collect();
        Self {
            shared,
            place,
            acceptor: Acceptor::new(listeners, secret),
            size,
            join,
            unnamed: None,
            fresh: Vec::new(),
            round: None,
            met: Vec::new(),
            first: None,
            condemned: None,
            foreign: (0, None),
            missed: HashMap::new(),
            voters: BTreeMap::new(),
            joiners: Vec::new(),
            last_joiner: 0,
            untold: false,
            leaving: Vec::new(),
        }
    }

    pub(super) fn serve(mut self) {
        while !self.shared.stop.load(Ordering::Acquire) {
            // WAIT(stop): the store's thread: woken when it is to stop
            self.wait(None);
            self.shared.waker.drain();
            self.turn();
            self.miss_the_gone();
            self.keep_time();
            self.flush();
        }
        self.finish();
    }

    /// Do what is due, once. Those who came before are heard first: one that has ended, or has connected to all, claims no rank any more.
    fn turn(&mut self) {
        self.drop_ended();
        self.accept();
        self.hear_members();
        self.hear_connecting();
        self.hear_attached();
        self.hear_joiners();
        self.hear_fresh();
        self.condemn();
    }

    // WAIT(waker): the store's thread: woken when it is to stop
    fn wait(&self, at_most: Option<Instant>) {
        let waker = self.shared.waker.fd();
        let mut fds = vec![PollFd::from_borrowed_fd(waker, PollFlags::IN)];
        let mut until = self.acceptor.interest(&mut fds).into_iter().chain(at_most).min();
        let round = self.round.iter().flat_map(|r| r.members.values());
        let members = round.chain(self.met.iter().flat_map(Met::members));
        let joiners = self.joiners.iter().map(|j| &j.conn);
        let conns = self.fresh.iter().map(|f| &f.0).chain(members.map(|m| &m.conn)).chain(joiners);
        for conn in conns {
            let write = if conn.is_pending() { PollFlags::OUT } else { PollFlags::empty() };
            fds.push(PollFd::new(conn.stream(), PollFlags::IN | write));
        }
        fds.extend(self.leaving.iter().map(|(c, _)| PollFd::new(c.stream(), PollFlags::OUT)));
        let times = self.fresh.iter().map(|f| f.2).chain(self.leaving.iter().map(|l| l.1));
        until = until.into_iter().chain(times).chain(self.next()).min();
        // The descriptors are ours and open; if the system still refuses, do not spin.
        if poll_until(&mut fds, until).is_err() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn accept(&mut self) {
        let room = self.fresh.len() < MAX_FRESH;
        let accepted = self.acceptor.step(&mut |hello: &Hello, _: &Stream| {
            if hello.channel != Channel::Join || hello.to != STORE {
                HelloVerdict::No("this is the store, not a rank".into())
            } else if room {
                HelloVerdict::Yes
            } else {
                HelloVerdict::Busy
            }
        });
        let until = Instant::now() + FIRST_WORD;
        self.fresh.extend(
            accepted
                .into_iter()
                .map(|Accepted { stream, hello, seals }| (Conn::new(stream, seals), hello.from, until)),
        );
        self.note_foreign();
        if let Some(why) = self.acceptor.lacked().filter(|_| self.acceptor.is_starved())
            && self.round.is_some()
        {
            let why = Error::os("the store cannot take the connections of ranks", std::io::Error::from(why));
            self.refuse_round(&JoinError::new(why.to_string()), None);
        }
    }

    /// Processes that hold another key harm nobody; who looks for a missing rank should know of them.
    fn note_foreign(&mut self) {
        for at in self.acceptor.foreign() {
            self.foreign = (self.foreign.0 + 1, at.or(self.foreign.1));
            let count = self.foreign.0;
            let at = at.map_or_else(|| "this host".into(), |a| a.to_string());
            // A crowd of them must not fill the disk.
            if count <= 16 || count.is_power_of_two() {
                tracing::warn!(%at, count, "refused a process of another job, or with another key");
            }
        }
    }

    /// When [`keep_time`](Self::keep_time) has something to do.
    fn next(&self) -> Option<Instant> {
        let retry = self.condemned.as_ref().map(|_| Instant::now() + RETRY);
        let round = self.round.iter().flat_map(|r| [r.until, r.say].into_iter().chain(r.tell).chain(r.opens));
        round.chain(retry).min()
    }

    fn keep_time(&mut self) {
        let now = Instant::now();
        let Some(round) = &mut self.round else { return };
        if round.opens.is_some() {
            if round.opens.is_some_and(|at| now >= at) {
                self.meet();
            }
            return;
        }
        if now >= round.until {
            let why = missing(round, self.size, self.foreign, &self.place);
            return self.refuse_round(&why, None);
        }
        if now >= round.say {
            round.say = now + SAY;
            self.shared.say(&waiting(round, self.size, self.foreign, &self.place));
        }
        if round.tell.take_if(|t| now >= *t).is_some() {
            let here = FromStore::Waiting { here: round.members.len() as u32 }.encode();
            for m in round.members.values_mut() {
                // One that is gone is found so when it is next read.
                let _ = m.conn.send(&here);
            }
        }
    }

    /// The group does not come about; tell those who came, and those who have not yet when they do.
    pub(super) fn refuse_round(&mut self, why: &JoinError, except: Option<u32>) {
        let members = self.round.take().map(|r| r.members).unwrap_or_default();
        let now = Instant::now();
        let until = Instant::now() + self.join;
        // The first reason stays: the word of a rank that ended may come after it and begin a round that nobody else is in.
        self.missed.retain(|_, (_, until)| now < *until);
        for r in (0..self.size).filter(|r| !members.contains_key(r) && Some(*r) != except) {
            let late = || why.in_words(format!("rank {r} came too late: {why}"));
            self.missed.entry(r).or_insert_with(|| (late(), until));
        }
        for (rank, m) in members {
            if Some(rank) != except {
                self.refuse(m.conn, why);
            }
        }
    }

    pub(super) fn refuse(&mut self, mut conn: Conn, why: &JoinError) {
        if conn.send(&FromStore::Refused { why: why.clone() }.encode()).is_ok() && conn.is_pending() {
            self.leaving.push((conn, Instant::now() + REFUSAL));
        }
    }

    fn flush(&mut self) {
        let now = Instant::now();
        let round = self.round.iter_mut().flat_map(|r| r.members.values_mut());
        let met = self.met.iter_mut().flat_map(|m| m.connecting.values_mut().chain(m.attached.values_mut()));
        let joiners = self.joiners.iter_mut().map(|j| &mut j.conn);
        let conns = round.chain(met).map(|m| &mut m.conn).chain(joiners);
        for conn in conns.filter(|conn| conn.is_pending()) {
            // A failure shows when it is next read.
            let _ = conn.flush();
        }
        self.leaving.retain_mut(|(conn, until)| conn.flush().is_ok() && conn.is_pending() && now < *until);
    }

    /// Returns true if a rank may still come that is to hear why the others did not meet.
    fn awaits_stragglers(&self) -> bool {
        let now = Instant::now();
        let gone = lock(&self.shared.gone);
        self.missed.iter().any(|(rank, (_, until))| now < *until && gone.iter().all(|(r, _)| r != rank))
    }

    /// Send what is due, then end.
    // WAIT(until): its last words: half a second at most
    fn finish(&mut self) {
        let stragglers = Instant::now() + STRAGGLERS;
        while Instant::now() < stragglers && self.awaits_stragglers() {
            self.wait(Some(stragglers));
            self.shared.waker.drain();
            self.turn();
            self.flush();
        }
        let until = Instant::now() + LAST_WORDS;
        self.leaving.extend(
            std::mem::take(&mut self.met)
                .into_iter()
                .flat_map(|m| m.connecting.into_values())
                .map(|m| (m.conn, until)),
        );
        self.flush();
        while !self.leaving.is_empty() && Instant::now() < until {
            let mut fds: Vec<_> =
                self.leaving.iter().map(|(c, _)| PollFd::new(c.stream(), PollFlags::OUT)).collect();
            if poll_until(&mut fds, Some(until)).is_err() {
                return;
            }
            self.flush();
        }
    }
}

/// Ranks named one by one.
const MAX_NAMED: usize = 16;

/// "host a, pid 12, from 10.0.0.1".
pub(super) fn whereabouts(who: &Who) -> String {
    let from = who.from.map_or_else(String::new, |ip| format!(", from {ip}"));
    format!("host {}, pid {}{from}", who.facts.host, who.facts.pid)
}

/// Two processes for one rank.
pub(super) fn claimed(rank: u32, first: &Who, second: &Who) -> String {
    let first = whereabouts(first);
    let mut second = whereabouts(second);
    if first == second {
        second += " in another container";
    }
    format!(
        "two processes claim rank {rank}: one is {first}, the other {second}; give every process a rank of its own (COMITY_RANK), and each job a key and an address of its own"
    )
}

/// Error of a round of ranks that meet at `place`, which the join limit ended.
fn missing(round: &Round, size: u32, foreign: (u64, Option<SocketAddr>), place: &[SocketAddr]) -> JoinError {
    let absent = absent(round, size);
    let how = if foreign.0 == 0 { "never connected" } else { "never let in" };
    let words = format!(
        "only {} of {size} ranks joined within {}: missing {} ({how}){}; the ranks meet at {}{}; {}",
        round.members.len(),
        seconds(round.limit),
        ranks(&absent),
        refused(foreign),
        shown(place),
        firewall(place),
        next_step(&absent, foreign.0)
    );
    JoinError::new(words).of(absent.iter().map(|r| *r as usize)).because(JoinCause::Missing)
}

/// Sentence while ranks are missing.
fn waiting(round: &Round, size: u32, foreign: (u64, Option<SocketAddr>), place: &[SocketAddr]) -> String {
    format!(
        "{} of {size} ranks are here, at {}, after {} s; waiting for {}{}",
        round.members.len(),
        shown(place),
        Instant::now().saturating_duration_since(round.begun).as_secs(),
        ranks(&absent(round, size)),
        refused(foreign)
    )
}

fn shown(place: &[SocketAddr]) -> String {
    place.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", ")
}

/// A likely reason why a process of another host does not come to `place`, and what to do; nothing where all are on one host.
pub(crate) fn firewall(place: &[SocketAddr]) -> &'static str {
    match place.iter().all(|at| at.ip().is_loopback()) {
        true => "",
        false => "; if a firewall guards a host, let it pass that port",
    }
}

/// A mend for ranks that are missing, where so many processes were refused.
fn next_step(absent: &[u32], refused: u64) -> String {
    match (refused, absent) {
        (0, [rank]) => format!("start rank {rank}, or look at its own output"),
        (0, _) => "start these ranks, or look at their own output".into(),
        _ => "give every rank the same key and job name (COMITY_KEY_FILE, COMITY_JOB)".into(),
    }
}

fn absent(round: &Round, size: u32) -> Vec<u32> {
    (0..size).filter(|r| !round.members.contains_key(r)).collect()
}

fn refused((count, last): (u64, Option<SocketAddr>)) -> String {
    let at = last.map_or_else(String::new, |a| format!(", the last from {a}"));
    match count {
        0 => String::new(),
        1 => format!("; 1 process was refused for another key or job name{at}"),
        n => format!("; {n} processes were refused for another key or job name{at}"),
    }
}

/// "rank 3", "ranks 1, 3", "ranks 1, 2, ... and 40 more".
fn ranks(list: &[u32]) -> String {
    let named: Vec<String> = list.iter().take(MAX_NAMED).map(u32::to_string).collect();
    let more = match list.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    format!("rank{} {}{more}", if list.len() == 1 { "" } else { "s" }, named.join(", "))
}

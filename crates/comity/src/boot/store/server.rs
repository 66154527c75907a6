//! The store's thread: who has come, who is missed, and what each is told.

use super::{Shared, seconds};
use crate::boot::{
    accept::{Accepted, Acceptor, Listener},
    hello::{Channel, Hello, STORE, Secret, Verdict},
    stream::{Conn, Stream, frame},
    wire::{Facts, FromStore, ToStore},
};
use crate::sys::poll_until;
use rustix::event::{PollFd, PollFlags};
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

/// How long an authenticated rank may take to its first message: it looks up its own addresses in between.
const FIRST_WORD: Duration = Duration::from_secs(30);
/// How long to try to tell a rank that it is refused.
const REFUSAL: Duration = Duration::from_secs(2);
/// How long to go on sending what is due when the store is dropped.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// How long to wait then for ranks that have not come yet, to tell them why the others did not meet.
const STRAGGLERS: Duration = Duration::from_millis(100);
/// Connections that said no word yet.
const MAX_FRESH: usize = 1024;
/// How a rank's own words are passed on.
const GAVE_UP: &str = "gave up: ";
/// Ranks named one by one in an error.
const MAX_NAMED: usize = 16;

/// A rank that has joined.
#[derive(Debug)]
struct Member {
    conn: Conn,
    facts: Facts,
}

/// The ranks that have come so far.
#[derive(Debug, Default)]
struct Round {
    members: BTreeMap<u32, Member>,
    /// When the least patient of them gives up, and how long that one or the store was to wait.
    until: Option<(Instant, Duration)>,
}

#[derive(Debug)]
pub(super) struct Server {
    shared: Arc<Shared>,
    acceptor: Acceptor,
    size: u32,
    join: Duration,
    fresh: Vec<(Conn, u32, Instant)>,
    round: Round,
    /// Groups that have met and now connect among themselves.
    connecting: Vec<BTreeMap<u32, Member>>,
    /// Ranks that the last group waited for in vain, and what became of it.
    missed: HashMap<u32, (String, Instant)>,
    /// Connections that only have something left to be sent.
    leaving: Vec<(Conn, Instant)>,
}

impl Server {
    pub(super) fn new(
        shared: Arc<Shared>,
        listener: Listener,
        secret: Secret,
        size: u32,
        join: Duration,
    ) -> Self {
        Self {
            shared,
            acceptor: Acceptor::new(vec![listener], secret),
            size,
            join,
            fresh: Vec::new(),
            round: Round::default(),
            connecting: Vec::new(),
            missed: HashMap::new(),
            leaving: Vec::new(),
        }
    }

    pub(super) fn serve(mut self) {
        while !self.shared.stop.load(Ordering::Acquire) {
            self.wait(None);
            self.shared.bell.hush();
            self.accept();
            self.hear_fresh();
            self.hear_members();
            self.hear_connecting();
            self.miss_the_gone();
            self.keep_time();
            self.flush();
        }
        self.finish();
    }

    fn wait(&self, at_most: Option<Instant>) {
        let bell = self.shared.bell.fd();
        let mut fds = vec![PollFd::from_borrowed_fd(bell, PollFlags::IN)];
        let mut until = self.acceptor.interest(&mut fds).into_iter().chain(at_most).min();
        let members = self.round.members.values().chain(self.connecting.iter().flat_map(|m| m.values()));
        let conns = self.fresh.iter().map(|f| &f.0).chain(members.map(|m| &m.conn));
        for conn in conns {
            let write = if conn.is_pending() { PollFlags::OUT } else { PollFlags::empty() };
            fds.push(PollFd::new(conn.stream(), PollFlags::IN | write));
        }
        fds.extend(self.leaving.iter().map(|(c, _)| PollFd::new(c.stream(), PollFlags::OUT)));
        let times = self.fresh.iter().map(|f| f.2).chain(self.leaving.iter().map(|l| l.1));
        until = until.into_iter().chain(times).chain(self.round.until.map(|u| u.0)).min();
        // The descriptors are ours and open; if the system still refuses, do not spin.
        if poll_until(&mut fds, until).is_err() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn accept(&mut self) {
        let (size, room) = (self.size, self.fresh.len() < MAX_FRESH);
        let accepted = self.acceptor.step(&mut |hello: &Hello, _: &Stream| {
            if hello.channel != Channel::Join || hello.to != STORE {
                Verdict::No("this is the store, not a rank".into())
            } else if hello.from >= size {
                Verdict::No(format!(
                    "rank {} is not in this job of {size} ranks (0 to {})",
                    hello.from,
                    size - 1
                ))
            } else if room {
                Verdict::Yes
            } else {
                Verdict::Busy
            }
        });
        let until = Instant::now() + FIRST_WORD;
        self.fresh.extend(
            accepted
                .into_iter()
                .map(|Accepted { stream, hello, seals }| (Conn::new(stream, seals), hello.from, until)),
        );
    }

    fn hear_fresh(&mut self) {
        let now = Instant::now();
        for (mut conn, from, until) in std::mem::take(&mut self.fresh) {
            let open = conn.fill();
            match conn.next().map(|m| m.map(|m| ToStore::decode(&m))) {
                Ok(Some(Ok(ToStore::Join { rank, size, patience, facts }))) if rank == from => {
                    self.join(conn, rank, size, Duration::from_millis(patience), facts);
                }
                // It came to say that it will not come.
                Ok(Some(Ok(ToStore::Failed { words }))) => {
                    self.refuse_round(&format!("rank {from} cannot join: {words}"), Some(from));
                }
                Ok(None) if open && now < until => self.fresh.push((conn, from, until)),
                _ => {}
            }
        }
    }

    fn join(&mut self, conn: Conn, rank: u32, size: u32, patience: Duration, facts: Facts) {
        if size != self.size {
            let words = format!(
                "rank {rank} expects {size} ranks, the store expects {}; every rank needs the same size (COMITY_SIZE)",
                self.size
            );
            return self.refuse(conn, &words);
        }
        if let Some((words, until)) = self.missed.remove(&rank)
            && Instant::now() < until
        {
            return self.refuse(conn, &words);
        }
        if let Some(first) = self.round.members.get(&rank) {
            let words = format!(
                "rank {rank} has joined already ({}); every process needs a rank of its own (COMITY_RANK)",
                whereabouts(&first.facts)
            );
            return self.refuse(conn, &words);
        }
        let now = Instant::now();
        let limits = [patience, self.join].map(|l| (now + l.min(Duration::from_secs(1 << 30)), l));
        // The store's own clock starts with the first rank; a rank's with itself.
        let own = if self.round.members.is_empty() { &limits[..] } else { &limits[..1] };
        self.round.until = own.iter().copied().chain(self.round.until).min_by_key(|l| l.0);
        self.round.members.insert(rank, Member { conn, facts });
        if self.round.members.len() == self.size as usize {
            self.meet();
        }
    }

    /// All are there.
    fn meet(&mut self) {
        self.missed.clear();
        let mut members = std::mem::take(&mut self.round).members;
        let mut world = [0; 8];
        if let Err(e) = getrandom::fill(&mut world) {
            self.round.members = members;
            return self.refuse_round(&format!("the store has no random numbers: {e}"), None);
        }
        let world = u64::from_be_bytes(world);
        let mut table = frame(&FromStore::Welcome { world, size: self.size }.encode());
        for (rank, m) in &members {
            table.extend(frame(&FromStore::Entry { rank: *rank, facts: m.facts.clone() }.encode()));
        }
        let table: Arc<[u8]> = table.into();
        for m in members.values_mut() {
            // One that is gone is found so when it is next read.
            let _ = m.conn.send_frames(Arc::clone(&table));
        }
        self.connecting.push(members);
    }

    /// Ranks that wait for the others say nothing; they can only end.
    fn hear_members(&mut self) {
        let mut ended = None;
        for (rank, m) in &mut self.round.members {
            let open = m.conn.fill();
            let words = match m.conn.next().map(|m| m.map(|m| ToStore::decode(&m))) {
                Ok(None) if open => continue,
                Ok(Some(Ok(ToStore::Failed { words }))) => format!("{GAVE_UP}{words}"),
                Ok(None) => "ended before all ranks had joined".into(),
                _ => "broke the protocol".into(),
            };
            if !words.starts_with(GAVE_UP) {
                self.shared.hold_to_blame(*rank);
            }
            ended = Some((*rank, format!("rank {rank} ({}) {words}", whereabouts(&m.facts))));
            break;
        }
        if let Some((rank, words)) = ended {
            self.refuse_round(&words, Some(rank));
        }
    }

    fn hear_connecting(&mut self) {
        for mut members in std::mem::take(&mut self.connecting) {
            let mut failed = None;
            members.retain(|rank, m| {
                let open = m.conn.fill();
                let words = match m.conn.next().map(|m| m.map(|m| ToStore::decode(&m))) {
                    Ok(None) if open => return true,
                    Ok(Some(Ok(ToStore::Ready))) => return false,
                    Ok(Some(Ok(ToStore::Failed { words }))) => format!("{GAVE_UP}{words}"),
                    _ => "ended while the ranks were connecting".into(),
                };
                let gave_up = words.starts_with(GAVE_UP);
                if !gave_up {
                    self.shared.hold_to_blame(*rank);
                }
                // Those that gave up did so on account of one that ended, if there is one.
                if failed.is_none() || !gave_up {
                    failed = Some(format!("rank {rank} ({}) {words}", whereabouts(&m.facts)));
                }
                false
            });
            if let Some(words) = failed {
                for (_, m) in members {
                    self.refuse(m.conn, &words);
                }
            } else if !members.is_empty() {
                self.connecting.push(members);
            }
        }
    }

    /// Nobody need wait for a rank that is known to have ended. One that joined before is missed by its connection.
    fn miss_the_gone(&mut self) {
        if self.round.members.is_empty() {
            return;
        }
        let gone = self.shared.gone().iter().find(|(r, _)| !self.round.members.contains_key(r)).cloned();
        if let Some((rank, how)) = gone {
            self.shared.hold_to_blame(rank);
            self.refuse_round(&format!("rank {rank} {how} before it had joined"), Some(rank));
        }
    }

    fn keep_time(&mut self) {
        let Some((_, limit)) = self.round.until.filter(|u| Instant::now() >= u.0) else { return };
        let missing: Vec<u32> = (0..self.size).filter(|r| !self.round.members.contains_key(r)).collect();
        let words = format!(
            "only {} of {} ranks joined within {}: missing {} (never connected)",
            self.round.members.len(),
            self.size,
            seconds(limit),
            ranks(&missing)
        );
        self.refuse_round(&words, None);
    }

    /// The group does not come about; tell those who came, and those who have not yet when they do.
    fn refuse_round(&mut self, words: &str, except: Option<u32>) {
        let round = std::mem::take(&mut self.round);
        let until = Instant::now() + self.join;
        self.missed = (0..self.size)
            .filter(|r| !round.members.contains_key(r) && Some(*r) != except)
            .map(|r| (r, (format!("rank {r} came too late: {words}"), until)))
            .collect();
        for (rank, m) in round.members {
            if Some(rank) != except {
                self.refuse(m.conn, words);
            }
        }
    }

    fn refuse(&mut self, mut conn: Conn, words: &str) {
        if conn.send(&FromStore::Refused { words: words.into() }.encode()).is_ok() && conn.is_pending() {
            self.leaving.push((conn, Instant::now() + REFUSAL));
        }
    }

    fn flush(&mut self) {
        let now = Instant::now();
        let members = self.connecting.iter_mut().flat_map(|m| m.values_mut());
        for m in members.filter(|m| m.conn.is_pending()) {
            // A failure shows when it is next read.
            let _ = m.conn.flush();
        }
        self.leaving.retain_mut(|(conn, until)| conn.flush().is_ok() && conn.is_pending() && now < *until);
    }

    /// Whether a rank may still come that is to hear why the others did not meet.
    fn awaits_stragglers(&self) -> bool {
        let (now, gone) = (Instant::now(), self.shared.gone());
        self.missed.iter().any(|(rank, (_, until))| now < *until && gone.iter().all(|(r, _)| r != rank))
    }

    /// Send what is due, then end.
    fn finish(&mut self) {
        let stragglers = Instant::now() + STRAGGLERS;
        while Instant::now() < stragglers && self.awaits_stragglers() {
            self.wait(Some(stragglers));
            self.shared.bell.hush();
            self.accept();
            self.hear_fresh();
            self.hear_members();
            self.hear_connecting();
            self.flush();
        }
        let until = Instant::now() + LAST_WORDS;
        self.leaving.extend(
            std::mem::take(&mut self.connecting)
                .into_iter()
                .flat_map(BTreeMap::into_values)
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

fn whereabouts(f: &Facts) -> String {
    format!("host {}, pid {}", f.host, f.pid)
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

//! A process's table of the others: connections, descriptors of processes, and the statuses of groups.
//!
//! It carries out what [`Membership`] decides. Changed only under the lock of [`ControlPlane`](super::running::ControlPlane), by its thread
//! and by those that call it.

use super::{
    CONTROL_THREAD,
    note::{ControlNote, Encoding},
    reform::Reforms,
};
use crate::{
    ErrorKind, JoinCause,
    channel::{Channel, Conn, Sealing, Stream, frame},
    rendezvous::StoreClient,
    status::{Failure, GroupStatus, Header, Reached},
    sys::{least_round_trip, wants_core},
};
use comity_membership::{Action, DIED, Heard, Membership, Message, Pace, Word};
use socket2::{SockRef, TcpKeepalive};
use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    io,
    net::SocketAddr,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::{Duration, Instant},
};

/// Cause of death of a peer that lets notes pile up.
const FULL: &str =
    "does not take what is said to it: more waits for it on its control connection than is kept";

/// Pause before another try to end a job whose groups are just being made.
const RETRY: Duration = Duration::from_millis(20);

/// Number of processes of a large job that are watched by a pidfd beside their connection: the nearest of this host.
const NEAREST: usize = 4;

/// An authenticated connection of a link.
#[derive(Debug)]
pub struct Arrival {
    pub from: usize,
    pub channel: Channel,
    pub stream: Stream,
    pub seals: Sealing,
    pub group_id: u64,
    pub until: Instant,
}

/// Descriptors of another process that the control thread waits on.
#[derive(Debug)]
pub(super) struct WatchedPeer {
    pub(super) rank: usize,
    pub(super) stream: Arc<Stream>,
    /// There is something to send.
    pub(super) pending: bool,
    /// Readable when the process has ended.
    pub(super) process: Option<Arc<OwnedFd>>,
}

/// Table of the other ranks: each one's control connection, its process descriptor, the groups that both are in.
#[derive(Debug)]
pub(super) struct ConnectionTable {
    me: usize,
    /// Number of the world, which no other has.
    pub(super) world: u64,
    membership: Membership<Failure>,
    conns: Vec<Option<ControlConnection>>,
    /// Readable when the process has ended; where the system can tell.
    processes: Vec<Option<Arc<OwnedFd>>>,
    statuses: HashMap<u64, Arc<GroupStatus>>,
    pub(super) parked: Vec<Arrival>,
    /// The launcher's store, which may say that the job cannot go on.
    pub(super) store: Option<StoreClient>,
    /// The rank because of which the store ends the job, and why; until there is a group to end.
    pub(super) condemned: Option<(usize, String)>,
    /// Members that want this rank to connect to them: group and rank in it.
    pub(super) wanted: Vec<(u64, usize)>,
    /// Agreements on groups that follow others.
    pub(super) reforms: Reforms,
    /// Work for the control thread that followed from what this thread or another decided.
    pub(super) rest: Rest,
    /// In a large job: what goes out to each at the end of this turn.
    outgoing: BTreeMap<usize, Vec<Vec<u8>>>,
    /// Progress of the engines of groups that are over.
    progress: u64,
    /// The process leaves; nothing is sent after this.
    pub(super) stop: Option<Instant>,
    /// Round trip to every other rank, in place of the system's word: for tests.
    pub(super) trip_for_test: Option<Duration>,
}

impl ConnectionTable {
    pub(super) fn new((me, size): (usize, usize), world: u64, silence: Pace, sparse: bool) -> Self {
        let membership = if sparse { Membership::sparse } else { Membership::new };
        Self {
            me,
            world,
            membership: membership(me, size, silence),
            conns: (0..size).map(|_| None).collect(),
            processes: (0..size).map(|_| None).collect(),
            statuses: HashMap::new(),
            parked: Vec::new(),
            store: None,
            condemned: None,
            wanted: Vec::new(),
            reforms: Reforms::default(),
            rest: Rest::default(),
            outgoing: BTreeMap::new(),
            progress: 0,
            stop: None,
            trip_for_test: None,
        }
    }

    /// Returns the shortest round trip that the system has seen on the connection with a rank; none within a host.
    pub(super) fn round_trip(&self, rank: usize) -> Option<Duration> {
        if self.trip_for_test.is_some() {
            return self.trip_for_test;
        }
        match &**self.conns.get(rank)?.as_ref()?.conn.stream() {
            Stream::Tcp(socket) => least_round_trip(socket.as_fd()),
            Stream::Unix(_) => None,
        }
    }

    pub(super) fn rank(&self) -> usize {
        self.me
    }

    /// Returns true if not all ranks are connected to each other.
    pub(super) fn is_sparse(&self) -> bool {
        self.membership.is_sparse()
    }

    pub(super) fn membership(&self) -> &Membership<Failure> {
        &self.membership
    }

    /// Has the membership change, and does what follows.
    pub(super) fn decide(&mut self, change: impl FnOnce(&mut Membership<Failure>)) {
        change(&mut self.membership);
        self.carry_out();
    }

    /// The call in which a rank waits for this one: in that group, else in any other. Also in one that has failed: its limit may
    /// have come first.
    pub(super) fn waits(&self, group_id: u64, rank: usize) -> Option<(Header, bool)> {
        let who = *self.membership.members(group_id)?.get(rank)?;
        let told = |group_id: u64| {
            let at = self.membership.members(group_id)?.iter().position(|m| *m == who)?;
            self.statuses.get(&group_id)?.ledger().told(at)
        };
        let elsewhere = || self.statuses.keys().find_map(|c| told(*c)).map(|call| (call, true));
        told(group_id).map(|call| (call, false)).or_else(elsewhere)
    }

    /// The groups that are open here, by group id: its status, which of its ranks this one is, and how many there are.
    pub(super) fn open(&self) -> Vec<(u64, Arc<GroupStatus>, usize, usize)> {
        let place = |group_id: u64| {
            let members = self.membership.members(group_id)?;
            Some((members.iter().position(|m| *m == self.me)?, members.len()))
        };
        let open = self.statuses.iter().filter_map(|(group_id, status)| {
            let (mine, size) = place(*group_id)?;
            Some((*group_id, Arc::clone(status), mine, size))
        });
        open.collect()
    }

    /// Ask ranks of a group how far they have come.
    pub(super) fn census(&mut self, group_id: u64, at: u64, ranks: &[usize]) {
        let digest = self.statuses.get(&group_id).and_then(|w| w.ledger().digest(at).1);
        let digest = digest.unwrap_or_default();
        self.decide(|m| m.say(ranks, ControlNote::Census { group_id, at, digest }));
    }

    /// Drop every connection and every group.
    pub(super) fn clear(&mut self) {
        self.conns.clear();
        self.processes.clear();
        self.statuses.clear();
        self.parked.clear();
    }

    /// Begin to watch the members of a group. False if it is open already.
    pub(super) fn enter(
        &mut self,
        group_id: u64,
        members: &[usize],
        mine: usize,
        status: &Arc<GroupStatus>,
    ) -> bool {
        if self.statuses.contains_key(&group_id) {
            return false;
        }
        self.statuses.insert(group_id, Arc::clone(status));
        let new = self.membership.enter(group_id, members, mine);
        if let Some(failure) = self.reforms.abandoned(group_id, mine) {
            self.membership.abort(group_id, failure);
        }
        self.carry_out();
        new
    }

    /// Forget a group, and tell its members unless it never came to be. False if it is not open.
    pub(super) fn leave(&mut self, group_id: u64, tell: bool) -> bool {
        let open = self.membership.leave(group_id, tell);
        self.carry_out();
        if let Some(status) = self.statuses.remove(&group_id) {
            self.progress += status.progress();
        }
        self.parked.retain(|a| a.group_id != group_id);
        self.wanted.retain(|(g, _)| *g != group_id);
        open
    }

    /// A group that may follow another is not made, also where it is not open yet.
    pub(super) fn abandon(&mut self, group_id: u64, mine: usize) {
        let failure = self.reforms.abandon(group_id, mine);
        self.membership.abort(group_id, failure);
    }

    /// Fail every group that has `rank`. False if none is open.
    pub(super) fn condemn(&mut self, rank: usize, cause: &str) -> bool {
        let failures: Vec<(u64, Failure)> = self
            .statuses
            .keys()
            .filter_map(|group_id| {
                let members = self.membership.members(*group_id)?;
                let at = |who| members.iter().position(|m| *m == who);
                Some((*group_id, Failure::lost(at(rank)?, at(self.me)?, cause.to_owned())))
            })
            .collect();
        let any = !failures.is_empty();
        self.decide(|m| failures.into_iter().for_each(|(group_id, failure)| m.abort(group_id, failure)));
        any
    }

    /// When there is something to do next, though nobody says a word.
    pub(super) fn due(&self, begun: bool) -> Option<Instant> {
        let parked = self.parked.iter().map(|a| a.until).min();
        let silence = if self.stop.is_none() && begun { self.membership.next() } else { None };
        let retry = self.condemned.as_ref().map(|_| Instant::now() + RETRY);
        let ends = self.conns.iter().flatten().filter_map(|c| c.ends);
        let full = self.conns.iter().flatten().any(|c| c.is_full).then(Instant::now);
        let reforms = self.reforms.next();
        parked.into_iter().chain(reforms).chain(silence).chain(retry).chain(ends).chain(full).min()
    }

    /// Beat, and end what the launcher's store says has to end, if it said something.
    pub(super) fn speak(&mut self, said: bool, begun: bool) {
        if said {
            self.hear_store();
        }
        if self.stop.is_none() && begun {
            self.beat(Instant::now());
            self.carry_out_sentence();
        }
    }

    fn hear_store(&mut self) {
        let Some(store) = &mut self.store else { return };
        let heard = store.hear();
        let votes = store.take_votes();
        self.reforms.miss_joiners(store);
        votes.into_iter().for_each(|(group_id, vote)| self.hear_vote(group_id, vote));
        self.carry_out();
        match heard {
            Ok(true) => return,
            Ok(false) => {}
            Err(e) => {
                let claimed = matches!(e.kind(), ErrorKind::Join(why) if why.cause == JoinCause::Claimed);
                self.condemned = e.ranks().first().filter(|_| claimed).map(|rank| (*rank, e.to_string()));
            }
        }
        self.store = None;
        self.lose_store_in_reforms();
        self.carry_out();
    }

    /// End the groups of a job that cannot go on, as soon as it has some.
    fn carry_out_sentence(&mut self) {
        let Some((rank, words)) = self.condemned.take() else { return };
        if !self.condemn(rank, &format!("cannot go on: {words}")) {
            self.condemned = Some((rank, words));
        }
    }

    pub(super) fn is_pending(&self) -> bool {
        self.conns.iter().flatten().any(|c| c.conn.is_pending())
    }

    pub(super) fn live(&self) -> Vec<WatchedPeer> {
        let conns = self.conns.iter().zip(&self.processes).enumerate();
        let mut live = Vec::new();
        for (rank, (conn, process)) in conns {
            // One that has ended would be readable for ever.
            let Some(conn) = conn.as_ref().filter(|c| c.ends.is_none()).map(|c| &c.conn) else { continue };
            let stream = Arc::clone(conn.stream());
            let pending = conn.is_pending();
            live.push(WatchedPeer { rank, stream, pending, process: process.clone() });
        }
        live
    }

    /// Read what `ranks` say; those with a true have ended.
    pub(super) fn hear(&mut self, ranks: &[(usize, bool)], now: Instant) {
        let mut heard = Vec::new();
        let mut told_lost = Vec::new();
        let ends = |c: &ControlConnection| c.is_full || c.ends.is_some_and(|at| now >= at);
        let due = self.conns.iter().enumerate().filter(|(_, c)| c.as_ref().is_some_and(ends));
        let due = due.map(|(rank, _)| (rank, false));
        let mut all: VecDeque<(usize, bool)> = ranks.iter().copied().chain(due).collect();
        while let Some((rank, ended)) = all.pop_front() {
            let Some(place) = self.conns.get_mut(rank) else { continue };
            let Some(conn) = place else { continue };
            if self.stop.is_some() {
                // No blame any more, and no reason to look again at once.
                conn.is_full = false;
                if conn.conn.flush().is_err() {
                    *place = None;
                }
                continue;
            }
            if std::mem::take(&mut conn.is_full) {
                heard.push((rank, Heard::End(FULL)));
                continue;
            }
            // What it said before it ended is there to be read.
            let open = conn.conn.fill() && conn.conn.flush().is_ok() && !ended;
            loop {
                match conn.conn.next_message().map(|m| m.map(|m| ControlNote::decode(&m))) {
                    Ok(Some(Ok(note))) => {
                        told_lost.extend(lost(&note));
                        heard.push((rank, Heard::Note(note)));
                    }
                    Ok(None) => {
                        if !open && conn.end(now) {
                            heard.push((rank, Heard::End(DIED)));
                        }
                        break;
                    }
                    Ok(Some(Err(_))) => {
                        heard.push((rank, Heard::End("broke the protocol on its control connection")));
                        break;
                    }
                    Err(_) => {
                        let cause = "cannot be understood on its control connection: what came was damaged on the way, or is no message of this version";
                        heard.push((rank, Heard::End(cause)));
                        break;
                    }
                }
            }
            let dead = told_lost.drain(..).filter(|rank| self.has_ended(*rank));
            all.extend(dead.map(|rank| (rank, true)));
        }
        self.decide(|m| m.hear(heard, now));
    }

    /// Give up ranks that have been silent for too long, and beat when it is time ([`Membership::tick`]).
    pub(super) fn tick(&mut self, heard_until: Instant, now: Instant) {
        let progress = self.progress();
        self.decide(|m| m.tick(heard_until, now, progress));
    }

    /// Beat when it is time ([`Membership::beat`]).
    pub(super) fn beat(&mut self, now: Instant) {
        let progress = self.progress();
        self.decide(|m| m.beat(now, progress));
    }

    fn progress(&self) -> u64 {
        self.progress + self.statuses.values().map(|w| w.progress()).sum::<u64>()
    }

    /// Close every connection without a word, as the system does when a process is killed.
    pub(super) fn die(&mut self, now: Instant) {
        for conn in self.conns.iter_mut().filter_map(Option::take) {
            match &**conn.conn.stream() {
                Stream::Tcp(s) => s.shutdown(std::net::Shutdown::Both).unwrap_or_default(),
                Stream::Unix(s) => s.shutdown(std::net::Shutdown::Both).unwrap_or_default(),
            }
        }
        self.stop = Some(now);
    }

    /// Returns true if a rank that has connected is to be watched by a descriptor. In a large job it takes the place of one that is farther away.
    fn is_watched(&mut self, rank: usize, stream: &Stream) -> bool {
        if !self.is_sparse() || !matches!(stream, Stream::Unix(_)) {
            return true;
        }
        let me = self.me;
        let size = self.processes.len();
        let apart = |r: usize| {
            let forth = (r + size - me) % size;
            forth.min(size - forth)
        };
        let watched = || self.processes.iter().enumerate().filter(|(_, p)| p.is_some()).map(|(r, _)| r);
        if watched().count() < NEAREST {
            return true;
        }
        let farthest = watched().max_by_key(|r| apart(*r)).filter(|r| apart(*r) > apart(rank));
        if let Some(place) = farthest.and_then(|r| self.processes.get_mut(r)) {
            *place = None;
        }
        farthest.is_some()
    }

    /// Returns true if the process of a rank that another rank has lost is no more. Its connection may not have ended: a child that it forked keeps
    /// its sockets open. Where it is there, its end is seen from now on.
    pub(super) fn has_ended(&mut self, rank: usize) -> bool {
        let (Some(place @ None), Some(Some(conn))) = (self.processes.get_mut(rank), self.conns.get(rank))
        else {
            return false;
        };
        match process_of(conn.conn.stream()) {
            Some(Process::Is(process)) => {
                *place = Some(Arc::new(process));
                false
            }
            Some(Process::HasEnded) => true,
            None => false,
        }
    }

    pub(super) fn attach(
        &mut self,
        rank: usize,
        (stream, seals): (Stream, Sealing),
        (origin, relays): (Origin, Vec<usize>),
        now: Instant,
    ) {
        if !self.membership.attach(rank, now) {
            return;
        }
        self.membership.pass_through(rank, relays);
        if let Stream::Tcp(tcp) = &stream
            && let (Ok(there), Ok(here)) = (tcp.peer_addr(), tcp.local_addr())
        {
            self.membership.leads_over(rank, format!(" over TCP from {there} to rank {} at {here}", self.me));
        }
        if let Err(e) = keep_alive(&stream, self.membership.limit()) {
            // The beats find what this would have found.
            tracing::debug!(rank, %e, "no keepalive on a control connection");
        }
        // A descriptor each would be as many as there are connections. Who hears of an end tells the others.
        if self.is_watched(rank, &stream)
            && let Some(place) = self.processes.get_mut(rank)
            // Of one that has ended, what it said before is read first.
            && let Some(Process::Is(process)) = process_of(&stream)
        {
            *place = Some(Arc::new(process));
        }
        if let Some(place) = self.conns.get_mut(rank) {
            *place = Some(ControlConnection::new(stream, seals, origin));
        }
        self.carry_out();
    }
}

fn lost(note: &ControlNote) -> Option<usize> {
    match note {
        ControlNote::Spread { note, .. } => match **note {
            ControlNote::Lost { rank, .. } => Some(rank),
            _ => None,
        },
        _ => None,
    }
}

/// Actions that remain to be done outside the lock, by the control thread.
#[derive(Debug, Default)]
pub(super) struct Rest {
    /// Whoever waits for the processes to meet should look again.
    pub news: bool,
    /// Messages for the log, whose writer may take its time.
    pub words: Vec<Word>,
    /// Ranks to ask whether they live, with the addresses at which they listen.
    pub(super) asks: Vec<(usize, SocketAddr)>,
    /// Ranks that need not be asked any more.
    pub ended: Vec<usize>,
    /// Groups that others want links in, or have made connections for.
    pub links: Vec<u64>,
    /// To whom control connections are to be made.
    pub dials: Vec<usize>,
}

// Carrying out what was decided: notes are sent, connections closed, statuses set.
impl ConnectionTable {
    /// Do what was decided, and what follows from it.
    pub(super) fn carry_out(&mut self) {
        loop {
            let actions = self.membership.actions();
            if actions.is_empty() {
                // A neighbour's notes of one turn go together: news of many ranks come at once.
                for (rank, notes) in std::mem::take(&mut self.outgoing) {
                    self.send_to(rank, &notes);
                }
                return;
            }
            actions.into_iter().for_each(|action| self.perform(action));
        }
    }

    fn send_to(&mut self, rank: usize, notes: &[Vec<u8>]) {
        if let Some(Some(conn)) = self.conns.get_mut(rank) {
            conn.send_all(notes);
        }
    }

    /// To a group of this process, if it is still open.
    fn with_status<T>(&self, group_id: u64, tell: impl FnOnce(&GroupStatus) -> T) {
        if let Some(status) = self.statuses.get(&group_id) {
            tell(status);
        }
    }

    fn forget(&mut self, rank: usize) {
        if let Some(place) = self.conns.get_mut(rank) {
            *place = None;
        }
        if let Some(place) = self.processes.get_mut(rank) {
            *place = None;
        }
    }

    /// Tell a rank about the group that follows one.
    pub(super) fn tell_of_reform(&mut self, rank: usize, group_id: u64, message: Message) {
        self.membership.tell_of_reform(rank, group_id, message);
    }

    fn perform(&mut self, action: Action<Failure>) {
        match action {
            Action::Tell { to, note } => {
                let note = note.encode();
                for rank in to {
                    if self.is_sparse() {
                        self.outgoing.entry(rank).or_default().push(note.clone());
                    } else {
                        self.send_to(rank, std::slice::from_ref(&note));
                    }
                }
            }
            Action::Beat { progress } => {
                let note = ControlNote::Heartbeat { progress }.encode();
                for conn in self.conns.iter_mut().flatten().filter(|c| !c.conn.is_pending()) {
                    conn.send_all(&[&note]);
                }
            }
            Action::Dial { rank } => self.rest.dials.push(rank),
            Action::Close { rank } => {
                if let Some(notes) = self.outgoing.remove(&rank) {
                    self.send_to(rank, &notes);
                }
                self.rest.ended.push(rank);
                self.forget(rank);
            }
            Action::Fail { group_id, failure } => self.with_status(group_id, |w| w.fail(failure)),
            Action::Said { mine, member, note } => self.hear_member(mine, member, note),
            Action::Suspect { group_id } => self.with_status(group_id, |w| w.suspect()),
            Action::Silence { group_id, silence } => self.with_status(group_id, |w| w.silent(silence)),
            Action::Ask { rank } => self.ask_anew(rank),
            Action::News => {
                self.rest.news = true;
                self.lose_in_reforms();
            }
            Action::Reform { from, group_id, message } => self.hear_reform(from, group_id, message),
            Action::Log(word) => self.rest.words.push(word),
        }
    }

    /// A member says something of a group that is open here.
    fn hear_member(&mut self, mine: usize, member: usize, note: ControlNote) {
        match note {
            ControlNote::Leave { group_id } => self.with_status(group_id, |w| w.leave(member)),
            ControlNote::Entered { group_id } => self.with_status(group_id, |w| w.enter(member)),
            ControlNote::Connect { group_id } => {
                self.wanted.push((group_id, member));
                self.rest.links.push(group_id);
            }
            ControlNote::Reached { group_id, reached } => {
                self.with_status(group_id, |w| w.answered(member, reached));
            }
            ControlNote::Census { group_id, at, digest } => {
                if let Some(status) = self.statuses.get(&group_id) {
                    status.asked(member, at, digest);
                    let reached = self.with_other_groups(group_id, status.reached(at, member));
                    self.membership.say(&[member], ControlNote::Reached { group_id, reached });
                }
            }
            ControlNote::Waits { group_id, call } => {
                let heard = self.statuses.get(&group_id).and_then(|status| status.hear(mine, member, &call));
                if let Some(failure) = heard {
                    self.membership.abort(group_id, failure);
                }
            }
            // The membership acts on these itself.
            ControlNote::Abort { .. }
            | ControlNote::Heartbeat { .. }
            | ControlNote::Goodbye { .. }
            | ControlNote::GivenUp { .. }
            | ControlNote::Reform { .. }
            | ControlNote::Lost { .. }
            | ControlNote::NoWay { .. }
            | ControlNote::Spread { .. }
            | ControlNote::Passed { .. } => {}
        }
    }

    /// Answer of this rank in a group, with what it waits for in others.
    fn with_other_groups(&self, group_id: u64, reached: Reached) -> Reached {
        let Some(members) = self.membership.members(group_id) else { return reached };
        let Some(mine) = members.iter().position(|m| *m == self.me) else { return reached };
        let others = self.statuses.iter().filter(|(id, _)| **id != group_id);
        let others = others.filter_map(|(id, status)| Some((self.membership.members(*id)?, &**status)));
        reached.or_elsewhere(mine, members, others)
    }

    /// Ask a silent process over a new connection. Bytes that stay within the host are not lost, and there the system is asked; and the end that
    /// made the connection asks, for it knows where the other one listens.
    fn ask_anew(&mut self, rank: usize) {
        let Some(Some(conn)) = self.conns.get(rank) else { return };
        if let Stream::Unix(stream) = &**conn.conn.stream() {
            if wants_core(stream, CONTROL_THREAD) {
                self.membership.has_no_turn(rank, Instant::now());
            }
        } else if conn.origin.is_ours
            && let Stream::Tcp(stream) = &**conn.conn.stream()
            && let Ok(at) = stream.peer_addr()
        {
            self.rest.asks.push((rank, at));
        }
    }
}

/// Wait, after a connection that a third rank passes on, for the end of that rank, which explains it.
const PASSED_ON: Duration = Duration::from_millis(300);

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Origin {
    /// This end made it, so it knows where the other one listens.
    pub(super) is_ours: bool,
    /// A third rank passes it on.
    pub(super) is_passed_on: bool,
}

#[derive(Debug)]
pub(super) struct ControlConnection {
    conn: Conn,
    origin: Origin,
    /// The other end has let more pile up than is kept.
    is_full: bool,
    /// It has ended; when that counts.
    ends: Option<Instant>,
}

impl ControlConnection {
    pub(super) fn new(stream: Stream, seals: Sealing, origin: Origin) -> Self {
        Self { conn: Conn::new(stream, seals), origin, is_full: false, ends: None }
    }

    /// The stream has ended. Whether that counts now: the third rank that passed it on may have ended itself.
    fn end(&mut self, now: Instant) -> bool {
        now >= *self.ends.get_or_insert(if self.origin.is_passed_on { now + PASSED_ON } else { now })
    }

    /// Send notes, which go out at once. An end that cannot be reached is found when it is next read.
    fn send_all<N: AsRef<[u8]>>(&mut self, notes: &[N]) {
        let frames: Vec<u8> = notes.iter().flat_map(|note| frame(note.as_ref())).collect();
        let sent = self.conn.send_frames(frames.into());
        self.is_full |= sent.is_err_and(|e| e.kind() == io::ErrorKind::Other);
    }
}

/// Facts about the process at the other end of a connection.
#[derive(Debug)]
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "only Linux has a descriptor of a process"))]
pub(super) enum Process {
    /// Readable when it has ended.
    Is(OwnedFd),
    HasEnded,
}

/// Sign that tells the end of the process at the other end of a connection within this host. A child that it forked keeps its sockets
/// open, and would hide its death.
#[cfg(target_os = "linux")]
pub(super) fn process_of(stream: &Stream) -> Option<Process> {
    use rustix::{
        io::Errno,
        process::{Pid, PidfdFlags, pidfd_open},
    };
    let Stream::Unix(stream) = stream else { return None };
    // One of another namespace of processes cannot be named; an older system cannot tell.
    match pidfd_open(Pid::from_raw(crate::sys::peer_of(stream).ok()?.pid)?, PidfdFlags::empty()) {
        Ok(process) => Some(Process::Is(process)),
        Err(Errno::SRCH) => Some(Process::HasEnded),
        Err(_) => None,
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn process_of(_: &Stream) -> Option<Process> {
    None
}

/// Let the system end a connection whose other host is gone, should the beats not have found it before. Where silence is allowed
/// this is all that finds it.
pub(super) fn keep_alive(stream: &Stream, limit: Option<Duration>) -> io::Result<()> {
    let Stream::Tcp(stream) = stream else { return Ok(()) };
    let second = Duration::from_secs(1);
    let idle = limit.map_or(Duration::from_secs(30), |l| l.max(second));
    let alive = TcpKeepalive::new().with_time(idle).with_interval((idle / 5).max(second)).with_retries(5);
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&alive)?;
    // Above the time in which it carries something again, so as not to decide before the beats do.
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(limit.map(|l| l.saturating_mul(comity_membership::RESENT + 1)))?;
    Ok(())
}

//! State of the others once the processes have met, kept true by the control thread.
//!
//! A control connection per pair of processes carries leave, abort, goodbye and, all the time, beats. Its end without a goodbye is a death,
//! and so is silence. Then every group with that member fails here, and its other members are told. So those who cannot see the death learn
//! of it as fast. The same thread listens for the connections of links and keeps them until their group asks.

use super::{
    connection_table::{Arrival, ConnectionTable, Origin, WatchedPeer},
    note::ControlNote,
    probe::Probes,
};
use crate::{
    Error, LinkKind, Result,
    channel::{Accepted, Acceptor, Channel, Denial, Hello, HelloVerdict, Sealing, Stream},
    rendezvous::{Store, StoreClient, StoreJob},
    status::{Ask, Failure, GroupStatus, Header, conclude, is_untold, untold},
    sync::{lock, lock_soon},
    sys::{self, Waker, poll_until},
    transport::Kinds,
};
use comity_membership::{Fault, Membership, NoConnection, Pace, Presence, Verdict, Word};
use rustix::event::{PollFd, PollFlags};
use std::{
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, Once, OnceLock, Weak,
        atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Time for which a leaving process goes on sending.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Permissions and limits for the other processes.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// To make links of these kinds.
    pub links: Kinds,
    /// TCP traffic is encrypted, and clear traffic is refused.
    pub sealed: bool,
    /// Connections of groups that were not opened are dropped after this.
    pub patience: Duration,
    /// Others are given up after so much silence.
    pub silence: Pace,
    /// Not all pairs have a control connection.
    pub sparse: bool,
}

/// The control connections of this process, and the thread that serves them.
#[derive(Debug)]
pub struct ControlPlane {
    me: usize,
    /// Process that owns these connections.
    pub(super) pid: u32,
    world: u64,
    rules: Rules,
    pub(super) state: Mutex<ConnectionTable>,
    pub(super) waker: Waker,
    /// Rings when a process has connected, gone or died: for the thread that joins. None once it has: a descriptor less.
    news: Mutex<Option<Arc<Waker>>>,
    /// Error number of this process's lack when it last turned a connection away for it; or 0.
    lacked: AtomicI32,
    /// The lack has lasted long.
    starved: AtomicBool,
    /// This rank's first group stands: it beats from now on, and judges who is silent.
    begun: AtomicBool,
    /// Number of rounds in which the control thread has read its connections.
    rounds: AtomicU64,
    pub(super) desk: OnceLock<Weak<dyn LinkDesk>>,
    dialer: OnceLock<Weak<dyn ControlDialer>>,
}

/// Makes control connections that are missing since others have ended. Asked by the control thread, so it does not block.
pub trait ControlDialer: Send + Sync + std::fmt::Debug {
    /// Connect to a rank, then say how it went.
    fn connect(&self, rank: usize);
}

/// Makes links that other ranks want. Asked by the control thread, so it does not block.
pub trait LinkDesk: Send + Sync + std::fmt::Debug {
    /// A member of a group wants a link, or has made a connection for one.
    fn attend(&self, group_id: u64);

    /// The ranks with this address, where it is of another host than that of `rank`: one of them passes on what that one says.
    fn relays(&self, rank: usize, ip: IpAddr) -> Vec<usize>;
}

/// Ends the control thread when dropped, after a goodbye to everyone.
#[derive(Debug)]
pub struct Running {
    control: Arc<ControlPlane>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    pub fn start(
        me: usize,
        size: usize,
        world: u64,
        rules: Rules,
        acceptor: Acceptor,
        probes: Probes,
    ) -> Result<Self> {
        let os_error = |e| Error::os("starting the control thread", e);
        let control = Arc::new(ControlPlane {
            me,
            pid: std::process::id(),
            world,
            rules,
            state: Mutex::new(ConnectionTable::new((me, size), world, rules.silence, rules.sparse)),
            waker: Waker::new().map_err(os_error)?,
            news: Mutex::new(Some(Arc::new(Waker::new().map_err(os_error)?))),
            lacked: AtomicI32::new(0),
            starved: AtomicBool::new(false),
            begun: AtomicBool::new(false),
            rounds: AtomicU64::new(0),
            desk: OnceLock::new(),
            dialer: OnceLock::new(),
        });
        at_exit(&control);
        let shared = Arc::clone(&control);
        let thread = std::thread::Builder::new()
            .name(super::CONTROL_THREAD.into())
            .spawn(move || shared.serve(acceptor, probes))
            .map_err(os_error)?;
        Ok(Self { control, thread: Some(thread) })
    }

    pub fn control(&self) -> &Arc<ControlPlane> {
        &self.control
    }

    /// Note on which host each rank lives, by numbers from 0.
    pub fn live_on(&self, hosts: &[usize]) {
        let me = hosts.get(self.control.me);
        let others = hosts.iter().map(|host| Some(*host).filter(|host| Some(host) != me)).collect();
        self.control.lock().decide(|m| m.live_on(others));
    }

    /// All connections stand: tell the store, and hear what a launcher's may have to say. This process's own, if it runs one.
    pub fn attend(&self, meeting: StoreClient) -> Option<Store> {
        let control: Weak<ControlPlane> = Arc::downgrade(&self.control);
        let (own, launchers) = meeting.ready(control);
        let mut state = self.control.lock();
        state.reforms.has_store = launchers.is_some();
        state.store = launchers;
        drop(state);
        self.control.waker.wake();
        own
    }

    /// Say goodbye and end, within half a second. Words tell why this rank could not join, and who is at fault by them.
    pub fn end(&mut self, words: &str, because_of: &[usize]) {
        let Some(thread) = self.thread.take() else { return };
        let mut state = self.control.lock();
        state.decide(|m| m.end(words, because_of));
        if let Some(store) = state.store.take() {
            store.leave();
        }
        state.stop = Some(Instant::now() + LAST_WORDS);
        drop(state);
        self.control.waker.wake();
        // WAIT(stop): the control thread, which is told to stop
        let _ = thread.join();
        self.control.lock().clear();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end("", &[]);
    }
}

impl StoreJob for ControlPlane {
    fn holds(&self, rank: usize) -> bool {
        matches!(self.lock().membership().presence(rank), Some(Presence::Oneself | Presence::Live))
    }

    fn condemn(&self, rank: usize, cause: &str) -> bool {
        self.change(|table| table.condemn(rank, cause))
    }
}

impl ControlPlane {
    pub(super) fn lock(&self) -> MutexGuard<'_, ConnectionTable> {
        // No code panics while it holds the lock and leaves half a change.
        lock(&self.state)
    }

    /// Changes the table, and has the control thread look.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut ConnectionTable) -> T) -> T {
        let out = change(&mut self.lock());
        self.waker.wake();
        out
    }

    /// Has the membership change, and does what follows; the control thread does the rest.
    fn decide(&self, change: impl FnOnce(&mut Membership<Failure>)) {
        self.change(|table| table.decide(change));
    }

    /// Woken when [`missing`](Self::missing) may have changed.
    pub fn news(&self) -> Option<Arc<Waker>> {
        lock(&self.news).clone()
    }

    /// Nobody waits for news any more.
    pub fn have_met(&self) {
        *lock(&self.news) = None;
    }

    fn ring(&self) {
        if let Some(news) = &*lock(&self.news) {
            news.wake();
        }
    }

    /// This rank's first group stands. Before, a slow host is no reason to take anyone for dead.
    ///
    /// It has beaten when this returns: a process that is stopped right after it has its group may not have run its control thread, and who has
    /// not beaten is judged by nobody.
    pub fn begin(&self) {
        if !self.begun.swap(true, Ordering::AcqRel) {
            self.change(|table| table.speak(false, true));
        }
    }

    pub fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire)
    }

    /// Take over a control connection that this rank has made.
    pub fn attach(&self, rank: usize, stream: Stream, seals: Sealing) {
        let origin = self.origin(rank, &stream, true);
        self.change(|table| table.attach(rank, (stream, seals), origin, Instant::now()));
    }

    /// Returns the origin of a control connection with `rank`, and the ranks that may relay it.
    fn origin(&self, rank: usize, stream: &Stream, is_ours: bool) -> (Origin, Vec<usize>) {
        let Some((at, desk)) = stream.peer_addr().zip(self.desk.get().and_then(Weak::upgrade)) else {
            return (Origin { is_ours, ..Origin::default() }, Vec::new());
        };
        let relays = desk.relays(rank, at.ip());
        (Origin { is_ours, is_passed_on: !relays.is_empty() }, relays)
    }

    /// Returns the ranks that have not connected yet, or the fault of one that never will.
    pub fn missing(&self) -> Result<Vec<usize>, Fault> {
        self.lock().membership().absent()
    }

    /// Error for which this process did not take connections, if so.
    pub fn lacked(&self) -> Option<Error> {
        let code = self.lacked.load(Ordering::Relaxed);
        let why =
            || Error::os("taking the connections of other ranks", std::io::Error::from_raw_os_error(code));
        (code != 0).then(why)
    }

    /// Returns this process's lack, if it has lasted so long that the others will not get in.
    pub fn starved(&self) -> Option<Error> {
        self.lacked().filter(|_| self.starved.load(Ordering::Relaxed))
    }

    /// Returns the fault that others report in a group that this rank has not opened.
    pub fn early_abort(&self) -> Option<Fault> {
        self.lock().membership().early_abort()
    }

    /// Returns the fault of a rank that announced why it could not join.
    pub fn gave_up(&self) -> Option<Fault> {
        self.lock().membership().gave_up()
    }

    /// Begin to watch the members of a group. False if it is open already.
    pub fn enter(&self, group_id: u64, members: &[usize], mine: usize, status: &Arc<GroupStatus>) -> bool {
        self.change(|table| table.enter(group_id, members, mine, status))
    }

    /// The connections that have come for a group.
    pub fn arrivals(&self, group_id: u64) -> Vec<Arrival> {
        let parked = &mut self.lock().parked;
        let (mine, others) = std::mem::take(parked).into_iter().partition(|a| a.group_id == group_id);
        *parked = others;
        mine
    }

    /// Takes the ranks of a group that want this rank to connect to them.
    pub fn wanted(&self, group_id: u64) -> Vec<usize> {
        let wanted = &mut self.lock().wanted;
        let (mine, others): (Vec<_>, _) = std::mem::take(wanted).into_iter().partition(|w| w.0 == group_id);
        *wanted = others;
        mine.into_iter().map(|w| w.1).collect()
    }

    /// From now on `desk` hears who wants links.
    pub fn on_links(&self, desk: Weak<dyn LinkDesk>) {
        let _ = self.desk.set(desk);
    }

    /// Returns true if not all pairs have a control connection.
    pub fn is_sparse(&self) -> bool {
        self.rules.sparse
    }

    /// From now on `dialer` makes control connections that are missing.
    pub fn on_missing(&self, dialer: Weak<dyn ControlDialer>) {
        let _ = self.dialer.set(dialer);
    }

    /// A control connection that was missing could not be made.
    pub fn missed(&self, rank: usize, why: NoConnection) {
        self.decide(|m| m.missed(rank, why, Instant::now()));
    }

    /// Tell ranks of a group something about it.
    pub fn say(&self, ranks: &[usize], note: ControlNote) {
        self.decide(|m| m.say(ranks, note));
    }

    /// Returns the number of rounds in which the control thread has read its connections.
    pub fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Acquire)
    }

    /// Have it do so once more.
    pub fn nudge(&self) {
        self.waker.wake();
    }

    /// Leave a group, and tell its members unless it never came to be.
    pub fn leave(&self, group_id: u64, tell: bool) {
        if self.lock().leave(group_id, tell) {
            // What had no room goes out from there.
            self.waker.wake();
        }
    }

    /// Ask ranks of a group how far they have come.
    pub fn census(&self, group_id: u64, at: u64, ranks: &[usize]) {
        self.change(|table| table.census(group_id, at, ranks));
    }

    /// Returns the call in which a rank of a group waits for this one; see [`World::waits`](crate::status::World::waits).
    pub fn waits(&self, group_id: u64, rank: usize) -> Option<(Header, bool)> {
        self.lock().waits(group_id, rank)
    }

    /// Tell the members of a group that it has failed.
    pub fn abort(&self, group_id: u64, failure: &Failure) {
        self.decide(|m| m.abort(group_id, failure.clone()));
    }

    /// Returns the shortest round trip that the system has seen on the control connection with a rank.
    pub(crate) fn round_trip(&self, rank: usize) -> Option<Duration> {
        self.lock().round_trip(rank)
    }

    /// Have every control connection show this round trip.
    pub(crate) fn set_round_trip_for_test(&self, trip: Duration) {
        self.lock().trip_for_test = Some(trip);
    }

    /// Returns true if there is a control connection to a rank.
    pub fn is_connected_for_test(&self, rank: usize) -> bool {
        self.lock().membership().is_connected(rank)
    }

    /// Close every connection without a word, as the system does when a process is killed.
    pub fn die(&self) {
        self.change(|table| table.die(Instant::now()));
    }
}

/// Connections kept for groups that this rank has not opened yet.
const MAX_PARKED: usize = 4096;
/// The longest rest while ranks agree on a group.
const REFORM_REST: Duration = Duration::from_millis(2);
/// Interval of the checks meanwhile for outstanding bytes.
const LEAVE_POLL: Duration = Duration::from_millis(2);

// The control thread: it waits, reads what the others say, and does what follows; and it judges who may connect.
impl ControlPlane {
    // WAIT(stop): the control thread: woken for each event, and when it is to stop
    fn serve(&self, mut acceptor: Acceptor, mut probes: Probes) {
        let mut looked = Instant::now();
        loop {
            let begun = self.has_begun();
            if self.rest(&mut acceptor, &mut probes, looked) {
                continue;
            }
            let state = self.lock();
            let lines = state.live();
            let stop = state.stop;
            if stop.is_some_and(|s| self.has_said_all(s, &lines)) {
                return;
            }
            let store = state.store.as_ref().map(|s| Arc::clone(s.conn().stream()));
            let due = state.due(begun);
            drop(state);

            // Whatever has come by now is found below, so nobody is thought silent because this thread was kept waiting.
            let heard_until = Instant::now();
            // The system does not say when the last word has arrived.
            let look = stop.map(|_| heard_until + LEAVE_POLL);
            let until = look.into_iter().chain(due).min();
            let (ready, said) = self.wait(&acceptor, &probes, &lines, store.as_deref(), until);
            looked = Instant::now();
            self.waker.drain();
            // Before the handshakes of those who ask: a process that was stopped has many waiting, and others for its word.
            self.lock().speak(said, begun);
            let accepted = self.accept(&mut acceptor);
            let alive = probes.step();
            self.judge_now(accepted, alive, &ready, heard_until, begun);
            self.finish(&mut probes);
        }
    }

    /// Returns true if a process that leaves, and was to have ended by `until`, has nothing left to wait for.
    fn has_said_all(&self, until: Instant, lines: &[WatchedPeer]) -> bool {
        let is_late = |l: &WatchedPeer| l.pending || !l.stream.has_arrived();
        Instant::now() >= until || !lines.iter().any(is_late)
    }

    /// Leave what others say unread for a while after the last look. True if it was not long enough.
    ///
    /// Notes come one by one. Each would wake this thread, which looks at all connections then. New connections are served meanwhile.
    // WAIT(until): a rest of 100 ms at most
    fn rest(&self, acceptor: &mut Acceptor, probes: &mut Probes, looked: Instant) -> bool {
        let rested = looked + self.rules.silence.rest;
        if Instant::now() >= rested {
            return false;
        }
        let state = self.lock();
        // An agreement takes several rounds, each of which would wait for it.
        let agrees = state.reforms.next().is_some();
        let rested = if agrees { rested.min(looked + REFORM_REST) } else { rested };
        if Instant::now() >= rested {
            return false;
        }
        let due = if self.has_begun() { state.membership().next() } else { None };
        let parked = state.parked.iter().map(|a| a.until).min();
        // What had no room is to go out as soon as there is some.
        if state.stop.is_some() || state.is_pending() {
            return false;
        }
        drop(state);
        let until = due.into_iter().chain(parked).chain([rested]).min();
        self.wait(acceptor, probes, &[], None, until);
        if until.is_some_and(|until| Instant::now() >= until) {
            return false;
        }
        self.waker.drain();
        let accepted = self.accept(acceptor);
        let alive = probes.step();
        self.take_in(&mut self.lock(), accepted, alive);
        self.finish(probes);
        true
    }

    /// Take in who has connected, and who has shown that it lives.
    fn take_in(&self, state: &mut ConnectionTable, accepted: Vec<Accepted>, alive: Vec<usize>) {
        accepted.into_iter().for_each(|a| self.receive(state, a));
        alive.into_iter().for_each(|one| state.decide(|m| m.lives(one, Instant::now())));
    }

    /// Let in who has shown the key.
    fn accept(&self, acceptor: &mut Acceptor) -> Vec<Accepted> {
        // Others hear nothing of this rank while it does sums for newcomers.
        let due = self.lock().membership().next().filter(|_| self.has_begun());
        let accepted = acceptor.step_until(due, &mut |hello, stream| self.judge(hello, stream));
        if let Some(why) = acceptor.lacked() {
            self.lacked.store(why.raw_os_error(), Ordering::Relaxed);
            if acceptor.is_starved() && !self.has_begun() {
                self.starved.store(true, Ordering::Relaxed);
                self.ring();
            }
        }
        accepted
    }

    /// Do what is not done under the lock.
    fn finish(&self, probes: &mut Probes) {
        let rest = std::mem::take(&mut self.lock().rest);
        if rest.news {
            self.ring();
        }
        rest.words.iter().for_each(log);
        self.rounds.fetch_add(1, Ordering::AcqRel);
        if let Some(desk) = self.desk.get().and_then(Weak::upgrade) {
            rest.links.into_iter().for_each(|group_id| desk.attend(group_id));
        }
        if let Some(dialer) = self.dialer.get().and_then(Weak::upgrade) {
            rest.dials.into_iter().for_each(|rank| dialer.connect(rank));
        }
        rest.ended.into_iter().for_each(|rank| probes.forget(rank));
        rest.asks.into_iter().for_each(|(rank, at)| probes.ask(rank, at));
    }

    /// Take in what came, then see who is silent.
    fn judge_now(
        &self,
        accepted: Vec<Accepted>,
        alive: Vec<usize>,
        ready: &[(usize, bool)],
        heard_until: Instant,
        begun: bool,
    ) {
        let mut state = self.lock();
        self.take_in(&mut state, accepted, alive);
        state.hear(ready, Instant::now());
        let now = Instant::now();
        if state.stop.is_none() && begun {
            state.tick(heard_until, now);
        }
        state.tick_reforms(now);
        state.parked.retain(|a| a.until > now);
    }

    /// Sleep until there is something to do. Returns the ranks that have something to say or room to be told, each with whether it has
    /// ended, and whether the launcher's store has something to say.
    // WAIT(waker): the control thread: woken for each event, and when it is to stop
    fn wait(
        &self,
        acceptor: &Acceptor,
        probes: &Probes,
        lines: &[WatchedPeer],
        store: Option<&Stream>,
        until: Option<Instant>,
    ) -> (Vec<(usize, bool)>, bool) {
        let mut fds = vec![PollFd::from_borrowed_fd(self.waker.fd(), PollFlags::IN)];
        for line in lines {
            let write = if line.pending { PollFlags::OUT } else { PollFlags::empty() };
            fds.push(PollFd::new(&line.stream, PollFlags::IN | write));
        }
        fds.extend(lines.iter().flat_map(|l| &l.process).map(|p| PollFd::new(p, PollFlags::IN)));
        let at = fds.len();
        fds.extend(store.map(|s| PollFd::new(s, PollFlags::IN)));
        let until = acceptor.interest(&mut fds).into_iter().chain(until).min();
        let until = probes.interest(&mut fds).into_iter().chain(until).min();
        // The descriptors are ours and open; if the system still refuses, do not spin.
        if poll_until(&mut fds, until).is_err() {
            std::thread::sleep(Duration::from_millis(10));
        }
        let said = store.is_some() && fds.get(at).is_some_and(|f| !f.revents().is_empty());
        let (streams, rest) = fds.get(1..).unwrap_or_default().split_at(lines.len());
        let mut processes = rest.iter();
        let mut ready = Vec::new();
        for (line, stream) in lines.iter().zip(streams) {
            let process = line.process.as_ref().and_then(|_| processes.next());
            let ended = process.is_some_and(|p| !p.revents().is_empty());
            if ended || !stream.revents().is_empty() {
                ready.push((line.rank, ended));
            }
        }
        (ready, said)
    }

    fn judge(&self, hello: &Hello, stream: &Stream) -> HelloVerdict {
        let no = |words: &str| HelloVerdict::No(words.into());
        let state = self.lock();
        if hello.to as usize != self.me || hello.world != self.world {
            return HelloVerdict::No(Denial::NotTheOne);
        }
        // What a third rank passes on is encrypted in any job.
        if self.rules.sealed && matches!(stream, Stream::Tcp(_)) && !hello.sealed {
            return no(
                "one of us was started with COMITY_SECURE=data and the other was not; all ranks need the same",
            );
        }
        // The higher rank connects; where one is missing since others have ended, whichever finds out.
        let either = self.rules.sparse
            && matches!(hello.channel, Channel::Control | Channel::Probe)
            && hello.from as usize != self.me;
        if hello.from as usize <= self.me && !either {
            return no("this rank connects to you, not you to it");
        }
        let from = match state.membership().presence(hello.from as usize) {
            Some(presence) if state.stop.is_none() => presence,
            _ => return no("it is leaving"),
        };
        match (hello.channel, from) {
            (Channel::Control, Presence::Absent) => HelloVerdict::Yes,
            (Channel::Control, presence) if self.rules.sparse => {
                judge_later(&state, hello.from as usize, presence)
            }
            (Channel::Control, _) => {
                no("this rank is connected already; every process needs a rank of its own")
            }
            // Its control connection stands for it, but the end of that handshake is not read here yet.
            (Channel::Link { .. } | Channel::Probe, Presence::Absent) => HelloVerdict::Busy,
            (Channel::Link { .. } | Channel::Probe, Presence::Dead(_) | Presence::Shut(_)) => {
                HelloVerdict::No(Denial::NotAMember)
            }
            (Channel::Probe, _) => HelloVerdict::Yes,
            (Channel::Link { transport, .. }, _) => match self.refused(transport, stream) {
                Some(words) => HelloVerdict::No(Denial::Other(words)),
                None if state.membership().is_closed(hello.group_id) => no("it has left that group"),
                None if state.parked.len() >= MAX_PARKED => HelloVerdict::Busy,
                None => HelloVerdict::Yes,
            },
            (Channel::Join, _) => no("it is a rank, not the store"),
        }
    }

    /// Reason for which a connection for a link is not taken.
    fn refused(&self, transport: u8, stream: &Stream) -> Option<String> {
        let kind = LinkKind::from_wire(transport);
        let Some(kind) = kind.filter(|k| self.rules.links.has(*k)) else {
            let medium = kind.map_or("that transport", LinkKind::medium);
            return Some(format!("it does not use {medium}"));
        };
        let within_host = kind.about().is_some_and(|a| a.within_host);
        (within_host != matches!(stream, Stream::Unix(_)))
            .then(|| format!("{} takes another kind of connection", kind.medium()))
    }

    fn receive(&self, state: &mut ConnectionTable, Accepted { stream, hello, seals }: Accepted) {
        let from = hello.from as usize;
        match hello.channel {
            Channel::Control => {
                let origin = self.origin(from, &stream, false);
                state.rest.news = true;
                return state.attach(from, (stream, seals), origin, Instant::now());
            }
            Channel::Probe => return state.decide(|m| m.lives(from, Instant::now())),
            Channel::Join | Channel::Link { .. } => {}
        }
        let until = Instant::now() + self.rules.patience;
        let channel = hello.channel;
        let group_id = hello.group_id;
        state.parked.push(Arrival { from, channel, stream, seals, group_id, until });
        state.rest.links.push(group_id);
    }
}

/// Decides on a connection from a rank that is no neighbour of this one, or was none.
fn judge_later(state: &ConnectionTable, from: usize, presence: &Presence) -> HelloVerdict {
    match presence {
        Presence::Live if state.membership().is_connected(from) => {
            HelloVerdict::No("this rank is connected already; every process needs a rank of its own".into())
        }
        // Of two that connect to each other the higher one goes on.
        Presence::Live if state.membership().is_dialing(from) && from < state.rank() => HelloVerdict::Busy,
        Presence::Live => HelloVerdict::Yes,
        _ => HelloVerdict::No(Denial::NotAMember),
    }
}

/// Not under the lock.
fn log(word: &Word) {
    match word {
        Word::Silent(Verdict::Suspect { rank, silence, progress }) => {
            tracing::warn!(rank, ?silence, progress, "nothing is heard from a rank");
        }
        Word::Silent(Verdict::Dead { rank, silence }) => {
            tracing::error!(rank, ?silence, "a rank is given up for its silence");
        }
        Word::Silent(Verdict::Stuck { rank, silence }) => {
            tracing::error!(rank, ?silence, "a rank is given up whose control connection carries nothing");
        }
        Word::Back { rank, silence } => tracing::info!(rank, ?silence, "a silent rank is heard again"),
    }
}

// Last work of a process that exits without dropping its groups. It leaves them in good order, so peers that have what they need go on. It
// compares its calls with theirs, as closing does.

/// Worlds that are open in this process.
static OPEN: Mutex<Vec<Weak<ControlPlane>>> = Mutex::new(Vec::new());

/// Do so for this one.
fn at_exit(control: &Arc<ControlPlane>) {
    static ONCE: Once = Once::new();
    let mut open = lock(&OPEN);
    open.retain(|c| c.strong_count() > 0);
    open.push(Arc::downgrade(control));
    drop(open);
    ONCE.call_once(|| {
        // Without it the peers take the exit for a death, which is the lesser evil.
        let _ = sys::at_exit(farewell);
    });
}

extern "C" fn farewell() {
    let Some(open) = lock_soon(&OPEN) else { return };
    for control in open.iter().filter_map(Weak::upgrade) {
        // A forked child shares the connections, but they are not its own.
        if control.pid != std::process::id() {
            continue;
        }
        compare(&control);
        if let Some(mut state) = lock_soon(&control.state)
            && state.stop.is_none()
        {
            state.decide(|m| m.end("", &[]));
        }
    }
    if is_untold() {
        sys::end_with(1);
    }
}

/// Compare what was called in each group that is still open.
fn compare(control: &ControlPlane) {
    let Some(state) = lock_soon(&control.state) else { return };
    let groups = if state.stop.is_none() { state.open() } else { Vec::new() };
    drop(state);
    for (group_id, status, mine, size) in groups {
        // A call that is under way, or a failure, is a reason of its own.
        if status.failure().is_some() || status.is_in_call() {
            continue;
        }
        let group = OpenGroup { control, group_id };
        if let Err(f) = conclude(&status, mine, size, &group)
            && f.is_disagreement()
        {
            untold(&f.sentence());
        }
    }
}

struct OpenGroup<'a> {
    control: &'a ControlPlane,
    group_id: u64,
}

impl Ask for OpenGroup<'_> {
    fn census(&self, at: u64, ranks: &[usize]) {
        if let Some(mut state) = lock_soon(&self.control.state) {
            state.census(self.group_id, at, ranks);
        }
        self.control.waker.wake();
    }

    fn tell(&self, rank: usize, call: &Header) {
        if let Some(mut state) = lock_soon(&self.control.state) {
            state.decide(|m| m.say(&[rank], ControlNote::Waits { group_id: self.group_id, call: *call }));
        }
        self.control.waker.wake();
    }

    fn abort(&self, failure: &Failure) {
        if let Some(mut state) = lock_soon(&self.control.state) {
            state.decide(|m| m.abort(self.group_id, failure.clone()));
        }
        self.control.waker.wake();
    }
}

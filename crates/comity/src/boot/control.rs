//! What a process knows of the others once they have met, kept true by the control thread.
//!
//! One control connection per pair of processes carries leave, abort and goodbye. Its end without a goodbye is a death: every
//! group with that member fails here, and its other members are told, so that those who cannot see the death learn of it
//! as fast. The same thread listens for the connections of links and keeps them until their group asks.

use super::{
    accept::{Accepted, Acceptor},
    hello::{Channel, Hello, Verdict},
    stream::{Conn, Stream},
    wire::Note,
};
use crate::{
    Error, Result,
    engine::{Failure, Watch},
    sys::{self, Bell, poll_until},
};
use rustix::event::{PollFd, PollFlags};
use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak},
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Connections kept for groups that this rank has not opened yet.
const MAX_PARKED: usize = 4096;
/// Notes kept for them.
const MAX_EARLY: usize = 4096;
/// Groups remembered as closed, so that late words about them are not kept.
const MAX_CLOSED: usize = 4096;
/// How long to go on sending when the process leaves.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// What the group is told of a member whose process ended without a goodbye.
const DIED: &str = "died: its control connection closed";

/// How a process stands with one other.
#[derive(Debug)]
enum Slot {
    /// This process itself.
    Oneself,
    /// Not connected yet.
    Absent,
    Live(Conn),
    /// It said goodbye; with words if it could not join.
    Gone(String),
    /// It ended without one; the cause.
    Dead(String),
}

/// A group that this rank has opened and not left.
#[derive(Debug)]
struct Context {
    /// World ranks in group order.
    members: Vec<usize>,
    /// This rank in the group.
    mine: usize,
    left: Vec<bool>,
    watch: Arc<Watch>,
}

/// An authenticated connection of a link.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) from: usize,
    pub(super) channel: Channel,
    pub(super) stream: Stream,
    context: u64,
    until: Instant,
}

#[derive(Debug)]
struct State {
    slots: Vec<Slot>,
    contexts: HashMap<u64, Context>,
    closed: VecDeque<u64>,
    early: VecDeque<(usize, Note)>,
    parked: Vec<Arrival>,
    /// The process leaves; nothing is sent after this.
    stop: Option<Instant>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Control {
    me: usize,
    /// Whose connections these are.
    pid: u32,
    world: u64,
    /// Connections of groups that were not opened are dropped after this.
    patience: Duration,
    shm: bool,
    state: Mutex<State>,
    /// Wakes the control thread.
    bell: Bell,
    /// Rings when a process has connected, gone or died: for the thread that joins.
    news: Bell,
}

/// Ends the control thread when dropped, after a goodbye to everyone.
#[derive(Debug)]
pub(super) struct Running {
    control: Arc<Control>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    pub(super) fn start(
        me: usize,
        size: usize,
        world: u64,
        shm: bool,
        patience: Duration,
        acceptor: Acceptor,
    ) -> Result<Self> {
        let trouble = |e| Error::os("starting the control thread", e);
        let slots = (0..size).map(|r| if r == me { Slot::Oneself } else { Slot::Absent }).collect();
        let control = Arc::new(Control {
            me,
            pid: std::process::id(),
            world,
            patience,
            shm,
            state: Mutex::new(State {
                slots,
                contexts: HashMap::new(),
                closed: VecDeque::new(),
                early: VecDeque::new(),
                parked: Vec::new(),
                stop: None,
            }),
            bell: Bell::new().map_err(trouble)?,
            news: Bell::new().map_err(trouble)?,
        });
        farewell_at_exit(&control);
        let shared = Arc::clone(&control);
        let thread = std::thread::Builder::new()
            .name("comity-control".into())
            .spawn(move || shared.serve(acceptor))
            .map_err(trouble)?;
        Ok(Self { control, thread: Some(thread) })
    }

    pub(super) fn control(&self) -> &Control {
        &self.control
    }

    /// Say goodbye and end, within half a second. Words tell why this rank could not join.
    pub(super) fn end(&mut self, words: &str) {
        let Some(thread) = self.thread.take() else { return };
        let mut state = self.control.lock();
        state.farewell(words);
        state.stop = Some(Instant::now() + LAST_WORDS);
        drop(state);
        self.control.bell.ring();
        let _ = thread.join();
        let mut state = self.control.lock();
        state.slots.clear();
        state.contexts.clear();
        state.parked.clear();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end("");
    }
}

impl Control {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock and leaves half a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rings when [`standing`](Self::standing) may have changed.
    pub(super) fn news(&self) -> &Bell {
        &self.news
    }

    /// Take over a control connection that this rank has made.
    pub(super) fn attach(&self, rank: usize, stream: Stream) {
        self.lock().attach(rank, stream);
        self.bell.ring();
    }

    /// Who has not connected yet, or what became of one who never will.
    pub(super) fn standing(&self) -> Result<Vec<usize>, (usize, String)> {
        let mut absent = Vec::new();
        for (rank, slot) in self.lock().slots.iter().enumerate() {
            match slot {
                Slot::Absent => absent.push(rank),
                Slot::Dead(_) => return Err((rank, "ended while the ranks were connecting".into())),
                Slot::Gone(words) if !words.is_empty() => return Err((rank, format!("gave up: {words}"))),
                // One that met everyone and left was there.
                Slot::Oneself | Slot::Live(_) | Slot::Gone(_) => {}
            }
        }
        Ok(absent)
    }

    /// Begin to watch the members of a group. False if it is open already.
    pub(super) fn enter(&self, context: u64, members: &[usize], mine: usize, watch: &Arc<Watch>) -> bool {
        let mut state = self.lock();
        if state.contexts.contains_key(&context) {
            return false;
        }
        let left = vec![false; members.len()];
        let new = Context { members: members.to_vec(), mine, left, watch: Arc::clone(watch) };
        state.contexts.insert(context, new);
        let early = std::mem::take(&mut state.early);
        for (from, note) in early {
            match note {
                Note::Leave { context: c } | Note::Abort { context: c, .. } if c == context => {
                    state.apply(from, note)
                }
                note => state.early.push_back((from, note)),
            }
        }
        for rank in members {
            state.member_is_gone(context, *rank);
        }
        true
    }

    /// The connections that have come for a group.
    pub(super) fn arrivals(&self, context: u64) -> Vec<Arrival> {
        let parked = &mut self.lock().parked;
        let (mine, others) = std::mem::take(parked).into_iter().partition(|a| a.context == context);
        *parked = others;
        mine
    }

    /// Leave a group, and tell its members unless it never came to be.
    pub(super) fn leave(&self, context: u64, tell: bool) {
        let mut state = self.lock();
        let Some(group) = state.contexts.remove(&context) else { return };
        state.forget(context);
        if tell {
            state.tell(&group.members, self.me, &Note::Leave { context });
        }
        drop(state);
        // What had no room goes out from there.
        self.bell.ring();
    }

    /// Tell the members of a group that it has failed.
    pub(super) fn abort(&self, context: u64, failure: &Failure) {
        let mut state = self.lock();
        if let Some(group) = state.contexts.get(&context) {
            let members = group.members.clone();
            state.tell(&members, self.me, &abort_note(context, failure));
        }
        drop(state);
        self.bell.ring();
    }

    /// Close every connection without a word, as the system does when a process is killed.
    #[cfg(test)]
    pub(super) fn die(&self) {
        let mut state = self.lock();
        for slot in &mut state.slots {
            if let Slot::Live(conn) = slot {
                match &**conn.stream() {
                    Stream::Tcp(s) => s.shutdown(std::net::Shutdown::Both).unwrap_or_default(),
                    Stream::Unix(s) => s.shutdown(std::net::Shutdown::Both).unwrap_or_default(),
                }
                *slot = Slot::Dead("died".into());
            }
        }
        state.stop = Some(Instant::now());
        drop(state);
        self.bell.ring();
    }

    fn serve(&self, mut acceptor: Acceptor) {
        loop {
            let mut conns: Vec<(usize, Arc<Stream>, bool)> = Vec::new();
            let state = self.lock();
            for (rank, slot) in state.slots.iter().enumerate() {
                if let Slot::Live(conn) = slot {
                    conns.push((rank, Arc::clone(conn.stream()), conn.is_pending()));
                }
            }
            let stop = state.stop;
            if stop.is_some_and(|s| Instant::now() >= s || conns.iter().all(|c| !c.2)) {
                return;
            }
            let parked = state.parked.iter().map(|a| a.until).min();
            drop(state);

            let ready = self.wait(&acceptor, &conns, parked.into_iter().chain(stop).min());
            self.bell.hush();
            let accepted = acceptor.step(&mut |hello, stream| self.judge(hello, stream));

            let mut state = self.lock();
            for a in accepted {
                self.receive(&mut state, a);
            }
            for rank in ready {
                if state.hear(rank) {
                    self.news.ring();
                }
            }
            let now = Instant::now();
            state.parked.retain(|a| a.until > now);
        }
    }

    /// Sleep until there is something to do; the ranks that have something to say or room to be told.
    fn wait(
        &self,
        acceptor: &Acceptor,
        conns: &[(usize, Arc<Stream>, bool)],
        until: Option<Instant>,
    ) -> Vec<usize> {
        let mut fds = vec![PollFd::from_borrowed_fd(self.bell.fd(), PollFlags::IN)];
        for (_, stream, pending) in conns {
            let write = if *pending { PollFlags::OUT } else { PollFlags::empty() };
            fds.push(PollFd::new(stream, PollFlags::IN | write));
        }
        let until = acceptor.interest(&mut fds).into_iter().chain(until).min();
        // The descriptors are ours and open; if the system still refuses, do not spin.
        if poll_until(&mut fds, until).is_err() {
            std::thread::sleep(Duration::from_millis(10));
        }
        let ready = fds.iter().skip(1).zip(conns).filter(|(fd, _)| !fd.revents().is_empty());
        ready.map(|(_, conn)| conn.0).collect()
    }

    fn judge(&self, hello: &Hello, stream: &Stream) -> Verdict {
        let no = |words: &str| Verdict::No(words.into());
        let state = self.lock();
        if hello.to as usize != self.me || hello.world != self.world {
            return no("it is not the rank, or not of the group, that you look for");
        }
        // The higher rank connects.
        if hello.from as usize <= self.me {
            return no("this rank connects to you, not you to it");
        }
        let from = match state.slots.get(hello.from as usize) {
            Some(slot) if state.stop.is_none() => slot,
            _ => return no("it is leaving"),
        };
        match (hello.channel, from) {
            (Channel::Control, Slot::Absent) => Verdict::Yes,
            (Channel::Control, _) => {
                no("this rank is connected already; every process needs a rank of its own")
            }
            (Channel::Shm | Channel::Tcp { .. }, Slot::Absent | Slot::Dead(_)) => {
                no("you are not a member any more")
            }
            (Channel::Shm, _) if !self.shm || !matches!(stream, Stream::Unix(_)) => {
                no("it does not share memory")
            }
            (Channel::Tcp { .. }, _) if !matches!(stream, Stream::Tcp(_)) => {
                no("that is not a TCP connection")
            }
            (Channel::Shm | Channel::Tcp { .. }, _) if state.closed.contains(&hello.context) => {
                no("it has left that group")
            }
            (Channel::Shm | Channel::Tcp { .. }, _) if state.parked.len() >= MAX_PARKED => Verdict::Busy,
            (Channel::Shm | Channel::Tcp { .. }, _) => Verdict::Yes,
            (Channel::Join, _) => no("it is a rank, not the store"),
        }
    }

    fn receive(&self, state: &mut State, Accepted { stream, hello }: Accepted) {
        let from = hello.from as usize;
        if hello.channel == Channel::Control {
            state.attach(from, stream);
            self.news.ring();
            return;
        }
        let until = Instant::now() + self.patience;
        state.parked.push(Arrival { from, channel: hello.channel, stream, context: hello.context, until });
        if let Some(group) = state.contexts.get(&hello.context) {
            group.watch.ring();
        }
    }
}

/// Worlds that are open in this process.
static OPEN: Mutex<Vec<Weak<Control>>> = Mutex::new(Vec::new());

/// A process that exits without dropping its groups leaves in good order too: peers that have what they need go on.
fn farewell_at_exit(control: &Arc<Control>) {
    static ONCE: Once = Once::new();
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    open.retain(|c| c.strong_count() > 0);
    open.push(Arc::downgrade(control));
    drop(open);
    ONCE.call_once(|| {
        // Without it the peers take the exit for a death, which is the lesser evil.
        let _ = sys::at_exit(farewell);
    });
}

extern "C" fn farewell() {
    let Ok(open) = OPEN.try_lock() else { return };
    for control in open.iter().filter_map(Weak::upgrade) {
        // A forked child shares the connections, but they are not its own.
        if control.pid == std::process::id()
            && let Ok(mut state) = control.state.try_lock()
            && state.stop.is_none()
        {
            state.farewell("");
        }
    }
}

impl State {
    fn farewell(&mut self, words: &str) {
        let note = Note::Goodbye { words: words.into() }.encode();
        for slot in &mut self.slots {
            if let Slot::Live(conn) = slot {
                // It may be gone itself.
                let _ = conn.send(&note);
            }
        }
    }

    fn attach(&mut self, rank: usize, stream: Stream) {
        if let Some(slot @ Slot::Absent) = self.slots.get_mut(rank) {
            *slot = Slot::Live(Conn::new(stream));
        }
    }

    /// Read what `rank` says. True if it has ended.
    fn hear(&mut self, rank: usize) -> bool {
        let Some(slot @ Slot::Live(_)) = self.slots.get_mut(rank) else { return false };
        let Slot::Live(conn) = slot else { return false };
        if self.stop.is_some() {
            // This process has said goodbye: what the others do now is no news, they may well close first.
            if conn.flush().is_err() {
                *slot = Slot::Gone(String::new());
            }
            return false;
        }
        let open = conn.fill() && conn.flush().is_ok();
        loop {
            let Some(Slot::Live(conn)) = self.slots.get_mut(rank) else { return true };
            match conn.next().map(|m| m.map(|m| Note::decode(&m))) {
                Ok(Some(Ok(note))) => self.apply(rank, note),
                Ok(None) if open => return false,
                Ok(None) => self.lose(rank, DIED),
                Ok(Some(Err(_))) | Err(_) => self.lose(rank, "broke the protocol on its control connection"),
            }
        }
    }

    fn apply(&mut self, from: usize, note: Note) {
        match note {
            Note::Leave { context } | Note::Abort { context, .. } => {
                let Some(group) = self.contexts.get_mut(&context) else {
                    if !self.closed.contains(&context) {
                        self.early.keep_last(MAX_EARLY - 1);
                        self.early.push_back((from, note));
                    }
                    return;
                };
                let Some(by) = group.members.iter().position(|m| *m == from) else { return };
                match note {
                    Note::Abort { culprit, reported, cause, .. }
                        if (culprit as usize) < group.members.len() =>
                    {
                        group.watch.fail(Failure { culprit: culprit as usize, by, cause, reported });
                    }
                    Note::Leave { .. } => {
                        if let Some(left) = group.left.get_mut(by) {
                            *left = true;
                        }
                        group.watch.leave(by);
                    }
                    _ => {}
                }
            }
            Note::Heartbeat { .. } => {}
            Note::Goodbye { words } => {
                let Some(slot) = self.slots.get_mut(from) else { return };
                *slot = Slot::Gone(words);
                for context in self.contexts_with(from) {
                    self.member_is_gone(context, from);
                }
            }
        }
    }

    fn contexts_with(&self, rank: usize) -> Vec<u64> {
        self.contexts.iter().filter(|(_, g)| g.members.contains(&rank)).map(|(id, _)| *id).collect()
    }

    /// `rank` has ended without a goodbye.
    fn lose(&mut self, rank: usize, cause: &str) {
        match self.slots.get_mut(rank) {
            Some(slot @ Slot::Live(_)) => *slot = Slot::Dead(cause.into()),
            _ => return,
        }
        for context in self.contexts_with(rank) {
            self.member_is_gone(context, rank);
        }
    }

    /// Tell a group what became of a member whose process has ended: in good order, it has left; else the group has failed,
    /// unless the member had left before, and the others are told.
    fn member_is_gone(&mut self, context: u64, rank: usize) {
        let cause = match self.slots.get(rank) {
            Some(Slot::Gone(words)) if words.is_empty() => return self.apply(rank, Note::Leave { context }),
            Some(Slot::Gone(words)) => format!("gave up: {words}"),
            Some(Slot::Dead(cause)) => cause.clone(),
            _ => return,
        };
        let Some(group) = self.contexts.get(&context) else { return };
        let Some(culprit) = group.members.iter().position(|m| *m == rank) else { return };
        if group.left.get(culprit) == Some(&true) || group.watch.failure().is_some() {
            return;
        }
        let failure = Failure { culprit, by: group.mine, cause, reported: false };
        let (members, watch) = (group.members.clone(), Arc::clone(&group.watch));
        // Told before this process can act on it and exit.
        self.tell(&members, rank, &abort_note(context, &failure));
        watch.fail(failure);
    }

    /// Send to those members that are there, other than `except`. One that cannot be reached is found when it is next read.
    fn tell(&mut self, members: &[usize], except: usize, note: &Note) {
        let bytes = note.encode();
        for rank in members.iter().filter(|r| **r != except) {
            if let Some(Slot::Live(conn)) = self.slots.get_mut(*rank) {
                let _ = conn.send(&bytes);
            }
        }
    }

    /// Forget what was kept for a group that is over.
    fn forget(&mut self, context: u64) {
        self.closed.keep_last(MAX_CLOSED - 1);
        self.closed.push_back(context);
        self.parked.retain(|a| a.context != context);
        self.early.retain(|(_, note)| !matches!(note, Note::Leave { context: c } | Note::Abort { context: c, .. } if *c == context));
    }
}

fn abort_note(context: u64, f: &Failure) -> Note {
    Note::Abort { context, culprit: f.culprit as u32, reported: f.reported, cause: f.cause.clone() }
}

trait KeepLast {
    /// Drop the oldest until at most `n` are left.
    fn keep_last(&mut self, n: usize);
}

impl<T> KeepLast for VecDeque<T> {
    fn keep_last(&mut self, n: usize) {
        while self.len() > n {
            self.pop_front();
        }
    }
}

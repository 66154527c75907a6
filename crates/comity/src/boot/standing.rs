//! How a process stands with the others, and what their notes, their ends and their silence mean for its groups.
//!
//! Changed only under the lock of [`Control`](super::control::Control), by its thread and by those that call it.

use super::{
    hello::Channel,
    liveness::{Liveness, Verdict},
    stream::{Conn, Stream},
    wire::Note,
};
use crate::engine::{Failure, Header, Watch};
use socket2::{SockRef, TcpKeepalive};
use std::{
    collections::{HashMap, VecDeque},
    io,
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};

/// Notes kept for groups that this rank has not opened yet.
const MAX_EARLY: usize = 4096;
/// Groups remembered as closed, so that late words about them are not kept.
const MAX_CLOSED: usize = 4096;

/// What the group is told of a member whose process ended without a goodbye.
pub(super) const DIED: &str = "died: its control connection closed";

/// How a process stands with one other.
#[derive(Debug)]
pub(super) enum Slot {
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
pub(super) struct Context {
    /// World ranks in group order.
    pub(super) members: Vec<usize>,
    /// This rank in the group.
    mine: usize,
    left: Vec<bool>,
    pub(super) watch: Arc<Watch>,
}

/// An authenticated connection of a link.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) from: usize,
    pub(super) channel: Channel,
    pub(super) stream: Stream,
    pub(super) context: u64,
    pub(super) until: Instant,
}

/// What the control thread waits for on behalf of one other process.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) rank: usize,
    pub(super) stream: Arc<Stream>,
    /// There is something to send.
    pub(super) pending: bool,
    /// Readable when the process has ended.
    pub(super) process: Option<Arc<OwnedFd>>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Standing {
    pub(super) slots: Vec<Slot>,
    /// Readable when the process has ended; where the system can tell.
    processes: Vec<Option<Arc<OwnedFd>>>,
    contexts: HashMap<u64, Context>,
    closed: VecDeque<u64>,
    early: VecDeque<(usize, Note)>,
    pub(super) parked: Vec<Arrival>,
    pub(super) liveness: Liveness,
    /// What the engines of groups that are over had done.
    progress: u64,
    /// The process leaves; nothing is sent after this.
    pub(super) stop: Option<Instant>,
}

impl Standing {
    pub(super) fn new(me: usize, size: usize, silence: Option<Duration>) -> Self {
        Self {
            slots: (0..size).map(|r| if r == me { Slot::Oneself } else { Slot::Absent }).collect(),
            processes: (0..size).map(|_| None).collect(),
            contexts: HashMap::new(),
            closed: VecDeque::new(),
            early: VecDeque::new(),
            parked: Vec::new(),
            liveness: Liveness::new(size, silence),
            progress: 0,
            stop: None,
        }
    }

    /// A group that is open here.
    pub(super) fn group(&self, context: u64) -> Option<&Context> {
        self.contexts.get(&context)
    }

    /// Where a rank of a group waits for this one: in that group, else in any other. Also in one that has failed: its limit may
    /// have come first.
    pub(super) fn waits(&self, context: u64, rank: usize) -> Option<(Header, bool)> {
        let who = *self.contexts.get(&context)?.members.get(rank)?;
        let told = |group: &Context| {
            let at = group.members.iter().position(|m| *m == who)?;
            group.watch.ledger().told(at)
        };
        let here = self.contexts.get(&context).and_then(told).map(|c| (c, false));
        here.or_else(|| self.contexts.values().find_map(told).map(|c| (c, true)))
    }

    pub(super) fn is_closed(&self, context: u64) -> bool {
        self.closed.contains(&context)
    }

    /// Drop every connection and every group.
    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.processes.clear();
        self.contexts.clear();
        self.parked.clear();
    }

    pub(super) fn farewell(&mut self, words: &str) {
        let note = Note::Goodbye { words: words.into() }.encode();
        for slot in &mut self.slots {
            if let Slot::Live(conn) = slot {
                // It may be gone itself.
                let _ = conn.send(&note);
            }
        }
    }

    pub(super) fn attach(&mut self, rank: usize, stream: Stream, now: Instant) {
        if let Some(slot @ Slot::Absent) = self.slots.get_mut(rank) {
            if let Err(e) = keep_alive(&stream, self.liveness.limit()) {
                // The beats find what this would have found.
                tracing::debug!(rank, %e, "no keepalive on a control connection");
            }
            if let Some(place) = self.processes.get_mut(rank) {
                *place = process_of(&stream).map(Arc::new);
            }
            *slot = Slot::Live(Conn::new(stream));
            self.liveness.watch(rank, now);
        }
    }

    /// Begin to watch the members of a group. False if it is open already.
    pub(super) fn enter(&mut self, context: u64, members: &[usize], mine: usize, watch: &Arc<Watch>) -> bool {
        if self.contexts.contains_key(&context) {
            return false;
        }
        let left = vec![false; members.len()];
        let new = Context { members: members.to_vec(), mine, left, watch: Arc::clone(watch) };
        self.contexts.insert(context, new);
        let early = std::mem::take(&mut self.early);
        for (from, note) in early {
            match note {
                Note::Leave { context: c }
                | Note::Abort { context: c, .. }
                | Note::Waits { context: c, .. }
                    if c == context =>
                {
                    self.apply(from, note)
                }
                note => self.early.push_back((from, note)),
            }
        }
        for rank in members {
            self.member_is_gone(context, *rank);
        }
        true
    }

    /// Forget a group; its members.
    pub(super) fn leave(&mut self, context: u64) -> Option<Vec<usize>> {
        let group = self.contexts.remove(&context)?;
        self.progress += group.watch.progress();
        self.closed.keep_last(MAX_CLOSED - 1);
        self.closed.push_back(context);
        self.parked.retain(|a| a.context != context);
        self.early.retain(|(_, note)| !matches!(note, Note::Leave { context: c } | Note::Abort { context: c, .. } | Note::Waits { context: c, .. } if *c == context));
        Some(group.members)
    }

    /// Who is connected.
    pub(super) fn live(&self) -> Vec<Line> {
        let slots = self.slots.iter().zip(&self.processes).enumerate();
        slots
            .filter_map(|(rank, (slot, process))| match slot {
                Slot::Live(conn) => Some(Line {
                    rank,
                    stream: Arc::clone(conn.stream()),
                    pending: conn.is_pending(),
                    process: process.clone(),
                }),
                _ => None,
            })
            .collect()
    }

    /// Read what `ranks` say; those with a true have ended. True if one has.
    pub(super) fn hear(&mut self, ranks: &[(usize, bool)], now: Instant) -> bool {
        let (mut notes, mut ends) = (Vec::new(), Vec::new());
        for &(rank, ended) in ranks {
            let Some(slot @ Slot::Live(_)) = self.slots.get_mut(rank) else { continue };
            let Slot::Live(conn) = slot else { continue };
            if self.stop.is_some() {
                // This process has said goodbye: what the others do now is no news, they may well close first.
                if conn.flush().is_err() {
                    *slot = Slot::Gone(String::new());
                }
                continue;
            }
            // What it said before it ended is there to be read.
            let open = conn.fill() && conn.flush().is_ok() && !ended;
            let (mut spoke, mut progress) = (false, None);
            loop {
                match conn.next().map(|m| m.map(|m| Note::decode(&m))) {
                    Ok(Some(Ok(Note::Heartbeat { progress: p }))) => progress = Some(p),
                    Ok(Some(Ok(note))) => notes.push((rank, note)),
                    Ok(None) => {
                        if !open {
                            ends.push((rank, DIED));
                        }
                        break;
                    }
                    Ok(Some(Err(_))) | Err(_) => {
                        ends.push((rank, "broke the protocol on its control connection"));
                        break;
                    }
                }
                spoke = true;
            }
            if spoke && let Some(silence) = self.liveness.hear(rank, now, progress) {
                tracing::info!(rank, ?silence, "a silent rank is heard again");
            }
        }
        // A process that wakes finds at once what all others said while it slept. That it was given up explains the rest.
        notes.sort_by_key(|(_, note)| !matches!(note, Note::GivenUp { .. }));
        let news = !ends.is_empty()
            || notes.iter().any(|(_, n)| matches!(n, Note::Goodbye { .. } | Note::GivenUp { .. }));
        for (from, note) in notes {
            self.apply(from, note);
        }
        for (rank, cause) in ends {
            self.lose(rank, cause);
        }
        news
    }

    /// Give up whoever has been silent for too long at `now`, by which all that had come must have been heard.
    pub(super) fn judge(&mut self, now: Instant) -> Vec<Verdict> {
        let verdicts = self.liveness.tick(now);
        for verdict in &verdicts {
            match *verdict {
                Verdict::Suspect { rank, .. } => {
                    for group in self.contexts.values().filter(|g| g.members.contains(&rank)) {
                        group.watch.suspect();
                    }
                }
                Verdict::Dead { rank, silence } => {
                    if let Some(Slot::Live(conn)) = self.slots.get_mut(rank) {
                        // It stays in the connection after its end, and is read when that rank runs again.
                        let _ = conn.send(&Note::GivenUp { silence: silence.as_millis() as u64 }.encode());
                    }
                    self.lose(
                        rank,
                        &format!("fell silent: nothing heard for {:.1} s", silence.as_secs_f64()),
                    );
                }
            }
        }
        verdicts
    }

    /// Say to everyone that this process lives. Nobody gets more than one unsent beat.
    pub(super) fn beat(&mut self) {
        let progress = self.progress + self.contexts.values().map(|g| g.watch.progress()).sum::<u64>();
        let note = Note::Heartbeat { progress }.encode();
        for slot in &mut self.slots {
            if let Slot::Live(conn) = slot
                && !conn.is_pending()
            {
                // One that cannot be reached is found when it is next read.
                let _ = conn.send(&note);
            }
        }
    }

    fn apply(&mut self, from: usize, note: Note) {
        match note {
            Note::Leave { context } | Note::Abort { context, .. } | Note::Waits { context, .. } => {
                let Some(group) = self.contexts.get_mut(&context) else {
                    if !self.closed.contains(&context) {
                        if let Note::Waits { .. } = note {
                            // Only its last word counts.
                            let old = |(f, n): &(usize, Note)| matches!(n, Note::Waits { context: c, .. } if *c == context && *f == from);
                            self.early.retain(|e| !old(e));
                        }
                        self.early.keep_last(MAX_EARLY - 1);
                        self.early.push_back((from, note));
                    }
                    return;
                };
                let Some(by) = group.members.iter().position(|m| *m == from) else { return };
                match note {
                    Note::Abort { culprit, reported, cause, calls, .. }
                        if (culprit as usize) < group.members.len() =>
                    {
                        let culprit = culprit as usize;
                        group.watch.fail(Failure { culprit, by, cause, reported, calls });
                    }
                    Note::Waits { call, .. } => {
                        if let Some(failure) = group.watch.hear(group.mine, by, &call) {
                            let mine = group.members.get(group.mine).copied();
                            self.fail(context, mine.unwrap_or(usize::MAX), failure);
                        }
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
            // Heard already.
            Note::Heartbeat { .. } => {}
            Note::Goodbye { words } => self.ended(from, Slot::Gone(words)),
            Note::GivenUp { silence } => {
                let silence = Duration::from_millis(silence).as_secs_f64();
                for context in self.contexts_with(from) {
                    let Some(group) = self.contexts.get(&context) else { continue };
                    let Some(by) = group.members.iter().position(|m| *m == from) else { continue };
                    let cause = format!("was given up: nothing was heard from it for {silence:.1} s");
                    let failure = Failure { culprit: group.mine, by, cause, reported: false, calls: None };
                    self.fail(context, from, failure);
                }
                self.lose(from, &format!("gave this process up after {silence:.1} s of silence"));
            }
        }
    }

    fn contexts_with(&self, rank: usize) -> Vec<u64> {
        self.contexts.iter().filter(|(_, g)| g.members.contains(&rank)).map(|(id, _)| *id).collect()
    }

    /// `rank` has ended without a goodbye.
    fn lose(&mut self, rank: usize, cause: &str) {
        self.ended(rank, Slot::Dead(cause.into()));
    }

    fn ended(&mut self, rank: usize, how: Slot) {
        match self.slots.get_mut(rank) {
            Some(slot @ Slot::Live(_)) => *slot = how,
            _ => return,
        }
        self.liveness.forget(rank);
        if let Some(place) = self.processes.get_mut(rank) {
            *place = None;
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
        if group.left.get(culprit) == Some(&true) {
            return;
        }
        let failure = Failure { culprit, by: group.mine, cause, reported: false, calls: None };
        self.fail(context, rank, failure);
    }

    /// A group has failed, unless it had before: tell its members other than `except`, and those who wait here.
    fn fail(&mut self, context: u64, except: usize, failure: Failure) {
        let Some(group) = self.contexts.get(&context) else { return };
        if group.watch.failure().is_some() {
            return;
        }
        let (members, watch) = (group.members.clone(), Arc::clone(&group.watch));
        // Told before this process can act on it and exit.
        self.tell(&members, except, &abort_note(context, &failure));
        watch.fail(failure);
    }

    /// Send to those members that are there, other than `except`. One that cannot be reached is found when it is next read.
    pub(super) fn tell(&mut self, members: &[usize], except: usize, note: &Note) {
        let bytes = note.encode();
        for rank in members.iter().filter(|r| **r != except) {
            if let Some(Slot::Live(conn)) = self.slots.get_mut(*rank) {
                let _ = conn.send(&bytes);
            }
        }
    }
}

pub(super) fn abort_note(context: u64, f: &Failure) -> Note {
    let (culprit, reported, cause) = (f.culprit as u32, f.reported, f.cause.clone());
    Note::Abort { context, culprit, reported, cause, calls: f.calls }
}

/// What tells the end of the process at the other end of a connection within this host. A child that it forked keeps its sockets
/// open, and would hide its death.
#[cfg(target_os = "linux")]
fn process_of(stream: &Stream) -> Option<OwnedFd> {
    use rustix::{net::sockopt::socket_peercred, process::PidfdFlags, process::pidfd_open};
    let Stream::Unix(stream) = stream else { return None };
    // One of another namespace of processes cannot be named; an older system cannot tell.
    pidfd_open(socket_peercred(stream).ok()?.pid, PidfdFlags::empty()).ok()
}

#[cfg(not(target_os = "linux"))]
fn process_of(_: &Stream) -> Option<OwnedFd> {
    None
}

/// Let the system end a connection whose other host is gone, should the beats not have found it before. Where silence is allowed
/// this is all that finds it.
fn keep_alive(stream: &Stream, limit: Option<Duration>) -> io::Result<()> {
    let Stream::Tcp(stream) = stream else { return Ok(()) };
    let second = Duration::from_secs(1);
    let idle = limit.map_or(Duration::from_secs(30), |l| l.max(second));
    let alive = TcpKeepalive::new().with_time(idle).with_interval((idle / 5).max(second)).with_retries(5);
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&alive)?;
    // Not below the limit, so as not to decide before the beats do.
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(limit.map(|l| l.saturating_mul(2)))?;
    Ok(())
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

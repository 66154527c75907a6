//! The control thread: it waits, reads what the others say, and does what follows; and it judges who may connect.

use super::ControlPlane;
use crate::{
    LinkKind,
    channel::{Accepted, Acceptor, Channel, Denial, Hello, HelloVerdict, Stream},
    control::{
        connection_table::{Arrival, ConnectionTable, Question, Rest, WatchedPeer},
        probe::Probes,
    },
    sys::poll_until,
};
use comity_membership::{Presence, Word};
use rustix::event::{PollFd, PollFlags};
use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

/// Connections kept for groups that this rank has not opened yet.
const MAX_PARKED: usize = 4096;
/// The longest rest while ranks agree on a group.
const REFORM_REST: Duration = Duration::from_millis(2);
/// Interval of the checks meanwhile for outstanding bytes.
const LEAVE_POLL: Duration = Duration::from_millis(2);

impl ControlPlane {
    // WAIT(stop): the control thread: woken for each event, and when it is to stop
    pub(super) fn serve(&self, mut acceptor: Acceptor, mut probes: Probes) {
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
            let rest = self.judge_now(accepted, alive, &ready, heard_until, begun);
            self.finish(rest, &mut probes);
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
        let rest = self.take_in(&mut self.lock(), accepted, alive);
        self.finish(rest, probes);
        true
    }

    /// Take in who has connected, and who has shown that it lives.
    fn take_in(&self, state: &mut ConnectionTable, accepted: Vec<Accepted>, alive: Vec<usize>) -> Rest {
        let mut rest = Rest::default();
        accepted.into_iter().for_each(|a| rest.add(self.receive(state, a)));
        alive.into_iter().for_each(|one| rest.add(state.decide(|m| m.lives(one, Instant::now()))));
        rest
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
    fn finish(&self, rest: Rest, probes: &mut Probes) {
        if rest.news {
            self.ring();
        }
        rest.words.iter().for_each(log);
        self.rounds.fetch_add(1, Ordering::AcqRel);
        if let Some(desk) = self.desk.get().and_then(std::sync::Weak::upgrade) {
            rest.links.into_iter().for_each(|group_id| desk.attend(group_id));
        }
        if let Some(dialer) = self.dialer.get().and_then(std::sync::Weak::upgrade) {
            rest.dials.into_iter().for_each(|rank| dialer.connect(rank));
        }
        rest.ended.into_iter().for_each(|rank| probes.forget(rank));
        rest.asks.into_iter().for_each(|Question { rank, at }| probes.ask(rank, at));
    }

    /// Take in what came, then see who is silent.
    fn judge_now(
        &self,
        accepted: Vec<Accepted>,
        alive: Vec<usize>,
        ready: &[(usize, bool)],
        heard_until: Instant,
        begun: bool,
    ) -> Rest {
        let mut state = self.lock();
        let mut rest = self.take_in(&mut state, accepted, alive);
        rest.add(state.hear(ready, Instant::now()));
        let now = Instant::now();
        if state.stop.is_none() && begun {
            rest.add(state.tick(heard_until, now));
        }
        state.tick_reforms(now);
        state.parked.retain(|a| a.until > now);
        drop(state);
        rest
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

    fn receive(&self, state: &mut ConnectionTable, Accepted { stream, hello, seals }: Accepted) -> Rest {
        let from = hello.from as usize;
        match hello.channel {
            Channel::Control => {
                let origin = self.origin(from, &stream, false);
                let rest = state.attach(from, (stream, seals), origin, Instant::now());
                return Rest { news: true, ..rest };
            }
            Channel::Probe => return state.decide(|m| m.lives(from, Instant::now())),
            Channel::Join | Channel::Link { .. } => {}
        }
        let until = Instant::now() + self.rules.patience;
        let channel = hello.channel;
        let group_id = hello.group_id;
        state.parked.push(Arrival { from, channel, stream, seals, group_id, until });
        Rest { links: vec![group_id], ..Rest::default() }
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
    use comity_membership::Verdict;
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

//! What a process knows of the others once they have met, kept true by the control thread.
//!
//! One control connection per pair of processes carries leave, abort, goodbye and, all the time, beats. Its end without a
//! goodbye is a death, and so is silence: every group with that member fails here, and its other members are told, so that those
//! who cannot see the death learn of it as fast. The same thread listens for the connections of links and keeps them until their
//! group asks.

use super::{
    leaving,
    probe::Probes,
    standing::{Arrival, Line, Rest, Standing},
};
use crate::{
    Error, Result,
    channel::{Accepted, Acceptor, Channel, Hello, Sealing, Stream, Verdict},
    rendezvous::Job,
    status::{Failure, Header, Watch},
    sys::{Bell, poll_until},
};
use comity_membership::{Pace, Presence, Word};
use rustix::event::{PollFd, PollFlags};
use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicI32, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Connections kept for groups that this rank has not opened yet.
const MAX_PARKED: usize = 4096;
/// How long to go on sending when the process leaves.
pub(crate) const LAST_WORDS: Duration = Duration::from_millis(500);
/// How often to look meanwhile whether everything has arrived.
const LOOK: Duration = Duration::from_millis(2);

/// What a process allows the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// To share memory.
    pub(crate) shm: bool,
    /// To make RDMA wires.
    pub(crate) rdma: bool,
    /// What goes over TCP is encrypted, and nothing else is taken.
    pub(crate) sealed: bool,
    /// Connections of groups that were not opened are dropped after this.
    pub(crate) patience: Duration,
    /// Others are given up after so much silence.
    pub(crate) silence: Pace,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Control {
    me: usize,
    /// Whose connections these are.
    pub(crate) pid: u32,
    world: u64,
    rules: Rules,
    pub(crate) state: Mutex<Standing>,
    /// Wakes the control thread.
    pub(crate) bell: Bell,
    /// Rings when a process has connected, gone or died: for the thread that joins.
    news: Bell,
    /// What this process lacked, as a number of the system, when it last turned a connection away for that; or 0.
    lacked: AtomicI32,
    /// That has gone on for long.
    starved: AtomicBool,
    /// This rank's first group stands: it beats from now on, and judges who is silent.
    begun: AtomicBool,
}

/// Ends the control thread when dropped, after a goodbye to everyone.
#[derive(Debug)]
pub(crate) struct Running {
    control: Arc<Control>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    pub(crate) fn start(
        me: usize,
        size: usize,
        world: u64,
        rules: Rules,
        acceptor: Acceptor,
        probes: Probes,
    ) -> Result<Self> {
        let trouble = |e| Error::os("starting the control thread", e);
        let control = Arc::new(Control {
            me,
            pid: std::process::id(),
            world,
            rules,
            state: Mutex::new(Standing::new(me, size, rules.silence)),
            bell: Bell::new().map_err(trouble)?,
            news: Bell::new().map_err(trouble)?,
            lacked: AtomicI32::new(0),
            starved: AtomicBool::new(false),
            begun: AtomicBool::new(false),
        });
        leaving::at_exit(&control);
        let shared = Arc::clone(&control);
        let thread = std::thread::Builder::new()
            .name("comity-control".into())
            .spawn(move || shared.serve(acceptor, probes))
            .map_err(trouble)?;
        Ok(Self { control, thread: Some(thread) })
    }

    pub(crate) fn control(&self) -> &Control {
        &self.control
    }

    /// For the store, which may outlive it.
    pub(crate) fn share(&self) -> Weak<dyn Job> {
        let control: Weak<Control> = Arc::downgrade(&self.control);
        control
    }

    /// Say goodbye and end, within half a second. Words tell why this rank could not join.
    pub(crate) fn end(&mut self, words: &str) {
        let Some(thread) = self.thread.take() else { return };
        let mut state = self.control.lock();
        state.farewell(words);
        state.stop = Some(Instant::now() + LAST_WORDS);
        drop(state);
        self.control.bell.ring();
        let _ = thread.join();
        self.control.lock().clear();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end("");
    }
}

impl Job for Control {
    fn holds(&self, rank: usize) -> bool {
        matches!(self.lock().presence(rank), Some(Presence::Oneself | Presence::Live))
    }

    fn condemn(&self, rank: usize, cause: &str) -> bool {
        let done = self.lock().condemn(rank, cause);
        self.bell.ring();
        done
    }
}

impl Control {
    fn lock(&self) -> MutexGuard<'_, Standing> {
        // No code panics while it holds the lock and leaves half a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rings when [`standing`](Self::standing) may have changed.
    pub(crate) fn news(&self) -> &Bell {
        &self.news
    }

    /// This rank's first group stands. Before, a slow host is no reason to take anyone for dead.
    pub(crate) fn begin(&self) {
        if !self.begun.swap(true, Ordering::AcqRel) {
            self.bell.ring();
        }
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire)
    }

    /// Take over a control connection that this rank has made.
    pub(crate) fn attach(&self, rank: usize, stream: Stream, seals: Sealing) {
        self.lock().attach(rank, stream, seals, Instant::now());
        self.bell.ring();
    }

    /// Who has not connected yet, or what became of one who never will.
    pub(crate) fn standing(&self) -> Result<Vec<usize>, (usize, String)> {
        self.lock().membership().absent()
    }

    /// Why this process did not take connections, if so.
    pub(crate) fn lacked(&self) -> Option<Error> {
        let code = self.lacked.load(Ordering::Relaxed);
        let why =
            || Error::os("taking the connections of other ranks", std::io::Error::from_raw_os_error(code));
        (code != 0).then(why)
    }

    /// The same, if it has gone on for so long that the others will not get in.
    pub(crate) fn starved(&self) -> Option<Error> {
        self.lacked().filter(|_| self.starved.load(Ordering::Relaxed))
    }

    /// Who others say is at fault in a group that this rank has not opened.
    pub(crate) fn foretold(&self) -> Option<(usize, String)> {
        self.lock().membership().foretold()
    }

    /// One that said why it could not join.
    pub(crate) fn gave_up(&self) -> Option<(usize, String)> {
        self.lock().membership().gave_up()
    }

    /// Begin to watch the members of a group. False if it is open already.
    pub(crate) fn enter(&self, context: u64, members: &[usize], mine: usize, watch: &Arc<Watch>) -> bool {
        let new = self.lock().enter(context, members, mine, watch);
        self.bell.ring();
        new
    }

    /// The connections that have come for a group.
    pub(crate) fn arrivals(&self, context: u64) -> Vec<Arrival> {
        let parked = &mut self.lock().parked;
        let (mine, others) = std::mem::take(parked).into_iter().partition(|a| a.context == context);
        *parked = others;
        mine
    }

    /// Leave a group, and tell its members unless it never came to be.
    pub(crate) fn leave(&self, context: u64, tell: bool) {
        if self.lock().leave(context, tell) {
            // What had no room goes out from there.
            self.bell.ring();
        }
    }

    /// Tell some of a group's ranks that this one waits for them in `call`.
    pub(crate) fn ask(&self, context: u64, ranks: &[usize], call: &Header) {
        self.lock().ask(context, ranks, call);
        self.bell.ring();
    }

    /// Ask a group's other members how far they have come.
    pub(crate) fn census(&self, context: u64, at: u64) {
        self.lock().census(context, at);
        self.bell.ring();
    }

    /// Where a rank of a group waits for this one; see [`World::waits`](crate::status::World::waits).
    pub(crate) fn waits(&self, context: u64, rank: usize) -> Option<(Header, bool)> {
        self.lock().waits(context, rank)
    }

    /// Tell the members of a group that it has failed.
    pub(crate) fn abort(&self, context: u64, failure: &Failure) {
        self.lock().abort(context, failure.clone());
        self.bell.ring();
    }

    /// Close every connection without a word, as the system does when a process is killed.
    #[cfg(test)]
    pub(crate) fn die(&self) {
        self.lock().die(Instant::now());
        self.bell.ring();
    }

    fn serve(&self, mut acceptor: Acceptor, mut probes: Probes) {
        let mut looked = Instant::now();
        loop {
            let begun = self.has_begun();
            let state = self.lock();
            let lines = state.live();
            let stop = state.stop;
            let said = || lines.iter().all(|l| !l.pending && l.stream.has_arrived());
            if stop.is_some_and(|s| Instant::now() >= s || said()) {
                return;
            }
            let parked = state.parked.iter().map(|a| a.until).min();
            let due = if stop.is_none() && begun { state.membership().next() } else { None };
            drop(state);

            // Whatever has come by now is found below, so nobody is thought silent because this thread was kept waiting.
            let heard_until = Instant::now();
            // The system does not say when the last word has arrived.
            let look = stop.map(|s| s.min(heard_until + LOOK));
            let until = parked.into_iter().chain(look).chain(due).min();
            if stop.is_none() && !self.rules.silence.rest.is_zero() {
                // Beats that come one by one would wake this thread for each.
                let rested = looked + self.rules.silence.rest;
                self.wait(&acceptor, &probes, &[], Some(until.map_or(rested, |until| until.min(rested))));
            }
            let ready = self.wait(&acceptor, &probes, &lines, until);
            looked = Instant::now();
            self.bell.hush();
            // Before the handshakes of those who ask: a process that was stopped has many waiting, and others for its word.
            let mut state = self.lock();
            if state.stop.is_none() && begun {
                state.beat(Instant::now());
            }
            drop(state);
            let accepted = acceptor.step(&mut |hello, stream| self.judge(hello, stream));
            if let Some(why) = acceptor.lacked() {
                self.lacked.store(why.raw_os_error(), Ordering::Relaxed);
                if acceptor.is_starved() && !begun {
                    self.starved.store(true, Ordering::Relaxed);
                    self.news.ring();
                }
            }

            let alive = probes.step();

            let mut state = self.lock();
            let mut rest = Rest::default();
            for a in accepted {
                rest.add(self.receive(&mut state, a));
            }
            for rank in alive {
                rest.add(state.lives(rank, Instant::now()));
            }
            rest.add(state.hear(&ready, Instant::now()));
            let now = Instant::now();
            if state.stop.is_none() && begun {
                rest.add(state.tick(heard_until, now));
            }
            state.parked.retain(|a| a.until > now);
            drop(state);
            if rest.news {
                self.news.ring();
            }
            rest.words.iter().for_each(log);
            rest.ended.into_iter().for_each(|rank| probes.forget(rank));
            rest.asks.into_iter().for_each(|(rank, at)| probes.ask(rank, at));
        }
    }

    /// Sleep until there is something to do; the ranks that have something to say or room to be told, and whether they have ended.
    fn wait(
        &self,
        acceptor: &Acceptor,
        probes: &Probes,
        lines: &[Line],
        until: Option<Instant>,
    ) -> Vec<(usize, bool)> {
        let mut fds = vec![PollFd::from_borrowed_fd(self.bell.fd(), PollFlags::IN)];
        for line in lines {
            let write = if line.pending { PollFlags::OUT } else { PollFlags::empty() };
            fds.push(PollFd::new(&line.stream, PollFlags::IN | write));
        }
        fds.extend(lines.iter().flat_map(|l| &l.process).map(|p| PollFd::new(p, PollFlags::IN)));
        let until = acceptor.interest(&mut fds).into_iter().chain(until).min();
        let until = probes.interest(&mut fds).into_iter().chain(until).min();
        // The descriptors are ours and open; if the system still refuses, do not spin.
        if poll_until(&mut fds, until).is_err() {
            std::thread::sleep(Duration::from_millis(10));
        }
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
        ready
    }

    fn judge(&self, hello: &Hello, stream: &Stream) -> Verdict {
        let no = |words: &str| Verdict::No(words.into());
        let state = self.lock();
        if hello.to as usize != self.me || hello.world != self.world {
            return no("it is not the rank, or not of the group, that you look for");
        }
        if hello.sealed != (self.rules.sealed && matches!(stream, Stream::Tcp(_))) {
            return no(
                "one of us was started with COMITY_SECURE=data and the other was not; all ranks need the same",
            );
        }
        // The higher rank connects.
        if hello.from as usize <= self.me {
            return no("this rank connects to you, not you to it");
        }
        let from = match state.presence(hello.from as usize) {
            Some(presence) if state.stop.is_none() => presence,
            _ => return no("it is leaving"),
        };
        match (hello.channel, from) {
            (Channel::Control, Presence::Absent) => Verdict::Yes,
            (Channel::Control, _) => {
                no("this rank is connected already; every process needs a rank of its own")
            }
            // Its control connection stands for it, but the end of that handshake is not read here yet.
            (Channel::Shm | Channel::Tcp { .. } | Channel::Rdma | Channel::Probe, Presence::Absent) => {
                Verdict::Busy
            }
            (
                Channel::Shm | Channel::Tcp { .. } | Channel::Rdma | Channel::Probe,
                Presence::Dead(_) | Presence::Shut(_),
            ) => no("you are not a member any more"),
            (Channel::Probe, _) => Verdict::Yes,
            (Channel::Shm, _) if !self.rules.shm || !matches!(stream, Stream::Unix(_)) => {
                no("it does not share memory")
            }
            (Channel::Rdma, _) if !self.rules.rdma => no("it has no RDMA device for this pair"),
            (Channel::Tcp { .. } | Channel::Rdma, _) if !matches!(stream, Stream::Tcp(_)) => {
                no("that is not a TCP connection")
            }
            (Channel::Shm | Channel::Tcp { .. } | Channel::Rdma, _)
                if state.membership().is_closed(hello.context) =>
            {
                no("it has left that group")
            }
            (Channel::Shm | Channel::Tcp { .. } | Channel::Rdma, _) if state.parked.len() >= MAX_PARKED => {
                Verdict::Busy
            }
            (Channel::Shm | Channel::Tcp { .. } | Channel::Rdma, _) => Verdict::Yes,
            (Channel::Join, _) => no("it is a rank, not the store"),
        }
    }

    fn receive(&self, state: &mut Standing, Accepted { stream, hello, seals }: Accepted) -> Rest {
        let from = hello.from as usize;
        match hello.channel {
            Channel::Control => {
                state.attach(from, stream, seals, Instant::now());
                return Rest { news: true, ..Rest::default() };
            }
            Channel::Probe => return state.lives(from, Instant::now()),
            Channel::Join | Channel::Shm | Channel::Tcp { .. } | Channel::Rdma => {}
        }
        let until = Instant::now() + self.rules.patience;
        let (channel, context) = (hello.channel, hello.context);
        state.parked.push(Arrival { from, channel, stream, seals, context, until });
        if let Some(watch) = state.watch(context) {
            watch.ring();
        }
        Rest::default()
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

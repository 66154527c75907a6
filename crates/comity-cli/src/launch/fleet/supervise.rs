//! The process that holds the connections to all hosts: it brings the job up, and ends it.
use super::connection::{HostConnection, HostPhase};
use super::events::FarRank;
use super::meeting::open_store;
use super::plan::FleetPlan;
use super::show::FleetShow;
use super::{AttemptEnd, ssh};
use crate::launch::journal::Journal;
use crate::launch::meet;
use crate::launch::output::{OutputStream, Outputs};
use crate::launch::shutdown::{Shutdown, StopOrder, StopReason};
use crate::launch::signals::Signals;
use crate::launch::supervisor::stand_alone;
use crate::launch::verdict::{CutOff, with_cut_off};
use crate::launch::wire::{BEAT, FleetOrder};
use crate::launch::wish::{FrontLine, UserWish, wish};
use crate::launch::{REFUSED, USAGE};
use comity::{Key, tools::Store};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Runs the job; the exit code, and its end.
pub(super) fn supervise(plan: FleetPlan, front_end: UnixStream, input: OwnedFd) -> (u8, AttemptEnd) {
    let is_first = plan.restart == 0;
    match Fleet::open(plan, front_end, input) {
        Ok(fleet) => fleet.run(),
        Err((problems, code)) => {
            problems.iter().for_each(|why| {
                let _ = writeln!(io::stderr(), "comity launch: {why}");
            });
            let end = if code == USAGE { AttemptEnd::Final } else { AttemptEnd::Ran };
            (code, if is_first { end } else { AttemptEnd::NotBegun })
        }
    }
}

/// Why a job is not begun, and the exit code.
type NotBegun = (Vec<String>, u8);

pub(super) struct Fleet {
    pub(super) plan: FleetPlan,
    pub(super) connections: Vec<HostConnection>,
    pub(super) ranks: Vec<FarRank>,
    pub(super) shutdown: Shutdown,
    pub(super) store: Store,
    pub(super) output: Outputs,
    pub(super) unstarted: Option<(String, u8)>,
    /// The ranks that did not end in time after SIGTERM.
    cut_off: Option<CutOff>,
    /// Problems, one sentence a host, with the exit code.
    pub(super) problems: Vec<(String, u8)>,
    /// Why a host was lost.
    pub(super) losses: Vec<(usize, String)>,
    pub(super) key: Key,
    pub(super) job: String,
    at: IpAddr,
    signals: Signals,
    front_end: FrontLine,
    input: Option<OwnedFd>,
    pub(super) journal: Journal,
    pub(super) unread: Option<(OutputStream, Errno)>,
    pub(super) running: bool,
    beat_due: Instant,
    pub(super) looked: Instant,
    pub(super) show: FleetShow,
    buffer: Vec<u8>,
}

/// Every rank of every host.
fn ranks(plan: &FleetPlan) -> Result<Vec<FarRank>, String> {
    let mut ranks = Vec::with_capacity(plan.world);
    for (index, host) in plan.hosts.iter().enumerate() {
        for rank in host.part.first..host.part.first + host.part.size {
            ranks.push(FarRank::new(plan, (index, host.name()), rank)?);
        }
    }
    Ok(ranks)
}

#[derive(Clone, Copy)]
enum FleetSource {
    FrontEnd,
    Signals,
    Waker,
    Input,
    Asked,
    From(usize),
    To(usize),
    Noise(usize),
}

/// The store at `at`, or why the ranks cannot meet there.
fn meeting_store(plan: &FleetPlan, of: (&Key, &str), at: IpAddr) -> Result<Store, NotBegun> {
    open_store(plan, of, at, &[]).map_err(|e| {
        let why = format!(
            "the ranks cannot meet at {at}: {e}; --meet-at chooses another address or port of this machine"
        );
        // One that was named is the user's to mend.
        let is_named = plan.meet_at.is_some() || *plan.ports.end() > 0;
        (vec![why], if is_named { USAGE } else { REFUSED })
    })
}

impl Fleet {
    fn open(plan: FleetPlan, front_end: UnixStream, input: OwnedFd) -> Result<Self, NotBegun> {
        let refused = |why: String| (vec![why], REFUSED);
        let fail = |e: io::Error| refused(format!("cannot prepare the job: {e}"));
        let open_files = stand_alone().map_err(fail)?;
        let mut far = plan.hosts.iter().map(|h| &h.host).filter(|h| !h.is_here());
        let at = match plan.meet_at {
            Some(at) => at,
            None => ssh::towards_any(&plan.way, &mut far)
                .map_err(|all| (all, USAGE))?
                .unwrap_or_else(meet::loopback),
        };
        let (key, job) = meet::identity(plan.insecure).map_err(fail)?;
        let store = meeting_store(&plan, (&key, &job), at)?;
        let output = Outputs::open().map_err(fail)?;
        store.on_waiting(output.voice());
        let ranks = ranks(&plan).map_err(|why| (vec![why], USAGE))?;
        let timeout = plan.timeout.and_then(|t| Instant::now().checked_add(t));
        let show = FleetShow::open(&plan, &job).map_err(fail)?;
        let mut fleet = Self {
            shutdown: Shutdown::new(plan.world, timeout).with_grace(plan.grace),
            connections: Vec::with_capacity(plan.hosts.len()),
            ranks,
            store,
            output,
            unstarted: None,
            cut_off: None,
            problems: Vec::new(),
            losses: Vec::new(),
            key,
            job,
            at,
            signals: Signals::open(&[]).map_err(fail)?,
            front_end: FrontLine::new(front_end).map_err(fail)?,
            input: Some(input),
            journal: Journal::to(plan.events.clone()).map_err(fail)?,
            unread: None,
            running: false,
            beat_due: Instant::now(),
            looked: Instant::now(),
            show,
            buffer: vec![0; 64 << 10],
            plan,
        };
        if fleet.plan.restart > 0 {
            fleet.journal.restarts(fleet.plan.restart, fleet.plan.max_restarts);
        }
        for index in 0..fleet.plan.hosts.len() {
            let started = HostConnection::start(&fleet.plan, index, open_files);
            fleet.connections.push(started.map_err(|(why, code)| (vec![why], code))?);
            // Those that have answered are heard, and hear beats, while the rest are called: 64 take seconds on a crowded machine.
            fleet.turn(Some(Instant::now()));
        }
        Ok(fleet)
    }

    fn run(mut self) -> (u8, AttemptEnd) {
        if self.plan.insecure {
            self.output.say("--insecure: the job has no key; whoever can connect to a rank can join it");
        }
        let begun = self.connect();
        if begun {
            self.go();
            while !self.shutdown.over() {
                self.turn(self.shutdown.next());
                self.leave_stopped();
                if let Some(order) = self.shutdown.tick(Instant::now()) {
                    self.carry_out(order);
                }
            }
        }
        let (text, code) = if begun || self.shutdown.cause().is_some() {
            self.farewell();
            let (text, code) = self.verdict();
            (with_cut_off(text, self.cut_off.iter()), code)
        } else {
            let code = self.problems.iter().map(|(_, code)| *code).find(|c| *c != USAGE).unwrap_or(USAGE);
            self.problems.iter().for_each(|(why, _)| self.output.say(why));
            match self.plan.restart {
                0 => self.output.say("nothing was run"),
                n => self.output.say(&format!("restart {n} did not come to run")),
            }
            self.farewell();
            (None, code)
        };
        let outside = self.shutdown.cause().is_some_and(StopReason::is_from_outside);
        let unstarted = self.unstarted.as_ref().is_some_and(|(_, code)| *code == USAGE);
        // Input that cannot be right the next time. A host that was there before may come back.
        let is_bad = self.plan.restart == 0 && code == USAGE && (!begun || unstarted);
        self.summary().iter().for_each(|s| self.output.say(s));
        if let Some(text) = &text {
            self.output.say(text);
        }
        let first = self.problems.first().map(|(why, _)| why.as_str());
        self.journal.over(text.as_deref().or(first), code);
        let since = Instant::now();
        let patience = |f: &Self| !matches!(f.shutdown.cause(), None | Some(StopReason::Failed { .. }));
        while self.output.is_pending() && !(patience(&self) && since.elapsed() > Duration::from_secs(2)) {
            self.turn(Some(Instant::now() + Duration::from_millis(100)));
        }
        let end = match (outside || is_bad, begun || self.plan.restart == 0) {
            (true, _) => AttemptEnd::Final,
            (false, true) => AttemptEnd::Ran,
            (false, false) => AttemptEnd::NotBegun,
        };
        (code, end)
    }

    /// Every host is ready: tells them where to meet, and to run.
    fn go(&mut self) {
        self.listen_everywhere();
        let go = FleetOrder::Go(Box::new(self.meeting()));
        if self.plan.verbose {
            let at = self.store.addr();
            self.output.say(&format!("job {}: {} ranks meet at {at}", self.job, self.plan.world));
        }
        for connection in &mut self.connections {
            connection.send(&go);
            connection.phase = HostPhase::Running;
        }
        self.running = true;
    }

    /// Waits until something happens, or `until`, and deals with all that has happened.
    pub(super) fn turn(&mut self, until: Option<Instant>) {
        let until = until.map_or(self.beat_due, |t| t.min(self.beat_due));
        for source in self.wait(until) {
            match source {
                FleetSource::FrontEnd => self.listen(),
                FleetSource::Waker => self.check_outputs(),
                FleetSource::Input => self.feed(),
                FleetSource::Asked => self.asked(),
                FleetSource::From(host) => self.hear(host),
                FleetSource::To(host) => self.connections[host].flush(),
                FleetSource::Noise(host) => {
                    let mut buffer = std::mem::take(&mut self.buffer);
                    self.connections[host].read_noise(&mut buffer);
                    self.buffer = buffer;
                }
                FleetSource::Signals => {
                    for signal in self.signals.take() {
                        if signal != libc::SIGCHLD {
                            self.fulfil(wish(signal));
                        }
                    }
                }
            }
        }
        let now = Instant::now();
        if now >= self.beat_due {
            self.beat_due = now + BEAT;
            self.connections.iter_mut().for_each(|c| c.send(&FleetOrder::Beat));
            // While nobody takes the output, hosts are not read, and cannot be missed.
            if OutputStream::BOTH.iter().all(|s| self.output.has_room(*s)) {
                for host in 0..self.connections.len() {
                    if self.connections[host].is_silent() {
                        self.lose(host, "it has fallen silent");
                    }
                }
            }
        }
    }

    fn wait(&self, until: Instant) -> Vec<FleetSource> {
        let mut fds = vec![PollFd::new(self.output.waker(), PollFlags::IN)];
        let mut sources = vec![FleetSource::Waker];
        let mut add = |fd, source| {
            fds.push(fd);
            sources.push(source);
        };
        if let Some(front_end) = self.front_end.socket() {
            add(PollFd::new(front_end, PollFlags::IN), FleetSource::FrontEnd);
        }
        self.signals.wants().for_each(|fd| add(fd, FleetSource::Signals));
        self.show.want().into_iter().for_each(|fd| add(fd, FleetSource::Asked));
        let fed = self.connections.iter().any(|c| c.fed);
        if let (Some(input), true, false) = (&self.input, self.running, fed) {
            add(PollFd::new(input, PollFlags::IN), FleetSource::Input);
        }
        let room = OutputStream::BOTH.iter().all(|s| self.output.has_room(*s));
        for (index, connection) in self.connections.iter().enumerate() {
            if let (Some(fd), true) = (&connection.from, room) {
                add(PollFd::new(fd, PollFlags::IN), FleetSource::From(index));
            }
            if let Some(fd) = &connection.err {
                add(PollFd::new(fd, PollFlags::IN), FleetSource::Noise(index));
            }
            if let Some(fd) = connection.wants_out() {
                add(PollFd::new(fd, PollFlags::OUT), FleetSource::To(index));
            }
        }
        let pause = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
        if rustix::event::poll(&mut fds, pause.as_ref()).is_err() {
            return Vec::new();
        }
        fds.iter().zip(sources).filter(|(fd, _)| !fd.revents().is_empty()).map(|(_, s)| s).collect()
    }

    fn listen(&mut self) {
        for wish in self.front_end.listen() {
            self.fulfil(wish);
        }
    }

    fn fulfil(&mut self, wish: UserWish) {
        match wish {
            UserWish::Stop => {
                self.tell_running(&FleetOrder::Stop);
                self.front_end.all_stopped();
            }
            UserWish::Continue => self.tell_running(&FleetOrder::Continue),
            UserWish::Pass(signal) => self.tell_running(&FleetOrder::Pass(signal)),
            UserWish::End(reason) => self.stop(reason),
        }
    }

    /// Hands the next piece of standard input to every host, which give it to every rank.
    fn feed(&mut self) {
        let Some(input) = &self.input else { return };
        let order = match rustix::io::read(input, &mut self.buffer[..16 << 10]) {
            Ok(n) if n > 0 => FleetOrder::Input(self.buffer[..n].to_vec()),
            Err(Errno::INTR | Errno::AGAIN) => return,
            _ => {
                self.input = None;
                FleetOrder::InputEnd
            }
        };
        let only = self.plan.stdin_rank.and_then(|r| self.ranks.get(r)).map(|r| r.host);
        let to = |host: usize| only.is_none_or(|o| o == host);
        for (host, connection) in self.connections.iter_mut().enumerate() {
            connection.fed = self.input.is_some() && to(host) && connection.phase == HostPhase::Running;
            if to(host) || order == FleetOrder::InputEnd {
                connection.send(&order);
            }
        }
    }

    fn check_outputs(&mut self) {
        self.output.drain();
        while let Some((stream, error)) = self.output.failure() {
            if self.plan.log_dir.is_none() && self.unread.is_none() {
                self.unread = Some((stream, error));
                self.stop(StopReason::Unread);
            }
        }
    }

    pub(super) fn stop(&mut self, cause: StopReason) {
        if let Some(order) = self.shutdown.stop(cause, Instant::now()) {
            self.carry_out(order);
        }
    }

    pub(super) fn carry_out(&mut self, order: StopOrder) {
        match order {
            StopOrder::Term => self.send_all(&FleetOrder::Term),
            StopOrder::Kill => {
                if let Some(after) = self.shutdown.cut_after() {
                    let alive = self.ranks.iter().enumerate().filter(|(_, r)| r.alive);
                    self.cut_off = Some(CutOff { ranks: alive.map(|(n, _)| n).collect(), after });
                }
                self.send_all(&FleetOrder::Kill);
            }
            StopOrder::Abandon => {
                let left = self.ranks.iter().enumerate().filter(|(_, r)| r.alive);
                let names: Vec<_> = left.map(|(n, _)| self.name(n)).collect();
                self.output
                    .say(&format!("left behind, for they do not die of SIGKILL: {}", names.join(", ")));
            }
        }
    }

    /// Hosts where ranks run. The others wait for another order, and take none in its place.
    pub(super) fn tell_running(&mut self, order: &FleetOrder) {
        self.connections.iter_mut().filter(|c| c.phase == HostPhase::Running).for_each(|c| c.send(order));
    }

    fn send_all(&mut self, order: &FleetOrder) {
        self.connections.iter_mut().for_each(|c| c.send(order));
    }

    /// Address at which the ranks meet.
    pub(super) fn address(&self) -> IpAddr {
        self.at
    }

    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }
}

//! The process that holds the connections to all hosts: it brings the job up, and ends it.
use super::beginning::open_store;
use super::connection::{HostConnection, HostPhase};
use super::events::FarRank;
use super::plan::FleetPlan;
use super::show::FleetShow;
use super::ssh;
use crate::address;
use crate::elastic::{self, TakenIn};
use crate::host::job::open_logs;
use crate::host::meet;
use crate::host::output::{Lines, OutputStream, Outputs, RankStream, unread};
use crate::host::signals::Signals;
use crate::host::supervisor::stand_alone;
use crate::journal::Journal;
use crate::machine::{
    Action, AttemptEnd, Event, JobPlan, Machine, Problem, REFUSED, Role, StopOrder, StopReason, USAGE,
    Verdict, with_cut_off,
};
use crate::protocol::{BEAT, FleetOrder};
use crate::upstream::{FrontLine, Order, Upstream};
use comity::Key;
use comity::tools::Store;
use comity_base::sys::poll_until;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::Rlimit;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

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

/// Sentences about a job that is not begun, and the exit code.
type NotBegun = (Vec<String>, u8);

pub(super) struct Fleet {
    pub(super) plan: FleetPlan,
    pub(super) connections: Vec<HostConnection>,
    pub(super) ranks: Vec<FarRank>,
    /// Decides; this process does what it says.
    pub(super) machine: Machine,
    pub(super) store: Store,
    pub(super) output: Outputs,
    pub(super) key: Key,
    pub(super) job: String,
    /// Address at which the ranks meet.
    pub(super) at: IpAddr,
    signals: Signals,
    front_end: FrontLine,
    input: Option<OwnedFd>,
    pub(super) journal: Journal,
    beat_due: Instant,
    /// No host is told anything any more.
    closed: bool,
    /// All hosts were told to run.
    has_gone: bool,
    /// Processes that the running job took in.
    pub(super) taken_in: Option<TakenIn>,
    /// The limit of open files with which the job was started.
    pub(super) open_files: Rlimit,
    /// The exit code, once the verdict is known.
    code: u8,
    pub(super) show: FleetShow,
    pub(super) buffer: Vec<u8>,
}

/// Every rank of every host, with its logs.
fn ranks(plan: &FleetPlan) -> Result<Vec<FarRank>, Problem> {
    let logs = plan.job.log_dir.as_deref().map(|dir| open_logs(dir, 0..plan.world)).transpose()?;
    let mut logs = logs
        .into_iter()
        .flatten()
        .map(|files| files.map(Some))
        .chain(std::iter::repeat_with(Default::default));
    let mut ranks = Vec::with_capacity(plan.world);
    for (host, planned) in plan.hosts.iter().enumerate() {
        for rank in planned.part.first..planned.part.first + planned.part.size {
            let place = format!("@{}", planned.name());
            let tag = plan.job.tag_output.applies(plan.world);
            let lines = |stream: OutputStream| match tag {
                _ if plan.job.is_talked_to(rank) => Lines::Straight,
                true if plan.hosts.len() > 1 => Lines::tagged(rank, &place, stream.has_colour()),
                tag => Lines::new(rank, plan.world, tag, stream.has_colour()),
            };
            let [out, err] = logs.next().unwrap_or_default();
            let streams = [
                RankStream::new(OutputStream::Out, lines, out),
                RankStream::new(OutputStream::Err, lines, err),
            ];
            ranks.push(FarRank { host, pid: 0, root_cause: None, streams });
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
    TakenIn,
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
        let is_named = plan.meet_at().is_some() || *plan.ports.end() > 0;
        (vec![why], if is_named { USAGE } else { REFUSED })
    })
}

impl Fleet {
    fn open(plan: FleetPlan, front_end: UnixStream, input: OwnedFd) -> Result<Self, NotBegun> {
        let refused = |why: String| (vec![why], REFUSED);
        let fail = |e: io::Error| refused(format!("cannot prepare the job: {e}"));
        let open_files = stand_alone().map_err(fail)?;
        let mut far = plan.hosts.iter().map(|h| &h.host).filter(|h| !h.is_here());
        let at = match plan.meet_at() {
            Some(at) => at,
            None => ssh::towards_any(&plan.ssh_options, &mut far)
                .map_err(|all| (all, USAGE))?
                .unwrap_or_else(address::loopback),
        };
        let (key, job) = meet::identity(plan.job.terms.insecure, plan.elastic.is_some()).map_err(fail)?;
        let store = meeting_store(&plan, (&key, &job), at)?;
        let output = Outputs::open().map_err(fail)?;
        store.on_waiting(output.voice());
        let ranks = ranks(&plan).map_err(|problem| (vec![problem.why], problem.code))?;
        let job_plan = JobPlan {
            role: Role::Fleet,
            first: 0,
            hosts: ranks.iter().map(|r| r.host).collect(),
            world: plan.world,
            timeout: plan.job.timeout,
            grace: plan.job.grace(),
            restart: plan.restart,
            elastic: plan.elastic.map(|(terms, _)| terms),
        };
        let show = FleetShow::open(&plan, &job).map_err(fail)?;
        let mut fleet = Self {
            machine: Machine::new(job_plan, Instant::now()),
            connections: Vec::with_capacity(plan.hosts.len()),
            ranks,
            store,
            output,
            key,
            job,
            at,
            signals: Signals::open(&[]).map_err(fail)?,
            front_end: FrontLine::new(front_end).map_err(fail)?,
            input: Some(input),
            journal: Journal::to(plan.events.clone()).map_err(fail)?,
            beat_due: Instant::now(),
            closed: false,
            has_gone: false,
            taken_in: None,
            open_files,
            code: REFUSED,
            show,
            buffer: vec![0; 64 << 10],
            plan,
        };
        if fleet.plan.restart > 0 {
            fleet.journal.restarts(fleet.plan.restart, fleet.plan.job.restarts_of_job());
        }
        fleet.tell(Event::Begin);
        for index in 0..fleet.plan.hosts.len() {
            let started = HostConnection::start(&fleet.plan, index, open_files);
            fleet.connections.push(started.map_err(|problem| (vec![problem.why], problem.code))?);
            // Those that have answered are heard, and hear beats, while the rest are called: 64 take seconds on a crowded machine.
            fleet.turn(Some(Instant::now()));
        }
        Ok(fleet)
    }

    fn run(mut self) -> (u8, AttemptEnd) {
        if self.plan.job.terms.insecure {
            self.output.say("--insecure: the job has no key; whoever can connect to a rank can join it");
        }
        self.carry_out();
        self.gather();
        while !self.machine.is_over() {
            self.step(None);
        }
        (self.code, AttemptEnd::of(&self.machine, self.code))
    }

    /// Deals with what happens until the machine has something to do, or until then, and does what it wants.
    pub(super) fn step(&mut self, until: Option<Instant>) {
        self.turn(self.machine.next().into_iter().chain(until).min());
        self.machine.tick(Instant::now());
        self.carry_out();
    }

    /// Tells the machine; [`carry_out`](Self::carry_out) follows.
    pub(super) fn tell(&mut self, event: Event) {
        self.machine.on(event, Instant::now());
    }

    /// Does what the machine wants, until it wants nothing.
    fn carry_out(&mut self) {
        loop {
            let actions = self.machine.actions();
            if actions.is_empty() {
                return;
            }
            actions.into_iter().for_each(|action| self.perform(action));
        }
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Compare => {
                let problems = self.differences();
                self.tell(Event::Compared { problems });
            }
            Action::Start(ranks) if self.has_gone => self.start_again(ranks),
            // Every host starts its own.
            Action::Start(_) => self.go(),
            Action::SayProblems => self.say_problems(),
            Action::FindStopped => self.tell_running(&FleetOrder::FindStopped),
            Action::End(order) => self.end(order),
            Action::AskForCauses => (0..self.ranks.len()).for_each(|rank| self.tell_cause(rank)),
            Action::EndStrays(order) => self.part(order),
            Action::LookForStrays => {
                let left = self.is_parting();
                self.tell(Event::Strays { left });
            }
            Action::LookAtOutput => {
                // What hosts have not sent by now is lost.
                let pending = self.output.is_pending();
                let written = self.output.written();
                self.tell(Event::Output { open: false, pending, written });
            }
            Action::CloseOutput => {
                for (number, rank) in self.ranks.iter_mut().enumerate() {
                    rank.streams.iter_mut().for_each(|stream| stream.finish(number, &self.output));
                }
            }
            // Of the launchers of several nodes.
            Action::LookAtOthers | Action::TellFindings => {}
            Action::SayLost { rank, again } => self.say_lost(rank, again),
            Action::SayHostLost { host, pause } => self.say_host_lost(host, pause),
            Action::TryHost { host } => self.try_host(host),
            Action::SayVerdict => self.say_verdict(),
        }
    }

    fn say_problems(&self) {
        self.machine.problems.iter().for_each(|problem| self.output.say(&problem.why));
        match self.plan.restart {
            0 => self.output.say("nothing was run"),
            n => self.output.say(&format!("restart {n} did not come to run")),
        }
    }

    fn say_verdict(&mut self) {
        let found = Verdict::of(&self.machine, &|rank| self.name(rank), self.plan.job.log_dir.as_deref());
        let text = with_cut_off(found.text, self.machine.cut_off.iter());
        found.summary.iter().chain(&text).for_each(|line| self.output.say(line));
        let first = self.machine.problems.first().map(|problem| problem.why.clone());
        self.journal.over(text.or(first).as_deref(), found.code);
        self.code = found.code;
    }

    /// Closes the connections to the hosts, which have cleared up or had their time, or gives up on their `ssh`.
    fn part(&mut self, order: StopOrder) {
        self.closed = true;
        self.connections.iter_mut().for_each(HostConnection::close);
        if order == StopOrder::Abandon {
            let left = self.connections.iter_mut().filter_map(|c| c.ended().is_none().then_some(c));
            left.for_each(HostConnection::kill);
        }
    }

    /// Returns whether hosts clear up, or where they are parted from, whether an `ssh` still runs.
    fn is_parting(&mut self) -> bool {
        match self.closed {
            true => self.connections.iter_mut().any(|c| c.ended().is_none()),
            false => self.connections.iter().any(|c| c.phase == HostPhase::Running),
        }
    }

    /// Every host is ready: tells them where to meet, and to run.
    fn go(&mut self) {
        self.listen_everywhere();
        self.has_gone = true;
        self.hear_store();
        let go = FleetOrder::Go(Box::new(self.meeting()));
        if self.plan.job.verbose {
            let at = self.store.addr();
            self.output.say(&format!("job {}: {} ranks meet at {at}", self.job, self.plan.world));
        }
        if let (Some(_), FleetOrder::Go(go)) = (self.plan.elastic, &go) {
            let at = go.store.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
            elastic::how_to_join(&at, self.plan.job.terms.insecure)
                .iter()
                .for_each(|line| self.output.say(line));
        }
        for connection in &mut self.connections {
            connection.send(&go);
            connection.phase = HostPhase::Running;
        }
    }

    /// Waits until something happens, or `until`, and deals with all that has happened.
    pub(super) fn turn(&mut self, until: Option<Instant>) {
        let until = until.map_or(self.beat_due, |t| t.min(self.beat_due));
        for source in self.wait(until) {
            match source {
                FleetSource::FrontEnd => {
                    let orders = self.front_end.take();
                    orders.into_iter().for_each(|order| self.obey(order));
                }
                FleetSource::Waker => self.check_outputs(),
                FleetSource::Input => self.feed(),
                FleetSource::Asked => self.asked(),
                FleetSource::TakenIn => self.hear_taken_in(),
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
                            self.obey(Order::of_signal(signal));
                        }
                    }
                }
            }
        }
        let now = Instant::now();
        if now >= self.beat_due {
            self.beat_due = now + BEAT;
            self.connections.iter_mut().for_each(|c| c.send(&FleetOrder::Beat));
            if self.has_gone {
                self.miss_the_late();
            }
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
        let mut fds = vec![self.output.want()];
        let mut sources = vec![FleetSource::Waker];
        let mut add = |fd, source| {
            fds.push(fd);
            sources.push(source);
        };
        if let Some(fd) = self.front_end.want() {
            add(fd, FleetSource::FrontEnd);
        }
        self.signals.wants().for_each(|fd| add(fd, FleetSource::Signals));
        self.show.want().into_iter().for_each(|fd| add(fd, FleetSource::Asked));
        if let Some(taken_in) = &self.taken_in {
            add(taken_in.want(), FleetSource::TakenIn);
        }
        let fed = self.connections.iter().any(|c| c.fed);
        if let (Some(input), true, false) = (&self.input, self.machine.begun, fed) {
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
        if poll_until(&mut fds, Some(until)).is_err() {
            return Vec::new();
        }
        fds.iter().zip(sources).filter(|(fd, _)| !fd.revents().is_empty()).map(|(_, s)| s).collect()
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Suspend => {
                self.tell_running(&FleetOrder::Stop);
                self.front_end.all_stopped();
            }
            Order::Continue => self.tell_running(&FleetOrder::Continue),
            Order::Pass(signal) => self.tell_running(&FleetOrder::Pass(signal)),
            Order::News(event) => self.tell(event),
            Order::FrontEndLost => self.tell(Event::Stop(StopReason::Orphaned)),
            // Of launchers on other hosts; a terminal gives none.
            Order::Input(_) | Order::Look | Order::FindStopped => {}
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
        let only = self.plan.job.input().and_then(|only| self.ranks.get(only.rank())).map(|r| r.host);
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
            if self.plan.job.log_dir.is_none() {
                self.tell(Event::Stop(StopReason::Unread(unread(stream, error))));
            }
        }
    }

    fn end(&mut self, order: StopOrder) {
        match order {
            StopOrder::Term => self.send_all(&FleetOrder::Term),
            StopOrder::Kill => self.send_all(&FleetOrder::Kill),
            StopOrder::Abandon => {
                let names: Vec<_> = self.machine.awaited().map(|rank| self.name(rank)).collect();
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
}

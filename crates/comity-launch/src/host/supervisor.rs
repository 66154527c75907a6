//! The process that starts the ranks, carries their input and output, and ends them.
use crate::elastic::{self, TakenIn, joined, lost};
use crate::flights;
use crate::host::job::Job;
use crate::host::meet::{self, Meeting};
use crate::host::memory::Kills;
use crate::host::metrics::Metrics;
use crate::host::output::{OutputStream, Outputs, unread};
use crate::host::rank::{Rank, environment};
use crate::host::signals::{PassedSignal, Signals};
use crate::host::stdin::StdinFeed;
use crate::host::sys::host;
use crate::host::tree;
use crate::host::tree::Deaths;
use crate::journal::Journal;
use crate::live::Door;
use crate::machine::findings::NodeFindings;
use crate::machine::{
    Action, Ending, Event, JobPlan, Machine, Problem, REFUSED, Role, StopOrder, StopReason, USAGE, Verdict,
    with_cut_off,
};
use crate::nodes::watch::Nodes;
use crate::protocol::{self, HostEvent};
use crate::upstream::{FarLauncher, FrontLine, Order, Tidings, Upstream};
use comity_base::sys::poll_until;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, Signal, WaitOptions};
use std::io::{self, Write};
use std::net::TcpListener;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Lines shown of the report on a job that failed.
const REPORTED: usize = 6;

/// Runs the job and returns the exit code.
pub(crate) fn supervise(job: Job, front_end: UnixStream, input: OwnedFd) -> u8 {
    match Supervisor::open(job, front_end, input) {
        Ok(supervisor) => supervisor.run(),
        Err(e) => {
            let _ = writeln!(io::stderr(), "comity launch: cannot prepare the job: {e}");
            REFUSED
        }
    }
}

pub(crate) struct Supervisor {
    pub(crate) job: Job,
    pub(crate) meeting: Meeting,
    ranks: Vec<Rank>,
    /// Decides; this process does what it says.
    pub(crate) machine: Machine,
    deaths: Deaths,
    pub(crate) feed: StdinFeed,
    pub(crate) output: Outputs,
    signals: Signals,
    /// To the process that the user started.
    front_end: FrontLine,
    /// The launcher on another host that this one obeys.
    pub(crate) far_launcher: Option<FarLauncher>,
    /// The first process of the host launcher was killed: how the ranks end from now on says nothing about them.
    pub(crate) is_bereft: bool,
    /// The user has stopped the job.
    is_suspended: bool,
    /// Processes that the running job took in.
    taken_in: Option<TakenIn>,
    /// The launchers on other hosts that this one agreed with.
    pub(crate) nodes: Option<Nodes>,
    pub(crate) journal: Journal,
    pub(crate) kills: Kills,
    pub(crate) metrics: Option<Metrics>,
    /// Socket at which others ask for the state of the job.
    door: Option<Door>,
    /// The limit of open files with which the job was started, and which the ranks get.
    open_files: Rlimit,
    /// The exit code, once the verdict is known.
    code: u8,
    buffer: Vec<u8>,
}

/// Source of a descriptor in the poll set.
#[derive(Clone, Copy)]
enum Source {
    /// By its number among the [upstreams](Supervisor::upstreams).
    Upstream(usize),
    Signals,
    Waker,
    StdinFeed,
    TakenIn,
    Pipe(usize, usize),
}

impl Supervisor {
    fn open(mut job: Job, front_end: UnixStream, input: OwnedFd) -> io::Result<Self> {
        let open_files = stand_alone()?;
        // The terminal is read by the front end.
        rustix::stdio::dup2_stdin(&input)?;
        let front_end = FrontLine::new(front_end)?;
        let limit = meet::join_limit(&job.request.env);
        let meeting = Meeting::open(job.size, limit, job.request.terms.insecure, job.elastic.is_some())?;
        let listener = job.metrics.take();
        let output = Outputs::open()?;
        meeting.on_waiting(output.voice());
        let mut supervisor = Self::with(Role::Alone, job, meeting, (front_end, output), open_files)?;
        supervisor.show(listener)?;
        supervisor.feed = StdinFeed::new(input);
        if supervisor.job.elastic.is_some() {
            supervisor.taken_in = supervisor.meeting.taken_in(supervisor.job.guests)?;
        }
        Ok(supervisor)
    }

    /// The supervisor of the ranks here, in its place among those of the job.
    pub(crate) fn with(
        role: Role,
        mut job: Job,
        meeting: Meeting,
        (front_end, output): (FrontLine, Outputs),
        open_files: Rlimit,
    ) -> io::Result<Self> {
        let plan = JobPlan {
            role,
            first: job.first,
            hosts: vec![0; job.size],
            world: job.world,
            timeout: job.request.timeout,
            grace: job.request.grace(),
            restart: job.restarts.number,
            elastic: job.elastic,
        };
        Ok(Self {
            meeting,
            metrics: None,
            door: None,
            ranks: Vec::with_capacity(job.size),
            machine: Machine::new(plan, Instant::now()),
            deaths: Deaths::new()?,
            feed: StdinFeed::given(),
            nodes: None,
            journal: Journal::to(job.events.take())?,
            output,
            signals: Signals::open(&[])?,
            front_end,
            far_launcher: None,
            is_bereft: false,
            is_suspended: false,
            taken_in: None,
            kills: Kills::watch(),
            open_files,
            code: REFUSED,
            buffer: vec![0; 64 << 10],
            job,
        })
    }

    pub(crate) fn run(mut self) -> u8 {
        self.hear(Event::Begin);
        self.carry_out();
        while !self.machine.is_over() {
            self.turn(self.machine.next());
            self.machine.tick(Instant::now());
            self.carry_out();
        }
        self.code
    }

    /// Tells the machine; [`carry_out`](Self::carry_out) follows.
    pub(crate) fn hear(&mut self, event: Event) {
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
            Action::Start(ranks) => self.start(ranks),
            Action::SayLost { rank, again } => self.say_lost(rank, again),
            Action::FindStopped if self.is_suspended => {}
            Action::FindStopped => self.find_stopped(),
            Action::End(order) => self.end(order),
            Action::AskForCauses => (0..self.ranks.len()).for_each(|number| self.tell_cause(number)),
            Action::EndStrays(order) => Self::end_strays(order),
            Action::LookForStrays => {
                let left = !tree::descendants().is_empty();
                self.hear(Event::Strays { left });
            }
            Action::LookAtOutput => self.tell_output(),
            Action::LookAtOthers => {
                if let Some(event) = self.nodes.as_ref().map(Nodes::progress) {
                    self.hear(event);
                }
            }
            Action::CloseOutput => self.close_pipes(),
            Action::TellFindings => {
                if let Some(nodes) = &self.nodes {
                    let pid = |rank| self.pid_of(rank);
                    let name = |rank| self.name(rank);
                    let own = NodeFindings::of(&self.machine, host(), nodes.since, &pid, &name);
                    nodes.tell_findings(own, self.machine.is_failing());
                }
            }
            Action::SayVerdict => self.say_verdict(),
            // Of the launcher of several hosts.
            Action::Compare | Action::SayProblems | Action::SayHostLost { .. } | Action::TryHost { .. } => {}
        }
    }

    fn say_verdict(&mut self) {
        if let (Some(dir), Some(StopReason::Failed { .. })) = (&self.job.flights, self.machine.root_cause()) {
            flights::first_lines(dir, REPORTED).iter().for_each(|line| self.output.say(line));
        }
        if self.output.is_framed() {
            // Else the launcher sees the connection end: the host is lost to it.
            if !self.is_bereft {
                self.output.event(&HostEvent::Bye);
            }
            self.code = 0;
            return;
        }
        let Verdict { summary, text, code } = match &self.nodes {
            Some(nodes) => nodes.verdict(&self.machine, &|rank| self.name(rank)),
            None => {
                let found =
                    Verdict::of(&self.machine, &|rank| self.name(rank), self.job.request.log_dir.as_deref());
                Verdict { text: with_cut_off(found.text, self.machine.cut_off.iter()), ..found }
            }
        };
        summary.iter().chain(&text).for_each(|line| self.output.say(line));
        self.journal.over(text.as_deref(), code);
        self.code = code;
    }

    fn start(&mut self, ranks: Range<usize>) {
        let is_first = self.ranks.is_empty();
        if self.job.request.terms.insecure && is_first {
            self.output.say("--insecure: the job has no key; whoever can connect to a rank can join it");
        }
        if self.job.elastic.is_some() && is_first && !self.output.is_framed() {
            let lines = elastic::how_to_join(&self.meeting.store(), self.job.request.terms.insecure);
            lines.iter().for_each(|line| self.output.say(line));
        }
        if self.job.request.verbose && is_first {
            let job = self.meeting.job();
            self.output.say(&format!("job {job}: the ranks meet at {}", self.meeting.store()));
            self.job.threads.iter().for_each(|share| self.output.say(&share.to_string()));
        }
        self.meeting.release();
        for number in ranks.start - self.job.first..ranks.end - self.job.first {
            self.prepare_again(number);
            match Rank::start(&mut self.job, (&self.meeting, self.metrics.as_ref()), &self.open_files, number)
            {
                Ok((rank, stdin)) => {
                    self.front_end.tell(rank.pid.as_raw_pid());
                    let global = self.job.first + number;
                    self.output.event(&HostEvent::Started { rank: global, pid: rank.pid.as_raw_pid() });
                    self.journal.started(global, rank.pid.as_raw_pid(), &host());
                    self.deaths.add(number, rank.pid);
                    let hears = self.job.request.hears(global);
                    self.feed.add(number, hears.then_some(stdin));
                    if let Some(metrics) = &self.metrics {
                        metrics.started(number, rank.pid);
                    }
                    match self.ranks.get_mut(number) {
                        Some(known) => *known = rank,
                        None => self.ranks.push(rank),
                    }
                    if self.job.request.verbose {
                        self.say_started(number);
                    }
                }
                Err(e) => {
                    let program = self.job.program.display();
                    let code = match e.raw_os_error() {
                        Some(libc::ENOENT | libc::EACCES | libc::ENOEXEC | libc::E2BIG | libc::ENOTDIR) => {
                            USAGE
                        }
                        _ => REFUSED,
                    };
                    let rank = self.job.first + number;
                    let why = format!("rank {rank}: cannot start '{program}': {e}");
                    let again = self.job.restarted.get(number).is_some_and(|times| *times > 0);
                    self.output.event(&match again {
                        false => HostEvent::Refused { why: why.clone(), code },
                        true => HostEvent::Ended {
                            rank,
                            ending: Ending::Exit(code.into()),
                            root_cause: None,
                            memory: why.clone(),
                        },
                    });
                    self.hear(Event::Unstarted { rank: Some(rank), problem: Problem { why, code } });
                    return;
                }
            }
        }
    }

    fn say_started(&self, number: usize) {
        let Some(rank) = self.ranks.get(number) else { return };
        let global = self.job.first + number;
        let pid = rank.pid.as_raw_pid();
        let mut text = format!("rank {global} (pid {pid}): {}", self.job.program.display());
        for arg in self.job.request.args() {
            text.push_str(&format!(" {arg:?}"));
        }
        text.push_str(" with");
        for (name, value) in environment(&self.job, &self.meeting, self.metrics.as_ref(), number) {
            if let Some(value) = value {
                text.push_str(&format!(" {}={}", name.display(), value.display()));
            }
        }
        self.output.say(&text);
    }

    /// Makes the ranks' sheets, and answers those who ask. Only who asked for --metrics is refused a job without them.
    pub(crate) fn show(&mut self, listener: Option<TcpListener>) -> io::Result<()> {
        let metrics = match Metrics::new(&self.job, self.meeting.job()) {
            Ok(metrics) => metrics,
            Err(e) if listener.is_some() => return Err(e),
            Err(e) => {
                self.cannot_show(&e);
                return Ok(());
            }
        };
        if let Some(listener) = listener {
            let at = listener.local_addr()?;
            metrics.serve(listener)?;
            self.output.say(&format!("metrics at http://{at}/metrics"));
        }
        // A launcher elsewhere, or those of other nodes, know the rest.
        let is_part = self.output.is_framed() || self.job.world > self.job.size;
        if let Some(launcher) = rustix::process::getppid() {
            match Door::open(launcher, metrics.view(&self.job, launcher, is_part)) {
                Ok(door) => self.door = Some(door),
                Err(e) => self.cannot_show(&e),
            }
        }
        self.metrics = Some(metrics);
        Ok(())
    }

    fn cannot_show(&self, e: &io::Error) {
        if self.job.request.verbose {
            self.output.say(&format!("`comity top` will not see this job: {e}"));
        }
    }

    /// Waits until something happens, or `until`, and deals with all that has happened.
    fn turn(&mut self, until: Option<Instant>) {
        let beats = self.upstreams().into_iter().flatten().filter_map(Upstream::next);
        let until = until.into_iter().chain(beats).min();
        for source in self.wait(until) {
            match source {
                Source::Upstream(number) => {
                    let orders = self.upstreams_mut().0[number].as_mut().map(|u| u.take());
                    orders.into_iter().flatten().for_each(|order| self.obey(order));
                }
                Source::Waker => self.check_outputs(),
                Source::TakenIn => self.hear_taken_in(),
                Source::StdinFeed => self.feed.pump(true),
                Source::Pipe(rank, pipe) => self.read(rank, pipe),
                Source::Signals => {
                    for signal in self.signals.take() {
                        if signal != libc::SIGCHLD {
                            self.obey(Order::of_signal(signal));
                        }
                    }
                }
            }
        }
        self.reap();
        let (upstreams, tidings) = self.upstreams_mut();
        let orders: Vec<_> =
            upstreams.into_iter().flatten().flat_map(|upstream| upstream.keep_in_touch(tidings)).collect();
        orders.into_iter().for_each(|order| self.obey(order));
    }

    /// Places from which orders come.
    fn upstreams(&self) -> [Option<&dyn Upstream>; 3] {
        let far_launcher = self.far_launcher.as_ref().map(|u| u as &dyn Upstream);
        [Some(&self.front_end), far_launcher, self.nodes.as_ref().map(|u| u as &dyn Upstream)]
    }

    /// The same, and what they are told.
    fn upstreams_mut(&mut self) -> ([Option<&mut dyn Upstream>; 3], Tidings<'_>) {
        let Self { front_end, far_launcher, nodes, machine, output, feed, .. } = self;
        let far_launcher = far_launcher.as_mut().map(|u| u as &mut dyn Upstream);
        let nodes = nodes.as_mut().map(|u| u as &mut dyn Upstream);
        ([Some(front_end), far_launcher, nodes], Tidings { machine, output, feed })
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Suspend => {
                self.is_suspended = true;
                self.signal_all(Signal::STOP);
                self.front_end.all_stopped();
            }
            Order::Continue => {
                self.is_suspended = false;
                self.signal_all(Signal::CONT);
            }
            Order::Pass(signal) => self.pass(signal),
            Order::News(event) => self.hear(event),
            Order::FrontEndLost => {
                if self.far_launcher.is_some() {
                    self.is_bereft = true;
                    self.output.event(&HostEvent::Say(
                        "the first process of `comity guard` was killed there, so its ranks are ended".into(),
                    ));
                }
                self.hear(Event::Stop(StopReason::Orphaned));
            }
            Order::Input(piece) => self.feed.give(piece),
            Order::Look => self.tell_what_ranks_do(),
            Order::FindStopped => self.find_stopped(),
        }
    }

    fn tell_what_ranks_do(&self) {
        let text = self.metrics.as_ref().and_then(|m| serde_json::to_vec(&m.look()).ok());
        if let Some(text) = text.filter(|t| t.len() < protocol::LARGEST) {
            self.output.event(&HostEvent::View(text));
        }
    }

    fn wait(&self, until: Option<Instant>) -> Vec<Source> {
        let mut fds = vec![self.output.want()];
        let mut sources = vec![Source::Waker];
        let mut add = |fd, source| {
            fds.push(fd);
            sources.push(source);
        };
        for (number, upstream) in self.upstreams().into_iter().enumerate() {
            if let Some(fd) = upstream.and_then(Upstream::want) {
                add(fd, Source::Upstream(number));
            }
        }
        self.signals.wants().for_each(|fd| add(fd, Source::Signals));
        if let Some(taken_in) = &self.taken_in {
            add(taken_in.want(), Source::TakenIn);
        }
        self.feed.wants().for_each(|fd| add(fd, Source::StdinFeed));
        let room = OutputStream::BOTH.map(|stream| self.output.has_room(stream));
        for (number, rank) in self.ranks.iter().enumerate() {
            for (index, pipe) in rank.pipes.iter().enumerate() {
                if let (Some(fd), true) = (&pipe.fd, room[index]) {
                    add(PollFd::new(fd, PollFlags::IN), Source::Pipe(number, index));
                }
            }
        }
        if poll_until(&mut fds, until).is_err() {
            return Vec::new();
        }
        fds.iter().zip(sources).filter(|(fd, _)| !fd.revents().is_empty()).map(|(_, s)| s).collect()
    }
}

/// Makes this process one that nothing reaches which is meant for the terminal's processes, and that inherits what ranks leave
/// behind; the limit of open files for ranks.
pub(crate) fn stand_alone() -> io::Result<Rlimit> {
    // Out of reach of what is sent to the terminal's processes, SIGKILL of a process group above all.
    rustix::process::setsid()?;
    #[cfg(target_os = "linux")]
    {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        // `killall -9 comity` must not take both guards at once.
        rustix::thread::set_name(c"rank-supervisor")?;
    }
    // Each rank needs a handful of descriptors here.
    let open_files = rustix::process::getrlimit(Resource::Nofile);
    let all = Rlimit { current: open_files.maximum, ..open_files };
    // When that is refused, what there is may still be enough.
    let _ = rustix::process::setrlimit(Resource::Nofile, all);
    Ok(open_files)
}

impl Supervisor {
    /// Takes note of the processes that have ended: ranks in the order of their ends, then any other.
    fn reap(&mut self) {
        // Who was taken in before it died was a rank of the group.
        self.hear_taken_in();
        self.credit(None);
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            let rank = self.ranks.iter().position(|r| r.alive && r.pid == pid);
            if let (Some(rank), Some(ending)) = (rank, Ending::of_raw(status.as_raw())) {
                // Another may have ended before this one, and both since the last look.
                self.credit(Some((rank, ending)));
            }
        }
    }

    /// Take the ends of ranks in their order, and among them, or else last, one that is known already.
    fn credit(&mut self, mut known: Option<(usize, Ending)>) {
        for rank in self.deaths.take() {
            if let Some((_, ending)) = known.take_if(|k| k.0 == rank) {
                self.ended(rank, ending);
                continue;
            }
            let Some(pid) = self.ranks.get(rank).filter(|r| r.alive).map(|r| r.pid) else { continue };
            if let Ok(Some((_, status))) = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG)
                && let Some(ending) = Ending::of_raw(status.as_raw())
            {
                self.ended(rank, ending);
            }
        }
        if let Some((rank, ending)) = known {
            self.ended(rank, ending);
        }
    }

    fn ended(&mut self, number: usize, ending: Ending) {
        let Some(rank) = self.ranks.get_mut(number) else { return };
        rank.alive = false;
        let pid = rank.pid;
        let global = self.job.first + number;
        self.feed.remove(number);
        self.journal.ended(global, ending, &host());
        if let Some(metrics) = &self.metrics {
            metrics.ended(number, ending);
        }
        // The launcher of a host's part wants to know it of every rank.
        let matters = self.machine.judges() || self.output.is_framed();
        let killed = ending == Ending::Signal(libc::SIGKILL) && matters;
        let memory = if killed { self.kills.evidence() } else { None }.unwrap_or_default().to_owned();
        self.tell_cause(number);
        if self.output.is_framed() && !self.is_bereft {
            let root_cause = self.meeting.root_cause_of(global);
            self.output.event(&HostEvent::Ended { rank: global, ending, root_cause, memory: memory.clone() });
        }
        self.hear(Event::Ended { rank: global, ending, memory });
        self.meeting.lost(global, &ending.to_string());
        if ending.is_failure() {
            // The number is free for a new process from now on, but not taken within microseconds.
            let _ = rustix::process::kill_process_group(pid, Signal::KILL);
        }
        if self.job.request.verbose {
            self.output.say(&format!("{} {ending}", self.name(global)));
        }
    }

    /// Tells the machine which rank this one names as the cause of its failure, if any.
    fn tell_cause(&mut self, number: usize) {
        let by = self.job.first + number;
        if let Some(rank) = self.meeting.root_cause_of(by) {
            self.hear(Event::Blames { by, rank });
        }
    }

    /// Ends what ranks have left running, wherever it hides.
    fn end_strays(order: StopOrder) {
        let strays = tree::descendants();
        match order {
            StopOrder::Term => {
                tree::signal(&strays, Signal::TERM);
                tree::signal(&strays, Signal::CONT);
            }
            StopOrder::Kill => tree::signal(&strays, Signal::KILL),
            StopOrder::Abandon => {}
        }
    }

    /// "rank 3 (pid 77, host c)", for the number of a rank in the job.
    pub(crate) fn name(&self, rank: usize) -> String {
        let pid = self.pid_of(rank);
        format!("rank {rank} (pid {pid}, host {})", host())
    }

    pub(crate) fn pid_of(&self, rank: usize) -> i32 {
        let known = rank.checked_sub(self.job.first).and_then(|number| self.ranks.get(number));
        known.map_or(0, |r| r.pid.as_raw_pid())
    }

    /// To the process group of each rank, as a terminal would send it.
    fn pass(&self, signal: PassedSignal) {
        self.ranks.iter().for_each(|rank| rank.signal(signal.signal()));
    }

    /// To every process of the job. Not SIGTSTP, which a rank may ignore: then it would miss the others.
    fn signal_all(&self, signal: Signal) {
        self.ranks.iter().for_each(|rank| rank.signal(signal));
        // Those that left the ranks' groups.
        tree::signal(&tree::descendants(), signal);
    }

    fn find_stopped(&mut self) {
        let stopped = tree::stopped();
        let alive = self.ranks.iter().enumerate().filter(|(_, r)| r.alive);
        let found: Vec<usize> =
            alive.filter(|(_, r)| stopped.contains(&r.pid)).map(|(n, _)| self.job.first + n).collect();
        for rank in found {
            self.output.event(&HostEvent::Stopped { rank });
            self.hear(Event::Stopped { rank });
        }
    }

    fn end(&mut self, order: StopOrder) {
        let first = self.job.first;
        let alive = || self.ranks.iter().enumerate().filter(|(_, r)| r.alive);
        let list = || {
            alive()
                .map(|(n, r)| format!("{} (pid {})", first + n, r.pid.as_raw_pid()))
                .collect::<Vec<_>>()
                .join(", ")
        };
        match order {
            StopOrder::Term => alive().for_each(|(_, rank)| {
                rank.signal(Signal::TERM);
                // A stopped process gets it only when it goes on.
                rank.signal(Signal::CONT);
            }),
            StopOrder::Kill => {
                self.output.say(&format!("still running after SIGTERM, now killed: rank {}", list()));
                alive().for_each(|(_, rank)| rank.signal(Signal::KILL));
                tree::signal(&tree::descendants(), Signal::KILL);
            }
            StopOrder::Abandon => {
                self.output.say(&format!("left behind, for they do not die of SIGKILL: rank {}", list()));
            }
        }
    }

    /// Makes room for the next process of a rank, if it had one before.
    fn prepare_again(&mut self, number: usize) {
        let Some(rank) = self.ranks.get_mut(number) else { return };
        // What the last one left running may hold them open.
        for pipe in &mut rank.pipes {
            pipe.close(self.job.first + number, &self.output);
        }
        if let Some(times) = self.job.restarted.get_mut(number) {
            *times += 1;
        }
        self.meeting.forget_root_causes();
    }

    fn say_lost(&self, rank: usize, again: Option<(u32, Duration)>) {
        let ending = self.machine.ending(rank).map(|e| e.to_string()).unwrap_or_default();
        self.output.say(&lost(&format!("{} {ending}", self.name(rank)), again, self.job.elastic));
    }

    /// Tells the machine whom the group has taken in.
    fn hear_taken_in(&mut self) {
        let all = self.taken_in.as_ref().map(|taken_in| taken_in.take()).unwrap_or_default();
        for (rank, guests) in all {
            self.journal.joined(rank, guests);
            self.output.say(&joined(rank.map(|rank| self.name(rank)), guests));
            rank.into_iter().for_each(|rank| self.hear(Event::Joined { rank }));
            self.hear(Event::Guests { number: guests });
        }
    }

    fn check_outputs(&mut self) {
        self.output.drain();
        while let Some((stream, error)) = self.output.failure() {
            // The logs still have a reader.
            if self.job.logs.is_none() {
                self.hear(Event::Stop(StopReason::Unread(unread(stream, error))));
            }
        }
    }

    /// Reads once, which does not block when the pipe is readable.
    fn read(&mut self, rank: usize, pipe: usize) {
        let number = self.job.first + rank;
        let Some(pipe) = self.ranks.get_mut(rank).and_then(|r| r.pipes.get_mut(pipe)) else { return };
        let Some(fd) = &pipe.fd else { return };
        match rustix::io::read(fd, &mut self.buffer[..]) {
            Ok(n) if n > 0 => {
                let bytes = &self.buffer[..n];
                pipe.to.wrote(number, bytes, &self.output);
                self.journal.wrote(number, pipe.to.stream, bytes);
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            _ => pipe.close(number, &self.output),
        }
    }

    fn close_pipes(&mut self) {
        for (rank, number) in self.ranks.iter_mut().zip(self.job.first..) {
            rank.pipes.iter_mut().for_each(|pipe| pipe.close(number, &self.output));
        }
    }

    fn tell_output(&mut self) {
        let open = self.ranks.iter().flat_map(|r| &r.pipes).any(|p| p.fd.is_some());
        let pending = self.output.is_pending();
        let written = self.output.written();
        self.hear(Event::Output { open, pending, written });
    }
}

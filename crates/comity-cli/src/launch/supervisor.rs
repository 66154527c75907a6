//! The process that starts the ranks, carries their input and output, and ends them.
mod deserted;
mod ends;
mod forward;
mod shown;
mod stopping;

use super::deaths::Deaths;
use super::door::Door;
use super::ending::Ending;
use super::guard::Orders;
use super::job::Job;
use super::journal::Journal;
use super::meet::Meeting;
use super::memory::Kills;
use super::metrics::Metrics;
use super::nodes::Nodes;
use super::output::{OutputStream, Outputs};
use super::rank::{Rank, environment};
use super::shutdown::{Shutdown, StopReason};
use super::signals::Signals;
use super::stdin::StdinFeed;
use super::verdict::{CutOff, with_cut_off};
use super::wire::GuardEvent;
use super::wish::{FrontLine, wish};
use super::{REFUSED, USAGE, meet, verdict};
use crate::report;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Time for ending the processes that ranks left, and for which a pipe may stay open after that.
const LEFT_OPEN: Duration = Duration::from_secs(2);

/// Lines shown of the report on a job that failed.
const REPORTED: usize = 6;

/// Runs the job and returns the exit code.
pub(super) fn supervise(job: Job, front_end: UnixStream, input: OwnedFd) -> u8 {
    match Supervisor::open(job, front_end, input) {
        Ok(supervisor) => supervisor.run(),
        Err(e) => {
            let _ = writeln!(io::stderr(), "comity launch: cannot prepare the job: {e}");
            REFUSED
        }
    }
}

pub(super) struct Supervisor {
    pub(super) job: Job,
    pub(super) meeting: Meeting,
    ranks: Vec<Rank>,
    shutdown: Shutdown,
    deaths: Deaths,
    pub(super) feed: StdinFeed,
    pub(super) output: Outputs,
    signals: Signals,
    /// To the process that the user started.
    front_end: FrontLine,
    /// Orders of a launcher on another host.
    pub(super) orders: Option<Orders>,
    /// The first process of the guard was killed: how the ranks end from now on says nothing about them.
    pub(super) is_bereft: bool,
    /// The launchers on other hosts that this one agreed with.
    pub(super) nodes: Option<Nodes>,
    pub(super) journal: Journal,
    /// End of each rank that has ended.
    pub(super) ends: Vec<Option<RankEnd>>,
    pub(super) kills: Kills,
    pub(super) metrics: Option<Metrics>,
    /// Socket at which others ask for the state of the job.
    door: Option<Door>,
    /// The limit of open files with which the job was started, and which the ranks get.
    open_files: Rlimit,
    /// Evidence that lack of memory ended the rank at fault.
    memory: Option<&'static str>,
    /// When it was last looked whether ranks are stopped.
    looked: Instant,
    /// The ranks that were stopped when they were told to end.
    stopped: Vec<usize>,
    /// The ranks that did not end in time after SIGTERM.
    pub(super) cut_off: Option<CutOff>,
    /// Why not all ranks could be started.
    unstarted: Option<(String, u8)>,
    /// Why the output cannot be written.
    unread: Option<(OutputStream, Errno)>,
    buffer: Vec<u8>,
}

/// End of a rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct RankEnd {
    pub(super) ending: Ending,
    pub(super) at: Instant,
    /// Before the others were ended: it says something about the rank.
    pub(super) early: bool,
}

/// Source of a descriptor in the poll set.
#[derive(Clone, Copy)]
enum Source {
    FrontEnd,
    Orders,
    Nodes,
    Signals,
    Waker,
    StdinFeed,
    Pipe(usize, usize),
}

impl Supervisor {
    fn open(mut job: Job, front_end: UnixStream, input: OwnedFd) -> io::Result<Self> {
        let open_files = stand_alone()?;
        // The terminal is read by the front end.
        rustix::stdio::dup2_stdin(&input)?;
        let front_end = FrontLine::new(front_end)?;
        let meeting = Meeting::open(job.size, meet::join_limit(&job.env), job.insecure)?;
        let listener = job.metrics.take();
        let output = Outputs::open()?;
        meeting.on_waiting(output.voice());
        let mut supervisor = Self::with(job, meeting, (front_end, output), open_files)?;
        supervisor.show(listener)?;
        supervisor.feed = StdinFeed::new(input);
        Ok(supervisor)
    }

    /// The supervisor of a host's part, which obeys a launcher on another host.
    pub(super) fn guard(
        job: Job,
        meeting: Meeting,
        (front_end, output, orders): (FrontLine, Outputs, Orders),
        open_files: Rlimit,
    ) -> io::Result<Self> {
        let mut supervisor = Self::with(job, meeting, (front_end, output), open_files)?;
        supervisor.orders = Some(orders);
        supervisor.show(None)?;
        Ok(supervisor)
    }

    /// The supervisor of a job that has its own ranks here, and agrees with others.
    pub(super) fn with(
        mut job: Job,
        meeting: Meeting,
        (front_end, output): (FrontLine, Outputs),
        open_files: Rlimit,
    ) -> io::Result<Self> {
        let timeout = job.timeout.and_then(|t| Instant::now().checked_add(t));
        Ok(Self {
            meeting,
            metrics: None,
            door: None,
            ranks: Vec::with_capacity(job.size),
            shutdown: Shutdown::new(job.size, timeout).with_grace(job.grace),
            deaths: Deaths::new()?,
            feed: StdinFeed::given(),
            nodes: None,
            journal: Journal::to(job.events.take())?,
            ends: vec![None; job.size],
            output,
            signals: Signals::open(&[])?,
            front_end,
            orders: None,
            is_bereft: false,
            kills: Kills::watch(),
            open_files,
            memory: None,
            looked: Instant::now(),
            stopped: Vec::new(),
            cut_off: None,
            unstarted: None,
            unread: None,
            buffer: vec![0; 64 << 10],
            job,
        })
    }

    pub(super) fn run(mut self) -> u8 {
        self.start();
        while !self.shutdown.over() {
            self.turn(self.next());
            self.leave_stopped();
            if let Some(order) = self.shutdown.tick(Instant::now()) {
                self.carry_out(order);
            }
        }
        self.find_root_cause();
        self.end_strays();
        self.drain();
        self.wait_for_nodes();
        if let (Some(dir), Some(StopReason::Failed { .. })) = (&self.job.flights, self.shutdown.cause()) {
            report::first_lines(dir, REPORTED).iter().for_each(|line| self.output.say(line));
        }
        if self.output.is_framed() {
            // Else the launcher sees the connection end: the host is lost to it.
            if !self.is_bereft {
                self.output.event(&GuardEvent::Bye);
            }
            self.flush(|supervisor| supervisor.output.is_pending());
            return 0;
        }
        let (text, code) = match self.nodes.is_some() {
            true => self.verdict_of_all(),
            false => {
                let (text, code) = self.verdict();
                (with_cut_off(text, self.cut_off.iter()), code)
            }
        };
        let endings: Vec<_> = self.ends.iter().map(|e| e.map(|e| e.ending)).collect();
        if let Some(text) = &text {
            if self.nodes.is_none() && self.unstarted.is_none() {
                let logs = self.job.log_dir.as_deref();
                verdict::summary(self.shutdown.cause(), &endings, logs)
                    .iter()
                    .for_each(|s| self.output.say(s));
            }
            self.output.say(text);
        }
        self.journal.over(text.as_deref(), code);
        self.flush(|supervisor| supervisor.output.is_pending());
        code
    }

    /// Finds the cause among the failures, now that all are known.
    fn find_root_cause(&mut self) {
        let before = self.shutdown.cause().cloned();
        self.shutdown.find_root_cause(|rank| self.meeting.root_cause_of(rank));
        if self.shutdown.cause() != before.as_ref() {
            let killed = Ending::Signal(libc::SIGKILL);
            let was =
                matches!(self.shutdown.cause(), Some(StopReason::Failed { ending, .. }) if *ending == killed);
            self.memory = if was { self.kills.evidence() } else { None };
        }
    }

    fn start(&mut self) {
        if self.job.insecure {
            self.output.say("--insecure: the job has no key; whoever can connect to a rank can join it");
        }
        if self.job.verbose {
            let Meeting { job, .. } = &self.meeting;
            self.output.say(&format!("job {job}: the ranks meet at {}", self.meeting.store()));
            self.job.threads.iter().for_each(|share| self.output.say(&share.to_string()));
        }
        self.meeting.release();
        for number in 0..self.job.size {
            match Rank::start(&mut self.job, (&self.meeting, self.metrics.as_ref()), &self.open_files, number)
            {
                Ok((rank, stdin)) => {
                    self.front_end.tell(rank.pid.as_raw_pid());
                    let global = u32::try_from(self.job.first + number).unwrap_or(u32::MAX);
                    self.output.event(&GuardEvent::Started { rank: global, pid: rank.pid.as_raw_pid() });
                    self.journal.started(self.job.first + number, rank.pid.as_raw_pid(), &host());
                    self.deaths.add(rank.pid);
                    match self.job.stdin_rank {
                        Some(only) if only != self.job.first + number => self.feed.skip(),
                        _ => self.feed.add(stdin),
                    }
                    if let Some(metrics) = &self.metrics {
                        metrics.started(number, rank.pid);
                    }
                    self.ranks.push(rank);
                    if self.job.verbose {
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
                    let number = self.job.first + number;
                    let text = format!("rank {number}: cannot start '{program}': {e}");
                    self.output.event(&GuardEvent::Refused { text: text.clone(), code });
                    self.unstarted = Some((text, code));
                    self.shutdown = Shutdown::new(self.ranks.len(), None);
                    if let Some(order) = self.shutdown.stop(StopReason::Unstarted, Instant::now()) {
                        self.carry_out(order);
                    }
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
        for arg in &self.job.args {
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

    /// Waits until something happens, or `until`, and deals with all that has happened.
    fn turn(&mut self, until: Option<Instant>) {
        let until = self.orders.as_ref().map_or(until, |o| Some(o.until(until)));
        for source in self.wait(until) {
            match source {
                Source::FrontEnd => self.listen(),
                Source::Orders => self.obey(),
                Source::Nodes => self.hear_nodes(),
                Source::Waker => self.check_outputs(),
                Source::StdinFeed => self.feed.pump(true),
                Source::Pipe(rank, pipe) => self.read(rank, pipe),
                Source::Signals => {
                    for signal in self.signals.take() {
                        if signal != libc::SIGCHLD {
                            self.fulfil(wish(signal));
                        }
                    }
                }
            }
        }
        self.reap();
        self.keep_in_touch();
        self.tell_nodes();
    }

    fn wait(&self, until: Option<Instant>) -> Vec<Source> {
        let mut fds = vec![PollFd::new(self.output.waker(), PollFlags::IN)];
        let mut sources = vec![Source::Waker];
        let mut add = |fd, source| {
            fds.push(fd);
            sources.push(source);
        };
        if let Some(front_end) = self.front_end.socket() {
            add(PollFd::new(front_end, PollFlags::IN), Source::FrontEnd);
        }
        if let Some(fd) = self.orders.as_ref().and_then(Orders::want) {
            add(fd, Source::Orders);
        }
        if let Some(fd) = self.nodes.as_ref().map(Nodes::want) {
            add(fd, Source::Nodes);
        }
        self.signals.wants().for_each(|fd| add(fd, Source::Signals));
        self.feed.wants().for_each(|fd| add(fd, Source::StdinFeed));
        let room = OutputStream::BOTH.map(|stream| self.output.has_room(stream));
        for (number, rank) in self.ranks.iter().enumerate() {
            for (index, pipe) in rank.pipes.iter().enumerate() {
                if let (Some(fd), true) = (&pipe.fd, room[index]) {
                    add(PollFd::new(fd, PollFlags::IN), Source::Pipe(number, index));
                }
            }
        }
        let pause = until.map(|t| t.saturating_duration_since(Instant::now()));
        let pause = pause.and_then(|p| Timespec::try_from(p).ok());
        if rustix::event::poll(&mut fds, pause.as_ref()).is_err() {
            return Vec::new();
        }
        fds.iter().zip(sources).filter(|(fd, _)| !fd.revents().is_empty()).map(|(_, s)| s).collect()
    }
}

/// Makes this process one that nothing reaches which is meant for the terminal's processes, and that inherits what ranks leave
/// behind; the limit of open files for ranks.
pub(super) fn stand_alone() -> io::Result<Rlimit> {
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

/// This host's name.
pub(super) fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

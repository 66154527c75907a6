//! Processes and launchers of a simulated job, and the messages between them.
mod group;
mod launchers;

use super::mutant::Mutant;
use super::scenario::{BEDTIME, NEVER, PlantedFault, SECOND, SILENCE, Scenario, Stray};
use crate::machine::findings::NodeFindings;
use crate::machine::{
    ElasticTerms, Ending, Event, JobPlan, Machine, Problem, Role, StopOrder, StopReason, USAGE, Verdict,
};
use scope::{Agenda, Rng};
use std::time::{Duration, Instant};

/// A rank.
#[derive(Clone, Debug, Default)]
pub(super) struct Process {
    pub(super) starts: u32,
    pub(super) alive: bool,
    pub(super) stopped: bool,
    /// It got SIGTERM: its end says nothing about it.
    pub(super) is_told: bool,
    pub(super) ended: Option<(u64, Ending)>,
    /// It ended or stopped of its own, as a planted fault.
    pub(super) is_culprit: bool,
    /// It ended because it noticed another one's failure.
    pub(super) is_follower: bool,
    /// The rank that it names.
    pub(super) word: Option<usize>,
    pub(super) has_stray: bool,
    /// Its host lost power.
    pub(super) has_vanished: bool,
    /// It ended with 0 as a rank of the group.
    pub(super) is_done: bool,
    /// When its launcher knew its end, for each but the last.
    pub(super) known: Vec<KnownEnd>,
    pub(super) started: Vec<u64>,
    pipe_closes: u64,
}

/// End of a rank that its launcher has learned of.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownEnd {
    pub(super) at: u64,
    /// Its host was lost.
    pub(super) with_host: bool,
}

impl Process {
    fn learn_end(&mut self, at: u64, with_host: bool) {
        if self.known.len() < self.started.len() {
            self.known.push(KnownEnd { at, with_host });
        }
    }
}

/// A launcher, and its part of the job.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) machine: Machine,
    pub(super) role: Role,
    /// Number of its host, where ranks are.
    host: Option<usize>,
    pub(super) up: bool,
    begun: bool,
    wake: u64,
    heard_ends: bool,
    /// When its machine first had a cause.
    pub(super) failing_at: Option<u64>,
    /// When it first heard a failure as a rank's own, and of a wish to stop.
    pub(super) failure_heard: Option<u64>,
    pub(super) stop_heard: Option<u64>,
    /// The same of anything that hurries an end: also lost hosts, other nodes.
    pub(super) hurries: Vec<u64>,
    pub(super) orders: Vec<(u64, StopOrder)>,
    pub(super) said: Vec<(u64, Verdict)>,
    pub(super) starts: u32,
    pub(super) over: Option<u64>,
    findings: Option<NodeFindings>,
    pub(super) all: Option<Vec<NodeFindings>>,
    pub(super) lost: Option<String>,
    others_fail: bool,
    has_told: bool,
    gave_up: Vec<(usize, usize)>,
    /// Connections to hosts were closed.
    closed: bool,
}

/// A launcher's view of a host, and the way there.
#[derive(Clone, Copy, Debug, Default)]
struct Way {
    is_cut: bool,
    is_running: bool,
    arrives: [u64; 2],
}

#[derive(Clone, Debug)]
enum Message {
    Ready,
    Refused,
    Unstarted,
    Ended(usize, i32, bool, Option<usize>),
    Stopped(usize),
    StartAgain(usize),
    Bye,
    Go,
    Term,
    Kill,
    FindStopped,
    Close,
}

#[derive(Clone, Debug)]
enum Due {
    Wake(usize),
    Works(usize),
    Fault(usize),
    Notice {
        rank: usize,
        culprit: usize,
        well: bool,
    },
    Obeys(usize),
    /// The ranks that are left form their group again.
    Reform {
        culprit: usize,
    },
    /// A host that was lost is tried.
    HostAnswers(usize),
    /// A rank that was started again asks to be taken in.
    TakeIn(usize),
    StrayEnds(usize),
    Reap(usize),
    ToLauncher(usize, Message),
    ToHost(usize, Message),
    /// The launcher, or the host, misses the other side.
    LauncherMisses(usize),
    HostMisses(usize),
    Late(usize),
    OtherEnds {
        place: usize,
        node: usize,
    },
    GivenUp {
        place: usize,
        all: Vec<(usize, usize)>,
    },
    Lost {
        place: usize,
        node: usize,
    },
    AllHeard,
    Bedtime,
}

/// Loss of a host's cable, or of its power.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    pub(super) at: u64,
    pub(super) host: usize,
    /// Ranks ran there.
    pub(super) runs: bool,
}

pub(super) struct World<'a> {
    pub(super) s: &'a Scenario,
    mutant: Option<Mutant>,
    rng: Rng,
    zero: Instant,
    pub(super) now: u64,
    due: Agenda<Due>,
    pub(super) ranks: Vec<Process>,
    pub(super) places: Vec<Place>,
    ways: Vec<Way>,
    pub(super) cuts: Vec<Cut>,
    is_read: bool,
    /// Ranks of the group, where it forms again.
    pub(super) group: group::Group,
    pub(super) trace: Option<Vec<String>>,
}

impl Place {
    /// A launcher that begins at this time.
    fn new(
        s: &Scenario,
        mutant: Option<Mutant>,
        (zero, now): (Instant, u64),
        (role, host): (Role, Option<usize>),
    ) -> Self {
        let world = s.hosts.len();
        let ms = Duration::from_millis;
        let ranks: Vec<usize> = match host {
            Some(host) => s.ranks_of(host).collect(),
            None => (0..world).collect(),
        };
        let of = |rank: &usize| if role == Role::Fleet { s.hosts[*rank] } else { 0 };
        let judges = role != Role::Host;
        let plan = JobPlan {
            role,
            first: ranks.first().copied().unwrap_or(0),
            hosts: ranks.iter().map(of).collect(),
            world,
            timeout: s.timeout.filter(|_| judges).map(ms),
            // As the hosts of a fleet have it.
            grace: if judges { ms(s.grace) } else { crate::machine::PATIENCE },
            restart: 0,
            elastic: s.elastic.map(|terms| match judges {
                true => mutant.map_or(terms, |m| m.terms(terms)),
                false => ElasticTerms { fewest: 0, restarts: 0 },
            }),
        };
        Self {
            machine: Machine::new(plan, zero + ms(now)),
            role,
            host,
            up: true,
            begun: false,
            wake: NEVER,
            heard_ends: false,
            failing_at: None,
            failure_heard: None,
            stop_heard: None,
            hurries: Vec::new(),
            orders: Vec::new(),
            said: Vec::new(),
            starts: 0,
            over: None,
            findings: None,
            all: None,
            lost: None,
            others_fail: false,
            has_told: false,
            gave_up: Vec::new(),
            closed: false,
        }
    }
}

impl<'a> World<'a> {
    pub(super) fn new(s: &'a Scenario, mutant: Option<Mutant>, trace: bool) -> Self {
        let zero = Instant::now();
        let world = s.hosts.len();
        let place = |role: Role, host: Option<usize>| Place::new(s, mutant, (zero, 0), (role, host));
        let hosts = s.places();
        let places: Vec<Place> = match s.role {
            Role::Fleet => std::iter::once(place(Role::Fleet, None))
                .chain((0..hosts).map(|h| place(Role::Host, Some(h))))
                .collect(),
            role => (0..hosts).map(|h| place(role, Some(h))).collect(),
        };
        let mut new = Self {
            s,
            mutant,
            rng: Rng::new(!s.seed),
            zero,
            now: 0,
            due: Agenda::default(),
            ranks: vec![Process::default(); world],
            places,
            ways: vec![Way::default(); hosts],
            cuts: Vec::new(),
            is_read: true,
            group: group::Group::of(world),
            trace: trace.then(Vec::new),
        };
        new.begin();
        new
    }

    fn begin(&mut self) {
        for (i, fault) in self.s.faults.iter().enumerate() {
            match *fault {
                PlantedFault::End { at, .. }
                | PlantedFault::Stop { at, .. }
                | PlantedFault::Power { at, .. }
                | PlantedFault::Cut { at, .. }
                | PlantedFault::Signal { at, .. }
                | PlantedFault::Orphan { at }
                | PlantedFault::Unread { at } => self.plan(at, Due::Fault(i)),
                PlantedFault::Refuse { .. } => {}
            }
        }
        self.plan(BEDTIME, Due::Bedtime);
        match self.s.role {
            Role::Fleet => {
                for host in 0..self.s.places() {
                    let refuses = self.s.faults.iter().find_map(|f| match f {
                        PlantedFault::Refuse { host: h, late } if *h == host => Some(*late),
                        _ => None,
                    });
                    let at = self.rng.between(1, 2 * SECOND);
                    match refuses {
                        None => self.plan(at, Due::ToLauncher(host, Message::Ready)),
                        Some(false) => self.plan(at, Due::ToLauncher(host, Message::Refused)),
                        Some(true) => self.plan(30 * SECOND, Due::Late(host)),
                    }
                }
                self.hear(0, Event::Begin);
            }
            _ => (0..self.places.len()).for_each(|p| self.hear(p, Event::Begin)),
        }
    }

    /// Run until all launchers are over, or long after the user went to bed.
    pub(super) fn run(&mut self) {
        while let Some((at, due)) = self.due.take(BEDTIME + 200 * SECOND) {
            self.now = at;
            self.happen(due);
            self.watch();
        }
    }

    /// The launcher that decides, or one of several.
    pub(super) fn place_of(&self, rank: usize) -> usize {
        let host = self.s.hosts[rank];
        if self.s.role == Role::Fleet { host + 1 } else { host }
    }

    fn note(&mut self, words: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>8.3} s  {}", now as f64 / 1000., words()));
        }
    }

    fn plan(&mut self, at: u64, due: Due) {
        self.due.plan(at, due);
    }

    fn instant(&self) -> Instant {
        self.zero + Duration::from_millis(self.now)
    }

    fn happen(&mut self, due: Due) {
        match due {
            Due::Wake(place) if self.places[place].wake == self.now => {
                self.places[place].wake = NEVER;
                self.step(place);
            }
            Due::Wake(_) => {}
            Due::Works(rank) => {
                if !self.ranks[rank].stopped && self.may_end_well(rank) {
                    self.end(rank, Ending::Exit(0));
                }
            }
            Due::Fault(i) => self.strike(self.s.faults[i]),
            Due::Notice { rank, culprit, well } => self.notice(rank, culprit, well),
            Due::Reform { culprit } => self.reform(culprit),
            Due::TakeIn(rank) => self.take_in(rank),
            Due::HostAnswers(host) => self.host_answers(host),
            Due::Obeys(rank) if self.ranks[rank].is_told => {
                self.end(rank, Ending::Signal(libc::SIGTERM));
            }
            Due::Obeys(_) => {}
            Due::StrayEnds(rank) => self.ranks[rank].has_stray = false,
            Due::Reap(rank) => self.reap(rank),
            Due::ToLauncher(host, message) => self.launcher_hears(host, message),
            Due::ToHost(host, message) => self.host_hears(host, message),
            Due::LauncherMisses(host) => self.launcher_misses(host),
            Due::HostMisses(host) => self.host_misses(host + 1),
            Due::Late(host) => {
                let why = format!("host {host} is late");
                self.hear(0, Event::HostsLate { problems: vec![Problem::usage(why)] });
            }
            Due::OtherEnds { place, node } => {
                self.places[place].others_fail = true;
                self.hurry(place);
                self.hear(place, Event::OtherEnds { node });
            }
            Due::GivenUp { place, all } => self.hear(place, Event::GivenUp(all)),
            Due::Lost { place, node } => {
                if self.places[place].all.is_none() {
                    self.places[place].lost.get_or_insert_with(|| format!("node {node} was lost"));
                }
                self.hurry(place);
                self.hear(place, Event::OtherEnds { node });
            }
            Due::AllHeard => self.gather(),
            Due::Bedtime => {
                let signal = libc::SIGINT;
                let all = if self.s.role == Role::Node { self.places.len() } else { 1 };
                (0..all).for_each(|place| self.stop(place, StopReason::Interrupted { signal }));
            }
        }
    }

    fn strike(&mut self, fault: PlantedFault) {
        self.note(|| format!("{fault:?}"));
        match fault {
            PlantedFault::End { rank, ending, .. } => {
                let process = &mut self.ranks[rank];
                // One that is stopped does nothing of its own.
                let is_own = !process.stopped || matches!(ending, Ending::Signal(_));
                if process.alive && is_own {
                    process.is_culprit |= !process.is_told;
                    self.end(rank, ending);
                    self.others_notice(rank, 0, false);
                }
            }
            PlantedFault::Stop { rank, fail, .. } => {
                let process = &mut self.ranks[rank];
                if process.alive && !process.is_told {
                    process.is_culprit = true;
                    process.stopped = true;
                    self.others_notice(rank, 5 * SECOND, !fail);
                }
            }
            PlantedFault::Power { host, .. } => self.lose(host, true),
            PlantedFault::Cut { host, .. } => self.lose(host, false),
            PlantedFault::Signal { signal, .. } => self.stop(0, StopReason::Interrupted { signal }),
            PlantedFault::Orphan { .. } => self.stop(0, StopReason::Orphaned),
            PlantedFault::Unread { .. } => {
                self.is_read = false;
                self.mark_stop(0);
                self.hear(
                    0,
                    Event::Stop(StopReason::Unread(Problem { why: "nobody reads".into(), code: 141 })),
                );
            }
            PlantedFault::Refuse { .. } => {}
        }
    }

    fn others_notice(&mut self, culprit: usize, after: u64, well: bool) {
        if self.s.elastic.is_some() {
            let at = self.now + after + self.rng.between(0, 300);
            return self.plan(at, Due::Reform { culprit });
        }
        for rank in (0..self.ranks.len()).filter(|r| *r != culprit) {
            if let Some((delay, _)) = self.s.scripts[rank].notices {
                self.plan(self.now + after + delay, Due::Notice { rank, culprit, well });
            }
        }
    }

    fn lose(&mut self, host: usize, power: bool) {
        let place = if self.s.role == Role::Fleet { host + 1 } else { host };
        if !self.places[place].up || self.ways[host].is_cut {
            return;
        }
        let begun = self.s.role != Role::Fleet || self.places[0].machine.begun;
        let runs = begun && self.s.ranks_of(host).any(|r| self.ranks[r].alive);
        self.cuts.push(Cut { at: self.now, host, runs });
        self.ways[host].is_cut = true;
        if power {
            self.places[place].up = false;
            for rank in self.s.ranks_of(host) {
                let process = &mut self.ranks[rank];
                process.has_vanished = true;
                process.alive = false;
                process.has_stray = false;
            }
        }
        match self.s.role {
            Role::Fleet => {
                self.plan(self.now + SILENCE, Due::LauncherMisses(host));
                self.plan(self.now + SILENCE, Due::HostMisses(host));
                self.others_miss(host);
            }
            _ => {
                for other in (0..self.places.len()).filter(|p| *p != place) {
                    self.plan(self.now + 5 * SECOND, Due::Lost { place: other, node: place });
                    self.plan(self.now + 5 * SECOND, Due::Lost { place, node: other });
                }
            }
        }
    }

    fn stop(&mut self, place: usize, reason: StopReason) {
        self.mark_stop(place);
        self.hear(place, Event::Stop(reason));
    }

    fn mark_stop(&mut self, place: usize) {
        let now = self.now;
        let state = &mut self.places[place];
        if state.up && state.over.is_none() {
            state.stop_heard.get_or_insert(now);
        }
        self.hurry(place);
    }

    fn hurry(&mut self, place: usize) {
        let now = self.now;
        self.places[place].hurries.push(now);
    }

    fn start(&mut self, rank: usize) {
        let script = &self.s.scripts[rank];
        let process = &mut self.ranks[rank];
        process.starts += 1;
        process.started.push(self.now);
        process.alive = true;
        process.has_stray = script.stray != Stray::None;
        if process.starts > 1 {
            return self.start_again(rank);
        }
        let works = script.works;
        self.plan(self.now.saturating_add(works), Due::Works(rank));
    }

    fn end(&mut self, rank: usize, ending: Ending) {
        let held = self.s.scripts[rank].held;
        let is_in = self.may_end_well(rank);
        let process = &mut self.ranks[rank];
        if !process.alive {
            return;
        }
        process.is_done = is_in && !ending.is_failure() && !process.is_told;
        process.alive = false;
        process.ended = Some((self.now, ending));
        process.pipe_closes = self.now.saturating_add(held);
        self.note(|| format!("rank {rank} {ending}"));
        let at = self.now + self.rng.between(0, self.s.reaped);
        self.plan(at, Due::Reap(rank));
    }

    fn notice(&mut self, rank: usize, culprit: usize, well: bool) {
        let process = &self.ranks[rank];
        if !process.alive || process.stopped || process.is_culprit || process.is_told {
            return;
        }
        let script = &self.s.scripts[rank];
        let followers = || self.ranks.iter().position(|p| p.is_follower && p.word.is_some());
        let follower = if script.names_follower && !well { followers() } else { None };
        let ending = if well { Ending::Exit(0) } else { script.notices.map_or(Ending::Exit(1), |n| n.1) };
        self.ranks[rank].word = Some(follower.unwrap_or(culprit));
        self.ranks[rank].is_follower = true;
        self.end(rank, ending);
    }

    fn reap(&mut self, rank: usize) {
        let place = self.place_of(rank);
        let Some((_, ending)) = self.ranks[rank].ended else { return };
        let word = self.ranks[rank].word;
        let now = self.now;
        self.ranks[rank].learn_end(now, false);
        if let (true, Role::Fleet) = (self.places[place].up, self.s.role) {
            let (code, signalled) = match ending {
                Ending::Exit(code) => (code, false),
                Ending::Signal(signal) => (signal, true),
            };
            self.say(self.s.hosts[rank], Message::Ended(rank, code, signalled, word));
        }
        self.hear_end(place, rank, ending, word);
    }

    fn hear_end(&mut self, place: usize, rank: usize, ending: Ending, word: Option<usize>) {
        if let Some(named) = word {
            self.hear(place, Event::Blames { by: rank, rank: named });
        }
        let state = &mut self.places[place];
        if ending.is_failure() && state.machine.judges() && state.machine.is_awaited(rank) {
            state.failure_heard.get_or_insert(self.now);
        }
        self.hear(place, Event::Ended { rank, ending, memory: String::new() });
        self.places[place].heard_ends = true;
    }

    fn send(&mut self, host: usize, to_host: bool, message: Message) {
        let at = self.now + self.rng.between(1, self.s.delay);
        let way = &mut self.ways[host];
        let arrives = &mut way.arrives[usize::from(to_host)];
        *arrives = at.max(*arrives);
        let at = *arrives;
        let due = if to_host { Due::ToHost(host, message) } else { Due::ToLauncher(host, message) };
        self.plan(at, due);
    }

    fn say(&mut self, host: usize, message: Message) {
        self.send(host, false, message);
    }

    fn launcher_hears(&mut self, host: usize, message: Message) {
        if self.ways[host].is_cut {
            return;
        }
        let refused = |why: &str, code| Problem { why: format!("host {host} {why}"), code };
        match message {
            Message::Ready => self.hear(0, Event::HostReady { host }),
            Message::Refused => {
                self.hear(0, Event::HostRefused { host, problem: refused("refuses", USAGE) });
            }
            Message::Unstarted => {
                self.hurry(0);
                self.hear(0, Event::Unstarted { rank: None, problem: refused("cannot start", USAGE) });
            }
            Message::Ended(rank, code, signalled, word) => {
                let ending = if signalled { Ending::Signal(code) } else { Ending::Exit(code) };
                self.hear_end(0, rank, ending, word);
            }
            Message::Stopped(rank) => self.hear(0, Event::Stopped { rank }),
            Message::Bye => {
                self.ways[host].is_running = false;
                self.hear(0, Event::HostDone { host });
            }
            _ => {}
        }
    }

    fn launcher_misses(&mut self, host: usize) {
        let why = format!("host {host} was lost");
        if self.places[0].machine.begun {
            if std::mem::take(&mut self.ways[host].is_running) {
                let now = self.now;
                self.s.ranks_of(host).for_each(|rank| self.ranks[rank].learn_end(now, true));
                self.hurry(0);
                self.hear(0, Event::HostLost { host, silent: Duration::from_millis(SILENCE), why });
            }
        } else {
            self.hear(0, Event::HostRefused { host, problem: Problem::machine(why) });
        }
    }

    fn host_misses(&mut self, place: usize) {
        if self.places[place].begun {
            self.stop(place, StopReason::Orphaned);
        } else {
            self.places[place].up = false;
        }
    }

    fn host_hears(&mut self, host: usize, message: Message) {
        let place = host + 1;
        if self.ways[host].is_cut || !self.places[place].up {
            return;
        }
        match message {
            Message::Go => {
                self.places[place].begun = true;
                self.hear(place, Event::Begin);
            }
            Message::StartAgain(rank) => self.hear(place, Event::StartAgain { rank }),
            Message::Term => self.hear(place, Event::Ordered(StopOrder::Term)),
            Message::Kill => self.hear(place, Event::Ordered(StopOrder::Kill)),
            Message::FindStopped => self.find_stopped(place),
            Message::Close => self.host_misses(place),
            _ => {}
        }
    }
}

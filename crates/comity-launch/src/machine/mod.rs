//! Decisions of a launcher: who is started, who failed, who is blamed, what is ended and in which order, which exit code comes out.
//!
//! The machine does no I/O and reads no clock. Events come in with their time, and actions go out:
//!
//! ```text
//!   hosts, ranks, the user                  Machine                       the caller carries out
//!   ------------------------+---------------------------------------+--------------------------------
//!   a host can run its part -> HostReady \                            /  Compare: are programs alike?
//!   a rank ended            -> Ended      |  ranks: who runs where    |  Start ranks 0 to 3
//!   ... and named another   -> Blames     |  the cause, and whether   |  End: SIGTERM, then SIGKILL
//!   a host is gone          -> HostLost   |    it is a consequence    |  FindStopped: who is stopped?
//!   Ctrl-C, a dead terminal -> Stop       |  phases, each with its    |  EndStrays: what ranks left
//!   orders of a launcher    -> Ordered    |    limit                  |  CloseOutput, SayVerdict
//!   it is time              -> tick      /                             \
//! ```
//!
//! Ask for [`Machine::actions`] after every call and carry them out in their order. Call [`Machine::tick`] after every wait;
//! [`Machine::next`] says until when to wait at most. The simulator of this crate's tests drives the same code through jobs in virtual time.
//!
//! # Phases
//! ```text
//!   Gathering --> Running --> Grace --> Ending --> Killing --> Clearing --> Draining --> Others --> Saying --> Over
//!   hosts say     all well    1 s for   after      after       strays are   pipes are    other      the last
//!   whether they              the rest  SIGTERM    SIGKILL     ended        read to      nodes      line is
//!   can run it                                                              their end    find too   written
//! ```
//! A phase is left out where there is nothing to do in it. The job is over for its ranks when none is left, or when those that are
//! left do not die of SIGKILL.
//!
//! # Whose word counts
//! The first failure is the cause, until the ranks' own words are known: a rank that failed because of another one names that one
//! ([`Event::Blames`]), and the machine follows such words from the first failure to the rank that names nobody. A rank that
//! crashed is no consequence. An end after SIGTERM says nothing about its rank.
//!
//! # A job that goes on without a rank
//! With [`JobPlan::elastic`] a rank that fails ends nobody. After a pause of [`pause`](restart::pause) it is started again
//! ([`Action::Start`] for that rank alone), and joins the ranks that run ([`Event::Joined`]). `ends.rs` has the rules.
use ends::LostHost;
use std::time::{Duration, Instant};

mod ends;
mod events;
pub(crate) mod findings;
pub(crate) mod restart;
#[cfg(test)]
mod simulate;
mod stopping;
#[cfg(test)]
mod tests;
mod verdict;

pub(crate) use ends::ElasticTerms;
pub(crate) use events::{Action, Ending, Event, Problem, StopOrder, StopReason};
pub(crate) use restart::AttemptEnd;
pub(crate) use verdict::{CutOff, Verdict, with_cut_off};

/// Exit code for input that a user can correct.
pub(crate) const USAGE: u8 = 2;
/// The exit code when the machine refuses something that was asked correctly.
pub(crate) const REFUSED: u8 = 1;

/// Time for which the others may go on after a rank failed, so that they can report the failure.
pub(crate) const GRACE: Duration = Duration::from_secs(1);
/// Time that a rank has to end after SIGTERM, unless the user says otherwise.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);
/// The same when the launcher was killed: nothing may outlive it by 2 s.
const PATIENCE_ORPHANED: Duration = Duration::from_secs(1);
/// Time that a process has to vanish after SIGKILL before it is left behind (it hangs in the kernel).
const VANISH: Duration = Duration::from_secs(10);
/// A rank that crashed holds its connections until the kernel has taken it apart, so a peer may report the
/// loss and exit first. A crash seen this soon after such an exit is taken for its cause.
const CONSEQUENCE: Duration = Duration::from_millis(100);
/// SIGINT hurries a job that ends already, but not this soon: `timeout` and some shells send a signal to the
/// process and to its group, which is one wish in two signals.
const TWICE: Duration = Duration::from_millis(200);
/// Time that the others' ranks have to end when this node's have, beside the grace.
const OTHERS: Duration = Duration::from_secs(20);

/// Place of this launcher among those of the job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Role {
    /// The ranks are here, and so is the verdict.
    #[default]
    Alone,
    /// The ranks are on other hosts, each with a launcher in the role `Host`. The verdict is here.
    Fleet,
    /// The ranks are here, and a launcher in the role `Fleet` judges them.
    Host,
    /// Some of the ranks are here. The launchers of all nodes draw one verdict from all findings.
    Node,
}

impl Role {
    /// Interval of looks whether ranks that were given up are stopped. Hosts answer later than this one.
    fn look(self) -> Duration {
        Duration::from_millis(if self == Self::Fleet { 1000 } else { 500 })
    }

    fn judges(self) -> bool {
        self != Self::Host
    }
}

/// Ranks of a launcher and its limits.
#[derive(Clone, Debug, Default)]
pub(crate) struct JobPlan {
    /// Place of this launcher.
    pub(crate) role: Role,
    /// Number of its first rank.
    pub(crate) first: usize,
    /// Host of each of its ranks.
    pub(crate) hosts: Vec<usize>,
    /// Ranks of the whole job.
    pub(crate) world: usize,
    /// Time that the job may take.
    pub(crate) timeout: Option<Duration>,
    /// Time that ranks have to end after SIGTERM.
    pub(crate) grace: Duration,
    /// Number of times that the job was started before.
    pub(crate) restart: u32,
    /// Terms on which the job goes on without ranks; none: the first failure ends it.
    pub(crate) elastic: Option<ElasticTerms>,
}

#[derive(Clone, Debug)]
struct RankState {
    host: usize,
    life: Life,
    /// The rank that it names.
    blames: Option<usize>,
    /// It was stopped at the last look.
    stopped: bool,
    memory: String,
    /// Number of times that it was started again, and how often because it had failed.
    restarts: u32,
    failures: u32,
    /// It belongs to the group: from its first start on, and from when the group has taken it in.
    is_in: bool,
    /// When it is started again.
    again: Option<Instant>,
}

impl RankState {
    /// It is a rank of the group, and runs.
    fn is_member(&self) -> bool {
        self.is_in && self.life.is_awaited()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// Not started yet.
    Waiting,
    Running,
    Ended {
        ending: Ending,
        at: Instant,
        /// Before the others were ended: it says something about the rank.
        early: bool,
    },
    Lost,
    /// It was not started, and will not be.
    Unstarted,
}

impl Life {
    fn is_awaited(self) -> bool {
        matches!(self, Self::Waiting | Self::Running)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Readiness {
    Asked,
    Ready,
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Before the first event.
    New,
    Gathering,
    Running,
    Grace {
        until: Instant,
    },
    Ending {
        since: Instant,
        until: Instant,
    },
    Killing {
        until: Instant,
    },
    Clearing {
        step: Clearing,
        until: Instant,
        look: Instant,
    },
    Draining(ReaderProgress),
    Others {
        until: Option<Instant>,
        looked: Instant,
    },
    Saying(ReaderProgress),
    Over,
}

/// Step of ending the processes that ranks left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clearing {
    /// They were not looked for yet.
    Look,
    Asked,
    Killed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ReaderProgress {
    since: Instant,
    looked: Instant,
    written: Option<u64>,
    /// When it last took something, or had nothing to take.
    moved: Instant,
}

/// Decisions on a job; the [module](self) has the picture.
#[derive(Debug)]
pub(crate) struct Machine {
    plan: JobPlan,
    deadline: Option<Instant>,
    ranks: Vec<RankState>,
    hosts: Vec<Readiness>,
    /// Tries of hosts that were lost.
    lost_hosts: Vec<LostHost>,
    /// The launcher that this one obeys ends its ranks: no other is started.
    is_ordered: bool,
    phase: Phase,
    /// All ranks were told to run.
    pub(crate) begun: bool,
    cause: Option<StopReason>,
    failed_at: Option<Instant>,
    /// The first failure of a rank, and how many ranks were left when there were too few.
    first_failure: Option<Instant>,
    left: Option<usize>,
    /// Processes in the group that this launcher did not start.
    guests: usize,
    /// Failures before the others were ended, the first one first: these say something about their rank.
    failures: Vec<(usize, Ending)>,
    /// Ranks that ended with 0 before the others were ended.
    well: Vec<usize>,
    /// Ranks of other nodes that were given up, and by whom.
    given_up: Vec<(usize, usize)>,
    /// Time that ranks have to end after SIGTERM when one of them or a host has failed.
    patience_failed: Duration,
    pub(crate) cut_off: Option<CutOff>,
    /// Problems of hosts before anything ran.
    pub(crate) problems: Vec<Problem>,
    unstarted: Option<Problem>,
    /// Hosts that were lost, and why.
    losses: Vec<(usize, String)>,
    looked: Instant,
    /// The user asked for the end when no rank was left.
    hurried: bool,
    /// True if the job was failing when the other nodes were told.
    told_failing: Option<bool>,
    actions: Vec<Action>,
}

impl Machine {
    /// A job that begins now: its limit counts from here.
    pub(crate) fn new(plan: JobPlan, now: Instant) -> Self {
        let hosts = plan.hosts.iter().max().map_or(0, |last| last + 1);
        let rank = |host: &usize| RankState {
            host: *host,
            life: Life::Waiting,
            blames: None,
            stopped: false,
            memory: String::new(),
            restarts: 0,
            failures: 0,
            is_in: true,
            again: None,
        };
        Self {
            deadline: plan.timeout.and_then(|t| now.checked_add(t)),
            ranks: plan.hosts.iter().map(rank).collect(),
            hosts: vec![Readiness::Asked; hosts],
            lost_hosts: Vec::new(),
            is_ordered: false,
            phase: Phase::New,
            begun: false,
            cause: None,
            failed_at: None,
            first_failure: None,
            left: None,
            guests: 0,
            failures: Vec::new(),
            well: Vec::new(),
            given_up: Vec::new(),
            patience_failed: plan.grace,
            cut_off: None,
            problems: Vec::new(),
            unstarted: None,
            losses: Vec::new(),
            looked: now,
            hurried: false,
            told_failing: None,
            actions: Vec::new(),
            plan,
        }
    }

    pub(crate) fn on(&mut self, event: Event, now: Instant) {
        match event {
            Event::Begin if self.phase == Phase::New => match self.plan.role {
                Role::Fleet => self.phase = Phase::Gathering,
                _ => self.start(),
            },
            Event::Begin => {}
            Event::HostReady { host } if self.is_tried(host) => self.host_back(host),
            Event::HostRefused { host, problem } if self.is_tried(host) => {
                self.lose_host(host, problem.why);
                self.try_later(host, now);
            }
            Event::HostReady { host } => self.answered(host, Readiness::Ready),
            Event::HostRefused { host, problem } if self.phase == Phase::Gathering => {
                self.problems.push(problem);
                self.answered(host, Readiness::Refused);
            }
            Event::HostsLate { problems } if self.phase == Phase::Gathering => {
                self.problems.extend(problems);
                self.give_up_beginning(now);
            }
            // The connections of a job that does not begin are closed, which their hosts are not to blame for.
            Event::HostRefused { .. } | Event::HostsLate { .. } => {}
            Event::Compared { problems } => {
                self.problems.extend(problems);
                if self.problems.is_empty() && self.phase == Phase::Gathering {
                    self.start();
                } else {
                    self.give_up_beginning(now);
                }
            }
            Event::Joined { rank } => self.joined(rank),
            Event::Guests { number } => self.have_guests(number, now),
            Event::Unstarted { rank, problem } => self.not_started(rank, problem, now),
            Event::Ended { rank, ending, memory } => self.rank_ended(rank, ending, memory, now),
            Event::Blames { by, rank } => {
                if let Some(state) = self.rank_mut(by) {
                    state.blames = Some(rank);
                }
            }
            Event::Stopped { rank } => self.is_stopped(rank, now),
            Event::HostLost { host, silent, why } => self.host_lost(host, silent, why, now),
            Event::StartAgain { rank } => self.start_rank(rank),
            Event::HostDone { host } => self.host_done(host),
            Event::OtherEnds { node } => self.others_fail(node, Duration::ZERO, now),
            Event::GivenUp(all) => self.given_up = all,
            Event::Stop(reason) => self.stop(reason, now),
            Event::Ordered(order) => self.ordered(order),
            Event::Strays { left } => self.strays(left, now),
            Event::Output { open, pending, written } => self.output(open, pending, written, now),
            Event::Others { heard, failing } => self.others(heard, failing, now),
        }
        self.settle(now);
    }

    /// Deeds that are due, in their order.
    pub(crate) fn actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Returns whether hosts still say whether they can run their parts.
    pub(crate) fn is_gathering(&self) -> bool {
        matches!(self.phase, Phase::New | Phase::Gathering)
    }

    /// Returns whether the end of a rank counts as its own.
    pub(crate) fn judges(&self) -> bool {
        self.plan.role.judges() && matches!(self.phase, Phase::Running | Phase::Grace { .. })
    }

    /// Returns whether a rank runs, or will.
    pub(crate) fn is_awaited(&self, rank: usize) -> bool {
        self.rank(rank).is_some_and(|r| r.life.is_awaited())
    }

    pub(crate) fn ending(&self, rank: usize) -> Option<Ending> {
        match self.rank(rank)?.life {
            Life::Ended { ending, .. } => Some(ending),
            _ => None,
        }
    }

    /// Ranks that run, or will.
    pub(crate) fn awaited(&self) -> impl Iterator<Item = usize> {
        let first = self.plan.first;
        self.ranks.iter().enumerate().filter(|(_, r)| r.life.is_awaited()).map(move |(n, _)| first + n)
    }

    /// Returns whether the job ends before all of its ranks exited with 0.
    pub(crate) fn is_failing(&self) -> bool {
        self.cause.is_some()
    }

    /// Ranks that those here gave up before these ended well, each with the rank that gave it up.
    pub(crate) fn given_up_here(&self) -> impl Iterator<Item = (usize, usize)> {
        // Also when all ranks here have ended: the other nodes' may not have.
        let well = if self.cause.is_none() { self.well.as_slice() } else { &[] };
        well.iter().filter_map(|by| Some((self.rank(*by)?.blames?, *by)))
    }

    /// Sentence on the loss of a host.
    pub(crate) fn loss_of(&self, host: usize) -> Option<&str> {
        self.losses.iter().find(|(h, _)| *h == host).map(|(_, why)| why.as_str())
    }

    pub(crate) fn restarts_of(&self, rank: usize) -> u32 {
        self.rank(rank).map_or(0, |r| r.restarts)
    }

    /// Cause of the job's end, by what the ranks say of each other.
    pub(crate) fn root_cause(&self) -> Option<StopReason> {
        verdict::root_cause(self)
    }

    /// Returns whether a host that was lost is tried.
    fn is_tried(&self, host: usize) -> bool {
        self.lost_hosts.iter().any(|lost| lost.host == host && lost.again.is_none())
    }

    fn rank(&self, rank: usize) -> Option<&RankState> {
        self.ranks.get(rank.checked_sub(self.plan.first)?)
    }

    fn rank_mut(&mut self, rank: usize) -> Option<&mut RankState> {
        self.ranks.get_mut(rank.checked_sub(self.plan.first)?)
    }

    fn start(&mut self) {
        self.phase = Phase::Running;
        self.begun = true;
        for rank in self.ranks.iter_mut().filter(|r| r.life == Life::Waiting) {
            rank.life = Life::Running;
        }
        self.actions.push(Action::Start(self.plan.first..self.plan.first + self.ranks.len()));
    }

    fn answered(&mut self, host: usize, readiness: Readiness) {
        if self.phase != Phase::Gathering {
            return;
        }
        if let Some(known) = self.hosts.get_mut(host) {
            *known = readiness;
        }
        if !self.hosts.contains(&Readiness::Asked) {
            self.actions.push(Action::Compare);
        }
    }

    /// Nothing runs, for a problem or because the user wants it so.
    fn give_up_beginning(&mut self, now: Instant) {
        if self.phase != Phase::Gathering {
            return;
        }
        if self.cause.is_none() {
            self.actions.push(Action::SayProblems);
        }
        for rank in &mut self.ranks {
            rank.life = Life::Unstarted;
        }
        self.clear(now);
    }

    fn not_started(&mut self, rank: Option<usize>, problem: Problem, now: Instant) {
        if let Some(again) = rank.filter(|r| self.rank(*r).is_some_and(|r| r.restarts > 0)) {
            return self.rank_ended(again, Ending::Exit(problem.code.into()), problem.why, now);
        }
        self.unstarted.get_or_insert(problem);
        let from = rank.map_or(self.ranks.len(), |rank| rank.saturating_sub(self.plan.first));
        for rank in self.ranks.iter_mut().skip(from).filter(|r| r.life.is_awaited()) {
            rank.life = Life::Unstarted;
        }
        self.stop(StopReason::Unstarted, now);
    }
}

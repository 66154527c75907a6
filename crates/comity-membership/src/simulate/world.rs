//! Processes, connections and time, none of them real, around the true [`Membership`].

mod due;
mod network;
mod turn;

use super::{
    SimulatedFailure,
    judge::{Cause, Judge},
    member::{Occasion, SimulatedMember},
    mutant::Mutant,
    scenario::{MS, NEVER, PlantedFault, Scenario},
};
use crate::Membership;
use due::{DueEvent, Item};
use scope::{Agenda, Rng};
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

/// A process.
#[derive(Debug)]
struct Process {
    membership: Membership<SimulatedFailure>,
    running: bool,
    /// Not running before this, if at all: stopped.
    stopped: u64,
    /// Number of notes that it still sends before it is killed.
    sends: Option<u32>,
    inbox: Agenda<(usize, Item)>,
    /// When its control thread began to wait.
    waits: u64,
    /// When its control thread gets its turn next.
    turn: u64,
    /// By group.
    members: Vec<SimulatedMember>,
    /// Ranks that it has a connection to, or had.
    linked: BTreeSet<usize>,
}

fn membership(scenario: &Scenario, rank: usize) -> Membership<SimulatedFailure> {
    let limit = Some(Duration::from_micros(scenario.limit));
    if scenario.sparse {
        Membership::sparse(rank, scenario.size, limit)
    } else {
        Membership::new(rank, scenario.size, limit)
    }
}

pub(super) struct SimulatedWorld<'a> {
    pub(super) scenario: &'a Scenario,
    rng: Rng,
    zero: Instant,
    now: u64,
    events: Agenda<DueEvent>,
    processes: Vec<Process>,
    /// When the last note from one to the other arrives; by from * size + to.
    arrivals: Vec<u64>,
    /// Connections that are broken, in the same order.
    broken: Vec<bool>,
    pub(super) judge: Judge,
    mutant: Option<Mutant>,
    pub(super) trace: Option<Vec<String>>,
    /// Notes of all kinds that were sent, beats left out.
    pub(super) notes: u64,
}

impl<'a> SimulatedWorld<'a> {
    pub(super) fn new(scenario: &'a Scenario, mutant: Option<Mutant>, trace: bool) -> Self {
        let size = scenario.size;
        let groups = scenario.groups.len();
        let process = |rank| Process {
            membership: membership(scenario, rank),
            running: true,
            stopped: 0,
            sends: None,
            inbox: Agenda::default(),
            waits: 0,
            turn: u64::MAX,
            members: vec![SimulatedMember::default(); groups],
            linked: scenario.neighbours(rank).into_iter().collect(),
        };
        let mut world = Self {
            scenario,
            rng: Rng::new(!scenario.seed),
            zero: Instant::now(),
            now: 0,
            events: Agenda::default(),
            processes: (0..size).map(process).collect(),
            arrivals: vec![0; size * size],
            broken: vec![false; size * size],
            judge: Judge::new(scenario),
            mutant,
            trace: trace.then(Vec::new),
            notes: 0,
        };
        for (g, plan) in scenario.groups.iter().enumerate() {
            for (i, rank) in plan.members.iter().enumerate() {
                world.plan(plan.enter[i], DueEvent::Enter(*rank, g));
                if let Some(at) = plan.leave[i] {
                    world.plan(at, DueEvent::Leave(*rank, g));
                }
            }
        }
        scenario.goodbyes.iter().for_each(|(rank, at)| world.plan(*at, DueEvent::Goodbye(*rank)));
        for (i, fault) in scenario.faults.iter().enumerate() {
            let (PlantedFault::Kill { at, .. }
            | PlantedFault::Power { at, .. }
            | PlantedFault::Stop { at, .. }
            | PlantedFault::Cut { at, .. }
            | PlantedFault::Reset { at, .. }
            | PlantedFault::Slow { at, .. }
            | PlantedFault::Abort { at, .. }) = fault;
            world.plan(*at, DueEvent::Strike(i));
        }
        for rank in 0..size {
            let now = world.instant(0);
            for other in scenario.neighbours(rank) {
                world.processes[rank].membership.attach(other, now);
            }
            world.perform(rank, Occasion::Call);
            world.idle(rank);
        }
        world
    }

    /// Run to the end of the scenario; the first broken promise, in words.
    pub(super) fn run(&mut self) -> Result<(), String> {
        let mut end = self.scenario.end;
        loop {
            self.run_to(end)?;
            let members: Vec<Vec<SimulatedMember>> =
                self.processes.iter().map(|p| p.members.clone()).collect();
            let running: Vec<bool> =
                self.processes.iter().map(|p| p.running && p.stopped <= self.scenario.end).collect();
            match self.judge.judge(self.scenario, &members, &running, end)? {
                Some(later) => end = later,
                None => return Ok(()),
            }
        }
    }

    fn run_to(&mut self, end: u64) -> Result<(), String> {
        while let Some((at, what)) = self.events.take(end) {
            self.now = at;
            self.event(what);
            if let Some(verdict) = self.judge.broken.take() {
                return Err(verdict);
            }
        }
        Ok(())
    }

    /// When each rank learned that a group has failed, and why.
    pub(super) fn known(&self, g: usize) -> Vec<Option<(u64, SimulatedFailure)>> {
        self.processes.iter().map(|p| p.members[g].failed.clone()).collect()
    }

    fn instant(&self, at: u64) -> Instant {
        self.zero + Duration::from_micros(at)
    }

    fn note(&mut self, words: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>10.3} ms  {}", now as f64 / MS as f64, words()));
        }
    }

    fn plan(&mut self, at: u64, what: DueEvent) {
        self.events.plan(at, what);
    }

    fn event(&mut self, event: DueEvent) {
        match event {
            DueEvent::Strike(i) => self.strike(i),
            DueEvent::Turn(rank)
            | DueEvent::Enter(rank, _)
            | DueEvent::Leave(rank, _)
            | DueEvent::Goodbye(rank) => {
                let process = &self.processes[rank];
                if !process.running {
                    return;
                }
                if process.stopped > self.now {
                    if process.stopped < u64::MAX && !matches!(event, DueEvent::Turn(_)) {
                        self.plan(process.stopped, event);
                    }
                    return;
                }
                match event {
                    DueEvent::Turn(_) => self.turn(rank),
                    DueEvent::Enter(_, g) => self.enter(rank, g),
                    DueEvent::Leave(_, g) => self.leave(rank, g),
                    DueEvent::Goodbye(_) => self.goodbye(rank),
                    DueEvent::Strike(_) => {}
                }
            }
        }
    }

    fn enter(&mut self, rank: usize, g: usize) {
        let plan = &self.scenario.groups[g];
        let Some(mine) = plan.members.iter().position(|m| *m == rank) else { return };
        self.note(|| format!("rank {rank} opens group {}", plan.group_id));
        self.processes[rank].members[g].entered = Some(self.now);
        self.processes[rank].membership.enter(plan.group_id, &plan.members, mine);
        self.perform(rank, Occasion::Call);
    }

    fn leave(&mut self, rank: usize, g: usize) {
        let member = &self.processes[rank].members[g];
        if member.entered.is_none() || member.left.is_some() {
            return;
        }
        let group_id = self.scenario.groups[g].group_id;
        let failed = member.failed.is_some();
        self.note(|| format!("rank {rank} leaves group {group_id}{}", if failed { ", failed" } else { "" }));
        self.judge.leaves(rank, g, self.now, failed);
        self.processes[rank].membership.leave(group_id, true);
        self.perform(rank, Occasion::Leave);
        self.processes[rank].members[g].left = Some(self.now);
    }

    fn goodbye(&mut self, rank: usize) {
        self.note(|| format!("rank {rank} says goodbye"));
        for g in 0..self.scenario.groups.len() {
            let failed = self.processes[rank].members[g].failed.is_some();
            self.judge.leaves(rank, g, self.now, failed);
        }
        self.processes[rank].membership.end("", &[]);
        self.perform(rank, Occasion::Leave);
        self.vanish(rank);
    }

    fn kill(&mut self, rank: usize) {
        self.note(|| format!("rank {rank} is killed"));
        self.judge.cause(Cause::Ended { rank, at: self.now, until: NEVER, surely: true, heard: true });
        self.vanish(rank);
    }

    /// The process is no more, and its connections end.
    fn vanish(&mut self, rank: usize) {
        self.processes[rank].running = false;
        for other in self.processes[rank].linked.clone() {
            self.shut(rank, other);
        }
    }
}

//! Actions of a process, carried out in the simulated world.

use super::{DueEvent, Item, Occasion, SimulatedWorld};
use crate::{
    Action, Note, Presence,
    simulate::{SimulatedFailure, mutant::Mutant},
};
use std::rc::Rc;

impl SimulatedWorld<'_> {
    /// Do what a process has decided.
    pub(super) fn perform(&mut self, rank: usize, occasion: Occasion) {
        let mut actions = self.processes[rank].membership.actions();
        if let Some(mutant) = self.mutant {
            mutant.act(rank, occasion, &mut actions, self.scenario);
        }
        self.judge.count(self.scenario, rank, occasion, &actions);
        for action in actions {
            if !self.processes[rank].running {
                return;
            }
            match action {
                Action::Tell { to, note } => {
                    if !self.tell(rank, to, note) {
                        return;
                    }
                }
                Action::Beat { progress } => {
                    for to in self.processes[rank].linked.clone() {
                        let membership = &self.processes[rank].membership;
                        let is_live = membership.presence(to) == Some(&Presence::Live);
                        if is_live && membership.is_connected(to) {
                            self.send(rank, to, Item::Beat(progress));
                        }
                    }
                }
                // The lower rank of a pair is asked.
                Action::Ask { rank: to } => {
                    if to < rank {
                        self.pass(rank, to, Item::Asked(self.now));
                    }
                }
                Action::Dial { rank: other } => self.dial(rank, other),
                Action::Close { rank: other } => {
                    self.shut(rank, other);
                    self.processes[rank].linked.remove(&other);
                }
                Action::Fail { group_id, failure } => self.fail(rank, group_id, failure),
                Action::Left { group_id, member } => {
                    let group = self.scenario.groups.iter().position(|g| g.group_id == group_id);
                    if let Some(g) = group {
                        let failed = self.processes[rank].members[g].failed.is_some();
                        self.judge.left(self.scenario, rank, g, member, failed);
                    }
                }
                Action::Suspect { .. }
                | Action::Silence { .. }
                | Action::News
                | Action::Log(_)
                | Action::Waits { .. }
                | Action::Entered { .. }
                | Action::Connect { .. }
                | Action::Census { .. }
                | Action::Reached { .. }
                | Action::Reform { .. } => {}
            }
        }
    }

    /// Send a note to some. False if the process is killed in the midst of it.
    fn tell(&mut self, rank: usize, to: Vec<usize>, note: Note<SimulatedFailure>) -> bool {
        self.note(|| format!("rank {rank} tells {to:?}: {note:?}"));
        let note = Rc::new(note);
        for to in to {
            self.notes += 1;
            if !self.processes[rank].linked.contains(&to) {
                self.judge.accuse(|| format!("rank {rank} tells rank {to} without a connection"));
            }
            self.send(rank, to, Item::Note(Rc::clone(&note)));
            if let Some(sends) = &mut self.processes[rank].sends {
                *sends -= 1;
                if *sends == 0 {
                    self.kill(rank);
                    return false;
                }
            }
        }
        true
    }

    pub(super) fn fail(&mut self, rank: usize, group_id: u64, failure: SimulatedFailure) {
        let Some(g) = self.scenario.groups.iter().position(|g| g.group_id == group_id) else { return };
        let now = self.now;
        let member = &mut self.processes[rank].members[g];
        // As a watch does.
        if member.failed.is_some() && self.mutant != Some(Mutant::LastReason) {
            self.judge.fails_again(rank, g, &failure);
            return;
        }
        member.failed = Some((now, failure.clone()));
        self.note(|| format!("rank {rank}: group {group_id} has failed: {failure:?}"));
        self.judge.fails(self.scenario, rank, g, now, &failure);
        self.linger(rank, g);
    }

    /// A failed group is dropped some time later.
    pub(super) fn linger(&mut self, rank: usize, g: usize) {
        if let Some((low, high)) = self.scenario.linger {
            let at = self.now + 1 + self.rng.between(low, high);
            self.plan(at, DueEvent::Leave(rank, g));
        }
    }
}

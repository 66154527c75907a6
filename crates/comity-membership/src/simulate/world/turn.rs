//! Turn of a process's control thread: what it hears, what it decides, and the actions, carried out in the simulated world.

use super::{DueEvent, Item, Occasion, SimulatedWorld};
use crate::{
    Action, DIED, Heard, NoConnection, Note, Presence,
    simulate::{SimulatedFailure, mutant::Mutant, scenario::PlantedFault},
};
use std::rc::Rc;

/// For how long a question may lie before a process that does not run, in microseconds: `comity` drops it then.
const ANSWER: u64 = 2_000_000;

/// Events that have come.
#[derive(Default)]
struct Inbox {
    /// Notes and ends of connections.
    heard: Vec<(usize, Heard<SimulatedFailure>)>,
    /// Ranks that asked or answered that they live, with whether they asked.
    alive: Vec<(usize, bool)>,
    /// New connections; those that were missed, and why.
    connected: Vec<(usize, Option<NoConnection>)>,
}

impl SimulatedWorld<'_> {
    /// A mistake: what is heard last counts.
    fn take_last(&mut self, rank: usize, heard: Heard<SimulatedFailure>) {
        let note = match heard {
            // In a large job.
            Heard::Note(Note::Spread { note, .. }) => *note,
            Heard::Note(note) => note,
            Heard::End(_) => return,
        };
        if let Note::Abort { group_id, failure } = note {
            self.fail(rank, group_id, failure);
        }
    }

    /// The turn of the control thread, as in `comity`: hear, then judge.
    pub(super) fn turn(&mut self, rank: usize) {
        let process = &mut self.processes[rank];
        if process.turn != self.now {
            return;
        }
        process.turn = u64::MAX;
        let Inbox { mut heard, alive, connected } = self.take_inbox(rank);
        let heard_until = self.processes[rank].waits;
        if let Some(mutant) = self.mutant {
            mutant.hear(rank, &mut heard, |group_id| {
                let group = self.scenario.groups.iter().position(|g| g.group_id == group_id);
                group.is_some_and(|g| self.processes[rank].members[g].entered.is_some())
            });
        }
        for (from, heard) in &heard {
            if let Heard::End(_)
            | Heard::Note(Note::Heartbeat { .. } | Note::Goodbye { .. } | Note::GivenUp { .. }) = heard
            {
                self.judge.beginnings.hears(rank, *from, self.now);
            }
        }
        let now = self.instant(self.now);
        let last = (self.mutant == Some(Mutant::LastReason)).then(|| heard.clone());
        for (other, missed) in connected {
            let membership = &mut self.processes[rank].membership;
            match missed {
                Some(why) => membership.missed(other, why, now),
                None if membership.attach(other, now) => {}
                None => self.shut(rank, other),
            }
        }
        for (from, asks) in alive {
            if self.processes[rank].membership.presence(from) == Some(&Presence::Live) {
                self.processes[rank].membership.lives(from, now);
                if asks {
                    self.pass(rank, from, Item::Answer);
                }
            }
        }
        self.processes[rank].membership.hear(heard, now);
        self.perform(rank, Occasion::Hear);
        last.into_iter().flatten().for_each(|(_, heard)| self.take_last(rank, heard));
        let heard_until = match self.mutant {
            Some(Mutant::IgnoresSilence) => self.instant(0),
            _ => self.instant(heard_until),
        };
        self.processes[rank].membership.tick(heard_until, now, self.now);
        self.perform(rank, Occasion::Tick);
        if self.processes[rank].running {
            self.idle(rank);
        }
    }

    /// Take the events that have come by now.
    fn take_inbox(&mut self, rank: usize) -> Inbox {
        let process = &mut self.processes[rank];
        let mut all = Inbox::default();
        while let Some((_, (from, item))) = process.inbox.take(self.now) {
            let what = match item {
                Item::Asked(at) if self.now - at > ANSWER => continue,
                Item::Asked(_) | Item::Answer => {
                    all.alive.push((from, matches!(item, Item::Asked(_))));
                    continue;
                }
                Item::Connected | Item::Missed(_) => {
                    let missed = if let Item::Missed(why) = item { Some(why) } else { None };
                    all.connected.push((from, missed));
                    continue;
                }
                Item::Beat(progress) => Heard::Note(Note::Heartbeat { progress }),
                Item::Note(note) => Heard::Note((*note).clone()),
                Item::End => Heard::End(DIED),
            };
            all.heard.push((from, what));
        }
        all
    }

    /// The control thread begins to wait.
    pub(super) fn idle(&mut self, rank: usize) {
        let process = &mut self.processes[rank];
        process.waits = self.now;
        let came = process.inbox.next().unwrap_or(u64::MAX);
        let due = process.membership.next();
        let due = due.map_or(u64::MAX, |t| t.duration_since(self.zero).as_micros() as u64);
        self.wake(rank, came.min(due));
    }

    /// The control thread gets its turn some time after there is something to do, at `first`.
    pub(super) fn wake(&mut self, rank: usize, first: u64) {
        let process = &self.processes[rank];
        let first = first.max(process.waits);
        if first >= process.turn || first == u64::MAX {
            return;
        }
        let slow = self.scenario.faults.iter().filter_map(|f| match f {
            PlantedFault::Slow { rank: r, at, to, lag } if *r == rank && (*at..*to).contains(&first) => {
                Some(*lag)
            }
            _ => None,
        });
        let slow = slow.max().unwrap_or(0);
        let (low, high) = self.scenario.lag;
        let turn = first + slow + self.rng.between(low, high);
        let process = &mut self.processes[rank];
        if turn < process.turn {
            process.turn = turn;
            self.plan(turn, DueEvent::Turn(rank));
        }
    }

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
                Action::Said { member, note: Note::Leave { group_id }, .. } => {
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
                | Action::Said { .. }
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

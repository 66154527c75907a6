//! The faults of a scenario as they begin.

use super::{DueEvent, Occasion, SimulatedWorld};
use crate::{
    Reason,
    simulate::{
        SimulatedFailure,
        judge::Cause,
        scenario::{NEVER, PlantedFault},
    },
};

impl SimulatedWorld<'_> {
    pub(super) fn strike(&mut self, i: usize) {
        let fault = self.scenario.faults[i].clone();
        if let PlantedFault::Abort { group, by, culprit, .. } = fault {
            return self.abort(group, by, culprit, i);
        }
        let now = self.now;
        self.note(|| match &fault {
            PlantedFault::Cut { side, both, to, .. } => {
                let ranks: Vec<usize> = (0..side.len()).filter(|r| side[*r]).collect();
                format!("FAULT: nothing comes from ranks {ranks:?} (and back: {both}) until {to:?} us")
            }
            fault => format!("FAULT: {fault:?}"),
        });
        match fault {
            PlantedFault::Kill { rank, sends, .. } if self.processes[rank].running => match sends {
                None => self.kill(rank),
                // Unless it has fewer to send, it dies in the middle of them.
                Some(_) => self.processes[rank].sends = sends,
            },
            PlantedFault::Power { rank, .. } => {
                // Where the process has ended already, its goodbye may be with the host still.
                let surely = std::mem::take(&mut self.processes[rank].running);
                self.judge.cause(Cause::Ended { rank, at: now, until: NEVER, surely, heard: false });
            }
            PlantedFault::Stop { rank, to, .. } if self.processes[rank].running => self.stop(rank, to),
            PlantedFault::Cut { side, both, to: None, .. } => {
                self.judge.cause(Cause::Cut { side, both, at: now });
            }
            PlantedFault::Reset { a, b, .. }
                if self.processes[a].running
                    && self.processes[b].running
                    && self.processes[a].linked.contains(&b) =>
            {
                self.judge.cause(Cause::Reset { a, b, at: now });
                self.shut(a, b);
                self.shut(b, a);
            }
            _ => {}
        }
    }

    /// A process does not run until then, or never again.
    fn stop(&mut self, rank: usize, to: Option<u64>) {
        let now = self.now;
        let process = &mut self.processes[rank];
        let until = to.unwrap_or(u64::MAX);
        // One that is stopped for longer already wakes when it would have.
        let longer = until >= process.stopped;
        if longer {
            process.stopped = until;
            // Every turn before is lost; what it was to do is there afterwards.
            process.turn = u64::MAX;
        }
        if let Some(to) = to.filter(|_| longer) {
            process.turn = to;
            // It may have been about to look at the clock before it waits.
            if self.rng.chance(50) {
                process.waits = to;
            }
            self.plan(to, DueEvent::Turn(rank));
            self.judge.wakes(rank, to);
        }
        let long = to.is_none_or(|to| to - now >= self.scenario.limit);
        if long {
            // Whoever sleeps as well may wake when this one is heard again.
            let alone =
                self.scenario.faults.iter().filter(|f| matches!(f, PlantedFault::Stop { .. })).count() == 1;
            let until = to.unwrap_or(NEVER);
            self.judge.cause(Cause::Ended {
                rank,
                at: now,
                until,
                surely: to.is_none() || alone,
                heard: false,
            });
        }
    }

    /// A member finds by itself that its group has failed.
    fn abort(&mut self, g: usize, by: usize, culprit: usize, i: usize) {
        let plan = &self.scenario.groups[g];
        let rank = plan.members[by];
        let process = &mut self.processes[rank];
        let member = &mut process.members[g];
        if !process.running || process.stopped > self.now || member.entered.is_none() || member.left.is_some()
        {
            return;
        }
        let cause = format!("fault {i} of seed {}", self.scenario.seed);
        let failure = if culprit == by {
            SimulatedFailure::reported(by, cause)
        } else {
            SimulatedFailure::lost(culprit, by, cause)
        };
        if member.failed.is_none() {
            member.failed = Some((self.now, failure.clone()));
            self.judge.cause(Cause::Aborted { group: g, rank, at: self.now, failure: failure.clone() });
            self.note(|| format!("rank {rank} aborts group {}, blaming member {culprit}", plan.group_id));
            self.processes[rank].membership.abort(plan.group_id, failure);
            self.perform(rank, Occasion::Call);
            self.linger(rank, g);
        }
    }
}

//! Messages between processes: how long each is on its way, what a cut or a host that stands still does to it; and the faults as they begin.

use super::{DueEvent, Item, Occasion, SimulatedWorld};
use crate::{
    NoConnection, Presence, Reason,
    simulate::{
        SimulatedFailure,
        judge::Cause,
        scenario::{NEVER, PlantedFault},
    },
};

impl SimulatedWorld<'_> {
    /// Close one end of a connection.
    pub(super) fn shut(&mut self, from: usize, to: usize) {
        self.send(from, to, Item::End);
        self.broken[from * self.scenario.size + to] = true;
    }

    /// Over a new connection: at once or not at all.
    pub(super) fn pass(&mut self, from: usize, to: usize, item: Item) {
        let now = self.now;
        let cut = [(from, to), (to, from)].iter().any(|(a, b)| self.scenario.cut(*a, *b, now).is_some());
        let lost = cut || self.scenario.runs(to, now) != Some(now) || !self.processes[to].running;
        let what = if matches!(item, Item::Answer) { "answers" } else { "asks" };
        self.note(|| format!("rank {from} {what} rank {to}{}", if lost { " in vain" } else { "" }));
        if lost {
            return;
        }
        let (low, high) = self.scenario.delay;
        let at = now + 2 * self.rng.between(low, high);
        self.arrive(to, at, (from, item));
    }

    /// A rank makes a control connection to another: what becomes of it.
    pub(super) fn dial(&mut self, from: usize, to: usize) {
        let now = self.now;
        let cut = [(from, to), (to, from)].iter().any(|(a, b)| self.scenario.cut(*a, *b, now).is_some());
        let (low, high) = self.scenario.delay;
        let at = now + 2 * self.rng.between(low, high);
        let target = &self.processes[to];
        let is_lost = cut || self.scenario.runs(to, now) != Some(now);
        let is_stopped = target.stopped > now;
        let refused = match target.membership.presence(from) {
            _ if !target.running => Some(NoConnection::NobodyListens),
            Some(Presence::Live) => None,
            _ => Some(NoConnection::GivenUp),
        };
        let is_new = !target.linked.contains(&from) && !self.processes[from].linked.contains(&to);
        if is_lost || is_stopped || refused.is_none() && !is_new {
            self.note(|| format!("rank {from} connects to rank {to} in vain"));
            self.arrive(from, now + self.scenario.limit / 10, (to, Item::Missed(NoConnection::NoAnswer)));
        } else if let Some(why) = refused {
            self.note(|| format!("rank {from} connects to rank {to}: {why:?}"));
            self.arrive(from, at, (to, Item::Missed(why)));
        } else {
            self.note(|| format!("rank {from} connects to rank {to}"));
            for (one, other) in [(from, to), (to, from)] {
                self.processes[one].linked.insert(other);
                let stream = other * self.scenario.size + one;
                self.arrivals[stream] = at;
                self.broken[stream] = false;
                self.arrive(one, at, (other, Item::Connected));
            }
        }
    }

    fn arrive(&mut self, to: usize, at: u64, what: (usize, Item)) {
        self.processes[to].inbox.plan(at, what);
        if self.processes[to].stopped <= self.now {
            self.wake(to, at);
        }
    }

    pub(super) fn send(&mut self, from: usize, to: usize, item: Item) {
        let stream = from * self.scenario.size + to;
        if self.broken[stream] || !self.processes[to].running {
            return;
        }
        let (low, high) = self.scenario.delay;
        // What a cut holds up is sent again some time after it is over, for the sender waits twice as long each time; unless the next
        // has begun.
        let mut sent = self.now;
        while let Some((begun, end)) =
            self.scenario.cut(from, to, sent).or_else(|| self.scenario.unacknowledged(from, to, sent))
        {
            let most = |end| if self.scenario.is_only_cut() { end - begun } else { 0 };
            let end = end.map(|end| end + self.rng.between(0, most(end)));
            let Some(end) = end else {
                self.broken[stream] = true;
                return;
            };
            // By a host that has power and runs.
            let Some(end) = self.scenario.runs(from, end) else {
                self.broken[stream] = true;
                return;
            };
            sent = end;
        }
        let mut at = sent + self.rng.between(low, high);
        for fault in &self.scenario.faults {
            // What comes to a host that does not run is sent again later.
            if let PlantedFault::Stop { rank, at: begin, to: end, host: true } = fault
                && *rank == to
                && (*begin..end.unwrap_or(u64::MAX)).contains(&at)
            {
                let again = self.rng.between(0, self.scenario.limit / 50);
                at = end.map_or(u64::MAX / 2, |end| end + again);
            }
        }
        let at = at.max(self.arrivals[stream]);
        self.arrivals[stream] = at;
        self.arrive(to, at, (from, item));
    }

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

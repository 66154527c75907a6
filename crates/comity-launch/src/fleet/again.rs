//! Ranks and hosts of a running job that are started again, and processes that it takes in.
use super::connection::{HostConnection, HostPhase};
use super::supervise::Fleet;
use crate::elastic::{TakenIn, joined, lost};
use crate::machine::Event;
use crate::machine::REFUSED;
use crate::protocol::FleetOrder;
use std::ops::Range;
use std::time::Duration;

impl Fleet {
    /// Hears the store of a job that goes on without ranks.
    pub(super) fn hear_store(&mut self) {
        let Some((_, guests)) = self.plan.elastic else { return };
        match TakenIn::of(&self.store, guests) {
            Ok(taken_in) => self.taken_in = Some(taken_in),
            Err(e) => self.output.say(&format!("ranks that come back will not be seen: {e}")),
        }
    }

    /// Ranks of one host: it starts them, or, where it is back, all of its own.
    pub(super) fn start_again(&mut self, ranks: Range<usize>) {
        let Some(host) = self.ranks.get(ranks.start).map(|r| r.host) else { return };
        for rank in ranks.clone() {
            self.show.runs_again(rank, host);
            if let Some(known) = self.ranks.get_mut(rank) {
                known.root_cause = None;
            }
        }
        let order = |rank| FleetOrder::StartAgain(u32::try_from(rank).unwrap_or(u32::MAX));
        if self.connections[host].phase == HostPhase::Running {
            return ranks.for_each(|rank| self.connections[host].send(&order(rank)));
        }
        let part = &self.plan.hosts[host].part;
        let restarted = (part.first..part.first + part.size).map(|r| self.machine.restarts_of(r)).collect();
        let mut go = self.meeting();
        go.restarted = restarted;
        self.connections[host].send(&FleetOrder::Go(Box::new(go)));
        self.connections[host].phase = HostPhase::Running;
    }

    /// Calls a host that was lost.
    pub(super) fn try_host(&mut self, host: usize) {
        match HostConnection::start(&self.plan, host, self.open_files) {
            Ok(connection) => {
                // The one before was killed.
                let _ = self.connections[host].ended();
                self.connections[host] = connection;
            }
            Err((why, _)) => self.cannot_begin(host, why, REFUSED),
        }
    }

    pub(super) fn say_lost(&self, rank: usize, again: Option<(u32, Duration)>) {
        let ending = self.machine.ending(rank).map(|e| e.to_string()).unwrap_or_default();
        let terms = self.plan.elastic.map(|(terms, _)| terms);
        self.output.say(&lost(&format!("{} {ending}", self.name(rank)), again, terms));
    }

    pub(super) fn say_host_lost(&self, host: usize, pause: Duration) {
        let why = self.machine.loss_of(host).unwrap_or_default();
        self.output
            .say(&format!("{why}; the job goes on, and the host is tried again in {} s", pause.as_secs()));
    }

    /// Tells the machine whom the group has taken in.
    pub(super) fn hear_taken_in(&mut self) {
        let all = self.taken_in.as_ref().map(TakenIn::take).unwrap_or_default();
        for (rank, guests) in all {
            self.journal.joined(rank, guests);
            self.output.say(&joined(rank.map(|rank| self.name(rank)), guests));
            rank.into_iter().for_each(|rank| self.tell(Event::Joined { rank }));
            self.tell(Event::Guests { number: guests });
        }
    }
}

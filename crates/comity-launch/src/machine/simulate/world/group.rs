//! The group of a job that goes on without ranks: it forms again, and takes in those that were started again.
use super::{Due, Message, Place, SILENCE, Way, World};
use crate::machine::{Ending, Event, Problem, REFUSED, Role};
use std::ops::Range;

/// Interval at which a rank that waits looks whether somebody takes it in.
const WAIT: u64 = 500;

/// Ranks that belong together, and whether there were too few.
#[derive(Debug)]
pub(in crate::machine::simulate) struct Group {
    members: Vec<usize>,
    /// Since when fewer were left than the job needs.
    pub(in crate::machine::simulate) low_since: Option<u64>,
    /// When fewer were left for the first time.
    pub(in crate::machine::simulate) first_low: Option<u64>,
    /// When the first rank was done.
    pub(in crate::machine::simulate) done: Option<u64>,
    /// Since when no rank of the group runs.
    pub(in crate::machine::simulate) empty_since: Option<u64>,
}

impl Group {
    pub(super) fn of(ranks: usize) -> Self {
        Self {
            members: (0..ranks).collect(),
            low_since: None,
            first_low: None,
            done: None,
            empty_since: None,
        }
    }
}

impl World<'_> {
    /// Ranks of the group that run; a launcher does not know that one which is stopped is in it no more.
    fn members(&self) -> impl Iterator<Item = usize> {
        self.group.members.iter().copied().filter(|rank| self.ranks[*rank].alive)
    }

    /// A rank's work is the group's.
    pub(super) fn may_end_well(&self, rank: usize) -> bool {
        self.s.elastic.is_none() || self.group.members.contains(&rank)
    }

    /// A side that has half of the members goes on.
    pub(super) fn reform(&mut self, culprit: usize) {
        let left: Vec<usize> = self.members().filter(|r| self.answers(*r)).collect();
        if left.len() == self.group.members.len() {
            return;
        }
        if 2 * left.len() >= self.group.members.len() {
            let stopped: Vec<usize> =
                self.members().filter(|r| self.ranks[*r].stopped && !self.is_away(*r)).collect();
            self.group.members = left.into_iter().chain(stopped).collect();
            return;
        }
        for rank in left {
            let ending = self.s.scripts[rank].notices.map_or(Ending::Exit(1), |n| n.1);
            self.ranks[rank].word = Some(culprit);
            self.ranks[rank].is_follower = true;
            self.end(rank, ending);
        }
    }

    pub(super) fn start_again(&mut self, rank: usize) {
        let process = &mut self.ranks[rank];
        process.ended = None;
        process.word = None;
        process.is_told = false;
        process.stopped = false;
        self.group.members.retain(|r| *r != rank);
        if self.mutant == Some(super::Mutant::CountsJoiners) {
            self.tell(0, Event::Joined { rank });
        }
        let at = self.now + self.rng.between(10, 2000);
        self.plan(at, Due::TakeIn(rank));
    }

    pub(super) fn take_in(&mut self, rank: usize) {
        let waits = self.ranks[rank].alive && !self.group.members.contains(&rank);
        if !waits {
            return;
        }
        if !self.answers(rank) || !self.members().any(|r| self.answers(r)) {
            return self.plan(self.now + WAIT, Due::TakeIn(rank));
        }
        self.group.members.push(rank);
        self.hear(0, Event::Joined { rank });
        let works = self.s.scripts[rank].works;
        self.plan(self.now.max(works), Due::Works(rank));
    }

    /// Nothing is heard from a rank's host.
    fn is_away(&self, rank: usize) -> bool {
        self.s.role == Role::Fleet && self.ways[self.s.hosts[rank]].is_cut
    }

    fn answers(&self, rank: usize) -> bool {
        !self.ranks[rank].stopped && !self.is_away(rank)
    }

    /// Ranks on other hosts form their group again without those of this one.
    pub(super) fn others_miss(&mut self, host: usize) {
        if let Some(culprit) = self.s.ranks_of(host).next().filter(|_| self.s.elastic.is_some()) {
            let at = self.now + SILENCE + self.rng.between(0, 300);
            self.plan(at, Due::Reform { culprit });
        }
    }

    /// A host that was lost is back, when what ran there has ended; or it is not.
    pub(super) fn host_answers(&mut self, host: usize) {
        let place = &self.places[host + 1];
        if (place.up && place.over.is_none()) || self.rng.chance(30) {
            let problem = Problem { why: format!("host {host} is away"), code: REFUSED };
            return self.hear(0, Event::HostRefused { host, problem });
        }
        self.ways[host] = Way::default();
        let role = (Role::Host, Some(host));
        self.places[host + 1] = Place::new(self.s, self.mutant, (self.zero, self.now), role);
        self.s.ranks_of(host).for_each(|rank| self.ranks[rank].has_vanished = false);
        self.hear(0, Event::HostReady { host });
    }

    /// Ranks of one host are started again there, or all of them with it.
    pub(super) fn start_far(&mut self, ranks: Range<usize>) {
        let host = self.s.hosts[ranks.start];
        if std::mem::replace(&mut self.ways[host].is_running, true) {
            ranks.for_each(|rank| self.send(host, true, Message::StartAgain(rank)));
        } else {
            self.send(host, true, Message::Go);
        }
    }

    /// Looks how many ranks are left.
    pub(super) fn watch(&mut self) {
        let Some(terms) = self.s.elastic else { return };
        let done = self.ranks.iter().filter(|p| p.is_done).count();
        let members = self.members().count();
        let now = self.now;
        if done > 0 {
            self.group.done.get_or_insert(now);
        }
        if self.ranks.iter().any(|p| p.starts == 0) {
            return;
        }
        let is_low = members + done < terms.fewest;
        if is_low {
            self.group.first_low.get_or_insert(now);
        }
        self.group.low_since = is_low.then(|| self.group.low_since.unwrap_or(now));
        self.group.empty_since = (members == 0).then(|| self.group.empty_since.unwrap_or(now));
    }
}

//! The promises, and who broke one.

use super::{
    SimulatedFailure,
    beginnings::Beginnings,
    member::{Occasion, SimulatedMember},
    scenario::{PlantedFault, SECOND, Scenario},
};
use crate::{Action, Note};
use std::collections::HashMap;

/// Fault that did happen, and so may be found.
#[derive(Clone, Debug)]
pub(super) enum Cause {
    /// A process was killed, lost its power, or was stopped for so long that it may be, or `surely` must be, given up; the latter if it is
    /// silent for long enough before it wakes. That it was killed is `heard`.
    Ended {
        rank: usize,
        at: u64,
        until: u64,
        surely: bool,
        heard: bool,
    },
    /// Nothing comes from ranks for which `side` is true to the others, nor back if `both`.
    Cut {
        side: Vec<bool>,
        both: bool,
        at: u64,
    },
    Reset {
        a: usize,
        b: usize,
        at: u64,
    },
    /// A member found the group to have failed.
    Aborted {
        group: usize,
        rank: usize,
        at: u64,
        failure: SimulatedFailure,
    },
}

/// Departure of a rank from a group.
#[derive(Clone, Copy, Debug)]
struct Departure {
    at: u64,
    failed: bool,
}

#[derive(Debug)]
pub(super) struct Judge {
    causes: Vec<Cause>,
    /// The first broken promise.
    pub(super) broken: Option<String>,
    /// By rank and group.
    reasons: HashMap<(usize, usize), SimulatedFailure>,
    departures: HashMap<(usize, usize), Departure>,
    /// Number of members to which a rank has sent the failure of a group.
    told: HashMap<(usize, usize), usize>,
    /// When each rank last ran again.
    woke: Vec<u64>,
    /// From when on silence counts.
    pub(super) beginnings: Beginnings,
    found: usize,
}

impl Judge {
    pub(super) fn new(scenario: &Scenario) -> Self {
        Self {
            causes: Vec::new(),
            broken: None,
            reasons: HashMap::new(),
            departures: HashMap::new(),
            told: HashMap::new(),
            woke: vec![0; scenario.size],
            beginnings: Beginnings::new(scenario),
            found: 0,
        }
    }

    /// Failures that ranks learned of, each of them rightly.
    pub(super) fn found(&self) -> usize {
        self.found
    }

    pub(super) fn accuse(&mut self, words: impl FnOnce() -> String) {
        if self.broken.is_none() {
            self.broken = Some(words());
        }
    }

    pub(super) fn cause(&mut self, cause: Cause) {
        self.causes.push(cause);
    }

    pub(super) fn wakes(&mut self, rank: usize, at: u64) {
        self.woke[rank] = self.woke[rank].max(at);
    }

    /// A rank leaves a group, or its process ends in good order.
    pub(super) fn leaves(&mut self, rank: usize, group: usize, at: u64, failed: bool) {
        self.departures.entry((rank, group)).or_insert(Departure { at, failed });
    }

    fn left_well(&self, rank: usize, group: usize) -> Option<u64> {
        self.departures.get(&(rank, group)).filter(|d| !d.failed).map(|d| d.at)
    }

    /// A rank takes `member` for one that left in good order.
    pub(super) fn left(&mut self, s: &Scenario, rank: usize, group: usize, member: usize, knows: bool) {
        let who = s.groups[group].members[member];
        let well = self.left_well(who, group).is_some();
        if !well && !knows {
            self.accuse(|| {
                format!(
                    "rank {rank} takes rank {who} for gone from group {group} in good order, which it is not"
                )
            });
        }
    }

    /// A rank's group fails for the first time: for a reason that is true?
    pub(super) fn fails(
        &mut self,
        s: &Scenario,
        rank: usize,
        group: usize,
        at: u64,
        failure: &SimulatedFailure,
    ) {
        self.found += 1;
        if let Some(first) = self.reasons.insert((rank, group), failure.clone()) {
            return self
                .accuse(|| format!("rank {rank} had a reason, {first:?}, and now another: {failure:?}"));
        }
        let members = &s.groups[group].members;
        let culprit = members[failure.culprit];
        let by = members[failure.by];
        // A word of leaving is lost with a connection, and with a host that has no power when a cut that held it up is mended.
        let unclean = self.causes.iter().any(|c| matches!(c, Cause::Cut { .. } | Cause::Reset { .. }))
            || s.faults.iter().any(|f| matches!(f, PlantedFault::Cut { .. }));
        let just = self.causes.iter().any(|cause| match cause {
            Cause::Ended { rank, at: since, .. } => {
                let spared = self.left_well(*rank, group).is_some_and(|left| left < *since) && !unclean;
                *rank == culprit && *since <= at && !spared
            }
            Cause::Cut { side, both, .. } => {
                side[culprit] != side[by] && (*both || side[culprit])
                    || s.sparse && s.are_apart(side, culprit, by)
            }
            Cause::Reset { a, b, .. } => [(*a, *b), (*b, *a)].contains(&(culprit, by)),
            Cause::Aborted { group: g, failure: f, .. } => *g == group && f == failure,
        });
        if !just {
            self.accuse(|| {
                format!(
                    "rank {rank} names rank {culprit} (seen by rank {by}) in group {group} for no reason: {failure:?}"
                )
            });
        }
    }

    /// Check the reason by which a rank finds a group to have failed that has failed before.
    pub(super) fn fails_again(&mut self, rank: usize, group: usize, failure: &SimulatedFailure) {
        match self.reasons.get(&(rank, group)) {
            Some(first) if first != failure => {
                self.accuse(|| format!("rank {rank} had a reason and now decides on another: {failure:?}"));
            }
            // Its own engine's, which is in the watch already.
            _ => {
                self.reasons.insert((rank, group), failure.clone());
            }
        }
    }

    /// Count what a rank says of failures: few at once, and nobody is told twice.
    pub(super) fn count(
        &mut self,
        s: &Scenario,
        rank: usize,
        occasion: Occasion,
        actions: &[Action<SimulatedFailure>],
    ) {
        if s.sparse {
            return self.count_sparse(s, rank, actions);
        }
        for (i, action) in actions.iter().enumerate() {
            let Action::Tell {
                to,
                note: Note::Abort { group_id, failure: SimulatedFailure { by, culprit, .. } },
            } = action
            else {
                continue;
            };
            let Some(group) = s.groups.iter().position(|g| g.group_id == *group_id) else { continue };
            let members = &s.groups[group].members;
            let size = members.len();
            let told = self.told.entry((rank, group)).or_default();
            *told += to.len();
            let all = *told;
            let at_once =
                matches!(actions.get(i + 1), Some(Action::Fail { group_id: c, .. }) if c == group_id);
            let first_hand = occasion != Occasion::Hear || members[*by] == rank;
            let most = match (at_once, occasion) {
                // Only those who saw it tell all; the others tell whom it is about.
                (true, Occasion::Hear) if !first_hand && members[*culprit] != rank => 1,
                (true, _) => size - 1,
                (false, Occasion::Leave) => size - 1,
                _ => 0,
            };
            if to.len() > most || all >= size {
                self.accuse(|| {
                    format!(
                        "rank {rank} tells {} members of group {group_id} of {size} ({all} in all) on {occasion:?}, and may tell {most}",
                        to.len()
                    )
                });
            }
        }
    }

    /// In a large job a failure is told once to each neighbour.
    fn count_sparse(&mut self, s: &Scenario, rank: usize, actions: &[Action<SimulatedFailure>]) {
        for action in actions {
            let Action::Tell { to, note: Note::Spread { note, .. } } = action else { continue };
            let Note::Abort { group_id, .. } = &**note else { continue };
            let Some(group) = s.groups.iter().position(|g| g.group_id == *group_id) else { continue };
            let told = self.told.entry((rank, group)).or_default();
            *told += 1;
            if *told > 1 || to.len() >= s.size {
                let all = *told;
                self.accuse(|| format!("rank {rank} tells that group {group_id} has failed {all} times"));
            }
        }
    }

    /// At `end`: did everyone who should have learn of a failure in time? Until when to go on, if silence counted so late that this is open.
    pub(super) fn judge(
        &mut self,
        s: &Scenario,
        processes: &[Vec<SimulatedMember>],
        running: &[bool],
        end: u64,
    ) -> Result<Option<u64>, String> {
        self.beginnings.running = running.to_vec();
        let mut open = None;
        for (g, plan) in s.groups.iter().enumerate() {
            let due = |c, begun: &dyn Fn(usize) -> u64| self.due(s, c, g, processes, running, begun);
            let begun = |y| self.beginnings.counts(y);
            let whole: Vec<_> = self.causes.iter().map(|c| due(c, &|_| 0).zip(due(c, &begun))).collect();
            for rank in plan.members.iter().copied().filter(|r| running[*r]) {
                let member = &processes[rank][g];
                let Some(entered) = member.entered else { continue };
                if self.left_well(rank, g).is_some() {
                    continue;
                }
                for (cause, due) in self.causes.iter().zip(&whole) {
                    let own = match cause {
                        Cause::Reset { a, b, at } if *a == rank || *b == rank => {
                            let other = if *a == rank { *b } else { *a };
                            let there = plan.members.contains(&other) && self.left_well(other, g).is_none();
                            there.then_some((*at, *at))
                        }
                        Cause::Ended { rank: dead, .. } if *dead == rank => None,
                        _ => *due,
                    };
                    let Some((from, counts)) = own else { continue };
                    // A rank that others no longer hear learns so from them.
                    let told = matches!(cause, Cause::Cut { both: false, .. });
                    let late = 2 * s.slowness() + if told { s.most_lateness() } else { s.lateness(rank) };
                    let bound = s.limit + SECOND + late;
                    let due = |from: u64| {
                        let due = from.max(entered).max(self.woke[rank]) + bound;
                        // Who could not be reached could not be told.
                        let due = due.max(s.mended(due) + SECOND + 2 * s.slowness());
                        due.min(self.promptly(s, g).map_or(u64::MAX, |p| from + p))
                    };
                    let counts = counts.max(self.counts(s, cause, rank));
                    let woken = matches!(cause, Cause::Ended { until, .. }
                        if until.saturating_sub(counts) <= s.limit + late + s.slack());
                    if woken || due(from) > s.end {
                        continue;
                    }
                    let due = due(counts);
                    let knew = member.failed.as_ref().map(|(at, _)| *at);
                    if knew.is_none() && due > end {
                        open = open.max(Some(due));
                    } else if knew.is_none_or(|at| at > due) {
                        return Err(format!(
                            "rank {rank} should know by {due} us that group {} has failed, because of {cause:?}; it knew at {knew:?}",
                            plan.group_id
                        ));
                    }
                }
            }
        }
        Ok(open)
    }

    /// From when on `rank` finds a cause, if only silence shows it.
    fn counts(&self, s: &Scenario, cause: &Cause, rank: usize) -> u64 {
        let cut = s.faults.iter().any(|f| matches!(f, PlantedFault::Cut { .. }));
        let still =
            s.faults.iter().any(|f| matches!(f, PlantedFault::Power { .. } | PlantedFault::Stop { .. }));
        let silent = match cause {
            Cause::Cut { .. } | Cause::Ended { heard: false, .. } => true,
            // Ends and notes are heard, unless they are held up, or one that was to pass them on does not.
            Cause::Ended { heard: true, .. } => cut,
            Cause::Reset { .. } | Cause::Aborted { .. } => cut || still && s.sparse,
        };
        if silent { self.beginnings.counts(rank) } else { 0 }
    }

    /// From when on everyone in group `g` is to learn of `cause`, if they must. Silence counts for a witness from when it has `begun`.
    fn due(
        &self,
        s: &Scenario,
        cause: &Cause,
        g: usize,
        all: &[Vec<SimulatedMember>],
        running: &[bool],
        begun: &dyn Fn(usize) -> u64,
    ) -> Option<u64> {
        let members = &s.groups[g].members;
        // One who sees it, tells the others, and was there all the time.
        let lasts = |r: usize| {
            running[r]
                && self.left_well(r, g).is_none()
                && self.woke[r] == 0
                && all[r].get(g).is_some_and(|m| m.entered.is_some())
        };
        let entered = |r: usize| all[r].get(g).and_then(|m| m.entered).unwrap_or(0);
        match cause {
            Cause::Ended { rank, at, surely, .. } => {
                let member = *surely && members.contains(rank);
                let at = *at;
                // What a cut held up is heard after it, and then the silence begins.
                (member && self.left_well(*rank, g).is_none_or(|left| left > at))
                    .then(|| at.max(s.mended(at)))
            }
            Cause::Cut { side, both, at } => {
                let silenced = |x: usize, y: usize| side[x] != side[y] && (*both || side[x]);
                // Of the two ranks of each side that come first, any pair will do.
                let firsts = |of: bool, f: &dyn Fn(usize) -> bool| {
                    members.iter().copied().filter(|r| side[*r] == of && f(*r)).take(2).collect::<Vec<_>>()
                };
                let stays = |r: usize| self.left_well(r, g).is_none();
                let mut found = None;
                for of in [true, false] {
                    for x in firsts(of, &stays) {
                        for y in firsts(!of, &lasts) {
                            if silenced(x, y) {
                                let since = (*at).max(entered(y)).max(begun(y));
                                found = Some(found.map_or(since, |f: u64| f.min(since)));
                            }
                        }
                    }
                }
                found
            }
            Cause::Reset { a, b, at } => {
                let both = [*a, *b].iter().all(|r| members.contains(r) && self.left_well(*r, g).is_none());
                let teller = [*a, *b].into_iter().find(|r| lasts(*r));
                if both { teller.map(|r| (*at).max(entered(r))) } else { None }
            }
            Cause::Aborted { group, rank, at, .. } => (*group == g).then_some((*at).max(self.woke[*rank])),
        }
    }

    /// Time within which all know, where nothing but one death or abort troubles a group that is whole.
    fn promptly(&self, s: &Scenario, g: usize) -> Option<u64> {
        let [fault] = &s.faults[..] else { return None };
        let whole = |at: &u64| {
            s.goodbyes.is_empty()
                && s.groups[g].leave.iter().all(Option::is_none)
                && s.groups[g].enter.iter().all(|e| e + s.slack() < *at)
        };
        let (PlantedFault::Kill { at, sends: None, .. } | PlantedFault::Abort { at, .. }) = fault else {
            return None;
        };
        // In a large job the edges that are gone, then what follows.
        let hops = if s.sparse { u64::from(s.size.ilog2()) / 2 + 4 } else { 1 };
        whole(at).then_some(hops * s.slack() + 1)
    }
}

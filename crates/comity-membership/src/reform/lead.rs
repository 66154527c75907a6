//! [`Lead`]: the part of the member that calls the roll, proposes a plan and counts votes.

use super::{
    Reform, ReformAction,
    message::{Ballot, Message, Plan, Refusal, Terms, Voter, Votes},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

/// Pause after an attempt that another one overtook; longer for higher members, and for each attempt more.
const PAUSE: Duration = Duration::from_millis(2);
/// The longest pause is so many of it.
const LONGEST: u32 = 64;
/// The longest reason in a plan, in bytes.
const MAX_REASON: usize = 240;
/// Attempts of the same members that may fail.
const MOST_FAULTS: u32 = 3;

/// Member of the roll.
#[derive(Clone, Debug)]
struct RollMember {
    asking: u32,
    terms: Terms,
    accepted: Option<(Ballot, Plan)>,
    /// Members that it takes for gone.
    gone: Vec<usize>,
}

/// Progress of an attempt.
#[derive(Clone, Debug, Default)]
enum Phase {
    /// Waits for all to answer the roll.
    #[default]
    Roll,
    /// Waits for the library's addition to a plan of these members; others are here, too, and cannot be in one group with them.
    Draft { members: Vec<usize>, apart: Vec<(usize, String)> },
    /// Waits for promises.
    Form { ballot: Ballot, plan: Plan, asked: BTreeSet<usize>, answers: BTreeMap<usize, Answer> },
    /// Waits for votes.
    Vote { ballot: Ballot, plan: Plan, asked: BTreeSet<usize>, votes: BTreeSet<usize> },
    /// Waits before another attempt.
    Pause(Instant),
}

/// Answer to the order to form a group.
#[derive(Clone, Debug)]
struct Answer {
    fault: Option<String>,
    accepted: Option<(Ballot, Plan)>,
}

#[derive(Debug, Default)]
pub(super) struct Lead {
    phase: Phase,
    present: BTreeMap<usize, RollMember>,
    /// Latest refusal that each member was sent, with the number of the request that it ended.
    refused: BTreeMap<usize, (u32, Refusal)>,
    /// The latest round that is known.
    round: u32,
    overtaken: u32,
    faults: u32,
}

/// The first words of a reason, as a plan has room for it.
fn in_short(why: &str) -> String {
    let end = (0..=why.len().min(MAX_REASON)).rev().find(|n| why.is_char_boundary(*n));
    why.get(..end.unwrap_or_default()).unwrap_or_default().to_owned()
}

impl Lead {
    /// Returns the part of a member that asks anew.
    pub(super) fn after(before: &Self) -> Self {
        Self { round: before.round, refused: before.refused.clone(), ..Self::default() }
    }

    /// Note that these requests were refused.
    pub(super) fn refuse(&mut self, requests: &[(usize, u32)], why: &Refusal) {
        self.refused.extend(requests.iter().map(|(member, asking)| (*member, (*asking, why.clone()))));
    }

    /// Returns why this request of a member was refused, if it was: word of it came once more.
    pub(super) fn refusal(&self, member: usize, asking: u32) -> Option<Refusal> {
        self.refused.get(&member).filter(|(last, _)| asking <= *last).map(|(_, why)| why.clone())
    }

    pub(super) fn come(&mut self, member: usize, asking: u32, terms: Terms, voter: &Voter, gone: Vec<usize>) {
        self.round = self.round.max(voter.promised.round);
        // With what is new the next attempt may succeed.
        if self.present.get(&member).is_some_and(|p| p.gone != gone) {
            self.faults = 0;
        }
        self.present.insert(member, RollMember { asking, terms, accepted: voter.accepted.clone(), gone });
    }

    /// Members that are here and cannot stay, each with the reason: of two that have lost each other one has to go. First whoever has lost
    /// most others, of equals the highest. `me` stays: it has lost none of those that are here.
    fn apart(&self, me: usize) -> Vec<(usize, String)> {
        let mut lost: BTreeSet<(usize, usize)> = BTreeSet::new();
        for (by, present) in &self.present {
            let here = present.gone.iter().filter(|m| self.present.contains_key(m));
            lost.extend(here.map(|m| (*by.min(m), *by.max(m))));
        }
        let mut apart = Vec::new();
        while !lost.is_empty() {
            let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
            lost.iter().flat_map(|(a, b)| [*a, *b]).for_each(|m| *counts.entry(m).or_default() += 1);
            let worst = counts.into_iter().filter(|(m, _)| *m != me).max_by_key(|(m, n)| (*n, *m));
            let Some((worst, _)) = worst else { break };
            let other = lost.iter().find_map(|(a, b)| match () {
                () if *a == worst => Some(*b),
                () if *b == worst => Some(*a),
                () => None,
            });
            let other = other.unwrap_or(me);
            apart.push((worst, format!("has lost rank {other}, which the others can reach")));
            lost.retain(|(a, b)| *a != worst && *b != worst);
        }
        apart
    }

    /// Members that ask, each with how often it has.
    pub(super) fn waiting(&self) -> Vec<(usize, u32)> {
        self.present.iter().map(|(m, p)| (*m, p.asking)).collect()
    }

    /// A member is gone, or asks no more: what is under way begins anew.
    pub(super) fn lose(&mut self, member: usize) {
        self.present.remove(&member);
        self.faults = 0;
        self.rest();
    }

    /// Begin anew with the roll.
    pub(super) fn rest(&mut self) {
        self.phase = Phase::Roll;
    }

    pub(super) fn pause(&self) -> Option<Instant> {
        if let Phase::Pause(until) = self.phase { Some(until) } else { None }
    }

    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.pause().is_some_and(|until| now >= until)
    }

    pub(super) fn formed(
        &mut self,
        from: usize,
        of: Ballot,
        fault: Option<String>,
        accepted: Option<(Ballot, Plan)>,
    ) {
        if let Phase::Form { ballot, asked, answers, .. } = &mut self.phase
            && *ballot == of
            && asked.contains(&from)
        {
            answers.insert(from, Answer { fault, accepted });
        }
    }

    pub(super) fn accepted(&mut self, from: usize, of: Ballot) {
        if let Phase::Vote { ballot, asked, votes, .. } = &mut self.phase
            && *ballot == of
            && asked.contains(&from)
        {
            votes.insert(from);
        }
    }

    /// Another attempt came later.
    pub(super) fn behind(&mut self, me: usize, promised: Ballot, now: Instant) {
        let (Phase::Form { ballot, .. } | Phase::Vote { ballot, .. }) = &self.phase else { return };
        if promised <= *ballot {
            return;
        }
        self.round = self.round.max(promised.round);
        self.overtaken += 1;
        let times = (1 << self.overtaken.min(5)) + me as u32 % 16;
        self.phase = Phase::Pause(now + PAUSE * times.min(LONGEST));
    }
}

impl Reform {
    /// Members that have not answered the roll.
    pub(super) fn absent(&self) -> Vec<usize> {
        self.others().into_iter().filter(|m| !self.lead.present.contains_key(m)).collect()
    }

    /// Members for which this attempt waits.
    pub(super) fn unanswered(&self) -> Vec<usize> {
        match &self.lead.phase {
            Phase::Form { asked, answers, .. } => {
                asked.iter().filter(|m| !answers.contains_key(m)).copied().collect()
            }
            Phase::Vote { asked, votes, .. } => asked.difference(votes).copied().collect(),
            Phase::Roll | Phase::Draft { .. } | Phase::Pause(_) => self.absent(),
        }
    }

    /// Make the next step of an attempt, if this rank makes one and the step is due.
    pub(super) fn go_on(&mut self, now: Instant) {
        if self.terms.is_none() || !self.leads() {
            return;
        }
        match &self.lead.phase {
            Phase::Roll => self.call_roll(now),
            Phase::Form { plan, asked, answers, .. } if asked.len() == answers.len() => {
                let fault = answers.iter().find_map(|(m, a)| Some((*m, a.fault.clone()?)));
                let voted = answers.values().filter_map(|a| a.accepted.clone()).max_by_key(|(b, _)| *b);
                match (voted, fault) {
                    (Some((_, plan)), _) => self.put_to_vote(plan),
                    (None, None) => self.put_to_vote(plan.clone()),
                    (None, Some((member, words))) => self.try_again(member, words, now),
                }
            }
            Phase::Vote { plan, votes, .. } if self.votes().suffice(votes.iter().copied()) => {
                let plan = plan.clone();
                for to in self.others() {
                    self.send(to, Message::Decided { plan: plan.clone() });
                }
                self.decide(plan);
            }
            Phase::Draft { .. } | Phase::Form { .. } | Phase::Vote { .. } | Phase::Pause(_) => {}
        }
    }

    fn votes(&self) -> Votes {
        Votes::new(self.size, self.store, self.terms.unwrap_or_default().rule)
    }

    /// All that are not gone have to be here.
    fn call_roll(&mut self, now: Instant) {
        let Some(terms) = self.terms else { return };
        if !self.absent().is_empty() {
            return;
        }
        let here: Vec<usize> = self.lead.present.keys().copied().collect();
        if let Some((member, _)) = self.lead.present.iter().find(|(_, p)| p.terms != terms) {
            return self.refuse(Refusal::Terms { member: *member });
        }
        let voted = self.lead.present.values().filter_map(|p| p.accepted.clone()).max_by_key(|(b, _)| *b);
        if !self.votes().suffice(here.iter().copied().chain(self.store_voter())) {
            return self.refuse(Refusal::Minority { here });
        }
        if let Some((_, plan)) = voted {
            return self.attempt(plan);
        }
        let apart = self.lead.apart(self.me);
        let members: Vec<usize> =
            here.into_iter().filter(|m| apart.iter().all(|(other, _)| other != m)).collect();
        if members.len() < terms.fewest {
            return self.refuse(Refusal::Few { here: members, fewest: terms.fewest });
        }
        self.lead.phase = Phase::Draft { members: members.clone(), apart };
        self.again = Some(now + super::AGAIN);
        self.actions.push(ReformAction::Draft { members });
    }

    /// Number of the store among the voters.
    fn store_voter(&self) -> Option<usize> {
        (self.store && !self.store_is_gone).then_some(self.size)
    }

    /// Propose the group of these members, if they are still those that are here.
    pub(super) fn propose(&mut self, members: &[usize], extra: Vec<u8>) {
        let Phase::Draft { members: wanted, apart } = &self.lead.phase else { return };
        if wanted != members {
            return;
        }
        let mut left: Vec<_> = self.gone.iter().map(|(m, why)| (*m, in_short(why))).collect();
        left.extend(apart.iter().cloned());
        left.sort_unstable();
        self.attempt(Plan { members: members.to_vec(), left, extra });
    }

    fn attempt(&mut self, plan: Plan) {
        self.lead.round = self.lead.round.max(self.voter.promised.round) + 1;
        let ballot = Ballot { round: self.lead.round, by: self.me as u32 };
        let asked = self.voters();
        for to in &asked {
            self.send(*to, Message::Form { ballot, plan: plan.clone() });
        }
        self.lead.phase = Phase::Form { ballot, plan, asked, answers: BTreeMap::new() };
    }

    /// Those that are here, with the store where they do not suffice.
    fn voters(&self) -> BTreeSet<usize> {
        let here: BTreeSet<usize> = self.lead.present.keys().copied().collect();
        let store = self.store_voter().filter(|_| !self.votes().suffice(here.iter().copied()));
        here.into_iter().chain(store).collect()
    }

    fn put_to_vote(&mut self, plan: Plan) {
        let Phase::Form { ballot, asked, .. } = std::mem::take(&mut self.lead.phase) else { return };
        for to in &asked {
            self.send(*to, Message::Accept { ballot, plan: plan.clone() });
        }
        self.lead.phase = Phase::Vote { ballot, plan, asked, votes: BTreeSet::new() };
    }

    /// A member could not make its part, though nobody is gone.
    fn try_again(&mut self, member: usize, words: String, now: Instant) {
        self.lead.faults += 1;
        if self.lead.faults >= MOST_FAULTS {
            return self.refuse(Refusal::Fault { member, words });
        }
        self.lead.phase = Phase::Pause(now + PAUSE * LONGEST);
    }

    /// Say again what has no answer.
    pub(super) fn repeat(&mut self) {
        let message = match &self.lead.phase {
            Phase::Form { ballot, plan, .. } => Message::Form { ballot: *ballot, plan: plan.clone() },
            Phase::Vote { ballot, plan, .. } => Message::Accept { ballot: *ballot, plan: plan.clone() },
            Phase::Roll | Phase::Draft { .. } | Phase::Pause(_) => return,
        };
        for to in self.unanswered() {
            // To itself it is heard at once, and need not be said again.
            if to != self.me {
                self.send(to, message.clone());
            }
        }
    }
}

//! [`Voter`]: promises and votes of one member, or of the store. [`Votes`]: how much each counts.

use super::message::{Ballot, Message, Plan, Rule};

/// Promise and vote of a member, or of the store, on the group that follows one.
///
/// A promise binds: nothing is voted for in an earlier attempt. A vote is told to whoever makes a later attempt, and that one proposes the
/// same plan. So two plans never have the votes of two majorities.
#[derive(Clone, Debug, Default)]
pub struct Voter {
    pub(super) promised: Ballot,
    pub(super) accepted: Option<(Ballot, Plan)>,
}

impl Voter {
    /// Promise to vote in no earlier attempt. False if a later one has the promise.
    pub(super) fn promise(&mut self, ballot: Ballot) -> bool {
        let keeps = ballot >= self.promised;
        if keeps {
            self.promised = ballot;
        }
        keeps
    }

    /// Vote for a plan. False if a later attempt has the promise.
    pub(super) fn accept(&mut self, ballot: Ballot, plan: Plan) -> bool {
        let votes = self.promise(ballot);
        if votes {
            self.accepted = Some((ballot, plan));
        }
        votes
    }

    /// Answer of the store, which makes no part of any group.
    pub fn answer(&mut self, message: Message) -> Option<Message> {
        let behind = |voter: &Self| Message::Behind { promised: voter.promised };
        match message {
            Message::Form { ballot, .. } => Some(match self.promise(ballot) {
                true => Message::Formed { ballot, fault: None, accepted: self.accepted.clone() },
                false => behind(self),
            }),
            Message::Accept { ballot, plan } => Some(match self.accept(ballot, plan) {
                true => Message::Accepted { ballot },
                false => behind(self),
            }),
            _ => None,
        }
    }
}

/// Votes of a group's members, and of the store where it outlives them: it then is the voter after the last member.
#[derive(Clone, Debug)]
pub(super) struct Votes {
    of: Vec<u32>,
    needed: u32,
}

impl Votes {
    /// Returns the votes of `size` members. The store's voice is its own, or that of the first member.
    pub(super) fn new(size: usize, store: bool, rule: Rule) -> Self {
        let mut of = match rule {
            Rule::Majority => vec![2; size],
            Rule::Store => vec![0; size],
        };
        match of.first_mut() {
            Some(first) if !store => *first += 1,
            _ => of.push(1),
        }
        let needed = of.iter().sum::<u32>() / 2 + 1;
        Self { of, needed }
    }

    pub(super) fn count(&self, voters: impl IntoIterator<Item = usize>) -> u32 {
        voters.into_iter().filter_map(|v| self.of.get(v)).sum()
    }

    /// Returns true if no two disjoint sets of voters have so much.
    pub(super) fn suffice(&self, voters: impl IntoIterator<Item = usize>) -> bool {
        self.count(voters) >= self.needed
    }
}

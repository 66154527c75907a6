//! Messages of a group's members while they agree on the group that follows it. [`Voter`]: promises and votes of one member, or of the store.
//! [`Votes`]: how much each counts.

/// Number of an attempt: the round, then the member that makes it. The default comes before every attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ballot {
    /// Round, from 1.
    pub round: u32,
    /// Member that makes the attempt.
    pub by: u32,
}

/// The group that follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Members that stay, by their ranks in the former group: a member's new rank is its place here.
    pub members: Vec<usize>,
    /// Members that do not, each with the reason, as the rest of the sentence "rank 3 ...".
    pub left: Vec<(usize, String)>,
    /// Addition of the library's: who joins, and where they meet.
    pub extra: Vec<u8>,
}

/// Rule by which one of several sides of a divided group goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rule {
    /// The side with more than half of the former members; of two halves the one with the store.
    #[default]
    Majority,
    /// The side with the store, however small.
    Store,
}

/// Conditions of a member for going on. All that form a group again have to give the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Fewest members of the new group.
    pub fewest: usize,
    /// Side that may go on.
    pub rule: Rule,
}

/// Reason that no group follows for now.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "a field whose name says it needs no other word")]
pub enum Refusal {
    /// The members that are here, and the fewest that were asked for.
    Few { here: Vec<usize>, fewest: usize },
    /// The members that are here are no side that may go on.
    Minority { here: Vec<usize> },
    /// A member has other terms than the one that calls the roll.
    Terms {
        /// Member with other terms.
        member: usize,
    },
    /// A member's limit passed.
    Late {
        by: usize,
        /// Members that had not asked for a new group then.
        missing: Vec<usize>,
    },
    /// A member could not make its part of the new group.
    Fault { member: usize, words: String },
}

/// Message of one member to another; of the store, which is asked for its vote, only `Formed`, `Behind` and `Accepted`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "a field whose name says it needs no other word")]
pub enum Message {
    /// The sender calls the roll. It waits for the members named.
    Call {
        /// Members that have not answered.
        missing: Vec<usize>,
    },
    /// The sender asks for a new group.
    Ready {
        /// Number of times that it has asked, so that it knows a refusal of an earlier time.
        asking: u32,
        terms: Terms,
        /// The latest attempt that it knows.
        promised: Ballot,
        /// The plan that it has voted for last, and when.
        accepted: Option<(Ballot, Plan)>,
        /// Members that are gone as far as it knows: it can be in no group with them.
        gone: Vec<usize>,
    },
    /// Make this group, and promise to vote in no earlier attempt.
    Form { ballot: Ballot, plan: Plan },
    /// The sender promises that, and has made its part of the group.
    Formed {
        ballot: Ballot,
        /// Reason that it could not make its part.
        fault: Option<String>,
        /// The plan that it has voted for last, and when.
        accepted: Option<(Ballot, Plan)>,
    },
    /// The sender has promised itself to a later attempt.
    Behind { promised: Ballot },
    /// Vote for this group.
    Accept { ballot: Ballot, plan: Plan },
    /// The sender votes for it.
    Accepted { ballot: Ballot },
    /// This group follows.
    Decided { plan: Plan },
    /// No group follows for now.
    Refused {
        /// Number of the receiver's [`Ready`](Self::Ready) that this answers.
        asking: u32,
        why: Refusal,
    },
    /// The sender asks no more, for now.
    Withdraw,
    /// The sender has left the former group, and asks for no other.
    Left,
}

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

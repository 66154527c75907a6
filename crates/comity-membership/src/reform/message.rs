//! Messages of a group's members while they agree on the group that follows it.

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

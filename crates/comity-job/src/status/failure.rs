//! Reason of a group's failure, as its members tell it to each other, and the error that each makes of it.

use super::{group_status::Reached, header::Header, ledger::Differs};
use crate::{CallInfo, CrossedWait, Error, ErrorKind, Peer};
use comity_membership::Reason;
use std::time::Duration;

/// Reason of a group's failure, as seen by one of its members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The member at fault, by its rank in the group.
    pub culprit: usize,
    /// The member that saw it.
    pub by: usize,
    /// Event, as the rest of the sentence "rank 3 ...": "died: its connections closed".
    pub cause: String,
    pub why: FailureKind,
}

/// Kind of error that a failure becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// A member or its link is gone; the members on whose account it gave up, where it said so.
    Lost { because_of: Vec<usize> },
    /// A member left in good order while a message of it was due.
    Left,
    /// The culprit itself reported it, in whole sentences of its own (an abort, not a death).
    Reported,
    /// The members made different calls, which are not known any more.
    Disagreed,
    /// The culprit made another call than the member that saw it.
    Differs(Box<Differs>),
    /// The limit of a call passed on the member that saw it.
    Late(Box<Late>),
}

/// A call that did not end in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Late {
    /// The call, as the member made it whose limit passed.
    pub call: CallInfo,
    pub after: Duration,
    /// The ranks that have not made the call; for a call of two ranks alone, the other one.
    pub missing: Vec<usize>,
    /// If all have made it: the two between which nothing moves, first the one that waits.
    pub stalled: Option<(usize, usize)>,
}

impl Failure {
    /// `by` saw that `culprit`, or the link to it, is gone; the cause goes on after "rank 3".
    pub fn lost(culprit: usize, by: usize, cause: impl Into<String>) -> Self {
        Self { culprit, by, cause: cause.into(), why: FailureKind::Lost { because_of: Vec::new() } }
    }

    /// Note that the culprit gave up because of these members.
    pub fn on_account_of(mut self, ranks: Vec<usize>) -> Self {
        if let FailureKind::Lost { because_of } = &mut self.why {
            *because_of = ranks;
        }
        self
    }

    /// `by` needs something of `culprit`, which left in good order after so many calls, where they are fewer than its own.
    pub fn left(culprit: usize, by: usize, calls: Option<u64>) -> Self {
        let cause = match calls {
            Some(0) => "left the group before its first call".into(),
            Some(made) => format!("left the group after its call #{made}"),
            None => "left the group".into(),
        };
        Self { culprit, by, cause, why: FailureKind::Left }
    }

    /// `by` gives the group up, in its own words.
    pub fn reported(by: usize, cause: impl Into<String>) -> Self {
        Self { culprit: by, by, cause: cause.into(), why: FailureKind::Reported }
    }

    /// `by` saw that `culprit` made another call.
    pub fn differs(culprit: usize, by: usize, calls: Differs) -> Self {
        let cause = format!("called {} while rank {by} called {}", calls.theirs, calls.ours);
        Self { culprit, by, cause, why: FailureKind::Differs(Box::new(calls)) }
    }

    /// The limit of a call passed on `by`.
    pub fn late(by: usize, late: Late) -> Self {
        let other = late.stalled.map(|(a, b)| if a == by { b } else { a });
        let culprit = late.missing.first().copied().or(other).unwrap_or(by);
        let cause = format!("kept {} waiting for {:?}", late.call, late.after);
        Self { culprit, by, cause, why: FailureKind::Late(Box::new(late)) }
    }

    /// The members made different calls, and `by` can no longer tell which.
    pub fn disagree(by: usize, how: &str) -> Self {
        let todo = "make the same calls with the same arguments in the same order on every rank";
        let cause = format!("ranks disagree: {how}; {todo}");
        Self { culprit: by, by, cause, why: FailureKind::Disagreed }
    }

    /// Returns the failure as a sentence that names members by number only.
    pub fn sentence(&self) -> String {
        match self.why {
            FailureKind::Reported | FailureKind::Disagreed => format!("rank {}: {}", self.by, self.cause),
            _ => Self::disagree(self.by, &format!("rank {} {}", self.culprit, self.cause)).cause,
        }
    }

    /// Returns true if the members made different calls.
    pub fn is_disagreement(&self) -> bool {
        matches!(self.why, FailureKind::Differs(_) | FailureKind::Disagreed)
    }

    /// The error of the member `mine`, which was making `call`.
    pub fn error(&self, mine: usize, members: &[Peer], call: Option<CallInfo>) -> Error {
        let member = |r: usize| members.get(r).cloned().unwrap_or(Peer { rank: r, host: None, pid: None });
        let kind = match &self.why {
            FailureKind::Differs(calls) => ErrorKind::Mismatch {
                rank: self.by,
                ours: calls.ours,
                peer: member(self.culprit),
                theirs: calls.theirs,
                differs: calls.what,
                threads: None,
            },
            FailureKind::Reported | FailureKind::Disagreed => {
                ErrorKind::Aborted { by: member(self.culprit), reason: self.cause.clone(), call }
            }
            // Whoever is waited for learns that it is, not that it was lost.
            FailureKind::Late(late) if late.missing.contains(&mine) => {
                let others = late.missing.iter().filter(|r| **r != mine).map(|r| format!(", {}", member(*r)));
                let who = others.fold(String::from("this rank"), |all, one| all + &one);
                let reason = match late.call.seq {
                    0 => format!("{} timed out after {:?}, waiting for {who}", late.call, late.after),
                    _ => format!("{} timed out after {:?}: not called by {who}", late.call, late.after),
                };
                ErrorKind::Aborted { by: member(self.by), reason, call }
            }
            FailureKind::Late(late) => return late.error(self.by, mine, &member, Vec::new()),
            FailureKind::Lost { .. } | FailureKind::Left => {
                let seen_by = Some(self.by).filter(|by| *by != mine);
                let here =
                    if seen_by.is_some() && self.culprit == mine { "; perhaps it is this host" } else { "" };
                let peer = member(self.culprit);
                let cause = format!("{}{here}", self.cause);
                let because_of = Reason::because_of(self).to_vec();
                let left = self.why == FailureKind::Left;
                ErrorKind::PeerLost { peer, cause, because_of, seen_by, left, call }
            }
        };
        kind.into()
    }
}

impl Reason for Failure {
    type Call = Header;
    type Reached = Reached;

    fn lost(culprit: usize, by: usize, cause: String) -> Self {
        Self::lost(culprit, by, cause)
    }

    fn on_account_of(self, ranks: Vec<usize>) -> Self {
        self.on_account_of(ranks)
    }

    fn because_of(&self) -> &[usize] {
        match &self.why {
            FailureKind::Lost { because_of } => because_of,
            _ => &[],
        }
    }

    fn culprit(&self) -> usize {
        self.culprit
    }

    fn witness(&self) -> usize {
        self.by
    }

    fn cause(&self) -> &str {
        &self.cause
    }
}

impl Late {
    /// Returns the error for a member that is not waited for.
    pub fn error(
        &self,
        by: usize,
        mine: usize,
        member: &dyn Fn(usize) -> Peer,
        crossed: Vec<CrossedWait>,
    ) -> Error {
        let pair = self.stalled.map(|(a, b)| [a, b]);
        let named: &[usize] = pair.as_ref().map_or(&self.missing, |p| p);
        ErrorKind::Timeout {
            rank: by,
            call: self.call,
            after: self.after,
            waiting_for: named.iter().filter(|r| **r != mine).map(|r| member(*r)).collect(),
            stalled: pair.map(|p| p.map(member)),
            crossed,
        }
        .into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Op;

    fn members(n: usize) -> Vec<Peer> {
        (0..n).map(|rank| Peer { rank, host: None, pid: None }).collect()
    }

    #[test]
    fn a_call_that_is_late_blames_nobody_who_made_it() {
        let call = CallInfo::new(Op::Barrier).with(|c| c.seq = 9);
        let after = Duration::from_secs(2);
        let f = Failure::late(1, Late { call, after, missing: vec![0, 3], stalled: None });
        let text = |mine| f.error(mine, &members(4), None).to_string();
        assert_eq!(text(1), text(2), "the same on every survivor");
        assert!(
            text(2).starts_with("barrier #9 timed out after 2s on rank 1: rank 0, rank 3 had not called it;"),
            "{}",
            text(2)
        );
        assert_eq!(
            text(3),
            "rank 1 gave up the group: barrier #9 timed out after 2s: not called by this rank, rank 0; mend that, then restart the job or call the group's reform"
        );
    }

    #[test]
    fn if_all_made_the_call_the_pair_is_named() {
        let call = CallInfo::new(Op::Barrier).with(|c| c.seq = 9);
        let after = Duration::from_secs(2);
        let f = Failure::late(1, Late { call, after, missing: vec![], stalled: Some((1, 3)) });
        assert_eq!((f.culprit, f.by), (3, 1));
        for mine in 0..4 {
            let e = f.error(mine, &members(4), None);
            let ErrorKind::Timeout { waiting_for, .. } = e.kind() else { panic!("{e}") };
            assert!(waiting_for.iter().all(|p| p.rank != mine), "{e}");
            let words = "all ranks have called it, but nothing moves between rank 1 and rank 3";
            assert!(e.to_string().contains(words), "{e}");
        }
    }
}

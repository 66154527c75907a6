//! Progress of a member in its calls: its answer to members that ask.

use super::{GroupStatus, Header};
use std::cmp::Reverse;

/// In place of a call's number, in a census of a rank that does not close the group: only how far the others have come is asked for.
pub const NO_COMPARISON: u64 = u64::MAX;

/// Progress of a member of a group, as its control thread sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// The number of its last call.
    pub made: u64,
    /// Digest of its calls up to the number asked for, if it knows.
    pub digest: Option<u64>,
    /// The member that it sleeps for in a call, itself where it does not know for whom, and since when, in milliseconds.
    pub lacks: Option<(usize, u64)>,
    /// It sleeps in a call of another group.
    pub elsewhere: bool,
    /// Its last call, if it has slept in it.
    pub standing: Option<Standing>,
}

/// Call in which a member has slept for long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Parts of equal length only: there the call alone says which ranks it needs.
    pub call: Header,
    /// Bytes that the member had sent to the asker, with those of the calls before.
    pub sent: u64,
}

impl Reached {
    /// Add where this rank, `mine` among the world ranks `members`, waits in one of the process's other groups, each with its members, if it
    /// waits nowhere in this one. A rank that is no member here is one that is not known.
    pub fn or_elsewhere<'a>(
        self,
        mine: usize,
        members: &[usize],
        others: impl Iterator<Item = (&'a [usize], &'a GroupStatus)>,
    ) -> Self {
        if self.lacks.is_some() {
            return self;
        }
        let place = |(all, status): (&[usize], &GroupStatus)| {
            let (whom, since) = status.lacks()?;
            let who = all.get(whom).filter(|who| members.get(mine) != Some(who));
            let here = who.and_then(|who| members.iter().position(|m| m == who));
            Some((here.unwrap_or(mine), since))
        };
        // Of several threads the one that has waited longest.
        let lacks = others.filter_map(place).max_by_key(|(whom, since)| (*since, Reverse(*whom)));
        Self { lacks, elsewhere: lacks.is_some(), ..self }
    }
}

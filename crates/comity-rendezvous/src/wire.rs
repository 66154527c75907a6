//! Messages between ranks and the store, as bytes.
//!
//! Compact, big-endian, and read with every length bounded before anything is allocated from it.

use crate::{
    Error, Field, JoinCause, JoinError, LinkKind, MAX_SIZE, Result,
    channel::{Malformed, Reader, Writer},
    field::MAX_LIST,
    fields,
    transport::{Announced, Card, OwnAddr},
};
use comity_membership::{Ballot, Message, Plan, Refusal, Rule, Terms};
use std::net::SocketAddr;

/// Facts that a rank announces about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Facts for the ranks that it is linked to.
    pub card: Card,
    pub host: String,
    pub pid: u32,
    /// Its process's number among all: two containers may have one `pid`.
    pub process: u64,
    /// True if rings go before other plans.
    pub ring: bool,
    /// True if TCP traffic is to be encrypted.
    pub sealed: bool,
    /// Longest silence of another that this rank allows, in milliseconds; 0: for ever.
    pub silence: u32,
}

/// Returns another process's facts, for tests.
pub fn facts_of(host: &str, pid: u32, addrs: Vec<SocketAddr>) -> Facts {
    Facts {
        card: Card {
            host_id: u64::from(pid),
            cores: 1,
            links: Announced::from_iter(LinkKind::from_name("tcp").map(|kind| (kind, Vec::new()))),
            unix: String::new(),
            addrs: addrs.into_iter().map(|at| OwnAddr::new(at, &[])).collect(),
            are_named: false,
            relays: false,
        },
        host: host.into(),
        pid,
        process: u64::from(pid),
        ring: false,
        sealed: false,
        silence: 1000,
    }
}

/// A rank to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToStore {
    /// "I am here", and how many milliseconds I am willing to wait.
    Join { rank: u32, size: u32, patience: u64, facts: Facts },
    /// All control connections of this rank stand.
    Ready,
    /// Vote on the group that follows one.
    Vote { world: u64, group_id: u64, message: Message },
    /// A process waits for the job's ranks to take it in; its host and process id, and the rank in whose place its launcher started it.
    Wait { host: String, pid: u32, place: Option<u32> },
    /// Call these joiners to a meeting.
    Summon { joiners: Vec<u64>, to: Summons },
    /// This rank gives up, for its reasons.
    Failed { why: JoinError },
    /// Send these joiners away: no group comes about with them.
    Decline { joiners: Vec<u64>, why: JoinError },
}

/// Call of a joiner to the meeting of a group that forms again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summons {
    pub group_id: u64,
    /// Rank of the joiner, or of the first of several.
    pub rank: u32,
    pub size: u32,
    /// Number of times that the job's group was formed again, this time included.
    pub epoch: u32,
    /// Addresses of the store at which they meet.
    pub addrs: Vec<SocketAddr>,
}

impl Summons {
    /// The meeting that a plan announces, if it has joiners.
    pub fn of_plan(extra: &[u8]) -> Result<Option<Self>> {
        if extra.len() <= 8 {
            return Ok(None);
        }
        Self::decode(extra).map(Some).map_err(|_| {
            Error::join(
                "a rank proposes a meeting that this one does not understand; use one version everywhere",
            )
        })
    }
}

impl Field for Summons {
    fn put(&self, w: &mut Writer) {
        w.u64(self.group_id);
        w.u32(self.rank);
        w.u32(self.size);
        w.u32(self.epoch);
        self.addrs.put(w);
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let group_id = r.u64()?;
        let rank = r.u32()?;
        let size = r.u32()?;
        let epoch = r.u32()?;
        let addrs = Field::take(r)?;
        if rank >= size || size as usize > MAX_SIZE {
            return Err(Malformed);
        }
        Ok(Self { group_id, rank, size, epoch, addrs })
    }
}

/// The store to a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromStore {
    /// All are here; `size` entries follow.
    Welcome {
        world: u64,
        size: u32,
    },
    Entry {
        rank: u32,
        facts: Facts,
    },
    /// It did not come to a group.
    Refused {
        why: JoinError,
    },
    /// These processes wait for the job's ranks to take them in, and those were called to a meeting, and have not said how it went.
    Joiners {
        all: Vec<u64>,
        called: Vec<u64>,
    },
    /// The receiver, a joiner, is taken in.
    Summoned {
        to: Summons,
    },
    /// The store's answer to a request for its vote.
    Vote {
        group_id: u64,
        message: Message,
    },
    /// Another rank has come; so many are here.
    Waiting {
        here: u32,
    },
}

/// Reason for which ranks do not meet; which address somebody else tried means nothing to others.
impl Field for JoinError {
    fn put(&self, w: &mut Writer) {
        w.u8(JoinCause::ALL.iter().position(|c| *c == self.cause).unwrap_or_default() as u8);
        self.ranks.put(w);
        w.text(&self.to_string());
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let cause = *JoinCause::ALL.get(usize::from(r.u8()?)).ok_or(Malformed)?;
        let ranks: Vec<usize> = Field::take(r)?;
        Ok(Self::new(r.text()?).of(ranks).because(cause))
    }
}

fields!(Field: Facts { card, host, pid, process, ring, sealed, silence });
fields!(Field: enum ToStore {
    1 Join { rank, size, patience, facts },
    2 Ready,
    3 Failed { why },
    4 Vote { world, group_id, message },
    5 Wait { host, pid, place },
    6 Summon { joiners, to },
    7 Decline { joiners, why },
});
fields!(Field: enum FromStore {
    1 Welcome { world, size },
    2 Entry { rank, facts },
    3 Refused { why },
    4 Waiting { here },
    5 Vote { group_id, message },
    6 Joiners { all, called },
    7 Summoned { to },
});

/// The most bytes that the library adds to a plan.
const MAX_EXTRA: usize = 20 * 1024;

/// Returns true if a plan of these members can be told: they lie in few enough stretches.
pub fn can_be_told(members: &[usize]) -> bool {
    stretches(members).len() <= MAX_LIST
}

/// Stretches of successive ranks: the first of each, and how many.
fn stretches(ranks: &[usize]) -> Vec<(usize, usize)> {
    let mut all: Vec<(usize, usize)> = Vec::new();
    for rank in ranks {
        match all.last_mut() {
            Some((first, n)) if *first + *n == *rank => *n += 1,
            _ => all.push((*rank, 1)),
        }
    }
    all
}

fields!(Field: enum Message {
    1 Call { missing },
    2 Ready { asking, terms, promised, accepted, gone },
    3 Form { ballot, plan },
    4 Formed { ballot, fault, accepted },
    5 Behind { promised },
    6 Accept { ballot, plan },
    7 Accepted { ballot },
    8 Decided { plan },
    9 Refused { asking, why },
    10 Left,
    11 Withdraw,
});
fields!(Field: enum Refusal {
    1 Few { here, fewest },
    2 Minority { here },
    3 Terms { member },
    4 Late { by, missing },
    5 Fault { member, words },
});
fields!(Field: Terms { fewest, rule });
fields!(Field: Ballot { round, by });
fields!(Field: enum Rule { 0 Majority, 1 Store });

impl Field for Plan {
    fn put(&self, w: &mut Writer) {
        stretches(&self.members).put(w);
        self.left.put(w);
        let extra = self.extra.get(..self.extra.len().min(MAX_EXTRA)).unwrap_or_default();
        w.u16(extra.len() as u16);
        w.0.extend(extra);
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut members = Vec::new();
        let mut end = None;
        for (first, n) in <Vec<(usize, usize)>>::take(r)? {
            // In order, none twice, with a gap between two stretches, and no more than a job has.
            if end.is_some_and(|end| first <= end) || n == 0 || first > MAX_SIZE || n > MAX_SIZE - first {
                return Err(Malformed);
            }
            members.extend(first..first + n);
            end = Some(first + n);
        }
        let left = Field::take(r)?;
        let extra = r.slice(MAX_EXTRA)?.to_vec();
        Ok(Self { members, left, extra })
    }
}

#[cfg(test)]
mod plan_tests {
    use super::*;

    #[test]
    fn messages_come_as_they_went() {
        let ballot = Ballot { round: 3, by: 2 };
        let plan = Plan {
            members: vec![0, 1, 2, 5, 9],
            left: vec![(3, "died".into()), (4, String::new())],
            extra: vec![1, 2, 3],
        };
        let terms = Terms { fewest: 2, rule: Rule::Store };
        let refused = |why| Message::Refused { asking: 2, why };
        let all = [
            Message::Call { missing: vec![4] },
            Message::Ready {
                asking: 1,
                terms,
                promised: ballot,
                accepted: Some((ballot, plan.clone())),
                gone: vec![2],
            },
            Message::Form { ballot, plan: plan.clone() },
            Message::Formed { ballot, fault: Some("no".into()), accepted: None },
            Message::Behind { promised: ballot },
            Message::Accept { ballot, plan: plan.clone() },
            Message::Accepted { ballot },
            Message::Decided { plan },
            refused(Refusal::Few { here: vec![1], fewest: 2 }),
            refused(Refusal::Minority { here: vec![0, 1] }),
            refused(Refusal::Terms { member: 7 }),
            refused(Refusal::Late { by: 1, missing: vec![3] }),
            refused(Refusal::Fault { member: 1, words: "no".into() }),
            Message::Left,
            Message::Withdraw,
        ];
        for message in all {
            let bytes = message.encode();
            assert_eq!(Message::decode(&bytes), Ok(message.clone()));
            for n in 0..bytes.len() {
                assert!(Message::decode(&bytes[..n]).is_err(), "{message:?} cut at {n}");
            }
        }
        // Members twice, or more than a job has.
        for (first, n) in [(0u32, 0u32), (u32::MAX, 1), (1, u32::MAX)] {
            let mut w = Writer(vec![8, 0, 1]);
            w.u32(first);
            w.u32(n);
            w.0.extend([0; 4]);
            assert_eq!(Message::decode(&w.0), Err(Malformed));
        }
    }
}

#[cfg(test)]
mod tests;

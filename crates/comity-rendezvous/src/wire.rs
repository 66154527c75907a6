//! Messages between ranks and the store, as bytes.
//!
//! Compact, big-endian, and read with every length bounded before anything is allocated from it.

use super::{put_reform, take_reform};
use crate::{
    Error, JoinCause, JoinError, LinkKind, MAX_SIZE, Result,
    channel::{Malformed, Reader, Writer},
    transport::{Announced, Card, OwnAddr},
};
use comity_membership::Message;
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
    /// The group's number.
    pub group_id: u64,
    /// Rank of the joiner, or of the first of several.
    pub rank: u32,
    pub size: u32,
    /// Number of times that the job's group was formed again, this time included.
    pub epoch: u32,
    /// Addresses of the store at which they meet.
    pub addrs: Vec<SocketAddr>,
}

/// The most joiners that are told of.
pub(crate) const MAX_JOINERS: usize = 1024;
/// A joiner comes in nobody's place.
const NO_PLACE: u32 = u32::MAX;
/// The most addresses of a meeting's store.
const MAX_ADDRS: usize = 16;

impl Summons {
    /// Bytes for a plan; a plan without joiners has the group's number only.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut w = Writer::default();
        self.put(&mut w);
        w.0
    }

    /// The meeting that a plan announces, if it has joiners.
    pub fn of_plan(extra: &[u8]) -> Result<Option<Self>> {
        if extra.len() <= 8 {
            return Ok(None);
        }
        let mut r = Reader(extra);
        let to = Self::take(&mut r).and_then(|to| r.end(to));
        to.map(Some).map_err(|_| {
            Error::join(
                "a rank proposes a meeting that this one does not understand; use one version everywhere",
            )
        })
    }

    pub fn put(&self, w: &mut Writer) {
        w.u64(self.group_id);
        w.u32(self.rank);
        w.u32(self.size);
        w.u32(self.epoch);
        w.u16(self.addrs.len().min(MAX_ADDRS) as u16);
        self.addrs.iter().take(MAX_ADDRS).for_each(|at| w.addr(*at));
    }

    pub fn take(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let group_id = r.u64()?;
        let rank = r.u32()?;
        let size = r.u32()?;
        let epoch = r.u32()?;
        let n = usize::from(r.u16()?);
        if n > MAX_ADDRS || rank >= size || size as usize > MAX_SIZE {
            return Err(Malformed);
        }
        let addrs = (0..n).map(|_| r.addr()).collect::<Result<_, _>>()?;
        Ok(Self { group_id, rank, size, epoch, addrs })
    }
}

/// Numbers of joiners.
fn put_joiners(w: &mut Writer, all: &[u64]) {
    w.u16(all.len().min(MAX_JOINERS) as u16);
    all.iter().take(MAX_JOINERS).for_each(|id| w.u64(*id));
}

fn take_joiners(r: &mut Reader<'_>) -> Result<Vec<u64>, Malformed> {
    let n = usize::from(r.u16()?);
    if n > MAX_JOINERS {
        return Err(Malformed);
    }
    (0..n).map(|_| r.u64()).collect()
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

impl Facts {
    fn put(&self, w: &mut Writer) {
        self.card.put(w);
        w.text(&self.host);
        w.u32(self.pid);
        w.u64(self.process);
        w.u8(u8::from(self.sealed) | u8::from(self.ring) << 1);
        w.u32(self.silence);
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let card = Card::take(r)?;
        let host = r.text()?;
        let pid = r.u32()?;
        let process = r.u64()?;
        let wishes = r.u8()?;
        let silence = r.u32()?;
        if wishes > 3 {
            return Err(Malformed);
        }
        Ok(Self { card, host, pid, process, silence, sealed: wishes & 1 != 0, ring: wishes & 2 != 0 })
    }
}

/// Write the reason for which ranks do not meet; which address somebody else tried means nothing to others.
fn put(w: &mut Writer, why: &JoinError) {
    w.u8(JoinCause::ALL.iter().position(|c| *c == why.cause).unwrap_or_default() as u8);
    w.ranks(&why.ranks);
    w.text(&why.to_string());
}

fn take(r: &mut Reader<'_>) -> Result<JoinError, Malformed> {
    let cause = *JoinCause::ALL.get(usize::from(r.u8()?)).ok_or(Malformed)?;
    let ranks = r.ranks()?;
    Ok(JoinError::new(r.text()?).of(ranks).because(cause))
}

impl ToStore {
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        match self {
            Self::Join { rank, size, patience, facts } => {
                w.u8(1);
                w.u32(*rank);
                w.u32(*size);
                w.u64(*patience);
                facts.put(&mut w);
            }
            Self::Ready => w.u8(2),
            Self::Wait { host, pid, place } => {
                w.u8(5);
                w.text(host);
                w.u32(*pid);
                w.u32(place.unwrap_or(NO_PLACE));
            }
            Self::Summon { joiners, to } => {
                w.u8(6);
                put_joiners(&mut w, joiners);
                to.put(&mut w);
            }
            Self::Vote { world, group_id, message } => {
                w.u8(4);
                w.u64(*world);
                w.u64(*group_id);
                put_reform(&mut w, message);
            }
            Self::Failed { why } => {
                w.u8(3);
                put(&mut w, why);
            }
            Self::Decline { joiners, why } => {
                w.u8(7);
                put_joiners(&mut w, joiners);
                put(&mut w, why);
            }
        }
        w.0
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader(bytes);
        let m = match r.u8()? {
            1 => {
                Self::Join { rank: r.u32()?, size: r.u32()?, patience: r.u64()?, facts: Facts::take(&mut r)? }
            }
            2 => Self::Ready,
            3 => Self::Failed { why: take(&mut r)? },
            4 => Self::Vote { world: r.u64()?, group_id: r.u64()?, message: take_reform(&mut r)? },
            5 => Self::Wait {
                host: r.text()?,
                pid: r.u32()?,
                place: Some(r.u32()?).filter(|place| *place != NO_PLACE),
            },
            6 => Self::Summon { joiners: take_joiners(&mut r)?, to: Summons::take(&mut r)? },
            7 => Self::Decline { joiners: take_joiners(&mut r)?, why: take(&mut r)? },
            _ => return Err(Malformed),
        };
        r.end(m)
    }
}

impl FromStore {
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        match self {
            Self::Welcome { world, size } => {
                w.u8(1);
                w.u64(*world);
                w.u32(*size);
            }
            Self::Entry { rank, facts } => {
                w.u8(2);
                w.u32(*rank);
                facts.put(&mut w);
            }
            Self::Refused { why } => {
                w.u8(3);
                put(&mut w, why);
            }
            Self::Joiners { all, called } => {
                w.u8(6);
                put_joiners(&mut w, all);
                put_joiners(&mut w, called);
            }
            Self::Summoned { to } => {
                w.u8(7);
                to.put(&mut w);
            }
            Self::Vote { group_id, message } => {
                w.u8(5);
                w.u64(*group_id);
                put_reform(&mut w, message);
            }
            Self::Waiting { here } => {
                w.u8(4);
                w.u32(*here);
            }
        }
        w.0
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader(bytes);
        let m = match r.u8()? {
            1 => Self::Welcome { world: r.u64()?, size: r.u32()? },
            2 => Self::Entry { rank: r.u32()?, facts: Facts::take(&mut r)? },
            3 => Self::Refused { why: take(&mut r)? },
            4 => Self::Waiting { here: r.u32()? },
            5 => Self::Vote { group_id: r.u64()?, message: take_reform(&mut r)? },
            6 => Self::Joiners { all: take_joiners(&mut r)?, called: take_joiners(&mut r)? },
            7 => Self::Summoned { to: Summons::take(&mut r)? },
            _ => return Err(Malformed),
        };
        r.end(m)
    }
}

#[cfg(test)]
mod tests;

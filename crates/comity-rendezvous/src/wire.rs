//! Messages between ranks and the store, as bytes.
//!
//! Compact, big-endian, and read with every length bounded before anything is allocated from it.

use crate::{
    Error, Field, JoinCause, JoinError, LinkKind, MAX_SIZE, Result,
    channel::{Malformed, Reader, Writer},
    fields,
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
        w.u16(self.addrs.len().min(MAX_ADDRS) as u16);
        self.addrs.iter().take(MAX_ADDRS).for_each(|at| w.addr(*at));
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, Malformed> {
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
impl Field for Vec<u64> {
    fn put(&self, w: &mut Writer) {
        w.u16(self.len().min(MAX_JOINERS) as u16);
        self.iter().take(MAX_JOINERS).for_each(|id| w.u64(*id));
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let n = usize::from(r.u16()?);
        if n > MAX_JOINERS {
            return Err(Malformed);
        }
        (0..n).map(|_| r.u64()).collect()
    }
}

/// Codec of a joiner's place.
mod place {
    use super::{Malformed, NO_PLACE, Reader, Writer};

    pub(super) fn put(place: &Option<u32>, w: &mut Writer) {
        w.u32(place.unwrap_or(NO_PLACE));
    }

    pub(super) fn take(r: &mut Reader<'_>) -> Result<Option<u32>, Malformed> {
        Ok(Some(r.u32()?).filter(|place| *place != NO_PLACE))
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

impl Field for Facts {
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

/// Reason for which ranks do not meet; which address somebody else tried means nothing to others.
impl Field for JoinError {
    fn put(&self, w: &mut Writer) {
        w.u8(JoinCause::ALL.iter().position(|c| *c == self.cause).unwrap_or_default() as u8);
        w.ranks(&self.ranks);
        w.text(&self.to_string());
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let cause = *JoinCause::ALL.get(usize::from(r.u8()?)).ok_or(Malformed)?;
        let ranks = r.ranks()?;
        Ok(Self::new(r.text()?).of(ranks).because(cause))
    }
}

fields!(Field: enum ToStore {
    1 Join { rank, size, patience, facts },
    2 Ready,
    3 Failed { why },
    4 Vote { world, group_id, message },
    5 Wait { host, pid, place: place },
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

#[cfg(test)]
mod tests;

//! What ranks and the store say to each other, as bytes.
//!
//! Compact, big-endian, and read with every length bounded before anything is allocated from it.

use crate::channel::{Malformed, Reader, Writer};
use std::net::SocketAddr;

/// The most addresses one rank can listen on.
pub(crate) const MAX_ADDRS: usize = 16;

/// What a rank tells the others about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Equal for processes that may share memory.
    pub(crate) host_id: u64,
    pub(crate) host: String,
    pub(crate) pid: u32,
    pub(crate) cores: u16,
    pub(crate) shm: bool,
    pub(crate) tcp: bool,
    /// Whether there is a device that may lead to another rank.
    pub(crate) rdma: bool,
    /// Whether rings go before other plans.
    pub(crate) ring: bool,
    /// Whether what goes over TCP is to be encrypted.
    pub(crate) sealed: bool,
    /// How long this rank lets another be silent, in milliseconds; 0: for ever.
    pub(crate) silence: u32,
    /// Threads that may send for this rank, beside its own; `u16::MAX`: as its cores allow.
    pub(crate) senders: u16,
    /// TCP connections per address; 0: as the pair's threads for sending ask for.
    pub(crate) connections: u16,
    /// The name of the socket for processes of the same host; empty without one.
    pub(crate) unix: String,
    pub(crate) addrs: Vec<SocketAddr>,
}

/// What a process says of itself that is none of ours.
#[cfg(test)]
pub(crate) fn facts_of(host: &str, pid: u32, addrs: Vec<SocketAddr>) -> Facts {
    Facts {
        host_id: u64::from(pid),
        host: host.into(),
        pid,
        cores: 1,
        shm: false,
        tcp: true,
        rdma: false,
        ring: false,
        sealed: false,
        silence: 1000,
        senders: u16::MAX,
        connections: 1,
        unix: String::new(),
        addrs,
    }
}

/// A rank to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ToStore {
    /// "I am here", and how many milliseconds I am willing to wait.
    Join { rank: u32, size: u32, patience: u64, facts: Facts },
    /// All control connections of this rank stand.
    Ready,
    /// This rank gives up, in its words.
    Failed { words: String },
}

/// The store to a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FromStore {
    /// All are here; `size` entries follow.
    Welcome {
        world: u64,
        size: u32,
    },
    Entry {
        rank: u32,
        facts: Facts,
    },
    /// It did not come to a group, in words.
    Refused {
        words: String,
    },
    /// Another rank has come; so many are here.
    Waiting {
        here: u32,
    },
}

impl Facts {
    fn put(&self, w: &mut Writer) {
        w.u64(self.host_id);
        w.text(&self.host);
        w.u32(self.pid);
        w.u16(self.cores);
        w.u8(u8::from(self.shm)
            | u8::from(self.tcp) << 1
            | u8::from(self.sealed) << 2
            | u8::from(self.rdma) << 3
            | u8::from(self.ring) << 4);
        w.u32(self.silence);
        w.u16(self.senders);
        w.u16(self.connections);
        w.text(&self.unix);
        w.u8(self.addrs.len().min(MAX_ADDRS) as u8);
        for a in self.addrs.iter().take(MAX_ADDRS) {
            w.addr(*a);
        }
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (host_id, host, pid, cores) = (r.u64()?, r.text()?, r.u32()?, r.u16()?);
        let kinds = r.u8()?;
        let (silence, senders, connections, unix) = (r.u32()?, r.u16()?, r.u16()?, r.text()?);
        let n = usize::from(r.u8()?);
        if n > MAX_ADDRS || kinds > 31 {
            return Err(Malformed);
        }
        let addrs = (0..n).map(|_| r.addr()).collect::<Result<_, _>>()?;
        Ok(Self {
            host_id,
            host,
            pid,
            cores,
            shm: kinds & 1 != 0,
            tcp: kinds & 2 != 0,
            sealed: kinds & 4 != 0,
            rdma: kinds & 8 != 0,
            ring: kinds & 16 != 0,
            silence,
            senders,
            connections,
            unix,
            addrs,
        })
    }
}

impl ToStore {
    pub(crate) fn encode(&self) -> Vec<u8> {
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
            Self::Failed { words } => {
                w.u8(3);
                w.text(words);
            }
        }
        w.0
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader(bytes);
        let m = match r.u8()? {
            1 => {
                Self::Join { rank: r.u32()?, size: r.u32()?, patience: r.u64()?, facts: Facts::take(&mut r)? }
            }
            2 => Self::Ready,
            3 => Self::Failed { words: r.text()? },
            _ => return Err(Malformed),
        };
        r.end(m)
    }
}

impl FromStore {
    pub(crate) fn encode(&self) -> Vec<u8> {
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
            Self::Refused { words } => {
                w.u8(3);
                w.text(words);
            }
            Self::Waiting { here } => {
                w.u8(4);
                w.u32(*here);
            }
        }
        w.0
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader(bytes);
        let m = match r.u8()? {
            1 => Self::Welcome { world: r.u64()?, size: r.u32()? },
            2 => Self::Entry { rank: r.u32()?, facts: Facts::take(&mut r)? },
            3 => Self::Refused { words: r.text()? },
            4 => Self::Waiting { here: r.u32()? },
            _ => return Err(Malformed),
        };
        r.end(m)
    }
}

#[cfg(test)]
mod tests;

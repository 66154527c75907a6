//! Announcements of ranks to those that they may be linked to.

use super::LinkKind;
use crate::{
    channel::{Malformed, Reader, Writer},
    sys::Interface,
};
use std::net::{IpAddr, SocketAddr};

/// The most addresses one rank can listen on.
pub const MAX_ADDRS: usize = 16;
/// The most transports that a rank can announce, and the most that it can say of one.
const MAX_ANNOUNCED: usize = 16;
const MAX_BYTES: usize = 72;

/// An address on which a rank listens, and what is known of the network that leads there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnAddr {
    /// Address and port. The scope of a link-local address is valid on its own host only.
    pub at: SocketAddr,
    /// Leading bits that all addresses of its network have in common; 0 where that is unknown.
    pub prefix: u8,
    /// In Mbit/s; 0 where that is unknown.
    pub speed: u32,
    /// It leads to other processes of the host, or through a tunnel: tried last.
    pub is_inner: bool,
}

impl OwnAddr {
    /// `at`, with what `interfaces` tell of it.
    pub fn new(at: SocketAddr, interfaces: &[Interface]) -> Self {
        let Some(i) = interfaces.iter().find(|i| i.ip == at.ip()) else {
            return Self { at, prefix: 0, speed: 0, is_inner: false };
        };
        Self { at, prefix: i.prefix, speed: i.speed, is_inner: i.is_inner() }
    }

    /// Returns true if the address is valid on its own link only.
    pub(super) fn is_link_local(&self) -> bool {
        matches!(self.at.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local())
    }

    fn put(&self, w: &mut Writer) {
        w.addr(self.at);
        w.u8(self.prefix);
        w.u32(self.speed);
        w.u8(u8::from(self.is_inner));
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { at: r.addr()?, prefix: r.u8()?, speed: r.u32()?, is_inner: r.flag()? })
    }
}

/// Announcement of a rank to those that it may be linked to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// Equal for processes of one host.
    pub host_id: u64,
    pub cores: u16,
    /// Links that it can use, with each transport's announcement.
    pub links: Announced,
    /// The name of the socket for processes of the same host; empty without one.
    pub unix: String,
    /// Addresses at which it listens.
    pub addrs: Vec<OwnAddr>,
    /// Its user has named them, so a link uses each that works; else the best.
    pub are_named: bool,
    /// It passes on what two others say that have no way to each other.
    pub relays: bool,
}

impl Card {
    /// The addresses at which it listens, in words.
    pub fn place(&self) -> String {
        self.addrs.iter().map(|a| a.at.to_string()).collect::<Vec<_>>().join(", ")
    }

    pub fn put(&self, w: &mut Writer) {
        w.u64(self.host_id);
        w.u16(self.cores);
        self.links.put(w);
        w.text(&self.unix);
        w.list(MAX_ADDRS, &self.addrs, |w, a| a.put(w));
        w.u8(u8::from(self.are_named) | u8::from(self.relays) << 1);
    }

    pub fn take(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let host_id = r.u64()?;
        let cores = r.u16()?;
        let links = Announced::take(r)?;
        let unix = r.text()?;
        let addrs = r.list(MAX_ADDRS, OwnAddr::take)?;
        let flags = r.u8()?;
        if flags > 3 {
            return Err(Malformed);
        }
        let are_named = flags & 1 != 0;
        let relays = flags & 2 != 0;
        Ok(Self { host_id, cores, links, unix, addrs, are_named, relays })
    }
}

/// Announcement of a rank's transports: those that it can use, by number, each with a few bytes of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announced(Vec<(u8, Vec<u8>)>);

impl Announced {
    /// Returns the bytes of this transport, if the rank can use it.
    pub(crate) fn of(&self, kind: LinkKind) -> Option<&[u8]> {
        self.0.iter().find(|(n, _)| kind.wire() == Some(*n)).map(|(_, bytes)| bytes.as_slice())
    }

    pub fn has(&self, kind: LinkKind) -> bool {
        self.of(kind).is_some()
    }

    /// Cores that it may run on, as transports through memory say it.
    pub fn own_cores(&self) -> Option<usize> {
        let shares = |k: &&LinkKind| k.about().is_some_and(|a| a.shares_memory);
        let said = LinkKind::LISTED.iter().filter(shares).find_map(|k| self.of(*k)?.first_chunk());
        said.map(|cores| usize::from(u16::from_le_bytes(*cores)))
    }

    /// Returns true if it can share memory with ranks of its host.
    pub fn shares_memory(&self) -> bool {
        LinkKind::LISTED.iter().any(|k| self.has(*k) && k.about().is_some_and(|a| a.shares_memory))
    }

    fn put(&self, w: &mut Writer) {
        w.list(MAX_ANNOUNCED, &self.0, |w, (number, bytes)| {
            w.u8(*number);
            w.list(MAX_BYTES, bytes, |w, byte| w.u8(*byte));
        });
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        r.list(MAX_ANNOUNCED, |r| Ok((r.u8()?, r.list(MAX_BYTES, Reader::u8)?))).map(Self)
    }
}

impl FromIterator<(LinkKind, Vec<u8>)> for Announced {
    fn from_iter<I: IntoIterator<Item = (LinkKind, Vec<u8>)>>(all: I) -> Self {
        Self(all.into_iter().filter_map(|(kind, bytes)| Some((kind.wire()?, bytes))).collect())
    }
}

/// Two ranks of a job that are to be linked, as one of them sees it.
#[derive(Clone, Copy, Debug)]
pub struct Pair<'a> {
    pub(crate) me: usize,
    pub(crate) peer: usize,
    pub(crate) group_id: u64,
    pub ours: &'a Card,
    pub theirs: &'a Card,
    /// Cards of all ranks of the job.
    pub(crate) all: &'a [Card],
}

impl<'a> Pair<'a> {
    /// None where a rank has no card.
    pub fn new(all: &'a [Card], me: usize, peer: usize, group_id: u64) -> Option<Self> {
        let ours = all.get(me)?;
        let theirs = all.get(peer)?;
        Some(Self { me, peer, group_id, ours, theirs, all })
    }

    /// Checks that processes of one host can reach each other over its own socket; the reason if not.
    pub(crate) fn share_a_host(&self) -> Result<(), String> {
        match self.ours.host_id == self.theirs.host_id {
            false => Err("its host is another".into()),
            true if self.theirs.unix.is_empty() => Err("it has no socket for processes of its host".into()),
            true => Ok(()),
        }
    }
}

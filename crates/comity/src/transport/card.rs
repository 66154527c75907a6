//! What ranks say of themselves to those that they may be linked to.

use super::LinkKind;
use crate::{
    channel::{Malformed, Reader, Writer},
    sys::Interface,
};
use std::net::{IpAddr, SocketAddr};

/// The most addresses one rank can listen on.
pub(crate) const MAX_ADDRS: usize = 16;
/// The most transports that a rank can announce, and the most that it can say of one.
const MAX_ANNOUNCED: usize = 16;
const MAX_BYTES: usize = 72;

/// An address on which a rank listens, and what is known of the network that leads there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnAddr {
    /// Of a link-local one the scope means something on its own host only.
    pub(crate) at: SocketAddr,
    /// Leading bits that all addresses of its network have in common; 0 where that is unknown.
    pub(crate) prefix: u8,
    /// In Mbit/s; 0 where that is unknown.
    pub(crate) speed: u32,
    /// It leads to other processes of the host, or through a tunnel: tried last.
    pub(crate) is_inner: bool,
}

impl OwnAddr {
    /// `at`, with what `interfaces` tell of it.
    pub(crate) fn new(at: SocketAddr, interfaces: &[Interface]) -> Self {
        let Some(i) = interfaces.iter().find(|i| i.ip == at.ip()) else {
            return Self { at, prefix: 0, speed: 0, is_inner: false };
        };
        Self { at, prefix: i.prefix, speed: i.speed, is_inner: i.is_inner() }
    }

    /// Whether it means something on its own link only.
    pub(super) fn is_link_local(&self) -> bool {
        matches!(self.at.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local())
    }

    /// Which kind it is, and its network; of the link each address is one.
    fn network(&self) -> (usize, u128) {
        // No peer is believed to have told a length that there is.
        let rest = |prefix: u8| 128u32.saturating_sub(prefix.into());
        let top = |bits: u128, prefix: u8| bits.checked_shr(rest(prefix)).unwrap_or_default();
        match self.at.ip().to_canonical() {
            IpAddr::V4(ip) => (0, top(u128::from(ip.to_bits()) << 96, self.prefix)),
            IpAddr::V6(ip) if ip.is_unicast_link_local() => (2, ip.to_bits()),
            IpAddr::V6(ip) => (1, top(ip.to_bits(), self.prefix)),
        }
    }

    /// Whether both are in one network, which leads out of their hosts.
    fn is_beside(&self, other: &Self) -> bool {
        let (ours, theirs) = (self.network(), other.network());
        let is_same = ours.0 == 2 || self.prefix > 0 && self.prefix == other.prefix && ours.1 == theirs.1;
        ours.0 == theirs.0 && is_same && !self.is_inner && !other.is_inner
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

/// What a rank says of itself to those that it may be linked to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Card {
    /// Equal for processes of one host.
    pub(crate) host_id: u64,
    pub(crate) cores: u16,
    /// What it can use, and what each transport says.
    pub(crate) links: Announced,
    /// The name of the socket for processes of the same host; empty without one.
    pub(crate) unix: String,
    /// Where it listens.
    pub(crate) addrs: Vec<OwnAddr>,
    /// Its user has named them, so a link uses each that works; else the best.
    pub(crate) are_named: bool,
    /// It passes on what two others say that have no way to each other.
    pub(crate) relays: bool,
    /// What is cut goes on over another path.
    pub(crate) second_path: bool,
}

impl Card {
    pub(crate) fn put(&self, w: &mut Writer) {
        w.u64(self.host_id);
        w.u16(self.cores);
        self.links.put(w);
        w.text(&self.unix);
        w.u8(self.addrs.len().min(MAX_ADDRS) as u8);
        self.addrs.iter().take(MAX_ADDRS).for_each(|a| a.put(w));
        w.u8(u8::from(self.are_named) | u8::from(self.relays) << 1 | u8::from(self.second_path) << 2);
    }

    /// Whether the two share two networks as far as both tell, and both go on over the second: the same for either of them.
    pub(crate) fn shares_two(&self, other: &Self) -> bool {
        let networks = self.networks(other).into_iter().zip(other.networks(self));
        self.second_path
            && other.second_path
            && self.host_id != other.host_id
            && networks.map(|(ours, theirs)| ours.min(theirs)).max() >= Some(2)
    }

    /// How many networks of this one the other is in: of IPv4, of IPv6, and of the link, which tell only where there are no others, for those of
    /// all hosts look alike. One cable often has one of each.
    fn networks(&self, other: &Self) -> [usize; 3] {
        let mut found = [Vec::new(), Vec::new(), Vec::new()];
        for own in self.addrs.iter().filter(|a| other.addrs.iter().any(|b| a.is_beside(b))) {
            let (kind, network) = own.network();
            if let Some(all) = found.get_mut(kind).filter(|all| !all.contains(&network)) {
                all.push(network);
            }
        }
        let [four, six, link] = found.map(|all| all.len());
        [four, six, if four + six == 0 { link } else { 0 }]
    }

    pub(crate) fn take(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (host_id, cores, links, unix) = (r.u64()?, r.u16()?, Announced::take(r)?, r.text()?);
        let n = usize::from(r.u8()?);
        if n > MAX_ADDRS {
            return Err(Malformed);
        }
        let addrs = (0..n).map(|_| OwnAddr::take(r)).collect::<Result<_, _>>()?;
        let flags = r.u8()?;
        if flags > 7 {
            return Err(Malformed);
        }
        let (are_named, relays, second_path) = (flags & 1 != 0, flags & 2 != 0, flags & 4 != 0);
        Ok(Self { host_id, cores, links, unix, addrs, are_named, relays, second_path })
    }
}

/// What a rank says of its transports: those that it can use, by number, each with a few bytes of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Announced(Vec<(u8, Vec<u8>)>);

impl Announced {
    /// What it says of this one, if it can use it.
    pub(crate) fn of(&self, kind: LinkKind) -> Option<&[u8]> {
        self.0.iter().find(|(n, _)| kind.wire() == Some(*n)).map(|(_, bytes)| bytes.as_slice())
    }

    pub(crate) fn has(&self, kind: LinkKind) -> bool {
        self.of(kind).is_some()
    }

    /// Cores that it may run on, as transports through memory say it.
    pub(crate) fn own_cores(&self) -> Option<usize> {
        let shares = |k: &&LinkKind| k.about().is_some_and(|a| a.shares_memory);
        let said = LinkKind::LISTED.iter().filter(shares).find_map(|k| self.of(*k)?.first_chunk());
        said.map(|cores| usize::from(u16::from_le_bytes(*cores)))
    }

    /// Whether it can share memory with ranks of its host.
    pub(crate) fn shares_memory(&self) -> bool {
        LinkKind::LISTED.iter().any(|k| self.has(*k) && k.about().is_some_and(|a| a.shares_memory))
    }

    fn put(&self, w: &mut Writer) {
        w.u8(self.0.len().min(MAX_ANNOUNCED) as u8);
        for (number, bytes) in self.0.iter().take(MAX_ANNOUNCED) {
            w.u8(*number);
            w.u8(bytes.len().min(MAX_BYTES) as u8);
            w.0.extend(bytes.iter().take(MAX_BYTES));
        }
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let n = usize::from(r.u8()?);
        if n > MAX_ANNOUNCED {
            return Err(Malformed);
        }
        let one = |_| {
            let (number, len) = (r.u8()?, usize::from(r.u8()?));
            if len > MAX_BYTES {
                return Err(Malformed);
            }
            Ok((number, (0..len).map(|_| r.u8()).collect::<Result<_, _>>()?))
        };
        Ok(Self((0..n).map(one).collect::<Result<_, _>>()?))
    }
}

impl FromIterator<(LinkKind, Vec<u8>)> for Announced {
    fn from_iter<I: IntoIterator<Item = (LinkKind, Vec<u8>)>>(all: I) -> Self {
        Self(all.into_iter().filter_map(|(kind, bytes)| Some((kind.wire()?, bytes))).collect())
    }
}

/// Two ranks of a job that are to be linked, as one of them sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair<'a> {
    pub(crate) me: usize,
    pub(crate) peer: usize,
    /// The group.
    pub(crate) group_id: u64,
    pub(crate) ours: &'a Card,
    pub(crate) theirs: &'a Card,
    /// Of all ranks of the job.
    pub(crate) all: &'a [Card],
    /// Which making of the link the connections that came are for; see [`Channel::Link`](crate::channel::Channel::Link).
    pub(crate) making: u16,
}

impl<'a> Pair<'a> {
    /// None where a rank has no card.
    pub(crate) fn new(all: &'a [Card], me: usize, peer: usize, group_id: u64) -> Option<Self> {
        let (ours, theirs) = (all.get(me)?, all.get(peer)?);
        Some(Self { me, peer, group_id, ours, theirs, all, making: 0 })
    }

    /// Whether processes of one host can reach each other over its own socket; why not.
    pub(crate) fn share_a_host(&self) -> Result<(), String> {
        match self.ours.host_id == self.theirs.host_id {
            false => Err("its host is another".into()),
            true if self.theirs.unix.is_empty() => Err("it has no socket for processes of its host".into()),
            true => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(host_id: u64, addrs: &[(&str, u8)]) -> Card {
        let own = |(at, prefix): &(&str, u8)| OwnAddr {
            at: SocketAddr::new(at.parse().unwrap(), 7000),
            prefix: *prefix,
            speed: 0,
            is_inner: at.starts_with("172.17."),
        };
        let (links, unix) = (Announced::default(), String::new());
        let addrs = addrs.iter().map(own).collect();
        Card { host_id, cores: 1, links, unix, addrs, are_named: false, relays: false, second_path: true }
    }

    /// What either says.
    fn two(ours: &[(&str, u8)], theirs: &[(&str, u8)]) -> bool {
        let (a, b) = (card(1, ours), card(2, theirs));
        assert_eq!(a.shares_two(&b), b.shares_two(&a));
        let off = Card { second_path: false, ..b.clone() };
        assert!(!a.shares_two(&off) && !off.shares_two(&a) && !a.shares_two(&card(1, theirs)));
        a.shares_two(&b)
    }

    #[test]
    fn two_cables_are_two_paths_and_one_of_several_kinds_of_address_is_not() {
        let cables = |last: &str| [format!("10.0.1.{last}"), format!("10.0.2.{last}")];
        let (a, b) = (cables("1"), cables("2"));
        assert!(two(&[(&a[0], 30), (&a[1], 30)], &[(&b[0], 30), (&b[1], 30)]));
        assert!(!two(&[(&a[0], 30), ("10.0.9.1", 30)], &[(&b[0], 30), ("10.0.8.1", 30)]));
        // Two addresses in one network, and a bridge that all hosts have.
        assert!(!two(&[("10.9.0.1", 24), ("10.9.0.3", 24)], &[("10.9.0.2", 24), ("10.9.0.4", 24)]));
        assert!(!two(&[("10.9.0.1", 24), ("172.17.0.1", 16)], &[("10.9.0.2", 24), ("172.17.0.1", 16)]));
        // One cable, with all that a system gives it; and a host that has another.
        let dual = [("10.9.0.1", 24), ("fd00::1", 64), ("fe80::a", 64), ("fe80::b", 64)];
        assert!(!two(&dual, &[("10.9.0.2", 24), ("fd00::2", 64), ("fe80::c", 64), ("fe80::d", 64)]));
        assert!(two(&[("fd00::1", 64), ("fd01::1", 64)], &[("fd00::2", 64), ("fd01::2", 64)]));
        // Nothing but addresses of the link.
        assert!(two(&[("fe80::a", 64), ("fe80::b", 64)], &[("fe80::c", 64), ("fe80::d", 64)]));
        assert!(!two(&[("fe80::a", 64), ("fe80::b", 64)], &[("fe80::c", 64)]));
    }

    #[test]
    fn lengths_of_networks_that_cannot_be_are_no_panic() {
        let (ours, theirs) = ([("10.9.0.1", 200), ("fd00::1", 129)], [("10.9.0.2", 200), ("fd00::2", 129)]);
        assert!(!two(&ours, &theirs));
    }
}

//! Networks of IPv4 and IPv6, and an address for each end of each cable, beside every network that any of the hosts uses.
use crate::facts::{HostFacts, Nic};
use crate::graph::{Cable, Cluster};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Pools of networks for cables: parts of the private ranges that few use.
const POOLS: [([u8; 4], u8); 3] = [([10, 93, 0, 0], 16), ([172, 29, 0, 0], 16), ([192, 168, 224, 0], 19)];
/// Two addresses, the network's and the broadcast's.
const CABLE: u8 = 30;
/// The same for hosts that have IPv6 alone: a private prefix of 48 bits whose middle was drawn by lot, with 65,536 networks.
const POOL_V6: [u16; 3] = [0xfd5c, 0x93a0, 0xc1e7];
const CABLE_V6: u8 = 64;

/// The addresses of a cable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CableAddresses {
    pub a: Subnet,
    pub b: Subnet,
    /// True if both are there already.
    pub kept: bool,
}

/// Addresses for the cables, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AddressPlan {
    pub cables: Vec<CableAddresses>,
}

impl AddressPlan {
    /// Keeps the addresses of cables whose ends share a network that no other interface of theirs is in, and gives others new ones: of IPv4, or
    /// of IPv6 where a host has that alone.
    ///
    /// # Errors
    /// Every network of the pools is in use.
    pub fn of(cluster: &Cluster) -> Result<Self, String> {
        let mut used: Vec<Subnet> = cluster.hosts.iter().flat_map(|h| h.in_use.iter().copied()).collect();
        let addresses = cluster.hosts.iter().flat_map(|h| &h.nics).flat_map(|n| &n.addresses);
        used.extend(addresses.map(Subnet::network));
        let v6 = cluster.hosts.iter().any(HostFacts::is_v6_alone);
        let mut free = pool(v6);
        let mut cables: Vec<CableAddresses> = Vec::new();
        for cable in &cluster.cables {
            // One network cannot be on two cables: the system would send to one of them.
            let twice = |a: &Subnet| cables.iter().any(|c| c.a.overlaps(a));
            if let Some((a, b)) = there(cluster, cable, v6).filter(|(a, _)| !twice(a)) {
                cables.push(CableAddresses { a, b, kept: true });
                continue;
            }
            let net = free.find(|s| !used.iter().any(|u| u.overlaps(s)));
            let net = net.ok_or(match v6 {
                false => "every network in 10.93/16, 172.29/16 and 192.168.224/19 is in use: give the cables addresses by hand",
                true => "every network in fd5c:93a0:c1e7::/48 is in use: give the cables addresses by hand",
            })?;
            cables.push(CableAddresses { a: net.host(1), b: net.host(2), kept: false });
        }
        Ok(Self { cables })
    }

    /// Cables whose ends have no addresses yet.
    pub fn new_ones(&self) -> usize {
        self.cables.iter().filter(|c| !c.kept).count()
    }

    /// The addresses of a host, with the host at the other end and the interface here.
    pub fn of_host<'a>(
        &'a self,
        cluster: &'a Cluster,
        host: usize,
    ) -> impl Iterator<Item = (&'a Cable, Subnet, Subnet)> {
        cluster.cables.iter().zip(&self.cables).filter_map(move |(cable, at)| match host {
            h if h == cable.a.host => Some((cable, at.a, at.b)),
            h if h == cable.b.host => Some((cable, at.b, at.a)),
            _ => None,
        })
    }
}

/// Networks for cables, the first ones first.
fn pool(v6: bool) -> Box<dyn Iterator<Item = Subnet>> {
    if v6 {
        let [a, b, c] = POOL_V6;
        let at = move |i| Subnet::new(Ipv6Addr::new(a, b, c, i, 0, 0, 0, 0).into(), CABLE_V6);
        return Box::new((0..=u16::MAX).map(at));
    }
    Box::new(POOLS.iter().flat_map(|(ip, prefix)| {
        let first = u32::from(Ipv4Addr::from(*ip));
        (0..1u32 << (CABLE - prefix)).map(move |i| Subnet::new(Ipv4Addr::from(first + 4 * i).into(), CABLE))
    }))
}

/// Addresses of both ends in one network, in which no other interface of either host is.
fn there(cluster: &Cluster, cable: &Cable, v6: bool) -> Option<(Subnet, Subnet)> {
    let x = cluster.hosts.get(cable.a.host)?;
    let y = cluster.hosts.get(cable.b.host)?;
    let a = x.nic(&cable.a.nic)?;
    let b = y.nic(&cable.b.nic)?;
    let alone = |s: &Subnet| {
        [(x, a), (y, b)].iter().all(|(host, own)| {
            let others = host.nics.iter().filter(|n| n.name != own.name);
            others.flat_map(|n| &n.addresses).all(|o| !o.overlaps(s))
        })
    };
    let fits = |s: &Subnet, t: &Subnet| s.prefix == t.prefix && s.overlaps(t) && s.ip != t.ip;
    let of = |nic: &Nic| -> Vec<Subnet> { if v6 { nic.v6().collect() } else { nic.v4().collect() } };
    let others = of(b);
    of(a).into_iter().filter(alone).find_map(|s| Some((s, *others.iter().find(|t| fits(&s, t))?)))
}

/// An address and how many of its first bits are its network's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Subnet {
    /// An address in it.
    pub ip: IpAddr,
    /// The length of the prefix.
    pub prefix: u8,
}

impl Subnet {
    /// With an address and a prefix; longer prefixes than an address has bits are cut.
    pub fn new(ip: IpAddr, prefix: u8) -> Self {
        Self { ip, prefix: prefix.min(if ip.is_ipv4() { 32 } else { 128 }) }
    }

    /// `10.0.0.1/30`, or an address alone.
    pub fn parse(text: &str) -> Option<Self> {
        let (ip, prefix) = text.split_once('/').map_or((text, None), |(ip, p)| (ip, Some(p)));
        let ip: IpAddr = ip.parse().ok()?;
        let most = if ip.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.map_or(Some(most), |p| p.parse().ok()).filter(|p| *p <= most)?;
        Some(Self { ip, prefix })
    }

    /// The address's bits, at the upper end of 128.
    fn bits(ip: IpAddr) -> u128 {
        match ip {
            IpAddr::V4(ip) => u128::from(ip.to_bits()) << 96,
            IpAddr::V6(ip) => ip.to_bits(),
        }
    }

    fn mask(prefix: u8) -> u128 {
        u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0)
    }

    /// Returns whether the address is in this network.
    pub fn holds(&self, ip: IpAddr) -> bool {
        self.ip.is_ipv4() == ip.is_ipv4()
            && (Self::bits(self.ip) ^ Self::bits(ip)) & Self::mask(self.prefix) == 0
    }

    /// Returns whether an address is in both.
    pub fn overlaps(&self, other: &Self) -> bool {
        let shorter = if self.prefix <= other.prefix { self } else { other };
        self.ip.is_ipv4() == other.ip.is_ipv4()
            && (Self::bits(self.ip) ^ Self::bits(other.ip)) & Self::mask(shorter.prefix) == 0
    }

    /// The network itself, without the bits of a host.
    pub fn network(&self) -> Self {
        let bits = Self::bits(self.ip) & Self::mask(self.prefix);
        let ip = match self.ip {
            IpAddr::V4(_) => Ipv4Addr::from_bits((bits >> 96) as u32).into(),
            IpAddr::V6(_) => Ipv6Addr::from_bits(bits).into(),
        };
        Self { ip, prefix: self.prefix }
    }

    /// The address in this network whose host has this number.
    pub fn host(&self, number: u16) -> Self {
        let ip = match self.network().ip {
            IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits() | u32::from(number)).into(),
            IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() | u128::from(number)).into(),
        };
        Self { ip, prefix: self.prefix }
    }

    /// Returns whether every address is in it: the default route.
    pub fn is_everything(&self) -> bool {
        self.prefix == 0
    }

    /// An address of the link alone (169.254/16, fe80::/10).
    pub fn is_link_local(&self) -> bool {
        match self.ip {
            IpAddr::V4(ip) => ip.is_link_local(),
            IpAddr::V6(ip) => ip.segments()[0] & 0xffc0 == 0xfe80,
        }
    }

    /// 255.255.255.252 for a prefix of 30.
    pub fn netmask(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(u32::MAX.checked_shl(32 - u32::from(self.prefix.min(32))).unwrap_or(0))
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> Subnet {
        Subnet::parse(text).unwrap()
    }

    #[test]
    fn networks_hold_and_overlap() {
        assert!(net("10.0.0.0/30").holds("10.0.0.3".parse().unwrap()));
        assert!(!net("10.0.0.0/30").holds("10.0.0.4".parse().unwrap()));
        assert!(
            net("10.0.0.1/8").overlaps(&net("10.9.0.0/30")) && net("0.0.0.0/0").overlaps(&net("1.2.3.4"))
        );
        assert!(
            !net("10.0.0.0/30").overlaps(&net("10.0.0.4/30")) && !net("::/0").overlaps(&net("0.0.0.0/0"))
        );
        assert_eq!(net("10.0.0.7/30").network().to_string(), "10.0.0.4/30");
        assert_eq!(net("fe80::7/64").network().to_string(), "fe80::/64");
        assert_eq!(net("10.0.0.7/30").netmask().to_string(), "255.255.255.252");
        assert!(net("fe80::7/64").is_link_local() && net("169.254.1.1/16").is_link_local());
        assert!(Subnet::parse("10.0.0.0/33").is_none() && Subnet::parse("x").is_none());
    }
}

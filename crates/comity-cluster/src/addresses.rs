//! An address for each end of each cable, beside every network that any of the hosts uses.
use crate::facts::{HostFacts, Nic};
use crate::graph::{Cable, Cluster};
use crate::subnet::Subnet;
use serde::Serialize;
use std::net::{Ipv4Addr, Ipv6Addr};

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

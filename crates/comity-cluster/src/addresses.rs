//! An address for each end of each cable, beside every network that any of the hosts uses.
use crate::graph::{Cable, Cluster};
use crate::subnet::Subnet;
use serde::Serialize;
use std::net::{IpAddr, Ipv4Addr};

/// Where networks of a cable are taken from: parts of the private ranges that few use.
const POOLS: [([u8; 4], u8); 3] = [([10, 93, 0, 0], 16), ([172, 29, 0, 0], 16), ([192, 168, 224, 0], 19)];
/// Two addresses, the network's and the broadcast's.
const CABLE: u8 = 30;

/// The addresses of a cable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CableAddresses {
    /// Of the end at the first host.
    pub a: Subnet,
    /// Of the other.
    pub b: Subnet,
    /// Whether both are there already.
    pub kept: bool,
}

/// Addresses for the cables, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AddressPlan {
    /// One for each of [`Cluster::cables`].
    pub cables: Vec<CableAddresses>,
}

impl AddressPlan {
    /// Keeps the addresses of cables whose ends share a network that no other interface of theirs is in, and gives others new ones.
    ///
    /// # Errors
    /// Every network of the pools is in use.
    pub fn of(cluster: &Cluster) -> Result<Self, String> {
        let mut used: Vec<Subnet> = cluster.hosts.iter().flat_map(|h| h.in_use.iter().copied()).collect();
        let addresses = cluster.hosts.iter().flat_map(|h| &h.nics).flat_map(|n| &n.addresses);
        used.extend(addresses.map(Subnet::network));
        let mut free = POOLS.iter().flat_map(|(ip, prefix)| {
            let first = u32::from(Ipv4Addr::from(*ip));
            (0..1u32 << (CABLE - prefix))
                .map(move |i| Subnet::new(Ipv4Addr::from(first + 4 * i).into(), CABLE))
        });
        let mut cables: Vec<CableAddresses> = Vec::new();
        for cable in &cluster.cables {
            // One network cannot be on two cables: the system would send to one of them.
            let twice = |a: &Subnet| cables.iter().any(|c| c.a.overlaps(a));
            if let Some((a, b)) = there(cluster, cable).filter(|(a, _)| !twice(a)) {
                cables.push(CableAddresses { a, b, kept: true });
                continue;
            }
            let net = free.find(|s| !used.iter().any(|u| u.overlaps(s)));
            let net = net.ok_or("every network in 10.93/16, 172.29/16 and 192.168.224/19 is in use: give the cables addresses by hand")?;
            let at = |k: u8| match net.ip {
                IpAddr::V4(ip) => Subnet::new(Ipv4Addr::from(u32::from(ip) + u32::from(k)).into(), CABLE),
                IpAddr::V6(_) => net,
            };
            cables.push(CableAddresses { a: at(1), b: at(2), kept: false });
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

/// Addresses of both ends in one network, in which no other interface of either host is.
fn there(cluster: &Cluster, cable: &Cable) -> Option<(Subnet, Subnet)> {
    let (x, y) = (cluster.hosts.get(cable.a.host)?, cluster.hosts.get(cable.b.host)?);
    let (a, b) = (x.nic(&cable.a.nic)?, y.nic(&cable.b.nic)?);
    let alone = |s: &Subnet| {
        [(x, a), (y, b)].iter().all(|(host, own)| {
            let others = host.nics.iter().filter(|n| n.name != own.name);
            others.flat_map(|n| &n.addresses).all(|o| !o.overlaps(s))
        })
    };
    let fits = |s: &Subnet, t: &Subnet| s.prefix == t.prefix && s.overlaps(t) && s.ip != t.ip;
    a.v4().filter(alone).find_map(|s| Some((s, b.v4().find(|t| fits(&s, t))?)))
}

//! Interfaces that lead to none of the hosts: those whose cable is out, and those of which only the system knows what they are for.
use super::Check;
use crate::facts::{HostFacts, Nic};
use crate::graph::{Cluster, Plug};
use crate::subnet::Subnet;
use std::collections::BTreeSet;

/// Interfaces named one by one.
const MAX_NAMED: usize = 6;

/// Faults of interfaces that carry nothing from one of the hosts to another.
pub fn idle(cluster: &Cluster) -> Vec<Check> {
    if cluster.hosts.len() < 2 {
        return Vec::new();
    }
    let mut rows = unplugged(cluster);
    rows.extend((0..cluster.hosts.len()).filter_map(|host| dead_ends(cluster, host)));
    rows
}

fn cabled(host: &HostFacts) -> impl Iterator<Item = &Nic> {
    host.nics.iter().filter(|n| !n.is_inner && n.bridge.is_none())
}

/// Interfaces with an address and without a carrier; a cable whose two ends are down is told once.
fn unplugged(cluster: &Cluster) -> Vec<Check> {
    let mut rows = Vec::new();
    let mut told = BTreeSet::new();
    for (host, facts) in cluster.hosts.iter().enumerate() {
        for nic in cabled(facts).filter(|n| !n.is_up) {
            let Some(address) = nic.outer().next() else { continue };
            let at = format!("{} {}", cluster.name(host), nic.name);
            match partner(cluster, host, nic) {
                Some((far, end)) => {
                    if told.insert(Plug { host, nic: nic.name.clone() }) && told.insert(end.clone()) {
                        rows.push(Check::failed("cable", at, out(cluster, *address, &end, far)));
                    }
                }
                None => {
                    let said = format!(
                        "it has {address} and carries nothing; no other of these hosts is in that network, so nobody knows where its cable should lead"
                    );
                    rows.push(Check::not_tried("cable", at, said));
                }
            }
        }
    }
    rows
}

/// End to which the cable of an interface leads, by its addresses.
fn partner(cluster: &Cluster, host: usize, nic: &Nic) -> Option<(Subnet, Plug)> {
    let others = cluster.hosts.iter().enumerate().filter(|(other, _)| *other != host);
    let mut ends = others.flat_map(|(other, facts)| cabled(facts).map(move |n| (other, n)));
    ends.find_map(|(other, far)| {
        let fits = |y: &&Subnet| nic.outer().any(|x| x.network() == y.network() && x.ip != y.ip);
        let address = far.outer().find(fits)?;
        Some((*address, Plug { host: other, nic: far.name.clone() }))
    })
}

fn out(cluster: &Cluster, own: Subnet, end: &Plug, far: Subnet) -> String {
    format!(
        "it has {own} and carries nothing, so {} {} ({far}) is not reached over it: plug the cable in at both ends, and set both interfaces up (ip link set NAME up)",
        cluster.name(end.host),
        end.nic
    )
}

/// Interfaces of a host that carry packets to none of the others, and that gave themselves an address all the same. Only where the others were
/// heard over another interface.
fn dead_ends(cluster: &Cluster, host: usize) -> Option<Check> {
    let facts = cluster.hosts.get(host)?;
    let joined: BTreeSet<&str> = cluster.ends().filter(|e| e.host == host).map(|e| e.nic.as_str()).collect();
    let leads_nowhere = |n: &&Nic| {
        n.is_up && !n.addresses.is_empty() && n.outer().next().is_none() && !joined.contains(n.name.as_str())
    };
    let dead: Vec<&str> = cabled(facts).filter(leads_nowhere).map(|n| n.name.as_str()).collect();
    if joined.is_empty() || dead.is_empty() {
        return None;
    }
    let more = match dead.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    let names = dead.iter().take(MAX_NAMED).copied().collect::<Vec<_>>().join(", ");
    // One whose cable is out may be used again.
    let others = cabled(facts).filter(|n| n.outer().next().is_some() || joined.contains(n.name.as_str()));
    let used: BTreeSet<&str> = others.map(|n| n.name.as_str()).collect();
    let used = used.into_iter().collect::<Vec<_>>().join(",");
    let at = format!("{} {names}{more}", cluster.name(host));
    let said = format!(
        "they have only a link-local address and lead to none of these hosts: ranks try them last; COMITY_INTERFACES={used} there leaves them out"
    );
    Some(Check::not_tried("cable", at, said))
}

//! The file that `comity launch --hostfile` and `mlx.launch --hostfile` read.
//!
//! `ips` and `rdma` are MLX's: addresses towards the host before in the ring, and the devices that reach each host. What Comity's ranks
//! need beside is in `env`, which `mlx.launch` does not read: the interfaces that they may use.
use crate::addresses::AddressPlan;
use crate::graph::Cluster;
use crate::graph::{CableLayout, LayoutKind};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Carrier of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// Thunderbolt cables, by TCP.
    Thunderbolt,
    /// Ethernet.
    Ethernet,
    /// RDMA.
    Rdma,
}

/// A hostfile, and the backend that it names.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterFile {
    /// ring, jaccl or jaccl-ring.
    pub backend: &'static str,
    /// The whole file.
    pub json: Value,
}

impl ClusterFile {
    /// The file for these hosts in this layout.
    ///
    /// # Errors
    /// RDMA was asked for, and cannot be had on every link that it needs; or a host has no address.
    pub fn of(
        cluster: &Cluster,
        plan: &AddressPlan,
        layout: &CableLayout,
        over: Over,
    ) -> Result<Self, String> {
        let backend = match (over, layout.kind) {
            (Over::Rdma, LayoutKind::Mesh | LayoutKind::Switch) => "jaccl",
            (Over::Rdma, LayoutKind::Ring) => "jaccl-ring",
            (Over::Rdma, LayoutKind::Sparse) => return Err(sparse_rdma(cluster, layout)),
            _ => "ring",
        };
        let n = layout.order.len();
        let mut hosts = Vec::new();
        for (place, &host) in layout.order.iter().enumerate() {
            let before = layout.order[(place + n - 1) % n];
            let ips = ips(cluster, plan, layout, host, before, over)?;
            let rdma: Vec<Value> = match over {
                Over::Rdma => {
                    let cell = |(other_place, other): (usize, &usize)| {
                        let near = (place + 1) % n == other_place || (other_place + 1) % n == place;
                        let wanted = place != other_place && (backend == "jaccl" || near);
                        if wanted { devices(cluster, layout, host, *other) } else { Ok(Value::Null) }
                    };
                    layout.order.iter().enumerate().map(cell).collect::<Result<_, _>>()?
                }
                _ => Vec::new(),
            };
            let mut entry = json!({ "ssh": cluster.name(host), "ips": ips, "rdma": rdma });
            let nics = interfaces(cluster, layout, host, over);
            if !nics.is_empty() {
                // With the equals sign names are exact; `en1` alone would take `en10`, too.
                entry["env"] = json!({ "COMITY_INTERFACES": format!("={}", nics.join(",")) });
            }
            hosts.push(entry);
        }
        Ok(Self { backend, json: json!({ "backend": backend, "envs": [], "hosts": hosts }) })
    }

    /// The text of the file.
    pub fn text(&self) -> String {
        format!("{:#}\n", self.json)
    }
}

fn sparse_rdma(cluster: &Cluster, layout: &CableLayout) -> String {
    let (i, j) = layout.missing.first().copied().unwrap_or_default();
    format!(
        "RDMA needs a cable between each two hosts, or a ring through all: there is none between {} and {}; cable them, or use --over thunderbolt",
        cluster.name(i),
        cluster.name(j)
    )
}

/// The addresses of a host: in a ring those on the cables to the host before it.
fn ips(
    cluster: &Cluster,
    plan: &AddressPlan,
    layout: &CableLayout,
    host: usize,
    before: usize,
    over: Over,
) -> Result<Vec<IpAddr>, String> {
    let cables = plan.of_host(cluster, host);
    let mut found: Vec<IpAddr> = match layout.kind {
        LayoutKind::Switch => Vec::new(),
        // What meets by the first address of the first host is reached by all.
        _ if over == Over::Rdma => everyday(cluster, host).into_iter().collect(),
        LayoutKind::Mesh | LayoutKind::Ring => cables
            .filter(|(c, ..)| c.ends(host).1.host == before)
            .map(|(_, own, _)| own.ip)
            .take(layout.lanes.max(1))
            .collect(),
        LayoutKind::Sparse => cables.map(|(_, own, _)| own.ip).collect(),
    };
    if found.is_empty() {
        found.extend(everyday(cluster, host));
    }
    match found.is_empty() {
        false => Ok(found),
        true => Err(format!("host {} has no address that the others could use", cluster.name(host))),
    }
}

/// A host's address in the network that all share, else the one of its first interface that no cable has.
fn everyday(cluster: &Cluster, host: usize) -> Option<IpAddr> {
    let facts = cluster.hosts.get(host)?;
    if let Some(subnet) = cluster.common_network().and_then(|n| n.subnet) {
        let mut all = facts.nics.iter().flat_map(|n| &n.addresses);
        return all.find(|a| subnet.holds(a.ip)).map(|a| a.ip);
    }
    let cabled: BTreeSet<_> = cluster.cables_of(host).map(|(own, _)| own.nic.as_str()).collect();
    let free = facts.nics.iter().filter(|n| n.is_up && !n.is_inner && !cabled.contains(n.name.as_str()));
    let v4 = free.clone().flat_map(|n| n.v4()).next();
    let v6 = free.flat_map(|n| n.v6()).next();
    v4.or(v6).map(|a| a.ip)
}

/// The interfaces that Comity's ranks may use: those of cables, and where some pairs have none, that of the network of all.
fn interfaces(cluster: &Cluster, layout: &CableLayout, host: usize, over: Over) -> Vec<String> {
    let wanted = |c: &&crate::graph::Cable| {
        over != Over::Thunderbolt || c.kind == crate::graph::CableKind::Thunderbolt
    };
    let mut found: Vec<String> = Vec::new();
    if layout.kind != LayoutKind::Switch {
        let own = cluster.cables.iter().filter(wanted).flat_map(|c| [&c.a, &c.b]).filter(|e| e.host == host);
        found.extend(own.map(|e| e.nic.clone()));
    }
    if layout.kind != LayoutKind::Mesh
        && let Some(common) = cluster.common_network()
    {
        found.extend(common.ends.iter().filter(|e| e.host == host).map(|e| e.nic.clone()));
    }
    let mut seen = BTreeSet::new();
    found.into_iter().filter(|f| seen.insert(f.clone())).collect::<Vec<_>>()
}

/// The devices of `host` that reach `other`: one, or a list.
fn devices(cluster: &Cluster, layout: &CableLayout, host: usize, other: usize) -> Result<Value, String> {
    let facts = &cluster.hosts[host];
    let lacking = |why: &str| {
        Err(format!(
            "RDMA cannot go from {} to {}: {why}; `comity cluster find` lists what each host has",
            cluster.name(host),
            cluster.name(other)
        ))
    };
    if layout.kind == LayoutKind::Switch {
        let common = cluster.common_network().into_iter().flat_map(|n| &n.ends).filter(|e| e.host == host);
        let found: Vec<_> = common.filter_map(|e| facts.rdma_of(&e.nic)).map(|d| d.name.clone()).collect();
        return match found.first() {
            Some(name) => Ok(json!(name)),
            None => lacking("the interface in the network of all hosts has no active RDMA device"),
        };
    }
    let own = cluster.between(host, other).filter(|c| c.rdma).map(|c| &c.ends(host).0.nic);
    let names: Vec<_> = own.filter_map(|nic| facts.rdma_of(nic)).map(|d| d.name.clone()).collect();
    match names.as_slice() {
        [] => lacking(
            "no cable between them has an active RDMA device at both ends (on Macs that takes Thunderbolt 5)",
        ),
        [one] => Ok(json!(one)),
        _ if layout.lanes < 2 => Ok(json!(names[0])),
        many => Ok(json!(many[..many.len().min(layout.lanes)])),
    }
}

//! Hosts, the cables between two of them, and the networks of several: a mesh, a ring, or less.
//!
//! Three sources, the surest first: what Thunderbolt says is plugged into a Mac's port; beacons, by which the interfaces of the hosts
//! hear each other; subnets, where a host can do neither.
use crate::addresses::Subnet;
use crate::facts::{HostFacts, HostSystem, Nic, THUNDERBOLT_4, bits_in_words};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// An interface of a host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Plug {
    /// The host's place in [`Cluster::hosts`].
    pub host: usize,
    pub nic: String,
}

/// Beacon of an interface that another one heard.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HeardBeacon {
    pub at: Plug,
    pub from: Plug,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CableKind {
    Thunderbolt,
    /// Between other network interfaces.
    Ethernet,
}

/// A cable between two hosts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cable {
    /// Its end at the host that comes first.
    pub a: Plug,
    pub b: Plug,
    pub kind: CableKind,
    /// Bits a second: the slower end's.
    pub speed: Option<u64>,
    /// True if RDMA devices at both ends can use it.
    pub rdma: bool,
}

impl Cable {
    /// The end at this host, and the other one.
    pub(crate) fn ends(&self, host: usize) -> (&Plug, &Plug) {
        if self.a.host == host { (&self.a, &self.b) } else { (&self.b, &self.a) }
    }
}

/// Interfaces of three hosts or more that reach each other: a switch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Network {
    pub ends: Vec<Plug>,
    /// The subnet that its interfaces share, where they do.
    pub subnet: Option<Subnet>,
}

/// Hosts, cables and networks that were found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cluster {
    /// The hosts, in the order that the user gave them.
    pub hosts: Vec<HostFacts>,
    /// Every cable once.
    pub cables: Vec<Cable>,
    pub networks: Vec<Network>,
    /// Oddities, each with its remedy: about hosts and cables together.
    pub notes: Vec<String>,
}

impl Cluster {
    /// The interfaces of a host whose cables lead to a host that another cable leads to as well.
    pub fn doubled(&self, host: usize) -> Vec<&str> {
        let own = || self.cables_of(host);
        let is_double = |far: &Plug| own().filter(|(_, other)| other.host == far.host).count() > 1;
        own().filter(|(_, far)| is_double(far)).map(|(own, _)| own.nic.as_str()).collect()
    }

    /// The cables of a host: its end of each, and the other one.
    pub(crate) fn cables_of(&self, host: usize) -> impl Iterator<Item = (&Plug, &Plug)> {
        let own = self.cables.iter().filter(move |c| c.a.host == host || c.b.host == host);
        own.map(move |c| c.ends(host))
    }

    pub(crate) fn nic(&self, end: &Plug) -> Option<&Nic> {
        self.hosts.get(end.host)?.nic(&end.nic)
    }

    /// The picture of these hosts, of which some interfaces heard each other.
    pub fn of(hosts: Vec<HostFacts>, heard: &[HeardBeacon]) -> Self {
        let mut cluster = Self { hosts, ..Self::default() };
        cluster.by_thunderbolt();
        let is_known = |end: &Plug| cluster.nic(end).is_some();
        let heard: Vec<_> = heard.iter().filter(|h| is_known(&h.at) && is_known(&h.from)).collect();
        let pairs = heard.iter().map(|h| (h.at.clone(), h.from.clone())).collect();
        cluster.join(pairs, true);
        let spoke: BTreeSet<usize> = heard.iter().flat_map(|h| [h.at.host, h.from.host]).collect();
        cluster.by_subnets(&spoke);
        cluster.cables.sort_by(|x, y| (&x.a, &x.b).cmp(&(&y.a, &y.b)));
        cluster.notes.extend(cluster.named_twice());
        cluster.notes.extend(cluster.namesakes());
        cluster.notes.extend(cluster.slow());
        cluster.notes.extend(cluster.fours());
        cluster
    }

    /// Name of a host for people.
    pub fn name(&self, host: usize) -> &str {
        self.hosts.get(host).map_or("?", |h| h.ssh.as_str())
    }

    pub fn between(&self, i: usize, j: usize) -> impl Iterator<Item = &Cable> {
        self.cables.iter().filter(move |c| (c.a.host, c.b.host) == (i.min(j), i.max(j)))
    }

    /// The network that has all hosts in it, with a subnet that all share.
    pub fn common_network(&self) -> Option<&Network> {
        let all = |n: &&Network| {
            let hosts: BTreeSet<_> = n.ends.iter().map(|e| e.host).collect();
            hosts.len() == self.hosts.len() && n.subnet.is_some()
        };
        self.networks.iter().find(all)
    }

    fn by_thunderbolt(&mut self) {
        let mut owners = BTreeMap::new();
        for (host, facts) in self.hosts.iter().enumerate() {
            for port in &facts.thunderbolt {
                owners.insert(port.domain.clone(), Plug { host, nic: port.nic.clone() });
            }
        }
        let mut pairs = Vec::new();
        for (host, facts) in self.hosts.iter().enumerate() {
            for port in &facts.thunderbolt {
                // The nearest that is a host of ours; displays and docks have domains of their own.
                let peer = port.peers.iter().find_map(|p| owners.get(p)).filter(|e| e.host != host);
                pairs.extend(peer.map(|peer| (Plug { host, nic: port.nic.clone() }, peer.clone())));
            }
        }
        for (x, y) in pairs {
            let (a, b) = if x < y { (x, y) } else { (y, x) };
            if !self.cables.iter().any(|c| c.a == a && c.b == b) {
                self.add(a, b, CableKind::Thunderbolt);
            }
        }
    }

    fn add(&mut self, a: Plug, b: Plug, kind: CableKind) {
        let port = |e: &Plug| self.hosts.get(e.host)?.thunderbolt.iter().find(|p| p.nic == e.nic)?.speed;
        let speed = |e: &Plug| port(e).or_else(|| self.nic(e)?.speed);
        let both = [speed(&a), speed(&b)];
        let rdma =
            [&a, &b].iter().all(|e| self.hosts.get(e.host).is_some_and(|h| h.rdma_of(&e.nic).is_some()));
        let speed = both.iter().flatten().min().copied();
        self.cables.push(Cable { a, b, kind, speed, rdma });
    }

    /// The ends of all cables and networks.
    pub(crate) fn ends(&self) -> impl Iterator<Item = &Plug> {
        let cables = self.cables.iter().flat_map(|c| [&c.a, &c.b]);
        cables.chain(self.networks.iter().flat_map(|n| &n.ends))
    }

    fn is_taken(&self, end: &Plug) -> bool {
        self.ends().any(|e| e == end)
    }

    /// Ends that reach each other, in any number of steps, are a cable or a network. Of those that `heard` each other that is sure.
    fn join(&mut self, pairs: Vec<(Plug, Plug)>, heard: bool) {
        let mut groups: Vec<BTreeSet<Plug>> = Vec::new();
        for (x, y) in pairs {
            if self.is_taken(&x) || self.is_taken(&y) || x.host == y.host {
                continue;
            }
            let (with, without): (Vec<_>, Vec<_>) =
                groups.into_iter().partition(|g| g.contains(&x) || g.contains(&y));
            let mut joined: BTreeSet<Plug> = with.into_iter().flatten().collect();
            joined.extend([x, y]);
            groups = without;
            groups.push(joined);
        }
        groups.sort();
        for group in groups {
            let ends: Vec<_> = group.into_iter().collect();
            let subnet = self.shared_subnet(&ends);
            // Two in a larger network may have a switch, and others, between them.
            let is_cable = heard || subnet.is_some_and(|s| s.prefix >= 30 && s.ip.is_ipv4());
            match ends.as_slice() {
                [a, b] if is_cable => {
                    let thunderbolt = [a, b].iter().all(|e| e.nic.starts_with("thunderbolt"));
                    let kind = if thunderbolt { CableKind::Thunderbolt } else { CableKind::Ethernet };
                    self.add(a.clone(), b.clone(), kind);
                }
                _ => self.networks.push(Network { ends, subnet }),
            }
        }
    }

    /// A network that has an address of each of these.
    fn shared_subnet(&self, ends: &[Plug]) -> Option<Subnet> {
        let nets = |e: &Plug| -> BTreeSet<Subnet> {
            self.nic(e).into_iter().flat_map(Nic::outer).map(Subnet::network).collect()
        };
        let mut all = ends.iter().map(nets);
        let first = all.next()?;
        let common = all.fold(first, |x, y| x.intersection(&y).copied().collect());
        common.into_iter().min_by_key(|s| (s.ip.is_ipv6(), *s))
    }

    /// Interfaces that nothing else is known of: by the subnets that they share. Hosts that `spoke` have told by beacons where they are.
    fn by_subnets(&mut self, spoke: &BTreeSet<usize>) {
        let mut nets = BTreeMap::<Subnet, Vec<Plug>>::new();
        for (host, facts) in self.hosts.iter().enumerate() {
            for nic in facts.nics.iter().filter(|n| n.is_up && !n.is_inner) {
                let end = Plug { host, nic: nic.name.clone() };
                let shared = nic.outer().filter(|a| a.prefix < 31 + 96 * u8::from(a.ip.is_ipv6()));
                for subnet in shared.map(Subnet::network) {
                    nets.entry(subnet).or_default().push(end.clone());
                }
            }
        }
        for ends in nets.values() {
            self.widen(ends, spoke);
        }
        let mut pairs = Vec::new();
        for mut ends in nets.into_values() {
            ends.retain(|e| !self.is_taken(e));
            pairs.extend(ends.windows(2).map(|w| (w[0].clone(), w[1].clone())));
        }
        self.join(pairs, false);
    }

    /// Ends in one subnet. Where some heard each other and a host among them can say nothing, it is on their switch: what looked like a cable
    /// between two is a network of all.
    fn widen(&mut self, ends: &[Plug], spoke: &BTreeSet<usize>) {
        let mute: Vec<_> =
            ends.iter().filter(|e| !spoke.contains(&e.host) && !self.is_taken(e)).cloned().collect();
        if mute.is_empty() {
            return;
        }
        let mut all: BTreeSet<Plug> = BTreeSet::new();
        self.cables.retain(|c| {
            let both = [&c.a, &c.b];
            // Thunderbolt has no switches.
            let is_in = c.kind != CableKind::Thunderbolt && both.iter().all(|e| ends.contains(e));
            all.extend(both.into_iter().filter(|_| is_in).cloned());
            !is_in
        });
        self.networks.retain(|n| {
            let is_in = n.ends.iter().all(|e| ends.contains(e));
            all.extend(n.ends.iter().filter(|_| is_in).cloned());
            !is_in
        });
        if all.is_empty() {
            return;
        }
        all.extend(mute);
        let ends: Vec<_> = all.into_iter().collect();
        let subnet = self.shared_subnet(&ends);
        self.networks.push(Network { ends, subnet });
    }

    /// Every two of the hosts, and whether they are one.
    fn host_pairs(&self) -> impl Iterator<Item = (&HostFacts, &HostFacts, bool)> {
        let before = |(j, y)| self.hosts.iter().take(j).map(move |x: &HostFacts| (x, y));
        let all = self.hosts.iter().enumerate().flat_map(before);
        all.map(|(x, y)| (x, y, x.identity == y.identity && !x.identity.trim().is_empty()))
    }

    /// Notes on hosts that were named twice.
    pub fn named_twice(&self) -> Vec<String> {
        let twice = self.host_pairs().filter(|(_, _, is_one)| *is_one);
        twice.map(|(x, y, _)| format!("{} and {} are one host: name it once", x.ssh, y.ssh)).collect()
    }

    pub(crate) fn namesakes(&self) -> Vec<String> {
        let alike = |x: &HostFacts, y: &HostFacts| x.hostname == y.hostname && !x.hostname.is_empty();
        let pairs = self.host_pairs().filter(|(x, y, is_one)| !is_one && alike(x, y));
        let note = |(x, y, _): (&HostFacts, &HostFacts, bool)| {
            let mend = match y.system {
                HostSystem::Macos => "sudo scutil --set HostName NAME",
                _ => "sudo hostnamectl hostname NAME",
            };
            format!(
                "{} and {} both call themselves {:?}: give one another name ({mend}), else ranks and logs cannot tell them apart",
                x.ssh, y.ssh, x.hostname
            )
        };
        pairs.map(note).collect()
    }

    /// Cables that negotiated far less than others of their kind.
    pub(crate) fn slow(&self) -> Vec<String> {
        let best = |kind| self.cables.iter().filter(|c| c.kind == kind).filter_map(|c| c.speed).max();
        let of = |c: &Cable| {
            let speed = c.speed?;
            let best = best(c.kind)?;
            // Thunderbolt 4 among 5 is half as fast, and no fault.
            (speed.saturating_mul(4) < best).then(|| {
                format!(
                    "the cable {} negotiated {}, others {}: plug it in anew, or replace it",
                    self.cable_in_words(c),
                    bits_in_words(speed),
                    bits_in_words(best)
                )
            })
        };
        self.cables.iter().filter_map(of).collect()
    }

    /// Thunderbolt 4 among 5: said once for each host, since RDMA can never work there.
    fn fours(&self) -> Vec<String> {
        let all = || self.cables.iter().filter(|c| c.kind == CableKind::Thunderbolt);
        let has_five = all().any(|c| c.speed > Some(THUNDERBOLT_4));
        let of = |c: &Cable| {
            let speed = c.speed.filter(|s| has_five && *s <= THUNDERBOLT_4)?;
            Some(format!(
                "the cable {} runs at {}, as Thunderbolt 4 does: it carries TCP, and RDMA never",
                self.cable_in_words(c),
                bits_in_words(speed)
            ))
        };
        all().filter_map(of).collect()
    }

    /// "a en3 - b en5".
    pub fn cable_in_words(&self, c: &Cable) -> String {
        format!("{} {} - {} {}", self.name(c.a.host), c.a.nic, self.name(c.b.host), c.b.nic)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LayoutKind {
    /// All share one network.
    Switch,
    /// A cable between each two.
    Mesh,
    /// A cable from each to the next.
    Ring,
    /// Each can be reached, through others.
    Sparse,
}

/// The hosts in an order, and what joins them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CableLayout {
    pub kind: LayoutKind,
    /// Places in [`Cluster::hosts`], in the order of ranks; neighbours in a ring.
    pub order: Vec<usize>,
    /// Parallel cables between neighbours, at least.
    pub lanes: usize,
    /// Pairs without a cable, where a mesh lacks them.
    pub missing: Vec<(usize, usize)>,
}

/// Steps of the search for a ring; a cluster of 12 takes far fewer.
const STEPS: usize = 200_000;

/// The layout of these cables; or the sentence that says who is apart. With `switch` a network of all hosts counts.
///
/// # Errors
/// Hosts that no cable joins to the others are named.
pub fn layout(cluster: &Cluster, switch: bool) -> Result<CableLayout, String> {
    let n = cluster.hosts.len();
    let order: Vec<usize> = (0..n).collect();
    if switch && (n == 1 || cluster.common_network().is_some()) {
        return Ok(CableLayout { kind: LayoutKind::Switch, order, lanes: 1, missing: Vec::new() });
    }
    let count = |i: usize, j: usize| cluster.between(i, j).count();
    let pairs = || (0..n).flat_map(|i| (i + 1..n).map(move |j| (i, j)));
    let missing: Vec<_> = pairs().filter(|(i, j)| count(*i, *j) == 0).collect();
    if missing.is_empty() {
        let lanes = pairs().map(|(i, j)| count(i, j)).min().unwrap_or(1);
        let order = ring(n, &count).map_or(order, |(order, _)| order);
        return Ok(CableLayout { kind: LayoutKind::Mesh, order, lanes, missing });
    }
    apart(cluster, n, switch)?;
    Ok(match ring(n, &count) {
        Some((order, lanes)) => CableLayout { kind: LayoutKind::Ring, order, lanes, missing },
        None => CableLayout { kind: LayoutKind::Sparse, order, lanes: 0, missing },
    })
}

/// Hosts that the first one cannot reach.
fn apart(cluster: &Cluster, n: usize, switch: bool) -> Result<(), String> {
    let mut seen = BTreeSet::from([0]);
    let mut next = vec![0];
    while let Some(i) = next.pop() {
        let networks = cluster.networks.iter().filter(|w| switch && w.ends.iter().any(|e| e.host == i));
        let together: BTreeSet<_> = networks.flat_map(|w| &w.ends).map(|e| e.host).collect();
        for j in (0..n).filter(|j| cluster.between(i, *j).next().is_some() || together.contains(j)) {
            if seen.insert(j) {
                next.push(j);
            }
        }
    }
    let lone: Vec<_> = (0..n).filter(|i| !seen.contains(i)).map(|i| cluster.name(i)).collect();
    let there: Vec<_> = seen.iter().map(|i| cluster.name(*i)).collect();
    match lone.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "no cable joins {} to {}: plug one in, or leave hosts out of --hosts",
            lone.join(", "),
            there.join(", ")
        )),
    }
}

/// The ring through all with the most parallel cables, and how many it has; the first host first.
fn ring(n: usize, count: &dyn Fn(usize, usize) -> usize) -> Option<(Vec<usize>, usize)> {
    if n < 2 {
        return None;
    }
    let wide = (0..n)
        .flat_map(|i| (0..n).map(move |j| (i, j)))
        .filter(|(i, j)| i != j)
        .map(|(i, j)| count(i, j))
        .max()?;
    (1..=wide).rev().find_map(|lanes| {
        let near = |i: usize, j: usize| count(i, j) >= lanes;
        let mut steps = STEPS;
        let mut path = vec![0];
        walk(n, &near, &mut path, &mut steps).then_some((path, lanes))
    })
}

fn walk(n: usize, near: &dyn Fn(usize, usize) -> bool, path: &mut Vec<usize>, steps: &mut usize) -> bool {
    let last = path.last().copied().unwrap_or_default();
    if path.len() == n {
        return near(last, 0);
    }
    for next in 1..n {
        if *steps == 0 {
            return false;
        }
        *steps -= 1;
        if near(last, next) && !path.contains(&next) {
            path.push(next);
            if walk(n, near, path, steps) {
                return true;
            }
            path.pop();
        }
    }
    false
}

//! The ways between hosts, measured: each agent listens, each other connects, one after another.
use crate::cluster::HostTeam;
use crate::cluster::agent::AgentOrder;
use comity_cluster::checks::{Check, DialResult, LinkMeasure, Place};
use comity_cluster::facts::Nic;
use comity_cluster::graph::{Cluster, Plug};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// Time for which a cable is filled, each way, in ms.
const FILL_MS: u64 = 120;
/// The same of one that seemed slow: something else may have used it.
const FILL_AGAIN_MS: u64 = 500;
const TRIES: usize = 5;
/// Bytes of a datagram beside its content: the headers of IP and UDP.
const HEADERS_V4: usize = 28;
const HEADERS_V6: usize = 48;
const SMALL: usize = 64;
/// The largest content of a datagram.
const LARGEST: usize = 65_507;

/// Measures every way. Ports that could not be opened are told in `checks`.
pub(super) fn links_of(
    team: &mut HostTeam,
    cluster: &Cluster,
    range: Option<(u16, u16)>,
    checks: &mut Vec<Check>,
) -> Vec<LinkMeasure> {
    // Without it strangers could answer a measurement, which would only make it wrong.
    let token = crate::here::token().unwrap_or_default();
    let ports = serve(team, cluster, &token, range, checks);
    let mut all = Vec::new();
    for (x, y) in &pairs(cluster) {
        for (from, to) in [(x, y), (y, x)] {
            let Some(port) = ports.get(&(to.end.host, to.address.ip)) else { continue };
            all.extend(dial(team, &token, (from, to), *port, FILL_MS));
        }
    }
    again(team, cluster, &token, &mut all);
    // What arrived, of what was not answered.
    let arrived = team.ask_all::<Vec<(IpAddr, usize)>>(|_, _| AgentOrder::Arrived);
    for (host, answer) in arrived.into_iter().enumerate() {
        for (ip, size) in answer.and_then(Result::ok).unwrap_or_default() {
            let there = |m: &&mut LinkMeasure| m.to.end.host == host && m.from.address.ip == ip;
            all.iter_mut().filter(there).for_each(|m| m.arrived.push(size));
        }
    }
    all
}

/// Measures again each way that seemed slow; the best counts.
fn again(team: &mut HostTeam, cluster: &Cluster, token: &str, all: &mut [LinkMeasure]) {
    for _ in 0..TRIES {
        let doubtful: Vec<usize> = (0..all.len()).filter(|i| all[*i].is_doubtful(cluster, all)).collect();
        for i in doubtful {
            let m = &mut all[i];
            if let Some(new) = dial(team, token, (&m.from, &m.to), m.port, FILL_AGAIN_MS) {
                let old = &mut m.result;
                old.bits = [old.bits, new.result.bits].into_iter().flatten().reduce(f64::max);
                old.round_us = [old.round_us, new.result.round_us].into_iter().flatten().reduce(f64::min);
            }
        }
    }
}

/// Has every agent listen at its addresses.
fn serve(
    team: &mut HostTeam,
    cluster: &Cluster,
    token: &str,
    range: Option<(u16, u16)>,
    checks: &mut Vec<Check>,
) -> BTreeMap<(usize, IpAddr), u16> {
    let answers = team.ask_all::<Vec<(IpAddr, Result<u16, String>)>>(|host, _| {
        let ips = places(cluster, host).map(|p| p.address.ip).collect();
        AgentOrder::Serve { token: token.into(), ips, range }
    });
    let mut ports = BTreeMap::new();
    for (host, answer) in answers.into_iter().enumerate() {
        let name = cluster.name(host);
        let list = match answer {
            Some(Ok(list)) => list,
            Some(Err(e)) => {
                checks.push(Check::failed("port", name, e));
                continue;
            }
            None => {
                let why = "there is no agent of comity on it, see ssh and version";
                checks.push(Check::not_tried("port", name, why));
                continue;
            }
        };
        for (ip, port) in list {
            match port {
                Ok(port) => drop(ports.insert((host, ip), port)),
                Err(e) => {
                    let why =
                        format!("nothing can listen at {ip}: {e}; give other ports (--ports, COMITY_PORTS)");
                    checks.push(Check::failed("port", name, why));
                }
            }
        }
    }
    ports
}

fn dial(
    team: &mut HostTeam,
    token: &str,
    (from, to): (&Place, &Place),
    port: u16,
    millis: u64,
) -> Option<LinkMeasure> {
    let (_, member) = team.there().find(|(i, m)| *i == from.end.host && m.agent.is_ok())?;
    let headers = if to.address.ip.is_ipv4() { HEADERS_V4 } else { HEADERS_V6 };
    let mtu = member.facts.nic(&from.end.nic).map_or(0, |n| n.mtu);
    let large = usize::try_from(mtu).unwrap_or(0).saturating_sub(headers).clamp(SMALL, LARGEST);
    let sizes = if large > SMALL { vec![SMALL, large] } else { vec![SMALL] };
    let order = AgentOrder::Dial {
        token: token.into(),
        to: SocketAddr::new(to.address.ip, port),
        from: from.address.ip,
        sizes: sizes.clone(),
        millis,
    };
    let failed = |e| DialResult { failed: Some(e), ..DialResult::default() };
    let result = member.ask(&order).unwrap_or_else(failed);
    Some(LinkMeasure { from: from.clone(), to: to.clone(), port, sizes, arrived: Vec::new(), result })
}

/// The addresses of a host at which others may reach it.
fn places(cluster: &Cluster, host: usize) -> impl Iterator<Item = Place> + '_ {
    let nics =
        cluster.hosts.get(host).into_iter().flat_map(|h| &h.nics).filter(|n: &&Nic| n.is_up && !n.is_inner);
    nics.flat_map(move |nic| {
        let end = Plug { host, nic: nic.name.clone() };
        nic.outer().map(move |a| Place { end: end.clone(), address: *a })
    })
}

/// Each two addresses of two hosts in one network; of hosts that share none, the first of each.
fn pairs(cluster: &Cluster) -> Vec<(Place, Place)> {
    let mut all = Vec::new();
    for i in 0..cluster.hosts.len() {
        for j in i + 1..cluster.hosts.len() {
            let before = all.len();
            for x in places(cluster, i) {
                let near =
                    |y: &Place| y.address.network() == x.address.network() && y.address.ip != x.address.ip;
                all.extend(places(cluster, j).filter(near).map(|y| (x.clone(), y)));
            }
            if all.len() == before
                && let (Some(x), Some(y)) = (places(cluster, i).next(), places(cluster, j).next())
                && x.address.ip.is_ipv4() == y.address.ip.is_ipv4()
            {
                all.push((x, y));
            }
        }
    }
    all
}

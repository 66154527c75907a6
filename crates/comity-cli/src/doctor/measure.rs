//! The ways between hosts, measured: each agent listens, each other connects, one after another.
use crate::cluster::agent::{AgentOrder, DialResult};
use crate::cluster::{HostTeam, answer_limit, token};
use comity_cluster::checks::{Check, LinkMeasure};
use comity_cluster::facts::Nic;
use comity_cluster::graph::{Cluster, Plug};
use comity_cluster::subnet::Subnet;
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

/// An end and its address.
#[derive(Clone, Debug)]
struct Place {
    end: Plug,
    address: Subnet,
    mtu: u64,
}

/// Measures every way. Ports that could not be opened are told in `checks`.
pub(super) fn links_of(
    team: &mut HostTeam,
    cluster: &Cluster,
    range: Option<(u16, u16)>,
    checks: &mut Vec<Check>,
) -> Vec<LinkMeasure> {
    let token = token();
    let pairs = pairs(cluster);
    let ports = serve(team, cluster, &token, range, checks);
    let mut all = Vec::new();
    for (x, y, shares) in &pairs {
        for (from, to) in [(x, y), (y, x)] {
            let Some(port) = ports.get(&(to.end.host, to.address.ip)) else { continue };
            let measure = dial(team, &token, (from, to), *port, FILL_MS);
            all.extend(measure.map(|m| LinkMeasure { shares_network: *shares, ..m }));
        }
    }
    again(team, cluster, &token, &pairs, &mut all);
    // What arrived, of what was not answered.
    let arrived = team.ask_all(answer_limit(), |_, m| m.agent.is_ok().then_some(AgentOrder::Arrived));
    for (host, answer) in arrived.into_iter().enumerate() {
        let list =
            answer.and_then(Result::ok).and_then(|v| serde_json::from_value::<Vec<(IpAddr, usize)>>(v).ok());
        for (ip, size) in list.unwrap_or_default() {
            let there =
                |m: &&mut LinkMeasure| m.to.as_ref().is_some_and(|e| e.host == host) && m.from_ip == Some(ip);
            all.iter_mut().filter(there).for_each(|m| m.arrived.push(size));
        }
    }
    all
}

/// Measures again each way that seemed slow; the best counts.
fn again(
    team: &mut HostTeam,
    cluster: &Cluster,
    token: &str,
    pairs: &[(Place, Place, bool)],
    all: &mut [LinkMeasure],
) {
    for _ in 0..TRIES {
        let doubtful: Vec<usize> = (0..all.len()).filter(|i| all[*i].is_doubtful(cluster, all)).collect();
        for i in doubtful {
            let is =
                |p: &Place, end: &Option<Plug>, ip| Some(&p.end) == end.as_ref() && Some(p.address.ip) == ip;
            let m = &all[i];
            let both = pairs.iter().flat_map(|(x, y, _)| [(x, y), (y, x)]);
            let found = { both }.find(|(f, t)| is(f, &m.from, m.from_ip) && is(t, &m.to, m.to_ip));
            let Some(pair) = found else { continue };
            if let Some(new) = dial(team, token, pair, all[i].port, FILL_AGAIN_MS) {
                all[i].bits = [all[i].bits, new.bits].into_iter().flatten().reduce(f64::max);
                all[i].round_us = [all[i].round_us, new.round_us].into_iter().flatten().reduce(f64::min);
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
    let answers = team.ask_all(answer_limit(), |host, member| {
        let ips = places(cluster, host).map(|p| p.address.ip).collect();
        member.agent.is_ok().then(|| AgentOrder::Serve { token: token.into(), ips, range })
    });
    let mut ports = BTreeMap::new();
    for (host, answer) in answers.into_iter().enumerate() {
        let name = cluster.name(host);
        let answer = match answer {
            Some(Ok(answer)) => answer,
            Some(Err(e)) => {
                checks.push(Check::failed("port", name, e));
                continue;
            }
            None => {
                checks.push(Check::not_tried(
                    "port",
                    name,
                    "there is no agent of comity on it, see ssh and version",
                ));
                continue;
            }
        };
        let list: Vec<(IpAddr, Result<u16, String>)> = serde_json::from_value(answer).unwrap_or_default();
        for (ip, port) in list {
            match port {
                Ok(port) => drop(ports.insert((host, ip), port)),
                Err(e) => checks.push(Check::failed(
                    "port",
                    name,
                    format!("nothing can listen at {ip}: {e}; give other ports (--ports, COMITY_PORTS)"),
                )),
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
    let large = usize::try_from(from.mtu).unwrap_or(0).saturating_sub(headers).clamp(SMALL, LARGEST);
    let sizes = if large > SMALL { vec![SMALL, large] } else { vec![SMALL] };
    let target = SocketAddr::new(to.address.ip, port);
    let order = AgentOrder::Dial {
        token: token.into(),
        to: target,
        from: Some(from.address.ip),
        sizes: sizes.clone(),
        millis,
    };
    let result: DialResult = match member.told(&order, answer_limit()) {
        Ok(result) => result,
        Err(e) => DialResult { failed: Some(e), ..DialResult::default() },
    };
    Some(LinkMeasure {
        from: Some(from.end.clone()),
        to: Some(to.end.clone()),
        from_ip: Some(from.address.ip),
        to_ip: Some(to.address.ip),
        port,
        shares_network: true,
        failed: result.failed,
        round_us: result.round_us,
        bits: result.bits,
        sizes,
        echoed: result.echoed,
        arrived: Vec::new(),
        datagrams: result.datagrams,
    })
}

/// The addresses of a host at which others may reach it.
fn places(cluster: &Cluster, host: usize) -> impl Iterator<Item = Place> + '_ {
    let nics =
        cluster.hosts.get(host).into_iter().flat_map(|h| &h.nics).filter(|n: &&Nic| n.is_up && !n.is_inner);
    nics.flat_map(move |nic| {
        let own = nic.addresses.iter().filter(|a| !a.is_link_local());
        let end = Plug { host, nic: nic.name.clone() };
        own.map(move |a| Place { end: end.clone(), address: *a, mtu: nic.mtu })
    })
}

/// Each two addresses of two hosts in one network; of hosts that share none, the first of each.
fn pairs(cluster: &Cluster) -> Vec<(Place, Place, bool)> {
    let mut all = Vec::new();
    for i in 0..cluster.hosts.len() {
        for j in i + 1..cluster.hosts.len() {
            let before = all.len();
            for x in places(cluster, i) {
                let near =
                    |y: &Place| y.address.network() == x.address.network() && y.address.ip != x.address.ip;
                all.extend(places(cluster, j).filter(near).map(|y| (x.clone(), y, true)));
            }
            if all.len() == before
                && let (Some(x), Some(y)) = (places(cluster, i).next(), places(cluster, j).next())
                && x.address.ip.is_ipv4() == y.address.ip.is_ipv4()
            {
                all.push((x, y, false));
            }
        }
    }
    all
}

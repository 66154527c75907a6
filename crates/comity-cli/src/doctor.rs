//! `comity doctor`: what is wrong with some hosts and the cables between them, and what mends it.
use crate::cluster::agent::{AgentOrder, PairAnswer, now};
use crate::cluster::{HostTeam, Member, ReachArgs, beacons};
use crate::say::{Exit, FAULTY, say};
use comity_cluster::checks::{
    Check, CheckVerdict, DialResult, LinkMeasure, Place, cables, clock, hosts, idle, links, paths, table,
};
use comity_cluster::facts::Nic;
use comity_cluster::graph::{Cluster, Plug};
use comity_launch::fleet::{FleetHost, SshOptions};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Instant;

/// Readings of a clock; the one with the shortest way there and back counts.
const READINGS: usize = 5;

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

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Without hosts it looks at this machine alone. It changes nothing on any host; while it measures, cables are busy.
Exit code: 0; 1 when something is not as it should be, 2 for bad arguments.")]
pub(crate) struct DoctorArgs {
    /// A hostfile, as `comity launch` takes it, or the hosts: a,b
    #[arg(value_name = "HOSTFILE", conflicts_with_all = ["hosts", "hostfile"])]
    file: Option<PathBuf>,

    #[command(flatten)]
    reach: ReachArgs,

    /// Try these ports, as COMITY_PORTS gives them to ranks: 7100-7107; default: free ones
    #[arg(long, value_name = "RANGE", value_parser = comity_launch::address::ports)]
    ports: Option<(u16, u16)>,

    /// Compare the job key in this file on all hosts; default: COMITY_KEY_FILE, where this machine has it
    #[arg(long, value_name = "FILE")]
    key: Option<String>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn doctor(mut args: DoctorArgs) -> Exit {
    if let Some(file) = args.file.take() {
        match file.to_str().filter(|word| word.contains(',') && !file.is_file()) {
            Some(list) => args.reach.hosts = Some(list.into()),
            None => args.reach.hostfile = Some(file),
        }
    }
    let named = args.reach.named()?;
    let hosts = if named.is_empty() { FleetHost::named("localhost").into_iter().collect() } else { named };
    let checks = examine(&hosts, &args.reach.ssh.options(), &args);
    let failed = checks.iter().filter(|c| c.verdict == CheckVerdict::Failed).count();
    let text = match args.json {
        true => format!("{:#}\n", json!({ "checks": checks, "failed": failed })),
        false => table(&checks),
    };
    say(text, if failed == 0 { 0 } else { FAULTY })
}

fn examine(named: &[FleetHost], way: &SshOptions, args: &DoctorArgs) -> Vec<Check> {
    let mut team = HostTeam::gather(named, way);
    let mut checks = Vec::new();
    for (host, member) in named.iter().zip(&team.0) {
        let problem = member.as_ref().err().map(|e| {
            let plain = e.strip_prefix(&format!("host {}: ", host.name));
            plain.unwrap_or(e).to_owned()
        });
        checks.push(Check::unless("ssh", &host.name, problem));
    }
    let mut notes = Vec::new();
    let heard = if team.0.len() > 1 { beacons(&mut team, &mut notes) } else { Vec::new() };
    // The places of a team are those of its hosts: one that is absent has no interface.
    let facts = team.0.iter().zip(named).map(|(m, host)| match m {
        Ok(m) => m.facts.clone(),
        Err(_) => comity_cluster::facts::HostFacts { ssh: host.name.clone(), ..Default::default() },
    });
    let cluster = Cluster::of(facts.collect(), &heard);
    checks.extend(of_hosts(&mut team, &cluster, named));
    checks.extend(clocks(&mut team));
    checks.extend(pairs_of_answers(&mut team, args));
    checks.extend(cables(&cluster));
    checks.extend(idle(&cluster));
    checks.extend(paths(&cluster));
    notes.iter().for_each(|n| checks.push(Check::not_tried("cable", "beacons", n)));
    if team.0.len() < 2 {
        for check in ["cable", "route", "port", "mtu", "speed"] {
            checks.push(Check::not_tried(check, "other hosts", "none were named: --hosts a,b or a hostfile"));
        }
    } else {
        let measured = links_of(&mut team, &cluster, args.ports, &mut checks);
        checks.extend(links(&cluster, &measured));
    }
    checks
}

/// Checks on the facts of each host that answered.
fn of_hosts(team: &mut HostTeam, cluster: &Cluster, named: &[FleetHost]) -> Vec<Check> {
    let listed = |ssh: &str| -> Vec<IpAddr> {
        // An address by which ssh reaches a host may be another's, which passes on.
        let is_address = ssh.rsplit('@').next().is_some_and(|n| n.parse::<IpAddr>().is_ok());
        let host = named.iter().find(|h| h.name == ssh && !is_address);
        host.map(|h| h.ips.clone()).unwrap_or_default()
    };
    let there: Vec<String> = team.there().map(|(_, m)| m.host.name.clone()).collect();
    let mut present = cluster.clone();
    present.hosts.retain(|h| there.contains(&h.ssh));
    hosts(&present, crate::here::VERSION, &listed)
}

fn clocks(team: &mut HostTeam) -> Vec<Check> {
    let one = |(_, member): (usize, &mut Member)| {
        let at = member.host.name.clone();
        let mut best: Option<(f64, f64)> = None;
        for _ in 0..READINGS {
            let begun = Instant::now();
            let before = now();
            let Ok(answer) = member.ask::<Value>(&AgentOrder::Clock) else { break };
            let unsure = begun.elapsed().as_secs_f64() / 2.0;
            let Some(theirs) = answer.get("unix_us").and_then(Value::as_u64) else { break };
            let ahead = theirs as f64 / 1e6 - (before as f64 / 1e6 + unsure);
            if best.is_none_or(|(_, u)| unsure < u) {
                best = Some((ahead, unsure));
            }
        }
        match best {
            Some((ahead, unsure)) => clock(&at, ahead, unsure),
            None => Check::not_tried("clock", at, "no agent answers there"),
        }
    };
    team.there().map(one).collect()
}

/// Checks whether memory can be read, and which job key there is.
fn pairs_of_answers(team: &mut HostTeam, args: &DoctorArgs) -> Vec<Check> {
    let mut checks = Vec::new();
    for (_, member) in team.there() {
        let at = member.host.name.clone();
        checks.push(match member.ask::<PairAnswer>(&AgentOrder::Peek) {
            Ok(answer) if answer.is_ok => Check::passed("ptrace", at, ""),
            Ok(answer) => Check::failed("ptrace", at, no_ptrace(&answer.said, member.facts.limits.yama)),
            Err(_) => Check::not_tried("ptrace", at, "no agent answers there"),
        });
    }
    let own = args.key.clone().or_else(|| std::env::var("COMITY_KEY_FILE").ok());
    let nonce = crate::here::token().unwrap_or_default();
    let places: Vec<String> = team.there().map(|(_, m)| m.host.name.clone()).collect();
    let Some(file) = own else {
        let why = "no --key FILE was given; `comity launch` makes a key for each job";
        checks.push(Check::not_tried("key", places.join(", "), why));
        return checks;
    };
    // This machine's, or that of the first host that has one.
    let own = crate::cluster::agent::proof_of_key(Some(&file), &nonce);
    let is_here = std::path::Path::new(&file).exists();
    if let Err(e) = &own {
        let mend = if is_here { String::new() } else { format!("; make one with `comity key new {file}`") };
        let why = format!("{e}{mend}; so the hosts' are compared with each other");
        checks.push(Check::not_tried("key", "this machine", why));
    }
    let mut wanted = own.ok();
    for (_, member) in team.there() {
        let at = member.host.name.clone();
        let order = AgentOrder::Key { file: Some(file.clone()), nonce: nonce.clone() };
        let answer = member.ask::<PairAnswer>(&order);
        checks.push(match answer {
            // The sentence has the remedy: the key is there, and its rights, its owner or its content are wrong.
            Ok(answer) if !answer.is_ok && answer.is_there => Check::failed("key", &at, answer.said),
            Ok(answer) if !answer.is_ok => {
                Check::failed("key", &at, no_key(&answer.said, &at, &file, is_here))
            }
            Ok(answer) => {
                let same = *wanted.get_or_insert_with(|| answer.said.clone()) == answer.said;
                let said = (!same).then(|| {
                    format!("{file} there is another key: bring this machine's there with `comity key copy {at} --file {file}`")
                });
                Check::unless("key", at, said)
            }
            Err(_) => Check::not_tried("key", at, "no agent answers there"),
        });
    }
    checks
}

/// Remedy for a key that a host does not have.
fn no_key(said: &str, at: &str, file: &str, is_here: bool) -> String {
    match is_here {
        true => format!("{said}: bring it there with `comity key copy {at} --file {file}`"),
        false => format!(
            "{said}: make one on this machine with `comity key new {file}`, and bring it there with `comity key copy {at} --file {file}`"
        ),
    }
}

fn no_ptrace(said: &str, yama: Option<u64>) -> String {
    let mend = match yama {
        Some(1) => "sudo sysctl kernel.yama.ptrace_scope=0, or for Comity alone COMITY_PTRACER=ancestor",
        Some(n) if n > 0 => "sudo sysctl kernel.yama.ptrace_scope=0",
        _ => "start the container with --cap-add=SYS_PTRACE",
    };
    format!(
        "a process cannot read the memory of another of its user ({said}), which long exchanges within a host, MPI's large messages and py-spy use: {mend}"
    )
}

// The ways between hosts: each agent listens, each other connects, one after another.

/// Measures every way. Ports that could not be opened are told in `checks`.
fn links_of(
    team: &mut HostTeam,
    cluster: &Cluster,
    range: Option<(u16, u16)>,
    checks: &mut Vec<Check>,
) -> Vec<LinkMeasure> {
    // Without it strangers could answer a measurement, which would only make it wrong.
    let token = crate::here::token().unwrap_or_default();
    let ports = serve(team, cluster, &token, range, checks);
    let mut all = Vec::new();
    for (x, y) in &pairs_of(cluster) {
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
fn pairs_of(cluster: &Cluster) -> Vec<(Place, Place)> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_not_there_is_brought_or_made() {
        let gone = "the key file k cannot be opened: No such file or directory";
        assert!(no_key(gone, "a", "k", true).ends_with("bring it there with `comity key copy a --file k`"));
        assert!(no_key(gone, "a", "k", false).contains("make one on this machine with `comity key new k`"));
    }
}

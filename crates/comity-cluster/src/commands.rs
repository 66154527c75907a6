//! Commands that give the cables of each host addresses, and the commands that undo them.
use crate::addresses::AddressPlan;
use crate::facts::{HostFacts, HostSystem};
use crate::graph::Cluster;
use crate::subnet::Subnet;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// The most that the kernel takes.
const MOST_PATHS: usize = 8;

/// Returns whether this is a command of the few kinds that steps are made of. An undo file may come from anybody, and `ip` alone could
/// start any program.
pub fn is_step(words: &[String]) -> bool {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["ip", "link", "set", "dev", ..] | ["ip", "addr", "add" | "del", _, "dev", _] => true,
        ["ip", "addr", "add", _, "dev", _, "nodad"] => true,
        ["ifconfig", nic, "inet" | "inet6" | "addm" | "deletem", ..] => !nic.starts_with('-'),
        ["route", "-n", "add" | "delete", "-host", ..] => true,
        ["ip", "mptcp", "limits", "set", "subflow", _, "add_addr_accepted", _] => true,
        ["ip", "mptcp", "endpoint", "add", _, "dev", _, "id", _, "signal"] => true,
        ["ip", "mptcp", "endpoint", "delete", "id", _] => true,
        _ => false,
    }
}

/// A command, as a list of arguments, and its undo command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetupStep {
    pub run: Vec<String>,
    /// Command that undoes it; empty where none is needed.
    pub undo: Vec<String>,
}

/// The steps of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostSetup {
    /// The host, as ssh takes it.
    pub ssh: String,
    /// Identity of the host: [`HostFacts::identity`].
    pub identity: String,
    /// In their order.
    pub steps: Vec<SetupStep>,
    /// The interface and the address that are there once all is done.
    pub gives: Vec<(String, Subnet)>,
}

/// The steps of every host that has some.
pub fn setup(cluster: &Cluster, plan: &AddressPlan) -> Vec<HostSetup> {
    let mut all = Vec::new();
    for (host, facts) in cluster.hosts.iter().enumerate() {
        let mut steps = Vec::new();
        let mut gives = Vec::new();
        for (cable, own, other) in plan.of_host(cluster, host) {
            let kept = cluster.cables.iter().zip(&plan.cables).any(|(c, at)| c == cable && at.kept);
            if kept {
                continue;
            }
            let nic = &cable.ends(host).0.nic;
            match facts.system {
                HostSystem::Macos => macos(facts, nic, own, other, &mut steps),
                _ => linux(facts, nic, own, &mut steps),
            }
            gives.push((nic.clone(), own));
        }
        multipath(cluster, plan, host, &mut steps);
        if !steps.is_empty() {
            all.push(HostSetup { ssh: facts.ssh.clone(), identity: facts.identity.clone(), steps, gives });
        }
    }
    all
}

fn step(run: &[&str], undo: &[&str]) -> SetupStep {
    let words = |w: &[&str]| w.iter().map(|w| (*w).to_owned()).collect();
    SetupStep { run: words(run), undo: words(undo) }
}

fn linux(facts: &HostFacts, nic: &str, own: Subnet, steps: &mut Vec<SetupStep>) {
    let at = own.to_string();
    let found = facts.nic(nic);
    if let Some(bridge) = found.and_then(|n| n.bridge.as_deref()) {
        // In a bridge an interface has no address of its own.
        steps.push(step(
            &["ip", "link", "set", "dev", nic, "nomaster"],
            &["ip", "link", "set", "dev", nic, "master", bridge],
        ));
    }
    if found.is_some_and(|n| !n.is_up) {
        steps
            .push(step(&["ip", "link", "set", "dev", nic, "up"], &["ip", "link", "set", "dev", nic, "down"]));
    }
    let undo = ["ip", "addr", "del", &at, "dev", nic];
    steps.push(match own.ip {
        IpAddr::V4(_) => step(&["ip", "addr", "add", &at, "dev", nic], &undo),
        // While the system looks for duplicates, for a second or two, nobody can listen there.
        IpAddr::V6(_) => step(&["ip", "addr", "add", &at, "dev", nic, "nodad"], &undo),
    });
}

/// Let connections use all cables between two hosts: each host offers its end of each, and takes the other's.
fn multipath(cluster: &Cluster, plan: &AddressPlan, host: usize, steps: &mut Vec<SetupStep>) {
    let Some(now) = cluster.hosts[host].multipath.as_ref().filter(|m| m.is_enabled) else { return };
    let nics = cluster.doubled(host);
    let ends = plan.of_host(cluster, host).map(|(cable, own, _)| (&cable.ends(host).0.nic, own));
    let offered: Vec<_> = ends.filter(|(nic, _)| nics.contains(&nic.as_str())).collect();
    if offered.is_empty() {
        return;
    }
    let limits = |subflows: u64, accepted: u64| {
        let subflows = subflows.to_string();
        let accepted = accepted.to_string();
        ["ip", "mptcp", "limits", "set", "subflow", &subflows, "add_addr_accepted", &accepted]
            .map(String::from)
            .to_vec()
    };
    let wanted = [now.subflows, now.accepted].map(|n| n.max(offered.len().min(MOST_PATHS) as u64));
    if wanted != [now.subflows, now.accepted] {
        steps.push(SetupStep { run: limits(wanted[0], wanted[1]), undo: limits(now.subflows, now.accepted) });
    }
    let mut free = (1u64..256).filter(|id| now.endpoints.iter().all(|(used, _)| used != id));
    for (nic, own) in offered.iter().filter(|(_, own)| now.endpoints.iter().all(|(_, ip)| *ip != own.ip)) {
        let Some(id) = free.next().map(|id| id.to_string()) else { return };
        let ip = own.ip.to_string();
        steps.push(step(
            &["ip", "mptcp", "endpoint", "add", &ip, "dev", nic, "id", &id, "signal"],
            &["ip", "mptcp", "endpoint", "delete", "id", &id],
        ));
    }
}

pub(crate) fn macos(facts: &HostFacts, nic: &str, own: Subnet, other: Subnet, steps: &mut Vec<SetupStep>) {
    if let Some(bridge) = facts.nic(nic).and_then(|n| n.bridge.as_deref()) {
        // A bridge over cables in a ring sends broadcasts round for ever, and RDMA does not work on its members.
        steps.push(step(&["ifconfig", bridge, "deletem", nic], &["ifconfig", bridge, "addm", nic]));
    }
    if own.ip.is_ipv6() {
        let ip = own.ip.to_string();
        let prefix = own.prefix.to_string();
        steps.push(step(
            &["ifconfig", nic, "inet6", &ip, "prefixlen", &prefix, "alias"],
            &["ifconfig", nic, "inet6", &ip, "-alias"],
        ));
        return;
    }
    let ip = own.ip.to_string();
    let mask = own.netmask().to_string();
    let peer = other.ip.to_string();
    steps.push(step(
        &["ifconfig", nic, "inet", &ip, "netmask", &mask, "alias"],
        &["ifconfig", nic, "inet", &ip, "-alias"],
    ));
    steps.push(step(
        &["route", "-n", "add", "-host", &peer, "-interface", nic],
        &["route", "-n", "delete", "-host", &peer],
    ));
}

/// The command as a person would type it.
pub fn typed(words: &[String], root: bool) -> String {
    let plain =
        |w: &String| w.chars().all(|c| c.is_ascii_alphanumeric() || "-_./:=@%+".contains(c)) && !w.is_empty();
    let shown: Vec<String> = words
        .iter()
        .map(|w| if plain(w) { w.clone() } else { format!("'{}'", w.replace('\'', "'\\''")) })
        .collect();
    format!("{}{}", if root { "sudo " } else { "" }, shown.join(" "))
}

/// All commands, host by host, for people.
pub fn in_words(all: &[HostSetup]) -> String {
    let mut text = String::new();
    for host in all {
        text += &format!("{}:\n", host.ssh);
        host.steps.iter().for_each(|s| text += &format!("  {}\n", typed(&s.run, true)));
    }
    text
}

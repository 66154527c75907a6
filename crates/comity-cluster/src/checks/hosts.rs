//! Checks of each host by itself, and of all hosts' names and addresses together.
use super::Check;
use crate::addresses::Subnet;
use crate::facts::{HostFacts, HostSystem, Nic};
use crate::graph::{Cluster, Plug};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Open files that a rank of a large job has, and some for the program.
const FILES: u64 = 1024;
/// Less memory than this cannot be locked for any device.
const LEAST_LOCKED: u64 = 64 << 10;
/// Buffers of an RDMA device for a few ranks.
const LOCKED_FOR_RDMA: u64 = 64 << 20;
/// The queues of two ranks of a host, and some for others.
const SHM: u64 = 32 << 20;
/// Seconds that clocks may differ: more and logs of hosts cannot be laid beside each other.
const CLOCK: f64 = 1.0;

/// The mend for a host without this program. No package index has it.
pub const INSTALL: &str = "put the program `comity` on its PATH, or run `pip install .` in Comity's sources on it; if an interpreter there \
    has the package, name it with --python (ssh reads no ~/.bashrc, so its PATH may be shorter than yours there)";

/// The rows that facts alone decide. `own` is the version of this program; `listed` has the addresses that a hostfile gives a host.
pub fn hosts(cluster: &Cluster, own: &str, listed: &dyn Fn(&str) -> Vec<IpAddr>) -> Vec<Check> {
    let mut all = Vec::new();
    for host in &cluster.hosts {
        all.push(version(host, own));
        all.push(addresses(host, &listed(&host.ssh)));
        all.extend(limits(host));
        all.push(rdma(host));
        for p in host.problems.iter().filter(|p| p.about != "rdma") {
            all.push(Check::failed("address", &host.ssh, format!("{}: {}", p.why, p.mend)));
        }
    }
    all.extend(names(cluster));
    all.extend(duplicates(cluster));
    all
}

fn version(host: &HostFacts, own: &str) -> Check {
    let problem = match host.version.as_deref() {
        Some(version) if version == own => None,
        Some(version) => {
            Some(format!("it has comity {version}, this machine {own}: install the same on both"))
        }
        None => Some(format!("comity is not installed there: {INSTALL}")),
    };
    Check::unless("version", &host.ssh, problem)
}

fn addresses(host: &HostFacts, listed: &[IpAddr]) -> Check {
    let owners = |ip: &IpAddr| -> Vec<&Nic> {
        host.nics.iter().filter(|n| n.addresses.iter().any(|a| a.ip == *ip)).collect()
    };
    let mut lacking = Vec::new();
    let mut said = Vec::new();
    for ip in listed.iter().filter(|ip| !ip.is_loopback()) {
        match owners(ip).as_slice() {
            [] => lacking.push(ip.to_string()),
            // Linux keeps the address of an interface that is down, and no packet goes there.
            [nic, ..] if owners(ip).iter().all(|n| !n.is_up) => said.push(is_down(host, nic, *ip)),
            _ => {}
        }
    }
    if !lacking.is_empty() {
        said.push(format!(
            "the hostfile gives it {}, which no interface of it has: run the commands of `comity cluster config` again, or correct the hostfile",
            lacking.join(", ")
        ));
    }
    Check::unless("address", &host.ssh, (!said.is_empty()).then(|| said.join("; ")))
}

fn is_down(host: &HostFacts, nic: &Nic, ip: IpAddr) -> String {
    let up = match host.system {
        HostSystem::Macos => format!("sudo ifconfig {} up", nic.name),
        _ => format!("sudo ip link set dev {} up", nic.name),
    };
    format!(
        "{} is down; the hostfile gives it {ip}: run `{up}` on {}; if that does not help, plug in its cable",
        nic.name, host.ssh
    )
}

fn limits(host: &HostFacts) -> Vec<Check> {
    let at = host.ssh.as_str();
    let limits = &host.limits;
    let unknown = |check| Check::not_tried(check, at, "it did not say");
    let files = limits.files.map(|files| {
        let few = files.filter(|n| *n < FILES);
        let said = few.map(|n| {
            format!("a process may open {n} files, fewer than {FILES}: raise `nofile` in /etc/security/limits.conf")
        });
        Check::unless("limits", at, said)
    });
    let wanted = if host.rdma.devices.is_empty() { LEAST_LOCKED } else { LOCKED_FOR_RDMA };
    let memlock = limits.memlock.map(|locked| {
        let few = locked.filter(|n| *n < wanted);
        let said = few.map(|n| {
            format!(
                "a process may lock {} KiB of memory, RDMA and GPUs need more than {}: set `memlock unlimited` in /etc/security/limits.conf and log in anew (systemd: LimitMEMLOCK=infinity)",
                n >> 10,
                wanted >> 10
            )
        });
        Check::unless("memlock", at, said)
    });
    let shm = match (host.system, limits.shm) {
        (HostSystem::Linux, Some((size, free))) => {
            let said = (free < SHM).then(|| {
                format!(
                    "/dev/shm has {} MiB free of {}: remove what is left there, or enlarge it (mount -o remount,size=1G /dev/shm; containers: --shm-size=1g)",
                    free >> 20,
                    size >> 20
                )
            });
            Check::unless("shm", at, said)
        }
        (HostSystem::Macos, _) => Check::passed("shm", at, ""),
        _ => unknown("shm"),
    };
    vec![files.unwrap_or_else(|| unknown("limits")), memlock.unwrap_or_else(|| unknown("memlock")), shm]
}

/// The states of a host's RDMA devices.
pub fn rdma(host: &HostFacts) -> Check {
    if let Some(p) = host.problems.iter().find(|p| p.about == "rdma") {
        return Check::failed("rdma", &host.ssh, format!("{}: {}", p.why, p.mend));
    }
    let down = host.rdma.devices.iter().find(|d| d.state.as_deref().is_some_and(|s| !s.contains("ACTIVE")));
    if let Some(device) = down {
        let state = device.state.as_deref().unwrap_or_default();
        let said =
            format!("{} is {state}: plug in its cable, or leave it out with COMITY_DEVICES", device.name);
        return Check::failed("rdma", &host.ssh, said);
    }
    match host.rdma.devices.is_empty() {
        true => Check::not_tried("rdma", &host.ssh, "it has no RDMA device"),
        false => Check::passed("rdma", &host.ssh, ""),
    }
}

/// Two hosts with one name, one host with two.
fn names(cluster: &Cluster) -> Vec<Check> {
    let odd = [cluster.named_twice(), cluster.namesakes()].concat();
    if !odd.is_empty() {
        return odd.into_iter().map(|n| Check::failed("name", "all hosts", n)).collect();
    }
    cluster.hosts.iter().map(|h| Check::passed("name", &h.ssh, "")).collect()
}

/// An address that two hosts have. Those of containers' bridges are the same on many hosts, and no fault.
fn duplicates(cluster: &Cluster) -> Vec<Check> {
    let mut owners = BTreeMap::<IpAddr, Vec<String>>::new();
    for host in &cluster.hosts {
        for nic in host.nics.iter().filter(|n| !n.is_inner) {
            for address in nic.outer() {
                owners.entry(address.ip).or_default().push(format!("{} ({})", host.ssh, nic.name));
            }
        }
    }
    let twice = owners.into_iter().filter(|(_, of)| of.len() > 1);
    let said = |(ip, of): (IpAddr, Vec<String>)| {
        let said = format!("{ip} is an address of {}: remove it from all but one", of.join(" and of "));
        Check::failed("address", "all hosts", said)
    };
    twice.map(said).collect()
}

/// Checks a host's clock: it is `ahead` of this machine's by so many seconds, give or take `unsure`.
pub fn clock(host: &str, ahead: f64, unsure: f64) -> Check {
    let problem = (ahead.abs() - unsure > CLOCK).then(|| {
        format!(
            "its clock is {:.1} s {} of this machine's: turn on its time service (timedatectl set-ntp true; macOS: sudo sntp -sS time.apple.com)",
            ahead.abs(),
            if ahead > 0.0 { "ahead" } else { "behind" }
        )
    });
    Check::unless("clock", host, problem)
}

/// Interfaces named one by one.
const MAX_NAMED: usize = 6;

/// Faults of interfaces that carry nothing from one of the hosts to another: those whose cable is out, and those of which only the system knows
/// what they are for.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::CheckVerdict;
    use crate::read::facts_of;
    use crate::samples::linux;

    #[test]
    fn an_address_of_an_interface_that_is_down_is_told() {
        let printed = linux("b", &[("ba", "10.93.0.2/30", 1000), ("eth0", "10.0.0.2/24", 1000)]);
        let listed = ["10.93.0.2".parse().unwrap(), "10.0.0.2".parse().unwrap()];
        let mut host = facts_of("b", &printed);
        assert_eq!(addresses(&host, &listed).verdict, CheckVerdict::Passed);
        host.nics[0].is_up = false;
        let check = addresses(&host, &listed);
        assert_eq!(check.verdict, CheckVerdict::Failed);
        assert!(check.said.starts_with("ba is down; the hostfile gives it 10.93.0.2: "), "{check:?}");
        assert!(check.said.contains("`sudo ip link set dev ba up` on b"), "{check:?}");
        // One that nobody uses may be down.
        assert_eq!(addresses(&host, &listed[1..]).verdict, CheckVerdict::Passed);
        host.nics[0].addresses.clear();
        assert!(addresses(&host, &listed).said.contains("which no interface of it has"));
    }
}

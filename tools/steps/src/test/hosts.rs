//! Clusters as people cable them: hosts as network namespaces of one kernel, a cable each way, no switch. And cables that are cut ([`cut`]).
//!
//! ```text
//!   triangle  a --- b   each cable a network of its own      chain  a --- b --- c   the ends have no way to each other
//!              \   /
//!                c                                           two networks  a === b  a slow one with the name and the default route, a fast one
//! ```
//!
//! Counters of the kernel show which way the bytes went: what two ranks of one host say to each other in shared memory is not on its
//! loopback, and what ranks of two hosts say is on their cables.

mod cut;

use super::{
    jobs::{QUICK, comity, fails, job_key, timed, together},
    requirements::Ask,
    scope::Scope,
    step::Outcome,
};
use std::path::Path;
use tasks::{child::Task, netns::Hosts};

pub(super) const ASKS: &[Ask] = &[Ask::Linux, Ask::Root, Ask::Program("ip", "iproute2")];

/// A cable: its two hosts, its name, and its network, in which the first host is 1 and the second 2.
type Cable = (usize, usize, &'static str, &'static str);

/// Limit on a job that cannot run, in seconds.
const LIMIT: u64 = 60;

/// Some hosts with some ranks each.
struct Shape {
    name: &'static str,
    hosts: usize,
    /// Ranks on each host.
    ranks: usize,
    /// Pairs of interfaces on each host that have only a link-local address and lead nowhere, as virtual cables of containers do.
    dead: usize,
    cables: &'static [Cable],
    /// Lines for `ip -n HOST`.
    also: &'static [(usize, &'static str)],
    /// Address of rank 0 for each rank.
    master: &'static [&'static str],
    vars: &'static [(&'static str, &'static str)],
    /// The cables that carry the job's bytes; the others carry few.
    busy: &'static [&'static str],
    /// Each host has a launcher of its own, which is told this address (`comity launch --nnodes`).
    launched: bool,
    /// Words of a rank's error, where the job cannot run.
    refused: Option<&'static [&'static str]>,
}

const PLAIN: Shape = Shape {
    name: "",
    hosts: 3,
    ranks: 1,
    dead: 0,
    cables: &[],
    also: &[],
    master: &[],
    vars: &[],
    busy: &[],
    launched: false,
    refused: None,
};

const CHAIN: &[Cable] = &[(0, 1, "ab", "10.71.1.%/30"), (1, 2, "bc", "10.71.2.%/30")];

const TRIANGLE: Shape = Shape {
    name: "triangle",
    cables: &[(0, 1, "ab", "10.71.1.%/30"), (1, 2, "bc", "10.71.2.%/30"), (2, 0, "ca", "10.71.3.%/30")],
    master: &["10.71.1.1", "10.71.1.1", "10.71.3.2"],
    busy: &["ab", "bc", "ca"],
    ..PLAIN
};

const SHAPES: &[Shape] = &[
    TRIANGLE,
    Shape {
        name: "two ranks on each of two hosts",
        hosts: 2,
        ranks: 2,
        cables: &[(0, 1, "cable", "10.77.0.%/24")],
        master: &["10.77.0.1"],
        busy: &["cable"],
        ..PLAIN
    },
    Shape {
        name: "interfaces that lead nowhere",
        hosts: 2,
        dead: 8,
        cables: &[(0, 1, "lan", "10.73.0.%/24")],
        // What has it is tried after what has not.
        also: &[(0, "route add default via 10.73.0.2"), (1, "route add default via 10.73.0.1")],
        master: &["10.73.0.1"],
        // One interface after the other, they took a minute.
        vars: &[("COMITY_JOIN_TIMEOUT", "20")],
        busy: &["lan"],
        ..PLAIN
    },
    Shape { name: "triangle, a launcher on each host", launched: true, ..TRIANGLE },
    Shape {
        name: "chain, a launcher on each host",
        // Node 0 is in the middle.
        cables: &[(0, 1, "ab", "10.71.1.%/30"), (0, 2, "ac", "10.71.2.%/30")],
        master: &["10.71.1.1", "10.71.1.1", "10.71.2.1"],
        busy: &["ab", "ac"],
        launched: true,
        ..PLAIN
    },
    Shape {
        name: "two networks",
        hosts: 2,
        cables: &[(0, 1, "slow", "10.71.0.%/16"), (0, 1, "fast", "10.72.1.%/24")],
        also: &[(0, "route add default via 10.71.0.2"), (1, "route add default via 10.71.0.1")],
        master: &["10.71.0.1"],
        busy: &["fast"],
        ..PLAIN
    },
    Shape {
        name: "two cables between two of three",
        cables: &[
            (0, 1, "ab", "10.71.1.%/30"),
            (0, 1, "ab2", "10.71.4.%/30"),
            (1, 2, "bc", "10.71.2.%/30"),
            (2, 0, "ca", "10.71.3.%/30"),
        ],
        master: &["10.71.1.1", "10.71.1.1", "10.71.3.2"],
        busy: &["ab", "ab2", "bc", "ca"],
        ..PLAIN
    },
    Shape {
        name: "IPv6 of the link only",
        hosts: 2,
        cables: &[(0, 1, "ab", "fe80::71:%/64")],
        master: &["fe80::71:1%ab"],
        busy: &["ab"],
        ..PLAIN
    },
    Shape {
        name: "IPv6 only, three cables",
        cables: &[(0, 1, "ab", "fd71:1::%/64"), (1, 2, "bc", "fd71:2::%/64"), (2, 0, "ca", "fd71:3::%/64")],
        master: &["fd71:1::1,fd71:3::2"],
        busy: &["ab", "bc", "ca"],
        ..PLAIN
    },
    Shape { name: "chain", cables: CHAIN, master: &["10.71.1.1,10.71.2.1"], busy: &["ab", "bc"], ..PLAIN },
    Shape {
        name: "chain without a relay",
        // Rank 0 is in the middle, so all meet.
        cables: &[(0, 1, "ab", "10.71.1.%/30"), (0, 2, "ac", "10.71.2.%/30")],
        master: &["10.71.1.1", "10.71.1.1", "10.71.2.1"],
        vars: &[("COMITY_RELAY", "0")],
        refused: Some(&["host b", "host c", "10.71.1.2", "no route", "COMITY_RELAY"]),
        ..PLAIN
    },
    Shape {
        name: "chain without a relay, rank 0 at an end",
        cables: CHAIN,
        master: &["10.71.1.1,10.71.2.1"],
        // The others wait so long for the rank that cannot come.
        vars: &[("COMITY_RELAY", "0"), ("COMITY_JOIN_TIMEOUT", "8")],
        refused: Some(&[
            "no way from host c",
            "rank 1 on host b",
            "without COMITY_RELAY=0",
            "missing rank 2",
        ]),
        ..PLAIN
    },
];

/// Run a job in each shape, and then those whose cables are cut.
pub(super) fn check(scope: &Scope) -> Outcome {
    let (_scratch, key) = job_key()?;
    let mut ran = Vec::new();
    for shape in scope.share(SHAPES.iter().collect(), 2) {
        timed(shape.name, || run(shape, &key))?;
        ran.push(shape.name);
    }
    ran.extend(cut::check(scope, &key)?);
    Ok(ran.join(", "))
}

/// A job in this shape ends as it should.
fn run(shape: &Shape, key: &Path) -> Result<(), String> {
    let lan = Lan::new(shape)?;
    let before = lan.carried()?;
    let said = together((0..shape.hosts * shape.ranks).map(|rank| lan.rank(rank, key)));
    match shape.refused {
        Some(words) => fails(said.map(|all| all.concat()), words).map(drop),
        None => {
            let said = said?.concat();
            judge(shape, &before, &lan.carried()?).map_err(|e| format!("{e}\n{said}"))
        }
    }
}

/// Each busy cable carries a fair share of what the busiest does; each other one, and each loopback, hardly anything.
fn judge(shape: &Shape, before: &[u64], after: &[u64]) -> Result<(), String> {
    let names = shape.cables.iter().map(|cable| cable.2).chain(std::iter::repeat("lo"));
    let carried: Vec<_> = names.zip(after.iter().zip(before).map(|(after, before)| after - before)).collect();
    let most = carried.iter().map(|(_, n)| *n).max().unwrap_or_default();
    for (name, n) in &carried {
        match shape.busy.contains(name) {
            true if *n < most / 8 => return Err(format!("{name} was hardly used: {carried:?}")),
            false if *n > most / 8 => return Err(format!("{name} was used: {carried:?}")),
            _ => {}
        }
    }
    Ok(())
}

/// Names of the hosts.
const NAMES: [&str; 3] = ["a", "b", "c"];

/// The namespaces of a shape; dropping them removes them, and the cables with them.
struct Lan<'a> {
    shape: &'a Shape,
    hosts: Hosts,
}

impl<'a> Lan<'a> {
    fn new(shape: &'a Shape) -> Result<Self, String> {
        let lan = Self { shape, hosts: Hosts::new("lan", &NAMES[..shape.hosts])? };
        for (a, b, cable, network) in shape.cables {
            lan.hosts.cable([(NAMES[*a], cable), (NAMES[*b], cable)])?;
            lan.raise(*a, cable, &network.replace('%', "1"))?;
            lan.raise(*b, cable, &network.replace('%', "2"))?;
        }
        for host in 0..shape.hosts {
            for pair in 0..shape.dead {
                lan.ip(host, &format!("link add dead{pair} type veth peer name tail{pair}"))?;
                for (end, kind) in [(1, "dead"), (2, "tail")] {
                    lan.raise(host, &format!("{kind}{pair}"), &format!("fe80::{host}:{end}:{pair}:1/64"))?;
                }
            }
        }
        for (host, line) in shape.also {
            lan.ip(*host, line)?;
        }
        Ok(lan)
    }

    /// Give a device no address but this one, and that one at once.
    fn raise(&self, host: usize, device: &str, address: &str) -> Result<(), String> {
        self.ip(host, &format!("link set {device} addrgenmode none"))?;
        let nodad = if address.contains(':') { "nodad" } else { "" };
        self.ip(host, &format!("addr add {address} dev {device} {nodad}"))?;
        self.ip(host, &format!("link set {device} up"))
    }

    fn ip(&self, host: usize, line: &str) -> Result<(), String> {
        self.hosts.ip(NAMES[host], line)
    }

    fn within(&self, host: usize) -> Task {
        self.hosts.within(NAMES[host])
    }

    fn rank(&self, rank: usize, key: &Path) -> Task {
        let Shape { hosts, ranks, master, vars, launched, .. } = self.shape;
        let host = rank / ranks;
        let program = ["bench", "all_reduce", "--sizes", "4M", "--budget", "0.3"];
        let place = rank.to_string();
        let size = (hosts * ranks).to_string();
        let at = *master.get(host).unwrap_or(&master[0]);
        let task = self.within(host).arg(comity());
        let task = if *launched {
            let node = ["launch", "--nnodes", &size, "--node-rank", &place, "--rendezvous", at, "--"];
            task.args(node).arg(comity()).args(program)
        } else {
            let task = task.args(program).env("COMITY_RANK", place).env("COMITY_SIZE", size);
            task.env("MASTER_ADDR", at).env("MASTER_PORT", "7402")
        };
        let task = task.limit(if self.shape.refused.is_some() { LIMIT } else { QUICK });
        let task = task.env("COMITY_HOST", NAMES[host]).env("COMITY_KEY_FILE", key);
        vars.iter().fold(task, |task, (name, value)| task.env(name, value))
    }

    /// Bytes that each cable has carried, both ways, and then the loopback of each host.
    fn carried(&self) -> Result<Vec<u64>, String> {
        let cables = self.shape.cables.iter();
        let both = cables.map(|(a, b, cable, ..)| Ok(self.received(*a, cable)? + self.received(*b, cable)?));
        both.chain((0..self.shape.hosts).map(|host| self.received(host, "lo"))).collect()
    }

    /// Bytes that a device of a host has received so far.
    fn received(&self, host: usize, device: &str) -> Result<u64, String> {
        let file = format!("/sys/class/net/{device}/statistics/rx_bytes");
        let said = self.within(host).args(["cat", &file]).run()?;
        said.trim().parse().map_err(|e| format!("{file}: {said}: {e}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_tell_the_way() {
        let said = |cable, loopback| judge(&SHAPES[1], &[0, 0, 0], &[cable, loopback, 0]);
        assert!(said(30 << 20, 40_000).is_ok());
        assert!(said(30 << 20, 20 << 20).is_err_and(|why| why.starts_with("lo was used")));
        assert!(said(1000, 30 << 20).is_err_and(|why| why.starts_with("cable was hardly used")));
    }
}

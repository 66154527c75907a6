//! Clusters as people cable them: hosts as network namespaces of one kernel, a cable each way, no switch.
//!
//! ```text
//!   triangle  a --- b   each cable a network of its own      chain  a --- b --- c   the ends have no way to each other
//!              \   /
//!                c                                           two networks  a === b  a slow one with the name and the default route, a fast one
//! ```
//!
//! Counters of the kernel show which way the bytes went: what two ranks of one host say to each other in shared memory is not on its
//! loopback, and what ranks of two hosts say is on their cables.
//!
//! Then cables are cut while a job runs on two hosts with two of them: with MPTCP it goes on over the other, without it ends with both ends named.
//! And the middle of a chain dies.

use super::{
    jobs::{comity, fails, has, timed, until},
    scope::Scope,
    step::Outcome,
};
use std::{fs, path::Path, thread, time::Duration};
use tasks::{
    child::{Running, Task},
    netns::Hosts,
    place::{Scratch, built},
};

/// A cable: its two hosts, its name, and its network, in which the first host is 1 and the second 2.
type Cable = (usize, usize, &'static str, &'static str);

/// Seconds that a job may take, which takes a tenth of them, and one that cannot run.
const JOB: u64 = 600;
const REFUSED: u64 = 60;

/// Some hosts with some ranks each.
struct Shape {
    name: &'static str,
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
    /// The cables that carry few of the job's bytes.
    idle: &'static [&'static str],
    /// Each host has a launcher of its own, which is told this address (`comity launch --nnodes`).
    launched: bool,
    /// Words of a rank's error, where the job cannot run.
    refused: &'static [&'static str],
}

const PLAIN: Shape = Shape {
    name: "",
    ranks: 1,
    dead: 0,
    cables: &[],
    also: &[],
    master: &[],
    vars: &[],
    idle: &[],
    launched: false,
    refused: &[],
};

const CHAIN: &[Cable] = &[(0, 1, "ab", "10.71.1.%/30"), (1, 2, "bc", "10.71.2.%/30")];

const TRIANGLE: Shape = Shape {
    name: "triangle",
    cables: &[(0, 1, "ab", "10.71.1.%/30"), (1, 2, "bc", "10.71.2.%/30"), (2, 0, "ca", "10.71.3.%/30")],
    master: &["10.71.1.1", "10.71.1.1", "10.71.3.2"],
    ..PLAIN
};

const SHAPES: &[Shape] = &[
    TRIANGLE,
    Shape {
        name: "two ranks on each of two hosts",
        ranks: 2,
        cables: &[(0, 1, "cable", "10.77.0.%/24")],
        master: &["10.77.0.1"],
        ..PLAIN
    },
    Shape {
        name: "interfaces that lead nowhere",
        dead: 8,
        cables: &[(0, 1, "lan", "10.73.0.%/24")],
        // What has it is tried after what has not.
        also: &[(0, "route add default via 10.73.0.2"), (1, "route add default via 10.73.0.1")],
        master: &["10.73.0.1"],
        // One interface after the other, they took a minute.
        vars: &[("COMITY_JOIN_TIMEOUT", "20")],
        ..PLAIN
    },
    Shape { name: "triangle, a launcher on each host", launched: true, ..TRIANGLE },
    Shape {
        name: "chain, a launcher on each host",
        // Node 0 is in the middle.
        cables: &[(0, 1, "ab", "10.71.1.%/30"), (0, 2, "ac", "10.71.2.%/30")],
        master: &["10.71.1.1", "10.71.1.1", "10.71.2.1"],
        launched: true,
        ..PLAIN
    },
    Shape {
        name: "two networks",
        cables: &[(0, 1, "slow", "10.71.0.%/16"), (0, 1, "fast", "10.72.1.%/24")],
        also: &[(0, "route add default via 10.71.0.2"), (1, "route add default via 10.71.0.1")],
        master: &["10.71.0.1"],
        idle: &["slow"],
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
        ..PLAIN
    },
    Shape {
        name: "IPv6 of the link only",
        cables: &[(0, 1, "ab", "fe80::71:%/64")],
        master: &["fe80::71:1%ab"],
        ..PLAIN
    },
    Shape {
        name: "IPv6 only, three cables",
        cables: &[(0, 1, "ab", "fd71:1::%/64"), (1, 2, "bc", "fd71:2::%/64"), (2, 0, "ca", "fd71:3::%/64")],
        master: &["fd71:1::1,fd71:3::2"],
        ..PLAIN
    },
    Shape { name: "chain", cables: CHAIN, master: &["10.71.1.1,10.71.2.1"], ..PLAIN },
    Shape {
        name: "chain without a relay",
        // Rank 0 is in the middle, so all meet.
        cables: &[(0, 1, "ab", "10.71.1.%/30"), (0, 2, "ac", "10.71.2.%/30")],
        master: &["10.71.1.1", "10.71.1.1", "10.71.2.1"],
        vars: &[("COMITY_RELAY", "0")],
        refused: &["host b", "host c", "10.71.1.2", "no route", "COMITY_RELAY"],
        ..PLAIN
    },
    Shape {
        name: "chain without a relay, rank 0 at an end",
        cables: CHAIN,
        master: &["10.71.1.1,10.71.2.1"],
        // The others wait so long for the rank that cannot come.
        vars: &[("COMITY_RELAY", "0"), ("COMITY_JOIN_TIMEOUT", "8")],
        refused: &["no way from host c", "rank 1 on host b", "without COMITY_RELAY=0", "missing rank 2"],
        ..PLAIN
    },
];

/// Two cables between two hosts.
const TWO: Shape = Shape {
    cables: &[(0, 1, "c0", "10.71.1.%/30"), (0, 1, "c1", "10.71.2.%/30")],
    master: &["10.71.1.1"],
    ..PLAIN
};

/// A job, what happens to its cables or hosts, and how it ends.
struct Cut {
    name: &'static str,
    run: fn(&Self, &Path) -> Result<(), String>,
    mptcp: bool,
    /// Packets vanish both ways; else the end at the first host is set down, which the other sees.
    is_silent: bool,
    /// Words for `load`.
    does: [&'static str; 2],
    vars: &'static [(&'static str, &'static str)],
    /// Cables that are cut, or put back, each so many milliseconds after the one before.
    turns: &'static [(u64, &'static str, bool)],
    /// Each rank fails, and says all these words; else all end well, and say them together.
    fails: bool,
    says: &'static [&'static str],
}

const ONE_PATH: Cut = Cut {
    name: "two cables without MPTCP, one out",
    run: Cut::two_cables,
    mptcp: false,
    is_silent: false,
    does: ["steady", "40"],
    vars: &[("COMITY_DETECTION", "2")],
    // That of the control connection and of some data.
    turns: &[(0, "c0", true)],
    fails: true,
    says: &["rank 0", "rank 1", "10.71.1.1:", "10.71.1.2:"],
};
/// A cable, then the other, in a job that is encrypted so far. How long a round takes is the kernel's: it tries the cable that came back
/// when its own timers say so, which on a busy machine is later than the default limit on silence.
const BOTH: Cut = Cut {
    name: "two cables, one cut",
    mptcp: true,
    does: ["steady", "5"],
    vars: &[("COMITY_MPTCP", "1"), ("COMITY_SECURE", "handshake"), ("COMITY_DETECTION", "20")],
    turns: &[(500, "c0", true), (1800, "c0", false), (300, "c1", true)],
    fails: false,
    says: &["rank 0: ", "rank 1: ", "rounds, the longest of "],
    ..ONE_PATH
};
/// A cable is cut before a rank sends its last message, after which it ends without closing the group: that comes over the other.
const PARTING: Cut = Cut {
    name: "a last message, its cable cut",
    does: ["parting", "3"],
    vars: &[("COMITY_MPTCP", "1")],
    turns: &[(2500, "c0", true)],
    says: &["the last message came"],
    ..BOTH
};

const CUTS: [Cut; 8] = [
    Cut { name: "chain whose middle dies", run: |_, key| dead_relay(key), ..ONE_PATH },
    Cut { name: "joiners of another host, which is lost", run: |_, _| lost_joiners(), ..ONE_PATH },
    ONE_PATH,
    Cut {
        name: "two cables without MPTCP, one silent",
        is_silent: true,
        // That of other data alone.
        turns: &[(0, "c1", true)],
        says: &["rank 0", "rank 1", "10.71.2.1:", "10.71.2.2:"],
        ..ONE_PATH
    },
    BOTH,
    Cut {
        name: "two cables, one silent",
        is_silent: true,
        vars: &[("COMITY_MPTCP", "1"), ("COMITY_SECURE", "data"), ("COMITY_DETECTION", "20")],
        ..BOTH
    },
    PARTING,
    Cut { name: "a last message, its cable silent", is_silent: true, ..PARTING },
];

/// Run a job in each shape, and then those whose cables are cut.
pub(super) fn check(scope: &Scope) -> Outcome {
    let scratch = Scratch::new("key")?;
    // For launchers that cannot hand one over.
    let key = scratch.join("key");
    Task::new(comity()).args(["key", "new"]).arg(&key).run()?;
    let mut ran = Vec::new();
    for shape in scope.share(SHAPES.iter().collect(), 2) {
        timed(shape.name, || run(shape, &key))?;
        ran.push(shape.name);
    }
    // With MPTCP where the kernel has it.
    let said = fs::read_to_string("/proc/sys/net/mptcp/enabled").unwrap_or_default();
    let has_mptcp = said.trim() == "1";
    if !has_mptcp {
        println!("two cables with MPTCP: not tried, for this kernel has none ({said:?})");
    }
    for cut in scope.share(CUTS.iter().filter(|cut| has_mptcp || !cut.mptcp).collect(), 2) {
        timed(cut.name, || (cut.run)(cut, &key))?;
        ran.push(cut.name);
    }
    Ok(ran.join(", "))
}

/// A job in this shape ends as it should.
fn run(shape: &Shape, key: &Path) -> Result<(), String> {
    let lan = Lan::new(shape)?;
    let before = lan.carried()?;
    let words = ["bench", "all_reduce", "--sizes", "4M", "--budget", "0.3"];
    let limit = if shape.refused.is_empty() { JOB } else { REFUSED };
    let said = ends(lan.start(key, comity().as_ref(), &words, limit)?);
    if !shape.refused.is_empty() {
        return fails(said, shape.refused).map(drop);
    }
    let said = said?;
    judge(shape, &before, &lan.carried()?).map_err(|e| format!("{e}\n{said}"))
}

/// Wait for all; what those said that failed is the error: the first need not be the one that knows why.
fn ends(running: Vec<Running>) -> Result<String, String> {
    let all = Vec::from_iter(running.into_iter().map(Running::wait));
    match all.iter().any(Result::is_err) {
        true => Err(all.into_iter().filter_map(Result::err).collect::<Vec<_>>().join("\n")),
        false => Ok(all.into_iter().flatten().collect()),
    }
}

impl Cut {
    fn two_cables(&self, key: &Path) -> Result<(), String> {
        let shape = Shape { vars: self.vars, ..TWO };
        let lan = Lan::new(&shape)?;
        if self.mptcp {
            lan.offer_cables()?;
        }
        let running = lan.load(key, &self.does)?;
        for (pause, cable, is_cut) in self.turns {
            thread::sleep(Duration::from_millis(*pause));
            self.turn(&lan, cable, *is_cut)?;
        }
        match self.fails {
            true => running.into_iter().try_for_each(|end| fails(end.wait(), self.says).map(drop)),
            false => has(&ends(running)?, self.says),
        }
    }

    /// Cut a cable, or put it back.
    fn turn(&self, lan: &Lan<'_>, cable: &str, is_cut: bool) -> Result<(), String> {
        if !self.is_silent {
            return lan.ip(0, &format!("link set {cable} {}", if is_cut { "down" } else { "up" }));
        }
        // To an adapter that is not there.
        let network = if cable == "c0" { "10.71.1" } else { "10.71.2" };
        let what = if is_cut { "replace" } else { "del" };
        let nobody = if is_cut { "lladdr 02:00:00:00:66:66 nud permanent" } else { "" };
        [(0, 2), (1, 1)].into_iter().try_for_each(|(host, last)| {
            lan.ip(host, &format!("neigh {what} {network}.{last} {nobody} dev {cable}"))
        })
    }
}

/// The rank that passes on what the two others say dies: it is named, and neither of the two.
fn dead_relay(key: &Path) -> Result<(), String> {
    let shape = Shape { cables: CHAIN, master: &["10.71.1.1,10.71.2.1"], ..PLAIN };
    let lan = Lan::new(&shape)?;
    let mut running = lan.load(key, &["steady", "30"])?;
    // Whoever holds it ends it.
    drop(running.remove(1));
    running.into_iter().try_for_each(|end| fails(end.wait(), &["load: rank 1 (host b"]).map(drop))
}

/// Job that takes in ranks of another host, and then loses that host, on which all live: one side goes on. The default limit on silence: a busy
/// machine is no cut.
fn lost_joiners() -> Result<(), String> {
    let task = Task::new(built("debug", "examples/elastic")).args(["hosts", "--detection", "5"]);
    task.limit(180).run().map(|said| print!("{said}"))
}

/// Each cable carries a fair share of what the busiest does, and each idle one and each loopback hardly anything.
fn judge(shape: &Shape, before: &[u64], after: &[u64]) -> Result<(), String> {
    let names = shape.cables.iter().map(|cable| cable.2).chain(std::iter::repeat("lo"));
    let carried: Vec<_> = names.zip(after.iter().zip(before).map(|(after, before)| after - before)).collect();
    let most = carried.iter().map(|(_, n)| *n).max().unwrap_or_default();
    for (name, n) in &carried {
        match shape.idle.contains(name) || *name == "lo" {
            false if *n < most / 8 => return Err(format!("{name} was hardly used: {carried:?}")),
            true if *n > most / 8 => return Err(format!("{name} was used: {carried:?}")),
            _ => {}
        }
    }
    Ok(())
}

const NAMES: [&str; 3] = ["a", "b", "c"];

/// The namespaces of a shape; dropping them removes them, and the cables with them.
struct Lan<'a> {
    shape: &'a Shape,
    size: usize,
    hosts: Hosts,
}

impl<'a> Lan<'a> {
    fn new(shape: &'a Shape) -> Result<Self, String> {
        let size = shape.cables.iter().map(|(a, b, ..)| a.max(b) + 1).max().unwrap_or(1);
        let lan = Self { shape, size, hosts: Hosts::new("lan", &NAMES[..size])? };
        for (a, b, cable, network) in shape.cables {
            lan.hosts.cable([(NAMES[*a], cable), (NAMES[*b], cable)])?;
            lan.raise(*a, cable, &network.replace('%', "1"))?;
            lan.raise(*b, cable, &network.replace('%', "2"))?;
        }
        for host in 0..size {
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

    /// The settings of `comity cluster config --auto-setup`, without which a connection has one path.
    fn offer_cables(&self) -> Result<(), String> {
        for (host, end) in [(0, 1), (1, 2)] {
            self.ip(host, "mptcp limits set subflow 2 add_addr_accepted 2")?;
            self.ip(host, &format!("mptcp endpoint add 10.71.1.{end} dev c0 id 1 signal"))?;
            self.ip(host, &format!("mptcp endpoint add 10.71.2.{end} dev c1 id 2 signal"))?;
        }
        Ok(())
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

    /// Ranks that run this program for so many seconds at most.
    fn start(&self, key: &Path, program: &Path, words: &[&str], limit: u64) -> Result<Vec<Running>, String> {
        let Shape { ranks, master, vars, launched, .. } = self.shape;
        let size = (self.size * ranks).to_string();
        let rank = |rank: usize| {
            let host = rank / ranks;
            let place = rank.to_string();
            let at = *master.get(host).unwrap_or(&master[0]);
            let task = self.hosts.within(NAMES[host]);
            let task = if *launched {
                let node = ["launch", "--nnodes", &size, "--node-rank", &place, "--rendezvous", at, "--"];
                task.arg(comity()).args(node).arg(program).args(words)
            } else {
                let task = task.arg(program).args(words).env("COMITY_RANK", place).env("COMITY_SIZE", &size);
                task.env("MASTER_ADDR", at).env("MASTER_PORT", "7402")
            };
            let task = task.limit(limit).env("COMITY_HOST", NAMES[host]).env("COMITY_KEY_FILE", key);
            vars.iter().fold(task, |task, (name, value)| task.env(name, value)).start()
        };
        (0..self.size * ranks).map(rank).collect()
    }

    /// A rank on each host that does this with `load`; one that makes calls has moved more of them than a meeting does.
    fn load(&self, key: &Path, does: &[&str]) -> Result<Vec<Running>, String> {
        let running = self.start(key, &built("debug", "examples/load"), does, 60)?;
        if does[0] == "steady" {
            until("a job in the middle of calls", 30, || {
                Ok((self.carried()?.iter().sum::<u64>() >= 8 << 20).then_some(()))
            })?;
        }
        Ok(running)
    }

    /// Bytes that each cable has carried, both ways, and then the loopback of each host.
    fn carried(&self) -> Result<Vec<u64>, String> {
        let cables = self.shape.cables.iter();
        let both = cables.map(|(a, b, cable, ..)| Ok(self.received(*a, cable)? + self.received(*b, cable)?));
        both.chain((0..self.size).map(|host| self.received(host, "lo"))).collect()
    }

    /// Bytes that a device of a host has received so far.
    fn received(&self, host: usize, device: &str) -> Result<u64, String> {
        let file = format!("/sys/class/net/{device}/statistics/rx_bytes");
        let said = self.hosts.within(NAMES[host]).args(["cat", &file]).run()?;
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

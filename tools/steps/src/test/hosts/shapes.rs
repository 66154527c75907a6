//! Clusters as people cable them: hosts as network namespaces, a cable each way, no switch.
//!
//! ```text
//!   triangle  a --- b   each cable a network of its own      chain  a --- b --- c   the ends have no way to each other
//!              \   /
//!                c                                           two networks  a === b  a slow one with the name and the default route, a fast one
//! ```

use crate::test::{launchers::together, processes::QUICK, scope::Scope};
use std::{path::Path, time::Instant};
use tasks::child::Task;

/// A cable: its two hosts, its name, and the address at each end.
pub(super) type Cable = (usize, usize, &'static str, &'static str, &'static str);

/// Some hosts with one rank each.
pub(super) struct Shape {
    pub(super) name: &'static str,
    pub(super) hosts: usize,
    pub(super) cables: &'static [Cable],
    /// Lines for `ip -n HOST`.
    pub(super) also: &'static [(usize, &'static str)],
    /// Address of rank 0 for each rank.
    pub(super) master: &'static [&'static str],
    pub(super) vars: &'static [(&'static str, &'static str)],
    /// The cables that carry the job's bytes; the others carry few.
    pub(super) busy: &'static [&'static str],
    /// Each host has a launcher of its own, which is told this address (`comity launch --nnodes`).
    pub(super) launched: bool,
    /// Words of a rank's error, where the job cannot run.
    pub(super) refused: Option<&'static [&'static str]>,
}

pub(super) const PLAIN: Shape = Shape {
    name: "",
    hosts: 3,
    cables: &[],
    also: &[],
    master: &[],
    vars: &[],
    busy: &[],
    launched: false,
    refused: None,
};

pub(super) const CHAIN: &[Cable] =
    &[(0, 1, "ab", "10.71.1.1/30", "10.71.1.2/30"), (1, 2, "bc", "10.71.2.1/30", "10.71.2.2/30")];

pub(super) const TRIANGLE: Shape = Shape {
    name: "triangle",
    cables: &[
        (0, 1, "ab", "10.71.1.1/30", "10.71.1.2/30"),
        (1, 2, "bc", "10.71.2.1/30", "10.71.2.2/30"),
        (2, 0, "ca", "10.71.3.1/30", "10.71.3.2/30"),
    ],
    master: &["10.71.1.1", "10.71.1.1", "10.71.3.2"],
    busy: &["ab", "bc", "ca"],
    ..PLAIN
};

const SHAPES: &[Shape] = &[
    TRIANGLE,
    Shape { name: "triangle, a launcher on each host", launched: true, ..TRIANGLE },
    Shape {
        name: "chain, a launcher on each host",
        // Node 0 is in the middle.
        cables: &[(0, 1, "ab", "10.71.1.1/30", "10.71.1.2/30"), (0, 2, "ac", "10.71.2.1/30", "10.71.2.2/30")],
        master: &["10.71.1.1", "10.71.1.1", "10.71.2.1"],
        busy: &["ab", "ac"],
        launched: true,
        ..PLAIN
    },
    Shape {
        name: "two networks",
        hosts: 2,
        cables: &[
            (0, 1, "slow", "10.71.0.1/16", "10.71.0.2/16"),
            (0, 1, "fast", "10.72.1.1/24", "10.72.1.2/24"),
        ],
        also: &[(0, "route add default via 10.71.0.2"), (1, "route add default via 10.71.0.1")],
        master: &["10.71.0.1"],
        busy: &["fast"],
        ..PLAIN
    },
    Shape {
        name: "two cables between two of three",
        cables: &[
            (0, 1, "ab", "10.71.1.1/30", "10.71.1.2/30"),
            (0, 1, "ab2", "10.71.4.1/30", "10.71.4.2/30"),
            (1, 2, "bc", "10.71.2.1/30", "10.71.2.2/30"),
            (2, 0, "ca", "10.71.3.1/30", "10.71.3.2/30"),
        ],
        master: &["10.71.1.1", "10.71.1.1", "10.71.3.2"],
        busy: &["ab", "ab2", "bc", "ca"],
        ..PLAIN
    },
    Shape {
        name: "IPv6 of the link only",
        hosts: 2,
        cables: &[(0, 1, "ab", "fe80::71:1/64", "fe80::71:2/64")],
        master: &["fe80::71:1%ab"],
        busy: &["ab"],
        ..PLAIN
    },
    Shape {
        name: "IPv6 only, three cables",
        cables: &[
            (0, 1, "ab", "fd71:1::1/64", "fd71:1::2/64"),
            (1, 2, "bc", "fd71:2::1/64", "fd71:2::2/64"),
            (2, 0, "ca", "fd71:3::1/64", "fd71:3::2/64"),
        ],
        master: &["fd71:1::1,fd71:3::2"],
        busy: &["ab", "bc", "ca"],
        ..PLAIN
    },
    Shape { name: "chain", cables: CHAIN, master: &["10.71.1.1,10.71.2.1"], busy: &["ab", "bc"], ..PLAIN },
    Shape {
        name: "chain without a relay",
        // Rank 0 is in the middle, so all meet.
        cables: &[(0, 1, "ab", "10.71.1.1/30", "10.71.1.2/30"), (0, 2, "ac", "10.71.2.1/30", "10.71.2.2/30")],
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

/// Run a job in each shape; their names.
pub(super) fn check(scope: &Scope, comity: &Path, key: &Path) -> Result<Vec<&'static str>, String> {
    let mut ran = Vec::new();
    for shape in scope.share(SHAPES.iter().collect(), 2) {
        let start = Instant::now();
        let lan = Lan::new(shape)?;
        let before = lan.carried()?;
        let out = together((0..shape.hosts).map(|rank| lan.rank(rank, comity, key)));
        match (out, shape.refused) {
            (Ok(said), None) => {
                let after = lan.carried()?;
                judge(shape, &before, &after)
                    .map_err(|e| format!("{}: {e}\n{}", shape.name, said.concat()))?;
            }
            (Err(e), Some(words)) => {
                if let Some(word) = words.iter().find(|w| !e.contains(**w)) {
                    return Err(format!("{}: nothing is said of {word}:\n{e}", shape.name));
                }
                if start.elapsed().as_secs() > 20 {
                    return Err(format!("{}: it was said after {:?}", shape.name, start.elapsed()));
                }
            }
            (Ok(_), Some(_)) => return Err(format!("{}: it ran", shape.name)),
            (Err(e), None) => return Err(format!("{}: {e}", shape.name)),
        }
        println!("{}: as expected, {:.1} s", shape.name, start.elapsed().as_secs_f64());
        ran.push(shape.name);
    }
    Ok(ran)
}

/// Each busy cable carries a fair share of what the busiest does, each other one hardly anything.
fn judge(shape: &Shape, before: &[u64], after: &[u64]) -> Result<(), String> {
    let carried: Vec<_> =
        shape.cables.iter().zip(after.iter().zip(before)).map(|(c, (a, b))| (c.2, a - b)).collect();
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

/// The namespaces of a shape; dropping them removes them, and the cables with them.
pub(super) struct Lan<'a> {
    pub(super) shape: &'a Shape,
    pub(super) names: Vec<String>,
}

pub(super) fn ip(line: &str) -> Result<(), String> {
    Task::new("ip").args(line.split_whitespace()).limit(20).run().map(drop)
}

impl<'a> Lan<'a> {
    pub(super) fn new(shape: &'a Shape) -> Result<Self, String> {
        let names = (0..shape.hosts).map(|i| format!("comity-{}-s{i}", std::process::id())).collect();
        let lan = Self { shape, names };
        for name in &lan.names {
            ip(&format!("netns add {name}"))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        for (a, b, cable, at, bt) in shape.cables {
            let a = &lan.names[*a];
            let b = &lan.names[*b];
            ip(&format!("link add {cable} netns {a} type veth peer name {cable} netns {b}"))?;
            for (host, addr) in [(a, at), (b, bt)] {
                // No address but the one given, and that one at once.
                ip(&format!("-n {host} link set {cable} addrgenmode none"))?;
                let nodad = if addr.contains(':') { "nodad" } else { "" };
                ip(&format!("-n {host} addr add {addr} dev {cable} {nodad}"))?;
                ip(&format!("-n {host} link set {cable} up"))?;
            }
        }
        for (host, line) in shape.also {
            ip(&format!("-n {} {line}", lan.names[*host]))?;
        }
        Ok(lan)
    }

    pub(super) fn within(&self, host: usize) -> Task {
        Task::new("ip").args(["netns", "exec", &self.names[host]])
    }

    pub(super) fn rank(&self, rank: usize, comity: &Path, key: &Path) -> Task {
        let Shape { hosts, master, vars, launched, .. } = self.shape;
        let program = ["bench", "all_reduce", "--sizes", "4M", "--budget", "0.3"];
        let place = rank.to_string();
        let size = hosts.to_string();
        let at = *master.get(rank).unwrap_or(&master[0]);
        let task = self.within(rank).args([comity]);
        let task = match launched {
            true => task
                .args(["launch", "--nnodes", &size, "--node-rank", &place, "--rendezvous", at, "--"])
                .args([comity])
                .args(program),
            false => task
                .args(program)
                .env("COMITY_RANK", place)
                .env("COMITY_SIZE", size)
                .env("MASTER_ADDR", at)
                .env("MASTER_PORT", "7402"),
        };
        let task = task.limit(QUICK).env("COMITY_HOST", ["a", "b", "c"][rank]).env("COMITY_KEY_FILE", key);
        vars.iter().fold(task, |task, (name, value)| task.env(name, value))
    }

    /// Bytes that each cable has carried, both ways.
    pub(super) fn carried(&self) -> Result<Vec<u64>, String> {
        let cables = self.shape.cables.iter();
        cables.map(|(a, b, cable, ..)| Ok(self.received(*a, cable)? + self.received(*b, cable)?)).collect()
    }

    /// Bytes that a device of a host has received so far.
    pub(super) fn received(&self, host: usize, device: &str) -> Result<u64, String> {
        let table = self.within(host).args(["cat", "/proc/net/dev"]).run()?;
        super::received(&table, device).ok_or_else(|| format!("/proc/net/dev has no {device}:\n{table}"))
    }
}

impl Drop for Lan<'_> {
    fn drop(&mut self) {
        for name in &self.names {
            // The one that was never made cannot be removed.
            if Path::new("/run/netns").join(name).exists()
                && let Err(e) =
                    Task::new("ip").args(["netns", "del", name]).limit(20).regardless_of_signals().run()
            {
                eprintln!("xtask: the network namespace {name} is left: {e}");
            }
        }
    }
}

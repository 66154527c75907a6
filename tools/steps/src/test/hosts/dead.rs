//! Hosts with many interfaces that have only a link-local address and lead nowhere, as virtual cables of containers do: a start is not slower
//! for them.
//!
//! ```text
//!   a: lan 10.73.0.1, default route --- lan 10.73.0.2 :b      and on each: dead0 - tail0, dead1 - tail1, ... fe80::... on both ends
//! ```

use super::shapes::{Lan, PLAIN, Shape};
use crate::test::launchers::together;
use std::{
    fmt::Write as _,
    path::Path,
    time::{Duration, Instant},
};
use tasks::{child::Task, place::Scratch};

const HOSTS: Shape = Shape {
    name: "interfaces that lead nowhere",
    hosts: 2,
    cables: &[(0, 1, "lan", "10.73.0.1/24", "10.73.0.2/24")],
    // What has it is tried after what has not.
    also: &[(0, "route add default via 10.73.0.2"), (1, "route add default via 10.73.0.1")],
    master: &["10.73.0.1"],
    ..PLAIN
};

/// Pairs of such interfaces on each host.
const DEAD: usize = 8;
/// Limit on the job: one interface after the other they took half a minute; beside each other they take less than a second.
const LIMIT: Duration = Duration::from_secs(15);

pub(super) fn check(comity: &Path, key: &Path) -> Result<&'static str, String> {
    let lan = Lan::new(&HOSTS)?;
    let scratch = Scratch::new("dead").map_err(|e| format!("no scratch folder: {e}"))?;
    for (host, name) in lan.names.iter().enumerate() {
        let lines = scratch.join(&format!("{host}.batch"));
        std::fs::write(&lines, batch(host)).map_err(|e| format!("cannot write {}: {e}", lines.display()))?;
        Task::new("ip").args(["-n", name, "-batch"]).args([&lines]).limit(20).run()?;
    }
    let start = Instant::now();
    together((0..HOSTS.hosts).map(|rank| lan.rank(rank, comity, key)))?;
    let took = start.elapsed();
    println!("{}: {} on each of two hosts, {:.1} s", HOSTS.name, 2 * DEAD, took.as_secs_f64());
    match took < LIMIT {
        true => Ok(HOSTS.name),
        false => Err(format!("{}: the job took {took:?}, allowed is {LIMIT:?}", HOSTS.name)),
    }
}

/// Lines for `ip -batch`.
fn batch(host: usize) -> String {
    let mut lines = String::new();
    for pair in 0..DEAD {
        // Writing to a string cannot fail.
        let _ = writeln!(lines, "link add dead{pair} type veth peer name tail{pair}");
        for (end, name) in [(1, "dead"), (2, "tail")] {
            let _ = writeln!(lines, "link set {name}{pair} addrgenmode none");
            // Without the wait for duplicates the address is there at once.
            let _ = writeln!(lines, "addr add fe80::{host}:{end}:{pair}:1/64 dev {name}{pair} nodad");
            let _ = writeln!(lines, "link set {name}{pair} up");
        }
    }
    lines
}

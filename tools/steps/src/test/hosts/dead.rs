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
/// Trials: a machine that has something else to do in one of two jobs shows nothing.
const TRIALS: usize = 3;

pub(super) fn check(comity: &Path, key: &Path) -> Result<&'static str, String> {
    let scratch = Scratch::new("dead").map_err(|e| format!("no scratch folder: {e}"))?;
    let mut all = Vec::new();
    for _ in 0..TRIALS {
        let lan = Lan::new(&HOSTS)?;
        let job = || {
            let start = Instant::now();
            together((0..HOSTS.hosts).map(|rank| lan.rank(rank, comity, key)))?;
            Ok::<_, String>(start.elapsed())
        };
        let without = job()?;
        for (host, name) in lan.names.iter().enumerate() {
            let lines = scratch.join(&format!("{host}.batch"));
            std::fs::write(&lines, batch(host))
                .map_err(|e| format!("cannot write {}: {e}", lines.display()))?;
            Task::new("ip").args(["-n", name, "-batch"]).args([&lines]).limit(20).run()?;
        }
        let with = job()?;
        let each = 2 * DEAD;
        println!("{}: {each} on each of two hosts {with:.1?}, without them {without:.1?}", HOSTS.name);
        if with < most(without) {
            return Ok(HOSTS.name);
        }
        all.push((without, with));
    }
    Err(format!("{}: jobs without and with them took {all:?}", HOSTS.name))
}

/// Longest time of a job with such interfaces that takes so long without them. The promise is 0.2 s more; one interface after the other they
/// took a minute.
fn most(without: Duration) -> Duration {
    without * 3 / 2 + Duration::from_secs(1)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_seconds_more_are_too_many_and_a_loaded_machine_is_none() {
        let usual = Duration::from_secs(1);
        assert!(usual + Duration::from_millis(200) < most(usual));
        assert!(usual + Duration::from_secs(3) >= most(usual));
        assert!(usual * 12 < most(usual * 10));
    }
}

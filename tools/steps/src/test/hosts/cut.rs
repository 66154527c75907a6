//! Two hosts with two cables, of which one is cut while a job runs: with MPTCP it goes on over the other, without it ends with both ends named.
//! And a chain whose middle dies.
//!
//! ```text
//!   a === b    one cable is out, comes back, the other is out     each host sees it
//!              the same where packets vanish and no host sees it  (each end of the cable hangs on a switch that is taken away)
//! ```

use super::{CHAIN, Lan, NAMES, PLAIN, Shape};
use crate::test::{
    jobs::{fails, has, timed, until},
    scope::Scope,
};
use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};
use tasks::{
    child::{Running, Task},
    place::built,
};

const TWO: Shape = Shape {
    hosts: 2,
    cables: &[(0, 1, "c0", "10.71.1.%/30"), (0, 1, "c1", "10.71.2.%/30")],
    also: OFFERED,
    master: &["10.71.1.1"],
    ..PLAIN
};

/// The settings of `comity cluster config --auto-setup`.
const OFFERED: &[(usize, &str)] = &[
    (0, "mptcp limits set subflow 2 add_addr_accepted 2"),
    (1, "mptcp limits set subflow 2 add_addr_accepted 2"),
    (0, "mptcp endpoint add 10.71.1.1 dev c0 id 1 signal"),
    (0, "mptcp endpoint add 10.71.2.1 dev c1 id 2 signal"),
    (1, "mptcp endpoint add 10.71.1.2 dev c0 id 1 signal"),
    (1, "mptcp endpoint add 10.71.2.2 dev c1 id 2 signal"),
];

/// The same hosts, whose connections have one path.
const ONE_PATH: Shape = Shape { also: &[], ..TWO };

const MIDDLE: Shape = Shape { cables: CHAIN, master: &["10.71.1.1,10.71.2.1"], ..PLAIN };

/// Way to cut a cable.
#[derive(Clone, Copy, PartialEq)]
enum How {
    /// The end at the first host is set down, which the other sees.
    Out,
    /// Packets of that cable vanish both ways.
    Silent,
}

/// A job, what happens to it, and how it is to end.
type Case = fn(&Path) -> Result<(), String>;

const CASES: [(&str, Case); 4] = [
    ("chain whose middle dies", dead_relay),
    // Job that takes in ranks of another host, and then loses that host, on which all live: one side goes on. The default limit on
    // silence: a busy machine is no cut.
    ("joiners of another host, which is lost", |_| {
        let task = Task::new(built("debug", "examples/elastic")).args(["hosts", "--detection", "5"]);
        task.limit(180).run().map(|said| print!("{said}"))
    }),
    // The cable of the control connection and of some data, or that of other data alone.
    ("two cables without MPTCP, one out", |key| one_path(key, How::Out, "c0")),
    ("two cables without MPTCP, one silent", |key| one_path(key, How::Silent, "c1")),
];

const WITH_MPTCP: [(&str, Case); 4] = [
    ("two cables, one cut", |key| both_cables(key, How::Out, "handshake")),
    ("two cables, one silent", |key| both_cables(key, How::Silent, "data")),
    ("a last message, its cable cut", |key| parting(key, How::Out)),
    ("a last message, its cable silent", |key| parting(key, How::Silent)),
];

/// Each case, or why those with MPTCP were not tried.
pub(super) fn check(scope: &Scope, key: &Path) -> Result<Vec<&'static str>, String> {
    let mut cases = CASES.to_vec();
    match std::fs::read_to_string("/proc/sys/net/mptcp/enabled") {
        Ok(said) if said.trim() == "1" => cases.extend(WITH_MPTCP),
        said => println!("two cables with MPTCP: not tried, for this kernel has none ({said:?})"),
    }
    let cases = scope.share(cases, 2);
    cases.iter().try_for_each(|(name, case)| timed(name, || case(key)))?;
    Ok(cases.into_iter().map(|(name, _)| name).collect())
}

/// Ranks of a job, a host each, that do this for so many seconds.
fn start(lan: &Lan<'_>, what: [&str; 2], key: &Path, vars: &[(&str, &str)]) -> Result<Vec<Running>, String> {
    let shape = lan.shape;
    let rank = |rank: usize| {
        let task = lan.within(rank).arg(built("debug", "examples/load")).args(what).limit(60);
        let task = task.env("COMITY_RANK", rank.to_string()).env("COMITY_SIZE", shape.hosts.to_string());
        let task = task.env("COMITY_HOST", NAMES[rank]).env("COMITY_KEY_FILE", key);
        let task = task.env("MASTER_ADDR", shape.master[0]).env("MASTER_PORT", "7403");
        vars.iter().fold(task, |task, (name, value)| task.env(name, value)).start()
    };
    (0..shape.hosts).map(rank).collect()
}

/// Wait until the ranks have met, and their calls have moved more than a meeting does.
fn await_calls(lan: &Lan<'_>) -> Result<(), String> {
    until("a job in the middle of calls", 30, || {
        Ok((lan.carried()?.iter().sum::<u64>() >= 8 << 20).then_some(()))
    })
}

/// Words of each rank, which ends well.
fn ends(running: Vec<Running>) -> Result<String, String> {
    Ok(running.into_iter().map(Running::wait).collect::<Result<Vec<_>, _>>()?.concat())
}

/// A job without MPTCP whose cable is cut ends on both hosts, and each names both ends.
fn one_path(key: &Path, how: How, cable: &str) -> Result<(), String> {
    let lan = Lan::new(&ONE_PATH)?;
    let running = start(&lan, ["steady", "40"], key, &[("COMITY_DETECTION", "2")])?;
    await_calls(&lan)?;
    let cut = Instant::now();
    turn(&lan, how, cable, true)?;
    let network = if cable == "c0" { "10.71.1" } else { "10.71.2" };
    for end in running {
        fails(end.wait(), &["rank 0", "rank 1", &format!("{network}.1:"), &format!("{network}.2:")])?;
    }
    // The job itself would go on for 40 s.
    match cut.elapsed() {
        took if took > Duration::from_secs(20) => Err(format!("told after {took:?}")),
        _ => Ok(()),
    }
}

/// The rank that passes on what the two others say dies: it is named, and neither of the two.
fn dead_relay(key: &Path) -> Result<(), String> {
    let lan = Lan::new(&MIDDLE)?;
    let mut running = start(&lan, ["steady", "30"], key, &[])?;
    await_calls(&lan)?;
    // Whoever holds it ends it.
    drop(running.remove(1));
    running.into_iter().try_for_each(|end| fails(end.wait(), &["load: rank 1 (host b"]).map(drop))
}

/// The last message of a rank comes over the other cable: one is cut before a rank sends it, which then ends without closing the group.
fn parting(key: &Path, how: How) -> Result<(), String> {
    let lan = Lan::new(&TWO)?;
    let running = start(&lan, ["parting", "3"], key, &[("COMITY_MPTCP", "1")])?;
    thread::sleep(Duration::from_millis(2500));
    turn(&lan, how, "c0", true)?;
    has(&ends(running)?, &["the last message came"])
}

/// A cable, then the other, in a job that is encrypted so far.
fn both_cables(key: &Path, how: How, secure: &str) -> Result<(), String> {
    let lan = Lan::new(&TWO)?;
    let running = start(&lan, ["steady", "5"], key, &[("COMITY_MPTCP", "1"), ("COMITY_SECURE", secure)])?;
    await_calls(&lan)?;
    for (pause, cable, is_cut) in [(500, "c0", true), (1800, "c0", false), (300, "c1", true)] {
        thread::sleep(Duration::from_millis(pause));
        turn(&lan, how, cable, is_cut)?;
    }
    // How long a round took is the kernel's: it tries the cable that came back when its own timers say so.
    let said = ends(running)?;
    print!("{said}");
    match said.matches("rounds, the longest of ").count() {
        2 => Ok(()),
        n => Err(format!("{n} of 2 ranks ended their rounds")),
    }
}

/// Cut a cable, or put it back.
fn turn(lan: &Lan<'_>, how: How, cable: &str, is_cut: bool) -> Result<(), String> {
    match how {
        How::Out => lan.ip(0, &format!("link set {cable} {}", if is_cut { "down" } else { "up" })),
        How::Silent => {
            // To an adapter that is not there.
            let network = if cable == "c0" { "10.71.1" } else { "10.71.2" };
            let what = if is_cut { "replace" } else { "del" };
            let nobody = if is_cut { "lladdr 02:00:00:00:66:66 nud permanent" } else { "" };
            for (host, last) in [(0, 2), (1, 1)] {
                lan.ip(host, &format!("neigh {what} {network}.{last} {nobody} dev {cable}"))?;
            }
            Ok(())
        }
    }
}

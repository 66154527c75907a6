//! Two hosts with two cables, of which one is cut while a job runs: with MPTCP it goes on over the other, without it ends with both ends named.
//! And a chain whose middle dies.
//!
//! ```text
//!   a === b    one cable is out, comes back, the other is out     each host sees it
//!              the same where packets vanish and no host sees it  (each end of the cable hangs on a switch that is taken away)
//! ```

use super::shapes::{Lan, PLAIN, Shape};
use crate::test::scope::Scope;
use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};
use tasks::{child::Task, place::built};

const CABLES: &[super::shapes::Cable] =
    &[(0, 1, "c0", "10.71.1.1/30", "10.71.1.2/30"), (0, 1, "c1", "10.71.2.1/30", "10.71.2.2/30")];

const TWO: Shape = Shape {
    name: "two cables, one cut",
    hosts: 2,
    cables: CABLES,
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
const ONE_PATH: Shape = Shape { name: "two cables without MPTCP, one cut", also: &[], ..TWO };

const MIDDLE: Shape = Shape {
    name: "chain whose middle dies",
    cables: super::shapes::CHAIN,
    master: &["10.71.1.1,10.71.2.1"],
    ..PLAIN
};

/// Seconds of each job.
const SECONDS: &str = "5";

/// Way to cut a cable.
#[derive(Clone, Copy, PartialEq)]
enum How {
    /// The end at the first host is set down, which the other sees.
    Out,
    /// Packets of that cable vanish both ways.
    Silent,
}

/// Fault of a job.
#[derive(Clone, Copy)]
enum Case {
    /// A cable, then the other, in a job that is encrypted so far.
    Cables(How, &'static str),
    /// One cable of two, in a job without MPTCP: that of the control connection and of some data, or that of other data alone.
    OnePath(How, &'static str),
    DeadRelay,
    /// A cable, before a rank sends its last message over it and ends without closing the group.
    Parting(How),
    /// A job that takes in ranks of another host, and then loses that host, on which all live: one side goes on.
    Elastic,
}

/// Each case, or why those with MPTCP were not tried.
pub(super) fn check(scope: &Scope, key: &Path) -> Result<Vec<&'static str>, String> {
    let mut cases =
        vec![Case::DeadRelay, Case::Elastic, Case::OnePath(How::Out, "c0"), Case::OnePath(How::Silent, "c1")];
    match std::fs::read_to_string("/proc/sys/net/mptcp/enabled") {
        Ok(said) if said.trim() == "1" => cases.extend([
            Case::Cables(How::Out, "handshake"),
            Case::Cables(How::Silent, "data"),
            Case::Parting(How::Out),
            Case::Parting(How::Silent),
        ]),
        said => println!("two cables with MPTCP: not tried, for this kernel has none ({said:?})"),
    }
    let mut ran = Vec::new();
    for case in scope.share(cases, 2) {
        ran.push(match case {
            Case::Cables(how, secure) => {
                run(key, how, secure)?;
                if how == How::Out { TWO.name } else { "two cables, one silent" }
            }
            Case::OnePath(how, cable) => {
                one_path(key, how, cable)?;
                ONE_PATH.name
            }
            Case::DeadRelay => {
                dead_relay(key)?;
                MIDDLE.name
            }
            Case::Elastic => {
                // The default limit on silence: a busy machine is no cut.
                let task = Task::new(built("debug", "examples/elastic")).args(["hosts", "--detection", "5"]);
                print!("{}", task.limit(180).run()?);
                "joiners of another host, which is lost"
            }
            Case::Parting(how) => {
                parting(key, how)?;
                "a last message, its cable cut"
            }
        });
    }
    Ok(ran)
}

/// A job without MPTCP whose cable is cut ends on both hosts, and each names both ends.
fn one_path(key: &Path, how: How, cable: &str) -> Result<(), String> {
    let lan = Lan::new(&ONE_PATH)?;
    let start = |r| rank(&lan, &ONE_PATH, r, "40", key).env("COMITY_DETECTION", "2").start();
    let running = (0..2).map(start).collect::<Result<Vec<_>, _>>()?;
    await_calls(&lan)?;
    let cut = Instant::now();
    turn(&lan, how, cable, true)?;
    let network = if cable == "c0" { "10.71.1" } else { "10.71.2" };
    for (own, end) in running.into_iter().enumerate() {
        let said = match end.wait() {
            Ok(said) => return Err(format!("{} ({}): it ran on: {said}", ONE_PATH.name, words(how))),
            Err(said) => said,
        };
        let ends = ["rank 0", "rank 1"]
            .map(String::from)
            .into_iter()
            .chain([1, 2].map(|n| format!("{network}.{n}:")));
        if let Some(lacks) = { ends }.find(|end| !said.contains(end)) {
            return Err(format!(
                "{} ({}): rank {own} does not name {lacks}:\n{said}",
                ONE_PATH.name,
                words(how)
            ));
        }
    }
    println!("{} ({}): told after {:.1} s", ONE_PATH.name, words(how), cut.elapsed().as_secs_f64());
    // The job itself would go on for 40 s.
    if cut.elapsed() > Duration::from_secs(20) {
        return Err(format!("{} ({}): told after {:?}", ONE_PATH.name, words(how), cut.elapsed()));
    }
    Ok(())
}

/// Wait until the ranks have met, and their calls have moved more than a meeting does.
fn await_calls(lan: &Lan<'_>) -> Result<(), String> {
    let end = Instant::now() + Duration::from_secs(30);
    while lan.carried()?.iter().sum::<u64>() < 8 << 20 {
        if Instant::now() > end {
            return Err(format!("{}: no calls within 30 s", lan.shape.name));
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// A rank of a job that sums and passes messages for so long.
fn rank(lan: &Lan<'_>, shape: &Shape, rank: usize, seconds: &str, key: &Path) -> Task {
    acting(lan, shape, rank, ["steady", seconds], key)
}

/// A rank that does so or something else.
fn acting(lan: &Lan<'_>, shape: &Shape, rank: usize, what: [&str; 2], key: &Path) -> Task {
    let task = lan.within(rank).args([built("debug", "examples/load")]).args(what).limit(60);
    task.env("COMITY_RANK", rank.to_string())
        .env("COMITY_SIZE", shape.hosts.to_string())
        .env("COMITY_HOST", ["a", "b", "c"][rank])
        .env("MASTER_ADDR", shape.master[0])
        .env("MASTER_PORT", "7403")
        .env("COMITY_KEY_FILE", key)
}

/// The rank that passes on what the two others say dies: it is named, and neither of the two.
fn dead_relay(key: &Path) -> Result<(), String> {
    let lan = Lan::new(&MIDDLE)?;
    let start = |r| rank(&lan, &MIDDLE, r, "30", key).start();
    let first = start(0)?;
    let middle = start(1)?;
    let last = start(2)?;
    await_calls(&lan)?;
    // Ended by a signal, without a goodbye.
    drop(middle);
    for end in [first, last] {
        match end.wait() {
            Err(e) if e.contains("load: rank 1 (host b") => {}
            Err(e) | Ok(e) => return Err(format!("{}: rank 1 is not named:\n{e}", MIDDLE.name)),
        }
    }
    println!("{}: it is named", MIDDLE.name);
    Ok(())
}

/// The last message of a rank comes over the other cable, though nobody there closes a group.
fn parting(key: &Path, how: How) -> Result<(), String> {
    let lan = Lan::new(&TWO)?;
    let start = |r| acting(&lan, &TWO, r, ["parting", "3"], key).env("COMITY_MPTCP", "1").start();
    let running = (0..2).map(start).collect::<Result<Vec<_>, _>>()?;
    thread::sleep(Duration::from_millis(2500));
    turn(&lan, how, "c0", true)?;
    let said = running.into_iter().map(|r| r.wait()).collect::<Result<Vec<_>, _>>();
    let said = said.map_err(|e| format!("a last message ({}): {e}", words(how)))?.concat();
    if !said.contains("the last message came") {
        return Err(format!("a last message ({}) did not come: {said}", words(how)));
    }
    print!("a last message ({}): {said}", words(how));
    Ok(())
}

fn run(key: &Path, how: How, secure: &str) -> Result<(), String> {
    let lan = Lan::new(&TWO)?;
    let one =
        |r| rank(&lan, &TWO, r, SECONDS, key).env("COMITY_MPTCP", "1").env("COMITY_SECURE", secure).start();
    let running = (0..2).map(one).collect::<Result<Vec<_>, _>>()?;
    await_calls(&lan)?;
    for (pause, cable, is_cut) in [(500, "c0", true), (1800, "c0", false), (300, "c1", true)] {
        thread::sleep(Duration::from_millis(pause));
        turn(&lan, how, cable, is_cut)?;
    }
    let said = running.into_iter().map(|r| r.wait()).collect::<Result<Vec<_>, _>>();
    let said = said.map_err(|e| format!("{} ({}): {e}", TWO.name, words(how)))?;
    // How long a round took is the kernel's: it tries the cable that came back when its own timers say so.
    if let Some(out) = said.iter().find(|out| !out.contains("rounds, the longest of ")) {
        return Err(format!("{} ({}): {out}", TWO.name, words(how)));
    }
    print!("{} ({}, {secure}): {}", TWO.name, words(how), said.concat());
    Ok(())
}

fn words(how: How) -> &'static str {
    if how == How::Out { "both hosts see it" } else { "packets vanish" }
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

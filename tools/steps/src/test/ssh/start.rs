//! Time of jobs over ssh from the command to their end: the released program, the best of some tries, since others use the machine.

use super::Net;
use crate::test::jobs::script;
use std::time::{Duration, Instant};
use tasks::{
    child::Task,
    place::{Scratch, built},
};

/// Number of tries; one that fits is enough.
const TRIES: usize = 10;
/// Time of ssh alone where these goals were set. More than that here is the machine's doing.
const SSH_THERE: Duration = Duration::from_millis(300);
/// Goals for a job of five calls on three hosts, and for one on 64, without the time that the stand-in for ssh takes by itself.
const THREE: Duration = Duration::from_millis(1200);
const MANY: Duration = Duration::from_secs(2);

/// Stands for ssh: it runs here what is to run there.
const STAND_IN: &str = r#"#!/bin/sh
for w in "$@"; do [ "$w" = -G ] && { echo hostname 127.0.0.1; exit 0; }; done
while [ "$1" != -- ]; do shift; done
SSH_CONNECTION="127.0.0.1 1 127.0.0.1 22" exec sh -c "$3"
"#;

/// All of them, of the released program; what each took.
pub(super) fn of(net: &Net<'_>) -> Result<Vec<String>, String> {
    Task::cargo().args(["build", "--release", "-p", "comity-cli"]).limit(3600).run()?;
    let comity = built("release", "comity").display().to_string();
    Ok(vec![three(net, &comity)?, many(&comity)?])
}

/// Three hosts, and a job of five calls.
fn three(net: &Net<'_>, comity: &str) -> Result<String, String> {
    let job = [comity, "bench", "all_reduce", "--sizes", "8", "--iters", "5", "--warmup", "0"];
    let limit = THREE + beyond(net)?;
    best("five calls on three hosts", limit, || net.launch_by(comity, &[], &job)?.wait().map(drop))
}

/// 64 hosts behind a stand-in for ssh.
fn many(comity: &str) -> Result<String, String> {
    let scratch = Scratch::new("ssh-many")?;
    let ssh = script(&scratch.join("ssh"), STAND_IN)?;
    let hosts = (0..64).map(|n| format!("h{n}")).collect::<Vec<_>>().join(",");
    let alone = format!("for n in $(seq 64); do {ssh} -- h$n true & done; wait");
    let begun = Instant::now();
    Task::sh(&alone).limit(60).run()?;
    let own = begun.elapsed();
    best("64 hosts, a stand-in for ssh", MANY + own, || {
        let words = ["launch", "--ssh", &ssh, "--hosts", &hosts, "--", "sh", "-c", "echo $RANK"];
        let said = Task::new(comity).args(words).limit(300).run()?;
        let ranks = said.lines().filter(|l| l.starts_with('[')).count();
        if ranks == 64 { Ok(()) } else { Err(format!("{ranks} ranks of 64 spoke:\n{said}")) }
    })
}

/// Time that ssh alone takes here beyond that, to all hosts at once.
fn beyond(net: &Net<'_>) -> Result<Duration, String> {
    let config = net.folder.text("config");
    let hosts = net.cabling.hosts().join(" ");
    let all = format!("for h in {hosts}; do ssh -F {config} $h true & done; wait");
    let mut shortest = Duration::MAX;
    for _ in 0..3 {
        let begun = Instant::now();
        net.desk(&["sh", "-c", &all]).limit(60).run()?;
        shortest = shortest.min(begun.elapsed());
    }
    println!("ssh alone, {} hosts: {:.2} s", net.cabling.hosts().len(), shortest.as_secs_f64());
    Ok(shortest.saturating_sub(SSH_THERE))
}

/// The shortest of the tries, and whether it is short enough.
fn best(what: &str, limit: Duration, mut run: impl FnMut() -> Result<(), String>) -> Result<String, String> {
    let mut shortest = Duration::MAX;
    for _ in 0..TRIES {
        let begun = Instant::now();
        run().map_err(|e| format!("{what}: {e}"))?;
        shortest = shortest.min(begun.elapsed());
        if shortest <= limit {
            break;
        }
    }
    let took = format!("{what}: {:.2} s", shortest.as_secs_f64());
    println!("{took} (limit {:.2} s)", limit.as_secs_f64());
    match shortest <= limit {
        true => Ok(took),
        false => Err(format!("{took}, the best of {TRIES}; the limit is {:.2} s", limit.as_secs_f64())),
    }
}

//! Three hosts with an sshd each, and a desk from which `comity launch --hostfile` starts jobs on them.
//!
//! ```text
//! desk 10.78.0.1 --+-- a 10.78.0.2   (network namespaces; the bridge is in one of its own)
//!                  +-- b 10.78.0.3
//!                  +-- c 10.78.0.4
//! ```
//!
//! Ends of jobs are all in the gate, and half of the rest. Then one of two shapes without a switch (deep: both), in which the desk has a rank:
//! a triangle, where each two of the desk, a and b have a cable of their own, and a chain, where a is on the way to b. Each time the last
//! line and the exit code are right, and nothing is left on any host. What needs no host of its own is in `crates/comity-cli/tests/launch`,
//! with a stand-in for ssh.
//!
//! The deep part also holds how long jobs take to start: three hosts, and 64 behind a stand-in.

mod more;
mod net;
pub(super) mod shells;
mod start;

use super::{
    jobs::{fails, has, timed},
    scope::Scope,
    step::Outcome,
};
use net::{CLEAN, Cabling, Net};
use rustix::process::Signal;
use std::{
    thread::sleep,
    time::{Duration, Instant},
};
use tasks::{
    place::{Scratch, read},
    signal,
};

/// Runs jobs on these hosts; what went wrong.
type Case = fn(&Net<'_>) -> Result<(), String>;

const ENDS: [(&str, Case); 5] = [
    ("a job on three hosts", runs),
    ("a rank that is killed", loses_a_rank),
    ("a launcher that is killed", loses_the_launcher),
    ("a cable that is cut", loses_a_cable),
    ("Ctrl-Z, fg and Ctrl-C", is_interrupted),
];
const OTHERS: [(&str, Case); 6] = [
    ("a host that is lost and comes back", more::comes_back),
    ("a copy of the program, and a terminal", more::copies_itself),
    ("a key that is copied", more::copies_a_key),
    ("the selftest of two hosts", more::tests_itself),
    ("programs of torch and MLX", more::runs_frameworks),
    ("Open MPI and MPICH, by hostfiles", more::under_mpi),
];
const WITHOUT_A_SWITCH: [(&str, Case); 4] = [
    ("a job", runs_without_a_switch),
    ("a program that meets at MASTER_ADDR", meets_at_rank_0),
    ("a rank that is killed", loses_a_rank),
    ("a launcher that is killed", loses_the_launcher),
];

pub(super) fn check(scope: &Scope) -> Outcome {
    let cases = [&ENDS[..], &scope.share(OTHERS.to_vec(), 2)].concat();
    let mut note = format!("{} jobs over ssh on 3 hosts", cases.len());
    each(Cabling::Switch, "a switch", &cases, |net| {
        let starts = if scope.deep { start::of(net)? } else { Vec::new() };
        starts.iter().for_each(|took| note += &format!("; {took}"));
        Ok(())
    })?;
    for (cabling, name) in
        scope.share(vec![(Cabling::Triangle, "a triangle"), (Cabling::Chain, "a chain")], 2)
    {
        each(cabling, name, &WITHOUT_A_SWITCH, |_| Ok(()))?;
        note += &format!("; {name}");
    }
    Ok(note)
}

/// All of these on new hosts, and then something more.
fn each(
    cabling: Cabling,
    name: &str,
    cases: &[(&str, Case)],
    more: impl FnOnce(&Net<'_>) -> Result<(), String>,
) -> Outcome<()> {
    let scratch = Scratch::new("ssh")?;
    let net = Net::new("ssh", &scratch, cabling, true)?;
    for (what, case) in cases {
        timed(&format!("{name}: {what}"), || case(&net).and_then(|()| net.clean()))?;
    }
    Ok(more(&net)?)
}

fn runs_without_a_switch(net: &Net<'_>) -> Result<(), String> {
    let said = net.launch(&[], &[&net.comity(), "check", "--quick", "--ops", "all_reduce"])?.wait()?;
    has(&said, &["cases on each rank", "[0@localhost]"])
}

/// Program like torch's store: rank 0 listens at all addresses, sooner or later, and the others connect to the one that they were given.
const LIKE_TORCH: &str = r#"
import os, socket, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
assert all(at.endswith(":7403") for at in os.environ["COMITY_STORE"].split(",")), os.environ["COMITY_STORE"]
host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    time.sleep(0.2)
    server = socket.create_server(("", port))
    ends = [server.accept()[0] for _ in range(size - 1)]
    said = sorted(end.recv(1)[0] for end in ends)
    for end in ends:
        end.sendall(bytes(said))
else:
    end = socket.create_connection((host, port), 10)
    end.settimeout(10)
    end.sendall(bytes([rank]))
    said = list(end.recv(size - 1, socket.MSG_WAITALL))
assert said == list(range(1, size)), said
print("met at rank 0:", said, flush=True)
"#;

/// Each rank reaches rank 0 at its `MASTER_ADDR`, also where its host does not; and the ranks meet at the port that was asked for.
fn meets_at_rank_0(net: &Net<'_>) -> Result<(), String> {
    let said = net.launch(&["--meet-at", ":7403"], &["python3", "-c", LIKE_TORCH])?.wait()?;
    match said.matches("met at rank 0: [1, 2]").count() {
        3 => Ok(()),
        n => Err(format!("{n} of 3 ranks have met:\n{said}")),
    }
}

fn runs(net: &Net<'_>) -> Result<(), String> {
    let logs = net.folder.join("logs");
    let flags = ["--log-dir", &net.folder.text("logs")];
    let said = net.launch(&flags, &[&net.comity(), "check", "--quick", "--ops", "all_reduce"])?.wait()?;
    has(&said, &["cases on each rank", "[0@a]"])?;
    let log = read(logs.join("rank-0.out"))?;
    match log.contains("cases on each rank") && !log.contains("[0@a]") && logs.join("rank-2.err").exists() {
        true => Ok(()),
        false => Err(format!("--log-dir does not have what the ranks said:\n{log}")),
    }
}

fn loses_a_rank(net: &Net<'_>) -> Result<(), String> {
    let job = net.busy()?;
    let last = net.cabling.hosts().last().ok_or("no hosts")?;
    let rank = net.ranks_of(last)?.first().copied().ok_or("no rank runs there")?;
    signal(rank, Signal::KILL);
    let said = format!("host {last}) was killed by signal 9 (SIGKILL)");
    fails(job.wait(), &["exit status: 137", &said]).map(drop)
}

fn loses_the_launcher(net: &Net<'_>) -> Result<(), String> {
    let job = net.busy()?;
    signal(net.launcher()?, Signal::KILL);
    fails(job.wait(), &["signal: 9"]).map(drop)
}

fn loses_a_cable(net: &Net<'_>) -> Result<(), String> {
    let job = net.busy()?;
    let begun = Instant::now();
    net.hosts.ip("c", "link set eth0 down")?;
    let told = fails(job.wait(), &["exit status: 1", "host c was lost", "its rank 2 is ended there"]);
    let clean = net.clean();
    net.hosts.ip("c", "link set eth0 up")?;
    told.and(clean)?;
    // The launcher's 3 s of silence, the ranks' second, and 5 s to be gone.
    match begun.elapsed() < CLEAN * 2 {
        true => Ok(()),
        false => Err(format!("it took {:?} until all had noticed", begun.elapsed())),
    }
}

/// Stopped and continued first: the ranks stop with the launcher.
fn is_interrupted(net: &Net<'_>) -> Result<(), String> {
    let job = net.busy()?;
    let launcher = net.launcher()?;
    for (name, pause) in [(Signal::TSTP, 500), (Signal::CONT, 300), (Signal::INT, 0)] {
        signal(launcher, name);
        sleep(Duration::from_millis(pause));
    }
    fails(job.wait(), &["exit status: 130"]).map(drop)
}

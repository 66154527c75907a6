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
mod newcomer;
pub(super) mod shells;
mod start;

use super::{
    Done, Outcome, missing,
    processes::comity,
    python,
    scope::Scope,
    sshd::{self, signal},
};
use net::{CLEAN, Cabling, Net, comm};
use rustix::process::Signal;
use std::{path::PathBuf, time::Instant};
use tasks::{
    child::Running,
    place::{Scratch, program},
};

/// Runs jobs of this program on these hosts; what went wrong.
type Case = fn(&Net, &str) -> Result<(), String>;

pub(super) fn check(scope: &Scope) -> Outcome {
    if !cfg!(target_os = "linux") {
        return Ok(Done::NotRun("network namespaces are Linux's".into()));
    }
    let sshd = match server() {
        Ok(sshd) => sshd,
        Err(why) => return missing(why),
    };
    let scratch = Scratch::new("ssh").map_err(|e| e.to_string())?;
    let net = match net::hosts(&scratch, &sshd, Cabling::Switch) {
        Ok(net) => net,
        Err(e) => return missing(format!("hosts cannot be made here: {e}")),
    };
    let comity = comity()?;
    let comity = comity.to_str().ok_or("the program's path is no text")?;
    let mut cases: Vec<(&str, Case)> = vec![
        ("a job on three hosts", runs),
        ("a rank that is killed", loses_a_rank),
        ("a launcher that is killed", loses_the_launcher),
        ("a cable that is cut", loses_a_cable),
        ("Ctrl-Z, fg and Ctrl-C", newcomer::is_interrupted),
    ];
    let others: Vec<(&str, Case)> = vec![
        ("a host that is lost and comes back", more::comes_back),
        ("a copy of the program, and a terminal", more::copies_itself),
        ("a key that is copied", more::copies_a_key),
        ("the selftest of two hosts", more::tests_itself),
        ("programs of torch and MLX", newcomer::runs_frameworks),
        ("Open MPI and MPICH, by hostfiles", newcomer::under_mpi),
    ];
    cases.extend(scope.share(others, 2));
    each(&net, comity, &cases)?;
    let starts = if scope.deep { start::of(&net)? } else { Vec::new() };
    // The next hosts have the same names.
    drop(net);
    let shapes = scope.share(vec![(Cabling::Triangle, "a triangle"), (Cabling::Chain, "a chain")], 2);
    for (cabling, name) in &shapes {
        let scratch = Scratch::new("ssh-shape").map_err(|e| e.to_string())?;
        let net = net::hosts(&scratch, &sshd, *cabling).map_err(|e| format!("{name}: {e}"))?;
        let cases: [(&str, Case); 4] = [
            ("a job without a switch", runs_without_a_switch),
            ("a program that meets at MASTER_ADDR there", meets_at_rank_0),
            ("a rank that is killed there", loses_a_rank),
            ("a launcher that is killed there", loses_the_launcher),
        ];
        each(&net, comity, &cases).map_err(|e| format!("{name}: {e}"))?;
    }
    let names: Vec<_> = shapes.iter().map(|(_, name)| *name).collect();
    let mut note = format!("{} jobs over ssh on 3 hosts; {}", cases.len(), names.join(" and "));
    starts.iter().for_each(|took| note += &format!("; {took}"));
    Ok(Done::Passed(note))
}

/// The program of the servers; or what is missing for hosts that ssh reaches.
fn server() -> Result<PathBuf, String> {
    if program("ip").is_none() || program("ssh").is_none() || !rustix::process::geteuid().is_root() {
        return Err("this needs root, ip (package iproute2) and ssh (package openssh-client)".into());
    }
    sshd::sshd().map_err(|e| format!("there is no sshd (package openssh-server): {e}"))
}

fn each(net: &Net, comity: &str, cases: &[(&str, Case)]) -> Result<(), String> {
    for (what, case) in cases {
        let begun = Instant::now();
        case(net, comity).and_then(|()| net.clean()).map_err(|e| format!("{what}: {e}"))?;
        println!("{what}: right, {:.1} s", begun.elapsed().as_secs_f64());
    }
    Ok(())
}

fn runs_without_a_switch(net: &Net, comity: &str) -> Result<(), String> {
    let said = net.launch(comity, &[comity, "check", "--quick", "--ops", "all_reduce"])?.wait()?;
    match said.contains("cases on each rank") && said.contains("[0@localhost]") {
        true => Ok(()),
        false => Err(format!("it did not say that all cases are right:\n{said}")),
    }
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
fn meets_at_rank_0(net: &Net, comity: &str) -> Result<(), String> {
    let said = net.launch_with(comity, &["--meet-at", ":7403"], &["python3", "-c", LIKE_TORCH])?.wait()?;
    match said.matches("met at rank 0: [1, 2]").count() {
        3 => Ok(()),
        n => Err(format!("{n} of 3 ranks have met:\n{said}")),
    }
}

fn runs(net: &Net, comity: &str) -> Result<(), String> {
    let logs = net.folder.join("logs");
    let flags = ["--log-dir", &logs.display().to_string()];
    let said =
        net.launch_with(comity, &flags, &[comity, "check", "--quick", "--ops", "all_reduce"])?.wait()?;
    if !(said.contains("cases on each rank") && said.contains("[0@a]")) {
        return Err(format!("it did not say that all cases are right, with rank and host:\n{said}"));
    }
    let log = std::fs::read_to_string(logs.join("rank-0.out")).map_err(|e| e.to_string())?;
    match log.contains("cases on each rank") && !log.contains("[0@a]") && logs.join("rank-2.err").exists() {
        true => Ok(()),
        false => Err(format!("--log-dir does not have what the ranks said:\n{log}")),
    }
}

fn loses_a_rank(net: &Net, comity: &str) -> Result<(), String> {
    let job = net.busy(comity)?;
    let last = net.cabling.hosts().last().ok_or("no hosts")?;
    let rank = net.ranks_of(last)?.first().copied().ok_or("no rank runs there")?;
    signal(rank, Signal::KILL)?;
    let said = format!("host {last}) was killed by signal 9 (SIGKILL)");
    ended(job, "exit status: 137", &[&said])
}

fn loses_the_launcher(net: &Net, comity: &str) -> Result<(), String> {
    let job = net.busy(comity)?;
    let named = |pid: &u32| comm(*pid) == "comity";
    let launcher = net.hosts.pids("desk")?.into_iter().find(named).ok_or("no launcher runs")?;
    signal(launcher, Signal::KILL)?;
    ended(job, "signal: 9", &[])
}

fn loses_a_cable(net: &Net, comity: &str) -> Result<(), String> {
    let job = net.busy(comity)?;
    let begun = Instant::now();
    net.hosts.ip("c", "link set eth0 down")?;
    let told = ended(job, "exit status: 1", &["host c was lost", "its rank 2 is ended there"]);
    let clean = net.clean();
    net.hosts.ip("c", "link set eth0 up")?;
    told.and(clean)?;
    // The launcher's 3 s of silence, the ranks' second, and 5 s to be gone.
    match begun.elapsed() < CLEAN * 2 {
        true => Ok(()),
        false => Err(format!("it took {:?} until all had noticed", begun.elapsed())),
    }
}

/// The job fails like this, and says so.
fn ended(job: Running, status: &str, parts: &[&str]) -> Result<(), String> {
    let Err(said) = job.wait() else { return Err("the job succeeded".into()) };
    match [&[status], parts].concat().iter().find(|p| !said.contains(**p)) {
        None => Ok(()),
        Some(part) => Err(format!("{part:?} is not in what it said:\n{said}")),
    }
}

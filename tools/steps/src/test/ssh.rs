//! Three hosts with an sshd each, and a desk from which `comity launch --hostfile` starts jobs on them.
//!
//! ```text
//! desk 10.78.0.1 --+-- a 10.78.0.2   (network namespaces; the bridge is in one of its own)
//!                  +-- b 10.78.0.3
//!                  +-- c 10.78.0.4
//! ```
//!
//! Ends of jobs are all in the gate, and half of the rest. Then one of two shapes without a switch (deep: both), in which the desk has a rank:
//! a triangle, where each two of the desk, a and b have a cable of their own, and a chain, where a is on the way to b.
//!
//! The deep part also holds how long jobs take to start: three hosts, eight, and 64 behind a stand-in for ssh.
//!
//! Cases: a job runs; a rank is killed, a cable is cut, the launcher is killed, a program fails or is missing. Each time
//! the last line and the exit code are right, and nothing is left on any host.

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
    sshd::{self, ip, kill},
};
use net::{CLEAN, Cabling, Net, comm};
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
        ("a job that is started again", more::restarts),
        ("a host that is lost and comes back", more::comes_back),
        ("an address to meet at", more::binds),
        ("another interpreter, and comity as a Python package", more::falls_back),
        ("a copy of the program, and a terminal", more::copies_itself),
        ("another version there", more::refuses_a_version),
        ("programs that differ, and files that are copied", more::stages),
        ("a key that is copied", more::copies_a_key),
        ("the digits example", newcomer::trains),
        ("programs of torch and MLX", newcomer::runs_frameworks),
        ("Open MPI and MPICH, by hostfiles", newcomer::under_mpi),
        ("a failing program", fails),
        ("a missing program", lacks),
    ];
    cases.extend(scope.share(others, 2));
    each(&net, comity, &cases)?;
    let starts = start::of(scope, net, &sshd)?;
    let shapes = scope.share(vec![(Cabling::Triangle, "a triangle"), (Cabling::Chain, "a chain")], 2);
    for (cabling, name) in &shapes {
        let scratch = Scratch::new("ssh-shape").map_err(|e| e.to_string())?;
        let net = net::hosts(&scratch, &sshd, *cabling).map_err(|e| format!("{name}: {e}"))?;
        let cases: [(&str, Case); 3] = [
            ("a job without a switch", runs_without_a_switch),
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

fn fails(net: &Net, comity: &str) -> Result<(), String> {
    let job = net.launch(comity, &["sh", "-c", "[ $RANK = 1 ] && exit 7; setsid sleep 100 & sleep 100"])?;
    ended(job, "exit status: 7", &["rank 1 (pid ", "host b) exited with code 7"])
}

fn lacks(net: &Net, comity: &str) -> Result<(), String> {
    let job = net.launch(comity, &["no-such-program"])?;
    ended(job, "exit status: 2", &["host a: command 'no-such-program'", "host c: command", "nothing was run"])
}

fn loses_a_rank(net: &Net, comity: &str) -> Result<(), String> {
    let job = net.busy(comity)?;
    let last = net.cabling.hosts().last().ok_or("no hosts")?;
    let rank = net.ranks_of(last)?.first().copied().ok_or("no rank runs there")?;
    kill(rank)?;
    let said = format!("host {last}) was killed by signal 9 (SIGKILL)");
    ended(job, "exit status: 137", &[&said])
}

fn loses_the_launcher(net: &Net, comity: &str) -> Result<(), String> {
    let job = net.busy(comity)?;
    let named = |pid: &i32| comm(*pid) == "comity";
    let launcher = net.pids("desk")?.into_iter().find(named).ok_or("no launcher runs")?;
    kill(launcher)?;
    ended(job, "signal: 9", &[])
}

fn loses_a_cable(net: &Net, comity: &str) -> Result<(), String> {
    let job = net.busy(comity)?;
    let begun = Instant::now();
    ip(&format!("-n {} link set eth0 down", net.name("c")))?;
    let told = ended(job, "exit status: 1", &["host c was lost", "its rank 2 is ended there"]);
    let clean = net.clean();
    ip(&format!("-n {} link set eth0 up", net.name("c")))?;
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

//! Three hosts with an sshd each, and a desk from which `comity launch --hostfile` starts jobs on them.
//!
//! ```text
//! desk 10.78.0.1 --+-- a 10.78.0.2   (network namespaces; the bridge is in one of its own)
//!                  +-- b 10.78.0.3
//!                  +-- c 10.78.0.4
//! ```
//!
//! What is checked: a job runs; a rank is killed, a cable is cut, the launcher is killed, a program fails or is missing. Each time
//! the last line and the exit code are right, and nothing is left on any host.

use super::{
    Done, Outcome, missing,
    processes::comity,
    scope::Scope,
    sshd::{CLEAN, HOSTS, SshNet, comm, ip, kill, sshd},
};
use std::{
    fs,
    thread::sleep,
    time::{Duration, Instant},
};
use tasks::{
    child::Running,
    place::{Scratch, program},
};

/// Runs jobs of this program on these hosts; what went wrong.
type Case = fn(&SshNet<'_>, &str) -> Result<(), String>;

pub(super) fn check(_: &Scope) -> Outcome {
    if !cfg!(target_os = "linux") {
        return Ok(Done::NotRun("network namespaces are Linux's".into()));
    }
    if program("ip").is_none() || program("ssh").is_none() || !rustix::process::geteuid().is_root() {
        return missing("this needs root, ip (package iproute2) and ssh (package openssh-client)".into());
    }
    let sshd = match sshd() {
        Ok(sshd) => sshd,
        Err(e) => return missing(format!("there is no sshd (package openssh-server): {e}")),
    };
    let scratch = Scratch::new("ssh").map_err(|e| e.to_string())?;
    let net = match SshNet::new("ssh", &scratch, &sshd) {
        Ok(net) => net,
        Err(e) => return missing(format!("hosts cannot be made here: {e}")),
    };
    let comity = comity()?;
    let cases: [(&str, Case); 6] = [
        ("a job on three hosts", runs),
        ("a failing program", fails),
        ("a missing program", lacks),
        ("a rank that is killed", loses_a_rank),
        ("a launcher that is killed", loses_the_launcher),
        ("a cable that is cut", loses_a_cable),
    ];
    for (what, case) in cases {
        let begun = Instant::now();
        let comity = comity.to_str().ok_or("the program's path is no text")?;
        case(&net, comity).and_then(|()| net.clean()).map_err(|e| format!("{what}: {e}"))?;
        println!("{what}: right, {:.1} s", begun.elapsed().as_secs_f64());
    }
    Ok(Done::Passed(format!("{} jobs over ssh on 3 hosts", cases.len())))
}

fn runs(net: &SshNet<'_>, comity: &str) -> Result<(), String> {
    let said = launch(net, comity, &[comity, "check", "--quick", "--ops", "all_reduce"])?.wait()?;
    match said.contains("cases on each rank") && said.contains("[0@a]") {
        true => Ok(()),
        false => Err(format!("it did not say that all cases are right, with rank and host:\n{said}")),
    }
}

fn fails(net: &SshNet<'_>, comity: &str) -> Result<(), String> {
    let job = launch(net, comity, &["sh", "-c", "[ $RANK = 1 ] && exit 7; setsid sleep 100 & sleep 100"])?;
    ended(job, "exit status: 7", &["rank 1 (pid ", "host b) exited with code 7"])
}

fn lacks(net: &SshNet<'_>, comity: &str) -> Result<(), String> {
    let job = launch(net, comity, &["no-such-program"])?;
    ended(job, "exit status: 2", &["host a: command 'no-such-program'", "host c: command", "nothing was run"])
}

fn loses_a_rank(net: &SshNet<'_>, comity: &str) -> Result<(), String> {
    let job = busy(net, comity)?;
    let rank = ranks_of(net, "c")?.first().copied().ok_or("no rank runs on c")?;
    kill(rank)?;
    ended(job, "exit status: 137", &["host c) was killed by signal 9 (SIGKILL)"])
}

fn loses_the_launcher(net: &SshNet<'_>, comity: &str) -> Result<(), String> {
    let job = busy(net, comity)?;
    let named = |pid: &i32| comm(*pid) == "comity";
    let launcher = net.pids("desk")?.into_iter().find(named).ok_or("no launcher runs")?;
    kill(launcher)?;
    ended(job, "signal: 9", &[])
}

fn loses_a_cable(net: &SshNet<'_>, comity: &str) -> Result<(), String> {
    let job = busy(net, comity)?;
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

fn launch(net: &SshNet<'_>, comity: &str, words: &[&str]) -> Result<Running, String> {
    let path = |file: &str| net.folder.join(file).display().to_string();
    let (config, hosts) = (format!("--ssh-arg={}", path("config")), path("hosts"));
    let task = net.desk(&[comity, "launch", "--ssh-arg=-F", &config, "--hostfile", &hosts, "--"]);
    task.args(words).limit(90).start()
}

/// A job whose ranks are in the middle of calls.
fn busy(net: &SshNet<'_>, comity: &str) -> Result<Running, String> {
    let job = launch(net, comity, &[comity, "bench", "all_reduce", "--sizes", "64K", "--budget", "60"])?;
    let until = Instant::now() + Duration::from_secs(20);
    while HOSTS.iter().any(|h| ranks_of(net, h).is_ok_and(|r| r.is_empty())) {
        if Instant::now() > until {
            return Err("no rank runs after 20 s".into());
        }
        sleep(Duration::from_millis(50));
    }
    sleep(Duration::from_millis(700));
    Ok(job)
}

fn ranks_of(net: &SshNet<'_>, host: &str) -> Result<Vec<i32>, String> {
    let is_rank = |pid: &i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.windows(12).any(|w| w == b"COMITY_RANK=")
    };
    Ok(net.pids(host)?.into_iter().filter(is_rank).collect())
}

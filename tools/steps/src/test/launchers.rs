//! `comity check` started by others than `comity launch`: by hand with torch's variables, by Open MPI, by MPICH.

mod faults;

use super::{
    Done, Outcome, missing,
    processes::{QUICK, comity, timed},
    scope::Scope,
};
use faults::Launcher;
use std::{
    fs::OpenOptions,
    io::{Read, Write},
    net::TcpListener,
    os::unix::fs::OpenOptionsExt,
    path::PathBuf,
    time::Instant,
};
use tasks::{
    child::Task,
    place::{Scratch, program},
};

const RANKS: usize = 4;

pub(super) fn run(_: &Scope) -> Outcome {
    let mut notes = Vec::new();
    for part in [torch, mpi] {
        match part()? {
            Done::Passed(note) => notes.push(note),
            not_run @ Done::NotRun(_) => return Ok(not_run),
        }
    }
    Ok(Done::Passed(notes.join(", ")))
}

fn torch() -> Outcome {
    let comity = comity()?;
    let (_scratch, key) = job_key()?;
    let ranks = |rank: usize| {
        let task = Task::new(&comity).args(["check", "--quick"]).limit(QUICK);
        task.env("RANK", rank.to_string()).env("WORLD_SIZE", RANKS.to_string()).env("COMITY_KEY_FILE", &key)
    };
    // The port can be taken between the look and its use.
    let mut tries = 3;
    loop {
        let port = free_port()?.to_string();
        let start = Instant::now();
        let meet = |t: Task| t.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port);
        match together((0..RANKS).map(|r| meet(ranks(r)))) {
            Ok(_) => {
                println!(
                    "{RANKS} ranks with torch's variables: right, {:.1} s",
                    start.elapsed().as_secs_f64()
                );
                return Ok(Done::Passed(format!("{RANKS} ranks with torch's variables")));
            }
            Err(e) if tries > 1 && e.contains("in use") => tries -= 1,
            Err(e) => return Err(e),
        }
    }
}

/// Launchers of MPI that Debian has.
const MPI: [Launcher; 2] = [
    Launcher {
        program: "mpirun.openmpi",
        flags: &["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"],
        library: "libmpi.so.40",
        // It would not end for long: all operations, types and sizes.
        killed: &["check"],
    },
    Launcher {
        program: "mpiexec.mpich",
        flags: &[],
        library: "libmpich.so.12",
        // Of longer messages its UCX may end the rank that reads them (docs/transports-reference.md).
        killed: &["bench", "all_reduce", "--sizes", "1K", "--budget", "60"],
    },
];

fn mpi() -> Outcome {
    if program("python3").is_none() {
        return missing("there is no python3".into());
    }
    let comity = comity()?;
    let mut ran = Vec::new();
    for mpi in &MPI {
        let launcher = mpi.program;
        if program(launcher).is_none() {
            continue;
        }
        let task = Task::new(launcher).args(mpi.flags).args(["-n", &RANKS.to_string()]);
        // No key is given: rank 0 shares one over what the launcher has.
        let task = task.args([&comity]).args(["check", "--quick"]);
        timed(&format!("{RANKS} ranks under {launcher}"), task.limit(QUICK))?;
        let start = Instant::now();
        faults::check(mpi, &comity)?;
        println!("what breaks under {launcher}: as expected, {:.1} s", start.elapsed().as_secs_f64());
        ran.push(launcher);
    }
    match ran[..] {
        [] => missing(
            "neither mpirun.openmpi nor mpiexec.mpich is installed: apt-get install openmpi-bin mpich".into(),
        ),
        [one] => missing(format!("only {one} is installed: apt-get install openmpi-bin mpich")),
        _ => Ok(Done::Passed(format!("under {}", ran.join(" and ")))),
    }
}

/// Start ranks, wait for all; what those said that failed is the error.
pub(super) fn together(ranks: impl Iterator<Item = Task>) -> Result<Vec<String>, String> {
    let running = ranks.map(Task::start).collect::<Result<Vec<_>, _>>()?;
    // What each that failed said: the first need not be the one that knows why.
    let (said, failed): (Vec<_>, Vec<_>) = running.into_iter().map(|r| r.wait()).partition(Result::is_ok);
    let why: Vec<String> = failed.into_iter().filter_map(Result::err).collect();
    if why.is_empty() { Ok(said.into_iter().flatten().collect()) } else { Err(why.join("\n")) }
}

/// A file with a job key that only its owner can read, for launchers that cannot hand one over.
pub(super) fn job_key() -> Result<(Scratch, PathBuf), String> {
    let fail = |e| format!("cannot make a job key: {e}");
    let scratch = Scratch::new("key").map_err(fail)?;
    let path = scratch.join("key");
    let mut key = [0; 32];
    OpenOptions::new()
        .read(true)
        .open("/dev/urandom")
        .and_then(|mut f| f.read_exact(&mut key))
        .map_err(fail)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(fail)?;
    file.write_all(&key).map_err(fail)?;
    Ok((scratch, path))
}

pub(super) fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
    listener.map(|a| a.port()).map_err(|e| format!("no free port: {e}"))
}
